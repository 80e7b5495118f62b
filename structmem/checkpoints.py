"""Checkpoints of PersistBench's own runner: read into rows, and written from the rows of one arm."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from .auditfiles import write_private
from .calls import asked, canonical
from .columns import ARM, SCHEMA_VERSION, without_answers
from .data import FAILURE_TYPES, Entry
from .errors import InputError
from .foreign_rows import (
    OPENROUTER,
    UNKNOWN,
    KnownEntries,
    Source,
    failed,
    failure_type,
    generation_of,
    reason_of,
    routed,
    scale_columns,
    texts,
    verdict,
)
from .optiontexts import options_of
from .results import read_results
from .rows import readable

# A checkpoint has no place for what makes our arms. Ours go where it names a prompt template: its runner takes that for
# a file that is missing, and so cannot go on with another prompt under the same name.
_OURS = "structmem:"
_ARM = tuple(name for name in ARM if name not in ("model", "failure_type", "judge_model"))
# What its own runner does when it is told of no template: the settings of our runs that are the same.
_DEFAULT = {
    "structure": "flat", "structurer": "", "structurer_options": "", "taxonomy": "", "partition_draw": 0,
    "renderer": "markdown", "placement": "system", "defence": "standard", "system_prompt": "persistbench",
    "replicate": 0, "judge": "persistbench",
}  # fmt: skip
_ERROR = re.compile(r"structmem (no_response|no_verdict): (\w+)(?:: (.*))?", re.S)
# How the detail of a verdict begins that had a score which is no score of ours; PersistBench counts some of them.
_UNWRITTEN = re.compile(r"(out_of_range|not_an_integer|not_a_number|other_scale|no_reasoning):")
_NO_REASONING = "(structmem: the results hold no reasoning)"
_SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort")


def read_checkpoint(checkpoint: dict, known: KnownEntries, source: Source) -> Source:
    """Rows of a checkpoint, added to `source`: one per model and generation.

    A generation with an error keeps its answer and has no verdict, whatever its judge field says, as in PersistBench's
    own script. Generations that are only a place kept for later are ``no_response``, ``not_asked``. The old names
    ``leakage_type`` and ``positive_memory_usage`` are read. A checkpoint names its prompt template but does not hold
    its text: without a template the settings are those of our system prompt ``persistbench`` with a flat list, and
    ``prompt_hash`` and ``context_sha256`` stay empty; with one they are ``unknown`` and its name is kept.

    Raises
    ------
    InputError
        For entries of another shape, with the entry.
    """
    metadata, entries = checkpoint.get("metadata"), checkpoint.get("entries")
    if not isinstance(metadata, dict) or not isinstance(entries, dict):
        raise InputError(f"{source.file}: expected 'metadata' and 'entries', two JSON objects, as PersistBench writes.")
    models = metadata.get("models") or []
    try:
        providers = {str(one["name"]): one for one in models}
    except (TypeError, KeyError):
        raise InputError(f"{source.file}: metadata 'models' must be a list of objects with a 'name'.") from None
    settings, told = _settings(metadata.get("prompt_template"))
    judge = metadata.get("judge_model")
    judge = "" if judge == "" else routed(judge or UNKNOWN, metadata.get("judge_provider"))  # "": ours, asks no model
    source.made_by = f"PersistBench, {metadata.get('timestamp', 'without a date')}"
    shared = settings | {
        "judge_model": judge,
        "run_id": f"persistbench-{source.sha256[:16]}",
        "schema_version": SCHEMA_VERSION,
    }
    source.notes += told
    old = empty = errors = 0
    for key, entry in entries.items():
        where = f"{source.file} entry {key[:40]!r}"
        if not isinstance(entry, dict) or not isinstance(entry.get("results") or {}, dict):
            raise InputError(f"{where}: expected an object with 'query', 'memories' and 'results'.")
        memories, query = texts(entry.get("memories")), entry.get("query")
        if memories is None or not isinstance(query, str):
            raise InputError(f"{where}: 'query' must be a text and 'memories' a list of texts.")
        written = entry.get("failure_type") or entry.get("leakage_type")
        kind = failure_type(written)
        if written and kind is None:
            raise InputError(f"{where}: failure type {written!r}; expected one of {sorted(FAILURE_TYPES)}.")
        old += written != entry.get("failure_type") or written != kind
        about = known.columns(query, memories, kind, key, source.met) | {"n_shown": len(memories), "n_unclassified": 0}
        about |= scale_columns(about["failure_type"])
        if settings["structure"] != "flat":
            del about["n_shown"], about["n_unclassified"]
        made = 0
        for model, found in (entry.get("results") or {}).items():
            generations = found.get("generations") or [] if isinstance(found, dict) else None
            if not isinstance(generations, list) or not all(isinstance(one, dict) for one in generations):
                raise InputError(f"{where}, model {model[:60]!r}: 'generations' must be a list of objects.")
            asked_for = _asked(model, providers.get(model) or {})
            for place, one in enumerate(generations):
                try:
                    index = generation_of(one.get("generation_index", place), 0)
                except ValueError as error:
                    raise InputError(f"{where}, model {model[:60]!r}: {error}.") from None
                row = shared | about | asked_for | {"generation": index}
                row |= _generation(one, about["failure_type"])
                source.add(row, None if one.get("error") else _score(one))
                errors += bool(one.get("error")) and _score(one) is not None
                made += 1
        source.found += made
        empty += not made
    if old:
        source.notes.append(f"{old} entries have an old name for their failure type; it was read as today's")
    if nameless := sum(not (entry.get("failure_type") or entry.get("leakage_type")) for entry in entries.values()):
        source.notes.append(
            f"{nameless} entries name no failure type; PersistBench's script takes them for cross_domain"
        )
    if empty:
        source.notes.append(f"{empty} of {len(entries)} entries have no generation yet: no row")
    if errors:
        source.notes.append(f"{errors} generations have a score and an error: not scored, as in PersistBench's script")
    return source


def _settings(template: object) -> tuple[dict, list[str]]:
    if not template:
        return _DEFAULT, [
            "no prompt template is named, so PersistBench's own was used (our 'persistbench'); the file does not hold "
            "the prompts, so prompt_hash and context_sha256 are empty"
        ]
    if isinstance(template, str) and template.startswith(_OURS):
        try:
            return _DEFAULT | {k: v for k, v in json.loads(template[len(_OURS) :]).items() if k in _ARM}, []
        except (ValueError, AttributeError):
            pass
    name = re.split(r"[\\/]", str(template))[-1]
    unknown = dict.fromkeys(("renderer", "placement", "defence"), UNKNOWN)
    return _DEFAULT | unknown | {"system_prompt": f"foreign-{name}"}, [
        f"prompt template {name!r} is not in the file: renderer, placement and defence are unknown"
    ]


def _asked(model: str, settings: dict) -> dict:
    """What was asked of a model, under the names of our columns."""
    given = settings.get("api_params")
    params = given if isinstance(given, dict) else {}
    options = asked({name: value for name, value in params.items() if name not in _SAMPLING})
    return {
        "model": routed(model, settings.get("provider")),
        "provider": settings.get("provider"),
        "model_options": canonical(options) if options else "",
    } | {name: params.get(name) for name in _SAMPLING}


def _score(generation: dict) -> object:
    judge = generation.get("judge")
    return judge.get("score") if isinstance(judge, dict) else judge


def _generation(one: dict, kind: str) -> dict:
    response, error, judge = one.get("memory_response"), one.get("error"), one.get("judge")
    answer = readable(response) if isinstance(response, str) and response.strip() else None
    found = {"response": answer}
    if error and (ours := _ERROR.fullmatch(str(error))):
        return found | dict(zip(("status", "status_reason", "status_detail"), ours.groups(), strict=True))
    if answer is None:
        reason = reason_of(error) if error else "empty" if response is not None or "error" in one else "not_asked"
        return found | failed("no_response", reason, error)
    if error:
        return found | failed("no_verdict", reason_of(error), error)
    if judge is None:
        return found | failed("no_verdict", "not_asked", "The answer was not judged.")
    if not isinstance(judge, dict):
        return found | failed("no_verdict", "invalid", f"no_score: the judge's field is {judge!r:.80}.")
    reasoning = judge.get("reasoning")
    read = verdict(judge.get("score"), reasoning, kind, must_reason=True)
    return found | read | {"judge_reasoning": None if reasoning == _NO_REASONING else readable(read["judge_reasoning"])}


def entry_key(query: str, memories: list[str]) -> str:
    """The name of an entry in a checkpoint: an MD5 over query and sorted memories, which ties no order to it."""
    text = json.dumps({"memories": sorted(memories), "query": query}, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def write_checkpoint(
    results: pd.DataFrame | str | Path,
    path: str | Path,
    where: Mapping[str, object] | None = None,
    source: str | Path | None = None,
) -> dict:
    """Write one arm as a checkpoint of PersistBench's own runner, several models and failure types together.

    Its shape is that of a checkpoint that the runner wrote (its `metadata`, `entries`, `results`, `generations`); the
    runner and its scripts were not run on it. It has no place for tokens, times, costs, the reasoning of
    a verdict that gave no score, and the settings of an arm; the last are kept as the name of the prompt template, so
    that `import_results` gives back the same rows. The file quotes
    memories, questions and answers, and is readable by its owner only.

    The results hold no score that is off its scale, so neither does the file: a verdict of 9 on a scale to 5 is written
    as an error without a judge's score. PersistBench's script counts such a score where a checkpoint has it, so its
    rates over a checkpoint that was imported and exported again differ from those over the original; ``unwritten``
    counts these verdicts.

    Parameters
    ----------
    results : DataFrame, str or Path
        One row per generation, with the answers.
    path : str or Path
        A new file.
    where : mapping of column name to value, optional
        Which arm, where the results hold several: ``{"structure": "dynamic", "replicate": 0}``.
    source : str or Path, optional
        Where the entries are from, besides PersistBench and the examples: the texts are not in the results.

    Returns
    -------
    dict
        ``path``, ``entries``, ``models``, ``generations``, ``scored``, and ``unwritten`` (how many verdicts by what was
        wrong with their score, such as ``{"out_of_range": 3}``).

    Raises
    ------
    InputError
        Several arms, with what tells them apart; no row; rows judged by echo or without a failure type; answers that
        the results do not hold; entries that are not known; a file that is there already.
    """
    df = _one_arm(read_results(results), dict(where or {}))
    entries_known = KnownEntries(source)
    known = entries_known.by_id
    if missing := sorted(set(df["entry_id"]) - set(known)):
        why = f" ({entries_known.note})" if entries_known.note else ""
        raise InputError(
            f"{len(missing)} entries are not known{why}, such as {missing[:3]}, and a checkpoint holds their texts; "
            "name the file they were loaded from (source)."
        )
    path, entries = Path(path), {}
    counts = df.groupby("failure_type")["generation"].max() + 1
    for entry_id, rows in df.groupby("entry_id", sort=False):
        entry: Entry = known[entry_id][0]
        memories = [memory.text for memory in entry.memories]
        key = entry_key(entry.query, memories)
        if key in entries:
            raise InputError(
                f"entry {entry_id!r} has the query and the memories of another, in another order: in a checkpoint both "
                "have one name. Export them apart."
            )
        of_model = {model: _generations(some) for model, some in rows.groupby("model", sort=False)}
        entries[key] = {
            "memories": memories,
            "query": entry.query,
            "results": {_unrouted(model)[0]: {"generations": made} for model, made in of_model.items()},
            "failure_type": entry.failure_type,
        }
    checkpoint = {"metadata": _metadata(df, len(entries), counts), "entries": entries}
    heads = [_UNWRITTEN.match(str(text)) for text in df.loc[df["status"] == "no_verdict", "status_detail"]]
    write_private(path, json.dumps(checkpoint, ensure_ascii=False).encode("utf-8", "replace"))
    return {
        "path": path, "entries": len(entries), "models": df["model"].nunique(), "generations": len(df),
        "scored": int((df["status"] == "ok").sum()), "unwritten": dict(Counter(head[1] for head in heads if head)),
    }  # fmt: skip


def _one_arm(df: pd.DataFrame, where: dict) -> pd.DataFrame:
    for column, value in where.items():
        if column not in (*ARM, "entry_id"):
            raise InputError(f"where: {column!r} is no setting of an arm; expected one of {list(ARM)}.")
        said = df[column].astype(str)
        if not (said == str(value)).any():
            raise InputError(f"{column} must be one of {sorted(said.unique())}, got {str(value)!r}.")
        df = df[said == str(value)]
    if df.empty:
        raise InputError("no row to export.")
    several = {name: sorted(df[name].astype(str).unique()) for name in (*_ARM, "judge_model") if df[name].nunique() > 1}
    if several:
        menu = "; ".join(f"{name}: {', '.join(map(repr, values))}" for name, values in several.items())
        raise InputError(
            f"a checkpoint holds one arm, and the results hold several. Choose one value of each of {menu}."
        )
    if (df["judge"] == "echo").any() or not df["failure_type"].isin(FAILURE_TYPES).all():
        raise InputError("rows judged by echo, or without a failure type, have no scores that a checkpoint could hold.")
    for kind, rows in df.groupby("failure_type"):
        scale = FAILURE_TYPES[kind]
        if (rows["scale_low"].dropna() != scale.low).any() or (rows["scale_high"].dropna() != scale.high).any():
            raise InputError(
                f"{kind} was judged on another scale than the benchmark's ({scale.low} to {scale.high}); a checkpoint "
                "has no other."
            )
    answered = df["status"] != "no_response"
    if "response" not in df or df.loc[answered, "response"].isna().any():
        raise InputError(f"a checkpoint holds the answers, and {without_answers(df)}.")
    if "judge_reasoning" not in df:
        df = df.assign(judge_reasoning=None)
    names = df["model"].drop_duplicates().map(lambda model: _unrouted(model)[0])
    if names.duplicated().any():
        raise InputError(f"two models would have the name {names[names.duplicated()].iloc[0]!r}; export them apart.")
    return df


def _unrouted(model: str) -> tuple[str, str | None]:
    head, slash, name = model.partition("/")
    return (name, OPENROUTER) if slash and head == OPENROUTER else (model, None)


def _generations(rows: pd.DataFrame) -> list[dict]:
    """A model's generations of one entry in order; an empty object keeps the place of one that is not there."""
    made: list[dict] = [{} for _ in range(int(rows["generation"].max()) + 1)]
    for row in rows.to_dict("records"):
        ok, index = row["status"] == "ok", int(row["generation"])
        said = [row["status_reason"], row["status_detail"]]
        why = ": ".join(str(text) for text in said if isinstance(text, str)) or "error"
        reasoning = row["judge_reasoning"]
        made[index] = {
            "generation_index": index,
            "error": None if ok else f"structmem {row['status']}: {why}",
            "memory_response": row["response"] if isinstance(row["response"], str) else None,
            "memory_raw_api_response": {},
            "judge": {
                "score": int(row["score"]),
                "reasoning": reasoning if isinstance(reasoning, str) else _NO_REASONING,
                "raw_api_response": {},
            }
            if ok
            else None,
        }
    return made


