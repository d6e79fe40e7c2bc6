"""Compares the ids of every kind of tokenizer with those of sentencepiece and of Hugging Face's tokenizers.

usage: python benchmarks/tokenizers_equal.py [--lines 100000] [--kinds NAME ...] FILE ...    (needs the extra `parity`)

Each kind is trained on the files and on the Python files of this repository. The lines to compare are of the files,
code, and generated noise: emoji, blanks, digits, special tokens, characters from all of Unicode, and bytes that are not
UTF-8, which both sides read as U+FFFD. For WordPiece, letters and marks that are newer than Unicode 3.2 are left out of
the lines: the tables of tokenizers are older than those of TensorFlow. Prints for each kind how many lines differ, and
exits with 1 if any does.
"""

import argparse
import random
import sys
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
import tensorflow as tf
import tokenizers

from keras_transformer.huggingface.tokenizers.byte_pair import read_byte_pair
from keras_transformer.huggingface.tokenizers.sentence_piece import fairseq_tokenizer
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer, WordPieceTokenizer

sys.path.append(str(Path(__file__).resolve().parent / "unusual_checkpoints"))
from compare_byte_level import PATTERNS, code_lines, mixed_lines, read_lines, trained


def sentence_piece(texts, size, **options):
    """A SentencePiece model with its own ids; the reference is sentencepiece."""
    own = SentencePieceTokenizer.train(texts, size, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=own.model)
    return own, processor.encode


def fairseq(texts, size):
    """A SentencePiece model with the ids of mBART: the reference maps sentencepiece's pieces."""
    own = sentencepiece_model(texts, size)
    tokenizer = fairseq_tokenizer(own, ["de_DE", "ko_KR"])
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    processor = sentencepiece.SentencePieceProcessor(model_proto=own)
    return tokenizer, lambda rows: [
        [ids.get(piece, 3) for piece in row] for row in processor.encode(rows, out_type=str)
    ]


def sentencepiece_model(texts, size):
    """Trains a model whose first ids are fairseq's: unk, bos, eos."""
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=f"{folder}/m", vocab_size=size, minloglevel=2
        )
        return Path(folder, "m.model").read_bytes()


def word_piece(texts, size, lower_case):
    """BERT's tokenizer; the reference is the one of tokenizers, with the same vocabulary."""
    own = WordPieceTokenizer.train(texts, size, lower_case=lower_case, strip_accents=lower_case)
    ids = {piece: i for i, piece in enumerate(own.pieces(range(own.vocab_size)))}
    reference = tokenizers.BertWordPieceTokenizer(ids, lowercase=lower_case, strip_accents=lower_case)
    reference = tokenizers.Tokenizer.from_str(reference.to_str())
    reference.encode_special_tokens = True  # "[SEP]" in a text is text, as it is here
    return own, lambda rows: [each.ids for each in reference.encode_batch(rows, add_special_tokens=False)]


def byte_level(texts, size, pattern):
    """The byte-level pieces of a pattern; the reference is tokenizers."""
    reference = trained(pattern, texts, size, ignore_merges=pattern == "llama3")
    reference.encode_special_tokens = True
    with tempfile.TemporaryDirectory() as folder:
        reference.save(f"{folder}/tokenizer.json")
        own = read_byte_pair(Path(folder))
    return own, lambda rows: [each.ids for each in reference.encode_batch(rows, add_special_tokens=False)]


def plain_bytes(texts, size):
    """Bytes; the reference is Python's own encoding."""
    own = ByteTokenizer()
    first = own.tokenize(["a"])[0].numpy().item() - ord("a")
    return own, lambda rows: [[first + byte for byte in row.encode()] for row in rows]


KINDS = {
    "bytes": plain_bytes,
    "sentencepiece unigram": sentence_piece,
    "sentencepiece bpe": lambda texts, size: sentence_piece(
        texts, size, model_type="bpe", byte_fallback=True
    ),
    "sentencepiece with fairseq's ids": fairseq,
    "wordpiece cased": lambda texts, size: word_piece(texts, size, False),
    "wordpiece uncased": lambda texts, size: word_piece(texts, size, True),
    **{
        f"byte-level {name}": lambda texts, size, name=name: byte_level(texts, size, name)
        for name in PATTERNS
    },
}


def without_new_characters(row):
    """Leaves characters out of a row of bytes whose category depends on the version of Unicode."""

    def settled(character):
        now, before = unicodedata.category(character), unicodedata.ucd_3_2_0.category(character)
        return (
            now == "Cs"
            or (now == before and now[0] != "C")
            or (now[0], before) == ("S", "Cn")
            or character < "\x80"
        )

    text = row.decode(
        "utf-8", "surrogateescape"
    )  # bytes that are not UTF-8 become surrogates, and bytes again
    return "".join(filter(settled, text)).encode("utf-8", "surrogateescape")


def differing(own, reference, rows, batch=5000):
    """Returns the rows, a list of bytes, that have other ids than the reference."""
    tokenize, found = tf.function(own.tokenize), []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        expected = reference([row.decode("utf-8", "replace") for row in part])
        ids = tokenize(tf.constant(part)).to_list()
        found += [row for row, one, other in zip(part, ids, expected, strict=True) if one != list(other)]
    return found


def main():
    """Prints a line for each kind, and the first rows that differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="text files, which may be .gz")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--training-lines", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    lines, code = read_lines(options.files), code_lines()
    rows = mixed_lines(options.lines, lines, code)
    texts = [*lines, *(line.strip() for line in code if line.strip())]
    texts = random.Random(0).sample(texts, min(len(texts), options.training_lines))
    failed = False
    for kind in options.kinds:
        read = [without_new_characters(row) for row in rows] if kind.startswith("wordpiece") else rows
        different = differing(*KINDS[kind](texts, options.vocab_size), read)
        failed |= bool(different)
        print(f"{kind}: of {len(rows)} lines {len(different)} differ", flush=True)
        for row in different[:5]:
            print("   ", row)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
