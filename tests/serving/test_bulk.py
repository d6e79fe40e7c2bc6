"""Lines as they come, and files that are translated whole, in order, whatever happens meanwhile."""

import gzip
import os
import signal
import warnings

import pytest
from contracts import refuses
from mirrors import Mirror, begun, mirrored, names, quiet, resume

from keras_transformer.data import LONGEST_LINE, split_lines
from keras_transformer.serving import Translator, bulk, translate_file, translate_lines
from keras_transformer.termination import Terminated


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.slow
def test_a_file_is_translated_line_by_line_whatever_its_bytes(translator, pairs, tmp_path, suffix):
    korean = [source.encode() for source, _ in pairs[:6]]
    content = b"\n".join(
        [b"\xef\xbb\xbf" + korean[0], b"", korean[1] + b"\r", b"\xff\xfe\0", *korean[2:], b"  ", b"\0", b"a"]
    )
    source = tmp_path / f"source{suffix}"
    source.write_bytes(gzip.compress(content) if suffix else content)
    output = tmp_path / "new" / "output"
    assert translate_file(translator, source, output, batch_size=2, window=5, say=quiet).lines == 11
    expected = translator.translate(split_lines(content))
    assert len(expected) == 11 and len(set(expected)) > 6
    assert output.read_bytes().decode() == "".join(f"{' '.join(line.splitlines())}\n" for line in expected)
    assert names(output.parent) == ["output"]


def test_an_empty_file_gives_an_empty_file(tmp_path):
    (tmp_path / "source").touch()
    assert resume(tmp_path / "source", tmp_path / "output").read_bytes() == b""


@pytest.mark.slow
def test_many_windows_trace_the_translator_once(translator, pairs, tmp_path):
    fresh = translator.changed()
    lines = [source for source, _ in pairs[:7]]
    assert list(translate_lines(fresh, lines, batch_size=2, window=3)) == translator.translate(lines)
    assert fresh._default_function(False).experimental_get_tracing_count() == 1


def test_batches_are_of_like_length_within_a_window():
    lines = [b"x" * n for n in (9, 1, 8, 2, 7, 3, 60, 4)]
    mirror = Mirror()
    with pytest.warns(UserWarning, match="1 of 8 sentences are longer than `max_source_length`=50"):
        assert list(translate_lines(mirror, lines, 2, 6)) == [line.decode() for line in lines]
    assert [[len(text) for text in batch] for batch in mirror.batches] == [[1, 2], [3, 7], [8, 9], [4, 60]]


def test_the_reader_is_never_ahead_of_the_writer_by_more_than_a_window():
    read = []
    written = 0
    for line in translate_lines(Mirror(), (read.append(i) or f"{i}" for i in range(50)), 3, window=7):
        assert line == f"{written}"[::-1]
        assert len(read) - written <= 7
        written += 1
    assert written == 50


def test_a_file_is_read_a_window_at_a_time(source, tmp_path, monkeypatch):
    read, ahead = [], []
    plain = bulk.stream_lines

    def counted(path):
        read.clear()
        for line in plain(path):
            read.append(line)
            yield line

    monkeypatch.setattr(bulk, "stream_lines", counted)
    partial = tmp_path / "output.partial" / "lines"
    mirror = Mirror(lambda texts: ahead.append(len(read) - partial.read_bytes().count(b"\n")))
    resume(source, tmp_path / "output", mirror)
    assert ahead == [3, 3, 3, 1]


def test_a_window_of_long_lines_ends_early(monkeypatch):
    monkeypatch.setattr(bulk, "WINDOW_BYTES", 20)
    windows = list(bulk._windows([b"x" * n for n in (5, 15, 30, 1, 1, 1)], window=3))
    assert [[len(line) for line in window] for window in windows] == [[5, 15], [30], [1, 1, 1]]


def test_endless_line_is_cut(tmp_path):
    (tmp_path / "source").write_bytes(b"a" * (3 * LONGEST_LINE + 5) + b"\nb")
    mirror = Mirror(max_source_length=2 * LONGEST_LINE)
    resume(tmp_path / "source", tmp_path / "output", mirror)
    assert [len(text) for batch in mirror.batches for text in batch] == [1, LONGEST_LINE]


def test_a_translation_with_line_ends_stays_one_line(tmp_path):
    mirror = Mirror()
    mirror.translate_batch = lambda texts: ["a\nb\r\nc\u2028d"] * len(texts)
    assert list(translate_lines(mirror, ["x", "y"])) == ["a b c d"] * 2


