"""Fine-tunes a small random RoBERTa with LoRA, writes it, and compares its logits with those of transformers.

usage: python benchmarks/lora_roberta.py ChatbotData.csv [--text Q] [--epochs 1] [--rank 4]    (needs the extra
`parity`)

transformers makes the RoBERTa, and tokenizers its byte-level pieces from the texts of the file. The training is that of
examples/fine_tune.py. Exits with 1 where a logit differs by more than 1e-5.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers

from keras_transformer.data import read_table
from keras_transformer.serving import load
from keras_transformer.text import pack

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import fine_tune

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SIZES = {"hidden_size": 66, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 130}
TOLERANCE = 1e-5


def write_checkpoint(folder, texts):
    """Writes a random RoBERTa with a tokenizer of 2,000 byte-level pieces."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, 2000, special_tokens=SPECIAL)
    config = transformers.RobertaConfig(
        vocab_size=trained.get_vocab_size(), max_position_embeddings=70, **SIZES
    )
    torch.manual_seed(0)
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    trained.save_model(str(folder))


def main():
    """Prints the training, and the largest difference of the logits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="CSV or TSV of texts and labels")
    parser.add_argument("--text", default="Q", help="name of the texts' column")
    parser.add_argument("--epochs", default=1, type=int)
    parser.add_argument("--rank", default=4, type=int)
    options = parser.parse_args()
    texts = [text for text, _ in read_table(options.data, options.text, "label")]
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint, output = Path(temporary, "checkpoint"), Path(temporary, "tuned")
        write_checkpoint(checkpoint, texts)
        training = ["--epochs", str(options.epochs), "--lora", str(options.rank), "--learning-rate", "0.003"]
        data = ["--data", options.data, "--text", options.text]
        fine_tune.main(["--checkpoint", str(checkpoint), "--output", str(output), *data, *training])
        classifier = load(output / "classifier")
        packed = pack(classifier.tokenizer, texts[:64], max_length=classifier.max_source_length)
        found = np.asarray(classifier.model(packed))
        model = transformers.AutoModelForSequenceClassification.from_pretrained(output / "huggingface").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(output / "huggingface")
        rows = tokenizer(texts[:64], padding=True, truncation=True, max_length=68, return_tensors="pt")
        with torch.no_grad():
            expected = model(**rows).logits.numpy()
    difference = np.abs(found - expected).max()
    print(f"The logits of {len(found)} texts differ from those of transformers by at most {difference:.1e}.")
    sys.exit(int(not difference <= TOLERANCE))


if __name__ == "__main__":
    main()
