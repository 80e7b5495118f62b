"""Numbers in, numbers out: intervals, exact tests and power that the tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy import optimize, stats

from .errors import InputError

LEVEL = 0.95
MOST_SIGN_FLIPS = 20  # 2**20 sign patterns; beyond that an exact enumeration is refused, not approximated


def wilson(failed: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson score interval of one proportion.

    Parameters
    ----------
    failed, n : numbers
        Failures and trials; an effective (fractional) number of trials is allowed.

    Returns
    -------
    (low, high) in [0, 1]; NaN, NaN when ``n`` is 0.
    """
    if n <= 0:
        return nan, nan
    z = stats.norm.ppf((1 + level) / 2)
    share, shrink = failed / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z / shrink * sqrt(max(share * (1 - share), 0) / n + z * z / (4 * n * n))
    # At 0 and n the exact bound is 0 or 1; rounding must not leave a hair of doubt there.
    return (0.0 if failed == 0 else max(centre - half, 0.0)), (1.0 if failed == n else min(centre + half, 1.0))


def wilson_clustered(failed: np.ndarray, clusters: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Wilson interval at the effective number of trials when the same entry appears several times.

    The number of trials is divided by the design effect: the cluster-robust variance of the mean over the variance it
    would have if all outcomes were independent. With one outcome per cluster it is the plain Wilson interval. Without
    any variation the design effect cannot be estimated and the number of clusters is used, the cautious end.

    Parameters
    ----------
    failed : array of 0/1, one per outcome
    clusters : array of labels, same length
    """
    n = len(failed)
    _, index = np.unique(clusters, return_inverse=True)
    m = int(index.max()) + 1 if n else 0
    if n == m:
        return wilson(float(np.sum(failed)), n, level)
    share = float(np.mean(failed))
    independent = share * (1 - share) / (n - 1)
    if m < 2 or independent == 0:
        return wilson(share * m, m, level)
    residuals = np.bincount(index, weights=failed - share)
    clustered = m / (m - 1) * float(np.sum(residuals**2)) / n**2
    effective = min(n, n * independent / clustered) if clustered > 0 else n
    return wilson(share * effective, effective, level)


def tango(only_arm: int, only_baseline: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Score interval for the difference of two paired proportions (Tango 1998, Statistics in Medicine 17:891).

    Parameters
    ----------
    only_arm, only_baseline : int
        Discordant pairs: only the arm fails, only the baseline fails.
    n : int
        All pairs.

    Returns
    -------
    (low, high) of arm − baseline, in [-1, 1]; NaN, NaN without pairs.
    """
    if not 0 <= only_arm + only_baseline <= n or min(only_arm, only_baseline) < 0:
        raise InputError(f"tango: discordant pairs {only_arm} and {only_baseline} do not fit into {n} pairs.")
    if n == 0:
        return nan, nan
    z = stats.norm.ppf((1 + level) / 2)

    def score(delta: float) -> float:
        # The nuisance parameter is the share of 'only baseline' that is most likely when the true difference is delta.
        slope = (2 * n - only_arm + only_baseline) * delta - only_arm - only_baseline
        root = sqrt(max(slope * slope + 8 * n * only_baseline * delta * (1 - delta), 0.0))
        variance = n * (2 * (root - slope) / (4 * n) + delta * (1 - delta))
        distance = only_arm - only_baseline - n * delta
        if abs(distance) < 1e-9:
            return 0.0
        return distance / sqrt(variance) if variance > 0 else distance * 1e12

    edge, seen = 1 - 1e-12, (only_arm - only_baseline) / n
    low = -1.0 if seen == -1 else optimize.brentq(lambda delta: score(delta) - z, -edge, seen)
    high = 1.0 if seen == 1 else optimize.brentq(lambda delta: score(delta) + z, seen, edge)
    return float(low), float(high)


def mcnemar_exact(only_arm: int, only_baseline: int) -> float:
    """Two-sided exact McNemar p-value from the discordant pairs; 1 when there are none."""
    discordant = only_arm + only_baseline
    return float(stats.binomtest(only_arm, discordant, 0.5).pvalue) if discordant else 1.0


def clustered_mean(values: np.ndarray, clusters: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """t interval of a mean whose values come in clusters (one entry, several runs); degrees of freedom: clusters − 1.

    NaN, NaN with fewer than two clusters or without variation, where a zero width would look certain.
    """
    _, index = np.unique(clusters, return_inverse=True)
    m = int(index.max()) + 1 if len(values) else 0
    if m < 2:
        return nan, nan
    mean = float(np.mean(values))
    squares = float(np.sum(np.bincount(index, weights=values - mean) ** 2))
    if squares < 1e-18:
        return nan, nan
    half = stats.t.ppf((1 + level) / 2, m - 1) * sqrt(m / (m - 1) * squares) / len(values)
    return mean - half, mean + half


def sign_flip_p(values: Sequence[float]) -> float:
    """Two-sided exact sign-flip p-value of the mean: every pattern of signs is equally likely under the null.

    NaN for no value or more than 20 (2**20 patterns).
    """
    values = np.round(np.asarray(values, dtype=float), 9)
    if not 0 < len(values) <= MOST_SIGN_FLIPS:
        return nan
    # Built one value at a time: sums over all patterns without holding the patterns themselves.
    sums = np.zeros(1)
    for value in np.abs(values):
        sums = np.concatenate([sums + value, sums - value])
    return float(np.mean(np.abs(sums) >= abs(values.sum()) - 1e-9))


def wilcoxon_exact_p(values: Sequence[float]) -> float:
    """Two-sided exact signed-rank p-value; zeros are dropped (Wilcoxon's rule), ties get mean ranks and stay exact.

    1 when all values are zero. Values are rounded to 9 decimals first, so that rounding error makes no false ranks.
    """
    values = np.round(np.asarray(values, dtype=float), 9)
    values = values[values != 0]
    if not len(values):
        return 1.0
    return sign_flip_p(np.sign(values) * stats.rankdata(np.abs(values)))


@dataclass(frozen=True)
class OverModels:
    """Mean of one number per model, with what a handful of models can say about new ones."""

    mean: float
    sd: float  # n − 1; NaN with one model
    n: int
    low: float
    high: float
    t_p: float
    wilcoxon_p: float
    sign_flip_p: float
    smallest_p: float  # the smallest p that an exact test can reach with this many models
    n_below_zero: int
    n_above_zero: int


def over_models(values: Sequence[float], level: float = LEVEL) -> OverModels:
    """Summarise one value per model: mean, sd (n − 1), t interval, t, exact signed-rank and exact sign-flip p-values.

    The t interval and p-value assume that the models are exchangeable draws from models like these. NaN values are
    left out.
    """
    values = np.asarray([value for value in values if not np.isnan(value)], dtype=float)
    n = len(values)
    mean = float(values.mean()) if n else nan
    sd = float(values.std(ddof=1)) if n > 1 else nan
    low = high = p = nan
    if n > 1 and sd > 1e-12:
        half = stats.t.ppf((1 + level) / 2, n - 1) * sd / sqrt(n)
        low, high, p = mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / (sd / sqrt(n)), n - 1))
    exact = n > 1
    return OverModels(
        mean, sd, n, low, high, p,
        wilcoxon_exact_p(values) if exact else nan,
        sign_flip_p(values) if exact else nan,
        2.0 ** (1 - n) if exact else nan,
        int((np.round(values, 9) < 0).sum()),
        int((np.round(values, 9) > 0).sum()),
    )  # fmt: skip


