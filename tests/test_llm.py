"""The client, against Python functions and against a small server that misbehaves in every way we know."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from structmem import sending
from structmem.calls import Call, Request, request_key
from structmem.errors import BudgetReached, InputError, MissingCall, SetupError, StoreError
from structmem.failures import classify, retry_after
from structmem.llm import Client, as_ask, default_client, run_sync
from structmem.masking import Masker
from structmem.prices import Price, estimate_tokens, price
from structmem.recorded import Recorded
from structmem.replies import ReplyError
from structmem.store import Store

KEY = "sk-SYNTHETIC-000000"
HERE = Path(__file__).parent


# -- a server with modes, chosen by the model's name ------------------------------------------------------------------


def completion(model, content="fine", finish="stop", **message):
    message = {"role": "assistant", "content": content} | message
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "model": f"{model}-0613",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {
            "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }  # fmt: skip


def error(message, code="bad"):
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server, mode = self.server, body["model"]
        with server.lock:
            server.seen[mode] += 1
            server.bodies.append(body)
            nth = server.seen[mode]
        status, headers, out = self.answer(mode, nth, body)
        data = json.dumps(out).encode()
        try:
            self.send_response(status)
            for name, value in (
                {"content-type": "application/json", "content-length": str(len(data))} | headers
            ).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, mode, nth, body):
        key = self.headers.get("authorization", "")
        if mode == "busy" and nth == 1:
            return 429, {"Retry-After": "0.4"}, error("slow down", "rate_limit_exceeded")
        if mode == "limited":
            self.server.times.append(time.monotonic())
            return 429, {"Retry-After": "0.3"}, error("slow down", "rate_limit_exceeded")
        if mode == "down":
            return 500, {}, error("synthetic server error")
        if mode == "long":
            return 400, {}, error("Prompt contains 9 tokens, too large for model with 8 maximum context length")
        if mode == "wrong_key":
            return 401, {}, error(f"Incorrect API key provided: {key[7:]}", "invalid_api_key")
        if mode == "hang":
            self.server.release.wait(20)
        if mode == "empty_once" and nth == 1 or mode == "empty":
            return 200, {}, completion(mode, " \n\u200b")
        if mode == "thinks_only":
            return 200, {}, completion(mode, None, "length", reasoning_content="still thinking")
        if mode == "filtered":
            return 200, {}, completion(mode, None, "content_filter")
        if mode == "refuses":
            return 200, {}, completion(mode, None, "stop", refusal="I can't help with that.")
        if mode == "no_choices":
            return 200, {}, completion(mode) | {"choices": []}
        if mode == "hot_only" and body.get("temperature", 1) != 1:
            return (
                400,
                {},
                error("Unsupported value: temperature. Only the default (1) is supported.", "unsupported_value"),
            )
        if mode == "reasons":
            return 200, {}, completion(mode, "the answer", reasoning_content="the thinking")
        if mode == "tags":
            return 200, {}, completion(mode, "<think>the thinking</think>the answer")
        if mode == "cut":
            return 200, {}, completion(mode, "half an ans", "length")
        if mode == "echo_key":
            return 200, {}, completion(mode, f"Your header was {key}.")
        if self.path.endswith("/embeddings"):
            vectors = [
                {"object": "embedding", "index": k, "embedding": [len(t) / 3, -0.0]}
                for k, t in enumerate(body["input"])
            ]
            return 200, {}, {"object": "list", "model": mode, "data": vectors[::-1],
                             "usage": {"prompt_tokens": 7, "total_tokens": 7}}  # fmt: skip
        return 200, {}, completion(mode)


@pytest.fixture(scope="module")
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.lock, httpd.seen, httpd.bodies, httpd.release = threading.Lock(), Counter(), [], threading.Event()
    httpd.times = []
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    httpd.base = f"http://127.0.0.1:{httpd.server_address[1]}/v1"
    yield httpd
    httpd.release.set()
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(sending, "FIRST_BACKOFF_S", 0.001)
    with Client(":memory:", max_retries=2, timeout_s=10, announce=None) as client:
        yield client


@pytest.fixture
def ask(client, server):
    def ask(mode, options=None, **fields):
        options = {"api_base": server.base, "api_key": KEY} | (options or {})
        return client.call(request(f"hosted_vllm/{mode}", options=options, **fields))

    server.seen.clear()
    server.bodies.clear()
    return ask


def request(model, text="question", **fields):
    values = {"messages": ({"role": "user", "content": text},), "role": "answer", "params": {"temperature": 0.5}}
    return Request(model, **values | fields)


def test_a_plain_answer(ask, client, server):
    call = ask("plain")
    assert (call.status, call.text, call.finish_reason, call.truncated) == ("ok", "fine", "stop", False)
    assert (call.model, call.served_model, call.provider) == ("hosted_vllm/plain", "plain-0613", "hosted_vllm")
    assert (call.input_tokens, call.output_tokens, call.cached_tokens, call.reasoning_tokens) == (10, 5, 4, 2)
    assert call.cost_usd is None and client.spent_usd == 0  # no price is known: empty, not 0
    assert call.params_sent == {"temperature": 0.5} and server.bodies[0]["temperature"] == 0.5
    assert call.latency_s > 0 and datetime.fromisoformat(call.called_at).tzinfo
    again = ask("plain")
    assert again == replace(call, from_store=True) and server.seen["plain"] == 1
    by_role = {"answer": {"made": 1, "stored": 1}}
    assert client.counts == {
        "made": 1, "stored": 1, "requests": 1, "retries": 0, "rejected": 0, "no_response": 0, "by_role": by_role,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "reason", "said", "requests"),
    [
        ("down", "error", "synthetic server error", 3),
        ("long", "too_long", "too large for model", 1),
        ("empty", "empty", "no visible text", 3),
        ("thinks_only", "empty", "only reasoning", 1),
        ("filtered", "filtered", "content filter", 1),
        ("refuses", "refused", "I can't help with that.", 1),
        ("hot_only", "error", "does not accept temperature=0.5", 1),
    ],
)
def test_no_response_and_its_reason(ask, client, server, mode, reason, said, requests):
    call = ask(mode)
    assert (call.status, call.status_reason) == ("no_response", reason) and said in call.error
    assert server.seen[mode] == requests
    assert client.store.get(call.key) is None and client.store.last_failure(call.key).status_reason == reason


def test_waits_as_told_and_tries_again(ask, client, server):
    start = time.monotonic()
    assert ask("busy").text == "fine"
    assert server.seen["busy"] == 2 and client.counts["retries"] == 1 and time.monotonic() - start >= 0.4


def test_one_layer_of_retries_that_never_comes_early(ask, client, server, monkeypatch):
    """Always throttled: one request and `max_retries` more, none before the time told; then it can be resumed."""
    monkeypatch.setattr(sending, "LONGEST_WAIT_S", 0.3)  # from then on refusals count
    server.times.clear()
    call = ask("limited")
    gaps = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert server.seen["limited"] == client.sender.max_retries + 1 == 3 == call.requests == client.counts["requests"]
    assert min(gaps) >= 0.3 and (call.status, call.status_reason) == ("no_response", "error")
    assert "(after 3 requests)" in call.error and client.store.get(call.key) is None
    client.sender.max_retries = 0
    ask("limited")
    assert server.seen["limited"] == 4 and server.times[3] - server.times[2] >= 0.3


def test_an_empty_reply_is_asked_for_again(ask, server):
    assert ask("empty_once").text == "fine" and server.seen["empty_once"] == 2


def test_hanging_server(ask, client, server):
    client.sender.max_retries = 0
    call = ask("hang", {"timeout": 0.2})
    assert (call.status, call.status_reason) == ("no_response", "timeout") and "0.2 s" in call.error


def test_no_choices_is_no_response(ask):
    assert ask("no_choices").status == "no_response"


def test_reasoning_is_kept_apart(ask):
    for mode in ("reasons", "tags"):
        call = ask(mode)
        assert (call.text, call.reasoning) == ("the answer", "the thinking")


def test_truncated_text_is_an_answer(ask):
    call = ask("cut")
    assert (call.status, call.truncated, call.text) == ("ok", True, "half an ans")


def test_dropping_a_parameter_is_the_users_decision(ask, server):
    call = ask("hot_only", {"drop": ["temperature"]})
    assert call.status == "ok" and call.params_sent == {} and "temperature" not in server.bodies[0]


def test_wrong_key_stops_at_the_first_call_and_is_never_shown(ask, client, server):
    with pytest.raises(SetupError, match="cannot be called") as caught:
        ask("wrong_key")
    assert "SYNTHETIC" not in str(caught.value) and "[key hidden]" in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None and server.seen["wrong_key"] == 1
    assert "SYNTHETIC" not in repr(client.store.failures())


def test_a_key_in_an_answer_is_hidden(ask):
    assert ask("echo_key").text == "Your header was Bearer [key hidden]."


def test_unreachable_server_is_said_at_once(client):
    with pytest.raises(SetupError, match="cannot be called"):
        client.call(request("hosted_vllm/m", options={"api_base": "http://127.0.0.1:9/v1", "api_key": KEY}))


def test_setup_is_checked_before_anything_is_paid(client, monkeypatch):
    for name in [n for n in os.environ if n.endswith("_API_KEY") or n == "HOSTED_VLLM_API_BASE"]:
        monkeypatch.delenv(name)
    with pytest.raises(SetupError, match="set the environment variable OPENROUTER_API_KEY"):
        client.call(request("openrouter/acme/m"))
    with pytest.raises(SetupError, match="whose address is missing"):
        client.call(request("hosted_vllm/m"))
    with pytest.raises(InputError, match="the provider of 'no-such/model' is not known"):
        client.call(request("no-such/model"))
    assert client.counts["made"] == 0


def test_options_that_belong_to_the_client(ask):
    with pytest.raises(InputError, match="'num_retries' belongs to the client"):
        ask("plain", {"num_retries": 3})
    with pytest.raises(InputError, match="'n' must be 1"):
        ask("plain", {"n": 3})
    with pytest.raises(InputError, match="given both"):
        ask("plain", {"temperature": 1})


def test_extra_options_are_sent(ask, server):
    call = ask("plain", {"extra_body": {"provider": {"order": ["x"]}}})
    assert server.bodies[0]["provider"] == {"order": ["x"]}
    assert call.params_sent == {"extra_body": {"provider": {"order": ["x"]}}, "temperature": 0.5}


def test_local_models_have_their_own_limit_and_cost_nothing(client, server, monkeypatch):
    from structmem import calls, local

    starts = []

    def endpoint(model_id, lane=0):
        starts.append(model_id)
        return local.Endpoint(server.base, "plain", "ab" * 32, 3)

    calls._local_sha256.cache_clear()
    monkeypatch.setattr(local, "endpoint", endpoint)
    monkeypatch.setattr(local, "model_sha256", lambda model_id: "ab" * 32)
    server.bodies.clear()

    async def two():
        return await asyncio.gather(*(client.acall(request("local/dir/tiny.gguf", t, params={})) for t in "ab"))

    call, _ = client.run_sync(two())
    calls._local_sha256.cache_clear()
    assert (call.text, call.model, call.provider, call.cost_usd) == ("fine", "local/tiny.gguf", "local", 0.0)
    assert call.params_sent == {"temperature": 1.0} and server.bodies[0]["temperature"] == 1.0
    assert set(starts) == {"local/dir/tiny.gguf"} and client.sender._limits[server.base,].most == 3


def test_embeddings(client, server):
    server.seen.clear()
    options = {"api_base": server.base, "api_key": KEY}
    embed = lambda texts: run_sync(client.aembed("hosted_vllm/vectors", texts, options))  # noqa: E731
    assert embed(["a", "abcd", "a"]) == [[0.333333, 0.0], [1.333333, 0.0], [0.333333, 0.0]]
    assert embed(["abcd", "ab"]) == [[1.333333, 0.0], [0.666667, 0.0]]
    assert server.seen["vectors"] == 2 and server.bodies[-1]["input"] == ["ab"]


def test_what_leaves_the_machine_is_said_once(server, monkeypatch):
    said = []
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("structmem.transport.complete", fake_completion)
    with Client(":memory:", announce=said.append) as client:
        for text in ("a", "b"):
            client.call(request("openai/gpt-4o", text))
        client.call(request("openai/gpt-4o", role="judge"))
        client.call(request("openai/x", options={"api_base": server.base}))
    assert len(said) == 2 and "query and the memories" in said[0] and "'openai/gpt-4o' at openai" in said[0]
    assert "role judge" in said[1]


async def fake_completion(request, target, sent, timeout_s):
    from structmem.transport import Reply

    return Reply("x", input_tokens=1000, output_tokens=100, cost_usd=0.5)


def test_budget_is_hard(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("structmem.transport.complete", fake_completion)
    prices = {"openai/gpt-4o": (1e-4, 1e-3)}  # a call costs 0.1 + 0.1
    options = {"announce": None, "prices": prices, "max_concurrency": 3}

    def params(text):
        return request("openai/gpt-4o", text * 4000, params={"max_tokens": 100})  # estimated at .125 + .1

    async def many(client):
        return await asyncio.gather(*(client.acall(params(c)) for c in "abcdefghij"), return_exceptions=True)

    with Client(":memory:", budget_usd=1.0, **options) as client:
        results = client.run_sync(many(client))
        done = [r for r in results if isinstance(r, Call)]
        assert all(isinstance(r, Call | BudgetReached) for r in results)
        assert client.spent_usd == pytest.approx(0.2 * len(done)) and 0.6 < client.spent_usd <= 1.0
        with pytest.raises(BudgetReached, match="Finished calls are kept"):
            client.call(params("z") if len(done) == 5 else replace(params("z"), params={"max_tokens": 10_000}))
        assert client.call(params("a")).from_store  # what is stored is free
    with Client(":memory:", budget_usd=1.0, announce=None) as client:
        with pytest.raises(BudgetReached, match="No price is known for 'openai/my-own'"):
            client.call(request("openai/my-own"))
        assert client.counts["made"] == 0
        with pytest.raises(InputError, match=r"\['acme/judge', 'openai/my-own'\].* nothing was asked"):
            client.check_priced(["openai/gpt-4o", "openai/my-own", "local/smollm2", "acme/judge", len])
        client.check_priced(["openai/gpt-4o", "local/smollm2"])
    with Client(":memory:", budget_usd=1.0, prices={"openai/my-own": (1e-6, 1e-6)}) as client:
        client.check_priced(["openai/my-own"])
    for settings in ({"budget_usd": 1.0, "allow_unpriced": True}, {}):
        with Client(":memory:", **settings) as client:
            client.check_priced(["openai/my-own"])
    with Client(":memory:", budget_usd=1.0, allow_unpriced=True, announce=None) as client:
        assert client.call(request("openai/my-own")).cost_usd == 0.5 == client.spent_usd
    with pytest.raises(InputError, match="budget_usd must be"):
        Client(":memory:", budget_usd=-1)


def test_an_empty_reply_is_not_asked_for_again_beyond_the_budget(monkeypatch):
    from structmem.transport import Reply

    asked = []

    async def empty(request, target, sent, timeout_s):
        asked.append(request)
        return Reply("", None, "stop", input_tokens=0, output_tokens=100, reason="empty", detail="no text")

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(sending, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr("structmem.transport.complete", empty)
    prices = {"openai/gpt-4o": (0.0, 0.001)}  # a request costs 0.1 at most, and so does this one
    for budget, requests in ((0.15, 1), (0.25, 2), (1.0, 3)):
        asked.clear()
        with Client(":memory:", budget_usd=budget, prices=prices, announce=None) as client:
            call = client.call(request("openai/gpt-4o", params={"max_tokens": 100}))
            assert (call.status_reason, call.requests, len(asked)) == ("empty", requests, requests)
            assert client.spent_usd == pytest.approx(0.1 * requests) and client.spent_usd <= budget


# -- Python functions -------------------------------------------------------------------------------------------------


def function(answer, name="fn-1", log=None):
    def fn(messages, request):
        (log if log is not None else []).append(request)
        return answer(request) if callable(answer) else answer

    fn.model_id = name
    return fn


def number(call):
    try:
        return int(call.text)
    except ValueError:
        raise ReplyError("no_json", f"no number in {call.text!r}") from None


def test_functions_as_models(client):
    async def asynchronous(messages):
        return {"text": "<think>hm</think>x", "input_tokens": 3, "output_tokens": 1, "cost_usd": 0.25}

    asynchronous.model_id = "async-1"
    call = client.call(request(asynchronous))
    assert (call.text, call.reasoning, call.cost_usd, call.provider, call.model) == (
        "x",
        "hm",
        0.25,
        "python",
        "async-1",
    )
    log = []
    tagged = request(function("y", log=log), tags={"entry_id": "e7"})
    assert client.call(tagged).text == "y" and log[0].tags == {"entry_id": "e7"}
    assert client.call(request(function("", "blank"))).status_reason == "empty"
    with pytest.raises(InputError, match="must return a text or a dict"):
        client.call(request(function(5, "five")))
    with pytest.raises(SetupError, match="KeyError"):
        client.call(request(function(lambda r: {}["no"], "bug")))


def test_rejected_replies_are_asked_again_and_kept(client, tmp_path):
    log = []
    model = function(lambda r: ("prose", "more prose", "3")[r.attempt], "third-time", log)
    call, parsed = run_sync(client.aask(request(model), number))
    assert (call.status, parsed, call.attempt, len(log)) == ("ok", 3, 2, 3)
    call, parsed = run_sync(client.aask(request(model), number))
    assert (parsed, call.from_store, len(log)) == (3, True, 3)
    first = client.call(request(model))
    assert (first.status, first.status_reason, first.text) == ("rejected", "no_json", "prose")
    # the replay reads the same attempts in the same way
    client.store.export(tmp_path / "r.jsonl")
    with Client(tmp_path) as replay:
        assert run_sync(replay.aask(request(model), number))[1] == 3


def test_every_attempt_is_shown_to_who_asks(client):
    model = function(lambda r: ("prose", "more prose", "3")[r.attempt], "seen-1")
    seen, again, third = [], [], []
    run_sync(client.aask(request(model), number, seen=seen))
    assert [(call.status, call.attempt, call.from_store) for call in seen] == [
        ("rejected", 0, False), ("rejected", 1, False), ("ok", 2, False),
    ]  # fmt: skip
    assert len({call.key for call in seen}) == 3
    ask = client.asker(model, params={"temperature": 0.5})
    run_sync(ask(request(model).messages, role="answer", accept=number, seen=again))
    assert again == [replace(call, from_store=True, error=mine.error) for call, mine in zip(seen, again, strict=True)]
    run_sync(ask(request(model, "other").messages, role="answer", seen=third))
    answers = iter(["prose", "7"])
    run_sync(as_ask(lambda messages: next(answers))([], role="judge", accept=number, seen=third))
    assert [call.status for call in third] == ["ok", "rejected", "ok"]


def test_a_bad_verdict_is_judged_again_and_the_answer_never_made_again(client):
    from structmem.data import Entry, wrap_memories
    from structmem.judges import ajudge

    answered, judged = [], []
    answers = function("You like tea.", "answers-1", answered)
    verdicts = ("no idea", '{"reasoning": "r", "score": 9}', '{"reasoning": "r", "score": 2}')
    judge = function(lambda r: verdicts[r.attempt], "judge-1", judged)
    entry = Entry("e1", wrap_memories(["Likes tea."]), "What do I like?", "cross_domain")

    async def row():
        call = await client.acall(request(answers))
        return await ajudge(entry, call.text, judge="persistbench", ask=client.asker(judge))

    verdict = client.run_sync(row())
    assert (verdict.status, verdict.score, len(answered)) == ("ok", 2, 1)
    assert [r.attempt for r in judged] == [0, 1, 2] and len({call.key for call in verdict.calls}) == 3
    again = client.run_sync(row())
    assert (again.score, len(answered), len(judged)) == (2, 1, 3)
    assert [call.from_store for call in again.calls] == [True] * 3


def test_hopeless_replies_end_and_replay_the_same(client, tmp_path):
    log = []
    model = function("prose", "never", log)
    call, parsed = run_sync(client.aask(request(model), number, tries=3))
    assert (call.status, call.attempt, parsed, len(log)) == ("rejected", 2, None, 3)
    client.store.export(tmp_path / "r.jsonl")
    with Client(tmp_path) as replay:
        again, parsed = run_sync(replay.aask(request(model), number))
        assert (again.status, again.attempt, again.error, parsed) == ("rejected", 2, call.error, None)
    run_sync(client.aask(request(model), number, tries=2))  # live, it is asked for again
    assert len(log) == 5


def test_a_truncated_reply_is_not_asked_for_again(client):
    log = []
    model = function({"text": '{"score', "finish_reason": "length"}, "cut", log)
    call, parsed = run_sync(client.aask(request(model), number))
    assert (call.status, call.truncated, parsed, len(log)) == ("rejected", True, None, 1)


def test_a_better_reader_uses_what_an_older_one_rejected(client):
    log = []
    model = function("three", "words", log)
    run_sync(client.aask(request(model), number, tries=1))
    call, parsed = run_sync(client.aask(request(model), lambda call: {"three": 3}[call.text]))
    assert (parsed, call.status, len(log)) == (3, "ok", 1)


def test_equal_requests_at_once_are_one_call(client):
    log = []

    def slow(r):
        time.sleep(0.05)
        return "1"

    model = function(slow, "slow", log)

    async def twice():
        return await asyncio.gather(
            client.acall(request(model)), client.aask(request(model), number), client.acall(request(model))
        )

    a, (b, parsed), c = client.run_sync(twice())
    assert len(log) == 1 and a == b == c and parsed == 1 and client.counts["made"] == 1


def test_never_more_at_once_than_allowed():
    now, most = Counter(), Counter()
    lock = threading.Lock()

    def busy(r):
        with lock:
            now[r.role] += 1
            most[r.role] = max(most[r.role], now[r.role])
        time.sleep(0.01)
        with lock:
            now[r.role] -= 1
        return "x"

    model = function(busy, "busy")
    with Client(":memory:", max_concurrency=4, judge_concurrency=2) as client:

        async def many():
            await asyncio.gather(
                *(client.acall(request(model, f"q{n}", role=r)) for n in range(20) for r in ("answer", "judge"))
            )

        client.run_sync(many())
    assert 2 <= most["answer"] <= 4 and 1 <= most["judge"] <= 2


def test_offline(tmp_path):
    path = tmp_path / "s.sqlite"
    with Client(path) as client:
        client.call(request(function("x")))
        client.call(request(function("", "blank")))
    with Client(path, offline=True) as client:
        assert client.call(request(function("y"))).text == "x"
        assert client.call(request(function("", "blank"))).status_reason == "empty"  # as it was, not a missing call
        with pytest.raises(MissingCall) as caught:
            client.call(request(function("y"), "another", tags={"entry_id": "e1", "structure": "tree"}, generation=2))
    for part in ("role answer", "'fn-1'", "entry_id e1", "structure tree", "generation 2", "key ", "offline=False"):
        assert part in str(caught.value)
    with pytest.raises(StoreError, match="no store of calls"):
        Client(tmp_path / "none.sqlite", offline=True)
    Store(path).export(tmp_path / "calls.jsonl")
    assert Client(Recorded(tmp_path / "calls.jsonl")).offline


def test_inside_a_running_loop_and_twice(client):
    """As in a notebook cell: synchronous calls while a loop runs, then the asynchronous form in that loop."""

    async def cell():
        first = client.call(request(function("x"), "sync 1")).text
        second = client.call(request(function("x"), "sync 2")).text
        third = (await client.acall(request(function("x"), "async"))).text
        return [first, second, third]

    for _ in range(2):
        assert asyncio.run(cell()) == ["x", "x", "x"]


def test_waiting_inside_a_call_is_refused(client):
    async def inner(messages):
        client.call(request(function("x"), "inner"))

    inner.model_id = "inner"
    with pytest.raises(InputError, match="await its asynchronous form"):
        client.call(request(inner))


def test_cancelled_waiters_start_nothing_new_but_lose_nothing_paid():
    log = []

    def slow(r):
        time.sleep(0.15)
        return "x"

    model = function(slow, "slow", log)
    client = Client(":memory:", max_concurrency=2)

    async def run():
        tasks = [asyncio.create_task(client.acall(request(model, f"q{n}"))) for n in range(10)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.3)

    client.run_sync(run())
    assert len(log) == 2 and client.store.info()["calls"] == {"answer ok": 2}
    client.close()
    with pytest.raises(StoreError, match="closed"):
        client.call(request(model))


def test_asker(client):
    log = []
    ask = client.asker(
        function("4", "asked", log), {"num_ctx": 8}, params={"temperature": 0}, replicate=3, tags={"entry_id": "e"}
    )
    assert as_ask(ask) is ask
    messages = [{"role": "user", "content": "q"}]
    call, parsed = run_sync(ask(messages, role="judge", params={"seed": 1}, accept=number, memories=("m",)))
    assert parsed == 4 and log[0].params == {"temperature": 0, "seed": 1} and log[0].replicate == 3 == call.replicate
    run_sync(ask(messages, role="classifier", draw=1))
    assert (log[1].replicate, log[1].options, log[1].tags) == (1, {"num_ctx": 8}, {"entry_id": "e"})
    call, parsed = run_sync(ask(messages, role="structurer", compute=function("5", "computed")))
    assert (call.text, call.model, parsed) == ("5", "computed", None)


def test_any_function_as_ask():
    answers = iter(["prose", "7"])
    call, parsed = run_sync(as_ask(lambda messages: next(answers))([], role="judge", accept=number))
    assert (call.status, call.text, parsed) == ("ok", "7", 7)

    async def keyed(messages, **more):
        return {"text": more["role"], "finish_reason": "length"}

    call, parsed = run_sync(as_ask(keyed)([], role="judge", accept=number))
    assert (call.status, call.status_reason, call.truncated, parsed) == ("rejected", "no_json", True, None)
    assert run_sync(as_ask(lambda messages: None)([], role="judge"))[0].status == "no_response"
    with pytest.raises(InputError, match="ask must be a function"):
        as_ask("openai/gpt-4o")


def test_default_client_is_shared(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTMEM_STORE", str(tmp_path / "mine.sqlite"))
    client = default_client()
    assert client is default_client() and (tmp_path / "mine.sqlite").exists()
    client.close()
    assert default_client() is not client
    default_client().close()


# -- whole processes --------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
from structmem.llm import Client
from structmem.calls import Request

def model(messages):
    with open({log!r}, "a") as file:
        file.write(messages[0]["content"] + "\\n")
    time.sleep({pause})
    return "x"

model.model_id = "m"
client = Client({store!r}, max_concurrency=4)
requests = [Request(model, ({{"role": "user", "content": str(n)}},), "answer") for n in range({count})]

async def run():
    import asyncio
    for call in asyncio.as_completed([client.acall(r) for r in requests]):
        await call
        print("done", flush=True)

client.run_sync(run())
client.run_sync(run())
"""


