"""The graph that a server runs: what signatures share, and what its loops carry, is in it once."""

import collections
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.eager import context

from keras_transformer.execution import native
from keras_transformer.serving.graph import called, server_graph
from keras_transformer.serving.graph.loop_invariants import hold_invariants
from keras_transformer.serving.graph.server_graph import leave_signature, write_out_signatures

pytestmark = pytest.mark.tensorflow
NUMBER = tf.TensorSpec((), tf.int32)
NUMBERS = tf.TensorSpec((None,), tf.float32)


def saved(folder, functions, weight="weight"):
    """The `MetaGraphDef` of a SavedModel with these signatures: functions of `x` and of the number of steps."""
    module = tf.Module()
    module.weight = tf.Variable([2.0, 3.0], name=weight)
    signatures = {
        name: tf.function(lambda x, n, call=call: call(module.weight, x, n)).get_concrete_function(
            x=NUMBERS, n=NUMBER
        )
        for name, call in functions.items()
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    found = saved_model_pb2.SavedModel()
    found.ParseFromString((folder / "saved_model.pb").read_bytes())
    return found.meta_graphs[0]


def answer(meta_graph, folder, name, x, n):
    """What a signature answers in a session, as in a server that leaves the graph alone."""
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=60_000)  # a loop that does not end is an error
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    signature, saver = meta_graph.signature_def[name], meta_graph.saver_def
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        tf.graph_util.import_graph_def(meta_graph.graph_def, name="")
        variables = str(folder / "variables" / "variables")
        session.run(saver.restore_op_name, {saver.filename_tensor_name: variables})
        return session.run(
            {key: info.name for key, info in signature.outputs.items()},
            {signature.inputs["x"].name: x, signature.inputs["n"].name: n},
        )


def operations(meta_graph):
    return collections.Counter(node.op for node in meta_graph.graph_def.node)


def nested(weight, x, n):
    """Two loops within one another, whose bodies and conditions use what no step changes."""
    scale, last = x * weight, tf.cast(n, tf.float32)

    def inner(j, total, product):
        return j + 1, total + scale * weight, scale * last  # the last is made of constants alone

    def outer(i, total, product, bound):
        found = tf.while_loop(lambda j, *_: j < n - i, inner, (0, total, product))
        return i + 1, found[1], found[2], bound

    return tf.while_loop(
        lambda i, total, product, bound: (i < n) & (tf.reduce_sum(total) < bound),
        outer,
        (0, x, tf.zeros_like(x), last * 1000.0),
    )


def total_and_bound(weight, x, n):
    _, total, product, bound = nested(weight, x, n)
    return {"total": total, "product": product, "bound": bound}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_loops_carry_what_changes_alone_and_answer_the_same(tmp_path, steps):
    meta_graph = saved(tmp_path, {"serving_default": total_and_bound})
    x = np.array([1.0, 0.5], "float32")
    expected = answer(meta_graph, tmp_path, "serving_default", x, steps)
    write_out_signatures(meta_graph)
    found = answer(meta_graph, tmp_path, "serving_default", x, steps)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6)
    count = operations(meta_graph)
    assert count["While"] == count["StatelessWhile"] == 0
    # Of each loop: its index, the total, the product, and TensorFlow's own counter.
    assert count["NextIteration"] == 8
    assert found["bound"] == steps * 1000.0  # a loop hands it through


def with_condition_that_branches(weight, x, n):
    """The loop's condition switches the variables, too."""
    last = tf.cast(n, tf.float32) * 2.0
    i, y, product = tf.while_loop(
        lambda i, y, _: tf.cond(tf.reduce_sum(y) < 100.0, lambda: i < n, lambda: i < n - 1),
        lambda i, y, _: (i + 1, y + weight, last * last),
        (0, x, 0.0),
    )
    return {"y": y, "product": product, "i": i}


def with_invariant_that_branches(weight, x, n):
    large = tf.cast(n, tf.float32) * 60.0
    i, y, large = tf.while_loop(
        lambda i, y, large: tf.cond(large > 100.0, lambda: i < n, lambda: i < 0),
        lambda i, y, large: (i + 1, tf.cond(large > 150.0, lambda: y + weight, lambda: y * weight), large),
        (0, x, large),
    )
    with tf.control_dependencies([large]):
        return {"y": y, "i": i * 2}


def with_assertion(weight, x, n):
    def body(i, y):
        tf.debugging.assert_less(x, 5.0)
        return i + 1, tf.ensure_shape(x * 2.0 * weight, (2,))

    return {"y": tf.while_loop(lambda i, y: i < n, body, (0, x))[1]}


