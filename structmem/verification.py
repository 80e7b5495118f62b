"""Numbers of a judge checked by a person: weighted shares, limits of sensitivity, corrected rates with limits."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize

from .intervals import wilson


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
    return Share(value, low, high, nan)


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
    return _combined(lambda p, a, b: p * a + (1 - p) * b, rate, a, b)


def rate_of_arm(rate: Share, whole: Share, among_failed: Share, among_passed: Share) -> Share:
    """One arm's rate corrected by the sensitivity and specificity of all arms, which it is taken to share.

    Rogan–Gladen's estimate, (rate + specificity − 1) / (sensitivity + specificity − 1), written in what was observed:
    with the judge's rate R in the ``whole`` and the shares a and b that the person fails among the judge's failures and
    passes there, the person's rate in the whole is T = R·a + (1 − R)·b, and the arm's is
    T + (rate − R)·T·(1 − T) / (R·(1 − R)·(a − b)). Sensitivity and specificity are both made of R, a and b, and R holds
    the arm's own rate, so that limits that take rate, sensitivity and specificity as independent (Lang & Reiczigel
    2014, Preventive Veterinary Medicine 113:13) are too wide here. Limits by MOVER, each share moved to its own limits,
    with their correlation over entries (Zou 2007, as in ``rate_of_person``).
    """

    def estimate(p: float, r: float, a: float, b: float) -> float:
        t = r * a + (1 - r) * b
        return t + (p - r) * t * (1 - t) / max(r * (1 - r) * (a - b), 1e-9)

    return _combined(estimate, rate, whole, among_failed, among_passed)


def _combined(function: Callable[..., float], *shares: Share) -> Share:
    """A function of shares with MOVER limits, cut to [0, 1]."""
    point = [one.value for one in shares]
    value = function(*point)

    def moves(ends: list[float]) -> np.ndarray:
        return np.array([function(*point[:i], end, *point[i + 1 :]) - value for i, end in enumerate(ends)])

    at_low, at_high = moves([one.low for one in shares]), moves([one.high for one in shares])
    known = [pd.Series(dtype=float) if one.parts is None else one.parts for one in shares]
    parts = pd.concat(known, axis=1).fillna(0.0).to_numpy()
    covariance = parts.T @ parts
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    # Hard entries raise all of them, so that the limits of independent shares would be too near.
    together = np.divide(covariance, scale, out=np.eye(len(shares)), where=scale > 1e-18)
    signs = np.sign(at_high - at_low)
    together = together * np.outer(signs, signs)
    np.fill_diagonal(together, 1.0)
    falls, rises = -np.minimum(np.minimum(at_low, at_high), 0), np.maximum(np.maximum(at_low, at_high), 0)
    low, high = (sqrt(max(float(side @ together @ side), 0.0)) for side in (falls, rises))
    return Share(value, max(value - low, 0.0), min(value + high, 1.0), nan)
