"""Reading and writing of SentencePiece models: as they are (Gemma), or with the ids of fairseq (XLM-RoBERTa, mBART),
of a vocabulary (Marian, M2M-100) or of PEGASUS.
"""

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_if_there, read_json
from keras_transformer.huggingface.languages import LANGUAGE, MASK, language_tokens
from keras_transformer.huggingface.tokenizers.added_tokens import read_added_tokens
from keras_transformer.huggingface.tokenizers.classes import (
    check_roles,
    class_of,
    family_of,
    has_own_file,
    reader_of,
    takes_file,
)
from keras_transformer.huggingface.tokenizers.kinds import (
    SENTENCE_PIECE_TOKENS,
    TOKENIZER_CONFIG,
    TokenizerKind,
    check_properties,
    check_sentence_piece,
    check_tokenizers,
    write_tokenizer_config,
    writes_bos,
)
from keras_transformer.huggingface.tokenizers.post_processor import check_ends
from keras_transformer.huggingface.tokenizers.sentence_piece_json import BLANK, CONTROL, read_pieces
from keras_transformer.huggingface.tokenizers.sentence_piece_json import FILE as JSON

FILE = "sentencepiece.bpe.model"
# The ids of pieces begin there, after those of the pretraining.
PEGASUS_OFFSET = 103
START = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's first ids
# The first ids of fairseq's SentencePiece models.
FAIRSEQ = ("<unk>", "<s>", "</s>")
CAMEMBERT_START = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
# The first ids of T5 and PEGASUS.
PADDED = ("<pad>", "</s>", "<unk>")


def sentence_piece(model, pieces=None, added_tokens=(), blank=None):
    """Makes a `SentencePieceTokenizer`, whose import loads TensorFlow."""
    from keras_transformer.text import SentencePieceTokenizer

    return SentencePieceTokenizer(model, pieces, added_tokens, blank)


def with_added_tokens(folder, model, pieces=None, blank=None, finds_special=True):
    """Makes a tokenizer with the tokens that the files of a folder add.

    Languages and T5's sentinels are special tokens, but the first are plain text in a text, as the other tokens with a
    role, and the second are written in outputs.

    Args:
        folder: A `pathlib.Path`.
        model: A SentencePiece model, its bytes or a path.
        pieces: The pieces in the order of their ids, a list of str; None for those of the model.
        blank: As in `SentencePieceTokenizer`, for a model that keeps blanks.
        finds_special: As in `read_added_tokens`.
    """
    from sentencepiece import sentencepiece_model_pb2

    from keras_transformer.text.sentence_piece import SYMBOL

    model = model if isinstance(model, bytes) else sentence_piece(model).model
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    if proto.normalizer_spec.remove_extra_whitespaces:
        blank = None
    own = [piece.piece for piece in proto.pieces] if pieces is None else list(pieces)
    roles = (*SENTENCE_PIECE_TOKENS.values(), MASK)
    every, in_texts = read_added_tokens(folder, own, roles=roles, finds_special=finds_special)
    in_texts = [
        token._replace(special=token.special and not SYMBOL.fullmatch(token.content))
        for token in in_texts
        if BLANK not in token.content and not (token.special and LANGUAGE.fullmatch(token.content))
    ]
    if pieces is not None:
        return sentence_piece(model, every, in_texts, blank)
    for piece in every[len(own) :]:
        # SentencePiece itself finds none of them in a text.
        proto.pieces.add(piece=piece, type=CONTROL)
    return sentence_piece(model if every == own else proto.SerializeToString(), None, in_texts, blank)


def json_tokenizer(folder, first, trims=True):
    """Makes a tokenizer of tokenizer.json, whose SentencePiece model has other ids.

    Args:
        folder: A `pathlib.Path`.
        first: The first pieces of the model.
        trims: Whether the class of the tokenizer removes blanks, whatever the file says: a bool, or the name of the
            model's option that decides it. None where the file decides.
    """
    check_config(read_if_there(folder, TOKENIZER_CONFIG), TOKENIZER_CONFIG, add_prefix_space=True)
    own = {"add_dummy_prefix": True, "byte_fallback": False}
    own |= {} if trims is None else {"remove_extra_whitespaces": trims}
    return with_added_tokens(folder, *read_pieces(folder, first, own))


