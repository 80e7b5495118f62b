"""LaTeX tables: what is printed is what ``show`` prints, and no text becomes a command."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structmem import latex
from structmem.errors import InputError
from structmem.latex import escape, save_table, to_latex
from structmem.published import load_published, published_reductions
from structmem.tables import show

TABLE = pd.DataFrame(
    {
        "arm": ["flat", "dynamic_(a&b)"],
        "failure_rate": [0.425, np.nan],
        "low": [0.359, np.nan],
        "high": [0.494, np.nan],
        "n_entries": [200, 0],
        "difference_pp": [-8.5, np.nan],
        "low_pp": [-14.0, np.nan],
        "high_pp": [3.0, np.nan],
        "mcnemar_p": [0.0001, np.nan],
        "remark": ["", "50 % unscored"],
    }
)

# Every command that a text can end up as, with what it prints: the inverse is written here by hand.
PRINTS = {
    r"\textbackslash{}": "\\", r"\{": "{", r"\}": "}", r"\$": "$", r"\&": "&", r"\#": "#", r"\%": "%", r"\_": "_",
    r"\textasciicircum{}": "^", r"\textasciitilde{}": "~", r"\textbar{}": "|", r"\char34{}": '"',
    r"\textasciigrave{}": "`", r"\ldots{}": "…", r"$<$": "<", r"$>$": ">", r"$-$": "−", r"$\ge$": "≥", r"$\le$": "≤",
    r"$\times$": "×", r"$\pm$": "±", r"$\rightarrow$": "→", r"$\leftarrow$": "←", r"$\cdot$": "·", r"$\surd$": "√",
    r"$\kappa$": "κ", r"\textemdash{}": "—", r"\textendash{}": "–", "{}": "",
}  # fmt: skip
_TOKEN = re.compile("|".join(map(re.escape, sorted(PRINTS, key=len, reverse=True))) + r"|\$([-+])([\d{},.]+)\$|.", re.S)


def printed(source: str) -> str:
    """What a reader sees of an escaped text; fails on a character that TeX would take for something else."""
    seen = []
    for token in _TOKEN.finditer(source):
        if token[1]:
            seen.append({"-": "−"}.get(token[1], token[1]) + token[2].replace("{,}", ","))
        elif token[0] in PRINTS:
            seen.append(PRINTS[token[0]])
        else:
            assert token[0] not in "\\{}$&#%_^~", (token[0], source)
            seen.append(token[0])
    return "".join(seen)


def cells(source: str) -> list[list[str]]:
    """The printed cells of the lines between the rules."""
    body = source.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "").strip().splitlines()
    rows = [line.strip() for line in body if line.strip()]
    assert all(row.endswith(r" \\") for row in rows)
    return [[printed(cell).strip() for cell in re.split(r"(?<!\\)&", row[:-3])] for row in rows]


def test_the_cells_are_those_of_the_printed_table():
    shown = show(TABLE)
    source = to_latex(TABLE, caption="Rates", label="tab:rates")
    assert cells(source) == [shown.header, *shown.cells]
    assert r"42.5 \% [35.9, 49.4]" in source and "$-8.5$ pp [$-14.0$, $+3.0$]" in source and r"$<$0.001" in source
    assert r"[1] 50 \% unscored\par" in source.replace("{[}1{]}", "[1]")
    assert r"\label{tab:rates}" in source and r"dynamic\_(a\&b)" in source
    assert source.count(r"\toprule") == source.count(r"\midrule") == source.count(r"\bottomrule") == 1
    assert re.search(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}", source)[1] == "lrrrrr"


@pytest.mark.parametrize("table", [load_published(), published_reductions()], ids=["published", "reductions"])
def test_tables_of_the_package_keep_every_cell(table):
    shown = show(table)
    assert cells(to_latex(table)) == [shown.header, *shown.cells]


HOSTILE = [
    r"\input{/etc/passwd}", r"\\[1em]", "[1] first", "* star", "100 % & more # $x$ _ ^ ~", "a--b---c,,d''e``f", "-–",
    "}{\\end{table}", "健康 🩺", "x\u202ey\u200b\x07z\nsecond line", "^^5c", "−−3", "1,234.5", "?`!`<<>>|", "−8.5 pp",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_printed_and_never_run(text):
    table = pd.DataFrame({"domain": [text, "x"], "note": [text, ""], "n_entries": [1, 2]})
    source = to_latex(table, caption=text)
    assert cells(source)[1] == show(table).cells[0]
    rows = source.split(r"\midrule")[1].strip()
    assert not rows.startswith(("[", "*")) and source.count(r"\end{table}") == 1
    assert all(ord(char) >= 32 or char == "\n" for char in source)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.one_of(st.sampled_from("\\{}$&#%_^~[]*-,'`\"<>|−–+1.5 \n"), st.characters()), max_size=30))
def test_any_text_is_printed_as_it_is(text):
    clean = " ".join("".join(c if c.isprintable() else " " if c.isspace() else "" for c in text).split())
    source = escape(text)
    assert printed(source) == clean
    assert not re.search("--|,,|''|[?!]`", source)  # which fonts draw as one other character


def test_two_hyphens_stay_two_hyphens():
    assert escape("a--b") == "a-{}-b" and escape("a – b") == r"a \textendash{} b" and escape("''") == "'{}'"
    assert escape("−8.5") == "$-8.5$" and escape("+1,234") == "$+1{,}234$" and escape("2−3") == "2$-$3"


def test_what_pdflatex_does_not_know_is_said():
    assert "LuaLaTeX" not in to_latex(pd.DataFrame({"domain": ["café", "Ångström"]}))
    assert "has U+5065, U+5EB7" in to_latex(pd.DataFrame({"domain": ["健康", "x"]}))


def test_empty_tables_and_wrong_labels():
    assert "(no rows)" in to_latex(TABLE.iloc[:0])
    with pytest.raises(InputError, match="label must hold only"):
        to_latex(TABLE, label="a}b")
    with pytest.raises(InputError, match="column must be one of"):
        to_latex(TABLE, ["arm", "nope"])
    assert cells(to_latex(TABLE, ["arm", "n_entries"])) == [
        ["arm", "n", "notes"],
        ["flat", "200", ""],
        ["dynamic_(a&b)", "0", "[1]"],
    ]


def test_a_table_is_saved_as_it_is(tmp_path):
    path = save_table(TABLE, tmp_path / "new folder" / "rates.tex", caption="Rates")
    assert path.read_bytes().decode() == to_latex(TABLE, caption="Rates")


def test_it_compiles(tmp_path):
    engine = next(filter(None, map(shutil.which, ("lualatex", "xelatex", "pdflatex", "tectonic"))), None)
    if engine is None:
        pytest.skip("no LaTeX engine is installed: only the structure was checked")
    body = "".join(to_latex(pd.DataFrame({"domain": [text, "x"]})) for text in HOSTILE if text.isascii()) + to_latex(
        TABLE
    )
    source = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}{body}\\end{{document}}"
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    done = subprocess.run([engine, "t.tex"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert done.returncode == 0 and (tmp_path / "t.pdf").exists(), done.stdout[-2000:]


def test_every_replacement_is_in_the_reader_of_this_test():
    assert {f"{value}" for value in latex._SPECIAL.values()} <= set(PRINTS)


def test_a_file_that_cannot_be_written_is_said_in_a_sentence(tmp_path):
    for path in (tmp_path, tmp_path / "a\0.tex"):
        with pytest.raises(InputError, match="cannot be written"):
            save_table(pd.DataFrame({"model": ["m"]}), path)
