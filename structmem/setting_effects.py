"""One structure under several settings of its sorting: each against the baseline, and against one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from .clusters import NOTHING, Arm, Effect, mean_effect, paired_arms
from .comparisons import ALL_MODELS, THESE_MODELS
from .errors import choice
from .interactions import score_columns, score_difference
from .intervals import bounded
from .optiontexts import option_words
from .outcomes import NONE, is_echo, sort_arms
from .pairing import said, shown_keys, with_numbers
from .resampling import few_entries
from .stamping import stamped
from .tables import bound, signed

SETTINGS = ("taxonomy", "structurer", "structurer_options")
_ENDS = (("", "_pp"), ("mean_score_", ""))  # names of the ends of intervals: of rates, of scores
_MOST = 200.0  # pp, of a difference of differences


def effects_by_setting(
    results: pd.DataFrame,
    setting: str = "taxonomy",
    reference: str | None = None,
    baseline: str = "flat",
    outcome: str | None = None,
) -> pd.DataFrame:
    """Effect of each structure under every taxonomy, structurer or set of options, and how far these effects differ.

    Parameters
    ----------
    results : DataFrame
        One row per generation.
    setting : 'taxonomy', 'structurer' or 'structurer_options'
    reference : str, optional
        The level that the others are held against; of options also as `option_words` calls it. Default: 'life11',
        'embedding', else the first in the results.
    baseline : str
        A structure in the results.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'.

    Returns
    -------
    DataFrame
        One row per model (several: 'all models' too, each weighing the same) × structure × level and what it is
        compared with (``against``): the baseline, and the reference. ``level`` in words;
        ``rate_arm``, ``rate_against`` in [0, 1] on the entries compared; ``difference_pp`` = level − ``against``, with
        ``low_pp``, ``high_pp`` (95 %) and ``interval`` (Tango's for one run against the baseline, else t over entries);
        ``mean_score_difference`` (echo: of the overlap, in [0, 1]) with ``mean_score_low``, ``mean_score_high``,
        ``mean_score_interval`` (t over entries); ``n_entries`` complete in all that is compared, ``n_runs``,
        ``n_models``; ``remark``, ``warning``.

    Raises
    ------
    InputError
        As ``paired_differences``; a setting that is none of the three or no column, a reference that does not occur.

    Notes
    -----
    A structure has the same baseline under every level, whose noise therefore cancels where levels are compared. An
    interval that holds 0 does not show that two levels are alike: its ends say how large a difference there may be.
    Draws of a partition, replicates, and the options of a structurer where structurers are compared, are runs, which
    weigh the same.
    """
    if setting not in SETTINGS:
        raise choice("setting", setting, SETTINGS)
    if setting not in results:
        raise choice(f"{setting} (a column)", setting, results.columns)
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    arms, keys = paired_arms(results, baseline, outcome)
    arms = [arm for arm in arms if arm.named["structure"] != baseline and arm.named[setting] != NONE]
    hidden = {setting, "arm", *({"structurer_options"} if setting == "structurer" else ())}
    alike = [key for key in keys if key not in hidden]
    groups: dict[tuple, dict[str, Arm]] = {}
    for arm in arms:
        group, level = groups.setdefault(tuple(arm.named[key] for key in alike), {}), arm.named[setting]
        group[level] = _together(group[level], arm) if level in group else arm
    named = {key: _level_words(setting, group) for key, group in groups.items()}  # options: within one structurer
    if reference is not None and groups and not any(_reference(reference, words) for words in named.values()):
        raise choice("reference", reference, dict.fromkeys(word for words in named.values() for word in words.values()))
    rows = [row for key, group in groups.items() for row in _rows(group, reference, named[key])]
    if not rows:
        return stamped(pd.DataFrame(), results)
    rows += _over_models(rows, [key for key in alike if key != "model"])
    table = pd.DataFrame(rows).drop(columns="effects").assign(baseline=baseline, outcome=outcome)
    levels = dict.fromkeys(word for words in named.values() for word in words.values())
    order = {level: place for place, level in enumerate(levels)}
    table = table.assign(
        new=(table["model"] == ALL_MODELS).astype(int), other=(table["against"] != baseline).astype(int),
        place=table["level"].map(order),
    )  # fmt: skip
    table = sort_arms(table, ["failure_type", "new", "model", "structure", "other", "place"])
    kept = [key for key in shown_keys(table, keys) if key not in (*hidden, "model", "failure_type")]
    first = ["model", "failure_type", "structure", *kept, "arm", "level", "against"]
    rest = [c for c in table if c not in (*first, *keys, "new", "other", "place")]
    return stamped(with_numbers(table[[*first, *rest]]), results)


def _together(one: Arm, other: Arm) -> Arm:
    """A structurer under several options: its runs under all of them."""
    words = said([one.remark, other.remark]), said([one.warning, other.warning])
    lost = one.n_without_pairs + other.n_without_pairs
    return replace(one, runs=one.runs + other.runs, n_without_pairs=lost, remark=words[0], warning=words[1])


def _level_words(setting: str, levels: Iterable[str]) -> dict[str, str]:
    levels = list(dict.fromkeys(levels))
    first = {"taxonomy": "life11", "structurer": "embedding"}.get(setting)
    levels = sorted(levels, key=lambda level: level != first)
    return option_words(levels) if setting == "structurer_options" else {level: level for level in levels}


def _reference(given: str | None, words: dict[str, str]) -> str | None:
    """The level that is meant, among those of one structure and structurer; None if it has no such level."""
    if given is None:
        return next(iter(words))
    return next((level for level, word in words.items() if given in (level, word)), None)


def _rows(group: dict[str, Arm], given: str | None, words: dict[str, str]) -> list[dict]:
    reference = _reference(given, words)
    rows, before = [], group.get(reference)
    for level in sorted(group, key=list(words).index):
        arm = group[level]
        named = arm.named | {"level": words[level], "estimand": THESE_MODELS}
        rate = {"rate_arm": arm.rates["arm"], "rate_against": arm.rates["baseline"]}
        rows.append(
            named | {"against": arm.baseline} | rate | _pp(arm.difference.estimate, arm.interval())
            | _score(score_difference(arm)) | _counts(arm, arm.n_entries)
            | {"effects": (arm.difference, score_difference(arm))}
        )  # fmt: skip
        if level == reference or before is None:
            continue
        row = named | {"against": words[reference]}
        entries = arm.entries & before.entries
        pp = score = NOTHING
        rate = dict.fromkeys(("rate_arm", "rate_against"), float("nan"))
        if entries:
            mine, theirs = arm.within(entries), before.within(entries)
            pp, score = mine.difference - theirs.difference, score_difference(mine) - score_difference(theirs)
            rate = {"rate_arm": mine.rates["arm"], "rate_against": theirs.rates["arm"]}
        low, high, interval = pp.interval()
        why = "" if entries else f"no entry is complete here and under {words[reference]}"
        counts = _counts(arm, len(entries), why, before)
        interval_of_both = (*bounded(low, high, _MOST), interval)
        rows.append(row | rate | _pp(pp.estimate, interval_of_both) | _score(score) | counts | {"effects": (pp, score)})
    return rows


def _pp(estimate: float, interval: tuple[float, float, str]) -> dict:
    return dict(zip(("difference_pp", "low_pp", "high_pp", "interval"), (estimate, *interval), strict=True))


def _score(effect: Effect) -> dict:
    return score_columns(effect, effect.interval())


def _counts(arm: Arm, n: int, why: str = "", other: Arm | None = None) -> dict:
    few = few_entries(n)
    return {
        "n_entries": n, "n_runs": len(arm.runs), "n_models": 1, "remark": said([arm.remark, why, few]),
        "warning": said([arm.warning, other.warning if other else ""]),
    }  # fmt: skip


def _over_models(rows: list[dict], keys: list[str]) -> list[dict]:
    """Per level and comparison the mean over models, where there are several."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in (*keys, "level", "against")), []).append(row)
    found = []
    for group in groups.values():
        if len(group) < 2:
            continue
        there = [row for row in group if row["n_entries"]]
        pp, score = (mean_effect([row["effects"][place] for row in there]) for place in (0, 1))
        low, high, interval = pp.interval()
        means = {name: pd.Series([row[name] for row in there]).mean() for name in ("rate_arm", "rate_against")}
        counts = {"n_entries": min((row["n_entries"] for row in there), default=0), "n_models": len(there)}
        counts |= {"n_runs": sum(row["n_runs"] for row in there), "warning": said(row["warning"] for row in group)}
        lost = len(group) - len(there)
        remark = f"{lost} of {len(group)} models without pairs" if lost else ""
        found.append(
            group[0] | {"model": ALL_MODELS, "remark": remark} | means
            | _pp(pp.estimate, (*bounded(low, high, _MOST), interval)) | _score(score) | counts
        )  # fmt: skip
    return found


def setting_reading(table: pd.DataFrame) -> None:
    """Print what a table of `effects_by_setting` supports: each level against the baseline, then against another."""
    if not len(table):
        print("No structure was sorted, or it has no baseline: there is nothing to compare.")
        return
    echo = table["outcome"].iloc[0] == "echo"
    if echo:
        print("Scored by the offline echo measure (overlap of words): these numbers show the pipeline, not an effect.")
    value = "mean overlap" if echo else "mean score"
    named = [
        name for name in table.columns[: table.columns.get_loc("arm")] if name not in ("threshold", "n_generations")
    ]
    for key, rows in table.groupby(named, sort=False):
        print(f"{', '.join(map(str, key))}: {int(rows['n_entries'].min())} entries.")
        for row in rows.itertuples():
            rate = _said(row.difference_pp, row.low_pp, row.high_pp, signed, " pp")
            score = _said(row.mean_score_difference, row.mean_score_low, row.mean_score_high, _thousandths, "")
            print(f"  {row.level} against {row.against}: {'echo rate' if echo else 'rate'} {rate}; {value} {score}")
    held = table[table["against"] != table["baseline"]]
    ends = [(held[f"{name}low{unit}"] > 0) | (held[f"{name}high{unit}"] < 0) for name, unit in _ENDS]
    apart = int((ends[0] | ends[1]).sum())
    if len(held):
        print(f"{apart} of {len(held)} comparisons between levels have an interval that excludes 0, unadjusted.")
        if not apart:
            print("That does not show that the levels are alike: the intervals say how much they may differ.")


def _thousandths(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def _said(value: float, low: float, high: float, number, unit: str) -> str:
    if pd.isna(value):
        return "not available"
    if pd.isna(low):
        return f"{number(value)}{unit} (no interval: nothing varies)"
    ends = f"[{bound(low)}, {bound(high)}]" if unit else f"[{number(low)}, {number(high)}]"
    return f"{number(value)}{unit} {ends}, {'excludes 0' if low > 0 or high < 0 else 'holds 0'}"
