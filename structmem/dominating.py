"""Dominance: whether an arm is no worse in leakage and in beneficial failures at once, model by model."""

from __future__ import annotations

import pandas as pd

from .comparisons import paired_differences
from .errors import InputError
from .stamping import stamped

_KINDS = {"leakage": "cross_domain", "beneficial": "beneficial_memory_usage"}
_NUMBERS = ("difference_pp", "low_pp", "high_pp", "n_pairs")


def dominance(results: pd.DataFrame, baseline: str = "flat") -> pd.DataFrame:
    """Which of an arm and the baseline is better in leakage and in beneficial failures at once, model by model.

    One dominates the other if neither of its two rates is higher and one is lower, each on the entries that are
    complete in both arms. The verdict is about point estimates; the intervals beside it say how little may stand
    behind it. A/A arms are left out.

    Parameters
    ----------
    results : DataFrame
        One row per generation, of both failure types.
    baseline : str
        A structure in the results.

    Returns
    -------
    DataFrame
        One row per model × arm (× settings and runs that differ) with both failure types:
        ``leakage_difference_pp`` and ``beneficial_difference_pp`` (arm − baseline, paired) with
        ``…_low_pp``, ``…_high_pp`` (95 %, Tango) and ``…_n_pairs`` entries; ``dominates``: the arm's name, the
        baseline's, or 'neither'.

    Raises
    ------
    InputError
        As ``paired_differences``; also without rows of both failure types.
    """
    table = paired_differences(results, baseline=baseline, outcome="failure")
    if missing := [kind for kind in _KINDS.values() if not len(table) or kind not in set(table["failure_type"])]:
        raise InputError(f"dominance needs rows of both failure types; there is no comparison of {missing}.")
    table = table[~table["arm"].str.endswith("(A/A)") & (table["n_pairs"] > 0)]
    first = list(table.columns).index("n_pairs")
    keys = [name for name in table.columns[:first] if name not in ("failure_type", "outcome", "threshold")]
    sides = [
        table[table["failure_type"] == kind]
        .set_index(keys)[list(_NUMBERS)]
        .rename(columns=lambda name, what=what: f"{what}_{name}")
        for what, kind in _KINDS.items()
    ]
    both = sides[0].join(sides[1], how="inner", validate="one_to_one").reset_index()
    gaps = both[["leakage_difference_pp", "beneficial_difference_pp"]].round(9)
    better = gaps.max(axis=1).le(0) & gaps.min(axis=1).lt(0)
    worse = gaps.min(axis=1).ge(0) & gaps.max(axis=1).gt(0)
    both["dominates"] = both["arm"].where(better, both["baseline"].where(worse, "neither"))
    spare = [name for name in keys if name not in ("model", "arm", "baseline") and both[name].nunique() < 2]
    return stamped(both.drop(columns=spare), results)
