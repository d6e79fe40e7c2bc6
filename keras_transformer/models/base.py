"""What all models of the library share."""

import functools
from types import MappingProxyType

import keras

from keras_transformer.checks import check, check_finite_weights, warn
from keras_transformer.execution import native
from keras_transformer.execution.inference import encode_rows, has_int8_weights, predict_graph
from keras_transformer.keras_internals import clip_sums, sublayers
from keras_transformer.layers import Decoder, Embeddings, Encoder, TokenEmbedding
from keras_transformer.layers.base import Configured, check_part, ensure_built
from keras_transformer.models.layouts import layout_map
from keras_transformer.optimizers import unwrapped
from keras_transformer.schemas import check_kept

# The key by which the configuration of `compile` says that the model had low-rank adapters.
ADAPTED = "adapted"
CHECKPOINT_FILES = "checkpoint_files"


class BaseModel(Configured, keras.Model):
    """A `keras.Model` whose weights exist as soon as it is made, and whose configuration holds all that saving needs.

    The configuration is the constructor's arguments, and notes of the sublayers that are frozen or quantized. A
    subclass may add layers before or after `super().__init__()`.

    Attributes:
        checkpoint_files: What the files of a Hugging Face folder say and the model does not know, such as
            `{"generation_config.json": {"max_new_tokens": 40}}`: a dict from a file's path to plain data or a text. It
            is empty for a model that `from_huggingface` did not read. `to_huggingface` writes it again, and saved
            models keep it.
    """

    layers = keras.Model.layers
    checkpoint_files = MappingProxyType({})
    # Formats of `export` that cannot hold the model, and the sentence that refuses them.
    refused_formats = MappingProxyType({})

    # Function: are the int8 weights unchanged since `predict` was traced?
    _unchanged = staticmethod(lambda: True)

    def __new__(cls, *args, **kwargs):
        model = super().__new__(cls, *args, **kwargs)
        by_keras = model.quantize

        # Keras replaces a missing configuration by its own before an overridden method sees it.
        @functools.wraps(by_keras)
        def quantize(mode=None, config=None, **kwargs):
            config = model.int8_config() if mode == "int8" and config is None else config
            by_keras(mode, config, **kwargs)

        vars(model)["quantize"] = quantize
        return model

    def built_part(self, value, name, shape, kind=keras.layers.Layer, *more_shapes):
        """Returns a layer that the constructor was given, built, or None.

        Args:
            value: A layer, or None.
            name: Name of the argument.
            shape: Shape of the layer's input.
            kind: The class that the layer must have.
            *more_shapes: Shapes of its other inputs.

        Raises:
            ValueError: If it is not of class `kind`.
        """
        layer = check_part(value, name, kind)
        if layer is not None:
            ensure_built(layer, shape, *more_shapes)
        return layer

    def built_pooler(self, value, shape):
        """Returns a layer that makes one vector of the states of each row, built, and the shape of the vectors.

        Args:
            value: A layer, or None.
            shape: Shape of the states.

        Returns:
            The layer and its shape, both None for None.
        """
        pooler = self.built_part(value, "pooler", shape)
        if pooler is None:
            return None, None
        pooled = pooler.compute_output_spec(keras.KerasTensor(shape, dtype=self.compute_dtype))
        rule = "`pooler` must make one vector of the states of a row, `(batch, features)`."
        check(len(pooled.shape) == 2, rule, pooler=pooler, output_shape=tuple(pooled.shape))
        return pooler, tuple(pooled.shape)

    def built_encoder(self, value, shape, kind=Encoder):
        """Returns a built encoder. Refuses any other value, such as None or a `Decoder`."""
        check(
            isinstance(value, kind) and not isinstance(value, Decoder),
            f"`encoder` must be of class `{kind.__name__}`. A `Decoder` is not.",
            encoder=value,
        )
        return self.built_part(value, "encoder", shape)

    def built_decoder(self, value, shapes, kind=Decoder):
        """Returns a built decoder. Refuses any other value, and one that sees later tokens: its model writes."""
        check(isinstance(value, kind), f"`decoder` must be of class `{kind.__name__}`.", decoder=value)
        rule = "`decoder` must be causal: a model that writes does not know the tokens to come."
        seeing = [layer for layer in value.layers if not getattr(layer, "use_causal_mask", True)]
        check(not seeing, rule, use_causal_mask=False)
        ensure_built(value, *shapes)
        return value

    def built_embeddings(self, value, name, pad_id):
        """Returns built `Embeddings`. Refuses any other value, and a padding that is not the model's."""
        check(isinstance(value, Embeddings), f"`{name}` must be `Embeddings`.", **{name: value})
        rule = f"`pad_id` of the `{name}` must be that of the model, {pad_id}, or None."
        check(value.tokens.pad_id in (None, pad_id), rule, pad_id=value.tokens.pad_id)
        return self.built_part(value, name, (None, None))

    def built_output(self, output, embeddings, name):
        """Returns the `TokenEmbedding` that scores the ids of a model, built.

        Args:
            output: A `TokenEmbedding`; None for that of the embeddings.
            embeddings: The `Embeddings` of these ids.
            name: Name of their argument.

        Raises:
            ValueError: If the output has another class or size, or `Embeddings` made it.
        """
        rule = (
            "`output` must not be made by `Embeddings`, whose file makes it again: leave it out for their own, or hand "
            "one to both as `Embeddings(tokens=...)` and `output`."
        )
        is_own = output is None or output is embeddings.tokens
        check(is_own or not getattr(output, "is_made", False), rule, output=output)
        output = embeddings.tokens if output is None else output
        check(isinstance(output, TokenEmbedding), "`output` must be a `TokenEmbedding`.", output=output)
        sizes = embeddings.input_dim, embeddings.output_dim
        rule = f"`output` must have the sizes of `{name}`, {sizes[0]} ids and a width of {sizes[1]}."
        check(
            (output.input_dim, output.output_dim) == sizes, rule, output=(output.input_dim, output.output_dim)
        )
        return self.built_part(output, "output", (None, None))

    def run_encoder(self, x, padding_mask=None, training=None, return_attention_scores=False):
        """Calls `self.encoder`.

        Args:
            x: `(batch, length, d_model)`.
            padding_mask: bool `(batch, length)`, True where a token is real; all are when None.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.

        Returns:
            `(batch, length, d_model)`; then the scores, where asked for.
        """
        masks = {} if padding_mask is None else {"padding_mask": padding_mask}
        if training or return_attention_scores:
            options = {"training": training, "return_attention_scores": return_attention_scores}
            return self.encoder(x, **masks, **options)
        return encode_rows(self.encoder, x, masks, training)

    def build(self, input_shape=None):
        """Does nothing but what Keras adds: the constructor built the layers."""

    def build_added_layers(self):
        """Builds the layers that a subclass added, by a symbolic call; `generate` and loading need their weights."""
        keras.Operation.compute_output_spec(self, self.input_signature()[0])

    def input_signature(self):
        """Returns the symbolic inputs of a call: a list of one nest of `keras.KerasTensor`."""
        raise NotImplementedError

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Exports the bare model as Keras does, with the model's own inputs unless you name others.

        The export computes a call. It does not search: `generate` has no form in a file for LiteRT or ONNX.

        Args:
            filepath: Folder or file to write.
            format: One of Keras's formats. "litert" needs a name that ends with `.tflite`, "onnx" the package tf2onnx.
            verbose: Whether to print what was exported.
            input_signature: List of one nest of `keras.InputSpec`; the inputs of a call when None.
            **kwargs: The other arguments of `keras.Model.export`.

        Raises:
            ValueError: If `format` is "litert" or "onnx", and the model is quantized, does not compute in float32, or
                needs operations that the format lacks.
        """
        if format in ("litert", "onnx"):
            self._check_portable(format)
        if input_signature is None:
            input_signature = [_named_specs(*self.input_signature())]
        super().export(filepath, format, verbose, input_signature=input_signature, **kwargs)

    def _check_portable(self, format):
        """Raises `ValueError` if a format that other programs read cannot hold the model."""
        check(
            not has_int8_weights(self),
            f'`format="{format}"` cannot hold weights that Keras quantized. Export the model before `quantize`, and '
            "quantize the file: with `optimizations=[tf.lite.Optimize.DEFAULT]` for LiteRT, with "
            "`onnxruntime.quantization.quantize_dynamic` for ONNX.",
            format=format,
        )
        dtypes = sorted({layer.compute_dtype for layer in (self, *sublayers(self))})
        check(
            dtypes == ["float32"],
            f'`format="{format}"` needs a model that computes in float32. Make one with `dtype="float32"`, and give it '
            "the weights of this one with `set_weights`.",
            compute_dtypes=dtypes,
        )
        check(format not in self.refused_formats, self.refused_formats.get(format), format=format)

    def get_compile_config(self):
        config = super().get_compile_config()
        adapted = any(getattr(layer, "lora_enabled", False) for layer in sublayers(self))
        return {**config, ADAPTED: True} if config and adapted else config

    def compile_from_config(self, config):
        """Compiles a loaded model as it was saved, unless it was saved with low-rank adapters: then warns."""
        if config.get(ADAPTED):
            warn(
                "The model was saved with low-rank adapters (LoRA). It has them added to its kernels, and is loaded "
                "without its optimizer: call `compile` before `fit`. To resume the training itself, load a file of "
                "`keras_transformer.training.Checkpoint` with `keras_transformer.training.load_checkpoint`."
            )
            return
        self.compile_as_saved(config)

    def compile_as_saved(self, config):
        """Compiles a loaded model of a configuration of `compile`."""
        super().compile_from_config(config)

    def make_train_function(self, force=False):
        """Makes Keras's training function, after the optimizer's variables: else the step would be traced twice."""
        # Keras calls a loaded model compiled, whether or not it was.
        check(
            hasattr(self, "optimizer"), "The model must be compiled: call `compile` before `fit`.", model=self
        )
        if self.optimizer is not None:
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
            if native.has_replicas(self):
                clip_sums(unwrapped(self.optimizer), native.sum_of_replicas)
        return super().make_train_function(force)

    def make_predict_function(self, force=False):
        """Traces `predict` again if int8 weights changed: the traced function keeps a packed copy."""
        force = force or self.predict_function is None or not self._unchanged()
        if force:
            self._unchanged = native.unchanged(self.variables)
        return super().make_predict_function(force)

    def predict_step(self, *args):
        with predict_graph(self):
            return super().predict_step(*args)

    def int8_config(self):
        """Returns the configuration of `quantize("int8")` where none is given; None for Keras's default."""
        return None

    def load_weights(self, filepath, *args, **kwargs):
        """Loads weights as Keras does, and makes `fit`, `evaluate` and `predict` trace again: a traced function keeps
        the product that suited the int8 weights of its time.

        Raises:
            ValueError: If the file does not fit, or a weight of the model is then NaN or infinite.
        """
        super().load_weights(filepath, *args, **kwargs)
        check_finite_weights(self, filepath)
        self.train_function = self.test_function = self.predict_function = None

    def layout_map(self, mesh, axis="model"):
        """Returns where each weight lives under `keras.distribution.ModelParallel` (JAX): docs/scaling.md.

        Heads, `d_ff` and vocabularies are split over one axis of the mesh, where they divide by its size. All other
        weights are whole on every device.

        Args:
            mesh: A `keras.distribution.DeviceMesh`.
            axis: Name of the axis of the mesh to split over.

        Returns:
            A `keras.distribution.LayoutMap` with a layout for every weight.

        Raises:
            ValueError: If the mesh has no such axis.
        """
        return layout_map(self, mesh, axis)

    def get_config(self):
        files = {CHECKPOINT_FILES: self.checkpoint_files} if self.checkpoint_files else {}
        return {**super().get_config(), **files}

    def keep(self, files):
        """Sets `checkpoint_files`.

        Args:
            files: A dict from a file's path to plain data or a text.

        Raises:
            ValueError: If it holds other files, or a value that such a file may not have.
        """
        check(isinstance(files, dict), "`checkpoint_files` must be a dict.", checkpoint_files=files)
        for name, content in files.items():
            check_kept(name, content)
        # As an attribute that is set, Keras would track the dicts.
        vars(self)[CHECKPOINT_FILES] = files

    @classmethod
    def from_config(cls, config):
        model = super().from_config({name: config[name] for name in config if name != CHECKPOINT_FILES})
        if CHECKPOINT_FILES in config:
            model.keep(config[CHECKPOINT_FILES])
        return model

    @classmethod
    def of_arguments(cls, **arguments):
        model = super().of_arguments(**arguments)
        if not all(layer.built for layer in model.layers):
            model.build_added_layers()
        return model


