"""transport, responses and cut: what is sent, and what is read of every shape of reply, through the real litellm."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import transport
from structmem.addresses import at_home, on_this_machine, server_address, shown
from structmem.background import run_sync
from structmem.calls import Request, request_key
from structmem.cut import LEAST, NO_COUNT, cut_prompt, least_tokens
from structmem.errors import InputError, SetupError
from structmem.failures import Failure
from structmem.prices import cache_minimum, price
from structmem.responses import Reply, from_json, read_replies, share

# litellm's import is told to be quiet about its own types, and pytest forgets that after the first test.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

KEY = "sk-SYNTHETIC-000000"
ROUTES = ("openai", "hosted_vllm")
LONG = "A judge reads the answer and the memories. " * 700  # 5,600 words


def completion(model, content="fine", finish="stop", usage=None, **message):
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content} | message}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} if usage is None else usage,
    }  # fmt: skip


THINKS = {"type": "thinking", "thinking": "she said it in confidence"}
# The model's name chooses the reply: (message or whole body).
REPLIES = {
    "blocks": completion("blocks", [THINKS, {"type": "text", "text": "tea, please"}]),
    "two-texts": completion("two-texts", [{"type": "text", "text": "tea, "}, {"type": "text", "text": "please"}]),
    "only-thinking-block": completion("only-thinking-block", [THINKS]),
    "tags": completion("tags", "<think>in confidence</think>tea"),
    "unclosed": completion("unclosed", "<think>in confidence, tea"),
    "orphan": completion("orphan", "in confidence</think>tea"),
    "field": completion("field", "tea", reasoning_content="in confidence"),
    "other-field": completion("other-field", "tea", reasoning="in confidence"),
    "thinking-blocks": completion("thinking-blocks", "tea", thinking_blocks=[THINKS | {"signature": "x"}]),
    "details": completion("details", "tea", reasoning_details=[{"type": "reasoning.text", "text": "in confidence"}]),
    "no-content": completion("no-content", None),
    "no-message": completion("no-message") | {"choices": [{"index": 0, "finish_reason": "stop"}]},
    "blank": completion("blank", " \n\u200b "),
    "spent": completion("spent", None, "length", reasoning_content="in confidence"),
    "filter": completion("filter", None, "content_filter"),
    "refuses": completion("refuses", None, refusal="I can't do that."),
    "no-choice": completion("no-choice") | {"choices": []},
    "page": "<html>welcome to the proxy</html>",
    "uncounted": completion("uncounted", usage={}),
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append((self.path, body))
        status, out = self.answer(body.get("model", ""), body)
        data = out if isinstance(out, bytes) else json.dumps(out).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, model, body):
        if self.path.endswith("/messages"):  # the shape of Anthropic
            return 200, {
                "id": "m1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn",
                "content": [THINKS | {"signature": "x"}, {"type": "text", "text": "tea"}],
                "usage": {"input_tokens": 12, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 50,
                          "output_tokens": 5},
            }  # fmt: skip
        if self.path != self.server.path:
            return 404, {"error": {"message": "Not Found"}}
        if model == "half":
            return 200, json.dumps(completion(model)).encode()[:60]
        if model == "refuses-n" and body.get("n", 1) > 1:
            return 400, {"error": {"message": "'n' must be 1", "code": "unsupported_value"}}
        if model == "hot" and body.get("temperature", 1) != 1:
            said = "Unsupported value: 'temperature' does not support 0 here. Only the default (1) is supported."
            return 400, {"error": {"message": said, "param": "temperature", "code": "unsupported_value"}}
        if model in REPLIES:
            return 200, REPLIES[model]
        out = completion(model)
        if model.startswith("reads"):
            out["usage"]["prompt_tokens"] = int(model.removeprefix("reads-"))
        if model.startswith("gives"):
            out["choices"] = out["choices"] * min(int(model.removeprefix("gives-")), body.get("n", 1))
            out["choices"] = [choice | {"index": k} for k, choice in enumerate(out["choices"])]
            out["usage"] = {"prompt_tokens": 100, "completion_tokens": 31, "total_tokens": 131}
        return 200, out


@pytest.fixture(scope="module")
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.bodies, httpd.path = [], "/v1/chat/completions"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    httpd.host = f"http://127.0.0.1:{httpd.server_address[1]}"
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def ask(server):
    server.bodies.clear()

    def ask(model, texts="question", n=1, **fields):
        asked = request(model, texts, **{"options": {"api_base": f"{server.host}/v1", "api_key": KEY}} | fields)

        async def run():
            target = await transport.find_target(asked)
            sent = transport.sent_parameters(asked)
            ask.sent = sent
            return await transport.complete(asked, target, sent, 20, n=n)

        return run_sync(run())

    return ask


def request(model, texts="question", **fields):
    texts = [texts] if isinstance(texts, str) else texts
    messages = [{"role": "user", "content": texts[-1]}]
    messages = [{"role": "system", "content": text} for text in texts[:-1]] + messages
    return Request(model, tuple(messages), **{"role": "answer", "params": {"temperature": 0.5}} | fields)


# -- what came back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("model", ["blocks", "two-texts"])
def test_a_content_of_blocks_is_read(ask, server, route, model):
    """litellm itself calls such a body a server's error, after which it would be asked, and paid for, again."""
    reply = ask(f"{route}/{model}")
    assert reply.text == "tea, please" and reply.reason is None and reply.served_model == model
    assert reply.reasoning == ("she said it in confidence" if model == "blocks" else None)
    assert (reply.input_tokens, reply.output_tokens, reply.finish_reason) == (10, 5, "stop")
    assert len(server.bodies) == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "model", ["tags", "unclosed", "orphan", "field", "other-field", "thinking-blocks", "details", "only-thinking-block"]
)
def test_thinking_is_never_in_the_visible_text(ask, route, model):
    reply = ask(f"{route}/{model}")
    assert "confidence" in reply.reasoning and "confidence" not in (reply.text or "")
    if model in ("unclosed", "only-thinking-block"):
        assert reply.reason == "empty" and "only reasoning" in reply.detail
    else:
        assert reply.text == "tea" and reply.reason is None


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("model", "reason", "said"),
    [
        ("no-content", "empty", "no text at all (finish_reason 'stop')"),
        ("no-message", "empty", "no text at all"),
        ("blank", "empty", "only blanks (finish_reason 'stop')"),
        ("spent", "empty", "only reasoning (finish_reason 'length')"),
        ("no-choice", "empty", "no choice at all"),
        ("filter", "filtered", "content filter"),
        ("refuses", "refused", "I can't do that."),
    ],
)
def test_each_reply_without_text_has_its_own_reason(ask, route, model, reason, said):
    reply = ask(f"{route}/{model}")
    assert reply.reason == reason and said in reply.detail and not (reply.text or "").strip(" \n\u200b")
    assert reply.input_tokens == 10  # it is paid for


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("model", ["page", "half"])
def test_what_is_no_completion_may_be_a_hiccup(ask, route, model):
    failure = ask(f"{route}/{model}")
    assert isinstance(failure, Failure) and (failure.reason, failure.retry, failure.setup) == ("error", True, False)


