"""The encoder alone: states of all tokens, and what heads read off them."""

import keras
from keras import ops

from keras_transformer.checks import check_ids, check_positive
from keras_transformer.layers import Dropout, LayerNormalization, SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.parts import clone, described, part
from keras_transformer.layers.positions import check_adds_positions
from keras_transformer.layers.shapes import packed, unpacked
from keras_transformer.models.base import BaseModel, own_encoder
from keras_transformer.models.heads import Head

INPUTS = ("token_ids", "segment_ids")
POOLINGS = ("mean", "first")


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderModel(BaseModel):
    """A stack of encoder layers over token, position and segment embeddings, then a head.

    Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3; its encoder is
    `Encoder(12, 12, 3072, 0.1, "gelu", layer_norm_epsilon=1e-12, kernel_initializer=TruncatedNormal(stddev=0.02))`.

    Args:
        vocab_size: Number of ids.
        d_model: Width of the model.
        encoder: An `Encoder`, the template of its own.
        positions: A layer that adds positions to the embeddings, such as `LearnedPositions(512)`; None where the
            attention has them.
        num_segments: Number of segments; 0 for none.
        norm: A template of the norm of the embeddings' sum; `LayerNormalization(1e-12)` when None.
        dropout: Share dropped, in training, of that norm's output.
        pooler: A template of what makes the vector of a text, such as `Pooler()`, or None.
        head: A template of a `Head`, or None for the states themselves.
        pad_id: The id that fills rows up; no token attends to it.
        cls_id: The id that starts a text, as `sep_id` ends one; None where nobody said it.
        sep_id: Likewise.
        **kwargs: Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `token_ids`, int `(batch, length)`, padded with `pad_id`; `segment_ids`, of the same shape, all
            0 when left out. Or `token_ids` alone. With several texts a row both are `(batch, choices, length)`.
        training: Whether to drop out.
        return_attention_scores: Whether to return each layer's attention weights too,
            `(batch, num_heads, length, length)`.

    Returns:
        What the head gives, such as logits; without a head the states `(batch, length, d_model)`; `choices` comes after
        `batch` where there are any. Then the scores, where asked for.

    Raises:
        ValueError: If a size is not positive, an id is not in the vocabulary, or a part is of another kind, as a
            `Decoder` or positions that belong to the attention.
    """

    def __init__(
        self,
        vocab_size,
        d_model,
        encoder,
        positions=None,
        *,
        num_segments=2,
        norm=None,
        dropout=0.1,
        pooler=None,
        head=None,
        pad_id=0,
        cls_id=2,
        sep_id=3,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.autocast = False  # token ids keep their dtype; the layers cast what they compute with
        check_positive(vocab_size=vocab_size, d_model=d_model)
        marks = {"cls_id": cls_id, "sep_id": sep_id}
        check_ids(vocab_size, pad_id=pad_id, **{name: i for name, i in marks.items() if i is not None})
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.num_segments = num_segments
        self.dropout = dropout
        self.pad_id = pad_id
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.pooler = self._own("pooler", pooler, Head)
        self.head = self._own("head", head, Head)
        tied = self.head is not None and self.head.tied
        table = TokenEmbedding(vocab_size, d_model, scale=1.0, output_bias=tied)
        self.token_embedding = self._own("token_embedding", table)
        check_adds_positions(positions)
        self.positions = self._own("positions", positions)
        self.segments = self._own("segments", SegmentEmbedding(num_segments) if num_segments else None)
        self.norm = self._own("norm", LayerNormalization(1e-12) if norm is None else norm)
        self.drop = self._own("drop", Dropout(dropout))
        self.encoder = own_encoder(encoder, self.dtype_policy)
        self.build()

    def _own(self, name, template, kind=keras.layers.Layer):
        """A layer like a template, of a kind; None for none."""
        template = part(template)
        if template is None:
            return None
        if not isinstance(template, kind):
            raise ValueError(f"`{name}` must be of class `{kind.__name__}`. Received: {name}={template!r}.")
        return clone(template, name=name, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        if self.built:
            return
        self.token_embedding.build()
        for layer in (
            self.positions,
            self.segments,
            self.norm,
            self.drop,
            self.encoder,
            self.pooler,
            self.head,
        ):
            if layer is not None:
                layer.build((None, None, self.d_model))
        self.built = True

    def encode(self, inputs, training=None, return_attention_scores=False):
        """The states of all tokens before the head, `(rows, length, d_model)` with one text a row; called alike."""
        token_ids, segment_ids, _ = _read(inputs)
        x = self.token_embedding(token_ids)
        x = x if self.segments is None else self.segments(x, segment_ids)
        x = x if self.positions is None else self.positions(x)
        return self.encoder(
            self.drop(self.norm(x), training=training),
            padding_mask=ops.not_equal(token_ids, self.pad_id),
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def pooled(self, inputs):
        """The vector of each text that the pooler makes, `(batch, d_model)`; `ValueError` where there is none."""
        if self.pooler is None:
            raise ValueError("`pooled` needs a pooler, such as `pooler=Pooler()`. Received: pooler=None.")
        return self.pooler(self.encode(inputs, training=False))

    def embed(self, inputs, pooling="mean"):
        """A vector for each text, float32 `(batch, d_model)`, to compare texts by or to search; 0 for one of padding.

        Args:
            inputs: As in a call.
            pooling: "mean" of the states of all tokens but padding (Reimers and Gurevych, 2019, "Sentence-BERT",
                section 3), or "first" for that of `[CLS]`; `ValueError` for others.
        """
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {POOLINGS}. Received: pooling={pooling!r}.")
        states = ops.cast(self.encode(inputs, training=False), "float32")
        real = ops.cast(ops.not_equal(_read(inputs)[0], self.pad_id), "float32")[..., None]
        if pooling == "first":
            return states[:, 0] * real[:, 0]
        return ops.divide_no_nan(ops.sum(states * real, axis=1), ops.sum(real, axis=1))

    def call(self, inputs, training=None, return_attention_scores=False):
        results = self.encode(inputs, training, return_attention_scores)
        y, scores, _ = unpacked(results, return_attention_scores, cache=False)
        if self.head is not None:
            pooled = None if self.pooler is None else self.pooler(y)
            y = self.head(y, pooled, training=training)
            y = self.token_embedding.logits(y) if self.head.tied else y
        *_, axes = _read(inputs)
        y = y if len(axes) == 1 else ops.reshape(y, (*axes, *ops.shape(y)[1:]))
        return packed(y, scores=scores)

    def with_head(self, head, pooler=None):
        """The same model with its weights under another head, which is fresh, as is the pooler where there was none."""
        pooler = self.pooler if pooler is None else pooler
        model = type(self).from_config({**self.get_config(), "head": head, "pooler": pooler})
        for name in ("positions", "segments", "norm", "encoder", "pooler"):
            if getattr(self, name) is not None:
                getattr(model, name).set_weights(getattr(self, name).get_weights())
        model.token_embedding.embeddings.assign(self.token_embedding.embeddings)
        return model

    def get_config(self):
        own = ("vocab_size", "d_model", "num_segments", "dropout", "pad_id", "cls_id", "sep_id")
        parts = ("encoder", "positions", "norm", "pooler", "head")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in own},
            **{name: described(getattr(self, name)) for name in parts},
        }


def _read(inputs):
    """Token ids and segment ids, int32 `(rows, length)`, or None for these; and the axes that `rows` were."""
    inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
    if "token_ids" not in inputs or not inputs.keys() <= set(INPUTS):
        raise ValueError(
            f"`inputs` must be a dict of {list(INPUTS)}, or token ids. Received: {list(inputs)}."
        )
    token_ids, segment_ids = (inputs.get(name) for name in INPUTS)
    token_ids = ops.cast(token_ids, "int32")
    *axes, length = ops.shape(token_ids)
    token_ids = token_ids if len(axes) == 1 else ops.reshape(token_ids, (-1, length))
    if segment_ids is not None:
        segment_ids = ops.reshape(ops.cast(segment_ids, "int32"), ops.shape(token_ids))
    return token_ids, segment_ids, axes
