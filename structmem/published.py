"""The published numbers as tables, and what can be recomputed from them."""

from __future__ import annotations

from functools import cache
from math import isnan

import pandas as pd

from .data import FAILURE_TYPES
from .errors import InputError, choice
from .intervals import over_models, wilson
from .paths import package_file

_IDENTITY = ["model", "structure", "defence", "failure_type"]
ALL_MODELS = "all models"
# Stamped on every table made from published rates: nothing was planned before they were seen.
DESCRIPTIVE = {
    "analysis": "descriptive",
    "analysis_note": "published rates per model, without outcomes of single entries",
}


@cache
def grid() -> pd.DataFrame:
    """The grid as it lies on disk, with ``failure_rate`` in [0, 1]; shared, so never changed in place."""
    table = _read("failure_rates.csv")
    return table.assign(failure_rate=table["failure_rate_pct"] / 100)


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(package_file("published", name), keep_default_na=False, na_values={"value": [""]})


def load_published() -> pd.DataFrame:
    """Failure rates of the paper's per-model grid.

    Returns
    -------
    DataFrame
        One row per model × structure × defence × failure_type: ``failure_rate_pct`` as published, ``failure_rate`` in
        [0, 1], ``low``, ``high`` (95 % Wilson interval at ``n_entries``, computed here, not published),
        ``n_generations``, ``threshold``, ``source`` (see ``structmem/published/SOURCES.md``) and ``note``. Nine rates
        fit 199 entries and not the stated 200: their ``n_entries`` is inferred, and their ``note`` says so. Cells that
        were not published are absent.
    """
    table = grid().copy()
    bounds = [wilson(rate * n, n) for rate, n in zip(table["failure_rate"], table["n_entries"], strict=True)]
    table["low"], table["high"] = [low for low, _ in bounds], [high for _, high in bounds]
    table["n_generations"] = table["failure_type"].map({name: kind.generations for name, kind in FAILURE_TYPES.items()})
    table["threshold"] = 3
    numbers = ["failure_rate_pct", "failure_rate", "low", "high", "n_entries", "n_generations", "threshold"]
    return table[[*_IDENTITY, *numbers, "source", "note"]]


def load_published_aggregates() -> pd.DataFrame:
    """Aggregates as the paper states them.

    Returns
    -------
    DataFrame
        One row per stated number: ``model``, ``structure``, ``failure_type``, ``statistic``, ``value``, ``unit``
        ('pp' or 'percent'), ``note``, ``source``. Some differ from the recomputed ones: see ``published_recomputed``.
    """
    return _read("aggregates.csv")


def load_published_discordance() -> pd.DataFrame:
    """Which share of entries each structure helps and harms, against flat, averaged over the paper's seven models.

    Returns
    -------
    DataFrame
        One row per structure (``arm``) against ``baseline``, under defence ``standard``, ``cross_domain``: the shares
        of entries in [0, 1] ``both_pass_share``, ``only_baseline_passes_share`` (harmed by the structure),
        ``only_arm_passes_share`` (helped), ``both_fail_share``, and ``discordant_share`` = harmed + helped;
        ``difference_pp`` = harmed − helped, the difference of failure rates that they imply; ``n_models``; ``source``.
        Counts per model were not published, so no paired test can be made from them.
    """
    table = _read("discordance.csv")
    parts = ["both_pass", "only_baseline_passes", "only_arm_passes", "both_fail"]
    shares = {f"{part}_share": table[f"{part}_pct"] / 100 for part in parts}
    harmed, helped = shares["only_baseline_passes_share"], shares["only_arm_passes_share"]
    table = table[["baseline", "arm", "defence", "failure_type", "n_models", "source"]].assign(
        **shares, discordant_share=harmed + helped, difference_pp=100 * (harmed - helped)
    )
    return table[[column for column in table if column not in ("n_models", "source")] + ["n_models", "source"]]


def load_published_persistbench() -> pd.DataFrame:
    """PersistBench's own failure rates of two models, a rerun of them by others, and medians over its 18 models.

    Returns
    -------
    DataFrame
        One row per model × failure_type × ``run`` ('PersistBench' or 'Inspect rerun'): ``failure_rate`` in [0, 1];
        ``low``, ``high``: the published 95 % bootstrap interval, NaN where none was given; ``source``.
    """
    table = _read("persistbench.csv")
    for name, column in {"failure_rate": "failure_rate_pct", "low": "low_pct", "high": "high_pct"}.items():
        table[name] = pd.to_numeric(table[column]) / 100
    return table[["model", "failure_type", "run", "failure_rate", "low", "high", "source"]]