def program(tmp_path, count, pause):
    return PROGRAM.format(
        root=str(HERE.parent), log=str(tmp_path / "log"), store=str(tmp_path / "s.sqlite"), count=count, pause=pause
    )


def test_kill_9_repeats_no_finished_call(tmp_path):
    for finished in (3, 11, 25):
        child = subprocess.Popen([sys.executable, "-c", program(tmp_path, 40, 0.02)], stdout=subprocess.PIPE, text=True)
        for _ in range(finished):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    subprocess.run([sys.executable, "-c", program(tmp_path, 40, 0)], check=True, stdout=subprocess.DEVNULL)
    made = Counter((tmp_path / "log").read_text(encoding="utf-8").split())
    assert len(made) == 40 and sum(made.values()) <= 40 + 3 * 4  # at most what was under way at each kill
    with Store(tmp_path / "s.sqlite") as store:
        assert store.info()["calls"] == {"answer ok": 40}


def test_nothing_on_stderr_in_development_mode(tmp_path):
    command = [sys.executable, "-X", "dev", "-c", program(tmp_path, 5, 0)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and "litellm" not in done.stdout


def test_nothing_on_stderr_after_real_requests(tmp_path, server):
    code = program(tmp_path, 3, 0).replace(
        'Request(model, ({"role": "user", "content": str(n)},), "answer")',
        'Request("hosted_vllm/plain", ({"role": "user", "content": str(n)},), "answer", '
        f'options={{"api_base": "{server.base}", "api_key": "{KEY}"}})',
    )
    assert "hosted_vllm" in code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, done.stdout.count("done")) == (0, "", 6)


