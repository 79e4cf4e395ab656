"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), read as it is cached.

transformers caches the normalised latent c and the rotary key k_r of each token, and at every step makes keys
[W_UK,i c | k_r] and values W_UV,i c of all of them for every head i. Because q·(W_UK,i c) = (W_UK,iᵀ q)·c and
Σ p (W_UV,i c) = W_UV,i Σ p c, a decode step takes its scores on the latents, and makes one value per query instead of
a key and a value per token and head: form "latent". Rows hold the numbers that transformers caches, c + r per token.

Many query positions make the keys and values worth their cost, and take the stock layer's way: see `expand_from`.
So does a step that asks for weights (eager attention), that drops some of them (dropout), or whose `kv_b_proj` is no
plain linear layer. Both matrices are read from `kv_b_proj.weight` at every step, so that nothing goes stale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.cache.kept import KeptRows
from twofold.folding.attending import KERNEL_FOR, attended, decoded, decodes, kept_after, mask_over, stock
from twofold.folding.forms import Fold, facts_of, folded_class
from twofold.folding.inputs import is_plain, is_read_alone, obstacle
from twofold.folding.sights import Sight
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.kernels.linear import DecodeLinear
from twofold.variants.layout import RowLayout

FORMS = ("latent",)
"""What there is to choose from."""

_TURNS = {"DeepseekV2Attention": "apply_rotary_emb", "MiniCPM3Attention": "apply_rotary_pos_emb"}
"""How a class turns queries and keys, by the function's name in its file; the others ask their configuration."""
_PLAIN = (nn.Linear, DecodeLinear)


class FoldedDeepseek:
    """Forward of `DeepseekV2Attention`, `DeepseekV3Attention` and the classes that differ in their rotation alone."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        *,
        position_embeddings: Tensor | tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock layer's; without a cache it is the stock layer's."""
        if cache is None:
            return super().forward(  # type: ignore[misc]
                hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask, **named
            )
        query_BHTD, latent_B1TC, turned_B1TR = _states(self, hidden_states, position_embeddings)
        rows = kept_after(self, cache, latent_B1TC, turned_B1TR.squeeze(1))
        mask, weights = mask_over(rows, attention_mask), None
        if reads_latents(self, mask, hidden_states.shape[1], rows.heads_BGSW.shape[2]):
            read_BTHV = _from_latents(self, query_BHTD, rows, mask)
        else:
            assert rows.shared_BSW is not None
            key_BHSD, value_BHSV = self.expand_kv(rows.heads_BGSW, rows.shared_BSW.unsqueeze(1))
            read_BTHV, weights = attended(self, query_BHTD, key_BHSD, value_BHSV, mask, scaling=self.scaling, **named)
        return self.o_proj(read_BTHV.flatten(2)), weights


def plan_layer(model: PreTrainedModel, module: Any, name: str, form: str, facts: dict[str, Any]) -> Fold:
    """How a layer of this attention folds."""
    turns = _TURNS.get(type(module).__name__)
    if turns is None:
        turns = "apply_rotary_pos_emb_interleave" if module.config.rope_interleave else "apply_rotary_pos_emb"
    layout = RowLayout.latent(module.kv_lora_rank, module.qk_rope_head_dim)
    return Fold(
        layer=module.layer_idx,
        name=name,
        form=form,
        layout=layout,
        kv_heads=1,
        stock=layout.numbers(1),
        window=None,
        folded=folded_class(FoldedDeepseek, module.__class__),
        facts=facts | {"turns": turns, "row": layout},
    )


def weights_obstacle(module: Any, form: str) -> str | None:
    """Why this module's weights do not allow the form: both of its matrices are read out of `kv_b_proj`."""
    return obstacle(module, ("kv_b_proj",), _PLAIN)


def stored_once(module: Any, fold: Fold) -> None:
    """A stock model hands latents to its cache, which keeps them once already."""


def expand_from(latent: int, keys: int, values: int, rows: int) -> int:
    """The fewest query positions T for which making keys and values of S `rows` takes less work than reading latents.

    Multiply-accumulates per head, with c the `latent`'s dims, n the unturned ones of `keys` and v those of `values`:

    - latents: T·c·n to absorb W_UK, T·S·c for scores, T·S·c to read, T·c·v behind the sum;
    - expanded: S·c·(n + v) for keys and values, T·S·n for scores, T·S·v to read.

    (Scores on the rotary key cost both the same.)
    """
    saved = latent * (keys + values) + rows * (2 * latent - keys - values)
    if saved <= 0:
        return rows + 1
    return rows * latent * (keys + values) // saved + 1


