"""The figures: the numbers, labels and titles that they draw."""

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


def test_hangul_stands_upright_where_latin_letters_are_turned():
    tokens = ["<SOS>", "저는", "student"]
    figure = plots.masks({"mask": kt.masks.look_ahead_mask(3)}, tokens, xlabel="키", ylabel="쿼리")
    (axes,) = figure.axes
    ticks = axes.get_xticklabels()
    assert labels(ticks) == ["<SOS>", "저\n는", "student"]
    assert [tick.get_rotation() for tick in ticks] == [90, 0, 90]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("키", "쿼\n리")
    assert axes.yaxis.label.get_rotation() == 0
    (axes,) = plots.masks({"mask": kt.masks.look_ahead_mask(3)}, ["I", "am", "저는"]).axes  # all are short
    assert labels(axes.get_xticklabels()) == ["I", "am", "저는"]


def test_the_mean_of_heads_is_drawn():
    weights = np.random.default_rng(2).dirichlet(np.ones(3), (2, 1, 4, 2))  # layers, batch, heads, queries
    figure = plots.attention_weights(weights, "ab", "cde", heads="mean")
    assert [axes.get_title() for axes in figure.axes[:2]] == [f"layer {i}, mean of heads" for i in (1, 2)]
    np.testing.assert_allclose(figure.axes[1].images[0].get_array(), weights[1, 0].mean(axis=0))


@pytest.mark.slow
def test_labels_are_in_the_language_that_is_asked_for():
    weights = [np.full((1, 2, 2), 0.5)] * 2
    figure = plots.attention_weights(weights, "ab", "cd", panel="{layer}층, 헤드의 평균", label="가중치")
    assert [axes.get_title() for axes in figure.axes[:2]] == ["1층, 헤드의 평균", "2층, 헤드의 평균"]
    assert figure.axes[-1].get_ylabel() == "가\n중\n치"
    axes = plots.positions(length=3, d_model=4, title="위치", xlabel="채널", ylabel="자리").axes[0]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("위치", "채널", "자\n리")
    axes = plots.schedule(kt.WarmupSchedule(8), 9, xlabel="스텝", ylabel="학습률").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("스텝", "학\n습\n률")
    words = {"Loss": "손실", "nats per token": "토큰당 nat", "training": "학습", "epoch": "에포크"}
    axes = plots.training_curves({"loss": [2.0, 1.0], "val_loss": [2.0, 1.5]}, words=words).axes[0]
    assert (axes.get_title(), axes.get_xlabel()) == ("손실", "에포크")
    assert axes.get_ylabel() == "\n".join("토큰당 nat")
    assert labels(axes.get_legend().get_texts()) == ["학습", "validation"]
    figure = plots.classified_images(
        np.zeros((1, 2, 2, 1)), ["원"], ["칸"], wrong="{prediction} (정답: {label})"
    )
    assert figure.axes[0].get_title() == "칸 (정답: 원)"


LOOK_AHEAD = {"mask": kt.masks.look_ahead_mask(5)}
MASKS = [np.ones((5, 4), bool), np.ones((5, 5)), np.ones((2, 1, 5, 5), bool), np.ones((3, 5), bool)]
ATTENTION = np.ones((2, 3, 7, 5)) / 5  # layers, heads, queries, keys


