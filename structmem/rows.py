"""Rows of the results table: what layouts, calls and verdicts say in columns, and the table they make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from .arms import settings_of, short_name
from .calls import Call, asked, canonical
from .columns import NAMES, SCHEMA_VERSION, conform
from .grid import Grid, Item, origins, prompt_hashes
from .judges import Verdict
from .prices import estimate_tokens
from .renderers import render
from .results import sort_results
from .tree import UNCLASSIFIED, Node


@dataclass(frozen=True, slots=True)
class Layout:
    """The memories of one entry, structured and rendered, with the calls that sorted them."""

    context: str
    escaped: bool
    columns: Mapping


async def lay_out(node: Node, calls: Sequence[Call], renderer: str) -> Layout:
    """Render a structured entry and say what is in it."""
    context = render(node, renderer)
    unclassified = sum(len(part.memories) for path, part in node.walk() if path[:1] == (UNCLASSIFIED,))
    shown = len(node.all_memories())
    headings = [part.label for _, part in node.walk() if part.label is not None]
    columns = {
        "context_sha256": hashlib.sha256(context.encode()).hexdigest(),
        "context_tokens": estimate_tokens([context]),
        "n_shown": shown,
        "n_unclassified": unclassified,
        "headings": readable(json.dumps(headings, ensure_ascii=False)),
    }
    if calls:
        columns["structurer_key"] = " ".join(call.key for call in sorted(calls, key=lambda call: call.key))
        for name in ("input_tokens", "output_tokens", "cost_usd"):
            columns[f"structurer_{name}"] = _total(calls, name)
    return Layout(str(context), context.escaped, columns)


def answer_columns(call: Call) -> dict:
    """What an answer's call says of its row."""
    found = {
        "response": call.text,
        "truncated": call.truncated,
        "model_reasoning": call.reasoning,
        "answer_key": call.key,
        "params_sent": _params(call),
        "answer_input_tokens": call.input_tokens,
        "answer_output_tokens": call.output_tokens,
        "answer_cached_tokens": call.cached_tokens,
        "answer_cost_usd": call.cost_usd,
        "answer_requests": call.requests,
    }
    for name in ("served_model", "provider", "called_at", "finish_reason", "latency_s", "plan_hash"):
        found[name] = getattr(call, name)
    return found


_written: dict[str, str] = {}


def _params(call: Call) -> str | None:
    """What was sent, as JSON; a grid has few settings and many calls."""
    if not call.params_sent:
        return None
    shown = repr(call.params_sent)
    if shown not in _written:
        if len(_written) > 1000:
            _written.clear()
        _written[shown] = canonical(call.params_sent)
    return _written[shown]


def readable(text: object) -> str | None:
    """A text that every file format can hold: half surrogate pairs are replaced."""
    return None if text is None else str(text).encode("utf-8", "replace").decode()


def verdict_columns(verdict: Verdict, escaped: bool) -> dict:
    """What a verdict says of its row; `escaped`: whether the layout had escapes already."""
    found = {
        "status": verdict.status,
        "status_reason": verdict.status_reason,
        "score": verdict.score,
        "echo_overlap": verdict.echo_overlap,
        "echoed": verdict.echoed,
        "judge_reasoning": readable(verdict.reasoning),
        "judge_conversions": "; ".join(verdict.conversions) or None,
        "escaped": escaped or verdict.escaped,
    }
    call = verdict.call
    if call is not None:
        found |= {
            "judge_key": call.key,
            "judge_served_model": call.served_model,
            "judge_params_sent": _params(call),
            "judge_attempts": len(verdict.calls),
        }
        for name in ("requests", "input_tokens", "output_tokens", "cached_tokens", "cost_usd"):
            found[f"judge_{name}"] = _total(verdict.calls, name)
    return found


def _total(calls: Sequence[Call], name: str) -> float | None:
    """Sum over calls; not known if it is not known of one of them."""
    values = [getattr(call, name) for call in calls]
    return None if None in values else sum(values)


@lru_cache(maxsize=4096)
def _not_sent(wanted: str, sent: str | None) -> str:
    """What was asked for an answer and not sent, or sent otherwise, as JSON; both arguments are JSON too."""
    found = json.loads(sent or "{}")
    return canonical({k: v for k, v in json.loads(wanted).items() if k not in found or found[k] != v})


def table(grid: Grid, rows: Sequence[tuple[Item, dict]]) -> pd.DataFrame:
    """Put the outcomes of a grid's rows together with its settings: the results table, sorted."""
    arms, hashes = grid.arms, prompt_hashes(grid)
    per_arm = [
        {
            **settings_of(arm),
            "replicate": arm.replicate,
            "prompt_hash": digest,
        }
        for arm, digest in zip(arms, hashes, strict=True)
    ]
    per_entry = []
    for entry, origin in zip(grid.entries, origins(grid.entries), strict=True):
        kind, scale = entry.failure_type, grid.judge.scale_for(entry.failure_type)
        scored = scale is not None and grid.judge.name != "echo"
        echo = grid.judge.name == "echo" and kind not in (None, "sycophancy")
        per_entry.append(
            {
                "entry_id": entry.entry_id,
                "failure_type": kind or "",
                "memory_domain": entry.memory_domain,
                "query_domain": entry.query_domain,
                "n_memories": len(entry.memories),
                "benchmark_hash": origin,
                "threshold": grid.thresholds[kind] if scored else grid.echo_threshold if echo else None,
                "echo_threshold": grid.echo_threshold if echo else None,
                "high_is_bad": scale.high_is_bad if scored else None,
                "scale_low": scale.low if scored else None,
                "scale_high": scale.high if scored else None,
                "judge_prompt_hash": grid.judge.sha256(kind) or None,
            }
        )
    options = canonical(asked(grid.model_options)) if asked(grid.model_options) else ""
    per_model = [
        {"model": label, "model_options": options}
        | {name: params.get(name) for name in ("temperature", "top_p", "max_tokens", "reasoning_effort")}
        for label, params in zip(grid.labels, grid.params, strict=True)
    ]
    judge_asked = asked({**grid.judge_params, **grid.judge_options})
    same = {
        "system_prompt": short_name(grid.system_prompt),
        "judge": grid.judge.name,
        "judge_model": grid.judge_label,
        "judge_options": canonical(judge_asked) if judge_asked else None,
        "run_id": grid.run_id,
        "schema_version": SCHEMA_VERSION,
    }
    # Settings are few and rows many: each column is made once from the settings, and its values are then dealt out.
    data: dict[str, object] = {}
    for lines, index in (
        (per_arm, [item.arm for item, _ in rows]),
        (per_entry, [item.entry for item, _ in rows]),
        (per_model, [item.model for item, _ in rows]),
        ([same], [0] * len(rows)),
    ):
        settings = conform(pd.DataFrame(lines))
        data |= {name: settings[name].array.take(index) for name in settings}
    data["generation"] = [item.generation for item, _ in rows]
    more = {name: value for name, value in grid.model_options.items() if name != "drop"}
    seeds, wanted = [], {}
    for item, _ in rows:
        seeds.append(None if grid.seed is None else grid.request_params(item)["seed"])
        if (item.model, seeds[-1]) not in wanted:
            wanted[item.model, seeds[-1]] = canonical(asked(grid.request_params(item) | more))
    data["seed"] = seeds
    # No key: no call, so nothing is known of what would have been sent.
    data["params_not_sent"] = [
        _not_sent(wanted[item.model, seed], outcome.get("params_sent")) if outcome.get("answer_key") else None
        for seed, (item, outcome) in zip(seeds, rows, strict=True)
    ]
    for name in NAMES:
        if name not in data:
            data[name] = [outcome.get(name) for _, outcome in rows]
    return sort_results(conform(pd.DataFrame(data, columns=list(NAMES))))
