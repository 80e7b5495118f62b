"""The analysis plan: what was decided before the answers, its hash, and which rows of a table it had planned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from .data import FAILURE_TYPES, FailureType
from .errors import InputError
from .paths import shared
from .records import decoded
from .yamlfile import Part, yaml_value

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AnalysisPlan", "Contrast", "load_plan", "stamped"]

ESTIMANDS = ("these models, new entries", "new models")
ALL_MODELS = "all models"
EMBEDDING = " (embedding)"
# Which statistics may not look up (structures lead to models); a test holds the two lists together.
STRUCTURES = ("flat", "fixed", "dynamic", "tree", "rag")
_REQUIRED = ("renderer", "placement", "defence", "judge")
_SETTINGS = (*_REQUIRED, "system_prompt", "structurer", "structurer_options", "taxonomy", "judge_model")
_ADJUSTMENTS = {"families": "holm", "exploratory": "benjamini-hochberg"}
_RULES = ("incomplete entries",)
# What tells the arms of one contrast apart.
_OF_STRUCTURE = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "replicate")


class Contrast(NamedTuple):
    """An arm against a baseline in one failure type; arms as tables name them."""

    failure_type: str
    arm: str
    baseline: str


@dataclass(frozen=True)
class AnalysisPlan:
    """A plan, checked; `load_plan` reads it.

    Attributes
    ----------
    primary : Contrast
    settings : dict of str to str
        Columns of the results that have one planned value in every row.
    thresholds : dict of str to int
        By failure type.
    estimand : str
        ``'these models, new entries'`` or ``'new models'``.
    test : str
        In words.
    alpha : float
    resamples, seed : int
        Of bootstraps.
    margin_failure_type, margin_reason : str
    margin_pp : float
        For non-inferiority, in percentage points.
    families : dict of str to tuple of Contrast
        Contrasts whose p-values are adjusted together; ``'primary'`` is the first.
    adjustment : dict of str to str
        Within ``families``, and among ``exploratory`` rows.
    exclusions : tuple of dict
        ``words``, and ``rule`` where the functions here follow it by themselves.
    """

    primary: Contrast
    settings: Mapping[str, str]
    thresholds: Mapping[str, int]
    estimand: str
    test: str
    alpha: float
    resamples: int
    seed: int
    margin_failure_type: str
    margin_pp: float
    margin_reason: str
    families: Mapping[str, tuple[Contrast, ...]]
    adjustment: Mapping[str, str]
    exclusions: tuple[Mapping[str, str], ...]

    @property
    def sha256(self) -> str:
        """Hash of the content; comments, and the order of keys and lists, do not change it."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return hashlib.sha256(_canonical(content).encode()).hexdigest()

    @property
    def hash(self) -> str:
        """The first 12 hex digits of `sha256`, as the column ``plan_hash`` holds it."""
        return self.sha256[:12]

    def family(self, failure_type: str, arm: str, baseline: str) -> str | None:
        """Name of the family in which a contrast is planned, or None."""
        contrast = (failure_type, arm, baseline)
        return next((name for name, contrasts in self.families.items() if contrast in contrasts), None)


def load_plan(path: str | Path | None = None) -> AnalysisPlan:
    """Read and check the analysis plan.

    Parameters
    ----------
    path : str or Path, optional
        A YAML file; by default the project's ``data/analysis_plan.yaml``, else the one that ships with the package.

    Returns
    -------
    AnalysisPlan

    Raises
    ------
    InputError
        No such file, no YAML, a key that is missing, unknown or there twice, a value of the wrong type, an unknown
        failure type, structure, estimand or adjustment, a contrast in two families. File and key are named.
    """
    file = shared("data/analysis_plan.yaml") if path is None else Path(path).expanduser()
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(file)[:200]}: cannot be read ({reason}); expected an analysis plan in YAML.") from None
    return _read(data, file.name)


@lru_cache(maxsize=8)
def _read(data: bytes, name: str) -> AnalysisPlan:
    return _plan(Part(name, "", yaml_value(decoded(data, name), name, "an analysis plan")))


def _canonical(value: object) -> str:
    """JSON in which neither the order of keys nor that of lists counts: every list of a plan is a set."""
    if isinstance(value, Contrast):  # not a list: arm and baseline are no set
        value = value._asdict()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}:{_canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, tuple):
        return f"[{','.join(sorted(map(_canonical, value)))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


# -- reading ----------------------------------------------------------------------------------------------------------


