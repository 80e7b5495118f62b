"""Embeddings through the client: one stored call per text, many texts per request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary, WeakValueDictionary

from . import transport
from .calls import Request, request_key
from .errors import SetupError, SortingFailed
from .failures import Failure
from .sending import Trip

BATCH = 96  # texts in one request; providers take at least this many

# Several layouts want the same texts at once; who comes second finds them in the store.
_LOCKS: WeakKeyDictionary = WeakKeyDictionary()


async def embed(client, model: str | Callable, texts: list[str], options: Mapping) -> list[list[float]]:
    """Vectors for `texts`, in their order; equal texts are embedded once.

    Raises
    ------
    MissingCall
        Offline, and a text's vector is not in the store.
    SetupError
        If the first call of a model shows that key, address or model name are wrong.
    SortingFailed
        If the provider gives no vectors.
    """
    requests = {text: Request(model, ({"role": "user", "content": text},), "embedding", {}, options) for text in texts}
    if callable(model):
        calls = await asyncio.gather(*(client.acall(request) for request in requests.values()))
        found = dict(zip(requests, calls, strict=True))
    else:
        locks = _LOCKS.setdefault(client, WeakValueDictionary())
        async with locks.setdefault((model, tuple(texts)), asyncio.Lock()):
            found = await _found(client, requests)
    for call in found.values():
        if call.status != "ok":
            raise SortingFailed(
                f"No embedding from {call.model!r} ({call.status_reason or call.status}): {call.error or 'no detail'} "
                "Finished calls are kept; run again to resume."
            )
    vectors = {text: json.loads(call.text) for text, call in found.items()}
    return [vectors[text] for text in texts]


async def _found(client, requests: Mapping[str, Request]) -> dict:
    """Calls by text: those of the store, and the others asked for in requests of `BATCH` texts."""
    keys = {text: request_key(request) for text, request in requests.items()}
    stored = client.store.get_many(keys.values())
    found = {text: client.from_store(stored[key]) for text, key in keys.items() if key in stored}
    missing = [text for text in requests if text not in found]
    if missing and client.offline:
        raise client.missing(keys[missing[0]], requests[missing[0]])
    parts = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
    trips = [(Trip(), [requests[text] for text in part]) for part in parts]
    waits = [client.underway.finishing(trip, _fetch(client, part, trip)) for trip, part in trips]
    for calls in await asyncio.gather(*waits):
        found |= calls
    return found


async def _fetch(client, requests: list[Request], trip: Trip) -> dict:
    """Calls by text for requests that share everything but their text."""
    first, texts = requests[0], [request.messages[0]["content"] for request in requests]
    way = await client.sender.way(first)
    joined = Request(first.model, [request.messages[0] for request in requests], "embedding", {}, first.options)

    async def send():
        return await transport.embed(first, texts, way.target, way.sent, client.sender.timeout_s)

    outcome, details = await client.sender.send_until_done(joined, way, send, trip, len(texts))
    hopeless = client.sender.beyond_reach(first, outcome)
    outcomes = [outcome] * len(texts) if isinstance(outcome, Failure) else outcome
    calls = [
        # The request counts once, so that sums over calls are right.
        client.sender.record(
            request_key(request), request, one, dict(way.sent), details if not place else details | {"requests": 0}
        )
        for place, (request, one) in enumerate(zip(requests, outcomes, strict=True))
    ]
    await asyncio.gather(*(client.underway.keep(call, request) for call, request in zip(calls, requests, strict=True)))
    if hopeless:
        raise SetupError(f"No embedding from {calls[0].model!r}: {calls[0].error}")
    return dict(zip(texts, calls, strict=True))
