"""What the families of encoder-decoders share: BART and its relatives differ in norms, positions and a few keys."""

from dataclasses import dataclass, field

import numpy as np
from keras import ops

from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    add_token_ids,
    check_config,
    check_layers,
    check_norm,
    check_parts,
    check_plain_attention,
    sizes_of,
    token_id_keys,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.tensors import ComputedTable, attention_projections, dense, matrix, norm
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
class Seq2SeqNames:
    """The options in which a family of encoder-decoders differs from BART.

    Attributes:
        model_type: The family's `model_type` in config.json.
        architecture: The class of transformers.
        defaults: transformers' values for the keys that config.json leaves out.
        normalize_first: Whether the layers are pre-norm.
        embedding_norm: Whether the embeddings are normalised.
        output_bias: Whether each id has a bias in the output projection.
        positions: Arguments of the `PositionalEncoding`; None for `LearnedPositions`.
        stored_table: Whether checkpoints hold the table of sinusoidal positions.
    """

    model_type: str
    architecture: str
    defaults: dict = field(default_factory=lambda: DEFAULTS)
    normalize_first: bool = False
    embedding_norm: bool = True
    output_bias: bool = True
    positions: dict | None = None
    stored_table: bool = False

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        config = {**self.defaults, **config}
        check_config(
            config,
            is_encoder_decoder=True,
            tie_word_embeddings=True,
            normalize_before=self.normalize_first,
            normalize_embedding=self.embedding_norm,
            add_final_layer_norm=self.normalize_first,
            static_position_embeddings=self.positions is not None,
        )
        vocab_size, d_model, max_length = sizes_of(config, "vocab_size", "d_model", "max_position_embeddings")
        dtype = kwargs.get("dtype")

        def positions(name):
            if self.positions is None:
                return LearnedPositions(max_length, OFFSET, dtype=dtype, name=name)
            return PositionalEncoding(**self.positions, dtype=dtype, name=name)

        def embedding_norm(name):
            return (
                LayerNormalization(epsilon=EPSILON, dtype=dtype, name=name) if self.embedding_norm else None
            )

        return EncoderDecoder(
            vocab_size,
            None,
            d_model,
            self._stack(Encoder, "encoder", config, dtype),
            self._stack(Decoder, "decoder", config, dtype),
            positions("positions"),
            target_positions=positions("target_positions") if self.positions is None else None,
            source_norm=embedding_norm("source_norm"),
            target_norm=embedding_norm("target_norm"),
            dropout=config["dropout"],
            embedding_scale=None if config["scale_embedding"] else 1.0,
            output_bias=self.output_bias,
            **add_token_ids(config, **kwargs, bos_key=BOS_KEY),
        )

    def _stack(self, kind, name, config, dtype):
        sizes = sizes_of(config, f"{name}_layers", f"{name}_attention_heads", f"{name}_ffn_dim")
        return kind(
            *sizes,
            config["dropout"],
            activation_from(config, "activation_function"),
            normalize_first=self.normalize_first,
            layer_norm_epsilon=EPSILON,
            attention_dropout=config["attention_dropout"],
            activation_dropout=config["activation_dropout"],
            dtype=dtype,
            name=name,
        )

    def make_config(self, model):
        """Makes the config.json of a model. Sinusoidal positions have no limit: it has the family's default then."""
        family = self.model_type
        check_parts(family, model=(model, EncoderDecoder))
        kind = LearnedPositions if self.positions is None else PositionalEncoding
        check_parts(
            family,
            encoder=(model.encoder, Encoder),
            decoder=(model.decoder, Decoder),
            positions=(model.positions, kind),
            target_positions=(model.target_positions, kind if self.positions is None else None),
            share_embeddings=(model.share_embeddings, True),
            output_bias=(model.output_bias, self.output_bias),
        )
        max_length = self.defaults["max_position_embeddings"]
        if self.positions is None:
            max_length = model.positions.max_length
            for each in (model.positions, model.target_positions):
                check_parts(family, offset=(each.offset, OFFSET), max_length=(each.max_length, max_length))
        else:
            expected = PositionalEncoding(**self.positions)
            names = ("max_wavelength", "interleaved", "offset", "endpoint")
            check_parts(
                family, **{name: (getattr(model.positions, name), getattr(expected, name)) for name in names}
            )
        for each in (model.source_norm, model.target_norm):
            if self.embedding_norm:
                check_norm(family, each)
                check_parts(family, epsilon=(each.epsilon, EPSILON))
            else:
                check_parts(family, embedding_norm=(each, None))
        keys, d_model = {}, model.d_model
        for name in STACKS:
            stack = getattr(model, name)
            attention, feed_forward, residual = check_layers(
                family, stack, normalize_first=self.normalize_first
            )
            check_plain_attention(family, attention, d_model)
            check_parts(
                family,
                feed_forward_bias=(feed_forward.use_bias, True),
                layer_norm_epsilon=(residual.norm.epsilon, EPSILON),
                dropout=(residual.dropout, model.dropout),
            )
            both = {
                "activation_function": activation_name(family, feed_forward),
                "attention_dropout": attention.dropout,
                "activation_dropout": feed_forward.dropout,
            }
            check_parts(family, **{key: (value, keys.get(key, value)) for key, value in both.items()})
            keys |= {
                **both,
                f"{name}_layers": stack.num_layers,
                f"{name}_attention_heads": attention.num_heads,
                f"{name}_ffn_dim": feed_forward.d_ff,
            }
        scale = model.target_embedding.scale
        check_parts(family, embedding_scale=(scale, 1.0 if scale == 1.0 else d_model**0.5))
        return {
            "model_type": family,
            "architectures": [self.architecture],
            "vocab_size": model.target_vocab_size,
            "max_position_embeddings": max_length,
            "d_model": d_model,
            **keys,
            "dropout": model.dropout,
            "scale_embedding": scale != 1.0,
            "tie_word_embeddings": True,
            **token_id_keys(model, BOS_KEY),
        }

    def make_tensors(self, model):
        """Describes the tensors."""
        embeddings = model.target_embedding.embeddings
        for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
            yield matrix(f"{name}.weight", embeddings)
        if self.output_bias:
            yield matrix("final_logits_bias", model.output_embedding.bias, input_axes=0)
        positions, norms = (model.positions, model.target_positions), (model.source_norm, model.target_norm)
        for stack_name, added, embedding_norm in zip(STACKS, positions, norms, strict=True):
            stack, base = getattr(model, stack_name), f"model.{stack_name}"
            if self.positions is None:
                yield matrix(f"{base}.embed_positions.weight", added.embeddings)
            if embedding_norm is not None:
                yield from norm(f"{base}.layernorm_embedding", embedding_norm)
            for i, layer in enumerate(stack.layers):
                yield from layer_tensors(f"{base}.layers.{i}", layer)
            if stack.norm is not None:
                yield from norm(f"{base}.layer_norm", stack.norm)

    def make_tables(self, model):
        """Describes the tables of positions, which a checkpoint may hold."""
        return sinusoidal_tables(model) if self.stored_table else ()