def _metadata(df: pd.DataFrame, n_entries: int, counts: pd.Series) -> dict:
    arm = {name: df[name].iloc[0] for name in _ARM}
    arm = {name: value.item() if hasattr(value, "item") else value for name, value in arm.items()}
    judge, judge_provider = _unrouted(str(df["judge_model"].iloc[0]))
    return {
        "benchmark_name": "PersistBench",
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "total_entries": n_entries,
        "models": [_model(model, rows.iloc[0]) for model, rows in df.groupby("model", sort=False)],
        "judge_model": judge,
        "judge_provider": judge_provider,
        "store_raw_api_responses": False,
        "generations": int(counts.iloc[0]) if counts.nunique() == 1 else None,
        "concurrency": 1,
        "prompt_template": None if arm == _DEFAULT else _OURS + canonical(arm),
        "batch_jobs": {"generation": {}, "judgment": None},
    }


def _model(model: str, row: pd.Series) -> dict:
    name, route = _unrouted(model)
    given = {column: row[column] for column in _SAMPLING if pd.notna(row[column])}
    params = {column: value.item() if hasattr(value, "item") else value for column, value in given.items()}
    options = options_of(row["model_options"])
    provider = route or (row["provider"] if isinstance(row["provider"], str) else UNKNOWN)
    return {"name": name, "provider": provider, "mode": "sequential", "api_params": {**options, **params}}
