"""Logged messages compared with ours: which renderer, system prompt, defence and placement give exactly these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import product

from .data import wrap_memories
from .errors import SetupError
from .foreign_rows import UNKNOWN
from .messages import PLACEMENTS, build_messages, defences, prompt_sha256, system_prompts
from .prices import estimate_tokens
from .renderers import RENDERERS, render
from .tree import Node


def recognised(
    messages: list[tuple[str, str]], query: str, memories: list[str], model: str, likely: Iterable[tuple] = ()
) -> dict:
    """The settings under which our messages for an entry are the ones of a log; empty where nothing can be told.

    Only the flat list is looked for: other layouts say themselves what they are. For a list ``markdown`` and
    ``bullets`` are the same text, and it is called by the first. A list that is laid out in no way of ours has the
    renderer ``unknown``; a template that is none of ours is ``foreign-`` and a hash.

    Parameters
    ----------
    messages : list of (role, content)
        System and user messages.
    likely : iterable of (system prompt, defence, placement)
        What to try first.
    """
    if not memories or any(not text.strip() for text in memories):
        return {}
    node = Node(None, wrap_memories(memories))
    for renderer in ("markdown", *(name for name in RENDERERS if name not in ("markdown", "bullets"))):
        context = render(node, renderer)
        holders = [place for place, (_, text) in enumerate(messages) if context in text]
        if len(holders) != 1 or messages[holders[0]][1].count(context) != 1:
            continue
        flat = {
            "structure": "flat", "structurer": "", "structurer_options": "", "taxonomy": "", "partition_draw": 0,
            "renderer": renderer, "context_sha256": hashlib.sha256(context.encode()).hexdigest(),
            "context_tokens": estimate_tokens([context]), "n_shown": len(memories), "n_unclassified": 0,
            "headings": "[]", "escaped": context.escaped,
        }  # fmt: skip
        return flat | _template(messages, holders[0], query, context, model, likely)
    return _listed(messages, query, memories, model)


def _listed(messages: list, query: str, memories: list[str], model: str) -> dict:
    """Every memory as it is, in order, in one message: a flat list, in a layout of its own."""
    for holder, (_, text) in enumerate(messages):
        start = place = text.find(memories[0])
        for memory in memories:
            place = text.find(memory, place) if place >= 0 else -1
            place = place + len(memory) if place >= 0 else -1
        if place >= 0:
            flat = {"structure": "flat", "renderer": UNKNOWN, "n_shown": len(memories), "n_unclassified": 0}
            return flat | _foreign(messages, holder, query, text[start:place], model)
    return {}


def _template(messages: list, holder: int, query: str, context: str, model: str, likely: Iterable[tuple]) -> dict:
    """Which of our prompts the messages are, with the model named as ours are, or in full."""
    role = messages[holder][0]
    placements = ("user",) if role == "user" else PLACEMENTS[:2]
    for full, named in ((False, model), (True, f"route/{model}")):
        for system, defence, placement in [*likely, *product(system_prompts(), defences(), placements)]:
            settings = {"system_prompt": system, "defence": defence, "placement": placement}
            try:
                made = build_messages(query, context, model=named, **settings)
            except SetupError:  # the benchmark's template is not installed
                continue
            if [(message["role"], message["content"]) for message in made] == messages:
                found = settings | {"prompt_hash": prompt_sha256(**settings)}
                shows = full and any(model in text for _, text in messages)
                return found | ({"_named": model} if shows else {})
    return _foreign(messages, holder, query, context, model)


def _foreign(messages: list, holder: int, query: str, context: str, model: str) -> dict:
    """A name for a template that is none of ours: a hash of it, the same for every entry."""
    shape = [(role, text.replace(context, "{memories}").replace(query, "{query}")) for role, text in messages]
    shape = [(role, text.replace(model, "{model_name}")) for role, text in shape]
    digest = hashlib.sha256(json.dumps(shape, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()
    role = messages[holder][0]
    placement = "user" if role == "user" else "system" if holder == 0 else "second_system"
    return {"system_prompt": f"foreign-{digest[:12]}", "defence": UNKNOWN, "placement": placement}
