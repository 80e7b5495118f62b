"""RAG's trade-off curve over τ or k with the structures beside it: leakage against beneficial use."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .alttext import analysis_words, listed, n_words
from .errors import InputError
from .house import label, new_axes, page_width, structure_style, style, tell
from .marks import (
    ECHO_NOTE,
    SMALL,
    arms_in_order,
    footnote,
    label_outer,
    legend,
    marker,
    needs,
    refuse_twins,
    room,
    said,
)
from .matched_words import LEAKS, USES, outcome_words, value_words

_SIDES = ("cross_domain", "beneficial")


def matched_tradeoff(points: pd.DataFrame, width: str = "page") -> np.ndarray:
    """RAG's settings as a curve of leakage against beneficial use, a panel per model and curve, structures beside it.

    The line is the monotone curve on which ``matched_differences`` compares; the points are RAG's own values. Bars are
    the intervals of the structures; those of RAG are faint.

    Parameters
    ----------
    points : DataFrame
        As made by ``rag_points``.
    width : 'column' or 'page'

    Returns
    -------
    array of Axes
        One per model and curve, all with the same axes.

    Raises
    ------
    InputError
        Another table, no curve in it, or several rows for a point.
    """
    needs(points, "model", "curve", "setting", "arm", "structure", "outcome", "measure")
    table = points.reset_index(drop=True)
    curves = list(dict.fromkeys(table.loc[table["curve"] != "", "curve"]))
    if not curves:
        raise InputError("There is nothing to draw: the table holds no curve of RAG.")
    refuse_twins(table, ["model", "curve", "arm", "setting"])
    outcome, measure = table["outcome"].iloc[0], table["measure"].iloc[0]
    panels = [(model, curve) for model in dict.fromkeys(table["model"]) for curve in curves]
    panels = [pair for pair in panels if ((table["model"] == pair[0]) & (table["curve"] == pair[1])).any()]
    across = min(len(panels), 1 if width == "column" else 2 if len(panels) < 5 else 4)
    lines = -(-len(panels) // across)
    inches = (page_width(width) - 0.5) / across
    scale = 100 if measure == "rate" else 1
    good = "down" if outcome == "failure" and measure == "rate" else "up"
    note = said(
        f"better is {good} and to the left",
        "line: RAG's curve, fitted monotone",
        _n_words(table),
        "95 % intervals" + (" (Wilson)" if measure == "rate" else " (t over entries)"),
        ECHO_NOTE if outcome == "echo" else "",
        analysis_words(table),
    )
    with style():
        size = inches - 0.25, min(inches, 2.5) - 0.35
        wrap = int((inches - 0.3) / 0.075)
        heads = [f"{label(f'RAG over {curve}', wrap)}\n{label(model, wrap)}" for model, curve in panels]
        tall = min(inches, 2.5) + 0.35 + 0.12 * max(head.count("\n") for head in heads)
        grid = new_axes(
            width, 0.35 + lines * tall + room(note, width), across, lines, squeeze=False, sharex=True, sharey=True
        )
        for axis, side in ((grid.flat[0].xaxis, _SIDES[0]), (grid.flat[0].yaxis, _SIDES[1])):
            _limits(axis, table, side, measure, scale)
        for axes, (model, curve), head in zip(grid.flat, panels, heads, strict=False):
            mine = table[table["model"] == model]
            _panel(axes, mine[mine["curve"] == curve], mine[mine["curve"] == ""], measure, scale, size)
            axes.set_title(head)
            axes.set_xlabel(label(outcome_words(LEAKS, outcome, measure), 40))
            axes.set_ylabel(label(outcome_words(USES, outcome, measure), 34))
        label_outer(grid, len(panels))
        footnote(grid.flat[0], note)
        legend(grid.flat[0], arms_in_order(table))
        tell(grid, points, *_alt(table, panels, outcome, measure, good))
    return grid.flatten()[: len(panels)]


def _panel(
    axes: Axes, curve: pd.DataFrame, others: pd.DataFrame, measure: str, scale: float, size: tuple[float, float]
) -> None:
    axes.spines["left"].set_visible(True)
    axes.tick_params(axis="y", length=2.5, width=0.6)
    axes.grid(True)
    colour, _ = structure_style("rag")
    fitted = scale * curve[[f"{side}_fitted" for side in _SIDES]].to_numpy(dtype=float)
    axes.plot(*fitted.T, color=colour, linewidth=1.2, zorder=1.5)
    for rows, alpha in ((curve, 0.3), (others, 0.8)):
        for row in rows.to_dict("records"):
            x, y = (scale * row[f"{side}_{measure}"] for side in _SIDES)
            how = {"color": structure_style(row["structure"])[0], "linewidth": 0.8, "alpha": alpha, "zorder": 1}
            axes.plot([scale * row["cross_domain_low"], scale * row["cross_domain_high"]], [y, y], **how)
            axes.plot([x, x], [scale * row["beneficial_low"], scale * row["beneficial_high"]], **how)
            marker(axes, x, y, row["structure"])
    named = curve[curve["setting"] != ""].dropna(subset=[f"{side}_{measure}" for side in _SIDES])
    places = scale * named[[f"{side}_{measure}" for side in _SIDES]].to_numpy(dtype=float)
    _name(axes, list(named["setting"]), places, size)


def _name(axes: Axes, settings: list[str], places: np.ndarray, size: tuple[float, float]) -> None:
    """The settings beside their points, inside the panel; those whose names would overlap share one name.

    `size` is what a panel takes in inches, about.
    """
    ends = np.array([axes.get_xlim(), axes.get_ylim()])
    shares = (places - ends[:, 0]) / np.ptp(ends, axis=1)
    groups = [[k] for k in range(len(settings))]

    def name(group: list[int]) -> tuple[str, int, bool]:
        top = max(group, key=lambda k: (shares[k, 1], k))
        return ", ".join(settings[k] for k in sorted(group)), top, shares[top, 0] > 0.65

    def overlap(one: list[int], two: list[int]) -> bool:
        boxes = []
        for words, top, left in map(name, (one, two)):
            start = shares[top, 0] * size[0] + (-0.06 - 0.055 * len(words) if left else 0.06)
            boxes.append((start, start + 0.055 * len(words), shares[top, 1] * size[1]))
        (start, end, y), (start_2, end_2, y_2) = boxes
        return start < end_2 and start_2 < end and abs(y - y_2) < 0.12

    while clash := next(((a, b) for a in groups for b in groups if a is not b and overlap(a, b)), None):
        groups = [group for group in groups if group not in clash] + [clash[0] + clash[1]]
    for group in groups:
        words, top, left = name(group)
        beside = {"textcoords": "offset points", "xytext": (-4 if left else 4, 3), "ha": "right" if left else "left"}
        axes.annotate(words, places[top], zorder=4, fontsize=SMALL, color="#5A5A5A", **beside)


def _n_words(table: pd.DataFrame) -> str:
    return ", ".join(n_words(table, f"n_{side}", f"{side} entries") for side in _SIDES)


def _limits(axis, table: pd.DataFrame, side: str, measure: str, scale: float) -> None:
    """All that is drawn, with a little room, and never below zero."""
    ends = scale * table[[f"{side}_low", f"{side}_{measure}", f"{side}_high"]].to_numpy(dtype=float)
    if np.isnan(ends).all():
        return
    low, high = np.nanmin(ends), np.nanmax(ends)
    pad = 0.06 * max(high - low, 1e-6)
    limit = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
    limit(max(low - pad, -0.02 * scale * (measure == "rate")) if low >= 0 else low - pad, high + pad)
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if measure == "rate":
        axis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))


def _alt(table: pd.DataFrame, panels: list[tuple[str, str]], outcome: str, measure: str, good: str) -> list[str]:
    x, y = (outcome_words(kind, outcome, measure) for kind in (LEAKS, USES))
    others = listed(table.loc[table["curve"] == "", "arm"])
    found = [
        f"A panel for each of {listed(f'RAG over {curve}, {model}' for model, curve in panels)}: {x} on the horizontal "
        f"axis against {y} on the vertical axis; {good} and left is better. A line joins RAG's settings; beside it "
        f"{others or 'no other structure'}, with 95 % intervals. {_n_words(table)}."
    ]
    for model, curve in panels[:4]:
        rows = table[(table["model"] == model) & table["curve"].isin((curve, ""))]
        named = zip(
            rows["arm"], rows["setting"], rows[f"cross_domain_{measure}"], rows[f"beneficial_{measure}"], strict=True
        )
        values = [
            f"{setting or arm} {_value(one, measure)} and {_value(two, measure)}" for arm, setting, one, two in named
        ]
        found.append(f"{model}, over {curve}: {'; '.join(values)}.")
    return found


def _value(value: float, measure: str) -> str:
    return "not scored" if np.isnan(value) else value_words(value, measure)
