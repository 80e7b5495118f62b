"""What effects under several renderers, placements or defences do and do not show, in sentences from the tables."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import pandas as pd
from scipy import stats

from .adjusting import COVARIATES
from .columns import check_table
from .comparisons import ALL_MODELS
from .errors import InputError
from .interactions import CONDITIONAL, level_words
from .outcomes import display_structure
from .tables import bound, signed

_RATE = ("difference_pp", "low_pp", "high_pp")
_SCORE = ("mean_score_difference", "mean_score_low", "mean_score_high")
_UNSEEN = "not shown"


def factor_reading(
    effects: pd.DataFrame, adjusted: pd.DataFrame | None = None, shifts: pd.DataFrame | None = None
) -> None:
    """Print what conditional effects and interactions show, per failure type, and how much of that chance would.

    Parameters
    ----------
    effects : DataFrame
        As made by ``conditional_effects``; rows of ``three_factor_interactions`` may be appended. Rows over models are
        read where there are several models.
    adjusted : DataFrame, optional
        As made by ``layout_effects``.
    shifts : DataFrame, optional
        As made by ``position_shifts``.

    Raises
    ------
    InputError
        A table without the columns that are read.
    """
    for what, table, needed in (
        ("effects", effects, ("effect", "arm", "outcome", "estimand", *_RATE, *_SCORE)),
        ("adjusted", adjusted, ("term", "factors", "adjusted_for", "measure")),
        ("shifts", shifts, ("structure", "structurer", "mean_position", "mean_moved")),
    ):
        if table is not None:
            check_table(table, what)
            if len(table) and (lacking := [name for name in needed if name not in table]):
                raise InputError(f"{what} lack the columns {lacking}; see factor_reading for what makes them.")
    lines = list(_effects(effects)) if len(effects) else ["No arm has a baseline to be compared with."]
    if shifts is not None:
        lines += _shifts(shifts)
    if adjusted is not None:
        lines += _adjusted(adjusted)
    print("\n".join(lines))


def _effects(effects: pd.DataFrame) -> Iterator[str]:
    over = effects["model"].eq(ALL_MODELS)
    several = effects.loc[~over, "model"].nunique() > 1
    read = effects[over & effects["unit"].eq("entry")] if several else effects[~over]
    what = "mean echo overlap" if read["outcome"].eq("echo").any() else "mean score"
    for failure_type, table in read.groupby("failure_type", sort=False):
        n = sorted(set(table["n_entries"]))
        k = sorted(set(map(int, table["n_generations"])))
        counted = f"{'–'.join(map(str, dict.fromkeys((n[0], n[-1]))))} entries, {'/'.join(map(str, k))}"
        yield f"{table['model'].iloc[0]}, {failure_type}: {counted} {'answer' if k == [1] else 'answers'} for each."
        for title, part in (
            ("Effects against the baseline", table[table["effect"] == CONDITIONAL]),
            ("Interactions", table[table["effect"] != CONDITIONAL]),
        ):
            if len(part):
                yield from _counted(title, part, what)
        yield from _power(table[table["effect"] != CONDITIONAL], what)
    yield from _both(read[read["effect"] == CONDITIONAL], what)


def _both(part: pd.DataFrame, what: str) -> Iterator[str]:
    """How many arms are shown to move in entries where memories are unwanted, and in entries where they are wanted."""
    lower = part["mean_score_high"] < 0  # fewer memories used, on every scale and by echo
    wanted = part["failure_type"].eq("beneficial_memory_usage")
    unwanted = part["failure_type"].eq("cross_domain")
    if wanted.any() and unwanted.any():
        yield (
            f"The {what} is shown to be lower in {int((lower & unwanted).sum())} of {int(unwanted.sum())} comparisons"
            f" in cross_domain entries, where lower is better, and in"
            f" {int((lower & wanted).sum())} of {int(wanted.sum())} in beneficial ones, where it is worse."
        )


def _counted(title: str, part: pd.DataFrame, what: str) -> Iterator[str]:
    """How many intervals exclude 0 on both scales, and which."""
    fewer = ", fewer where rates are near 0 or 100 %"
    for scale, names in (("rate", _RATE), (what, _SCORE)):
        rows = part[part[names[1]].notna()]
        found = rows[(rows[names[1]] > 0) | (rows[names[2]] < 0)]
        if not len(rows):
            yield f"{title}, {scale}: no interval in {len(part)} rows, nothing varies or too few entries are complete."
            continue
        yield (
            f"{title}, {scale}: {len(found)} of {len(rows)} intervals exclude 0"
            f" (without any effect about {0.05 * len(rows):.1f} would{fewer if scale == 'rate' else ''})."
        )
        for row in found.to_dict("records"):
            yield f"  {_name(row)}: {_number(row, names)}"


def _name(row: dict) -> str:
    levels = [level_words(c, row[c]) for c in ("defence", "renderer", "placement") if isinstance(row.get(c), str)]
    if row["effect"] == CONDITIONAL or not isinstance(row.get("factor"), str):
        return f"{row['arm']}, {', '.join(levels)}"
    own = level_words(row["factor"], row[row["factor"]])
    beside = [f"in {level}" for level in levels if level != own]
    return ", ".join([f"{row['arm']}, {own} against {row['reference']}", *beside])


def _number(row: dict, names: tuple[str, str, str]) -> str:
    values = [row[name] for name in names]
    if names == _RATE:
        return f"{signed(values[0])} pp [{bound(values[1])}, {bound(values[2])}]"
    return points(*values)


def points(value: float, low: float, high: float) -> str:
    """A difference of scores with its interval, signed, to three digits."""
    shown = [f"{round(one, 3) + 0.0:+.3f}".replace("-", "−") for one in (value, low, high) if not isnan(one)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]" if len(shown) == 3 else shown[0] if shown else "–"


def _power(part: pd.DataFrame, what: str) -> Iterator[str]:
    """The interaction of mean scores that so many entries would find with 80 % power."""
    rows = part[part[_SCORE[1]].notna() & (part["n_entries"] > 1)]
    if not len(rows):
        return
    half = (rows[_SCORE[2]] - rows[_SCORE[1]]) / 2
    error = half / stats.t.ppf(0.975, rows["n_entries"] - 1)
    least = (error * (stats.norm.ppf(0.975) + stats.norm.ppf(0.8))).median()
    yield f"An interaction of about {least:.3f} in the {what} is what so many entries find with 80 % power."
    yield "An interval that holds 0 shows neither an interaction nor that there is none."


def _shifts(shifts: pd.DataFrame) -> Iterator[str]:
    baseline = shifts[shifts["mean_moved"].eq(0)]
    for row in shifts[shifts["moved_low"].notna()].to_dict("records"):
        apart = row["moved_low"] > 0 or row["moved_high"] < 0
        where = "towards the start" if row["mean_moved"] < 0 else "towards the end"
        moved = points(row["mean_moved"], row["moved_low"], row["moved_high"])
        name = display_structure(row["structure"], row["structurer"])
        counts = f"{row['n_entries']} entries; up in {row['n_up']}, down in {row['n_down']}"
        said = f"{where}, so layout and place change together" if apart else "not shown to move them on average"
        yield f"{name} moves the memories labelled as the memory_domain by {moved} of the context ({counts}): {said}."
    lost = shifts["n_left_out"].max() if len(shifts) else 0
    if lost:
        yield f"Up to {lost} entries have no position: {shifts.loc[shifts['n_left_out'].idxmax(), 'reasons']}."
    if len(baseline) and not shifts["moved_low"].notna().any():
        yield "How far a layout moves the labelled memories is not available."


def _adjusted(adjusted: pd.DataFrame) -> Iterator[str]:
    suffix = "_pp" if adjusted["measure"].eq("rate").any() else ""
    names = [[f"{kind}{end}{suffix}" for end in ("", "_low", "_high")] for kind in ("unadjusted", "adjusted")]
    alone = adjusted[adjusted["factors"].eq("structure")]
    for row in alone.to_dict("records"):
        before, after = (points(*(row[name] for name in kind)) for kind in names)
        unit = " pp" if suffix else ""
        yield (
            f"{row['model']}, {row['term']} at the references: {before}{unit} as it is,"
            f" {after}{unit} adjusted for {row['adjusted_for'].replace('_', ' ')}"
            f" ({row['n_entries']} entries, {row['n_rows']} answers, {row['n_left_out']} left out)."
        )
    if adjusted["term"].isin([COVARIATES[name].words for name in ("tokens_added", "position")]).any():
        yield "Tokens and place are parts of the layout: what is left beside them is no layout that anybody uses."
    if adjusted["term"].eq(COVARIATES["answer_length"].words).any():
        yield "Answer length lies between layout and outcome: adjusting for it does not answer what the layout does."
