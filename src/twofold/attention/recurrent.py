"""The attention layer without softmax: key and value come from the seam as anywhere, the cache keeps a state."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from transformers.cache_utils import Cache

from twofold.attention.decoding import DecodeMask
from twofold.attention.layer import Attended, Attention
from twofold.attention.recurrence import FEATURES, chunked
from twofold.attention.rotary import Rotation
from twofold.attention.scores import keys_and_values
from twofold.cache.kept import KeptRows


class TokenMask(NamedTuple):
    """What the new tokens of a pass are: `real_BT` is False for padding, and `documents_BT` numbers those of documents
    that are read apart. None for all real, and for one document.
    """

    real_BT: Tensor | None = None  # noqa: N815
    documents_BT: Tensor | None = None  # noqa: N815


class RecurrentAttention(Attention):
    """Linear attention (arXiv 2006.16236) in the place of softmax attention; see `attention.recurrence`.

    What a row would hold, it adds to a state of constant size. Rotary has no place here, nor have scales, caps or sinks
    of scores.
    """

    def forward(
        self,
        x_BTM: Tensor,
        rotation: Rotation | None = None,
        mask: Tensor | DecodeMask | TokenMask | None = None,
        cache: Cache | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Attended:
        """[B, T, M] to [B, T, M], no weights, and the rows of these T tokens alone.

        `mask` is a `TokenMask` or None. `cache` keeps the state of this layer's tokens, and takes the step. What else
        `Attention` is given has no meaning here.
        """
        assert rotation is None, "a feature map does not keep rotated vectors apart"
        assert mask is None or isinstance(mask, TokenMask), "no scores are masked here"
        made = self.projections(x_BTM, None)
        assert made.rows_BTGW is not None
        rows = KeptRows(made.rows_BTGW.transpose(1, 2))
        query_BHTD = made.query_BTHD.transpose(1, 2)
        key_BGTD, value_BGTD = keys_and_values(self.layout, rows)
        features = FEATURES[self.projections.variant.recurrence]
        real_BT, documents_BT = mask or TokenMask()

        def advance(state_BGDE: Tensor | None) -> tuple[Tensor, Tensor]:
            return chunked(query_BHTD, key_BGTD, value_BGTD, features, state_BGDE, real_BT, documents_BT=documents_BT)

        if cache is None:
            read_BTHD, _ = advance(None)
        else:
            read_BTHD, _ = cache.update(key_BGTD, value_BGTD, self.place.cached, advance)
        return Attended(self.projections.output(read_BTHD, None), None, rows)
