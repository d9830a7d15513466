"""Where accuracy goes: the noise of every value of an integer model, and what each operator alone would cost.

Noise adds up along a model: the signal-to-noise ratio of a value holds all roundings before it. So each kind
of operator is also put into integers by itself, layer by layer, with floats around it, and the answers are
compared with the float model's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from hccs._progress import track
from hccs.nn.batches import listed
from hccs.nn.lowering.choosing import answers
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.noise import Noise, measure_noise
from hccs.nn.lowering.pre_norm import PreNorm
from hccs.nn.lowering.quantised import KINDS, OUTSIDE, quantised
from hccs.nn.lowering.scales import scales_of
from hccs.numbers.table import ParamTable
from hccs.program.model import IntegerModel

IN_WORDS = {
    "x": "stream",
    "y": "stream after attention",
    "x_int8": "stream, int8",
    "y_int8": "stream after attention, int8",
    "x_part": "added to the stream by the narrow layer",
    "y_part": "added to the stream by attention",
    "a": "LayerNorm before attention",
    "b": "LayerNorm before the wide layer",
    "a_int8": "LayerNorm before attention, int8",
    "b_int8": "LayerNorm before the wide layer, int8",
    "query": "q",
    "key": "k",
    "value": "v",
    "context": "attention's output",
    "attended_part": "attention's output layer",
    "wide": "wide layer",
    "active": "activation",
    "summed_part": "narrow layer",
    "pooled": "head's first layer",
    "activated": "head's activation",
    "final": "last LayerNorm",
    "final_int8": "last LayerNorm, int8",
}
"""What a value is, by its name in the program without the number of its layer."""


@dataclass(frozen=True)
class Cost:
    """What some operators in integers change of the float model's answers, floats around them."""

    operator: str
    layer: int | None
    """None for all layers, or for what belongs to none."""
    agreement: float
    """The share of answers, sequences or tokens, that stay."""
    kl: float
    """The mean divergence of the float model's probabilities from these, in nats."""
    decibels: float
    """Of the logits."""
    accuracy: float | None
    """Where batches have labels."""


@dataclass(frozen=True)
class Account:
    """Noise of every value in the program's order, and the cost of operators."""

    noise: tuple[Noise, ...]
    kinds: tuple[Cost, ...]
    """Each kind of operator alone, in all layers."""
    operators: tuple[Cost, ...]
    """Each kind alone in each layer."""
    whole: Cost
    accuracy: float | None
    """The float model's, where batches have labels."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def worst_values(self) -> list[Noise]:
        return sorted(self.noise, key=lambda noise: noise.decibels)

    @property
    def worst_operators(self) -> list[Cost]:
        return sorted(self.operators, key=lambda cost: cost.decibels)


def value_in_words(name: str) -> tuple[str, int | None]:
    """What a value of a program is, and the number of its layer.

    >>> value_in_words("context3"), value_in_words("x0_int8"), value_in_words("pooled")
    (("attention's output", 3), ('stream, int8', 0), ("head's first layer", None))
    """
    found = re.fullmatch(r"([a-z]+)(\d*)((?:_[a-z0-9]+)?)", name)
    assert found is not None
    word, number, rest = found.groups()
    return IN_WORDS.get(word + rest, word + rest), int(number) if number else None


def account(
    model: nn.Module,
    parts: Encoder | PreNorm,
    table: ParamTable,
    whole: IntegerModel,
    batches: Sequence[Mapping[str, Any]],
) -> Account:
    batches = listed(batches)
    scales = scales_of(whole.program)
    noise = measure_noise(model, parts, whole.program, scales, batches)
    real = _Answers(model, batches)

    def cost(operator: str, layer: int | None, only: Sequence[str], layers: Sequence[int] | None) -> Cost:
        with quantised(model, parts, table, scales, only, layers):
            return real.against(operator, layer)

    count = range(len(parts.layers))
    kinds = [(kind, None, [kind], None) for kind in KINDS]
    single = [(kind, i, [kind], [i]) for i in count for kind in KINDS if kind != "embeddings"]
    outside = [("embeddings", None, ["embeddings"], None), ("head", None, ["linear layers"], [OUTSIDE])]
    todo = [*kinds, *single, *outside]
    costs = [cost(*each) for each in track(todo, total=len(todo), description="each operator alone")]
    return Account(
        tuple(noise),
        tuple(costs[: len(kinds)]),
        tuple(costs[len(kinds) :]),
        cost("everything", None, KINDS, None),
        real.accuracy(real.logits),
    )


class _Answers:
    """A float model's logits of some batches, without those of padding."""

    def __init__(self, model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> None:
        self.model, self.batches = model, batches
        self.logits = self._flat()
        known = all("labels" in batch for batch in batches)
        labels = torch.cat([batch["labels"].flatten() for batch in batches]).cpu() if known else None
        fits = labels is not None and len(labels) == len(self.logits) and not labels.is_floating_point()
        self.labels = labels if fits else None

    def _flat(self) -> torch.Tensor:
        found = []
        for logits, batch in zip(answers(self.model, self.batches), self.batches, strict=True):
            rows = logits.cpu()
            if rows.ndim == 3 and "attention_mask" in batch:
                rows = rows[batch["attention_mask"].bool().cpu()]
            found.append(rows.flatten(0, -2))
        return torch.cat(found).double()

    def accuracy(self, logits: torch.Tensor) -> float | None:
        return None if self.labels is None else float((logits.argmax(-1) == self.labels).double().mean())

    def against(self, operator: str, layer: int | None) -> Cost:
        now = self._flat()
        p, q = self.logits.log_softmax(-1), now.log_softmax(-1)
        noise = float((now - self.logits).square().sum())
        signal = float((self.logits - self.logits.mean(0)).square().sum())
        return Cost(
            operator,
            layer,
            agreement=float((now.argmax(-1) == self.logits.argmax(-1)).double().mean()),
            kl=float((p.exp() * (p - q)).sum(-1).mean()),
            decibels=10 * math.log10(signal / noise) if noise > 0 and signal > 0 else math.inf,
            accuracy=self.accuracy(now),
        )