def sentence_piece_kind(family, tokenizer_class, tokens, add_dummy_prefix):
    """Makes the `TokenizerKind` of a SentencePiece model with the checkpoint's ids: tokenizer.model, or tokenizer.json.

    It must be one of byte pairs that leaves a text as it is: transformers reads every other one wrongly.

    Args:
        family: The `model_type`.
        tokenizer_class: Name of transformers' class.
        tokens: A dict of the special tokens, which are the model's first pieces: "pad", "unk" and so on.
        add_dummy_prefix: Whether a text must begin with a blank, a bool.
    """

    def write(tokenizers, folder, model):
        (tokenizer,) = check_tokenizers(family, tokenizers, "SentencePieceTokenizer", model)
        check_sentence_piece(
            family,
            tokenizer,
            ids=tuple(tokens.values()),
            model_type="bpe",
            bytes=True,
            charsmap=False,
            remove_extra_whitespaces=False,
            add_dummy_prefix=add_dummy_prefix,
        )
        (folder / "tokenizer.model").write_bytes(tokenizer.model)
        write_tokenizer_config(folder, tokenizer_class, tokens, add_bos_token=writes_bos(model, True))

    def read(folder):
        own = {"remove_extra_whitespaces": False, "precompiled_charsmap": False, "byte_fallback": True}
        own |= {} if add_dummy_prefix else {"add_dummy_prefix": False}
        path = folder / "tokenizer.model"
        model, _, blank = (
            (path, None, None) if has_own_file(folder, path.name) else read_pieces(folder, own=own)
        )
        config = read_if_there(folder, TOKENIZER_CONFIG)
        if add_dummy_prefix and not takes_file(folder):
            # As transformers' `LlamaTokenizer` does, whatever tokenizer.json says.
            blank = "always" if config.get("legacy") else "first"
            blank = blank if config.get("add_prefix_space") in (None, True) else "never"
        tokenizer = with_added_tokens(folder, model, None, blank, finds_special=False)
        check_roles(folder, tokenizer, bos="bos_id")
        return (tokenizer,)

    classes = {"LlamaTokenizer": ("Llama", "CodeLlama")}.get(tokenizer_class, ("Gemma",))
    return TokenizerKind((("tokenizer.model", JSON),), reader_of(read, *classes), write)


def fairseq_tokenizer(model, languages=()):
    """Makes a tokenizer with fairseq's ids: `START`, the pieces without the three special ones, languages, a mask.

    Args:
        model: A SentencePiece model, its bytes or a path.
        languages: The tokens of the languages, a sequence of str.
    """
    own = sentence_piece(model)
    check_sentence_piece("fairseq", own, ids=FAIRSEQ)
    pieces = own.pieces(range(3, own.vocab_size))
    return sentence_piece(own.model, [*START, *pieces, *languages, MASK])


def camembert_tokenizer(model):
    """Makes a tokenizer with CamemBERT's ids: `CAMEMBERT_START`, the pieces after the unknown one, a mask.

    Args:
        model: A SentencePiece model, its bytes or a path.
    """
    own = sentence_piece(model)
    check_sentence_piece("camembert", own, ids=FAIRSEQ)
    return sentence_piece(own.model, [*CAMEMBERT_START, *own.pieces(range(1, own.vocab_size)), MASK])


def _encoder_kind(family, tokenizer_class, make):
    """Makes the `TokenizerKind` of an encoder whose ids are fairseq's or a variant of them.

    Args:
        family: The `model_type`.
        tokenizer_class: Name of transformers' class.
        make: `make(model)` makes the tokenizer of a SentencePiece model.
    """

    def write(tokenizers, folder, model):
        (tokenizer,) = check_tokenizers(family, tokenizers, "SentencePieceTokenizer", model)
        expected = make(tokenizer.model).vocabulary
        check_properties(family, fairseq_ids=(tokenizer.vocabulary == expected, True))
        (folder / FILE).write_bytes(tokenizer.model)
        tokens = {**SENTENCE_PIECE_TOKENS, "cls": "<s>", "sep": "</s>", "mask": MASK}
        write_tokenizer_config(folder, tokenizer_class, tokens)

    def read(folder):
        rule = (
            f"`tokenizer_class` must be named where a model of another family than {family} has these files."
        )
        named = class_of(folder) is not None or family_of(folder) == family
        check(named, rule, model_type=family_of(folder))
        if not has_own_file(folder, FILE):
            tokenizer = json_tokenizer(folder, FAIRSEQ)
        else:
            own = make(folder / FILE)
            tokenizer = with_added_tokens(folder, own.model, own.vocabulary)
        last = [tokenizer.eos_id]
        check_ends(folder, [tokenizer.bos_id], last, last * 2)
        check_roles(folder, tokenizer, bos="bos_id", eos="eos_id")
        return (tokenizer,)

    return TokenizerKind(((FILE, JSON),), reader_of(read, tokenizer_class.removesuffix("Tokenizer")), write)


