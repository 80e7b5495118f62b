"""The command that runs a notebook over a grid of parameters: sweep."""

from __future__ import annotations

import sys
from pathlib import Path


def add_commands(command) -> None:
    """Add these commands to the command line; `command(name, do, help)` makes a parser."""
    sweep = command("sweep", _sweep, "run a notebook over a grid of parameters")
    sweep.add_argument(
        "file",
        metavar="SWEEP.yaml",
        help="notebook, output (from the project folder, or absolute), parameters, grid, cells, exclude",
    )
    sweep.add_argument("--jobs", type=_jobs, default=1, metavar="N", help="notebooks at once on this machine (1)")
    sweep.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on a Dask cluster you trust, such as tcp://HOST:8786"
    )
    sweep.add_argument("--worker-store", metavar="DIR", help="where each worker keeps its calls (its scratch folder)")
    sweep.add_argument("--dry-run", action="store_true", help="only list the cells and what is finished")
    sweep.add_argument("--again", action="store_true", help="run finished cells too; others run again in any case")


def _jobs(text: str) -> int:
    import argparse

    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 1000, got {text!r}")
    return int(text)


def _sweep(options) -> int:
    from .errors import InputError
    from .sweep_jobs import skip_slow_import
    from .sweeps import load_sweep, recorded_outcome

    if options.scheduler and options.jobs != 1:
        raise InputError("--jobs is for this machine; with --scheduler each worker runs one notebook at a time.")
    if options.worker_store and not options.scheduler:
        raise InputError("--worker-store goes with --scheduler; on this machine all cells share the project's store.")
    skip_slow_import()
    sweep = load_sweep(options.file)
    outcomes = {cell.name: recorded_outcome(sweep, cell) for cell in sweep.cells}
    outcomes = {name: found for name, found in outcomes.items() if found}
    finished = {name for name, found in outcomes.items() if found["status"] == "finished"}
    todo = [cell for cell in sweep.cells if options.again or cell.name not in finished]
    print(f"{sweep.notebook}: {len(sweep.cells)} cells, {len(finished)} finished, {len(todo)} to run.")
    print(f"Output: {sweep.output.absolute()}")
    if sweep.stores == {"recorded"}:
        print("Calls are replayed from the recorded store: no model is asked.")
    if options.dry_run:
        for cell in sweep.cells:
            print(f"  {(outcomes.get(cell.name) or {'status': 'waiting'})['status']:<11}{cell.name}")
        return 0
    from .sweep_running import run_sweep

    def say(line: str) -> None:
        print(line, flush=True)

    store = Path(options.worker_store).as_posix() if options.worker_store else None
    return run_sweep(
        sweep, todo, outcomes, jobs=options.jobs, scheduler=options.scheduler, worker_store=store, say=say,
        warn=lambda line: print(f"warning: {line}", file=sys.stderr),
    )  # fmt: skip
