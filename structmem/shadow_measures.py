"""What a shadow run shows: tokens, seconds and changed answers of a structure against flat, with intervals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import nan

import numpy as np
import pandas as pd

from .calls import model_label
from .echo import units
from .intervals import clustered_mean, tango, wilson_clustered
from .missing import in_words
from .shadow import AGAIN, ARMS, FLAT, STRUCTURED, Setting, why_none
from .sorters import offline_embedder
from .structures import spec

APART_S = 3600  # two latencies further apart than this are of different days or loads
_UNIT = ["line", "generation"]
_NUMBERS = {"input_tokens": "input tokens", "output_tokens": "output tokens", "latency_s": "latency, s"}


def shared_content(one: str, other: str, query: str = "") -> float:
    """How much of the content of two answers is the same, in [0, 1]: twice what both hold, by what each holds.

    Counted in the echo measure's units (word stems, pairs of characters in scripts without spaces), each once, without
    words that carry grammar and those of the query (Dice 1945, Ecology 26:297). Where both are without content, 1 if
    they are the same but for case, punctuation and blanks, else 0.
    """
    asked, plain = dict(units(query)), [re.findall(r"\w+", text.casefold()) for text in (one, other)]
    mine, others = (set(dict(units(text))) - set(asked) for text in (one, other))
    if plain[0] == plain[1] or not (mine or others):
        return float(plain[0] == plain[1])
    return 2 * len(mine & others) / (len(mine) + len(others))


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Tokens and latency of the structure against flat, paired by prompt.

    Parameters
    ----------
    rows : DataFrame
        As of `shadow`.

    Returns
    -------
    DataFrame
        One row per measure (input tokens, output tokens, latency): ``flat``, ``structured``: means over the ``n``
        prompts for which both are known (a prompt's value is the mean over its generations); ``difference``, the mean
        of structured − flat; ``low``, ``high``: its 95 % t interval, for input tokens over memory sets, since prompts
        with the same memories differ by the same tokens, else over prompts; ``n_left_out``: prompts without both, or,
        for latency, called more than an hour apart or laid out the same (one call then); ``reason`` where there is no
        interval.
    """
    wide = _wide(rows)
    return pd.DataFrame([_number(wide, name) for name in _NUMBERS])


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    values = ["response", *_NUMBERS, "called_at", "status", "from_store"]
    wide = rows.pivot(index=_UNIT, columns="arm", values=values)
    about = rows.drop_duplicates(_UNIT).set_index(_UNIT)
    for name in ("memory_set", "query", "same_prompt"):
        wide[name, ""] = about[name]
    return wide


def _number(wide: pd.DataFrame, name: str) -> dict:
    both = wide[name][[FLAT, STRUCTURED]].astype("float64")
    both = both.where((wide["status"][[FLAT, STRUCTURED]] == "ok").all(axis=1))
    if name == "latency_s":
        times = wide["called_at"][[FLAT, STRUCTURED]].apply(pd.to_datetime, utc=True, format="ISO8601")
        apart = (times[FLAT] - times[STRUCTURED]).abs().dt.total_seconds()
        both = both.where((apart <= APART_S) & ~wide["same_prompt", ""].astype(bool))
    known = both.dropna()
    each = known.groupby("line").mean()
    difference = (each[STRUCTURED] - each[FLAT]).to_numpy()
    sets = wide["memory_set", ""].groupby("line").first().loc[each.index].to_numpy()
    clusters = sets if name == "input_tokens" else np.arange(len(difference))
    low, high = clustered_mean(difference, clusters)
    of_sets = name == "input_tokens" and len(np.unique(sets)) < 2
    one = "one memory set: its own difference" if of_sets else "fewer than two prompts"
    reason = "" if not np.isnan(low) else one if of_sets or len(difference) < 2 else "all differences are equal"
    return {
        "measure": _NUMBERS[name], "flat": each[FLAT].mean(), "structured": each[STRUCTURED].mean(),
        "difference": difference.mean() if len(difference) else nan, "low": low, "high": high, "n": len(difference),
        "n_left_out": wide.index.get_level_values("line").nunique() - len(difference),
        "reason": reason if len(difference) else "not known of any prompt",
    }  # fmt: skip


