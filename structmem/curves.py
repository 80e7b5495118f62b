"""Rates against the number of generations and against the threshold, and how scores are distributed."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

import numpy as np
import pandas as pd
from scipy.special import comb

from .data import FAILURE_TYPES
from .errors import InputError, choice
from .intervals import mcnemar_exact, tango, wilson, wilson_clustered
from .outcomes import ARM, NONE, check_results, is_echo, keep_none, sort_arms, unit_rows
from .pairing import compare, said, tells_apart
from .stamping import stamped
from .stats import label_of, outcome_of, rate_groups, why_nothing

_AT_K = {"failure": "fr_at_k", "echo": "echo_at_k"}


def fr_at_k(
    results: pd.DataFrame,
    by: str | Iterable[str] = ("model", "structure"),
    threshold: int | None = None,
    outcome: str | None = None,
) -> pd.DataFrame:
    """Failure rate at every k from 1 to the K generations made (FR@k), from all generations of every complete entry.

    An entry of which m of K generations fail would have failed with k of them, drawn without replacement, with
    probability 1 − C(K − m, k) / C(K, k) where one bad generation is enough, and C(m, k) / C(K, k) where high is good
    and all have to fail: the estimator of pass@k (Chen et al. 2021, arXiv 2107.03374), which is unbiased. Drawing with
    replacement under a maximum would not be. At k = 1 it is ``fr_at_1``, at k = K ``failure_rate``, with the same
    intervals.

    Parameters
    ----------
    results, by, threshold
        As in ``failure_rate``.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        One row per group of ``failure_rate`` × ``k``: ``fr_at_k`` (``echo_at_k``) in [0, 1], the mean over complete
        entries; ``low``, ``high``: 95 % Wilson interval at the effective number of draws of k generations, entries as
        clusters (``interval``); ``n_entries``, ``n_unscored``, ``n_generations`` (K), ``threshold``, ``reason`` where
        there is no rate. Neighbouring k share their generations, so their intervals are not independent.

    Raises
    ------
    InputError
        As ``failure_rate``.
    """
    outcome = outcome_of(results, outcome)
    groups, shown = rate_groups(results, by, outcome, threshold)
    name = _AT_K.get(outcome)
    rows = []
    for named, units, complete, n_generations in groups:
        entries = complete["entry_id"].to_numpy()
        failing = np.rint(complete["failed_one"].to_numpy() * n_generations)
        high_is_bad = complete["high_is_bad"].to_numpy(dtype=bool)
        repeated = complete["entry_id"].duplicated().any()
        limit = units["threshold"].iloc[0]
        for k in range(1, n_generations + 1):
            any_fails = 1 - comb(n_generations - failing, k) / comb(n_generations, k)
            all_fail = comb(failing, k) / comb(n_generations, k)
            values = np.where(high_is_bad, any_fails, all_fail)
            low, high = wilson_clustered(values, entries, draws=n_generations / k)
            clusters = repeated or k < n_generations
            rows.append(
                named
                | {"k": k, name: float(values.mean()) if len(values) else nan, "low": low, "high": high}
                | {"n_entries": len(values), "n_unscored": len(units) - len(values), "n_generations": n_generations}
                | {"threshold": nan if limit == NONE else limit}
                | {"interval": "Wilson, entries as clusters" if clusters else "Wilson"}
                | {"reason": "" if len(values) else why_nothing(units, outcome)}
            )
    columns = dict.fromkeys(
        [
            *shown,
            "k",
            name,
            "low",
            "high",
            "n_entries",
            "n_unscored",
            "n_generations",
            "threshold",
            "interval",
            "reason",
        ]
    )
    keys = [key for key in shown if key != "arm"]
    table = sort_arms(pd.DataFrame(rows, columns=list(columns)), ["failure_type", *keys, "k"])
    return stamped(table, results)


def threshold_sensitivity(results: pd.DataFrame, baseline: str = "flat") -> pd.DataFrame:
    """Every arm's rate and its paired difference to the baseline at every threshold that the scale allows.

    A finding that holds only at one threshold is a finding about that threshold. Arms are matched with their baseline
    as in ``paired_differences``.

    Returns
    -------
    DataFrame
        One row per model × arm × failure type × ``threshold`` (from the second lowest to the highest score: 2 to 5, or
        2 to 3): ``stamped_threshold``, the results' own, and ``is_stamped``; ``failure_rate`` in [0, 1] with ``low``,
        ``high`` (95 % Wilson) and ``n_entries`` complete entries; ``difference_pp`` = arm − baseline on the ``n_pairs``
        entries complete in both, with ``low_pp``, ``high_pp`` (95 %; ``interval``) and ``mcnemar_p`` (exact; not
        adjusted, and the thresholds are not independent); ``remark`` where the sign is not that of the stamped
        threshold. Rows of the baseline itself have no difference. Settings that take several values are added.

    Raises
    ------
    InputError
        As ``paired_differences``; also for rows that were checked by ``echo``, whose threshold is not on a scale.
    """
    if isinstance(results, pd.DataFrame) and is_echo(results):
        raise InputError(
            "threshold_sensitivity needs scores on a scale; these rows were judged by 'echo', which gives an overlap "
            "and compares it with the one echo_threshold of the run."
        )
    check_results(results, [])
    if len(results) and baseline not in set(results["structure"]):
        raise choice("baseline", baseline, set(results["structure"]))
    settings = [column for column in ARM if column in results and column != "threshold"]
    arm = list(dict.fromkeys(["model", "structure", *settings]))
    rows = keep_none(results, ["failure_type", *arm])
    parts = [_at_thresholds(part, arm, baseline) for _, part in rows.groupby("failure_type", sort=False)]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(_SHOWN))
    keys = ["model", "failure_type", "structure"]
    keys += [column for column in arm if column not in keys and column in table and tells_apart(table, column)]
    table["n_pairs"] = table["n_pairs"].astype("Int64")
    table = sort_arms(table, ["failure_type", *keys, "threshold"])
    table = _other_signs(table, keys)[list(dict.fromkeys([*keys, *_SHOWN]))]
    # The plan names the results' own threshold; at any other one nothing was planned.
    table = stamped(table.rename(columns={"threshold": "_at", "stamped_threshold": "threshold"}), results)
    table = table.rename(columns={"_at": "threshold", "threshold": "stamped_threshold"})
    other = ~table["is_stamped"].astype(bool)
    words = {"analysis": "exploratory", "analysis_note": "another threshold than the results' own"}
    return table.assign(**{column: table[column].mask(other, word) for column, word in words.items()})


_SHOWN = (
    "model", "failure_type", "structure", "arm", "baseline", "threshold", "stamped_threshold", "is_stamped",
    "failure_rate", "low", "high", "n_entries", "n_unscored", "n_generations", "n_pairs", "difference_pp", "low_pp",
    "high_pp", "interval", "mcnemar_p", "remark", "warning",
)  # fmt: skip
NO_DISCORDANT = "no discordant pairs"
_SCORES = (
    "entry_id", "failure_type", "generation", "status", "status_reason", "score", "threshold", "high_is_bad",
    "scale_low", "scale_high",
)  # fmt: skip


def _at_thresholds(rows: pd.DataFrame, arm: list[str], baseline: str) -> pd.DataFrame:
    """Rates and differences of one failure type at every threshold of its scale."""
    thresholds = scale(rows)[1:]
    stamps = unit_rows(rows, arm)[0]["threshold"]
    matched = {}
    if baseline in set(rows["structure"]):  # under one threshold, so that arms stamped with others are matched too
        table, behind = compare(rows.assign(threshold=float(thresholds[0])), arm, baseline, "failure")
        for row, one in zip(table.to_dict("records"), behind, strict=True):
            at = [pd.Series(side.index, side["entry_id"])[one.pairs["entry_id"]] for side in (one.arm, one.baseline)]
            matched[one.arm.index[0]] = (row, *(side.to_numpy(dtype=int) for side in at))
    # Units have the same order at every threshold, so that a position is an entry of an arm; fewer columns are faster.
    rows = rows[[column for column in (*_SCORES, *arm) if column in rows]]
    at_threshold = {threshold: unit_rows(rows, arm, threshold=threshold)[0] for threshold in thresholds}
    found = []
    for key, group in at_threshold[thresholds[0]].groupby(arm, sort=False):
        complete = group.index[group["complete"]]
        own = stamps[group.index[0]]
        row, *sides = matched.get(group.index[0], (None,))
        named = dict(zip(arm, key, strict=True)) | {
            "failure_type": group["failure_type"].iloc[0], "baseline": baseline,
            "stamped_threshold": nan if own == NONE else own, "n_entries": len(complete),
            "n_unscored": len(group) - len(complete), "n_generations": int(group["expected"].iloc[0]),
        }  # fmt: skip
        for threshold, units in at_threshold.items():
            fails = units["failed"].to_numpy()
            n_failed = float(fails[complete].sum())
            low, high = wilson(n_failed, len(complete))
            rate = n_failed / len(complete) if len(complete) else nan
            found.append(
                named
                | {"threshold": threshold, "is_stamped": own == threshold}
                | {"failure_rate": rate, "low": low, "high": high}
                | (_unmatched(group, baseline) if row is None else _matched(row, *(fails[side] for side in sides)))
            )
    return pd.DataFrame(found)


def _unmatched(group: pd.DataFrame, baseline: str) -> dict:
    itself = group["structure"].iloc[0] == baseline
    return {
        "arm": label_of(group), "n_pairs": pd.NA, "difference_pp": nan, "low_pp": nan, "high_pp": nan, "mcnemar_p": nan,
        "interval": "Wilson", "remark": "the baseline itself" if itself else "no baseline under the same settings",
        "warning": "",
    }  # fmt: skip


def _matched(row: dict, arm: np.ndarray, baseline: np.ndarray) -> dict:
    """The paired difference of an arm that ``compare`` matched, from its outcomes at one threshold."""
    n, only_arm, only_baseline = len(arm), int((arm > baseline).sum()), int((arm < baseline).sum())
    low, high = tango(only_arm, only_baseline, n)
    remarks = [part for part in row["remark"].split("; ") if part != NO_DISCORDANT]
    return {
        "arm": row["arm"], "n_pairs": n, "difference_pp": 100 * (only_arm - only_baseline) / n if n else nan,
        "low_pp": 100 * low, "high_pp": 100 * high, "mcnemar_p": mcnemar_exact(only_arm, only_baseline) if n else nan,
        "interval": "Wilson; of the difference: Tango, paired entries",
        "remark": said([*remarks, NO_DISCORDANT if n and not only_arm + only_baseline else ""]),
        "warning": row["warning"],
    }  # fmt: skip


def scale(rows: pd.DataFrame) -> list[int]:
    """Scores that the judge of some rows of one failure type can give, lowest first.

    Raises
    ------
    InputError
        If neither the rows nor the failure type say so.
    """
    kind = FAILURE_TYPES.get(rows["failure_type"].iloc[0])
    ends = []
    for column, known, end in (("scale_low", "low", "min"), ("scale_high", "high", "max")):
        stamped_end = pd.to_numeric(rows[column]).agg(end) if column in rows else nan
        ends.append(stamped_end if pd.notna(stamped_end) else getattr(kind, known, None))
    if None in ends:
        raise InputError(
            f"The scale of failure type {rows['failure_type'].iloc[0]!r} is not known; give the rows its lowest and "
            "highest score in scale_low and scale_high."
        )
    return list(range(int(ends[0]), int(ends[1]) + 1))


def _other_signs(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The table with a remark where a difference has another sign than at the stamped threshold."""
    if not len(table):
        return table
    difference = table["difference_pp"].astype(float).round(9)
    own = difference.where(table["is_stamped"]).groupby([table[key] for key in keys], sort=False).transform("max")
    words = "the other sign than at the stamped threshold"
    other = np.where(difference * own < 0, words, "")
    return table.assign(remark=[said(words) for words in zip(table["remark"], other, strict=True)])