def sinusoidal_tables(model):
    """Describes the tables of Marian's sinusoidal positions, which old checkpoints hold."""

    def table(length):
        positions = sinusoidal_positions(np.arange(length), model.d_model, interleaved=False)
        return ops.convert_to_numpy(positions)

    for stack in STACKS:
        yield ComputedTable(f"model.{stack}.embed_positions.weight", model.d_model, table)


def layer_tensors(name, layer):
    """Describes the tensors of an encoder layer or a decoder layer, whose names begin with `name`."""
    attentions = [("self_attn", layer.self_attention, layer.self_attention_residual)]
    if getattr(layer, "cross_attention_residual", None) is not None:
        attentions.append(("encoder_attn", layer.cross_attention, layer.cross_attention_residual))
    for part, attention, residual in attentions:
        names = [f"{name}.{part}.{projection}_proj" for projection in ("q", "k", "v", "out")]
        yield from attention_projections(attention, *names)
        yield from norm(f"{name}.{part}_layer_norm", residual.norm)
    yield from dense(f"{name}.fc1", layer.feed_forward.inner)
    yield from dense(f"{name}.fc2", layer.feed_forward.outer)
    yield from norm(f"{name}.final_layer_norm", layer.feed_forward_residual.norm)


def seq2seq_family(names, tokenizer, ignored=()):
    """Makes the `Family` of encoder-decoders with these `Seq2SeqNames` and this `TokenizerKind`."""
    return Family(
        names.model_type,
        names.make_model,
        names.make_config,
        names.make_tensors,
        architectures=(names.architecture,),
        prefix="model.",
        ignored=tuple(ignored),
        guessed_keys=() if names.positions is None else ("max_position_embeddings",),
        make_tables=names.make_tables,
        writes_tables=names.stored_table,
        tokenizer=tokenizer,
    )
