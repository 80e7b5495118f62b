"""Figures in plain words: what is drawn, how many entries, and the range, taken from the table that is drawn."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from .tables import signed


def n_words(table: pd.DataFrame, column: str = "n_entries", what: str = "entries") -> str:
    """How many entries stand behind each mark: 'n = 200 entries', 'n = 180–200 entries', or empty if not told."""
    if column not in table or not table[column].notna().any():
        return ""
    least, most = int(table[column].min()), int(table[column].max())
    return f"n = {least:,} {what}" if least == most else f"n = {least:,}–{most:,} {what}"


def interval_words(table: pd.DataFrame) -> str:
    """The intervals' names: '95 % intervals (Wilson)'; empty where no row has one."""
    bounds = next((pair for pair in (("low", "high"), ("low_pp", "high_pp")) if set(pair) <= set(table)), None)
    if bounds is None or not table[list(bounds)].notna().all(axis=1).any():
        return ""
    there = table[table[list(bounds)].notna().all(axis=1)]
    names = [str(name) for name in there["interval"].dropna().unique()] if "interval" in there else []
    names = [name for name in names if not any(other != name and other.startswith(name) for other in names)]
    return f"95 % intervals ({' / '.join(names)})" if 0 < len(names) <= 2 else "95 % intervals"


def data_words(table: pd.DataFrame) -> str:
    """Whether a table holds simulated results or published rates; empty for other results."""
    marked = ("model", "judge", "structurer", "analysis_note")
    found = [table[name].dropna().astype(str) for name in marked if name in table]
    simulated = any(values.str.contains("simulated").any() for values in found)
    words = ["simulated results"] if simulated else []
    return " / ".join([*words, *(["published rates"] if is_published(table) else [])])


def is_published(table: pd.DataFrame) -> bool:
    """Whether rows are rates that others published, or computed from them: such rows hold no entries."""
    return "source" in table or ("analysis" in table and bool(table["analysis"].eq("descriptive").any()))


def analysis_words(table: pd.DataFrame) -> str:
    """What the rows are: simulated or published; confirmatory (if only some are, which), exploratory or descriptive."""
    kinds = list(map(str, table["analysis"].dropna().unique())) if "analysis" in table else []
    words = " / ".join(kinds)
    if "confirmatory" in kinds and len(kinds) > 1:
        rest = " / ".join(kind for kind in kinds if kind != "confirmatory")
        words = f"confirmatory: {_which_confirmatory(table)}; the rest {rest}"
    return "; ".join(filter(None, [data_words(table), words]))


def _which_confirmatory(table: pd.DataFrame) -> str:
    """Names of the confirmatory rows: arm and estimand, and what else it takes to tell them from the others."""
    shown = table.assign(estimand=table["estimand"].fillna("")) if "estimand" in table else table
    is_confirmatory = shown["analysis"].eq("confirmatory")
    names = [name for name in ("arm", "estimand") if name in shown]
    for more in ("model", "defence", "replicate", "k", None):
        rows = list(map(tuple, shown[names].astype(str).to_numpy()))
        planned = list(dict.fromkeys(row for row, yes in zip(rows, is_confirmatory, strict=True) if yes))
        if not set(planned) & {row for row, yes in zip(rows, is_confirmatory, strict=True) if not yes}:
            break
        names += [more] if more in shown else []
    return " + ".join(", ".join(filter(None, row)) for row in planned)


def range_words(table: pd.DataFrame, column: str, names: Iterable[str], unit: str = "%", scale: float = 100) -> str:
    """The lowest and the highest value with the names of their rows, as a sentence."""
    found = table[table[column].notna()]
    if not len(found):
        return "No row is scored."
    number = signed if unit == "pp" and "difference" in column else "{:.1f}".format
    low, high = (found.loc[getattr(found[column], end)()] for end in ("idxmin", "idxmax"))
    if low[column] == high[column]:
        return f"All values are {number(scale * low[column])} {unit}."
    ends = [f"{number(scale * row[column])} {unit} ({', '.join(str(row[n]) for n in names)})" for row in (low, high)]
    return f"The lowest is {ends[0]}, the highest {ends[1]}."


