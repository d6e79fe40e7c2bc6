"""What every public layer promises, checked the same way for each."""

import contextlib
import json
import os

import keras
import numpy as np
import pytest
from keras import ops, tree

from keras_transformer.execution import native
from keras_transformer.execution.inference import inference
from keras_transformer.execution.int8 import OneProduct
from keras_transformer.keras_internals import sublayers

TINY = 1e-5  # float32 sums in another order
BFLOAT16 = 0.06  # a few roundings to 8 bits, of values of order 1
# TensorFlow asks the CPU whether oneDNN multiplies bfloat16 and float16. It aborts where this variable hides that from
# oneDNN.
MULTIPLIES_HALF_PRECISION = os.environ.get("ONEDNN_MAX_CPU_ISA") not in ("SSE41", "AVX", "AVX2")
needs_half_precision = pytest.mark.skipif(
    not MULTIPLIES_HALF_PRECISION, reason="oneDNN multiplies neither bfloat16 nor float16 with AVX2"
)
# The `jit_compile` of a test's `fit`: JAX needs XLA to be quick, and on TensorFlow XLA compiles for seconds.
STEP_IN_XLA = keras.backend.backend() == "jax"


def as_numpy(nest):
    """A nest of tensors as float64, bool or int arrays."""

    def convert(x):
        array = ops.convert_to_numpy(ops.cast(x, "float32") if is_floating(x) else x)
        return array.astype("float64") if array.dtype.kind == "f" else array

    return tree.map_structure(convert, nest)


def is_floating(x):
    return "float" in keras.backend.standardize_dtype(x.dtype)


def config_of(layer):
    """The configuration as a file keeps it: with lists instead of tuples."""
    return json.loads(json.dumps(layer.get_config()))


def normal(*shape, seed=0, scale=1.0):
    """float32 noise, the same each time."""
    return np.random.default_rng([seed, *shape]).normal(size=shape, scale=scale).astype("float32")


@contextlib.contextmanager
def policy(name):
    """Makes layers of a dtype policy, whoever makes them."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def randomized(layer, seed=0, scale=0.4):
    """Gives a built layer weights that hide nothing: biases are not zero, factors of norms not one."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        noise = rng.normal(size=weight.shape, scale=scale)
        weight.assign(noise + 1.0 if weight.path.endswith(("/gamma", "/scale")) else noise)
    return layer


def assert_close(actual, expected, atol=TINY):
    """Both nests hold the same values, to a tolerance that grows with the values."""
    actual, expected = as_numpy(actual), as_numpy(expected)
    tree.assert_same_structure(actual, expected)
    for a, e in zip(tree.flatten(actual), tree.flatten(expected), strict=True):
        assert a.shape == e.shape
        np.testing.assert_allclose(a, e, rtol=atol, atol=atol)


def check_layer_contract(make_layer, make_inputs, path, *, mask=None, bfloat16=BFLOAT16):
    """Checks what a layer promises beside its values.

    Args:
        make_layer: `make_layer(**kwargs)`, Keras's `dtype` among them; without dropout.
        make_inputs: A function that gives a list of arrays, the positional arguments. Floating arrays are
            of shape `(batch, length, features)`, integer ones `(batch, length)`.
        path: A folder to write to.
        mask: bool `(batch, length)` for the first input; the layer must pass it on. None for a layer that
            takes ids and makes its mask itself.
        bfloat16: Largest difference that `mixed_bfloat16` may make.
    """
    arrays = make_inputs()
    layer = make_layer()
    tensors = [ops.convert_to_tensor(a) for a in arrays]
    layer(*tensors)
    randomized(layer)
    expected = layer(*tensors)

    check_config(layer)
    check_saved_file(layer, arrays, expected, path)
    check_symbolic_shapes(make_layer, arrays, expected)
    if MULTIPLIES_HALF_PRECISION:
        check_mixed_precision(make_layer, layer, tensors, expected, bfloat16)
    check_compiled(layer, tensors, expected)  # `check_under_xla` for the other compilation
    check_summary(layer, tensors)
    if mask is not None:
        check_mask_passes(layer, tensors, mask)
    check_inference(layer, tensors, expected)


def check_inference(layer, tensors, expected):
    """What the layer computes is the same inside `inference`, in floats and in int8."""
    with inference(layer):
        assert_close(layer(*tensors), expected)
    products = [each for each in (layer, *sublayers(layer)) if isinstance(each, OneProduct)]
    for each in products:
        each.quantize("int8")
    if products:
        narrow = layer(*tensors)
        with inference(layer):
            assert_close(layer(*tensors), narrow)


def check_config(layer):
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert type(again) is type(layer)
    assert again.get_config() == config
    registered = keras.saving.get_registered_name(type(layer))
    assert registered == f"keras_transformer>{type(layer).__name__}"


def check_saved_file(layer, arrays, expected, path):
    inputs = [keras.Input((None, *a.shape[2:]), dtype=a.dtype) for a in arrays]
    file = path / f"{layer.name}.keras"
    keras.Model(inputs, layer(*inputs)).save(file)
    again = keras.models.load_model(file)
    assert_close(tree.flatten(again(arrays)), tree.flatten(expected), 1e-6)


