"""T5 and Marian's models behind text: translated, saved, loaded, exported."""

import io

import keras
import pytest
import sentencepiece
import tensorflow as tf
from alone import answers
from contracts import randomized

from keras_transformer.decoding import Beam, ExcludeTokens, Sample
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import T5, Transformer
from keras_transformer.serving import Translator
from keras_transformer.text import SentencePieceTokenizer


def pieces_of(sentences, **ids):
    """A SentencePiece model with special ids of its own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=200, hard_vocab_limit=False,
        minloglevel=2, **ids,
    )  # fmt: skip
    return model.getvalue()


def t5(sentences):
    own = SentencePieceTokenizer(pieces_of(sentences, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    vocabulary = [*own.pieces(range(own.vocab_size)), "<extra_id_1>", "<extra_id_0>"]
    tokenizer = SentencePieceTokenizer(own.model, vocabulary)
    model = T5(
        tokenizer.vocab_size + 7, num_layers=1, d_model=12, num_heads=2, key_dim=5, d_ff=16,
        activation="gelu_tanh", gated=True, tie_embeddings=False,
    )  # fmt: skip
    return Translator(model, tokenizer, strategy=Beam(3), max_length=9)


def marian(sentences):
    source, target = pieces_of(sentences[::2]), pieces_of(sentences[1::2])
    names = {}
    for model in (source, target):
        own = SentencePieceTokenizer(model)
        names |= dict.fromkeys(own.pieces(range(3, own.vocab_size)))
    vocabulary = ["</s>", "<unk>", ">>de<<", *names, "<pad>"]
    pad_id = len(vocabulary) - 1
    model = Transformer(
        len(vocabulary), num_layers=2, num_decoder_layers=1, d_model=12, num_heads=2, d_ff=16,
        positions=PositionalEncoding(interleaved=False), embedding_scale=1.0, output_bias=True, pad_id=pad_id,
        bos_id=pad_id, eos_id=0,
    )  # fmt: skip
    tokenizers = (SentencePieceTokenizer(model, vocabulary) for model in (source, target))
    # Drawn, as weights that were not trained say the same of each source; of one seed, the same draws.
    constraints = [ExcludeTokens([pad_id])]
    return Translator(model, *tokenizers, Sample(seed=3), max_length=9, constraints=constraints)


@pytest.fixture(
    scope="module", params=[t5, pytest.param(marian, marks=pytest.mark.slow)], ids=["t5", "marian"]
)
def translator(request, sentences):
    keras.utils.set_random_seed(0)
    made = request.param(sentences)
    randomized(made.model, 1, 0.6)
    return made


TEXTS = [
    "Die Kinder spielen im Garten.", ">>de<< Zwei Hunde rennen.", "", "an <extra_id_0> of 🎉", "Garten " * 30,
]  # fmt: skip


@pytest.fixture(scope="module")
def translations(translator):
    found = translator.translate(TEXTS)
    assert found[2] == "" and len(set(found)) > 3
    return found


@pytest.mark.slow
def test_a_text_is_translated_as_its_ids_are(translator, translations):
    model = translator.model
    texts = [text for text in TEXTS if text]
    ids = [[*row, model.eos_id] for row in translator.source_tokenizer.tokenize(texts).to_list()]
    longest = max(map(len, ids))
    found = model.generate(
        [[*row, *[model.pad_id] * (longest - len(row))] for row in ids], translator.strategy,
        translator.max_length, jit_compile=False, constraints=translator.constraints,
    )  # fmt: skip
    read = translator.target_tokenizer.detokenize(found.tokens[:, 0]).numpy()
    assert [text.decode() for text in read] == [each for each in translations if each]


@pytest.mark.slow
def test_loaded_translator_and_its_export_translate_the_same(translator, translations, tmp_path):
    translator.save(tmp_path / "translator")
    loaded = Translator.load(tmp_path / "translator")
    assert type(loaded.model) is type(translator.model)
    for old, new in zip(translator.tokenizers, loaded.tokenizers, strict=True):
        assert (new.vocabulary, new.model) == (old.vocabulary, old.model)
    path = loaded.export(tmp_path / "export", warmup=False, check=False)
    assert answers(path, tmp_path, text=TEXTS)["translation"] == translations
    signatures = tf.saved_model.load(str(path)).signatures
    ids = translator.source_tokenizer.tokenize(TEXTS[:1]).numpy()
    ids = tf.concat([ids, [[translator.model.eos_id]]], axis=1)
    tokens = signatures["tokens"](source=ids)["tokens"]
    read = translator.target_tokenizer.detokenize(tokens[:, 0]).numpy()[0].decode()
    assert read == translations[0]


@pytest.mark.slow
def test_a_tokenizer_with_other_special_ids_is_refused(translator, sentences):
    other = SentencePieceTokenizer.train(sentences, 190)
    own, expected = other.pad_id, translator.model.pad_id
    if own == expected:
        own, expected = other.eos_id, translator.model.eos_id
    with pytest.raises(
        ValueError, match=rf"must have the model's \w+={expected}, or None. Received: \w+={own}"
    ):
        Translator(translator.model, other)