@pytest.mark.parametrize("route", ROUTES)
def test_an_error_inside_a_reply_keeps_its_meaning(ask, monkeypatch, route):
    for code, retry in ((400, False), (502, True)):
        monkeypatch.setitem(REPLIES, "inside", {"error": {"message": "no luck", "code": code}, "choices": []})
        failure = ask(f"{route}/inside")
        assert isinstance(failure, Failure) and "no luck" in failure.detail and failure.retry is retry


def test_counts_that_a_server_does_not_report_are_unknown(ask):
    for route in ROUTES:
        reply = ask(f"{route}/uncounted")
        assert (reply.text, reply.input_tokens, reply.output_tokens, reply.cached_tokens) == ("fine", None, None, None)


def test_an_unknown_price_is_unknown_and_never_nothing(ask):
    for model in ("hosted_vllm/mine", "openai/mine", "openrouter/acme/mine"):
        reply = ask(model)
        assert reply.text == "fine" and reply.cost_usd is None
    known = ask("openai/gpt-4o-mini")
    assert known.cost_usd == pytest.approx(10 * 0.15e-6 + 5 * 0.6e-6)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cached_tokens": 8}},
        {"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2},
        {"cache_read_input_tokens": 8},
        {"cached_tokens": 8},
    ],
    ids=["openai", "deepseek", "anthropic", "flat"],
)
def test_cached_tokens_in_every_form(ask, monkeypatch, usage):
    counted = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} | usage
    monkeypatch.setitem(REPLIES, "caches", completion("caches", usage=counted))
    for route in ROUTES:
        reply = ask(f"{route}/caches")
        assert (reply.input_tokens, reply.cached_tokens) == (10, 8)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("native", ["model_length", "max_tokens", "MAX_TOKENS", "length"])