def check_symbolic_shapes(make_layer, arrays, expected):
    shapes = [a.shape for a in arrays]
    open_shapes = [(None, None, *s[2:]) for s in shapes]
    for asked in (shapes, open_shapes):
        symbols = [keras.KerasTensor(shape, dtype=a.dtype) for shape, a in zip(asked, arrays, strict=True)]
        symbolic = tree.flatten(make_layer()(*symbols))
        eager = tree.flatten(expected)
        assert len(symbolic) == len(eager)
        for s, e in zip(symbolic, eager, strict=True):
            assert len(s.shape) == len(e.shape)
            for axis, size in enumerate(s.shape):
                assert size in (None, e.shape[axis]), f"{s.shape} said, {e.shape} given"
            assert s.shape[-1] is not None
            if asked is shapes:
                assert tuple(s.shape) == tuple(e.shape)
            assert keras.backend.standardize_dtype(s.dtype) == keras.backend.standardize_dtype(e.dtype)


def check_mixed_precision(make_layer, layer, tensors, expected, bfloat16):
    mixed = make_layer(dtype="mixed_bfloat16")
    mixed(*(keras.KerasTensor(t.shape, dtype=keras.backend.standardize_dtype(t.dtype)) for t in tensors))
    mixed.set_weights(layer.get_weights())
    assert all(w.dtype == "float32" for w in mixed.weights)
    outputs = in_one_piece(mixed)(*tensors)
    assert_close(outputs, expected, bfloat16)
    first = tree.flatten(outputs)[0]
    assert keras.backend.standardize_dtype(first.dtype) == "bfloat16"


def check_summary(layer, tensors):
    """A subclassed model that holds the layer shows it in its summary, with its shape."""

    class Holder(keras.Model):
        def __init__(self):
            super().__init__()
            self.held = layer

        def call(self, *tensors):
            return self.held(*tensors)

    model, lines = Holder(), []
    model(*tensors)
    model.summary(print_fn=lines.append, line_length=200)
    assert type(layer).__name__ in "".join(lines)


def check_compiled(layer, tensors, expected, jit_compile=STEP_IN_XLA):
    assert_close(native.compiled(layer, layer, jit_compile)(*tensors), expected, 1e-4)


def check_mask_passes(layer, tensors, mask):
    """The mask of the first input is the mask of the output, and no input loses or gains one."""
    mask = ops.convert_to_tensor(mask)
    masking = with_mask(tensors[0], mask)
    output = tree.flatten(layer(masking, *tensors[1:]))[0]
    np.testing.assert_array_equal(as_numpy(mask_of(output)), as_numpy(mask))
    assert mask_of(masking) is mask
    assert all(mask_of(t) is None for t in tensors[1:])
    unmasked = tree.flatten(layer(*tensors))[0]
    assert mask_of(unmasked) is None

    check_compiled_with_mask(layer, tensors, mask)


def check_compiled_with_mask(layer, tensors, mask, jit_compile=STEP_IN_XLA):
    expected = layer(with_mask(tensors[0], mask), *tensors[1:])
    masked = native.compiled(lambda x, *rest: layer(with_mask(x, mask), *rest), layer, jit_compile)
    assert_close(masked(*tensors), expected, 1e-4)


def check_under_xla(make_layer, make_inputs, mask):
    """Checks that XLA computes the same, without a mask and with one."""
    layer, tensors = make_layer(), [ops.convert_to_tensor(a) for a in make_inputs()]
    layer(*tensors)
    randomized(layer)
    check_compiled(layer, tensors, layer(*tensors), True)
    check_compiled_with_mask(layer, tensors, ops.convert_to_tensor(mask), True)


def in_one_piece(layer):
    """The layer, on JAX compiled: eagerly it compiles each operation for each shape and dtype."""
    return native.compiled(layer, layer, True) if keras.backend.backend() == "jax" else layer


def compilations():
    """The values of `jit_compile` that make a difference on this backend."""
    return (True, False) if keras.backend.backend() == "tensorflow" else (True,)


def portable_first():
    """`compilations()` as parameters of a test. On TensorFlow XLA is among the slow ones: it compiles for seconds."""
    if keras.backend.backend() == "tensorflow":
        return (False, pytest.param(True, marks=pytest.mark.slow))
    return (True,)


def slow_but(quick, values):
    """The parameters of a test: those that are not in `quick` are slow."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def check_refused(make, *wrong, **right):
    """The right arguments are accepted. Each set of wrong ones is refused, with their names and values.

    The rules that the sentences say are tested with the checks, in tests/test_checks.py.
    """
    make(**right)
    for arguments in wrong:
        with pytest.raises(ValueError) as caught:
            make(**{**right, **arguments})
        for name, value in arguments.items():
            is_plain = value is None or isinstance(value, bool | int | float | str)
            assert (f"{name}={value!r}" if is_plain else name) in str(caught.value)


def refuses(sentence, call, /, *arguments, **options):
    """The call raises a `ValueError` in whose message the sentence, a regular expression, is found."""
    with pytest.raises(ValueError, match=sentence):
        call(*arguments, **options)


class GiveMask(keras.layers.Layer):
    """Puts a mask on a tensor, the way an embedding with `mask_zero=True` does."""

    def __init__(self, mask):
        super().__init__(dtype="float32")
        self.mask = mask

    def call(self, x):
        return ops.copy(x)

    def compute_mask(self, x, mask=None):
        return self.mask


def with_mask(x, mask):
    """A copy of `x` that carries `mask` as Keras's implicit mask."""
    return GiveMask(ops.convert_to_tensor(mask))(x)


def mask_of(x):
    """Keras's implicit mask of a tensor."""
    return getattr(x, "_keras_mask", None)


def gradient_of(function, x):
    """The gradient of a scalar function by the backend's own differentiation."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x).numpy()
    import jax

    return np.asarray(jax.jit(jax.grad(function))(x))
