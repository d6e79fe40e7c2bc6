"""Models of SentencePiece with values that native code does not check: refused before it reads them."""

import functools
import io
import random
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as messages

from keras_transformer.text import SentencePieceTokenizer
from keras_transformer.text.character_map import check_character_map

SENTENCES = ["A man runs in the park", "The dog ﬁnds ½ of 10 Å"] * 10
RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
DAMAGED = 10_000


@functools.cache
def trained(rule="nmt_nfkc"):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=60, hard_vocab_limit=False,
        normalization_rule_name=rule, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def charsmap(units, forms=b"a\0"):
    """Makes a map of 256 units, of which a dict has some, and of texts. The root leads to the place 128."""
    array = np.full(256, 1 << 31, "<u4")
    array[0] = 128 << 10
    for place, unit in units.items():
        array[place] = unit
    return (1024).to_bytes(4, "little") + array.tobytes() + forms


def leaf(byte, offset, has_leaf=1):
    return offset << 10 | has_leaf << 8 | byte


PLACE = 128 ^ ord("A")  # where "A" leads from the root
ONE_BYTE = {PLACE: leaf(ord("A"), PLACE ^ 2), 2: 1 << 31}  # the text of "A" is at place 0
HOSTILE = {
    "no array": b"abc",
    "array of no units": (0).to_bytes(4, "little") + b"a\0",
    "larger than the file": (2**31).to_bytes(4, "little") + bytes(1024) + b"a\0",
    "part of a block": (1020).to_bytes(4, "little") + bytes(1020) + b"a\0",
    "no texts": charsmap(ONE_BYTE, b""),
    "an endless text": charsmap(ONE_BYTE, b"a"),
    "a text of a megabyte": charsmap(ONE_BYTE, b"a" * 2**20 + b"\0"),
    "no UTF-8": charsmap(ONE_BYTE, b"\xff\0"),
    "a root outside": charsmap({0: leaf(0, 2**20)}),
    "a far root": charsmap({0: 2**21 << 10 | 1 << 9}),
    "a child outside": charsmap({PLACE: leaf(65, 2**20, 0)}),
    "a leaf outside": charsmap({PLACE: leaf(65, 2**20)}),
    "a text outside": charsmap({**ONE_BYTE, 2: 1 << 31 | 2}),
    "the middle of a text": charsmap({**ONE_BYTE, 2: 1 << 31 | 1}, b"ab\0"),
    "more prefixes than there is room for": charsmap({PLACE: leaf(ord("A"), PLACE ^ 128), 128: 1 << 31}),
    "a cycle": charsmap({PLACE: leaf(ord("A"), PLACE ^ 128, 0)}),
    "more units than any map has": (2**22 + 1024).to_bytes(4, "little") + bytes(2**22 + 1024) + b"a\0",
    "random": (4096).to_bytes(4, "little") + random.Random(2).randbytes(4096) + b"abc\0",
}


@pytest.mark.parametrize("rule", RULES)
def test_the_maps_of_sentencepiece_are_accepted(rule):
    proto = messages.ModelProto.FromString(trained(rule))
    assert bool(proto.normalizer_spec.precompiled_charsmap) == (rule != "identity")
    assert SentencePieceTokenizer(trained(rule)).model == trained(rule)


def test_the_smallest_map_is_accepted():
    check_character_map(charsmap(ONE_BYTE))


def chain(length, leaves):
    """Makes a map of 256 units for each of `length` bytes "A", of which the last ones have leaves."""
    array = np.full(256 * (length + 2), 1 << 31, "<u4")
    array[0] = 256 << 10
    numbers = np.arange(length)
    places, nexts = 256 * (numbers + 1) + ord("A"), 256 * (numbers + 2)
    array[places] = (places ^ nexts) << 10 | (numbers >= length - leaves) << 8 | ord("A")
    return (4 * len(array)).to_bytes(4, "little") + array.tobytes() + b"a\0"


def test_the_longest_key_and_the_most_prefixes_are_exact():
    check_character_map(chain(1023, 31))
    for length, leaves in ((1024, 31), (1023, 32)):
        with pytest.raises(ValueError, match="each key leads to"):
            check_character_map(chain(length, leaves))


