"""From a transformers model to an integer program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hccs.errors import DataError, ModelError, ParameterError
from hccs.nn.batches import listed, unwrapped
from hccs.nn.lowering.assembling import assemble
from hccs.nn.lowering.families import take_apart
from hccs.nn.lowering.mixing import can_be_mixed, mixed
from hccs.nn.lowering.parts import PostNorm, PreNorm, VectorHead
from hccs.nn.lowering.quantised import quantised as quantised_forward
from hccs.nn.lowering.ranges import METHODS, ValueRanges, magnitudes, measured
from hccs.nn.lowering.scales import Scales, channel_scales, choose_scales, cut_ranges, loud_products
from hccs.numbers.table import ParamTable
from hccs.program.model import IntegerModel
from hccs.program.program import GENERATE, TextSettings
from hccs.text.text_model import Reader

__all__ = [
    "IntegerPlan",
    "lower",
    "quantised",
    "scales_for",
    "take_apart",
]


def lower(
    model: nn.Module,
    table: ParamTable,
    batches: Sequence[Mapping[str, Any]],
    *,
    scales: str = "max-abs",
    tokenizer: str = "",
    pixels: Any = None,
    ranges: ValueRanges | None = None,
    split_outliers: bool = False,
    vector: VectorHead | None = None,
    row_exponents: bool | None = None,
    by_distance: bool | None = None,
) -> IntegerModel:
    """The whole model in integers: HCCS with the table's parameters, everything else in int8 and int16.

    The scale of every value comes from `batches`, which need no labels; padding is left out. Where `ranges`
    are given, scales come from those. `scales` is "max-abs", or "least-error" for ranges that may clip. With
    `split_outliers` channels of a wide layer that reach far beyond the others go a path of their own, where
    that lowers the noise by 6 dB or more. A model of images needs `pixels`, its image processor, whose
    normalisation becomes part of the program.

    With a `vector` head the answer is a unit vector per text: embeddings. `row_exponents` give every token a
    power of two of its own in front of linear layers, every channel a scale, and GELU int16 inputs; with
    `by_distance` attention looks scores up in a table of exponentials, and of the table's parameters the
    logit scales alone are used. Both are the default for embeddings and for models with rotary positions or
    gated layers.

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
    plan = IntegerPlan.measured(
        model, table, batches, scales, pixels, split_outliers, ranges, vector, row_exponents, by_distance
    )
    return plan.lower(tokenizer)


@dataclass(frozen=True, eq=False)
class IntegerPlan:
    """A live model, HCCS parameters for its heads, and frozen scales for everything else."""

    model: nn.Module
    parts: PostNorm | PreNorm
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
        ranges: ValueRanges | None = None,
        vector: VectorHead | None = None,
        row_exponents: bool | None = None,
        by_distance: bool | None = None,
    ) -> IntegerPlan:
        """Scales for the model as it is, chosen as `hccs.nn.lower` says."""
        model = unwrapped(model)
        parts = take_apart(model, pixels, vector)
        _require_finite(model)
        if ranges is None and can_be_mixed(parts):
            model = mixed(model, take_apart)
            parts = take_apart(model)
        needed = isinstance(parts, PreNorm) and parts.is_modern
        rows = vector is not None or needed if row_exponents is None else row_exponents
        if needed and not rows:
            raise ParameterError(
                "row exponents for rotary positions and gated layers", "row_exponents=False", "Leave it out."
            )
        apart = split_outliers and not needed
        chosen = scales_for(model, parts, table, batches, scales, ranges, apart, rows)
        looked_up = vector is not None or needed if by_distance is None else by_distance
        return cls(model, parts, table, replace(chosen, by_distance=looked_up))

    def lower(self, tokenizer: str = "") -> IntegerModel:
        """The program of the model's weights as they are now; where its stream is mixed, as they were."""
        program = assemble(self.parts, self.table, self.scales, tokenizer)
        if tokenizer and (ends := _ends_of_texts(self.model)):
            stop = Reader(program, program.longest).names(ends)
            text = TextSettings(GENERATE, program.longest, stop=stop).as_json()
            program = replace(program, facts={**program.facts, "text": text})
        return IntegerModel(program)

    @contextmanager
    def training(self) -> Iterator[IntegerPlan]:
        """Inside, the model's forward pass is that of the program that `lower` returns."""
        self.require_trainable()
        with quantised_forward(self.model, self.parts, self.table, self.scales):
            yield self

    def require_trainable(self) -> None:
        """Refuse a model whose forward pass cannot be its program's."""
        if isinstance(self.parts, PreNorm) and self.scales.row_exponents:
            raise ModelError(
                "a model whose integers can be trained: LayerNorm, no rotary positions, no gated layers",
                type(self.model).__name__,
                "Train it with hccs.nn.attach, then lower it.",
            )
        if isinstance(self.parts, PostNorm) and self.parts.projection is not None:
            raise ModelError(
                "a model whose integers can be trained: embeddings as wide as its layers",
                f"{type(self.model).__name__} with a projection behind the embeddings",
                "Train it with hccs.nn.attach, then lower it.",
            )
        narrow = next((p.dtype for p in self.model.parameters() if p.dtype.itemsize < 4), None)
        if narrow is not None:
            raise ModelError(
                "weights in float32, which holds the program's integers",
                str(narrow),
                "model.float() makes them.",
            )


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


def scales_for(
    model: nn.Module,
    parts: PostNorm | PreNorm,
    table: ParamTable,
    batches: Sequence[Mapping[str, Any]],
    method: str = "max-abs",
    ranges: ValueRanges | None = None,
    split_outliers: bool = False,
    row_exponents: bool = False,
) -> Scales:
    if row_exponents and split_outliers:
        raise ParameterError(
            "row exponents without outliers apart",
            "split_outliers=True",
            "Row exponents make split_outliers unnecessary; leave it out.",
        )
    if method not in METHODS:
        raise ParameterError(f"one of {', '.join(METHODS)}", repr(method), "'max-abs' is the default.")
    if ranges is None:
        ranges = measured(model, parts, listed(batches), counted=method != "max-abs")
    cut, reach = cut_ranges(ranges, len(parts.layers)) if split_outliers else ({}, {})
    found = {**magnitudes(parts, ranges, method), **reach}
    chosen = replace(choose_scales(parts, found, row_exponents), outliers=cut)
    if not row_exponents:
        return chosen
    loud = {name: value.largest for name, value in ranges.values.items()}
    if isinstance(parts, PreNorm):
        return loud_products(parts, chosen, loud)
    return replace(chosen, channels=channel_scales(parts, loud))


def _ends_of_texts(model: nn.Module) -> list[int]:
    """The tokens that a language model of transformers ends its texts with; none of any other model."""
    generation = getattr(model, "generation_config", None)  # of models that can generate
    ends = getattr(generation, "eos_token_id", None)
    return [ends] if isinstance(ends, int) else list(ends or ())


def _require_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DataError(
                "finite weights", f"NaN or infinity in {name}", "The model is damaged, or training diverged."
            )
