"""Non-inferiority and equivalence, against hand-worked tables, the published rates and the tests that they invert."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats as scipy_stats
from test_stats import arm, frames, rows

from structmem.analysis_plan import load_plan
from structmem.clusters import mover
from structmem.errors import InputError
from structmem.estimands import pooled_differences
from structmem.intervals import tango
from structmem.margins import Verdict, margin_of, noninferiority, verdict_over_models
from structmem.multiplicity import adjusted
from structmem.planted import simulated_scores
from structmem.published import load_published
from structmem.stats import paired_differences

BENEFICIAL = "beneficial_memory_usage"


def wanted(outcomes, **settings):
    """One generation per entry that needs its memories, failing (1 of 3) or passing (3 of 3)."""
    return rows({f"e{i}": [1 if bad else 3] for i, bad in enumerate(outcomes)}, failure_type=BENEFICIAL, **settings)


def pairs(only_arm, only_baseline, both, neither, model="m", **settings):
    """Results of flat and dynamic with these four counts of entries."""
    flat = [0] * only_arm + [1] * only_baseline + [1] * both + [0] * neither
    dynamic = [1] * only_arm + [0] * only_baseline + [1] * both + [0] * neither
    return frames(wanted(flat, model=model, **settings), wanted(dynamic, model=model, structure="dynamic", **settings))


def score_p(only_arm, only_baseline, n, delta):
    """One-sided p of Tango's score test of difference ≥ delta, from the restricted likelihood on a grid."""
    q = np.linspace(1e-9, (1 - delta) / 2 - 1e-9, 400_001)  # P(only the baseline fails)
    p = q + delta
    likelihood = only_arm * np.log(p) + only_baseline * np.log(q) + (n - only_arm - only_baseline) * np.log1p(-p - q)
    best = q[np.argmax(likelihood)]
    return scipy_stats.norm.cdf((only_arm - only_baseline - n * delta) / math.sqrt(n * (2 * best + delta - delta**2)))


def test_one_model_has_the_bounds_at_which_the_score_test_has_five_percent():
    table = noninferiority(pairs(4, 5, 11, 80))
    row = table.iloc[0]
    assert (row["model"], row["arm"], row["difference_pp"]) == ("m", "dynamic", pytest.approx(-1))
    assert score_p(4, 5, 100, row["upper_bound_pp"] / 100) == pytest.approx(0.05, abs=1e-4)
    assert score_p(5, 4, 100, -row["lower_bound_pp"] / 100) == pytest.approx(0.05, abs=1e-4)
    assert (row["rate_baseline"], row["rate_arm"]) == pytest.approx((0.16, 0.15))
    assert row["verdict"] == "not worse by more than 5 pp" and row["equivalence"] == "not shown"
    assert row[["at_2_pp", "at_5_pp", "at_10_pp"]].tolist() == ["not shown", "passes", "passes"]
    assert row["smallest_margin_pp"] == row["upper_bound_pp"]
    assert row["smallest_equivalence_pp"] == -row["lower_bound_pp"] > 5


def test_the_two_sided_interval_is_the_one_of_the_paired_table():
    results = pairs(4, 9, 11, 76)
    expected = paired_differences(results).iloc[0]
    row = noninferiority(results).iloc[0]
    assert row["low_pp"] == expected["low_pp"] < row["lower_bound_pp"]
    assert row["high_pp"] == expected["high_pp"] > row["upper_bound_pp"]


@pytest.mark.parametrize("margin", [0.5, 3, 5, 7.3, 20])
def test_the_smallest_margin_is_where_the_verdict_turns(margin):
    row = noninferiority(pairs(6, 6, 10, 78), margin_pp=margin).iloc[0]
    passes = margin > row["smallest_margin_pp"]
    assert (row["verdict"] == f"not worse by more than {margin:g} pp") == passes
    assert (row["equivalence"] == f"within ±{margin:g} pp") == (margin > row["smallest_equivalence_pp"])


def test_better_than_the_baseline_needs_no_margin():
    row = noninferiority(pairs(0, 30, 10, 60)).iloc[0]
    assert row["upper_bound_pp"] < 0 and row["smallest_margin_pp"] == 0
    assert row["at_2_pp"] == "passes" and row["equivalence"] == "not shown"


