"""Conditional effects and interactions on both scales, against hand-worked tables, statsmodels and a jackknife."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.special import logit
from test_stats import arm, frames, rows

from structmem.comparisons import reductions
from structmem.errors import InputError
from structmem.estimands import pooled_differences
from structmem.interactions import conditional_effects, conditional_words, floor_words, interaction_words
from structmem.margins import noninferiority
from structmem.planted import simulated_scores
from structmem.stats import paired_differences

RNG = np.random.default_rng(11)


def four_cells(rates, n=60, model="m", rng=RNG):
    """Correlated outcomes of flat and dynamic under two defences; rates in that order."""
    shared = rng.standard_normal(n)
    names = [("flat", "standard"), ("dynamic", "standard"), ("flat", "restrictive"), ("dynamic", "restrictive")]
    parts = []
    for (structure, defence), rate in zip(names, rates, strict=True):
        latent = math.sqrt(0.5) * shared + math.sqrt(0.5) * rng.standard_normal(n)
        bad = latent > scipy_stats.norm.isf(rate)
        parts.append(arm(bad, structure=structure, defence=defence, model=model))
    return frames(*parts)


def cells(results, model="m"):
    """Outcomes as an entries × (structure, defence) array, by pandas alone."""
    mine = results[results["model"] == model].assign(bad=lambda frame: 1.0 * (frame["score"] >= 3))
    return mine.pivot(index="entry_id", columns=["structure", "defence"], values="bad").dropna()


def gap(wide, defence):
    return wide["dynamic", defence] - wide["flat", defence]


def pick(table, effect, defence, model="m", estimand=None):
    found = table.query("effect == @effect and defence == @defence and model == @model")
    found = found if estimand is None else found[found["estimand"] == estimand]
    assert len(found) == 1
    return found.iloc[0]


RESULTS = four_cells((0.6, 0.4, 0.4, 0.35))
TABLE = conditional_effects(RESULTS, draws=500)


def test_a_conditional_effect_is_the_paired_difference_within_a_defence():
    expected = paired_differences(RESULTS).set_index("defence")
    for defence in ("standard", "restrictive"):
        row = pick(TABLE, "conditional effect", defence)
        for column in ("difference_pp", "low_pp", "high_pp", "rate_baseline", "rate_arm"):
            assert row[column] == pytest.approx(expected.loc[defence, column]), column
        assert row["interval"] == "Tango, paired entries" and math.isnan(row["reference_pp"])


def test_an_interaction_is_the_difference_of_two_conditional_effects_within_entries():
    row, wide = pick(TABLE, "interaction", "restrictive"), cells(RESULTS)
    contrast = 100 * (gap(wide, "restrictive") - gap(wide, "standard"))
    expected = scipy_stats.ttest_1samp(contrast, 0).confidence_interval(0.95)
    assert row["difference_pp"] == pytest.approx(contrast.mean())
    assert (row["low_pp"], row["high_pp"]) == pytest.approx(tuple(expected))
    assert row["reference_pp"] == pytest.approx(100 * gap(wide, "standard").mean())
    assert len(TABLE.query("effect == 'interaction' and defence == 'standard'")) == 0
    assert (TABLE["analysis"] == "exploratory").all()


def test_log_odds_are_those_of_a_regression_with_errors_clustered_by_entry():
    wide = cells(RESULTS)
    long = wide.stack(["structure", "defence"], future_stack=True).rename("bad").reset_index()
    x = (long["structure"] == "dynamic").astype(float)
    z = (long["defence"] == "restrictive").astype(float)
    groups = long["entry_id"].astype("category").cat.codes
    model = sm.GEE(
        long["bad"], pd.DataFrame({"one": 1.0, "x": x, "z": z, "xz": x * z}), groups, family=sm.families.Binomial()
    )
    fitted, m = model.fit(), len(wide)  # saturated, independent working correlation: the sandwich is the delta method
    standard = pick(TABLE, "conditional effect", "standard")
    interaction = pick(TABLE, "interaction", "restrictive")
    for row, name in ((standard, "x"), (interaction, "xz")):
        assert row["log_odds"] == pytest.approx(fitted.params[name], abs=1e-6)
        half = scipy_stats.t.ppf(0.975, m - 1) * math.sqrt(m / (m - 1)) * fitted.bse[name]
        assert row["log_odds_high"] - row["log_odds"] == pytest.approx(half, abs=1e-4)
    assert "t over entries" in standard["log_odds_interval"] and standard["log_odds_note"] == ""


def test_log_odds_are_close_to_a_jackknife_over_entries():
    wide = cells(RESULTS)

    def estimate(frame):
        odds = {name: logit(frame[name].mean()) for name in wide}
        return (odds["dynamic", "restrictive"] - odds["flat", "restrictive"]) - (
            odds["dynamic", "standard"] - odds["flat", "standard"]
        )

    left_out = np.array([estimate(wide.drop(index=entry)) for entry in wide.index])
    m = len(wide)
    error = math.sqrt((m - 1) / m * np.sum((left_out - left_out.mean()) ** 2))
    row = pick(TABLE, "interaction", "restrictive")
    assert row["log_odds"] == pytest.approx(estimate(wide))
    assert (row["log_odds_high"] - row["log_odds"]) / scipy_stats.t.ppf(0.975, m - 1) == pytest.approx(error, rel=0.05)


def test_models_weigh_the_same_and_share_their_entries():
    results = frames(*(four_cells((0.6, 0.4, 0.4, 0.35), model=name) for name in "abc"))
    table = conditional_effects(results, draws=6000, seed=5)
    row = pick(table, "interaction", "restrictive", "all models", "these models, new entries")
    contrasts = [gap(cells(results, m), "restrictive") - gap(cells(results, m), "standard") for m in "abc"]
    mean = 100 * sum(contrasts) / 3
    assert row["difference_pp"] == pytest.approx(mean.mean())
    error = mean.std(ddof=1) / math.sqrt(len(mean))
    assert (row["high_pp"] - row["low_pp"]) / 2 == pytest.approx(1.96 * error, rel=0.08)
    new = pick(table, "interaction", "restrictive", "all models", "new models")
    each = [100 * contrast.mean() for contrast in contrasts]
    expected = scipy_stats.ttest_1samp(each, 0).confidence_interval(0.95)
    assert (new["low_pp"], new["high_pp"]) == pytest.approx(tuple(expected))
    odds = [pick(table, "interaction", "restrictive", m)["log_odds"] for m in "abc"]
    assert row["log_odds"] == new["log_odds"] == pytest.approx(np.mean(odds))
    same = pooled_differences(results, draws=6000, seed=5).query("defence == 'restrictive' and unit == 'entry'").iloc[0]
    mine = pick(table, "conditional effect", "restrictive", "all models", "these models, new entries")
    assert (mine["low_pp"], mine["high_pp"]) == (same["low_pp"], same["high_pp"])


def test_only_entries_complete_in_all_four_cells_enter_an_interaction():
    results = RESULTS.copy()
    gone = (results["defence"] == "restrictive") & results["entry_id"].isin([f"e{i}" for i in range(15)])
    results.loc[gone, "score"] = np.nan
    results.loc[gone, ["status", "status_reason"]] = ["no_verdict", "truncated"]
    table = conditional_effects(results, draws=500)
    row, wide = pick(table, "interaction", "restrictive"), cells(RESULTS).drop(index=[f"e{i}" for i in range(15)])
    assert row["n_entries"] == 45 and pick(table, "conditional effect", "standard")["n_entries"] == 60
    assert row["reference_pp"] == pytest.approx(100 * gap(wide, "standard").mean())
    assert row["difference_pp"] == pytest.approx(100 * (gap(wide, "restrictive") - gap(wide, "standard")).mean())


def test_planted_sub_additivity_is_found_and_additive_effects_are_not_called_so():
    plan = [("standard", 0.6, 0.45), ("restrictive", 0.12, 0.12), ("permissive", 0.75, 0.60)]
    rates = pd.DataFrame(
        [
            (f"m{m}", s, d, r)
            for m in range(6)
            for d, *pair in plan
            for s, r in zip(("flat", "dynamic"), pair, strict=True)
        ],
        columns=["model", "structure", "defence", "failure_rate"],
    )
    table = conditional_effects(simulated_scores(rates, 200, seed=4), draws=1000)
    entries = "these models, new entries"
    restrictive = pick(table, "interaction", "restrictive", "all models", entries)
    assert restrictive["low_pp"] < 15 < restrictive["high_pp"]
    assert restrictive["reading"].startswith("sub-additive in pp against standard")
    assert "floor: flat fails in only 1" in restrictive["floor"] and "is impossible" in restrictive["floor"]
    permissive = pick(table, "interaction", "permissive", "all models", entries)
    assert permissive["reading"].startswith("not shown in pp") and permissive["floor"] == ""
    assert "flat (A/A)" not in set(table["arm"])
    under = pick(table, "conditional effect", "permissive", "all models", entries)
    assert under["reading"] == "complementary: dynamic still lowers the rate under permissive"
    none = pick(table, "conditional effect", "restrictive", "all models", entries)
    assert none["reading"].startswith("not shown")


def test_complementary_is_said_only_where_the_interval_excludes_zero():
    found = conditional_effects(four_cells((0.6, 0.4, 0.5, 0.2), rng=np.random.default_rng(2)), draws=500)
    for row in pd.concat([found, TABLE]).to_dict("records"):
        away = row["effect"] == "conditional effect" and row["defence"] != "standard"
        assert ("complementary" in row["reading"]) == bool(away and row["high_pp"] < 0)
    assert found["reading"].str.contains("complementary").any()


def test_a_rate_of_zero_or_one_is_corrected_by_name_and_has_no_interval_over_entries():
    parts = {
        ("flat", "standard"): 8,
        ("dynamic", "standard"): 5,
        ("flat", "restrictive"): 4,
        ("dynamic", "restrictive"): 0,
    }
    results = frames(
        *(arm([1] * k + [0] * (20 - k), structure=s, defence=d) for (s, d), k in parts.items()),
        four_cells((0.6, 0.4, 0.4, 0.35), 20, "other"),
    )
    table = conditional_effects(results, draws=500)
    row = pick(table, "conditional effect", "restrictive")
    assert row["log_odds"] == pytest.approx(math.log(0.5 / 20.5) - math.log(4.5 / 16.5))
    assert row["log_odds_note"].startswith("Haldane–Anscombe") and math.isnan(row["log_odds_low"])
    assert row["log_odds_interval"] == "not available: a rate is 0 or 1" and not math.isnan(row["low_pp"])
    assert pick(table, "conditional effect", "standard")["log_odds_note"] == ""
    interaction = pick(table, "interaction", "restrictive")
    assert "not available in log odds" in interaction["reading"]
    pooled = table.query("model == 'all models' and defence == 'restrictive' and effect == 'interaction'")
    assert pooled["log_odds_interval"].tolist() == [
        "not available: a rate is 0 or 1 in 1 of 2 models", "t over models, assumed exchangeable",
    ]  # fmt: skip
    assert pooled["log_odds_note"].str.endswith("in 1 of 2 models").all()
    assert np.isfinite(table["log_odds"]).all()


def test_what_cannot_be_said_is_said():
    alone = conditional_effects(RESULTS.query("defence == 'standard'"), draws=500)
    assert set(alone["effect"]) == {"conditional effect"}
    assert alone["remark"].str.contains("only the defence standard: no interaction").all()
    missing = conditional_effects(RESULTS.query("defence != 'standard' or structure == 'flat'"), draws=500)
    row = pick(missing, "interaction", "restrictive")
    assert row["remark"] == "no such arm under standard" and row["interval"] == "not available: no pairs"
    assert row["reading"] == "not available in pp; not available in log odds"
    apart = frames(RESULTS.query("defence == 'standard'"), RESULTS.query("defence != 'standard'").assign(
        entry_id=lambda frame: "other " + frame["entry_id"]
    ))  # fmt: skip
    row = pick(conditional_effects(apart, draws=500), "interaction", "restrictive")
    assert row["remark"] == "no entry is complete in both arms here and under standard" and row["n_entries"] == 0
    one = conditional_effects(RESULTS.query("entry_id == 'e0'"), draws=500)
    assert (one["interval"].str.startswith("not available") | one["interval"].str.startswith("Tango")).all()
    assert len(conditional_effects(RESULTS.iloc[:0])) == 0


def test_several_runs_enter_with_equal_weight():
    again = four_cells((0.6, 0.4, 0.4, 0.35)).query("structure == 'dynamic'").assign(partition_draw=1)
    results = frames(RESULTS, again)
    row = pick(conditional_effects(results, draws=500), "interaction", "restrictive")
    first, second = (
        (gap(wide, "restrictive") - gap(wide, "standard")).mean()
        for wide in (cells(RESULTS), cells(frames(RESULTS.query("structure == 'flat'"), again)))
    )
    assert row["n_runs"] == 2 and row["difference_pp"] == pytest.approx(50 * (first + second))


def test_echoes_are_compared_too():
    made = RESULTS.assign(
        judge="echo", echoed=RESULTS["score"] >= 3, echo_overlap=RESULTS["score"] / 5, echo_threshold=0.5, score=np.nan
    )
    row = pick(conditional_effects(made, draws=500), "interaction", "restrictive")
    assert row["outcome"] == "echo"
    assert row["difference_pp"] == pytest.approx(pick(TABLE, "interaction", "restrictive")["difference_pp"])
    assert floor_words(0.04, -10, outcome="echo").startswith("floor: flat echoes in only 4.0 %")


@pytest.mark.parametrize(
    ("rate", "reference", "expected"),
    [
        (0.28, -8.8, ""),
        (0.04, -8.8, "floor: flat fails in only 4.0 %, a reduction of 8.8 pp is impossible"),
        (0.12, -14.0, "floor: flat fails in only 12.0 %, a reduction of 14.0 pp is impossible"),
        (0.09, -3.0, "floor: flat fails in only 9.0 %, little is left"),
        (0.95, 6.0, "ceiling: flat fails in 95.0 %, an increase of 6.0 pp is impossible"),
        (0.95, -6.0, "ceiling: flat fails in 95.0 %, little is left"),
        (0.5, math.nan, ""),
    ],
)
def test_floors_are_named(rate, reference, expected):
    assert floor_words(rate, reference) == expected


def test_words():
    assert conditional_words("tree", "gepa", "standard", -3, 1).startswith("not shown")
    assert conditional_words("tree", "gepa", "standard", 1, 3) == "tree raises the rate under gepa"
    assert conditional_words("tree", "standard", "standard", -3, -1) == "tree lowers the rate under standard"
    assert conditional_words("tree", "gepa", "standard", 1, 3, bad=-1).startswith("complementary: tree still raises")
    assert interaction_words("standard", -9, (3, 8)) == "sub-additive in pp against standard"
    assert interaction_words("standard", -9, (-8, -3)) == "super-additive in pp against standard"
    assert interaction_words("standard", 9, (3, 8)) == "super-additive in pp against standard"
    assert interaction_words("standard", 0.0, (3, 8)) == "above the effect under standard in pp"
    assert interaction_words("standard", 0.0, (-8, -3)) == "below the effect under standard in pp"
    assert interaction_words("standard", -9, (-1, 3)).endswith(
        "(an interval that includes 0 does not show equal effects)"
    )


@given(st.floats(-60, 60), st.floats(0, 30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_wording_claims_more_than_the_interval(centre, half, better_is_lower):
    low, high = centre - half, centre + half
    words = conditional_words("dynamic", "gepa", "standard", low, high, 1 if better_is_lower else -1)
    excludes = low > 0 or high < 0
    assert words.startswith("not shown") == (not excludes)
    assert ("complementary" in words) == (excludes and (centre < 0) == better_is_lower)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda results: conditional_effects(results, "none"), "reference must be one of"),
        (lambda results: conditional_effects(results, baseline="tree"), "baseline must be one of"),
        (lambda results: conditional_effects(results.drop(columns="defence")), "defence"),
        (lambda results: conditional_effects(frames(results, results)), "share their key"),
        (lambda results: conditional_effects(rows({"e": [1]}, defence=None)), "reference must be one of"),
        (lambda results: conditional_effects(results, seed=-1), "seed must be"),
    ],
)
def test_wrong_values_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call(RESULTS)


def test_intervals_stay_within_what_a_difference_can_be():
    rates = pd.DataFrame(
        [
            {"model": model, "structure": structure, "failure_rate": rate, "defence": defence}
            for model, gap in (("a", 0.05), ("b", 0.6))
            for structure, rate in (("flat", 0.8), ("dynamic", 0.8 - gap))
            for defence in ("standard", "restrictive")
        ]
    )
    results = simulated_scores(rates, 8)
    effects = conditional_effects(results, draws=100)
    for table, most in (
        (effects, 200),
        (effects.query("effect == 'conditional effect'"), 100),
        (pooled_differences(results, draws=100), 100),
        (noninferiority(results, "cross_domain"), 100),
        (reductions(results), 100),
        (paired_differences(results[results["entry_id"].isin(results["entry_id"].unique()[:2])]), 100),
    ):
        low, high = (table[name].dropna() for name in ("low_pp", "high_pp"))
        assert len(low) and low.min() >= -most and high.max() <= most


# ------------------------------------------------------------------------------------------------------ other factors


@pytest.mark.parametrize("factor", ["renderer", "placement", "system_prompt"])
def test_any_setting_that_arm_and_baseline_share_can_be_the_factor(factor):
    levels = {"standard": {"renderer": "markdown", "placement": "system", "system_prompt": "short"}[factor]}
    renamed = RESULTS.assign(**{factor: RESULTS["defence"].replace(levels), "defence": "standard"})
    table = conditional_effects(renamed, factor=factor, draws=500)
    same = TABLE.rename(columns={"defence": factor}).replace({factor: levels})
    numbers = ["difference_pp", "low_pp", "high_pp", "log_odds", "log_odds_low", "reference_pp", "mean_score_low"]
    keys = ["model", "effect", "estimand", factor]
    pd.testing.assert_frame_equal(
        table.set_index(keys)[numbers].sort_index(), same.set_index(keys)[numbers].sort_index()
    )
    assert not table["reading"].str.contains("complementary").any() and (table["factor"] == factor).all()
    away = table.query("effect == 'conditional effect' and reading != 'not available'")["reading"]
    assert away.str.contains(f"under {factor.replace('_', ' ')} |lowers|raises", regex=True).all()


def test_other_settings_stay_apart():
    both = frames(RESULTS.assign(renderer="markdown"), RESULTS.assign(renderer="xml"))
    table = conditional_effects(both, draws=500).query("model == 'm' and effect == 'interaction'")
    assert table["renderer"].tolist() == ["markdown", "xml"] and table["difference_pp"].nunique() == 1


def test_the_mean_score_has_a_t_interval_over_entries_on_both_kinds_of_rows():
    scores = RESULTS.pivot(index="entry_id", columns=["structure", "defence"], values="score")
    within = {d: scores["dynamic", d] - scores["flat", d] for d in ("standard", "restrictive")}
    expected = {"conditional effect": within["restrictive"], "interaction": within["restrictive"] - within["standard"]}
    for effect, values in expected.items():
        row, interval = pick(TABLE, effect, "restrictive"), scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
        found = row[["mean_score_difference", "mean_score_low", "mean_score_high"]]
        assert tuple(found) == pytest.approx((values.mean(), *interval))
        assert row["mean_score_interval"] == "t over entries"


def test_factors_are_checked():
    with pytest.raises(InputError, match="factor must be one of .*got 'colour'"):
        conditional_effects(RESULTS, factor="colour")
    with pytest.raises(InputError, match="reference must be one of .*'markdown'.*got 'xml'"):
        conditional_effects(RESULTS, "xml", factor="renderer")
    with pytest.raises(InputError, match="placement"):
        conditional_effects(RESULTS, factor="placement")
