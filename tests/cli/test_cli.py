"""The commands: options become a call, and its result a line, a message and an exit code."""

import contextlib
import csv
import dataclasses
import gzip
import importlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from commands import assert_refused, run

from keras_transformer import runs
from keras_transformer.cli import main
from keras_transformer.cli.search_options import NORMALIZATIONS
from keras_transformer.cli.tensorflow_import import import_tensorflow
from keras_transformer.decoding import (
    Beam,
    ForbidWords,
    Greedy,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Sample,
    SuppressTokens,
    beam,
)
from keras_transformer.runs import Recipe, read_history, training
from keras_transformer.runs.recipe import VOCABULARY
from keras_transformer.serving import Translator
from keras_transformer.training import corpus_scores
from keras_transformer.version import __version__

ROOT = pathlib.Path(__file__).parents[2]
TINY = [
    *("--num-layers", "1", "--d-model", "16", "--num-heads", "2", "--d-ff", "32"),
    *("--vocab-size", "260", "--character-coverage", "1.0", "--batch-tokens", "512", "--max-length", "40"),
    *("--learning-rate", "0.01", "--warmup-steps", "10"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory, pairs):
    """A folder of parallel files."""
    folder = tmp_path_factory.mktemp("files")
    sides = {"ko": [k for k, _ in pairs], "en": [e for _, e in pairs]}
    for name, lines in sides.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (folder / f"{name}.few").write_text("".join(f"{line}\n" for line in lines[:6]), encoding="utf-8")
    tsv = "".join(f"{k}\t{e}\r\n" for k, e in pairs)
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    with open(folder / "table.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("no", "en", "ko"), (0, "", "없음"), *((1, e, k) for k, e in pairs)])
    (folder / "no-tab.tsv").write_text("a\tb\nc d\n")
    (folder / "latin1").write_bytes("a\nGröße\n".encode("latin-1"))
    (folder / "empty").touch()
    (folder / "broken.gz").write_bytes(gzip.compress(b"text\n" * 99)[:-9])
    return folder


@pytest.fixture(scope="module")
def few(files):
    """The options for six pairs."""
    return ["--source", files / "ko.few", "--target", files / "en.few"]


@pytest.fixture(scope="module")
def command(files, tmp_path_factory):
    """A `train` command with validation; its last argument is its new folder."""
    folder = tmp_path_factory.mktemp("runs") / "deep" / "run"
    data = ["--source", files / "ko", "--target", files / "en"]
    validation = ["--val-source", files / "ko.few", "--val-target", files / "en.few"]
    return ["train", *data, *validation, *TINY, "--epochs", "2", "--output", folder]


@pytest.fixture(scope="module")
def trained(command):
    """The exit code, standard output and standard error of the command."""
    return run(*command)


@pytest.mark.slow
def test_train_reports_on_stderr_prints_its_folder_and_validates(command, trained, pairs):
    code, out, err = trained
    assert code == 0, err
    assert out.decode() == f"{command[-1]}\n"
    epochs = [line.split()[:2] for line in err.splitlines() if line.startswith("epoch")]
    assert epochs == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert "parameters" in err and f"{len(pairs)} pairs" in err
    history = read_history(command[-1])
    assert [row["epoch"] for row in history] == ["0", "1"]
    for name in ("loss", "perplexity", "val_loss", "val_perplexity"):
        assert all(float(row[name]) > 0 for row in history)
    assert float(history[1]["val_loss"]) != float(history[0]["val_loss"])


@pytest.mark.slow
def test_an_interrupted_command_says_how_it_resumes(command, tmp_path, monkeypatch):
    again = [*command[:-1], tmp_path / "run"]

    class Killer(training.Progress):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            if epoch == 1:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "Progress", Killer)
        code, _, err = run(*again)
    assert code == 130 and "interrupted" in err and "Traceback" not in err
    assert f"{again[-1]}: 1 epochs are saved. The same command resumes the run." in err


@pytest.mark.slow
def test_train_reads_a_compressed_tsv_and_keeps_vocabularies_apart(files, tmp_path):
    code, _, err = run(
        "train", "--pairs", files / "pairs.tsv.gz", *TINY, "--epochs", 1, "--separate-vocabularies",
        "--output", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, err
    translator = Translator.load(tmp_path / "run")
    for tokenizer in (translator.source_tokenizer, translator.target_tokenizer):
        assert not any("\r" in piece for piece in tokenizer.pieces(range(tokenizer.vocab_size)))
    korean = translator.target_tokenizer.tokenize("저는 학생입니다").numpy().tolist()
    assert 1 in korean  # the English side has never seen Korean
    assert 1 not in translator.source_tokenizer.tokenize("저는").numpy().tolist()
    assert translator.model.source is not translator.model.target


def test_translate_writes_a_line_for_a_line_in_order(tiny_run, traced, pairs):
    sources = [source for source, _ in pairs[:9]]
    lines = [*sources[:4], "", sources[4], "   ", "", *sources[5:], "🎉"]
    code, out, err = run("translate", tiny_run, stdin="".join(f"{line}\n" for line in lines).encode())
    assert (
        code == 0
        and "warning: 1 of 13 lines hold text that the vocabulary cannot write, for example in '🎉'" in err
    )
    expected = traced.translate(lines)
    assert out.decode() == "".join(f"{line}\n" for line in expected)
    assert expected[4] == expected[6] == expected[7] == "" != expected[0]


@pytest.mark.parametrize(
    ("stdin", "lines"),
    [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\nb", 2), (b"\n\n\n", 3), (b"\xfd\xfe\na\0b\n\x0c\n", 3)],
)
def test_translate_writes_as_many_lines_as_it_read(tiny_run, traced, stdin, lines):
    code, out, err = run("translate", tiny_run, "--batch-size", 2, stdin=stdin)
    kinds = (
        "not UTF-8",
        "hold text that the vocabulary cannot write",
        "were cut at their largest",
        "are empty",
    )
    assert code == 0 and all(any(kind in line for kind in kinds) for line in err.splitlines())
    assert all(kind in err for kind in kinds[:2]) == (b"\0" in stdin)
    assert out.count(b"\n") == lines and (not lines or out.endswith(b"\n"))
    out.decode("utf-8")


def test_line_ends_change_nothing_and_stay_out_of_translations(tiny_run, traced, monkeypatch):
    monkeypatch.setattr(
        Translator, "translate_batch", lambda self, rows: [f"{row}\nb\r\nc\u2028d" for row in rows]
    )
    unix = run("translate", tiny_run, stdin=b"a\n\nb\n")
    assert unix[1] == b"b'a' b c d\nb'' b c d\nb'b' b c d\n"
    assert run("translate", tiny_run, stdin=b"a\r\n\r\nb\r\n") == unix


@pytest.mark.slow
def test_evaluate_scores_tokenized_text_without_tokenizing_it(tiny_run, few):
    code, out, err = run("evaluate", tiny_run, *few, "--tokenize", "none")
    assert (code, err) == (0, "") and b"tok:none" in out


@pytest.mark.parametrize(
    ("tokenizer", "named"), [("words", "words"), ("ja-mecab", "must be a tokenizer that is installed")]
)
def test_evaluate_refuses_a_missing_tokenizer_before_it_translates(
    tiny_run, few, tokenizer, named, monkeypatch
):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    monkeypatch.delattr(Translator, "translate")
    assert_refused("evaluate", tiny_run, *few, "--tokenize", tokenizer, named=named)


@pytest.mark.slow
def test_closed_standard_error_does_not_stop_the_work(
    tiny_run, files, translator, pairs, monkeypatch, tmp_path
):
    reader, writer = os.pipe()
    os.close(reader)
    (tmp_path / "in").write_text(f"{pairs[0][0]}\n", encoding="utf-8")
    command = ["translate", str(tiny_run), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    with open(writer, "w") as closed, contextlib.redirect_stdout(io.StringIO()):
        monkeypatch.setattr(sys, "stderr", closed)
        assert main(command) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == f"{translator.translate([pairs[0][0]])[0]}\n"


@pytest.mark.slow
def test_closed_standard_output_ends_a_command_quietly(tiny_run, pairs, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    source = "".join(f"{source}\n" for source, _ in pairs[:3]).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source), "utf-8"))
    with open(writer, "w") as closed, contextlib.redirect_stderr(io.StringIO()) as err:
        monkeypatch.setattr(sys, "stdout", closed)
        assert (main(["translate", str(tiny_run)]), err.getvalue()) == (0, "")


@pytest.mark.parametrize(("error", "expected", "begin"), [
    (ValueError("x" * 10**6), 2, "error: xxx"),
    (ValueError("a\x1b[31mb\n"), 2, r"error: a\x1b[31mb\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
], ids=["long", "control", "interrupted"])  # fmt: skip
def test_errors_and_interruptions_are_one_short_line(error, expected, begin, monkeypatch, tmp_path):
    def fail():
        raise error

    monkeypatch.setattr(importlib.import_module("keras_transformer.cli.main"), "import_tensorflow", fail)
    code, out, err = run("export", tmp_path, "model")
    assert (code, out, err.count("\n")) == (expected, b"", 1)
    assert err.startswith(f"keras-transformer: {begin}") and len(err) < 3100 and "\x1b" not in err


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_a_training_has_onednn_unless_the_user_said_otherwise(given, expected, monkeypatch):
    name = "TF_ENABLE_ONEDNN_OPTS"
    monkeypatch.setenv(name, given) if given else monkeypatch.delenv(name, raising=False)
    import_tensorflow()
    assert os.environ.get(name) == given
    import_tensorflow(trains=True)
    assert os.environ.get(name) == expected
    monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "command", [("ask", "http://localhost:1"), ("load-test", "http://localhost:1"), ("translate",)]
)
def test_a_closed_standard_input_is_named(tiny_run, traced, command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main([*command, *([str(tiny_run)] if command == ("translate",) else [])]) == 2
    assert capsys.readouterr().err == (
        "keras-transformer: error: Standard input must be open. Received: a closed one.\n"
    )


def test_the_help_imports_no_numpy_and_commands_without_a_model_no_keras(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    code = """
import contextlib, sys
from keras_transformer.cli import main
def run(*commands):
    for command in commands:
        with contextlib.suppress(SystemExit):
            main(command.split())
run("--help")
assert "numpy" not in sys.modules
from keras_transformer.cli.search_options import NORMALIZATIONS
from keras_transformer.cli.tensorflow_import import import_tensorflow
run("server-files missing", "train --help", "generate . --nothing", "evaluate missing")
run("train --pairs . --output x --dropout 2", "train --output x", "tune . --data . --output x --alpha 2")
def stop(trains):
    raise ValueError(f"imported now, {trains=}")
from keras_transformer.cli import training_commands
training_commands.import_tensorflow = stop
run("train --pairs pairs.tsv --output x", "tune . --data pairs.tsv --output x")
print(sorted({"keras", "tensorflow"} & set(sys.modules)))
"""
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.count("usage: keras-transformer") == 2
    # TensorFlow reads variables of the environment that `import_tensorflow` sets.
    assert done.stderr.count("imported now, trains=True") == 2
    assert "--nothing" in done.stderr and done.stderr.count("missing") >= 2
    for rule in ("dropout=2.0", "Give --source and --target", "--alpha needs --lora"):
        assert rule in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_option_of_normalization_has_the_names_of_a_beam():
    assert NORMALIZATIONS == beam.NORMALIZATIONS


def test_options_of_a_beam_need_a_beam(tiny_run, traced):
    for option in ("--length-penalty=1", "--normalization=length"):
        assert_refused("translate", tiny_run, option, named="give --beam-width too")
    code, out, err = run("translate", tiny_run, option, "--beam-width", 2, stdin=b"")
    assert (code, out, err) == (0, b"", "")


SEARCHES = {
    "--temperature 0.7 --top-k 5 --top-p 0.9 --seed 3": (Sample(0.7, 5, 0.9, seed=3), []),
    "--min-length 4 --repetition-penalty 1.5 --no-repeat-ngram 2": (
        Greedy(),
        [MinLength(4), RepetitionPenalty(1.5), NoRepeatNgram(2)],
    ),
    "--suppress <unk> </s> --beam-width 2": (Beam(2), [SuppressTokens([1, 3])]),
    "--suppress not a <unk>": (Greedy(), [SuppressTokens([1]), ["not", "a"]]),
}


@pytest.mark.parametrize("options", SEARCHES)
def test_options_of_the_search_are_those_of_python(tiny_run, traced, options, monkeypatch):
    used = []
    monkeypatch.setattr(
        Translator, "translate_batch", lambda self, rows: used.append(self) or ["b"] * len(rows)
    )
    code, _, err = run("translate", tiny_run, *options.split(), stdin=b"a\n")
    assert (code, err) == (0, "")
    constraints = [[*each.words] if isinstance(each, ForbidWords) else each for each in used[0].constraints]
    assert (used[0].strategy, constraints) == SEARCHES[options]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--beam-width 2 --seed 1", "not both. Received: --beam-width, --seed"),
        ("--suppress <no>", "--suppress must name words or pieces of the vocabulary. Received: '<no>'"),
        ("--temperature -1", "temperature=-1.0"),
    ],
)
def test_options_of_the_search_that_do_not_fit_are_named(tiny_run, traced, options, named):
    assert_refused("translate", tiny_run, *options.split(), named=named)


def test_evaluate_prints_both_scores_with_their_signatures(tiny_run, traced, few, pairs):
    code, out, err = run("evaluate", tiny_run, *few, "--batch-size", 4)
    assert (code, err) == (0, "")
    sources, references = map(list, zip(*pairs[:6], strict=True))
    scores = corpus_scores(traced.translate(sources), references)
    assert scores["bleu"] > 20
    assert out.decode().splitlines() == [
        f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}",
        f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}",
    ]


