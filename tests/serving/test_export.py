"""Exports: what a server needs, what they hold and describe, and what is refused."""

import gc
import json
import pathlib
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from alone import answers, run_alone
from google.protobuf import empty_pb2, unknown_fields
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.execution import native
from keras_transformer.files import LOCK
from keras_transformer.models import Transformer
from keras_transformer.serving import Translator
from keras_transformer.serving.graph.saved_model import compiled_parts, write_saved_model
from keras_transformer.serving.graph.weights import fingerprint
from keras_transformer.serving.translator import TranslatorSignatures
from keras_transformer.serving.verify import time_of_request, verify
from keras_transformer.serving.warmup import FILE, text_of_length
from keras_transformer.text import ByteTokenizer


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


def small_translator():
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    return Translator(model, ByteTokenizer(), max_length=5)


@pytest.fixture(scope="module")
def sources(pairs):
    return [*(source for source, _ in pairs[:5]), "", "  ", "🎉", "저는 " * 500]


@pytest.fixture(scope="module")
def compiled_export(translator, tmp_path_factory):
    return translator.export(tmp_path_factory.mktemp("compiled") / "model", version=2, xla=True)


def graph_of(export):
    """The `MetaGraphDef` of a SavedModel."""
    saved = saved_model_pb2.SavedModel.FromString((export / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    return meta_graph


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runs_without_the_package(xla, request, translator, sources, tmp_path):
    """An export that is not compiled runs without XLA; a compiled one needs it."""
    export = request.getfixturevalue("compiled_export" if xla else "exported")
    result = run_alone(export, sources, xla, tmp_path, "serving_default")["serving_default"]
    expected = translator.answer([source.encode() for source in sources])
    assert result["translation"] == [text.decode() for text in expected["translation"]]
    assert len(set(result["translation"])) > 4
    assert result["score"] == pytest.approx(expected["score"], rel=1e-3, abs=1e-3)
    ids = [*translator.source_tokenizer.tokenize(sources[0]).numpy(), 3]
    own = translator.model.generate([ids], jit_compile=False)
    assert result["score"][0] == pytest.approx(float(own.scores[0, 0]), rel=1e-3)
    if xla:
        result = run_alone(export, ["저는"], False, tmp_path, "serving_default")
        assert "XLA" in result["serving_default"]["error"]


def test_signature_maps_a_batch_of_text_to_translations_and_scores(loaded):
    assert set(loaded.signatures) == set(TranslatorSignatures.descriptions)
    signature = loaded.signatures["serving_default"]
    assert signature.structured_input_signature[1].keys() == {"text"}
    text = signature.structured_input_signature[1]["text"]
    assert (text.shape.as_list(), text.dtype) == ([None], tf.string)
    outputs = {
        name: (spec.shape.as_list(), spec.dtype) for name, spec in signature.structured_outputs.items()
    }
    assert outputs == {
        "translation": ([None], tf.string),
        "score": ([None], tf.float32),
        "ended": ([None], tf.bool),
        "truncated": ([None], tf.bool),
        "unknown": ([None], tf.int32),
    }


def test_default_export_holds_no_xla_at_all(exported):
    graph = graph_of(exported).graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert len(nodes) > 100
    assert [node.name for node in nodes if node.op.startswith("Xla")] == []
    assert not any(each.attr["_XlaMustCompile"].b for each in (*nodes, *graph.library.function))
    assert compiled_parts(exported) == []


@pytest.mark.slow
def test_compiled_export_holds_compiled_functions_of_its_lengths(compiled_export, translator):
    assert compiled_parts(compiled_export) != []
    assert time_of_request(compiled_export).signature == "serving_default"
    meta_graph = graph_of(compiled_export)
    assert [node for node in meta_graph.graph_def.node if "PartitionedCall" in node.op]
    assert not (compiled_export / "assets.extra" / "saved_model_config.pb").exists()  # the server optimizes
    described = json.loads((compiled_export / "assets.extra" / "export.json").read_text())
    lengths = [16, 32, 64, 128, 256]
    assert (described["xla"], described["source_lengths"]) == (True, lengths)
    shapes = [
        (len(inputs["text"]), 1 + len(translator.source_tokenizer.tokenize(inputs["text"])[0]))
        for name, inputs in warmup_requests(compiled_export)
        if name == "serving_default"
    ]
    assert shapes == [(rows, length) for length in lengths for rows in (1, 8, 32)]


def test_score_of_an_empty_target_is_that_of_its_end(loaded, translator, sources):
    texts, targets = [sources[0], sources[0], ""], ["", "I am", ""]
    with native.optimized_quickly(passes=0):  # to optimize a function takes longer than to run it
        found = loaded.signatures["score"](text=tf.constant(texts), target=tf.constant(targets))["score"]
    ids = [*translator.source_tokenizer.tokenize(sources[0]).numpy(), 3]
    expected = translator.model.score([ids], [[3]], jit_compile=False)
    np.testing.assert_allclose(found[0], expected.scores[0], rtol=1e-4)
    assert found[0] < 0 and found[2] == 0


def test_the_main_graph_holds_the_nodes_of_each_signature(exported):
    """A server need not optimize a function of a signature, and is told so."""
    meta_graph = graph_of(exported)
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    assert len(nodes) == len(meta_graph.graph_def.node)
    calls = {
        node.name for node in nodes.values() if "PartitionedCall" in node.op
    }  # save, restore, initialize
    for name in TranslatorSignatures.descriptions:
        todo = [info.name.split(":")[0] for info in meta_graph.signature_def[name].outputs.values()]
        seen = set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += inputs_of(nodes[node])
        assert {info.name.split(":")[0] for info in meta_graph.signature_def[name].inputs.values()} <= seen
        assert len(seen) > 100, name
        assert not seen & calls
        for info in meta_graph.signature_def[name].inputs.values():
            readers = {nodes[node].op for node in seen if info.name.split(":")[0] in inputs_of(nodes[node])}
            assert readers == {"EnsureShape"}, info.name  # a session feeds any shape
    config = fields_of((exported / "assets.extra" / "saved_model_config.pb").read_bytes())
    assert config == {1: [{3: [1]}]}


def inputs_of(node):
    return [each.removeprefix("^").split(":")[0] for each in node.input]


def fields_of(message):
    """Reads a message of protobuf without its type: a dict from a field's number to ints, or to messages in it."""
    fields = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message))
    found = {}
    for field in fields:
        value = field.data if field.wire_type == 0 else fields_of(field.data)
        found.setdefault(field.field_number, []).append(value)
    return found


