"""Which file takes which model apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from hccs.errors import ModelError
from hccs.nn.lowering import bert, distilbert
from hccs.nn.lowering.encoder import Encoder

FAMILIES: dict[str, Callable[[Any], Encoder]] = {
    "bert": bert.encoder,
    "roberta": bert.encoder,
    "electra": bert.encoder,
    "distilbert": distilbert.encoder,
}


def encoder_of(model: nn.Module) -> Encoder:
    """The model's parts; one of another family is refused."""
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in FAMILIES:
        raise ModelError(f"a classifier of the families {', '.join(FAMILIES)}", str(kind), "Keep its floats.")
    return FAMILIES[kind](model)
