"""Results rows folded into outcomes: one row per entry and arm, complete or not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from .columns import ARM as _KEYED
from .columns import STATUSES, STRUCTURE_ORDER, check_table
from .data import FAILURE_TYPES
from .errors import InputError, choice
from .missing import in_words, why_missing
from .optiontexts import option_words
from .sorters import by_embedding

NONE = "(none)"  # a missing key stays a visible group
# What makes two rows of the same entry belong to different arms; the failure type separates everything anyway.
ARM = (*(column for column in _KEYED if column != "failure_type"), "threshold")
# What tells the arms of one comparison apart; everything else must be the same in both.
OF_STRUCTURE = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "replicate")
_NEEDED = ("entry_id", "failure_type", "model", "structure", "generation", "status")
_LOST = "lost: "  # columns of units: missing rows by reason
# Numbers that may be written as 0 or 0.0; both are the same key.
_COUNTS = ("partition_draw", "replicate", "generation")


def display_structure(structure: str, structurer: object = None) -> str:
    """Name of an arm as tables and figures print it.

    ``embedding`` is not the paper's way of sorting, so its arms say so: ``dynamic (embedding)``.
    """
    embedded = by_embedding(structurer) and structure not in ("flat", "rag")
    return f"{structure} (embedding)" if embedded else str(structure)


def keep_none(frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """A copy in which missing and empty keys read '(none)' and categories are plain, so that no group vanishes."""
    new = {}
    for column in dict.fromkeys(columns):
        values = frame[column].astype(object)
        values = values.where(values.notna() & values.ne(""), NONE)
        new[column] = values.map(lambda v: v if v == NONE else int(v)) if column in _COUNTS else values
    return frame.assign(**new)


def sort_arms(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Rows in the same order on every machine: structures and failure types in their own order, the rest by value."""
    orders = {"structure": STRUCTURE_ORDER, "failure_type": tuple(FAILURE_TYPES)}

    def rank(column: str, value: object) -> tuple:
        order = orders.get(column, ())
        return (order.index(value) if value in order else len(order), isinstance(value, str), value)

    columns = list(dict.fromkeys(columns))
    keys = [tuple(map(rank, columns, row)) for row in table[columns].itertuples(index=False)]
    return table.iloc[sorted(range(len(table)), key=keys.__getitem__)].reset_index(drop=True)


def told_apart(table: pd.DataFrame, twins: pd.DataFrame) -> list[str]:
    """Settings in which rows of one model and arm name differ, so that a figure or a sentence can name them."""
    columns = list(table)
    before = columns[: columns.index("arm")] if "arm" in columns else []
    named = [c for c in columns if c in before or c in ARM or c == "n_generations"]
    return [c for c in named if c not in ("model", "failure_type", "structure") and twins[c].nunique(dropna=False) > 1]


def setting_words(row: dict, columns: Iterable[str], table: pd.DataFrame) -> list[str]:
    """A row's settings in words: 'renderer xml', 'threshold 4', 'K 3'; of options what tells it from `table`'s rows."""
    names = {column: "K" if column == "n_generations" else column.replace("_", " ") for column in columns}
    values = {column: f"{row[column]:g}" if isinstance(row[column], float) else row[column] for column in columns}
    words = {column: f"{names[column]} {values[column]}" for column in columns}
    if "structurer_options" in words:
        words["structurer_options"] = option_words(table["structurer_options"])[row["structurer_options"]]
    return list(words.values())


def check_results(results: pd.DataFrame, by: Iterable[str]) -> None:
    """Refuse a frame that is no results table, columns that it lacks, and rows that share a key.

    Raises
    ------
    InputError
        With the missing columns, the menu of columns, or examples of doubled keys.
    """
    check_table(results)
    missing = [column for column in _NEEDED if column not in results]
    if missing:
        raise InputError(f"results lack the columns {missing}; expected the table made by run or read_results.")
    for column in by:
        if column not in results:
            raise choice("by", column, results.columns)
    if unknown := sorted({str(status) for status in results["status"].unique()} - set(STATUSES)):
        raise InputError(f"status must be one of {list(STATUSES)}, got {unknown}.")
    key = ["entry_id", "generation", *[column for column in _KEYED if column in results]]
    doubled = results.duplicated(key, keep=False)
    if doubled.any():
        shown = ["entry_id", "model", "structure", "generation"]
        examples = results.loc[doubled, shown].drop_duplicates().head(3).to_dict("records")
        raise InputError(
            f"{int(doubled.sum())} of {len(results)} results rows share their key with another row, for example "
            f"{examples}; keep one row per entry, arm and generation."
        )


def is_echo(results: pd.DataFrame) -> bool:
    """Whether every row was checked by the offline ``echo`` measure: then there is an echo rate and no failure rate."""
    check_table(results)
    return "judge" in results and len(results) > 0 and bool(results["judge"].eq("echo").all())


