import re
import warnings

import keras
import numpy as np
import pytest
from contracts import STEP_IN_XLA, as_numpy, gradient_of, normal, refuses, with_mask
from keras import ops
from reference import log_softmax

from keras_transformer.execution.ops import at_least_float32
from keras_transformer.losses import MaskedCrossentropy, token_cross_entropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity

BATCH, LENGTH, VOCAB = 3, 5, 7
TARGETS = np.array([[3, 1, 6, 2, 4], [5, 2, 0, 0, 0], [1, 1, 2, 0, 0]], "int32")
REAL = 10


def logits(scale=2.0):
    return normal(BATCH, LENGTH, VOCAB, scale=scale)


def reference_losses(targets, scores, smoothing):
    """Section 5.4 with the distribution written out."""
    wanted = (1 - smoothing) * np.eye(VOCAB)[targets] + smoothing / VOCAB
    return -(wanted * log_softmax(scores.astype("float64"))).sum(axis=-1)


def test_three_ids_by_hand():
    """p = (1/2, 1/4, 1/4), target 0, e = 0.3: 0.8 ln 2 + 0.1 ln 4 + 0.1 ln 4 = 1.2 ln 2."""
    scores = np.log([[[0.5, 0.25, 0.25]]])
    loss = MaskedCrossentropy(label_smoothing=0.3, pad_id=2)([[0]], scores)
    np.testing.assert_allclose(as_numpy(loss), 1.2 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(as_numpy(MaskedCrossentropy(pad_id=2)([[0]], scores)), np.log(2), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_each_token_agrees_with_the_written_out_distribution(smoothing):
    found = token_cross_entropy(TARGETS, logits(), smoothing)
    np.testing.assert_allclose(as_numpy(found), reference_losses(TARGETS, logits(), smoothing), rtol=1e-5)


def test_mean_is_over_real_tokens():
    losses = reference_losses(TARGETS, logits(), 0.1)
    np.testing.assert_allclose(
        as_numpy(MaskedCrossentropy(0.1)(TARGETS, logits())), losses[TARGETS != 0].sum() / REAL, rtol=1e-5
    )


def test_padding_has_no_gradient():
    gradient = gradient_of(lambda scores: MaskedCrossentropy(0.1)(TARGETS, scores), logits())
    assert np.all(gradient[TARGETS == 0] == 0)
    assert np.all(np.abs(gradient[TARGETS != 0]).sum(axis=-1) > 0)


def test_another_pad_id_is_not_scored():
    losses = reference_losses(TARGETS, logits(), 0.0)
    found = MaskedCrossentropy(pad_id=2)(TARGETS, logits())
    np.testing.assert_allclose(as_numpy(found), losses[TARGETS != 2].mean(), rtol=1e-5)


def test_batch_of_padding_alone_gives_zero_and_no_gradient():
    padding = np.zeros((BATCH, LENGTH), "int32")
    assert as_numpy(MaskedCrossentropy(0.1)(padding, logits())) == 0.0
    gradient = gradient_of(lambda scores: MaskedCrossentropy(0.1)(padding, scores), logits())
    np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1), (BATCH, LENGTH), (BATCH, LENGTH, 1)])
