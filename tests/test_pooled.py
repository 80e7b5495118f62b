"""Odds ratios over models against statsmodels, closed forms and loops; separation is in test_cases_statistics."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats as scipy_stats
from statsmodels.discrete.conditional_models import ConditionalLogit

from structmem.columns import empty_results
from structmem.errors import InputError
from structmem.estimands import pooled_differences
from structmem.pooled import _kinds, _solved, _strata, logistic_effects
from structmem.resampling import multinomial
from structmem.tables import show


def answers(n, rates, models="ab", seed=0):
    """Answers of flat (arm 0) and fixed (1), entries alike hard for all models; a failure rate per arm and run."""
    rng, rows = np.random.default_rng(seed), []
    hard = rng.normal(size=n)
    for model in models:
        for (arm, run), rate in rates.items():
            failed = hard + rng.normal(size=n) > scipy_stats.norm.isf(rate) * math.sqrt(2)
            rows += [
                {"entry_id": f"e{i:03d}", "model": model, "arm": arm, "run": run, "failed": float(bad)}
                for i, bad in enumerate(failed)
            ]
    return pd.DataFrame(rows)


def results_of(table, draw="partition_draw"):
    """The same answers as results rows; several runs of an arm are partition draws, or replicates of both arms."""
    base = {
        "failure_type": "cross_domain", "structurer": "", "partition_draw": 0, "replicate": 0, "judge": "persistbench",
        "threshold": 3, "generation": 0, "status": "ok", "status_reason": None,
    }  # fmt: skip
    own = {
        "structure": np.where(table["arm"] == 1, "fixed", "flat"),
        "score": 1 + 4 * table["failed"],
        draw: table["run"],
    }
    return table[["entry_id", "model"]].assign(**(base | own))


ONE_RUN = {(0, 0): 0.6, (1, 0): 0.45}
SHARED = {(0, 0): 0.6, (1, 0): 0.45, (1, 1): 0.5, (1, 2): 0.4}
PAIRED = {(0, 0): 0.6, (0, 1): 0.6, (1, 0): 0.45, (1, 1): 0.5}


def expected_conditional(table):
    fit = ConditionalLogit(table["failed"], table[["arm"]], groups=table["entry_id"] + table["model"])
    fit = fit.fit(disp=False)
    return math.exp(fit.params.iloc[0])


@pytest.mark.filterwarnings("ignore:Dropped:UserWarning")
@pytest.mark.parametrize(
    ("rates", "draw", "models"),
    [(ONE_RUN, "partition_draw", "a"), (ONE_RUN, "partition_draw", "abc"), (SHARED, "partition_draw", "ab"),
     (PAIRED, "replicate", "ab")],
)  # fmt: skip
def test_conditional_odds_ratios_are_statsmodels(rates, draw, models):
    table = answers(50, rates, models)
    rows = logistic_effects(results_of(table, draw), draws=200)
    row = rows[(rows["arm"] == "fixed") & (rows["method"] == "conditional logistic")].iloc[0]
    assert row["odds_ratio"] == pytest.approx(expected_conditional(table), rel=2e-4)  # its optimiser stops early
    failed = table.groupby("arm")["failed"].mean()
    assert (row["rate_baseline"], row["rate_arm"]) == pytest.approx((failed[0], failed[1]))  # each answer once
    assert row["n_strata"] == 50 * len(models) and row["n_models"] == len(models) and row["n_entries"] == 50
    varies = table.groupby(["entry_id", "model"])["failed"].nunique() > 1
    assert row["n_informative"] == varies.sum()


def test_with_one_run_it_is_the_ratio_of_discordant_pairs_and_p_is_mcnemars():
    table = answers(26, ONE_RUN, "a", seed=4)
    row = logistic_effects(results_of(table), draws=200).iloc[1]
    b, c = row["n_only_arm_fails"], row["n_only_baseline_fails"]
    assert row["odds_ratio"] == pytest.approx(b / c)
    assert row["odds_p"] == pytest.approx(scipy_stats.binomtest(b, b + c).pvalue)
    assert row["test"] == "sign flips of entries, exact"


@pytest.mark.filterwarnings("ignore:Dropped:UserWarning")
def test_the_bootstrap_solves_every_draw_as_statsmodels_would():
    table = answers(25, SHARED, "ab", seed=2)
    strata = _strata(table)
    kinds, per_entry = _kinds(strata[strata["informative"]])
    names = strata[strata["informative"]]["entry_id"].drop_duplicates().tolist()
    weights = multinomial(len(names), 5, np.random.default_rng(0))
    found = _solved(kinds, weights @ per_entry)
    for counts, mine in zip(weights.astype(int), found, strict=True):
        copies = [
            table[table["entry_id"] == name].assign(entry_id=f"{name}-{copy}")
            for name, count in zip(names, counts, strict=True)
            for copy in range(count)
        ]
        assert math.exp(mine) == pytest.approx(expected_conditional(pd.concat(copies)), rel=2e-4)


def test_the_bootstrap_interval_agrees_with_a_plain_loop():
    table = answers(60, ONE_RUN, "abc", seed=7)
    row = logistic_effects(results_of(table), draws=4000).iloc[1]
    wide = table.pivot(index="entry_id", columns=["model", "arm"], values="failed")
    gaps = np.stack([wide[model][1] - wide[model][0] for model in "abc"], axis=1)
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(4000):
        some = gaps[rng.integers(0, 60, 60)]
        ratios.append((some > 0).sum() / (some < 0).sum())
    low, high = np.quantile(np.log(ratios), scipy_stats.norm.cdf([-2.018, 2.018]))  # t over 59, times √(60 / 59)
    assert np.log([row["odds_low"], row["odds_high"]]) == pytest.approx([low, high], abs=0.06)
    assert row["interval"] == "cluster bootstrap, expanded percentile, 4,000 draws"


def test_gee_is_statsmodels_formula_interface():
    table = answers(60, ONE_RUN, "abc", seed=5)
    row = logistic_effects(results_of(table), draws=100).iloc[0]
    fit = smf.gee(
        "failed ~ arm + C(model)", "entry_id", table.sort_values(["entry_id", "model", "arm"]),
        cov_struct=sm.cov_struct.Exchangeable(), family=sm.families.Binomial(),
    ).fit(cov_type="bias_reduced")  # fmt: skip
    assert row["odds_ratio"] == pytest.approx(math.exp(fit.params["arm"]), rel=1e-6)
    bounds = np.exp(fit.conf_int().loc["arm"])
    assert (row["odds_low"], row["odds_high"]) == pytest.approx(tuple(bounds), rel=1e-6)
    assert row["odds_p"] == pytest.approx(fit.pvalues["arm"], rel=1e-6)
    assert row["interval"] == "Wald, GEE (exchangeable), sandwich over entries" and row["remark"] == ""


def test_gee_of_one_model_compares_the_marginal_odds_and_the_conditional_ratio_lies_further_from_1():
    table = answers(80, ONE_RUN, "a", seed=6)
    gee, conditional = logistic_effects(results_of(table), draws=100).to_dict("records")
    rates = table.groupby("arm")["failed"].mean()
    odds = rates / (1 - rates)
    assert gee["odds_ratio"] == pytest.approx(odds[1] / odds[0], rel=1e-5)
    assert conditional["odds_ratio"] < gee["odds_ratio"] < 1


def test_swapping_the_arms_inverts_everything():
    table = answers(40, ONE_RUN, "ab", seed=8)
    results = results_of(table)
    there = logistic_effects(results, draws=500)
    back = logistic_effects(results, baseline="fixed", draws=500)
    assert back["odds_ratio"].tolist() == pytest.approx((1 / there["odds_ratio"]).tolist(), rel=1e-5)
    assert back["odds_low"].tolist() == pytest.approx((1 / there["odds_high"]).tolist(), rel=1e-4)
    assert back["odds_p"].tolist() == pytest.approx(there["odds_p"].tolist())


def test_the_p_over_entries_is_that_of_the_pooled_difference():
    results = results_of(answers(40, ONE_RUN, "abc", seed=9))
    assert logistic_effects(results).iloc[1]["odds_p"] == pooled_differences(results).iloc[0]["sign_flip_p"]


def test_models_without_variation_are_left_out_visibly():
    table = answers(30, ONE_RUN, "ab")
    still = table[table["model"] == "a"].assign(model="still", failed=1.0)
    alone, gee = (
        logistic_effects(results_of(one), draws=100).iloc[0] for one in (table, pd.concat([table, still]))
    )  # fmt: skip
    assert gee["odds_ratio"] == pytest.approx(alone["odds_ratio"], rel=1e-6)
    assert gee["n_models"] == 2 and "still: every answer or none fails, left out" in gee["remark"]


def test_a_bound_that_most_draws_do_not_have_is_missing_in_words():
    gaps = [1] + [-1] * 8 + [0] * 11
    table = pd.concat(
        [
            pd.DataFrame({"entry_id": f"e{i:02d}", "model": "a", "run": 0, "arm": [0, 1], "failed": [gap < 0, gap > 0]})
            for i, gap in enumerate(gaps)
        ]
    ).astype({"failed": float})
    row = logistic_effects(results_of(table)).iloc[1]
    assert row["odds_ratio"] == pytest.approx(1 / 8) and math.isnan(row["odds_low"]) and row["odds_high"] < 1.2
    said = re.search(r"no lower bound: separated in ([\d.]+) % of the draws", row["remark"])
    # The one entry that speaks for the arm is in none of 20 draws with probability .95 ** 20.
    assert float(said[1]) == pytest.approx(100 * 0.95**20, abs=1.5)


def test_few_entries_and_no_entries_are_said():
    one = pd.DataFrame({"model": list("abab"), "arm": [0, 0, 1, 1], "failed": [1.0, 0, 0, 1]}).assign(
        entry_id="e", run=0
    )
    gee, conditional = logistic_effects(results_of(one)).to_dict("records")
    assert gee["interval"] == "not available: 1 entry for 3 coefficients"
    assert conditional["interval"] == "not available: one cluster" and conditional["odds_p"] == 1
    few = logistic_effects(results_of(answers(10, ONE_RUN, "a", seed=1)))
    assert few["remark"].str.contains("10 entries: the interval of fewer than 15 is too narrow").all()
    lost = results_of(answers(5, ONE_RUN)).assign(status="no_verdict", status_reason="timeout", score=np.nan)
    table = logistic_effects(lost)
    assert set(table["interval"]) == {"not available: no pairs"} and table["odds_p"].isna().all()
    assert not re.search(r"\b(nan|inf)\b", str(show(table)))
    assert len(logistic_effects(empty_results())) == 0 and "odds_ratio" in logistic_effects(empty_results())


def test_echo_and_bad_input():
    results = results_of(answers(20, ONE_RUN, "a"))
    echoed = results.assign(
        judge="echo", echoed=results["score"] == 5, echo_overlap=0.5, echo_threshold=0.4, score=np.nan
    )
    table = logistic_effects(echoed, draws=100)
    assert {"n_only_arm_echoes", "n_only_baseline_echoes"} <= set(table) and set(table["outcome"]) == {"echo"}
    assert table["odds_ratio"].tolist() == pytest.approx(logistic_effects(results, draws=100)["odds_ratio"].tolist())
    with pytest.raises(InputError, match="baseline must be one of"):
        logistic_effects(results, baseline="tree")
    with pytest.raises(InputError, match="draws must be"):
        logistic_effects(results, draws=0)
