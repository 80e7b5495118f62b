"""Marks on axes: rows in bands, points with intervals, labels, footnotes and legends, as the figures share them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .alttext import is_published
from .errors import InputError
from .house import GREY, label, page_width, structure_style
from .outcomes import STRUCTURE_ORDER, display_structure, setting_words, told_apart
from .published import load_published
from .tables import failure_type_words, signed

SMALL = 6.5  # points; nothing in a figure is smaller
ECHO_NOTE = "echo judge: overlap with the memories; shows the pipeline, not leakage"


def needs(table: object, *columns: str) -> None:
    """Refuse what is no table, and one that lacks columns that a figure draws."""
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"expected a table of this package, got {type(table).__name__}.")
    if lacking := [name for name in columns if name not in table]:
        raise InputError(f"The table lacks {lacking}; expected one made for this figure.")


def of_type(table: pd.DataFrame, failure_type: str) -> pd.DataFrame:
    """The rows of one failure type, or an error that says which there are; the index counts the rows of the table."""
    needs(table)
    table = table.reset_index(drop=True)
    if not len(table):
        raise InputError("There is nothing to draw: the table has no rows.")
    needs(table, "failure_type")
    rows = table[table["failure_type"] == failure_type]
    if not len(rows):
        raise InputError(f"No {failure_type} rows to draw; the table has {sorted(table['failure_type'].unique())}.")
    return rows


def rate_rows(rates: pd.DataFrame, failure_type: str) -> tuple[pd.DataFrame, str]:
    """Rows of one failure type with model and arm, and the column that holds their rate."""
    needs(rates)
    column = next((name for name in ("failure_rate", "echo_rate") if name in rates), None)
    if column is None:
        raise InputError("The table has neither failure_rate nor echo_rate; expected one made by those functions.")
    table = with_arm(of_type(rates, failure_type))
    return table.assign(model=table["model"] if "model" in table else "all models"), column


def rate_words(table: pd.DataFrame, column: str, failure_type: str) -> str:
    """How an axis calls the rate: leakage only for failures of ``cross_domain``, never for echoes."""
    if column == "echo_rate":
        return f"echo rate, {failure_type.replace('_', ' ')}"
    return failure_type_words(failure_type, generations(table))


def with_arm(table: pd.DataFrame) -> pd.DataFrame:
    """The table with both the display name of each arm and its structure."""
    needs(table)
    needs(table, *([] if "arm" in table else ["structure"]))
    table = table.copy() if table.index.is_unique else table.reset_index(drop=True)
    if "arm" not in table:
        table.insert(table.columns.get_loc("structure") + 1, "arm", np.nan)
    if "structure" not in table:
        table["structure"] = np.nan
    structurers = table["structurer"] if "structurer" in table else [None] * len(table)
    rows = list(zip(table["arm"], table["structure"], structurers, strict=True))
    return table.assign(
        arm=[display_structure(structure, who) if pd.isna(arm) else arm for arm, structure, who in rows],
        structure=[arm.split(" (")[0] if pd.isna(structure) else structure for arm, structure, _ in rows],
    )


def models_in_order(table: pd.DataFrame) -> list[str]:
    """Models in the order of the table; of published rates always by their flat leakage, the highest first."""
    models = list(dict.fromkeys(table["model"]))
    if not is_published(table):
        return models
    flat = load_published().query("structure == 'flat' and defence == 'standard' and failure_type == 'cross_domain'")
    rates = dict(zip(flat["model"], flat["failure_rate"], strict=True))
    return sorted(models, key=lambda model: -rates.get(model, -1.0))


def refuse_twins(table: pd.DataFrame, columns: list[str]) -> None:
    """Refuse rows that a figure could only draw on top of each other, and name what tells them apart."""
    twins = table[table.duplicated(columns, keep=False)]
    if len(twins):
        first = twins[(twins[columns] == twins[columns].iloc[0]).all(axis=1)]
        names = ", ".join(map(str, first[columns].iloc[0]))
        differ = ", ".join(told_apart(table, first)) or "nothing"
        raise InputError(f"{len(first)} rows for {names}, which differ in {differ}: select one of them first.")


def banded(table: pd.DataFrame, heads: bool, width: str) -> pd.DataFrame:
    """Rows with their y position, and a heading row per model (arm is missing there) when there are several."""
    table = with_arm(table)
    rows, y = [], 0.0
    for model, group in table.groupby("model", sort=False):
        if heads:
            name = label(model, name_width(width))
            extra = 0.7 * name.count("\n")  # a wrapped name takes more room
            rows.append({"model": model, "arm": None, "y": y + extra / 2, "name": name})
            y += 1 + extra
        for row in group.to_dict("records"):
            more = setting_words(row, told_apart(table, group[group["arm"] == row["arm"]]), table)
            name = label(", ".join([row["arm"], *more]), name_width(width))
            extra = 0.7 * name.count("\n")
            rows.append(row | {"y": y + extra / 2, "name": name})
            y += 1 + extra
        y += 0.4 if heads else 0
    return pd.DataFrame(rows)


def name_width(width: str) -> int:
    """Characters in one line of a row's name."""
    return 34 if page_width(width) > 4 else 22


