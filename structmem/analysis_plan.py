"""The analysis plan: what was decided before the answers were made, checked, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from .data import FAILURE_TYPES, FailureType
from .errors import InputError
from .paths import shared
from .records import decoded
from .yamlfile import Part, yaml_value

ESTIMANDS = ("these models, new entries", "new models")
ALL_MODELS = "all models"
ALPHA = 0.05  # every interval and bound of the package is at 95 %
EMBEDDING = " (embedding)"
_REQUIRED = ("renderer", "placement", "defence", "judge")
_SETTINGS = (*_REQUIRED, "system_prompt", "structurer", "structurer_options", "taxonomy", "judge_model")
_ADJUSTMENTS = {"families": "holm", "exploratory": "benjamini-hochberg"}
_RULES = ("incomplete entries",)


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
        0.05, as every interval here is at 95 %; another one is refused.
    resamples, seed : int
        Of bootstraps and of random sign flips, where no others are passed (see `planned_draws`).
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

    @cached_property
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
        failure type, structure, estimand or adjustment, another alpha than 0.05, a contrast in two families. File and
        key are named.
    """
    if not isinstance(path, (str, Path, type(None))):
        raise InputError(f"path must be the path of a YAML file, got {path!r:.80}.")
    file = shared("data/analysis_plan.yaml") if path is None else Path(path).expanduser()
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(file)[:200]}: cannot be read ({reason}); expected an analysis plan in YAML.") from None
    return _read(data, file.name)


def planned_draws(draws: int | None, seed: int | None) -> tuple[int, int]:
    """Both as passed; the plan's ``resamples`` and ``seed`` in place of None."""
    if draws is not None and seed is not None:
        return draws, seed
    plan = load_plan()
    return plan.resamples if draws is None else draws, plan.seed if seed is None else seed


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
        alpha=_alpha(top["alpha"]),
        resamples=top["resamples"].whole(1000, 10**9),
        seed=top["seed"].whole(0, 2**63 - 1),
        margin_failure_type=margin["failure_type"].one_of(FAILURE_TYPES),
        margin_pp=margin["pp"].number(0, 100),
        margin_reason=margin["reason"].text(),
        families=_read_only(_families(top["families"], primary)),
        adjustment=_read_only(
            {name: part.one_of([_ADJUSTMENTS[name]]) for name, part in top["adjustment"].parts(_ADJUSTMENTS).items()}
        ),
        exclusions=tuple(_read_only(_exclusion(part)) for part in top["exclusions"].items()),
    )


def _alpha(part: Part) -> float:
    if (alpha := part.number(0, 1)) != ALPHA:
        raise part.wrong(f"{ALPHA}: every interval and bound here is at 95 %, so another level would change nothing")
    return alpha


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
    from .columns import STRUCTURE_ORDER  # with pandas, and a plan is loaded before results are

    found = part.parts(Contrast._fields)
    arms = [*STRUCTURE_ORDER, *(f"{name}{EMBEDDING}" for name in STRUCTURE_ORDER if name not in ("flat", "rag"))]
    menus = {"failure_type": FAILURE_TYPES, "arm": arms, "baseline": STRUCTURE_ORDER}
    contrast = Contrast(**{name: found[name].one_of(menu) for name, menu in menus.items()})
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
