"""The ladder's figure: every mark stands where its table says."""

from __future__ import annotations

import pytest
from test_control_contrasts import RESULTS, RUNGS, correlated, five_arms, frames, rung

from structmem import figures
from structmem.control_contrasts import LADDER, WHOLE, ladder
from structmem.errors import InputError
from structmem.ladder_figures import control_ladder

SIDES = frames(rung("shuffled", correlated((0.5,))[0]), rung("empty", correlated((0.2,))[0]))
TABLE = ladder(frames(RESULTS, SIDES, rung("flat", correlated((0.7,))[0], replicate=1)))


@pytest.mark.parametrize(("measure", "column"), [("rate", "difference_pp"), ("mean score", "mean_score_difference")])
@pytest.mark.parametrize("width", ["column", "page"])
def test_bars_are_a_waterfall_and_points_are_differences(measure, column, width):
    axes = control_ladder(TABLE, measure=measure, width=width)
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    steps, whole = TABLE[TABLE["part"] == LADDER][column], TABLE[TABLE["part"] == WHOLE][column].iloc[0]
    at = 0.0
    for bar, step in zip(bars[:4], steps, strict=True):
        assert bar == pytest.approx((at, at + step))
        at += step
    assert bars[4] == pytest.approx((0, whole)) and at == pytest.approx(whole) and len(bars) == 5
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    sides = TABLE[~TABLE["part"].isin((LADDER, WHOLE))][column].tolist()
    assert dots[5:] == pytest.approx(sides) and dots[4] == pytest.approx(whole)
    low, high = ("low_pp", "high_pp") if measure == "rate" else ("mean_score_low", "mean_score_high")
    whiskers = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() == "None"]
    for row in TABLE[~TABLE["part"].isin((LADDER,))].to_dict("records"):
        assert any(line == pytest.approx((row[low], row[high])) for line in whiskers), row["adds"]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names[0] == "+ order (reordered)" and "noise" in names and "other memories" in names
    assert axes.get_xlabel().startswith("leakage" if measure == "rate" else "mean score")


def test_hollow_marks_show_other_memories_and_the_words_say_all():
    axes = control_ladder(TABLE)
    faces = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"]
    assert faces.count("white") == 2  # empty, and the A/A run
    assert "no memories: empty − flat" in axes.figure.alt_text and "hollow: shows other memories" in str(
        [text.get_text() for text in axes.figure.texts] + [axes.figure._supxlabel.get_text()]
    )


def test_what_is_drawn_by_default():
    still = ladder(frames(*(rung(s, [True, False] * 10) for s in RUNGS)))
    assert control_ladder(still).get_xlabel().startswith("mean score")
    assert not control_ladder(still, measure="rate").patches[0].get_width()
    two = ladder(frames(RESULTS, five_arms(seed=1, model="b")))
    axes = control_ladder(two)
    whole = two[(two["model"] == "all models") & (two["part"] == WHOLE)]["difference_pp"].iloc[0]
    assert axes.patches[4].get_width() == pytest.approx(whole)
    part = ladder(frames(RESULTS[RESULTS["structure"] == "flat"], SIDES))
    assert len(control_ladder(part).patches) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(model="x"), "model must be one of"),
        (dict(measure="mode"), "measure must be one of"),
        (dict(failure_type="sycophancy"), "No sycophancy rows"),
        (dict(table=TABLE.head(0)), "nothing to draw"),
        (dict(table=TABLE.drop(columns="part")), "lacks"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(InputError, match=message):
        control_ladder(**dict(table=TABLE) | change)


def test_several_ladders_are_not_drawn_on_top_of_each_other():
    other = five_arms(seed=1).query("structure != 'flat'").assign(structurer="x/y")
    with pytest.raises(InputError, match="structurer"):
        control_ladder(ladder(frames(RESULTS, other)).replace({"arm": {r: r for r in RUNGS}}).assign(arm="fixed"))


def test_it_is_in_the_index_and_saved(tmp_path):
    assert figures.control_ladder is control_ladder
    saved = figures.save(control_ladder(TABLE), "ladder", TABLE, tmp_path)
    assert (tmp_path / "ladder.csv").read_text().count("\n") == len(TABLE) + 1 and "waterfall" in saved.alt
