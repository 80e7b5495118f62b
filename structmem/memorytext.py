"""Memories in plain text and Markdown: lines, lists, headings, and ChatGPT's numbered context."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .sentences import sentences

_BULLET = re.compile(
    r"(?:[-*+•‣◦·–—▪●○]|\d{1,3}[.)]|[(（]\d{1,3}[)）])(?=[ \t\u3000]|$)|・|[\u2460-\u2473]|\d{1,3}[．）、]"
    r"|(?:\d{1,3}[.)]|[(（]\d{1,3}[)）])(?=[\u3040-\u9fff])"  # in Japanese without a space
)
_QUOTE = re.compile(r">(?: ?>)*(?:[ \t]|$)")
_HEADING = re.compile(r"(#{1,6})(?:[ \t]+(.*))?$")
_JAPANESE_HEADING = re.compile(r"【([^【】]+)】$|■[ \t\u3000]*([^。！？｡!?]*[^。！？｡!?.\s])$")
_BOLD = re.compile(r"(\*\*|__)((?:(?!\1).)+)\1[ \t]*[:：]?$")
# A rule, a fence, the line below the head of a table.
_MARKUP = re.compile(r"([-=*_])(?:[ \t]*\1){2,}$|(?:`{3,}|~{3,})[\w+-]*$|(?=[^-]*-)(?=[^|]*\|)[-|: \t]+$")
_FENCE = re.compile(r"`{3,}|~{3,}")
_CODE = re.compile(r"(`{3,}|~{3,})[ \t]*(?!(?:text|txt|plain|plaintext|markdown|md)$)[\w+#.-]+$", re.IGNORECASE)
_BELOW_HEAD = re.compile(r"(?=[^-]*-)(?=[^|]*\|)[-|: \t]+$")
_DATE = re.compile(r"\[(\d{4}-\d\d-\d\d)\](?:[ \t]*[-–—:：][ \t]*|\.[ \t]+)(?=\S)")
_BOX = re.compile(r"\[([ xX✓✔])\](?=[ \t])[ \t]*")
_SETTING = re.compile(r"\s*$|\s*-\s|\s+\S|[\w.-]+:(?:\s|$)")
_SPACE = " \t\r\ufeff"
# Below the six levels of Markdown: a line in bold, 【…】 or ■, then a line that ends in a colon before a list.
_BOLD_LEVEL, _COLON_LEVEL = 7, 8


@dataclass(slots=True)
class Item:
    """One item of a text.

    Parameters
    ----------
    line : int
        Where it begins, from 1.
    text : str
        Without bullet, number, box and leading date; lines of one item are kept as lines.
    under : tuple of str
        The headings above it, from the top.
    date : str or None
        A date in front of it, such as ``[2026-03-31] - ``.
    box : str
        The box of a task list, ``[ ]`` or ``[x]``; else empty.
    reason : str or None
        Why it is no memory; None for a memory.
    number : int or None
        The number that ChatGPT gave it.
    """

    line: int
    text: str
    under: tuple[str, ...] = ()
    date: str | None = None
    box: str = ""
    reason: str | None = None
    number: int | None = None


@dataclass(slots=True)
class _Heading:
    level: int
    text: str
    line: int
    used: bool = False


@dataclass(slots=True)
class _Open:
    """A list item that later lines may go on with, or be nested in."""

    indent: int
    lines: list[str]
    item: Item
    label: str = ""
    fence: str = ""
    gap: bool = False


def text_items(text: str, *, prose: bool = False) -> list[Item]:
    """Items of a plain text or Markdown, in order.

    One line is one item, with or without a bullet or a number. Indented lines go on with the item above; an indented
    bullet is an item of its own; the marks of a quote (`> `) are dropped. Headings (`#`, underlined with `=`, a line
    all in bold or in 【】, one that begins with ■ and ends no sentence, a line or list item that ends in a colon above
    a list) are no items: they stand in `under`, and those with nothing below them are given with a
    reason, as are empty bullets, settings at the head of a file, comments of HTML and heads of tables. Rules and bare
    fences are no items; code in a fence that names its language is one.

    Parameters
    ----------
    text : str
    prose : bool
        Whether a line without bullet is prose, to be split into its sentences.
    """
    return _Reader(text, prose).read()


class _Reader:
    def __init__(self, text: str, prose: bool) -> None:
        self.lines = text.split("\n")
        self.prose = prose
        self.items: list[Item] = []
        self.headings: list[_Heading] = []
        self.unused: list[_Heading] = []
        self.open: list[_Open] = []
        self.endless: set[str] = set()  # marks that nothing below closes
        self.labels: set[int] = set()  # lines of list items that turned out to be headings
        self.bullet_next = self._bullet_next()

    def read(self) -> list[Item]:
        position = self._settings()
        while position < len(self.lines):
            position += self._line(position)
        self._close(0)
        self._leave(0)
        self.items = [item for item in self.items if item.line not in self.labels]
        self.items += [
            Item(heading.line, heading.text, reason="heading with nothing below it") for heading in self.unused
        ]
        for item in self.items:
            if item.reason is None and not item.text.strip():
                item.reason = "empty"
        return sorted(self.items, key=lambda item: item.line)

    def _bullet_next(self) -> list[bool]:
        """For each line, whether the next line that is not blank begins with a bullet."""
        found, answer = False, []
        for line in reversed(self.lines):
            answer.append(found)
            if stripped := _unquoted(line).strip(_SPACE):
                found = bool(_BULLET.match(stripped)) and not _MARKUP.match(stripped)
        return answer[::-1]

    def _settings(self) -> int:
        """Lines of settings between two rules at the very top; the position after them."""
        if self.lines[0].strip(_SPACE) != "---":
            return 0
        for position, line in enumerate(self.lines[1:], start=1):
            if line.strip(_SPACE) == "---":
                if position > 1:
                    block = "\n".join(self.lines[1:position])
                    self.items.append(Item(1, block, reason="settings at the head of a file"))
                return position + 1
            if not _SETTING.match(line):
                break
        return 0

    def _line(self, position: int) -> int:
        """Read the line at a position; returns how many lines were taken."""
        line = _unquoted(self.lines[position].rstrip(_SPACE).lstrip("\ufeff"))
        stripped = line.strip(_SPACE)
        if not stripped:
            if self.open:
                self.open[-1].gap = True
            return 1
        indent = _columns(line)
        if self._goes_on(line, stripped, indent):
            return 1
        if taken := self._block(position, stripped):
            return taken
        if _MARKUP.match(stripped):
            return 1
        if bullet := _BULLET.match(stripped):
            self._bullet(position + 1, stripped[bullet.end() :].strip(" \t\u3000"), indent)
            return 1
        self._close(0)
        after = self.lines[position + 1].strip(_SPACE) if position + 1 < len(self.lines) else ""
        if heading := _HEADING.match(stripped):
            self._heading(len(heading[1]), _without_close(heading[2] or ""), position + 1)
        elif re.fullmatch("={3,}", after):
            self._heading(1, stripped, position + 1)
            return 2
        elif heading := _JAPANESE_HEADING.match(stripped):
            self._heading(_BOLD_LEVEL, (heading[1] or heading[2]).strip(), position + 1)
        elif _BOLD.match(stripped):
            self._heading(_BOLD_LEVEL, _label(stripped), position + 1)
        elif self.bullet_next[position] and (label := _label(stripped)):
            self._heading(_COLON_LEVEL, label, position + 1)
        elif "|" in stripped and _BELOW_HEAD.match(after):
            self.items.append(Item(position + 1, stripped, reason="head of a table"))
        else:
            self._leave(_COLON_LEVEL)
            for part in sentences(stripped) if self.prose else [stripped]:
                self._add(position + 1, part)
        return 1

    def _goes_on(self, line: str, stripped: str, indent: int) -> bool:
        """Whether an indented line belongs to a list item above; if so it is taken."""
        if not self.open or indent < self.open[0].indent + 2:
            return False
        inner = self.open[-1]
        if not (inner.fence and indent >= inner.indent + 2):
            if _BULLET.match(stripped) and not _MARKUP.match(stripped):
                return False
            while indent < self.open[-1].indent + 2:
                self._close(len(self.open) - 1)
            inner = self.open[-1]
        if inner.fence and stripped.startswith(inner.fence) and not stripped.strip(inner.fence[0]):
            inner.fence = ""
        elif not inner.fence and (fence := _FENCE.match(stripped)):
            inner.fence = fence[0]
        if inner.gap:
            inner.lines.append("")
            inner.gap = False
        inner.lines.append(line.expandtabs(4)[inner.indent + 2 :] if inner.fence else stripped)
        return True

    def _block(self, position: int, stripped: str) -> int:
        """Take a comment, or code in a fence that names its language; how many lines, 0 where neither begins."""
        lines = self.lines
        if stripped.startswith("<!--") and (stripped.endswith("-->") or "-->" not in stripped):
            mark, reason = "-->", "a comment"
            ends = (at for at in range(position, len(lines)) if mark in lines[at])
        elif fence := _CODE.match(stripped):
            mark, reason = fence[1], None
            ends = (at for at in range(position + 1, len(lines)) if lines[at].strip(_SPACE) == mark)
        else:
            return 0
        last = None if mark in self.endless else next(ends, None)
        if last is None:
            self.endless.add(mark)  # what never ends is text, here and below
            return 0
        self._close(0)
        self._leave(_COLON_LEVEL)
        block = "\n".join(line.rstrip(_SPACE) for line in lines[position : last + 1])
        if reason:
            self.items.append(Item(position + 1, block, reason=reason))
        else:
            self._add(position + 1, block)
        return last + 1 - position

    def _bullet(self, number: int, text: str, indent: int) -> None:
        while self.open and indent < self.open[-1].indent + 2:
            self._close(len(self.open) - 1)
        if self.open:
            above = self.open[-1]
            if len(above.lines) == 1 and (label := _label(above.lines[0])):
                above.lines, above.label = [label], label
                self.labels.add(above.item.line)
        self._add(number, text, indent)

    def _add(self, number: int, text: str, indent: int | None = None) -> None:
        item = Item(number, text, self._path())
        if box := _BOX.match(item.text):
            item.box, item.text = f"[{box[1]}]", item.text[box.end() :]
        if date := _DATE.match(item.text):
            item.date, item.text = date[1], item.text[date.end() :]
        self.items.append(item)
        if indent is not None:
            fence = _FENCE.match(item.text)
            self.open.append(_Open(indent, [item.text], item, fence=fence[0] if fence else ""))

    def _path(self) -> tuple[str, ...]:
        for heading in self.headings:
            heading.used = True
        return (*(h.text for h in self.headings), *(opened.label for opened in self.open if opened.label))

    def _close(self, keep: int) -> None:
        """Finish the open list items beyond the first `keep`."""
        while len(self.open) > keep:
            closed = self.open.pop()
            closed.item.text = "\n".join(closed.lines)

    def _heading(self, level: int, text: str, line: int) -> None:
        self._leave(level)
        if text:
            self.headings.append(_Heading(level, text, line))

    def _leave(self, level: int) -> None:
        """End the sections of this level and below."""
        while self.headings and self.headings[-1].level >= level:
            ended = self.headings.pop()
            if not ended.used:
                self.unused.append(ended)


def _unquoted(line: str) -> str:
    """A line without the marks of a quote."""
    return _QUOTE.sub("", line, count=1) if line.startswith(">") else line


def _without_close(heading: str) -> str:
    """A heading's words without the `#` that may close it."""
    words = heading.rstrip("#")
    return words.rstrip() if not words or words[-1] in " \t" else heading


