"""Tables as text that is the same on every machine: rates with intervals, signed pp, dashes with a reason."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Callable, Hashable, Iterable

import numpy as np
import pandas as pd

from .data import FAILURE_TYPES
from .errors import InputError, choice
from .optiontexts import option_words

DASH = "–"
_MINUS = "−"
# An estimate and the columns of its interval, shown as one column.
_INTERVALS = {
    "failure_rate": ("low", "high"), "echo_rate": ("low", "high"), "difference_pp": ("low_pp", "high_pp"),
    "reduction_pp": ("low_pp", "high_pp"), "hit": ("low", "high"), "fr_at_1": ("fr_at_1_low", "fr_at_1_high"),
    "echo_at_1": ("echo_at_1_low", "echo_at_1_high"), "fr_at_k": ("low", "high"),
    "echo_at_k": ("low", "high"), "share": ("low", "high"), "common_failure_rate": ("common_low", "common_high"),
    "common_echo_rate": ("common_low", "common_high"),
    "sensitivity": ("sensitivity_low", "sensitivity_high"), "specificity": ("specificity_low", "specificity_high"),
    "corrected_rate": ("corrected_low", "corrected_high"), "rate_naming": ("low", "high"),
    "log_odds": ("log_odds_low", "log_odds_high"), "odds_ratio": ("odds_low", "odds_high"),
    "at_1_difference_pp": ("at_1_low_pp", "at_1_high_pp"),
    "leakage_difference_pp": ("leakage_low_pp", "leakage_high_pp"),
    "beneficial_difference_pp": ("beneficial_low_pp", "beneficial_high_pp"),
    "shift_difference_pp": ("shift_low_pp", "shift_high_pp"), "coefficient": ("low", "high"),
    "unadjusted": ("unadjusted_low", "unadjusted_high"), "adjusted": ("adjusted_low", "adjusted_high"),
    "unadjusted_pp": ("unadjusted_low_pp", "unadjusted_high_pp"),
    "adjusted_pp": ("adjusted_low_pp", "adjusted_high_pp"), "mean_moved": ("moved_low", "moved_high"),
    "mean_score_difference": ("mean_score_low", "mean_score_high"), "mean_difference": ("mean_low", "mean_high"),
    "superiority": ("superiority_low", "superiority_high"), "effect": ("effect_low", "effect_high"),
    "alpha": ("alpha_low", "alpha_high"), "kappa": ("kappa_low", "kappa_high"),
    "macro_f1": ("macro_f1_low", "macro_f1_high"), "accuracy": ("accuracy_low", "accuracy_high"),
    "above_majority_pp": ("above_majority_low_pp", "above_majority_high_pp"),
    "primary_accuracy": ("primary_accuracy_low", "primary_accuracy_high"),
    "misclassified_share": ("misclassified_low", "misclassified_high"),
    "gain_share": ("gain_share_low", "gain_share_high"),
    "mean_score_gain_share": ("mean_score_gain_share_low", "mean_score_gain_share_high"),
    "net_better_pp": ("net_better_low_pp", "net_better_high_pp"),
    "ari": ("low", "high"), "variance": ("low", "high"), "tokens_added": ("tokens_low", "tokens_high"),
    **{f"{side}_{what}": (f"{side}_low", f"{side}_high") for side in ("cross_domain", "beneficial")
       for what in ("rate", "mean")},
}  # fmt: skip
_NOTES = ("reason", "remark", "warning", "note", "test", "adjustment", "margin_reason", "analysis_note")
# Shown on request only: a table has to fit a page.
_ASIDE = ("interval", "outcome", "baseline", "plan_hash", "exact_low", "exact_high", "exact_interval", "harmed")
_WORDS = {
    "n_pairs": "pairs", "n_left_out": "left out", "n_entries": "n", "n_unscored": "unscored", "fr_at_1": "FR@1",
    "mcnemar_p": "McNemar p", "sd_note": "sd over", "n_only_baseline_fails": "only baseline fails",
    "n_only_arm_fails": "only arm fails", "n_only_baseline_echoes": "only baseline echoes",
    "n_only_arm_echoes": "only arm echoes", "difference_pp": "difference", "reduction_pp": "reduction", "sd_pp": "sd",
    "relative_change_pct": "relative change", "n_scored": "rows scored", "n_scored_baseline": "baseline's rows scored",
    "reasons_baseline": "baseline's reasons", "n_family": "in family",
    "macro_f1": "macro-F1", "n_misclassified": "misclassified (n)",
    "gain_share": "share of the whole", "mean_score_gain_share": "share of the whole (mean score)",
    "mean_score_holm_p": "holm p (mean score)", "draw_sd_pp": "sd over draws",
    "draw_sd_mean_score": "sd over draws (mean score)",
    "superiority": "P(better)", "sign_p": "sign test p", "n_cross_domain": "cross-domain entries",
    "n_beneficial": "beneficial entries", "fr_at_k": "FR@k", "at_1_difference_pp": "difference at K = 1",
}  # fmt: skip

# Differences of means, which are small for overlaps.
_SMALL = {
    "mean_difference", "mean_score_difference", "draw_sd_mean_score", "unadjusted", "adjusted", "change", "mean_moved",
}  # fmt: skip
# Estimates that are neither shares nor differences of shares.
_AS_THEY_ARE = {
    "log_odds", "odds_ratio", "coefficient", "mean_score_difference", "mean_difference", "superiority", "effect",
    "alpha", "kappa", "macro_f1", "unadjusted", "adjusted", "mean_moved", "ari", "variance", "tokens_added",
}  # fmt: skip
# Sizes, which have no direction.
_UNSIGNED = {
    "sd_pp", "draw_sd_pp", "tau_pp",
    "noise_sd_pp", "noise_range_pp", "detectable_pp", "detectable_normal_pp", "margin_pp",
    "smallest_margin_pp", "smallest_equivalence_pp", "range_pp",
}  # fmt: skip


class Table:
    """A table ready to print: ``str()`` gives aligned text, notebooks show the same cells as HTML."""

    def __init__(self, header: list[str], cells: list[list[str]], caption: str, notes: list[str]):
        self.header, self.cells, self.caption, self.notes = header, cells, caption, notes

    def __str__(self) -> str:
        widths = [max(map(_width, column)) for column in zip(self.header, *self.cells, strict=True)]
        right = [self.is_number(position) for position in range(len(self.header))]
        lines = [self._line(self.header, widths, right), "  ".join("-" * width for width in widths)]
        lines += [self._line(row, widths, right) for row in self.cells] or ["(no rows)"]
        lines += [f"[{number}] {note}" for number, note in enumerate(self.notes, start=1)]
        return "\n".join([*([self.caption] if self.caption else []), *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def row(cells: list[str], tag: str) -> str:
            align = ["right" if self.is_number(position) else "left" for position in range(len(cells))]
            style = [f'<{tag} style="text-align:{side}">' for side in align]
            made = (f"{start}{html.escape(cell)}</{tag}>" for start, cell in zip(style, cells, strict=True))
            return f"<tr>{''.join(made)}</tr>"

        caption = "".join(f"<p>{html.escape(line)}</p>" for line in self.caption.splitlines())
        notes = "".join(f"<br>[{number}] {html.escape(note)}" for number, note in enumerate(self.notes, start=1))
        body = "\n".join(row(cells, "td") for cells in self.cells)
        head = row(self.header, "th")
        table = f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
        return f"{caption}{table}{notes and f'<p>{notes[4:]}</p>'}"

    def is_number(self, position: int) -> bool:
        """Whether a column holds numbers, which are aligned at the right."""
        cells = [row[position] for row in self.cells if row[position] != DASH]
        return bool(cells) and all(cell[:1].isdigit() or cell[:1] in f"+{_MINUS}<>[" for cell in cells)

    @staticmethod
    def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
        padded = []
        for cell, width, is_right in zip(cells, widths, right, strict=True):
            pad = " " * (width - _width(cell))
            padded.append(pad + cell if is_right else cell + pad)
        return "  ".join(padded).rstrip()


def show(table: pd.DataFrame, columns: Iterable[str] | None = None) -> Table:
    """Format a table of this package for reading.

    Rates are shown as '42.5 % [35.9, 49.4]', differences as '−8.5 pp [−14.0, −3.0]', p-values to three digits, missing
    values as '–' with the reason in a numbered note below. Columns that are the same in every row move to the caption.

    Parameters
    ----------
    table : DataFrame
        As made by ``failure_rate``, ``paired_differences`` and the other functions.
    columns : column names, optional
        Show these, in this order; nothing moves to the caption but whether the table is confirmatory.

    Returns
    -------
    Table
        Prints as text; the last expression of a notebook cell shows it as HTML.
    """
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"show takes a table of this package, got {type(table).__name__}: print it instead.")
    if not table.columns.is_unique or not all(isinstance(name, str) for name in table.columns):
        raise InputError("show takes a table whose columns have names, each its own; rename them.")
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Iterable)):
        raise InputError(f"columns must be a list of column names, got {columns!r:.80}.")
    shown = list(columns) if columns is not None else _worth_showing(table)
    for column in shown:
        if column not in table:
            raise choice("column", column, table.columns)
    caption = []
    planned = _planned(table)
    if planned:
        shown = [column for column in shown if column != "analysis"]
    elif "analysis" in table and "analysis" not in shown and len(table):
        shown.append("analysis")  # rows differ in it, and that has to be seen
    if columns is None and len(table) > 1:
        constant = [c for c in shown if _is_setting(table, c) and table[c].map(_hashable).nunique(dropna=False) == 1]
        said = [(column, _cell(column, table[column].iloc[0])) for column in constant]
        caption = [", ".join(f"{_word(column)} {cell}" for column, cell in said if cell)]
        shown = [column for column in shown if column not in constant]
    brackets = "95 % intervals in brackets" if any(_bracketed(table, column) for column in shown) else ""
    caption = "\n".join(filter(None, [*caption, ", ".join(filter(None, [planned or _plan(table), brackets]))]))
    one_note = "analysis_note" in table and table["analysis_note"].nunique(dropna=False) == 1  # is in the caption
    notes_of = [column for column in _NOTES if column != "analysis_note" or not (planned and one_note)]
    notes: dict[str, int] = {}
    cells = []
    if "structurer_options" in shown:  # as the table holds them they are JSON, mostly the same in all rows
        words = option_words(table["structurer_options"].dropna())
        table = table.assign(structurer_options=table["structurer_options"].replace(words))
    for row in table.to_dict("records"):
        line = [_shown(row, column) for column in shown]
        said = [_cell(column, row[column]) for column in notes_of if isinstance(row.get(column), str) and row[column]]
        if str(row.get("interval", "")).startswith("not available"):
            said.append(f"interval {row['interval']}")
        cells.append([*line, " ".join(f"[{notes.setdefault(note, len(notes) + 1)}]" for note in said)])
    header = [*(_word(column) for column in shown), "notes"]
    if not notes:
        header, cells = header[:-1], [line[:-1] for line in cells]
    return Table(header, cells, caption, list(notes))


def _worth_showing(table: pd.DataFrame) -> list[str]:
    spare = {*_NOTES, *_ASIDE}
    if "baseline" in table and table["baseline"].nunique() > 1:
        spare -= {"baseline"}
    for estimate, bounds in _INTERVALS.items():
        if estimate in table and set(bounds) <= set(table.columns):
            spare |= set(bounds)
    if "difference_pp" in table:
        spare |= {"reduction_pp"}
    if "arm" in table:
        spare |= {"structure", "structurer", "harmed_share"}
        if "structurer" in table and (table.groupby("arm")["structurer"].nunique() > 1).any():
            spare -= {"structurer"}  # 'fixed (embedding)' by two embedders
    if "n_unscored" in table and not table["n_unscored"].any():
        spare |= {"best_case", "worst_case"}
    for side in ("", "_baseline"):
        if f"n_scored{side}" in table:
            scored, asked = f"n_scored{side}", f"n_asked{side}"
            complete = table[scored].eq(table[asked]).all()
            spare |= {scored, asked, f"reasons{side}"} if complete else {asked}  # shown as '57 of 60'
    if "reduction_pp" in table:  # wide enough: a difference in truncation is in the notes
        spare |= {"truncated_share", "truncated_share_baseline"}
    if "sd_note" in table and table["sd_pp"].isna().all():
        spare |= {"sd_pp"}
    if "n_escaped" in table and not table["n_escaped"].any():
        spare |= {"n_escaped"}
    return [column for column in table if column not in spare]


def _bracketed(table: pd.DataFrame, column: str) -> bool:
    bounds = _INTERVALS.get(column, ("?",))
    return set(bounds) <= set(table) and bool(table[list(bounds)].notna().all(axis=1).any())


def _planned(table: pd.DataFrame) -> str:
    """Whether a whole table is confirmatory, why not, and by which plan; empty where its rows differ in that."""
    if "analysis" not in table or table["analysis"].nunique(dropna=False) != 1:
        return ""
    why = table["analysis_note"].unique() if "analysis_note" in table else []
    note = f" ({_cell('', why[0])})" if len(why) == 1 and why[0] else ""
    return ", ".join(filter(None, [f"{table['analysis'].iloc[0]}{note}", _plan(table)]))


def _plan(table: pd.DataFrame) -> str:
    plans = table["plan_hash"].dropna().unique() if "plan_hash" in table else []
    return f"plan {plans[0]}" if len(plans) == 1 and plans[0] else ""


_NO_SETTINGS = (
    "arm", "structure", "sd_note", "reasons", "reasons_baseline", "verdict", "equivalence", "reading", "dominates",
    *(f"at_{margin}_pp" for margin in (2, 5, 10)),
)  # fmt: skip


def _is_setting(table: pd.DataFrame, column: str) -> bool:
    """Whether a column says under what conditions a row holds, not what was found."""
    if column in ("threshold", "n_generations", "replicate", "partition_draw"):
        return True
    return table[column].dtype.kind not in "fiub" and column not in _NO_SETTINGS


def _word(column: str) -> str:
    return _WORDS.get(column) or column.removeprefix("n_").removesuffix("_share").replace("_", " ")


def _shown(row: dict, column: str) -> str:
    if set(_INTERVALS.get(column, ("?",))) <= row.keys():
        return _estimate(row, column)
    asked = column.replace("n_scored", "n_asked")
    if asked != column and asked in row and not _missing(row[column]):
        return f"{row[column]:g} of {row[asked]:g}"
    return _cell(column, row[column])


def _estimate(row: dict, column: str) -> str:
    value, bounds = row[column], [row[bound] for bound in _INTERVALS[column]]
    if column == "reduction_pp" and "difference_pp" in row:
        bounds = [-bounds[1], -bounds[0]]  # the interval beside it is the difference's
    if _missing(value):
        return DASH
    if column in _AS_THEY_ARE or column.endswith("_mean"):
        found = [_cell(column, part) for part in (value, *bounds)]
        return f"{found[0]} [{found[1]}, {found[2]}]" if DASH not in found else found[0]
    scale = 1 if column.endswith("_pp") else 100
    number: Callable[[float], str] = signed if scale == 1 else _plain
    unit = "pp" if scale == 1 else "%"
    if any(map(_missing, bounds)):
        return f"{number(scale * value)} {unit}"
    low, high = (bound(end) if unit == "pp" else number(scale * end) for end in bounds)
    return f"{number(scale * value)} {unit} [{low}, {high}]"


def _cell(column: str, value: object) -> str:
    if _missing(value):
        return DASH
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, str) or not isinstance(value, (int, float, np.number, np.bool_)):
        return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    if column.startswith("n_") or column in ("threshold", "replicate", "partition_draw", "generation"):
        return f"{value:g}"
    if column == "p" or column.endswith("_p"):
        return "<0.001" if value < 0.0005 else f"{value:.3f}"
    if column == "value":
        return f"{value:g}".replace("-", _MINUS)
    if column in _UNSIGNED:
        return f"{value:.1f} pp"
    if column.endswith("_pp"):
        return f"{signed(value)} pp"
    if column.endswith("_pct"):
        return f"{signed(value) if 'change' in column else _plain(value)} %"
    fractions = column.endswith(("_rate", "_share", "_case", "_at_1")) or column.startswith(("rate_", "accuracy_"))
    if fractions or column in ("share", "hit", "chance"):
        return f"{_plain(100 * value)} %"
    if column in ("variance", "sd", "sd_in_mean"):  # of pp or of overlaps, large or small
        return f"{value:.3g}".replace("-", _MINUS)
    if column.endswith("_mean") or column in _SMALL:  # of overlaps too, which are small
        return f"{value:.3f}".replace("-", _MINUS)
    if float(value).is_integer() and abs(value) < 1e15 and not column.startswith(("mean", "coefficient")):
        return f"{value:.0f}"
    return f"{value:.2f}".replace("-", _MINUS)


def _hashable(value: object) -> object:
    """A list or an array, which a user's own column may hold, as its text."""
    return value if isinstance(value, Hashable) else str(value)


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def _plain(value: float) -> str:
    # Rounded once more so that −0.04 does not print as a negative nothing.
    return f"{round(value, 1) + 0.0:.1f}".replace("-", _MINUS)


def signed(value: float) -> str:
    """One decimal with its sign; what rounds to zero has none."""
    rounded = round(value, 1) + 0.0
    return _plain(rounded) if rounded <= 0 else f"+{_plain(rounded)}"


def bound(value: float) -> str:
    """An end of an interval in pp: as ``signed``, and on its own side of zero however near it is."""
    near = 1e-9 < abs(value) < 0.05
    return f"{value:+.1g}".replace("-", _MINUS) if near else signed(value)


def _width(text: str) -> int:
    """Columns that a text takes in a terminal: wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def failure_type_words(failure_type: str, n_generations: int | None = None) -> str:
    """How prose and axes call a failure type's rate: leakage only for cross_domain."""
    names = {"cross_domain": "leakage", "beneficial_memory_usage": "beneficial-memory failures"}
    name = names.get(failure_type, failure_type.replace("_", " "))
    kind = FAILURE_TYPES.get(failure_type)
    generations = n_generations or (kind.generations if kind else None)
    return f"{name} (FR@{generations})" if generations else name
