"""What `twofold study run --dry-run` shows: sizes, costs and folders of all runs, and which are finished."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.cli.output import print_json, show
from twofold.cli.study_tables import SIZES, plan_table

if TYPE_CHECKING:
    from twofold.study.plan import PlannedRun
    from twofold.study.spec import StudySpec

OF_SIZES = ("label", *SIZES, "parameters", "cache_bytes_per_token", "macs_per_window", "changed")


def show_plan(spec: StudySpec, folder: Path, as_json: bool) -> None:
    """Print what would run, and run nothing. ValueError where the folder holds something else."""
    from twofold.study.plan import check_folder, planned_runs

    check_folder(spec, folder)
    text = _text(spec)
    rows = [
        _row(run, member.spec, str(member))
        for member in spec.members
        for run in planned_runs(member.spec, folder / member.folder)
    ]
    if as_json:
        print_json(rows)
        return
    of_runs = (*(["point"] if spec.sweep else []), "label", "seed", "state", "folder")
    sizes = _distinct(rows, [*(["member"] if spec.axes else []), *(["point"] if _sizes_swept(spec) else [])])
    show(
        f"{spec.name}: {_runs_text(spec)} of {spec.tokens:,} tokens, {_steps_text(rows)} steps each, on {text}",
        "",
        plan_table(sizes, tuple(key for key in ("member", "point", *OF_SIZES) if key in sizes[0])),
        "",
        plan_table(_shown(rows, of_runs), of_runs),
        *_later(spec, rows),
    )


def _text(spec: StudySpec) -> str:
    """The text and how much it is; a dataset is not opened, since that may mean a download."""
    from twofold.study.texts import SplitTexts

    if spec.data.dataset:
        return f"{spec.data.source} (not opened yet)"
    corpus = SplitTexts.read(spec.data).corpus
    return f"{spec.data.source} ({len(corpus.documents):,} documents, {corpus.bytes:,} bytes)"


def _row(run: PlannedRun, spec: StudySpec, member: str) -> dict[str, Any]:
    from twofold.study.match import COSTS, cost
    from twofold.study.plan import of_text

    contender = of_text(run)
    arch = contender.architecture
    costs = {name: cost(name, arch, spec.data.context) for name in COSTS}
    return {
        "member": member,
        "label": run.label,
        "variant": run.variant,
        "seed": run.seed,
        "point": dict(run.point),
        "heads": arch.heads,
        "kv_heads": arch.kv_heads,
        "head_dim": arch.head_dim,
        "mlp": arch.mlp,
        "parameters": costs["parameters"],
        "cache_bytes_per_token": costs["cache"],
        "macs_per_window": costs["compute"],
        "changed": dict(contender.changed),
        "steps": spec.at(run.point).training.steps(spec.tokens, spec.data.context),
        "folder": str(run.folder),
        "state": run.state,
    }


def _shown(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Some columns of the rows, what is nested in words."""
    from twofold.study.contenders import changes_text
    from twofold.study.sweep import point_text

    words = {"changed": changes_text, "point": point_text}
    return [{key: words[key](row[key]) if key in words else row[key] for key in keys} for row in rows]


def _distinct(rows: list[dict[str, Any]], where: list[str]) -> list[dict[str, Any]]:
    """One row for each model that is trained, told apart by label and `where`."""
    found = {tuple(row.values()): row for row in _shown(rows, (*where, *OF_SIZES))}
    return list(found.values())


def _sizes_swept(spec: StudySpec) -> bool:
    return any(key.startswith("model.") for key in spec.sweep or ())


def _runs_text(spec: StudySpec) -> str:
    """`6 runs`, and for a sweep or a family how many of what that is."""
    members, points = len(spec.members), len(spec.points)
    parts = [f"{members} members"] if spec.axes else []
    if spec.sweep:
        more = f" + {len(spec.seeds) - 1} seeds" if len(spec.seeds) > 1 else ""
        parts.append(f"{len(spec.variants)} variants × ({points} points{more})")
    return f"{spec.run_count} runs" + (f" ({', '.join(parts)})" if parts else "")


def _steps_text(rows: list[dict[str, Any]]) -> str:
    return " or ".join(f"{steps:,}" for steps in sorted({row["steps"] for row in rows}))


def _later(spec: StudySpec, rows: list[dict[str, Any]]) -> list[str]:
    """What the sweep has yet to decide."""
    missing = spec.run_count - len(rows)
    if not missing:
        return []
    return ["", f"and {missing} runs with further seeds, each at its variant's best point, which the sweep will tell"]
