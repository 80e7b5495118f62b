"""Grid: the settings of a run, checked before any call, and the arms they make."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from .arms import Arm, make_arms, many, short_name, whole
from .calls import asked, canonical, model_label
from .data import FAILURE_TYPES, Entry, benchmark_hash, load_entries
from .errors import InputError, SetupError, choice
from .judges import Judge, judge_model_settings, load_judge, split_options
from .labels import _path as label_file
from .messages import build_messages, prompt_sha256

_FACTORS = ("structure", "structurer", "partition_draw", "renderer", "placement", "defence", "replicate")


# A small model may ramble to the end of its context, for minutes on a CPU; the limit stands in the results.
LOCAL_MAX_TOKENS = 512


@dataclass(frozen=True)
class Item:
    """One row to be made: positions of the entry, the model and the arm, and the generation."""

    entry: int
    model: int
    arm: int
    generation: int


@dataclass(frozen=True)
class Grid:
    """A checked grid."""

    entries: tuple[Entry, ...]
    models: tuple[object, ...]
    arms: tuple[Arm, ...]
    generations: Mapping[str | None, int]
    system_prompt: str | Path
    params: tuple[Mapping, ...]
    model_options: Mapping
    seed: int | None
    judge: Judge
    judge_model: object
    judge_params: Mapping
    judge_options: Mapping
    thresholds: Mapping[str | None, int | None]
    echo_threshold: float

    def generations_of(self, entry: int, model: int, arm: int) -> list[Item]:
        """The rows of one entry in one arm, which share a prompt and go out together."""
        return [Item(entry, model, arm, g) for g in range(self.generations[self.entries[entry].failure_type])]

    def __len__(self) -> int:
        per_entry = len(self.models) * len(self.arms)
        return sum(self.generations[entry.failure_type] for entry in self.entries) * per_entry

    def request_params(self, item: Item) -> dict:
        """Sampling parameters of a row's answer, with its own seed."""
        params = dict(self.params[item.model])
        if self.seed is not None:
            params["seed"] = self.seed + item.generation + 1000 * self.arms[item.arm].replicate
        return params

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Model names for the results."""
        return tuple(model_label(model) for model in self.models)

    @cached_property
    def parameters(self) -> dict:
        """The settings as plain values, without addresses and keys, for the manifest."""
        arms = self.arms
        return {
            "models": list(self.labels),
            "model_options": asked(self.model_options),
            "params": [dict(params) for params in self.params],
            "seed": self.seed,
            **{name: list(dict.fromkeys(short_name(getattr(arm, name)) for arm in arms)) for name in _FACTORS},
            "structurer_options": {arm.structure: json.loads(arm.options or "{}") for arm in arms},
            "taxonomies": list(dict.fromkeys(arm.taxonomy.name for arm in arms if arm.taxonomy)),
            "system_prompt": short_name(self.system_prompt),
            "generations": {str(kind): count for kind, count in self.generations.items()},
            "judge": self.judge.name,
            "judge_model": self.judge_label,
            "judge_options": asked({**self.judge_params, **self.judge_options}),
            "thresholds": {str(kind): value for kind, value in self.thresholds.items()},
            "entries": len(self.entries),
        }

    @property
    def judge_label(self) -> str:
        """The judge's model for the results; empty when it asks none."""
        return model_label(self.judge_model) if self.judge.asks_model else ""

    @cached_property
    def run_id(self) -> str:
        """Hash of the settings and the entries: the same for a rerun."""
        ids = [entry.entry_id for entry in self.entries]
        return hashlib.sha256(canonical([self.parameters, ids]).encode()).hexdigest()[:12]


