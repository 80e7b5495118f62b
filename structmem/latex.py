"""Tables as LaTeX: booktabs, the cells of ``show``, and text that cannot become a command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from .errors import InputError
from .paths import in_project, writing
from .tables import show

# What TeX reads as something else, or prints as something else in its oldest font encoding.
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"$<$", ">": r"$>$", "|": r"\textbar{}",
    '"': r"\char34{}", "`": r"\textasciigrave{}",
    "−": "$-$", "–": r"\textendash{}", "—": r"\textemdash{}", "…": r"\ldots{}", "≥": r"$\ge$", "≤": r"$\le$",
    "×": r"$\times$", "±": r"$\pm$", "→": r"$\rightarrow$", "←": r"$\leftarrow$", "·": r"$\cdot$", "√": r"$\surd$",
    "κ": r"$\kappa$",
}  # fmt: skip
_LABEL = re.compile(r"[A-Za-z0-9:._-]+")
# A number with a sign is one formula: "−8.5" is $-8.5$, so that the sign is no dash and no operator.
_SIGNED = re.compile(r"(?<![\w.])([−+])(\d[\d,]*(?:\.\d+)?)")


def to_latex(
    table: pd.DataFrame, columns: Iterable[str] | None = None, caption: str | None = None, label: str | None = None
) -> str:
    r"""A table of this package as a LaTeX ``table`` with booktabs rules, estimates with their intervals, and n.

    Cells, words and notes are those of ``show``. Every text is escaped, the caption too: a model's name or a memory can
    hold no command. A character that pdfLaTeX does not know stays as it is, and a comment names it: LuaLaTeX and
    XeLaTeX print it with a font that has it.

    Parameters
    ----------
    table : DataFrame
        As made by ``failure_rate``, ``paired_differences`` and the other functions.
    columns : column names, optional
        As in ``show``; all that are worth showing by default, n among them.
    caption : str, optional
        Plain text. What is the same in every row is added to it.
    label : str, optional
        For ``\ref``: letters, digits, ``: . _ -``.

    Returns
    -------
    str
        Lines for ``\input``; needs ``\usepackage{booktabs}``.

    Raises
    ------
    InputError
        Unknown columns, or a label with other characters.
    """
    if label is not None and not _LABEL.fullmatch(label):
        raise InputError(f"label must hold only letters, digits and : . _ -, got {label!r}.")
    shown = show(table, columns)
    sides = "".join("r" if shown.is_number(position) else "l" for position in range(len(shown.header)))
    parts = [caption or "", *shown.caption.splitlines()]
    told = ". ".join(part.strip().removesuffix(".") for part in parts if part.strip())
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}[tb]", r"\centering"]
    lines += [rf"\caption{{{escape(told)}.}}"] if told else []
    lines += [rf"\label{{{label}}}"] if label else []
    lines += [rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}", r"\toprule", _row(shown.header), r"\midrule"]
    lines += [_row(cells) for cells in shown.cells] or [rf"\multicolumn{{{len(sides)}}}{{@{{}}l@{{}}}}{{(no rows)}} \\"]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if shown.notes:
        lines.append(r"\par\smallskip\begin{minipage}{\linewidth}\footnotesize\raggedright")
        lines += [rf"{{[}}{number}{{]}} {escape(note)}\par" for number, note in enumerate(shown.notes, start=1)]
        lines.append(r"\end{minipage}")
    lines.append(r"\end{table}")
    beyond = sorted({char for line in lines for char in line if not _known_to_pdflatex(char)})
    if beyond:
        names = ", ".join(f"U+{ord(char):04X}" for char in beyond)
        lines.insert(1, f"% LuaLaTeX or XeLaTeX, with a font that has {names}")
    return "\n".join(lines) + "\n"


def save_table(
    table: pd.DataFrame,
    path: str | Path,
    columns: Iterable[str] | None = None,
    caption: str | None = None,
    label: str | None = None,
) -> Path:
    """Write ``to_latex`` to a file, whose folder is made if missing; a relative path counts from the project folder."""
    path = in_project(path)
    text = to_latex(table, columns, caption, label)
    with writing(path.parent, path.name) as file:
        file.write_text(text, encoding="utf-8", newline="\n")
    return path


def escape(text: object) -> str:
    """Plain text as LaTeX that prints it; control characters are dropped, white space is one blank."""
    clean = "".join(char if char.isprintable() else " " if char.isspace() else "" for char in str(text))
    clean = " ".join(clean.split())
    pieces, at = [], 0
    for found in _SIGNED.finditer(clean):
        sign, number = found[1].replace("−", "-"), found[2].replace(",", "{,}")
        pieces += [_plain(clean[at : found.start()]), f"${sign}{number}$"]
        at = found.end()
    return "".join([*pieces, _plain(clean[at:])])


def _plain(text: str) -> str:
    made = []
    for char, following in zip(text, f"{text[1:]} ", strict=bool(text)):
        made.append(_SPECIAL.get(char, char))
        if char == following and char in "-,'":
            made.append("{}")  # two of them would be drawn as one other character
    return "".join(made)


def _row(cells: list[str]) -> str:
    line = " & ".join(map(escape, cells)) + r" \\"
    # What ends a row, and a rule, takes a bracket or star that follows for its own option.
    return "{}" + line if line[0] in "[*" else line


def _known_to_pdflatex(char: str) -> bool:
    """ASCII, Latin-1, and the Latin letters with accents that follow it."""
    return ord(char) < 0x180
