"""Layout effects by regression, against paired differences, dummies for every entry, and planted effects."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats
from test_stats import frames, rows

from structmem.adjusting import COVARIATES, _fit, layout_effects
from structmem.errors import InputError

STRUCTURES, RENDERERS, PLACEMENTS = ("flat", "fixed"), ("markdown", "xml"), ("system", "user")
TOKENS, POSITION, LENGTH = (COVARIATES[name].words for name in ("tokens_added", "position", "answer_length"))


def crossed(n=30, seed=1, model="m", effect=0.0, per_token=0.0, per_word=0.0, per_position=0.0, generations=1):
    """Echo-judged answers: the overlap is made of an effect of fixed, and of tokens, words and position."""
    rng = np.random.default_rng(seed)
    hard, base = 0.02 * rng.standard_normal(n), rng.integers(100, 300, n)
    added, places = rng.integers(10, 60, n), rng.random((n, 2))
    parts = []
    for structure, renderer, placement in itertools.product(STRUCTURES, RENDERERS, PLACEMENTS):
        arm = rows({f"e{i}": [0.0] * generations for i in range(n)}, structure=structure, renderer=renderer,
                   placement=placement, model=model, judge="echo", echo_threshold=0.5, score=math.nan)  # fmt: skip
        entry = np.repeat(np.arange(n), generations)
        extra = np.where(structure == "fixed", added[entry], 0) + 5 * (renderer == "xml")
        words = rng.integers(20, 90, len(arm))
        where = places[entry, int(structure == "fixed")]
        overlap = 0.3 + hard[entry] + 0.03 * rng.standard_normal(len(arm)) + effect * (structure == "fixed")
        overlap = overlap + per_token * extra + per_word * words + per_position * where
        parts.append(arm.assign(
            echo_overlap=overlap, echoed=overlap >= 0.5, context_tokens=base[entry] + extra,
            response=[" ".join(["word"] * count) for count in words],
        ))  # fmt: skip
    return frames(*parts), pd.DataFrame(
        {"entry_id": f"e{i}", "structure": s, "mean_position": places[i, k]}
        for i in range(n) for k, s in enumerate(STRUCTURES)
    )  # fmt: skip


RESULTS, POSITIONS = crossed()


def pick(table, term, model="m"):
    found = table[(table["term"] == term) & (table["model"] == model)]
    assert len(found) == 1
    return found.iloc[0]


def cell_means(results):
    return results.pivot_table(
        index="entry_id", columns=["structure", "renderer", "placement"], values="echo_overlap", aggfunc="mean"
    )


def test_unadjusted_coefficients_are_the_paired_differences():
    table, wide = layout_effects(RESULTS), cell_means(RESULTS)
    fixed = wide["fixed", "markdown", "system"] - wide["flat", "markdown", "system"]
    in_xml = wide["fixed", "xml", "system"] - wide["flat", "xml", "system"]
    in_user = wide["fixed", "markdown", "user"] - wide["flat", "markdown", "user"]
    in_both = wide["fixed", "xml", "user"] - wide["flat", "xml", "user"]
    for term, gap in (
        ("fixed", fixed),
        ("fixed × renderer xml", in_xml - fixed),
        ("fixed × placement user", in_user - fixed),
        ("fixed × renderer xml × placement user", in_both - in_xml - in_user + fixed),
        ("renderer xml", wide["flat", "xml", "system"] - wide["flat", "markdown", "system"]),
    ):
        row = pick(table, term)
        assert row["unadjusted"] == pytest.approx(gap.mean()), term
        expected = stats.ttest_1samp(gap, 0).confidence_interval(0.95)
        assert (row["unadjusted_low"], row["unadjusted_high"]) == pytest.approx(tuple(expected)), term
    assert table["kind"].tolist() == ["layout"] * 7 + ["covariate"] and (table["analysis"] == "exploratory").all()


def test_adjusted_coefficients_are_those_with_a_dummy_for_every_entry():
    table = layout_effects(RESULTS, ["tokens_added", "position", "answer_length"], POSITIONS)
    data = RESULTS.merge(POSITIONS, on=["entry_id", "structure"])
    flat = data[data["structure"] == "flat"].set_index(["entry_id", "renderer", "placement"])["context_tokens"]
    data = data.join(flat.rename("flat"), on=["entry_id", "renderer", "placement"])
    data["tokens"] = (data["context_tokens"] - data["flat"]) / 100
    data["words"] = data["response"].str.split().str.len() / 100
    data = data.assign(
        s=1.0 * (data["structure"] == "fixed"),
        r=1.0 * (data["renderer"] == "xml"),
        p=1.0 * (data["placement"] == "user"),
    )
    fit = smf.ols("echo_overlap ~ s * r * p + tokens + mean_position + words + C(entry_id)", data).fit()
    for term, name in (
        ("fixed", "s"), ("renderer xml", "r"), ("fixed × renderer xml × placement user", "s:r:p"), (TOKENS, "tokens"),
        (POSITION, "mean_position"), (LENGTH, "words"),
    ):  # fmt: skip
        assert pick(table, term)["adjusted"] == pytest.approx(fit.params[name]), term
    fixed = pick(table, "fixed")
    assert fixed["change"] == pytest.approx(fixed["adjusted"] - fixed["unadjusted"])
    assert math.isnan(pick(table, LENGTH)["unadjusted"]) and pick(table, LENGTH)["remark"].startswith("a mediator")
    assert fixed["adjusted_for"] == "tokens_added, position, answer_length" and fixed["n_rows"] == 240


def test_a_planted_effect_is_told_from_one_that_goes_through_a_covariate():
    direct, _ = crossed(120, 5, effect=-0.1)
    table = layout_effects(direct)
    assert pick(table, "fixed")["unadjusted_high"] < -0.05 and pick(table, "fixed")["adjusted_high"] < 0
    through, _ = crossed(120, 6, per_token=0.003)
    table = layout_effects(through)
    assert pick(table, "fixed")["unadjusted_low"] > 0.05
    assert pick(table, "fixed")["adjusted_low"] < 0 < pick(table, "fixed")["adjusted_high"]
    assert pick(table, TOKENS)["adjusted_low"] < 0.3 < pick(table, TOKENS)["adjusted_high"]
    moved, positions = crossed(120, 7, per_position=0.2)
    row = pick(layout_effects(moved, "position", positions), POSITION)
    assert row["adjusted_low"] < 0.2 < row["adjusted_high"] and row["adjusted_low"] > 0.1


def test_intervals_cover_as_they_say():
    rng, n, inside = np.random.default_rng(4), 20, []
    used = pd.DataFrame({"entry_id": np.repeat(np.arange(n), 6), "model": "m"})
    fixed = np.tile([0.0, 1.0], 3 * n)
    for _ in range(150):
        added = fixed * np.repeat(rng.normal(1, 0.5, n), 6)
        mine = np.repeat(rng.standard_normal(n), 6) + fixed * np.repeat(rng.standard_normal(n), 6)  # heterogeneous
        found, why = _fit(used.assign(_y=0.3 * fixed + 0.5 * added + mine + rng.standard_normal(6 * n)), {
            "fixed": fixed, "added": added
        })  # fmt: skip
        assert not why
        inside.append([found["fixed"][1] <= 0.3 <= found["fixed"][2], found["added"][1] <= 0.5 <= found["added"][2]])
    assert (np.mean(inside, axis=0) >= 0.87).all()  # 150 fits: three standard errors below .95 lie at .90


def test_intervals_are_a_jackknife_over_entries():
    some = RESULTS[RESULTS["entry_id"].isin([f"e{i}" for i in range(8)])]
    whole = layout_effects(some).set_index("term")
    without = pd.concat(
        [layout_effects(some[some["entry_id"] != f"e{i}"]).set_index("term")["adjusted"] for i in range(8)], axis=1
    )
    apart = without.sub(whole["adjusted"], axis=0)
    half = stats.t.ppf(0.975, 7) * np.sqrt(7 / 8 * (apart**2).sum(axis=1))
    assert (whole["adjusted_high"] - whole["adjusted"]).to_numpy() == pytest.approx(half.to_numpy())


def test_generations_of_an_entry_are_no_further_entries():
    results, _ = crossed(20, 3)
    again = frames(*(results.assign(generation=k) for k in range(3)))
    once, thrice = (pick(layout_effects(one, ()), "fixed") for one in (results, again))
    assert thrice["unadjusted"] == pytest.approx(once["unadjusted"]) and thrice["n_rows"] == 3 * once["n_rows"]
    width = [row["unadjusted_high"] - row["unadjusted_low"] for row in (once, thrice)]
    assert width[1] == pytest.approx(width[0])


def test_the_rate_is_a_linear_probability_model_in_pp():
    scores = frames(*(
        rows({f"e{i}": [score] for i, score in enumerate(values)}, structure=s)
        for s, values in (("flat", [5, 4, 3, 1, 2, 5]), ("fixed", [1, 4, 2, 1, 3, 1]))
    ))  # fmt: skip
    table = layout_effects(scores, (), factors=(), measure="rate")
    gap = 100 * np.array([-1, 0, -1, 0, 1, -1])
    assert table["term"].tolist() == ["fixed"] and "adjusted" not in table
    assert table["unadjusted_pp"].iloc[0] == pytest.approx(gap.mean()) and math.isnan(table["adjusted_pp"].iloc[0])
    assert table["adjusted_for"].iloc[0] == "nothing" and table["outcome"].iloc[0] == "failure"


def test_rows_that_are_left_out_are_counted_by_reason():
    results, positions = RESULTS.copy(), POSITIONS[~POSITIONS["entry_id"].isin(["e0", "e1"])]
    results.loc[results["entry_id"].eq("e2") & results["renderer"].eq("xml"), ["status", "status_reason"]] = [
        "no_response", "timeout"
    ]  # fmt: skip
    results.loc[results["entry_id"].eq("e3"), "response"] = None
    table = layout_effects(results, ["position", "answer_length"], positions)
    row = pick(table, "fixed")
    assert row["n_rows"] == 240 - 16 - 4 - 8 and row["n_entries"] == 27 and row["n_left_out"] == 28
    assert row["reasons"] == "no position 16, no answer length 8, no_response: timeout 4"
    # Both columns rest on the same rows.
    kept = results[~results["entry_id"].isin(["e0", "e1", "e3"])]
    assert row["unadjusted"] == pytest.approx(pick(layout_effects(kept, ()), "fixed")["unadjusted"])


def test_models_have_intercepts_of_their_own_and_share_entries():
    other = crossed(30, 2, "n")[0].assign(echo_overlap=lambda frame: frame["echo_overlap"] + 0.2)
    table = layout_effects(frames(RESULTS, other), ())
    both = pick(table, "fixed", "all models")
    assert both["unadjusted"] == pytest.approx(np.mean([pick(table, "fixed", m)["unadjusted"] for m in "mn"]))
    assert (both["n_entries"], both["n_rows"]) == (30, 480)
    assert list(dict.fromkeys(table["model"])) == ["m", "n", "all models"]


def test_other_settings_make_fits_of_their_own():
    table = layout_effects(frames(RESULTS, RESULTS.assign(defence="restrictive")), ())
    assert len(table.query("term == 'fixed'")) == 2 and set(table["defence"]) == {"standard", "restrictive"}
    one_cell = RESULTS.query("renderer == 'xml' and placement == 'user'")
    crossed_with = layout_effects(frames(one_cell, one_cell.assign(defence="restrictive")), (), factors=("defence",))
    assert crossed_with["term"].tolist()[:3] == ["fixed", "restrictive", "fixed × restrictive"]
    assert pick(crossed_with, "fixed × restrictive")["unadjusted"] == pytest.approx(0, abs=1e-12)


def test_what_cannot_be_estimated_is_said():
    alike = RESULTS.assign(context_tokens=np.where(RESULTS["structure"] == "fixed", 150, 100))
    row = pick(layout_effects(alike), TOKENS)
    assert math.isnan(row["adjusted"]) and "not identified: the other columns determine it" in row["remark"]
    holes = RESULTS[~(RESULTS["structure"].eq("fixed") & RESULTS["renderer"].eq("xml"))]
    row = pick(layout_effects(holes), "fixed × renderer xml")
    assert math.isnan(row["unadjusted"]) and "these levels were not crossed" in row["remark"]
    one = layout_effects(RESULTS.query("entry_id == 'e0'"), ())
    assert one["interval"].eq("not available: one entry").all() and one["unadjusted"].notna().all()
    alone = layout_effects(RESULTS.query("structure == 'flat' and placement == 'user'"), (), factors=("renderer",))
    assert alone["term"].tolist() == ["renderer xml"]
    same = layout_effects(RESULTS.assign(echo_overlap=0.25), ())
    assert same["interval"].eq("not available: no variation").all() and same["unadjusted"].abs().max() < 1e-12
    lost = RESULTS.assign(status="no_response", status_reason="timeout")
    nothing = layout_effects(lost, ())
    assert nothing["interval"].eq("not available: no rows").all() and (nothing["n_left_out"] == 240).all()
    assert len(layout_effects(RESULTS.iloc[:0])) == 0


def test_several_ways_of_sorting_are_not_taken_together_in_silence():
    results = RESULTS.assign(structurer=np.where(RESULTS["structure"] == "flat", "", "m"), taxonomy="")
    fixed = results["structure"] == "fixed"
    other = results[fixed].assign(structurer="n")
    table = layout_effects(frames(results, other))
    assert (table["remark"].str.contains("fixed: 2 structurers taken together")).all()
    assert not layout_effects(results)["remark"].str.contains("taken together").any()


def test_positions_of_what_nobody_sorts_are_found_whoever_sorts():
    results = RESULTS.assign(structurer="")
    named = POSITIONS.assign(structurer="m")
    assert (layout_effects(results, ["position"], named)["n_left_out"] == 0).all()
    other = results.assign(structurer=np.where(results["structure"] == "fixed", "n", ""))
    row = pick(layout_effects(other, ["position"], named), "fixed")
    assert row["n_left_out"] == (other["structurer"] == "n").sum()


def test_positions_are_those_of_the_first_draw():
    other = RESULTS[RESULTS["structure"] == "fixed"].assign(partition_draw=1)
    results = frames(RESULTS.assign(partition_draw=0), other)
    row = pick(layout_effects(results, ["position"], POSITIONS), "fixed")
    assert row["n_rows"] == len(RESULTS) and row["reasons"] == f"no position {len(other)}"
    both = pd.concat([POSITIONS.assign(partition_draw=draw) for draw in (0, 1)])
    assert pick(layout_effects(results, ["position"], both), "fixed")["n_left_out"] == 0


def test_a_structure_sorted_by_an_embedding_says_so():
    sorted_by = RESULTS.assign(structurer=np.where(RESULTS["structure"] == "fixed", "embedding", ""))
    assert layout_effects(sorted_by, ())["term"].iloc[0] == "fixed (embedding)"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"adjust_for": ["age"]}, "adjust_for must be one of .*got 'age'"),
        ({"adjust_for": "position"}, "needs positions="),
        ({"adjust_for": "position", "positions": pd.DataFrame({"entry_id": []})}, "positions lack the columns"),
        ({"adjust_for": "position", "positions": pd.concat([POSITIONS, POSITIONS])}, "hold an entry twice"),
        ({"factors": "colour"}, "factor must be one of .*got 'colour'"),
        ({"measure": "median"}, "measure must be one of .*got 'median'"),
        ({"baseline": "tree"}, "baseline must be one of .*got 'tree'"),
        ({"references": {"renderer": "inline"}}, "reference must be one of"),
        ({"outcome": "failure"}, "were judged by 'echo'"),
    ],
)
def test_refusals(wrong, words):
    with pytest.raises(InputError, match=words):
        layout_effects(RESULTS, **wrong)


def test_columns_that_are_needed_are_named():
    with pytest.raises(InputError, match="'context_tokens'"):
        layout_effects(RESULTS.drop(columns="context_tokens"))
    with pytest.raises(InputError, match="'response'"):
        layout_effects(RESULTS.drop(columns="response"), "answer_length")
    with pytest.raises(InputError, match="share their key"):
        layout_effects(frames(RESULTS, RESULTS.head(1)))


def test_contrasts_that_are_the_same_in_every_entry_have_no_interval():
    # A flat list reads the same under some renderers, so that both arms share their answers.
    same = RESULTS.copy()
    flat = same["structure"].eq("flat") & same["renderer"].eq("markdown")
    same.loc[same["structure"].eq("flat") & same["renderer"].eq("xml"), "echo_overlap"] = same.loc[
        flat, "echo_overlap"
    ].to_numpy()
    row = pick(layout_effects(same, ()), "renderer xml")
    assert row["unadjusted"] == 0 and math.isnan(row["unadjusted_low"])
    assert row["remark"] == "no interval: the same in every entry"
    assert not math.isnan(pick(layout_effects(same, ()), "fixed")["unadjusted_low"])
