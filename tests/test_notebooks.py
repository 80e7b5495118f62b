"""The committed notebooks keep the house rules: parameters, shape, portable outputs. nbval compares the outputs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from structmem.parameters import declared

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="there are no notebooks yet")

MAX_CELLS = 25
MAX_STATEMENTS = 5
MAX_LINES = 8
# What another machine, day or run would print otherwise.
NOT_PORTABLE = (r"/home/|/root/|/Users/|/tmp/|[A-Z]:\\", r" at 0x[0-9a-f]+", r"\d\d:\d\d:\d\d")
SECRET = r"\b(sk|hf|gsk|xai)-[A-Za-z0-9_-]{16,}"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def book(request):
    found = nbformat.read(request.param, as_version=4)
    nbformat.validate(found)
    return found


def code(book) -> list:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_prose_first_then_parameters_then_their_check(book):
    assert book.cells[0].cell_type == "markdown" and book.cells[0].source.startswith("# ")
    tagged = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == [code(book)[0]]
    assert declared(tagged[0].source)
    assert "check_parameters()" in code(book)[1].source


def test_every_parameter_says_what_it_is(book):
    lines = [line for line in code(book)[0].source.splitlines() if re.match(r"\w+\s*:", line)]
    assert [line for line in lines if "  # " not in line] == []


def test_short_cells_without_definitions(book):
    assert len(book.cells) <= MAX_CELLS
    for cell in code(book)[1:]:
        lines = [line for line in cell.source.splitlines() if line.strip() and not line.strip().startswith("#")]
        tree = ast.parse(cell.source)
        assert len(lines) <= MAX_LINES and len(tree.body) <= MAX_STATEMENTS, cell.source
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        assert not [node for node in ast.walk(tree) if isinstance(node, kinds)], cell.source


def test_committed_as_run_from_top_to_bottom_without_errors(book):
    assert book.metadata.kernelspec.name == "python3"
    counts = [cell.execution_count for cell in code(book)]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {output.output_type for cell in code(book) for output in cell.outputs}
    assert "error" not in kinds
    assert not [output for cell in code(book) for output in cell.outputs if output.get("name") == "stderr"]


def test_outputs_are_the_same_everywhere_and_hold_no_key(book):
    for cell in code(book):
        for output in cell.outputs:
            text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            for pattern in (*NOT_PORTABLE, SECRET):
                assert not re.search(pattern, text), text[:300]


def test_a_figure_cell_prints_the_table_that_it_draws(book):
    for cell in code(book):
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        printed = any(output.output_type == "stream" for output in cell.outputs) or "text/html" in kinds
        assert "image/png" not in kinds or printed, cell.source
