"""What a grid would ask for: calls, estimated tokens and cost by role and model, without making a call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

from .arms import SELF, Arm
from .calls import canonical, model_label
from .data import Entry
from .grid import Grid
from .judges import judge_messages
from .listings import batches
from .messages import build_messages
from .prices import estimate_tokens, price
from .renderers import render
from .scripts import script_remark
from .sorters import EMBEDDING, by_embedding, offline_embedder, provider_model
from .structurers import MODEL_OPTIONS
from .structures import option_defaults, spec
from .tree import Node
from .vectors import BATCH

# Assumed lengths where nothing says better, in tokens; reasoning models write several times as much.
ANSWER_TOKENS = 400
VERDICT_TOKENS = 600
SORTED_MEMORY_TOKENS = 20

NOTE = (
    f"Tokens are estimates (bytes / 4; {ANSWER_TOKENS} per answer unless max_tokens says less, {VERDICT_TOKENS} per "
    "verdict; reasoning not counted). Calls in the store are not made again; replies that cannot be read are asked for "
    "again."
)


@dataclass(frozen=True)
class Plan:
    """A dry run.

    Attributes
    ----------
    lines : tuple of dict
        One per role and model: ``role``, ``model``, ``calls``, ``input_tokens``, ``output_tokens``, ``cost_usd`` (None:
        no known price).
    rows : int
        Results rows.
    remarks : tuple of str
        What to know before it is run: memories that the structurer cannot read.
    """

    lines: tuple[dict, ...]
    rows: int
    remarks: tuple[str, ...] = ()

    @property
    def calls(self) -> int:
        """Calls at most, without the embedding structurer's, which open no socket."""
        return sum(line["calls"] for line in self.lines if not _offline(line["model"]))

    @property
    def cost_usd(self) -> float | None:
        """Estimated cost; None when a price is not known."""
        costs = [line["cost_usd"] for line in self.lines]
        return None if None in costs else sum(costs)

    def table(self) -> pd.DataFrame:
        """One row per role and model; ``cost_usd`` is missing where no price is known."""
        return pd.DataFrame(
            list(self.lines), columns=["role", "model", "calls", "input_tokens", "output_tokens", "cost_usd"]
        ).astype({"cost_usd": "float64"})

    def __str__(self) -> str:
        cost = "unknown (a price is missing)" if self.cost_usd is None else f"about ${self.cost_usd:,.2f}"
        table = self.table().to_string(index=False, na_rep="unknown")
        said = "".join(f"\n{remark}" for remark in self.remarks)
        return f"{self.rows:,} rows, at most {self.calls:,} calls, cost {cost}.\n{table}\n{NOTE}{said}"


def _offline(model: str) -> bool:
    return offline_embedder(model)


def estimate(grid: Grid) -> Plan:
    """Count the calls of a grid."""
    totals: dict[tuple, list] = defaultdict(lambda: [0, 0, 0])

    def add(role: str, model: object, calls: int, input_tokens: int, output_tokens: int) -> None:
        total = totals[(role, model)]
        for place, more in enumerate((calls, input_tokens * calls, output_tokens * calls)):
            total[place] += more

    for kind, model, calls, tokens_in, tokens_out in _sorting_calls(grid):
        add(kind, model, calls, tokens_in, tokens_out)
    renderers = sorted({arm.renderer for arm in grid.arms})
    for entry in grid.entries:
        generations = grid.generations[entry.failure_type]
        contexts = {name: str(render(Node(None, entry.memories), name)) for name in renderers}
        sizes: dict[tuple, int] = {}
        judged = 0
        if grid.judge.asks_model and grid.judge.scale_for(entry.failure_type):
            judged = estimate_tokens(m["content"] for m in judge_messages(entry, "", grid.judge)[0])
        for model, label, params in zip(grid.models, grid.labels, grid.params, strict=True):
            answer = min(params.get("max_tokens") or ANSWER_TOKENS, ANSWER_TOKENS)
            for arm in grid.arms:
                shape = (arm.renderer, arm.placement, arm.defence, label)
                if shape not in sizes:
                    messages = build_messages(
                        entry.query, contexts[arm.renderer], system_prompt=grid.system_prompt, defence=arm.defence,
                        placement=arm.placement, model=label,
                    )  # fmt: skip
                    sizes[shape] = estimate_tokens(m["content"] for m in messages)
                add("answer", model, generations, sizes[shape], answer)
                if judged:
                    add("judge", grid.judge_model, generations, judged + answer, VERDICT_TOKENS)
    lines = []
    for (role, model), (calls, tokens_in, tokens_out) in totals.items():
        known = None if _offline(model) else price(provider_model(model) or model)
        cost = 0.0 if _offline(model) else known.cost(tokens_in, tokens_out) if known else None
        name = model if by_embedding(model) else model_label(model)
        lines.append(
            {"role": role, "model": name, "calls": calls, "input_tokens": tokens_in, "output_tokens": tokens_out}
            | {"cost_usd": cost}
        )
    return Plan(tuple(lines), len(grid), script_remarks(grid))


