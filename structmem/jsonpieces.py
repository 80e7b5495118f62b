"""JSON inside prose: the top-level pieces of a text, each decoded exactly or with small named repairs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain

MAX_DEPTH = 60  # levels of nesting; deeper is noise, and recursion must not crash the reader
MAX_PIECES = 200  # pieces of a reply that look like JSON; more is noise, and looking at each takes time

BROKEN, TWICE = object(), object()  # not JSON at all; JSON in which one key has two values

# What may open JSON; `{travel, food}` or `[see below]` in prose may not. Bare keys and curly quotes open a piece too,
# which then cannot be read: else the object inside it would be taken for the whole.
_OPEN = re.compile(
    r"""\{(?=\s*+(?:["'}“”‘’„«]|//|/\*|\w{1,60}+\s*+:))|\[(?=\s*+(?:[][{"'0-9-]|//|/\*|(?:true|false|null)\b))"""
)
_TOKEN = re.compile(
    r""""(?:[^"\\]++|\\.)*+("?)|'(?:[^'\\]++|\\.)*+('?)|(//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?)|[][{}]|[^]["'{}/]++|/""",
    re.S,
)
_OTHER_SPACE = re.compile(r"[^\S \n\r\t]")  # JSON knows four kinds of space; between tokens none means anything
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class _Twice(ValueError):
    """One key of an object has two different values."""


def _pairs_hook(pairs: list[tuple[str, object]]) -> dict:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found and canonical(found[key]) != canonical(value):
            raise _Twice(key)
        found[key] = value
    return found


def _no_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _exact_float(digits: str) -> float:
    value = float(digits)
    if len(digits) > 400 or value in (float("inf"), float("-inf")):
        raise ValueError("a number too long or too large to be read")
    if value.is_integer() and Decimal(digits) != Decimal(value):  # 2.99999999999999999 is not 3
        raise ValueError(f"{digits[:40]} is whole only by rounding")
    return value


_HOOKS = {"object_pairs_hook": _pairs_hook, "parse_constant": _no_constant, "parse_float": _exact_float}
_STRICT, _LOOSE = json.JSONDecoder(**_HOOKS), json.JSONDecoder(**_HOOKS, strict=False)


# One text for equal JSON values, whatever the order of their keys.
canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def _shallow(value: object) -> bool:
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        level = list(
            chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        )
        depth += 1
    return not level


def _decode(decoder: json.JSONDecoder, text: str, start: int = 0) -> tuple[object, int]:
    """The JSON value at `start` and its end; anything that the library may raise becomes ValueError."""
    try:
        value, end = decoder.raw_decode(text, start)
    except (RecursionError, ArithmeticError, MemoryError) as error:
        raise ValueError(str(error)) from None
    if not _shallow(value):
        raise ValueError("too deep")
    return value, end


def pieces(text: str) -> Iterator[tuple[int, int, object, tuple[str, ...]]]:
    """Top-level JSON in a text: ``(start, end, value, repairs)``; nothing inside a broken or unclosed value counts."""
    at = 0
    for _ in range(MAX_PIECES):
        opening = _OPEN.search(text, at)
        if opening is None:
            return
        start, repairs = opening.start(), ()
        try:
            value, at = _decode(_STRICT, text, start)
        except ValueError:
            at, value, repairs = _repaired(text, start)
        yield start, at, value, repairs


def _repaired(text: str, start: int) -> tuple[int, object, tuple[str, ...]]:
    """Read the bracketed piece at `start` with small repairs; brackets are never closed for the model."""
    parts: list[str] = []
    repairs: list[str] = []
    stack: list[str] = []
    before, at, matched = "", start, True  # before: last character that is no space, quote or comment
    while at < len(text):
        token = _TOKEN.match(text, at)
        piece = token[0]
        if piece[0] == "'" and before not in ("{", "[", ",", ":"):
            piece = "'"
        at += len(piece)
        if token[3]:
            repairs.append("comment removed")
            continue
        if token[1] == "" or (token[2] == "" and len(piece) > 1):
            break  # a string that never ends
        if piece[0] == "'" and len(piece) > 1:
            repairs.append("single quotes")
            piece = '"' + re.sub(r'\\(.)|"', lambda m: {"'": "'", None: '\\"'}.get(m[1], m[0]), piece[1:-1]) + '"'
        elif piece in ("{", "["):
            stack.append("}" if piece == "{" else "]")
            if len(stack) > MAX_DEPTH:
                break
        elif piece in ("}", "]"):
            matched = stack.pop() == piece and matched
            if before == ",":
                while parts[-1].isspace():
                    parts.pop()
                parts[-1] = parts[-1].rstrip()[:-1]
                repairs.append("trailing comma")
        elif piece[0] != '"':
            spaced = _OTHER_SPACE.sub(" ", piece)
            repairs += ["space of another kind"] * (spaced != piece)
            plain = re.sub(r"\b(?:True|False|None)\b", lambda m: _PYTHON[m[0]], spaced)
            repairs += ["Python literal"] * (plain != spaced)
            parts.append(plain)
            before = plain.rstrip()[-1:] or before
            continue
        parts.append(piece)
        before = piece[-1]
        if not stack:
            try:
                joined = "".join(parts)
                value, end = _decode(_LOOSE, joined)
                if matched and end == len(joined):
                    return at, value, tuple(dict.fromkeys(repairs)) or ("control character inside a string",)
            except _Twice:
                return at, TWICE, ()
            except ValueError:
                pass
            return at, BROKEN, ()
    return len(text), BROKEN, ()
