"""Where the variance of a reduction comes from: prompt, draw, generation; components by the method of moments."""

from __future__ import annotations

import json
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from .errors import choice
from .intervals import LEVEL
from .optiontexts import options_of
from .outcomes import ARM, NONE, display_structure, is_echo, sort_arms, unit_rows
from .reliability import half_width
from .stamping import stamped

ENTRY, PROMPT, PROMPT_BY_ENTRY, DRAW, GENERATION, BASELINE = (
    "entry", "prompt", "prompt × entry", "draw", "generation", "generation of the baseline",
)  # fmt: skip
COMPONENTS = (ENTRY, PROMPT, PROMPT_BY_ENTRY, DRAW, GENERATION, BASELINE)
JACKKNIFE = "jackknife over entries, t"
WILLIAMS = "Williams-Tukey, other wordings"
FEW = 10  # degrees of freedom; a variance from fewer is known only to a factor of six or more
_LEVELS = ["wording", "partition_draw", "repeat"]
_MEASURES = {
    "failure": {"failure rate": ("failed", 100.0, "pp"), "mean score": ("mean_value", 1.0, "score")},
    "echo": {"echo rate": ("failed", 100.0, "pp"), "mean overlap": ("mean_value", 1.0, "overlap")},
}


def reduction_variance(results: pd.DataFrame, baseline: str = "flat", outcome: str | None = None) -> pd.DataFrame:
    """Split the variance of a structure's reduction by entry, prompt wording, draw of the partition, and generation.

    The reduction of one generation is the baseline's mean over its generations on the same entry, less the value of
    that generation. Wordings are the same for all entries; a draw belongs to one entry and wording (the index of a draw
    says nothing), and a generation to one draw:

        reduction = mean + entry + prompt + prompt × entry + draw + generation

    The components are estimated from mean squares of the balanced table, by the method of moments (Searle, Casella &
    McCulloch 1992, Variance Components, section 4.4): with W wordings, D draws, G generations and n entries, the
    expected mean squares are σ²_G within draws; that + G σ²_D of draws; + D G σ²_PE of prompt × entry; + n D G σ²_P of
    prompts, and + W D G σ²_E of entries instead. An estimate may come out below 0, which is shown as it is: the
    component is then compatible with 0, and truncating it would bias the others' shares.

    Parameters
    ----------
    results : DataFrame
        One row per generation; structures sorted by a model with several ``wording`` or ``partition_draw``. A replicate
        counts as further generations.
    baseline : str
        A structure in the results; with it missing under some settings, those have no row.
    outcome : 'failure', 'echo' or None
        None: 'echo' where every row was checked by the echo measure, else 'failure'. Rates are per generation (FR@1).

    Returns
    -------
    DataFrame
        One row per model, arm, measure (the rate, and the mean score or overlap) and component: ``levels``, how many
        there are (of one entry and wording: draws; of one draw: generations), ``df``; ``variance`` in ``unit``²,
        ``low``, ``high`` (95 %; ``interval`` names it): of the prompt Williams and Tukey's, which is for other wordings
        and assumes normal effects (Williams 1962, Biometrika 49:278), of the others a jackknife over entries with t;
        ``sd`` = √variance (NaN below 0); ``variance_share`` of the sum of the components within entries, negative ones
        taken as 0; ``sd_in_mean``: what it adds to the standard deviation of the mean reduction over
        these ``n_entries`` entries with one wording, one draw and ``K`` generations (prompt: common to all entries, so
        it does not shrink with them; of the entries: the sampling of entries); ``n_left_out`` entries that are not
        complete in every cell; ``reading`` in words.

    Raises
    ------
    InputError
        As ``failure_rate``; also when the baseline is not among the structures.

    Notes
    -----
    Components without a second level are part of another one (one generation: of the draws'; one draw: of prompt ×
    entry), and their rows say so. Where wordings have different numbers of draws or generations, the first of each that
    all have are used. Three wordings tell little about the wordings that nobody wrote, whatever the number of entries.
    Simulated with 30 entries, 4 wordings, 3 draws, 2 generations and normal effects, the estimates are unbiased, and
    the intervals cover 94 % (prompt) and 91 to 96 % (the others); with 10 entries, 3 wordings and 2 draws, 96 % and 85
    (entry) to 94 %.
    """
    outcome = outcome or ("echo" if is_echo(results) else "failure")
    results = results.assign(wording=_wordings(results), replicate=results.get("replicate", 0))
    units, arm = unit_rows(results, ["generation", "wording"], outcome)
    if len(units) and baseline not in set(units["structure"]):
        raise choice("baseline", baseline, set(units["structure"]))
    units["repeat"] = list(zip(units["replicate"].map(str), units["generation"], strict=True))
    shared = ["failure_type", *[c for c in arm if c not in _OWN]]
    if "structurer_options" in units:
        units["structurer_options"] = units["structurer_options"].map(_without_wording)
    rows = []
    for context, group in units.groupby(shared, sort=False):
        flat = group[group["structure"] == baseline]
        own = [c for c in ("structure", "structurer", "structurer_options", "taxonomy") if c in group]
        for key, mine in group[group["structure"] != baseline].groupby(own, sort=False):
            named = dict(zip([*shared, *own], [*context, *key], strict=True))
            if not len(flat) or not (mine[["wording", "partition_draw"]].nunique() > 1).any():
                continue
            arm_name = display_structure(named["structure"], named.get("structurer"))
            identity = {"model": named["model"], "failure_type": named["failure_type"], "arm": arm_name}
            identity |= {c: named[c] for c in [*shared, *own] if c not in (*identity, "threshold")}
            for measure, (column, scale, unit) in _MEASURES[outcome].items():
                cube, base, counts = _cube(mine, flat, column)
                found = _components(scale * cube, scale * base)
                rows += [identity | {"measure": measure, "unit": unit} | row | counts for row in found]
    columns = ["measure", "component", "levels", "df", "variance", "low", "high", "interval", "sd", "variance_share"]
    columns += ["sd_in_mean", "unit", "n_entries", "n_left_out", "reading"]
    if not rows:
        return stamped(pd.DataFrame(columns=["model", "failure_type", "arm", *columns]), results)
    table = pd.DataFrame(rows).assign(position=range(len(rows)))
    table = sort_arms(table, ["failure_type", "model", "structure", "position"])
    names = [c for c in table if c in (*ARM, "failure_type") and c not in ("model", "structure")]
    told = [c for c in names if c == "failure_type" or table[c].nunique(dropna=False) > 1]
    return stamped(table[["model", *told, "arm", *columns]], results)


