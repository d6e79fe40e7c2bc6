import io

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import plots

TOKENS = ["<SOS>", "I", "am", "a", "student"]


def numbers(axes):
    """The texts in the cells of a table, row by row."""
    return [text.get_text() for text in axes.texts]


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def test_masks_are_tables_of_queries_and_keys():
    padding = kt.masks.padding_mask([[5, 7, 3, 0, 0]])
    figure = plots.masks({"look-ahead": kt.masks.look_ahead_mask(5), "padding": padding}, TOKENS)
    look_ahead, padded = figure.axes
    assert numbers(look_ahead) == list("1000011000111001111011111")
    assert numbers(padded) == list("11100" * 5)
    assert labels(look_ahead.get_xticklabels()) == labels(look_ahead.get_yticklabels()) == TOKENS
    assert [axes.get_title() for axes in figure.axes] == ["look-ahead", "padding"]


def test_a_hidden_score_is_minus_infinity():
    scores = [[7, 2, 2, 2, 2], [1, 7, 3, 2, 1], [1, 4, 8, 4, 3], [1, 2, 3, 6, 2], [1, 5, 4, 1, 9]]
    (axes,) = plots.masks({"scores": kt.masks.look_ahead_mask(5)}, TOKENS, scores=scores).axes
    assert numbers(axes)[5:10] == ["1", "7", "−∞", "−∞", "−∞"]
    assert numbers(axes)[20:] == ["1", "5", "4", "1", "9"]


@pytest.mark.parametrize(
    "mask", [np.ones((5, 4), bool), np.ones((5, 5)), np.ones((2, 1, 5, 5), bool), np.ones((3, 5), bool)]
)
def test_a_mask_that_does_not_fit_is_refused(mask):
    with pytest.raises(ValueError, match=r"boolean with the shape \(5, 5\)"):
        plots.masks({"mask": mask}, TOKENS)


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"`scores` must have the shape \(5, 5\)\. Received: \(2, 5\)"):
        plots.masks({"mask": kt.masks.look_ahead_mask(5)}, TOKENS, scores=np.ones((2, 5)))


def test_positions_draws_what_the_layer_adds():
    image = plots.positions(length=7, d_model=10).axes[0].images[0].get_array()
    expected = kt.layers.sinusoidal_positions(np.arange(7), 10)
    np.testing.assert_allclose(image, keras.ops.convert_to_numpy(expected), atol=1e-6)
    learned = kt.layers.LearnedPositions(11)
    (axes, _) = plots.positions(learned, length=7, d_model=10).axes
    np.testing.assert_allclose(
        axes.images[0].get_array(), keras.ops.convert_to_numpy(learned.embeddings)[:7], atol=1e-6
    )
    assert axes.get_title().startswith("LearnedPositions")


def test_a_schedule_is_drawn_by_its_own_values():
    warmup = kt.WarmupSchedule(64, warmup_steps=5)
    lines = plots.schedule({"five": warmup, "ten": kt.WarmupSchedule(64, warmup_steps=10)}, 30).axes[0].lines
    assert len(lines) == 2
    steps, rates = lines[0].get_data()
    assert steps.tolist() == list(range(30)) and np.argmax(rates) == 4
    np.testing.assert_allclose(rates, [float(warmup(step)) for step in range(30)], rtol=1e-6)
    assert plots.schedule(warmup, 30).axes[0].get_legend() is None


