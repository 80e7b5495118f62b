"""Describe layouts: side by side, domain fill, shapes, tokens added; tables for the structure notebooks."""

from __future__ import annotations

import asyncio
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec

import pandas as pd

from .data import Entry, benchmark_hash
from .embedding_sorting import asked_model
from .quality import domains_of, hit_rate
from .renderers import render
from .scripts import warn_of_script
from .structures import astructure, spec, structure
from .taxonomy import Taxonomy, load_taxonomy
from .tree import UNCLASSIFIED, Node


class SideBySide:
    """Layouts of one memory set next to each other: a table in a notebook, one block after the other as text.

    Parameters
    ----------
    nodes : mapping of str to Node
        Layout name to node, in the order shown.
    renderer : str
        Name of the renderer; the same one for every layout.
    """

    def __init__(self, nodes: Mapping[str, Node], renderer: str = "markdown"):
        self.texts = {name: str(render(node, renderer)) for name, node in nodes.items()}

    def __repr__(self) -> str:
        return "\n\n".join(f"=== {name} ===\n{text}" for name, text in self.texts.items())

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in self.texts)
        cell = "<td style='vertical-align:top;text-align:left'><pre style='white-space:pre-wrap'>{}</pre></td>"
        body = "".join(cell.format(html.escape(text)) for text in self.texts.values())
        return f"<table><tr>{head}</tr><tr>{body}</tr></table>"


def domain_fill(
    nodes: Mapping[str, Sequence[Node]], taxonomy: str | Taxonomy = "life11", structurer: str = "embedding"
) -> pd.DataFrame:
    """Count the memories of each top-level domain.

    Parameters
    ----------
    nodes : mapping of str to sequence of Node
        Structure name to one node per memory set.
    taxonomy : str or Taxonomy
        Gives the order of the rows; domains opened by ``dynamic`` are pooled as ``(new domains)``.
    structurer : str
        Who sorted; stamped on every row.

    Returns
    -------
    DataFrame
        One row per structure and domain, empty domains included. ``memories``: count; ``share`` of the
        structure's memories in [0, 1]; ``sets``: number of memory sets in which the domain is not empty.
    """
    names = load_taxonomy(taxonomy).names
    rows = []
    for name, layouts in nodes.items():
        memories: Counter[str] = Counter()
        sets: Counter[str] = Counter()
        for node in layouts:
            found: Counter[str] = Counter()
            for path, part in node.walk():
                if part.memories:
                    top = path[0] if path else "(no domain)"
                    found[top if top in names or top in (UNCLASSIFIED, "(no domain)") else "(new domains)"] += len(
                        part.memories
                    )
            memories.update(found)
            sets.update(found.keys())
        total = sum(len(node.all_memories()) for node in layouts)
        assert total == sum(memories.values())  # every memory is in one row
        for domain in (*names, "(new domains)", UNCLASSIFIED, "(no domain)"):
            if domain in names or memories[domain] or domain == UNCLASSIFIED:
                share = memories[domain] / total if total else float("nan")
                rows.append((name, structurer, domain, memories[domain], share, sets[domain]))
    return pd.DataFrame(rows, columns=["structure", "structurer", "domain", "memories", "share", "sets"])


def layout_shapes(nodes: Mapping[str, Sequence[Node]], taxonomy: str | Taxonomy = "life11") -> pd.DataFrame:
    """Shapes of the layouts, one row per structure.

    Returns
    -------
    DataFrame
        ``sets``: memory sets; ``groups_per_set``: mean number of non-empty top-level groups; ``leaves_per_set``: mean
        number of nodes that hold memories; ``sets_with_new``: sets in which a domain outside the taxonomy was opened;
        ``sets_with_depth_2``: sets with at least one subcategory; ``unclassified``: memories in no domain.
    """
    known = {*load_taxonomy(taxonomy).names, UNCLASSIFIED}
    rows = []
    for name, layouts in nodes.items():
        rows.append(
            {
                "structure": name,
                "sets": len(layouts),
                "groups_per_set": _mean(len(node.children) for node in layouts),
                "leaves_per_set": _mean(len(node.leaves()) for node in layouts),
                "sets_with_new": sum(any(child.label not in known for child in node.children) for node in layouts),
                "sets_with_depth_2": sum(node.depth == 2 for node in layouts),
                "unclassified": sum(domains_of(node).count(UNCLASSIFIED) for node in layouts),
            }
        )
    return pd.DataFrame(rows)


