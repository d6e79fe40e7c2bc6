"""T5 and T5 1.1: Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer".
"""

import re
from dataclasses import dataclass

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    add_token_ids,
    arguments_from,
    check_config,
    keys_and_defaults,
    keys_of,
    token_id_keys,
)
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.files import read_if_there
from keras_transformer.huggingface.known_keys import SEQ2SEQ
from keras_transformer.huggingface.parts import check_parts
from keras_transformer.huggingface.tensors import LayerNames, layer_tensors, matrix, norm
from keras_transformer.huggingface.tokenizers.classes import check_roles, has_own_file, reader_of
from keras_transformer.huggingface.tokenizers.kinds import (
    SENTENCE_PIECE_TOKENS,
    TOKENIZER_CONFIG,
    TokenizerKind,
    check_sentence_piece,
    check_tokenizers,
    write_tokenizer_config,
)
from keras_transformer.huggingface.tokenizers.post_processor import check_ends
from keras_transformer.huggingface.tokenizers.sentence_piece import (
    PADDED,
    json_tokenizer,
    sentence_piece,
    with_added_tokens,
)
from keras_transformer.models import T5

BOS_KEY = "decoder_start_token_id"
DEFAULT_SENTINELS = 100
KEYS, DEFAULTS = keys_and_defaults(
    vocab_size=("vocab_size", 32128),
    d_model=("d_model", 512),
    key_dim=("d_kv", 64),
    d_ff=("d_ff", 2048),
    num_layers=("num_layers", 6),
    num_decoder_layers=("num_decoder_layers", None),
    num_heads=("num_heads", 8),
    num_buckets=("relative_attention_num_buckets", 32),
    max_distance=("relative_attention_max_distance", 128),
    dropout=("dropout_rate", 0.1),
    layer_norm_epsilon=("layer_norm_epsilon", 1e-6),
    tie_embeddings=("tie_word_embeddings", True),
)
DEFAULTS |= {"feed_forward_proj": "relu", "pad_token_id": 0, "eos_token_id": 1, BOS_KEY: 0}
DENSE = "DenseReluDense"


@dataclass(frozen=True)
class T5Family(Family):
    """T5 and its relatives.

    Attributes:
        share_biases: Whether the layers of a stack share one table of biases.
        scales: Whether the decoder's outputs may be scaled.
    """

    model_classes: tuple = (T5,)
    share_biases: bool = True
    scales: bool = True

    def arguments_of_tensors(self, config, names):
        """Returns whether the embeddings are tied, where outputs are not scaled: their tensor is stored if not.

        transformers 5 writes `tie_word_embeddings` as true whatever the model is.
        """
        scaled = self.scales and config.get("scale_decoder_outputs") is not False
        return {} if scaled else {"tie_embeddings": "lm_head.weight" not in names}

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        config = {**self.defaults, **config}
        activation, gated = _activation(config["feed_forward_proj"])
        name = config["feed_forward_proj"]
        # transformers writes these over the others.
        name = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
        again = {"num_hidden_layers": config["num_layers"], "dense_act_fn": name, "is_gated_act": gated}
        check_config(config, is_encoder_decoder=True, **again)
        near, far = config["relative_attention_num_buckets"] // 2, config["relative_attention_max_distance"]
        rule = "`relative_attention_max_distance` must be above half of `relative_attention_num_buckets`."
        check(far > near, rule, relative_attention_max_distance=far, half=near)
        scaled = self.scales and config.get("scale_decoder_outputs", config["tie_word_embeddings"])
        arguments = {
            **arguments_from(config, KEYS),
            "activation": activation,
            "gated": gated,
            "share_biases": self.share_biases,
            "output_scale": config["d_model"] ** -0.5 if scaled else 1.0,
        }
        return T5(**{**arguments, **add_token_ids(config, **kwargs, bos_key=BOS_KEY)})

    def make_config(self, model):
        """Makes the config.json of a model."""
        family = self.model_type
        scale, usual_scale = model.output_embedding.output_scale, model.d_model**-0.5
        check_parts(
            family,
            output_scale=(scale, 1.0 if scale == 1.0 or not self.scales else usual_scale),
            share_biases=(model.share_biases, self.share_biases),
        )
        name = activation_name(family, model)
        if model.gated:
            # transformers has one gated GELU, the form with tanh.
            check_parts(family, gated_activation=(name, "gelu_new" if name == "gelu" else name))
            name = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
        return {
            "model_type": family,
            "architectures": list(self.architectures[:1]),
            **keys_of(family, model, KEYS),
            "feed_forward_proj": name,
            **({"scale_decoder_outputs": scale == usual_scale} if self.scales else {}),
            **token_id_keys(model, BOS_KEY),
        }

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("shared.weight", model.target_embedding.embeddings)
        yield matrix("encoder.embed_tokens.weight", model.source_embedding.embeddings)
        yield matrix("decoder.embed_tokens.weight", model.target_embedding.embeddings)
        yield matrix("lm_head.weight", model.output_embedding.embeddings)
        for stack_name, last in (("encoder", 1), ("decoder", 2)):
            stack = getattr(model, stack_name)
            for i, layer in enumerate(stack.layers[: 1 if model.share_biases else None]):
                name = f"{stack_name}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
                yield matrix(name, layer.self_attention.positions.embeddings)
            names = LayerNames(
                tuple(f"0.SelfAttention.{letter}" for letter in "qkvo"),
                tuple(f"{sublayer}.layer_norm" for sublayer in range(last + 1)),
                tuple(f"{last}.{DENSE}.{inner}" for inner in (("wi_0", "wi_1") if model.gated else ("wi",))),
                f"{last}.{DENSE}.wo",
                tuple(f"1.EncDecAttention.{letter}" for letter in "qkvo"),
            )
            for i, layer in enumerate(stack.layers):
                yield from layer_tensors(f"{stack_name}.block.{i}.layer.", layer, names)
            yield from norm(f"{stack_name}.final_layer_norm", stack.norm)