def make_grid(
    entries: Iterable[Entry],
    models: Sequence,
    structures: Sequence[str],
    *,
    structurers: Sequence,
    taxonomies: Sequence,
    partition_draws: Sequence[int],
    random_draws: int,
    renderers: Sequence[str],
    placements: Sequence[str],
    defences: Sequence,
    system_prompt: str | Path,
    generations: int | Mapping | None,
    replicates: int,
    aa: bool,
    judge: str | Path | Callable,
    judge_model: object,
    model_options: Mapping | None,
    judge_options: Mapping | None,
    structurer_options: Mapping | None,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
    seed: int | None,
    reasoning_effort: str | None,
    threshold: int | Mapping | None,
    echo_threshold: float,
    allow_repeats_at_zero: bool,
) -> Grid:
    """Check every setting of `run` and make its grid; parameters as there.

    Raises
    ------
    InputError
        For anything that is not on its menu, repeated or empty settings, entries that share an id, sampling parameters
        out of range, and several generations at temperature 0.
    """
    entries = tuple(entries)
    _check_entries(entries)
    kinds = tuple(dict.fromkeys(entry.failure_type for entry in entries))
    models = many(models, "models")
    labels = [model_label(model) for model in models]
    if len(set(labels)) < len(labels):
        raise InputError(f"models has two models of one name: {labels}; give callables a model_id of their own.")
    own_params, options = split_options(model_options)
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "reasoning_effort": reasoning_effort}
    params = tuple(_params(model, given | own_params) for model in models)
    if seed is None:
        seed = own_params.get("seed")
    if seed is not None:
        whole(seed, "seed", 0)
    counts = _generations(generations, kinds)
    if any(p.get("temperature") == 0 for p in params) and max(counts.values()) > 1 and not allow_repeats_at_zero:
        raise InputError(
            f"generations is {dict(counts)} at temperature 0, where repeats say nothing; "
            "pass generations=1, a temperature above 0, or allow_repeats_at_zero=True."
        )
    arms = make_arms(
        many(structures, "structures"), many(structurers, "structurers"), many(taxonomies, "taxonomies"),
        many(partition_draws, "partition_draws"), random_draws, many(renderers, "renderers"),
        many(placements, "placements"), many(defences, "defences"), replicates, aa, structurer_options or {},
    )  # fmt: skip
    for arm in arms:
        if arm.structure == "oracle":
            label_file(arm.given["labels"])
    for model in labels:
        for arm in arms:  # a bad placement, defence or system prompt is refused here, before any call
            where = {"system_prompt": system_prompt, "defence": arm.defence, "placement": arm.placement}
            build_messages("?", "?", **where, model=model)
    judge = load_judge(judge)
    judge_model, judge_params, judge_rest = judge_model_settings(judge_model, judge_options)
    if not judge.asks_model:
        judge_params, judge_rest = {}, {}
    elif not callable(judge_model):
        model_label(judge_model)
    if not 0 < echo_threshold <= 1:
        raise InputError(f"echo_threshold must lie in (0, 1], got {echo_threshold!r}.")
    return Grid(
        entries, models, arms, counts, system_prompt, params, options, seed, judge, judge_model, judge_params,
        judge_rest, _thresholds(threshold, kinds, judge), echo_threshold,
    )  # fmt: skip


def _check_entries(entries: tuple) -> None:
    if not entries:
        raise InputError("entries is empty; expected at least one Entry (see load_entries).")
    wrong = next((entry for entry in entries if not isinstance(entry, Entry)), None)
    if wrong is not None:
        raise InputError(f"entries holds {type(wrong).__name__}; expected Entry objects, as load_entries gives them.")
    twice = [key for key, count in Counter(entry.entry_id for entry in entries).items() if count > 1]
    if twice:
        raise InputError(f"entries: {len(twice)} ids occur more than once, such as {twice[:3]}; each needs its own.")


def _params(model: object, given: Mapping) -> dict:
    found = {name: value for name, value in given.items() if value is not None and name != "seed"}
    if isinstance(model, str) and model.startswith("local/"):
        found.setdefault("temperature", 1.0)  # the local server would take 0.8 by itself
        found.setdefault("max_tokens", LOCAL_MAX_TOKENS)
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = found.get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and low <= value <= high):
            raise InputError(f"{name} must lie in [{low}, {high}], got {value!r}.")
    if "max_tokens" in found:
        whole(found["max_tokens"], "max_tokens", 1)
    return found


def _check_kinds(what: str, given: object) -> None:
    unknown = [kind for kind in given if kind not in FAILURE_TYPES] if isinstance(given, Mapping) else []
    if unknown:
        raise choice(f"{what}: failure type", unknown[0], FAILURE_TYPES)


def _generations(generations: int | Mapping | None, kinds: Sequence[str | None]) -> dict[str | None, int]:
    _check_kinds("generations", generations)
    found = {}
    for kind in kinds:
        count = generations.get(kind) if isinstance(generations, Mapping) else generations
        if count is None:
            count = FAILURE_TYPES[kind].generations if kind else 1
        found[kind] = whole(count, "generations", 1)
    return found


def _thresholds(threshold: int | Mapping | None, kinds: Sequence[str | None], judge: Judge) -> dict:
    _check_kinds("threshold", threshold)
    found = {}
    for kind in kinds:
        scale = judge.scale_for(kind)
        value = threshold.get(kind) if isinstance(threshold, Mapping) else threshold
        if scale is None or value is None:
            found[kind] = scale.threshold if scale else None
            continue
        if not scale.low < whole(value, "threshold", scale.low) <= scale.high:
            raise InputError(
                f"threshold must lie in {scale.low + 1}..{scale.high} for {scale.name}, got {value!r}; "
                "a dict gives each failure type its own."
            )
        found[kind] = value
    return found


@lru_cache(maxsize=4)
def _known(source: str) -> tuple[dict[str, Entry], str]:
    try:
        return {entry.entry_id: entry for entry in load_entries(source)}, benchmark_hash(source)
    except (SetupError, InputError):
        return {}, ""


def origins(entries: Sequence[Entry]) -> list[str]:
    """Per entry, the hash of the shipped or installed data it comes from; empty for own data."""
    found = [""] * len(entries)
    for source in ("examples", "persistbench"):
        if "" not in found:
            break
        known, digest = _known(source)
        for place, entry in enumerate(entries):
            if not found[place] and known.get(entry.entry_id) == entry:
                found[place] = digest
    return found


def prompt_hashes(grid: Grid) -> list[str]:
    """Per arm, the hash of system prompt, defence and placement."""
    return [prompt_sha256(grid.system_prompt, arm.defence, arm.placement) for arm in grid.arms]
