"""How well a partition fits the benchmark's labels: the hit rate, against what chance would give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .data import Entry
from .errors import InputError
from .intervals import wilson
from .taxonomy import Taxonomy
from .tree import Node

if TYPE_CHECKING:
    import pandas as pd


def hit_rate(nodes: Sequence[Node], entries: Sequence[Entry], taxonomy: Taxonomy) -> pd.DataFrame:
    """Share of entries with at least one memory in an accepted domain, against chance.

    PersistBench does not say which memory of an entry belongs to the entry's `memory_domain`, so a single memory
    cannot be called right or wrong; the weaker question is whether any of them was put where that label belongs. Large
    domains are hit easily, so the rate alone says little. Chance keeps every entry's number of memories and every
    domain's total, and deals the memories out anew over all entries (permuting within an entry would change nothing).
    Its expectation is exact: with N memories in all, K of them in accepted domains, an entry of n memories is hit with
    probability 1 − C(N − K, n) / C(N, n). `unclassified` is never accepted; a leaf counts as its domain.

    Parameters
    ----------
    nodes : sequence of Node
        One partition or tree per entry, in the order of `entries`.
    entries : sequence of Entry
        Entries without a `memory_domain` are left out of rates and pool.
    taxonomy : Taxonomy
        Its `accepted` domains per label; labels without any can never be hit and are left out of the rates.

    Returns
    -------
    pandas.DataFrame
        One row per set of labels, ``all`` and ``without homeless`` (labels that have no natural home in the taxonomy):
        `n` entries; `hit` in [0, 1] with its 95 % Wilson interval `low`, `high`; `chance` in [0, 1];
        `lift_pp` = hit − chance, in pp.

    Raises
    ------
    InputError
        If the lengths differ, a label is unknown to the taxonomy, or no entry is labelled.
    """
    import pandas as pd

    if len(nodes) != len(entries):
        raise InputError(f"nodes and entries must be of one length, got {len(nodes)} and {len(entries)}.")
    labelled = [(entry, domains_of(node)) for node, entry in zip(nodes, entries, strict=True) if entry.memory_domain]
    if not labelled:
        raise InputError("No entry has a memory_domain; a hit is defined for labelled entries only (cross_domain).")
    for entry, _ in labelled:
        if entry.memory_domain not in taxonomy.accepted:
            raise InputError(
                f"Entry {entry.entry_id} has the label {entry.memory_domain!r}, which taxonomy '{taxonomy.name}' does "
                f"not map; it maps {sorted(taxonomy.accepted)}. Say in the taxonomy's file, under 'accepted:', in "
                "which domains a memory of each label is right (structmem/taxonomies/coarse5.yaml shows how)."
            )
    pool = [domain for _, domains in labelled for domain in domains]
    rows = []
    for labels, left_out in (("all", ()), ("without homeless", taxonomy.homeless)):
        hits, chances = [], []
        for entry, domains in labelled:
            accepted = taxonomy.accepted[entry.memory_domain]
            if not accepted or entry.memory_domain in left_out:
                continue
            hits.append(any(domain in accepted for domain in domains))
            outside = sum(domain not in accepted for domain in pool)
            chances.append(1 - math.comb(outside, len(domains)) / math.comb(len(pool), len(domains)))
        n = len(hits)
        hit = sum(hits) / n if n else math.nan
        chance = sum(chances) / n if n else math.nan
        low, high = wilson(sum(hits), n)
        rows.append((labels, n, hit, low, high, chance, 100 * (hit - chance)))
    return pd.DataFrame(rows, columns=["labels", "n", "hit", "low", "high", "chance", "lift_pp"])


def domains_of(node: Node) -> list[str | None]:
    """The top-level domain of every memory, in document order; None where there is none."""
    return [path[0] if path else None for path, part in node.walk() for _ in part.memories]