def test_a_cut_answer_is_never_said_to_be_complete(ask, monkeypatch, route, native):
    """litellm calls reasons that it does not know, such as Mistral's, "stop"."""
    monkeypatch.setitem(REPLIES, "cut", completion("cut", "half an ans", native))
    reply = ask(f"{route}/cut")
    assert (reply.text, reply.finish_reason, reply.reason) == ("half an ans", "length", None)


@pytest.mark.parametrize("route", ROUTES)
def test_an_answer_that_the_provider_broke_off_is_asked_for_again(ask, monkeypatch, route):
    died = completion("dies", "half an ans", "error")
    died["choices"][0]["error"] = {"code": 502, "message": "upstream died"}
    monkeypatch.setitem(REPLIES, "dies", died)
    monkeypatch.setitem(REPLIES, "aborts", completion("aborts", "half an ans", "abort"))
    for model, said in (("dies", "upstream died"), ("aborts", "finish_reason 'abort'")):
        failure = ask(f"{route}/{model}")
        assert isinstance(failure, Failure) and failure.retry and said in failure.detail
    # Of several, those that are whole are kept.
    died["choices"] = [*completion("dies")["choices"], died["choices"][0] | {"index": 1}]
    assert [reply.text for reply in ask(f"{route}/dies", n=2)] == ["fine"]


# -- several choices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gives", "input_tokens", "output_tokens"),
    [(3, [34, 33, 33], [11, 10, 10]), (2, [50, 50], [16, 15]), (1, [100], [31])],
)
def test_several_choices_in_one_request(ask, server, gives, input_tokens, output_tokens):
    replies = ask(f"hosted_vllm/gives-{gives}", n=3)
    assert server.bodies[0][1]["n"] == 3 and ask.sent == {"temperature": 0.5}
    assert [reply.text for reply in replies] == ["fine"] * gives
    assert [reply.input_tokens for reply in replies] == input_tokens
    assert [reply.output_tokens for reply in replies] == output_tokens


def test_a_refused_n_is_a_failure_that_names_it(ask):
    failure = ask("hosted_vllm/refuses-n", n=2)
    assert isinstance(failure, Failure) and "'n' must be 1" in failure.detail and not failure.retry


def test_who_takes_n():
    takes = lambda model, route, **options: transport.takes_n(  # noqa: E731
        request(model, options=options), transport.Target(model, model, route, {})
    )
    assert takes("openai/gpt-4o", "openai") and takes("hosted_vllm/mine", "hosted_vllm")
    assert not takes("anthropic/claude-sonnet-4-5", "anthropic") and not takes("ollama/x", "ollama")
    assert not takes("openai/gpt-4o", "openai", n=1) and not takes("local/smollm2", "local")


