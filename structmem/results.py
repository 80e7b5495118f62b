"""The long results table: how it is read, checked, merged, and written with its manifest."""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from .columns import (
    ARM,
    BOOKKEEPING,
    COLUMNS,
    KEY,
    MAY_BE_DROPPED,
    NAMES,
    SCHEMA_VERSION,
    STATUSES,
    check_table,
    conform,
    empty_results,
    with_later_columns,
)  # fmt: skip
from .errors import InputError
from .foreign import kind_of_file, way_out
from .manifest import manifest, mask
from .paths import in_project, recorded

__all__ = [
    "ARM", "COLUMNS", "KEY", "conform", "empty_results", "merge_results", "read_results", "sort_results", "validate",
    "write_results",
]  # fmt: skip


def validate(df: pd.DataFrame, where: str = "results") -> pd.DataFrame:
    """Check a results table and give it its dtypes.

    Columns that a later version of the table brought are missing values in rows of an earlier one, which keep their
    ``schema_version``; nothing is made up for them.

    Returns
    -------
    DataFrame
        One row per generation; identical twins once.

    Raises
    ------
    InputError
        For missing columns, a newer schema, a key without entry, model or another part, a status that does not exist, a
        score without status ``ok`` or outside its scale, ``ok`` without a score or overlap, and two different rows with
        one key (examples are named).
    """
    check_table(df, where)
    df = with_later_columns(df)
    missing = [name for name in NAMES if name not in df.columns and name not in MAY_BE_DROPPED]
    if missing:
        raise InputError(f"{where}: columns {missing} are missing; expected a table written by structmem.")
    try:
        df = conform(df)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: a column does not hold what it should ({error}).") from error
    if len(df) == 0:
        return df
    newest = int(df["schema_version"].max())
    if newest > SCHEMA_VERSION:
        raise InputError(f"{where}: schema version {newest}; this structmem reads up to {SCHEMA_VERSION}: update it.")
    if (oldest := int(df["schema_version"].min())) < 1:
        raise InputError(f"{where}: schema version {oldest}; the first is 1. Was the table edited?")
    nameless = [name for name in KEY if df[name].isna().any()]
    if nameless:
        rows = [place + 1 for place in df.index[df[nameless].isna().any(axis=1)][:3]]
        raise InputError(f"{where}: {nameless} must not be empty, as in rows {rows}.")
    unknown = sorted(set(df["status"].dropna()) - set(STATUSES)) + (["missing"] if df["status"].isna().any() else [])
    if unknown:
        raise InputError(f"{where}: status must be one of {list(STATUSES)}, got {unknown}.")
    scored = df["score"].notna()
    bad = scored & ((df["status"] != "ok") | (df["score"] % 1 != 0))
    bad |= scored & ((df["score"] < df["scale_low"]).fillna(False) | (df["score"] > df["scale_high"]).fillna(False))
    if bad.any():
        rows = df.loc[bad, ["entry_id", "status", "score"]].head(3).to_dict("records")
        raise InputError(f"{where}: {int(bad.sum())} scores outside their scale or without status ok, such as {rows}.")
    low, high = df["scale_low"].astype("float64"), df["scale_high"].astype("float64")
    if (bad := (df["threshold"] <= low) | (df["threshold"] > high)).any():
        raise InputError(
            f"{where}: threshold {df.loc[bad, 'threshold'].iloc[0]:g} is off the scale in {int(bad.sum())} rows."
        )
    if (df.groupby(["failure_type", "judge", "judge_model"])["high_is_bad"].nunique() > 1).any():
        raise InputError(f"{where}: 'high_is_bad' differs within one failure type and judge; a score means one thing.")
    bad = (df["status"] == "ok") & df["score"].isna() & df["echoed"].isna()
    bad |= df["echo_overlap"].notna() & ~df["echo_overlap"].between(0, 1)
    if bad.any():
        rows = df.loc[bad, ["entry_id", "score", "echo_overlap"]].head(3).to_dict("records")
        raise InputError(f"{where}: {int(bad.sum())} rows are ok without a score, or overlap beyond [0, 1]: {rows}.")
    try:
        pd.to_datetime(df["called_at"], utc=True, format="ISO8601")
    except ValueError:
        raise InputError(f"{where}: 'called_at' is no ISO time (2026-03-31T12:00:00+00:00); was it edited?") from None
    return _single(df, where)


