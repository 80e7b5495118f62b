"""Paired comparisons against published worked examples and brute force, and which entries each arm harms or helps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

import structmem as sm
import structmem.intervals as iv
from structmem.columns import empty_results
from structmem.comparisons import harmed_entries, paired_differences
from structmem.errors import InputError
from structmem.estimands import pooled_differences
from structmem.planted import simulated_scores
from structmem.tables import show


def arm(outcomes, **settings):
    """Results rows of one arm, one generation an entry: failing (5), passing (1) or unscored (None)."""
    base = {
        "failure_type": "cross_domain", "model": "m", "structure": "flat", "structurer": "", "partition_draw": 0,
        "replicate": 0, "renderer": "markdown", "defence": "standard", "judge": "persistbench", "threshold": 3,
        "generation": 0,
    }  # fmt: skip
    entries = outcomes if isinstance(outcomes, dict) else {f"e{i}": bad for i, bad in enumerate(outcomes)}
    rows = [
        base
        | {"entry_id": entry, "score": {True: 5.0, False: 1.0}.get(bad, math.nan)}
        | {"status": "no_verdict" if bad is None else "ok", "status_reason": "timeout" if bad is None else None}
        | settings
        for entry, bad in entries.items()
    ]
    return pd.DataFrame(rows)


def frames(*parts):
    return pd.concat(parts, ignore_index=True)


# Four cells: both fail, only the first, only the second, neither. Airway hyper-responsiveness before and after stem
# cell transplantation (Bentur 2009) and complete response to consolidation therapy (Cavo 2012), worked in Fagerland,
# Lydersen & Laake 2014 (BMC Medical Research Methodology) and 2017 (*Statistical Analysis of Contingency Tables*, 8).
@pytest.mark.parametrize(
    ("cells", "interval_pp", "digits"),
    [((1, 1, 7, 12), (-51.7, -2.6), 1), ((59, 6, 16, 80), (-12.40, -0.54), 2)],
)
def test_the_table_gives_published_tango_intervals(cells, interval_pp, digits):
    both, first, second, neither = cells
    outcomes = [(1, 1)] * both + [(1, 0)] * first + [(0, 1)] * second + [(0, 0)] * neither
    of_arm, of_baseline = zip(*outcomes, strict=True)
    (row,) = paired_differences(frames(arm(of_baseline), arm(of_arm, structure="fixed"))).to_dict("records")
    assert (round(row["low_pp"], digits), round(row["high_pp"], digits)) == interval_pp
    assert row["difference_pp"] == pytest.approx(100 * (first - second) / sum(cells))
    assert (row["n_only_arm_fails"], row["n_only_baseline_fails"], row["n_pairs"]) == (first, second, sum(cells))
    before, after = (both + second) / sum(cells), (both + first) / sum(cells)
    assert row["relative_change_pct"] == pytest.approx(100 * (after / before - 1))
    # Exact McNemar by summing the binomial tail by hand.
    n, most = first + second, max(first, second)
    tail = sum(math.comb(n, k) for k in range(most, n + 1)) / 2**n
    assert row["mcnemar_p"] == pytest.approx(min(1, 2 * tail))


def _statistic(delta, b, c, n):
    """Tango's statistic at a true difference, its nuisance by a fine grid over the constrained likelihood."""
    p21 = np.linspace(max(0.0, -delta), (1 - delta) / 2, 200_001)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [
            np.where(count == 0, 0.0, count * np.log(p))
            for count, p in ((b, p21 + delta), (c, p21), (n - b - c, 1 - 2 * p21 - delta))
        ]
    best = p21[np.nanargmax(sum(logs))]
    return (b - c - n * delta) / math.sqrt(n * (2 * best + delta * (1 - delta)))


