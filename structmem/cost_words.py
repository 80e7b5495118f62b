"""Cautious readings of costs: what is paid once, what per answer, and what is never paid back."""

from __future__ import annotations

import pandas as pd

from .costs import MODEL
from .payback import break_even, paid_back

_KEEPS_ALL = ("fixed", "dynamic", "tree")


def cost_reading(costs: pd.DataFrame, kept: pd.DataFrame | None = None) -> None:
    """Print what tables of costs do and do not show.

    Parameters
    ----------
    costs : DataFrame
        As made by `token_costs`.
    kept : DataFrame, optional
        As made by `prefix_kept`.
    """
    n, answer = int(costs["n_sets"].iloc[0]), costs["answer_tokens"].iloc[0]
    print(
        f"Counted in the real prompts over {n} memory sets, in Llama 2 tokens; no model was called. An answer is taken "
        f"to have {answer:,.0f} tokens under every layout. Another model's tokens, retries and reasoning differ."
    )
    rows = costs.set_index(["structure", "structurer"])
    models = [name for name in _KEEPS_ALL if (name, MODEL) in rows.index]
    if models:
        once = [f"{name} {_all(rows.loc[(name, MODEL)], 'once'):,.0f}" for name in models]
        print(f"A model that sorts takes once per memory set, in tokens: {', '.join(once)}. By embedding: none.")
    _against_flat(costs)
    if models:
        small = paid_back(costs).set_index(["structure", "structurer"])
        ends = [
            f"{name} {small.loc[(name, MODEL), 'queries_to_10_pct']:,.0f} and "
            f"{small.loc[(name, MODEL), 'queries_to_1_pct']:,.0f}"
            for name in models
        ]
        print(f"That is below 10 % and 1 % of what answers cost from these queries on: {'; '.join(ends)}.")
        parts = {name: [_all(rows.loc[(name, MODEL)], what) for what in ("add", "once")] for name in models}
        one = [f"{name} {100 * added / whole:.0f} %" for name, (added, whole) in parts.items()]
        print(
            f"One memory more, by a model, takes of the tokens of sorting the set anew: {', '.join(one)}. Most of "
            "either are the domains' definitions, so the larger the set, the smaller the part."
        )
    _per_query(costs)
    if kept is not None:
        _cache(kept)
    print(
        "Fewer failures are what a layout may buy, and lost help is what dropping memories may cost: neither is here."
    )


def _all(row: pd.Series, what: str) -> float:
    return float(row[f"{what}_input_tokens"] + row[f"{what}_output_tokens"])


def _against_flat(costs: pd.DataFrame) -> None:
    against = break_even(costs).query("against == 'flat'")
    keeps = against[against["structure"].isin(_KEEPS_ALL)]
    if len(keeps):
        low, high = keeps["per_answer_more"].min(), keeps["per_answer_more"].max()
        if low >= 0:
            print(
                f"Layouts that keep all memories add {low:.0f} to {high:.0f} tokens to every answer of the flat list: "
                "in tokens they never pay back against it."
            )
        else:
            print(f"Layouts that keep all memories change every answer by {low:+.0f} to {high:+.0f} tokens.")
    for row in against[~against["structure"].isin(_KEEPS_ALL)].to_dict("records"):
        who = f"{row['structure']}{' by ' + row['structurer'] if row['structurer'] else ''}"
        more = row["per_answer_more"]
        print(
            f"  {who}: {abs(more):.0f} tokens {'less' if more < 0 else 'more'} per answer than flat, {row['reading']}."
        )


def _per_query(costs: pd.DataFrame) -> None:
    """From which query on a partition by a model is cheaper than asking anew for every query."""
    table = break_even(costs)
    asked = table[(table["against_structurer"] == MODEL) & (table["structurer"] == MODEL)]
    for row in asked[asked["structure"].isin(_KEEPS_ALL)].to_dict("records"):
        print(f"  {row['structure']} by a model against {row['against']} by a model: {row['reading']}.")


def _cache(kept: pd.DataFrame) -> None:
    named = kept.groupby("structure", sort=False)["context_kept_share"].mean()
    print(
        "After one memory is added, this share of the context is still an unchanged beginning: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in named.items())
        + "."
    )
    tokens = kept["prompt_tokens"].max()
    if tokens < 1024:
        print(
            f"These prompts have {tokens:,.0f} tokens at most; several providers cache none below 1,024, so the saving "
            "needs longer prompts than these."
        )
