"""The entry browser: one HTML file in which a person reads entries, layouts side by side, answers and verdicts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from .auditfiles import write_private
from .columns import ARM as KEYED
from .data import Entry, Memory
from .errors import InputError
from .outcomes import display_structure, keep_none, setting_words, sort_arms, unit_rows
from .paths import package_file
from .rebuilding import LAYOUT, Rebuilder
from .rejudging import entries_by_id
from .renderers import render
from .results import validate
from .tree import Node

OUTCOMES = {
    "fails": "fails", "passes": "passes", "echo": "echo", "no_echo": "no echo", "unscored": "unscored",
}  # fmt: skip
_HIDDEN_TEXT = "(text left out)"
# Arms side by side: first what they have in common, last the structures.
_ORDER = (
    "model", "judge", "judge_model", "system_prompt", "defence", "placement", "renderer", "replicate",
    "partition_draw", "structure", "structurer", "structurer_options", "taxonomy",
)  # fmt: skip


def write_entry_browser(
    results: pd.DataFrame,
    entries: Iterable[Entry],
    path: str | Path,
    *,
    stores: Iterable[object] = (),
    texts: bool = True,
    pages: Mapping[str, str] | None = None,
) -> dict:
    """Write a page to read entries in: query, memories, layouts side by side, answers, verdicts and reasoning.

    The page is one file without any address in it: it works from a folder, offline. It quotes what users said, so that
    only its owner can read the file.

    Parameters
    ----------
    results : DataFrame
        One row per generation. Answers that it does not hold are looked for in the stores.
    entries : iterable of Entry
        Those of the results; of others the results' rows are shown without query, memories and layouts, which is said.
    path : str or Path
        A new file.
    stores : iterable of path, Store or Recorded
        Stores of calls, only read: for answers, reasoning, and partitions that a language model made.
    texts : bool
        False leaves out every query, memory, answer and reasoning, and shows their ids instead.
    pages : mapping of str to str, optional
        Pages beside it to link to: the name of each by its address.

    Returns
    -------
    dict
        ``entries``, ``unknown`` (in the results alone), ``answers``, ``bytes``; ``layouts``: counts by state
        (same, differs, unchecked, missing).

    Raises
    ------
    InputError
        No results table, or a file that cannot be written or is there already.
    """
    data = browser_data(results, entries, stores, texts) | {"pages": dict(pages or {})}
    page = browser_page(data).encode("utf-8")
    write_private(Path(path), page)
    layouts = Counter(layout["state"] for entry in data["entries"] for layout in entry["layouts"])
    answers = sum(len(arm["answers"]) for entry in data["entries"] for arm in entry["arms"])
    counts = {"entries": len(data["entries"]), "unknown": sum(entry["query"] is None for entry in data["entries"])}
    return counts | {"answers": answers, "bytes": len(page), "layouts": dict(layouts)}


# --- data ---


def browser_data(
    results: pd.DataFrame, entries: Iterable[Entry], stores: Iterable[object] = (), texts: bool = True
) -> dict:
    """What the page shows, ready for JSON.

    Returns
    -------
    dict
        ``texts``; ``outcomes``; ``arms``: each with its ``model``, ``name`` and ``settings`` in words;
        ``entries`` in the order of the results: id, query, memories, ``layouts`` (``groups``: pairs of headings and
        memory places, ``pieces``: the context, memories as places) and ``arms``, each with its ``outcome`` and answers.
    """
    results, known = validate(results), entries_by_id(entries)
    if not len(results):
        raise InputError("The results hold no row, so there is no entry to show.")
    arm_columns = [name for name in KEYED if name != "failure_type"]
    rows = keep_none(results, ["failure_type", *arm_columns])
    rows["_place"] = range(len(rows))
    arms = sort_arms(rows[arm_columns].drop_duplicates(), _ORDER)
    place_of = {key: place for place, key in enumerate(arms.itertuples(index=False, name=None))}
    whole, single = _outcomes(results, arm_columns)
    given = results.to_dict("records")
    with Rebuilder(stores) as rebuilder:
        replies = _replies(results, rebuilder) if texts else {}
        found = []
        for (kind, entry_id), of_entry in rows.groupby(["failure_type", "entry_id"], sort=False):
            entry = known.get(entry_id)
            shown = _entry(entry, entry_id, kind, of_entry, texts)
            layouts: dict[tuple, int] = {}
            for key, of_arm in of_entry.groupby(arm_columns, sort=False):
                row = given[of_arm["_place"].iloc[0]]
                layout = (*(row[name] for name in LAYOUT), row["model"] if row["structurer"] == "self" else "")
                if layout not in layouts:
                    layouts[layout] = len(layouts)
                    shown["layouts"].append(_layout(entry, row, rebuilder, texts))
                answers = [
                    _answer(given[place], single[kind, *key, entry_id, generation], replies, texts)
                    for place, generation in zip(of_arm["_place"], of_arm["generation"], strict=True)
                ]
                outcome, why = whole[kind, *key, entry_id]
                shown["arms"].append(
                    {"arm": place_of[key], "layout": layouts[layout], "outcome": outcome, "why": why}
                    | {"answers": sorted(answers, key=lambda answer: answer["generation"])}
                )
            shown["arms"].sort(key=lambda arm: arm["arm"])
            if any(other["id"] == entry_id for other in found):  # each has an address of its own
                shown["id"] += f", {kind}"
            found.append(shown)
    return {"texts": texts, "outcomes": OUTCOMES, "arms": _arms(arms), "entries": found}


def _arms(arms: pd.DataFrame) -> list[dict]:
    """Each arm's name, and in words the settings in which it differs from others of that structure and model."""
    said = []
    for row in arms.to_dict("records"):
        again = row["structure"] == "flat" and row["replicate"] > 0
        twins = arms[(arms["structure"] == row["structure"]) & (arms["model"] == row["model"])]
        differ = [name for name in _ORDER if name not in ("model", "structure") and twins[name].nunique() > 1]
        differ = [name for name in differ if not (name == "replicate" and row["structure"] == "flat")]
        name = "flat (A/A)" if again else display_structure(row["structure"], row["structurer"])
        said.append({"model": row["model"], "name": name, "settings": setting_words(row, differ, twins)})
    return said


