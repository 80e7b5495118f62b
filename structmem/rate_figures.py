"""Figures of rates: each arm with its interval, published rates by model, and sycophancy under its ceiling."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .alttext import analysis_words, interval_words, is_published, n_words, rates_alt
from .errors import InputError
from .house import label, new_axes, style, tell
from .marks import (
    ECHO_NOTE,
    arms_in_order,
    banded,
    dodged,
    footnote,
    label_outer,
    legend,
    models_in_order,
    name_rows,
    percent_axis,
    point,
    rate_rows,
    rate_words,
    refuse_twins,
    room,
    said,
)
from .sorters import by_embedding

CEILING = 0.95


def leakage_by_model(rates: pd.DataFrame, width: str = "page") -> Axes:
    """Leakage of each structure per model: ``rates_by_model`` for cross_domain."""
    return rates_by_model(rates, "cross_domain", width)


def rates_by_model(rates: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> Axes:
    """Rate of each arm with its interval, a band of rows per model.

    Parameters
    ----------
    rates : DataFrame
        As made by ``failure_rate`` or ``echo_rate`` by model and structure. Rows that are missing read 'not scored'.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'

    Raises
    ------
    InputError
        No rows of this failure type, or no rate in the table.
    """
    table, column = rate_rows(rates, failure_type)
    one_model = table["model"].nunique() == 1
    with style():
        rows = banded(table, not one_model, width)
        note = said(n_words(table), interval_words(table), analysis_words(table), _rates_note(table, column))
        axes = new_axes(width, 0.6 + 0.18 * (rows["y"].max() + 1) + room(note, width))
        for row in rows[rows["arm"].notna()].to_dict("records"):
            point(axes, row["y"], 100 * row[column], 100 * row["low"], 100 * row["high"], row)
        name_rows(axes, rows)
        axes.set_xlim(0, 100)
        what = rate_words(table, column, failure_type)
        percent_axis(axes, what)
        if one_model:
            axes.set_title(label(table["model"].iloc[0], 70 if width == "page" else 34))
        footnote(axes, note)
        tell(axes, rates.iloc[table.index], rates_alt(table, column, what, _rates_note(table, column)))
    return axes


def published_rates(
    published: pd.DataFrame, failure_type: str = "cross_domain", defence: str = "standard", width: str = "page"
) -> Axes:
    """Published rates per model with intervals, structures a little apart in each row; models by their flat rate.

    Parameters
    ----------
    published : DataFrame
        As made by ``load_published``. Arms of the embedding structurer are not the paper's method and are refused.
    failure_type : str
        Sycophancy is drawn as by ``sycophancy_ceiling``.
    """
    table, column = rate_rows(published, failure_type)
    _refuse_embedding(published)
    table = table[table["defence"] == defence]
    if not len(table):
        raise InputError(f"No published {failure_type} rates under defence {defence!r}.")
    what = f"published {rate_words(table, column, failure_type)}"
    return _by_model(published.iloc[table.index], table, column, what, width)[0]


def sycophancy_ceiling(rates: pd.DataFrame, width: str = "page") -> np.ndarray:
    """Sycophancy per model with intervals, a panel per defence; the axis is zoomed and the ceiling is shaded.

    Where nearly every entry fails no structure can show a difference; under a defence that leaves the ceiling it can.

    Parameters
    ----------
    rates : DataFrame
        As made by ``failure_rate`` by model, structure and defence, or ``load_published``; other failure types are
        left out.

    Returns
    -------
    array of Axes
        One per defence, in the order of the table.
    """
    table, column = rate_rows(rates, "sycophancy")
    return _by_model(rates.iloc[table.index], table, column, rate_words(table, column, "sycophancy"), width)


def _by_model(drawn: pd.DataFrame, table: pd.DataFrame, column: str, what: str, width: str) -> np.ndarray:
    """Panels per defence of models × arms; zoomed, with the ceiling shaded, if the rates are of sycophancy."""
    defences = list(dict.fromkeys(table["defence"])) if "defence" in table else ["standard"]
    table = table if "defence" in table else table.assign(defence="standard")
    refuse_twins(table, ["defence", "model", "arm"])
    models = models_in_order(table)[::-1]  # the first on top
    if not is_published(table):
        flat = table[table["arm"] == "flat"].drop_duplicates("model").set_index("model")[column]
        models = sorted(dict.fromkeys(table["model"]), key=lambda model: np.nan_to_num(flat.get(model, -1.0), nan=-1.0))
    arms = arms_in_order(table)
    ceiling = set(table["failure_type"]) == {"sycophancy"}
    least = 100 * np.nanmin(table[[column, "low"]].to_numpy(dtype=float), initial=1.0)
    start = max(0.0, 10 * np.floor(least / 10 - 0.2)) if ceiling and least >= 30 else 0.0
    if len(defences) == 1:
        what = f"{what}, defence: {defences[0]}"
    shade = f"shaded: the ceiling, {100 * CEILING:g} % or more, where a difference can hardly show" if ceiling else ""
    note = said(
        n_words(table),
        interval_words(table),
        analysis_words(table),
        shade,
        f"the axis starts at {start:g} %" if start else "",
    )
    across = min(len(defences), 3 if width == "page" else 1)
    lines = -(-len(defences) // across)
    with style():
        height = 0.3 + lines * (0.45 + (0.12 + 0.085 * len(arms)) * len(models)) + room(note, width)
        grid = new_axes(width, height, across, lines, sharey=True, sharex=True, squeeze=False)
        for axes, defence in zip(grid.flat, defences, strict=False):
            dodged(axes, table[table["defence"] == defence], models, arms, column)
            axes.set_xlim(start, 100)
            if ceiling:
                axes.axvspan(100 * CEILING, 100, color="#E4E4E4", zorder=0.5, linewidth=0)
            percent_axis(axes, what)
            if len(defences) > 1:
                axes.set_title(label(f"defence: {defence}", 26 if width == "page" else 18))
        label_outer(grid, len(defences))
        footnote(grid.flat[0], note)
        legend(grid.flat[0], arms)
        of = f"{what}, under the defences {', '.join(map(str, defences))}" if len(defences) > 1 else what
        note = said(shade, f"the axis starts at {start:g} %" if start else "")
        tell(grid, drawn, rates_alt(table, column, of, note))
    return grid.flatten()[: len(defences)]


def _refuse_embedding(table: pd.DataFrame) -> None:
    embedded = "structurer" in table and any(map(by_embedding, table["structurer"]))
    if embedded or ("arm" in table and table["arm"].str.contains("(embedding)", regex=False).any()):
        raise InputError("Arms of the embedding structurer are not the paper's method: no shared axis with its rates.")


def _rates_note(table: pd.DataFrame, column: str) -> str:
    if column == "echo_rate":
        return ECHO_NOTE
    again = table["arm"].str.endswith("(A/A)").any()
    return "flat (A/A): the flat arm run again; the gap between the two is noise" if again else ""
