"""What a reply selects: numbers and names; a reply that cannot be understood is never half understood."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structmem.replytext import ReplyError
from structmem.selections import read_names, read_numbers

MENU = ("health", "finance", "social")


@pytest.mark.parametrize(
    "reply, chosen, unknown",
    [
        ('{"memories": [2, 5]}', (2, 5), ()),
        ('```json\n{"memories": [5, 2, 5]}\n```', (5, 2), ()),
        ('<think>{"memories": [1]}</think>[{"memories": [2]}]', (2,), ()),
        ('{"memories": ["2", "memory 3", "#4", "5."]}', (2, 3, 4, 5), ()),
        ('{"memories": [{"memory": 2}, 3.0]}', (2, 3), ()),
        ('{"memories": []}', (), ()),
        ('{"memories": null}', (), ()),
        ('{"memories": "None."}', (), ()),
        ('{"memories": ["none"]}', (), ()),
        ('{"memories": [2, 77, "the cello", true]}', (2,), ("77", "'the cello'", "true")),
    ],
)
def test_numbers(reply, chosen, unknown):
    said = read_numbers(reply, numbers=(1, 2, 3, 4, 5))
    assert (said.chosen, said.unknown) == (chosen, unknown)


@pytest.mark.parametrize(
    "reply, code, detail",
    [
        ('{"memories": [0, 1]}', "invalid", "memories"),
        ('{"memories": [6, 7]}', "invalid", "memories"),
        ('{"memories": 2}', "invalid", "found 2"),
        ('{"memories": {"1": true}}', "invalid", "memories"),
        ('{"irrelevant": [2]}', "invalid", "expected an object with a list in 'memories'"),
        ("[2, 5]", "invalid", "expected an object with a list in 'memories'"),
        ('{"memories": [{"not": 2}]}', "invalid", "memories"),
        ("Memories 2 and 5 matter.", "no_json", "only prose"),
        ('{"memories": [1]} or {"memories": [2]}', "ambiguous", "2 different"),
        ("", "no_text", "finish_reason"),
        (None, "no_text", "finish_reason"),
    ],
)
def test_numbers_that_cannot_be_read(reply, code, detail):
    with pytest.raises(ReplyError, match=detail) as caught:
        read_numbers(reply, numbers=(1, 2, 3, 4, 5))
    assert caught.value.code == code


def test_numbers_of_other_requests_are_passed_over():
    said = read_numbers('{"memories": [3, 1, 9]}', numbers=(3, 4), others=range(1, 5))
    assert said.chosen == (3,) and said.unknown == ("9",)
    assert read_numbers('{"memories": [1]}', numbers=(3, 4), others=range(1, 5)).chosen == ()
    with pytest.raises(ReplyError) as caught:
        read_numbers('{"memories": [1', numbers=(1,), finish_reason="length")
    assert caught.value.code == "truncated"


@pytest.mark.parametrize(
    "reply, chosen, unknown",
    [
        ('{"domains": ["finance", "health"]}', ("finance", "health"), ()),
        ('{"domains": [" HEALTH "]}', ("health",), ()),
        ('{"domains": [{"domain": "social"}, "heal", 3]}', ("social",), ("'heal'", "3")),
        ('{"domains": ["social", "social"]}', ("social",), ()),
        ('{"domains": []}', (), ()),
        ('{"domains": "none"}', (), ()),
    ],
)
def test_names(reply, chosen, unknown):
    said = read_names(reply, menu=MENU, key="domains")
    assert (said.chosen, said.unknown) == (chosen, unknown)


@pytest.mark.parametrize("reply", ['{"domains": ["work"]}', '{"domains": "health"}', '{"parts": ["health"]}', "health"])
def test_names_that_cannot_be_read(reply):
    with pytest.raises(ReplyError):
        read_names(reply, menu=MENU, key="domains")


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 40))
def test_what_is_chosen_was_asked(said, n):
    asked = range(1, n + 1)
    try:
        read = read_numbers(json.dumps({"memories": said}), numbers=asked)
    except ReplyError:
        assert said and not set(said) & set(asked)
    else:
        assert read.chosen == tuple(dict.fromkeys(k for k in said if k in asked))
        assert set(read.unknown) == {str(k) for k in said if k not in asked}
