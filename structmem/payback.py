"""When a layout has paid for its sorting: queries until the one-off cost is small, break-even, prices by model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from math import nan

import pandas as pd

from .calls import model_label
from .costs import MODEL
from .errors import InputError, choice
from .prices import Price, price

SMALL_PCT = (10, 1)
TOKENS = "tokens"
_PER_QUERY = ("rag", "gated", "self_check")  # ways that choose anew for every query
_MILLION = 1_000_000


def _spent(costs: pd.DataFrame, model: object, prices: Mapping | None) -> pd.DataFrame:
    """Per layout: what it costs once and per answer, in tokens or in dollars at a model's price."""
    needed = ("structure", "structurer", "once_input_tokens", "query_input_tokens", "prompt_tokens", "answer_tokens")
    for name in needed:
        if name not in costs:
            raise InputError(f"the table has no column {name!r}; expected one made by token_costs.")
    known = Price(1.0, 1.0) if model is None else price(model, prices)
    into, out = (known.input, known.output) if known else (nan, nan)
    named = costs[["structure", "structurer"]].assign(unit=TOKENS if model is None else f"USD, {model_label(model)}")
    return named.assign(
        once=costs["once_input_tokens"] * into + costs["once_output_tokens"] * out,
        per_answer=(costs["prompt_tokens"] + costs["query_input_tokens"]) * into
        + (costs["answer_tokens"] + costs["query_output_tokens"]) * out,
    )


def _no_price(model: object) -> str:
    return f"no known price of {model_label(model)}"


def paid_back(costs: pd.DataFrame, model: object = None, prices: Mapping | None = None) -> pd.DataFrame:
    """Number of queries after which sorting a memory set once is a small part of what its answers cost so far.

    Parameters
    ----------
    costs : DataFrame
        As made by `token_costs`.
    model : str or callable, optional
        None: in tokens, input and output alike. Else in dollars at this model's price, sorting and answers alike.
    prices : mapping, optional
        Own prices, as in ``Client``.

    Returns
    -------
    DataFrame
        One row per layout: ``unit``; ``once``; ``per_answer`` (prompt, answer, and what is asked for every query);
        ``queries_to_10_pct``, ``queries_to_1_pct``: the first number of queries at which ``once`` is less than that
        share of ``per_answer`` × queries (0: nothing was paid once); ``reason`` where a number is missing.
    """
    table = _spent(costs, model, prices)
    for pct in SMALL_PCT:
        table[f"queries_to_{pct}_pct"] = [
            _first_below(once, each, pct) for once, each in zip(table["once"], table["per_answer"], strict=True)
        ]
    return table.assign(reason=_no_price(model) if table["per_answer"].isna().any() else "")


def _first_below(once: float, each: float, pct: int) -> float:
    """The least whole N with 100 × once < pct × each × N."""
    if math.isnan(once) or math.isnan(each):
        return nan
    if once == 0:
        return 0.0
    return math.floor(round(100 * once / (pct * each), 9)) + 1.0 if each > 0 else nan


def break_even(costs: pd.DataFrame, model: object = None, prices: Mapping | None = None) -> pd.DataFrame:
    """From which query on a layout has cost less than another in all, sorting included.

    Layouts that keep all memories only add tokens to the flat list, so in tokens they never pay back against it: what
    they may buy is fewer failures, which is not counted here. Ways that drop memories (``rag``, ``gated``,
    ``self_check``) have shorter prompts; what they lose is not counted either.

    Parameters
    ----------
    costs, model, prices
        As in `paid_back`.

    Returns
    -------
    DataFrame
        One row per layout and per layout ``against`` that it is held (the flat list, and each way that chooses memories
        anew for every query): ``unit``; ``once_more`` and ``per_answer_more`` than the other (negative: less);
        ``break_even_queries``: the first number of queries at which it has cost no more in all (0: at once; NaN:
        never); ``reading``, the same in words.
    """
    spent = _spent(costs, model, prices).to_dict("records")
    rows = []
    for one in spent:
        for other in spent:
            if one is other or other["structure"] not in ("flat", *_PER_QUERY):
                continue
            once, each = one["once"] - other["once"], one["per_answer"] - other["per_answer"]
            n, words = _met(once, each)
            rows.append(
                {"structure": one["structure"], "structurer": one["structurer"], "unit": one["unit"]}
                | {"against": other["structure"], "against_structurer": other["structurer"]}
                | {"once_more": once, "per_answer_more": each, "break_even_queries": n}
                | {"reading": words or _no_price(model)}
            )
    columns = ("structure", "structurer", "unit", "against", "against_structurer", "once_more", "per_answer_more")
    return pd.DataFrame(rows, columns=[*columns, "break_even_queries", "reading"])


