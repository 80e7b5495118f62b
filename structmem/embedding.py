"""The offline structurer: static word embeddings sort memories by nearest domain definition; opens no socket."""

from __future__ import annotations

import functools
import json
import logging
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import IMPORTING, InputError, SetupError

DIMENSIONS = 256
DECIMALS = 6  # similarities are rounded, so that the last bits of another machine's arithmetic decide nothing
# Raised when the rules below change: part of every message, so that a stored partition never stands for a new one.
RULE = 1
MIN_CLUSTER = 2
MIN_DOMAIN = 4  # a domain this large is worth dividing

# The weights, not the library that reads them: another release with the same weights sorts the same way.
EMBEDDER_ID = f"embedding/wordllama-l2_supercat-{DIMENSIONS}"


def _embedder():
    """WordLlama, loaded once per process (about 0.7 s) however many threads ask for it at the same time."""
    with IMPORTING:
        return _load()


@functools.cache
def _load():
    """Load WordLlama from its own wheel."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised inside its own imports
            import wordllama

            # The weights lie in the package folder, where a plain load() does not look before it tries to download.
            return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    except (ImportError, FileNotFoundError) as error:
        raise SetupError(
            f"The embedding structurer needs the package 'wordllama' with its weights ({error}); "
            "run 'pip install wordllama', or name a model as the structurer."
        ) from error
    finally:  # its import configures the root logger, which would make every other library talk
        root.handlers[:], root.level = before


# The same memories are sorted into several structures, and reading them is most of the work; 10,000 vectors are 10 MB.
KEEP = 10_000
_known: dict[str, np.ndarray] = {}


def embed(texts: Sequence[str]) -> np.ndarray:
    """Embed texts with WordLlama's static embeddings (256 dimensions, weights from its wheel).

    Parameters
    ----------
    texts : sequence of str

    Returns
    -------
    numpy.ndarray
        float32, shape (n, 256), one row per text with length 1; a text without tokens is a row of zeros.

    Raises
    ------
    SetupError
        If wordllama or its weights are missing.
    """
    if not len(texts):
        return np.zeros((0, DIMENSIONS), np.float32)
    new = [text for text in dict.fromkeys(texts) if text not in _known]
    if len(_known) + len(new) > KEEP:
        _known.clear()
        new = list(dict.fromkeys(texts))
    if new:  # lone surrogates cannot be encoded
        vectors = _embedder().embed([re.sub("[\ud800-\udfff]", "\ufffd", text) for text in new])
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        _known.update(zip(new, np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0), strict=True))
    return np.array([_known[text] for text in texts])


def similarities(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine similarities of unit rows, shape (len(a), len(b)), in [-1, 1], rounded to 6 decimals."""
    return np.round(a.astype(np.float64) @ b.astype(np.float64).T, DECIMALS)


@functools.lru_cache(maxsize=64)
def _definitions(domains: tuple[tuple[str, str], ...]) -> np.ndarray:
    return embed([f"{name}: {definition}" for name, definition in domains])


def nearest_domain(vectors: np.ndarray, domains: tuple[tuple[str, str], ...]) -> tuple[np.ndarray, np.ndarray]:
    """The domain whose ``name: definition`` is nearest to each memory.

    Centring, leaving out the common *user*, single phrases of the definition, their mean and the best few of them were
    tried on PersistBench's cross-domain entries: none of them hit clearly further above chance than this plain rule.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, 256)
    domains : tuple of (name, definition)

    Returns
    -------
    index : numpy.ndarray of int, shape (n,)
        Position of the domain; equal similarities go to the earlier one.
    similarity : numpy.ndarray of float, shape (n,)
        Its cosine similarity in [-1, 1].
    """
    table = similarities(vectors, _definitions(domains))
    return table.argmax(axis=1), table.max(axis=1)


def clusters(vectors: np.ndarray, min_similarity: float) -> list[list[int]]:
    """Groups of at least two rows with average linkage at cosine similarity `min_similarity` or more.

    Returns
    -------
    list of list of int
        Row positions in order; largest group first, then the tighter one, then the earlier one.
    """
    n = len(vectors)
    if n < MIN_CLUSTER:
        return []
    from scipy.cluster.hierarchy import fcluster, linkage

    table = similarities(vectors, vectors)
    distance = np.clip(1 - table[np.triu_indices(n, 1)], 0, None)  # condensed; a row of zeros is at distance 1 from all
    group = fcluster(linkage(distance, "average"), 1 - min_similarity, "distance")
    found = [[int(i) for i in np.flatnonzero(group == g)] for g in np.unique(group)]
    found = [rows for rows in found if len(rows) >= MIN_CLUSTER]
    return sorted(found, key=lambda rows: (-len(rows), -round(float(table[np.ix_(rows, rows)].mean()), DECIMALS), rows))


# Scripts written without spaces between words: a run of letters is a clause there, not a word.
_SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@functools.lru_cache(maxsize=KEEP)  # a tree names many groups, and each name looks at every memory of the set
def _words(text: str) -> tuple[str, ...]:
    letters = "".join(c if unicodedata.category(c)[0] in "LM" else " " for c in text.casefold())
    return tuple(word for word in letters.split() if 3 <= len(word) <= 20 and not _SPACELESS.search(word))


