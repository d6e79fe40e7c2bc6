"""The commands that train a model. Each imports the libraries it needs when it runs."""

import dataclasses
import logging
import os

from keras_transformer.cli.exit_codes import DIVERGED, DONE, TERMINATED
from keras_transformer.cli.logs import progress
from keras_transformer.cli.pairs import read_pairs
from keras_transformer.cli.tensorflow_import import import_tensorflow

log = logging.getLogger(__name__)


def options_among(options, *names):
    """Returns the options with these names that the user gave or that have a default, a dict."""
    return {name: value for name, value in vars(options).items() if name in names}


def _recipe(recipe_class, options):
    """Returns the recipe that the options say. It comes before TensorFlow, whose import takes seconds."""
    return recipe_class(**options_among(options, *(field.name for field in dataclasses.fields(recipe_class))))


def _prepare():
    import_tensorflow(trains=True)
    # This imports Keras, and Keras TensorFlow.
    from keras_transformer.execution.memory import keep_freed_memory

    keep_freed_memory()


def train(options):
    """Trains a model, or resumes its training."""
    from keras_transformer import runs

    recipe = _recipe(runs.Recipe, options)
    pairs, val_pairs = read_pairs(options), read_pairs(options, "val_", required=False)
    _prepare()
    try:
        runs.train(recipe, pairs, options.output, val_pairs, say=progress.info)
    except runs.Terminated as end:
        return terminated(end)
    except runs.Diverged as error:
        progress.error("%s", error)
        return DIVERGED
    print(options.output)
    return DONE


def tune(options):
    """Tunes the model of a Hugging Face folder, or resumes its tuning."""
    from keras_transformer import runs

    recipe = _recipe(runs.TuningRecipe, options)
    _prepare()
    try:
        val_data = getattr(options, "val_data", None)
        print(runs.tune(recipe, options.folder, options.data, options.output, val_data, say=progress.info))
    except runs.Terminated as end:
        return terminated(end)
    except runs.Diverged as error:
        progress.error("%s", error)
        return DIVERGED
    return DONE


def terminated(end):
    """Says that a command was stopped, and returns its exit code."""
    progress.info(f"keras-transformer: {end}. The same command continues.")
    return TERMINATED


def average(options):
    """Gives a run's translator the mean weights of its newest epochs."""
    from keras_transformer import runs

    runs.average(options.run, getattr(options, "last", None), say=progress.info)


def ensemble(options):
    """Joins several translators into one."""
    from keras_transformer.files import check_local
    from keras_transformer.runs.folder import RunFolder
    from keras_transformer.serving import Translator

    check_local(options.output)
    if len(options.runs) < 2:
        raise ValueError(f"Give at least two folders. Received: {options.runs[0]}.")
    # Refused before the models are loaded, which takes longer.
    if os.path.lexists(options.output):
        raise ValueError(f"`output` must not exist yet. Received: output={options.output!r}.")
    translators = [Translator.load(folder) for folder in options.runs]
    pairs = [RunFolder(folder).pairs for folder in options.runs]
    if len({str(each) for each in pairs if each is not None}) > 1:
        log.warning(
            "the runs were trained with different pairs. An ensemble translates well only if its models translate "
            "the same language into the same language."
        )
    Translator.ensemble(translators).save(options.output)
    print(options.output)
