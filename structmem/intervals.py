"""Numbers in, numbers out: intervals, exact tests and power that the tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy import optimize, special, stats

from .errors import InputError

LEVEL = 0.95
MOST_SIGN_FLIPS = 20  # 2**20 sign patterns; beyond that an exact enumeration is refused, not approximated


def wilson(failed: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Score interval of one proportion (Wilson 1927, Journal of the American Statistical Association 22:209).

    Coverage at 95 % (``benchmarks/coverage.py``): 95.2 % on average; least 85.2 %, at 20 trials and p = .008.

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


def clopper_pearson(failed: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Exact interval of one proportion (Clopper & Pearson 1934, Biometrika 26:404): coverage is never below ``level``.

    Coverage at 95 % (``benchmarks/coverage.py``): 96.8 % on average; least 95.0 %, at 200 trials and p = .716. It holds
    for independent trials only: for entries that appear several times there is no exact interval.

    Returns
    -------
    (low, high) in [0, 1]; NaN, NaN when ``n`` is 0.
    """
    if n == 0:
        return nan, nan
    tail = (1 - level) / 2
    # Quantiles of beta distributions; scipy's binomtest finds the same bounds by search, a hundred times slower.
    low = special.betaincinv(failed, n - failed + 1, tail) if failed > 0 else 0.0
    high = special.betaincinv(failed + 1, n - failed, 1 - tail) if failed < n else 1.0
    return float(low), float(high)


def wilson_clustered(
    values: np.ndarray, clusters: np.ndarray, level: float = LEVEL, draws: float = 1
) -> tuple[float, float]:
    """Wilson interval at the effective number of trials, for outcomes that are not one independent trial each.

    The effective number is the number of independent trials that would give the mean the variance it has, with
    clusters (entries) as independent units: n divided by the design effect (Kish 1965, *Survey Sampling*; in Wilson's
    interval: Franco, Little, Louis & Slud 2019, Journal of Survey Statistics and Methodology 7:334). It is never more
    than the trials that were made. With one 0/1 outcome per cluster it is the plain Wilson interval. Without any
    variation the variance cannot be estimated and the number of clusters is used, the cautious end. Coverage at 95 %
    (``benchmarks/coverage.py``): 94.6 % on average; least 91.9 %, at 40 entries, 7 models and p = .97 (for FR@1 94.5 %;
    least 91.7 %, at 40 entries, 7 generations and p = .97).

    Parameters
    ----------
    values : array in [0, 1], one per outcome
        0 or 1, or the mean of ``draws`` trials of one entry.
    clusters : array of labels, same length
    draws : number
        Trials behind each value.
    """
    if not len(values):
        return nan, nan
    trials = _trials(values, clusters, draws)
    total = float(np.sum(values)) if trials == len(values) else float(np.mean(values)) * trials
    return wilson(total, trials, level)


def _trials(values: np.ndarray, clusters: np.ndarray, draws: float = 1) -> float:
    """The effective number of trials of ``wilson_clustered``."""
    n = len(values)
    _, index = np.unique(clusters, return_inverse=True)
    m = int(index.max()) + 1
    share = float(np.mean(values))
    if (n == m and draws == 1) or m < 2 or share <= 0 or share >= 1:
        return m
    independent = share * (1 - share) / (n - 1)
    residuals = np.bincount(index, weights=values - share)
    clustered = m / (m - 1) * float(np.sum(residuals**2)) / n**2
    return min(n * draws, n * independent / clustered) if clustered > 0 else n * draws


def mean_of_rates(
    values: np.ndarray, clusters: np.ndarray, groups: np.ndarray, level: float = LEVEL
) -> tuple[float, float, float]:
    """Mean of the groups' rates, every group weighing the same, with its stratified Wilson interval.

    The bounds are the means of the groups' (clustered) Wilson bounds, taken at the level that gives the mean its own
    level (Yan & Su 2010, Statistics in Biopharmaceutical Research 2:329). A group without failures still widens it,
    which its variance of 0 would not. Groups that share clusters are correlated, and their covariance is in the level;
    where it cannot be estimated because a rate is 0 or 1, it is taken as large as the shared clusters allow, the
    cautious end. With one group it is that group's interval, with equal rates Wilson's of all outcomes.
    Coverage at 95 % (``benchmarks/coverage.py``): 95.7 % on average; least 92.4 %, at 40 entries, 7 models, p about .2.

    Parameters
    ----------
    values : array of 0/1, one per outcome
    clusters, groups : arrays of labels, same length

    Returns
    -------
    (mean, low, high) in [0, 1]; NaN without outcomes.
    """
    if not len(values):
        return nan, nan, nan
    _, cluster = np.unique(clusters, return_inverse=True)
    _, group = np.unique(groups, return_inverse=True)
    n = np.bincount(group)
    rates = np.bincount(group, weights=values) / n
    trials = np.array([_trials(values[group == one], cluster[group == one]) for one in range(len(n))])
    shape = (cluster.max() + 1, len(n))
    cell = np.ravel_multi_index((cluster, group), shape)
    influence = np.bincount(cell, weights=(values - rates[group]) / n[group], minlength=np.prod(shape)).reshape(shape)
    present = np.bincount(cell, minlength=np.prod(shape)).reshape(shape) > 0
    covariance, shared = influence.T @ influence, present.T.astype(float) @ present
    scale, most = (np.sqrt(np.outer(np.diag(matrix), np.diag(matrix))) for matrix in (covariance, shared))
    correlation = np.where(scale > 1e-15, covariance / np.where(scale > 1e-15, scale, 1), shared / most)
    np.fill_diagonal(correlation, 1.0)
    z = stats.norm.ppf((1 + level) / 2)
    sd = np.sqrt(rates * (1 - rates) / trials + z * z / (4 * trials**2))
    of_one = 2 * stats.norm.cdf(z * sqrt(max(float(sd @ correlation @ sd), 0.0)) / sd.sum()) - 1
    bounds = [wilson(rate * m, m, of_one) for rate, m in zip(rates, trials, strict=True)]
    low, high = np.mean(bounds, axis=0)
    return float(rates.mean()), float(low), float(high)


def tango(only_arm: int, only_baseline: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Score interval for the difference of two paired proportions (Tango 1998, Statistics in Medicine 17:891).

    Coverage at 95 % (``benchmarks/coverage.py``): 95.9 % on average; least 93.4 %, at 40 pairs and rates .8 and .6.

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
    """Two-sided exact p-value from the discordant pairs (McNemar 1947, Psychometrika 12:153); 1 when there are none."""
    discordant = only_arm + only_baseline
    return float(stats.binomtest(only_arm, discordant, 0.5).pvalue) if discordant else 1.0


def bounded(low: float, high: float, most: float = 100.0) -> tuple[float, float]:
    """Limits of a t interval without what no difference of rates in pp can be: it knows of no bounds by itself."""
    return max(low, -most), min(high, most)  # NaN stays


def clustered_mean(values: np.ndarray, clusters: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """t interval of a mean whose values come in clusters (one entry, several runs); degrees of freedom: clusters − 1.

    NaN, NaN with fewer than two clusters or without variation, where a zero width would look certain. Coverage at 95 %
    (``benchmarks/coverage.py``): 95.6 % on average where there is one; least 88.9 %, at 20 entries, 7 models and rates
    .05 and .01.
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
    values = np.asarray(values, dtype=float)
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

    The t interval and p-value assume that the models are exchangeable draws from models like these. Coverage at 95 % on
    the same entries (``benchmarks/coverage.py``): 95.3 % on average; least 94.5 %, at 5 models. NaN is left out.
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
