"""How often each test of structmem rejects a true null hypothesis at 5 %; exit status 1 where a bar is missed.

    python benchmarks/type1.py

Tests on two counts are enumerated over every possible table, the others counted over simulated tables in which several
models meet the same entries. Bars: an exact test (randomisation, or enumeration of its own) rejects at most 5 times in
100 in every cell, plus three standard errors of a cell where it was simulated; an approximate one on average
over the grid, plus two standard errors of that average, and its worst cell is shown. A test that cannot be made (no
discordant pairs, separation) does not reject; how often that was is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from draws import ALONE, ENTRY, IN_ARM, IN_MODEL, cells, failures, joint, latent, trinomial
from scipy import stats

from structmem.clusters import mover
from structmem.estimands import _between
from structmem.intervals import clustered_mean, mcnemar_exact, over_models, tango
from structmem.margins import ONE_SIDED, Verdict
from structmem.noise import noise_range_pp
from structmem.pooled import _conditional, _gee, _scores, _strata
from structmem.resampling import percentile_interval, resampled_means, sign_flips

SEED = 0
ALPHA, ERRORS = 0.05, 3
SIMS, FEWER, FEW = 1000, 500, 200
DRAWS = 1000  # of bootstraps and random sign flips
ENTRIES = (20, 40, 100, 200)
RATES = (0.01, 0.05, 0.5, 0.97)
DISCORDANT = (0.02, 0.1, 0.276, 0.6, 1.0)
MARGIN = 0.05


class Cell(NamedTuple):
    """Share of tables of one true null hypothesis in which a test rejects."""

    test: str
    where: str
    rejected: float
    unavailable: float = 0.0
    sims: int = 0  # 0: enumerated


# Valid in every sample by construction; the others rely on large ones.
EXACT = {
    "exact McNemar", "sign flips of entries", "sign flips of models, exact", "signed ranks of models, exact",
    "conditional logistic, sign flips",
}  # fmt: skip


def counted(test: str, where: str, p_values: list[float]) -> Cell:
    """A cell from simulated p-values; NaN: the test could not be made."""
    p_values = np.array(p_values, dtype=float)
    return Cell(test, where, float(np.mean(p_values <= ALPHA)), float(np.isnan(p_values).mean()), len(p_values))


def mcnemar(_: np.random.Generator) -> Iterator[Cell]:
    """Exact McNemar, and Tango's interval excluding 0 (the score test): every table, by its probability."""
    for n in ENTRIES:
        pairs = np.arange(n + 1)
        exact, score = np.zeros(n + 1), np.zeros(n + 1)
        for discordant in pairs:
            weights = stats.binom.pmf(np.arange(discordant + 1), discordant, 0.5)
            # Both fall with the distance from the middle: counting from one end until they no longer reject is enough.
            for which, rejects in ((exact, _exact_rejects), (score, _score_rejects)):
                few = 0
                while few <= (discordant - 1) // 2 and rejects(few, discordant - few, n):
                    few += 1
                which[discordant] = 2 * weights[:few].sum()
        for share in DISCORDANT:
            chances, where = stats.binom.pmf(pairs, n, share), f"n {n}, {100 * share:g} % discordant"
            yield Cell("exact McNemar", where, float(chances @ exact))
            yield Cell("Tango's interval excludes 0", where, float(chances @ score))


def _exact_rejects(few: int, many: int, _: int) -> bool:
    return mcnemar_exact(few, many) <= ALPHA


def _score_rejects(few: int, many: int, n: int) -> bool:
    return tango(few, many, n)[1] < 0


def margin_of_one_model(_: np.random.Generator) -> Iterator[Cell]:
    """Non-inferiority of one model (Tango's one-sided bound) where the arm is worse by exactly the margin."""
    for n in ENTRIES:
        only_arm, only_baseline, _weights = trinomial(n, 0.1, 0.1)
        passes = np.array([
            Verdict(*(100 * side for side in tango(int(b), int(c), n, ONE_SIDED))).worse_by < 100 * MARGIN
            for b, c in zip(only_arm, only_baseline, strict=True)
        ])  # fmt: skip
        for p, correlation in product((0.05, 0.2, 0.5, 0.9), (0.0, 0.5)):
            if discordant := joint(p, p + MARGIN, correlation):
                share = float(trinomial(n, *discordant)[2] @ passes)
                yield Cell("non-inferiority, one model", f"n {n}, p {p:g}, correlation {correlation:g}", share)


