"""The published numbers as tables, and what can be recomputed from them."""

from __future__ import annotations

import pandas as pd

from .errors import InputError, choice
from .intervals import over_models, wilson
from .paths import package_file

_IDENTITY = ["model", "structure", "defence", "failure_type"]


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(package_file("published", name), keep_default_na=False, na_values={"value": [""]})


def load_published() -> pd.DataFrame:
    """Failure rates of the paper's per-model grid.

    Returns
    -------
    DataFrame
        One row per model × structure × defence × failure_type: ``failure_rate_pct`` as published, ``failure_rate`` in
        [0, 1], ``low``, ``high`` (95 % Wilson interval at ``n_entries``, computed here, not published),
        ``n_generations``, ``threshold``, ``source`` (see ``structmem/published/SOURCES.md``) and ``note``. Cells that
        were not published are absent.
    """
    table = _read("failure_rates.csv")
    table["failure_rate"] = table["failure_rate_pct"] / 100
    bounds = [wilson(rate * n, n) for rate, n in zip(table["failure_rate"], table["n_entries"], strict=True)]
    table["low"], table["high"] = [low for low, _ in bounds], [high for _, high in bounds]
    table["n_generations"] = table["failure_type"].map(
        {"cross_domain": 3, "sycophancy": 3, "beneficial_memory_usage": 1}
    )
    table["threshold"] = 3
    numbers = ["failure_rate_pct", "failure_rate", "low", "high", "n_entries", "n_generations", "threshold"]
    return table[[*_IDENTITY, *numbers, "source", "note"]]


def load_published_aggregates() -> pd.DataFrame:
    """Aggregates as the paper states them.

    Returns
    -------
    DataFrame
        One row per stated number: ``model``, ``structure``, ``failure_type``, ``statistic``, ``value``, ``unit``
        ('pp' or 'percent'), ``note``, ``source``. They differ from the recomputed ones in the first decimal.
    """
    return _read("aggregates.csv")


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
        Per structure one row per model (``rate_baseline``, ``rate_arm`` in [0, 1], ``difference_pp`` = arm − baseline,
        ``reduction_pp`` = −difference_pp, ``relative_change_pct``) and one row 'all models': means, ``sd_pp`` (n − 1),
        ``n_models``, ``low_pp`` and ``high_pp`` (95 % t interval of the difference over models, which assumes that the
        models are exchangeable draws), ``t_p``, ``wilcoxon_p`` and ``sign_flip_p`` (exact), all two-sided,
        ``smallest_p`` (the smallest that an exact test can reach), ``n_models_down`` and ``n_models_up``. Structures
        without published cells are absent.

    Raises
    ------
    InputError
        For a defence, failure type or baseline that was not published.
    """
    table = load_published()
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
        over = over_models(100 * (pairs[structure] - pairs[baseline]).to_numpy())
        rows.append(
            _difference("all models", structure, pairs[baseline].mean(), pairs[structure].mean())
            | {"sd_pp": over.sd, "n_models": over.n, "low_pp": over.low, "high_pp": over.high, "t_p": over.t_p}
            | {"wilcoxon_p": over.wilcoxon_p, "sign_flip_p": over.sign_flip_p, "smallest_p": over.smallest_p}
            | {"n_models_down": over.n_below_zero, "n_models_up": over.n_above_zero}
        )
    result = pd.DataFrame(rows)
    counts = ["n_models", "n_models_down", "n_models_up"]
    result[counts] = result[counts].astype("Int64")
    result.insert(2, "baseline", baseline)
    result.insert(3, "defence", defence)
    result.insert(4, "failure_type", failure_type)
    return result


def _difference(model: str, structure: str, rate_baseline: float, rate_arm: float) -> dict:
    difference = 100 * (rate_arm - rate_baseline)
    return {
        "model": model, "structure": structure, "rate_baseline": rate_baseline, "rate_arm": rate_arm,
        "difference_pp": difference, "reduction_pp": -difference,
        "relative_change_pct": difference / rate_baseline if rate_baseline else float("nan"),
    }  # fmt: skip