def with_variables_that_never_change(weight, x, n):
    """It takes no step, or it would not end."""
    return {"y": tf.while_loop(lambda _, go: go, lambda y, go: (y, go), (x * weight, n > 100))[0]}


def with_unused_input(weight, x, n):
    return {"with a space": x * weight, "_y": x}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(
    "function",
    [
        with_condition_that_branches,
        with_invariant_that_branches,
        with_assertion,
        with_variables_that_never_change,
        with_unused_input,
    ],
    ids=lambda function: function.__name__,
)
def test_any_loop_answers_the_same(tmp_path, function, steps):
    meta_graph = saved(tmp_path, {"serving_default": function})
    x = np.array([1.0, 0.5], "float32")
    expected = answer(meta_graph, tmp_path, "serving_default", x, steps)
    write_out_signatures(meta_graph)
    found = answer(meta_graph, tmp_path, "serving_default", x, steps)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6)


@pytest.mark.slow
def test_an_input_with_the_name_of_a_variable_gets_another(tmp_path):
    meta_graph = saved(tmp_path, {"serving_default": total_and_bound}, weight="x")
    x = np.array([1.0, 0.5], "float32")
    expected = answer(meta_graph, tmp_path, "serving_default", x, 2)
    write_out_signatures(meta_graph)
    assert meta_graph.signature_def["serving_default"].inputs["x"].name == "x.1:0"
    np.testing.assert_allclose(
        answer(meta_graph, tmp_path, "serving_default", x, 2)["total"], expected["total"]
    )


SAME_IN_EACH_PROCESS = """
import hashlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
import test_server_graph as this
from keras_transformer.serving.graph.shared import open_signatures
meta_graph = this.saved(pathlib.Path(sys.argv[2]), {"serving_default": this.with_condition_that_branches})
nodes = open_signatures(meta_graph.graph_def, {"serving_default": meta_graph.signature_def["serving_default"]})
print(hashlib.sha256(b"".join(node.SerializeToString(deterministic=True) for node in nodes)).hexdigest())
"""


@pytest.mark.slow
def test_opened_signatures_are_the_same_in_each_process(tmp_path):
    """TensorFlow's optimizer, which comes after it, may still order nodes in its own way."""

    def written(seed):
        done = subprocess.run(
            [sys.executable, "-c", SAME_IN_EACH_PROCESS, str(Path(__file__).parent), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()[-1]

    assert written("1") == written("2")


@pytest.mark.parametrize("steps", [0, 3])
def test_constant_operations_stay_in_their_loop(steps):
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            n, a, b = (tf.compat.v1.placeholder(tf.int32, (), name) for name in "nab")
            variables = (0, a, b, -1)
            _, a, _, last = tf.compat.v1.while_loop(
                lambda i, a, b, last: i < n, lambda i, a, b, last: (i + 1, a, b, a * b), variables
            )
            tf.identity_n([a, last], "result")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    graph_def = graph.as_graph_def()
    nodes = hold_invariants(graph_def.node)
    assert sum(node.op == "NextIteration" for node in nodes) == 2
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=60_000)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        changed = tf.compat.v1.GraphDef(node=nodes, versions=graph_def.versions)
        tf.graph_util.import_graph_def(changed, name="")
        found = session.run(["result:0", "result:1"], {"n:0": steps, "a:0": 5, "b:0": 7})
    assert found == [5, 35 if steps else -1]


def searched(x, n, weight):
    return tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * weight), (0, x))[1]


@pytest.mark.slow
def test_signatures_share_equal_calls_of_equal_inputs(tmp_path):
    search = tf.function(searched, autograph=False)

    def best(weight, x, n):
        return {"best": tf.reduce_max(search(x, n, weight))}

    def all_of_them(weight, x, n):
        return {"all": search(x, n, weight), "number": tf.size(x)}

    def of_other_input(weight, x, n):
        return {"all": search(x + 1.0, n, weight)}

    functions = {"serving_default": best, "all": all_of_them, "other": of_other_input}
    meta_graph = saved(tmp_path, functions)
    x = np.array([1.0, 5.0], "float32")
    expected = {name: answer(meta_graph, tmp_path, name, x, 3) for name in functions}
    write_out_signatures(meta_graph)
    assert operations(meta_graph)["LoopCond"] == 2
    assert operations(meta_graph)["Placeholder"] == 3  # `x`, `n`, and the name of the file to restore
    for name in functions:
        found = answer(meta_graph, tmp_path, name, x, 3)
        for key, value in expected[name].items():
            np.testing.assert_allclose(found[key], value, rtol=1e-6)
    outputs = [info.name for each in meta_graph.signature_def.values() for info in each.outputs.values()]
    assert len(outputs) == len(set(outputs)) and "serving_default/best:0" in outputs

    leave_signature(meta_graph, "all")
    assert operations(meta_graph)["LoopCond"] == 1
    assert {name for name in meta_graph.signature_def if not name.startswith("__")} == {"all"}
    np.testing.assert_allclose(answer(meta_graph, tmp_path, "all", x, 3)["all"], expected["all"]["all"])


