"""The tutorial notebook runs, its claims hold, and it prints what it is said to print."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import torch

BOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"


def test_every_cell_runs_and_prints_what_is_kept_with_it():
    book = json.loads(BOOK.read_text())
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    names = {}
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    try:
        for number, cell in enumerate(code, 1):
            said = io.StringIO()
            with redirect_stdout(said):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            kept = "".join("".join(output["text"]) for output in cell["outputs"])
            assert said.getvalue() == kept, f"cell {number}: run the notebook again and keep what it prints"
            assert cell["execution_count"] == number
    finally:
        torch.set_printoptions(profile="default")
    assert sum("assert " in "".join(cell["source"]) for cell in code) >= len(code) - 1


def test_the_file_is_written_as_notebooks_are():
    assert BOOK.read_text() == json.dumps(json.loads(BOOK.read_text()), indent=1, ensure_ascii=False) + "\n"
