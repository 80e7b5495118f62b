"""Results in, tables out: rates with what is missing, what became of every row, and (re-exported) comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from .comparisons import paired_differences, reductions
from .errors import InputError
from .intervals import clopper_pearson, minimum_detectable_pp, wilson_clustered
from .missing import MISSING_GAP_PP, TRUNCATED_GAP_PP, differ, in_words, rows_gone, why_missing
from .outcomes import (
    ARM,
    NONE,
    OF_STRUCTURE,
    check_results,
    counted,
    display_structure,
    is_echo,
    keep_none,
    sort_arms,
    unit_rows,
)  # fmt: skip
from .stamping import stamped

__all__ = [
    "arm_summary", "display_structure", "echo_rate", "failure_rate", "minimum_detectable_pp", "paired_differences",
    "reductions",
]  # fmt: skip

NAMES = {"failure": ("failure_rate", "fr_at_1", "mean_score"), "echo": ("echo_rate", "echo_at_1", "mean_echo_overlap")}


def failure_rate(
    results: pd.DataFrame, by: str | Iterable[str] = ("model", "structure"), threshold: int | None = None
) -> pd.DataFrame:
    """Failure rate at K generations (FR@K): the share of entries that fail by the maximum score over their generations.

    Only entries whose generations are all scored enter the estimates; the others are counted and bounded.
    ``failure_type`` always separates rows. A setting with several values (renderer, defence, judge, threshold, …) is
    added to ``by``, and so is what makes a run (replicate, partition draw, structurer, …) where one structure has
    several inside a group: only models are ever pooled, every complete entry of every model weighing the same, and the
    A/A arm (flat, replicate 1) stays visible.

    Parameters
    ----------
    results : DataFrame
        One row per generation, as made by ``run``.
    by : column name or names
        What a row is.
    threshold : int, optional
        Replaces the threshold stamped on the rows.

    Returns
    -------
    DataFrame
        One row per group and failure type; ``arm`` is the display name of a structure (``flat (A/A)``,
        ``dynamic (embedding)``); ``failure_rate`` in [0, 1]; ``low``, ``high``: 95 % Wilson interval (where
        a group holds an entry in several arms, at the effective number of entries: see ``interval``); ``n_entries``
        complete entries (entry × arm), ``n_unscored`` incomplete ones; ``n_generations`` (K); ``best_case``,
        ``worst_case``: the rate if every missing generation had passed or failed; ``n_asked`` rows, ``n_scored`` of
        them, and the ``reasons`` of the others in words; ``fr_at_1``: mean over generations of the single-generation
        failure, with ``fr_at_1_low``, ``fr_at_1_high``: 95 % Wilson interval at the effective number of generations,
        entries as clusters (see ``intervals.wilson_clustered``); ``mean_score``; ``truncated_share`` of answers;
        ``threshold``; ``interval``; ``exact_low``, ``exact_high``: 95 % Clopper–Pearson interval, which needs
        independent entries: NaN where a group holds an entry several times, as ``exact_interval`` then says (``show``
        leaves the three out unless asked); ``reason`` where the rate is NaN; ``warning`` as in ``arm_summary``;
        ``analysis``, ``analysis_note``, ``plan_hash`` as in ``stamped``.

    Raises
    ------
    InputError
        Unknown columns, doubled keys, scores off their scale, arms of different K in one group, rows judged by
        ``echo``.
    """
    return stamped(_rates(results, by, "failure", threshold), results)


def echo_rate(results: pd.DataFrame, by: str | Iterable[str] = ("model", "structure")) -> pd.DataFrame:
    """Share of entries in which at least one generation echoes the memories, by the offline ``echo`` judge.

    It shows that the pipeline works; it is not a failure rate. Rows of other judges are left out. Grouping as in
    ``failure_rate``.

    Returns
    -------
    DataFrame
        As ``failure_rate``, with ``echo_rate``, ``echo_at_1`` (``echo_at_1_low``, ``echo_at_1_high``) and
        ``mean_echo_overlap`` in [0, 1]; ``threshold`` is the overlap from which an answer counts as echo.
    """
    return stamped(_rates(results, by, "echo", None), results)


class Group(NamedTuple):
    """One row of a table of rates before its numbers: what it is called, its units, and the complete ones."""

    named: dict
    units: pd.DataFrame
    complete: pd.DataFrame
    n_generations: int


def outcome_of(results: pd.DataFrame, outcome: str | None) -> str:
    """The outcome asked for; without one, echo where every row was checked by the echo measure, else failure."""
    return outcome or ("echo" if isinstance(results, pd.DataFrame) and is_echo(results) else "failure")


def rate_groups(
    results: pd.DataFrame, by: str | Iterable[str], outcome: str, threshold: int | None = None
) -> tuple[list[Group], list[str]]:
    """The groups that ``failure_rate`` makes rows of, and the columns that name them (``arm`` last, where it is known).

    Raises
    ------
    InputError
        As ``failure_rate``.
    """
    by = [by] if isinstance(by, str) else list(by)
    units, arm = unit_rows(results, by, outcome, threshold)
    keys = keys_of(units, arm, by)
    groups = []
    for key, group in units.groupby(keys, sort=False):
        named = dict(zip(keys, key, strict=True))
        generations = sorted(map(int, group["expected"].unique()))
        if len(generations) > 1:
            raise InputError(
                f"The group {named} pools arms with {generations} generations per entry, whose rates differ in kind; "
                "add the columns that separate them to by."
            )
        label = {"arm": label_of(group)} if "structure" in by else {}
        groups.append(Group(named | label, group, group[group["complete"]], generations[0]))
    assert sum(len(group.units) for group in groups) == len(units)  # no group vanished
    return groups, [*keys, *(["arm"] if "structure" in by else [])]


def _rates(results: pd.DataFrame, by: str | Iterable[str], outcome: str, threshold: int | None) -> pd.DataFrame:
    groups, shown = rate_groups(results, by, outcome, threshold)
    keys = [key for key in shown if key != "arm"]
    rate, one, value = NAMES[outcome]
    rows = []
    for named, group, complete, n_generations in groups:
        failed, entries = complete["failed"].to_numpy(), complete["entry_id"].to_numpy()
        low, high = wilson_clustered(failed, entries)
        one_low, one_high = wilson_clustered(complete["failed_one"].to_numpy(), entries, draws=n_generations)
        found = counted(group)
        limit = group["threshold"].iloc[0]
        repeated = complete["entry_id"].duplicated().any()
        rows.append(
            named
            | {rate: _mean(failed), "low": low, "high": high}
            | {"n_entries": len(complete), "n_unscored": len(group) - len(complete), "n_generations": n_generations}
            | {"best_case": group["best"].mean(), "worst_case": group["worst"].mean()}
            | found
            | {one: _mean(complete["failed_one"]), f"{one}_low": one_low, f"{one}_high": one_high}
            | {value: _mean(complete["mean_value"])}
            | {"n_lost": found["n_asked"] - found["n_scored"]}
            | {"n_truncated": int(group["truncated"].sum()), "n_answered": int(group["answered"].sum())}
            | {"threshold": nan if limit == NONE else limit}
            | {"interval": "Wilson, entries as clusters" if repeated else "Wilson"}
            | _exact(failed, repeated)
            | {"reason": "" if len(complete) else why_nothing(group, outcome)}
        )
    columns = [*shown, rate, "low", "high", "n_entries", "n_unscored", "n_generations", "best_case", "worst_case"]
    columns += ["n_asked", "n_scored", "reasons", one, f"{one}_low", f"{one}_high", value, "truncated_share"]
    columns += ["threshold", "interval", "exact_low", "exact_high", "exact_interval", "reason"]
    columns = dict.fromkeys([*columns, *_COUNTS])
    return _warned(sort_arms(pd.DataFrame(rows, columns=list(columns)), ["failure_type", *keys]), keys)


def _exact(failed: np.ndarray, repeated: bool) -> dict:
    if repeated:
        low, high, name = nan, nan, "not available: entries appear several times, which are not independent"
    else:
        low, high = clopper_pearson(int(failed.sum()), len(failed))
        name = "Clopper–Pearson" if len(failed) else "not available: no complete entry"
    return {"exact_low": low, "exact_high": high, "exact_interval": name}


def keys_of(rows: pd.DataFrame, arm: list[str], by: list[str]) -> list[str]:
    """``by``, the failure type, and each arm column that would else be pooled, or differ between rows unseen."""
    keys = list(dict.fromkeys([*by, "failure_type"]))
    for column in arm:
        if column in ("model", "structure", *keys) or rows[column].nunique() < 2:
            continue
        within = list(dict.fromkeys([*keys, "structure"])) if column in OF_STRUCTURE else ["failure_type"]
        if (rows.groupby(within, sort=False)[column].nunique() > 1).any():
            keys.append(column)
    return keys


def label_of(group: pd.DataFrame) -> str:
    """How tables and figures call the arm that some units are of."""
    first = group.iloc[0]
    again = first["structure"] == "flat" and "replicate" in group and first["replicate"] not in (0, NONE)
    return "flat (A/A)" if again else display_structure(first["structure"], first.get("structurer"))


def _mean(values: Iterable[float]) -> float:
    values = np.asarray(values, dtype=float)
    return float(values.mean()) if len(values) else nan


def why_nothing(group: pd.DataFrame, outcome: str) -> str:
    """Why a group without complete entries has no rate, in words."""
    if outcome == "echo" and set(group["failure_type"]) == {"sycophancy"}:
        return "echo cannot see agreement: sycophancy is not scored"
    if group["threshold"].eq(NONE).all() and outcome == "failure":
        return "no threshold is stamped or known for this failure type"
    return "no entry has all its generations scored" if group["scored"].any() else "no generation is scored"


def arm_summary(results: pd.DataFrame, by: str | Iterable[str] = ("model", "structure")) -> pd.DataFrame:
    """What became of every row that was asked for, arm by arm.

    Grouping as in ``failure_rate``; rows of all judges.

    Returns
    -------
    DataFrame
        One row per group and failure type: ``n_asked`` rows, generations without a row included ('no row' in the
        reasons); ``n_ok``, ``n_no_response``, ``n_no_verdict``, which add up to the rows that are there; ``reasons``
        in words ('no_response: timeout 3'); ``unscored_share`` of rows; ``truncated_share`` of
        answers; ``n_escaped``; ``unclassified_share`` of the memories shown (NaN: not known); ``warning`` where an
        arm's share lies more than 5 pp (unscored) or 10 pp (truncated) above the lowest of the arms of the same model,
        failure type and judge, or less where Fisher's exact test is significant (at .05 over the number of pairs).
    """
    by = [by] if isinstance(by, str) else list(by)
    check_results(results, by)
    arm = [column for column in ARM if column in results]
    rows = keep_none(results, [*arm, *by, "failure_type"])
    rows["_gone"] = 0 if "generation" in by else rows_gone(rows)
    keys = keys_of(rows, arm, by)
    table = []
    for key, group in rows.groupby(keys, sort=False):
        lost, gone = group[group["status"] != "ok"], int(group["_gone"].sum())
        n_asked, n_lost = len(group) + gone, len(lost) + gone
        answered = group["status"] != "no_response"
        cut = _true(group, "truncated")[answered]
        table.append(
            dict(zip(keys, key, strict=True))
            | ({"arm": label_of(group)} if "structure" in by else {})
            | {"n_asked": n_asked}
            | {f"n_{status}": int((group["status"] == status).sum()) for status in ("ok", "no_response", "no_verdict")}
            | {"reasons": in_words(Counter(why_missing(lost)) | {"no row": gone})}
            | {"unscored_share": n_lost / n_asked, "truncated_share": _mean(cut)}
            | {"n_escaped": int(_true(group, "escaped").sum()), "unclassified_share": _share_unclassified(group)}
            | {"n_lost": n_lost, "n_truncated": int(cut.sum()), "n_answered": int(answered.sum())}
        )
    columns = [*keys, *(["arm"] if "structure" in by else []), *_SUMMED, *_COUNTS]
    table = sort_arms(pd.DataFrame(table, columns=list(dict.fromkeys(columns))), ["failure_type", *keys])
    # A row in no group, or in two, would be a wrong count unseen.
    assert table["n_asked"].sum() == len(results) + rows["_gone"].sum()
    return _warned(table, keys)


def _share_unclassified(rows: pd.DataFrame) -> float:
    if not {"n_unclassified", "n_shown"} <= set(rows) or not (shown := rows["n_shown"].sum()):
        return nan
    return float(rows["n_unclassified"].sum() / shown)


def _true(rows: pd.DataFrame, column: str) -> pd.Series:
    return rows[column].eq(True).fillna(False).astype(bool) if column in rows else pd.Series(False, rows.index)


_SUMMED = (
    "n_asked", "n_ok", "n_no_response", "n_no_verdict", "reasons", "unscored_share", "truncated_share", "n_escaped",
    "unclassified_share",
)  # fmt: skip
# Counts that only the warnings need: the tables show them in other columns.
_COUNTS = ("n_lost", "n_truncated", "n_answered")
_COMPARED = (
    ("unscored", "n_lost", "n_asked", MISSING_GAP_PP),
    ("truncated", "n_truncated", "n_answered", TRUNCATED_GAP_PP),
)


def _warned(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The table with a sentence for each arm whose share lies above the lowest of the arms it can be compared with."""
    alike = [key for key in keys if key not in ARM or key in ("model", "judge", "judge_model")]
    words = [[] for _ in range(len(table))]
    for what, some, of, gap in _COMPARED:
        for _, arms in table[table[of] > 0].groupby(alike, sort=False):
            share = arms[some] / arms[of]
            least = arms.loc[share.idxmin()]
            pairs = len(arms) * (len(arms) - 1) // 2
            for row in arms.index[share > share.min()]:
                if differ(arms[some][row], arms[of][row], least[some], least[of], gap, pairs):
                    words[row].append(f"{100 * share[row]:.1f} % {what}, another arm {100 * share.min():.1f} %")
    return table.drop(columns=list(_COUNTS)).assign(warning=["; ".join(found) for found in words])
