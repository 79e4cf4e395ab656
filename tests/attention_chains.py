"""A few attention layers one after the other, by the fast layer and by the reference, with gradients of everything."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from every_variant import WIDTH, every_config
from small_models import randomise
from twofold.attention.layer import Attention
from twofold.attention.reference import reference
from twofold.attention.reference_roles import Setting
from twofold.attention.rotary import Rotation, rotation
from twofold.attention.treatments import turned_on_read
from twofold.models.blocks import attention
from twofold.models.configuration import TwofoldConfig

BASE = 100.0


class Chain:
    """The attention layers of one decoder, (x + attention(x)) / 2 each, with random float64 weights.

    Scores stay moderate: where a softmax is saturated, gradients vanish, and a fault with them.
    """

    def __init__(self, config: TwofoldConfig) -> None:
        self.config, self.sizes = config, config.architecture
        self.layers: list[Attention] = []
        for layer, owner in enumerate(self.sizes.matrix_owners):
            seam = None if owner == layer else self.layers[owner].projections
            self.layers.append(attention(config, layer, seam).double())
        self.seams = {n: self.layers[n].projections for n in sorted(set(self.sizes.matrix_owners))}
        for seam in self.seams.values():
            randomise(seam, 0.3 * (WIDTH / self.sizes.width) ** 0.5)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {f"{n}.{name}": p for n, seam in self.seams.items() for name, p in seam.named_parameters()}

    def inputs(self, batch: int = 2, length: int = 7) -> Tensor:
        return torch.randn(batch, length, self.sizes.width, dtype=torch.float64, requires_grad=True)

    def turns(self, positions_BT: Tensor, dtype: torch.dtype = torch.float64, layer: int = 0) -> Rotation | None:
        sizes = self.sizes.at(layer)
        dims, exponents = sizes.rotated_dims, sizes.rotary_exponents
        return rotation(positions_BT, dims, sizes.rotary_base, dtype, exponents) if dims else None

    def fast(
        self,
        x_BTM: Tensor,
        implementation: str = "sdpa",
        *,
        real_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        self.config._attn_implementation = implementation
        length = x_BTM.shape[1]
        at_BT = torch.arange(length)[None] if positions_BT is None else positions_BT
        rows = None
        for n, (layer, window) in enumerate(zip(self.layers, self.sizes.windows, strict=True)):
            by = self.turns(at_BT, x_BTM.dtype, n)
            row_turns = by if turned_on_read(self.sizes.at(n).variant) else None
            mask = None if window is None and real_BT is None else visible(length, window, real_BT)
            output_BTM, _, rows = layer(x_BTM, by, mask, None, row_turns, rows)
            x_BTM = (x_BTM + output_BTM) / 2
        return x_BTM

    def slow(self, x_BTM: Tensor, uses: Uses | None = None, *, real_BT: Tensor | None = None) -> Tensor:
        uses = uses or self.one_use()
        owner = None
        for n, window in enumerate(self.sizes.windows):
            asking, keeping = uses[n]
            owner = (x_BTM, keeping) if self.sizes.row_owners[n] == n else (owner[0], keeping)
            variant, setting = self.sizes.at(n).variant, self._setting(n, window)
            read = reference(x_BTM, asking, variant, setting, real_BT=real_BT, rows_of=owner)
            x_BTM = (x_BTM + read) / 2
        return x_BTM

    def one_use(self) -> Uses:
        """Every layer with the parameters themselves."""
        of = {n: dict(seam.named_parameters()) for n, seam in self.seams.items()}
        rows = (of[self.sizes.matrix_owners[n]] for n in self.sizes.row_owners)
        return [(of[m], kept) for m, kept in zip(self.sizes.matrix_owners, rows, strict=True)]

    def _setting(self, layer: int, window: int | None) -> Setting:
        s = self.sizes.at(layer)
        base = s.rotary_base if s.rotated_dims else None
        return Setting(s.heads, s.head_dim, base, s.rotated_dims, s.rotary_pairs, s.scale_exponent, s.softcap, window)


Uses = list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]
"""For each layer the weights of its queries and output, and those of the keys and values that it reads."""


def chain(name: str, **others) -> Chain:
    return Chain(every_config(name, rope_theta=BASE, **others))


def visible(length: int, window: int | None, real_BT: Tensor | None) -> Tensor:
    """[B or 1, 1, T, T]: the newest `window` real positions, and oneself."""
    age = torch.arange(length)[:, None] - torch.arange(length)
    seen = ((age >= 0) & (age < (window or length)))[None, None]
    if real_BT is not None:
        seen = seen & real_BT[:, None, None, :]
    return seen | torch.eye(length, dtype=torch.bool)


def gradients(output: Tensor, of: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of one random functional of the output; zeros where it does not depend on something."""
    towards = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    made = torch.autograd.grad((output * towards).sum(), list(of.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(of.items(), made, strict=True)}


def assert_equal(fast: Mapping[str, Tensor], slow: Mapping[str, Tensor]) -> None:
    assert fast.keys() == slow.keys()
    for name in slow:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
