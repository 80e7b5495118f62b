"""Sweeps: the grid, what is refused before anything runs, what is finished, processes that fail, tables and merging."""

from __future__ import annotations

import json
import signal
import stat
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from test_results import table

from structmem import cli, notebooks, sweep_jobs, sweeps
from structmem.errors import InputError
from structmem.notebooks import NotebookError, run_notebook
from structmem.results import read_results, write_results
from structmem.sweep_running import _alone, run_sweep
from structmem.sweep_tables import merged_results, settle, sweep_table, write_table
from structmem.sweeps import load_sweep, recorded_outcome

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")

PARAMETERS = """
x: int = 0  # a number
mode: str = "fine"
names: list = ["a"]
source: str = "examples"  # or a file
store: str = "recorded"
results: str = ""
figures: str = "figures"
"""
DO = """
import os
if mode == "kill":
    os.kill(os.getppid(), 9)  # the process that runs this notebook
"""
COPY = """
import shutil
def save_results(source, results):  # without pandas, whose import takes most of a small cell's time
    shutil.copy(source, results)
    shutil.copy(f"{source}.manifest.json", f"{results}.manifest.json")
save_results(source, results)
"""
SAVE = """
from structmem.results import read_results, save_results
save_results(read_results(source), results)
"""


def notebook(path: Path, *cells: str) -> Path:
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    book.cells = [nbformat.v4.new_code_cell(text) for text in cells]
    book.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(book, path)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("structmem.results.manifest", lambda df: {"rows": len(df)})  # the rest takes git, and seconds
    notebook(tmp_path / "book.ipynb", PARAMETERS, DO, SAVE)
    return tmp_path


def written(folder: Path, **keys) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(json.dumps({"notebook": "book.ipynb", "output": "out"} | keys))  # JSON is YAML
    return path


def sweep_of(folder: Path, **keys):
    return load_sweep(written(folder, **keys))


# -- the grid ---------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    some.lists(some.integers(0, 9), min_size=1, max_size=4, unique=True),
    some.lists(some.sampled_from(["fine", "raise", "a/b", "ü"]), min_size=1, max_size=3, unique=True),
    some.integers(0, 9),
)
def test_every_combination_is_a_cell_once(tmp_path_factory, xs, modes, out):
    folder = tmp_path_factory.getbasetemp()
    if not (folder / "book.ipynb").exists():
        notebook(folder / "book.ipynb", PARAMETERS, DO)
    expected = [{"x": x, "mode": mode} for x in xs for mode in modes if x != out]
    keys = {"grid": {"x": xs, "mode": modes}} | ({"exclude": [{"x": out}]} if out in xs else {})
    if not expected:
        with pytest.raises(InputError, match="every cell is excluded"):
            sweep_of(folder, **keys)
        return
    found = sweep_of(folder, **keys).cells
    assert [cell.given for cell in found] == expected
    assert len({cell.name for cell in found}) == len({cell.digest for cell in found}) == len(expected)
    assert all("/" not in cell.name and cell.folder.name == cell.name for cell in found)


def test_fixed_parameters_and_listed_cells(here):
    found = sweep_of(here, parameters={"x": 3}, grid={"names": [["a"], ["b"]]}, cells=[{"mode": "raise", "x": 4}])
    assert [cell.given for cell in found.cells] == [
        {"x": 3, "names": ["a"]}, {"x": 3, "names": ["b"]}, {"x": 4, "mode": "raise"},
    ]  # fmt: skip
    assert set(found.cells[0].varied) == {"x", "mode", "names"}
    assert [cell.given for cell in sweep_of(here).cells] == [{}]
    assert [cell.given for cell in sweep_of(here, cells=[{"x": "7"}]).cells] == [
        {"x": 7}
    ]  # text as on the command line


