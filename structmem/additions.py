"""One memory more in a layout that is there: one small call about that memory alone, and nothing else moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .data import Memory, wrap_memories
from .embedding_sorting import provider_vectors
from .errors import InputError
from .registry import check_kept, checked_options
from .scripts import warn_of_script
from .sorters import EMBEDDING, by_embedding, offline_embedder, provider_model
from .structurers import EMBEDDING_OPTIONS, Asker, _lines, classify, prompt
from .structures import _asker, _taxonomy, _waits, drive
from .taxonomy import Taxonomy
from .tree import UNCLASSIFIED, Node

if TYPE_CHECKING:
    import numpy as np

# What an addition by embedding needs of the options of `dynamic` and `tree`, so that the same call serves both.
_BY_EMBEDDING = {
    option: name for name in ("dynamic", "tree") for option in EMBEDDING_OPTIONS[name]
}  # option → the structure that checks it
MOST_OPENED = 2  # by default; a node with more groups outside a taxonomy was probably sorted into another one


def add_memory(
    node: Node,
    memory: str | Memory,
    *,
    taxonomy: str | Taxonomy | None = None,
    structurer: str | Callable = "embedding",
    ask: Callable | None = None,
    **options,
) -> Node:
    """Add one memory to a flat list, a partition or a tree, without sorting the others again.

    A model is asked about this memory alone: it reads the taxonomy's domains with their definitions, the names of the
    domains that were opened for this node and, in a tree, of its leaves, and none of the other memories. The embedding
    structurer takes the nearest definition, as ``fixed`` does; a memory below `fit` to every definition joins an opened
    domain, and any memory a leaf of its domain, whose members it resembles enough: their mean cosine similarity to it
    (its similarity to their centroid, as average linkage has it) is at least `cluster_similarity` or `leaf_similarity`.
    By an offline embedder it is computed here and never stored. To a flat list the memory is appended, and nobody is
    asked.

    No domain is opened and no leaf is made: that takes several memories. After many additions a new `structure` may
    therefore lay the same memories out otherwise; ``fixed`` by embedding never does.

    Parameters
    ----------
    node : Node
        As made by `structure` of all memories (not a selection such as ``gated``, in which the others are lost): at
        most two levels, every group with a name. An empty one does not say how it lays
        memories out, so it is refused: begin with ``structure([memory], name)``.
    memory : str or Memory
        A text gets the next position as its id ("8" after seven memories; beyond the largest number in use).
    taxonomy : str or Taxonomy
        That of the node: a name from the package, the path of a YAML file, or a Taxonomy. Without it ``life11``, and a
        node that does not look sorted into that is refused.
    structurer : str or callable
        ``"embedding"`` or ``"embedding:multilingual"`` (offline), a litellm model id, or a callable model. An id sends
        this memory to that provider; ``"embedding:MODEL"``, a litellm embedding model, is sent every text of the node
        whose vector is not stored.
    ask : callable, optional
        The way to the structurer, as in `structure`.
    **options
        Of the structurer: ``fit``, ``cluster_similarity``, ``leaf_similarity`` of the embedding structurer; of a model
        those of `structure` (``retries``, ``json_schema``, ``wording``, …).

    Returns
    -------
    Node
        A new one. Every memory of the old one keeps its place and its order; the new one is the last of its group. A
        domain that was not there yet is added in taxonomy order. Without a usable reply the memory is in
        `unclassified`, with the reason in its note.

    Raises
    ------
    InputError
        A node of another shape, a blank text, an id that the node has already, an argument off the menu.
    SortingFailed
        If the structurer's provider could not be reached; the node is as it was.
    """
    needs_loop = _waits(ask) if ask is not None else not offline_embedder(structurer)
    work = aadd_memory(node, memory, taxonomy=taxonomy, structurer=structurer, ask=ask, **options)
    if needs_loop:
        from . import background

        return background.run_sync(work)
    return drive(work)


async def aadd_memory(
    node: Node,
    memory: str | Memory,
    *,
    taxonomy: str | Taxonomy | None = None,
    structurer: str | Callable = "embedding",
    ask: Callable | None = None,
    **options,
) -> Node:
    """Add one memory to a layout; the asynchronous form of `add_memory`."""
    _check_shape(node)
    settings = _settings(structurer, options)
    new = _named(node.all_memories(), memory)
    if not node.children:
        return replace(node, memories=(*node.memories, new))
    known, groups = _taxonomy(taxonomy), {child.label: child for child in node.children}
    opened = [label for label in groups if label not in (*known.names, UNCLASSIFIED)]
    foreign, many = opened and not groups.keys() & {*known.names}, len(opened) > MOST_OPENED
    if foreign and many or taxonomy is None and (foreign or many):
        raise InputError(
            f"the node's groups {opened[:3]} are no domains of taxonomy {known.name!r}; give as taxonomy= the one that "
            "the node was sorted into ('epistemic' for the structure of that name). Controls do not grow."
        )
    asker = _asker(structurer, ask, 0, "fixed")
    if by_embedding(structurer):
        if ask is None:
            warn_of_script([new.text], structurer, depth=5)
        rows = partial(_rows, asker=asker, structurer=structurer)
        path, problem, remark = await _nearest(new.text, known, opened, groups, settings, rows), None, None
    else:
        if settings["json_schema"] is None:
            settings["json_schema"] = isinstance(structurer, str)
        path, problem, remark = await _asked(asker, new.text, known, opened, groups, settings)
    made = _with(node, new, path or (UNCLASSIFIED,), [*known.names, *opened, UNCLASSIFIED], problem)
    made = replace(made, note=_joined(made.note, remark and f"memory {new.id}: {remark}"))
    check_kept([*node.all_memories(), new], made, keeps_all=True, name="add_memory")
    return made


def _check_shape(node: Node) -> None:
    if not isinstance(node, Node):
        raise InputError(f"node must be a Node, got {type(node).__name__}; make one with structure(memories, name).")
    if not node.children and not node.memories:
        raise InputError(
            "node holds no memory, so it does not say how memories are laid out; make the first layout with "
            "structure([memory], name), then add to it."
        )
    if node.depth > 2:
        raise InputError(f"node has {node.depth} levels; expected a flat list, a partition or a tree of two levels.")
    named = [part.label for child in node.children for _, part in child.walk()]
    if None in named:
        raise InputError(
            "node has groups without names, in which a memory has no place of its own; add to the partition that it "
            "was made from, then lay that out anew."
        )
    if forged := [label for label in named if not label.isprintable()]:
        raise InputError(f"node has a group named {forged[0]!r:.60}; expected one line, for a model reads the names.")
    for parent in (node, *node.children):
        labels = [child.label for child in parent.children]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise InputError(f"node has two groups named {twice[0]!r} side by side; expected names that differ.")


def _settings(structurer: str | Callable, options: Mapping) -> dict:
    """Options with defaults filled in; those of `dynamic` and `tree` together for the embedding structurer."""
    if not by_embedding(structurer):
        return checked_options("fixed", structurer, options)
    for option in options:
        if option not in _BY_EMBEDDING:
            raise InputError(f"add_memory by embedding takes the options {sorted(_BY_EMBEDDING)}, got {option!r}.")
    found: dict = {}
    for name in dict.fromkeys(_BY_EMBEDDING.values()):
        mine = {option: value for option, value in options.items() if _BY_EMBEDDING[option] == name}
        found |= checked_options(name, structurer, mine)
    return found


def _named(there: Sequence[Memory], memory: str | Memory) -> Memory:
    """The new memory, with an id that no other one has."""
    if not isinstance(memory, Memory):
        numbers = [int(m.id) for m in there if m.id.isascii() and m.id.isdigit() and len(m.id) < 10]
        memory = Memory(str(1 + max(len(there), *numbers, 0)), memory)
    (memory,) = wrap_memories([memory])
    if memory.id in {m.id for m in there}:
        raise InputError(f"node has a memory with the id {memory.id!r} already; expected a new id, or a text.")
    return memory


Path = tuple[str, ...]


async def _asked(
    asker: Asker, text: str, taxonomy: Taxonomy, opened: Sequence[str], groups: Mapping[str, Node], options: Mapping
) -> tuple[Path | None, str | None, str | None]:
    """Ask for the memory's place: the path, or None and why there is none; and what was remarkable about the reply."""
    leaves = {name: [leaf.label for leaf in group.children] for name, group in groups.items() if group.children}
    leaves.pop(UNCLASSIFIED, None)
    paths = {f"{domain}/{leaf}": (domain, leaf) for domain, names in leaves.items() for leaf in names}
    paths |= {name: (name,) for name in (*taxonomy.names, *opened)}
    lines = [_lines(taxonomy, leaves)]
    for name in opened:  # known by their names only: their members are nobody else's business
        lines += [f"- {name}", *(f"- {name}/{leaf}" for leaf in leaves.get(name, ()))]
    which = "classifier_tree" if leaves else "classifier"
    system = prompt(which, options["wording"], domains="\n".join(lines))
    said = await classify(asker, [text], tuple(paths), system, options)
    return paths.get(said.labels.get(0)), said.problems.get(0), said.note(1)


