"""Ordinal differences against brute force over pairs of answers, scipy, and hand-worked tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_stats import echoed, frames, rows

import structmem.intervals as iv
from structmem.errors import InputError
from structmem.ordinal import ordinal_differences
from structmem.ordinal_words import effect_words, ends_words, ordinal_reading, sycophancy_reading
from structmem.published import published_reductions
from structmem.stats import paired_differences
from structmem.tables import show

GOOD = {"failure_type": "beneficial_memory_usage"}


def two(flat, fixed, **settings):
    return frames(
        rows({f"e{i}": one for i, one in enumerate(flat)}, **settings),
        rows({f"e{i}": one for i, one in enumerate(fixed)}, structure="fixed", structurer="x/y", **settings),
    )


def brute(flat, fixed, bad=1):
    """Probability that an answer of fixed is better than one of flat for the same entry, ties half, pair by pair."""
    found = []
    for base, arm in zip(flat, fixed, strict=True):
        pairs = list(itertools.product(arm, base))
        found.append(sum(1 if bad * (b - a) > 0 else 0.5 if a == b else 0 for a, b in pairs) / len(pairs))
    return found


def test_a_table_by_hand():
    # Worst scores 5→4, 5→5, 3→1, 2→4: two better, one worse, one the same; failing entries 3 of 4 in both arms but not
    # the same ones: e2 is helped, e3 harmed.
    flat, fixed = [[5, 5], [5, 4], [3, 1], [2, 2]], [[4, 4], [5, 5], [1, 1], [4, 1]]
    row = ordinal_differences(two(flat, fixed)).iloc[0]
    assert (row["n_better"], row["n_worse"], row["n_same"], row["n_entries"]) == (2, 1, 1, 4)
    assert row["mean_score_baseline"] == pytest.approx(np.mean(flat))
    assert row["mean_score_difference"] == pytest.approx((-1 + 0.5 - 1 + 0.5) / 4)
    # By hand per entry: 1; (0 wins, 2 ties of 4) 1/4; (2 wins, 2 ties) 3/4; (2 wins, 2 losses) 1/2.
    assert brute(flat, fixed) == [1, 0.25, 0.75, 0.5]
    assert row["superiority"] == pytest.approx(2.5 / 4)
    assert row["net_better_pp"] == pytest.approx(25)
    assert row["sign_p"] == pytest.approx(1.0) and row["test"] == "sign test, exact"
    assert row["difference_pp"] == 0 and row["rate_baseline"] == row["rate_arm"] == 0.75
    assert [row[f"{side}_{end}_share"] for side in ("baseline", "arm") for end in ("lowest", "highest")] == [
        0, 0.5, 0.25, 0.25,
    ]  # fmt: skip


@given(
    st.integers(2, 9).flatmap(
        lambda n: st.tuples(
            *2 * [st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=2), min_size=n, max_size=n)]
        )
    ),
    st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_superiority_is_brute_force_over_pairs_and_its_interval_a_t_interval(both, high_is_bad):
    flat, fixed = both
    bad = 1 if high_is_bad else -1
    row = ordinal_differences(two(flat, fixed, **({} if high_is_bad else GOOD))).iloc[0]
    found = np.array(brute(flat, fixed, bad))
    assert row["superiority"] == pytest.approx(found.mean())
    if np.ptp(found) > 0:
        low, high = stats.ttest_1samp(found, 0).confidence_interval(0.95)
        assert (row["superiority_low"], row["superiority_high"]) == pytest.approx((max(low, 0), min(high, 1)))
    else:
        assert math.isnan(row["superiority_low"])
    moves = np.sign(bad * (np.max(flat, axis=1) - np.max(fixed, axis=1)))
    assert (row["n_better"], row["n_worse"]) == ((moves > 0).sum(), (moves < 0).sum())
    assert row["net_better_pp"] == pytest.approx(100 * moves.mean())
    tango = iv.tango(int(row["n_better"]), int(row["n_worse"]), len(flat))
    assert (row["net_better_low_pp"], row["net_better_high_pp"]) == pytest.approx(tuple(100 * end for end in tango))
    moved = int((moves != 0).sum())
    expected = stats.binomtest(int((moves > 0).sum()), moved).pvalue if moved else 1.0
    assert row["sign_p"] == pytest.approx(expected)


@given(st.lists(st.tuples(*4 * [st.integers(1, 5)]), min_size=3, max_size=9))
@settings(max_examples=3, deadline=None)
def test_arms_mirror_and_no_monotone_change_of_the_scale_matters(scores):
    flat, fixed = [list(one[:2]) for one in scores], [list(one[2:]) for one in scores]
    row, turned = (ordinal_differences(one).iloc[0] for one in (two(flat, fixed), two(fixed, flat)))
    assert row["superiority"] == pytest.approx(1 - turned["superiority"])
    assert row["net_better_pp"] == pytest.approx(-turned["net_better_pp"])
    assert row["sign_p"] == pytest.approx(turned["sign_p"])
    stretched = {1: 1, 2: 3, 3: 5, 4: 8, 5: 9}  # on a longer scale; what counts is the order
    other = two(*([[stretched[value] for value in one] for one in arm] for arm in (flat, fixed)),
                failure_type="own", scale_low=1, scale_high=9, high_is_bad=True)  # fmt: skip
    assert ordinal_differences(other).iloc[0]["superiority"] == pytest.approx(row["superiority"])


def test_the_rate_is_that_of_paired_differences():
    rng = np.random.default_rng(4)
    results = two(rng.integers(1, 6, (30, 3)).tolist(), rng.integers(1, 6, (30, 3)).tolist())
    mine, theirs = ordinal_differences(results).iloc[0], paired_differences(results).iloc[0]
    for column in ("rate_baseline", "rate_arm", "difference_pp", "low_pp", "high_pp", "mean_score_difference"):
        assert mine[column] == pytest.approx(theirs[column]), column
    gaps = results.groupby(["structure", "entry_id"])["score"].mean().unstack(0)
    low, high = stats.ttest_1samp(gaps["fixed"] - gaps["flat"], 0).confidence_interval(0.95)
    assert (mine["mean_score_low"], mine["mean_score_high"]) == pytest.approx((low, high))


def test_off_the_threshold_scores_move_though_no_rate_does():
    # Every entry fails in both arms; all of fixed score 4 where flat scores 5.
    results = two([[5]] * 12, [[4]] * 9 + [[5]] * 3)
    row = ordinal_differences(results).iloc[0]
    assert row["difference_pp"] == 0 and row["n_better"] == 9
    assert row["reading"] == "better (lower scores)" and row["sign_p"] == pytest.approx(2 * 0.5**9)
    assert "ceiling: 100 % of the entries of flat score 5, nothing is worse" in row["ends"]


def test_models_weigh_the_same_whatever_their_runs(capsys):
    # Model m: two runs, all better; model n: one run, all worse. The mean over models is no effect.
    flat, low = [[4]] * 6, [[2]] * 6
    results = frames(
        two(flat, low), two(flat, low, replicate=1), two(low, flat, model="n").assign(served_model="m-1")
    )  # fmt: skip
    table = ordinal_differences(results)
    fixed = table[table["structure"] == "fixed"] if "structure" in table else table[table["arm"] == "fixed"]
    by_model = fixed.set_index("model")
    assert by_model.loc["m", "superiority"] == 1 and by_model.loc["n", "superiority"] == 0
    assert by_model.loc["m", "n_runs"] == 2 and by_model.loc["m", "n_better"] == 12
    over = fixed[fixed["model"] == "all models"].set_index("estimand")
    assert set(over.index) == {"these models, new entries", "new models"}
    assert (over["superiority"] == 0.5).all() and (over["net_better_pp"] == 0).all()
    assert (over["n_models"] == 2).all() and over["mean_score_difference"].tolist() == [0, 0]
    assert "sign flips of entries" in over.loc["these models, new entries", "test"]
    assert math.isnan(over.loc["new models", "sign_p"])
    ordinal_reading(table)
    said = capsys.readouterr().out
    assert "12 better, 0 worse, 0 the same, an entry counted in each of 2 runs" in said and "12 entries" not in said


def test_sign_flips_over_runs_are_exact_against_enumeration():
    rng = np.random.default_rng(2)
    scores = rng.integers(1, 6, (2, 2, 7, 1)).tolist()
    results = frames(*(two(*one, replicate=replicate) for replicate, one in enumerate(scores)))
    row = ordinal_differences(results).query("arm == 'fixed'").iloc[0]
    moves = np.sign(np.array(scores)[:, 0, :, 0] - np.array(scores)[:, 1, :, 0]).mean(axis=0)
    flips = np.array(list(itertools.product([1, -1], repeat=7))) @ moves
    assert row["sign_p"] == pytest.approx(np.mean(np.abs(flips) >= abs(moves.sum()) - 1e-9))
    assert row["net_better_pp"] == pytest.approx(100 * moves.mean())


def test_only_entries_complete_in_both_arms_count():
    results = two([[5, 5], [5, None], [1, 1]], [[1, 1], [1, 1], [None, 2]])
    row = ordinal_differences(results).iloc[0]
    assert (row["n_entries"], row["n_better"], row["superiority"]) == (1, 1, 1.0)
    assert row["reading"] == "no interval" and row["reason"] == ""


def test_without_scores_the_reason_is_said_and_nothing_is_made_up(capsys):
    base, arm = echoed([0, 1], [0.1, 0.9]), echoed([0, 1], [0.1, 0.9]).assign(structure="fixed")
    table = ordinal_differences(frames(base, arm))
    assert len(table) == 1 and table["superiority"].isna().all() and table["n_entries"].tolist() == [0]
    assert table["reason"].iloc[0].startswith("no ordinal scores: the echo measure")
    assert "no ordinal scores: the echo measure" in str(show(table))
    ordinal_reading(table)
    assert capsys.readouterr().out.startswith("No ordinal scores: the echo measure sees words")
    lost = ordinal_differences(two([[None]], [[None]]))
    assert lost["reason"].iloc[0] == ("no ordinal scores: no entry is complete in both arms; no_verdict: truncated 2")


def test_a_reading_says_scores_first_and_the_rate_last(capsys):
    flat, fixed = [[5]] * 12, [[4]] * 9 + [[5]] * 3
    ordinal_reading(ordinal_differences(two(flat, fixed, defence="restrictive")))
    said = capsys.readouterr().out
    assert "m, fixed (12 entries, K 1): better (lower scores)." in said
    assert "better in 88 % [73, 100] of pairs, ties half; mean score −0.75 [−1.04, −0.46]" in said
    assert said.index("9 entries better, 0 worse, 3 the same") < said.index("the rate 0.0 pp")
    assert "At the highest score 100 % of entries, 25 % with fixed; at the lowest 0 % and 0 %." in said
    ordinal_reading(ordinal_differences(rows({"a": [1]})))
    assert "No arm has a baseline" in capsys.readouterr().out


def test_the_direction_is_that_of_the_failure_type():
    # Beneficial entries: a higher score is better, and flat at the top leaves nothing to gain.
    row = ordinal_differences(two([[3]] * 10, [[1]] * 8 + [[3]] * 2, **GOOD)).iloc[0]
    assert row["n_worse"] == 8 and row["reading"] == "worse (lower scores)" and row["difference_pp"] == 80
    assert "ceiling: 100 % of the entries of flat score 3, nothing is better" in row["ends"]


@pytest.mark.parametrize(
    ("low", "high", "p", "superiority", "bad", "expected"),
    [
        (0.6, 0.8, 0.01, 0.7, 1, "better (lower scores)"),
        (0.6, 0.8, 0.01, 0.7, -1, "better (higher scores)"),
        (0.2, 0.4, 0.01, 0.3, 1, "worse (higher scores)"),
        (0.4, 0.6, 0.01, 0.55, 1, "not distinguishable from the baseline by score"),
        (0.51, 0.8, 0.2, 0.7, 1, "at the edge: single answers are better (lower scores), the sign test"),
        (math.nan, math.nan, 1.0, 0.5, 1, "as many answers score better as worse, and no interval"),
    ],
)
def test_words_of_effects(low, high, p, superiority, bad, expected):
    row = {"superiority": superiority, "superiority_low": low, "superiority_high": high, "sign_p": p, "bad": bad}
    assert effect_words(row).startswith(expected)


def test_no_words_where_there_is_room():
    shares = {f"{side}_{end}_share": 0.5 for side in ("baseline", "arm") for end in ("lowest", "highest")}
    assert ends_words(shares, (1, 5), 1, "flat", "fixed") == ""


def test_bad_results_are_refused():
    results = two([[5]], [[4]])
    with pytest.raises(InputError, match="baseline must be one of"):
        ordinal_differences(results, "nothing")
    with pytest.raises(InputError, match="share their key"):
        ordinal_differences(frames(results, results))
    with pytest.raises(InputError, match="scale of failure type 'own'"):
        ordinal_differences(two([[5]], [[4]], failure_type="own"))
    assert len(ordinal_differences(results.iloc[:0])) == 0
    assert (ordinal_differences(results)["analysis"] == "exploratory").all()


def test_the_sycophancy_reading_puts_ones_own_scores_before_the_published_rates(capsys):
    published = pd.concat([published_reductions(name, "sycophancy") for name in ("standard", "restrictive")])
    arm = echoed([0, 1], [0.1, 0.9]).assign(structure="self_check", n_shown=3, n_memories=10)
    sycophancy_reading(ordinal_differences(frames(echoed([0, 1], [0.1, 0.9]), arm)), published)
    said = capsys.readouterr().out
    assert "self_check: changes the information: shows 30 % of the memories." in said
    over = published[published["model"] == "all models"].set_index(["defence", "structure"])
    for defence in ("standard", "restrictive"):
        assert f"Published, {defence}: flat fails {100 * over.loc[(defence, 'fixed'), 'rate_baseline']:.1f} %" in said
    assert said.count("not shown") == int(((over["low_pp"] <= 0) & (over["high_pp"] >= 0)).sum()) == 4
    assert "6 of 7 models at 95 % or more" in said and said.index("No ordinal scores") < said.index("Published")
