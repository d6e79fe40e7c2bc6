"""Translating any number of lines: as they come, or a file that goes on after a kill."""

import collections
import hashlib
import itertools
import json
import sys
import warnings
from pathlib import Path

import tqdm

from keras_transformer.checks import check_positive
from keras_transformer.data import stream_lines
from keras_transformer.serving.signatures import measured
from keras_transformer.serving.unfinished import Unfinished
from keras_transformer.serving.weights import fingerprint
from keras_transformer.termination import Terminated, Termination

WINDOW_BYTES = 2**23  # a window ends before its number of lines when they are as long as this
PROBE = b"a"  # what a translator that works can translate
SECONDS_BETWEEN_REPORTS = 30  # where no one watches


def translate_lines(translator, lines, batch_size=32, window=4096, verbose=False):
    """Translates lines as they come, in order, one for one.

    A window of lines is read, translated in batches of like length, and given out, before the next is read. A line
    that cannot be translated is left empty, with a warning.

    Args:
        translator: A `Translator`.
        lines: Iterable of str (or of UTF-8 bytes).
        batch_size: Number of lines at once.
        window: Number of lines to read before they are translated; fewer where they are long.
        verbose: Whether to show progress on stderr.

    Returns:
        An iterator of str without line ends.

    Raises:
        ValueError: If `batch_size` or `window` is not positive.
    """
    check_positive(batch_size=batch_size, window=window)
    return _translations(translator, lines, batch_size, window, verbose)


def translate_file(
    translator, source, output, *, batch_size=32, window=4096, restart=False, say=print, verbose=False
):
    """Translates a file line by line; after a kill at any moment the same call goes on.

    While it runs, the lines are in a folder beside the output, `NAME.partial`, with a journal that is renewed with
    each window; the output appears when it is whole. What a run that was killed gives in the end is what one that
    was not gives, byte for byte on one machine, unless the translator draws other samples with each call. On SIGTERM
    the batch under way is the last; the window under way is translated again.

    Args:
        translator: A `Translator`.
        source: Path of a file, plain or `.gz`: a sentence a line, bytes of any kind. Of a line longer than a
            mebibyte the first is translated.
        output: Path of the translations, UTF-8; must not exist.
        batch_size: Number of lines at once.
        window: Number of lines to translate and save together, fewer where they are long. Batches are of like
            length within a window: large windows translate faster, small ones lose less to a kill.
        restart: Whether to begin anew where an earlier call left something else.
        say: Called with each line of news.
        verbose: Whether to show progress on stderr: lines, lines a second, time left.

    Returns:
        The `Path` of the output.

    Raises:
        ValueError: If `source` is not a file, cannot be read or changes meanwhile, `output` exists, another process
            is at it, or an earlier call left the beginning of another translation; the message says what differs.
        OSError: If there is no room; the same call goes on when there is.
        Terminated: If SIGTERM came; the same call goes on.
    """
    check_positive(batch_size=batch_size, window=window)
    source, unfinished = Path(source), Unfinished(output)
    if not source.is_file():
        raise ValueError(f"`source` must be a file. Received: source={str(source)!r}.")
    whole = _Source(source)
    collections.deque(whole, maxlen=0)
    job = {**whole.fingerprint(), **_fingerprint(translator), "batch_size": batch_size, "window": window}
    with Termination() as termination, unfinished.opened(job, restart) as is_under_way:
        done = unfinished.progress.lines
        if not is_under_way:
            say(f"{unfinished.output}: nothing to do, {done} lines are done.")
            return unfinished.output
        say(f"{unfinished.output}: {done} of {whole.count} lines are done{', going on' if done else ''}.")
        with _bar(verbose, whole.count, done) as bar:

            def advance(number):
                bar.update(number)
                if termination.requested:
                    saved = f"{unfinished.progress.lines} of {whole.count} lines; they are saved"
                    raise Terminated(f"stopped after {saved}")

            try:
                again = _Source(source)
                lines = iter(again)
                collections.deque(itertools.islice(lines, done), maxlen=0)
                for texts in _windows(lines, window):
                    first = unfinished.progress.lines + 1
                    unfinished.append(*_translate_window(translator, texts, first, batch_size, advance))
                if again.fingerprint() != whole.fingerprint():
                    raise ValueError(f"`source` must not change meanwhile. Received: source={str(source)!r}.")
                unfinished.finish()
            except Terminated:
                raise
            except BaseException:
                say(f"{unfinished.progress.lines} of {whole.count} lines are saved in {unfinished.folder}.")
                raise
    translator.warn_of_cut(unfinished.progress.cut, whole.count)
    if unfinished.progress.failed:
        say(f"{unfinished.progress.failed} of {whole.count} lines could not be translated and are empty.")
    return unfinished.output


