"""`twofold convert`: a model of transformers as one of Twofold's, or back, with every tensor equal; or one that shares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from twofold.conversion.check import Check

EXAMPLES = """[bold]Examples[/bold]
  twofold convert path/to/SmolLM2-135M --out smol/
  twofold convert path/to/smollm2.gguf --out smol/ --json
  twofold convert smol/ --to llama --out back/
  twofold convert smol/ --to "MLA on_read" --text texts/ --out half/
  twofold convert smol/ --to "MLA on_read" --cache 0.4 --text "texts/a*" --test "texts/b*" --out less/
  twofold convert smol/ --to MLA --rotary-dims 32 --text texts/ --out latent/
  twofold convert smol/ --to MQA --method mean --layers 4-11 --text texts/ --out merged/"""


def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder with safetensors, a .gguf file or a name on the hub, of transformers or of Twofold.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new folder.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option(
            help="A family to write a Twofold model as (llama, mistral, qwen2, qwen3, gpt2, opt), or a variant to share "
            "as (K=V on_read, MLA on_read, MLA, K=V decoupled, GQA-g, MQA)."
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Text that sharing is fitted to: a file, a folder or a glob; may be given again."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How a variant is made; docs/conversion.md lists them.", show_default="the variant's")
    ] = "",
    layers: Annotated[
        str | None, typer.Option(help="Layers that share, from 0, such as 0,3-5.", show_default="all")
    ] = None,
    cache: Annotated[
        float | None,
        typer.Option(help="Share of the cache to be left: layers and sizes are chosen by what they lose."),
    ] = None,
    latent: Annotated[
        int, typer.Option(help="Dims of each layer's latent.", show_default="half the cache", min=0)
    ] = 0,
    groups: Annotated[int, typer.Option(help="Latents of latent-group.", min=1)] = 1,
    rotary_dims: Annotated[
        int, typer.Option(help="Dims of a rotary key of its own.", show_default="half a head's", min=0)
    ] = 0,
    refit: Annotated[bool, typer.Option("--refit/--no-refit", help="Fit the output's matrices again.")] = True,
    weighed: Annotated[
        bool, typer.Option("--weighed/--plain", help="Count a latent's errors by what they change, or all alike.")
    ] = True,
    tokens: Annotated[str, typer.Option(help="Tokens of the text to fit to.")] = "16384",
    context: Annotated[int, typer.Option(help="Tokens of a window of text.", min=8)] = 1024,
    test: Annotated[
        str | None, typer.Option(help="Text to take perplexities on, before and after.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare logits on random tokens with the original's.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert a checkpoint into Twofold's decoder (QKV with the model's heads), or a Twofold model back with --to.

    No number changes then; what the other side cannot hold is refused. With a variant for --to, the model is made to
    share keys and values, fitted to --text without training; `twofold heal` trains what it lost. The tokenizer goes
    along where there is one.
    """
    from twofold.cli.convert_sharing import convert_sharing
    from twofold.cli.explain import parse_layers
    from twofold.cli.progress import quiet_libraries
    from twofold.cli.quantities import parse_count
    from twofold.conversion.convert import convert_in, convert_out, families_for
    from twofold.conversion.families import FAMILIES
    from twofold.conversion.sharing_plan import Sharing
    from twofold.conversion.source import open_source, source_tokenizer, write_model
    from twofold.models.new_folder import require_new
    from twofold.variants.notation import parse

    require_new(out)
    quiet_libraries()
    opened = open_source(model)
    if to is not None and to not in FAMILIES:
        asked = Sharing(
            parse(to),
            method=method,
            latent=latent,
            groups=groups,
            rotary_dims=rotary_dims,
            layers=None if layers is None else parse_layers(layers),
            cache=cache,
            weighed=weighed,
            refit=refit,
        )
        if not text:
            raise ValueError(f"sharing as {asked.variant} is fitted to a text: name one with --text")
        convert_sharing(
            opened,
            asked,
            out,
            text=text,
            tokens=parse_count(tokens),
            context=context,
            test=test,
            as_json=as_json,
        )
        return
    if text or method or layers or cache or latent or test:
        raise ValueError("text, method, layers, sizes and test are for sharing: name a variant with --to")
    if opened.is_own and to is None:
        fitting = ", ".join(families_for(opened.model.config)) or "none, as docs/conversion.md explains"
        raise ValueError(f"{model} is a Twofold model: say with --to what to write it as ({fitting})")
    if to is not None and not opened.is_own:
        kind = opened.model.config.model_type
        raise ValueError(f"--to is for Twofold models, and {model} is a {kind!r} model: leave it out")
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
    if as_json:
        print_json(record)
    else:
        _show(record, found)


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


def _show(record: dict[str, Any], found: Check | None) -> None:
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
    show(shown, f"{record['out']} is written.")
