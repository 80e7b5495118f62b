"""Sort the same memories in several ways (structurer, draw, wording, taxonomy), and see what each makes of them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from .data import Entry
from .describe import count_tokens, domain_fill
from .embedding_sorting import asked_model
from .errors import InputError
from .intervals import clustered_mean
from .quality import domains_of, hit_rate
from .renderers import render
from .scripts import warn_of_script
from .sorters import EMBEDDING
from .structures import astructure, structure
from .taxonomy import load_taxonomy
from .tree import UNCLASSIFIED, Node


def sort_each(
    entries: Sequence[Entry],
    sorters: Mapping[str, Mapping],
    name: str = "fixed",
    *,
    store: object = None,
    offline: bool = False,
) -> dict[str, list[Node]]:
    """Lay out the memories of entries once for each way of sorting them, through the store of calls.

    Parameters
    ----------
    entries : sequence of Entry
    sorters : mapping of str to mapping
        What a way is called, to its settings, all optional: ``structurer`` (default 'embedding'), ``taxonomy``
        (default 'life11'), ``partition_draw`` and the structurer's options, such as ``wording``, ``temperature`` or
        ``per_memory``; see `vary`.
    name : str
        The structure.
    store, offline
        As in `Client`.

    Returns
    -------
    dict of str to list of Node
        One layout per entry, in the order given.

    Raises
    ------
    InputError
        As `structure`.
    MissingCall
        Offline, when the store does not hold a call.
    """
    from .llm import Client

    if any(dict(settings).get("structurer", EMBEDDING) == EMBEDDING for settings in sorters.values()):
        warn_of_script(memory.text for entry in entries for memory in entry.memories)
    with Client(store, offline=offline) as client:

        async def lay_out(settings: Mapping) -> list[Node]:
            settings = {"structurer": "embedding", "taxonomy": "life11"} | dict(settings)
            settings["taxonomy"] = load_taxonomy(settings["taxonomy"])
            ask = client.asker(asked_model(settings["structurer"]))
            made = (astructure(entry.memories, name, query=entry.query, ask=ask, **settings) for entry in entries)
            return list(await asyncio.gather(*made))

        return {way: client.run_sync(lay_out(settings)) for way, settings in sorters.items()}


def sorting_shapes(
    nodes: Mapping[str, Sequence[Node]], sorters: Mapping[str, Mapping], entries: Sequence[Entry]
) -> pd.DataFrame:
    """What each way of sorting makes of the same memories.

    Parameters
    ----------
    nodes, sorters
        As `sort_each` makes and takes them.
    entries : sequence of Entry

    Returns
    -------
    DataFrame
        One row per way: ``taxonomy``; ``domains`` it has, and ``domains_used`` by at least one memory; ``sets``, and
        ``groups_per_set``, the mean number of top-level groups; ``memories``; ``largest_domain`` and its
        ``largest_share`` of them; ``evenness_bits``: entropy of the domains' shares, in [0, log₂ domains] (0: all
        memories in one domain; Shannon 1948), `unclassified` left out; ``unclassified_share``; ``tokens_added`` to the
        flat layout of the same memories as markdown (Llama 2 tokens, mean over sets) with ``tokens_low``,
        ``tokens_high`` (95 %, t over sets).
    """
    rows = []
    flat = count_tokens([render(structure(entry.memories, "flat"), "markdown") for entry in entries])
    for way, layouts in nodes.items():
        if len(layouts) != len(entries):
            raise InputError(f"{way!r} has {len(layouts)} layouts for {len(entries)} entries; expected one each.")
        taxonomy = load_taxonomy(sorters[way].get("taxonomy", "life11"))
        counts = Counter(domain for node in layouts for domain in domains_of(node))
        total, lost = counts.total(), counts.pop(UNCLASSIFIED, 0)
        largest, most = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
        shares = [count / counts.total() for count in counts.values()]
        added = pd.Series(count_tokens([render(node, "markdown") for node in layouts]), dtype=float) - flat
        low, high = clustered_mean(added.to_numpy(), added.index.to_numpy())
        rows.append(
            {
                "sorter": way,
                "taxonomy": taxonomy.name,
                "domains": len(taxonomy.names),
                "domains_used": len(counts),
                "sets": len(layouts),
                "groups_per_set": sum(len(node.children) for node in layouts) / len(layouts) if layouts else math.nan,
                "memories": total,
                "largest_domain": largest,
                "largest_share": most / total if total else math.nan,
                "evenness_bits": -sum(share * math.log2(share) for share in shares) + 0.0 if shares else math.nan,
                "unclassified_share": lost / total if total else math.nan,
                "tokens_added": added.mean(),
                "tokens_low": low,
                "tokens_high": high,
            }
        )
    return pd.DataFrame(rows)


def domain_shares(nodes: Mapping[str, Sequence[Node]], taxonomy: str = "life11") -> pd.DataFrame:
    """How each way of sorting fills the domains of one taxonomy.

    Returns
    -------
    DataFrame
        One row per domain, in the order of `domain_fill`; ``domain``, then per way of sorting a column
        ``<its name>_share``: the share of its memories in that domain, in [0, 1].
    """
    fill = domain_fill(nodes, taxonomy)
    wide = fill.pivot(index="domain", columns="structure", values="share")
    wide = wide.reindex(dict.fromkeys(fill["domain"]))[list(nodes)].fillna(0.0)
    return wide.add_suffix("_share").reset_index().rename_axis(columns=None)


def sorting_hits(
    nodes: Mapping[str, Sequence[Node]], sorters: Mapping[str, Mapping], entries: Sequence[Entry]
) -> pd.DataFrame:
    """`hit_rate` of each way of sorting, against chance in its own taxonomy.

    Chance is higher the fewer and larger the domains are, so rates of different taxonomies are not compared: their
    lifts are, with care, for the accepted domains are a reading of ours.

    Returns
    -------
    DataFrame
        One row per way and set of labels (``all``, ``without homeless``: those that the taxonomy has a home for), as
        `hit_rate` gives it, with ``sorter`` and ``taxonomy`` before.
    """
    tables = []
    for way, layouts in nodes.items():
        taxonomy = load_taxonomy(sorters[way].get("taxonomy", "life11"))
        table = hit_rate(layouts, entries, taxonomy)
        table.insert(0, "taxonomy", taxonomy.name)
        table.insert(0, "sorter", way)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
