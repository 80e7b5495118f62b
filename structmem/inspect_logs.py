"""Inspect logs (`.eval`, `.json`) read into rows: every sample and scorer one row, errored samples too."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from . import background
from .calls import asked, canonical
from .columns import NAMES, SCHEMA_VERSION
from .errors import IMPORTING, InputError, SetupError
from .foreign_rows import (
    LARGEST,
    UNKNOWN,
    KnownEntries,
    Source,
    failed,
    failure_type,
    generation_of,
    reason_of,
    scale_columns,
    texts,
    verdict,
)
from .judges import DEFAULT_JUDGE
from .known_prompts import recognised
from .rows import readable

_HEAVY = ("events", "events_data", "store", "attachments", "timelines")  # not looked at
_BENCHMARK_JUDGE = "persistbench_judge"
# Where neither a sample nor its prompt says what they were: the settings of every row.
_NOT_KNOWN = {
    "structure": UNKNOWN, "structurer": "", "structurer_options": "", "taxonomy": "", "partition_draw": 0,
    "renderer": UNKNOWN, "placement": UNKNOWN, "defence": UNKNOWN, "system_prompt": UNKNOWN,
}  # fmt: skip
# Statuses and stops of Inspect for which our runs have a word of their own.
_FILTERED, _CUT = "content_filter", ("max_tokens", "model_length")


def slim(sample: dict) -> dict:
    """A sample without its events and what hangs on them, which are most of a log."""
    return {name: value for name, value in sample.items() if name not in _HEAVY}


def eval_archive(path: Path) -> tuple[dict, Iterator[dict], list[str]]:
    """Header, samples one by one, and remarks on an `.eval` file, by Inspect's own reader.

    Raises
    ------
    SetupError
        inspect_ai is not installed. (The archive is packed by zstd, which Python 3.11 does not read.)
    InputError
        No archive, no log, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path.name}: the archive is cut or damaged ({error}); expected a whole .eval file."
        ) from None
    names = Counter(member.filename for member in members)
    if not {"header.json", "_journal/start.json"} & set(names):
        raise InputError(f"{path.name} is a zip archive without an Inspect log in it; expected an .eval file.")
    if large := [member.filename for member in members if member.file_size > LARGEST]:
        raise InputError(f"{path.name}: {large[0][:80]} in it has more than {LARGEST >> 20} MB; expected samples.")
    try:
        with IMPORTING:
            from inspect_ai import log as library
    except ImportError as error:
        raise SetupError(
            f"{path.name}: .eval files are read by inspect_ai, which is not usable ({error}); install it: "
            "pip install 'structmem[inspect]'. A log that was converted to JSON needs no library."
        ) from error
    place = str(path)

    def read(function, *arguments, **options):
        try:
            return background.run_sync(function(place, *arguments, format="eval", **options))
        except Exception as error:  # whatever a damaged member makes zstd, JSON or the models raise
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"{path.name}: Inspect's reader cannot read it ({said[0][:200]}); is it cut?") from None

    header = read(library.read_eval_log_async, header_only=True).model_dump()
    listed = read(library.read_eval_log_sample_summaries_async)
    kept = [name for name in names if name.startswith("samples/") and name.endswith(".json")]
    notes = []
    if len(kept) != len(listed):
        notes.append(f"the archive holds {len(kept)} samples and lists {len(listed)}; those that are listed were read")
    if again := sum(names[name] - 1 for name in kept):
        notes.append(f"{again} samples were written again later; the later ones count, as they do for Inspect")

    def samples() -> Iterator[dict]:
        for one in listed:
            options = {"exclude_fields": set(_HEAVY) - {"timelines"}}
            yield slim(read(library.read_eval_log_sample_async, one.id, one.epoch, **options).model_dump())

    return header, samples(), notes


