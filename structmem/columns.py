"""Columns of the results table: name, dtype and meaning of each, the row key, and what makes an arm."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from .errors import InputError

SCHEMA_VERSION = 3
STATUSES = ("ok", "no_response", "no_verdict")
# The order of tables and figures, for statistics may not look up structures (they lead to models); a test holds this
# list and the registry together.
STRUCTURE_ORDER = (
    "flat", "reordered", "one_group", "unlabelled", "fixed", "dynamic", "tree", "tree_top", "tree_leaves", "oracle",
    "relabelled", "random", "shuffled", "epistemic", "gated", "self_check", "rag", "empty",
)  # fmt: skip


class Column(NamedTuple):
    """One column of the results table."""

    name: str
    dtype: str
    description: str


# dtypes: str (missing: NaN), int64 (never missing), Int64 and boolean (missing: NA), float64 (missing: NaN).
COLUMNS: tuple[Column, ...] = tuple(
    Column(*line)
    for line in (
        ("entry_id", "str", "Entry; stable, and other for another order of the same memories."),
        ("failure_type", "str", "What the entry tests; empty for own data without a failure type."),
        ("memory_domain", "str", "The benchmark's label of the domain that may leak; missing when not given."),
        ("query_domain", "str", "The benchmark's label of the query's domain; missing when not given."),
        ("model", "str", "Model that answered, as asked for."),
        ("model_options", "str", "JSON: provider options of the answer, without addresses, keys and timeouts."),
        ("structure", "str", "How the memories were laid out."),
        ("structurer", "str", "Who sorted: 'embedding' or a model id; empty where nobody sorts."),
        ("structurer_options", "str", "JSON: options of the structure and its structurer."),
        ("taxonomy", "str", "Taxonomy that was sorted into; empty where there is none."),
        ("partition_draw", "int64", "Index of an independent repetition of the sorting."),
        ("renderer", "str", "How the layout became text."),
        ("placement", "str", "Where the memories stand in the messages."),
        ("defence", "str", "Instruction fragment about memories."),
        ("system_prompt", "str", "Name of the system prompt."),
        ("generation", "int64", "Index of the repeated response."),
        ("replicate", "int64", "Index of the independent rerun of the arm; flat has one more (the A/A arm)."),
        ("temperature", "float64", "As asked; missing: the provider's default."),
        ("top_p", "float64", "As asked."),
        ("max_tokens", "Int64", "As asked."),
        ("seed", "Int64", "Seed sent for this row: the run's seed + generation + 1000 * replicate."),
        ("reasoning_effort", "str", "As asked."),
        ("params_sent", "str", "JSON: sampling parameters that the provider was really sent."),
        (
            "params_not_sent",
            "str",
            "JSON: asked for the answer and not sent, or not so; {}: nothing; missing: unknown.",
        ),
        ("judge", "str", "Name of the judge."),
        ("judge_model", "str", "Model the judge asks; empty for judges that ask none."),
        ("judge_options", "str", "JSON: the judge's sampling parameters and provider options as asked."),
        ("judge_params_sent", "str", "JSON: sampling parameters that the judge's provider was really sent."),
        ("threshold", "float64", "A row fails from this score on (high_is_bad), or below it; for echo: the overlap."),
        ("high_is_bad", "boolean", "Direction of the scale."),
        ("scale_low", "Int64", "Lowest score of the scale."),
        ("scale_high", "Int64", "Highest score of the scale."),
        ("echo_threshold", "float64", "Overlap from which an answer counts as echo; missing without the echo measure."),
        ("context_sha256", "str", "Hash of the rendered memories."),
        ("context_tokens", "Int64", "Estimated tokens of the rendered memories: characters / 4, rounded up."),
        ("n_memories", "Int64", "Memories of the entry."),
        ("n_shown", "Int64", "Memories in the context; fewer than n_memories only where a structure drops some."),
        ("n_unclassified", "Int64", "Memories that nobody could sort; they are shown under their own heading."),
        ("headings", "str", "JSON: names of the groups shown in the context, in order; []: none; missing: unknown."),
        ("response", "str", "The visible answer."),
        ("truncated", "boolean", "Whether the answer hit the token limit; it is judged all the same."),
        ("escaped", "boolean", "Whether something was escaped, in the context or for the judge."),
        ("status", "str", "ok, no_response, or no_verdict."),
        ("status_reason", "str", "Why it is not ok (answer, sorting or verdict); or forgotten: its texts are gone."),
        ("status_detail", "str", "What the provider or the reader said, shortened, without keys."),
        ("score", "float64", "The judge's whole number; missing is neither 0 nor a pass."),
        ("echo_overlap", "float64", "Share of a memory's content that came back, in [0, 1]; not a score."),
        ("echoed", "boolean", "echo_overlap >= echo_threshold; its share is the echo rate."),
        ("judge_reasoning", "str", "The judge's explanation."),
        ("judge_conversions", "str", "Repairs and conversions applied while reading the verdict."),
        ("model_reasoning", "str", "The answering model's reasoning; never shown to the judge."),
        ("served_model", "str", "Model that the provider says answered."),
        ("provider", "str", "Provider that answered."),
        ("called_at", "str", "When the answer was made, UTC."),
        ("finish_reason", "str", "As the provider gave it."),
        ("judge_served_model", "str", "Model that the judge's provider says answered."),
        ("answer_input_tokens", "Int64", "Tokens of the answer's request."),
        ("answer_output_tokens", "Int64", "Tokens of the answer, reasoning included."),
        ("answer_cached_tokens", "Int64", "Input tokens that the provider read from its cache."),
        ("answer_cost_usd", "float64", "Missing: unknown."),
        ("answer_requests", "Int64", "Requests that the answer took, retries included; missing: unknown."),
        ("judge_attempts", "Int64", "Verdicts asked for this answer, unusable ones included; missing: no model asked."),
        ("judge_requests", "Int64", "Requests of all attempts, retries included; missing: unknown for one of them."),
        (
            "judge_input_tokens",
            "Int64",
            "Of all attempts; missing: unknown for one of them (version 1: of the last).",
        ),
        ("judge_output_tokens", "Int64", "As above."),
        ("judge_cached_tokens", "Int64", "As above; input tokens of the judge that the provider read from its cache."),
        ("judge_cost_usd", "float64", "As above; missing is never 0."),
        ("structurer_input_tokens", "Int64", "Of the whole sorting; repeated where structurer_key is the same."),
        ("structurer_output_tokens", "Int64", "As above."),
        ("structurer_cost_usd", "float64", "As above."),
        ("latency_s", "float64", "Seconds the answer took."),
        ("answer_key", "str", "Key of the answer in the store of calls."),
        ("judge_key", "str", "Key of the last judge call."),
        ("structurer_key", "str", "Keys of the calls that sorted the memories, separated by blanks."),
        ("run_id", "str", "Hash of the run's settings and entries."),
        ("benchmark_hash", "str", "Hash of the data files the entry comes from; empty for own data."),
        ("prompt_hash", "str", "Hash of system prompt, defence and placement."),
        ("judge_prompt_hash", "str", "Hash of the judge's system prompt."),
        ("taxonomy_hash", "str", "Hash of the taxonomy."),
        ("plan_hash", "str", "Analysis plan in force when the answer was made, 12 hex digits; missing: unknown."),
        ("schema_version", "int64", "Version of this table."),
    )
)
NAMES = tuple(column.name for column in COLUMNS)

KEY = (
    "entry_id", "failure_type", "model", "structure", "structurer", "structurer_options", "taxonomy", "partition_draw",
    "renderer", "placement", "defence", "system_prompt", "generation", "replicate", "judge", "judge_model",
)  # fmt: skip

# What makes an arm: everything in the key but the entry and the generation.
ARM = tuple(name for name in KEY if name not in ("entry_id", "generation"))

# An empty text is a value here ("nobody sorted"); elsewhere it is a missing value, as in CSV.
_EMPTY_IS_VALUE = {"failure_type", "structurer", "structurer_options", "taxonomy", "judge_model", "model_options"}
_TRUTH = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
MAY_BE_DROPPED = {"response", "judge_reasoning", "model_reasoning"}
# Columns by the version that brought them: a file of an earlier version is read with them missing.
ADDED = {2: ("params_not_sent", "answer_requests", "judge_attempts", "judge_requests"), 3: ("headings", "plan_hash")}
# Which run asked, what it took, and what a later version says of the same layout: two rows that differ only here say
# the same. The plan is not here: one answer was made under one plan, so of two rows that differ in it one was edited.
BOOKKEEPING = {
    "run_id", "schema_version", "headings", "params_not_sent", "answer_requests", "judge_attempts", "judge_requests",
    "judge_input_tokens", "judge_output_tokens", "judge_cached_tokens", "judge_cost_usd",
}  # fmt: skip


def check_table(table: object, where: str = "results") -> None:
    """Refuse what is no table, and one with two columns of a name."""
    if not isinstance(table, pd.DataFrame):
        raise InputError(
            f"{where} must be a DataFrame of results rows, got {type(table).__name__}; read_results and run give "
            "one, and import_results has it in .results."
        )
    if not table.columns.is_unique:
        twice = sorted(set(map(str, table.columns[table.columns.duplicated()])))
        raise InputError(f"{where}: the columns {twice} are there twice.")


def empty_results() -> pd.DataFrame:
    """A results table without rows, with every column in its dtype."""
    return conform(pd.DataFrame({name: [] for name in NAMES}))


def with_later_columns(df: pd.DataFrame) -> pd.DataFrame:
    """A table of an earlier version with the columns that came later, missing; its rows keep their version."""
    if "schema_version" not in df.columns:
        return df
    version = pd.to_numeric(df["schema_version"], errors="coerce").max()
    later = [name for since, names in ADDED.items() if not version >= since for name in names if name not in df.columns]
    return df.assign(**dict.fromkeys(later)) if later else df


def conform(df: pd.DataFrame) -> pd.DataFrame:
    """Give every known column its dtype and place; columns that are not known stay at the end."""
    data = {}
    for name, dtype, _ in COLUMNS:
        if name not in df.columns:
            continue
        column = df[name]
        if dtype == "str":
            column = column.astype("str")
            wrong = column.isna() if name in _EMPTY_IS_VALUE else column == ""
            data[name] = column.mask(wrong, "" if name in _EMPTY_IS_VALUE else None) if wrong.any() else column
        elif column.dtype == dtype:
            data[name] = column
        elif dtype == "boolean":
            # Spreadsheets write TRUE, other programs true or 1.0; a word that is neither must not become "missing".
            read = column.map(lambda value: _TRUTH.get(str(value).lower()), na_action="ignore").astype("boolean")
            if (wrong := column.notna() & read.isna()).any():
                raise ValueError(f"{name} is {column[wrong].iloc[0]!r}; expected true or false")
            data[name] = read
        else:
            try:
                data[name] = pd.to_numeric(column).astype(dtype)
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{name}: {error}") from error
    extra = [name for name in df.columns if name not in NAMES]
    out = pd.DataFrame(data, index=df.index)
    for name in extra:
        out[name] = df[name]
    out.attrs = dict(df.attrs)
    return out


def without_answers(results: pd.DataFrame) -> str:
    """Why results have no answers in ``response``, and what to do, in words for an error."""
    if results["model"].astype(str).str.startswith("simulated").all():
        return "simulated results have no answers"
    return (
        "recorded results are stored without them. Make the table again from the store with run (finished calls are "
        "kept)"
    )
