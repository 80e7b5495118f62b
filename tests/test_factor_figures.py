"""Figures and sentences of factors: artists against the table, what is not available, and no claim beyond intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from test_figures import note_of, points, spans_of
from test_three_factors import crossed

from structmem import figures, house
from structmem.adjusting import COVARIATES
from structmem.errors import InputError
from structmem.factor_words import factor_reading
from structmem.factor_words import points as in_points
from structmem.interactions import conditional_effects
from structmem.three_factors import three_factor_interactions

RESULTS = crossed(16)
BY_RENDERER = conditional_effects(RESULTS, factor="renderer", draws=200)
EFFECTS = pd.concat([BY_RENDERER, three_factor_interactions(RESULTS, draws=200)], ignore_index=True)


def both_types():
    """Effects of two defences in both failure types."""
    table = conditional_effects(
        pd.concat(
            [
                crossed(16, seed).query("renderer == 'markdown' and placement == 'system'").assign(
                    defence=defence, failure_type=kind, threshold=3
                )
                for seed, (defence, kind) in enumerate(
                    (d, k) for d in ("standard", "restrictive") for k in ("cross_domain", "beneficial_memory_usage")
                )
            ]
        ).assign(score=lambda frame: np.minimum(frame["score"], 3), scale_high=3, scale_low=1, high_is_bad=True),
        draws=200,
    )  # fmt: skip
    return table


def test_the_forest_shows_every_row_on_both_scales():
    rate, score = figures.factor_forest(EFFECTS)
    shown = EFFECTS[EFFECTS["model"] != "all models"]
    for axes, value, low, high in (
        (rate, "difference_pp", "low_pp", "high_pp"),
        (score, "mean_score_difference", "mean_score_low", "mean_score_high"),
    ):
        drawn = sorted(line.get_xdata()[0] for line in points(axes))
        assert drawn == pytest.approx(sorted(shown[value]))
        spans = sorted(tuple(span) for span in spans_of(axes) if tuple(span) != (0, 0))
        assert np.array(spans) == pytest.approx(np.array(sorted(map(tuple, shown[[low, high]].to_numpy()))))
    hollow = [line.get_markerfacecolor() == "white" for line in points(score)]
    assert sum(hollow) == (shown["effect"] != "conditional effect").sum() == 6
    names = [label.get_text() for label in rate.get_yticklabels()]
    assert names[:3] == ["fixed: effects", "markdown, system", "markdown, user"]
    assert "xml − markdown, in user" in names and "xml × user, all three factors" in names
    assert "n = 16 entries" in note_of(rate) and "exploratory" in note_of(rate)
    assert "mean: 95 % intervals (t over entries)" in " ".join(note_of(rate).split())


def test_rows_without_an_interval_say_so_and_a_column_shows_scores():
    (axes,) = figures.factor_forest(BY_RENDERER.assign(mean_score_low=np.nan, mean_score_high=np.nan), width="column")
    assert [text.get_text() for text in axes.texts] == ["no interval"] * len(points(axes)) and not spans_of(axes)[1:]
    (axes,) = figures.factor_forest(BY_RENDERER.assign(mean_score_difference=np.nan), width="column")
    assert {text.get_text() for text in axes.texts} == {"not available"} and not points(axes)


def test_several_models_are_drawn_over_models():
    results = pd.concat([crossed(12), crossed(12, 2, "n")])
    table = conditional_effects(results, factor="renderer", draws=200)
    _, axes = figures.factor_forest(table)
    over = table[(table["model"] == "all models") & (table["unit"] == "entry")]
    assert sorted(line.get_xdata()[0] for line in points(axes)) == pytest.approx(sorted(over["mean_score_difference"]))


def test_the_trade_off_crosses_both_intervals():
    table = both_types()
    (axes,) = figures.factor_tradeoff(table)
    effects = table[(table["effect"] == "conditional effect") & (table["model"] != "all models")]
    wide = effects.set_index(["failure_type", "defence"])["difference_pp"]
    drawn = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in points(axes))
    expected = sorted(
        (wide["cross_domain", d], wide["beneficial_memory_usage", d]) for d in ("standard", "restrictive")
    )
    assert np.array(drawn) == pytest.approx(np.array(expected))
    legend = [text.get_text() for text in house.figure_of(axes).legends[0].get_texts()]
    assert legend == ["standard", "restrictive"] and "down and left is better" in note_of(axes)
    (scores,) = figures.factor_tradeoff(table.assign(outcome="echo"))
    (means,) = figures.factor_tradeoff(table, "score")
    assert note_of(means).count("up and left is better") == 1 and "echo" not in note_of(means)
    assert "up and left is better" in note_of(scores) and "mean echo overlap" in scores.get_xlabel()


def test_positions_are_drawn_a_line_per_entry():
    places = {"flat": [0.2, 0.9, 0.5], "fixed": [0.1, 0.3, 0.6]}
    table = pd.DataFrame(
        {"entry_id": f"e{i}", "structure": s, "structurer": "embedding", "mean_position": places[s][i]}
        for s in places for i in range(3)
    )  # fmt: skip
    axes = figures.labelled_positions(table)
    drawn = {line.get_marker(): sorted(line.get_xdata()) for line in points(axes)}
    assert drawn == {"o": sorted(places["flat"]), "s": sorted(places["fixed"])}
    flat = next(line for line in points(axes) if line.get_marker() == "o")
    assert list(flat.get_xdata()) == [0.2, 0.9, 0.5] and list(flat.get_ydata()) == [0, 2, 1]  # in the order of flat
    assert "n = 3 entries" in note_of(axes) and "fixed (embedding) 0.33" in house.figure_of(axes).alt_text
    nothing = figures.labelled_positions(table.assign(mean_position=np.nan))
    assert "none of 3 entries has a position" in note_of(nothing) and not points(nothing)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: figures.factor_forest(EFFECTS, "sycophancy"), "No sycophancy rows"),
        (lambda: figures.factor_forest(EFFECTS.drop(columns="mean_score_low")), "mean_score_low"),
        (lambda: figures.factor_tradeoff(EFFECTS), "No beneficial_memory_usage rows"),
        (lambda: figures.factor_tradeoff(both_types(), "median"), "scale must be one of"),
        (lambda: figures.factor_tradeoff(pd.concat([both_types(), both_types()])), "Several rows for one arm"),
        (lambda: figures.labelled_positions(EFFECTS), "lacks"),
        (lambda: figures.factor_forest(EFFECTS, width="wide"), "width must be one of"),
        (lambda: factor_reading(EFFECTS.drop(columns="mean_score_low")), "effects lack the columns"),
        (lambda: factor_reading([1]), "effects must be a DataFrame"),
    ],
)
def test_refusals(made, words):
    with pytest.raises(InputError, match=words):
        made()


# ------------------------------------------------------------------------------------------------------------- words


def read(capsys, *tables):
    factor_reading(*tables)
    return capsys.readouterr().out


def test_intervals_that_exclude_0_are_counted_and_named(capsys):
    shown = EFFECTS[EFFECTS["model"] != "all models"]
    said = read(capsys, EFFECTS)
    assert said.startswith("m, cross_domain: 16 entries, 1 answer for each.\n")
    for title, part in (("Effects against the baseline", "conditional effect"), ("Interactions", None)):
        rows = shown[shown["effect"].eq(part) if part else shown["effect"].ne("conditional effect")]
        found = rows[(rows["mean_score_low"] > 0) | (rows["mean_score_high"] < 0)]
        assert f"{title}, mean score: {len(found)} of {len(rows)} intervals exclude 0" in said
        for row in found.to_dict("records"):
            assert in_points(row["mean_score_difference"], row["mean_score_low"], row["mean_score_high"]) in said
    assert "An interval that holds 0 shows neither an interaction nor that there is none." in said


def test_the_smallest_interaction_that_would_be_found_is_2_8_standard_errors(capsys):
    one = BY_RENDERER.query("effect == 'interaction' and model == 'm' and renderer == 'xml' and placement == 'system'")
    half = (one["mean_score_high"] - one["mean_score_low"]).iloc[0] / 2
    least = 2.8016 * half / 2.1314  # t of 15 degrees of freedom
    assert f"An interaction of about {least:.3f} in the mean score" in read(capsys, one)


def test_no_effects_and_no_intervals_are_said(capsys):
    assert "No arm has a baseline" in read(capsys, EFFECTS.iloc[:0])
    none = BY_RENDERER.assign(low_pp=np.nan, high_pp=np.nan, mean_score_low=np.nan, mean_score_high=np.nan)
    said = read(capsys, none)
    assert said.count("no interval in") == 4 and "nan" not in said


def test_both_failure_types_are_read_together(capsys):
    table = both_types().assign(mean_score_high=-0.1, mean_score_low=-0.3)
    said = read(capsys, table)
    assert "The mean score is shown to be lower in 2 of 2 comparisons in cross_domain entries, where lower is" in said
    assert "and in 2 of 2 in beneficial ones, where it is worse." in said


def test_shifts_and_adjusted_coefficients_are_read(capsys):
    shifts = pd.DataFrame({
        "structure": ["flat", "fixed"], "structurer": ["", "embedding"], "mean_position": [0.5, 0.3],
        "mean_moved": [0.0, -0.2], "moved_low": [np.nan, -0.3], "moved_high": [np.nan, -0.1], "n_entries": 9,
        "n_up": [0, 7], "n_down": [0, 1], "n_left_out": [3, 3], "reasons": "not labelled in full 3",
    })  # fmt: skip
    adjusted = pd.DataFrame({
        "model": "m", "term": ["fixed", "restrictive", "fixed × restrictive"], "measure": "score",
        "factors": ["structure", "defence", "structure, defence"],
        "unadjusted": 0.5, "unadjusted_low": 0.25, "unadjusted_high": 0.75, "adjusted": -0.125, "adjusted_low": np.nan,
        "adjusted_high": np.nan, "adjusted_for": "tokens_added", "n_entries": 9, "n_rows": 36, "n_left_out": 2,
    })  # fmt: skip
    said = read(capsys, EFFECTS, adjusted, shifts)
    assert "fixed (embedding) moves the memories labelled as the memory_domain by −0.200 [−0.300, −0.100]" in said
    assert "towards the start, so layout and place change together" in said
    assert "Up to 3 entries have no position: not labelled in full 3." in said
    assert "m, fixed at the references: +0.500 [+0.250, +0.750] as it is, −0.125 adjusted for tokens added" in said
    assert said.count("at the references") == 1 and "nan" not in said
    assert "is no layout that anybody uses" not in said
    tokens = adjusted.assign(term=COVARIATES["tokens_added"].words, factors="")
    assert "is no layout that anybody uses" in read(capsys, EFFECTS, tokens)
    unsure = read(capsys, EFFECTS, None, shifts.assign(moved_high=0.1))
    assert "not shown to move them on average" in unsure
