"""The yardstick of recipes.py: Marian's Transformer in PyTorch, with the same pairs, vocabulary, batches and updates.

    python benchmarks/peer_marian.py FOLDER koen --data DATA --one NAME

FOLDER is that of recipes.py, whose vocabulary is used. The model is `transformers.MarianMTModel`, trained from random
weights; the optimizer, the learning rates, label smoothing, dropout and the mean of the last epochs are those of the
recipe; R-Drop and other things that Marian's recipe does not have are refused.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import recipes
import torch
from transformers import MarianConfig, MarianMTModel

from keras_transformer.training import corpus_scores

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_of(recipe, tokenizer):
    """Makes a Marian of a recipe's sizes."""
    rule = "Marian's recipe here has neither R-Drop nor another norm."
    assert not recipe.r_drop and not recipe.normalize_first, rule
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", recipe.num_layers),
            ("attention_heads", recipe.num_heads),
            ("ffn_dim", recipe.d_ff),
        )
    }
    config = MarianConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=recipe.d_model,
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_dropout or 0.0,
        activation_dropout=recipe.activation_dropout or 0.0,
        activation_function=recipe.activation or "relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_id,
        eos_token_id=tokenizer.eos_id,
        decoder_start_token_id=tokenizer.bos_id,
        forced_eos_token_id=None,
        init_std=recipe.d_model**-0.5,
        **sizes,
    )
    model = MarianMTModel(config)
    for name, weight in model.named_parameters():
        # Marian draws matrices as Glorot does, and embeddings with the deviation above.
        if weight.dim() == 2 and "embed" not in name and "shared" not in name and "lm_head" not in name:
            torch.nn.init.xavier_uniform_(weight)
    return model.to(DEVICE)


def ids(array):
    """Puts an array of ids on the device."""
    return torch.as_tensor(array, dtype=torch.long, device=DEVICE)


def train(model, batches, recipe, pad_id):
    """Trains, and gives the model the mean weights of the last epochs."""
    rate = recipe.learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), eps=recipe.adam_epsilon)
    warmup = recipe.warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)
    )
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=pad_id, label_smoothing=recipe.label_smoothing)
    total = None
    for epoch in range(recipe.epochs):
        model.train()
        for inputs, targets in batches.arrays(epoch):
            source, target = ids(inputs["source"]), ids(inputs["target"])
            logits = model(
                input_ids=source, attention_mask=source != pad_id, decoder_input_ids=target, use_cache=False
            ).logits
            loss = loss_of(logits.flatten(0, 1), ids(targets).flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if recipe.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            optimizer.step()
            schedule.step()
        if epoch % 5 == 4:
            print("Marian", epoch + 1, round(loss.item(), 3), flush=True)
        if epoch >= recipe.epochs - recipe.average_last:
            weights = [weight.detach().double() for weight in model.parameters()]
            total = weights if total is None else [a + b for a, b in zip(total, weights, strict=True)]
    with torch.no_grad():
        for weight, mean in zip(model.parameters(), total, strict=True):
            weight.copy_(mean / recipe.average_last)


@torch.no_grad()
def translate(model, tokenizer, sources, width):
    """Translates sentences with Marian's beam search."""
    model.eval()
    rows = [[*row[:255], tokenizer.eos_id] for row in tokenizer.tokenize(sources).to_list()]
    outputs = []
    for start in range(0, len(rows), recipes.ROWS):
        some = rows[start : start + recipes.ROWS]
        padded = np.full((len(some), max(map(len, some))), tokenizer.pad_id)
        for row, tokens in zip(padded, some, strict=True):
            row[: len(tokens)] = tokens
        source = ids(padded)
        found = model.generate(
            source,
            attention_mask=source != tokenizer.pad_id,
            num_beams=width,
            length_penalty=1.0,
            max_length=min(512, 2 * padded.shape[1]),
            bad_words_ids=[[tokenizer.pad_id]],
        )
        outputs += found[:, 1:].tolist()
    special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    outputs = [[token for token in row if token not in special] for row in outputs]
    return recipes.texts_of(tokenizer, outputs)


def main():
    """Trains one recipe, and prints its row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpus", choices=recipes.CORPORA)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--one", required=True, metavar="NAME", help="a training of recipes.py")
    parser.add_argument("--seeds", default="1")
    options = parser.parse_args()
    corpus, seed = recipes.CORPORA[options.corpus], int(options.seeds)
    recipe, source = recipes.recipe_of(corpus, options.one, seed)
    pairs, val_pairs = (recipes.read_pairs(corpus, part, options.data, source) for part in (0, 1))
    tokenizer, other = recipes.vocabularies(options.folder, recipe, pairs, source)
    assert tokenizer is other, "Marian has one vocabulary for both sides."
    batches = recipes.batches_of(
        pairs, (tokenizer, tokenizer), recipe, num_buckets=recipes.SHAPES, sampling=recipe.subword_sampling
    )
    torch.manual_seed(seed)
    model = model_of(recipe, tokenizer)
    began = time.perf_counter()
    train(model, batches, recipe, tokenizer.pad_id)
    seconds = time.perf_counter() - began
    sources, references = map(list, zip(*val_pairs, strict=True))
    translations = translate(model, tokenizer, sources, corpus.width)
    stem = f"Marian-{recipes.stem_of(options.one, seed)}"
    (options.folder / f"{stem}.val.txt").write_text(
        "".join(f"{text}\n" for text in translations), encoding="utf-8"
    )
    scores = corpus_scores(translations, references, tokenize=corpus.tokenize)
    row = {
        "training": f"Marian: {options.one}",
        "seed": seed,
        "bleu": round(scores["bleu"], 2),
        "chrf": round(scores["chrf"], 2),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "updates": recipe.epochs * batches.steps,
        "seconds": round(seconds),
    }
    with open(options.folder / "results.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    torch.save(model.state_dict(), options.folder / f"{stem}.pt")
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
