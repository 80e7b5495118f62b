"""Judge an answer: the benchmark's judge, your own prompt, a Python function, or the offline echo measure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from .background import run_apart, run_sync
from .data import FAILURE_TYPES, Entry, FailureType
from .echo import ECHO_THRESHOLD, Echo
from .errors import InputError, StructmemError, choice

# The benchmark's own judge and the settings it was calibrated with; they hold for this model only.
DEFAULT_JUDGE = "openrouter/moonshotai/kimi-k2-thinking"
DEFAULT_JUDGE_PARAMS = {"temperature": 0, "reasoning_effort": "high"}
DEFAULT_JUDGE_OPTIONS = {"extra_body": {"provider": {"order": ["google-vertex"], "allow_fallbacks": False}}}

ECHO_TAXONOMY = "life11"
_BUILT_IN = ("persistbench", "echo")
_FILE_FIELDS = {"name", "system", "scale", "score_field", "high_is_bad", "threshold"}

# A model reads </Memories > or <query id="2"> as a delimiter too, so case, blanks, attributes and invisible characters
# do not matter, nor does a tag that the text leaves open: what follows the text could close it. One backslash is put
# after the "<" (or before the "-" of a forged bullet) and every run of backslashes there grows by one, so `unescape` is
# exact. "a < response time" is no tag, nor are <query-id> and &lt;query&gt;.
_UNSEEN = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff"
_BREAK = "\\n\\r\\x0b\\x0c\\x1c-\\x1e\\x85\\u2028\\u2029"
_NAME = "(?:" + "|".join(f"[{_UNSEEN}]*+".join(name) for name in ("memories", "query", "response")) + f")[{_UNSEEN}]*+"
_GAP = rf"[\s{_UNSEEN}]*+"  # possessive: thousands of blanks must not make the search slow
_TAG = re.compile(
    rf"<(\\*)(?={_GAP}/{_GAP}{_NAME}(?![\w.:-])|[{_UNSEEN}]*+{_NAME}(?:[\s/>]|\Z)|{_GAP}{_NAME}{_GAP}/?{_GAP}>)",
    re.IGNORECASE,
)
_ESCAPED_TAG = re.compile(_TAG.pattern.replace(r"<(\\*)", r"<\\(\\*)"), re.IGNORECASE)
_BULLET = re.compile(rf"([{_BREAK}](?:[^\S{_BREAK}]|[{_UNSEEN}])*+)(\\*-(?=\s|$))")
_ESCAPED_BULLET = re.compile(_BULLET.pattern.replace(r"(\\*-", r"\\(\\*-"))


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge, ready to be used on entries.

    Parameters
    ----------
    name : str
        What the results column ``judge`` says.
    prompts : dict of str to str, optional
        Failure type to system prompt; the key "" holds for every entry.
    scale : FailureType, optional
        The scale of an own judge; None: the scale of the entry's failure type.
    function : callable, optional
        ``fn(entry, response)``, for judges written in Python.
    """

    name: str
    prompts: dict[str, str] | None = None
    scale: FailureType | None = None
    function: Callable | None = None

    @property
    def asks_model(self) -> bool:
        """Whether a judgement is a model call."""
        return self.prompts is not None

    def scale_for(self, failure_type: str | None) -> FailureType | None:
        """The scale for entries of a failure type; None when they cannot be scored."""
        if self.scale is not None:
            return replace(self.scale, name=failure_type or self.scale.name)
        return FAILURE_TYPES.get(failure_type or "")

    def system(self, failure_type: str | None) -> str:
        """The judge's system prompt for entries of a failure type."""
        prompts = self.prompts or {}
        return prompts.get(failure_type or "", prompts.get("", ""))

    def sha256(self, failure_type: str | None) -> str:
        """Hash of the judge's system prompt; empty for judges without one."""
        return hashlib.sha256(self.system(failure_type).encode()).hexdigest() if self.prompts else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge said of one answer.

    Attributes
    ----------
    status : {"ok", "no_verdict"}
        ``no_verdict`` comes with a ``status_reason``; it is never a score of 0.
    score : int or None
        On the scale of the failure type (or of the own judge); None from ``echo``, which does not score.
    echo_overlap, echoed : float in [0, 1] and bool, or None
        The echo measure and whether it reaches the threshold. For ``beneficial_memory_usage`` a memory that comes
        back is wanted: there ``echoed`` False is what fails.
    escaped : bool
        Whether a delimiter inside the memories, the query or the answer had to be escaped for the judge.
    call : Call or None
        The judge's last model call: the one whose reply was used, if any was.
    calls : tuple of Call
        Every attempt in order, unusable replies included; `call` is the last.
    conversions : tuple of str
        Repairs and conversions applied while reading the reply.
    """

    status: str
    status_reason: str | None = None
    score: int | None = None
    reasoning: str | None = None
    echo_overlap: float | None = None
    echoed: bool | None = None
    escaped: bool = False
    call: object | None = None
    conversions: tuple[str, ...] = ()
    detail: str | None = None
    calls: tuple = ()


def load_judge(judge: str | Path | Callable | Judge) -> Judge:
    """Find a judge: "persistbench", "echo", the path of a YAML file, or a Python function.

    A judge file declares ``name``, ``system`` (the system prompt), ``scale`` ([low, high], whole numbers),
    ``score_field`` (the key of the score in the JSON reply), ``high_is_bad`` and ``threshold`` (a score at or above it
    counts as failure when ``high_is_bad``, else a score below it).

    Raises
    ------
    InputError
        For an unknown name, a file that does not declare these fields, or a function without a name.
    """
    if isinstance(judge, Judge):
        return judge
    if callable(judge):
        name = getattr(judge, "judge_id", None) or f"{judge.__module__}.{getattr(judge, '__qualname__', '<object>')}"
        if not isinstance(name, str) or "<" in name:
            raise InputError(
                "judge: a lambda or local function has no lasting name; give it one: fn.judge_id = 'mine-1'."
            )
        if name in _BUILT_IN:
            raise InputError(f"judge: judge_id is {name!r}, the name of a built-in judge; give it another.")
        return Judge(name, function=judge)
    if judge == "echo":
        return Judge("echo")
    if judge == "persistbench":
        from .data import persistbench_prompts

        return Judge("persistbench", prompts=persistbench_prompts()["judge"])
    if isinstance(judge, Path) or str(judge).endswith((".yaml", ".yml")):
        path = Path(judge)
        return _read_judge(str(path), path.stat().st_mtime_ns if path.exists() else 0)
    raise choice("judge", judge, ["persistbench", "echo", "PATH.yaml", "a Python function"])


@lru_cache(maxsize=16)
def _read_judge(path: str, _changed: int) -> Judge:
    import yaml

    where = f"judge file {Path(path).name}"
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}; expected a readable YAML file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: is not valid YAML in UTF-8 ({str(error).splitlines()[0]}).") from error
    if not isinstance(value, dict) or set(value) != _FILE_FIELDS:
        found = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise InputError(f"{where}: found {found}; expected exactly the fields {sorted(_FILE_FIELDS)}.")

    def need(field: str, good: bool, expected: str) -> None:
        if not good:
            raise InputError(f"{where}: {field!r} is {value[field]!r}; expected {expected}.")

    def whole(number: object) -> bool:
        return isinstance(number, int) and not isinstance(number, bool)

    for field in ("name", "system", "score_field"):
        need(field, isinstance(value[field], str) and bool(value[field].strip()), "text that is not blank")
    need("name", value["name"] not in (*_BUILT_IN, "simulated"), "a name that no other judge has")
    scale = value["scale"]
    good = isinstance(scale, list) and len(scale) == 2 and all(map(whole, scale)) and scale[0] < scale[1]
    need("scale", good, "[low, high], two whole numbers with low < high")
    need("high_is_bad", isinstance(value["high_is_bad"], bool), "true or false")
    low, high = scale
    # At the lowest score of the scale every answer would be on one side of it.
    need("threshold", whole(value["threshold"]) and low < value["threshold"] <= high, f"one of {low + 1}..{high}")
    own = FailureType(value["name"], low, high, value["high_is_bad"], value["threshold"], 1, value["score_field"])
    return Judge(value["name"], prompts={"": value["system"]}, scale=own)


def judge_model_settings(model: object = None, options: dict | None = None) -> tuple[object, dict, dict]:
    """The judge's model, sampling parameters and options.

    Returns
    -------
    tuple of (model, params, options)
        The benchmark's settings when the model is `DEFAULT_JUDGE`; temperature 0 for any other. `options` win.
    """
    model = DEFAULT_JUDGE if model is None else model
    default = model == DEFAULT_JUDGE
    params = dict(DEFAULT_JUDGE_PARAMS) if default else {"temperature": 0}
    own_params, own_options = split_options(options)
    return model, params | own_params, (DEFAULT_JUDGE_OPTIONS if default else {}) | own_options


def split_options(options: dict | None) -> tuple[dict, dict]:
    """Part the sampling parameters of an options dict from the rest (address, provider routing, extra body)."""
    sampling = ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort", "response_format")
    options = options or {}
    return (
        {key: value for key, value in options.items() if key in sampling},
        {key: value for key, value in options.items() if key not in sampling},
    )


def escape(text: str, memory: bool = False) -> str:
    """Escape the judge layout's delimiters inside a text (and, in a memory, a line that looks like a new bullet)."""
    if "<" in text:
        text = _TAG.sub(r"<\\\1", text)
    return _BULLET.sub(r"\1\\\2", text) if memory else text


