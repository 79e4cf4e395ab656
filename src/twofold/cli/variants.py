"""`twofold variants`: the published variants, what they share, and the row that they cache."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from twofold.cli.output import print_json, show, table
from twofold.cli.quantities import percent
from twofold.variants.layout import draw
from twofold.variants.notation import PUBLISHED
from twofold.variants.variant import Sharing, Variant

QUERY_HEADS = 16
"""Query heads of the cache ratio: those of the paper's 300M model."""

HEAD_DIM = 64

EXAMPLES = """[bold]Examples[/bold]
  twofold variants
  twofold variants --json"""

LEGEND = f"""Row: k key only, v value only, c both; four letters stand for one head dim.
Cache: against QKV for {QUERY_HEADS} query heads; KV: key/value, {QUERY_HEADS} heads unless named.
+: a 2-D position term on the scores; it needs a non-causal model.
Paper: the name in arXiv 2606.04032, accepted as well; its dash separates."""

_SHARED = {
    Sharing.QKV: "",
    Sharing.QUERY_KEY: "query = key",
    Sharing.KEY_VALUE: "key = value",
    Sharing.ALL: "query = key = value",
}


def variants(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the variants: what is shared, the row that a token leaves in the cache, and how large it is."""
    if as_json:
        print_json([describe(variant) for variant in PUBLISHED])
        return
    listing = table()
    for header in ("variant", "shared", "row of one KV head", "cache", "paper"):
        listing.add_column(header, no_wrap=True, justify="right" if header == "cache" else "left")
    for variant in PUBLISHED:
        # Text, because rich could take the row's brackets for markup.
        drawn = Text(draw(variant.row_layout(HEAD_DIM)))
        ratio = percent(variant.cache_ratio(QUERY_HEADS))
        listing.add_row(str(variant), in_words(variant), drawn, ratio, variant.paper_name)
    show(listing, "", LEGEND)


def describe(variant: Variant) -> dict[str, Any]:
    """One variant for JSON; widths in head dims, the ratio to QKV MHA with `QUERY_HEADS` query heads."""
    layout = variant.row_layout(1)
    return {
        "variant": str(variant),
        "aliases": list(variant.aliases),
        "head_width": layout.head_width,
        "shared_width": layout.shared_width,
        "cache_ratio": variant.cache_ratio(QUERY_HEADS),
    }


def in_words(variant: Variant) -> str:
    """What shares what: `key = value; 4 KV heads`."""
    heads = variant.kv_heads
    parts = [
        _SHARED[variant.sharing],
        f"{heads} KV head{'s' if heads > 1 else ''}" if heads else "",
        "+" if variant.position_term else "",
    ]
    return "; ".join(filter(None, parts)) or "nothing"
