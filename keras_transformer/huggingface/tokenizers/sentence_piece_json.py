"""Reading of a SentencePiece model from tokenizer.json, where a folder has no file of SentencePiece.

transformers 5 writes no other file.
"""

import base64

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_if_there, read_json
from keras_transformer.huggingface.tokenizers.classes import TOKENIZER_CONFIG, takes_file

FILE = "tokenizer.json"
# SentencePiece writes it instead of a space.
BLANK = "\u2581"
KINDS = {"Unigram": 1, "BPE": 2}  # SentencePiece's numbers
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # of pieces, likewise
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
# The options of SentencePiece that do what a normalizer or pre-tokenizer does. "Precompiled" is a map.
PREFIX, TRIMMED = {"add_dummy_prefix": True}, {"remove_extra_whitespaces": True}
PARTS = (
    ({"type": "Replace", "pattern": {"String": " "}, "content": BLANK}, {}),
    ({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, TRIMMED),
    ({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": BLANK}, TRIMMED),
    ({"type": "Strip", "strip_left": False, "strip_right": True}, TRIMMED),
    ({"type": "WhitespaceSplit"}, TRIMMED),
    ({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}, {}),
    ({"type": "Prepend", "prepend": BLANK}, PREFIX),
    ({"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first"}, PREFIX),
    ({"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "always"}, PREFIX),
    ({"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "never"}, {}),
)
UNREAD = ("split", "invert", "str_rep", "add_prefix_space")
LONGEST_PIECE = 256  # characters
# The number of pieces that a merge may be moved over, on average.
LONGEST_WAY = 10


def read_pieces(folder, first=(), own=None):
    """Makes a SentencePiece model of tokenizer.json.

    Args:
        folder: A `pathlib.Path`.
        first: The first pieces of the model, where its ids are not those of tokenizer.json.
        own: Options of the model that the class of the tokenizer has, whatever the file says, a dict from a name to a
            value, or to the name of the option that has the same value. They count only where transformers does not
            take the file as it is.

    Returns:
        The bytes of the model; the pieces in the order of their ids, a list of str; and where a blank is put, as
        `blank` of a `SentencePieceTokenizer`.

    Raises:
        ValueError: If the file is damaged, or no SentencePiece model gives the same ids.
    """
    path = folder / FILE
    parts, config = read_json(path), read_if_there(folder, TOKENIZER_CONFIG)
    own = {} if takes_file(folder) else own or {}
    try:
        return _model(parts, config, first, own)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        reason = error if isinstance(error, ValueError) else f"Received: {error!r:.200}."
        raise ValueError(f"{path} must hold a tokenizer of SentencePiece. {reason}") from None


def _model(parts, config, first, own):
    from sentencepiece import sentencepiece_model_pb2

    stored = parts["model"]
    kind, fallback = stored["type"], bool(stored.get("byte_fallback"))
    if kind not in KINDS:
        raise ValueError(f"`type` of its model must be one of {sorted(KINDS)}. Received: {kind!r:.200}.")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        check_config({key: stored.get(key) or None}, FILE, **{key: None})
    check_config(stored, FILE, ignore_merges=False)
    # SentencePiece writes one unknown piece for several characters.
    if kind == "BPE" and not fallback:
        check_config({"fuse_unk": stored.get("fuse_unk")}, FILE, fuse_unk=True)
    model = sentencepiece_model_pb2.ModelProto()
    normalizer = model.normalizer_spec
    _set_normalizer(normalizer, parts)
    does = {name: getattr(normalizer, name) for name in ("add_dummy_prefix", "remove_extra_whitespaces")}
    does |= {"precompiled_charsmap": bool(normalizer.precompiled_charsmap), "byte_fallback": fallback}
    rule = (
        "`normalizer`, `pre_tokenizer` and `model` must do what the class of the tokenizer does, or `tokenizer_class` "
        "must be 'PreTrainedTokenizerFast'."
    )
    check(all(does[name] == does.get(value, value) for name, value in own.items()), rule, **does)
    ids = stored["vocab"]
    if kind == "Unigram":
        ids = {piece: i for i, (piece, _) in enumerate(ids)}
    added = {token["content"]: token for token in parts.get("added_tokens") or ()}
    ids = {**ids, **{piece: token["id"] for piece, token in added.items()}}
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"The ids of its {len(ids)} pieces must be those from 0 to {len(ids) - 1}.")
    pieces = sorted(ids, key=ids.get)
    if kind == "BPE" and not fallback and stored.get("unk_token") is None:
        raise ValueError("`unk_token` of its model must be a piece: nothing else drops unknown characters.")
    unknown = stored.get("unk_token") or "<unk>" if kind == "BPE" else pieces[stored["unk_id"]]
    types = {piece: _type(piece, added, unknown, fallback) for piece in pieces}
    _check_blanks(parts, types, normalizer.remove_extra_whitespaces)
    scores = _scores(stored["merges"], types) if kind == "BPE" else dict(stored["vocab"])
    for piece in dict.fromkeys((*first, *pieces)):
        model.pieces.add(piece=piece, score=scores.get(piece, 0.0), type=types[piece])
    trainer = model.trainer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = KINDS[kind], len(pieces), fallback
    for name in ("unk", "bos", "eos", "pad"):
        token = unknown if name == "unk" else config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        setattr(trainer, f"{name}_piece", token if token in ids else f"<no {name}>")
    return model.SerializeToString(), pieces, _blank(parts, normalizer)


def _set_normalizer(normalizer, parts):
    """Sets the options of a SentencePiece model from the parts of tokenizer.json that change a text."""
    from keras_transformer.text.character_map import check_character_map  # loads TensorFlow

    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    steps = [*_listed(parts.get("normalizer")), *_listed(parts.get("pre_tokenizer"))]
    if not any(part["type"] == "Metaspace" or part == PARTS[0][0] for part in steps):
        raise ValueError(f"SentencePiece writes {BLANK!r} instead of a blank, and no part of this file does.")
    for part in steps:
        if part["type"] == "Precompiled":
            normalizer.precompiled_charsmap = base64.b64decode(part["precompiled_charsmap"])
            check_character_map(normalizer.precompiled_charsmap)
            continue
        part = {key: value for key, value in part.items() if key not in UNREAD}
        asked = [options for expected, options in PARTS if part == expected]
        if not asked:
            raise ValueError(f"SentencePiece has no such part. Received: {part!r:.200}.")
        for name, value in asked[0].items():
            setattr(normalizer, name, value)
        if part["type"] == "WhitespaceSplit" and not normalizer.precompiled_charsmap:
            raise ValueError(
                "SentencePiece splits at a tab only where `precompiled_charsmap` makes it a blank."
            )


def _blank(parts, normalizer):
    """Returns where `Metaspace` puts a blank; None where SentencePiece, which removes blanks, does the same."""
    steps = _listed(parts.get("pre_tokenizer"))
    schemes = [part["prepend_scheme"] for part in steps if part["type"] == "Metaspace"]
    split = any(part["type"] == "WhitespaceSplit" for part in steps)
    if split and schemes == ["first"]:
        raise ValueError('`prepend_scheme` must be "always" after a WhitespaceSplit. Received: "first".')
    return None if normalizer.remove_extra_whitespaces or not schemes else schemes[0]


def _check_blanks(parts, types, trimmed):
    """Raises `ValueError` if a piece goes over a blank at which `Metaspace` splits a text first."""
    splits = [part for part in _listed(parts.get("pre_tokenizer")) if part["type"] == "Metaspace"]
    if not any(part.get("split", True) for part in splits):
        return
    for piece, kind in types.items():
        word = piece.lstrip(BLANK)
        several = len(piece) - len(word) > 1 and not trimmed
        if kind == NORMAL and (several or BLANK in word):
            raise ValueError(
                f"Its texts are split at blanks, so no piece has one inside. Received: {piece!r:.200}."
            )


def _listed(part):
    """Returns the parts of a normalizer or pre-tokenizer, a list of dicts."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return part["normalizers"] if "normalizers" in part else part["pretokenizers"]


def _type(piece, added, unknown, fallback):
    if piece == unknown:
        return UNKNOWN
    if fallback and piece in BYTES:
        return BYTE
    # A text has blanks there, so merges make the piece.
    if piece not in added or BLANK in piece:
        return NORMAL
    return CONTROL  # `AddedTokens` finds it


def _scores(merges, types):
    """Returns the scores of pieces that make SentencePiece join pairs in the order of the merges, a dict.

    SentencePiece looks at the joined piece alone. So all pairs that make a piece must be merges, one after the other.
    """
    pairs = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    if any(len(pair) != 2 or len("".join(pair)) > LONGEST_PIECE for pair in pairs):
        raise ValueError(f"Its merges must be pairs of pieces of at most {LONGEST_PIECE} characters.")
    runs, others = _first_runs(pairs)
    ranks = _ranks(others, runs)
    normal = {piece for piece, kind in types.items() if kind == NORMAL}
    expected = {
        (piece[:i], piece[i:])
        for piece in normal
        for i in range(1, len(piece))
        if all(part in normal or len(part) == 1 for part in (piece[:i], piece[i:]))
    }
    if ranks is None or not expected <= {*pairs}:
        raise ValueError("Its merges must be those that SentencePiece makes of the scores of pieces.")
    return {piece: -float(rank) for piece, rank in ranks.items()}


def _first_runs(pairs):
    """Takes the merges that make runs of one character away from the first ones, where longer runs come first.

    Gemma 3's first merges make runs of newlines, blanks and tabs. There a run grows from the left, one character at a
    time, because each pair of a longer run and one character comes before the pair of two characters. The other pairs
    are never used, so their order does not count. Nor does the order of the characters, nor that of a pair and of
    merges without its character.

    Returns:
        The runs, the longest first, a list of str; and the other merges. No runs where the first merges are others.
    """
    count = next((i for i, pair in enumerate(pairs) if len({*"".join(pair)}) > 1), len(pairs))
    ranks = {pair: i for i, pair in enumerate(pairs[:count])}
    characters = {left[0] for left, _ in ranks}
    others, seen = [], set()
    for i, pair in enumerate(pairs[count:], count):
        piece = {*"".join(pair)}
        if len(piece) == 1 and piece <= characters and not piece & seen:
            ranks[pair] = i
        else:
            others.append(pair)
            seen |= piece & characters
    runs = {"".join(pair) for pair in ranks}
    longest = {}
    for run in runs:
        longest[run[0]] = max(longest.get(run[0], 0), len(run))
    joined = {*map("".join, others)}
    if runs & joined or any({*piece} <= characters and len({*piece}) == 1 for piece in joined):
        return [], pairs
    for character in characters:
        start = ranks.get((character, character), -1)
        steps = [ranks.get((character * length, character), start) for length in range(2, longest[character])]
        if start < 0 or any(step >= start for step in steps):
            return [], pairs
    return sorted(runs, key=lambda run: (-len(run), run)), others


def _ranks(pairs, first=()):
    """Returns the rank of each joined piece, a dict, if all merges of a piece can come one after the other; else None.

    A merge may come earlier, next to the others of its piece, where the pieces between them have no character in common
    with it: no text has their pairs in one place. None of these pieces may be part of a merge before its own last one,
    so that a merge makes no pair of a lower rank.

    Args:
        pairs: The merges, a list of pairs of str.
        first: Pieces that come before those of the merges, a list of str.
    """
    first_use, last_made = {}, {}
    for i, pair in enumerate(pairs):
        for part in pair:
            first_use.setdefault(part, i)
        last_made["".join(pair)] = i
    order, places = list(first), {piece: i for i, piece in enumerate(first)}
    room = LONGEST_WAY * len(pairs)
    for pair in pairs:
        piece = "".join(pair)
        if piece not in places:
            places[piece] = len(order)
            order.append(piece)
        elif order[-1] != piece:
            between = order[places[piece] + 1 :]
            room -= len(between)
            made_first = (first_use.get(each, len(pairs)) > last_made[each] for each in (piece, *between))
            if room < 0 or not all(made_first) or not {*piece}.isdisjoint("".join(between)):
                return None
    return places
