"""Averages over models, failure types or domains: macro and micro under their own names, each with its own interval."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

import pandas as pd

from .data import FAILURE_TYPES
from .errors import InputError, choice
from .intervals import mean_of_rates, wilson_clustered
from .outcomes import NONE, OF_STRUCTURE, check_results, sort_arms, unit_rows
from .pairing import said
from .stamping import stamped
from .stats import NAMES, keys_of, label_of, outcome_of

_INTERVALS = {"macro": "stratified Wilson", "micro": "Wilson"}


def averages(
    results: pd.DataFrame,
    over: str | Iterable[str] = "model",
    by: str | Iterable[str] = ("model", "structure"),
    outcome: str | None = None,
) -> pd.DataFrame:
    """Average rate of each arm over groups, in two ways that answer two questions.

    Macro: the mean of the groups' rates, every group weighing the same. Micro: the rate of all outcomes together, every
    entry weighing the same, so that large groups count for more. They agree where the groups are of one size.

    The interval of the micro average is Wilson's at the effective number of outcomes. That of the macro average is made
    from the groups' own intervals, so a group of 5 entries widens it as much as its rate is uncertain (see
    ``intervals.mean_of_rates``). Both are about *these groups, new entries*: an entry that several groups share (every
    entry meets every model) is one cluster.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    over : column name or names
        The groups: ``model``, ``failure_type``, ``memory_domain`` or any other column of entries or arms.
    by : column name or names
        What a row is, apart from the groups; columns of ``over`` are left out of it. As in ``failure_rate``, settings
        with several values are added, and failure types are kept apart unless the average is over them.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        Two rows per group of ``by``: ``average`` ('macro: mean of 7 models', 'micro: all entries of 7 models');
        ``failure_rate`` (``echo_rate``) in [0, 1] with ``low``, ``high`` (95 %, ``interval``); ``n_groups``;
        ``n_entries`` complete entries (entry × arm), ``n_clusters`` different ones, ``n_unscored`` incomplete ones;
        ``smallest_group`` and ``largest_group``, their entries; ``unit``, what is independent; ``note``: what counts
        as failure, which over failure types differs in direction, threshold and K; ``remark`` (groups without complete
        entries are in no mean); ``reason`` where there is no rate.

    Raises
    ------
    InputError
        As ``failure_rate``; also for an average over what makes runs or arms of a structure.
    """
    outcome = outcome_of(results, outcome)
    over = [over] if isinstance(over, str) else list(over)
    by = [by] if isinstance(by, str) else list(by)
    check_results(results, by)
    wrong = [c for c in over if c not in results or c in (*OF_STRUCTURE, "entry_id", "generation")]
    if wrong or not over:
        raise choice("over", wrong[0] if wrong else None, _menu(results))
    by = [column for column in by if column not in over]
    units, arm = unit_rows(results, [*by, *over], outcome)
    keys = _keys(units, arm, by, over)
    rows = []
    for key, group in units.groupby(keys, sort=False) if keys else [((), units)] if len(units) else []:
        named = dict(zip(keys, key, strict=True)) | ({"arm": label_of(group)} if "structure" in by else {})
        rows += [named | row for row in _both(group, over, named, outcome)]
    rate = NAMES[outcome][0]
    columns = [*keys, *(["arm"] if "structure" in by else []), "average", rate, "low", "high", "n_groups", "n_entries"]
    columns += ["n_clusters", "n_unscored", "smallest_group", "largest_group", "interval", "unit", "note", "remark"]
    table = pd.DataFrame(rows, columns=list(dict.fromkeys([*columns, "reason"])))
    return stamped(sort_arms(table, [*(["failure_type"] if "failure_type" in keys else []), *keys, "average"]), results)


def _keys(units: pd.DataFrame, arm: list[str], by: list[str], over: list[str]) -> list[str]:
    """What a row is: as in ``failure_rate``, without the groups that are averaged over."""
    arm = [column for column in arm if column not in over]
    if "failure_type" in over:
        # Failure types have thresholds of their own; only several within one tell arms apart.
        if not (units.groupby("failure_type", sort=False)["threshold"].nunique() > 1).any():
            arm.remove("threshold")
        units = units.assign(failure_type="")  # settings that differ between failure types are not averaged over
    return [key for key in keys_of(units, arm, by) if key not in over]


def _both(group: pd.DataFrame, over: list[str], named: dict, outcome: str) -> list[dict]:
    """The macro and the micro row of one group of entries."""
    for _, kind in group.groupby("failure_type", sort=False):
        _same_k(kind, named)
    complete = group[group["complete"]]
    failed, entries = complete["failed"].to_numpy(dtype=float), complete["entry_id"].to_numpy()
    if "failure_type" in over:  # ids of two files may be the same; their entries are not
        entries = (complete["failure_type"].astype(str) + "\n" + complete["entry_id"].astype(str)).to_numpy()
    index, there = group.groupby(over, sort=False).ngroup(), group.groupby(over, sort=False).ngroups
    sizes = index[group["complete"]].value_counts()
    n = len(sizes)
    many = _plural(over, n)
    macro = mean_of_rates(failed, entries, index[group["complete"]].to_numpy())
    micro = (float(failed.mean()) if len(failed) else nan, *wilson_clustered(failed, entries))
    empty = f"{there - n} of {_plural(over, there)} without complete entries, in no mean" if n < there else ""
    unnamed = sum(bool(group[column].eq(NONE).any()) for column in over)
    shared = {
        "n_groups": n, "n_entries": len(failed), "n_clusters": len(set(entries)),
        "n_unscored": len(group) - len(failed), "smallest_group": int(sizes.min()) if n else 0,
        "largest_group": int(sizes.max()) if n else 0, "unit": "entry", "note": _meaning(group, outcome),
        "remark": said([empty, f"entries without a label are the group {NONE}" if unnamed else ""]),
        "reason": "" if n else "no entry has all its generations scored",
    }  # fmt: skip
    words = {"macro": f"macro: mean of {many}", "micro": f"micro: all entries of {many}"}
    clusters = ", entries as clusters" if shared["n_clusters"] < len(failed) else ""
    found = []
    for name, (mean, low, high) in {"macro": macro, "micro": micro}.items():
        rate = {NAMES[outcome][0]: mean, "low": low, "high": high}
        found.append({"average": words[name]} | rate | {"interval": _INTERVALS[name] + clusters} | shared)
    return found


def _same_k(group: pd.DataFrame, named: dict) -> None:
    generations = sorted(map(int, group["expected"].unique()))
    if len(generations) > 1:
        raise InputError(
            f"The group {named} averages arms with {generations} generations per entry, whose rates differ in kind; "
            "select the arms of one K first."
        )


def _meaning(group: pd.DataFrame, outcome: str) -> str:
    """What counts as a failure in each failure type, in words."""
    if outcome == "echo":
        return "echo: at least one generation repeats a memory"
    found = []
    kinds = group.groupby(["failure_type", "threshold", "high_is_bad", "expected"], sort=False).size().index
    for kind, threshold, high_is_bad, k in _in_order(kinds):
        limit = "no known threshold" if threshold == NONE else f"{'≥' if high_is_bad else '<'} {threshold:g}"
        found.append(f"{kind}: {'highest score' if k > 1 else 'score'} {limit} (K {k})")
    mixed = len({high_is_bad for _, _, high_is_bad, _ in kinds}) > 1
    return ", ".join(found) + ("; the scales run in opposite directions, the rates do not" if mixed else "")


def _in_order(kinds: Iterable[tuple]) -> list[tuple]:
    order = list(FAILURE_TYPES)
    return sorted(kinds, key=lambda kind: (order.index(kind[0]) if kind[0] in order else len(order), str(kind)))


def _plural(over: list[str], n: int) -> str:
    name = " × ".join(column.replace("_", " ") for column in over)
    return f"{n} {name}{'' if n == 1 else 's'}"


def _menu(results: pd.DataFrame) -> list[str]:
    usual = ("model", "failure_type", "memory_domain", "query_domain", "defence", "renderer", "n_memories")
    return [column for column in usual if column in results]