def changes(rows: pd.DataFrame) -> dict:
    """How many answers are others than under flat: under the structure, and under flat again (by chance).

    Returns
    -------
    dict
        ``n`` triples (prompt × generation) with all three answers and two layouts, ``n_left_out``; ``changed``,
        ``changed_again``: numbers of answers that are not letter by letter those of flat; ``low`` …, ``again_low`` …:
        their shares' 95 % Wilson intervals (prompts as clusters); ``difference_pp`` with ``difference_low``,
        ``difference_high``: share changed by the structure − by chance, paired (Tango; with several generations a t
        interval over prompts); ``shared``, ``shared_again``: mean `shared_content` with flat's answer, in [0, 1], and
        ``shared_difference`` with its t interval over prompts.
    """
    wide = _wide(rows)
    whole = (wide["status"][list(ARMS)] == "ok").all(axis=1) & ~wide["same_prompt", ""].astype(bool)
    said, lines = wide.loc[whole, "response"], wide.index[whole].get_level_values("line").to_numpy()
    other = {arm: (said[arm] != said[FLAT]).to_numpy(dtype=float) for arm in (STRUCTURED, AGAIN)}
    query = wide.loc[whole, ("query", "")]
    shared = {
        arm: np.array([shared_content(*three) for three in zip(said[FLAT], said[arm], query, strict=True)])
        for arm in other
    }
    n = len(lines)
    found = {"n": n, "n_left_out": len(wide) - n}
    for arm, name in ((STRUCTURED, ""), (AGAIN, "again_")):
        found[f"changed{name and '_again'}"] = int(other[arm].sum())
        found[f"{name}low"], found[f"{name}high"] = wilson_clustered(other[arm], lines)
        found[f"shared{name and '_again'}"] = float(shared[arm].mean()) if n else nan
    gap = other[STRUCTURED] - other[AGAIN]
    if n and len(set(lines)) == n:
        low, high = tango(int((gap > 0).sum()), int((gap < 0).sum()), n)
    else:
        low, high = clustered_mean(gap, lines)
    found["difference_pp"] = 100 * float(gap.mean()) if n else nan
    found["difference_low"], found["difference_high"] = 100 * low, 100 * high
    closer = shared[STRUCTURED] - shared[AGAIN]
    found["shared_difference"] = float(closer.mean()) if n else nan
    found["shared_low"], found["shared_high"] = clustered_mean(closer, lines)
    return found


def report(rows: pd.DataFrame, setting: Setting) -> Iterator[str]:
    """What a shadow run shows, in lines for a person."""
    name, prompts = setting.structure, rows["line"].nunique()
    words = {FLAT: "flat", STRUCTURED: name, AGAIN: "flat again"}
    given = rows.drop_duplicates("line")["n_memories"]
    held = rows[(rows["arm"] == STRUCTURED) & rows["n_shown"].notna()].drop_duplicates("line")
    shown, unclassified = int(held["n_shown"].sum()), int(held["n_unclassified"].sum())
    sorter = f" (sorted by {_name(setting.structurer)})" if spec(name).uses_structurer else ""
    yield f"{_name(setting.model)}: {name}{sorter} against flat, renderer {setting.renderer}."
    yield (
        f"{prompts} prompts with {given.median():g} memories (median), {rows['memory_set'].nunique()} memory sets. "
        f"{name} shows {shown} of {int(held['n_memories'].sum())} memories, {unclassified} of them unclassified."
    )
    for arm, asked, answered, lost in why_none(rows):
        mine = rows[(rows["arm"] == arm) & (rows["status"] == "ok")]
        cut = int(mine["truncated"].astype(bool).sum())
        notes = [in_words(lost)] if lost else []
        notes += [f"{cut} cut at the token limit"] if cut else []
        yield f"{words[arm]}: {answered} of {asked} answers{': ' if notes else ''}{'; '.join(notes)}"
    yield ""
    yield f"{'':<24}{'flat':>9}{name[:11]:>12}  difference, 95 % interval"
    for row in numbers(rows).to_dict("records"):
        yield _line(row)
    if same := rows.loc[rows["same_prompt"], "line"].nunique():
        yield f"{same} of {prompts} prompts read the same under {name}; their answers and latencies are not compared."
    old = int((rows["from_store"].astype(bool) & ~rows["same_prompt"]).sum())
    if old:
        yield f"{old} of {len(rows)} answers came from the store: not paid again; latencies are of the first time."
    yield ""
    yield from _changed(changes(rows), name)


def _name(model: object) -> str:
    return model if offline_embedder(model) else model_label(model)


def _line(row: dict) -> str:
    digits = 2 if row["measure"].startswith("latency") else 1
    label = f"{row['measure']} (mean)"
    if not row["n"]:
        return f"{label:<24}{row['reason']}"
    interval = row["reason"] or f"[{row['low']:+,.{digits}f}, {row['high']:+,.{digits}f}]"
    out = f", {row['n_left_out']} left out" if row["n_left_out"] else ""
    values = f"{row['flat']:>9,.{digits}f}{row['structured']:>12,.{digits}f}"
    return f"{label:<24}{values}  {row['difference']:+,.{digits}f} ({interval}), n = {row['n']}{out}"


def _changed(found: dict, name: str) -> Iterator[str]:
    n = found["n"]
    if not n:
        yield "Changed answers: no prompt has all three answers and two layouts."
        return
    for who, changed, low, high in (
        (name, found["changed"], found["low"], found["high"]),
        ("flat again", found["changed_again"], found["again_low"], found["again_high"]),
    ):
        share = f"{100 * changed / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
        yield f"Changed answers, {who} against flat: {changed} of {n} ({share})"
    yield (
        f"Changed by more than chance: {found['difference_pp']:+.1f} pp {_bounds(found, 'difference', 1)}"
        + (f"; {found['n_left_out']} left out without all three answers or two layouts" if found["n_left_out"] else "")
    )
    yield (
        f"Content shared with flat's answer: {name} {found['shared']:.2f}, flat again {found['shared_again']:.2f}; "
        f"difference {found['shared_difference']:+.2f} {_bounds(found, 'shared', 2)}"
    )


def _bounds(found: dict, name: str, digits: int) -> str:
    low, high = found[f"{name}_low"], found[f"{name}_high"]
    return "(no interval)" if np.isnan(low) else f"[{low:+.{digits}f}, {high:+.{digits}f}]"
