"""Training runs: what they keep, how they resume, what is refused, and the mean of several epochs."""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from contracts import check_refused, refuses

from keras_transformer import runs
from keras_transformer.data import Batches
from keras_transformer.files import LOCK, locked
from keras_transformer.metrics import Perplexity
from keras_transformer.models import Transformer
from keras_transformer.models.loading import load_model
from keras_transformer.optimizers import unwrapped
from keras_transformer.runs import Recipe, average, read_history, train, training
from keras_transformer.runs import recipe as recipes
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.model import make_model
from keras_transformer.runs.recipe import MODEL, VOCABULARY
from keras_transformer.runs.results import Results
from keras_transformer.runs.tokenizers import make_tokenizers
from keras_transformer.serving import Translator
from keras_transformer.text import ByteTokenizer
from keras_transformer.training import checkpoints

RECIPE = Recipe(
    num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.3, vocab_size=260, character_coverage=1.0,
    epochs=2, batch_tokens=512, max_length=40, learning_rate=0.01, warmup_steps=10,
)  # fmt: skip


def changed(**arguments):
    return dataclasses.replace(RECIPE, **arguments)


def continuing(init_from, **arguments):
    """The recipe, without its options of a model and of vocabularies, for what `init_from` holds."""
    options = dataclasses.asdict(RECIPE)
    options |= dict.fromkeys([*MODEL, *VOCABULARY])
    return Recipe(**{**options, "init_from": str(init_from), **arguments})


def trained(recipe, pairs, folder, val_pairs=None):
    """Trains, and returns the lines that the run says."""
    said = []
    train(recipe, pairs, folder, val_pairs, say=said.append)
    return said


def assert_refused(message, recipe, pairs, folder, val_pairs=None):
    """A run is refused, and its folder stays as it is."""
    before = contents(folder)
    refuses(message, train, recipe, pairs, folder, val_pairs, say=quiet)
    assert contents(folder) == before


def assert_mean_of(path, checkpoints):
    """The weights of a file are the mean of those of the checkpoints."""
    each = [weights_of(saved.path) for saved in checkpoints]
    for mean, *values in zip(weights_of(path), *each, strict=True):
        np.testing.assert_allclose(mean, np.mean(values, axis=0), rtol=1e-5, atol=1e-7)


def quiet(line):
    pass


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def kept_in(folder):
    """The names in a run's folder, without the lock and without TensorBoard, whose names depend on the time."""
    return {path.name for path in folder.iterdir()} - {"tensorboard", LOCK}


@pytest.fixture
def batches_made(monkeypatch):
    """A list that gets (owner, batch) for each training batch, in the order in which they are made."""
    made = []
    batch = Batches.batch

    def recorded(self, *arguments):
        x, y = batch(self, *arguments)
        made.append((self, [array.tolist() for array in (x["source"], x["target"], y)]))
        return x, y

    monkeypatch.setattr(Batches, "batch", recorded)
    return made


def stopped(progress, error, monkeypatch, recipe, pairs, folder, match=None):
    """Trains with another class of progress, which ends the run with an error."""
    with monkeypatch.context() as patch, pytest.raises(error, match=match):
        patch.setattr(training, "Progress", progress)
        train(recipe, pairs, folder, say=quiet)


def killed_in(epoch, *arguments):
    """Trains until the first step of an epoch, and stops there without saving, like a crash."""

    class Killer(training.Progress):
        def on_epoch_begin(self, number, logs=None):
            super().on_epoch_begin(number, logs)
            self.doomed = number == epoch

        def on_train_batch_end(self, batch, logs=None):
            if self.doomed:
                raise KeyboardInterrupt

    stopped(Killer, KeyboardInterrupt, *arguments)


