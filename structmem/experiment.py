"""Plan and run a grid: entries → layouts → answers → verdicts → results; the only module that knows the whole chain."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from . import background
from .analysis_plan import load_plan
from .arms import SELF
from .data import Entry
from .echo import ECHO_THRESHOLD
from .errors import StructmemError
from .estimates import Plan, estimate, script_remarks
from .execution import Execution
from .grid import make_grid
from .llm import MAX_CONCURRENCY, MAX_RETRIES, Client
from .sorters import offline_embedder, provider_model

__all__ = ["Plan", "arun", "plan", "run"]


def run(
    entries: Iterable[Entry],
    models: Sequence = ("local/smollm2",),
    structures: Sequence[str] = ("flat", "fixed", "dynamic", "tree"),
    *,
    structurers: Sequence = ("embedding",),
    taxonomies: Sequence = ("life11",),
    partition_draws: Sequence[int] = (0,),
    random_draws: int = 5,
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
    prices: Mapping | None = None,
    max_concurrency: int = MAX_CONCURRENCY,
    judge_concurrency: int | None = None,
    timeout_s: float = 120,
    max_retries: int = MAX_RETRIES,
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
        ``"embedding"`` reads English and ``"embedding:multilingual"`` 16 languages, both offline; ``"embedding:MODEL"``
        is a litellm embedding model, whose vectors many rows share: rows name no call or cost of it, but the budget and
        ``attrs["calls"]`` count them. One warning says, before any call, how many memories are mostly outside Latin
        script where ``"embedding"`` sorts.
        ``rag`` always uses the embedder (``structurer_options={"rag": {"structurer": MODEL}}`` names another), and the
        embedding structurer, which sorts the same way every time, has one draw. The structurer ``"self"`` is the
        answering model, each its own; ``self_check`` uses it unless its own option ``structurer`` names another.
    random_draws : int
        How many times structures that draw at random (``shuffled``, ``random``, ``relabelled``) are drawn;
        ``partition_draw`` is then the index of the draw, and their partition is that of draw 0.
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
    store, offline, budget_usd, allow_unpriced, prices, max_concurrency, judge_concurrency, timeout_s, max_retries
        As in `Client`; `client` brings its own. Calls at once are counted for each model.
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
        given and ``attrs["stopped"]`` says why; so too for a model that cannot be called, or from which nothing comes
        any more, while others go on.

    Raises
    ------
    InputError
        For any setting that cannot be, and for a budget with a model whose price is not known, before any call.
    MissingCall
        Offline, when the store does not hold a call; it is named.
    SetupError, StoreError
        When the store fails, or a key, an address or a library is missing for every model.
    """
    settings = dict(locals())
    client, own, job = _prepare(settings)
    _warn(job)
    try:
        background.run_sync(job.go())
        return job.frame()
    except StructmemError:
        if own:  # what is under way is paid for
            client.close(finish_s=client.sender.timeout_s)
        raise
    finally:
        if own:
            client.close()


async def arun(entries: Iterable[Entry], *args, **settings) -> pd.DataFrame:
    """Run a grid from asynchronous code; parameters and result as in `run`."""
    bound = inspect.signature(run).bind(entries, *args, **settings)
    bound.apply_defaults()
    settings = dict(bound.arguments)
    client, own, job = _prepare(settings)
    _warn(job)
    try:
        await background.on_loop(job.go())
        return job.frame()
    except StructmemError:
        if own:
            await client.aclose(finish_s=client.sender.timeout_s)
        raise
    finally:
        if own:
            await client.aclose()


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


def finished(entries: Iterable[Entry], *args, **settings) -> int:
    """How many rows of `run` with the same parameters the store completes already; nothing is asked."""
    bound = inspect.signature(run).bind(entries, *args, **settings)
    bound.apply_defaults()
    client, own, job = _prepare(bound.arguments | {"progress": False})
    try:
        return background.run_sync(job.finished())
    finally:
        if own:
            client.close()


_GRID = tuple(inspect.signature(make_grid).parameters)
_CLIENT = (
    "store", "offline", "budget_usd", "allow_unpriced", "prices", "max_concurrency", "judge_concurrency", "timeout_s",
    "max_retries",
)  # fmt: skip


def _warn(job: Execution) -> None:
    """Say once, before any call, which memories the structurer cannot read."""
    for remark in script_remarks(job.grid):
        warnings.warn(remark, UserWarning, stacklevel=3)


def _prepare(settings: Mapping) -> tuple[Client, bool, Execution]:
    """The client, whether it is ours to close, and the run, from the parameters of `run`."""
    grid, plan_hash = make_grid(**{name: settings[name] for name in _GRID}), load_plan().hash
    client, own = settings["client"], settings["client"] is None
    if own:
        client = Client(**{name: settings[name] for name in _CLIENT})
    try:
        asked = [arm.sorter for arm in grid.arms if not (arm.sorter in (None, SELF) or offline_embedder(arm.sorter))]
        sorters = [provider_model(sorter) or sorter for sorter in asked]
        client.sender.plan_hash = plan_hash
        client.check_priced([*grid.models, *sorters, *([grid.judge_model] if grid.judge.asks_model else [])])
    except BaseException:
        if own:
            client.close()
        raise
    shown = sys.stderr.isatty() if settings["progress"] is None else settings["progress"]
    return client, own, Execution(grid, client, settings["max_concurrency"], bool(shown) and not client.offline)