def _single(df: pd.DataFrame, where: str) -> pd.DataFrame:
    """Identical twins once, the one of the newest version; different rows under one key are refused."""
    twins = df.duplicated(list(KEY), keep=False)
    if not twins.any():
        return df
    same = [name for name in df.columns if name not in BOOKKEEPING]
    attrs = df.attrs
    df = df.reset_index(drop=True)
    newest = df.sort_values("schema_version", ascending=False, kind="stable")
    df = df[~newest.duplicated(same).reindex(df.index)]
    conflict = df.duplicated(list(KEY), keep=False)
    if conflict.any():
        shown = ["entry_id", "model", "structure", "generation", "replicate", "status", "score"]
        rows = df.loc[conflict].sort_values(list(KEY), kind="stable")
        pair = rows.head(2).astype("str")
        differ = [name for name in same if name not in KEY and pair[name].nunique(dropna=False) > 1]
        raise InputError(
            f"{where}: {int(conflict.sum())} rows share their key with a different row, such as "
            f"{rows[shown].head(2).to_dict('records')} (they differ in {differ}); keep one of the two runs."
        )
    df = df.reset_index(drop=True)
    df.attrs = attrs
    return df


def read_results(source: str | Path | pd.DataFrame | Iterable[str | Path]) -> pd.DataFrame:
    """Read results and check them.

    Parameters
    ----------
    source : str, Path, DataFrame or iterable of paths
        A ``.parquet`` or ``.csv`` file, a folder, a glob pattern, several files, or a table. Relative paths count from
        the working directory, else from the project folder. ``"recorded"``: the recorded results of the project.

    Returns
    -------
    DataFrame
        One row per generation, all columns of `COLUMNS` in their dtypes; identical twins once.

    Raises
    ------
    InputError
        When nothing matches, or for the reasons of `validate`.

    Warns
    -----
    UserWarning
        When a file holds another number of rows than the manifest beside it says: the rates are over what is left.
    """
    if isinstance(source, pd.DataFrame):
        return validate(source)
    names = [source] if isinstance(source, (str, Path)) or not isinstance(source, Iterable) else list(source)
    if not names or not all(isinstance(name, (str, Path)) for name in names):
        raise InputError(f"results: expected a file, a folder, a pattern or several of them, got {source!r:.80}.")
    files: list[Path] = []
    for name in names:
        if name == "recorded":
            found = [recorded() / "results.csv"]
        else:
            found = _found(Path(name).expanduser()) or _found(in_project(name))
        if not found:
            raise InputError(
                f"results: nothing at {str(name)!r}; expected a .parquet or .csv file, a folder or a pattern."
            )
        files += found
    tables = [_read_file(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        rows = _manifest_says(file).get("rows")
        if isinstance(rows, int) and rows != len(table):
            warnings.warn(
                f"{file.name} holds {len(table)} rows, its manifest says {rows}: it was changed since it was written, "
                "and what is gone is in no rate. Restore it, or run again (finished calls are kept) and save it anew.",
                stacklevel=2,
            )
    if len(tables) == 1:
        return validate(tables[0], files[0].name)
    tables = [validate(table, file.name) for table, file in zip(tables, files, strict=True)]
    return validate(_concat(tables), f"{len(files)} files")


def _found(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted([*path.glob("*.parquet"), *path.glob("*.csv")])
    return [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))


def _read_file(path: Path) -> pd.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix == ".csv":
            table = pd.read_csv(path, dtype="str", keep_default_na=False, na_values=[""])
            table.attrs = _noted(path)
            return table
    except Exception as error:
        raise InputError(f"{path.name}: cannot be read as {path.suffix[1:]} ({type(error).__name__}).") from error
    seems = f" seems to be {kind}; nothing was read" if (kind := kind_of_file(path)) else ""
    expected = "expected a results file, which ends in .parquet or .csv."
    raise InputError(f"{path.name}{seems}: {expected}{way_out(kind)}")


def _manifest_of(path: Path) -> Path:
    return path.with_name(path.name + ".manifest.json")


def _noted(path: Path) -> dict:
    """What a CSV cannot hold of a run: its parameters, from the manifest beside it."""
    found = _manifest_says(path).get("parameters")
    return {"parameters": found} if found else {}


def _manifest_says(path: Path) -> dict:
    try:
        found = json.loads(_manifest_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _concat(tables: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [table for table in tables if len(table)] or tables[:1]
    out = pd.concat([table.assign() for table in filled], ignore_index=True)
    out.attrs = {}
    return out


def merge_results(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Join two results tables, for example to add a model to an old run.

    Returns
    -------
    DataFrame
        The union by row key; identical twins once. A row without response yields to one without verdict, both yield to
        one that is ``ok``, and of two that failed alike the new one stays. ``attrs["parameters"]`` lists those of both.

    Raises
    ------
    InputError
        When two finished rows with one key differ.

    Warns
    -----
    UserWarning
        When the flat arms of the two tables were called more than 24 hours apart: drift of a model between the two
        dates is then in every difference.
    """
    old, new = validate(old, "old results"), validate(new, "new results")
    apart = _hours_apart(old, new)
    if apart is not None and apart > 24:
        warnings.warn(
            f"the flat arms of the two results were called {apart:.0f} hours apart; compare a structure only with the "
            "flat arm of its own run.",
            stacklevel=2,
        )
    both = _concat([old, new])
    if len(both):
        rank = both["status"].map({"no_response": 0, "no_verdict": 1, "ok": 2})
        both = both[rank == rank.groupby([both[name] for name in KEY], sort=False).transform("max")]
        both = both[(both["status"] == "ok") | ~both.duplicated(list(KEY), keep="last")]
    merged = sort_results(validate(both, "merged results"))
    merged.attrs = _both_attrs(old.attrs, new.attrs)
    return merged


def _both_attrs(old: dict, new: dict) -> dict:
    """Parameters of both tables, each once; whether the new run was stopped."""
    found: list = []
    for given in (old.get("parameters"), new.get("parameters")):
        found += [one for one in (given if isinstance(given, list) else [given]) if one and one not in found]
    attrs = {"parameters": found[0] if len(found) == 1 else found} if found else {}
    return attrs | ({"stopped": new["stopped"]} if new.get("stopped") else {})


def _hours_apart(old: pd.DataFrame, new: pd.DataFrame) -> float | None:
    called = [table.loc[table["structure"] == "flat", "called_at"].dropna() for table in (old, new)]
    times = [pd.to_datetime(values, utc=True, format="ISO8601") for values in called]
    if not (len(times[0]) and len(times[1])):
        return None
    gap = max(times[1].min() - times[0].max(), times[0].min() - times[1].max())
    return max(gap.total_seconds() / 3600, 0.0)


def sort_results(df: pd.DataFrame) -> pd.DataFrame:
    """Rows in an order that does not depend on how they came: by model, arm, entry and generation."""
    order = [*(name for name in KEY if name not in ("entry_id", "failure_type", "generation", "replicate"))]
    order = ["failure_type", *order, "replicate", "entry_id", "generation"]
    out = df.sort_values(order, kind="stable", ignore_index=True)
    out.attrs = df.attrs
    return out


def write_results(df: pd.DataFrame, path: str | Path, *, exclusions: Iterable[str] = (), **more: object) -> Path:
    """Write results as parquet (or ``.csv``) with ``<file>.manifest.json`` beside it.

    The file is replaced in one step and readable by its owner only. In CSV an empty field is a missing value.

    Parameters
    ----------
    df : DataFrame
        Checked by `validate` first.
    path : str or Path
        Ends in ``.parquet`` or ``.csv``; folders are made.
    exclusions : iterable of str
        What was left out, and why.
    **more
        Further facts for the manifest.
    """
    path = Path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"{path.name}: expected a file name that ends in .parquet or .csv.")
    df = validate(df)
    facts = manifest(df)
    df.attrs = mask(df.attrs)  # parquet keeps them
    if path.suffix == ".parquet":
        digest = _replace(path, lambda file: df.to_parquet(file, index=False))
    else:
        # A lone carriage return ends a line unless it is quoted, which the writer does by itself for \n only.
        lone = any(df[name].str.contains("\r", regex=False).any() for name in df.select_dtypes("str"))
        how = {"quoting": csv.QUOTE_ALL if lone else csv.QUOTE_MINIMAL, "lineterminator": "\n"}
        digest = _replace(path, lambda file: df.to_csv(file, index=False, **how))
    facts |= {"file": path.name, "file_sha256": digest, "exclusions": list(exclusions)} | mask(more)
    text = json.dumps(facts, indent=1, ensure_ascii=False, sort_keys=True, default=str) + "\n"
    _replace(_manifest_of(path), lambda file: Path(file).write_text(text, encoding="utf-8"))
    return path


def save_results(df: pd.DataFrame, path: str | Path) -> Path | None:
    """Write a notebook's results to a file of the project, keeping what other models left there.

    Rows of other keys that the file already holds stay (see `merge_results`), so a model is added without rerunning the
    others. A finished row takes the place of an older one with its key, with a warning when the two differ: the calls
    behind both are in the store. Where the old file cannot be read or joined, it stays as it is and the results go
    beside it (``results.new.parquet``). An empty `path` writes nothing and returns None.

    Returns
    -------
    Path or None
        The file that was written.

    Warns
    -----
    UserWarning
        When rows are replaced by different ones, when the results go beside the old file, and as `merge_results`.
    """
    if not path:
        return None
    path = in_project(path)
    df = validate(df)
    if path.exists():
        try:
            df = _joined(df, read_results(path), path.name)
        except InputError as error:
            beside = save_results(df, path.with_name(f"{path.stem}.new{path.suffix}"))
            warnings.warn(
                f"{path.name} was left as it is, and this run's results are in {beside.name} beside it: {error}",
                stacklevel=2,
            )
            return beside
    return write_results(df, path)


def _joined(df: pd.DataFrame, old: pd.DataFrame, name: str) -> pd.DataFrame:
    """New results with the rows of older ones that they do not replace."""
    what = ["answer_key", "context_sha256"]
    finished = df[df["status"] == "ok"].set_index(list(KEY))[what]
    again = old.set_index(list(KEY)).index.isin(finished.index)
    before = old[again].set_index(list(KEY))[what]
    if n := int((before.fillna("") != finished.reindex(before.index).fillna("")).any(axis=1).sum()):
        warnings.warn(f"{n} rows of {name} were replaced by this run's, which differ.", stacklevel=3)
    return merge_results(old[~again], df)


def _replace(path: Path, write) -> str:
    """Write to a neighbour and put it in place in one step; the old file stays whole whatever happens."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = getattr(error, "strerror", error)
        raise InputError(f"{path.name:.80}: cannot be written in its folder ({why}).") from error
    os.close(handle)
    try:
        write(name)
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        os.chmod(name, 0o600)
        os.replace(name, path)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be written ({error.strerror}); the old file is as it was.") from error
    finally:
        Path(name).unlink(missing_ok=True)
    return digest
