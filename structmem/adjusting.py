"""Effects of structure, renderer and placement by regression, as they are and adjusted for what a layout changes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import isnan, nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from .columns import KEY, check_table
from .comparisons import ALL_MODELS
from .errors import InputError, choice
from .interactions import check_factor, level_words
from .intervals import LEVEL
from .missing import in_words
from .outcomes import NONE, counted, display_structure, is_echo, judged_rows, keep_none, sort_arms, unit_rows
from .pairing import said, tells_apart, with_numbers
from .resampling import few_entries
from .stamping import stamped


class _Covariate(NamedTuple):
    words: str
    per: float
    note: str


_PART = "part of the layout itself: what stays is the layout beside it, if its effect is linear"
COVARIATES = {
    "tokens_added": _Covariate("tokens added to the flat list, per 100", 100.0, _PART),
    "position": _Covariate("mean position of the labelled memories, from first to last", 1.0, _PART),
    "answer_length": _Covariate(
        "length of the answer, per 100 words",
        100.0,
        "a mediator: the layout may change it, so adjusting for it asks for the effect that does not go through length",
    ),
}
MEASURES = ("score", "rate")
LAYOUT, COVARIATE = "layout", "covariate"
_INTERVAL = "t over entries, jackknife"
_MERGED_ON = ("entry_id", "structure", "structurer", "partition_draw")
_OF_STRUCTURE = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw")


def layout_effects(
    results: pd.DataFrame,
    adjust_for: Sequence[str] = ("tokens_added",),
    positions: pd.DataFrame | None = None,
    factors: Sequence[str] = ("renderer", "placement"),
    references: Mapping[str, str] | None = None,
    baseline: str = "flat",
    measure: str = "score",
    outcome: str | None = None,
) -> pd.DataFrame:
    """Coefficients of structure × factors on every answer, with and without covariates, side by side on the same rows.

    Ordinary least squares on all crossed levels (treatment coding: a structure's own coefficient is its effect at the
    references; a product is an interaction), with an intercept for every entry and model, so that only differences
    within an entry count. Standard errors allow any dependence within an entry, over models, arms and generations: the
    sandwich over entries as clusters with the leverage of each taken out (Mancl & DeRouen 2001, Biometrics 57:126, from
    statsmodels) times (G − 1) / G, which is the jackknife over G entries (CR3: MacKinnon, Nielsen & Webb 2023, Journal
    of Econometrics 232:272), and t with G − 1 degrees of freedom. Without covariates and with complete entries it is
    the t interval over entries of ``conditional_effects``. Of the rate it is the linear probability model: a difference
    of rates of single answers (at K = 1, not the maximum over generations), which is never separated.

    A covariate that the layout itself changes (all of these are) is no confounder: the unadjusted coefficient is the
    effect of the layout as it is used; the adjusted one describes what would be left at an equal value, as far as the
    effect of the covariate is linear and the same everywhere.

    Parameters
    ----------
    results : DataFrame
        One row per generation. Replicates and partition draws are further rows of their arm.
    adjust_for : subset of 'tokens_added', 'position', 'answer_length'
        ``tokens_added``: ``context_tokens`` minus those of the baseline under the same renderer (an estimate:
        characters / 4). ``position``: ``mean_position`` of ``positions``. ``answer_length``: words of ``response``.
    positions : DataFrame, optional
        As made by ``gold_positions``: joined by entry, structure and structurer. Without a column ``partition_draw``
        they are those of draw 0, and answers to other draws have no position.
    factors : subset of 'renderer', 'placement', 'defence', 'system_prompt'
        Crossed with the structure. Other settings that differ make fits of their own.
    references : mapping of factor to level, optional
        Default: as in ``conditional_effects``.
    baseline : str
        The reference structure.
    measure : 'score' or 'rate'
        The score of each answer (echo: the overlap), or whether it fails (echoes), in pp.
    outcome : 'failure', 'echo' or None
        As in ``paired_differences``.

    Returns
    -------
    DataFrame
        One row per model (then 'all models', if there are several, every row weighing the same) × ``term``; ``kind``
        ('layout' | 'covariate'), ``factors`` that a layout's term crosses; ``unadjusted`` and ``adjusted`` with
        ``…_low``, ``…_high`` (95 %; in points of the score, or ``…_pp`` of the rate), ``change`` = adjusted −
        unadjusted, ``interval``, ``adjusted_for``; ``n_entries`` (clusters), ``n_rows`` used, ``n_left_out`` rows with
        the ``reasons`` (not scored, or without a covariate), ``reference``, ``remark`` (several structurers or
        taxonomies of a structure are taken together). Every row is exploratory.

    Raises
    ------
    InputError
        An unknown covariate, factor, measure or baseline; results or positions without the columns that it needs.
    """
    wanted, factors = _checked(results, adjust_for, positions, factors, measure)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    origin = {"structure": baseline} | {f: check_factor(results, f, (references or {}).get(f)) for f in factors}
    if not len(results):
        return stamped(pd.DataFrame(), results)
    if baseline not in (there := set(results["structure"].dropna())):
        raise choice("baseline", baseline, there)
    answers, arm = _answers(results, outcome, measure)
    crossed = ("structure", *factors)
    alike = ["failure_type", *(c for c in arm if c not in (*crossed, *_OF_STRUCTURE, "model", "replicate"))]
    answers = _with_covariates(answers, results, wanted, positions, baseline, [*alike, "model", *factors], outcome)
    rows = []
    for key, group in answers.groupby(alike, sort=False):
        named = dict(zip(alike, key, strict=True))
        parts = list(group.groupby("model", sort=False))
        for model, part in [*parts, *([(ALL_MODELS, group)] if len(parts) > 1 else [])]:
            rows += [named | {"model": model} | row for row in _fitted(part, crossed, origin, wanted, measure)]
    table = pd.DataFrame(rows)
    shown = [c for c in alike if c in ("failure_type", "threshold") or tells_apart(table, c)]
    first = ["model", *shown, "term", "kind"]
    table = table[[*first, *[c for c in table if c not in (*first, *alike)]]].assign(
        measure=measure, outcome=outcome, reference=", ".join(map(str, origin.values())),
        adjusted_for=", ".join(wanted) or "nothing",
    )  # fmt: skip
    order = sort_arms(table[["failure_type"]].assign(position=range(len(table))), ["failure_type", "position"])
    return stamped(with_numbers(table.iloc[order["position"]].reset_index(drop=True)), results)


def _checked(results, adjust_for, positions, factors, measure) -> tuple[list[str], tuple[str, ...]]:
    """The covariates and factors as lists, each named once, or an error."""
    check_table(results)
    if measure not in MEASURES:
        raise choice("measure", measure, MEASURES)
    wanted, factors = ([one] if isinstance(one, str) else list(dict.fromkeys(one)) for one in (adjust_for, factors))
    if unknown := [name for name in wanted if name not in COVARIATES]:
        raise choice("adjust_for", unknown[0], COVARIATES)
    needs = {"tokens_added": "context_tokens", "answer_length": "response"}
    for name in wanted:
        if name in needs and len(results) and needs[name] not in results:
            raise InputError(f"adjust_for={name!r} needs the column {needs[name]!r}, which these results lack.")
    if "position" in wanted:
        if positions is None:
            raise InputError("adjust_for='position' needs positions=, a table made by gold_positions.")
        check_table(positions, "positions")
        if lacking := [c for c in ("entry_id", "structure", "mean_position") if c not in positions]:
            raise InputError(f"positions lack the columns {lacking}; expected a table of gold_positions.")
        if positions.duplicated([c for c in _MERGED_ON if c in positions]).any():
            raise InputError("positions hold an entry twice under one structure; expected one row for each.")
    return wanted, tuple(factors)


def _answers(results: pd.DataFrame, outcome: str, measure: str) -> tuple[pd.DataFrame, list[str]]:
    """One row per answer asked for, with its value ``_y`` (NaN: not scored) and the columns that make its arm."""
    units, arm = unit_rows(results, ["generation"], outcome)
    value = units["mean_value"] if measure == "score" else 100 * units["failed_one"]
    why = [counted(units.iloc[[row]])["reasons"] for row in np.flatnonzero(value.isna())]
    reasons = pd.Series("", units.index)
    reasons[value.isna()] = [reason.rsplit(" ", 1)[0] or "not scored" for reason in why]
    return units.assign(_y=value, _why=reasons), arm


def _with_covariates(
    answers: pd.DataFrame,
    results: pd.DataFrame,
    wanted: Sequence[str],
    positions: pd.DataFrame | None,
    baseline: str,
    same: list[str],
    outcome: str,
) -> pd.DataFrame:
    """Answers with a column per covariate, in its unit, and a reason where one is missing."""
    key = [name for name in KEY if name in results]
    rows = keep_none(judged_rows(results, outcome), key)
    own = {
        "tokens_added": lambda: pd.to_numeric(rows["context_tokens"]).astype(float),
        "answer_length": lambda: rows["response"].map(lambda text: float(len(text.split())), na_action="ignore"),
    }
    made = rows[key].assign(**{name: own[name]().astype(float) for name in wanted if name in own})
    answers = answers.merge(made, on=key, how="left", validate="one_to_one")
    if "tokens_added" in wanted:
        flat = answers[answers["structure"] == baseline].groupby([*same, "entry_id"], sort=False)["tokens_added"].mean()
        answers = answers.join(flat.rename("_flat"), on=[*same, "entry_id"])
        answers["tokens_added"] -= answers.pop("_flat")
    if "position" in wanted:
        on = [c for c in _MERGED_ON if c in positions and c in answers]
        beside = keep_none(positions, on)[[*on, "mean_position"]].rename(columns={"mean_position": "position"})
        if "structurer" in on:  # what nobody sorts is the same whoever sorts the others
            by_someone = answers.loc[answers["structurer"].ne(NONE), "structure"]
            beside["structurer"] = beside["structurer"].where(beside["structure"].isin(by_someone), NONE)
            beside = beside.drop_duplicates(on)
        answers = answers.merge(beside, on=on, how="left", validate="many_to_one")
        if "partition_draw" in answers and "partition_draw" not in on:  # one draw's positions are not another's
            answers.loc[pd.to_numeric(answers["partition_draw"], errors="coerce").fillna(0).gt(0), "position"] = nan
    for name in wanted:
        answers[name] /= COVARIATES[name].per
        lacking = answers[name].isna() & answers["_why"].eq("")
        answers.loc[lacking, "_why"] = f"no {name.replace('_', ' ')}"
    return answers


# ------------------------------------------------------------------------------------------------------------ the fit


def _fitted(
    part: pd.DataFrame, crossed: Sequence[str], origin: Mapping[str, str], wanted: Sequence[str], measure: str
) -> list[dict]:
    suffix = "_pp" if measure == "rate" else ""
    used = part[part["_why"].eq("")]
    counts = {
        "n_entries": used["entry_id"].nunique(), "n_rows": len(used), "n_left_out": len(part) - len(used),
        "reasons": in_words(Counter(part["_why"][part["_why"].ne("")])),
    }  # fmt: skip
    layout, cells = _cells(part, used, crossed, origin)
    covariates = {COVARIATES[name].words: used[name].to_numpy(dtype=float) for name in wanted}
    mixed = _mixed(part)
    plain, why = _fit(used, cells)
    full, why_full = _fit(used, cells | covariates)
    rows = []
    for term in [*layout, *covariates]:
        is_layout = term in layout
        row = {"term": term, "kind": LAYOUT if is_layout else COVARIATE, "factors": ", ".join(layout.get(term, ()))}
        for name, fit in (("unadjusted", plain), ("adjusted", full if wanted else {})):
            ends = fit.get(term, (nan, nan, nan))
            row |= {f"{name}{end}{suffix}": value for end, value in zip(("", "_low", "_high"), ends, strict=True)}
        lacking = why_full if wanted else why
        row[f"change{suffix}"] = row[f"adjusted{suffix}"] - row[f"unadjusted{suffix}"]
        row["interval"] = f"not available: {lacking}" if lacking else _INTERVAL
        note = "" if is_layout else next(c.note for c in COVARIATES.values() if c.words == term)
        there = term in (full if wanted else plain)
        unknown = "" if there or not len(used) else _unidentified(term in cells or not is_layout)
        alike = there and not lacking and isnan(row[f"{'adjusted' if wanted else 'unadjusted'}_low{suffix}"])
        alike = "no interval: the same in every entry" if alike else ""
        rows.append(row | counts | {"remark": said([note, unknown, alike, mixed, few_entries(counts["n_entries"])])})
    return rows


def _mixed(part: pd.DataFrame) -> str:
    """That a structure's answers come from several ways of sorting, which its coefficient takes together."""
    words = {"structurer": "structurers", "taxonomy": "taxonomies", "structurer_options": "options of structurers"}
    return said(
        f"{name}: {n} {many} taken together"
        for column, many in words.items()
        if column in part
        for name, n in part.groupby("structure", sort=False)[column].nunique().items()
        if n > 1
    )