def _named_specs(inputs):
    """Returns the `keras.InputSpec` of a nest of inputs, with the names that the inputs of an export have."""

    def spec(x, name=None):
        return keras.layers.InputSpec(dtype=x.dtype, shape=x.shape, name=name)

    if isinstance(inputs, dict):
        return {name: spec(x, name) for name, x in inputs.items()}
    return (
        spec(inputs, "inputs")
        if keras.utils.is_keras_tensor(inputs)
        else keras.tree.map_structure(spec, inputs)
    )


def signature_of(layer):
    """Returns the symbolic inputs of a built layer: a nest of `keras.KerasTensor` of any batch.

    Raises:
        ValueError: If the layer was not built.
    """
    if getattr(layer, "inputs", None):
        # A functional or a `Sequential` model.
        inputs = layer.inputs[0] if isinstance(layer, keras.Sequential) else layer.input
        return keras.tree.map_structure(lambda x: keras.KerasTensor((None, *x.shape[1:]), x.dtype), inputs)
    config = layer.get_build_config() or {}
    shapes = config.get("input_shape") or next(iter((config.get("shapes_dict") or {}).values()), None)
    check(layer.built and shapes is not None, "`source` must be built: call it once.", source=layer)
    if isinstance(shapes, dict):
        return {name: keras.KerasTensor((None, *shape[1:])) for name, shape in shapes.items()}
    return keras.KerasTensor((None, *shapes[1:]))


def with_table(part, **options):
    """Returns the description of `Embeddings`, or of a `TokenEmbedding`, whose table of tokens has other options.

    Args:
        part: A dict, as `keras.saving.serialize_keras_object` gives it.
        **options: Arguments of the `Embeddings`.
    """
    config = part["config"]
    if config.get("tokens"):
        options = {"tokens": with_table(config["tokens"], **options)}
    elif "vocab_size" in config and "input_dim" in options:
        options["vocab_size"] = options.pop("input_dim")
    return {**part, "config": {**config, **options}}