def _plan(root: Part) -> AnalysisPlan:
    names = (
        "primary", "settings", "thresholds", "estimand", "test", "alpha", "resamples", "seed", "margin", "families",
        "adjustment", "exclusions",
    )  # fmt: skip
    top = root.parts(names)
    margin = top["margin"].parts(("failure_type", "pp", "reason"))
    thresholds = top["thresholds"].parts(FAILURE_TYPES)
    primary = _contrast(top["primary"])
    return AnalysisPlan(
        primary=primary,
        settings=_read_only(_texts(top["settings"], _REQUIRED, _SETTINGS)),
        thresholds=_read_only({name: _threshold(FAILURE_TYPES[name], part) for name, part in thresholds.items()}),
        estimand=top["estimand"].one_of(ESTIMANDS),
        test=top["test"].text(),
        alpha=top["alpha"].number(0, 1),
        resamples=top["resamples"].whole(1000),
        seed=top["seed"].whole(0),
        margin_failure_type=margin["failure_type"].one_of(FAILURE_TYPES),
        margin_pp=margin["pp"].number(0, 100),
        margin_reason=margin["reason"].text(),
        families=_read_only(_families(top["families"], primary)),
        adjustment=_read_only(
            {name: part.one_of([_ADJUSTMENTS[name]]) for name, part in top["adjustment"].parts(_ADJUSTMENTS).items()}
        ),
        exclusions=tuple(_read_only(_exclusion(part)) for part in top["exclusions"].items()),
    )


def _threshold(kind: FailureType, part: Part) -> int:
    return part.whole(kind.low + 1, kind.high)


def _read_only(value: dict) -> Mapping:
    return MappingProxyType(value)  # one plan serves every table of a process


def _texts(part: Part, required: Iterable[str], menu: Iterable[str]) -> dict[str, str]:
    return {name: one.text() for name, one in part.parts(required, [n for n in menu if n not in required]).items()}


def _exclusion(part: Part) -> dict[str, str]:
    found = part.parts(("words",), ("rule",))
    return {name: one.one_of(_RULES) if name == "rule" else one.text() for name, one in found.items()}


def _contrast(part: Part) -> Contrast:
    found = part.parts(Contrast._fields)
    arms = [*STRUCTURES, *(f"{name}{EMBEDDING}" for name in STRUCTURES if name not in ("flat", "rag"))]
    contrast = Contrast(
        found["failure_type"].one_of(FAILURE_TYPES), found["arm"].one_of(arms), found["baseline"].one_of(STRUCTURES)
    )
    if contrast.arm == contrast.baseline:
        raise found["arm"].wrong("another structure than the baseline")
    return contrast


def _families(part: Part, primary: Contrast) -> dict[str, tuple[Contrast, ...]]:
    families, seen = {"primary": (primary,)}, {primary: "primary"}
    if not isinstance(part.value, dict) or not all(isinstance(name, str) for name in part.value):
        raise part.wrong("a mapping from names to lists of contrasts")
    for name, family in part.parts(part.value).items():
        if name == "primary":
            raise family.wrong("no family of this name: the primary contrast is one of its own")
        contrasts = []
        for one in family.items():
            contrast = _contrast(one)
            if contrast in seen:
                raise one.wrong(f"a contrast that is in no other place; it is in family {seen[contrast]!r} already")
            seen[contrast] = name
            contrasts.append(contrast)
        families[name] = tuple(contrasts)
    return families


# -- what a table's rows are ------------------------------------------------------------------------------------------


def stamped(table: pd.DataFrame, results: pd.DataFrame, plan: AnalysisPlan | None = None) -> pd.DataFrame:
    """Say of each row of a table whether the plan had it before the answers were made.

    A row is confirmatory if it is one of the plan's contrasts, under the planned estimand, settings and threshold, and
    every answer behind it was made while this very plan was in force (``plan_hash`` of the results). Rows without an
    answer are not behind anything.

    Parameters
    ----------
    table : DataFrame
        Made from `results`. Contrasts have the columns ``failure_type``, ``arm`` and ``baseline``.
    results : DataFrame
        One row per generation.
    plan : AnalysisPlan, optional
        By default `load_plan`.

    Returns
    -------
    DataFrame
        The table with ``analysis`` ('confirmatory' or 'exploratory'), ``analysis_note`` (every reason why a row is not
        confirmatory, in words; empty if it is) and ``plan_hash`` (12 hex digits of the plan that was held against it)
        as its last columns.
    """
    plan = plan or load_plan()
    table = table.drop(columns=[name for name in ("analysis", "analysis_note", "plan_hash") if name in table])
    if {"failure_type", "arm", "baseline"} <= set(table):
        behind = _Behind(table, results, plan)
        notes = ["; ".join(behind.reasons(row)) for row in table.to_dict("records")]
    else:
        notes = ["a rate, not a planned contrast"] * len(table)
    kinds = ["exploratory" if note else "confirmatory" for note in notes]
    return table.assign(analysis=kinds, analysis_note=notes, plan_hash=plan.hash)


