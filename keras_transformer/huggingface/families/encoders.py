"""What the families of encoders share: BERT and its relatives differ in names, heads and a few keys."""

import re
from dataclasses import dataclass, field

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import (
    ID_KEYS,
    MULTI_LABEL,
    arguments_from,
    check_config,
    check_divisible,
    is_multi_label,
    keys_of,
    label_keys,
    labels_of,
)
from keras_transformer.huggingface.families.encoder_words import DEFAULTS, KEYS, LAYER, STACK
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.known_keys import ENCODER
from keras_transformer.huggingface.parts import check_made, check_parts, layers_from, stack_words
from keras_transformer.huggingface.tensors import LayerNames, dense, layer_tensors, matrix, norm, vector
from keras_transformer.layers import (
    Encoder,
    EncoderLayer,
    LayerNormalization,
    LearnedPositions,
    RelativePositionBias,
    SegmentEmbedding,
)
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    SpanHead,
    TaggingHead,
)

EPSILON = 1e-12  # of families whose config.json has no key for it
# Positions from 0 on, and segments, all 0.
COUNTED = re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$")
# How many ids of [SEP] the tokenizers put between the texts of a pair that are not the usual ones of a family.
SEPARATORS = {"BertTokenizer": 1, "XLMRobertaTokenizer": 2}


