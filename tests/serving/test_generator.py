"""Text generators: prompts in, what follows them out, in Python and in the runtime of the server."""

import json

import numpy as np
import pytest
import tensorflow as tf
from alone import answers
from contracts import randomized

from keras_transformer.decoding import Beam, Greedy, NoRepeatNgram, SuppressTokens
from keras_transformer.execution import native
from keras_transformer.layers import Decoder, Embeddings, LearnedPositions
from keras_transformer.models import LanguageModel
from keras_transformer.request_options import OPTIONS, columns
from keras_transformer.serving import TextGenerator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

PROMPTS = ["ab", "", "  ", "one two three four", "한국어", "ab"]


def language_model(vocab_size=260, seed=1):
    decoder = Decoder(1, 2, 16, dropout=0.0, normalize_first=True)
    model = LanguageModel(Embeddings(vocab_size, 8, LearnedPositions(64)), decoder)
    return randomized(model, seed, scale=0.3)


@pytest.fixture(scope="module")
def generator():
    return TextGenerator(language_model(), ByteTokenizer(), Beam(3, n_best=2), 24, max_length=9)


@pytest.fixture(scope="module")
def signatures(generator):
    return generator.signatures([6])


@pytest.fixture(scope="module")
def export(generator, tmp_path_factory):
    return generator.export(tmp_path_factory.mktemp("exports"), check=False)


@pytest.mark.slow
def test_rows_stand_alone(generator):
    together = generator.generate(PROMPTS)
    assert together == [generator.generate([prompt])[0] for prompt in PROMPTS]
    assert together[0] == together[5]
    assert len(set(together)) > 3
    ids = [2, *generator.tokenizer.tokenize("ab").numpy()]
    found = generator.model.generate([ids], generator.strategy, 9, jit_compile=False)
    tokens = found.tokens.numpy()[0, 0, : found.lengths.numpy()[0, 0]]
    whole = generator.tokenizer.detokenize([[*ids, *tokens]]).numpy()[0].decode()
    assert together[0] == whole.removeprefix("ab")


@pytest.mark.slow
def test_a_blank_between_prompt_and_continuation_is_kept():
    text = ["one two three", "two three one", "three one two two"] * 20
    tokenizer = SentencePieceTokenizer.train(text, 20)
    model = language_model(tokenizer.vocab_size)
    generator = TextGenerator(model, tokenizer, max_length=12)
    (continuation,) = generator.generate(["one two"])
    ids = [2, *tokenizer.tokenize("one two").numpy()]
    found = model.generate([ids], max_length=12, jit_compile=False)
    tokens = found.tokens.numpy()[0, 0, : found.lengths.numpy()[0, 0]]
    assert "one two" + continuation == tokenizer.detokenize([[*ids, *tokens]]).numpy()[0].decode()


def test_long_prompt_keeps_its_end(generator, signatures, monkeypatch):
    def answer(texts, **options):
        found = signatures.generate(tf.constant(texts))
        return {name: value.numpy() for name, value in found.items()}

    monkeypatch.setattr(generator, "answer", answer)  # the search that is traced already
    end = "x" * 23
    with pytest.warns(UserWarning, match="1 of 1 prompts are longer than `max_source_length`=24 tokens"):
        assert generator.generate(["abc" * 5000 + end]) == generator.generate([end])
    assert answer(tf.constant([end, "x" + end]))["truncated"].tolist() == [False, True]


def test_without_bos_only_empty_prompts_begin_with_it():
    generator = TextGenerator(language_model(), ByteTokenizer(), max_length=5, starts_with_bos=False)
    ids = generator.tokenizer.tokenize("ab").numpy()
    source, _ = generator.signatures([4])._source_ids(["ab", ""])
    assert source.numpy().tolist() == [ids.tolist(), [2, 0]]


@pytest.mark.slow
def test_saves_and_loads_everything(generator, tmp_path):
    changed = generator.changed(strategy=Beam(2), constraints=[NoRepeatNgram(2)], max_length=7)
    assert generator.max_length == 9
    changed.save(tmp_path / "saved")
    again = TextGenerator.load(tmp_path / "saved")
    assert again.describe() == changed.describe()
    assert again.generate(PROMPTS) == changed.generate(PROMPTS)
    with pytest.raises(ValueError, match="holds no translator"):
        from keras_transformer.serving import Translator

        Translator.load(tmp_path / "saved")


