"""notebooks and parameters: reading, refusing, running through papermill, checking, copying."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from structmem import notebooks, parameters
from structmem.errors import InputError, SetupError
from structmem.parameters import Parameter, check_values, declared
from structmem.paths import shared

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")

CELL = """
model: str = "local/smollm2"  # any litellm id
limit: int = 5  # entries per failure type
offline: bool = True
temperature: float = 1.0
structures: list[str] = ["flat"]
budget: float | None = None
options: dict = {}
"""
CHECK = "from structmem.notebooks import check_parameters\ncheck_parameters()"


def write(path: Path, *cells: str, first: str = CELL) -> Path:
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    book.cells = [nbformat.v4.new_code_cell(text) for text in (first, *cells)]
    book.cells[0].metadata["tags"] = ["parameters"]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


# -- text to values --


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("int", "7", 7),
        ("int", "-1", -1),
        ("float", "3", 3),
        ("float", "1e-3", 0.001),
        ("bool", "false", False),
        ("bool", "False", False),
        ("bool", "0", False),
        ("bool", "yes", True),
        ("str", "007", "007"),
        ("str", "true", "true"),
        ("str", "1e5", "1e5"),
        ("str", "", ""),
        ("str", "[1]", "[1]"),
        ("str", "none", "none"),
        ("list[str]", '["flat", "tree"]', ["flat", "tree"]),
        ("list[int]", "[1, 2]", [1, 2]),
        ("list", "[]", []),
        ("dict", '{"a": 1}', {"a": 1}),
        ("int | None", "none", None),
        ("int | None", "4", 4),
        ("float | None", "None", None),
        ("str | None", "none", None),
    ],
)
def test_text_becomes_a_value_of_the_declared_type(annotation, text, value):
    found = Parameter("x", annotation, None).read(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("int", "four"), ("int", "4.0"), ("int", "true"), ("int", ""), ("bool", "maybe"), ("bool", "2"), ("float", "x"),
        ("list[str]", "flat,tree"), ("list[str]", "[1]"), ("list[int]", "[true]"), ("dict", "[]"), ("int", "none"),
    ],
)  # fmt: skip
def test_text_that_is_no_such_value_is_refused(annotation, text):
    with pytest.raises(InputError, match=f"parameter x must be {annotation.replace('[', '.').replace(']', '.')}"):
        Parameter("x", annotation, None).read(text)


def test_declared_reads_names_types_and_defaults():
    found = declared(CELL)
    assert list(found) == ["model", "limit", "offline", "temperature", "structures", "budget", "options"]
    assert found["structures"].default == ["flat"] and found["budget"].annotation == "float | None"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("limit = 5", "name: type = value"),
        ("limit: int", "name: type = value"),
        ("limit: int = len('a')", "not a literal"),
        ("limit: int = '5'", "limit must be int, got '5'"),
        ("import os\nlimit: int = 5", "import os"),
    ],
)
def test_a_parameters_cell_holds_annotated_literals_only(cell, says):
    with pytest.raises(InputError, match=says):
        declared(cell)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="no parameter 'limti'.*did you mean 'limit'"):
        check_values(declared(CELL), {"limti": 3})


# -- check_parameters, on IPython's history --


class Shell:
    def __init__(self, *cells: str):
        self.user_ns: dict = {}
        for cell in cells:
            exec(cell, self.user_ns)
        self.user_ns["In"] = ["", *cells, CHECK]


def check(monkeypatch, *cells: str) -> None:
    shell = Shell(*cells)
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    parameters.check_parameters()


@pytest.mark.parametrize(
    "cells",
    [
        (),
        (CELL,),
        ("import os", CELL),
        (CELL, "# Parameters\nlimit = 2\noffline = False\nbudget = 3\n"),
        (CELL, '# Parameters\nmodel = "a/b"\n', "print", CELL.replace("5", "9")),
    ],
)
def test_good_parameters_pass(monkeypatch, cells):
    check(monkeypatch, *cells)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ((CELL, "# Parameters\nlimti = 2\n"), "did you mean 'limit'"),
        ((CELL, "# Parameters\nlimit = '2'\n"), "limit must be int, got '2'"),
        ((CELL, "# Parameters\noffline = 1\n"), "offline must be bool"),
        ((CELL, "# Parameters\nstructures = 'flat'\n"), "structures must be list"),
        ((CELL.replace("= 5", "= '5'"),), "limit must be int"),
        ((CELL + "limitt = 3",), "limitt = 3"),
        ((CELL, "limit = None"), "limit must be int, got None"),
        (("x = 1",), "run it first"),
    ],
)
def test_bad_parameters_raise(monkeypatch, cells, says):
    with pytest.raises(InputError, match=says):
        check(monkeypatch, *cells)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("limit: int = '5'", "limit must be int, got '5'"),
        ("structures: list[str] = [1]", "structures must be list"),
        ("budget: float | None = 'much'", "budget must be float"),
    ],
)
def test_without_a_history_the_annotations_are_checked(monkeypatch, cell, says):
    """What nbval leaves: a history that stays empty."""

    def check_only(cell: str) -> None:
        shell = Shell(cell)
        shell.user_ns["In"] = [""]
        monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
        parameters.check_parameters()

    check_only(CELL)
    with pytest.raises(InputError, match=says):
        check_only(cell)


def test_outside_ipython_there_is_nothing_to_check(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    parameters.check_parameters()


# -- running --


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout in a folder whose name has a space and an accent."""
    folder = tmp_path / "my projét"
    (folder / "data" / "recorded").mkdir(parents=True)
    (folder / "data" / "models.yaml").write_text("models: []\n")
    (folder / "data" / "analysis_plan.yaml").write_bytes(shared("data/analysis_plan.yaml").read_bytes())
    (folder / "data" / "recorded" / "calls.jsonl").write_text("{}\n")
    write(folder / "notebooks" / "10_one.ipynb", CHECK, "print(limit + 1, model)")
    write(folder / "notebooks" / "11_two.ipynb", CHECK)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(Path(notebooks.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return folder


def test_a_run_keeps_the_executed_copy_and_checks_fine(project, monkeypatch):
    monkeypatch.chdir(project / "notebooks")
    path = notebooks.run_notebook("10", {"limit": "41", "model": "007"})
    assert path == project / "runs" / "10_one.ipynb"
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    assert [output.text for output in outputs] == ["42 007\n"]
    assert notebooks.check_run(path) == []


def test_the_check_cell_stops_what_papermill_would_only_log(project):
    papermill = pytest.importorskip("papermill")
    with pytest.raises(papermill.PapermillExecutionError, match="did you mean 'limit'"):
        papermill.execute_notebook(
            "notebooks/10_one.ipynb", "out.ipynb", {"limitt": 3}, kernel_name="python3", progress_bar=False
        )
    assert any("InputError" in problem for problem in notebooks.check_run("out.ipynb"))


def test_a_failing_cell_is_one_sentence_and_the_copy_is_kept(project):
    write(project / "notebooks" / "12_bad.ipynb", "1 / 0", "print('never')")
    with pytest.raises(notebooks.NotebookError, match="12_bad.ipynb, cell .*ZeroDivisionError.*runs"):
        notebooks.run_notebook("12_bad", {})
    assert not (project / "runs" / "12_bad.ipynb").exists()  # an earlier run's copy would still be there
    problems = notebooks.check_run("runs/12_bad.unfinished.ipynb")
    assert any("ZeroDivisionError" in problem for problem in problems) and any("did not run" in p for p in problems)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("13", {}, "notebook must be one of .*10_one.*got '13'"),
        ("10", {"limt": "1"}, "did you mean 'limit'"),
        ("10", {"limit": "many"}, "limit must be int"),
        ("10", {"limit": 2.5}, "limit must be int"),
        ("plain.ipynb", {"limit": "1"}, "takes none"),
        ("broken.ipynb", {}, "not a notebook"),
    ],
)
def test_refused_before_anything_runs(project, name, given, says):
    book = nbformat.v4.new_notebook()
    nbformat.write(book, project / "plain.ipynb")
    (project / "broken.ipynb").write_text("{")
    with pytest.raises(InputError, match=says):
        notebooks.run_notebook(name, given)
    assert not (project / "runs").exists()


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "papermill", None)
    with pytest.raises(SetupError, match="structmem.notebooks"):
        notebooks.extra("papermill")


