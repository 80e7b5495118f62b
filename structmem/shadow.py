"""Shadow: one's own prompts answered under the flat list, the flat list again, and a structure; what changes."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from . import background
from .arms import whole
from .calls import Call, Request, model_label
from .data import Memory, _text_problem, wrap_memories
from .embedding_sorting import asked_model
from .errors import BudgetReached, InputError, choice
from .grid import _params
from .llm import Client
from .messages import build_messages, fill
from .records import BadRecord, NotJson, read_text, records_of
from .renderers import RENDERERS, render
from .scripts import script_remark
from .sorters import EMBEDDING, offline_embedder, provider_model
from .structurers import SortingFailed
from .structures import STRUCTURES, astructure, spec
from .tree import UNCLASSIFIED, Node
from .ways import Way

FLAT, AGAIN, STRUCTURED = "flat", "flat again", "structured"
ARMS = (FLAT, STRUCTURED, AGAIN)
AT_ONCE = 8  # prompts that are under way together
_ROLES = ("system", "developer", "user", "assistant")
_SHOWN = 5  # problems listed in one error


@dataclass(frozen=True)
class Prompt:
    """One prompt of one's own.

    ``line`` of the file (the place in an array on one line); ``query``: the user's last message; ``memories``;
    ``before``: the messages before it, a system message first if there is one.
    """

    line: int
    query: str
    memories: tuple[Memory, ...]
    before: tuple[Mapping, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The memories' texts."""
        return tuple(memory.text for memory in self.memories)


def read_prompts(path: str | os.PathLike, memories: Sequence[Memory] | None = None) -> list[Prompt]:
    """Read prompts from JSON lines (or a JSON array).

    Each record has ``query`` (a text) or ``messages`` (chat messages with text contents, the last one the user's), and
    ``memories`` (a list of texts; by default `memories`). Other fields are ignored. A prompt that repeats an earlier
    one word for word is left out with a warning: it would be the same call, no second observation.

    Raises
    ------
    InputError
        For records that are not so: line, what was found, what was expected.
    """
    name, prompts, problems = Path(path).name, [], []
    records = list(records_of(read_text(path)))
    if len({line for line, _ in records}) < len(records):  # an array with several on one line
        records = [(place, record) for place, (_, record) in enumerate(records, 1)]
    for line, record in records:
        try:
            prompts.append(_prompt(line, record, memories))
        except InputError as error:
            problems.append(f"line {line}: {error}")
    if problems:
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        raise InputError(f"{name} {'; '.join(problems[:_SHOWN])}{more}")
    if not prompts:
        raise InputError(f"{name} holds no prompts; expected JSON lines with 'query' and 'memories'.")
    first = {}
    for prompt in prompts:
        first.setdefault((prompt.query, prompt.texts, str(prompt.before)), prompt)
    if repeats := len(prompts) - len(first):
        warnings.warn(f"{name}: {repeats} prompts repeat earlier ones word for word and are left out.", stacklevel=2)
    return list(first.values())


def _prompt(line: int, record: object, memories: Sequence[Memory] | None) -> Prompt:
    if isinstance(record, BadRecord):
        raise InputError(str(record))
    if not isinstance(record, dict) or ("query" in record) == ("messages" in record):
        raise InputError("expected an object with either 'query' or 'messages', and 'memories'.")
    given = record.get("memories", memories)
    if given is None:
        raise InputError("'memories' is missing; expected a list of texts, or a file for all: --memories FILE.")
    if "query" in record:
        turns = [{"role": "user", "content": record["query"]}]
    else:
        turns = record["messages"]
    if not isinstance(turns, list) or not turns:
        raise InputError(f"'messages' is {'[]' if turns == [] else 'no list'}; expected a list of chat messages.")
    for place, turn in enumerate(turns, 1):
        what = f"'messages' item {place}" if "messages" in record else "'query'"
        if not isinstance(turn, dict) or turn.get("role") not in _ROLES:
            found = f"has the role {turn.get('role')!r:.20}" if isinstance(turn, dict) else "is no object"
            raise InputError(f"{what} {found}; expected 'content' and a 'role' among {list(_ROLES)}.")
        content = turn.get("content")
        if isinstance(content, NotJson) or (found := _text_problem(content)):
            raise InputError(f"{what} is {'no JSON' if isinstance(content, NotJson) else found}; expected text.")
        if place > 1 and turn["role"] in ("system", "developer"):
            raise InputError(f"{what} is a system message; expected one at most, as the first.")
    if turns[-1]["role"] != "user":
        raise InputError(f"the last message is of {turns[-1]['role']!r}; expected the user's.")
    before = tuple({"role": turn["role"], "content": turn["content"]} for turn in turns[:-1])
    return Prompt(line, turns[-1]["content"], wrap_memories(given), before)


