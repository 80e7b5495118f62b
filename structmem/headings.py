"""Whether answers name the headings that the context showed: a trace of the layout, with the flat list as base rate."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from math import nan

import numpy as np
import pandas as pd

from .columns import KEY, without_answers
from .errors import InputError, choice
from .intervals import clustered_mean, wilson_clustered
from .outcomes import NONE, OF_STRUCTURE, check_results, display_structure, keep_none, sort_arms
from .stamping import stamped

MEASURES = ("mention", "as a heading")
_ROW = tuple(name for name in KEY if name not in ("judge", "judge_model"))
_NUMBERS = ("rate_naming", "low", "high", "rate_naming_baseline", "difference_pp", "low_pp", "high_pp")
_KINDS = r"(?:section|category|categories|heading|domain|group)"


def heading_share(results: pd.DataFrame, baseline: str = "flat") -> pd.DataFrame:
    """Share of answers that name a heading of their context, beside the same words in answers to the flat list.

    Two measures: ``mention``, a heading's words anywhere in the answer, and ``as a heading``, typeset like one
    (``## Health``, ``**Health**``, ``Health:`` at the start of a line) or called one ("the health section"). Words such
    as 'personal' come up anyway: the baseline's answers to the same entries are searched for the same words, and the
    difference is what the layout adds. Capitals do not matter; other forms of a word are not seen.

    Parameters
    ----------
    results : DataFrame
        One row per generation, with ``response`` and ``headings`` (a JSON list of the groups shown).
    baseline : str
        A structure that shows no headings.

    Returns
    -------
    DataFrame
        One row per model × arm × measure: ``rate_naming`` in [0, 1], the mean over entries that are answered in both
        arms, with ``low``, ``high`` (95 %, Wilson, entries as clusters), and ``rate_naming_baseline``;
        ``difference_pp`` with ``low_pp``, ``high_pp`` (95 %, ``interval``: t over entries); ``n_entries``,
        ``n_answers``, ``n_answers_baseline``; ``reason`` where there is nothing to compare.

    Raises
    ------
    InputError
        Results without answers or headings (recorded files have no answers, tables before version 3 no headings), or
        without the baseline.
    """
    check_results(results, [])
    if "headings" not in results or (len(results) and results["headings"].isna().all()):
        raise InputError(
            "results do not say which headings were shown (column 'headings', from schema version 3 on); make the "
            "table again from the store with run (finished calls are kept)."
        )
    answered = results[results["status"] != "no_response"]
    if len(answered) and ("response" not in answered or answered["response"].isna().all()):
        raise InputError(f"results hold no answers in 'response': {without_answers(answered)}.")
    if len(answered) and baseline not in set(answered["structure"]):
        raise choice("baseline", baseline, set(answered["structure"]))
    key = [name for name in _ROW if name in answered]
    rows = keep_none(answered, key).drop_duplicates(key)  # one answer, however many judges read it
    own = [name for name in OF_STRUCTURE if name in key]
    shared = ["model", "failure_type", *[name for name in key if name not in ("model", "failure_type", *own)]]
    shared = [name for name in shared if name not in ("entry_id", "generation")]
    table = []
    for context, group in rows.groupby(shared, sort=False):
        flat = group[group["structure"] == baseline]
        for arm, mine in group[group["structure"] != baseline].groupby(own, sort=False):
            named = dict(zip(shared, context, strict=True)) | dict(zip(own, arm, strict=True))
            label = display_structure(named["structure"], named.get("structurer"))
            same = flat
            if "replicate" in own and len(flat):
                at = named["replicate"] if named["replicate"] in set(flat["replicate"]) else flat["replicate"].min()
                same = flat[flat["replicate"] == at]
            for measure in MEASURES:
                table.append(named | {"arm": label, "baseline": baseline} | _row(mine, same, measure))
    columns = [*shared, "arm", *own, "baseline", "measure", *_NUMBERS, "interval", "n_entries", "n_answers"]
    columns += ["n_answers_baseline", "reason"]
    found = pd.DataFrame(table, columns=columns)
    found = sort_arms(found.assign(order=range(len(found))), ["failure_type", *shared, *own, "order"])
    within = found.groupby("structure", sort=False)
    spare = []
    for name in (*shared, *own):
        # An option that the structure decides tells nothing more.
        decided = name in ("structurer_options", "taxonomy") and within[name].nunique().le(1).all()
        if name not in ("model", "failure_type", "structure") and (found[name].nunique() < 2 or decided):
            spare.append(name)
    return stamped(found.drop(columns=["order", *spare]), results)


def _row(arm: pd.DataFrame, flat: pd.DataFrame, measure: str) -> dict:
    blank = dict.fromkeys(_NUMBERS, nan) | {"interval": ""}
    shown = arm.dropna(subset=["headings", "response"])
    words = {entry: _read(text) for entry, text in zip(shown["entry_id"], shown["headings"], strict=True)}
    sides = []
    for side in (shown, flat[flat["entry_id"].isin(words)].dropna(subset=["response"])):
        pairs = zip(side["entry_id"], side["response"], strict=True)
        found = [names(answer, words[entry], measure) for entry, answer in pairs]
        sides.append(pd.Series(found, side["entry_id"], dtype=float))
    means = pd.concat([side.groupby(level=0).mean() for side in sides], axis=1, join="inner").sort_index()
    kept = [int(side.index.isin(means.index).sum()) for side in sides]
    counts = {"n_entries": len(means), "n_answers": kept[0], "n_answers_baseline": kept[1], "measure": measure}
    if not len(means):
        why = "no answer whose headings are known" if not len(shown) else "no entry is answered in both arms"
        return blank | counts | {"reason": why}
    rates, entries = means.to_numpy().T, means.index.to_numpy()
    low, high = wilson_clustered(rates[0], entries, draws=kept[0] / len(means))
    found = {"rate_naming": rates[0].mean(), "low": low, "high": high, "rate_naming_baseline": rates[1].mean()}
    apart = 100 * (rates[0] - rates[1])
    low, high = clustered_mean(apart, entries)
    interval = "t over entries"
    if np.isnan(low):
        interval = f"not available: {'no variation' if len(means) > 1 else 'one entry'}"
    found |= {"difference_pp": apart.mean(), "low_pp": low, "high_pp": high, "interval": interval}
    return blank | found | counts | {"reason": "" if any(words.values()) else "no heading was shown"}


def _read(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InputError(f"headings is {text!r:.80}; expected a JSON list of texts.")
    return tuple(dict.fromkeys(name for name in found if name.strip() and name != NONE))


def names(answer: str, headings: Sequence[str], measure: str = "mention") -> bool:
    """Whether an answer names one of the headings; see `heading_share` for the two measures."""
    return any(pattern.search(answer) for pattern in (_patterns(name)[MEASURES.index(measure)] for name in headings))


@lru_cache(maxsize=4096)
def _patterns(heading: str) -> tuple[re.Pattern, re.Pattern]:
    parts = [re.escape(part) for part in re.split(r"[\s_-]+", heading.strip()) if part]
    word = r"[\s_-]+".join(parts)
    # A word ends where no letter follows; scripts without spaces have no such end.
    before = "" if _unspaced(heading.strip()[0]) else r"(?<!\w)"
    after = "" if _unspaced(heading.strip()[-1]) else r"(?!\w)"
    word = f"{before}{word}{after}"
    start = r"^[ \t]*(?:(?:#{1,6}|>|[-*+•]|\d{1,3}[.)])[ \t]*)*"
    typeset = rf"{start}[*_\"“'<\[]*{word}[*_\"”'>\]]*[ \t]*(?:[:：][*_]*|$)|\*\*[ \t]*{word}[ \t]*:?[ \t]*\*\*"
    called = rf"{word}[\"”'’]?[ \t]+{_KINDS}\b|\b{_KINDS}[ \t]*(?:called|named|name=|:)?[ \t]*[\"“'‘]{word}"
    return re.compile(word, re.I), re.compile(f"{typeset}|{called}", re.I | re.M)


def _unspaced(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF" or "\u0e00" <= character <= "\u0eff"
