"""`twofold plan`: parameters, compute and cache of a model, by arithmetic, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from twofold.analysis import costs
from twofold.analysis.device_plan import Use, on_device
from twofold.cli.output import print_json, show, table
from twofold.cli.plan_devices import asked_devices, by_name, device_tables
from twofold.cli.plan_published import show_existing
from twofold.cli.quantities import mib, parse_bytes
from twofold.models.architecture import BLOCKS, ROTARY, Architecture
from twofold.models.presets import PRESETS, architecture
from twofold.variants.layout import ITEM_BYTES
from twofold.variants.notation import parse

EXAMPLES = """[bold]Examples[/bold]
  twofold plan --preset 300M --variant "K=V GQA-4" --context 32768
  twofold plan --preset 1.2B --variant QKV --variant K=V --variant MQA
  twofold plan --preset 1.2B --variant "K=V MQA" --memory 24GiB --batch 32
  twofold plan --layers 12 --width 768 --heads 12 --mlp 3072 --json
  twofold plan --rotary full --variant K=V --window 1024 --layer-pattern SSSL --context 32768
  twofold plan --config meta-llama/Meta-Llama-3-8B --context 32768
  twofold plan --config path/to/config.json --variant "K=V MQA" --memory 24GiB
  twofold plan --preset 1.2B --variant QKV --variant MQA --context 32768 --batch 32 --device H100 --price 2.50"""

DEFAULT_PRESET = "300M"

_SIZES = "Sizes (default: the preset's)"
_DEVICES = "On a device"


def plan(
    config: Annotated[
        str | None,
        typer.Option(
            help="A published model instead: a config.json, its folder, or a name on the Hugging Face hub.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Named sizes: {', '.join(PRESETS)}.", show_default=DEFAULT_PRESET)
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help='Variant, such as "K=V GQA-4"; give it again to compare.', show_default="QKV"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens cached per sequence.", show_default="the model's positions")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of one forward pass.", show_default="the model's positions")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"Of weights and cache: {', '.join(ITEM_BYTES)}.")] = "bfloat16",
    batch: Annotated[int, typer.Option(help="Sequences held at once.")] = 1,
    memory: Annotated[
        str | None, typer.Option(help="Such as 24GiB: how many sequences fit beside the weights?", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: an object, or a list where several variants are given.")
    ] = False,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="Seconds, tokens per second and what fits, at best; such as H100; again for more.",
            show_default=False,
            rich_help_panel=_DEVICES,
        ),
    ] = None,
    devices: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of further devices (docs/advise.md).", show_default=False, rich_help_panel=_DEVICES
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(help="Of the device per hour, in any currency.", show_default=False, rich_help_panel=_DEVICES),
    ] = None,
    efficiency: Annotated[
        float | None,
        typer.Option(help="Share of the device's roof that is reached.", show_default="1", rich_help_panel=_DEVICES),
    ] = None,
    layers: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    width: Annotated[int | None, typer.Option(help="Of the residual stream.", rich_help_panel=_SIZES)] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.", rich_help_panel=_SIZES)] = None,
    head_dim: Annotated[
        int | None, typer.Option(help="Dims of a head.", show_default="width / heads", rich_help_panel=_SIZES)
    ] = None,
    mlp: Annotated[int | None, typer.Option(help="Width inside the MLP.", rich_help_panel=_SIZES)] = None,
    vocab: Annotated[int | None, typer.Option(help="Entries of the vocabulary.", rich_help_panel=_SIZES)] = None,
    positions: Annotated[int | None, typer.Option(help="Longest trained context.", rich_help_panel=_SIZES)] = None,
    block: Annotated[str | None, typer.Option(help=" or ".join(BLOCKS) + ".", rich_help_panel=_SIZES)] = None,
    rotary: Annotated[str | None, typer.Option(help=" or ".join(ROTARY) + ".", rich_help_panel=_SIZES)] = None,
    rotary_dims: Annotated[
        int | None, typer.Option(help="With rotary partial.", show_default="the variant's", rich_help_panel=_SIZES)
    ] = None,
    latent_dims: Annotated[
        int | None, typer.Option(help="Of MLA's latent.", show_default="4 × head dim", rich_help_panel=_SIZES)
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens that a layer S sees; of a block of a layer B.", rich_help_panel=_SIZES),
    ] = None,
    layer_pattern: Annotated[
        str | None,
        typer.Option(help="Such as SSSL, repeated: S window, B blocks, L all.", rich_help_panel=_SIZES),
    ] = None,
    tied: Annotated[
        bool | None,
        typer.Option("--tied/--untied", help="Share embedding and head.", show_default=False, rich_help_panel=_SIZES),
    ] = None,
) -> None:
    """Parameters, multiply-accumulates and cache bytes of a model, without building it."""
    sizes = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "head_dim": head_dim,
        "mlp": mlp,
        "vocab": vocab,
        "positions": positions,
        "block": block,
        "rotary": rotary,
        "rotary_dims": rotary_dims,
        "latent_dims": latent_dims,
        "window": window,
        "layer_pattern": layer_pattern,
        "tied": tied,
    }
    available = None if memory is None else parse_bytes(memory)
    named = asked_devices(device, devices, price=price, efficiency=efficiency)
    if config is not None:
        _refuse_sizes({"preset": preset, "tokens": tokens, **sizes})
        from twofold.analysis.existing import plan_existing

        existing = plan_existing(
            config,
            variants=[parse(notation) for notation in variant or []],
            context=context,
            batch=batch,
            dtype=dtype,
            memory=available,
            devices=named,
            efficiency=1.0 if efficiency is None else efficiency,
            price_per_hour=price,
        )
        if as_json:
            print_json(existing.as_dict())
        else:
            show_existing(existing)
        return
    models = [architecture(preset or DEFAULT_PRESET, variant=notation, **sizes) for notation in variant or ["QKV"]]
    plans = [
        costs.plan(model, context=context, tokens=tokens, dtype=dtype, batch=batch, memory=available)
        for model in models
    ]
    use = Use(plans[0].context, batch, dtype, 1.0 if efficiency is None else efficiency, price)
    on_devices = [on_device(model, one, use) for one in named for model in models]
    if as_json:
        printed = [
            one.as_dict() | ({"devices": by_name(on_devices, one.variant)} if on_devices else {}) for one in plans
        ]
        print_json(printed[0] if len(plans) == 1 else printed)
        return
    notes = ["Counted are weights and caches; activations and the framework need room as well."] if memory else []
    notes += ["Exact numbers: one variant alone, or --json."] if len(plans) > 1 else []
    warnings = [Text(line, style="yellow") for line in _warnings(plans)]
    shown = _single(plans[0]) if len(plans) == 1 else _comparison(plans)
    show(_heading(models, dtype), "", shown, *device_tables(on_devices), "", *notes, *warnings)


def _refuse_sizes(sizes: dict[str, object]) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in sizes.items() if value is not None]
    if given:
        raise ValueError(
            f"--config and {', '.join(given)} exclude each other: the sizes are those of the configuration. Leave out "
            "one or the other"
        )


def _heading(models: list[Architecture], dtype: str) -> str:
    model, positions = models[0], " or ".join(dict.fromkeys(_positions(one) for one in models))
    return (
        f"{model.layers} layers, width {model.width:,}, {model.heads} query heads of {model.head_dim}, "
        f"MLP {model.mlp:,}, vocabulary {model.vocab:,},\n"
        f"{model.block} block, {positions}, to {model.positions:,}; weights and cache in {dtype}"
        + (f";\nlayers {model.layer_pattern}, window {model.window:,}" if model.window else "")
    )


def _positions(model: Architecture) -> str:
    if model.learned_positions:
        return "learned positions"
    part = "" if model.rotary == "full" else f" over {model.rotated_dims} dims"
    return f"rotary{part}"


def _single(plan: costs.Plan) -> Table:
    """One plan from top to bottom, exact."""
    shown = table()
    shown.add_column(plan.variant, no_wrap=True)
    shown.add_column("exact", justify="right", no_wrap=True)
    shown.add_column("", justify="right", no_wrap=True)
    shown.add_row("parameters", f"{plan.parameters:,}", f"{plan.parameters / 1e6:,.2f} M")
    for part, count in plan.parameters_by_part.items():
        if count:
            shown.add_row(f"  {part}", f"{count:,}", f"{count / 1e6:,.2f} M")
    shown.add_section()
    shown.add_row(
        f"multiply-accumulates, {plan.tokens:,} tokens", f"{plan.macs['total']:,}", f"{plan.macs['total'] / 1e9:,.2f} G"
    )
    for part in ("attention", "mlp", "head"):
        shown.add_row(f"  {part}", f"{plan.macs[part]:,}", f"{plan.macs[part] / 1e9:,.2f} G")
    shown.add_section()
    _bytes_row(shown, "weights, bytes", plan.weight_bytes)
    _bytes_row(shown, "cache, bytes per token", plan.cache_bytes_per_token)
    _bytes_row(shown, f"  per sequence of {plan.context:,}", plan.cache_bytes)
    _bytes_row(shown, f"  per batch of {plan.batch:,}", plan.cache_bytes_batch)
    if plan.memory_bytes is not None:
        shown.add_section()
        _bytes_row(shown, "memory, bytes", plan.memory_bytes)
        shown.add_row("  sequences that fit", f"{plan.sequences_that_fit:,}", "")
    return shown


def _bytes_row(shown: Table, name: str, number: int) -> None:
    shown.add_row(name, f"{number:,}", f"{mib(number)} MiB")


def _comparison(plans: list[costs.Plan]) -> Table:
    """Several plans, one per line, rounded so that they fit 80 columns."""
    first = plans[0]
    columns = [
        ("variant", [plan.variant for plan in plans]),
        ("params\nM", [f"{plan.parameters / 1e6:,.2f}" for plan in plans]),
        ("attn.\nM", [f"{plan.attention_parameters / 1e6:,.2f}" for plan in plans]),
        (f"10⁹ MACs\nT={first.tokens}", [f"{plan.macs['total'] / 1e9:,.2f}" for plan in plans]),
        ("bytes\n/token", [f"{plan.cache_bytes_per_token:,}" for plan in plans]),
        (f"MiB\n/{first.context:,}", [mib(plan.cache_bytes) for plan in plans]),
    ]
    if first.batch > 1:
        columns.append((f"MiB\n/batch {first.batch}", [mib(plan.cache_bytes_batch) for plan in plans]))
    if first.memory_bytes is not None:
        columns.append(("these\nfit", [f"{plan.sequences_that_fit:,}" for plan in plans]))
    shown = table()
    for number, (header, _) in enumerate(columns):
        shown.add_column(header, justify="right" if number else "left", no_wrap=True)
    for cells in zip(*(values for _, values in columns), strict=True):
        shown.add_row(*cells)
    return shown


def _warnings(plans: list[costs.Plan]) -> list[str]:
    """Each warning once, with the variants that it is about where it is not about all."""
    about: dict[str, list[str]] = {}
    for plan in plans:
        for warning in plan.warnings:
            about.setdefault(warning, []).append(plan.variant)
    return [
        f"warning: {text}" if len(names) == len(plans) else f"warning: {', '.join(names)}: {text}"
        for text, names in about.items()
    ]