# -- tables -----------------------------------------------------------------------------------------------------------


class Http(Exception):
    def __init__(self, status, said, headers=None):
        super().__init__(said)
        self.status_code, self.litellm_response_headers = status, headers


@pytest.mark.parametrize(
    ("status", "said", "reason", "retry", "setup"),
    [
        (400, "This model's maximum context length is 8192 tokens", "too_long", False, False),
        (400, "too large for model with 8 maximum context length", "too_long", False, False),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", "too_long", False, False),
        (400, "the request exceeds the available context size", "too_long", False, False),
        (413, "Please reduce the length of the messages", "too_long", False, False),
        (400, "The input token count (40000) exceeds the maximum number of tokens allowed", "too_long", False, False),
        (400, "The response was filtered due to Azure's content management policy", "filtered", False, False),
        (400, "'seed' is not supported with this model", "error", False, False),
        (400, "something else", "error", False, False),
        (400, "acme/x is not a valid model ID", "error", False, True),
        (401, "no", "error", False, True),
        (402, "Insufficient credits", "error", False, True),
        (404, "The model `x` does not exist", "error", False, True),
        (408, "late", "timeout", True, False),
        (429, "slow down", "error", True, False),
        (429, "You exceeded your current quota", "error", False, False),
        (500, "oops", "error", True, False),
        (503, "overloaded", "error", True, False),
        (500, "Cannot connect to host 10.0.0.1:80", "error", True, True),
    ],
)
def test_failures_by_status_and_words(status, said, reason, retry, setup):
    failure = classify(Http(status, said), 30, {"seed": 1})
    assert (failure.reason, failure.retry, failure.setup) == (reason, retry, setup)
    assert failure.detail.startswith("No answer within 30 s") or said in failure.detail


