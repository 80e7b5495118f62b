"""The noise floor: how much two runs of the very same arm differ, and which arms differ from the baseline by more."""

from __future__ import annotations

from math import nan, sqrt

import numpy as np
import pandas as pd

from .intervals import LEVEL, minimum_detectable_pp
from .outcomes import ARM, OF_STRUCTURE, is_echo
from .pairing import compare, said, shown_keys, with_numbers
from .stamping import stamped

_COLUMNS = (
    "model", "failure_type", "arm", "difference_pp", "low_pp", "high_pp", "interval", "discordant_share", "n_entries",
    "noise_discordant_share", "noise_n_entries", "noise_sd_pp", "noise_range_pp", "exceeds_noise", "reading",
    "detectable_pp", "baseline", "outcome", "remark", "warning",
)  # fmt: skip
NO_AA = "not available: no second run of the baseline (A/A arm) under these settings"


def noise_floor(results: pd.DataFrame, baseline: str = "flat", outcome: str | None = None) -> pd.DataFrame:
    """Differences beside what a mere repetition of the baseline changes, per model, from the A/A arm.

    If a share ψ of entries comes out differently in two runs of one arm, the difference of two such runs on n entries
    has the standard deviation √(ψ / n). A difference within the range that follows is what a repetition alone would
    give; one beyond it need not hold for other entries, for which the interval is.

    Parameters
    ----------
    results : DataFrame
        One row per generation; ``flat`` with replicate 1 (and more) is the A/A arm.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        As in ``paired_differences``.

    Returns
    -------
    DataFrame
        One row per model × arm × run, the A/A arm first: ``difference_pp`` = arm − baseline with ``low_pp``,
        ``high_pp`` (95 %, Tango), ``discordant_share`` of the ``n_entries`` pairs; ``noise_discordant_share`` ψ, over
        the ``noise_n_entries`` pairs of A/A runs of the same model and settings; ``noise_sd_pp`` = √(ψ / n) at the
        row's own n; ``noise_range_pp``: at least 95 % of repetitions differ by at most this much in either direction
        (exact, see ``noise_range_pp``); ``exceeds_noise`` (true, false, or missing where there is no A/A arm), and
        ``reading``, the same in words; ``detectable_pp``: minimum detectable effect at 80 % power for the row's n and
        discordance (``minimum_detectable_pp``); ``remark``, ``warning``.

    Raises
    ------
    InputError
        As ``paired_differences``.
    """
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    table, behind = compare(results, ["model"], baseline, outcome)
    if not len(table):
        return stamped(pd.DataFrame(columns=list(_COLUMNS)), results)
    verb = {"failure": "fails", "echo": "echoes"}[outcome]
    table = table.rename(columns={"n_pairs": "n_entries"}).assign(
        discordant=table[f"n_only_baseline_{verb}"] + table[f"n_only_arm_{verb}"],
        interval=np.where(table["n_pairs"] > 0, "Tango, paired entries", "not available: no pairs"),
    )
    settings = [column for column in ARM if column in table and column not in OF_STRUCTURE]
    keys = list(dict.fromkeys(["model", "failure_type", *settings, "n_generations"]))
    repeated = table[(table["structure"] == baseline) & (table["n_entries"] > 0)]
    floors = {
        key: (int(runs["discordant"].sum()), int(runs["n_entries"].sum()), int(runs["difference_pp"].abs().idxmax()))
        for key, runs in repeated.groupby(keys, sort=False)
    }
    rows = []
    for row in table.to_dict("records"):
        found = floors.get(tuple(row[key] for key in keys))
        drift = _drift(table.loc[found[2]], found) if found else ""
        rows.append(row | _beside(row, found, drift, row["structure"] == baseline))
    made = pd.DataFrame(rows)
    made["exceeds_noise"] = made["exceeds_noise"].astype("boolean")
    runs = [column for column in ("partition_draw", "replicate") if column in made]
    kept = shown_keys(made, list(dict.fromkeys(["model", "failure_type", "arm", *settings, *runs, "n_generations"])))
    return stamped(with_numbers(made[[*kept, *[column for column in _COLUMNS if column not in kept]]]), results)


def _beside(row: dict, floor: tuple[int, int, int] | None, drift: str, is_repetition: bool) -> dict:
    """The columns that say how a row's difference compares with its noise floor."""
    n, difference = row["n_entries"], row["difference_pp"]
    share = row["discordant"] / n if n else nan
    found = {
        "discordant_share": share, "noise_discordant_share": nan, "noise_n_entries": floor[1] if floor else 0,
        "noise_sd_pp": nan, "noise_range_pp": nan, "exceeds_noise": None,
        "detectable_pp": minimum_detectable_pp(n, share) if n and share else nan,
    }  # fmt: skip
    if not n:
        return found | {"reading": f"not available: {row['remark'] or 'no pairs'}"}
    if not floor:
        return found | {"reading": NO_AA}
    discordant, pairs, _ = floor
    noise, remark = discordant / pairs, "" if is_repetition else drift
    if not discordant:
        # None in n pairs does not show that there are none: the largest share that would hide with probability 5 %.
        noise = 1 - (1 - LEVEL) ** (1 / pairs)
        remark = f"the runs of {row['baseline']} agree in all {pairs} pairs; noise is taken at its 95 % upper bound"
    most = noise_range_pp(n, noise)
    exceeds = bool(abs(difference) > most + 1e-9)
    words = f"{'exceeds' if exceeds else 'within'} the ±{most:.1f} pp that repetition alone gives in 95 % of runs"
    if is_repetition:
        words = f"noise: {row['baseline']} again differs from itself on {100 * share:.1f} % of entries; {words}"
    return found | {
        "noise_discordant_share": noise, "noise_sd_pp": 100 * sqrt(noise / n), "noise_range_pp": most,
        "exceeds_noise": exceeds, "reading": words, "remark": said([row["remark"], remark]),
    }  # fmt: skip


def _drift(repetition: pd.Series, floor: tuple[int, int, int]) -> str:
    """A remark where two runs of the baseline differ by more than exchangeable runs would: noise is then larger."""
    n, difference = int(repetition["n_entries"]), float(repetition["difference_pp"])
    if not floor[0] or abs(difference) <= noise_range_pp(n, floor[0] / floor[1]) + 1e-9:
        return ""
    return f"the A/A runs drifted apart by {abs(difference):.1f} pp, beyond chance: the range is too narrow"


def noise_range_pp(n: int, discordant: float, level: float = LEVEL) -> float:
    """The smallest range ±r that holds at least ``level`` of the differences of two runs that differ by chance only.

    Each of ``n`` entries comes out worse, better or the same with probabilities ψ/2, ψ/2 and 1 − ψ; the distribution of
    their sum is the n-fold convolution, taken exactly through its discrete Fourier transform.

    Parameters
    ----------
    n : int
        Entries.
    discordant : float
        ψ, the share of entries that come out differently, in [0, 1].

    Returns
    -------
    float
        r in pp.
    """
    frequency = 2 * np.pi * np.arange(2 * n + 1) / (2 * n + 1)
    chances = np.real(np.fft.ifft((1 - discordant + discordant * np.cos(frequency)) ** n))
    within = chances[0] + 2 * np.cumsum(chances[1 : n + 1])
    return 100 * int(np.searchsorted(np.concatenate([chances[:1], within]), level - 1e-12)) / n
