"""Figures of costs: tokens in all by number of queries, and what of a prompt a cache keeps after an addition."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from .errors import InputError
from .house import GREY, new_axes, structure_style, style, tell
from .marks import (
    apart,
    banded,
    end_labels,
    footnote,
    legend_above,
    name_rows,
    needs,
    refuse_twins,
    room,
    with_arm,
    x_label,
)

_SHARES = {
    "context_kept_share": ("of the context, one memory added", "full"),
    "prompt_kept_share": ("of the prompt, one memory added", "none"),
    "unchanged_share": ("of the prompt, only another query", "left"),
}


def spent_by_queries(spent: pd.DataFrame, width: str = "page") -> Axes:
    """Tokens in all against those of the flat list, by the number of queries; a line per layout and who sorts.

    Parameters
    ----------
    spent : DataFrame
        As made by ``spent_by_queries``. Dashed: a model sorts or chooses. Above the line: more than the flat list.
    width : 'column' or 'page'
    """
    needs(spent, "structure", "structurer", "queries", "ratio")
    refuse_twins(spent, ["structure", "structurer", "queries"])
    if not len(spent):
        raise InputError("There is nothing to draw: the table has no rows.")
    lines = spent[spent["structure"] != "flat"].groupby(["structure", "structurer"], sort=False)
    note = "sorting, prompts and answers; dashed: a model sorts or chooses, else nobody or the embedding structurer"
    with style():
        axes = new_axes(width, 2.5 + room(note, width))
        ends = []
        for (structure, who), rows in lines:
            colour, _ = structure_style(structure)
            dashes = (0, (4, 2)) if who == "a model" else "-"
            axes.plot(rows["queries"], rows["ratio"], color=colour, linestyle=dashes, linewidth=1.1, in_layout=False)
            last = rows.iloc[-1]
            by = f" by {who}" if who else ""
            ends.append((last["queries"], last["ratio"], f"{structure}{by}, {last['ratio']:.2f}", colour))
        axes.axhline(1, color=GREY, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = [0.5, 0.8, 1, 1.5, 2, 3, 5, 10]
        axes.set_yticks(ticks, [f"{tick:g} ×" for tick in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0.95 * spent["ratio"].min(), 1.05 * spent["ratio"].max())
        axes.xaxis.set_major_locator(FixedLocator(sorted(spent["queries"].unique())[:: 2 if width == "page" else 3]))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(spent["queries"].min(), spent["queries"].max())
        axes.grid(axis="y")
        axes.set_ylabel("tokens in all, flat list = 1")
        axes.set_xlabel("queries per memory set")
        names = end_labels(axes, ends, 26)
        footnote(axes, note)
        axes.figure.draw_without_rendering()
        apart(axes, names)
        told = [f"{name}" for _, _, name, _ in ends]
        most = int(spent["queries"].max())
        tell(
            axes, spent,
            f"Lines: tokens in all, relative to the flat list, over the queries per memory set, 1 to {most:,}.",
            f"After {most:,} queries: {'; '.join(told)}.",
        )  # fmt: skip
    return axes


def prefix_kept(kept: pd.DataFrame, width: str = "column") -> Axes:
    """What a prompt cache can still serve, per structure; a band of rows per renderer and placement.

    Parameters
    ----------
    kept : DataFrame
        As made by ``prefix_kept``.
    width : 'column' or 'page'
    """
    needs(kept, "structure", "renderer", "placement", "least", "most", *_SHARES)
    table = with_arm(kept)
    table = table.assign(
        model=[f"{r}, in the {p} message" for r, p in zip(table["renderer"], table["placement"], strict=True)]
    )
    refuse_twins(table, ["model", "arm"])
    note = "line: lowest and highest memory set, of the context; upper bounds: providers serve whole blocks"
    with style():
        rows = banded(table, table["model"].nunique() > 1, width)
        axes = new_axes(width, 0.75 + 0.19 * (rows["y"].max() + 1) + room(note, width))
        handles = []
        for row in rows[rows["arm"].notna()].to_dict("records"):
            colour, mark = structure_style(row["structure"])
            spread = {"color": colour, "linewidth": 1.1, "in_layout": False}
            axes.plot([100 * row["least"], 100 * row["most"]], [row["y"], row["y"]], **spread)
            for name, (_, fill) in _SHARES.items():
                axes.plot(100 * row[name], row["y"], **_mark(colour, mark, fill))
        for words, fill in _SHARES.values():
            (handle,) = axes.plot([], [], label=words, **_mark("#4D4D4D", "o", fill))
            handles.append(handle)
        name_rows(axes, rows)
        axes.set_xlim(0, 102)
        axes.xaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))
        axes.grid(axis="x")
        x_label(axes, "unchanged beginning, share of tokens")
        footnote(axes, note)
        legend_above(axes, handles)
        parts = [
            f"{row.arm}, {row.model}: {100 * row.context_kept_share:.0f} % of the context, "
            f"{100 * row.prompt_kept_share:.0f} % of the prompt"
            for row in table.itertuples()
        ]
        tell(axes, kept, f"Markers: what stays an unchanged beginning after one memory is added. {'; '.join(parts)}.")
    return axes


def _mark(colour: str, mark: str, fill: str) -> dict:
    how = {"color": colour, "marker": mark, "linestyle": "none", "zorder": 3, "clip_on": False, "in_layout": False}
    return how | {"fillstyle": fill, "markerfacecoloralt": "white", "markeredgewidth": 0.9}
