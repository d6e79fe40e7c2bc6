"""The private names of Keras that this library needs. No other file uses one.

Keras may rename them in any release, so setup.cfg allows only the minor versions of Keras that were tested, and a test
looks for private names in all other files.

A subclass may use and override private names of its Keras base class in its own file. `layers.MultiHeadAttention` does:
it keeps the names of Keras's sublayers (`_query_dense` and so on) and the method `_compute_attention`, which Keras
documents.
"""

import contextlib
import random

from keras import StatelessScope, dtype_policies, layers
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.variables import AutocastScope, initialize_all_variables
from keras.src.saving.serialization_lib import ObjectSharingScope

from keras_transformer.checks import warn

# `implicit_mask(x)` returns the mask that Keras keeps on a tensor (`mask_zero=True`), bool `(batch, length)`, or None.
# Keras has no public function for it. On TensorFlow it is an attribute of the tensor, `_keras_mask`. JAX's tracers
# allow no attributes, so Keras keeps theirs in a table, which only this function reads.
implicit_mask = get_keras_mask

# The attributes in which Keras and TensorFlow keep their records of a layer: none decides what the layer computes. A
# regular expression of their names.
WITHOUT_MEANING = (
    "_path|_parent_path|_called|_?tracker|build|quantize|_auto_config|_self_unconditional_.*|_input_spec"
    "|_inbound_nodes|_outbound_nodes|_loss_ids"
)

# Whether Keras adds LoRA to the logits of a quantized `ReversibleEmbedding`. Keras 3.15 adds it to the embeddings only,
# Keras 3.16 to both. There every layer describes to a strategy what it quantizes.
LOGITS_HAVE_LORA = hasattr(layers.Layer, "_quantization_geometry")


def set_implicit_mask(x, mask):
    """Puts a mask on a tensor, which Keras hands to the layers that take the tensor.

    `compute_mask` is Keras's public way. It does not see the arguments of the call, such as `reverse`.

    Args:
        x: A tensor of any shape and dtype.
        mask: bool `(batch, length)`.
    """
    set_keras_mask(x, mask)


def take_own_policies(layers):
    """Gives each of some built layers the policy of its path, where it has a policy for each path.

    Keras gives a quantized model from a file one `DTypePolicyMap` for all layers. They compute with the policies of
    their paths. But Keras's `save_own_variables` and `quantize` read the map as if it were the policy of the layer: the
    model could not be saved again. The public setter keeps the map.
    """
    for layer in layers:
        policy = layer.dtype_policy
        if isinstance(policy, dtype_policies.DTypePolicyMap):
            layer._dtype_policy = policy[layer.path] if layer.path else policy.default_policy


def is_sharing():
    """Returns whether Keras notes which objects it has described or made, as inside `save` and `load_model`."""
    return global_state.get_global_attribute("shared_objects/id_to_obj_map") is not None


def sharing():
    """Opens a context in which a description makes one layer of a layer that it holds several times."""
    return contextlib.nullcontext() if is_sharing() else ObjectSharingScope()


@contextlib.contextmanager
def without_memory(initialize=True):
    """Gives the variables that are made inside their memory at the end of the `with` block, or none after an error.

    Keras initialises them at the end of its scope, also after an error.

    Args:
        initialize: False if they never get memory. They have shapes only, and the random numbers of Python, with which
            Keras draws seeds, go on as if the block had not run.
    """
    before, state = global_state.get_global_attribute("uninitialized_variables", []), random.getstate()
    global_state.set_global_attribute("uninitialized_variables", [])
    try:
        with StatelessScope(initialize_variables=False):
            yield
        if initialize:
            initialize_all_variables()
    finally:
        global_state.set_global_attribute("uninitialized_variables", before)
        if not initialize:
            random.setstate(state)


def without_autocast():
    """Opens a context in which the values of variables have their own dtype, also inside a layer of another one."""
    return AutocastScope(None)


def keep_precision(variable):
    """Lets a variable keep its dtype inside layers of a lower precision.

    `add_weight(autocast=False)` is Keras's public way. Keras makes the scales of quantized layers without it, so that
    bfloat16 would round them.

    Args:
        variable: A `keras.Variable`.
    """
    variable._autocast = False


def is_random_state(variable):
    """Returns whether a variable is the state of a `keras.random.SeedGenerator`, which has this name for it."""
    return variable.name == "seed_generator_state"