def script_remarks(grid: Grid) -> tuple[str, ...]:
    """What to know where the default structurer, which reads English, sorts other scripts for a grid."""
    embedded = [arm for arm in grid.arms if arm.sorter == EMBEDDING]
    texts = [memory.text for entry in grid.entries for memory in entry.memories] if embedded else []
    if any(spec(arm.structure).uses_query for arm in embedded):
        texts += [entry.query for entry in grid.entries]
    found = [script_remark(texts)]
    if not embedded and grid.judge.name == "echo":
        sorted_ = [entry for entry in grid.entries if entry.failure_type == "cross_domain" and entry.query_domain]
        remark = script_remark(memory.text for entry in sorted_ for memory in entry.memories)
        found = [remark and f"The echo measure finds the memories outside the query's domain by embedding: {remark}"]
    return tuple(filter(None, found))


def _sorting_calls(grid: Grid):
    """Calls of the structurers, each once however many arms share it."""
    done = set()
    for entry in grid.entries:
        for arm in grid.arms:
            if arm.sorter is None or not entry.memories:
                continue
            for key, *counts in _asked_for(entry, arm):
                if key not in done:
                    done.add(key)
                    for sorter in grid.models if arm.sorter == SELF else (arm.sorter,):
                        yield "structurer", sorter, *counts


def _asked_for(entry: Entry, arm: Arm):
    """What an arm asks of its structurer for an entry: what is asked, calls, input and output tokens of one call.

    Structures that rearrange another one share its sorting, and those that draw at random the one of draw 0; what they
    choose by the query is a call of its own.
    """
    texts = tuple(memory.text for memory in entry.memories)
    found = root = spec(arm.structure)
    draw, embeds = arm.partition_draw, by_embedding(arm.sorter)
    while root.base:
        draw, root = 0 if root.random else draw, spec(root.base)
    options = {name: arm.given[name] for name in option_defaults(root.name, arm.sorter) if name in arm.given}
    size = 1 if options.get("per_memory") else options.get("batch_size", MODEL_OPTIONS["batch_size"])
    parts = 1 if embeds else len(batches(range(len(texts)), texts, size))
    calls = parts
    if root.name == "tree" and not embeds:
        calls += len(batches(range(len(texts)), texts, len(texts)))
    domains = estimate_tokens(f"{d.name}{d.definition}" for d in arm.taxonomy.domains) if arm.taxonomy else 0
    asked = estimate_tokens([entry.query])
    shown = estimate_tokens(texts) // parts + domains + (asked if root.uses_query else 0)
    vectors = provider_model(arm.sorter) is not None
    if vectors:  # the texts in parts, and the definitions or the query apart
        calls = 1 + -(-len(texts) // BATCH)
        shown = -(-shown // calls)
    who = (texts, arm.structurer, arm.taxonomy)
    key = (*who, root.name, canonical(options), draw, entry.query if root.uses_query else None)
    yield key, calls, shown, 0 if vectors else SORTED_MEMORY_TOKENS * max(len(texts) // parts, 1)
    if found is not root and found.uses_query:
        key = (*who, found.name, arm.options, arm.partition_draw, entry.query)
        more = asked + domains
        yield (key, 2, -(-more // 2), 0) if vectors else (key, 1, more, SORTED_MEMORY_TOKENS)