def telling_name(texts: Sequence[str], vectors: np.ndarray, rows: Sequence[int], taken: Sequence[str] = ()) -> str:
    """Name a cluster by its one or two most telling words.

    A word tells more the larger its share of the cluster's memories, the smaller its share of the other memories, and
    the nearer its own embedding is to the cluster's centre (which keeps *the* and *user* out without a word list).
    Without words between spaces, the name is the beginning of the most central memory.

    Parameters
    ----------
    texts, vectors
        All memories of the set and their unit rows.
    rows : sequence of int
        The cluster.
    taken : sequence of str
        Names that are in use; a word of theirs is not used again.
    """
    inside = set(rows)
    rest = [i for i in range(len(texts)) if i not in inside]
    used = {word for name in taken for word in _words(name)}
    seen_in = Counter(word for i in rows for word in dict.fromkeys(_words(texts[i])) if word not in used)
    seen_out = Counter(word for i in rest for word in set(_words(texts[i])))
    centre = vectors[list(rows)].mean(axis=0, keepdims=True)
    if seen_in:
        words = list(seen_in)
        near = similarities(embed(words), centre)[:, 0]
        score = {
            word: round(float(near[k]) * (seen_in[word] / len(rows) - seen_out[word] / max(len(rest), 1)), DECIMALS)
            for k, word in enumerate(words)
        }
        ranked = sorted(words, key=lambda word: (-score[word], words.index(word)))
        first = ranked[0]
        # A second word speaks for the members that the first leaves out, and only when it is nearly as telling.
        silent = [set(_words(texts[i])) for i in rows if first not in _words(texts[i])]
        good = [w for w in ranked[1:] if w[:4] != first[:4] and score[w] >= 0.6 * score[first] > 0]
        more = [w for w in good if any(w in words_of for words_of in silent)]
        name = " and ".join([first, *more[:1]])
        if name not in taken:
            return name
    medoid = rows[int(similarities(vectors[list(rows)], centre)[:, 0].argmax())]
    start = re.search(r"\w[\w\s-]*", texts[medoid])
    base = " ".join(start.group().split())[:16].strip().casefold() if start else "group"
    name, k = base, 2
    while name in taken:
        name, k = f"{base} {k}", k + 1
    return name


def _fixed(task: dict, vectors: np.ndarray) -> dict:
    index, _ = nearest_domain(vectors, task["domains"])
    return {"paths": [[task["domains"][k][0]] for k in index], "new_domains": []}


def _dynamic(task: dict, vectors: np.ndarray) -> dict:
    """Memories below `fit` to every definition open a domain where at least two are alike by `cluster_similarity`.

    With the defaults (0.2 < 0.3) the members of a new domain are nearer to one another than to any definition; on
    PersistBench a third of the memories are below 0.2, and one pair in twenty of an entry is above 0.3.
    """
    options, names = task["options"], [name for name, _ in task["domains"]]
    index, best = nearest_domain(vectors, task["domains"])
    paths = [[names[k]] for k in index]
    misfits = np.flatnonzero(best < options["fit"])
    opened: list[str] = []
    for group in clusters(vectors[misfits], options["cluster_similarity"])[: options["max_new_domains"]]:
        rows = [int(misfits[i]) for i in group]
        opened.append(telling_name(task["memories"], vectors, rows, [*names, *opened]))
        for i in rows:
            paths[i] = [opened[-1]]
    return {"paths": paths, "new_domains": opened}


def _tree(task: dict, vectors: np.ndarray) -> dict:
    """As `_fixed`, then clusters in each domain of at least four memories; a cluster of the whole domain is none."""
    result = _fixed(task, vectors)
    paths = result["paths"]
    for name, _ in task["domains"]:
        rows = [i for i, path in enumerate(paths) if path[0] == name]
        if len(rows) < MIN_DOMAIN:
            continue
        leaves: list[str] = []
        for group in clusters(vectors[rows], task["options"]["leaf_similarity"])[: task["options"]["max_leaves"]]:
            if len(group) == len(rows):
                break
            members = [rows[i] for i in group]
            leaves.append(telling_name(task["memories"], vectors, members, [name, *leaves]))
            for i in members:
                paths[i] = [name, leaves[-1]]
    return result


def _rag(task: dict, vectors: np.ndarray) -> dict:
    return {"similarities": similarities(vectors, embed([task["query"]]))[:, 0].tolist()}


_TASKS = {"fixed": _fixed, "dynamic": _dynamic, "tree": _tree, "rag": _rag}


def messages(
    structure: str, memories: Sequence[str], *, domains=(), options: dict | None = None, query: str | None = None
) -> list[dict]:
    """The request to `model`: one user message with one JSON text.

    Its fields are ``structure``, ``rule`` (version of the rules), ``memories`` (texts in order), ``domains`` (name,
    definition), ``options``, and ``query`` where the structure uses it.
    """
    task = {"structure": structure, "rule": RULE, "memories": list(memories)}
    if structure == "rag":
        task["query"] = query
    else:
        task |= {"domains": [list(pair) for pair in domains], "options": options or {}}
    return [{"role": "user", "content": json.dumps(task, ensure_ascii=False, sort_keys=True)}]


def model(messages: Sequence[dict]) -> str:
    """Sort memories: a callable model, so that a partition is a stored call like any other.

    Parameters
    ----------
    messages : sequence of dict
        What the function `messages` makes.

    Returns
    -------
    str
        JSON: ``{"paths": [[domain, leaf?], …], "new_domains": […]}``, one path per memory in order; for ``rag``
        ``{"similarities": […]}``.
    """
    task = json.loads(messages[-1]["content"])
    if task.get("rule") != RULE or task.get("structure") not in _TASKS:
        raise InputError(
            f"The embedding structurer was asked for {task.get('structure')!r} under rule {task.get('rule')!r}; "
            f"it knows {sorted(_TASKS)} under rule {RULE}."
        )
    task["domains"] = tuple((name, definition) for name, definition in task.get("domains", ()))
    return json.dumps(_TASKS[task["structure"]](task, embed(task["memories"])), ensure_ascii=False)


model.model_id = EMBEDDER_ID
