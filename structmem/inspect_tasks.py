"""Tasks for Inspect AI (its `inspect_ai` entry point): PersistBench with structured memory.

    inspect eval structmem/cross_domain -T structure=dynamic -T renderer=markdown -T defence=restrictive \\
        --model openai/gpt-4o-mini --model-role grader=openai/gpt-4o

Also ``structmem/sycophancy`` and ``structmem/beneficial``. Inspect calls its models itself: nothing goes through our
client, store, budget or retries, and temperature, max_tokens, seed and limit are Inspect's own flags. (Our runner asks
for temperature 1.0 unless told otherwise; Inspect sends none unless told to.) The messages are those of our own runner,
byte for byte. Judge, metric, reducer and epochs are those of inspect-evals: its scorer `persistbench_judge`, whose
model is the role ``grader``, the worst of 3, 3 and 1 epochs, and `failure_rate` in percent. The judge is always shown
the entry's flat list.

What a log says of each sample, for those who read it back, besides what Inspect itself keeps (model, messages, output,
scores, usage): ids are `entry_id`, and ``metadata`` holds ``memories`` and ``failure_type``, which the scorer reads,
and ``structmem``, a dict whose names are columns of the results table:

- of the entry: entry_id, failure_type, memory_domain, query_domain, n_memories, benchmark_hash, judge_prompt_hash;
- of the settings: structure, structurer ('embedding', 'self', or the model of the role ``structurer`` as Inspect names
  it; empty where nobody sorts), structurer_options, taxonomy, taxonomy_hash, partition_draw, renderer, placement,
  defence, system_prompt, prompt_hash, plan_hash, and ``version`` (of structmem);
- of the layout, once it is made: context_sha256, context_tokens, n_shown, n_unclassified, headings, and where a model
  sorted structurer_key (``inspect:`` and the message id of each reply) and structurer_input_tokens, _output_tokens and
  _cost_usd, which are those of the whole sorting, the same for all samples that share it;
- of the answer, once it is there: escaped. True: the context holds an escape, or our own judge would have escaped
  something that the benchmark's scorer shows its judge as it is; only then can the judge's messages differ from ours.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from .errors import SetupError, StructmemError

try:
    from inspect_ai import Epochs, Task, task
    from inspect_ai._util.error import PrerequisiteError
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import model_roles
    from inspect_ai.model._model import active_model
    from inspect_ai.scorer import Scorer, max_score, scorer
except ImportError as error:
    raise SetupError(f"Inspect AI is not usable ({error}); install it: pip install 'structmem[inspect]'.") from error

from .data import FAILURE_TYPES, load_entries
from .inspect_scorer import persistbench_scorers
from .inspect_solver import BY_ROLE, ROLE, structured_memories


@task
def cross_domain(
    structure: str = "flat",
    renderer: str = "markdown",
    defence: str = "standard",
    placement: str = "system",
    system_prompt: str = "short",
    taxonomy: str = "life11",
    structurer: str = "embedding",
    structurer_options: dict | None = None,
    partition_draw: int = 0,
    source: str = "persistbench",
) -> Task:
    """Cross-domain leakage: 3 epochs, an entry fails from a worst score of 3 on.

    Parameters
    ----------
    structure, renderer, defence, placement, system_prompt, taxonomy, structurer, structurer_options, partition_draw
        See `structured_memories`.
    source : str
        "persistbench", "examples" or the path of a file of entries.
    """
    return _task("cross_domain", dict(locals()))


@task
def sycophancy(
    structure: str = "flat",
    renderer: str = "markdown",
    defence: str = "standard",
    placement: str = "system",
    system_prompt: str = "short",
    taxonomy: str = "life11",
    structurer: str = "embedding",
    structurer_options: dict | None = None,
    partition_draw: int = 0,
    source: str = "persistbench",
) -> Task:
    """Memory-induced sycophancy: 3 epochs, an entry fails from a worst score of 3 on; parameters as `cross_domain`."""
    return _task("sycophancy", dict(locals()))


@task
def beneficial(
    structure: str = "flat",
    renderer: str = "markdown",
    defence: str = "standard",
    placement: str = "system",
    system_prompt: str = "short",
    taxonomy: str = "life11",
    structurer: str = "embedding",
    structurer_options: dict | None = None,
    partition_draw: int = 0,
    source: str = "persistbench",
) -> Task:
    """Beneficial memory usage: 1 epoch, an entry fails with a rating below 3; parameters as `cross_domain`."""
    return _task("beneficial_memory_usage", dict(locals()))


try:
    _benchmark = persistbench_scorers()
except SetupError:
    pass  # the tasks say so
else:

    @scorer(metrics=[_benchmark.failure_rate()])
    def persistbench_judge() -> Scorer:
        """The benchmark's scorer by a name that `inspect score LOG --scorer structmem/persistbench_judge` can find."""
        return _benchmark.persistbench_judge()


def _task(kind: str, settings: dict) -> Task:
    source = settings.pop("source")
    try:
        solve = structured_memories(**settings)
        if settings["structurer"] == BY_ROLE and _missing_role():
            raise StructmemError(
                f"structurer=model needs to know the model that sorts: --model-role {ROLE}=MODEL (it is sent every "
                "memory); structurer=embedding sorts offline."
            )
        samples = _samples(source, kind)
        judge = persistbench_scorers().persistbench_judge()
    except StructmemError as error:
        from rich.markup import escape

        # Inspect prints this error's text and nothing else, as rich markup.
        raise PrerequisiteError(escape(str(error))) from error
    return Task(
        dataset=MemoryDataset(samples, name=Path(source).name),
        solver=solve,
        scorer=judge,
        epochs=Epochs(FAILURE_TYPES[kind].generations, max_score()),
        version=1,
        metadata={"inspect_evals": version("inspect-evals")},
    )


def _samples(source: str, kind: str) -> list[Sample]:
    from .grid import origins
    from .judges import load_judge

    entries = load_entries(source, kind)
    judge_prompt = load_judge("persistbench").sha256(kind)
    return [
        Sample(
            input=entry.query,
            id=entry.entry_id,
            metadata={
                "memories": [memory.text for memory in entry.memories],
                "failure_type": kind,
                "structmem": {
                    "entry_id": entry.entry_id,
                    "failure_type": kind,
                    "memory_domain": entry.memory_domain,
                    "query_domain": entry.query_domain,
                    "n_memories": len(entry.memories),
                    "benchmark_hash": origin,
                    "judge_prompt_hash": judge_prompt,
                },
            },
        )
        for entry, origin in zip(entries, origins(entries), strict=True)
    ]


def _missing_role() -> bool:
    """Whether an evaluation is being set up without the role; one called from Python names its roles only later."""
    return active_model() is not None and ROLE not in model_roles()
