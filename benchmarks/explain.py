"""Does attention explain? Compares attention with leave-one-out and gradients on a trained translator and classifier.

    python benchmarks/explain.py --translator demo/run --classifier ChatbotData.csv

The translator is that of `make demo`: its grammar says which Korean word each English word translates. The classifier
is trained here for a few minutes, on a CSV file with the columns Q and label (github.com/songys/Chatbot_data). The
script prints one JSON line for each figure, and draws docs/images/explain.png.
"""

import argparse
import itertools
import json
import os
import random
import sys
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import classify_korean
import keras
import korean_corpus
import matplotlib.pyplot as plt
import numpy as np
from keras import ops
from scipy import stats

from keras_transformer.data import hold_out, read_table
from keras_transformer.explain import METHODS, importances
from keras_transformer.layers import attention as attention_layer
from keras_transformer.serving import Translator
from keras_transformer.text import pack

ATTENTION = ("attention", "mean_attention", "rollout")
OTHERS = ("leave_one_out", "gradient_x_input", "integrated_gradients")
STEPS = 16  # of integrated gradients
AUXILIARIES = set(["am", "is", "are", "was", "were", "do", "does", "did", "will", "not", "be"])
PERMUTATIONS = 20
SEED = 1


def interval(values, rng, draws=2000):
    """Returns the mean of one value for each sentence, and its 95 % bootstrap interval."""
    values = np.array(values)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(axis=1)
    return [round(float(x), 3) for x in (values.mean(), *np.percentile(means, (2.5, 97.5)))]


def correlations(found, rng):
    """Kendall's tau of attention with the absolute values of the other methods: a mean for each sentence.

    Args:
        found: A dict from a method to a list with an array `(outputs, source_len)` for each sentence.
    """
    for first, second in [(a, b) for a in ATTENTION for b in OTHERS] + [("leave_one_out", OTHERS[2])]:
        taus = []
        for a, b in zip(found[first], found[second], strict=True):
            rows = [stats.kendalltau(abs(x), abs(y)).statistic for x, y in zip(a, b, strict=True)]
            taus.append(np.nanmean(rows))
        yield {"tau": [first, second], "mean, low, high": interval(taus, rng)}


def gold_pairs(number, rng):
    """Draws sentences of the grammar with the Korean words that each English word stands for.

    Returns:
        List of (Korean, English, groups). A group is a pair of sets: numbers of Korean words, numbers of English words.
    """
    drawn = []
    subjects = sorted(korean_corpus.SUBJECTS.items())
    while len(drawn) < number:
        subject, english_subject = rng.choice(subjects)
        stem, complement, verb, english_complement, times = rng.choice(
            list(korean_corpus._predicates(subject))
        )
        tense = rng.choice(list(times))
        time = rng.choice(times[tense])
        korean = korean_corpus._korean(subject, time, complement, stem, tense, False, False)
        english = korean_corpus._english(english_subject, time, english_complement, verb, tense, False, False)
        source, target = korean.split(), english.rstrip(".").lower().split()
        parts = [
            (len(subject.split()), english_subject.lower().split()),
            (len(time.split()), korean_corpus.TIMES[time].lower().split()),
            (len(complement.split()), english_complement.lower().split()),
        ]
        groups, at, used = [], 0, set(i for i, word in enumerate(target) if word in AUXILIARIES)
        for size, words in parts:
            places = [i for i in range(len(target)) if target[i : i + len(words)] == words]
            if size and words and len(places) == 1:
                english_places = set(range(places[0], places[0] + len(words)))
                groups.append((set(range(at, at + size)), english_places))
                used |= english_places
            at += size
        rest = set(range(len(target))) - used
        if at < len(source) and len(rest) == 1:
            groups.append((set(range(at, len(source))), rest))
        if len(groups) > 1:
            drawn.append((korean, english, groups))
    return drawn


def words_of(pieces):
    """Returns the number of the word that each piece belongs to, -1 for `</s>` and punctuation."""
    word, numbers = -1, []
    for piece in pieces:
        word += piece.startswith("▁")
        numbers.append(word if any(c.isalnum() for c in piece) and piece != "</s>" else -1)
    return numbers


def translator_part(folder, number, rng):
    """Correlations and alignment errors of a translator."""
    translator = Translator.load(folder)
    model = translator.model
    found, right = {method: [] for method in METHODS}, {method: [] for method in METHODS}
    reads = translator.source_tokenizer
    sentences = gold_pairs(number, random.Random(SEED))
    for korean, english, groups in sentences:
        source = [*reads.tokenize([korean])[0].numpy(), model.eos_id]
        target = [*translator.target_tokenizer.tokenize([english])[0].numpy(), model.eos_id]
        read = np.array(words_of(reads.pieces(source)))
        written = words_of(translator.target_tokenizer.pieces(target))
        for method in METHODS:
            values = importances(model, [source], [target], method, STEPS)[0]
            found[method].append(values)
            hits = []
            for row, word in zip(values, written, strict=True):
                gold = [sources for sources, targets in groups if word in targets]
                if gold:
                    hits.append(read[np.argmax(row)] in gold[0])
            right[method].append(np.mean(hits))
    yield {"part": "translator", "sentences": len(sentences)}
    yield from correlations(found, rng)
    for method in METHODS:
        yield {"alignment error": method, "mean, low, high": interval(1 - np.array(right[method]), rng)}
    inputs = [
        (
            np.array([[*reads.tokenize([korean])[0].numpy(), model.eos_id]]),
            np.array([[model.bos_id, *translator.target_tokenizer.tokenize([english])[0].numpy()]]),
        )
        for korean, english, _ in sentences
    ]
    calls = [lambda s=s, t=t: model({"source": s, "target": t}) for s, t in inputs]
    before = len(model.encoder.layers)  # a decoder layer calls self-attention, then cross-attention
    yield from changed(calls, lambda number: number >= before and (number - before) % 2 == 1, rng)