def terminated_at(step, *arguments):
    """Trains until SIGTERM comes after `step` steps, counted over all epochs."""

    class Terminator(training.Progress):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            Terminator.seen += 1
            if Terminator.seen == step:
                os.kill(os.getpid(), signal.SIGTERM)

    stopped(Terminator, runs.Terminated, *arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, pairs):
    """The folder of a run of two epochs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(RECIPE, pairs, folder, say=quiet)
    return folder


def test_average_waits_for_no_other_process(tiny_run):
    before = (tiny_run / "model.keras").read_bytes()
    with locked(tiny_run), pytest.raises(ValueError, match="must not be in use by another process"):
        average(tiny_run)
    assert (tiny_run / "model.keras").read_bytes() == before


@pytest.mark.slow
def test_a_run_holds_the_files_for_resuming_and_for_translating(finished):
    assert kept_in(finished) == {
        "run.json",
        "history.csv",
        "checkpoint-0001.keras",
        "checkpoint-0002.keras",
        "translator.json",
        "model.keras",
        "source_tokenizer.model",
    }
    described = json.loads((finished / "run.json").read_text())
    assert Recipe(**described["recipe"]) == RECIPE.resolved()
    assert [row["epoch"] for row in read_history(finished)] == ["0", "1"]
    assert all(float(row["loss"]) > 0 and float(row["perplexity"]) > 1 for row in read_history(finished))


def test_an_interrupted_run_resumes_with_the_same_batches_and_losses(
    finished, tmp_path, pairs, monkeypatch, batches_made
):
    killed_in(1, monkeypatch, RECIPE, pairs, tmp_path / "run")
    assert checkpoints(tmp_path / "run")[0].epochs == 1
    assert len(read_history(tmp_path / "run")) == 1
    killed = batches_made[0][0]  # its threads may still make batches
    before = [batch for _, batch in batches_made]
    said = trained(RECIPE, pairs, tmp_path / "run")
    assert "1 epochs done, going on" in said[0]

    steps = Batches(pairs, make_tokenizers(RECIPE, pairs), batch_tokens=512, max_length=40, seed=1).steps
    second_epoch = before[steps : 2 * steps]
    made = [batch for owner, batch in batches_made if owner is not killed]
    assert len(second_epoch) >= 1 and made[: len(second_epoch)] == second_epoch
    assert [row["epoch"] for row in read_history(tmp_path / "run")] == ["0", "1"]
    resumed, whole = ([float(row["loss"]) for row in read_history(f)] for f in (tmp_path / "run", finished))
    assert resumed == pytest.approx(whole, rel=1e-4)
    assert kept_in(tmp_path / "run") == kept_in(finished)


@pytest.mark.slow
def test_a_run_interrupted_in_its_first_epoch_begins_again(tmp_path, pairs, monkeypatch):
    recipe = changed(epochs=1)
    killed_in(0, monkeypatch, recipe, pairs, tmp_path / "run")
    assert checkpoints(tmp_path / "run") == []
    train(recipe, pairs, tmp_path / "run", say=quiet)
    assert [row["epoch"] for row in read_history(tmp_path / "run")] == ["0"]


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_epochs(tmp_path, pairs):
    with pytest.warns(UserWarning, match="within the warm-up of 4000"):
        train(changed(epochs=1, warmup_steps=4000), pairs, tmp_path, say=quiet)
    first = read_history(tmp_path)
    said = trained(changed(epochs=2, warmup_steps=4000), pairs, tmp_path)
    assert "1 epochs done, going on" in said[0] and said[1].startswith("epoch 2/2  ") and len(said) == 2
    assert read_history(tmp_path)[:1] == first
    assert len(read_history(tmp_path)) == 2
    assert checkpoints(tmp_path)[0].epochs == 2
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["epochs"] == 2


def test_a_finished_run_has_nothing_to_do_and_refuses_another_recipe_or_other_pairs(finished, pairs):
    before = contents(finished)
    assert any(name.startswith("tensorboard/train/events.out.tfevents.") for name in before)
    assert "tensorboard/train/projector_config.pbtxt" in before
    # Without validation the translator has the newest weights.
    assert_same_weights(checkpoints(finished)[0].path, finished / "model.keras")
    said = []
    translator = train(RECIPE, pairs, finished, say=said.append)
    assert "nothing to do, 2 epochs are done" in said[-1]
    assert contents(finished) == before
    assert isinstance(translator, Translator)
    for arguments, message in (
        ({"dropout": 0.2}, "dropout: 0.3, now 0.2"),
        ({"seed": 2}, "seed: 1, now 2"),
        ({"d_model": None}, r"d_model: 16, now 128 \(preset tiny\)"),
        ({"preset": "base", "tokenizer": "bpe"}, "'tiny', now 'base'; tokenizer: 'unigram', now 'bpe'"),
        ({"learning_rate": None}, "learning_rate: 0.01, now None"),
    ):
        assert_refused(message, changed(epochs=5, **arguments), pairs, finished)
    for others in (pairs[:-1], [*pairs[1:], pairs[0]], [*pairs[:-1], ("저", "I")]):
        assert_refused(f"pairs: {len(pairs)}, now {len(others)}", RECIPE, others, finished)
    assert_refused("val_pairs: none, now 5", changed(epochs=3), pairs, finished, pairs[:5])


def test_a_folder_of_other_files_is_refused_and_left_alone(tmp_path, pairs):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / ".tmp-notes").mkdir()
    (tmp_path / ".tmp-notes" / "notes.txt").write_text("mine too")
    assert_refused("holds other files", RECIPE, pairs, tmp_path)


DAMAGED = ["", "{", "[]", "{}", '{"recipe": [], "pairs": {}}', '{"recipe": {}, "pairs": 1}']
DAMAGED += ['{"recipe": 1, "pairs": {}}', '{"recipe": {}, "pairs": {}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_description_is_refused(tmp_path, pairs, content):
    (tmp_path / "run.json").write_text(content)
    assert_refused(str(tmp_path), RECIPE, pairs, tmp_path)


WITHOUT_PAIRS = r"`patience` needs validation pairs\. Received: patience=2, val_"
LONG_WARM_UP = r"less than the updates of the training.* Received: warmup_steps=4000, updates=\d+"


@pytest.mark.parametrize(("wrong", "val_pairs", "message"), [
    ({"num_heads": 3}, None, "divisible by `num_heads`"),
    ({"vocab_size": 20}, None, "`vocab_size` ids"), ({"max_length": 600}, None, "`max_length`"),
    ({"patience": 2}, None, WITHOUT_PAIRS), ({"patience": 2}, [], WITHOUT_PAIRS),
    ({"schedule": "linear", "warmup_steps": 4000}, None, LONG_WARM_UP),
    ({"schedule": "cosine", "warmup_steps": 4000}, None, LONG_WARM_UP),
], ids=str)  # fmt: skip
def test_a_refused_recipe_does_not_take_the_folder(tmp_path, pairs, wrong, val_pairs, message):
    refuses(message, train, changed(**wrong), pairs, tmp_path / "run", val_pairs, say=quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_folder_of_a_running_training_is_refused(finished, tmp_path, pairs):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / ".tmp-0123abcd-model.keras").write_text("the other's")
    before = contents(folder)
    with locked(folder):
        assert_refused(rf"another process\. Received: folder='{folder}'", changed(epochs=3), pairs, folder)
    train(RECIPE, pairs, folder, say=quiet)
    assert contents(folder).keys() == before.keys() - {".tmp-0123abcd-model.keras"}


@pytest.mark.slow
def test_training_in_lower_precision_saves_a_float32_translator(tmp_path, pairs):
    translator = train(changed(precision="mixed_bfloat16", epochs=1), pairs, tmp_path, say=quiet)
    layers = translator.model._flatten_layers()
    assert {layer.dtype_policy.name for layer in layers} == {"float32"}
    assert {str(weight.dtype) for weight in translator.model.weights} == {"float32"}
    saved = load_model(checkpoints(tmp_path)[0].path)
    assert saved.dtype_policy.name == "mixed_bfloat16"
    np.testing.assert_equal(saved.get_weights(), translator.model.get_weights())


def filled(model, value):
    model.set_weights([np.full_like(weight, value) for weight in model.get_weights()])


@pytest.mark.slow
def test_the_translator_is_the_one_of_the_best_validation(tmp_path):
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)

    def train_with(perplexities, done):
        results = Results(tmp_path, done, Translator(model, ByteTokenizer()))
        results.set_model(model)
        results.on_train_begin()
        for epoch, perplexity in enumerate(perplexities, start=done):
            filled(model, epoch)
            results.on_epoch_end(epoch, {"loss": 1.0, "val_perplexity": perplexity})

    def kept():
        return float(Translator.load(tmp_path).model.get_weights()[0].ravel()[0])

    train_with([9.0, 4.0, 5.0], done=0)
    assert kept() == 1
    train_with([4.5], done=3)  # not better than the best before
    assert kept() == 1
    train_with([np.nan], done=4)
    assert kept() == 1
    train_with([3.5], done=5)
    assert kept() == 5
    found = [row["val_perplexity"] for row in read_history(tmp_path)]
    assert found == ["9.0", "4.0", "5.0", "4.5", "nan", "3.5"]


def weights_of(path):
    return load_model(path).get_weights()


def assert_same_weights(one, other):
    np.testing.assert_equal(weights_of(one), weights_of(other))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_sigterm_within_an_epoch_costs_nothing(tmp_path, pairs, monkeypatch, optimizer):
    options = {"subword_sampling": 0.2, "average_last": 2, "clip_norm": 1.0, "batch_tokens": 256}
    recipe = changed(**options, schedule="cosine", optimizer=optimizer)
    train(recipe, pairs, tmp_path / "whole", say=quiet)
    steps = Batches(pairs, make_tokenizers(recipe, pairs), batch_tokens=256, max_length=40).steps
    assert steps > 2
    terminated_at(steps + 2, monkeypatch, recipe, pairs, tmp_path / "parts")
    saved = checkpoints(tmp_path / "parts")[0]
    assert saved.epochs == 1 and saved.steps in (2, 3)
    said = trained(recipe, pairs, tmp_path / "parts")
    assert f"1 epochs and {saved.steps} steps of the next done" in said[0]
    for name in ("checkpoint-0002.keras", "model.keras"):
        assert_same_weights(tmp_path / "whole" / name, tmp_path / "parts" / name)
    whole, parts = (read_history(tmp_path / name) for name in ("whole", "parts"))
    assert whole == parts


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_one_epoch(finished, tmp_path, pairs):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    path = folder / "checkpoint-0002.keras"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"Cannot load.*{re.escape(str(path))}"):
        said = trained(changed(epochs=3), pairs, folder)
    assert "1 epochs done" in said[0]
    assert_same_weights(path, finished / "checkpoint-0002.keras")
    for saved in checkpoints(folder):
        saved.path.write_bytes(b"")
    refuses(r"No checkpoint of .* can be read", train, changed(epochs=4), pairs, folder, say=quiet)


@pytest.mark.slow
def test_full_disk_keeps_the_older_checkpoints(finished, tmp_path, pairs, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = contents(folder)
    save = Transformer.save

    def full(self, path, *arguments, **keywords):
        if "checkpoint" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(self, path, *arguments, **keywords)

    monkeypatch.setattr(Transformer, "save", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*checkpoint-0003\.keras'"):
        train(changed(epochs=3), pairs, folder, say=quiet)
    for name in ("checkpoint-0001.keras", "checkpoint-0002.keras"):
        assert contents(folder)[name] == before[name]


@pytest.mark.slow
def test_nan_loss_names_the_step_and_the_batch(tmp_path, pairs):
    with pytest.raises(runs.Diverged) as caught:
        train(changed(learning_rate=1e30, warmup_steps=1), pairs, tmp_path, say=quiet)
    said = str(caught.value)
    message = "The loss is nan.*epoch 1, step.*learning rate of.*weights are not finite.*The batch"
    assert re.search(message, said, re.DOTALL)
    assert any(source in said for source, _ in pairs)
    assert checkpoints(tmp_path) == []


@pytest.mark.slow
def test_diverged_epoch_is_not_saved_and_is_repeated(finished, tmp_path, pairs, monkeypatch):
    class Poison(training.Progress):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if self.params["steps"] == batch + 1 and checkpoints(tmp_path):
                weight = self.model.trainable_variables[0]
                weight.assign(np.full(weight.shape, np.nan))

    stopped(Poison, runs.Diverged, monkeypatch, RECIPE, pairs, tmp_path, match="not finite after epoch 2")
    assert [saved.epochs for saved in checkpoints(tmp_path)] == [1]
    assert len(read_history(tmp_path)) == 1
    assert_same_weights(tmp_path / "model.keras", tmp_path / "checkpoint-0001.keras")
    train(RECIPE, pairs, tmp_path, say=quiet)
    assert_same_weights(tmp_path / "model.keras", finished / "model.keras")


@pytest.mark.slow
def test_the_final_translator_is_the_mean_of_the_last_epochs(tmp_path, pairs):
    translator = train(changed(epochs=3, average_last=2), pairs, tmp_path, say=quiet)
    assert len(checkpoints(tmp_path)) == 2
    assert_mean_of(tmp_path / "model.keras", checkpoints(tmp_path))
    np.testing.assert_equal(translator.model.get_weights(), weights_of(tmp_path / "model.keras"))
    refuses(r"`last` must be at most 2, .*Received: last=3", average, tmp_path, 3)
    before = contents(tmp_path)["checkpoint-0003.keras"]
    average(tmp_path, 1, say=quiet)
    assert contents(tmp_path)["checkpoint-0003.keras"] == before
    assert_same_weights(tmp_path / "model.keras", tmp_path / "checkpoint-0003.keras")


@pytest.mark.slow
def test_stopped_run_is_averaged_by_the_next_call(tmp_path, pairs, monkeypatch):
    recipe = changed(average_last=2)
    steps = Batches(pairs, make_tokenizers(recipe, pairs), batch_tokens=512, max_length=40).steps
    terminated_at(2 * steps, monkeypatch, recipe, pairs, tmp_path)
    assert [saved.epochs for saved in checkpoints(tmp_path)] == [2, 1]
    said = trained(recipe, pairs, tmp_path)
    assert said == [f"{tmp_path}: the translator has the mean weights of the last 2 epochs."]
    assert_mean_of(tmp_path / "model.keras", checkpoints(tmp_path))
    assert "nothing to do, 2 epochs are done" in trained(recipe, pairs, tmp_path)[-1]
    average(tmp_path, 1, say=quiet)  # `train` keeps a mean that the user made
    assert "nothing to do" in trained(recipe, pairs, tmp_path)[-1]
    assert_same_weights(tmp_path / "model.keras", tmp_path / "checkpoint-0002.keras")


def test_the_report_counts_the_pairs_to_validate_with_and_says_where_larger_batches_are_in_vain(pairs):
    for few, options in ((True, {"batch_tokens": 8192}), (False, {"batch_tokens": 64})):
        said = []
        begun = training._begin(changed(**options), pairs, pairs[:5] if few else None, said.append)
        training._report(*begun, said.append)
        assert f"; {5 if few else 0} pairs to validate with; " in said[0]
        assert any("a larger `batch_tokens` changes nothing" in line for line in said) == few


@pytest.mark.slow
def test_average_last_beyond_the_epochs_warns(finished, tmp_path, pairs):
    # Patience ends the run after its second epoch: no step moves a weight.
    early = changed(average_last=4, patience=1, epochs=9, learning_rate=1e-30)
    with pytest.warns(UserWarning, match=r"`average_last` is 4, but .*early keeps .* of only 2 epochs"):
        said = trained(early, pairs, tmp_path / "early", pairs[:8])
    assert said[-1] == f"{tmp_path / 'early'}: the translator has the mean weights of the last 2 epochs."
    assert "nothing to do" in trained(early, pairs, tmp_path / "early", pairs[:8])[-1]
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-0001.keras").unlink()
    with pytest.warns(UserWarning, match="`average_last` is 3"):
        said = trained(changed(epochs=3, average_last=3), pairs, tmp_path / "run")
    assert "the last 2 epochs" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "rounding"), [("float32", 1e-3), ("mixed_float16", 1e-2)])
def test_a_moving_average_translates_and_validates_but_does_not_train(
    tmp_path, pairs, finished, precision, rounding
):
    recipe = changed(ema=0.5, epochs=2, precision=precision)
    train(recipe, pairs, tmp_path / "ema", pairs[:8], say=quiet)
    plain = finished
    if precision != RECIPE.precision:
        plain = tmp_path / "plain"
        train(changed(precision=precision), pairs, plain, say=quiet)
    newest = "checkpoint-0002.keras"
    assert_same_weights(tmp_path / "ema" / newest, plain / newest)
    trained = load_model(tmp_path / "ema" / newest, compile=True)
    served = Translator.load(tmp_path / "ema").model
    averages = [np.asarray(v) for v in unwrapped(trained.optimizer)._model_variables_moving_average]
    for weight, mean in zip(served.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(np.asarray(weight), mean)
    # The validation uses the average too.
    served.compile(metrics=[Perplexity(pad_id=0)], loss=trained.loss)
    tokenizer = Translator.load(tmp_path / "ema").source_tokenizer
    batches = Batches(pairs[:8], tokenizer, batch_tokens=512, max_length=40)
    found = served.evaluate(batches.dataset(epochs=1), verbose=0, return_dict=True)
    history = read_history(tmp_path / "ema")
    assert found["perplexity"] == pytest.approx(float(history[-1]["val_perplexity"]), rel=rounding)


@pytest.mark.slow
def test_a_vocabulary_smaller_than_asked_for_is_announced(tmp_path, pairs):
    options = {"epochs": 1, "warmup_steps": 1, "tokenizer": "bpe"}
    with pytest.warns(UserWarning, match="`vocab_size` asks for 100,000 ids, but the text gives only"):
        said = trained(changed(**options, vocab_size=100_000), pairs, tmp_path / "more")
    assert not any("vocab_size" in line for line in said)
    most = Translator.load(tmp_path / "more").source_tokenizer.vocab_size
    said = trained(changed(**options, vocab_size=most + 1), pairs, tmp_path / "one more")
    assert any(f"the texts do not give the {most + 1:,} of `vocab_size`" in line for line in said)
    said = trained(changed(**options), pairs, tmp_path / "all")
    assert not any("vocab_size" in line for line in said)


@pytest.mark.slow
def test_patience_ends_a_run_for_good(tmp_path, pairs):
    # No step moves a weight, so no epoch is better than the first.
    recipe = changed(patience=2, epochs=9, learning_rate=1e-30)
    train(recipe, pairs, tmp_path, pairs[:8], say=quiet)
    assert len(read_history(tmp_path)) == 3
    said = trained(recipe, pairs, tmp_path, pairs[:8])
    assert "nothing to do, 3 epochs are done" in said[0]


@pytest.mark.parametrize(("found", "ends"), [(["4", "nan", "nan"], True), (["nan", "4", "nan"], False)])
def test_a_validation_of_nan_is_never_the_best(tmp_path, found, ends):
    rows = [f"{epoch},{perplexity}\n" for epoch, perplexity in enumerate(found)]
    (tmp_path / "history.csv").write_text("".join(["epoch,val_perplexity\n", *rows]))
    (tmp_path / f"checkpoint-{len(found):04d}.keras").touch()
    assert RunFolder(tmp_path).is_finished(changed(patience=2, epochs=9)) is ends


@pytest.mark.parametrize(("averaged", "lacks"), [([2, 3], False), ([3], False), ([1, 2], True), (None, True)])
def test_a_mean_counts_that_ends_with_the_newest_epoch(averaged, lacks, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "epochs_done", 3)
    (tmp_path / Translator.DESCRIPTION).write_text(json.dumps({"averaged_epochs": averaged}))
    assert RunFolder(tmp_path).lacks_average(changed(average_last=2)) is lacks
    assert not RunFolder(tmp_path).lacks_average(changed(average_last=1))


HISTORIES = [b"\xff", b"loss\n1.0\n", b"epoch\nfirst\n", b"epoch,loss\n0\n", b"epoch\n0,1\n"]
HISTORIES += [b"epoch\n" + b"1" * 200_000, b"epoch,val_perplexity\n0,low\n"]


@pytest.mark.parametrize("content", HISTORIES)
def test_a_damaged_history_is_refused_by_its_name(tmp_path, content):
    (tmp_path / "history.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"history\.csv cannot be read as the history of a run") as caught:
        read_history(tmp_path)
    assert len(str(caught.value)) < 1000


def test_recipe_checks_its_values():
    check_refused(
        changed,
        *({"epochs": 0}, {"warmup_steps": 0}, {"patience": 0}, {"clip_norm": 0.0}, {"ema": 1.0}),
        *({"learning_rate": 0.0}, {"learning_rate": -1.0}, {"learning_rate": float("nan")}),
        *({"dropout": 1.5}, {"dropout": -0.1}, {"label_smoothing": 2}, {"subword_sampling": 1.5}),
        *({"character_coverage": 1.5}, {"schedule": "steep"}),
        *({"ema": 0.9, "average_last": 2}, {"epochs": 3, "average_last": 4}),
    )
    refuses("needs a tokenizer of subwords", changed, tokenizer="byte", subword_sampling=0.1)


@pytest.mark.parametrize(
    ("given", "steps", "planned"),
    [
        ({}, 1, (100, 25)),
        ({}, 121, (50, 1512)),  # 20,000 pairs
        ({}, 1000, (20, 4000)),
        ({"accumulation": 2}, 121, (100, 1512)),
        ({"epochs": 5}, 121, (5, 151)),
        ({"warmup_steps": 7}, 121, (50, 7)),
        ({"init_from": "RUN"}, 121, (20, 605)),
    ],
)
def test_epochs_and_warm_up_follow_from_the_number_of_updates(given, steps, planned):
    recipe = Recipe(**given).planned(steps)
    assert (recipe.epochs, recipe.warmup_steps) == planned
    assert recipe.warmup_steps < recipe.updates(steps)
    assert dataclasses.replace(recipe, epochs=None, warmup_steps=None) == Recipe(
        **{**given, "epochs": None, "warmup_steps": None}
    )


def test_the_highest_rate_is_the_papers_but_not_that_of_a_short_warm_up():
    def peak(warmup_steps):
        recipe = changed(learning_rate=None, warmup_steps=warmup_steps)
        return float(
            make_model(recipe, (ByteTokenizer(),) * 2, steps=5).optimizer._learning_rate(warmup_steps - 1)
        )

    assert peak(4000) == pytest.approx((16 * 4000) ** -0.5)
    assert peak(10) == pytest.approx((16 * 1000) ** -0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("error:the training ends")
def test_a_run_without_epochs_and_warm_up_plans_them_once(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "FEWEST_EPOCHS", 2)
    monkeypatch.setattr(recipes, "MOST_EPOCHS", 2)
    recipe = changed(epochs=None, warmup_steps=None, learning_rate=None)
    said = trained(recipe, pairs, tmp_path)
    updates = int(re.match(r"2 epochs, (\d+) updates; (\d+) of them are the warm-up", said[0])[1])
    kept = json.loads((tmp_path / "run.json").read_text())["recipe"]
    assert (kept["epochs"], kept["warmup_steps"]) == (2, updates // 4)
    # Another plan would come out now, but the run has its own.
    monkeypatch.setattr(recipes, "FEWEST_EPOCHS", 1)
    assert "nothing to do, 2 epochs are done" in trained(recipe, pairs, tmp_path)[-1]
    assert len(trained(changed(epochs=3, warmup_steps=None, learning_rate=None), pairs, tmp_path)) == 2
    assert_refused(
        f"warmup_steps: {updates // 4}, now 1000",
        changed(learning_rate=None, warmup_steps=1000),
        pairs,
        tmp_path,
    )


def test_linear_schedule_ends_with_the_last_epoch():
    recipe = changed(schedule="linear", warmup_steps=3)
    model = make_model(recipe, (ByteTokenizer(),) * 2, steps=5)
    rate = model.optimizer._learning_rate
    assert float(rate(2)) == pytest.approx(0.01) and float(rate(9)) == 0.0
    assert recipe.changes({**dataclasses.asdict(recipe), "epochs": 5}) == ["epochs: 5, now 2"]


@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt"])
def test_a_schedule_counts_updates_of_several_batches(schedule):
    """Keras reads a schedule with the number of batches: the rate of "linear" was 0 after a third of them."""
    options = {"schedule": schedule, "warmup_steps": 2}
    alone, of_three = (
        make_model(changed(**options, accumulation=n), (ByteTokenizer(),) * 2, steps=5 * n).optimizer
        for n in (1, 3)
    )
    for update in range(10):
        expected = float(alone._learning_rate(update))
        assert float(of_three._learning_rate(3 * update + 2)) == pytest.approx(expected, abs=1e-7)


def test_a_value_of_the_preset_may_be_left_out():
    earlier = dataclasses.asdict(Recipe(d_model=128, num_layers=3))
    assert Recipe(num_layers=3).changes(earlier) == []
    assert Recipe().changes(earlier) == ["num_layers: 3, now 4 (preset tiny)"]


def test_a_model_has_one_embedding_where_one_tokenizer_reads_both_sides():
    one, other = ByteTokenizer(), ByteTokenizer()
    for tokenizers, share in (((one, one), True), ((one, other), False)):
        model = make_model(changed(), tokenizers, steps=5)
        assert (model.source.tokens is model.target.tokens) is share


@pytest.mark.slow
def test_a_run_begins_with_the_weights_and_tokenizers_of_another(finished, tmp_path, pairs):
    recipe = continuing(finished, learning_rate=1e-9, epochs=1, warmup_steps=1)
    translator, before = train(recipe, pairs[::2], tmp_path / "run", say=quiet), Translator.load(finished)
    assert translator.source_tokenizer.model == before.source_tokenizer.model  # not one of half the pairs
    for weight, other in zip(translator.model.get_weights(), before.model.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


def test_unfitting_init_from_is_refused_and_takes_no_folder(tmp_path, pairs):
    model = Transformer(260, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    Translator(model, ByteTokenizer()).save(tmp_path / "saved")
    for arguments, message in (
        ({"d_ff": 64}, r"`d_ff` must be that of `init_from`, .*\. Received: d_ff=64, init_from=32\."),
        ({"preset": "tiny", "d_model": 16}, r"Received: num_layers=4, init_from=1"),
        ({"max_length": 1}, "`max_length` must be at least 2"),
        ({"init_from": "nowhere"}, r"nowhere holds no translator"),
    ):
        recipe = continuing(**{"init_from": tmp_path / "saved", **arguments})
        refuses(message, train, recipe, pairs, tmp_path / "run", say=quiet)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("own", [{"init_from": "RUN"}, {"tokenizer": "pieces.model"}], ids=str)
@pytest.mark.parametrize(
    "option", [{"vocab_size": 9}, {"character_coverage": 1.0}, {"separate_vocabularies": False}], ids=str
)
def test_options_of_a_vocabulary_that_is_not_made_are_refused(own, option):
    (name,) = option
    refuses(f"`{name}` must be left out w.*Received: {name}=", Recipe, **own, **option)


def test_a_file_of_another_format_is_not_reported_as_missing(tmp_path):
    (tmp_path / "model.keras").write_text("nothing")
    refuses(r"not a \.keras file, or it is damaged", load_model, tmp_path / "model.keras")
    refuses("no such file", load_model, tmp_path / "other.keras")
