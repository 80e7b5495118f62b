"""Several tests at once: Holm within the plan's families, Benjamini–Hochberg over exploratory rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .analysis_plan import ALL_MODELS, AnalysisPlan, load_plan
from .errors import InputError, choice

EXPLORATORY = "exploratory"


def adjusted(table: pd.DataFrame, p: str, plan: AnalysisPlan | None = None) -> pd.DataFrame:
    """Adjust a column of p-values for the tests it stands among; the raw ones stay.

    A row belongs to the family in which the plan has its contrast, if it is about the planned estimand over all models
    (a row per model, or without one of them, is not) and, where the plan has a margin, about a margin. All other rows
    are exploratory, and so are those whose ``analysis`` says so (see ``stamped``); these have both adjusted p-values.

    Parameters
    ----------
    table : DataFrame
        One row per test; contrasts have the columns ``failure_type``, ``arm`` and ``baseline``.
    p : str
        The column of two-sided or one-sided p-values, in [0, 1] or missing; its name ends in ``_p``.
    plan : AnalysisPlan, optional
        By default `load_plan`.

    Returns
    -------
    DataFrame
        The table with, right behind `p`: ``holm_p`` (Holm 1979, within the family; NaN outside of families), ``bh_p``
        (Benjamini and Hochberg 1995, over the exploratory rows; NaN for others), ``family`` ('exploratory' outside of
        families), ``n_family`` (p-values counted in it), and ``adjustment``, which says in words what was counted and
        what was not: a missing p-value stays missing and is not counted.

    Raises
    ------
    InputError
        No such column, values that are no p-values, or a table that is adjusted already.
    """
    if p not in table or not str(p).endswith("_p"):
        raise choice("p", p, [name for name in map(str, table) if name.endswith("_p")])
    if done := [name for name in ("holm_p", "bh_p", "family", "n_family") if name in table]:
        raise InputError(f"the table has {done} already; adjust one column of p-values of the table as it was made.")
    try:
        raw = pd.to_numeric(table[p]).astype("float64").to_numpy()
    except (ValueError, TypeError):
        raise InputError(f"{p} must hold numbers in [0, 1], got {table[p].iloc[0]!r}, …") from None
    if (off := ~np.isnan(raw) & ~((raw >= 0) & (raw <= 1))).any():
        raise InputError(f"{p} must lie in [0, 1], got {raw[off][0]:g}.")
    plan = plan or load_plan()
    family = _families(table, plan)
    exploratory = family == EXPLORATORY
    if "analysis" in table:
        exploratory |= (table["analysis"] == EXPLORATORY).to_numpy()
    holm, bh, counted = np.full(len(table), np.nan), np.full(len(table), np.nan), np.zeros(len(table), dtype=int)
    words = np.full(len(table), "", dtype=object)
    for name in dict.fromkeys([*family[family != EXPLORATORY], EXPLORATORY]):
        within = exploratory if name == EXPLORATORY else family == name
        if not within.any():
            continue
        used = within & ~np.isnan(raw)
        (bh if name == EXPLORATORY else holm)[used] = _adjust(raw[used], "fdr_bh" if name == EXPLORATORY else "holm")
        counted[family == name] = used.sum()
        said = _words(name, int(used.sum()), int(within.sum()), _absent(table[within], name, plan))
        words[within] = [f"{before}; {said}" if before else said for before in words[within]]
    words[np.isnan(raw)] = [f"no p-value, not counted; {text}" for text in words[np.isnan(raw)]]
    place = table.columns.get_loc(p) + 1
    new = {"holm_p": holm, "bh_p": bh, "family": family, "n_family": counted, "adjustment": words}
    out = table.assign(**new)
    columns = list(table.columns)
    return out[[*columns[:place], *new, *columns[place:]]]


def _families(table: pd.DataFrame, plan: AnalysisPlan) -> np.ndarray:
    found = np.full(len(table), EXPLORATORY, dtype=object)
    if not {"failure_type", "arm", "baseline"} <= set(table):
        return found
    models = set(table["model"].dropna()) if "model" in table else set()
    for place, row in enumerate(table.to_dict("records")):
        over_models = len(models) < 2 or row["model"] == ALL_MODELS
        of_margin = row["failure_type"] == plan.margin_failure_type and "margin_pp" not in row
        if over_models and not of_margin and row.get("estimand", plan.estimand) == plan.estimand:
            found[place] = plan.family(row["failure_type"], row["arm"], row["baseline"]) or EXPLORATORY
    return found


def _adjust(values: np.ndarray, method: str) -> np.ndarray:
    from statsmodels.stats.multitest import multipletests

    return multipletests(values, method=method)[1] if len(values) else values


def _absent(rows: pd.DataFrame, name: str, plan: AnalysisPlan) -> int:
    """How many contrasts of a family the table does not have."""
    if name == EXPLORATORY:
        return 0
    there = set(rows[["failure_type", "arm", "baseline"]].itertuples(index=False, name=None))
    return len(set(plan.families[name]) - there)


def _words(name: str, n: int, rows: int, absent: int) -> str:
    tests = f"{n} test{'' if n == 1 else 's'}"
    said = f"Benjamini–Hochberg over {tests}" if name == EXPLORATORY else f"Holm over {tests} of family {name!r}"
    notes = [f"{rows - n} without a p-value not counted"] if rows > n else []
    notes += [f"{absent} planned not in this table"] if absent else []
    return f"{said} ({', '.join(notes)})" if notes else said
