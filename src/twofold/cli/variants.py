"""`twofold variants`: the published variants and their neighbours, what they share, and the row that they cache."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from twofold.cli.output import print_json, show, table
from twofold.cli.quantities import percent
from twofold.variants.layout import RowLayout, cache_bytes, draw, item_bytes, state_bytes
from twofold.variants.listing import FURTHER, beyond_sharing, in_words
from twofold.variants.notation import PUBLISHED
from twofold.variants.variant import Variant

QUERY_HEADS = 16
"""Query heads of the cache ratio: those of the paper's 300M model."""

HEAD_DIM = 64

EXAMPLES = """[bold]Examples[/bold]
  twofold variants
  twofold variants --json"""

LEGEND = f"""Row: k key only, v value only, c both; four letters stand for one head dim.
Cache: against QKV with {QUERY_HEADS} query heads of {HEAD_DIM} dims; KV: key/value.
MLA and rows with rotated dims apart (ʳ) have their usual widths here.
A recurrence keeps a float32 state as large as {{state}} float32 tokens of QKV.
+: on the scores; it needs a non-causal model.
Paper: the name in arXiv 2606.04032, accepted as well; its dash separates."""


def variants(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the variants: what is shared, the row that a token leaves in the cache, and how large it is."""
    if as_json:
        print_json(
            [
                describe(variant, group)
                for group, of_group in {"published": PUBLISHED, **FURTHER}.items()
                for variant in of_group
            ]
        )
        return
    show(_published(), "", _neighbours(), "", LEGEND.format(state=f"{_state_tokens():g}"))


def _published() -> Table:
    listing = _listing("variant", "shared", "row of one KV head", "cache", "paper")
    for variant in PUBLISHED:
        listing.add_row(str(variant), in_words(variant), *_row(variant), variant.paper_name)
    return listing


def _neighbours() -> Table:
    listing = _listing("neighbours", "what else", "row of one KV head", "cache")
    for number, (group, of_group) in enumerate(FURTHER.items()):
        if number:
            listing.add_section()
        listing.add_row(Text(group, style="italic"))
        for variant in of_group:
            listing.add_row(str(variant), beyond_sharing(variant), *_row(variant))
    return listing


def _listing(*headers: str) -> Table:
    listing = table()
    for header in headers:
        listing.add_column(header, no_wrap=True, justify="right" if header == "cache" else "left")
    return listing


def _row(variant: Variant) -> tuple[Text, str]:
    """The row as a picture, and its size. Text, because rich could take the row's brackets for markup."""
    ratio = variant.cache_ratio(QUERY_HEADS, HEAD_DIM)
    if ratio is None:
        return Text("[ state ]"), "constant"
    return Text(draw(variant.row_layout(HEAD_DIM))), percent(ratio)


def _state_tokens() -> float:
    """How many tokens of QKV in float32 take as many bytes as a recurrence's state, at equal heads."""
    row = RowLayout.separate(HEAD_DIM)
    return state_bytes(1, HEAD_DIM) / cache_bytes(row, 1, tokens=1, itemsize=item_bytes("float32"))


def describe(variant: Variant, group: str = "published") -> dict[str, Any]:
    """One variant for JSON; widths in head dims, the ratio to QKV MHA with `QUERY_HEADS` query heads of `HEAD_DIM`.

    A recurrence has no ratio but `state_bytes`, of all heads of one layer.
    """
    layout = variant.row_layout(HEAD_DIM)
    ratio = variant.cache_ratio(QUERY_HEADS, HEAD_DIM)
    described = {
        "variant": str(variant),
        "aliases": list(variant.aliases),
        "head_width": _in_heads(layout.head_width),
        "shared_width": _in_heads(layout.shared_width),
        "cache_ratio": ratio,
    }
    if ratio is None:
        state = state_bytes(variant.kv_heads_for(QUERY_HEADS), HEAD_DIM)
        described |= {"head_width": 0, "shared_width": 0, "state_bytes": state}
    return described if group == "published" else {**described, "group": group, "shares": in_words(variant)}


def _in_heads(width: int) -> int | float:
    return width // HEAD_DIM if width % HEAD_DIM == 0 else width / HEAD_DIM
