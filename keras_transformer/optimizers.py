"""Adam and AdamW that update each weight in one pass, and Muon for the kernels of a Transformer."""

import contextvars
from types import SimpleNamespace

import keras
from keras import ops

from keras_transformer.checks import check_count
from keras_transformer.execution import native
from keras_transformer.keras_internals import adam_moments, weight_index

# Number of Newton-Schulz steps of Muon.
MOST_STEPS = 100

# What `_scalars` returned for weights of the update at hand. Replicas compute it for each weight.
_SHARED = contextvars.ContextVar("shared")


def unwrapped(optimizer):
    """Returns the optimizer that applies the gradients: the inner one of a `LossScaleOptimizer`, else the same."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class _OwnAverage:
    """Keeps the moving average of a weight in memory of its own."""

    def finalize_variable_values(self, var_list):
        """Gives the weights their moving average, if there is one, in memory of their own.

        Keras's weights and averages share an array on JAX. The next step frees it with the weight, and the average is
        gone.
        """
        super().finalize_variable_values(var_list)
        for weight in var_list if self.use_ema else ():
            weight.assign(ops.copy(weight))


class _SharedScalars(_OwnAverage):
    """Computes the scalars of an update once for all weights of a dtype: a deep model is traced in less time."""

    def apply(self, grads, trainable_variables=None):
        token = _SHARED.set({})
        try:
            super().apply(grads, trainable_variables)
        finally:
            _SHARED.reset(token)


class _OnePass(_SharedScalars):
    """Replaces Keras's update, which reads each weight about ten times, by TensorFlow's single operation."""

    def update_step(self, gradient, variable, learning_rate):
        betas = (self.beta_1, self.beta_2)
        if self.amsgrad or not _updates(
            self, variable, adam_moments(self, variable), gradient, learning_rate, betas
        ):
            super().update_step(gradient, variable, learning_rate)


def _updates(optimizer, variable, moments, gradient, learning_rate, betas):
    """Updates a weight as Adam does, in one pass, and returns whether the backend has such an operation."""
    update = native.adam_in_one_pass()
    if update is None:
        return False
    shared, settings = _SHARED.get({}), (*betas, optimizer.epsilon)
    # A subclass may set them for each weight, or update a weight in a branch of a condition, a graph of its own.
    key = native.open_graph(), optimizer, variable.dtype, *map(id, settings)
    if key not in shared:
        # The settings are kept, so that no other object gets their ids.
        shared[key] = settings, _scalars(optimizer, variable.dtype, *settings)
    update(variable, *moments, gradient, lr=learning_rate, **shared[key][1])
    return True


def _scalars(optimizer, dtype, *settings):
    """Returns the tensors that all weights of a dtype are updated with, under the names of TensorFlow's operation."""
    beta1, beta2, epsilon = (ops.convert_to_tensor(x, dtype) for x in settings)
    step = ops.cast(optimizer.iterations + 1, dtype)
    powers = {"beta1_power": beta1**step, "beta2_power": beta2**step}
    return {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, **powers}


@keras.saving.register_keras_serializable("keras_transformer")
class Adam(_OnePass, keras.optimizers.Adam):
    """`keras.optimizers.Adam`, several times as fast on TensorFlow: one operation updates each weight.

    The arguments, the state and the results are Keras's. On other backends, and with `amsgrad=True`, the update is
    Keras's too. The method is Kingma and Ba, 2015, "Adam: A Method for Stochastic Optimization", algorithm 1:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        w = w - learning_rate * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)

    The Transformer's settings are `beta_1=0.9, beta_2=0.98, epsilon=1e-9` ("Attention Is All You Need", section 5.3).

    Args:
        learning_rate: A float, a schedule such as `WarmupSchedule`, or a function without arguments.
        **kwargs: The other arguments of `keras.optimizers.Adam`, such as `beta_1`, `beta_2` and `global_clipnorm`.

    >>> weight = keras.Variable([1.0, 2.0])
    >>> Adam(0.1).apply([ops.convert_to_tensor([3.0, -4.0])], [weight])
    >>> [round(float(w), 4) for w in weight.numpy()]
    [0.9, 2.1]
    """


