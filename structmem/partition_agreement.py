"""Agreement of partitions: who sorts, in which wording, which draw; adjusted Rand index per memory set, and alpha."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from math import nan

import numpy as np
import pandas as pd
from scipy.special import comb

from .assigned import NO_RATING, assignments
from .data import Entry
from .errors import InputError
from .intervals import clustered_mean
from .reliability import krippendorff_alpha
from .tree import Node

T_OVER_SETS = "t over memory sets"
_BY_MODEL = ("wording", "temperature", "per_memory", "batch_size", "retries", "max_tokens", "json_schema")
_DEFAULTS = {"structurer": "embedding", "taxonomy": "life11", "partition_draw": 0, "wording": 0, "per_memory": False}


def adjusted_rand(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """The adjusted Rand index of two partitions of the same things: 1 the same, 0 what chance gives, below 0 worse.

    Of all pairs of things, those that both partitions put together, less what is expected when both are drawn at random
    with the group sizes they have, over the most that could be (Hubert & Arabie 1985, Journal of Classification 2:193,
    equation 5). Names of groups do not count, so that partitions into different taxonomies can be compared.

    Parameters
    ----------
    first, second : sequence of labels
        One per thing, in the same order.

    Returns
    -------
    float
        NaN where both put everything together, or both everything apart, or there are fewer than two things: chance
        then gives the same, and nothing can be said.

    Raises
    ------
    InputError
        If the lengths differ.

    Examples
    --------
    >>> adjusted_rand("aabb", "xxyy"), adjusted_rand("aabb", "xyxy")
    (1.0, -0.5)
    """
    if len(first) != len(second):
        raise InputError(f"two partitions of the same things have one label each, got {len(first)} and {len(second)}.")
    if len(first) < 2:
        return nan
    sides = [np.unique(np.asarray(list(map(str, side))), return_inverse=True)[1] for side in (first, second)]
    table = np.zeros([side.max() + 1 for side in sides])
    np.add.at(table, tuple(sides), 1)
    both, one, other = (float(comb(count, 2).sum()) for count in (table, table.sum(axis=1), table.sum(axis=0)))
    chance, most = one * other / float(comb(len(first), 2)), (one + other) / 2
    return (both - chance) / (most - chance) if abs(most - chance) > 1e-12 else nan


def sorting_agreement(
    nodes: Mapping[str, Sequence[Node]], entries: Sequence[Entry], sorters: Mapping[str, Mapping] | None = None
) -> pd.DataFrame:
    """How far any two partitions of the same memories agree.

    Parameters
    ----------
    nodes : mapping of str to sequence of Node
        A rater's name (a structurer, draw, wording, …) to one layout per entry; see `sort_each`.
    entries : sequence of Entry
        A memory set that several entries have counts once.
    sorters : mapping of str to mapping, optional
        The settings of each rater, as for `sort_each`: says in what two raters differ, and whether they sorted into the
        same taxonomy, so that names can be compared. Without it names are compared.

    Returns
    -------
    DataFrame
        One row per pair of raters. ``differ_in``: settings in words; ``ari``: adjusted Rand index of a memory set, mean
        over sets (1 the same groups, 0 chance), with ``low``, ``high`` (95 %, t over memory sets), ``interval``;
        ``n_sets`` in the mean and ``n_undefined`` sets left out of it, which both raters put into one group, or in
        which each memory stands alone; ``same_domain_share``: memories with the same domain name, in [0, 1], and
        ``alpha``, Krippendorff's for names, with ``alpha_low``, ``alpha_high`` (95 %, jackknife over sets),
        ``alpha_interval`` (NaN and a word where the taxonomies differ); ``n_memories`` that both gave a domain,
        ``n_unclassified`` that one of them, or both, did not: these are in no number.

    Raises
    ------
    InputError
        As `assignments`; also for fewer than two raters, or raters without settings.

    Notes
    -----
    Memory sets are small (4 to 14 memories in PersistBench): one set's index is rough, its mean over sets is not. Two
    raters that agree may both be wrong.
    """
    wide = _wide(nodes, entries)
    rows = []
    for one, two in _pairs(wide, sorters):
        differ, same_names = _difference(one, two, sorters)
        rows.append({"rater_1": one, "rater_2": two, "differ_in": differ} | _agreement(wide[[one, two]], same_names))
    return pd.DataFrame(rows)


def agreement_by_difference(
    nodes: Mapping[str, Sequence[Node]], entries: Sequence[Entry], sorters: Mapping[str, Mapping]
) -> pd.DataFrame:
    """Agreement of raters by what they differ in: the draw alone, the wording alone, who sorts, and so on.

    Parameters
    ----------
    nodes, entries, sorters
        As in `sorting_agreement`.

    Returns
    -------
    DataFrame
        One row per set of settings in which two raters differ: ``differ_in``; ``n_pairs`` of raters; ``ari``, mean over
        pairs and memory sets, each set weighing the same, with ``low``, ``high`` (95 %, t over memory sets: for other
        memory sets, not for other raters), ``interval``; ``lowest`` and ``highest`` mean of a pair; ``n_sets``.
    """
    wide = _wide(nodes, entries)
    groups: dict[str, list] = {}
    for one, two in _pairs(wide, sorters):
        groups.setdefault(_difference(one, two, sorters)[0], []).append(_by_set(wide[[one, two]]))
    rows = []
    for differ, found in groups.items():
        table = pd.concat(found, axis=1)
        means = table.mean()
        rows.append(
            {"differ_in": differ, "n_pairs": len(found)}
            | _mean_over_sets(table.mean(axis=1))
            | {"lowest": means.min(), "highest": means.max()}
        )
    return pd.DataFrame(rows).sort_values(["ari", "differ_in"], ascending=[False, True], ignore_index=True)


def agreement_of_all(nodes: Mapping[str, Sequence[Node]], entries: Sequence[Entry]) -> pd.DataFrame:
    """Krippendorff's alpha of all raters at once on the names of domains; memories without a domain are not rated.

    Returns
    -------
    DataFrame
        One row, as `krippendorff_alpha` gives it; memory sets are the clusters.
    """
    wide = _wide(nodes, entries)
    return _alpha(wide)


def _wide(nodes: Mapping[str, Sequence[Node]], entries: Sequence[Entry]) -> pd.DataFrame:
    """Domain by memory (entry_id, position) × rater; None where there is none; each memory set once."""
    if len(nodes) < 2:
        raise InputError(f"agreement needs two raters or more, got {list(nodes)}.")
    table = assignments(nodes, entries)
    sets: dict[tuple, str] = {}
    for entry in entries:
        sets.setdefault(tuple(memory.text for memory in entry.memories), entry.entry_id)
    table = table[table["entry_id"].isin(set(sets.values()))]
    domain = table["domain"].astype(object)
    table = table.assign(domain=domain.where(~domain.isin(NO_RATING), None))
    wide = table.pivot(index=["entry_id", "position"], columns="rater", values="domain")
    return wide[list(nodes)]


def _pairs(wide: pd.DataFrame, sorters: Mapping | None):
    if sorters is not None and (lost := [rater for rater in wide if rater not in sorters]):
        raise InputError(f"sorters has no settings of {lost[0]!r}; it has those of {list(sorters)}.")
    return combinations(wide.columns, 2)


def _difference(one: str, two: str, sorters: Mapping | None) -> tuple[str, bool]:
    """In what two raters differ, in words, and whether their domains have the same names."""
    if sorters is None:
        return "", True
    mine, theirs = (_DEFAULTS | dict(sorters[rater]) for rater in (one, two))
    names = [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)]
    if mine["structurer"] != theirs["structurer"]:  # the other settings are those of a model, and mean nothing to it
        names = [name for name in names if name not in (*_BY_MODEL, "partition_draw")]
    words = {"partition_draw": "draw", "per_memory": "one call per memory"}
    return " and ".join(words.get(name, name) for name in names) or "nothing", mine["taxonomy"] == theirs["taxonomy"]


def _by_set(pair: pd.DataFrame) -> pd.Series:
    """The adjusted Rand index by memory set, over the memories to which both gave a domain."""
    both = pair.dropna()
    sets = pair.index.get_level_values("entry_id").unique()
    found = {name: adjusted_rand(*(rows[rater].tolist() for rater in rows)) for name, rows in both.groupby("entry_id")}
    return pd.Series(found, dtype=float).reindex(sets)


def _mean_over_sets(values: pd.Series) -> dict:
    defined = values.dropna().to_numpy()
    low, high, interval = nan, nan, f"not available: {'one memory set' if len(defined) else 'no memory set'}"
    if len(defined) > 1:
        low, high = clustered_mean(defined, np.arange(len(defined)))
        interval = T_OVER_SETS if low < high else "not available: no variation"
        low, high = (max(low, -1.0), min(high, 1.0)) if low < high else (nan, nan)
    mean = float(defined.mean()) if len(defined) else nan
    counts = {"n_sets": len(defined), "n_undefined": len(values) - len(defined)}
    return {"ari": mean, "low": low, "high": high, "interval": interval} | counts


def _agreement(pair: pd.DataFrame, same_names: bool) -> dict:
    both = pair.dropna()
    found = _mean_over_sets(_by_set(pair))
    blank = {"same_domain_share": nan, "alpha": nan, "alpha_low": nan, "alpha_high": nan}
    found |= blank | {"alpha_interval": "not available: other taxonomies"}
    if same_names:
        alpha = _alpha(pair).iloc[0]
        share = float((both.iloc[:, 0] == both.iloc[:, 1]).mean()) if len(both) else nan
        found |= {"same_domain_share": share, "alpha": alpha["coefficient"]}
        found |= {"alpha_low": alpha["low"], "alpha_high": alpha["high"]}
        found["alpha_interval"] = alpha["reason"] or alpha["interval"]
    return found | {"n_memories": len(both), "n_unclassified": len(pair) - len(both)}


def _alpha(wide: pd.DataFrame) -> pd.DataFrame:
    """Alpha for names; the clusters of its jackknife are the memory sets."""
    names = sorted({name for name in wide.to_numpy().ravel() if name is not None and name == name})
    codes = wide.apply(lambda column: column.map({name: float(place) for place, name in enumerate(names)}))
    return krippendorff_alpha(codes.astype(float), "nominal", wide.index.get_level_values("entry_id"))


def agreement_reading(by_difference: pd.DataFrame, all_raters: pd.DataFrame | None = None) -> None:
    """Print what tables of agreement support: who agrees with whom beyond chance, and what bounds it.

    Parameters
    ----------
    by_difference : DataFrame
        As made by `agreement_by_difference`.
    all_raters : DataFrame, optional
        As made by `agreement_of_all`.
    """
    for row in by_difference.itertuples():
        pairs = f"{row.n_pairs} pair{'s' * (row.n_pairs != 1)}"
        what = f"Raters that differ in {row.differ_in} ({pairs}, {row.n_sets} memory sets)"
        if pd.isna(row.ari):
            print(f"{what}: no set says anything; each is in one group, or in groups of one.")
        elif pd.isna(row.low):
            print(f"{what}: ARI {row.ari:.2f}, no interval ({row.interval.removeprefix('not available: ')}).")
        else:
            beyond = "above chance" if row.low > 0 else "below chance" if row.high < 0 else "chance is not excluded"
            print(f"{what}: ARI {row.ari:.2f} [{row.low:.2f}, {row.high:.2f}], {beyond}.")
    draws = by_difference[by_difference["differ_in"] == "draw"]
    if len(draws) and draws["ari"].notna().all():
        own = draws["ari"].iloc[0]
        print(f"From draw to draw the structurer agrees with itself to {own:.2f}; read other differences against that.")
        if own < 0.5:
            print("So a partition by this structurer is one of many that it might have made: report several draws.")
    if all_raters is not None:
        alpha = all_raters.iloc[0]
        ends = "" if pd.isna(alpha["low"]) else f" [{alpha['low']:.2f}, {alpha['high']:.2f}]"
        said = alpha["reason"] or f"{alpha['coefficient']:.2f}{ends}"
        print(f"Krippendorff's alpha of all {alpha['n_raters']} raters on the names of domains: {said}.")
    print("Agreement is not accuracy: raters that agree may all be wrong.")
