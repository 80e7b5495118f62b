"""Classifier replies as models really send them: each kind of fault, and where every memory ends up."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from structmem.calls import Call
from structmem.data import wrap_memories
from structmem.listings import MAX_CHARS, clean_name, fold
from structmem.replies import ReplyError, read_assignments
from structmem.structures import structure
from structmem.taxonomy import Domain, Taxonomy
from structmem.tree import UNCLASSIFIED

BAY = Taxonomy("bay", tuple(Domain(name, f"What is about {name}.") for name in ("Hobbies", "Ports", "Café")), {})
MEMORIES = ["Carves spoons.", "Moors at pier 4.", "Meets Ada for coffee.", "Knits.", "Rows on Sundays."]
RIGHT = {"1": "Hobbies", "2": "Ports", "3": "Café", "4": "Hobbies", "5": "Ports"}


def shown(messages):
    """The numbers of the memories in a request."""
    return [int(k) for k in re.findall(r"^(\d+)\. ", messages[-1]["content"], re.M)]


def said(labels=RIGHT, **other):
    rows = [{"memory": int(k), "domain": label} for k, label in {**labels, **other}.items()]
    return json.dumps({"assignments": rows}, ensure_ascii=False)


class Model:
    """Gives its replies in turn, the last for ever; a reply is a text, or a dict with a finish_reason."""

    def __init__(self, *replies):
        self.replies, self.asked, self.params = replies, [], []

    def __call__(self, messages, **request):
        self.asked.append(shown(messages))
        self.params.append((request["params"]["max_tokens"], messages[-1]["content"]))
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        return reply(messages) if callable(reply) else reply


def sort(*replies, name="fixed", memories=MEMORIES, **options):
    """Where each memory ended up, the node, and the model."""
    model = Model(*replies)
    given = wrap_memories(memories)
    node = structure(given, name, taxonomy=BAY, structurer="a/model", ask=model, **options)
    assert Counter(node.all_memories()) == Counter(given)
    return {memory.id: "/".join(path) for path, part in node.walk() for memory in part.memories}, node, model


def why(node):
    return next(child.note for child in node.children if child.label == UNCLASSIFIED)


DECOY = said(dict.fromkeys(RIGHT, "Ports"))
# kind of fault, reply, and the mark that it leaves on the layout (None: no liberty was taken)
READ = [
    ("as asked", said(), None),
    ("fence", f"```json\n{said()}\n```", None),
    ("fence with capitals", f"```JSON\n{said()}\n```\n", None),
    ("other fence", f"~~~json\n{said()}\n~~~", None),
    ("fence of four", f"````\n{said()}\n````", None),
    ("fence never closed", f"```json\n{said()}", "code fence never closed"),
    ("braces in the prose", f"The groups {{tea, rope}} and [some more] give:\n```\n{said()}\n```\nDone!", None),
    ("braces in the prose, no fence", f"The groups {{tea, rope}} give {said()} (end)", None),
    ("byte order mark", f"\ufeff{said()}", None),
    ("markup around it", f"<json>{said()}</json>", None),
    ("trailing comma", said().replace("}]", "},]"), "trailing comma"),
    ("single quotes", said().replace('"', "'"), "single quotes"),
    ("comment", said().replace("[", "[ // mine\n", 1), "comment removed"),
    ("as a JSON string", json.dumps(said()), "unwrapped a JSON string"),
    ("one level down", json.dumps({"result": json.loads(said())}), "unwrapped 'result'"),
    ("in a list of one", f"[{said()}]", "unwrapped 'list of one'"),
    ("fence marks in another field", said()[:-1] + ', "note": "```json {\\"a\\": 1}```"}', None),
    ("said twice", f"{said()}\nAgain:\n{said()}", None),
    ("decoy in reasoning", f"<think>Say {DECOY}? No.</think>{said()}", None),
    ("decoy in reasoning after it", f"{said()}\n<think>Or {DECOY}?</think>", None),
    ("tag in capitals", f"<THINK>{DECOY}</THINK>{said()}", None),
    ("tags inside each other", f"<think>a<think>{DECOY}</think>b</think>{said()}", None),
    ("tag never closed", f"{said()}<thinking>or {DECOY}", None),
    ("tag never opened", f"or {DECOY}</think>{said()}", None),
    ("square tags", f"[THINK]{DECOY}[/THINK]{said()}", None),
    ("named tags", f"<seed:think>{DECOY}</seed:think>{said()}", None),
    ("token tags", f"<|START_THINKING|>{DECOY}<|END_THINKING|>{said()}", None),
    (
        "channels",
        f"<|channel|>analysis<|message|>{DECOY}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>"
        f"{said()}<|return|>",
        None,
    ),
    ("other order", said(dict(reversed(RIGHT.items()))), None),
    ("numbers as text", re.sub(r'"memory": (\d)', r'"memory": "\1"', said()), None),
    ("numbers as decimals", re.sub(r'"memory": (\d)', r'"memory": \1.0', said()), None),
    ("numbers with a prefix", re.sub(r'"memory": (\d)', r'"memory": "m\1"', said()), "memory number read from text"),
    ("a number too many", said(**{"9": "Ports"}), "named the number 9, which was not asked"),
    ("other case", said({k: label.upper() for k, label in RIGHT.items()}), None),
    ("spaces around", said({k: f" {label}\n" for k, label in RIGHT.items()}), None),
    ("zero-width characters", said({k: f"{label[:2]}\u200b{label[2:]}\u2060" for k, label in RIGHT.items()}), None),
    ("other normal form", said(**{"3": "Cafe\u0301"}), None),
    ("label as object", said({k: {"label": label, "sure": 0.9} for k, label in RIGHT.items()}), None),
    ("label in a list of one", said({k: [label] for k, label in RIGHT.items()}), None),
    ("a map", json.dumps(RIGHT), None),
    ("a map of lists", '{"Hobbies": [1, 4], "Ports": [2, 5], "Café": [3]}', None),
    ("one key twice, the same", json.dumps(RIGHT)[:-1] + ', "5": "Ports"}', None),
]


@pytest.mark.parametrize("name", ["fixed", "dynamic"])
@pytest.mark.parametrize(("reply", "mark"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_a_readable_reply_gives_the_same_partition_in_one_request(reply, mark, name):
    where, node, model = sort(reply, name=name)
    assert where == RIGHT
    assert len(model.asked) == 1
    assert node.note is None if mark is None else mark in node.note


# kind of fault, reply, numbers asked again, word of the reason
ASKED_AGAIN = [
    ("two different objects", f"Draft: {DECOY}\nFinal: {said()}", "12345", "ambiguous"),
    ("one line of JSON for each", "\n".join(said({k: v}) for k, v in RIGHT.items()), "12345", "ambiguous"),
    ("one key twice, two labels", json.dumps(RIGHT)[:-1] + ', "5": "Café"}', "12345", "ambiguous"),
    ("curly quotes", said().replace('"', "“"), "12345", "no_json"),
    ("curly quotes outside", "{“final”: " + said() + "}", "12345", "no_json"),
    ("keys without quotes", said().replace('"memory"', "memory"), "12345", "no_json"),
    ("keys without quotes outside", "{final: " + said() + "}", "12345", "no_json"),
    ("prose", "All of them are about boats.", "12345", "no_json"),
    ("never closed", said()[:-2], "12345", "no_json"),
    ("reasoning only", f"<think>{said()}</think>", "12345", "no_text"),
    ("empty list", '{"assignments": []}', "12345", "no answer"),
    ("null", '{"assignments": null}', "12345", "no answer"),
    ("strings and objects mixed", '["Hobbies", {"domain": "Ports"}, "Café", "Hobbies", "Ports"]', "12345", "invalid"),
    ("two levels down", json.dumps({"a": {"b": json.loads(said())}}), "12345", "invalid"),
    ("counted from 0", said({str(int(k) - 1): v for k, v in RIGHT.items()}), "12345", "invalid"),
    ("counted from 0, one missing", said({"0": "Hobbies", "1": "Ports", "3": "Hobbies"}), "12345", "invalid"),
    ("counted from 2", said({str(int(k) + 1): v for k, v in RIGHT.items()}), "12345", "invalid"),
    ("full-width numbers", json.dumps({"１": "Hobbies", "２": "Ports"}), "12345", "invalid"),
    ("half a number", said().replace('"memory": 5', '"memory": 5.5'), "5", "invalid"),
    ("one missing", said({k: v for k, v in RIGHT.items() if k != "5"}), "5", "invalid"),
    ("two labels for one", said()[:-2] + ', {"memory": 4, "domain": "Café"}]}', "4", "different domains"),
    ("null label", said(**{"2": None}), "2", "null, a domain that is not on the list"),
    ("list of labels", said(**{"2": ["Ports", "Café"]}), "2", "a list, a domain that is not on the list"),
    ("singular", said(**{"1": "Hobby"}), "1", "'Hobby', a domain that is not on the list"),
    ("synonym", said(**{"1": "Pastimes"}), "1", "'Pastimes', a domain that is not on the list"),
    ("translated", said(**{"1": "Loisirs"}), "1", "'Loisirs', a domain that is not on the list"),
    ("its beginning", said(**{"1": "Hob"}), "1", "'Hob', a domain that is not on the list"),
    ("with a remark", said(**{"1": "Hobbies (wood)"}), "1", "'Hobbies (wood)', a domain that is not on the list"),
    ("a look-alike letter", said(**{"1": "H\u043ebbies"}), "1", "a domain that is not on the list"),
    ("a number as label", said(**{"1": "1"}), "1", "'1', a domain that is not on the list"),
    ("true as label", said(**{"1": True}), "1", "true, a domain that is not on the list"),
]


@pytest.mark.parametrize(
    ("reply", "again", "reason"), [row[1:] for row in ASKED_AGAIN], ids=[r[0] for r in ASKED_AGAIN]
)
def test_an_unusable_answer_is_asked_again_for_those_only_then_unclassified(reply, again, reason):
    where, node, model = sort(reply)
    assert model.asked == [[1, 2, 3, 4, 5]] + [list(map(int, again))] * 2
    assert len(set(model.params)) == 3  # never the same request twice
    assert where == {k: UNCLASSIFIED if k in again else label for k, label in RIGHT.items()}
    assert reason in why(node)
    assert f"{len(again)} of 5 memories were asked more than once" in node.note
    mended, node, model = sort(reply, said({k: RIGHT[k] for k in again}))
    assert mended == RIGHT and len(model.asked) == 2 and "asked more than once" in node.note


@pytest.mark.parametrize(
    "word",
    ["None of the above", "none", "Unclassified", " UNCLASSIFIED ", "no domain.", "None of these", "Uncategorised"],
)
@pytest.mark.parametrize("name", ["fixed", "dynamic"])
def test_the_model_saying_none_is_an_answer_of_its_own(word, name):
    where, node, model = sort(said(**{"3": word}), name=name)
    assert where == RIGHT | {"3": UNCLASSIFIED} and len(model.asked) == 1
    assert why(node) == "memory 3: the model named no domain"


# --- dynamic: no ghost of a domain that is there ---


@pytest.mark.parametrize(
    "name", ["hobby", "HOBBIES ", "Hobbies.", "the\u200bhobbies"[3:], "ｈｏｂｂｉｅｓ", "hobbies\n"]
)
def test_a_variant_of_a_domain_is_that_domain(name):
    where, node, _ = sort(said(**{"1": name, "4": name}), name="dynamic")
    assert where == RIGHT and [child.label for child in node.children] == ["Hobbies", "Ports", "Café"]


def test_a_fold_that_changes_the_word_is_reported():
    assert "'hobby' was read as 'Hobbies'" in sort(said(**{"1": "hobby"}), name="dynamic")[1].note


GHOSTS = [
    "unsure", "Not sure", "not applicable", "undefined", "TBD", "general", "Various", "mixed", "I cannot say",
    "cannot classify this", "I can’t tell", "Sorry, no idea", "unable to sort", "none that fit", "Not clear",
    "Hobbies, Ports", "hobbies / ports", "Café & Ports", "Ports or Café",
]  # fmt: skip


@pytest.mark.parametrize(
    "ghost", [*GHOSTS, "H\u043ebbies", "P\u03bfrts", "12", "½", "🛶", "other", "N/A", "x" * 41, "a\nb"]
)
def test_what_is_no_name_opens_no_domain(ghost):
    where, node, model = sort(said(**{"1": ghost, "4": ghost}), said({"1": "Hobbies", "4": "Hobbies"}), name="dynamic")
    assert where == RIGHT and model.asked == [[1, 2, 3, 4, 5], [1, 4]]


def test_a_new_domain_needs_two_memories_and_one_spelling_is_kept():
    where, node, _ = sort(said(**{"1": "Side Projects", "4": "side-project"}), name="dynamic")
    assert [where["1"], where["4"]] == ["side projects"] * 2
    where, node, model = sort(said(**{"1": "Pets"}), said({"1": "Pets"}), name="dynamic")
    assert where["1"] == UNCLASSIFIED and "was not opened ('Pets')" in why(node)
    assert model.asked == [[1, 2, 3, 4, 5], [1], [1], [1]]


def test_alphabets_may_differ_between_words_and_never_within_one():
    assert clean_name("Дом") == "дом" and clean_name("健康 ヨガ") == "健康 ヨガ" and clean_name("IT дом") == "it дом"
    assert clean_name("Дoм") is None and clean_name("7") is None and clean_name("24 hour shop") == "24 hour shop"
    assert fold("side\u00adproject\u200d") == "sideproject"


# --- what a number means ---


def test_a_number_means_the_same_memory_in_every_request():
    late = said({"1": "Ports", "2": "Ports", "3": "Ports", "4": "Ports", "5": "Café"})  # answers what was not asked
    where, _, model = sort(said({k: v for k, v in RIGHT.items() if k != "5"}), late)
    assert where == RIGHT | {"5": "Café"} and model.asked[1] == [5]
    where, _, model = sort(lambda messages: said(dict.fromkeys(map(str, shown(messages)), "Café")), batch_size=2)
    assert model.asked == [[1, 2], [3, 4], [5]] and set(where.values()) == {"Café"}


def test_one_memory_alone_is_not_answered_by_a_reply_about_many():
    where, node, model = sort(said(), per_memory=True)
    assert set(where.values()) == {UNCLASSIFIED} and model.asked[0] == [1] and "invalid" in why(node)
    assert set(sort('{"assignments": {"1": "Café"}}', per_memory=True)[0].values()) == {"Café"}


@pytest.mark.parametrize(("asked", "numbers"), [("23", "12"), ("35", "24"), ("45", "01"), ("5", "6"), ("24", "02")])
def test_a_part_asked_again_is_not_shifted_either(asked, numbers):
    text = json.dumps(dict.fromkeys(numbers, "Ports"))
    with pytest.raises(ReplyError) as caught:
        read_assignments(text, ids=list(asked), labels=BAY.names, others=list("12345"))
    assert caught.value.code == "invalid"


# --- cut replies, and replies without text ---


@pytest.mark.parametrize("end", ["Por", "Ports", 'Ports"}', 'Ports"}]}'], ids=["in a label", "label", "item", "whole"])
def test_a_cut_reply_is_never_used_and_asked_for_otherwise(end):
    cut = {"text": said()[: said().index("Ports")] + end, "finish_reason": "length"}
    where, node, model = sort(cut)
    assert set(where.values()) == {UNCLASSIFIED} and "truncated, finish_reason 'length'" in why(node)
    assert [len(asked) for asked in model.asked] == [5, 3, 2, *[1] * 5]
    room = [tokens / len(asked) for (tokens, _), asked in zip(model.params, model.asked, strict=True)]
    assert room[0] < min(room[1:3]) < max(room[1:3]) < room[3] == room[7]
    assert sort(cut, lambda messages: said({str(k): RIGHT[str(k)] for k in shown(messages)}))[0] == RIGHT


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("refused", "stop"), ("filtered", "content_filter"), ("empty", "stop"), ("empty", "length"), ("too_long", None)],
)
def test_a_reply_without_text_is_named_by_its_cause(reason, finish):
    where, node, _ = sort(lambda messages: (Call("", "no_response", reason, finish_reason=finish), None))
    assert set(where.values()) == {UNCLASSIFIED}
    assert ("finish_reason" in why(node)) == (finish not in (None, "stop")) and reason in why(node)


# --- many memories, and long ones ---


def test_a_thousand_memories_go_in_bounded_requests_and_a_long_one_goes_whole():
    memories = [f"Fact {k} about the sea and its many ports." for k in range(1000)]
    memories[500] = "Long story. " * 5000

    def answer(messages):
        if "subdomains for facts" in messages[0]["content"]:
            proposals.append(messages[-1]["content"])
            return '{"domains": {"Ports": ["piers"]}}'
        sortings.append(messages[-1]["content"])
        return json.dumps({"assignments": dict.fromkeys(map(str, shown(messages)), "Ports")})

    for name in ("fixed", "dynamic", "tree"):
        sortings, proposals = [], []
        where, node, _ = sort(answer, name=name, memories=memories)
        assert where == {str(k): "Ports" for k in range(1, 1001)} and node.note is None
        for requests in filter(None, (sortings, proposals)):
            (alone,) = [text for text in requests if memories[500] in text]
            assert re.findall(r"^\d+\. ", alone, re.M) == ["501. " if requests is sortings else "1. "]
            assert all(len(text) < 1.25 * MAX_CHARS for text in requests if text is not alone)
        assert max(text.count("\n") for text in sortings) <= 100


def test_leaves_proposed_in_parts_are_joined_and_a_lost_part_is_told():
    def answer(messages):
        if "subdomains for facts" not in messages[0]["content"]:
            return json.dumps({"assignments": dict.fromkeys(map(str, shown(messages)), "Ports/docks")})
        asked.append(messages[-1]["content"][-2])
        return {"a": '{"domains": {"Ports": ["old piers", "Docks"]}}', "b": '{"domains": {"Ports": ["docks"]}}'}.get(
            asked[-1], "no"
        )

    asked = []
    where, node, _ = sort(answer, name="tree", memories=[letter * 30_000 for letter in "abc"], max_leaves=1)
    assert asked == ["a", "b", "c", "c"] and set(where.values()) == {"Ports/docks"}
    assert "a part of the memories was left out of the proposal (no_json)" in node.note
