"""Agreement of two passes of labelling: primary domains, acceptable sets and spans_domains, over all and per domain."""

from __future__ import annotations

from functools import partial
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd

from .assigned import KEY
from .errors import InputError
from .intervals import clustered_mean
from .labels import NO_DOMAIN, load_labels
from .reliability import alphas_of_pairs, distance_of, kappas, within_one
from .sorting_accuracy import ALIKE, SAMPLED, share_of_memories
from .taxonomy import Taxonomy, load_taxonomy


def labelling_agreement(
    first: str | Path = "pass_1", second: str | Path = "pass_2", taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """How far two passes of labelling agree.

    Agreement is no accuracy, and two passes of one model family are not independent: they share its mistakes.

    Parameters
    ----------
    first, second : str or Path
        As for `load_labels`. Memories that only one of them labels are left out, and counted.
    taxonomy : str or Taxonomy

    Returns
    -------
    DataFrame
        One row per ``weighting`` ('every memory alike'; with differing weights also 'sampling weights'), ``of`` and
        ``measure``: of the primary domain raw agreement, Cohen's kappa and Krippendorff's alpha (nominal); of the
        acceptable sets whether each pass's primary domain lies in the other's set, whether the sets are the same, and
        the mean Jaccard index (shared / all domains of both); of ``spans_domains`` raw agreement and kappa.
        ``coefficient`` (at most 1; kappa and alpha: 0 is chance) with ``low``, ``high`` (95 %) and ``interval``,
        entries as clusters; ``n_memories``, ``n_entries`` that both labelled, ``n_left_out`` memories that one did not
        (then without sampling weights, which stand for the whole sample); ``reason`` where something is missing.

    Raises
    ------
    InputError
        Files that cannot be read, or that have no memory in common.

    Notes
    -----
    Cohen (1960); Krippendorff (2011). Intervals: Wilson's at the effective number of memories (weighted: linearized,
    as in `structurer_accuracy`) for shares, t over entries for the Jaccard index, jackknife over entries with t on the
    atanh scale for kappa and alpha.
    """
    pairs, names, lone = _pairs(first, second, taxonomy)
    weightings = [ALIKE, *([SAMPLED] if pairs["weight"].nunique() > 1 and not lone else [])]
    rows = []
    for weighting in weightings:
        found = _measures(pairs, names, weighting == SAMPLED)
        rows += [{"weighting": weighting, "of": of, "measure": measure} | one for of, measure, one in found]
    table = pd.DataFrame(rows)
    return table.assign(n_memories=len(pairs), n_entries=pairs["entry_id"].nunique(), n_left_out=lone)


def labelling_by_domain(
    first: str | Path = "pass_1", second: str | Path = "pass_2", taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """Agreement of two passes on each domain against the rest, by primary domain.

    Parameters
    ----------
    first, second, taxonomy : as for `labelling_agreement`

    Returns
    -------
    DataFrame
        One row per ``domain`` of the taxonomy, then 'none' if a pass used it: ``n_first``, ``n_second`` memories,
        ``n_both``; ``share`` = 2 n_both / (n_first + n_second), the specific agreement (Dice 1945), with ``low``,
        ``high`` (95 %, jackknife over entries); ``alpha``, Krippendorff's (nominal), with ``alpha_low``,
        ``alpha_high``; ``n_entries`` with the domain in a pass; ``interval`` of alpha, ``reason``.
    """
    pairs, names, _ = _pairs(first, second, taxonomy)
    rows = []
    for domain in names:
        one, two = (pairs[column].eq(domain).to_numpy(dtype=int) for column in ("domain_1", "domain_2"))
        some = (one + two) > 0
        row = {
            "domain": domain,
            "n_first": int(one.sum()),
            "n_second": int(two.sum()),
            "n_both": int((one & two).sum()),
        }
        row["n_entries"] = pairs.loc[some, "entry_id"].nunique()
        blank = {"share": nan, "low": nan, "high": nan, "alpha": nan, "alpha_low": nan, "alpha_high": nan}
        if not some.any():
            rows.append(row | blank | {"interval": "", "reason": "no memory in either pass"})
            continue
        tables = _tables(one, two, 2, pairs["entry_id"], np.ones(len(pairs)))
        alpha = _coefficient(tables, partial(alphas_of_pairs, classes=np.arange(2.0), level="nominal"))
        dice = _coefficient(tables, _dice)
        row |= {"share": dice["coefficient"], "low": dice["low"], "high": dice["high"]}
        row |= {f"alpha{end}": alpha[name] for end, name in (("", "coefficient"), ("_low", "low"), ("_high", "high"))}
        rows.append(row | {"interval": alpha["interval"], "reason": alpha["reason"]})
    return pd.DataFrame(rows)


def _pairs(first: str | Path, second: str | Path, taxonomy: str | Taxonomy) -> tuple[pd.DataFrame, list[str], int]:
    """Both passes side by side, the domains that can occur, and how many memories only one of them labelled."""
    sides = [load_labels(source, taxonomy) for source in (first, second)]
    one, two = (side[[*KEY, "domain", "acceptable", "spans_domains"]] for side in sides)
    pairs = one.merge(two, on=KEY, how="outer", suffixes=("_1", "_2"), indicator=True, validate="1:1")
    lone = int((pairs["_merge"] != "both").sum())
    if lone == len(pairs):
        raise InputError(
            f"the two passes have no memory in common ({len(one)} and {len(two)}); expected the same entry ids and "
            "positions in both."
        )
    pairs = pairs[pairs["_merge"] == "both"].reset_index(drop=True)
    pairs = pairs.merge(sides[0][[*KEY, "weight", "stratum"]], on=KEY, validate="1:1")
    used = {*pairs["domain_1"], *pairs["domain_2"]}
    return pairs, [*load_taxonomy(taxonomy).names, *([NO_DOMAIN] if NO_DOMAIN in used else [])], lone


def _measures(pairs: pd.DataFrame, names: list[str], weighted: bool) -> list[tuple[str, str, dict]]:
    weights = pairs["weight"].to_numpy(dtype=float) if weighted else np.ones(len(pairs))
    weights = weights / weights.mean()  # alpha corrects for the number of ratings: weights may not change it
    entries = pairs["entry_id"].to_numpy()
    strata = pairs["stratum"].to_numpy() if weighted else None
    sets = [[set(some) for some in pairs[f"acceptable_{side}"]] for side in (1, 2)]
    inside = [
        one in theirs and two in mine
        for one, two, mine, theirs in zip(pairs["domain_1"], pairs["domain_2"], *sets, strict=True)
    ]
    same = [mine == theirs for mine, theirs in zip(*sets, strict=True)]
    jaccard = np.array([len(mine & theirs) / len(mine | theirs) for mine, theirs in zip(*sets, strict=True)])

    def share(values) -> dict:
        value, low, high, interval = share_of_memories(np.asarray(values, dtype=float), entries, weights, strata)
        return {"coefficient": value, "low": low, "high": high, "interval": interval, "reason": ""}

    found = []
    for of, columns, classes in (
        ("primary domain", ("domain_1", "domain_2"), names),
        ("spans_domains", ("spans_domains_1", "spans_domains_2"), [False, True]),
    ):
        place = {name: at for at, name in enumerate(classes)}
        one, two = (pairs[column].map(place).to_numpy(dtype=int) for column in columns)
        tables = _tables(one, two, len(classes), pairs["entry_id"], weights)
        found.append((of, "raw agreement", share(one == two)))
        kappa = partial(kappas, distance=distance_of(np.arange(len(classes)), None))
        found.append((of, "Cohen's kappa", _coefficient(tables, kappa)))
        alpha = partial(alphas_of_pairs, classes=np.arange(float(len(classes))), level="nominal")
        found.append((of, "Krippendorff's alpha, nominal", _coefficient(tables, alpha)))
    mean = share(jaccard)
    if strata is None:
        low, high = clustered_mean(jaccard, entries)
        interval = "not available: no variation" if np.isnan(low) else "t over entries"
        mean |= {"low": low, "high": min(high, 1.0), "interval": interval}
    of_sets = (("each primary in the other's set", share(inside)), ("same set", share(same)))
    between = [("acceptable sets", name, one) for name, one in (*of_sets, ("mean Jaccard index", mean))]
    return [*found[:3], *between, *found[3:]]


def _tables(one: np.ndarray, two: np.ndarray, n: int, entries: pd.Series, weights: np.ndarray) -> np.ndarray:
    _, entry = np.unique(entries.to_numpy(dtype=str), return_inverse=True)
    tables = np.zeros((entry.max() + 1, n, n))
    np.add.at(tables, (entry, one, two), weights)
    return tables


def _coefficient(tables: np.ndarray, statistic) -> dict:
    value = float(statistic(tables.sum(axis=0)[None])[0])
    reason = "undefined: one class" if np.isnan(value) else ""
    empty = {"low": nan, "high": nan, "interval": ""}
    return {"coefficient": value, **(empty if reason else within_one(tables, statistic)), "reason": reason}


def _dice(tables: np.ndarray) -> np.ndarray:
    """Specific agreement on the second of two classes."""
    both = tables[:, 1, 0] + tables[:, 0, 1] + 2 * tables[:, 1, 1]
    return np.divide(2 * tables[:, 1, 1], both, out=np.full(len(tables), nan), where=both > 0)
