"""Results with planted failure rates: scores drawn for many models, arms and entries at once, without any model."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pandas as pd
from scipy import optimize, stats

from .columns import NAMES, SCHEMA_VERSION, check_table, conform
from .data import FAILURE_TYPES
from .errors import InputError

SIMULATED = "simulated"
# Shares of the latent variance that an entry has in all models, and in one model; the rest is the answer's own. With
# them, planted published rates of flat and dynamic disagree on about as many entries as the published 27.6 %.
ENTRY_SHARE, MODEL_SHARE = 0.3, 0.1
_TEXTS = ("model", "structure", "failure_type", "defence")
_DOMAINS = ("education", "employment", "finance", "health", "housing", "legal", "personal", "romantic", "social")
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def simulated_scores(
    rates: pd.DataFrame, n_entries: int | None = None, *, missing: float = 0.0, seed: int = 0
) -> pd.DataFrame:
    """Draw results whose true failure rates are known, to see whether tables and tests recover them.

    One latent normal number per answer: a part of the entry, the same in every model and arm, a part of the entry in
    one model, and a part of the answer. An answer fails above the level at which the maximum over K generations fails
    with exactly the planted rate (solved by Gauss–Hermite quadrature). So the entries of an arm are alike hard for
    every model, as in the benchmark, and pairs are correlated. Every ``flat`` arm is drawn twice (the A/A arm).

    Parameters
    ----------
    rates : DataFrame
        One row per arm: ``model``, ``structure``, ``failure_rate`` in [0, 1]; optional ``failure_type`` (default
        cross_domain), ``defence`` (standard) and ``n_entries``. ``load_published()`` is one.
    n_entries : int, optional
        Entries per failure type; default: the table's ``n_entries``, else 200.
    missing : float
        Share of rows, in [0, 1), that get no verdict at random.
    seed : int
        Another seed, other draws; an arm's draws do not depend on which other arms are there.

    Returns
    -------
    DataFrame
        Results rows, one per generation; ``model`` begins with ``simulated/`` and ``judge`` is ``simulated`` in every
        row. Number of memories and domain labels are drawn too and have no influence.

    Raises
    ------
    InputError
        Missing columns, rates outside [0, 1], unknown failure types, doubled arms.
    """
    rates = _checked(rates, missing)
    for name, value, least in (("n_entries", n_entries, 1), ("seed", seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least):
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    most = rates.groupby("failure_type")["n_entries"].max()
    parts = [
        _arm(row, replicate, int(n_entries or most[row["failure_type"]]), missing, seed)
        for row in rates.to_dict("records")
        for replicate in ((0, 1) if row["structure"] == "flat" else (0,))
    ]
    table = pd.concat(parts, ignore_index=True)
    lost = table.pop("lost").to_numpy()
    table["status"] = np.where(lost, "no_verdict", "ok")
    table["status_reason"] = pd.Series(np.where(lost, "timeout", None), dtype=object)
    table["score"] = table["score"].mask(lost)
    return conform(table.reindex(columns=NAMES))


def _checked(rates: pd.DataFrame, missing: float) -> pd.DataFrame:
    check_table(rates, "rates")
    lacking = [name for name in ("model", "structure", "failure_rate") if name not in rates]
    if lacking:
        raise InputError(f"rates lack the columns {lacking}; expected one row per arm, as made by load_published.")
    defaults = {"failure_type": "cross_domain", "defence": "standard", "n_entries": 200}
    rates = rates.assign(**{name: value for name, value in defaults.items() if name not in rates})
    try:
        rates = rates.astype({"failure_rate": float, "n_entries": float} | dict.fromkeys(_TEXTS, object))
    except (ValueError, TypeError) as error:
        raise InputError(f"rates: a column does not hold numbers ({error}).") from None
    if rates[list(_TEXTS)].isna().any(axis=None):
        raise InputError(f"rates: {list(_TEXTS)} must not be empty.")
    off = rates[~rates["failure_rate"].between(0, 1)]
    if len(off) or not len(rates):
        raise InputError(f"failure_rate must lie in [0, 1] in every row, got {off['failure_rate'].tolist()[:3]}.")
    if unknown := set(rates["failure_type"]) - set(FAILURE_TYPES):
        raise InputError(f"failure_type must be one of {list(FAILURE_TYPES)}, got {sorted(map(str, unknown))}.")
    if not (rates["n_entries"] >= 1).all() or (rates["n_entries"] % 1).any():
        raise InputError("n_entries must be a whole number of at least 1 in every row of rates.")
    if rates.duplicated(["model", "structure", "defence", "failure_type"]).any():
        raise InputError("rates hold an arm twice; expected one row per model, structure, defence and failure type.")
    if isinstance(missing, bool) or not isinstance(missing, (int, float)) or not 0 <= missing < 1:
        raise InputError(f"missing must lie in [0, 1), got {missing!r}.")
    return rates


def _level(rate: float, generations: int, high_is_bad: bool) -> float:
    """The latent level above which answers fail, so that entries fail at the planted rate."""
    if rate in (0, 1):
        return np.inf if rate == 0 else -np.inf
    shared = ENTRY_SHARE + MODEL_SHARE

    def lacking(level: float) -> float:
        one = stats.norm.sf((level - np.sqrt(shared) * _NODES) / np.sqrt(1 - shared))
        failing = 1 - (1 - one) ** generations if high_is_bad else one**generations
        return float(failing @ _WEIGHTS) - rate

    return optimize.brentq(lacking, -12, 12)


def _normal(seed: int, name: str, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, crc32(name.encode())]).standard_normal(shape)


def _arm(row: dict, replicate: int, n: int, missing: float, seed: int) -> pd.DataFrame:
    kind = FAILURE_TYPES[row["failure_type"]]
    k = kind.generations
    of_model = f"{kind.name}|{row['model']}"
    name = f"{of_model}|{row['structure']}|{row['defence']}|{replicate}"
    latent = np.sqrt(ENTRY_SHARE) * _normal(seed, kind.name, n, 1)
    latent = latent + np.sqrt(MODEL_SHARE) * _normal(seed, of_model, n, 1)
    latent = latent + np.sqrt(1 - ENTRY_SHARE - MODEL_SHARE) * _normal(seed, name, n, k)
    over = latent - _level(row["failure_rate"], k, kind.high_is_bad)
    score = _scores(over, kind)
    lost = np.random.default_rng([seed, crc32(f"missing|{name}".encode())]).random(n * k) < missing
    labels = np.random.default_rng([seed, crc32(f"labels|{kind.name}".encode())])
    first, step = labels.integers(0, 9, n), labels.integers(1, 9, n)
    labelled = kind.name == "cross_domain"
    domains = [np.repeat(np.array(_DOMAINS, dtype=object)[at % 9], k) for at in (first, first + step)]
    sorts = row["structure"] not in ("flat", "rag")
    return pd.DataFrame(
        {
            "entry_id": np.repeat([f"simulated-{kind.name}-{number:04d}" for number in range(n)], k),
            "failure_type": kind.name,
            "memory_domain": domains[0] if labelled else None,
            "query_domain": domains[1] if labelled else None,
            "model": f"{SIMULATED}/{row['model']}", "model_options": "", "structure": row["structure"],
            "structurer": SIMULATED if sorts else "", "structurer_options": "", "taxonomy": "life11" if sorts else "",
            "partition_draw": 0, "renderer": "markdown", "placement": "system", "defence": row["defence"],
            "system_prompt": "short", "generation": np.tile(np.arange(k), n), "replicate": replicate,
            "judge": SIMULATED, "judge_model": "", "threshold": float(kind.threshold),
            "high_is_bad": kind.high_is_bad, "scale_low": kind.low, "scale_high": kind.high,
            "n_memories": np.repeat(labels.integers(4, 17, n), k), "truncated": False, "escaped": False,
            "lost": lost, "score": score.ravel(), "schema_version": SCHEMA_VERSION,
        }
    )  # fmt: skip


def _scores(over: np.ndarray, kind) -> np.ndarray:
    """Whole scores: at or beyond the threshold where the latent number lies above its level."""
    if not kind.high_is_bad:
        return np.select([over <= 0, over < 0.7], [kind.high, kind.high - 1], kind.low).astype(float)
    return np.select([over <= -0.7, over <= 0, over < 0.6, over < 1.2], [1, 2, 3, 4], 5).astype(float)
