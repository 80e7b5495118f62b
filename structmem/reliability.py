"""Chance-corrected agreement from counts: kappa and Krippendorff's alpha, one or thousands of tables at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import nan

import numpy as np
import pandas as pd

from .errors import InputError, choice
from .intervals import LEVEL

RESAMPLES = 2000
LEVELS = ("nominal", "ordinal", "interval")
ONE_CLASS = "undefined: one class"
# Below this share of resamples with a value, an interval would describe the defined ones only.
_LEAST_DEFINED = 0.9


def krippendorff_alpha(
    ratings: pd.DataFrame | np.ndarray,
    level: str = "ordinal",
    clusters: Iterable | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """Krippendorff's alpha of any number of raters, of whom some may have left units out.

    Parameters
    ----------
    ratings : DataFrame or 2-D array of numbers
        One row per unit (answer), one column per rater; NaN: not rated. (Krippendorff prints it the other way round.)
    level : 'nominal', 'ordinal' or 'interval'
        What a difference of two ratings means.
    clusters : labels, one per row, optional
        What is resampled, for example the entries; default: each unit by itself.
    resamples, seed : int
        Of the bootstrap.

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
    the package that has it is under the GPL. Percentile bootstrap over clusters.
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
        row |= bounds(resampled(tables, resamples, np.random.default_rng(seed)), statistic)
        row["interval"] = row["interval"].replace("entries", "clusters").replace("one entry", "one cluster")
    return pd.DataFrame([row])


def tables_by_cluster(values: np.ndarray, classes: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Per cluster, how often the first rater said a and the second b: clusters × classes × classes."""
    _, index = np.unique(clusters, return_inverse=True)
    a, b = (values - classes[0]).astype(int).T
    tables = np.zeros((index.max() + 1, len(classes), len(classes)))
    np.add.at(tables, (index, a, b), 1)
    return tables


def resampled(tables: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Sums of tables over clusters drawn with replacement; no resamples with a single cluster."""
    m = len(tables)
    if m < 2:
        return np.empty((0, *tables.shape[1:]))
    times = rng.multinomial(m, np.full(m, 1 / m), size=resamples)
    return (times @ tables.reshape(m, -1)).reshape(resamples, *tables.shape[1:])


def bounds(draws: np.ndarray, statistic: Callable) -> dict:
    """Percentile interval of a statistic over resampled tables, or why there is none."""
    if not len(draws):
        return {"low": nan, "high": nan, "interval": "not available: one entry"}
    values = statistic(draws)
    defined = values[~np.isnan(values)]
    if len(defined) < _LEAST_DEFINED * len(values):
        share = 1 - len(defined) / len(values)
        return {"low": nan, "high": nan, "interval": f"not available: one class in {100 * share:.0f} % of resamples"}
    if np.ptp(defined) < 1e-12:
        return {"low": nan, "high": nan, "interval": "not available: the same value in every resample"}
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"low": float(low), "high": float(high), "interval": f"percentile bootstrap, entries ({len(draws)})"}


def distance_of(classes: np.ndarray, weights: str | None) -> np.ndarray:
    apart = np.abs(classes[:, None] - classes[None, :])
    return {"linear": apart, "quadratic": apart**2, None: (apart > 0).astype(float)}[weights]


def kappas(tables: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Cohen's kappa of many tables at once; statsmodels takes one at a time, and a bootstrap needs thousands."""
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
