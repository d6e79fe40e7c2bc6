"""The ids that `post_processor` of tokenizer.json puts around texts."""

from keras_transformer.checks import check
from keras_transformer.huggingface.files import read_if_there
from keras_transformer.huggingface.tokenizers.classes import takes_file

FILE = "tokenizer.json"


def check_ends(folder, before=(), after=(), between=None):
    """Raises `ValueError` for a `post_processor` that puts other ids around texts than the model's family does.

    A class of tokenizers that makes its own post-processor does not read the file's.

    Args:
        folder: A `pathlib.Path`.
        before: The ids before a text.
        after: The ids after a text.
        between: The ids between the texts of a pair, where the family reads pairs.
    """
    parts = read_if_there(folder, FILE)
    if "post_processor" not in parts or not takes_file(folder):
        return
    single, pair = _templates(parts["post_processor"])
    rule = "`post_processor` of tokenizer.json must put the ids around a text that the model's family does."
    expected = [*before, "A", *after]
    check(single == expected, rule, post_processor=single, family=expected)
    expected = [*before, "A", *(between or ()), "B", *after]
    check(between is None or pair == expected, rule, post_processor=pair, family=expected)


def ids_around(folder):
    """Returns the ids that `post_processor` puts before and after a text, two lists."""
    single, _ = _templates(read_if_there(folder, FILE).get("post_processor"))
    place = single.index("A") if "A" in single else len(single)
    return single[:place], single[place + 1 :]


def puts_first(folder, token_id):
    """Whether `post_processor` puts an id before each text; None where there is no such part.

    Raises:
        ValueError: If it puts other ids there, or ids after a text.
    """
    processor = read_if_there(folder, FILE).get("post_processor")
    if processor is None:
        return None
    single, _ = _templates(processor)
    rule = "`post_processor` of tokenizer.json must put nothing but `bos_token` around a prompt."
    check(single in (["A"], [token_id, "A"]), rule, post_processor=single, bos_id=token_id)
    return single != ["A"]


def _templates(processor):
    """Returns what becomes of a text and of a pair: lists of ids, with "A" and "B" for the texts."""
    single, pair = ["A"], ["A", "B"]
    try:
        for part in _listed(processor):
            kind = part["type"]
            if kind == "TemplateProcessing":
                ids = {name: token["ids"] for name, token in part["special_tokens"].items()}
                single, pair = (_ids(part[name], ids) for name in ("single", "pair"))
            elif kind in ("BertProcessing", "RobertaProcessing"):
                first, last = part["cls"][1], part["sep"][1]
                single = [first, "A", last]
                pair = [first, "A", *[last] * (1 + (kind == "RobertaProcessing")), "B", last]
            else:
                known = "`post_processor` of tokenizer.json must be of a known type."
                check(kind == "ByteLevel", known, type=kind)
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(
            f"`post_processor` of tokenizer.json is damaged. Received: {error!r:.200}."
        ) from None
    return single, pair


def _listed(processor):
    if processor is None:
        return []
    return processor["processors"] if processor["type"] == "Sequence" else [processor]


def _ids(template, ids):
    listed = []
    for item in template:
        listed += [item["Sequence"]["id"]] if "Sequence" in item else ids[item["SpecialToken"]["id"]]
    return listed