@pytest.mark.parametrize("form", ["dict", "rows", "fit"])
def test_training_curves_read_every_form_of_a_history(form):
    columns = {"loss": [3.1, 1.2], "val_loss": [2.5, 4.0], "accuracy": [0.3, 0.8]}
    history = columns
    if form == "rows":  # as read from history.csv
        rows = zip(*columns.values(), strict=True)
        history = [
            {"epoch": str(i), **dict(zip(columns, map(str, row), strict=True))} for i, row in enumerate(rows)
        ]
    elif form == "fit":
        history = keras.callbacks.History()
        history.history = columns
    loss, accuracy = plots.training_curves(history).axes
    assert [line.get_ydata().tolist() for line in loss.lines] == [[3.1, 1.2], [2.5, 4.0]]
    assert labels(loss.get_legend().get_texts()) == ["training", "validation"]
    assert [line.get_ydata().tolist() for line in accuracy.lines] == [[0.3, 0.8]]
    assert loss.get_yscale() == "log" and accuracy.get_ylim() == (0, 1.02)


def test_training_curves_refuse_what_they_do_not_have():
    with pytest.raises(ValueError, match=r"which has loss\. Received: 'bleu'"):
        plots.training_curves({"loss": [1.0]}, ["bleu"])
    with pytest.raises(ValueError, match="at least one epoch"):
        plots.training_curves([])


def test_attention_weights_are_drawn_by_layer_and_head():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 7))  # layers, heads, queries
    queries, keys = list("가나다라마바사"), list("abcde")
    figure = plots.attention_weights(
        [weights[0][None], weights[1]], queries, keys, layers=[2, 1], heads=[3, 1]
    )
    panels = figure.axes[:4]
    assert [axes.get_title() for axes in panels] == [
        "layer 2, head 3",
        "layer 2, head 1",
        "layer 1, head 3",
        "layer 1, head 1",
    ]
    for axes, expected in zip(
        panels, [weights[1][2], weights[1][0], weights[0][2], weights[0][0]], strict=True
    ):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    assert labels(panels[0].get_yticklabels()) == queries and labels(panels[1].get_yticklabels()) == [""] * 7
    with pytest.raises(ValueError, match=r"\(num_heads, 7, 4\)"):
        plots.attention_weights(weights, queries, keys[:4])
    with pytest.raises(ValueError, match=r"`heads`.*heads=4"):
        plots.attention_weights(weights, queries, keys, heads=[4])


def test_classified_images_name_what_is_wrong():
    images = np.linspace(-1, 1, 3 * 16).reshape(3, 4, 4, 1)
    figure = plots.classified_images(images, ["o", "x", "o"], ["o", "x", "x"], columns=2)
    assert [axes.get_title() for axes in figure.axes] == ["o", "x", "x (is o)", ""]
    np.testing.assert_allclose(figure.axes[2].images[0].get_array(), images[2, ..., 0] / 2 + 0.5)
    with pytest.raises(ValueError, match="the same length, at least 1"):
        plots.classified_images(images, ["o"], ["o"])


def test_figures_have_one_style_leave_the_settings_alone_and_are_written():
    import matplotlib

    with matplotlib.rc_context({"font.size": 17.0}):
        figure = plots.positions(length=3, d_model=4)
        assert matplotlib.rcParams["font.size"] == 17
    assert figure.axes[0].xaxis.label.get_fontsize() == 10
    file = io.BytesIO()
    figure.savefig(file)
    assert file.getvalue().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_the_attention_of_a_translation_has_its_tokens(translator, pairs, kind):
    figure = plots.translation_attention(translator, pairs[0][0], kind)
    image = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(image.sum(axis=1), 1.0, atol=1e-5)
    rows = "".join(labels(figure.axes[0].get_yticklabels())).replace("␣", " ").replace("</s>", "").strip()
    assert rows == (pairs[0][0] if kind == "encoder" else translator.translate([pairs[0][0]])[0])
    if kind == "decoder":
        assert np.triu(image, 1).max() == 0


def test_a_wrong_kind_of_attention_is_refused():
    with pytest.raises(ValueError, match=r"encoder, decoder, cross\. Received: kind='self'"):
        plots.translation_attention(None, "저는", "self")


def test_a_notebook_shows_a_figure_as_a_png():
    # Jupyter asks an object for its picture by this method.
    assert plots.positions(length=4, d_model=8)._repr_png_().startswith(b"\x89PNG")
