"""Arguments of a MemoryBook, checked before anything is kept: who sorts, seconds, what is known of a memory."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Mapping

from .data import Memory
from .errors import InputError
from .sorters import offline_embedder


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
    return structurer


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
    found = f"near: {', '.join(map(repr, list(dict.fromkeys(near))[:3]))}" if near else "nothing in it is like that"
    return f"the book of {len(beginnings)} memories holds none with the id or the exact text {key[:60]!r}; {found}."