def _unidentified(made: bool) -> str:
    return "not identified: the other columns determine it" if made else "not identified: these levels were not crossed"


def _cells(
    part: pd.DataFrame, used: pd.DataFrame, crossed: Sequence[str], origin: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, np.ndarray]]:
    """All terms with what they cross, main effects first, and a column of 0 and 1 for each that occurs."""
    levels: dict[str, dict[str, str]] = {}
    for factor in crossed:
        found = sort_arms(part[[factor]].drop_duplicates(), [factor])[factor]
        levels[factor] = {level: _name(part, factor, level) for level in found if level not in (origin[factor], NONE)}
    terms, columns = {}, {}
    for order in range(1, len(crossed) + 1):
        for chosen in combinations(crossed, order):
            for combination in product(*(levels[factor] for factor in chosen)):
                pairs = list(zip(chosen, combination, strict=True))
                term = " × ".join(levels[factor][level] for factor, level in pairs)
                there = np.logical_and.reduce([used[factor].eq(level).to_numpy() for factor, level in pairs])
                terms[term] = chosen
                if there.any():
                    columns[term] = there.astype(float)
    return terms, columns


def _name(part: pd.DataFrame, factor: str, level: str) -> str:
    if factor != "structure":
        return level_words(factor, level)
    structurers = part.loc[part["structure"] == level, "structurer"].unique() if "structurer" in part else []
    return display_structure(level, structurers[0] if len(structurers) == 1 else None)


