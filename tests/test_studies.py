"""studies: demo and study from end to end, with Python functions as models."""

from __future__ import annotations

from pathlib import Path

import pytest

from structmem import studies
from structmem.data import load_entries
from structmem.errors import InputError, SetupError

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")

CELLS = (
    'models: list = ["a"]\nlimit: int = 0\nresults: str = ""\nstore: str = "recorded"',
    "from structmem.notebooks import check_parameters\ncheck_parameters()",
    "print(models, limit, results, repr(store))",
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRUCTMEM_STORE", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(studies.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr("structmem.local.model_sha256", lambda model_id: "0" * 64)
    monkeypatch.setattr("structmem.data.load_entries", lambda source, limit=0: load_entries("examples", limit=limit))
    return tmp_path


def polite(messages, request):
    return f"I do not know. ({request.generation})"


polite.model_id = "test/polite"


def strict(entry, response):
    return 1 if entry.failure_type != "beneficial_memory_usage" else 3


def test_demo_hands_each_notebook_what_it_declares_and_says_where_all_lies(project, capsys):
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    book.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    book.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(book, project / "notebooks" / "11_sycophancy.ipynb")
    lines = []
    studies.demo(limit=2, say=lines.append)
    executed = nbformat.read(project / "runs" / "11_sycophancy.ipynb", as_version=4)
    text = [output.text for cell in executed.cells for output in cell.get("outputs", [])]
    assert text == ["['local/smollm2'] 2 data/results/demo_sycophancy.parquet 'data/store.sqlite'\n"]
    said = "\n".join(lines)
    assert "2 entries per failure type" in said and "runs/11_sycophancy.ipynb" in said
    assert "Model calls made: 0" in said and "not an effect" in said
    assert "11_sycophancy" in capsys.readouterr().err


def test_demo_says_what_is_missing_before_it_starts(project, monkeypatch):
    with pytest.raises(SetupError, match="None of the demo's notebooks"):
        studies.demo()

    def missing(model_id):
        raise SetupError("no weights")

    monkeypatch.setattr("structmem.local.model_sha256", missing)
    with pytest.raises(SetupError, match="no weights"):
        studies.demo()
    assert not (project / "runs").exists()


def test_every_notebook_of_the_demo_exists_and_takes_its_parameters():
    from structmem.notebooks import parameters_of, read_notebook

    folder = Path(studies.__file__).parents[1] / "notebooks"
    if not any(folder.glob("*.ipynb")):
        pytest.skip("there are no notebooks yet")
    for name, own in studies.DEMO.items():
        known = parameters_of(read_notebook(folder / f"{name}.ipynb"))
        assert set(own) <= set(known), name


def test_study_checks_counts_asks_runs_and_shows_tables(project):
    questions, lines = [], []
    path, status = studies.study(
        polite, 1, judge=strict, confirm=lambda q: questions.append(q) or True, say=lines.append, folder=project / "out"
    )
    said = "\n".join(lines)
    assert questions == ["Run it?"] and path.parent == project / "out" and path.is_file()
    assert said.index("test/polite answers") < said.index("rows, at most") < said.index("Failure rates")
    assert "flat (A/A)" in said and "Reductions against flat" in said
    assert status == 0 and "none missing" in said


def test_a_study_with_missing_verdicts_says_so_and_ends_with_1(project):
    def moody(entry, response):
        return 9 if entry.failure_type == "sycophancy" else 2

    moody.judge_id = "test/moody"
    lines = []
    path, status = studies.study(polite, 1, judge=moody, confirm=lambda q: True, say=lines.append, folder="out")
    # four structures and the repeated baseline, three answers each
    assert status == 1 and path.is_file() and "15 missing (no_verdict: invalid 15)" in lines[-1]


def test_study_runs_nothing_when_the_answer_is_no(project):
    assert studies.study(polite, 1, judge=strict, confirm=lambda q: False, say=lambda line: None) == (None, 2)
    assert not (project / "data" / "results").exists() and studies.stored_calls() == 0


def test_a_model_joins_an_old_results_folder(project):
    def other(messages):
        return "Nor do I."

    other.model_id = "test/other"
    for model in (polite, other):
        lines = []
        studies.study(model, 1, judge=strict, confirm=lambda q: True, say=lines.append, folder="out")
    assert "test/polite" in "\n".join(lines) and "all models" in "\n".join(lines)


def test_a_model_that_does_not_answer_stops_the_study_first(project):
    def broken(messages):
        raise TimeoutError("no route")

    broken.model_id = "test/broken"
    with pytest.raises(SetupError, match="test/broken did not answer"):
        studies.study(broken, 1, judge=strict, confirm=lambda q: True, say=lambda line: None)


def test_a_budget_without_a_price_is_refused_before_any_call(project):
    asked = []

    def counted(messages):
        asked.append(messages)
        return "An answer."

    counted.model_id = "test/counted"
    with pytest.raises(InputError, match="price of a model is not known"):
        studies.study(counted, 1, judge=strict, budget_usd=1.0, confirm=lambda q: True, say=lambda line: None)
    assert len(asked) == 1  # the connection check


def test_a_run_of_other_settings_in_the_same_folder_is_kept_and_shown_alone(project):
    lines = []
    for tokens in (64, 32):
        studies.study(
            polite, 1, judge=strict, max_tokens=tokens, confirm=lambda q: True, say=lines.append, folder="out"
        )
    assert len(list((project / "out").glob("*.parquet"))) == 2
    assert any("Only this run is shown" in line for line in lines)