def keeps_precision(variable):
    """Returns whether a variable keeps its dtype inside layers of a lower precision."""
    return not variable._autocast


def weight_index(optimizer, variable):
    """Returns the place of a weight among those that an optimizer was built for.

    Keras has no public way from a weight to its optimizer variables. Inside a replica of `tf.distribute` the weight
    is only one copy of a distributed variable, and `_get_variable_index` finds the original.

    Args:
        optimizer: A built `keras.optimizers.Optimizer`.
        variable: One of the weights that the optimizer was built for, as `update_step` receives it.
    """
    return optimizer._get_variable_index(variable)


def adam_moments(optimizer, variable):
    """Returns the two moving averages that Adam keeps for one weight.

    Args:
        optimizer: A built `keras.optimizers.Adam`, or an instance of a subclass.
        variable: One of the weights that the optimizer was built for, as `update_step` receives it.

    Returns:
        Two `keras.Variable` of the shape of the weight: the mean of the gradients and the mean of their squares.
    """
    index = weight_index(optimizer, variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def watch_gradients(optimizer, look):
    """Shows a function the gradients of each update, just before the optimizer clips and applies them.

    Keras has no public hook there. `apply` receives the gradients of a single batch, before they are accumulated;
    `update_step` receives them one by one, after clipping. `_clip_gradients` runs once for each update, with all
    gradients, accumulated and without the scale of the loss. It is replaced on this one object, not on its class.

    Args:
        optimizer: A `keras.optimizers.Optimizer` that applies gradients itself, so no `LossScaleOptimizer`.
        look: A function of a list of gradients; its result is not used.

    Returns:
        A function without arguments that ends the watching.
    """

    def clip(gradients):
        look(gradients)
        return before(gradients)

    before = optimizer._clip_gradients
    was_replaced = "_clip_gradients" in vars(optimizer)

    def stop():
        if was_replaced:
            optimizer._clip_gradients = before
        else:
            del optimizer._clip_gradients

    optimizer._clip_gradients = clip
    return stop


def clip_sums(optimizer, sum_of_replicas):
    """Makes an optimizer clip the sum of all replicas' gradients.

    Keras clips the part of each replica and then adds the parts. The sum may be longer than the limit, as many times as
    there are replicas. `_clip_gradients` is replaced on this one object, not on its class.

    Args:
        optimizer: A `keras.optimizers.Optimizer` that applies gradients itself, so no `LossScaleOptimizer`.
        sum_of_replicas: A function of a list of gradients and None. It returns their sums over the replicas and the
            number of replicas.
    """
    if "_clip_gradients" in vars(optimizer) or not any(
        (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    ):
        return

    def clip(gradients):
        sums, replicas = sum_of_replicas(gradients)
        clipped = type(optimizer)._clip_gradients(optimizer, sums)
        # Keras adds the replicas' gradients, which are equal now.
        return [each if each is None else each / replicas for each in clipped]

    optimizer._clip_gradients = clip


def sublayers(layer):
    """Returns all layers inside a layer, at any depth, in the order of their creation.

    Keras has no public walk over the sublayers of a layer; `Model.layers` ends at the first level.

    Args:
        layer: A `keras.layers.Layer`.

    Returns:
        List of `keras.layers.Layer`.
    """
    return list(layer._flatten_layers(include_self=False))


class DirectSublayers:
    """An attribute `layers`, the layers of a layer, as a model has it; `summary(expand_nested=True)` reads it.

    A layer that sets its own `layers` keeps these.
    """

    def __get__(self, layer, owner=None):
        return self if layer is None else list(layer._flatten_layers(include_self=False, recursive=False))


def add_sublayer(layer, name, sublayer):
    """Gives a layer that is built another sublayer, as Keras's `enable_lora` gives it weights.

    Args:
        layer: The layer.
        name: Name of the attribute.
        sublayer: The new layer.
    """
    layer._tracker.unlock()
    setattr(layer, name, sublayer)
    layer._tracker.lock()


def warn_of_probabilities(logits):
    """Warns if a tensor is the output of `keras.activations.softmax`, as Keras's losses do for `from_logits=True`."""
    if hasattr(logits, "_keras_logits"):
        message = (
            "`y_pred` must be logits, but it is the output of a softmax: leave the softmax out of the model."
        )
        warn(message)
