"""An export behind the batching of TensorFlow Serving: each row is answered as if it were alone."""

import collections
import itertools
import json
import os
import pathlib
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
import serving_threads
from batching import COMPILER, BatchingServer, settings_of

from keras_transformer.client.attempts import Failure, attempt, finished
from keras_transformer.decoding import Beam
from keras_transformer.request_options import columns
from keras_transformer.serving import Translator
from keras_transformer.serving.server.server_files import write_server_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++, to build the batching server"),
]
CALLERS = 16
REQUESTS = int(os.environ.get("BATCHED_REQUESTS", "160"))  # BATCHED_REQUESTS=10000 for a thorough look
WIDTH = 24  # of the ids
TEXTS = 20  # that requests draw their rows from
SIGNATURES = ("serving_default", "n_best", "alignment", "score", "tokens", "options")
ONE_WIDTH = ("serving_default", "n_best", "options")  # signatures whose answers are as wide for every request
SPLITTING = """
max_batch_size { value: 64 }
max_execution_batch_size { value: 16 }
enable_large_batch_splitting { value: true }
batch_timeout_micros { value: 5000 }
max_enqueued_batches { value: 25 }
allowed_batch_sizes: 2
allowed_batch_sizes: 8
allowed_batch_sizes: 16
"""


@pytest.fixture(scope="module")
def model_folder(translator, made_once):
    def export(folder):
        Translator(*[translator.model, *translator.tokenizers], Beam(3, n_best=2), 24, 20).export(folder)
        write_server_files(folder)

    return made_once("batched", export)


@pytest.fixture(scope="module")
def config(model_folder):
    return (model_folder / "batching.config").read_text()


@pytest.fixture(scope="module")
def start(program, model_folder):
    """A function that starts a server with a `batching.config`."""
    return lambda config: BatchingServer(program, model_folder / "1", config)


@pytest.fixture(scope="module")
def rows(pairs, translator):
    """The inputs of each signature: a dict of lists of rows."""
    texts = [source.encode() for source, _ in pairs[: TEXTS - 3]] + [b"", b"  ", (pairs[0][0] * 9).encode()]
    targets = [target.encode() for _, target in pairs[3:TEXTS]] + [b"", b"The", b"a " * 30]
    options = {
        "prefix": ["", "the", "", "I"],
        "max_length": [0, 3, 12],
        "min_length": [0, 0, 0, 3],
        "temperature": [0.0, 1.5, 0.0, 0.8, 1.0],
        "top_k": [0, 5],
        "top_p": [1.0, 0.9],
        "min_p": [0.0, 0.0, 0.1],
        "seed": range(TEXTS),
        "repetition_penalty": [1.0, 1.3, 1.0],
        "presence_penalty": [0.0, 0.0, 0.0, 1.0],
        "frequency_penalty": [0.0],
        "stop": ["", "a", ("the", ".")],
        "logprobs": [-1],
    }
    options = {
        name: list(itertools.islice(itertools.cycle(values), TEXTS)) for name, values in options.items()
    }
    options["temperature"][-4] = -1.0  # a row with an error
    ids = translator.tokenizers[0].tokenize(texts).to_tensor(shape=(None, WIDTH)).numpy()
    return {
        **{signature: {"text": texts} for signature in SIGNATURES[:3]},
        "score": {"text": texts, "target": targets},
        "tokens": {"source": ids.tolist()},
        "options": {
            "text": texts,
            **{name: list(values) for name, values in columns(TEXTS, **options).items()},
        },
    }


def tensor(values):
    """Makes a tensor of values. NumPy's numbers keep their dtype."""
    return tf.constant(np.stack(values) if isinstance(values[0], np.generic) else values)


@pytest.fixture(scope="module")
def alone(model_folder, rows):
    """The answer to each row alone, by TensorFlow's own loader: a dict of lists of dicts."""
    functions = tf.saved_model.load(str(model_folder / "1")).signatures

    def answers(signature):
        for row in zip(*rows[signature].values(), strict=True):
            inputs = {name: tensor([value]) for name, value in zip(rows[signature], row, strict=True)}
            yield {name: value.numpy()[0] for name, value in functions[signature](**inputs).items()}

    return {signature: list(answers(signature)) for signature in SIGNATURES}


