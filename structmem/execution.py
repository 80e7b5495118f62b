"""Execute a grid: what the store holds is read first, the rest is answered and judged by a pool of rows per model."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from .arms import SELF, Arm
from .calls import Call, Request, request_key
from .data import Entry
from .echo import Echo
from .embedding_sorting import asked_model
from .errors import BudgetReached, InputError, MissingCall, SetupError, StoreError
from .grid import Grid, Item
from .judges import Verdict, ajudge, echo_for
from .messages import build_messages
from .progress import Progress
from .rows import Layout, answer_columns, lay_out, readable, table, verdict_columns
from .structures import astructure, spec
from .ways import Way

if TYPE_CHECKING:
    from .llm import Client

# These concern every row that is still to come; any other error is one row's own.
STOPS = (BudgetReached, MissingCall, StoreError)
GIVE_UP = 50  # rows on end without an answer or a verdict, until a model's server counts as dead


@dataclass
class Execution:
    """One run: for each model a pool of workers that pull rows in order; layouts and echo measures are shared."""

    grid: Grid
    client: Client
    max_concurrency: int
    progress: bool
    outcomes: list[tuple[Item, dict]] = field(default_factory=list)
    stopped: str | None = None
    given_up: list[str] = field(default_factory=list)
    setup_errors: dict[int, SetupError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shared: dict[tuple, asyncio.Future] = {}
        self._left: dict[tuple, list[Item]] = {}
        self._answers: dict[Item, asyncio.Task] = {}
        self._begun: dict[Item, dict] = {}  # rows whose answer the store holds and whose verdict it does not
        self._line = Progress(len(self.grid), self.client.counts) if self.progress else None
        self._texts = [tuple(memory.text for memory in entry.memories) for entry in self.grid.entries]
        self._mask = self.client.sender.masker.mask

    async def go(self) -> None:
        """Make every row; on the way out nothing of ours is left running."""
        # Rows wait for an answer or for a verdict; the client's own limits decide how many calls of each are open.
        # Each model has its own pool, so that a slow or throttled provider holds up nobody else's rows.
        each = min(2 * self.max_concurrency, len(self.grid) // len(self.grid.models))
        queues = [_Rows(self, model) for model in range(len(self.grid.models))]
        workers = [asyncio.ensure_future(self._work(queue)) for queue in queues for _ in range(each)]
        try:
            await asyncio.gather(*workers)
            if len(self.setup_errors) == len(queues):
                raise self.setup_errors[0]
        finally:
            rest = [*workers, *self._answers.values(), *self._shared.values()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            if self._line:
                self._line.end()

    async def _work(self, rows: _Rows) -> None:
        while (item := await rows.next()) is not None:
            begun = self._begun.pop(item, None)
            # An answer that came with another's is paid for, and its row shows it.
            ended = self.stopped is not None or rows.given_up is not None or item.model in self.setup_errors
            if ended and item not in self._answers:
                self._done(item, begun or {"status": "no_response", "status_reason": "not_asked"})
                continue
            outcome = await self._row(item)
            self._done(item, outcome)
            rows.watch(outcome)

    def _done(self, item: Item, outcome: dict) -> None:
        self.outcomes.append((item, outcome))
        if self._line:
            self._line.step(outcome["status"])

    # -- rows that the store completes --------------------------------------------------------------------------------

    async def finished(self) -> int:
        """How many rows the store completes; nothing is asked."""
        for e in range(len(self.grid.entries)):
            for m in range(len(self.grid.models)):
                await self.read(e, m, sort=False)
        return len(self.outcomes)

    async def read(self, e: int, m: int, sort: bool = True) -> list[Item]:
        """Complete an entry's rows of one model from the store where it holds all calls; return those that are left.

        Nothing is asked here and nobody is waited for, so that a finished run is read as fast as the store can be.
        """
        ready, left = [], []
        for a, arm in enumerate(self.grid.arms):
            items = self.grid.generations_of(e, m, a)
            layout = await self._stored_layout(e, arm, m)
            if layout is None:
                left += items
                if sort:  # all arms' layouts now, so that their answers are not asked for at different times
                    self._sort(e, arm, m)
                continue
            try:
                keys = [request_key(request) for request in self._requests(items, layout)]
            except InputError:  # said for each row when its turn comes
                left += items
            else:
                ready += [(item, layout, key) for item, key in zip(items, keys, strict=True)]
        calls = self.client.store.get_many([key for *_, key in ready]) if ready else {}
        for item, layout, key in ready:
            found: dict = {}
            try:
                await self._judge(item, calls[key], layout, found, self._from_store)
            except Exception:  # what is missing is asked for, and what is wrong is named, when the row's turn comes
                left.append(item)
                if found:
                    self._begun[item] = found
            else:
                self.client.from_store(calls[key])
                self._done(item, found)
        left.sort(key=lambda item: (item.arm, item.generation))
        for item in left:
            self._left.setdefault((item.entry, item.model, item.arm), []).append(item)
        return left

    async def _stored_layout(self, e: int, arm: Arm, m: int) -> Layout | None:
        """The layout if it is made already, or can be made from the store alone."""
        key, query = self._layout_key(e, arm, m)
        try:
            if ("node", key) not in self._shared:
                sorted_ = await self._structure(e, arm, m, query, self._from_store)
                self._shared["node", key] = _finished(sorted_)
            if not self._shared["node", key].done():
                return None
            return await self._layout(e, arm, m)
        except Exception:
            return None

    # -- one row ------------------------------------------------------------------------------------------------------

    async def _row(self, item: Item) -> dict:
        """Answer and judge one row; what goes wrong with this row stays in this row."""
        found: dict = {"status": "no_response", "status_reason": "no_structure"}
        try:
            layout = await self._layout(item.entry, self.grid.arms[item.arm], item.model)
            found |= {"status_reason": "error", **layout.columns, "escaped": layout.escaped}
            await self._judge(item, await self._answer(item, layout), layout, found, self._live)
        except BudgetReached as error:
            self.stopped = self.stopped or str(error)
            found |= {"status_reason": "not_asked"}
        except SetupError as error:  # other models may do; the run ends with this error if none does
            self.setup_errors.setdefault(item.model, error)
            found |= {"status_reason": "error", "status_detail": self._short(str(error))}
        except STOPS:
            raise
        except Exception as error:
            found |= {"status_detail": self._short(f"{type(error).__name__}: {error}")}
        return found

    async def _answer(self, item: Item, layout: Layout) -> Call:
        """The row's answer; the generations of an arm that are left go out together."""
        name = (item.entry, item.model, item.arm)
        if left := self._left.get(name):
            self._answers |= zip(left, self.client.together(self._requests(left, layout)), strict=True)
            del self._left[name]
        return await self._answers.pop(item)

    def _requests(self, items: Sequence[Item], layout: Layout) -> list[Request]:
        """The requests for answers of one arm, which differ in their generation (and seed) only."""
        grid, item = self.grid, items[0]
        entry, arm = grid.entries[item.entry], grid.arms[item.arm]
        messages = build_messages(
            entry.query, layout.context, system_prompt=grid.system_prompt, defence=arm.defence,
            placement=arm.placement, model=grid.labels[item.model],
        )  # fmt: skip
        tags = {
            "entry_id": entry.entry_id, "failure_type": entry.failure_type, "structure": arm.structure,
            "structurer": arm.structurer, "replicate": arm.replicate,
        }  # fmt: skip
        return [
            Request(
                grid.models[item.model], messages, "answer", grid.request_params(item), dict(grid.model_options),
                generation=item.generation, replicate=arm.replicate, memories=self._texts[item.entry],
                tags=tags | {"generation": item.generation},
            )
            for item in items
        ]  # fmt: skip

    async def _judge(self, item: Item, call: Call, layout: Layout, found: dict, way: Callable) -> None:
        """Fill `found` with what the answer says and what the judge says of it."""
        found |= {**layout.columns, "escaped": layout.escaped, **answer_columns(call)}
        if call.status != "ok":
            reason, detail = call.status_reason or "error", self._short(call.error)
            found |= {"status": "no_response", "status_reason": reason, "status_detail": detail}
            return
        # From here on there is an answer, whatever becomes of its verdict.
        found |= {"status": "no_verdict", "status_reason": "not_asked"}
        try:
            verdict = await self._verdict(item.entry, call.text or "", way)
        except (SetupError, *STOPS):
            raise
        except Exception as error:
            verdict = Verdict("no_verdict", "error", detail=f"{type(error).__name__}: {error}")
        found |= verdict_columns(verdict, layout.escaped) | {"status_detail": self._short(verdict.detail)}

    async def _verdict(self, e: int, response: str, way: Callable) -> Verdict:
        grid, entry, ask, echo = self.grid, self.grid.entries[e], None, None
        if grid.judge.asks_model:
            ask = way(
                grid.judge_model, grid.judge_options, {"entry_id": entry.entry_id, "failure_type": entry.failure_type}
            )
        elif grid.judge.name == "echo" and entry.failure_type not in (None, "sycophancy"):
            echo = await _shared(self._once(("echo", e), lambda: self._echo(entry)))
        elif grid.judge.function is not None and way == self._from_store:
            raise MissingCall  # a function may take its time: it gets a worker of its own
        return await ajudge(
            entry, response, judge=grid.judge, ask=ask, params=dict(grid.judge_params), echo=echo,
            echo_threshold=grid.echo_threshold, timeout_s=self.client.sender.timeout_s,
        )  # fmt: skip

    # -- layouts and measures, made once ------------------------------------------------------------------------------

    async def _echo(self, entry: Entry) -> Echo:
        from .embedding import model

        return await echo_for(entry, self._live(model, {}, {"entry_id": entry.entry_id}))

    def _layout_key(self, e: int, arm: Arm, m: int) -> tuple:
        """What a layout depends on: the memory set, the query where the structure uses it, the model where it sorts."""
        query = self.grid.entries[e].query if spec(arm.structure).uses_query else None
        taxonomy = arm.taxonomy.name if arm.taxonomy else ""
        who = (arm.structurer, m if arm.sorter == SELF else None)
        return (self._texts[e], query, arm.structure, *who, arm.options, taxonomy, arm.partition_draw), query

    async def _layout(self, e: int, arm: Arm, m: int) -> Layout:
        key, _ = self._layout_key(e, arm, m)
        sorted_ = await _shared(self._sort(e, arm, m))
        return await _shared(self._once(("layout", key, arm.renderer), lambda: lay_out(*sorted_, arm.renderer)))

    def _sort(self, e: int, arm: Arm, m: int) -> asyncio.Future:
        key, query = self._layout_key(e, arm, m)
        return self._once(("node", key), lambda: self._structure(e, arm, m, query, self._live))

    async def _structure(self, e: int, arm: Arm, m: int, query: str | None, way: Callable) -> tuple:
        entry, ask, sorter, options = self.grid.entries[e], None, arm.sorter or "embedding", arm.sorter_options
        if sorter == SELF:
            sorter, options = self.grid.models[m], self.grid.model_options
        if arm.sorter is not None:
            tags = {"entry_id": entry.entry_id, "structure": arm.structure}
            ask = way(asked_model(sorter), options or {}, tags)
        node = await astructure(
            entry.memories, arm.structure, query=query, taxonomy=arm.taxonomy, structurer=sorter, ask=ask,
            partition_draw=arm.partition_draw, **arm.given,
        )  # fmt: skip
        return node, ask.calls if ask else []

    def _once(self, key: tuple, make: Callable) -> asyncio.Future:
        """Start to make something, once however many rows wait for it."""
        if key not in self._shared:
            self._shared[key] = asyncio.ensure_future(make())
        return self._shared[key]

    # -- ways to models -----------------------------------------------------------------------------------------------

    def _live(self, model: object, options: Mapping, tags: Mapping) -> Way:
        return Way(self.client, model, dict(options), tags, stored_only=False)

    def _from_store(self, model: object, options: Mapping, tags: Mapping) -> Way:
        return Way(self.client, model, dict(options), tags, stored_only=True)

    def _short(self, text: str | None) -> str | None:
        return readable(self._mask(text)[:300]) if text else None

    def frame(self) -> pd.DataFrame:
        """The results table of the rows made, with its parameters and what stopped the run in `attrs`."""
        df = table(self.grid, self.outcomes)
        df.attrs = {"parameters": _Parameters(self.grid.parameters)}
        df.attrs["calls"] = self._calls()
        said = [self._short(str(error)) for error in self.setup_errors.values()]
        why = [self.stopped] if self.stopped is not None else [*self.given_up, *said]
        if why:
            df.attrs["stopped"] = " ".join(why)
            left = int((df["status_reason"] == "not_asked").sum())
            warnings.warn(f"stopped with {left} of {len(df)} rows not asked or judged: {' '.join(why)}", stacklevel=3)
        return df

    def _calls(self) -> dict:
        """What this client has asked of models so far; what functions computed here is no call."""
        counts = self.client.counts
        made = {role: by["made"] for role, by in counts["by_role"].items() if role != "structurer"}
        return {"made": made, "retries": counts["retries"], "cost_usd": self.client.spent_usd}