def test_retry_after_in_both_forms():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after(Http(429, "", {"retry-after": "3"})) == 3
    assert retry_after(Http(429, "", {"Retry-After": "1.5"})) == 1.5
    date = (now + timedelta(seconds=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert retry_after(Http(429, "", {"retry-after": date}), now) == 90
    assert retry_after(Http(429, "", {"retry-after": "soon"})) is None and retry_after(Http(429, "")) is None


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}", "Authorization: Bearer abcdefgh12345678", "https://h/x?key=AIzaSyA1234567890abcdefghijk",
        '{"api_key": "abcdef123456"}', "token own-secret-value used", "https://user:pa55word@host/", "own%2Fslashed",
    ],
)  # fmt: skip
def test_secrets_are_masked(text):
    masker = Masker(["own-secret-value", "own/slashed"])
    masked = masker.mask(text)
    for secret in (KEY, "abcdefgh12345678", "AIzaSy", "abcdef123456", "own-secret-value", "pa55word", "slashed"):
        assert secret not in masked
    assert masker.mask("The monkey ate a key lime pie; sk is short.") == "The monkey ate a key lime pie; sk is short."


def test_secrets_from_environment_and_headers(monkeypatch):
    monkeypatch.setenv("ACME_TOKEN", "tok-en-value")
    masker = Masker()
    masker.learn(
        {"extra_headers": {"x-auth": "Basic headervalue"}, "extra_body": {"api_key": "nestedvalue"}, "api_key": "x"}
    )
    assert masker.hide("tok-en-value headervalue nestedvalue x") == "[key hidden] [key hidden] [key hidden] x"


