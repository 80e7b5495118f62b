"""The embedding structurers: memories go to the nearest domain definition; the offline ones open no socket."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .embedders import DECIMALS, EMBEDDERS, KEEP, embed, similarities, unit_rows
from .errors import InputError
from .sorters import EMBEDDING, MULTILINGUAL

# Raised when the rules below change: part of every message, so that a stored partition never stands for a new one.
RULE = 1
UNSPACED_RULE = 2  # names of groups in scripts without spaces between words; other texts are named as before
MIN_CLUSTER = 2
MIN_DOMAIN = 4  # a domain this large is worth dividing


def described(domains: Sequence[tuple[str, str]]) -> list[str]:
    """The texts that stand for domains."""
    return [f"{name}: {definition}" for name, definition in domains]


@functools.lru_cache(maxsize=64)
def _definitions(domains: tuple[tuple[str, str], ...], embedder: str = EMBEDDING) -> np.ndarray:
    return embed(described(domains), embedder)


def nearest_domain(
    vectors: np.ndarray, domains: tuple[tuple[str, str], ...], definitions: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The domain whose ``name: definition`` is nearest to each memory.

    Centring, leaving out the common *user*, single phrases of the definition, their mean and the best few of them were
    tried on PersistBench's cross-domain entries: none of them hit clearly further above chance than this plain rule.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, dimensions)
    domains : tuple of (name, definition)
    definitions : numpy.ndarray, shape (domains, dimensions), optional
        Their vectors by the same embedder; WordLlama's by default.

    Returns
    -------
    index : numpy.ndarray of int, shape (n,)
        Position of the domain; equal similarities go to the earlier one.
    similarity : numpy.ndarray of float, shape (n,)
        Its cosine similarity in [-1, 1].
    """
    table = similarities(vectors, _definitions(domains) if definitions is None else definitions)
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


# Scripts written without spaces between words: a run of letters is a clause there, not a word. In Japanese, a run of
# kanji or katakana is mostly a word, or one of two kanji and the beginning of the next; four kanji are mostly two.
_SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_RUNS = re.compile("[\u3005\u3400-\u9fff\uf900-\ufaff]{2,8}|[\u30a1-\u30fa\u30fc]{3,20}|[a-z]{3,20}")


@functools.lru_cache(maxsize=KEEP)  # a tree names many groups, and each name looks at every memory of the set
def _words(text: str) -> tuple[str, ...]:
    letters = "".join(c if unicodedata.category(c)[0] in "LM" else " " for c in text.casefold())
    found = []
    for piece in letters.split():
        if not _SPACELESS.search(piece):
            found += [piece] if 3 <= len(piece) <= 20 else []
            continue
        for run in _RUNS.findall(piece):
            found.append(run)
            if len(run) > 2 and not (run.isascii() or "\u30a1" <= run[0] <= "\u30fc"):
                found += [run[:2], run[2:]] if len(run) == 4 else [run[:2]]
    return tuple(found)


def telling_name(
    texts: Sequence[str],
    vectors: np.ndarray,
    rows: Sequence[int],
    taken: Sequence[str] = (),
    embedder: str | None = EMBEDDING,
) -> str:
    """Name a cluster by its one or two most telling words.

    A word tells more the larger its share of the cluster's memories, the smaller its share of the other memories, and
    the nearer its own embedding is to the cluster's centre (which keeps *the* and *user* out without a word list).
    Without words to choose from, the name is the beginning of the most central memory. Where no spaces stand between
    words, runs of kanji or katakana are taken as words.

    Parameters
    ----------
    texts, vectors
        All memories of the set and their unit rows.
    rows : sequence of int
        The cluster.
    taken : sequence of str
        Names that are in use; a word of theirs is not used again.
    embedder : str or None
        Which offline embedder made the vectors; None: a provider, which is not asked about single words, so that
        WordLlama's vectors name its groups.
    """
    if embedder is None:
        vectors, embedder = embed(texts), EMBEDDING
    inside = set(rows)
    rest = [i for i in range(len(texts)) if i not in inside]
    used = {word for name in taken for word in _words(name)}
    seen_in = Counter(word for i in rows for word in dict.fromkeys(_words(texts[i])) if word not in used)
    seen_out = Counter(word for i in rest for word in set(_words(texts[i])))
    centre = vectors[list(rows)].mean(axis=0, keepdims=True)
    if seen_in:
        words = list(seen_in)
        near = similarities(embed(words, embedder), centre)[:, 0]
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
        name = ("・" if _SPACELESS.search(first) else " and ").join([first, *more[:1]])
        if name not in taken:
            return name
    medoid = rows[int(similarities(vectors[list(rows)], centre)[:, 0].argmax())]
    start = re.search(r"\w[\w\s-]*", texts[medoid])
    base = " ".join(start.group().split())[:16].strip().casefold() if start else "group"
    name, k = base, 2
    while name in taken:
        name, k = f"{base} {k}", k + 1
    return name


@dataclass(frozen=True)
class Space:
    """Vectors of the memories, and of the domains or the query, by one embedder.

    Parameters
    ----------
    memories, others : numpy.ndarray
        Unit rows; `others` are the definitions in order, or for ``rag`` the query.
    embedder : str or None
        The offline embedder; None: a provider's model.
    """

    memories: np.ndarray
    others: np.ndarray
    embedder: str | None = EMBEDDING


# What an option of None means: WordLlama's defaults are at these quantiles on PersistBench's entries, and another
# embedding model has another scale.
_QUANTILES = {"fit": 1 / 3, "cluster_similarity": 0.95, "leaf_similarity": 0.8}


