"""Translators whose vocabulary changes: known pieces keep their rows, new ones get those of their parts."""

import dataclasses
import operator

import keras
import numpy as np
import pytest
from contracts import refuses

from keras_transformer.decoding import ExcludeTokens, ForcedFirstToken, NoRepeatNgram, SuppressTokens
from keras_transformer.models import T5, Transformer
from keras_transformer.runs import Recipe, change_vocabulary, train
from keras_transformer.serving import Translator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

OLD = ["the dog runs to me.", "a cat sees the dog"] * 9
NEW = [*OLD, *["the dogs run \u00df", "cats see dogs"] * 9]
PAIRS = [("the dogs run", "cats see"), ("a dog runs", "the cat sees")] * 4
HEADS = ["vocabulary", "ids", "before", "ids", "now", "kept", "mean", "of", "pieces", "mean", "of", "all"]
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "dropout": 0.0}


@pytest.fixture(scope="module")
def old():
    return SentencePieceTokenizer.train(OLD, 32, character_coverage=1.0)


@pytest.fixture(scope="module")
def new():
    return SentencePieceTokenizer.train(NEW, 48, character_coverage=1.0, symbols=["{name}"])


def translator_of(*tokenizers, model=Transformer, **arguments):
    keras.utils.set_random_seed(1)
    sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
    return Translator(model(*sizes, **SIZES, **arguments), *tokenizers)


def rows_of(layer):
    return layer.embeddings.numpy()


def expected_row(piece, old, rows):
    """The row of a new piece, from the words of this page's rule."""
    pieces = old.pieces(range(old.vocab_size))
    if piece in pieces:
        return rows[pieces.index(piece)]
    ids = old.tokenize(piece.replace("\u2581", " ").strip()).numpy().tolist()
    if pieces[ids[0]] == "\u2581" and not piece.startswith("\u2581"):
        ids = ids[1:]
    return rows.mean(axis=0) if old.unk_id in ids else rows[ids].mean(axis=0)


def test_new_pieces_get_the_mean_of_their_parts(old, new):
    before = translator_of(old)
    after, (change,) = change_vocabulary(before, new)
    rows, changed = (rows_of(each.model.source.tokens) for each in (before, after))
    assert changed.shape == (new.vocab_size, 8)
    for i, piece in enumerate(new.pieces(range(new.vocab_size))):
        np.testing.assert_allclose(changed[i], expected_row(piece, old, rows), rtol=1e-5, err_msg=piece)
    known = set(old.pieces(range(old.vocab_size))) & set(new.pieces(range(new.vocab_size)))
    assert change[:4] == ("both", old.vocab_size, new.vocab_size, len(known))
    assert change.kept + change.composed + change.average == new.vocab_size
    assert change.composed > 3 and change.average >= 2  # "\u00df" and "{name}"
    others = [
        {
            weight.path.partition("/")[2]: weight.numpy()
            for weight in each.model.weights
            if "embedding" not in weight.path
        }
        for each in (before, after)
    ]
    assert others[0].keys() == others[1].keys() and len(others[0]) > 20
    for path, value in others[0].items():
        np.testing.assert_array_equal(value, others[1][path])


@pytest.mark.slow
def test_the_logits_of_known_pieces_stay(old, new):
    before = translator_of(old, output_bias=True)
    before.model.output_embedding.bias.assign(np.arange(old.vocab_size) / 10)
    after, _ = change_vocabulary(before, new)
    pieces = [each.pieces(range(each.vocab_size)) for each in (old, new)]
    place = {piece: i for i, piece in enumerate(pieces[1])}
    known = [i for i, piece in enumerate(pieces[0]) if piece in place]
    moved = [place[pieces[0][i]] for i in known]
    source = np.array([[*known[5:9], 3]])
    there = np.array([[*moved[5:9], 3]])
    logits = np.asarray(before.model({"source": source, "target": source}))[..., known]
    found = np.asarray(after.model({"source": there, "target": there}))[..., moved]
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_each_side_has_a_vocabulary_of_its_own(old, new):
    other = SentencePieceTokenizer.train(NEW[::-1] * 2, 30, character_coverage=1.0)
    before = translator_of(old, other)
    after, changes = change_vocabulary(before, new, other)
    assert [change.side for change in changes] == ["source", "target"]
    assert changes[1][1:] == (other.vocab_size, other.vocab_size, other.vocab_size, 0, 0)
    np.testing.assert_array_equal(rows_of(after.model.target.tokens), rows_of(before.model.target.tokens))
    assert rows_of(after.model.source.tokens).shape[0] == new.vocab_size
    assert len(after.translate(["the dogs run {name}"])) == 1


