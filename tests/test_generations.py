"""Several generations in one request: what comes back is stored once, what does not is asked for singly."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from structmem import sending, transport
from structmem.calls import Call, Request, request_key
from structmem.errors import BudgetReached, InputError, MissingCall, SetupError
from structmem.failures import Failure
from structmem.llm import Client
from structmem.store import Store
from structmem.transport import Reply, Target

KEY = "sk-SYNTHETIC-000000"


class Handler(BaseHTTPRequestHandler):
    """Gives `n` choices, or does with `n` what the model's name says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server, mode, n = self.server, body["model"], body.get("n", 1)
        with server.lock:
            server.seen[mode, n] += 1
            count = sum(server.seen.values())
        status, out = 200, None
        texts = [f"answer {count}.{place}" for place in range(n)]
        if mode == "ignores":
            texts = texts[:1]
        elif mode == "repeats":
            texts = [texts[0] + 40 * "."] * n
        elif n > 1 and mode == "rejects":
            status, out = 400, {"error": {"message": "n: only 1 is allowed", "type": "invalid_request_error"}}
        elif mode == "leaks":
            said = f"Incorrect API key provided: {self.headers['authorization'][7:]}"
            status, out = 401, {"error": {"message": said, "code": "invalid_api_key"}}
        elif mode == "echoes":
            texts = [f"{text}, your header was {self.headers['authorization']}" for text in texts]
        data = json.dumps(out or {
            "id": "c", "object": "chat.completion", "created": 1, "model": mode,
            "choices": [
                {"index": place, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                for place, text in enumerate(texts)
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7 * len(texts), "total_tokens": 11 + 7 * len(texts)},
        }).encode()  # fmt: skip
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads, httpd.lock, httpd.seen = True, threading.Lock(), Counter()
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    httpd.options = {"api_base": f"http://127.0.0.1:{httpd.server_address[1]}/v1", "api_key": KEY}
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(sending, "FIRST_BACKOFF_S", 0.001)
    with Client(":memory:", max_retries=2, timeout_s=10, announce=None) as client:
        yield client


def group(model, text="question", count=3, **fields):
    values = {"messages": ({"role": "user", "content": text},), "role": "answer", "params": {"temperature": 1.0}}
    return [Request(model, **values | fields, generation=g) for g in range(count)]


async def together(client, requests):
    return await asyncio.gather(*client.together(requests))


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_one_request_gives_all_generations(client, server):
    server.seen.clear()
    requests = group("hosted_vllm/gives", options=server.options)
    calls = client.run_sync(together(client, requests))
    assert server.seen == {("gives", 3): 1} and len({call.text for call in calls}) == 3
    assert [call.key for call in calls] == [request_key(request) for request in requests]
    assert [call.generation for call in calls] == [0, 1, 2]
    assert all(call.params_sent == {"temperature": 1.0, "n": 3} for call in calls)
    # what was paid for once is counted once
    assert sum(call.input_tokens for call in calls) == 11 and sum(call.output_tokens for call in calls) == 21
    assert [call.requests for call in calls] == [1, 0, 0] and client.counts["requests"] == 1
    assert client.counts["made"] == 3
    again = client.run_sync(together(client, requests))
    assert [call.text for call in again] == [call.text for call in calls] and client.counts["stored"] == 3
    one_more = client.call(group("hosted_vllm/gives", count=4, options=server.options)[3])
    assert server.seen == {("gives", 3): 1, ("gives", 1): 1} and one_more.params_sent == {"temperature": 1.0}


@pytest.mark.parametrize(("mode", "joint"), [("ignores", 1), ("repeats", 1), ("rejects", 0)])
def test_without_n_each_generation_is_asked_for_and_n_is_not_tried_again(client, server, mode, joint):
    server.seen.clear()
    calls = client.run_sync(together(client, group(f"hosted_vllm/{mode}", options=server.options)))
    assert [call.status for call in calls] == ["ok"] * 3 and len({call.text for call in calls}) == 3
    assert server.seen == {(mode, 3): 1, (mode, 1): 3 - joint}  # what came back was not asked for again
    assert ["n" in call.params_sent for call in calls] == [bool(joint), False, False]
    assert client.store.info()["calls"] == {"answer ok": 3}
    client.run_sync(together(client, group(f"hosted_vllm/{mode}", "another", options=server.options)))
    assert server.seen == {(mode, 3): 1, (mode, 1): 3 - joint + 3}


def test_a_key_is_hidden_in_joint_replies_and_errors(client, server):
    calls = client.run_sync(together(client, group("hosted_vllm/echoes", options=server.options)))
    assert all("[key hidden]" in call.text for call in calls)

    async def leaks():
        tasks = client.together(group("hosted_vllm/leaks", options=server.options))
        return await asyncio.gather(*tasks, return_exceptions=True)

    errors = client.run_sync(leaks())
    assert all(isinstance(error, SetupError) and "[key hidden]" in str(error) for error in errors)
    kept = [*calls, *client.store.failures(), *errors, *(e.__cause__ for e in errors), *(e.__context__ for e in errors)]
    assert "SYNTHETIC" not in repr(kept) and len(client.store.failures()) == 3


# -- with a provider of our own ---------------------------------------------------------------------------------------


class Provider:
    """Gives what `plan` says for each request, after a while; counts requests by n."""

    def __init__(self, pause=0.0):
        self.asked, self.plan, self.pause, self.gate = [], [], pause, None

    async def complete(self, request, target, sent, timeout_s, n=1):
        number = len(self.asked)
        self.asked.append((request.messages[0]["content"], n))
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.pause)
        if self.plan and (planned := self.plan.pop(0)) is not None:
            return planned
        replies = [reply(f"{number}.{place}") for place in range(n)]
        return replies if n > 1 else replies[0]