@pytest.mark.parametrize(("draw", "message"), [
    *((lambda m=m: plots.masks({"m": m}, TOKENS), r"boolean with the shape \(5, 5\)") for m in MASKS),
    (lambda: plots.masks(LOOK_AHEAD, TOKENS, scores=np.ones((2, 5))), r"shape \(5, 5\)\. Received: \(2, 5\)"),
    (lambda: plots.training_curves({"loss": [1.0]}, ["bleu"]), r"which has loss\. Received: 'bleu'"),
    (lambda: plots.training_curves([]), "at least one epoch"),
    (lambda: plots.latencies([]), r"at least one number above 0\. Received: seconds=\[\]"),
    (lambda: plots.latencies([0.1, 0.0]), "at least one number above 0"),
    (lambda: plots.attention_weights(ATTENTION, "abcdefg", "abcd"), r"\(num_heads, 7, 4\)"),
    (lambda: plots.attention_weights(ATTENTION, "abcdefg", "abcde", heads=[4]), r"`heads`.*heads=4"),
    (lambda: plots.classified_images(np.ones((3, 4, 4, 1)), ["o"], ["o"]), "the same length, at least 1"),
    (lambda: plots.image_attention(np.ones((4, 4, 3)), np.ones((1, 6)), ["a"]), "patches that make a square"),
    (lambda: plots.speech_attention(np.ones((4, 3)), np.ones((1, 4)), ["a", "b"], 1.0), "a row for each of"),
    (lambda: plots.translation_attention(None, "저는", "self"), r"decoder, cross\. Received: kind='self'"),
])  # fmt: skip
def test_wrong_arguments_are_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


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


def test_latencies_are_counted_and_their_percentiles_marked():
    seconds = np.geomspace(0.01, 1.0, 101)
    (axes,) = plots.latencies(seconds).axes
    assert sum(bar.get_height() for bar in axes.patches) == 101
    lines = [line.get_xdata()[0] for line in axes.lines]
    np.testing.assert_allclose(lines, 1000 * np.percentile(seconds, [50, 90, 99]))
    assert numbers(axes) == [" p50 100 ms", " p90 631 ms", " p99 955 ms"]
    assert sum(bar.get_height() for bar in plots.latencies([0.5]).axes[0].patches) == 1


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


def test_attention_weights_are_drawn_by_layer_and_head():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 7))  # layers, heads, queries
    queries, keys = list("가나다라마바사"), list("abcde")
    each = [weights[0][None], weights[1]]
    panels = plots.attention_weights(each, queries, keys, layers=[2, 1], heads=[3, 1]).axes[:4]
    places = [(2, 3), (2, 1), (1, 3), (1, 1)]
    for axes, (layer, head) in zip(panels, places, strict=True):
        assert axes.get_title() == f"layer {layer}, head {head}"
        np.testing.assert_array_equal(axes.images[0].get_array(), weights[layer - 1][head - 1])
    assert labels(panels[0].get_yticklabels()) == queries and labels(panels[1].get_yticklabels()) == [""] * 7


def test_what_a_token_reads_of_a_picture_is_bright_and_the_rest_is_dark():
    figure = plots.image_attention(np.zeros((6, 6, 1), "uint8"), np.eye(4)[[2, 1]], ["one", "two"])
    covers = [axes.images[1].get_array()[..., 3] for axes in figure.axes[:2]]
    for cover, bright in zip(covers, ((1, 0), (0, 1)), strict=True):
        assert cover[bright] == 0 and np.sum(cover == cover.max()) == 3 and cover.max() > 0.5


def test_what_a_token_hears_stands_below_the_spectrogram():
    figure = plots.speech_attention(np.zeros((8, 3)), np.eye(2, 4), ["four", "two"], 0.8)
    above, below, _ = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, 0.8)
    np.testing.assert_array_equal(below.images[0].get_array(), np.eye(2, 4))
    assert [label.get_text() for label in below.get_yticklabels()] == ["four", "two"]


def test_classified_images_name_what_is_wrong():
    images = np.linspace(-1, 1, 3 * 16).reshape(3, 4, 4, 1)
    figure = plots.classified_images(images, ["o", "x", "o"], ["o", "x", "x"], columns=2)
    assert [axes.get_title() for axes in figure.axes] == ["o", "x", "x (is o)", ""]
    np.testing.assert_allclose(figure.axes[2].images[0].get_array(), images[2, ..., 0] / 2 + 0.5)


def test_figures_have_one_style_and_keep_the_settings():
    import matplotlib

    with matplotlib.rc_context({"font.size": 17.0}):
        figure = plots.positions(length=3, d_model=4)
        assert matplotlib.rcParams["font.size"] == 17
    assert figure.axes[0].xaxis.label.get_fontsize() == 10
    assert figure._repr_png_().startswith(b"\x89PNG")  # by this method Jupyter asks for a picture


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
