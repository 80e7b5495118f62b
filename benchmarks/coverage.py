"""Coverage of every interval that structmem prints, over a declared grid; exit status 1 where a bar is missed.

    python benchmarks/coverage.py

An interval of level 95 % should hold the truth 95 times in 100. Where the outcomes are binomial or trinomial every
possible table is enumerated, so that the coverage is exact; elsewhere it is counted over simulated tables, with the
Monte Carlo error shown. Bars: 93 to 97 % on average over the grid; exact methods at least 95 % in every cell. Tables
for which an interval is not available (no variation) are counted apart and in no coverage.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from draws import ALONE, ENTRY, IN_ARM, IN_MODEL, cells, failures, joint, latent, trinomial
from scipy import stats

from structmem.clusters import Arm, mover
from structmem.estimands import _over_runs, _Resampled
from structmem.interactions import log_odds_ratio
from structmem.intervals import (
    clopper_pearson,
    clustered_mean,
    mean_of_rates,
    over_models,
    tango,
    wilson,
    wilson_clustered,
)
from structmem.reliability import alphas_of_pairs, distance_of, kappas, tables_by_cluster, within_one
from structmem.resampling import percentile_interval, resampled_means
from structmem.verification import rate_of_arm, rate_of_person, share_of_sum, weighted_share

SEED = 0
SIMS = 1000
FEWER = 500  # where an interval takes long
DRAWS = 2000  # of bootstraps
ENTRIES = (20, 40, 100, 200)
RATES = (0.01, 0.05, 0.2, 0.5, 0.8, 0.97)
FINE = np.arange(1, 1000) / 1000
DIFFERENCES = (0.0, -0.05, -0.1, -0.2)
# Simulated pairs: rate of the baseline, and differences to it.
SHARED = ((0.01, (0.0,)), (0.05, (0.0, -0.04)), (0.5, (0.0, -0.1)), (0.97, (0.0, -0.1)))
CORRELATIONS = (0.0, 0.5)
MODELS = (1, 3, 7)
LOWEST_MEAN, HIGHEST_MEAN, LEVEL = 0.93, 0.97, 0.95


class Cell(NamedTuple):
    """Coverage of one method in one cell of the grid."""

    method: str
    where: str
    coverage: float
    unavailable: float = 0.0  # share of tables without an interval
    sims: int = 0  # 0: enumerated
    exact: bool = False  # an exact method: at least its level everywhere


def holds(bounds: np.ndarray, truth: np.ndarray | float) -> np.ndarray:
    """Whether each interval (rows: low, high) holds the truth; a hair of rounding does not matter."""
    return (bounds[:, 0] <= truth + 1e-9) & (truth - 1e-9 <= bounds[:, 1])


def counted(method: str, where: str, bounds: np.ndarray, truth: np.ndarray | float) -> Cell:
    """A cell from simulated intervals."""
    there = ~np.isnan(bounds).any(axis=1)
    covered = holds(bounds, truth)[there]
    return Cell(method, where, covered.mean() if len(covered) else np.nan, 1 - there.mean(), len(bounds))


def one_rate(_: np.random.Generator) -> Iterator[Cell]:
    """Wilson and Clopper–Pearson: every number of failures, weighted by its binomial probability."""
    for n, (name, interval) in product(ENTRIES, {"Wilson": wilson, "Clopper–Pearson": clopper_pearson}.items()):
        counts = np.arange(n + 1)
        bounds = np.array([interval(int(failed), n) for failed in counts])
        for grid, label in ((RATES, name), (FINE, f"{name}, p = .001 to .999")):
            for p in grid:
                share = stats.binom.pmf(counts, n, p) @ holds(bounds, p)
                yield Cell(label, f"n {n}, p {p:g}", share, exact=interval is clopper_pearson)


def paired_rates() -> Iterator[tuple[float, float, float, tuple[float, float]]]:
    """Baseline rate, difference, correlation and discordant probabilities of each possible cell."""
    for p, difference, correlation in product(RATES, DIFFERENCES, CORRELATIONS):
        if p + difference > 0 and (discordant := joint(p, p + difference, correlation)):
            yield p, difference, correlation, discordant


def paired(_: np.random.Generator) -> Iterator[Cell]:
    """Tango's interval: every pair of discordant counts, weighted by its trinomial probability."""
    for n in ENTRIES:
        only_arm, only_baseline, _ = trinomial(n, 0.1, 0.1)
        bounds = np.array([tango(int(b), int(c), n) for b, c in zip(only_arm, only_baseline, strict=True)])
        for p, difference, correlation, discordant in paired_rates():
            weights = trinomial(n, *discordant)[2]
            where = f"n {n}, p {p:g}, difference {difference:g}, correlation {correlation:g}"
            yield Cell("Tango", where, weights @ holds(bounds, difference))