def test_other_families_and_matrices_change(old, new):
    t5 = translator_of(old, model=T5, tie_embeddings=False, eos_id=3)
    after, (change,) = change_vocabulary(t5, new)
    assert after.model.bos_id == after.model.pad_id == 0
    assert after.model.target_vocab_size == new.vocab_size == change.after
    pieces = [set(each.pieces(range(4, each.vocab_size))) for each in (old, new)]
    piece = min(pieces[0] & pieces[1])
    i, j = (each.pieces(range(each.vocab_size)).index(piece) for each in (new, old))
    for name in ("source.tokens", "output_embedding"):
        one, other = (rows_of(operator.attrgetter(name)(each.model)) for each in (after, t5))
        np.testing.assert_array_equal(one[i], other[j])


@pytest.mark.slow
def test_the_ids_around_texts_follow_their_pieces(old, new):
    pieces = [set(each.pieces(range(4, each.vocab_size))) for each in (old, new)]
    piece = min(pieces[0] & pieces[1])
    i, j = (each.pieces(range(each.vocab_size)).index(piece) for each in (old, new))
    before = translator_of(old)
    before = Translator(before.model, old, source_start=(i,), target_start=(i,))
    after, _ = change_vocabulary(before, new)
    assert (after.source_start, after.source_end, after.target_start) == ((j,), (3,), (j,))
    gone = next(
        k
        for k, p in enumerate(old.pieces(range(old.vocab_size)))
        if k > 3 and p not in ByteTokenizer().pieces(range(260))
    )
    with pytest.raises(ValueError, match="The new tokenizers must have the pieces of `source_start`"):
        change_vocabulary(Translator(before.model, old, source_start=(gone,)), ByteTokenizer())


def test_the_ids_of_constraints_follow_their_pieces(old, new):
    pieces = [each.pieces(range(each.vocab_size)) for each in (old, new)]
    i = next(i for i, piece in enumerate(pieces[0]) if i > 3 and pieces[1].index(piece) != i)
    j = pieces[1].index(pieces[0][i])
    model = translator_of(old).model

    def changed(constraint, tokenizer):
        before = Translator(model, old, constraints=[NoRepeatNgram(3), constraint])
        return change_vocabulary(before, tokenizer)[0].constraints

    special = old.pad_id, old.unk_id, old.eos_id
    for kind in (SuppressTokens, ExcludeTokens):
        found = changed(kind((i, *special)), new)
        assert found == (NoRepeatNgram(3), kind((j, new.pad_id, new.unk_id, new.eos_id)))
        assert type(found[1]) is kind
    assert changed(ForcedFirstToken(i), new)[1] == ForcedFirstToken(j)
    other = ByteTokenizer()
    gone = next(k for k in range(4, old.vocab_size) if pieces[0][k] not in other.pieces(range(260)))
    for constraint in (SuppressTokens([gone]), ExcludeTokens([gone]), ForcedFirstToken(gone)):
        name = type(constraint).__name__
        refuses(f"The new tokenizers must have the pieces of `{name}`. .*piece=", changed, constraint, other)


@pytest.mark.slow
def test_vocabulary_of_adapters_and_int8_weights_is_refused(old, new):
    with pytest.raises(ValueError, match="must be one object: the model has one embedding for both sides"):
        change_vocabulary(translator_of(old), new, old)
    translator = translator_of(old)
    translator.model.decoder.layers[0].self_attention.query_dense.enable_lora(2)
    refuses("must have no adapters", change_vocabulary, translator, new)
    translator = translator_of(old)
    translator.model.quantize("int8")
    refuses("must have weights of floats, not of int8", change_vocabulary, translator, new)


@pytest.mark.slow
def test_a_run_goes_on_with_more_pieces_and_resumes(old, new, tmp_path):
    before = translator_of(old)
    before.save(tmp_path / "initial")
    new.save(tmp_path / "new.model")
    recipe = Recipe(
        init_from=str(tmp_path / "initial"), tokenizer=str(tmp_path / "new.model"), epochs=1,
        learning_rate=1e-3, warmup_steps=1,
    )  # fmt: skip
    said = []
    trained = train(recipe, PAIRS, tmp_path / "run", say=said.append)
    assert (
        trained.source_tokenizer.content == new.content and trained.model.source_vocab_size == new.vocab_size
    )
    table = [line.split() for line in said[:2]]
    assert table[0] == HEADS
    change = change_vocabulary(before, new)[1][0]
    assert table[1] == [change.side, *map(str, change[1:])]
    assert any(
        f"goes on with its Transformer and the tokenizers of {recipe.tokenizer}" in line for line in said
    )
    again = train(dataclasses.replace(recipe, epochs=2), PAIRS, tmp_path / "run", say=said.append)
    assert again.source_tokenizer.content == new.content


@pytest.mark.parametrize(("arguments", "message"), [
    ({"tokenizer": "bpe"}, "`tokenizer` must be a file or a folder with `init_from`, or be left out.*'bpe'"),
    ({"tokenizer": "new.model", "lora": 4}, "`lora` would not train the new ids of `tokenizer`"),
])  # fmt: skip
def test_recipe_that_makes_or_freezes_a_vocabulary_is_refused(arguments, message):
    refuses(message, Recipe, init_from="RUN", **arguments)