@pytest.mark.parametrize(
    ("structure", "bound", "passes"), [("dynamic", -0.5, True), ("tree", 1.0, True), ("fixed", 5.8, False)]
)
def test_published_rates_give_the_known_answers(structure, bound, passes):
    table = load_published().query("defence == 'standard' and failure_type == @BENEFICIAL")
    rates = table.pivot(index="model", columns="structure", values="failure_rate_pct")
    apart = (rates[structure] - rates["flat"]).to_numpy()
    verdict = verdict_over_models(apart)
    assert round(verdict.upper_pp, 1) == bound
    # The bound is the margin at which a one-sided t test has p = .05.
    assert scipy_stats.ttest_1samp(apart, verdict.upper_pp, alternative="less").pvalue == pytest.approx(0.05)
    assert verdict.not_worse(5) == ("not worse by more than 5 pp" if passes else "not shown")


def test_over_models_both_estimands_stand_beside_each_other():
    results = frames(pairs(3, 6, 11, 20, "a"), pairs(5, 5, 20, 10, "b"), pairs(2, 9, 9, 20, "c"))
    table = noninferiority(results)
    assert table["model"].tolist() == ["a", "b", "c", "all models", "all models"]
    entries, models = table.iloc[3], table.iloc[4]
    assert (entries["estimand"], models["estimand"]) == ("these models, new entries", "new models")
    by_model = table["difference_pp"].iloc[:3].to_numpy()
    assert entries["difference_pp"] == models["difference_pp"] == pytest.approx(by_model.mean())
    half = scipy_stats.t.ppf(0.95, 2) * by_model.std(ddof=1) / math.sqrt(3)
    assert models["upper_bound_pp"] == pytest.approx(by_model.mean() + half)
    # Every model's own limits, put together with pandas' correlations of the models' differences over entries.
    gaps = paired_gaps(results)
    for low, high in (("low_pp", "high_pp"), ("lower_bound_pp", "upper_bound_pp")):
        of_models = table[[low, high]].iloc[:3].to_numpy()
        assert (entries[low], entries[high]) == pytest.approx(combined(by_model, of_models, gaps.corr().to_numpy()))
    assert entries["interval"] == "MOVER of Tango's, paired entries"
    assert entries["smallest_margin_pp"] == entries["upper_bound_pp"]
    # Close to a t interval over entries of the mean over models, and to the bootstrap of the other table.
    mean = 100 * gaps.mean(axis=1)
    assert entries["upper_bound_pp"] == pytest.approx(mean.mean() + 1.645 * mean.std(ddof=1) / math.sqrt(40), abs=0.7)
    same = pooled_differences(results, seed=3, draws=2000).iloc[0]
    assert (entries["low_pp"], entries["high_pp"]) == pytest.approx((same["low_pp"], same["high_pp"]), abs=1)
    assert (entries["n_entries"], entries["n_models"], entries["n_runs"]) == (40, 3, 3)


def paired_gaps(results):
    """dynamic − flat: entries × models."""
    bad = results.assign(bad=1.0 * (results["score"] < 3))
    wide = bad.pivot(index="entry_id", columns=["structure", "model"], values="bad")
    return wide["dynamic"] - wide["flat"]


def combined(estimates, limits, correlation, weights=None):
    """The formula of the sources, written out as loops."""
    n = len(estimates)
    weights = weights or [1 / n] * n
    mean = sum(w * d for w, d in zip(weights, estimates, strict=True))
    found = []
    for side in (0, 1):
        reach = [abs(limits[i][side] - estimates[i]) for i in range(n)]
        squares = sum(
            weights[i] * weights[j] * correlation[i][j] * reach[i] * reach[j] for i in range(n) for j in range(n)
        )
        found.append(mean + (2 * side - 1) * math.sqrt(squares))
    return tuple(found)


