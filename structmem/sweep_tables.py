"""What became of a sweep: each cell's outcome on disk, the table of cells, and one results table out of theirs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import pandas as pd

from .auditfiles import safe
from .calls import canonical
from .errors import InputError
from .missing import completeness, in_words
from .results import merge_results, read_results, write_results
from .sweeps import Cell, Sweep, file_digest, write_whole

_FACTS = ("status", "exception", "reason", "rows", "rows_scored", "missing", "seconds", "where")


def settle(sweep: Sweep, cell: Cell, outcome: Mapping) -> dict:
    """Look at what a cell left behind, keep that beside it as ``cell.json``, and return it.

    A finished cell without its results table has failed; one in which rows are missing that could be scored is
    ``incomplete``, and runs again the next time.
    """
    found = {"digest": cell.digest, **outcome}
    if found["status"] == "finished" and cell.results is not None:
        try:
            found |= _counted(cell)
        except InputError as error:
            found |= {"status": "failed", "exception": "InputError", "reason": str(error).splitlines()[0][:300]}
    for left in cell.folder.glob(f"{sweep.executed(cell).stem}.running-*.ipynb"):  # its process was killed
        left.replace(unfinished(sweep, cell))
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    write_whole(cell.record, text.encode())
    if found["status"] in ("finished", "incomplete"):
        unfinished(sweep, cell).unlink(missing_ok=True)  # of an earlier run
    return found


def unfinished(sweep: Sweep, cell: Cell) -> Path:
    """What is left of a cell whose run failed."""
    copy = sweep.executed(cell)
    return copy.with_name(f"{copy.stem}.unfinished.ipynb")


def _counted(cell: Cell) -> dict:
    complete = completeness(read_results(cell.results))
    return {
        "status": "incomplete" if complete.n_missing else "finished",
        "rows": complete.n_asked,
        "rows_scored": complete.n_scored,
        "missing": in_words(complete.missing),
        "results_sha256": file_digest(str(cell.results)),
    }


def sweep_table(sweep: Sweep, outcomes: Mapping[str, Mapping]) -> pd.DataFrame:
    """One row per cell, in the sweep's order.

    Columns: ``cell``; each parameter that varies; ``status`` (``finished``, ``incomplete``, ``failed``, ``stopped``,
    ``changed`` where files of a finished cell are no longer what they were, ``waiting``); ``exception`` and ``reason``
    (its first line) of a failure; ``rows``, ``rows_scored`` and ``missing`` of its results; ``seconds``; ``where`` it
    ran; ``notebook``, the executed copy; ``results``.
    """
    rows = []
    for cell in sweep.cells:
        found = outcomes.get(cell.name) or {"status": "waiting"}
        whole = found["status"] in ("finished", "incomplete")
        copy = sweep.executed(cell) if whole else unfinished(sweep, cell)
        varied = {name: v if isinstance(v, (int, float, str)) else canonical(v) for name, v in cell.varied.items()}
        row = {"cell": cell.name, **{f"{n}" if n not in _FACTS else f"{n}_": v for n, v in varied.items()}}
        row |= {name: found.get(name) for name in _FACTS}
        row |= {"notebook": str(copy.relative_to(sweep.output)) if copy.exists() else None}
        results = cell.results if cell.results and cell.results.exists() else None
        rows.append(row | {"results": str(results and os.path.relpath(results, sweep.output) or "") or None})
    return pd.DataFrame(rows).astype({"rows": "Int64", "rows_scored": "Int64", "seconds": "float64"})


def write_table(sweep: Sweep, outcomes: Mapping[str, Mapping]) -> Path:
    """Write `sweep_table` as ``sweep.csv`` in the output folder; texts that a spreadsheet would run are quoted."""
    table = sweep_table(sweep, outcomes)
    for name in table.select_dtypes(["object", "str"]):
        table[name] = table[name].map(lambda value: safe(value) if isinstance(value, str) else value)
    path = sweep.output / "sweep.csv"
    write_whole(path, table.to_csv(index=False, lineterminator="\n").encode())
    return path


def merged_results(sweep: Sweep, outcomes: Mapping[str, Mapping]) -> tuple[list[Path], str]:
    """One results file, ``results.parquet``, out of those of the finished and incomplete cells.

    The columns of the table tell the cells apart. Where they do not (a temperature, say, is no part of the row key, or
    two workers asked a shared arm anew), the cells are joined by the values of one parameter, one file for each.

    Returns
    -------
    (files, note)
        What was written, and what stands in the way of one file; empty: nothing.
    """
    whole = {name for name, found in outcomes.items() if found["status"] in ("finished", "incomplete")}
    done = [cell for cell in sweep.cells if cell.name in whole and cell.results]
    for old in sweep.output.glob("results*.parquet"):  # of cells that the sweep may no longer have
        if not re.fullmatch(r"results(-\w+-\d+)?\.parquet", old.name):
            continue  # a copy that someone made
        beside = old.with_name(f"{old.name}.manifest.json")
        if beside.exists() and '"sweep_cells"' in beside.read_text(encoding="utf-8"):
            old.unlink()
            beside.unlink()
        elif old.name == "results.parquet":
            return [], f"{old} is not from this sweep and was left as it is; the results stay a file per cell."
    if not done:
        return [], ""
    facts = {"sweep_cells": {cell.name: cell.given for cell in done}}
    tables = {cell.name: read_results(cell.results) for cell in done}
    try:
        return [write_results(_joined([*tables.values()]), sweep.output / "results.parquet", **facts)], ""
    except InputError as error:
        why = str(error).splitlines()[0]
    for name in done[0].varied:

        def value(cell: Cell, name: str = name) -> str:
            return canonical(cell.varied[name])

        groups = [list(cells) for _, cells in groupby(sorted(done, key=value), value)]
        try:
            joined = [_joined([tables[cell.name] for cell in cells]) for cells in groups]
        except InputError:
            continue
        files = [sweep.output / f"results-{name}-{number}.parquet" for number in range(len(groups))]
        for file, table, cells in zip(files, joined, groups, strict=True):
            write_results(table, file, sweep_cells={cell.name: cell.given for cell in cells})
        return files, f"The row key does not tell all cells apart, so there is one file per {name}: {why}"
    return [], f"The results were left as they are, a file per cell: {why}"


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    while len(tables) > 1:  # in pairs, so that no row is checked more often than the number of cells has binary digits
        pairs = [tables[place : place + 2] for place in range(0, len(tables), 2)]
        tables = [merge_results(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return tables[0]
