"""RENDERERS: one function per layout, Node to context text; keeps memory text inside its bullet and reads it back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from .data import Memory
from .errors import InputError, choice
from .tree import Node

EMPTY = "(no stored memories)"
OPEN, CLOSE = "<memories>", "</memories>"


class Context(str):
    """The memory block of a prompt.

    Attributes
    ----------
    escaped : bool
        Whether a memory or a label had to be changed, reversibly, to stay text.
    """

    escaped: bool

    def __new__(cls, text: str, escaped: bool = False) -> Context:
        made = super().__new__(cls, text)
        made.escaped = escaped
        return made


RENDERERS: dict[str, Callable[[Node, Callable[[str], str]], Iterator[str]]] = {}
_ESCAPES: dict[str, Callable[[str], str]] = {}


def renderer(name: str, escape: Callable[[str], str] | None = None) -> Callable:
    """Register ``fn(node, text)`` as a renderer.

    Parameters
    ----------
    name : str
    escape : callable, optional
        What `text` applies to every memory and label; the default suits Markdown-like layouts.

    Notes
    -----
    `fn` yields the lines between ``<memories>`` and ``</memories>`` and writes every memory and label as ``text(…)``.
    The frame and the sentence for an empty list are the same for all, so renderers differ in the layout alone.
    """

    def register(fn: Callable) -> Callable:
        RENDERERS[name], _ESCAPES[name] = fn, escape or escape_plain
        return fn

    return register


def render(node: Node, renderer: str = "markdown") -> Context:
    """Write a node as the memory block of a prompt.

    Parameters
    ----------
    node : Node
        Any structure. A root with a label is written as the one group of an unlabelled root.
    renderer : str
        A name in `RENDERERS`.

    Returns
    -------
    Context
        The text, with the attribute `escaped`.

    Raises
    ------
    InputError
        Unknown renderer, or a label that is no text or empty (a group without a name has the label None).
    """
    if not isinstance(renderer, str) or renderer not in RENDERERS:
        raise choice("renderer", renderer, RENDERERS)
    if not isinstance(node, Node):
        raise InputError(f"render expects a Node, got {type(node).__name__}; make one with structure(memories, name).")
    for _, inner in node.walk():
        if inner.label is not None and (not isinstance(inner.label, str) or not inner.label):
            raise InputError(f"A group's label is {inner.label!r}; expected a name, or None for a group without one.")
    changed = False

    def text(raw: str) -> str:
        nonlocal changed
        kept = _ESCAPES[renderer](raw)
        changed = changed or kept != raw
        return kept

    root = node if node.label is None else Node(None, children=(node,))
    lines = [EMPTY] if _bare(root) else list(RENDERERS[renderer](root, text))
    return Context("\n".join((OPEN, *lines, CLOSE)), changed)


def _bare(node: Node) -> bool:
    return not node.memories and not node.children


# --- escapes ---

# What cannot be seen: controls, line separators, zero-width and direction marks, invisible tag characters, halves of
# surrogate pairs. A backslash is doubled, so that every escape can be told from text.
_HIDDEN = re.compile(
    r"[\\\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
# Also our frame, the tokens of chat templates (<|im_end|>), which local servers read in any text, and code fences.
_ANYWHERE = re.compile(rf"{_HIDDEN.pattern}|<(?=\s*/?\s*memories|\|)|`{{3,}}|~{{3,}}", re.I)
# What would open a list, heading, quote or rule inside a bullet, or look like the sentence for an empty list.
_LEADING = re.compile(r"[-+*](?=\s|$)|[#>]|([-_*])\1\1|[0-9]{1,9}(?=[.)](?:\s|$))|\(no stored memories\)")
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.S)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def _code(char: str) -> str:
    number = ord(char)
    return _SHORT.get(char) or (
        f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
    )


def _replace(match: re.Match) -> str:
    found, text = match[0], match.string
    if found[0] in "`~":
        return "".join(f"\\{char}" for char in found)
    if found in "\u200c\u200d" and 0 < match.start() and match.end() < len(text):
        before, after = text[match.start() - 1], text[match.end()]
        if min(before, after) > "\x7f" and not _HIDDEN.match(before) and not _HIDDEN.match(after):
            return found  # between letters or emoji beyond ASCII a joiner is spelling
    return _code(found)


def _escape(text: str, pattern: re.Pattern) -> str:
    start = len(text) - len(text.lstrip())
    end = max(start, len(text.rstrip()))
    middle = pattern.sub(_replace, text[start:end])
    return "".join(map(_code, text[:start])) + middle + "".join(map(_code, text[end:]))


def escape_plain(text: str) -> str:
    """Write with a backslash what is invisible, breaks the line or the frame, or opens Markdown structure."""
    kept = _escape(text, _ANYWHERE)
    if opening := _LEADING.match(text):
        at = opening.end() if opening[0].isdigit() else 0
        kept = f"{kept[:at]}\\{kept[at:]}"
    return kept


def escape_xml(text: str) -> str:
    """Write what is invisible or breaks the line with a backslash, and markup as XML entities."""
    text = _escape(text, _HIDDEN)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def escape_inline(text: str) -> str:
    """As `escape_plain`, and a colon that would look like the end of a domain's name gets a backslash."""
    return re.sub(r":(?=\s|$)", r"\\:", escape_plain(text))


def unescape(text: str) -> str:
    """The inverse of the backslash escapes."""
    names = {"n": "\n", "r": "\r", "t": "\t"}
    return _ESCAPED.sub(lambda m: chr(int(m[1] or m[2] or m[3], 16)) if m[4] is None else names.get(m[4], m[4]), text)


def _unescape_xml(text: str) -> str:
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, char)
    return unescape(text)


# --- layouts ---
# A group without a name is written like any other group, with the name left out.


