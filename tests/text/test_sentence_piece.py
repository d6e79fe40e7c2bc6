import io

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from graphs import assert_same_in_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.text import SentencePieceTokenizer, WordPieceTokenizer


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def subwords(request, sentences):
    return SentencePieceTokenizer.train(sentences, 300, model_type=request.param, character_coverage=1.0)


def read_back(tokenizer, strings):
    return [s.decode() for s in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


def test_long_sentences_are_not_dropped():
    """SentencePiece's default limit is 4192 bytes."""
    tokenizer = SentencePieceTokenizer.train(["abc def " * 600], 20, character_coverage=1.0)
    assert tokenizer.unk_id not in tokenizer.tokenize("abc def").numpy()
    tokenizer = SentencePieceTokenizer.train(["xyz"] * 9 + ["abc def " * 600], 20, character_coverage=1.0)
    assert tokenizer.unk_id not in tokenizer.tokenize("xyz abc def").numpy()


def test_the_first_four_ids_are_pad_unk_bos_eos(subwords):
    assert subwords.pieces(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]


def test_sentences_of_the_text_come_back_in_three_languages(subwords, sentences):
    assert read_back(subwords, sentences) == sentences


def test_ids_are_int32_and_inside_the_vocabulary_without_special_ids(subwords, sentences):
    ids = subwords.tokenize(sentences)
    assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32
    values = ids.flat_values.numpy()
    assert values.min() > 3 and values.max() < subwords.vocab_size


def test_frequent_words_are_shorter_than_their_characters(subwords, sentences):
    lengths = subwords.tokenize(sentences).row_lengths().numpy()
    assert sum(lengths) < 0.7 * sum(map(len, sentences))


@pytest.mark.parametrize("blank", ["", " ", "\t\n ", "　", " "])
def test_blank_text_has_no_ids(subwords, blank):
    assert subwords.tokenize([blank, "a"]).row_lengths().numpy().tolist()[0] == 0
    assert read_back(subwords, [blank]) == [""]


def test_unknown_characters_become_unk_and_leave_their_neighbours(subwords):
    ids = subwords.tokenize(["Garten 🎉 Straße"])[0].numpy().tolist()
    assert ids.count(1) == 1
    back = read_back(subwords, ["Garten 🎉 Straße"])[0]
    assert back.split()[0] == "Garten" and back.split()[-1] == "Straße"


def test_invalid_utf8_is_read_as_if_the_bytes_were_not_there_and_harms_no_neighbour(subwords):
    rows = [b"\xff\xfe", b"Garten \xf0\x9f", b"Garten", b"\xed\xa0\x80"]
    assert read_back(subwords, rows)[1:3] == ["Garten", "Garten"]
    assert subwords.tokenize(rows)[2].numpy().tolist() == subwords.tokenize("Garten").numpy().tolist()


def test_text_after_a_nul_is_kept(subwords):
    assert read_back(subwords, ["Garten\0Straße"])[0].endswith("Straße")


def test_a_very_long_text_comes_back_whole(subwords):
    text = " ".join(["Die Kinder spielen im Garten."] * 5000)
    assert read_back(subwords, [text]) == [text]


def test_text_that_spells_a_special_piece_does_not_become_one(subwords):
    ids = subwords.tokenize("<pad> <s> </s>").numpy().tolist()
    assert not {0, 2, 3} & set(ids)


def test_a_single_string_gives_a_single_row_and_back(subwords):
    ids = subwords.tokenize("Die Kinder")
    assert ids.shape.rank == 1 and len(ids) > 0
    assert subwords.detokenize(ids).numpy() == b"Die Kinder"
    assert subwords.detokenize(ids.numpy().tolist()).numpy() == b"Die Kinder"
    assert subwords.tokenize("").shape == (0,)


def test_no_strings_give_no_rows(subwords):
    ids = subwords.tokenize([])
    assert ids.nrows() == 0
    assert subwords.detokenize(ids).shape == (0,)
    assert subwords.detokenize(tf.zeros((0, 5), tf.int32)).shape == (0,)


def test_padded_rows_read_like_ragged_rows(subwords, sentences):
    ragged = subwords.tokenize(sentences)
    ends = tf.fill((ragged.nrows(), 1), 3)
    padded = tf.concat([tf.fill((ragged.nrows(), 1), 2), ragged, ends], axis=1).to_tensor(0)
    assert [s.decode() for s in subwords.detokenize(padded).numpy()] == sentences


@pytest.mark.parametrize("special", [0, 2, 3])
def test_special_ids_are_dropped_wherever_they_stand(subwords, special):
    ids = subwords.tokenize("Die Kinder").numpy().tolist()
    mixed = [special, *ids[:1], special, special, *ids[1:], special]
    assert subwords.detokenize([mixed]).numpy().tolist() == [b"Die Kinder"]
    assert subwords.detokenize([[special]]).numpy().tolist() == [b""]


@pytest.mark.parametrize("out_of_range", [-1, -(2**31), "vocab_size", 2**31 - 1])
def test_an_id_out_of_range_reads_as_unk(subwords, out_of_range):
    out_of_range = subwords.vocab_size if out_of_range == "vocab_size" else out_of_range
    ids = subwords.tokenize("Die Kinder").numpy().tolist()
    with_unk, with_other, alone = subwords.detokenize([[*ids, 1], [*ids, out_of_range], ids]).numpy()
    assert with_other == with_unk
    assert with_unk != alone == b"Die Kinder"


@pytest.mark.parametrize("form", ["dense", "ragged", "list"])
def test_an_int64_id_out_of_range_reads_as_unk_too(tokenizer, form):
    rows = [[5, 2**32 + 6], [5, 1]]
    make = {"dense": tf.constant, "ragged": tf.ragged.constant, "list": lambda rows, _: rows}[form]
    wide, unk = tokenizer.detokenize(make(rows, tf.int64)).numpy()
    assert wide == unk


def test_save_and_load_keep_every_id(subwords, sentences, tmp_path):
    subwords.save(tmp_path / "model")
    loaded = SentencePieceTokenizer.load(tmp_path / "model")
    assert loaded.vocab_size == subwords.vocab_size
    assert loaded.tokenize(sentences).to_list() == subwords.tokenize(sentences).to_list()
    assert SentencePieceTokenizer(str(tmp_path / "model")).model == subwords.model


def test_training_twice_gives_the_same_model(sentences):
    first, second = (SentencePieceTokenizer.train(iter(sentences), 260) for _ in range(2))
    assert first.model == second.model


@pytest.mark.parametrize(
    "content", [b"", b"junk", b"\0" * 64, "half"], ids=["empty", "junk", "zeros", "half"]
)
def test_bytes_that_are_no_model_are_refused(tokenizer, content, tmp_path):
    content = tokenizer.model[: len(tokenizer.model) // 2] if content == "half" else content
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        SentencePieceTokenizer(content)
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        SentencePieceTokenizer.load(tmp_path / "model")


def trained(sentences, **options):
    """A SentencePiece model that was trained elsewhere."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        **{"vocab_size": 260, **options},
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (None, 0, 1, 2)),
        ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, (0, 2, None, 1)),
        ({"pad_id": 3, "eos_id": -1, "unk_id": 0, "bos_id": -1}, (3, 0, None, None)),
        ({"pad_id": -1, "eos_id": -1, "unk_id": 1, "bos_id": -1}, (None, 1, None, None)),
    ],
)
def test_a_models_own_special_ids_are_the_tokenizers(sentences, options, expected, tmp_path):
    tokenizer = SentencePieceTokenizer(trained(sentences, **options))
    tokenizer.save(tmp_path / "model")
    for each in (tokenizer, SentencePieceTokenizer.load(tmp_path / "model")):
        special = (each.pad_id, each.unk_id, each.bos_id, each.eos_id)
        assert special == expected
        ids = each.tokenize("Garten").numpy().tolist()
        assert not set(special) & set(ids)
        there = [i for i in (each.pad_id, each.bos_id, each.eos_id) if i is not None]
        assert each.detokenize([[*there, *ids, *there]]).numpy().tolist() == [b"Garten"]
        assert each.detokenize([[each.unk_id]]).numpy() == each.detokenize([[each.vocab_size]]).numpy()


def of_vocabulary(sentences, **options):
    """A tokenizer whose ids are not its model's, and the model's."""
    own = SentencePieceTokenizer(trained(sentences, **options))
    pieces = own.pieces(range(3, own.vocab_size))
    vocabulary = [
        "</s>",
        "<unk>",
        *reversed(pieces),
        "▁überzählig",
        ">>de<<",
        ">>d.e<<",
        "<extra_id_12>",
        "<pad>",
    ]
    return SentencePieceTokenizer(own.model, vocabulary), own


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def reversed_ids(request, sentences):
    return of_vocabulary(sentences, model_type=request.param, character_coverage=1.0)


def test_a_vocabulary_says_the_ids_of_the_models_pieces(reversed_ids, sentences):
    tokenizer, own = reversed_ids
    assert tokenizer.vocab_size == own.vocab_size - 3 + 7
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (
        tokenizer.vocab_size - 1,
        1,
        None,
        0,
    )
    expected = [[own.vocab_size + 1 - i for i in row] for row in own.tokenize(sentences).to_list()]
    assert tokenizer.tokenize(sentences).to_list() == expected
    for ids, row in zip(expected, own.tokenize(sentences).to_list(), strict=True):
        assert tokenizer.pieces(ids) == own.pieces(row)
    assert read_back(tokenizer, sentences) == read_back(own, sentences) == sentences


def test_a_piece_that_the_vocabulary_has_not_is_unk(sentences):
    own = SentencePieceTokenizer(trained(sentences))
    ids = own.tokenize("Die Kinder").numpy().tolist()
    missing = own.pieces(ids[:1])[0]
    pieces = [piece for piece in own.pieces(range(3, own.vocab_size)) if piece != missing]
    tokenizer = SentencePieceTokenizer(own.model, ["<unk>", *pieces])
    assert tokenizer.tokenize("Die Kinder").numpy()[0] == tokenizer.unk_id == 0
    assert tokenizer.pieces(tokenizer.tokenize("Die Kinder")[1:].numpy()) == own.pieces(ids[1:])


def test_an_unknown_character_that_the_vocabulary_has_is_its_id(sentences):
    """As a joint vocabulary has pieces that the model of one language does not make."""
    own = SentencePieceTokenizer(trained(sentences))
    tokenizer = SentencePieceTokenizer(own.model, [*own.pieces(range(own.vocab_size)), "🎉"])
    assert tokenizer.tokenize("Garten 🎉").numpy()[-1] == own.vocab_size
    assert read_back(tokenizer, ["Garten 🎉"]) == ["Garten 🎉"]


def test_symbols_of_a_vocabulary_are_spelled_out(reversed_ids):
    tokenizer, _ = reversed_ids
    german, dotted, sentinel = range(tokenizer.vocab_size - 4, tokenizer.vocab_size - 1)
    words = tokenizer.tokenize("Die Kinder").numpy().tolist()
    rows = ["Die Kinder", ">>de<< Die Kinder", "", "Die Kinder<extra_id_12>Die Kinder", ">>d.e<<>>dxe<<"]
    found = tokenizer.tokenize(rows).to_list()
    assert found[:4] == [words, [german, *words], [], [*words, sentinel, *words]]
    assert found[4][0] == dotted and not {german, dotted, sentinel} & set(found[4][1:])
    assert tokenizer.tokenize(rows[1]).numpy().tolist() == found[1]
    assert read_back(tokenizer, rows[3:4]) == ["Die Kinder<extra_id_12> Die Kinder"]


def test_no_text_becomes_a_special_id_of_a_vocabulary(sentences):
    """Unknown characters in a row are one piece, which may read like a special one."""
    own = SentencePieceTokenizer(trained(["가나 다라", "마바 사아"] * 9))
    tokenizer = SentencePieceTokenizer(
        own.model, ["</s>", *own.pieces(range(3, own.vocab_size)), "<unk>", "<pad>"]
    )
    ids = tokenizer.tokenize(["</s>", "가 <pad> 나", "<unk></s>"])
    assert not {tokenizer.eos_id, tokenizer.pad_id} & set(ids.flat_values.numpy())


@pytest.mark.parametrize("out_of_range", [-1, 10**6, 2**31 - 1])
def test_an_id_past_a_vocabulary_reads_as_unk(reversed_ids, out_of_range):
    tokenizer, _ = reversed_ids
    ids = tokenizer.tokenize("Die Kinder").numpy().tolist()
    with_unk, with_other = tokenizer.detokenize([[*ids, 1], [*ids, out_of_range]]).numpy()
    assert with_other == with_unk == "Die Kinder ⁇".encode()


def test_bytes_of_a_vocabulary_are_read_as_bytes(sentences):
    tokenizer, _ = of_vocabulary(sentences, byte_fallback=True, vocab_size=600)
    assert read_back(tokenizer, ["Garten 🎉"]) == ["Garten 🎉"]


def test_a_vocabulary_is_saved_and_loaded(reversed_ids, sentences, tmp_path):
    tokenizer, own = reversed_ids
    tokenizer.save(tmp_path / "model")
    loaded = SentencePieceTokenizer.load(tmp_path / "model")
    assert (loaded.model, loaded.vocabulary) == (own.model, tokenizer.vocabulary)
    rows = [*sentences, ">>de<< Garten"]
    assert loaded.tokenize(rows).to_list() == tokenizer.tokenize(rows).to_list()
    assert (loaded.pad_id, loaded.eos_id) == (tokenizer.pad_id, tokenizer.eos_id)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "holds no tokenizer"),
        (b"{}", "holds no tokenizer: KeyError"),
        (b'{"model": "?", "vocabulary": ["<unk>"]}', "holds no tokenizer"),
        (b'{"model": "AAAA", "vocabulary": ["<unk>"]}', "not a SentencePiece model"),
        (b'{"model": 3, "vocabulary": ["<unk>"]}', "holds no tokenizer: TypeError"),
        (b'{"a":' * 100_000, "holds no tokenizer: RecursionError"),
    ],
)
def test_files_that_hold_no_tokenizer_are_refused(content, message, tmp_path):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.load(tmp_path / "model")


@pytest.mark.parametrize("vocabulary", [["a", "b"], ["<unk>", "a", "a"], ["<unk>", 3], []])
def test_a_vocabulary_is_of_different_pieces(tokenizer, vocabulary):
    with pytest.raises(
        ValueError, match="`vocabulary` must hold different str, and '<unk>' must be one of them"
    ):
        SentencePieceTokenizer(tokenizer.model, vocabulary)


def test_a_vocabularys_segmentations_are_drawn_too(reversed_ids, sentences):
    tokenizer, own = reversed_ids
    drawn, expected = (each.sampled(sentences, 0.3, seed=5) for each in (tokenizer, own))
    for row, other in zip(drawn, expected, strict=True):
        assert row.dtype == np.int32
        assert tokenizer.pieces(row) == own.pieces(other.tolist())


@pytest.mark.slow
def test_a_vocabulary_works_in_a_saved_module_and_outlives_a_new_seed(reversed_ids, sentences, tmp_path):
    tokenizer, _ = reversed_ids
    rows = [*sentences, "", b"\xff", ">>de<< 🎉"]
    expected = tokenizer.tokenize(rows).to_tensor(tokenizer.pad_id).numpy()
    module = tf.Module()
    module.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def there_and_back(strings):
        ids = tokenizer.tokenize(strings).to_tensor(tokenizer.pad_id)
        return tokenizer.detokenize(ids), ids

    module.there_and_back = there_and_back
    tf.saved_model.save(module, str(tmp_path / "module"))
    loaded = tf.saved_model.load(str(tmp_path / "module")).there_and_back
    tf.random.set_seed(7)  # clears TensorFlow's cache of kernels
    for function in (there_and_back, loaded):
        strings, ids = function(tf.constant(rows))
        assert (ids.numpy() == expected).all()
        assert [s.decode() for s in strings.numpy()[: len(sentences)]] == sentences


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.model"):
        SentencePieceTokenizer(tmp_path / "nowhere.model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"vocab_size": 20}, "vocab_size=20"),
        ({"vocab_size": 300, "character_coverage": 1.5}, "character_coverage"),
        ({"vocab_size": 300, "model_type": "words"}, "'words'"),
    ],
)
def test_arguments_out_of_range_are_refused_with_their_values(sentences, arguments, message):
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(sentences, **arguments)


@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_training_on_no_text_is_refused_with_the_number_of_sentences(texts):
    with pytest.raises(ValueError, match=f"Received: {len(texts)} sentences"):
        SentencePieceTokenizer.train(texts, 100)


def test_sentences_of_a_few_letters_are_enough():
    tokenizer = SentencePieceTokenizer.train(["ab", "b"], 20, character_coverage=1.0)
    assert read_back(tokenizer, ["b ab"]) == ["b ab"]


@pytest.mark.parametrize("tokenizer_class", [SentencePieceTokenizer, WordPieceTokenizer])
def test_a_text_in_place_of_sentences_is_refused(tokenizer_class):
    with pytest.raises(ValueError, match=r"iterable of str\. Received: one string, 'corpus.txt'"):
        tokenizer_class.train("corpus.txt", 100)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_more_ids_than_the_text_yields_are_not_invented(model_type):
    tokenizer = SentencePieceTokenizer.train(["the cat sat", "the dog sat"] * 3, 5000, model_type=model_type)
    assert tokenizer.vocab_size < 100
    assert read_back(tokenizer, ["the cat sat"]) == ["the cat sat"]


def test_byte_fallback_spells_unknown_characters(sentences):
    tokenizer = SentencePieceTokenizer.train(sentences, 600, byte_fallback=True)
    assert read_back(tokenizer, ["Garten 🎉"]) == ["Garten 🎉"]
    assert 1 not in tokenizer.tokenize("Garten 🎉").numpy()


@pytest.mark.slow
def test_works_inside_a_function_and_in_a_saved_module(subwords, sentences, tmp_path):
    strings, _ = assert_same_in_graphs(subwords, [*sentences, "", b"\xff", "🎉"], tmp_path / "module")
    assert [s.decode() for s in strings[: len(sentences)]] == sentences


def test_a_tokenizer_outlives_a_new_random_seed(tokenizer, sentences):
    mine = SentencePieceTokenizer(tokenizer.model)
    function = tf.function(mine.tokenize)
    expected = mine.tokenize(sentences).to_list()
    assert function(tf.constant(sentences)).to_list() == expected
    tf.random.set_seed(7)  # clears TensorFlow's cache of kernels
    assert mine.tokenize(sentences).to_list() == expected
    assert function(tf.constant(sentences)).to_list() == expected


ANYTHING = st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)), max_size=12)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(rows=ANYTHING)
def test_any_bytes_become_valid_ids_and_valid_text(tokenizer, rows):
    ids = tokenizer.tokenize(tf.constant(rows, tf.string))
    assert ids.nrows() == len(rows)
    assert all(0 < i < tokenizer.vocab_size and i not in (2, 3) for i in ids.flat_values.numpy())
    for text in tokenizer.detokenize(ids).numpy():
        text.decode("utf-8")


@settings(deadline=None, max_examples=15, derandomize=True)
@given(rows=ANYTHING)
def test_a_row_is_tokenised_the_same_alone_and_among_others(tokenizer, rows):
    together = tokenizer.tokenize(tf.constant(rows, tf.string))
    for row, text in enumerate(rows):
        assert tokenizer.tokenize(text).numpy().tolist() == together[row].numpy().tolist()


@settings(deadline=None, max_examples=15, derandomize=True)
@given(ids=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8), min_size=1, max_size=12))
def test_any_ids_become_valid_text(tokenizer, ids):
    texts = tokenizer.detokenize(tf.ragged.constant(ids, tf.int32, ragged_rank=1)).numpy()
    assert len(texts) == len(ids)
    for text in texts:
        text.decode("utf-8")
