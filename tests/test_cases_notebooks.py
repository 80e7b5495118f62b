"""Notebooks as people run them: lost tags, text for values, other kernels, other folders, two runs at once."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from structmem import notebooks
from structmem.errors import InputError, SetupError
from structmem.parameters import Parameter

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")
papermill = pytest.importorskip("papermill", reason="the notebooks extra is not installed")

PARAMETERS = 'model: str = "default/model"  # who answers\ndry_run: bool = True\nfile: str = ""'
CHECK = "from structmem.notebooks import check_parameters\ncheck_parameters()"
ROOT = Path(notebooks.__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project whose path has a space and an accent."""
    made = tmp_path / "mon projét"
    (made / "notebooks").mkdir(parents=True)
    (made / "data").mkdir()
    (made / "data" / "models.yaml").write_text("models: []\n")
    monkeypatch.chdir(made)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return made


def write(path: Path, *cells: str, tag: bool = True, kernel: str | None = "python3") -> Path:
    book = nbformat.v4.new_notebook()
    if kernel:
        book.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
    tags = {"tags": ["parameters"]} if tag else {}
    book.cells = [
        nbformat.v4.new_code_cell(PARAMETERS, metadata=tags),
        *map(nbformat.v4.new_code_cell, [CHECK, *cells]),
    ]
    nbformat.write(book, path)
    return path


def printed(path: Path) -> str:
    outputs = [output for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def test_parameters_for_a_cell_without_its_tag_are_refused_by_the_runner_and_by_the_notebook(folder):
    lost = write(folder / "notebooks" / "10_lost.ipynb", "print(model)", tag=False)
    with pytest.raises(InputError, match="no cell tagged 'parameters'"):
        notebooks.run_notebook(lost, {"model": "other/model"})
    with pytest.raises(papermill.PapermillExecutionError, match="give that cell the tag 'parameters'"):
        papermill.execute_notebook(lost, folder / "out.ipynb", {"model": "other/model"}, progress_bar=False)
    assert "default/model" not in printed(folder / "out.ipynb")


@pytest.mark.parametrize("kernel", ["venv-of-the-author", None])
def test_another_kernel_name_or_none_does_not_matter(folder, kernel):
    path = write(folder / "notebooks" / "10_one.ipynb", "print(model, dry_run)", kernel=kernel)
    done = notebooks.run_notebook(path, {"model": "007", "dry_run": "false"})
    assert printed(done) == "007 False\n" and "007" in done.read_text(encoding="utf-8")  # the copy says what held


def test_a_machine_without_a_kernel_is_told_what_to_install(folder, monkeypatch):
    def none(*args, **kwargs):
        raise notebooks.extra("jupyter_client.kernelspec").NoSuchKernel("python3")

    monkeypatch.setattr(papermill, "execute_notebook", none)
    with pytest.raises(SetupError, match="no kernel 'python3'.*ipykernel install"):
        notebooks.run_notebook(write(folder / "notebooks" / "10_one.ipynb"), {})


def test_two_runs_of_one_notebook_at_once_leave_one_whole_copy(folder, monkeypatch):
    path = write(folder / "notebooks" / "10_one.ipynb")
    both = threading.Barrier(2, timeout=20)

    def slow(source, output, values, **options):
        Path(output).write_text(values["model"] + " begins")
        both.wait()
        assert Path(output).read_text() == values["model"] + " begins"
        Path(output).write_text(values["model"])

    monkeypatch.setattr(papermill, "execute_notebook", slow)
    runs = [threading.Thread(target=notebooks.run_notebook, args=(path, {"model": name})) for name in ("a/b", "c/d")]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [file.name for file in (folder / "runs").iterdir()] == ["10_one.ipynb"]
    assert (folder / "runs" / "10_one.ipynb").read_text() in ("a/b", "c/d")


# annotation, text or value given, value that the notebook gets (Refused: a sentence)
REFUSED = object()
VALUES = [
    ("bool", "false", False),
    ("bool", "False", False),
    ("bool", "no", False),
    ("bool", "0", False),
    ("bool", "falsch", REFUSED),
    ("bool", 0, REFUSED),
    ("str", "007", "007"),
    ("str", "1e3", "1e3"),
    ("str", "true", "true"),
    ("str", "2026-01-01", "2026-01-01"),
    ("str", "Où ça ? 健康", "Où ça ? 健康"),
    ("str", Path("a"), REFUSED),
    ("int", "007", 7),
    ("int", "1e3", REFUSED),
    ("int", "5.0", REFUSED),
    ("int", True, REFUSED),
    ("float", "1e3", 1000.0),
    ("float", "inf", REFUSED),
    ("list[str]", '["A", "é"]', ["A", "é"]),
    ("list[str]", "A", REFUSED),
    ("list[str]", "['A']", REFUSED),
    ("list[str]", '["A", 1]', REFUSED),
    ("list[str]", ("A", "B"), REFUSED),
    ("dict", '{"a": null}', {"a": None}),
    ("float | None", "none", None),
    ("float | None", "None", None),
    ("str", "none", "none"),
]


@pytest.mark.parametrize(("annotation", "given", "wanted"), VALUES, ids=[f"{row[0]}-{row[1]!r}" for row in VALUES])
def test_a_value_is_of_the_declared_type_or_refused_with_a_sentence(annotation, given, wanted):
    parameter = Parameter("p", annotation, None)

    def taken():
        value = parameter.read(given) if isinstance(given, str) else given
        if not parameter.fits(value):
            raise parameter.refusal(value)
        return value

    if wanted is REFUSED:
        with pytest.raises(InputError, match=re.escape(f"parameter p must be {annotation}")):
            taken()
    else:
        value = taken()
        assert value == wanted and type(value) is type(wanted)


@pytest.mark.parametrize("start", ["notebooks", "elsewhere"])
def test_relative_paths_lie_where_the_user_says(folder, monkeypatch, start):
    (folder / "elsewhere").mkdir()
    (folder / "here.txt").write_text("found")
    path = write(folder / "notebooks" / "10_one.ipynb", "print(open(file).read())")
    monkeypatch.chdir(folder / start)
    done = notebooks.run_notebook(path, {"file": "here.txt"}, output=folder / "o ût" / "x.ipynb", folder=folder)
    assert done == folder / "o ût" / "x.ipynb" and printed(done) == "found\n"


def test_the_package_sets_no_loop_policy_patches_no_loop_and_starts_no_loop_of_its_own():
    for file in (ROOT / "structmem").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"set_event_loop_policy|nest_asyncio|asyncio\.run\(", text), file.name


def test_nothing_prints_after_a_cell_has_ended(folder):
    """A printing thread would outlast its cell, and nbval waits five seconds for silence."""
    cell = """
import structmem as sm
def model(messages): return "An answer."
model.model_id = "test/model"
table = sm.run(sm.load_entries("examples", limit=1), [model], ["flat"], judge="echo", store=":memory:")
import threading
print(sorted(t.name for t in threading.enumerate() if "progress" in t.name.lower()))"""
    done = notebooks.run_notebook(write(folder / "notebooks" / "10_one.ipynb", cell, "print('last')"), {})
    *_, before, last = nbformat.read(done, 4).cells
    assert before.outputs[-1].text.endswith("[]\n")
    assert [output.text for output in last.outputs] == ["last\n"]
