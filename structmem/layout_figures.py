"""Figures of layouts: the share of memories in each domain, and the tokens that a layout adds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .alttext import data_words, marks_alt
from .house import label, new_axes, structure_style, style, tell
from .marks import (
    banded,
    footnote,
    legend,
    marker,
    name_rows,
    name_width,
    needs,
    percent_axis,
    point,
    refuse_twins,
    room,
    with_arm,
    x_label,
)


def domain_fill(fill: pd.DataFrame, width: str = "page") -> Axes:
    """Share of all memories in each domain, one marker per structure.

    Parameters
    ----------
    fill : DataFrame
        One row per structure × domain: ``structure``, ``domain``, ``share`` in [0, 1]; optional ``structurer`` or
        ``arm``. Domains are drawn in order of first appearance.
    """
    table = with_arm(fill)
    needs(table, "domain", "share")
    refuse_twins(table, ["arm", "domain"])
    domains = list(dict.fromkeys(table["domain"]))
    arms = list(dict.fromkeys(zip(table["arm"], table["structure"], strict=True)))
    names = [label(domain, name_width(width)) for domain in domains]
    lines = sum(name.count("\n") + 1 for name in names)
    note = data_words(table)
    with style():
        axes = new_axes(width, 0.85 + 0.17 * max(lines, len(domains)) * max(1.0, 0.45 * len(arms)) + room(note, width))
        height = 0.7 / len(arms)
        for index, (arm, structure) in enumerate(arms):
            rows = table[table["arm"] == arm].set_index("domain")["share"].reindex(domains)
            y = np.arange(len(domains)) + (index - (len(arms) - 1) / 2) * height
            axes.hlines(y, 0, 100 * rows, color=structure_style(structure)[0], linewidth=0.8, alpha=0.5)
            marker(axes, 100 * rows, y, structure)
        axes.set_yticks(range(len(domains)), names)
        axes.set_ylim(len(domains) - 0.4, -0.6)
        axes.set_xlim(0, max(5.0, 108 * table["share"].max()))
        percent_axis(axes, "share of memories")
        footnote(axes, note)
        legend(axes, arms)
        tell(axes, fill, marks_alt(table, "share", "share of all memories in each domain", ("domain", "arm"), "%", 100))
    return axes


def tokens_added(tokens: pd.DataFrame, width: str = "page") -> Axes:
    """Tokens that each layout adds to the flat list, a band of rows per renderer.

    Parameters
    ----------
    tokens : DataFrame
        One row per structure (× renderer): ``structure``, ``tokens_added`` (mean per entry), optional ``renderer``,
        ``structurer`` or ``arm``, and ``low``, ``high`` for a range.
    """
    table = with_arm(tokens)
    needs(table, "tokens_added")
    table = table.assign(model=table["renderer"] if "renderer" in table else "", low=table.get("low", np.nan))
    table["high"] = table.get("high", np.nan)
    note = data_words(tokens)
    with style():
        rows = banded(table, table["model"].nunique() > 1, width)
        axes = new_axes(width, 0.6 + 0.17 * (rows["y"].max() + 1) + room(note, width))
        axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
        for row in rows[rows["arm"].notna()].to_dict("records"):
            point(axes, row["y"], row["tokens_added"], row["low"], row["high"], row)
        name_rows(axes, rows)
        axes.grid(axis="x")
        x_label(axes, "tokens added to the flat list, per entry")
        footnote(axes, note)
        names = ("model", "arm") if table["model"].nunique() > 1 else ("arm",)
        tell(
            axes, tokens, marks_alt(table, "tokens_added", "tokens added to the flat list, per entry", names, "tokens")
        )
    return axes