def read_inspect_log(header: dict, samples: Iterator[dict], known: KnownEntries, source: Source) -> Source:
    """Rows of one log, added to `source`.

    A sample is a generation (``epoch`` − 1), and every scorer a judge. ``persistbench_judge`` is the judge
    ``persistbench`` here; other scorers keep their name, and their numbers are read on the scale of the failure type.
    Samples of our own tasks say themselves what their settings were. Of others the prompt is compared with ours: where
    memories, template, defence and placement give the logged messages exactly, they are named so; another template is
    ``foreign-`` and a hash, and what cannot be told is ``unknown`` (the system prompt with a hash of the log's task,
    its arguments and its solvers, so that two setups are two arms).

    ``called_at`` is when the sample began, ``latency_s`` the time of its last model call. inspect-evals turns a score
    into a whole number before it is logged (a 2.9 becomes 2), which no reader of the log can see.

    Raises
    ------
    InputError
        A log of which no sample has memories, or whose header or samples have another shape.
    """
    try:
        evaluation = header["eval"]
        state, model, packages = header["status"], evaluation["model"], evaluation.get("packages") or {}
        task = evaluation.get("task_registry_name") or evaluation["task"]
        source.made_by = f"Inspect AI {packages.get('inspect_ai', '')}, {task}, status {state}".replace(" ,", ",")
        log = _Log(header, evaluation)
        rows = [row for sample in samples for row in log.rows(sample, known, source)]
        _fill_settings(rows)
        for row, raw in rows:
            source.add(_finished(row, log, model), raw)
        _stated(header, source)
        planned = len(evaluation["dataset"].get("sample_ids") or ())
        planned *= (evaluation.get("config") or {}).get("epochs") or 1
        if planned > source.found:
            source.notes.append(f"{planned - source.found} of {planned} planned samples are not in the log")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{source.file}: not as Inspect writes a log ({type(error).__name__}: {error}); expected version 2 of its "
            "format, with 'eval', 'status' and 'samples'."
        ) from error
    if not source.found:
        raise InputError(f"{source.file} holds no sample ({source.made_by}); there is nothing to import.")
    if not log.with_memories:
        raise InputError(
            f"{source.file}: no sample has 'memories' in its metadata ({source.made_by}, {source.found} samples); "
            "expected a log of a memory benchmark, such as inspect_evals/persistbench_cross_domain."
        )
    if not header.get("results"):
        source.notes.append(
            f"the log holds no results of its own{', although' if state == 'success' else ':'} its status is {state!r}"
        )
    source.notes += log.notes()
    return source