def _activation(feed_forward_proj):
    """Returns this library's name of the activation, and whether the network is gated.

    The GELU of "gated-gelu" is the form with tanh.
    """
    gated = feed_forward_proj.startswith("gated-")
    name = "gelu_new" if feed_forward_proj == "gated-gelu" else feed_forward_proj.removeprefix("gated-")
    return activation_from({"feed_forward_proj": name}, "feed_forward_proj"), gated


def read_tokenizers(folder):
    """Reads spiece.model with as many sentinels after its pieces as tokenizer_config.json says, or tokenizer.json."""
    if not has_own_file(folder, "spiece.model"):
        tokenizer = json_tokenizer(folder, PADDED)
        check_ends(folder, (), [tokenizer.eos_id])
        check_roles(folder, tokenizer, eos="eos_id")
        return (tokenizer,)
    tokenizer = sentence_piece(folder / "spiece.model")
    count = read_if_there(folder, TOKENIZER_CONFIG).get("extra_ids", DEFAULT_SENTINELS)
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
    pieces = tokenizer.pieces(range(tokenizer.vocab_size)) + sentinels
    check_roles(folder, tokenizer, eos="eos_id")
    return (with_added_tokens(folder, tokenizer.model, pieces),)


def write_tokenizers(tokenizers, folder, model):
    """Writes spiece.model, and tokenizer_config.json with the number of sentinels."""
    (tokenizer,) = check_tokenizers("t5", tokenizers, "SentencePieceTokenizer", model)
    check_sentence_piece(
        "t5",
        tokenizer,
        ids=PADDED,
        model_type="unigram",
        bytes=False,
        remove_extra_whitespaces=True,
        add_dummy_prefix=True,
    )
    (folder / "spiece.model").write_bytes(tokenizer.model)
    count = tokenizer.vocab_size - sentence_piece(tokenizer.model).vocab_size
    tokens = {name: SENTENCE_PIECE_TOKENS[name] for name in ("pad", "unk", "eos")}
    write_tokenizer_config(folder, "T5Tokenizer", tokens, extra_ids=count)


TOKENIZER = TokenizerKind(
    (("spiece.model", "tokenizer.json"),), reader_of(read_tokenizers, "T5", "MT5"), write_tokenizers
)
FAMILY = T5Family(
    "t5",
    ("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    TOKENIZER,
    defaults=DEFAULTS,
    ignored=(  # old checkpoints hold it, and no model reads it
        re.compile(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"),
    ),
    more_keys=SEQ2SEQ,
)
