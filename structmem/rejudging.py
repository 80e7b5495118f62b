"""Judge the stored answers of a results table again: by another judge, or by the same one once more."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from . import background
from .arms import whole
from .calls import asked, canonical, model_label
from .columns import KEY, conform, without_answers
from .data import Entry
from .echo import ECHO_THRESHOLD
from .errors import BudgetReached, InputError, MissingCall, SetupError, StoreError, StructmemError
from .execution import GIVE_UP
from .judges import Judge, Verdict, ajudge, echo_for, judge_model_settings, load_judge
from .llm import MAX_CONCURRENCY, MAX_RETRIES, Client
from .progress import Progress
from .results import validate
from .rows import readable, verdict_columns

__all__ = ["rejudge"]

# What the first judge said of a row; nothing of it stays.
_OF_JUDGE = (
    "status", "status_reason", "status_detail", "score", "echo_overlap", "echoed", "judge_reasoning",
    "judge_conversions", "judge_params_sent", "judge_served_model", "judge_attempts", "judge_requests",
    "judge_input_tokens", "judge_output_tokens", "judge_cached_tokens", "judge_cost_usd", "judge_key",
)  # fmt: skip


def rejudge(
    results: pd.DataFrame,
    entries: Iterable[Entry],
    judge: str | Path | Callable = "persistbench",
    judge_model: object = None,
    *,
    judge_options: Mapping | None = None,
    repeat: int = 0,
    threshold: int | None = None,
    echo_threshold: float = ECHO_THRESHOLD,
    store: object = None,
    offline: bool = False,
    client: Client | None = None,
    budget_usd: float | None = None,
    allow_unpriced: bool = False,
    prices: Mapping | None = None,
    judge_concurrency: int = MAX_CONCURRENCY,
    timeout_s: float = 120,
    max_retries: int = MAX_RETRIES,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Verdicts of another judge, or of the same judge again, on the answers of a results table.

    No answer is made: rows without one keep their status and reason. Calls go through the store, so an interrupted run
    goes on where it was. Rows that hold the same answer to the same entry share a verdict of a judge model, as in
    ``run``.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with the answers in ``response``.
    entries : iterable of Entry
        Those of the results; the judge sees their original memory list.
    judge, judge_model, judge_options
        As in ``run``.
    repeat : int
        0: the judge's verdict as ``run`` with this judge would ask for it, which the store may hold; 1, 2, …: an
        independent call each, for test–retest. The column ``judge`` then says ``NAME (repeat 1)``.
    threshold : int, optional
        Score from which an answer fails; default: the failure type's own (or the judge's).
    echo_threshold : float
        As in ``run``.
    store, offline, client, budget_usd, allow_unpriced, prices, judge_concurrency, timeout_s, max_retries, progress
        As in ``run``.

    Returns
    -------
    DataFrame
        The same rows in the same order, with new judge columns; compare both tables with ``judge_agreement``. Where the
        budget or a dead judge ended the work, the rest is ``no_verdict`` with reason ``not_asked``, a warning is given
        and ``attrs["stopped"]`` says why.

    Raises
    ------
    InputError
        Results without answers (recorded files are stored without them), entries that are missing or of another
        failure type, several judges in one table (rows that differ in the judge alone), a repeat of the echo measure.
    MissingCall
        Offline, when the store does not hold a verdict.
    SetupError, StoreError
        As ``run``.
    """
    found = load_judge(judge)
    whole(repeat, "repeat", 0)
    if repeat and found.name == "echo":
        raise InputError("repeat: the echo measure computes the same overlap each time; there is nothing to repeat.")
    if not isinstance(echo_threshold, (int, float)) or not 0 < echo_threshold <= 1:
        raise InputError(f"echo_threshold must lie in (0, 1], got {echo_threshold!r}.")
    results = validate(results)
    known, thresholds = _entries_of(results, entries), _thresholds(threshold, results, found)
    model, params, options = judge_model_settings(judge_model, judge_options)
    if not found.asks_model:
        model, params, options = "", {}, {}
    own = client is None
    if own:
        client = Client(
            store, offline=offline, budget_usd=budget_usd, allow_unpriced=allow_unpriced, prices=prices,
            max_concurrency=judge_concurrency, timeout_s=timeout_s, max_retries=max_retries,
        )  # fmt: skip
    try:
        if found.asks_model:
            client.check_priced([model])
        shown = sys.stderr.isatty() if progress is None else progress
        line = Progress(len(results), client.counts) if shown and not client.offline else None
        job = _Again(results, known, found, model, params, options, repeat, echo_threshold, client, line)
        background.run_sync(job.go(2 * judge_concurrency))
    except StructmemError:
        if own:  # what is under way is paid for
            client.close(finish_s=client.sender.timeout_s)
        raise
    finally:
        if own:
            client.close()
    table = _table(results, job, thresholds)
    if job.stopped:
        table.attrs["stopped"] = job.stopped
        left = int((table["status_reason"] == "not_asked").sum())
        warnings.warn(f"stopped with {left} of {len(table)} rows not judged: {job.stopped}", stacklevel=2)
    return table


