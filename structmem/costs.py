"""What layouts cost: tokens once per memory set, per query and per answer, what is paid back, and prices by model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import pandas as pd

from .additions import add_memory
from .columns import check_table
from .data import Entry
from .describe import count_tokens
from .errors import InputError, choice
from .messages import build_messages
from .outcomes import keep_none, sort_arms
from .renderers import render
from .sorters import offline_embedder
from .structures import spec, structure
from .taxonomy import Taxonomy, load_taxonomy

MODEL = "a model"  # the structurer whose calls are counted: which model it is changes the price, not the prompts
ARMS = ("flat", "fixed", "dynamic", "tree", "rag", "gated", "self_check")
_GROWS = ("fixed", "dynamic", "tree", "gated")  # layouts of a partition, to which `add_memory` adds
_COLUMNS = (
    "structure", "structurer", "n_sets", "once_calls", "once_input_tokens", "once_output_tokens", "query_calls",
    "query_input_tokens", "query_output_tokens", "add_input_tokens", "add_output_tokens", "context_tokens",
    "context_added_tokens", "prompt_tokens", "answer_tokens",
)  # fmt: skip


@dataclass
class _Reader:
    """A stand-in for a sorting model: keeps requests and answers as the embedding structurer has sorted.

    So the requests are the real ones, made by the same code as for a model, and the replies are as long as right ones.
    """

    labels: Mapping[str, str]  # memory text → domain or domain/leaf
    leaves: Mapping[str, Sequence[str]]
    kept: frozenset[str]  # texts near the query
    asked: list[tuple[bool, str, str]] = field(default_factory=list)  # whether for one query alone, request, reply

    def __call__(self, messages: Sequence[Mapping], *, role: str, params: Mapping, memories=(), **_) -> str:
        shape = params.get("response_format", {}).get("json_schema", {"name": ""})
        of_query = role == "classifier" and shape["name"] != "assignments"
        if role == "proposer":
            reply: dict = {"domains": self.leaves}
        elif of_query:
            numbers = shape["schema"]["properties"][shape["name"]]["items"]["enum"]
            mine = zip(numbers, memories, strict=True)
            reply = {shape["name"]: [n for n, text in mine if text in self.kept] if memories else numbers[:3]}
        else:
            menus = shape["schema"]["properties"]["assignments"]["properties"]
            said = {n: self.labels[text] for n, text in zip(menus, memories, strict=True)}
            # A leaf's name may be spelled otherwise once it is cleaned; its domain is as long, or shorter.
            menu = {
                n: label if label in menus[n].get("enum", [label]) else label.split("/")[0] for n, label in said.items()
            }
            reply = {"assignments": menu}
        text = json.dumps(reply, ensure_ascii=False)
        self.asked.append((of_query, "\n".join(message["content"] for message in messages), text))
        return text


def _reader(entry: Entry, name: str, taxonomy: Taxonomy) -> _Reader:
    sorted_as = name if name in ("dynamic", "tree") else "fixed"
    node = structure(entry.memories, sorted_as, taxonomy=taxonomy)
    labels = {memory.text: "/".join(path) for path, part in node.walk() for memory in part.memories}
    leaves = {part.label: [leaf.label for leaf in part.children] for part in node.children if part.children}
    near = structure(entry.memories, "rag", query=entry.query)
    return _Reader(labels, leaves, frozenset(memory.text for memory in near.all_memories()))


def token_costs(
    entries: Iterable[Entry],
    structures: Sequence[str] = ARMS,
    *,
    taxonomy: str | Taxonomy = "life11",
    renderer: str = "markdown",
    system_prompt: str = "short",
    placement: str = "system",
    answer_tokens: int = 400,
) -> pd.DataFrame:
    """Tokens that layouts cost, counted in the real prompts without calling a model.

    A model's sorting is not known before it is asked. So its requests are made with a stand-in that replies as the
    embedding structurer sorts, in the JSON that is asked for: requests are exact but for the leaves a model would
    propose, replies are as long as right ones. No retries, no reasoning; what a chat template adds is not counted. What
    ``self_check`` and ``gated`` leave in the context is the model's choice too: taken are the memories that ``rag``
    keeps at its default threshold, and the first three domains.

    Parameters
    ----------
    entries : iterable of Entry
        One memory set and one query each; entries without memories are left out.
    structures : sequence of str
        ``flat`` is counted in any case.
    taxonomy, renderer, system_prompt, placement
        As in ``run``.
    answer_tokens : int
        Length of an answer, taken to be the same under every layout.

    Returns
    -------
    DataFrame
        One row per structure × ``structurer`` ('embedding', 'a model', or empty), means over ``n_sets`` memory sets, in
        tokens of the Llama 2 tokenizer: ``once_…``, to sort a set, however many queries follow; ``query_…``, asked anew
        for every query; ``add_…``, to add one memory to a sorted set (0 where nothing is sorted before a query);
        ``context_tokens`` and ``context_added_tokens`` (against flat) in every prompt; ``prompt_tokens`` of the whole
        prompt; ``answer_tokens``. The embedding structurer costs no model tokens.

    Raises
    ------
    InputError
        If no entry has memories, or for a structure that is not one of `ARMS`.
    """
    entries, taxonomy = [entry for entry in entries if entry.memories], load_taxonomy(taxonomy)
    if not entries:
        raise InputError("no entry has memories; expected at least one.")
    for name in structures:
        if name not in ARMS:
            raise choice("structure", name, ARMS)
    if isinstance(answer_tokens, bool) or not isinstance(answer_tokens, int) or answer_tokens < 1:
        raise InputError(f"answer_tokens must be a whole number of at least 1, got {answer_tokens!r}.")
    rows, flat = [], pd.Series(dtype=float)
    for name in dict.fromkeys(["flat", *structures]):
        for who in _structurers(name):
            counted = pd.DataFrame(
                [_counted(entry, name, who, taxonomy, renderer, system_prompt, placement) for entry in entries]
            )
            flat = counted["context_tokens"] if name == "flat" else flat
            counted["context_added_tokens"] = counted["context_tokens"] - flat
            rows.append({"structure": name, "structurer": who, "n_sets": len(entries)} | counted.mean().to_dict())
    table = pd.DataFrame(rows).assign(answer_tokens=float(answer_tokens))
    return table[list(_COLUMNS)]


def _structurers(name: str) -> tuple[str, ...]:
    if not spec(name).uses_structurer:
        return ("",)
    if name == "rag":  # a model that reads is no way to embed
        return ("embedding",)
    return (MODEL,) if name == "self_check" else ("embedding", MODEL)


def _counted(
    entry: Entry, name: str, who: str, taxonomy: Taxonomy, renderer: str, system_prompt: str, placement: str
) -> dict:
    """Tokens of one memory set and query under one layout."""
    reader, how = _reader(entry, name, taxonomy), {"taxonomy": taxonomy}
    by_model = {"structurer": "model", "ask": reader} if who == MODEL else {}
    node = structure(entry.memories, name, query=entry.query, **how, **by_model)
    texts = [(of_query, request, reply) for of_query, request, reply in reader.asked]
    found: dict = {}
    for kind, for_query in (("once", False), ("query", True)):
        mine = [text for text in texts if text[0] == for_query]
        found[f"{kind}_calls"] = len(mine)
        for place, what in ((1, "input"), (2, "output")):
            found[f"{kind}_{what}_tokens"] = sum(count_tokens([text[place] for text in mine]))
    added = count_tokens(_addition(entry, name, how, by_model, reader))
    if by_model and name in _GROWS and len(entry.memories) < 2:  # nothing to add to, which is not the same as 0
        added = [nan, nan]
    found |= dict(zip(("add_input_tokens", "add_output_tokens"), added, strict=True))
    context = render(node, renderer)
    prompt = prompt_text(entry.query, context, system_prompt, placement)
    found["context_tokens"], found["prompt_tokens"] = count_tokens([context, prompt])
    return found


def _addition(entry: Entry, name: str, how: dict, by_model: dict, reader: _Reader) -> tuple[str, str]:
    """Request and reply with which the last memory is added to a layout of the others; both empty without a model."""
    *before, last = entry.memories
    if not by_model or not before or name not in _GROWS:
        return "", ""
    node = structure(before, "fixed" if name == "gated" else name, **how)
    reader.asked.clear()
    add_memory(node, last, **how, **by_model)
    _, request, reply = reader.asked[-1]
    return request, reply


def prompt_text(query: str, context: str, system_prompt: str, placement: str) -> str:
    """A whole request as one text."""
    chat = build_messages(query, context, system_prompt=system_prompt, placement=placement, model="model")
    return "\n".join(message["content"] for message in chat)


def measured_costs(results: pd.DataFrame) -> pd.DataFrame:
    """Tokens as the models counted them, from a results table.

    Parameters
    ----------
    results : DataFrame
        One row per generation.

    Returns
    -------
    DataFrame
        One row per model × structure × structurer (× taxonomy and options, where they differ). ``once_input_tokens``,
        ``once_output_tokens``: mean per sorting over the ``n_sortings`` whose tokens are known, each counted once
        however many answers share it; ``answer_input_tokens``, ``answer_output_tokens``: mean over ``n_answers`` whose
        tokens are known; ``cached_share`` of the input tokens, read from the provider's cache, where it is told.
        ``reason`` says why a number is missing. The tokens are each model's own.
    """
    check_table(results)
    keys = ["model", "structure", "structurer", "taxonomy", "structurer_options"]
    needed = [*keys, "structurer_key", *(f"{who}_{kind}_tokens" for who in ("structurer", "answer") for kind in _KINDS)]
    for name in needed:
        if name not in results:
            raise choice("a column of the results", name, results.columns)
    counts = [name for name in (*needed[-4:], "answer_cached_tokens") if name in results]
    numbers = results.assign(**{name: results[name].astype("Float64").astype(float) for name in counts})
    rows = []
    for key, group in keep_none(numbers, keys).groupby(keys, sort=False):
        sortings = group.drop_duplicates("structurer_key").dropna(subset=_of("structurer"))
        answers = group.dropna(subset=_of("answer"))
        embedded = offline_embedder(key[2])
        row = dict(zip(keys, key, strict=True)) | {"n_sortings": 0 if embedded else len(sortings)}
        for kind in _KINDS:
            known = sortings[f"structurer_{kind}_tokens"].mean()
            row[f"once_{kind}_tokens"] = 0.0 if embedded or key[2] in ("", "(none)") else known
        row |= {"n_answers": len(answers)} | {name: answers[name].mean() for name in _of("answer")}
        cached = answers["answer_cached_tokens"] if "answer_cached_tokens" in answers else pd.Series(dtype=float)
        told = answers.loc[cached.notna(), "answer_input_tokens"].sum() if len(cached) else 0
        row["cached_share"] = cached.sum() / told if told else float("nan")
        row["reason"] = "; ".join(
            words
            for words, missing in (
                ("the embedding structurer has no model tokens", embedded),
                ("no sorting has known tokens", pd.isna(row["once_input_tokens"])),
                ("no answer has known tokens", not len(answers)),
                ("cached tokens are not told", pd.isna(row["cached_share"]) and len(answers) > 0),
            )
            if missing
        )
        rows.append(row)
    table = pd.DataFrame(rows, columns=[*keys, *_MEASURED])
    spare = [name for name in keys[3:] if not (table.groupby(keys[:3])[name].nunique() > 1).any()]
    return sort_arms(table, keys).drop(columns=spare)


_KINDS = ("input", "output")
_MEASURED = (
    "n_sortings", "once_input_tokens", "once_output_tokens", "n_answers", "answer_input_tokens",
    "answer_output_tokens", "cached_share", "reason",
)  # fmt: skip


def _of(who: str) -> list[str]:
    return [f"{who}_{kind}_tokens" for kind in _KINDS]
