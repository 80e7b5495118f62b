"""Unequal coverage: each arm's rate on all its complete entries beside the rate on the entries that all arms share."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

import numpy as np
import pandas as pd

from .intervals import wilson
from .outcomes import ARM, sort_arms
from .pairing import said
from .stamping import stamped
from .stats import NAMES, Group, outcome_of, rate_groups, why_nothing

MOST_REVERSALS = 3  # named in one warning; the others are counted


def on_common_entries(
    results: pd.DataFrame,
    by: str | Iterable[str] = ("model", "structure"),
    across_models: bool = False,
    outcome: str | None = None,
) -> pd.DataFrame:
    """Each arm's rate twice: on all its complete entries, and on the entries that are complete in every arm.

    Arms that miss other entries are compared on other entries, and an easier set can turn their order around
    (Simpson 1951, Journal of the Royal Statistical Society B 13:238). On the common entries the comparison is fair; if
    the two rates differ much, what is missing is not missing at random.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    by : column name or names
        What an arm is, as in ``failure_rate``; ``model`` is always added. Columns that label entries (memory_domain)
        make subgroups with common entries of their own.
    across_models : bool
        Whether an entry has to be complete in every arm of every model, so that models can be compared too.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        One row per model × arm × failure type: ``failure_rate`` (``echo_rate``) in [0, 1] on the ``n_entries`` complete
        entries, ``low``, ``high``; ``common_failure_rate`` (``common_echo_rate``) on the ``n_common`` entries that are
        complete in every arm, ``common_low``, ``common_high`` (both 95 % Wilson: ``interval``); ``change_pp``, common −
        all; ``n_unscored``; ``n_arms`` that the entries are common to; ``reason`` where there is no rate, or no common
        entry; ``warning``: the arms whose order with this one reverses on the common entries (the difference has the
        opposite sign), in words; across models, the same arm of other models. Arms without any complete entry have no
        say in what is common.

    Raises
    ------
    InputError
        As ``failure_rate``.
    """
    outcome = outcome_of(results, outcome)
    by = [by] if isinstance(by, str) else list(by)
    by = by if "model" in by else ["model", *by]
    groups, shown = rate_groups(results, by, outcome)
    keys = [key for key in shown if key != "arm"]
    apart = [key for key in keys if key not in ARM] + ([] if across_models else ["model"])
    families: dict[tuple, list[Group]] = {}
    for group in groups:
        families.setdefault(tuple(group.named[key] for key in apart), []).append(group)
    rows = [row for family in families.values() for row in _family(family, keys, outcome)]
    rate = NAMES[outcome][0]
    columns = [*shown, rate, "low", "high", "n_entries", f"common_{rate}", "common_low", "common_high", "n_common"]
    columns += ["change_pp", "n_unscored", "n_arms", "n_generations", "interval", "reason", "warning"]
    table = pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))
    return stamped(sort_arms(table, ["failure_type", *keys]), results)


def _family(family: list[Group], keys: list[str], outcome: str) -> list[dict]:
    """The rows of arms that are compared with each other."""
    failed = [group.complete.set_index("entry_id")["failed"].astype(float) for group in family]
    held = [set(values.index) for values in failed if len(values)]
    common = sorted(set.intersection(*held), key=str) if held else []
    rate = NAMES[outcome][0]
    on_all = np.array([values.mean() if len(values) else nan for values in failed])
    on_common = np.array([values[common].mean() if len(values) and common else nan for values in failed])
    names = _names(family, keys)
    rows = []
    for place, (group, values) in enumerate(zip(family, failed, strict=True)):
        n = len(common) if len(values) else 0
        low, high = wilson(float(values.sum()), len(values))
        common_low, common_high = wilson(round(on_common[place] * n) if n else 0, n)
        reason = (
            why_nothing(group.units, outcome) if not len(values) else "" if n else "no entry is complete in every arm"
        )
        # Of one model or of one kind: nobody asks how one model's flat stands to another's tree.
        mine = [group.named["model"], group.named.get("arm")]
        comparable = [
            at for at, one in enumerate(family) if one.named["model"] == mine[0] or one.named.get("arm") == mine[1]
        ]
        rows.append(
            group.named
            | {rate: on_all[place], "low": low, "high": high, "n_entries": len(values)}
            | {f"common_{rate}": on_common[place], "common_low": common_low, "common_high": common_high, "n_common": n}
            | {"change_pp": 100 * (on_common[place] - on_all[place]), "n_unscored": len(group.units) - len(values)}
            | {"n_arms": len(held), "n_generations": group.n_generations, "interval": "Wilson", "reason": reason}
            | {"warning": _reversals(place, comparable, on_all, on_common, names)}
        )
    return rows


def _names(family: list[Group], keys: list[str]) -> list[str]:
    """Arms in as few words as tell them apart."""
    varying = [key for key in keys if len({group.named[key] for group in family}) > 1]
    models = [key for key in varying if key == "model"]
    settings = [key for key in varying if key not in ("model", "structure")]
    short = [[*(group.named[key] for key in models), group.named.get("arm", "this arm")] for group in family]
    if len({tuple(name) for name in short}) < len(family):
        settings = [[f"{key.replace('_', ' ')} {group.named[key]}" for key in settings] for group in family]
        short = [[*name, *words] for name, words in zip(short, settings, strict=True)]
    return [", ".join(map(str, name)) for name in short]


def _reversals(place: int, comparable: list[int], on_all: np.ndarray, on_common: np.ndarray, names: list[str]) -> str:
    """Words for the arms on whose other side an arm stands on the common entries."""
    before, after = (np.round(rates[place] - rates, 9) for rates in (on_all, on_common))
    found = [
        f"{'above' if before[other] > 0 else 'below'} {names[other]} on all complete entries "
        f"({100 * on_all[place]:.1f} against {100 * on_all[other]:.1f} %), "
        f"{'above' if after[other] > 0 else 'below'} it on the common ones "
        f"({100 * on_common[place]:.1f} against {100 * on_common[other]:.1f} %)"
        for other in comparable
        if before[other] * after[other] < 0
    ]
    more = len(found) - MOST_REVERSALS
    return said([*found[:MOST_REVERSALS], f"and {more} more such arms" if more > 0 else ""])
