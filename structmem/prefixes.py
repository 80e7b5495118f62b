"""Prompt caches: how much of a prompt stays its unchanged beginning after one memory is added, and what that costs."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import nan

import pandas as pd

from .additions import add_memory
from .costs import prompt_text
from .data import Entry
from .describe import _tokenizer
from .errors import InputError
from .prices import price
from .renderers import render
from .structures import structure
from .tree import Node

_STRUCTURES = ("flat", "fixed", "dynamic", "tree")


def prefix_kept(
    entries: Iterable[Entry],
    structures: Sequence[str] = _STRUCTURES,
    *,
    renderers: Sequence[str] = ("markdown",),
    placements: Sequence[str] = ("system", "user"),
    system_prompt: str = "short",
) -> pd.DataFrame:
    """How much of the context and of the prompt a cache can still serve after one memory was added.

    Providers keep the beginning of a prompt up to the first token that differs. Each memory of a set in turn is taken
    as the one that comes last: the others are laid out (by the embedding structurer), it is added with `add_memory`,
    and the two contexts are compared from their beginning. A flat list appends; a partition puts it at the end of
    its group, so all groups after that move. Another query is asked each time, so nothing after the context is served.

    Parameters
    ----------
    entries : iterable of Entry
        Those with at least two memories count.
    structures, renderers, placements, system_prompt
        As in ``run``; structures that keep all memories.

    Returns
    -------
    DataFrame
        One row per structure × renderer × placement, over ``n_additions`` in ``n_sets``; means in tokens of the Llama 2
        tokenizer, every set weighing the same: ``context_tokens`` after the addition; ``context_kept_share``: of the
        context before it, what is an unchanged beginning, with ``least`` and ``most``, the lowest and highest mean of a
        set; ``prompt_tokens`` after the addition; ``prompt_kept_share`` of it that was sent before, system prompt
        included; ``unchanged_share``: the same if no memory is added and only the query is another one. Upper bounds:
        providers serve whole blocks, and often none below 1,024 tokens.

    Raises
    ------
    InputError
        If no entry has two memories, or a structure needs the query.
    """
    entries = [entry for entry in entries if len(entry.memories) > 1]
    if not entries:
        raise InputError("no entry has two memories, so none can be added to another.")
    if wrong := [name for name in structures if name not in _STRUCTURES]:
        raise InputError(
            f"structures must be some of {list(_STRUCTURES)}, to which a memory can be added, got {wrong}."
        )
    rows = []
    for name in structures:
        pairs = [_grown(entry, name) for entry in entries]
        for renderer, placement in product(renderers, placements):
            sets = [
                _kept(entry.query, nodes, renderer, placement, system_prompt)
                for entry, nodes in zip(entries, pairs, strict=True)
            ]
            found = pd.DataFrame(sets)
            rows.append(
                {"structure": name, "structurer": "" if name == "flat" else "embedding", "renderer": renderer}
                | {"placement": placement, "n_sets": len(sets), "n_additions": sum(map(len, pairs))}
                | found.mean().to_dict()
                | {"least": found["context_kept_share"].min(), "most": found["context_kept_share"].max()}
            )
    return pd.DataFrame(rows)


def _grown(entry: Entry, name: str) -> list[tuple[Node, Node]]:
    """Per memory: the layout of the others, and the same with it added."""
    found = []
    for last in entry.memories:
        before = structure([memory for memory in entry.memories if memory is not last], name)
        found.append((before, add_memory(before, last, taxonomy="life11")))
    return found


def _kept(query: str, nodes: Sequence[tuple[Node, Node]], renderer: str, placement: str, system_prompt: str) -> dict:
    """Means over the additions to one memory set."""
    found = []
    for pair in nodes:
        before, after = (str(render(node, renderer)) for node in pair)
        old, new, other = (
            prompt_text(asked, context, system_prompt, placement)
            for asked, context in ((query, before), (query, after), ("\0", after))  # no query begins with a null
        )
        n_new = len(_ends(new))
        found.append(
            {"context_tokens": len(_ends(after)), "context_kept_share": _shared(before, after) / len(_ends(before))}
            | {"prompt_tokens": n_new, "prompt_kept_share": _shared(new, old) / n_new}
            | {"unchanged_share": _shared(new, other) / n_new}
        )
    return pd.DataFrame(found).mean().to_dict()


def _shared(text: str, other: str) -> int:
    """Tokens of a text that lie in the beginning that it shares with another."""
    return bisect_right(_ends(text), len(os.path.commonprefix([text, other])))


@lru_cache(maxsize=4096)  # a context is compared under every placement
def _ends(text: str) -> tuple[int, ...]:
    """Where each token of a text ends, in characters."""
    return tuple(end for _, end in _tokenizer().encode(text, add_special_tokens=False).offsets)


def cache_prices(kept: pd.DataFrame, models: str | Iterable[str], prices: Mapping | None = None) -> pd.DataFrame:
    """What the input of an answer costs with a warm prompt cache, at litellm's list prices.

    Parameters
    ----------
    kept : DataFrame
        As made by `prefix_kept`.
    models : litellm id or ids
    prices : mapping, optional
        Own prices, as in ``Client``, with a third number: dollars per cached input token.

    Returns
    -------
    DataFrame
        One row per model and row of `kept`, in US dollars for the input of 1,000 answers: ``no_cache``; ``unchanged``,
        if no memory is added between answers; ``after_addition``, if one is added before every answer; ``invalidated``
        = after_addition − unchanged. Writing to the cache is not counted, though some providers charge for it. Missing
        with a ``reason`` where a price is not known.
    """
    rows = []
    for model in [models] if isinstance(models, str) else list(models):
        known = price(model, prices)
        into, cached = (known.input, known.cached_input) if known else (nan, nan)
        reason = "no known price" if not known else "no known price of cached input" if cached is None else ""
        cached = nan if cached is None else cached
        for row in kept.to_dict("records"):
            named = {name: row[name] for name in ("structure", "structurer", "renderer", "placement")}
            costs = {"no_cache": 1000 * row["prompt_tokens"] * into}
            for name, share in (("unchanged", "unchanged_share"), ("after_addition", "prompt_kept_share")):
                costs[name] = 1000 * row["prompt_tokens"] * (row[share] * cached + (1 - row[share]) * into)
            costs["invalidated"] = costs["after_addition"] - costs["unchanged"]
            rows.append({"model": model} | named | costs | {"reason": reason})
    return pd.DataFrame(rows)
