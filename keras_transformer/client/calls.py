"""The calls of a client of TensorFlow Serving: what they send, read and raise."""

import copy
import re

import numpy as np

from keras_transformer.checks import check, check_count, check_positive, check_range, printable, warn
from keras_transformer.client.access import check_certificates, checked_headers, scheme_of
from keras_transformer.client.attempts import LONGEST_MESSAGE, MAX_BYTES, Failure, attempt
from keras_transformer.client.stream import RefusedOptions, RefusedRequest, Stream, text_output
from keras_transformer.client.tensors import check_rows, errors_of_rows, files_of, input_array
from keras_transformer.client.tensors import joined as joined_batches
from keras_transformer.request_options import SIGNATURE, columns, repeated
from keras_transformer.sentences import SentenceSplitter, joined, sentences_of

# Seconds. Clocks and sockets do not take numbers of any size.
LONGEST_TIMEOUT = 10**6
# The exception for each failure; OSError for the others.
ERRORS = {
    "UNAVAILABLE": ConnectionError,
    "RESOURCE_EXHAUSTED": ConnectionError,
    "DEADLINE_EXCEEDED": TimeoutError,
    "UNAUTHENTICATED": PermissionError,
    "PERMISSION_DENIED": PermissionError,
    "NOT_FOUND": RefusedRequest,
    "INVALID_ARGUMENT": RefusedRequest,
    "FAILED_PRECONDITION": RefusedRequest,
    "OUT_OF_RANGE": RefusedRequest,
}


