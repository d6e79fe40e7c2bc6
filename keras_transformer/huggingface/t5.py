"""T5 and T5 1.1: Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer".
"""

import re

from keras_transformer.huggingface.configs import (
    activation,
    activation_name,
    check_config,
    check_parts,
    check_sizes,
    token_ids,
    with_token_ids,
)
from keras_transformer.huggingface.files import read_object
from keras_transformer.huggingface.tensors import matrix, norm, plain, projections
from keras_transformer.huggingface.tokenizers import (
    SENTENCE_PIECE,
    check_sentence_piece,
    checked,
    write_tokenizer_config,
)
from keras_transformer.layers import FeedForward, GatedFeedForward
from keras_transformer.models import T5

PREFIX = ""
BUFFERS = (  # of old checkpoints; nothing reads it
    re.compile(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$"),
)
TOKENIZER_FILES = (("spiece.model",),)
FREE = ()
START = "decoder_start_token_id"
EXTRA_IDS = 100
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
    START: 0,
}


def completed(config, names):
    """The configuration with what only the stored tensors say.

    transformers 5 writes `tie_word_embeddings` as true whatever the model is; that an output projection is its own is
    seen where it is stored, and outputs are not scaled before it.
    """
    if config.get("scale_decoder_outputs") is False:
        return {**config, "tie_word_embeddings": "lm_head.weight" not in names}
    return config


def model(config, **kwargs):
    """The model that a configuration describes."""
    config = {**DEFAULTS, **config}
    check_config(config, is_encoder_decoder=True)
    vocab_size, d_model, key_dim, d_ff, num_layers, num_heads, num_buckets, max_distance = check_sizes(
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
    tied, dropout = config["tie_word_embeddings"], config["dropout_rate"]
    return T5(
        vocab_size,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        key_dim=key_dim,
        num_decoder_layers=config["num_decoder_layers"],
        dropout=dropout,
        feed_forward=_feed_forward(config["feed_forward_proj"], d_ff, dropout),
        num_buckets=num_buckets,
        max_distance=max_distance,
        layer_norm_epsilon=config["layer_norm_epsilon"],
        tie_embeddings=tied,
        output_scale=d_model**-0.5 if config.get("scale_decoder_outputs", tied) else 1.0,
        **with_token_ids(config, **kwargs, start=START),
    )


def _feed_forward(kind, d_ff, dropout):
    """A template of what `feed_forward_proj` names: "relu", or "gated-gelu", whose GELU is the form with tanh."""
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    part = GatedFeedForward if kind.startswith("gated-") else FeedForward
    return part(d_ff, activation({"feed_forward_proj": name}, "feed_forward_proj"), dropout, use_bias=False)


def config(model):
    """The configuration that describes a model."""
    check_parts("t5", model=(model, T5))
    layer = model.encoder.layers[0]
    attention, feed_forward = layer.self_attention, layer.feed_forward
    gated = isinstance(feed_forward, GatedFeedForward)
    scale, plain = model.output_embedding.output_scale, model.d_model**-0.5
    check_parts("t5", feed_forward=(feed_forward, GatedFeedForward if gated else FeedForward))
    check_parts(
        "t5",
        feed_forward_bias=(feed_forward.use_bias, False),
        output_scale=(scale, 1.0 if scale == 1.0 else plain),
    )
    name = activation_name("t5", feed_forward)
    if gated:  # they know one gated GELU
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
        "scale_decoder_outputs": scale == plain,
        **token_ids(model, START),
    }


def tensors(model):
    """The tensors of its checkpoints."""
    yield matrix("shared.weight", model.target_embedding.embeddings)
    yield matrix("encoder.embed_tokens.weight", model.source_embedding.embeddings)
    yield matrix("decoder.embed_tokens.weight", model.target_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        bias = stack.layers[0].self_attention.positions
        yield matrix(f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", bias.embeddings)
        for i, layer in enumerate(stack.layers):
            yield from _block(f"{name}.block.{i}.layer", layer)
        yield from norm(f"{name}.final_layer_norm", stack.norm)


def _block(name, layer):
    sublayers = [("SelfAttention", layer.self_attention, layer.self_attention_residual)]
    if getattr(layer, "cross_attention", None) is not None:
        sublayers.append(("EncDecAttention", layer.cross_attention, layer.cross_attention_residual))
    for i, (part, attention, residual) in enumerate(sublayers):
        yield from projections(attention, *(f"{name}.{i}.{part}.{projection}" for projection in "qkvo"))
        yield from norm(f"{name}.{i}.layer_norm", residual.norm)
    name, feed_forward = f"{name}.{len(sublayers)}", layer.feed_forward
    inner = [("wi", feed_forward.inner)]
    if isinstance(feed_forward, GatedFeedForward):
        inner = [("wi_0", feed_forward.gate), ("wi_1", feed_forward.inner)]
    for part, own in (*inner, ("wo", feed_forward.outer)):
        yield from plain(f"{name}.DenseReluDense.{part}", own)
    yield from norm(f"{name}.layer_norm", layer.feed_forward_residual.norm)


def tokenizers(folder, config):
    """The tokenizer of spiece.model, with the sentinels that tokenizer_config.json counts after its pieces."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    own = SentencePieceTokenizer(folder / "spiece.model")
    described = folder / "tokenizer_config.json"
    count = read_object(described).get("extra_ids", EXTRA_IDS) if described.is_file() else EXTRA_IDS
    extra = [f"<extra_id_{i}>" for i in reversed(range(count))]
    return (SentencePieceTokenizer(own.model, own.pieces(range(own.vocab_size)) + extra),)


def write_tokenizers(tokenizers, folder, model):
    """The way back: spiece.model, and the number of sentinels after its pieces."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    (tokenizer,) = checked("t5", tokenizers, SentencePieceTokenizer, model)
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
    pieces = {name: SENTENCE_PIECE[name] for name in ("pad", "unk", "eos")}
    write_tokenizer_config(folder, "T5Tokenizer", pieces, extra_ids=count)
