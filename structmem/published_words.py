"""What the published rates do and do not support, in sentences that follow from the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from .interactions import interaction_words
from .intervals import LEVEL
from .margins import NOT_SHOWN
from .published import published_drift
from .published_contrasts import (
    published_conditional_effects,
    published_contrast,
    published_differences,
    published_dominance,
    published_interactions,
    published_noninferiority,
)
from .tables import signed

_ALPHA, _STANDARD = 1 - LEVEL, "standard"


def published_reading(margin_pp: float | None = None) -> None:
    """Print, claim by claim, what the published per-model rates support; what they do not is said as plainly.

    Parameters
    ----------
    margin_pp : float, optional
        How many pp more beneficial failures would still count as maintained; default: the analysis plan's margin.
    """
    leakage, off = published_differences(), published_differences("restrictive", "sycophancy")
    lines = [
        f"Published rates of {leakage['n_models'].max()} models, one run each: descriptive.",
        "Intervals and p-values are over models, assumed exchangeable; the models are no random sample.",
        *_against_flat(leakage[leakage["baseline"] == "flat"]),
        *_among_structures(leakage[leakage["baseline"] != "flat"]),
        *_within_defences(),
        *_beneficial(published_noninferiority(margin_pp)),
        *_dominance(published_dominance().query("arm == 'dynamic' and baseline == 'fixed'")),
        *_instruction(published_contrast(("flat", "rubric_informed"), ("dynamic", "standard"))),
        *_off_the_ceiling(off[(off["arm"] == "dynamic") & (off["baseline"] == "flat")].iloc[0]),
        *_drift(published_drift().query("failure_type == 'cross_domain'")["range_pp"]),
    ]
    print("\n".join(lines))


def _against_flat(table: pd.DataFrame) -> Iterator[str]:
    yield f"Leakage against flat, Holm over {len(table)} structures:"
    for row in table.to_dict("records"):
        found = _found(row)
        if found != _UNSEEN and row["holm_p"] >= _ALPHA:
            found = f"not shown once {len(table)} structures are compared"
        yield f"  {row['arm']} {_numbers(row)}, Holm {row['holm_p']:.3f}: {found}"


def _among_structures(table: pd.DataFrame) -> Iterator[str]:
    yield f"Structures among themselves, Holm over {len(table)} differences:"
    for row in table.to_dict("records"):
        found = _found(row) if row["holm_p"] < _ALPHA else "not shown"
        yield f"  {row['arm']} against {row['baseline']} {_numbers(row)}, Holm {row['holm_p']:.3f}: {found}"
    if (table["holm_p"] >= _ALPHA).all():
        yield "  so there is no support for a claim about depth"


def _within_defences() -> Iterator[str]:
    effects, interactions = published_conditional_effects(), published_interactions()
    yield f"Leakage, dynamic against flat within a defence (smallest Holm p {effects['holm_p'].min():.3f}):"
    for row in effects.to_dict("records"):
        yield f"  {row['defence']} {_numbers(row)}: {row['reading'].split(':')[0]}"
    yield "The benefit of dynamic together with a defence's, by the intervals of the interactions:"
    for scale, low, high in (
        ("pp", "low_pp", "high_pp"),
        ("log odds, which have no floor", "log_odds_low", "log_odds_high"),
    ):
        words = [
            interaction_words(_STANDARD, row["reference_pp"], (row[low], row[high])).split(" in ")[0]
            for row in interactions.to_dict("records")
        ]
        found = interactions["defence"].groupby(words, sort=False).agg(", ".join)
        yield f"  in {scale}: {'; '.join(f'{word} for {names}' for word, names in found.items())}"


def _beneficial(table: pd.DataFrame) -> Iterator[str]:
    margin = table["margin_pp"].iloc[0]
    yield f"Beneficial failures at most {margin:g} pp above flat, said per structure (one-sided 95 % bounds):"
    for row in table.to_dict("records"):
        bound = f"{signed(row['difference_pp'])} pp, bound {signed(row['upper_bound_pp'])} pp"
        worst = f"worst in {row['worst_model']}, {signed(row['worst_difference_pp'])} pp"
        found = "not shown to be maintained" if row["verdict"] == NOT_SHOWN else "maintained"
        yield f"  {row['arm']} {bound} ({worst}): {found}"


def _dominance(table: pd.DataFrame) -> Iterator[str]:
    arm, baseline, n = table["arm"].iloc[0], table["baseline"].iloc[0], len(table)
    wins = [(name, other, int(table["dominates"].eq(name).sum())) for name, other in ((arm, baseline), (baseline, arm))]
    said = [f"{name} dominates {other} in {f'{count} of {n}' if count else 'none'}" for name, other, count in wins]
    yield f"Leakage and beneficial failures at once, by point estimates: {', '.join(said)}."


def _instruction(table: pd.DataFrame) -> Iterator[str]:
    yield f"An instruction in place of a layout ({table['arm'].iloc[0]} against {table['baseline'].iloc[0]}):"
    kinds = {"cross_domain": "leakage", "beneficial_memory_usage": "beneficial failures"}
    for row in table[table["failure_type"].isin(kinds)].to_dict("records"):
        means = f"{100 * row['rate_arm']:.1f} % against {100 * row['rate_baseline']:.1f} %"
        yield f"  {kinds[row['failure_type']]} {means}: {_numbers(row)}: {_found(row)}"


def _off_the_ceiling(row: pd.Series) -> Iterator[str]:
    rate = f"{100 * row['rate_baseline']:.1f} %"
    yield f"Sycophancy under {row['defence']}, where {row['baseline']} is off its ceiling ({rate}):"
    yield f"  {row['arm']} {_numbers(row)}: {_found(row)}"


def _drift(moved: pd.Series) -> Iterator[str]:
    yield f"Leakage of the same model with a flat list differs by {moved.min():.1f} to {moved.max():.1f} pp between"
    yield "  three published runs, not necessarily with the same prompts: a difference between runs can be drift."


_UNSEEN = "not distinguishable"


def _found(row: dict | pd.Series) -> str:
    return "lower" if row["high_pp"] < 0 else "higher" if row["low_pp"] > 0 else _UNSEEN


def _numbers(row: dict | pd.Series) -> str:
    difference, low, high = (signed(row[name]) for name in ("difference_pp", "low_pp", "high_pp"))
    models = f"{row['n_models_down']} of {row['n_models']} models down"
    return f"{difference} pp [{low}, {high}], {models}, p {row['t_p']:.3f}"