@given(
    st.integers(1, 7),
    st.dictionaries(st.sampled_from(["input_tokens", "output_tokens"]), st.none() | st.integers(0, 10**6)),
    st.none() | st.floats(0, 100),
)
def test_shares_add_up(number, tokens, cost):
    shared = share([Reply(str(k)) for k in range(number)], tokens | {"cost_usd": cost})
    for name, total in tokens.items():
        parts = [getattr(reply, name) for reply in shared]
        assert parts == [None] * number if total is None else sum(parts) == total and max(parts) - min(parts) < number
    costs = [reply.cost_usd for reply in shared]
    assert costs == [None] * number if cost is None else sum(costs) == pytest.approx(cost)
    assert [reply.text for reply in shared] == [str(k) for k in range(number)]


# -- cut prompts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_that_the_server_cut_is_too_long(ask, route):
    reply = ask(f"{route}/reads-2048", [LONG, "question"])
    assert reply.reason == "too_long" and "2048 prompt tokens" in reply.detail and "context window" in reply.detail
    least = int(0.75 * (8 * 700 + 1))
    assert f"at least {least - 1}" in reply.detail or f"at least {least}" in reply.detail
    for enough in (0, 6000, 7000):
        assert ask(f"{route}/reads-{enough}", [LONG, "question"]).reason is None


def test_tokens_from_a_cache_count_as_read():
    def reason(adds, **usage):
        response = from_json(json.dumps(completion("m", usage=usage)))
        return read_replies(response, "x", texts=[LONG], adds_cached=adds)[0].reason

    cached = {"prompt_tokens_details": {"cached_tokens": 5000}}
    assert reason(False, prompt_tokens=900) == "too_long"
    assert reason(False, prompt_tokens=900, **cached) is None  # more than all: they stand beside
    beside = {"prompt_tokens": 3000, "prompt_tokens_details": {"cached_tokens": 2500}}
    assert reason(True, **beside) is None and reason(False, **beside) == "too_long"


def tokenizers():
    """Real tokenizers that litellm brings along."""
    import litellm
    import tiktoken
    from tokenizers import Tokenizer

    folder = Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers"
    before, os.environ["TIKTOKEN_CACHE_DIR"] = os.environ.get("TIKTOKEN_CACHE_DIR"), str(folder)
    try:
        found = [tiktoken.get_encoding(name).encode_ordinary for name in ("cl100k_base", "o200k_base")]
    finally:
        os.environ.pop("TIKTOKEN_CACHE_DIR") if before is None else os.environ.update(TIKTOKEN_CACHE_DIR=before)
    claude = Tokenizer.from_file(str(folder / "anthropic_tokenizer.json"))
    return [*found, lambda text: claude.encode(text).ids]


TEXTS = {
    "English": "The user moved to Lyon in May, isn't fond of crowds and doesn't drink coffee after 4 p.m. ",
    "Japanese": "私は昨日、友達と新しい店に行きました。健康のために毎朝三十分歩くことにしています。",
    "Chinese": "我昨天和朋友去了一家新餐馆，菜很好吃，价格也合理。中华人民共和国国务院。",
    "Hindi": "मैं कल अपने दोस्तों के साथ एक नए रेस्तरां में गया था, खाना बहुत स्वादिष्ट था। ",
    "Thai": "เมื่อวานฉันไปร้านอาหารใหม่กับเพื่อน อาหารอร่อยมากและราคาไม่แพง ",
    "Arabic": "ذهبت أمس مع أصدقائي إلى مطعم جديد وكان الطعام لذيذا جدا. ",
    "Korean": "저는 어제 친구들과 함께 새로운 식당에 갔습니다. 음식이 아주 맛있었습니다. ",
    "code": "    for name, value in sorted(self.items()):\n        total_sum += value['n_entries'] * 2.5e-3\n",
    "spaces": " " * 500, "lines": "\n" * 300, "rule": "=" * 400 + "\n", "table": "| --- | --- |\n",
    "letters": "a" * 300, "laughter": "哈" * 200 + "w" * 200, "short words": "a b c d 1 2 3 ", "cells": "\t\t x",
    "phrase": "in accordance with the terms and conditions of this agreement, including but not limited to ",
    "emoji": "😀🎉👩‍👩‍👧 ", "base64": "QmFzZTY0IGVuY29kZWQgdGV4dA==", "addresses": "https://www.example.com/a/b_c?d=e ",
}  # fmt: skip


