"""T5: an encoder-decoder whose positions are biases of the attention."""

import keras

from keras_transformer.layers import (
    Decoder,
    Dropout,
    Encoder,
    FeedForward,
    MultiHeadAttention,
    RelativePositionBias,
    Residual,
    RMSNormalization,
    TokenEmbedding,
)
from keras_transformer.layers.parts import clone, described
from keras_transformer.models.encoder_decoder import EncoderDecoder


@keras.saving.register_keras_serializable("keras_transformer")
class T5(EncoderDecoder):
    """The model of Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", section 2.1: ids in, logits out.

    An encoder and a decoder with root-mean-square norms before the sublayers and without biases. The scores of
    self-attention are not scaled, and get a bias for their distance: one table for the layers of the encoder, one for
    those of the decoder. A target begins with padding. Version 1.1 is the same model of other parts,

        T5(32128, feed_forward=GatedFeedForward(1024, "gelu_tanh"), tie_embeddings=False)

    Args:
        vocab_size: Number of ids, the source's and the target's.
        num_layers: Number of encoder layers.
        d_model: Width of the model.
        num_heads: Number of attention heads.
        key_dim: Size of a head; `num_heads` times it need not be `d_model`.
        d_ff: Width of the feed-forward networks' inner layers.
        num_decoder_layers: Number of decoder layers; `num_layers` when None.
        dropout: Share dropped, in training, of each sublayer's output, of the embeddings, of the attention weights and
            of the feed-forward networks' inner activations.
        feed_forward: A template instead of what `d_ff` and `dropout` describe, `FeedForward(d_ff, use_bias=False)`.
        num_buckets: Number of biases of a head.
        max_distance: From here on, all distances share a bias.
        layer_norm_epsilon: Added to the mean of the squares in the norms.
        tie_embeddings: Whether the output projection is the embedding's.
        output_scale: What the decoder's output is multiplied by before it; `1 / sqrt(d_model)` when None and
            `tie_embeddings`, else 1.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: Keras's own `name`, `dtype`, `trainable`.

    Call arguments: as `EncoderDecoder`.

    Returns:
        Logits, float32 `(batch, target_len, vocab_size)`.

    Raises:
        ValueError: If a size is not positive, or an id is not in the vocabulary.

    >>> model = T5(11, num_layers=1, d_model=4, num_heads=2, key_dim=3, d_ff=8)
    >>> model({"source": np.ones((2, 5), "int32"), "target": np.ones((2, 3), "int32")}).shape
    TensorShape([2, 3, 11])
    """

    def __init__(
        self,
        vocab_size,
        *,
        num_layers=6,
        d_model=512,
        num_heads=8,
        key_dim=64,
        d_ff=2048,
        num_decoder_layers=None,
        dropout=0.1,
        feed_forward=None,
        num_buckets=32,
        max_distance=128,
        layer_norm_epsilon=1e-6,
        tie_embeddings=True,
        output_scale=None,
        pad_id=0,
        bos_id=0,
        eos_id=1,
        **kwargs,
    ):
        super().__init__(
            vocab_size, vocab_size, d_model, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id, **kwargs
        )
        self.dropout = dropout
        self.tie_embeddings = tie_embeddings
        if output_scale is None:
            output_scale = d_model**-0.5 if tie_embeddings else 1.0

        policy = self.dtype_policy
        embedding = TokenEmbedding(
            vocab_size,
            d_model,
            scale=1.0,
            output_scale=output_scale,
            # As large as what the norms give: it is scaled before no sum, and its logits by `output_scale` alone.
            embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
            dtype=policy,
            name="token_embedding",
        )
        self.source_embedding = self.target_embedding = self.output_embedding = embedding
        if not tie_embeddings:
            self.output_embedding = clone(embedding, embeddings_initializer=None, name="output_embedding")
        self.positions = None
        self.drop = Dropout(dropout, dtype=policy, name="drop")

        def stack(stack_class, layers, name):
            bias = RelativePositionBias(
                num_heads, num_buckets, max_distance, bidirectional=stack_class is Encoder, dtype=policy
            )
            attention = MultiHeadAttention(
                num_heads, key_dim, dropout=dropout, use_bias=False, positions=bias, scale=1.0
            )
            residual = Residual(dropout, normalize_first=True, norm=RMSNormalization(layer_norm_epsilon))
            parts = {"attention": attention, "feed_forward": feed_forward, "residual": residual}
            return stack_class(layers, **parts, dtype=policy, name=name)

        if feed_forward is None:
            feed_forward = FeedForward(d_ff, dropout=dropout, use_bias=False)
        self.encoder = stack(Encoder, num_layers, "encoder")
        self.decoder = stack(Decoder, num_decoder_layers or num_layers, "decoder")
        self.build()

    def build(self, input_shape=None):
        if self.built:
            return
        super().build(input_shape)
        for layer in (*self.encoder.layers, *self.decoder.layers):
            for attention in (layer.self_attention, getattr(layer, "cross_attention", None)):
                if attention is not None:  # its queries start small by what its scores are not scaled by
                    kernel, _ = attention.query_weights
                    kernel.assign(kernel * attention.key_dim**-0.5)

    def get_config(self):
        config = super().get_config()
        config["vocab_size"] = config.pop("source_vocab_size")
        del config["target_vocab_size"]
        layer = self.encoder.layers[0]
        attention, bias = layer.self_attention, layer.self_attention.positions
        return {
            **config,
            "num_layers": self.encoder.num_layers,
            "num_heads": attention.num_heads,
            "key_dim": attention.key_dim,
            "num_decoder_layers": self.decoder.num_layers,
            "dropout": self.dropout,
            "feed_forward": described(layer.feed_forward),
            "num_buckets": bias.num_buckets,
            "max_distance": bias.max_distance,
            "layer_norm_epsilon": layer.self_attention_residual.norm.epsilon,
            "tie_embeddings": self.tie_embeddings,
            "output_scale": self.output_embedding.output_scale,
        }