def reply(text, **fields):
    values = {"finish_reason": "stop", "input_tokens": 1, "output_tokens": 1}
    empty = {"reason": "empty", "detail": "no text"} if not text else {}
    return Reply(text, **values | empty | fields)


@pytest.fixture
def provider(monkeypatch):
    async def find_target(request):
        return Target(request.model, request.model, "acme", {}, None, leaves_machine=False)

    provider = Provider()
    monkeypatch.setattr(transport, "find_target", find_target)
    monkeypatch.setattr(transport, "takes_n", lambda request, target: "single" not in request.model)
    monkeypatch.setattr(transport, "complete", provider.complete)
    return provider


def test_the_first_group_is_the_probe_and_others_go_singly_meanwhile(client, provider):
    async def run():
        provider.gate = asyncio.Event()
        tasks = client.together(group("acme/m", "first")) + client.together(group("acme/m", "second"))
        while len(provider.asked) < 4:
            await asyncio.sleep(0.001)
        provider.gate.set()
        await asyncio.gather(*tasks)
        return await together(client, group("acme/m", "third"))

    client.run_sync(run())
    assert Counter(provider.asked) == {("first", 3): 1, ("second", 1): 3, ("third", 3): 1}


def test_a_probe_that_fails_for_another_reason_leaves_the_question_open(client, provider):
    provider.plan = [Failure("too_long", "prompt is too long")]
    calls = client.run_sync(together(client, group("acme/m", "long")))
    assert [call.status_reason for call in calls] == ["too_long"] * 3 and len(client.store.failures()) == 3
    client.run_sync(together(client, group("acme/m", "short")))
    assert provider.asked == [("long", 3), ("short", 3)]


def test_a_joint_request_is_sent_again_like_any_other(client, provider):
    down = Failure("error", "server error (HTTP 500)", retry=True)
    provider.plan = [down, None]
    calls = client.run_sync(together(client, group("acme/m")))
    assert provider.asked == [("question", 3)] * 2 and [call.requests for call in calls] == [2, 0, 0]
    provider.plan = [down] * 3
    calls = client.run_sync(together(client, group("acme/m", "never")))
    assert [call.status_reason for call in calls] == ["error"] * 3 and len(provider.asked) == 5


def test_empty_replies_have_their_own_count_of_retries(provider, monkeypatch):
    monkeypatch.setattr(sending, "FIRST_BACKOFF_S", 0.001)
    down = Failure("error", "server error (HTTP 500)", retry=True)
    with Client(":memory:", max_retries=6, announce=None) as client:
        provider.plan = [down, down, down, reply(""), reply(""), None]
        call = client.call(group("acme/m")[0])
        assert (call.status, call.requests) == ("ok", 6)
        provider.plan = [reply(""), down, reply(""), reply("")]
        call = client.call(group("acme/m", "never")[0])
        assert (call.status_reason, call.requests) == ("empty", 4)


