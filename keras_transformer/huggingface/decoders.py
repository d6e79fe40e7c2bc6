"""What the families of decoders share: Llama and its relatives differ in names and in a few options of their layers."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    add_token_ids,
    attention_options,
    check_config,
    check_layers,
    check_parts,
    sizes_of,
    token_id_keys,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.rotary import positions_from, rope_keys
from keras_transformer.huggingface.tensors import dense, matrix, norm
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    GatedFeedForward,
    MultiHeadAttention,
    RotaryPositions,
)
from keras_transformer.layers.residual import NORMS
from keras_transformer.models import LanguageModel

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING, FULL = "sliding_attention", "full_attention"  # transformers' kinds of layers


def no_windows(config):
    """The kinds of layers of a family without windows."""
    return [FULL] * config["num_hidden_layers"]


def all_windows(config):
    """The kinds of layers of a family whose layers all have a window, where config.json has `sliding_window`."""
    return [FULL if config.get("sliding_window") is None else SLIDING] * config["num_hidden_layers"]


@dataclass(frozen=True)
class DecoderNames:
    """The options in which a family of decoders differs from Llama.

    Attributes:
        model_type: The family's `model_type` in config.json.
        architecture: The class of transformers.
        defaults: transformers' values for the keys that config.json leaves out.
        layer_types: `layer_types(config)` gives the kind of each layer where config.json has no `layer_types`.
        writes_layer_types: Whether config.json has the key `layer_types`. If not, all layers are of one kind.
        window_keys: `window_keys(window)` gives the keys of config.json for a window, an int or None.
        positions: `positions(config, kind)` makes the positions of a layer of this kind.
        position_keys: `position_keys(family, by_kind, max_length)` gives their keys of config.json, from a dict of the
            positions of each kind of layers.
        activation: Key of the activation.
        output_bias: Whether the output of attention has a bias where queries, keys and values have one.
        norm: Name of the norms.
        query_key_norm: Whether queries and keys are normalised.
        norms: Names of a layer's norms in the order of their use: two, or four with norms after the sublayers.
        fused: Whether queries, keys and values are one matrix, and the gate and the inner layer another one.
        scaled: Whether attention is scaled by `query_pre_attn_scalar`, and embeddings by the root of their width.
        caps: Whether attention and logits have bounds.
        biased: Names of the keys for the biases of attention and of the feed-forward network that config.json has.
    """

    model_type: str
    architecture: str
    defaults: dict = field(default_factory=lambda: DEFAULTS)
    layer_types: Callable = no_windows
    writes_layer_types: bool = False
    window_keys: Callable = lambda window: {}
    positions: Callable = lambda config, kind: positions_from(config)
    position_keys: Callable = lambda family, by_kind, max_length: rope_keys(
        family, next(iter(by_kind.values())), max_length
    )
    activation: str = "hidden_act"
    output_bias: bool = True
    norm: str = "rms"
    query_key_norm: bool = False
    norms: tuple = ("input_layernorm", "post_attention_layernorm")
    fused: bool = False
    scaled: bool = False
    caps: bool = False
    biased: tuple = ("attention_bias", "mlp_bias")

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        config = {**self.defaults, **config}
        vocab_size, d_model = sizes_of(config, "vocab_size", "hidden_size")
        dtype = kwargs.get("dtype")
        return LanguageModel(
            vocab_size,
            d_model,
            Decoder(self._layers(config, dtype), dtype=dtype, name="decoder"),
            tie_embeddings=config["tie_word_embeddings"],
            embedding_scale=self._embedding_scale(d_model),
            logit_soft_cap=config["final_logit_softcapping"] if self.caps else None,
            **add_token_ids(config, **kwargs, several=True),
        )

    def _embedding_scale(self, d_model):
        return d_model**0.5 if self.scaled else 1.0

    def _layers(self, config, dtype=None):
        """Makes the layers that a config.json describes, unbuilt."""
        (num_layers,) = sizes_of(config, "num_hidden_layers")
        kinds = config.get("layer_types") or self.layer_types(config)
        if len(kinds) != num_layers or not {*kinds} <= {SLIDING, FULL}:
            raise ValueError(
                f"`layer_types` of config.json must be {SLIDING!r} or {FULL!r} for each of its {num_layers} layers. "
                f"Received: layer_types={kinds!r:.200}."
            )
        if not self.writes_layer_types:
            check_config(config, layer_types=[kinds[0]] * num_layers)
        return [self._layer(config, kind, dtype, f"layer_{i}") for i, kind in enumerate(kinds)]

    def _layer(self, config, kind, dtype, name):
        d_model, d_ff, num_heads = sizes_of(config, "hidden_size", "intermediate_size", "num_attention_heads")
        epsilon, attention_bias = config["rms_norm_eps"], config.get("attention_bias") or False
        window = config.get("sliding_window") if kind == SLIDING else None
        attention = MultiHeadAttention(
            num_heads,
            config.get("head_dim") or d_model // num_heads,
            dropout=config["attention_dropout"],
            use_bias=attention_bias,
            output_bias=None if self.output_bias else False,
            num_key_value_heads=config["num_key_value_heads"],
            positions=self.positions(config, kind),
            query_key_norm=self.norm if self.query_key_norm else None,
            norm_epsilon=epsilon,
            scale=config["query_pre_attn_scalar"] ** -0.5 if self.scaled else None,
            soft_cap=config["attn_logit_softcapping"] if self.caps else None,
            sliding_window=window,
            dtype=dtype,
            name="self_attention",
        )
        feed_forward = GatedFeedForward(
            d_ff,
            activation_from(config, self.activation),
            use_bias=config.get("mlp_bias") or False,
            dtype=dtype,
            name="feed_forward",
        )
        return DecoderLayer(
            attention=attention,
            feed_forward=feed_forward,
            dropout=config.get("resid_pdrop", 0.0),
            normalize_first=True,
            layer_norm_epsilon=epsilon,
            norm=self.norm,
            sandwich_norm=len(self.norms) == 4,
            dtype=dtype,
            name=name,
        )

    def make_config(self, model):
        """Makes the config.json of a model.

        `max_position_embeddings` is the length that the rotary positions are scaled for. They start from the family's
        default where the scaling does not say.
        """
        family = self.model_type
        check_parts(family, model=(model, LanguageModel))
        check_parts(
            family,
            positions=(model.positions, None),
            decoder=(model.decoder, Decoder),
            embedding_scale=(model.embedding_scale, self._embedding_scale(model.d_model)),
        )
        attention, feed_forward, residual = check_layers(
            family,
            model.decoder,
            feed_forward=GatedFeedForward,
            norm=NORMS[self.norm],
            normalize_first=True,
            sandwich_norm=len(self.norms) == 4,
            free=("attention.sliding_window", "attention.positions") if self.writes_layer_types else (),
        )
        check_parts(
            family, logit_soft_cap=(model.logit_soft_cap, model.logit_soft_cap if self.caps else None)
        )
        for layer in model.decoder.layers:
            check_parts(family, attention_positions=(layer.self_attention.positions, RotaryPositions))
        if model.d_model % attention.num_heads and not self.scaled:
            raise ValueError(
                f"`d_model` of a {family!r} model must be divisible by `num_heads`. "
                f"Received: d_model={model.d_model}, num_heads={attention.num_heads}."
            )
        config = {
            "model_type": family,
            "architectures": [self.architecture],
            "vocab_size": model.vocab_size,
            "hidden_size": model.d_model,
            "intermediate_size": feed_forward.d_ff,
            "num_hidden_layers": model.decoder.num_layers,
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.num_key_value_heads,
            "head_dim": attention.key_dim,
            self.activation: activation_name(family, feed_forward),
            "rms_norm_eps": residual.norm.epsilon,
            "attention_dropout": attention.dropout,
            "tie_word_embeddings": model.tie_embeddings,
            **self._option_keys(model, attention, feed_forward),
            **self._layer_keys(model.decoder.layers),
            **token_id_keys(model),
        }
        self._check_made(model, config)
        return config

    def _option_keys(self, model, attention, feed_forward):
        biases = {"attention_bias": attention.use_bias, "mlp_bias": feed_forward.use_bias}
        keys = {key: biases[key] for key in self.biased}
        if self.scaled:
            scale = attention.key_dim**-0.5 if attention.scale is None else attention.scale
            number = scale**-2
            keys["query_pre_attn_scalar"] = (
                round(number) if abs(number - round(number)) < 1e-6 * number else number
            )
        if self.caps:
            keys["final_logit_softcapping"] = model.logit_soft_cap
            keys["attn_logit_softcapping"] = attention.soft_cap
        return keys

    def _layer_keys(self, layers):
        """Returns the keys of config.json for the windows and positions of the layers."""
        windows = [attention_options(layer.self_attention)["sliding_window"] for layer in layers]
        kinds = [FULL if window is None else SLIDING for window in windows]
        widths = sorted({window for window in windows if window is not None})
        check_parts(self.model_type, number_of_windows=(len(widths), min(len(widths), 1)))
        by_kind = {kind: layer.self_attention.positions for kind, layer in zip(kinds, layers, strict=True)}
        return {
            **({"layer_types": kinds} if self.writes_layer_types else {}),
            **self.window_keys(widths[0] if widths else None),
            **self.position_keys(self.model_type, by_kind, self.defaults["max_position_embeddings"]),
        }

    def _check_made(self, model, config):
        """Raises `ValueError` where the config.json would make other layers than the model's."""
        made = self._layers({**self.defaults, **config})
        for layer, expected in zip(model.decoder.layers, made, strict=True):
            found, wanted = (self._options(each, model.d_model) for each in (layer, expected))
            check_parts(self.model_type, **{name: (value, wanted[name]) for name, value in found.items()})

    def _options(self, layer, d_model):
        attention = layer.self_attention
        options = attention_options(attention)
        positions = attention.positions
        scale = attention.key_dim**-0.5 if attention.scale is None else attention.scale
        return {
            **options,
            "output_shape": options["output_shape"] or (d_model,),
            "scale": round(scale, 9),
            "positions": (positions.max_wavelength, positions.scaling),
            "feed_forward_dropout": layer.feed_forward.dropout,
        }

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("model.embed_tokens.weight", model.token_embedding.embeddings)
        yield matrix("lm_head.weight", model.output_embedding.embeddings)
        for i, layer in enumerate(model.decoder.layers):
            name, attention, feed_forward = f"model.layers.{i}", layer.self_attention, layer.feed_forward
            residuals = layer.self_attention_residual, layer.feed_forward_residual
            norms = [each for residual in residuals for each in (residual.norm, residual.norm_after) if each]
            for norm_name, each in zip(self.norms, norms, strict=True):
                yield from norm(f"{name}.{norm_name}", each)
            parts = attention.query_dense, attention.key_dense, attention.value_dense
            if self.fused:
                yield from dense(f"{name}.self_attn.qkv_proj", *parts)
                yield from dense(f"{name}.mlp.gate_up_proj", feed_forward.gate, feed_forward.inner)
            else:
                for letter, part in zip("qkv", parts, strict=True):
                    yield from dense(f"{name}.self_attn.{letter}_proj", part)
                yield from dense(f"{name}.mlp.gate_proj", feed_forward.gate)
                yield from dense(f"{name}.mlp.up_proj", feed_forward.inner)
            if self.query_key_norm:
                yield from norm(f"{name}.self_attn.q_norm", attention.query_norm)
                yield from norm(f"{name}.self_attn.k_norm", attention.key_norm)
            yield from dense(f"{name}.self_attn.o_proj", attention.output_dense, input_axes=2)
            yield from dense(f"{name}.mlp.down_proj", feed_forward.outer)
        yield from norm("model.norm", model.decoder.norm)


def decoder_family(names, tokenizer):
    """Makes the `Family` of decoders with these `DecoderNames` and this `TokenizerKind`."""
    return Family(
        names.model_type,
        names.make_model,
        names.make_config,
        names.make_tensors,
        architectures=(names.architecture,),
        prefix="model.",
        ignored=(re.compile(r"(^|\.)rotary_emb\.inv_freq$"),),  # `rope_theta` gives it
        guessed_keys=("max_position_embeddings",),  # rotary positions have no limit
        tokenizer=tokenizer,
    )
