"""What the files of a folder say and a model does not know: read with the model, kept by it, and written with it."""

import contextlib
import logging
import re
from types import MappingProxyType

from keras_transformer import untrusted
from keras_transformer.checks import LONGEST, check, printable
from keras_transformer.huggingface.chat import TEMPLATE, TEMPLATES, templates_of
from keras_transformer.huggingface.files import CONFIG, GENERATION_CONFIG, read_if_there, write_json
from keras_transformer.huggingface.known_keys import IGNORED
from keras_transformer.huggingface.sentence_embeddings import LENGTH, MODULES, PROMPTS
from keras_transformer.huggingface.speech import PREPROCESSOR_CONFIG
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG, starts_with_bos
from keras_transformer.huggingface.tokenizers.post_processor import FILE, ids_around
from keras_transformer.models import LanguageModel
from keras_transformer.schemas import check_kept

log = logging.getLogger(__name__)

# Keys of config.json without effect that are kept: ids, and dropouts that transformers alone has.
KEPT = re.compile("(sep|cls|mask|unk)_token_id|.*drop.*")
# Keys that another head may have in another way. The model knows them, but for a ViT's labels.
OF_HEADS = ("architectures", "problem_type", "num_labels", "id2label", "label2id")
TOKENIZER_KEYS = ("model_max_length", "padding_side", "truncation_side")
TOKENIZER_FILES = (TOKENIZER_CONFIG, FILE)
END, START = "eos_token_id", "decoder_start_token_id"


def keep_files(model, checkpoint):
    """Gives a model its `checkpoint_files`. A file that cannot be read is named in a warning.

    Args:
        model: The model that was read.
        checkpoint: The `Checkpoint`.
    """
    folder, family = checkpoint.folder, checkpoint.family
    forgotten = {*IGNORED[CONFIG], *OF_HEADS} - {*family.guessed_keys}
    config = {
        key: value for key, value in checkpoint.config.items() if key not in forgotten or KEPT.fullmatch(key)
    }
    files, names = {CONFIG: config}, [GENERATION_CONFIG, PREPROCESSOR_CONFIG, MODULES, PROMPTS, LENGTH]
    for name in names:
        if not (folder / name).is_file():
            continue
        with _warning(name):
            files[name] = _read(folder, name)
    for name in (f"{each['path']}/{CONFIG}" for each in files.get(MODULES, ()) if each["path"]):
        if (folder / name).is_file():
            with _warning(name):
                files[name] = _read(folder, name)
    with _warning(TEMPLATE):
        for name, source in templates_of(folder).items():
            path = TEMPLATE if name == "default" else f"{TEMPLATES}/{name}.jinja"
            check_kept(path, source)
            files[path] = source
    with _warning(TOKENIZER_CONFIG):
        options = read_if_there(folder, TOKENIZER_CONFIG)
        options = {key: options[key] for key in TOKENIZER_KEYS if key in options}
        if LanguageModel in family.model_classes and any(
            (folder / name).is_file() for name in TOKENIZER_FILES
        ):
            first, _ = ids_around(folder)
            options["add_bos_token"] = starts_with_bos(folder, family.tokenizer, first[0] if first else None)
        files[TOKENIZER_CONFIG] = options
    model.keep({name: content for name, content in files.items() if content})


def _read(folder, name):
    """Reads a file that a model keeps, without the code that it names."""
    content = untrusted.read_json(folder / name, list if name == MODULES else dict)
    if name != MODULES:
        content.pop("auto_map", None)
    check_kept(name, content)
    return content


@contextlib.contextmanager
def _warning(name):
    """Turns the error of a file into a warning: the model can be had without it."""
    try:
        yield
    except (ValueError, OSError, TypeError, KeyError, AttributeError) as error:
        rule = "%s is not kept, and not written with the model: %s"
        log.warning(rule, printable(name, LONGEST), printable(str(error), LONGEST))


def write_files(folder, files, config, defaults=MappingProxyType({})):
    """Writes files beside a model.

    Args:
        folder: The folder, a `pathlib.Path`.
        files: A dict from a file's path in it to its content: a str, or plain data for a file of JSON. The content of
            None writes no file.
        config: The config.json of the model, whose ids count where they are not those of `files`.
        defaults: transformers' values of keys that the config.json of `files` leaves out, a dict.

    Raises:
        ValueError: If a path leads out of the folder, or the model's own files have it.
    """
    known = {**defaults, **files.get(CONFIG, {})}
    for name, content in files.items():
        path, parts = folder / name, name.split("/")
        if name in (CONFIG, TOKENIZER_CONFIG) or content is None:
            continue
        rule = "A path of `files` must be a name, or a folder and a name, that the model's own files do not have."
        check(len(parts) < 3 and all(map(untrusted.is_name, parts)) and not path.exists(), rule, path=name)
        path.parent.mkdir(exist_ok=True)
        if name == GENERATION_CONFIG:
            content = {**content, **_changed_ids(content, known, config)}
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        else:
            write_json(path, content)


def _changed_ids(generation, known, config):
    """Returns the ids of generation_config.json that are other ones in the model, and its ends in the model's order."""
    ids = {key: config[key] for key in (END, START) if key in generation and config.get(key) is not None}
    return {
        key: token_id
        for key, token_id in ids.items()
        if key == END or token_id not in (generation[key], known.get(key))
    }
