import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.models import Transformer
from keras_transformer.serving import Translator
from keras_transformer.serving.export import compiled_parts, write_saved_model
from keras_transformer.text import ByteTokenizer

CXX_RUN = pathlib.Path(__file__).parents[3] / "shared" / "tools" / "cxx_run.py"

# Runs an export as a server does that knows TensorFlow and tensorflow-text and nothing of this package.
ALONE = """
import ctypes, json, pathlib, sys
import tensorflow as tf
import tensorflow_text

folder, with_xla, texts = sys.argv[1], sys.argv[2] == "xla", json.loads(sys.argv[3])
if not with_xla:  # what tensorflow_model_server does unless it is started with --xla_cpu_compilation_enabled
    library = ctypes.CDLL(str(pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")))
    library._ZN10tensorflow21DisableXlaCompilationEv()
function = tf.saved_model.load(folder).signatures["serving_default"]
try:
    found = function(text=tf.constant(texts))
    result = {name: value.numpy().tolist() for name, value in found.items()}
    result["translation"] = [text.decode() for text in result["translation"]]
except tf.errors.OpError as error:
    result = {"error": str(error)}
result["modules"] = [name for name in sys.modules if name.split(".")[0] == "keras_transformer"]
print("RESULT" + json.dumps(result))
"""


def run_alone(folder, texts, xla, tmp_path):
    """Calls the export in a process of its own, which cannot import this package."""
    command = [sys.executable, "-I", "-c", ALONE, str(folder), "xla" if xla else "no xla", json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.split("RESULT")[1])
    assert result.pop("modules") == []
    return result


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def small_translator():
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    return Translator(model, ByteTokenizer(), max_length=5)


@pytest.fixture(scope="module")
def sources(pairs):
    return [*(source for source, _ in pairs[:5]), "", "  ", "🎉", "저는 " * 500]


@pytest.fixture(scope="module")
def scores(translator, sources):
    """Each sentence's log probability, each decoded alone by the model itself."""
    found = []
    for source in sources:
        ids = [*translator.source_tokenizer.tokenize(source).numpy().tolist()[:255], 3]
        alone = translator.model.generate([ids], jit_compile=False)
        found.append(float(alone.scores[0, 0]) if source.strip() else 0.0)
    return found