def reads_latents(module: Any, mask: Tensor | None, queries: int, rows: int) -> bool:
    """Whether a step of `queries` positions over `rows` takes its scores on latents."""
    return (
        module.config._attn_implementation == KERNEL_FOR
        and queries < expand_from(module.kv_lora_rank, module.qk_nope_head_dim, module.v_head_dim, rows)
        and (queries == 1 or mask is not None)  # without a mask these are causal among themselves
        and not (module.training and module.attention_dropout)
        and is_plain(module.kv_b_proj, _PLAIN)
        and module.kv_b_proj.bias is None
        and is_read_alone(module.kv_b_proj)
    )


def _states(module: Any, x_BTM: Tensor, turns: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B, H, T, n + r], latents [B, 1, T, c] and rotary keys [B, 1, T, r] of new tokens, as stock has them."""
    if module.q_lora_rank is None:
        query_BTD = module.q_proj(x_BTM)
    else:
        query_BTD = module.q_b_proj(module.q_a_layernorm(module.q_a_proj(x_BTM)))
    query_BHTD = query_BTD.unflatten(-1, (-1, module.qk_head_dim)).transpose(1, 2)
    own_BHTN, turned_BHTR = query_BHTD.split([module.qk_nope_head_dim, module.qk_rope_head_dim], dim=-1)
    made_BTW = module.kv_a_proj_with_mqa(x_BTM)
    latent_BTC, key_BTR = made_BTW.split([module.kv_lora_rank, module.qk_rope_head_dim], dim=-1)
    turn = stock(module, facts_of(module).fold.facts["turns"])
    turned_BHTR, key_B1TR = turn(turned_BHTR, key_BTR.unsqueeze(1), *((turns,) if isinstance(turns, Tensor) else turns))
    return torch.cat([own_BHTN, turned_BHTR], dim=-1), module.kv_a_layernorm(latent_BTC).unsqueeze(1), key_B1TR


def _from_latents(module: Any, query_BHTD: Tensor, rows: KeptRows, mask: Tensor | None) -> Tensor:
    """[B, T, H, v]: W_UK moves to the query, W_UV behind the sum."""
    facts = facts_of(module).fold.facts
    queries, held = query_BHTD.shape[2], rows.heads_BGSW.shape[2]
    own_BHTN, turned_BHTR = query_BHTD.split([module.qk_nope_head_dim, module.qk_rope_head_dim], dim=-1)
    key_HNC, value_HVC = module.kv_b_proj.weight.unflatten(0, (query_BHTD.shape[1], -1)).split(
        [module.qk_nope_head_dim, module.v_head_dim], dim=1
    )
    query_BHTW = torch.cat([_each_head(own_BHTN, key_HNC), turned_BHTR], dim=-1)
    sight = facts["sights"].of(mask, None, queries, held) if queries <= MOST_POSITIONS else Sight(plain=False)
    if decodes(module, query_BHTW, rows, facts["row"], sight):
        read_BHTC = decoded(query_BHTW, rows, facts["row"], sight, module.scaling).transpose(1, 2)
    else:
        read_BHTC = _read(query_BHTW, rows, mask, module.scaling)
    return _each_head(read_BHTC, value_HVC.mT).transpose(1, 2)


def _each_head(x_BHTD: Tensor, matrix_HDE: Tensor) -> Tensor:
    """[B, H, T, E]: a head's vectors times its own matrix, which is read once for all sequences."""
    batch, heads, queries, _ = x_BHTD.shape
    x_HMD = x_BHTD.transpose(0, 1).reshape(heads, batch * queries, -1)
    return torch.bmm(x_HMD, matrix_HDE).unflatten(1, (batch, queries)).transpose(0, 1)


def _read(query_BHTW: Tensor, rows: KeptRows, mask: Tensor | None, scale: float) -> Tensor:
    """[B, H, T, c]: softmax(scale · q·[c | k_r]) c with the heads of a token as so many query positions of one.

    At least in float32, as fused attention adds up.
    """
    assert rows.shared_BSW is not None
    wide = torch.promote_types(query_BHTW.dtype, torch.float32)
    latent_BSC, key_BSR = rows.heads_BGSW.squeeze(1).to(wide), rows.shared_BSW.to(wide)
    query_BMW, heads = query_BHTW.flatten(1, 2).to(wide), query_BHTW.shape[1]
    query_BMC, query_BMR = query_BMW.split([latent_BSC.shape[-1], key_BSR.shape[-1]], dim=-1)
    score_BMS = torch.baddbmm(query_BMR @ key_BSR.mT, query_BMC, latent_BSC.mT, beta=scale, alpha=scale)
    score_BHTS = score_BMS.unflatten(1, (heads, -1))
    if mask is not None:
        score_BHTS = _masked(score_BHTS, mask)
    weight_BMS = torch.softmax(score_BHTS, dim=-1).flatten(1, 2)
    return (weight_BMS @ latent_BSC).unflatten(1, (heads, -1)).to(query_BHTW.dtype)


def _masked(score_BHTS: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return score_BHTS.masked_fill(~mask, torch.finfo(score_BHTS.dtype).min)
    return score_BHTS + mask