def test_signatures_answer_alike(signatures, generator):
    """The functions run eagerly, and share one trace of the search."""
    prompts = tf.constant(PROMPTS)
    found = signatures.generate(prompts)
    texts = found["continuation"].numpy().tolist()
    assert texts[0] == texts[5] and len(set(texts)) > 3 and not found["truncated"].numpy().any()
    several = signatures.n_best(prompts)
    assert several["continuations"].shape == several["scores"].shape == (6, 2)
    assert several["continuations"][:, 0].numpy().tolist() == texts
    options = {name: tf.constant(value) for name, value in columns(6).items()}
    by_options = signatures.generate_with_options(prompts, *options.values())
    assert by_options["continuation"].shape == (6,) and not any(by_options["error"].numpy())
    ids = [2, *generator.tokenizer.tokenize("ab").numpy()]
    tokens = signatures.tokens(tf.constant([ids]))["tokens"].numpy()[0, 0]
    whole = generator.tokenizer.detokenize([[*ids, *tokens]]).numpy()[0]
    assert texts[0] == whole.removeprefix(b"ab")


def test_signatures_and_start_are_described(signatures, generator):
    names = {"serving_default", "n_best", "tokens", "options"}
    assert set(signatures.functions()) == set(signatures.descriptions) == names
    assert generator.describe()["starts_with_bos"] is True


@pytest.mark.slow
def test_the_export_answers_as_python_does(generator, export, tmp_path):
    found = answers(export, tmp_path, text=PROMPTS)
    assert found["continuation"] == generator.generate(PROMPTS)
    assert found["truncated"] == [False] * 6
    several = answers(export, tmp_path, "n_best", text=PROMPTS)
    assert [row[0] for row in several["continuations"]] == found["continuation"]
    described = json.loads((export / "assets.extra" / "export.json").read_text())
    assert set(described["signatures"]) == {"serving_default", "n_best", "tokens", "options"}
    assert described["arguments"]["starts_with_bos"] is True


@pytest.mark.slow
def test_rows_of_prompts_have_options_of_their_own(generator):
    rows = [
        {},
        {"max_length": 2},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.0, "seed": 6},
        {"top_p": 2},
    ]
    rows.append({"prefix": " th", "max_length": 3})

    def asked(rows):
        chosen = {name: [row.get(name, OPTIONS[name].neutral) for row in rows] for name in OPTIONS}
        inputs = {"text": ["one two"] * len(rows), **columns(len(rows), **chosen)}
        found = function(**{name: tf.constant(value) for name, value in inputs.items()})
        return [text.decode("utf-8", "replace") for text in found["continuation"].numpy()], found[
            "error"
        ].numpy()

    function = generator.signatures([4]).functions()["options"]
    chosen = {"max_length": [2], "seed": [0]}
    cut = function(
        text=tf.constant(["one two"]), **{k: tf.constant(v) for k, v in columns(1, **chosen).items()}
    )
    assert not cut["ended"].numpy()[0]
    together, errors = asked(rows)
    assert together == [asked([row])[0][0] for row in rows]
    assert together[2] != together[3] and len(together[1]) < len(together[0])
    assert (
        errors.tolist() == [b""] * 4 + [b"`top_p` must be above 0 and at most 1.", b""] and together[4] == ""
    )
    shorter = generator.changed(strategy=Greedy(), max_length=3)
    assert together[5] == " th" + shorter.generate(["one two th"])[0]


def test_a_continuation_ends_at_a_stop_string_and_its_prefix_counts_for_penalties():
    generator = TextGenerator(language_model(), ByteTokenizer(), max_source_length=24, max_length=9)
    function = generator.signatures([4]).functions()["options"]

    def asked(**options):
        inputs = {"text": np.array(["one two"], object), **columns(1, **options)}
        with native.optimized_quickly(passes=0):  # to optimize a function takes longer than to run it
            found = function(**dict(map(constant, inputs.items())))
        return {name: x.numpy()[0] for name, x in found.items()}

    def constant(item):
        return item[0], tf.constant(item[1])

    whole = asked()
    first, second = whole["logprob_tokens"].shape, asked(logprobs=0)
    assert first == (0, 1) and second["logprob_tokens"].shape == (9, 1)
    written = b"".join(second["logprob_tokens"][:, 0])
    assert written.decode("utf-8", "replace") == whole["continuation"].decode()
    np.testing.assert_allclose(second["logprobs"].sum(), whole["score"], rtol=1e-5)
    character = whole["continuation"].decode()[0]
    stopped = asked(stop=character)
    # It took no step after the string; an end is not cut.
    assert stopped["continuation"] == b"" and stopped["length"] < whole["length"] and stopped["ended"]
    assert (whole["source_length"], whole["ended"]) == (8, False)
    begun = asked(prefix=character, stop=character + "z")
    assert begun["continuation"] == asked(prefix=character)["continuation"]
    # What the prefix has written may not come again.
    again = asked(prefix=character * 4, presence_penalty=90.0, max_length=1)["continuation"].decode()
    assert asked(prefix=character * 4, max_length=1)["continuation"].decode() == character * 5
    assert again.startswith(character * 4) and again != character * 5


