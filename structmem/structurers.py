"""Who sorts: a model that classifies memories by number, asked again where it failed, or the embedding structurer."""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from . import replies
from .errors import InputError, StructmemError
from .messages import fill
from .paths import package_file
from .taxonomy import Taxonomy

# What a model writes, folded, when it has no name.
_NO_NAMES = {"", "none", "null", "n a", "other", "unknown", "unclassified", "misc", "miscellaneou", "domain"}

MAX_NAME = 40  # characters of a new domain or leaf; longer "names" are sentences

# Options of who sorts, by structure; options of the structure itself are its function's keyword arguments.
EMBEDDING_OPTIONS: dict[str, dict] = {
    "fixed": {},
    "dynamic": {"fit": 0.2, "cluster_similarity": 0.3},
    "tree": {"leaf_similarity": 0.2},
}
# json_schema None: asked of every model that is called by its id. The client sends it where the model takes one, so
# that the request as asked, and with it the key, does not depend on what a library believes of a provider.
# max_tokens None: by the number of memories, and four times as many whenever a reply was cut off.
MODEL_OPTIONS: dict = {"batch_size": 100, "per_memory": False, "retries": 2, "json_schema": None, "max_tokens": None}


class SortingFailed(StructmemError, RuntimeError):
    """The structurer could not be reached (error or timeout): no partition, and nothing is known of the memories."""


@dataclass(frozen=True)
class Sorting:
    """What a structurer decided.

    Parameters
    ----------
    paths : tuple of (tuple of str or None)
        Per memory, in order: (domain,) or (domain, leaf); None when it has no usable answer.
    new_domains : tuple of str
        Domains outside the taxonomy, in order of opening.
    problems : mapping of int to str
        Position of a memory without a path → why.
    note : str or None
        A remark on the whole, for example that a tree has only one level.
    """

    paths: tuple[tuple[str, ...] | None, ...]
    new_domains: tuple[str, ...] = ()
    problems: Mapping[int, str] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class Asker:
    """The way to the structurer: a client's `ask`, the draw, and whether calls may run side by side."""

    ask: Callable
    draw: int = 0
    parallel: bool = False

    async def __call__(self, messages, **request):
        """Ask with `role`, `params`, `accept` and `memories`; return ``(parsed, None)`` or ``(None, reason)``.

        Raises
        ------
        SortingFailed
            If the provider failed, which says nothing about the memories.
        """
        call, parsed = await self.ask(messages, draw=self.draw, **request)
        if parsed is not None:
            return parsed, None
        if call.status_reason in ("error", "timeout"):
            raise SortingFailed(
                f"The structurer gave no reply ({call.status_reason}): {call.error or 'no detail'} "
                "Finished calls are kept; run again to resume."
            )
        return None, call.status_reason or call.status


def prompt(name: str, **slots: str) -> str:
    """A prompt file of ours with its slots filled."""
    return fill(package_file("prompts", f"{name}.md").read_text(encoding="utf-8"), slots)


def quoted(text: str) -> str:
    """A memory as one JSON string; line breaks, controls and invisible characters are escaped, so it forges no line."""
    hidden = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    # json.dumps writes characters beyond the basic plane as the surrogate pairs that JSON wants.
    escaped = {ord(c): json.dumps(c)[1:-1] for c in hidden if c not in "\n\r\t\b\f" and c >= "\x7f"}
    return json.dumps(text, ensure_ascii=False).translate(escaped)


def listing(texts: Sequence[str]) -> str:
    """Numbered memories, one a line, from 1."""
    return "\n".join(f"{k}. {quoted(text)}" for k, text in enumerate(texts, 1))


