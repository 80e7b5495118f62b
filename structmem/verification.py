"""Numbers of a judge checked by a person: weighted shares, limits of sensitivity, corrected rates with limits."""

from __future__ import annotations

from math import inf, isnan, nan, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

from .intervals import LEVEL, wilson


class Share(NamedTuple):
    """A share with its 95 % limits.

    ``effective``: the number of independent answers that would tell as much; ``parts``: what each entry adds to its
    error, by entry, where known.
    """

    value: float
    low: float
    high: float
    effective: float
    parts: pd.Series | None = None

    def inverse(self) -> Share:
        """The share of the others."""
        parts = None if self.parts is None else -self.parts
        return Share(1 - self.value, 1 - self.high, 1 - self.low, self.effective, parts)


def weighted_share(hit: np.ndarray, weights: np.ndarray, clusters: np.ndarray, draws: float = 1) -> Share:
    """A weighted share with a Wilson interval at its effective number of answers.

    Effective: the number of independent answers that would give the share the variance it has with clusters (entries)
    as independent units, at most Kish's (Σw)²/Σw² (1965, *Survey Sampling*). Without variation nothing can be
    estimated, and answers of one cluster count as one, the cautious end.

    Parameters
    ----------
    hit : array in [0, 1]
        0 or 1, or the mean of ``draws`` answers.
    weights : array of positive numbers
    clusters : array of labels
    draws : number
        Answers behind each value.

    Returns
    -------
    Share
        All NaN, with 0 answers, where there are none.
    """
    if not len(hit):
        return Share(nan, nan, nan, 0.0)
    total = weights.sum()
    value = float(hit @ weights / total)
    parts = pd.Series(weights * (hit - value) / total).groupby(clusters).sum()
    m = len(parts)
    variance = m / (m - 1) * float((parts**2).sum()) if m > 1 else 0.0
    if variance < 1e-18 or not 0 < value < 1:
        effective = float(total**2 / (pd.Series(weights).groupby(clusters).sum() ** 2).sum())
    else:
        effective = min(value * (1 - value) / variance, draws * float(total**2 / (weights**2).sum()))
    return Share(value, *wilson(value * effective, effective), effective, parts)


def share_of_sum(rate: Share, first: Share, second: Share) -> Share:
    """rate·first / (rate·first + (1 − rate)·second), with limits.

    With the judge's failure rate and the shares that a person fails among its failures and among its passes, this is
    the judge's sensitivity. The limits are those s at which odds·(1 − s)·first − s·second could be 0; its own limits
    are made from those of the three (MOVER for ratios: Donner & Zou 2012, Statistical Methods in Medical Research
    21:347). They stay honest where no miss was seen among few answers that stand for many.

    Returns
    -------
    Share
        NaN where the sum is 0; no limits where one side has no answers.
    """
    p = rate.value
    a, b = p * first.value if p > 0 else 0.0, (1 - p) * second.value if p < 1 else 0.0
    if isnan(p) or a + b <= 0:
        return Share(nan, nan, nan, 0.0)
    value = a / (a + b)
    if p in (0.0, 1.0):
        return Share(value, nan, nan, 0.0)
    odds, odds_low, odds_high = (one / (1 - one) for one in (p, rate.low, min(rate.high, 1 - 1e-9)))

    def least(s: float) -> float:
        down = odds * (first.value - first.low), (odds - odds_low) * first.value
        return apart(s) - sqrt((1 - s) ** 2 * (down[0] ** 2 + down[1] ** 2) + (s * (second.high - second.value)) ** 2)

    def most(s: float) -> float:
        up = odds * (first.high - first.value), (odds_high - odds) * first.value
        return apart(s) + sqrt((1 - s) ** 2 * (up[0] ** 2 + up[1] ** 2) + (s * (second.value - second.low)) ** 2)

    def apart(s: float) -> float:
        return (1 - s) * odds * first.value - s * second.value

    low = optimize.brentq(least, 0.0, 1.0) if least(0.0) > 0 else 0.0
    high = optimize.brentq(most, 0.0, 1.0) if most(1.0) < 0 else 1.0
    return Share(value, low, high, _trials(value, high - low))