class Adds(tf.Module):
    """Two signatures, a variable whose name a node of the first one would get, and a function that is not inlined."""

    def __init__(self):
        super().__init__()
        self.number = tf.Variable(2.0, name="serve/add")
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [3.0]), -1.0)

    @tf.function(
        input_signature=[tf.TensorSpec((None,), tf.float32)], experimental_attributes={"_noinline": True}
    )
    def apart(self, x):
        return x * self.number

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32, name="x")])
    def serve(self, x):
        return {"sum": tf.add(self.apart(x), self.number, name="add"), "same": x}

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="key")])
    def look_up(self, key):
        def grown(i, value):
            return i + 1, value + self.number

        return {"value": tf.while_loop(lambda i, _: i < 3, grown, (0, self.table.lookup(key)))[1]}


@pytest.mark.slow
def test_written_out_signatures_answer_as_their_functions_do(tmp_path):
    module = Adds()
    signatures = {"serve": module.serve, "serve/add": module.look_up}
    write_saved_model(module, signatures, tmp_path / "1", xla=False)
    assert answers(tmp_path / "1", tmp_path, "serve", x=[1.0, 5.0]) == {
        "sum": [4.0, 12.0],
        "same": [1.0, 5.0],
    }
    assert answers(tmp_path / "1", tmp_path, "serve/add", key=["a", "b"]) == {"value": [9.0, 5.0]}
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    assert loaded.signatures["serve"](x=tf.constant([1.0]))["sum"].numpy().tolist() == [4.0]


def test_a_function_of_an_export_holds_each_constant_once(exported):
    for function in graph_of(exported).graph_def.library.function:
        values = [
            (node.device, node.attr["value"].SerializeToString(deterministic=True))
            for node in function.node_def
            if node.op == "Const" and not node.input
        ]
        assert len(values) == len(set(values)), function.signature.name


def test_merged_constants_keep_the_answers(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32)])
    def serve(x):
        with tf.control_dependencies([tf.constant(2.0)]):
            twice = x * tf.constant(2.0)
        small = tf.constant([2], tf.int32), tf.constant([2], tf.int64)  # the same bytes in part
        return {
            "twice": twice,
            "two": tf.constant(2.0),
            "again": tf.constant(2.0),
            "int": small[0],
            "long": small[1],
        }

    write_saved_model(tf.Module(), {"serving_default": serve}, tmp_path / "1", xla=False)
    found = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"](tf.constant([1.0, 3.0]))
    found = {name: (value.dtype.name, value.numpy().tolist()) for name, value in found.items()}
    assert found == {
        "twice": ("float32", [2.0, 6.0]),
        "two": ("float32", 2.0),
        "again": ("float32", 2.0),
        "int": ("int32", [2]),
        "long": ("int64", [2]),
    }


@tf.function(jit_compile=True)
def doubled(x):
    return x * 2.0


