"""How far raters agree on a memory's domain: entropy, agreement and margin per memory, alpha per domain."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import nan

import numpy as np
import pandas as pd

from .assigned import KEY, NEW, NO_RATING, check_assignments, domain_order, known_labels
from .data import Entry
from .errors import InputError
from .intervals import wilson_clustered
from .reliability import krippendorff_alpha
from .taxonomy import Taxonomy, load_taxonomy

ALL_DOMAINS = "all domains"
WILSON = "Wilson, entries as clusters"
_LONGEST = 160  # characters of a text that a table shows


def memory_ambiguity(
    assigned: pd.DataFrame, labels: pd.DataFrame | None = None, taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """How far the raters of each memory agree.

    Parameters
    ----------
    assigned : DataFrame
        One row per memory and rater (see `assignments`). Two raters that sort by the same rule are not two opinions.
    labels : DataFrame, optional
        Reference labels (see `load_labels`), shown beside.
    taxonomy : str or Taxonomy
        Orders the domains; of tied ones the first is the modal domain.

    Returns
    -------
    DataFrame
        One row per memory, in the order given: ``entry_id``, ``position``; ``n_raters`` that gave a domain and, apart,
        ``n_unclassified``, those that gave none; ``entropy_bits`` of the domains given, −Σ p log₂ p, in
        [0, log₂ n_raters] (Shannon 1948; of few raters it is biased downward); ``agreement``, the share of pairs of
        raters that agree, in [0, 1] (NaN with one rater); ``margin``, the largest share minus the second, in [0, 1];
        ``modal_domain``, and ``tie`` whether another is as frequent; ``domains`` with their counts (one that a rater
        opened reads '(new domain)'); ``reason`` where numbers are missing. With labels ``label``, ``acceptable``
        (separated by ';'; both empty if not labelled) and ``spans_domains``.

    Raises
    ------
    InputError
        As `check_assignments` has it: a memory twice for one rater, among others.
    """
    assigned = check_assignments(assigned)
    order = domain_order(assigned["domain"], taxonomy)
    given = assigned[~assigned["domain"].isin(NO_RATING)]
    memories = assigned.drop_duplicates(KEY)[KEY].reset_index(drop=True)
    index = pd.MultiIndex.from_frame(memories)
    counts = given.groupby([*KEY, "domain"]).size().unstack(fill_value=0)
    counts = counts.reindex(index, columns=[name for name in order if name not in NO_RATING], fill_value=0)
    table = counts.to_numpy(dtype=float)
    n = table.sum(axis=1)
    rated = n > 0
    shares = np.divide(table, n[:, None], out=np.zeros_like(table), where=rated[:, None])
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    pairs = np.divide((table * (table - 1)).sum(axis=1), n * (n - 1), out=np.full(len(n), nan), where=n > 1)
    # One column more, so that there is a second largest even where raters know a single domain.
    ranked = np.sort(np.hstack([shares, np.zeros((len(n), 2))]), axis=1)[:, ::-1]
    unclassified = assigned["domain"].isin(NO_RATING).groupby([assigned[name] for name in KEY]).sum().reindex(index)
    reason = np.select([~rated, n == 1], ["no rater gave a domain", "one rater: no agreement"], "")
    names = list(counts.columns)
    shown = [name if name in load_taxonomy(taxonomy).names else NEW.replace("s)", ")") for name in names]
    found = memories.assign(
        n_raters=n.astype(int),
        n_unclassified=unclassified.to_numpy(dtype=int),
        # + 0.0: the sum of nothing but certain shares is −0.
        entropy_bits=np.where(rated, np.maximum(-(shares * logs).sum(axis=1), 0) + 0.0, nan),
        agreement=pairs,
        margin=np.where(rated, ranked[:, 0] - ranked[:, 1], nan),
        modal_domain=[names[int(row.argmax())] if some else "" for row, some in zip(table, rated, strict=True)],
        tie=rated & (ranked[:, 0] - ranked[:, 1] < 1e-12),
        domains=[_counted(row, shown) for row in table.astype(int)],
        reason=reason.astype(object),
    )
    return found if labels is None else _beside(found, labels)


def _counted(row: np.ndarray, names: list[str]) -> str:
    some = sorted(((-count, place) for place, count in enumerate(row) if count))
    return ", ".join(f"{names[place]} {-count}" for count, place in some)


def _beside(found: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    known = known_labels(labels, "domain", "acceptable", "spans_domains").rename(columns={"domain": "label"})
    known = known.assign(acceptable=known["acceptable"].map("; ".join))
    table = found.merge(known, on=KEY, how="left", validate="1:1")
    texts = {
        column: table[column].astype(object).where(table[column].notna(), "") for column in ("label", "acceptable")
    }
    return table.assign(**texts, spans_domains=table["spans_domains"].astype("boolean"))


def most_ambiguous(memories: pd.DataFrame, entries: Iterable[Entry] | None = None, n: int = 15) -> pd.DataFrame:
    """The memories on which raters agree least.

    Parameters
    ----------
    memories : DataFrame
        As made by `memory_ambiguity`.
    entries : iterable of Entry, optional
        Show their texts; without them a memory is shown by entry and position only.
    n : int
        How many at most.

    Returns
    -------
    DataFrame
        The columns of `memory_ambiguity`, the highest entropy first, then the smallest margin, then in the order given.
        With entries ``text``: control characters and line breaks as escapes, cut after 160 characters.

    Raises
    ------
    InputError
        Entries that lack one of the memories shown.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"n must be a whole number from 1, got {n!r}.")
    rated = memories[memories["entropy_bits"].notna()]
    table = rated.sort_values(["entropy_bits", "margin"], ascending=[False, True], kind="stable").head(n)
    table = table.reset_index(drop=True)
    if entries is None:
        return table
    texts = {(entry.entry_id, at): m.text for entry in entries for at, m in enumerate(entry.memories, start=1)}
    shown = [texts.get(key) for key in zip(table["entry_id"], table["position"], strict=True)]
    if None in shown:
        row = table.iloc[shown.index(None)]
        raise InputError(f"the entries hold no memory at position {row['position']} of {row['entry_id']!r}.")
    return table.assign(text=[_escaped(text) for text in shown])