def test_sample_weights_weigh_tokens_in_both_sums(shape):
    weights = np.random.default_rng(1).uniform(0.5, 3.0, shape).astype("float32")
    of_token = np.broadcast_to(weights.reshape(BATCH, -1), TARGETS.shape) * (TARGETS != 0)
    losses = reference_losses(TARGETS, logits(), 0.1)
    np.testing.assert_allclose(
        as_numpy(MaskedCrossentropy(0.1)(TARGETS, logits(), sample_weight=weights)),
        (losses * of_token).sum() / of_token.sum(),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("y_true", (LENGTH, BATCH)),
        ("y_true", (BATCH, LENGTH, VOCAB)),
        ("y_pred", (BATCH, VOCAB)),
        ("sample_weight", (LENGTH,)),
        ("sample_weight", (BATCH, 1, 1)),
        ("sample_weight", (BATCH, LENGTH, 2)),
    ],
)
@pytest.mark.parametrize("kind", [MaskedCrossentropy, MaskedAccuracy, Perplexity])
@pytest.mark.sampled
def test_other_shapes_are_refused(name, shape, kind):
    arguments = {"y_true": TARGETS, "y_pred": logits(), "sample_weight": np.ones(BATCH, "float32")}
    arguments[name] = np.ones(shape, arguments[name].dtype)
    message = rf"`{name}` must have shape `\(batch.*Received: {name}\.shape={re.escape(str(shape))}\."
    refuses(message, kind(), **arguments)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_axes_of_unknown_size_are_accepted():
    import tensorflow as tf

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, 1), tf.int32),
            tf.TensorSpec((None, None, None)),
            tf.TensorSpec((None, None)),
        ]
    )
    def loss(targets, scores, weights):
        return MaskedCrossentropy()(targets, ops.reshape(scores, (-1, LENGTH, VOCAB)), weights)

    weights = np.array([[1.0], [2.0], [3.0]], "float32")
    np.testing.assert_allclose(
        as_numpy(loss(TARGETS[..., None], logits(), weights)),
        as_numpy(MaskedCrossentropy()(TARGETS, logits(), weights[:, 0])),
        rtol=1e-6,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_nothing_is_computed_in_less_than_float32_or_than_its_own_dtype(dtype):
    assert at_least_float32(dtype) == ("float64" if dtype == "float64" else "float32")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_float64_logits_are_scored_in_float64(smoothing):
    scores = ops.convert_to_tensor(logits().astype("float64"))
    losses = token_cross_entropy(TARGETS, scores, smoothing)
    assert keras.backend.standardize_dtype(losses.dtype) == "float64"
    expected = reference_losses(TARGETS, logits(), smoothing)
    np.testing.assert_allclose(ops.convert_to_numpy(losses), expected, rtol=1e-13)
    weights = np.random.default_rng(4).uniform(0.5, 3.0, TARGETS.shape)  # float64 weights stay exact too
    loss = MaskedCrossentropy(smoothing)(TARGETS, scores, weights)
    weights = weights * (TARGETS != 0)
    np.testing.assert_allclose(
        ops.convert_to_numpy(loss), (expected * weights).sum() / weights.sum(), rtol=1e-13
    )


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_a_model_of_float64_trains():
    embedding = keras.layers.Embedding(REAL + 1, VOCAB, dtype="float64")
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding])
    model.compile(
        keras.optimizers.SGD(1.0), MaskedCrossentropy(0.1), metrics=[MaskedAccuracy(), Perplexity()]
    )
    positions = np.array([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 9, 10, 0, 0]], "int32")
    history = model.fit(positions, TARGETS[..., None], epochs=2, batch_size=BATCH, verbose=0).history["loss"]
    assert history[1] < history[0]


