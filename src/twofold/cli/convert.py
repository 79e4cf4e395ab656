"""`twofold convert`: a model of transformers as one of Twofold's, or back, every tensor equal; or one that shares."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.convert_record import lines, read_record
from twofold.cli.convert_sharing import Options, convert_sharing, variant_of
from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from rich.table import Table

    from twofold.cli.convert_record import ConversionRecord
    from twofold.conversion.check import Check

EXAMPLES = """[bold]Examples[/bold]
  twofold convert path/to/SmolLM2-135M --out smol/
  twofold convert path/to/smollm2.gguf --out smol/ --json
  twofold convert smol/ --to llama --out back/
  twofold convert smol/ --to "MLA on_read" --text texts/ --out half/
  twofold convert smol/ --to "MLA on_read" --cache 0.4 --text "texts/a*" --test "texts/b*" --out less/
  twofold convert smol/ --to MLA --rotary-dims 32 --text texts/ --out latent/
  twofold convert smol/ --to MQA --method mean --layers 4-11 --text texts/ --out merged/
  twofold convert --show half/"""


def convert(
    called: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder with safetensors, a .gguf file or a name on the hub, of transformers or of Twofold.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The new folder.", show_default=False)] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="A family to write a Twofold model as (llama, mistral, qwen2, qwen3, gpt2, opt), or a variant to "
            "share as (K=V on_read, MLA on_read, MLA, K=V decoupled, GQA-g, MQA)."
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text that sharing is fitted to: a file, a folder or a glob; may be given again.", show_default=False
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How a variant is made; docs/conversion.md lists them.", show_default="the variant's")
    ] = "",
    layers: Annotated[
        str | None, typer.Option(help="Layers that share, from 0, such as 0,3-5.", show_default="all")
    ] = None,
    cache: Annotated[
        float | None,
        typer.Option(
            help="Share of the cache to be left at most: layers and sizes are chosen by what they lose.",
            show_default=False,
        ),
    ] = None,
    latent: Annotated[int, typer.Option(help="Dims of each layer's latent.", show_default="half the cache", min=0)] = 0,
    groups: Annotated[int, typer.Option(help="Latents of latent-group.", min=1)] = 1,
    rotary_dims: Annotated[
        int, typer.Option(help="Dims of a rotary key of its own.", show_default="half a head's", min=0)
    ] = 0,
    spaced: Annotated[
        bool,
        typer.Option("--spaced-pairs/--any-pairs", help="Pairs of that key as engines have them, 0, s, 2s, …, or any."),
    ] = True,
    refit: Annotated[bool, typer.Option("--refit/--no-refit", help="Fit the output's matrices again.")] = True,
    weighed: Annotated[
        bool,
        typer.Option("--weighed/--plain", help="Errors of MLA on_read's latent count by what they change, or alike."),
    ] = True,
    tokens: Annotated[str, typer.Option(help="Tokens of the text to fit to.")] = "16384",
    context: Annotated[int, typer.Option(help="Tokens of a window of text.", min=8)] = 1024,
    test: Annotated[
        str | None, typer.Option(help="Text to take perplexities on, before and after.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare logits on random tokens with the original's.")
    ] = True,
    shown: Annotated[
        Path | None,
        typer.Option("--show", metavar="DIR", help="Print the table of a conversion that shares.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a checkpoint cache less (--to VARIANT), or take it into Twofold's decoder and back without a change.

    With a variant for --to, the model is made to share keys and values, fitted to --text without training; `twofold
    heal` trains what it lost. Without --to it becomes QKV with its heads, and with a family a Twofold model goes back:
    no number changes then, and what the other side cannot hold is refused. The tokenizer goes along where there is one.
    """
    options = Options(
        text=tuple(text or ()),
        method=method,
        layers=layers,
        cache=cache,
        latent=latent,
        groups=groups,
        rotary_dims=rotary_dims,
        spaced=spaced,
        refit=refit,
        weighed=weighed,
        tokens=tokens,
        context=context,
        test=test,
    )
    if shown is not None:
        if model or out or to or options.given:
            raise ValueError("--show prints what a conversion has written: give it alone, with --json if you like")
        found = read_record(shown)
        _tell(found.model_dump(mode="json"), lines(found), as_json)
        return
    if model is None or out is None:
        missing = [name for name, given in (("MODEL", model), ("--out", out)) if given is None]
        raise ValueError(f"{' and '.join(missing)} missing: name a model and a new folder, or --show DIR")
    from twofold.conversion.families import FAMILIES

    if to is None or to in FAMILIES:
        if options.given:
            raise ValueError(f"{', '.join(options.given)}: for sharing, which takes a variant for --to")
        _rename(model, to, out, check, as_json)
    else:
        command = shlex.join(["twofold", *(called.obj or [])])
        found = _share(model, to, out, options, check, command)
        _tell(found.model_dump(mode="json"), [*lines(found), f"{out} is written."], as_json)


