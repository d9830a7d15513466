"""A model with the scale of every value decided: to be lowered as it is, or after training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from hccs.errors import ModelError
from hccs.nn.batches import unwrapped
from hccs.nn.lowering import scales_for, take_apart
from hccs.nn.lowering.assembling import assemble
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.pre_norm import PreNorm
from hccs.nn.lowering.quantised import quantised as quantised_forward
from hccs.nn.lowering.scales import Scales
from hccs.numbers.table import ParamTable
from hccs.program.model import IntegerModel


@dataclass(frozen=True, eq=False)
class IntegerPlan:
    """A live model, HCCS parameters for its heads, and frozen scales for everything else."""

    model: nn.Module
    parts: Encoder | PreNorm
    table: ParamTable
    scales: Scales

    @classmethod
    def measured(
        cls,
        model: nn.Module,
        table: ParamTable,
        batches: Sequence[Mapping[str, Any]],
        scales: str = "max-abs",
        pixels: Any = None,
        split_outliers: bool = False,
    ) -> IntegerPlan:
        """Scales for the model as it is, from batches without labels, by a method of `hccs.nn.lower`."""
        model = unwrapped(model)
        parts = take_apart(model, pixels)
        chosen = scales_for(model, parts, table, batches, scales, split_outliers=split_outliers)
        return cls(model, parts, table, chosen)

    def lower(self, tokenizer: str = "") -> IntegerModel:
        """The program of the model's weights as they are now."""
        return IntegerModel(assemble(self.parts, self.table, self.scales, tokenizer))

    @contextmanager
    def training(self) -> Iterator[IntegerPlan]:
        """Inside, the model's forward pass is that of the program that `lower` returns."""
        narrow = next((p.dtype for p in self.model.parameters() if p.dtype.itemsize < 4), None)
        if narrow is not None:
            raise ModelError(
                "weights in float32, which holds the program's integers",
                str(narrow),
                "model.float() makes them.",
            )
        with quantised_forward(self.model, self.parts, self.table, self.scales):
            yield self


@contextmanager
def quantised(
    model: nn.Module,
    table: ParamTable,
    batches: Sequence[Mapping[str, Any]],
    *,
    scales: str = "max-abs",
    pixels: Any = None,
    split_outliers: bool = False,
) -> Iterator[IntegerPlan]:
    """Inside, the model computes the integers of its program, and gradients pass straight through them.

    Train it with any loop or trainer; the `lower()` of what is yielded makes the program of the weights as
    they are, whose answers are the model's own. Scales are measured on entering and stay. On leaving the
    model has its floats back, and the weights that it has learnt.

    >>> import torch, transformers, hccs.nn
    >>> config = transformers.BertConfig(
    ...     vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    ... )
    >>> model = transformers.BertForSequenceClassification(config)
    >>> batch = {"input_ids": torch.arange(32).view(4, 8)}
    >>> table = hccs.calibrate(hccs.nn.collect(model, [batch]), n=8)
    >>> optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    >>> with hccs.nn.quantised(model, table, [batch]) as plan:
    ...     model(**batch, labels=torch.tensor([0, 1, 0, 1])).loss.backward()
    ...     optimiser.step()
    ...     answers = model(**batch).logits.argmax(-1)
    ...     whole = plan.lower()
    >>> (whole(batch["input_ids"]).scores.argmax(-1) == answers.numpy()).all()
    np.True_
    """
    made = IntegerPlan.measured(model, table, batches, scales, pixels, split_outliers)
    with made.training() as plan:
        yield plan
