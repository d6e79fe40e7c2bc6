"""The encoder-decoder Transformer."""

import keras

from keras_transformer.layers import Decoder, Dropout, Encoder, PositionalEncoding
from keras_transformer.layers.parts import clone, described
from keras_transformer.layers.positions import check_adds_positions
from keras_transformer.models.encoder_decoder import EncoderDecoder

PRESETS = {
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3},
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1},
    "big": {"num_layers": 6, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
}
# What a template stands for; the defaults are those of "base".
REPLACED = {"attention": "num_heads", "feed_forward": "d_ff"}


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(EncoderDecoder):
    """The Transformer of "Attention Is All You Need" (Vaswani et al., 2017): ids in, logits out.

    The output projection is tied to the target embedding (section 3.4). One forward pass serves training,
    prefill and single steps: `decode` with a cache or without.

    Args:
        source_vocab_size: Number of source ids.
        target_vocab_size: Number of target ids; None for one vocabulary and one embedding for both.
        num_layers: Number of encoder layers.
        d_model: Width of the model.
        num_heads: Number of attention heads; must divide `d_model`.
        d_ff: Width of the feed-forward networks' inner layers.
        num_decoder_layers: Number of decoder layers; `num_layers` when None.
        dropout: Share dropped, in training, of each sublayer's output, where there is no `residual`, and of the
            embeddings.
        share_embeddings: Whether source and target share one embedding; the vocabularies must then be one.
        positions: A template of what adds positions to embeddings; `PositionalEncoding()` when None.
        embedding_scale: What the embeddings are multiplied by; `sqrt(d_model)` when None.
        output_bias: Whether each id has a bias in the output projection.
        pad_id: The id that fills rows up.
        bos_id: The id that starts a target.
        eos_id: The id that ends one.
        **kwargs: What else `EncoderLayer` takes (`activation`, `normalize_first`, `layer_norm_epsilon`,
            `attention_dropout`, `activation_dropout`, `kernel_initializer`, `attention`, `feed_forward`,
            `residual`), and Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: A dict: `source`, int `(batch, source_len)`; `target`, int `(batch, target_len)`, shifted
            right: it starts with `bos_id`. Both are padded on the right with `pad_id`.
        training: Whether to drop out.
        return_attention_scores: Whether to return a dict of attention weights too: `encoder`, `decoder` and
            `cross`, lists with `(batch, num_heads, length, length)` for each layer.

    Returns:
        Logits, float32 `(batch, target_len, target_vocab_size)`.

    Raises:
        ValueError: If a size is not positive, an id is not in the vocabulary, `num_heads` does not divide
            `d_model`, embeddings are shared between vocabularies of different sizes, or `positions` belong to the
            attention.

    >>> model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    >>> model({"source": np.ones((2, 5), "int32"), "target": np.ones((2, 3), "int32")}).shape
    TensorShape([2, 3, 11])
    """

    def __init__(
        self,
        source_vocab_size,
        target_vocab_size=None,
        *,
        num_layers=6,
        num_decoder_layers=None,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        dropout=0.1,
        share_embeddings=False,
        positions=None,
        embedding_scale=None,
        output_bias=False,
        pad_id=0,
        bos_id=2,
        eos_id=3,
        **kwargs,
    ):
        keras_arguments = {k: kwargs.pop(k) for k in ("name", "dtype", "trainable") if k in kwargs}
        share_embeddings = share_embeddings or target_vocab_size is None
        target_vocab_size = source_vocab_size if target_vocab_size is None else target_vocab_size
        super().__init__(
            source_vocab_size,
            target_vocab_size,
            d_model,
            pad_id=pad_id,
            bos_id=bos_id,
            eos_id=eos_id,
            **keras_arguments,
        )
        self.dropout = dropout
        self.embedding_scale = embedding_scale
        self._make_embeddings(share_embeddings, output_bias, scale=embedding_scale)
        policy = self.dtype_policy
        positions = PositionalEncoding() if positions is None else positions
        check_adds_positions(positions)
        self.positions = clone(positions, dtype=policy, name="positions")
        self.drop = Dropout(dropout, dtype=policy, name="drop")
        stack = {"num_heads": num_heads, "d_ff": d_ff, "dropout": dropout, **kwargs}
        for template, argument in REPLACED.items():
            if kwargs.get(template) is not None and stack[argument] == PRESETS["base"][argument]:
                del stack[argument]  # nobody asked for it
        if kwargs.get("residual") is not None:
            del stack["dropout"]  # it is the embeddings'
        self.encoder = Encoder(num_layers, **stack, dtype=policy, name="encoder")
        self.decoder = Decoder(num_decoder_layers or num_layers, **stack, dtype=policy, name="decoder")
        self.build()

    @classmethod
    def from_preset(cls, preset, source_vocab_size, target_vocab_size=None, **kwargs):
        """A model of a known size, with fresh weights.

        Args:
            preset: "tiny" (4+4 layers, d_model 128, 4 heads, d_ff 256, dropout 0.3), "base" or "big" (the
                paper's, table 3).
            source_vocab_size: Number of source ids.
            target_vocab_size: Number of target ids; None for one vocabulary.
            **kwargs: As in the constructor; they override the preset.

        Raises:
            ValueError: If there is no such preset.
        """
        if preset not in PRESETS:
            raise ValueError(f"`preset` must be one of {sorted(PRESETS)}. Received: preset={preset!r}.")
        sizes = dict(PRESETS[preset])
        for template, argument in REPLACED.items():
            if kwargs.get(template) is not None:
                del sizes[argument]
        return cls(source_vocab_size, target_vocab_size, **{**sizes, **kwargs})

    def get_config(self):
        return {
            **self.encoder.get_config(),
            **super().get_config(),
            "num_decoder_layers": self.decoder.num_layers,
            "dropout": self.dropout,
            "share_embeddings": self.share_embeddings,
            "positions": described(self.positions),
            "embedding_scale": self.embedding_scale,
            "output_bias": self.output_bias,
        }