async def _rows(texts: Sequence[str], *, asker: Asker | None, structurer: str) -> np.ndarray:
    """Unit vectors of texts by an embedding structurer."""
    from . import embedding

    if provider_model(structurer):
        return embedding.unit_rows(await provider_vectors(asker, texts, structurer))
    return embedding.embed(texts) if structurer == EMBEDDING else embedding.embed(texts, structurer)


async def _nearest(
    text: str, taxonomy: Taxonomy, opened: Sequence[str], groups: Mapping[str, Node], options: Mapping, rows: partial
) -> Path:
    """The memory's place by the embedding structurer's rules."""
    from . import embedding

    domains = tuple((domain.name, domain.definition) for domain in taxonomy.domains)
    vector = await rows([text])
    definitions = None if rows.keywords["structurer"] == EMBEDDING else await rows(embedding.described(domains))
    options = await _limits(text, groups, domains, options, rows)
    (index,), (best,) = embedding.nearest_domain(vector, domains, definitions)
    domain = taxonomy.names[index]
    if best < options["fit"]:
        alike = options["cluster_similarity"]
        domain = await _resembled(vector, [groups[name] for name in opened], alike, rows) or domain
    inside = groups[domain].children if domain in groups else ()
    leaf = await _resembled(vector, inside, options["leaf_similarity"], rows)
    return (domain, leaf) if leaf else (domain,)


