"""`twofold doctor`: what this machine and this installation are, and which attention path serves here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from twofold.cli.output import print_json, show, table
from twofold.cli.quantities import mib

PACKAGES = ("transformers", "accelerate", "tokenizers", "numpy")

EXAMPLES = """[bold]Examples[/bold]
  twofold doctor
  twofold doctor --json"""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Versions, processor, device, threads, and which attention path is in use and why."""
    findings = examine()
    if as_json:
        print_json(findings)
        return
    shown = table(show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in findings.items():
        shown.add_row(name.replace("_", " "), _cell(name, value))
    show(shown)


def examine() -> dict[str, Any]:
    """The findings by name, ready for JSON. `memory_bytes` and `commit` are None where nobody knows. Loads torch."""
    import torch

    from twofold import environment
    from twofold.attention.scores import describe_path

    known = environment.environment()
    return {
        "twofold": known["twofold"],
        "commit": known["commit"],
        "python": known["python"],
        "torch": known["torch"],
        **{name: environment.package_version(name) for name in PACKAGES},
        "platform": known["platform"],
        "processor": known["processor"],
        "cores": environment.cores(),
        "memory_bytes": environment.memory_bytes(),
        "device": known["device"],
        "torch_threads": known["threads"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "attention_path": describe_path(environment.device_type()),
    }


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "unknown" if name in ("memory_bytes", "commit") else "not installed"
    return f"{value:,} ({mib(value)} MiB)" if name == "memory_bytes" else str(value)