def with_quantiles(options: Mapping, best: np.ndarray, pairs: np.ndarray) -> dict:
    """Options with a quantile of the memory set's own similarities for those that are None.

    Parameters
    ----------
    options : mapping
    best : numpy.ndarray
        Each memory's similarity to the nearest definition, for `fit`.
    pairs : numpy.ndarray
        Similarities of the memories' pairs, for the others; without a pair nothing is alike.
    """
    made = dict(options)
    for name, quantile in _QUANTILES.items():
        if name in made and made[name] is None:
            values = best if name == "fit" else pairs
            made[name] = round(float(np.quantile(values, quantile)), DECIMALS) if len(values) else 1.0
    return made


def pair_similarities(vectors: np.ndarray) -> np.ndarray:
    """Similarities of all pairs of rows."""
    return similarities(vectors, vectors)[np.triu_indices(len(vectors), 1)]


def _fixed(task: Mapping, space: Space) -> dict:
    index, _ = nearest_domain(space.memories, task["domains"], space.others)
    return {"paths": [[task["domains"][k][0]] for k in index], "new_domains": []}


def _dynamic(task: Mapping, space: Space) -> dict:
    """Memories below `fit` to every definition open a domain where at least two are alike by `cluster_similarity`.

    With WordLlama's defaults (0.2 < 0.3) the members of a new domain are nearer to one another than to any definition;
    on PersistBench a third of the memories are below 0.2, and one pair in twenty of an entry is above 0.3. None: the
    third of the set that fits least, and likeness that one pair in twenty of the set has.
    """
    names, vectors = [name for name, _ in task["domains"]], space.memories
    index, best = nearest_domain(vectors, task["domains"], space.others)
    paths = [[names[k]] for k in index]
    options = with_quantiles(task["options"], best, pair_similarities(vectors))
    misfits = np.flatnonzero(best < options["fit"])
    opened: list[str] = []
    for group in clusters(vectors[misfits], options["cluster_similarity"])[: options["max_new_domains"]]:
        rows = [int(misfits[i]) for i in group]
        opened.append(telling_name(task["memories"], vectors, rows, [*names, *opened], space.embedder))
        for i in rows:
            paths[i] = [opened[-1]]
    return {"paths": paths, "new_domains": opened}


def _tree(task: Mapping, space: Space) -> dict:
    """As `_fixed`, then clusters in each domain of at least four memories; a cluster of the whole domain is none.

    A `leaf_similarity` of None is the likeness that one pair in five of the set has.
    """
    result = _fixed(task, space)
    paths, vectors = result["paths"], space.memories
    options = with_quantiles(task["options"], np.zeros(0), pair_similarities(vectors))
    for name, _ in task["domains"]:
        rows = [i for i, path in enumerate(paths) if path[0] == name]
        if len(rows) < MIN_DOMAIN:
            continue
        leaves: list[str] = []
        for group in clusters(vectors[rows], options["leaf_similarity"])[: options["max_leaves"]]:
            if len(group) == len(rows):
                break
            members = [rows[i] for i in group]
            leaves.append(telling_name(task["memories"], vectors, members, [name, *leaves], space.embedder))
            for i in members:
                paths[i] = [name, leaves[-1]]
    return result


def _rag(task: Mapping, space: Space) -> dict:
    return {"similarities": similarities(space.memories, space.others)[:, 0].tolist()}


_TASKS = {"fixed": _fixed, "dynamic": _dynamic, "tree": _tree, "rag": _rag}


def sort_vectors(
    structure: str, texts: Sequence[str], vectors: np.ndarray, definitions: np.ndarray, domains: tuple, options: Mapping
) -> dict:
    """Sort by the vectors of a provider's embedding model: those of the texts and of the domains' definitions.

    Returns
    -------
    dict
        ``paths`` and ``new_domains``, as the function `model` gives them as JSON.
    """
    task = {"memories": list(texts), "domains": domains, "options": options}
    return _TASKS[structure](task, Space(unit_rows(vectors), unit_rows(definitions), None))


def messages(
    structure: str, memories: Sequence[str], *, domains=(), options: dict | None = None, query: str | None = None
) -> list[dict]:
    """The request to `model`: one user message with one JSON text.

    Its fields are ``structure``, ``rule`` (version of the rules), ``memories`` (texts in order), ``domains`` (name,
    definition), ``options``, and ``query`` where the structure uses it.
    """
    unspaced = structure in ("dynamic", "tree") and any(map(_SPACELESS.search, memories))
    task = {"structure": structure, "rule": UNSPACED_RULE if unspaced else RULE, "memories": list(memories)}
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
    return _sorted(messages, EMBEDDING)


def multilingual(messages: Sequence[dict]) -> str:
    """As `model`, by the multilingual embedder."""
    return _sorted(messages, MULTILINGUAL)


def _sorted(messages: Sequence[dict], embedder: str) -> str:
    task = json.loads(messages[-1]["content"])
    if task.get("rule") not in (RULE, UNSPACED_RULE) or task.get("structure") not in _TASKS:
        raise InputError(
            f"The embedding structurer was asked for {task.get('structure')!r} under rule {task.get('rule')!r}; "
            f"it knows {sorted(_TASKS)} under rules {RULE} and {UNSPACED_RULE}."
        )
    task["domains"] = tuple((name, definition) for name, definition in task.get("domains", ()))
    by_query = task["structure"] == "rag"
    others = embed([task["query"]], embedder) if by_query else _definitions(task["domains"], embedder)
    space = Space(embed(task["memories"], embedder), others, embedder)
    return json.dumps(_TASKS[task["structure"]](task, space), ensure_ascii=False)


MODELS = {EMBEDDING: model, MULTILINGUAL: multilingual}
for _name, _function in MODELS.items():
    _function.model_id = EMBEDDERS[_name].model_id