def minimum_detectable_pp(n: int, discordant: float = 0.276, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest difference of two paired proportions that a two-sided test on ``n`` entries finds with the given power.

    Solves ``n d² = (z₁₋α/₂ √ψ + z_power √(ψ − d²))²`` for d (Connor 1987, Biometrics 43:207), where ψ is the share of
    discordant pairs. The default ψ is the published one for dynamic against flat: 9.5 % + 18.1 % of entries.

    Returns
    -------
    float
        Difference in pp; NaN when no difference that fits ψ is detectable at this ``n``.
    """
    if not (n > 0 and 0 < discordant <= 1 and 0 < power < 1 and 0 < alpha < 1):
        raise InputError(
            f"minimum_detectable_pp: n must be positive, discordant in (0, 1], power and alpha in (0, 1); got n={n}, "
            f"discordant={discordant}, power={power}, alpha={alpha}."
        )
    reject, detect = stats.norm.ppf(1 - alpha / 2), stats.norm.ppf(power)

    def lacking(d: float) -> float:
        return reject * sqrt(discordant) + detect * sqrt(max(discordant - d * d, 0.0)) - d * sqrt(n)

    # |d| cannot exceed the share of discordant pairs.
    return nan if lacking(discordant) > 0 else 100 * float(optimize.brentq(lacking, 0.0, discordant))
