"""Chance-corrected agreement from counts: kappa and Krippendorff's alpha with intervals, many tables at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import nan

import numpy as np
import pandas as pd
from scipy import stats

from .errors import InputError, choice
from .intervals import LEVEL

JACKKNIFE = "jackknife over entries, t on the atanh scale"
LEVELS = ("nominal", "ordinal", "interval")
ONE_CLASS = "undefined: one class"


def krippendorff_alpha(
    ratings: pd.DataFrame | np.ndarray,
    level: str = "ordinal",
    clusters: Iterable | None = None,
) -> pd.DataFrame:
    """Krippendorff's alpha of any number of raters, of whom some may have left units out.

    Parameters
    ----------
    ratings : DataFrame or 2-D array of numbers
        One row per unit (answer), one column per rater; NaN: not rated. (Krippendorff prints it the other way round.)
    level : 'nominal', 'ordinal' or 'interval'
        What a difference of two ratings means.
    clusters : labels, one per row, optional
        What is independent, for example the entries; default: each unit by itself.

    Returns
    -------
    DataFrame
        One row: ``measure``, ``coefficient`` (1: full agreement, 0: chance), ``low``, ``high`` (95 %), ``interval``,
        ``n_units`` with at least two ratings, ``n_raters``, ``n_ratings`` in them, ``n_left_out`` units with fewer,
        ``reason`` where the coefficient is missing.

    Raises
    ------
    InputError
        An unknown level, fewer than two raters, values that are no numbers, clusters of another length.

    Notes
    -----
    Krippendorff (2011), 'Computing Krippendorff's alpha-reliability', with his metrics for the three levels. Own code:
    the package that has it is under the GPL. Interval: jackknife over clusters with
    t on the atanh scale; simulated with 20 to 100 entries it covers 95.5 % on average, at least 93.6 % (ordinal).
    """
    if level not in LEVELS:
        raise choice("level", level, LEVELS)
    try:
        values = np.array(ratings, dtype=float)
    except (TypeError, ValueError):
        raise InputError("ratings must be numbers or NaN; give classes in words a number each.") from None
    if values.ndim != 2 or values.shape[1] < 2:
        raise InputError(f"ratings must have a row per unit and a column per rater (two or more), got {values.shape}.")
    clusters = np.arange(len(values)) if clusters is None else np.asarray(list(clusters), dtype=object)
    if len(clusters) != len(values):
        raise InputError(f"clusters must have one label per row of ratings ({len(values)}), got {len(clusters)}.")
    rated = (~np.isnan(values)).sum(axis=1)
    used = rated >= 2
    row = {"measure": f"Krippendorff's alpha, {level}", "coefficient": nan, "low": nan, "high": nan, "interval": ""}
    row |= {"n_units": int(used.sum()), "n_raters": values.shape[1], "n_ratings": int(rated[used].sum())}
    row |= {"n_left_out": int((~used).sum()), "reason": ""}
    values, rated = values[used], rated[used]
    classes = np.unique(values[~np.isnan(values)])
    if not len(values):
        row["reason"] = "not available: no unit has two ratings"
    elif len(classes) == 1:
        row["reason"] = ONE_CLASS
    else:
        times = (values[:, :, None] == classes).sum(axis=1).astype(float)  # units × classes
        pairs = times[:, :, None] * times[:, None, :]
        pairs -= times[:, :, None] * np.eye(len(classes))  # a rating makes no pair with itself
        _, index = np.unique(clusters[used].astype(str), return_inverse=True)
        tables = np.zeros((index.max() + 1, len(classes), len(classes)))
        np.add.at(tables, index, pairs / (rated - 1)[:, None, None])
        statistic = partial(alphas, classes=classes, level=level)
        row["coefficient"] = float(statistic(tables.sum(axis=0)[None])[0])
        row |= within_one(tables, statistic)
        row["interval"] = row["interval"].replace("entries", "clusters").replace("one entry", "one cluster")
    return pd.DataFrame([row])


def tables_by_cluster(values: np.ndarray, classes: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Per cluster, how often the first rater said a and the second b: clusters × classes × classes."""
    _, index = np.unique(clusters, return_inverse=True)
    a, b = (values - classes[0]).astype(int).T
    tables = np.zeros((index.max() + 1, len(classes), len(classes)))
    np.add.at(tables, (index, a, b), 1)
    return tables


