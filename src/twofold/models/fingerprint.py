"""What a model's rows depend on, so that saved rows are only ever continued by the model that made them."""

from __future__ import annotations

import hashlib

from twofold.cache.saved import hash_tensor
from twofold.models.activations import usual_activation
from twofold.models.architecture import FIELDS
from twofold.models.decoder import TwofoldPreTrainedModel

_WITHOUT_EFFECT = {"positions", "tied", "dropout", "initial_deviation", "qkv_bias"}
"""Fields that shape no row, or only through the weights."""
_UNTOLD = {"position_offset": 0, "latent_norm": True, "rotary_pairs": (), "layer_variants": (), "layer_latents": ()}
"""Fields that are told only where they say something, so that files of before they existed still fit."""


def fingerprint(model: TwofoldPreTrainedModel) -> dict[str, str]:
    """The configuration that shapes rows, by name, and `weights`, the SHA-256 of the decoder below the head.

    Equal for equal weights: after saving and loading, on every device, compiled or not. It reads all weights, so take
    it once per model.
    """
    sizes = model.config.architecture
    told = [name for name in FIELDS if name not in _WITHOUT_EFFECT]
    untold = _UNTOLD | {"activation": usual_activation(sizes.block)}
    told = [name for name in told if name not in untold or getattr(sizes, name) != untold[name]]
    shaping = {name: str(getattr(sizes, name)) for name in told}
    state = {name.replace("_orig_mod.", ""): tensor for name, tensor in model.base_model.state_dict().items()}
    hashed = hashlib.sha256()
    for name in sorted(state):
        hash_tensor(hashed, name, state[name])
    return {
        **shaping,
        "fused_projections": str(model.config.fused_projections),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": hashed.hexdigest(),
    }
