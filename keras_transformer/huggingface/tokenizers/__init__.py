"""Reading and writing of the tokenizers of Hugging Face checkpoints."""
