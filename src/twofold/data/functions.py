"""The functions of a Python module as texts of their own: short documents, where whole modules are long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import dedent

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> Iterator[tuple[str, str]]:
    """(`Class.method:line`, text) of each function, with its decorators, its indentation removed.

    Functions inside functions belong to these. Nothing comes of a source that this Python cannot parse.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the standard library holds templates too
        return
    lines = source.splitlines(keepends=True)
    for name, node in _defined(tree, ""):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield f"{name}:{first}", dedent("".join(lines[first - 1 : node.end_lineno]))


def _defined(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{prefix}{child.name}", child
        else:
            yield from _defined(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)
