"""The same ids as the tokenizers of transformers, of SentencePiece models that are trained here."""

import json
import pathlib
import sys

import pytest
import sentencepiece
from contracts import refuses

from keras_transformer.huggingface import FAMILIES, to_huggingface, tokenizers_from_huggingface
from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)

transformers = pytest.importorskip("transformers")

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "unusual_checkpoints"))
from compare_byte_level import trained  # noqa: E402  (it needs tokenizers)
from pieces import BYTES, T5_IDS, assert_same_ids, described, train_pieces  # noqa: E402
from tokenizers import AddedToken, normalizers  # noqa: E402
from tokenizers.processors import BertProcessing  # noqa: E402

ODD = ["", "🎉", "two  blanks", "1984 and 3.14", "naïve Ｆｕｌｌ ﬁne", "a\tb", "Garten 🎉🎉 Straße"]


@pytest.fixture(scope="module")
def lines(sentences):
    return {"en": sentences[1::2], "de": sentences[::2]}


@pytest.fixture(scope="module")
def texts(lines):
    return [text for each in lines.values() for text in each]


def assert_same(own, there, texts, read=True):
    assert_same_ids(own, there, texts)
    found = own.tokenize(texts).to_list()
    assert sum(map(len, found)) > 5 * len(texts)
    known = [ids for ids in found if ids and own.unk_id not in ids]
    if read:
        back = [text.decode() for text in own.detokenize(known).numpy()]
        assert back == there.batch_decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def t5(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    train_pieces(folder / "spiece.model", texts, 900, **T5_IDS)
    described(folder, "t5", extra_ids=7)
    return folder


def test_t5s_sentinels_are_ids_past_the_pieces(t5, texts):
    (tokenizer,) = tokenizers_from_huggingface(t5)
    there = transformers.T5Tokenizer.from_pretrained(t5)
    first, second, third = texts[0].split()[:3]
    texts = [
        f"{first} <extra_id_0> {second} <extra_id_1> {third}",
        "<extra_id_6>",
        f"{first}<extra_id_0>{second}",
    ]
    expected = there(texts, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(texts).to_list() == expected
    assert expected[1] == [tokenizer.vocab_size - 7]
    back = [text.decode() for text in tokenizer.detokenize(expected).numpy()]
    read = [text.replace(" <", "<").replace(f">{second}", f"> {second}") for text in texts]
    assert back == there.batch_decode(expected) == read


@pytest.fixture(scope="module", params=[False, True], ids=["joint", "separate"])
def marian(request, lines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    names = {}
    for side, language in (("source", "en"), ("target", "de")):
        train_pieces(folder / f"{side}.spm", lines[language], 900)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        names[side] = [processor.IdToPiece(i) for i in range(3, processor.GetPieceSize())]
    if not request.param:
        names = {"source": list(dict.fromkeys(names["source"] + names["target"]))}
    files = {"source": "vocab.json", "target": "target_vocab.json"}
    for side, pieces in names.items():
        vocabulary = ["</s>", "<unk>", *reversed(pieces), ">>de<<", "<pad>"]
        ids = {piece: i for i, piece in enumerate(vocabulary)}
        (folder / files[side]).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    described(folder, "marian", separate_vocabs=request.param)
    return folder


def test_marians_ids_are_those_of_transformers(marian, lines):
    source, target = tokenizers_from_huggingface(marian)
    there = transformers.MarianTokenizer.from_pretrained(marian)
    special = (source.pad_id, source.unk_id, source.bos_id, source.eos_id)
    assert special == (there.pad_token_id, 1, None, 0)
    assert source.vocab_size == len(there.encoder)
    # What the other language's pieces are for shows in the joint vocabulary.
    assert_same(source, there, lines["en"] + lines["de"] + ODD, read=not there.separate_vocabs)
    expected = there(text_target=lines["de"] + ODD, add_special_tokens=False)["input_ids"]
    assert target.tokenize(lines["de"] + ODD).to_list() == expected
    # transformers leaves out the pieces of targets that have the id of the source's padding.
    known = [ids for ids in expected if ids and not {1, there.pad_token_id} & {*ids}]
    back = [text.decode() for text in target.detokenize(known).numpy()]
    assert back == there.batch_decode(known, skip_special_tokens=True)


def test_marians_names_of_languages_begin_a_text(marian):
    source, _ = tokenizers_from_huggingface(marian)
    there = transformers.MarianTokenizer.from_pretrained(marian)
    texts = [">>de<< A man runs.", ">>de<<A man", "A man"]
    expected = there(texts, add_special_tokens=False)["input_ids"]
    assert source.tokenize(texts).to_list() == expected
    assert expected[0][0] == source.pad_id - 1


@pytest.mark.parametrize("ids", [{"</s>": 0, "<unk>": 2}, {"a": 0}, {"<unk>": "0"}, {"<unk>": [0]}])
def test_a_vocabulary_with_other_ids_is_refused(marian, ids, tmp_path):
    for name in ("source.spm", "target.spm", "config.json"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    refuses(r"from 0 to|'<unk>' must be one of them", tokenizers_from_huggingface, tmp_path)


@pytest.fixture(scope="module")
def llama(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    options = {**BYTES, "split_digits": True, "allow_whitespace_only_pieces": True}
    train_pieces(folder / "tokenizer.model", texts, 900, **options)
    described(folder, "llama")
    return folder


@pytest.mark.parametrize(
    ("family", "special"), [("t5", (0, 2, None, 1)), ("llama", (None, 0, 1, 2))]
)  # the ids of padding, unknown pieces, begin and end
def test_sentence_pieces_have_the_ids_of_transformers(family, special, request, texts, tmp_path):
    folder = request.getfixturevalue(family)
    (tokenizer,) = given = tokenizers_from_huggingface(folder)
    kinds = {"t5": transformers.T5Tokenizer, "llama": transformers.LlamaTokenizer}
    there = kinds[family].from_pretrained(folder)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == special
    assert tokenizer.vocab_size == len(there)
    if family == "t5":
        assert (there.pad_token_id, there.unk_token_id, there.eos_token_id) == (0, 2, 1)
    assert_same(tokenizer, there, texts + ODD)
    there, (again,) = written(family, given, tmp_path / "new")
    assert_same(tokenizer, there, texts + ODD)
    assert (again.model, again.vocabulary) == (tokenizer.model, tokenizer.vocabulary)


# The way back.

LAYERS = {"hidden_size": 6, "intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 3}
SMALL = {
    "gpt2": {"n_embd": 6, "n_head": 2, "n_layer": 1},
    "t5": {"d_model": 6, "d_kv": 3, "d_ff": 5, "num_layers": 1, "num_heads": 2},
    "llama": LAYERS,
    "modernbert": {**LAYERS, "num_hidden_layers": 2},
    "marian": {
        "d_model": 6, "encoder_layers": 1, "encoder_ffn_dim": 5, "encoder_attention_heads": 2, "decoder_layers": 1,
        "decoder_ffn_dim": 5, "decoder_attention_heads": 2, "share_encoder_decoder_embeddings": False,
    },
    "bert": LAYERS,
}  # fmt: skip


def model_of(family, tokenizers, **config):
    """A small model with the ids of its tokenizers."""
    config = {**SMALL[family], "vocab_size": tokenizers[0].vocab_size, **config}
    if family == "marian":
        pad, eos = tokenizers[0].pad_id, tokenizers[0].eos_id
        config = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": eos, **config}
        config["decoder_vocab_size"] = tokenizers[-1].vocab_size
        if tokenizers[0].vocabulary != tokenizers[-1].vocabulary:
            assert tokenizers[0].pad_id != tokenizers[-1].pad_id  # our model has one of either
    return FAMILIES[family].make_model(config)


def written(family, tokenizers, folder, **config):
    """Writes tokenizers; returns transformers' tokenizer of the folder, and this library's."""
    to_huggingface(model_of(family, tokenizers, **config), folder, tokenizers=tokenizers)
    return transformers.AutoTokenizer.from_pretrained(folder), tokenizers_from_huggingface(folder)


def test_t5s_tokenizer_is_written_with_its_sentinels_and_without(t5, texts, tmp_path):
    (given,) = tokenizers_from_huggingface(t5)
    there, _ = written("t5", (given,), tmp_path / "new")
    sentinels = "<extra_id_0> and <extra_id_6>"
    assert given.tokenize(sentinels).numpy().tolist() == there.encode(sentinels, add_special_tokens=False)
    whole = SentencePieceTokenizer(given.model)
    there, (again,) = written("t5", (whole, whole), tmp_path / "whole")
    assert len(there) == whole.vocab_size == again.vocab_size
    assert_same(whole, there, texts)


def test_marians_tokenizers_are_written(lines, tmp_path):
    """One vocabulary with ids of its own, the model's own ids, and two vocabularies of one pad id."""
    own = SentencePieceTokenizer.train(lines["en"] + lines["de"], 300)
    other = SentencePieceTokenizer.train(lines["de"], 250)
    pieces = own.pieces(range(own.vocab_size))
    turned = SentencePieceTokenizer(own.model, [*pieces[:4], *reversed(pieces[4:]), ">>de<<"])
    for number, given in enumerate([(own,), (own, other), (turned, turned)]):
        there, again = written("marian", given, tmp_path / str(number))
        assert (there.pad_token_id, there.unk_token_id, there.eos_token_id) == (0, 1, 3)
        source, target = given[0], given[-1]
        assert_same(source, there, lines["en"] + ODD, read=False)
        expected = there(text_target=lines["de"], add_special_tokens=False)["input_ids"]
        assert target.tokenize(lines["de"]).to_list() == expected
        for one, read in zip((source, target), again, strict=True):
            assert read.tokenize(lines["de"]).to_list() == one.tokenize(lines["de"]).to_list()
            assert (read.pad_id, read.unk_id, read.eos_id) == (0, 1, 3)


@pytest.mark.parametrize("lower_case", [True, False])
def test_berts_tokenizer_is_written(lines, lower_case, tmp_path):
    given = (WordPieceTokenizer.train(lines["de"], 300, lower_case=lower_case, strip_accents=not lower_case),)
    there, (again,) = written("bert", given, tmp_path / "new", architectures=["BertModel"])
    assert_same(given[0], there, [*lines["de"], *ODD, "ÉTÉ"], read=False)
    assert (again.lower_case, again.strip_accents) == (lower_case, not lower_case)


@pytest.mark.parametrize(("family", "pattern"), [("gpt2", "gpt2"), ("llama", "llama3"), ("llama", "qwen2")])
def test_byte_level_tokenizers_are_written(family, pattern, texts, tmp_path):
    """GPT-2's, Llama 3's and Qwen 2's, as transformers reads them, with special tokens in a text and around it."""
    trained(pattern, texts, 900, ignore_merges=pattern == "llama3").save(str(tmp_path / "tokenizer.json"))
    described(tmp_path, family, eos_token="<|endoftext|>", bos_token="<|im_start|>")
    given = tokenizers_from_huggingface(tmp_path)
    eos_id, bos_id = given[0].eos_id, given[0].bos_id
    there, (again,) = written(family, given, tmp_path / "new", eos_token_id=eos_id, bos_token_id=bos_id)
    special = (again.pad_id, again.bos_id, again.eos_id)
    assert special == (None, bos_id, eos_id) == (there.pad_token_id, there.bos_token_id, there.eos_token_id)
    assert again.vocab_size == len(there)
    there.split_special_tokens = True
    assert_same(again, there, texts + ODD)
    there.split_special_tokens = False
    parsing = BytePairTokenizer(**{**again.get_config(), "parse_special": True})
    text = "Two dogs<|endoftext|> run <tool_call>"
    assert parsing.tokenize(text).numpy().tolist() == there.encode(text, add_special_tokens=False)
    assert there.encode("a") == [bos_id] * (family == "llama") + again.tokenize("a").numpy().tolist()


def test_modernberts_tokenizer_is_read_and_written(texts, tmp_path):
    """In NFC, with pieces of several blanks that are found before a text is normalised, `[CLS]` and `[SEP]`."""
    tokenizer = trained("gpt2", texts, 900)
    tokenizer.normalizer = normalizers.NFC()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True)]
    tokenizer.add_special_tokens(special)
    added = ("   ", "  ", "|||EMAIL|||", "[unused0]")
    tokenizer.add_tokens([AddedToken(each, normalized=True) for each in added])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = BertProcessing(*ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    described(tmp_path, "modernbert", tokenizer_class="PreTrainedTokenizerFast", **names)
    first = transformers.AutoTokenizer.from_pretrained(tmp_path)
    (given,) = tokenizers_from_huggingface(tmp_path)
    ids = {"pad_token_id": given.pad_id, "bos_token_id": given.bos_id, "eos_token_id": given.eos_id}
    there, (again,) = written("modernbert", (given,), tmp_path / "new", **ids)
    lines = [*texts, *ODD, "a    b  c", "[unused0]\u0308|||EMAIL|||\u0301 ", "e\u0301 \u212b   \u0338"]
    for their_tokenizer in (first, there):
        their_tokenizer.split_special_tokens = True
        assert_same(again, their_tokenizer, lines)
        found = (their_tokenizer.pad_token_id, their_tokenizer.cls_token_id, their_tokenizer.sep_token_id)
        assert found == (again.pad_id, again.bos_id, again.eos_id)
        ends = [again.bos_id, *again.tokenize("a  b").numpy().tolist(), again.eos_id]
        assert their_tokenizer("a  b")["input_ids"] == ends
    assert again.get_config() == given.get_config()


@pytest.mark.parametrize("token", ["me", "a<", "K ", "; "])
def test_pieces_that_normalisation_may_change_are_found_in_normal_texts(token, texts, tmp_path):
    tokenizer = trained("gpt2", texts, 300)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(token, normalized=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    described(tmp_path, "gpt2", tokenizer_class="PreTrainedTokenizerFast")
    (own,) = tokenizers_from_huggingface(tmp_path)
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same_ids(own, there, ["some <a<", "me\u0301 a<\u0338 \u212a b; \u037e c", "K K\u0301 ;; "])


def test_tokenizers_without_a_form_there_are_refused(t5, llama, sentences, tmp_path):
    (of_t5,), (of_llama,) = map(tokenizers_from_huggingface, (t5, llama))
    own = SentencePieceTokenizer.train(sentences, 200)
    few = SentencePieceTokenizer(of_t5.model, of_t5.vocabulary[:-1])
    size = of_t5.vocab_size - 1
    for family, given, config, named in [
        ("t5", ByteTokenizer(), {"pad_token_id": 0}, "tokenizer=<.*ByteTokenizer"),
        ("t5", own, {}, "tokenizer of eos_id=3"),
        ("t5", own, {"eos_token_id": 3}, r"ids=\('<pad>', '<unk>', '<s>'\)"),
        ("t5", of_t5, {"vocab_size": size}, f"vocab_size={size}"),
        ("t5", few, {}, r"whose id \d+ would be another there"),
        ("llama", own, {"eos_token_id": 3}, "ids="),
    ]:
        model = model_of(family, (given,), **config)
        refuses(named, to_huggingface, model, tmp_path / "new", tokenizers=(given,))
        assert not list(tmp_path.iterdir())
    model = model_of("llama", (of_llama,))
    refuses("must be 1 at most", to_huggingface, model, tmp_path / "new", tokenizers=(of_llama, own))
    gpt2 = model_of("gpt2", (own,), bos_token_id=3, eos_token_id=3)
    with pytest.raises(ValueError, match="`tokenizer` of a 'gpt2' model must be a `BytePairTokenizer`"):
        to_huggingface(gpt2, tmp_path / "new", tokenizers=(own,))
