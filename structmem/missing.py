"""What is missing of a results table: rows by status and reason, what a run took, and when arms differ in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pandas as pd

from .columns import ARM, check_table
from .errors import InputError
from .sorters import offline_embedder

# A share that differs by more points than these is worth a warning however few the rows are; a smaller difference is
# where chance alone would seldom make it.
MISSING_GAP_PP, TRUNCATED_GAP_PP, LEVEL = 5, 10, 0.05
# The judge has nothing to say of such a row, now or later: not scored, but not lost either.
UNSCORABLE = ("no_failure_type", "not_scored_by_echo", "not_scored", "no_memories", "no_memory_outside_domain")
_CUT = "no_verdict: truncated"
_CALLS = {"answer": "answer_key", "judge": "judge_key", "structurer": "structurer_key"}
_NAMES = {"answer": "answers", "judge": "verdicts", "structurer": "sortings"}


def why_missing(rows: pd.DataFrame) -> pd.Series:
    """Status and reason of each row in words, such as ``no_response: timeout``."""
    given = rows["status_reason"].astype(object) if "status_reason" in rows else rows["status"].map(lambda _: None)
    return rows["status"].astype(str) + ": " + given.where(given.notna(), "no reason given").astype(str)


def rows_gone(results: pd.DataFrame) -> pd.Series:
    """Beside the first row of each entry in each arm, how many generations of the arm the entry has no row of; else 0.

    An interrupted run and a table that lost rows stay visible: what is not there cannot say so itself.
    """
    if not {"entry_id", "generation"} <= set(results):
        return pd.Series(0, results.index)
    arm = [name for name in ARM if name in results]
    of_arm = [results[name] for name in arm]
    expected = results["generation"].groupby(of_arm, dropna=False, sort=False).transform("nunique")
    mine = results["generation"].groupby([*of_arm, results["entry_id"]], dropna=False, sort=False)
    return (expected - mine.transform("size")).where(mine.cumcount() == 0, 0).astype(int)


def in_words(counts: Mapping[str, int]) -> str:
    """Counts as text, the largest first: ``no_response: timeout 3, no_verdict: no_json 1``."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in most if count)


def differ(some: int, n_some: int, others: int, n_others: int, gap_pp: int = MISSING_GAP_PP, pairs: int = 1) -> bool:
    """Whether two shares differ enough to warn of: by more than `gap_pp` points, or by Fisher's exact test.

    The gap catches arms of a few rows, where no test can tell; the test catches small differences of large arms. A
    warning is a reason to look, not a finding: rows of one entry are taken as independent here.

    Parameters
    ----------
    some, n_some, others, n_others : int
        Rows concerned and all rows, on both sides; without rows on a side nothing differs.
    gap_pp : int
        Points beyond which shares always differ.
    pairs : int
        How many pairs of arms are looked at together; the level of .05 is divided by it.
    """
    if not n_some or not n_others:
        return False
    apart = abs(some * n_others - others * n_some)  # whole numbers, so that 5 points are not more than 5
    if 100 * apart > gap_pp * n_some * n_others:
        return True
    if not apart:
        return False
    from scipy.stats import fisher_exact

    return bool(fisher_exact([[some, n_some - some], [others, n_others - others]])[1] < LEVEL / pairs)


def missing_by_arm(df: pd.DataFrame) -> list[dict]:
    """Per arm: rows, rows that are ok, and the others by status and reason, generations without a row included."""
    found = []
    for arm, rows in df.assign(_gone=rows_gone(df)).groupby(list(ARM), dropna=False, sort=True):
        named = {name: value for name, value in zip(ARM, arm, strict=True) if value not in ("", 0)}
        lost = rows[rows["status"] != "ok"]
        counts = {"rows": len(rows), "ok": len(rows) - len(lost)}
        missing = Counter(why_missing(lost)) + Counter({"no row": int(rows["_gone"].sum())})
        found.append(named | counts | {"missing": dict(sorted(missing.items()))})
    return found


@dataclass(frozen=True)
class Took:
    """What the calls of one role took, each counted once however many rows share it.

    ``n_calls`` are those that rows name (of the judge: answers that were judged), ``n_attempts`` what the judge was
    asked in all, ``n_requests`` the requests of calls of which their number is known, ``cost_usd`` likewise;
    ``n_requests_unknown`` and ``n_cost_unknown`` count the calls of which it is not. ``cost_usd`` is None where it is
    known of none. A structurer's "call" is a sorting of several; calls that two sortings share are paid for once.
    """

    n_calls: int
    n_attempts: int
    n_requests: int
    n_requests_unknown: int
    cost_usd: float | None
    n_cost_unknown: int


