"""Runs with tokenizers from files: a SentencePiece model with ids of its own, or the tokenizers of a folder."""

import io
import types
import warnings

import pytest
import sentencepiece
from contracts import refuses

from keras_transformer.runs import Recipe, train
from keras_transformer.runs.tokenizers import ids_and_sizes, make_tokenizers, read_tokenizers
from keras_transformer.serving import Translator
from keras_transformer.text import SentencePieceTokenizer

PAIRS = [("the dog runs", "a cat is"), ("a cat runs", "the dog is")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The file of a SentencePiece model as its own program makes it: 0 unk, 1 bos, 2 eos, and no padding."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in PAIRS for text in pair] * 9), model_writer=content,
        vocab_size=40, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("own") / "pieces.model"
    path.write_bytes(content.getvalue())
    return path


@pytest.mark.slow
def test_a_run_takes_a_sentencepiece_model_with_its_ids(model, tmp_path):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "max_length": 20, "warmup_steps": 1}
    recipe = Recipe(tokenizer=str(model), epochs=1, **sizes)
    translator = train(recipe, PAIRS, tmp_path / "run", say=lambda line: None)
    own = SentencePieceTokenizer(model)
    assert translator.source_tokenizer.model == own.model
    made = translator.model
    assert (made.pad_id, made.bos_id, made.eos_id) == (own.vocab_size, 1, 2)
    assert made.source_vocab_size == own.vocab_size + 1 and made.source is made.target
    assert len(translator.translate(["the dog"])) == 1
    source, target = read_tokenizers(tmp_path / "run")
    assert source is target and source.content == own.content


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_matches_of_keep_have_one_id_and_come_back(kind):
    pairs = [("hi {name}, see %s", "{name}: see %s and {a,b}")] * 9
    recipe = Recipe(tokenizer=kind, vocab_size=60, vocab_sample=1, keep=r"\{[\w,]+\}|%s")
    tokenizer, _ = make_tokenizers(recipe, [*pairs, ("{rare}", "")])
    text = "see {a,b},{name} and %s {rare}"
    (ids,) = tokenizer.tokenize([text]).to_list()
    assert {"{name}", "{a,b}", "%s", "{rare}"} <= set(tokenizer.pieces(ids))
    assert tokenizer.detokenize([ids]).numpy()[0].decode() == text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "must be a regular expression"),
        ("x*", "must not match an empty"),
        (r"\d+", "must have at most 1000 different"),
    ],
)
def test_a_pattern_that_cannot_be_kept_is_refused(pattern, message):
    with pytest.raises(ValueError, match=f"`keep` {message}"):
        make_tokenizers(Recipe(keep=pattern), [(str(number), "a") for number in range(1001)])


def test_a_pattern_that_matches_nothing_is_a_warning():
    pairs = [("hi {name}", "{name}: see %s")] * 9
    with pytest.warns(UserWarning, match=r"`keep` matches nothing in the pairs.*keep='<\\\\w\+>'"):
        make_tokenizers(Recipe(vocab_size=40, keep=r"<\w+>"), pairs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "`keep`", UserWarning)
        make_tokenizers(Recipe(vocab_size=40, keep="%s"), pairs)


def tokenizer_of(vocab_size, pad_id=None, bos_id=None, eos_id=None):
    return types.SimpleNamespace(vocab_size=vocab_size, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)


def test_missing_special_ids_are_new_ids():
    source, target = tokenizer_of(7, eos_id=1), tokenizer_of(11, eos_id=1)
    assert ids_and_sizes(source, target) == ({"pad_id": 11, "bos_id": 12, "eos_id": 1}, (13, 13))


@pytest.mark.parametrize("name", ["pad_id", "eos_id"])
def test_ids_that_contradict_each_other_are_refused(name):
    ids = {"pad_id": 0, "eos_id": 1}
    source, target = (tokenizer_of(7, **{**ids, name: own}) for own in (3, None))
    refuses(f"the same `{name}`. Received: source=3, target=None", ids_and_sizes, source, target)


def test_tokenizers_of_two_sides_are_read_from_a_saved_translator(model, tmp_path):
    from keras_transformer.models import Transformer

    both = [SentencePieceTokenizer(model) for _ in range(2)]
    made = Transformer(60, num_layers=1, d_model=8, num_heads=2, d_ff=16, pad_id=50, bos_id=1, eos_id=2)
    Translator(made, *both).save(tmp_path / "saved")
    source, target = read_tokenizers(tmp_path / "saved")
    assert source is not target and source.content == target.content == both[0].content


def test_path_without_tokenizers_is_named(tmp_path):
    refuses(r"the file of a SentencePiece model, or a folder.*nowhere", read_tokenizers, tmp_path / "nowhere")
    refuses("A folder as `tokenizer` must be that of a run", read_tokenizers, tmp_path)
    (tmp_path / "text").write_text("text")
    refuses("not a SentencePiece model", read_tokenizers, tmp_path / "text")