def margin_over_models(rng: np.random.Generator) -> Iterator[Cell]:
    """The same over models that share their entries, each with one run, or with three that answer anew."""
    for n, models, p in product(ENTRIES, (3, 7), (0.05, 0.5, 0.9)):
        outcomes = failures(rng, SIMS, n, [[p] * models, [p + MARGIN] * models])
        where = f"n {n}, {models} models, p {p:g}"
        yield counted("non-inferiority, over models", where, _not_worse(outcomes[:, 1] - outcomes[:, 0]))
    for n, models, p in product((20, 100), (1, 3), (0.05, 0.5)):
        parts = np.repeat(latent(rng, FEWER, n, 2, models)[0], 3, axis=2)
        # What an answer has of its own is new in every run; the rest is the entry's.
        parts = parts + np.sqrt(ALONE) * rng.standard_normal(parts.shape)
        level = np.sqrt(1 + ALONE) * stats.norm.ppf([p, p + MARGIN])
        failed = (parts + level[:, None, None] > 0).astype(float)
        where = f"n {n}, {models} models, 3 runs, p {p:g}"
        yield counted("non-inferiority, several runs", where, _not_worse(failed[:, 1] - failed[:, 0]))


def _not_worse(gaps: np.ndarray) -> list[float]:
    """A p-value of 0 where 'not worse by the margin' is shown, else 1, from tables × columns × entries."""
    weights = np.full(gaps.shape[1], 1 / gaps.shape[1])
    return [0.0 if mover(table.T, weights, ONE_SIDED)[1] < MARGIN else 1.0 for table in gaps]


