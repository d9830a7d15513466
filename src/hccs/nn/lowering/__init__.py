"""From a transformers model to an integer program: one small file a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from hccs.nn.lowering.families import FAMILIES
from hccs.nn.lowering.planning import IntegerPlan
from hccs.numbers.table import ParamTable
from hccs.program.model import IntegerModel

__all__ = ["FAMILIES", "IntegerPlan", "lower"]


def lower(
    model: nn.Module,
    table: ParamTable,
    batches: Sequence[Mapping[str, Any]],
    *,
    scales: str = "max-abs",
    tokenizer: str = "",
) -> IntegerModel:
    """The whole classifier in integers: HCCS with the table's parameters, everything else in int8 and int16.

    The scale of every value comes from `batches`, which need no labels; padding is left out. `scales` is
    "max-abs", or "least-error" for ranges that may clip.

    >>> import torch, transformers, hccs.nn
    >>> config = transformers.BertConfig(
    ...     vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    ... )
    >>> model = transformers.BertForSequenceClassification(config).eval()
    >>> batches = [{"input_ids": torch.arange(32).view(4, 8)}]
    >>> table = hccs.calibrate(hccs.nn.collect(model, batches), n=8)
    >>> whole = hccs.nn.lower(model, table, batches)
    >>> whole([[2, 7, 3]]).scores.shape
    (1, 2)
    """
    return IntegerPlan.measured(model, table, batches, scales).lower(tokenizer)
