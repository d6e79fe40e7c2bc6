"""Tuning of Hugging Face folders: chats and labels go in, a folder of the tuned model comes out, and it resumes."""

import csv
import json
import shutil

import keras
import numpy as np
import pytest
from commands import assert_refused, run
from contracts import refuses

from keras_transformer import runs
from keras_transformer.cli.convert import convert
from keras_transformer.data import read_chats
from keras_transformer.files import locked
from keras_transformer.huggingface import FAMILIES, embedder_files, from_huggingface, to_huggingface
from keras_transformer.runs import tuning
from keras_transformer.runs.tuning_tasks import task_of
from keras_transformer.serving import Classifier, Embedder, TextGenerator
from keras_transformer.text import BytePairTokenizer, WordPieceTokenizer
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

TEMPLATE = "{% for m in messages %}{{ '<q>' if m.role == 'user' else '' }}{{ m.content }}<e>{% endfor %}"
LLAMA = {
    "model_type": "llama", "vocab_size": 259, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 24, "eos_token_id": 257, "pad_token_id": 258, "bos_token_id": 256,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": True,
    "attention_dropout": 0.0,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 16, "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day", "night"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "base"
    tokenizer = BytePairTokenizer(
        [*BYTE_CHARACTERS, "<q>", "<e>", "<p>"], [], special_tokens=["<q>", "<e>", "<p>"], eos_token="<e>",
        pad_token="<p>",
    )  # fmt: skip
    keras.utils.set_random_seed(0)
    model = FAMILIES["llama"].make_model(LLAMA)
    files = {"chat_template.jinja": TEMPLATE}
    to_huggingface(model, folder, tokenizers=(tokenizer,), family="llama", files=files)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "base"
    keras.utils.set_random_seed(0)
    model = FAMILIES["bert"].make_model(BERT)
    to_huggingface(model, folder, tokenizers=(WordPieceTokenizer(WORDS),), family="bert")
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Each answer is the capital of the question's letter."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": letter}, {"role": "assistant", "content": letter.upper()}]}
        for letter in "abcdefgh" * 5
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "table.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(
            [(f"{word} day" + " night" * i, word) for word in ("good", "bad") for i in range(12)]
        )
    return path