def judged_rows(results: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """The rows whose judge measures ``outcome``; the two kinds of judges are never mixed.

    Raises
    ------
    InputError
        For a failure rate over echo-judged rows, or an echo rate where no row was judged by echo.
    """
    if outcome not in ("failure", "echo"):
        raise choice("outcome", outcome, ["failure", "echo"])
    by_echo = results["judge"].eq("echo").fillna(False) if "judge" in results else pd.Series(False, results.index)
    if outcome == "failure" and by_echo.any():
        raise InputError(
            f"{int(by_echo.sum())} of {len(results)} rows were judged by 'echo', which measures overlap and gives no "
            "score: use echo_rate (or outcome='echo') for them; results[results.judge != 'echo'] are the others."
        )
    if outcome == "echo" and len(results) and not by_echo.any():
        raise InputError("No row was judged by 'echo', so there is no echo rate: use failure_rate.")
    return results[by_echo.astype(bool)] if outcome == "echo" else results


def unit_rows(
    results: pd.DataFrame, by: Iterable[str] = (), outcome: str = "failure", threshold: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Fold generations: one row per entry × arm (× ``by``), and the names of the columns that make the arm.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    by : column names
        Further columns that stay apart: labels of the entry, or ``generation`` (then each generation stands alone).
    outcome : 'failure' or 'echo'
    threshold : int, optional
        Replaces the threshold stamped on the rows.

    Returns
    -------
    units : DataFrame
        ``expected`` generations of the arm, ``scored``, ``complete``; ``failed`` by the maximum over generations and
        ``failed_one``, the share of failing generations (both NaN unless complete); ``mean_value``, the mean score or
        overlap; ``best`` and ``worst``, the outcome if every missing generation went well or badly; ``rows``,
        ``answered``, ``truncated``; and how many rows are missing for each reason (see ``counted``).
    arm : list of str
    """
    check_results(results, by)
    rows = judged_rows(results, outcome)
    rows = rows.assign(threshold=_thresholds(rows, outcome, threshold))
    arm = [column for column in ARM if column in rows]
    extra = [column for column in by if column not in (*arm, "entry_id", "failure_type")]
    for column in (*extra, "threshold"):
        within = rows.groupby(["entry_id", *[c for c in _KEYED if c in rows]], sort=False, dropna=False)[column]
        if column != "generation" and (within.nunique(dropna=False) > 1).any():
            raise InputError(f"{column!r} differs between the generations of one entry, which are one outcome.")
    value, bad, high_is_bad = _values(rows, outcome)
    answered = rows["status"].ne("no_response")
    truncated = rows["truncated"].eq(True).fillna(False).astype(bool) if "truncated" in rows else False
    lost = _lost(rows, value.isna())
    rows = keep_none(rows, ["entry_id", "failure_type", "generation", *arm, *extra]).assign(
        _scored=value.notna(), _value=value, _bad=bad, _good=1 - bad, _high_is_bad=high_is_bad,
        _answered=answered, _truncated=answered & truncated, **lost,
    )  # fmt: skip
    # How many generations an arm has is a fact of the arm, not of a subgroup: an interrupted run stays visible.
    apart = [column for column in extra if column == "generation"]
    rows["_expected"] = rows.groupby(["failure_type", *arm, *apart], sort=False)["generation"].transform("nunique")
    units = rows.groupby(["failure_type", *arm, *extra, "entry_id"], sort=False, as_index=False).agg(
        expected=("_expected", "first"), rows=("status", "size"), scored=("_scored", "sum"),
        any_bad=("_bad", "max"), any_good=("_good", "max"), high_is_bad=("_high_is_bad", "first"),
        failed_one=("_bad", "mean"), mean_value=("_value", "mean"),
        answered=("_answered", "sum"), truncated=("_truncated", "sum"), **{name: (name, "sum") for name in lost},
    )  # fmt: skip
    # FR@K takes the maximum score: where high is good, an entry fails only if no generation reaches the threshold.
    seen = np.where(units["high_is_bad"], units["any_bad"].fillna(0), 1 - units["any_good"].fillna(0))
    units["complete"] = units["scored"] == units["expected"]
    units["failed"] = np.where(units["complete"], seen, np.nan)
    units["best"] = np.where(~units["complete"] & ~units["high_is_bad"], 0.0, seen)
    units["worst"] = np.where(~units["complete"] & units["high_is_bad"], 1.0, seen)
    for column in ("failed_one", "mean_value"):
        units[column] = units[column].where(units["complete"])
    return units.drop(columns=["any_bad", "any_good"]), arm


def _lost(rows: pd.DataFrame, unscored: pd.Series) -> dict[str, np.ndarray]:
    """Per reason, a column of 1 where a row has no value for it, else 0."""
    some = rows[unscored]
    why = why_missing(some).mask(some["status"].eq("ok").fillna(False), "ok, but no score or threshold").to_numpy()
    columns, at = {}, np.flatnonzero(unscored)
    for reason in sorted(set(why)):
        columns[f"{_LOST}{reason}"] = flags = np.zeros(len(rows), dtype=int)
        flags[at[why == reason]] = 1
    return columns


def counted(units: pd.DataFrame) -> dict:
    """What became of the rows behind some units.

    Returns
    -------
    dict
        ``n_asked`` rows, generations without a row included; ``n_scored``; ``reasons``, the rest by status and reason
        in words; ``truncated_share`` of the answers, NaN without any.
    """
    lost = {name.removeprefix(_LOST): int(units[name].sum()) for name in units if str(name).startswith(_LOST)}
    lost["no row"] = int((units["expected"] - units["rows"]).sum())
    n_asked, n_scored, answered = (int(units[name].sum()) for name in ("expected", "scored", "answered"))
    assert n_scored + sum(lost.values()) == n_asked  # every row is in exactly one place
    share = float(units["truncated"].sum()) / answered if answered else np.nan
    return {"n_asked": n_asked, "n_scored": n_scored, "reasons": in_words(lost), "truncated_share": share}


def _of_type(rows: pd.DataFrame, field: str) -> pd.Series:
    known = {name: getattr(kind, field) for name, kind in FAILURE_TYPES.items()}
    return rows["failure_type"].astype(object).map(known)


def _number(rows: pd.DataFrame, column: str) -> pd.Series:
    """A column as floats, NaN where it is missing or absent."""
    return pd.to_numeric(rows[column]).astype(float) if column in rows else pd.Series(np.nan, rows.index, dtype=float)


def _thresholds(rows: pd.DataFrame, outcome: str, threshold: int | None) -> pd.Series:
    if threshold is None or outcome == "echo":
        stamped = _number(rows, "echo_threshold" if outcome == "echo" else "threshold")
        if stamped.isna().any() and stamped.notna().any():
            # A row without a verdict may carry no threshold; it still belongs to its arm.
            arm = [rows[column].astype(object).fillna(NONE) for column in _KEYED if column in rows]
            stamped = stamped.fillna(stamped.groupby(arm, sort=False).transform("max"))
        return stamped if outcome == "echo" else stamped.fillna(_of_type(rows, "threshold").astype(float))
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.number)):
        raise InputError(f"threshold must be a number, got {threshold!r}.")
    low = _number(rows, "scale_low").fillna(_of_type(rows, "low").astype(float)).max()
    high = _number(rows, "scale_high").fillna(_of_type(rows, "high").astype(float)).min()
    if len(rows) and not low < threshold <= high:
        raise InputError(
            f"threshold must lie above the lowest and not above the highest score of every scale in the results "
            f"({low:g} to {high:g}), got {threshold!r}; select one failure type first if their scales differ."
        )
    return pd.Series(float(threshold), rows.index)


def _values(rows: pd.DataFrame, outcome: str) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Per generation: the value, whether it is bad (1.0 or 0.0; both NaN where unscored), and the direction."""
    scored = rows["status"].eq("ok").fillna(False).astype(bool)
    if outcome == "echo":
        echoed = rows["echoed"].astype(object).map(lambda v: float(v) if pd.notna(v) else np.nan).astype(float)
        scored &= echoed.notna()
        return _number(rows, "echo_overlap").where(scored), echoed.where(scored), pd.Series(True, rows.index)
    if "score" not in rows:
        raise InputError("results lack the column 'score'; expected the table made by run or read_results.")
    score = _number(rows, "score").where(scored)
    low = _number(rows, "scale_low").fillna(_of_type(rows, "low").astype(float)).fillna(-np.inf)
    high = _number(rows, "scale_high").fillna(_of_type(rows, "high").astype(float)).fillna(np.inf)
    off = score.notna() & ~(score.between(low, high) & (score % 1 == 0))
    if off.any():
        row = rows[off].iloc[0]
        raise InputError(
            f"Entry {row['entry_id']!r} has the {row['failure_type']} score {float(row['score']):g}; expected an "
            f"integer from {low[off].iloc[0]:g} to {high[off].iloc[0]:g}. Correct or remove {int(off.sum())} such rows."
        )
    stamped = rows["high_is_bad"].astype(object) if "high_is_bad" in rows else pd.Series(None, rows.index, dtype=object)
    direction = stamped.where(stamped.notna(), _of_type(rows, "high_is_bad"))
    # Without a stamp or a known type a high score counts as bad, as on the benchmark's main scale.
    direction = direction.where(direction.notna(), True).astype(bool)
    limit = rows["threshold"]
    bad = pd.Series(np.where(direction, score >= limit, score < limit).astype(float), rows.index)
    known = score.notna() & limit.notna()
    return score.where(known), bad.where(known), direction