_OWN = ("structure", "structurer", "structurer_options", "taxonomy", "partition_draw", "replicate")


def _wordings(results: pd.DataFrame) -> pd.Series:
    """The wording of the sorting prompts by row; '(none)' where no model sorted."""
    if "structurer_options" not in results:
        return pd.Series(NONE, results.index)
    return results["structurer_options"].map(lambda text: str(options_of(text).get("wording", NONE)))


def _without_wording(text: object) -> str:
    return json.dumps({k: v for k, v in options_of(text).items() if k != "wording"}, sort_keys=True)


def _cube(mine: pd.DataFrame, flat: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray, dict]:
    """Reductions by entry × wording × draw × generation, the baseline by entry × generation, and what was left out."""
    n_draws = mine.groupby("wording")["partition_draw"].nunique().min()
    n_repeats = mine.groupby(["wording", "partition_draw"])["repeat"].nunique().min()
    mine = mine.sort_values(_LEVELS)
    mine = mine[mine.groupby("wording")["partition_draw"].transform(lambda v: v.rank(method="dense")) <= n_draws]
    place = mine.groupby(["entry_id", "wording", "partition_draw"])["repeat"].transform(lambda v: np.arange(len(v)))
    mine = mine.assign(place=place)[place < n_repeats]
    draw = mine.groupby("wording")["partition_draw"].transform(lambda v: v.rank(method="dense")).astype(int)
    wide = mine.assign(draw=draw).pivot(index="entry_id", columns=["wording", "draw", "place"], values=column)
    wide = wide.sort_index(axis=1)
    base = flat.sort_values("repeat").pivot(index="entry_id", columns="repeat", values=column)
    asked = wide.index.union(base.index)
    wide, base = wide.dropna(), base.dropna()
    entries = wide.index.intersection(base.index).sort_values()
    wide, base = (side.loc[entries].to_numpy(dtype=float) for side in (wide, base))
    n_wordings = mine["wording"].nunique()
    cube = base.mean(axis=1).reshape(-1, 1, 1, 1) - wide.reshape(-1, n_wordings, n_draws, n_repeats)
    return cube, base, {"n_entries": len(entries), "n_left_out": len(asked) - len(entries)}


