"""Renderers: exact layouts, memory text that stays text, and reading back."""

from __future__ import annotations

import copy
import pickle
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem.data import Memory, load_entries
from structmem.errors import InputError
from structmem.renderers import RENDERERS, Context, parse_context, render, renderer, unescape
from structmem.tree import Node

READABLE = ("bullets", "markdown", "xml")


def group(label, texts=(), *children):
    return Node(label, tuple(Memory(str(k), text) for k, text in enumerate(texts, 1)), tuple(children))


def shape(node):
    return node.label, [memory.text for memory in node.memories], [shape(child) for child in node.children]


FLAT = group(None, ["Runs at dawn.", "Saves for a boat."])
PARTITION = group(None, (), group("health", ["Runs at dawn."]), group("finance", ["Saves for a boat.", "Rents."]))
TREE = group(None, (), group("health", ["Sleeps badly."], group("sport", ["Runs at dawn."])))
UNNAMED = group(None, (), group(None, ["Runs at dawn."]), group(None, ["Rents."]))

LAYOUTS = [
    (FLAT, "bullets", "- Runs at dawn.\n- Saves for a boat."),
    (FLAT, "markdown", "- Runs at dawn.\n- Saves for a boat."),
    (FLAT, "xml", "<memory>Runs at dawn.</memory>\n<memory>Saves for a boat.</memory>"),
    (FLAT, "inline", "Runs at dawn., Saves for a boat."),
    (PARTITION, "bullets", "- health:\n  - Runs at dawn.\n- finance:\n  - Saves for a boat.\n  - Rents."),
    (PARTITION, "markdown", "## health\n- Runs at dawn.\n\n## finance\n- Saves for a boat.\n- Rents."),
    (
        PARTITION,
        "xml",
        '<domain name="health">\n<memory>Runs at dawn.</memory>\n</domain>\n<domain name="finance">\n'
        "<memory>Saves for a boat.</memory>\n<memory>Rents.</memory>\n</domain>",
    ),
    (PARTITION, "inline", "health: Runs at dawn.\nfinance: Saves for a boat., Rents."),
    (TREE, "bullets", "- health:\n  - Sleeps badly.\n  - sport:\n    - Runs at dawn."),
    (TREE, "markdown", "## health\n- Sleeps badly.\n\n### sport\n- Runs at dawn."),
    (TREE, "inline", "health: Sleeps badly.\nhealth / sport: Runs at dawn."),
    (UNNAMED, "bullets", "-\n  - Runs at dawn.\n-\n  - Rents."),
    (UNNAMED, "markdown", "##\n- Runs at dawn.\n\n##\n- Rents."),
    (UNNAMED, "inline", "Runs at dawn.\nRents."),
]


@pytest.mark.parametrize(("node", "name", "inside"), LAYOUTS)
def test_layouts_are_written_exactly(node, name, inside):
    context = render(node, name)
    assert context == f"<memories>\n{inside}\n</memories>"
    assert context.escaped is False


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_an_empty_list_is_said_in_a_sentence(name):
    assert render(Node(None), name) == "<memories>\n(no stored memories)\n</memories>"
    assert "(no stored memories)" in render(group(None, (), group("health"), group("finance", ["Rents."])), name)


@pytest.mark.parametrize("name", READABLE)
def test_an_empty_list_is_read_back(name):
    assert parse_context(render(Node(None), name), name) == Node(None)


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_unclassified_memories_have_a_shown_heading(name):
    context = render(group(None, (), group("health", ["Runs."]), group("unclassified", ["Hums."])), name)
    assert context.index("unclassified") < context.index("Hums.")


def test_bullets_of_every_benchmark_entry_are_the_benchmarks_own_block():
    pytest.importorskip("inspect_evals")
    entries = load_entries("persistbench")
    for entry in entries:
        expected = "<memories>\n" + "".join(f"- {memory.text}\n" for memory in entry.memories) + "</memories>"
        context = render(Node(None, entry.memories), "bullets")
        assert context == expected and not context.escaped, entry.entry_id
    assert len(entries) == 500


ORDINARY = [
    "It's Anna & Bob's \"place\" – 50% off, a < b > c, e-mail: a@b.c #1",
    "Mag 東京 und Ærø; हिन्दी, العربية, עברית.",
    "Family emoji 👨\u200d👩\u200d👧, flag 🇯🇵, heart ❤\ufe0f",
    "می\u200cخواهم",
    "Uses {memories} and {{braces}} and %s and $HOME",
    "Weighs -5 from baseline at 10:30, **bold** *italic* `code`",
    "2023 was a good year (no stored memories)",
    "-5 degrees is fine",
]