@dataclass(frozen=True)
class Setting:
    """How prompts are answered; parameters as of `run`."""

    model: object = "local/smollm2"
    structure: str = "tree"
    structurer: object = "embedding"
    renderer: str = "markdown"
    system_prompt: str | Path = "short"
    generations: int = 1
    max_tokens: int | None = None
    temperature: float | None = 1.0

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES or self.structure == FLAT:
            raise choice("structure", self.structure, [name for name in STRUCTURES if name != FLAT])
        if self.renderer not in RENDERERS:
            raise choice("renderer", self.renderer, RENDERERS)
        whole(self.generations, "generations", 1)
        if self.params.get("temperature") == 0 and self.generations > 1:
            raise InputError(f"generations is {self.generations} at temperature 0, where repeats say nothing.")

    @property
    def params(self) -> dict:
        """Sampling parameters of the answers; a local model is given a limit, or it might ramble for minutes."""
        return _params(self.model, {"temperature": self.temperature, "max_tokens": self.max_tokens})


def shadow(prompts: Sequence[Prompt], setting: Setting, client: Client, seed: int = 0) -> pd.DataFrame:
    """Answer every prompt under the flat list, under the structure, and under the flat list again.

    The flat list again (replicate 1, the A/A arm) shows what changes by chance alone. The two that are compared follow
    each other in random order, and the third comes last: its prompt is the first's, which a server may still hold in
    its cache. Calls are kept in the client's store, so that a rerun pays nothing.

    Returns
    -------
    DataFrame
        One row per prompt × arm × generation: ``line``, ``arm`` (`ARMS`), ``generation``, ``status``, ``reason`` and
        ``detail`` (where it is not ``ok``), ``query``, ``response``, ``truncated``, ``input_tokens``,
        ``output_tokens``, ``cost_usd``, ``latency_s``, ``called_at``, ``from_store``, ``n_memories``, ``n_shown``,
        ``n_unclassified``, ``memory_set`` (a number for each set of memories), ``same_prompt`` (whether the structure
        lays these memories out as the flat list does, so that both arms are one call). Missing numbers are unknown.
        ``attrs["stopped"]``: why not all was asked (the budget).

    Raises
    ------
    InputError, MissingCall, SetupError, StoreError
        As `run`; a failed answer or sorting is a row with its reason.
    """
    sorts, structurer = spec(setting.structure).uses_structurer, setting.structurer
    paid = [provider_model(structurer) or structurer] if sorts and not offline_embedder(structurer) else []
    client.check_priced([setting.model, *paid])
    if sorts and structurer == EMBEDDING:
        texts = {text for prompt in prompts for text in prompt.texts}
        if remark := script_remark(sorted(texts)):
            warnings.warn(remark, stacklevel=2)
    run = _Run(prompts, setting, client, np.random.default_rng(seed))
    rows = background.run_sync(run.go())
    table = pd.DataFrame(rows).sort_values(["line", "generation", "arm"], kind="stable", ignore_index=True)
    for name in ("input_tokens", "output_tokens", "cost_usd", "latency_s"):
        table[name] = pd.to_numeric(table[name]).astype("float64")
    table.attrs = {"stopped": run.stopped} if run.stopped else {}
    return table


