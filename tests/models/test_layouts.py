import keras
import pytest

from keras_transformer import Transformer, layers
from keras_transformer.models import Ensemble, LanguageModel

SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 6, "d_ff": 10, "normalize_first": True}


def mesh_of(*shape):
    devices = [f"cpu:{i}" for i in range(shape[0] * shape[1])]
    return keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)


def layouts_by_path(model, mesh):
    layouts = model.layout_map(mesh)
    return {weight.path.removeprefix(f"{model.name}/"): layouts[weight.path].axes for weight in model.weights}


@pytest.mark.slow
def test_every_matrix_is_split_and_every_other_weight_has_a_layout():
    """Heads, d_ff and vocabularies divide by two here; what is not split is a vector of d_model."""
    model = Transformer(14, 16, **SIZES)
    layouts = layouts_by_path(model, mesh_of(4, 2))
    assert len(model.layout_map(mesh_of(4, 2))) == len(model.weights)
    for weight in model.weights:
        axes = layouts[weight.path.removeprefix(f"{model.name}/")]
        assert len(axes) == len(weight.shape)
        assert ("model" in axes) == (tuple(weight.shape) != (12,)), weight.path
    assert layouts["source/tokens/embeddings"] == ("model", None)
    assert layouts["encoder/layer_1/self_attention/key/kernel"] == (None, "model", None)
    assert layouts["decoder/layer_0/cross_attention/value/bias"] == ("model", None)
    assert layouts["decoder/layer_1/self_attention/attention_output/kernel"] == ("model", None, None)
    assert layouts["encoder/layer_0/feed_forward/inner/kernel"] == (None, "model")
    assert layouts["encoder/layer_0/feed_forward/inner/bias"] == ("model",)
    assert layouts["encoder/layer_0/feed_forward/outer/kernel"] == ("model", None)


def test_axes_that_do_not_divide_stay_whole():
    """Over three devices: six heads divide, d_ff=10 and 16 target ids do not, 15 source ids do."""
    layouts = layouts_by_path(Transformer(15, 16, **SIZES), mesh_of(1, 3))
    assert layouts["source/tokens/embeddings"] == ("model", None)
    assert layouts["target/tokens/embeddings"] == (None, None)
    assert layouts["encoder/layer_0/self_attention/query/kernel"] == (None, "model", None)
    assert layouts["encoder/layer_0/feed_forward/inner/kernel"] == (None, None)


@pytest.mark.slow
def test_models_of_one_name_have_layouts_for_all_weights():
    models = [Transformer(15, 16, **{**SIZES, "d_ff": d_ff}, name="transformer") for d_ff in (9, 10)]
    layouts = Ensemble(models).layout_map(mesh_of(1, 3))
    assert layouts["transformer/source/tokens/embeddings"].axes == ("model", None)
    assert layouts["transformer/encoder/layer_0/feed_forward/inner/kernel"].axes == (None, None)


@pytest.mark.slow
def test_layouts_hold_for_a_model_of_another_name():
    model, other = Transformer(14, **SIZES, name="first"), Transformer(14, **SIZES, name="second")
    layouts = model.layout_map(mesh_of(1, 2))
    assert all(layouts[weight.path] is not None for weight in other.weights)


def test_a_mesh_without_the_axis_is_refused():
    mesh = keras.distribution.DeviceMesh((2,), ("batch",), ["cpu:0", "cpu:1"])
    with pytest.raises(ValueError, match=r"'model'.*\['batch'\]"):
        Transformer(14, **SIZES).layout_map(mesh)


def language_model(num_key_value_heads=2, **arguments):
    layer = layers.DecoderLayer(
        attention=layers.MultiHeadAttention(
            6,
            4,
            num_key_value_heads=num_key_value_heads,
            query_key_norm="rms",
            positions=layers.RelativePositionBias(6, 8, 5),
            name="self_attention",
        ),
        feed_forward=layers.MixtureOfExperts(
            [layers.GatedFeedForward(10, use_bias=True, name=f"expert_{i}") for i in range(4)],
            name="feed_forward",
        ),
        normalize_first=True,
        name="layer_0",
    )
    decoder = layers.Decoder([layer], name="decoder")
    embeddings = layers.Embeddings(14, 12, layers.LearnedPositions(16), name="embeddings")
    return LanguageModel(embeddings, decoder, **arguments)


def test_a_language_model_is_split_where_it_has_heads_widths_and_ids():
    """Tables of positions, 16 and 8 rows of them, are no vocabularies; a router is whole, each expert is split."""
    model = language_model(output=layers.TokenEmbedding(14, 12, name="scores"))
    layouts = layouts_by_path(model, mesh_of(4, 2))
    layer = "decoder/layer_0"
    split = {
        "embeddings/tokens/embeddings": ("model", None),
        "scores/embeddings": ("model", None),
        f"{layer}/self_attention/query/kernel": (None, "model", None),
        f"{layer}/self_attention/query/bias": ("model", None),
        f"{layer}/self_attention/key/kernel": (None, "model", None),
        f"{layer}/self_attention/key/bias": ("model", None),
        f"{layer}/self_attention/value/kernel": (None, "model", None),
        f"{layer}/self_attention/value/bias": ("model", None),
        f"{layer}/self_attention/attention_output/kernel": ("model", None, None),
    }
    for i in range(4):
        expert = f"{layer}/feed_forward/expert_{i}"
        split |= {
            f"{expert}/inner/kernel": (None, "model"),
            f"{expert}/inner/bias": ("model",),
            f"{expert}/gate/kernel": (None, "model"),
            f"{expert}/gate/bias": ("model",),
            f"{expert}/outer/kernel": ("model", None),
        }
    assert {path: axes for path, axes in layouts.items() if "model" in axes} == split
    assert len(layouts) == len(model.weights) > len(split)
    assert sum(path.endswith("/embeddings") for path in layouts) == 4


def test_fewer_heads_of_keys_than_devices_stay_whole():
    layouts = layouts_by_path(language_model(1), mesh_of(1, 2))
    assert layouts["decoder/layer_0/self_attention/query/kernel"] == (None, "model", None)
    for name in ("key", "value"):
        assert layouts[f"decoder/layer_0/self_attention/{name}/kernel"] == (None, None, None)
        assert layouts[f"decoder/layer_0/self_attention/{name}/bias"] == (None, None)


def test_an_output_bias_goes_with_its_vocabulary():
    layouts = layouts_by_path(Transformer(14, **SIZES, output_bias=True), mesh_of(1, 2))
    assert layouts["target/tokens/bias"] == ("model",)