def missing_words(table: pd.DataFrame, column: str) -> str:
    """How many rows have no value, as a sentence; empty where all have one."""
    lost = int(table[column].isna().sum())
    return f"{lost} of {len(table)} rows have no value, which is shown." if lost else ""


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names in a sentence; of many, the first few and how many there are."""
    names = list(dict.fromkeys(map(str, names)))
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return ", ".join(names)


def rates_alt(table: pd.DataFrame, column: str, what: str, note: str = "") -> str:
    """Points with intervals of rates, by model and arm."""
    return _sentences(
        f"Points{_with(interval_words(table))}: {what}, for {listed(table['model'])}, under {listed(table['arm'])}.",
        _n(table, "point"),
        range_words(table, column, ("model", "arm")),
        missing_words(table, column),
        note,
    )


def forest_alt(table: pd.DataFrame, pooled: pd.DataFrame, what: str, baseline: str, paired: bool, ends: str) -> str:
    """Differences by model and arm, and the rows pooled over models."""
    lines = []
    for row in pooled.to_dict("records"):
        if not pd.isna(row["difference_pp"]):
            span = "" if pd.isna(row["low_pp"]) else f" [{signed(row['low_pp'])}, {signed(row['high_pp'])}]"
            estimand = f", {row['estimand']}" if row.get("estimand") else ""
            lines.append(f"{row['arm']}{estimand}: {signed(row['difference_pp'])} pp{span}")
    shown = table if len(table) else pooled
    return _sentences(
        f"Forest plot{_with(interval_words(shown))}: {what}, {'paired ' * paired}difference from {baseline} in "
        f"percentage points, for {listed(shown['model'])}, under {listed(shown['arm'])}; below zero means lower.",
        _n(shown, "row", "n_pairs" if "n_pairs" in shown else "n_entries"),
        range_words(shown, "difference_pp", ("model", "arm"), "pp", 1),
        missing_words(shown, "difference_pp"),
        f"Over all models ({ends or 'diamonds'}): {'; '.join(lines)}." if lines else "",
    )


def tradeoff_alt(leaks: pd.DataFrame, uses: pd.DataFrame, span: float, words: str) -> str:
    """Leakage against beneficial-memory failures, a panel per model."""
    return _sentences(
        f"One panel for each of {listed(leaks['model'])}: leakage on the horizontal axis against beneficial-memory "
        f"failures on the vertical axis, both{_with(interval_words(leaks))}, for {listed(leaks['arm'])}; down and left "
        f"is better. Every panel spans {span:g} percentage points.",
        f"Leakage: {n_words(leaks) or 'n not given'}. {range_words(leaks, 'failure_rate', ('model', 'arm'))}",
        f"Beneficial-memory failures: {n_words(uses) or 'n not given'}. "
        f"{range_words(uses, 'failure_rate', ('model', 'arm'))}",
        words,
    )


def heat_alt(table: pd.DataFrame, column: str, what: str, blank: int, prints_n: bool) -> str:
    """A grid of rates by structure and defence."""
    return _sentences(
        f"Heat map: {what}, for {listed(table['model'])}; columns {listed(table['arm'])}, rows (defences) "
        f"{listed(table['defence'])}. Each cell prints its rate{' and n' * prints_n}; darker means more.",
        _n(table, "cell"),
        range_words(table, column, ("model", "arm", "defence")),
        f"{blank} cells are blank because there is no rate." if blank else "",
    )


def scores_alt(arms: pd.DataFrame, what: str, rule: str) -> str:
    """Stacked bars of the shares of scores, by model and arm."""
    lost = int(arms["n_unscored"].sum()) if "n_unscored" in arms else 0
    modes = [
        f"{row['model']}, {row['arm']}: {max(row['shares'], key=row['shares'].get)}"
        for row in arms.to_dict("records")
        if all(share == share for share in row["shares"].values())
    ]
    return _sentences(
        f"Stacked bars: shares of the judge's scores of single answers, {what}, for {listed(arms['model'])}, under "
        f"{listed(arms['arm'])}. {rule}",
        _n(arms, "bar"),
        f"{lost} entries are left out because an answer is not scored." if lost else "",
        f"The most frequent score: {'; '.join(modes[:8])}{' …' if len(modes) > 8 else ''}." if modes else "",
    )


def curve_alt(table: pd.DataFrame, column: str, what: str, counts: str) -> str:
    """Rate by number of generations, a line per arm."""
    most = table[table["k"] == table["k"].max()]
    ks = f"from {int(table['k'].min())} to {int(table['k'].max())}"
    return _sentences(
        f"Lines{_with(interval_words(table))}: {what} over K, the number of generations of which the {counts} counts, "
        f"{ks}, for {listed(table['model'])}, under {listed(table['arm'])}.",
        _n(table, "point"),
        f"At the largest K: {range_words(most, column, ('model', 'arm'))}",
    )


def power_alt(table: pd.DataFrame, own_n: int | None, target: float) -> str:
    """Power by number of entries, a line per true difference."""
    lines = []
    for difference, group in table.groupby("difference_pp", sort=True):
        enough = group[group["power"] >= target]
        reached = f"from n = {int(enough['n_entries'].min())} entries" if len(enough) else "nowhere"
        lines.append(f"{difference:g} pp reaches it {reached}")
    return _sentences(
        f"Lines: power of a paired test over n, the number of entries, from {int(table['n_entries'].min())} to "
        f"{int(table['n_entries'].max())}, one line per true difference; a line marks {100 * target:g} %.",
        f"Of the sizes drawn, {'; '.join(lines)}.",
        f"n = {own_n:,} is marked." if own_n else "",
    )


def marks_alt(table: pd.DataFrame, column: str, what: str, names: tuple[str, ...], unit: str, scale: float = 1) -> str:
    """Markers by arm and one more name: shares of memories, or tokens."""
    return _sentences(
        f"Markers: {what}, under {listed(table['arm'])}.",
        n_words(table) and f"{n_words(table)}.",
        range_words(table, column, names, unit, scale),
    )


def _n(table: pd.DataFrame, each: str, column: str = "n_entries") -> str:
    return f"{n_words(table, column) or 'n not given'} per {each}."


def _with(intervals: str) -> str:
    return f" with {intervals}" if intervals else ""


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)
