"""Plan and run a grid: entries → layouts → answers → verdicts → results; the only module that knows the whole chain."""

from __future__ import annotations

import asyncio
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from . import background
from .arms import Arm
from .calls import Call, Request
from .data import Entry
from .echo import ECHO_THRESHOLD, Echo
from .errors import BudgetReached, MissingCall, SetupError, StoreError
from .estimates import Plan, estimate
from .grid import Grid, Item, make_grid
from .judges import Verdict, ajudge, echo_for
from .masking import Masker
from .messages import build_messages
from .progress import Progress
from .rows import Layout, answer_columns, lay_out, readable, table, verdict_columns
from .structures import astructure, spec

if TYPE_CHECKING:
    from .llm import Client

__all__ = ["Plan", "arun", "plan", "run"]

# These concern every row that is still to come; any other error is one row's own.
_STOPS = (BudgetReached, MissingCall, SetupError, StoreError)


def run(
    entries: Iterable[Entry],
    models: Sequence = ("local/smollm2",),
    structures: Sequence[str] = ("flat", "fixed", "dynamic", "tree"),
    *,
    structurers: Sequence = ("embedding",),
    taxonomies: Sequence = ("life11",),
    partition_draws: Sequence[int] = (0,),
    renderers: Sequence[str] = ("markdown",),
    placements: Sequence[str] = ("system",),
    defences: Sequence = ("standard",),
    system_prompt: str | Path = "short",
    generations: int | Mapping | None = None,
    replicates: int = 1,
    aa: bool = True,
    judge: str | Path | Callable = "echo",
    judge_model: object = None,
    model_options: Mapping | None = None,
    judge_options: Mapping | None = None,
    structurer_options: Mapping | None = None,
    temperature: float | None = 1.0,
    top_p: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    reasoning_effort: str | None = None,
    store: object = None,
    offline: bool = False,
    client: Client | None = None,
    budget_usd: float | None = None,
    allow_unpriced: bool = False,
    max_concurrency: int = 8,
    threshold: int | Mapping | None = None,
    echo_threshold: float = ECHO_THRESHOLD,
    progress: bool | None = None,
    allow_repeats_at_zero: bool = False,
) -> pd.DataFrame:
    """Run a grid and return its results.

    Every call goes through the store, so an interrupted run resumes where it was and a finished one makes no call.

    Parameters
    ----------
    entries : iterable of Entry
        See `load_entries`. An entry without a failure type is answered but not judged.
    models : model or sequence of models
        litellm ids, ``local/…``, or Python functions with a ``model_id``.
    structures, renderers, placements, defences : str or sequence of str
        The factors; every combination is an arm. All arms of an entry are called close to each other in time.
    structurers, taxonomies, partition_draws
        Who sorts the memories into which domains, and how many independent times; only where a structure sorts.
        ``rag`` always uses the embedder (``structurer_options={"rag": {"structurer": MODEL}}`` names another), and the
        embedding structurer, which sorts the same way every time, has one draw.
    system_prompt : str or Path
        A name or the path of a template.
    generations : int, dict or None
        Responses per entry: one number, a number per failure type, or the failure type's own.
    replicates : int
        Independent reruns of every arm.
    aa : bool
        Run the flat baseline, listed or not, at least twice (replicates 0 and 1): the A/A arm shows what no change
        looks like.
    judge, judge_model, judge_options
        See `judges.load_judge`; the benchmark's own model is the default for judges that ask one.
    model_options, judge_options, structurer_options : dict
        Address, provider routing, extra body, sampling; recorded without addresses and keys. Options of structures
        (``max_new_domains``, ``threshold``, …) go into `structurer_options`, for all or by structure name.
    temperature, top_p, max_tokens, seed, reasoning_effort
        Of the answers; a row sends seed + generation + 1000 * replicate.
    store, offline, budget_usd, allow_unpriced, max_concurrency
        As in `Client`; `client` brings its own.
    threshold : int, dict or None
        Score from which an entry fails, stamped on the rows; None: the failure type's own.
    echo_threshold : float
        Overlap from which an answer is an echo, in (0, 1].
    progress : bool or None
        One line on standard error; None: only in a terminal. Never when offline.
    allow_repeats_at_zero : bool
        Allow several generations at temperature 0.

    Returns
    -------
    DataFrame
        One row per generation, columns `results.COLUMNS`, in an order that does not depend on how calls came back. When
        the budget ends the run, rows that were not asked are ``no_response`` with reason ``not_asked``, a warning is
        given and ``attrs["stopped"]`` says why.

    Raises
    ------
    InputError
        For any setting that cannot be, before any call.
    MissingCall
        Offline, when the store does not hold a call; it is named.
    SetupError, StoreError
        When a key, a library or the store fails.
    """
    settings = dict(locals())
    client, own, job = _prepare(settings)
    try:
        background.run_sync(job.go())
        return job.frame()
    finally:
        if own:
            client.close()


