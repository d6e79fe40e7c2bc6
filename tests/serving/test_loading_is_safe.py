"""Whatever a folder holds, loading it runs none of its code."""

import contextlib
import hashlib
import json
import math
import os
import pickle
import random
import re
import sys
import time
import zipfile

import keras
import numpy as np
import pytest
from contracts import refuses, slow_but
from mirrors import change_description

from keras_transformer.keras_internals import sublayers
from keras_transformer.layers import Dropout, LearnedPositions
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer, loading
from keras_transformer.models.loading import load_model
from keras_transformer.runs import Recipe
from keras_transformer.runs.folder import RunFolder
from keras_transformer.schedules import CosineSchedule
from keras_transformer.serving import Translator
from keras_transformer.serving.folders import save_model
from keras_transformer.serving.journal import Unfinished
from keras_transformer.serving.server.server_files import write_server_files
from keras_transformer.serving.verify import verify
from keras_transformer.text import SentencePieceTokenizer
from keras_transformer.training import Adam
from keras_transformer.untrusted import sha256_of


@pytest.fixture
def sentinel(tmp_path):
    """A file that appears when a payload runs."""
    path = tmp_path / "payload-ran"
    yield path
    assert not path.exists(), "loading ran code from the folder"


def rewrite(path, change):
    """Replaces the configuration inside a .keras file by what `change` makes of it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    parts["config.json"] = json.dumps(change(config) or config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def check_refused(folder, reason):
    refuses(reason, Translator.load, folder)


@pytest.mark.slow
def test_a_model_with_a_lambda_is_refused(saved, sentinel):
    target = str(sentinel)
    layer = keras.layers.Lambda(lambda x: (open(target, "w").close(), x)[1], output_shape=(3,))
    model = keras.Sequential([keras.Input((3,)), layer])
    sentinel.unlink(missing_ok=True)  # building it may run it
    model.save(saved / "model.keras")
    check_refused(saved, r"model\.keras: .*lambda")


@pytest.mark.parametrize("place", ["activation", "kernel_initializer", "dtype"])
def test_a_lambda_hidden_in_an_argument_is_refused(saved, sentinel, place):
    target = str(sentinel)
    payload = keras.saving.serialize_keras_object(lambda x: (open(target, "w").close(), x)[1])
    assert payload["class_name"] == "__lambda__"

    def hide(config):
        config["config"][place] = payload

    rewrite(saved / "model.keras", hide)
    check_refused(saved, r"model\.keras: .*lambda")


CALLS = {
    "system": ("os", "system", "touch {}"),
    "popen": ("subprocess", "Popen", ["touch", "{}"]),
    "exec": ("builtins", "exec", "open('{}', 'w').close()"),
    "keras": ("keras.utils", "get_file", {"fname": "{}", "origin": "file:///etc/hostname"}),
}


def call(name, sentinel):
    module, function, argument = CALLS[name]
    argument = json.loads(json.dumps(argument).replace("{}", str(sentinel)))
    return module, function, argument


@pytest.mark.parametrize("name", slow_but(("system", "keras"), CALLS))
@pytest.mark.parametrize("kind", ["class", "function"])
@pytest.mark.parametrize("place", ["model", "activation"])
def test_a_configuration_that_names_a_function_to_call_is_refused(saved, sentinel, name, kind, place):
    module, function, argument = call(name, sentinel)
    class_name = function if kind == "class" else "function"
    config = {"args": argument} if kind == "class" else function
    payload = {"module": module, "class_name": class_name, "config": config, "registered_name": function}

    def hide(config):
        if place == "model":
            return payload
        config["config"]["activation"] = payload

    rewrite(saved / "model.keras", hide)
    check_refused(saved, rf"model\.keras: .*({function}|Transformer'> could not be deserialized)")


@pytest.mark.parametrize(("sizes", "reason"), [
    ({"source_vocab_size": 10**9}, "must have at most 10000000 numbers, for what is stored. .*numbers=80000"),
    ({"num_decoder_layers": 2**31}, "must have at most 1000 layers. Received: layers=2147483648"),
    ({"trainable": "\x1b[2J"}, r"Cannot load .*trainable=\\x1b\[2J"),
])  # fmt: skip
def test_a_model_that_is_not_stored_is_refused_before_it_has_memory(saved, sizes, reason):
    rewrite(saved / "model.keras", lambda config: config["config"].update(sizes))
    check_refused(saved, reason)


@pytest.mark.parametrize("build_config", ["x", [1], {"shape": [None, None, 8]}])
def test_a_layer_that_would_be_loaded_without_its_weights_is_refused(build_config, tmp_path):
    keras.Sequential([keras.Input((4, 3)), LearnedPositions(7)]).save(tmp_path / "model.keras")
    assert load_model(tmp_path / "model.keras").weights

    def change(config):
        config["config"]["layers"][1]["build_config"] = build_config

    rewrite(tmp_path / "model.keras", change)
    with pytest.raises(ValueError, match=r"model\.keras: `build_config` of a layer must have `input_shape`"):
        load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("name", ["translator.json", "source_tokenizer.model", "model.keras"])
@pytest.mark.parametrize("kind", ["a device", "a pipe", "a folder"])
def test_a_file_that_is_not_regular_is_refused_by_its_name(saved, name, kind):
    """A pipe would wait for its writer, and a device never ends."""
    path = saved / name
    change_description(saved, {"sha256": {name: ["0"]}})
    path.unlink()
    if kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        {"a pipe": os.mkfifo, "a folder": os.mkdir}[kind](path)
    check_refused(saved, f"{name}.* regular file")


@pytest.mark.parametrize("layer", [
    {"class_name": "EinsumDense", "config": {"equation": "ab,bcde->acde", "output_shape": [300, 300, 300]}},
    {"class_name": "Embedding", "config": {"input_dim": 10**5, "output_dim": 10**5}},
])  # fmt: skip
def test_layers_of_keras_are_counted_too(layer, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    model.save(tmp_path / "model.keras")

    def change(config):
        first = config["config"]["layers"][1]
        first.update(module="keras.layers", class_name=layer["class_name"], registered_name=None)
        first["config"] = layer["config"]

    rewrite(tmp_path / "model.keras", change)
    refuses("must have at most 10000000 numbers", load_model, tmp_path / "model.keras")


def test_compressed_weights_that_would_fill_the_memory_are_refused(saved, monkeypatch):
    monkeypatch.setattr(loading, "SMALL", 10**4)
    assert (saved / "model.keras").stat().st_size > 10**4
    load_model(saved / "model.keras")
    with zipfile.ZipFile(saved / "model.keras", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("assets/zeros", bytes(10**5))
    check_refused(saved, "Only 10000 bytes of the file may be compressed")


def test_a_large_number_that_makes_no_weight_and_a_layer_in_many_places_are_loaded(tmp_path):
    """The dense layer is counted once. Its seed is larger than any size."""
    dense = keras.layers.Dense(2000, kernel_initializer=keras.initializers.GlorotUniform(seed=10**12))
    x = inputs = keras.Input((2000,))
    for _ in range(9):
        x = dense(x)
    keras.Model(inputs, x).save(tmp_path / "model.keras")
    state = random.getstate()
    assert load_model(tmp_path / "model.keras").count_params() == 2000 * 2001
    assert random.getstate() == state


@pytest.mark.parametrize(("value", "fits"), [(math.nan, False), (math.inf, False), (-math.inf, True)])
def test_weights_that_are_not_numbers_are_refused_by_file_and_name(value, fits, tmp_path):
    """Minus infinity as a bias of logits is a token that is never chosen."""
    model = Transformer(7, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    weight = model.weights[0]
    weight.assign(np.full(weight.shape, value))
    readers = {"model.keras": load_model, "model.weights.h5": model.load_weights}
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    for name, read in readers.items():
        refused = pytest.raises(ValueError, match=rf"{name} must be neither NaN.*{re.escape(weight.path)}")
        with contextlib.nullcontext() if fits else refused:
            read(tmp_path / name)


def compiled_run(folder):
    """Writes a run's only checkpoint, with a compiled model, and returns its path."""
    model = Transformer(7, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    metrics = [MaskedAccuracy(), Perplexity()]
    model.compile(Adam(CosineSchedule(0.1, 10**6, 4)), MaskedCrossentropy(0.1), metrics=metrics)
    model.save(folder / "checkpoint-0001.keras")
    return folder / "checkpoint-0001.keras"


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": [keras.saving.serialize_keras_object(keras.metrics.AUC(num_thresholds=999))]},
        {"weighted_metrics": [keras.saving.serialize_keras_object(keras.metrics.AUC())]},
        {"metrics": "keras_transformer>Transformer"},
        {"steps_per_execution": 10**9},
        {"optimizer": keras.saving.serialize_keras_object(keras.optimizers.SGD())},
        {"loss_weights": [[]]},
    ],
)
def test_a_checkpoint_is_compiled_as_a_run_compiles(changes, tmp_path):
    path = compiled_run(tmp_path)
    rewrite(path, lambda config: config["compile_config"].update(changes))
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=rf"in .*{path.name} must be "):
        RunFolder(tmp_path).restore()


