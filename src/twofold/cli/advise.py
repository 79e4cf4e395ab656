"""`twofold advise`: variants ranked for a use, from what was measured before what was only published."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.analysis.devices import Device
from twofold.cli.advise_tables import show_ranking
from twofold.cli.output import print_json
from twofold.cli.plan_devices import asked_devices
from twofold.cli.plan_published import show_existing
from twofold.cli.quantities import parse_bytes
from twofold.models.presets import PRESETS, architecture
from twofold.variants.layout import ITEM_BYTES

if TYPE_CHECKING:
    from twofold.models.architecture import Architecture
    from twofold.study.ranking_record import Ask, Ranking
    from twofold.study.scenarios import Scenario

EXAMPLES = """[bold]Examples[/bold]
  twofold advise --scenario cloud --records runs/demo
  twofold advise --scenario iot --memory 512MiB
  twofold advise --preset 300M --context 2048 --batch 8 --memory 2GiB --quality 3%
  twofold advise runs/mine --context 2048 --device "Raspberry Pi 5"
  twofold advise --config meta-llama/Meta-Llama-3-8B --context 8192 --memory 24GiB --device "RTX 4090" --price 0.40"""

DEFAULT_PRESET = "300M"
DEFAULT_RECORDS = Path("runs")
CONFIG = "config.json"
SURELY_PERCENT = 0.1  # below it, a number without a sign may be a share


def advise(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A trained model: a run or model folder, a transformers folder, or a name on the hub.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Named sizes: {', '.join(PRESETS)}.", show_default=DEFAULT_PRESET)
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="A published model's config.json, as for plan.", show_default=False)
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="cloud, edge, aggressive-edge or iot: a use that other options change.", show_default=False),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Rank these; give it again.", show_default="the paper's, and those measured"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens cached per sequence.", show_default="the model's positions")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences held at once.", show_default="1")] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="For weights and caches, such as 8GiB.", show_default="the device's"),
    ] = None,
    quality: Annotated[
        str | None,
        typer.Option(help="What may be lost of the baseline's bits per byte, such as 2%.", show_default=False),
    ] = None,
    baseline: Annotated[str, typer.Option(help="The variant that quality is compared with.")] = "QKV",
    dtype: Annotated[
        str | None, typer.Option(help=f"Of weights and cache: {', '.join(ITEM_BYTES)}.", show_default="bfloat16")
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of studies, or their results.json; give it again.", show_default="runs"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Time of a step at best on it, such as H100.", show_default=False)
    ] = None,
    devices: Annotated[Path | None, typer.Option(help="YAML file of further devices.", show_default=False)] = None,
    price: Annotated[float | None, typer.Option(help="Of the device per hour.", show_default=False)] = None,
    efficiency: Annotated[
        float | None, typer.Option(help="Share of the device's roof that is reached.", show_default="1")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/advise.md).")] = False,
) -> None:
    """Which variant to take for a use: cache, memory, quality and time of each, with reasons.

    Quality comes from records of studies; where none says anything, the paper's figures are shown with their
    weaknesses, and decide nothing.
    """
    from twofold.study.ranking_record import Ask
    from twofold.study.scenarios import scenario as named

    _one_model(model, preset, config)
    assumed = None if scenario is None else named(scenario)
    place = device or (assumed.device if assumed else None)
    used = asked_devices([place] if place else None, devices, price=price, efficiency=efficiency)
    own = None if config or model is None else _own_architecture(Path(model))
    existing = config or (model if own is None else None)
    sizes = assumed.sizes if assumed and own is None else {}
    start = own or architecture(preset or (assumed.preset if assumed else DEFAULT_PRESET), **sizes)
    ask = Ask(
        context=_chosen("context", context, assumed, None if existing else start.positions) or 1,
        batch=_chosen("batch", batch, assumed, 1),
        dtype=_chosen("dtype", dtype, assumed, "bfloat16"),
        baseline=baseline,
        memory_bytes=_memory(memory, assumed, used),
        quality=_chosen("quality", None if quality is None else parse_percent(quality), assumed, None),
        efficiency=1.0 if efficiency is None else efficiency,
        price_per_hour=price,
    )
    about = f"scenario {scenario}: {assumed.about}" if assumed else ""
    if existing:
        _refuse({"--quality": quality, "--records": records})
        length = None if context is None and assumed is None else ask.context
        _existing(existing, ask, length, variant or [], used, about, as_json=as_json)
        return
    ranking = _rank(start, ask, variant or [], records, used)
    if as_json:
        print_json({"scenario": scenario, "model": _sizes(start), "trained": model, **ranking.model_dump(mode="json")})
        return
    trained = f"{model} is trained as {own.variant}: any other variant means training anew." if own else ""
    show_ranking(ranking, start, used, *filter(None, (about, trained)))


def parse_percent(text: str) -> float:
    """A percentage from `2%`, `2 %` or `2`; raises ValueError for anything else, as `0.02`, which may mean 2 %."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    if match is None:
        raise ValueError(f"cannot read {text!r} as a share that may be lost: write 2% or 0.5%")
    percent = float(match[1])
    if not math.isfinite(percent):
        raise ValueError("the share that may be lost is too large a number: write 2% or 0.5%")
    if not match[2] and 0 < percent < SURELY_PERCENT:
        raise ValueError(f"{text!r} may be a share or a percentage: write {100 * percent:g}% or {percent:g}%")
    return percent