def _outcomes(results: pd.DataFrame, arm_columns: Sequence[str]) -> tuple[dict, dict]:
    """Outcome and its reason of each entry in each arm; whether each generation fails (None: not scored)."""
    whole, single = {}, {}
    by_echo = results["judge"].eq("echo")
    for what, rows in (("failure", results[~by_echo]), ("echo", results[by_echo])):
        if not len(rows):
            continue
        bad, good = ("echo", "no_echo") if what == "echo" else ("fails", "passes")
        already = f"; it {'echoes' if what == 'echo' else 'fails'} already"
        for unit in unit_rows(rows, (), what)[0].to_dict("records"):
            outcome, why = "unscored", ""
            if unit["complete"]:
                outcome = bad if unit["failed"] else good
            elif unit["scored"]:
                why = f"{unit['scored']} of {unit['expected']} answers are scored{already if unit['best'] else ''}"
            whole[unit["failure_type"], *(unit[name] for name in arm_columns), unit["entry_id"]] = outcome, why
        for unit in unit_rows(rows, ["generation"], what)[0].to_dict("records"):
            key = (unit["failure_type"], *(unit[name] for name in arm_columns), unit["entry_id"], unit["generation"])
            single[key] = (bad if unit["failed"] else good) if unit["complete"] else "unscored"
    return whole, single


def _replies(results: pd.DataFrame, rebuilder: Rebuilder) -> dict[str, str]:
    """Answers that the table does not hold, by key of their call."""
    if "response" in results:
        return rebuilder.texts(results.loc[results["response"].isna(), "answer_key"].dropna().unique())
    return rebuilder.texts(results["answer_key"].dropna().unique())


def _entry(entry: Entry | None, entry_id: str, kind: str, rows: pd.DataFrame, texts: bool) -> dict:
    first = rows.iloc[0]
    shown = {
        "id": entry_id, "type": kind, "memory_domain": _text(first["memory_domain"]),
        "query_domain": _text(first["query_domain"]), "query": None, "memories": [], "layouts": [], "arms": [],
    }  # fmt: skip
    if entry is not None:
        shown["query"] = entry.query if texts else _HIDDEN_TEXT
        shown["memories"] = [m.text if texts else f"memory {place}" for place, m in enumerate(entry.memories, 1)]
    return shown


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _layout(entry: Entry | None, row: Mapping, rebuilder: Rebuilder, texts: bool) -> dict:
    """A layout: headings with the places of their memories, and the context in pieces."""
    made = {"state": "missing", "why": "Not rebuilt: this entry is not among the entries given.", "groups": []}
    made |= {"renderer": row["renderer"], "pieces": None}
    if entry is None:
        return made
    found = rebuilder.layout(entry, row)
    made |= {"state": found.state, "why": found.why}
    if found.node is not None:
        places = {memory.id: place for place, memory in enumerate(entry.memories)}
        made["groups"] = [
            [list(path), [places[memory.id] for memory in node.memories]]
            for path, node in found.node.walk()
            if node.memories
        ]
        made["pieces"] = pieces(found.node, found.context, row["renderer"], places) if texts else None
    return made


