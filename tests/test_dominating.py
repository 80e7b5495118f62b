"""Dominance of results: point by point as the rates say, with intervals beside, and nothing for one failure type."""

import pandas as pd
import pytest

from structmem.dominating import dominance
from structmem.errors import InputError
from structmem.planted import simulated_scores
from structmem.published import load_published
from structmem.published_contrasts import published_dominance
from structmem.stats import failure_rate

RATES = load_published().query("defence == 'standard' and failure_type != 'sycophancy'")


def test_the_verdict_is_that_of_the_two_rates():
    results = simulated_scores(RATES, 60)
    rates = failure_rate(results).query("replicate == 0").set_index(["model", "structure", "failure_type"])
    table = dominance(results)
    assert len(table) == 21 and set(table["arm"]) == {"fixed", "dynamic", "tree"}
    for row in table.itertuples():
        gaps = []
        for kind in ("cross_domain", "beneficial_memory_usage"):
            one, other = (rates.loc[(row.model, name, kind), "failure_rate"] for name in (row.arm, "flat"))
            gaps.append(round(100 * (one - other), 6))
        assert (row.leakage_difference_pp, row.beneficial_difference_pp) == pytest.approx(tuple(gaps))
        expected = row.arm if max(gaps) <= 0 > min(gaps) else "flat" if min(gaps) >= 0 < max(gaps) else "neither"
        assert row.dominates == expected
        assert row.leakage_low_pp <= row.leakage_difference_pp <= row.leakage_high_pp
        assert row.leakage_n_pairs == row.beneficial_n_pairs == 60
    assert {"neither", "dynamic"} < set(table["dominates"])


def test_its_columns_are_those_of_the_published_table():
    published = published_dominance()
    assert {"arm", "baseline", "model", "leakage_difference_pp", "beneficial_difference_pp", "dominates"} <= set(
        published
    ) & set(dominance(simulated_scores(RATES, 20)))


def test_equal_rates_dominate_nothing():
    rates = pd.DataFrame({"model": "m", "structure": ["flat", "fixed"], "failure_rate": 1.0})
    both = pd.concat([rates.assign(failure_type="cross_domain"), rates.assign(failure_type="beneficial_memory_usage")])
    assert dominance(simulated_scores(both, 10))["dominates"].tolist() == ["neither"]


def test_one_failure_type_is_refused_by_name():
    with pytest.raises(InputError, match="beneficial_memory_usage"):
        dominance(simulated_scores(RATES.query("failure_type == 'cross_domain'"), 10))
