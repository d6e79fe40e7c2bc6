"""Marian: Junczys-Dowmunt et al., 2018, "Marian: Fast Neural Machine Translation in C++", as trained by Tiedemann and
Thottingal, 2020, "OPUS-MT".
"""

from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.families.seq2seq import BOS_KEY, DEFAULTS, Seq2SeqFamily
from keras_transformer.huggingface.files import write_json
from keras_transformer.huggingface.parts import check_parts
from keras_transformer.huggingface.tokenizers.classes import reader_of
from keras_transformer.huggingface.tokenizers.kinds import (
    SENTENCE_PIECE_TOKENS,
    TokenizerKind,
    check_tokenizers,
    write_tokenizer_config,
)
from keras_transformer.huggingface.tokenizers.sentence_piece import vocabulary_tokenizer
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
ALIKE = ("decoder_ffn_dim", "decoder_attention_heads")  # the encoder's are the same


class MarianFamily(Seq2SeqFamily):
    """Marian, whose models are a `Transformer`: both stacks have the same sizes, and there may be two vocabularies."""

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        config = {**self.defaults, **config}
        shared, vocab_size = config["share_encoder_decoder_embeddings"], config["vocab_size"]
        check_config(
            config,
            **{key: config[key.replace("decoder", "encoder")] for key in ALIKE},
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            **({"decoder_vocab_size": vocab_size} if shared else {}),
        )
        arguments = self.arguments(config, **kwargs)
        if not shared:
            arguments["target_vocab_size"] = config["decoder_vocab_size"] or vocab_size
        return Transformer(
            **{**self.stack_arguments(config, "encoder"), **arguments},
            **self.embedding_parts(config, kwargs.get("dtype")),
            num_decoder_layers=self.stack_arguments(config, "decoder")["num_layers"],
        )

    def make_config(self, model):
        """Makes the config.json of a model."""
        config = self.config_of_parts(model)
        for key in ALIKE:
            check_parts(self.model_type, **{key: (config[key], config[key.replace("decoder", "encoder")])})
        return {
            **config,
            "decoder_vocab_size": model.target_vocab_size,
            "share_encoder_decoder_embeddings": model.share_embeddings,
            "forced_eos_token_id": model.eos_id,
        }


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
    defaults=MARIAN_DEFAULTS,
    guessed_keys=("max_position_embeddings",),  # sinusoidal positions have no limit
    embedding_norm=False,
    positions={"interleaved": False},
    stored_table=True,
)
