"""Figures of flows: grids of memory domain by query domain, in which only cells with enough entries have a colour."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import isnan

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .alttext import analysis_words
from .data import FAILURE_TYPES
from .errors import InputError, choice
from .flows import ALL, FEW, flow_grid
from .house import label, new_axes, shades, style, tell
from .marks import ECHO_NOTE, SMALL, footnote, generations, needs, refuse_twins, room, said, with_arm
from .tables import failure_type_words

_FAINT, _ON_FAINT = "#E6E6E6", "#5A5A5A"  # too few entries for a colour
_SIDES = "PuOr"  # told apart by every kind of colour vision; its paler part, on which black is read
_ROW = 0.19  # inches
_COLUMNS = {"rate": ("rate", "difference_pp", "low_pp", "high_pp")}
_COLUMNS["mean_score"] = ("mean_score", "mean_score_difference", "mean_score_low", "mean_score_high")
Paint = Callable[[float], tuple]


def flow_counts(counts: pd.DataFrame, width: str = "column") -> Axes:
    """Number of entries by memory domain and query domain; fewer than 10 are grey, none blank.

    Parameters
    ----------
    counts : DataFrame
        As made by ``flow_counts``, or one arm of ``domain_flows``.
    width : 'column' or 'page'
    """
    needs(counts, "memory_domain", "query_domain", "n_entries")
    refuse_twins(counts, ["memory_domain", "query_domain"])
    n = flow_grid(counts)
    note = f"cells: entries; grey: fewer than {FEW}; blank: none"
    with style():
        axes = new_axes(width, 0.95 + _ROW * len(n) + room(note, width))
        _panel(axes, n, n, "{:.0f}".format, _shaded(_most(n.iloc[:-1]), 0))
        _name([[axes]], n)
        footnote(axes, note)
        tell(axes, counts, f"Grid of entries by the domain of memory (rows) and of query (columns). {_spread(n)}")
    return axes


def domain_flows(flows: pd.DataFrame, value: str = "rate", width: str = "page") -> np.ndarray:
    """Four grids of memory domain by query domain: entries, the baseline, the arm, and their difference.

    Parameters
    ----------
    flows : DataFrame
        Rows of one model and arm of ``domain_flows``. Cells with fewer than 10 entries are grey in every grid and have
        no difference; cells without an entry are blank.
    value : 'rate' or 'mean_score'
    width : 'column' or 'page'
        In a column the grids stand one below the other.

    Returns
    -------
    array of Axes
        In that order.

    Raises
    ------
    InputError
        A table without rows, or with several arms or models.
    """
    if value not in _COLUMNS:
        raise choice("value", value, _COLUMNS)
    side, change, low, high = _COLUMNS[value]
    needs(flows, "memory_domain", "query_domain", "n_entries", "baseline", "outcome", f"{side}_arm", change, low, high)
    if not len(flows):
        raise InputError("There is nothing to draw: the table has no rows.")
    table = with_arm(flows)
    refuse_twins(table, ["memory_domain", "query_domain"])
    first = table.iloc[0]
    rates, echo = value == "rate", first["outcome"] == "echo"
    what = _what(table, rates, echo)
    grids = {name: flow_grid(table, f"{side}_{name}") for name in ("baseline", "arm")}
    n, apart = flow_grid(table), flow_grid(table, change)
    sure = (flow_grid(table, low) > 0) | (flow_grid(table, high) < 0)
    scale = 100 if rates else 1
    kind = FAILURE_TYPES.get(first["failure_type"])
    bottom, top = (0, 1) if rates or echo or kind is None else (kind.low, kind.high)  # the same shades in every figure
    reach = max(_most(apart.abs()), 10.0 if rates else 0.1)
    note = said(
        f"cells: entries, then {what}{' in %' * rates} and its difference{' in pp' * rates}; grey: fewer than {FEW} "
        "entries, without a difference; blank: none; bold: the 95 % interval, not adjusted for the number of cells, "
        "excludes 0",
        str(first.get("model", "")),
        ECHO_NOTE * echo,
        analysis_words(table),
    )
    across = 2 if width == "page" else 1
    with style():
        lines = 4 // across
        height = lines * (_ROW * len(n) + 0.3) + 0.6 + room(note, width)
        grid = new_axes(width, height, across, lines, squeeze=False, sharex=True, sharey=True)
        panels = grid.flatten()
        _panel(panels[0], n, n, "{:.0f}".format, _shaded(_most(n.iloc[:-1]), 0))
        plain = partial(_number, digits=0 if rates else 2, scale=scale)
        for axes, values in zip(panels[1:], grids.values(), strict=False):
            _panel(axes, values, n, plain, _shaded(top, bottom))
        changed = partial(_number, digits=0 if rates else 2, sign=True)
        _panel(panels[3], apart, n, changed, partial(_two_sided, reach), sure)
        heads = ["entries", first["baseline"], first["arm"], f"{first['arm']} − {first['baseline']}"]
        for axes, head in zip(panels, heads, strict=True):
            axes.set_title(label(head, 44))
        _name(grid, n)
        footnote(panels[0], note)
        tell(grid, flows, _alt(heads, what, n, apart, sure, scale))
    return panels


def _what(table: pd.DataFrame, rates: bool, echo: bool) -> str:
    if not rates:
        return "mean overlap" if echo else "mean score"
    return "echo rate" if echo else failure_type_words(table["failure_type"].iloc[0], generations(table))


def _most(values: pd.DataFrame) -> float:
    """The largest number; a hair above 0 where there is none, so that a scale can end there."""
    most = float(values.max().max())
    return 1e-9 if isnan(most) else max(most, 1e-9)


def _number(value: float, digits: int, scale: float = 1, sign: bool = False) -> str:
    rounded = round(scale * value, digits) + 0.0  # no negative nothing
    return f"{rounded:{'+' if sign and rounded else ''}.{digits}f}".replace("-", "−")


def _shaded(top: float, bottom: float) -> Paint:
    return lambda value: shades([np.clip((value - bottom) / max(top - bottom, 1e-9), 0, 1)])[0]


def _two_sided(reach: float, value: float) -> tuple:
    return matplotlib.colormaps[_SIDES](0.5 - 0.3 * value / reach), "black"


def _panel(
    axes: Axes, values: pd.DataFrame, n: pd.DataFrame, text: Callable, paint: Paint, bold: pd.DataFrame | None = None
) -> None:
    """Cells with their numbers: a colour from `FEW` entries on, grey below, nothing without an entry."""
    for y, x in product(range(len(n)), range(len(n))):
        value, entries = float(values.iat[y, x]), n.iat[y, x]
        if not entries:
            continue
        face, ink = paint(value) if entries >= FEW and not isnan(value) else (_FAINT, _ON_FAINT)
        how = {"facecolor": face, "edgecolor": "white", "linewidth": 0.6, "in_layout": False}
        axes.add_artist(Rectangle((x - 0.5, y - 0.5), 1, 1, **how))
        if not isnan(value):
            heavy = "bold" if bold is not None and bold.iat[y, x] else "normal"
            centred = {"ha": "center", "va": "center_baseline", "in_layout": False}
            axes.text(x, y, text(value), color=ink, fontsize=SMALL, fontweight=heavy, **centred)
    axes.set_xlim(-0.5, len(n) - 0.5)
    axes.set_ylim(len(n) - 0.5, -0.5)
    for line in (axes.axhline, axes.axvline):  # the margins stand apart
        line(len(n) - 1.5, color="#404040", linewidth=0.6)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0, pad=2)


def _name(grid, n: pd.DataFrame) -> None:
    """Names of domains at the left and under the lowest grids."""
    names = [label(name, 14) for name in n.index]
    for line, axes in enumerate(grid):
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylabel("memory domain")
        for one in axes if line == len(grid) - 1 else ():
            one.set_xticks(range(len(names)), names, rotation=90)
            one.set_xlabel("query domain")


def _spread(n: pd.DataFrame) -> str:
    """How the entries lie in the grid, as a sentence."""
    inner = n.drop(index=ALL, columns=ALL).to_numpy()
    filled, enough = int((inner > 0).sum()), int((inner >= FEW).sum())
    return (
        f"{int(inner.sum()):,} entries in {filled} of {inner.size} cells, at most {int(inner.max())} in one; cells "
        f"with {FEW} or more: {enough}."
    )


def _alt(heads: list, what: str, n: pd.DataFrame, apart: pd.DataFrame, sure: pd.DataFrame, scale: float) -> str:
    unit, digits = ("pp", 0) if scale == 100 else ("", 2)
    found = [
        f"{row} to {column} {_number(apart.at[row, column], digits, sign=True)} {unit}".strip()
        for row, column in product(n.index, n.columns)
        if sure.at[row, column]
    ]
    total = apart.at[ALL, ALL]
    return " ".join(
        [
            f"Four grids of memory domain (rows) by query domain (columns): {'; '.join(heads)}; {what}.",
            _spread(n),
            ""
            if isnan(total)
            else f"All together the difference is {_number(total, digits, sign=True)} {unit}".strip() + ".",
            f"The 95 % interval excludes 0 in: {'; '.join(found)}." if found else "No 95 % interval excludes 0.",
        ]
    )
