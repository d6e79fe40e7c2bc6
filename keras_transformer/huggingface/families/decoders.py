"""What the families of decoders share: Llama and its relatives differ in names and in a few options of their layers."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import keras

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import (
    ID_KEYS,
    add_token_ids,
    arguments_from,
    check_config,
    keys_of,
    token_id_keys,
)
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.families.gated_layers import (
    FULL,
    SLIDING,
    gated_layers,
    kinds_from,
    layer_keys,
)
from keras_transformer.huggingface.known_keys import DECODER
from keras_transformer.huggingface.parts import attention_options, check_layers, check_parts
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, GatedFeedForward
from keras_transformer.layers.residual import NORMS
from keras_transformer.models import EncoderModel, LanguageModel

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


# Keys of config.json for the arguments of the model and of its attention.
MODEL = {"vocab_size": "vocab_size", "d_model": "hidden_size", "tie_embeddings": "tie_word_embeddings"}
ATTENTION = {"num_heads": "num_attention_heads", "dropout": "attention_dropout"}
ATTENTION |= {"num_key_value_heads": "num_key_value_heads"}
ROTATED = "no_rope_layers"  # whose values are 1 for the layers with rotary positions
SCORES = re.compile(r"(^|\.)lm_head\.weight$")  # which an `EncoderModel` does not have
LAYER = LayerNames(
    tuple(f"self_attn.{letter}_proj" for letter in "qkvo"),
    ("input_layernorm", "post_attention_layernorm"),
    ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj",
)


@dataclass(frozen=True)
class DecoderFamily(Family):
    """A family of decoders: the options in which it differs from Llama.

    Attributes:
        layer_types: `layer_types(config)` gives the kind of each layer where config.json has no `layer_types`; None
            where all layers have a window or none, as `sliding_window` says.
        writes_layer_types: Whether config.json has the key `layer_types`. If not, all layers are of one kind.
        thetas: For each kind of layers with a wavelength of its own, as `rope_of_kind` takes them; None for one
            wavelength.
        activation: Key of the activation.
        output_bias: Whether the output of attention has a bias where queries, keys and values have one.
        norm: Name of the norms.
        query_key_norm: Whether queries and keys are normalised.
        names: The `LayerNames` of its layers. Layers with four norms have two of them after their sublayers.
        scaled: Whether attention is scaled by `query_pre_attn_scalar`, and embeddings by the root of their width.
        caps: Whether attention and logits have bounds.
        attention_caps: Whether attention may have one.
        biased: Names of the keys for the biases of attention and of the feed-forward network that config.json has.
        rotated: `rotated(config)` tells of each layer whether it has rotary positions, a list; None where all have.
        bidirectional: Key of config.json that asks for an `EncoderModel`, in which each token sees the later ones too;
            "" for a family without such models. They are read, not written.
    """

    model_classes: tuple = (LanguageModel,)
    prefix: str = "model."
    defaults: dict = field(default_factory=lambda: DEFAULTS)
    ignored: tuple = (re.compile(r"(^|\.)rotary_emb\.inv_freq$"),)  # `rope_theta` gives it
    guessed_keys: tuple = ("max_position_embeddings",)  # rotary positions have no limit
    layer_types: Callable | None = None
    writes_layer_types: bool = False
    thetas: dict | None = None
    activation: str = "hidden_act"
    output_bias: bool = True
    norm: str = "rms"
    query_key_norm: bool = False
    names: LayerNames = LAYER
    scaled: bool = False
    caps: bool = False
    attention_caps: bool = True
    biased: tuple = ("attention_bias", "mlp_bias")
    rotated: Callable | None = None
    bidirectional: str = ""
    more_keys: tuple = DECODER

    def sees_later_tokens(self, config):
        """Whether a config.json asks for a model in which each token sees the later ones too."""
        return bool(self.bidirectional and config.get(self.bidirectional))

    def variant(self, config, makes_vectors=False):
        """Returns the family; for vectors, and where tokens see the later ones, one whose models are encoders."""
        sees = self.sees_later_tokens(config)
        if EncoderModel in self.model_classes or not (sees or makes_vectors):
            return self
        kinds = ("TextModel", "Model")  # without scores of ids
        classes = [name.replace("ForCausalLM", kind) for name in self.classes for kind in kinds]
        return dataclasses.replace(
            self,
            model_classes=(EncoderModel,),
            classes=tuple(classes) if sees else (*self.classes, *classes),
            ignored=(*self.ignored, SCORES),
        )

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        family, config = self.variant(config), {**self.defaults, **config}
        arguments, dtype = arguments_from(config, MODEL), kwargs.get("dtype")
        if EncoderModel in family.model_classes:
            return self._make_encoder(config, arguments, **kwargs)
        return LanguageModel(
            **arguments,
            decoder=Decoder(self._layers(config, dtype), dtype=dtype, name="decoder"),
            embedding_scale=self._embedding_scale(arguments["d_model"]),
            logit_soft_cap=config["final_logit_softcapping"] if self.caps else None,
            **add_token_ids(config, **kwargs, several=True),
        )

    def _make_encoder(self, config, arguments, **kwargs):
        """Makes the `EncoderModel` that a config.json describes."""
        dtype, ids = kwargs.get("dtype"), {name: config.get(key) for name, key in ID_KEYS.items()}
        ids = {name: value[0] if isinstance(value, list) else value for name, value in ids.items()}
        del arguments["tie_embeddings"]  # there are no scores of ids
        return EncoderModel(
            **arguments,
            encoder=Encoder(self._layers(config, dtype, EncoderLayer), dtype=dtype, name="encoder"),
            embedding_scale=self._embedding_scale(arguments["d_model"]),
            num_segments=0,
            norm=keras.layers.Identity(autocast=False, name="norm"),  # a policy would not be saved
            dropout=0.0,
            **{**ids, **kwargs},
        )

    def _embedding_scale(self, d_model):
        return d_model**0.5 if self.scaled else 1.0

    def _one_kind(self, config):
        """The kinds of layers that all have a window, or none."""
        windows = "sliding_window" in self.defaults and config["sliding_window"] is not None
        return [SLIDING if windows else FULL] * config["num_hidden_layers"]

    def _layers(self, config, dtype=None, layer_class=DecoderLayer):
        """Makes the layers that a config.json describes, unbuilt."""
        window, again = config.get("sliding_window"), config.get("sliding_window_size")
        rule = "`sliding_window_size` of config.json must be `sliding_window`, which is the key that is read."
        check(again in (None, window), rule, sliding_window_size=again, sliding_window=window)
        causal = {}
        if layer_class is EncoderLayer and not self.sees_later_tokens(config):
            causal = {"use_causal_mask": True}
        elif layer_class is EncoderLayer and window is not None:
            window = window // 2 + 1  # half of it lies before a token, half after it
        kinds = kinds_from(config, self.layer_types or self._one_kind)
        if not self.writes_layer_types:  # transformers looks at `sliding_window` alone
            check_config(config, layer_types=self._one_kind(config))
        if not self.bidirectional:
            check_config(config, use_bidirectional_attention=False)
        if not self.attention_caps:  # transformers ignores it
            check_config(config, attn_logit_softcapping=None)
        attention = {
            **arguments_from(config, ATTENTION),
            "key_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            "use_bias": self._has_biases(config, "attention_bias"),
            "output_bias": None if self.output_bias else False,
            "query_key_norm": self.norm if self.query_key_norm else None,
            "norm_epsilon": config["rms_norm_eps"],
            "scale": config["query_pre_attn_scalar"] ** -0.5 if self.scaled else None,
            "soft_cap": config["attn_logit_softcapping"] if self.caps and self.attention_caps else None,
        }
        feed_forward = arguments_from(config, self._feed_forward_keys)
        feed_forward["use_bias"] = self._has_biases(config, "mlp_bias")
        return gated_layers(
            layer_class,
            config,
            kinds,
            attention,
            feed_forward,
            window,
            self.thetas,
            dtype=dtype,
            dropout=config.get("resid_pdrop", 0.0),
            layer_norm_epsilon=config["rms_norm_eps"],
            norm=self.norm,
            sandwich_norm=len(self.names.norms) == 4,
            rotated=self.rotated and self.rotated(config),
            **causal,
        )

    def _has_biases(self, config, key):
        """Whether config.json asks for biases by a key. Where a family has no such key, transformers ignores it."""
        return bool((config if key in self.biased else self.defaults).get(key))

    @property
    def _feed_forward_keys(self):
        return {"d_ff": "intermediate_size", "activation": self.activation}

    def make_config(self, model):
        """Makes the config.json of a model.

        `max_position_embeddings` is the length that the rotary positions are scaled for. They start from the family's
        default where the scaling does not say.
        """
        family = self.model_type
        check_parts(
            family,
            positions=(model.positions, None),
            decoder=(model.decoder, Decoder),
            embedding_scale=(model.embedding_scale, self._embedding_scale(model.d_model)),
            logit_soft_cap=(model.logit_soft_cap, model.logit_soft_cap if self.caps else None),
        )
        attention, feed_forward, residual = check_layers(
            family,
            model.decoder,
            feed_forward=GatedFeedForward,
            norm=NORMS[self.norm],
            normalize_first=True,
            sandwich_norm=len(self.names.norms) == 4,
            free=("attention.sliding_window", "attention.positions") if self.writes_layer_types else (),
        )
        if model.d_model % attention.num_heads and not self.scaled:
            raise ValueError(
                f"`d_model` of a {family!r} model must be divisible by `num_heads`. "
                f"Received: d_model={model.d_model}, num_heads={attention.num_heads}."
            )
        config = {
            "model_type": family,
            "architectures": list(self.architectures),
            **keys_of(family, model, MODEL),
            **keys_of(family, attention, {**ATTENTION, "key_dim": "head_dim"}),
            **keys_of(family, feed_forward, self._feed_forward_keys),
            "rms_norm_eps": residual.norm.epsilon,
            **self._option_keys(model, attention, feed_forward),
            **self._layer_keys(model.decoder),
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

    def _window_keys(self, window):
        keys = {"use_sliding_window": window is not None, "sliding_window": window}
        return {key: value for key, value in keys.items() if key in self.defaults}

    def _layer_keys(self, decoder):
        """Returns the keys of config.json for the windows and positions of the layers."""
        max_length = self.defaults["max_position_embeddings"]
        rotates_all = self.rotated is None
        keys = layer_keys(self.model_type, decoder, self._window_keys, max_length, self.thetas, rotates_all)
        if not rotates_all:
            keys[ROTATED] = [int(layer.self_attention.positions is not None) for layer in decoder.layers]
        return {key: keys[key] for key in keys if key != "layer_types" or self.writes_layer_types}

    def _check_made(self, model, config):
        """Raises `ValueError` where the config.json would make other layers than the model's."""
        made = self._layers({**self.defaults, **config})
        for layer, expected in zip(model.decoder.layers, made, strict=True):
            found, wanted = (self._options(each, model.d_model) for each in (layer, expected))
            check_parts(self.model_type, **{name: (value, wanted[name]) for name, value in found.items()})

    def _options(self, layer, d_model):
        positions = layer.self_attention.positions
        return {
            **attention_options(layer.self_attention, d_model),
            "positions": positions and (positions.max_wavelength, positions.scaling),
            "feed_forward_dropout": layer.feed_forward.dropout,
        }

    def make_tensors(self, model):
        """Describes the tensors."""
        encodes = isinstance(model, EncoderModel)
        stack = model.encoder if encodes else model.decoder
        yield matrix("model.embed_tokens.weight", model.token_embedding.embeddings)
        if not encodes:
            yield matrix("lm_head.weight", model.output_embedding.embeddings)
        for i, layer in enumerate(stack.layers):
            name, attention = f"model.layers.{i}.", layer.self_attention
            yield from layer_tensors(name, layer, self.names)
            if self.query_key_norm:
                yield from norm(f"{name}self_attn.q_norm", attention.query_norm)
                yield from norm(f"{name}self_attn.k_norm", attention.key_norm)
        yield from norm("model.norm", stack.norm)