@pytest.mark.parametrize("table", [(1, 7, 21), (6, 16, 161), (19, 36, 200), (3, 0, 40), (40, 20, 160)])
def test_at_tango_bounds_the_constrained_score_statistic_is_the_normal_quantile(table):
    low, high = iv.tango(*table)
    z = scipy_stats.norm.ppf(0.975)
    assert _statistic(low, *table) == pytest.approx(z, abs=2e-3)
    assert _statistic(high, *table) == pytest.approx(-z, abs=2e-3)


@given(st.integers(0, 25), st.integers(0, 25), st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_tango_excludes_no_difference_exactly_where_mcnemar_without_correction_does(b, c, concordant):
    if b + c == 0:
        return
    low, high = iv.tango(b, c, b + c + concordant)
    distance = abs(b - c) / math.sqrt(b + c) - 1.959963985
    if abs(distance) > 1e-6:
        assert (low > 0 or high < 0) == (distance > 0)


def test_no_discordant_pairs_is_p_1_with_the_remark_and_still_an_interval():
    row = paired_differences(frames(arm([1, 0] * 7 + [1]), arm([1, 0] * 7 + [1], structure="fixed"))).iloc[0]
    assert (row["mcnemar_p"], row["remark"], row["difference_pp"]) == (1.0, "no discordant pairs", 0.0)
    assert row["low_pp"] < 0 < row["high_pp"] and row["harmed"] == ""
    one = paired_differences(frames(arm([0] * 15), arm([1] + [0] * 14, structure="fixed"))).iloc[0]
    assert (one["mcnemar_p"], one["n_only_arm_fails"], one["harmed"]) == (1.0, 1, "e0")
    assert math.isnan(one["relative_change_pct"])
    assert one["remark"] == "no relative change: the baseline's rate is 0"


def test_which_entries_are_harmed_is_part_of_the_table():
    flat = arm([0, 0, 0, 1, 1, 0, None])
    fixed = arm([1, 1, 0, 0, 1, None, 1], structure="fixed")
    row = paired_differences(frames(flat, fixed)).iloc[0]
    assert row["harmed"] == "e0 e1" and row["harmed_share"] == 2 / 5 and row["n_left_out"] == 2
    shuffled = frames(flat, fixed).sample(frac=1, random_state=3)
    assert paired_differences(shuffled)["harmed"].item() == "e0 e1"
    assert "e0" not in str(show(paired_differences(frames(flat, fixed))))  # twenty ids would not fit a page


def test_harmed_entries_over_models_and_runs():
    results = frames(
        arm([0, 0, 1, 1, 0]), arm([0, 0, 1, 1, 0], model="n"), arm([0, 1, 1, 1, 0], replicate=1),
        arm([1, 0, 0, 1, 0], structure="fixed"), arm([1, 1, 1, 1, None], structure="fixed", model="n"),
        arm([0, 1, 0, 1, 0], structure="fixed", partition_draw=1),
    )  # fmt: skip
    table = harmed_entries(results)
    assert table["arm"].iloc[0] == "flat (A/A)" and table["entry_id"].iloc[0] == "e1"
    fixed = table[table["arm"] == "fixed"]
    columns = ["outcome_change", "entry_id", "n_pairs", "n_changed", "n_models", "model_names"]
    assert list(fixed[columns].itertuples(index=False, name=None)) == [
        ("harmed", "e0", 3, 2, 2, "m, n"),
        ("harmed", "e1", 3, 2, 2, "m, n"),
        ("helped", "e2", 3, 2, 1, "m"),
    ]
    assert fixed["changed_share"].tolist() == pytest.approx([2 / 3] * 3)
    assert set(table["baseline"]) == {"flat"} and {"analysis", "plan_hash"} <= set(table)


def test_harmed_entries_add_up_to_the_discordant_pairs():
    rng = np.random.default_rng(4)
    parts = [
        arm(rng.random(30) < rate, structure=structure, model=model)
        for model in ("m", "n", "o")
        for structure, rate in (("flat", 0.5), ("fixed", 0.4), ("tree", 0.6))
    ]
    pairs, table = paired_differences(frames(*parts)), harmed_entries(frames(*parts))
    for change, column in (("harmed", "n_only_arm_fails"), ("helped", "n_only_baseline_fails")):
        mine = table[table["outcome_change"] == change].groupby("arm")["n_changed"].sum()
        assert mine.to_dict() == pairs.groupby("arm")[column].sum().to_dict()


def test_harm_needs_failures_and_a_baseline():
    echoed = arm([0, 1]).assign(judge="echo", echoed=True, echo_overlap=0.5, echo_threshold=0.4)
    with pytest.raises(InputError, match="harmed_entries needs failures"):
        harmed_entries(echoed)
    with pytest.raises(InputError, match="baseline must be one of"):
        harmed_entries(arm([0, 1]), baseline="fixed")
    doubled = frames(arm([0, 1]), arm([0, 1]))
    with pytest.raises(InputError, match="share their key"):
        harmed_entries(doubled)
    assert len(harmed_entries(empty_results())) == 0 and "entry_id" in harmed_entries(empty_results())
    assert len(harmed_entries(frames(arm([0, 1]), arm([0, 1], structure="fixed")))) == 0


def test_single_generations_and_scores_stand_beside_the_maximum():
    rates = pd.DataFrame({"model": "m", "structure": ["flat", "fixed"], "failure_rate": [0.5, 0.3]})
    results = simulated_scores(rates, 60, missing=0.02)
    row = paired_differences(results).set_index("arm").loc["fixed"]
    scores = results[results["replicate"] == 0].pivot_table(
        index="entry_id", columns=["structure", "generation"], values="score", dropna=False
    )
    complete = scores.dropna()
    fails = (complete >= 3).astype(float)
    gaps = 100 * (fails["fixed"].mean(axis=1) - fails["flat"].mean(axis=1))
    assert row["n_pairs"] == len(complete) < 60
    assert row["at_1_difference_pp"] == pytest.approx(gaps.mean())
    interval = scipy_stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert (row["at_1_low_pp"], row["at_1_high_pp"]) == pytest.approx((interval.low, interval.high))
    means = complete["fixed"].mean(axis=1) - complete["flat"].mean(axis=1)
    assert row["mean_score_difference"] == pytest.approx(means.mean())
    pooled = pooled_differences(results, draws=200).set_index(["arm", "estimand"])
    of_entries = pooled.loc[("fixed", "these models, new entries")]
    assert of_entries["at_1_difference_pp"] == pytest.approx(gaps.mean())
    assert of_entries["at_1_low_pp"] < gaps.mean() < of_entries["at_1_high_pp"]


def test_with_one_generation_both_are_the_same():
    rates = pd.DataFrame({"model": "m", "structure": ["flat", "fixed"], "failure_rate": [0.5, 0.3]})
    results = simulated_scores(rates.assign(failure_type="beneficial_memory_usage"), 50)
    row = paired_differences(results).set_index("arm").loc["fixed"]
    for name in ("difference_pp", "low_pp", "high_pp"):
        assert row[f"at_1_{name}"] == row[name]


def test_harmed_entries_keeps_ids_that_are_numbers():
    rates = pd.DataFrame({"model": "m", "structure": ["flat", "dynamic"], "failure_rate": [0.5, 0.4]})
    results = simulated_scores(rates, 30)
    found = harmed_entries(results.assign(entry_id=results["entry_id"].str[-4:].astype(int)))
    assert len(found) == len(harmed_entries(results)) and found["entry_id"].map(type).eq(int).all()


@pytest.mark.parametrize("results", [None, {"a": 1}, [1]])
def test_what_is_no_table_of_results_is_refused(results):
    asked = [sm.rates, sm.paired_differences, sm.reductions, sm.harmed_entries, sm.heterogeneity, sm.noise_floor]
    asked += [sm.completeness, sm.verdicts_to_read, sm.pooled_differences, sm.conditional_effects, sm.noninferiority]
    for function in (*asked, lambda given: sm.merge_results(given, given)):
        with pytest.raises(InputError, match="must be a DataFrame"):
            function(results)