def test_random_operations_and_assertions_are_not_shared(tmp_path):
    def draws(weight, x, n):
        tf.debugging.assert_less(n, 5, message="too many steps")
        return {"drawn": tf.random.uniform(tf.shape(x))}

    meta_graph = saved(tmp_path, {"serving_default": draws, "other": draws})
    write_out_signatures(meta_graph)
    assert operations(meta_graph)["RandomUniform"] == 2
    x = np.zeros(2, "float32")
    assert answer(meta_graph, tmp_path, "other", x, 4)["drawn"].shape == (2,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many steps"):
        answer(meta_graph, tmp_path, "other", x, 5)


def test_optimizer_options_are_restored_and_of_one_thread():
    def options():
        call = context.context().function_call_options
        return ConfigProto.FromString(call.config_proto_serialized).graph_options.rewrite_options

    before, of_another_thread = options(), []
    with native.optimized_quickly(passes=0):
        assert options().disable_meta_optimizer
        thread = threading.Thread(target=lambda: of_another_thread.append(options()))
        thread.start()
        thread.join()
    assert of_another_thread == [before]
    with pytest.raises(ZeroDivisionError), native.optimized_quickly():
        assert options().meta_optimizer_iterations == 1 and not options().disable_meta_optimizer
        raise ZeroDivisionError
    assert options() == before


def called_twice():
    """Signatures that call one function, which has loops, with other inputs. They share the variable alone."""
    shared = tf.function(lambda weight, x, n: (*nested(weight, x, n)[1:3], tf.shape(x)), autograph=False)

    def once(weight, x, n):
        total, product, shape = shared(weight, x, n)
        return {"total": total, "both": product + total, "shape": shape}

    def of_constant(weight, x, n):
        return {"total": shared(weight, x + 1.0, tf.constant(2))[0]}

    return {"serving_default": once, "other": of_constant}


@pytest.mark.parametrize("large", [1, called.LARGE])
def test_a_large_function_of_two_calls_is_optimized_once(tmp_path, monkeypatch, large):
    """Its nodes stand at each call, as those of a small one do."""
    monkeypatch.setattr(called, "LARGE", large)
    optimized = []
    monkeypatch.setattr(
        server_graph, "hold_invariants", lambda nodes: optimized.append(len(nodes)) or hold_invariants(nodes)
    )
    meta_graph = saved(tmp_path, called_twice())
    x = np.array([1.0, 0.5], "float32")
    expected = {name: answer(meta_graph, tmp_path, name, x, 4) for name in ("serving_default", "other")}
    write_out_signatures(meta_graph)
    for name, outputs in expected.items():
        found = answer(meta_graph, tmp_path, name, x, 4)
        assert found.keys() == outputs.keys()
        for key, value in outputs.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-6)
    assert len(optimized) == (2 if large == 1 else 1)
    count, functions = operations(meta_graph), meta_graph.graph_def.library.function
    assert count["LoopCond"] == 4 and count["NextIteration"] == 16 and count["VarHandleOp"] == 1
    assert not [each for each in functions if each.signature.name.endswith(called.EMPTY)]
    frames = {node.attr["frame_name"].s for node in meta_graph.graph_def.node if node.op == "Enter"}
    assert len(frames) == 4


def test_calls_of_a_large_function_may_follow_one_another(tmp_path, monkeypatch):
    monkeypatch.setattr(called, "LARGE", 1)
    search = tf.function(searched, autograph=False)

    def twice(weight, x, n):
        first = search(x, n, weight)
        with tf.control_dependencies([first]):
            return {"second": search(first, n + 1, weight), "first": first}

    meta_graph = saved(tmp_path, {"serving_default": twice})
    x = np.array([1.0, 5.0], "float32")
    write_out_signatures(meta_graph)
    found = answer(meta_graph, tmp_path, "serving_default", x, 2)
    np.testing.assert_allclose(found["first"], x * [4.0, 9.0])
    np.testing.assert_allclose(found["second"], x * [2.0**5, 3.0**5])