@keras.saving.register_keras_serializable("keras_transformer")
class AdamW(_OnePass, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW`, several times as fast on TensorFlow: one operation updates each weight.

    AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019, "Decoupled Weight Decay Regularization"):
    each step also subtracts `learning_rate * weight_decay * w` from a weight `w`. The arguments, the state and the
    results are Keras's. On other backends, and with `amsgrad=True`, the update is Keras's too.

    Args:
        learning_rate: A float, a schedule such as `WarmupSchedule`, or a function without arguments.
        weight_decay: A float, the rate of the decay.
        **kwargs: The other arguments of `keras.optimizers.AdamW`, such as `beta_1`, `beta_2` and `global_clipnorm`.

    >>> weight = keras.Variable([1.0, 2.0])
    >>> AdamW(0.1, weight_decay=0.5).apply([ops.convert_to_tensor([3.0, -4.0])], [weight])
    >>> [round(float(w), 4) for w in weight.numpy()]
    [0.85, 2.0]
    """


@keras.saving.register_keras_serializable("keras_transformer")
class Muon(_SharedScalars, keras.optimizers.Muon):
    """`keras.optimizers.Muon` for Transformers: the kernels of attention are matrices too.

    Muon (Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks") makes the momentum of each
    matrix nearly orthogonal before it is added, so that every direction is learnt at the same speed:

        m = momentum * m + g
        w = w - learning_rate * rms_rate * sqrt(max(rows, columns)) * orthogonal(g + momentum * m)

    The scale is that of Liu et al., 2025, "Muon is Scalable for LLM Training", section 2.2. It makes learning rates
    that suit Adam suit Muon. Keras's Muon takes matrices alone. Attention's kernels have three dimensions, one for the
    heads. Here each is the matrix between the features and all heads together. Every other weight is updated by Adam,
    with the learning rate times `adam_lr_ratio`: embeddings, biases, norms, the kernels of experts and the adapters of
    LoRA. An output layer of its own suits Adam better, too: `exclude_layers=["name_of_the_layer"]`.

    Args:
        learning_rate: A float, a schedule such as `WarmupSchedule`, or a function without arguments.
        ns_dtype: The dtype in which momentum is made orthogonal, such as `"bfloat16"`, faster where the processor
            computes in it; None for that of the weight.
        **kwargs: The other arguments of `keras.optimizers.Muon`, such as `adam_lr_ratio`, `ns_steps`, `weight_decay` of
            the matrices and `adam_weight_decay` of the other weights, both 0.004 if they are left out.

    >>> weight = keras.Variable([[1.0, 1.0], [1.0, 1.0]], name="kernel")
    >>> Muon(0.1, weight_decay=None).apply([ops.convert_to_tensor([[3.0, 0.0], [0.0, -4.0]])], [weight])
    >>> bool(weight[0, 0] < weight[0, 1] < weight[1, 1])  # only the directions of the gradient
    True
    """

    def __init__(self, learning_rate=0.001, *, ns_dtype=None, **kwargs):
        super().__init__(learning_rate, **kwargs)
        # Each step is a part of the traced graph.
        check_count(1, MOST_STEPS, ns_steps=self.ns_steps)
        self.ns_dtype = ns_dtype

    def _should_use_adamw(self, variable):
        matrix = _matrix_of(variable)
        # Keras looks at the dimensions, and at the path: `exclude_layers`, `exclude_embeddings`.
        return matrix is None or super()._should_use_adamw(SimpleNamespace(shape=matrix, path=variable.path))

    def build(self, var_list):
        """Makes the momentum of each weight, and notes which weights are matrices."""
        super().build(var_list)
        # An update receives TensorFlow's variable, which has no path and may be one replica's; Keras finds its index.
        self._matrices = [_matrix_of(weight) for weight in var_list]

    def _muon_update_step(self, gradient, variable, lr, m):
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(m, gradient - m * (1 - self.momentum))
        matrix = gradient + self.momentum * m if self.nesterov else m
        rows, columns = self._matrices[weight_index(self, variable)]
        matrix = ops.reshape(matrix, (rows, columns))
        # Of norm 1, so that no number is out of the dtype's range.
        if self.ns_dtype is not None:
            matrix = ops.cast(matrix / (ops.norm(matrix) + 1e-7), self.ns_dtype)
        matrix = ops.cast(self.zeropower_via_newtonschulz5(matrix, self.ns_steps), variable.dtype)
        # Keras's `lr_adjust` computes in float32 alone.
        scale = 1.0 if self.rms_rate is None else self.rms_rate * max(rows, columns) ** 0.5
        step = ops.cast(lr, variable.dtype) * scale * matrix
        self.assign_sub(variable, ops.reshape(step, variable.shape))

    def _adamw_update_step(self, gradient, variable, learning_rate, m, v):
        betas = (self.adam_beta_1, self.adam_beta_2)
        if not _updates(self, variable, (m, v), gradient, learning_rate, betas):
            super()._adamw_update_step(gradient, variable, learning_rate, m, v)

    def get_config(self):
        return {**super().get_config(), "ns_dtype": self.ns_dtype}


def _matrix_of(variable):
    """Returns the rows and columns of a kernel as a matrix, features by heads or heads by features; None for others."""
    *_, layer, name = ["", *variable.path.split("/")]
    shape = tuple(variable.shape)
    if name != "kernel" or len(shape) not in (2, 3):
        return None
    if len(shape) == 3 and layer in ("query", "key", "value"):
        return shape[0], shape[1] * shape[2]
    if len(shape) == 3 and layer == "attention_output":
        return shape[0] * shape[1], shape[2]
    return shape if len(shape) == 2 else None