def test_each_cell_writes_into_its_own_folder(here):
    for cell in sweep_of(here, grid={"x": [1, 2]}).cells:
        told = f"out/cells/{cell.name}"
        assert cell.places == {"results": f"{told}/results.parquet", "figures": f"{told}/figures"}
        assert cell.results == here / told / "results.parquet"
    notebook(here / "book.ipynb", PARAMETERS, "print(results)")  # a file it reads, perhaps
    assert sweep_of(here).cells[0].places.keys() == {"figures"} and sweep_of(here).cells[0].results is None


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"grid": {"xx": [1]}}, "grid: there is no parameter 'xx'.*did you mean 'x'"),
        ({"parameters": {"x": "five"}}, "parameters: parameter x must be int, got 'five'"),
        ({"grid": {"x": [1, 2.5]}}, "grid: parameter x must be int, got 2.5"),
        ({"grid": {"x": 3}}, "'grid.x' is 3; expected a list"),
        ({"grid": {"x": []}}, "'grid.x' is .*; expected a list with at least one item"),
        ({"grid": {"names": ["a", "b"]}}, r"a list of lists, such as \[\[a\], \[b\]\]"),
        ({"grid": {"x": [1, 1]}}, "two cells have the same parameters"),
        ({"grid": {"x": [0]}, "cells": [{}]}, "two cells have the same parameters"),  # 0 is the default
        ({"grid": {"x": [1]}, "parameters": {"x": 1}}, "'x' is in 'parameters' and in 'grid'"),
        ({"grid": {"x": [1, 2]}, "parameters": {"results": "a.csv"}}, "would both write their results to a.csv"),
        ({"grid": {"x": [1, 2]}, "parameters": {"figures": "f"}}, "would both write their figures to f"),
        ({"exclude": [{"x": 5}]}, r"exclude\[1\] {'x': 5} fits no cell"),
        ({"exclude": [{"x": 0}]}, "every cell is excluded"),
        ({"cells": [{"mode": "sk-verysecretkey123"}]}, "a parameter holds a key"),
        ({"jobs": 2}, "unknown key 'jobs'; expected some of"),
        ({"notebook": "nothing"}, "notebook must be one of"),
        ({"grid": {"x": list(range(21)), "mode": list("abcde")}}, "105 cells; expected at most 99"),
        ({"cells": [{"x": n} for n in range(100)]}, "100 cells; expected at most 99"),
        ({"parameters": {"mode": False}}, "must be str, got False.*put text in quotes"),
        ({"output": "~nobody-of-that-name/x"}, "'output' is .*; expected a folder"),
    ],
)
def test_what_is_refused_before_anything_runs(here, monkeypatch, keys, says):
    monkeypatch.setattr(sweeps, "MOST_CELLS", 99)
    with pytest.raises(InputError, match=says):
        sweep_of(here, **keys)
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{names: [2026-01-01]}", "is no text, number, truth value or null"),
        ("{names: [.nan]}", "nan is no text"),
        ("{names: &a [*a]}", "at most 20 levels deep"),
        (
            "{mode: [&a0 [x]" + "".join(f", &a{n} [" + f"*a{n - 1}, " * 10 + "]" for n in range(1, 9)) + "]}",
            "most 999 v",
        ),
        ("{1: 2}", "the name 1 is no text"),
        ("{x: 1, x: 2}", "line 3: key 'x' is there twice"),
    ],
)
def test_what_yaml_makes_of_a_text_is_refused_where_no_cell_can_hold_it(here, monkeypatch, text, says):
    monkeypatch.setattr(sweeps, "MOST_VALUES", 999)
    (here / "sweep.yaml").write_text(f"notebook: book.ipynb\noutput: out\nparameters: {text}\n")
    with pytest.raises(InputError, match=says):
        load_sweep(here / "sweep.yaml")


# -- what is finished -------------------------------------------------------------------------------------------------


def finished(sweep, cell, outcome="finished") -> dict:
    """As if the cell had run."""
    copy = sweep.executed(cell)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(sweep.text)
    return settle(sweep, cell, {"status": outcome, "exception": "", "reason": "", "seconds": 1.0})