def test_prices():
    assert price("local/smollm2") == Price(0.0, 0.0)
    assert price("hosted_vllm/gpt-4o") is None and price("openai/my-own") is None and price(len) is None
    known = price("openai/gpt-4o")
    assert known == price("gpt-4o") and 0 < known.input < known.output
    assert price("m", {"m": (1, 2)}).cost(10, 5) == 20
    assert Price(1.0, 2.0, 0.5).cost(10, 5, 4) == 6 * 1 + 4 * 0.5 + 5 * 2
    assert Price(1.0, 2.0).cost(None, 5) is None
    assert estimate_tokens(["abcd", "abcde", "é"]) == 1 + 2 + 1
    with pytest.raises(InputError, match="price of 'm' must be"):
        price("m", {"m": (1, -2)})


# -- functions that misbehave -----------------------------------------------------------------------------------------


def scripted(name, fn):
    fn.model_id = name
    return fn


@pytest.mark.parametrize(
    ("name", "problem", "says"),
    [("exhausted", StopIteration(), "StopIteration"), ("leaves", SystemExit(3), "SystemExit: 3")],
)
def test_a_function_cannot_stop_the_loop(client, name, problem, says):
    def raises(messages):
        raise problem

    with pytest.raises(SetupError, match=says):
        client.call(request(scripted(name, raises)))
    assert client.call(request(function("fine"))).text == "fine"