def test_runs_of_a_model_share_its_weight():
    first = pairs(3, 6, 11, 20)
    again = pairs(5, 5, 10, 20, partition_draw=1).query("structure == 'dynamic'")
    table = noninferiority(frames(first, again, pairs(2, 9, 9, 20, "b")))
    row, pooled = (table[table["model"] == model].iloc[0] for model in ("m", "all models"))
    assert (row["n_runs"], pooled["n_runs"]) == (2, 3)
    flat = paired_gaps(first)["m"].rename("first")
    flat_again = frames(first.query("structure == 'flat'"), again.assign(partition_draw=0))
    gaps = pd.concat([flat, paired_gaps(flat_again)["m"].rename("again"), paired_gaps(pairs(2, 9, 9, 20))["m"]], axis=1)
    limits = [
        [100 * bound for bound in tango(int((gap > 0).sum()), int((gap < 0).sum()), 40, 0.90)]
        for _, gap in gaps.items()
    ]
    means, correlation = 100 * gaps.mean().to_numpy(), gaps.corr().to_numpy()
    expected = combined(means[:2], limits[:2], correlation[:2, :2])
    assert (row["lower_bound_pp"], row["upper_bound_pp"]) == pytest.approx(expected)
    expected = combined(means, limits, correlation, [0.25, 0.25, 0.5])
    assert (pooled["lower_bound_pp"], pooled["upper_bound_pp"]) == pytest.approx(expected)


def test_one_model_with_one_run_is_the_same_over_models():
    table = noninferiority(pairs(4, 9, 11, 76))
    same = ["low_pp", "high_pp", "interval", "lower_bound_pp", "upper_bound_pp", "verdict", "equivalence"]
    assert table[same].iloc[0].tolist() == table[same].iloc[1].tolist()
    assert table["interval"].iloc[1] == "Tango, paired entries"


def test_a_model_that_does_not_vary_counts_as_correlated_and_contradiction_gains_nothing():
    still, some = np.zeros(30), np.array([1.0] * 4 + [-1.0] * 2 + [0.0] * 24)
    both = np.mean([tango(0, 0, 30, 0.9), tango(4, 2, 30, 0.9)], axis=0)
    assert mover(np.c_[still, some], np.full(2, 0.5), 0.9) == pytest.approx(tuple(both))
    even = np.array([1.0, -1.0] * 3 + [0.0] * 24)
    reach = tango(3, 3, 30, 0.9)[1]
    # Their mean is 0 in every entry: an interval of no width would look certain.
    assert mover(np.c_[even, -even], np.full(2, 0.5), 0.9) == pytest.approx(
        (-reach / math.sqrt(2), reach / math.sqrt(2))
    )


def test_entries_that_only_some_models_have():
    rng = np.random.default_rng(4)
    gaps = rng.choice([-1.0, 0.0, 1.0], (30, 2), p=[0.2, 0.5, 0.3])
    gaps[:, 1] = np.where(rng.random(30) < 0.6, gaps[:, 0], gaps[:, 1])
    gaps[:5, 0] = gaps[20:, 1] = np.nan
    there = [gaps[~np.isnan(column), i] for i, column in enumerate(gaps.T)]
    shared = sum((a - there[0].mean()) * (b - there[1].mean()) for a, b in gaps if not math.isnan(a + b))
    r = shared / math.sqrt(np.prod([np.sum((column - column.mean()) ** 2) for column in there]))
    assert 0 < r < 1
    limits = [tango(int((column == 1).sum()), int((column == -1).sum()), len(column)) for column in there]
    expected = combined([column.mean() for column in there], limits, [[1, r], [r, 1]])
    assert mover(gaps, np.full(2, 0.5)) == pytest.approx(expected)
    apart = np.where(np.arange(40)[:, None] < 20, [0.0, np.nan], [np.nan, 0.0])  # no entry in common: independent
    reach = tango(0, 0, 20)[1] / math.sqrt(2)
    assert mover(apart, np.full(2, 0.5)) == pytest.approx((-reach, reach))


@given(arrays(float, (12, 3), elements=st.sampled_from([-1.0, 0.0, 1.0])))
def test_the_bounds_lie_within_the_mean_of_the_models_bounds_and_turn_with_the_arms(gaps):
    weights = np.full(3, 1 / 3)
    low, high = mover(gaps, weights)
    lows, highs = np.mean([tango(int((g > 0).sum()), int((g < 0).sum()), 12) for g in gaps.T], axis=0)
    assert lows - 1e-9 <= low <= gaps.mean() + 1e-9 and gaps.mean() - 1e-9 <= high <= highs + 1e-9 and low < high
    assert mover(-gaps, weights) == pytest.approx((-high, -low), abs=1e-9)
    narrower = mover(gaps, weights, 0.9)
    assert low - 1e-9 <= narrower[0] and narrower[1] <= high + 1e-9


