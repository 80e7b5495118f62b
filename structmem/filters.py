"""Structures by what the query needs (gated, self_check) and by what kind of statement a memory makes (epistemic)."""

from __future__ import annotations

from functools import partial

from .embedding_sorting import query_similarities
from .errors import InputError
from .listings import batches, listing, quoted
from .registry import Job, build, register
from .selections import read_names, read_numbers
from .sorters import by_embedding
from .structurers import Sorting, _each, _lines, _too_much, _why, classify, prompt
from .taxonomy import Taxonomy
from .tree import UNCLASSIFIED, Node

BATCH = 100  # memories in one request of self_check
TRIES = 3  # requests for a selection, each in other words, until everything is kept


@register("epistemic", keeps_all=True, uses_query=False, taxonomy="epistemic")
async def epistemic(job: Job) -> Node:
    """Memories by kind of statement: facts about the user, preferences, and beliefs under a heading that says so."""
    if by_embedding(job.structurer):
        return build(job.memories, await job.sort("fixed"), job.taxonomy)
    options = dict(job.sorting_options)
    if options["json_schema"] is None:
        options["json_schema"] = isinstance(job.structurer, str)
    system = prompt("classifier_epistemic", options["wording"], domains=_lines(job.taxonomy))
    said = await classify(job.asker, job.texts, job.taxonomy.names, system, options)
    paths = tuple((said.labels[i],) if i in said.labels else None for i in range(len(job.texts)))
    return build(job.memories, Sorting(paths, problems=said.problems, note=said.note(len(job.texts))), job.taxonomy)


@register("gated", keeps_all=False, uses_query=True, base="fixed")
async def gated(job: Job, *, max_domains: int = 3) -> Node:
    """The groups of `fixed` that the query needs, at most `max_domains`; memories that nobody could sort are kept.

    The embedder keeps the domains whose ``name: definition`` is nearest to the query, among those that hold memories; a
    model reads names, definitions and query, and may find that none is needed.
    """
    held = [group.label for group in job.base.children if group.label != UNCLASSIFIED]
    choose = _nearest if by_embedding(job.structurer) else _needed
    kept, remarks = await choose(job, held, max_domains) if held else ([], [])
    groups = tuple(group for group in job.base.children if group.label in (*kept, UNCLASSIFIED))
    if len(held) < len(job.base.children):
        remarks = [*remarks, "memories that could not be sorted are kept, whatever the query needs"]
    return Node(None, children=groups, note="; ".join(filter(None, (job.base.note, *remarks))) or None)


async def _nearest(job: Job, held: list[str], max_domains: int) -> tuple[list[str], list[str]]:
    described = [f"{name}: {job.taxonomy.definition(name)}" for name in held]
    near = await query_similarities(job.asker, described, job.query, job.structurer)
    nearest = sorted(range(len(held)), key=lambda k: (-near[k], k))[:max_domains]
    return [held[k] for k in nearest], []


async def _needed(job: Job, held: list[str], max_domains: int) -> tuple[list[str], list[str]]:
    shown = Taxonomy(job.taxonomy.name, tuple(domain for domain in job.taxonomy.domains if domain.name in held))
    system = prompt("gate", domains=_lines(shown), max_domains=str(max_domains))
    schema = {"type": "array", "items": {"type": "string", "enum": held}}
    params = {"temperature": 0.0, "max_tokens": 160 + 20 * max_domains} | _schema(job, "domains", schema)

    def accept(call):
        return read_names(call.text, menu=held, key="domains", finish_reason=call.finish_reason)

    for again in range(TRIES):
        user = f"Message:\n{quoted(job.query)}" + _reminder(again)
        chat = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        said, call = await job.asker(chat, role="classifier", params=params, accept=accept, memories=(), tries=1)
        if said is not None:
            remarks = [f"the model named {name}, which is no domain here" for name in said.unknown]
            if len(said.chosen) > max_domains:
                remarks.append(f"the model named {len(said.chosen)} domains, of which the first {max_domains} are kept")
            return list(said.chosen[:max_domains]), remarks
        if _too_much(call):
            params = params | {"max_tokens": 4 * params["max_tokens"]}
    return held, [f"every domain is kept: no usable reply ({_why(call)})"]


@register("self_check", keeps_all=False, uses_query=True, structurer="self")
async def self_check(job: Job) -> Node:
    """The memories that the model itself names as mattering for the query, in the given order; possibly none."""
    if by_embedding(job.structurer):
        raise InputError(
            f"structure 'self_check' asks a model which memories matter, and {job.structurer!r} is none; name a model "
            "as the structurer (in a run, 'self' is the answering model). 'rag' selects by embedding."
        )
    texts, chosen, remarks = job.texts, set(), []
    pending, size, room = list(range(len(texts))), BATCH, 1
    system = prompt("self_check")

    async def one(batch: list[int], again: int, room: int):
        mine, numbers = [texts[i] for i in batch], [i + 1 for i in batch]
        user = f"Message:\n{quoted(job.query)}\n\nMemories:\n{listing(mine, numbers)}" + _reminder(again)
        schema = {"type": "array", "items": {"type": "integer", "enum": numbers}}
        params = {"temperature": 0.0, "max_tokens": room * (160 + 8 * len(batch))} | _schema(job, "memories", schema)

        def accept(call):
            others = range(1, len(texts) + 1)
            return read_numbers(call.text, numbers=numbers, others=others, finish_reason=call.finish_reason)

        chat = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return await job.asker(chat, role="classifier", params=params, accept=accept, memories=tuple(mine), tries=1)

    for again in range(TRIES):
        groups = batches(pending, texts, size)
        answers = await _each(job.asker.parallel, [partial(one, batch, again, room) for batch in groups])
        pending, cut = [], False
        for batch, (said, call) in zip(groups, answers, strict=True):
            if said is not None:
                chosen.update(number - 1 for number in said.chosen)
                remarks += [f"the model named {what}, which is no memory here" for what in said.unknown]
                continue
            pending += batch
            if _too_much(call):
                size, cut = max(1, min(size, (len(batch) + 1) // 2)), True
            failure = f"no usable reply ({_why(call)})"
        room *= 4 if cut else 1
        if not pending:
            break
    if pending:
        chosen.update(pending)
        remarks.append(f"{len(pending)} of {len(texts)} memories are kept unchecked: {failure}")
    return Node(None, tuple(job.memories[i] for i in sorted(chosen)), note="; ".join(dict.fromkeys(remarks)) or None)


def _reminder(again: int) -> str:
    """Never the request that has just failed, word for word."""
    return (
        f"\n\nThere is no usable answer yet. Reply with the JSON object alone (request {again + 1})." if again else ""
    )


def _schema(job: Job, key: str, schema: dict) -> dict:
    """The shape of the reply, asked for as a classifier's is: of models called by id, or as the option says."""
    wanted = job.sorting_options.get("json_schema")
    if not (isinstance(job.structurer, str) if wanted is None else wanted):
        return {}
    shape = {"type": "object", "properties": {key: schema}, "required": [key], "additionalProperties": False}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": key, "strict": True, "schema": shape}}}
