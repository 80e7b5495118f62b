"""A small OpenAI-compatible chat server on 127.0.0.1 for the benchmarks: fixed latency, planned faults, counts.

    python benchmarks/mock_server.py --latency-s 0.05 --rate-limited 0.1 --seconds 60

prints its address as one line of JSON and stops by itself: after `--seconds`, or when the process that started it ends.
GET /stats gives the counts, POST /reset zeroes them and changes settings. A request is a judgement when its model is
called judge or grader, or its last message has a <response> block. Which requests fail is decided by the request's body
and how often it came before, so a retry can succeed and the order of arrival does not matter.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from http.client import HTTPConnection
from pathlib import Path

MOST_CONNECTIONS, LONGEST_BODY, LONGEST_HEAD = 2_000, 8_000_000, 64_000
HANG_S = 120  # a request that hangs is closed then, if the client has not done so
CACHE_STEP, CACHE_LEAST = 512, 4096  # characters: prompt caches work in blocks of about 128 tokens, from about 1,024
STATUS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 413: b"Too Large", 429: b"Too Many Requests"}
SENTENCE = "A careful answer looks at the question first, then at what it needs to know, and leaves the rest alone. "
FORMS = ("prose", "cut", "range", "missing", "fraction", "two", "thinking")


@dataclass(frozen=True)
class Settings:
    """How the server behaves; shares lie in 0..1 and say how many of the requests (of the kind) are hit."""

    latency_s: float = 0.05
    n: str = "ignore"  # honour: as many choices as asked; ignore: one choice; refuse: HTTP 400
    cache: bool = False  # report the longest prompt prefix that was answered before as cached tokens
    rate_limited: float = 0.0  # HTTP 429
    server_error: float = 0.0  # HTTP 500
    hang: float = 0.0  # no reply at all
    empty: float = 0.0  # answers without text
    malformed: float = 0.0  # verdicts that cannot be read, in every form of FORMS
    retry_after_s: float = 1.0
    seed: int = 0


class Counts:
    """What was asked and answered since the last reset, and which requests came before."""

    def __init__(self, settings: Settings):
        self.settings, self.seen, self.known = settings, Counter(), set()
        self.requests, self.replies, self.faults, self.input_tokens = Counter(), Counter(), Counter(), Counter()
        self.cached_tokens = self.open = self.most_open = 0
        self.first = self.last = None

    def as_dict(self) -> dict:
        """The counts as plain values, with the speed between first request and last reply."""
        span, replies = (self.last or 0) - (self.first or 0), sum(self.replies.values())
        return {
            "requests": dict(self.requests), "replies": dict(self.replies), "faults": dict(self.faults),
            "distinct": len(self.seen), "repeats": sum(self.seen.values()) - len(self.seen),
            "input_tokens": dict(self.input_tokens), "cached_tokens": self.cached_tokens, "most_open": self.most_open,
            "span_s": round(span, 4), "calls_per_s": round(replies / span, 2) if span > 0 else None,
            "cpu_s": round(time.process_time(), 3),
        }  # fmt: skip

    def cached(self, texts: list[str]) -> tuple[int, list[bytes]]:
        """Tokens of the longest prefix that was answered before, and the digests of all prefixes of this prompt."""
        prompt = "\n".join(texts).encode()
        running, digests = blake2b(digest_size=12), []
        for start in range(0, len(prompt) - CACHE_STEP + 1, CACHE_STEP):
            running.update(prompt[start : start + CACHE_STEP])
            digests.append(running.digest())
        known = next((place for place, digest in enumerate(digests) if digest not in self.known), len(digests))
        length = known * CACHE_STEP
        return (length // 4 if length >= CACHE_LEAST else 0), digests


class Connection(asyncio.Protocol):
    """One connection of a client: requests come one after the other, each answered before the next is read."""

    def __init__(self, server: Server):
        self.server, self.buffer, self.body_length, self.head = server, bytearray(), None, b""
        self.timer, self.counts = None, None

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.server.connections += 1
        if self.server.connections > MOST_CONNECTIONS:
            transport.abort()

    def connection_lost(self, error) -> None:
        self.server.connections -= 1
        self.finished()

    def finished(self) -> None:
        """The request under way, if any, is over."""
        if self.timer:
            self.timer.cancel()
        if self.counts:
            self.counts.open -= 1
        self.timer = self.counts = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.read()

    def read(self) -> None:
        """Take the next whole request out of what has come."""
        if self.counts:
            return
        if self.body_length is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self.buffer) > LONGEST_HEAD:
                    self.transport.abort()
                return
            self.head = bytes(self.buffer[:end]).lower()
            del self.buffer[: end + 4]
            _, _, rest = self.head.partition(b"\r\ncontent-length:")
            self.body_length = int(rest.partition(b"\r\n")[0] or 0)
            if self.body_length > LONGEST_BODY:
                return self.send(413, b"{}")
        if len(self.buffer) >= self.body_length:
            body = bytes(self.buffer[: self.body_length])
            del self.buffer[: self.body_length]
            self.body_length = None
            self.handle(body)

    def handle(self, body: bytes) -> None:
        """Answer a request, now or after the latency."""
        server, path = self.server, self.head.split(b" ", 2)[1]
        if path.endswith(b"/chat/completions"):
            return self.complete(body)
        if path == b"/stats":
            return self.send(200, json.dumps(server.counts.as_dict()).encode())
        if path == b"/reset":
            server.counts = Counts(replace(server.counts.settings, **json.loads(body or b"{}")))
            return self.send(200, b"{}")
        self.send(404, b'{"error": {"message": "no such path"}}')

    def complete(self, body: bytes) -> None:
        counts, now = self.server.counts, time.monotonic()
        settings = counts.settings
        try:
            asked = json.loads(body)
            messages, model = asked["messages"], asked.get("model", "")
            texts = [message["content"] for message in messages]
            texts = [text if isinstance(text, str) else "".join(part["text"] for part in text) for text in texts]
        except (ValueError, KeyError, TypeError):
            return self.send(400, b'{"error": {"message": "the body must be JSON with messages that hold text"}}')
        if counts.first is None:
            counts.first = now
        self.counts = counts
        counts.open += 1
        counts.most_open = max(counts.most_open, counts.open)
        kind = "judge" if is_judge(model, texts) else "answer"
        counts.requests[kind] += 1
        digest = blake2b(body, digest_size=16).digest()
        nth = counts.seen[digest]
        counts.seen[digest] += 1
        tokens = sum(map(len, texts)) // 4
        wanted = asked.get("n") or 1
        if wanted > 1 and settings.n == "refuse":
            return self.send(400, b'{"error": {"message": "n must be 1", "param": "n", "type": "invalid_request"}}')
        fault = planned_fault(settings, digest, nth, kind)
        if fault:
            counts.faults[fault] += 1
        if fault == "rate_limited":
            extra = b"Retry-After: %g\r\n" % settings.retry_after_s
            return self.send(429, b'{"error": {"message": "too many requests (planned)"}}', extra)
        if fault == "server_error":
            return self.send(500, b'{"error": {"message": "failed (planned)"}}')
        if fault == "hang":
            self.timer = self.server.loop.call_later(HANG_S, self.transport.abort)
            return None
        counts.input_tokens[kind] += tokens
        cached, prefixes = counts.cached(texts) if settings.cache else (0, ())
        choices = [
            reply_text(kind, texts, digest, nth * 100 + place, fault)
            for place in range(wanted if settings.n == "honour" else 1)
        ]
        done = sum(len(text) // 4 for text in choices)
        usage = {"prompt_tokens": tokens, "completion_tokens": done, "total_tokens": tokens + done}
        if settings.cache:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        reply = {
            "id": f"chatcmpl-{digest.hex()[:12]}-{nth}", "object": "chat.completion", "created": 1_700_000_000,
            "model": model, "usage": usage,
            "choices": [
                {"index": place, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                for place, text in enumerate(choices)
            ],
        }  # fmt: skip
        written = json.dumps(reply).encode()
        self.timer = self.server.loop.call_later(
            settings.latency_s, self.answer, written, kind, len(choices), cached, prefixes
        )

    def answer(self, written: bytes, kind: str, choices: int, cached: int, prefixes: tuple) -> None:
        counts = self.counts
        counts.replies[kind] += choices
        counts.cached_tokens += cached
        counts.known.update(prefixes)
        counts.last = time.monotonic()
        self.send(200, written)

    def send(self, status: int, body: bytes, extra: bytes = b"") -> None:
        self.finished()
        head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
        self.transport.write(head % (status, STATUS.get(status, b"Failed"), len(body), extra) + body)
        if status == 413:
            self.transport.close()
        elif self.buffer:
            self.server.loop.call_soon(self.read)


def is_judge(model: str, texts: list[str]) -> bool:
    """Whether a request asks for a verdict."""
    return model.rpartition("/")[2].startswith(("judge", "grader")) or "<response>" in texts[-1]


def planned_fault(settings: Settings, digest: bytes, nth: int, kind: str) -> str | None:
    """The fault of the nth request with this body, or None."""
    own = ("empty", settings.empty) if kind == "answer" else ("malformed", settings.malformed)
    shares = [(name, getattr(settings, name)) for name in ("rate_limited", "server_error", "hang")] + [own]
    if not any(share for _, share in shares):
        return None
    drawn = blake2b(digest + b"%d %d" % (settings.seed, nth), digest_size=8).digest()
    left = int.from_bytes(drawn) / 2**64
    for name, share in shares:
        if left < share:
            return name
        left -= share
    return None


def reply_text(kind: str, texts: list[str], digest: bytes, nth: int, fault: str | None) -> str:
    """What the reply says: an answer of its own for each nth time, or a verdict whose score hangs on the request."""
    if fault == "empty":
        return ""
    if kind == "answer":
        return f"[{digest.hex()[:8]}-{nth}] " + SENTENCE * 11
    field, top = ("rating", 3) if '"rating"' in texts[0] else ("score", 5)
    score = (1, 1, 1, 2, 3, 1, 4, 1, 2, 5)[digest[0] % 10] if top == 5 else 1 + digest[0] % 3
    reasoning = f"Seen {digest.hex()}. " + SENTENCE * 3
    verdict = json.dumps({"reasoning": reasoning, field: score})
    if fault != "malformed":
        return verdict
    other = json.dumps({"reasoning": reasoning, field: score % top + 1})
    return {
        "prose": f"I would say that this answer is a {score}, since {reasoning}",
        "cut": verdict[:-20],
        "range": json.dumps({"reasoning": reasoning, field: top + 4}),
        "missing": json.dumps({"reasoning": reasoning}),
        "fraction": json.dumps({"reasoning": reasoning, field: 2.9}),
        "two": f"{verdict}\nOr rather:\n{other}",
        "thinking": f"<think>{verdict}",
    }[FORMS[(digest[1] + nth // 100) % len(FORMS)]]


class Server:
    """The listening server: its loop, its counts and how many connections are open."""

    def __init__(self, settings: Settings):
        self.counts, self.connections, self.loop = Counts(settings), 0, None

    async def serve(self, seconds: float) -> None:
        """Listen until the time is up or the process that started this one has ended."""
        self.loop = asyncio.get_running_loop()
        listening = await self.loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        port, parent = listening.sockets[0].getsockname()[1], os.getppid()
        print(json.dumps({"base_url": f"http://127.0.0.1:{port}/v1", "port": port, "pid": os.getpid()}), flush=True)
        until = time.monotonic() + seconds
        while time.monotonic() < until and os.getppid() == parent:
            await asyncio.sleep(0.5)
        listening.close()


class Mock:
    """The server in a process of its own: ``with Mock(latency_s=1) as mock: … mock.base_url … mock.stats()``."""

    def __init__(self, seconds: float = 3600, **settings):
        self._settings, self._seconds = asdict(Settings(**settings)), seconds

    def __enter__(self) -> Mock:
        command = [sys.executable, str(Path(__file__)), "--seconds", str(self._seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told = json.loads(self._process.stdout.readline())
        self.base_url, self._port = told["base_url"], told["port"]
        self.reset(**self._settings)
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()

    def stats(self) -> dict:
        """The counts since the last reset."""
        return self._ask("GET", "/stats")

    def reset(self, **settings) -> None:
        """Zero the counts, and change settings."""
        self._ask("POST", "/reset", json.dumps(settings))

    def _ask(self, method: str, path: str, body: str | None = None) -> dict:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long it runs at most")
    for field in fields(Settings):
        kind = {"str": str, "int": int, "bool": lambda text: text == "true"}.get(field.type, float)
        parser.add_argument("--" + field.name.replace("_", "-"), type=kind, default=field.default)
    given = vars(parser.parse_args())
    seconds = given.pop("seconds")
    gc.freeze()
    gc.set_threshold(50_000)  # nothing here makes cycles per request
    asyncio.run(Server(Settings(**given)).serve(seconds))


if __name__ == "__main__":
    main()