async def _limits(
    text: str, groups: Mapping[str, Node], domains: Sequence[tuple[str, str]], options: Mapping, rows: Callable
) -> Mapping:
    """Options with the memory set's own quantiles for those that are None, as in a whole sorting."""
    from . import embedding

    if None not in options.values():
        return options
    everything = await rows([text, *(memory.text for group in groups.values() for memory in group.all_memories())])
    best = embedding.similarities(everything, await rows(embedding.described(domains))).max(axis=1)
    return embedding.with_quantiles(options, best, embedding.pair_similarities(everything))


async def _resembled(vector: np.ndarray, groups: Sequence[Node], least: float, rows: Callable) -> str | None:
    """The group whose members are most like a text on average, where that is at least `least`; ties: the earlier."""
    from . import embedding

    found, most = None, least
    for group in groups:
        members = await rows([memory.text for memory in group.all_memories()])
        alike = float(embedding.similarities(vector, members.mean(axis=0, keepdims=True))[0, 0])
        if alike > most or (found is None and alike == most):
            found, most = group.label, alike
    return found


def _with(node: Node, memory: Memory, path: Path, order: Sequence[str], problem: str | None) -> Node:
    """The node with a memory at the end of the group at `path`, which is made in its place if it is not there."""
    label, *below = path
    children = list(node.children)
    at = next((k for k, child in enumerate(children) if child.label == label), None)
    if at is None:
        later = order[order.index(label) + 1 :]
        at = next((k for k, child in enumerate(children) if child.label in later), len(children))
        children.insert(at, Node(label))
    group = children[at]
    if below:
        group = _with(group, memory, tuple(below), below, None)
    else:
        group = replace(group, memories=(*group.memories, memory))
    children[at] = replace(group, note=_joined(group.note, problem and f"memory {memory.id}: {problem}"))
    return replace(node, children=tuple(children))


def _joined(*notes: str | None) -> str | None:
    return "; ".join(filter(None, notes)) or None