def with_an_op_of_xla(x):
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_dynamic_update_slice(x, x[:2], [1])


FLOATS, STRINGS = tf.TensorSpec((5,), tf.float32), tf.TensorSpec((None,), tf.string)


@pytest.mark.parametrize(
    ("function", "spec", "message"),
    [
        (doubled, FLOATS, r"its graph holds compiled .*double"),
        (with_an_op_of_xla, FLOATS, "op XlaDynamicUpdateSlice"),
        (tensorflow_text.case_fold_utf8, STRINGS, r"stock TensorFlow Serving, which has no CaseFoldUTF8\."),
        (lambda text: tf.py_function(lambda text: text, [text], tf.string), STRINGS, r"has no EagerPyFunc\."),
    ],
    ids=["compiled", "xla", "tensorflow-text", "python"],
)
def test_graph_that_a_server_cannot_run_is_refused(function, spec, message, tmp_path):
    serve = tf.function(lambda x: {"y": function(x)}, input_signature=[spec])
    with pytest.raises(ValueError, match=message):
        write_saved_model(tf.Module(), {"serving_default": serve}, tmp_path / "1", xla=False)
    if function is doubled:
        write_saved_model(tf.Module(), {"serving_default": serve}, tmp_path / "2", xla=True)


@pytest.mark.slow
def test_next_export_removes_the_files_of_a_killed_one(tmp_path):
    left = tmp_path / ".tmp-0123abcd-1"
    left.mkdir()
    (left / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="foreign"):
        small_translator().export(tmp_path, precision="foreign")
    assert left.exists()
    small_translator().export(tmp_path, warmup=False, check=False)
    assert names(tmp_path) == ["1"]


def test_the_fingerprint_of_an_export_is_of_its_graph(exported):
    from tensorflow.python.saved_model.fingerprinting_utils import singleprint_from_saved_model_proto

    fingerprint = tf.saved_model.experimental.read_fingerprint(str(exported))
    assert fingerprint.singleprint() == singleprint_from_saved_model_proto(str(exported))


@pytest.mark.slow
def test_narrow_weights_leave_the_memory_with_the_loaded_export(tmp_path):
    """Biases and shifts of an untrained model have equal bytes, and other shapes: they are not shared."""
    translator = small_translator()
    loaded = tf.saved_model.load(
        str(translator.export(tmp_path, precision="bfloat16", warmup=False, check=False))
    )
    signature = loaded.signatures["serving_default"]
    score = signature(text=tf.constant(["ab"]))["score"].numpy()
    assert score < 0
    variables = [each for each in signature.captured_inputs if each.dtype == tf.resource]

    def destroyed():
        gc.collect()
        return sum(not tf.raw_ops.VarIsInitializedOp(resource=variable) for variable in variables)

    assert destroyed() == 0
    del loaded
    assert destroyed() == len(translator.model.weights)
    # The signature still answers: it widens the stored weights, which it keeps.
    assert signature(text=tf.constant(["ab"]))["score"].numpy() == score