def name_rows(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_yticks(rows["y"], rows["name"])
    for tick, head in zip(axes.get_yticklabels(), rows["arm"].isna(), strict=True):
        tick.set_fontweight("bold" if head else "normal")
    last = rows.loc[rows["y"].idxmax()]
    axes.set_ylim(last["y"] + 0.6 + 0.35 * last["name"].count("\n"), -0.6)


def point(axes: Axes, y: float, x: float, low: float, high: float, row: dict, hollow: bool = False) -> None:
    colour, _ = structure_style(row["structure"])
    hollow = hollow or row["arm"].endswith("(A/A)")
    if pd.isna(x):
        beside = {"transform": axes.get_yaxis_transform(), "va": "center", "color": GREY, "fontsize": SMALL}
        axes.text(0.02, y, "not scored", **beside)
        return
    if not pd.isna(low):
        dashes = (0, (3, 1.5)) if hollow else "-"
        how = {"color": colour, "linewidth": 1.1, "linestyle": dashes, "zorder": 2, "in_layout": False}
        axes.plot([low, high], [y, y], **how)
    marker(axes, x, y, row["structure"], hollow)


def marker(axes: Axes, x: object, y: object, structure: str, hollow: bool = False) -> None:
    colour, marker = structure_style(structure)
    face = "white" if hollow else colour
    how = {"color": colour, "markerfacecolor": face, "linestyle": "none", "zorder": 3, "clip_on": False}
    axes.plot(x, y, marker=marker, in_layout=False, **how)  # inside the axes, whose place does not depend on it


def arms_in_order(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Each arm's name with its structure: known structures first, in their own order; A/A beside its arm."""
    pairs = dict.fromkeys(zip(table["arm"], table["structure"], strict=True))
    order = {name: place for place, name in enumerate(STRUCTURE_ORDER)}
    return sorted(pairs, key=lambda pair: order.get(pair[1], len(order)))


def dodged(axes: Axes, table: pd.DataFrame, models: list[str], arms: list[tuple[str, str]], column: str) -> None:
    """Per model a row, in it the arms a little apart, each a point in % with its interval."""
    for y, model in enumerate(models):
        rows = table[table["model"] == model].set_index("arm")
        if y % 2:
            axes.axhspan(y - 0.5, y + 0.5, color="#F5F5F5", zorder=0, linewidth=0)
        for place, (arm, structure) in enumerate(arms):
            if arm not in rows.index:
                continue
            nudge = y + 0.8 * ((len(arms) - 1) / 2 - place) / len(arms)
            row = rows.loc[arm].to_dict() | {"arm": arm, "structure": structure}
            point(axes, nudge, *(100 * row[name] for name in (column, "low", "high")), row)
    axes.set_yticks(range(len(models)), [label(model, name_width_of(axes)) for model in models])
    axes.set_ylim(-0.5, len(models) - 0.5)


def name_width_of(axes: Axes) -> int:
    return name_width("page" if axes.figure.get_size_inches()[0] > 4 else "column")


def generations(table: pd.DataFrame) -> int | None:
    found = set(table["n_generations"]) if "n_generations" in table else set()
    return int(found.pop()) if len(found) == 1 else None


def percent_axis(axes: Axes, words: str) -> None:
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))
    inches = axes.get_position().width * axes.figure.get_size_inches()[0]
    axes.xaxis.set_major_locator(MaxNLocator(4 if inches < 3 else 10, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="x")
    x_label(axes, words)


def x_label(axes: Axes, words: str) -> None:
    """On a narrow page the axis sits to the right, so its label ends there and may start left of the axis."""
    wide = axes.figure.get_size_inches()[0] > 4
    axes.set_xlabel(label(words, 90 if wide else 50), loc="center" if wide else "right")


def label_outer(grid, n: int) -> None:
    """Remove the cells of a grid beyond the first n; axis labels stay at the left and under the lowest panels."""
    lines, across = grid.shape
    for place, axes in enumerate(grid.flat):
        if place >= n:
            axes.remove()
            continue
        if place + across < n:
            axes.set_xlabel("")
        else:
            axes.tick_params(labelbottom=True)
        if place % across:
            axes.set_ylabel("")


def said(*words: str) -> str:
    """The parts of a footnote that say something, joined."""
    return "; ".join(word for word in words if word)


def difference_text(row: dict) -> str:
    if pd.isna(row["difference_pp"]):
        return "–"
    numbers = [signed(row[name]) for name in ("difference_pp", "low_pp", "high_pp")]
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]" if not pd.isna(row["low_pp"]) else numbers[0]


