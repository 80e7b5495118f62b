"""Which rows of a table the analysis plan had before the answers were made, and why the others are exploratory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .analysis_plan import ALL_MODELS, EMBEDDING, AnalysisPlan, load_plan
from .sorters import by_embedding

if TYPE_CHECKING:
    import pandas as pd

# What tells the arms of one contrast apart.
_OF_STRUCTURE = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "replicate")

# Columns of a table, beside settings and subgroups, that decide what a row is.
_DECIDES = ("failure_type", "arm", "baseline", "model", "estimand", "outcome", "threshold", "margin_pp", "n_models")


def stamped(
    table: pd.DataFrame, results: pd.DataFrame, plan: AnalysisPlan | None = None, drawn: tuple[int, int] | None = None
) -> pd.DataFrame:
    """Say of each row of a table whether the plan had it before the answers were made.

    A row is confirmatory if it is one of the plan's contrasts, under the planned estimand, settings and threshold, and
    every answer behind it was made while this very plan was in force (``plan_hash`` of the results). Rows without an
    answer are not behind anything. It has to be about all models that were asked for the arm under the planned
    settings, and be the only such row: of two that differ in what the plan leaves open (two models as judge, two
    structurers), none is the planned one. Models taken out of the results are noticed while these carry the run's
    parameters (``attrs``); entries taken out are not.

    Parameters
    ----------
    table : DataFrame
        Made from `results`. Contrasts have the columns ``failure_type``, ``arm`` and ``baseline``.
    results : DataFrame
        One row per generation.
    plan : AnalysisPlan, optional
        By default `load_plan`.
    drawn : (int, int), optional
        Resamples and seed behind the intervals and p-values of the planned estimand.

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
        behind = _Behind(table, results, plan, drawn)
        notes = behind.told_apart(table, behind.notes(table))
    else:
        notes = ["a rate, not a planned contrast"] * len(table)
    kinds = ["exploratory" if note else "confirmatory" for note in notes]
    return table.assign(analysis=kinds, analysis_note=notes, plan_hash=plan.hash)


class _Behind:
    """The results behind a table, one line per arm, model and plan."""

    def __init__(self, table: pd.DataFrame, results: pd.DataFrame, plan: AnalysisPlan, drawn: tuple | None):
        from .columns import KEY, NAMES  # pandas; a plan is read without it

        of_arms = {*KEY} - {"entry_id", "generation"}
        own = {"failure_type", "model", *_OF_STRUCTURE}
        self.plan, self.drawn = plan, drawn
        self.shared = [c for c in table if c in of_arms - own and c in results]
        self.subgroups = [c for c in table if c in {*NAMES, "subgroup"} - of_arms - {"threshold", "echo_threshold"}]
        wanted = ["failure_type", "model", "judge", "plan_hash", *_OF_STRUCTURE, *plan.settings, *self.shared]
        wanted = [column for column in dict.fromkeys(wanted) if column in results]
        answered = results[results["status"].ne("no_response")] if "status" in results else results
        self.lines, self.asked = _lines(answered, wanted), _lines(results, wanted)
        self.gone = sorted(_models_of(results.attrs.get("parameters")) - {line.get("model") for line in self.asked})
        self.models: dict[object, set] = {}
        for line in self.lines:
            self.models.setdefault(line.get("failure_type"), set()).add(line.get("model"))

    def notes(self, table: pd.DataFrame) -> list[str]:
        """The reasons of every row in words; rows alike in what decides them, such as many entries, are read once."""
        read = [c for c in (*_DECIDES, *self.shared) if c in table]
        known: dict[tuple, str] = {}
        found = []
        for row in table.to_dict("records"):
            alike = (*map(str, map(row.get, read)), *(_is_missing(row[name]) for name in self.subgroups))
            if alike not in known:
                known[alike] = "; ".join(self.reasons(row))
            found.append(known[alike])
        return found

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
        found += list(self._of_estimand(row, self.models[row["failure_type"]])) or self._of_models(row)
        if self.gone:
            found.append(f"{', '.join(self.gone)} asked too, and not in these results")
        if self.drawn not in (None, (plan.resamples, plan.seed)) and row.get("estimand") == plan.estimand:
            draws, seed = self.drawn
            found.append(f"{draws:,} draws with seed {seed}, planned {plan.resamples:,} with seed {plan.seed}")
        found += [f"by {name}, which the plan does not have" for name in self.subgroups if not _is_missing(row[name])]
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

    def told_apart(self, table: pd.DataFrame, notes: list[str]) -> list[str]:
        """The notes, with one more for planned rows that differ only in what the plan leaves open."""
        same = [c for c in ("failure_type", "arm", "baseline", "estimand", "unit", "model", "effect") if c in table]
        left_open = [c for c in dict.fromkeys([*self.shared, "structurer", "n_generations"]) if c in table]
        planned = table.reset_index(drop=True)[[not note for note in notes]]
        for _, rows in planned.groupby(same, sort=False, dropna=False) if len(planned) else ():
            names = ", ".join(c for c in left_open if rows[c].nunique(dropna=False) > 1)
            for place in rows.index if len(rows) > 1 else ():
                notes[place] = f"one of {len(rows)} rows that the plan does not tell apart: {names}"
        return notes

    def _of_models(self, row: dict) -> list[str]:
        """A reason if models that were asked for the arm under the planned settings are not in the row."""
        n = row.get("n_models")
        if _is_missing(n) or row.get("model") in self.models[row["failure_type"]]:
            return []
        wanted, planned = (row["failure_type"], row["arm"]), self.plan.settings.items()
        lines = [line for line in self.asked if (line.get("failure_type"), _arm_of(line)) == wanted]
        asked = {line.get("model") for line in lines if all(line.get(c) in (None, value) for c, value in planned)}
        return [f"{n} of {len(asked)} models, the planned estimand is over all models"] if n < len(asked) else []

    def _is_behind(self, line: dict, row: dict) -> bool:
        if not _same(line.get("failure_type"), row["failure_type"]):
            return False
        if row.get("model") in self.models[line.get("failure_type")] and line.get("model") != row["model"]:
            return False
        if line.get("structure") != row["baseline"] and _arm_of(line) != row["arm"]:
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


def _lines(results: pd.DataFrame, wanted: list[str]) -> list[dict]:
    """The different rows of some columns; None where a value is missing or empty."""
    lines = results[wanted].drop_duplicates().astype(object)
    return lines.where(lines.notna() & lines.ne(""), None).to_dict("records")


def _arm_of(line: dict) -> str:
    embedded = by_embedding(line.get("structurer")) and line.get("structure") not in ("flat", "rag")
    return f"{line.get('structure')}{EMBEDDING if embedded else ''}"


def _models_of(parameters: object) -> set[str]:
    """Models that the runs behind a table asked, by their parameters."""
    runs = [one for one in (parameters if isinstance(parameters, list) else [parameters]) if isinstance(one, dict)]
    return set().union(*(_models_of(one.get("rejudged")) | set(one.get("models") or ()) for one in runs))


def _is_missing(value: object) -> bool:
    return value is None or value != value or value in ("", "(none)")


def _same(one: object, other: object) -> bool:
    return one == other or str(one) == str(other) or (_is_missing(one) and _is_missing(other))