def score_distribution(results: pd.DataFrame, by: str | Iterable[str] = ("model", "structure")) -> pd.DataFrame:
    """How often each score was given, over the generations of complete entries.

    The mean of the distribution is ``mean_score``, its part on the failing side of the threshold ``fr_at_1``. With
    ``generation`` in ``by``, each generation stands alone.

    Parameters
    ----------
    results, by
        As in ``failure_rate``; rows with scores (not echo).

    Returns
    -------
    DataFrame
        One row per group × ``score`` of the scale, also where it was never given: ``share`` in [0, 1] of the
        generations, with ``low``, ``high``: 95 % Wilson interval at the effective number of generations, entries as
        clusters; ``n_with_score`` generations; ``n_entries`` complete entries of ``n_generations`` (K) each, and
        ``n_unscored`` incomplete ones, which are in no share; ``threshold``, ``interval``, ``reason`` where there is no
        share. Shares of a group without complete entries are NaN.

    Raises
    ------
    InputError
        As ``failure_rate``; also for an unknown scale.
    """
    groups, shown = rate_groups(results, by, "failure")
    extra = [by] if isinstance(by, str) else list(by)
    arm = [column for column in ARM if column in results and column != "threshold"]
    unit = list(dict.fromkeys(["failure_type", *arm, *(c for c in extra if c != "threshold"), "entry_id"]))
    rows = keep_none(results, unit)
    scales = {kind: scale(part) for kind, part in rows.groupby("failure_type", sort=False)}
    complete = pd.concat([one.complete[unit] for one in groups]) if groups else pd.DataFrame(columns=unit)
    sizes = [len(one.complete) for one in groups]
    complete = complete.assign(_group=np.repeat(np.arange(len(groups)), sizes))
    given = complete.merge(rows[[*unit, "score"]], on=unit, how="left", validate="one_to_many")
    scores = {number: part for number, part in given.groupby("_group", sort=False)}
    found = []
    for number, (named, units, complete, n_generations) in enumerate(groups):
        here = scores.get(number, given.iloc[:0])
        assert len(here) == len(complete) * n_generations  # a complete entry has every generation once
        limit = units["threshold"].iloc[0]
        for score in scales[named["failure_type"]]:
            is_it = here["score"].eq(score).to_numpy(dtype=float)
            low, high = wilson_clustered(is_it, here["entry_id"].to_numpy())
            clusters = n_generations > 1 or complete["entry_id"].duplicated().any()
            found.append(
                named
                | {"score": score, "share": float(is_it.mean()) if len(is_it) else nan, "low": low, "high": high}
                | {"n_with_score": int(is_it.sum()), "n_entries": len(complete)}
                | {"n_unscored": len(units) - len(complete), "n_generations": n_generations}
                | {"threshold": nan if limit == NONE else limit}
                | {"interval": "Wilson, entries as clusters" if clusters else "Wilson"}
                | {"reason": "" if len(complete) else why_nothing(units, "failure")}
            )
    columns = [*shown, "score", "share", "low", "high", "n_with_score", "n_entries", "n_unscored", "n_generations"]
    columns = dict.fromkeys([*columns, "threshold", "interval", "reason"])
    keys = [key for key in shown if key != "arm"]
    table = sort_arms(pd.DataFrame(found, columns=list(columns)), ["failure_type", *keys, "score"])
    return stamped(table, results)
