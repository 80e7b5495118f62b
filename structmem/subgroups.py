"""Paired differences in subgroups of entries: whether an arm helps some entries and not others. Exploratory."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from .comparisons import groups_by_arm
from .errors import InputError
from .intervals import LEVEL, bounded, mcnemar_exact, tango
from .multiplicity import adjusted
from .outcomes import NONE, check_results, keep_none, sort_arms
from .pairing import Behind, arm_keys, compare, said, shown_keys, with_numbers
from .stamping import stamped
from .stats import outcome_of

FEW_ENTRIES = 10
_AT_ONCE = 1000  # permutations held in memory
NO_DISCORDANT = "no discordant pairs"


def subgroup_differences(
    results: pd.DataFrame,
    by: str | Iterable[str] = "n_memories",
    baseline: str = "flat",
    bins: int = 3,
    outcome: str | None = None,
    resamples: int = 9999,
    seed: int = 0,
) -> pd.DataFrame:
    """Each arm against the baseline within subgroups of entries, and whether the subgroups differ.

    Pairs are matched as in ``paired_differences``. An entry counts once: its difference is the mean over the runs (and,
    in the rows 'all models', over the models) in which it is complete in both arms. So entries are the independent
    units throughout, and the estimand is *these models, new entries*.

    Whether subgroups differ is tested by permuting the entries' subgroups: the statistic is the variance of the
    subgroups' mean differences, each weighing as many as it has entries (Pitman 1938, Biometrika 29:322). It assumes
    that entries are exchangeable between subgroups if the arm acts alike in all of them; where the rates differ between
    subgroups, so may the spread of the differences, and the test may notice that too. A difference that is
    distinguishable from 0 in one subgroup and not in another does not show that the two differ: this test does.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    by : column name or names
        Labels of entries: several make one label ('health → finance' for ``("memory_domain", "query_domain")``). A
        number with more than ``bins`` values is cut at quantiles of the entries, per failure type.
    baseline : str
        A structure in the results.
    bins : int
        Subgroups to make of a number; fewer where many entries have the same value.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.
    resamples, seed : int
        Random permutations; the p-value counts the observed one too (Phipson & Smyth 2010, Statistical Applications in
        Genetics and Molecular Biology 9:39), so that the smallest is 1 / (resamples + 1).

    Returns
    -------
    DataFrame
        One row per model (then 'all models', with several) × arm × failure type × ``subgroup`` of ``subgroups_by``:
        ``n_entries`` with ``n_pairs`` of outcomes in ``n_models`` and ``n_runs``, ``n_left_out`` entries;
        ``rate_baseline``, ``rate_arm`` in [0, 1]; ``difference_pp`` = arm − baseline with ``low_pp``, ``high_pp``
        (95 %) and its ``interval``: Tango's where every entry has one pair, else t over entries; the discordant counts;
        ``mcnemar_p`` (exact) with Tango's interval, else ``t_p``; ``bh_p``, Benjamini–Hochberg over all ``n_family``
        rows of the table; ``subgroups_differ_p`` (not adjusted) and its ``test``, the same in all
        subgroups of an arm; ``remark``: subgroups under 10 entries, among others; ``warning`` as in
        ``paired_differences``. Always exploratory.

    Raises
    ------
    InputError
        As ``paired_differences``; also for a column that differs between the rows of an entry.
    """
    outcome = outcome_of(results, outcome)
    by = [by] if isinstance(by, str) else list(by)
    check_results(results, by)
    if not by or bins < 2 or resamples < 1:
        raise InputError(
            "subgroup_differences needs a column, at least 2 bins and at least 1 resample; "
            f"got by={by}, bins={bins}, resamples={resamples}."
        )
    table, behind = compare(results, ["model"], baseline, outcome)
    name, labels = " → ".join(by), _labels(results, by, bins)
    keys, rows = ["model", *(arm_keys(table) if len(table) else ())], []
    for named, group in groups_by_arm(table):
        parts = _split(group, [behind[position] for position in group.index], labels[named["failure_type"]])
        rng = np.random.default_rng(seed)  # an arm's p-value does not depend on which other arms there are
        rows += [named | {"subgroups_by": name} | row for row in _family(parts, group, outcome, resamples, rng)]
    verb = {"failure": "fails", "echo": "echoes"}[outcome]
    columns = [*keys, *_COLUMNS[:10], f"n_only_baseline_{verb}", f"n_only_arm_{verb}", *_COLUMNS[10:]]
    result = pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))
    if not len(result):
        return stamped(result, results)
    # Stable: within a failure type the rows stay as made.
    order = sort_arms(result[["failure_type"]].assign(position=range(len(result))), ["failure_type", "position"])
    result = result.iloc[order["position"]].reset_index(drop=True)
    kept = shown_keys(result, keys)
    result = with_numbers(result[[*kept, *[column for column in result if column not in keys]]])
    # Subgroups are never planned: without a baseline the rows cannot be taken for planned contrasts.
    result = adjusted(result, "difference_p").drop(columns=["holm_p", "adjustment", "difference_p"])
    result.insert(len(kept), "baseline", baseline)
    return stamped(result, results)


_COLUMNS = (
    "subgroups_by", "subgroup", "n_entries", "n_pairs", "n_models", "n_runs", "n_left_out", "rate_baseline",
    "rate_arm", "difference_pp", "low_pp", "high_pp", "interval", "unit", "estimand", "mcnemar_p", "t_p",
    "difference_p", "subgroups_differ_p", "test", "remark", "warning",
)  # fmt: skip


def _labels(results: pd.DataFrame, by: list[str], bins: int) -> dict[str, pd.Series]:
    """Per failure type, the label of each entry, categories in the order in which tables show them."""
    rows = keep_none(results[["entry_id", "failure_type"]], ["entry_id", "failure_type"])
    rows = rows.assign(**{f"_{column}": results[column].replace("", None) for column in by})
    found = {}
    for kind, part in rows.groupby("failure_type", sort=False):
        of_entry = part.groupby("entry_id", sort=False)
        for column in by:
            if (several := of_entry[f"_{column}"].nunique() > 1).any():
                raise InputError(
                    f"by must label entries; {column!r} differs between the rows of {int(several.sum())} "
                    f"{kind} entries, for example {several.idxmax()!r}."
                )
        values = of_entry.first()
        parts = [_cut(values[f"_{column}"], bins) for column in by]
        text = parts[0].astype(object)
        for other in parts[1:]:
            text = text + " → " + other.astype(object)
        order = sorted(set(zip(*(one.cat.codes for one in parts), text, strict=True)))
        names = dict.fromkeys(name for *_, name in order)
        nothing = " → ".join([NONE] * len(by))
        found[kind] = pd.Series(pd.Categorical(text, list(names)), values.index).cat.rename_categories({nothing: NONE})
    return found


def _cut(values: pd.Series, bins: int) -> pd.Series:
    """Labels as categories; a number with more values than bins is cut at its quantiles, named by what is inside."""
    if pd.api.types.is_bool_dtype(values) or not pd.api.types.is_numeric_dtype(values) or values.nunique() <= bins:
        numeric = pd.api.types.is_numeric_dtype(values)
        order = [f"{value:g}" if numeric else str(value) for value in sorted(values.dropna().unique())]
        text = values.map(lambda value: f"{value:g}" if numeric else str(value), na_action="ignore")
    else:
        values = values.astype(float)
        cut = pd.qcut(values, bins, labels=False, duplicates="drop")
        ends = values.groupby(cut).agg(["min", "max"])
        names = {at: f"{low:g}" if low == high else f"{low:g}–{high:g}" for at, low, high in ends.itertuples()}
        order, text = list(names.values()), cut.map(names)
    return pd.Series(pd.Categorical(text.astype(object).where(text.notna(), NONE), [*order, NONE]), values.index)


def _split(group: pd.DataFrame, behind: list[Behind], labels: pd.Series) -> list[tuple[str, pd.DataFrame, int]]:
    """Per subgroup: its name, its pairs, and how many entries asked in either arm have none."""
    runs = enumerate(zip(behind, group["model"], strict=True))
    pairs = pd.concat([one.pairs.assign(model=model, run=run) for run, (one, model) in runs])
    asked = set().union(*(set(side["entry_id"]) for one in behind for side in (one.arm, one.baseline)))
    asked = labels[labels.index.isin(asked)]
    subgroup = pairs["entry_id"].map(labels.astype(object))
    found = []
    for name in [name for name in labels.cat.categories if (asked == name).any()]:
        mine = pairs[subgroup == name]
        found.append((name, mine, int((asked == name).sum()) - mine["entry_id"].nunique()))
    assert sum(len(mine) for _, mine, _ in found) == len(pairs)  # every pair is in one subgroup
    return found


def _family(
    parts: list[tuple[str, pd.DataFrame, int]],
    group: pd.DataFrame,
    outcome: str,
    resamples: int,
    rng: np.random.Generator,
) -> list[dict]:
    """The rows of the subgroups of one arm, with the test whether they differ."""
    differences = [_by_entry(pairs) for _, pairs, _ in parts]
    p, test = _differ([values for values in differences if len(values)], resamples, rng)
    verb = {"failure": "fails", "echo": "echoes"}[outcome]
    remarks = [part for text in group["remark"] for part in text.split("; ") if part != NO_DISCORDANT]
    rows = []
    for (name, pairs, n_left_out), values in zip(parts, differences, strict=True):
        sides = {side: pairs.groupby("entry_id")[f"failed_{side}"].mean().mean() for side in ("baseline", "arm")}
        only_arm = int((pairs["failed_arm"] > pairs["failed_baseline"]).sum())
        only_baseline = int((pairs["failed_arm"] < pairs["failed_baseline"]).sum())
        few = f"fewer than {FEW_ENTRIES} entries" if len(values) < FEW_ENTRIES else ""
        same = NO_DISCORDANT if len(values) and not only_arm + only_baseline else ""
        rows.append(
            {"subgroup": name, "n_entries": len(values), "n_pairs": len(pairs), "n_models": pairs["model"].nunique()}
            | {"n_runs": pairs["run"].nunique(), "n_left_out": n_left_out}
            | {f"rate_{side}": rate for side, rate in sides.items()}
            | {"difference_pp": 100 * float(values.mean()) if len(values) else nan}
            | _uncertain(values, only_arm, only_baseline, len(pairs))
            | {f"n_only_baseline_{verb}": only_baseline, f"n_only_arm_{verb}": only_arm}
            | {"unit": "entry", "estimand": "these models, new entries", "subgroups_differ_p": p, "test": test}
            | {"remark": said([few, same, *(remarks if not len(values) else [])]), "warning": said(group["warning"])}
        )
    return rows


def _by_entry(pairs: pd.DataFrame) -> np.ndarray:
    """One difference per entry, arm − baseline: the mean over its pairs."""
    apart = pairs["failed_arm"].astype(float) - pairs["failed_baseline"].astype(float)
    return apart.groupby(pairs["entry_id"], sort=True).mean().to_numpy()


def _uncertain(values: np.ndarray, only_arm: int, only_baseline: int, n_pairs: int) -> dict:
    """Interval and p-value of a mean of one difference per entry."""
    n = len(values)
    if n == n_pairs:
        low, high = tango(only_arm, only_baseline, n)
        p = mcnemar_exact(only_arm, only_baseline) if n else nan
        interval = "Tango, paired entries" if n else "not available: no pairs"
        return {"low_pp": 100 * low, "high_pp": 100 * high, "interval": interval, "mcnemar_p": p, "difference_p": p}
    error = float(values.std(ddof=1)) / sqrt(n) if n > 1 else 0.0
    if error < 1e-12:
        return {"low_pp": nan, "high_pp": nan, "interval": f"not available: {'no variation' if n > 1 else 'one entry'}"}
    mean, half = float(values.mean()), stats.t.ppf((1 + LEVEL) / 2, n - 1) * error
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
    low, high = bounded(100 * (mean - half), 100 * (mean + half))
    bounds = {"low_pp": low, "high_pp": high}
    return bounds | {"interval": "t over entries", "t_p": p, "difference_p": p}


def _differ(samples: list[np.ndarray], resamples: int, rng: np.random.Generator) -> tuple[float, str]:
    """p-value of the test whether subgroups differ, and its name, or why there is none."""
    if len(samples) < 2:
        return nan, f"not available: {len(samples)} subgroup{'' if len(samples) == 1 else 's'} with entries"
    values, sizes = np.concatenate(samples), np.array([len(sample) for sample in samples])
    if np.ptp(values) < 1e-9:
        return 1.0, "permutation of subgroups over entries: no variation"
    starts = np.cumsum(sizes) - sizes

    def between(rows: np.ndarray) -> np.ndarray:
        """The variance between subgroups but for what permutations leave alone."""
        return np.sum(np.add.reduceat(rows, starts, axis=-1) ** 2 / sizes, axis=-1)

    # Not scipy's permutation_test: it refuses subgroups of one entry.
    least, reached = float(between(values)) - 1e-9, 0
    for first in range(0, resamples, _AT_ONCE):
        drawn = rng.permuted(np.tile(values, (min(_AT_ONCE, resamples - first), 1)), axis=1)
        reached += int(np.sum(between(drawn) >= least))
    return (1 + reached) / (1 + resamples), f"permutation of subgroups over entries, {resamples} drawn"
