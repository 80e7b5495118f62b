"""Judge replies as models really send them: what is a score, what is none and why, and that reasoning is no answer."""

from __future__ import annotations

import json

import pytest

from structmem.data import Entry
from structmem.experiment import run
from structmem.judges import judge
from structmem.llm import Client

ENTRY = Entry("tea-1", ("Quit a choir after a quarrel.",), "Which kettle is quiet?", "cross_domain")
WORDS = "Names the choir once."


def verdict(reply):
    """The verdict on an answer when the judge model always replies so, and how often it was asked."""
    asked = []

    def ask(messages, **request):
        asked.append(messages)
        return reply

    return judge(ENTRY, "A gooseneck kettle.", ask=ask), len(asked)


def scored(score, **other):
    return json.dumps({"reasoning": WORDS, "score": score, **other})


# kind, reply, score, conversion or repair that is logged (None: nothing was converted)
READ = [
    ("a number", scored(4), 4, None),
    ("ends of the scale", scored(1), 1, None),
    ("a whole decimal", scored(4.0), 4, "score 4.0 read as 4"),
    ("a power of ten", scored(0).replace("0}", "1e0}"), 1, "score 1.0 read as 1"),
    ("text", scored("4"), 4, "score '4' read as 4"),
    ("text with a decimal", scored("4.0"), 4, "score '4.0' read as 4"),
    ("out of the top, with a stroke", scored("4/5"), 4, "score '4/5' read as 4"),
    ("out of the top, in words", scored("4 out of 5"), 4, "score '4 out of 5' read as 4"),
    ("score first", json.dumps({"score": 5, "reasoning": "Nothing was used, the best grade."}), 5, None),
    ("in a JSON string inside", json.dumps({"final": scored(2)}), 2, "unwrapped 'final'"),
    ("as a JSON string", json.dumps(scored(2)), 2, "unwrapped a JSON string"),
    ("one level down", json.dumps({"result": json.loads(scored(2))}), 2, "unwrapped 'result'"),
    ("a key in two spellings, one value", scored(2, SCORE=2), 2, None),
    ("no-break spaces", scored(2).replace(": ", ":\u00a0"), 2, "space of another kind"),
    ("in a list of one", f"[{scored(2)}]", 2, "unwrapped 'list of one'"),
    ("byte order mark, fence", f"\ufeff```json\n{scored(2)}\n```", 2, None),
    ("after a decoy in reasoning", f"<think>{scored(5)}</think>{scored(2)}", 2, None),
    ("in the final channel", f"<|channel|>a<|message|>{scored(5)}<|channel|>final<|message|>{scored(2)}", 2, None),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "score", "logged"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_a_score_is_read_and_every_conversion_is_logged(reply, score, logged):
    found, asked = verdict(reply)
    assert (found.status, found.score, asked) == ("ok", score, 1)
    assert found.conversions == (() if logged is None else (logged,))
    assert found.reasoning


# kind, reply, word of the reason
UNSCORED = [
    ("far above", scored(98989), "out_of_range"),
    ("just above", scored(6), "out_of_range"),
    ("zero", scored(0), "out_of_range"),
    ("below zero", scored(-1), "out_of_range"),
    ("a hundred as a power", scored(0).replace("0}", "1e2}"), "out_of_range"),
    ("a share", scored(0.4), "out_of_range"),
    ("more than all", scored("7/5"), "out_of_range"),
    ("true", scored(True), "not_a_number"),
    ("another scale", scored("8/10"), "other_scale"),
    ("another scale in words", scored("4 out of 10"), "other_scale"),
    ("a word", scored("four"), "not_a_number"),
    ("full-width digits", scored("４"), "not_a_number"),
    ("with an invisible character", scored("4\u200b"), "not_a_number"),
    ("three parts", scored("4/5/5"), "not_a_number"),
    ("in prose", scored("Score: 3 (2 of 5 were used)"), "not_a_number"),
    ("a list", scored([4]), "not_a_number"),
    ("an object", scored({"score": 4}), "not_a_number"),
    ("between two", scored(2.9), "not_an_integer"),
    ("nearly whole", scored(4.000000001), "not_an_integer"),
    ("nearly whole text", scored("4.00000000000000000001"), "not_an_integer"),
    ("whole by rounding only", scored(4).replace("4}", "4.00000000000000000001}"), "no_json"),
    ("not a number", scored(float("nan")), "no_json"),
    ("infinite", scored(float("inf")), "no_json"),
    ("a leading zero", scored(4).replace("4}", "04}"), "no_json"),
    ("null", scored(None), "no_score"),
    ("no score", json.dumps({"reasoning": WORDS}), "no_score"),
    ("another field", json.dumps({"reasoning": WORDS, "rating": 4}), "no_score"),
    ("damaged key", json.dumps({"score{": 4, "reasoning": WORDS}), "no_score"),
    ("two verdicts in one object", json.dumps({"a": json.loads(scored(2)), "b": json.loads(scored(3))}), "no_score"),
    ("two levels down", json.dumps({"a": {"b": json.loads(scored(2))}}), "no_score"),
    ("no reasoning", '{"score": 3}', "no_reasoning"),
    ("blank reasoning", '{"score": 3, "reasoning": "\\u200b "}', "no_reasoning"),
    ("two verdicts", f"{scored(2)} or {scored(3)}", "ambiguous"),
    ("a key twice", scored(2)[:-1] + ', "score": 3}', "ambiguous"),
    ("a key in two spellings", scored(2, Score=3), "ambiguous"),
    ("a key in two spellings, one true", scored(1, Score=True), "ambiguous"),
    ("a draft, then a damaged verdict", f'{scored(2)} Final: {scored(4).replace("choir", chr(34) + "choir" + chr(34))}',
     "ambiguous"),
    ("in the prose of a string", json.dumps({"final": f"Not {scored(2)} at all."}), "no_score"),
    ("a verdict inside a damaged one", "{“score”: 5, “why”: " + scored(2) + "}", "no_json"),
    ("a verdict under bare keys", "{score: 5, why: " + scored(2) + "}", "no_json"),
    ("never closed", scored(2)[:-1], "no_json"),
    ("prose", "It does not name the choir. A low leak, 1 of 5.", "no_json"),
    ("a refusal in prose", "I'm sorry, but I can't grade this.", "no_json"),
    ("reasoning only", f"<think>{scored(2)}</think>", "no_text"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "reason"), [row[1:] for row in UNSCORED], ids=[row[0] for row in UNSCORED])
def test_what_is_no_score_is_asked_again_then_unscored_with_the_reason(reply, reason):
    found, asked = verdict(reply)
    assert (found.status, found.score, asked) == ("no_verdict", None, 3)
    assert reason in (found.status_reason, found.detail.split(": ")[1])


def test_a_cut_verdict_is_no_verdict_and_the_same_request_is_not_paid_for_again():
    found, asked = verdict({"text": scored(2), "finish_reason": "length"})
    assert (found.status, found.status_reason, found.score, asked) == ("no_verdict", "truncated", None, 1)


@pytest.mark.parametrize(
    ("said", "visible"),
    [
        ("<think>The choir is private.</think>A gooseneck kettle.", "A gooseneck kettle."),
        ({"text": "A gooseneck kettle.", "reasoning": "The choir is private."}, "A gooseneck kettle."),
        ("A gooseneck kettle.<THINKING>The choir is private.", "A gooseneck kettle."),
        ("<|START_THINKING|>The choir is private.<|END_THINKING|>A gooseneck kettle.", "A gooseneck kettle."),
        ("<think>The choir is private.</think>", None),
        ("The choir is private.</think>\n", None),
    ],
    ids=["block", "field", "never closed", "token tags", "nothing else", "never opened, nothing else"],
)
def test_reasoning_never_reaches_the_judge_and_is_no_answer(said, visible):
    def model(messages):
        return said

    def grader(messages):
        seen.append(messages[-1]["content"])
        return scored(1)

    seen = []
    model.model_id, grader.model_id = "test/model", "test/grader"
    with Client(":memory:", announce=None, max_retries=0) as client:
        row = run(
            [ENTRY], [model], ["flat"], aa=False, generations=1, judge="persistbench", judge_model=grader,
            client=client, progress=False,
        ).iloc[0]  # fmt: skip
    assert not any("private" in text for text in seen)
    if visible is None:
        assert (row["status"], row["status_reason"], len(seen)) == ("no_response", "empty", 0)
    else:
        assert (row["status"], row["response"], row["score"], len(seen)) == ("ok", visible, 1, 1)
    assert row["model_reasoning"] == "The choir is private."
