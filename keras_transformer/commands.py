"""What each command of the command line does; it imports what it needs when it runs."""

import dataclasses
import itertools
import sys

EXIT_INPUT = 2  # what the user gave cannot be used
EXIT_DIVERGED = 3  # the loss or a weight is no number
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143  # SIGTERM, with everything saved


def _say(line):
    print(line, file=sys.stderr, flush=True)


def _pairs(options, prefix="", required=True):
    """The pairs that the options name: two files or one TSV."""
    from keras_transformer.data import read_parallel, read_tsv

    source, target, pairs = (
        getattr(options, f"{prefix}{name}", None) for name in ("source", "target", "pairs")
    )
    dashed = prefix.replace("_", "-")
    if pairs and (source or target):
        raise ValueError(f"Give --{dashed}pairs, or --{dashed}source and --{dashed}target, not both.")
    if pairs:
        return read_tsv(pairs)
    if source and target:
        return read_parallel(source, target)
    if source or target or required:
        raise ValueError(f"Give --{dashed}source and --{dashed}target, or --{dashed}pairs.")
    return None


def train(options):
    """Trains a model, or goes on training it."""
    from keras_transformer.runs import Diverged, Recipe
    from keras_transformer.runs import train as run
    from keras_transformer.termination import Terminated

    given = vars(options)
    recipe = Recipe(**{f.name: given[f.name] for f in dataclasses.fields(Recipe) if f.name in given})
    pairs, val_pairs = _pairs(options), _pairs(options, "val_", required=False)
    try:
        run(recipe, pairs, options.output, val_pairs, say=_say)
    except Terminated as end:
        print(f"keras-transformer: {end}; the same command goes on", file=sys.stderr)
        return EXIT_TERMINATED
    except Diverged as error:
        print(f"keras-transformer: error: {error}", file=sys.stderr)
        return EXIT_DIVERGED
    print(options.output)
    return 0


def average(options):
    """Gives a run's translator the mean weights of its newest epochs."""
    from keras_transformer.runs import average as mean

    mean(options.run, getattr(options, "last", None), say=_say)


def _loaded(options, load=None):
    """The servable of a folder, with what the options say of its search; `load` is a translator's when None."""
    from keras_transformer.decoding import Beam, NoRepeatNgram
    from keras_transformer.serving import Translator

    given = vars(options)
    searching = {"beam_width", "length_penalty", "normalization", "n_best", "no_repeat_ngram"} & given.keys()
    limits = {name: given[name] for name in ("max_source_length", "max_length") if name in given}
    servable = (load or Translator.load)(options.run)
    if not hasattr(servable, "searching"):
        reads = {"max_source_length"} & limits.keys() if hasattr(servable, "limited") else set()
        if refused := sorted((searching | limits.keys()) - reads):
            option = refused[0].replace("_", "-")
            raise ValueError(f"--{option} is for what writes texts, no {type(servable).__name__}.")
        return servable.limited(**limits) if limits else servable
    names = {"beam_width": "width"}
    names |= {name: name for name in ("length_penalty", "normalization", "n_best")}
    changes = {field: given[name] for name, field in names.items() if name in given}
    strategy, constraints = servable.strategy, list(servable.constraints)
    if changes and "width" not in changes and not isinstance(strategy, Beam):
        raise ValueError(
            "--length-penalty, --normalization and --n-best are for a beam: give --beam-width too."
        )
    if changes:
        strategy = dataclasses.replace(strategy if isinstance(strategy, Beam) else Beam(), **changes)
    if "no_repeat_ngram" in given:
        constraints = [c for c in constraints if not isinstance(c, NoRepeatNgram)]
        constraints.append(NoRepeatNgram(options.no_repeat_ngram))
    return servable.searching(strategy, constraints, **limits)


def translate(options):
    """Translates standard input, or a file into another."""
    from keras_transformer.data import LONGEST_LINE, iterate_lines
    from keras_transformer.serving import translate_file, translate_lines
    from keras_transformer.termination import Terminated

    files = {name for name in ("input", "output", "restart") if name in options}
    if files and not {"input", "output"} <= files:
        raise ValueError("Give --input and --output, with or without --restart, or none of them.")
    translator, sizes = _loaded(options), {"batch_size": options.batch_size, "window": options.window}
    if not files:
        lines = iterate_lines(sys.stdin.buffer, LONGEST_LINE)
        for line in translate_lines(translator, lines, **sizes, verbose=sys.stderr.isatty()):
            sys.stdout.buffer.write(line.encode() + b"\n")
            sys.stdout.buffer.flush()
        return 0
    more = {**sizes, "restart": "restart" in files, "say": _say, "verbose": True}
    try:
        print(translate_file(translator, options.input, options.output, **more))
    except Terminated as end:
        print(f"keras-transformer: {end}; the same command goes on", file=sys.stderr)
        return EXIT_TERMINATED
    return 0


def evaluate(options):
    """Translates a file and prints its scores."""
    from keras_transformer.training.scores import check_tokenize, corpus_scores

    check_tokenize(options.tokenize)  # before the work of translating
    sources, references = zip(*_pairs(options), strict=True)
    translations = _loaded(options).translate(list(sources), options.batch_size, verbose=sys.stderr.isatty())
    scores = corpus_scores(translations, list(references), tokenize=options.tokenize)
    print(f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}")
    print(f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}")


def export(options):
    """Writes a SavedModel."""
    from keras_transformer import serving

    names = ("weights", "batch_sizes", "source_lengths", "warmup")
    given = {name: value for name, value in vars(options).items() if name in names}
    print(_loaded(options, serving.load).export(options.folder, options.version, options.xla, **given))


def convert(options):
    """Makes a servable of a Hugging Face folder, or the other way round."""
    from keras_transformer.convert import convert

    servable = convert(options.source, options.target, options.pairs, options.tokenizers)
    kind = "Hugging Face checkpoint" if servable is None else type(servable).__name__
    _say(f"{kind}, {options.target}")
    print(options.target)


def server_files(options):
    """Writes what a server runs a model's versions with."""
    from keras_transformer.serving.server_files import write_server_files

    names = ("name", "stable", "canary", "image")
    given = {name: value for name, value in vars(options).items() if name in names}
    for path in write_server_files(options.folder, **given):
        print(path)


def ask(options):
    """Has a server translate standard input."""
    import tqdm

    from keras_transformer.data import LONGEST_LINE, iterate_lines
    from keras_transformer.serving import Client

    given = vars(options)
    names = ("model", "version", "label", "batch_size", "timeout", "retries")
    try:
        client = Client(options.url, **{name: given[name] for name in names if name in given})
    except ModuleNotFoundError as error:
        raise ValueError(error) from None
    lines, done = iterate_lines(sys.stdin.buffer, LONGEST_LINE), 0
    with client, tqdm.tqdm(unit="line", disable=not sys.stderr.isatty(), leave=False) as bar:
        while batch := list(itertools.islice(lines, client.batch_size)):
            try:
                translations = client.translate(batch)
            except (OSError, ValueError) as error:
                raise ValueError(f"from line {done + 1} on nothing is translated: {error}") from None
            for line in translations:
                sys.stdout.buffer.write(" ".join(line.splitlines()).encode() + b"\n")
            sys.stdout.buffer.flush()
            done += len(batch)
            bar.update(len(batch))
