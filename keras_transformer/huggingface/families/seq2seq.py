"""What the families of encoder-decoders share: BART and its relatives differ in norms, positions and a few keys."""

from dataclasses import dataclass, field

import numpy as np
from keras import ops

from keras_transformer.huggingface.configs import add_token_ids, arguments_from, check_config, token_id_keys
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.known_keys import SEQ2SEQ
from keras_transformer.huggingface.parts import check_made, check_parts, stack_words
from keras_transformer.huggingface.tensors import ComputedTable, LayerNames, layer_tensors, matrix, norm
from keras_transformer.layers import (
    Decoder,
    Encoder,
    LayerNormalization,
    LearnedPositions,
    PositionalEncoding,
    sinusoidal_positions,
)
from keras_transformer.models import EncoderDecoder

BOS_KEY = "decoder_start_token_id"
EPSILON = 1e-5
OFFSET = 2  # fairseq's tables and sinusoids begin there
STACKS = ("encoder", "decoder")
# Keys of config.json for the arguments of a stack, with `{}` for its name.
STACK_KEYS = {
    "num_layers": "{}_layers",
    "num_heads": "{}_attention_heads",
    "d_ff": "{}_ffn_dim",
    "activation": "activation_function",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
}
LAYER = LayerNames(
    tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
    ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    ("fc1",),
    "fc2",
    tuple(f"encoder_attn.{name}_proj" for name in ("q", "k", "v", "out")),
)
ENCODER_LAYER = LAYER._replace(norms=("self_attn_layer_norm", "final_layer_norm"))
DEFAULTS = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    BOS_KEY: 2,
}


