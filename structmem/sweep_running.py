"""Run the cells of a sweep that are not finished, here or on a cluster, and say what became of them."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError
from .sweep_jobs import job_of, run_here
from .sweep_tables import merged_results, settle, unfinished, write_table
from .sweeps import Cell, Sweep

_STATUSES = ("finished", "incomplete", "failed", "stopped", "changed", "waiting")


def run_sweep(
    sweep: Sweep,
    todo: Sequence[Cell],
    outcomes: dict[str, dict],
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    worker_store: str | None = None,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> int:
    """Run cells and write ``sweep.csv`` and the joined results.

    Parameters
    ----------
    sweep : Sweep
    todo : sequence of Cell
        Those to run.
    outcomes : dict of str to dict
        By cell, of earlier runs (see `recorded_outcome`); what happens now is put into it.
    jobs : int
        Notebooks at once on this machine.
    scheduler, worker_store : str, optional
        A Dask scheduler's address, and the folder of each worker's store (see `cluster.run_on_cluster`).
    say, warn : callable
        Take one line each.

    Returns
    -------
    int
        The exit status: 0 if every cell of the sweep is finished, 1 otherwise.
    """
    cells, number, again_at = {cell.name: cell for cell in todo}, 0, 0.0

    def done(job: dict, outcome: dict) -> None:
        nonlocal number, again_at
        number += 1
        cell = cells[job["cell"]]
        found = outcomes[cell.name] = settle(sweep, cell, outcome)
        if (began := time.monotonic()) >= again_at:
            write_table(sweep, outcomes)
            again_at = time.monotonic() + 20 * (time.monotonic() - began)  # thousands of cells: 5 % of the time
        short = f" ({found['exception']})" if found["status"] == "failed" else ""  # the whole of it at the end
        say(f"[{number}/{len(todo)}] {found['status']} in {found['seconds']:.1f} s: {cell.name}{short}")

    with _alone(sweep.output):
        write_table(sweep, outcomes)
        if todo and scheduler:
            from .cluster import run_on_cluster

            run_on_cluster(scheduler, sweep, todo, done, worker_store=worker_store, say=say, warn=warn)
        elif todo:
            run_here([job_of(sweep, cell) for cell in todo], min(jobs, len(todo)), done)
        table = write_table(sweep, outcomes)
        files, note = merged_results(sweep, outcomes)
    statuses = [(outcomes.get(cell.name) or {"status": "waiting"})["status"] for cell in sweep.cells]
    counts = Counter(statuses)
    words = ", ".join(f"{counts[status]} {status}" for status in _STATUSES if counts[status])
    say(f"Of {len(statuses)} cells: {words}.")
    for cell, status in zip(sweep.cells, statuses, strict=True):
        if status in ("failed", "incomplete"):
            copy = sweep.executed(cell) if status == "incomplete" else unfinished(sweep, cell)
            say(f"  {status}: {cell.name}{_why(outcomes[cell.name])}")
            say(f"    {copy if copy.exists() else 'no notebook was kept'}")
    say(f"Table of cells: {table}")
    for file in files:
        say(f"Results: {file}")
    if note:
        warn(note)
    return int(counts["finished"] < len(statuses))


def _why(found: dict) -> str:
    if found["status"] == "failed":
        return f": {found['exception']}: {found['reason']}"
    if found["status"] == "incomplete":
        return f": {found['rows_scored']} of {found['rows']} rows scored, missing: {found['missing']}"
    return ""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two sweeps at once in one folder would run, and pay for, every cell twice."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cells").mkdir(mode=0o700, exist_ok=True)  # executed notebooks may quote memories
        file = open(folder / ".lock", "a")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"output {folder} cannot be written ({reason}); name another folder.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another sweep is running in {folder}, or its notebooks are still stopping; wait for them, or name "
                "another output."
            ) from None
        except OSError as error:
            raise InputError(f"output {folder} cannot be locked ({error.strerror}); name another folder.") from None
        os.set_inheritable(file.fileno(), True)  # to the processes of the notebooks
        yield
