"""Figures of ambiguity: confusion matrices, misclassified shares by domain, and reductions beside ambiguity."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from .alttext import data_words, range_words
from .entry_ambiguity import MEASURES, OF
from .errors import InputError, choice
from .house import GREY, label, new_axes, page_width, shades, structure_style, style, tell
from .marks import (
    ECHO_NOTE,
    SMALL,
    footnote,
    label_outer,
    legend_above,
    name_width,
    needs,
    percent_axis,
    refuse_twins,
    room,
    said,
)
from .tables import signed

# Okabe and Ito's colours in an order of their own: a rater is no structure.
_RATERS = (("#0072B2", "s"), ("#D55E00", "D"), ("#009E73", "^"), ("#CC79A7", "v"), ("#56B4E9", "P"), ("#4D4D4D", "o"))
_ROW = 0.19  # inches of a row of a matrix
_AXES = {
    "entropy_bits": "entropy of gold-domain memories (bits)",
    "disagreement": "share of disagreeing pairs of raters",
    "several_acceptable": "share of gold-domain memories with several acceptable domains",
}
_REDUCED = {
    "reduction_pp": "reduction at K (pp)", "at_1_reduction_pp": "reduction at K = 1 (pp)",
    "mean_score_reduction": "reduction of the mean score",
}  # fmt: skip


def confusion_matrix(table: pd.DataFrame, width: str = "page") -> np.ndarray:
    """Confusion matrices, a panel per rater: primary labels by assigned domains, framed where they agree.

    Parameters
    ----------
    table : DataFrame
        As made by ``confusion``. Cells print memories (weights where weighted) and are shaded by their share of the
        row; columns that no rater used are left out.
    width : 'column' or 'page'

    Returns
    -------
    array of Axes
        One per rater.
    """
    needs(table, "rater", "reference", "assigned", "n_memories", "row_share")
    refuse_twins(table, ["rater", "reference", "assigned"])
    if not len(table):
        raise InputError("There is nothing to draw: the table has no rows.")
    raters = list(dict.fromkeys(table["rater"]))
    rows = list(dict.fromkeys(table["reference"]))
    used = table.groupby("assigned", sort=False)["n_memories"].sum()
    columns = [name for name in dict.fromkeys(table["assigned"]) if used[name] or name in rows]
    across = min(len(raters), 2 if page_width(width) > 4 else 1)
    lines = -(-len(raters) // across)
    total = f"{table.groupby('rater', sort=False)['n_memories'].sum().iloc[0]:.0f}"
    note = (
        "cells: memories; shade: share of the row; frames: assigned the primary label (off them a domain may still be "
        "acceptable); right: memories of the row"
    )
    with style():
        height = 0.95 + lines * (_ROW * len(rows) + 0.28) + room(note, width)
        grid = new_axes(width, height, across, lines, squeeze=False, sharex=True, sharey=True)
        for axes, rater in zip(grid.flat, raters, strict=False):
            mine = table[table["rater"] == rater]
            counts, shares = (
                mine.pivot(index="reference", columns="assigned", values=name).reindex(rows, columns=columns)
                for name in ("n_memories", "row_share")
            )
            _matrix(axes, counts, shares)
            axes.set_title(label(rater, 40))
        for place, axes in enumerate(grid.flat):
            axes.set_xlabel("assigned")
            if place % across == 0:
                axes.set_ylabel("primary label")
        label_outer(grid, len(raters))
        footnote(grid.flat[0], note)
        diagonal = table[table["reference"] == table["assigned"]]
        words = range_words(diagonal.assign(domain=diagonal["reference"]), "row_share", ("rater", "domain"))
        tell(
            grid, table, f"Confusion matrices of {total} memories, primary label by assigned domain, for "
            f"{', '.join(raters)}.",
            f"Share of a domain's memories that were assigned to it: {words}",
        )  # fmt: skip
    return grid.flatten()[: len(raters)]


def _matrix(axes: Axes, counts: pd.DataFrame, shares: pd.DataFrame) -> None:
    centred = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "in_layout": False}
    for y, row in enumerate(counts.index):
        paint = shades(shares.loc[row].fillna(0.0).to_numpy(dtype=float))
        for x, column in enumerate(counts.columns):
            n = counts.loc[row, column]
            (shade, on_shade), some = paint[x], n > 0
            face = shade if some else "#F7F7F7"
            cell = {"facecolor": face, "edgecolor": "white", "linewidth": 0.8, "in_layout": False}
            axes.add_artist(Rectangle((x - 0.5, y - 0.5), 1, 1, **cell))
            if row == column:
                frame = {"facecolor": "none", "edgecolor": "#404040", "linewidth": 0.8, "zorder": 3, "in_layout": False}
                axes.add_artist(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, **frame))
            if some:
                axes.text(x, y, f"{n:.0f}", color=on_shade, zorder=4, **centred)
        beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": SMALL, "color": "#5A5A5A"}
        axes.annotate(f"{counts.loc[row].sum():.0f}", (1.015, y), **beside)
    axes.set_xlim(-0.5, counts.shape[1] - 0.5)
    axes.set_ylim(len(counts) - 0.5, -0.5)
    axes.set_xticks(range(counts.shape[1]), [label(name, 24) for name in counts.columns], rotation=90)
    axes.set_yticks(range(len(counts)), [label(name, 24) for name in counts.index])
    axes.tick_params(length=0, pad=2)
    axes.spines["bottom"].set_visible(False)


def misclassified_by_domain(errors: pd.DataFrame, width: str = "page") -> Axes:
    """Share of each domain's memories that a rater put outside the acceptable set, with intervals.

    Parameters
    ----------
    errors : DataFrame
        As made by ``domain_errors``; at most six raters. Domains stand in the table's order, with the number of their
        memories; one without any has a dash.
    width : 'column' or 'page'
    """
    needs(errors, "rater", "domain", "n_memories", "misclassified_share", "misclassified_low", "misclassified_high")
    refuse_twins(errors, ["rater", "domain"])
    raters, domains = (list(dict.fromkeys(errors[name])) for name in ("rater", "domain"))
    if not 0 < len(raters) <= len(_RATERS):
        raise InputError(f"expected one to {len(_RATERS)} raters, got {len(raters)}: select some of them.")
    counts = errors.groupby("domain", sort=False)["n_memories"].agg(["min", "max"])
    names = [
        label(f"{name} ({low:.0f})" if low == high else f"{name} ({low:.0f}–{high:.0f})", name_width(width))
        for name, low, high in counts.itertuples()
    ]
    note = "in brackets: labelled memories of the domain; 95 % intervals, entries as clusters"
    with style():
        axes = new_axes(width, 0.75 + 0.17 * len(domains) * max(1.0, 0.5 * len(raters)) + room(note, width))
        for y, domain in enumerate(domains):
            if y % 2:
                axes.axhspan(y - 0.5, y + 0.5, color="#F5F5F5", zorder=0, linewidth=0)
            if not counts.loc[domain, "max"]:
                axes.text(0.0, y, "–", va="center", ha="center", color=GREY, fontsize=SMALL)
        for place, rater in enumerate(raters):
            colour, marker = _RATERS[place]
            mine = errors[(errors["rater"] == rater) & errors["misclassified_share"].notna()]
            nudge = 0.75 * (place - (len(raters) - 1) / 2) / len(raters)
            y = mine["domain"].map(domains.index).to_numpy(dtype=float) + nudge
            ends = [100 * mine[f"misclassified_{end}"].to_numpy(dtype=float) for end in ("low", "high")]
            axes.hlines(y, *ends, color=colour, linewidth=1.1, zorder=2, in_layout=False)
            x = 100 * mine["misclassified_share"]
            axes.plot(x, y, marker=marker, color=colour, linestyle="none", zorder=3, clip_on=False, in_layout=False)
        axes.set_yticks(range(len(domains)), names)
        axes.set_ylim(len(domains) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        percent_axis(axes, "memories outside the acceptable set")
        footnote(axes, note)
        handles = [
            Line2D([], [], color=c, marker=m, linestyle="none", label=label(rater))
            for rater, (c, m) in zip(raters, _RATERS, strict=False)
        ]
        legend_above(axes, handles)
        words = range_words(errors, "misclassified_share", ("rater", "domain"))
        tell(axes, errors, f"Misclassified memories by primary label, for {', '.join(raters)}. {words}")
    return axes


def reduction_by_ambiguity(
    reductions: pd.DataFrame,
    measure: str = "entropy_bits",
    effect: pd.DataFrame | None = None,
    column: str = "mean_score_reduction",
    width: str = "page",
) -> np.ndarray:
    """Each entry's reduction beside the ambiguity of its gold-domain memories, a panel per arm.

    Parameters
    ----------
    reductions : DataFrame
        As made by ``entry_reductions``; entries without gold-domain memories are not drawn. Entries with the same
        ambiguity stand side by side around it.
    measure : 'entropy_bits', 'disagreement' or 'several_acceptable'
    effect : DataFrame, optional
        As made by ``ambiguity_effect``: the slope stands in the title.
    column : 'reduction_pp', 'at_1_reduction_pp' or 'mean_score_reduction'
    width : 'column' or 'page'

    Returns
    -------
    array of Axes
        One per arm.
    """
    if measure not in MEASURES:
        raise choice("measure", measure, MEASURES)
    if column not in _REDUCED:
        raise choice("column", column, _REDUCED)
    needs(reductions, "arm", "entry_id", measure, column)
    table = reductions[reductions[measure].notna() & reductions[column].notna()]
    if not len(table):
        raise InputError(f"There is nothing to draw: no entry has both {measure} and {column}.")
    refuse_twins(table, ["arm", "entry_id"])
    arms = list(dict.fromkeys(table["arm"]))
    across = min(len(arms), 4 if page_width(width) > 4 else 2)
    lines = -(-len(arms) // across)
    counts = table.groupby("arm")["entry_id"].nunique()
    echo = "outcome" in table and table["outcome"].eq("echo").all()
    what = _REDUCED[column].replace("score", "overlap") if echo else _REDUCED[column]
    n = f"n = {counts.min()} entries" if counts.nunique() == 1 else f"n = {counts.min()}–{counts.max()} entries"
    slopes = "slopes with 95 % intervals, adjusted" if effect is not None else ""
    note = said(f"a point is an entry, {n}", slopes, ECHO_NOTE if echo else "", data_words(table))
    with style():
        height = 0.65 + 1.75 * lines + room(note, width)
        grid = new_axes(width, height, across, lines, squeeze=False, sharex=True, sharey=True)
        reach = (table[measure].max() - table[measure].min()) or 1.0
        for axes, arm in zip(grid.flat, arms, strict=False):
            mine = table[table["arm"] == arm].sort_values([measure, "entry_id"], kind="stable")
            colour, marker = structure_style(arm.split(" (")[0])
            face = "white" if arm.endswith("(A/A)") else colour
            at = mine.groupby(measure).cumcount()
            size = mine.groupby(measure)[measure].transform("size")
            x = mine[measure] + 0.012 * reach * (at - (size - 1) / 2)
            axes.axhline(0, color="#404040", linewidth=0.7, zorder=1)
            points = {"marker": marker, "color": colour, "markerfacecolor": face, "linestyle": "none", "alpha": 0.8}
            axes.plot(x, mine[column], markersize=3.5, in_layout=False, **points)
            axes.set_title(label(arm, 26) + _slope(effect, arm, measure, column), fontsize=7.5)
            axes.grid(axis="y")
        for place, axes in enumerate(grid.flat):
            if place % across == 0:
                axes.set_ylabel(what)
            axes.set_xlabel(label(_AXES[measure], 24))
        label_outer(grid, len(arms))
        footnote(grid.flat[0], note)
        told = "Above 0 the structure reduces."
        tell(grid, table, f"Points: {what} by {_AXES[measure]}, for {', '.join(arms)}; {n}. {told}")
    return grid.flatten()[: len(arms)]


def _slope(effect: pd.DataFrame | None, arm: str, measure: str, column: str) -> str:
    if effect is None:
        return ""
    rows = effect[(effect["arm"] == arm) & (effect["term"] == measure)]
    rows = rows[rows["of"].isin([names[column] for names in OF.values()])]
    if not len(rows) or pd.isna(rows.iloc[0]["effect"]):
        return "\nno slope"
    row = rows.iloc[0]
    numbers = [row[name] for name in ("effect", "effect_low", "effect_high")]
    texts = [
        signed(value) if column.endswith("_pp") else f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
        for value in numbers
    ]
    return f"\n{texts[0]} [{texts[1]}, {texts[2]}]"
