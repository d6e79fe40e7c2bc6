"""Translators: texts in and out, limits, and folders that are saved and loaded."""

import os
import shutil

import keras
import numpy as np
import pytest
from contracts import refuses
from keras import ops
from mirrors import change_description, names

from keras_transformer import files
from keras_transformer.data import Frame
from keras_transformer.decoding import Greedy, MinLength, Sample
from keras_transformer.models import Transformer
from keras_transformer.serving import Translator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

ODD = ["🎉🎉", "ภาษาไทย", "a\0b", "\ud800", b"\xff\xfe", b"\xf0\x9f abc", "저" * 20_000]
ODD += [" ".join("가나다") * 99]
BLANK = ["", "   ", "\t\n", "\u3000", b""]


def small_model(vocab_size=260, **arguments):
    keras.utils.set_random_seed(1)
    return Transformer(vocab_size, num_layers=1, d_model=8, num_heads=2, d_ff=16, **arguments)


@pytest.fixture(scope="module")
def sources(pairs):
    return [source for source, _ in pairs[:13]]


@pytest.fixture(scope="module")
def alone(translator, sources):
    """Each sentence's translation when it is translated alone."""
    return [translator.translate([source])[0] for source in sources]


# Texts in, texts out.


HI = ByteTokenizer().tokenize(["hi!"])[0].numpy()


class AlwaysHi(Transformer):
    """A model that writes "hi!" whatever it reads: each token gives the next one."""

    def decode(self, target, memory, **options):
        results = super().decode(target, memory, **options)
        following = np.full(260, self.eos_id)
        following[[self.bos_id, *HI[:-1]]] = HI
        logits = 100.0 * ops.one_hot(ops.take(following, target, axis=0), 260)
        return (logits, *results[1:]) if isinstance(results, tuple) else logits