def _share(model: str, to: str, out: Path, options: Options, check: bool, command: str) -> ConversionRecord:
    from twofold.cli.progress import quiet_libraries
    from twofold.conversion.source import open_source
    from twofold.models.new_folder import require_new

    quiet_libraries()
    asked = options.sharing(variant_of(to))
    if not check:
        raise ValueError("--no-check: a model that shares is no longer the same function, and is not checked to be")
    require_new(out)
    return convert_sharing(open_source(model), asked, out, options, command)


def _rename(model: str, to: str | None, out: Path, check: bool, as_json: bool) -> None:
    """Into the decoder or out of it, with every number as it was."""
    from twofold.cli.progress import quiet_libraries
    from twofold.conversion.convert import convert_in, convert_out, families_for
    from twofold.conversion.source import open_source, source_tokenizer, write_model
    from twofold.models.new_folder import require_new

    require_new(out)
    quiet_libraries()
    opened = open_source(model)
    if opened.is_own and to is None:
        fitting = ", ".join(families_for(opened.model.config)) or "none, as docs/conversion.md explains"
        raise ValueError(
            f"{model} is a Twofold model: say with --to what to write it as ({fitting}), or the variant to share as"
        )
    if to is not None and not opened.is_own:
        kind = opened.model.config.model_type
        raise ValueError(f"--to {to} is for Twofold models, and {model} is a {kind!r} model: leave it out")
    made = convert_in(opened.model) if to is None else convert_out(opened.model, to)
    found = _checked(opened.model, made) if check else None
    tokenizer = source_tokenizer(opened)
    write_model(made, out, tokenizer)
    record = {
        "model": model,
        "out": str(out),
        "from": opened.model.config.model_type,
        "to": made.config.model_type,
        "variant": (made if to is None else opened.model).config.variant,
        "parameters": made.num_parameters(),
        "dtype": str(made.dtype).removeprefix("torch."),
        "tokenizer": tokenizer is not None,
        "check": None if found is None else found.as_dict(),
    }
    _tell(record, [_table(record, found), f"{out} is written."], as_json)


def _tell(record: dict[str, Any], told: list[Table | str], as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        show(*told)


def _checked(original: Any, made: Any) -> Check:
    """The comparison. ValueError where the two compute different things, and then nothing is written."""
    from twofold.conversion.check import compare

    found = compare(original, made)
    if found.is_fault:
        raise ValueError(
            f"logits differ by {found.max_logit_difference:.3g}, where the original's own difference is "
            f"{found.own_difference:.3g} (SDPA against eager): nothing was written; --no-check writes it all the same"
        )
    return found


def _table(record: dict[str, Any], found: Check | None) -> Table:
    shown = table(show_header=False)
    shown.add_column(style="bold")
    shown.add_column(justify="right", no_wrap=True)
    shown.add_row("from, to", f"{record['from']}, {record['to']}")
    shown.add_row("variant", record["variant"])
    shown.add_row("parameters", f"{record['parameters']:,} in {record['dtype']}")
    shown.add_row("tokenizer", "carried along" if record["tokenizer"] else "none beside the model")
    if found is not None:
        shown.add_row("largest logit", f"{found.largest_logit:.4g}")
        shown.add_row("largest difference of a logit", f"{found.max_logit_difference:.3g}")
        shown.add_row("the original's own, SDPA against eager", f"{found.own_difference:.3g}")
        shown.add_row("within twice its own", "yes" if found.is_within else "no, by rounding")
    return shown
