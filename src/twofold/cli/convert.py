"""`twofold convert`: a model of transformers as one of Twofold's, or back, with every tensor equal."""

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
  twofold explain smol/
  twofold convert smol/ --to llama --out back/"""


def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder with safetensors, a .gguf file or a name on the hub; with --to, a Twofold model's folder.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new folder.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option(help="The family to write a Twofold model as: llama, mistral, qwen2, qwen3, gpt2."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare logits on random tokens with the original's.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert a checkpoint into Twofold's decoder (QKV with the model's heads), or a Twofold model back with --to.

    No number changes; what the other side cannot hold is refused. The tokenizer goes along where there is one.
    """
    from twofold.cli.progress import quiet_libraries
    from twofold.conversion.convert import convert_in, convert_out, families_for
    from twofold.conversion.source import open_source, source_tokenizer, write_model
    from twofold.models.new_folder import require_new

    require_new(out)
    quiet_libraries()
    opened = open_source(model)
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
