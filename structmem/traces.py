"""Where a memory stands in a text: whole, under any escape with which it is written, or within something longer."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterator, Set

from . import judges
from .echo import _UNSPACED
from .renderers import _unescape_xml, unescape
from .tree import Memory

# A line that is one memory: a bullet of a context, a numbered JSON string of a sorting request, an XML element.
_LINE = re.compile(r'\s*(?:[-*] (?P<bullet>.*)|\d+\. (?P<quoted>".*")|<memory>(?P<xml>.*)</memory>)\s*')
_BLOCK = re.compile(r"<memories>\n(.*?)\n</memories>", re.S)  # a judge reads memories with their line ends
_BULLET = re.compile(r"(?:^|\n) *- ")
_WORD = re.compile(r"[A-Za-z0-9]+")
_TAG = re.compile(r"<[^<>]{1,2000}>")
_BREAK = re.compile(r"</?(?:br|p|div|li|tr|td|th|pre|tspan|text)\b[^<>]{0,2000}>", re.I)  # parts words
_UNDO = 3  # escapes inside escapes, in any order: a notebook's JSON holds printed JSON that holds HTML
_AROUND = 40  # an escape writes a character with at most some twenty; the rest is for blanks between words
_KEY = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def canonical(text: str) -> str:
    """The form in which two memory texts are the same: Unicode NFC, every run of blanks one blank, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def units(text: str) -> Iterator[str]:
    """Every part of a request text that may be one whole memory, decoded: the text itself, bullets, listed JSON
    strings, XML elements, and all strings of a text that is JSON.

    What `renderers.inline` joins by commas cannot be taken apart; such calls are found by the hashes of their memories.
    """
    yield text
    if text.lstrip()[:1] in ("[", "{"):
        try:
            yield from (unit for string in _strings(json.loads(text)) for unit in units(string))
        except (ValueError, RecursionError):
            pass
    for line in text.split("\n"):
        found = _LINE.fullmatch(line)
        if not found:
            continue
        if (body := found["bullet"]) is not None:
            yield from (body, unescape(body), judges.unescape(body, memory=True))
        elif found["xml"] is not None:
            yield _unescape_xml(found["xml"])
        else:
            try:
                yield from _strings(json.loads(found["quoted"]))
            except ValueError:
                pass
    for block in _BLOCK.findall(text):
        yield from (judges.unescape(item, memory=True) for item in _BULLET.split(block))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (string for item in value.items() for part in item for string in _strings(part))
    elif isinstance(value, list):
        yield from (string for part in value for string in _strings(part))


class Trace:
    """A memory text that is looked for.

    Parameters
    ----------
    text : str
        Compared in its `canonical` form, letter by letter: case and punctuation count.
    """

    def __init__(self, text: str):
        self.text = text
        self.form = canonical(text)
        words = _WORD.findall(self.form)
        # Letters and digits of ASCII are written the same under every escape, so most texts are passed over quickly.
        self._word = max(words, key=len, default="")
        self._form_of = re.compile(f"{_edge(self.form[0], '<')}{re.escape(self.form)}{_edge(self.form[-1], '')}")

    @property
    def is_short(self) -> bool:
        """Whether it is one word or fewer than 12 characters (6 in scripts without spaces), as many texts may hold."""
        if re.search(f"[{_UNSPACED}]", self.form):
            return len(self.form) < 6
        return len(self.form) < 12 or " " not in self.form

    def is_of(self, memory: Memory) -> bool:
        """Whether the text is this memory's."""
        return canonical(memory.text) == self.form

    def may_be_in(self, text: str) -> bool:
        """Whether `text` has the longest plain word of the memory; quick, and never wrongly False."""
        return self._word in text

    def whole(self, text: str) -> list[str]:
        """The spellings (as they were before escaping) under which the memory is one whole part of a request text."""
        if not self.may_be_in(text):
            return []
        return list(dict.fromkeys(unit for unit in units(text) if canonical(unit) == self.form))

    def within(self, text: str | None) -> bool:
        """Whether the memory's words stand anywhere in a text, also inside something longer, under any escape.

        Escapes of JSON (twice over: a notebook holds printed JSON), HTML, CSV and the renderers are undone; a word is
        never cut: *tea* is not in *team*.
        """
        if not text or not self.may_be_in(text):
            return False
        return any(self._form_of.search(canonical(view)) for near in self._near(text) for view in _views(near))

    def _near(self, text: str) -> Iterator[str]:
        """The parts of a text around the memory's longest plain word: escapes are undone in these alone."""
        if not self._word:
            yield text
            return
        reach, start, end = _AROUND * len(self.form) + 1000, 0, 0
        for found in re.finditer(re.escape(self._word), text):
            if found.start() - reach > end:
                if end:
                    yield text[start:end]
                start = found.start() - reach
            end = found.end() + reach
        yield text[start:end]

    def spellings(self) -> list[str]:
        """Texts under whose hash a store may know the memory before anything else of it is found."""
        forms = (unicodedata.normalize(form, self.text) for form in ("NFC", "NFD"))
        return list(dict.fromkeys((self.text, self.text.strip(), self.form, *forms)))


def _edge(char: str, behind: str) -> str:
    """A pattern that keeps words whole at one end of the memory, where its script has spaces between words."""
    return rf"(?{behind}![^\W{_UNSPACED}])" if re.fullmatch(rf"[^\W{_UNSPACED}]", char) else ""


def _views(text: str) -> Iterator[str]:
    """A text, and what it says once escapes of HTML, CSV and JSON are undone, whichever was put around which."""
    seen, views = {text}, [text]
    yield text
    for _ in range(_UNDO):
        undone = []
        for view in views:
            made = (html.unescape(view), view.replace('""', '"'), _paired(unescape(view)) if "\\" in view else view)
            undone += [one for one in dict.fromkeys(made) if one not in seen]
            seen.update(made)
        yield from undone
        views = undone


def _paired(text: str) -> str:
    r"""JSON in ASCII writes 😀 as \ud83d\ude00, two halves that belong together."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_tags(text: str) -> str:
    """A page's text: marks inside a memory do not part its words."""
    return html.unescape(_TAG.sub("", _BREAK.sub(" ", text)))


def notebook_text(text: str) -> str:
    """A notebook's strings, with cells and outputs that are kept as lists of lines put together again."""

    def joined(value: object) -> Iterator[str]:
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            yield "".join(value)
        elif isinstance(value, list):
            yield from (string for part in value for string in joined(part))
        elif isinstance(value, dict):
            yield from (string for part in value.values() for string in joined(part))
        elif isinstance(value, str):
            yield value

    try:
        return "\n\n".join(joined(json.loads(text)))
    except (ValueError, RecursionError):
        return text


def keys_in(text: str, keys: Set[str]) -> int:
    """How many of the `keys` of calls stand in a text."""
    return len(keys & set(_KEY.findall(text))) if keys else 0
