"""The attention layer: queries and rows from the seam, scores over the rows, output through the seam."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

from twofold.attention.decoding import DecodeMask, decode
from twofold.attention.position_term import ScoreTerms
from twofold.attention.projections import Projections
from twofold.attention.rotary import Rotation
from twofold.attention.scores import Scoring, attend, keys_and_values
from twofold.attention.treatments import Made
from twofold.cache.kept import KeptRows


class Place(NamedTuple):
    """Where a layer stands among the others: the number of its rows in the cache, and whose rows they are.

    `borrows`: it reads the rows that an earlier layer made in the same pass; `lends`: later layers read its own.
    """

    cached: int
    borrows: bool = False
    lends: bool = False


class Attended(NamedTuple):
    """The layer's output [B, T, M], the attention weights where the implementation gives them, and the rows it read."""

    output_BTM: Tensor  # noqa: N815
    weights: Tensor | None
    rows: KeptRows


class Attention(nn.Module):
    """Self-attention of one block. The same code runs with and without a cache.

    `config` is the transformers configuration that names the attention implementation, which may change later.
    `place` is that of a first layer by default, and `scoring` d^−½ alone. `owns_projections` is false where they are
    another layer's.
    """

    def __init__(
        self,
        projections: Projections,
        config: PreTrainedConfig,
        *,
        place: Place | None = None,
        scoring: Scoring | None = None,
        is_causal: bool = True,
        owns_projections: bool = True,
    ) -> None:
        super().__init__()
        if owns_projections:
            self.projections = projections
        else:  # past nn.Module, so that their parameters are saved, counted and moved once, where they belong
            self.__dict__["projections"] = projections
        self.config = config
        self.place = place or Place(0)
        self.scoring = scoring or Scoring()
        self.is_causal = is_causal
        self.layout = projections.layout
        self.num_key_value_groups = projections.sizes.heads // projections.score_heads
        self.scale = self.scoring.scale(projections.key_dim)

    def forward(
        self,
        x_BTM: Tensor,
        rotation: Rotation | None = None,
        mask: Tensor | DecodeMask | None = None,
        cache: Cache | None = None,
        row_rotation: Rotation | None = None,
        borrowed: KeptRows | None = None,
        terms: ScoreTerms | None = None,
        **kwargs: Any,
    ) -> Attended:
        """[B, T, M] to [B, T, M], and what else `Attended` holds.

        `cache` appends this layer's rows and hands back all of them; `mask` as in `scores.attend`, or that of a decode
        step, which reads the rows as the cache keeps them. `row_rotation` turns keys that lie in rows unturned, at the
        positions of all rows. `borrowed` are the rows of the layer that this one reads. `terms` act on the scores.
        """
        made = self.projections(x_BTM, rotation, self.place.borrows)
        if self.place.borrows:
            assert borrowed is not None, "a layer without rows of its own is given another's"
            rows = borrowed
        else:
            rows = self._rows(made, cache, isinstance(mask, DecodeMask))
        weights = None
        if isinstance(mask, DecodeMask):
            query_BHTD = self.projections.absorbed(made.query_BTHD).transpose(1, 2)
            read_BTHD = decode(query_BHTD, rows, self.layout, mask, self.scale, self.scoring.softcap)
            read_BTHD = self.projections.released(read_BTHD)
        else:
            read_BTHD, weights = self._full(made.query_BTHD, rows, mask, row_rotation, terms, **kwargs)
        return Attended(self.projections.output(read_BTHD, rotation), weights, rows)

    def _rows(self, made: Made, cache: Cache | None, as_kept: bool) -> KeptRows:
        """This pass's rows after those of the cache: as it keeps them, or in the model's dtype."""
        assert made.rows_BTGW is not None
        heads_BGTW = made.rows_BTGW.transpose(1, 2)
        if cache is None:
            return KeptRows(heads_BGTW, made.shared_BTW)
        if as_kept:
            return cache.layers[self.place.cached].append(heads_BGTW, made.shared_BTW)
        return KeptRows(*cache.update(heads_BGTW, made.shared_BTW, self.place.cached))

    def _full(
        self,
        query_BTHD: Tensor,
        rows: KeptRows,
        mask: Tensor | None,
        row_rotation: Rotation | None,
        terms: ScoreTerms | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        seam, heads = self.projections, self.projections.score_heads
        on_rows = seam.reads_rows(query_BTHD.shape[1], rows.heads_BGSW.shape[2])
        if on_rows:
            query_BTHD = seam.absorbed(query_BTHD)
            key_BGSD, value_BGSD = keys_and_values(self.layout, rows, row_rotation)
            key_BGSD, value_BGSD = key_BGSD.expand(-1, heads, -1, -1), value_BGSD.expand(-1, heads, -1, -1)
        else:
            key_BGSD, value_BGSD = seam.expanded(rows, row_rotation)
        query_BHTD = query_BTHD.transpose(1, 2)
        if terms is not None:
            query_BHTD, mask = terms.applied(query_BHTD, mask)
        read_BTHD, weights = attend(
            self,
            query_BHTD,
            key_BGSD,
            value_BGSD,
            mask,
            self.config._attn_implementation or "eager",
            scale=self.scale,
            softcap=self.scoring.softcap,
            sinks_H=seam.sinks,
            **kwargs,
        )
        return seam.released(read_BTHD) if on_rows else read_BTHD, weights