def _translations(translator, lines, batch_size, window, verbose):
    lines = (line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line for line in lines)
    count = total_cut = 0
    with _bar(verbose) as bar:
        for texts in _windows(lines, window):
            translations, cut, _ = _translate_window(translator, texts, count + 1, batch_size, bar.update)
            count += len(texts)
            total_cut += cut
            yield from translations
    translator.warn_of_cut(total_cut, count)


def _windows(lines, window):
    """Lists of at most `window` lines, and of no more once they have `WINDOW_BYTES`."""
    texts, size = [], 0
    for line in lines:
        texts.append(line)
        size += len(line)
        if len(texts) == window or size >= WINDOW_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _translate_window(translator, texts, first, batch_size, advance):
    """Translates a window in batches of like length.

    Args:
        translator: A `Translator`.
        texts: List of bytes.
        first: The number of the first line, for warnings.
        batch_size: Number of lines at once.
        advance: Called with the number of lines after each batch.

    Returns:
        A list of str, a line for each text; how many of the texts are cut; how many could not be translated.
    """
    lengths, cut = measured(texts, translator.source_tokenizer, translator.max_source_length)
    by_length = lengths.argsort(kind="stable")
    translations, failed = [""] * len(texts), 0
    for start in range(0, len(texts), batch_size):
        rows = by_length[start : start + batch_size].tolist()
        for row, found in zip(rows, _translate_batch(translator, [texts[i] for i in rows]), strict=True):
            if isinstance(found, Exception):
                failed += 1
                reason = (str(found).strip() or repr(found)).splitlines()[0]
                warnings.warn(
                    f"line {first + row} cannot be translated and is left empty: {reason}", stacklevel=3
                )
            else:
                translations[row] = " ".join(found.splitlines())
        advance(len(rows))
    return translations, cut, failed


def _translate_batch(translator, texts):
    """The translation of each text, or the error of one that has none; where nothing can be translated, raises."""
    found = _bisected(translator, texts)
    if all(isinstance(each, Exception) for each in found):
        try:
            translator.translate_batch([PROBE])
        except Exception:
            raise found[0] from None
    return found


def _bisected(translator, texts):
    try:
        return translator.translate_batch(texts)
    except Exception as error:
        if len(texts) == 1:
            return [error]
        half = len(texts) // 2
        return _bisected(translator, texts[:half]) + _bisected(translator, texts[half:])


def _bar(verbose, total=None, done=0):
    return tqdm.tqdm(
        total=total,
        initial=done,
        unit=" lines",
        disable=not verbose,
        leave=False,
        smoothing=0,  # the mean speed: within a window it falls, as its lines get longer
        mininterval=0.1 if sys.stderr.isatty() else SECONDS_BETWEEN_REPORTS,
    )


class _Source:
    """The lines of a file, and what was read of them: how many, and a digest."""

    def __init__(self, path):
        self.path = path
        self.count = 0
        self.digest = hashlib.sha256()

    def __iter__(self):
        for line in stream_lines(self.path):
            self.count += 1
            self.digest.update(line + b"\n")
            yield line

    def fingerprint(self):
        return {"source_lines": self.count, "source": self.digest.hexdigest()}


def _fingerprint(translator):
    """What translations depend on, as JSON: digests of the large parts."""
    config = {name: value for name, value in translator.model.get_config().items() if name != "name"}

    def digest(content):
        return hashlib.sha256(content).hexdigest()

    def tokenizer_digest(tokenizer):
        return f"{type(tokenizer).__name__} {digest(tokenizer.content)}"

    return {
        "model": digest(json.dumps(config, sort_keys=True, default=repr).encode()),
        "weights": fingerprint(translator.model),
        "source_tokenizer": tokenizer_digest(translator.source_tokenizer),
        "target_tokenizer": tokenizer_digest(translator.target_tokenizer),
        "strategy": repr(translator.strategy),
        "constraints": [repr(constraint) for constraint in translator.constraints],
        "max_source_length": translator.max_source_length,
        "max_length": translator.max_length,
    }