def unescape(text: str, memory: bool = False) -> str:
    """Undo `escape`, exactly."""
    return _ESCAPED_TAG.sub(r"<\1", _ESCAPED_BULLET.sub(r"\1\2", text) if memory else text)


@lru_cache(maxsize=1024)
def _shown(memories: tuple[str, ...], query: str) -> tuple[str, bool]:
    """The part of the judge's message that all answers to an entry share, and whether anything in it was escaped."""
    safe = [escape(text, memory=True) for text in memories]
    asked = escape(query)
    bullets = "\n".join(f"- {text}" for text in safe)
    return f"<memories>\n{bullets}\n</memories>\n\n<query>\n{asked}\n</query>\n\n", [*safe, asked] != [*memories, query]


def judge_messages(
    entry: Entry, response: str, judge: str | Path | Callable | Judge = "persistbench"
) -> tuple[list[dict], bool]:
    """The messages that a judge model is shown: the entry's flat memory list, the query and the visible answer.

    Returns
    -------
    tuple of (list of dict, bool)
        System and user message; whether anything had to be escaped. Without escapes the user message is byte for byte
        the one of the benchmark.

    Raises
    ------
    InputError
        When the judge is not asked by messages, or has no prompt for the entry's failure type.
    """
    judge = load_judge(judge)
    if not judge.asks_model or judge.scale_for(entry.failure_type) is None:
        raise InputError(f"judge {judge.name!r} has no prompt for failure_type {entry.failure_type!r}.")
    shown, forged = _shown(tuple(memory.text for memory in entry.memories), entry.query)
    answer = escape(response)
    user = f"{shown}<response>\n{answer}\n</response>"
    system = judge.system(entry.failure_type)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}], forged or answer != response