def test_a_digest_is_of_notebook_parameters_inputs_and_version(here, monkeypatch):
    data = here / "own.jsonl"
    data.write_text("one")
    keys = {"parameters": {"source": "own.jsonl", "mode": "fine"}}
    before = sweep_of(here, **keys).cells[0]
    assert sweep_of(here, **keys, grid={"x": [0]}).cells[0].digest != before.digest  # said is not left to the default
    book = nbformat.read(here / "book.ipynb", 4)
    book.cells[1].outputs = [nbformat.v4.new_output("stream", text="ran")]
    nbformat.write(book, here / "book.ipynb")
    assert sweep_of(here, **keys).cells[0].digest == before.digest
    data.write_text("two")
    assert sweep_of(here, **keys).cells[0].digest != before.digest
    data.write_text("one")
    assert sweep_of(here, **keys).cells[0].digest == before.digest
    monkeypatch.setattr(sweeps, "identity", lambda: "another prompt")
    assert sweep_of(here, **keys).cells[0].digest != before.digest
    monkeypatch.undo()
    monkeypatch.chdir(here)
    notebook(here / "book.ipynb", PARAMETERS, DO, SAVE + "1")
    assert sweep_of(here, **keys).cells[0].digest != before.digest


def test_files_named_by_a_default_a_folder_or_a_pattern_count(here):
    (here / "data").mkdir()
    (here / "data" / "a.csv").write_text("1")
    notebook(here / "book.ipynb", 'one: str = "data"\ntwo: str = "data/*.csv"\nstore: str = "data/a.csv"')
    before = sweep_of(here).cells[0]
    assert before.inputs.keys() == {"data", "data/*.csv"}  # a store changes with every run
    (here / "data" / "b.csv").write_text("2")
    assert sweep_of(here).cells[0].digest != before.digest


def test_a_cell_stays_where_it_is_when_the_grid_grows(here):
    sweep = sweep_of(here, parameters={"x": 3})
    write_results(table({}), sweep.cells[0].results)
    finished(sweep, sweep.cells[0])
    larger = sweep_of(here, grid={"x": [3, 4]})
    assert [recorded_outcome(larger, cell) is not None for cell in larger.cells] == [True, False]


def test_a_cell_is_finished_while_its_files_are_as_they_were(here):
    sweep = sweep_of(here)
    (cell,) = sweep.cells
    assert recorded_outcome(sweep, cell) is None
    write_results(table({}, {}), cell.results)
    assert finished(sweep, cell)["rows"] == 2
    assert recorded_outcome(sweep, cell)["status"] == "finished"
    write_results(table({}), cell.results)
    assert recorded_outcome(sweep, cell)["status"] == "changed"
    finished(sweep, cell)
    copy = nbformat.read(sweep.executed(cell), 4)
    copy.cells[1].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    nbformat.write(copy, sweep.executed(cell))
    assert recorded_outcome(sweep, cell)["status"] == "changed"
    cell.record.write_text("{")
    assert recorded_outcome(sweep, cell) is None


def test_missing_results_fail_and_missing_rows_are_incomplete(here):
    sweep = sweep_of(here)
    (cell,) = sweep.cells
    found = finished(sweep, cell)
    assert (found["status"], found["exception"]) == ("failed", "InputError") and "nothing at" in found["reason"]
    lost = {"status": "no_verdict", "score": None, "status_reason": "timeout"}
    write_results(table({}, {}, lost), cell.results)
    found = finished(sweep, cell)
    assert found["status"] == "incomplete" and found["missing"] == "no_verdict: timeout 1"
    assert (found["rows"], found["rows_scored"]) == (3, 2)


def test_the_table_of_cells_is_private_and_runs_no_formula(here):
    sweep = sweep_of(here, grid={"mode": ["=1+1", "fine"]})
    outcomes = {sweep.cells[0].name: finished(sweep, sweep.cells[0], "failed") | {"reason": "@cmd"}}
    path = write_table(sweep, outcomes)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = pd.read_csv(path)
    assert list(read["status"]) == ["failed", "waiting"]
    assert list(read["mode"]) == ["'=1+1", "fine"] and read["reason"][0] == "'@cmd"
    assert list(sweep_table(sweep, outcomes)["mode"]) == ["=1+1", "fine"]


# -- merging ----------------------------------------------------------------------------------------------------------


