"""Whether a server has read less than it was sent: a lower bound of a prompt's tokens against the count it reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

LEAST = 256  # words that matter; below this, templates and rounding are as large as what could be missing
NO_COUNT = 128  # no context window is that small: a server that reports less for a long prompt does not count

# No tokenizer in use joins words across a space or across punctuation, so a text has at least as many tokens as words
# (1.3 times as many in English). Experimental ones that do join words were reported to save a third of the tokens,
# which is still above this share of the words.
PER_WORD = 0.75
# Scripts without spaces: Han and kana reach 1.8 characters a token at best, Thai and its neighbours about 5.
PER_HAN, PER_THAI = 1 / 4, 1 / 10

_HAN = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_THAI = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
# Rules, bullets and blanks are no words: they may be one token each, or one token for a hundred of them.
_WORD = re.compile(r"[A-Za-z0-9]+(?:'[A-Za-z]+)*")
_REPEATED = re.compile(r"(.{1,8}?)\1{2,}", re.DOTALL)  # laughter, rulers and the like may be one token as well


@lru_cache(maxsize=128)  # long prompts that many calls share are counted once
def least_tokens(text: str) -> float:
    """A number of tokens that no tokenizer can stay below for this text.

    Bytes or characters are no such bound: a tokenizer may hold a hundred spaces or equals signs as one token, and its
    words are of any length. Words are: a run of ASCII letters and digits is at least one token, and so is what stands
    between two spaces in another script. Words are counted at three quarters, a Han or kana character at a quarter, a
    Thai, Lao, Khmer or Burmese one at a tenth; what is repeated on the spot is counted once.
    """
    if text.isascii():
        return PER_WORD * len(_WORD.findall(text))
    text = _REPEATED.sub(r"\1", text)
    unspaced = PER_HAN * len(_HAN.findall(text)) + PER_THAI * len(_THAI.findall(text))
    pieces = _THAI.sub("", _HAN.sub("", text)).split()
    words = len(_WORD.findall(" ".join(piece for piece in pieces if piece.isascii())))
    words += sum(any(map(str.isalnum, piece)) for piece in pieces if not piece.isascii())
    return PER_WORD * words + unspaced


def cut_prompt(texts: Iterable[str], tokens: int | None) -> str | None:
    """What to say when a server that counted `tokens` cannot have read all of `texts`; None if it may have.

    Parameters
    ----------
    texts : iterable of str
        All texts of the prompt.
    tokens : int or None
        Prompt tokens as reported, those read from a cache included; None, 0 and what is below `NO_COUNT` mean that they
        are not known.
    """
    texts = list(texts)
    # Counting words takes a while. Prompts in which they are so short that they could matter here are let through.
    if (tokens or 0) < NO_COUNT or 5 * tokens >= sum(len(text.encode("utf-8", "replace")) for text in texts):
        return None
    least = int(sum(map(least_tokens, texts)))
    if least < LEAST or tokens >= least:
        return None
    return (
        f"The server counted {tokens} prompt tokens, but the prompt has at least {least}: it was cut, most likely to "
        "the server's context window. Start the server with a larger window (num_ctx, --ctx-size, --max-model-len) "
        "or send less."
    )
