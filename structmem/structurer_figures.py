"""Figures of who sorts into what: agreement of partitions, taxonomies side by side, and where variance comes from."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .alttext import listed, range_words
from .errors import InputError, choice
from .house import GREY, label, new_axes, page_width, shades, style, tell
from .marks import ECHO_NOTE, SMALL, footnote, name_width, needs, percent_axis, refuse_twins, room, said, x_label
from .outcomes import display_structure

_BLUE, _ORANGE = "#0072B2", "#D55E00"


def sorter_agreement(agreement: pd.DataFrame, width: str = "page") -> Axes:
    """Adjusted Rand index of every pair of raters, as a triangle of cells that print it.

    Parameters
    ----------
    agreement : DataFrame
        As made by ``sorting_agreement``: ``rater_1``, ``rater_2``, ``ari``, ``n_sets``.
    width : 'column' or 'page'
    """
    needs(agreement, "rater_1", "rater_2", "ari", "n_sets")
    if not len(agreement):
        raise InputError("There is nothing to draw: the table has no pair of raters.")
    refuse_twins(agreement, ["rater_1", "rater_2"])
    raters = list(dict.fromkeys([*agreement["rater_1"], *agreement["rater_2"]]))
    place = {rater: number for number, rater in enumerate(raters)}
    counts = sorted(set(agreement["n_sets"]))
    sets = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    note = f"adjusted Rand index, mean over {sets} memory sets: 1 the same groups, 0 what chance gives; –: undefined"
    wide = width == "page"
    with style():
        names = [label(rater, name_width(width)) for rater in raters]
        cell = min(0.46, (page_width(width) - (2.4 if wide else 1.3)) / max(len(raters) - 1, 1))
        below = 0.058 * max(len(line) for name in names[:-1] for line in name.split("\n"))
        axes = new_axes(width, 0.25 + max(cell, 0.2) * (len(raters) - 1) + below + room(note, width))
        for row in agreement.to_dict("records"):
            _square(axes, place[row["rater_1"]], place[row["rater_2"]] - 1, row["ari"])
        axes.set_xlim(-0.5, len(raters) - 1.5)
        axes.set_ylim(len(raters) - 1.5, -0.5)
        axes.set_xticks(range(len(raters) - 1), names[:-1], rotation=90)
        axes.set_yticks(range(len(raters) - 1), names[1:])
        axes.tick_params(length=0, pad=3)
        axes.spines["bottom"].set_visible(False)
        axes.set_aspect("equal")
        footnote(axes, note)
        told = range_words(agreement, "ari", ("rater_1", "rater_2"), "", 1)
        tell(axes, agreement, f"Triangle of cells: {note}, for {listed(raters)}.", told.replace(" ,", ","))
    return axes


def _square(axes: Axes, x: int, y: int, value: float) -> None:
    missing = pd.isna(value)
    ((shade, on_shade),) = shades([0.0 if missing else float(np.clip(value, 0, 1))])
    blank = {"facecolor": "white", "edgecolor": "#C4C4C4", "hatch": "////", "linewidth": 0.0}
    how = blank if missing else {"facecolor": shade, "edgecolor": "white", "linewidth": 0.8}
    axes.add_artist(Rectangle((x - 0.5, y - 0.5), 1, 1, in_layout=False, **how))
    words = "–" if missing else f"{value + 0.0:.2f}".replace("-", "−").replace("−0.00", "0.00")
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"} if missing else None
    axes.text(x, y, words, ha="center", va="center", color=on_shade, fontsize=SMALL, bbox=box, in_layout=False)


def taxonomy_panels(
    shapes: pd.DataFrame,
    hits: pd.DataFrame | None = None,
    effects: pd.DataFrame | None = None,
    labels: str = "all",
    width: str = "page",
) -> np.ndarray:
    """Taxonomies side by side: tokens that they add, hits against chance, and the effect on the mean score.

    Parameters
    ----------
    shapes : DataFrame
        As made by ``sorting_shapes``: one row per taxonomy.
    hits : DataFrame, optional
        As made by ``sorting_hits``.
    effects : DataFrame, optional
        As made by ``effects_by_setting`` for taxonomies, of one model, structure and failure type; the rows against the
        baseline are drawn.
    labels : 'all' or 'without homeless'
        Which labels the hits are of.
    width : 'page' or 'column'

    Returns
    -------
    array of Axes
        A panel per table, side by side, or on a narrow page one above the other.
    """
    needs(shapes, "taxonomy", "tokens_added", "tokens_low", "tokens_high")
    refuse_twins(shapes, ["taxonomy"])
    panels = [(_tokens, shapes)]
    if hits is not None:
        needs(hits, "taxonomy", "labels", "hit", "low", "high", "chance", "n")
        if labels not in set(hits["labels"]):
            raise choice("labels", labels, set(hits["labels"]))
        hits = hits[hits["labels"] == labels]
        refuse_twins(hits, ["taxonomy"])
        panels.append((_hits, hits))
    if effects is not None:
        needs(effects, "level", "against", "baseline", "mean_score_difference", "mean_score_low", "mean_score_high")
        effects = effects[effects["against"] == effects["baseline"]]
        refuse_twins(effects, ["level"])
        panels.append((_effects, effects))
    names = list(shapes["taxonomy"])
    echo = effects is not None and "outcome" in effects and (effects["outcome"] == "echo").any()
    note = said(
        f"hits: n = {hits['n'].min():.0f} entries, orange line: chance" if hits is not None and len(hits) else "",
        f"effect: n = {effects['n_entries'].min():.0f} entries" if effects is not None and len(effects) else "",
        "bars: 95 % intervals", ECHO_NOTE if echo else "",
    )  # fmt: skip
    with style():
        across = len(panels) if width == "page" else 1
        down = len(panels) // across
        height = 0.75 + down * (0.24 * len(names) + (0.5 if down > 1 else 0)) + room(note, width)
        grid = new_axes(width, height, across, down, sharey=True, squeeze=False).flatten()
        told = []
        for axes, (draw, table) in zip(grid, panels, strict=True):
            axes.grid(axis="x")
            told.append(draw(axes, table, {name: place for place, name in enumerate(names)}))
            axes.set_ylim(len(names) - 0.5, -0.5)
        grid[0].set_yticks(range(len(names)), [label(name, 16) for name in names])
        footnote(grid[0], note)
        first = f"{len(panels)} panels with a row for each of {listed(names)}." if len(panels) > 1 else ""
        tell(grid, _beside(shapes, hits, effects), first, *told)
    return grid


def _beside(shapes: pd.DataFrame, hits: pd.DataFrame | None, effects: pd.DataFrame | None) -> pd.DataFrame:
    """What the panels show, one row per taxonomy."""
    found = shapes[["taxonomy", "tokens_added", "tokens_low", "tokens_high"]]
    if hits is not None:
        hits = hits[["taxonomy", "labels", "n", "hit", "low", "high", "chance"]]
        names = {"n": "n_hits", "low": "hit_low", "high": "hit_high"}
        found = found.merge(hits.rename(columns=names), on="taxonomy", how="left")
    if effects is not None:
        shown = ["model", "arm", "mean_score_difference", "mean_score_low", "mean_score_high", "n_entries", "outcome"]
        effects = effects[["level", *[name for name in shown if name in effects]]]
        found = found.merge(effects.rename(columns={"level": "taxonomy"}), on="taxonomy", how="left")
    return found


def _tokens(axes: Axes, table: pd.DataFrame, y: dict[str, int]) -> str:
    for row in table.to_dict("records"):
        _bar(axes, y[row["taxonomy"]], row["tokens_added"], row["tokens_low"], row["tokens_high"], _BLUE)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    x_label(axes, "tokens added to the flat list")
    return "Tokens added: " + range_words(table, "tokens_added", ("taxonomy",), "tokens", 1)


def _hits(axes: Axes, table: pd.DataFrame, y: dict[str, int]) -> str:
    for row in table[table["taxonomy"].isin(y)].to_dict("records"):
        at = y[row["taxonomy"]]
        _bar(axes, at, 100 * row["hit"], 100 * row["low"], 100 * row["high"], _BLUE)
        axes.plot([100 * row["chance"]] * 2, [at - 0.32, at + 0.32], color=_ORANGE, linewidth=1.6, zorder=4)
    axes.set_xlim(0, 103)
    some = set(table["labels"]) - {"all"}
    percent_axis(axes, f"entries hit{''.join(f', {which}' for which in some)}")
    return "Entries hit: " + range_words(table, "hit", ("taxonomy",))


def _effects(axes: Axes, table: pd.DataFrame, y: dict[str, int]) -> str:
    axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
    for row in table[table["level"].isin(y)].to_dict("records"):
        ends = (row["mean_score_low"], row["mean_score_high"])
        _bar(axes, y[row["level"]], row["mean_score_difference"], *ends, _BLUE)
    echo = "outcome" in table and (table["outcome"] == "echo").any()
    baseline = table["baseline"].iloc[0] if len(table) else "flat"
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    x_label(axes, f"{'mean overlap' if echo else 'mean score'}, less {baseline}'s")
    return "Effect: " + _three_decimals(table, "mean_score_difference", "level")


def _three_decimals(table: pd.DataFrame, column: str, name: str) -> str:
    found = table[table[column].notna()]
    return ", ".join(f"{value:+.3f} ({who})" for value, who in zip(found[column], found[name], strict=True)) or "none."


def _bar(axes: Axes, y: float, x: float, low: float, high: float, colour: str) -> None:
    if pd.isna(x):
        axes.text(0.02, y, "none", transform=axes.get_yaxis_transform(), va="center", color=GREY, fontsize=SMALL)
        return
    if not pd.isna(low):
        axes.plot([low, high], [y, y], color=colour, linewidth=1.1, zorder=2, in_layout=False)
    axes.plot(x, y, marker="s", color=colour, linestyle="none", zorder=3, clip_on=False, in_layout=False)


def variance_parts(variance: pd.DataFrame, measure: str | None = None, width: str = "page") -> Axes:
    """Variance of the reduction by what it comes from, with intervals; estimates below 0 are drawn as they are.

    Parameters
    ----------
    variance : DataFrame
        As made by ``reduction_variance``, of one model and arm.
    measure : str, optional
        Which is drawn; default: the last, the mean score or overlap.
    width : 'column' or 'page'
    """
    needs(variance, "measure", "component", "variance", "low", "high", "unit", "levels", "n_entries", "reading")
    if not len(variance):
        raise InputError("There is nothing to draw: the table has no rows.")
    measures = list(dict.fromkeys(variance["measure"]))
    measure = measures[-1] if measure is None else measure
    if measure not in measures:
        raise choice("measure", measure, measures)
    table = variance[variance["measure"] == measure].reset_index(drop=True)
    refuse_twins(table.assign(structure=table["arm"]), ["component"])
    row_name = [f"{row.component} ({row.levels})" for row in table.itertuples()]
    own = table.loc[table["component"] != "prompt", ["variance", "low", "high"]].to_numpy(dtype=float)
    prompt = table.loc[table["component"] == "prompt", "variance"].to_numpy(dtype=float)
    low, high = (end(np.append(own, prompt), initial=0.0) for end in (np.nanmin, np.nanmax))
    span = (high - low) or 1.0
    left, right = low - 0.08 * span, high + 0.3 * span
    unit = table["unit"].iloc[0]
    cut = (table["high"] > right).any() or (table["low"] < left).any()
    arrows = "an arrow: the interval goes on, to the number beside it" if cut else ""
    note = said(f"n = {int(table['n_entries'].iloc[0])} entries; in brackets: levels", "bars: 95 % intervals", arrows)
    with style():
        axes = new_axes(width, 0.65 + 0.22 * len(table) + room(note, width))
        axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
        for y, row in enumerate(table.to_dict("records")):
            if row["reading"].startswith("not available"):
                why = label(row["reading"].removeprefix("not available: "), 70 if width == "page" else 30)
                where = {"transform": axes.get_yaxis_transform(), "va": "center", "color": GREY, "fontsize": SMALL}
                axes.text(0.3, y, why, **where)
                continue
            _bar(axes, y, row["variance"], max(row["low"], left), min(row["high"], right), _BLUE)
            for end, limit, beyond in (("high", right, row["high"] > right), ("low", left, row["low"] < left)):
                if beyond:
                    axes.plot(limit, y, marker=">" if end == "high" else "<", color=_BLUE, clip_on=False, zorder=4)
                    axes.annotate(
                        f"{row[end]:.2g}", (limit, y), (-3 if end == "high" else 3, 4), textcoords="offset points",
                        ha="right" if end == "high" else "left", fontsize=SMALL, color=_BLUE,
                    )  # fmt: skip
        axes.set_xlim(left, right)
        axes.set_ylim(len(table) - 0.4, -0.6)
        axes.set_yticks(range(len(table)), [label(name, 34) for name in row_name])
        axes.xaxis.set_major_locator(MaxNLocator(7 if width == "page" else 4, steps=[1, 2, 5, 10]))
        axes.grid(axis="x")
        arm = display_structure(table["arm"].iloc[0])
        x_label(axes, f"variance of the reduction of one answer by {arm}, {measure} ({unit}²)")
        footnote(axes, note)
        parts = "; ".join(f"{row.component}: {row.reading}" for row in table.itertuples())
        tell(axes, table, f"Points with intervals: variance of the reduction, {measure}, by component. {parts}.")
    return axes
