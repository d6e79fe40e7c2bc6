"""Marian: Junczys-Dowmunt et al., 2018, "Marian: Fast Neural Machine Translation in C++", as trained by Tiedemann and
Thottingal, 2020, "OPUS-MT".
"""

from keras_transformer.huggingface.configs import check_config, read_rows, token_ids, with_defaults
from keras_transformer.huggingface.families.seq2seq import PLACES, ROWS, Seq2SeqFamily
from keras_transformer.huggingface.files import write_json
from keras_transformer.huggingface.tokenizers.classes import reader_of
from keras_transformer.huggingface.tokenizers.kinds import (
    SENTENCE_PIECE_TOKENS,
    TokenizerKind,
    check_tokenizers,
    write_tokenizer_config,
)
from keras_transformer.huggingface.tokenizers.sentence_piece import vocabulary_tokenizer
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import EncoderDecoder, Transformer

TOKENS = {name: SENTENCE_PIECE_TOKENS[name] for name in ("pad", "unk", "eos")}
MARIAN_ROWS = {
    **with_defaults(ROWS, vocab_size=58101, pad_id=58100, eos_id=0, bos_id=58100),
    "target_vocab_size": ("decoder_vocab_size", None),
    "share_embeddings": ("share_encoder_decoder_embeddings", True),
}


class MarianFamily(Seq2SeqFamily):
    """Marian, whose models are a `Transformer`: both stacks have the same sizes, and there may be two vocabularies."""

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        arguments = read_rows(config, self.rows)
        is_shared, vocab_size = arguments["share_embeddings"], arguments["vocab_size"]
        check_config(
            {**self.defaults, **config},
            decoder_ffn_dim=arguments["encoder_d_ff"],
            decoder_attention_heads=arguments["encoder_num_heads"],
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            **({"decoder_vocab_size": vocab_size} if is_shared else {}),
        )
        self.check_keys(config, arguments)
        return Transformer(
            vocab_size,
            None if is_shared else arguments["target_vocab_size"] or vocab_size,
            **self.stack_arguments(arguments, "encoder"),
            num_decoder_layers=arguments["decoder_num_layers"],
            d_model=arguments["d_model"],
            embedding_scale=None if arguments["is_scaled"] else 1.0,
            output_bias=self.output_bias,
            positions=PositionalEncoding(**self.positions, dtype=kwargs.get("dtype"), name="positions"),
            **token_ids(arguments, **kwargs),
        )

    def other_keys(self, model):
        """Returns the longest length and the id that ends an output at its limit."""
        return {**super().other_keys(model), "forced_eos_token_id": model.eos_id}


def read_tokenizers(folder):
    """Reads source.spm and target.spm, whose pieces have the ids of vocab.json.

    Where there is a target_vocab.json, the target's pieces have its ids.
    """
    target = folder / "target_vocab.json"
    vocabularies = folder / "vocab.json", target if target.is_file() else folder / "vocab.json"
    return tuple(
        vocabulary_tokenizer(folder, folder / f"{side}.spm", path)
        for side, path in zip(("source", "target"), vocabularies, strict=True)
    )


def write_tokenizers(tokenizers, folder, model):
    """Writes source.spm and target.spm, and vocab.json with the ids of their pieces.

    It writes target_vocab.json too where the target's ids differ from the source's.
    """
    both = check_tokenizers("marian", tokenizers, "SentencePieceTokenizer", model, max_count=2)
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


FAMILY = MarianFamily(
    "marian",
    ("MarianMTModel",),
    TokenizerKind(
        (("source.spm",), ("target.spm",), ("vocab.json",)),
        reader_of(read_tokenizers, "Marian"),
        write_tokenizers,
    ),
    # A `Transformer` is an `EncoderDecoder` whose stacks are made from sizes.
    model_classes=(EncoderDecoder, Transformer),
    rows=MARIAN_ROWS,
    places=PLACES | {"share_embeddings": lambda model: model.source is model.target},
    # Sinusoidal positions have no limit.
    guessed_keys=("max_position_embeddings",),
    positions={"interleaved": False},
    stored_table=True,
)