def test_one_empty_choice_is_asked_for_singly(client, provider):
    provider.plan = [[reply("a"), reply(""), reply("c")], None]
    calls = client.run_sync(together(client, group("acme/m")))
    assert [call.text for call in calls] == ["a", "1.0", "c"] and provider.asked == [("question", 3), ("question", 1)]


@pytest.mark.parametrize("why", ["seeds differ", "the model takes no n", "one only", "a function"])
def test_what_cannot_go_together_goes_singly(client, provider, why):
    requests = group("acme/single" if "n" in why.split() else "acme/m", count=1 if why == "one only" else 3)
    if why == "seeds differ":
        requests = [group("acme/m", params={"seed": g}, count=g + 1)[g] for g in range(3)]
    if why == "a function":

        def model(messages):
            provider.asked.append(("question", 1))
            return f"{len(provider.asked)}"

        model.model_id = "fn"
        requests = group(model)
    calls = client.run_sync(together(client, requests))
    assert len({call.text for call in calls}) == len(requests) and set(provider.asked) == {("question", 1)}
    assert all("n" not in call.params_sent for call in calls)


def test_stored_generations_and_those_under_way_are_not_asked_for_again(client, provider):
    requests = group("acme/m", count=4)
    client.call(requests[1])

    async def run():
        single = asyncio.create_task(client.acall(requests[0]))
        await asyncio.sleep(0)
        tasks = client.together(requests)
        joined = asyncio.create_task(client.acall(requests[3]))
        again = client.together(requests)
        return await asyncio.gather(single, joined, *tasks, *again)

    single, joined, *calls = client.run_sync(run())
    assert provider.asked == [("question", 1), ("question", 1), ("question", 2)]
    assert calls[0] == single and calls[3] == joined and [call.key for call in calls[:4]] == [c.key for c in calls[4:]]
    assert client.counts["made"] == 4 and client.store.info()["calls"] == {"answer ok": 4}


def test_cancelling_one_leaves_the_others_and_everything_that_was_sent_is_stored(client, provider):
    async def run():
        provider.gate = asyncio.Event()
        tasks = client.together(group("acme/m"))
        while not provider.asked:
            await asyncio.sleep(0.001)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        late = client.together(group("acme/m"))[0]  # joins what is under way
        provider.gate.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError) and (await late).text == "0.0"
        assert [call.text for call in done[1:]] == ["0.1", "0.2"]
        provider.gate = asyncio.Event()
        tasks = client.together(group("acme/m", "all give up"))
        while len(provider.asked) < 2:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        provider.gate.set()
        while not client.underway.idle:
            await asyncio.sleep(0.001)

    client.run_sync(run())
    assert provider.asked == [("question", 3), ("all give up", 3)]
    assert client.store.info()["calls"] == {"answer ok": 6}


def test_what_was_sent_is_stored_when_the_client_closes(provider, tmp_path):
    provider.pause = 0.1
    client = Client(tmp_path / "s.sqlite", announce=None)

    async def run():
        client.together(group("acme/m"))
        while not provider.asked:
            await asyncio.sleep(0.001)

    client.run_sync(run())
    client.close()
    with Store(tmp_path / "s.sqlite") as store:
        assert store.info()["calls"] == {"answer ok": 3}


def test_embeddings_that_were_sent_are_stored_though_nobody_waits(client, provider, monkeypatch):
    gate, asked = threading.Event(), []

    async def embed(request, texts, target, sent, timeout_s):
        asked.append(texts)
        await asyncio.to_thread(gate.wait, 5)
        return [reply("[1.0]") for _ in texts]

    monkeypatch.setattr(transport, "embed", embed)

    async def run():
        waits = asyncio.create_task(client.aembed("acme/e", ["a", "b"]))
        while not asked:
            await asyncio.sleep(0.001)
        waits.cancel()
        gate.set()
        await asyncio.gather(waits, return_exceptions=True)
        while not client.underway.idle:
            await asyncio.sleep(0.001)
        return await client.aembed("acme/e", ["b", "a"])

    assert client.run_sync(run()) == [[1.0], [1.0]] and asked == [["a", "b"]]
    assert client.store.info()["calls"] == {"embedding ok": 2}


