"""A model with its tokenizers and its strategy: text in, its translation out."""

from keras_transformer.decoding import Greedy
from keras_transformer.models import EncoderDecoder
from keras_transformer.serving.searcher import Searcher
from keras_transformer.serving.signatures import Signatures
from keras_transformer.serving.warmup import text_of


class Translator(Searcher):
    """Translates text: tokenizer, model and strategy in one graph.

    Rows stand alone: an empty text gives an empty translation, invalid UTF-8 is read as U+FFFD, a long text is
    cut at `max_source_length`, and no row changes another's translation.

    Args:
        model: A `Transformer`, `T5` or another `EncoderDecoder`.
        source_tokenizer: From `keras_transformer.text`.
        target_tokenizer: Likewise; the source's when None.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
        max_source_length: Longest source in tokens, eos included; the rest is cut off.
        max_length: Longest translation in tokens, eos included. None for twice each source's length plus 16.
        constraints: What every translation must satisfy, such as `[NoRepeatNgram(3)]`.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, a tokenizer has more ids than the model or other
            special ones, a limit is out of range, or the constraints contradict one another.
    """

    DESCRIPTION = "translator.json"
    TOKENIZERS = ("source_tokenizer", "target_tokenizer")
    model_class = EncoderDecoder
    signatures_class = Signatures

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        strategy=Greedy(),  # noqa: B008
        max_source_length=256,
        max_length=None,
        constraints=(),
    ):
        super().__init__(
            model,
            source_tokenizer,
            target_tokenizer or source_tokenizer,
            strategy,
            max_source_length,
            max_length,
            constraints,
        )

    def translate(self, sentences, batch_size=32, jit_compile=None, verbose=False):
        """Translates sentences.

        Args:
            sentences: List of str (or of UTF-8 bytes).
            batch_size: Number of sentences at once; they are grouped by length and returned in order.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of str, one for each sentence.

        Raises:
            ValueError: If `sentences` is a single string, or `batch_size` is not positive.
        """
        answers = self.in_batches(sentences, "sentences", batch_size, verbose, jit_compile=jit_compile)
        return [answer["translation"].decode("utf-8", "replace") for answer in answers]

    def translate_batch(self, texts, jit_compile=None):
        """Translates texts (bytes) as they are, at once, and says nothing of those that are cut: a list of str."""
        found = self.answer(texts, jit_compile=jit_compile)
        return [text.decode("utf-8", "replace") for text in found["translation"]]

    def requests(self, shapes):
        for batch_size, length in shapes:
            yield "serving_default", {"text": [text_of(self.source_tokenizer, length)] * batch_size}
        batch_size, length = shapes[0]
        texts = [text_of(self.source_tokenizer, length)] * batch_size
        targets = [text_of(self.target_tokenizer, length)] * batch_size
        yield "n_best", {"text": texts}
        yield "alignment", {"text": texts}
        yield "score", {"text": texts, "target": targets}
        yield "tokens", {"source": self.source_tokenizer.tokenize(texts)[:, : length - 1].to_tensor().numpy()}
