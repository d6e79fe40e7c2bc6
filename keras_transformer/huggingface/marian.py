"""Marian: Junczys-Dowmunt et al., 2018, "Marian: Fast Neural Machine Translation in C++", as trained by Tiedemann and
Thottingal, 2020, "OPUS-MT".
"""

from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    add_token_ids,
    check_config,
    check_layers,
    check_parts,
    check_plain_attention,
    sizes_of,
    token_id_keys,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.files import write_json
from keras_transformer.huggingface.sentence_piece import vocabulary_tokenizer
from keras_transformer.huggingface.seq2seq import (
    BOS_KEY,
    DEFAULTS,
    EPSILON,
    STACKS,
    layer_tensors,
    sinusoidal_tables,
)
from keras_transformer.huggingface.tensors import matrix
from keras_transformer.huggingface.tokenizers import (
    SENTENCE_PIECE_TOKENS,
    TokenizerKind,
    check_tokenizers,
    write_tokenizer_config,
)
from keras_transformer.layers import Decoder, Encoder, PositionalEncoding
from keras_transformer.models import EncoderDecoder, Transformer

TOKENS = {name: SENTENCE_PIECE_TOKENS[name] for name in ("pad", "unk", "eos")}
MARIAN_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "share_encoder_decoder_embeddings": True,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    BOS_KEY: 58100,
}


def make_model(config, **kwargs):
    """Makes the model that a config.json describes."""
    config = {**MARIAN_DEFAULTS, **config}
    shared = config["share_encoder_decoder_embeddings"]
    check_config(
        config,
        is_encoder_decoder=True,
        tie_word_embeddings=True,
        decoder_ffn_dim=config["encoder_ffn_dim"],
        decoder_attention_heads=config["encoder_attention_heads"],
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        static_position_embeddings=True,
        **({"decoder_vocab_size": config["vocab_size"]} if shared else {}),
    )
    vocab_size, d_model, d_ff, num_heads, num_layers, num_decoder_layers = sizes_of(
        config,
        "vocab_size",
        "d_model",
        "encoder_ffn_dim",
        "encoder_attention_heads",
        "encoder_layers",
        "decoder_layers",
    )
    return Transformer(
        vocab_size,
        None if shared else config["decoder_vocab_size"] or vocab_size,
        num_layers=num_layers,
        num_decoder_layers=num_decoder_layers,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        dropout=config["dropout"],
        positions=PositionalEncoding(interleaved=False, dtype=kwargs.get("dtype"), name="positions"),
        embedding_scale=None if config["scale_embedding"] else 1.0,
        output_bias=True,
        activation=activation_from(config, "activation_function"),
        layer_norm_epsilon=EPSILON,
        attention_dropout=config["attention_dropout"],
        activation_dropout=config["activation_dropout"],
        **add_token_ids(config, **kwargs, bos_key=BOS_KEY),
    )