def _label(line: str) -> str:
    """The words of a line that is all bold or ends in a colon; empty for another line."""
    bold = _BOLD.match(line)
    if not bold and not line.endswith((":", "：")):
        return ""
    return (bold[2] if bold else line).strip().rstrip(":：").rstrip()


def _columns(line: str) -> int:
    return len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip(" "))


_CONTEXT = re.compile(r"\s{0,3}(?:#{1,6}\s*|\*\*)?Model Set Context(?:\*\*)?\s*+:?\s*+$", re.IGNORECASE)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NUMBERED = re.compile(r"\s{0,3}(\d{1,6})\.\s*\[([^\]]*)\]\.?\s*")


def is_model_set_context(text: str) -> bool:
    """Whether a text is what ChatGPT is told of its user: numbered and dated items, with or without their heading."""
    lines = [line for line in text.split("\n") if line.strip(_SPACE) and not _MARKUP.match(line.strip(_SPACE))]
    heading = next((position for position, line in enumerate(lines) if _CONTEXT.match(line)), None)
    if heading is not None:
        return any(map(_NUMBERED.match, lines[heading:]))
    return bool(lines) and bool((first := _NUMBERED.match(lines[0])) and _DAY.fullmatch(first[2]))


def model_set_context_items(text: str) -> list[Item]:
    """Items of such a text in the order of their numbers; what stands around them is given with a reason.

    An item goes on until the next number with a bracket, a heading with one `#`, or the fence around the whole.
    """
    return _Context([line.rstrip(_SPACE).lstrip("\ufeff") for line in text.split("\n")]).read()


