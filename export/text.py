"""Text in: BERT's tokenizer as part of a graph.

The op that cuts words into pieces is onnxruntime-extensions' `BertTokenizer`. It takes one text at a time, lowers only part of
Unicode, strips the accents of Latin-1 alone, and gives `[pieces so far, UNK]` for a word that it cannot spell, where WordPiece
gives one UNK. So the graph prepares each text such that none of this matters: a table brings every character to its normal form,
words with a character that the vocabulary lacks are replaced whole, and the op is left with words that it can spell.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir

from ortops.graph import Graph, Value

__all__ = ["WordPiece", "read_wordpiece", "tokenize"]

EXTENSIONS = "ai.onnx.contrib"
SEPARATOR = "\x1f"
#: What BERT calls Chinese characters: each is a word of its own. (google-research/bert, tokenization.py)
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@dataclass(frozen=True)
class WordPiece:
    """A WordPiece tokenizer. (Schuster & Nakajima, 2012; as in Devlin et al., 2018)

    Args:
        vocabulary: The pieces; the place of one is its id. Those that continue a word begin with "##".
        max_length: How many ids a text may become, the first and the last (CLS and SEP) included; what is over is cut off.
        lower_case: Whether text is lowered.
        strip_accents: Whether accents are taken off; None: as lower_case.
        split_ideographs: Whether each Chinese character is a word.
        unknown, first, last, padding: The pieces with those roles.
    """

    vocabulary: tuple[str, ...]
    max_length: int
    lower_case: bool = True
    strip_accents: bool | None = None
    split_ideographs: bool = True
    unknown: str = "[UNK]"
    first: str = "[CLS]"
    last: str = "[SEP]"
    padding: str = "[PAD]"

    def __post_init__(self) -> None:
        missing = [
            piece for piece in (self.unknown, self.first, self.last, self.padding) if piece not in self.vocabulary
        ]
        if missing:
            raise ValueError(f"the vocabulary of {len(self.vocabulary)} pieces lacks {', '.join(missing)}")
        if self.max_length < 3:
            raise ValueError(
                f"max_length: expected at least 3 (the first piece, one of the text, the last), got {self.max_length}"
            )


def read_wordpiece(folder: Path, max_length: int) -> WordPiece:
    """Reads `vocab.txt`, and `tokenizer_config.json` if there is one, as Hugging Face's BertTokenizer writes them.

    Raises:
        ValueError: there is no vocabulary, or it is not UTF-8, or lacks a special piece; the text names the file.
    """
    path = folder / "vocab.txt"
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except FileNotFoundError:
        raise ValueError(
            f"{path}: no such file; a graph that takes text needs the vocabulary (or export without the tokenizer)"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8 ({error})") from None
    vocabulary = tuple(line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines))
    if "" in vocabulary:
        raise ValueError(f"{path}: line {vocabulary.index('') + 1} is empty")
    options = folder / "tokenizer_config.json"
    config = json.loads(options.read_text("utf-8")) if options.exists() else {}

    def special(role: str, default: str) -> str:
        token = config.get(role, default)
        return token["content"] if isinstance(token, dict) else token

    return WordPiece(
        vocabulary,
        max_length,
        lower_case=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        split_ideographs=config.get("tokenize_chinese_chars", True),
        unknown=special("unk_token", "[UNK]"),
        first=special("cls_token", "[CLS]"),
        last=special("sep_token", "[SEP]"),
        padding=special("pad_token", "[PAD]"),
    )


def tokenize(graph: Graph, text: Value, wordpiece: WordPiece) -> tuple[Value, Value]:
    """Appends the tokenizer.

    Text that is not valid UTF-8 fails in the node `StringNormalizer`, which is there for that. What looks like a special piece
    ("[SEP]") in a text is text. Characters that the Unicode version of the Python that exports does not know are unknown.

    Args:
        graph: The graph to append to.
        text: Strings [batch]; the batch may be empty.
        wordpiece: The tokenizer.

    Returns:
        The ids and the mask (1: a piece, 0: padding), both int64 [batch, length], as long as the longest text.
    """
    other, table = _characters(wordpiece)
    with graph.name_scope("tokenizer"):

        def replace(texts: Value, pattern: str, by: str) -> Value:
            return graph.op(
                "StringRegexReplace", texts, [pattern], [by], domain=EXTENSIONS, types=["string"], shapes=[texts.shape]
            )

        # An empty text goes in front and its row comes off again: most of these nodes do not like an empty batch.
        texts = graph.onnx.Concat(np.array([""], object), text, axis=0)
        texts = graph.onnx.StringNormalizer(texts)
        texts = replace(texts, r"[\x{1F}\p{Co}]", "")  # our separator, and what means nothing in public
        if wordpiece.split_ideographs:
            texts = replace(
                texts, "([" + "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in IDEOGRAPHS) + "])", r" \1 "
            )
        texts = replace(texts, "(?s)(.)", rf"\1{SEPARATOR}")
        ids, lengths = graph.op(
            "Scan",
            texts,
            domain="",
            outputs=2,
            types=["int64", "int64"],
            shapes=[[None, wordpiece.max_length], [None]],
            body=_one_text(wordpiece, table, other),
            num_scan_inputs=1,
        )
        longest = graph.onnx.ReduceMax(lengths, keepdims=0)
        mask = graph.onnx.Less(graph.onnx.Range(np.int64(0), longest, np.int64(1)), graph.onnx.Unsqueeze(lengths, [1]))
        mask = graph.onnx.Cast(graph.onnx.Slice(mask, [1], [sys.maxsize], [0]), to=7)
        ids = graph.onnx.Slice(
            ids, [1, 0], graph.onnx.Concat([sys.maxsize], graph.onnx.Unsqueeze(longest, [0]), axis=0), [0, 1]
        )
    return ids, mask


def _one_text(wordpiece: WordPiece, table: Mapping[str, str], other: str) -> onnx_ir.Graph:
    """The body of the loop over texts: a string whose characters are separated in; its ids, padded to max_length, and how many out."""
    body = Graph("one_text")
    with body.name_scope("text"):

        def constant(name: str, value: object) -> Value:
            return body.constant(value, name=f"text/{name}")

        def string(op_type: str, *inputs: Value, domain: str = EXTENSIONS, **attributes: Any) -> Value:
            return body.op(op_type, *inputs, domain=domain, types=["string"], **attributes)

        text = body.onnx.Unsqueeze(body.input("text/item", "string", []), constant("axis", [0]))
        characters = body.onnx.StringSplit(text, delimiter=SEPARATOR, outputs=2)[0]
        characters = string(
            "LabelEncoder",
            characters,
            domain="ai.onnx.ml",
            version=4,
            keys_strings=list(table),
            values_strings=list(table.values()),
            default_string=other,
        )
        text = string("StringJoin", characters, constant("glue", [""]), constant("glue_axis", [1]))
        text = string(
            "StringRegexReplace", text, constant("unknown", [f"[^ ]*{other}[^ ]*"]), constant("other", [other])
        )
        ids, *_ = body.op(
            "BertTokenizer",
            text,
            domain=EXTENSIONS,
            outputs=4,
            types=["int64"] * 4,
            shapes=[[None], [None], [None], [None, 2]],
            vocab_file="\n".join(wordpiece.vocabulary),
            do_lower_case=0,
            strip_accents=0,
            tokenize_chinese_chars=int(wordpiece.split_ideographs),
            unk_token=wordpiece.unknown,
            cls_token=wordpiece.first,
            sep_token=wordpiece.last,
            pad_token=wordpiece.padding,
            mask_token=wordpiece.unknown,
            max_length=wordpiece.max_length,
        )
        length = body.onnx.Shape(ids)
        room = constant("longest", [wordpiece.max_length]) - length
        ids = body.onnx.Pad(
            ids,
            body.onnx.Concat(constant("before", [0]), room, axis=0),
            constant("padding", np.int64(wordpiece.vocabulary.index(wordpiece.padding))),
        )
        body.output(ids, "text/ids", [wordpiece.max_length])
        body.output(body.onnx.Squeeze(length), "text/length", [])
    return body.ir(functions=False).graph


def _characters(wordpiece: WordPiece) -> tuple[str, dict[str, str]]:
    """A character that the vocabulary does not know, and what becomes of each one that does not become that."""
    known = {character for piece in wordpiece.vocabulary for character in piece}
    other = next(
        chr(code) for code in range(0xA000, 0xA48D) if chr(code) not in known
    )  # Yi syllables: letters, one code point each
    table = {"": ""}
    for code in _assigned():
        normal = _normal(chr(code), wordpiece)
        normal = "".join(character if character == " " or character in known else other for character in normal)
        if normal != other:
            table[chr(code)] = normal
    return other, table


def _assigned() -> Iterator[int]:
    ideographs = {code for first, last in IDEOGRAPHS for code in range(first, last + 1)}
    for code in range(1, sys.maxunicode + 1):
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs") or code in ideographs:
            yield code


def _normal(character: str, wordpiece: WordPiece) -> str:
    """What BERT's basic tokenizer makes of a character; punctuation has spaces around it."""
    if character in "\t\n\r":
        return " "
    if unicodedata.category(character) in ("Cc", "Cf") or character == "\ufffd":
        return ""
    if character.isspace():
        return " "
    if wordpiece.lower_case if wordpiece.strip_accents is None else wordpiece.strip_accents:
        character = "".join(c for c in unicodedata.normalize("NFD", character) if unicodedata.category(c) != "Mn")
    if wordpiece.lower_case:
        character = "".join(c.lower() for c in character)
    return "".join(f" {c} " if _is_punctuation(c) else c for c in character)


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P") or (
        character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    )