def _mean_squares(cube: np.ndarray) -> dict[str, float]:
    """Mean squares by component; NaN without a degree of freedom."""
    n, w, d, g = cube.shape
    of_draw, of_cell, of_entry, of_wording = (
        cube.mean(axis=3), cube.mean(axis=(2, 3)), cube.mean(axis=(1, 2, 3)), cube.mean(axis=(0, 2, 3)),
    )  # fmt: skip
    free = degrees_of_freedom(cube.shape)

    def mean_square(parts: np.ndarray, times: int, component: str) -> float:
        return times * float((parts**2).sum()) / free[component] if free[component] else nan

    grand = cube.mean()
    within = of_cell - of_entry[:, None] - of_wording[None, :] + grand
    squares = {
        GENERATION: mean_square(cube - of_draw[..., None], 1, GENERATION),
        DRAW: mean_square(of_draw - of_cell[..., None], g, DRAW),
        PROMPT_BY_ENTRY: mean_square(within, d * g, PROMPT_BY_ENTRY),
        PROMPT: mean_square(of_wording - grand, n * d * g, PROMPT),
        ENTRY: mean_square(of_entry - grand, w * d * g, ENTRY),
    }
    return squares


def variance_components(cube: np.ndarray) -> dict[str, float]:
    """Variance components of a balanced table entry × wording × draw × generation, NaN without a second level.

    See `reduction_variance`. A component whose factor has one level is part of the next one above it: of draws where
    there is one generation, of prompt × entry where there is one draw.

    Parameters
    ----------
    cube : array, shape (n, W, D, G)

    Returns
    -------
    dict
        By component, in the square of the values' unit; may be below 0.
    """
    n, w, d, g = cube.shape
    if not n:
        return dict.fromkeys(COMPONENTS[:-1], nan)
    squares = _mean_squares(cube)
    found, below = {}, 0.0
    for component, times in ((GENERATION, 1), (DRAW, g), (PROMPT_BY_ENTRY, d * g)):
        found[component] = (squares[component] - below) / times
        below = below if np.isnan(squares[component]) else squares[component]
    for component, times in ((PROMPT, n * d * g), (ENTRY, w * d * g)):
        found[component] = (squares[component] - below) / times
    return {component: found[component] for component in COMPONENTS if component in found}


def degrees_of_freedom(shape: tuple[int, int, int, int]) -> dict[str, int]:
    """Degrees of freedom of each mean square of a table entry × wording × draw × generation."""
    n, w, d, g = shape
    found = {ENTRY: n - 1, PROMPT: w - 1, PROMPT_BY_ENTRY: (n - 1) * (w - 1), DRAW: n * w * (d - 1)}
    return {name: max(count, 0) for name, count in (found | {GENERATION: n * w * d * (g - 1)}).items()}


def _components(cube: np.ndarray, base: np.ndarray) -> list[dict]:
    n, w, d, g = cube.shape
    counts = {ENTRY: n, PROMPT: w, PROMPT_BY_ENTRY: w, DRAW: d, GENERATION: g, BASELINE: base.shape[1]}
    free = degrees_of_freedom(cube.shape) | {BASELINE: n * (base.shape[1] - 1)}
    estimates = _estimates(cube, base)
    widths = np.full(len(estimates), nan)
    if n > 2:
        others = (np.arange(n) != i for i in range(n))
        widths = half_width(np.array([list(_estimates(cube[kept], base[kept]).values()) for kept in others]))
    # The baseline's generations are averaged before the difference is taken: their noise is in the entries' component.
    single = [name for name in estimates if name not in (ENTRY, BASELINE)]
    total = sum(max(estimates[name], 0.0) for name in single if not np.isnan(estimates[name]))
    shrink = {ENTRY: n, PROMPT: 1, PROMPT_BY_ENTRY: n, DRAW: n, GENERATION: n * g, BASELINE: n * base.shape[1]}
    rows = []
    for (name, variance), half in zip(estimates.items(), widths, strict=True):
        low, high, interval = variance - half, variance + half, JACKKNIFE
        why = _why(name, counts, n, cube)
        if name == PROMPT and not why:
            low, high, interval = *_williams(cube), WILLIAMS
        elif why or np.isnan(half) or half < 1e-12:
            low, high, interval = (
                nan,
                nan,
                f"not available: {why or ('fewer than three entries' if n < 3 else 'no variation')}",
            )
        sd = sqrt(variance) if variance >= 0 else nan
        in_mean = sqrt(variance / shrink[name]) if variance >= 0 else nan
        share = max(variance, 0.0) / total if total > 0 and name in single and not np.isnan(variance) else nan
        rows.append(
            {
                "component": name, "levels": counts[name], "df": free[name], "variance": variance, "low": low,
                "high": high, "interval": interval, "sd": sd, "variance_share": share, "sd_in_mean": in_mean,
                "reading": _reading(name, variance, low, counts[name], free[name], why),
            }
        )  # fmt: skip
    return rows


