"""The request key: what changes it, what does not, and that it never changes by itself."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structmem import calls
from structmem.calls import Request, canonical, model_identity, model_label, request_key
from structmem.errors import InputError

MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Café or tea? 🫖"})


def base(**changes):
    parts = {
        "model": "openrouter/acme/model-1", "messages": MESSAGES, "role": "answer",
        "params": {"temperature": 1.0, "max_tokens": 128, "top_p": None},
        "options": {"extra_body": {"provider": {"order": ["x"]}}, "api_base": "http://127.0.0.1:1/v1"},
    }  # fmt: skip
    return Request(**parts | changes)


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_golden_key():
    """If this fails, every stored and recorded call is lost: do not change the number, change the code back."""
    assert request_key(base()) == "1d5e8297d1437a8a360e02ac721e75ab8a730a3d3024b168a962ee5a316e837e"


def test_key_by_hand():
    parts = [
        "acme/model-1",
        [["system", sha("Be brief.")], ["user", sha("Café or tea? 🫖")]],
        sha('{"max_tokens":128,"temperature":1}'),
        sha('{"extra_body":{"provider":{"order":["x"]}}}'),
        "answer", 0, 0, 0,
    ]  # fmt: skip
    assert request_key(base()) == sha("k1\n" + json.dumps(parts, separators=(",", ":")))


@pytest.mark.parametrize(
    "change",
    [
        {"model": "openrouter/acme/model-2"},
        {"messages": MESSAGES[::-1]},
        {"messages": MESSAGES[:1]},
        {"messages": ({"role": "user", "content": "Be brief."}, MESSAGES[1])},
        {"messages": (MESSAGES[0], {"role": "user", "content": "Cafe\u0301 or tea? 🫖"})},  # no normalisation
        {"messages": (MESSAGES[0], {"role": "user", "content": "Café or tea? 🫖 "})},
        {"messages": (MESSAGES[0], MESSAGES[1] | {"name": "ann"})},
        {"role": "judge"},
        {"params": {"temperature": 0.9, "max_tokens": 128}},
        {"params": {"temperature": 1.0, "max_tokens": 128, "seed": 0}},
        {"params": {"temperature": True, "max_tokens": 128}},
        {"params": {"max_tokens": 128}},
        {"params": {"temperature": 1.0, "max_tokens": 128, "reasoning_effort": "high"}},
        {"params": {"temperature": 1.0, "max_tokens": 128, "response_format": {"type": "json_object"}}},
        {"options": {"extra_body": {"provider": {"order": ["y"]}}}},
        {"options": {"extra_body": {"provider": {"order": ["x"]}}, "num_ctx": 2048}},
        {"options": {"extra_body": {"provider": {"order": ["x"]}}, "drop": ["temperature"]}},
        {"options": {}},
        {"generation": 1},
        {"replicate": 1},
        {"attempt": 1},
    ],
)
def test_every_part_changes_the_key(change):
    assert request_key(base(**change)) != request_key(base())


EXTRA = {"extra_body": {"provider": {"order": ["x"]}}}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "acme/acme/model-1"},
        {"options": EXTRA | {"api_base": "http://elsewhere:2/v1", "base_url": "http://third"}},
        {"options": EXTRA | {"api_key": "sk-secret", "api_version": "2026", "organization": "o", "port": 3}},
        {"options": EXTRA | {"timeout": 5, "headers": {"a": "b"}, "extra_headers": {"c": "d"}}},
        {"options": EXTRA | {"aws_secret_access_key": "x", "azure_ad_token": "y", "n": 1}},
        {"options": {"extra_body": {"provider": {"order": ["x"]}, "api_key": "sk-nested"}}},
        {"options": EXTRA | {"nothing": None}},
        {"params": {"max_tokens": 128.0, "temperature": 1}},
        {"params": {"temperature": 1.0, "max_tokens": 128, "n": 3}},
        {"messages": list(MESSAGES)},
        {"messages": tuple({"content": m["content"], "role": m["role"]} for m in MESSAGES)},
        {"memories": ("likes tea",)},
        {"tags": {"entry_id": "e1"}},
    ],
)
def test_what_is_no_part_of_the_key(change):
    assert request_key(base(**change)) == request_key(base())


@given(
    st.dictionaries(
        st.text(), st.one_of(st.integers(), st.booleans(), st.text(), st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_canonical_is_json_in_any_order(values):
    shuffled = dict(reversed(values.items()))
    assert canonical(values) == canonical(shuffled)
    assert json.loads(canonical(values)) == values


def test_numbers():
    assert canonical([0, 0.0, -0.0, 2.0, 0.1]) == "[0,0,0,2,0.1]"
    for wrong in (float("nan"), float("inf"), {1: 2}, object(), b"x"):
        with pytest.raises(InputError):
            canonical(wrong)


def test_bad_requests_say_where():
    with pytest.raises(InputError, match="role must be one of .* got 'chat'"):
        base(role="chat")
    with pytest.raises(InputError, match="Message 2 of the answer request is blank"):
        base(messages=(MESSAGES[0], {"role": "user", "content": " \n"}))
    with pytest.raises(InputError, match="at least one message"):
        base(messages=())
    with pytest.raises(InputError, match="generation must be a whole number"):
        base(generation=1.0)
    with pytest.raises(InputError, match="half a surrogate pair at character 2"):
        request_key(base(messages=({"role": "user", "content": "ab\ud83d"},)))


def named(messages):
    return "x"


def test_callable_identity():
    def local_function(messages):
        return "x"

    class Model:
        def __call__(self, messages):
            return "x"

    assert model_identity(named).startswith("callable:named@")
    assert model_identity(named) == model_identity(named)
    for nameless in (lambda messages: "x", local_function, functools.partial(named), Model(), Model().__call__):
        with pytest.raises(InputError, match="has no lasting name"):
            model_identity(nameless)
    local_function.model_id = "mine-1"
    model = Model()
    model.model_id = "mine-1"
    assert model_identity(local_function) == model_identity(model) == "callable:mine-1"
    local_function_2 = replace  # any other function
    assert model_identity(local_function_2) != model_identity(named)


def test_edited_function_is_another_model(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for number, body in enumerate(("'a'", "'b'")):
        (tmp_path / f"edited_{number}.py").write_text(f"def model(messages):\n    return {body}\n", encoding="utf-8")
        names.append(model_identity(__import__(f"edited_{number}").model))
    assert names[0] != names[1]


def test_local_model_is_its_file(monkeypatch):
    calls._local_sha256.cache_clear()
    from structmem import local

    monkeypatch.setattr(local, "model_sha256", lambda model_id: "ab" * 32)
    assert model_identity("local/some.gguf") == "sha256:" + "ab" * 32
    assert model_label("local/deep/folder/some.gguf") == "local/some.gguf"
    calls._local_sha256.cache_clear()


def test_replay_needs_no_model_file(monkeypatch):
    """Recorded calls of the built-in model are found where the model is not installed."""
    from structmem import local
    from structmem.errors import SetupError

    def gone(model_id):
        raise SetupError("not installed")

    calls._local_sha256.cache_clear()
    monkeypatch.setattr(local, "model_sha256", gone)
    assert model_identity("local/smollm2") == f"sha256:{local.SMOLLM2_SHA256}"
    with pytest.raises(SetupError):
        model_identity("local/other.gguf")
    calls._local_sha256.cache_clear()
