"""Two whole jobs: the demo (notebooks on the built-in model) and a study (any model, counted and priced first)."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

from .errors import InputError, SetupError, StructmemError
from .paths import default_store, root, shared
from .sorters import by_embedding

MODEL = "local/smollm2"
# Short answers, since the built-in model talks on until it is cut, and minutes matter more here than endings.
SETTINGS = {
    "source": "persistbench", "models": [MODEL], "judge": "echo", "replicates": 1, "max_tokens": 64,
    "figures": "figures/demo",
}  # fmt: skip
# Notebooks of the demo in order, with what is theirs alone; of SETTINGS each gets what it declares.
DEMO: Mapping[str, Mapping[str, object]] = {
    "10_cross_domain": {"results": "data/results/demo_cross_domain.parquet"},
    # The echo measure does not score sycophancy, so one answer per arm is enough to show the layouts at work.
    "11_sycophancy": {
        "results": "data/results/demo_sycophancy.parquet",
        "generations": 1,
        "defences": ["standard"],
        "structures": ["flat", "fixed", "dynamic", "tree"],
    },
    "12_beneficial_and_rag": {
        "results": "data/results/demo_beneficial.parquet",
        "thresholds": [0.1, 0.3],
        "top_ks": [],
    },
    "20_reductions": {"results": "data/results/demo_*.parquet"},
    "30_figures": {"results": "data/results/demo_*.parquet"},
}
PATTERN = "demo_*.parquet"


def demo(limit: int = 4, say: Callable[[str], None] = print) -> None:
    """Run the experiment notebooks on the built-in model, and say what came out and where it lies.

    Parameters
    ----------
    limit : int
        Entries per failure type; 0 runs all 500 (hours on a CPU).
    say : callable
        Where the lines go.

    Raises
    ------
    SetupError
        If the notebooks, the built-in model or the benchmark's files are missing.
    NotebookError
        If a cell fails.
    """
    from .data import load_entries
    from .local import model_sha256
    from .notebooks import parameters_of, read_notebook, run_notebook

    model_sha256(MODEL)  # what is missing is said now, not from inside a notebook
    load_entries("persistbench", limit=1)
    folder, began, before = root(), time.monotonic(), stored_calls()
    here = {path.stem: path for path in shared("notebooks").glob("*.ipynb")}
    todo = [name for name in DEMO if name in here]
    if not todo:
        raise SetupError(f"None of the demo's notebooks {list(DEMO)} is there; reinstall structmem.")
    amount = f"{limit} entries per failure type" if limit else "all entries"
    say(f"Demo: {amount}, model {MODEL}, {len(todo)} notebooks. Interrupt at will: calls are kept.")
    (folder / "data" / "results").mkdir(parents=True, exist_ok=True)
    executed = []
    for place, name in enumerate(todo, 1):
        known = parameters_of(read_notebook(here[name]))
        given = {**SETTINGS, "limit": limit, "store": _short(default_store(), folder), **DEMO[name]}
        with _heartbeat(f"[{place}/{len(todo)}] {name}", before):
            executed.append(run_notebook(here[name], {k: v for k, v in given.items() if k in known}, folder=folder))
    say("")
    results = sorted((folder / "data" / "results").glob(PATTERN))
    if results:
        say(outcome_tables(results))
    made = stored_calls() - before
    say(f"Model calls made: {made} (before: {before} in the store). Time: {time.monotonic() - began:.0f} s.")
    say(_where("Results", results, folder))
    say(_where("Executed notebooks", executed, folder))
    say(_where("Figures", sorted((folder / SETTINGS["figures"]).glob("*.png")), folder))
    say(f"Calls: {_short(default_store(), folder)} (kept: a second run makes none of them again)")
    say("These numbers show the pipeline, not an effect: few entries, a very small model, an overlap measure as judge.")


def _where(title: str, paths: Sequence[Path], folder: Path) -> str:
    if not paths:
        return f"{title}: none"
    return "\n  ".join([f"{title}:", *(_short(path, folder) for path in paths)])


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def stored_calls() -> int:
    """Model calls in the default store, not counting the offline structurer's; 0 when there is no store yet."""
    from .store import open_store

    if not Path(default_store()).is_file():
        return 0
    store = open_store(default_store(), read_only=True)
    try:
        calls = store.info()["calls"]
    finally:
        store.close()
    return sum(count for what, count in calls.items() if what.split()[0] in ("answer", "judge"))


