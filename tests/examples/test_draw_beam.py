import re

import draw_beam
import matplotlib.image
import numpy as np
import pytest

from keras_transformer.decoding import Beam, Hypotheses
from keras_transformer.decoding.hypotheses import Beams
from keras_transformer.plots.viewer_beam import RecordingBeam
from keras_transformer.serving import Translator

SENTENCE = "저는 학생입니다."


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--cache", "--language", "ko"]])
def test_pictures_are_drawn_in_colour_and_at_a_readable_size(tiny_run, tmp_path, capsys, options):
    path = tmp_path / "picture.png"
    arguments = [str(tiny_run), SENTENCE, "--width", "2", "--output", str(path), *options]
    assert draw_beam.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    pixels = matplotlib.image.imread(path)[..., :3]
    assert pixels.shape[0] >= 400
    assert pixels.shape[1] >= 1300
    assert np.mean(np.ptp(pixels, axis=-1) > 0.05) > 0.005  # what is no grey


def test_korean_words_keep_the_values_of_the_english_ones():
    assert draw_beam.in_korean("slot {number}", number=3) == "슬롯 3"
    for english, korean in draw_beam.KOREAN.items():
        assert set(re.findall(r"{\w+}", english)) == set(re.findall(r"{\w+}", korean))


@pytest.mark.slow
def test_missing_run_blank_sentence_and_bad_width_are_named(tiny_run, tmp_path, capsys):
    path = tmp_path / "beam.png"
    for run, sentence, width, named in (
        (tmp_path / "none", SENTENCE, "2", str(tmp_path / "none")),
        (tiny_run, " ", "2", "' '"),
        (tiny_run, SENTENCE, "0", "width=0"),
    ):
        arguments = [str(run), sentence, "--width", width, "--output", str(path)]
        assert draw_beam.main(arguments) == draw_beam.EXIT_INPUT
        error = capsys.readouterr().err
        assert error.startswith("draw_beam: error: ")
        assert named in error
    assert not path.exists()


@pytest.mark.slow
def test_tree_is_whole_ends_with_the_translation_and_no_two_boxes_overlap(translator, pairs):
    recording = draw_beam.record(translator, pairs[0][0], 3)
    beam = Translator(translator.model, translator.source_tokenizer, strategy=Beam(3))
    assert [recording.translation] == beam.translate([pairs[0][0]])
    assert recording.finished[0].rank == max(node.best for node in recording.nodes.values())
    draw_beam.lay_out(recording.nodes[()])
    nodes = recording.nodes.values()
    assert all(node.tokens[:-1] in recording.nodes for node in nodes)
    assert all(node.score <= recording.nodes[node.tokens[:-1]].score for node in nodes)
    assert len({(node.column, node.row) for node in nodes}) == len(nodes)
    assert {recording.nodes[recording.finished[0].tokens[:n]].row for n in range(2)} == {0}
    for step, (tokens, ancestors) in enumerate(recording.slots):
        assert tokens.shape == (3,)
        assert ancestors.shape == (3, step + 1)
        open_nodes = [node for node in nodes if node.column == step + 1 and node.rank is None]
        assert len(open_nodes) <= 3


def test_tree_holds_what_was_open_and_what_was_found():
    def step(open_rows, found_rows):
        def tokens(rows):
            return np.array([[row + [0] * (3 - len(row)) for row in rows]])

        def lengths(rows):
            return np.array([[len(row) for row in rows]])

        beams = Beams(tokens(open_rows), lengths(open_rows), np.array([[-1.0, -2.0]]), None)
        scores = np.array([[-1.5 if row else -np.inf for row in found_rows]])
        return beams, Hypotheses(tokens(found_rows), lengths(found_rows), scores), np.array([3])

    recorder = RecordingBeam(2, length_penalty=0.0)
    recorder.steps.append(step([[4], [5]], [[], []]))
    recorder.steps.append(step([[4, 5], [5, 3]], [[4, 3], []]))  # 5 3 has ended, but is no result
    recorder.steps.append(step([[4, 5, 6], [4, 5, 7]], [[4, 3], []]))  # both at the limit
    nodes, finished = draw_beam.tree(recorder, eos_id=3)
    assert set(nodes) == {(), (4,), (5,), (4, 5), (4, 3)}
    assert [(node.tokens, node.rank) for node in finished] == [((4, 3), -1.5)]
    assert [nodes[ids].best for ids in [(), (4,), (5,), (4, 5)]] == [-1.5, -1.5, -np.inf, -np.inf]
