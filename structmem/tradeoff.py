"""Leakage against beneficial-memory failures: a panel per model, with intervals and who dominates whom in words."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from .alttext import analysis_words, interval_words, listed, n_words, tradeoff_alt
from .errors import InputError
from .house import label, new_axes, page_width, structure_style, style, tell
from .marks import (
    SMALL,
    arms_in_order,
    footnote,
    label_outer,
    legend,
    marker,
    models_in_order,
    needs,
    refuse_twins,
    room,
    said,
    with_arm,
)

_NEEDED = ("model", "arm", "baseline", "dominates")


def leakage_vs_beneficial(
    rates: pd.DataFrame, width: str = "page", dominance: pd.DataFrame | None = None
) -> np.ndarray:
    """Leakage against beneficial-memory failures, a panel per model, with both intervals; down and left is better.

    No frontier is drawn: over point estimates alone it would show noise as order. Who dominates the baseline is said in
    words, from a table. All panels span the same number of percentage points, each around its own model, so that
    distances compare between panels and positions are read from the ticks.

    Parameters
    ----------
    rates : DataFrame
        As made by ``failure_rate`` (or ``load_published`` for one defence), with both failure types.
    width : 'column' or 'page'
    dominance : DataFrame, optional
        As made by ``dominance`` or ``published_dominance``: ``model``, ``arm``, ``baseline`` and ``dominates`` (the
        name of the better one, or 'neither'); the rows whose baseline is 'flat' are put into words. Without it nothing
        is said.

    Returns
    -------
    array of Axes
        One per model; unused cells of the grid are removed.

    Raises
    ------
    InputError
        Echo rates, doubled rows, no arm with both failure types, or a dominance table without its columns.
    """
    needs(rates, "failure_type", "model")
    table = with_arm(rates.reset_index(drop=True))
    if not len(table):
        raise InputError("There is nothing to draw: the table has no rows.")
    table = table[~table["arm"].str.endswith("(A/A)")]
    if "failure_rate" not in table:
        raise InputError("leakage_vs_beneficial draws failure rates; an echo rate is neither leakage nor a failure.")
    refuse_twins(table, ["failure_type", "model", "arm"])
    leaks, uses = (
        table[table["failure_type"] == name].assign(row=lambda rows: rows.index).set_index(["model", "arm"], drop=False)
        for name in ("cross_domain", "beneficial_memory_usage")
    )
    both = [pair for pair in leaks.index if pair in uses.index]
    if not both:
        raise InputError("No model and structure has both cross_domain and beneficial_memory_usage rows.")
    leaks, uses = leaks.loc[both], uses.loc[both]
    models = models_in_order(leaks)
    across = min(len(models), 4 if width == "page" else 2)
    lines = -(-len(models) // across)
    inches = (page_width(width) - 0.5) / across
    lost = [
        pair for pair in both if pd.isna(leaks.loc[pair, "failure_rate"]) or pd.isna(uses.loc[pair, "failure_rate"])
    ]
    unscored = {model: [arm for of, arm in lost if of == model] for model in models}
    says = {
        model: said(_dominance_words(model, dominance), f"not scored: {listed(arms)}" if arms else "")
        for model, arms in unscored.items()
    }
    words = [label(text, int(inches / 0.06)) if text else "" for text in says.values()]
    heads = [label(model, int((inches - 0.3) / 0.075)) for model in models]
    above = max(text.count("\n") + 1 if text else 0 for text in words)
    span = _span(leaks, uses)
    drawn = rates.iloc[sorted([*leaks["row"], *uses["row"]])]
    rule = "dominance compares point estimates: neither rate is higher, one is lower" if dominance is not None else ""
    note = said(
        _counts(leaks, uses), interval_words(leaks), f"every panel spans {span:g} pp", rule, analysis_words(drawn)
    )
    with style():
        top = 0.12 * (max(map(_lines, heads)) - 1) + 0.12 * above
        height = 0.5 + lines * (min(inches - 0.1, 2.3) + 0.3 + top) + room(note, width)
        grid = new_axes(width, height, across, lines, squeeze=False)
        for axes, model, head, text in zip(grid.flat, models, heads, words, strict=False):
            of_model = [pair for pair in both if pair[0] == model]
            _panel(axes, leaks.loc[of_model], uses.loc[of_model], span)
            axes.set_title(head, pad=5 + 9 * above)
            if text:
                at = {"xycoords": "axes fraction", "textcoords": "offset points", "xytext": (0, 2 + 8.5 * above)}
                axes.annotate(text, (0, 1), va="top", fontsize=SMALL, color="#5A5A5A", **at)
            axes.set_xlabel("leakage (%)")
            axes.set_ylabel("beneficial-memory failures (%)" if inches > 1.45 else "beneficial-memory\nfailures (%)")
        label_outer(grid, len(models))
        footnote(grid.flat[0], note)
        legend(grid.flat[0], arms_in_order(leaks))
        lead = [f"{model}: {text}" for model, text in says.items() if text]
        tell(grid, drawn, tradeoff_alt(leaks, uses, span, f"Per model: {'; '.join(lead)}." if lead else ""))
    return grid.flatten()[: len(models)]


def _panel(axes, leaks: pd.DataFrame, uses: pd.DataFrame, span: float) -> None:
    axes.spines["left"].set_visible(True)
    axes.tick_params(axis="y", length=2.5, width=0.6)
    axes.grid(True)
    for (_, x), (_, y) in zip(leaks.iterrows(), uses.iterrows(), strict=True):
        if pd.isna(x["failure_rate"]) or pd.isna(y["failure_rate"]):
            continue
        colour, _ = structure_style(x["structure"])
        centre = 100 * np.array([x["failure_rate"], y["failure_rate"]])
        how = {"color": colour, "linewidth": 0.8, "alpha": 0.7, "in_layout": False}
        axes.plot([100 * x["low"], 100 * x["high"]], [centre[1]] * 2, **how)
        axes.plot([centre[0]] * 2, [100 * y["low"], 100 * y["high"]], **how)
        marker(axes, *centre, x["structure"])
    step = 10 if span <= 40 else 20 if span <= 60 else 25
    for table, axis, limit in ((leaks, axes.xaxis, axes.set_xlim), (uses, axes.yaxis, axes.set_ylim)):
        low, high = _ends(table)
        start = 5 * round(((low + high) / 2 - span / 2) / 5) if high >= low else 0.0
        start = min(max(start, 0.0), 100.0 - span)
        limit(start, start + span)
        axis.set_ticks(np.arange(step * math.ceil(start / step), start + span + 0.1, step))


def _ends(table: pd.DataFrame) -> tuple[float, float]:
    """Lowest and highest end of what a panel draws of one rate, in %."""
    ends = 100 * table[["low", "failure_rate", "high"]].to_numpy(dtype=float)
    return float(np.nanmin(ends, initial=np.inf)), float(np.nanmax(ends, initial=-np.inf))


def _span(leaks: pd.DataFrame, uses: pd.DataFrame) -> float:
    """Percentage points that every panel shows: as many as the widest needs."""
    wide = [high - low for side in (leaks, uses) for _, rows in side.groupby(level=0) for low, high in [_ends(rows)]]
    return float(min(100, max(20, 10 * math.ceil((max(wide) + 5) / 10)))) if max(wide) > 0 else 100.0


def _counts(leaks: pd.DataFrame, uses: pd.DataFrame) -> str:
    first, second = n_words(leaks), n_words(uses)
    return first if first == second else said(f"leakage {first}" * bool(first), f"beneficial {second}" * bool(second))


def _dominance_words(model: str, dominance: pd.DataFrame | None) -> str:
    """Which structures are better, and which worse, than flat on both rates in one model."""
    if dominance is None:
        return ""
    if lacking := [column for column in _NEEDED if column not in dominance]:
        raise InputError(f"The dominance table lacks the columns {lacking}; expected one row per model and arm.")
    rows = dominance[(dominance["model"] == model) & (dominance["baseline"] == "flat")]
    if not len(rows):
        return "dominance: not available"
    arms = [arm for arm, _ in arms_in_order(with_arm(rows))]
    won = dict(zip(rows["arm"], rows["dominates"], strict=True))
    better, worse = ([arm for arm in arms if won[arm] == winner(arm)] for winner in (str, lambda _: "flat"))
    found = said(
        f"{listed(better)} dominate{'s' if len(better) == 1 else ''} flat" if len(better) else "",
        f"flat dominates {listed(worse)}" if len(worse) else "",
    )
    return found or "no structure dominates flat, nor flat one"


def _lines(text: str) -> int:
    return text.count("\n") + 1