def test_a_function_that_cancels_itself_is_asked_again(client):
    async def cancels(messages):
        raise asyncio.CancelledError

    call = client.call(request(scripted("cancels", cancels)))
    assert (call.status, call.error) == ("no_response", "The function cancelled itself. (after 3 requests)")


@pytest.mark.parametrize(
    ("field", "value"), [("input_tokens", 10**30), ("cost_usd", "much"), ("finish_reason", ["a"]), ("text", 5)]
)
def test_fields_of_a_function_are_checked(client, field, value):
    with pytest.raises(InputError, match=field):
        client.call(request(scripted(f"bad {field}", lambda messages: {"text": "x", field: value})))


def test_half_a_character_in_the_reasoning_is_replaced(client):
    half = scripted("half", lambda messages: {"text": "x", "reasoning": "a\ud83d"})
    assert client.call(request(half)).reasoning == "a?"


def test_a_function_that_never_returns_does_not_keep_the_program():
    code = """if True:
        import threading
        from structmem.calls import Request
        from structmem.llm import Client
        def stuck(messages): threading.Event().wait()
        stuck.model_id = "stuck"
        client = Client(":memory:", timeout_s=0.2, max_retries=0)
        print(client.call(Request(stuck, ({"role": "user", "content": "q"},), "answer")).status_reason)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, cwd=HERE.parent)
    assert ended.stdout == "timeout\n", ended.stderr


# -- what is sent, kept and hidden ------------------------------------------------------------------------------------


def test_nested_values_are_sent_whole_and_kept_without_secrets(ask, server):
    schema = {"type": "object", "properties": {"tags": {"type": "string"}}, "required": ["tags"]}
    sources = [{"index": "notes", "api_key": "listed-key-1234"}]
    call = ask("nested", {"extra_body": {"schema": schema, "sources": sources, "store": {"key": "inner-key-12345"}}})
    sent = server.bodies[0]
    assert (sent["schema"], sent["sources"], sent["store"]) == (schema, sources, {"key": "inner-key-12345"})
    kept = call.params_sent["extra_body"]
    assert kept["sources"] == [{"index": "notes"}] and kept["store"] == {}


def test_a_key_is_hidden_before_its_error_is_cut():
    masker = Masker(["0a1b2c3d4e5f60718293"])
    for length in range(540, 820, 9):
        found = classify(ValueError("x" * length + " 0a1b2c3d4e5f60718293"), 1)
        assert "0a1b2c3d" not in masker.mask(found.detail)


def test_a_secret_of_a_later_request_is_hidden_too(client, server):
    for secret in ("first-key-000001", "second-key-00002"):
        options = {"api_base": server.base, "api_key": KEY, "extra_headers": {"authorization": f"Bearer {secret}"}}
        call = client.call(request("hosted_vllm/echo_key", f"question {secret[:5]}", options=options))
        assert secret not in call.text


def test_plain_header_words_stay_in_answers():
    masker = Masker()
    masker.learn({"extra_headers": {"X-Title": "health memory", "HTTP-Referer": "https://acme.example/app1"}})
    text = "Your memory of https://acme.example/app1"
    assert masker.hide(text) == text
    masker.learn({"extra_headers": {"x-tenant": "t-48151623-4242"}, "list": [{"api_key": "in-a-list-77"}]})
    assert masker.hide("t-48151623-4242 in-a-list-77") == "[key hidden] [key hidden]"


@pytest.mark.parametrize("base", ["127.0.0.1:9/v1", "not a url", "http://[::1/v1", 5])
def test_an_address_that_is_none_is_refused(client, base):
    with pytest.raises(InputError, match="must be like 'http://HOST:PORT/v1'"):
        client.call(request("hosted_vllm/plain", options={"api_base": base}))


@pytest.mark.parametrize("option", [{"timeout": "5"}, {"timeout": 0}, {"drop": 5}])
def test_options_of_the_wrong_kind_are_refused(ask, option):
    with pytest.raises(InputError, match=next(iter(option))):
        ask("plain", option)


@pytest.mark.parametrize(
    ("said", "setup"), [("Missing credentials. Please pass one", True), ("Connection error.", True), ("odd", False)]
)
def test_what_cannot_work_is_named_at_the_first_call(said, setup):
    assert classify(Http(500, said), 1).setup is setup


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": "5"}, {"timeout_s": 0}, {"timeout_s": None}, {"max_retries": -1}, {"max_retries": "a"},
        {"judge_concurrency": 0}, {"prices": {"a": 5}}, {"prices": [1]},
    ],
)  # fmt: skip
def test_settings_of_the_client_are_checked(wrong):
    with pytest.raises(InputError):
        Client(":memory:", **wrong)


def test_a_local_server_that_died_is_asked_for_again(client, server, monkeypatch, tmp_path):
    from structmem import local

    bases = iter(["http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", server.base, server.base])
    monkeypatch.setattr(local, "endpoint", lambda model, lane: local.Endpoint(next(bases), "plain", "0" * 64, 1))
    (tmp_path / "tiny.gguf").write_bytes(b"weights")
    assert client.call(request(f"local/{tmp_path / 'tiny.gguf'}")).text == "fine"


def test_a_call_that_another_process_has_stored_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "LOOK_AGAIN_S", 0)
    gate, made = threading.Event(), []

    def slow(messages):
        made.append(messages)
        gate.wait(10)
        return "mine"

    scripted("slow", slow)
    both = [request(slow, "a"), request(slow, "b")]
    with Client(tmp_path / "s.sqlite", max_concurrency=1, announce=None) as client:

        async def run():
            tasks = [asyncio.create_task(client.acall(each)) for each in both]
            while not made:
                await asyncio.sleep(0.01)
            with Store(tmp_path / "s.sqlite") as other:
                for each in both:
                    other.put(Call(request_key(each), "ok", text="theirs", called_at="2026-01-01"), each)
            gate.set()
            return [call.text for call in await asyncio.gather(*tasks)]

        assert client.run_sync(run()) == ["theirs", "theirs"] and len(made) == 1


def test_a_schema_is_sent_only_to_models_that_take_one(client, server):
    """Asked for either way, so that the key does not hang on what is believed of a provider; what was sent is said."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    options = {"api_base": server.base, "api_key": "none"}
    sent = {}
    for model in ("hosted_vllm/plain", "openai/gpt-4o-mini", "openai/gpt-3.5-turbo-0613"):
        server.bodies.clear()
        asked = request(model, f"schema for {model}", params={"response_format": schema}, options=options)
        call = client.call(asked)
        assert call.status == "ok" and ("response_format" in call.params_sent) == (
            "response_format" in server.bodies[0]
        )
        sent[model] = "response_format" in call.params_sent
    assert sent == {"hosted_vllm/plain": True, "openai/gpt-4o-mini": True, "openai/gpt-3.5-turbo-0613": False}