class _Log:
    """What the rows of one log share, and how a sample becomes rows."""

    def __init__(self, header: dict, evaluation: dict):
        self.model, self.benchmark = evaluation["model"], False
        roles = evaluation.get("model_roles") or {}
        grader = roles.get("grader")
        self.grader = (grader[0] if isinstance(grader, list) else grader) or {}
        self.scorers = [scorer["name"] for scorer in evaluation.get("scorers") or ()]
        plan = (header.get("plan") or {}).get("config") or {}
        given = {**plan, **(evaluation.get("model_generate_config") or {})}
        self.params = {name: value for name, value in given.items() if value is not None}
        self.options = asked({**(evaluation.get("model_args") or {}), **_others(self.params)})
        self.run_id = f"inspect-{evaluation.get('eval_id') or evaluation['run_id']}"
        steps = [[step["solver"], step.get("params")] for step in (header.get("plan") or {}).get("steps") or ()]
        setup = json.dumps([evaluation["task"], evaluation.get("task_args") or {}, steps], sort_keys=True, default=str)
        self.setup = f"{UNKNOWN}-{hashlib.sha256(setup.encode()).hexdigest()[:12]}"
        self.with_memories = 0
        self.likely: list[tuple[str, str, str]] = []
        self.foreign: set[str] = set()
        self.as_named: set[str] = set()
        self.own_scale: set[str] = set()
        self.marked: Counter[str] = Counter()

    def rows(self, sample: dict, known: KnownEntries, source: Source) -> list[tuple[dict, object]]:
        """One row, and the score behind it, for every scorer."""
        source.found += 1
        metadata = sample.get("metadata") or {}
        memories = texts(metadata.get("memories"))
        self.with_memories += memories is not None
        kind = failure_type(metadata.get("failure_type"))
        query = _query(sample.get("input"))
        ours = metadata.get("structmem") if isinstance(metadata.get("structmem"), dict) else {}
        row = known.columns(query, memories or [], kind, sample["id"], source.met)
        if memories is None:
            row["n_memories"] = None
        if "structure" not in ours:
            row |= self._prompt(sample, query, memories or [])
        row |= {name: value for name, value in ours.items() if name in NAMES and value is not None}
        row |= {"generation": generation_of(sample["epoch"], 1)} | _answer(sample)
        scores = sample.get("scores") or {}
        self.marked["samples ended at a limit of Inspect's"] += bool(sample.get("limit"))
        self.marked["samples were begun again after an error"] += bool(sample.get("error_retries"))
        self.marked["samples are marked invalid in the log"] += sample.get("invalidation") is not None
        self.marked["scores were edited after the run"] += sum(bool(score.get("history")) for score in scores.values())
        found = []
        for scorer in dict.fromkeys([*self.scorers, *scores]) or [UNKNOWN]:
            if self.scorers and scorer not in self.scorers:
                self.scorers.append(scorer)
            score = scores.get(scorer)
            judged = self._judged(row, scorer) | _judgement(sample, row, score, scorer)
            found.append((row | judged, None if score is None or sample.get("error") else score.get("value")))
        return found

    def _judged(self, row: dict, scorer: str) -> dict:
        benchmark = scorer == _BENCHMARK_JUDGE
        self.benchmark |= benchmark
        if not benchmark:
            self.own_scale.add(scorer)
        model = self.grader.get("model") or (DEFAULT_JUDGE if benchmark else UNKNOWN)
        config = asked({**(self.grader.get("config") or {}), **(self.grader.get("args") or {})})
        found = {
            "judge": _judge(scorer),
            "judge_model": model,
            "judge_options": canonical(config) if config else None,
        }
        return found | (row["_judge_usage"] if benchmark else {}) | scale_columns(row["failure_type"])

    def _prompt(self, sample: dict, query: str, memories: list[str]) -> dict:
        shown = [
            (message["role"], _text(message.get("content"))) for message in sample.get("messages") or ()
            if message.get("role") in ("system", "user")
        ]  # fmt: skip
        if not any(text != query for _, text in shown):  # it failed before its prompt was made
            return {"_no_prompt": True}
        found = recognised(shown, query, memories, self.model, self.likely)
        if "prompt_hash" in found:
            self.likely = [tuple(found[name] for name in ("system_prompt", "defence", "placement"))]
        if found.get("system_prompt", "").startswith("foreign-"):
            self.foreign.add(found["system_prompt"])
        if "_named" in found:
            self.as_named.add(found["_named"])
        return {name: value for name, value in found.items() if name != "_named"}

    def notes(self) -> list[str]:
        """What was taken to be what, in words."""
        found = []
        if self.benchmark and not self.grader.get("model"):
            found.append(f"no grader role: the judge is inspect-evals' default, {DEFAULT_JUDGE}")
        for scorer in sorted(self.own_scale):
            found.append(f"scorer {scorer!r} is not the benchmark's: its numbers were read on the failure type's scale")
        for name in sorted(self.foreign):
            found.append(f"system prompt {name}: a template that is none of ours, named by its hash")
        for name in sorted(self.as_named):
            found.append(
                f"the prompt calls the model {name!r}; our runs write the name without its route. The memories' "
                "context is the same: prompts differ in that name alone"
            )
        return found + [f"{n} {what}; they are taken as they stand" for what, n in self.marked.items() if n]


def _judge(scorer: str) -> str:
    """A scorer as a judge; no other tool's scorer is taken for one of our judges."""
    if scorer == _BENCHMARK_JUDGE:
        return "persistbench"
    return f"inspect-{scorer}" if scorer in ("persistbench", "echo") else scorer


def _others(params: dict) -> dict:
    ours = ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort")
    control = ("max_retries", "timeout", "attempt_timeout", "max_connections", "adaptive_connections", "batch", "cache")
    return {name: value for name, value in params.items() if name not in (*ours, *control)}