class _Context:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.reading = not any(map(_CONTEXT.match, lines))
        self.items: list[Item] = []
        self.block: list[str] = []
        self.fence = self.outer = ""

    def read(self) -> list[Item]:
        for number, line in enumerate(self.lines, start=1):
            self._line(number, line)
        self._end()
        found = [item for item in self.items if item.reason is None]
        if len({item.number for item in found}) == len(found):
            found.sort(key=lambda item: item.number)
        return [*found, *(item for item in self.items if item.reason is not None)]

    def _line(self, number: int, line: str) -> None:
        fence = _FENCE.match(line)
        if not self.fence and _CONTEXT.match(line):
            self._end()
            self.reading = True
        elif self.reading and not self.fence and (item := _NUMBERED.match(line)):
            self._end()
            self.items.append(Item(number, "", date=item[2], number=int(item[1])))
            self.block = [line[item.end() :]]
        elif self.reading and not self.fence and (re.match(r"# \S", line) or (self.outer and line == self.outer)):
            self._end()
            self.reading, self.outer = False, ""
            if not fence:
                self._outside(number, line)
        elif self.block:
            self.block.append(line)
            if fence:
                self.fence = "" if self.fence else fence[0]
        elif fence:
            self.outer = "" if self.outer else fence[0]
        elif line.strip():
            self._outside(number, line)

    def _outside(self, number: int, line: str) -> None:
        """A line before, between or after the items: one block with those beside it."""
        if self.items and self.items[-1].reason and not self.block:
            self.items[-1].text += "\n" + line
        else:
            self.items.append(Item(number, line, reason="text around the memories"))

    def _end(self) -> None:
        if self.block:
            item = self.items[-1]
            item.text = "\n".join(self.block).strip()
            item.reason = None if item.text else "empty"
        self.block, self.fence = [], ""
