"""Simulated scores fail as often as planted, pair as planted, and say that they are simulated."""

import math

import numpy as np
import pandas as pd
import pytest

from structmem.errors import InputError
from structmem.planted import simulated_scores
from structmem.published import load_published
from structmem.results import validate
from structmem.stats import failure_rate, paired_differences

PUBLISHED = load_published().query("defence == 'standard'")


@pytest.fixture(scope="module")
def results():
    return simulated_scores(PUBLISHED, 1000)


def test_every_planted_rate_comes_back(results):
    rates = failure_rate(results)
    rates = rates[rates["arm"] != "flat (A/A)"]
    assert len(rates) == len(PUBLISHED)
    planted = {(f"simulated/{r.model}", r.structure, r.failure_type): r.failure_rate for r in PUBLISHED.itertuples()}
    apart = []
    for row in rates.itertuples():
        expected = planted[row.model, row.structure, row.failure_type]
        assert row.n_entries == 1000
        if expected in (0, 1):
            assert row.failure_rate == expected
        else:
            apart.append((row.failure_rate - expected) / math.sqrt(expected * (1 - expected) / 1000))
    assert max(map(abs, apart)) < 4.2


def test_pairs_disagree_about_as_often_as_published(results):
    table = paired_differences(results[results["failure_type"] == "cross_domain"])
    dynamic = table[table["structure"] == "dynamic"]
    discordant = (dynamic["n_only_baseline_fails"] + dynamic["n_only_arm_fails"]) / dynamic["n_pairs"]
    assert abs(discordant.mean() - 0.276) < 0.03
    noise = table[table["arm"] == "flat (A/A)"]
    assert len(noise) == 7 and abs(noise["difference_pp"].mean()) < 2


def test_the_rows_are_a_valid_results_table_that_says_simulated(results):
    assert len(validate(results)) == len(results)
    assert results["model"].str.startswith("simulated/").all() and results["judge"].eq("simulated").all()


def test_an_arm_draws_the_same_whatever_else_is_there():
    alone = simulated_scores(PUBLISHED.query("structure == 'flat' and model == 'glm-4.7'"), 20, missing=0.2)
    among = simulated_scores(PUBLISHED, 20, missing=0.2)
    among = among.query("structure == 'flat' and model == 'simulated/glm-4.7'")
    pd.testing.assert_series_equal(alone["score"].reset_index(drop=True), among["score"].reset_index(drop=True))
    other = simulated_scores(PUBLISHED.query("structure == 'flat' and model == 'glm-4.7'"), 20, seed=1)
    assert alone["score"].tolist() != other["score"].tolist()


def test_missing_verdicts_are_missing_and_not_zero():
    rows = simulated_scores(PUBLISHED, 50, missing=0.2)
    lost = rows["status"] == "no_verdict"
    assert 0.17 < lost.mean() < 0.23 and rows.loc[lost, "score"].isna().all() and rows.loc[~lost, "score"].notna().all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"failure_rate": 1.2}, "must lie in"),
        ({"failure_rate": np.nan}, "must lie in"),
        ({"failure_type": "leak"}, "failure_type must be one of"),
        ({"structure": "flat"}, "an arm twice"),
    ],
)
def test_bad_rates_are_refused(change, said):
    rates = pd.DataFrame({"model": "a", "structure": ["flat", "fixed"], "failure_rate": [0.5, 0.4]})
    with pytest.raises(InputError, match=said):
        simulated_scores(rates.assign(**change))
    with pytest.raises(InputError, match="lack the columns"):
        simulated_scores(rates.drop(columns="model"))
    with pytest.raises(InputError, match="missing must lie"):
        simulated_scores(rates, missing=1)


@pytest.mark.parametrize(
    "more",
    [{"n_entries": 0}, {"n_entries": -3}, {"n_entries": 2.5}, {"n_entries": True}, {"seed": -1}, {"missing": "a"}],
)
def test_counts_and_seeds_that_are_none_are_refused(more):
    rates = pd.DataFrame({"model": ["m"], "structure": ["flat"], "failure_rate": [0.5]})
    with pytest.raises(InputError):
        simulated_scores(rates, **more)


@pytest.mark.parametrize(
    "column, value", [("failure_rate", "half"), ("n_entries", None), ("n_entries", 0), ("model", None)]
)
def test_rates_with_holes_or_texts_are_refused(column, value):
    rates = pd.DataFrame({"model": ["m"], "structure": ["flat"], "failure_rate": [0.5], "n_entries": [20]})
    with pytest.raises(InputError):
        simulated_scores(rates.assign(**{column: [value]}))
    with pytest.raises(InputError):
        simulated_scores(None)
