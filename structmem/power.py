"""Power of paired comparisons: exact, approximate and simulated, and the entries that are needed."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, nan, sqrt

import numpy as np
import pandas as pd
from scipy import optimize, stats

from .errors import InputError, choice
from .intervals import minimum_detectable_pp

# The published discordance of dynamic against flat: 9.5 % of entries fail only under dynamic, 18.1 % only under flat.
DISCORDANT = 0.276
TESTS = ("mcnemar exact", "score", "normal approximation")
_MOST_ENTRIES = 1_000_000  # beyond that a difference is too small for any benchmark, and the enumeration too long
_TAIL = 8  # numbers of discordant pairs farther from their mean than this many sd have no weight (< 1e-14)


def power_of_test(
    n: int,
    difference_pp: float,
    discordant: float = DISCORDANT,
    test: str = "mcnemar exact",
    alpha: float = 0.05,
) -> float:
    """Power of a two-sided test of two arms on the same ``n`` entries, without simulation.

    The number of discordant pairs is binomial (n, ψ), and given it the pairs in which only the arm fails are binomial
    with (ψ + d) / 2ψ; the power is the exact sum over both. ``n`` counts the entries of ONE model. Several models that
    share their entries are not independent: for M of them give ``n · M / (1 + (M − 1) ρ)``, where ρ is the correlation
    of an entry's differences between models.

    Parameters
    ----------
    n : int
        Entries that are complete in both arms.
    difference_pp : float
        True difference of the two rates in pp; its sign does not matter.
    discordant : float
        True share ψ of entries whose outcome differs between the arms, in (0, 1].
    test : str
        'mcnemar exact' (binomial, as in the tables), 'score' (McNemar's z without correction, which rejects when
        Tango's interval excludes 0), both enumerated; or 'normal approximation' (Connor 1987, Biometrics 43:207), the
        closed form that ``minimum_detectable_pp`` inverts.
    alpha : float
        Two-sided level, in (0, 1).

    Returns
    -------
    float
        Probability that the test rejects, in [0, 1].

    Raises
    ------
    InputError
        A difference larger than the share of discordant pairs, which no pair of arms can have; values out of range.
    """
    _check(n, discordant, alpha)
    difference = abs(difference_pp) / 100
    if not difference <= discordant + 1e-12:  # also refuses NaN
        raise InputError(
            f"difference_pp must not exceed the discordant share of {100 * discordant:g} %, got {difference_pp:g}: "
            "the difference of two rates is a difference of discordant shares."
        )
    if test == "normal approximation":
        spread = sqrt(max(discordant - difference**2, 1e-300))
        reject = stats.norm.ppf(1 - alpha / 2) * sqrt(discordant)
        both = stats.norm.cdf([(difference * sqrt(n) - reject) / spread, (-difference * sqrt(n) - reject) / spread])
        return float(both.sum())
    if test not in TESTS:
        raise choice("test", test, TESTS)
    # No kept library has the power of the exact McNemar test in two proportions: statsmodels has none for paired ones.
    around, spread = n * discordant, _TAIL * sqrt(n * discordant * (1 - discordant)) + 1
    pairs = np.arange(max(0, int(around - spread)), min(n, ceil(around + spread)) + 1)
    fewest = _most_in_the_smaller_cell(pairs, test, alpha)
    share = min((discordant + difference) / (2 * discordant), 1.0)
    rejects = stats.binom.cdf(fewest, pairs, share) + stats.binom.cdf(fewest, pairs, 1 - share)
    return float(min(np.sum(stats.binom.pmf(pairs, n, discordant) * rejects), 1.0))


def _most_in_the_smaller_cell(pairs: np.ndarray, test: str, alpha: float) -> np.ndarray:
    """Per number of discordant pairs, the largest count of the rarer side at which the test rejects; −1: never."""
    if test == "score":
        z = stats.norm.ppf(1 - alpha / 2)
        return np.where(pairs > 0, np.floor((pairs - z * np.sqrt(pairs)) / 2 + 1e-9), -1.0)
    # ppf gives the smallest count whose tail reaches alpha / 2; the test rejects there only if it does so exactly.
    reached = stats.binom.ppf(alpha / 2, pairs, 0.5)
    return np.where(stats.binom.cdf(reached, pairs, 0.5) <= alpha / 2 * (1 + 1e-12), reached, reached - 1)


def _check(n: int, discordant: float, alpha: float) -> None:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 0 < n <= _MOST_ENTRIES:
        raise InputError(f"n must be a whole number of entries from 1 to {_MOST_ENTRIES:,}, got {n!r}.")
    if not (0 < discordant <= 1 and 0 < alpha < 1):
        raise InputError(
            f"discordant must lie in (0, 1] and alpha in (0, 1); got discordant={discordant}, alpha={alpha}."
        )


def entries_needed(
    difference_pp: float,
    discordant: float = DISCORDANT,
    power: float = 0.8,
    test: str = "mcnemar exact",
    alpha: float = 0.05,
) -> int:
    """Entries of one model that a two-sided test needs to find a difference with the given power.

    The power of a test on counts is a saw-tooth in n: the number returned is the smallest from which on the power stays
    at or above ``power``. Parameters as in ``power_of_test``.

    Raises
    ------
    InputError
        Also for a difference of 0, and where more than a million entries would be needed.
    """
    _check(1, discordant, alpha)
    if not 0 < abs(difference_pp) <= 100 * discordant + 1e-9 or not 0 < power < 1:
        raise InputError(
            f"difference_pp must not be 0 and not exceed the discordant share of {100 * discordant:g} %, and power "
            f"must lie in (0, 1); got difference_pp={difference_pp:g}, power={power:g}."
        )

    def short(n: int) -> bool:
        return power_of_test(n, difference_pp, discordant, test, alpha) < power

    high = 1
    while short(high):
        high *= 2
        if high > _MOST_ENTRIES // 2:
            raise InputError(f"A difference of {difference_pp:g} pp needs more than {_MOST_ENTRIES // 2:,} entries.")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if short(middle) else (low, middle)
    # Bisection finds one crossing; the last one lies within a few teeth of it.
    return next((n + 1 for n in range(high + 30 + round(sqrt(high)), 0, -1) if short(n)), 1)


def power_curve(
    n: Iterable[int] = (20, 40, 60, 80, 100, 150, 200, 300, 400),
    differences: Iterable[float] = (5, 8.8, 10, 15, 20),
    discordant: float = DISCORDANT,
    test: str = "mcnemar exact",
    alpha: float = 0.05,
    power: float = 0.8,
) -> pd.DataFrame:
    """Power at several numbers of entries and true differences: the table behind the figure.

    Parameters
    ----------
    n : numbers of entries of one model
    differences : true differences in pp
    discordant, test, alpha
        As in ``power_of_test``.
    power : float
        The power that the minimum detectable effects are for.

    Returns
    -------
    DataFrame
        One row per difference × n: ``difference_pp``, ``n_entries``, ``power`` (of ``test``, in [0, 1]),
        ``power_normal`` (Connor's approximation), ``detectable_pp`` (minimum detectable effect of ``test`` at this n)
        and ``detectable_normal_pp`` (``minimum_detectable_pp``), ``discordant_share``, ``test``, ``alpha``,
        ``target_power``, and ``remark`` where a number cannot exist.
    """
    sizes, rows = _listed("n", n), []
    detectable = {size: _detectable_pp(size, discordant, test, alpha, power) for size in sizes}
    for difference in _listed("differences", differences):
        for size in sizes:
            possible = abs(difference) <= 100 * discordant + 1e-9
            said = [] if possible else [f"a difference beyond the discordant share of {100 * discordant:g} % cannot be"]
            if np.isnan(detectable[size]):
                said.append(f"no difference that fits this share is found with power {power:g}")
            setting = (size, difference, discordant)
            rows.append(
                {"difference_pp": float(difference), "n_entries": int(size)}
                | {"power": power_of_test(*setting, test, alpha) if possible else nan}
                | {"power_normal": power_of_test(*setting, "normal approximation", alpha) if possible else nan}
                | {"detectable_pp": detectable[size]}
                | {"detectable_normal_pp": minimum_detectable_pp(size, discordant, power, alpha)}
                | {"discordant_share": discordant, "test": test, "alpha": alpha, "target_power": power}
                | {"remark": "; ".join(said)}
            )
    return pd.DataFrame(rows)


def _listed(name: str, values: object) -> list:
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if not found or not all(isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in found):
        raise InputError(f"{name} must be one or more numbers, got {values!r}.")
    return found


def _detectable_pp(n: int, discordant: float, test: str, alpha: float, power: float) -> float:
    """Difference in pp at which a test reaches a power; NaN when the largest possible one does not."""

    def lacking(difference: float) -> float:
        return power - power_of_test(n, difference, discordant, test, alpha)

    most = 100 * discordant
    if lacking(most) > 0:
        return nan
    return 0.0 if lacking(0.0) <= 0 else float(optimize.brentq(lacking, 0.0, most, xtol=1e-6))


def simulated_power(
    n: Iterable[int] = (40, 200),
    differences: Iterable[float] = (8.8,),
    discordant: float = DISCORDANT,
    test: str = "mcnemar exact",
    alpha: float = 0.05,
    n_simulations: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Confirm ``power_of_test`` by simulating paired outcomes, entry by entry, and testing each simulated data set.

    Parameters
    ----------
    n, differences, discordant, test, alpha
        As in ``power_curve``; 'normal approximation' is simulated as 'score', the test that it approximates.
    n_simulations : int
        Simulated data sets per row.
    seed : int
        Same seed, same table.

    Returns
    -------
    DataFrame
        One row per difference × n: ``difference_pp``, ``n_entries``, ``power`` (calculated), ``simulated`` (share of
        data sets in which the test rejects), ``monte_carlo_se`` = √(power (1 − power) / n_simulations), ``z`` =
        (simulated − power) / monte_carlo_se (within ±3 if the calculation is right; NaN where the power is 0 or 1),
        ``n_simulations``, ``discordant_share``, ``test``, ``alpha``, ``seed``.
    """
    if isinstance(n_simulations, bool) or not isinstance(n_simulations, (int, np.integer)) or n_simulations < 1:
        raise InputError(f"n_simulations must be a whole number of at least 1, got {n_simulations!r}.")
    rng, rows = np.random.default_rng(seed), []
    for difference in _listed("differences", differences):
        for size in _listed("n", n):
            expected = power_of_test(size, difference, discordant, test, alpha)
            only_arm = (discordant + difference / 100) / 2
            # One draw per entry: only the arm fails, only the baseline fails, or both do the same.
            chances = [only_arm, discordant - only_arm, 1 - discordant]
            outcomes = rng.choice(3, size=(n_simulations, size), p=np.clip(chances, 0, 1))
            found = (outcomes == 0).sum(axis=1), (outcomes == 1).sum(axis=1)
            rejected = int(np.sum(_p_values(*found, test) <= alpha))
            share, error = rejected / n_simulations, sqrt(max(expected * (1 - expected), 0.0) / n_simulations)
            rows.append(
                {"difference_pp": float(difference), "n_entries": int(size), "power": expected, "simulated": share}
                | {"monte_carlo_se": error, "z": (share - expected) / error if error > 1e-9 else nan}
                | {"n_simulations": n_simulations, "discordant_share": discordant, "test": test, "alpha": alpha}
                | {"seed": seed}
            )
    return pd.DataFrame(rows)


def _p_values(only_arm: np.ndarray, only_baseline: np.ndarray, test: str) -> np.ndarray:
    """Two-sided p-values of many data sets at once, from their discordant pairs."""
    pairs = only_arm + only_baseline
    if test == "mcnemar exact":
        return np.minimum(2 * stats.binom.cdf(np.minimum(only_arm, only_baseline), pairs, 0.5), 1.0)
    return 2 * stats.norm.sf(np.abs(only_arm - only_baseline) / np.sqrt(np.maximum(pairs, 1)))
