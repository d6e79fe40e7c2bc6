"""T5 and T5 1.1: Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer".
"""

import re

from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    add_token_ids,
    check_config,
    check_parts,
    sizes_of,
    token_id_keys,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.files import read_json
from keras_transformer.huggingface.tensors import attention_projections, dense, matrix, norm
from keras_transformer.huggingface.tokenizers import (
    SENTENCE_PIECE_TOKENS,
    TokenizerKind,
    check_sentence_piece,
    check_tokenizers,
    write_tokenizer_config,
)
from keras_transformer.layers import GatedFeedForward
from keras_transformer.models import T5

BOS_KEY = "decoder_start_token_id"
DEFAULT_SENTINELS = 100
DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    BOS_KEY: 0,
}


def complete_config(config, tensor_names):
    """Corrects `tie_word_embeddings`, which transformers 5 writes as true whatever the model is.

    Where outputs are not scaled, the output projection may be its own. Then its tensor is stored.
    """
    if config.get("scale_decoder_outputs") is False:
        return {**config, "tie_word_embeddings": "lm_head.weight" not in tensor_names}
    return config


def make_model(config, **kwargs):
    """Makes the model that a config.json describes."""
    config = {**DEFAULTS, **config}
    check_config(config, is_encoder_decoder=True)
    vocab_size, d_model, key_dim, d_ff, num_layers, num_heads, num_buckets, max_distance = sizes_of(
        config,
        "vocab_size",
        "d_model",
        "d_kv",
        "d_ff",
        "num_layers",
        "num_heads",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
    )
    tied = config["tie_word_embeddings"]
    activation, gated = _activation(config["feed_forward_proj"])
    return T5(
        vocab_size,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        key_dim=key_dim,
        d_ff=d_ff,
        num_decoder_layers=config["num_decoder_layers"],
        dropout=config["dropout_rate"],
        activation=activation,
        gated=gated,
        num_buckets=num_buckets,
        max_distance=max_distance,
        layer_norm_epsilon=config["layer_norm_epsilon"],
        tie_embeddings=tied,
        output_scale=d_model**-0.5 if config.get("scale_decoder_outputs", tied) else 1.0,
        **add_token_ids(config, **kwargs, bos_key=BOS_KEY),
    )


def _activation(feed_forward_proj):
    """Returns this library's name of the activation, and whether the network is gated.

    The GELU of "gated-gelu" is the form with tanh.
    """
    gated = feed_forward_proj.startswith("gated-")
    name = "gelu_new" if feed_forward_proj == "gated-gelu" else feed_forward_proj.removeprefix("gated-")
    return activation_from({"feed_forward_proj": name}, "feed_forward_proj"), gated


def make_config(model):
    """Makes the config.json of a model."""
    check_parts("t5", model=(model, T5))
    layer = model.encoder.layers[0]
    attention, feed_forward = layer.self_attention, layer.feed_forward
    scale, usual_scale = model.output_embedding.output_scale, model.d_model**-0.5
    check_parts("t5", output_scale=(scale, 1.0 if scale == 1.0 else usual_scale))
    name = activation_name("t5", feed_forward)
    if isinstance(feed_forward, GatedFeedForward):
        # transformers has one gated GELU, the form with tanh.
        check_parts("t5", gated_activation=(name, "gelu_new" if name == "gelu" else name))
        name = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": model.target_vocab_size,
        "d_model": model.d_model,
        "d_kv": attention.key_dim,
        "d_ff": feed_forward.d_ff,
        "num_layers": model.encoder.num_layers,
        "num_decoder_layers": model.decoder.num_layers,
        "num_heads": attention.num_heads,
        "relative_attention_num_buckets": attention.positions.num_buckets,
        "relative_attention_max_distance": attention.positions.max_distance,
        "dropout_rate": model.dropout,
        "layer_norm_epsilon": layer.self_attention_residual.norm.epsilon,
        "feed_forward_proj": name,
        "tie_word_embeddings": model.tie_embeddings,
        "scale_decoder_outputs": scale == usual_scale,
        **token_id_keys(model, BOS_KEY),
    }


def make_tensors(model):
    """Describes the tensors."""
    yield matrix("shared.weight", model.target_embedding.embeddings)
    yield matrix("encoder.embed_tokens.weight", model.source_embedding.embeddings)
    yield matrix("decoder.embed_tokens.weight", model.target_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    for stack_name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        bias = stack.layers[0].self_attention.positions
        name = f"{stack_name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield matrix(name, bias.embeddings)
        for i, layer in enumerate(stack.layers):
            name = f"{stack_name}.block.{i}.layer"
            yield from _attention(
                f"{name}.0", "SelfAttention", layer.self_attention, layer.self_attention_residual
            )
            if stack is model.decoder:
                yield from _attention(
                    f"{name}.1", "EncDecAttention", layer.cross_attention, layer.cross_attention_residual
                )
            yield from _feed_forward(f"{name}.2" if stack is model.decoder else f"{name}.1", layer)
        yield from norm(f"{stack_name}.final_layer_norm", stack.norm)


def _attention(name, kind, attention, residual):
    yield from attention_projections(attention, *(f"{name}.{kind}.{letter}" for letter in "qkvo"))
    yield from norm(f"{name}.layer_norm", residual.norm)


def _feed_forward(name, layer):
    feed_forward = layer.feed_forward
    if isinstance(feed_forward, GatedFeedForward):
        yield from dense(f"{name}.DenseReluDense.wi_0", feed_forward.gate)
        yield from dense(f"{name}.DenseReluDense.wi_1", feed_forward.inner)
    else:
        yield from dense(f"{name}.DenseReluDense.wi", feed_forward.inner)
    yield from dense(f"{name}.DenseReluDense.wo", feed_forward.outer)
    yield from norm(f"{name}.layer_norm", layer.feed_forward_residual.norm)


def read_tokenizers(folder):
    """Reads spiece.model, and adds as many sentinels after its pieces as tokenizer_config.json says."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    tokenizer = SentencePieceTokenizer(folder / "spiece.model")
    path = folder / "tokenizer_config.json"
    count = read_json(path).get("extra_ids", DEFAULT_SENTINELS) if path.is_file() else DEFAULT_SENTINELS
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
    return (
        SentencePieceTokenizer(tokenizer.model, tokenizer.pieces(range(tokenizer.vocab_size)) + sentinels),
    )


def write_tokenizers(tokenizers, folder, model):
    """Writes spiece.model, and tokenizer_config.json with the number of sentinels."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    (tokenizer,) = check_tokenizers("t5", tokenizers, SentencePieceTokenizer, model)
    check_sentence_piece(
        "t5",
        tokenizer,
        ids=("<pad>", "</s>", "<unk>"),
        model_type="unigram",
        bytes=False,
        remove_extra_whitespaces=True,
        add_dummy_prefix=True,
    )
    (folder / "spiece.model").write_bytes(tokenizer.model)
    count = tokenizer.vocab_size - SentencePieceTokenizer(tokenizer.model).vocab_size
    tokens = {name: SENTENCE_PIECE_TOKENS[name] for name in ("pad", "unk", "eos")}
    write_tokenizer_config(folder, "T5Tokenizer", tokens, extra_ids=count)


FAMILY = Family(
    "t5",
    make_model,
    make_config,
    make_tensors,
    ignored=(  # old checkpoints hold it, and no model reads it
        re.compile(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"),
    ),
    complete_config=complete_config,
    tokenizer=TokenizerKind((("spiece.model",),), read_tokenizers, write_tokenizers),
)
