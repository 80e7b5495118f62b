"""Curves: the failure rate by number of generations, and the power of a comparison by number of entries."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .alttext import analysis_words, curve_alt, interval_words, n_words, power_alt
from .data import FAILURE_TYPES
from .errors import InputError
from .house import label, new_axes, page_width, shades, structure_style, style, tell
from .marks import (
    ECHO_NOTE,
    apart,
    arms_in_order,
    end_labels,
    footnote,
    label_outer,
    legend,
    needs,
    of_type,
    refuse_twins,
    room,
    said,
    with_arm,
    x_label,
)
from .tables import failure_type_words

_TESTS = {"mcnemar exact": "exact McNemar test", "score": "score test"}
_PANELS_WITH_NAMES = {"page": 4, "column": 3}  # with more panels one legend is calmer than the names in each


def failure_by_k(curve: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> np.ndarray:
    """Failure rate (FR@K) by K, the number of generations made; a panel per model, a line per arm.

    Parameters
    ----------
    curve : DataFrame
        As made by ``fr_at_k``: ``k``, ``fr_at_k`` (or ``echo_at_k``) in [0, 1], ``low``, ``high``.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'

    Returns
    -------
    array of Axes
        One per model. Points of one K stand a little apart, so that intervals do not hide each other.
    """
    needs(curve)
    column = next((name for name in ("fr_at_k", "echo_at_k") if name in curve), None)
    if column is None or "k" not in curve:
        raise InputError("The table lacks 'k' with 'fr_at_k' or 'echo_at_k'; expected the one made by fr_at_k.")
    table = with_arm(of_type(curve, failure_type))
    table = table.assign(model=table["model"] if "model" in table else "all models")
    refuse_twins(table, ["model", "arm", "k"])
    models, arms = list(dict.fromkeys(table["model"])), arms_in_order(table)
    named = len(models) <= _PANELS_WITH_NAMES[width]
    across = min(len(models), 3 if width == "page" else 1 if named else 2)
    lines = -(-len(models) // across)
    wrap = 30 if across == 1 and width == "page" else 15
    names_tall = 0.125 * sum(label(arm, wrap).count("\n") + 1 for arm, _ in arms) * named
    tall = max(1.9 if len(models) == 1 else 1.3 if width == "column" else 1.4, names_tall)
    echo = column == "echo_at_k"
    what = "echo rate" if echo else failure_type_words(failure_type).split(" (")[0]
    kind = FAILURE_TYPES.get(failure_type)
    counts = "worst" if kind is None or kind.high_is_bad else "best"  # FR@K takes the highest score
    kay = f"K generations, of which the {counts} counts" if across > 1 else ""
    note = said(kay, n_words(table), interval_words(table), analysis_words(table), ECHO_NOTE if echo else "")
    top = 100 * np.nanmax(table[[column, "high"]].to_numpy(dtype=float), initial=0.05)
    with style():
        heads = [
            label(model, int((page_width(width) / across - (0.6 if named or width == "page" else 0.35)) / 0.075))
            for model in models
        ]
        more = 0.12 * max(head.count("\n") for head in heads)
        height = 0.3 + lines * (tall + 0.5 + more) + 0.25 * (not named) + room(note, width)
        grid = new_axes(width, height, across, lines, squeeze=False, sharex=True, sharey=True)
        names = []
        for axes, model, head in zip(grid.flat, models, heads, strict=False):
            ends = _lines_of(axes, table[table["model"] == model], arms, column)
            axes.set_title(head)
            axes.set_ylim(0, min(100, 10 * np.ceil(top / 10)))
            axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
            axes.set_xticks(sorted(table["k"].unique()))
            axes.set_xlim(table["k"].min() - 0.35, table["k"].max() + 0.35)
            axes.grid(axis="y")
            axes.set_xlabel(f"K generations, the {counts} counts" if across == 1 else "K")
            axes.set_ylabel(f"{what} (FR@K)" if not echo else "echo at K")
            names.append(end_labels(axes, ends, wrap) if named else [])
        label_outer(grid, len(models))
        footnote(grid.flat[0], note)
        if not named:
            legend(grid.flat[0], arms)
        _settle(grid.flat[: len(models)], names)
        tell(grid, curve.iloc[table.index], curve_alt(table, column, what, counts), ECHO_NOTE if echo else "")
    return grid.flatten()[: len(models)]


def _lines_of(axes: Axes, rows: pd.DataFrame, arms: list[tuple[str, str]], column: str) -> list[tuple]:
    """Draw a line per arm; returns where the lines end, with their names and colours."""
    ends, step = [], min(0.09, 0.5 / len(arms))
    for place, (arm, structure) in enumerate(arms):
        mine = rows[(rows["arm"] == arm) & rows[column].notna()].sort_values("k")
        if not len(mine):
            continue
        colour, sign = structure_style(structure)
        aa = arm.endswith("(A/A)")
        x = mine["k"].to_numpy() + step * (place - (len(arms) - 1) / 2)
        how = {"color": colour, "linewidth": 1.0, "linestyle": (0, (3, 1.5)) if aa else "-"}
        axes.vlines(x, 100 * mine["low"], 100 * mine["high"], color=colour, linewidth=0.8, alpha=0.7)
        face = "white" if aa else colour
        axes.plot(x, 100 * mine[column], marker=sign, markerfacecolor=face, clip_on=False, zorder=3, **how)
        ends.append((x[-1], 100 * mine[column].iloc[-1], arm, colour))
    return ends


def _settle(panels, names: list[list]) -> None:
    """Lay the figure out once, then move the names at the lines' ends apart in panels whose size is now known."""
    if any(names):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of characters that the font lacks; saving replaces them
            panels[0].figure.draw_without_rendering()
        for axes, of_axes in zip(panels, names, strict=True):
            if of_axes:
                apart(axes, of_axes)