@dataclass(frozen=True)
class EncoderFamily(Family):
    """A family of encoders: the words in which it describes itself. `classes` is a dict of `HeadNames`.

    Of several classes with the same head, the first is written.

    Attributes:
        layer: Beginning of the names of a layer's tensors, with `{}` for its number.
        names: The `LayerNames` of its layers.
        keys: This library's words for the keys of config.json. A word that is missing has no key.
        fixed: Keys of config.json that must have one value.
        offset: Whether positions begin after the id of padding, as in RoBERTa.
        norm_bias: Key of config.json that says whether norms have a bias; "" for a family whose norms have one.
        separators: How many ids of `[SEP]` stand between the texts of a pair.
        biases: Name of the table of relative biases; "" for a family without one.
        widened: Name of the dense layer between embeddings and layers; "" for a family without one.
    """

    model_classes: tuple = (EncoderModel,)
    defaults: dict = field(default_factory=lambda: DEFAULTS)
    ignored: tuple = (COUNTED,)
    layer: str = "encoder.layer.{}."
    names: LayerNames = LAYER
    keys: dict = field(default_factory=lambda: KEYS)
    fixed: dict = field(default_factory=dict)
    offset: bool = False
    norm_bias: str = ""
    separators: int = 1
    biases: str = ""
    widened: str = ""
    more_keys: tuple = ENCODER

    def arguments_of_tensors(self, config, names):
        """Returns `{"pooler": None}` where no tensor is the pooler's, as in some checkpoints without a head."""
        head = self.heads_of(config)
        stored = head.pooler and any(f"{head.pooler}.weight".endswith(name) for name in names)
        return {} if stored or head.kind is not type(None) else {"pooler": None}

    @property
    def known_keys(self):
        """The keys of config.json that are read or have no effect, a set of str."""
        of_heads = {
            key for names in self.classes.values() for key in (*(names.dropout or ()), *names.keys.values())
        }
        own = {*self.keys.values(), *self.fixed, self.norm_bias}
        return {*super().known_keys, *own, *of_heads}

    def heads_of(self, config):
        """Returns the `HeadNames` that `architectures` of config.json asks for."""
        self.check_classes(config)
        return self.classes[(config.get("architectures") or self.architectures)[0]]

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        return EncoderModel(**self.arguments(config, **kwargs))

    def arguments(self, config, **kwargs):
        """Returns the arguments of the model that a config.json describes, whose layers are not built."""
        config = {**self.defaults, **config}
        check_config(
            config,
            is_decoder=False,
            add_cross_attention=False,
            position_embedding_type="absolute",
            pruned_heads={},
            **self.fixed,
        )
        words = {"layer_norm_epsilon": EPSILON, **arguments_from(config, self.keys)}
        check_divisible(config, self.keys["d_model"], self.keys["num_heads"])
        pad_id = config["pad_token_id"]
        check(isinstance(pad_id, int), "`pad_token_id` of config.json must be one id.", pad_token_id=pad_id)
        dtype, width = kwargs.get("dtype"), words.get("embedding_dim", words["d_model"])
        epsilon = words["layer_norm_epsilon"]
        norm = LayerNormalization(epsilon=epsilon, center=self._norm_center(config), dtype=dtype, name="norm")
        return {
            "vocab_size": words["vocab_size"],
            "d_model": words["d_model"],
            "encoder": self._encoder(config, words, dtype),
            "positions": self._positions(config, words, dtype),
            "embedding_dim": None if width == words["d_model"] else width,
            "num_segments": words.get("num_segments", 0),
            "norm": norm,
            "dropout": words["dropout"],
            "pooler": self._pooler(config, epsilon, dtype),
            "head": self._head(config, words, epsilon, dtype),
            "num_separators": SEPARATORS.get(config.get("tokenizer_class"), self.separators),
            **{name: config.get(key) for name, key in ID_KEYS.items()},
            **kwargs,
        }

    def _norm_center(self, config):
        return not self.norm_bias or config[self.norm_bias]

    def _norm_kind(self, config):
        return "layer" if self._norm_center(config) else "layer_without_bias"

    def _positions(self, config, words, dtype):
        if "positions" not in words:
            return None
        offset = config["pad_token_id"] + 1 if self.offset else 0
        return LearnedPositions(words["positions"] - offset, offset, dtype=dtype, name="positions")

    def _encoder(self, config, words, dtype):
        stack = {word: words[word] for word in STACK}
        if not self.biases:
            return Encoder(**stack, dtype=dtype, name="encoder")
        biases = RelativePositionBias(words["num_heads"], words["num_buckets"], dtype=dtype, name="biases")
        layers = layers_from(EncoderLayer, stack, words["d_model"], dtype, {"positions": biases})
        return Encoder(layers, dtype=dtype, name="encoder")

    def _pooler(self, config, epsilon, dtype):
        names = self.heads_of(config)
        if names.pooler is None:
            return None
        options = {"activation": names.pooler_activation, **arguments_from(config, names.keys)}
        if names.norm:
            options |= {"norm": self._norm_kind(config), "layer_norm_epsilon": epsilon}
        dropout = self._head_dropout(config, names) if names.pooler_drops else 0.0
        return Pooler(dropout=dropout, **options, dtype=dtype, name="pooler")

    def _head_dropout(self, config, names):
        given = [config[key] for key in names.dropout or () if config.get(key) is not None]
        return given[0] if given else 0.0

    def _head(self, config, words, epsilon, dtype):
        names, arguments = self.heads_of(config), {"dtype": dtype, "name": "head"}
        if names.kind is type(None):
            return None
        if names.kind is MaskedLanguageHead:
            check_config(config, tie_word_embeddings=True)
            keys = {"activation": self.keys.get("activation"), **names.keys}
            options = {"norm": self._norm_kind(config), **arguments_from(config, keys)}
            if names.activation is not None:
                options["activation"] = names.activation
            width = words.get("embedding_dim")
            return MaskedLanguageHead(
                layer_norm_epsilon=epsilon,
                width=None if width == words["d_model"] else width,
                **options,
                **arguments,
            )
        dropout = self._head_dropout(config, names)
        if names.kind in (MultipleChoiceHead, SpanHead):
            return names.kind(dropout, **arguments)
        if names.kind is ClassificationHead:
            num_classes, labels = labels_of(config, (MULTI_LABEL,))
            return ClassificationHead(num_classes, dropout, labels, is_multi_label(config), **arguments)
        # transformers ignores `problem_type` in a head for tags.
        num_classes, labels = labels_of({**config, "problem_type": None})
        return TaggingHead(num_classes, dropout, labels, **arguments)

    def make_config(self, model):
        """Makes the config.json of a model."""
        family = self.model_type
        check_parts(
            family,
            encoder=(model.encoder, Encoder),
            positions=(model.positions, LearnedPositions),
            segments=(model.segments, SegmentEmbedding if "num_segments" in self.keys else None),
            pad_id=(model.pad_id, self.fixed.get("pad_token_id", model.pad_id)),
        )
        biases = RelativePositionBias if self.biases else None
        stack = stack_words(family, model.encoder, model.d_model, normalize_first=False, positions=biases)
        if self.biases:
            biases = model.encoder.layers[0].self_attention.positions
            expected = RelativePositionBias(stack["num_heads"])
            names = ("num_buckets", "max_distance", "bidirectional")
            check_parts(family, **{name: (getattr(biases, name), getattr(expected, name)) for name in names})
            shared = all(layer.self_attention.positions is biases for layer in model.encoder.layers)
            check_parts(family, one_table_of_biases=(shared, True))
        epsilon = stack["layer_norm_epsilon"]
        check_parts(family, epsilon=(epsilon, epsilon if "layer_norm_epsilon" in self.keys else EPSILON))
        words = {
            **stack,
            "vocab_size": model.vocab_size,
            "d_model": model.d_model,
            "positions": model.positions.offset + model.positions.max_length,
            "num_segments": model.num_segments,
            "embedding_dim": model.token_embedding.output_dim,
            "num_buckets": getattr(biases, "num_buckets", None),
        }
        config = {
            "model_type": family,
            **{key: words[word] for word, key in self.keys.items()},
            **keys_of(family, model, ID_KEYS),
            **self._head_keys(model),
        }
        self._check_made(model, config)
        return config

    def _check_made(self, model, config, *more_parts):
        """Raises `ValueError` for a part of the model that is not the one that its config.json makes."""
        made = self.arguments(config)
        for part in ("positions", "num_segments", "embedding_dim", "norm", "pooler", "head", *more_parts):
            check_made(self.model_type, part, getattr(model, part), made[part])

    def _names_of(self, model):
        """Returns the class of transformers for a model's head, and its `HeadNames`."""
        head = model.head
        for name, names in self.classes.items():
            if type(head) is names.kind:
                return name, names
        kinds = list(dict.fromkeys(names.kind.__name__ for names in self.classes.values()))
        raise ValueError(
            f"`head` of a {self.model_type!r} model must be one of {kinds}. Received: head={head!r}."
        )

    def _head_keys(self, model):
        """Returns the keys of config.json for a model's head and pooler."""
        head, pooler = model.head, model.pooler
        name, names = self._names_of(model)
        check_parts(self.model_type, pooler=(pooler, Pooler if names.pooler else type(None)))
        keys = {"architectures": [name], **keys_of(self.model_type, pooler or head, names.keys)}
        if names.dropout and names.dropout[0] not in self.keys.values():
            keys[names.dropout[0]] = head.dropout
        if names.kind in (ClassificationHead, TaggingHead):
            keys |= label_keys(head.num_classes, head.labels)
        if getattr(head, "multi_label", False):
            keys["problem_type"] = MULTI_LABEL
        return keys

    def make_tensors(self, model):
        """Describes the tensors."""
        embeddings = model.token_embedding
        yield matrix(f"{self.prefix}embeddings.word_embeddings.weight", embeddings.embeddings)
        yield matrix(f"{self.prefix}embeddings.position_embeddings.weight", model.positions.embeddings)
        if model.segments is not None:
            yield matrix(f"{self.prefix}embeddings.token_type_embeddings.weight", model.segments.embeddings)
        yield from norm(f"{self.prefix}embeddings.LayerNorm", model.norm)
        if model.widen is not None:
            yield from dense(self.widened, model.widen)
        if self.biases:
            yield matrix(self.biases, model.encoder.layers[0].self_attention.positions.embeddings)
        for i, layer in enumerate(model.encoder.layers):
            yield from layer_tensors(self.prefix + self.layer.format(i), layer, self.names)
        yield from self._head_tensors(model)

    def _head_tensors(self, model):
        _, names = self._names_of(model)
        if model.pooler is not None:
            yield from dense(names.pooler, model.pooler.dense)
            if model.pooler.norm is not None:
                yield from norm(names.norm, model.pooler.norm)
        if model.head is not None:
            yield from dense(names.dense, model.head.dense)
        if type(model.head) is MaskedLanguageHead:
            yield from norm(names.norm, model.head.norm)
            yield from (vector(name, model.token_embedding.bias) for name in names.biases)
            yield matrix(names.output, model.token_embedding.embeddings)
