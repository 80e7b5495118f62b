"""The way to one model that structures, judges and measures are given: live, or its stored calls alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .asks import settle
from .calls import SORTING, Request, request_key
from .errors import MissingCall

if TYPE_CHECKING:
    from .llm import Client


class Way:
    """The way to one model, or to its stored calls alone; it keeps its calls, so that rows can name and count them."""

    is_asker = True

    def __init__(self, client: Client, model: object, options: dict, tags: Mapping, stored_only: bool) -> None:
        self.model, self.calls = model, []
        self._client, self._options, self._stored_only = client, options, stored_only
        self._ask = client.asker(model, options, tags=tags)

    async def __call__(self, messages, **settings):
        if self._stored_only:
            return self._stored(messages, **settings)
        call, parsed = await self._ask(messages, **settings)
        self.calls.append(call)
        return call, parsed

    def _stored(
        self, messages, *, role, params=None, accept=None, memories=(), draw=0, tries=3, compute=None, seen=None
    ):
        """As a client's `ask` answers, if the store holds all that it takes; else `MissingCall`."""
        request = Request(
            compute or self.model, messages, role, dict(params or {}), self._options,
            replicate=draw if role in SORTING else 0, memories=memories,
        )  # fmt: skip
        tried = []
        while True:
            call = self._client.store.get(request_key(request))
            if call is None:
                raise MissingCall
            call, parsed = settle(call, accept)
            tried.append(call)
            if call.status != "rejected" or call.truncated:
                break
            request = replace(request, attempt=request.attempt + 1)
        for one in tried:
            self._client.from_store(one)
        if seen is not None:
            seen += tried
        self.calls.append(call)
        return call, parsed

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if self._stored_only:
            raise MissingCall
        return await self._client.aembed(self.model, texts, self._options)
