"""Three-factor interactions, recomputed by pandas cell by cell, and what cannot be estimated."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_stats import frames, rows

from structmem.errors import InputError
from structmem.interactions import conditional_effects
from structmem.three_factors import three_factor_interactions

STRUCTURES, RENDERERS, PLACEMENTS = ("flat", "fixed"), ("markdown", "xml", "bullets"), ("system", "user")


def crossed(n=24, seed=1, model="m", planted=None):
    """Scores of all cells; ``planted`` adds to the latent score of one (structure, renderer, placement)."""
    rng = np.random.default_rng(seed)
    hard = rng.standard_normal(n)
    parts = []
    for cell in itertools.product(STRUCTURES, RENDERERS, PLACEMENTS):
        latent = 3 + hard + 0.6 * rng.standard_normal(n) + (planted or {}).get(cell, 0.0)
        scores = np.clip(np.round(latent), 1, 5)
        named = dict(zip(("structure", "renderer", "placement"), cell, strict=True))
        parts.append(rows({f"e{i}": [score] for i, score in enumerate(scores)}, model=model, **named))
    return frames(*parts)


RESULTS = crossed()


def wide(results, value, model="m"):
    mine = results[results["model"] == model]
    mine = mine.assign(value=mine["score"] if value == "score" else 100.0 * (mine["score"] >= 3))
    return mine.pivot(index="entry_id", columns=["structure", "renderer", "placement"], values="value").dropna()


def by_hand(cells, renderer, placement="user", renderer_0="markdown", placement_0="system"):
    def d(a, b):
        return cells["fixed", a, b] - cells["flat", a, b]

    return (d(renderer, placement) - d(renderer_0, placement)) - (d(renderer, placement_0) - d(renderer_0, placement_0))


def pick(table, renderer, model="m", estimand="these models, new entries"):
    found = table.query("renderer == @renderer and model == @model and estimand == @estimand")
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize("renderer", ["xml", "bullets"])
def test_it_is_the_difference_of_differences_of_differences(renderer):
    row = pick(three_factor_interactions(RESULTS, draws=200), renderer)
    for value, names in (
        ("rate", ("difference_pp", "low_pp", "high_pp")),
        ("score", ("mean_score_difference", "mean_score_low", "mean_score_high")),
    ):
        expected = by_hand(wide(RESULTS, value), renderer)
        interval = stats.ttest_1samp(expected, 0).confidence_interval(0.95)
        assert tuple(row[list(names)]) == pytest.approx((expected.mean(), *interval))
    assert row["n_entries"] == 24 and row["placement"] == "user" and row["analysis"] == "exploratory"


def test_a_warning_of_any_cell_is_kept():
    other = RESULTS["renderer"].eq("markdown") & RESULTS["placement"].eq("system") & RESULTS["structure"].eq("flat")
    results = RESULTS.assign(served_model=np.where(other, "m-1", "m-2"))
    assert pick(three_factor_interactions(results, draws=200), "xml")["warning"] != ""


def test_it_is_the_difference_of_two_two_factor_interactions_either_way():
    row = pick(three_factor_interactions(RESULTS, draws=200), "xml")
    for factor, other, level in (("renderer", "placement", "xml"), ("placement", "renderer", "user")):
        table = conditional_effects(RESULTS, factor=factor, draws=200).query("model == 'm' and effect == 'interaction'")
        table = table[table[factor] == level].set_index(other)
        there, before = ("user", "system") if other == "placement" else ("xml", "markdown")
        for name in ("difference_pp", "mean_score_difference"):
            assert row[name] == pytest.approx(table.loc[there, name] - table.loc[before, name])


def test_planted_interactions_are_found_and_absent_ones_are_not():
    found = three_factor_interactions(crossed(120, 3, planted={("fixed", "xml", "user"): -1.5}), draws=200)
    assert pick(found, "xml")["mean_score_high"] < 0 and pick(found, "xml")["high_pp"] < 0
    bullets = pick(found, "bullets")
    assert bullets["mean_score_low"] < 0 < bullets["mean_score_high"]


def test_over_models_each_weighs_the_same():
    results = frames(crossed(), crossed(seed=2, model="n"))
    table = three_factor_interactions(results, draws=4000, seed=3)
    each = [by_hand(wide(results, "rate", model), "xml") for model in "mn"]
    row = pick(table, "xml", "all models")
    assert row["difference_pp"] == pytest.approx(np.mean([one.mean() for one in each]))
    error = (sum(each) / 2).std(ddof=1) / math.sqrt(24)
    assert (row["high_pp"] - row["low_pp"]) / 2 == pytest.approx(2.07 * error, rel=0.1)
    scores = [by_hand(wide(results, "score", model), "xml") for model in "mn"]
    expected = stats.ttest_1samp(sum(scores) / 2, 0).confidence_interval(0.95)
    assert (row["mean_score_low"], row["mean_score_high"]) == pytest.approx(tuple(expected))
    new = pick(table, "xml", "all models", "new models")
    interval = stats.ttest_1samp([one.mean() for one in scores], 0).confidence_interval(0.95)
    assert (new["mean_score_low"], new["mean_score_high"]) == pytest.approx(tuple(interval))


def test_only_entries_complete_in_all_eight_cells_count():
    results = RESULTS.copy()
    gone = results["renderer"].eq("xml") & results["placement"].eq("system") & results["entry_id"].isin(["e0", "e1"])
    results.loc[gone, "score"] = np.nan
    results.loc[gone, ["status", "status_reason"]] = ["no_verdict", "truncated"]
    table = three_factor_interactions(results, draws=200)
    kept = wide(RESULTS, "score").drop(index=["e0", "e1"])
    assert pick(table, "xml")["n_entries"] == 22
    assert pick(table, "xml")["mean_score_difference"] == pytest.approx(by_hand(kept, "xml").mean())
    assert pick(table, "bullets")["n_entries"] == 24


def test_what_is_not_there_is_said():
    without = RESULTS[~(RESULTS["renderer"].eq("xml") & RESULTS["placement"].eq("system"))]
    row = pick(three_factor_interactions(without, draws=200), "xml")
    assert row["remark"] == "no such arm under xml, system" and math.isnan(row["difference_pp"])
    assert row["interval"].startswith("not available") and row["mean_score_interval"].startswith("not available")
    assert len(three_factor_interactions(RESULTS.query("placement == 'system'"), draws=200)) == 0
    assert len(three_factor_interactions(RESULTS.iloc[:0], draws=200)) == 0
    one = three_factor_interactions(RESULTS.query("entry_id == 'e0'"), draws=200)
    assert one["interval"].str.startswith("not available").all()


def test_other_references_turn_signs():
    table = three_factor_interactions(RESULTS, references={"renderer": "xml", "placement": "user"}, draws=200)
    row = table.query("renderer == 'markdown' and model == 'm' and placement == 'system'").iloc[0]
    assert row["difference_pp"] == pytest.approx(
        pick(three_factor_interactions(RESULTS, draws=200), "xml")["difference_pp"]
    )
    assert row["reference"] == "xml, user"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"factors": ("renderer",)}, "two different ones"),
        ({"factors": ("renderer", "renderer")}, "two different ones"),
        ({"factors": ("renderer", "colour")}, "factor must be one of .*got 'colour'"),
        ({"references": {"renderer": "inline"}}, "reference must be one of .*got 'inline'"),
        ({"factors": ("renderer", "system_prompt")}, "system_prompt"),
        ({"draws": 3}, "draws must be"),
    ],
)
def test_refusals(wrong, words):
    with pytest.raises(InputError, match=words):
        three_factor_interactions(RESULTS, **wrong)


def test_doubled_rows_are_refused():
    with pytest.raises(InputError, match="share their key"):
        three_factor_interactions(pd.concat([RESULTS, RESULTS.head(1)]))
