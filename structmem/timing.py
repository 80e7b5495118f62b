"""Wall time of sorting: to lay out 10, 100 and 1,000 memories and to add one, recorded or measured anew."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from . import embedders
from .additions import add_memory
from .data import load_entries
from .errors import InputError
from .paths import recorded
from .structures import structure

STRUCTURES = ("fixed", "dynamic", "tree")
SIZES = (10, 100, 1000)
RECORDED = "wall_times.csv"


def wall_times(
    measure: bool = False,
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 20,
    latency_s: float = 0.2,
    machine: str = "not said",
) -> pd.DataFrame:
    """Seconds to lay out a memory set and to add one memory to it.

    Parameters
    ----------
    measure : bool
        False: the times that were recorded (``benchmarks/structuring.py`` on some machine). True: measure on this one.
    sizes : sequence of int
        Memories in a set: the first different texts of PersistBench.
    repeats : int
        Measurements behind each quantile.
    latency_s : float
        Seconds that the simulated model takes for one call, however long; several calls go out at once.
    machine : str
        What else it was doing, in a word: kept with the times.

    Returns
    -------
    DataFrame
        One row per structurer × ``structure`` × ``n_memories`` × ``task`` ('sort the set', 'add one'): ``p50_s``,
        ``p95_s`` (quantiles of ``repeats`` measurements; of few, the second is near their maximum), ``cores``,
        ``python``, ``machine``. The embedding structurer reads every text anew when it sorts; when it adds one, the
        vectors of the others are in memory. The model is *simulated*: a function that waits ``latency_s`` and replies
        at once with the first domain, so these times are ours and the waiting, and no model's.

    Raises
    ------
    InputError
        If a size or the repeats are no whole numbers of at least 1.
    """
    if not measure:
        return pd.read_csv(recorded() / RECORDED, dtype={"python": str})
    for value in (*sizes, repeats):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"sizes and repeats must be whole numbers of at least 1, got {value!r}.")
    texts = list(dict.fromkeys(memory.text for entry in load_entries() for memory in entry.memories))
    if max(sizes) >= len(texts):
        raise InputError(f"sizes must be below {len(texts)}, the number of different memories, got {max(sizes)}.")
    structure(texts[:1], "dynamic")  # the embedder is loaded once per process, and that is not sorting
    rows = []
    simulated = {"structurer": "simulated/model", "ask": _waiting(latency_s)}
    for who, how in (("embedding", {}), (f"simulated, {latency_s:g} s a call", simulated)):
        for name in STRUCTURES:
            for n in sizes:
                node = structure(texts[:n], name, **how)
                for task, work in (
                    ("sort the set", lambda n=n, name=name, how=how: structure(texts[:n], name, **how)),
                    ("add one", lambda n=n, node=node, how=how: add_memory(node, texts[n], **how)),
                ):
                    forget = embedders.KNOWN.clear if task == "sort the set" else _forget(texts[n])
                    taken = [_seconds(work, forget) for _ in range(repeats)]
                    p50, p95 = np.quantile(taken, [0.5, 0.95])
                    rows.append((who, name, n, task, repeats, float(p50), float(p95)))
    table = pd.DataFrame(rows, columns=["structurer", "structure", "n_memories", "task", "repeats", "p50_s", "p95_s"])
    python = ".".join(platform.python_version_tuple()[:2])
    return table.assign(cores=os.cpu_count(), python=python, machine=machine)


def record_wall_times(path: str | Path, table: pd.DataFrame) -> None:
    """Write measured times as CSV, three significant digits, without anything that names the machine."""
    table.to_csv(path, index=False, float_format="%.3g", lineterminator="\n")


def _forget(text: str) -> Callable:
    return lambda: embedders.KNOWN.pop(text, None)


def _seconds(work: Callable, before: Callable) -> float:
    before()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _waiting(latency_s: float) -> Callable:
    """A model that waits, then puts every memory into the first domain and proposes two leaves for it."""

    async def ask(messages, *, role, params, **_):
        await asyncio.sleep(latency_s)
        if role == "proposer":
            return json.dumps({"domains": {"health": ["one", "two"]}})
        shape = params["response_format"]["json_schema"]["schema"]
        menus = shape["properties"]["assignments"]["properties"]
        return json.dumps({"assignments": dict.fromkeys(menus, "health")})

    return ask
