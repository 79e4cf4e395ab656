"""The paper's `+`: a positional term on the scores of a non-causal layer, its two controls, and a relative bias.

All of them turn the scores A into scale · A + bias and say no more than (scale, bias): the scale goes into the query
and the bias into the mask, so that any attention kernel that takes a float mask computes them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from twofold.variants.choices import PositionTerm

BASE = 10_000.0
CHANNELS = 10
"""The source's channels for sequences of digits; for images it takes 50."""


class ScoreTerms(NamedTuple):
    """Scores A become scale · A + bias; None leaves them as they are.

    `scale_H` [1 or H] (one for all query heads, or one each), `bias_BHTT` [B or 1, 1 or H, T or 1, T]; rows are query
    positions and columns key positions.
    """

    scale_H: Tensor | None  # noqa: N815
    bias_BHTT: Tensor | None  # noqa: N815

    def applied(self, query_BHTD: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The query and the mask for softmax(α Q Kᵀ + mask) V, in the query's dtype, as many keys as queries.

        `mask` is None, boolean (True: seen) or added to the scores, and broadcasts to [B, H, T, T]. Where it is
        boolean, what is not seen gets the lowest finite number: a position that sees nothing gives no NaN.
        """
        if query_BHTD.shape[2] == 1:  # one position reads itself, whatever its score
            return query_BHTD, mask
        if self.scale_H is not None:
            query_BHTD = query_BHTD * self.scale_H.to(query_BHTD.dtype)[:, None, None]
        if self.bias_BHTT is None:
            return query_BHTD, mask
        bias_BHTT = self.bias_BHTT.to(query_BHTD.dtype)
        if mask is None:
            length = query_BHTD.shape[2]
            return query_BHTD, bias_BHTT.expand(-1, -1, length, -1)
        if mask.dtype == torch.bool:
            return query_BHTD, bias_BHTT.masked_fill(~mask, torch.finfo(bias_BHTT.dtype).min)
        return query_BHTD, bias_BHTT + mask


class ScoreTerm(nn.Module, ABC):
    """What a positional term has in common: `term(positions_BT)` gives its `ScoreTerms`."""

    @abstractmethod
    def forward(self, positions_BT: Tensor) -> ScoreTerms:
        """Terms for integer positions [B or 1, T], in the parameters' dtype."""

    @abstractmethod
    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the initial values: the source's for the published term; all others change no score at first."""


class PublishedTerm(ScoreTerm):
    """The published term (X)+, arXiv 2606.04032 and 2305.19129: A' = (Σ_c w_c) A + Σ_c w_c P_c + b.

    The paper broadcasts A [n, n] over m channels, adds a fixed sinusoid P [n, n, m] and goes back to one channel by a
    1×1 convolution (w, b). Here P is never made: each of its channels depends on the query's position i or on the
    key's j alone, so Σ_c w_c P_c = r_i + c_j. The softmax is over j: r_i and b cancel in it, and what acts is the
    scale Σw, of either sign, and one bias per key position that knows no content (`Temperature`, `KeyBias`).

    P is what the authors' code (github.com/aliborji/kv-transformer) takes from the package positional-encodings: of
    m channels the first 2⌈m/4⌉ belong to the query's position and the others to the key's; sine and cosine alternate,
    at angles p · 10000^(−2k / 2⌈m/4⌉), k = 0, 1, …. (The widespread `positionalencoding2d` has the halves the other
    way round; the channels are only renamed by that.) As there, a layer has one convolution for all its heads, drawn
    uniformly up to √(6 / (m + 1)) with b = 0, so that the sign of the scale is left to chance. `maps` = H gives each
    head its own.

    Parameters `weight` [maps, m] and `bias` [maps]. Raises ValueError for m < 3, where no channel is the key's.
    """

    def __init__(self, channels: int = CHANNELS, maps: int = 1) -> None:
        super().__init__()
        self.row_channels = row_channels(channels)
        self.weight = nn.Parameter(torch.empty(maps, channels))
        self.bias = nn.Parameter(torch.empty(maps))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """See `ScoreTerm.reset`."""
        bound = math.sqrt(6 / (self.weight.shape[1] + 1))
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, positions_BT: Tensor) -> ScoreTerms:
        """See `ScoreTerm.forward`."""
        row_weight, column_weight = self.weight.split([self.row_channels, self.weight.shape[1] - self.row_channels], 1)
        row_BHT = _projected(positions_BT, row_weight, self.row_channels)
        column_BHT = _projected(positions_BT, column_weight, self.row_channels)
        row_BHT = row_BHT + self.bias[:, None]
        return ScoreTerms(self.weight.sum(dim=1), row_BHT[..., :, None] + column_BHT[..., None, :])


class Temperature(ScoreTerm):
    """Control: the scale of `PublishedTerm` alone, an inverse temperature `scale` [maps] that starts at 1."""

    def __init__(self, maps: int = 1) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(maps))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """See `ScoreTerm.reset`."""
        nn.init.ones_(self.scale)

    def forward(self, positions_BT: Tensor) -> ScoreTerms:
        """See `ScoreTerm.forward`."""
        return ScoreTerms(self.scale, None)