def _escaped(text: str) -> str:
    """A text on one line, in which nothing is invisible."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}…"


def rater_agreement(assigned: pd.DataFrame) -> pd.DataFrame:
    """How often each pair of raters agrees.

    Parameters
    ----------
    assigned : DataFrame
        One row per memory and rater.

    Returns
    -------
    DataFrame
        One row per pair ``first``, ``second``: ``share`` of the memories on which they give the same domain, in [0, 1],
        with ``low``, ``high`` (95 %, Wilson, entries as clusters); ``n_memories`` to which both gave one,
        ``n_entries``; ``interval``, ``reason``. A share of 100 % over all memories is one opinion under two names.
    """
    given = check_assignments(assigned)
    given = given[~given["domain"].isin(NO_RATING)]
    wide = given.pivot(index=KEY, columns="rater", values="domain")
    rows = []
    for first, second in combinations(dict.fromkeys(check_assignments(assigned)["rater"]), 2):
        both = wide.reindex(columns=[first, second]).dropna()
        same, entries = (both[first] == both[second]).to_numpy(dtype=float), both.index.get_level_values(0).to_numpy()
        low, high = wilson_clustered(same, entries)
        row = {"first": first, "second": second, "share": same.mean() if len(same) else nan, "low": low, "high": high}
        row |= {"n_memories": len(same), "n_entries": len(set(entries))}
        rows.append(row | {"interval": WILSON, "reason": "" if len(same) else "no memory in common"})
    columns = ["first", "second", "share", "low", "high", "n_memories", "n_entries", "interval", "reason"]
    return pd.DataFrame(rows, columns=columns)


def distinct_raters(assigned: pd.DataFrame) -> pd.DataFrame:
    """The assignments without raters that put every memory where an earlier one put it: they are no second opinion."""
    table = check_assignments(assigned)
    wide = table.pivot(index=KEY, columns="rater", values="domain")
    kept: list[str] = []
    for rater in dict.fromkeys(table["rater"]):
        mine = wide[rater].dropna()
        if not any(mine.equals(wide[other].reindex(mine.index).rename(rater)) for other in kept):
            kept.append(rater)
    return table[table["rater"].isin(kept)].reset_index(drop=True)


def domain_agreement(assigned: pd.DataFrame, taxonomy: str | Taxonomy = "life11") -> pd.DataFrame:
    """Agreement of the raters over all domains, and on each domain against the rest.

    Parameters
    ----------
    assigned : DataFrame
        One row per memory and rater.
    taxonomy : str or Taxonomy
        Every domain of it has a row, also without any memory.

    Returns
    -------
    DataFrame
        One row 'all domains', then one per ``domain`` ('(new domains)', which pools those beyond the taxonomy,
        'unclassified' and '(none)' where they occur): ``n_assigned`` memories × raters put there, ``assigned_share`` of
        all in [0, 1]; ``n_memories`` that at least one rater put there, ``n_entries`` of theirs; ``coefficient``:
        Krippendorff's alpha (nominal; this domain against the rest), with ``low``, ``high`` (95 %), its ``interval``
        (entries as clusters) and ``reason`` where it is missing. 'unclassified' and '(none)' are no ratings: counted in
        rows of their own, without alpha.

    Raises
    ------
    InputError
        As `check_assignments` has it; no assignments.
    """
    assigned = check_assignments(assigned)
    if not len(assigned):
        raise InputError("there are no assignments; expected one row per memory and rater.")
    raters = list(dict.fromkeys(assigned["rater"]))
    order = domain_order(assigned["domain"], taxonomy)
    names = load_taxonomy(taxonomy).names
    pooled = assigned["domain"].where(assigned["domain"].isin([*names, *NO_RATING]), NEW)
    code = {name: float(place) for place, name in enumerate(order) if name not in NO_RATING}
    ratings = assigned.assign(code=assigned["domain"].map(code)).pivot(index=KEY, columns="rater", values="code")[
        raters
    ]
    entries, values = ratings.index.get_level_values(0), ratings.to_numpy()
    rows = []
    for name in (ALL_DOMAINS, *names, *(end for end in (NEW, *NO_RATING) if (pooled == end).any())):
        mine = assigned if name == ALL_DOMAINS else assigned[pooled == name]
        row = {"domain": name, "n_assigned": len(mine), "assigned_share": len(mine) / len(assigned)}
        row |= {"n_memories": len(mine.drop_duplicates(KEY)), "n_entries": mine["entry_id"].nunique()}
        if name in NO_RATING or not len(mine) or len(raters) < 2:
            why = "no rating" if name in NO_RATING else "nobody put a memory there"
            why = "one rater: no agreement" if len(mine) and len(raters) < 2 and name not in NO_RATING else why
            rows.append(row | {"coefficient": nan, "low": nan, "high": nan, "interval": "", "reason": why})
            continue
        codes = [code[one] for one in order if one == name or name == NEW and one not in (*names, *NO_RATING)]
        ours = values if name == ALL_DOMAINS else np.where(np.isnan(values), nan, np.isin(values, codes))
        alpha = krippendorff_alpha(ours, "nominal", entries).iloc[0]
        rows.append(row | alpha[["coefficient", "low", "high", "interval", "reason"]].to_dict())
    return pd.DataFrame(rows)
