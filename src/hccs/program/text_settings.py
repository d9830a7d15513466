"""`TextSettings`: what a program's file says about the texts that it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hccs.errors import DataError

EMBEDDINGS, RERANK, CLASSIFY, TAG = KINDS = ("embeddings", "rerank", "classify", "tag")

_HINT = "See facts['text'] in docs/embeddings.md."


@dataclass(frozen=True)
class TextSettings:
    """What the answers to texts are, how many tokens are read, and the prefixes that texts may need.

    `prompts` are prefixes by name, and `default_prompt` names the one that is put in front of a text unless
    another is asked for.
    """

    kind: str
    max_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str = "cosine"

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
        return asdict(self)

    def __str__(self) -> str:
        prompts = f", prompts {', '.join(self.prompts)}" if self.prompts else ""
        default = f" (default {self.default_prompt})" if self.default_prompt else ""
        return f"{self.kind}, up to {self.max_length} tokens{prompts}{default}"