class KeyBias(ScoreTerm):
    """Control: the key's channels of `PublishedTerm` alone, Σ_c w_c P_c(j), without its scale.

    `weight` [maps, m − 2⌈m/4⌉] starts at 0. Beside a `Temperature` it is all that `PublishedTerm` can express.
    """

    def __init__(self, channels: int = CHANNELS, maps: int = 1) -> None:
        super().__init__()
        self.row_channels = row_channels(channels)
        self.weight = nn.Parameter(torch.empty(maps, channels - self.row_channels))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """See `ScoreTerm.reset`."""
        nn.init.zeros_(self.weight)

    def forward(self, positions_BT: Tensor) -> ScoreTerms:
        """See `ScoreTerm.forward`."""
        column_BHT = _projected(positions_BT, self.weight, self.row_channels)
        return ScoreTerms(None, column_BHT[..., None, :])


class RelativeBias(ScoreTerm):
    """The fair alternative: T5's relative bias (Raffel et al., arXiv 1910.10683, section 2.1), in both directions.

    Each head has one number per bucket of j − i, `weight` [H, 32], which starts at 0; T5 shares it between layers,
    here every layer has its own. Of the 16 buckets of a direction, 8 hold one distance each and 8 grow
    logarithmically up to 128, from where on all distances are one. Symmetric scores stay symmetric only where the two
    directions hold equal numbers: bucket k and bucket 16 + k.
    """

    BUCKETS = 32
    FURTHEST = 128

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, self.BUCKETS))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """See `ScoreTerm.reset`."""
        nn.init.zeros_(self.weight)

    def forward(self, positions_BT: Tensor) -> ScoreTerms:
        """See `ScoreTerm.forward`."""
        bias_HBTT = self.weight[:, self.buckets(positions_BT)]
        return ScoreTerms(None, bias_HBTT.transpose(0, 1))

    def buckets(self, positions_BT: Tensor) -> Tensor:
        """The bucket of each pair of positions, [B, T, T]: 0 to 15 for keys at or before the query, else 16 to 31."""
        half, exact = self.BUCKETS // 2, self.BUCKETS // 4
        ratio = self.FURTHEST / exact
        # The logarithm's steps as whole distances: no rounding decides a bucket, on any device.
        steps = [math.ceil(round(exact * ratio ** (k / (half - exact)), 9)) for k in range(1, half - exact)]
        starts = torch.tensor([*range(1, exact + 1), *steps], device=positions_BT.device)
        offset_BTT = positions_BT[..., None, :] - positions_BT[..., :, None]
        return torch.bucketize(offset_BTT.abs(), starts, right=True) + half * (offset_BTT > 0)


def position_term(
    kind: PositionTerm, heads: int, channels: int = CHANNELS, *, per_head: bool = False
) -> ScoreTerm | None:
    """The term of one layer of `heads` query heads; None where there is none.

    `channels` are those of the published sinusoid, of which the key bias has the key's. These two and the temperature
    are one for all heads, as published, unless `per_head`; a relative bias always has a number per head, as in T5.
    """
    maps = heads if per_head else 1
    match kind:
        case PositionTerm.NONE:
            return None
        case PositionTerm.PUBLISHED:
            return PublishedTerm(channels, maps)
        case PositionTerm.TEMPERATURE:
            return Temperature(maps)
        case PositionTerm.KEY_BIAS:
            return KeyBias(channels, maps)
        case PositionTerm.RELATIVE:
            return RelativeBias(heads)


def sinusoid(positions_BT: Tensor, channels: int, period: int) -> Tensor:
    """Sines and cosines in turn of p · 10000^(−2k / period), k = 0, 1, …: [B, T, channels] in float64.

    With `period` = `channels` = M they are the positions of arXiv 1706.03762, section 3.5.
    """
    channel_C = torch.arange(channels, device=positions_BT.device)
    angle_BTC = positions_BT[..., None].double() * BASE ** (-(channel_C - channel_C % 2).double() / period)
    return torch.where(channel_C % 2 == 0, angle_BTC.sin(), angle_BTC.cos())


def asymmetry(scores_BHTT: Tensor) -> Tensor:
    """‖A − Aᵀ‖ / ‖A‖ (Frobenius) for each sequence and head, [B, H]: 0 where symmetric, 2 where A = −Aᵀ.

    Scores before the mask: where query and key are one vector they are symmetric, and a softmax or a mask ends that.
    Raises ValueError for scores that are not square or not finite.
    """
    rows, columns = scores_BHTT.shape[-2:]
    if rows != columns:
        raise ValueError(f"scores of {rows} query positions and {columns} key positions have no symmetry: give T × T")
    if not bool(scores_BHTT.isfinite().all()):
        raise ValueError("the scores are not all finite: give scores before the mask, or weights after the softmax")
    size_BH = scores_BHTT.norm(dim=(-2, -1))
    difference_BH = (scores_BHTT - scores_BHTT.mT).norm(dim=(-2, -1))
    return difference_BH / size_BH.clamp(min=torch.finfo(size_BH.dtype).tiny)


def row_channels(channels: int) -> int:
    """How many of m channels belong to the query's position; the key's get the same, less what m lacks.

    Raises ValueError for m < 3, where none is the key's.
    """
    if channels < 3:
        raise ValueError(
            f"{channels} channels of the 2-D sinusoid leave none for the key's position, and the term would be a "
            "temperature: take at least 3"
        )
    return 2 * math.ceil(channels / 4)


def _projected(positions_BT: Tensor, weight_HC: Tensor, period: int) -> Tensor:
    """Σ_c w_c P_c(position) over the C channels of one direction, [B, H, T]."""
    return (sinusoid(positions_BT, weight_HC.shape[1], period).to(weight_HC.dtype) @ weight_HC.mT).mT
