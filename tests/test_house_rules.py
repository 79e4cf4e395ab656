"""House rules that a machine can hold: imports point one way, light modules stay light, files stay short."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "twofold"

# Low to high; a package imports only what stands before it (docs/architecture.md).
ORDER = (
    "version",
    "environment",
    "variants",
    "kernels",
    "cache",
    "attention",
    "models",
    "data",
    "tasks",
    "evaluation",
    "training",
    "analysis",
    "folding",
    "explain",
    "conversion",
    "study",
    "healing",
    "trials",
    "export",
    "bench",
    "report",
    "cli",
)
# Never torch at import time: they serve the command line's quick verbs and the report.
WITHOUT_TORCH = {
    "variants": "",
    "report": "",
    "study": "execute",
    "cli": "progress",
    "analysis": "",
    "tasks": "batches",
    "trials": "execute",
}
HEAVY = ("torch", "transformers", "safetensors", "tokenizers")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path, *, everywhere: bool) -> set[str]:
    """Dotted names that a module imports: at its top level, or also inside functions and type-checking blocks."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else tree.body
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    here = package_of(path)
    if here == "__init__":
        return
    for name in imported(path, everywhere=True):
        parts = name.split(".")
        if parts[0] != "twofold" or len(parts) == 1:
            continue
        assert ORDER.index(parts[1]) <= ORDER.index(here), f"{here} must not import {name}"


def test_every_package_has_its_place():
    found = {package_of(path) for path in modules()} - {"__init__"}
    assert found == set(ORDER)


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_light_packages_load_nothing_heavy(package):
    for path in (PACKAGE / package).rglob("*.py"):
        if path.stem == WITHOUT_TORCH[package]:
            continue
        heavy = {name for name in imported(path, everywhere=False) if name.split(".")[0] in HEAVY}
        assert not heavy, f"{path.name} imports {heavy} at the top"


def test_the_report_never_imports_torch():
    for path in (PACKAGE / "report").rglob("*.py"):
        assert not {n for n in imported(path, everywhere=True) if n.split(".")[0] in HEAVY}


def test_files_are_short():
    long = {str(p.relative_to(PACKAGE)): n for p in modules() if (n := len(p.read_text().splitlines())) > 320}
    assert not long


def test_no_utils():
    assert not [p for p in modules() if "util" in p.stem or "helper" in p.stem]
