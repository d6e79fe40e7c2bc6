"""Tokens that were added to a saved tokenizer: the ids of transformers and the same texts back, for each kind."""

import json
import random
import re

import pytest
import sentencepiece
from pieces import BYTES, T5_IDS, byte_pieces, described, train_pieces

from keras_transformer.huggingface import tokenizers_from_huggingface
from keras_transformer.text import TOKENIZERS

transformers = pytest.importorskip("transformers")
PLAIN = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}
TOKENS = {
    "[E1]": {},
    "<sep>": {"normalized": True},
    "{name}": {"lstrip": True, "rstrip": True},
    "quay": {"single_word": True, "normalized": True},
    "<hl>": {"special": True},
}
# In Python a word ends at a space alone, and decoding knows no flag.
PYTHON = {**TOKENS, "quay": {}, "<hl>": {}}
# fmt: off
WORDS = [
    "A man", "runs", "in the", "park", "quay", "quays", "dog", "Zwei Hunde:", "두 마리", "é", "naïve", "1,234",
    "(", "!", "_",
]
PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "runs", "a", "man", "in", "e", "##1", "[", "]",
    "park", "<", ">", "s", "##e", "##p", "1", "zwei", "hunde", ",", ":", "(", "!", "naive", "##ark", "p",
]
# fmt: on


def word_pieces(folder):
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return len(PIECES)


def byte_level(folder):
    vocabulary, merges = byte_pieces()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)))
    return len(vocabulary)


def sentence_piece(name, more=0, **options):
    def write(folder):
        train_pieces(folder / name, **options)
        size = sentencepiece.SentencePieceProcessor(model_file=str(folder / name)).GetPieceSize()
        return size + more

    return write


def marian(folder):
    for side in ("source", "target"):
        train_pieces(folder / f"{side}.spm")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [processor.IdToPiece(i) for i in range(3, processor.GetPieceSize())]
    ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    return len(ids)


UNIGRAM = {"model_type": "unigram"}
XLM_R = sentence_piece("sentencepiece.bpe.model", 2, **UNIGRAM)
LANGUAGES = 25  # of mBART
KINDS = {
    # kind: model_type, transformers' class, what writes the files and counts the ids, whether tokenizer.json is written
    "bert": ("bert", "BertTokenizer", word_pieces, False),
    "bert-json": ("bert", "BertTokenizer", word_pieces, True),
    "gpt2": ("gpt2", "GPT2Tokenizer", byte_level, False),
    "roberta": ("roberta", "RobertaTokenizer", byte_level, False),
    "roberta-json": ("roberta", "RobertaTokenizer", byte_level, True),
    "t5": ("t5", "T5Tokenizer", sentence_piece("spiece.model", 100, **T5_IDS), False),
    "t5-json": ("t5", "T5Tokenizer", sentence_piece("spiece.model", 100, **T5_IDS), True),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer", XLM_R, False),
    "xlm-roberta-json": ("xlm-roberta", "XLMRobertaTokenizer", XLM_R, True),
    "llama": ("llama", "LlamaTokenizer", sentence_piece("tokenizer.model", vocab_size=400, **BYTES), False),
    "llama-json": ("llama", "LlamaTokenizer", sentence_piece("tokenizer.model", vocab_size=400, **BYTES), True),
    "marian": ("marian", "MarianTokenizer", marian, False),
    "pegasus": ("pegasus", "PegasusTokenizer", sentence_piece("spiece.model", 103, **T5_IDS), False),
    "mbart": ("mbart", "MBartTokenizer", sentence_piece("sentencepiece.bpe.model", 2 + LANGUAGES, **UNIGRAM), False),
}  # fmt: skip
FINDS_NO_SPECIAL = ("gpt2", "llama", "llama-json")  # a user's text cannot end a turn of a language model


def saved(kind, folder):
    """Writes the files of a tokenizer with added tokens; returns transformers' tokenizer of the same files."""
    family, name, write, as_json = KINDS[kind]
    tokens = PYTHON if kind == "marian" else TOKENS
    size = write(described(folder, family, tokenizer_class=name))
    if kind == "mbart":
        from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

        listed = {"additional_special_tokens": FAIRSEQ_LANGUAGE_CODES}
        (folder / "special_tokens_map.json").write_text(json.dumps(listed))
    added = {str(size + i): {"content": token, **PLAIN, **tokens[token]} for i, token in enumerate(tokens)}
    ends = {"unk_token": "</s>", "bos_token": "<s>", "eos_token": "</s>"} if kind == "gpt2" else {}
    config = {"tokenizer_class": name, "added_tokens_decoder": added, **ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ids = {token["content"]: int(token_id) for token_id, token in added.items()}
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    there = getattr(transformers, name).from_pretrained(folder)
    if as_json:  # beside the files of SentencePiece, as transformers 4 does
        there.save_pretrained(folder)
        (folder / "added_tokens.json").unlink()
    return there


def lines_of(kind, count):
    """Makes lines of words and added tokens, with blanks between them or not."""
    numbers = random.Random(7)
    tokens = [token for token in TOKENS if not (kind in FINDS_NO_SPECIAL and token == "<hl>")]
    more = ["  ", "\u00a0"] if kind.startswith(("bert", "gpt2", "roberta")) else []
    blanks = ["", " ", " ", *more]
    lines = []
    for _ in range(count):
        parts = [numbers.choice([*WORDS, *tokens, *tokens]) for _ in range(numbers.randint(1, 8))]
        lines.append("".join(part + numbers.choice(blanks) for part in parts).rstrip())
    if kind == "pegasus":  # transformers 5 keeps a blank before an added token as a piece of its own
        lines = [re.sub(r" (?=[<[{]|quay)", "", line) for line in lines]
    return [line for line in lines if line]


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_have_the_ids_of_transformers(kind, count, tmp_path):
    there = saved(kind, tmp_path)
    tokenizer = tokenizers_from_huggingface(tmp_path)[0]
    assert tokenizer.vocab_size == len(there)
    lines = lines_of(kind, count)
    found, expected = tokenizer.tokenize(lines).to_list(), there(lines, add_special_tokens=False)["input_ids"]
    rows = zip(lines, found, expected, strict=True)
    different = [(line, *map(tokenizer.pieces, ids)) for line, *ids in rows if ids[0] != ids[1]]
    assert not different, (len(different), different[0])
    known = [ids for ids in expected if tokenizer.unk_id not in ids]
    assert len(known) > count // 20
    back = [text.decode() for text in tokenizer.detokenize(known).numpy()]
    read = there.batch_decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    # transformers leaves blanks before some signs out.
    if type(tokenizer) is TOKENIZERS["WordPieceTokenizer"]:
        back, read = (["".join(text.split()) for text in texts] for texts in (back, read))
    assert [text.strip() for text in back] == [text.strip() for text in read]
    tokenizer.save(tmp_path / "own")
    again = type(tokenizer).load(tmp_path / "own")
    assert again.tokenize(lines[:50]).to_list() == found[:50]