def tokens_added(nodes: Mapping[str, Sequence[Node]], renderers: Sequence[str] = ("markdown",)) -> pd.DataFrame:
    """Length of the context and what the layout adds to it.

    Tokens are those of the Llama 2 tokenizer that ships with WordLlama; other models split text a little differently.

    Returns
    -------
    DataFrame
        One row per renderer and structure. ``tokens``: mean context length over memory sets; ``tokens_added``: mean
        difference to the flat layout of the same sets under the same renderer; NaN without ``flat`` among the nodes.
    """
    rows = []
    for renderer in renderers:
        lengths = {s: count_tokens([render(node, renderer) for node in layouts]) for s, layouts in nodes.items()}
        flat = lengths.get("flat")
        for name, values in lengths.items():
            added = _mean(a - b for a, b in zip(values, flat, strict=True)) if flat else float("nan")
            rows.append((renderer, name, _mean(values), added))
    return pd.DataFrame(rows, columns=["renderer", "structure", "tokens", "tokens_added"])


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Number of Llama 2 tokens in each text (WordLlama's tokenizer file; no network)."""
    return [len(found.ids) for found in _tokenizer().encode_batch([str(t) for t in texts], add_special_tokens=False)]


@lru_cache(maxsize=1)
def _tokenizer():
    import tokenizers

    folder = find_spec("wordllama").submodule_search_locations[0]
    return tokenizers.Tokenizer.from_file(f"{folder}/tokenizers/l2_supercat_tokenizer_config.json")


def structure_all(
    entries: Sequence[Entry],
    names: Sequence[str] = ("flat", "fixed", "dynamic", "tree"),
    *,
    structurer: str = "embedding",
    taxonomy: str | Taxonomy = "life11",
    store: object = None,
    **options,
) -> dict[str, list[Node]]:
    """Lay out the memories of many entries, through the store of calls.

    Parameters
    ----------
    entries : sequence of Entry
    names : sequence of str
        Structures; see ``STRUCTURES``.
    structurer : str
        ``"embedding"`` or a litellm id.
    store : path or None
        As in `Client`; ``"recorded"`` replays recorded partitions.

    Returns
    -------
    dict of str to list of Node
        Per structure, one node per entry in the order given.
    """
    from .llm import Client

    taxonomy = load_taxonomy(taxonomy)
    if any(spec(name).uses_structurer for name in names):
        warn_of_script((memory.text for entry in entries for memory in entry.memories), structurer)
    with Client(store) as client:
        ask = client.asker(asked_model(structurer))

        async def lay_out(name: str) -> list[Node]:
            settings = {"taxonomy": taxonomy, "structurer": structurer, "ask": ask, **options}
            made = (astructure(entry.memories, name, query=entry.query, **settings) for entry in entries)
            return list(await asyncio.gather(*made))

        return {name: client.run_sync(lay_out(name)) for name in names}


def hits(
    nodes: Mapping[str, Sequence[Node]], entries: Sequence[Entry], taxonomy: str | Taxonomy = "life11"
) -> pd.DataFrame:
    """`quality.hit_rate` of every structure that sorts into domains; one row per structure and set of labels."""
    tables = []
    for name, layouts in nodes.items():
        if any(node.children for node in layouts):
            table = hit_rate(layouts, entries, load_taxonomy(taxonomy))
            table.insert(0, "structure", name)
            tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["structure", "labels", "n", "hit"])


def retrieval_kept(entries: Sequence[Entry], thresholds: Sequence[float]) -> pd.DataFrame:
    """What ``rag`` keeps at several thresholds, with the offline embedder.

    Returns
    -------
    DataFrame
        One row per threshold. ``kept_pct``: mean percent of an entry's memories that stay; ``empty_pct``: percent of
        entries of which nothing stays; ``n_entries`` with memories.
    """
    rows = []
    for threshold in thresholds:
        shares = [
            len(structure(e.memories, "rag", query=e.query, threshold=threshold).all_memories()) / len(e.memories)
            for e in entries
            if e.memories
        ]
        rows.append((threshold, 100 * _mean(shares), 100 * _mean(share == 0 for share in shares), len(shares)))
    return pd.DataFrame(rows, columns=["threshold", "kept_pct", "empty_pct", "n_entries"])


def stamp() -> None:
    """Print what the numbers of a notebook hang on: package, benchmark data and taxonomy, by version and hash."""
    from . import __version__

    taxonomy = load_taxonomy()
    print(f"structmem {__version__} · benchmark {benchmark_hash()[:12]} · {taxonomy.name} {taxonomy.sha256[:12]}")


def show_entry(entry: Entry) -> None:
    """Print the memories and the query of one entry."""
    for memory in entry.memories:
        print(f"{memory.id:>2}. {memory.text}")
    print(f"\nQuery: {entry.query}")


def _mean(values) -> float:
    values = list(values)
    return sum(values) / len(values) if values else float("nan")
