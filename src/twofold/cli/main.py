"""The console script `twofold`: one file per verb, and one place where errors become a line and an exit code.

Exit codes: 0 done, 1 the system refused (disk full, no permission), 2 the user's mistake, 130 interrupted.
A verb imports torch and other heavy packages inside its function, so that `--help` comes at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from twofold.cli import (
    advise,
    bench,
    convert,
    doctor,
    evaluate,
    explain,
    export,
    fold,
    generate,
    heal,
    lab,
    plan,
    serve,
    study,
    train,
    variants,
)
from twofold.version import __version__

app = typer.Typer(
    name="twofold",
    help="Transformers whose query, key and value projections share matrices: train, compare, cache what is shared "
    "once.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("variants", epilog=variants.EXAMPLES)(variants.variants)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.command("advise", epilog=advise.EXAMPLES)(advise.advise)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain)
app.command("fold", epilog=fold.EXAMPLES)(fold.fold)
app.command("lab", epilog=lab.EXAMPLES)(lab.lab)
app.command("generate", epilog=generate.EXAMPLES)(generate.generate)
app.command("convert", epilog=convert.EXAMPLES)(convert.convert)
app.command("heal", epilog=heal.EXAMPLES)(heal.heal)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.add_typer(study.app, name="study")
app.add_typer(bench.app, name="bench")
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. A user's mistake is one line on standard error, never a traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    _print_anything()
    try:
        code = app(arguments, prog_name="twofold", standalone_mode=False, obj=arguments) or 0
        sys.stdout.flush()
    except typer.TyperException as error:
        _fail(arguments, _usage_message(error), error.exit_code)
    except ValueError as error:
        _fail(arguments, str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough of it. What is left in the buffer must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        _fail(arguments, f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    if code == INTERRUPTED:
        _fail(arguments, "interrupted", INTERRUPTED)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"twofold {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def _print_anything() -> None:
    """A stream that is closed swallows what it gets; one that cannot encode × or ʳ gets a question mark."""
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started us
        sys.stdout, sys.stderr = (s or Path(os.devnull).open("w") for s in (sys.stdout, sys.stderr))  # noqa: SIM115 (to the end)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _fail(arguments: Sequence[str], message: str, code: int) -> None:
    print(f"{_verb(arguments)}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _verb(arguments: Sequence[str]) -> str:
    """`twofold plan`, `twofold study run`: the words up to the first that names no verb."""
    words = ["twofold"]
    verbs = getattr(typer.main.get_command(app), "commands", {})
    for argument in arguments:
        if argument not in verbs:
            break
        words.append(argument)
        verbs = getattr(verbs[argument], "commands", {})
    return " ".join(words)


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message()
    near = getattr(error, "possibilities", None)
    if near:
        message = f"{error.message}. Did you mean {' or '.join(near)}?"
    return message[0].lower() + message[1:]


if __name__ == "__main__":
    main()
