"""The forest of paired differences: a row per model and arm, and the rows pooled over models set apart below."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .alttext import analysis_words, forest_alt, interval_words, is_published, n_words
from .house import GREY, new_axes, structure_style, style, tell
from .marks import (
    ECHO_NOTE,
    SMALL,
    banded,
    difference_text,
    footnote,
    generations,
    models_in_order,
    name_rows,
    needs,
    of_type,
    point,
    room,
    said,
    with_arm,
    x_label,
)
from .tables import failure_type_words

ALL_MODELS = "all models"


def paired_forest(differences: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> Axes:
    """Paired difference of each arm from the baseline, in pp, with its interval; the A/A arm (noise) is hollow.

    Rows of no model, or of 'all models', are drawn apart, below a line, as diamonds from the lower to the upper end of
    their interval; their heading names the estimand ('these models, new entries', 'new models').

    Parameters
    ----------
    differences : DataFrame
        As made by ``paired_differences``, ``reductions`` (drawn as −reduction) or ``published_reductions``; rows of
        ``pooled_differences`` may be appended. A summary over one model would only repeat it and is left out.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'
        A page also prints the numbers.

    Raises
    ------
    InputError
        No rows of this failure type.
    """
    table = with_arm(of_type(differences, failure_type))
    # Rows pooled over models name no model.
    table = table.assign(model=table["model"].fillna(ALL_MODELS) if "model" in table else ALL_MODELS)
    if "difference_pp" not in table:
        needs(table, "reduction_pp", "low_pp", "high_pp")
        low, high = -table["high_pp"], -table["low_pp"]
        table = table.assign(difference_pp=-table["reduction_pp"], low_pp=low, high_pp=high)
    table = table.assign(**{name: table.get(name, np.nan) for name in ("low_pp", "high_pp")})
    is_pooled = table["model"] == ALL_MODELS
    if "n_models" in table:
        is_summary_of_one = is_pooled & (pd.to_numeric(table["n_models"]).fillna(2) <= 1)
        table, is_pooled = table[~is_summary_of_one], is_pooled[~is_summary_of_one]
    models, pooled = table[~is_pooled], _with_estimand(table[is_pooled])
    models = pd.concat([models[models["model"] == model] for model in models_in_order(models)] or [models])
    echo = "outcome" in table and (table["outcome"] == "echo").any()
    baseline = table["baseline"].iloc[0] if "baseline" in table else "flat"
    one_model = models["model"].nunique() == 1
    diamonds = _diamonds(pooled)
    note = said(
        models["model"].iloc[0] if one_model else "",
        n_words(models, "n_pairs" if "n_pairs" in models else "n_entries"),
        interval_words(models),
        analysis_words(table.assign(estimand=pooled["estimand"])),
        diamonds,
        _note(table, echo, baseline),
    )
    with style():
        rows = _all_rows(models, pooled, not one_model or len(pooled) > 0, width)
        per_row = 0.18 if width == "page" else 0.15
        axes = new_axes(width, 0.65 + per_row * (rows["y"].max() + 1) + room(note, width))
        axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
        for row in rows[rows["arm"].notna()].to_dict("records"):
            _draw(axes, row, width)
        if len(models) and len(pooled):
            axes.axhline(rows.loc[rows["pooled"], "y"].min() - 0.8, color="#9A9A9A", linewidth=0.6, zorder=0)
        name_rows(axes, rows)
        ends = table[["low_pp", "high_pp", "difference_pp"]].to_numpy(dtype=float)
        low, high = np.nanmin(ends, initial=-5.0), np.nanmax(ends, initial=5.0)
        axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.xaxis.set_major_locator(MaxNLocator(9 if width == "page" else 5, steps=[1, 2, 5, 10]))
        axes.grid(axis="x")
        what = "echo rate" if echo else failure_type_words(failure_type, generations(table))
        paired = not is_published(table) and bool({"n_pairs", "n_runs"} & set(table))
        x_label(axes, f"{what}: difference from {baseline}{', paired' * paired} (pp)")
        axes.set_title(f"← lower than {baseline}", fontsize=7, color=GREY)
        axes.set_title("higher →", fontsize=7, color=GREY, loc="right")
        footnote(axes, note)
        told = forest_alt(models, pooled, what, baseline, paired, diamonds)
        tell(axes, differences.iloc[table.index], told, _note(table, echo, baseline))
    return axes


def _with_estimand(pooled: pd.DataFrame) -> pd.DataFrame:
    """Summaries over models that do not name their estimand are t intervals over models: it is 'new models'."""
    named = pooled["estimand"] if "estimand" in pooled else pd.Series(np.nan, pooled.index, dtype=object)
    is_named = named.notna() & named.ne("")
    named = named.where(is_named, "new models")
    if not is_named.any() and "t_p" in pooled and "interval" not in pooled:
        pooled = pooled.assign(interval="t")
    runs = pooled["unit"].eq("entry, then run") if "unit" in pooled else pd.Series(False, pooled.index)
    return pooled.assign(estimand=named.where(~runs, named + " and runs"))


def _all_rows(models: pd.DataFrame, pooled: pd.DataFrame, heads: bool, width: str) -> pd.DataFrame:
    """Rows of the models, then those pooled over models under a heading per estimand, with their y positions."""
    parts, below = [], 0.0
    if len(models):
        parts.append(banded(models, heads, width).assign(pooled=False))
        below = parts[0]["y"].max() + 2.0
    if len(pooled):
        titled = pooled.assign(model=[f"mean, for {estimand}" for estimand in pooled["estimand"]])
        rows = banded(titled, True, width).assign(pooled=True)
        parts.append(rows.assign(y=rows["y"] + below))
    return pd.concat(parts, ignore_index=True)


def _draw(axes: Axes, row: dict, width: str) -> None:
    aa = row["arm"].endswith("(A/A)")
    if aa:
        axes.axhspan(row["y"] - 0.5, row["y"] + 0.5, color="#F2F2F2", zorder=0, linewidth=0)
    if row["pooled"] and not pd.isna(row["low_pp"]):
        colour, _ = structure_style(row["structure"])
        x = [row["low_pp"], row["difference_pp"], row["high_pp"], row["difference_pp"]]
        y = [row["y"], row["y"] - 0.32, row["y"], row["y"] + 0.32]
        axes.fill(x, y, facecolor="white" if aa else colour, edgecolor=colour, linewidth=0.8, zorder=3)
    else:
        point(axes, row["y"], row["difference_pp"], row["low_pp"], row["high_pp"], row, hollow=aa)
    if width == "page":
        beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": SMALL}
        axes.annotate(difference_text(row), (1.01, row["y"]), **beside)


def _diamonds(pooled: pd.DataFrame) -> str:
    """What the pooled rows are: how many models, and with which intervals."""
    if not len(pooled):
        return ""
    models = n_words(pooled, "n_models", "models").removeprefix("n = ") or "all models"
    if "interval" in pooled and pooled["interval"].eq("t").all():
        return f"diamonds: 95 % t intervals over {models}"
    return ", ".join(filter(None, [f"diamonds: {models}", interval_words(pooled[["low_pp", "high_pp"]])]))


def _note(table: pd.DataFrame, echo: bool, baseline: str) -> str:
    if echo:
        return ECHO_NOTE
    aa = table["arm"].str.endswith("(A/A)").any()
    return f"{baseline} (A/A): the same arm run twice; its difference is noise" if aa else ""
