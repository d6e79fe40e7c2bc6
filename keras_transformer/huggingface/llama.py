"""Llama: Touvron et al., 2023, "LLaMA: Open and Efficient Foundation Language Models", and its successors to 3.3."""

from keras_transformer.huggingface.byte_pair import read_byte_pair, write_byte_pair
from keras_transformer.huggingface.decoders import DecoderNames, decoder_family
from keras_transformer.huggingface.tokenizers import (
    SENTENCE_PIECE_TOKENS,
    TokenizerKind,
    check_sentence_piece,
    check_tokenizers,
    write_tokenizer_config,
)


def _read(folder):
    """Reads tokenizer.model, the SentencePiece model of Llama 1 and 2, or else Llama 3's tokenizer.json."""
    from keras_transformer.text import SentencePieceTokenizer  # loads TensorFlow

    path = folder / "tokenizer.model"
    return (SentencePieceTokenizer(path) if path.is_file() else read_byte_pair(folder),)


def _write(tokenizers, folder, model):
    """Writes tokenizer.json, or tokenizer.model for a SentencePiece model.

    A SentencePiece model must be one of byte pairs that leaves a text as it is: transformers reads every other one
    wrongly.
    """
    from keras_transformer.text import BytePairTokenizer, SentencePieceTokenizer  # loads TensorFlow

    if type(tokenizers[0]) is BytePairTokenizer:
        (tokenizer,) = check_tokenizers("llama", tokenizers, BytePairTokenizer, model)
        write_byte_pair(tokenizer, folder, starts_with_bos=True)
        return
    (tokenizer,) = check_tokenizers("llama", tokenizers, SentencePieceTokenizer, model)
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
    tokens = {name: SENTENCE_PIECE_TOKENS[name] for name in ("unk", "bos", "eos")}
    write_tokenizer_config(folder, "LlamaTokenizer", tokens)


TOKENIZER = TokenizerKind((("tokenizer.model", "tokenizer.json"),), _read, _write)
FAMILY = decoder_family(DecoderNames("llama", "LlamaForCausalLM"), TOKENIZER)
