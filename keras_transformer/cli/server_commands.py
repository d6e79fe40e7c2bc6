"""The commands that need a server: its files, questions to it, and its load."""

import itertools
import logging
import re
import sys

from keras_transformer.cli.commands import options_among
from keras_transformer.cli.exit_codes import DONE, SOME_FAILED

log = logging.getLogger(__name__)
LINE_ENDS = "\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"  # those of `str.splitlines`


def server_files(options):
    """Writes the configuration files of a TensorFlow Serving server."""
    from keras_transformer.cli.server_options import labelled_versions
    from keras_transformer.serving.server.server_files import write_server_files

    labels = {
        label: labelled_versions(label, given)
        for label, given in options_among(options, "stable", "canary").items()
    }
    for path in write_server_files(options.folder, **options_among(options, "name", "image"), **labels):
        print(path)


def ask(options):
    """Sends standard input to a server and prints its answers."""
    import tqdm

    from keras_transformer.cli.answers import line_of, rows_of, sides_of, standard_input, write_answers
    from keras_transformer.cli.server_options import client_arguments
    from keras_transformer.client import Client
    from keras_transformer.data import LONGEST_LINE, iterate_lines
    from keras_transformer.request_options import OPTIONS
    from keras_transformer.sentences import SentenceSplitter, joined, sentences_of

    given, splitter = options_among(options, *OPTIONS, "n"), None
    if "stop" in given:
        given["stop"] = tuple(given["stop"])
    kinds = options.pairs, "split_sentences" in options, options.stream, options.audio, options.image
    if sum(kinds) > 1:
        raise ValueError("Give one of --pairs, --split-sentences, --stream, --audio and --image.")
    hearing = options_among(options, "language", "task")
    if hearing and not options.audio:
        raise ValueError(f"Give --{' and --'.join(hearing)} with --audio.")
    if "n" in given and (options.stream or "split_sentences" in options):
        raise ValueError("Give --n without --stream and --split-sentences.")
    if "signature" in options and (given or options.stream or "split_sentences" in options):
        raise ValueError("Give --signature without --stream, --split-sentences and options of the search.")
    if "split_sentences" in options:
        splitter = SentenceSplitter(options.split_sentences)
    arguments = client_arguments(options)
    if options.audio or options.image:
        refused = [*given, *options_among(options, "signature")]
        if refused:
            raise ValueError(f"Give --{refused[0].replace('_', '-')} without --audio and --image.")
        return _ask_about_files(Client(**arguments), options.audio, hearing)
    if options.stream:
        arguments["batch_size"] = 1
    client = Client(**arguments)

    def answers_to(batch):
        if "signature" in options:
            sides = dict(zip(("text", "second"), sides_of(batch, options.pairs), strict=False))
            return map(line_of, rows_of(client.predict(options.signature, **sides)))
        if splitter is None:
            return map(line_of, rows_of(client.answer(*sides_of(batch, options.pairs), **given)))
        parts = [splitter.split(line) for line in batch]
        translations = iter(client.translate(sentences_of(parts), **given))
        return [" ".join(joined(line, translations).splitlines()) for line in parts]

    lines, done = iterate_lines(standard_input(), LONGEST_LINE), 0
    # The bar would be in the line that grows.
    hidden = options.stream or not sys.stderr.isatty()
    with client, tqdm.tqdm(unit="line", disable=hidden, leave=False) as bar:
        while batch := list(itertools.islice(lines, client.batch_size)):
            begun = False
            try:
                if options.stream:
                    for piece in client.stream(*batch, **given):
                        begun = True
                        write_answers(re.sub(LINE_ENDS, " ", piece))
                answers = [""] if options.stream else answers_to(batch)
            except (OSError, ValueError) as error:
                kind = type(error) if isinstance(error, OSError) else ValueError
                if begun:
                    write_answers("\n")
                    raise kind(f"the answer of line {done + 1} is not complete: {error}") from None
                raise kind(f"from line {done + 1} on nothing is answered: {error}") from None
            write_answers("".join(f"{answer}\n" for answer in answers))
            done += len(batch)
            bar.update(len(batch))


def _ask_about_files(client, audio, hearing):
    """Prints the text that a server writes about each file whose path is a line of standard input.

    A file that cannot be read, or that the server refuses, gets an empty line and a warning.

    Args:
        client: The `Client`.
        audio: Whether the files are recordings; else they are pictures.
        hearing: Options of `Client.transcribe`, a dict.

    Returns:
        The exit code.
    """
    import os

    import tqdm

    from keras_transformer.cli.answers import checked_path, standard_input, write_answers
    from keras_transformer.data import LONGEST_LINE, iterate_lines
    from keras_transformer.recordings import wav_of
    from keras_transformer.untrusted import bytes_of

    read, failed = wav_of if audio else bytes_of, 0
    paths = map(os.fsdecode, iterate_lines(standard_input(), LONGEST_LINE))
    with client:
        files = tqdm.tqdm(paths, unit="file", disable=not sys.stderr.isatty(), leave=False)
        for number, path in enumerate(files, start=1):
            text, reason = "", None
            try:
                file = read(checked_path(path, number))
            except (OSError, ValueError, ImportError) as error:
                reason = error
            else:
                try:
                    (text,) = client.transcribe([file], **hearing) if audio else client.write([file])
                except ValueError as error:
                    reason = f"{path}: {error}"
            if reason is not None:
                failed += 1
                log.warning("%s", reason)
            write_answers(" ".join(text.split()) + "\n")
    return SOME_FAILED if failed else DONE


def proxy(options):
    """Speaks OpenAI's API in front of a server until it is interrupted."""
    import os

    import uvicorn

    from keras_transformer.checks import check
    from keras_transformer.cli.server_options import client_arguments
    from keras_transformer.client import AsyncClient
    from keras_transformer.client.openai_app import LOCAL_HOSTS, openai_app

    template, key = None, None
    if "key_variable" in options:
        key = os.environ.get(options.key_variable)
        check(key, "--key-variable must name an environment variable that is set.")
    if "template" in options:
        from keras_transformer.huggingface import chat_template_from_huggingface

        template = chat_template_from_huggingface(options.template)
    arguments = {**client_arguments(options), "concurrency": options.concurrency}
    names = options.model, *options_among(options, "embedder").values()
    app = openai_app(
        {name: AsyncClient(**{**arguments, "model": name}) for name in names},
        template,
        key=key,
        hosts=LOCAL_HOSTS if options.host in ("127.0.0.1", "localhost", "::1") else ("*",),
        max_bytes=options.max_request_bytes,
        **options_among(options, "origins", "max_tokens", "max_answers", "max_texts"),
    )
    print(f"http://{options.host}:{options.port}/v1", flush=True)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning", limit_concurrency=256)


def load_test(options):
    """Sends requests to a server from several callers, and prints throughput, latencies and errors."""
    from keras_transformer.cli import load_test

    return load_test.run(options)