def merged(here, tables, **keys):
    sweep = sweep_of(here, **keys)
    for cell, rows in zip(sweep.cells, tables, strict=True):
        write_results(rows, cell.results)
    return merged_results(sweep, {cell.name: {"status": "finished"} for cell in sweep.cells})


def test_results_of_all_cells_become_one_table(here):
    structures = ("fixed", "dynamic")
    tables = [table({}, {"structure": name}) for name in structures]  # each with the same flat row
    (here / "out").mkdir()
    for name in ("results-kept.parquet", "results-kept.parquet.manifest.json"):  # a copy of an earlier one
        (here / "out" / name).write_text('{"sweep_cells": {}}')
    files, note = merged(here, tables, grid={"x": [1, 2]})
    assert (here / "out" / "results-kept.parquet").exists()
    assert [file.name for file in files] == ["results.parquet"] and note == ""
    assert sorted(read_results(files[0])["structure"]) == ["dynamic", "fixed", "flat"]
    facts = json.loads(files[0].with_name("results.parquet.manifest.json").read_text())
    assert [given["x"] for given in facts["sweep_cells"].values()] == [1, 2]


def test_cells_that_the_row_key_does_not_tell_apart_stay_apart(here):
    pairs = [(0.0, "flat"), (0.0, "fixed"), (1.0, "flat")]  # a temperature is no part of the key
    tables = [table({"temperature": t, "structure": name, "entry_id": "e", "score": int(t) + 1}) for t, name in pairs]
    files, note = merged(here, tables, cells=[{"x": int(t), "mode": name} for t, name in pairs])
    assert [file.name for file in files] == ["results-x-0.parquet", "results-x-1.parquet"]
    assert "one file per x" in note and "share their key" in note
    assert [set(read_results(file)["temperature"]) for file in files] == [{0.0}, {1.0}]
    assert merged_results(sweep_of(here, parameters={"x": 8}), {}) == ([], "")  # the files of an earlier grid go
    assert not list((here / "out").glob("results*"))


def test_a_results_file_of_someone_else_is_left_alone(here):
    write_results(table({}, {}), here / "out" / "results.parquet")
    files, note = merged(here, [table({})])
    assert files == [] and "is not from this sweep" in note
    assert len(read_results(here / "out" / "results.parquet")) == 2


# -- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "tries"),
    [
        ("Kernel died before replying to kernel_info", 4),
        ("Kernel didn't respond in 120 seconds", 4),
        ("Kernel died", 1),
    ],
)
def test_a_kernel_is_started_again_only_while_no_cell_has_run(here, monkeypatch, said, tries):
    papermill, calls = pytest.importorskip("papermill"), []

    def execute(*_, **__):
        calls.append(1)
        raise RuntimeError(said)

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    monkeypatch.setattr(notebooks, "START_AGAIN_S", (0, 0, 0))
    with pytest.raises(NotebookError, match=f"book.ipynb: {said}") as caught:
        run_notebook(here / "book.ipynb", {})
    assert len(calls) == tries and caught.value.exception == "RuntimeError"


# -- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One sweep on two processes: a cell with results, and one whose process is killed."""
    folder = tmp_path_factory.mktemp("a sweep é")
    notebook(folder / "book.ipynb", PARAMETERS, DO, COPY)
    write_results(table({}, {}), folder / "made.parquet")
    cells = [{"source": "made.parquet"}, {"mode": "kill"}]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        file = written(folder, cells=cells)
        said: list[str] = []
        sweep = load_sweep(file)
        status = run_sweep(sweep, sweep.cells, {}, jobs=2, say=said.append, warn=said.append)
    return folder, file, sweep, status, said


def test_a_crash_takes_no_other_cell_with_it(swept):
    folder, _, sweep, status, said = swept
    assert status == 1
    read = pd.read_csv(folder / "out" / "sweep.csv")
    assert list(read["status"]) == ["finished", "failed"]
    assert read["exception"][1] == "ProcessDied" and read["reason"][1].startswith("signal 9")
    assert read["notebook"][1].endswith("book.unfinished.ipynb") and (folder / "out" / read["notebook"][1]).exists()
    assert not list(folder.rglob("*.running-*"))
    assert stat.S_IMODE(sweep.executed(sweep.cells[0]).stat().st_mode) == 0o600
    assert read["rows"][0] == 2 and len(read_results(folder / "out" / "results.parquet")) == 2
    assert "Of 2 cells: 1 finished, 1 failed." in said and sum("signal 9" in line for line in said) == 1
    executed = nbformat.read(sweep.executed(sweep.cells[0]), 4)
    assert notebooks.check_run(sweep.cells[0].folder) == [] and executed.cells[1].execution_count


