"""Whether a structure helps less where the memory that may leak is ambiguous: by entry, as a split and a regression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import nan

import numpy as np
import pandas as pd
from scipy import stats

from .assigned import check_entries
from .data import Entry
from .errors import InputError, choice
from .intervals import LEVEL
from .missing import in_words
from .outcomes import keep_none
from .pairing import arm_keys, compare, shown_keys, with_numbers
from .stamping import stamped
from .stats import outcome_of
from .taxonomy import Taxonomy, load_taxonomy

MEASURES = {
    "entropy_bits": "bit", "disagreement": "disagreeing pair (0 to 1)", "several_acceptable": "share (0 to 1)",
}  # fmt: skip
_BY_RATERS = ("entropy_bits", "disagreement")
_REDUCTIONS = {"failed": "reduction_pp", "failed_one": "at_1_reduction_pp", "mean_value": "mean_score_reduction"}
OF = {
    "failure": {"reduction_pp": "FR@K", "at_1_reduction_pp": "FR@1", "mean_score_reduction": "mean score"},
    "echo": {"reduction_pp": "echo at K", "at_1_reduction_pp": "echo at 1", "mean_score_reduction": "mean overlap"},
}
_ADJUSTED_FOR = {"n_memories": ("memory", 1), "n_domains": ("domain", 1), "context_tokens": ("100 tokens", 100)}
_NOT_PLANNED = "effects of ambiguity are not planned"
HC3 = "HC3 over entries, t"


def gold_ambiguity(
    memories: pd.DataFrame, entries: Sequence[Entry], taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """How ambiguous the memories are that may leak, entry by entry.

    PersistBench does not say which memory of an entry is the leaking one, only its domain. *Gold-domain memories* are
    those whose primary label is accepted for the entry's ``memory_domain``; where an entry has no labels, those whose
    modal domain is.

    Parameters
    ----------
    memories : DataFrame
        As made by `memory_ambiguity`, with labels or without.
    entries : sequence of Entry
    taxonomy : str or Taxonomy
        Its ``accepted`` domains per benchmark label.

    Returns
    -------
    DataFrame
        One row per entry: ``entry_id``, ``memory_domain``; ``n_memories``; ``n_domains``, different modal domains;
        ``n_gold`` memories, found by ``gold_by`` ('label' or 'modal domain'), sorted by ``n_raters``; means over them,
        by raters only for entries with as many raters as any (entropy grows with their number): ``entropy_bits``,
        ``disagreement`` (share of pairs of raters that disagree, in [0, 1]), ``several_acceptable`` (share with more
        than one acceptable domain, in [0, 1]); ``reason`` where there are none.

    Raises
    ------
    InputError
        An entry twice.
    """
    check_entries(entries)
    accepted = load_taxonomy(taxonomy).accepted
    groups = dict(iter(memories.groupby("entry_id", sort=False)))
    nothing = memories.iloc[:0]
    rows = [_gold_row(entry, groups.get(entry.entry_id, nothing), accepted) for entry in entries]
    columns = ["entry_id", "memory_domain", "n_memories", "n_domains", "n_gold", "gold_by", "n_raters"]
    table = pd.DataFrame(rows, columns=[*columns, *MEASURES, "reason"])
    # Entropy grows with the number of raters: only entries with the same number are compared.
    fewer = table["n_raters"] < table["n_raters"].max()
    return table.assign(**{name: table[name].mask(fewer) for name in _BY_RATERS})


def _gold_row(entry: Entry, mine: pd.DataFrame, accepted: dict) -> dict:
    row = {"entry_id": entry.entry_id, "memory_domain": entry.memory_domain, "n_memories": len(entry.memories)}
    row |= {"n_domains": mine.loc[mine["modal_domain"] != "", "modal_domain"].nunique()}
    row |= {"n_gold": 0, "gold_by": "", "n_raters": 0} | dict.fromkeys(MEASURES, nan)
    if entry.memory_domain is None:
        return row | {"reason": "no memory_domain"}
    if not accepted.get(entry.memory_domain):
        return row | {"reason": f"the taxonomy accepts no domain for the memory_domain {entry.memory_domain!r}"}
    if not len(mine):
        return row | {"reason": "not sorted by any rater"}
    by_label = "label" in mine and bool((mine["label"] != "").any())
    gold = mine[mine["label" if by_label else "modal_domain"].isin(accepted[entry.memory_domain])]
    row |= {"n_gold": len(gold), "gold_by": "label" if by_label else "modal domain"}
    if not len(gold):
        return row | {"reason": "no memory in an accepted domain"}
    row["n_raters"] = int((gold["n_raters"] + gold["n_unclassified"]).max())
    several = gold["acceptable"].str.contains(";").mean() if by_label else nan
    means = {"entropy_bits": gold["entropy_bits"].mean(), "disagreement": 1 - gold["agreement"].mean()}
    return row | means | {"several_acceptable": several, "reason": ""}


def entry_reductions(
    results: pd.DataFrame, gold: pd.DataFrame, baseline: str = "flat", outcome: str | None = None
) -> pd.DataFrame:
    """Paired reductions of each entry beside the ambiguity of its gold-domain memories.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    gold : DataFrame
        As made by `gold_ambiguity`.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        One row per arm (A/A first) and entry that is complete in both arms in some model and run. An entry counts
        once: its reductions, baseline − arm, are means over the models and runs in which it is complete
        (``n_pairs``): ``reduction_pp`` of failing at K, ``at_1_reduction_pp`` of single answers,
        ``mean_score_reduction`` (echo: of the overlap); less what its models and runs reduce over all entries in
        ``…_centred``, so that an entry missing from one of them does not stand for it. ``context_tokens`` of the
        baseline, then the columns of `gold_ambiguity`.

    Raises
    ------
    InputError
        As ``paired_differences``; also for a table of ambiguity that lacks columns or holds an entry twice.
    """
    arms, outcome = _arms(results, gold, baseline, outcome)
    tables = [rows.assign(**named, outcome=outcome)[[*named, "outcome", *rows]] for named, _, rows in arms]
    empty = pd.DataFrame(columns=["failure_type", "arm", *list(gold)])
    table = with_numbers(pd.concat(tables, ignore_index=True)) if tables else empty
    return stamped(table, results).assign(analysis_note=_NOT_PLANNED, analysis="exploratory")


def _arms(
    results: pd.DataFrame, gold: pd.DataFrame, baseline: str, outcome: str | None, measure: str = ""
) -> tuple[list[tuple[dict, dict, pd.DataFrame]], str]:
    """Per arm its keys, its counts, and one row per entry (those left out because of `gold` have a reason); outcome."""
    wanted = ["entry_id", "n_memories", "n_domains", *MEASURES, "reason"]
    if not isinstance(gold, pd.DataFrame) or (lacking := [name for name in wanted if name not in gold]):
        found = lacking if isinstance(gold, pd.DataFrame) else type(gold).__name__
        raise InputError(f"gold must be a table as gold_ambiguity makes it; wrong or lacking: {found}.")
    if gold["entry_id"].duplicated().any():
        raise InputError(f"gold holds entry {gold.loc[gold['entry_id'].duplicated(), 'entry_id'].iloc[0]!r} twice.")
    outcome = outcome_of(results, outcome)
    table, behind = compare(results, ["model"], baseline, outcome)
    if not len(table):
        return [], outcome
    tokens, keys, arms = _tokens(results, baseline), arm_keys(table), []
    shown = [key for key in shown_keys(table, keys) if key != "model"]
    for key, group in table.groupby(keys, sort=False):
        named = {name: value for name, value in zip(keys, key, strict=True) if name in shown}
        runs = [behind[place] for place in group.index]
        rows = _means([one.pairs for one in runs])
        rows["context_tokens"] = rows["entry_id"].map(tokens).astype(float)
        rows = rows.merge(gold, on="entry_id", how="left", validate="m:1", indicator=True)
        rows.loc[rows["_merge"] == "left_only", "reason"] = "not in the table of ambiguity"
        if measure:
            lacking = rows["reason"].eq("") & rows[measure].isna()
            why = "fewer raters than other entries" if measure in _BY_RATERS else "no reference labels"
            rows.loc[lacking, "reason"] = why
        asked = set().union(*(set(side["entry_id"]) for one in runs for side in (one.arm, one.baseline)))
        lost = Counter(rows["reason"]) + Counter({"not complete in both arms": len(asked) - len(rows)})
        lost.pop("", None)
        counts = {"n_models": group["model"].nunique(), "n_runs": sum(len(one.pairs) > 0 for one in runs)}
        counts |= {"n_left_out": lost.total(), "reasons": in_words(lost)}
        arms.append((named, counts, rows.drop(columns="_merge")))
    return arms, outcome


def _tokens(results: pd.DataFrame, baseline: str) -> pd.Series:
    """Mean context tokens of the baseline by entry; empty without that column."""
    if "context_tokens" not in results:
        return pd.Series(dtype=float)
    rows = keep_none(results[["entry_id", "structure", "context_tokens"]], ["entry_id"])
    return rows[rows["structure"] == baseline].groupby("entry_id")["context_tokens"].mean().astype(float)


def _means(runs: list[pd.DataFrame]) -> pd.DataFrame:
    """One row per entry: mean reductions over the runs in which it has a pair."""
    parts = []
    for pairs in runs:
        part = pairs[["entry_id"]].reset_index(drop=True)
        for value, name in _REDUCTIONS.items():
            gap = (pairs[f"{value}_baseline"].astype(float) - pairs[f"{value}_arm"].astype(float)).to_numpy()
            part[name] = gap if value == "mean_value" else 100 * gap
        parts.append(
            part.assign(**{f"{name}_centred": part[name] - part[name].mean() for name in _REDUCTIONS.values()})
        )
    every = pd.concat(parts, ignore_index=True)
    return every.groupby("entry_id", sort=True).mean().assign(n_pairs=every.groupby("entry_id").size()).reset_index()


def ambiguity_effect(
    results: pd.DataFrame,
    gold: pd.DataFrame,
    measure: str = "entropy_bits",
    baseline: str = "flat",
    outcome: str | None = None,
) -> pd.DataFrame:
    """Regress each entry's reduction on the ambiguity of its gold-domain memories.

    An entry counts once (see `entry_reductions`), so entries are the clusters, whatever the number of models and runs.
    Ordinary least squares of baseline − arm on `measure`, adjusted for the number of memories, of domains and of the
    baseline's context tokens. A negative coefficient of `measure`: the structure reduces less where memories are
    ambiguous. An association among these entries, not an effect of ambiguity: what else such entries have is not known.

    Parameters
    ----------
    results, gold, baseline, outcome : as for `entry_reductions`
    measure : 'entropy_bits', 'disagreement' or 'several_acceptable'

    Returns
    -------
    DataFrame
        One row per arm, outcome ``of`` (failing at K, single answers, mean score or overlap) and ``term``:
        ``effect`` with ``effect_low``, ``effect_high`` (95 %), in the unit ``per`` ('pp per bit'); ``p``;
        ``detectable``, the true effect that would be found with 80 % power, at the error found; ``n_entries`` used,
        ``n_left_out`` with ``reasons``; ``n_models``, ``n_runs``; ``interval``, ``reason`` where numbers are missing.
        Always exploratory.

    Raises
    ------
    InputError
        As `entry_reductions`; also for an unknown measure.

    Notes
    -----
    Standard errors: HC3 over entries (MacKinnon & White 1985, Journal of Econometrics 29:305), by statsmodels, with t
    at entries − coefficients degrees of freedom. Simulated with 20 to 100 entries and five coefficients it covers 94.7
    to 96.9 %; the usual cluster-robust error covers 91 to 93 % with 20.
    """
    arms, names, measured = _prepared(results, gold, measure, baseline, outcome)
    found = []
    for named, counts, rows in arms:
        mine = rows[rows["reason"] == ""]
        for column, of in names.items():
            unit = "pp" if column.endswith("_pp") else measured
            lines = _regression(mine, f"{column}_centred", measure)
            found += [named | counts | {"of": of} | line | {"per": f"{unit} per {line['per']}"} for line in lines]
    return _finished(found, results, baseline, ["of", "term", "effect", "effect_low", "effect_high", "per", "p"])


def ambiguity_split(
    results: pd.DataFrame,
    gold: pd.DataFrame,
    measure: str = "entropy_bits",
    baseline: str = "flat",
    outcome: str | None = None,
) -> pd.DataFrame:
    """Mean reductions of the more ambiguous entries (above the median) and of the rest, and their difference.

    Parameters
    ----------
    results, gold, measure, baseline, outcome : as for `ambiguity_effect`

    Returns
    -------
    DataFrame
        One row per arm and outcome ``of``: ``median`` of the measure over the entries used; ``n_ambiguous``, ``n_rest``
        entries; ``mean_ambiguous``, ``mean_rest``: reduction, baseline − arm; ``effect`` = ambiguous − rest with
        ``effect_low``, ``effect_high`` (95 %), in the unit ``per`` ('pp' or that of the score); ``p``; ``n_entries``,
        ``n_left_out`` with ``reasons``; ``n_models``, ``n_runs``; ``interval``, ``reason``. Always exploratory.

    Notes
    -----
    Welch (1947), Biometrika 34:28, by scipy; entries are the units.
    """
    arms, names, measured = _prepared(results, gold, measure, baseline, outcome)
    found = []
    for named, counts, rows in arms:
        mine = rows[rows["reason"] == ""]
        for column, of in names.items():
            line = _halves(mine[mine[column].notna()], column, measure)
            found.append(named | counts | {"of": of} | line | {"per": "pp" if column.endswith("_pp") else measured})
    first = ["of", "median", "n_ambiguous", "n_rest", "mean_ambiguous", "mean_rest", "effect", "effect_low"]
    return _finished(found, results, baseline, [*first, "effect_high", "per", "p"])


def _prepared(
    results: pd.DataFrame, gold: pd.DataFrame, measure: str, baseline: str, outcome: str | None
) -> tuple[list[tuple[dict, dict, pd.DataFrame]], dict[str, str], str]:
    """The arms, the columns of reductions with what they are of, and the unit of a mean score."""
    if measure not in MEASURES:
        raise choice("measure", measure, MEASURES)
    arms, outcome = _arms(results, gold, baseline, outcome, measure)
    return arms, OF[outcome], "overlap" if outcome == "echo" else "score"


def _regression(mine: pd.DataFrame, column: str, measure: str) -> list[dict]:
    """One line per term of one regression, or why there is none."""
    terms = {measure: (MEASURES[measure], 1)} | _ADJUSTED_FOR
    if mine["context_tokens"].isna().all():
        del terms["context_tokens"]  # results of an older version do not have it
    used = mine[mine[[column, *terms]].notna().all(axis=1)]
    blank = {"effect": nan, "effect_low": nan, "effect_high": nan, "p": nan, "detectable": nan, "interval": ""}
    blank |= {"n_entries": len(used)}
    varied = [name for name in terms if used[name].nunique() > 1]
    n, k = len(used), len(varied) + 1
    scaled = (
        np.column_stack([used[name].astype(float) / terms[name][1] for name in varied]) if varied else np.empty((n, 0))
    )
    design = np.column_stack([np.ones(n), scaled])
    why = ""
    if measure not in varied:
        why = f"{measure} is the same in all entries (n = {n})" if n else "no entries"
    elif n < k + 2:
        why = f"{n} entries are too few for {k} coefficients"
    elif np.linalg.matrix_rank((design - design.mean(axis=0))[:, 1:] / design[:, 1:].std(axis=0), tol=1e-8) < k - 1:
        why = "memories, domains, tokens and ambiguity depend on each other in these entries"
    elif used[column].max() - used[column].min() < 1e-9:
        why = "the reduction is the same in all entries"
    elif (np.linalg.qr(design)[0] ** 2).sum(axis=1).max() > 1 - 1e-8:  # leverage 1: its error cannot be estimated
        why = "one entry alone decides a coefficient"
    if why:
        return [{"term": name, "per": terms[name][0]} | blank | {"reason": why} for name in terms]
    import statsmodels.api as models  # takes a second

    fit = models.OLS(used[column].to_numpy(dtype=float), design).fit(cov_type="HC3", use_t=True)
    bounds = fit.conf_int(1 - LEVEL)
    reach = stats.t.ppf([(1 + LEVEL) / 2, 0.8], n - k).sum()
    lines = []
    for name, (per, _) in terms.items():
        line = {"term": name, "per": per} | blank | {"reason": f"{name} is the same in all entries (n = {n})"}
        if name in varied:
            at = varied.index(name) + 1
            line |= {"effect": fit.params[at], "effect_low": bounds[at, 0], "effect_high": bounds[at, 1]}
            line |= {"p": fit.pvalues[at], "detectable": reach * fit.bse[at], "interval": HC3, "reason": ""}
        lines.append(line)
    return lines


def _halves(mine: pd.DataFrame, column: str, measure: str) -> dict:
    used = mine[mine[measure].notna()]
    median = float(used[measure].median()) if len(used) else nan
    above = used[measure] > median + 1e-12
    high, low = (used.loc[some, column].to_numpy(dtype=float) for some in (above, ~above))
    line = {"n_entries": len(used), "median": median, "n_ambiguous": len(high), "n_rest": len(low)}
    line |= {"mean_ambiguous": high.mean() if len(high) else nan, "mean_rest": low.mean() if len(low) else nan}
    line |= {"effect": line["mean_ambiguous"] - line["mean_rest"], "effect_low": nan, "effect_high": nan, "p": nan}
    line |= {"interval": "", "reason": ""}
    if not len(high) or not len(low):
        return line | {"reason": f"no entry is above the median {measure}" if len(used) else "no entries"}
    if min(len(high), len(low)) < 2:
        return line | {"interval": "not available: one entry in a half"}
    if high.var() + low.var() < 1e-18:
        return line | {"interval": "not available: no variation"}
    test = stats.ttest_ind(high, low, equal_var=False)
    ends = test.confidence_interval(LEVEL)
    return line | {
        "effect_low": ends.low,
        "effect_high": ends.high,
        "p": test.pvalue,
        "interval": "Welch's t over entries",
    }


def _finished(found: list[dict], results: pd.DataFrame, baseline: str, first: list[str]) -> pd.DataFrame:
    """The table with its columns in order, exploratory in every row."""
    counts = ["n_entries", "n_left_out", "n_models", "n_runs", "reasons", "interval", "reason"]
    last = [*(["detectable"] if "median" not in first else []), *counts]
    table = pd.DataFrame(found, columns=None if found else ["failure_type", "arm", *first, *last])
    settings = [name for name in table if name not in (*first, *last)]
    table = stamped(with_numbers(table[[*settings, *first, *last]]), results).assign(baseline=baseline)
    return table.assign(analysis_note=_NOT_PLANNED, analysis="exploratory")
