"""Compares the ids and texts of `BytePairTokenizer` with those of Hugging Face's tokenizers on many lines.

usage: python benchmarks/unusual_checkpoints/compare_byte_level.py [--lines 100000] [--record] [FILE ...]

It needs the extra `parity`. `--record` writes tests/huggingface/recorded_byte_level.json, for tests without it.

For each pattern a tokenizer is trained with tokenizers on the files and on the Python files of this repository, written
as tokenizer.json, and read with both libraries. The lines are those of the files, code, and generated noise: emoji,
blanks, digits, contractions, special tokens, characters from all of Unicode, and bytes that are not UTF-8.
"""

import argparse
import gzip
import json
import random
import tempfile
from pathlib import Path

import tensorflow as tf
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from keras_transformer.huggingface.tokenizers.byte_pair import REGEXES, read_byte_pair
from keras_transformer.text import BytePairTokenizer

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "huggingface" / "recorded_byte_level.json"
PATTERNS = ("gpt2", *REGEXES)
SPECIAL = ["<|endoftext|>", "<|im_start|>"]
BLANKS = [
    " ", "  ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u2003", "\u2028", "\u3000",
]  # fmt: skip
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧", "🇰🇷", "❤️", "1️⃣", "🏳️‍🌈"]
CONTRACTIONS = ["'s", "'S", "'ll", "'Ll", "'re", "'VE", "'m", "'d", "'T", "'ſ", "’s", "'x", "''s", " 's"]
ODD = [
    "é", "e\u0301", "ﬀ", "한", "\u1112\u1161\u11ab", "中文", "क्षि", "ⅷ", "½", "٣", "²", "_", "́", "\u200b",
    "\ufeff", "\0",
]  # fmt: skip


def read_lines(paths):
    """Returns the lines of text files, which may be compressed, without empty ones."""
    lines = []
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            lines += [line for line in file.read().split("\n") if line]
    return lines


def code_lines():
    """Returns the lines of this repository's Python files."""
    return [
        line for path in sorted(ROOT.glob("**/*.py")) for line in path.read_text("utf-8").splitlines(True)
    ]


def trained(pattern, texts, vocab_size, ignore_merges=False):
    """Trains a tokenizer with tokenizers."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")
    if pattern == "gpt2":
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(REGEXES[pattern]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if pattern == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([tokenizers.AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def noise(rng, lines):
    """Generates one line."""

    def any_character():
        code = rng.choice([rng.randrange(0x250), rng.randrange(0x3000), rng.randrange(0x110000)])
        return chr(code) if not 0xD800 <= code < 0xE000 else "?"

    parts = [
        lambda: rng.choice(lines),
        lambda: rng.choice(BLANKS) * rng.randrange(1, 4),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(CONTRACTIONS),
        lambda: rng.choice([*SPECIAL, "<tool_call>", "<|endof"]),
        lambda: str(rng.randrange(10 ** rng.randrange(1, 12))),
        lambda: rng.choice(ODD),
        any_character,
        lambda: rng.choice("aA.,;!?-=()[]{}<>|#_'\"") * rng.randrange(1, 9),
        lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABC", k=rng.randrange(1, 30))),
    ]
    weights = [1, 8, 3, 4, 1, 4, 4, 4, 4, 3]
    return "".join(part() for part in rng.choices(parts, weights, k=rng.randrange(1, 14)))


def broken(rng, line):
    """Makes bytes of a line that are not UTF-8."""
    content = bytearray(line.encode())
    for _ in range(rng.randrange(1, 4)):
        content.insert(
            rng.randrange(len(content) + 1), rng.choice([0x80, 0xC3, 0xE0, 0xED, 0xF0, 0xFF, 0xBF])
        )
    return bytes(content)


def mixed_lines(count, lines, code, seed=0):
    """Returns bytes: a third of the lines from files, a tenth code of one to four lines, the rest noise."""
    rng = random.Random(seed)
    rows = [line.encode() for line in rng.choices(lines, k=count // 3)]
    for _ in range(count // 10):
        start = rng.randrange(len(code))
        rows.append("".join(code[start : start + rng.randrange(1, 5)]).encode())
    rows += [broken(rng, noise(rng, lines)) for _ in range(count // 20)]
    rows += [noise(rng, lines).encode() for _ in range(count - len(rows))]
    rng.shuffle(rows)
    return rows


def differences(tokenizer, theirs, rows, batch=5000):
    """Returns the rows whose ids differ, and those whose ids become another text."""
    tokenize, ids_differ, texts_differ = tf.function(tokenizer.tokenize), [], []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        expected = [
            each.ids
            for each in theirs.encode_batch(
                [row.decode("utf-8", "replace") for row in part], add_special_tokens=False
            )
        ]
        found = tokenize(tf.constant(part))
        texts = [text.decode() for text in tokenizer.detokenize(found).numpy()]
        there = theirs.decode_batch(expected, skip_special_tokens=True)
        for row, own, other, text, expected_text in zip(
            part, found.to_list(), expected, texts, there, strict=True
        ):
            ids_differ += [row] if own != other else []
            texts_differ += [row] if text != expected_text else []
    return ids_differ, texts_differ


def record():
    """Writes a small tokenizer of each pattern, some lines, and their ids with and without special tokens."""
    code = code_lines()
    lines = [line.strip() for line in code if line.strip()]
    rows = [
        row
        for row in (row.decode("utf-8", "ignore") for row in mixed_lines(50, lines, code))
        if len(row) < 90
    ]
    rows += [
        "",
        "  two  blanks ",
        "I'll say: don't, I'M he'S 'ſ",
        "12345 678",
        "안녕하세요 여러분",
        "x<|endoftext|><|im_start|> <tool_call>y",
        "a\n\n  b \r\n c\n",
    ]
    recorded = {"versions": {"tokenizers": tokenizers.__version__}, "rows": rows}
    for pattern in PATTERNS:
        theirs = trained(pattern, code, 400, ignore_merges=pattern == "llama3")
        recorded[pattern] = {"tokenizer": json.loads(theirs.to_str())}
        for name, split in (("ids", True), ("ids_with_special_tokens", False)):
            theirs.encode_special_tokens = split
            found = theirs.encode_batch(rows, add_special_tokens=False)
            recorded[pattern][name] = [each.ids for each in found]
    RECORD.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


def main():
    """Prints a line for each pattern, and the first rows that differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.record:
        record()
        return
    code = code_lines()
    lines = read_lines(options.files) or [line.strip() for line in code if line.strip()]
    rows = mixed_lines(options.lines, lines, code)
    for pattern in PATTERNS:
        theirs = trained(pattern, lines + code, options.vocab_size, ignore_merges=pattern == "llama3")
        with tempfile.TemporaryDirectory() as folder:
            theirs.save(str(Path(folder) / "tokenizer.json"))
            tokenizer = read_byte_pair(Path(folder))
        for parse_special in (False, True):
            theirs.encode_special_tokens = not parse_special
            own = BytePairTokenizer(**{**tokenizer.get_config(), "parse_special": parse_special})
            ids, texts = differences(own, theirs, rows)
            print(f"{pattern}, parse_special={parse_special}: of {len(rows)} lines", end=" ")
            print(f"{len(ids)} differ in their ids, {len(texts)} in their texts")
            for row in (ids or texts)[:5]:
                print("   ", row)


if __name__ == "__main__":
    main()
