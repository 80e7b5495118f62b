"""Grids and bars: the heat map of rates by structure and defence, and how the judge's scores are distributed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from .alttext import analysis_words, heat_alt, n_words, scores_alt
from .data import FAILURE_TYPES
from .errors import InputError
from .house import GREY, label, new_axes, page_width, printable, shades, style, tell
from .marks import (
    ECHO_NOTE,
    SMALL,
    arms_in_order,
    banded,
    footnote,
    generations,
    label_outer,
    legend_above,
    models_in_order,
    name_rows,
    needs,
    of_type,
    percent_axis,
    rate_rows,
    rate_words,
    refuse_twins,
    room,
    said,
    with_arm,
)
from .tables import DASH, failure_type_words

_CELL, _LEAST_CELL = 0.36, 0.25  # inches that a cell needs for a rate with one decimal, and without
_TALLEST = 8.5  # inches of a printed page


def structure_by_defence(rates: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> np.ndarray:
    """Rates as a grid of structures and defences, a panel per model; cells print the rate, and n where it varies.

    Parameters
    ----------
    rates : DataFrame
        As made by ``failure_rate`` by model, structure and defence, or ``load_published``. Cells without a row or a
        rate stay blank, hatched, with '–'. Shades run from 0 to 100 % in every figure.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'

    Returns
    -------
    array of Axes
        One per model, in the order of the table.

    Raises
    ------
    InputError
        A table without ``defence``, or with several rows for a cell.
    """
    table, column = rate_rows(rates, failure_type)
    if "defence" not in table:
        raise InputError("The table lacks the column 'defence'; expected rates by model, structure and defence.")
    table = table[~table["arm"].str.endswith("(A/A)")]
    refuse_twins(table, ["model", "arm", "defence"])
    models = models_in_order(table)
    defences = sorted(dict.fromkeys(table["defence"]), key=lambda name: name != "standard")
    arms = [arm for arm, _ in arms_in_order(table)]
    inside = page_width(width) - 0.95
    across = _across(len(models), inside, len(arms), 0.3 * len(defences) + 0.3)
    cell = (inside / across - 0.1) / len(arms)
    lines = -(-len(models) // across)
    names, turned = _column_names(arms, cell)
    what = rate_words(table, column, failure_type)
    counts = table["n_entries"] if "n_entries" in table else pd.Series(dtype=float)
    one_n = counts.notna().all() and counts.nunique() == 1
    inside_cells = f"in each cell: {what} in %" + ", under it the number of entries" * (not one_n)
    every = f"{n_words(table)} in every cell" if one_n else ""
    note = said(inside_cells, every, f"{DASH}: no rate", analysis_words(table), ECHO_NOTE * (column == "echo_rate"))
    with style():
        below = 0.055 * max(map(len, "\n".join(names).split("\n"))) if turned else 0.11 * max(map(_lines, names))
        ends = 2 if lines > 1 and len(models) % across else 1  # lines under which the names of columns stand
        heads = [label(model, max(14, int(inside / across / 0.07))) for model in models]
        panel = 0.3 * len(defences) + 0.12 * max(map(_lines, heads)) + 0.16
        grid = new_axes(
            width,
            0.25 + lines * panel + below * ends + room(note, width),
            across,
            lines,
            squeeze=False,
            sharex=True,
            sharey=True,
        )
        for axes, model, head in zip(grid.flat, models, heads, strict=False):
            cells = table[table["model"] == model].set_index(["defence", "arm"])
            for y, defence in enumerate(defences):
                for x, arm in enumerate(arms):
                    row = cells.loc[(defence, arm)] if (defence, arm) in cells.index else None
                    _cell(axes, x, y, row, column, cell, not one_n)
            axes.set_title(head)
            axes.set_xlim(-0.5, len(arms) - 0.5)
            axes.set_ylim(len(defences) - 0.5, -0.5)
            axes.set_xticks(range(len(arms)), names, rotation=90 if turned else 0)
            axes.set_yticks(range(len(defences)), [label(str(name).replace("_", " "), 14) for name in defences])
            axes.tick_params(length=0, pad=3)
            axes.spines["bottom"].set_visible(False)
        label_outer(grid, len(models))
        footnote(grid.flat[0], note)
        blank = len(models) * len(defences) * len(arms) - int(table[column].notna().sum())
        tell(grid, rates.iloc[table.index], heat_alt(table, column, what, blank, not one_n))
    return grid.flatten()[: len(models)]


def _across(n_models: int, inside: float, n_arms: int, panel: float) -> int:
    """Panels in a line: as many as leave room for decimals; more, without them, where the page would be too short."""
    wide, narrow = (
        max([1, *(k for k in range(2, n_models + 1) if (inside / k - 0.1) / n_arms >= least)])
        for least in (_CELL, _LEAST_CELL)
    )
    return wide if panel * -(-n_models // wide) <= _TALLEST else narrow


def _column_names(arms: list[str], cell: float) -> tuple[list[str], bool]:
    """Names of columns, wrapped to the width of a cell; where one is too long for that, all are turned."""
    room_for = max(int(cell / 0.062), 1)
    longest = max(len(word) for arm in arms for word in printable(arm).split() or [""])
    names = [label(arm, room_for) for arm in arms]
    if longest <= room_for and max(map(_lines, names)) <= 3:
        return names, False
    return [label(arm, 34 if cell > 0.26 else 70) for arm in arms], True


def _cell(axes: Axes, x: int, y: int, row: pd.Series | None, column: str, width: float, with_n: bool) -> None:
    rate = np.nan if row is None else row[column]
    blank = {"facecolor": "white", "edgecolor": "#C4C4C4", "hatch": "////", "linewidth": 0.0}
    ((shade, on_shade),) = shades([0.0 if np.isnan(rate) else float(rate)])
    how = blank if np.isnan(rate) else {"facecolor": shade, "edgecolor": "white", "linewidth": 0.8}
    axes.add_artist(Rectangle((x - 0.5, y - 0.5), 1, 1, in_layout=False, **how))
    centred = {"ha": "center", "va": "center", "color": on_shade, "in_layout": False}
    number = DASH if np.isnan(rate) else f"{100 * rate:.{int(width > 0.23 and rate < 1)}f}"
    n = "" if not with_n or row is None or pd.isna(row.get("n_entries")) else f"{int(row['n_entries']):d}"
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"} if np.isnan(rate) else None
    axes.text(x, y - (0.17 if n else 0), number, fontsize=7, bbox=box, **centred)
    if n:
        axes.text(x, y + 0.24, n, fontsize=SMALL, **centred)


def score_bars(scores: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> Axes:
    """Shares of the judge's scores, one stacked bar per arm; a black line stands where failing begins or ends.

    Parameters
    ----------
    scores : DataFrame
        As made by ``score_distribution``: shares of single answers, over the entries whose answers are all scored. The
        entries that are not are counted beside the bar.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'
    """
    table = with_arm(of_type(scores, failure_type))
    needs(table, "score", "share")
    table = table.assign(model=table["model"] if "model" in table else "all models")
    arms = _one_row_per_arm(table)
    values = sorted(int(score) for score in table["score"].unique())
    high_is_bad = FAILURE_TYPES[failure_type].high_is_bad if failure_type in FAILURE_TYPES else True
    limits = sorted(set(table["threshold"].dropna()))
    limit = limits[0] if len(limits) == 1 else None
    rule = _rule(limit, high_is_bad)
    one_model = arms["model"].nunique() == 1
    what = failure_type_words(failure_type).split(" (")[0]
    aside = "right: entries, in brackets those left out because an answer is not scored"
    note = said(rule, aside, f"{generations(table) or 'several'} answers per entry", analysis_words(table))
    with style():
        rows = banded(arms, not one_model, width)
        axes = new_axes(width, 0.85 + 0.2 * (rows["y"].max() + 1) + room(note, width))
        _bars(axes, rows[rows["arm"].notna()], values, limit, 0.055 if width == "page" else 0.11)
        name_rows(axes, rows)
        axes.set_xlim(0, 100)
        percent_axis(axes, f"share of answers, {what} scores")
        if one_model:
            axes.set_title(label(arms["model"].iloc[0], 70 if width == "page" else 34))
        footnote(axes, note)
        colours = _score_shades(values)
        named = [(value, f"{'score ' * (value == values[0])}{value}") for value in values]
        legend_above(axes, [Patch(facecolor=colours[value][0], label=name) for value, name in named])
        tell(axes, scores.iloc[table.index], scores_alt(arms, what, f"{rule[:1].upper()}{rule[1:]}."))
    return axes


def _one_row_per_arm(table: pd.DataFrame) -> pd.DataFrame:
    varying = ("score", "share", "low", "high", "n_with_score", "interval", "reason")
    same = [column for column in table if column not in varying]
    rows = []
    for key, group in table.groupby(same, dropna=False, sort=False):
        if group["score"].duplicated().any():
            raise InputError(f"{group['arm'].iloc[0]} has a score twice: select one renderer, defence or judge first.")
        rows.append(
            dict(zip(same, key, strict=True)) | {"shares": dict(zip(group["score"], group["share"], strict=True))}
        )
    return pd.DataFrame(rows)


def _rule(limit: float | None, high_is_bad: bool) -> str:
    if limit is None:
        return "thresholds differ between the bars: black lines mark where failing begins or ends"
    side = f"an answer fails from score {limit:g} on" if high_is_bad else f"an answer fails below score {limit:g}"
    return f"black line: {side}"


def _score_shades(values: list[int]) -> dict[int, tuple[tuple, str]]:
    return dict(zip(values, shades(np.linspace(0.06, 0.94, len(values))), strict=True))


def _bars(axes: Axes, rows: pd.DataFrame, values: list[int], limit: float | None, least: float) -> None:
    """Stack the shares of each row's scores; print those of at least `least`, the entries, and where failing starts."""
    shares = 100 * np.array([[row.get(value, np.nan) for value in values] for row in rows["shares"]], dtype=float)
    scored = ~np.isnan(shares).any(axis=1)
    left = np.cumsum(shares, axis=1) - shares
    y, colours = rows["y"].to_numpy(dtype=float), _score_shades(values)
    for place, value in enumerate(values):
        colour, on_colour = colours[value]
        how = {"height": 0.66, "color": colour, "edgecolor": "#FFFFFF", "linewidth": 0.5, "in_layout": False}
        axes.barh(y[scored], shares[scored, place], left=left[scored, place], **how)
        centred = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "color": on_colour, "in_layout": False}
        for at in np.flatnonzero(shares[:, place] >= 100 * least):
            axes.text(left[at, place] + shares[at, place] / 2, y[at], f"{shares[at, place]:.0f}", **centred)
    line = {"color": "black", "linewidth": 1.4, "clip_on": False, "in_layout": False}
    beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": SMALL}
    for at, row in enumerate(rows.to_dict("records")):
        lost = f" ({row['n_unscored']:.0f})" if row.get("n_unscored") else ""
        axes.annotate(f"{row['n_entries']:.0f}{lost}", (1.02, row["y"]), **beside)
        if not scored[at]:
            axes.text(1, row["y"], "not scored", va="center", color=GREY, fontsize=SMALL)
        elif (row["threshold"] if limit is None else limit) in values:
            x = left[at, values.index(row["threshold"] if limit is None else limit)]
            axes.plot([x, x], [row["y"] - 0.46, row["y"] + 0.46], **line)


def _lines(text: str) -> int:
    return text.count("\n") + 1
