"""Sorting by embedding: an offline partition as one stored call, or a provider's vectors, sorted here."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .errors import InputError, StructmemError
from .sorters import EMBEDDING, offline_embedder, provider_model
from .structurers import Asker, Sorting, _why
from .taxonomy import Taxonomy

if TYPE_CHECKING:
    import numpy as np


def asked_model(structurer: object) -> object:
    """The model that a client is to ask for a structurer: an offline one's function, a provider's id, or itself."""
    if offline_embedder(structurer):
        from . import embedding

        return embedding.MODELS[structurer]
    return provider_model(structurer) or structurer


async def sort_by_embedding(
    ask: Asker | None, texts: Sequence[str], taxonomy: Taxonomy, name: str, options: Mapping, structurer=EMBEDDING
) -> Sorting:
    """An embedding structurer's partition: an offline one's, through `ask` (then it is a stored call) or directly.

    Of a provider's model the vectors are stored calls, one per text, and the partition is computed from them.
    """
    from . import embedding

    domains = [(domain.name, domain.definition) for domain in taxonomy.domains]
    if provider_model(structurer):
        vectors = await provider_vectors(ask, texts, structurer)
        definitions = await provider_vectors(ask, embedding.described(domains), structurer)  # shared by all sets
        result = embedding.sort_vectors(name, texts, vectors, definitions, tuple(domains), options)
    else:
        chat = embedding.messages(name, texts, domains=domains, options=dict(options))
        result = await embedding_reply(ask, chat, texts, structurer)
    paths = tuple(tuple(path) for path in result["paths"])
    if len(paths) != len(texts):
        raise StructmemError(f"The embedding structurer answered for {len(paths)} memories of {len(texts)}.")
    return Sorting(paths, tuple(result["new_domains"]))


async def provider_vectors(ask: Asker, texts: Sequence[str], structurer: str) -> np.ndarray:
    """Vectors of texts by a provider's embedding model, shape (n, dimensions).

    Raises
    ------
    InputError
        If it gave another number of vectors than there are texts, vectors of several lengths, or no finite numbers.
    """
    import numpy as np

    vectors = ask.ask.embed(list(texts))
    if inspect.isawaitable(vectors):
        vectors = await vectors
    try:
        table = np.asarray(vectors, dtype=np.float64)
        found = f"an array of shape {table.shape}"
    except (TypeError, ValueError):
        table, found = np.zeros(0), "vectors of several lengths or of no numbers"
    if table.ndim != 2 or len(table) != len(texts) or not np.isfinite(table).all():
        raise InputError(
            f"The embedding model of {structurer!r} gave {found}; expected one vector of finite numbers for each of "
            f"{len(texts)} texts, all of one length."
        )
    return table


async def embedding_reply(ask: Asker | None, chat: list[dict], texts: Sequence[str], structurer=EMBEDDING) -> dict:
    """An offline embedding structurer's JSON, decoded."""
    from . import embedding

    model = embedding.MODELS[structurer]
    if ask is None:
        return json.loads(model(chat))
    reply, call = await ask(
        chat, role="structurer", params={}, accept=lambda call: json.loads(call.text), memories=tuple(texts),
        compute=model,
    )  # fmt: skip
    if reply is None:
        raise InputError(f"The embedding structurer gave no result ({_why(call)}).")
    return reply


async def query_similarities(ask: Asker | None, texts: Sequence[str], query: str, structurer: str) -> list[float]:
    """Cosine similarity of each text to the query by an embedding model, rounded to 6 decimals."""
    from . import embedding

    if not offline_embedder(structurer):  # here a plain model id means an embedding model too
        # Apart, so that the texts are those of a sorting word for word, and are paid for once.
        near, rows = await provider_vectors(ask, [query], structurer), await provider_vectors(ask, texts, structurer)
        return embedding.similarities(embedding.unit_rows(rows), embedding.unit_rows(near))[:, 0].tolist()
    return (await embedding_reply(ask, embedding.messages("rag", texts, query=query), texts, structurer))[
        "similarities"
    ]