def test_a_checkpoint_of_a_run_is_restored_and_a_pipe_is_not_waited_for(tmp_path):
    path = compiled_run(tmp_path)
    assert isinstance(RunFolder(tmp_path).restore()[0].optimizer, Adam)
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="must be a regular file"):
        RunFolder(tmp_path).restore()


INCOMPLETE = "saved holds no complete translator: "


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"strategy": {"class_name": "Beam", "config": {"width": 10**9}}},
            "`width` must be .* at most 10000",
        ),
        ({"strategy": {"class_name": "Beam", "config": {"beam_width": -1}}}, INCOMPLETE),
        ({"strategy": {"class_name": "x" * 50_000, "config": {}}}, "'xxx"),
        ({"x" * 50_000: 1}, "'xxx"),
        ({"constraints": "x"}, INCOMPLETE),
    ],
)
def test_a_search_that_cannot_be_made_is_a_short_error(saved, arguments, reason):
    change_description(saved, **arguments)
    with pytest.raises(ValueError, match=reason) as caught:
        Translator.load(saved)
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("place", ["model", "activation", "build_config", "compile_config"])
def test_a_module_in_reach_is_not_imported(saved, sentinel, monkeypatch, place):
    (saved / "innocent_module.py").write_text(
        f"open({str(sentinel)!r}, 'w').close()\n"
        "class Layer:\n    @classmethod\n    def from_config(cls, config):\n        return cls()\n"
    )
    monkeypatch.syspath_prepend(saved)
    payload = {"module": "innocent_module", "class_name": "Layer", "config": {}, "registered_name": None}

    def hide(config):
        if place == "model":
            return payload
        if place == "activation":
            config["config"]["activation"] = payload
        elif place == "build_config":
            config["build_config"] = {"input_shape": payload}
        else:
            config["compile_config"] = {"optimizer": payload, "loss": payload, "jit_compile": False}

    rewrite(saved / "model.keras", hide)
    if place.endswith("_config"):
        Translator.load(saved)  # neither is needed to translate
    else:
        check_refused(saved, r"model\.keras: .*('Layer'|Transformer'> could not be deserialized)")
    assert "innocent_module" not in sys.modules


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.keras", "Cannot load .*model.keras: "),
        ("source_tokenizer.model", "not a SentencePiece model"),
        ("translator.json", "holds no translator: Cannot read .*UTF-8"),
    ],
)
def test_a_pickle_is_not_read(saved, sentinel, name, reason):
    (saved / name).write_bytes(pickle.dumps(Payload(str(sentinel))))
    if name == "source_tokenizer.model":
        change_description(saved, {name.removesuffix(".model"): "SentencePieceTokenizer"})
    check_refused(saved, reason)