@pytest.mark.parametrize("early", [True, False])
def test_nobody_waiting_and_nothing_sent_is_not_sent_and_can_be_asked_for_at_once(provider, early):
    with Client(":memory:", max_concurrency=1, announce=None) as client:

        async def run():
            provider.gate = asyncio.Event()
            first = asyncio.create_task(client.acall(group("acme/m", "in the way")[0]))
            while not provider.asked:
                await asyncio.sleep(0.001)
            tasks = client.together(group("acme/m"))
            if not early:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
            again = client.together(group("acme/m", count=2))  # not taken along by those that gave up
            provider.gate.set()
            await asyncio.gather(first, *tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
            return await asyncio.gather(*again)

        assert [call.status for call in client.run_sync(run())] == ["ok", "ok"]
    assert provider.asked == [("in the way", 1), ("question", 2)]


def test_what_another_process_has_stored_meanwhile_is_not_asked_for(provider, tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "LOOK_AGAIN_S", 0)
    requests = group("acme/m")
    with Client(tmp_path / "s.sqlite", max_concurrency=1, announce=None) as client:

        async def run():
            provider.gate = asyncio.Event()
            first = asyncio.create_task(client.acall(group("acme/m", "in the way")[0]))
            while not provider.asked:
                await asyncio.sleep(0.001)
            tasks = client.together(requests)
            with Store(tmp_path / "s.sqlite") as other:
                theirs = Call(request_key(requests[1]), "ok", text="theirs", called_at="2026-01-01", generation=1)
                other.put(theirs, requests[1])
            provider.gate.set()
            await first
            return await asyncio.gather(*tasks)

        calls = client.run_sync(run())
    assert [call.text for call in calls] == ["1.0", "theirs", "1.1"] and provider.asked[1:] == [("question", 2)]


def test_offline_each_is_read_or_named(provider, tmp_path):
    requests = group("acme/m")
    with Client(tmp_path / "s.sqlite", announce=None) as client:
        client.call(requests[0])
        provider.plan = [Failure("filtered", "no")]
        client.call(requests[1])
    with Client(tmp_path / "s.sqlite", offline=True) as client:

        async def run():
            return await asyncio.gather(*client.together(requests), return_exceptions=True)

        first, second, third = client.run_sync(run())
        assert (first.text, second.status_reason) == ("0.0", "filtered") and isinstance(third, MissingCall)
        assert "generation 2" in str(third)
        stored = client.stored(requests)
        assert stored[:2] == [first, second] and stored[2] is None and client.counts["stored"] == 4
    with Client(tmp_path / "s.sqlite", announce=None) as client:
        first, second, third = client.stored(requests)  # a failure would be asked for again
        assert first.from_store and second is None and third is None
        assert client.counts["stored"] == 1 and client.counts["requests"] == 0


def test_a_joint_request_sets_the_cost_of_all_its_replies_aside_and_goes_singly_where_that_is_too_much(provider):
    prices = {"acme/m": (0.0, 0.001)}  # 100 tokens cost 0.1
    with Client(":memory:", budget_usd=0.25, prices=prices, announce=None) as client:
        client.run_sync(together(client, group("acme/m", "three", params={"max_tokens": 100})))
        assert provider.asked == [("three", 1)] * 3 and client.spent_usd == pytest.approx(0.003)
        with pytest.raises(BudgetReached):
            client.run_sync(together(client, group("acme/m", params={"max_tokens": 400})))
        provider.asked.clear()
        calls = client.run_sync(together(client, group("acme/m", count=2, params={"max_tokens": 100})))
        assert provider.asked == [("question", 2)] and client.spent_usd == pytest.approx(0.005)
        assert sum(call.cost_usd for call in calls) == pytest.approx(0.002)


def test_twice_in_a_row_inside_a_running_loop(client, provider):
    """As in a notebook, whose own loop runs: the synchronous form, then the asynchronous one."""

    async def cell(text):
        first = client.run_sync(together(client, group("acme/m", text)))
        (second,) = await asyncio.gather(client.acall(group("acme/m", f"{text}, awaited")[0]))
        return [*first, second]

    for text in ("one", "two"):
        assert [call.status for call in asyncio.run(cell(text))] == ["ok"] * 4


def test_the_time_of_a_call_is_that_of_its_last_request(provider):
    provider.pause = 0.05
    with Client(":memory:", max_concurrency=1, announce=None) as client:
        before = time.time()

        async def two():
            return await asyncio.gather(*(client.acall(request) for request in group("acme/m", count=2)))

        first, second = client.run_sync(two())
    at = [datetime.fromisoformat(call.called_at).timestamp() for call in (first, second)]
    assert before - 0.002 <= at[0] and at[1] - at[0] >= 0.045 and second.latency_s < 0.2


def paid(calls):
    """Requests, tokens and dollars of stored calls."""
    return [sum(getattr(call, name) or 0 for call in calls) for name in ("requests", "output_tokens", "cost_usd")]


LONG = "the same long answer, word for word, in every choice"


@pytest.mark.parametrize(
    ("plan", "requests", "tokens"),
    [
        ([reply(""), reply(""), reply("fine")], 3, 3),  # asked again, one call
        ([[reply(""), reply("a"), reply("b")]], 2, 4),
        ([[reply(""), reply(""), reply("")]], 4, 6),
        ([[reply(LONG)] * 3], 3, 5),
        ([Failure("error", "n must be 1", paid=reply("a lost one"))], 4, 4),
        ([Failure("error", "broken off", True, paid=reply("half")), [reply("a"), reply("b"), reply("c")]], 2, 4),
    ],
)
def test_what_was_paid_in_vain_is_in_the_sums_over_stored_calls(client, provider, plan, requests, tokens):
    provider.plan = [
        [replace(one, cost_usd=0.5) for one in step] if isinstance(step, list)
        else replace(step, paid=replace(step.paid, cost_usd=0.5)) if isinstance(step, Failure)
        else replace(step, cost_usd=0.5) for step in plan
    ]  # fmt: skip
    client.sender.budget.prices["acme/free"] = (0, 0)  # another model's price does not matter
    calls = client.run_sync(together(client, group("acme/m", count=1 if len(plan) == 3 else 3)))
    assert {call.status for call in calls} == {"ok"}
    assert paid(calls)[:2] == [requests, tokens] and client.counts["requests"] == requests == len(provider.asked)
    assert paid(calls)[2] == pytest.approx(client.spent_usd) and client.spent_usd > 0


def test_a_call_that_fails_after_an_empty_reply_says_what_it_cost(client, provider):
    provider.plan = [reply("", cost_usd=0.5), Failure("error", "bad request")]
    call = client.call(group("acme/m")[0])
    assert (call.status, call.requests, call.output_tokens, call.cost_usd) == ("no_response", 2, 1, 0.5)


def test_equal_choices_are_kept_if_short_or_where_n_is_known_to_work(client, provider):
    provider.plan = [[reply("Yes.")] * 3, None, [reply(LONG)] * 3]
    for text in ("short", "differ", "known by now"):
        calls = client.run_sync(together(client, group("acme/m", text)))
    assert provider.asked == [("short", 3), ("differ", 3), ("known by now", 3)]
    assert [call.text for call in calls] == [LONG] * 3


def test_a_request_without_a_key_fails_its_whole_group(client, provider):
    async def run():
        tasks = client.together(group("acme/m", params={"temperature": float("nan")}))
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(error) for error in client.run_sync(run())] == [InputError] * 3 and not provider.asked


@pytest.mark.parametrize(("finish_s", "stored"), [(5, 1), (0, 0)])
def test_closing_from_a_coroutine_keeps_what_is_out_for_as_long_as_it_is_told(provider, tmp_path, finish_s, stored):
    provider.pause = 0.2

    async def run():
        client = Client(tmp_path / "s.sqlite", announce=None)
        task = asyncio.create_task(client.acall(group("acme/m")[0]))
        while not provider.asked:
            await asyncio.sleep(0.01)
        turns = 0
        closing = asyncio.create_task(client.aclose(finish_s))
        while not closing.done():
            await asyncio.sleep(0.01)
            turns += 1
            closing.cancel()  # the impatient are not let go before it is closed
        task.cancel()
        await asyncio.gather(task, closing, return_exceptions=True)
        return turns

    assert asyncio.run(run()) >= stored * 5  # this loop went on meanwhile
    with Store(tmp_path / "s.sqlite") as store:
        assert sum(store.info()["calls"].values()) == stored