def entries_by_id(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by their id; what are none are refused."""
    found = [entries] if isinstance(entries, (str, Entry)) or not isinstance(entries, Iterable) else list(entries)
    if wrong := [one for one in found if not isinstance(one, Entry)]:
        raise InputError(f"entries must be entries as load_entries gives them, got {wrong[0]!r:.80}.")
    return {entry.entry_id: entry for entry in found}


def _entries_of(results: pd.DataFrame, entries: Iterable[Entry]) -> dict[str, Entry]:
    """The entry of each row, after checking that rows and entries fit, and that there are answers to judge."""
    known = entries_by_id(entries)
    kinds = results[["entry_id", "failure_type"]].drop_duplicates().itertuples(index=False, name=None)
    needed = {entry: kind for entry, kind in kinds}
    if missing := [entry for entry in needed if entry not in known]:
        raise InputError(
            f"entries lack {len(missing)} of the {len(needed)} entries in the results, such as {missing[:3]}; load "
            "those the answers were made for."
        )
    wrong = [entry for entry, kind in needed.items() if (known[entry].failure_type or "") != kind]
    if wrong:
        kind = known[wrong[0]].failure_type
        raise InputError(f"Entry {wrong[0]!r} is {kind!r}, its results say {needed[wrong[0]]!r}; load those entries.")
    answered = results["status"] != "no_response"
    texts = results["response"] if "response" in results else pd.Series(None, results.index, dtype=object)
    if lost := int((answered & texts.isna()).sum()):
        raise InputError(
            f"{lost} of {int(answered.sum())} answered rows hold no text in 'response': "
            f"{without_answers(results[answered])}."
        )
    counted = results[["entry_id", "n_memories"]].dropna().drop_duplicates().itertuples(index=False, name=None)
    if changed := [entry for entry, n in counted if len(known[entry].memories) != n]:
        raise InputError(
            f"{len(changed)} entries, such as {changed[:3]}, have another number of memories than the results say; "
            "load the entries that the answers were made for."
        )
    key = [name for name in KEY if name not in ("judge", "judge_model")]
    if (doubled := results.duplicated(key, keep=False)).any():
        judges = sorted(set(results.loc[doubled, "judge"]))
        raise InputError(f"results hold the same answers by several judges {judges}; pass one judge's rows.")
    return known


@dataclass
class _Again:
    """The judging of one table: a pool of workers that pull rows in order."""

    results: pd.DataFrame
    entries: Mapping[str, Entry]
    judge: Judge
    model: object
    params: Mapping
    options: Mapping
    repeat: int
    echo_threshold: float
    client: Client
    line: Progress | None
    found: dict[int, dict] = field(default_factory=dict)
    stopped: str | None = None
    failed: int = 0  # rows on end that came to nothing

    async def go(self, workers: int) -> None:
        rows = self.results[["entry_id", "status", "status_reason", "status_detail", "response", "escaped"]]
        queue = iter(enumerate(rows.to_dict("records")))
        self._echoes: dict[str, asyncio.Future] = {}
        tasks = [asyncio.ensure_future(self._work(queue)) for _ in range(min(workers, max(len(rows), 1)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in [*tasks, *self._echoes.values()]:
                task.cancel()
            await asyncio.gather(*tasks, *self._echoes.values(), return_exceptions=True)
            if self.line:
                self.line.end()

    async def _work(self, queue) -> None:
        for place, row in queue:
            if row["status"] == "no_response":
                kept = ("status", "status_reason", "status_detail", "escaped")
                self.found[place] = {name: None if pd.isna(row[name]) else row[name] for name in kept}
            else:
                self.found[place] = await self._row(row)
            if self.line:
                self.line.step(self.found[place]["status"])

    async def _row(self, row: Mapping) -> dict:
        escaped = bool(row["escaped"]) if pd.notna(row["escaped"]) else False
        left = {"status": "no_verdict", "status_reason": "not_asked", "escaped": escaped}
        if self.stopped:
            return left
        entry = self.entries[row["entry_id"]]
        try:
            verdict = await self._verdict(entry, row["response"])
        except BudgetReached as error:
            self.stopped = self.stopped or str(error)
            return left
        except (SetupError, MissingCall, StoreError):
            raise
        except Exception as error:
            verdict = Verdict("no_verdict", "error", detail=f"{type(error).__name__}: {error}")
        detail = verdict.detail and readable(self.client.sender.masker.mask(verdict.detail)[:300])
        lost = verdict.status != "ok" and verdict.status_reason in ("error", "timeout")
        self.failed = self.failed + 1 if lost else 0
        if self.failed >= GIVE_UP and not self.stopped:
            self.stopped = f"{self.failed} rows on end without a verdict; the last one: {detail or 'no reason given'}"
        return verdict_columns(verdict, escaped) | {"status_detail": detail}

    async def _verdict(self, entry: Entry, response: str) -> Verdict:
        ask = echo = None
        if self.judge.asks_model:
            tags = {"entry_id": entry.entry_id, "failure_type": entry.failure_type}
            ask = self.client.asker(self.model, dict(self.options), replicate=self.repeat, tags=tags)
        elif self.judge.name == "echo" and entry.failure_type not in (None, "sycophancy"):
            echo = await self._echo(entry)
        return await ajudge(
            entry, response, judge=self.judge, ask=ask, params=dict(self.params), echo=echo,
            echo_threshold=self.echo_threshold, timeout_s=self.client.sender.timeout_s,
        )  # fmt: skip

    async def _echo(self, entry: Entry):
        from .embedding import model

        if entry.entry_id not in self._echoes:
            ask = self.client.asker(model, {}, tags={"entry_id": entry.entry_id})
            self._echoes[entry.entry_id] = asyncio.ensure_future(echo_for(entry, ask))
        return await asyncio.shield(self._echoes[entry.entry_id])


def _thresholds(threshold: int | None, results: pd.DataFrame, judge: Judge) -> dict[str, int | None]:
    found = {}
    for kind in results["failure_type"].unique():
        scale = judge.scale_for(kind or None)
        value = threshold if threshold is not None and scale else scale.threshold if scale else None
        if value is not None and not scale.low < whole(value, "threshold", scale.low) <= scale.high:
            raise InputError(f"threshold must lie in {scale.low + 1}..{scale.high} for {scale.name}, got {value!r}.")
        found[kind] = value
    return found


def _table(results: pd.DataFrame, job: _Again, thresholds: Mapping) -> pd.DataFrame:
    """The rows with what the new judge said, and its settings."""
    judge, kinds = job.judge, results["failure_type"]
    scales = {kind: judge.scale_for(kind or None) for kind in kinds.unique()}
    is_echo = judge.name == "echo"

    def by_kind(value: Callable) -> pd.Series:
        return kinds.astype(object).map({kind: value(kind, scale) for kind, scale in scales.items()})

    def of_scale(name: str) -> pd.Series:
        return by_kind(lambda kind, scale: None if scale is None or is_echo else getattr(scale, name))

    settings = asked({**job.params, **job.options})
    echo = by_kind(lambda kind, _: job.echo_threshold if is_echo and kind not in ("", "sycophancy") else None)
    limits = echo if is_echo else by_kind(lambda kind, _: thresholds[kind])
    name = f"{judge.name} (repeat {job.repeat})" if job.repeat else judge.name
    said = {
        "judge": name,
        "judge_model": model_label(job.model) if judge.asks_model else "",
        "judge_options": canonical(settings) if settings else None,
        "judge_prompt_hash": by_kind(lambda kind, _: judge.sha256(kind) or None),
        "threshold": limits, "echo_threshold": echo,
        "high_is_bad": of_scale("high_is_bad"), "scale_low": of_scale("low"), "scale_high": of_scale("high"),
    }  # fmt: skip
    rows = [job.found[place] for place in range(len(results))]
    columns = {column: [row.get(column) for row in rows] for column in (*_OF_JUDGE, "escaped")}
    what = canonical([name, said["judge_model"], settings, {str(k): v for k, v in thresholds.items()}])
    rerun = {old: hashlib.sha256(f"{old} {what}".encode()).hexdigest()[:12] for old in results["run_id"].unique()}
    table = conform(results.assign(**said, **columns, run_id=results["run_id"].map(rerun)))
    parameters = {"judge": name, "judge_model": said["judge_model"], "judge_options": settings}
    table.attrs = {"parameters": {"rejudged": results.attrs.get("parameters"), **parameters}}
    return table
