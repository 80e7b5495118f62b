"""Messages: what is sent, in which message, and that data never becomes a slot, a heading or an empty message."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structmem.data import load_entries
from structmem.errors import InputError
from structmem.messages import (
    PLACEMENTS,
    build_messages,
    defences,
    fill,
    model_name,
    prompt_sha256,
    system_prompts,
)

CONTEXT = "<memories>\n- User sings.\n</memories>"
installed = pytest.mark.skipif(
    importlib.util.find_spec("inspect_evals") is None, reason="inspect-evals is not installed"
)


@pytest.fixture
def prompt_file(tmp_path):
    def write(text: str, name: str = "mine.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


# Filling


@given(st.lists(st.text("ab{}mo \n"), min_size=3, max_size=3), st.text(), st.text())
def test_filling_is_literal_and_in_one_pass(parts, memories, name):
    parts = [part.replace("{m}", "").replace("{o}", "") for part in parts]
    template = "{m}".join(parts[:2]) + "{o}" + parts[2]
    if template.count("{m}") != 1 or template.count("{o}") != 1:
        return  # the parts met to make a slot
    memories, name = f"{{o}}{memories}{{m}}", f"{{m}}{name}"
    assert fill(template, {"m": memories}, {"o": name}) == parts[0] + memories + parts[1] + name + parts[2]


@given(st.text())
def test_a_template_without_slots_stays_as_it_is(template):
    assert fill(template, {}) == template


def test_stray_braces_backslashes_and_formats_are_text():
    template = '{"json": {}} {{twice}} {0} \\1 %s $x {memories} {model_name} {unknown} {model_name}'
    filled = fill(template, {"memories": r"\g<0> {model_name}"}, {"model_name": "tiny"})
    assert filled == '{"json": {}} {{twice}} {0} \\1 %s $x \\g<0> {model_name} tiny {unknown} tiny'


@pytest.mark.parametrize(("template", "count"), [("none", 0), ("{memories} and {memories}", 2)])
def test_a_slot_is_there_exactly_once(template, count, prompt_file):
    with pytest.raises(InputError, match=rf"holds {{memories}} {count} times; expected it exactly once"):
        fill(template, {"memories": "x"})
    path = prompt_file(template)
    with pytest.raises(InputError, match=rf"mine\.txt holds {{memories}} {count} times"):
        build_messages("q?", CONTEXT, system_prompt=path)


# The benchmark's own prompt


@installed
@pytest.mark.parametrize("name", ["tiny", "openai/gpt-oss-120b"])
def test_persistbench_prompt_is_byte_equal_to_the_benchmarks_own(name):
    folder = Path(importlib.util.find_spec("inspect_evals").submodule_search_locations[0], "persistbench")
    module = ast.parse((folder / "prompts.py").read_text(encoding="utf-8"))
    wanted = ("formatted_memories", "build_generation_prompt")
    module.body = [n for n in module.body if isinstance(n, ast.Assign) or getattr(n, "name", "") in wanted]
    theirs: dict = {}
    exec(compile(module, "prompts", "exec"), theirs)
    for entry in load_entries(limit=3):
        texts = [memory.text for memory in entry.memories]
        context = "<memories>\n" + "\n".join(f"- {text}" for text in texts) + "\n</memories>"
        messages = build_messages(entry.query, context, system_prompt="persistbench", model=f"openrouter/{name}")
        same = messages == [
            {"role": "system", "content": theirs["build_generation_prompt"](texts, name)},
            {"role": "user", "content": entry.query},
        ]
        assert same, entry.entry_id  # ids only: a failure must not print the benchmark's text


@installed
def test_a_prompt_that_names_the_model_wants_one():
    with pytest.raises(InputError, match="system prompt 'persistbench' names the model; expected model="):
        build_messages("q?", CONTEXT, system_prompt="persistbench")


# Our prompts and defences


def test_menus_and_the_short_prompt():
    assert {"persistbench", "short"} <= set(system_prompts())
    assert {"standard", "permissive", "restrictive", "rubric_informed"} <= set(defences())
    system, user = build_messages("q?", "C")
    assert (system["role"], user) == ("system", {"role": "user", "content": "q?"})
    assert "\n\nC\n" in system["content"]
    assert len(system["content"].split()) < 60  # far below 120 tokens: a small model reads it in no time


@pytest.mark.parametrize("defence", ["permissive", "restrictive", "rubric_informed"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_defence_is_a_paragraph_of_the_first_system_message_before_the_context(defence, placement, prompt_file):
    path = prompt_file("Intro.\nNotes: {memories} end\nOutro.\n")
    with_it = build_messages("q?", "C", system_prompt=path, defence=defence, placement=placement)
    without = build_messages("q?", "C", system_prompt=path, placement=placement)
    fragment = Path(__file__).parents[1].joinpath("structmem/prompts/defences", f"{defence}.txt").read_text().strip()
    assert with_it[1:] == without[1:]
    rest = "Notes: C end\nOutro.\n" if placement == "system" else "Outro."
    assert with_it[0]["content"] == f"Intro.\n\n{fragment}\n\n{rest}"


def test_standard_adds_nothing_and_a_slot_on_the_first_line_works(prompt_file):
    path = prompt_file("{memories}\nrest")
    assert build_messages("q?", "C", system_prompt=path)[0]["content"] == "C\nrest"
    own = prompt_file("\r\nBe wary.\r\nAlways.\r\n", "own.txt")
    assert build_messages("q?", "C", system_prompt=path, defence=own)[0]["content"] == "Be wary.\nAlways.\n\nC\nrest"


@pytest.mark.parametrize("slot", ["{memories}", "{model_name}"])
def test_a_defence_with_a_slot_is_sent_to_system_prompt(slot, prompt_file):
    with pytest.raises(InputError, match=r"own\.txt holds .*pass a whole template as system_prompt"):
        build_messages("q?", "C", defence=prompt_file(f"Use {slot}", "own.txt"))


# Placements


def test_second_system_moves_the_context_and_drops_its_line(prompt_file):
    path = prompt_file("You are {model_name}.\n\nKnown: {memories}\n\nBe brief.\n")
    messages = build_messages("q?", CONTEXT, system_prompt=path, placement="second_system", model="local/x/tiny.gguf")
    assert messages == [
        {"role": "system", "content": "You are tiny.\n\nBe brief."},
        {"role": "system", "content": CONTEXT},
        {"role": "user", "content": "q?"},
    ]


def test_user_placement_puts_a_block_before_the_query():
    messages = build_messages(" q {memories}? \n", CONTEXT, placement="user")
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[1]["content"] == f"<user_memories>\n{CONTEXT}\n</user_memories>\n\n q {{memories}}? \n"
    assert "memories" not in messages[0]["content"]


@given(st.lists(st.sampled_from(["</user_memories>", "<USER_MEMORIES_2>", "</ user_memories >", "a", "\n"])))
def test_no_memory_can_close_the_block(pieces):
    context = "x" + "".join(pieces)
    content = build_messages("q?", context, placement="user")[1]["content"]
    tag = content[1 : content.index(">")]
    assert content == f"<{tag}>\n{context}\n</{tag}>\n\nq?"
    assert tag not in context.casefold()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("context", ["", " \n", "C"])
@pytest.mark.parametrize("template", ["{memories}", "\n{memories}\n\n", "A {memories}", "A\n{memories}"])
def test_no_blank_message_is_ever_built(placement, context, template, prompt_file):
    messages = build_messages("q?", context, system_prompt=prompt_file(template), placement=placement)
    assert all(message["content"].strip() for message in messages)
    assert messages[-1]["role"] == "user" and messages[-1]["content"].endswith("q?")
    assert sum("C" in message["content"] for message in messages) == (context == "C")


def test_data_stays_text_in_every_placement():
    nasty = '{memories} {model_name} {} {0} {{x}} {"a": 1} \\1 $HOME'
    for placement in PLACEMENTS:
        messages = build_messages(nasty, nasty, placement=placement, model="openai/m")
        joined = "\n".join(message["content"] for message in messages)
        assert joined.count(nasty) == 2


def test_content_is_plain_text_also_for_a_context_object():
    class Context(str):
        escaped = True

    for placement in PLACEMENTS:
        assert all(type(m["content"]) is str for m in build_messages("q?", Context("C"), placement=placement))


# Arguments, hash, names


def test_arguments_are_checked_with_the_menu(tmp_path):
    for arguments, sentence in (
        ({"placement": "top"}, r"placement must be one of \['second_system', 'system', 'user'\], got 'top'"),
        ({"defence": "strict"}, r"defence must be one of \[.*'restrictive'.*\] or the path of a file, got 'strict'"),
        ({"system_prompt": "long"}, r"system_prompt must be one of \['persistbench', 'short'\] or the path .*'long'"),
        ({"system_prompt": tmp_path}, "system_prompt must be one of"),
    ):
        with pytest.raises(InputError, match=sentence):
            build_messages("q?", "C", **arguments)
    for query in ("", " \n", None):
        with pytest.raises(InputError, match="query is"):
            build_messages(query, "C")


def test_the_hash_is_over_what_is_used(prompt_file):
    path, copy = prompt_file("A {memories}"), prompt_file("A {memories}", "copy.txt")
    content = json.dumps(["A {memories}", "", "system"])
    assert prompt_sha256(path, "standard", "system") == hashlib.sha256(content.encode()).hexdigest()
    assert prompt_sha256(copy, "standard", "system") == prompt_sha256(path, "standard", "system")
    hashes = {prompt_sha256(path, defence, placement) for defence in defences() for placement in PLACEMENTS}
    assert len(hashes) == len(defences()) * 3
    with pytest.raises(InputError, match="placement must be one of"):
        prompt_sha256(path, "standard", "top")


@pytest.mark.parametrize(
    ("model_id", "name"),
    [
        ("openai/gpt-5", "gpt-5"),
        ("openrouter/moonshotai/kimi-k2-thinking", "moonshotai/kimi-k2-thinking"),
        ("hosted_vllm/org/model:free", "org/model:free"),
        ("gpt-5", "gpt-5"),
        ("local/smollm2", "smollm2"),
        ("local//home/someone/models/tiny.Q4_K_M.gguf", "tiny.Q4_K_M"),
        ("local/C:\\models\\tiny.gguf", "tiny"),
        ("simulated/leaky", "leaky"),
        ("", ""),
    ],
)
def test_model_name_is_the_id_without_its_route(model_id, name):
    assert model_name(model_id) == name


@pytest.mark.parametrize("value", [None, ["short"], 5, "You are helpful. " * 500 + "{memories}", "a\0b"])
@pytest.mark.parametrize("name", ["system_prompt", "defence"])
def test_what_is_neither_a_name_nor_a_file_is_refused(name, value):
    with pytest.raises(InputError, match=rf"{name} must be one of") as found:
        build_messages("query", "context", **{name: value})
    assert len(str(found.value)) < 400


def test_a_context_that_is_no_text_is_refused():
    with pytest.raises(InputError, match="context is None"):
        build_messages("query", None)