async def arun(entries: Iterable[Entry], *args, **settings) -> pd.DataFrame:
    """Run a grid from asynchronous code; parameters and result as in `run`."""
    bound = inspect.signature(run).bind(entries, *args, **settings)
    bound.apply_defaults()
    settings = dict(bound.arguments)
    client, own, job = _prepare(settings)
    try:
        await background.on_loop(job.go())
        return job.frame()
    finally:
        if own:
            client.close()


def plan(entries: Iterable[Entry], *args, **settings) -> Plan:
    """Count what `run` with the same parameters would ask for, without any call.

    Returns
    -------
    Plan
        Calls, estimated tokens and cost by role and model; ``.table()`` gives a DataFrame.
    """
    bound = inspect.signature(run).bind(entries, *args, **settings)
    bound.apply_defaults()
    return estimate(make_grid(**{name: bound.arguments[name] for name in _GRID}))


_GRID = tuple(inspect.signature(make_grid).parameters)


def _prepare(settings: Mapping) -> tuple[Client, bool, _Run]:
    """The client, whether it is ours to close, and the run, from the parameters of `run`."""
    grid = make_grid(**{name: settings[name] for name in _GRID})
    client, own = settings["client"], settings["client"] is None
    if own:
        from .llm import Client

        names = ("store", "offline", "budget_usd", "allow_unpriced", "max_concurrency")
        client = Client(**{name: settings[name] for name in names})
    shown = sys.stderr.isatty() if settings["progress"] is None else settings["progress"]
    return client, own, _Run(grid, client, settings["max_concurrency"], bool(shown) and not client.offline)