@pytest.fixture(scope="module")
def export(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "model"
    assert translator.export(folder) == folder / "1"
    return folder / "1"


@pytest.fixture(scope="module")
def compiled_export(translator, export):
    return translator.export(export.parent, version=2, xla=True)


def nodes_of(export):
    """All nodes and all functions' attributes of a SavedModel."""
    saved = saved_model_pb2.SavedModel.FromString((export / "saved_model.pb").read_bytes())
    (graph,) = (meta.graph_def for meta in saved.meta_graphs)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return nodes, [function.attr for function in graph.library.function]


def test_runs_without_the_package_and_without_xla(export, translator, sources, scores, tmp_path):
    result = run_alone(export, sources, xla=False, tmp_path=tmp_path)
    assert result["translation"] == translator.translate(sources)
    assert len(set(result["translation"])) > 4
    assert result["score"] == pytest.approx(scores, rel=1e-3, abs=1e-3)


def test_compiled_export_gives_the_same_and_needs_xla(compiled_export, translator, sources, scores, tmp_path):
    result = run_alone(compiled_export, sources, xla=True, tmp_path=tmp_path)
    assert result["translation"] == translator.translate(sources)
    assert result["score"] == pytest.approx(scores, rel=1e-3, abs=1e-3)


def test_the_runtime_without_xla_is_one_where_compiled_functions_fail(compiled_export, tmp_path):
    assert "XLA" in run_alone(compiled_export, ["저는"], xla=False, tmp_path=tmp_path)["error"]


def test_runs_in_the_runtime_of_the_server(export, translator, sources, scores, tmp_path):
    """Without TensorFlow's Python where the tool for it is at hand, else by the loader of its Python."""
    if CXX_RUN.exists():
        command = [sys.executable, str(CXX_RUN), str(export)]
        feeds = json.dumps({"text": sources})
        done = subprocess.run(command, input=feeds, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        result = json.loads(done.stdout.splitlines()[-1])["outputs"]
    else:
        found = tf.saved_model.load(str(export)).signatures["serving_default"](text=tf.constant(sources))
        result = {name: value.numpy().tolist() for name, value in found.items()}
        result["translation"] = [text.decode() for text in result["translation"]]
    assert result["translation"] == translator.translate(sources)
    assert result["score"] == pytest.approx(scores, rel=1e-3, abs=1e-3)


def test_signature_maps_a_batch_of_text_to_translations_and_scores(export):
    loaded = tf.saved_model.load(str(export))
    assert list(loaded.signatures) == ["serving_default"]
    signature = loaded.signatures["serving_default"]
    assert signature.structured_input_signature[1].keys() == {"text"}
    text = signature.structured_input_signature[1]["text"]
    assert (text.shape.as_list(), text.dtype) == ([None], tf.string)
    outputs = {
        name: (spec.shape.as_list(), spec.dtype) for name, spec in signature.structured_outputs.items()
    }
    assert outputs == {"translation": ([None], tf.string), "score": ([None], tf.float32)}


def test_rows_of_a_served_batch_do_not_depend_on_each_other(export, sources):
    function = tf.saved_model.load(str(export)).signatures["serving_default"]
    together = function(text=tf.constant(sources))
    for row, source in enumerate(sources):
        alone = function(text=tf.constant([source]))
        assert alone["translation"].numpy()[0] == together["translation"].numpy()[row]
        assert float(alone["score"][0]) == pytest.approx(float(together["score"][row]), rel=1e-3, abs=1e-3)


def test_served_bytes_of_any_kind_are_answered(export):
    rows = [b"\xff\xfe", b"", b"\0", "저는".encode()[:4], b"\xf0\x9f\x8e\x89" * 300]
    found = tf.saved_model.load(str(export)).signatures["serving_default"](text=tf.constant(rows))
    assert len(found["translation"]) == len(rows)
    for text in found["translation"].numpy():
        text.decode("utf-8")


def test_default_export_holds_no_xla_at_all(export):
    nodes, functions = nodes_of(export)
    assert len(nodes) > 100
    assert [node.name for node in nodes if node.op.startswith("Xla")] == []
    assert not any(node.attr["_XlaMustCompile"].b for node in nodes)
    assert not any(attributes["_XlaMustCompile"].b for attributes in functions)
    assert compiled_parts(export) == []


def test_compiled_export_holds_a_compiled_function(compiled_export):
    nodes, functions = nodes_of(compiled_export)
    assert any(attributes["_XlaMustCompile"].b for attributes in [*functions, *(n.attr for n in nodes)])
    assert compiled_parts(compiled_export) != []


def test_compiled_parts_slip_into_no_portable_export(tmp_path):
    module = tf.Module()

    @tf.function(jit_compile=True)
    def double(x):
        return x * 2.0

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32)])
    def serve(x):
        return {"y": double(x)}

    with pytest.raises(ValueError, match=r"its graph holds compiled .*double"):
        write_saved_model(module, {"serving_default": serve}, tmp_path / "1", xla=False)
    assert names(tmp_path) == []
    write_saved_model(module, {"serving_default": serve}, tmp_path / "1", xla=True)
    assert names(tmp_path) == ["1"]


def test_xla_ops_slip_into_no_portable_export(tmp_path):
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    @tf.function(input_signature=[tf.TensorSpec((5,), tf.float32)])
    def serve(x):
        return {"y": gen_xla_ops.xla_dynamic_update_slice(x, x[:2], [1])}

    with pytest.raises(ValueError, match="op XlaDynamicUpdateSlice"):
        write_saved_model(tf.Module(), {"serving_default": serve}, tmp_path / "1", xla=False)
    assert names(tmp_path) == []


def test_versions_are_never_overwritten(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mine").write_text("mine")
    with pytest.raises(ValueError, match="1 exists"):
        small_translator().export(tmp_path)
    assert names(tmp_path) == ["1"]
    assert names(tmp_path / "1") == ["mine"]


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "2", None])
def test_a_version_must_be_a_positive_integer(version, tmp_path):
    with pytest.raises(ValueError, match=f"Received: version={version!r}"):
        small_translator().export(tmp_path, version=version)
    assert names(tmp_path) == []


def test_a_crash_during_export_leaves_nothing(tmp_path, monkeypatch):
    def half(module, path, **kwargs):
        pathlib.Path(path).mkdir()
        (pathlib.Path(path) / "saved_model.pb").write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", half)
    with pytest.raises(OSError, match="disk full"):
        small_translator().export(tmp_path / "model", version=3)
    assert names(tmp_path / "model") == []


def test_tokenizers_of_two_kinds_are_exported(tmp_path, tokenizer):
    model = Transformer(300, 260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    translator = Translator(model, tokenizer, ByteTokenizer(), max_length=5)
    function = tf.saved_model.load(str(translator.export(tmp_path))).signatures["serving_default"]
    texts = ["저는 학생입니다.", "", "Garten"]
    found = function(text=tf.constant(texts))["translation"].numpy()
    assert [text.decode() for text in found] == translator.translate(texts)