def test_no_real_tokenizer_stays_below_the_bound():
    for encode in tokenizers():
        for name, text in TEXTS.items():
            text *= 40
            assert least_tokens(text) <= len(encode(text)), name


@settings(deadline=None, max_examples=30)
@given(st.text(st.sampled_from("aB1é漢かกक़ि ' .,_-=\n\t😀"), max_size=80), st.integers(1, 30))
def test_no_real_tokenizer_stays_below_the_bound_for_odd_texts(text, times):
    _TOKENIZERS.extend([] if _TOKENIZERS else tokenizers())
    for encode in _TOKENIZERS:
        # A quarter of a token for a character can exceed one token for a short word: the bound is for long prompts.
        assert least_tokens(text * times) <= len(encode(text * times)) + 1


_TOKENIZERS: list = []


def test_short_prompts_and_unknown_counts_are_let_through():
    words = "word " * (int(LEAST / 0.75) - 10)
    assert cut_prompt([words], 130) is None and cut_prompt([words * 2], 130) is not None
    assert not any(cut_prompt([LONG], unknown) for unknown in (None, 0, NO_COUNT - 1))
    assert cut_prompt([], 5) is None


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_the_judges_system_message_is_kept_by_providers_that_must_be_asked(ask, server):
    options = {"api_base": server.host, "api_key": KEY}
    mark = {"cache_control_injection_points": [{"location": "message", "role": "system"}]}
    reply = ask("anthropic/claude-sonnet-4-5", [LONG, "q"], role="judge", options=options)
    path, body = server.bodies[-1]
    assert path == "/v1/messages" and body["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in json.dumps(body["messages"]) and ask.sent == {"temperature": 0.5} | mark
    assert (reply.text, reply.reasoning) == ("tea", "she said it in confidence")
    # Anthropic reports them apart, and litellm adds them up.
    assert (reply.input_tokens, reply.cached_tokens) == (962, 900)
    ask("openrouter/anthropic/claude-sonnet-4.5", [LONG, "q"], role="classifier")
    assert server.bodies[-1][1]["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("model", "role", "system"),
    [
        ("anthropic/claude-sonnet-4-5", "answer", LONG),  # few calls share it
        ("anthropic/claude-sonnet-4-5", "judge", "short"),
        ("anthropic/claude-3-haiku-of-unknown-date", "judge", LONG),
        ("openai/gpt-4o", "judge", LONG),
        ("hosted_vllm/claude-like", "judge", LONG),
        ("deepseek/deepseek-chat", "judge", LONG),
    ],
)
def test_nobody_else_is_asked_to_keep_anything(model, role, system):
    assert transport.sent_parameters(request(model, [system, "q"], role=role)) == {"temperature": 0.5}


def test_keeping_the_prompt_is_no_part_of_the_key():
    asked = request("anthropic/claude-sonnet-4-5", [LONG, "q"], role="judge")
    elsewhere = request("openrouter/claude-sonnet-4-5", [LONG, "q"], role="judge")
    assert request_key(asked) == request_key(elsewhere)


@pytest.mark.parametrize(
    "blank", ["\u200b", " \u2060\n", [{"type": "text", "text": "a"}, {"type": "text", "text": " "}]]
)
def test_no_blank_text_is_ever_sent(blank):
    with pytest.raises(InputError, match="Message 2 of the answer request holds a text of blanks"):
        transport.sent_parameters(
            Request("m", ({"role": "system", "content": "a"}, {"role": "user", "content": blank}), "answer")
        )


@pytest.mark.parametrize("model", ["openai/hot", "hosted_vllm/hot", "openai/gpt-5-mini", "openai/o3"])
def test_a_refused_temperature_is_named_with_its_value(ask, model):
    failure = ask(model, params={"temperature": 0.0})
    assert isinstance(failure, Failure) and not failure.retry and not failure.setup
    assert "temperature=0.0" in failure.detail and "drop" in failure.detail and ask.sent == {"temperature": 0.0}


def test_what_litellm_leaves_out_is_not_said_to_be_sent(ask, monkeypatch):
    """A stand-in for a release that drops a parameter without a word."""
    litellm = transport.load_litellm()
    real = litellm.acompletion

    async def forgetful(**fields):
        fields.pop("temperature")
        return await real(**fields)

    monkeypatch.setattr(litellm, "acompletion", forgetful)
    assert ask("hosted_vllm/plain", params={"temperature": 0.0, "max_tokens": 9}).text == "fine"
    assert ask.sent == {"max_tokens": 9}


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("end", ["/v1", "/v1/", "", "/", "/v1/chat/completions", "/v1/chat/completions/", "/v1/models"])
def test_every_usual_form_of_an_address_works(ask, server, route, end):
    assert ask(f"{route}/plain", options={"api_base": server.host + end, "api_key": KEY}).text == "fine"
    assert [path for path, _ in server.bodies] == ["/v1/chat/completions"]


def test_a_wrong_path_is_said_with_the_url(ask, server):
    failure = ask("openai/plain", options={"api_base": server.host + "/v2", "api_key": KEY})
    assert failure.setup and f"{server.host}/v2/chat/completions" in failure.detail and "/v1" in failure.detail


def test_an_argument_beats_the_environment_and_two_variables_must_agree(ask, server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert ask("openai/plain").text == "fine"
    monkeypatch.setenv("OPENAI_BASE_URL", server.host)
    assert ask("openai/plain", options={"api_key": KEY}).text == "fine" and len(server.bodies) == 2
    monkeypatch.setenv("OPENAI_API_BASE", f"{server.host}/v1/")  # another way to write the same
    assert ask("openai/plain", options={"api_key": KEY}).text == "fine"
    monkeypatch.setenv("OPENAI_API_BASE", "https://user:pa55word@elsewhere.example/v1")
    with pytest.raises(SetupError, match="name different servers") as caught:
        ask("openai/plain", options={"api_key": KEY})
    assert "pa55word" not in str(caught.value)


def test_addresses():
    address = lambda route, base: server_address("m", route, base)  # noqa: E731
    # A bare host of a stranger may have its interface at the root.
    assert address("openai", "https://models.example.com") == "https://models.example.com"
    assert address("hosted_vllm", "https://gpu.example.com") == "https://gpu.example.com/v1"
    assert address("openai", "http://gpu-box:8000/") == "http://gpu-box:8000/v1"
    assert address("openai", "https://h.example/openai/deployments/x") == "https://h.example/openai/deployments/x"
    assert address("azure", "https://h.example/x?api-version=1") == "https://h.example/x?api-version=1"
    with pytest.raises(InputError, match="must end before"):
        address("openai", "https://h.example/v1?key=secretsecret")
    for wrong in ("127.0.0.1:9/v1", "not a url", "http://[::1/v1", 5, "http://h:port/"):
        with pytest.raises(InputError, match="must be like 'http://HOST:PORT/v1'"):
            address("openai", wrong)
    assert shown("https://u:p@h.example:1/v1/x?key=k#f") == "https://h.example:1/v1/x"
    homes = ["http://10.0.0.4", "http://192.168.1.2:8", "http://box.local", "http://[::1]:8", "http://localhost"]
    assert all(map(at_home, homes)) and not at_home("https://api.example.com") and not at_home("http://8.8.8.8")
    assert on_this_machine("http://127.0.0.2:8/v1") and not on_this_machine("http://10.0.0.4/v1")


def test_requests_at_once_do_not_mix_their_replies(ask, server):
    async def all_of_them():
        models = ["blocks", "tags", "field", "two-texts", "blank"] * 4
        asked = [request(f"hosted_vllm/{m}", options={"api_base": server.host, "api_key": KEY}) for m in models]
        target = await transport.find_target(asked[0])
        targets = [transport.Target(a.model, a.model, "hosted_vllm", target.address) for a in asked]
        return await asyncio.gather(*(transport.complete(a, t, {}, 20) for a, t in zip(asked, targets, strict=True)))

    found = Counter((reply.served_model, reply.text) for reply in run_sync(all_of_them()))
    blank = REPLIES["blank"]["choices"][0]["message"]["content"]
    texts = {"blocks": "tea, please", "two-texts": "tea, please", "tags": "tea", "field": "tea", "blank": blank}
    assert found == {pair: 4 for pair in texts.items()}


# -- prices -----------------------------------------------------------------------------------------------------------


def test_prices_of_models_that_are_sold_under_other_names():
    bedrock = price("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0")
    assert bedrock is not None and bedrock.cached_input < bedrock.input < bedrock.output
    assert price("groq/gpt-4o") is None and price("hosted_vllm/gpt-4o") is None  # another seller has another price
    assert price("vertex_ai/claude-sonnet-4-5").output == price("anthropic/claude-sonnet-4-5").output == 15e-6


@pytest.mark.parametrize(
    ("model", "minimum"),
    [
        ("anthropic/claude-sonnet-4-5", 1024),
        ("claude-haiku-4-5", 4096),
        ("vertex_ai/claude-sonnet-4-5", 1024),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", 1024),
        ("openrouter/anthropic/claude-sonnet-4.5", 1024),
        ("openrouter/anthropic/claude-of-next-year", None),
        ("deepinfra/anthropic/claude-opus-5", None),
        ("bedrock/anthropic.claude-v2", None),
        ("gemini/gemini-2.5-pro", None),
        ("openai/gpt-4o", None),
        ("local/claude.gguf", None),
    ],
)
def test_from_which_length_a_prompt_is_kept(model, minimum):
    assert cache_minimum(model) == minimum


def test_litellm_is_quiet_without_a_network():
    """Left alone, it fetches a list of prices while it is imported, and warns when it cannot."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    code = "from structmem.transport import load_litellm; load_litellm(); load_litellm()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("value", [10**30, -5, "12", 12.5, float("nan"), float("inf"), True, [1], {}])
def test_odd_counts_and_costs_are_unknown(value):
    usage = {"prompt_tokens": value, "completion_tokens": value, "cost": "0.1" if value == 12.5 else value,
             "prompt_tokens_details": {"cached_tokens": value}}  # fmt: skip
    (reply,) = read_replies(from_json(json.dumps(answered("fine") | {"usage": usage})), "acme")
    counts = (reply.input_tokens, reply.output_tokens, reply.cached_tokens, reply.cost_usd)
    assert reply.text == "fine" and counts == (None,) * 4


def test_choices_that_nobody_asked_for_leave_their_cost_to_the_others():
    usage = {"prompt_tokens": 10, "completion_tokens": 9.0, "cost": 0.3}
    body = answered("a") | {"usage": usage}
    body["choices"] = body["choices"] * 3
    (reply,) = read_replies(from_json(json.dumps(body)), "acme", most=1)
    assert (reply.input_tokens, reply.output_tokens, reply.cost_usd) == (10, 9, 0.3)


def answered(text):
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}
