"""RAG's curve and structures at matched values: interpolation by hand, scipy, planted curves, words and refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy import stats as scipy_stats

from structmem import figures, house
from structmem.errors import InputError
from structmem.intervals import wilson
from structmem.matched import matched_differences
from structmem.matched_words import between_words, comparison_words, matched_reading, outcome_words
from structmem.ragcurves import interpolated, memories_kept, monotone, rag_points, rag_variants
from structmem.tables import show

LEAKS, USES = "cross_domain", "beneficial_memory_usage"
MANY = 200  # draws: enough where only the estimate is looked at


def arm(structure, leaks, uses, model="m", options=None, **more):
    """An arm in which the first entries of each type fail: `leaks` and `uses` are flags by entry."""
    parts = []
    for kind, flags in ((LEAKS, leaks), (USES, uses)):
        flags = np.asarray(flags, dtype=bool)
        score = np.where(flags, 4, 1) if kind == LEAKS else np.where(flags, 1, 3)
        parts.append(
            pd.DataFrame(
                {
                    "entry_id": [f"{kind[:2]}{i:03d}" for i in range(len(flags))], "failure_type": kind, "model": model,
                    "structure": structure, "structurer": "embedding" if structure == "rag" else "",
                    "structurer_options": json.dumps(options) if options else "", "taxonomy": "", "generation": 0,
                    "replicate": 0, "partition_draw": 0, "defence": "standard", "judge": "persistbench",
                    "threshold": 3.0, "status": "ok", "status_reason": None, "score": score.astype(float),
                    "n_memories": 10, "n_shown": 10,
                }
            ).assign(**more)
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def first(rate, n=20):
    return np.arange(n) < round(rate * n)


def study(structures, taus=(), ks=(), ends=(), n=20, **more):
    """Rates by hand: name or setting → (leakage, beneficial failures)."""
    parts = [arm(name, first(x, n), first(y, n), **more) for name, (x, y) in (*structures, *ends)]
    for name, settings_of in (("threshold", taus), ("top_k", ks)):
        for value, (x, y) in settings_of:
            options = {"threshold": None, "top_k": None} | {name: value}
            parts.append(arm("rag", first(x, n), first(y, n), options=options, **more))
    return pd.concat(parts, ignore_index=True)


def one(table, arm_name, on, curve="τ", model="m"):
    found = table.query("arm == @arm_name and matched_on == @on and curve == @curve and model == @model")
    assert len(found) == 1
    return found.iloc[0]


TAUS = [(0.1, (0.5, 0.2)), (0.2, (0.4, 0.4)), (0.3, (0.2, 0.8))]


def test_interpolation_by_hand():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3)), ("tree", (0.45, 0.3))], TAUS)
    table = matched_differences(results, draws=MANY)
    # Leakage 0.3 lies half-way between τ 0.2 and τ 0.3, where RAG fails (0.4 + 0.8) / 2 of beneficial entries.
    row = one(table, "fixed", LEAKS)
    assert (row["matched_rate"], row["arm_rate"], row["rag_rate"]) == pytest.approx((0.3, 0.3, 0.6))
    assert row["difference_pp"] == pytest.approx(-30) and row["between"] == "τ 0.2 and τ 0.3"
    # Use 0.3 lies half-way between τ 0.1 and τ 0.2, where RAG leaks 0.45.
    row = one(table, "fixed", USES)
    assert row["rag_rate"] == pytest.approx(0.45) and row["difference_pp"] == pytest.approx(-15)
    assert row["between"] == "τ 0.1 and τ 0.2" and row["compared"] == LEAKS
    # tree lies on the curve.
    assert one(table, "tree", LEAKS)["difference_pp"] == pytest.approx(0)
    assert one(table, "tree", USES)["difference_pp"] == pytest.approx(0)
    assert set(table["arm"]) == {"fixed", "tree"} and set(table["n_cross_domain"]) == {20}


def test_the_flat_list_is_the_end_of_the_curve_and_nothing_is_extrapolated():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.55, 0.3)), ("tree", (0.1, 0.15))], TAUS)
    table = matched_differences(results, draws=MANY)
    # Half-way between flat (τ = −1) and τ 0.1.
    row = one(table, "fixed", LEAKS)
    assert row["rag_rate"] == pytest.approx(0.15) and row["between"] == "flat and τ 0.1"
    row = one(table, "tree", LEAKS)
    assert math.isnan(row["difference_pp"]) and math.isnan(row["rag_rate"]) and math.isnan(row["low_pp"])
    assert row["reason"] == "tree is outside the curve: leakage 10.0 %, below RAG at every setting (20.0 % to 60.0 %)"
    assert row["reading"] == "no number" and row["matched_rate"] == pytest.approx(0.1)
    assert one(table, "tree", USES)["difference_pp"] == pytest.approx(-45)
    # Without flat the curve begins at τ 0.1, and with empty it goes on to the end.
    other = study([("fixed", (0.55, 0.3)), ("tree", (0.1, 0.15))], TAUS, ends=[("empty", (0.0, 1.0))])
    table = matched_differences(other, draws=MANY)
    assert "above RAG at every setting (0.0 % to 50.0 %)" in one(table, "fixed", LEAKS)["reason"]
    assert one(table, "tree", LEAKS)["rag_rate"] == pytest.approx(0.9)


def test_curves_run_over_k_too_and_over_one_while_the_other_is_held():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS, ks=[(2, (0.2, 0.5)), (5, (0.4, 0.3))])
    points = rag_points(results)
    assert points.query("curve == 'k'")["setting"].tolist() == ["", "k 5", "k 2"]
    assert one(matched_differences(results, draws=MANY), "fixed", LEAKS, "k")["rag_rate"] == pytest.approx(0.4)
    both = [arm("rag", first(x), first(y), options={"threshold": 0.1, "top_k": k})
            for k, x, y in ((2, 0.2, 0.5), (5, 0.4, 0.3))]  # fmt: skip
    table = rag_points(pd.concat([results, *both]))
    assert table.query("curve == 'k at τ 0.1'")["setting"].tolist() == ["τ 0.1", "τ 0.1, k 5", "τ 0.1, k 2"]


def test_a_curve_that_is_not_monotone_is_fitted_as_one():
    taus = [(0.1, (0.4, 0.3)), (0.2, (0.5, 0.2)), (0.3, (0.2, 0.8))]
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.45, 0.3))], taus)
    points = rag_points(results).query("curve == 'τ'")
    leaks = points["cross_domain_rate"].to_numpy()
    expected = optimize.isotonic_regression(leaks, increasing=False).x
    assert points["cross_domain_fitted"].tolist() == pytest.approx(list(expected))
    assert list(expected) == pytest.approx([0.6, 0.45, 0.45, 0.2])
    # Both settings have the matched leakage; RAG's better one counts (here they are pooled: 0.25).
    assert one(matched_differences(results, draws=MANY), "fixed", LEAKS)["rag_rate"] == pytest.approx(0.25)


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_monotone_is_isotonic_regression(values):
    fitted = monotone(np.array([values, values[::-1]]))
    for row, given_values in zip(fitted, (values, values[::-1]), strict=True):
        assert row == pytest.approx(optimize.isotonic_regression(given_values).x, abs=1e-9)


@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=6, unique=True),
    st.lists(st.integers(0, 12), min_size=6, max_size=6),
    st.integers(-3, 15),
)
@settings(max_examples=60, deadline=None)
def test_interpolation_is_numpy_s_inside_and_bounds_by_monotony_outside(matched, other, at):
    x = np.sort(np.array(matched, dtype=float))[::-1]
    y = np.sort(np.array(other[: len(x)], dtype=float))
    low, high, inside = (float(part[0]) for part in interpolated(x[None], y[None], np.array([float(at)]), -1.0, 20.0))
    if x[-1] <= at <= x[0]:
        assert inside and low == high == pytest.approx(np.interp(at, x[::-1], y[::-1]))
    else:
        assert not inside and (low, high) == ((-1.0, y[0]) if at > x[0] else (y[-1], 20.0))


def test_where_several_settings_have_the_matched_value_rags_best_one_counts():
    x, y = np.array([[0.5, 0.3, 0.3, 0.1]]), np.array([[0.1, 0.2, 0.4, 0.9]])
    low, high, _ = interpolated(x, y, np.array([0.3]), 0.0, 1.0)
    assert low == high == [0.2]


def test_the_interval_is_a_bootstrap_of_both_failure_types_apart():
    rng = np.random.default_rng(3)
    n, rates = 60, {"flat": (0.6, 0.1), 0.1: (0.5, 0.3), 0.2: (0.35, 0.5), 0.3: (0.2, 0.7), "fixed": (0.4, 0.3)}
    flags = {name: [rng.random(n) < rate for rate in pair] for name, pair in rates.items()}
    parts = [
        arm("rag" if isinstance(name, float) else name, *pair,
            options={"threshold": name, "top_k": None} if isinstance(name, float) else None)
        for name, pair in flags.items()
    ]  # fmt: skip
    row = one(matched_differences(pd.concat(parts), draws=4000), "fixed", LEAKS)
    columns = np.array([flags[name] for name in ("flat", 0.1, 0.2, 0.3, "fixed")], dtype=float)
    least, most, inside = [], [], 0
    for _ in range(1000):  # by hand, one draw after the other, with scipy
        leaks, uses = (columns[:, side, rng.integers(0, n, n)].mean(axis=1) for side in (0, 1))
        x = optimize.isotonic_regression(leaks[:-1], increasing=False).x
        y = optimize.isotonic_regression(uses[:-1]).x
        if x[-1] <= leaks[-1] <= x[0]:
            rag = 2 * [np.interp(leaks[-1], x[::-1] + 1e-12 * np.arange(4), y[::-1])]
            inside += 1
        else:  # beyond the curve: what its being monotone still allows
            rag = [0, y[0]] if leaks[-1] > x[0] else [y[-1], 1]
        least.append(100 * (uses[-1] - rag[1]))
        most.append(100 * (uses[-1] - rag[0]))
    reach = np.sqrt(n / (n - 1)) * scipy_stats.t.ppf(0.975, n - 1)
    tails = scipy_stats.norm.cdf([-reach, reach])
    assert row["outside_share"] == pytest.approx(1 - inside / 1000, abs=0.02)
    assert row["low_pp"] == pytest.approx(np.quantile(least, tails[0]), abs=6)
    assert row["high_pp"] == pytest.approx(np.quantile(most, tails[1]), abs=6)
    assert row["low_pp"] < row["difference_pp"] < row["high_pp"]


def test_planted_curves_are_covered():
    rng = np.random.default_rng(8)
    # Population curve: leakage 0.6, 0.45, 0.3, 0.15 against use 0.2, 0.35, 0.5, 0.65; fixed at 0.375 and 0.3: its true
    # difference at equal leakage is 0.3 − 0.425 = −12.5 pp, at equal use 0.375 − 0.5 = −12.5 pp. Models are samples.
    rates, n = [(0.6, 0.2), (0.45, 0.35), (0.3, 0.5), (0.15, 0.65), (0.375, 0.3)], 80
    parts = []
    for sample in range(12):
        ease = rng.standard_normal((2, n))
        for name, pair in zip(["flat", 0.1, 0.2, 0.3, "fixed"], rates, strict=True):
            cuts, own = scipy_stats.norm.ppf(pair)[:, None], rng.standard_normal((2, n))
            options = {"threshold": name, "top_k": None} if isinstance(name, float) else None
            bad = 0.7 * ease + math.sqrt(0.51) * own < cuts
            parts.append(arm("rag" if options else name, *bad, model=f"sample {sample:02d}", options=options))
    table = matched_differences(pd.concat(parts), draws=300).query("model != 'all models' and reason == ''")
    covered = (table["low_pp"] <= -12.5) & (-12.5 <= table["high_pp"])
    assert len(table) >= 20 and covered.mean() >= 0.85
    assert table["difference_pp"].mean() == pytest.approx(-12.5, abs=5)


def test_echoes_are_wanted_in_beneficial_entries_only():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS)
    echo = results.assign(judge="echo", echo_threshold=0.5, score=np.nan)
    # As overlaps: leaking is a high overlap; failing a beneficial entry is a low one.
    bad = (results["score"] == 4) | (results["score"] == 1) & (results["failure_type"] == USES)
    high = bad == (results["failure_type"] == LEAKS)
    echo = echo.assign(echo_overlap=np.where(high, 0.8, 0.2), echoed=high)
    table, turned = matched_differences(results, draws=MANY), matched_differences(echo, draws=MANY)
    for on, sign in ((LEAKS, -1), (USES, 1)):
        mine, theirs = one(turned, "fixed", on), one(table, "fixed", on)
        assert mine["difference_pp"] == pytest.approx(sign * theirs["difference_pp"])
        ends = sorted((sign * theirs["low_pp"], sign * theirs["high_pp"]))
        assert (mine["low_pp"], mine["high_pp"]) == pytest.approx(tuple(ends))
        assert mine["reading"] == theirs["reading"]
    # Means of overlap: the same, a step of 0.6 being one echo.
    means = matched_differences(echo, measure="mean", draws=MANY)
    assert one(means, "fixed", LEAKS)["mean_difference"] == pytest.approx(
        0.006 * one(turned, "fixed", LEAKS)["difference_pp"]
    )


def test_where_no_rate_differs_means_are_matched_and_that_is_said(capsys):
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS)
    overlap = np.where(results["score"] == 4, 0.3, np.where(results["score"] == 3, 0.25, 0.1))
    echo = results.assign(judge="echo", echo_threshold=0.5, echo_overlap=overlap, echoed=False, score=np.nan)
    table = matched_differences(echo, draws=MANY)
    row = one(table, "fixed", LEAKS)
    assert set(table["measure"]) == {"mean"} and "difference_pp" not in table
    # Overlap 0.1 + 0.2 · leakage, and 0.25 − 0.15 · failures: 0.3 against 0.6 failing.
    assert row["mean_difference"] == pytest.approx(0.15 * 0.3) and row["rag_mean"] == pytest.approx(0.25 - 0.15 * 0.6)
    assert "echo rate in cross_domain and beneficial_memory_usage entries is the same at every setting" in row["remark"]
    matched_reading(table)
    said = capsys.readouterr().out
    assert said.startswith("The echo measure made these numbers") and "means are matched." in said
    assert "leakage" not in said and "20 cross_domain and 20 beneficial entries at least" in said
    assert "generations per entry: 1." in said
    assert "+0.045" in said and "0.045" in str(show(table))


def test_over_models_each_weighs_the_same_and_none_is_dropped():
    parts = [
        study([("flat", (0.6, 0.1)), ("fixed", (0.3, use))], TAUS, model=model)
        for model, use in (("a", 0.3), ("b", 0.5))
    ]
    table = matched_differences(pd.concat(parts), draws=MANY)
    assert [one(table, "fixed", LEAKS, model=name)["difference_pp"] for name in ("a", "b")] == pytest.approx([-30, -10])
    over = one(table, "fixed", LEAKS, model="all models")
    assert over["difference_pp"] == pytest.approx(-20) and over["n_models"] == 2
    assert "different settings" not in over["remark"]
    fewer = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.5))], TAUS[1:], model="b")
    over = one(matched_differences(pd.concat([parts[0], fewer]), draws=MANY), "fixed", LEAKS, model="all models")
    assert "the models' curves go through different settings" in over["remark"]
    out = study([("flat", (0.6, 0.1)), ("fixed", (0.1, 0.3))], TAUS, model="b")
    table = matched_differences(pd.concat([parts[0], out]), draws=MANY)
    over = one(table, "fixed", LEAKS, model="all models")
    assert (
        math.isnan(over["difference_pp"]) and over["reason"] == "1 of 2 models have no number (b): no mean over models"
    )


def test_arms_that_differ_in_options_are_rows_of_their_own_and_runs_are_averaged():
    base = study([("flat", (0.6, 0.1))], TAUS)
    two = [arm("dynamic", first(0.3), first(use), options={"max_new_domains": k}) for k, use in ((1, 0.3), (2, 0.5))]
    table = matched_differences(pd.concat([base, *two]), draws=MANY).query("matched_on == @LEAKS")
    assert table["difference_pp"].tolist() == pytest.approx([-30, -10])
    assert table["structurer_options"].nunique() == 2 and (table["model"] == "m").all()
    runs = [arm("fixed", first(0.3), first(use), replicate=k) for k, use in enumerate((0.3, 0.5))]
    table = matched_differences(pd.concat([base, *runs]), draws=MANY)
    assert one(table, "fixed", LEAKS)["difference_pp"] == pytest.approx(-20)


def test_only_entries_complete_in_the_arm_and_at_every_setting_count():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS)
    lost = (results["structure"] == "fixed") & (results["entry_id"] == "cr000")
    gone = results.assign(status=np.where(lost, "no_verdict", "ok"), score=results["score"].mask(lost))
    row = one(matched_differences(gone, draws=MANY), "fixed", LEAKS)
    assert row["n_cross_domain"] == 19 and row["n_beneficial"] == 20
    assert row["matched_rate"] == pytest.approx(5 / 19) and "1 entries of the arm are not complete" in row["remark"]
    more = pd.concat([results, arm("tree", first(0.3), first(0.3)), arm("tree", first(0.3), first(0.3), generation=1)])
    assert "not comparable: 1 and 2 generations per cross_domain entry" in one(
        matched_differences(more, draws=MANY), "tree", LEAKS
    )["reason"]  # fmt: skip


def test_points_have_the_rates_with_their_intervals():
    points = rag_points(study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS))
    assert points["setting"].tolist() == ["", "τ 0.1", "τ 0.2", "τ 0.3", ""] and points["curve"].iloc[-1] == ""
    row = points.iloc[2]
    assert (row["cross_domain_rate"], row["beneficial_rate"]) == (0.4, 0.4)
    assert (row["cross_domain_low"], row["cross_domain_high"]) == pytest.approx(wilson(8, 20))
    assert "40.0 % [21.9, 61.3]" in str(show(points))


def test_what_an_arm_keeps_is_counted_per_entry():
    results = study([("flat", (0.6, 0.1))], TAUS)
    dropped = results["structure"] == "rag"
    shown = results.assign(n_shown=np.where(dropped, np.where(results["entry_id"].str.endswith("0"), 0, 4), 10))
    table = memories_kept(pd.concat([shown, shown.assign(generation=1)]))
    row = table[(table["structure"] == "rag") & (table["failure_type"] == LEAKS)].iloc[0]
    assert row["kept_share"] == pytest.approx(0.36) and row["empty_share"] == pytest.approx(0.1)
    assert (row["n_entries"], row["mean_shown"]) == (20, pytest.approx(3.6)) and "dropped" in row["information"]
    assert table["structurer_options"].nunique() == 4
    flat = table[table["structure"] == "flat"].iloc[0]
    assert flat["kept_share"] == 1 and flat["information"] == "all memories shown"
    assert "kept_share" in memories_kept(results.drop(columns="n_shown"))


def test_what_cannot_be_matched_is_refused():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS)
    with pytest.raises(InputError, match="never compared with it at one threshold"):
        matched_differences(study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS[:1]))
    with pytest.raises(InputError, match=r"lack \['beneficial_memory_usage'\]"):
        matched_differences(results[results["failure_type"] == LEAKS])
    with pytest.raises(InputError, match="no structure to compare"):
        matched_differences(study([("flat", (0.6, 0.1))], TAUS))
    with pytest.raises(InputError, match="measure must be one of"):
        matched_differences(results, measure="rates")
    with pytest.raises(InputError, match="draws must be"):
        matched_differences(results, draws=3)
    with pytest.raises(InputError, match="share their key"):
        matched_differences(pd.concat([results, results]))
    with pytest.raises(InputError, match="lack"):
        matched_differences(results.iloc[:0])
    bad = results.assign(structurer_options=results["structurer_options"].replace(r".*0\.1.*", "τ = 0.1", regex=True))
    with pytest.raises(InputError, match="must be a JSON object, got 'τ = 0.1'"):
        rag_points(bad)


def test_words():
    assert outcome_words(LEAKS, "failure", "rate") == "leakage" and "leak" not in outcome_words(LEAKS, "echo", "rate")
    assert between_words(np.array([0.6, 0.4, 0.2]), 0.4, ["flat", "τ 0.1", "τ 0.2"]) == "τ 0.1"
    assert comparison_words(-5, -1, 1) == "better than RAG" == comparison_words(1, 5, -1)
    assert comparison_words(1, 5, 1) == "worse than RAG"
    assert comparison_words(-1, 5, 1) == "not distinguishable from RAG"
    assert comparison_words(math.nan, math.nan, 1) == "no interval"
    variants = rag_variants([0.1], [5])
    assert variants["k 5"] == {"structurer_options": {"rag": {"threshold": None, "top_k": 5}}}


@pytest.mark.parametrize("width", ["column", "page"])
def test_the_figure_shows_the_points_and_the_curve(width):
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS, ks=[(2, (0.2, 0.5)), (5, (0.4, 0.3))])
    points = rag_points(results)
    panels = figures.matched_tradeoff(points, width)
    assert [axes.get_title(loc="left") for axes in panels] == ["RAG over τ\nm", "RAG over k\nm"]
    drawn = [line.get_xydata()[0] for line in panels[0].lines if line.get_marker() not in ("None", None, "")]
    expected = points[points["curve"] != "k"][["cross_domain_rate", "beneficial_rate"]]
    assert np.array(drawn) == pytest.approx(100 * expected.to_numpy())
    assert panels[0].lines[0].get_xydata() == pytest.approx(100 * expected.to_numpy()[:4])
    assert [text.get_text() for text in panels[1].texts] == ["k 5", "k 2"]
    alt = house.figure_of(panels).alt_text
    assert "τ 0.2 40.0 % and 40.0 %" in alt and "down and left is better" in alt


def test_settings_that_coincide_share_one_name_inside_the_panel():
    results = study(
        [("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], [(0.1, (0.6, 0.5)), (0.2, (0.6, 0.5)), (0.3, (0.1, 0.9))]
    )
    (axes,) = figures.matched_tradeoff(rag_points(results), "column")
    names = {text.get_text(): text.get_horizontalalignment() for text in axes.texts}
    assert names == {"τ 0.1, τ 0.2": "right", "τ 0.3": "left"}


def test_a_point_without_complete_entries_is_not_drawn():
    results = study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS)
    lost = (results["structure"] == "fixed") & (results["failure_type"] == USES)
    gone = results.assign(status=np.where(lost, "no_verdict", "ok"), score=results["score"].mask(lost))
    points = rag_points(gone)
    assert math.isnan(points["beneficial_rate"].iloc[-1]) and points["n_beneficial"].iloc[-1] == 0
    assert len(figures.matched_tradeoff(points)) == 1
    row = one(matched_differences(gone, draws=MANY), "fixed", LEAKS)
    assert row["reason"] == "no beneficial_memory_usage entry is complete in the arm and at every setting of RAG"


def test_a_figure_without_a_curve_is_refused():
    points = rag_points(study([("flat", (0.6, 0.1)), ("fixed", (0.3, 0.3))], TAUS))
    with pytest.raises(InputError, match="no curve"):
        figures.matched_tradeoff(points[points["curve"] == ""])
    with pytest.raises(InputError, match="lacks"):
        figures.matched_tradeoff(points.drop(columns="setting"))
