"""The registry of structures: what each declares, its options, and the one place where a sorting becomes a Node."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .data import Memory
from .embedding_sorting import sort_by_embedding
from .errors import InputError, StructmemError, choice
from .sorters import EMBEDDING, by_embedding
from .structurers import (
    EMBEDDING_OPTIONS,
    MODEL_OPTIONS,
    OTHER_EMBEDDING_OPTIONS,
    WORDINGS,
    Asker,
    Sorting,
    sort_dynamic,
    sort_fixed,
    sort_tree,
)
from .taxonomy import Taxonomy
from .tree import UNCLASSIFIED, Node

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Job:
    """What a structure's function is given.

    Parameters
    ----------
    memories : tuple of Memory
    query : str or None
    taxonomy : Taxonomy
    structurer : str or callable
        Who sorts; ``"embedding"``, ``"embedding:…"`` or a model.
    asker : Asker or None
        The way to the structurer; None when an offline embedding structurer is called directly.
    rng : numpy.random.Generator or None
        For structures that draw at random; without it `order` goes by name, draw and memories.
    sorting_options : mapping
        Options of the structurer for this structure, checked and complete.
    base : Node or None
        The node of the structure that this one rearranges, where the spec names one.
    name : str
        The structure asked for.
    draw : int
        Index of an independent repetition of the sorting, or of the random draw.
    """

    memories: tuple[Memory, ...]
    query: str | None
    taxonomy: Taxonomy
    structurer: object
    asker: Asker | None
    rng: np.random.Generator | None
    sorting_options: Mapping = field(default_factory=dict)
    base: Node | None = None
    name: str = ""
    draw: int = 0

    @property
    def texts(self) -> list[str]:
        return [memory.text for memory in self.memories]

    def order(self, n: int, salt: str = "") -> list[int]:
        """A random permutation of range(n).

        Places are sorted by a hash of structure, draw, memories and `salt`, so that a draw is the same on every machine
        and under every version of numpy, and a stored answer is found again. With `rng` it depends on that instead.
        """
        if self.rng is not None:
            return [int(place) for place in self.rng.permutation(n)]
        seed = json.dumps([self.name, self.draw, salt, self.texts])
        return sorted(range(n), key=lambda place: hashlib.sha256(f"{place} {seed}".encode()).digest())

    async def sort(self, name: str, **limits) -> Sorting:
        """Ask the structurer for a ``fixed``, ``dynamic`` or ``tree`` sorting; `limits` are its own options."""
        if by_embedding(self.structurer):
            options = self.sorting_options | limits
            return await sort_by_embedding(self.asker, self.texts, self.taxonomy, name, options, self.structurer)
        options = dict(self.sorting_options)
        if options["json_schema"] is None:
            options["json_schema"] = isinstance(self.structurer, str)
        by_model = {"fixed": sort_fixed, "dynamic": sort_dynamic, "tree": sort_tree}[name]
        return await by_model(self.asker, self.texts, self.taxonomy, options, **limits)


@dataclass(frozen=True)
class StructureSpec:
    """A registered structure.

    Parameters
    ----------
    name : str
    fn : callable
        ``fn(job, **options) -> Node`` or a coroutine function; its keyword-only arguments are the structure's options.
    keeps_all : bool
        Every memory that goes in comes out, exactly once.
    uses_query : bool
        Made anew for every query; otherwise once per memory set.
    uses_structurer : bool
        Whether who sorts matters; False only for structures made from the memories alone.
    base : str or None
        The structure whose node this one rearranges.
    random : bool
        It draws at random: the draw is that of the arrangement, and the base is always draw 0.
    structurer : str or None
        Who sorts in a run unless the structure's own option says otherwise: 'embedding', or 'self' (the answering
        model); None: the run's structurers, one after the other.
    taxonomy : str or None
        The taxonomy of its own, whatever the run's taxonomies are.
    """

    name: str
    fn: Callable
    keeps_all: bool
    uses_query: bool
    uses_structurer: bool = True
    base: str | None = None
    random: bool = False
    structurer: str | None = None
    taxonomy: str | None = None

    @property
    def options(self) -> dict[str, object]:
        """Its own options with their defaults."""
        return dict(_keyword_options(self.fn))


@functools.cache
def _keyword_options(fn: Callable) -> tuple[tuple[str, object], ...]:
    return tuple((p.name, p.default) for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY)


STRUCTURES: dict[str, StructureSpec] = {}


def register(
    name: str,
    *,
    keeps_all: bool,
    uses_query: bool,
    uses_structurer: bool = True,
    base: str | None = None,
    random: bool = False,
    structurer: str | None = None,
    taxonomy: str | None = None,
):
    """Register the decorated function as a structure; see `StructureSpec`.

    Examples
    --------
    >>> @register("one_group", keeps_all=True, uses_query=False, base="fixed")  # doctest: +SKIP
    ... def one_group(job):
    ...     return Node(None, children=(Node("memories", job.memories),))
    """

    def add(fn: Callable) -> Callable:
        STRUCTURES[name] = StructureSpec(
            name, fn, keeps_all, uses_query, uses_structurer, base, random, structurer, taxonomy
        )
        return fn

    return add


def spec(name: str) -> StructureSpec:
    """The registered structure of that name.

    Raises
    ------
    InputError
        If there is none; the message shows the menu.
    """
    if not isinstance(name, str) or name not in STRUCTURES:
        raise choice("structure", name, STRUCTURES)
    return STRUCTURES[name]


def option_defaults(name: str, structurer: str | Callable = "embedding") -> dict[str, object]:
    """Every option that a structure takes under a structurer, with its default: its own, then the structurer's."""
    found = spec(name)
    mine = (option_defaults(found.base, structurer) if found.base else {}) | found.options
    if not found.uses_structurer or found.base or found.structurer:
        return mine
    if by_embedding(structurer):
        return mine | (EMBEDDING_OPTIONS if structurer == EMBEDDING else OTHER_EMBEDDING_OPTIONS).get(name, {})
    return mine | MODEL_OPTIONS