@renderer("bullets")
def bullets(node: Node, text: Callable[[str], str], indent: str = "") -> Iterator[str]:
    """The benchmark's own block for a flat list; a group is a bullet with its memories indented below."""
    for memory in node.memories:
        yield f"{indent}- {text(memory.text)}"
    for child in node.children:
        yield f"{indent}-" if child.label is None else f"{indent}- {text(child.label)}:"
        if _bare(child):
            yield f"{indent}  {EMPTY}"
        yield from bullets(child, text, indent + "  ")


@renderer("markdown")
def markdown(node: Node, text: Callable[[str], str], level: int = 2) -> Iterator[str]:
    """Groups as headings from the second level on, memories as bullets below; a flat list has no heading."""
    for memory in node.memories:
        yield f"- {text(memory.text)}"
    for k, child in enumerate(node.children):
        if k or node.memories:
            yield ""
        yield "#" * level if child.label is None else f"{'#' * level} {text(child.label)}"
        if _bare(child):
            yield EMPTY
        yield from markdown(child, text, level + 1)


@renderer("xml", escape=escape_xml)
def xml(node: Node, text: Callable[[str], str]) -> Iterator[str]:
    """Groups as ``<domain name="…">`` elements, nested, around ``<memory>`` elements; well-formed XML."""
    for memory in node.memories:
        yield f"<memory>{text(memory.text)}</memory>"
    for child in node.children:
        yield "<domain>" if child.label is None else f'<domain name="{text(child.label)}">'
        if _bare(child):
            yield EMPTY
        yield from xml(child, text)
        yield "</domain>"


@renderer("inline", escape=escape_inline)
def inline(node: Node, text: Callable[[str], str], path: tuple[str, ...] = ()) -> Iterator[str]:
    """One comma-joined line per group, ``domain: a, b`` or ``domain / leaf: a, b``; cannot be read back."""
    name = " / ".join(path) + ": " if path else ""
    if node.memories or _bare(node):
        yield name + (", ".join(text(memory.text) for memory in node.memories) or EMPTY)
    for child in node.children:
        yield from inline(child, text, path if child.label is None else (*path, text(child.label)))


# --- reading back ---


def parse_context(text: str, renderer: str = "markdown") -> Node:
    """Read a rendered context back.

    Parameters
    ----------
    text : str
        What `render` returned.
    renderer : {'bullets', 'markdown', 'xml'}
        `inline` joins memories by commas, which memories hold too, so it cannot be read back.

    Returns
    -------
    Node
        The same labels and texts; memory ids are positions, ``"1"`` first.

    Raises
    ------
    InputError
        The text is not what this renderer writes.
    """
    if not isinstance(renderer, str) or renderer not in _READERS:
        raise choice("renderer", renderer, _READERS)
    lines = text.split("\n")
    if len(lines) < 3 or lines[0] != OPEN or lines[-1] != CLOSE:
        raise InputError(f"A context begins with the line {OPEN} and ends with {CLOSE}; found {text[:40]!r}.")
    root: dict = {"label": None, "memories": [], "children": []}
    _READERS[renderer](lines[1:-1], root)
    count = iter(range(1, len(lines) + 1))
    return _build(root, count)


def _build(group: dict, count: Iterator[int]) -> Node:
    memories = tuple(Memory(str(next(count)), text) for text in group["memories"])
    return Node(group["label"], memories, tuple(_build(child, count) for child in group["children"]))


def _open(parent: dict, label: str | None) -> dict:
    parent["children"].append({"label": label, "memories": [], "children": []})
    return parent["children"][-1]


def _unreadable(line: str, renderer: str) -> InputError:
    return InputError(f"Not a line that the renderer {renderer!r} writes: {line[:60]!r}.")


def _read_bullets(lines: list[str], root: dict) -> None:
    stack = [root]
    depths = [(len(line) - len(line.lstrip(" "))) // 2 for line in lines]
    for line, depth, following in zip(lines, depths, [*depths[1:], 0], strict=True):
        body = line[2 * depth :]
        del stack[depth + 1 :]
        if body == EMPTY:
            continue
        if depth >= len(stack):
            raise _unreadable(line, "bullets")
        if following > depth and (body == "-" or body.startswith("- ") and body.endswith(":")):
            stack.append(_open(stack[depth], None if body == "-" else unescape(body[2:-1])))
        elif following <= depth and body.startswith("- "):
            stack[depth]["memories"].append(unescape(body[2:]))
        else:
            raise _unreadable(line, "bullets")


def _read_markdown(lines: list[str], root: dict) -> None:
    stack = [root]
    for line in lines:
        heading = re.fullmatch(r"##(#*)(?: (.+))?", line)
        if heading and len(heading[1]) < len(stack):
            del stack[len(heading[1]) + 1 :]
            stack.append(_open(stack[-1], heading[2] and unescape(heading[2])))
        elif line.startswith("- "):
            stack[-1]["memories"].append(unescape(line[2:]))
        elif line not in ("", EMPTY):
            raise _unreadable(line, "markdown")


def _read_xml(lines: list[str], root: dict) -> None:
    stack = [root]
    for line in lines:
        if opening := re.fullmatch(r'<domain(?: name="([^"]+)")?>', line):
            stack.append(_open(stack[-1], opening[1] and _unescape_xml(opening[1])))
        elif line == "</domain>" and len(stack) > 1:
            stack.pop()
        elif memory := re.fullmatch(r"<memory>(.*)</memory>", line):
            stack[-1]["memories"].append(_unescape_xml(memory[1]))
        elif line != EMPTY:
            raise _unreadable(line, "xml")


_READERS = {"bullets": _read_bullets, "markdown": _read_markdown, "xml": _read_xml}
