"""Figures of layout factors and defences: effects with interactions, what they trade, where labelled memories stand."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .alttext import analysis_words, interval_words, listed, n_words, range_words
from .errors import InputError, choice
from .house import GREY, label, new_axes, page_width, structure_style, style, tell
from .interactions import CONDITIONAL, FACTORS
from .marks import SMALL, arms_in_order, footnote, handle, legend_above, marker, needs, of_type, room, said, with_arm

ALL_MODELS = "all models"
_SCALES = {
    "rate": ("difference_pp", "low_pp", "high_pp"),
    "score": ("mean_score_difference", "mean_score_low", "mean_score_high"),
}
_ECHO = "echo judge: overlap with the memories; shows the pipeline, not an effect"


def factor_forest(effects: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> np.ndarray:
    """Conditional effects of each arm (filled) and interactions (hollow), of the rate and of the mean score.

    Parameters
    ----------
    effects : DataFrame
        As made by ``conditional_effects``; rows of ``three_factor_interactions`` may be appended. Rows over models are
        drawn where there are several models.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'
        On a page both scales stand side by side; a column shows the mean score only.

    Returns
    -------
    array of Axes
        The rate (page only), then the mean score.

    Raises
    ------
    InputError
        No rows of this failure type, or a table without effects.
    """
    table = _of_effects(effects, failure_type)
    rows = _rows(table)
    echo = table["outcome"].eq("echo").any()
    scales = ["rate", "score"] if page_width(width) > 4 else ["score"]
    one_model = table["model"].nunique() == 1
    note = said(
        table["model"].iloc[0] if one_model else "",
        n_words(table),
        f"rate: {of_rate}" if "rate" in scales and (of_rate := interval_words(table)) else "",
        "mean: 95 % intervals (t over entries)" if table["mean_score_low"].notna().any() else "",
        "filled: arm − baseline under one level; hollow: interaction",
        analysis_words(table),
        _ECHO if echo else "",
    )
    with style():
        height = 0.55 + 0.155 * (rows["y"].max() + 1) + room(note, width)
        grid = new_axes(width, height, len(scales), squeeze=False, sharey=True)[0]
        for axes, scale in zip(grid, scales, strict=True):
            _panel(axes, rows, scale)
            what = {"rate": f"{'echo' if echo else 'failure'} rate (pp)", "score": _score_words(echo)}[scale]
            axes.set_xlabel(f"difference of the {what}")
        first = grid[0]
        first.set_yticks(rows["y"], [label(name, 40 if len(scales) > 1 else 26) for name in rows["name"]])
        for tick, head in zip(first.get_yticklabels(), rows["head"], strict=True):
            tick.set_fontweight("bold" if head else "normal")
        first.set_ylim(rows["y"].max() + 0.6, -0.6)
        footnote(first, note)
        shown = rows[~rows["head"]]
        told = range_words(shown, "mean_score_difference", ("arm", "name"), "points", 1)
        what = f"Conditional effects and interactions, {len(shown)} rows: difference of the {_score_words(echo)}."
        tell(grid, effects.iloc[table.index], what, told, _ECHO if echo else "")
    return grid


def _of_effects(effects: pd.DataFrame, failure_type: str) -> pd.DataFrame:
    """Rows over models where there are several, else those of the one model; the index counts the rows of the table."""
    needs(effects, "model", "arm", "effect", "outcome", *_SCALES["rate"], *_SCALES["score"])
    table = with_arm(of_type(effects, failure_type))
    over = table["model"].eq(ALL_MODELS)
    several = table.loc[~over, "model"].nunique() > 1 or not (~over).any()
    if several:
        return table[over & table["unit"].eq("entry")]
    return table[~over]


def _rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in bands with a heading each: the arm's conditional effects, references first, then its interactions."""
    varying = [c for c in FACTORS if c in table and table[c].nunique() > 1]
    rows, y = [], 0.0
    for arm, group in table.groupby("arm", sort=False):
        records = group.to_dict("records")
        effects = [row for row in records if row["effect"] == CONDITIONAL]
        effects.sort(key=lambda row: [(row[c] != _reference(row, c), str(row[c])) for c in varying])
        interactions = [row for row in records if row["effect"] != CONDITIONAL]
        for title, part in (("effects", effects), ("interactions", interactions)):
            if part:
                rows.append({"name": f"{arm}: {title}", "head": True, "y": y})
                for place, row in enumerate(part, start=1):
                    rows.append(row | {"name": _name(row, varying), "head": False, "y": y + place})
                y += len(part) + 1.4
    return pd.DataFrame(rows)


def _reference(row: dict, factor: str) -> str:
    return row["reference"] if row.get("factor") == factor else FACTORS[factor]


def _name(row: dict, varying: list[str]) -> str:
    levels = {c: str(row[c]).replace("_", " ") for c in varying if isinstance(row[c], str)}
    if row["effect"] == CONDITIONAL:
        return ", ".join(levels.values())
    if (factor := row.get("factor")) in levels:
        beside = [f"in {level}" for c, level in levels.items() if c != factor]
        return ", ".join([f"{levels[factor]} − {row['reference']}".replace("_", " "), *beside])
    return f"{' × '.join(levels.values())}, all three factors"