def _estimates(cube: np.ndarray, base: np.ndarray) -> dict[str, float]:
    found = variance_components(cube)
    m = base.shape[1]
    found[BASELINE] = float(base.var(axis=1, ddof=1).mean()) if m > 1 and len(base) else nan
    return found


def _williams(cube: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Interval of the variance between wordings, of which these are a sample."""
    n, w, d, g = cube.shape
    squares, free = _mean_squares(cube), degrees_of_freedom(cube.shape)
    ends = []
    for tail in ((1 + level) / 2, (1 - level) / 2):
        most = stats.f.ppf(tail, free[PROMPT], free[PROMPT_BY_ENTRY])
        over = n * d * g * stats.chi2.ppf(tail, free[PROMPT])
        ends.append(free[PROMPT] * (squares[PROMPT] - most * squares[PROMPT_BY_ENTRY]) / over)
    return ends[0], ends[1]


def _why(name: str, counts: dict, n: int, cube: np.ndarray) -> str:
    """Why a component cannot be told from others; empty if it can."""
    if not n:
        return "no entry is complete in every cell"
    if name != ENTRY and counts[name] < 2:
        into = {PROMPT: "", PROMPT_BY_ENTRY: "", DRAW: PROMPT_BY_ENTRY, GENERATION: DRAW, BASELINE: ENTRY}[name]
        if into == DRAW and counts[DRAW] < 2:
            into = PROMPT_BY_ENTRY
        what = {PROMPT: "wording", PROMPT_BY_ENTRY: "wording", DRAW: "draw"}.get(name, "generation")
        return f"one {what}" + (f", so it is part of '{into}'" if into else "")
    if n < 2 and name in (ENTRY, PROMPT_BY_ENTRY, PROMPT):
        return "one entry"
    return "" if np.ptp(cube) > 0 else "no variation: all values are the same"


def _reading(name: str, variance: float, low: float, levels: int, free: int, why: str) -> str:
    if why:
        return f"not available: {why}"
    few = ""
    if name == PROMPT and levels <= FEW:
        few = f"; {levels} wordings are too few to know how much others would differ"
    elif free < FEW:
        few = f"; {free} degrees of freedom are too few to know it well"
    if variance < 0:
        return f"compatible with 0 (the estimate is below 0, which no variance is){few}"
    if np.isnan(low):
        return f"no interval{few}"
    return ("compatible with 0" if low <= 0 else "above 0 for entries like these") + few


def variance_reading(table: pd.DataFrame) -> None:
    """Print what a table of `reduction_variance` does and does not support."""
    if not len(table):
        print("No arm has several wordings or draws and a baseline beside it: there is no variance to split.")
        return
    if table["measure"].eq("echo rate").any():
        print("Scored by the offline echo measure (overlap of words): these numbers show the pipeline, not an effect.")
    settings = [c for c in table.columns[: table.columns.get_loc("measure")]]
    for key, rows in table.groupby([*settings, "measure"], sort=False, dropna=False):
        print(_heading(dict(zip([*settings, "measure"], key, strict=True)), rows))
        for row in rows.itertuples():
            if row.component == ENTRY and row.reading.startswith("not available"):
                continue
            size = f"{row.sd:.3g} {row.unit}" if row.sd == row.sd else "none found"
            size = "" if row.reading.startswith("not available") else f"standard deviation {size}, "
            print(f"  {row.component}: {size}{row.reading}")
    print("Intervals are for other entries; that of the prompt is for other wordings, with normal effects assumed.")


def _heading(named: dict, rows: pd.DataFrame) -> str:
    levels = rows.set_index("component")["levels"]
    design = ", ".join(
        f"{levels[name]} {what}{'' if levels[name] == 1 else 's'}"
        for name, what in ((PROMPT, "wording"), (DRAW, "draw"), (GENERATION, "generation"))
    )
    who = ", ".join(str(value) for value in named.values())
    return f"{who}: {rows['n_entries'].iloc[0]} entries, {design}, baseline with {levels[BASELINE]}"