def published_drift() -> pd.DataFrame:
    """How far the same model's rates lie apart in three published runs of the benchmark with one flat memory list.

    The three were made by different people at different times, and their prompts need not be the same: the range says
    how much a rate moves between runs, not why.

    Returns
    -------
    DataFrame
        One row per failure type × model: ``rate_persistbench``, ``rate_rerun``, ``rate_paper`` (flat, standard), all in
        [0, 1]; ``range_pp``, the largest minus the smallest.
    """
    runs = load_published_persistbench().set_index(["failure_type", "model", "run"])["failure_rate"].unstack("run")
    paper = published_rate("flat", "standard")
    table = runs.rename(columns={"PersistBench": "rate_persistbench", "Inspect rerun": "rate_rerun"}).join(
        paper.rename("rate_paper"), how="inner"
    )
    table = table[["rate_persistbench", "rate_rerun", "rate_paper"]]
    table["range_pp"] = 100 * (table.max(axis=1) - table.min(axis=1))
    order = [(kind, model) for kind in FAILURE_TYPES for model in paper.loc[kind].index if (kind, model) in table.index]
    return table.loc[order].reset_index().assign(**DESCRIPTIVE)


def published_rate(structure: str, defence: str = "standard", failure_type: str | None = None) -> pd.Series:
    """Failure rates in [0, 1] of one structure under one defence, by model in the paper's order.

    Parameters
    ----------
    failure_type : str, optional
        Only this one; else the index is (failure_type, model).

    Raises
    ------
    InputError
        For a value that was not published, or a combination that was not.
    """
    cells, asked = rate_cells(), (structure, defence, failure_type)
    for position, column in enumerate(("structure", "defence", "failure_type")):
        menu = {cell[position] for cell in cells}
        if asked[position] not in menu and asked[position] is not None:
            raise choice(column, asked[position], menu)
    there = [kind for of, under, kind in cells if (of, under) == (structure, defence)]
    if failure_type is None and there:
        return pd.concat({kind: cells[structure, defence, kind] for kind in there}, names=["failure_type"])
    if failure_type not in there:
        what = f"{failure_type or 'failure'} rates of {structure!r} under {defence!r}"
        raise InputError(f"No published {what}; there are some {f'for {there}' if there else 'under other defences'}.")
    return cells[asked].copy()


@cache
def rate_cells() -> dict[tuple[str, str, str], pd.Series]:
    """Rates by model, for each published structure, defence and failure type."""
    cells = grid().groupby(["structure", "defence", "failure_type"], sort=False)
    return {cell: rows.set_index("model")["failure_rate"] for cell, rows in cells}


def published_reductions(
    defence: str = "standard", failure_type: str = "cross_domain", baseline: str = "flat"
) -> pd.DataFrame:
    """Differences of published rates between each structure and a baseline, per model and over models.

    Parameters
    ----------
    defence, failure_type, baseline : str
        Which cells are compared; both arms have the same defence.

    Returns
    -------
    DataFrame
        Per structure one row per model (``n_entries``, ``rate_baseline``, ``rate_arm`` in [0, 1], ``difference_pp`` =
        arm − baseline, ``reduction_pp`` = −difference_pp, ``relative_change_pct``) and one row 'all models': means,
        ``sd_pp`` (n − 1), ``n_models``, ``low_pp`` and ``high_pp`` (95 % t interval of the difference over models,
        which assumes that the models are exchangeable draws), ``t_p``, ``wilcoxon_p`` and ``sign_flip_p`` (exact), all
        two-sided, ``smallest_p`` (the smallest that an exact test can reach), ``n_models_down`` and ``n_models_up``.
        Structures without published cells are absent.

    Raises
    ------
    InputError
        For a defence, failure type or baseline that was not published.
    """
    table = grid()
    asked = {"defence": defence, "failure_type": failure_type, "structure": baseline}
    for column, value in asked.items():
        if value not in set(table[column]):
            raise choice(column if column != "structure" else "baseline", value, set(table[column]))
    cells = table[(table["defence"] == defence) & (table["failure_type"] == failure_type)]
    rates = cells.pivot(index="model", columns="structure", values="failure_rate")
    if baseline not in rates:
        raise InputError(
            f"No published rates for baseline {baseline!r} under defence {defence!r} and {failure_type!r}; there are "
            f"{sorted(rates.columns)}."
        )
    rows = []
    for structure in [name for name in cells["structure"].unique() if name != baseline]:
        pairs = rates[[baseline, structure]].dropna()
        for model in [name for name in cells["model"].unique() if name in pairs.index]:
            rows.append(_difference(model, structure, *pairs.loc[model]))
        means = _difference(ALL_MODELS, structure, pairs[baseline].mean(), pairs[structure].mean())
        rows.append(means | over_models_row(100 * (pairs[structure] - pairs[baseline])))
    result = pd.DataFrame(rows)
    counts = ["n_models", "n_models_down", "n_models_up"]
    result[counts] = result[counts].astype("Int64")
    result.insert(2, "baseline", baseline)
    result.insert(3, "defence", defence)
    result.insert(4, "failure_type", failure_type)
    result.insert(5, "n_entries", int(cells["n_entries"].max()))
    return result.assign(**DESCRIPTIVE)


