"""Sweeps on a Dask cluster: files and calls come back, a lost worker loses its own cell only, versions must agree."""

from __future__ import annotations

import stat

import pytest
from test_sweeps import notebook, written

from structmem import cluster, sweeps
from structmem.errors import InputError, SetupError
from structmem.store import Store
from structmem.sweep_running import run_sweep
from structmem.sweeps import load_sweep

pytest.importorskip("papermill", reason="the notebooks extra is not installed")
distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")

PARAMETERS = """
number: int = 0
mode: str = "call"
store: str = ""
figures: str = "figures"
"""
EXAMPLE = """
from structmem.calls import Call, Request, request_key
def example(number):
    request = Request("acme/m", ({"role": "user", "content": f"question {number}"},), "answer")
    return Call(request_key(request), "ok", text="yes", model="acme/m", called_at="2026-01-01T00:00:00+00:00"), request
"""
made: dict = {}
exec(EXAMPLE, made)  # here and in the notebook
example = made["example"]
DO = """
import os
from pathlib import Path
if mode == "kill":  # the worker: it started the process that started this kernel
    lines = Path(f"/proc/{os.getppid()}/status").read_text().splitlines()
    os.kill(int(next(line for line in lines if line.startswith("PPid")).split()[1]), 9)
from structmem.paths import default_store
from structmem.store import Store
with Store(default_store()) as calls:
    print("known", calls.get(example(0)[0].key) is not None)
    calls.put(*example(number))
Path(figures).mkdir()
Path(figures, "one.txt").write_text(str(number))
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One sweep on two workers: a cell that makes a call, and one that kills its worker."""
    folder = tmp_path_factory.mktemp("cluster")
    notebook(folder / "book.ipynb", PARAMETERS, EXAMPLE, DO)
    with Store(folder / "main.sqlite") as store:
        store.put(*example(0))
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("STRUCTMEM_STORE", str(folder / "main.sqlite"))
        sweep = load_sweep(written(folder, cells=[{"number": 1}, {"mode": "kill"}]))
        how = {
            "threads_per_worker": 1,
            "dashboard_address": "127.0.0.1:0",
            "host": "127.0.0.1",
            "local_directory": str(folder),
        }
        with distributed.LocalCluster(n_workers=2, processes=True, silence_logs=50, **how) as local:
            address = local.scheduler_address
            with pytest.MonkeyPatch.context() as other:
                other.setattr(cluster, "__version__", "99")
                other.setattr(sweeps, "__version__", "99")
                sweeps.identity.cache_clear()
                with pytest.raises(SetupError) as refused:
                    run_sweep(sweep, sweep.cells, {}, scheduler=address, say=said.append)
            sweeps.identity.cache_clear()
            assert said == []
            outcomes: dict = {}
            status = run_sweep(
                sweep, sweep.cells, outcomes, scheduler=address, worker_store=str(folder / "calls"), say=said.append,
                warn=said.append,
            )  # fmt: skip
    return folder, sweep, status, outcomes, said, str(refused.value)


def test_notebooks_and_figures_come_back(swept):
    _, sweep, _, outcomes, _, _ = swept
    cell = sweep.cells[0]
    assert outcomes[cell.name]["status"] == "finished", outcomes
    assert (cell.folder / "figures" / "one.txt").read_text() == "1"
    executed = sweep.executed(cell).read_text()
    assert f'figures = \\"{cell.told}/figures\\"' in executed and "known True" in executed
    assert {path.name for path in cell.folder.iterdir()} == {"book.ipynb", "figures", "cell.json"}
    assert {outcomes[cell.name]["where"] for cell in sweep.cells} == {"0", "1"}


def test_a_lost_worker_fails_its_cell_and_says_where_its_calls_are(swept):
    folder, sweep, status, outcomes, said, _ = swept
    found = outcomes[sweep.cells[1].name]
    assert status == 1 and (found["status"], found["exception"]) == ("failed", "WorkerLost")
    (warned,) = [line for line in said if "were not brought back" in line]
    (left,) = [path for path in (folder / "calls").glob("*.sqlite") if str(path) in warned]
    assert f"worker {found['where']} " in warned and left.name.startswith(f"structmem-{found['where']}-")


