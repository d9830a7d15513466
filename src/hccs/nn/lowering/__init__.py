"""From a transformers model to an integer program: one small file a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from hccs.errors import ModelError
from hccs.nn.lowering import bert, distilbert
from hccs.nn.lowering.assembling import assemble
from hccs.nn.lowering.encoder import Encoder
from hccs.nn.lowering.ranges import measure
from hccs.nn.lowering.scales import choose_scales
from hccs.numbers.table import ParamTable
from hccs.program.model import IntegerModel

FAMILIES: dict[str, Callable[[Any], Encoder]] = {
    "bert": bert.encoder,
    "roberta": bert.encoder,
    "electra": bert.encoder,
    "distilbert": distilbert.encoder,
}


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
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in FAMILIES:
        raise ModelError(f"a classifier of the families {', '.join(FAMILIES)}", str(kind), "Keep its floats.")
    encoder = FAMILIES[kind](model)
    chosen = choose_scales(encoder, measure(model, encoder, batches, scales))
    return IntegerModel(assemble(encoder, table, chosen, tokenizer))