class _Run:
    def __init__(self, prompts: Sequence[Prompt], setting: Setting, client: Client, rng: np.random.Generator):
        self.prompts, self.setting, self.client = prompts, setting, client
        self.first = rng.random((len(prompts), setting.generations)) < 0.5
        self.stopped: str | None = None
        self._sorted: dict[tuple, asyncio.Future] = {}
        self._sets: dict[tuple, int] = {}

    async def go(self) -> list[dict]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def gated(place: int) -> list[dict]:
            async with gate:
                return [row async for row in self._rows(place)]

        tasks = [asyncio.ensure_future(gated(place)) for place in range(len(self.prompts))]
        try:
            return [row for rows in await asyncio.gather(*tasks) for row in rows]
        finally:
            every = [*tasks, *self._sorted.values()]
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)

    async def _rows(self, place: int):
        prompt = self.prompts[place]
        texts = prompt.texts
        about = {
            "line": prompt.line, "query": prompt.query, "n_memories": len(texts),
            "memory_set": self._sets.setdefault(texts, len(self._sets)),
        }  # fmt: skip
        flat = Node(None, prompt.memories)
        structured, failure = await self._structured(prompt, texts)
        shown = [None if node is None else str(render(node, self.setting.renderer)) for node in (flat, structured)]
        about["same_prompt"] = shown[0] == shown[1]
        for generation in range(self.setting.generations):
            pair = (FLAT, STRUCTURED) if self.first[place, generation] else (STRUCTURED, FLAT)
            for arm in (*pair, AGAIN):
                row = about | {"arm": arm, "generation": generation}
                node, context = (structured, shown[1]) if arm == STRUCTURED else (flat, shown[0])
                if node is None:
                    yield row | failure
                else:
                    said = await self._answered(prompt, context, arm, generation)
                    yield row | said | (_shown(node) if said["reason"] != "not_asked" else {})

    async def _structured(self, prompt: Prompt, texts: tuple[str, ...]) -> tuple[Node | None, dict]:
        key = (texts, prompt.query if spec(self.setting.structure).uses_query else None)
        if key not in self._sorted:
            self._sorted[key] = asyncio.ensure_future(self._sort(prompt))
        try:
            return await asyncio.shield(self._sorted[key]), {}
        except BudgetReached as error:
            self.stopped = self.stopped or str(error)
            return None, _nothing("not_asked")
        except SortingFailed as error:
            return None, _nothing("no_structure", str(error))

    async def _sort(self, prompt: Prompt) -> Node:
        name, structurer, ask = self.setting.structure, self.setting.structurer, None
        if spec(name).uses_structurer:
            ask = Way(self.client, asked_model(structurer), {}, {"structure": name}, stored_only=False)
        return await astructure(prompt.memories, name, query=prompt.query, structurer=structurer, ask=ask)

    async def _answered(self, prompt: Prompt, context: str, arm: str, generation: int) -> dict:
        if self.stopped:
            return _nothing("not_asked")
        setting = self.setting
        request = Request(
            setting.model, messages_of(prompt, context, setting), "answer", setting.params,
            generation=generation, replicate=int(arm == AGAIN), memories=prompt.texts,
            tags={"prompt": prompt.line, "structure": setting.structure if arm == STRUCTURED else FLAT},
        )  # fmt: skip
        try:
            return _said(await self.client.acall(request))
        except BudgetReached as error:
            self.stopped = self.stopped or str(error)
            return _nothing("not_asked")


def messages_of(prompt: Prompt, context: str, setting: Setting) -> tuple[dict, ...]:
    """The messages of one prompt with its memories laid out.

    A prompt's own system message takes the place of the template: the memories go into its slot ``{memories}``, or into
    a second system message after it.
    """
    own = prompt.before[:1] if prompt.before and prompt.before[0]["role"] in ("system", "developer") else ()
    rest = (*prompt.before[len(own) :], {"role": "user", "content": prompt.query})
    if not own:
        made = build_messages(
            prompt.query, context, system_prompt=setting.system_prompt, model=model_label(setting.model)
        )
        return (*made[:-1], *rest)
    role, text = own[0]["role"], own[0]["content"]
    if "{memories}" in text:
        return ({"role": role, "content": fill(text, {"memories": context})}, *rest)
    return ({"role": role, "content": text}, {"role": role, "content": context}, *rest)


def _nothing(reason: str, detail: str = "") -> dict:
    names = ("response", "input_tokens", "output_tokens", "cost_usd", "latency_s", "called_at", "n_shown")
    found = dict.fromkeys((*names, "n_unclassified"))
    return found | {
        "status": "no_response", "reason": reason, "detail": detail, "truncated": False, "from_store": False,
    }  # fmt: skip


def _said(call: Call) -> dict:
    found = _nothing("" if call.status == "ok" else call.status_reason or "error", call.error or "")
    names = ("input_tokens", "output_tokens", "cost_usd", "latency_s", "called_at", "truncated", "from_store")
    found |= {name: getattr(call, name) for name in names}
    return found | ({"status": "ok", "response": call.text or ""} if call.status == "ok" else {})


def _shown(node: Node) -> dict:
    unclassified = sum(len(part.memories) for path, part in node.walk() if path[:1] == (UNCLASSIFIED,))
    return {"n_shown": len(node.all_memories()), "n_unclassified": unclassified}


def why_none(rows: pd.DataFrame) -> Iterator[tuple[str, int, int, dict[str, int]]]:
    """Per arm: its name, rows, rows with an answer, and the others by reason."""
    for arm in ARMS:
        mine = rows[rows["arm"] == arm]
        lost = mine.loc[mine["status"] != "ok", "reason"].value_counts(sort=False)
        yield arm, len(mine), int((mine["status"] == "ok").sum()), {str(k): int(v) for k, v in sorted(lost.items())}
