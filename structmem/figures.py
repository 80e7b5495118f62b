"""Tables in, axes out: one function per figure in the house style; no statistic is computed here."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .errors import InputError
from .house import GREY, Saved, label, new_axes, save, structure_style, style
from .marks import (
    banded,
    difference_text,
    footnote,
    generations,
    legend,
    marker,
    name_rows,
    name_width,
    percent_axis,
    point,
    refuse_twins,
    room,
    with_arm,
    x_label,
)
from .outcomes import STRUCTURE_ORDER
from .tables import failure_type_words

__all__ = [
    "Saved", "domain_fill", "leakage_by_model", "leakage_vs_beneficial", "paired_forest", "published_rates",
    "rates_by_model", "save", "style", "tokens_added",
]  # fmt: skip

ECHO_NOTE = "echo judge: overlap with the memories; shows the pipeline, not leakage"


def leakage_by_model(rates: pd.DataFrame, width: str = "page") -> Axes:
    """Leakage of each structure per model: ``rates_by_model`` for cross_domain."""
    return rates_by_model(rates, "cross_domain", width)


def rates_by_model(rates: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> Axes:
    """Rate of each arm with its interval, a band of rows per model.

    Parameters
    ----------
    rates : DataFrame
        As made by ``failure_rate`` or ``echo_rate`` by model and structure.
    failure_type : str
        Which rows are drawn.
    width : 'column' or 'page'
    """
    table, column = _rate_rows(rates, failure_type)
    one_model = table["model"].nunique() == 1
    with style():
        rows = banded(table, not one_model, width)
        note = _rates_note(table, column)
        axes = new_axes(width, 0.6 + 0.18 * (rows["y"].max() + 1) + room(note, width))
        for row in rows[rows["arm"].notna()].to_dict("records"):
            point(axes, row["y"], 100 * row[column], 100 * row["low"], 100 * row["high"], row)
        name_rows(axes, rows)
        axes.set_xlim(0, 100)
        percent_axis(axes, _rate_words(table, column, failure_type))
        if one_model:
            axes.set_title(label(table["model"].iloc[0], 70))
        footnote(axes, note)
    return axes


def paired_forest(differences: pd.DataFrame, failure_type: str = "cross_domain", width: str = "page") -> Axes:
    """Paired difference of each arm from the baseline, in pp, with its interval; the A/A arm (noise) is hollow.

    Parameters
    ----------
    differences : DataFrame
        As made by ``paired_differences`` (or ``reductions``, drawn as −reduction).
    """
    table = _of_type(differences, failure_type)
    if "n_models" in table:  # a summary over one model would only repeat it
        table = table[(table["model"] != "all models") | (table["n_models"] > 1)]
    if "difference_pp" not in table:
        low, high = -table["high_pp"], -table["low_pp"]
        table = table.assign(difference_pp=-table["reduction_pp"], low_pp=low, high_pp=high)
    echo = "outcome" in table and (table["outcome"] == "echo").any()
    baseline = table["baseline"].iloc[0] if "baseline" in table else "flat"
    with style():
        rows = banded(table, table["model"].nunique() > 1, width)
        note = ECHO_NOTE if echo else ""
        if not echo and table["arm"].str.endswith("(A/A)").any():
            note = f"{baseline} (A/A): the same arm run twice; its difference is noise"
        if table["model"].nunique() == 1:
            note = "; ".join(filter(None, [table["model"].iloc[0], note]))
        axes = new_axes(width, 0.65 + 0.18 * (rows["y"].max() + 1) + room(note, width))
        axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
        for row in rows[rows["arm"].notna()].to_dict("records"):
            aa = row["arm"].endswith("(A/A)")
            if aa:
                axes.axhspan(row["y"] - 0.5, row["y"] + 0.5, color="#F2F2F2", zorder=0, linewidth=0)
            point(axes, row["y"], row["difference_pp"], row["low_pp"], row["high_pp"], row, hollow=aa)
            if width == "page":
                beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 6.5}
                axes.annotate(difference_text(row), (1.01, row["y"]), **beside)
        name_rows(axes, rows)
        reach = np.nanmax(np.abs(table[["low_pp", "high_pp", "difference_pp"]].to_numpy(dtype=float)), initial=5.0)
        axes.set_xlim(-1.08 * reach, 1.08 * reach)
        axes.xaxis.set_major_locator(MaxNLocator(7 if width == "page" else 5, steps=[1, 2, 5, 10]))
        axes.grid(axis="x")
        what = "echo rate" if echo else failure_type_words(failure_type, generations(table))
        x_label(axes, f"{what}: difference from {baseline}, paired (pp)")
        axes.set_title(f"← fewer than {baseline}", fontsize=7, color=GREY)
        axes.set_title("more →", fontsize=7, color=GREY, loc="right")
        footnote(axes, note)
    return axes


def published_rates(
    published: pd.DataFrame, failure_type: str = "cross_domain", defence: str = "standard", width: str = "page"
) -> Axes:
    """Published rates per model, one marker per structure, a line over their range; models by their flat rate.

    Parameters
    ----------
    published : DataFrame
        As made by ``load_published``. Arms of the embedding structurer are not the paper's method and are refused.
    """
    _refuse_embedding(published)
    table = _of_type(published, failure_type)
    table = table[table["defence"] == defence]
    if not len(table):
        raise InputError(f"No published {failure_type} rates under defence {defence!r}.")
    flat = table[table["structure"] == "flat"].set_index("model")["failure_rate"]
    models = list(flat.sort_values(kind="stable").index)
    structures = [name for name in STRUCTURE_ORDER if name in set(table["structure"])]
    with style():
        axes = new_axes(width, 0.85 + 0.3 * len(models))
        for y, model in enumerate(models):
            of_model = table[table["model"] == model]
            ends = 100 * of_model["failure_rate"].agg(["min", "max"])
            axes.plot(ends, [y, y], color="#CFCFCF", linewidth=1.2, zorder=1)
            for row in of_model.to_dict("records"):
                # A little apart, so that equal rates do not hide each other.
                nudge = 0.14 * ((len(structures) - 1) / 2 - structures.index(row["structure"]))
                marker(axes, 100 * row["failure_rate"], y + nudge, row["structure"], hollow=row["structure"] == "flat")
        axes.set_yticks(range(len(models)), [label(model) for model in models])
        axes.set_ylim(-0.6, len(models) - 0.4)
        axes.set_xlim(0, 100)
        percent_axis(axes, f"published {failure_type_words(failure_type)}, defence: {defence}")
        legend(axes, structures, hollow=("flat",))
    return axes


def leakage_vs_beneficial(rates: pd.DataFrame, width: str = "page") -> np.ndarray:
    """Leakage against beneficial-memory failures, a panel per model, with both intervals; down and left is better.

    Parameters
    ----------
    rates : DataFrame
        As made by ``failure_rate`` (or ``load_published`` for one defence), with both failure types.

    Returns
    -------
    array of Axes
        One per model; unused cells of the grid are removed.
    """
    table = with_arm(rates)
    table = table[~table["arm"].str.endswith("(A/A)")]
    if "failure_rate" not in table:
        raise InputError("leakage_vs_beneficial draws failure rates; an echo rate is neither leakage nor a failure.")
    refuse_twins(table, ["failure_type", "model", "arm"])
    leaks, uses = (
        table[table["failure_type"] == name].set_index(["model", "arm"])
        for name in ("cross_domain", "beneficial_memory_usage")
    )
    both = [pair for pair in leaks.index if pair in uses.index]
    if not both:
        raise InputError("No model and structure has both cross_domain and beneficial_memory_usage rows.")
    models = list(dict.fromkeys(model for model, _ in both))
    columns = min(len(models), 4 if width == "page" else 2)
    lines = -(-len(models) // columns)
    with style():
        grid = new_axes(width, 0.55 + 1.55 * lines, columns, lines, sharex=True, sharey=True, squeeze=False)
        figure = grid.flat[0].figure
        for axes, model in zip(grid.flat, models, strict=False):
            axes.spines["left"].set_visible(True)
            axes.tick_params(axis="y", length=2.5, width=0.6)
            axes.grid(True)
            axes.set_title(label(model, 26 if width == "page" else 20))
            unscored = []
            for name in [arm for of, arm in both if of == model]:
                x, y = leaks.loc[(model, name)], uses.loc[(model, name)]
                if pd.isna(x["failure_rate"]) or pd.isna(y["failure_rate"]):
                    unscored.append(name)
                    continue
                colour, _ = structure_style(x["structure"])
                centre = 100 * np.array([x["failure_rate"], y["failure_rate"]])
                axes.plot([100 * x["low"], 100 * x["high"]], [centre[1]] * 2, color=colour, linewidth=0.7, alpha=0.6)
                axes.plot([centre[0]] * 2, [100 * y["low"], 100 * y["high"]], color=colour, linewidth=0.7, alpha=0.6)
                marker(axes, *centre, x["structure"])
            if unscored:
                words = "\n".join(f"{name}: not scored" for name in unscored)
                axes.text(0.97, 0.97, words, transform=axes.transAxes, ha="right", va="top", color=GREY, fontsize=6.5)
            axes.set_xlim(0, 100)
            axes.set_ylim(0, 100)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_ticks([0, 25, 50, 75, 100])
        for axes in list(grid.flat)[len(models) :]:
            axes.remove()
        for position in range(len(models) - columns, len(models)):
            grid.flat[position].tick_params(labelbottom=True)
        figure.supxlabel("leakage (%)", fontsize=7.5)
        figure.supylabel("beneficial-memory failures (%)", fontsize=7.5)
        arms = table.drop_duplicates("arm")[["arm", "structure"]]
        legend(grid.flat[0], list(arms.itertuples(index=False, name=None)))
    return grid.flatten()[: len(models)]


def domain_fill(fill: pd.DataFrame, width: str = "page") -> Axes:
    """Share of all memories in each domain, one marker per structure.

    Parameters
    ----------
    fill : DataFrame
        One row per structure × domain: ``structure``, ``domain``, ``share`` in [0, 1]; optional ``structurer`` or
        ``arm``. Domains are drawn in order of first appearance.
    """
    table = with_arm(fill)
    refuse_twins(table, ["arm", "domain"])
    domains = list(dict.fromkeys(table["domain"]))
    arms = list(dict.fromkeys(zip(table["arm"], table["structure"], strict=True)))
    names = [label(domain, name_width(width)) for domain in domains]
    lines = sum(name.count("\n") + 1 for name in names)
    with style():
        axes = new_axes(width, 0.85 + 0.17 * max(lines, len(domains)) * max(1.0, 0.45 * len(arms)))
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
        legend(axes, arms)
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
    table = table.assign(model=table["renderer"] if "renderer" in table else "", low=table.get("low", np.nan))
    table["high"] = table.get("high", np.nan)
    with style():
        rows = banded(table, table["model"].nunique() > 1, width)
        axes = new_axes(width, 0.6 + 0.17 * (rows["y"].max() + 1))
        axes.axvline(0, color="#404040", linewidth=0.7, zorder=1)
        for row in rows[rows["arm"].notna()].to_dict("records"):
            point(axes, row["y"], row["tokens_added"], row["low"], row["high"], row)
        name_rows(axes, rows)
        axes.grid(axis="x")
        x_label(axes, "tokens added to the flat list, per entry")
    return axes


def _of_type(table: pd.DataFrame, failure_type: str) -> pd.DataFrame:
    if not len(table):
        raise InputError("There is nothing to draw: the table has no rows.")
    rows = table[table["failure_type"] == failure_type]
    if not len(rows):
        raise InputError(f"No {failure_type} rows to draw; the table has {sorted(table['failure_type'].unique())}.")
    return rows


def _rate_rows(rates: pd.DataFrame, failure_type: str) -> tuple[pd.DataFrame, str]:
    column = next((name for name in ("failure_rate", "echo_rate") if name in rates), None)
    if column is None:
        raise InputError("The table has neither failure_rate nor echo_rate; expected one made by those functions.")
    table = with_arm(_of_type(rates, failure_type))
    return table.assign(model=table["model"] if "model" in table else "all models"), column


def _refuse_embedding(table: pd.DataFrame) -> None:
    names = set(table["structurer"]) if "structurer" in table else set()
    if "embedding" in names or ("arm" in table and table["arm"].str.contains("(embedding)", regex=False).any()):
        raise InputError("Arms of the embedding structurer are not the paper's method: no shared axis with its rates.")


def _rate_words(table: pd.DataFrame, column: str, failure_type: str) -> str:
    if column == "echo_rate":
        return f"echo rate, {failure_type.replace('_', ' ')}"
    return failure_type_words(failure_type, generations(table))


def _rates_note(table: pd.DataFrame, column: str) -> str:
    if column == "echo_rate":
        return ECHO_NOTE
    again = table["arm"].str.endswith("(A/A)").any()
    return "flat (A/A): the flat arm run again; the gap between the two is noise" if again else ""
