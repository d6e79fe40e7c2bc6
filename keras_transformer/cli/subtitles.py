"""Transcripts as lines: their text, JSON, and the subtitles of SubRip (srt) and of the W3C (WebVTT)."""

import json
import os

FORMATS = ("txt", "json", "srt", "vtt")


def written(name, answer, kind):
    """Returns what is written for one recording, or for a picture as "txt", a str.

    Args:
        name: Its path, for JSON.
        answer: Its row of the signature `segments`, a dict; for "txt" one with `text`.
        kind: One of `FORMATS`.
    """
    from keras_transformer.serving.transcriber import segments_of

    if kind == "txt":
        return " ".join(answer["text"].decode(errors="replace").split()) + "\n"
    segments = [
        {"begin": round(begin, 2), "end": round(end, 2), "text": " ".join(text.split())}
        for begin, end, text in segments_of(answer)
    ]
    if kind == "json":
        text = " ".join(segment["text"] for segment in segments)
        language, error = answer["language"].decode(), answer["error"].decode()
        # The name of a file may be no UTF-8.
        name = os.fsencode(name).decode(errors="backslashreplace")
        described = {"file": name, "text": text, "language": language, "error": error, "segments": segments}
        return json.dumps(described, ensure_ascii=False) + "\n"
    mark = "," if kind == "srt" else "."
    parts = ["WEBVTT\n"] * (kind == "vtt")
    for number, segment in enumerate(segments, 1):
        begin, end = (_clock(segment[key], mark) for key in ("begin", "end"))
        # An arrow would be read as a line of times.
        text = segment["text"].replace("-->", "->")
        parts.append(f"{number}\n" * (kind == "srt") + f"{begin} --> {end}\n{text}\n")
    return "\n".join(parts)


def _clock(seconds, mark):
    """Returns a time as hours:minutes:seconds and, after the mark, thousandths.

    >>> _clock(3725.5, ",")
    '01:02:05,500'
    """
    thousandths = round(1000 * seconds)
    minutes, thousandths = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{thousandths // 1000:02}{mark}{thousandths % 1000:03}"
