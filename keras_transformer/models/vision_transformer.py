"""The Vision Transformer: images in, classes out."""

import math

import keras

from keras_transformer.checks import check, height_and_width
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.layers import ClassToken, Dropout, LearnedPositions, PatchEmbedding, Pooling
from keras_transformer.layers.attention import pack, unpack
from keras_transformer.layers.base import ensure_built
from keras_transformer.layers.grids import resized_grid
from keras_transformer.models.base import BaseModel


@keras.saving.register_keras_serializable("keras_transformer")
class VisionTransformer(BaseModel):
    """A stack of encoder layers over the patches of an image, and a class token whose last state gives the class.

    Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words", section 3.1. ViT-Base (table 1) has a pre-norm stack with
    one more norm at the end:

        encoder = Encoder(12, 12, 3072, activation="gelu", normalize_first=True)
        VisionTransformer(224, 16, 768, encoder, 1000, dropout=0.1)

    Args:
        image_size: Height and width of an image in pixels, an int or `(height, width)`.
        patch_size: Height and width of a patch in pixels, an int or `(height, width)`; must divide the image's. Or a
            `PatchEmbedding`, which is used as it is, such as one whose patches overlap.
        d_model: Width of the model.
        encoder: An `Encoder`, which is used as it is.
        num_classes: Number of classes; None for a model without a head.
        channels: Channels of an image: 3 for colour, 1 for grey.
        dropout: Share of the embeddings dropped in training.
        pooler: A layer that the class token's last state goes through, such as `keras.layers.Dense(768, "tanh")`: the
            hidden layer that the paper's head has in pretraining. Or a `layers.Pooling`, which reads the last states of
            all patches; then there is a class token for `Pooling("first")` alone. None for none.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        images: `(batch, height, width, channels)`, in the range that the model is trained on.
        training: Whether to drop.
        return_attention_scores: Whether to return each layer's attention scores too,
            `(batch, num_heads, 1 + patches, 1 + patches)`; the class token comes first, where there is one.

    Returns:
        Logits, float32 `(batch, num_classes)`. Without `num_classes` the pooler's output, `(batch, features)`; without
        a pooler too the last states, `(batch, 1 + patches, d_model)`. Then the scores, where asked for.

    Raises:
        ValueError: If a size is not positive, a patch's does not divide the image's, `encoder` is not an `Encoder`, or
            images have another size.

    >>> model = VisionTransformer((6, 4), 2, 4, Encoder(1, 2, 8, normalize_first=True), num_classes=5)
    >>> model(np.ones((3, 6, 4, 3), "float32")).shape
    TensorShape([3, 5])
    """

    decided_by = ("image_size", "patches", "d_model", "encoder", "num_classes", "channels", "pooler")

    def __init__(
        self,
        image_size,
        patch_size,
        d_model,
        encoder,
        num_classes=None,
        *,
        channels=3,
        dropout=0.0,
        pooler=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.image_size = height_and_width(image_size=image_size)
        policy = self.dtype_policy
        self.patches = patch_size
        if not isinstance(patch_size, PatchEmbedding):
            height_and_width(patch_size=patch_size)
            self.patches = PatchEmbedding(patch_size, d_model, dtype=policy, name="patches")
        self.patch_size = self.patches.patch_size
        sizes = zip(self.image_size, self.patch_size, self.patches.strides, strict=True)
        check(
            all(n >= p and (n - p) % s == 0 for n, p, s in sizes),
            "`patch_size` must divide `image_size`; patches that overlap must cover it.",
            image_size=self.image_size,
            patch_size=self.patch_size,
        )
        self.grid = self.patches.cells((None, *self.image_size, channels))
        self.d_model = d_model
        self.num_classes = num_classes
        self.channels = channels
        self.dropout = dropout
        self.pools = isinstance(pooler, Pooling)
        self.class_token = None
        if not self.pools or pooler.pooling == "first":
            self.class_token = ClassToken(dtype=policy, name="class_token")
        self.positions = LearnedPositions(
            (self.class_token is not None) + math.prod(self.grid), dtype=policy, name="positions"
        )
        self.drop = Dropout(dropout, dtype=policy, name="drop")
        shape = (None, self.positions.max_length, d_model)
        self.encoder = self.built_encoder(encoder, shape)
        token_shape = (None, d_model)
        self.pooler, vector = self.built_pooler(pooler, shape if self.pools else token_shape)
        self.head = None
        if num_classes is not None:
            self.head = keras.layers.Dense(num_classes, dtype=policy, name="head")
        if self.class_token is not None:
            self.class_token.build(shape)
        ensure_built(self.patches, (None, *self.image_size, channels))
        ensure_built(self.positions, shape)
        if self.head is not None:
            self.head.build(token_shape if self.pooler is None else vector)
        self.built = True

    def encode(self, images, training=None, return_attention_scores=False):
        """Computes the last states of the class token and the patches.

        Args:
            images: `(batch, height, width, channels)`.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.

        Returns:
            `(batch, 1 + patches, d_model)`; then the scores, where asked for.
        """
        expected = (*self.image_size, self.channels)
        rule = f"`images` must have shape `(batch, {', '.join(map(str, expected))})`."
        check(tuple(images.shape[1:]) == expected, rule, shape=tuple(images.shape))
        x = self.patches(images)
        x = x if self.class_token is None else self.class_token(x)
        x = self.drop(self.positions(x), training=training)
        return self.run_encoder(x, training=training, return_attention_scores=return_attention_scores)

    def call(self, images, training=None, return_attention_scores=False):
        results = self.encode(ops.convert_to_tensor(images), training, return_attention_scores)
        x, scores, _ = unpack(results, return_attention_scores)
        if not self.pools and (self.pooler is not None or self.head is not None):
            x = x[:, 0]
        if self.pooler is not None:
            x = self.pooler(x)
        if self.head is not None:
            x = self.head(x)
            x = ops.cast(x, at_least_float32(x.dtype))
        return pack(x, scores)

    def with_image_size(self, image_size):
        """Returns a model for images of another size with copies of these weights, such as for fine-tuning.

        The positions of the patches are interpolated (Dosovitskiy et al., 2021, section 3.2).

        Args:
            image_size: Height and width of an image in pixels, an int or `(height, width)`.
        """
        model = type(self).from_config({**self.get_config(), "image_size": image_size})
        table = ops.convert_to_tensor(self.positions.embeddings)
        before, grid = table[: -math.prod(self.grid)], table[-math.prod(self.grid) :]
        grid = resized_grid(ops.reshape(grid, (*self.grid, self.d_model)), model.grid)
        for weight, other in zip(self.weights, model.weights, strict=True):
            if weight is not self.positions.embeddings:
                other.assign(weight)
        rows = ops.reshape(grid, (-1, self.d_model))
        model.positions.embeddings.assign(ops.concatenate([before, ops.cast(rows, before.dtype)]))
        return model

    def input_signature(self):
        return [keras.KerasTensor((None, *self.image_size, self.channels), "float32")]
