import keras
import pytest

from keras_transformer import Transformer

SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 6, "d_ff": 10, "normalize_first": True}


def mesh_of(*shape):
    devices = [f"cpu:{i}" for i in range(shape[0] * shape[1])]
    return keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)


def layouts_by_path(model, mesh):
    layouts = model.layout_map(mesh)
    return {weight.path.removeprefix(f"{model.name}/"): layouts[weight.path].axes for weight in model.weights}


def test_every_matrix_is_split_and_every_other_weight_has_a_layout():
    """Heads, d_ff and vocabularies divide by two here; what is not split is a vector of d_model."""
    model = Transformer(14, 16, **SIZES)
    layouts = layouts_by_path(model, mesh_of(4, 2))
    assert len(model.layout_map(mesh_of(4, 2))) == len(model.weights)
    for weight in model.weights:
        axes = layouts[weight.path.removeprefix(f"{model.name}/")]
        assert len(axes) == len(weight.shape)
        assert ("model" in axes) == (tuple(weight.shape) != (12,)), weight.path
    assert layouts["source_embedding/embeddings"] == ("model", None)
    assert layouts["encoder/layer_1/self_attention/key_kernel"] == (None, "model", None)
    assert layouts["decoder/layer_0/cross_attention/value_bias"] == ("model", None)
    assert layouts["decoder/layer_1/self_attention/attention_output_kernel"] == ("model", None, None)
    assert layouts["encoder/layer_0/feed_forward/inner/kernel"] == (None, "model")
    assert layouts["encoder/layer_0/feed_forward/inner/bias"] == ("model",)
    assert layouts["encoder/layer_0/feed_forward/outer/kernel"] == ("model", None)


def test_what_does_not_divide_stays_whole():
    """Over three devices: six heads divide, d_ff=10 and 16 target ids do not, 15 source ids do."""
    layouts = layouts_by_path(Transformer(15, 16, **SIZES), mesh_of(1, 3))
    assert layouts["source_embedding/embeddings"] == ("model", None)
    assert layouts["target_embedding/embeddings"] == (None, None)
    assert layouts["encoder/layer_0/self_attention/query_kernel"] == (None, "model", None)
    assert layouts["encoder/layer_0/feed_forward/inner/kernel"] == (None, None)


def test_layouts_hold_for_a_model_of_another_name():
    model, other = Transformer(14, **SIZES, name="first"), Transformer(14, **SIZES, name="second")
    layouts = model.layout_map(mesh_of(1, 2))
    assert all(layouts[weight.path] is not None for weight in other.weights)


def test_a_mesh_without_the_axis_is_refused():
    mesh = keras.distribution.DeviceMesh((2,), ("batch",), ["cpu:0", "cpu:1"])
    with pytest.raises(ValueError, match=r"'model'.*\['batch'\]"):
        Transformer(14, **SIZES).layout_map(mesh)