class _Behind:
    """The results behind a table, one line per arm, model and plan."""

    def __init__(self, table: pd.DataFrame, results: pd.DataFrame, plan: AnalysisPlan):
        from .columns import KEY, NAMES  # pandas; a plan is read without it

        of_arms = {*KEY} - {"entry_id", "generation"}
        own = {"failure_type", "model", *_OF_STRUCTURE}
        self.plan = plan
        self.shared = [c for c in table if c in of_arms - own and c in results]
        self.subgroups = [c for c in table if c in {*NAMES, "subgroup"} - of_arms - {"threshold", "echo_threshold"}]
        wanted = ["failure_type", "model", "judge", "plan_hash", *_OF_STRUCTURE, *plan.settings, *self.shared]
        wanted = [column for column in dict.fromkeys(wanted) if column in results]
        answered = results[results["status"].ne("no_response")] if "status" in results else results
        lines = answered[wanted].drop_duplicates().astype(object)
        self.lines = lines.where(lines.notna() & lines.ne(""), None).to_dict("records")
        self.models: dict[object, set] = {}
        for line in self.lines:
            self.models.setdefault(line.get("failure_type"), set()).add(line.get("model"))

    def reasons(self, row: dict) -> list[str]:
        """Why a row of the table is exploratory; nothing if it is confirmatory."""
        plan, found = self.plan, []
        lines = [line for line in self.lines if self._is_behind(line, row)]
        if not lines:
            return ["no answers are behind it"]
        if any("simulated" in str(line.get(name)) for line in lines for name in ("model", "judge")):
            found.append("simulated results")
        if any(line.get("judge") == "echo" for line in lines) and plan.settings["judge"] != "echo":
            found.append("the echo measure is not the planned judge")
        found += self._of_plan({str(line["plan_hash"])[:12] if line.get("plan_hash") else None for line in lines})
        if plan.family(row["failure_type"], row["arm"], row["baseline"]) is None:
            return [*found, "not a planned contrast"]
        found += self._of_estimand(row, self.models[row["failure_type"]])
        found += [f"{name} is a subgroup, the plan has none" for name in self.subgroups if not _is_missing(row[name])]
        for name, planned in plan.settings.items():
            # Nobody sorts a flat list, so that a baseline may have no structurer.
            values = {line.get(name) or "not known" for line in lines if line.get(name) or name not in _OF_STRUCTURE}
            said = name == "judge" and all(value == "echo" or "simulated" in value for value in values - {planned})
            if values - {planned} and not said:
                found.append(f"{name} {' and '.join(sorted(values - {planned}))}, planned {planned}")
        limit = row.get("threshold")
        if not _is_missing(limit) and row.get("outcome") != "echo" and limit != plan.thresholds[row["failure_type"]]:
            found.append(f"threshold {limit:g}, planned {plan.thresholds[row['failure_type']]}")
        margin = row.get("margin_pp")
        if row["failure_type"] == plan.margin_failure_type and margin != plan.margin_pp:
            found.append(
                f"{'no margin' if _is_missing(margin) else f'margin {margin:g} pp'}, planned {plan.margin_pp:g} pp"
            )
        return found

    def _is_behind(self, line: dict, row: dict) -> bool:
        if not _same(line.get("failure_type"), row["failure_type"]):
            return False
        if row.get("model") in self.models[line.get("failure_type")] and line.get("model") != row["model"]:
            return False
        structure = line.get("structure")
        if structure != row["baseline"]:
            by_embedding = line.get("structurer") == "embedding" and structure not in ("flat", "rag")
            if f"{structure}{EMBEDDING if by_embedding else ''}" != row["arm"]:
                return False
        return all(_same(line[name], row[name]) for name in self.shared)

    def _of_plan(self, hashes: set[str | None]) -> Iterator[str]:
        if hashes == {None}:
            yield "no plan was stamped when these results were made"
        elif None in hashes:
            yield "no plan was stamped when some of these results were made"
        if hashes - {None, self.plan.hash}:
            yield f"the plan changed {'while' if self.plan.hash in hashes else 'after'} these results were made"

    def _of_estimand(self, row: dict, models: set) -> Iterator[str]:
        estimand, model = row.get("estimand"), row.get("model")
        if model in models and len(models) > 1:
            yield "per model, the planned estimand is over models"
        elif not (_is_missing(model) or model == ALL_MODELS or model in models):
            yield f"{model}, the planned estimand is over all models"
        elif _is_missing(estimand):
            yield f"no estimand is named, planned '{self.plan.estimand}'"
        elif estimand != self.plan.estimand:
            yield f"estimand '{estimand}', planned '{self.plan.estimand}'"


def _is_missing(value: object) -> bool:
    return value is None or value != value or value in ("", "(none)")


def _same(one: object, other: object) -> bool:
    return one == other or str(one) == str(other) or (_is_missing(one) and _is_missing(other))
