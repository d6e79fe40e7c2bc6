"""What the families of encoder-decoders share: BART and its relatives differ in norms, positions and a few keys."""

from dataclasses import dataclass, field

import numpy as np
from keras import ops

from keras_transformer.huggingface.configs import ID_PLACES, check_config, read_rows, token_ids
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.known_keys import SEQ2SEQ
from keras_transformer.huggingface.tensors import ComputedTable, LayerNames, layer_tensors, matrix, norm
from keras_transformer.layers import (
    Decoder,
    Embeddings,
    Encoder,
    LayerNormalization,
    LearnedPositions,
    PositionalEncoding,
    TokenEmbedding,
    sinusoidal_positions,
)
from keras_transformer.models import EncoderDecoder

BOS_KEY = "decoder_start_token_id"
EPSILON = 1e-5
# Where fairseq's tables and sinusoids begin.
OFFSET = 2
STACKS = ("encoder", "decoder")
LAYER = LayerNames(
    tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
    ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    ("fc1",),
    "fc2",
    tuple(f"encoder_attn.{name}_proj" for name in ("q", "k", "v", "out")),
)
ENCODER_LAYER = LAYER._replace(norms=("self_attn_layer_norm", "final_layer_norm"))
ROWS = {
    "vocab_size": ("vocab_size", 50265),
    "d_model": ("d_model", 1024),
    "max_length": ("max_position_embeddings", 1024),
    "encoder_num_layers": ("encoder_layers", 12),
    "encoder_num_heads": ("encoder_attention_heads", 16),
    "encoder_d_ff": ("encoder_ffn_dim", 4096),
    "decoder_num_layers": ("decoder_layers", 12),
    "decoder_num_heads": ("decoder_attention_heads", 16),
    "decoder_d_ff": ("decoder_ffn_dim", 4096),
    "activation": ("activation_function", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("activation_dropout", 0.0),
    "is_scaled": ("scale_embedding", False),
    "is_tied": ("tie_word_embeddings", True),
    "pad_id": ("pad_token_id", 1),
    "bos_id": (BOS_KEY, 2),
    "eos_id": ("eos_token_id", 2),
}
PLACES = {
    "vocab_size": "source_vocab_size",
    "max_length": "source.positions.max_length",
    "dropout": "source.dropout",
    **{f"{stack}_num_layers": f"{stack}.num_layers" for stack in STACKS},
    **{f"{stack}_num_heads": f"{stack}.layers.0.self_attention.num_heads" for stack in STACKS},
    **{f"{stack}_d_ff": f"{stack}.layers.0.feed_forward.d_ff" for stack in STACKS},
    "activation": "encoder.layers.0.feed_forward.activation",
    "attention_dropout": "encoder.layers.0.self_attention.dropout",
    "activation_dropout": "encoder.layers.0.feed_forward.dropout",
    "is_scaled": lambda model: model.target.tokens.scale != 1.0,
    "is_tied": lambda model: True,
    **ID_PLACES,
}


@dataclass(frozen=True)
class Seq2SeqFamily(Family):
    """A family of encoder-decoders: the options in which it differs from BART.

    Attributes:
        normalize_first: Whether the layers are pre-norm.
        output_bias: Whether each id has a bias in the output projection.
        positions: Arguments of the `PositionalEncoding`; None for `LearnedPositions` and a norm.
        stored_table: Whether checkpoints hold the table of sinusoidal positions.
    """

    model_classes: tuple = (EncoderDecoder,)
    prefix: str = "model."
    rows: dict = field(default_factory=lambda: ROWS)
    places: dict = field(default_factory=lambda: PLACES)
    normalize_first: bool = False
    output_bias: bool = True
    positions: dict | None = None
    stored_table: bool = False
    more_keys: tuple = SEQ2SEQ

    @property
    def begins_after_padding(self):
        """Whether the first position is `pad_token_id` + 1, in sinusoids that begin at `OFFSET`."""
        return self.positions is not None and "offset" in self.positions

    def arguments_of(self, config):
        """Returns the arguments that a config.json describes, a dict."""
        return read_rows(config, self.rows)

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        arguments, dtype = self.arguments_of(config), kwargs.get("dtype")
        self.check_keys(config, arguments)
        source, target = self.embeddings(arguments, dtype)
        return EncoderDecoder(
            source,
            Encoder(**self.stack_arguments(arguments, "encoder"), dtype=dtype, name="encoder"),
            target,
            Decoder(**self.stack_arguments(arguments, "decoder"), dtype=dtype, name="decoder"),
            **token_ids(arguments, **kwargs),
        )

    def check_keys(self, config, arguments):
        """Raises `ValueError` where a config.json asks for something that the library does not have."""
        check_config(
            config,
            is_encoder_decoder=True,
            tie_word_embeddings=True,
            normalize_before=self.normalize_first,
            normalize_embedding=self.positions is None,
            add_final_layer_norm=self.normalize_first,
            static_position_embeddings=self.positions is not None,
            # transformers writes it over the other.
            num_hidden_layers=arguments["encoder_num_layers"],
            **({"pad_token_id": OFFSET - 1} if self.begins_after_padding else {}),
        )

    def stack_arguments(self, arguments, stack):
        """Returns the arguments of a stack, "encoder" or "decoder"."""
        names = ("activation", "dropout", "attention_dropout", "activation_dropout")
        return {
            **{name: arguments[f"{stack}_{name}"] for name in ("num_layers", "num_heads", "d_ff")},
            **{name: arguments[name] for name in names},
            "normalize_first": self.normalize_first,
            "layer_norm_epsilon": EPSILON,
        }

    def embeddings(self, arguments, dtype):
        """Makes the embeddings of the source and of the target: one layer, or two with one table of tokens."""
        sizes = arguments["vocab_size"], arguments["d_model"]
        table = {
            "scale": arguments["d_model"] ** 0.5 if arguments["is_scaled"] else 1.0,
            "output_bias": self.output_bias,
        }
        options = {"dropout": arguments["dropout"], "dtype": dtype}
        if self.positions is not None:
            positions = PositionalEncoding(**self.positions, dtype=dtype, name="positions")
            return [Embeddings(*sizes, positions, **table, **options, name="embeddings")] * 2
        tokens = TokenEmbedding(*sizes, **table, dtype=dtype, name="tokens")
        return [
            Embeddings(
                tokens=tokens,
                positions=LearnedPositions(arguments["max_length"], OFFSET, dtype=dtype, name="positions"),
                norm=LayerNormalization(epsilon=EPSILON, dtype=dtype, name="norm"),
                **options,
                name=name,
            )
            for name in ("source", "target")
        ]

    def other_keys(self, model):
        """Returns the family's longest length for sinusoidal positions, which have no limit."""
        key, longest = self.rows["max_length"]
        return {} if self.positions is None else {key: longest}

    def tensors_of_embeddings(self, model):
        """Describes the tensors of what goes in and comes out, but for positions and norms."""
        source, target = model.source, model.target
        if source.tokens is target.tokens:
            yield matrix("model.shared.weight", target.tokens.embeddings)
        yield matrix("model.encoder.embed_tokens.weight", source.tokens.embeddings)
        yield matrix("model.decoder.embed_tokens.weight", target.tokens.embeddings)
        yield matrix("lm_head.weight", model.output_embedding.embeddings)
        if self.output_bias:
            yield matrix("final_logits_bias", model.output_embedding.bias, input_axes=0)

    def make_tensors(self, model):
        """Describes the tensors."""
        yield from self.tensors_of_embeddings(model)
        source, target = model.source, model.target
        for name, parts in zip(STACKS, (source, target), strict=True):
            stack, base = getattr(model, name), f"model.{name}"
            if self.positions is None:
                yield matrix(f"{base}.embed_positions.weight", parts.positions.embeddings)
            if getattr(parts, "norm", None) is not None:
                yield from norm(f"{base}.layernorm_embedding", parts.norm)
            for i, layer in enumerate(stack.layers):
                names = LAYER if name == "decoder" else ENCODER_LAYER
                yield from layer_tensors(f"{base}.layers.{i}.", layer, names)
            if stack.norm is not None:
                yield from norm(f"{base}.layer_norm", stack.norm)

    def make_tables(self, model):
        """Describes the tables of sinusoidal positions, which a checkpoint may hold."""

        def table(length):
            positions = sinusoidal_positions(np.arange(length), model.d_model, interleaved=False)
            return ops.convert_to_numpy(positions)

        for stack in STACKS if self.stored_table else ():
            yield ComputedTable(f"model.{stack}.embed_positions.weight", model.d_model, table)