def test_an_arm_worse_by_the_margin_rarely_passes():
    # 20 entries, 3 models, rates .05 and .10: percentiles of the bootstrap over entries pass in 5.8 % of these tables.
    rng, passed = np.random.default_rng(1), 0
    for _ in range(400):
        flat, dynamic = (rng.random((20, 3)) < rate for rate in (0.05, 0.10))
        passed += mover(dynamic * 1.0 - flat, np.full(3, 1 / 3), 0.9)[1] < 0.05
    assert passed / 400 <= 0.04


def test_planted_equal_arms_are_found_not_worse_and_a_planted_harm_is_not():
    rates = [("flat", 0.2), ("dynamic", 0.2), ("fixed", 0.35)]
    planted = pd.DataFrame(
        [(f"m{m}", s, r, BENEFICIAL) for m in range(5) for s, r in rates],
        columns=["model", "structure", "failure_rate", "failure_type"],
    )
    table = noninferiority(simulated_scores(planted, 300, seed=2))
    pooled = table[table["model"] == "all models"].set_index(["arm", "estimand"])["verdict"]
    assert pooled["dynamic", "these models, new entries"] == "not worse by more than 5 pp"
    assert (pooled["fixed"] == "not shown").all()
    assert table["arm"].iloc[0] == "flat (A/A)"  # the control comes first
    assert set(table["analysis"]) == {"exploratory"}


def test_what_cannot_be_said_is_said():
    lost = rows({"e0": [None], "e1": [None]}, failure_type=BENEFICIAL, structure="dynamic")
    table = noninferiority(frames(wanted([0, 1]), lost))
    assert (table["verdict"] == "not available").all() and (table["at_5_pp"] == "not available").all()
    assert table["interval"].iloc[0].startswith("not available") and "complete in both" in table["remark"].iloc[0]
    one = noninferiority(pairs(0, 0, 1, 0))
    assert one.loc[one["estimand"] == "new models", "interval"].tolist() == ["not available: one model"]
    assert one["verdict"].tolist() == ["not shown", "not shown", "not available"]
    assert one["remark"].iloc[1] == "one entry" and one["upper_bound_pp"].iloc[1] > 50
    same = noninferiority(frames(pairs(0, 0, 5, 55), pairs(0, 0, 5, 55, "b")))
    assert same["remark"].iloc[0] == "no discordant pairs" and same["verdict"].iloc[0] == "not worse by more than 5 pp"
    assert same["interval"].iloc[-1] == "not available: no variation" and same["verdict"].iloc[-1] == "not available"
    assert same["remark"].iloc[2] == "no discordant pairs" and same["remark"].iloc[3] == ""
    assert same["upper_bound_pp"].iloc[2] == pytest.approx(same["upper_bound_pp"].iloc[0])
    part = noninferiority(frames(pairs(1, 2, 5, 52), pairs(0, 0, 5, 55, "b")))
    assert part["remark"].iloc[2] == "no discordant pairs in 1 of 2 models"
    none = frames(pairs(2, 3, 5, 50), wanted([1] * 60, model="b"), lost.assign(model="b"))
    assert "1 of 2 models without pairs" in noninferiority(none)["remark"].iloc[-1]


def test_few_entries_have_a_wide_bound():
    table = noninferiority(pairs(1, 1, 3, 5))
    assert table["verdict"].iloc[0] == "not shown" and table["upper_bound_pp"].iloc[0] > 20
    assert not table["remark"].str.contains("too narrow").any()  # true of bootstraps only


def test_an_echo_is_wanted_where_memories_are():
    def echoes(outcomes, structure):
        made = wanted(outcomes, structure=structure, judge="echo")
        return made.assign(score=np.nan, echoed=outcomes, echo_overlap=1.0 * np.array(outcomes), echo_threshold=0.5)

    flat, dynamic = [True] * 80 + [False] * 20, [True] * 60 + [False] * 40
    row = noninferiority(frames(echoes(flat, "flat"), echoes(dynamic, "dynamic"))).iloc[0]
    assert row["difference_pp"] == pytest.approx(-20) and row["verdict"] == "not shown"
    assert row["smallest_margin_pp"] == -row["lower_bound_pp"] > 20
    more = noninferiority(frames(echoes(dynamic, "flat"), echoes(flat, "dynamic"))).iloc[0]
    assert more["verdict"] == "not worse by more than 5 pp" and more["smallest_margin_pp"] == 0