def _trials(value: float, width: float) -> float:
    """How many trials give Wilson's interval this width."""

    def lacking(n: float) -> float:
        low, high = wilson(value * n, n)
        return high - low - width

    return optimize.brentq(lacking, 1e-6, 1e7) if lacking(1e-6) > 0 > lacking(1e7) else 0.0 if width > 0.5 else inf


def difference(one: Share, two: Share) -> tuple[float, float]:
    """Limits of one − two from the limits of each, taken as independent (MOVER: Zou & Donner 2008, Statistics in
    Medicine 27:1693; with Wilson's limits Newcombe's method 10, 1998, Statistics in Medicine 17:873)."""
    apart = one.value - two.value
    low = apart - sqrt((one.value - one.low) ** 2 + (two.high - two.value) ** 2)
    return low, apart + sqrt((one.high - one.value) ** 2 + (two.value - two.low) ** 2)


def rate_of_person(rate: Share, among_failed: Share, among_passed: Share) -> Share:
    """The rate a person would give: of the judge's failures and passes, the shares that the person fails.

    rate·among_failed + (1 − rate)·among_passed, which is Rogan–Gladen's estimate with the same answers' sensitivity and
    specificity. Limits by MOVER from those of the three shares and their correlation over entries (Zou 2007,
    Psychological Methods 12:399).
    """
    p, a, b = rate.value, among_failed, among_passed
    if p in (0.0, 1.0):  # the other side has no answers and no weight
        return a if p == 1 else b
    value, times = p * a.value + (1 - p) * b.value, np.array([a.value - b.value, p, 1 - p])
    shares = (rate, a, b)
    known = [pd.Series(dtype=float) if one.parts is None else one.parts for one in shares]
    parts = pd.concat(known, axis=1).fillna(0.0).to_numpy()
    covariance = parts.T @ parts
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    # Hard entries raise all three, so that the limits of independent shares would be too near.
    together = np.divide(covariance, scale, out=np.eye(3), where=scale > 1e-18)
    together = together * np.sign(np.outer(times, times))
    below = np.array([one.value - one.low for one in shares])
    above = np.array([one.high - one.value for one in shares])
    falls, rises = np.where(times < 0, above, below) * np.abs(times), np.where(times < 0, below, above) * np.abs(times)
    low, high = (sqrt(max(float(side @ together @ side), 0.0)) for side in (falls, rises))
    return Share(value, max(value - low, 0.0), min(value + high, 1.0), nan)


def lang_reiczigel(rate: Share, sensitivity: Share, specificity: Share, level: float = LEVEL) -> tuple[float, float]:
    """Limits of a rate corrected for an estimated sensitivity and specificity, cut to [0, 1].

    Lang & Reiczigel (2014, Preventive Veterinary Medicine 113:13), equations 4, 6, 7, 16 and 17. They take the three as
    independent binomial shares; here with effective numbers of answers.
    """
    z = stats.norm.ppf((1 + level) / 2)
    p = (rate.effective * rate.value + z * z / 2) / (rate.effective + z * z)
    se, sp = ((one.effective * one.value + 1) / (one.effective + 2) for one in (sensitivity, specificity))
    gain = se + sp - 1
    if gain <= 0:
        return 0.0, 1.0
    of_se, of_sp = se * (1 - se) / (sensitivity.effective + 2), sp * (1 - sp) / (specificity.effective + 2)
    centre = (p + sp - 1) / gain
    shift = 2 * z * z * (centre * of_se - (1 - centre) * of_sp)
    half = z * sqrt(p * (1 - p) / (rate.effective + z * z) + centre**2 * of_se + (1 - centre) ** 2 * of_sp) / gain
    return min(max(centre + shift - half, 0.0), 1.0), max(min(centre + shift + half, 1.0), 0.0)
