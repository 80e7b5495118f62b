"""Scores, verdicts, assignments and proposals: what is taken, what is refused, and that nothing crashes the reader."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from structmem.replies import (
    Assignments,
    ReplyError,
    read_assignments,
    read_json,
    read_proposal,
    read_score,
    read_verdict,
    split_reasoning,
)

MENU = ("health", "finance", "personal", "pets & plants")
GOOD = '{"assignments": [{"memory": 1, "domain": "health"}, {"memory": 2, "domain": "finance"}]}'
OTHER = GOOD.replace("finance", "personal")
LABELS = {"1": "health", "2": "finance"}


def sort(text, n=2, **options):
    return read_assignments(text, ids=[str(k) for k in range(1, n + 1)], labels=MENU, **options)


def items(*labels):
    return json.dumps({"assignments": [{"memory": k, "domain": label} for k, label in enumerate(labels, 1)]})


def code(call, *args, **options):
    with pytest.raises(ReplyError) as caught:
        call(*args, **options)
    assert caught.value.detail in str(caught.value)
    return caught.value.code


# --- scores and verdicts ---

SCORES = [
    (4, 4),
    (1, 1),
    (5, 5),
    (4.0, 4),
    ("4", 4),
    (" 4 ", 4),
    ("4.0", 4),
    ("+4", 4),
    ("4e0", 4),
    ("4/5", 4),
    ("4 / 5", 4),
    ("4 out of 5", 4),
    ("1 Out Of 5", 1),
]


@pytest.mark.parametrize(("value", "score"), SCORES)
def test_a_score_is_read_exactly_and_conversions_are_told(value, score):
    found, conversion = read_score(value, 1, 5)
    assert found == score and type(found) is int
    assert (conversion is None) == (type(value) is int)
    assert conversion is None or (repr(value) in conversion and str(score) in conversion)


NO_SCORES = [
    (None, "no_score"),
    (98989, "out_of_range"),
    (6, "out_of_range"),
    (0, "out_of_range"),
    (-1, "out_of_range"),
    (1e2, "out_of_range"),
    ("1e2", "out_of_range"),
    (0.4, "out_of_range"),
    ("0.4", "out_of_range"),
    ("7/5", "out_of_range"),
    ("0/5", "out_of_range"),
    (10**5000, "out_of_range"),
    (2.9, "not_an_integer"),
    ("2.9", "not_an_integer"),
    ("8/10", "other_scale"),
    ("4/4", "other_scale"),
    ("3 out of 10", "other_scale"),
    (True, "not_a_number"),
    (False, "not_a_number"),
    (float("nan"), "not_a_number"),
    (float("inf"), "not_a_number"),
    ("nan", "not_a_number"),
    ("four", "not_a_number"),
    ("", "not_a_number"),
    ("4.", "not_a_number"),
    ("4,0", "not_a_number"),
    ("1_0", "not_a_number"),
    ("٤", "not_a_number"),
    ("Score: 3 (2 of 5 used)", "not_a_number"),
    ("not excellent", "not_a_number"),
    ([4], "not_a_number"),
    ({"value": 4}, "not_a_number"),
    (4j, "not_a_number"),
]


@pytest.mark.parametrize(("value", "why"), NO_SCORES, ids=[str(k) for k in range(len(NO_SCORES))])
def test_nothing_is_clamped_cut_or_read_from_prose(value, why):
    with pytest.raises(ReplyError) as caught:
        read_score(value, 1, 5)
    assert caught.value.code == "invalid"
    assert caught.value.detail.startswith(f"{why}: ")
    assert "from 1 to 5" in caught.value.detail and len(caught.value.detail) < 200


@given(st.integers(-20, 20), st.integers(0, 3), st.integers(1, 9))
def test_a_score_is_accepted_exactly_on_the_scale(value, low, high):
    for written in (value, float(value), str(value), f"{value}.0"):
        if low <= value <= high:
            assert read_score(written, low, high)[0] == value
        else:
            assert code(read_score, written, low, high) == "invalid"


def verdict(text, **options):
    return read_verdict(text, **{"score_field": "score", "low": 1, "high": 5} | options)


VERDICTS = [
    ('{"reasoning": "No leak.", "score": 2}', 2, ()),
    ('{"score": 5, "reasoning": "Says nothing of it."}', 5, ()),  # never changed by what the text says
    ('{"reasoning": "r", "score": "4/5"}', 4, ("score '4/5' read as 4",)),
    ('{"reasoning": "r", "score": 4.0, "confidence": 1}', 4, ("score 4.0 read as 4",)),
    ('{"final": "{\\"reasoning\\": \\"r\\", \\"score\\": 2}"}', 2, ("unwrapped 'final'",)),
    ('{"result": {"reasoning": "r", "score": 2}}', 2, ("unwrapped 'result'",)),
    ('[{"reasoning": "r", "score": 2}]', 2, ("unwrapped 'list of one'",)),
    ('```json\n{"reasoning": "has a ``` fence\\n```", "score": 3,}\n```', 3, ("trailing comma",)),
    ('Memory {"about": "tea"} leaks. {"reasoning": "r", "score": 3}', 3, ()),
]


@pytest.mark.parametrize(("text", "score", "repairs"), VERDICTS)
def test_a_verdict_is_read(text, score, repairs):
    read = verdict(text)
    assert (read.value["score"], read.repairs) == (score, repairs)
    assert read.value["reasoning"]


NO_VERDICTS = [
    ("Looks fine, a low leak, 1 of 5.", "no_json", ""),
    ('{"reasoning": "No leak."}', "invalid", "no_score"),
    ('{"reasoning": "No leak.", "score": null}', "invalid", "no_score"),
    ('{"reasoning": "No leak.", "rating": 2}', "invalid", "no_score"),
    ('{"score{": 2, "reasoning": "r"}', "invalid", "no_score"),
    ('{"Score": 2, "reasoning": "r"}', "invalid", "no_score"),
    ('{"reasoning": "r", "score": 7}', "invalid", "out_of_range"),
    ('{"reasoning": "r", "score": 2.99999999999999999999}', "no_json", ""),
    ('{"reasoning": "r", "score": NaN}', "no_json", ""),
    ('{"reasoning": "r", "score": -Infinity}', "no_json", ""),
    ('{"reasoning": "r", "score": 1e999}', "no_json", ""),
    ('{"score": 3}', "invalid", "no_reasoning"),
    ('{"score": 3, "reasoning": " \\u200b"}', "invalid", "no_reasoning"),
    ('{"score": 3, "reasoning": ["a"]}', "invalid", "no_reasoning"),
    ('{"score": 9, "reasoning": "r", "detail": {"score": 3, "reasoning": "r"}}', "invalid", "out_of_range"),
    ('{"a": {"b": {"score": 3, "reasoning": "r"}}}', "invalid", "no_score"),
    ('{"score": 3, "score": 4, "reasoning": "r"}', "ambiguous", ""),
    ('{"score": 3, "reasoning": "a"} {"score": 3, "reasoning": "b"}', "ambiguous", ""),
    ('{"draft": {"score": 3, "reasoning": "a"}, "final": {"score": 4, "rea', "no_json", ""),
]


@pytest.mark.parametrize(("text", "expected", "why"), NO_VERDICTS)
def test_an_unclear_verdict_is_refused_with_the_reason(text, expected, why):
    with pytest.raises(ReplyError) as caught:
        verdict(text)
    assert caught.value.code == expected
    assert caught.value.detail.startswith(why)


def test_the_score_field_is_the_declared_one():
    assert verdict('{"reasoning": "r", "rating": 3}', score_field="rating", high=3).value["score"] == 3
    assert code(verdict, '{"reasoning": "r", "score": 3}', score_field="rating", high=3) == "invalid"
    assert code(verdict, '{"reasoning": "r", "rating": 4}', score_field="rating", high=3) == "invalid"


# --- assignments ---

SHAPES = [
    GOOD,
    GOOD.replace("memory", "id"),
    GOOD.replace("domain", "category"),
    GOOD.replace("1,", '"1",').replace("2,", "2.0,"),
    json.dumps(json.loads(GOOD)["assignments"]),
    json.dumps({"assignments": json.loads(GOOD)["assignments"][::-1]}),
    json.dumps({"result": json.loads(GOOD)}),
    json.dumps({"labels": json.loads(GOOD)["assignments"]}),
    '{"1": "health", "2": "finance"}',
    '{"assignments": {"1": {"domain": "health"}, "2": {"label": "finance", "confidence": 0.9}}}',
    '{"health": [1], "finance": [2], "personal": []}',
    '[{"id": 2, "memory": "Rents.", "domain": "finance"}, {"id": 1, "memory": "5 km a day.", "domain": "health"}]',
    items({"name": "health"}, {"label": "finance", "confidence": 1}),
    items("Health", " FINANCE \n"),
    '[{"domain": "health", "memories": [1]}, {"domain": "finance", "memories": ["2"]}]',
    '{"health": [1], "finance": [2], "notes": "Both are clear.", "sure": 0.9}',
]


@pytest.mark.parametrize("text", SHAPES)
def test_obvious_shapes_are_matched_by_number(text):
    read = sort(text)
    assert read.labels == LABELS
    assert not (read.missing or read.conflicts or read.none or read.bad_labels or read.unknown_ids)


@pytest.mark.parametrize("written", ["m1", "M-1", "memory 1", "Memory #1", "#1", "[1]", "1.", "01"])
def test_decorated_numbers_are_read_and_named(written):
    read = sort(json.dumps({written: "health", "2": "finance"}))
    assert read.labels == LABELS
    assert read.repairs == ("memory number read from text",)


@pytest.mark.parametrize("written", [-1, True, None, 1.5, "-1", "one", "1 and 2", "x1"])
def test_other_numbers_are_unknown(written):
    text = json.dumps([{"memory": written, "domain": "health"}, {"memory": 2, "domain": "finance"}])
    read = sort(text)
    assert read.labels == {"2": "finance"}
    assert read.missing == ("1",)
    assert len(read.unknown_ids) == 1


def test_one_group_may_hold_all():
    assert sort('{"domain": "health", "memories": [1, 2]}').labels == {"1": "health", "2": "health"}
    read = sort('[{"domain": "health", "memories": [1, 2]}, {"domain": "finance", "memories": [2]}]')
    assert (read.labels, read.conflicts) == ({"1": "health"}, ("2",))


@pytest.mark.parametrize(
    "text",
    [
        '{"domain": "health", "memories": ["Runs.", "Rents."]}',
        '{"health": [1], "finance": "2", "notes": "n"}',
        '{"notes": [1, 2], "sure": "health"}',
    ],
)
def test_groups_without_numbers_or_domains_are_refused(text):
    assert code(sort, text) == "invalid"


def test_two_numbers_for_one_memory_are_no_number():
    read = sort('[{"memory": 1, "id": 2, "domain": "health"}, {"memory": 2, "id": "02", "domain": "finance"}]')
    assert (read.labels, read.missing, read.unknown_ids) == ({"2": "finance"}, ("1",), ("'1 or 2'",))


PROBLEMS = [
    ("one left out", items("health"), {"missing": ("2",), "labels": {"1": "health"}}),
    ("empty list", '{"assignments": []}', {"missing": ("1", "2"), "labels": {}}),
    ("null", '{"assignments": null}', {"missing": ("1", "2"), "labels": {}}),
    ("a number too many", items("health", "finance", "health"), {"unknown_ids": ("3",), "labels": LABELS}),
    ("an unknown number", GOOD[:-2] + ', {"memory": 12, "domain": "health"}]}', {"unknown_ids": ("12",)}),
    (
        "twice, two labels",
        GOOD[:-2] + ', {"memory": 1, "domain": "personal"}, {"memory": 1, "domain": null}]}',
        {"conflicts": ("1",), "labels": {"2": "finance"}},
    ),
    ("twice, the same", GOOD[:-2] + ', {"memory": 1, "domain": "Health"}]}', {"conflicts": (), "labels": LABELS}),
    ("plural", items("health", "finances"), {"bad_labels": {"2": "finances"}, "labels": {"1": "health"}}),
    ("beginning", items("health", "fin"), {"bad_labels": {"2": "fin"}}),
    ("with a remark", items("health", "finance (rent)"), {"bad_labels": {"2": "finance (rent)"}}),
    ("translated", items("health", "Finanzen"), {"bad_labels": {"2": "Finanzen"}}),
    ("null label", items("health", None), {"bad_labels": {"2": None}, "none": ()}),
    ("no label", '[{"memory": 1, "domain": "health"}, {"memory": 2}]', {"bad_labels": {"2": None}}),
    ("two labels", items("health", ["finance", "personal"]), {"bad_labels": {"2": ["finance", "personal"]}}),
    ("a number as label", items("health", "3"), {"bad_labels": {"2": "3"}}),
    ("an object as label", items("health", {"a": 1}), {"bad_labels": {"2": None}}),
    ("none of the above", items("health", "None of the above."), {"none": ("2",), "bad_labels": {}}),
    ("unclassified", items("health", "unclassified"), {"none": ("2",), "labels": {"1": "health"}}),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in PROBLEMS], ids=[case[0] for case in PROBLEMS])
def test_every_memory_is_in_exactly_one_state(text, expected):
    read = sort(text)
    assert {name: getattr(read, name) for name in expected} == expected
    states = [*read.labels, *read.missing, *read.conflicts, *read.none, *read.bad_labels]
    assert sorted(states) == ["1", "2"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("12345", "01234"),
        ("01234", "12345"),
        ("12345", "23456"),
        ("12345", "012"),
        ("12345", "012345"),
        ("12345", "6"),
        ("23", "12"),
        ("37", "12"),
        ("37", "01"),
        ("1", "0"),
    ],
)
def test_another_way_of_counting_is_refused(asked, said):
    text = json.dumps([{"memory": int(k), "domain": "health"} for k in said])
    with pytest.raises(ReplyError, match="counts from|number"):
        read_assignments(text, ids=list(asked), labels=MENU)


def test_a_part_of_the_numbers_is_not_a_shift():
    assert read_assignments('{"2": "health"}', ids=["1", "2"], labels=MENU).missing == ("1",)


def test_one_memory_may_be_answered_without_its_number():
    assert sort('{"domain": "health"}', n=1).labels == {"1": "health"}
    assert code(sort, '{"domain": "health"}', n=2) == "invalid"


def test_a_leaf_is_one_label_with_its_domain():
    menu = ("health", "health/sleep")
    text = '[{"memory": 1, "domain": "Health/Sleep"}, {"memory": 2, "domain": "health", "subdomain": "sleep"}]'
    read = read_assignments(text, ids=["1", "2"], labels=menu)
    assert read.labels == {"1": "health/sleep", "2": "health/sleep"}


def test_labels_that_differ_in_case_only_are_matched_exactly():
    read = read_assignments('{"1": "Tea", "2": "tea", "3": "TEA"}', ids=["1", "2", "3"], labels=("Tea", "tea"))
    assert (read.labels, read.bad_labels) == ({"1": "Tea", "2": "tea"}, {"3": "TEA"})


def test_new_labels_are_taken_only_where_allowed():
    text = items("Pets", " health", "x" * 61, "a\nb", {"name": "Pets"}, 7)
    read = sort(text, n=6, allow_new=True)
    assert read.labels == {"1": "Pets", "2": "health", "5": "Pets"}
    assert read.new_labels == ("Pets",)
    assert read.bad_labels == {"3": "x" * 61, "4": "a\nb", "6": 7}
    assert sort(text, n=6).bad_labels["1"] == "Pets"


@pytest.mark.parametrize(
    "name", ["health, finance", "Health/Finance", "health | personal", "finance & health", "health or finance",
             "health and pets & plants", "personal, finance, travel", "health;finance"],
)  # fmt: skip
def test_several_domains_at_once_are_no_new_domain(name):
    read = sort(items("health", name), allow_new=True)
    assert (read.labels, read.bad_labels, read.new_labels) == ({"1": "health"}, {"2": name}, ())


@pytest.mark.parametrize("name", ["health and travel", "finance office", "land/sea", "mind over health", "travel"])
def test_a_new_domain_may_hold_the_name_of_one(name):
    assert sort(items("health", name), allow_new=True).labels["2"] == name


# --- proposals ---


def propose(text):
    return read_proposal(text, domains=MENU)


PLAN = {"health": ["sleep", "diet"], "finance": ["rent"]}


@pytest.mark.parametrize(
    "value",
    [
        {"domains": PLAN},
        {"subcategories": PLAN},
        PLAN,
        {"result": {"domains": PLAN}},
        {"domains": [{"domain": key, "subdomains": names} for key, names in PLAN.items()]},
        {"domains": {" HEALTH": [" sleep ", {"name": "diet"}, "Sleep"], "finance": "rent"}},
        {"domains": {"health": {"sleep": "nights", "diet": "food"}, "finance": ["rent"]}},
    ],
)
def test_a_proposal_is_read(value):
    assert propose(f"Here:\n```json\n{json.dumps(value)}\n```") == PLAN


def test_what_a_proposal_cannot_hold_is_left_out_and_listed():
    text = json.dumps({"domains": {"health": ["a\nb", " ", 3, "x" * 61, "ok"], "travel": ["far"], "personal": None}})
    read = propose(text)
    assert read == {"health": ["ok"], "personal": []}
    assert len(read.left_out) == 5 and any("travel" in what for what in read.left_out)


def test_an_empty_proposal_is_an_answer_and_another_object_is_not():
    assert propose('{"domains": {}}') == {}
    for text in ("{}", "[]", '{"domains": {"travel": ["far"]}}', '{"score": 3}', '{"domains": "health"}'):
        assert code(propose, text) == "invalid"
    assert code(propose, "none") == "no_json"
    assert code(read_proposal, '{"domains": {}}', domains=MENU, finish_reason="length") == "truncated"


# --- anything ---

READERS = [
    lambda text: read_json(text),
    lambda text: read_json(text, accept=lambda value: value),
    lambda text: verdict(text),
    lambda text: sort(text),
    lambda text: sort(text, n=1, allow_new=True),
    lambda text: propose(text),
]
PARTS = st.sampled_from(
    [
        *"{}[]:,\"'/*\\`<> \n01-.eéx",
        "<think>",
        "</think>",
        "<reasoning>",
        "//",
        "/*",
        "*/",
        "```",
        '{"',
        '"}',
        "null",
        "True",
    ]
    + ["NaN", '"score"', '"reasoning"', '"assignments"', '"memory"', '"domain"', '"health"', "\\ud83d", "\ud83d", GOOD]
)
NOISE = st.one_of(st.text(st.characters(), max_size=40), st.lists(PARTS, max_size=25).map("".join))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["health", "1", "m1", "{}", "[1]"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["assignments", "memory", "domain", "score", "reasoning", "domains", "1", "health"]), inner
        )
    ),
    max_leaves=10,
)


@settings(max_examples=250, deadline=None)
@given(NOISE | VALUES.map(json.dumps))
def test_no_text_raises_anything_but_a_reply_error(text):
    for reader in READERS:
        try:
            reader(text)
        except ReplyError as error:
            assert error.code in ("no_text", "no_json", "ambiguous", "invalid")
    visible, reasoning = split_reasoning(text)
    assert reasoning is None or reasoning.strip()


PROSE = st.text(st.characters(exclude_characters="{}[]<>◁▷`", exclude_categories=["Cs"]), max_size=30)
NAMES = st.sampled_from(MENU)


@settings(max_examples=100, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=6), PROSE, PROSE, st.sampled_from([None, 2]), st.booleans(), st.data())
def test_a_valid_reply_reads_the_same_in_any_prose(names, before, after, indent, fenced, data):
    order = data.draw(st.permutations(range(1, len(names) + 1)))
    text = json.dumps({"assignments": [{"memory": k, "domain": names[k - 1]} for k in order]}, indent=indent)
    if fenced:
        text = f"\n```json\n{text}\n```\n"
    read = sort(f"{before}{text}{after}", n=len(names))
    assert read == Assignments({str(k): name for k, name in enumerate(names, 1)})


@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1, max_size=30), st.integers(1, 5), PROSE, PROSE, st.booleans())
def test_a_valid_verdict_reads_the_same_in_any_prose(reasoning, score, before, after, ascii_only):
    assume(any(c.isalnum() for c in reasoning) and reasoning.isprintable())
    said = {"reasoning": reasoning, "score": score}
    assert verdict(f"{before}{json.dumps(said, ensure_ascii=ascii_only)}{after}").value == said


BIG = 200_000
HOSTILE = [
    "{",
    "[",
    '{"',
    "[{",
    '{"a":',
    "{'",
    '"\\',
    "{/*",
    "[//",
    "```\n",
    "<think>",
    "</think>",
    "< ",
    "{ ",
    "\n",
    "{} ",
]
HOSTILE += ['{"a" x} ', "[1] ", '{"<think>', '{"<think></think>', '{"a":1,"a":1} ', '{"memory":1,"domain":"q"} ', "[1,"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_hostile_text_is_read_to_its_end(piece):
    text = piece * (BIG // len(piece))  # a reader that is not linear in it takes minutes
    for reader in (sort, verdict):
        assert code(reader, text) in ("no_text", "no_json", "ambiguous", "invalid")
    visible, reasoning = split_reasoning(text)
    assert len(visible) + len(reasoning or "") <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 900 + "1" + "}" * 900,
        '{"assignments": [{"memory": 1, "domain": ' + "[" * 500 + "]" * 500 + "}]}",
        '{"memory": ' + "9" * 100_000 + ', "domain": "health"}',
        '{"score": 1e99999999999999999999, "reasoning": "r"}',
        '{"score": 3.' + "0" * 100_000 + ', "reasoning": "r"}',
        '{"assignments": [' + ",".join(f'{{"memory": 1, "domain": "d{k}"}}' for k in range(9000)) + "]}",
    ],
)
def test_deep_or_huge_values_are_refused_or_read_without_a_crash(text):
    for reader in READERS:
        try:
            reader(text)
        except ReplyError:
            pass
