"""Blinded review of a shadow run: pairs of answers in random order out, and what a person preferred back."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from .auditfiles import check_items, digest, json_facts, read_sheet, safe, write_private
from .errors import InputError
from .intervals import clopper_pearson, mcnemar_exact
from .paths import is_file
from .shadow import FLAT, STRUCTURED, Prompt

VERSION = 1
COLUMNS = ("item", "question", "memories", "answer_a", "answer_b", "scale", "score", "note")
SCALE = "Which answer serves this user better? A, B, or tie. Leave it empty if you cannot tell."
_ANSWERS = {"a": "a", "b": "b", "tie": "tie", "ties": "tie", "same": "tie"}


def write_sheet(
    rows: pd.DataFrame, prompts: Sequence[Prompt], structure: str, path: str | Path, seed: int = 0
) -> tuple[Path, Path, int]:
    """Write a sheet of pairs of answers, flat's and the structure's, and a key that says which is which.

    One pair per prompt (generation 0), in random order, each with the two answers in random order. Answers that are the
    same letter by letter are not shown: the key counts them. Both files are for you only, as they hold what users said;
    keep the key from the person who scores.

    Returns
    -------
    (sheet, key, n) : Path, Path, int
        ``<sheet>.key.json`` beside the sheet; pairs in the sheet.

    Raises
    ------
    InputError
        A name that does not end in .csv, a file that exists, no pair that differs.
    """
    path = Path(path)
    key = path.with_name(f"{path.stem}.key.json")
    check_name(path)
    wide = rows[(rows["generation"] == 0) & (rows["status"] == "ok")].pivot(
        index="line", columns="arm", values="response"
    )
    if not {FLAT, STRUCTURED} <= set(wide):
        raise InputError("There are no two answers to the same prompt to review.")
    pairs = wide[[FLAT, STRUCTURED]].dropna()
    different = pairs[pairs[FLAT] != pairs[STRUCTURED]]
    if not len(different):
        raise InputError(f"All {len(pairs)} pairs of answers are the same, so there is nothing to review.")
    by_line = {prompt.line: prompt for prompt in prompts}
    drawn = hashlib.sha256(json.dumps([seed, different.to_numpy().tolist()]).encode()).hexdigest()
    # Of the answers too: by the seed alone, all sheets with as many pairs would have one order, for anybody to look up.
    rng, name = np.random.default_rng(int(drawn[8:], 16)), f"R{drawn[:8]}"
    items, lines = [], []
    for number, line in enumerate(rng.permutation(different.index), 1):
        arms = (FLAT, STRUCTURED) if rng.random() < 0.5 else (STRUCTURED, FLAT)
        prompt, item = by_line[int(line)], f"{name}-{number:03d}"
        texts = [different.loc[line, arm] for arm in arms]
        lines.append([item, _question(prompt), _memories(prompt), *texts, SCALE, "", ""])
        said = [digest(text) for text in texts]
        items.append({"item": item, "line": int(line), "a": arms[0], "b": arms[1], "answers_sha256": said})
    facts = {"version": VERSION, "kind": "shadow", "sheet": name, "seed": seed, "structure": structure}
    facts |= {"identical": len(pairs) - len(different), "missing": len(by_line) - len(pairs), "items": items}
    write_private(key, json.dumps(facts, indent=1).encode())
    try:
        write_private(path, _text(lines).encode("utf-8-sig", "replace"))
    except InputError:
        key.unlink()  # a key without its sheet would be in the way of the next one
        raise
    return path, key, len(items)


def check_name(path: str | Path) -> None:
    """Refuse a sheet that could not be written, before anything is asked and paid."""
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise InputError(f"{path.name}: expected a file name that ends in .csv.")
    for file in (path, path.with_name(f"{path.stem}.key.json")):
        if is_file(file):
            raise InputError(f"{file.name} exists already and may hold somebody's work; choose another name.")


def _question(prompt: Prompt) -> str:
    said = [f"{turn['role']}: {turn['content']}" for turn in prompt.before]
    return "\n\n".join([*said, f"user: {prompt.query}"]) if said else prompt.query


def _memories(prompt: Prompt) -> str:
    return "\n".join(f"{place}. {memory.text}" for place, memory in enumerate(prompt.memories, 1))


def _text(lines: list[list[str]]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerows([COLUMNS, *([safe(cell) for cell in line] for line in lines)])
    return table.getvalue()


def read_review(sheet: str | Path, key: str | Path) -> pd.DataFrame:
    """Read a scored sheet back.

    Returns
    -------
    DataFrame
        One row per pair: ``item``, ``line`` of the prompt, ``preferred``: 'flat', 'structured', 'tie', or missing where
        the person left it empty, ``chosen`` ('a', 'b', 'tie'), ``note``. ``attrs``: ``structure``, and numbers of pairs
        that were ``identical`` or had an answer ``missing``, which are not in the sheet.

    Raises
    ------
    InputError
        A sheet of another key, items that are gone, doubled or beside other answers, a score that is none.
    """
    sheet, key = Path(sheet), Path(key)
    facts, table = _key(key), read_sheet(sheet)
    items = {one["item"]: one for one in facts["items"]}
    check_items(sheet.name, table["item"], items, facts["sheet"])
    table = table.set_index("item").loc[list(items)]
    if {"answer_a", "answer_b"} <= set(table):
        held = [[digest(a), digest(b)] for a, b in zip(table["answer_a"], table["answer_b"], strict=True)]
        moved = [item for item, two in zip(items, held, strict=True) if two != items[item]["answers_sha256"]]
        if moved:
            raise InputError(
                f"{sheet.name}: {len(moved)} items stand beside other answers than they were written with, such as "
                f"{moved[:3]}: was one column sorted alone, or a text edited? Scores cannot be told apart then."
            )
    rows = []
    for item, text in table["score"].items():
        said = text.strip().strip("'").lower()
        if said and said not in _ANSWERS:
            raise InputError(f"{sheet.name}: item {item} has the score {text!r}; expected A, B, tie, or nothing.")
        chosen = _ANSWERS.get(said)
        preferred = items[item][chosen] if chosen in ("a", "b") else chosen
        rows.append({"item": item, "line": items[item]["line"], "preferred": preferred, "chosen": chosen})
    found = pd.DataFrame(rows).assign(note=table["note"].to_list() if "note" in table else "")
    found.attrs = {name: facts[name] for name in ("structure", "identical", "missing")}
    return found


def _key(path: Path) -> dict:
    facts = json_facts(path)
    wanted = {"kind", "version", "sheet", "structure", "identical", "missing", "items"}
    if not wanted <= set(facts) or facts["kind"] != "shadow":
        raise InputError(f"{path.name} is no key of a review; expected the .key.json that shadow wrote with its sheet.")
    if facts["version"] != VERSION:
        raise InputError(f"{path.name}: version {facts['version']}, expected {VERSION}: update structmem.")
    good = isinstance(facts["items"], list) and all(map(_is_item, facts["items"]))
    if not good or len({one["item"] for one in facts["items"]}) < len(facts["items"]):
        raise InputError(f"{path.name}: an item is damaged or there twice; take the key as it was written.")
    return facts


def _is_item(one: object) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("item"), str)
        and type(one.get("line")) is int
        and {one.get("a"), one.get("b")} == {FLAT, STRUCTURED}
        and isinstance(one.get("answers_sha256"), list)
    )


def review_words(review: pd.DataFrame) -> Iterator[str]:
    """What a person preferred, in lines: counts, the share with its exact interval, and an exact sign test."""
    counts, name = Counter(review["preferred"].dropna()), review.attrs["structure"]
    for_it, for_flat, ties = counts[STRUCTURED], counts[FLAT], counts["tie"]
    decided, empty = for_it + for_flat, int(review["preferred"].isna().sum())
    yield f"{len(review)} pairs: {name} preferred {for_it}, flat preferred {for_flat}, ties {ties}, not scored {empty}."
    if review.attrs["identical"] or review.attrs["missing"]:
        yield (
            f"Not in the sheet: identical pairs {review.attrs['identical']}, "
            f"prompts without both answers {review.attrs['missing']}."
        )
    if not decided:
        yield "No pair was decided, so there is no preference to test."
        return
    low, high = clopper_pearson(for_it, decided)
    yield (
        f"{name} in {100 * for_it / decided:.1f} % of the {decided} decided pairs "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %, Clopper-Pearson); "
        f"sign test p = {mcnemar_exact(for_it, for_flat):.3g}, exact, two-sided; ties are left out."
    )
    chosen = Counter(review["chosen"].dropna())
    yield f"Column A was chosen {chosen['a']} times, column B {chosen['b']} times (by chance: equally often)."
