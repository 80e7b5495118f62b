"""Which embedding sorts: the offline ones by name, or a provider's embedding model after a prefix."""

from __future__ import annotations

EMBEDDING = "embedding"  # WordLlama, made for English
MULTILINGUAL = "embedding:multilingual"  # offline too, with the extra `multilingual`
_PREFIX = "embedding:"


def by_embedding(structurer: object) -> bool:
    """Whether an embedding sorts, and no language model.

    Examples
    --------
    >>> [by_embedding(s) for s in ("embedding", "embedding:multilingual", "embedding:openai/m", "openai/gpt-4o")]
    [True, True, True, False]
    """
    return isinstance(structurer, str) and (structurer == EMBEDDING or structurer.startswith(_PREFIX))


def provider_model(structurer: object) -> str | None:
    """The litellm id of the embedding model that sorts; None where none of a provider does.

    Examples
    --------
    >>> [provider_model(s) for s in ("embedding", "embedding:multilingual", "embedding:openai/text-embedding-3-small")]
    [None, None, 'openai/text-embedding-3-small']
    """
    if not by_embedding(structurer) or structurer in (EMBEDDING, MULTILINGUAL):
        return None
    return structurer.removeprefix(_PREFIX)


def offline_embedder(structurer: object) -> bool:
    """Whether the embedder is one that runs here and opens no socket."""
    return structurer in (EMBEDDING, MULTILINGUAL)