def _panel(axes: Axes, rows: pd.DataFrame, scale: str) -> None:
    value, low, high = _SCALES[scale]
    axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
    for row in rows[~rows["head"]].to_dict("records"):
        colour, _ = structure_style(row["structure"])
        if pd.isna(row[value]):
            beside = {"transform": axes.get_yaxis_transform(), "va": "center", "color": GREY, "fontsize": SMALL}
            axes.text(0.02, row["y"], "not available", **beside)
            continue
        hollow = row["effect"] != CONDITIONAL
        if pd.isna(row[low]):
            beside = {"textcoords": "offset points", "xytext": (5, 0), "va": "center", "color": GREY}
            axes.annotate("no interval", (row[value], row["y"]), fontsize=SMALL, annotation_clip=False, **beside)
        else:
            how = {"color": colour, "linewidth": 1.1, "linestyle": (0, (3, 1.5)) if hollow else "-", "zorder": 2}
            axes.plot([row[low], row[high]], [row["y"]] * 2, in_layout=False, **how)
        marker(axes, row[value], row["y"], row["structure"], hollow)
    ends = rows.loc[~rows["head"], [value, low, high]].to_numpy(dtype=float)
    least = 5.0 if scale == "rate" else 0.01
    left, right = np.nanmin(ends, initial=-least), np.nanmax(ends, initial=least)
    axes.set_xlim(left - 0.05 * (right - left), right + 0.05 * (right - left))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="x")


def _score_words(echo: bool) -> str:
    return "mean echo overlap" if echo else "mean score"


