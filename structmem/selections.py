"""Readers of model replies that select: memory numbers, and names of a menu."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .listings import as_menu, on_menu, plain
from .replytext import ReplyError, read_json, short

_NUMBER = re.compile(r"(?:(?:memory|number|no)[\s.:#]*+|#)?([0-9]{1,9})[.:]?", re.I)
_NOTHING = frozenset(("none", "nothing", "none of them", "none of these", "no memory", "no memories", "no domain"))


@dataclass(frozen=True)
class Selection:
    """What a reply selects.

    Parameters
    ----------
    chosen : tuple
        Numbers (int) or names of the menu (str), each once, in the reply's order.
    unknown : tuple of str
        What it names besides, in short.
    repairs : tuple of str
        What was repaired to read it.
    """

    chosen: tuple
    unknown: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()


def read_numbers(
    text: object, *, numbers: Sequence[int], others: Iterable[int] = (), finish_reason: str | None = None
) -> Selection:
    """Read which memories a reply names, asked for as ``{"memories": [2, 5]}``.

    An empty list or the word *none* selects nothing. A list under another key, or under none, is refused: it may be the
    memories that do not matter.

    Parameters
    ----------
    numbers : sequence of int
        The memory numbers as shown in the prompt.
    others : iterable of int
        Numbers of memories that this request does not show; they are passed over.

    Raises
    ------
    ReplyError
        Also ``invalid`` for a reply that counts from 0 where the prompt does not, and for one that names something and
        no number that was asked: either may mean other memories than the ones shown.
    """
    known, passed = set(numbers), set(others)

    def number(item: object) -> int | None:
        if isinstance(item, bool):
            return None
        if isinstance(item, float) and item.is_integer():
            item = int(item)
        if isinstance(item, int):
            return item
        match = _NUMBER.fullmatch(item.strip()) if isinstance(item, str) else None
        return int(match[1]) if match else None

    def accept(value: object) -> Selection:
        items = _items(value, "memories", ("memory", "number", "id"))
        read = [(number(item), item) for item in items]
        if any(found == 0 for found, _ in read) and 0 not in known:
            raise ReplyError("invalid", f"shifted numbering: the reply counts from 0, the prompt from {min(known)}.")
        chosen = tuple(dict.fromkeys(found for found, _ in read if found in known))
        unknown = tuple(dict.fromkeys(short(item) for found, item in read if found not in known | passed))
        if unknown and not chosen:
            raise ReplyError("invalid", f"no memory number that was asked; found {', '.join(unknown[:5])}.")
        return Selection(chosen, unknown)

    return _read(text, accept, finish_reason)


def read_names(text: object, *, menu: Iterable[str], key: str, finish_reason: str | None = None) -> Selection:
    """Read which names of a menu a reply names, asked for as ``{key: ["health", …]}``.

    Names match as a classifier's labels do: exactly, or trimmed and without regard to case; never by their beginning.

    Raises
    ------
    ReplyError
        Also ``invalid`` for a reply that names something and nothing of the menu.
    """
    known = as_menu(menu)

    def accept(value: object) -> Selection:
        items = _items(value, key, ("domain", "name"))
        read = [(on_menu(item, known), item) for item in items]
        chosen = tuple(dict.fromkeys(name for name, _ in read if name is not None))
        unknown = tuple(dict.fromkeys(short(item) for name, item in read if name is None))
        if unknown and not chosen:
            raise ReplyError("invalid", f"no name of the menu; found {', '.join(unknown[:5])}.")
        return Selection(chosen, unknown)

    return _read(text, accept, finish_reason)


def _items(value: object, key: str, inner: Sequence[str]) -> list:
    """The list of a reply, of bare items or of objects that hold one; *none* is an empty list."""
    if not isinstance(value, dict) or key not in value:
        raise ReplyError("invalid", f"expected an object with a list in {key!r}, found {short(value)}.")
    value = value[key]
    if value is None or _is_nothing(value):
        return []
    if not isinstance(value, list):
        raise ReplyError("invalid", f"expected a list in {key!r}, found {short(value)}.")
    items = [
        next(iter(i.values())) if isinstance(i, dict) and len(i) == 1 and set(i) <= set(inner) else i for i in value
    ]
    return [item for item in items if not _is_nothing(item)]


def _is_nothing(item: object) -> bool:
    return isinstance(item, str) and plain(item).rstrip(".") in _NOTHING


def _read(text: object, accept, finish_reason: str | None) -> Selection:
    parsed = read_json(text, finish_reason=finish_reason, accept=accept)
    return Selection(parsed.value.chosen, parsed.value.unknown, parsed.repairs)