def _letters(name: str, also: str = "") -> str:
    """Letters, their marks, digits and the characters in `also`; anything else becomes a space."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(c if c in also or unicodedata.category(c)[0] in "LMN" else " " for c in folded)


def fold(name: str) -> str:
    """The form under which two names are one: case, punctuation, ``&``/``and`` and a plural ending do not count."""
    words = _letters(name.replace("&", " and ")).split()
    words = [word for word in words if word != "and"] or words
    return " ".join(re.sub(r"(?<=\w{3})(?<!s)s$", "", re.sub(r"(?<=\w{2})ies$", "y", word)) for word in words)


def clean_name(name: str) -> str | None:
    """A new domain's or leaf's name in one line of letters, or None when the model gave no name."""
    kept = " ".join(_letters(name, also="&'-").split()).strip(" -&'")
    return None if fold(kept) in _NO_NAMES or len(kept) > MAX_NAME else kept


def _lines(taxonomy: Taxonomy, leaves: Mapping[str, Sequence[str]] | None = None) -> str:
    lines = []
    for domain in taxonomy.domains:
        lines.append(f"- {domain.name}: {' '.join(domain.definition.split())}")
        lines += [f"- {domain.name}/{leaf}" for leaf in (leaves or {}).get(domain.name, ())]
    return "\n".join(lines)


def _schema(labels: Sequence[str] | None, n: int) -> dict:
    """A schema with one required field per memory number, so that none can be left out, doubled or invented."""
    label = {"type": "string"} | ({"enum": list(labels)} if labels else {})
    numbers = [str(k) for k in range(1, n + 1)]

    def an_object(properties: dict) -> dict:
        required = list(properties)
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    schema = an_object({"assignments": an_object(dict.fromkeys(numbers, label))})
    return {"type": "json_schema", "json_schema": {"name": "assignments", "strict": True, "schema": schema}}


def _params(options: Mapping, n: int, per_item: int = 40, room: int = 1) -> dict:
    # 40 tokens are over twice one assignment; the constant leaves room for a fence and a short preamble.
    return {"temperature": 0.0, "max_tokens": options["max_tokens"] or room * (160 + per_item * n)}


async def classify(
    asker: Asker, texts: Sequence[str], labels: Sequence[str], system: str, options: Mapping, *, allow_new: bool = False
) -> tuple[dict[int, str], dict[int, str]]:
    """Ask for a label of every text; ask again, for those texts only, where there was no usable answer.

    Returns
    -------
    labels : dict of int to str
        Position → label.
    problems : dict of int to str
        Position → why there is none; together the two cover every position once.
    """
    found: dict[int, str] = {}
    problems: dict[int, str] = {}
    pending, size, room = list(range(len(texts))), 1 if options["per_memory"] else options["batch_size"], 1

    async def one(batch: list[int], again: int, room: int):
        mine = [texts[i] for i in batch]
        user = f"Memories:\n{listing(mine)}"
        if again:  # never the request that has just failed, word for word
            user += f"\n\nThese memories still have no usable answer. Answer for each of them (request {again + 1})."
        params = _params(options, len(batch), room=room)
        if options["json_schema"]:
            params["response_format"] = _schema(None if allow_new else labels, len(batch))

        def accept(call):
            return replies.read_assignments(
                call.text, ids=[str(k + 1) for k in range(len(batch))], labels=labels,
                finish_reason=call.finish_reason, allow_new=allow_new,
            )  # fmt: skip

        chat = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        # One try each: at temperature 0 the same request is answered alike, so the next round asks otherwise.
        return await asker(chat, role="classifier", params=params, accept=accept, memories=tuple(mine), tries=1)

    for again in range(options["retries"] + 1):
        batches = [pending[k : k + size] for k in range(0, len(pending), size)]
        answers = await _each(asker.parallel, [partial(one, batch, again, room) for batch in batches])
        pending, cut = [], False
        for batch, (answer, failure) in zip(batches, answers, strict=True):
            if answer is None:
                problems.update(dict.fromkeys(batch, f"no usable reply ({failure})"))
                pending += batch
                if failure in ("truncated", "empty"):  # empty: a reasoning model spent its tokens before it answered
                    size, cut = max(1, min(size, (len(batch) + 1) // 2)), True
            else:
                pending += _take(batch, answer, found, problems)
        room *= 4 if cut else 1
        if not pending:
            break
    return found, {i: reason for i, reason in problems.items() if i not in found}


def _take(batch: list[int], answer, found: dict[int, str], problems: dict[int, str]) -> list[int]:
    """Move usable answers into `found`; return the positions to ask again."""
    again = []
    for k, i in enumerate(batch):
        number = str(k + 1)
        if number in answer.labels:
            found[i] = answer.labels[number]
            continue
        elif number in answer.none:
            problems[i] = "the model named no domain"
            continue
        elif number in answer.conflicts:
            problems[i] = "the model gave different domains"
        elif number in answer.bad_labels:
            problems[i] = "the model gave a domain that is not on the list"
        else:
            problems[i] = "the model gave no answer"
        again.append(i)
    return again


async def _each(parallel: bool, makers: Sequence[Callable]) -> list:
    """Run coroutines side by side, or one after another for a plain function, which needs no event loop."""
    if not parallel or len(makers) < 2:
        return [await make() for make in makers]
    # All are awaited before an error leaves, so that every call that was paid for is stored.
    results = await asyncio.gather(*(make() for make in makers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def sort_fixed(asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping) -> Sorting:
    """Each memory into one domain of the taxonomy."""
    system = prompt("classifier", domains=_lines(taxonomy))
    found, problems = await classify(asker, texts, taxonomy.names, system, options)
    return Sorting(tuple((found[i],) if i in found else None for i in range(len(texts))), problems=problems)


async def sort_dynamic(
    asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping, *, max_new_domains: int
) -> Sorting:
    """As `sort_fixed`, and the model may open up to `max_new_domains` domains of at least two memories each.

    A new name that is a variant of a domain's name is that domain. Memories of a domain that is not opened are asked
    again among the taxonomy's domains.
    """
    if not max_new_domains:
        return await sort_fixed(asker, texts, taxonomy, options)
    system = prompt("classifier_dynamic", domains=_lines(taxonomy), max_new_domains=str(max_new_domains))
    found, problems = await classify(asker, texts, taxonomy.names, system, options, allow_new=True)
    known = {fold(name): name for name in taxonomy.names}
    folded: dict[int, str | None] = {}
    spelled: dict[str, str] = {}  # folded new name → the first spelling
    for i in sorted(found):
        name = found[i] if found[i] in taxonomy.names else known.get(fold(found[i])) or clean_name(found[i])
        if name is not None and name not in taxonomy.names:
            name = spelled.setdefault(fold(name), name)
        folded[i] = name
    counts = Counter(name for name in folded.values() if name is not None and name not in taxonomy.names)
    opened = [name for name, n in counts.most_common() if n >= 2][:max_new_domains]  # ties: first named first
    homeless = [i for i, name in folded.items() if name is None or name not in (*taxonomy.names, *opened)]
    paths: list[tuple[str, ...] | None] = [None] * len(texts)
    for i, name in folded.items():
        if i not in homeless:
            paths[i] = (name,)
    if homeless:
        again = await sort_fixed(asker, [texts[i] for i in homeless], taxonomy, options)
        for k, i in enumerate(homeless):
            paths[i] = again.paths[k]
            if paths[i] is None:
                problems[i] = f"its new domain was not opened; then {again.problems[k]}"
    opened = [name for name in spelled.values() if name in opened]
    return Sorting(tuple(paths), tuple(opened), problems)


async def sort_tree(
    asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping, *, max_leaves: int
) -> Sorting:
    """A proposer names leaves under the domains, then the classifier puts each memory into a leaf or a domain.

    Without a usable proposal the result has one level and a note that says so.
    """
    system = prompt("proposer", domains=_lines(taxonomy), max_leaves=str(max_leaves))
    chat = [{"role": "system", "content": system}, {"role": "user", "content": f"Memories:\n{listing(texts)}"}]

    def accept(call):
        return replies.read_proposal(call.text, domains=taxonomy.names, finish_reason=call.finish_reason)

    params = _params(options, min(max_leaves, len(texts)) * len(taxonomy.names), per_item=8)
    proposed, failure = await asker(chat, role="proposer", params=params, accept=accept, memories=tuple(texts), tries=2)
    leaves: dict[str, list[str]] = {}
    for domain, names in (proposed or {}).items():
        kept: dict[str, str] = {}
        for name in names:
            name = clean_name(name)
            if name is not None and fold(name) != fold(domain) and f"{domain}/{name}" not in taxonomy.names:
                kept.setdefault(fold(name), name)
        leaves[domain] = list(kept.values())[:max_leaves]
    if not any(leaves.values()):
        one_level = await sort_fixed(asker, texts, taxonomy, options)
        reason = f"the proposer gave no readable reply ({failure})" if failure else "the proposer named no subdomain"
        return Sorting(one_level.paths, problems=one_level.problems, note=f"one level only: {reason}")
    paths = {name: (name,) for name in taxonomy.names}
    paths |= {f"{domain}/{leaf}": (domain, leaf) for domain, names in leaves.items() for leaf in names}
    system = prompt("classifier_tree", domains=_lines(taxonomy, leaves))
    found, problems = await classify(asker, texts, tuple(paths), system, options)
    return Sorting(tuple(paths[found[i]] if i in found else None for i in range(len(texts))), problems=problems)


async def sort_by_embedding(
    ask: Asker | None, texts: Sequence[str], taxonomy: Taxonomy, name: str, options: Mapping
) -> Sorting:
    """The embedding structurer's partition, through `ask` (then it is a stored call) or directly."""
    from . import embedding

    domains = [(domain.name, domain.definition) for domain in taxonomy.domains]
    chat = embedding.messages(name, texts, domains=domains, options=dict(options))
    result = await embedding_reply(ask, chat, texts)
    paths = tuple(tuple(path) for path in result["paths"])
    if len(paths) != len(texts):
        raise StructmemError(f"The embedding structurer answered for {len(paths)} memories of {len(texts)}.")
    return Sorting(paths, tuple(result["new_domains"]))


async def embedding_reply(ask: Asker | None, chat: list[dict], texts: Sequence[str]) -> dict:
    """The embedding structurer's JSON, decoded."""
    from . import embedding

    if ask is None:
        return json.loads(embedding.model(chat))
    reply, failure = await ask(
        chat, role="structurer", params={}, accept=lambda call: json.loads(call.text), memories=tuple(texts),
        compute=embedding.model,
    )  # fmt: skip
    if reply is None:
        raise InputError(f"The embedding structurer gave no result ({failure}).")
    return reply