def check(found, expected):
    """Compares one row of an answer with that row alone. It may be wider, with padding."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value, row = np.asarray(value), np.asarray(found[name])
        part = row[tuple(slice(size) for size in value.shape)]
        if value.dtype.kind == "f":
            np.testing.assert_allclose(part, value, rtol=1e-3, atol=1e-4, err_msg=name)
        else:
            assert part.tolist() == value.tolist(), name
        rest = row.copy()
        rest[tuple(slice(size) for size in value.shape)] = b"" if row.dtype == object else 0
        assert row.ndim == 0 or not rest.any(), name


def ask(server, rows, alone, number, sizes, counts):
    """Sends one request of random rows to a random signature, and checks each row of the answer."""
    chance = random.Random(number)
    signature = chance.choice(SIGNATURES)
    picked = [chance.randrange(TEXTS) for _ in range(chance.choice(sizes))]
    inputs = {name: tensor([column[row] for row in picked]) for name, column in rows[signature].items()}
    try:
        answer = server.predict(signature, **inputs)
    except tf.errors.InternalError as error:
        if "would overwrite memory" not in error.message:
            raise
        assert signature not in ONE_WIDTH
        counts.append("refused")
        return
    for i, row in enumerate(picked):
        check({name: value[i] for name, value in answer.items()}, alone[signature][row])
    counts.append("answered")


@pytest.mark.parametrize("splitting", [False, True])
def test_each_row_of_many_callers_is_answered_as_if_alone(start, config, rows, alone, splitting):
    counts, sizes = [], [1, 1, 1, 2, 3, 7, 17, 64]
    with start(SPLITTING if splitting else config) as server, ThreadPoolExecutor(CALLERS) as pool:
        numbers = range(REQUESTS)
        list(pool.map(lambda number: ask(server, rows, alone, number, sizes, counts), numbers))
        assert server.close() == 0
    assert len(counts) == REQUESTS and counts.count("answered") > REQUESTS / 2
    if not splitting:
        assert "refused" not in counts


def test_the_written_settings_split_no_request(config, start, rows, alone):
    """The parts of an answer may differ in width, and TensorFlow Serving would join them without a look."""
    settings = dict(each.split("=") for each in settings_of(config))
    largest = int(settings["max_batch_size"])
    assert "enable_large_batch_splitting" not in settings and "allowed_batch_sizes" not in settings
    text = rows["alignment"]["text"]
    order = sorted(range(TEXTS), key=lambda row: len(text[row]))
    texts = [text[row] for row in order for _ in range(3)]
    with start(config) as server:
        answer = server.predict("alignment", text=texts)
        for i, row in enumerate(np.repeat(order, 3)):
            check({name: value[i] for name, value in answer.items()}, alone["alignment"][row])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"larger than maximum input batch size {largest}"
        ):
            server.predict(text=[b"a"] * (largest + 1))
    with start(SPLITTING) as server:
        assert server.predict(text=texts)["translation"].shape == (3 * TEXTS,)
        with pytest.raises(tf.errors.InternalError, match="would overwrite memory"):
            server.predict("alignment", text=texts)


def test_inputs_of_another_rank_are_refused(start, config, rows):
    tried = 0
    with start(config) as server:
        for signature in SIGNATURES:
            inputs = {name: tensor(column[:2]).numpy() for name, column in rows[signature].items()}
            server.predict(signature, **inputs)
            for name, value in inputs.items():
                others = [value[:, None], np.stack([value] * 2, axis=1), np.stack([value] * 2, axis=1)[:, :0]]
                for other in others if value.ndim == 1 else [*others, value[:, 0]]:
                    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name}.* not compatible"):
                        server.predict(signature, **{**inputs, name: other})
                    tried += 1
        assert server.close() == 0
    assert tried > 3 * len(SIGNATURES)


def until_answered(predict, spoilt=None):
    """Calls a function as the client does, again where a neighbour spoilt the batch. Returns its answer."""

    async def wait(seconds):
        time.sleep(seconds)

    async def once(deadline):
        try:
            return predict()
        except tf.errors.OpError as error:
            if spoilt is not None:
                spoilt.append(error.message)
            raise Failure(type(error).__name__, error.message) from None

    return finished(attempt(once, 300.0, 50, 0.1, wait))


def test_ids_of_other_widths_are_answered_after_another_attempt(start, config, rows, alone):
    """TensorFlow Serving refuses a batch of different widths. The client's attempts meet other neighbours."""
    spoilt = []

    def call(row):
        ids = rows["tokens"]["source"][row]
        wide = np.zeros((1, WIDTH + row % 5), np.int32)
        wide[0, :WIDTH] = ids
        answer = until_answered(lambda: server.predict("tokens", source=wide), spoilt)
        check({name: value[0] for name, value in answer.items()}, alone["tokens"][row])

    with start(config) as server, ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(call, [*range(TEXTS)] * 2))
    assert spoilt


