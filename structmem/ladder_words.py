"""What the ladder of controls does and does not support, in sentences made from its numbers."""

from __future__ import annotations

from math import isnan

import pandas as pd

from .comparisons import ALL_MODELS
from .control_contrasts import LADDER, NOISE, OTHER, SIDE, WHOLE
from .errors import InputError
from .outcomes import setting_words
from .tables import bound, signed

_MINUS = "−"
_NEEDED = ("part", "adds", "arm", "baseline", "difference_pp", "holm_p", "mean_score_difference", "mean_score_holm_p")


def ladder_reading(table: pd.DataFrame) -> None:
    """Print what a table of `ladder` says of order, heading, grouping, names and depth: found or not, equally plainly.

    A step counts as shown where Holm's p over the four steps is below .05, another contrast where its interval excludes
    0 (side contrasts are read one by one). With several models the mean over them is read.

    Parameters
    ----------
    table : DataFrame
        As made by `ladder`.

    Raises
    ------
    InputError
        For another table.
    """
    if not isinstance(table, pd.DataFrame) or (lacking := [name for name in _NEEDED if name not in table]):
        raise InputError(f"ladder_reading takes the table of ladder, got one without {lacking[:3]}.")
    if not len(table):
        print("No results, nothing to read.")
        return
    echo = table["outcome"].eq("echo").any()
    if echo:
        print("Scored by the offline echo measure (overlap of words): these numbers show the pipeline, not an effect.")
    if table["arm"].str.contains("(embedding)", regex=False).any():
        print("Sorted by an embedding model: not the paper's method.")
    if (table["model"] == ALL_MODELS).any():
        table = table[table["model"] == ALL_MODELS]
    settings = list(table.columns[: table.columns.get_loc("model")])
    for key, rows in table.groupby(settings, sort=False, dropna=False):
        named = dict(zip(settings, key, strict=True))
        more = setting_words(named, [c for c in settings if c != "failure_type" and table[c].nunique() > 1], table)
        print(", ".join([rows["model"].iloc[0], named["failure_type"], *more]) + ":")
        _read(rows.to_dict("records"), "mean overlap" if echo else "mean score")


def _read(rows: list[dict], score: str) -> None:
    parts = {part: [row for row in rows if row["part"] == part] for part in (LADDER, WHOLE, SIDE, OTHER, NOISE)}
    compared = [row for row in rows if not isnan(row["difference_pp"])]
    if compared and all(row["difference_pp"] == 0 and isnan(row["low_pp"]) for row in compared):
        print(f"  The rate is the same in every arm and entry, so it says nothing; what is left is the {score}.")
    for row in parts[WHOLE]:
        print(f"  {row['arm']} against {row['baseline']}, {_n(row)}: {_numbers(row, score)}.")
        print(f"    {_verdict(row, score)}.")
        if row["remark"]:
            print(f"    {_sentence(row['remark'])}")
    if parts[LADDER]:
        print("  Of this, step by step:")
    for row in parts[LADDER]:
        shares = _shares(row, score)
        print(f"    {row['adds']}: {_numbers(row, score)}; {_verdict(row, score, by_holm=True)}{shares}")
    for part, title in ((SIDE, "Beside it"), (OTHER, "Other memories, not another layout"), (NOISE, "Noise")):
        if parts[part]:
            print(f"  {title}:")
        for row in parts[part]:
            verdict = "two runs of the same arm" if part == NOISE else _verdict(row, score)
            draws = f" (mean of {row['n_draws']} draws)" if row["n_draws"] > 1 else ""
            name = row["adds"] if part == NOISE else f"{row['adds']}, {row['arm']} against {row['baseline']}"
            print(f"    {name}{draws}: {_numbers(row, score)}; {verdict}")
            if row["remark"]:
                print(f"      {_sentence(row['remark'])}")
    for row in parts[OTHER]:
        if row["baseline"] == "flat" and row["adds"] == "no memories" and row["n_entries"] and not _found(row):
            print("  Without any memories the answers are not distinguishable from those to the flat list, so")
            print("  nothing here shows a use of memories that a layout could have taken away.")
    read = len(parts[SIDE]) + len(parts[OTHER])
    if read > 1:
        print(f"  The steps are adjusted for one another (Holm); the {read} other contrasts are read one by one.")
    _left_open(parts[LADDER], score)