# -- checking results --


def test_results_beside_a_run_are_checked(project):
    from structmem.results import empty_results, write_results

    path = write_results(empty_results(), project / "data" / "results" / "a.parquet")
    run = write(project / "runs" / "x.ipynb", first='results: str = "data/results/*.parquet"')
    book = nbformat.read(run, as_version=4)
    book.cells[0].execution_count = 1
    nbformat.write(book, run)
    assert notebooks.check_run(run) == [] and notebooks.check_run(path) == []
    beside = Path(str(path) + ".manifest.json")
    facts = json.loads(beside.read_text())
    beside.write_text(json.dumps(facts | {"rows": 3}))
    assert "0 rows, and 3 in its manifest" in notebooks.check_run(run)[0]
    beside.write_text(json.dumps(facts | {"file_sha256": "0"}))
    assert "was changed" in notebooks.check_run(path.parent)[0]
    beside.unlink()
    assert "manifest" in notebooks.check_run(path)[0]


def test_a_sweep_and_a_folder_of_sweeps_are_checked_with_their_cells(tmp_path):
    for name, statuses in (("good", ["finished"]), ("bad", ["finished", "failed"])):
        cell = tmp_path / name / "cells" / "x=1"
        cell.mkdir(parents=True)
        run = write(cell / "a.ipynb")
        book = nbformat.read(run, as_version=4)
        for one in book.cells:
            one.execution_count = 1
        nbformat.write(book, run)
        table = "".join(f"x={n},{status}\n" for n, status in enumerate(statuses, 1))
        (tmp_path / name / "sweep.csv").write_text(f"cell,status\n{table}")
    write(tmp_path / "good" / "cells" / "x=7" / "a.unfinished.ipynb")  # of an earlier grid
    assert notebooks.check_run(tmp_path / "good") == []
    said = "sweep.csv: 1 of 2 cells not finished (1 failed)."
    assert notebooks.check_run(tmp_path) == [f"bad: {said}"]
    (tmp_path / "bad" / "cells" / "x=1" / "results.parquet").write_bytes(b"")
    (tmp_path / "bad" / "cells" / "x=1" / "a.ipynb").unlink()
    said = "sweep.csv: 2 of 2 cells not finished (1 without its notebook, 1 failed)."
    first, second = notebooks.check_run(tmp_path / "bad")
    assert first == said and second.startswith("cells/x=1: ") and "results.parquet" in second