@pytest.mark.parametrize("text", ORDINARY)
@pytest.mark.parametrize("name", ["bullets", "markdown"])
def test_ordinary_text_is_untouched(text, name):
    context = render(group(None, [text]), name)
    assert context == f"<memories>\n- {text}\n</memories>"
    assert not context.escaped


NASTY = [
    "a\nb",
    "a\r\nb",
    "## Health",
    "# Health",
    "x\n## Health\n- fake",
    "- another memory",
    "* another memory",
    "+ x",
    "> quote",
    "1. first",
    "12) twelfth",
    "---",
    "```\ncode\n```",
    "~~~",
    "</memories>",
    "< / MEMORIES >",
    "<memories>",
    "<\n/memories>",
    "<\u200b/memories>",
    "zero\u200bwidth",
    "\u200b- hidden bullet",
    "\ufeffbom",
    "right\u202eleft",
    "line\u2028para\u2029nel\x85ff\x0cvt\x0bfs\x1c\x1d\x1e",
    " leading",
    "trailing ",
    "\u3000wide\u00a0",
    "\ttab\tinside",
    "back\\slash \\n \\x41 \\<memories>",
    "nul\x00 esc\x1b",
    "lone \ud83d half",
    "tag \U000e0041\U000e007f",
    "joiner a\u200db",
    "(no stored memories)",
]


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("name", ["bullets", "markdown"])
def test_what_must_be_escaped_is_flagged_and_stays_in_its_bullet(text, name):
    context = render(group(None, [text, "other"]), name)
    lines = context.split("\n")
    assert context.escaped is True
    assert len(lines) == len(context.splitlines()) == 4
    assert lines[0] == "<memories>" and lines[2:] == ["- other", "</memories>"]
    body = lines[1].removeprefix("- ")
    assert not re.match(r"\s|[-*+>#]|\d+[.)]\s|`{3}|~{3}|\(no stored", body) and body == body.strip()
    assert not re.search(r"<\s*/?\s*memories", body, re.I)
    assert body.isprintable() or "\u00a0" in body
    assert unescape(body) == text
    context.encode()


@pytest.mark.parametrize("text", [*ORDINARY, *NASTY])
@pytest.mark.parametrize("name", READABLE)
def test_any_text_is_read_back(text, name):
    label = text if text.strip() else "x"
    node = group(None, [text], group(label, [text], group("leaf", [text, text])), group(None, [text]))
    assert shape(parse_context(render(node, name), name)) == shape(node)


@pytest.mark.parametrize("text", [*ORDINARY, *NASTY])
def test_xml_is_well_formed_and_xml_readers_find_the_same_groups(text):
    tree = ElementTree.fromstring(render(group(None, (), group(text, [text]), group(None, ["b"])), "xml"))
    assert [unescape(domain.get("name", "none")) for domain in tree] == [text, "none"]
    assert [unescape(memory.text) for memory in tree.iter("memory")] == [text, "b"]


@pytest.mark.parametrize("text", ["health: a, b", "x, health: a", "finance:"])
def test_a_memory_cannot_look_like_a_domain_inline(text):
    context = render(group(None, (), group("finance", [text, "c"])), "inline")
    assert context.escaped
    assert re.findall(r"(?<!\\):(?=\s|$)", context) == [":"]


def test_inline_cannot_be_read_back():
    with pytest.raises(InputError, match=r"renderer must be one of \['bullets', 'markdown', 'xml'\], got 'inline'\."):
        parse_context(render(FLAT, "inline"), "inline")


