"""The moving pictures of the course: what they compute, their controls, and their recorded copies."""

import html
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import draw_motion  # noqa: E402

# Moves each control to a value, and collects what the picture says, and its svg.
MOVE = """
document.addEventListener("DOMContentLoaded", () => {
  const errors = [];
  addEventListener("error", (event) => errors.push(event.message));
  const found = [...document.querySelectorAll(".motion")].map((picture, i) => {
    MOVES[i].forEach((value, place) => {
      const input = picture.querySelectorAll("input")[place];
      if (input.type === "checkbox") input.checked = value;
      else input.value = value;
      input.dispatchEvent(new Event("input"));
    });
    const names = [...picture.querySelectorAll("input")].map((input) => input.labels[0]?.textContent.trim() ?? "");
    const svg = picture.querySelector("svg");
    return { said: picture.querySelector("output").textContent, label: svg.ariaLabel, names,
      numbers: [...svg.querySelectorAll("text")].map((each) => each.textContent) };
  });
  document.body.append(Object.assign(document.createElement("pre"), { id: "result" }));
  document.querySelector("#result").textContent = JSON.stringify({ found, errors });
});
"""


def test_every_picture_is_shown_in_a_chapter_of_its_language():
    for language in ("en", "ko"):
        chapters = "".join(
            file.read_text("utf-8") for file in (DOCS.parent / "course" / language).glob("*.py")
        )
        shown = set(re.findall(r"docs/images/(motion_[\w.]+)\)", chapters))
        assert shown == {name for name in draw_motion.NAMES if name.endswith(".ko.svg") == (language == "ko")}


def test_every_word_of_the_pictures_is_korean_in_korean():
    script = draw_motion.SCRIPT.read_text(encoding="utf-8")
    table, program = script.split("const STYLE")
    korean = dict(re.findall(r'"([^"]+)":\s+"([^"]+)"', table))
    used = {*re.findall(r'say\(\s*"([^"]+)"', program), *re.findall(r'label: "([^"]+)"', program)}
    assert used == korean.keys()
    assert all(re.search("[가-힣]", text) for text in korean.values())


@pytest.mark.slow
def test_pictures_compute_what_they_say():
    moves = [[4, 20, False], [9, 10, True], [5, 3], [False, 2, 4], [1, 3], [2, 3]]
    names = ["softmax", "softmax", "clocks", "masks", "beam", "beam.ko"]
    script = f"const MOVES = {json.dumps(moves)};{MOVE}"
    page = draw_motion.dom_of(draw_motion.page_of([f"motion_{name}.svg" for name in names], script))
    if page is None:
        pytest.skip("No browser is installed.")
    answer = json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', page, re.DOTALL)[1]))
    assert answer["errors"] == []
    softmax, divided, clocks, masks, greedy, beam = answer["found"]
    for each in answer["found"]:
        assert each["said"] == each["label"] and all(each["names"])

    def weights(scores):
        powers = np.exp(np.array(scores) - max(scores))
        return powers / powers.sum()

    cosines = np.array([1.2, 0.7, 0.1, -0.5, -1.3])
    for picture, scores in (
        (softmax, cosines * 4 / 2),
        (divided, cosines),
    ):  # d_k 16 and T 2; d_k 512, divided
        said = [float(number) for number in re.findall(r"\d\.\d\d", picture["said"])]
        np.testing.assert_allclose(said, weights(scores), atol=0.006)
    angles = 5 / 10000 ** (np.arange(4) / 4)
    sines = [float(text[4:].replace("−", "-")) for text in clocks["numbers"] if text.startswith("sin")]
    np.testing.assert_allclose(sines, np.sin(angles), atol=0.006)
    # The last row, without the look-ahead mask, with two tokens of padding.
    said = [float(number) for number in re.findall(r"\d\.\d\d", masks["said"])]
    np.testing.assert_allclose(said, weights([1, 5, 4]), atol=0.006)
    assert greedy["said"] == "Step 3: The dog runs (0.100) stay open."
    assert beam["said"] == "3단계에서 남은 가설: A dog barks (0.252), A dog runs (0.108)."


@pytest.mark.slow
def test_recorded_pictures_are_those_of_the_script():
    pictures = draw_motion.record()
    if pictures is None:
        pytest.skip("No browser is installed.")
    for name, picture in pictures.items():
        assert (draw_motion.IMAGES / name).read_text(encoding="utf-8").strip() == picture, name