async def ajudge(
    entry: Entry,
    response: str,
    *,
    judge: str | Path | Callable | Judge = "persistbench",
    ask: Callable | None = None,
    params: dict | None = None,
    echo: Echo | None = None,
    echo_threshold: float = ECHO_THRESHOLD,
    timeout_s: float = 120,
) -> Verdict:
    """Judge one answer.

    Parameters
    ----------
    entry : Entry
        Its original flat memory list is what the judge sees, whatever the answering model was shown.
    response : str
        The visible answer, without reasoning.
    judge : str, Path, callable or Judge
        See `load_judge`.
    ask : callable, optional
        How a judge model is reached (``Client.asker``); needed by judges that are prompts.
    params : dict, optional
        Sampling parameters of the judge model; default: temperature 0.
    echo : Echo, optional
        The entry's prepared overlap measure (`echo_for`), so that it is made once for many answers.
    echo_threshold : float
        Overlap from which an answer counts as echo, in (0, 1].
    timeout_s : float
        Seconds that a judge written in Python may take; a plain function runs in a thread of its own.

    Returns
    -------
    Verdict
        `ask` asks again for a reply that cannot be read; what stays unreadable is ``no_verdict`` with the reason.
    """
    judge = load_judge(judge)
    scale = judge.scale_for(entry.failure_type)
    if scale is None:
        return Verdict("no_verdict", "no_failure_type")
    if judge.name == "echo" and judge.function is None:
        return await _echo(entry, response, echo, echo_threshold)
    if judge.function is not None:
        return await _call(judge.function, entry, response, scale, timeout_s)
    if ask is None:
        raise InputError(f"judge {judge.name!r} asks a model; pass ask=client.asker(MODEL).")
    from .llm import as_ask
    from .replies import ReplyError, read_verdict

    def accept(call):
        given = {"score_field": scale.score_field, "low": scale.low, "high": scale.high}
        return read_verdict(call.text or "", **given, finish_reason=call.finish_reason)

    messages, escaped = judge_messages(entry, response, judge)
    memories = tuple(memory.text for memory in entry.memories)
    params = {"temperature": 0} if params is None else params
    seen: list = []
    asked = {"role": "judge", "params": params, "accept": accept, "memories": memories, "seen": seen}
    try:
        call, parsed = await as_ask(ask)(messages, **asked)
    except ReplyError as error:
        return Verdict("no_verdict", error.code, escaped=escaped, detail=error.detail, calls=tuple(seen))
    about = {"escaped": escaped, "call": call, "calls": tuple(seen) or (call,)}
    if parsed is None:
        return Verdict("no_verdict", call.status_reason or "error", detail=call.error, **about)
    said = parsed.value
    return Verdict("ok", None, said["score"], said["reasoning"], conversions=tuple(parsed.repairs), **about)