def build(memories: Sequence[Memory], sorting: Sorting, taxonomy: Taxonomy) -> Node:
    """The one place where a sorting becomes a Node.

    Domains stand in taxonomy order, then new ones in order of opening, then `unclassified`; leaves in order of their
    first memory; memories in the order given. Only groups that hold a memory appear.
    """
    groups: dict[str, dict[str | None, list[Memory]]] = {}
    for memory, path in zip(memories, sorting.paths, strict=True):
        domain, leaf = (*(path or (UNCLASSIFIED,)), None)[:2]
        groups.setdefault(domain, {}).setdefault(leaf, []).append(memory)
    order = [*taxonomy.names, *sorting.new_domains, UNCLASSIFIED]
    unknown = [domain for domain in groups if domain not in order]
    if unknown:
        raise StructmemError(f"A structurer put memories into {unknown}, which it neither was given nor opened.")
    why = "; ".join(f"memory {memories[i].id}: {sorting.problems[i]}" for i in sorted(sorting.problems)) or None
    children = []
    for domain in order:
        if domain in groups:
            leaves = groups[domain]
            inner = tuple(Node(leaf, tuple(held)) for leaf, held in leaves.items() if leaf is not None)
            children.append(Node(domain, tuple(leaves.get(None, ())), inner, why if domain == UNCLASSIFIED else None))
    return Node(None, children=tuple(children), note=sorting.note)


def check_kept(memories: Iterable[Memory], node: Node, *, keeps_all: bool, name: str) -> None:
    """Refuse a node that repeats, invents, changes or (where `keeps_all`) loses a memory.

    Raises
    ------
    StructmemError
        A fault of the structure, never of the data.
    """
    going_in, coming_out = Counter(memories), Counter(node.all_memories())
    extra = coming_out - going_in
    lost = going_in - coming_out if keeps_all else Counter()
    if extra or lost:
        raise StructmemError(
            f"Structure '{name}' lost memories {sorted(m.id for m in lost)} and repeated or invented "
            f"{sorted(m.id for m in extra)}; each must come out exactly once. This is a fault of the structure."
        )


def checked_options(name: str, structurer, options: Mapping) -> dict:
    """Options with defaults filled in.

    Raises
    ------
    InputError
        For an option that the structure does not take (with the menu), or a value of another kind or range.
    """
    menu = option_defaults(name, structurer)
    who = "embedding" if by_embedding(structurer) else "a model"
    for option, value in options.items():
        if option not in menu:
            raise InputError(f"structure '{name}' sorted by {who} takes the options {sorted(menu)}, got {option!r}.")
        _check_value(option, value)
    return menu | dict(options)


_WHOLE = {"max_new_domains": 0, "retries": 0} | dict.fromkeys(
    ("max_leaves", "max_domains", "batch_size", "max_tokens", "top_k"), 1
)  # option → least value
_SIMILARITIES = ("fit", "cluster_similarity", "leaf_similarity", "threshold")
_NONE_ALLOWED = ("json_schema", "max_tokens", "top_k", *_SIMILARITIES)


def _check_value(option: str, value: object) -> None:
    if value is None and option in _NONE_ALLOWED:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if option in _WHOLE:
        least = _WHOLE[option]
        good, expected = number and isinstance(value, int) and value >= least, f"a whole number ≥ {least}"
    elif option in ("per_memory", "json_schema"):
        good, expected = isinstance(value, bool), "True or False"
    elif option == "wording":
        good, expected = number and isinstance(value, int) and value in WORDINGS, f"one of {list(WORDINGS)}"
    elif option == "temperature":
        good, expected = number and 0 <= value <= 2, "a number in [0, 2]"
    elif option in _SIMILARITIES:
        good, expected = number and -1 <= value <= 1, "a cosine similarity in [-1, 1]"
    else:
        return
    if not good:
        raise InputError(f"{option} must be {expected}, got {value!r}.")