@dataclass
class _Run:
    """One run: a pool of workers that pull rows in order; layouts and echo measures are made once and shared."""

    grid: Grid
    client: Client
    max_concurrency: int
    progress: bool
    outcomes: list[tuple[Item, dict]] = field(default_factory=list)
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._shared: dict[tuple, asyncio.Task] = {}
        self._line = Progress(len(self.grid)) if self.progress else None
        self._texts = [tuple(memory.text for memory in entry.memories) for entry in self.grid.entries]
        self._mask = Masker().mask

    async def go(self) -> None:
        """Make every row; on the way out nothing of ours is left running."""
        items = self.grid.items()
        # Rows wait for an answer or for a verdict; the client's own limits decide how many calls of each are open.
        count = min(2 * self.max_concurrency, len(self.grid))
        workers = [asyncio.ensure_future(self._work(items)) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            rest = [*workers, *self._shared.values()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            if self._line:
                self._line.end()

    async def _work(self, items: Iterable[Item]) -> None:
        for item in items:
            if self.stopped is not None:
                outcome = {"status": "no_response", "status_reason": "not_asked"}
            else:
                outcome = await self._row(item)
            self.outcomes.append((item, outcome))
            if self._line:
                self._line.step(outcome["status"])

    async def _row(self, item: Item) -> dict:
        """Answer and judge one row; what goes wrong with this row stays in this row."""
        found: dict = {"status": "no_response", "status_reason": "error"}
        try:
            await self._answer(item, found)
        except BudgetReached as error:
            self.stopped = self.stopped or str(error)
            found |= {"status_reason": "not_asked"}
        except _STOPS:
            raise
        except Exception as error:
            found |= {"status_detail": self._short(f"{type(error).__name__}: {error}")}
        return found

    async def _answer(self, item: Item, found: dict) -> None:
        entry, arm = self.grid.entries[item.entry], self.grid.arms[item.arm]
        found |= {"status_reason": "no_structure"}
        layout = await self._layout(item.entry, arm)
        found |= {"status_reason": "error", **layout.columns, "escaped": layout.escaped}
        request = Request(
            self.grid.models[item.model],
            build_messages(
                entry.query, layout.context, system_prompt=self.grid.system_prompt, defence=arm.defence,
                placement=arm.placement, model=self.grid.labels[item.model],
            ),
            "answer",
            self.grid.request_params(item),
            dict(self.grid.model_options),
            generation=item.generation,
            replicate=arm.replicate,
            memories=self._texts[item.entry],
            tags={
                "entry_id": entry.entry_id, "failure_type": entry.failure_type, "structure": arm.structure,
                "structurer": arm.structurer, "generation": item.generation, "replicate": arm.replicate,
            },
        )  # fmt: skip
        call = await self.client.acall(request)
        found |= answer_columns(call)
        if call.status != "ok":
            found |= {"status_reason": call.status_reason or "error", "status_detail": self._short(call.error)}
            return
        # From here on there is an answer, whatever becomes of its verdict.
        found |= {"status": "no_verdict", "status_reason": "not_asked"}
        try:
            verdict = await self._judge(item.entry, call.text or "")
        except _STOPS:
            raise
        except Exception as error:
            verdict = Verdict("no_verdict", "error", detail=f"{type(error).__name__}: {error}")
        found |= verdict_columns(verdict, layout.escaped) | {"status_detail": self._short(verdict.detail)}

    async def _judge(self, e: int, response: str) -> Verdict:
        grid, entry = self.grid, self.grid.entries[e]
        ask, echo = None, None
        if grid.judge.asks_model:
            tags = {"entry_id": entry.entry_id, "failure_type": entry.failure_type}
            ask = self.client.asker(grid.judge_model, dict(grid.judge_options), tags=tags)
        elif grid.judge.name == "echo" and entry.failure_type not in (None, "sycophancy"):
            echo = await self._once(("echo", e), lambda: self._echo(entry))
        return await ajudge(
            entry, response, judge=grid.judge, ask=ask, params=dict(grid.judge_params), echo=echo,
            echo_threshold=grid.echo_threshold,
        )  # fmt: skip

    async def _echo(self, entry: Entry) -> Echo:
        from .embedding import model

        return await echo_for(entry, _Way(self.client, model, {}, {"entry_id": entry.entry_id}, []))

    async def _layout(self, e: int, arm: Arm) -> Layout:
        """The entry's layout in an arm; one per memory set, or per query where the structure uses it."""
        query = self.grid.entries[e].query if spec(arm.structure).uses_query else None
        taxonomy = arm.taxonomy.name if arm.taxonomy else ""
        key = (self._texts[e], query, arm.structure, arm.structurer, arm.options, taxonomy, arm.partition_draw)
        sorted_ = await self._once(("node", key), lambda: self._structure(e, arm, query))
        return await self._once(("layout", key, arm.renderer), lambda: lay_out(*sorted_, arm.renderer))

    async def _structure(self, e: int, arm: Arm, query: str | None) -> tuple:
        entry, calls, ask = self.grid.entries[e], [], None
        if arm.sorter is not None:
            from .embedding import model

            sorter = model if arm.sorter == "embedding" else arm.sorter
            tags = {"entry_id": entry.entry_id, "structure": arm.structure}
            ask = _Way(self.client, sorter, dict(arm.sorter_options or {}), tags, calls)
        node = await astructure(
            entry.memories, arm.structure, query=query, taxonomy=arm.taxonomy or "life11",
            structurer=arm.sorter or "embedding", ask=ask, partition_draw=arm.partition_draw, **arm.given,
        )  # fmt: skip
        return node, calls

    async def _once(self, key: tuple, make: Callable):
        """Make something once, however many rows wait for it; one row's end does not take it from the others."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.ensure_future(make())
        return await asyncio.shield(task)

    def _short(self, text: str | None) -> str | None:
        return readable(self._mask(text)[:300]) if text else None

    def frame(self) -> pd.DataFrame:
        """The results table of the rows made, with its parameters and what stopped the run in `attrs`."""
        df = table(self.grid, self.outcomes)
        df.attrs = {"parameters": self.grid.parameters}
        if self.stopped is not None:
            df.attrs["stopped"] = self.stopped
            left = int((df["status_reason"] == "not_asked").sum())
            warnings.warn(f"stopped with {left} of {len(df)} rows not asked or judged: {self.stopped}", stacklevel=3)
        return df


class _Way:
    """The way to one structurer: its calls are kept, so that rows can name and count them."""

    is_asker = True

    def __init__(self, client: Client, model: object, options: dict, tags: dict, calls: list[Call]) -> None:
        self.model, self._client, self._options, self._calls = model, client, options, calls
        self._ask = client.asker(model, options, tags=tags)

    async def __call__(self, messages, **settings):
        call, parsed = await self._ask(messages, **settings)
        self._calls.append(call)
        return call, parsed

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self._client.aembed(self.model, texts, self._options)