def test_evaluate_counts_pairs_with_an_empty_side(tiny_run, traced, pairs, tmp_path):
    lines = [*("\t".join(pair) for pair in pairs[:2]), f"{pairs[2][0]}\t ", f"\t{pairs[3][1]}"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    code, _, err = run("evaluate", tiny_run, "--pairs", tmp_path / "pairs.tsv")
    assert code == 0 and "2 of 4 pairs have an empty side. They count in the scores, too." in err


@pytest.mark.slow
def test_server_files_follow_the_options_of_export(tiny_run, tmp_path):
    options = (
        "--beam-width 3 --n-best 2 --max-source-length 20 --max-length 9 --precision int8 --batch-sizes 1 4 "
        "--signatures serving_default n_best"
    )
    code, out, err = run("export", tiny_run, tmp_path / "model", *options.split())
    assert (code, out.decode()) == (0, f"{tmp_path / 'model' / '1'}\n") and f"Exporting {tiny_run}." in err
    described = json.loads((tmp_path / "model" / "1" / "assets.extra" / "export.json").read_text())
    arguments = described["arguments"]
    assert [arguments["strategy"]["config"][name] for name in ("width", "n_best")] == [3, 2]
    assert (arguments["max_source_length"], arguments["max_length"]) == (20, 9)
    assert (described["precision"], described["batch_sizes"]) == ("int8", [1, 4])
    assert list(described["signatures"]) == ["serving_default", "n_best"]

    code, out, err = run("server-files", tmp_path / "model", "--name", "ko_en")
    assert code == 0, err
    names = ["models.config", "batching.config", "monitoring.config", "docker-compose.yml"]
    names += ["docker-compose.gpu.yml", "kubernetes.yml", "prometheus.yml", "alerts.yml", "dashboard.json"]
    assert out.decode().split() == [str(tmp_path / "model" / name) for name in names]
    assert "max_batch_size { value: 16 }" in (tmp_path / "model" / "batching.config").read_text()
    code, _, err = run("server-files", tmp_path / "model", "--stable", 2)
    assert code == 2 and "Received: stable=2" in err


# Each option whose value another module refuses is refused there. Here are the kinds of errors.
MISTAKES = {
    "--source {files}/nowhere --target {files}/en": "nowhere",
    "--source {files}/ko --target {files}/en.few": "en.few with 6",
    "--source {files}/ko --target {files}/en --pairs {files}/pairs.tsv.gz": "not both",
    "--source {files}/ko": "--target",
    "": "--pairs",
    "--pairs {files}/no-tab.tsv": "no-tab.tsv, line 2",
    "--source {files}/latin1 --target {files}/latin1": "latin1, line 2",
    "--source {files}/broken.gz --target {files}/broken.gz": "broken.gz",
    "--pairs {files}": "files",
    "{data} --val-source {files}/ko.few": "--val-target",
    "{data} --val-pairs {files}/nowhere.tsv": "nowhere.tsv",
    "{data} --num-heads 3": "num_heads=3",
    "{data} --max-length 2": "longer than --max-length=2",
    "{data} --too-long error --max-length 4": "--max-length=4",
    "{data} --seed -1": "Seed must be between 0",
    "{data} --columns ko,en": "--columns names the columns of --pairs",
    "--pairs {files}/table.csv": "name its two columns, such as --columns source,target",
    "--pairs {files}/table.csv --columns ko,de": "no column 'de'; its first line names no, en, ko",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_unusable_input_of_train_is_one_message(files, tmp_path, options):
    data = f"--source {files}/ko --target {files}/en"
    given = options.format(files=files, data=data).split()
    assert_refused(
        "train", *TINY, "--epochs", 1, "--output", tmp_path / "run", *given, named=MISTAKES[options]
    )


def test_an_output_that_cannot_be_used_is_named(files, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for output in ("file", "folder"):
        data = ["--source", files / "ko", "--target", files / "en"]
        assert_refused("train", *data, *TINY, "--output", tmp_path / output, named=str(tmp_path / output))
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "mine").read_text() == "mine"


def test_pairs_are_read_from_two_columns_of_a_table(files, pairs, tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(runs, "train", lambda *arguments, say: given.update(arguments=arguments))
    tables = ["--pairs", files / "table.csv", "--val-pairs", files / "table.csv", "--columns", "ko, en"]
    code, _, err = run("train", *tables, "--output", tmp_path / "run")
    assert code == 0 and f"1 of {len(pairs) + 1} rows are left out" in err
    _, train_pairs, _, val_pairs = given["arguments"]
    assert train_pairs == val_pairs == pairs


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("translate {files}/nowhere", "nowhere"),
        ("translate {files}", "holds no translator"),
        ("translate {files}/ko", "ko"),
        ("translate {run} --batch-size 0", "batch_size=0"),
        ("evaluate {files} --source {files}/ko --target {files}/en", "holds no translator"),
        ("evaluate {run}", "--pairs"),
        ("evaluate {run} --source {files}/ko --target {files}/en.few", "en.few with 6"),
        ("evaluate {run} --pairs {files}/table.csv --columns ko,ja", "no column 'ja'"),
        ("evaluate {run} --pairs {files}/no-tab.tsv", "no-tab.tsv, line 2"),
        ("export {files} {tmp}/model", "`folder` must hold one of translator.json, "),
        ("export {files} {tmp}/model --version 0", "version=0"),  # before it loads a model
        ("export {files} gs://bucket/model", "must be on a disk of this machine"),
        pytest.param("export {run} {files}/ko", "ko", marks=pytest.mark.slow),
    ],
)
def test_unusable_input_of_other_commands_is_one_message(files, tiny_run, tmp_path, arguments, named):
    arguments = arguments.format(files=files, run=tiny_run, tmp=tmp_path).split()
    assert_refused(*arguments, stdin=b"a\n", named=named)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", "usage: keras-transformer"),
        ("fly", "usage: keras-transformer"),
        ("train", "usage: keras-transformer train"),
        ("train --output x --preset huge", "usage: keras-transformer train"),
        ("train --output x --unheard-of", "unrecognized arguments: --unheard-of"),
        ("train --output x --lerning-rate 3", "--lerning-rate 3. Did you mean --learning-rate?"),
        ("train --output x --learning_rate=3", "--learning_rate=3. Did you mean --learning-rate?"),
        ("translate x --n-best 3", "unrecognized arguments: --n-best 3"),
        ("export run", "usage: keras-transformer export"),
        ("server-files folder --name=--", "argument --name: expected one argument"),
        ("ask http://localhost --label=--", "argument --label: expected one argument"),
    ],
)
def test_malformed_command_line_is_exit_code_2_with_the_usage(arguments, shown, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert (
        shown in err and f"usage: keras-transformer {arguments.partition(' ')[0].replace('fly', '')}" in err
    )


def help_of(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_command_and_hyperparameter_with_its_default(capsys):
    text = help_of(capsys)
    assert all(name in text for name in ("train", "average", "translate", "evaluate", "export"))
    text = " ".join(help_of(capsys, "train").split())
    for field in dataclasses.fields(Recipe):
        option = f"--{field.name.replace('_', '-')}"
        assert any(f"{option}{after}" in text for after in (" ", "]", ",")), option
        assert " ".join(field.metadata["help"].split()) in text
    assert "a small batch weighs as much as a large one" in text
    for default in ("(default: 8000)", "(default: 4096)", "(default: tiny)", "(default: 0.1)"):
        assert default in text


# Fields for which the common value of their type contradicts another field.
SPECIAL = {"character_coverage": 0.99, "tokenizer": "bpe", "average_last": 1}


@pytest.mark.parametrize(
    "left_out", [("init_from", "lora"), ("tokenizer", *VOCABULARY, "ema")], ids=["new", "continued"]
)
def test_options_and_files_reach_the_training(files, pairs, tmp_path, monkeypatch, left_out):
    kinds = {int: 7, float: 0.25, str: "gelu", bool: True}
    given = {}
    monkeypatch.setattr(runs, "train", lambda *arguments, say: given.update(arguments=arguments))
    options, expected = [], {}
    for field in dataclasses.fields(Recipe):
        if field.name in left_out:
            expected[field.name] = None
            continue
        name = f"--{field.name.replace('_', '-')}"
        choices = field.metadata.get("choices")
        kind = next(k for k in kinds if k.__name__ in str(field.type).replace("<class '", "").split("'")[0])
        expected[field.name] = choices[-1] if choices else kinds[kind]
        expected[field.name] = SPECIAL.get(field.name, expected[field.name])
        if field.metadata.get("is_path"):
            expected[field.name] = str(tmp_path)
        options += [name] if kind is bool else [name, expected[field.name]]
    data = ["--pairs", files / "pairs.tsv.gz"]
    data += ["--val-source", files / "ko.few", "--val-target", files / "en.few"]
    command = ["train", *data, "--output", tmp_path / "run"]
    code, out, err = run(*command, *options)
    assert (code, out.decode(), err) == (0, f"{tmp_path / 'run'}\n", "")
    recipe, train_pairs, folder, val_pairs = given["arguments"]
    assert dataclasses.asdict(recipe) == expected
    assert (list(train_pairs), str(folder), list(val_pairs)) == (pairs, str(tmp_path / "run"), pairs[:6])
    assert run(*command)[0] == 0 and given["arguments"][0] == Recipe()


@pytest.mark.slow
def test_the_module_translates_in_a_process_of_its_own_without_notices_of_tensorflow(
    tiny_run, translator, pairs
):
    command = [sys.executable, "-m", "keras_transformer", "translate"]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    options = {"capture_output": True, "cwd": ROOT, "env": environment, "check": False}
    lines = [pairs[0][0], "", pairs[1][0]]
    done = subprocess.run([*command, tiny_run], input="\n".join(lines).encode(), **options)
    # This model has hardly learnt to end, which the library says.
    notices = [line for line in done.stderr.splitlines() if b"translations were cut" not in line]
    assert (done.returncode, notices) == (0, [])
    assert done.stdout.decode() == "".join(f"{line}\n" for line in translator.translate(lines))
    done = subprocess.run([*command, ROOT], input=b"", **options)
    assert done.returncode == 2 and done.stdout == b""
    assert b"holds no translator" in done.stderr and b"Traceback" not in done.stderr


def test_the_version_is_printed_and_a_missing_input_is_named_with_its_option(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"keras-transformer {__version__}\n"
    missing = tmp_path / "missing"
    rule = "must be a file or a folder that exists. Received: "
    assert_refused("translate", missing, named=f"error: RUN {rule}{str(missing)!r}")
    assert_refused("translate", tmp_path, "--input", missing, "--output", "x", named=f"error: --input {rule}")


def test_average_uses_all_kept_epochs_and_needs_a_run(tiny_run, tmp_path):
    assert_refused("average", tmp_path, named="must be the folder of a run")
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    code, _, err = run("average", folder)
    kept = len(list(folder.glob("checkpoint-*.keras")))
    assert code == 0 and f"the mean weights of the last {kept} epochs" in err


def test_ensemble_joins_runs_and_warns_of_different_pairs(tiny_run, translator, files, tmp_path):
    output = tmp_path / "joined"
    assert_refused("ensemble", tiny_run, "--output", output, named="Give at least two folders")
    assert_refused(
        "ensemble", tiny_run, tmp_path / "none", "--output", output, named="must be a file or a folder that"
    )
    assert not output.exists()
    code, out, err = run("ensemble", tiny_run, tiny_run, "--output", output)
    assert (code, out.decode()) == (0, f"{output}\n"), err
    assert "different pairs" not in err
    other = shutil.copytree(tiny_run, tmp_path / "other")
    description = json.loads((other / "run.json").read_text(encoding="utf-8"))
    description["pairs"]["sha256"] = "0" * 64  # as of a run of the other direction
    (other / "run.json").write_text(json.dumps(description), encoding="utf-8")
    code, _, err = run("ensemble", tiny_run, other, "--output", tmp_path / "mixed")
    assert code == 0 and "warning: the runs were trained with different pairs" in err
    assert_refused("ensemble", tiny_run, tiny_run, "--output", output, named="--output must not exist yet")
    assert_refused(
        "convert", output, tmp_path / "converted", named="not of a subclass. Received: model=<Ensemble"
    )
    assert_refused("average", output, named="must be the folder of a run")
    models = Translator.load(output).model.models
    assert len(models) == 2
    for model in models:
        np.testing.assert_equal(model.get_weights(), translator.model.get_weights())
    new = ("--source", files / "ko", "--target", files / "en", "--output", tmp_path / "new")
    assert_refused("train", *new, "--init-from", output, named="--init-from must hold one model")


@pytest.mark.slow
def test_translate_has_the_limits_of_an_export(tiny_run, translator, pairs):
    line = pairs[0][0]
    options = "--max-length 4 --max-source-length 9"
    code, out, err = run("translate", tiny_run, *options.split(), stdin=f"{line}\n".encode())
    limited = translator.changed(max_length=4, max_source_length=9)
    with pytest.warns(UserWarning, match="longer than"):
        expected = limited.translate([line])
    assert (code, out.decode().splitlines()) == (0, expected) and "--max-source-length=9 tokens" in err