def make_config(model):
    """Makes the config.json of a model.

    `max_position_embeddings` is transformers' default, because sinusoidal positions have no limit.
    """
    if type(model) is not EncoderDecoder:  # a `Transformer` is one whose stacks are made from sizes
        check_parts("marian", model=(model, Transformer))
    check_parts(
        "marian",
        positions=(model.positions, PositionalEncoding),
        encoder=(model.encoder, Encoder),
        decoder=(model.decoder, Decoder),
    )
    attention, feed_forward, residual = check_layers(
        "marian", model.encoder, model.decoder, normalize_first=False
    )
    check_parts(
        "marian",
        interleaved=(model.positions.interleaved, False),
        max_wavelength=(model.positions.max_wavelength, 10000.0),
        output_bias=(model.output_bias, True),
        layer_norm_epsilon=(residual.norm.epsilon, EPSILON),
    )
    check_parts(
        "marian",
        positions_offset=(model.positions.offset, 0),
        positions_endpoint=(model.positions.endpoint, False),
        target_positions=(model.target_positions, None),
        source_norm=(model.source_norm, None),
        target_norm=(model.target_norm, None),
    )
    d_model, scale = model.d_model, model.target_embedding.scale
    check_plain_attention("marian", attention, d_model)
    check_parts(
        "marian",
        embedding_scale=(scale, 1.0 if scale == 1.0 else d_model**0.5),
        feed_forward_bias=(feed_forward.use_bias, True),
    )
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": model.source_vocab_size,
        "decoder_vocab_size": model.target_vocab_size,
        "max_position_embeddings": MARIAN_DEFAULTS["max_position_embeddings"],
        "encoder_layers": model.encoder.num_layers,
        "encoder_ffn_dim": feed_forward.d_ff,
        "encoder_attention_heads": attention.num_heads,
        "decoder_layers": model.decoder.num_layers,
        "decoder_ffn_dim": feed_forward.d_ff,
        "decoder_attention_heads": attention.num_heads,
        "activation_function": activation_name("marian", feed_forward),
        "d_model": d_model,
        "dropout": model.dropout,
        "attention_dropout": attention.dropout,
        "activation_dropout": feed_forward.dropout,
        "scale_embedding": scale != 1.0,
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": True,
        **token_id_keys(model, BOS_KEY),
        "forced_eos_token_id": model.eos_id,
    }


def make_tensors(model):
    """Describes the tensors."""
    if model.share_embeddings:
        yield matrix("model.shared.weight", model.target_embedding.embeddings)
    yield matrix("model.encoder.embed_tokens.weight", model.source_embedding.embeddings)
    yield matrix("model.decoder.embed_tokens.weight", model.target_embedding.embeddings)
    yield matrix("lm_head.weight", model.output_embedding.embeddings)
    yield matrix("final_logits_bias", model.output_embedding.bias, input_axes=0)
    for stack in STACKS:
        for i, layer in enumerate(getattr(model, stack).layers):
            yield from layer_tensors(f"model.{stack}.layers.{i}", layer)


def read_tokenizers(folder):
    """Reads source.spm and target.spm, whose pieces have the ids of vocab.json.

    Where there is a target_vocab.json, the target's pieces have its ids.
    """
    target = folder / "target_vocab.json"
    vocabularies = folder / "vocab.json", target if target.is_file() else folder / "vocab.json"
    return tuple(
        vocabulary_tokenizer(folder / f"{side}.spm", path)
        for side, path in zip(("source", "target"), vocabularies, strict=True)
    )


def write_tokenizers(tokenizers, folder, model):
    """Writes source.spm and target.spm, and vocab.json with the ids of their pieces.

    It writes target_vocab.json too where the target's ids differ from the source's.
    """
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    both = check_tokenizers("marian", tokenizers, SentencePieceTokenizer, model, max_count=2)
    vocabularies = []
    for side, tokenizer in zip(("source", "target"), both, strict=True):
        (folder / f"{side}.spm").write_bytes(tokenizer.model)
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        missing = [token for token in TOKENS.values() if token not in pieces]
        if missing:
            raise ValueError(f"`tokenizers` of a 'marian' model must have {missing[0]!r} among their pieces.")
        vocabularies.append({piece: i for i, piece in enumerate(pieces)})
    source, target = vocabularies
    write_json(folder / "vocab.json", source)
    if target != source:
        write_json(folder / "target_vocab.json", target)
    write_tokenizer_config(folder, "MarianTokenizer", TOKENS, separate_vocabs=target != source)


FAMILY = Family(
    "marian",
    make_model,
    make_config,
    make_tensors,
    prefix="model.",
    guessed_keys=("max_position_embeddings",),  # sinusoidal positions have no limit
    make_tables=sinusoidal_tables,
    tokenizer=TokenizerKind(
        (("source.spm",), ("target.spm",), ("vocab.json",)), read_tokenizers, write_tokenizers
    ),
)
