"""Rates, paired differences, reductions and their numbers, against hand-worked tables and other ways of computing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

import structmem.intervals as iv
from structmem.columns import empty_results
from structmem.errors import InputError
from structmem.stats import arm_summary, display_structure, echo_rate, failure_rate, paired_differences, reductions
from structmem.tables import show


def rows(scores, **settings):
    """Results rows of one arm: ``scores`` maps an entry to its scores, None for a lost verdict."""
    base = {
        "failure_type": "cross_domain", "model": "m", "structure": "flat", "structurer": "", "partition_draw": 0,
        "replicate": 0, "renderer": "markdown", "defence": "standard", "judge": "persistbench", "judge_model": "j",
        "threshold": 3, "truncated": False, "escaped": False, "called_at": "2026-01-01T00:00:00Z",
        "served_model": "m-1",
    }  # fmt: skip
    table = []
    for entry, values in scores.items():
        for generation, value in enumerate(values):
            status = {"status": "ok", "status_reason": None} if value is not None else {
                "status": "no_verdict", "status_reason": "truncated"
            }  # fmt: skip
            table.append(base | {"entry_id": entry, "generation": generation, "score": value} | status | settings)
    return pd.DataFrame(table).astype({"score": float})


def arm(outcomes, **settings):
    """One generation per entry, failing (5) or passing (1)."""
    return rows({f"e{i}": [5 if bad else 1] for i, bad in enumerate(outcomes)}, **settings)


def frames(*parts):
    return pd.concat(parts, ignore_index=True)


# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(("failed", "n"), [(0, 10), (10, 10), (3, 7), (85, 200), (1, 1)])
def test_wilson_agrees_with_statsmodels(failed, n):
    assert iv.wilson(failed, n) == pytest.approx(proportion_confint(failed, n, method="wilson"), abs=1e-12)


def test_wilson_of_nothing_is_missing():
    assert all(math.isnan(bound) for bound in iv.wilson(0, 0))


# Newcombe 1998, Statistics in Medicine 17:857, table I.
@pytest.mark.parametrize(
    ("failed", "n", "wilson", "exact"),
    [
        (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)), (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
        (0, 20, (0.0, 0.1611), (0.0, 0.1684)), (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
    ],
)  # fmt: skip
def test_intervals_of_one_rate_are_the_published_ones(failed, n, wilson, exact):
    assert tuple(round(bound, 4) for bound in iv.wilson(failed, n)) == wilson
    assert tuple(round(bound, 4) for bound in iv.clopper_pearson(failed, n)) == exact


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(max_examples=40, deadline=None)
def test_exact_interval_agrees_with_a_search_and_mirrors(counts):
    failed, n = counts
    low, high = iv.clopper_pearson(failed, n)
    assert (low, high) == pytest.approx(tuple(scipy_stats.binomtest(failed, n).proportion_ci()), abs=1e-9)
    assert iv.clopper_pearson(n - failed, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    assert all(math.isnan(bound) for bound in iv.clopper_pearson(0, 0))


def test_single_generations_get_as_many_trials_as_their_variance_says():
    # Two entries that always fail, two that never do: three generations of each say no more than one.
    shares, entries = np.array([1, 1, 0, 0.0]), np.arange(4)
    assert iv.wilson_clustered(shares, entries, draws=3) == pytest.approx(iv.wilson(2, 4))
    # By hand: mean 1/2, variance of the mean Σ(1/6)² · 4/3 / 16 = 1/108, so (1/4) / 3 · 4 / (1/108) = 36 trials, but
    # only 12 were made.
    shares = np.array([1 / 3, 2 / 3, 1 / 3, 2 / 3])
    assert iv.wilson_clustered(shares, entries, draws=3) == pytest.approx(iv.wilson(6, 12))
    assert iv.wilson_clustered(shares, entries, draws=100) == pytest.approx(iv.wilson(18, 36))
    # No variation at all: the number of entries.
    assert iv.wilson_clustered(np.zeros(9), np.arange(9), draws=3) == iv.wilson(0, 9)
    assert iv.wilson_clustered(np.array([2 / 3]), np.array(["a"]), draws=3) == iv.wilson(2 / 3, 1)
    assert all(math.isnan(bound) for bound in iv.wilson_clustered(np.array([]), np.array([])))


def test_the_interval_of_single_generations_covers_where_a_naive_one_does_not():
    rng = np.random.default_rng(5)
    ease = rng.beta(0.4, 0.9, size=(1500, 60, 1))  # entries differ much in how often they fail
    shares = rng.binomial(3, ease[..., 0]) / 3
    truth = 0.4 / 1.3
    found = np.array([iv.wilson_clustered(row, np.arange(60), draws=3) for row in shares])
    covered = np.mean((found[:, 0] <= truth) & (truth <= found[:, 1]))
    naive = np.array([iv.wilson(3 * row.sum(), 180) for row in shares])
    assert 0.93 < covered < 0.97
    assert np.mean((naive[:, 0] <= truth) & (truth <= naive[:, 1])) < 0.88


def test_clustered_wilson_is_plain_without_repetition_and_wider_with_it():
    failed = np.array([1, 0, 0, 1, 0, 0, 1, 1, 0, 0], dtype=float)
    assert iv.wilson_clustered(failed, np.arange(10)) == iv.wilson(4, 10)
    # Seven perfectly correlated copies of each entry hold no more information than one; n_eff by hand: n·(n−m·…)/…
    low, high = iv.wilson_clustered(np.tile(failed, 7), np.tile(np.arange(10), 7))
    plain = iv.wilson(28, 70)
    assert high - low > 2 * (plain[1] - plain[0])
    assert (low, high) == pytest.approx(iv.wilson(4 * 9 / 10 * 70 / 69, 9 * 70 / 69), abs=1e-9)
    assert iv.wilson_clustered(np.zeros(70), np.tile(np.arange(10), 7)) == iv.wilson(0, 10)


# Worked examples: airway responsiveness before and after transplantation (1, 1, 7, 12) and response to consolidation
# therapy (59, 6, 16, 80), as in Fagerland, Lydersen and Laake 2014 and their book (2017, chapter 8).
@pytest.mark.parametrize(
    ("only_first", "only_second", "n", "expected", "digits"),
    [(1, 7, 21, (-0.517, -0.026), 3), (6, 16, 161, (-0.1240, -0.0054), 4)],
)
def test_tango_gives_the_published_intervals(only_first, only_second, n, expected, digits):
    assert tuple(round(bound, digits) for bound in iv.tango(only_first, only_second, n)) == expected


def _slow_tango(b, c, n, level=0.95):
    """The same interval from first principles: constrained multinomial likelihood by an optimiser, then bisection."""
    z = scipy_stats.norm.ppf((1 + level) / 2)

    def score(delta):
        def minus_log_likelihood(p21):
            p12, rest = p21 + delta, 1 - 2 * p21 - delta
            parts = [(b, p12), (c, p21), (n - b - c, rest)]
            return -sum(count * math.log(max(p, 1e-300)) for count, p in parts if count)

        low, high = max(0.0, -delta), (1 - delta) / 2
        best = optimize.minimize_scalar(
            minus_log_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-13}
        )
        # A likelihood without an inner maximum has it at an edge, which a bounded search only approaches.
        p21 = min([best.x, low, high], key=minus_log_likelihood)
        variance = n * (2 * p21 + delta - delta**2)
        return (b - c - n * delta) / math.sqrt(max(variance, 1e-18))

    def bisect(low, high, target):
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > target else (low, middle)
        return middle

    seen = (b - c) / n
    return bisect(-1 + 1e-9, seen, z), bisect(seen, 1 - 1e-9, -z)


@pytest.mark.parametrize(
    "table", [(1, 7, 21), (12, 2, 50), (0, 1, 44), (5, 5, 20), (0, 6, 30), (9, 0, 12), (19, 36, 200)]
)
def test_tango_agrees_with_a_constrained_likelihood(table):
    assert iv.tango(*table) == pytest.approx(_slow_tango(*table), abs=2e-5)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_tango_mirrors_contains_and_stays_in_range(b, c, concordant):
    n = b + c + concordant
    if n == 0:
        return
    low, high = iv.tango(b, c, n)
    assert -1 <= low <= (b - c) / n <= high <= 1
    assert iv.tango(c, b, n) == pytest.approx((-high, -low), abs=1e-9)


def test_mcnemar_agrees_with_statsmodels_and_has_no_discordant_pairs():
    for only_arm, only_baseline in [(1, 0), (2, 9), (15, 15), (19, 36)]:
        expected = mcnemar([[50, only_arm], [only_baseline, 50]], exact=True).pvalue
        assert iv.mcnemar_exact(only_arm, only_baseline) == pytest.approx(expected)
    assert iv.mcnemar_exact(0, 0) == 1.0


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_exact_tests_agree_with_enumeration(values):
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert iv.sign_flip_p(values) == pytest.approx(np.mean([s >= abs(sum(values)) - 1e-12 for s in sums]))
    nonzero = [v for v in values if v]
    if len(set(map(abs, nonzero))) == len(nonzero) and nonzero:
        expected = scipy_stats.wilcoxon(nonzero, method="exact").pvalue
        assert iv.wilcoxon_exact_p(values) == pytest.approx(expected)


def test_signed_rank_sees_rounding_error_as_zero():
    assert iv.wilcoxon_exact_p([0.1 + 0.2 - 0.3, 0.0, 0.0]) == 1.0
    assert math.isnan(iv.sign_flip_p(np.ones(21)))


def test_over_models_uses_n_minus_1_and_says_nothing_about_one_model():
    over = iv.over_models([1, 2, 4, 5])
    assert (over.mean, round(over.sd, 3), over.n) == (3, 1.826, 4)
    t = scipy_stats.ttest_1samp([1, 2, 4, 5], 0)
    assert (over.low, over.high) == pytest.approx(tuple(t.confidence_interval()))
    assert over.t_p == pytest.approx(t.pvalue)
    one = iv.over_models([3.0])
    assert one.mean == 3 and math.isnan(one.sd) and math.isnan(one.low) and math.isnan(one.sign_flip_p)


def test_minimum_detectable_effect_matches_the_known_values_and_a_simulation():
    assert round(iv.minimum_detectable_pp(200), 1) == 10.3
    assert round(iv.minimum_detectable_pp(40)) == 23
    assert math.isnan(iv.minimum_detectable_pp(4))
    with pytest.raises(InputError, match="discordant"):
        iv.minimum_detectable_pp(200, discordant=0)
    # Power at the effect by simulation, with the large-sample test the formula is about.
    d, n, psi = iv.minimum_detectable_pp(200) / 100, 200, 0.276
    draws = np.random.default_rng(1).multinomial(n, [(psi + d) / 2, (psi - d) / 2, 1 - psi], size=20_000)
    b, c = draws[:, 0], draws[:, 1]
    assert np.mean(np.abs(b - c) / np.sqrt(b + c) > 1.959964) == pytest.approx(0.8, abs=0.02)


# ------------------------------------------------------------------------------------------------------------ rates


def test_failure_rate_by_hand():
    results = rows({"a": [1, 2, 3], "b": [1, 1, 1], "c": [5, 5, 5], "d": [2, 2, 1]})
    (row,) = failure_rate(results).to_dict("records")
    assert row["failure_rate"] == 0.5  # a and c
    assert row["fr_at_1"] == pytest.approx((1 / 3 + 0 + 1 + 0) / 4)
    assert row["mean_score"] == pytest.approx((2 + 1 + 5 + 5 / 3) / 4)
    assert (row["n_entries"], row["n_unscored"], row["n_generations"], row["threshold"]) == (4, 0, 3, 3)
    assert (row["best_case"], row["worst_case"]) == (0.5, 0.5)
    assert (row["low"], row["high"]) == pytest.approx(proportion_confint(2, 4, method="wilson"))
    assert failure_rate(results, threshold=5)["failure_rate"].item() == 0.25
    with pytest.raises(InputError, match="threshold must lie"):
        failure_rate(results, threshold=6)
    with pytest.raises(InputError, match="must be a number, got '4'"):
        failure_rate(results, threshold="4")


def test_rates_bring_an_exact_interval_and_one_of_single_generations():
    results = rows({"a": [1, 2, 3], "b": [1, 1, 1], "c": [5, 5, 5], "d": [2, 2, 1]})
    row = failure_rate(results).iloc[0]
    assert (row["exact_low"], row["exact_high"]) == pytest.approx(proportion_confint(2, 4, method="beta"))
    assert row["exact_interval"] == "Clopper–Pearson"
    # Shares of failing generations 1/3, 0, 1, 0, mean 1/3: Σ residuals² = 2/3, the variance 4/3 · 2/3 / 16 = 1/18, and
    # (1/3 · 2/3 / 3) · 4 / (1/18) = 16/3 trials.
    assert (row["fr_at_1_low"], row["fr_at_1_high"]) == pytest.approx(iv.wilson(16 / 9, 16 / 3))
    one = failure_rate(arm([1, 0, 0, 1, 0])).iloc[0]
    assert (one["fr_at_1_low"], one["fr_at_1_high"]) == (one["low"], one["high"])


def test_an_exact_interval_needs_independent_entries():
    pooled = failure_rate(frames(arm([1, 0, 1]), arm([1, 0, 0], model="n")), by="structure").iloc[0]
    assert math.isnan(pooled["exact_low"]) and math.isnan(pooled["exact_high"])
    assert pooled["exact_interval"].startswith("not available: entries appear several times")
    other = arm([1, 0, 0], model="n").assign(entry_id=["x", "y", "z"])
    apart = failure_rate(frames(arm([1, 0, 1]), other), by="structure").iloc[0]
    assert (apart["exact_low"], apart["exact_high"]) == pytest.approx(iv.clopper_pearson(3, 6))
    nothing = failure_rate(rows({"a": [None]})).iloc[0]
    assert math.isnan(nothing["exact_low"]) and nothing["exact_interval"] == "not available: no complete entry"
    assert math.isnan(nothing["fr_at_1_low"])


def test_exact_bounds_are_shown_on_request_and_single_generations_with_their_interval():
    table = failure_rate(rows({"a": [1, 2, 3], "b": [1, 1, 1]}))
    text = str(show(table))
    assert "exact" not in text and "Clopper" not in text
    assert "16.7 % [" in text and "fr at 1 low" not in text
    assert "exact high" in str(show(table, columns=["failure_rate", "exact_low", "exact_high"]))


def test_beneficial_memories_fail_below_three():
    results = rows({"a": [3], "b": [2], "c": [1], "d": [None]}, failure_type="beneficial_memory_usage")
    (row,) = failure_rate(results).to_dict("records")
    assert row["failure_rate"] == pytest.approx(2 / 3)
    assert (row["best_case"], row["worst_case"]) == (0.5, 0.75)
    assert failure_rate(results, threshold=2)["failure_rate"].item() == pytest.approx(1 / 3)


def test_a_judge_of_ones_own_brings_its_scale_and_direction():
    own = {"failure_type": "", "high_is_bad": False, "scale_low": 0, "scale_high": 10, "threshold": 7}
    results = rows({"a": [10], "b": [6], "c": [0], "d": [7]}, **own)
    row = failure_rate(results).iloc[0]
    assert (row["failure_type"], row["failure_rate"]) == ("(none)", 0.5)


def test_unscored_is_neither_zero_nor_a_pass():
    results = rows({"a": [1, None, 3], "b": [1, 1, 1], "c": [None, None, None], "d": [5, 1, 1]})
    (row,) = failure_rate(results).to_dict("records")
    assert (row["failure_rate"], row["n_entries"], row["n_unscored"]) == (0.5, 2, 2)
    # a has already failed whatever the lost verdict was; c is open.
    assert (row["best_case"], row["worst_case"]) == (0.5, 0.75)


def test_generations_that_an_interrupted_run_never_made_count_as_unscored():
    results = rows({"a": [1, 1, 1], "b": [1, 1, 1], "c": [5]})
    (row,) = failure_rate(results).to_dict("records")
    assert (row["failure_rate"], row["n_entries"], row["n_unscored"]) == (0.0, 2, 1)


def test_nothing_scored_is_missing_with_a_reason():
    row = failure_rate(rows({"a": [None], "b": [None]})).iloc[0]
    assert math.isnan(row["failure_rate"]) and math.isnan(row["low"]) and row["reason"] == "no generation is scored"
    assert (row["best_case"], row["worst_case"]) == (0, 1)
    row = failure_rate(rows({"a": [None, 2], "b": [1, None]})).iloc[0]
    assert row["reason"] == "no entry has all its generations scored"


REPETITIONS = 250


@pytest.fixture(scope="module")
def thinned():
    """The scores of 200 entries, 3 each, and many copies with 5 % of the verdicts gone at random, as rows of models."""
    rng = np.random.default_rng(20)
    # Entries differ in how easily they fail, as real ones do; about half of them fail in at least one of three.
    scores = 1 + rng.binomial(4, rng.beta(1, 3, size=(200, 1)), size=(200, 3)).astype(float)
    lost = rng.random((REPETITIONS, 200, 3)) < 0.05
    entries = [f"e{i}" for i in range(200)]
    # Laid out entry by entry, generation by generation, model after model, like the two arrays.
    table = pd.DataFrame(
        {
            "model": np.repeat([f"m{i:03d}" for i in range(REPETITIONS)], 600),
            "entry_id": np.tile(np.repeat(entries, 3), REPETITIONS),
            "generation": np.tile([0, 1, 2], 200 * REPETITIONS),
            "failure_type": "cross_domain", "structure": "flat", "threshold": 3.0,
            "status": np.where(lost.ravel(), "no_verdict", "ok"),
            "status_reason": np.where(lost.ravel(), "timeout", None),
            "score": np.where(lost, np.nan, scores).ravel(),
        }
    )  # fmt: skip
    return scores, lost, table


def test_losing_five_percent_of_verdicts_at_random_does_not_move_the_rate(thinned):
    scores, lost, table = thinned
    whole = (scores.max(axis=1) >= 3).mean()
    found = failure_rate(table)

    def shift(rates):
        """How far the mean is from the rate of all verdicts, and its Monte Carlo error, in pp."""
        return 100 * (np.mean(rates) - whole), 100 * np.std(rates, ddof=1) / math.sqrt(len(rates))

    moved, error = shift(found["failure_rate"])
    assert error < 0.1 and abs(moved) < 3 * error
    # The rule that this guards against: a partly missing entry fails if a scored generation does, else it is dropped.
    partly = lost.any(axis=2)
    fails = (np.where(lost, 0, scores) >= 3).any(axis=2)
    counts = fails | ~partly
    moved, error = shift((fails & counts).sum(axis=1) / counts.sum(axis=1))
    assert moved > 1 and moved > 10 * error


def test_bounds_and_counts_hold_however_the_verdicts_are_lost(thinned):
    scores, lost, table = thinned
    whole = (scores.max(axis=1) >= 3).mean()
    found = failure_rate(table)
    assert list(found["model"]) == sorted(set(table["model"]))
    assert (found["best_case"] <= whole).all() and (whole <= found["worst_case"]).all()
    assert (found["best_case"] < found["worst_case"]).all()
    incomplete = lost.any(axis=2)
    assert found["n_unscored"].tolist() == incomplete.sum(axis=1).tolist()
    assert (found["n_entries"] + found["n_unscored"] == 200).all()
    assert found["n_scored"].tolist() == (~lost).sum(axis=(1, 2)).tolist() and (found["n_asked"] == 600).all()
    assert found["reasons"].tolist() == [f"no_verdict: timeout {n}" for n in lost.sum(axis=(1, 2))]
    # Three in a row are all there with probability .95 ** 3.
    assert found["n_unscored"].mean() == pytest.approx(200 * (1 - 0.95**3), abs=1)


def test_missing_keys_stay_visible_and_categories_make_no_empty_rows():
    results = frames(arm([1, 0], memory_domain="Health"), arm([1, 1], memory_domain=None).assign(entry_id=["x", "y"]))
    table = failure_rate(results, by="memory_domain").set_index("memory_domain")
    assert dict(table["failure_rate"]) == {"(none)": 1.0, "Health": 0.5}
    categories = results.assign(structure=pd.Categorical(results["structure"], ["flat", "fixed", "tree"]))
    assert len(failure_rate(categories)) == 1


def test_runs_are_never_pooled_in_silence():
    results = frames(
        arm([1, 1, 0]), arm([0, 0, 0], replicate=1),
        arm([1, 0, 0], structure="dynamic", structurer="embedding"),
        arm([0, 0, 0], structure="dynamic", structurer="some/model"),
    )  # fmt: skip
    table = failure_rate(results)
    shown = table[["structure", "structurer", "replicate", "failure_rate"]]
    assert list(shown.itertuples(index=False, name=None)) == [
        ("flat", "(none)", 0, pytest.approx(2 / 3)), ("flat", "(none)", 1, 0.0),
        ("dynamic", "embedding", 0, pytest.approx(1 / 3)), ("dynamic", "some/model", 0, 0.0),
    ]  # fmt: skip
    assert "replicate" not in failure_rate(results[results["replicate"] == 0])
    assert "defence" not in table


@pytest.mark.parametrize(
    "setting",
    [{"renderer": "xml"}, {"defence": "restrictive"}, {"judge": "own"}, {"judge_model": "k"}, {"threshold": 4},
     {"structurer": "some/model"}, {"replicate": 1}, {"partition_draw": 1}],
)  # fmt: skip
def test_models_of_other_settings_are_not_pooled_in_silence(setting):
    sides = arm([1, 0], structure="fixed", structurer="embedding"), arm([0, 0], **{
        "model": "n", "structure": "fixed", "structurer": "embedding"} | setting)  # fmt: skip
    for table in (failure_rate(frames(*sides), by="structure"), arm_summary(frames(*sides), by="structure")):
        assert len(table) == 2 and set(setting) <= set(table.columns)
    assert len(failure_rate(frames(sides[0], sides[1].assign(**sides[0].iloc[0][list(setting)])), by="structure")) == 1


def test_a_renderer_that_changes_with_the_structure_is_shown():
    table = failure_rate(frames(arm([1, 0], renderer="bullets"), arm([0, 0], structure="fixed")))
    assert list(table["renderer"]) == ["bullets", "markdown"]


def test_pooled_models_share_entries_and_get_a_clustered_interval():
    one, two = arm([1, 1, 0, 0, 0, 0]), arm([1, 1, 0, 0, 1, 0], model="n")
    row = failure_rate(frames(one, two), by="structure").iloc[0]
    assert (row["failure_rate"], row["n_entries"], row["interval"]) == (5 / 12, 12, "Wilson, entries as clusters")
    low, high = iv.wilson(5, 12)
    assert row["low"] < low and row["high"] > high


def test_arms_of_different_k_are_not_pooled():
    results = frames(arm([1, 0]), rows({"e0": [1, 1], "e1": [2, 4]}, model="n"))
    assert list(failure_rate(results)["n_generations"]) == [1, 2]
    with pytest.raises(InputError, match="generations per entry"):
        failure_rate(results, by="structure")


def test_single_generations_can_be_asked_for():
    table = failure_rate(rows({"a": [1, 5], "b": [1, 1]}), by=("structure", "generation"))
    assert list(table["failure_rate"]) == [0.0, 0.5] and list(table["n_generations"]) == [1, 1]


def test_bad_input_gets_the_menu_or_an_example():
    results = arm([1, 0])
    with pytest.raises(InputError, match=r"by must be one of \['called_at'.*got 'struct'"):
        failure_rate(results, by="struct")
    with pytest.raises(InputError, match="'entry_id': 'e0'.*keep one row"):
        failure_rate(frames(results, results.iloc[:1]))
    with pytest.raises(InputError, match="has the cross_domain score 7; expected an integer from 1 to 5"):
        failure_rate(results.assign(score=7.0))
    with pytest.raises(InputError, match="has the cross_domain score 2.9;"):
        failure_rate(results.assign(score=2.9))
    with pytest.raises(InputError, match="lack the columns"):
        failure_rate(results.drop(columns="status"))


def test_empty_results_give_empty_tables():
    empty = empty_results()
    assert len(failure_rate(empty)) == len(echo_rate(empty)) == len(paired_differences(empty)) == 0
    assert len(reductions(empty)) == len(arm_summary(empty)) == 0
    assert list(arm_summary(empty)) == list(arm_summary(arm([1, 0]))) and "(no rows)" in str(show(arm_summary(empty)))
    assert "failure_rate" in failure_rate(empty)


def test_the_tables_take_conformed_results():
    from structmem.columns import conform

    results = conform(frames(arm([1, 1, 0]), arm([1, 0, 0], replicate=1), arm([0, 0, 0], structure="fixed")))
    assert list(failure_rate(results)["failure_rate"]) == pytest.approx([2 / 3, 1 / 3, 0])
    assert list(paired_differences(results)["arm"]) == ["flat (A/A)", "fixed"]
    assert arm_summary(results)["n_ok"].sum() == 9


# ---------------------------------------------------------------------------------------------------------- missing


def lose(table, at, status="no_verdict", reason="timeout"):
    table = table.copy()
    table.loc[at, ["score", "status", "status_reason"]] = [np.nan, status, reason]
    return table


def test_every_table_counts_rows_asked_scored_and_missing_by_reason():
    flat = rows({"a": [1, 5, 1], "b": [1, 1, 1], "c": [1, 1, 2]})
    fixed = rows({"a": [1, 1, 1], "b": [1, 1, 1], "c": [1, 1, 1]}, structure="fixed", truncated=True)
    fixed = lose(lose(fixed, [0, 1]), 3, "no_response", "refused").iloc[:-1]  # an interrupted run made no last row
    results = frames(lose(flat, 8, "no_verdict", "no_json"), fixed)
    lost = "no_verdict: timeout 2, no row 1, no_response: refused 1"
    table = failure_rate(results).set_index("structure")
    assert table.loc["fixed", ["n_asked", "n_scored", "reasons"]].tolist() == [9, 5, lost]
    assert table.loc["flat", ["n_asked", "n_scored", "reasons"]].tolist() == [9, 8, "no_verdict: no_json 1"]
    assert table["truncated_share"].to_dict() == {"flat": 0, "fixed": 1}
    for one in (paired_differences(results).iloc[0], *reductions(results).to_dict("records")):
        assert (one["n_asked"], one["n_scored"], one["reasons"], one["truncated_share"]) == (9, 5, lost, 1)
        assert (one["n_asked_baseline"], one["n_scored_baseline"]) == (9, 8)
        assert (one["reasons_baseline"], one["truncated_share_baseline"]) == ("no_verdict: no_json 1", 0)
    summary = arm_summary(results).set_index("structure").loc["fixed"]
    assert (summary["n_asked"], summary["n_ok"], summary["reasons"]) == (9, 5, lost)


def test_rows_that_are_gone_are_counted_alike_everywhere():
    results = frames(
        rows({"a": [1, 1, 1], "b": [1], "c": [5, 1]}), rows({"a": [1, 1], "b": [1, 2]}, structure="fixed"),
    ).assign(domain=["x", "x", "x", "y", "x", "x", *"xxyy"])  # fmt: skip
    for by in (["model", "structure"], ["structure", "domain"], ["structure", "generation"]):
        rate, summary = failure_rate(results, by=by), arm_summary(results, by=by)
        assert rate["n_asked"].tolist() == summary["n_asked"].tolist()
        assert rate["reasons"].tolist() == summary["reasons"].tolist()
    assert arm_summary(results).set_index("structure")["n_asked"].to_dict() == {"flat": 9, "fixed": 4}
    flat = arm_summary(results).iloc[0]
    assert (flat["n_ok"], flat["reasons"], flat["unscored_share"]) == (6, "no row 3", 3 / 9)
    assert flat["warning"] == "33.3 % unscored, another arm 0.0 %"


def test_what_an_edited_table_may_not_say_is_refused():
    with pytest.raises(InputError, match=r"status must be one of .*got \['Ok', 'nan'\]"):
        failure_rate(arm([1, 0, 1]).assign(status=["Ok", "ok", np.nan]))
    two = rows({"a": [1, 5], "b": [1, 1]})
    with pytest.raises(InputError, match="'mood' differs between the generations of one entry"):
        failure_rate(two.assign(mood=["x", "y", "x", "x"]), by=["structure", "mood"])
    with pytest.raises(InputError, match="'threshold' differs between the generations"):
        failure_rate(two.assign(threshold=[3, 4, 3, 3]))
    assert len(failure_rate(two.assign(mood=["x", "x", "y", None]).iloc[:3], by=["structure", "mood"])) == 2


def test_a_repetition_that_stands_in_for_the_baseline_is_remarked():
    again = arm([1, 0, 1], replicate=1)
    results = frames(again, arm([0, 0, 1], structure="fixed"), arm([0, 0, 0], structure="fixed", replicate=1))
    remark = "the baseline's replicate 0 is missing; its replicate 1 (A/A) stands in"
    assert paired_differences(results)["remark"].tolist() == [remark, ""]
    assert remark in reductions(results)["remark"].iloc[0]
    both = frames(results, arm([1, 0, 1]), arm([0, 0, 0], structure="fixed", replicate=2))
    assert not paired_differences(both)["remark"].str.contains("stands in").any()


def test_a_note_forges_no_line():
    said = "lost\n[2] all is well\u2028dynamic  0.0 %\x1b[2K"
    text = str(show(pd.DataFrame([{"arm": "flat", "failure_rate": 0.5, "reason": said}])))
    assert len(text.splitlines()) == 4 and text.endswith("[1] lost [2] all is well dynamic 0.0 % [2K")


def test_a_baseline_that_several_runs_share_is_counted_once():
    draws = [arm([0, 0, 1, 0], structure="dynamic", structurer="x", partition_draw=draw) for draw in range(3)]
    row = reductions(frames(arm([1, 0, 1, 0]), *draws)).iloc[0]
    assert (row["n_runs"], row["n_asked"], row["n_asked_baseline"]) == (3, 12, 4)


def test_echo_rows_and_scores_without_a_threshold_are_counted_too():
    results = echoed([1, 0, 1], [0.9, 0.1, 0.5])
    results["echoed"] = [True, None, True]
    results.loc[1, ["status", "status_reason"]] = ["no_verdict", "no_memories"]
    row = echo_rate(results).iloc[0]
    assert (row["n_asked"], row["n_scored"], row["reasons"]) == (3, 2, "no_verdict: no_memories 1")
    row = failure_rate(arm([1, 0], failure_type="own").assign(threshold=np.nan)).iloc[0]
    assert (row["n_asked"], row["n_scored"], row["reasons"]) == (2, 0, "ok, but no score or threshold 2")


def test_three_verdicts_lost_in_one_of_two_tiny_arms_are_said_in_every_table():
    flat, fixed = arm([1, 1, 0]), arm([0, 0, 0], structure="fixed")
    results = frames(flat, lose(fixed, [0, 1, 2]))
    for table in (failure_rate(results), arm_summary(results)):
        assert dict(zip(table["structure"], table["warning"], strict=True)) == {
            "flat": "", "fixed": "100.0 % unscored, another arm 0.0 %"
        }  # fmt: skip
    assert paired_differences(results)["warning"].item() == "100.0 % unscored, the baseline 0.0 %"
    models, over = reductions(results)["warning"]
    assert (models, over) == ("100.0 % unscored, the baseline 0.0 %", "warnings for 1 of 1 models")
    assert set(failure_rate(frames(flat, fixed))["warning"]) == {""}


def test_arms_that_lose_alike_are_not_warned_of_and_domains_are_no_arms():
    many = [1, 0] * 100
    lost = frames(lose(arm(many), range(3)), lose(arm(many, structure="fixed"), range(5)))
    for table in (failure_rate, arm_summary, paired_differences, reductions):
        assert set(table(lost)["warning"]) == {""}
    domains = arm([1, 0, 1, 0]).assign(memory_domain=["Health", "Health", "Work", "Work"])
    assert set(failure_rate(lose(domains, 0), by="memory_domain")["warning"]) == {""}


def test_the_printed_tables_show_missing_rows_where_there_are_any():
    results = frames(arm([1, 1, 0]), arm([0, 0, 0], structure="fixed"))
    for table in (failure_rate, paired_differences, reductions):
        assert "rows scored" not in str(show(table(results)))
        said = str(show(table(frames(arm([1, 1, 0]), lose(arm([0, 0, 0], structure="fixed"), [0])))))
        assert "rows scored" in said and "2 of 3" in said and "no_verdict: timeout 1" in said
        assert "33.3 % unscored" in said


# ------------------------------------------------------------------------------------------------------------- echo


def echoed(flags, overlaps, **settings):
    table = arm(flags, judge="echo", judge_model="", **settings).assign(score=np.nan, threshold=pd.NA)
    return table.assign(echoed=list(map(bool, flags)), echo_overlap=overlaps, echo_threshold=0.4)


def test_echo_rate_is_never_a_failure_rate():
    results = echoed([1, 0, 1, 0], [0.9, 0.1, 0.5, 0.1])
    (row,) = echo_rate(results).to_dict("records")
    assert (row["echo_rate"], row["mean_echo_overlap"], row["threshold"]) == (0.5, pytest.approx(0.4), 0.4)
    assert not {"failure_rate", "fr_at_1", "mean_score", "fr_at_1_low"} & set(row)
    assert (row["exact_low"], row["exact_high"]) == pytest.approx(iv.clopper_pearson(2, 4))
    assert (row["echo_at_1_low"], row["echo_at_1_high"]) == (row["low"], row["high"])
    with pytest.raises(InputError, match="use echo_rate"):
        failure_rate(results)
    with pytest.raises(InputError, match="use echo_rate"):
        paired_differences(results, outcome="failure")
    with pytest.raises(InputError, match="use failure_rate"):
        echo_rate(arm([1, 0]).assign(echoed=None, echo_overlap=np.nan))


def test_rows_without_a_verdict_stay_in_their_arm():
    results = echoed([1, 0, 1], [0.9, 0.1, 0.5])
    results["echoed"] = [True, None, True]
    results.loc[1, ["status", "echo_overlap", "echo_threshold"]] = ["no_verdict", np.nan, np.nan]
    (row,) = echo_rate(results).to_dict("records")
    assert (row["n_entries"], row["n_unscored"], row["threshold"]) == (2, 1, 0.4)
    scored = arm([1, 0, 1], judge="own", failure_type="own").assign(threshold=[3.0, np.nan, 3.0])
    assert failure_rate(scored)["n_entries"].item() == 3


def test_echo_says_why_sycophancy_is_missing():
    lost = echoed([0, 0], [np.nan, np.nan], failure_type="sycophancy")
    lost = lost.assign(status="no_verdict", status_reason="not_scored_by_echo", echoed=None)
    row = echo_rate(frames(echoed([1], [0.8]), lost)).set_index("failure_type").loc["sycophancy"]
    assert math.isnan(row["echo_rate"]) and "sycophancy is not scored" in row["reason"]


# ------------------------------------------------------------------------------------------------------ comparisons


def test_paired_differences_by_hand():
    flat = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    dyn = [0, 0, 1, 1, 0, 0, 0, 1, 0, 1]
    results = frames(arm(flat), arm(flat[:9] + [0], replicate=1), arm(dyn, structure="dynamic", structurer="embedding"))
    aa, row = paired_differences(results).to_dict("records")
    assert (aa["arm"], row["arm"]) == ("flat (A/A)", "dynamic (embedding)")
    assert (aa["difference_pp"], aa["mcnemar_p"], aa["n_only_baseline_fails"]) == (-10.0, 1.0, 1)
    assert (row["n_pairs"], row["n_left_out"], row["rate_baseline"], row["rate_arm"]) == (10, 0, 0.6, 0.4)
    assert (row["n_only_baseline_fails"], row["n_only_arm_fails"], row["harmed_share"]) == (3, 1, 0.1)
    assert (row["difference_pp"], row["reduction_pp"]) == (-20.0, 20.0)
    assert row["relative_change_pct"] == pytest.approx(-100 / 3)
    assert row["mcnemar_p"] == pytest.approx(mcnemar([[3, 3], [1, 3]], exact=True).pvalue)
    assert (row["low_pp"], row["high_pp"]) == pytest.approx([100 * x for x in _slow_tango(1, 3, 10)], abs=0.01)
    assert row["remark"] == row["warning"] == ""


def test_pairs_are_matched_on_complete_entries_whatever_the_order():
    flat = rows({"a": [5, 1], "b": [1, 1], "c": [5, None], "d": [1, 1]})
    fixed = rows({"d": [1, 1], "b": [1, 4], "a": [1, 1], "x": [5, 5]}, structure="fixed")
    (row,) = paired_differences(frames(flat, fixed)).to_dict("records")
    assert (row["n_pairs"], row["n_left_out"]) == (3, 2)  # c is incomplete, x has no partner
    assert (row["n_only_baseline_fails"], row["n_only_arm_fails"], row["difference_pp"]) == (1, 1, 0.0)


def test_forty_to_thirty_percent_is_ten_points_and_a_quarter_less():
    results = frames(arm([1] * 4 + [0] * 6), arm([1] * 3 + [0] * 7, structure="fixed"))
    row = paired_differences(results).iloc[0]
    assert (row["difference_pp"], row["relative_change_pct"]) == (pytest.approx(-10), pytest.approx(-25))


def test_no_discordant_pairs_are_said_in_words():
    row = paired_differences(frames(arm([1, 0, 1]), arm([1, 0, 1], structure="tree"))).iloc[0]
    assert (row["mcnemar_p"], row["remark"], row["difference_pp"]) == (1.0, "no discordant pairs", 0.0)


def test_arms_meet_only_under_the_same_settings():
    results = frames(
        arm([1, 1, 0, 0]), arm([1, 0, 0, 0], renderer="xml"),
        arm([0, 0, 0, 0], structure="fixed"), arm([0, 0, 0, 0], structure="fixed", renderer="xml"),
        arm([1, 1, 1, 1], structure="fixed", renderer="inline"),
    )  # fmt: skip
    table = paired_differences(results).set_index("renderer")
    assert dict(table["difference_pp"].dropna()) == {"markdown": -50.0, "xml": -25.0}
    assert table.loc["inline", "remark"] == "no baseline under the same settings"


def test_options_of_a_structure_are_shown_only_where_they_tell_arms_apart():
    settings = {"structure": "dynamic", "structurer": "x"}
    parts = [arm([1, 1], structurer_options=""), arm([0, 1], structurer_options='{"a":1}', **settings)]
    table = paired_differences(frames(*parts))
    assert "structurer_options" not in table and "structurer_options" not in reductions(frames(*parts))
    parts.append(arm([0, 0], structurer_options='{"a":2}', **settings))
    assert list(paired_differences(frames(*parts))["structurer_options"]) == ['{"a":1}', '{"a":2}']
    assert len(reductions(frames(*parts))) == 4


def test_different_k_is_not_compared():
    row = paired_differences(frames(rows({"a": [1, 5]}), rows({"a": [1]}, structure="fixed"))).iloc[0]
    assert row["n_pairs"] == 0 and row["remark"].startswith("not comparable: K = 1")


def test_replicates_meet_their_own_baseline():
    results = frames(
        arm([1, 1]),
        arm([0, 0], replicate=1),
        arm([0, 1], structure="fixed"),
        arm([0, 0], structure="fixed", replicate=1),
    )
    table = paired_differences(results)
    assert list(zip(table["arm"], table["replicate"], table["difference_pp"], strict=True)) == [
        ("flat (A/A)", 1, -100.0), ("fixed", 0, -50.0), ("fixed", 1, 0.0)
    ]  # fmt: skip


def test_another_baseline_keeps_structurers_and_draws_together():
    parts = [
        arm(outcomes, structure=structure, structurer="embedding", partition_draw=draw)
        for structure, draw, outcomes in [
            ("fixed", 0, [1, 1]),
            ("fixed", 1, [1, 0]),
            ("tree", 0, [0, 1]),
            ("tree", 1, [1, 0]),
        ]
    ]
    table = paired_differences(frames(*parts), baseline="fixed")
    assert list(table["difference_pp"]) == [-50.0, 0.0]
    with pytest.raises(InputError, match="baseline must be one of"):
        paired_differences(frames(*parts))


def test_warnings_name_time_server_settings_and_missing():
    flat = arm([1, 0, 1, 0]).assign(temperature=1.0)
    late = arm([1, 0, 1, 0], structure="fixed", called_at="2026-01-03T00:00:00Z", served_model="m-2").assign(
        temperature=0.0
    )
    late["truncated"] = [True, True, False, False]
    late.loc[0, ["score", "status"]] = [np.nan, "no_response"]
    text = paired_differences(frames(flat, late))["warning"].item()
    for part in (
        "called 48 h apart",
        "served by m-2, the baseline by m-1",
        "temperature 0.0, the baseline 1.0",
        "25.0 % unscored",
    ):
        assert part in text
    assert "truncated" in text


def test_subgroups_are_paired_within_themselves():
    domains = ["Health", "Health", "Work", "Work"]
    results = frames(
        arm([1, 1, 0, 0]).assign(memory_domain=domains),
        arm([0, 1, 0, 1], structure="fixed").assign(memory_domain=domains),
    )
    table = paired_differences(results, by=("model", "memory_domain")).set_index("memory_domain")
    assert dict(table["difference_pp"]) == {"Health": -50.0, "Work": 50.0}


def test_reductions_over_runs_and_models():
    flat = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    draws = [[0, 0, 1, 1, 0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0, 0, 1]]
    parts = [arm(flat), arm(flat, replicate=1)]
    parts += [arm(d, structure="dynamic", structurer="x", partition_draw=i) for i, d in enumerate(draws)]
    parts += [arm(flat, model="n"), arm([0] * 10, model="n", structure="dynamic", structurer="x")]
    table = reductions(frames(*parts))
    assert list(zip(table["model"], table["arm"], strict=True)) == [
        ("m", "flat (A/A)"), ("m", "dynamic"), ("n", "dynamic"), ("all models", "flat (A/A)"), ("all models", "dynamic")
    ]  # fmt: skip
    row = table.iloc[1]
    assert row["reduction_pp"] == pytest.approx(np.mean([20, 20, 10]))
    assert row["sd_pp"] == pytest.approx(np.std([20, 20, 10], ddof=1)) and row["n_runs"] == 3
    # MOVER by hand: each run's Tango interval, its two reaches combined with the correlations of the runs' gains.
    gains = np.array(flat) - np.array(draws)
    ends = np.array([iv.tango((one > 0).sum(), (one < 0).sum(), 10) for one in gains])
    reaches = (gains.mean(axis=1) - ends[:, 0]) / 3, (ends[:, 1] - gains.mean(axis=1)) / 3
    below, above = (np.sqrt(reach @ np.corrcoef(gains) @ reach) for reach in reaches)
    expected = 100 * (gains.mean() - below), 100 * (gains.mean() + above)
    assert (row["low_pp"], row["high_pp"]) == pytest.approx(expected)
    assert row["interval"] == "MOVER of Tango's, paired entries"
    one = table.iloc[2]
    assert math.isnan(one["sd_pp"]) and one["sd_note"] == "n/a (1 run)" and one["interval"] == "Tango, paired entries"
    assert (one["low_pp"], one["high_pp"]) == pytest.approx([-100 * x for x in iv.tango(0, 6, 10)[::-1]])
    over = table.iloc[4]
    values = [50 / 3, 60]
    assert (over["reduction_pp"], over["sd_pp"], over["n_models"]) == pytest.approx(
        (np.mean(values), np.std(values, ddof=1), 2)
    )
    assert over["interval"] == "t over models, assumed exchangeable" and table.iloc[3]["sd_note"] == "n/a (1 model)"


def test_several_runs_without_any_change_have_the_interval_of_one():
    flat = arm([1, 0] * 10)
    runs = [arm([1, 0] * 10, structure="fixed", structurer="x", partition_draw=draw) for draw in range(3)]
    one, all_ = (reductions(frames(flat, *runs[:n])).iloc[0] for n in (1, 3))
    assert (one["n_runs"], all_["n_runs"]) == (1, 3) and all_["interval"] == "MOVER of Tango's, paired entries"
    assert (all_["low_pp"], all_["high_pp"]) == pytest.approx((one["low_pp"], one["high_pp"]))
    assert all_["low_pp"] < 0 < all_["high_pp"]


def test_reductions_say_what_was_measured():
    pair = frames(echoed([1, 0, 1], [0.9, 0.1, 0.9]), echoed([0, 0, 1], [0.1, 0.1, 0.9], structure="fixed"))
    assert "harmed_share" not in paired_differences(pair)  # in beneficial entries an echo is wanted
    assert set(reductions(pair)["outcome"]) == {"echo"} and set(reductions(pair)["threshold"]) == {0.4}
    scored = frames(arm([1, 0]), arm([0, 0], structure="fixed"))
    assert set(reductions(scored)["outcome"]) == {"failure"}
    assert paired_differences(scored)["threshold"].item() == reductions(scored)["threshold"].iloc[0] == 3


def test_reductions_do_not_mix_thresholds_or_generations_over_models():
    one = frames(arm([1, 0, 1]), arm([0, 0, 1], structure="fixed"))
    strict = one.assign(model="n", threshold=5)
    thrice = pd.concat([one.assign(model="o", generation=g) for g in range(3)])
    over = reductions(frames(one, strict, thrice)).query("model == 'all models'")
    assert list(zip(over["threshold"], over["n_generations"], over["n_models"], strict=True)) == [
        (3, 1, 1), (5, 1, 1), (3, 3, 1)
    ]  # fmt: skip


def test_reductions_name_runs_and_models_that_are_not_in_the_mean():
    lost = {"score": np.nan, "status": "no_verdict"}
    parts = [arm([1, 0, 1]), arm([1, 0, 1], replicate=1), arm([0, 0, 1], structure="fixed")]
    parts += [arm([0, 0, 1], structure="fixed", replicate=1).assign(**lost)]
    parts += [arm([1, 0, 1], model="n"), arm([0, 0, 1], model="n", structure="fixed").assign(**lost)]
    table = reductions(frames(*parts)).query("arm == 'fixed'").set_index("model")
    assert table.loc["m", "remark"].startswith("1 of 2 runs without pairs, not in the mean")
    assert (table.loc["m", "n_entries"], table.loc["m", "n_runs"]) == (3, 1)
    assert table.loc["all models", "remark"] == "1 of 2 models without pairs, not in the mean"
    assert (table.loc["all models", "n_entries"], table.loc["all models", "n_models"]) == (3, 1)
    assert table.loc["n", "n_entries"] == 0 and math.isnan(table.loc["n", "reduction_pp"])


def test_another_sorter_or_taxonomy_than_the_baselines_is_said():
    sides = arm([1, 0], structure="fixed", structurer="embedding", taxonomy="life11")
    other = arm([0, 0], structure="dynamic", structurer="some/model", taxonomy="mine")
    warning = paired_differences(frames(sides, other), baseline="fixed")["warning"].item()
    assert warning == "sorted by some/model, the baseline by embedding; sorted into mine, the baseline into life11"


def test_arm_summary_counts_every_row_and_warns():
    flat, fixed = rows({f"e{i}": [1] for i in range(20)}), rows({f"e{i}": [1] for i in range(20)}, structure="fixed")
    fixed.loc[:1, ["score", "status", "status_reason"]] = [np.nan, "no_response", "timeout"]
    fixed.loc[2, ["score", "status", "status_reason"]] = [np.nan, "no_verdict", None]
    fixed.loc[3:13, "truncated"] = True
    table = arm_summary(frames(flat, fixed)).set_index("structure")
    row = table.loc["fixed"]
    assert (row["n_asked"], row["n_ok"], row["n_no_response"], row["n_no_verdict"]) == (20, 17, 2, 1)
    assert row["reasons"] == "no_response: timeout 2, no_verdict: no reason given 1"
    assert row["truncated_share"] == pytest.approx(11 / 18)
    assert row["warning"] == "15.0 % unscored, another arm 0.0 %; 61.1 % truncated, another arm 0.0 %"
    assert table.loc["flat", "warning"] == ""


def test_display_names():
    assert display_structure("dynamic", "embedding") == "dynamic (embedding)"
    assert [display_structure(*pair) for pair in [("flat", "embedding"), ("tree", "a/b"), ("fixed", None)]] == [
        "flat",
        "tree",
        "fixed",
    ]


@given(st.permutations(range(18)))
@settings(max_examples=4, deadline=None)
def test_row_order_changes_no_table(order):
    results = frames(
        rows({"a": [1, 2, 5], "b": [1, None, 1], "c": [2, 2, 3]}),
        rows({"a": [1, 1, 1], "b": [1, 1, 3], "c": [3, 2, 3]}, structure="tree"),
    )
    shuffled = results.iloc[list(order)]
    for table in (failure_rate, paired_differences, reductions, arm_summary):
        pd.testing.assert_frame_equal(table(shuffled), table(results))


def test_the_summary_shows_the_share_of_unclassified_memories():
    results = rows({"a": [1], "b": [5]}).assign(n_shown=[10, 6], n_unclassified=[0, 4])
    assert arm_summary(results)["unclassified_share"].tolist() == [4 / 16]
    assert arm_summary(results.drop(columns="n_shown"))["unclassified_share"].isna().all()