def classifier_part(path, number, rng):
    """Correlations of a classifier that is trained here."""
    rows = [(text, classify_korean.NAMES.get(label, label)) for text, label in read_table(path, "Q", "label")]
    rows, held_out = hold_out(rows, classify_korean.HELD_OUT)
    classifier = classify_korean.train(rows, held_out)
    answers = classifier.classify([text for text, _ in held_out])
    accuracy = np.mean([answer == label for (answer, _), (_, label) in zip(answers, held_out, strict=True)])
    yield {"part": "classifier", "accuracy": round(float(accuracy), 3), "sentences": number}
    texts = [text for text, _ in held_out][:number]
    found = {method: [] for method in METHODS}
    ids = [
        pack(classifier.tokenizer, [text], max_length=classify_korean.MAX_LENGTH)["token_ids"].numpy()
        for text in texts
    ]
    for source, (answer, _) in zip(ids, answers, strict=False):
        target = [classifier.labels.index(answer)]
        for method in METHODS:
            found[method].append(importances(classifier.model, source, target, method, STEPS))
    yield from correlations(found, rng)
    calls = [lambda source=source: classifier.model(source) for source in ids]
    yield from changed(calls, lambda number: True, rng)


def changed(calls, applies, rng):
    """How far the output's probabilities move when attention weights are permuted, or all equal.

    Jain and Wallace, 2019, "Attention is not Explanation", section 4.2: the total variation distance.

    Args:
        calls: Functions that compute logits of one sentence.
        applies: Function of the number of an attention in the order of calls: whether to change it.
        rng: NumPy generator.
    """
    plain = attention_layer.dot_product_attention

    def with_weights(change):
        numbers = itertools.count()

        def computed(query, key, value, *args, **kwargs):
            context, scores = plain(query, key, value, *args, **{**kwargs, "return_attention_scores": True})
            if applies(next(numbers)):
                context = ops.matmul(change(scores), value)
            return context, scores if kwargs["return_attention_scores"] else None

        return mock.patch.object(attention_layer, "dot_product_attention", computed)

    def distance(call, change):
        expected = ops.convert_to_numpy(ops.softmax(call(), axis=-1))
        with with_weights(change):
            found = ops.convert_to_numpy(ops.softmax(call(), axis=-1))
        return 0.5 * np.abs(found - expected).sum(axis=-1).mean()

    def permuted(scores):
        return ops.take(scores, rng.permutation(scores.shape[-1]), axis=-1)

    def uniform(scores):
        return ops.ones_like(scores) / scores.shape[-1]

    for name, change, times in (("permuted", permuted, PERMUTATIONS), ("uniform", uniform, 1)):
        moves = [np.median([distance(call, change) for _ in range(times)]) for call in calls[:40]]
        yield {"probability moved by attention": name, "mean, low, high": interval(moves, rng)}


def draw(lines, path):
    """Draws the correlations of both parts, with their intervals."""
    parts, current = {}, None
    for line in lines:
        current = line.get("part", current)
        if "tau" in line and line["tau"][0] in ATTENTION:
            parts.setdefault(current, []).append((line["tau"], line["mean, low, high"]))
    figure, panels = plt.subplots(
        1, len(parts), figsize=(5 * len(parts), 3.4), sharey=True, layout="constrained"
    )
    for axes, (part, taus) in zip(np.atleast_1d(panels), parts.items(), strict=True):
        for i, other in enumerate(OTHERS):
            rows = [values for (_, second), values in taus if second == other]
            places = np.arange(len(ATTENTION)) + (i - 1) * 0.25
            means = np.array([row[0] for row in rows])
            ends = np.abs(np.array([row[1:] for row in rows]).T - means)
            axes.errorbar(places, means, ends, fmt="o^s"[i], capsize=3, label=other.replace("_", " "))
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(ATTENTION)), [name.replace("_", " ") for name in ATTENTION])
        axes.set_title(f"{part}: how far attention agrees")
        axes.set_ylim(-0.2, 1)
    np.atleast_1d(panels)[0].set_ylabel("Kendall's tau (1: the same order)")
    np.atleast_1d(panels)[-1].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main(arguments=None):
    """Measures both parts, prints the figures and draws them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--translator", type=Path, help="run folder of `make demo`")
    parser.add_argument("--classifier", type=Path, help="CSV with columns Q and label")
    parser.add_argument("--number", default=100, type=int, help="sentences of each part")
    parser.add_argument("--picture", default=ROOT / "docs" / "images" / "explain.png", type=Path)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(SEED)
    rng, lines = np.random.default_rng(SEED), []
    for part, source in ((translator_part, options.translator), (classifier_part, options.classifier)):
        for line in part(source, options.number, rng) if source else ():
            lines.append(line)
            print(json.dumps(line), flush=True)
    draw(lines, options.picture)


if __name__ == "__main__":
    main()
