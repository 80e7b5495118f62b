"""Power, entries needed and their simulation, against enumeration by another library and published values."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar

from structmem.errors import InputError
from structmem.intervals import minimum_detectable_pp, tango
from structmem.power import DISCORDANT, TESTS, entries_needed, power_curve, power_of_test, simulated_power
from structmem.stats import minimum_detectable_pp as from_stats


def by_enumeration(n, difference, discordant, rejects):
    """Sum of trinomial probabilities over every table that the test rejects."""
    only_arm, only_baseline = (discordant + difference) / 2, (discordant - difference) / 2
    table = scipy_stats.multinomial(n, [only_arm, only_baseline, 1 - discordant])
    pairs = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    return sum(table.pmf([b, c, n - b - c]) for b, c in pairs if rejects(b, c, n))


@cache
def exact(b, c, n):
    return b + c > 0 and mcnemar([[0, b], [c, 0]], exact=True).pvalue <= 0.05


@cache
def score(b, c, n):
    return b + c > 0 and mcnemar([[0, b], [c, 0]], exact=False, correction=False).pvalue <= 0.05


@pytest.mark.parametrize(
    ("n", "difference", "discordant"), [(6, 0.5, 0.5), (12, 0.3, 0.6), (25, 0.2, 0.276), (9, 0, 1)]
)
def test_power_is_the_probability_of_the_tables_that_are_rejected(n, difference, discordant):
    expected = by_enumeration(n, difference, discordant, exact)
    assert power_of_test(n, 100 * difference, discordant) == pytest.approx(expected, abs=1e-12)
    expected = by_enumeration(n, difference, discordant, score)
    assert power_of_test(n, 100 * difference, discordant, "score") == pytest.approx(expected, abs=1e-12)


def test_the_score_test_rejects_where_tangos_interval_excludes_zero():
    def excludes(b, c, n):
        low, high = tango(b, c, n)
        return low > 1e-9 or high < -1e-9

    expected = by_enumeration(20, 0.3, 0.5, excludes)
    assert power_of_test(20, 30, 0.5, "score") == pytest.approx(expected, abs=1e-12)


def test_published_values():
    # The R package MESS, in its own tests: discordant .25 and .45, 144 pairs, exact: power .80; .05 and .45 for a power
    # of .8 by the normal approximation: 22.0 pairs before rounding up.
    assert round(power_of_test(144, 20, 0.7), 2) == 0.80
    assert power_of_test(22, 40, 0.5, "normal approximation") == pytest.approx(0.8, abs=5e-4)
    assert entries_needed(40, 0.5, 0.8, "normal approximation") == 23


def test_the_published_discordance_detects_ten_pp_in_two_hundred_entries_and_23_in_forty():
    assert pytest.approx(0.095 + 0.181) == DISCORDANT
    curve = power_curve((40, 200), (10,)).set_index("n_entries")
    assert curve["detectable_normal_pp"].round(1).to_dict() == {40: 22.6, 200: 10.3}
    # The exact test is a little more conservative than the approximation.
    assert curve["detectable_pp"].round(1).to_dict() == {40: 23.1, 200: 10.7}
    assert from_stats is minimum_detectable_pp


@pytest.mark.parametrize("n", [40, 100, 200, 1000])
def test_the_minimum_detectable_difference_is_detected_with_its_power(n):
    assert power_of_test(n, minimum_detectable_pp(n), test="normal approximation") == pytest.approx(0.8, abs=1e-4)
    detectable = power_curve([n], [5])["detectable_pp"].iloc[0]
    assert power_of_test(n, detectable) == pytest.approx(0.8, abs=1e-4)


@given(
    st.integers(1, 300), st.floats(0.02, 1.0), st.floats(0, 0.999), st.floats(0, 0.999), st.sampled_from(TESTS)
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_power_has_no_sign_grows_with_the_difference_and_is_a_probability(n, discordant, one, other, test):
    small, large = sorted((100 * discordant * one, 100 * discordant * other))
    power = power_of_test(n, large, discordant, test)
    assert 0 <= power <= 1 + 1e-12
    assert power == pytest.approx(power_of_test(n, -large, discordant, test), abs=1e-9)
    assert power_of_test(n, small, discordant, test) <= power + 1e-9
    assert power_of_test(n, 0, discordant) <= 0.05 + 1e-12  # the exact test keeps its level


@pytest.mark.parametrize(("difference", "discordant"), [(20, 1.0), (25, 0.5), (30, 0.31)])
@pytest.mark.parametrize("test", TESTS)
def test_entries_needed_is_the_smallest_number_from_which_on_the_power_stays(difference, discordant, test):
    found = entries_needed(difference, discordant, 0.8, test)
    powers = [power_of_test(n, difference, discordant, test) for n in range(1, 2 * found + 40)]
    assert found == max(n for n, power in enumerate(powers, start=1) if power < 0.8) + 1


def test_entries_needed_for_the_published_effect():
    # 8.6 pp at 9.5 / 18.1 %: 291 by the closed form, n = (1.96 √.276 + .8416 √(.276 − .086²))² / .086².
    z, power = scipy_stats.norm.ppf([0.975, 0.8])
    by_hand = (z * math.sqrt(0.276) + power * math.sqrt(0.276 - 0.086**2)) ** 2 / 0.086**2
    assert entries_needed(8.6, test="normal approximation") == math.ceil(by_hand) == 291
    assert 291 < entries_needed(8.6) < 320


def test_a_curve_has_a_row_per_number_and_says_what_cannot_be():
    curve = power_curve((4, 100), (5, 40))
    assert list(zip(curve["difference_pp"], curve["n_entries"], strict=True)) == [(5, 4), (5, 100), (40, 4), (40, 100)]
    impossible = curve[curve["difference_pp"] == 40]
    assert impossible["power"].isna().all() and impossible["remark"].str.contains("beyond the discordant share").all()
    few = curve[curve["n_entries"] == 4]
    assert few["detectable_pp"].isna().all() and few["remark"].str.contains("no difference").all()
    row = curve.iloc[1]
    assert row["power"] == power_of_test(100, 5) and row["remark"] == ""
    assert row["power_normal"] == power_of_test(100, 5, test="normal approximation")


@pytest.mark.parametrize("test", ["mcnemar exact", "score"])
def test_simulation_confirms_the_calculation(test):
    table = simulated_power((40, 200), (0, 10.3), test=test, n_simulations=1500, seed=4)
    assert table["z"].abs().max() < 3.2
    assert table["monte_carlo_se"].to_numpy() == pytest.approx(
        np.sqrt(table["power"] * (1 - table["power"]) / 1500).to_numpy()
    )
    assert table.equals(simulated_power((40, 200), (0, 10.3), test=test, n_simulations=1500, seed=4))
    assert not table.equals(simulated_power((40, 200), (0, 10.3), test=test, n_simulations=1500, seed=5))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: power_of_test(100, 30), "must not exceed the discordant share of 27.6 %"),
        (lambda: power_of_test(100, float("nan")), "got nan"),
        (lambda: power_of_test(0, 5), "whole number of entries"),
        (lambda: power_of_test(10.5, 5), "whole number of entries"),
        (lambda: power_of_test(10, 5, 1.2), "discordant must lie in"),
        (lambda: power_of_test(10, 5, test="t"), "test must be one of"),
        (lambda: entries_needed(0), "must not be 0"),
        (lambda: entries_needed(50), "not exceed the discordant share"),
        (lambda: entries_needed(0.01), "needs more than 500,000 entries"),
        (lambda: entries_needed(5, power=1), "power must lie in"),
        (lambda: power_curve("many"), "n must be one or more numbers"),
        (lambda: power_curve(differences=[]), "differences must be one or more numbers"),
        (lambda: simulated_power(n_simulations=0), "n_simulations"),
    ],
)
def test_wrong_values_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_simulated_tests_give_the_p_values_of_the_tables():
    from structmem.intervals import mcnemar_exact
    from structmem.power import _p_values

    b, c = np.array([0, 1, 2, 15, 19, 7]), np.array([0, 0, 9, 15, 36, 1])
    assert _p_values(b, c, "mcnemar exact") == pytest.approx([mcnemar_exact(*pair) for pair in zip(b, c, strict=True)])
