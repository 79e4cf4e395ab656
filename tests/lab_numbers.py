"""Small decoders for a lab, what its script makes of them, and what the library does in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from small_models import randomise
from twofold.evaluation.attention_entropy import tally
from twofold.explain.activations import run
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.load import load_model

SENTENCE = "naïve (x):"
SIZES = {"num_hidden_layers": 2, "hidden_size": 13, "num_attention_heads": 6, "head_dim": 10, "intermediate_size": 17}
MODELS = {
    "QKV": {"rotary": "none", "tie_word_embeddings": False, "scaled_embeddings": True, "scale_exponent": 0.4},
    "K=V GQA-2": {"rotary": "full"},
    "Q=K": {"rotary": "partial", "rotary_dims": 4},
    "Q=K=V": {"rotary": "none"},
}
"""Every sharing once; learned and rotary positions, in whole and in part; and what else the script knows."""
DRIVER = """(record, ids, factor) => {
  const list = (array) => Array.from(array);
  const pass = LabModel.forward(LabModel.open(record), ids, factor);
  const maps = pass.layers.flatMap(({ heads }) => heads.map(({ weights }) => weights));
  return {
    logits: list(pass.logits), bytes: LabModel.measuredBytes(pass), sharpness: LabModel.sharpness(maps),
    layers: pass.layers.map(({ made, heads, update }) => ({
      q: list(made.query), k: list(made.key), v: list(made.value), update: list(update),
      products: heads.map(({ raw }) => list(raw)), maps: heads.map(({ weights }) => list(weights)),
    })),
  };
}"""


def save_models(folder: Path, **changes: Any) -> list[Path]:
    """A folder for each of `MODELS`, with random weights."""
    places = []
    for variant, fields in MODELS.items():
        config = TwofoldConfig(variant=variant, max_position_embeddings=53, **{**SIZES, **fields, **changes})
        model = TwofoldForCausalLM(config)
        randomise(model, 0.4)
        places.append(folder / f"{variant.replace(' ', '_')}_seed0")
        model.save_pretrained(places[-1] / "model")
    return places


def expected(folder: Path, text: str, factor: float = 1.0) -> dict[str, Any]:
    """The same as `DRIVER` gives, by the library in float64; bytes are those of its float32 cache."""
    model = load_model(folder)
    ids_BT = torch.tensor([list(text.encode())])
    with torch.no_grad():
        cached = model(ids_BT, use_cache=True).cache.bytes_used
    model.double()
    for block in model.model.layers:
        block.attention.scale *= factor
    updates: list[np.ndarray] = []
    handles = [
        block.attention.register_forward_hook(lambda _, __, made: updates.append(made.output_BTM[0].numpy()))
        for block in model.model.layers
    ]
    with torch.no_grad():
        logits = model(ids_BT, use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    layers, totals = [], torch.zeros(4, dtype=torch.float64)
    for found, update in zip(run(model, ids_BT), updates, strict=True):
        layers.append((found, update))
        totals += tally(found.scored.maps_BHTT[0], torch.arange(1, ids_BT.shape[1] + 1))
    return {"logits": logits.numpy(), "bytes": cached, "layers": layers, "totals": totals.tolist()}


def check(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Everything that the script made equals the library's, relative to the largest number of its kind."""
    close(found["logits"], wanted["logits"], tolerance)
    assert found["bytes"] == wanted["bytes"]
    entropy, relative, saturated, count = wanted["totals"]
    for name, total in (("entropy", entropy), ("relative", relative), ("saturated", saturated)):
        assert abs(found["sharpness"][name] - total / count) < tolerance
    for ours, (seen, update) in zip(found["layers"], wanted["layers"], strict=True):
        close(ours["q"], seen.q_BTHD[0], tolerance)
        close(ours["k"], seen.k_BTGD[0], tolerance)
        close(ours["v"], seen.v_BTGD[0], tolerance)
        close(ours["update"], update, tolerance)
        close(ours["maps"], seen.scored.maps_BHTT[0], tolerance)
        close(ours["products"], products(seen.scored), tolerance)


def products(scored: Any) -> torch.Tensor:
    """q·k of every head, [H, T, T], before scale and mask."""
    query_HTD = scored.q_BHTD[0]
    key_HTD = scored.k_BGTD[0].repeat_interleave(len(query_HTD) // scored.k_BGTD.shape[1], dim=0)
    return query_HTD @ key_HTD.mT


def close(found: Any, wanted: Any, tolerance: float) -> None:
    wanted = np.asarray(wanted, dtype=np.float64).ravel()
    found = np.asarray(found, dtype=np.float64).ravel()
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()
