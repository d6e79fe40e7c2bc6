"""What all servables share that write texts: tokenizers, a strategy, constraints and limits."""

import copy
import math

from keras_transformer.checks import check_count, check_positive
from keras_transformer.decoding import CONSTRAINTS, STRATEGIES, Greedy, Strategy
from keras_transformer.models.limits import check_constraints
from keras_transformer.serving.servable import Servable, named
from keras_transformer.serving.signatures import measured


class Searcher(Servable):
    """The base of `Translator` and `TextGenerator`.

    Args:
        model: A model with `search`.
        source_tokenizer: From `keras_transformer.text`.
        target_tokenizer: Likewise, perhaps the same.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
        max_source_length: Longest source in tokens.
        max_length: Longest output in tokens, eos included, or None.
        constraints: What every output must satisfy, such as `[NoRepeatNgram(3)]`.
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer,
        strategy=Greedy(),  # noqa: B008
        max_source_length=256,
        max_length=None,
        constraints=(),
    ):
        super().__init__(model)
        for side, tokenizer in (("source", source_tokenizer), ("target", target_tokenizer)):
            size = getattr(model, f"{side}_vocab_size")
            if tokenizer.vocab_size > size:
                raise ValueError(
                    f"`{side}_tokenizer` has more ids than the model embeds. "
                    f"Received: {tokenizer.vocab_size} ids, {side}_vocab_size={size}."
                )
            for name in ("pad_id", "eos_id"):
                own, expected = getattr(tokenizer, name), getattr(model, name)
                if own not in (None, expected):
                    raise ValueError(
                        f"`{side}_tokenizer` must have the model's `{name}`, or none. "
                        f"Received: {name}={own}, the model's is {expected}."
                    )
        check_count(2, self.longest_source(model), max_source_length=max_source_length)
        if max_length is not None:
            check_positive(max_length=max_length)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.strategy = strategy
        self.max_source_length = max_source_length
        self.max_length = max_length
        self.constraints = check_constraints(constraints, max_length)
        if not isinstance(strategy, Strategy):
            raise ValueError(f"`strategy` must be a strategy such as `Greedy()`. Received: {strategy!r}.")

    @staticmethod
    def longest_source(model):
        """For how many tokens of a source the model has positions."""
        return math.inf if model.longest is None else model.longest

    def searching(self, strategy, constraints=(), *, max_source_length=None, max_length=None):
        """The same with another strategy, other constraints and, where given, other limits."""
        other = copy.copy(self)
        other.__dict__.pop("_function", None)  # made for this one
        Searcher.__init__(
            other,
            self.model,
            self.source_tokenizer,
            self.target_tokenizer,
            strategy,
            self.max_source_length if max_source_length is None else max_source_length,
            self.max_length if max_length is None else max_length,
            constraints,
        )
        return other

    def measured(self, texts):
        return measured(texts, self.source_tokenizer, self.max_source_length)

    def write_into(self, folder, **notes):
        for known, parts in ((STRATEGIES, [self.strategy]), (CONSTRAINTS, self.constraints)):
            for part in parts:
                if known.get(type(part).__name__) is not type(part):
                    raise ValueError(
                        f"Only this library's strategies and constraints are saved. Received: {part}."
                    )
        super().write_into(folder, **notes)

    def describe(self):
        return {
            "strategy": type(self.strategy).__name__,
            "strategy_arguments": self.strategy.get_config(),
            "constraints": [[type(c).__name__, c.get_config()] for c in self.constraints],
            "max_source_length": self.max_source_length,
            "max_length": self.max_length,
        }

    @classmethod
    def arguments_of(cls, description, folder):
        strategy_class = named(STRATEGIES, description["strategy"], folder)
        return {
            "strategy": strategy_class.from_config(description["strategy_arguments"]),
            "max_source_length": description["max_source_length"],
            "max_length": description["max_length"],
            "constraints": [
                named(CONSTRAINTS, name, folder).from_config(config)
                for name, config in description.get("constraints", ())
            ],
        }