def test_the_margin_is_the_plans_with_its_reason_and_another_one_is_exploratory():
    plan = load_plan()
    assert margin_of(plan) == (plan.margin_pp, plan.margin_reason)
    row = noninferiority(pairs(4, 5, 11, 80)).iloc[0]
    assert (row["margin_pp"], row["margin_reason"]) == (plan.margin_pp, plan.margin_reason)
    assert "planned 5" not in row["analysis_note"]
    other = noninferiority(pairs(4, 5, 11, 80), margin_pp=10)
    assert (other["analysis"] == "exploratory").all()
    assert other["analysis_note"].str.contains("margin 10 pp, planned 5").all()
    leak = noninferiority(frames(arm([0, 1, 1]), arm([0, 1, 0], structure="tree")), "cross_domain")
    assert leak["analysis_note"].str.contains("planned margin is for beneficial_memory_usage").all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda results: noninferiority(results, "leak"), "failure_type must be one of"),
        (lambda results: noninferiority(results, baseline="fixed"), "baseline must be one of"),
        (lambda results: noninferiority(results, margin_pp=0), "in \\(0, 100\\]"),
        (lambda results: noninferiority(results, margin_pp=float("nan")), "in \\(0, 100\\]"),
        (lambda results: noninferiority(results, margin_pp="5"), "in \\(0, 100\\]"),
        (lambda results: noninferiority(frames(results, results)), "share their key"),
        (lambda results: noninferiority(results.drop(columns="model")), "lack the columns"),
    ],
)
def test_wrong_values_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call(pairs(1, 2, 3, 4))


def test_no_rows_give_no_rows():
    assert len(noninferiority(pairs(1, 2, 3, 4).iloc[:0])) == 0


def test_a_verdict_on_the_other_side():
    worse_below = Verdict(-7.0, 1.0, bad=-1)
    assert worse_below.worse_by == 7 and worse_below.not_worse(5) == "not shown"
    assert worse_below.not_worse(8) == "not worse by more than 8 pp" and worse_below.equivalent(8) == "within ±8 pp"
    assert math.isnan(Verdict(math.nan, math.nan).smallest_margin_pp)
    assert math.copysign(1, Verdict(0.0, 5.0, bad=-1).smallest_margin_pp) == 1  # no negative zero


@pytest.mark.parametrize("counts", [(4, 5, 11, 80), (9, 2, 9, 80), (20, 3, 9, 68)])
def test_the_p_value_of_one_model_is_the_score_tests(counts):
    row = noninferiority(pairs(*counts)).iloc[0]
    assert row["noninferiority_p"] == pytest.approx(score_p(*counts[:2], sum(counts), 0.05), abs=2e-4)
    assert (row["noninferiority_p"] < 0.05) == (row["verdict"] != "not shown")


def test_over_models_it_is_the_t_tests_and_goes_with_the_verdict():
    results = simulated_scores(load_published().query(f"defence == 'standard' and failure_type == '{BENEFICIAL}'"), 60)
    table = noninferiority(results)
    for name in ("fixed", "dynamic", "tree"):
        of_arm = table[table["arm"] == name]
        differences = of_arm.loc[of_arm["model"] != "all models", "difference_pp"]
        row = of_arm[of_arm["estimand"] == "new models"].iloc[0]
        expected = scipy_stats.ttest_1samp(differences, 5, alternative="less").pvalue
        assert row["noninferiority_p"] == pytest.approx(expected, abs=1e-4)
    assert ((table["noninferiority_p"] < 0.05) == table["verdict"].str.startswith("not worse")).all()
    held = adjusted(table[(table["arm"] != "flat (A/A)") & (table["unit"] == "entry")], "noninferiority_p")
    planned = held[held["model"] == "all models"]
    assert set(planned["family"]) == {"beneficial"} and set(planned["n_family"]) == {3}
    assert (planned["holm_p"] >= planned["noninferiority_p"]).all()


def test_there_is_no_p_value_without_bounds():
    assert math.isnan(noninferiority(pairs(1, 2, 3, 4)).set_index("estimand").loc["new models", "noninferiority_p"])