def _left_open(steps: list[dict], score: str) -> None:
    """What the steps' intervals still allow: absence of evidence is none of absence."""
    ends = {
        name: [abs(row[column]) for row in steps for column in columns if not isnan(row[column])]
        for name, columns in (("pp", ("low_pp", "high_pp")), ("score", ("mean_score_low", "mean_score_high")))
    }
    allowed = [f"{max(ends['pp']):.0f} pp"] if ends["pp"] else []
    allowed += [f"{max(ends['score']):.2g} of the {score}"] if ends["score"] else []
    if allowed:
        print(f"  A step that is not shown may still be real: the intervals reach to {' and '.join(allowed)}.")


def _n(row: dict) -> str:
    k = row["n_generations"]
    models = f", {row['n_models']} models" if row["n_models"] > 1 else ""
    return f"{row['n_entries']} entries{models}, {k} generation{'' if k == 1 else 's'}"


def _numbers(row: dict, score: str) -> str:
    return f"{_pp(row)}; {score} {score_text(row)}"


def _pp(row: dict) -> str:
    if isnan(row["difference_pp"]):
        return "no rate to compare"
    ends = "" if isnan(row["low_pp"]) else f" [{bound(row['low_pp'])}, {bound(row['high_pp'])}]"
    return f"{signed(row['difference_pp'])} pp{ends}"


def score_text(row: dict) -> str:
    """The difference of the mean score with its interval, to three decimals."""
    values = [row[f"mean_score_{name}"] for name in ("difference", "low", "high")]
    if isnan(values[0]):
        return "–"
    number, *ends = (f"{round(value, 3) + 0.0:+.3f}".replace("-", _MINUS) for value in values)
    return number if isnan(values[1]) else f"{number} [{', '.join(ends)}]"


def _found(row: dict) -> bool:
    """Whether the interval of the rate or of the mean score excludes 0."""
    ends = [(row["low_pp"], row["high_pp"]), (row["mean_score_low"], row["mean_score_high"])]
    return any(low > 0 or high < 0 for low, high in ends)


def _verdict(row: dict, score: str, by_holm: bool = False) -> str:
    """What is shown, of the rate and of the mean score."""
    measures = {"the rate": ("low_pp", "high_pp", "holm_p")}
    measures[f"the {score}"] = ("mean_score_low", "mean_score_high", "mean_score_holm_p")
    words = []
    for what, (low, high, holm) in measures.items():
        if not isnan(row[low]):
            words.append((what, row[holm] < 0.05 if by_holm else row[low] > 0 or row[high] < 0))
    if not words:
        return "no variation over entries, so nothing can be said" if row["n_entries"] else "nothing to compare"
    found = [what for what, shown in words if shown]
    lost = [what for what, shown in words if not shown]
    said = [f"{' and '.join(found)} differ{'s' if len(found) == 1 else ''}"] if found else []
    said += [f"{' and '.join(lost)} {'is' if len(lost) == 1 else 'are'} not distinguishable from 0"] if lost else []
    return ", ".join(said)


def _shares(row: dict, score: str) -> str:
    """A step's share of the whole, where the whole is shown."""
    said = []
    for what, column in (("rate", "gain_share"), (score, "mean_score_gain_share")):
        share, low, high = (row[f"{column}{end}"] for end in ("", "_low", "_high"))
        if not isnan(share):
            numbers = [f"{100 * value:.0f}".replace("-", _MINUS) for value in (share, low, high)]
            said.append(f"{numbers[0]} % [{numbers[1]}, {numbers[2]}] of the {what}'s")
    return f"; share of the whole: {', '.join(said)}" if said else ""


def _sentence(remark: str) -> str:
    return f"{remark[0].upper()}{remark[1:]}."