def bootstrapped(gaps: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Intervals of the mean over models (sims × models × n); all simulated tables meet the same resamples."""
    n = gaps.shape[-1]
    for row in resampled_means(gaps.mean(axis=1).T, DRAWS, rng).T:
        yield percentile_interval(row, n)[:2]


def tables(rng: np.random.Generator, sims: int, n: int, models: int, p: float) -> np.ndarray:
    """Outcomes of two arms with the same true rate: sims × arms × models × n."""
    return failures(rng, sims, n, np.full((2, models), p))


def over_entries(rng: np.random.Generator) -> Iterator[Cell]:
    """Sign flips, t and bootstrap over entries (also of an interaction), heterogeneity: shared entries."""
    for n, models, p in product(ENTRIES, (1, 7), RATES):
        outcomes = tables(rng, FEWER, n, models, p)
        gaps = outcomes[:, 1] - outcomes[:, 0]
        where = f"n {n}, {models} models, p {p:g}"
        yield counted("sign flips of entries", where, [sign_flips(row.sum(axis=0), DRAWS, rng)[0] for row in gaps])
        yield counted("t over entries", where, [_by_entry(row) for row in gaps])
        yield counted("cluster bootstrap over entries", where, _excluding(bootstrapped(gaps, rng)))
        other = tables(rng, FEWER, n, models, p / 2)
        doubled = gaps - (other[:, 1] - other[:, 0])
        yield counted("interaction, bootstrap over entries", where, _excluding(bootstrapped(doubled, rng)))
        if models > 1:
            found = [_between(cells(row, np.arange(models))) for row in gaps]
            yield counted("heterogeneity of models", where, [one["heterogeneity_p"] for one in found])


def _excluding(intervals: Iterator[tuple[float, float]]) -> list[float]:
    """A p-value of 0 where an interval excludes 0, else 1; NaN without an interval."""
    return [nan if np.isnan(low) else float(low <= 0 <= high) for low, high in intervals]


def _by_entry(gaps: np.ndarray) -> float:
    return _excluding(iter([clustered_mean(gaps.mean(axis=0), np.arange(gaps.shape[1]))]))[0]


def over_all_models(rng: np.random.Generator) -> Iterator[Cell]:
    """t, sign flips and signed ranks over models whose effects are draws around 0, on the same entries.

    The entries do not differ in what the arm does to them: these tests are about new models on the entries at hand.
    """
    for n, models in product((40, 200), (3, 5, 7, 12)):
        found = []
        for _ in range(SIMS):
            level = 0.8 * rng.standard_normal(models) + 0.15 * rng.standard_normal((2, models))
            shared = np.sqrt(ENTRY) * rng.standard_normal(n)
            own = np.sqrt(1 - ENTRY) * rng.standard_normal((2, models, n))
            failed = shared + own + level[..., None] > 0
            found.append(over_models(100 * (failed[1].mean(axis=1) - failed[0].mean(axis=1))))
        where = f"n {n}, {models} models"
        yield counted("t over models", where, [one.t_p for one in found])
        yield counted("sign flips of models, exact", where, [one.sign_flip_p for one in found])
        yield counted("signed ranks of models, exact", where, [one.wilcoxon_p for one in found])


def pooled_models(rng: np.random.Generator) -> Iterator[Cell]:
    """GEE (Wald), and the conditional logistic regression's bootstrap interval and sign flips: odds ratio 1."""
    arms = {1: "arm", 0: "baseline"}
    for n, models, p in product((40, 100), (1, 5), (0.05, 0.5)):
        gee, interval, flips = [], [], []
        for outcomes in tables(rng, FEW, n, models, p):
            arm, model, entry = (index.ravel() for index in np.indices(outcomes.shape))
            answers = pd.DataFrame({"entry_id": entry, "failed": outcomes.ravel(), "model": model, "arm": arm})
            strata = _strata(answers)
            found = _gee(answers, arms, "fails")
            gee.append(found.get("odds_p", nan))
            found = _conditional(strata, arms, "fails", DRAWS // 2, int(rng.integers(2**31)))
            low, high = found["odds_low"], found["odds_high"]
            lacking = np.isnan([low, high]).all()
            interval.append(nan if lacking else 1.0 if not (low > 1 or high < 1) else 0.0)
            flips.append(sign_flips(_scores(strata), DRAWS, rng)[0])
        where = f"n {n}, {models} models, p {p:g}"
        yield counted("GEE, Wald", where, gee)
        yield counted("conditional logistic, interval excludes 1", where, interval)
        yield counted("conditional logistic, sign flips", where, flips)


def noise(rng: np.random.Generator) -> Iterator[Cell]:
    """An arm that is only another repetition exceeds the noise floor that one A/A pair tells."""
    for n, p in product(ENTRIES, RATES):
        found = []
        for flat, again, arm in failures(rng, SIMS, n, np.full((3, 1), p))[:, :, 0]:
            share = np.mean(flat != again) or 1 - ALPHA ** (1 / n)
            exceeds = abs(100 * (arm - flat).mean()) > noise_range_pp(n, share) + 1e-9
            found.append(0.0 if exceeds else 1.0)
        yield counted("exceeds the noise floor", f"n {n}, p {p:g}", found)


def summary(found: list[Cell]) -> pd.DataFrame:
    """One row per test: mean and largest rate of rejection, where, and whether the bar is met."""
    rows = []
    for test, group in pd.DataFrame(found).groupby("test", sort=False):
        most = group.loc[group["rejected"].idxmax()]
        sims = int(group["sims"].max())
        error = np.sqrt(ALPHA * (1 - ALPHA) / sims) if sims else 0.0
        mean, worst = group["rejected"].mean(), most["rejected"]
        bar = ALPHA + (ERRORS * error if test in EXACT else 2 * error / np.sqrt(len(group)))
        judged = worst if test in EXACT else mean
        words = f"{'every cell' if test in EXACT else 'mean'} at most {100 * bar:.1f} %"
        shares = [f"{100 * mean:.2f} %", f"{100 * worst:.2f} %", most["where"]]
        errors = [f"{100 * error:.2f}" if sims else "0", f"{100 * group['unavailable'].mean():.1f} %"]
        verdict = "met" if judged <= bar + 1e-9 else "MISSED"
        rows.append([test, len(group), sims or "all tables", *shares, *errors, words, verdict])
    names = ["test", "cells", "tables each", "mean", "most", "where", "SE of a cell, pp", "not made", "bar", "verdict"]
    return pd.DataFrame(rows, columns=names)


JOBS = (pooled_models, over_entries, mcnemar, margin_of_one_model, margin_over_models, over_all_models, noise)


def cells_of(number: int) -> list[Cell]:
    """The cells of one job, with draws of its own."""
    return list(JOBS[number](np.random.default_rng([SEED, number])))


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    with ProcessPoolExecutor(2) as pool:
        table = summary([cell for job in pool.map(cells_of, range(len(JOBS))) for cell in job])
    print(f"Rejections of true null hypotheses at {100 * ALPHA:g} %, seed {SEED}")
    print(f"shares of variance: entry {ENTRY}, in a model {IN_MODEL}, in an arm {IN_ARM}, alone {ALONE:g}")
    for name, row in table.set_index("test").iterrows():
        print(f"{name}: {row['verdict']}")
        print("    " + ", ".join(f"{column} {value}" for column, value in row.drop("verdict").items()))
    return int((table["verdict"] == "MISSED").any())


if __name__ == "__main__":
    raise SystemExit(main())