def clustered_rates(rng: np.random.Generator) -> Iterator[Cell]:
    """Wilson at the effective number of entries: several models pooled, FR@1 over generations, and a mean of rates."""
    for n, p, members in product(ENTRIES, RATES, (3, 7)):
        entries = np.tile(np.arange(n), members)
        outcomes = failures(rng, SIMS, n, np.full((1, members), p)).reshape(SIMS, members, n)
        where = f"n {n}, p {p:g}, {members} per entry"
        found = np.array([wilson_clustered(row.ravel(), entries) for row in outcomes])
        yield counted("Wilson, entries as clusters", where, found, p)
        found = np.array([wilson_clustered(row.mean(axis=0), entries[:n], draws=members) for row in outcomes])
        yield counted("Wilson, generations as draws (FR@1)", where, found, p)
    for n, p, models in product(ENTRIES, RATES, (3, 7)):
        rates = stats.norm.cdf(stats.norm.ppf(p) + np.linspace(-0.5, 0.5, models))
        outcomes = failures(rng, FEWER, n, rates[None]).reshape(FEWER, -1)
        entries, groups = np.tile(np.arange(n), models), np.repeat(np.arange(models), n)
        found = np.array([mean_of_rates(row, entries, groups)[1:] for row in outcomes])
        yield counted("stratified Wilson, mean of rates", f"n {n}, p about {p:g}, {models} models", found, rates.mean())


def over_entries(rng: np.random.Generator) -> Iterator[Cell]:
    """Intervals about these models and new entries, with 1, 3 and 7 models that meet the same entries."""
    pairs = [(p, difference) for p, several in SHARED for difference in several]
    for n, models, (p, difference) in product(ENTRIES, MODELS, pairs):
        outcomes = failures(rng, SIMS, n, [[p] * models, [p + difference] * models])
        tables = outcomes[:, 1] - outcomes[:, 0]
        where = f"n {n}, {models} models, p {p:g}, difference {difference:g}"
        entries = np.tile(np.arange(n), models)
        found = np.array([clustered_mean(table.ravel(), entries) for table in tables])
        yield counted("t over entries", where, found, difference)
        # All simulated tables meet the same resamples: each of them sees nothing but independent draws.
        means = resampled_means(tables.mean(axis=1).T, DRAWS, rng).T
        found = np.array([percentile_interval(row, n)[:2] for row in means])
        yield counted("cluster bootstrap over entries", where, found, difference)
        if models > 1:
            weights = np.full(models, 1 / models)
            found = np.array([mover(table.T, weights) for table in tables[:FEWER]])
            yield counted("MOVER of Tango's, over models", where, found, difference)