@pytest.fixture(scope="module")
def tuned(bert, table, tmp_path_factory):
    """A command, and its folder and what it printed after an epoch; do not write to it."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    command = ["tune", bert, "--data", table, "--epochs", "1", "--batch-size", "4", "--length", "16"]
    code, out, err = run(*command, "--output", folder)
    assert code == 0, err
    return command, (folder, out, err)


def recipe(**options):
    return runs.TuningRecipe(**{"epochs": 2, "length": 16, "learning_rate": 0.01, "samples": 0, **options})


def history_of(folder):
    return [{name: float(value) for name, value in row.items()} for row in runs.read_history(folder)]


@pytest.mark.slow
def test_a_language_model_learns_the_answers_of_chats(llama, chats, tmp_path):
    said = []
    options = recipe(epochs=12, samples=2, batch_size=1, learning_rate=0.02)
    path = runs.tune(options, llama, chats, tmp_path / "run", chats, said.append)
    perplexities = [row["val_perplexity"] for row in history_of(tmp_path / "run")]
    assert min(perplexities) < 1.5 < 50 < float(said[1].split("perplexity ")[1])
    assert any(f"{letter}  ->  {letter.upper()}" in line for letter in "abcdefgh" for line in said)
    generator = convert(path, tmp_path / "chat", chat=True)
    assert isinstance(generator, TextGenerator)
    questions, answers = zip(
        *((chat[0]["content"], chat[1]["content"]) for chat in read_chats(chats)[:8]), strict=True
    )
    found = generator.generate([f"<q>{question}<e>" for question in questions])
    assert np.mean([one == other for one, other in zip(found, answers, strict=True)]) > 0.5
    again = []
    assert runs.tune(options, llama, chats, tmp_path / "run", chats, again.append) == path
    assert "nothing to do" in again[0]


@pytest.mark.slow
def test_an_encoder_learns_the_labels_of_a_table(bert, table, tmp_path):
    options = {
        "epochs": 10, "batch_size": 2, "learning_rate": 0.01, "hold_out": 0.25, "patience": 6, "samples": 1,
    }  # fmt: skip
    path = runs.tune(recipe(**options), bert, table, tmp_path / "run", say=[].append)
    assert max(row["val_accuracy"] for row in history_of(tmp_path / "run")) == 1.0
    classifier = convert(path, tmp_path / "classifier")
    assert isinstance(classifier, Classifier)
    assert [label for label, _ in classifier.classify(["good day", "bad day"])] == ["good", "bad"]


@pytest.mark.slow
def test_an_encoder_learns_the_labels_of_words(bert, tmp_path):
    labels = {word: "O" if word == "night" else f"X-{word}" for word in WORDS[5:]}
    lines = [f"{one} {labels[one]}\n{two} {labels[two]}\n" for one in WORDS[5:] for two in WORDS[5:]]
    (tmp_path / "words.conll").write_text("-DOCSTART- O\n\n" + "\n".join(lines))
    options = {"epochs": 10, "batch_size": 2, "learning_rate": 0.005, "samples": 1}
    said = []
    path = runs.tune(recipe(**options), bert, tmp_path / "words.conll", tmp_path / "run", say=said.append)
    assert max(row["val_f1"] for row in history_of(tmp_path / "run")) == 1.0
    assert all("f1 " in line for line in said if line.startswith(("before", "epoch", "after")))
    assert "day/X-day" in said[-1] or "X-" in said[-1]
    tagger = convert(path, tmp_path / "tagger")
    ((first, second),) = tagger.tag(["night good"])
    assert (first[:2], second[:2]) == (("night", "O"), ("good", "X-good"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"lora": 2, "targets": "all"}, {"lora": 2, "targets": "all", "adapter": True}],
    ids=["whole", "lora", "adapter"],
)
def test_an_embedder_learns_matches(options, tmp_path):
    keras.utils.set_random_seed(0)
    words = [f"{kind}{i}" for kind in "ab" for i in range(12)]
    tokenizer = WordPieceTokenizer([*WORDS[:5], *words])
    model = FAMILIES["bert"].make_model({**BERT, "vocab_size": 29})
    described = embedder_files(model, pooling="mean", max_source_length=8)
    to_huggingface(model, tmp_path / "base", tokenizers=(tokenizer,), family="bert", files=described)
    table = tmp_path / "pairs.csv"
    rows = [f"a{i} {'day ' * n},b{i} {'day ' * n}" for i in range(12) for n in range(3)]
    table.write_text("text,match\n" + "\n".join(rows))
    options = {"epochs": 30, "batch_size": 12, "learning_rate": 0.02, "samples": 2, "length": 8, **options}
    path = runs.tune(
        recipe(**options), tmp_path / "base", table, tmp_path / "run", val_data=table, say=[].append
    )
    losses = [row["val_loss"] for row in history_of(tmp_path / "run")]
    assert min(losses) < losses[0] / 2
    embedder = convert(path, tmp_path / "embedder")
    assert isinstance(embedder, Embedder)
    # sentence-transformers takes its own pooling where an adapter has none beside it.
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert json.loads((path / name).read_text()) == json.loads((tmp_path / "base" / name).read_text())
    first, second = (np.stack(embedder.embed([f"{kind}{i}" for i in range(12)])) for kind in "ab")
    assert np.mean(np.argmax(first @ second.T, axis=1) == np.arange(12)) > 0.5
    (shorter,) = embedder.changed(dimensions=3).embed(["a1"])
    np.testing.assert_allclose(shorter, first[1, :3] / np.linalg.norm(first[1, :3]), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lora": 2, "targets": "q_proj,outer"}], ids=["whole", "lora"])
def test_a_stopped_tuning_resumes_to_the_same_weights(options, llama, chats, tmp_path):
    options = recipe(checkpoint_steps=1, hold_out=0.2, batch_size=2, **options)
    whole = runs.tune(options, llama, chats, tmp_path / "whole", say=[].append)
    stopped = Stops(3)
    with pytest.raises(KeyboardInterrupt):
        runs.tune(options, llama, chats, tmp_path / "run", say=stopped)
    assert not (tmp_path / "run" / "model").exists()
    resumed = runs.tune(options, llama, chats, tmp_path / "run", say=[].append)
    for one, other in zip(from_huggingface(whole).weights, from_huggingface(resumed).weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert history_of(tmp_path / "whole") == history_of(tmp_path / "run")


def test_a_history_without_an_epoch_is_refused(tuned, tmp_path):
    command, (run_folder, _, _) = tuned
    folder = shutil.copytree(run_folder, tmp_path / "run")
    shutil.rmtree(folder / "model")
    history = folder / "history.csv"
    content = history.read_text()
    for other in ("", content.replace("val_accuracy", "a"), content.replace("\n0,", "\n7,")):
        history.write_text(other)
        named = "history.csv must have the measures of each of the 1 epochs"
        assert_refused(*command, "--output", folder, named=named)


def test_the_rate_of_updates_of_several_batches_ends_with_the_last_epoch(bert):
    """Keras reads a schedule with the number of batches: the rate was 0 after a quarter of them."""
    rows = [("good day", "good"), ("bad day", "bad")]
    rates = []
    for accumulation in (1, 4):
        options = recipe(accumulation=accumulation, warmup=0.25)
        task = task_of(bert, options, "days.csv")
        model = task.make_model(rows)
        tuning._compile(options, task, model, steps=4 * accumulation)
        last = range(accumulation - 1, 8 * accumulation, accumulation)
        rates.append([float(model.optimizer._learning_rate(batch)) for batch in last])
    np.testing.assert_allclose(rates[1], rates[0], atol=1e-7)
    refuses("`accumulation` must be at most", tuning._compile, options, task, model, 1)


def test_nan_is_no_best_epoch(bert):
    task = task_of(bert, recipe(), "table.csv")
    history = [{"val_accuracy": 0.9, "val_loss": loss} for loss in (float("nan"), 0.1, 0.2)]
    assert tuning._best_epoch(task, history) == 1


def test_the_best_epoch_of_entities_has_the_highest_f1(bert):
    task = task_of(bert, recipe(), "names.conll")
    rows = [(("good", "bad", "day", "night"), ("B-A", "I-A", "O", "O")), (("day", "good"), ("O", "B-A"))]
    model = task.make_model(rows)
    batches = task.batches(model, rows)
    # One of the two entities is right, and five of the six words.
    found = np.eye(3, dtype="float32")[[[2, 0, 2, 2, 2, 2], [2, 2, 0, 2, 2, 2]]]
    model.predict = lambda x, **options: found
    assert task.measures(model, batches) == {"f1": 0.5}
    history = [
        {"val_f1": f1, "val_accuracy": accuracy, "val_loss": 0.1}
        for f1, accuracy in ((0, 0.9), (0.5, 0.8), (0.5, 0.7))
    ]
    assert tuning._best_epoch(task, history) == 1


def test_the_best_epoch_of_weighted_classes_has_the_highest_mean_f1(bert):
    rows = [("good day", "good"), ("good night", "good"), ("good", "good"), ("bad day", "bad")]
    measured = []
    for options in ({}, {"class_weights": True}):
        task = task_of(bert, recipe(**options), "days.csv")
        model = task.make_model(rows)
        model.predict = lambda x, **options: np.array([[0, 1]] * 4, "float32")
        measured.append(task.measures(model, task.batches(model, rows)))
    assert measured == [{}, {"f1": pytest.approx(6 / 7 / 2)}]


def test_parts_of_speech_are_no_entities(bert):
    task = task_of(bert, recipe(), "words.conll")
    rows = [(("good", "day"), ("ADJ", "NOUN")), (("bad", "night"), ("ADJ", "NOUN"))]
    model = task.make_model(rows)
    assert task.measures(model, task.batches(model, rows)) == {}


def test_the_best_epoch_of_chats_has_the_least_perplexity(llama, chats):
    history = [{"val_perplexity": perplexity} for perplexity in (5.0, 2.0, 3.0, float("nan"))]
    assert tuning._best_epoch(task_of(llama, recipe(), chats), history) == 1


def test_equal_chats_are_on_one_side_and_chats_without_answers_are_no_samples(llama, chats):
    task = task_of(llama, recipe(), chats)
    one, other = ([{"role": "user", "content": text}] for text in "ab")
    train, held_out = task.split([one] * 9 + [other], 0.3, 1)
    assert {len(train), len(held_out)} == {9, 1}
    assert list(task.samples(task.make_model([]), [one])) == []


def test_a_head_of_several_labels_at_once_is_not_taken_for_one_label(tmp_path):
    keras.utils.set_random_seed(0)
    labels = {"id2label": {"0": "bad", "1": "good"}, "problem_type": "multi_label_classification"}
    config = {**BERT, **labels, "architectures": ["BertForSequenceClassification"]}
    model = FAMILIES["bert"].make_model(config)
    assert model.head.multi_label
    to_huggingface(model, tmp_path / "base", tokenizers=(WordPieceTokenizer(WORDS),), family="bert")
    rows = [("good day", "good"), ("bad day", "bad")]
    assert not task_of(tmp_path / "base", recipe(), "a.csv").make_model(rows).head.multi_label


def test_repeated_texts_of_an_embedder_are_left_out_with_a_warning(tmp_path, caplog):
    tokenizer, model = WordPieceTokenizer(WORDS), FAMILIES["bert"].make_model(BERT)
    files = embedder_files(model, pooling="mean", max_source_length=8)
    to_huggingface(model, tmp_path / "base", tokenizers=(tokenizer,), family="bert", files=files)
    task = task_of(tmp_path / "base", recipe(), "a.csv")
    (tmp_path / "a.TSV").write_text("text\tmatch\na\tb\nc\td\ne\tb\ng\th\ni\tj\n")
    rows = task.read(tmp_path / "a.TSV")
    assert rows == [("a", "b"), ("c", "d"), ("g", "h"), ("i", "j")]
    assert "1 of 5 rows are left out" in caplog.text
    assert [len(side) for side in task.split(rows, 0.1, 1)] == [2, 2]
    refuses("`batch_size` must be at least 2", task_of, tmp_path / "base", recipe(batch_size=1), "a.csv")


class Stops:
    """Takes lines, and interrupts the tuning at one of them."""

    def __init__(self, lines):
        self.lines = lines

    def __call__(self, line):
        self.lines -= 1
        if self.lines == 0:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_adapter_alone_is_written_over_int8_kernels(llama, chats, tmp_path):
    options = recipe(lora=2, adapter=True, precision="int8", epochs=1)
    path = runs.tune(options, llama, chats, tmp_path / "run", say=[].append)
    config = json.loads((path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(llama) and config["target_modules"] == [
        "q_proj",
        "v_proj",
    ]
    assert any(
        np.any(a != b)
        for a, b in zip(from_huggingface(path).weights, from_huggingface(llama).weights, strict=True)
    )


def test_one_update_changes_the_weights_and_is_warned_of(bert, tmp_path):
    (tmp_path / "few.csv").write_text("text,label\nmorning,a\nnight,b\ngood,a\nday,b\n")
    with pytest.warns(UserWarning, match="1 updates may be too few"):
        path = runs.tune(
            recipe(epochs=1, batch_size=8), bert, tmp_path / "few.csv", tmp_path / "run", say=str
        )
    own, before = (from_huggingface(folder).encoder.weights for folder in (path, bert))
    assert any(np.any(a.numpy() != b.numpy()) for a, b in zip(own, before, strict=True))


def test_chats_are_refused_for_an_encoder(bert, chats, tmp_path):
    refuses("An encoder learns from a table", runs.tune, recipe(), bert, chats, tmp_path / "run")


def test_the_command_prints_the_folder_and_reports(tuned):
    command, (folder, out, err) = tuned
    assert out.decode() == f"{folder / 'model'}\n"
    assert "before: " in err and "after: " in err and " is right)" in err and "macro F1" in err
    assert_refused(*command, "--output", folder, "--batch-size", "8", named="batch_size: 4, now 8")


def test_the_first_piece_of_a_word_has_its_label(bert):
    task = task_of(bert, recipe(), "words.txt")
    task.tokenizer = WordPieceTokenizer([*WORDS, "##s"])
    model = task.make_model([(("a",), ("N",)), (("a",), ("O",))])
    batches = task.batches(model, [(("goods", "day"), ("N", "O")), (("night",), ("N",))])
    ((x, y),) = batches.dataset(epochs=1).as_numpy_iterator()
    found = {
        tuple(ids): tuple(labels) for ids, labels in zip(x["token_ids"].tolist(), y.tolist(), strict=True)
    }
    assert found == {(2, 5, 9, 7, 3): (-100, 0, -100, 1, -100), (2, 8, 3, 0, 0): (-100, 0, -100, -100, -100)}


@pytest.mark.parametrize("options", [
    {"lora": 0}, {"alpha": 2}, {"adapter": True}, {"precision": "int8"}, {"columns": "a"}, {"hold_out": 1.5},
    {"targets": "query"}, {"warmup": 1.5}, {"weight_decay": -1}, {"lora": 1, "lora_dropout": 1.5},
], ids=str)  # fmt: skip
def test_wrong_recipes_are_refused(options):
    refuses(f"`.*{list(options)[-1]}", runs.TuningRecipe, **options)


def test_data_that_do_not_fit_are_refused(llama, bert, chats, table, tmp_path):
    word, prose, run = (tmp_path / name for name in ("one", "prose.txt", "run"))
    word.write_text("word\n")
    for text in ("A line of one\nA line of two\nA line of three\n", "A line of a text\n" * 3):
        prose.write_text(text)
        refuses("is this a text", runs.tune, recipe(), bert, prose, run, prose)
    for sentence, options, base, data in (
        (r"`length` must be at most .* 16", {"length": 17}, bert, table),
        ("pass `val_data`", {}, bert, prose),
        ("`columns` is for a table", {"columns": "a,b"}, bert, prose),
        ("no column 'name'", {"columns": "text,name"}, bert, table),
        ("line 1: a line must have a word and a label", {}, bert, word),
        ("A language model learns from chats", {}, llama, table),
        ("must be the end of a dense layer's path", {"lora": 2, "targets": "nothing"}, llama, chats),
    ):
        refuses(sentence, runs.tune, recipe(**options), base, data, run)
    assert not run.exists()
    refuses("`output` must be new, empty", runs.tune, recipe(), llama, chats, tmp_path)
    with locked(run):
        refuses("another process", runs.tune, recipe(), llama, chats, run)


def test_a_rare_class_counts_as_much_as_a_frequent_one(bert, tmp_path):
    table = tmp_path / "days.csv"
    rows = ["good day,good", "good night,good", "day good,good", "bad day,bad"]
    table.write_text("text,label\n" + "\n".join(rows))
    task = task_of(bert, recipe(class_weights=True), table)
    model = task.make_model(task.read(table))
    batches = task.batches(model, task.read(table), weighted=True)
    (_, y, weights), *_ = batches.dataset(epochs=1)
    assert model.head.labels == ["bad", "good"]
    expected = {0: 4 / (2 * 1), 1: 4 / (2 * 3)}
    np.testing.assert_allclose(weights, [expected[int(each)] for each in y])


def test_the_words_of_a_class_have_one_weight_and_other_pieces_none(bert, tmp_path):
    path = tmp_path / "words.conll"
    path.write_text("good G\nday O\nnight O\n\nday O\n")
    task = task_of(bert, recipe(class_weights=True), path)
    rows = task.read(path)
    model = task.make_model(rows)
    (_, y, weights), *_ = task.batches(model, rows, weighted=True).dataset(epochs=1)
    np.testing.assert_allclose(weights, np.select([y == 0, y == 1], [4 / (2 * 1), 4 / (2 * 3)], 0))
    assert np.count_nonzero(weights) == 4 and model.head.labels == ["G", "O"]


def test_class_weights_are_for_labels(llama):
    refuses("for an encoder that learns labels", task_of, llama, recipe(class_weights=True), "chats.jsonl")
