"""Layouts again: the contexts that results rows were asked with, from entries and stored sortings, checked by hash."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType

from .data import Entry
from .embedding_sorting import asked_model
from .errors import InputError, MissingCall, StructmemError
from .llm import Client
from .optiontexts import options_of
from .renderers import render
from .sorters import EMBEDDING, offline_embedder
from .structures import spec, structure
from .tree import Node
from .ways import Way

# What a layout depends on, beside the entry.
LAYOUT = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "renderer")


@dataclass(frozen=True)
class Rebuilt:
    """A layout made again.

    Attributes
    ----------
    node : Node or None
        None where it cannot be made again.
    context : str or None
        Its text.
    state : str
        ``same``: its hash is the row's; ``differs``; ``unchecked``: the row has no hash; ``missing``: not made.
    why : str
        For a reader: what is missing or differs; empty if all is well.
    """

    node: Node | None
    context: str | None
    state: str
    why: str = ""


class Rebuilder:
    """Makes layouts again without any call: sorted by the offline embedder, or read from stores.

    Parameters
    ----------
    stores : iterable of path, Store or Recorded
        Where the calls of language models that sorted are looked for, one after the other; only read.
    """

    def __init__(self, stores: Iterable[object] = ()):
        self._open = ExitStack()
        self._clients = [self._open.enter_context(Client(store, offline=True, announce=None)) for store in stores]

    def __enter__(self) -> Rebuilder:
        return self

    def __exit__(self, *_) -> None:
        self._open.close()

    def texts(self, keys: Iterable[str]) -> dict[str, str]:
        """Texts of the finished calls among `keys`, by key."""
        keys, found = list(keys), {}
        for client in self._clients:
            calls = client.store.get_many([key for key in keys if key not in found])
            found |= {key: call.text for key, call in calls.items() if call.text is not None}
        return found

    def layout(self, entry: Entry, row: Mapping) -> Rebuilt:
        """The layout that a results row of this entry was asked with.

        Parameters
        ----------
        entry : Entry
        row : mapping
            The columns of `LAYOUT`, ``model``, ``model_options`` and ``context_sha256``.
        """
        try:
            node = self._node(entry, row)
            context = str(render(node, row["renderer"]))
        except MissingCall:
            why = "the calls that sorted these memories are in none of the stores"
            return Rebuilt(None, None, "missing", f"Not rebuilt: {why} (--store names another).")
        except StructmemError as error:
            return Rebuilt(None, None, "missing", f"Not rebuilt: {error}")
        sent = row["context_sha256"]
        if not isinstance(sent, str) or not sent:
            return Rebuilt(node, context, "unchecked", "The results row has no hash to check this context with.")
        if (found := hashlib.sha256(context.encode()).hexdigest()) == sent:
            return Rebuilt(node, context, "same")
        why = f"not the context that was sent: its hash is {found[:12]}, the row's {sent[:12]}"
        return Rebuilt(node, context, "differs", f"Rebuilt, but {why}. Another taxonomy, version or option?")

    def _node(self, entry: Entry, row: Mapping) -> Node:
        name, who = row["structure"], row["structurer"]
        settings = options_of(row["structurer_options"]) | {
            "query": entry.query if spec(name).uses_query else None,
            "taxonomy": row["taxonomy"] or None,
            "partition_draw": int(row["partition_draw"]),
        }
        if not who or offline_embedder(who):
            with warnings.catch_warnings():  # what a structurer cannot read was said by the run
                warnings.simplefilter("ignore", UserWarning)
                return structure(entry.memories, name, structurer=who or EMBEDDING, **settings)
        options = {}
        if who == "self":
            who, options = row["model"], options_of(row["model_options"])
        for client in self._clients:
            # Results hold a model's name alone: of a function that sorted, a stand-in has the same calls.
            for model in (who, _stand_in(who)):
                ask = Way(client, asked_model(model), options, {"entry_id": entry.entry_id}, stored_only=False)
                try:
                    return structure(entry.memories, name, structurer=model, ask=ask, **settings)
                except MissingCall:
                    continue
        raise MissingCall


def _stand_in(name: str) -> FunctionType:
    def model(messages):
        raise InputError(f"{name} is not here to be asked.")

    model.model_id = name
    return model
