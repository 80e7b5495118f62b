"""Controls: structures that differ from a partition in one thing each (order, heading, grouping, names, depth)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

from .errors import InputError, choice
from .listings import fold
from .registry import Job, build, register
from .structurers import Sorting
from .taxonomy import load_taxonomy
from .tree import UNCLASSIFIED, Node

LABELS_TAXONOMY = "life11"  # the domains that reference labels name
ONE_HEADING = "memories"


@register("reordered", keeps_all=True, uses_query=False, base="fixed")
def reordered(job: Job) -> Node:
    """One list without headings, in the order in which `fixed` shows the memories: what order alone does."""
    return Node(None, tuple(job.base.all_memories()))


@register("one_group", keeps_all=True, uses_query=False, base="fixed")
def one_group(job: Job) -> Node:
    """The list of `reordered` under one heading: what a heading adds."""
    return Node(None, children=(Node(ONE_HEADING, tuple(job.base.all_memories())),))


@register("unlabelled", keeps_all=True, uses_query=False, base="fixed")
def unlabelled(job: Job) -> Node:
    """The groups of `fixed` without their names: what grouping adds."""
    return Node(None, children=tuple(Node(None, group.memories) for group in job.base.children))


@register("shuffled", keeps_all=True, uses_query=False, uses_structurer=False, random=True)
def shuffled(job: Job) -> Node:
    """One list without headings, in random order."""
    return Node(None, tuple(job.memories[i] for i in job.order(len(job.memories))))


@register("random", keeps_all=True, uses_query=False, base="fixed", random=True)
def random_groups(job: Job) -> Node:
    """The names and sizes of the groups of `fixed`, with random members, each group in the order given."""
    places, start, groups = job.order(len(job.memories)), 0, []
    for group in job.base.children:
        end = start + len(group.memories)
        groups.append(Node(group.label, tuple(job.memories[i] for i in sorted(places[start:end]))))
        start = end
    return Node(None, children=tuple(groups))


@register("relabelled", keeps_all=True, uses_query=False, base="fixed", random=True)
def relabelled(job: Job) -> Node:
    """The groups of `fixed` in their places under one another's names; no group keeps its own.

    A single group gets another name of the taxonomy; `unclassified` keeps its own. Two groups have one wrong order, so
    that all draws of them are the same.
    """
    named = [group.label for group in job.base.children if group.label != UNCLASSIFIED]
    if len(named) == 1:
        others = [name for name in job.taxonomy.names if name != named[0]]
        if not others:
            raise InputError(
                f"structure 'relabelled' needs another name for {named[0]!r}, and taxonomy {job.taxonomy.name!r} has "
                "no other domain; use a taxonomy with at least two."
            )
        wrong = dict(zip(named, (others[i] for i in job.order(len(others))[:1]), strict=True))
    else:
        tried = (job.order(len(named), str(attempt)) for attempt in count())
        order = next(order for order in tried if all(place != i for place, i in enumerate(order)))
        wrong = {name: named[i] for name, i in zip(named, order, strict=True)}
    return Node(None, children=tuple(replace(g, label=wrong.get(g.label, g.label)) for g in job.base.children))


@register("tree_top", keeps_all=True, uses_query=False, base="tree")
def tree_top(job: Job) -> Node:
    """The domains of `tree` without its leaves, in the tree's order: a tree less its depth."""
    return Node(
        None, children=tuple(replace(d, memories=tuple(d.all_memories()), children=()) for d in job.base.children)
    )


@register("tree_leaves", keeps_all=True, uses_query=False, base="tree")
def tree_leaves(job: Job) -> Node:
    """The leaves of `tree` as groups of one level, in the tree's order: a tree's granularity without its depth.

    Memories that no leaf holds stay under their domain's name. A leaf whose name another group has too is told apart
    by its domain.
    """
    groups = [(path, node) for path, node in job.base.walk() if node.memories]
    names = Counter(fold(path[-1]) for path, _ in groups)
    return Node(None, children=tuple(
        Node(
            f"{path[-1]} ({path[0]})" if len(path) > 1 and names[fold(path[-1])] > 1 else path[-1],
            node.memories, note=node.note,
        )
        for path, node in groups
    ))  # fmt: skip


@register("oracle", keeps_all=True, uses_query=False, uses_structurer=False)
def oracle(job: Job, *, labels: str = "reference") -> Node:
    """Each memory in the domain that a label file says; refused for memory sets that are not fully labelled.

    `labels` is the name of a label file of the package's data or the path of one. A memory that is labelled as
    belonging nowhere is `unclassified`.
    """
    expected = load_taxonomy(LABELS_TAXONOMY)
    if set(job.taxonomy.names) != set(expected.names):
        raise InputError(
            f"structure 'oracle' sorts by labels, which name the domains of taxonomy {LABELS_TAXONOMY!r}; got "
            f"{job.taxonomy.name!r}."
        )
    from .labels import NO_DOMAIN, labels_of

    said = [domain for domain, _ in labels_of(job.texts, labels)]
    for domain in said:
        if domain != NO_DOMAIN and domain not in expected.names:
            raise choice("a label", domain, (*expected.names, NO_DOMAIN))
    paths = tuple(None if domain == NO_DOMAIN else (domain,) for domain in said)
    problems = {i: "labelled as belonging to no domain" for i, path in enumerate(paths) if path is None}
    return build(job.memories, Sorting(paths, problems=problems), job.taxonomy)


@register("empty", keeps_all=False, uses_query=False, uses_structurer=False)
def empty(job: Job) -> Node:
    """No memories: what the model does when it knows nothing of the user."""
    return Node(None)