@pytest.mark.slow
def test_ids_that_the_tokenizer_lacks_have_log_probabilities_and_no_text():
    model, tokenizer = language_model(400), ByteTokenizer()
    strategy = SuppressTokens([*range(tokenizer.vocab_size)])
    generator = TextGenerator(model, tokenizer, max_source_length=24, max_length=9, constraints=[strategy])
    inputs = {"text": np.array(["ab"], object), **columns(1, logprobs=20, stop="zz")}
    found = generator.signatures([4]).functions()["options"](**{k: tf.constant(v) for k, v in inputs.items()})
    assert found["logprob_tokens"].shape == (1, 9, 21) and (found["logprobs"].numpy() < 0).all()
    assert not any(found["logprob_tokens"].numpy()[0, :, 0])


@pytest.mark.slow
def test_ids_are_cut_where_texts_are(generator, export, tmp_path):
    ids = [2, *range(4, 34)]
    found = answers(export, tmp_path, "tokens", source=[ids, [5, 6] + [0] * 29])
    assert found["truncated"] == [True, False]
    for row, prompt in zip(found["tokens"], (ids[-24:], [5, 6]), strict=True):
        expected = generator.model.generate(
            [prompt], generator.strategy, 9, jit_compile=False
        ).tokens.numpy()[0]
        width = len(row[0])
        assert row == expected[:, :width].tolist()


@pytest.mark.slow
def test_a_compiled_export_continues_prompts_as_python_does(generator, tmp_path):
    export = generator.export(tmp_path / "model", xla=True, batch_sizes=[8], source_lengths=[24])
    answered = answers(export, tmp_path, xla=True, text=PROMPTS)
    assert answered["continuation"] == generator.generate(PROMPTS)


@pytest.mark.slow
def test_padding_that_the_tokenizer_does_not_know_is_no_text():
    tokenizer = SentencePieceTokenizer.train(["one two three", "two three one"] * 20, 20)
    tokenizer.pad_id = None  # as a Llama's
    model = language_model(tokenizer.vocab_size)
    generator = TextGenerator(model, tokenizer, max_length=12)
    short, _ = generator.generate(["one", "one two three one two three"])
    assert "\u2047" not in short and short == generator.generate(["one"])[0]


def test_lengths_follow_from_the_models_positions():
    decoder = Decoder(1, 2, 16)
    for positions, limit in ((LearnedPositions(64), 32), (None, 256), (LearnedPositions(3), 2)):
        model = LanguageModel(Embeddings(260, 8, positions), decoder)
        assert TextGenerator(model, ByteTokenizer()).max_source_length == limit
    with pytest.raises(ValueError, match="within the model's 64 positions"):
        TextGenerator(language_model(), ByteTokenizer(), max_source_length=60, max_length=9)
    with pytest.raises(ValueError, match=r"at most 64. Received: max_source_length=99"):
        TextGenerator(language_model(), ByteTokenizer(), max_source_length=99)


def test_the_end_of_a_turn_is_no_text():
    """With ids at which a continuation ends beside eos."""
    tokenizer = ByteTokenizer()
    stop = tokenizer.tokenize(["!"])[0].numpy().item()
    model = LanguageModel(Embeddings(260, 8), Decoder(1, num_heads=2, d_ff=8), stop_ids=[stop])
    signatures = TextGenerator(model, tokenizer).signatures([4])
    source, _ = signatures._source_ids(["a!"])
    tokens = tf.constant([[[*tokenizer.tokenize(["b"])[0].numpy(), stop, 0]]])
    assert signatures._continuations(source, tokens).numpy().tolist() == [[b"b"]]
