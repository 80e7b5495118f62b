"""What is found in a reply's text: one JSON value with named repairs, and reasoning kept apart."""

from __future__ import annotations

import json
import pickle

import pytest

from structmem.replies import read_assignments
from structmem.replytext import ReplyError, is_blank, read_json, split_reasoning, text_of

MENU = ("health", "finance", "personal")
GOOD = '{"assignments": [{"memory": 1, "domain": "health"}, {"memory": 2, "domain": "finance"}]}'
OTHER = GOOD.replace("finance", "personal")
LABELS = {"1": "health", "2": "finance"}


def sort(text, n=2, **options):
    return read_assignments(text, ids=[str(k) for k in range(1, n + 1)], labels=MENU, **options)


def code(call, *args, **options):
    with pytest.raises(ReplyError) as caught:
        call(*args, **options)
    assert caught.value.detail in str(caught.value)
    return caught.value.code


FOUND = [
    ("bare", GOOD, ()),
    ("fence", f"```json\n{GOOD}\n```", ()),
    ("fence without a name", f"```\n{GOOD}\n```\n", ()),
    ("prose around", f"Sure, here it is: {GOOD} Anything else?", ()),
    ("braces in the prose", f"Topics {{sleep, rent}} and [two of them] give {GOOD} (end)", ()),
    ("sets in the prose", f"Topics {{'sleep', 'rent'}} give {GOOD}", ()),
    ("a lone brace in the prose", f"I open {{ and go on: {GOOD}", ()),
    ("a citation in the prose", f"As in [1] and [2]: {GOOD}", ()),
    ("said twice", f"{GOOD}\n\nOnce more: {GOOD}", ()),
    ("said twice, spelled otherwise", f"{GOOD}\n{json.dumps(json.loads(GOOD), indent=1)}", ()),
    ("fence never closed", f"```json\n{GOOD}", ("code fence never closed",)),
    ("trailing commas", GOOD.replace("}]}", "},\n],}"), ("trailing comma",)),
    ("single quotes", GOOD.replace('"', "'"), ("single quotes",)),
    ("line comment", GOOD.replace("[", "[ // it's {mine}\n"), ("comment removed",)),
    ("block comment", GOOD.replace("[", "[/* a */"), ("comment removed",)),
    ("comment before the bracket", GOOD.replace("]", ", // done\n]"), ("comment removed", "trailing comma")),
    ("line break in a string", '{"note": "a\nb", ' + GOOD[1:], ("control character inside a string",)),
    ("template braces", "{" + GOOD + "}", ()),
    ("no-break spaces", GOOD.replace(" ", "\u00a0").replace("[", "\u2003["), ("space of another kind",)),
    ("a smile with braces", f"{{:-}} {GOOD} {{-:}}", ()),
]


@pytest.mark.parametrize(("text", "repairs"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND])
def test_one_object_is_found_and_every_liberty_is_named(text, repairs):
    read = sort(text)
    assert read.labels == LABELS
    assert read.repairs == repairs
    assert not (read.missing or read.conflicts or read.none or read.bad_labels or read.unknown_ids)


