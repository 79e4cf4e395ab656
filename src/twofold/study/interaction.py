"""Whether sharing projections costs more, or less, where heads are shared as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twofold.study.contrast import Contrast, contrast
from twofold.study.record import RunRecord
from twofold.variants.choices import Sharing
from twofold.variants.notation import parse
from twofold.variants.variant import Variant


class Interaction(Contrast):
    """What sharing projections costs beside shared heads, minus what it costs alone, in bits per byte.

    `cells` are the four variants of (shared + heads − heads) − (shared − plain), in this order. Positive: the two
    savings hurt each other; negative: the second costs less once the first is paid.
    """

    cells: tuple[str, str, str, str]


def interactions(runs: Mapping[str, Sequence[RunRecord]]) -> tuple[Interaction, ...]:
    """One for every variant that shares both and whose three relatives are there.

    `runs` is label → runs. Only entries that are called by their notation count: a longer label, or a name, stands
    for sizes of its own, which would be a third thing that differs.
    """
    found = []
    for label in runs:
        cells = _cells(label)
        if cells and all(cell in runs and runs[cell][0].variant == cell for cell in cells):
            signed = zip((1, -1, -1, 1), (runs[cell] for cell in cells), strict=True)
            found.append(Interaction(cells=cells, **contrast(*signed).model_dump()))
    return tuple(found)


def _cells(label: str) -> tuple[str, str, str, str] | None:
    """The four cells that a label stands for, if it is the notation of a variant that shares both."""
    try:
        variant = parse(label)
    except ValueError:
        return None
    if label != str(variant) or variant.kv_heads is None or variant.sharing is Sharing.QKV:
        return None
    return label, str(Variant(kv_heads=variant.kv_heads)), str(Variant(sharing=variant.sharing)), str(Variant())