def power_by_entries(power: pd.DataFrame, n: int | None = None, width: str = "page") -> Axes:
    """Power of a paired comparison by the number of entries, a line per true difference, with the wanted power marked.

    Parameters
    ----------
    power : DataFrame
        As made by ``power_curve``, one discordant share and one test.
    n : int, optional
        Entries of the study at hand, marked by a line; the smallest difference that it detects is said where the table
        has a row for it.
    width : 'column' or 'page'

    Raises
    ------
    InputError
        Missing columns, or several rows for one difference and n.
    """
    needs(power)
    if lacking := [name for name in ("difference_pp", "n_entries", "power") if name not in power]:
        raise InputError(f"The table lacks {lacking}; expected the one made by power_curve.")
    if not len(power):
        raise InputError("There is nothing to draw: the table has no rows.")
    if power.duplicated(["difference_pp", "n_entries"]).any():
        raise InputError("Several rows for one difference and n: select one discordant share and one test first.")
    target = float(power["target_power"].iloc[0]) if "target_power" in power else 0.8
    differences = sorted(power["difference_pp"].unique())
    colours = [colour for colour, _ in shades(np.linspace(0.45, 1.0, len(differences)))]
    note = _power_note(power, n, target)
    with style():
        tall = max(1.7, 0.14 * len(differences))
        axes = new_axes(width, 0.65 + tall + room(note, width))
        ends = []
        for difference, colour in zip(differences, colours, strict=True):
            rows = power[(power["difference_pp"] == difference) & power["power"].notna()].sort_values("n_entries")
            if len(rows):
                axes.plot(rows["n_entries"], 100 * rows["power"], color=colour, linewidth=1.2)
                ends.append((rows["n_entries"].iloc[-1], 100 * rows["power"].iloc[-1], f"{difference:g} pp", colour))
        axes.axhline(100 * target, color="#707070", linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        low, high = power["n_entries"].min(), power["n_entries"].max()
        low, high = (min(low, n or low), max(high, n or high))
        axes.set_xlim(low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5)
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 20, 40, 60, 80, 100] if target == 0.8 else sorted({0, 20, 40, 60, 100, 100 * target}))
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))
        axes.xaxis.set_major_locator(MaxNLocator(8 if width == "page" else 5, integer=True, steps=[1, 2, 2.5, 5, 10]))
        axes.grid(axis="y")
        axes.set_ylabel("power")
        x_label(axes, "n, entries complete in both arms")
        if n:
            axes.axvline(n, color="black", linewidth=0.9, zorder=1)
            side = "left" if n < (low + high) / 2 else "right"
            at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (0, 2)}
            axes.annotate(f"n = {n:,}", (n, 1.0), ha=side, va="bottom", fontsize=7, **at)
        footnote(axes, note)
        _settle([axes], [end_labels(axes, ends, 16)])
        tell(axes, power, power_alt(power[power["power"].notna()], n, target), note)
    return axes


def _power_note(power: pd.DataFrame, n: int | None, target: float) -> str:
    """Which test, what discordance, what this study detects, and which differences cannot be drawn."""
    first, share = power.iloc[0], ""
    if "discordant_share" in power:
        share = f"{100 * first['discordant_share']:.1f} % of entries differ between the arms"
    own = power[(power["n_entries"] == n) & power["detectable_pp"].notna()] if "detectable_pp" in power else power[:0]
    detects = ""
    if len(own):
        detects = f"n = {n:,} detects {own['detectable_pp'].iloc[0]:.1f} pp with {100 * target:g} % power"
    empty = power.groupby("difference_pp")["power"].apply(lambda values: values.isna().all())
    lost = ", ".join(f"{difference:g} pp" for difference in empty[empty].index)
    return said(
        f"{_TESTS.get(first['test'], first['test'])}, two-sided" if "test" in power else "two-sided test",
        share,
        "lines: true difference",
        detects,
        f"not possible with this share: {lost}" if lost else "",
    )
