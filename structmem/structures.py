"""STRUCTURES: one function per memory structure, from memories to a Node; structure() and astructure()."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from .data import Memory, wrap_memories
from .embedding_sorting import query_similarities
from .errors import InputError
from .registry import STRUCTURES, Job, build, check_kept, checked_options, option_defaults, register, spec
from .scripts import warn_of_script
from .sorters import offline_embedder, provider_model
from .structurers import Asker
from .taxonomy import Taxonomy, load_taxonomy, taxonomies
from .tree import Node

__all__ = ["STRUCTURES", "astructure", "option_defaults", "register", "spec", "structure"]

if TYPE_CHECKING:
    import numpy as np


@register("flat", keeps_all=True, uses_query=False, uses_structurer=False)
def flat(job: Job) -> Node:
    """The memories as one list, in the given order."""
    return Node(None, job.memories)


@register("fixed", keeps_all=True, uses_query=False)
async def fixed(job: Job) -> Node:
    """Each memory in exactly one of the taxonomy's domains."""
    return build(job.memories, await job.sort("fixed"), job.taxonomy)


@register("dynamic", keeps_all=True, uses_query=False)
async def dynamic(job: Job, *, max_new_domains: int = 2) -> Node:
    """As `fixed`, with up to `max_new_domains` new domains of at least two memories each."""
    return build(job.memories, await job.sort("dynamic", max_new_domains=max_new_domains), job.taxonomy)


@register("tree", keeps_all=True, uses_query=False)
async def tree(job: Job, *, max_leaves: int = 7) -> Node:
    """Domains divided into up to `max_leaves` leaves each; a memory may stay at the domain."""
    return build(job.memories, await job.sort("tree", max_leaves=max_leaves), job.taxonomy)


@register("rag", keeps_all=False, uses_query=True, structurer="embedding")
async def rag(job: Job, *, threshold: float | None = 0.1, top_k: int | None = None) -> Node:
    """The memories near the query, in the given order; possibly none.

    `threshold` is the least cosine similarity. With WordLlama, 0.1 keeps about a third of PersistBench's memories and
    leaves few contexts empty; another embedding model has another scale. `top_k` keeps the nearest k of those.
    """
    nearness = await query_similarities(job.asker, job.texts, job.query, job.structurer)
    keep = [i for i, s in enumerate(nearness) if threshold is None or s >= threshold]
    keep = sorted(keep, key=lambda i: (-nearness[i], i))[:top_k]
    return Node(None, tuple(job.memories[i] for i in sorted(keep)))


def _asker(structurer, ask, draw: int, name: str) -> Asker | None:
    offline = offline_embedder(structurer)
    if structurer == "self":
        raise InputError("structurer 'self' is the answering model, which only a run has; name a model.")
    if not callable(structurer) and not (isinstance(structurer, str) and structurer.strip()):
        raise InputError(
            "structurer must be 'embedding', a litellm model id such as 'openai/gpt-4o' or a callable, "
            f"got {structurer!r}."
        )
    if structurer == "embedding:":
        raise InputError("structurer 'embedding:' names no embedding model; expected 'embedding:openai/…' or another.")
    if ask is None and offline:
        return None
    from . import llm

    if offline and not getattr(ask, "is_asker", False):
        raise InputError(
            f"structurer {structurer!r} sorts without a language model, but ask was given: name the model that ask "
            "speaks to (structurer='openai/…' or any other name), or leave ask out."
        )
    embeds = provider_model(structurer) or (structurer if name == "rag" and not offline else None)
    if embeds is not None:
        if ask is None:
            ask = SimpleNamespace(embed=functools.partial(llm.default_client().aembed, embeds))
        elif not hasattr(ask, "embed"):
            raise InputError(
                f"structure {name!r} needs structurer='embedding', or a litellm embedding model whose ask offers "
                f"embed(texts); the ask given for {structurer!r} has no embed."
            )
        return Asker(ask, draw)
    if ask is None:
        ask = llm.default_client().asker(structurer)
    return Asker(llm.as_ask(ask), draw, parallel=_waits(ask))


def _waits(ask) -> bool:
    """Whether a call through `ask` can suspend, so that it needs an event loop."""
    return inspect.iscoroutinefunction(ask) or inspect.iscoroutinefunction(getattr(ask, "__call__", None))  # noqa: B004


# Reading YAML takes longer than sorting; files of the package do not change while it runs.
_packaged = functools.cache(load_taxonomy)
_shipped = functools.cache(taxonomies)


def _taxonomy(source: str | Taxonomy | None) -> Taxonomy:
    source = "life11" if source is None else source
    return _packaged(source) if isinstance(source, str) and source in _shipped() else load_taxonomy(source)