def room(note: str, width: str) -> float:
    """Inches that a footnote takes."""
    return 0.0 if not note else 0.06 + 0.12 * (label(note, int(17 * page_width(width))).count("\n") + 1)


def footnote(axes: Axes, text: str) -> None:
    if text:
        inches = axes.figure.get_size_inches()[0]
        axes.figure.supxlabel(label(text, int(17 * inches)), x=0.99, ha="right", fontsize=SMALL, color="#5A5A5A")


def handle(name: str, structure: str, hollow: bool = False) -> Line2D:
    colour, marker = structure_style(structure)
    face = "white" if hollow else colour
    return Line2D([], [], color=colour, marker=marker, markerfacecolor=face, linestyle="none", label=label(name))


def legend(axes: Axes, arms: list) -> None:
    """A legend above the axes with an entry per arm: a name, or a pair of name and structure."""
    pairs = [arm if isinstance(arm, tuple) else (arm, arm) for arm in arms]
    legend_above(axes, [handle(name, structure, name.endswith("(A/A)")) for name, structure in pairs])


def legend_above(axes: Axes, handles: list) -> None:
    """A legend above everything, with as many columns as fit; the figure grows where it takes many lines."""
    figure = axes.figure
    width, height = figure.get_size_inches()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the font lacks; saving replaces them
        for columns in range(len(handles) if width > 4 else min(5, len(handles)), 0, -1):
            made = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
            box = made.get_window_extent(figure.canvas.get_renderer())
            if columns == 1 or box.width < 0.98 * figure.bbox.width:
                break
            made.remove()
    # The page has room for three lines of names; more of them shall not press the axes flat.
    figure.set_size_inches(width, height + max(0.0, box.height / figure.dpi - 0.45))


def spread(wanted: list[float], heights: list[float], low: float, high: float) -> list[float]:
    """Centres as near as possible to the wanted ones, for labels of some heights that must not overlap.

    Labels are pushed apart in their order; where they do not fit between `low` and `high`, they start at `low`.
    """
    order = sorted(range(len(wanted)), key=lambda k: (wanted[k], k))
    centres, floor = dict.fromkeys(order, 0.0), low
    for k in order:
        centres[k] = max(wanted[k], floor + heights[k] / 2)
        floor = centres[k] + heights[k] / 2
    ceiling = max(high, low + sum(heights))
    for k in reversed(order):
        centres[k] = min(centres[k], ceiling - heights[k] / 2)
        ceiling = centres[k] - heights[k] / 2
    return [centres[k] for k in range(len(wanted))]


def end_labels(axes: Axes, ends: list[tuple[float, float, str, object]], width: int) -> list:
    """Names of lines beside the axes, from (x, y, name, colour) of their ends; ``apart`` moves them off each other."""
    beside = {"textcoords": "offset points", "xytext": (7, 0), "va": "center", "fontsize": 7, "annotation_clip": False}
    where = axes.get_yaxis_transform()
    return [
        (x, axes.annotate(label(name, width), (1.0, y), xycoords=where, color=colour, **beside))
        for x, y, name, colour in ends
    ]


def apart(axes: Axes, names: list) -> None:
    """Move the end labels of an axes apart, once its size is known; thin lines lead from the ends to the names."""
    renderer = axes.figure.canvas.get_renderer()
    box = axes.get_window_extent(renderer)
    heights = [name.get_window_extent(renderer).height + 1 for _, name in names]
    wanted = [axes.transData.transform((0, name.xy[1]))[1] for _, name in names]
    right = axes.transData.inverted().transform((box.x1 + 6 / 72 * axes.figure.dpi, 0))[0]  # 6 points beside the axes
    for (x, name), new in zip(names, spread(wanted, heights, box.y0, box.y1), strict=True):
        old = name.xy[1]
        name.xy = (1.0, axes.transData.inverted().transform((0, new))[1])
        how = {"color": name.get_color(), "linewidth": 0.4, "clip_on": False, "zorder": 1}
        axes.plot([x, right], [old, name.xy[1]], label="_leader", **how)