def test_sigterm_ends_the_batch_and_the_same_call_resumes(source, tmp_path):
    mirror = Mirror(lambda texts: os.kill(os.getpid(), signal.SIGTERM) if b"7 xxxxxxxxx" in texts else None)
    with pytest.raises(Terminated, match="stopped after 4 of 10 lines; they are saved"):
        resume(source, tmp_path / "output", mirror, batch_size=2, window=4)
    assert sum(map(len, mirror.batches)) == 8
    said = []
    rest = Mirror()
    resume(source, tmp_path / "output", rest, batch_size=2, window=4, say=said.append)
    assert sum(map(len, rest.batches)) == 6
    assert said == [f"{tmp_path / 'output'}: 4 of 10 lines are done, going on."]
    assert (tmp_path / "output").read_bytes() == mirrored(source.read_bytes())


def test_an_interruption_says_what_is_saved(source, tmp_path):
    said = []
    translator = Mirror(
        lambda texts: (_ for _ in ()).throw(KeyboardInterrupt) if b"5 xxxxx" in texts else None
    )
    with pytest.raises(KeyboardInterrupt):
        resume(source, tmp_path / "output", translator, say=said.append)
    assert said[1:] == [f"3 of 10 lines are saved in {tmp_path / 'output.partial'}."]


def test_a_source_that_changes_meanwhile_is_noticed(source, tmp_path):
    def grow(texts):
        with open(source, "a") as file:
            file.write("more\n")

    with pytest.raises(ValueError, match="`source` must not change while it is translated"):
        resume(source, tmp_path / "output", Mirror(grow))
    assert not (tmp_path / "output").exists()


def test_sizes_must_be_positive(source, tmp_path):
    for options in ({"batch_size": 0}, {"window": 0}, {"window": 2.5}):
        ((name, value),) = options.items()
        refuses(f"{name}={value}", resume, source, tmp_path / "output", **options)
        refuses(f"{name}={value}", translate_lines, Mirror(), [], **options)


def test_a_source_that_cannot_be_read_leaves_nothing(tmp_path):
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"text\n" * 99)[:-9])
    for name, named in (
        ("nowhere", "`source` must be a file.*nowhere"),
        ("broken.gz", "Cannot read .*broken"),
    ):
        refuses(named, resume, tmp_path / name, tmp_path / "output")
    assert names(tmp_path) == ["broken.gz"]


@pytest.mark.parametrize(("line", "text"), [(5, b"4 xxxxxxxx"), (10, b"9 xxx")])
def test_a_sentence_that_fails_costs_no_other(source, tmp_path, line, text):
    """The last line is alone in its window."""

    def fail(texts):
        if text in texts:
            raise RuntimeError("this one\nnever")

    said = []
    with pytest.warns(UserWarning) as warned:
        resume(source, tmp_path / "output", Mirror(fail), say=said.append)
    assert [str(w.message) for w in warned] == [f"line {line} failed and is left empty: this one"]
    expected = mirrored(source.read_bytes()).splitlines(keepends=True)
    expected[line - 1] = b"\n"
    assert (tmp_path / "output").read_bytes() == b"".join(expected)
    assert said[1:] == ["1 of 10 lines could not be translated; their translations are empty."]


def test_failing_translator_stops_and_loses_nothing(source, tmp_path):
    def break_down(texts):
        if b"3 x" in texts or len(mirror.batches) > 2:
            raise RuntimeError("no memory")

    mirror = Mirror(break_down)
    with pytest.raises(RuntimeError, match="no memory"):
        resume(source, tmp_path / "output", mirror)
    rest = Mirror()
    resume(source, tmp_path / "output", rest)
    assert sum(map(len, rest.batches)) == 7
    assert (tmp_path / "output").read_bytes() == mirrored(source.read_bytes())


def test_cut_sentences_are_counted_over_a_resume(source, tmp_path):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")

        def stop(texts):
            if len(mirror.batches) == 3:
                raise KeyboardInterrupt

        mirror = Mirror(stop, max_source_length=9)
        with pytest.raises(KeyboardInterrupt):
            resume(source, tmp_path / "output", mirror)
        resume(source, tmp_path / "output", Mirror(max_source_length=9))
    expected = sum(len(line) >= 9 for line in source.read_text().splitlines())
    assert expected == 3
    assert [str(w.message) for w in warned] == [
        "3 of 10 sentences are longer than `max_source_length`=9 tokens; the rest of them is not read."
    ]


def test_progress_shows_lines_speed_and_time_left(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bulk, "SECONDS_BETWEEN_REPORTS", 0)
    begun(source, tmp_path / "output")
    resume(source, tmp_path / "output", verbose=True)
    shown = capsys.readouterr().err.split("\r")
    assert any("6/10 [" in each for each in shown), shown
    assert any("9/10 [" in each and "<" in each and "lines/s]" in each for each in shown), shown


@pytest.mark.slow
def test_a_saved_translator_is_the_same_one_when_it_is_loaded_again(tiny_run, translator):
    again = Translator.load(tiny_run)
    assert bulk._fingerprint(again) == bulk._fingerprint(translator)
    again.model.weights[0].assign(again.model.weights[0] + 1e-3)
    changed = {k for k, v in bulk._fingerprint(again).items() if v != bulk._fingerprint(translator)[k]}
    assert changed == {"weights"}
