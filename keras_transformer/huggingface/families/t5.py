"""T5 and T5 1.1: Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer".
"""

import re

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import ID_PLACES, check_config, read_rows, token_ids, written_rows
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.files import read_if_there
from keras_transformer.huggingface.known_keys import SEQ2SEQ
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

DEFAULT_SENTINELS = 100
ROWS = {
    "vocab_size": ("vocab_size", 32128),
    "d_model": ("d_model", 512),
    "key_dim": ("d_kv", 64),
    "d_ff": ("d_ff", 2048),
    "num_layers": ("num_layers", 6),
    "num_decoder_layers": ("num_decoder_layers", None),
    "num_heads": ("num_heads", 8),
    "num_buckets": ("relative_attention_num_buckets", 32),
    "max_distance": ("relative_attention_max_distance", 128),
    "share_biases": (None, True),
    "dropout": ("dropout_rate", 0.1),
    "feed_forward": ("feed_forward_proj", "relu"),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-6),
    "tie_embeddings": ("tie_word_embeddings", True),
    "is_scaled": ("scale_decoder_outputs", None),
    "pad_id": ("pad_token_id", 0),
    "bos_id": ("decoder_start_token_id", 0),
    "eos_id": ("eos_token_id", 1),
}
DENSE = "DenseReluDense"


def feed_forward_of(model):
    """Returns transformers' name of a model's feed-forward networks; it has one gated GELU, the form with tanh."""
    (name,) = written_rows("t5", model, {"activation": ("activation", None)}).values()
    if not model.gated:
        return name
    rule = "`activation` of gated feed-forward networks must not be the exact GELU."
    check(name != "gelu", rule, activation=name)
    return "gated-gelu" if name == "gelu_new" else f"gated-{name}"


PLACES = {
    "feed_forward": feed_forward_of,
    "is_scaled": lambda model: model.output_embedding.output_scale == model.d_model**-0.5,
    **ID_PLACES,
}


class T5Family(Family):
    """T5 and its relatives."""

    def arguments_of_tensors(self, config, names):
        """Returns whether the embeddings are tied, where outputs are not scaled: their tensor is stored if not.

        transformers 5 writes `tie_word_embeddings` as true whatever the model is.
        """
        key, default = self.rows["is_scaled"]
        is_scaled = default if key is None else config.get(key) is not False
        return {} if is_scaled else {"tie_embeddings": "lm_head.weight" not in names}

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        arguments = read_rows(config, self.rows)
        proj = arguments.pop("feed_forward")
        gated = proj.startswith("gated-")
        # The GELU of "gated-gelu" is the form with tanh.
        name = "gelu_new" if proj == "gated-gelu" else proj.removeprefix("gated-")
        # transformers writes these over the others.
        again = {"num_hidden_layers": arguments["num_layers"], "dense_act_fn": name, "is_gated_act": gated}
        check_config(config, is_encoder_decoder=True, **again)
        near, far = arguments["num_buckets"] // 2, arguments["max_distance"]
        rule = "`relative_attention_max_distance` must be above half of `relative_attention_num_buckets`."
        check(far > near, rule, relative_attention_max_distance=far, half=near)
        is_scaled = arguments.pop("is_scaled")
        is_scaled = arguments["tie_embeddings"] if is_scaled is None else is_scaled
        activation = read_rows({"feed_forward_proj": name}, {"activation": ("feed_forward_proj", None)})
        scale = arguments["d_model"] ** -0.5 if is_scaled else 1.0
        model = {**arguments, **activation, "gated": gated, "output_scale": scale}
        return T5(**{**model, **token_ids(arguments, **kwargs)})

    def make_tensors(self, model):
        """Describes the tensors."""
        yield matrix("shared.weight", model.target.tokens.embeddings)
        yield matrix("encoder.embed_tokens.weight", model.source.tokens.embeddings)
        yield matrix("decoder.embed_tokens.weight", model.target.tokens.embeddings)
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
    rows=ROWS,
    places=PLACES,
    # Old checkpoints hold it, and no model reads it.
    ignored=(re.compile(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"),),
    more_keys=SEQ2SEQ,
    model_classes=(T5,),
)
