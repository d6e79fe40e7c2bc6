"""The commands that use a model. Each imports the libraries it needs when it runs."""

import logging
import os
import sys

from keras_transformer.cli.exit_codes import DONE, SOME_FAILED
from keras_transformer.cli.logs import progress
from keras_transformer.cli.pairs import read_pairs
from keras_transformer.cli.search_options import SEARCH_OPTIONS, constraints_of, strategy_of
from keras_transformer.cli.training_commands import options_among, terminated

log = logging.getLogger(__name__)


def _load_servable(options, load):
    """Loads a model with its tokenizers from a folder, and applies the options of the search and the limits.

    Args:
        options: The parsed options; `run` is the folder.
        load: A function from the folder to a `Translator`, a `Classifier`, ...
    """
    servable = load(options.run)
    given = options_among(options, *SEARCH_OPTIONS, "max_source_length", "max_length")
    _check_options(servable, given)
    changes = {name: value for name, value in given.items() if name not in SEARCH_OPTIONS}
    if given.keys() & set(SEARCH_OPTIONS):
        changes["strategy"] = strategy_of(servable.strategy, given)
        changes["constraints"] = constraints_of(servable, given)
    return servable.changed(**changes) if changes else servable


def _check_options(servable, given):
    """Raises `ValueError` for an option that the servable does not have."""
    for name in given:
        argument = "strategy" if name in SEARCH_OPTIONS else name
        if argument not in servable.arguments:
            raise ValueError(
                f"--{name.replace('_', '-')} is only for models that write text. "
                f"Received: a {type(servable).__name__}."
            )


def translate(options):
    """Translates standard input, or one file to another."""
    from keras_transformer.serving import Glossary, TermTranslator, Translator, translate_file
    from keras_transformer.serving.documents import SentenceTranslator
    from keras_transformer.training import Terminated

    files = options_among(options, "input", "output", "restart").keys()
    if files and not {"input", "output"} <= files:
        raise ValueError("Give --input and --output, with or without --restart, or none of them.")
    translator, sizes = (
        _load_servable(options, Translator.load),
        options_among(options, "batch_size", "window"),
    )
    terms = options_among(options, "glossary", "copy", "replace_unknown")
    if terms:
        glossary, copy = terms.get("glossary"), terms.get("copy")
        glossary = Glossary.read(glossary, copy) if glossary else Glossary(copy=copy)
        translator = TermTranslator(translator, glossary, "replace_unknown" in terms)
    if "split_sentences" in options:
        translator = SentenceTranslator(translator, options.split_sentences)
    try:
        if not files:
            code = _answer_lines(translator, sizes)
        else:
            search = {**sizes, "restart": "restart" in files, "say": progress.info, "verbose": True}
            report = translate_file(translator, options.input, options.output, **search)
            print(options.output)
            code = SOME_FAILED if report.failed else DONE
    except Terminated as end:
        code = terminated(end)
    if terms:
        progress.info(translator.terms_in_texts)
    return code


def _answer_lines(answers, sizes, take_line=None):
    """Answers standard input line by line.

    Args:
        answers: A `Translator` or a `LineAnswers`.
        sizes: A dict of `batch_size` and `window`.
        take_line: A function that takes each line, a str. None to print it.

    Returns:
        The exit code.
    """
    from keras_transformer.cli.answers import standard_input, write_answers
    from keras_transformer.data import LONGEST_LINE, iterate_lines
    from keras_transformer.serving import translate_lines

    lines, reports = iterate_lines(standard_input(), LONGEST_LINE), []
    for line in translate_lines(answers, lines, **sizes, verbose=sys.stderr.isatty(), report=reports.append):
        if take_line is None:
            write_answers(f"{line}\n")
        else:
            take_line(line)
    return SOME_FAILED if reports[0].failed else DONE


def _load_answers(options, *classes, signature="serving_default"):
    """Loads a servable of one of the classes, and returns its `LineAnswers` and the sizes of batches and windows."""
    from keras_transformer import serving
    from keras_transformer.cli.answers import LineAnswers

    servable = _load_servable(options, serving.load)
    if type(servable).__name__ not in classes:
        kind = type(servable).__name__
        raise ValueError(f"{options.run} must hold a {' or a '.join(classes)}. Received: a {kind}.")
    if isinstance(servable, serving.Tagger) and not servable.hides_characters:
        signature = "entities"
    return LineAnswers(servable, signature), options_among(options, "batch_size", "window")


def classify(options):
    """Prints the class of each line of standard input, or the entities in it."""
    signature = "probabilities" if options.probabilities else "serving_default"
    classes = ("Classifier",) if options.probabilities else ("Classifier", "Tagger")
    return _answer_lines(*_load_answers(options, *classes, signature=signature))


