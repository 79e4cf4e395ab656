"""What a query head compares and what it moves: the products QK = W_Qᵀ W_K and OV = W_O W_V, M×M matrices of rank D.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". No M×M product is made: norms and traces follow
from D×D products, in float64. QK is that of two tokens at the same position, before rotary turns them apart; biases and
QK-norm stay outside. Give `folded` weights for circuits that read what the norm has divided by its length.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from twofold.explain.layer_weights import LayerWeights

COMPOSITIONS = ("query", "key", "value")


def qk_norms(layer: LayerWeights) -> Tensor:
    """‖W_Qᵀ W_K‖_F by query head, [H]: its square is tr(W_Q W_Qᵀ · W_K W_Kᵀ)."""
    return _product_norms(_gram(_queries(layer)), _gram(_keys(layer)))


def ov_norms(layer: LayerWeights) -> Tensor:
    """‖W_O W_V‖_F by query head, [H]: its square is tr(W_Oᵀ W_O · W_V W_Vᵀ)."""
    return _product_norms(_gram(_outputs(layer).mT), _gram(_values(layer)))


def qk_eigenvalues(layer: LayerWeights) -> Tensor:
    """Eigenvalues of W_Qᵀ W_K that may be other than 0, complex [H, D]: those of W_K W_Qᵀ."""
    return torch.linalg.eigvals(_keys(layer) @ _queries(layer).mT)


def ov_eigenvalues(layer: LayerWeights, tokens_MM: Tensor | None = None) -> Tensor:
    """Eigenvalues of W_O W_V that may be other than 0, complex [H, D]: those of W_V W_O.

    With `tokens_MM` from `token_product`, those of W_U W_O W_V W_E, a token's effect on the logits of all tokens.
    """
    values_HDM = _values(layer)
    if tokens_MM is not None:
        values_HDM = values_HDM @ tokens_MM.double()
    return torch.linalg.eigvals(values_HDM @ _outputs(layer))


def token_product(embedding_VM: Tensor, unembedding_VM: Tensor, final_scale_M: Tensor | None = None) -> Tensor:
    """W_E W_U [M, M], float64: the sum over tokens of what it is embedded as times what its logit reads.

    Once for a whole model. `final_scale_M` is that of the norm before the logits.
    """
    width, tied = embedding_VM.shape[1], embedding_VM.data_ptr() == unembedding_VM.data_ptr()
    product_MM = torch.zeros(width, width, dtype=torch.float64)
    for embedded, read in zip(embedding_VM.detach().split(8192), unembedding_VM.detach().split(8192), strict=True):
        exact = embedded.double().cpu()
        product_MM += exact.T @ (exact if tied else read.double().cpu())
    return product_MM if final_scale_M is None else product_MM * final_scale_M.double().cpu()


def positive_share(eigenvalues: Tensor) -> Tensor:
    """Re Σλ / Σ|λ|, from −1 to 1: the copying score of Elhage et al. 2021 where they are OV's.

    1 where every direction comes back as itself, as of a head that copies, −1 where it comes back negated, near 0 for
    random matrices. [..., n] to [...]; 0 where all are 0.
    """
    sizes = eigenvalues.abs().sum(-1)
    return torch.where(sizes > 0, eigenvalues.real.sum(-1) / torch.where(sizes > 0, sizes, 1), 0.0)


def symmetric_share(layer: LayerWeights) -> Tensor:
    """‖(W + Wᵀ)/2‖² / ‖W‖² of W = W_Qᵀ W_K by query head, [H]: 1 for Q=K, 0 for an antisymmetric W, ½ for random ones.

    ‖(W + Wᵀ)/2‖² = (‖W‖² + tr W²) / 2, and tr W² = tr (W_K W_Qᵀ)². ½ as well where W is 0.
    """
    between_HDD = _keys(layer) @ _queries(layer).mT
    norms_H = qk_norms(layer).square()
    traces_H = (between_HDD * between_HDD.mT).sum((-2, -1))
    return 0.5 + 0.5 * torch.where(norms_H > 0, traces_H / torch.where(norms_H > 0, norms_H, 1), 0.0)


def weight_circuits(layer: LayerWeights, tokens_MM: Tensor | None = None) -> dict[str, float | list[float]]:
    """Mean over query heads of each measure, and it by head under `…_heads`.

    `qk_norm`, `ov_norm`: Frobenius norms, in the units of the weights. `qk_matching` and `ov_copying`: the positive
    share of the eigenvalues, tokens that score or add to their like. `qk_symmetric`: the symmetric share. With
    `tokens_MM` also `ov_copying_tokens`, through embedding and logits.
    """
    measures = {
        "qk_norm": qk_norms(layer),
        "ov_norm": ov_norms(layer),
        "qk_matching": positive_share(qk_eigenvalues(layer)),
        "ov_copying": positive_share(ov_eigenvalues(layer)),
        "qk_symmetric": symmetric_share(layer),
    }
    if tokens_MM is not None:
        measures["ov_copying_tokens"] = positive_share(ov_eigenvalues(layer, tokens_MM))
    made: dict[str, float | list[float]] = {}
    for name, of_heads in measures.items():
        made[name] = float(of_heads.mean())
        made[f"{name}_heads"] = of_heads.tolist()
    return made


def composition(earlier: LayerWeights, later: LayerWeights) -> dict[str, Tensor]:
    """How much of what an earlier layer's heads write a later layer's heads read, [later H, earlier H], from 0 to 1.

    With OV of the earlier head and QK, OV' of the later (Elhage et al. 2021, on composition):
    `query` ‖QKᵀ OV‖ / (‖QK‖ ‖OV‖), `key` ‖QK OV‖ / (‖QK‖ ‖OV‖), `value` ‖OV' OV‖ / (‖OV'‖ ‖OV‖), Frobenius norms.
    Compare with `random_composition`. Raises ValueError for layers of different width.
    """
    if earlier.q_HDM.shape[2] != later.q_HDM.shape[2]:
        raise ValueError(
            f"layers of width {earlier.q_HDM.shape[2]} and {later.q_HDM.shape[2]} have no stream in common: give two "
            "layers of one model"
        )
    query_HDM, key_HDM = _queries(later), _keys(later)
    reads = {"query": query_HDM, "key": key_HDM, "value": _values(later)}
    outer = {"query": _gram(key_HDM), "key": _gram(query_HDM), "value": _gram(_outputs(later).mT)}
    outputs_HMD, values_HDD, norms_H = _outputs(earlier), _gram(_values(earlier)), ov_norms(earlier)
    made: dict[str, Tensor] = {}
    for name in COMPOSITIONS:
        # ‖Aᵀ B O V‖² = tr(A Aᵀ · X · V Vᵀ · Xᵀ) with X = B O of D×D numbers
        through = torch.einsum("hdm,jme->hjde", reads[name], outputs_HMD)
        inner = through @ values_HDD @ through.mT
        squared = (outer[name][:, None] * inner).sum((-2, -1)).clamp(min=0)
        whole = _product_norms(outer[name], _gram(reads[name]))[:, None] * norms_H
        made[name] = torch.where(whole > 0, squared.sqrt() / torch.where(whole > 0, whole, 1), 0.0)
    return made


def composition_measures(earlier: LayerWeights, later: LayerWeights, seed: int = 0) -> dict[str, float | list[float]]:
    """`composition_query`, `_key` and `_value`: means over pairs of heads; under `_heads` each later head's largest,
    and under `_random` what Gaussian matrices of these shapes give in the mean.
    """
    written, width = earlier.v_GDM.shape[1], earlier.q_HDM.shape[2]
    made: dict[str, float | list[float]] = {}
    for name, scores_HH in composition(earlier, later).items():
        read = (later.v_GDM if name == "value" else later.q_HDM).shape[1]
        made[f"composition_{name}"] = float(scores_HH.mean())
        made[f"composition_{name}_random"] = random_composition(written, read, width, seed)
        made[f"composition_{name}_heads"] = scores_HH.amax(dim=1).tolist()
    return made


@lru_cache(maxsize=64)
def random_composition(earlier_dims: int, later_dims: int, width: int, seed: int, draws: int = 32) -> float:
    """The mean of a composition score of Gaussian factors with so many dims in each head."""
    generator = torch.Generator().manual_seed(seed)

    def layer(dims: int) -> LayerWeights:
        q, k, v = (torch.randn(1, dims, width, generator=generator) for _ in range(3))
        return LayerWeights(0, q, k, v, torch.randn(1, width, dims, generator=generator))

    drawn = [composition(layer(earlier_dims), layer(later_dims))["value"] for _ in range(draws)]
    return float(torch.stack(drawn).mean())


def _queries(layer: LayerWeights) -> Tensor:
    return layer.q_HDM.double()


def _keys(layer: LayerWeights) -> Tensor:
    return layer.k_GDM.double().repeat_interleave(layer.group, dim=0)


def _values(layer: LayerWeights) -> Tensor:
    return layer.v_GDM.double().repeat_interleave(layer.group, dim=0)


def _outputs(layer: LayerWeights) -> Tensor:
    return layer.o_HMD.double()


def _gram(rows_HDM: Tensor) -> Tensor:
    """[H, D, D]."""
    return rows_HDM @ rows_HDM.mT


def _product_norms(gram_HDD: Tensor, other_HDD: Tensor) -> Tensor:
    """‖Aᵀ B‖_F from A Aᵀ and B Bᵀ: [H]."""
    return (gram_HDD * other_HDD).sum((-2, -1)).clamp(min=0).sqrt()