def _fit(used: pd.DataFrame, columns: Mapping[str, np.ndarray]) -> tuple[dict[str, tuple[float, float, float]], str]:
    """Estimate, low and high of each column that the others do not determine, and why there are no intervals."""
    if not len(used) or not columns:
        return {}, "no rows" if not len(used) else "one cell"
    strata = pd.factorize(pd.MultiIndex.from_frame(used[["entry_id", "model"]]))[0]
    clusters = pd.factorize(used["entry_id"])[0]
    names = _identified(columns, strata)
    if not names:
        return {}, "no differences within an entry"
    design = np.column_stack([_within(columns[name], strata) for name in names])
    y = _within(used["_y"].to_numpy(dtype=float), strata)
    n_entries, left = clusters.max() + 1, len(y) - len(names) - (strata.max() + 1)
    fixed = np.linalg.lstsq(design, y, rcond=None)[0]
    why = "one entry" if n_entries < 2 else "as many coefficients as answers" if left < 1 else ""
    if not why and np.abs(y - design @ fixed).max() < 1e-10:
        why = "no variation"
    if why:
        return {name: (float(value), nan, nan) for name, value in zip(names, fixed, strict=True)}, why
    variance = _variance(y, design, clusters)
    # A contrast that is the same in every entry has a variance of rounding errors, also below 0, and no interval.
    variance = np.where(variance > 1e-12 * np.nanmax(variance, initial=0), variance, nan)
    half = stats.t.ppf((1 + LEVEL) / 2, n_entries - 1) * np.sqrt(variance)
    estimates = np.round(fixed, 12) + 0.0
    return {n: (float(b), float(b - h), float(b + h)) for n, b, h in zip(names, estimates, half, strict=True)}, ""