@pytest.mark.parametrize("spec", ["normalizer_spec", "denormalizer_spec"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_map_that_leads_outside_is_refused(name, spec, tmp_path):
    proto = messages.ModelProto.FromString(trained("identity"))
    getattr(proto, spec).precompiled_charsmap = HOSTILE[name]
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    with pytest.raises(
        ValueError, match=r"spiece\.model, is not a SentencePiece model: `precompiled_charsmap`"
    ):
        SentencePieceTokenizer(tmp_path / "spiece.model")


@pytest.mark.parametrize(
    "changes",
    [{"score": np.nan}, {"score": np.inf}, {"piece": "a\0b"}, {"piece": "\0"}, {"piece": "a" * 10**6}],
)
def test_a_piece_that_ends_the_process_is_refused(changes):
    proto = messages.ModelProto.FromString(trained("identity"))
    for name, value in changes.items():
        setattr(proto.pieces[5], name, value)
    with pytest.raises(ValueError, match="1 to 4096 characters without NUL, and a finite score"):
        SentencePieceTokenizer(proto.SerializeToString())


def test_a_piece_of_bpe_may_be_nul():
    """InternVL2-2B has one."""
    proto = messages.ModelProto.FromString(trained("identity"))
    proto.trainer_spec.model_type, proto.pieces[5].piece = proto.trainer_spec.BPE, "\0"
    assert SentencePieceTokenizer(proto.SerializeToString()).detokenize([5]).numpy() == b"\0"


def damaged(content, number):
    """Returns the bytes of a model with one of ten kinds of damage."""
    draw, kind = random.Random(number), number % 10
    if kind < 3:  # of the file: flipped bytes, cut, doubled
        place = draw.randrange(len(content))
        flipped = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            flipped[draw.randrange(len(content))] = draw.randrange(256)
        return (bytes(flipped), content[:place], content[:place] + content)[kind]
    proto = messages.ModelProto.FromString(content)
    spec = proto.normalizer_spec if draw.random() < 0.8 else proto.denormalizer_spec
    chars = bytearray(proto.normalizer_spec.precompiled_charsmap)
    size = int.from_bytes(chars[:4], "little")
    if kind == 3:  # flipped bytes of the array
        for _ in range(draw.randint(1, 200)):
            chars[draw.randrange(4, 4 + size)] = draw.randrange(256)
    elif kind == 4:  # another size
        chars[:4] = draw.choice([size - 1024, size + 1024, draw.randrange(2**32)]).to_bytes(4, "little")
    elif kind == 5:  # other texts
        del chars[draw.randrange(4, len(chars)) :]
    elif kind == 6:  # a random array
        chars = bytearray((4096).to_bytes(4, "little") + draw.randbytes(4096) + b"abc\0")
    elif kind == 7:  # pieces
        piece = draw.choice(proto.pieces)
        piece.piece, piece.type = (
            draw.choice(["", "\0", "a\0b", "▁", "<0x41>", "é" * 9, "a" * 10**5]),
            draw.randint(1, 6),
        )
        piece.score = draw.choice([np.nan, -np.inf, 3e38, 0.0])
        if draw.random() < 0.5:
            del proto.pieces[draw.randrange(len(proto.pieces)) :]
    elif kind == 8:  # the trainer's description
        trainer = proto.trainer_spec
        trainer.model_type, trainer.byte_fallback = draw.randint(1, 4), draw.random() < 0.5
        trainer.unk_id, trainer.vocab_size = draw.randint(-5, 2**31 - 1), draw.randint(-5, 2**31 - 1)
        trainer.unk_surface = trainer.unk_piece = draw.choice(["", "\0", "A", "▁"])
        trainer.treat_whitespace_as_suffix = draw.random() < 0.5
    else:  # what a model tests itself with
        proto.self_test_data.samples.add(input="A man" * draw.randint(1, 99), expected="\0")
        proto.normalizer_spec.escape_whitespaces = proto.normalizer_spec.add_dummy_prefix = (
            draw.random() < 0.5
        )
    if 2 < kind < 7:
        spec.precompiled_charsmap = bytes(chars)
    return proto.SerializeToString()


def use(numbers):
    """Reads damaged models, and lets those that are accepted tokenize and detokenize."""
    texts = ["A man runs", "ﬁnds ½ Å\u3000", "".join(map(chr, range(1, 300))), "a\0b", ""]
    accepted = 0
    for number in numbers:
        print(number, flush=True)
        try:
            tokenizer = SentencePieceTokenizer(damaged(trained(), number))
        except ValueError as error:
            assert len(str(error)) <= 2000
            continue
        accepted += 1
        try:
            tokenizer.detokenize(tokenizer.tokenize(texts))
            tokenizer.detokenize(np.arange(tokenizer.vocab_size)[None])
        except Exception as error:  # TensorFlow's own
            assert type(error).__module__.startswith("tensorflow"), error
    print("accepted", accepted)


@pytest.mark.slow
def test_damaged_models_do_not_end_the_process():
    command = [sys.executable, __file__, "0", str(DAMAGED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-200:]} {done.stderr[-2000:]}"


if __name__ == "__main__":
    use(range(*map(int, sys.argv[1:])))