@dataclass(frozen=True)
class Completeness:
    """What became of the rows of a run, and what they took; prints as a few lines.

    Parameters
    ----------
    n_asked, n_scored : int
        Rows; generations without a row are asked too.
    missing : dict of str to int
        Rows by status and reason (``no_verdict: timeout``, ``no row``); asking again may help.
    unscorable : dict of str to int
        The same for rows that their judge can never score; they are not missing.
    took : dict of str to Took
        By role (answer, judge, structurer); only roles that made calls.
    """

    n_asked: int
    n_scored: int
    missing: dict[str, int]
    unscorable: dict[str, int]
    took: dict[str, Took]

    @property
    def n_missing(self) -> int:
        """Rows that could have been scored and are not."""
        return sum(self.missing.values())

    @property
    def exit_status(self) -> int:
        """0 if every row that can be scored is, else 1."""
        return int(self.n_missing > 0)

    @property
    def cost_usd(self) -> float | None:
        """Dollars as far as they are known; ``n_cost_unknown`` calls come on top. None: known of no call."""
        known = [took.cost_usd for took in self.took.values() if took.cost_usd is not None]
        return sum(known) if known or not self.took else None

    @property
    def n_cost_unknown(self) -> int:
        return sum(took.n_cost_unknown for took in self.took.values())

    def facts(self) -> dict:
        """The same as plain values, for the manifest."""
        sums = {"n_missing": self.n_missing, "cost_usd": self.cost_usd, "n_cost_unknown": self.n_cost_unknown}
        return asdict(self) | sums

    def __str__(self) -> str:
        lost = f"{self.n_missing} missing ({in_words(self.missing)})" if self.missing else "none missing"
        lines = [f"Rows: {self.n_asked} asked, {self.n_scored} scored, {lost}."]
        if self.unscorable:
            n = sum(self.unscorable.values())
            lines[0] = f"{lines[0][:-1]}, {n} that the judge cannot score ({in_words(self.unscorable)})."
        lines += [_line(role, took) for role, took in self.took.items() if role != "structurer"]
        lines.append(f"Cost: {self._cost()}.")
        if set(self.missing) - {_CUT}:
            lines.append("Run again to ask for what is missing; finished calls are kept and not made again.")
        if _CUT in self.missing:
            lines.append("A verdict that was cut is not asked for again as it was: give judge_options a max_tokens.")
        return "\n".join(lines)

    def _cost(self) -> str:
        parts = {role: took for role, took in self.took.items() if took.n_cost_unknown}
        if self.n_asked and not self.took:
            return "not known, for no row names a call (as in imported or simulated results)"
        if not parts:
            return f"${self.cost_usd:.2f}"
        words = " and ".join(f"{took.n_cost_unknown} of {took.n_calls} {_NAMES[role]}" for role, took in parts.items())
        return f"at least ${self.cost_usd:.2f} (not known for {words})" if self.cost_usd else f"not known for {words}"


def _line(role: str, took: Took) -> str:
    tried = took.n_attempts - took.n_calls
    again = f" in {took.n_attempts} attempts ({tried} asked again)" if tried else ""
    line = f"{_NAMES[role].capitalize()}: {took.n_calls} calls{again}"
    if took.n_requests_unknown == took.n_calls:
        return f"{line}."
    least = "at least " if took.n_requests_unknown else ""
    return f"{line}, {least}{took.n_requests} requests."


def completeness(results: pd.DataFrame) -> Completeness:
    """Count what a results table holds and lacks, and what it took.

    A call that several rows share (equal layouts share an answer) is counted once. Totals are lower bounds where
    anything is unknown: failed calls may have been billed, and rows of schema version 1 say what the last attempt of a
    judge took and not how many there were. Sorting by the offline embedder costs nothing.

    Parameters
    ----------
    results : DataFrame
        One row per generation, as made by ``run`` or ``read_results``.

    Returns
    -------
    Completeness
        ``print`` it; its ``exit_status`` is 1 where a row is missing that could have been scored.
    """
    check_table(results)
    if lacking := [name for name in ("status", "status_reason") if name not in results]:
        raise InputError(f"results lack the columns {lacking}; expected the table made by run or read_results.")
    lost = results[results["status"] != "ok"]
    never = lost["status_reason"].isin(UNSCORABLE) & (lost["status"] == "no_verdict")
    missing, unscorable = (dict(sorted(Counter(why_missing(part)).items())) for part in (lost[~never], lost[never]))
    if gone := int(rows_gone(results).sum()):
        missing["no row"] = gone
    took = {role: _took(results, role, key) for role, key in _CALLS.items() if key in results}
    took = {role: one for role, one in took.items() if one.n_calls}
    return Completeness(len(results) + gone, len(results) - len(lost), missing, unscorable, took)


def _took(results: pd.DataFrame, role: str, key: str) -> Took:
    names = ("judge_attempts", "structurer", f"{role}_requests", f"{role}_cost_usd")
    # Rows of one call may know more or less of it (a table of version 1 joined to one of 2): what is known counts.
    calls = results.loc[results[key].notna(), [key, *(name for name in names if name in results)]]
    calls = calls.groupby(key, sort=False).first()

    def numbers(name: str) -> pd.Series:
        return calls[name].astype("float64") if name in calls else pd.Series(index=calls.index, dtype="float64")

    attempts = numbers("judge_attempts") if role == "judge" else pd.Series(1, index=calls.index)
    requests, costs = numbers(f"{role}_requests"), numbers(f"{role}_cost_usd")
    if role == "structurer":
        if "structurer" in calls:
            costs = costs.mask(costs.isna() & calls["structurer"].map(offline_embedder).astype(bool), 0.0)
        costs = _each_call_once(costs)
    unknown = costs.isna() | attempts.isna()  # without their number, attempts before the last are not in the sum
    return Took(
        len(calls), int(attempts.fillna(1).sum()), int(requests.sum()), int(requests.isna().sum()),
        None if costs.isna().all() else float(costs.sum()), int(unknown.sum()),
    )  # fmt: skip


def _each_call_once(costs: pd.Series) -> pd.Series:
    """Costs of sortings, named by the keys of their calls, without what an earlier one paid for already.

    Where a sorting shares only a part of the calls of another one, what is left to pay is not known: NaN.
    """
    paid: dict[frozenset, float] = {}  # parts that share no call
    found = {}
    for name in sorted(costs.index, key=lambda name: (name.count(" "), name)):
        calls, cost = frozenset(name.split()), costs[name]
        for part in [part for part in paid if part <= calls]:
            calls, cost = calls - part, cost - paid[part]
        if any(part & calls for part in paid):
            cost = float("nan")
        elif calls:
            paid[calls] = cost
        found[name] = cost if calls else 0.0
    return pd.Series(found, dtype="float64").reindex(costs.index)
