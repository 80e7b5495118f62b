"""Structurers against reference labels: accuracy, macro-F1 and kappa, per domain, as a confusion matrix, and paired."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from .ambiguity import WILSON
from .assigned import KEY, NEW, NO_RATING, check_assignments, known_labels
from .errors import InputError, choice
from .intervals import LEVEL, bounded, clustered_mean, wilson_clustered
from .labels import NO_DOMAIN
from .outcomes import NONE
from .reliability import JACKKNIFE, distance_of, kappas, within_one
from .taxonomy import Taxonomy, load_taxonomy
from .tree import UNCLASSIFIED

MAJORITY = "majority domain"
LINEARIZED = "t over entries within strata"
ALIKE, SAMPLED = "every memory alike", "sampling weights"


def structurer_accuracy(
    assigned: pd.DataFrame, labels: pd.DataFrame, weighted: bool = False, taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """How well each rater sorts, against reference labels.

    Parameters
    ----------
    assigned : DataFrame
        One row per memory and rater (see `assignments`).
    labels : DataFrame
        See `load_labels`. Memories without a label are left out, and counted.
    weighted : bool
        Weigh each entry by its sampling weight: the benchmark's memories instead of the sample's.
    taxonomy : str or Taxonomy

    Returns
    -------
    DataFrame
        One row per ``rater``, then the domain that is primary most often, given to every memory ('majority domain
        (…)', chosen on these labels, on the memories of the first rater): ``n_memories``, ``n_entries``,
        ``n_unlabelled`` left out; ``accuracy``, share inside the acceptable set; ``misclassified_share``, in a domain
        outside of it; ``n_unclassified``, in none (with the other two, all; a memory that no domain covers is right in
        none); ``above_majority_pp``, accuracy minus that of the majority domain on the same memories, paired, with
        ``above_majority_low_pp``, ``above_majority_high_pp`` (95 %); ``n_new_domain``, memories
        in domains that the labels do not know, which are misclassified by that rule alone; ``primary_accuracy``, share
        in the primary domain; ``macro_f1``, mean F1 over the domains that are primary for some memory, against the
        primary domain; ``kappa``, Cohen's, likewise. Shares, F1 and kappa with ``…_low``, ``…_high`` (95 %);
        ``accuracy_interval`` and ``interval`` (macro-F1 and kappa) name them; ``weighting`` in words, which say so
        where a rater sorted a part of the labelled entries only, for which the weights do not stand.

    Raises
    ------
    InputError
        As `check_assignments`; also if no memory is labelled.

    Notes
    -----
    Intervals take entries as clusters. Shares: Wilson's at the effective number of memories; the paired difference: t
    over entries. Weighted, all of them: the ratio's
    linearized error between entries within strata (Särndal, Swensson & Wretman 1992, *Model Assisted Survey Sampling*,
    section 5.7), t with entries − strata degrees of freedom, without a correction for the finite benchmark. macro-F1
    and kappa: jackknife over entries on the atanh scale (strata ignored).
    """
    matched, lost = _matched(assigned, labels, taxonomy)
    majority = _majority(matched)
    names = list(dict.fromkeys(matched["rater"]))
    rows = [
        _accuracy_row(rater, matched[matched["rater"] == rater], lost[rater], weighted, majority) for rater in names
    ]
    first = matched[matched["rater"] == names[0]]
    constant = first.assign(given=majority, right=[majority in some for some in first["acceptable"]], new=False)
    rows.append(_accuracy_row(f"{MAJORITY} ({majority})", constant, lost[names[0]], weighted, majority))
    table, whole = pd.DataFrame(rows), labels["entry_id"].nunique()
    part = table["n_entries"] < whole if weighted else pd.Series(False, table.index)
    return table.assign(weighting=table["weighting"].mask(part, f"{SAMPLED}, but of a part of the sample"))


def _matched(
    assigned: pd.DataFrame, labels: pd.DataFrame, taxonomy: str | Taxonomy
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Labelled assignments with what was given and whether it is right, and per rater how many have no label."""
    assigned = check_assignments(assigned)
    known = known_labels(labels, "domain", "acceptable", "weight", "stratum").rename(columns={"domain": "reference"})
    table = assigned.merge(known, on=KEY, how="left", validate="m:1")
    unlabelled = table["reference"].isna()
    lost = unlabelled.groupby(table["rater"]).sum().to_dict()
    table = table[~unlabelled].reset_index(drop=True)
    if without := [rater for rater in lost if rater not in set(table["rater"])]:
        raise InputError(f"rater {without[0]!r} sorted no labelled memory; expected some of the labelled entries.")
    if not len(table):
        raise InputError("there are no assignments; expected one row per memory and rater.")
    names = load_taxonomy(taxonomy).names
    # A memory that no domain covers is rightly left unclassified: both sides say so with the same word.
    given = table["domain"].replace(UNCLASSIFIED, NO_DOMAIN)
    right = [one in some for one, some in zip(given, table["acceptable"], strict=True)]
    return table.assign(given=given, right=right, new=~table["domain"].isin([*names, *NO_RATING])), lost


def _majority(matched: pd.DataFrame) -> str:
    reference = matched.drop_duplicates(KEY)["reference"]
    counts = reference[reference != NO_DOMAIN].value_counts()
    if not len(counts):
        raise InputError("no memory is labelled with a domain; there is nothing to compare with.")
    return min(counts.index, key=lambda name: (-counts[name], name))


def _accuracy_row(rater: str, rows: pd.DataFrame, n_unlabelled: int, weighted: bool, majority: str) -> dict:
    weights = rows["weight"].to_numpy(dtype=float) if weighted else np.ones(len(rows))
    entries, strata = rows["entry_id"].to_numpy(), rows["stratum"].to_numpy() if weighted else None
    none = rows["given"].isin([NO_DOMAIN, NONE]).to_numpy()
    right = rows["right"].to_numpy(dtype=bool)
    row = {"rater": rater, "n_memories": len(rows), "n_entries": rows["entry_id"].nunique()}
    row["n_unlabelled"] = int(n_unlabelled)
    shares = {"accuracy": right, "misclassified_share": ~right & ~none}
    shares["primary_accuracy"] = (rows["given"] == rows["reference"]).to_numpy()
    for name, values in shares.items():
        value, low, high, interval = share_of_memories(values.astype(float), entries, weights, strata)
        stem = name.removesuffix("_share")
        row |= {name: value, f"{stem}_low": low, f"{stem}_high": high}
        if name == "accuracy":
            row["accuracy_interval"] = interval
    constant = np.array([majority in some for some in rows["acceptable"]], dtype=float)
    row |= _above_majority(right - constant, entries, weights, strata)
    row |= {"n_unclassified": int((none & ~right).sum()), "n_new_domain": int(rows["new"].sum())}
    tables, classes = _tables(rows, weights)
    kappa = partial(kappas, distance=distance_of(np.arange(len(classes)), None))
    for name, statistic in (("macro_f1", partial(_macro_f1, held=tables.sum(axis=(0, 2)) > 0)), ("kappa", kappa)):
        found = within_one(tables, statistic)
        # Rounded: a constant rater's kappa is 0, not a hair below.
        row |= {name: round(float(statistic(tables.sum(axis=0)[None])[0]), 12) + 0.0}
        row |= {f"{name}_low": found["low"], f"{name}_high": found["high"], "interval": found["interval"]}
    row["interval"] = JACKKNIFE if row["macro_f1_low"] == row["macro_f1_low"] else row["interval"]
    return row | {"weighting": SAMPLED if weighted else ALIKE}


def _above_majority(
    gaps: np.ndarray, entries: np.ndarray, weights: np.ndarray, strata: np.ndarray | None
) -> dict[str, float]:
    """The mean of paired differences in pp: the majority's accuracy is estimated on the same memories, not known."""
    mean = float(np.average(gaps, weights=weights))
    if strata is None:
        low, high = clustered_mean(gaps, entries)
    else:
        half, _ = _linearized(gaps, entries, weights, strata)
        low, high = mean - half, mean + half
    low, high = bounded(100 * low, 100 * high)
    return {"above_majority_pp": 100 * mean, "above_majority_low_pp": low, "above_majority_high_pp": high}


def share_of_memories(
    values: np.ndarray, entries: np.ndarray, weights: np.ndarray, strata: np.ndarray | None
) -> tuple[float, float, float, str]:
    """A share of memories with its interval, entries as clusters; with strata design-weighted."""
    if strata is None:
        low, high = wilson_clustered(values, entries)
        return float(values.mean()), low, high, WILSON
    share = float(np.average(values, weights=weights))
    half, why = _linearized(values, entries, weights, strata)
    if why:
        return share, nan, nan, f"not available: {why}"
    return share, max(share - half, 0.0), min(share + half, 1.0), LINEARIZED


def _linearized(values: np.ndarray, entries: np.ndarray, weights: np.ndarray, strata: np.ndarray) -> tuple[float, str]:
    """Half the width of a weighted mean's interval, or NaN and why there is none."""
    mean = float(np.average(values, weights=weights))
    frame = pd.DataFrame({"entry": entries, "stratum": strata, "z": weights * (values - mean)})
    by_entry = frame.groupby(["stratum", "entry"], sort=True)["z"].sum()
    by_stratum = by_entry.groupby(level=0)
    n = by_stratum.transform("size")
    # An entry alone in its stratum shows no spread there; its distance from the whole is the cautious stand-in.
    apart = by_entry - by_stratum.transform("mean").where(n > 1, 0.0)
    squares = float((apart**2 * (n / (n - 1)).where(n > 1, 1.0)).sum()) / weights.sum() ** 2
    freedom = len(by_entry) - by_stratum.ngroups
    if freedom < 1 or squares < 1e-18:
        return nan, "no variation" if freedom >= 1 else "one entry per stratum"
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * sqrt(squares), ""


def _tables(rows: pd.DataFrame, weights: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Per entry, how much weight lies at (reference, given): entries × classes × classes."""
    given = rows["given"].mask(rows["new"], NEW)
    classes = sorted({*rows["reference"], *given})
    place = {name: at for at, name in enumerate(classes)}
    _, entry = np.unique(rows["entry_id"].to_numpy(dtype=str), return_inverse=True)
    tables = np.zeros((entry.max() + 1, len(classes), len(classes)))
    np.add.at(tables, (entry, rows["reference"].map(place).to_numpy(), given.map(place).to_numpy()), weights)
    return tables, classes


def _macro_f1(tables: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Mean F1 of many tables over the classes that the reference holds; F1 = 2 hits / (in reference + given)."""
    hits = np.einsum("bii->bi", tables)
    both = tables.sum(axis=1) + tables.sum(axis=2)
    return np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0)[:, held].mean(axis=1)


def domain_errors(
    assigned: pd.DataFrame, labels: pd.DataFrame, by: str = "reference", taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """Per domain, how many memories are misclassified, and where they went.

    Parameters
    ----------
    assigned, labels : DataFrame
        As for `structurer_accuracy`.
    by : 'reference' or 'assigned'
        Memories whose primary label is the domain; or memories that were put there.

    Returns
    -------
    DataFrame
        One row per ``rater`` and ``domain``: every domain of the taxonomy, also with ``n_memories`` = 0, then 'none'
        (by reference) or new domains and '(none)' (by assigned) where they occur. ``n_entries``;
        ``misclassified_share`` in [0, 1] with ``misclassified_low``, ``misclassified_high`` (95 %, Wilson, entries as
        clusters): outside the acceptable set, among all of the domain's memories; ``n_misclassified``;
        ``n_unclassified``, counted apart; ``n_new_domain`` among the misclassified; ``confused_with``: where they went
        (by assigned: what they are), the three most frequent with counts; ``interval``, ``reason``.
    """
    if by not in ("reference", "assigned"):
        raise choice("by", by, ("reference", "assigned"))
    matched, _ = _matched(assigned, labels, taxonomy)
    mine, other = ("reference", "domain") if by == "reference" else ("domain", "reference")
    names = load_taxonomy(taxonomy).names
    rows = []
    for rater, group in matched.groupby("rater", sort=False):
        others = sorted(set(group[mine]) - {*names, UNCLASSIFIED})
        for domain in [*names, *others]:
            rows.append({"rater": rater, "domain": domain} | _domain_row(group[group[mine] == domain], other))
    return pd.DataFrame(rows)


def _domain_row(some: pd.DataFrame, other: str) -> dict:
    none = some["domain"].isin(NO_RATING) & ~some["right"]
    wrong = ~some["right"] & ~none
    counts = (some[other].mask(some["new"], NEW) if other == "domain" else some[other])[wrong].value_counts()
    ranked = sorted(counts.index, key=lambda name: (-counts[name], name))[:3]
    low, high = wilson_clustered(wrong.to_numpy(dtype=float), some["entry_id"].to_numpy())
    return {
        "n_memories": len(some), "n_entries": some["entry_id"].nunique(),
        "misclassified_share": float(wrong.mean()) if len(some) else nan,
        "misclassified_low": low, "misclassified_high": high,
        "n_misclassified": int(wrong.sum()), "n_unclassified": int(none.sum()),
        "n_new_domain": int((wrong & some["new"]).sum()),
        "confused_with": ", ".join(f"{name} {counts[name]}" for name in ranked),
        "interval": WILSON if len(some) else "", "reason": "" if len(some) else "no memory of this domain",
    }  # fmt: skip


def confusion(
    assigned: pd.DataFrame, labels: pd.DataFrame, weighted: bool = False, taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """Confusion matrices: reference domain × assigned domain, every cell.

    Parameters
    ----------
    assigned, labels, weighted : as for `structurer_accuracy`

    Returns
    -------
    DataFrame
        One row per ``rater``, ``reference`` (primary label; every domain, then 'none') and ``assigned`` (every domain,
        then '(new domains)', 'unclassified' and '(none)' where they occur for any rater): ``n_memories``, the sum of
        sampling weights instead where ``weighted``; ``row_share`` of the reference domain's memories in [0, 1], NaN
        where it has none. The counts of a rater sum to its labelled memories.
    """
    matched, _ = _matched(assigned, labels, taxonomy)
    names = load_taxonomy(taxonomy).names
    put = matched["domain"].mask(matched["new"], NEW)
    ends = [name for name in (NEW, *NO_RATING) if (put == name).any()]
    rows = [*names, *sorted(set(matched["reference"]) - set(names))]
    cells = pd.MultiIndex.from_product(
        [dict.fromkeys(matched["rater"]), rows, [*names, *ends]], names=["rater", "reference", "assigned"]
    )
    weight = matched["weight"] if weighted else pd.Series(1, matched.index)
    counts = weight.groupby([matched["rater"], matched["reference"], put]).sum().reindex(cells, fill_value=0)
    table = counts.rename("n_memories").reset_index()
    total = table.groupby(["rater", "reference"], sort=False)["n_memories"].transform("sum")
    return table.assign(row_share=(table["n_memories"] / total.where(total > 0)).astype(float))


def confusion_grid(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `confusion` for reading: one row per rater and reference domain, a column of counts per assigned one.

    Returns
    -------
    DataFrame
        ``rater``, ``reference``, the assigned domains that any memory was put into, and ``memories``, the row's sum.
    """
    order = {name: list(dict.fromkeys(table[name])) for name in ("rater", "reference", "assigned")}
    wide = table.pivot(index=["rater", "reference"], columns="assigned", values="n_memories")
    wide = wide.reindex(pd.MultiIndex.from_product([order["rater"], order["reference"]]), columns=order["assigned"])
    wide = wide.assign(memories=wide.sum(axis=1))
    return wide.loc[:, wide.sum() > 0].rename_axis(["rater", "reference"]).rename_axis(None, axis=1).reset_index()


def accuracy_differences(
    assigned: pd.DataFrame, labels: pd.DataFrame, baseline: str | None = None, taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """Each rater's accuracy minus a baseline rater's, on the memories that both sorted and that are labelled.

    Parameters
    ----------
    assigned, labels : as for `structurer_accuracy`
    baseline : str, optional
        A rater; default: the first.

    Returns
    -------
    DataFrame
        One row per other ``rater``: ``baseline``, ``n_memories``, ``n_entries``; ``accuracy_baseline``,
        ``accuracy_rater`` in [0, 1]; ``difference_pp`` = rater − baseline with ``low_pp``, ``high_pp`` (95 %, t over
        entries as clusters); ``n_only_rater_right``, ``n_only_baseline_right``; ``interval``; ``remark``, how many of
        the memories that only the other has right are in new domains, misclassified by that rule alone.
    """
    matched, _ = _matched(assigned, labels, taxonomy)
    raters: Sequence[str] = list(dict.fromkeys(matched["rater"]))
    baseline = raters[0] if baseline is None else baseline
    if baseline not in raters:
        raise choice("baseline", baseline, raters)
    right, new = (matched.pivot(index=KEY, columns="rater", values=name) for name in ("right", "new"))
    rows = []
    for rater in [name for name in raters if name != baseline]:
        both = right[[baseline, rater]].dropna().astype(float)
        gaps, entries = 100 * (both[rater] - both[baseline]).to_numpy(), both.index.get_level_values(0).to_numpy()
        low, high = bounded(*clustered_mean(gaps, entries))
        opened = [
            f"{n} of these are in new domains of {name}"
            for name, lost in ((rater, gaps < 0), (baseline, gaps > 0))
            if (n := int(new.loc[both.index, name].to_numpy(dtype=bool)[lost].sum()))
        ]
        why = "no memory in common" if not len(gaps) else "no variation" if len(set(entries)) > 1 else "one entry"
        rows.append(
            {"rater": rater, "baseline": baseline, "n_memories": len(both), "n_entries": len(set(entries))}
            | {"accuracy_baseline": both[baseline].mean(), "accuracy_rater": both[rater].mean()}
            | {"difference_pp": gaps.mean() if len(gaps) else nan, "low_pp": low, "high_pp": high}
            | {"n_only_rater_right": int((gaps > 0).sum()), "n_only_baseline_right": int((gaps < 0).sum())}
            | {"interval": f"not available: {why}" if np.isnan(low) else "t over entries", "remark": "; ".join(opened)}
        )
    columns = ["rater", "baseline", "n_memories", "n_entries", "accuracy_baseline", "accuracy_rater", "difference_pp"]
    columns += ["low_pp", "high_pp", "n_only_rater_right", "n_only_baseline_right", "interval", "remark"]
    return pd.DataFrame(rows, columns=columns)
