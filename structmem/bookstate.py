"""The state behind a MemoryBook: memories, the last good partition, one sorting at a time, and who waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from .bookchecks import told
from .data import Memory
from .errors import InputError, StructmemError
from .renderers import Context
from .tree import UNCLASSIFIED, Node

LONGEST_PAUSE_S = 60  # between attempts of a structurer that fails; the first is 1 s, then twice as long each time
PROBLEMS = 20  # kept for reading, the newest
LONGEST_PROBLEM = 300  # characters
_HOMELESS = "could not be sorted and stand under unclassified (resort asks again)"
_NAMED_NONE = "the model named no domain"  # its decision, as notes have it


class Unusable(StructmemError):
    """A structurer answered, and nothing of it was of use."""


@dataclass(frozen=True)
class BookContext:
    """What `MemoryBook.context` gives; ``str(context)`` is its text.

    Parameters
    ----------
    text : Context
        The memory block of a prompt: byte for byte ``render(book.node, book.renderer)``.
    status : {'fresh', 'last_good', 'flat'}
        The structurer has spoken of every memory; the last good partition, with those not sorted yet under
        `unclassified`; or one list, since nothing is sorted yet. Answers of no use at all count as a failure.
    reason : str
        Why it is not fresh, in words, or how many memories the structurer found no place for; else empty.
    version : int
        The book's, when this was made. The same version and ``fresh``: the same text.
    n_memories : int
        Memories shown.
    n_unclassified : int
        How many of them are in no domain: they wait to be sorted, or the structurer found no place for them, as the
        notes of ``book.node`` say (`MemoryBook.resort` asks again).
    """

    text: Context
    status: str
    reason: str
    version: int
    n_memories: int
    n_unclassified: int

    def __str__(self) -> str:
        return str(self.text)


class BookState:
    """Memories and their partition; every method may be called from any thread.

    Parameters
    ----------
    sort_all : callable or None
        ``sort_all(memories) -> Node``, slow and free to fail; None: the list itself is the layout.
    sort_one : callable
        ``sort_one(node, memory) -> Node`` with the memory added; an InputError says that the node cannot take one.
    draw : callable
        A layout as the text of a prompt.
    mask : callable
        Takes keys out of a text.
    given : collection of str
        Names of groups that were not made from memories: the taxonomy's domains.

    Notes
    -----
    `lock` is held for moments only, never while sorting. One daemon thread sorts while anything is unsorted and ends by
    itself; it is never cancelled, so that calls that are paid for come back and are stored.
    """

    def __init__(
        self,
        sort_all: Callable[[tuple[Memory, ...]], Node] | None,
        sort_one: Callable[[Node, Memory], Node],
        draw: Callable[[Node], Context],
        mask: Callable[[str], str],
        given: Collection[str] = (),
    ):
        self.lock = threading.Condition()  # reentrant; told when something was sorted, and when sorting ends
        self.memories: dict[str, Memory] = {}
        self.next_id = 1
        self.partition: Node | None = None  # the last good one, without removed memories
        self.unsorted: dict[str, Memory] = {}
        self.together = 0  # memories that were last sorted together
        self.anew = False  # all are to be sorted again
        self.version = 0
        self.problems: deque[str] = deque(maxlen=PROBLEMS)
        self.failure, self.retry_at = "", 0.0
        self._failures = 0
        self._resorts = 0
        self._dropped = False  # something, since the present sorting began
        self._sort_all, self._sort_one, self._draw, self._mask = sort_all, sort_one, draw, mask
        self._given = {*given, UNCLASSIFIED}
        self._drawn: tuple[int, Node | None, Context] | None = None  # version, partition and their text
        self._sorter: threading.Thread | None = None
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = set()

    # -- memories; the caller holds the lock --------------------------------------------------------------------------

    def take(self, memory: Memory) -> None:
        """Add a memory whose id is new."""
        self.memories[memory.id] = memory
        number = int(memory.id) if memory.id.isascii() and memory.id.isdigit() and len(memory.id) < 100 else 0
        self.next_id = max(self.next_id, number + 1, len(self.memories) + 1)
        if self._sort_all is not None:
            self.unsorted[memory.id] = memory

    def drop(self, gone: Iterable[Memory]) -> None:
        """Take memories out of everything that is ever shown; problems go too, for they may quote a piece of one."""
        for memory in gone:
            del self.memories[memory.id]
            self.unsorted.pop(memory.id, None)
            self._dropped = True
            self.problems.clear()
            self.failure = self.failure.partition(":")[0]
        self.place(self.partition)

    def place(self, partition: Node | None) -> None:
        """Make what is left of a partition the last good one; memories that it lacks are unsorted."""
        if self._sort_all is None:
            return
        self.partition = partition and only(partition, self.memories, self._given)
        there = {memory.id for memory in self.partition.all_memories()} if self.partition else set()
        self.unsorted = {m.id: m for m in self.memories.values() if m.id not in there}

    def change(self) -> None:
        """Count a change, and have sorted what is to be sorted."""
        self.version += 1
        self.start()

    def resort(self) -> None:
        """Have all sorted again."""
        self.anew = self._sort_all is not None
        self._resorts += 1
        self._failures, self.retry_at = 0, 0.0
        self.change()

    # -- what is to be seen -------------------------------------------------------------------------------------------

    def layout(self) -> Node:
        """The last good partition with the unsorted under `unclassified`; without one, all as one list."""
        with self.lock:
            if self.partition is None:
                return Node(None, tuple(self.memories.values()))
            return with_unsorted(self.partition, tuple(m for m in self.memories.values() if m.id in self.unsorted))

    def shown(self, seconds: float) -> BookContext:
        """The present layout's text, with what is to be said of it to one who has waited some seconds."""
        with self.lock:  # drawing takes milliseconds, and whoever comes meanwhile finds it done
            drawn = self._drawn
            if drawn is None or drawn[0] != self.version or drawn[1] is not self.partition:
                self._drawn = drawn = (self.version, self.partition, self._draw(self.layout()))
            homeless = len(self.unsorted) + len(unclassified(self.partition).memories)
            return BookContext(drawn[2], *self._status(seconds), self.version, len(self.memories), homeless)

    def _status(self, seconds: float) -> tuple[str, str]:
        n, left = len(self.memories), len(self.unsorted)
        if self.sorted:
            homeless = len(unclassified(self.partition).memories)
            return "fresh", f"{homeless} of {n} memories {_HOMELESS}." if homeless else ""
        what = f"{left} of {n} memories are not sorted yet" if left else "all memories are to be sorted anew"
        if self.sorting:
            why = f"sorting takes longer than {seconds:g} s and goes on"
        else:
            pause = max(0.0, self.retry_at - time.monotonic())
            why = f"sorting failed ({self.failure or 'see problems'}); the next try is in {pause:.0f} s at the earliest"
        return "flat" if self.partition is None else "last_good", f"{what}: {why}."

    @property
    def sorted(self) -> bool:
        """Whether nothing is left to be sorted."""
        return not self.unsorted and not (self.anew and self.memories)

    @property
    def sorting(self) -> bool:
        """Whether a thread sorts at this moment; in a forked child it does not."""
        return self._sorter is not None and self._sorter.is_alive()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done()`, until sorting has ended, or for some seconds."""
        with self.lock:
            self.start()
            self.lock.wait_for(lambda: done() or not self.sorting, min(seconds, threading.TIMEOUT_MAX))

    async def await_(self, done: Callable[[], bool], seconds: float) -> None:
        """As `wait`, without holding up the caller's loop."""
        loop, end = asyncio.get_running_loop(), time.monotonic() + seconds
        while True:
            with self.lock:
                self.start()
                if done() or not self.sorting or (left := end - time.monotonic()) <= 0:
                    return
                waiter = (loop, loop.create_future())
                self._waiting.add(waiter)
            try:
                async with asyncio.timeout(left):
                    await waiter[1]
            except TimeoutError:
                return
            finally:
                with self.lock:
                    self._waiting.discard(waiter)

    def _tell(self) -> None:
        self.lock.notify_all()
        for loop, future in self._waiting:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its loop is closed, and with it whoever waited
                pass
        self._waiting.clear()

    # -- sorting ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the one thread that sorts, if there is anything to sort and no failure just before."""
        with self.lock:
            if self.sorted or self.sorting or time.monotonic() < self.retry_at:
                return
            sorter = threading.Thread(target=self._sort, name="structmem-book", daemon=True)
            try:
                sorter.start()
            except RuntimeError as error:  # no thread left, or the program is ending
                self._failed(error)
            else:
                self._sorter = sorter

    def _sort(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._do(*job)
        except BaseException as error:  # noqa: BLE001 - a structurer's SystemExit too: the book goes on
            with self.lock:
                self._failed(error)
                self._sorter = None
                self._tell()

    def _next(self) -> tuple | None:
        with self.lock:
            if self.sorted:
                self._sorter = None
                self._tell()
                return None
            memories, self._dropped = tuple(self.memories.values()), False
            alone = not self.anew and self.partition is not None and len(memories) <= 2 * self.together
            one = next(iter(self.unsorted.values())) if alone else None
            return self.partition, memories, one, self._resorts

    def _do(self, partition: Node | None, memories: tuple[Memory, ...], one: Memory | None, resorts: int) -> None:
        """Sort one more into a partition, or all; then keep what still holds."""
        if one is not None:
            try:
                made = self._sort_one(partition, one)
            except InputError:  # such as a partition of opened domains alone
                one = None
        if one is None:
            made = self._sort_all(memories)
        asked, last = memories if one is None else (one,), unclassified(made)
        decided = _NAMED_NONE if one is None else f"memory {one.id}: {_NAMED_NONE}"
        with self.lock:
            asked = [memory for memory in asked if self.memories.get(memory.id) == memory]
            if asked and set(asked) <= set(last.memories) and decided not in (last.note or ""):
                if one is not None:  # the others first
                    self.unsorted[one.id] = self.unsorted.pop(one.id, one)
                raise Unusable(
                    f"{len(asked)} of {len(memories)} memories could not be sorted: no answer of the structurer was "
                    "usable"
                )
            self.place(made)
            if not set(asked).isdisjoint(last.memories):
                n = len(unclassified(self.partition).memories)
                self.problems = deque((p for p in self.problems if not p.endswith(_HOMELESS)), PROBLEMS)
                self.problems.append(f"{n} of {len(self.memories)} memories {_HOMELESS}")
            if one is None:
                self.together = len(memories)
                self.anew = self.anew and resorts != self._resorts
            self.failure, self._failures, self.retry_at = "", 0, 0.0
            self._tell()

    def _failed(self, error: BaseException) -> None:
        self.retry_at = time.monotonic() + min(2**self._failures, LONGEST_PAUSE_S)
        self._failures += 1
        if isinstance(error, Unusable):
            said = str(error)
        elif self._dropped:  # the rest may quote what has been removed meanwhile
            said = type(error).__name__
        else:
            said = self._mask(told(error, self.memories.values()))
        self.failure = said if len(said) <= LONGEST_PROBLEM else f"{said[:LONGEST_PROBLEM]}…"
        if not self.problems or self.problems[-1] != self.failure:
            self.problems.append(self.failure)


def _wake(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)


# -- nodes ------------------------------------------------------------------------------------------------------------


def only(node: Node, memories: Mapping[str, Memory], given: Collection[str]) -> Node | None:
    """A node with those of its memories that are still held, unchanged; groups that are left empty go.

    A note that speaks of one that is gone, or of the whole sorting, goes too: it may quote what a model said. So does a
    group whose name, if it is not a given one, has a word of one that is gone and of none that is left: its members are
    unsorted then.
    """
    gone = [m for m in node.all_memories() if memories.get(m.id) != m]
    if not gone:
        return node
    held = tuple(m for m in node.memories if memories.get(m.id) == m)
    children = tuple(filter(None, (only(child, memories, given) for child in node.children)))
    if not held and not children:
        return None
    silent = node.label is None or any(f"memory {m.id}:" in (node.note or "") for m in gone)
    note = None if silent else node.note
    made = replace(node, memories=held, children=children, note=note)
    if node.label is not None and node.label not in given:
        before, left = ("\n".join(m.text.casefold() for m in some) for some in (gone, made.all_memories()))
        if any(word in before and word not in left for word in node.label.casefold().split()):
            return None
    return made


def unclassified(node: Node | None) -> Node:
    """A partition's group `unclassified`; an empty one if it has none."""
    return next((child for child in (node.children if node else ()) if child.label == UNCLASSIFIED), Node(UNCLASSIFIED))


def with_unsorted(node: Node, unsorted: tuple[Memory, ...]) -> Node:
    """A partition with more memories at the end of its group `unclassified`, which stands last."""
    if not unsorted:
        return node
    last = unclassified(node)
    others = tuple(child for child in node.children if child is not last)
    return replace(node, children=(*others, replace(last, memories=(*last.memories, *unsorted))))
