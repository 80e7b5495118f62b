"""connection: what a small request shows of a server, against servers that honour everything, or not."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from structmem.cli import main
from structmem.connection import check_connection
from structmem.errors import InputError

KEY = "sk-SYNTHETIC-000000"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        status, out = self.answer(body["model"], body)
        data = json.dumps(out).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, model, body):
        def refuse(said):
            return 400, {"error": {"message": said, "type": "invalid_request_error"}}

        if not self.path.endswith("/v1/chat/completions"):
            return 404, {"error": {"message": "Not Found"}}
        if model == "locked":
            return 401, {"error": {"message": f"wrong key {self.headers['authorization']}"}}
        if model == "strict" and body.get("n", 1) > 1:
            return refuse("n must be 1")
        if model == "strict" and "temperature" in body:
            return refuse("Unsupported value: 'temperature'. Only the default (1) is supported.")
        if model == "surly" and set(body) - {"model", "messages", "max_tokens"}:
            return refuse("Bad request.")
        if model == "closed":
            return refuse("Bad request.")
        keeps = model in ("good", "strict") and "response_format" in body
        text = '{"greeting": "hello", "language": "en"}' if keeps else "Hello!"
        choices = 1 if model == "plain" else body.get("n", 1)
        out = {
            "id": "c", "object": "chat.completion", "created": 1, "model": f"{model}-0613",
            "choices": [
                {"index": k, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                for k in range(choices)
            ],
        }  # fmt: skip
        if model != "plain":
            out["usage"] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return 200, out


@pytest.fixture(scope="module")
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads, httpd.bodies = True, []
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    httpd.host = f"http://127.0.0.1:{httpd.server_address[1]}"
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def check(server):
    server.bodies.clear()
    return lambda model, **options: check_connection(model, {"api_base": server.host, "api_key": KEY} | options)


def test_a_server_that_honours_everything(check, server):
    found = check("hosted_vllm/good")
    assert found.ok and found.problem is None and found.requests == len(server.bodies) == 1
    assert found.url == f"{server.host}/v1/chat/completions"
    assert (found.served_model, found.finish_reason) == ("good-0613", "stop")
    assert (found.usage, found.n, found.schema, found.temperature) == (True, True, True, True)
    assert "language" not in server.bodies[0]["messages"][0]["content"]  # only the schema asks for it


def test_a_server_that_passes_over_what_it_does_not_know(check):
    found = check("openai/plain")
    assert found.ok and (found.usage, found.n, found.temperature) == (False, False, True)
    # litellm does not know this model to take a schema, so none is sent
    assert found.schema is None and check("hosted_vllm/plain").schema is False


def test_a_server_that_refuses_one_setting_after_the_other(check, server):
    found = check("hosted_vllm/strict")
    assert found.ok and found.requests == len(server.bodies) == 3
    assert (found.n, found.schema, found.temperature) == (False, True, False)
    assert "n must be 1" in found.problem and "Unsupported value" in found.problem


def test_a_server_that_refuses_without_a_word(check, server):
    found = check("hosted_vllm/surly")
    assert found.ok and found.requests == 2 and "Bad request" in found.problem
    assert (found.n, found.schema, found.temperature) == (None, None, None)
    failed = check("hosted_vllm/closed")
    assert not failed.ok and failed.requests == 2 and "Bad request" in failed.problem


def test_what_is_wrong_is_said_without_the_key(check, server):
    found = check("openai/locked")
    assert not found.ok and found.requests == 1 and "HTTP 401" in found.problem and "SYNTHETIC" not in repr(found)
    lost = check("openai/good", api_base=f"{server.host}/v2/")
    assert not lost.ok and lost.url == f"{server.host}/v2/chat/completions" and lost.url in lost.problem
    nobody = check("hosted_vllm/good", api_base="http://127.0.0.1:9/v1", timeout=5)
    assert not nobody.ok and nobody.requests == 1 and "127.0.0.1:9" in nobody.url


def test_what_cannot_be_sent(check, monkeypatch):
    monkeypatch.delenv("HOSTED_VLLM_API_BASE", raising=False)
    found = check_connection("hosted_vllm/good")
    assert (found.ok, found.url, found.requests) == (False, None, 0) and "address is missing" in found.problem
    with pytest.raises(InputError, match="provider of 'good' is not known"):
        check_connection("good")
    with pytest.raises(InputError, match="must be a litellm model id"):
        check_connection(len)


def test_ping(server, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert main(["ping", "openai/good", "--api-base", f"{server.host}/v1/chat/completions"]) == 0
    said = capsys.readouterr().out
    assert f"URL             {server.host}/v1/chat/completions\n" in said and "served model    good-0613" in said
    assert main(["ping", "openai/locked", "--api-base", server.host]) == 1
    said = capsys.readouterr().out
    assert "failed" in said and "HTTP 401" in said and "SYNTHETIC" not in said
