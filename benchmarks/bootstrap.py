"""How fast entries are resampled: 10,000 cluster bootstraps of 7 models x 4 structures x 200 entries.

Exit status 1 above the bar, or where a plain loop finds other estimates.

python benchmarks/bootstrap.py
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import numpy as np

from structmem.resampling import resampled_means

MODELS, STRUCTURES, ENTRIES = 7, 4, 200
BAR_S, AIM_S = 1.0, 0.1


def _plain_loop(cells: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """What the vectorised version replaces: draw entries, index, average, again and again."""
    n, found = len(cells), []
    for _ in range(draws):
        found.append(np.nanmean(cells[rng.integers(0, n, n)], axis=0))
    return np.array(found)


def _seconds(function, cells: np.ndarray, draws: int, runs: int) -> tuple[float, np.ndarray]:
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        found = function(cells, draws, np.random.default_rng(0))
        taken.append(time.perf_counter() - start)
    return min(taken), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="bootstrap resamples")
    draws = parser.parse_args().draws
    rng = np.random.default_rng(1)
    whole = rng.integers(0, 2, (ENTRIES, MODELS * STRUCTURES)).astype(float)
    gaps = np.where(rng.random(whole.shape) < 0.05, np.nan, whole)
    print(f"{draws:,} resamples of {MODELS} models x {STRUCTURES} structures x {ENTRIES} entries")
    slow = False
    for name, cells in (("complete", whole), ("5 % missing", gaps)):
        fast, ours = _seconds(resampled_means, cells, draws, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            loop, theirs = _seconds(_plain_loop, cells, draws, 1)
        same = np.allclose(ours, theirs, atol=1e-12)  # the same draws in the same order
        slow |= fast > BAR_S or not same
        print(
            f"{name:<12} vectorised {fast:.3f} s (bar {BAR_S:g}, aim {AIM_S:g}), plain loop {loop:.2f} s, "
            f"ratio {loop / fast:.0f}, {'the same' if same else 'OTHER'} estimates"
        )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