@pytest.mark.slow
def test_an_export_leaves_no_graph(tmp_path):
    graphs = []

    class Watched(Transformer):
        def search(self, *args, **kwargs):
            graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
            return super().search(*args, **kwargs)

    model = Watched(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    Translator(model, ByteTokenizer(), max_length=5).export(tmp_path, warmup=False, check=False)
    gc.collect()
    assert graphs
    assert not any(graph() for graph in graphs)


def test_versions_are_never_overwritten(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mine").write_text("mine")
    with pytest.raises(ValueError, match="1 exists"):
        small_translator().export(tmp_path)
    assert names(tmp_path) == ["1"]
    assert names(tmp_path / "1") == ["mine"]


@pytest.mark.slow
def test_a_crash_during_export_leaves_nothing(tmp_path, monkeypatch):
    def half(module, path, **kwargs):
        pathlib.Path(path).mkdir()
        (pathlib.Path(path) / "saved_model.pb").write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", half)
    with pytest.raises(OSError, match="disk full"):
        small_translator().export(tmp_path / "model", version=3)
    assert names(tmp_path) == []


def test_export_describes_itself(exported, translator):
    described = json.loads((exported / "assets.extra" / "export.json").read_text())
    assert set(described["signatures"]) == set(TranslatorSignatures.descriptions)
    assert described["signatures"]["score"]["inputs"] == {
        "text": {"dtype": "string", "shape": [None]},
        "target": {"dtype": "string", "shape": [None]},
    }
    assert described["signatures"]["n_best"]["outputs"]["scores"]["dtype"] == "float32"
    assert described["servable"] == "Translator"
    arguments = described["arguments"]
    assert (arguments["strategy"]["class_name"], arguments["max_source_length"]) == ("Greedy", 256)
    assert described["weights"]["sha256"] == fingerprint(translator.model)
    assert described["versions"]["tensorflow"] == tf.__version__
    assert (described["xla"], described["source_lengths"]) == (False, None)
    assert described["batch_sizes"] == [1, 8, 32]
    assert (arguments["max_length"], described["longest_output"]) == (None, 528)


def warmup_requests(export):
    """The signature and the inputs of each warm-up record."""
    for record in tf.data.TFRecordDataset(str(export / "assets.extra" / FILE)):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        yield request.model_spec.signature_name, inputs


@pytest.mark.slow
def test_warmup_touches_every_signature_and_runs(exported, loaded):
    signatures = loaded.signatures
    seen = set()
    for name, inputs in warmup_requests(exported):
        seen.add(name)
        found = signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
        assert all(len(value) == len(next(iter(inputs.values()))) for value in found.values())
    assert seen == set(TranslatorSignatures.descriptions)


def test_an_export_may_have_some_of_the_signatures(tmp_path):
    path = small_translator().export(tmp_path / "model", signatures=["score"], batch_sizes=[1])
    assert set(tf.saved_model.load(str(path)).signatures) == {"score"}
    assert [name for name, _ in warmup_requests(path)] == ["score"]
    assert list(json.loads((path / "assets.extra" / "export.json").read_text())["signatures"]) == ["score"]
    assert verify(path) == [path]
    assert time_of_request(path)[:2] == ("score", 1)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("length", [2, 3, 16, 100])
def test_a_warmup_text_has_the_length_asked_for(translator, length):
    for tokenizer in (translator.source_tokenizer, ByteTokenizer()):
        assert len(tokenizer.tokenize(text_of_length(tokenizer, length))) == length - 1


@pytest.mark.slow  # test_quantized.py exports int8 weights
def test_narrowed_weights_take_fewer_bytes_and_answer_alike(exported, loaded, translator, sources, tmp_path):
    narrowed = translator.export(tmp_path / "model", precision="bfloat16", warmup=False, check=False)
    sizes = [
        (path / "variables" / "variables.data-00000-of-00001").stat().st_size for path in (exported, narrowed)
    ]
    assert sizes[1] / sizes[0] < 0.6
    assert json.loads((narrowed / "assets.extra" / "export.json").read_text())["precision"] == "bfloat16"
    assert names(narrowed / "assets.extra") == ["export.json", "saved_model_config.pb"]
    both = (loaded, tf.saved_model.load(str(narrowed)))
    results = [each.signatures["serving_default"](text=tf.constant(sources)) for each in both]
    translations = [each["translation"].numpy().tolist() for each in results]
    assert sum(a == b for a, b in zip(*translations, strict=True)) >= 7
    scores = [each["score"].numpy() for each in results]
    assert np.abs(scores[0] - scores[1]).max() > 0
    np.testing.assert_allclose(scores[1][:5], scores[0][:5], atol=0.05)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"precision": "int8", "xla": True}, r"XLA has no fast int8 product"),
        *(
            ({"version": version}, f"Received: version={version!r}")
            for version in (0, -1, True, 1.0, "2", None)
        ),
        ({"source_lengths": [16, 32]}, r"`source_lengths` is for a compiled search.*\[16, 32\]"),
        ({"precision": "int4"}, r"`precision` must be one of .* Received: precision='int4'"),
        ({"signatures": ["token"]}, r"must be names of \['serving_default', .* Received: .*'token'"),
        ({"signatures": "tokens"}, r"must be a list of names.* Received: signatures='tokens'"),
        ({"signatures": ["tokens"], "xla": True}, r"with 'serving_default' where `xla=True`"),
        ({"signatures": []}, r"`signatures` must be names of .* Received: signatures=\[\]"),
        ({"batch_sizes": [8, 1]}, r"`batch_sizes` must increase\. Received: batch_sizes=\[8, 1\]"),
        ({"batch_sizes": [0]}, r"`batch_sizes` must be a positive integer\. Received: batch_sizes=0"),
        (
            {"batch_sizes": range(1, 101), "xla": True, "source_lengths": [*range(16, 30), 256]},
            r"at most 990: a server .* Received: 100 times 15",
        ),
        ({"xla": True, "source_lengths": [16]}, r"end with max_source_length=256\. .* source_lengths=\[16\]"),
    ],
)
def test_unusable_arguments_write_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        small_translator().export(tmp_path / "model", **arguments)
    assert not (tmp_path / "model").exists()


def test_a_loaded_export_warns_of_nothing(exported, caplog):
    tf.saved_model.load(str(exported))
    assert not [record for record in caplog.records if "gradient" in record.getMessage()]
