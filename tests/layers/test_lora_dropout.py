"""The dropout of LoRA's inputs in a projection."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Projection


def adapted(mode=None, **options):
    """A projection of 3 features to 2 heads of 3, whose adapter adds its input to the second head."""
    keras.utils.set_random_seed(0)
    layer = Projection("...x,xhy->...hy", (2, 3), lora_dropout=0.5, **options)
    layer.build((None, 5, 3))
    if mode is not None:
        layer.quantize(mode)
    layer.enable_lora(3)
    layer.lora_kernel_a.assign(np.eye(3))
    layer.lora_kernel_b.assign(np.concatenate([np.zeros((3, 3)), np.eye(3)], 1))
    return layer


@pytest.mark.parametrize("mode", [None, "int8"])
def test_dropout_is_on_the_input_of_the_adapter_alone(mode):
    layer = adapted(mode)
    x = np.random.default_rng(0).normal(size=(40, 5, 3)).astype("float32")
    still = keras.ops.convert_to_numpy(layer(x))
    dropped = keras.ops.convert_to_numpy(layer(x, training=True))
    np.testing.assert_allclose(dropped[..., 0, :], still[..., 0, :], atol=1e-5)
    added = dropped[..., 1, :] - (still[..., 1, :] - x)
    is_zero = np.abs(added) < 1e-5
    np.testing.assert_allclose(np.where(is_zero, 0, added), np.where(is_zero, 0, 2 * x), atol=1e-5)
    assert 0.4 < is_zero.mean() < 0.6


def test_the_rate_is_part_of_the_configuration():
    layer = adapted()
    copy = Projection.from_config(layer.get_config())
    copy.build((None, 5, 3))
    assert copy.lora_enabled and copy.lora_drop.rate == 0.5
    assert "lora_dropout" not in Projection("...x,xy->...y", 3).get_config()
    with pytest.raises(ValueError, match=r"`lora_dropout` must be in"):
        Projection("...x,xy->...y", 3, lora_dropout=1.5)


def test_another_product_has_no_dropout():
    layer = Projection("xby,xyd->xbd", (None, 3), lora_dropout=0.5)
    layer.build((2, None, 4))
    with pytest.raises(ValueError, match=r"contracted axes are the last"):
        layer.enable_lora(2)
