"""Differences over models: hand-worked tables, scipy and statsmodels, plain loops and planted effects."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multivariate import test_mvmean as hotelling

from structmem import resampling
from structmem.columns import empty_results
from structmem.comparisons import reductions
from structmem.errors import InputError
from structmem.estimands import Cells, _between, heterogeneity, leave_one_model_out, pooled_differences
from structmem.resampling import percentile_interval, resampled_means, resampled_sums, sign_flips
from structmem.tables import show

THESE, NEW = "these models, new entries", "new models"


def arms(outcomes, **settings):
    """Results rows of several models, one generation an entry: model → 0/1 outcomes, NaN where there is no verdict."""
    parts = [
        pd.DataFrame({"model": model, "entry_id": [f"e{i:03d}" for i in range(len(values))], "bad": values})
        for model, values in outcomes.items()
    ]
    rows = pd.concat(parts, ignore_index=True)
    bad = rows.pop("bad").astype(float)
    base = {
        "failure_type": "cross_domain", "structure": "flat", "structurer": "", "partition_draw": 0, "replicate": 0,
        "judge": "persistbench", "threshold": 3, "generation": 0,
    }  # fmt: skip
    status = {"status": np.where(bad.isna(), "no_verdict", "ok"), "status_reason": None}
    return rows.assign(**{**base, **settings}, score=1 + 4 * bad, **status)


def compared(flat, **structures):
    return pd.concat([arms(flat), *(arms(own, structure=name) for name, own in structures.items())], ignore_index=True)


def drawn(rng, n, rates, models="abc"):
    """Entries that are alike hard for every model and arm, so that everything about one entry is correlated."""
    hard = rng.normal(size=n)
    return [
        {m: (hard + rng.normal(size=n) > scipy_stats.norm.isf(rate) * math.sqrt(2)).astype(float) for m in models}
        for rate in rates
    ]


# ----------------------------------------------------------------------------------------------------------- resampling


def test_resampled_means_are_those_of_a_plain_loop_over_the_same_draws():
    rng = np.random.default_rng(3)
    cells = np.where(rng.random((30, 5)) < 0.2, np.nan, rng.integers(-1, 2, (30, 5)).astype(float))
    found = resampled_means(cells, 200, np.random.default_rng(7))
    again = np.random.default_rng(7)
    for row in found:
        assert row == pytest.approx(np.nanmean(cells[again.integers(0, 30, 30)], axis=0))


def test_chunks_bound_the_memory_and_change_no_number(monkeypatch):
    rows = np.random.default_rng(0).random((40, 3))
    whole = resampled_sums(rows, 500, np.random.default_rng(1))
    flips = sign_flips(np.arange(1, 31), 500, np.random.default_rng(1))
    monkeypatch.setattr(resampling, "_CHUNK", 41 * 7)
    assert resampled_sums(rows, 500, np.random.default_rng(1)) == pytest.approx(whole, abs=1e-9)
    assert sign_flips(np.arange(1, 31), 500, np.random.default_rng(1)) == flips


def test_counts_are_multinomial():
    counts = resampling.multinomial(8, 40_000, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 8).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(8), abs=0.02)
    expected = np.full((8, 8), -1 / 8) + np.eye(8)  # n p (1 − p) and −n p²
    assert np.cov(counts.T) == pytest.approx(expected, abs=0.03)


def test_a_draw_without_a_value_of_a_column_has_no_mean():
    cells = np.array([[1.0, 1.0], [0.0, np.nan], [1.0, np.nan]])
    found = resampled_means(cells, 2000, np.random.default_rng(0))
    assert not np.isnan(found[:, 0]).any()
    assert np.isnan(found[:, 1]).mean() == pytest.approx((2 / 3) ** 3, abs=0.04)


def test_the_interval_is_scipys_percentile_interval_at_an_expanded_level():
    values = np.random.default_rng(5).gamma(2, size=25)
    estimates = resampled_means(values[:, None], 40_000, np.random.default_rng(1))[:, 0]
    low, high, words = percentile_interval(estimates, 25)
    tail = scipy_stats.norm.cdf(-math.sqrt(25 / 24) * scipy_stats.t.ppf(0.975, 24))
    expected = scipy_stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=40_000, confidence_level=1 - 2 * tail, rng=2
    ).confidence_interval
    assert (low, high) == pytest.approx(tuple(expected), abs=0.02)
    assert words == "cluster bootstrap, expanded percentile, 40,000 draws"


@pytest.mark.parametrize(
    ("estimates", "n", "words"),
    [
        (np.ones(500), 1, "not available: one cluster"),
        (np.ones(500), 200, "not available: no variation"),
        (0.1 + 0.2 + np.zeros(500), 3, "not available: no variation"),
        (np.array([]), 0, "not available: no pairs"),
    ],
)
def test_there_is_never_an_interval_of_zero_width(estimates, n, words):
    low, high, found = percentile_interval(estimates, n)
    assert math.isnan(low) and math.isnan(high) and found == words


def _exact_flips(values):
    """P(|Σ ±v| ≥ |Σ v|) for whole numbers by convolution: the distribution of the sum, one entry after the other."""
    distribution = np.ones(1)
    for value in np.abs(values):
        wider = np.zeros(len(distribution) + 2 * value)
        wider[: len(distribution)] += distribution / 2
        wider[2 * value :] += distribution / 2
        distribution = wider
    reach = len(distribution) // 2
    return float(distribution[np.abs(np.arange(-reach, reach + 1)) >= abs(sum(values))].sum())


def test_many_sign_flips_are_drawn_and_agree_with_the_exact_distribution():
    rng = np.random.default_rng(8)
    for shift in (0, 1):
        values = rng.integers(-3, 4, size=60) + shift
        p, smallest, words = sign_flips(values, 20_000, rng)
        assert p == pytest.approx(_exact_flips(values), abs=0.01)
        assert (smallest, words) == (1 / 20_001, "sign flips of entries, 20,000 draws")
    p, smallest, _ = sign_flips(np.ones(60), 999, rng)
    assert p == smallest == 1 / 1000  # never 0


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=14))
@settings(max_examples=60, deadline=None)
def test_few_sign_flips_are_exact(values):
    p, smallest, words = sign_flips(np.array(values), 100, np.random.default_rng(0))
    assert p == pytest.approx(_exact_flips(values)) and words.endswith("exact")
    informative = sum(value != 0 for value in values)
    assert smallest == 2.0 ** (1 - max(informative, 1)) and p >= smallest - 1e-12


# -------------------------------------------------------------------------------------------------------- two estimands


def test_both_estimands_by_hand():
    nan = math.nan
    flat = {"a": [1, 1, 1, 0], "b": [1, 1, 0, 0], "c": [1, 1, 1, nan]}
    fixed = {"a": [0, 1, 0, 0], "b": [0, 1, 0, 1], "c": [0, 0, 1, 0]}
    table = pooled_differences(compared(flat, fixed=fixed))
    entries, models = table.to_dict("records")
    by_model = np.array([-2 / 4, 0 / 4, -2 / 3]) * 100
    for row in (entries, models):
        assert row["difference_pp"] == pytest.approx(by_model.mean()) == pytest.approx(-row["reduction_pp"])
        assert row["sd_pp"] == pytest.approx(by_model.std(ddof=1)) and row["sd_note"] == "n − 1, 3 models"
        assert (row["n_models"], row["n_models_down"], row["n_models_up"]) == (3, 2, 0)
        assert (row["n_entries"], row["n_runs"]) == (4, 3)
        assert "models and runs rest on 3 to 4 entries" in row["remark"]
    assert (entries["estimand"], entries["unit"]) == (THESE, "entry")
    assert (models["estimand"], models["unit"], models["interval"]) == (
        NEW,
        "model",
        "t over models, assumed exchangeable",
    )
    t = scipy_stats.ttest_1samp(by_model, 0)
    assert models["t_p"] == pytest.approx(t.pvalue)
    low, high = t.confidence_interval()
    assert low < -100  # what no difference of rates can be
    assert (models["low_pp"], models["high_pp"]) == pytest.approx((-100, high))
    assert (models["sign_flip_p"], models["wilcoxon_p"], models["smallest_p"]) == (0.5, 0.5, 0.25)
    # Entries weigh their share of each model: −1/4 −1/4 −1/3, −1/3, −1/4 and +1/4, in twelfths.
    assert entries["sign_flip_p"] == pytest.approx(_exact_flips([-10, -4, -3, 3]))


def test_the_interval_over_entries_agrees_with_the_clustered_variance():
    flat, fixed = drawn(np.random.default_rng(11), 150, (0.6, 0.45))
    row = pooled_differences(compared(flat, fixed=fixed)).iloc[0]
    per_entry = 100 * (pd.DataFrame(fixed) - pd.DataFrame(flat)).mean(axis=1)
    low, high = scipy_stats.ttest_1samp(per_entry, 0).confidence_interval()
    assert (row["low_pp"], row["high_pp"]) == pytest.approx((low, high), abs=0.5)


def test_models_that_answer_alike_are_not_more_evidence():
    flat, fixed = drawn(np.random.default_rng(13), 50, (0.6, 0.4), "a")
    thrice = [{m: one["a"] for m in "abc"} for one in (flat, fixed)]
    alone, together = (pooled_differences(compared(f, fixed=x)).iloc[0] for f, x in ((flat, fixed), thrice))
    for column in ("difference_pp", "low_pp", "high_pp", "sign_flip_p"):
        assert together[column] == pytest.approx(alone[column])


def test_one_model_is_mcnemar_and_says_nothing_about_new_models():
    flat, fixed = {"a": [1] * 9 + [0] * 11}, {"a": [0] * 8 + [1] + [1] * 2 + [0] * 9}
    entries, models = pooled_differences(compared(flat, fixed=fixed)).to_dict("records")
    assert entries["sign_flip_p"] == pytest.approx(scipy_stats.binomtest(2, 10).pvalue)
    assert entries["n_models"] == 1 and entries["sd_note"] == "n/a (1 model)" and math.isnan(entries["sd_pp"])
    assert models["interval"] == "not available: one model" and models["test"] == "none: one model"
    assert math.isnan(models["low_pp"]) and math.isnan(models["sign_flip_p"])


def test_one_entry_has_no_interval():
    row = pooled_differences(compared({"a": [1], "b": [1]}, fixed={"a": [0], "b": [0]})).iloc[0]
    assert row["difference_pp"] == -100 and row["interval"] == "not available: one cluster"
    assert math.isnan(row["low_pp"]) and row["sign_flip_p"] == 1.0


def test_the_smallest_p_of_seven_models_is_printed():
    flat = {m: [1, 1, 0, 0] for m in "abcdefg"}
    fixed = {m: [0, int(i > 3), 0, 0] for i, m in enumerate("abcdefg")}
    row = pooled_differences(compared(flat, fixed=fixed)).iloc[1]
    assert row["sign_flip_p"] == row["wilcoxon_p"] == row["smallest_p"] == 2 / 2**7  # .0156
    assert "0.016" in str(show(pooled_differences(compared(flat, fixed=fixed))))
    assert row["remark"] == "assumes that the models are exchangeable"


def test_models_without_pairs_are_named_and_not_in_the_mean():
    flat = {"a": [1, 1, 0], "b": [1, 0, 0], "c": [math.nan] * 3}
    fixed = {"a": [0, 0, 0], "b": [0, 0, 0], "c": [1, 1, 1]}
    row = pooled_differences(compared(flat, fixed=fixed)).iloc[0]
    assert row["n_models"] == 2 and row["difference_pp"] == pytest.approx(-50)
    assert "1 of 3 models without pairs, not in the mean" in row["remark"]
    none = pooled_differences(compared({"a": [math.nan] * 2}, fixed={"a": [1, 1]}))
    assert list(none["interval"]) == ["not available: no pairs"] * 2
    assert none["difference_pp"].isna().all() and set(none["n_models"]) == {0}
    assert (
        "no entry is complete in both arms" in none["remark"].iloc[0] and "nan" not in str(show(none)).split("\n[")[0]
    )


def test_arms_of_other_settings_are_rows_of_their_own_and_noise_comes_first():
    flat, fixed, again = drawn(np.random.default_rng(2), 30, (0.5, 0.4, 0.5), "ab")
    other = [arms(flat, defence="restrictive"), arms(fixed, defence="restrictive", structure="fixed")]
    here = [arms(flat, defence="standard"), arms(fixed, defence="standard", structure="fixed")]
    results = pd.concat([*other, *here, arms(again, replicate=1, defence="standard")], ignore_index=True)
    table = pooled_differences(results)
    assert set(table["defence"]) == {"restrictive", "standard"}
    assert len(table) == 6 and set(table.groupby(["arm", "defence"]).size()) == {2}
    assert list(table.loc[table["defence"] == "standard", "arm"]) == ["flat (A/A)"] * 2 + ["fixed"] * 2


def test_it_agrees_with_reductions_and_does_not_depend_on_the_order_of_rows():
    flat, fixed, dynamic = drawn(np.random.default_rng(9), 40, (0.6, 0.5, 0.4))
    results = compared(flat, fixed=fixed, dynamic=dynamic)
    table = pooled_differences(results, seed=5)
    over = reductions(results)
    over = over[over["model"] == "all models"]
    new = table[table["estimand"] == NEW]
    assert new["difference_pp"].tolist() == pytest.approx((-over["reduction_pp"]).tolist())
    assert new["sd_pp"].tolist() == pytest.approx(over["sd_pp"].tolist())
    assert new["low_pp"].tolist() == pytest.approx((-over["high_pp"]).tolist())
    shuffled = pooled_differences(results.sample(frac=1, random_state=1), seed=5)
    pd.testing.assert_frame_equal(shuffled, table)
    assert not pooled_differences(results, seed=6).equals(table)


def test_echo_is_pooled_too():
    flat, fixed = {"a": [1, 1, 0], "b": [1, 0, 1]}, {"a": [0, 1, 0], "b": [0, 0, 1]}
    results = compared(flat, fixed=fixed)
    results = results.assign(judge="echo", echoed=results["score"] == 5, echo_overlap=0.5, echo_threshold=0.4)
    table = pooled_differences(results.assign(score=np.nan))
    assert set(table["outcome"]) == {"echo"} and table["difference_pp"].tolist() == pytest.approx([-100 / 3] * 2)


def test_bad_input_is_refused_and_nothing_gives_an_empty_table():
    results = compared({"a": [1, 0]}, fixed={"a": [0, 0]})
    for function in (pooled_differences, leave_one_model_out, heterogeneity):
        with pytest.raises(InputError, match="baseline must be one of"):
            function(results, baseline="tree")
        with pytest.raises(InputError, match="share their key"):
            function(pd.concat([results, results]))
        empty = function(empty_results())
        assert len(empty) == 0 and {"failure_type", "arm", "remark", "analysis"} <= set(empty)
        assert len(function(results[results["structure"] == "flat"])) == 0
    with pytest.raises(InputError, match="draws must be a whole number of at least 100, got 10"):
        pooled_differences(results, draws=10)
    with pytest.raises(InputError, match="seed must be a whole number of at least 0, got True"):
        leave_one_model_out(results, seed=True)


# ----------------------------------------------------------------------------------------------------------------- runs


def test_runs_that_drift_widen_the_interval_over_runs_only():
    # Run 0 helps every entry, run 1 none: no variation over entries, all of it between two runs.
    flat = arms({"a": [1] * 20})
    runs = [arms({"a": [value] * 20}, structure="fixed", partition_draw=draw) for draw, value in enumerate((0, 1))]
    entries, both, _ = pooled_differences(pd.concat([flat, *runs], ignore_index=True)).to_dict("records")
    assert entries["interval"] == "not available: no variation" and entries["difference_pp"] == -50
    assert both["unit"] == "entry, then run" and both["estimand"] == THESE
    # Two draws of two runs give −100, −50 or 0, spread by √(n / (n − 1)) = √2 around −50, and no rate leaves [0, 1].
    assert (both["low_pp"], both["high_pp"]) == pytest.approx((-100, -50 + 50 * math.sqrt(2)))
    assert "2 runs share 1 of the baseline, whose drift is not in it" in both["remark"]
    assert both["analysis"] == "exploratory" and "runs are resampled too" in both["analysis_note"]
    assert math.isnan(both["sign_flip_p"]) and both["n_runs"] == 2


@pytest.mark.parametrize(("models", "n_runs", "said"), [("a", 2, True), ("a", 3, False), ("ab", 2, False)])
def test_two_runs_of_one_model_are_said_to_cover_too_little(models, n_runs, said):
    rng = np.random.default_rng(4)
    flat = arms({model: rng.random(30) < 0.6 for model in models})
    runs = [
        arms({model: rng.random(30) < 0.4 for model in models}, structure="fixed", partition_draw=draw)
        for draw in range(n_runs)
    ]
    table = pooled_differences(pd.concat([flat, *runs], ignore_index=True)).set_index("unit")["remark"]
    words = "one model, two runs: covers about 91 % instead of 95 %"
    assert (words in table["entry, then run"]) == said
    assert words not in table["entry"] and words not in table["model"]


def test_the_variance_over_entries_and_runs_adds_up():
    rng = np.random.default_rng(12)
    drift = [0.30, 0.42, 0.50, 0.62]
    flat = [arms({"a": rng.random(200) < 0.6}, replicate=run) for run in range(4)]
    fixed = [arms({"a": rng.random(200) < rate}, replicate=run, structure="fixed") for run, rate in enumerate(drift)]
    results = pd.concat([*flat, *fixed], ignore_index=True)
    table = pooled_differences(results)
    table = table[table["arm"] == "fixed"]
    entries, both = table.iloc[0], table.iloc[1]
    gaps = pd.DataFrame({run: fixed[run]["score"] - flat[run]["score"] for run in range(4)}) * 25
    over_entries, over_runs = gaps.mean(axis=1).var() / 200, gaps.mean(axis=0).var() / 4
    width = entries["high_pp"] - entries["low_pp"]
    assert width == pytest.approx(2 * 1.97 * math.sqrt(over_entries), rel=0.06)
    # Crossed factors: what entry and run do together is in both variances, so no less than the sum is expected.
    ratio = (both["high_pp"] - both["low_pp"]) / (2 * 1.97 * math.sqrt(over_entries + over_runs))
    assert 0.9 < ratio < 1.15 and both["remark"] == ""


# --------------------------------------------------------------------------------------------------- leaving models out


def test_leaving_a_model_out_is_as_if_it_had_never_been_asked():
    flat, fixed = drawn(np.random.default_rng(21), 60, (0.6, 0.4))
    fixed["b"] = flat["b"].copy()  # a model in which nothing happens
    results = compared(flat, fixed=fixed)
    table = leave_one_model_out(results)
    assert list(table["left_out"]) == ["", "", "a", "a", "b", "b", "c", "c"]
    assert list(table["model"])[::2] == ["all models", "all but a", "all but b", "all but c"]
    numbers = ["difference_pp", "low_pp", "high_pp", "sd_pp", "sign_flip_p", "t_p", "n_models", "n_entries", "n_runs"]
    for left_out in ("", "a", "b", "c"):
        alone = pooled_differences(results[results["model"] != left_out])
        mine = table[table["left_out"] == left_out]
        np.testing.assert_allclose(mine[numbers].to_numpy(float), alone[numbers].to_numpy(float), rtol=1e-9)
    assert set(table["analysis"]) == {"exploratory"}
    assert "all but a" in table["analysis_note"].iloc[2] and "over all models" in table["analysis_note"].iloc[2]


def test_a_result_that_one_model_carries_shows():
    flat = {m: [1] * 20 + [0] * 20 for m in "abc"}
    fixed = {"a": [0] * 18 + [1] * 2 + [0] * 20, "b": flat["b"], "c": flat["c"]}
    table = leave_one_model_out(compared(flat, fixed=fixed)).set_index(["left_out", "unit"])
    assert table.loc[("", "entry"), "high_pp"] < 0
    assert table.loc[("a", "entry"), "interval"] == "not available: no variation"
    assert table.loc[("a", "entry"), "sign_flip_p"] == 1.0


def test_the_only_model_cannot_be_left_out():
    table = leave_one_model_out(compared({"a": [1, 1, 0]}, fixed={"a": [0, 1, 0]}))
    assert table["n_models"].tolist() == [1, 1, 0, 0]
    assert table["interval"].tolist()[2:] == ["not available: no pairs"] * 2


# -------------------------------------------------------------------------------------------------------- heterogeneity


def test_heterogeneity_is_hotellings_test_on_contrasts():
    flat, fixed = drawn(np.random.default_rng(31), 80, (0.6, 0.4), "abcd")
    fixed["d"] = drawn(np.random.default_rng(32), 80, (0.7,), "d")[0]["d"]
    row = heterogeneity(compared(flat, fixed=fixed)).iloc[0]
    gaps = 100 * (pd.DataFrame(fixed) - pd.DataFrame(flat))
    expected = hotelling((gaps[["b", "c", "d"]].sub(gaps["a"], axis=0)).to_numpy(), np.zeros(3))
    assert (row["t2"], row["heterogeneity_p"]) == pytest.approx((expected.t2, expected.pvalue))
    assert (row["df"], row["df_entries"]) == (3, 77)
    means, covariance = gaps.mean(), gaps.cov().to_numpy() / 80
    # By hand: the mean variance minus the mean covariance is what entries alone put between the models.
    off = covariance[~np.eye(4, dtype=bool)].mean()
    assert row["tau_pp"] == pytest.approx(math.sqrt(means.var() - (np.diag(covariance).mean() - off)))
    assert (row["lowest_pp"], row["lowest_model"]) == (means.min(), means.idxmin())
    assert (row["highest_pp"], row["highest_model"]) == (means.max(), means.idxmax())


def test_the_same_models_rarely_differ_and_planted_spread_is_found_without_bias():
    rng = np.random.default_rng(41)
    n, models, spread = 120, 5, 12.0
    found = {0.0: [], spread: []}
    for true in found:
        for _ in range(250):
            shift = rng.normal(0, true / 100, size=models)
            common = rng.normal(0, 0.2, size=(n, 1))  # an entry does the same to all models
            values = common + shift + rng.normal(0, 0.5, size=(n, models))
            cells = Cells({}, values, values, values, np.arange(models), list("abcde"), {}, [], models)
            found[true].append(_between(cells))
    rejected = np.mean([one["heterogeneity_p"] < 0.05 for one in found[0.0]])
    assert rejected == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 250))
    assert np.mean([one["tau_pp"] ** 2 for one in found[spread]]) == pytest.approx(spread**2, rel=0.15)


def test_heterogeneity_says_why_it_is_not_available():
    def remark(flat, fixed):
        row = heterogeneity(compared(flat, fixed=fixed)).iloc[0]
        assert math.isnan(row["heterogeneity_p"]) and row["test"] == "none"
        return row["remark"]

    assert remark({"a": [1, 0]}, {"a": [0, 0]}) == "not available: one model"
    assert remark({"a": [1], "b": [1]}, {"a": [0], "b": [1]}) == "not available: one entry"
    same = {"a": [1, 0, 1], "b": [1, 0, 1]}
    assert "do not vary over entries and do not differ" in remark(same, {"a": [0, 0, 1], "b": [0, 0, 1]})
    apart = remark({"a": [1, 1], "b": [1, 1]}, {"a": [0, 0], "b": [1, 1]})
    assert "do not vary over entries although they differ" in apart
    rng = np.random.default_rng(0)
    many = {m: (rng.random(4) < 0.5).astype(float) for m in "abcdefg"}
    few = heterogeneity(compared({m: [1.0] * 4 for m in many}, fixed=many)).iloc[0]
    assert math.isnan(few["heterogeneity_p"]) and few["remark"].startswith("not available")


def test_models_that_answer_alike_add_no_dimension():
    flat, fixed = drawn(np.random.default_rng(51), 50, (0.6, 0.4), "ab")
    with_twin = [one | {"c": one["b"]} for one in (flat, fixed)]
    two, three = (heterogeneity(compared(f, fixed=x)).iloc[0] for f, x in ((flat, fixed), with_twin))
    assert three["df"] == two["df"] == 1
    assert three["heterogeneity_p"] == pytest.approx(two["heterogeneity_p"])