FAIRSEQ_SENTENCE_PIECE = _encoder_kind("xlm-roberta", "XLMRobertaTokenizer", fairseq_tokenizer)
CAMEMBERT_SENTENCE_PIECE = _encoder_kind("camembert", "CamembertTokenizer", camembert_tokenizer)


def vocabulary_tokenizer(folder, model, path, more=()):
    """Makes a tokenizer of a SentencePiece model whose pieces have the ids of a JSON object.

    Args:
        folder: A `pathlib.Path`, whose files may add tokens.
        model: Path of the SentencePiece model.
        path: Path of the JSON file.
        more: The tokens after those of the file, a sequence of str.
    """
    ids = read_json(path)
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(len(ids)))):
        raise ValueError(f"{path} must have the ids from 0 to {len(ids) - 1}, each once.")
    return with_added_tokens(folder, model, [*sorted(ids, key=ids.get), *more])


# Whether transformers' class removes blanks: that of NLLB does so where it has a map of characters.
TRIMS = {"MBartTokenizer": True, "MBart50Tokenizer": True, "NllbTokenizer": "precompiled_charsmap"}


def _read_multilingual(folder):
    """Reads the tokenizer of mBART and NLLB, or of M2M-100, which has a vocab.json."""
    if not (folder / FILE).is_file():
        tokenizer = json_tokenizer(folder, FAIRSEQ, TRIMS.get(class_of(folder)))
        check_roles(folder, tokenizer, eos="eos_id")
        return (tokenizer,)
    languages = language_tokens(folder)
    if (folder / "vocab.json").is_file():
        return (vocabulary_tokenizer(folder, folder / FILE, folder / "vocab.json", languages),)
    own = fairseq_tokenizer(folder / FILE, languages)
    return (with_added_tokens(folder, own.model, own.vocabulary),)


def _read_pegasus(folder):
    if not has_own_file(folder, "spiece.model"):
        tokenizer = json_tokenizer(folder, PADDED)
        check_ends(folder, (), [tokenizer.eos_id])
        check_roles(folder, tokenizer, eos="eos_id")
        return (tokenizer,)
    own = sentence_piece(folder / "spiece.model")
    check_roles(folder, own, eos="eos_id")
    offset = read_if_there(folder, TOKENIZER_CONFIG).get("offset", PEGASUS_OFFSET)
    check_properties("pegasus", offset=(offset, PEGASUS_OFFSET), unk_id=(own.unk_id, 2))
    unused = [f"<unk_{i}>" for i in range(2, offset)]
    pieces = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *unused, *own.pieces(range(2, own.vocab_size))]
    return (with_added_tokens(folder, own.model, pieces),)


def _refuse_to_write(tokenizers, folder, model):
    raise ValueError(
        "`tokenizers` must be None for a multilingual model or a PEGASUS: copy the files of the tokenizer from the "
        f"checkpoint. Received: tokenizers={tokenizers!r:.200}."
    )


MULTILINGUAL = reader_of(_read_multilingual, "MBart", "MBart50", "M2M100", "Nllb", generic=False)
MULTILINGUAL_SENTENCE_PIECE = TokenizerKind(((FILE, JSON),), MULTILINGUAL, _refuse_to_write)
PEGASUS = reader_of(_read_pegasus, "Pegasus")
PEGASUS_SENTENCE_PIECE = TokenizerKind((("spiece.model", JSON),), PEGASUS, _refuse_to_write)