@contextmanager
def _heartbeat(title: str, before: int, every_s: float = 15):
    """Say that a notebook runs, and now and then how many calls it has made so far."""
    began, done = time.monotonic(), threading.Event()

    def beat() -> None:
        while not done.wait(every_s):
            try:
                made = stored_calls() - before
            except StructmemError:  # the store is just being made
                continue
            print(f"{title}: {time.monotonic() - began:.0f} s, {made} calls so far", file=sys.stderr, flush=True)

    print(f"{title} …", file=sys.stderr, flush=True)
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    print(f"{title}: done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def outcome_tables(files: Sequence[Path]) -> str:
    """Rates of results files as text: failure rates where a judge scored, echo rates where the echo measure did."""
    from .results import merge_results, read_results
    from .stats import arm_summary, echo_rate, failure_rate, reductions

    results = reduce(merge_results, [read_results(file) for file in files])
    echo, parts = results["judge"] == "echo", []
    if (~echo).any():
        scored = results[~echo]
        parts.append(("Failure rates, with 95 % intervals", failure_rate(scored, by=_BY)))
        table = reductions(scored)
        alone = table["sd_note"] == "n/a (1 model)"  # the row over models, with one model in it
        parts.append(("Reductions against flat", table[~alone]))
    if echo.any():
        rates = echo_rate(results, by=_BY)
        rates = rates[rates["n_entries"] > 0]  # sycophancy has no echo rate; the last table counts its rows
        parts.append(("Echo rates (overlap of words, not failures), with 95 % intervals", rates))
    parts.append(("What became of every row asked for", arm_summary(results, by=["failure_type", "model"])))
    return "\n\n".join(f"{title}:\n{_text(table)}" for title, table in parts) + "\n"


_BY = ["failure_type", "model", "structure"]
# The tables of the notebooks show all; in a terminal a line should hold a row.
_TOO_WIDE = ("threshold", "interval", "best_case", "worst_case", "n_escaped", "unscored_share", "truncated_share")


def _text(table) -> str:
    from .tables import show

    # Where rows are missing, the bounds say how much that could matter.
    missing = "n_unscored" in table and bool(table["n_unscored"].fillna(0).any())
    kept = ("best_case", "worst_case") if missing else ()
    return str(show(table.drop(columns=[column for column in _TOO_WIDE if column in table and column not in kept])))


def study(
    model: str, limit: int, *, judge: str = "persistbench", judge_model: str | None = None,
    structurer: str = "embedding", system_prompt: str = "short", temperature: float = 1.0,
    max_tokens: int | None = None, budget_usd: float | None = None, allow_unpriced: bool = False,
    max_concurrency: int | None = None, timeout_s: float = 120, folder: str | Path | None = None,
    confirm: Callable[[str], bool], say: Callable[[str], None] = print,
) -> tuple[Path | None, int]:  # fmt: skip
    """Check the connection, count and price the calls, ask, run, and show the tables of the whole results folder.

    Parameters
    ----------
    model, judge, judge_model, structurer, system_prompt, temperature, max_tokens, budget_usd, allow_unpriced, timeout_s
        As in `experiment.run`; the judge ``persistbench`` asks the paper's judge model by default.
    limit : int
        Entries per failure type; 0 runs all.
    max_concurrency : int, optional
        Calls at once for each model; default: the client's.
    folder : str or Path
        Where the results lie; a model added later joins those that are there (default: ``data/results/study``).
    confirm : callable
        Given the question, returns whether to go on.

    Returns
    -------
    (Path or None, int)
        The results file, None when the user said no; and the exit status: 0 if every row that can be scored is, 1 if
        not, 2 if nothing was run.

    Raises
    ------
    SetupError
        If a key, an address or an extra is missing: the first call shows it.
    InputError
        If there is a budget, and a price is not known.
    """
    from .calls import model_label
    from .data import load_entries
    from .experiment import finished, plan, run
    from .judges import judge_model_settings, load_judge
    from .llm import MAX_CONCURRENCY
    from .missing import completeness
    from .results import save_results

    folder = Path(folder) if folder else root() / "data" / "results" / "study"
    entries = load_entries("persistbench", limit=limit)
    settings = dict(
        models=(model,), structurers=(structurer,), judge=judge, judge_model=judge_model, system_prompt=system_prompt,
        temperature=temperature, max_tokens=max_tokens,
    )  # fmt: skip
    count = plan(entries, **settings)
    asked = [] if by_embedding(structurer) else [structurer]  # an embedding model answers no chat
    for name in [model, *asked]:
        connection_check(name, {}, {}, say)
    if load_judge(judge).asks_model:
        connection_check(*judge_model_settings(judge_model, None), say)
    say(str(count))
    if done := finished(entries, **settings):
        say(f"{done:,} of these rows are finished in the store and cost nothing; {count.rows - done:,} are left.")
    if judge == "echo" and (mute := sum(entry.failure_type == "sycophancy" for entry in entries)):
        say(f"The echo measure scores no sycophancy: {mute} of {len(entries)} entries are answered and not scored.")
    if budget_usd is not None and count.cost_usd is None and not allow_unpriced:
        raise InputError(
            "the price of a model is not known, so a budget cannot be kept: leave --budget out, or say "
            "--allow-unpriced (unpriced calls then count as nothing). No call of the run was made."
        )
    if not confirm("Run it?"):
        say("Not run.")
        return None, 2
    results = run(
        entries, **settings, budget_usd=budget_usd, allow_unpriced=allow_unpriced, timeout_s=timeout_s,
        max_concurrency=MAX_CONCURRENCY if max_concurrency is None else max_concurrency, progress=True,
    )  # fmt: skip
    parts = (model_label(model), load_judge(judge).name, structurer, system_prompt, max_tokens or "", limit or "all")
    name = "_".join(re.sub(r"[^\w.-]+", "_", str(part)) for part in parts if part)
    path = save_results(results, folder / f"{name}.parquet")
    try:
        say(outcome_tables(sorted(folder.glob("*.parquet"))))
    except InputError as error:  # runs of other settings lie there too: what was just paid for is shown all the same
        say(f"{error} Only this run is shown; name another --results folder to keep them apart.\n")
        say(outcome_tables([path]))
    say(f"Results: {path}")
    for line in (*_equal_layouts(results), *_this_run(results)):
        say(line)
    done = completeness(results)
    say(str(done))
    return path, done.exit_status


def _this_run(results) -> list[str]:
    """What was asked now, as against what the table holds; why the run stopped; and what went wrong most often."""
    calls, lines = results.attrs["calls"], []
    made = [f"{count:,} {_CALLS.get(role, role)}" for role, count in calls["made"].items() if count]
    cost = f", ${calls['cost_usd']:.4f} as far as prices are known" if calls["cost_usd"] else ""
    lines.append(
        f"This run made {', '.join(made) or 'no calls'} ({calls['retries']:,} retries{cost}). The whole table:"
    )
    if results.attrs.get("stopped"):
        lines.insert(0, f"Stopped before the end: {results.attrs['stopped']}")
    lost = results.loc[results["status"] != "ok", "status_detail"].dropna()
    if len(lost):
        often = lost.value_counts()
        lines.insert(0, f"Most frequent trouble ({often.iloc[0]} rows): {often.index[0]}")
    return lines


_CALLS = {"answer": "answers", "judge": "verdicts", "classifier": "sortings", "proposer": "proposals"}


def _equal_layouts(results) -> list[str]:
    """Structures that gave an entry the same context: such rows share their answers, so they show no difference."""
    contexts = results.drop_duplicates(["entry_id", "structure"]).pivot(
        index="entry_id", columns="structure", values="context_sha256"
    )
    lines, names = [], sorted(contexts)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            both = contexts[[one, other]].dropna()
            if same := int((both[one] == both[other]).sum()):
                lines.append(
                    f"{one} and {other} came out equal in {same} of {len(both)} entries: asked once, for both."
                )
    return lines


def connection_check(model: str, params: Mapping, options: Mapping, say: Callable[[str], None]) -> None:
    """Make one small call, so that a missing key or a wrong name shows before anything is planned or paid.

    Raises
    ------
    SetupError
        If there is no answer; the provider's reason is named.
    """
    from .calls import Request, model_label
    from .llm import Client

    question = ({"role": "user", "content": "Reply with one word: ready"},)
    request = Request(model, question, "answer", {**params, "max_tokens": 64}, dict(options))
    with Client(":memory:", max_retries=1) as client:
        call = client.call(request)
    # A reasoning model may spend the few tokens without a visible word: it is there all the same.
    if call.status != "ok" and call.status_reason not in ("empty", "filtered", "refused"):
        reason = call.error or "no reason was given"
        raise SetupError(f"{model_label(model)} did not answer ({call.status_reason}): {reason}")
    served = f", served as {call.served_model}" if call.served_model else ""
    say(f"Connection: {model_label(model)} answers{served}.")
