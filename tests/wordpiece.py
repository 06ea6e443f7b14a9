"""BERT's tokenizer in plain Python, after the description in google-research/bert and apart from ortops.export.text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

#: As google-research/bert has them.
CHINESE = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)]
CHINESE += [(0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def encode(text: str, number: Mapping[str, int], max_length: int = 256) -> list[int]:
    """The ids of an uncased text, [CLS] and [SEP] included; `number` is the vocabulary."""
    pieces = [piece for word in words(text) for piece in spell(word, number)]
    return [number[piece] for piece in ["[CLS]", *pieces[: max_length - 2], "[SEP]"]]


def words(text: str) -> list[str]:
    cleaned = ""
    for c in text:
        category = unicodedata.category(c)
        if c in "\t\n\r":
            cleaned += " "
        elif c in "\0\ufffd" or category.startswith("C"):
            continue
        elif category == "Zs" or c.isspace():
            cleaned += " "
        elif any(first <= ord(c) <= last for first, last in CHINESE):
            cleaned += f" {c} "
        else:
            cleaned += c
    plain = "".join(c for c in unicodedata.normalize("NFD", cleaned) if unicodedata.category(c) != "Mn")
    lowered = "".join(c.lower() for c in plain)
    return "".join(f" {c} " if punctuation(c) else c for c in lowered).split()


def punctuation(c: str) -> bool:
    return (33 <= ord(c) <= 126 and not c.isalnum()) or unicodedata.category(c).startswith("P")


def spell(word: str, number: Mapping[str, int]) -> list[str]:
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in number), None)
        if end is None or len(word) > 100:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces
