"""Who sorts: a model that classifies memories by number, asked again where it failed, or the embedding structurer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from . import replies
from .errors import SortingFailed
from .listings import batches, clean_name, fold, listing
from .messages import fill
from .paths import package_file
from .taxonomy import Taxonomy

# Options of who sorts, by structure; options of the structure itself are its function's keyword arguments.
EMBEDDING_OPTIONS: dict[str, dict] = {
    "fixed": {},
    "dynamic": {"fit": 0.2, "cluster_similarity": 0.3},
    "tree": {"leaf_similarity": 0.2},
}
# None: by quantiles of the memory set's own similarities, since another embedding model has another scale.
OTHER_EMBEDDING_OPTIONS = {name: dict.fromkeys(options) for name, options in EMBEDDING_OPTIONS.items()}
# json_schema None: asked of every model that is called by its id. The client sends it where the model takes one, so
# that the request as asked, and with it the key, does not depend on what a library believes of a provider.
# max_tokens None: by the number of memories, and four times as many whenever a reply was cut off.
# wording: which of our wordings of the sorting prompts; 0 is the plain one, the others say the same in other words.
MODEL_OPTIONS: dict = {
    "batch_size": 100,
    "per_memory": False,
    "retries": 2,
    "json_schema": None,
    "max_tokens": None,
    "wording": 0,
    "temperature": 0.0,
}
WORDINGS = (0, 1, 2, 3)


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
        Remarks on the whole: that a tree has only one level, how many memories were asked again, what was repaired.
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
        """Ask with `role`, `params`, `accept` and `memories`; return ``(parsed, call)``, None if no reply was usable.

        Raises
        ------
        SortingFailed
            If the provider failed, which says nothing about the memories.
        """
        call, parsed = await self.ask(messages, draw=self.draw, **request)
        if parsed is None and call.status_reason in ("error", "timeout"):
            raise SortingFailed(
                f"The structurer gave no reply ({call.status_reason}): {call.error or 'no detail'} "
                "Finished calls are kept; run again to resume."
            )
        return parsed, call


def _why(call) -> str:
    """Why a call gave nothing that could be used, in a few words."""
    cause = call.finish_reason if call.finish_reason not in (None, "stop") else None
    return ", ".join(filter(None, (call.status_reason or call.status, cause and f"finish_reason {cause!r}")))


def _too_much(call) -> bool:
    """Whether less at once may help; empty: a reasoning model spent its tokens before it answered."""
    return call.status_reason in ("truncated", "empty", "too_long")


def prompt(name: str, wording: int = 0, **slots: str) -> str:
    """A prompt file of ours, in one of its `WORDINGS`, with its slots filled."""
    folder = ("prompts", f"wording_{wording}") if wording else ("prompts",)
    return fill(package_file(*folder, f"{name}.md").read_text(encoding="utf-8"), slots)


def _lines(taxonomy: Taxonomy, leaves: Mapping[str, Sequence[str]] | None = None) -> str:
    lines = []
    for domain in taxonomy.domains:
        lines.append(f"- {domain.name}: {' '.join(domain.definition.split())}")
        lines += [f"- {domain.name}/{leaf}" for leaf in (leaves or {}).get(domain.name, ())]
    return "\n".join(lines)


def _schema(labels: Sequence[str] | None, numbers: Sequence[int]) -> dict:
    """A schema with one required field per memory number, so that none can be left out, doubled or invented."""
    label = {"type": "string"} | ({"enum": list(labels)} if labels else {})

    def an_object(properties: dict) -> dict:
        required = list(properties)
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    schema = an_object({"assignments": an_object(dict.fromkeys(map(str, numbers), label))})
    return {"type": "json_schema", "json_schema": {"name": "assignments", "strict": True, "schema": schema}}


def _params(options: Mapping, n: int, per_item: int = 40, room: int = 1) -> dict:
    # 40 tokens are over twice one assignment; the constant leaves room for a fence and a short preamble.
    return {"temperature": options["temperature"], "max_tokens": options["max_tokens"] or room * (160 + per_item * n)}


@dataclass
class Labelled:
    """What came of asking for the label of every text; `labels` and `problems` together cover every position once."""

    labels: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)  # positions that needed more than one request
    remarks: list[str] = field(default_factory=list)

    def take(self, batch: Sequence[int], answer: replies.Assignments, numbers: Mapping[int, int]) -> list[int]:
        """Keep what is usable of an answer; return the positions to ask again."""
        self.remarks += [f"a reply was repaired ({what})" for what in answer.repairs]
        self.remarks += [f"a reply named the number {number}, which was not asked" for number in answer.unknown_ids]
        pending = []
        for i in batch:
            number = str(numbers[i])
            if number in answer.labels:
                self.labels[i] = answer.labels[number]
                self.problems.pop(i, None)
            elif number in answer.none:
                self.problems[i] = "the model named no domain"
            else:
                if number in answer.conflicts:
                    self.problems[i] = "the model gave different domains"
                elif number in answer.bad_labels:
                    said = replies.short(answer.bad_labels[number])
                    self.problems[i] = f"the model gave {said}, a domain that is not on the list"
                else:
                    self.problems[i] = "the model gave no answer"
                pending.append(i)
        return pending

    def note(self, total: int) -> str | None:
        """The remarks as one text, each once."""
        asked_again = [f"{len(self.again)} of {total} memories were asked more than once"] if self.again else []
        return "; ".join(dict.fromkeys(asked_again + self.remarks)) or None


async def classify(
    asker: Asker,
    texts: Sequence[str],
    labels: Sequence[str],
    system: str,
    options: Mapping,
    *,
    allow_new: bool = False,
    only: Sequence[int] | None = None,
) -> Labelled:
    """Ask for a label of every text (of the positions in `only`); ask again, for those only, where none was usable.

    A memory has the number of its position in every request, so that a late or repeated answer cannot be taken for
    another memory's. One call per memory numbers each 1: the answer shall not depend on the place in the list.
    """
    result = Labelled()
    pending, size, room = list(range(len(texts)) if only is None else only), options["batch_size"], 1
    numbers = {i: i + 1 for i in pending}
    if options["per_memory"]:
        size, numbers = 1, dict.fromkeys(pending, 1)

    async def one(batch: list[int], again: int, room: int):
        mine, asked = [texts[i] for i in batch], [numbers[i] for i in batch]
        user = f"Memories:\n{listing(mine, asked)}"
        if again:  # never the request that has just failed, word for word
            user += f"\n\nThese memories still have no usable answer. Answer for each of them (request {again + 1})."
        params = _params(options, len(batch), room=room)
        if options["json_schema"]:
            params["response_format"] = _schema(None if allow_new else labels, asked)

        def accept(call):
            return replies.read_assignments(
                call.text, ids=[str(k) for k in asked], labels=labels, finish_reason=call.finish_reason,
                allow_new=allow_new, others=[str(k) for k in numbers.values()],
            )  # fmt: skip

        chat = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        # One try each: at temperature 0 the same request is answered alike, so the next round asks otherwise.
        return await asker(chat, role="classifier", params=params, accept=accept, memories=tuple(mine), tries=1)

    for again in range(options["retries"] + 1):
        groups = batches(pending, texts, size)
        result.again.update(pending if again else ())
        answers = await _each(asker.parallel, [partial(one, batch, again, room) for batch in groups])
        pending, cut = [], False
        for batch, (answer, call) in zip(groups, answers, strict=True):
            if answer is None:
                result.problems.update(dict.fromkeys(batch, f"no usable reply ({_why(call)})"))
                pending += batch
                if _too_much(call):
                    size, cut = max(1, min(size, (len(batch) + 1) // 2)), True
            else:
                pending += result.take(batch, answer, numbers)
        room *= 4 if cut else 1
        if not pending:
            break
    return result


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


async def sort_fixed(
    asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping, *, only: Sequence[int] | None = None
) -> Sorting:
    """Each memory (of the positions in `only`) into one domain of the taxonomy."""
    system = prompt("classifier", options["wording"], domains=_lines(taxonomy))
    said = await classify(asker, texts, taxonomy.names, system, options, only=only)
    paths = tuple((said.labels[i],) if i in said.labels else None for i in range(len(texts)))
    return Sorting(paths, problems=said.problems, note=said.note(len(texts)))


async def sort_dynamic(
    asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping, *, max_new_domains: int
) -> Sorting:
    """As `sort_fixed`, and the model may open up to `max_new_domains` domains of at least two memories each.

    A new name that is a variant of a domain's name is that domain. Memories of a domain that is not opened are asked
    again among the taxonomy's domains.
    """
    if not max_new_domains:
        return await sort_fixed(asker, texts, taxonomy, options)
    slots = {"domains": _lines(taxonomy), "max_new_domains": str(max_new_domains)}
    system = prompt("classifier_dynamic", options["wording"], **slots)
    said = await classify(asker, texts, taxonomy.names, system, options, allow_new=True)
    known = {fold(name): name for name in taxonomy.names}
    folded: dict[int, str | None] = {}
    spelled: dict[str, str] = {}  # folded new name → the first spelling
    for i, label in sorted(said.labels.items()):
        name = label if label in taxonomy.names else known.get(fold(label)) or clean_name(label)
        if name is not None and name not in taxonomy.names:
            name = spelled.setdefault(fold(name), name)
        if name is not None and name.casefold() != label.strip().casefold():
            said.remarks.append(f"{replies.short(label)} was read as {name!r}")
        folded[i] = name
    counts = Counter(name for name in folded.values() if name is not None and name not in taxonomy.names)
    opened = [name for name, n in counts.most_common() if n >= 2][:max_new_domains]  # ties: first named first
    homeless = [i for i, name in folded.items() if name is None or name not in (*taxonomy.names, *opened)]
    paths: list[tuple[str, ...] | None] = [None] * len(texts)
    for i, name in folded.items():
        if i not in homeless:
            paths[i] = (name,)
    if homeless:
        said.again.update(homeless)
        fixed = await sort_fixed(asker, texts, taxonomy, options, only=homeless)
        said.remarks += [fixed.note] if fixed.note else []
        for i in homeless:
            paths[i] = fixed.paths[i]
            if paths[i] is None:
                said.problems[i] = (
                    f"its new domain was not opened ({replies.short(said.labels[i])}); then {fixed.problems[i]}"
                )
    opened = [name for name in spelled.values() if name in opened]
    return Sorting(tuple(paths), tuple(opened), said.problems, said.note(len(texts)))


async def sort_tree(
    asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping, *, max_leaves: int
) -> Sorting:
    """A proposer names leaves under the domains, then the classifier puts each memory into a leaf or a domain.

    Without a usable proposal the result has one level and a note that says so.
    """
    leaves, failure = await _propose(asker, texts, taxonomy, options, max_leaves)
    if not any(leaves.values()):
        one_level = await sort_fixed(asker, texts, taxonomy, options)
        reason = f"the proposer gave no readable reply ({failure})" if failure else "the proposer named no subdomain"
        note = "; ".join(filter(None, (f"one level only: {reason}", one_level.note)))
        return Sorting(one_level.paths, problems=one_level.problems, note=note)
    paths = {name: (name,) for name in taxonomy.names}
    paths |= {f"{domain}/{leaf}": (domain, leaf) for domain, names in leaves.items() for leaf in names}
    system = prompt("classifier_tree", options["wording"], domains=_lines(taxonomy, leaves))
    said = await classify(asker, texts, tuple(paths), system, options)
    found = tuple(paths[said.labels[i]] if i in said.labels else None for i in range(len(texts)))
    said.remarks += [f"a part of the memories was left out of the proposal ({failure})"] if failure else []
    return Sorting(found, problems=said.problems, note=said.note(len(texts)))


async def _propose(
    asker: Asker, texts: Sequence[str], taxonomy: Taxonomy, options: Mapping, max_leaves: int
) -> tuple[dict[str, list[str]], str | None]:
    """Leaves by domain, and why there are none. Memories too many for one request are proposed for in several."""
    system = prompt("proposer", options["wording"], domains=_lines(taxonomy), max_leaves=str(max_leaves))

    def accept(call):
        return replies.read_proposal(call.text, domains=taxonomy.names, finish_reason=call.finish_reason)

    async def one(batch: list[int]):
        mine = [texts[i] for i in batch]
        chat = [{"role": "system", "content": system}, {"role": "user", "content": f"Memories:\n{listing(mine)}"}]
        params = _params(options, min(max_leaves, len(mine)) * len(taxonomy.names), per_item=8)
        return await asker(chat, role="proposer", params=params, accept=accept, memories=tuple(mine), tries=2)

    groups = batches(range(len(texts)), texts, len(texts))
    answers = await _each(asker.parallel, [partial(one, batch) for batch in groups])
    failure = next((_why(call) for proposed, call in answers if proposed is None), None)
    leaves: dict[str, list[str]] = {}
    for domain in taxonomy.names:
        spelled: dict[str, str] = {}
        votes: Counter[str] = Counter()
        for proposed, _ in answers:
            names = map(clean_name, (proposed or {}).get(domain, ()))
            good = [n for n in names if n and fold(n) != fold(domain) and f"{domain}/{n}" not in taxonomy.names]
            votes.update({fold(spelled.setdefault(fold(name), name)): 1 for name in good})
        leaves[domain] = [spelled[key] for key, _ in votes.most_common(max_leaves)]
    return leaves, failure
