"""What `twofold export` prints: of one export its lines, of records a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.cli.grids import Grid, markdown

if TYPE_CHECKING:
    from twofold.export.check import Check
    from twofold.export.export import ExportRecord

Record = Mapping[str, Any]
RECORD = "export.json"


def lines(record: ExportRecord, out: Path) -> list[str]:
    """What was written, what was found, and what was changed."""
    more = "" if record.keeps_saving else ": more than the model itself"
    ours, theirs = record.cache_numbers, record.target_cache_numbers
    return [
        f"{record.variant} as {record.model_type}, {record.parameters:,} parameters in {record.dtype}: {out}",
        f"cache: {ours:,} numbers per token and layer here, {theirs:,} there{more}",
        *(_check_lines(record.check) if record.check else ["not checked"]),
        *(f"changed: {change}" for change in record.changes),
        *(f"note: {note}" for note in record.notes),
    ]


def _check_lines(found: Check) -> list[str]:
    equal = "equal" if found.greedy_equal else "NOT equal"
    return [
        f"checked in {found.engine}: logits of {found.tokens} tokens differ by at most "
        f"{found.max_logit_difference:.1e} (the largest is {found.largest_logit:.1f}), {found.greedy_tokens} greedy "
        f"tokens {equal}; caches measured: {found.cache_numbers:,.0f} and {found.target_cache_numbers:,.0f} numbers",
        *(f"{found.engine}: {line}" for line in found.engine_log),
    ]


def read_record(path: Path) -> Record:
    """An `export.json`, or that of a folder. ValueError for a file that is none: whatever of it is printed is tried."""
    path = path / RECORD if path.is_dir() else path
    try:
        found: Record = json.loads(path.read_bytes())
        "".join([*markdown(grid([found])), *remarks([found])])
    except OSError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is no record of an export: give an export.json that `twofold export` wrote") from None
    return found


def grid(records: Sequence[Record]) -> Grid:
    """One line for each export."""
    headings = ["model", "as", "weights", "checked in", "logits off by", "largest logit", "greedy tokens"]
    return Grid([*headings, "cache here", "cache there"], [_row(record) for record in records], labels=4)


def _row(record: Record) -> list[str]:
    start = [record["variant"], record["model_type"], record["dtype"]]
    found = record["check"]
    if found is None:
        return [*start, "–", "–", "–", "–", f"{record['cache_numbers']:,}", f"{record['target_cache_numbers']:,}"]
    equal = "equal" if found["greedy_equal"] else "differ"
    return [
        *start,
        found["engine"],
        f"{found['max_logit_difference']:.1e}",
        f"{found['largest_logit']:.1f}",
        f"{found['greedy_tokens']} {equal}",
        f"{found['cache_numbers']:,.0f}",
        f"{found['target_cache_numbers']:,.0f}",
    ]


def remarks(records: Sequence[Record]) -> list[str]:
    """How to read the table, what engines say of their caches, and the commands."""
    made = [
        "logits off by: the largest difference from the model's own, in float32; cache: numbers per token and layer, "
        "measured here and in the engine"
    ]
    for record in records:
        what = f"{record['variant']} as {record['model_type']}"
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        made.append(f"{what}: {record.get('command') or 'from Python'}; {versions}")
        made += [f"{what}, what {record['check']['engine']} says: {line}" for line in _log(record)]
    return made


def _log(record: Record) -> list[str]:
    """Empty where nothing was checked, and in records of before it was kept."""
    return record["check"].get("engine_log", ()) if record["check"] else []