@pytest.mark.parametrize(
    "described",
    ["[" * 100_000, "{}", "[]", '{"files": 1, "signatures": 2}', '{"files": {}, "signatures": [1]}'],
)
def test_export_with_an_unusable_description_is_refused(tmp_path, described):
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "export.json").write_text(described)
    refuses("is not an export of this library", verify, tmp_path)


ADDED = {
    "link to a folder": lambda path: path.symlink_to("/"),
    "link to nothing": lambda path: path.symlink_to("/nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", ADDED)
def test_added_links_and_pipes_are_named_and_not_followed(tmp_path, kind):
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "assets.extra").mkdir()
    files = {"saved_model.pb": hashlib.sha256().hexdigest()}
    (tmp_path / "assets.extra" / "export.json").write_text(json.dumps({"files": files, "signatures": {}}))
    ADDED[kind](tmp_path / "added")
    refuses(r"Changed, missing or added: added\.", verify, tmp_path)


def _resume(folder):
    with Unfinished(folder / "output").opened({}):
        pass


@pytest.mark.parametrize(("name", "content", "read"), [
    ("assets.extra/export.json", b"{\xff", verify),
    ("run.json", b"{\xff", lambda folder: RunFolder(folder).check(Recipe(), {})),
    ("output.partial/journal.json", b"{\xff", _resume),
    ("source.model", b"{\xff", lambda folder: SentencePieceTokenizer.load(folder / "source.model")),
    ("models.config", b"[[", write_server_files),
], ids=["export", "run", "journal", "tokenizer", "labels"])  # fmt: skip
def test_an_error_does_not_quote_a_whole_file(tmp_path, name, content, read):
    for version in (tmp_path, tmp_path / "1"):
        (version / "assets.extra").mkdir(parents=True)
        (version / "assets.extra" / "export.json").write_text('{"batch_sizes": [1], "xla": false}')
        (version / "saved_model.pb").touch()
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content * 50_000)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))) as caught:
        read(tmp_path)
    assert len(str(caught.value)) < 1000


def test_an_error_of_keras_without_a_message_is_named(saved, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(keras.models, "load_model", fail)
    check_refused(saved, r"model\.keras: MemoryError")


def test_a_file_of_a_model_does_not_depend_on_the_dropout_that_its_training_drew(tmp_path):
    keras.utils.set_random_seed(1)
    model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8, dropout=0.3)
    hashes = []
    for name in ("first.keras", "second.keras"):
        save_model(model, tmp_path / name)
        hashes.append(sha256_of(tmp_path / name))
        time.sleep(2.1)  # ZIP files count two seconds
        model({"source": np.ones((1, 3), "int32"), "target": np.ones((1, 2), "int32")}, training=True)
    assert hashes[0] == hashes[1]
    model.save(tmp_path / "whole.keras")
    states = [
        layer.seed_generator.state for layer in sublayers(model) if isinstance(layer, Dropout) and layer.rate
    ]
    loaded = keras.models.load_model(tmp_path / "whole.keras")
    again = [
        layer.seed_generator.state for layer in sublayers(loaded) if isinstance(layer, Dropout) and layer.rate
    ]
    assert states and all(np.array_equal(a, b) for a, b in zip(states, again, strict=True))
