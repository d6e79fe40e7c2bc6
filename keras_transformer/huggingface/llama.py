"""Llama: Touvron et al., 2023, "LLaMA: Open and Efficient Foundation Language Models", and its successors to 3.3."""

import re

from keras_transformer.huggingface.configs import (
    activation,
    activation_name,
    check_config,
    check_parts,
    check_plain_attention,
    check_sizes,
    layer_parts,
    token_ids,
    with_token_ids,
)
from keras_transformer.huggingface.tensors import matrix, norm, plain, projections
from keras_transformer.huggingface.tokenizers import (
    SENTENCE_PIECE,
    check_sentence_piece,
    checked,
    write_tokenizer_config,
)
from keras_transformer.layers import (
    Decoder,
    GatedFeedForward,
    LinearScaling,
    Llama3Scaling,
    MultiHeadAttention,
    Residual,
    RMSNormalization,
    RotaryPositions,
)
from keras_transformer.models import LanguageModel

PREFIX = "model."
BUFFERS = (re.compile(r"(^|\.)rotary_emb\.inv_freq$"),)  # follows from `rope_theta`
TOKENIZER_FILES = (("tokenizer.model",),)
FREE = ("max_position_embeddings",)  # rotary positions have no end
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
# Their names of the arguments of ours.
ROPE = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            "original_max_position_embeddings": "original_max_length",
        },
    ),
}


def model(config, **kwargs):
    """The model that a configuration describes."""
    config = {**DEFAULTS, **config}
    vocab_size, d_model, d_ff, num_layers, num_heads = check_sizes(
        config,
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    attention = MultiHeadAttention(
        num_heads,
        config["head_dim"] or d_model // num_heads,
        dropout=config["attention_dropout"],
        use_bias=config["attention_bias"],
        num_key_value_heads=config["num_key_value_heads"],
        positions=_positions(config),
    )
    feed_forward = GatedFeedForward(d_ff, activation(config, "hidden_act"), use_bias=config["mlp_bias"])
    residual = Residual(0.0, normalize_first=True, norm=RMSNormalization(config["rms_norm_eps"]))
    return LanguageModel(
        vocab_size,
        d_model,
        Decoder(num_layers, attention=attention, feed_forward=feed_forward, residual=residual),
        tie_embeddings=config["tie_word_embeddings"],
        **with_token_ids(config, **kwargs),
    )


def _positions(config):
    """Rotary positions, from `rope_parameters`, or `rope_scaling` and `rope_theta` as transformers 4 wrote them."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", *ROPE):
        raise ValueError(
            f"`rope_type` of config.json must be one of {['default', *ROPE]}. Received: rope_type={kind!r}."
        )
    check_config({**config, **rope}, partial_rotary_factor=1.0)
    scaling = None
    if kind != "default":
        # As transformers: all of Llama 3's but this must be there.
        given = {"original_max_position_embeddings": config["max_position_embeddings"], **rope}
        scaling_class, arguments = ROPE[kind]
        missing = [key for key in arguments if key not in given]
        if missing:
            raise ValueError(f"`{missing[0]}` must be in the {kind!r} rope of config.json. Received: {rope}.")
        scaling = scaling_class(**{ours: given[theirs] for theirs, ours in arguments.items()})
    return RotaryPositions(rope.get("rope_theta", config.get("rope_theta", 10000.0)), scaling)


def config(model):
    """The configuration that describes a model. `max_position_embeddings` is as many as the rotary positions are scaled
    for, of Llama's 2048 where they do not say.
    """
    check_parts("llama", model=(model, LanguageModel))
    check_parts("llama", positions=(model.positions, None), decoder=(model.decoder, Decoder))
    attention, feed_forward, residual = layer_parts(
        "llama",
        model.decoder,
        feed_forward=GatedFeedForward,
        norm=RMSNormalization,
        normalize_first=True,
    )
    check_parts("llama", attention_positions=(attention.positions, RotaryPositions))
    check_plain_attention("llama", attention)
    if model.d_model % attention.num_heads:
        raise ValueError(
            "`d_model` of a 'llama' model must be divisible by `num_heads`. "
            f"Received: d_model={model.d_model}, num_heads={attention.num_heads}."
        )
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": feed_forward.d_ff,
        "num_hidden_layers": model.decoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "hidden_act": activation_name("llama", feed_forward),
        "rms_norm_eps": residual.norm.epsilon,
        "attention_bias": attention.use_bias,
        "attention_dropout": attention.dropout,
        "mlp_bias": feed_forward.use_bias,
        "tie_word_embeddings": model.tie_embeddings,
        **_rope(attention.positions),
        **token_ids(model),
    }


def _rope(positions):
    """The keys of rotary positions, as transformers 5 and as transformers 4 reads them."""
    theta, scaling = float(positions.max_wavelength), positions.scaling
    rope, longest = {"rope_type": "default"}, DEFAULTS["max_position_embeddings"]
    if scaling is not None:
        known = {scaling_class: (kind, keys) for kind, (scaling_class, keys) in ROPE.items()}
        if type(scaling) not in known:
            raise ValueError(
                f"`scaling` of a 'llama' model must be one of {[c.__name__ for c in known]}. "
                f"Received: scaling={scaling!r}."
            )
        kind, arguments = known[type(scaling)]
        rope = {"rope_type": kind, **{key: getattr(scaling, ours) for key, ours in arguments.items()}}
        longest = int(scaling.factor * rope.get("original_max_position_embeddings", longest))
    return {
        "max_position_embeddings": longest,
        "rope_parameters": {**rope, "rope_theta": theta},
        "rope_theta": theta,
        "rope_scaling": None if scaling is None else rope,
    }


def tensors(model):
    """The tensors of its checkpoints."""
    yield matrix("model.embed_tokens.weight", model.token_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    for i, layer in enumerate(model.decoder.layers):
        name, feed_forward = f"model.layers.{i}", layer.feed_forward
        yield from norm(f"{name}.input_layernorm", layer.self_attention_residual.norm)
        yield from projections(layer.self_attention, *(f"{name}.self_attn.{part}_proj" for part in "qkvo"))
        yield from norm(f"{name}.post_attention_layernorm", layer.feed_forward_residual.norm)
        for part, own in (
            ("gate_proj", feed_forward.gate),
            ("up_proj", feed_forward.inner),
            ("down_proj", feed_forward.outer),
        ):
            yield from plain(f"{name}.mlp.{part}", own)
    yield from norm("model.norm", model.decoder.norm)


def tokenizers(folder, config):
    """The tokenizer of tokenizer.model, a SentencePiece model as those of Llama 1 and 2."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    return (SentencePieceTokenizer(folder / "tokenizer.model"),)


def write_tokenizers(tokenizers, folder, model):
    """The way back, for pairs of bytes as Llama's: transformers takes no other model, and normalises no text."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    (tokenizer,) = checked("llama", tokenizers, SentencePieceTokenizer, model)
    check_sentence_piece(
        "llama",
        tokenizer,
        ids=("<unk>", "<s>", "</s>"),
        model_type="bpe",
        bytes=True,
        charsmap=False,
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
    )
    (folder / "tokenizer.model").write_bytes(tokenizer.model)
    pieces = {name: SENTENCE_PIECE[name] for name in ("unk", "bos", "eos")}
    write_tokenizer_config(folder, "LlamaTokenizer", pieces)