def test_finished_cells_are_skipped_and_failed_ones_run_again(swept, monkeypatch, capsys):
    folder, file, sweep, _, _ = swept
    ran = []

    def pretend(jobs, at_once, done):
        ran.extend(job["cell"] for job in jobs)

    monkeypatch.chdir(folder)
    monkeypatch.setattr("structmem.sweep_running.run_here", pretend)
    assert cli.main(["sweep", str(file), "--dry-run"]) == 0 and ran == []
    out = capsys.readouterr().out
    assert "2 cells, 1 finished, 1 to run" in out and out.count("\n  failed") == 1
    assert f"Output: {folder / 'out'}\nCalls are replayed from the recorded store" in out
    assert cli.main(["sweep", str(file), "--jobs", "2"]) == 1
    assert ran == [sweep.cells[1].name]
    ran.clear()
    cli.main(["sweep", str(file), "--again"])
    assert ran == [cell.name for cell in sweep.cells]


def test_a_cell_that_raises_is_told_without_keys_and_formulas(here, monkeypatch):
    def fails(*_):
        raise NotebookError("told whole", "ValueError", "=1+1 sk-verysecretkey\nmore")

    monkeypatch.setattr(notebooks, "run_notebook", fails)
    monkeypatch.setattr(sweep_jobs, "_stop_with_parent", lambda: None)
    monkeypatch.setattr(sweep_jobs.os, "umask", lambda _: 0)
    sweep = sweep_of(here)
    (cell,) = sweep.cells
    (here / "job.json").write_text(json.dumps(sweep_jobs.job_of(sweep, cell)))
    sweep_jobs._main(str(here))
    outcome = json.loads((here / "outcome.json").read_text())
    assert outcome["status"] == "failed" and outcome["exception"] == "ValueError"
    path = write_table(sweep, {cell.name: settle(sweep, cell, outcome | {"seconds": 0.0})})
    assert pd.read_csv(path)["reason"][0].startswith("'=1+1") and "verysecret" not in path.read_text()


def test_an_interruption_stops_every_notebook(here, monkeypatch):
    done, sleeper = [], here / "sleeper.py"
    sleeper.write_text("import sys; sys.stdin.read()")  # ends when it is told to, as a notebook's process does
    started = sweep_jobs.subprocess.Popen
    monkeypatch.setattr(sweep_jobs, "STAGGER_S", 0)
    monkeypatch.setattr(
        sweep_jobs.subprocess, "Popen", lambda command, **how: started([command[0], str(sleeper)], **how)
    )

    def interrupt():
        while len(sweep_jobs._running) < 2:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background of a shell
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        sweep_jobs.run_here([{"n": n} for n in range(4)], 2, lambda job, outcome: done.append((job["n"], outcome)))
    signal.signal(signal.SIGINT, before)
    assert sorted(n for n, _ in done) == [0, 1] and {outcome["status"] for _, outcome in done} == {"stopped"}
    assert not sweep_jobs._running


def test_two_sweeps_do_not_share_a_folder(here):
    sweep = sweep_of(here)
    with _alone(sweep.output), pytest.raises(InputError, match="another sweep is running"):
        run_sweep(sweep, (), {})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], "--jobs is for this machine"),
        (["--worker-store", "x"], "--worker-store goes with --scheduler"),
        (["--scheduler", "127.0.0.1"], "--scheduler must be like tcp://HOST:8786"),
    ],
)
def test_options_that_do_not_go_together(here, capsys, more, says):
    assert cli.main(["sweep", str(written(here)), *more]) == 2
    assert says in capsys.readouterr().err
