"""What a reply holds: visible text, reasoning kept apart, and exactly one JSON value with named repairs."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain

from .errors import StructmemError

MAX_DEPTH = 60  # levels of nesting; deeper is noise, and recursion must not crash the reader
MAX_PIECES = 200  # pieces of a reply that look like JSON; more is noise, and looking at each takes time

_CUT = frozenset(("length", "max_tokens", "max_output_tokens", "model_length"))
_SENTENCES = {
    "truncated": "The reply was cut off",
    "no_text": "The reply has no visible text",
    "no_json": "The reply holds no readable JSON",
    "ambiguous": "The reply can be read in more than one way",
    "invalid": "The reply's JSON is not what was asked for",
}


class ReplyError(StructmemError):
    """A reply that cannot be used; asking again may help.

    Parameters
    ----------
    code : {'truncated', 'no_text', 'no_json', 'ambiguous', 'invalid'}
    detail : str
        What was found and what was expected; for scores it begins with a word such as ``out_of_range:``.
    """

    def __init__(self, code: str, detail: str):
        super().__init__(f"{_SENTENCES[code]}: {detail}")
        self.code = code
        self.detail = detail

    def __reduce__(self):
        return type(self), (self.code, self.detail)


@dataclass(frozen=True)
class Parsed:
    """What was read: the accepted value, what was repaired or converted to read it, and the reasoning kept apart."""

    value: object
    repairs: tuple[str, ...] = ()
    reasoning: str | None = None


# A tag right after a backtick is quoted in prose. Every repeat is bounded or possessive, so the time is linear.
_TAG = re.compile(
    r"(?<!`)<\s*+(/?)\s*+(think(?:ing)?|thoughts?|reasoning)(?:\s[^<>=]{0,40}=[^<>]{0,100})?\s*+>|◁(/?)(think)▷", re.I
)


def is_blank(text: str | None) -> bool:
    """Whether nothing in the text would be seen: only spaces, controls and zero-width characters."""
    return not text or all(unicodedata.category(c) in ("Cc", "Cf", "Zs", "Zl", "Zp") for c in text)


def text_of(content: object) -> tuple[str | None, str | None]:
    """Join the blocks of a message's content.

    Parameters
    ----------
    content : str, list of blocks, dict or None
        A message's ``content`` as a provider sends it.

    Returns
    -------
    text, reasoning : str or None
        Text blocks joined without a separator, and thinking blocks; other kinds of block are left out.
    """
    if content is None or isinstance(content, str):
        return content, None
    texts, thoughts = [], []
    for block in [content] if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ():
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Mapping):
            kind = str(block.get("type", "text"))
            hidden = "think" in kind or "reason" in kind
            for name in ("thinking", "reasoning", "text", "summary") if hidden else ("text",):
                said = block.get(name)
                said = said.get("value") if isinstance(said, Mapping) else said
                if isinstance(said, str) and (hidden or kind in ("text", "output_text")):
                    (thoughts if hidden else texts).append(said)
                    break
    return "".join(texts) if texts else None, "\n".join(thoughts) or None


def split_reasoning(text: str) -> tuple[str, str | None]:
    """Take reasoning blocks out of a reply.

    A block that is never closed reaches to the end, and everything before a closing tag without an opening one is
    reasoning: reasoning is never promoted to an answer. A tag inside a string of readable JSON is text.

    Returns
    -------
    visible : str
        The text as it is when it holds no tag, else what is outside the blocks, stripped.
    reasoning : str or None
    """
    tags = list(_TAG.finditer(text))
    if not tags:
        return text, None
    spans = [(start, end) for start, end, value, _ in _values(text) if value is not _BROKEN and value is not _TWICE]
    shown: list[str] = []
    hidden: list[str] = []
    inside, at, k = None, 0, 0
    for tag in tags:
        closing, name = bool(tag[1] or tag[3]), (tag[2] or tag[4])[:5].casefold()
        while k < len(spans) and spans[k][1] <= tag.start():
            k += 1
        if inside is None and k < len(spans) and spans[k][0] < tag.start():
            continue
        if inside is not None and not (closing and name == inside):
            continue
        piece = text[at : tag.start()]
        if inside is not None:
            hidden.append(piece)
            inside = None
        elif closing:
            hidden += [*shown, piece]
            shown = []
        else:
            shown.append(piece)
            inside = name
        at = tag.end()
    (shown if inside is None else hidden).append(text[at:])
    return "".join(shown).strip(), "\n".join(s for s in map(str.strip, hidden) if s) or None


_BROKEN, _TWICE = object(), object()  # not JSON at all; JSON in which one key has two values

# What may open JSON; `{travel, food}` or `[see below]` in prose may not.
_OPEN = re.compile(r"""\{(?=\s*+(?:["'}]|//|/\*))|\[(?=\s*+(?:[][{"'0-9-]|//|/\*|(?:true|false|null)\b))""")
_TOKEN = re.compile(
    r""""(?:[^"\\]++|\\.)*+("?)|'(?:[^'\\]++|\\.)*+('?)|(//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?)|[][{}]|[^]["'{}/]++|/""",
    re.S,
)
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_FENCE = re.compile(r"^[ \t]*+```", re.M)


class _Twice(ValueError):
    """One key of an object has two different values."""


def _pairs_hook(pairs: list[tuple[str, object]]) -> dict:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found and _canonical(found[key]) != _canonical(value):
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


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


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


def _values(text: str) -> Iterator[tuple[int, int, object, tuple[str, ...]]]:
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
    pieces: list[str] = []
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
                while pieces[-1].isspace():
                    pieces.pop()
                pieces[-1] = pieces[-1].rstrip()[:-1]
                repairs.append("trailing comma")
        elif piece[0] != '"':
            plain = re.sub(r"\b(?:True|False|None)\b", lambda m: _PYTHON[m[0]], piece)
            repairs += ["Python literal"] * (plain != piece)
            pieces.append(plain)
            before = plain.rstrip()[-1:] or before
            continue
        pieces.append(piece)
        before = piece[-1]
        if not stack:
            try:
                joined = "".join(pieces)
                value, end = _decode(_LOOSE, joined)
                if matched and end == len(joined):
                    return at, value, tuple(dict.fromkeys(repairs)) or ("control character inside a string",)
            except _Twice:
                return at, _TWICE, ()
            except ValueError:
                pass
            return at, _BROKEN, ()
    return len(text), _BROKEN, ()


def _an_object(value: object) -> dict:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {short(value)}.")
    return value


def short(value: object) -> str:
    """A found value for an error message, never longer than a line."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "…")
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float) or isinstance(value, int) and abs(value) < 10**15:
        return repr(value)
    return "a very large number" if isinstance(value, int) else f"a {type(value).__name__}"


def read_json(
    text: object, *, finish_reason: str | None = None, accept: Callable[[object], object] = _an_object
) -> Parsed:
    """Read the one JSON value of a reply that `accept` takes.

    Parameters
    ----------
    text : str, list of blocks or None
        The reply; it may hold reasoning, prose and code fences.
    finish_reason : str, optional
        As reported; a cut reply is refused before it is parsed.
    accept : callable
        Takes a decoded value and returns what to keep, or raises ReplyError or ValueError to refuse it. The default
        takes objects. A refused object with a single key is tried once more by what it holds.

    Returns
    -------
    Parsed
        `repairs` names every liberty taken: trailing comma, single quotes, comment, open code fence, wrapper.

    Raises
    ------
    ReplyError
        Nothing, or more than one distinct value, was acceptable.
    """
    if str(finish_reason).casefold() in _CUT:
        raise ReplyError("truncated", f"finish_reason is {finish_reason!r}; raise max_tokens or ask for less at once.")
    text, thoughts = text_of(text)
    visible, hidden = split_reasoning(text or "")
    reasoning = "\n".join(s for s in (thoughts, hidden) if s) or None
    if is_blank(visible):
        only = ", there is only reasoning" if reasoning else ""
        raise ReplyError("no_text", f"finish_reason is {finish_reason!r}{only}.")
    taken: dict[str, tuple[object, tuple[str, ...]]] = {}
    errors: list[ReplyError] = []
    outside, at, broken = [], 0, 0
    for count, (start, end, value, repairs) in enumerate(_values(visible), 1):
        if count == MAX_PIECES:
            raise ReplyError("ambiguous", f"{MAX_PIECES} or more pieces of JSON; expected one object.")
        outside.append(visible[at:start])
        at = end
        if value is _TWICE:
            raise ReplyError("ambiguous", "one key of an object has two different values; expected each key once.")
        if value is _BROKEN:
            broken += 1
            continue
        value, mended = _encodable(value)
        refused: ReplyError | None = None
        for candidate, how in _unwrapped(value):
            try:
                accepted = accept(candidate)
            except (ReplyError, ValueError) as error:
                refused = error if isinstance(error, ReplyError) else ReplyError("invalid", str(error))
            else:
                taken.setdefault(_canonical(candidate), (accepted, (*repairs, *mended, *how)))
                break
        else:
            errors.append(refused)
    if len(taken) > 1:
        raise ReplyError("ambiguous", f"{len(taken)} different acceptable objects; expected one.")
    if not taken and errors:
        raise errors[0]
    if not taken:
        why = "JSON begins but is damaged or never closed" if broken else "there is only prose"
        raise ReplyError("no_json", f"{why}; expected one JSON object.")
    ((accepted, repairs),) = taken.values()
    if len(_FENCE.findall("\n".join((*outside, visible[at:])))) % 2:
        repairs = (*repairs, "code fence never closed")
    return Parsed(accepted, repairs, reasoning)


def _encodable(value: object) -> tuple[object, tuple[str, ...]]:
    """Half an emoji (a lone surrogate) cannot be written to any file; it becomes a question mark."""
    text = _canonical(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode(errors="replace")), ("half of a character replaced",)
    return value, ()


def _unwrapped(value: object) -> Iterator[tuple[object, tuple[str, ...]]]:
    """The value, then what a wrapper of one key or one element holds, also as JSON in a string."""
    yield value, ()
    if not isinstance(value, dict | list) or len(value) != 1:
        return
    key, inner = next(iter(value.items())) if isinstance(value, dict) else ("list of one", value[0])
    if isinstance(inner, str):
        found = [v for _, _, v, _ in _values(inner)]
        inner = found[0] if len(found) == 1 else None
    if isinstance(inner, dict | list):
        yield inner, (f"unwrapped {key[:40]!r}",)