class _Parameters(dict):
    """Settings that are looked at and never changed: pandas copies `attrs` to their depths at every step."""

    def __deepcopy__(self, memo: dict) -> _Parameters:
        return self


class _Rows:
    """The rows of one model that are left to do, entry by entry."""

    def __init__(self, run: Execution, model: int) -> None:
        self._run, self._model = run, model
        self._entries = iter(range(len(run.grid.entries)))
        self._ahead: deque[Item] = deque()
        self._failed = 0
        self.given_up: str | None = None
        self._reading = asyncio.Lock()

    def watch(self, outcome: dict) -> None:
        """Give a model up when nothing has come from it, or from its judge, for many rows on end."""
        lost = outcome["status"] != "ok" and outcome["status_reason"] in ("error", "timeout")
        self._failed = self._failed + 1 if lost else 0
        if self._failed >= GIVE_UP:
            label, detail = self._run.grid.labels[self._model], outcome.get("status_detail") or "no reason given"
            self.given_up = f"{label}: {self._failed} rows on end came to nothing; the last one: {detail}"
            self._run.given_up.append(self.given_up)

    async def next(self) -> Item | None:
        """The next row, or None after the last."""
        while not self._ahead:
            async with self._reading:
                if self._ahead:
                    break
                entry = next(self._entries, None)
                if entry is None:
                    return None
                self._ahead.extend(await self._run.read(entry, self._model))
                await asyncio.sleep(0)  # between entries others have their turn
        return self._ahead.popleft()


async def _shared(future: asyncio.Future):
    """What is made for many rows; the end of one row does not take it from the others."""
    return future.result() if future.done() else await asyncio.shield(future)


def _finished(value: object) -> asyncio.Future:
    future = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
