"""MemoryBook: structured memory in front of a real assistant; a context within a deadline, whoever sorts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from . import bookfiles
from .additions import aadd_memory, add_memory
from .asks import as_ask
from .bookchecks import as_seconds, checked_structurer, plain, unknown
from .bookfiles import Saved
from .bookstate import BookContext, BookState
from .data import Memory, wrap_memories
from .errors import InputError, choice
from .masking import Masker
from .records import read_text
from .registry import checked_options, spec
from .renderers import RENDERERS, render
from .scripts import script_remark, warn_of_script
from .sorters import offline_embedder, provider_model
from .structures import _taxonomy, astructure, drive
from .structures import structure as lay_out
from .taxonomy import Taxonomy
from .tree import Node

STRUCTURES = ("flat", "fixed", "dynamic", "tree")  # query-free, nothing dropped, and one memory more can be added
DEADLINE_S = 2.0
# The way to an embedder on this machine: no event loop, which has a socket, and no warning raised inside a thread.
_HERE = as_ask(lambda messages: None)


class MemoryBook:
    """The memories of one user, sorted in the background and laid out for a prompt within a deadline.

    Nothing that a structurer does reaches the assistant's user: its errors show as a status with a reason, and in
    `problems`. Every memory is in every context exactly once, and one that was removed in none. All methods may be
    called from many threads, inside an event loop and without one; there is one sorting at a time, in one thread.

    A new memory is sorted alone, as by `add_memory`, and the others stay where they are: more of the prompt stays the
    beginning that providers cache (`prefix_kept`, notebook ``18_cost``). Once there are more than twice as many
    memories as were last sorted together, all are sorted anew: only that opens domains (``dynamic``) and makes leaves
    (``tree``).

    **Privacy.** ``structurer="embedding"``, the default, works on this machine and opens no socket. A model id, also
    that of an embedding model, sends every memory to its provider. Calls of a model or a function, which hold every
    memory, are kept in the store (`paths.default_store`; ``ask=Client(PATH).asker(MODEL)`` for another). `remove` takes
    a memory out of the book, not out of the store or saved files; ``structmem forget`` does that.

    Parameters
    ----------
    memories : iterable of str or Memory
        Texts get their position as id. Ids are never used again, also after a removal.
    structure : {'fixed', 'dynamic', 'tree', 'flat'}
        Those that need the query (``rag``) are made anew for every query, so there is nothing to keep: `structure`.
    structurer : str or callable
        Who sorts, as in `structure`: ``"embedding"``, ``"embedding:…"``, a litellm model id, or a callable model, plain
        or async: ``fn(messages)`` returns ``'{"assignments": [{"memory": 1, "domain": "health"}, …]}'``. A hosted one
        needs litellm, whose first import takes seconds: call ``context(60)`` at start.
    taxonomy : str or Taxonomy, optional
        As in `structure`; ``"epistemic"`` parts facts, preferences and beliefs.
    renderer : str
        As in `render`.
    ask : callable, optional
        The way to a model, as in `structure`: for a client of your own, with a budget for example.
    model_options : mapping, optional
        Provider options of a model id (``api_base``, …), for the package's client. They are never saved.
    deadline_s : float
        Seconds that `context` and `add_memory` wait at most, unless they are told otherwise.
    **options
        Of structure and structurer, as in `structure`.

    Raises
    ------
    InputError
        For an argument off the menu; later errors of the structurer are never raised.
    SetupError
        If an extra is not installed.

    Examples
    --------
    >>> book = MemoryBook(["The user takes a tablet for blood pressure.", "The user's landlord has given notice."])
    >>> print(book.context(deadline_s=60))  # the first one of a process loads the embedder
    <memories>
    ## health
    - The user takes a tablet for blood pressure.
    <BLANKLINE>
    ## housing
    - The user's landlord has given notice.
    </memories>
    """

    def __init__(
        self, memories: Iterable[str | Memory] = (), structure: str = "fixed", *,
        structurer: str | Callable = "embedding", taxonomy: str | Path | Taxonomy | None = None,
        renderer: str = "markdown", ask: Callable | None = None, model_options: Mapping | None = None,
        deadline_s: float = DEADLINE_S, **options,
    ):  # fmt: skip
        if structure not in STRUCTURES:
            raise InputError(
                f"{choice('structure', structure, STRUCTURES)} Others need the query, or drop or rearrange memories; "
                "make them anew each time with structure(memories, name)."
            )
        if not isinstance(renderer, str) or renderer not in RENDERERS:
            raise choice("renderer", renderer, RENDERERS)
        checked_options(structure, checked_structurer(structurer, ask, model_options), options)
        self.structure, self.structurer, self.renderer, self.options = structure, structurer, renderer, dict(options)
        self.taxonomy, self.deadline_s = _taxonomy(taxonomy), as_seconds(deadline_s)
        self._ask, self._model_options = ask, dict(model_options or {})
        masker = Masker()
        masker.learn(self._model_options)
        sort_all = None if structure == "flat" else self._sort_all
        draw, given = partial(render, renderer=renderer), self.taxonomy.names
        self._state = BookState(sort_all, self._sort_one, draw, masker.mask, given)
        self._saving = threading.Lock()
        for memory in wrap_memories(memories):
            self._state.take(plain(memory))
        if structure != "flat":
            warn_of_script([memory.text for memory in self.memories], structurer)

    # -- what it holds ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._state.memories)

    def __repr__(self) -> str:
        return f"<MemoryBook: {len(self)} memories, {self.structure}, version {self.version}>"

    def __reduce__(self):
        raise TypeError("a MemoryBook cannot be copied or pickled; use MemoryBook.from_json(book.to_json()).")

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Every memory, in the order in which they came."""
        with self._state.lock:
            return tuple(self._state.memories.values())

    @property
    def node(self) -> Node:
        """The layout that `context` renders at this moment; waits for nothing."""
        return self._state.layout()

    @property
    def version(self) -> int:
        """Goes up by one whenever memories are added, removed or replaced, and with `resort`."""
        return self._state.version

    @property
    def problems(self) -> list[str]:
        """What went wrong or is to be known of sorting, the newest last; at most 20 sentences, without keys.

        They hold no memory's text; after a removal they are gone.
        """
        with self._state.lock:
            return list(self._state.problems)

    # -- changing it --------------------------------------------------------------------------------------------------

    def add_memory(
        self, memory: str | Memory, *, source: str | None = None, date: str | None = None,
        deadline_s: float | None = None,
    ) -> Memory:  # fmt: skip
        """Keep one memory more, and wait until it is sorted, for `deadline_s` at most (0: not at all).

        It is kept whatever becomes of its sorting: until that succeeds, it is shown under `unclassified`. A structurer
        that fails is tried again by later calls, after 1 s at the earliest, then 2, 4, … and at last every minute.

        Parameters
        ----------
        memory : str or Memory
            A text gets the next number as its id, and `source` and `date`.
        source, date : str, optional
        deadline_s : float, optional
            Seconds from 0; by default the book's.

        Returns
        -------
        Memory
            As kept.

        Raises
        ------
        InputError
            A blank text, an id that the book holds already, `source` or `date` beside a Memory.
        """
        seconds = as_seconds(self.deadline_s if deadline_s is None else deadline_s)
        added = self._added(memory, source, date)
        self._state.wait(lambda: added.id not in self._state.unsorted, seconds)
        return added

    async def aadd_memory(
        self, memory: str | Memory, *, source: str | None = None, date: str | None = None,
        deadline_s: float | None = None,
    ) -> Memory:  # fmt: skip
        """Keep one memory more; the asynchronous form of `add_memory`."""
        seconds = as_seconds(self.deadline_s if deadline_s is None else deadline_s)
        added = self._added(memory, source, date)
        await self._state.await_(lambda: added.id not in self._state.unsorted, seconds)
        return added

    def remove(self, memory: str | Memory) -> tuple[Memory, ...]:
        """Take a memory out by its id, or every memory of exactly that text; no later context shows it.

        Returns
        -------
        tuple of Memory
            What was taken out; at least one.

        Raises
        ------
        InputError
            If there is none, with the ids of those that are like it.
        """
        key, state = memory.id if isinstance(memory, Memory) else memory, self._state
        if not isinstance(key, str):
            raise InputError(f"remove takes an id or a text, got {key!r:.60}.")
        with state.lock:
            held = tuple(state.memories.values())
            gone = tuple(m for m in held if m.id == key) or tuple(m for m in held if m.text == key)
            if gone:
                state.drop(gone)
                state.change()
        if not gone:
            raise InputError(unknown(key, held))
        return gone

    def replace(self, memories: Iterable[Memory]) -> None:
        """Hold exactly these memories, as a memory store lists them; those that are there unchanged keep their place.

        Raises
        ------
        InputError
            For anything but memories with ids that differ; the book is as it was.
        """
        new = tuple(memories) if isinstance(memories, Iterable) else (memories,)
        if wrong := [m for m in new if not isinstance(m, Memory)]:
            raise InputError(f"replace takes memories with their ids, got {wrong[0]!r:.60}; expected Memory(id, text).")
        new, state = {memory.id: memory for memory in map(plain, wrap_memories(new))}, self._state
        with state.lock:
            gone = [m for m in state.memories.values() if new.get(m.id) != m]
            state.drop(gone)
            come = [m for m in new.values() if m.id not in state.memories]
            for memory in come:
                state.take(memory)
            if gone or come:
                state.change()
        self._remark(come)

    def resort(self) -> None:
        """Have all memories sorted anew, in the background; until that is done, contexts show the last partition."""
        with self._state.lock:
            self._state.resort()

    # -- the context --------------------------------------------------------------------------------------------------

    def context(self, deadline_s: float | None = None) -> BookContext:
        """The memories as the block of a prompt, within a deadline; no error of the structurer is raised.

        Parameters
        ----------
        deadline_s : float, optional
            Seconds from 0, by default the book's. If memories are not sorted by then, the last good partition is shown
            with them under `unclassified`, and sorting goes on, so that a later context is fresh. Sorting a thousand
            memories by embedding holds the interpreter for moments (0.3 s at most was seen), which may be added.

        Returns
        -------
        BookContext
        """
        seconds = as_seconds(self.deadline_s if deadline_s is None else deadline_s)
        self._state.wait(lambda: self._state.sorted, seconds)
        return self._state.shown(seconds)

    async def acontext(self, deadline_s: float | None = None) -> BookContext:
        """The asynchronous form of `context`."""
        seconds = as_seconds(self.deadline_s if deadline_s is None else deadline_s)
        await self._state.await_(lambda: self._state.sorted, seconds)
        return self._state.shown(seconds)

    # -- keeping it ---------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The book as JSON: memories with provenance, partition, version, taxonomy, settings; no keys, no addresses."""
        state = self._state
        with state.lock:
            saved = Saved(
                self.structure, self.structurer, self.options, self.renderer, self.deadline_s, self.taxonomy,
                tuple(state.memories.values()), state.partition, state.together, state.anew, state.version,
                state.next_id,
            )  # fmt: skip
        return bookfiles.dumped(saved)

    @classmethod
    def from_json(
        cls, text: str, *, taxonomy: str | Path | Taxonomy | None = None, structurer: str | Callable | None = None,
        ask: Callable | None = None, model_options: Mapping | None = None, name: str = "the book",
    ) -> MemoryBook:  # fmt: skip
        """Rebuild a book from `to_json`.

        Parameters
        ----------
        text : str
        taxonomy : optional
            By default the one in the book. If its hash differs from that which the memories were sorted by, they are
            sorted anew, and `problems` says so.
        structurer, ask, model_options : optional
            As in the constructor; by default the structurer in the book, unless that was a function.
        name : str
            What error messages call it.

        Raises
        ------
        InputError
            If it is damaged, or written by a newer version.
        """
        saved = bookfiles.loaded(text, name)
        who = saved.structurer if structurer is None else structurer
        if who is None:
            raise InputError(f"{name}: its memories were sorted by a function; give it again as structurer=….")
        given = saved.taxonomy if taxonomy is None else taxonomy
        try:
            checked_options(saved.structure, who, saved.options)  # names of other arguments are none
            book = cls(
                saved.memories, saved.structure, structurer=who, taxonomy=given, renderer=saved.renderer, ask=ask,
                model_options=model_options, deadline_s=saved.deadline_s, **saved.options,
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        state, hashes = book._state, (saved.taxonomy_sha256, book.taxonomy.sha256)
        state.version, state.next_id = saved.version, max(state.next_id, saved.next_id)
        if hashes[0] == hashes[1]:
            state.place(saved.partition)
            state.together, state.anew = saved.together, saved.anew
        elif saved.partition is not None:
            state.version += 1
            state.problems.append(
                f"{name} was sorted by taxonomy {saved.taxonomy.name!r} (hash {hashes[0][:12]}), and now "
                f"{book.taxonomy.name!r} (hash {hashes[1][:12]}) is to be used: all memories are sorted anew."
            )
        return book

    def save(self, path: str | os.PathLike) -> None:
        """Write the book to a file that only its owner can read, in one step; if that fails (InputError), the old file
        is whole.
        """
        with self._saving:  # of two at once, the later one is the newer
            bookfiles.write(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike, **how) -> MemoryBook:
        """Read a book that was saved; keyword arguments and errors are those of `from_json`."""
        return cls.from_json(read_text(path), name=Path(path).name, **how)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _added(self, memory: str | Memory, source: str | None, date: str | None) -> Memory:
        state = self._state
        with state.lock:
            if not isinstance(memory, Memory):
                memory = Memory(str(state.next_id), memory, source, date)
            elif source is not None or date is not None:
                raise InputError("add_memory takes source and date beside a text; a Memory has its own.")
            (memory,) = map(plain, wrap_memories([memory]))
            if memory.id in state.memories:
                raise InputError(f"the book holds a memory with the id {memory.id!r} already; expected a new id.")
            state.take(memory)
            state.change()
        self._remark([memory])
        return memory

    def _remark(self, come: Iterable[Memory]) -> None:
        """Note once that texts are in a script which the structurer misreads; nobody is there to be warned."""
        remark = None if self.structure == "flat" else script_remark([m.text for m in come], self.structurer)
        with self._state.lock:
            if remark and not any("Latin script" in problem for problem in self._state.problems):
                self._state.problems.append(remark)

    def _sort_all(self, memories: tuple[Memory, ...]) -> Node:
        if offline_embedder(self.structurer):
            return drive(astructure(memories, self.structure, **self._how(_HERE), **self.options))
        return lay_out(memories, self.structure, **self._how(self._ask), **self.options)

    def _sort_one(self, node: Node, memory: Memory) -> Node:
        of_structurer = {k: value for k, value in self.options.items() if k not in spec(self.structure).options}
        if offline_embedder(self.structurer):
            return drive(aadd_memory(node, memory, **self._how(_HERE), **of_structurer))
        return add_memory(node, memory, **self._how(self._ask), **of_structurer)

    def _how(self, ask: Callable | None) -> dict:
        if ask is None and self._model_options:
            from .llm import default_client

            ask = default_client().asker(provider_model(self.structurer) or self.structurer, self._model_options)
        return {"taxonomy": self.taxonomy, "structurer": self.structurer, "ask": ask}