async def astructure(
    memories: Iterable[str | Memory],
    name: str,
    *,
    query: str | None = None,
    taxonomy: str | Taxonomy | None = None,
    structurer: str | Callable = "embedding",
    ask: Callable | None = None,
    rng: np.random.Generator | None = None,
    partition_draw: int = 0,
    **options,
) -> Node:
    """Lay out memories as one of the `STRUCTURES`; the asynchronous form of `structure`."""
    found = spec(name)
    settings = checked_options(name, structurer, options)
    given = wrap_memories(memories)
    if found.uses_query and (not isinstance(query, str) or not query.strip()):
        raise InputError(f"structure '{name}' uses the query; expected a text, got {query!r}.")
    if not given and found.keeps_all:
        return Node(None)
    if ask is None and found.uses_structurer and found.base is None:  # who has a client warns of all sets at once
        warn_of_script([m.text for m in given] + ([query] if found.uses_query else []), structurer, depth=5)
    base, below = None, {}
    if found.base:
        below = {option: settings.pop(option) for option in option_defaults(found.base, structurer)}
        base = await astructure(
            given, found.base, query=query, taxonomy=taxonomy, structurer=structurer, ask=ask, rng=rng,
            partition_draw=0 if found.random else partition_draw, **below,
        )  # fmt: skip
    job = Job(
        given,
        query,
        _taxonomy(found.taxonomy or taxonomy),
        structurer,
        _asker(structurer, ask, partition_draw, name) if found.uses_structurer else None,
        rng,
        below | {option: value for option, value in settings.items() if option not in found.options},
        base,
        name,
        partition_draw,
    )
    node = found.fn(job, **{option: settings[option] for option in found.options})
    if inspect.isawaitable(node):
        node = await node
    check_kept(given, node, keeps_all=found.keeps_all, name=name)
    if base is not None and base.note and node.note is None:  # such as that a tree has one level only
        node = replace(node, note=base.note)
    return node


def structure(
    memories: Iterable[str | Memory],
    name: str,
    *,
    query: str | None = None,
    taxonomy: str | Taxonomy | None = None,
    structurer: str | Callable = "embedding",
    ask: Callable | None = None,
    rng: np.random.Generator | None = None,
    partition_draw: int = 0,
    **options,
) -> Node:
    """Lay out memories as one of the `STRUCTURES`.

    Parameters
    ----------
    memories : iterable of str or Memory
        Texts may repeat, ids may not; strings get their position ("1", "2", …) as id.
    name : str
        ``flat``, ``fixed``, ``dynamic``, ``tree``, ``rag`` or another of `STRUCTURES`.
    query : str, optional
        Needed by structures that use the query.
    taxonomy : str or Taxonomy, optional
        The domains, default ``life11``: a name from the package, the path of a YAML file, or a Taxonomy. A structure
        with a taxonomy of its own (``epistemic``) always uses that one.
    structurer : str or callable
        Who sorts. ``"embedding"`` (default) works offline and opens no socket, but reads English: it warns of text
        mostly outside Latin script. ``"embedding:multilingual"`` is offline too and reads 16 languages, with the extra
        ``multilingual``; ``"embedding:MODEL"`` is a litellm embedding model; a litellm model id or a callable model
        classifies by reading. An id sends every memory to that provider. For ``rag`` it is an embedding model.
    ask : callable, optional
        The way to the structurer, ``ask(messages, *, role, params, accept, memories, draw)``, plain or async; by
        default the package's client.
    rng : numpy.random.Generator, optional
        For structures that draw at random.
    partition_draw : int
        Index of an independent repetition of the sorting; for structures that draw at random, of the draw.
    **options
        See `option_defaults`; for example ``max_new_domains``, ``max_leaves``, ``threshold``, ``per_memory``.

    Returns
    -------
    Node
        One node (``flat``, ``rag``), one level of domains, or two levels. For structures that keep all, every memory
        is in exactly one place, `unclassified` if need be.

    Raises
    ------
    InputError
        For an argument off the menu.
    SortingFailed
        If the structurer's provider could not be reached.
    """
    waits = _waits(ask) if ask is not None else not offline_embedder(structurer)
    needs_loop = spec(name).uses_structurer and waits
    work = astructure(
        memories, name, query=query, taxonomy=taxonomy, structurer=structurer, ask=ask, rng=rng,
        partition_draw=partition_draw, **options,
    )  # fmt: skip
    if needs_loop:
        from . import background

        return background.run_sync(work)
    return drive(work)


def drive(work) -> Node:
    """Run a coroutine that waits for nothing to its end, without an event loop or a thread."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    finally:
        work.close()
    raise InputError("ask is a plain function but waits for something; declare it with 'async def', or use astructure.")


# Registered after the structures above, which come first in every menu.
from . import controls, filters  # noqa: E402, F401