def _met(once: float, each: float) -> tuple[float, str]:
    """The first N with once + each × N ≤ 0 for it and all later ones, and what that means."""
    if math.isnan(once) or math.isnan(each):
        return nan, ""
    if once == each == 0:
        return 0.0, "costs the same"
    if once <= 0 and each <= 0:
        return 0.0, "costs less from the start"
    if each >= 0:
        first = f"; cheaper only for the first {math.floor(round(-once / each, 9)):,}" if once < 0 and each > 0 else ""
        return nan, f"never: it {'costs' if each else 'saves nothing on'} {'more for ' * bool(each)}every answer{first}"
    n = math.ceil(round(once / -each, 9))
    return float(n), f"from query {n:,} on"


def spent_by_queries(costs: pd.DataFrame, queries: Sequence[int] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)):
    """Tokens in all after so many queries on one memory set, against the flat list.

    Parameters
    ----------
    costs : DataFrame
        As made by `token_costs`.
    queries : sequence of int

    Returns
    -------
    DataFrame
        One row per layout and number of ``queries``: ``tokens`` in all (sorting, prompts, answers) and ``ratio`` to
        those of the flat list.
    """
    spent = _spent(costs, None, None)
    (flat,) = spent.loc[spent["structure"] == "flat", "per_answer"]
    rows = [
        {"structure": row["structure"], "structurer": row["structurer"], "queries": n}
        | {"tokens": row["once"] + n * row["per_answer"], "ratio": (row["once"] + n * row["per_answer"]) / (n * flat)}
        for row in spent.to_dict("records")
        for n in queries
    ]
    return pd.DataFrame(rows)


def price_table(
    models: str | Iterable[str],
    costs: pd.DataFrame,
    structure: str = "fixed",
    *,
    answers: int = 1000,
    prices: Mapping | None = None,
) -> pd.DataFrame:
    """What models cost, by litellm's local map of list prices; no model is called and nothing is fetched.

    Parameters
    ----------
    models : litellm id or ids
        Each is taken as the answering model and as the one that sorts.
    costs : DataFrame
        As made by `token_costs`: with flat, and with `structure` sorted by a model.
    structure : str
        The layout that is priced beside flat.
    answers : int
        Number of answers that are priced.
    prices : mapping, optional
        Own prices, as in ``Client``.

    Returns
    -------
    DataFrame
        One row per model, in US dollars: ``input_per_million``, ``cached_per_million`` (input read from the provider's
        cache), ``output_per_million`` tokens; ``sort_one_set``; ``add_one_memory``; ``answers_flat`` and
        ``answers_structure`` for `answers` answers without any cache, sorting not included. A price that is not known
        is missing, never 0, and ``reason`` says so. List prices change: the map is as old as the installed litellm.
    """
    rows = {(row["structure"], row["structurer"]): row for row in costs.to_dict("records")}
    wanted = (structure, "" if structure == "flat" else "embedding" if structure == "rag" else MODEL)
    for key in (("flat", ""), wanted):
        if key not in rows:
            raise InputError(f"costs lack the row {key}; make them with token_costs(entries, {[structure]}).")
    flat, mine = rows["flat", ""], rows[wanted]
    found = []
    for model in [models] if isinstance(models, str) else list(models):
        if not isinstance(model, str) or not model.strip():
            raise choice("model", model, ["a litellm id such as 'openai/gpt-4o-mini'"])
        known = price(model, prices)
        into, out, cached = (known.input, known.output, known.cached_input) if known else (nan, nan, None)
        cached = nan if cached is None else cached
        reasons = ["no known price" if not known else "", "no known price of cached input" if cached != cached else ""]
        if model.startswith("local/"):
            reasons = ["runs on your own machine: no price per token"]

        def dollars(row: dict, what: tuple[str, ...], into: float = into, out: float = out) -> float:
            return sum(row[name] * (out if name in _OUTPUT else into) for name in what)

        found.append(
            {"model": model, "input_per_million": _MILLION * into, "cached_per_million": _MILLION * cached}
            | {"output_per_million": _MILLION * out}
            | {"sort_one_set": dollars(mine, ("once_input_tokens", "once_output_tokens"))}
            | {"add_one_memory": dollars(mine, ("add_input_tokens", "add_output_tokens"))}
            | {
                f"answers_{name}": answers * dollars(row, _ANSWER)
                for name, row in (("flat", flat), ("structure", mine))
            }
            | {
                "structure": structure,
                "n_answers": answers,
                "reason": "; ".join(filter(None, reasons[: 2 if known else 1])),
            }
        )
    return pd.DataFrame(found)


_ANSWER = ("prompt_tokens", "query_input_tokens", "answer_tokens", "query_output_tokens")
_OUTPUT = ("answer_tokens", "query_output_tokens", "once_output_tokens", "add_output_tokens")
