"""A judge with planted errors and a person without any, both simulated, for checking what an audit recovers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from .auditfiles import read_key, read_sheet, sheet_text
from .columns import KEY
from .errors import InputError
from .outcomes import check_results


def misjudged(
    results: pd.DataFrame,
    sensitivity: float | Mapping[str, float],
    specificity: float | Mapping[str, float],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """The same answers by a simulated judge that errs as planted, where the given scores are the truth.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with scores: a judge's, or planted ones.
    sensitivity, specificity : float in [0, 1], or a mapping from structure to one
        Probability that the judge fails an answer that fails, and passes one that passes; each answer by itself.
    seed : int
        Another seed is another, equally good judge: two of them are a test–retest.

    Returns
    -------
    DataFrame
        The same rows; ``judge`` is ``simulated errors SEED``. A wrong verdict gets a score drawn from those of the
        answers on the other side of the same failure type, so that a score does not tell that it is wrong; a right one
        keeps its score.

    Raises
    ------
    InputError
        No scores, scores that are no numbers, echo-judged rows (they hold no verdict), shares outside [0, 1].
    """
    _check_scores(results)
    bad_high = results["high_is_bad"].astype(bool)
    truth = (results["score"] >= results["threshold"]).where(bad_high, results["score"] < results["threshold"])
    chance = [
        _each(results, value, name) for value, name in ((sensitivity, "sensitivity"), (specificity, "specificity"))
    ]
    rng = np.random.default_rng(seed)
    scored = results["score"].notna()
    wrong = scored & (rng.random(len(results)) >= np.where(truth, *chance))
    scores = results["score"].to_numpy(dtype=float, copy=True)
    scale = results.groupby(["failure_type", "threshold"], dropna=False).ngroup()
    for own, side in product(sorted(scale.unique()), (True, False)):
        mine = (wrong & (truth == side) & (scale == own)).to_numpy()
        others = (scored & (truth != side) & (scale == own)).to_numpy()
        # With nothing on the other side: the score just across the threshold.
        across = (results["threshold"].astype(float) - (truth == bad_high).astype(float)).to_numpy()[mine]
        pool = results["score"].to_numpy(dtype=float)[others]
        scores[mine] = rng.choice(pool, mine.sum()) if len(pool) else across
    return results.assign(score=scores, judge=f"simulated errors {seed}")


def _check_scores(results: pd.DataFrame) -> None:
    check_results(results, [])
    if missing := [name for name in ("score", "threshold", "high_is_bad") if name not in results]:
        raise InputError(
            f"results lack the columns {missing}; expected scored results, such as simulated_scores makes."
        )
    if "judge" in results and (echo := int(results["judge"].eq("echo").sum())):
        raise InputError(
            f"{echo} of {len(results)} rows were judged by 'echo', which gives no verdict to get wrong; expected rows "
            "with scores."
        )
    given = results["score"].dropna()
    if not is_numeric_dtype(given) and len(other := given[[not isinstance(value, (int, float)) for value in given]]):
        raise InputError(f"score must hold numbers, got {other.iloc[0]!r:.80} in {len(other)} of {len(results)} rows.")


def _each(results: pd.DataFrame, value: float | Mapping[str, float], name: str) -> np.ndarray:
    found = results["structure"].map(value) if isinstance(value, Mapping) else pd.Series(value, results.index)
    if not found.astype(float).between(0, 1).all():
        raise InputError(f"{name} must lie in [0, 1] for every structure of the results, got {value!r}.")
    return found.to_numpy(dtype=float)


def fill_in(sheet: str | Path, key: str | Path, truth: pd.DataFrame) -> int:
    """Score an exported sheet as a simulated person who is always right; returns the number of items scored.

    Parameters
    ----------
    sheet, key : path
        As ``audit_export`` wrote them; the sheet is replaced.
    truth : DataFrame
        The same answers with their true scores.
    """
    own = [name for name in KEY if name not in ("judge", "judge_model")]
    scores = truth.set_index(own)["score"]
    items = {one["item"]: scores[tuple(one["row"][name] for name in own)] for one in read_key(Path(key))["items"]}
    table = read_sheet(Path(sheet))
    table["score"] = [f"{items[item]:.0f}" for item in table["item"]]
    Path(sheet).write_bytes(sheet_text(table.to_numpy().tolist()).encode("utf-8-sig"))
    return len(table)
