"""T5: an encoder-decoder whose positions are biases of the attention."""

import keras

from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Embeddings,
    Encoder,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    RelativePositionBias,
    TokenEmbedding,
)
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models.transformer import EncoderDecoder


@keras.saving.register_keras_serializable("keras_transformer")
class T5(EncoderDecoder):
    """The model of Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", section 2.1: ids in, logits out.

    An encoder and a decoder with root-mean-square norms before the sublayers and without biases. The scores of
    self-attention are not scaled, and get a bias for their distance: one table for the layers of the encoder, one for
    those of the decoder; or one for each layer (Chung et al., 2023, "UniMax", which trained umT5). A target begins with
    padding. The forward pass is that of `EncoderDecoder`. Version 1.1 of T5 is

        T5(32128, d_ff=1024, activation="gelu_tanh", gated=True, tie_embeddings=False)

    Args:
        vocab_size: Number of ids, the source's and the target's.
        num_layers: Number of encoder layers.
        d_model: Width of the model.
        num_heads: Number of attention heads.
        key_dim: Size of a head; `num_heads` times it need not be `d_model`.
        d_ff: Width of the feed-forward networks' inner layers.
        num_decoder_layers: Number of decoder layers; `num_layers` when None.
        dropout: Share of each sublayer's output, of the embeddings, of the attention scores and of the feed-forward
            networks' inner activations dropped in training.
        activation: Activation of the feed-forward networks: a name or a function.
        gated: Whether the feed-forward networks are `GatedFeedForward`.
        num_buckets: Number of biases of a head.
        max_distance: All distances from here on share a bias.
        share_biases: Whether the layers of a stack share one table of biases.
        layer_norm_epsilon: Number added to the mean of the squares in the norms.
        tie_embeddings: Whether the output projection is the embedding's.
        output_scale: Factor of the decoder's output before the output projection; when None `1 / sqrt(d_model)` with
            `tie_embeddings`, else 1.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)`; `target`, int `(batch, target_len)`, shifted
            right: it starts with `bos_id`. Both are padded on the right with `pad_id`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too: a dict of `encoder`, `decoder` and
            `cross`, lists with `(batch, num_heads, length, length)` for each layer.

    Returns:
        Logits, float32 `(batch, target_len, vocab_size)`; then the scores, where asked for.

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
        activation="relu",
        gated=False,
        num_buckets=32,
        max_distance=128,
        share_biases=True,
        layer_norm_epsilon=1e-6,
        tie_embeddings=True,
        output_scale=None,
        pad_id=0,
        bos_id=0,
        eos_id=1,
        **kwargs,
    ):
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        self.vocab_size = vocab_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.d_ff = d_ff
        self.num_decoder_layers = num_decoder_layers
        self.activation = get_activation(activation)
        self.gated = gated
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.share_biases = share_biases
        self.layer_norm_epsilon = layer_norm_epsilon
        self.tie_embeddings = tie_embeddings
        default_scale = d_model**-0.5 if tie_embeddings else 1.0
        self.output_scale = default_scale if output_scale is None else output_scale
        policy = keras.dtype_policies.get(kwargs.get("dtype"))

        def attention(name, positions=None):
            # Scores are not scaled, so queries start small.
            return MultiHeadAttention(
                num_heads, key_dim, dropout=dropout, use_bias=False, positions=positions, scale=1.0,
                dtype=policy, name=name,
            )  # fmt: skip

        def stack(stack_class, layer_class, count, name):
            biases = [
                RelativePositionBias(
                    num_heads, num_buckets, max_distance, bidirectional=stack_class is Encoder, dtype=policy
                )
                for _ in range(1 if share_biases else count)
            ]
            feed_forward_class = GatedFeedForward if gated else FeedForward
            layers = []
            for i in range(count):
                parts = {
                    "attention": attention("self_attention", biases[0 if share_biases else i]),
                    "feed_forward": feed_forward_class(
                        d_ff, activation, dropout, use_bias=False, dtype=policy, name="feed_forward"
                    ),
                }
                if layer_class is DecoderLayer:
                    parts["cross_attention"] = attention("cross_attention")
                layer = layer_class(
                    **parts,
                    dropout=dropout,
                    normalize_first=True,
                    norm="rms",
                    layer_norm_epsilon=layer_norm_epsilon,
                    dtype=policy,
                    name=f"layer_{i}",
                )
                layers.append(layer)
            return stack_class(layers, dtype=policy, name=name)

        # Its vectors are as large as the outputs of the norms: no positions are added, and nothing scales them.
        table = {"output_scale": self.output_scale, "dtype": policy}
        embeddings = Embeddings(
            vocab_size,
            d_model,
            dropout=dropout,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
            **table,
            name="embeddings",
        )
        output = (
            None if tie_embeddings else TokenEmbedding(vocab_size, d_model, **table, name="output_embedding")
        )
        super().__init__(
            embeddings,
            stack(Encoder, EncoderLayer, num_layers, "encoder"),
            embeddings,
            stack(Decoder, DecoderLayer, num_decoder_layers, "decoder"),
            output=output,
            pad_id=pad_id,
            bos_id=bos_id,
            eos_id=eos_id,
            **kwargs,
        )
        for layer in (*self.encoder.layers, *self.decoder.layers):
            for own in (layer.self_attention, getattr(layer, "cross_attention", None)):
                if own is not None and own.query_dense.quantization_mode is None:
                    own.query_dense.kernel.assign(own.query_dense.kernel * key_dim**-0.5)
