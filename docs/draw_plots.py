"""Draws the pictures of plots.md, in English and in Korean.

    python docs/draw_plots.py demo/run

The argument is the run that `make demo` trains. The pictures go to docs/images: `NAME.png` in English and `NAME.ko.png`
in Korean, which the Korean site shows. viewer.png is a picture of the page that this command writes, in a window of
860 by 900 pixels; viewer.ko.png is the same with `--language ko`:

    keras-transformer show demo/run "제 친구는 아침에 학교에 갑니다." --beam-width 3 --output page.html
"""

import argparse
import os
from pathlib import Path

# Before TensorFlow loads: its notices are not the picture's.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_transformer as kt

IMAGES = Path(__file__).resolve().parent / "images"
SENTENCE = "제 친구는 아침에 학교에 갑니다."
TOKENS = ["<SOS>", "I", "am", "a", "student"]
WIDTHS = (128, 256, 512, 1024)
# The words of each picture where they are not those of its function.
MASKS = {"": ("look-ahead", "padding"), ".ko": ("룩어헤드 마스크", "패딩 마스크")}
KOREAN = {
    "masks": {"xlabel": "키: 보이는 토큰", "ylabel": "쿼리: 보는 토큰"},
    "positional_encoding": {
        "title": "포지셔널 인코딩: 짝수 채널은 사인, 홀수 채널은 코사인. 오른쪽으로 갈수록 파장이 길어집니다.",
        "xlabel": "채널",
        "ylabel": "자리",
    },
    "schedule": {"xlabel": "스텝", "ylabel": "학습률"},
    "training_curve": {
        "words": {
            "Loss": "손실",
            "Perplexity": "펄플렉서티",
            "Accuracy": "정확도",
            "nats per token": "토큰당 nat",
            "per token": "토큰당",
            "training": "학습",
            "validation": "검증",
            "epoch": "에포크",
        }
    },
    "attention": {
        "title": "교차 어텐션: 단어를 쓸 때마다 원문의 어느 단어를 보는가",
        "panel": "{layer}층, 헤드의 평균",
        "label": "어텐션 가중치",
    },
}


def figures(run, ending):
    """Yields the name and the figure of each picture in a language, "" for English or ".ko"."""
    words = KOREAN if ending else {name: {} for name in KOREAN}
    masks = kt.masks.look_ahead_mask(5), kt.masks.padding_mask([[5, 7, 3, 0, 0]])
    titled = dict(zip(MASKS[ending], masks, strict=True))
    yield "masks", kt.plots.masks(titled, TOKENS, **words["masks"])
    yield "positional_encoding", kt.plots.positions(**words["positional_encoding"])
    rates = {f"d_model {d_model}": kt.WarmupSchedule(d_model) for d_model in WIDTHS}
    yield "schedule", kt.plots.schedule(rates, **words["schedule"])
    history = kt.runs.read_history(run)
    yield "training_curve", kt.plots.training_curves(history, **words["training_curve"])
    translator = kt.serving.Translator.load(run)
    attention = kt.plots.translation_attention
    yield "attention", attention(translator, SENTENCE, layers=[2], heads="mean", **words["attention"])


def main(run):
    """Writes all pictures."""
    for ending in ("", ".ko"):
        for name, figure in figures(run, ending):
            figure.savefig(IMAGES / f"{name}{ending}.png")
            print(IMAGES / f"{name}{ending}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="folder of the run that `make demo` trains")
    main(parser.parse_args().run)