def test_a_translation_is_what_the_model_writes_as_text():
    model = AlwaysHi(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    assert Translator(model, ByteTokenizer()).translate(["안녕!", "", "hello"]) == ["hi!", "", "hi!"]


def test_most_training_sentences_are_translated_exactly(translator, pairs):
    sources, targets = zip(*pairs[:13], strict=True)
    translations = translator.translate(sources)
    assert sum(found == target for found, target in zip(translations, targets, strict=True)) > 6
    assert len(set(translations)) > 6


@pytest.mark.parametrize("batch_size", [3, 64])
def test_neighbours_in_a_batch_change_no_translation(translator, sources, alone, batch_size):
    """Beside blank and odd texts, and after bytes that are no UTF-8."""
    order = [(i * 5) % len(sources) for i in range(len(sources))]
    others = [*BLANK, *ODD]
    mixed = [text for i in order for text in (b"\xff" + sources[i].encode(), others[i])]
    found = translator.translate(mixed, batch_size=batch_size)
    assert found[::2] == [alone[i] for i in order]
    assert all(isinstance(text, str) for text in found)
    assert [found[1 + 2 * order.index(i)] for i in range(len(BLANK))] == [""] * len(BLANK)


def test_texts_may_come_in_any_container_and_as_bytes(translator, sources, alone):
    for container in (np.array, iter, tuple, lambda texts: [text.encode() for text in texts]):
        assert translator.translate(container(sources)) == alone
        assert translator.translate(container([])) == []
    assert translator.translate(BLANK[:1]) == [""]


@pytest.mark.slow
def test_compiled_and_portable_decoding_translate_alike(translator, sources, alone):
    assert translator.translate(sources[:4], jit_compile=True) == alone[:4]
    assert translator.translate(sources[:4], jit_compile=False) == alone[:4]


@pytest.mark.slow
def test_a_long_source_is_cut_at_its_limit_with_a_warning(translator, sources):
    cut = Translator(translator.model, translator.source_tokenizer, max_source_length=5)
    ids = translator.source_tokenizer.tokenize(sources[0])[:4]
    assert len(ids) == 4
    beginning = translator.source_tokenizer.detokenize(ids).numpy().decode()
    longer = beginning + sources[1]
    with pytest.warns(UserWarning, match="2 of 3 sentences are longer than `max_source_length`=5"):
        found = cut.translate([sources[0], sources[0] + " " + longer, beginning])
    assert found[0] == found[1] == found[2] == translator.translate([beginning])[0]


def test_a_translation_stops_at_its_limit(translator, sources):
    short = Translator(translator.model, translator.source_tokenizer, max_length=2).translate(sources[:4])
    for text, whole in zip(short, translator.translate(sources[:4]), strict=True):
        assert whole.startswith(text) and text != whole


def test_frame_ids_stand_around_the_source_and_start_the_target():
    frame = {"source_start": (7,), "source_end": (3, 8), "target_start": [9]}
    translator = Translator(small_model(), ByteTokenizer(), max_source_length=6, **frame)
    ids, truncated = translator.signatures([4])._source_ids(["ab", "", "abcd"])
    a = ByteTokenizer().tokenize(["abcd"])[0].numpy().tolist()
    expected = [[7, *a[:2], 3, 8, 0], [0] * 6, [7, *a[:3], 3, 8]]
    assert (ids.numpy().tolist(), truncated.numpy().tolist()) == (expected, [False, False, True])
    assert translator.count_cut([b"ab", b"abcd"], translator.token_lengths(["ab", "abcd"])) == 1
    assert translator.signatures([4])._starts(ids).numpy().tolist() == [[9], [0], [9]]


def test_unknown_shares_are_of_each_text(translator, sources):
    shares = translator.unknown_shares(["", "\N{PARTY POPPER}", sources[0]])
    assert shares[0] == shares[2] == 0.0 and 0.3 < shares[1] <= 1.0


@pytest.mark.slow
def test_gradients_are_right_after_a_servable_traced_a_layer():
    import tensorflow as tf

    model = small_model()
    model.encoder.call = tf.function(model.encoder.call, autograph=False)
    Translator(model, ByteTokenizer(), max_length=5).answer(
        [b"abcd", b"ab"], [b"xy", b"z"], signature="score"
    )
    with tf.GradientTape() as tape, pytest.raises(LookupError, match="for inference"):
        y = model({"source": np.ones((2, 4), "int32"), "target": np.ones((2, 3), "int32")}, training=False)
        tape.gradient(y, [weight.value for weight in model.trainable_weights])


# Folders.


def test_loaded_translator_computes_the_same(translator, sources, tmp_path):
    translator.save(tmp_path / "deep" / "saved")
    loaded = Translator.load(str(tmp_path / "deep" / "saved"))
    one, other = (each.signatures([4])._source_ids(sources[:4])[0] for each in (translator, loaded))
    np.testing.assert_array_equal(one, other)
    inputs = {"source": one, "target": one[:, :5]}
    np.testing.assert_allclose(loaded.model(inputs), translator.model(inputs), rtol=1e-5, atol=1e-6)
    assert loaded.source_tokenizer is loaded.target_tokenizer
    assert names(tmp_path / "deep") == ["saved"]


def test_every_argument_is_saved(tmp_path):
    frame = {"source_start": (7,), "source_end": (3, 8), "target_start": [9]}
    model = small_model(300, target_vocab_size=270)
    translator = Translator(model, ByteTokenizer(), ByteTokenizer(), Greedy(), 17, 23, **frame)
    assert translator.changed(strategy=Greedy()).target_start == (9,)
    translator.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved")
    assert (loaded.max_source_length, loaded.max_length, loaded.strategy) == (17, 23, Greedy())
    assert loaded.frame == Frame(**frame)
    assert (loaded.model.source_vocab_size, loaded.model.target_vocab_size) == (300, 270)
    assert loaded.source_tokenizer is not loaded.target_tokenizer


def test_a_subclass_with_an_argument_of_its_own_is_changed_saved_and_loaded(tmp_path):
    class Quoting(Translator):
        def __init__(self, *args, mark="'", **kwargs):
            super().__init__(*args, **kwargs)
            self.mark = mark

    quoting = Quoting(small_model(), ByteTokenizer(), max_length=9, mark='"').changed(max_source_length=12)
    quoting.save(tmp_path / "saved")
    loaded = Quoting.load(tmp_path / "saved")
    assert (loaded.mark, loaded.max_length, loaded.max_source_length) == ('"', 9, 12)
    refuses("saved holds no complete translator", Translator.load, tmp_path / "saved")


def test_saved_translator_has_no_optimizer(tmp_path):
    model = small_model()
    model.compile("adam", "mse")
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    Translator(model, ByteTokenizer()).save(tmp_path / "saved")
    assert model.optimizer is optimizer and model.compiled
    size = (tmp_path / "saved" / "model.keras").stat().st_size
    loaded = Translator.load(tmp_path / "saved").model
    assert not loaded.compiled
    loaded.save(tmp_path / "without.keras")
    assert size < 1.05 * (tmp_path / "without.keras").stat().st_size


def test_saving_never_overwrites(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    translator = Translator(small_model(), ByteTokenizer())
    for path in (tmp_path / "saved", tmp_path / "file"):
        refuses(f"must not exist yet. Received: {path}", translator.save, path)
    assert names(tmp_path / "saved") == ["mine"]
    assert names(tmp_path) == ["file", "saved"]


def test_crash_while_saving_leaves_nothing_or_the_old_files(tmp_path, monkeypatch):
    translator = Translator(small_model(), ByteTokenizer())
    translator.save(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}

    def half(model, path, **kwargs):
        path.write_bytes(b"half")
        raise RuntimeError("power cut")

    monkeypatch.setattr(Transformer, "save", half)
    for save, folder in ((translator.save, "new"), (translator.write_into, "saved")):
        with pytest.raises(RuntimeError, match="power cut"):
            save(tmp_path / folder)
    assert names(tmp_path) == ["saved"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before


@pytest.mark.slow
def test_folder_loads_after_a_kill_between_two_files(translator, tmp_path, monkeypatch):
    translator.save(tmp_path / "saved")
    other = translator.changed(model=small_model())
    settle, left = files.settle, 0

    def killed(path, target):
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        settle(path, target)

    monkeypatch.setattr(files, "settle", killed)
    for number in range(4):  # both descriptions, the tokenizer and the model
        shutil.copytree(tmp_path / "saved", tmp_path / f"{number}")
        left = number
        with pytest.raises(KeyboardInterrupt):
            other.write_into(tmp_path / f"{number}")
        Translator.load(tmp_path / f"{number}")


# What is refused.


@pytest.mark.parametrize(("arguments", "message"), [
    *(((single,), r"must be a list of strings\. Received: ") for single in ("저는", b"text", "", None, 3)),
    ((["a"], 0), "batch_size=0"),
])  # fmt: skip
def test_other_values_than_lists_of_texts_are_refused(translator, arguments, message):
    refuses(message, translator.translate, *arguments)


def test_limits_ids_and_tokenizers_that_do_not_fit_are_refused():
    models = {
        sizes: small_model(sizes[0], target_vocab_size=sizes[-1]) for sizes in ((260,), (100, 260), (260, 90))
    }
    for sizes, wrong, rule in (
        ((260,), {"max_source_length": 1}, "max_source_length=1"),
        ((260,), {"max_source_length": 10**12}, "at most 1000000. Received: max_source_length=10"),
        ((260,), {"max_length": 0}, "max_length=0"),
        ((100, 260), {}, r"source_tokenizer.*ids=260, source_vocab_size=100"),
        ((260, 90), {}, r"target_tokenizer.*ids=260, target_vocab_size=90"),
        ((260,), {"target_start": [260]}, "`target_start` must be an id of the vocabulary"),
        ((260,), {"source_end": [-1]}, "`source_end` must be an id"),
        ((260,), {"source_start": [5] * 6}, "`max_source_length` must be an integer at least 8"),
        ((260,), {"target_start": [5] * 6, "max_length": 6}, "`max_length` must be an integer at least 7"),
    ):
        refuses(rule, Translator, models[sizes], ByteTokenizer(), **{"max_source_length": 6, **wrong})


@pytest.mark.parametrize(
    "by_row", [{"strategy": Sample(np.array([0.5, 1.0]))}, {"constraints": [MinLength(np.array([2, 3]))]}]
)
def test_values_for_each_row_are_refused(by_row):
    refuses("must hold one value for all rows", Translator, small_model(260), ByteTokenizer(), **by_row)


def test_file_that_was_not_saved_there_is_refused(translator, tmp_path):
    """A flipped bit, and the tokenizer of another model."""
    folder, rng = tmp_path / "saved", np.random.default_rng(0)
    translator.save(folder)
    other = SentencePieceTokenizer.train(["another text"] * 9, translator.source_tokenizer.vocab_size)
    for name in ("model.keras", "source_tokenizer.model"):
        content = (folder / name).read_bytes()
        wrong = [other.content] * name.endswith(".model")
        for place in rng.integers(0, 8 * len(content), 10):
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            wrong.append(bytes(damaged))
        for each in wrong:
            (folder / name).write_bytes(each)
            refuses(rf"{name} is not the file that was saved here: its SHA-256", Translator.load, folder)
        (folder / name).write_bytes(content)
    assert Translator.load(folder).source_tokenizer.content == translator.source_tokenizer.content


def described(changes=None, **arguments):
    return lambda folder: change_description(folder, changes, **arguments)


def cut(share):
    """Cuts the file of the model."""

    def change(folder):
        path = folder / "model.keras"
        os.truncate(path, int(path.stat().st_size * share))

    return change


def without_subwords(folder):
    change_description(folder, {"target_tokenizer": "SentencePieceTokenizer"})
    (folder / "target_tokenizer.model").unlink()


def holding(content):
    return lambda folder: (folder / "translator.json").write_bytes(content)


NO_DESCRIPTIONS = [
    b"", b"[]", b'{"format": 2}', b'{"format": 1}', b'{"format": "1"}', b"\xff\xfe", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "saved holds no translator"),
        (lambda folder: (folder / "translator.json").unlink(), r"translator\.json"),
        (lambda folder: (folder / "model.keras").unlink(), r"model\.keras"),
        (without_subwords, r"target_tokenizer\.model"),
        (
            lambda folder: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(
                folder / "model.keras"
            ),
            "must hold a model of class EncoderDecoder or Ensemble. Received: a Sequential",
        ),
        *((cut(share), r"model\.keras") for share in (0.0, 0.7)),
        *((holding(content), "saved") for content in NO_DESCRIPTIONS),
        (described({"source_tokenizer": "PickleTokenizer"}), "'PickleTokenizer'.*'ByteTokenizer'"),
        (described({"target_tokenizer": "os.system"}), "'os.system'.*'ByteTokenizer'"),
        (described({"source_tokenizer": ["ByteTokenizer"]}), "saved"),
        (described({"source_tokenizer": None}), "None"),
        (described({"source_tokenizer": "SentencePieceTokenizer"}), "not a SentencePiece model"),
        (described(strategy={"class_name": "Contrastive", "config": {}}), "'Contrastive'.*'Greedy'"),
        (described(strategy={"class_name": "Greedy", "config": {"width": 3}}), "width"),
        (described(strategy={"class_name": "Greedy"}), "saved"),
        (described(strategy="Greedy"), "`strategy` must be a strategy"),
        (described({"arguments": {}}), r"must hold each argument.*missing=\['constraints', 'max_length'"),
        (described({"arguments": None}), "saved"),
        (described(width=3), "unexpected keyword argument 'width'"),
        (described(max_source_length="long"), "saved"),
        (described(max_length=0), "max_length=0"),
    ],
)
def test_damaged_folder_is_refused_and_named(saved, damage, message):
    damage(saved)
    refuses(message, Translator.load, saved)
