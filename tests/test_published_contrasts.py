"""What the published rates support: the known answers, each computed again by scipy, by enumeration or by hand."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import exp, log, sqrt

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

import structmem as sm
from structmem.errors import InputError
from structmem.paths import package_file

LEAKAGE, BENEFICIAL, SYCOPHANCY = "cross_domain", "beneficial_memory_usage", "sycophancy"
# Each table is made once: tests only read them.
published_differences, published_dominance = cache(sm.published_differences), cache(sm.published_dominance)
published_interactions = cache(sm.published_interactions)
published_conditional_effects = cache(sm.published_conditional_effects)
GRID = pd.read_csv(package_file("published", "failure_rates.csv"))
DEFENCES = ("permissive", "restrictive", "rubric_informed", "gepa")


@cache
def rates(structure, defence="standard", failure_type=LEAKAGE):
    """Per-model rates in percent, read from the file without the loader."""
    cells = GRID.query("structure == @structure and defence == @defence and failure_type == @failure_type")
    return cells.set_index("model")["failure_rate_pct"].sort_index()


def apart(arm, baseline="flat", defence="standard", failure_type=LEAKAGE):
    return rates(arm, defence, failure_type) - rates(baseline, defence, failure_type)


def flips(values):
    """Sign-flip p-value by writing out all 2**n patterns."""
    values = np.round(np.asarray(values, dtype=float), 9)
    sums = [abs(sum(sign * value for sign, value in zip(signs, values, strict=True))) for signs in signs_of(values)]
    return float(np.mean(np.array(sums) >= abs(values.sum()) - 1e-9))


def signed_ranks(values):
    """Exact signed-rank p-value: zeros dropped, mean ranks, all patterns written out."""
    values = np.round(np.asarray(values, dtype=float), 9)
    values = values[values != 0]
    ranks = stats.rankdata(np.abs(values))
    seen, middle = ranks[values > 0].sum(), ranks.sum() / 2
    found = [abs(ranks[np.array(signs) > 0].sum() - middle) for signs in signs_of(values)]
    return float(np.mean(np.array(found) >= abs(seen - middle) - 1e-9))


def signs_of(values):
    return list(product((-1, 1), repeat=len(values)))


def by_hand_holm(p):
    """Holm 1979: the k-th smallest of m times m − k + 1, never below an earlier one."""
    adjusted, highest = [0.0] * len(p), 0.0
    for place, at in enumerate(np.argsort(p)):
        highest = max(highest, min(1.0, (len(p) - place) * p[at]))
        adjusted[at] = highest
    return adjusted


def row_of(table, **values):
    for column, value in values.items():
        table = table[table[column] == value]
    assert len(table) == 1, values
    return table.iloc[0]


def same_as_scipy(row, values):
    """Mean, deviation, t, sign flips, signed ranks and counts of one row, from the seven values."""
    values = np.round(np.asarray(values, dtype=float), 9)
    test = stats.ttest_1samp(values, 0)
    interval = test.confidence_interval(0.95)
    assert row["difference_pp"] == pytest.approx(values.mean())
    assert row["sd_pp"] == pytest.approx(np.std(values, ddof=1))
    assert (row["low_pp"], row["high_pp"]) == pytest.approx((interval.low, interval.high))
    assert row["t_p"] == pytest.approx(test.pvalue)
    assert row["sign_flip_p"] == pytest.approx(flips(values))
    assert row["wilcoxon_p"] == pytest.approx(signed_ranks(values))
    assert row["smallest_p"] == 2 / 2 ** len(values)
    counts = (row["n_models"], row["n_models_down"], row["n_models_up"])
    assert counts == (len(values), (values < 0).sum(), (values > 0).sum())


def stated(row, difference, interval=None, **others):
    """A row against the numbers of the list of known answers, at the precision in which they are given."""
    digits = len(str(difference).split(".")[1])
    assert round(row["difference_pp"], digits) == difference
    assert interval is None or (round(row["low_pp"], 1), round(row["high_pp"], 1)) == interval
    for column, text in others.items():
        assert f"{row[column]:.{len(text) - 1}f}".lstrip("0") == text, column


# ------------------------------------------------------------------------------------------------ between structures


@pytest.mark.parametrize(
    ("arm", "baseline", "difference", "interval", "p"),
    [
        ("dynamic", "flat", -8.79, (-12.8, -4.7), {"t_p": ".0018", "holm_p": ".005", "sign_flip_p": ".0156",
                                                   "wilcoxon_p": ".0156"}),
        ("fixed", "flat", -5.93, (-11.2, -0.7), {"t_p": ".033", "holm_p": ".063", "sign_flip_p": ".047"}),
        ("tree", "flat", -4.07, (-7.6, -0.5), {"t_p": ".031", "holm_p": ".063", "sign_flip_p": ".047"}),
        ("dynamic", "fixed", -2.86, None, {"t_p": ".16"}),
        ("dynamic", "tree", -4.71, None, {"t_p": ".040", "sign_flip_p": ".062"}),
        ("fixed", "tree", -1.86, None, {"t_p": ".27"}),
    ],
)  # fmt: skip
def test_known_differences_of_leakage(arm, baseline, difference, interval, p):
    row = row_of(published_differences(), arm=arm, baseline=baseline)
    stated(row, difference, interval, **p)
    same_as_scipy(row, apart(arm, baseline))
    assert row["analysis"] == "descriptive"


@pytest.mark.parametrize(("arm", "down", "up"), [("dynamic", 7, 0), ("fixed", 6, 1), ("tree", 6, 1)])
def test_known_numbers_of_models_that_leak_less(arm, down, up):
    row = row_of(published_differences(), arm=arm, baseline="flat")
    assert (row["n_models_down"], row["n_models_up"]) == (down, up)
    rising = {model: value for model, value in apart(arm).items() if value > 0}
    assert rising == {"dynamic": {}, "fixed": {"gemini-3.1-pro": 6.0}, "tree": {"gemini-3.1-pro": 2.5}}[arm]


@pytest.mark.parametrize("family", ["structures against flat", "structures among themselves"])
def test_holm_by_hand_within_each_family(family):
    table = published_differences().query("family == @family")
    p = [stats.ttest_1samp(apart(row.arm, row.baseline), 0).pvalue for row in table.itertuples()]
    assert table["holm_p"].tolist() == pytest.approx(by_hand_holm(p))
    assert table["holm_p"].tolist() == pytest.approx(multipletests(p, method="holm")[1].tolist())
    assert set(table["n_family"]) == {3}


def test_no_support_for_a_claim_about_depth():
    among = published_differences().query("baseline != 'flat'")
    assert (among["holm_p"] > 0.05).all() and (among["sign_flip_p"] > 0.05).all()


@pytest.mark.parametrize("failure_type", [LEAKAGE, BENEFICIAL, SYCOPHANCY])
@pytest.mark.parametrize("defence", ["standard", *DEFENCES])
def test_every_published_pair_is_there_and_finite(defence, failure_type):
    table = published_differences(defence, failure_type)
    assert len(table) == (6 if defence == "standard" and failure_type != SYCOPHANCY else 3)
    assert table.select_dtypes("number").notna().all(axis=None)
    for row in table.to_dict("records"):
        same_as_scipy(row, apart(row["arm"], row["baseline"], defence, failure_type))


def test_a_model_with_no_room_is_named():
    remarks = published_differences("restrictive", SYCOPHANCY)["remark"]
    assert remarks.iloc[0] == "baseline at the ceiling in 5 of 7 models (92.5 to 98.0 %)"
    assert row_of(published_differences(), arm="fixed", baseline="flat")["remark"] == ""
    among = row_of(published_differences(), arm="fixed", baseline="tree")
    assert among["remark"] == "baseline at the floor in llama-3.3-70b (9.0 %)"


def test_without_each_model_in_turn():
    table = sm.published_leave_one_out()
    assert len(table) == 6 * 7
    for row in table.query("baseline == 'flat'").to_dict("records"):
        left = apart(row["arm"]).drop(row["left_out"])
        test = stats.ttest_1samp(left, 0)
        assert (row["difference_pp"], row["t_p"]) == pytest.approx((left.mean(), test.pvalue))
        assert (row["low_pp"], row["high_pp"]) == pytest.approx(tuple(test.confidence_interval()))
        assert (row["n_models"], row["smallest_p"]) == (6, 1 / 32)
    # dynamic stays below flat whichever model is left out; fixed and tree do not.
    above = table.query("baseline == 'flat' and high_pp > 0").groupby("arm").size().to_dict()
    assert "dynamic" not in above and above == {
        arm: sum(stats.ttest_1samp(apart(arm).drop(m), 0).confidence_interval().high > 0 for m in apart(arm).index)
        for arm in ("fixed", "tree")
    }


# ------------------------------------------------------------------------------------------------- within a defence


@pytest.mark.parametrize(
    ("defence", "difference", "t_p", "down", "up"),
    [
        ("restrictive", -2.7, ".075", 5, 2), ("rubric_informed", -0.8, ".58", 4, 3), ("permissive", -2.1, ".085", 5, 1),
        ("gepa", -3.8, ".023", 6, 1),
    ],
)  # fmt: skip
def test_known_conditional_effects_of_dynamic(defence, difference, t_p, down, up):
    row = row_of(published_conditional_effects(), defence=defence)
    stated(row, difference, t_p=t_p)
    same_as_scipy(row, apart("dynamic", defence=defence))
    assert (row["n_models_down"], row["n_models_up"]) == (down, up)


@pytest.mark.parametrize("failure_type", [LEAKAGE, BENEFICIAL, SYCOPHANCY])
@pytest.mark.parametrize("structure", ["dynamic", "fixed"])
def test_complementary_is_said_only_where_the_interval_excludes_0(structure, failure_type):
    table = published_conditional_effects(structure, failure_type)
    for row in table.to_dict("records"):
        values = apart(structure, defence=row["defence"], failure_type=failure_type)
        below = stats.ttest_1samp(values, 0).confidence_interval().high < 0
        assert ("complementary" in row["reading"] or "consistent" in row["reading"]) == below, row["defence"]
        assert below or row["reading"].startswith("not shown")
    p = [stats.ttest_1samp(apart(structure, "flat", d, failure_type), 0).pvalue for d in table["defence"]]
    assert table["holm_p"].tolist() == pytest.approx(by_hand_holm(p))


def test_dynamic_is_complementary_to_gepa_alone():
    table = published_conditional_effects()
    assert table[table["reading"].str.contains("complementary")]["defence"].tolist() == ["gepa"]


@pytest.mark.parametrize(
    ("defence", "difference", "interval", "t_p", "additive"),
    [
        ("restrictive", 6.1, (3.4, 8.8), ".002", "sub-additive"),
        ("rubric_informed", 8.0, (2.3, 13.6), ".014", "sub-additive"),
        ("permissive", 6.7, (2.8, 10.6), ".006", "sub-additive"),
        ("gepa", 5.0, (-0.2, 10.3), ".058", "not shown"),
    ],
)
def test_known_interactions_of_dynamic(defence, difference, interval, t_p, additive):
    row = row_of(published_interactions(), defence=defence)
    stated(row, difference, interval, t_p=t_p)
    same_as_scipy(row, apart("dynamic", defence=defence) - apart("dynamic"))
    assert row["reading"].startswith(additive)
    assert row["effect_pp"] - row["reference_pp"] == pytest.approx(row["difference_pp"])
    assert round(row["reference_pp"], 2) == -8.79


@pytest.mark.parametrize("defence", DEFENCES)
def test_interactions_in_log_odds_by_odds_ratios(defence):
    row = row_of(published_interactions(), defence=defence)
    ratios = []
    for under in (defence, "standard"):
        arm, flat = rates("dynamic", under) / 100, rates("flat", under) / 100
        ratios.append((arm / (1 - arm)) / (flat / (1 - flat)))
    values = np.log(ratios[0] / ratios[1])
    test = stats.ttest_1samp(values, 0)
    assert exp(row["log_odds"]) == pytest.approx(stats.gmean(ratios[0] / ratios[1]))
    assert row["log_odds_p"] == pytest.approx(test.pvalue) and row["log_odds_note"] == ""
    assert (row["log_odds_low"], row["log_odds_high"]) == pytest.approx(tuple(test.confidence_interval()))


def test_a_rate_of_0_or_1_is_corrected_and_said():
    # Under restrictive only gemini's arms never fail beneficially, there and under standard: written out by hand.
    row = row_of(published_interactions(failure_type=BENEFICIAL), defence="restrictive")
    values, corrected = [], 0
    for model in rates("flat").index:
        logits, touched = [], False
        for defence in ("restrictive", "standard"):
            pair = [rates(name, defence, BENEFICIAL)[model] for name in ("dynamic", "flat")]
            if edge := any(rate in (0, 100) for rate in pair):
                pair = [100 * (rate + 0.5) / 101 for rate in pair]  # 100 entries
            touched |= edge
            logits.append(log(pair[0] / (100 - pair[0])) - log(pair[1] / (100 - pair[1])))
        values.append(logits[0] - logits[1])
        corrected += touched
    assert row["log_odds"] == pytest.approx(np.mean(values)) and corrected
    assert row["log_odds_note"].endswith(f"in {corrected} of 7 models")


def test_the_floor_is_named():
    # fixed takes 5.9 pp under standard; flat beneficial failures or leakage are never that low on average.
    assert (published_interactions()["floor"] == "").all()
    remark = row_of(published_interactions(), defence="restrictive")["remark"]
    low = rates("flat", "restrictive")[lambda rate: rate < 10]
    assert remark == f"baseline at the floor in {len(low)} of 7 models ({low.min():.1f} to {low.max():.1f} %)"


# -------------------------------------------------------------------- beneficial failures, dominance, alternatives


@pytest.mark.parametrize(
    ("arm", "bound", "verdict"),
    [
        ("dynamic", -0.5, "not worse by more than 5 pp"), ("tree", 1.0, "not worse by more than 5 pp"),
        ("fixed", 5.8, "not shown"),
    ],
)  # fmt: skip
def test_known_noninferiority_of_beneficial_failures(arm, bound, verdict):
    row = row_of(sm.published_noninferiority(5.0), arm=arm)
    values = apart(arm, failure_type=BENEFICIAL)
    by_hand = values.mean() + stats.t.ppf(0.95, 6) * values.std(ddof=1) / sqrt(7)
    assert row["upper_bound_pp"] == pytest.approx(by_hand) and round(by_hand, 1) == bound
    assert row["verdict"] == verdict and row["smallest_margin_pp"] == pytest.approx(max(by_hand, 0))
    assert row["noninferiority_p"] == pytest.approx(stats.ttest_1samp(values - 5, 0, alternative="less").pvalue)
    assert (row["noninferiority_p"] < 0.05) == (verdict != "not shown")
    assert (row["worst_model"], row["worst_difference_pp"]) == (values.idxmax(), values.max())


def test_fixed_fails_in_deepseek():
    row = row_of(sm.published_noninferiority(), arm="fixed")
    assert (row["worst_model"], row["worst_difference_pp"]) == ("deepseek-v3.2", 14.0)
    assert [rates(name, failure_type=BENEFICIAL)["deepseek-v3.2"] for name in ("flat", "fixed")] == [21, 35]


@pytest.mark.parametrize(("margin", "passing"), [(0.9, ["dynamic"]), (2, ["dynamic", "tree"]), (6, 3), (100, 3)])
def test_the_margin_decides(margin, passing):
    table = sm.published_noninferiority(margin)
    found = table[table["verdict"] != "not shown"]["arm"].tolist()
    assert found == passing or len(found) == passing


@pytest.mark.parametrize(
    ("arm", "baseline", "arm_wins", "baseline_wins"), [("dynamic", "fixed", 2, 0), ("dynamic", "flat", 6, 0)]
)
def test_known_dominance(arm, baseline, arm_wins, baseline_wins):
    table = published_dominance().query("arm == @arm and baseline == @baseline")
    counts = table["dominates"].value_counts()
    assert (counts.get(arm, 0), counts.get(baseline, 0), len(table)) == (arm_wins, baseline_wins, 7)
    for row in table.to_dict("records"):
        pairs = [[rates(n, failure_type=kind)[row["model"]] for kind in (LEAKAGE, BENEFICIAL)] for n in (arm, baseline)]
        better = [all(a <= b for a, b in zip(*order, strict=True)) and order[0] != order[1]
                  for order in (pairs, pairs[::-1])]  # fmt: skip
        assert row["dominates"] == (arm if better[0] else baseline if better[1] else "neither")


def test_an_instruction_leaks_less_on_average_and_is_not_distinguishable():
    table = sm.published_contrast(("flat", "rubric_informed"), ("dynamic", "standard"))
    leaks, uses = row_of(table, failure_type=LEAKAGE), row_of(table, failure_type=BENEFICIAL)
    assert [round(100 * rate, 1) for rate in (leaks["rate_arm"], uses["rate_arm"])] == [42.6, 22.0]
    assert [round(100 * rate, 1) for rate in (leaks["rate_baseline"], uses["rate_baseline"])] == [47.4, 20.7]
    for row, kind in ((leaks, LEAKAGE), (uses, BENEFICIAL)):
        same_as_scipy(row, rates("flat", "rubric_informed", kind) - rates("dynamic", "standard", kind))
    assert leaks["difference_pp"] < 0 < leaks["high_pp"]


def test_known_sycophancy_off_the_ceiling():
    row = row_of(published_differences("restrictive", SYCOPHANCY), arm="dynamic", baseline="flat")
    stated(row, 0.4, t_p=".76")
    assert round(100 * row["rate_baseline"], 1) == 84.6 == round(rates("flat", "restrictive", SYCOPHANCY).mean(), 1)


# ------------------------------------------------------------------------------------------------- refusals and words


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sm.published_differences("strict"), "defence must be one of .*'gepa'.*got 'strict'"),
        (lambda: sm.published_differences(failure_type="leak"), "failure_type must be one of .*got 'leak'"),
        (lambda: sm.published_conditional_effects("tree"), r"structure must be .*\['dynamic', 'fixed'\], got 'tree'"),
        (lambda: sm.published_interactions("flat"), "got 'flat'"),
        (lambda: sm.published_interactions(failure_type="leak"), "failure_type must be one of .*got 'leak'"),
        (lambda: sm.published_contrast("flat"), "arm must be a pair such as"),
        (lambda: sm.published_contrast(("rag", "standard")), "structure must be one of .*got 'rag'"),
        (lambda: sm.published_contrast(("tree", "gepa")), "No published failure rates of 'tree' under 'gepa'"),
        (lambda: sm.published_noninferiority(0), "margin_pp must be a number of percentage points"),
        (lambda: sm.published_dominance("strict"), "defence must be one of"),
    ],
)  # fmt: skip
def test_what_was_not_published_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_reading_says_what_holds_and_what_does_not(capsys):
    sm.published_reading()
    text = capsys.readouterr().out
    for said in (
        "dynamic −8.8 pp [−12.8, −4.7], 7 of 7 models down, p 0.002, Holm 0.005: lower",
        "fixed −5.9 pp [−11.2, −0.7], 6 of 7 models down, p 0.033, Holm 0.063: not shown once 3",
        "dynamic against tree −4.7 pp [−9.1, −0.3], 5 of 7 models down, p 0.040, Holm 0.119: not shown",
        "so there is no support for a claim about depth",
        "gepa −3.8 pp [−6.8, −0.7], 6 of 7 models down, p 0.023: complementary",
        "in pp: sub-additive for permissive, restrictive, rubric_informed; not shown for gepa",
        "fixed +1.1 pp, bound +5.8 pp (worst in deepseek-v3.2, +14.0 pp): not shown to be maintained",
        "dynamic dominates fixed in 2 of 7, fixed dominates dynamic in none",
        "leakage 42.6 % against 47.4 %: −4.9 pp [−15.3, +5.6], 4 of 7 models down, p 0.299: not distinguishable",
        "off its ceiling (84.6 %)",
        "dynamic +0.4 pp [−2.9, +3.7], 3 of 7 models down, p 0.760: not distinguishable",
    ):
        assert said in text
    assert text.count("complementary") == 1 and "consistent" not in text
    maintained = [line.split()[0] for line in text.splitlines() if line.endswith(": maintained")]
    assert maintained == ["dynamic", "tree"]


@pytest.mark.parametrize("margin", [1.2, 6])
def test_the_reading_follows_the_margin(margin, capsys):
    sm.published_reading(margin)
    lines = capsys.readouterr().out.splitlines()
    assert f"at most {margin:g} pp above flat" in "".join(lines)
    assert sum(line.endswith(": maintained") for line in lines) == {1.2: 2, 6: 3}[margin]