def _variance(y: np.ndarray, design: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Variances of the coefficients: the jackknife over entries, (G − 1) / G of Mancl and DeRouen's sandwich."""
    from statsmodels.genmod.cov_struct import Independence
    from statsmodels.genmod.families import Gaussian
    from statsmodels.genmod.generalized_estimating_equations import GEE

    n = clusters.max() + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a design that one entry determines is seen in what comes back
        try:
            model = GEE(y, design, groups=clusters, family=Gaussian(), cov_struct=Independence())
            covariance = np.asarray(model.fit(cov_type="bias_reduced").cov_params())
        except (ValueError, np.linalg.LinAlgError):
            return np.full(design.shape[1], nan)
    return (n - 1) / n * np.diag(covariance)


def _within(values: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Values minus the mean of their entry and model, which is the same as an intercept for each."""
    return values - (np.bincount(strata, weights=values) / np.bincount(strata))[strata]


def _identified(columns: Mapping[str, np.ndarray], strata: np.ndarray) -> list[str]:
    """Names of columns, in order, that the ones before them and the intercepts do not determine."""
    kept, basis = [], []
    for name, values in columns.items():
        left = _within(values, strata)
        size = np.linalg.norm(left)
        for direction in (*basis, *basis):  # twice: Gram–Schmidt once loses digits
            left = left - (left @ direction) * direction
        if size > 1e-9 and np.linalg.norm(left) > 1e-7 * size:
            kept.append(name)
            basis.append(left / np.linalg.norm(left))
    return kept
