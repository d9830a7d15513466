"""`Program`: a straight list of operators, and `TextSettings`, what its file says about texts.

All constants are integers; scales are names for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hccs.errors import DataError
from hccs.program.operators import Embedding, Operator, Value

RESERVED = "."
"""A plan puts it into the names of values of its own."""


@dataclass(frozen=True, eq=False)
class Program:
    """Operators in the order in which they run; the last one's output is the model's scores.

    `scales` is the real value of one step of every value, `score_scale` that of the scores: for people, and
    for logits. `tokenizer` is the text of a `tokenizer.json`, or "". `facts` is whatever JSON can hold about
    where the program came from; `facts["text"]` holds its `TextSettings`.
    """

    operators: tuple[Operator, ...]
    labels: tuple[str, ...]
    longest: int
    score_scale: float
    scales: Mapping[str, float] = field(default_factory=dict)
    tokenizer: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.longest) is not int or self.longest < 1:
            raise DataError("longest, at least 1 token", repr(self.longest), "Give an integer.")
        for name, scale in {"score_scale": self.score_scale, **self.scales}.items():
            if type(scale) not in (int, float) or not math.isfinite(scale):
                raise DataError(f"{name} to be a finite number", repr(scale), "It is the value of one step.")
        object.__setattr__(self, "_values", _values(self.operators))
        outputs = self.values[self.operators[-1].output].width if self.operators[-1].labelled else 0
        if len(self.labels) != outputs or not all(isinstance(label, str) for label in self.labels):
            raise DataError(f"{outputs} labels, one per score", f"{self.labels}"[:80], "Name every score.")
        self.embed.require_rows(self.embed.rows(self.longest))
        if not isinstance(self.tokenizer, str):
            raise DataError("a tokenizer.json as text", type(self.tokenizer).__name__, "Read the file.")
        self._require_text_settings()

    def _require_text_settings(self) -> None:
        text = self.text
        if text is None:
            return
        if self.embed.image is not None:
            raise DataError("text settings for a program of texts", "one of images", "Leave them out.")
        if text.max_length > self.longest:
            raise DataError(f"max_length up to {self.longest}", str(text.max_length), "Lower it for more.")
        answers = "scores" if self.values[self.operators[-1].output].bits == 32 else "vectors"
        answers += " per token" if self.per_token else ""
        per_token = "scores per token"
        wanted = {EMBEDDINGS: "vectors", TAG: per_token, GENERATE: per_token}.get(text.kind, "scores")
        if answers != wanted:
            raise DataError(f"a program of {wanted} for {text.kind}", answers, "Name the right kind.")

    def _repr_html_(self) -> str:
        from hccs.program.describe import as_html  # it describes programs

        return as_html(self)

    @property
    def embed(self) -> Embedding:
        """The first operator."""
        first = self.operators[0]
        assert isinstance(first, Embedding)
        return first

    @property
    def rows(self) -> int:
        """Rows of the longest sequence, or of an image."""
        return self.embed.rows(self.longest)

    @property
    def values(self) -> Mapping[str, Value]:
        """The type and width of every value, in the order of writing."""
        values: Mapping[str, Value] = self._values  # type: ignore[attr-defined]
        return values

    @property
    def text(self) -> TextSettings | None:
        """What `facts["text"]` says about the texts that the program takes."""
        return TextSettings.from_json(self.facts["text"]) if "text" in self.facts else None

    @property
    def scores(self) -> int:
        """Scores of a token or of a sequence, or channels of its vector."""
        return self.values[self.operators[-1].output].width

    @property
    def per_token(self) -> bool:
        """Whether every token has scores of its own, not the sequence."""
        return self.values[self.operators[-1].output].per_token


def _values(operators: Sequence[Operator]) -> dict[str, Value]:
    """Every value by name, in the order of writing; operators that do not fit together are refused."""
    values: dict[str, Value] = {}
    for number, step in enumerate(operators):
        if not isinstance(step, Operator):
            raise DataError("operators", type(step).__name__, "See hccs.program.operators.")
        _require_names(step)
        missing = [name for name in step.inputs if name not in values]
        if missing or step.output in values:
            raise DataError(
                f"operator {number}, {type(step).__name__}, to read earlier values and write one",
                f"inputs {missing} unknown" if missing else f"{step.output} written twice",
                "A program is a straight list.",
            )
        if step.embeds != (number == 0):
            raise DataError(
                "one embedding, the first operator",
                f"{type(step).__name__} as number {number}",
                "Lower a model.",
            )
        if step.ends_program != (number == len(operators) - 1):
            raise DataError(
                "a program that ends with int32 scores, and has no others",
                f"{type(step).__name__} {step.output!r} as number {number}",
                "Lower the model's head.",
            )
        values[step.output] = value = step.written([values[name] for name in step.inputs])
        step.require(value.width >= 1, "at least one channel", value.width)
    if not operators:
        raise DataError("a program that ends with int32 scores", "no operators", "Lower a model.")
    return values


def _require_names(step: Operator) -> None:
    names = (*step.inputs, step.output)
    if not all(isinstance(name, str) and name and RESERVED not in name for name in names):
        raise DataError(
            f"names of values without {RESERVED!r}",
            f"{names}",
            "A plan has such names for values of its own.",
        )
    if len(step.inputs) != step.arity:
        raise DataError(
            f"{type(step).__name__} to read {step.arity} values", f"{step.inputs}", "See its docstring."
        )


EMBEDDINGS, RERANK, CLASSIFY, TAG, GENERATE = KINDS = ("embeddings", "rerank", "classify", "tag", "generate")

_HINT = "See facts['text'] in docs/embeddings.md."


@dataclass(frozen=True)
class TextSettings:
    """What the answers to texts are, how many tokens are read, and the prefixes that texts may need.

    `prompts` are prefixes by name, and `default_prompt` names the one that is put in front of a text unless
    another is asked for. Generated texts end before a token of `stop`, which are named as the tokenizer does.
    """

    kind: str
    max_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(f"text settings of a kind among {', '.join(KINDS)}", repr(self.kind), _HINT)
        if type(self.max_length) is not int or self.max_length < 1:
            raise DataError("max_length, at least 1 token", repr(self.max_length), _HINT)
        texts = isinstance(self.prompts, Mapping) and all(
            isinstance(part, str) for pair in self.prompts.items() for part in pair
        )
        if not texts or "" in self.prompts:
            raise DataError("prompts, prefixes by name", repr(self.prompts)[:80], _HINT)
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise DataError(
                f"default_prompt, None or one of {sorted(self.prompts)}", repr(self.default_prompt), _HINT
            )
        if isinstance(self.stop, str) or not all(isinstance(token, str) for token in self.stop):
            raise DataError("stop, a list of tokens", repr(self.stop)[:80], _HINT)
        if self.similarity != "cosine":
            raise DataError("similarity 'cosine': vectors have length 1", repr(self.similarity), _HINT)

    @classmethod
    def from_json(cls, given: Any) -> TextSettings:
        """The settings of `facts["text"]`; a mapping with other names is refused."""
        known = {entry.name for entry in fields(cls)}
        if not isinstance(given, Mapping) or not {"kind", "max_length"} <= {*given} <= known:
            raise DataError(
                f"text settings: a mapping of {', '.join(sorted(known))}", repr(given)[:120], _HINT
            )
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        stop = {"stop": list(self.stop)} if self.stop else {}
        return {name: value for name, value in asdict(self).items() if name != "stop"} | stop

    def __str__(self) -> str:
        prompts = f", prompts {', '.join(self.prompts)}" if self.prompts else ""
        default = f" (default {self.default_prompt})" if self.default_prompt else ""
        return f"{self.kind}, up to {self.max_length} tokens{prompts}{default}"