def over_runs(rng: np.random.Generator) -> Iterator[Cell]:
    """The bootstrap over entries, then runs: every run of a model has a drift of its own (sd .15 on the latent scale).

    Both arms are run anew each time, as replicates are.
    """
    drift = 0.15
    for n, models, runs in product((40, 200), (1, 3), (2, 4)):
        owner = np.repeat(np.arange(models), runs)
        level = np.array([0.0, -0.25])
        found = []
        for _ in range(FEWER):
            parts, _ = latent(rng, 1, n, 2, models)
            parts = np.repeat(parts[0], runs, axis=1) + drift * rng.standard_normal((2, models * runs, 1))
            # What an answer has of its own is new in every run; the rest is the entry's.
            parts = parts + np.sqrt(ALONE) * rng.standard_normal(parts.shape)
            failed = (parts + level[:, None, None] > 0).astype(float)
            gaps = cells(failed[1] - failed[0], owner)
            one = _over_runs(gaps, _Resampled(gaps, DRAWS // 2, int(rng.integers(2**31))))
            found.append((one["low_pp"], one["high_pp"]))
        truth = 100 * np.diff(stats.norm.cdf(level / np.sqrt(1 + ALONE + drift**2)))[0]
        where = f"n {n}, {models} models, {runs} runs"
        yield counted("cluster bootstrap, entry, then run", where, np.array(found), truth)


def log_odds(rng: np.random.Generator) -> Iterator[Cell]:
    """The delta method's interval of a log odds ratio in one model, entries as clusters."""
    for n, p, factor in product((40, 200), RATES, (1.0, 0.6)):
        outcomes = failures(rng, FEWER, n, [[p], [factor * p]])[:, :, 0]
        found = []
        for baseline, arm in outcomes:
            pairs = pd.DataFrame({"failed_arm": arm, "failed_baseline": baseline})
            found.append(log_odds_ratio(Arm({}, "flat", "failure", (pairs,), 0, "", ""))[0].interval()[:2])
        truth = np.diff(np.log([p / (1 - p), factor * p / (1 - factor * p)]))[0]
        yield counted("t over entries, log odds", f"n {n}, p {p:g} to {factor * p:g}", np.array(found), truth)


def agreement(rng: np.random.Generator) -> Iterator[Cell]:
    """Intervals of weighted kappa, Krippendorff's alpha and raw agreement: two judges, three answers of each entry.

    The truth is the value in 200,000 entries.
    """
    classes = np.arange(1.0, 6.0)
    cuts = {"even": (-0.84, -0.25, 0.25, 0.84), "mostly 1": (0.8, 1.2, 1.6, 2.0)}
    measures = {
        "kappa, quadratic weights": lambda tables: kappas(tables, distance_of(classes, "quadratic")),
        "alpha, ordinal": lambda tables: alphas_of_pairs(tables, classes, "ordinal"),
    }

    def tables(n: int, noise: float, cut: tuple) -> np.ndarray:
        answers = np.sqrt(0.5) * (rng.standard_normal((n, 1, 1)) + rng.standard_normal((n, 3, 1)))
        read = (answers + noise * rng.standard_normal((n, 3, 2))) / np.sqrt(1 + noise**2)
        scores = 1.0 + np.searchsorted(cut, read)
        return tables_by_cluster(scores.reshape(-1, 2), classes, np.repeat(np.arange(n), 3))

    for (name, cut), noise in product(cuts.items(), (0.3, 1.0)):
        whole = tables(200_000, noise, cut).sum(axis=0)
        truth = {label: measure(whole[None])[0] for label, measure in measures.items()}
        raw = np.trace(whole) / whole.sum()
        for n in (20, 40, 100):
            samples = [tables(n, noise, cut) for _ in range(FEWER)]
            where = f"{n} entries, {name}, noise {noise}"
            for label, measure in measures.items():
                found = [within_one(sample, measure) for sample in samples]
                found = np.array([(one["low"], one["high"]) for one in found])
                yield counted(f"jackknife of {label}", where, found, truth[label])
            agreed = [np.trace(sample, axis1=1, axis2=2) / 3 for sample in samples]
            found = np.array([wilson_clustered(one, np.arange(n), draws=3) for one in agreed])
            yield counted("Wilson, raw agreement", where, found, raw)


def corrected(rng: np.random.Generator) -> Iterator[Cell]:
    """What a person's scores say of a judge: 200 entries × 3 answers in a baseline and an arm that fails .6 as often.

    Of each, some of the judge's failures and passes are audited. The judge fails 85 % of what the person fails and
    passes 90 % of what the person passes, in both. The pooled correction uses the audited answers of both; with one arm
    it would be the arm's own.
    """
    sensitivity, specificity, n = 0.85, 0.9, 200
    for p, audited in product((0.05, 0.5, 0.9), (20, 60)):
        rates = (p, 0.6 * p)
        found: dict[str, list] = {name: [] for name in ("own", "baseline", "arm", "sensitivity", "specificity")}
        for _ in range(FEWER):
            # arms × entries × answers
            human = failures(rng, 1, n, np.repeat([rates], 3, axis=0).T)[0].transpose(0, 2, 1)
            judged = np.where(human > 0, rng.random(human.shape) < sensitivity, rng.random(human.shape) >= specificity)
            entries = np.tile(np.arange(n), 2)
            arms = [weighted_share(judged[a].mean(axis=1), np.ones(n), np.arange(n), 3.0) for a in (0, 1)]
            whole = weighted_share(judged.mean(axis=2).ravel(), np.ones(2 * n), entries, 3.0)
            audits = [_audited(human[a], judged[a], audited, rng) for a in (0, 1)]
            own = [weighted_share(*side) for side in audits[0]]
            both = [
                weighted_share(*map(np.concatenate, zip(*sides, strict=True))) for sides in zip(*audits, strict=True)
            ]
            found["sensitivity"].append(share_of_sum(arms[0], *own)[1:3])
            found["specificity"].append(share_of_sum(arms[0].inverse(), own[1].inverse(), own[0].inverse())[1:3])
            found["own"].append(rate_of_person(arms[0], *own)[1:3])
            usable = both[0].value > both[1].value  # else no better than chance
            for name, rate in zip(("baseline", "arm"), arms, strict=True):
                found[name].append(rate_of_arm(rate, whole, *both)[1:3] if usable else (np.nan, np.nan))
        where = f"p {p:g}, {audited} failures and passes audited"
        bounds_of = {name: np.array(several, dtype=float) for name, several in found.items()}
        yield counted("Rogan–Gladen, an arm's own audit", where, bounds_of["own"], p)
        for name, rate in zip(("baseline", "arm"), rates, strict=True):
            place = f"{where} in each arm, {name} at {rate:g}"
            yield counted("Rogan–Gladen, pooled audit", place, bounds_of[name], rate)
        yield counted("sensitivity", where, bounds_of["sensitivity"], sensitivity)
        yield counted("specificity", where, bounds_of["specificity"], specificity)


def _audited(human: np.ndarray, judged: np.ndarray, many: int, rng: np.random.Generator) -> list[tuple]:
    """The person's verdicts, weights and entries of ``many`` of the judge's failures, and of its passes."""
    sides = []
    for failed in (True, False):
        held = np.flatnonzero(judged.ravel() == failed)
        some = rng.choice(held, min(many, len(held)), replace=False)
        weights = np.full(len(some), len(held) / max(len(some), 1))
        sides.append((human.ravel()[some], weights, some // human.shape[1]))
    return sides


def new_models(rng: np.random.Generator) -> Iterator[Cell]:
    """The t interval over models: rates and effects of models are draws from a normal distribution, latent scale.

    It claims to be about new models on the entries at hand; how often it holds the mean over new models *and* new
    entries is counted beside it, without a bar: nothing in it knows that entries are a sample.
    """
    spread, spread_of_effect = 0.8, 0.2
    for n, models, effect in product((40, 200), (3, 5, 7), (0.0, -0.25)):
        parts, of_entries = latent(rng, SIMS, n, 2, models)
        level = spread * rng.standard_normal((SIMS, models))
        shift = effect + spread_of_effect * rng.standard_normal((SIMS, models))
        failed = parts + np.stack([level, level + shift], axis=1)[..., None] > 0
        gain = failed[:, 1].mean(axis=-1) - failed[:, 0].mean(axis=-1, dtype=float)
        variance = np.array([spread**2, spread**2 + spread_of_effect**2])
        means = np.array([0.0, effect])
        here = stats.norm.cdf(
            (means[:, None] + of_entries[:, :, 0]) / np.sqrt(variance + IN_MODEL + ALONE)[:, None]
        ).mean(axis=-1)
        anywhere = stats.norm.cdf(means / np.sqrt(1 + variance))
        found = [over_models(row) for row in gain]
        bounds = np.array([(one.low, one.high) for one in found])
        where = f"n {n}, {models} models, effect {effect:g}"
        yield counted("t over models", where, bounds, here[:, 1] - here[:, 0])
        yield counted("t over models (and new entries: not claimed)", where, bounds, anywhere[1] - anywhere[0])


def summary(found: list[Cell]) -> pd.DataFrame:
    """One row per method: mean, smallest coverage and where, unavailable intervals, and whether bars are met."""
    rows = []
    for method, group in pd.DataFrame(found).groupby("method", sort=False):
        known = group.dropna(subset="coverage")
        least = known.loc[known["coverage"].idxmin()]
        sims, exact = int(group["sims"].max()), bool(group["exact"].any())
        error = np.sqrt(LEVEL * (1 - LEVEL) / sims) if sims else 0.0
        mean = known["coverage"].mean()
        met = least["coverage"] >= LEVEL - 1e-9 if exact else LOWEST_MEAN <= mean <= HIGHEST_MEAN
        missed = "MISSED, too wide" if mean > HIGHEST_MEAN and not exact else "MISSED"
        verdict = "no bar" if "not claimed" in method else "met" if met else missed
        rows.append((
            method, len(group), sims or "all tables", f"{100 * mean:.2f} %", f"{100 * least['coverage']:.1f} %",
            least["where"], f"±{200 * error:.1f}" if sims else "0", f"{100 * group['unavailable'].mean():.1f} %",
            f"at least {100 * LEVEL:g} % everywhere" if exact else "mean 93 to 97 %", verdict,
        ))  # fmt: skip
    names = ["interval", "cells", "tables each", "mean", "least", "where", "2 SE of a cell, pp", "not available"]
    return pd.DataFrame(rows, columns=[*names, "bar", "verdict"])


JOBS = (over_entries, clustered_rates, paired, one_rate, over_runs, log_odds, agreement, corrected, new_models)


def cells_of(number: int) -> list[Cell]:
    """The cells of one job, with draws of its own."""
    return list(JOBS[number](np.random.default_rng([SEED, number])))


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    with ProcessPoolExecutor(2) as pool:
        table = summary([cell for job in pool.map(cells_of, range(len(JOBS))) for cell in job])
    print(f"Intervals of level 95 %, seed {SEED}, n = {', '.join(map(str, ENTRIES))} entries")
    print(f"p = {', '.join(f'{p:g}' for p in RATES)}; differences {', '.join(f'{d:g}' for d in DIFFERENCES)}")
    print(f"shares of variance: entry {ENTRY}, entry in a model {IN_MODEL}, entry in an arm {IN_ARM}")
    for name, row in table.set_index("interval").iterrows():
        print(f"{name}: {row['verdict']}")
        print("    " + ", ".join(f"{column} {value}" for column, value in row.drop("verdict").items()))
    return int(table["verdict"].str.startswith("MISSED").any())


if __name__ == "__main__":
    raise SystemExit(main())