def embed(options):
    """Prints the vector of each line of standard input, or writes all of them to one file."""
    import json

    import numpy as np

    from keras_transformer.files import replaced

    output = getattr(options, "output", None)
    if output and (not output.endswith(".npy") or os.path.lexists(output)):
        rule = "`output` must be a new file whose name ends with .npy."
        raise ValueError(f"{rule} Received: output={output!r}.")
    answers, sizes = _load_answers(options, "Embedder")
    if not output:
        return _answer_lines(answers, sizes)
    none = np.full(answers.servable.width, np.nan, "float32")
    vectors = []
    code = _answer_lines(
        answers, sizes, lambda line: vectors.append(np.array(json.loads(line), "float32") if line else none)
    )
    with replaced(output) as temporary, open(temporary, "wb") as file:
        np.save(file, np.reshape(vectors, (len(vectors), len(none))).astype("float32"))
    print(output)
    return code


def generate(options):
    """Prints the continuation of each line of standard input."""
    return _answer_lines(*_load_answers(options, "TextGenerator"))


def transcribe(options):
    """Prints the transcript of each recording whose path is a line of standard input."""
    from keras_transformer.cli.answers import write_answers
    from keras_transformer.cli.subtitles import written
    from keras_transformer.recordings import wav_of
    from keras_transformer.serving import Transcriber

    paths = _paths()
    if options.format in ("srt", "vtt") and len(paths) != 1:
        raise ValueError(f"Give one recording where --format is srt or vtt. Received: {len(paths)}.")
    if options.words and options.format == "txt":
        raise ValueError("Give --words with --format json, srt or vtt: a line of text has no times.")
    transcriber = _load_servable(options, Transcriber.load).changed(
        **options_among(options, "language", "task")
    )
    signature = "words" if options.words else "wav" if options.format == "txt" else "segments"
    transcriber.check_has_times(signature)
    failed = 0
    for name, answer in _about_files(
        transcriber, paths, wav_of, options.batch_size, "", "", signature=signature
    ):
        failed += answer["error"] != b""
        write_answers(written(name, answer, options.format))
    return SOME_FAILED if failed else DONE


def caption(options):
    """Prints the text about each picture whose path is a line of standard input."""
    from keras_transformer.cli.answers import write_answers
    from keras_transformer.cli.subtitles import written
    from keras_transformer.serving import ImageWriter
    from keras_transformer.untrusted import bytes_of

    writer, paths, failed, unended = _load_servable(options, ImageWriter.load), _paths(), 0, 0
    for name, answer in _about_files(writer, paths, bytes_of, options.batch_size):
        failed += answer["error"] != b""
        unended += answer["error"] == b"" and not answer["ended"]
        write_answers(written(name, answer, "txt"))
    writer.warn_if_unended(unended, len(paths))
    return SOME_FAILED if failed else DONE


def _paths():
    """Returns the lines of standard input as paths, list of str."""
    from keras_transformer.cli.answers import standard_input
    from keras_transformer.data import LONGEST_LINE, iterate_lines

    return [os.fsdecode(line) for line in iterate_lines(standard_input(), LONGEST_LINE)]


def _about_files(servable, paths, read, batch_size, *columns, signature="serving_default"):
    """Yields each path with the answer about its file, and warns of each file that has an error.

    Args:
        servable: A `FileWriter`.
        paths: List of str.
        read: A function from a path to bytes.
        batch_size: Number of files at once.
        *columns: Further inputs, a value for all files each.
        signature: Name of the signature.
    """
    from tqdm import tqdm

    from keras_transformer.checks import check_positive
    from keras_transformer.cli.answers import checked_path, rows_of

    check_positive(batch_size=batch_size)
    for start in tqdm(range(0, len(paths), batch_size), unit="batch", disable=not sys.stderr.isatty()):
        names, files, reasons = paths[start : start + batch_size], [], {}
        for i, name in enumerate(names):
            try:
                files.append(read(checked_path(name, start + i + 1)))
            except (OSError, ValueError, ImportError) as error:
                reasons[i] = str(error)
                files.append(b"")
        answers = servable.answer(files, *([each] * len(files) for each in columns), signature=signature)
        for i, (name, answer) in enumerate(zip(names, rows_of(answers), strict=True)):
            if i in reasons:
                answer["error"] = reasons[i].encode(errors="backslashreplace")
            if answer["error"]:
                log.warning("%s", reasons.get(i) or f"{name}: {answer['error'].decode()}")
            yield name, answer


def evaluate(options):
    """Answers a file and prints the scores of the answers."""
    if "data" in options:
        return _evaluate_labels(options)
    if "plot" in options:
        raise ValueError("--plot draws the scores of --data: give --data, too.")
    from keras_transformer.data.unknown import SMALL_SHARE, UnknownTokens
    from keras_transformer.serving import Translator
    from keras_transformer.training.scores import check_tokenize, corpus_scores

    # Refused before the long work of translating.
    tokenize = options_among(options, "tokenize")
    check_tokenize(**tokenize)
    sources, references = zip(*read_pairs(options), strict=True)
    translator = _load_servable(options, Translator.load)
    empty = sum(
        not (source.strip() and target.strip()) for source, target in zip(sources, references, strict=True)
    )
    if empty:
        log.warning("%d of %d pairs have an empty side. They count in the scores, too.", empty, len(sources))
    for side, texts, tokenizer in zip(
        ("source", "target"), (sources, references), translator.tokenizers, strict=True
    ):
        unknown = UnknownTokens.of(list(texts), tokenizer)
        if unknown.count:
            (log.warning if unknown.share > SMALL_SHARE else progress.info)(f"{side}: {unknown}")
    translations = translator.translate(list(sources), options.batch_size, verbose=sys.stderr.isatty())
    scores = corpus_scores(translations, list(references), **tokenize)
    log.info("evaluated", extra={"folder": options.run, "sentences": len(sources), **scores})
    print(f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}")
    print(f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}")