def _one_model(model: str | None, preset: str | None, config: str | None) -> None:
    given = [name for name, value in {"MODEL": model, "--preset": preset, "--config": config}.items() if value]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other: each says which model it is about")


def _refuse(options: dict[str, Any]) -> None:
    """ValueError for options that say nothing of a model whose variant is fixed."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(
            f"{' and '.join(given)} rank variants that are still to be trained: leave them out for a published model, "
            "or give --preset in its place"
        )


def _chosen(name: str, given: Any, assumed: Scenario | None, default: Any) -> Any:
    """What the user gave, else the scenario's, else the default."""
    if given is not None:
        if isinstance(given, int) and given < 1:
            raise ValueError(f"{name} must be at least 1, not {given}")
        return given
    return getattr(assumed, name) if assumed else default


def _memory(given: str | None, assumed: Scenario | None, used: tuple[Device, ...]) -> int | None:
    if given is not None:
        return int(_chosen("memory", parse_bytes(given), assumed, None))
    if assumed:
        return assumed.memory_bytes
    return used[0].memory_bytes if used else None


def _own_architecture(folder: Path) -> Architecture | None:
    """Of a decoder of this package in `folder`, or in the `model` folder below it; None for any other model.

    Raises ValueError for a folder that holds none, and for a configuration that is damaged.
    """
    place = next((one for one in (folder / CONFIG, folder / "model" / CONFIG) if one.is_file()), None)
    if place is None:
        if folder.is_dir():
            raise ValueError(
                f"{folder} holds no model (no {CONFIG}): give a run or model folder; the records of a study come by "
                "--records"
            )
        return None
    try:
        written = json.loads(place.read_bytes())
    except ValueError as error:
        raise ValueError(f"{place} is not JSON that can be read: {error}") from error
    if not isinstance(written, dict) or written.get("model_type") != "twofold":
        return None
    from twofold.models.configuration import TwofoldConfig

    return TwofoldConfig.from_dict(written).architecture


def _existing(
    name: str,
    ask: Ask,
    context: int | None,
    variants: list[str],
    used: tuple[Device, ...],
    about: str,
    *,
    as_json: bool,
) -> None:
    """What is known of a model that exists: what cannot change without training, and what `plan` says it caches."""
    from twofold.analysis.existing import plan_existing
    from twofold.variants.notation import parse

    found = plan_existing(
        name,
        variants=[parse(text) for text in variants],
        context=context,
        batch=ask.batch,
        dtype=ask.dtype,
        memory=ask.memory_bytes,
        devices=used,
        efficiency=ask.efficiency,
        price_per_hour=ask.price_per_hour,
    )
    if as_json:
        print_json({"model": name, "statement": found.statement, "plan": found.as_dict()})
        return
    show_existing(found, *([about] if about else []), found.statement, "")


def _rank(
    start: Architecture, ask: Ask, variants: list[str], places: list[Path] | None, used: tuple[Device, ...]
) -> Ranking:
    from dataclasses import replace

    from twofold.study.evidence import read_evidence, result_files
    from twofold.study.ranking import candidates, rank
    from twofold.variants.notation import parse

    found = places if places is not None else [DEFAULT_RECORDS] * DEFAULT_RECORDS.is_dir()
    baseline = replace(start, variant=parse(ask.baseline))
    named = ask.model_copy(update={"baseline": str(baseline.variant)})
    read = read_evidence(result_files(found), named.baseline)
    models = [replace(start, variant=parse(text)) for text in variants]
    if not variants:
        models = [one for text in candidates(start, read) if (one := _if_possible(start, text))]
    return rank(models, baseline, named, read, used[0] if used else None)


def _if_possible(start: Architecture, variant: str) -> Architecture | None:
    """The model with another variant; None where its sizes do not take it, as a rotary one without rotary."""
    from dataclasses import replace

    from twofold.variants.notation import parse

    try:
        return replace(start, variant=parse(variant))
    except ValueError:
        return None


def _sizes(model: Architecture) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(model), "variant": str(model.variant)}
