"""Merges of a tokenizer.json that make runs of different characters in turn, as those of Gemma 3."""

import itertools
import json
import random

import pytest

from keras_transformer.huggingface import FAMILIES
from keras_transformer.huggingface.tokenizers.sentence_piece_json import BLANK, _ranks

RUNS = [["\n", "\n"], [BLANK, BLANK], ["\n\n", "\n"], ["\n", "\n\n"], ["\t", "\t"], [BLANK * 2, BLANK]]
RUNS += [[BLANK, BLANK * 2], [BLANK * 2, BLANK * 2], ["\n\n", "\n\n"], [BLANK * 3, BLANK], ["\n", "\n\n\n"]]
RUNS += [
    [BLANK, BLANK * 3], ["\n\n\n", "\n"], [BLANK, "a"], ["b", "a"], [BLANK * 2, "a"], [BLANK, f"{BLANK}a"],
]  # fmt: skip


def gemma_json(folder, merges):
    """Writes a tokenizer.json as Gemma 3's with these merges."""
    characters = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = dict.fromkeys([*characters, "\n", "\t", BLANK, "a", "b", *map("".join, merges)])
    model = {"type": "BPE", "unk_token": "<unk>", "ignore_merges": False}
    model |= dict.fromkeys(("byte_fallback", "fuse_unk"), True)
    model |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges}
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    special = [{"id": i, "content": token, "special": True} for i, token in enumerate(characters[:4])]
    parts = {"model": model, "normalizer": normalizer, "pre_tokenizer": None, "added_tokens": special}
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    return model["vocab"]


def joined_by_ranks(text, merges):
    """Joins the pair of the lowest rank, the first one from the left, until there is none: BPE as it is defined."""
    ranks, pieces = {tuple(merge): i for i, merge in enumerate(merges)}, list(text.replace(" ", BLANK))
    while True:
        pairs = [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(pieces)) if pair in ranks]
        if not pairs:
            return pieces
        _, i = min(pairs)
        pieces[i : i + 2] = ["".join(pieces[i : i + 2])]


def test_runs_of_different_characters_may_be_merged_in_turn_as_in_gemma_3(tmp_path):
    vocabulary = gemma_json(tmp_path, RUNS)
    (tokenizer,) = FAMILIES["gemma3_text"].tokenizer.read(tmp_path)
    drawn = random.Random(0)
    texts = ["".join(drawn.choices("\n\n\n   \tab", k=drawn.randrange(1, 24))) for _ in range(500)]
    for text, ids in zip(texts, tokenizer.tokenize(texts).to_list(), strict=True):
        assert ids == [vocabulary[piece] for piece in joined_by_ranks(text, RUNS)], repr(text)


def longest_first(longest):
    """The merges of runs as the published tokenizer.json of Gemma 3 has them, then a few of letters."""
    sizes = [(left, right) for left in range(longest - 1, 0, -1) for right in range(longest - left, 0, -1)]
    runs = [[c * left, c * right] for left, right in sizes for c in ("\n", BLANK, "\t")]
    tabs = runs.pop()  # the last of them comes after a merge without its character
    return [*runs, [BLANK, "a"], tabs, ["b", "a"], [BLANK * 2, "a"], [BLANK, f"{BLANK}a"]]


def test_runs_of_which_the_longest_come_first_are_those_of_gemma_3(tmp_path):
    merges = longest_first(7)
    joined = ["".join(merge) for merge in merges]
    assert len([*itertools.groupby(joined)]) > len({*joined})  # the merges of a piece are apart
    vocabulary = gemma_json(tmp_path, merges)
    (tokenizer,) = FAMILIES["gemma3_text"].tokenizer.read(tmp_path)
    drawn = random.Random(0)
    texts = ["".join(drawn.choices("\n\n\n     \tab", k=drawn.randrange(1, 24))) for _ in range(300)]
    texts += [c * n for c in "\n \t" for n in range(1, 30)]
    for text, ids in zip(texts, tokenizer.tokenize(texts).to_list(), strict=True):
        assert ids == [vocabulary[piece] for piece in joined_by_ranks(text, merges)], repr(text)


@pytest.mark.parametrize(
    "moved",
    [
        [["a", "b"], ["b", "a"], ["ab", "a"]],  # "aba" from "a" and "ba" is missing
        [*RUNS[:2], ["\n\n", "\n"], ["\n\n", BLANK], *RUNS[3:]],  # a piece of both characters between
        [["\n", "\n"], ["\n\n", "\n"], ["\n\n", "\n\n"], [BLANK, BLANK], ["\n", "\n\n"], *RUNS[9:]],
    ],
)
def test_merges_whose_order_counts_are_refused(moved, tmp_path):
    gemma_json(tmp_path, moved)
    with pytest.raises(ValueError, match="merges must be those"):
        FAMILIES["gemma3_text"].tokenizer.read(tmp_path)


def test_no_piece_between_is_merged_before_it_is_made():
    first = ["de"]  # its merge comes last
    assert _ranks([("a", "b"), ("ab", "c"), ("d", "e")], first) == {"de": 0, "ab": 1, "abc": 2}
    assert _ranks([("ab", "c"), ("a", "b"), ("d", "e")], first) is None