def _evaluate_labels(options):
    """Prints the scores of a classifier or a tagger, and draws them."""
    from keras_transformer import plots, serving
    from keras_transformer.files import replaced
    from keras_transformer.plots.style import check_matplotlib
    from keras_transformer.runs.label_results import evaluate_labels, read_labels

    given = options_among(options, "source", "target", "pairs")
    if given:
        rule = "--data is the only file of a classifier or tagger."
        raise ValueError(f"{rule} Received: --{next(iter(given))}, too.")
    if "tokenize" in options:
        raise ValueError("--tokenize is for translations: --data has labels. Leave --tokenize out.")
    picture = getattr(options, "plot", None)
    if picture and (not picture.endswith((".png", ".pdf", ".svg")) or os.path.lexists(picture)):
        raise ValueError(f"`plot` must be a new file, .png, .pdf or .svg. Received: plot={picture!r}.")
    if picture:
        check_matplotlib("--plot")
    servable = _load_servable(options, serving.load)
    rows = read_labels(servable, options.data, getattr(options, "columns", None))
    scores = evaluate_labels(servable, rows, options.batch_size, sys.stderr.isatty())
    log.info("evaluated", extra={"folder": options.run, "rows": len(rows), "f1": scores.micro[2]})
    print("\n".join(scores.lines()))
    if picture:
        with replaced(picture) as temporary:
            plots.confusion(scores).savefig(temporary, format=picture[-3:])


def export(options):
    """Writes a SavedModel."""
    from keras_transformer import serving
    from keras_transformer.serving.export import path_of_new_version

    # Refused before the model is loaded, which takes longer.
    path_of_new_version(options.folder, options.version)
    details = options_among(options, "precision", "signatures", "batch_sizes", "source_lengths", "warmup")
    servable = _load_servable(options, serving.load)
    verbose = sys.stderr.isatty()
    if not verbose:
        progress.info(f"Exporting {options.run}. A large model takes a minute or more.")
    path = servable.export(options.folder, options.version, options.xla, verbose=verbose, **details)
    _print_export(path)


def show(options):
    """Writes a page that shows what a model attends to."""
    from keras_transformer import plots, serving
    from keras_transformer.cli.show import read_image

    servable = _load_servable(options, serving.load)
    inputs = options.inputs
    if isinstance(servable, serving.ImageClassifier):
        inputs = [read_image(path, servable.model.channels) for path in inputs]
    page = plots.attention(
        servable, inputs, live=options.live, **options_among(options, "precision", "language")
    )
    page.save(options.output)
    if page.reason:
        progress.info(
            f"The page shows the given texts only: the model cannot run in it, because {page.reason}."
        )
    print(options.output)


def convert(options):
    """Converts a Hugging Face folder to a folder that this library serves, or the other way round."""
    from keras_transformer.cli.convert import convert, convert_back, is_huggingface

    folders = options.source, options.target
    names = "source_language", "target_language", "precision", "chat", "base", "pairs"
    given = {name: value for name, value in options_among(options, *names).items() if value}
    if is_huggingface(options.source):
        from keras_transformer.checks import check

        rule = "--no-tokenizers is for a folder that becomes a Hugging Face folder."
        check(options.tokenizers, rule, source=str(options.source))
        kind = type(convert(*folders, verbose=sys.stderr.isatty(), **given)).__name__
    else:
        if given:
            option = f"--{next(iter(given)).replace('_', '-')}"
            raise ValueError(f"{option} is for a Hugging Face folder. Received: {options.source}.")
        convert_back(*folders, options.tokenizers)
        kind = "Hugging Face checkpoint"
    progress.info(f"{kind}, {options.target}")
    print(options.target)


def _print_export(path):
    """Prints the path of an export, and says on standard error what its longest request can cost."""
    from keras_transformer.serving.verify import longest_request

    print(path)
    cost = longest_request(path)
    if cost is not None:
        progress.info("%s: %s", path, cost)


def verify(options):
    """Checks exported versions, prints the path of each, and says on standard error how fast it answers here."""
    from keras_transformer.serving.verify import time_of_request, verify

    for path in verify(options.folder):
        _print_export(path)
        timed = time_of_request(path)
        if timed is not None:
            progress.info(
                "%s: %s takes %.1f ms for its first warm-up request (rows: %d)",
                path,
                timed.signature,
                timed.milliseconds,
                timed.rows,
            )