def within_one(tables: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> dict:
    """Low, high and the name of the interval of a coefficient of at most 1, or why there is none.

    A jackknife that leaves out one cluster at a time; its error is carried to the atanh scale by the delta method, so
    that no limit lies beyond 1. See ``half_width``.

    Parameters
    ----------
    tables : array, clusters × classes × classes
        Counts that add up over clusters.
    statistic : function
        One coefficient per table; NaN where it is undefined.
    """

    def none(why: str) -> dict:
        return {"low": nan, "high": nan, "interval": f"not available: {why}"}

    if len(tables) < 2:
        return none("one entry")
    whole = tables.sum(axis=0)
    value = float(statistic(whole[None])[0])
    if 1 - abs(value) < 1e-12:
        return none("perfect agreement" if value > 0 else "perfect disagreement")
    without = statistic(whole - tables)
    if lost := int(np.isnan(without).sum()):
        return none(f"one class without {'one' if lost == 1 else f'any of {lost}'} of {len(tables)} entries")
    half = float(half_width(without)) / (1 - value**2)
    if half < 1e-12:
        return none("no variation")
    low, high = np.tanh(np.arctanh(value) + np.array([-half, half]))
    return {"low": float(low), "high": float(high), "interval": JACKKNIFE}


def half_width(without: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """t times the jackknife's standard error, from estimates that each leave out one cluster (first axis).

    Error: Tukey (1958, Annals of Mathematical Statistics 29:614), pseudo-values. Degrees of freedom: clusters − 1, or
    fewer where a handful of clusters make most of the variance, by its first two moments (Satterthwaite 1946,
    Biometrics Bulletin 2:110) from the pseudo-values' kurtosis κ: 2m / (κ − 1), which is about m under normality.
    """
    m = len(without)
    pseudo = (m - 1) * (without.mean(axis=0) - without)
    squares = (pseudo**2).sum(axis=0)
    kurtosis = m * np.divide((pseudo**4).sum(axis=0), squares**2, out=np.zeros_like(squares), where=squares > 1e-18)
    freedom = (m - 1) / np.maximum(1, (m - 1) * (kurtosis - 1) / (2 * m))
    return stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(squares / (m * (m - 1)))


def distance_of(classes: np.ndarray, weights: str | None) -> np.ndarray:
    apart = np.abs(classes[:, None] - classes[None, :])
    return {"linear": apart, "quadratic": apart**2, None: (apart > 0).astype(float)}[weights]


def kappas(tables: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Cohen's kappa of many tables at once; statsmodels takes one at a time, and a jackknife needs one per entry."""
    shares = tables / tables.sum(axis=(1, 2), keepdims=True)
    seen = (shares * distance).sum(axis=(1, 2))
    chance = np.einsum("bi,ij,bj->b", shares.sum(axis=2), distance, shares.sum(axis=1))
    return 1 - np.divide(seen, chance, out=np.full(len(tables), nan), where=chance > 1e-12)


def alphas_of_pairs(tables: np.ndarray, classes: np.ndarray, level: str) -> np.ndarray:
    return alphas(tables + tables.transpose(0, 2, 1), classes, level)


def alphas(coincidences: np.ndarray, classes: np.ndarray, level: str) -> np.ndarray:
    """Krippendorff's alpha of many coincidence matrices at once; NaN where only one class occurs."""
    held = coincidences.sum(axis=2)
    n = held.sum(axis=1)
    if level == "ordinal":  # squared differences of mean ranks, which depend on how often each class occurs
        ranks = held.cumsum(axis=1) - held / 2
        distance = (ranks[:, :, None] - ranks[:, None, :]) ** 2
    else:
        distance = distance_of(classes, "quadratic" if level == "interval" else None)[None]
    seen = (coincidences * distance).sum(axis=(1, 2)) * (n - 1)
    chance = (held[:, :, None] * held[:, None, :] * distance).sum(axis=(1, 2))
    return 1 - np.divide(seen, chance, out=np.full(len(n), nan), where=chance > 1e-12)
