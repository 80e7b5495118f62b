"""Marks on axes: rows in bands, points with intervals, labels, footnotes and legends, as the figures share them."""

from __future__ import annotations

import warnings

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from .errors import InputError
from .house import GREY, label, page_width, structure_style
from .outcomes import display_structure, setting_words, told_apart
from .tables import signed


def with_arm(table: pd.DataFrame) -> pd.DataFrame:
    """The table with both the display name of each arm and its structure."""
    table = table.copy()
    if "structure" not in table:
        table["structure"] = [arm.split(" (")[0] for arm in table["arm"]]
    if "arm" not in table:
        structurers = table["structurer"] if "structurer" in table else [None] * len(table)
        names = list(map(display_structure, table["structure"], structurers))
        table.insert(table.columns.get_loc("structure") + 1, "arm", names)
    return table


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
            more = setting_words(row, told_apart(table, group[group["arm"] == row["arm"]]))
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
    axes.set_ylim(rows["y"].max() + 0.6, -0.6)


def point(axes: Axes, y: float, x: float, low: float, high: float, row: dict, hollow: bool = False) -> None:
    colour, _ = structure_style(row["structure"])
    hollow = hollow or row["arm"].endswith("(A/A)")
    if pd.isna(x):
        axes.text(0.02, y, "not scored", transform=axes.get_yaxis_transform(), va="center", color=GREY, fontsize=6.5)
        return
    if not pd.isna(low):
        dashes = (0, (3, 1.5)) if hollow else "-"
        axes.plot([low, high], [y, y], color=colour, linewidth=1.1, linestyle=dashes, zorder=2)
    marker(axes, x, y, row["structure"], hollow)


def marker(axes: Axes, x: object, y: object, structure: str, hollow: bool = False) -> None:
    colour, marker = structure_style(structure)
    face = "white" if hollow else colour
    axes.plot(x, y, marker=marker, color=colour, markerfacecolor=face, linestyle="none", zorder=3, clip_on=False)


def generations(table: pd.DataFrame) -> int | None:
    found = set(table["n_generations"]) if "n_generations" in table else set()
    return int(found.pop()) if len(found) == 1 else None


def percent_axis(axes: Axes, words: str) -> None:
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))
    axes.grid(axis="x")
    x_label(axes, words)


def x_label(axes: Axes, words: str) -> None:
    """On a narrow page the axis sits to the right, so its label ends there and may start left of the axis."""
    wide = axes.figure.get_size_inches()[0] > 4
    axes.set_xlabel(label(words, 90 if wide else 50), loc="center" if wide else "right")


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
        axes.figure.supxlabel(label(text, int(17 * inches)), x=0.99, ha="right", fontsize=6.5, color="#5A5A5A")


def handle(name: str, structure: str, hollow: bool = False) -> Line2D:
    colour, marker = structure_style(structure)
    face = "white" if hollow else colour
    return Line2D([], [], color=colour, marker=marker, markerfacecolor=face, linestyle="none", label=label(name))


def legend(axes: Axes, arms: list, hollow: tuple = ()) -> None:
    """A legend above the axes with an entry per arm: a name, or a pair of name and structure."""
    pairs = [arm if isinstance(arm, tuple) else (arm, arm) for arm in arms]
    handles = [handle(name, structure, structure in hollow) for name, structure in pairs]
    figure = axes.figure
    width, height = figure.get_size_inches()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the font lacks; saving replaces them
        for columns in range(len(handles) if width > 4 else min(2, len(handles)), 0, -1):
            made = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
            box = made.get_window_extent(figure.canvas.get_renderer())
            if columns == 1 or box.width < 0.98 * figure.bbox.width:
                break
            made.remove()
    # The page has room for three lines of names; more of them shall not press the axes flat.
    figure.set_size_inches(width, height + max(0.0, box.height / figure.dpi - 0.45))