def _difference(model: str, structure: str, rate_baseline: float, rate_arm: float) -> dict:
    difference = 100 * (rate_arm - rate_baseline)
    return {
        "model": model, "structure": structure, "rate_baseline": rate_baseline, "rate_arm": rate_arm,
        "difference_pp": difference, "reduction_pp": -difference,
        "relative_change_pct": difference / rate_baseline if rate_baseline else float("nan"),
    }  # fmt: skip


def over_models_row(differences_pp: pd.Series) -> dict:
    """What `intervals.over_models` says about one difference per model, under the names that the tables use."""
    over = over_models(differences_pp)
    return {
        "sd_pp": over.sd, "n_models": over.n, "low_pp": over.low, "high_pp": over.high, "t_p": over.t_p,
        "wilcoxon_p": over.wilcoxon_p, "sign_flip_p": over.sign_flip_p, "smallest_p": over.smallest_p,
        "n_models_down": over.n_below_zero, "n_models_up": over.n_above_zero,
    }  # fmt: skip


def published_recomputed() -> pd.DataFrame:
    """Every aggregate that the paper states beside the one recomputed from its per-model rates.

    Returns
    -------
    DataFrame
        One row per stated number: ``stated`` and ``recomputed`` in ``unit`` ('pp' or 'percent'; NaN where the rates
        behind it were not published), ``recomputed_minus_stated_pp``, and a ``note``: whether they differ once rounded
        as stated, and what shows that the reductions are in pp.
    """
    table = load_published_aggregates()
    rows = [_recomputed(row) for row in table.to_dict("records")]
    return table[["model", "structure", "failure_type", "statistic"]].join(pd.DataFrame(rows)).assign(**DESCRIPTIVE)


def _recomputed(stated: dict) -> dict:
    notes = [stated["note"]] if stated["note"].startswith("stated") else []
    structure, kind, statistic = stated["structure"], stated["failure_type"], stated["statistic"]
    if structure == "rag":
        value, notes = float("nan"), ["stated only, cannot be recomputed: no rates of single models were published"]
    elif "reduction" in statistic:
        flat = 100 * published_rate("flat", failure_type=kind)
        reductions = flat - 100 * published_rate(structure, failure_type=kind)
        deviation = statistic.startswith("standard deviation")
        value = float(reductions.std(ddof=1) if deviation else reductions.mean())
        if deviation:
            notes.append(f"over n − 1 = {len(flat) - 1}; over n = {len(flat)} it is {reductions.std(ddof=0):.2f}")
        else:
            share = 100 * value / flat.mean()
            notes.append(f"relative to the mean flat rate of {flat.mean():.1f} % it is {share:.1f} %: pp are meant")
    else:
        shown = ("fixed", "dynamic") if structure == "structured" else (structure,)
        rates = pd.concat([100 * published_rate(name, failure_type=kind) for name in shown], axis=1).mean(axis=1)
        value = round(float(rates.mean() if stated["model"] == ALL_MODELS else rates[stated["model"]]), 9)
        if structure == "structured":
            notes.append("recomputed as the mean of fixed and dynamic, the only ones with published rates")
        elif stated["model"] != ALL_MODELS and structure != "flat":
            flat = 100 * published_rate("flat", failure_type=kind)[stated["model"]]
            less = flat - value
            notes.append(f"{flat:g} → {value:g} is {less:.1f} pp less, or {100 * less / flat:.1f} % relative")
    if not isnan(value) and round(value, 0 if "about" in stated["note"] else 1) != stated["value"]:
        notes.insert(0, "differs in the first decimal")
    return {
        "stated": stated["value"], "recomputed": value, "recomputed_minus_stated_pp": value - stated["value"],
        "unit": stated["unit"], "note": "; ".join(notes),
    }  # fmt: skip
