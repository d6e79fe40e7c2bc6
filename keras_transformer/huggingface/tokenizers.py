"""Tokenizers into the folders of checkpoints: what their files say, and what transformers would read otherwise."""

from keras_transformer.huggingface.configs import check_parts
from keras_transformer.huggingface.files import write_object

CONFIG = "tokenizer_config.json"
TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # SentencePiece's numbers
WORD_PIECE = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SENTENCE_PIECE = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}


def checked(family, tokenizers, kind, model, count=1):
    """The tokenizers, as many as a family has: one that is given for several is each of them.

    Args:
        family: The model's `model_type`.
        tokenizers: One or two, the source's and the target's.
        kind: The class that they must be of.
        model: The model, whose ids they must have.
        count: Of how many texts with tokenizers of their own the family is.

    Raises:
        ValueError: If there are others, or their ids are.
    """
    source, target = tokenizers[0], tokenizers[-1]
    if len(tokenizers) > 2 or (count == 1 and source is not target):
        raise ValueError(
            f"`tokenizers` of a {family!r} model must be {count} at most. Received: tokenizers={tokenizers!r}."
        )
    for side, tokenizer in (("source_", source), ("target_", target)):
        check_parts(family, tokenizer=(tokenizer, kind))
        size = getattr(model, f"{side}vocab_size", None) or model.vocab_size
        if tokenizer.vocab_size > size:
            raise ValueError(
                f"`tokenizers` must have no more ids than the model. Received: {side}vocab_size={size}, and a "
                f"tokenizer of {tokenizer.vocab_size}."
            )
        for name in ("pad_id", "eos_id", "cls_id", "sep_id"):
            own, its = getattr(model, name, None), getattr(tokenizer, name, None)
            borrowed = name == "pad_id" and own == getattr(model, "eos_id", None)
            if None not in (own, its) and own != its and not borrowed:
                raise ValueError(
                    f"`tokenizers` must have the model's ids. Received: {name}={own}, and a tokenizer of {name}={its}."
                )
    return (source, target)[:count]


def check_sentence_piece(family, tokenizer, **expected):
    """Raises `ValueError` for a SentencePiece model that transformers would read as another.

    Args:
        family: The model's `model_type`.
        tokenizer: A `SentencePieceTokenizer`.
        **expected: Of `model_type`, `charsmap`, `remove_extra_whitespaces`, `bytes`, and the first ids, `ids`, those
            that its tokenizers there have alone.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    pieces = [piece.piece for piece in model.pieces]
    found = {
        "model_type": TYPES[model.trainer_spec.model_type],
        "ids": tuple(pieces[: len(expected.get("ids", ()))]),
        "bytes": "<0x00>" in pieces,
        "charsmap": bool(model.normalizer_spec.precompiled_charsmap),
        "remove_extra_whitespaces": model.normalizer_spec.remove_extra_whitespaces,
        "add_dummy_prefix": model.normalizer_spec.add_dummy_prefix,
    }
    check_parts(family, **{f"tokenizer's {name}": (found[name], rule) for name, rule in expected.items()})


def write_tokenizer_config(folder, tokenizer_class, pieces, **said):
    """Writes tokenizer_config.json: transformers' class, the special pieces and more."""
    tokens = {f"{name}_token": piece for name, piece in pieces.items()}
    write_object(folder / CONFIG, {"tokenizer_class": tokenizer_class, **tokens, **said})


def check_read_back(tokenizers, again):
    """Raises `ValueError` where what was written does not say what was given."""
    for given, read in zip(tokenizers, again, strict=True):
        pieces, others = (each.pieces(range(each.vocab_size)) for each in (given, read))
        differing = [
            i for i, (piece, other) in enumerate(zip(pieces, others, strict=False)) if piece != other
        ]
        if differing or len(pieces) != len(others):
            first = differing[0] if differing else min(len(pieces), len(others))
            raise ValueError(
                "`tokenizers` must have the ids that the family's files have. "
                f"Received: {len(pieces)} pieces, whose id {first} would be another there."
            )
