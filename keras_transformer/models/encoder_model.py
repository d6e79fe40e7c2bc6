"""The encoder alone: states of all tokens, and heads that read them."""

import keras

from keras_transformer.checks import check, check_choice, check_ids
from keras_transformer.execution import ops
from keras_transformer.execution.int8 import set_quantization_config, two_parts
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.keras_internals import set_implicit_mask, sublayers
from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.attention import pack, unpack
from keras_transformer.layers.base import takes_argument
from keras_transformer.layers.pooling import POOLINGS, pooled_states
from keras_transformer.models.base import BaseModel, with_table
from keras_transformer.models.heads import PROJECTED, Head, ProjectedPooler

INPUTS = ("token_ids", "segment_ids")


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderModel(BaseModel):
    """A stack of encoder layers over token, position and segment embeddings, then a head.

    Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3. The parts are handed in and
    used as they are. BERT's encoder is `Encoder(12, 12, 3072, activation="gelu", layer_norm_epsilon=1e-12,
    kernel_initializer=TruncatedNormal(stddev=0.02))`.

    Args:
        embeddings: `Embeddings`. A head that scores ids needs their `output_bias=True`.
        encoder: An `Encoder`.
        pooler: A layer that makes the vector of a text, such as `Pooler()` or `layers.Pooling("max")`, or None. An
            argument `padding_mask` of its `call` gets the mask of real tokens, bool `(batch, length)`.
        head: A `Head`, or None for the states themselves.
        pad_id: The id that fills rows up; no token attends to it.
        cls_id: The id that starts a text; None where it is not known.
        sep_id: The id that ends a text; None where it is not known.
        num_separators: How many `sep_id` stand between the texts of a pair; 2 in RoBERTa.
        starts_with_cls: Whether a text begins with `cls_id`; it ends with `sep_id` in any case.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `token_ids`, int `(batch, length)`, padded with `pad_id`; `segment_ids`, of the same shape, all
            0 when left out. Or `token_ids` alone. With several texts a row both are `(batch, choices, length)`.
        training: Whether to drop.
        return_attention_scores: Whether to return each layer's attention scores too,
            `(batch, num_heads, length, length)`.

    Returns:
        The output of the head, such as logits; without a head the states `(batch, length, d_model)`; `choices` comes
        after `batch` where there are any. Then the scores, where asked for. States have Keras's implicit mask of the
        padding, which `layers.Pooling` reads.

    Raises:
        ValueError: If an id is not in the vocabulary, a part has another class, such as a `Decoder`, or the head scores
            ids and the embeddings have no `output_bias`.

    >>> from keras_transformer.layers import Embeddings
    >>> model = EncoderModel(Embeddings(11, 4), Encoder(1, num_heads=2, d_ff=8))
    >>> model(np.array([[5, 7, 0]])).shape
    TensorShape([1, 3, 4])
    """

    decided_by = (
        *("embeddings", "encoder", "pooler", "head"),
        *("pad_id", "cls_id", "sep_id", "num_separators", "starts_with_cls"),
    )

    def __init__(
        self,
        embeddings,
        encoder,
        *,
        pooler=None,
        head=None,
        pad_id=0,
        cls_id=2,
        sep_id=3,
        num_separators=1,
        starts_with_cls=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # Token ids keep their dtype; the layers cast what they compute with.
        self.autocast = False
        self.embeddings = self.built_embeddings(embeddings, "embeddings", pad_id)
        self.vocab_size, self.d_model = embeddings.input_dim, embeddings.output_dim
        marks = {"cls_id": cls_id, "sep_id": sep_id}
        check_ids(self.vocab_size, pad_id=pad_id, **{name: i for name, i in marks.items() if i is not None})
        self.pad_id = pad_id
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.num_separators = num_separators
        self.starts_with_cls = starts_with_cls
        shape = (None, None, self.d_model)
        self.pooler, pooled_shape = self.built_pooler(pooler, shape)
        more = () if pooled_shape is None else (pooled_shape,)
        self.head = self.built_part(head, "head", shape, Head, *more)
        rule = "`head` scores ids, and each id needs a bias: make the embeddings with `output_bias=True`."
        check(head is None or not head.scores_ids or embeddings.tokens.output_bias, rule, head=head)
        self.encoder = self.built_encoder(encoder, shape)
        self.built = True

    def int8_config(self):
        """Returns a configuration with two int8 parts for a model without a head, else None.

        The vectors of such a model are compared, and with two parts the nearest vector seldom changes.
        """
        return two_parts() if self.head is None else None

    def padding_mask(self, inputs):
        """Returns which tokens of the inputs of a call are real, bool `(rows, length)`."""
        return ops.not_equal(_read(inputs)[0], self.pad_id)

    def encode(self, inputs, training=None, return_attention_scores=False, vectors=None):
        """Computes the states of all tokens, before the head.

        Args:
            inputs: The inputs of a call.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.
            vectors: `(rows, length, embedding_dim or d_model)`, to take the place of the tokens' vectors; None for
                these.

        Returns:
            `(rows, length, d_model)`, one text a row; then the scores, where asked for.
        """
        token_ids, segment_ids, _ = _read(inputs)
        return self.run_encoder(
            self.embeddings(token_ids, segment_ids=segment_ids, vectors=vectors, training=training),
            ops.not_equal(token_ids, self.pad_id),
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def read(self, states, training=None, padding_mask=None):
        """Computes the head's output from the states that `encode` returns; without a head it is the states.

        Args:
            states: `(rows, length, d_model)`.
            training: Whether to drop.
            padding_mask: bool `(rows, length)`, True where a token is real; all are when None. The pooler and the head
                may read it.
        """
        if self.head is None:
            return states
        pooled = None if self.pooler is None else self._pooled(states, padding_mask)
        y = self.head(states, pooled, training=training, **_mask_for(self.head, padding_mask))
        return self.embeddings.tokens(y, reverse=True) if self.head.scores_ids else y

    def call(self, inputs, training=None, return_attention_scores=False):
        results = self.encode(inputs, training, return_attention_scores)
        y, scores, _ = unpack(results, return_attention_scores)
        real = self.padding_mask(inputs)
        y = self.read(y, training, real)
        *_, axes = _read(inputs)
        if len(axes) > 1:
            y, real = (ops.reshape(x, (*axes, *ops.shape(x)[1:])) for x in (y, real))
        if self.head is None:
            set_implicit_mask(y, real)
        return pack(y, scores)

    def input_signature(self):
        names = INPUTS if self.embeddings.segments is not None else INPUTS[:1]
        return [{name: keras.KerasTensor((None, None), "int32") for name in names}]

    def pooled(self, inputs, training=False):
        """Returns the pooler's vector of each text, `(batch, d_model)`.

        Args:
            inputs: The inputs of a call.
            training: Whether to drop.

        Raises:
            ValueError: If there is no pooler.
        """
        rule = "`pooled` needs a pooler, such as `pooler=Pooler()`."
        check(self.pooler is not None, rule, pooler=None)
        return self._pooled(self.encode(inputs, training=training), self.padding_mask(inputs))

    def _pooled(self, states, padding_mask):
        return self.pooler(states, **_mask_for(self.pooler, padding_mask))

    def embed(self, inputs, pooling="mean", training=False):
        """Makes a vector for each text, to compare texts by or to search.

        Args:
            inputs: The inputs of a call.
            pooling: "mean" of the states of all tokens but padding (Reimers and Gurevych, 2019, "Sentence-BERT",
                section 3), "max" over them, "first" for the state of `[CLS]`, "last" for that of the last token that
                is not padding, or "projected" for the output of the model's `ProjectedPooler`.
            training: Whether to drop.

        Returns:
            float32 `(batch, vector_width(pooling))`; 0 for a text of padding alone, but for "projected".

        Raises:
            ValueError: If `pooling` is none of these, or the model has no `ProjectedPooler`.
        """
        self.vector_width(pooling)
        if pooling == PROJECTED:
            vectors = self.pooled(inputs, training)
            return ops.cast(vectors, at_least_float32(vectors.dtype))
        states = self.encode(inputs, training=training)
        states = ops.cast(states, at_least_float32(states.dtype))
        real = self.padding_mask(inputs)
        vectors = pooled_states(states, pooling, real)
        seen = real[:, :1] if pooling == "first" else ops.any(real, axis=1, keepdims=True)
        return vectors * ops.cast(seen, vectors.dtype)

    def vector_width(self, pooling):
        """Returns the width of the vectors of `embed`, an int.

        Args:
            pooling: As in `embed`.

        Raises:
            ValueError: If there is no such pooling, or the model has no `ProjectedPooler`.
        """
        check_choice((*POOLINGS, PROJECTED), pooling=pooling)
        if pooling != PROJECTED:
            return self.d_model
        rule = '`pooling="projected"` needs a model whose pooler is a `ProjectedPooler`.'
        check(isinstance(self.pooler, ProjectedPooler), rule, pooler=self.pooler)
        return self.pooler.units[-1]

    def with_head(self, head, pooler=None):
        """Returns a model with copies of these weights under another head.

        Args:
            head: A `Head`, which is used as it is.
            pooler: A pooler, which is used as it is; None for a copy of this model's, or for none where the head reads
                no pooler.
        """
        config = self.get_config()
        config = {
            name: value for name, value in config.items() if name not in ("frozen", "quantization_configs")
        }
        config["head"] = head
        copies_pooler = pooler is None and (head is None or head.reads_pooled)
        config["pooler"] = config["pooler"] if copies_pooler else pooler
        scores_ids = head is not None and head.scores_ids
        config["embeddings"] = with_table(config["embeddings"], output_bias=scores_ids)
        model = type(self).from_config(config)
        for name in ("embeddings", "encoder", *(["pooler"] if copies_pooler else [])):
            part, copy = getattr(self, name), getattr(model, name)
            if part is not None:
                _copy(part, copy)
        return model


def _mask_for(layer, padding_mask):
    """Returns the mask as the named argument of a layer's `call`; nothing where it takes none."""
    return {"padding_mask": padding_mask} if takes_argument(layer, "padding_mask") else {}


def _copy(part, copy):
    """Gives a copy of a layer the weights of the original, but for an output bias, and freezes what is frozen there."""
    copies = [part, *sublayers(part)], [copy, *sublayers(copy)]
    for layer, other in zip(*copies, strict=True):
        rule = "`with_head` cannot copy LoRA's weights. Save the model, or begin with a model without LoRA."
        check(not getattr(layer, "lora_enabled", False), rule, layer_with_lora=layer.path)
        other.trainable = layer.trainable
        if getattr(layer, "quantization_config", None) is not None:
            set_quantization_config(other, layer.quantization_config)
    for weight, other in zip(_without_output_bias(part), _without_output_bias(copy), strict=True):
        other.assign(weight)


def _without_output_bias(part):
    """Returns the weights of a layer but for the bias that each id has in an output projection."""
    biases = [id(layer.bias) for layer in sublayers(part) if isinstance(layer, TokenEmbedding)]
    return [weight for weight in part.weights if id(weight) not in biases]


def _read(inputs):
    """Returns token ids and segment ids, int32 `(rows, length)`, or None for these; and the axes that `rows` were."""
    inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
    named = "token_ids" in inputs and inputs.keys() <= set(INPUTS)
    check(named, f"`inputs` must be a dict of {list(INPUTS)}, or token ids.", inputs=list(inputs))
    token_ids, segment_ids = (inputs.get(name) for name in INPUTS)
    token_ids = ops.cast(token_ids, "int32")
    *axes, length = ops.shape(token_ids)
    if segment_ids is not None:
        segment_ids = ops.cast(segment_ids, "int32")
        shapes = tuple(segment_ids.shape), tuple(token_ids.shape)
        fits = all(None in sizes or sizes[0] == sizes[1] for sizes in zip(*shapes, strict=False))
        rule = f"`segment_ids` must have the shape of `token_ids`, {shapes[1]}."
        check(fits and len(shapes[0]) == len(shapes[1]), rule, shape=shapes[0])
    if len(axes) > 1:
        token_ids = ops.reshape(token_ids, (-1, length))
        segment_ids = None if segment_ids is None else ops.reshape(segment_ids, (-1, length))
    return token_ids, segment_ids, axes
