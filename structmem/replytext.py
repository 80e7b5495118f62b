"""What a reply holds: visible text, reasoning kept apart, and exactly one JSON value with named repairs."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .errors import StructmemError
from .jsonpieces import BROKEN, MAX_PIECES, TWICE, canonical, pieces

_FENCE = re.compile(r"^[ \t\ufeff]*+```", re.M)
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

    @property
    def reason(self) -> str:
        """The word that the detail begins with (``out_of_range`` …), else the code."""
        word = self.detail.partition(":")[0]
        return word if re.fullmatch("[a-z]+(?:_[a-z]+)+", word) else self.code

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
    r"(?<!`)(?:<\s*+(/?)\s*+(?:[a-z]{1,12}:)?(think(?:ing)?|thoughts?|reasoning|scratchpad|reflection)"
    r"(?:\s[^<>=]{0,40}=[^<>]{0,100})?\s*+>|◁(/?)(think)▷|(?-i:\[(/?)(THINK)\])"
    r"|<\|(start|end|begin_of|end_of)_(thinking|thought)\|>)",
    re.I,
)
# The raw format of models that answer in channels; only what stands in the channel "final" is said to the user.
_CHANNEL = re.compile(
    r"<\|channel\|>\s*+(\w{1,40})[^<]{0,200}+(?:<\|constrain\|>[^<]{0,60}+)?<\|message\|>"
    r"(.*?)(?=<\|(?:end|start|return|call|channel)\|>|\Z)",
    re.S,
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
    if "<" not in text and "◁" not in text and "[T" not in text:  # no tag can begin: most texts hold none
        return text, None
    if text.lstrip().startswith(("<|channel|>", "<|start|>")):
        said = _CHANNEL.findall(text) or [("", text)]
        hidden = [part.strip() for channel, part in said if channel != "final"]
        return "".join(part for channel, part in said if channel == "final").strip(), "\n".join(hidden) or None
    tags = list(_TAG.finditer(text))
    if not tags:
        return text, None
    spans = [(start, end) for start, end, value, _ in pieces(text) if value is not BROKEN and value is not TWICE]
    shown: list[str] = []
    hidden: list[str] = []
    inside, at, k = None, 0, 0
    for tag in tags:
        how, name = (part.casefold() for part in tag.groups() if part is not None)
        closing, name = how in ("/", "end", "end_of"), name[:5]
        while k < len(spans) and spans[k][1] <= tag.start():
            k += 1
        if inside is None and k < len(spans) and spans[k][0] < tag.start():
            continue
        if inside is not None and not (closing and name == inside):
            continue
        if inside is None and name != "think" and not is_blank("".join(shown) + text[at : tag.start()]):
            continue  # <thoughts> or <reflection> within an answer is the answer's own markup
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
    quoted = ()
    if visible.lstrip().startswith('"'):  # the whole reply as one JSON string
        try:
            visible, quoted = str(json.loads(visible)), ("unwrapped a JSON string",)
        except ValueError:
            pass
    odd = "\\u" in visible or not visible.isascii()  # only then can there be half a character
    taken: list[tuple[object, object, tuple[str, ...]]] = []
    errors: list[ReplyError] = []
    outside, at, broken, damaged = [], 0, 0, False
    for count, (start, end, value, repairs) in enumerate(pieces(visible), 1):
        if count == MAX_PIECES:
            raise ReplyError("ambiguous", f"{MAX_PIECES} or more pieces of JSON; expected one object.")
        outside.append(visible[at:start])
        at = end
        if value is TWICE:
            raise ReplyError("ambiguous", "one key of an object has two different values; expected each key once.")
        if value is BROKEN:
            broken += 1
            damaged |= ":" in visible[start:end] and re.match(r"\{|\[\s*+\{", visible[start:end]) is not None
            continue
        value, mended = _encodable(value) if odd else (value, ())
        refused: ReplyError | None = None
        for candidate, how in _unwrapped(value):
            try:
                accepted = accept(candidate)
            except (ReplyError, ValueError) as error:
                refused = error if isinstance(error, ReplyError) else ReplyError("invalid", str(error))
            else:
                taken.append((candidate, accepted, (*quoted, *repairs, *mended, *how)))
                damaged |= _inside("".join(outside), visible, end)
                break
        else:
            errors.append(refused)
    if len(taken) > 1 and (different := len({canonical(candidate) for candidate, *_ in taken})) > 1:
        raise ReplyError("ambiguous", f"{different} different acceptable objects; expected one.")
    if taken and damaged:  # it may have been the verdict, and what can be read a draft or an example
        raise ReplyError("ambiguous", "an object that can be read and one that is damaged; expected one.")
    if not taken and errors:
        raise errors[0]
    if not taken:
        why = "JSON begins but is damaged or never closed" if broken else "there is only prose"
        raise ReplyError("no_json", f"{why}; expected one JSON object.")
    _, accepted, repairs = taken[0]
    if len(_FENCE.findall("\n".join((*outside, visible[at:])))) % 2:
        repairs = (*repairs, "code fence never closed")
    return Parsed(accepted, repairs, reasoning)


def _inside(before: str, text: str, end: int) -> bool:
    """Whether a piece stands within braces that hold more than it: a part of an object that cannot be read."""
    if "{" not in before or "}" not in text[end:]:
        return False
    opened: list[int] = []
    for brace in re.finditer("[{}]", before):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            opened.pop()
    if not opened or ":" not in before[opened[-1] :]:  # no key: a brace in the prose, or a template's doubled ones
        return False
    depth = 0
    for brace in re.finditer("[{}]", text[end:]):  # braces within strings may mislead: then it is asked again
        depth += 1 if brace[0] == "{" else -1
        if depth < 0:
            return True
    return False


def _encodable(value: object) -> tuple[object, tuple[str, ...]]:
    """Half an emoji (a lone surrogate) cannot be written to any file; it becomes a question mark."""
    text = canonical(value)
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
        whole, found = inner.strip(), list(pieces(inner.strip()))  # JSON in prose inside a string is prose
        inner = found[0][2] if len(found) == 1 and found[0][:2] == (0, len(whole)) else None
    if isinstance(inner, dict | list):
        yield inner, (f"unwrapped {key[:40]!r}",)