def pieces(node: Node, context: str, renderer: str, places: Mapping[str, int]) -> list[str | int]:
    """A context in pieces: texts as they stand, and for each memory its place, where it stands unchanged.

    Joined again, with every place replaced by the text of its memory, they are the context. Pages hold many layouts of
    the same memories; in pieces each memory is there once.
    """
    mark, made = "\ue000{}\ue001", []
    stand_ins = render(_with_texts(node, places, mark), renderer)
    raw = {places[memory.id]: memory.text for memory in node.all_memories()}
    for number, piece in enumerate(re.split(r"\ue000(\d+)\ue001", stand_ins)):
        if number % 2 == 0:
            made.append(piece)
        else:
            text = _in_bullet(raw[int(piece)], renderer) if int(piece) in raw else ""
            made.append(int(piece) if text == raw.get(int(piece)) else text)
    whole = "".join(piece if isinstance(piece, str) else raw[piece] for piece in made)
    return made if whole == context else [context]  # a label may hold the mark


def _with_texts(node: Node, places: Mapping[str, int], mark: str) -> Node:
    memories = tuple(Memory(memory.id, mark.format(places[memory.id])) for memory in node.memories)
    return Node(node.label, memories, tuple(_with_texts(child, places, mark) for child in node.children))


def _in_bullet(text: str, renderer: str) -> str:
    """A memory's text as a renderer writes it."""
    before, after = str(render(Node(None, (Memory("1", "x"),)), renderer)).split("x")
    return str(render(Node(None, (Memory("1", text),)), renderer))[len(before) : -len(after)]


def _answer(row: Mapping, outcome: str, replies: Mapping[str, str], texts: bool) -> dict:
    """One generation: answer, verdict and what is missing of them."""
    response = row.get("response")
    if not isinstance(response, str):
        response = replies.get(row["answer_key"]) if isinstance(row["answer_key"], str) else None
    reasoning = [_text(row.get(name)) for name in ("judge_reasoning", "model_reasoning")]
    if not texts:
        response = _HIDDEN_TEXT if row["status"] != "no_response" else None
        reasoning = ["", ""]
    score, overlap = row["score"], row["echo_overlap"]
    return {
        "generation": int(row["generation"]), "outcome": outcome, "response": response,
        "verdict": _verdict(row) if pd.notna(score) else f"overlap {overlap:.2f}" if pd.notna(overlap) else "",
        "status": row["status"], "reason": _text(row["status_reason"]),
        "detail": _text(row["status_detail"]) if texts else "", "judge": row["judge"],
        "truncated": bool(pd.notna(row["truncated"]) and row["truncated"]),
        "judge_reasoning": reasoning[0], "model_reasoning": reasoning[1],
    }  # fmt: skip


def _verdict(row: Mapping) -> str:
    limit = "" if pd.isna(row["threshold"]) else f"{'from' if row['high_is_bad'] else 'below'} {row['threshold']:g}"
    return f"score {row['score']:g} of {row['scale_low']}–{row['scale_high']}" + (f", fails {limit}" if limit else "")


# --- page ---

_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def embedded(data: object) -> str:
    """JSON that may stand in a script element: no text in it can end the element, open a comment or break a line."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def browser_page(data: dict) -> str:
    """The page around its data; its policy lets its own style and script in, by their hashes, and nothing else."""
    read = {end: package_file("report", f"entries.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js")}
    base = package_file("report", "base.css").read_text(encoding="utf-8")
    filled = {"style": base + read["css"], "script": read["js"], "data": embedded(data)}
    filled |= {f"{name}_hash": _policy_hash(filled[name]) for name in ("style", "script")}
    # In one pass: what is filled in may itself hold such a mark.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], read["html"])


def _policy_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