class Calls:
    """Base of the clients. The calls are coroutines here; a subclass says how they run and how a request is sent.

    The coroutines of `Client` never wait for an event loop, so both clients share every line of them.
    """

    def __init__(
        self,
        url,
        model="model",
        *,
        version=None,
        label=None,
        batch_size=32,
        timeout=60.0,
        retries=3,
        backoff=0.1,
        headers=None,
        certificates=None,
        client_certificate=None,
        client_key=None,
        max_bytes=MAX_BYTES,
    ):
        scheme = scheme_of(url)
        is_name = isinstance(model, str) and model.isprintable() and model
        check(is_name, "`model` must be the name of a model.", model=model)
        if version is not None:
            check_positive(version=version)
        if label is not None and (
            version is not None or not isinstance(label, str) or not label.isprintable() or not label
        ):
            raise ValueError(
                "`label` must be a str, and there must be no `version` with it. "
                f"Received: label={label!r}, version={version!r}."
            )
        # Both are parts of an address, which would lead to another model or to all versions.
        check(model not in (".", ".."), "`model` must not be `.` or `..`.", model=model)
        check(label not in (".", ".."), "`label` must not be `.` or `..`.", label=label)
        check_positive(batch_size=batch_size)
        check_count(1, 2**31 - 1, max_bytes=max_bytes)
        check_range(0, LONGEST_TIMEOUT, above=True, timeout=timeout)
        check_count(0, 100, retries=retries)
        check_range(0, backoff=backoff)
        files = {
            "certificates": certificates,
            "client_certificate": client_certificate,
            "client_key": client_key,
        }
        check_certificates(scheme, **files)
        self.url = url
        self.model = model
        self.version = version
        self.label = label
        self.batch_size = batch_size
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self.max_bytes = max_bytes
        self.headers = checked_headers(headers)
        self.certificate_files = tuple(None if path is None else str(path) for path in files.values())
        self._transport = self._connected(scheme)

    def with_headers(self, headers):
        """Returns a client that sends further headers, for example with the id of one request.

        ```python
        client.with_headers({"x-request-id": "7"}).translate(["A dog runs."])
        ```

        Both clients share their connections: when one of them is closed, both are.

        Args:
            headers: A dict, as the constructor's `headers`. Its values take the place of those with the same name.

        Returns:
            A client of the same class.

        Raises:
            ValueError: If `headers` is not a dict of printable ASCII.
        """
        other = copy.copy(self)
        other.headers = {**self.headers, **checked_headers(headers)}
        return other

    def translate(self, sentences, **options):
        """Translates sentences. Warns when the model cut some of them, or cannot write text of them.

        Args:
            sentences: List of str, or of UTF-8 bytes.
            **options: Options of the rows, as for `answer`.

        Returns:
            A list of str, one for each sentence, or `n`, in their order.

        Raises:
            ValueError: If `sentences` is a single string or holds something else than strings, an option is unknown or
                out of range, or the server refuses the request.
            OSError: If there is no answer: `ConnectionError`, `TimeoutError`, `PermissionError`, or `OSError` for
                another failure or an answer without translations.
        """
        return self._run(self._written("translation", "sentences", sentences, options))

    def translate_document(self, text, language, **options):
        """Translates a text of several lines and sentences: each sentence alone.

        The lines, the empty ones too, and the blanks around sentences stay as they are. A sentence does not go beyond
        its line: join the lines of a paragraph first. It needs the package sentencex, here and not in the server.

        Args:
            text: A str.
            language: The language of the text, a code such as "en".
            **options: Options of the sentences, as for `answer`, each one value for all of them.

        Returns:
            A str with as many lines.

        Raises:
            ValueError: If `text` is not a str, `language` is not the code of a language, an option is unknown or out
                of range, or the server refuses the request.
            ImportError: If sentencex is not installed.
            OSError: If there is no answer, as for `translate`.
        """
        check(isinstance(text, str), "`text` must be a str.", text=text)
        splitter = SentenceSplitter(language)
        lines = [splitter.split(line) for line in text.splitlines(keepends=True)]
        return self._run(self._joined(lines, options))

    async def _joined(self, lines, options):
        """Translates the sentences of split lines, and returns the lines in one str."""
        sentences = sentences_of(lines)
        translations = iter(await self._written("translation", "sentences", sentences, options))
        return "".join(joined(line, translations) for line in lines)

    def generate(self, prompts, **options):
        """Continues prompts. Warns when the model cut some of them, or cannot write text of them.

        Args:
            prompts: List of str, or of UTF-8 bytes.
            **options: Options of the rows, as for `answer`.

        Returns:
            A list of str, the continuation of each prompt, or `n`, without the prompt, in their order.

        Raises:
            ValueError: If `prompts` is a single string or holds something else than strings, an option is unknown or
                out of range, or the server refuses the request.
            OSError: If there is no answer: `ConnectionError`, `TimeoutError`, `PermissionError`, or `OSError` for
                another failure or an answer without continuations.
        """
        return self._run(self._written("continuation", "prompts", prompts, options))

    def stream(self, text, *, tokens=8, max_length=512, **options):
        """Translates a text, or continues a prompt, and gives the answer piece by piece as it grows.

        ```python
        for piece in client.stream("A dog runs."):
            print(piece, end="", flush=True)
        ```

        Each piece is a request of its own, which goes on from the text that is written. So the server computes the
        tokens of an answer once, and reads the text and the prefix again for each request. Stop reading, and no further
        request is sent. The search is that of the signature `options`: greedy, or drawn, and never a beam. The joined
        pieces are the answer of one request, except where the tokenizer reads a written text as other tokens than the
        model wrote; then the model may go on otherwise. A drawn continuation is not the one that a single request draws
        with the same seed. Give the client a `version`: otherwise the next piece may come from another version, where
        the server takes up a new one or a label moves.

        Args:
            text: A str, or UTF-8 bytes.
            tokens: Number of tokens that a request adds. Fewer of them come sooner, and cost more requests.
            max_length: Largest number of tokens of the answer. Each request may add up to the limit of its row, which
                counts from the text so far.
            **options: `temperature`, 0 for greedy search; `top_k`, `top_p`, `min_p`; `seed`, a new one if it is not
                given; `repetition_penalty`, `presence_penalty`, `frequency_penalty`; `stop`, as for `answer`. Text that
                may be the beginning of a stop string is held back.

        Returns:
            An iterator of str, of an `AsyncClient` an asynchronous one.

        Raises:
            ValueError: If an argument is out of range. While reading: if the server refuses a request.
            OSError: While reading, if there is no answer, as for `predict`, an answer does not continue the one before
                it, or an older export does not say with `ended` whether its answer is complete.
        """
        options = {name: value for name, value in options.items() if value is not None}
        if options.get("temperature") and "seed" not in options:
            options["seed"] = int(np.random.default_rng().integers(2**31))
        stream = Stream(text, tokens, max_length, options)
        columns(1, **options)
        return self._pieces(stream)

    async def _next_piece(self, stream):
        """Sends the next request of a `Stream`. Returns the text that it adds, and new warnings, a list of str."""
        request, outputs = stream.request(), None
        while outputs is None:
            options = {**dict(zip(("prefix", "max_length"), request, strict=True)), **stream.options}
            try:
                outputs, notes = await self._answered("texts", [stream.text], None, options)
            except RefusedOptions as error:
                request = stream.request_after(request, error.option)
                if request is None:
                    raise
        output = text_output(outputs)
        if not {output, "ended"} <= outputs.keys():
            raise OSError(
                f"{self.url} must answer with a text and with `ended`, which an older export does not have. "
                f"Received: {sorted(outputs)!r:.200}."
            )
        check_rows(self.url, output, 1, "texts", outputs, "O")
        new = [note for note in notes if note not in stream.notes]
        stream.notes.update(new)
        return stream.add(outputs), new

    def _pieces(self, stream):
        """Returns the iterator of the pieces of a `Stream`."""
        raise NotImplementedError

    def transcribe(self, recordings, language=None, task=None):
        """Transcribes recordings.

        Args:
            recordings: List of WAV files, or with soundfile of FLAC, Ogg or MP3 files: paths, or their bytes.
            language: The code of their language, such as "ko"; None for the export's, or for the one that it hears.
            task: "transcribe" or "translate"; None for the export's.

        Returns:
            A list of str.

        Raises:
            ValueError: If `recordings` is not such a list, a file is damaged or not a regular file of at most 2**31
                bytes, or the server refuses a recording, whose number the message has.
            ImportError: If it is a FLAC, Ogg or MP3 file and soundfile is not installed.
            OSError: If a file cannot be read, or there is no answer, as for `predict`.
        """
        options = {"language": language or "", "task": task or ""}
        return self._run(self._texts_of("recordings", recordings, "wav", "wav", options))

    def write(self, images):
        """Asks for a text about each picture.

        Args:
            images: List of JPEG or PNG files: paths, or their bytes.

        Returns:
            A list of str.

        Raises:
            ValueError: If `images` is not such a list, a file is not a regular file, or the server refuses a picture,
                whose number the message has.
            OSError: If a file cannot be read, or there is no answer, as for `predict`.
        """
        return self._run(self._texts_of("images", images, "serving_default", "image", {}))

    async def _texts_of(self, name, files, signature, key, options):
        """Returns the texts of files, a list of str.

        Args:
            name: Name of the argument, for errors.
            files: Its value.
            signature: Name of the signature.
            key: The input of the signature that takes files.
            options: The other inputs, a dict from a name to a str for all files.
        """
        files = files_of(name, files)
        if not files:
            return []
        columns = {option: [value] * len(files) for option, value in options.items()}
        outputs = await self._predict(signature, {key: files, **columns})
        for output in ("text", "error"):
            check_rows(self.url, output, len(files), name, outputs, "O")
        for row, reason in errors_of_rows(outputs):
            raise ValueError(f"{self.url} refuses row {row} of `{name}`: {reason}")
        return [text.decode("utf-8", "replace") for text in outputs["text"]]

    def answer(self, texts, second=None, **options):
        """Asks any model that reads texts. Warns when it cut some of them, or cannot write text of them.

        Args:
            texts: List of str, or of bytes.
            second: The second text of each pair, for a model that reads pairs.
            **options: For a model that writes text: `prefix`, with which the answer begins; `max_length` and
                `min_length`, in tokens; `temperature`, 0 for greedy search; `top_k`, `top_p`, `min_p`; `seed`, a new
                one for each row and call if it is not given; `repetition_penalty`, `presence_penalty`,
                `frequency_penalty`; `stop`, a str or a tuple of str, before which the answer ends; `logprobs`, the
                number of likeliest tokens whose log probabilities are wanted with those of the answer. One value for
                all rows, or a list with one for each. And `n`, an int: the number of answers to each text, which lie
                side by side and have the seeds `seed`, `seed + 1`, ... Without any option the export's own strategy
                answers.

        Returns:
            A dict from an output's name to its array `(batch, ...)`, as `predict`.

        Raises:
            ValueError: If `texts` is a single string or holds something else than strings, an option is unknown or out
                of range, or the server refuses the request.
            OSError: If there is no answer, as for `predict`.
        """
        return self._run(self._answer(texts, second, options))

    async def _answer(self, texts, second, options):
        outputs, notes = await self._answered("texts", texts, second, options)
        for note in notes:
            warn(note)
        return outputs

    async def _answered(self, name, texts, second, options):
        """Returns the outputs for texts, and warnings of those that were not read as they are, a list of str."""
        if isinstance(texts, (str, bytes)):
            raise ValueError(f"`{name}` must be a list of strings. Received: {texts!r:.200}.")
        texts = list(texts)
        inputs = {} if second is None else {"second": list(second)}
        options = {option: value for option, value in options.items() if value is not None}
        signature = SIGNATURE if options else "serving_default"
        if options:
            texts, given = repeated(texts, **options)
            inputs.update(given)
        outputs = await self._predict(signature, {"text": texts, **inputs})
        for output, kind in (("error", "O"), ("truncated", "b"), ("unknown", "i"), ("ended", "b")):
            if output in outputs:
                check_rows(self.url, output, len(texts), name, outputs, kind)
        for row, reason in errors_of_rows(outputs):
            option = re.match(r"`(\w+)`", reason)
            message = f"{self.url} refuses the options of row {row} of `{name}`: {reason}"
            raise RefusedOptions(message, option and option[1], reason)
        # An older export has no `unknown`, and a model that reads images has neither.
        cut, unknown = (np.count_nonzero(outputs.get(output, ())) for output in ("truncated", "unknown"))
        # A caller who sets options knows the largest length, and a continuation is expected to be cut.
        warns = "translation" in outputs and not options
        unended = np.count_nonzero(~outputs["ended"]) if warns and "ended" in outputs else 0
        notes = {
            "are longer than the model reads; the rest of them is not read.": cut,
            "hold text that the model's vocabulary cannot write: their answers may be invented.": unknown,
            "have a translation that was cut at its largest length: it lacks its end, or repeats itself.": unended,
        }
        return outputs, [f"{count} of {len(texts)} {name} {note}" for note, count in notes.items() if count]

    async def _written(self, output, name, texts, options):
        """Returns the texts that a model writes, a list of str.

        Args:
            output: Name of the output.
            name: Name of the argument with the texts, for errors and warnings.
            texts: List of str, or of UTF-8 bytes.
            options: A dict of the options of the rows.
        """
        texts = texts if isinstance(texts, (str, bytes)) else list(texts)
        if texts == []:
            return []
        outputs, notes = await self._answered(name, texts, None, options)
        check_rows(self.url, output, len(texts) * (options.get("n") or 1), name, outputs, "O")
        for note in notes:
            warn(note)
        return [text.decode("utf-8", "replace") for text in outputs[output]]

    def predict(self, signature="serving_default", /, **inputs):
        """Runs a signature.

        Inputs of more than `batch_size` rows are sent in several requests, strings of similar length together. The
        rows of the result are in the order of the inputs' rows. If one request fails, there is no result.

        Args:
            signature: Name of the signature.
            **inputs: The inputs by name: arrays, or nested lists of strings (str, or bytes), numbers or booleans.
                Python's numbers become int32 and float32; an array keeps its dtype. If all inputs have the same first
                dimension, `(batch, ...)`, they are split along it. Otherwise they are sent in one request.

        Returns:
            A dict from an output's name to its array; strings are bytes in an array of objects. If batches differ in
            width, the narrower ones are padded with 0, False or b"".

        Raises:
            ValueError: If an input is not such an array, or the server refuses the request: it has no such model,
                version, signature or input, or a shape or dtype is wrong.
            OSError: If there is no answer: `ConnectionError` if no server is there, `TimeoutError` after `timeout`
                seconds, `PermissionError`, or `OSError` for another failure.
        """
        return self._run(self._predict(signature, inputs))

    async def _predict(self, signature, inputs):
        if not inputs:
            raise ValueError("`inputs` must name at least one input. Received: none.")
        arrays = {name: input_array(name, value) for name, value in inputs.items()}
        sizes = {len(array) if array.ndim else None for array in arrays.values()}
        if 0 in sizes:
            raise ValueError(f"`{next(iter(arrays))}` must have at least one row. Received: none.")

        async def request(rows):
            batch = {name: array[rows] for name, array in arrays.items()}
            return rows, await self._ask(f"signature={signature!r}", "predict", signature, batch)

        (size, *others) = sizes
        if others or size is None or size <= self.batch_size:
            return (await request(...))[1]
        lengths = np.zeros(size, int)
        for array in arrays.values():
            if array.dtype == object and array.ndim == 1:
                lengths += [len(text) for text in array]
        order = lengths.argsort(kind="stable")
        batches = [order[start : start + self.batch_size] for start in range(0, size, self.batch_size)]
        outputs = await self._all(request, batches)
        try:
            return joined_batches(outputs)
        except ValueError as error:
            # It holds names that the server chose.
            reason = printable(str(error), LONGEST_MESSAGE)
            raise OSError(f"{self.url}, signature={signature!r}: {reason}.") from None

    def status(self):
        """Asks for the state of the model's versions.

        A label is not looked up: a client with a label gets all versions.

        Returns:
            A dict from version number to the name of its state; `"AVAILABLE"` if the version answers requests.

        Raises:
            ValueError: If the server has no such model or version.
            OSError: If there is no answer: `ConnectionError` if no server is there, `TimeoutError` after `timeout`
                seconds, `PermissionError`, or `OSError` for another failure.
        """
        return self._run(self._ask("status", "status"))

    def ready(self):
        """Asks once whether the version, or the label's version, answers requests; without both, whether any does.

        Returns:
            A bool. False if no server answers.

        Raises:
            ValueError: If the server has no such model, version or label.
            OSError: If the server does not give the state, for example `PermissionError`.
        """
        return self._run(self._ready())

    async def _ready(self):
        try:
            states = await self._ask("status", "status", retries=0)
            if "AVAILABLE" not in states.values():
                return False
            # A server ignores a label in a question for the state.
            return self.label is None or await self._ask("ready", "find", retries=0, not_found=False)
        except (ConnectionError, TimeoutError):
            return False

    async def _ask(self, request, method, *arguments, retries=None, not_found=None):
        """Sends a request, and raises the exception that fits if it fails.

        Args:
            request: A description of the request, for errors.
            method: Name of the method of the transport that sends it.
            *arguments: The arguments of the method before the deadline.
            retries: Largest number of attempts after the first; None for the client's.
            not_found: The answer if the server does not find the model or its version; None raises an error.

        Returns:
            The answer.
        """
        if self._transport.closed:
            raise ValueError(f"The client must be open. Received: a request to {self.url} after close().")
        try:
            return await attempt(
                lambda deadline: self._send(method, *arguments, deadline, self.headers),
                self.timeout,
                self.retries if retries is None else retries,
                self.backoff,
                self._sleep,
            )
        except Failure as failure:
            if failure.code == "NOT_FOUND" and not_found is not None:
                return not_found
            error_class, reason = ERRORS.get(failure.code, OSError), f"{failure.message} ({failure.code})"
            where = f"model={self.model!r}, version={self.version}, label={self.label}, {request}"
            attempts = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
            if error_class is ConnectionError:
                message = f"{self.url} is not available after {attempts}: {reason}"
            elif error_class is TimeoutError:
                message = f"{self.url} must answer within timeout={self.timeout} seconds; {attempts}, {where}: {reason}"
            else:
                message = f"{self.url} refuses {where}: {reason}"
            raise error_class(message) from None

    def _connected(self, scheme):
        """Makes the transport of a URL's scheme."""
        raise NotImplementedError

    def _run(self, coroutine):
        """Returns what a public method returns for its coroutine."""
        raise NotImplementedError

    async def _all(self, request, batches):
        """Awaits `request(batch)` for each batch, and returns the list of the results; if one fails, there is none."""
        raise NotImplementedError

    async def _send(self, method, *arguments):
        """Calls a method of the transport."""
        raise NotImplementedError

    async def _sleep(self, seconds):
        """Waits between two attempts."""
        raise NotImplementedError