def test_reductions():
    losses = reference_losses(TARGETS, logits(), 0.0) * (TARGETS != 0)
    by_sum = MaskedCrossentropy(reduction="sum")(TARGETS, logits())
    by_none = MaskedCrossentropy(reduction="none")(TARGETS, logits())
    np.testing.assert_allclose(as_numpy(by_sum), losses.sum(), rtol=1e-5)
    np.testing.assert_allclose(as_numpy(by_none), losses, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradient_is_the_one_of_the_written_out_formula(smoothing):
    """The gradient is written by hand: held against the backend's own of a one-hot formulation."""
    weights = np.random.default_rng(2).uniform(0.5, 3.0, TARGETS.shape).astype("float32")
    wanted = ((1 - smoothing) * np.eye(VOCAB)[TARGETS] + smoothing / VOCAB).astype("float32")

    def ours(scores):
        return ops.sum(token_cross_entropy(TARGETS, scores, smoothing) * weights)

    def plain(scores):
        losses = -ops.sum(wanted * ops.log_softmax(scores, axis=-1), axis=-1)
        return ops.sum(losses * weights)

    found, expected = gradient_of(ours, logits()), gradient_of(plain, logits())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_no_tensor_of_the_vocabulary_is_made_for_the_targets():
    """Of floating tensors as large as the logits there are no more than the logits and their softmax need."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def gradient(scores):
            with tf.GradientTape() as tape:
                tape.watch(scores)
                loss = MaskedCrossentropy(0.1)(TARGETS, scores)
            return tape.gradient(loss, scores)

        operations = gradient.get_concrete_function(tf.TensorSpec(logits().shape)).graph.get_operations()
        assert not [op.name for op in operations if op.type == "OneHot"]
        assert [op.name for op in operations if op.type == "Softmax"]
        return
    import jax

    program = str(jax.make_jaxpr(jax.value_and_grad(lambda s: MaskedCrossentropy(0.1)(TARGETS, s)))(logits()))
    # A one-hot is written as a comparison with an iota over the vocabulary.
    assert f"bool[{BATCH},{LENGTH},{VOCAB}]" not in program
    assert f"bool[{BATCH * LENGTH},{VOCAB}]" not in program


def test_bfloat16_logits_are_scored_in_float32():
    """Rounded logits, exact from there on: in bfloat16 the log of 1,009 alike would be off in its third digit."""
    scores = ops.zeros((1, 1, 1009), "bfloat16")
    loss = MaskedCrossentropy()([[1]], scores)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    np.testing.assert_allclose(as_numpy(loss), np.log(1009), rtol=1e-6)


def test_huge_logits_stay_finite():
    scores = np.array([[[1e4, -1e4, 0.0]]], "float32")
    np.testing.assert_allclose(as_numpy(MaskedCrossentropy()([[1]], scores)), 2e4, rtol=1e-6)


MADE = [MaskedCrossentropy(0.1, pad_id=2, name="smooth", reduction="sum")]
MADE += [kind(pad_id=2, name="other") for kind in (MaskedAccuracy, Perplexity)]


@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made).__name__)
def test_config_comes_back_whole(made):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    assert type(again) is type(made) and again.get_config() == made.get_config()
    for name in ("pad_id", "name", "label_smoothing", "reduction"):
        assert getattr(again, name, None) == getattr(made, name, None)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_must_leave_something_to_the_target(smoothing):
    refuses(rf"must be in \[0, 1\). Received: label_smoothing={smoothing}\.", MaskedCrossentropy, smoothing)


PADDINGS = [0, -1, -100, 99]  # the last three are no ids of the vocabulary
KINDS = [MaskedCrossentropy, MaskedAccuracy, Perplexity]
OUTSIDE = [(BATCH, LENGTH + 1), (BATCH, 1, LENGTH), (LENGTH,)]  # shapes that are not those of the tokens


def padded(pad_id):
    """The targets with another id in the place of padding."""
    return np.where(TARGETS == 0, pad_id, TARGETS).astype("int32")


def value_of(kind, targets, scores, weights=None, **arguments):
    """The value of a loss, or the result of a metric after one batch."""
    return as_numpy(kind(**arguments)(ops.convert_to_tensor(targets), scores, weights))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (MaskedCrossentropy, {"label_smoothing": 0.1}),
        (MaskedCrossentropy, {"reduction": "none"}),
        (MaskedAccuracy, {}),
        (Perplexity, {}),
    ],
)
def test_a_last_axis_of_one_changes_nothing(kind, options):
    """With 3 rows of 3 tokens a third axis would broadcast without an error."""
    targets, scores = TARGETS[:3, :3], logits()[:3, :3]
    weights = np.random.default_rng(3).uniform(0.5, 3.0, targets.shape).astype("float32")
    for given in (weights, None):
        expected = value_of(kind, targets, scores, given, **options)
        for y_true in (targets, targets[..., None]):
            for more in (given, given if given is None else given[..., None]):
                np.testing.assert_array_equal(value_of(kind, y_true, scores, more, **options), expected)


def inside_a_graph(function, *arrays):
    """Calls a function where the values of its arguments are not known yet."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)(*arrays)
    import tensorflow as tf

    return tf.function(function)(*map(tf.constant, arrays))


@pytest.mark.slow
@pytest.mark.parametrize("pad_id", PADDINGS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none"])
def test_the_id_of_padding_changes_no_loss(reduction, smoothing, pad_id):
    def loss(targets, scores, pad_id):
        return MaskedCrossentropy(smoothing, pad_id, reduction=reduction)(targets, scores)

    expected = as_numpy(loss(TARGETS, logits(), 0))
    targets = padded(pad_id)
    np.testing.assert_array_equal(as_numpy(loss(targets, logits(), pad_id)), expected)
    found = inside_a_graph(lambda targets, scores: loss(targets, scores, pad_id), targets, logits())
    np.testing.assert_allclose(as_numpy(found), expected, rtol=1e-6)
    gradient = gradient_of(lambda scores: ops.sum(loss(targets, scores, pad_id)), logits())
    assert np.all(np.isfinite(gradient)) and np.all(gradient[TARGETS == 0] == 0)


@pytest.mark.parametrize("pad_id", PADDINGS)
@pytest.mark.parametrize("kind", [MaskedAccuracy, Perplexity])
@pytest.mark.sampled
def test_the_id_of_padding_changes_no_metric(kind, pad_id):
    metric, expected = kind(pad_id=pad_id), kind()
    for rows in (slice(0, 2), slice(2, 3)):
        metric.update_state(padded(pad_id)[rows], logits()[rows])
        expected.update_state(TARGETS[rows], logits()[rows])
    assert as_numpy(metric.result()) == as_numpy(expected.result())


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_the_implicit_mask_hides_do_not_count(kind):
    """With `pad_id=-1` the mask alone decides, so that class 0 counts. The mask, the weights and `pad_id` multiply."""
    mask = np.array(
        [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], bool
    )  # of TARGETS[2, 3] it is True, of 0
    weights = np.random.default_rng(5).uniform(0.5, 3.0, TARGETS.shape).astype("float32")
    for pad_id, given in ((-1, None), (0, None), (-1, weights), (0, weights)):
        counts = mask & np.not_equal(TARGETS, pad_id)
        expected = value_of(
            kind, TARGETS, logits(), np.where(counts, 1.0 if given is None else given, 0.0), pad_id=-1
        )
        scores = with_mask(ops.convert_to_tensor(logits()), ops.convert_to_tensor(mask))
        found = value_of(kind, TARGETS, scores, given, pad_id=pad_id)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", OUTSIDE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled
def test_an_implicit_mask_of_another_shape_is_not_read(kind, shape):
    scores = with_mask(ops.convert_to_tensor(logits()), ops.zeros(shape, "bool"))
    assert value_of(kind, TARGETS, scores) == value_of(kind, TARGETS, logits())


@pytest.mark.slow
def test_a_tagger_has_the_numbers_of_keras():
    """The padding of the tags is a class too; the logits carry the mask of the embedding."""
    ids = np.array([[5, 7, 3, 0, 0], [2, 4, 0, 0, 0], [1, 2, 3, 4, 5]])
    tags = np.array([[1, 0, 2, 0, 0], [3, 0, 0, 0, 0], [0, 1, 0, 6, 2]])
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), keras.layers.Embedding(REAL, VOCAB, mask_zero=True)]
    )
    model.set_weights([normal(REAL, VOCAB)])
    found = []
    for loss, metric in (
        (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        ),
        (MaskedCrossentropy(pad_id=-1), MaskedAccuracy(pad_id=-1)),
    ):
        model.compile("sgd", loss, metrics=[metric], jit_compile=STEP_IN_XLA)
        found.append(model.evaluate(ids, tags, verbose=0))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("target", [VOCAB, -100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_target_outside_the_vocabulary_is_refused_where_it_counts(kind, target):
    targets = TARGETS.copy()
    targets[0, 1] = target
    message = rf"`y_true` must be from 0 to {VOCAB - 1}, .*Received: y_true=\[{target}\], pad_id=0\."
    refuses(message, value_of, kind, targets, logits())
    weights = np.ones(TARGETS.shape, "float32")
    weights[0, 1] = 0.0
    assert value_of(kind, targets, logits(), weights) == value_of(kind, TARGETS, logits(), weights)
    mask = ops.convert_to_tensor(weights != 0)
    scores = with_mask(ops.convert_to_tensor(logits()), mask)
    np.testing.assert_allclose(
        value_of(kind, targets, scores), value_of(kind, TARGETS, logits(), weights), rtol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", [VOCAB, -100])
def test_a_target_outside_the_vocabulary_gives_nan_in_a_graph(target):
    targets = TARGETS.copy()
    targets[0, 1] = target
    assert np.isnan(as_numpy(inside_a_graph(MaskedCrossentropy(), targets, logits())))
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), keras.layers.Embedding(REAL + 1, VOCAB)])
    metrics = [MaskedAccuracy(), Perplexity()]
    model.compile("sgd", MaskedCrossentropy(), metrics=metrics, jit_compile=STEP_IN_XLA)
    assert np.isnan(model.evaluate(np.ones(TARGETS.shape, "int32"), targets, verbose=0)).all()


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["y_true", "y_pred", "sample_weight"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled
def test_ragged_tensors_are_refused(kind, name):
    import tensorflow as tf

    arguments = {"y_true": TARGETS, "y_pred": logits(), "sample_weight": np.ones(TARGETS.shape, "float32")}
    arguments[name] = tf.RaggedTensor.from_tensor(arguments[name])
    refuses(rf"`{name}` must be a dense tensor.*Received: {name}.shape=\(3, ", kind(), **arguments)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_no_axis_is_added_by_indexing(kind):
    """TensorFlow Lite cannot convert such a slice."""
    import tensorflow as tf

    specs = (
        tf.TensorSpec((None, LENGTH), tf.int32),
        tf.TensorSpec((None, LENGTH, VOCAB)),
        tf.TensorSpec((None,)),
    )
    measure = kind()
    function = tf.function(lambda targets, scores, weights: measure(targets, scores, weights))
    operations = function.get_concrete_function(*specs).graph.get_operations()
    assert not [op.name for op in operations if op.type == "StridedSlice" and op.get_attr("new_axis_mask")]


@pytest.mark.tensorflow
def test_probabilities_in_place_of_logits_are_warned_of():
    inputs = keras.Input((3, 4))
    models = [
        keras.Model(inputs, keras.layers.Dense(5, activation)(inputs)) for activation in ("softmax", None)
    ]
    x, y = np.ones((2, 3, 4)), np.ones((2, 3), "int32")
    for model in models:
        model.compile("sgd", MaskedCrossentropy())
    with pytest.warns(UserWarning, match="`y_pred` must be logits"):
        Perplexity().update_state(y, models[0](x))
    with pytest.warns(UserWarning, match="`y_pred` must be logits, but it is the output of a softmax"):
        models[0].fit(x, y, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        models[1].fit(x, y, verbose=0)