def hostile_requests(rows):
    """Requests of a stranger: a dict from a name to a signature and its inputs."""
    options = {name: tensor(column[:2]).numpy() for name, column in rows["options"].items()}
    numbers = {
        "temperature": [np.nan, np.inf, -np.inf, -1.0, 1e38],
        "top_p": [np.nan, np.inf, -1.0, 2.0],
        "max_length": [2**31 - 1, -(2**31), -5],
        "min_length": [2**31 - 1, -(2**31)],
        "seed": [2**31 - 1, -(2**31)],
        "top_k": [2**31 - 1, -1],
        "min_p": [np.nan, -1.0, 2.0],
        "repetition_penalty": [np.nan, 0.0, np.inf],
        "presence_penalty": [np.nan, np.inf],
        "stop": [b"\xff\0\0a", b"(" * 64, b"a" * 10**6, b"a\0" * 10**5],
        "logprobs": [2**31 - 1, 20],
    }
    requests = {
        "no row": ("serving_default", {"text": np.zeros(0, object)}),
        "10 MB without a blank": ("serving_default", {"text": [b"x" * 10**7]}),
        "10 MB of NUL": ("n_best", {"text": [b"\0" * 10**7]}),
        "no UTF-8": ("alignment", {"text": [b"\xff\xfe\xed\xa0\x80" * 99, b"\xc3"]}),
        "no UTF-8 as a prefix": ("options", {**options, "prefix": [b"\xff" * 9999] * 2}),
        "a target of 1 MB": ("score", {"text": [b"a"], "target": [b"a " * 500_000]}),
        "ids out of the vocabulary": ("tokens", {"source": np.full((2, WIDTH), 2**31 - 1, "int32")}),
        "ids below zero": ("tokens", {"source": np.full((2, WIDTH), -5, "int32")}),
        "a million ids": ("tokens", {"source": np.ones((1, 10**6), "int32")}),
        "no ids": ("tokens", {"source": np.ones((2, 0), "int32")}),
        "a matrix of texts": ("serving_default", {"text": [[b"a"], [b"b"]]}),
        "a vector of ids": ("tokens", {"source": np.ones(2, "int32")}),
        "numbers as texts": ("serving_default", {"text": [1, 2]}),
        "texts as numbers": ("options", {**options, "temperature": [b"a", b"b"]}),
        "another input": ("serving_default", {"text": [b"a"], "\x1b[2J": [b"b"]}),
        "no input": ("serving_default", {}),
        "another signature": ("\x1b[2J" * 99, {"text": [b"a"]}),
        "rows that differ in number": ("options", {**options, "text": [b"a"] * 3}),
    }
    for name, values in numbers.items():
        for value in values:
            changed = np.full_like(options[name], value)
            requests[f"{name} of {value!r:.20}"] = ("options", {**options, name: changed})
    return requests


def test_hostile_requests_end_no_server_and_spoil_no_neighbour(start, config, rows, alone):
    hostile, counts, ends = hostile_requests(rows), [], collections.Counter()

    def call(number):
        if number % 2:
            return until_answered(lambda: ask(server, rows, alone, number, [1, 2, 3], counts))
        signature, inputs = list(hostile.values())[number // 2 % len(hostile)]
        try:
            answer = server.predict(signature, **inputs)
            ends["answered"] += 1
            assert all(len(value) == len(next(iter(inputs.values()))) for value in answer.values())
        except (
            tf.errors.InvalidArgumentError,
            tf.errors.InternalError,
            tf.errors.NotFoundError,
            tf.errors.FailedPreconditionError,
        ):
            ends["refused"] += 1

    with start(config) as server, ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(call, range(4 * len(hostile))))
        check(
            {k: v[0] for k, v in server.predict(text=[rows["score"]["text"][0]]).items()},
            alone["serving_default"][0],
        )
        assert server.close() == 0
    assert counts == ["answered"] * 2 * len(hostile)
    assert ends["answered"] >= 20 and ends["refused"] >= 12, ends


def test_the_server_has_the_threads_of_its_flags(program, model_folder, config):
    def threads(intra_op, inter_op):
        with BatchingServer(program, model_folder / "1", config, intra_op, inter_op) as server:
            server.predict(text=[b"a"])
            tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
            return collections.Counter((task / "comm").read_text().strip() for task in tasks)

    one, other = threads(1, 4), threads(5, 2)
    assert (one["tf_Compute"], other["tf_Compute"]) == (4, 2)
    assert (
        other["batching_server"] - one["batching_server"] == 4
    )  # threads of operations have the program's name


def test_the_benchmark_of_threads_measures_each_combination(program, model_folder, pairs, tmp_path, capsys):
    source, output = tmp_path / "source", tmp_path / "measured.jsonl"
    source.write_text("".join(f"{text}\n" for text, _ in pairs[:TEXTS]), encoding="utf-8")
    paths = [model_folder / "1", "--source", source, "--server", program, "--output", output]
    settings = "--intra-op 1 --inter-op 2 --batch-threads 0,1 --callers 1,3 --seconds 0.5 --rounds 1"
    serving_threads.main([*map(str, paths), *settings.split()])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    names = (*serving_threads.SETTINGS, "callers")
    combinations = [tuple(row[name] for name in names) for row in rows]
    assert combinations == [(1, 2, threads, callers) for threads in (0, 1) for callers in (1, 3)]
    assert all(
        row["failed"] == 0 and 0 < row["p50_ms"] <= row["p99_ms"] and row["cpu_ms"] > 0 for row in rows
    )
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    assert [tuple(int(line[i]) for i in (2, 3, 4, 1)) for line in lines[2:]] == sorted(
        combinations, key=lambda each: each[3]
    )
    assert float(lines[2][6]) == float(lines[4][6]) == 1  # the first combination, beside itself
