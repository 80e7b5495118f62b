"""The solver for Inspect AI: lays the memories out once per memory set, and asks the model with our messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    ResponseSchema,
    get_model,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import JSONSchema

from .data import Entry
from .errors import InputError, choice
from .messages import build_messages, prompt_sha256
from .sorters import EMBEDDING, MULTILINGUAL
from .structures import astructure, spec

if TYPE_CHECKING:
    from .arms import Arm
    from .calls import Call
    from .rows import Layout

ROLE = "structurer"  # Inspect's name for the model that sorts: --model-role structurer=…
BY_ROLE, BY_ANSWERER = "model", "self"
STRUCTURERS = (EMBEDDING, MULTILINGUAL, BY_ROLE, BY_ANSWERER)
_ROLES = {"system": ChatMessageSystem, "user": ChatMessageUser}


@solver
def structured_memories(
    structure: str = "flat",
    renderer: str = "markdown",
    defence: str = "standard",
    placement: str = "system",
    system_prompt: str = "short",
    taxonomy: str = "life11",
    structurer: str = EMBEDDING,
    structurer_options: dict | None = None,
    partition_draw: int = 0,
) -> Solver:
    """Put the sample's memories into the prompt as `run` would, and generate.

    It reads the memories from the sample's metadata (``memories``, a list of texts) and the query from its input, and
    writes what it did into ``metadata["structmem"]`` (see `inspect_tasks`). The layout is made once per memory set (and
    query, where the structure uses it), however many epochs and samples wait for it; the calls that sorted stand in the
    transcript of the sample that came first.

    Parameters
    ----------
    structure, renderer, defence, placement, system_prompt, taxonomy, structurer_options, partition_draw
        As in `run`, one value each.
    structurer : {"embedding", "embedding:multilingual", "model", "self"}
        Who sorts: an embedder, offline; the model of Inspect's role ``structurer``; or the model under evaluation.
        A model is sent every memory.

    Raises
    ------
    InputError
        For a value that is not on its menu, before any call.
    """
    given = {"system_prompt": system_prompt, "defence": defence, "placement": placement}
    arm = chosen_arm(structure, renderer, taxonomy, structurer, structurer_options, partition_draw, **given)
    settings = _settings(arm, given)
    locks: Mapping[tuple, anyio.Lock] = defaultdict(anyio.Lock)
    made: dict[tuple, Layout] = {}

    async def laid_out(entry: Entry, model: Model | None) -> Layout:
        query = entry.query if spec(arm.structure).uses_query else None
        key = (tuple(memory.text for memory in entry.memories), query, model and str(model))
        async with locks[key]:  # who comes next tries again if this one fails or is cancelled
            if key not in made:
                made[key] = await _lay_out(entry, arm, query, model)
        return made[key]

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        about = {**state.metadata.get("structmem", {}), **settings}
        state.metadata = {**state.metadata, "structmem": about}
        entry = _entry(state, about)
        model = _sorter(arm)
        if arm.sorter == BY_ROLE:
            about["structurer"] = str(model)
        layout = await laid_out(entry, model)
        about |= layout.columns
        messages = build_messages(entry.query, layout.context, **given, model=asked_as(str(state.model)))
        state.messages = [_ROLES[message["role"]](content=message["content"]) for message in messages]
        state = await generate(state)
        about["escaped"] = layout.escaped or _judge_escapes(entry, state.output.completion)
        return state

    return solve


def chosen_arm(
    structure: str, renderer: str, taxonomy: str, structurer: str, structurer_options: dict | None,
    partition_draw: int, *, system_prompt: str, defence: str, placement: str,
) -> Arm:  # fmt: skip
    """The one arm that these settings make, checked as a run checks its own.

    Raises
    ------
    InputError
        For a value that is not on its menu, a list where one value is expected, and a structurer that cannot sort so.
    """
    from .arms import make_arms, whole

    one = {
        "structure": structure, "renderer": renderer, "taxonomy": taxonomy, "structurer": structurer,
        "system_prompt": system_prompt, "defence": defence, "placement": placement,
    }  # fmt: skip
    for name, value in one.items():
        if not isinstance(value, str | Path):
            raise InputError(f"{name} must be one name, got {value!r}; run the task once for each.")
    if structurer not in STRUCTURERS:
        raise InputError(
            f"{choice('structurer', structurer, STRUCTURERS)} 'model' is the one that --model-role {ROLE}=MODEL names."
        )
    if structurer_options is not None and not isinstance(structurer_options, Mapping):
        raise InputError(
            f"structurer_options must hold names and values, got {structurer_options!r}; such as '{{max_leaves: 3}}'."
        )
    options = dict(structurer_options or {})
    if "structurer" in options:
        raise InputError("structurer_options names a structurer; Inspect calls its models itself: -T structurer=model.")
    if structurer == BY_ROLE and spec(structure).structurer == BY_ANSWERER:
        options["structurer"] = BY_ROLE
    whole(partition_draw, "partition_draw", 0)
    arms = make_arms(
        (structure,), (structurer,), (taxonomy,), (partition_draw,), partition_draw + 1, (renderer,), (placement,),
        (defence,), 1, False, options,
    )  # fmt: skip
    build_messages("?", "?", system_prompt=system_prompt, defence=defence, placement=placement, model="some/model")
    return arms[-1]


def asked_as(model: str) -> str:
    """The id under which our own runner would name a model of Inspect's.

    Inspect's ``openai-api/PROVIDER/NAME`` has a route of two parts, and every other id of one.

    Examples
    --------
    >>> asked_as("openai/gpt-4o"), asked_as("openai-api/lab/gpt-4o")
    ('openai/gpt-4o', 'lab/gpt-4o')
    """
    return model.removeprefix("openai-api/")


def _settings(arm: Arm, prompts: Mapping) -> dict:
    """What the log's reader is told of every sample alike, by the names of the results table's columns."""
    from . import __version__
    from .analysis_plan import load_plan
    from .arms import settings_of, short_name

    return {
        "version": __version__,
        **settings_of(arm),
        "system_prompt": short_name(prompts["system_prompt"]),
        "prompt_hash": prompt_sha256(**prompts),
        "plan_hash": load_plan().hash,
    }


def _entry(state: TaskState, about: Mapping) -> Entry:
    memories = state.metadata.get("memories")
    if not isinstance(memories, list):
        found = f"metadata 'memories' is {memories!r:.60}"
        raise InputError(f"sample {state.sample_id}: {found}; expected a list of texts.")
    name = about.get("entry_id") or str(state.sample_id)
    return Entry(name, memories, state.input_text, state.metadata.get("failure_type"))


def _sorter(arm: Arm) -> Model | None:
    """The model that sorts, if any does; Inspect's own error if the role is not given."""
    if arm.sorter == BY_ROLE:
        return get_model(role=ROLE, required=True)
    return get_model() if arm.sorter == BY_ANSWERER else None