REFUSED = [
    ("prose", "Both are about health.", "no_json"),
    ("refusal", "I'm sorry, I can't help with that.", "no_json"),
    ("draft, then another final", f"Draft: {OTHER}\nFinal: {GOOD}", "ambiguous"),
    ("draft in a fence, final bare", f"```json\n{OTHER}\n```\n{GOOD}", "ambiguous"),
    ("a line for each memory", '{"memory": 1, "domain": "health"}\n{"memory": 2, "domain": "finance"}', "ambiguous"),
    ("a key twice", '{"1": "health", "1": "finance", "2": "health"}', "ambiguous"),
    ("never closed", GOOD[:-1], "no_json"),
    ("never closed, whole items inside", GOOD[:-2], "no_json"),
    ("never closed after a whole object", '{"draft": ' + GOOD + ', "final": {"assignments": [', "no_json"),
    ("damaged, then whole", GOOD.replace('"finance"', '"so "called" finance"') + f"\n{GOOD}", "ambiguous"),
    ("whole, then damaged", f"Draft: {OTHER}\nFinal: {GOOD.replace(': 2', ': two')}", "ambiguous"),
    ("whole, then a damaged list", f"{GOOD}\n[{{'memory': 1, 'domain': personal}}]", "ambiguous"),
    ("within a damaged one", "{<final>: " + GOOD + ", <sure>: 1}", "ambiguous"),
    ("in the prose of a string", json.dumps({"final": f"Not {GOOD} but none."}), "invalid"),
    ("wrong bracket", GOOD[:-1] + "]", "no_json"),
    ("unquoted inner quotes", '{"assignments": [{"memory": 1, "domain": "he said "health" "}]}', "no_json"),
    ("other quotes", GOOD.replace('"', "”"), "no_json"),
    ("not a number", GOOD.replace("2,", "NaN,"), "no_json"),
    ("no number at all", '["health", {"domain": "finance"}]', "invalid"),
    ("a string", '{"assignments": "health"}', "invalid"),
    ("damaged key", GOOD.replace("assignments", "assignments{"), "no_such"),
    ("empty", "", "no_text"),
    ("nothing", None, "no_text"),
    ("blank", " \n\t\u200b\ufeff", "no_text"),
    ("reasoning only", f"<think>{GOOD}</think>", "no_text"),
    ("other content", 12, "no_text"),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_unclear_replies_are_refused(text, expected):
    if expected == "no_such":  # a wrapper of one key is read by what it holds, whatever the key is called
        assert sort(text).repairs == ("unwrapped 'assignments{'",)
    else:
        assert code(sort, text) == expected


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS"])
@pytest.mark.parametrize(
    "text", [GOOD, GOOD[:-2], GOOD[:-30], '{"assignments": [{"memory": 1, "domain": "hea', "", None]
)
def test_a_cut_reply_is_refused_before_it_is_read(text, reason):
    assert code(sort, text, finish_reason=reason) == "truncated"


def test_a_filtered_reply_names_its_finish_reason():
    with pytest.raises(ReplyError, match="content_filter") as caught:
        sort(None, finish_reason="content_filter")
    assert caught.value.code == "no_text"


def test_read_json_takes_objects_unless_told_otherwise():
    assert read_json('See [1]: {"a": 1}').value == {"a": 1}
    assert code(read_json, "[1, 2]") == "invalid"
    assert read_json("[1, 2]", accept=lambda value: value).value == [1, 2]
    assert code(read_json, '{"a": 1} {"a": true}') == "ambiguous"  # 1 and true are equal in Python, not in JSON
    assert code(read_json, '{"a": 1, "a": 1.0}') == "ambiguous"
    assert read_json('{"a": 1, "a": 1}').value == {"a": 1}


def test_single_quoted_strings_keep_their_text():
    read = read_json("""{'a': 'it\\'s "so"\\n', 'b': [True, None], "c": "it's 'x'"}""")
    assert read.value == {"a": 'it\'s "so"\n', "b": [True, None], "c": "it's 'x'"}
    assert read.repairs == ("single quotes", "Python literal")


def test_half_a_character_is_replaced_and_named():
    read = read_json('{"a": "x\\ud83d"}')
    assert (read.value, read.repairs) == ({"a": "x?"}, ("half of a character replaced",))


SPLIT = [
    ("plain <3 text", "plain <3 text", None),
    ("<think>private</think>Visible.", "Visible.", "private"),
    ("<THINKING>\nprivate\n</THINKING>\n\nVisible.", "Visible.", "private"),
    ("<reasoning>private</reasoning>Visible.", "Visible.", "private"),
    ("Visible.\n<think>private</think>", "Visible.", "private"),
    ("Visible.\n<think>never closed", "Visible.", "never closed"),
    ("template opened it</think>Visible.", "Visible.", "template opened it"),
    ("a<think>b</think>c</think>Visible.", "Visible.", "b\na\nc"),
    ("<think>a<think>b</think>Visible.", "Visible.", "a<think>b"),
    ("<think>use <reasoning>x</reasoning> y</think>Visible.", "Visible.", "use <reasoning>x</reasoning> y"),
    ("<think></think>Visible.", "Visible.", None),
    ("<think>only</think>", "", "only"),
    ("◁think▷private◁/think▷Visible.", "Visible.", "private"),
    ("Write `<think>` before the answer.", "Write `<think>` before the answer.", None),
    ("Hi. <reflection>I rowed.</reflection> Bye.", "Hi. <reflection>I rowed.</reflection> Bye.", None),
    ("Hi. <thoughts>I rowed.", "Hi. <thoughts>I rowed.", None),
    ("Hi. </reasoning> Bye.", "Hi. </reasoning> Bye.", None),
    ("<reflection>private</reflection>\nVisible.", "Visible.", "private"),
    ("<think>a</think><thoughts>b</thoughts>Visible.", "Visible.", "a\nb"),
    ("I was <thinking about it>.", "I was <thinking about it>.", None),
    ('{"reasoning": "it prints <think> and </think>"}', '{"reasoning": "it prints <think> and </think>"}', None),
]


@pytest.mark.parametrize(("text", "visible", "reasoning"), SPLIT)
def test_reasoning_is_kept_apart(text, visible, reasoning):
    assert split_reasoning(text) == (visible, reasoning)


@pytest.mark.parametrize(
    "text",
    [
        f"<think>First {OTHER}, no.</think>\n{GOOD}",
        f"{GOOD}\n<think>or rather {OTHER}</think>",
        f"{GOOD}\n<think>or rather {OTHER}",
        f"maybe {OTHER}</think>{GOOD}",
        f'maybe {{"assignments": [{{"memory": </think>{GOOD}',
        f"<thinking>{OTHER}</thinking><think>{OTHER}</think>```json\n{GOOD}\n```",
    ],
)
def test_a_decoy_in_the_reasoning_never_wins(text):
    read = sort(text)
    assert read.labels == LABELS
    assert "assignments" in read.reasoning


@pytest.mark.parametrize("text", [f"<think>{OTHER} {GOOD}", f"{GOOD}</think>", f"<think>a</think>{GOOD}</think> "])
def test_reasoning_is_never_promoted_to_an_answer(text):
    assert code(sort, text) == "no_text"


def test_blocks_are_joined_and_thinking_blocks_kept_apart():
    blocks = [
        {"type": "thinking", "thinking": f"maybe {OTHER}"},
        {"type": "text", "text": GOOD[:31]},
        {"type": "image_url", "image_url": "x"},
        {"type": "text", "text": GOOD[31:]},
    ]
    assert text_of(blocks) == (GOOD, f"maybe {OTHER}")
    read = sort(blocks)
    assert (read.labels, read.reasoning) == (LABELS, f"maybe {OTHER}")
    assert text_of("a") == ("a", None)
    assert text_of([]) == text_of(None) == text_of(3) == text_of([{"type": "tool_use", "text": "x"}]) == (None, None)
    assert text_of([{"type": "output_text", "text": {"value": "a"}}, "b"]) == ("ab", None)
    assert code(sort, blocks[:1]) == "no_text"


@pytest.mark.parametrize("text", ["", None, " \n\t", "\u200b\ufeff\u00a0", "\x00"])
def test_what_cannot_be_seen_is_blank(text):
    assert is_blank(text)
    assert not is_blank(f"{text or ''}.")


def test_a_reply_error_survives_pickling():
    error = pickle.loads(pickle.dumps(ReplyError("invalid", "why")))
    assert (error.code, error.detail) == ("invalid", "why")
