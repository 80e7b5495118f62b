"""Paired outcomes with known rates for the statistical benchmarks: the same entries meet every arm and model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))  # structmem of this checkout

from structmem.estimands import Cells

# Shares of the latent variance: of the entry (the same everywhere), of the entry in one model (the same in both arms),
# of the entry in one arm (the same in every model); the rest belongs to one outcome. The last but one makes entries
# differ in what a structure does to them, so that models agree on whom it harms: without it nothing is clustered.
ENTRY, IN_MODEL, IN_ARM = 0.4, 0.2, 0.1
ALONE = 1 - ENTRY - IN_MODEL - IN_ARM


def latent(rng: np.random.Generator, sims: int, n: int, arms: int, models: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal numbers behind the outcomes, and the part of them that belongs to entries and arms.

    Returns
    -------
    both of shape sims × arms × models × n; the second one has a single model
    """
    of_entries = np.sqrt(ENTRY) * rng.standard_normal((sims, 1, 1, n))
    of_entries = of_entries + np.sqrt(IN_ARM) * rng.standard_normal((sims, arms, 1, n))
    of_models = np.sqrt(IN_MODEL) * rng.standard_normal((sims, 1, models, n))
    return of_entries + of_models + np.sqrt(ALONE) * rng.standard_normal((sims, arms, models, n)), of_entries


def failures(rng: np.random.Generator, sims: int, n: int, rates: np.ndarray) -> np.ndarray:
    """0/1 outcomes, sims × arms × models × n, whose true rates are exactly ``rates`` (arms × models)."""
    levels = stats.norm.ppf(np.asarray(rates, dtype=float))
    return (latent(rng, sims, n, *levels.shape)[0] + levels[None, :, :, None] > 0).astype(float)


def joint(rate_baseline: float, rate_arm: float, correlation: float) -> tuple[float, float] | None:
    """Probabilities that only the arm and only the baseline fails; None where no such correlation exists."""
    spread = np.sqrt(rate_baseline * (1 - rate_baseline) * rate_arm * (1 - rate_arm))
    both = rate_baseline * rate_arm + correlation * spread
    possible = max(0.0, rate_baseline + rate_arm - 1) <= both <= min(rate_baseline, rate_arm)
    return (rate_arm - both, rate_baseline - both) if possible else None


def trinomial(n: int, only_arm: float, only_baseline: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every pair of discordant counts of n pairs, and its probability: three arrays of equal length."""
    first, second = (counts.ravel() for counts in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    first, second = first[first + second <= n], second[first + second <= n]
    shares = [only_arm, only_baseline, 1 - only_arm - only_baseline]
    return first, second, stats.multinomial.pmf(np.c_[first, second, n - first - second], n, shares)


def cells(gaps: np.ndarray, owner: np.ndarray) -> Cells:
    """Paired differences (runs × n, of the models in ``owner``) as the tables of differences hold them."""
    values, models = gaps.T, list(map(str, range(owner.max() + 1)))
    return Cells({}, values, values, values, owner, models, {}, [], len(owner))