def test_nothing_to_check_is_said(tmp_path):
    with pytest.raises(InputError, match="neither a notebook, a results file nor"):
        notebooks.check_run(tmp_path)


# -- copying --


def test_copy_never_replaces_a_users_file_unless_told(project, tmp_path):
    target = tmp_path / "copy"
    copied, kept = notebooks.copy_notebooks(target)
    assert {path.relative_to(target).as_posix() for path in copied} == {
        "notebooks/10_one.ipynb", "notebooks/11_two.ipynb", "data/recorded/calls.jsonl", "data/models.yaml",
        "data/analysis_plan.yaml",
    }  # fmt: skip
    assert kept == [] and notebooks.copy_notebooks(target) == ([], [])
    mine = target / "notebooks" / "10_one.ipynb"
    mine.write_text("mine")
    assert notebooks.copy_notebooks(target) == ([], [mine]) and mine.read_text() == "mine"
    assert notebooks.copy_notebooks(target, force=True) == ([mine], [])
    assert mine.read_text() != "mine"


def test_copy_onto_the_source_changes_nothing(project):
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert notebooks.copy_notebooks(project, force=True) == ([], [])
    assert before == {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}


def test_a_key_in_a_parameter_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    book = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell('model_options: dict = {}\nmodel: str = "a/b"', metadata={"tags": ["parameters"]})
    book.cells = [cell]
    nbformat.write(book, tmp_path / "mine.ipynb")
    monkeypatch.setenv("ACME_API_KEY", "acme-1234567")
    for given in ({"model_options": '{"api_key": "0123456789"}'}, {"model": "acme-1234567"}):
        with pytest.raises(InputError, match="environment") as found:
            notebooks.run_notebook(tmp_path / "mine.ipynb", given, tmp_path / "out.ipynb")
        assert "0123456789" not in str(found.value) and not (tmp_path / "out.ipynb").exists()


def test_nan_is_no_parameter():
    with pytest.raises(InputError, match="limit must be float"):
        Parameter("limit", "float", 1.0).read("nan")
    with pytest.raises(InputError, match="plain values"):
        parameters.assigned("# Parameters\nlimit = float('nan')")