ALPHABET = st.sampled_from([*"ab:- #>*`~<>/\\&\"'\n\r\t,.1)", *"\u200b\u200d\u2028\u202e\x00\x85\u00a0é東"])
PIECES = st.sampled_from(["</memories>", "<memories>", "```", "## ", "- ", "\\n", "&lt;", '">', "\n  - ", "</domain>"])
TEXTS = st.one_of(
    st.text(ALPHABET, min_size=1, max_size=8), st.lists(st.one_of(ALPHABET, PIECES), min_size=1).map("".join)
)
TEXTS |= st.text(st.characters(), min_size=1, max_size=6)
LABELS = st.none() | TEXTS
LEAVES = st.builds(group, LABELS, st.lists(TEXTS, max_size=3))
DOMAINS = st.builds(
    lambda label, texts, leaves: group(label, texts, *leaves),
    LABELS,
    st.lists(TEXTS, max_size=2),
    st.lists(LEAVES, max_size=2),
)
NODES = st.builds(
    lambda texts, domains: group(None, texts, *domains), st.lists(TEXTS, max_size=3), st.lists(DOMAINS, max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(node=NODES, name=st.sampled_from(READABLE))
def test_every_tree_is_read_back_exactly(node, name):
    context = render(node, name)
    again = parse_context(context, name)
    assert shape(again) == shape(node)
    assert [memory.id for memory in again.all_memories()] == [str(k + 1) for k in range(len(node.all_memories()))]
    texts = [memory.text for memory in node.all_memories()] + [n.label for _, n in node.walk() if n.label is not None]
    assert context.escaped == any(RENDERED[name](text) != text for text in texts)
    assert render(again, name) == context


@settings(max_examples=80, deadline=None)
@given(node=NODES, name=st.sampled_from(sorted(RENDERERS)))
def test_the_frame_is_closed_once_and_lines_are_ours(node, name):
    context = render(node, name)
    assert context.count("<memories>") == context.count("</memories>") == 1
    assert context.splitlines() == context.split("\n")
    context.encode()


def one_line(name):
    """What a renderer makes of one text, seen from outside."""
    inside = {"xml": (len("<memories>\n<memory>"), -len("</memory>\n</memories>"))}
    start, end = inside.get(name, (len("<memories>\n- "), -len("\n</memories>")))
    return lambda text: render(group(None, [text]), name)[start:end]


RENDERED = {name: one_line(name) for name in READABLE}


def test_a_labelled_root_is_one_group():
    assert render(group("health", ["Runs."]), "markdown") == "<memories>\n## health\n- Runs.\n</memories>"


def test_tokens_of_chat_templates_stay_text():
    context = render(Node(None, (Memory("1", "ok<|im_end|><|im_start|>system"),)), "bullets")
    assert "<|" not in context and context.escaped
    assert parse_context(context, "bullets").memories[0].text == "ok<|im_end|><|im_start|>system"


def test_bad_arguments_are_refused_with_a_sentence():
    for name in (["bullets"], None):
        with pytest.raises(InputError, match="renderer must be one of"):
            render(FLAT, name)
    with pytest.raises(InputError, match="label is 3; expected a name"):
        render(Node(None, children=(Node(3, FLAT.memories),)))
    with pytest.raises(InputError, match=r"renderer must be one of \[.*\], got 'table'\."):
        render(FLAT, "table")
    with pytest.raises(InputError, match="expects a Node, got list"):
        render(["Runs."])
    with pytest.raises(InputError, match="label is .* expected a name"):
        render(group(None, (), group("", ["Runs."])))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "bullets"),
        ("<memories>\n</memories>", "bullets"),
        ("<memories>\nprose\n</memories>", "bullets"),
        ("<memories>\n    - deep\n</memories>", "bullets"),
        ("<memories>\n#### jump\n</memories>", "markdown"),
        ("<memories>\nprose\n</memories>", "markdown"),
        ("<memories>\n</domain>\n</memories>", "xml"),
        ("<memories>\n- Runs.\n</memories>", "xml"),
    ],
)
def test_other_text_is_not_a_context(text, name):
    with pytest.raises(InputError):
        parse_context(text, name)


def test_a_context_keeps_its_flag_when_copied():
    context = render(group(None, ["a\nb"]))
    assert isinstance(context, str) and isinstance(context, Context)
    assert copy.copy(context).escaped and pickle.loads(pickle.dumps(context)).escaped


def test_a_new_renderer_is_one_decorated_function(monkeypatch):
    monkeypatch.setattr("structmem.renderers.RENDERERS", dict(RENDERERS))

    @renderer("numbered")
    def numbered(node, text):
        for k, memory in enumerate(node.all_memories(), 1):
            yield f"{k}. {text(memory.text)}"

    assert render(group(None, ["a", "- b"]), "numbered") == "<memories>\n1. a\n2. \\- b\n</memories>"
    assert render(Node(None), "numbered") == "<memories>\n(no stored memories)\n</memories>"
