"""The ladder of controls as a waterfall of its steps, with the side contrasts below a rule."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .alttext import analysis_words, n_words
from .analysis_plan import ALL_MODELS
from .control_contrasts import LADDER, NOISE, OTHER, SIDE, WHOLE
from .errors import InputError, choice
from .house import GREY, label, new_axes, style, tell
from .marks import ECHO_NOTE, SMALL, footnote, needs, of_type, refuse_twins, room, said, x_label
from .tables import failure_type_words, signed

MEASURES = ("rate", "mean score")
_DARK, _STEP, _WHOLE = "#333333", "#BFD3E6", "#6FA8D6"
_HEADS = {SIDE: "beside the ladder", OTHER: "other memories", NOISE: "noise"}


def control_ladder(
    table: pd.DataFrame,
    failure_type: str = "cross_domain",
    model: str | None = None,
    measure: str | None = None,
    width: str = "page",
) -> Axes:
    """What each step adds between the flat list and the partition, and the side contrasts, each with its interval.

    The bars of the steps begin where the one above ends, and the last bar is the whole. Side contrasts, below the rule,
    begin at 0: each is a difference from its own baseline. Arms that show other memories have hollow marks.

    Parameters
    ----------
    table : DataFrame
        As made by `ladder`.
    failure_type : str
    model : str, optional
        Default: the mean over models, or the one model.
    measure : 'rate' or 'mean score', optional
        Default: the rate, or the mean score (echo: overlap) where no difference of the rate varies over entries.
    width : 'column' or 'page'
        A page also prints the numbers.

    Raises
    ------
    InputError
        No rows of this failure type or model, or several ladders of it.
    """
    rows = of_type(table, failure_type)
    needs(rows, "model", "part", "adds", "arm", "baseline", "difference_pp", "mean_score_difference")
    models = list(dict.fromkeys(rows["model"]))
    model = model or (ALL_MODELS if ALL_MODELS in models else models[0])
    if model not in models:
        raise choice("model", model, models)
    rows = rows[rows["model"] == model]
    refuse_twins(rows, ["model", "arm", "baseline", "part"])
    if measure is None:
        measure = MEASURES[int(rows["low_pp"].isna().all())]
    if measure not in MEASURES:
        raise choice("measure", measure, MEASURES)
    rate = measure == "rate"
    names = ("difference_pp", "low_pp", "high_pp") if rate else ("difference", "low", "high")
    names = names if rate else tuple(f"mean_score_{name}" for name in names)
    drawn = rows.assign(**dict(zip(("value", "low", "high"), (rows[name] for name in names), strict=True)))
    if drawn["value"].isna().all():
        raise InputError(f"There is nothing to draw: no contrast of {model}, {failure_type}, has a {measure}.")
    echo = rows["outcome"].eq("echo").any()
    what = ("echo rate" if echo else failure_type_words(failure_type, _generations(rows))) if rate else ""
    what = what or ("mean echo overlap" if echo else "mean score")
    unit = " (pp)" if rate else ""
    note = said(
        model, n_words(rows), _interval_words(drawn), analysis_words(rows),
        "a step differs from 0 where its line misses the end of the step above" * bool((rows["part"] == LADDER).any()),
        "hollow: shows other memories" if (rows["part"] == OTHER).any() else "", ECHO_NOTE if echo else "",
    )  # fmt: skip
    with style():
        placed = _placed(drawn, width)
        axes = new_axes(width, 0.65 + 0.19 * (placed["y"].max() + 1) + room(note, width))
        axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
        for row in placed[placed["arm"].notna()].to_dict("records"):
            _draw(axes, row, width, rate)
        below = placed[~placed["part"].isin((LADDER, WHOLE))]
        if len(below) and len(below) < len(placed):
            axes.axhline(below["y"].min() - 0.75, color="#9A9A9A", linewidth=0.6, zorder=0)
        _name(axes, placed)
        ends = placed[["start", "end", "start_low", "start_high"]].to_numpy(dtype=float)
        least = 2.0 if rate else 0.005  # so that nothing but noughts still has an axis
        low, high = np.nanmin(ends, initial=-least), np.nanmax(ends, initial=least)
        axes.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        axes.xaxis.set_major_locator(MaxNLocator(9 if width == "page" else 5, steps=[1, 2, 5, 10]))
        axes.grid(axis="x")
        x_label(axes, f"{what}: difference, steps added up{unit}")
        axes.set_title("← lower", fontsize=7, color=GREY)
        axes.set_title("higher →", fontsize=7, color=GREY, loc="right")
        footnote(axes, note)
        tell(axes, table.reset_index(drop=True).loc[rows.index], _alt(drawn, what, rate), ECHO_NOTE if echo else "")
    return axes


def _placed(rows: pd.DataFrame, width: str) -> pd.DataFrame:
    """Rows with their place, where they start and end, their interval, and a heading above each part but the ladder."""
    placed, y, at, part = [], 0.0, 0.0, LADDER
    for row in rows.to_dict("records"):
        if row["part"] in _HEADS and row["part"] != part:
            y += 0.5 if placed else 0.0
            placed.append({"part": row["part"], "y": y, "name": _HEADS[row["part"]]})
            y += 1
        part = row["part"]
        start = at if part == LADDER else 0.0
        end = start + row["value"]
        at = end if part == LADDER and not np.isnan(end) else at
        name = label(_row_name(row, width == "page"), 48 if width == "page" else 24)
        extra = 0.75 * name.count("\n")
        interval = {"start_low": start + row["low"], "start_high": start + row["high"]}
        placed.append(row | {"y": y + extra / 2, "name": name, "start": start, "end": end} | interval)
        y += 1 + extra
    columns = ["part", "arm", "y", "name", "start", "end", "start_low", "start_high"]
    return pd.DataFrame(placed, columns=[*dict.fromkeys([*columns, *rows])])


def _row_name(row: dict, in_full: bool = True) -> str:
    structure = row["arm"].split(" (")[0]
    if row["part"] == LADDER:
        return f"+ {row['adds']} ({structure})"
    if row["part"] == NOISE:
        return f"{row['adds']} of {row['baseline']} (A/A)" if in_full else "flat (A/A)"
    adds = f"{row['adds']}: " if in_full and row["part"] != WHOLE else ""
    return f"{adds}{structure} − {row['baseline']}"


def _draw(axes: Axes, row: dict, width: str, rate: bool) -> None:
    y, start, end = row["y"], row["start"], row["end"]
    if np.isnan(end):
        beside = {"transform": axes.get_yaxis_transform(), "va": "center", "color": GREY, "fontsize": SMALL}
        axes.text(0.02, y, "nothing to compare", **beside)
        return
    in_ladder = row["part"] in (LADDER, WHOLE)
    if in_ladder:
        axes.barh(y, end - start, left=start, height=0.62, color=_WHOLE if row["part"] == WHOLE else _STEP, zorder=2)
        if row["part"] == LADDER:  # where the next one begins
            axes.plot([end, end], [y + 0.31, y + 1 - 0.31], color=_DARK, linewidth=0.5, zorder=2)
    if not np.isnan(row["start_low"]):
        how = {"color": _DARK, "linewidth": 0.9, "zorder": 3}
        axes.plot([row["start_low"], row["start_high"]], [y, y], linestyle=":" if row["part"] == NOISE else "-", **how)
    face = "white" if row["part"] in (OTHER, NOISE) else _DARK
    how = {"markerfacecolor": face, "color": _DARK, "linestyle": "none", "zorder": 4, "clip_on": False}
    axes.plot(end, y, marker="o", markersize=3 if in_ladder else 3.5, **how)
    if width == "page":
        beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": SMALL}
        axes.annotate(_numbers(row, rate), (1.01, y), **beside)


def _numbers(row: dict, rate: bool) -> str:
    write = signed if rate else _three
    if np.isnan(row["low"]):
        return write(row["value"])
    return f"{write(row['value'])} [{write(row['low'])}, {write(row['high'])}]"


def _three(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def _name(axes: Axes, placed: pd.DataFrame) -> None:
    axes.set_yticks(placed["y"], placed["name"])
    for tick, row in zip(axes.get_yticklabels(), placed.to_dict("records"), strict=True):
        tick.set_fontweight("bold" if pd.isna(row["arm"]) or row["part"] == WHOLE else "normal")
    axes.set_ylim(placed["y"].max() + 0.7, -0.6)


def _generations(rows: pd.DataFrame) -> int | None:
    found = set(rows["n_generations"]) if "n_generations" in rows else set()
    return int(found.pop()) if len(found) == 1 else None


def _interval_words(rows: pd.DataFrame) -> str:
    some = rows["low"].notna()
    if not some.any():
        return "no intervals: nothing varies over entries"
    return f"95 % intervals (t over entries){'' if some.all() else '; none where nothing varies'}"


def _alt(rows: pd.DataFrame, what: str, rate: bool) -> str:
    told = [f"{_row_name(row)} {_numbers(row, rate)}" for row in rows.to_dict("records")]
    return f"Differences in {what}{' in pp' if rate else ''}, the steps as a waterfall: {'; '.join(told)}."