def test_calls_of_the_other_worker_are_brought_back_and_nothing_else_is_left(swept):
    folder, _, _, _, said, _ = swept
    keys = {n: example(n)[0].key for n in (0, 1)}
    with Store(folder / "main.sqlite") as store:
        assert all(store.get(key) for key in keys.values())
    assert [line for line in said if line.startswith("Calls") and line.endswith("1 new")]
    held = []
    for path in (folder / "calls").glob("structmem-*.sqlite"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with Store(path) as store:
            held.append({n for n, key in keys.items() if store.get(key)})
    assert sorted(held, key=len) == [{0}, {0, 1}]
    assert not [path for path in (*folder.iterdir(), *(folder / "calls").iterdir()) if "sent" in path.name]
    assert not list(folder.glob(".*.sqlite")) + list((folder / "calls").glob(".*.sqlite"))


def test_another_version_on_a_worker_is_refused(swept):
    assert "install the same on both" in swept[-1] and "and here is 99" in swept[-1]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"parameters": {"figures": "elsewhere"}}, "on a cluster leave 'figures' out"),
        ({"parameters": {"store": "mine.sqlite"}}, "on a cluster leave 'store' empty, or 'recorded'"),
    ],
)
def test_what_would_not_come_back_is_refused(tmp_path, monkeypatch, keys, says):
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path / "book.ipynb", PARAMETERS, EXAMPLE, DO)
    sweep = load_sweep(written(tmp_path, **keys))
    with pytest.raises(InputError, match=says):
        run_sweep(sweep, sweep.cells, {}, scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("name", ["../escaped", "{absolute}/escaped", "figures/../../escaped"])
def test_no_file_of_a_worker_lands_outside_its_cell(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path / "book.ipynb", PARAMETERS, EXAMPLE, DO)
    (cell,) = load_sweep(written(tmp_path)).cells

    class Future:
        def result(self):
            return {"status": "finished"}, {name: b"x", "figures/fine.txt": b"y"}

    name = name.format(absolute=tmp_path)
    assert cluster._came_back(cell, {"aside": []}, Future()) == {"status": "finished"}
    assert not list(tmp_path.rglob("escaped"))
    assert (cell.folder / "figures" / "fine.txt").read_bytes() == b"y"


def test_what_an_interrupted_transfer_left_is_no_part_of_the_next(tmp_path):
    copy = str(tmp_path / "store.sent")
    cluster.add_part(copy, 0, b"of an earlier one")
    for place, part in ((0, b"first"), (5, b"second")):
        cluster.add_part(copy, place, part)
    assert (tmp_path / "store.sent").read_bytes() == b"firstsecond"


def test_a_scheduler_that_is_gone_is_a_sentence_and_the_stores_are_named(tmp_path):
    class Lost:
        def scheduler_info(self, n_workers):
            return {}  # as a client says it

    with pytest.raises(SetupError, match="scheduler is gone"):
        cluster._workers(Lost())
    said: list[str] = []
    cluster._bring_stores(
        Lost(), {"tcp://a:1": "a.sqlite"}, {"tcp://a:1": "a"}, tmp_path / "s", said.append, said.append
    )
    assert "worker a were not brought back" in said[0] and "they are in a.sqlite" in said[0]


def test_a_worker_that_is_gone_is_not_waited_for(monkeypatch):
    class Gone:
        def submit(self, *_, **__):
            return self

        def result(self, timeout):
            raise TimeoutError

        def done(self):
            return False

        def cancel(self):
            self.cancelled = True

        def scheduler_info(self, n_workers):
            return {"workers": {"tcp://other:1": {"name": "other"}}}

    client = Gone()
    with pytest.raises(SetupError, match="tcp://gone:1 is gone"):
        cluster._on(client, "tcp://gone:1", print)
    assert client.cancelled
