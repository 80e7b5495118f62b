"""Node: the one tree type that carries every memory structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .data import Memory

UNCLASSIFIED = "unclassified"


@dataclass(frozen=True, slots=True)
class Node:
    """A group of memories with an optional name and optional subgroups.

    Parameters
    ----------
    label : str or None
        Name of the group; None for the root and for groups without a name.
    memories : tuple of Memory
        The memories that this node holds itself, in order.
    children : tuple of Node
        Subgroups, in order.
    note : str or None
        A remark about the node (for example why a memory is unclassified); never rendered.

    Notes
    -----
    A flat list is one node, a partition has one level of children, a tree two.
    """

    label: str | None
    memories: tuple[Memory, ...] = ()
    children: tuple[Node, ...] = ()
    note: str | None = None

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Yield ``(path, node)`` in document order; a path is the labels from the top, without the root's None."""
        here = path if self.label is None else (*path, self.label)
        yield here, self
        for child in self.children:
            yield from child.walk(here)

    def leaves(self) -> list[Node]:
        """Nodes that hold memories themselves, in document order; a childless root counts although it is empty."""
        found = [node for _, node in self.walk() if node.memories]
        return found or ([self] if not self.children else [])

    def all_memories(self) -> list[Memory]:
        """Every memory, in document order."""
        return [memory for _, node in self.walk() for memory in node.memories]

    @property
    def depth(self) -> int:
        """Levels below this node: 0 flat, 1 partition, 2 tree."""
        return 1 + max(child.depth for child in self.children) if self.children else 0

    def to_dict(self) -> dict:
        """JSON-ready form; the inverse of `from_dict`."""
        return {
            "label": self.label,
            "memories": [{"id": m.id, "text": m.text, "source": m.source, "date": m.date} for m in self.memories],
            "children": [child.to_dict() for child in self.children],
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, value: dict) -> Node:
        """Rebuild a node from `to_dict`."""
        return cls(
            value["label"],
            tuple(Memory(**memory) for memory in value["memories"]),
            tuple(cls.from_dict(child) for child in value["children"]),
            value.get("note"),
        )