async def _lay_out(entry: Entry, arm: Arm, query: str | None, model: Model | None) -> Layout:
    from .rows import lay_out

    calls: list[Call] = []
    who, ask = (asked_as(str(model)), _ask(model, calls)) if model else (arm.sorter or EMBEDDING, None)
    node = await astructure(
        entry.memories, arm.structure, query=query, taxonomy=arm.taxonomy, structurer=who, ask=ask,
        partition_draw=arm.partition_draw, **arm.given,
    )  # fmt: skip
    return await lay_out(node, calls, arm.renderer)


def _ask(model: Model, calls: list):
    """The form in which structures reach a model, over Inspect's; each call is added to `calls`."""
    from .sending import EMPTY_AGAIN

    async def ask(messages, *, params=None, **_):
        chat = [_ROLES[message["role"]](content=message["content"]) for message in messages]
        for _again in range(EMPTY_AGAIN + 1):  # as our own client does before anything is read
            call = _call(await model.generate(chat, config=_config(params or {})))
            calls.append(call)
            if call.status_reason != "empty" or call.truncated:
                break
        return call

    return ask


def _config(params: Mapping) -> GenerateConfig:
    """Our sampling parameters as Inspect's; they come before what the user gives the role as its own."""
    given = dict(params)
    shape = given.pop("response_format", None)
    if shape:
        asked = shape["json_schema"]
        schema = JSONSchema.model_validate(asked["schema"])
        given["response_schema"] = ResponseSchema(name=asked["name"], strict=asked["strict"], json_schema=schema)
    return GenerateConfig(**given)


def _call(output: ModelOutput) -> Call:
    """Inspect's output as a call; its key is the id that the reply's message has in the log."""
    from .calls import Call
    from .replytext import is_blank
    from .responses import visible

    if output.empty:
        return Call("", "no_response", "empty", error=output.error)
    text, thought = visible(output.completion)
    cut = output.stop_reason in ("max_tokens", "model_length")
    reason = "filtered" if output.stop_reason == "content_filter" else "empty" if is_blank(text) else None
    used = output.usage
    counts = {} if used is None else {
        "input_tokens": used.input_tokens + (used.input_tokens_cache_read or 0) + (used.input_tokens_cache_write or 0),
        "output_tokens": used.output_tokens,
        "cost_usd": used.total_cost,
    }  # fmt: skip
    return Call(
        f"inspect:{output.message.id}", "no_response" if reason else "ok", reason, text, thought,
        "length" if cut else output.stop_reason, cut, error=output.error, **counts,
    )  # fmt: skip


def _judge_escapes(entry: Entry, answer: str) -> bool:
    """Whether our own judge would have escaped something that the benchmark's scorer shows its judge as it is."""
    from .judges import judge_messages

    return entry.failure_type is not None and judge_messages(entry, answer)[1]