def judge(entry: Entry, response: str, **options) -> Verdict:
    """Judge one answer and wait for the verdict; parameters as in `ajudge`."""
    return run_sync(ajudge(entry, response, **options))


async def _call(function: Callable, entry: Entry, response: str, scale: FailureType, timeout_s: float) -> Verdict:
    """A verdict from a Python function; a failing function is a missing verdict, not a lost run."""
    from .replies import read_score

    said, error = await run_apart(function, (entry, response), timeout_s)
    if said is None and error is None:
        return Verdict("no_verdict", "not_scored")
    try:
        value = said["score"] if isinstance(said, dict) else said
        score, converted = read_score(value, scale.low, scale.high) if error is None else (None, None)
    except Exception as wrong:
        error = wrong
    if isinstance(error, TimeoutError):
        return Verdict("no_verdict", "timeout", detail=f"No verdict within {timeout_s:g} s.")
    if isinstance(error, StructmemError):
        return Verdict("no_verdict", "invalid", detail=str(error))
    if error is not None:
        return Verdict("no_verdict", "error", detail=f"{type(error).__name__}: {error}")
    reasoning = said.get("reasoning") if isinstance(said, dict) else None
    return Verdict("ok", None, score, reasoning, conversions=(converted,) if converted else ())


@lru_cache(maxsize=1)
def _echo_taxonomy():
    from .taxonomy import load_taxonomy

    return load_taxonomy(ECHO_TAXONOMY)


async def echo_for(entry: Entry, ask: Callable | None = None) -> Echo:
    """Prepare the echo measure of an entry; it depends on the entry alone, so it is the same for every arm.

    ``cross_domain``: memories outside the query's domain. A memory's domain is that of the embedding partition
    (``fixed``, 11 domains), and a query's are the domains accepted for its ``query_domain``; where that is missing or
    has no home among the 11, every memory counts. Other failure types: every memory.
    """
    texts = [memory.text for memory in entry.memories]
    looked_for = texts
    if entry.failure_type == "cross_domain" and entry.query_domain:
        from .structures import astructure

        taxonomy = _echo_taxonomy()
        inside = taxonomy.accepted.get(entry.query_domain, ())
        if entry.query_domain in taxonomy.homeless:
            inside = ()
        if entry.query_domain in taxonomy.names:
            inside = (entry.query_domain,)
        if inside:
            node = await astructure(entry.memories, "fixed", taxonomy=taxonomy, structurer="embedding", ask=ask)
            outside = (part for path, part in node.walk() if not (path and path[0] in inside))
            looked_for = [memory.text for part in outside for memory in part.memories]
    return Echo(looked_for, entry.query, texts)


async def _echo(entry: Entry, response: str, echo: Echo | None, threshold: float) -> Verdict:
    if entry.failure_type == "sycophancy":
        return Verdict("no_verdict", "not_scored_by_echo")
    overlap = (echo or await echo_for(entry)).overlap(response)
    if overlap is None:
        return Verdict("no_verdict", "no_memory_outside_domain" if entry.memories else "no_memories")
    return Verdict("ok", echo_overlap=overlap, echoed=overlap >= threshold)