def _finished(row: dict, log: _Log, model: str) -> dict:
    row = {name: value for name, value in row.items() if not name.startswith("_")}
    return (
        {name: log.params.get(name) for name in ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort")}
        | {"model": model, "model_options": canonical(log.options) if log.options else "", "replicate": 0}
        | _NOT_KNOWN
        | {"system_prompt": log.setup}
        | row
        | {"run_id": log.run_id, "schema_version": SCHEMA_VERSION}
    )


def _fill_settings(rows: list[tuple[dict, object]]) -> None:
    """Samples that failed before their prompt was made have the settings of the log's others: it has one solver."""
    told = {tuple(row.get(name) for name in _NOT_KNOWN) for row, _ in rows if row.get("structure")}
    if len(told) == 1:
        values = dict(zip(_NOT_KNOWN, told.pop(), strict=True))
        for row, _ in rows:
            if row.get("_no_prompt"):
                row |= {name: value for name, value in values.items() if value is not None}


def _query(given: object) -> str:
    """The question of a sample: its input, or the last user message of it."""
    if isinstance(given, str):
        return given
    asked_ = [message for message in given or () if message.get("role") == "user"]
    return _text(asked_[-1].get("content")) if asked_ else ""


def _text(content: object) -> str:
    """The visible text of a message."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content or () if part.get("type") == "text")


def _answer(sample: dict) -> dict:
    """Columns of the answer; `response` is None where there is none."""
    output = sample.get("output") or {}
    choice = (output.get("choices") or [{}])[0]
    usage, judge = output.get("usage") or {}, (sample.get("role_usage") or {}).get("grader") or {}
    content = (choice.get("message") or {}).get("content")
    thought = [part for part in content if part.get("type") == "reasoning"] if isinstance(content, list) else []
    text = output.get("completion") or _text(content)
    stop = choice.get("stop_reason")
    return {
        "response": readable(text) if text and text.strip() else None,
        "model_reasoning": readable("\n".join(part.get("reasoning") or "" for part in thought)) or None,
        "finish_reason": stop,
        "truncated": stop in _CUT if stop else None,
        "served_model": output.get("model") if choice else None,
        "called_at": sample.get("started_at"),
        "latency_s": output.get("time"),
        "answer_input_tokens": _input_tokens(usage),
        "answer_output_tokens": usage.get("output_tokens"),
        "answer_cached_tokens": usage.get("input_tokens_cache_read"),
        "answer_cost_usd": usage.get("total_cost"),
        "_judge_usage": {
            "judge_input_tokens": _input_tokens(judge),
            "judge_output_tokens": judge.get("output_tokens"),
            "judge_cached_tokens": judge.get("input_tokens_cache_read"),
            "judge_cost_usd": judge.get("total_cost"),
        },
    }


def _input_tokens(usage: dict) -> int | None:
    """All input tokens: Inspect counts those that its provider's cache read or wrote apart."""
    if usage.get("input_tokens") is None:
        return None
    return usage["input_tokens"] + sum(usage.get(f"input_tokens_cache_{way}") or 0 for way in ("read", "write"))


def _judgement(sample: dict, row: dict, score: dict | None, scorer: str) -> dict:
    """Status of one row. A sample that failed after its answer has no verdict; one before it has no response."""
    error = sample.get("error")
    said = error.get("message") if isinstance(error, dict) else error
    if row["response"] is None:  # also where a scorer judged the empty answer
        stop = row["finish_reason"]
        reason = reason_of(said) if error else "filtered" if stop == _FILTERED else "empty"
        limit = (sample.get("limit") or {}).get("type")
        return failed("no_response", reason, said or (limit and f"limit: {limit}"))
    if error:
        return failed("no_verdict", reason_of(said), said)
    if score is None:
        return failed("no_verdict", "not_asked", f"The log holds no score of {scorer}.")
    must_reason = scorer == _BENCHMARK_JUDGE
    found = verdict(score.get("value"), score.get("explanation"), row["failure_type"], must_reason)
    if found["status"] != "ok" and score.get("reason"):
        found["status_detail"] = f"{found['status_detail']} Inspect's reason: {score['reason']}"
    return found | {"judge_reasoning": readable(found["judge_reasoning"])}


def _stated(header: dict, source: Source) -> None:
    """The rates that the log itself holds."""
    for score in (header.get("results") or {}).get("scores") or ():
        for metric in (score.get("metrics") or {}).values():
            name = metric["name"].rsplit("/", 1)[-1]
            judge = _judge(score["scorer"] if score["scorer"] == _BENCHMARK_JUDGE else score["name"])
            value, reducer = metric["value"], score.get("reducer") or "mean"
            if not isinstance(value, (int, float, type(None))) or not isinstance(reducer, str):
                raise ValueError(f"{name} is {value!r:.40} with the reducer {reducer!r:.40}")
            source.stated.append({"judge": judge, "measure": name, "reducer": reducer, "value": value})
