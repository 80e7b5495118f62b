"""Coverage and error rates by enumerating every possible table; the other methods are counted in `benchmarks/`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from structmem.intervals import clopper_pearson, mcnemar_exact, sign_flip_p, tango, wilcoxon_exact_p, wilson

RATES = (0.01, 0.05, 0.2, 0.5, 0.8, 0.97)


def covered(interval, n: int, rates) -> np.ndarray:
    """Exact coverage of an interval for a binomial rate."""
    bounds = np.array([interval(failed, n) for failed in range(n + 1)])
    held = [(bounds[:, 0] <= p) & (p <= bounds[:, 1]) for p in rates]
    return np.array([stats.binom.pmf(np.arange(n + 1), n, p) @ hold for p, hold in zip(rates, held, strict=True)])


def tables(n: int, only_arm: float, only_baseline: float):
    """Every pair of discordant counts, with its trinomial probability as a product of two binomial ones."""
    for b in range(n + 1):
        for c in range(n - b + 1):
            rest = only_baseline / (1 - only_arm)
            yield b, c, stats.binom.pmf(b, n, only_arm) * stats.binom.pmf(c, n - b, rest)


@pytest.mark.parametrize("n", [1, 2, 20, 40, 100, 200])
def test_clopper_pearson_never_falls_below_its_level(n):
    assert covered(clopper_pearson, n, np.arange(1, 200) / 200).min() >= 0.95


def test_wilson_holds_its_level_on_average_and_not_everywhere():
    found = np.concatenate([covered(wilson, n, RATES) for n in (20, 40, 100, 200)])
    assert 0.945 < found.mean() < 0.955
    assert covered(wilson, 100, [0.01]) == pytest.approx(0.9206, abs=1e-4)  # the least of this grid
    # Below all of them: one failure in 20 entries already puts the interval above .008.
    assert covered(wilson, 20, [0.008]) == pytest.approx(0.992**20, abs=1e-12)


@pytest.mark.parametrize(
    ("only_arm", "only_baseline", "n"),
    [(0.05, 0.05, 20), (0.138, 0.138, 20), (0.02, 0.12, 20), (0.0, 0.1, 20), (0.3, 0.1, 20), (0.095, 0.181, 40)],
)
def test_tango_holds_its_level(only_arm, only_baseline, n):
    found, total = 0.0, 0.0
    for b, c, weight in tables(n, only_arm, only_baseline):
        if weight > 1e-9:
            low, high = tango(b, c, n)
            found += weight * (low - 1e-9 <= only_arm - only_baseline <= high + 1e-9)
            total += weight
    assert total == pytest.approx(1) and 0.94 <= found < 0.9995


@pytest.mark.parametrize("discordant", [*range(21), 35, 55, 100])
def test_exact_mcnemar_rejects_a_true_null_at_most_as_often_as_stated(discordant):
    # Given any number of discordant pairs, so also over all of them, whatever the share of discordant entries is.
    half = [mcnemar_exact(b, discordant - b) for b in range(discordant // 2 + 1)]
    p_values = np.array([*half, *half[: (discordant + 1) // 2][::-1]])
    weights = stats.binom.pmf(np.arange(discordant + 1), discordant, 0.5)
    for alpha in (0.01, 0.05, 0.1):
        assert weights @ (p_values <= alpha) <= alpha


@pytest.mark.parametrize("test", [sign_flip_p, wilcoxon_exact_p])
@pytest.mark.parametrize("sizes", [[0.5, 1, 2, 3, 4.5, 6, 9], [1, 1, 1, 2, 2, 3], [0, 0, 1, 2, 4, 8, 16, 32]])
def test_exact_tests_over_models_hold_their_level_given_any_sizes(test, sizes):
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(sizes))).reshape(len(sizes), -1).T
    p_values = np.array([test(row * np.array(sizes)) for row in signs])
    for alpha in (2.0 ** (1 - len(sizes)), 0.05, 0.1, 0.5):
        assert np.mean(p_values <= alpha) <= alpha