def factor_tradeoff(effects: pd.DataFrame, scale: str | None = None, width: str = "page") -> np.ndarray:
    """What each arm changes in leakage against what it changes in beneficial use, per level, with both intervals.

    Rates of failures: down and left is better. Echoes, and mean scores, are wanted high in beneficial entries, so up
    and left is better.

    Parameters
    ----------
    effects : DataFrame
        As made by ``conditional_effects`` from results with both failure types.
    scale : 'rate' or 'score', optional
        Default: the mean score for echoes, the rate for failures.
    width : 'column' or 'page'

    Returns
    -------
    array of Axes
        One panel per arm.

    Raises
    ------
    InputError
        Effects without both failure types, or an unknown scale.
    """
    if scale is not None and scale not in _SCALES:
        raise choice("scale", scale, _SCALES)
    kinds = ("cross_domain", "beneficial_memory_usage")
    leaks, uses = (_of_effects(effects, kind).query("effect == @CONDITIONAL") for kind in kinds)
    factor = leaks["factor"].iloc[0]
    echo = leaks["outcome"].eq("echo").any()
    scale = scale or ("score" if echo else "rate")
    names = _SCALES[scale]
    keys = ["arm", "structure", factor]
    for side in (leaks, uses):
        if side.duplicated(keys).any():
            raise InputError(f"Several rows for one arm and {factor}: select one renderer, placement or judge first.")
    both = leaks.reset_index().merge(uses.reset_index(), on=keys, suffixes=("_x", "_y"))
    if not len(both):
        raise InputError("No arm has effects in both failure types.")
    arms = arms_in_order(both)
    reference = leaks["reference"].iloc[0]
    named = sorted(map(str, both[factor].unique()), key=lambda level: (level != reference, level))
    levels = {level: _SHAPES[place % len(_SHAPES)] for place, level in enumerate(named)}
    what = _score_words(echo) if scale == "score" else f"{'echo' if echo else 'failure'} rate (pp)"
    # A beneficial failure is bad, a high beneficial score or an echo there is good.
    up = echo or scale == "score"
    better = f"{'up' if up else 'down'} and left is better"
    better += " (echoes are wanted in beneficial entries)" if echo else ""
    note = said(
        leaks["model"].iloc[0],
        n_words(pd.concat([leaks, uses])),
        interval_words(leaks) if scale == "rate" else "95 % intervals (t over entries)",
        better,
        "colour: arm, shape: level",
        analysis_words(leaks),
        _ECHO if echo else "",
    )
    with style():
        across = min(len(arms), 2 if page_width(width) > 4 else 1)
        lines = -(-len(arms) // across)
        grid = new_axes(
            width, 0.35 + 2.5 * lines + room(note, width), across, lines, squeeze=False, sharex=True, sharey=True
        )
        for axes, (arm, structure) in zip(grid.flat, arms, strict=False):
            axes.spines["left"].set_visible(True)
            axes.tick_params(axis="y", length=2.5, width=0.6)
            axes.axvline(0, color="#9A9A9A", linewidth=0.6, zorder=0)
            axes.axhline(0, color="#9A9A9A", linewidth=0.6, zorder=0)
            _crosses(axes, both[both["arm"] == arm], names, factor, structure, levels)
            axes.set_title(arm)
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        for axes in grid.flat[len(arms) :]:
            axes.remove()
        shapes = {"color": "#5A5A5A", "linestyle": "none"}
        legend_above(
            grid.flat[0],
            [
                Line2D([], [], marker=shape, label=label(name.replace("_", " ")), **shapes)
                for name, shape in levels.items()
            ],
        )
        for axes in grid[-1]:
            axes.set_xlabel(f"cross-domain: difference of the\n{what}")
        for line in grid:
            line[0].set_ylabel(f"beneficial use: difference of the\n{what}")
        footnote(grid.flat[0], note)
        points = [
            f"{row['arm']} under {row[factor]}: {_three(row[f'{names[0]}_x'])} and {_three(row[f'{names[0]}_y'])}"
            for row in both.to_dict("records")
        ]
        lead = f"Difference of the {what} in cross-domain and in beneficial entries. {listed(points, 12)}. {better}."
        drawn = effects.reset_index(drop=True).iloc[sorted([*leaks.index, *uses.index])]
        tell(grid, drawn, lead, _ECHO if echo else "")
    return grid.flatten()[: len(arms)]


_SHAPES = ("o", "s", "D", "^", "v", "P", "X")


def _three(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _crosses(axes: Axes, rows: pd.DataFrame, names: tuple[str, ...], factor: str, structure: str, levels: dict) -> None:
    """A cross of both intervals per level, whose shape names it."""
    value, low, high = names
    colour, _ = structure_style(structure)
    for row in rows.to_dict("records"):
        x, y = row[f"{value}_x"], row[f"{value}_y"]
        if pd.isna(x) or pd.isna(y):
            continue
        how = {"color": colour, "linewidth": 0.8, "alpha": 0.5, "zorder": 2}
        axes.plot([row[f"{low}_x"], row[f"{high}_x"]], [y, y], **how)
        axes.plot([x, x], [row[f"{low}_y"], row[f"{high}_y"]], **how)
        axes.plot(x, y, marker=levels[str(row[factor])], color=colour, linestyle="none", zorder=3)


def labelled_positions(positions: pd.DataFrame, baseline: str = "flat", width: str = "column") -> Axes:
    """Mean position of the memories labelled as the memory_domain, a line per entry from one layout to the others.

    Parameters
    ----------
    positions : DataFrame
        As made by ``gold_positions``. Entries without a position are not drawn; they are counted in the footnote.
    baseline : str
        The layout by which entries are ordered.
    width : 'column' or 'page'

    Raises
    ------
    InputError
        A table without rows or without positions as a column.
    """
    needs(positions, "entry_id", "structure", "mean_position")
    table = positions.reset_index(drop=True)
    if not len(table):
        raise InputError("There is nothing to draw: the table has no rows.")
    table = with_arm(table[table["mean_position"].notna()])
    first = table[table["structure"] == baseline].set_index("entry_id")["mean_position"]
    order = first.sort_values(kind="stable").index if len(first) else table["entry_id"].drop_duplicates()
    place = {entry: y for y, entry in enumerate(order)}
    table = table[table["entry_id"].isin(place)]
    lost = positions["entry_id"].nunique() - len(place)
    means = table.groupby("arm", sort=False)["mean_position"].mean()
    note = (
        said(
            f"n = {len(place)} entries, one per line",
            f"{lost} entries without a position" if lost else "",
            "dashed: means over entries",
            "0.5: the mean over all memories",
        )
        if len(table)
        else f"none of {lost} entries has a position: labels are lacking"
    )
    arms = arms_in_order(table)
    with style():
        axes = new_axes(width, 0.9 + min(0.085 * len(place), 6.0) + room(note, width))
        for entry, group in table.groupby("entry_id", sort=False):
            axes.plot(group["mean_position"], [place[entry]] * len(group), color="#C8C8C8", linewidth=1.0, zorder=1)
        for arm, structure in arms:
            rows = table[table["arm"] == arm]
            axes.axvline(
                means[arm], color=structure_style(structure)[0], linewidth=0.9, linestyle=(0, (4, 2)), zorder=0
            )
            marker(axes, rows["mean_position"], rows["entry_id"].map(place), structure)
        axes.set_yticks([])
        axes.set_ylim(len(place) - 0.3, -0.7)
        axes.set_xlim(-0.03, 1.03)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["first", "0.25", "0.5", "0.75", "last"])
        axes.grid(axis="x")
        axes.set_xlabel("position of the labelled memories in the context")
        axes.set_ylabel(f"entries, in the order of {baseline}")
        footnote(axes, note)
        if arms:
            legend_above(axes, [handle(arm, structure) for arm, structure in arms])
        said_of = ", ".join(f"{arm} {means[arm]:.2f}" for arm, _ in arms) or "none"
        what = "Mean position of the memories labelled as the entry's memory domain, 0 first to 1 last"
        tell(axes, positions.iloc[table.index], f"{what}, {len(place)} entries. Means: {said_of}.")
    return axes