@dataclass(frozen=True)
class Seq2SeqFamily(Family):
    """A family of encoder-decoders: the options in which it differs from BART.

    Attributes:
        normalize_first: Whether the layers are pre-norm.
        embedding_norm: Whether the embeddings are normalised.
        output_bias: Whether each id has a bias in the output projection.
        positions: Arguments of the `PositionalEncoding`; None for `LearnedPositions`.
        stored_table: Whether checkpoints hold the table of sinusoidal positions.
    """

    model_classes: tuple = (EncoderDecoder,)
    prefix: str = "model."
    defaults: dict = field(default_factory=lambda: DEFAULTS)
    normalize_first: bool = False
    embedding_norm: bool = True
    output_bias: bool = True
    positions: dict | None = None
    stored_table: bool = False
    more_keys: tuple = SEQ2SEQ

    @property
    def begins_after_padding(self):
        """Whether the first position is `pad_token_id` + 1, in sinusoids that begin at `OFFSET`."""
        return self.positions is not None and "offset" in self.positions

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        dtype, config = kwargs.get("dtype"), {**self.defaults, **config}
        return EncoderDecoder(
            **self.arguments(config, **kwargs),
            encoder=Encoder(**self.stack_arguments(config, "encoder"), dtype=dtype, name="encoder"),
            decoder=Decoder(**self.stack_arguments(config, "decoder"), dtype=dtype, name="decoder"),
            **self.embedding_parts(config, dtype),
        )

    def arguments(self, config, **kwargs):
        """Returns the arguments of the model but for its layers."""
        check_config(
            config,
            is_encoder_decoder=True,
            tie_word_embeddings=True,
            normalize_before=self.normalize_first,
            normalize_embedding=self.embedding_norm,
            add_final_layer_norm=self.normalize_first,
            static_position_embeddings=self.positions is not None,
            num_hidden_layers=config["encoder_layers"],  # transformers writes it over the other
            **({"pad_token_id": OFFSET - 1} if self.begins_after_padding else {}),
        )
        keys = {"source_vocab_size": "vocab_size", "d_model": "d_model", "dropout": "dropout"}
        return {
            "target_vocab_size": None,
            **arguments_from(config, keys),
            "embedding_scale": None if config["scale_embedding"] else 1.0,
            "output_bias": self.output_bias,
            **add_token_ids(config, **kwargs, bos_key=BOS_KEY),
        }

    def stack_arguments(self, config, name):
        """Returns the arguments of a stack, "encoder" or "decoder"."""
        words = arguments_from(config, self.stack_keys(name))
        return {**words, "normalize_first": self.normalize_first, "layer_norm_epsilon": EPSILON}

    def stack_keys(self, name):
        """Returns the keys of config.json for the arguments of a stack."""
        return {word: key.format(name) for word, key in STACK_KEYS.items()}

    def embedding_parts(self, config, dtype=None):
        """Returns the positions and the norms of the embeddings, unbuilt, by the names of the model's arguments."""
        size = arguments_from(config, {"positions": "max_position_embeddings"})["positions"]
        if self.positions is None:
            names = ("positions", "target_positions")
            parts = {name: LearnedPositions(size, OFFSET, dtype=dtype, name=name) for name in names}
        else:
            parts = {"positions": PositionalEncoding(**self.positions, dtype=dtype, name="positions")}
        norms = ("source_norm", "target_norm") if self.embedding_norm else ()
        return parts | {name: LayerNormalization(epsilon=EPSILON, dtype=dtype, name=name) for name in norms}

    def make_config(self, model):
        """Makes the config.json of a model. Sinusoidal positions have no limit: it has the family's default then."""
        check_parts(self.model_type, share_embeddings=(model.share_embeddings, True))
        if self.begins_after_padding:
            check_parts(self.model_type, pad_id=(model.pad_id, OFFSET - 1))
        return self.config_of_parts(model, dropout=model.dropout)

    def config_of_parts(self, model, **keys):
        """Makes the config.json of a model of any class from its parts; `keys` are those that its stacks must have."""
        family, d_model = self.model_type, model.d_model
        check_parts(
            family,
            encoder=(model.encoder, Encoder),
            decoder=(model.decoder, Decoder),
            positions=(model.positions, LearnedPositions if self.positions is None else PositionalEncoding),
            output_bias=(model.output_bias, self.output_bias),
        )
        scale = model.target_embedding.scale
        check_parts(family, embedding_scale=(scale, 1.0 if scale == 1.0 else d_model**0.5))
        for name in STACKS:
            words = stack_words(family, getattr(model, name), d_model, normalize_first=self.normalize_first)
            check_parts(family, layer_norm_epsilon=(words["layer_norm_epsilon"], EPSILON))
            own_keys = {key: words[word] for word, key in self.stack_keys(name).items()}
            check_parts(family, **{key: (value, keys.get(key, value)) for key, value in own_keys.items()})
            keys |= own_keys
        max_length = getattr(model.positions, "max_length", self.defaults["max_position_embeddings"])
        config = {
            "model_type": family,
            "architectures": list(self.architectures),
            "vocab_size": model.source_vocab_size,
            "max_position_embeddings": max_length,
            "d_model": d_model,
            **keys,
            "dropout": model.dropout,
            "scale_embedding": scale != 1.0,
            "tie_word_embeddings": True,
            **token_id_keys(model, BOS_KEY),
        }
        parts = self.embedding_parts(config)
        for name in ("positions", "target_positions", "source_norm", "target_norm"):
            check_made(family, name, getattr(model, name), parts.get(name))
        return config

    def make_tensors(self, model):
        """Describes the tensors."""
        if model.share_embeddings:
            yield matrix("model.shared.weight", model.target_embedding.embeddings)
        yield matrix("model.encoder.embed_tokens.weight", model.source_embedding.embeddings)
        yield matrix("model.decoder.embed_tokens.weight", model.target_embedding.embeddings)
        yield matrix("lm_head.weight", model.output_embedding.embeddings)
        if self.output_bias:
            yield matrix("final_logits_bias", model.output_embedding.bias, input_axes=0)
        positions, norms = (model.positions, model.target_positions), (model.source_norm, model.target_norm)
        for name, added, embedding_norm in zip(STACKS, positions, norms, strict=True):
            stack, base = getattr(model, name), f"model.{name}"
            if self.positions is None:
                yield matrix(f"{base}.embed_positions.weight", added.embeddings)
            if embedding_norm is not None:
                yield from norm(f"{base}.layernorm_embedding", embedding_norm)
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
