"""`collect`: the logits of every attention layer, streamed into the statistics that calibration needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs._progress import track
from hccs.calibration import HeadStatistics
from hccs.errors import DataError, ModelError, ParameterError
from hccs.nn.attaching import fill, unchanged
from hccs.nn.batches import call, listed, require_batches, require_some, unwrapped
from hccs.nn.functional import quantise
from hccs.nn.interface import SLOT, attention_layers
from hccs.nn.slots import AttentionInputs, AttentionSlot, FloatSoftmax, Observer
from hccs.numbers.table import ParamTable

# The scale and the longest row come from this many first batches; later logits beyond them saturate.
RANGE_BATCHES = 32

ROWS = "rows"
"""The scale that reaches what matters to a softmax: row maxima, and what lies not far below.

The usual int8 step reaches the largest magnitude of a head's logits. That of rows reaches from the highest
row maximum to `MARGIN` below the lowest, which is finer where logits far below every maximum are what is
large, as in decoders. With finer steps a line, which falls by at most 127 a step, begins higher, so that its
floor, which more keys share as rows grow, is lower."""

MARGIN = 10.0
"""Logits this far below a row's largest one take no part in its softmax: exp(-10) is 1 / 22000."""


@dataclass(frozen=True)
class Ranges:
    """The layers that ran, by name, their longest row, and the int8 steps that reach what their heads met."""

    layers: list[str]
    columns: int
    logit_scale: np.ndarray[Any, Any]
    """[layers, heads]: reaches all logits."""
    row_scale: np.ndarray[Any, Any]
    """[layers, heads]: reaches every row's maximum and what lies not far below it, see `ROWS`."""
    qkv_scale: np.ndarray[Any, Any]
    """[layers, heads, 3]: reaches all of q, k and v."""


class RangeObserver(Observer):
    """Keeps the longest row and per head the largest magnitudes of logits, q, k and v, and of row maxima.

    These are the highest and, negated, the lowest maximum of rows of more than one logit.
    """

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.seen: dict[str, torch.Tensor] = {}
        self.columns = 0

    def observe(self, inputs: AttentionInputs) -> None:
        z = inputs.logits.detach().float()
        rows = real_rows(z, inputs.valid)
        shown = torch.ones_like(z, dtype=torch.bool) if rows is None else rows.expand(z.shape)
        top, alone = z.masked_fill(~shown, -torch.inf).amax(-1), shown.sum(-1) <= 1
        now = {
            "logits": z.abs().masked_fill(~shown, 0).amax((0, 2, 3)),
            "qkv": _largest_operands(inputs),
            "highest": top.masked_fill(alone, -torch.inf).amax((0, 2)),
            "negated lowest": (-top).masked_fill(alone, -torch.inf).amax((0, 2)),
        }
        self.seen = {name: torch.maximum(self.seen.get(name, value), value) for name, value in now.items()}
        self.columns = max(self.columns, z.shape[-1])


class StatisticsObserver(Observer):
    def __init__(self, inner: AttentionSlot, stats: HeadStatistics, layer: int) -> None:
        super().__init__(inner)
        self.stats, self.layer = stats, layer

    def observe(self, inputs: AttentionInputs) -> None:
        z = inputs.logits.detach()
        scale = torch.tensor(self.stats.scale[self.layer], dtype=torch.float32, device=z.device)
        rows = real_rows(z, inputs.valid)
        if not bool(torch.isfinite(z if rows is None else z.masked_fill(~rows, 0)).all()):
            raise DataError(
                "finite logits",
                f"NaN or infinity in layer {self.layer}",
                "Look for an overflow in the model.",
            )
        mask = None if rows is None else rows.expand(z.shape).cpu().numpy()
        self.stats.update(quantise(z, scale).cpu().numpy(), mask, layer=self.layer)


def real_rows(z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor | None:
    """`valid` without the rows of padding queries: in self-attention a real token may attend to itself."""
    if valid is None or z.shape[-1] != z.shape[-2]:
        return valid
    full = valid.expand(*valid.shape[:-2], z.shape[-2], z.shape[-1])
    return full & torch.diagonal(full, dim1=-2, dim2=-1)[..., None]


def real_tokens(
    queries: int, keys: int, valid: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Which queries and which keys are tokens, not padding: booleans that broadcast to [batch, heads, n]."""
    if valid is None:
        return None, None
    full = valid.expand(*valid.shape[:-2], queries, keys)
    if queries == keys:
        itself = torch.diagonal(full, dim1=-2, dim2=-1)
        return itself, itself
    return full.any(-1), full.any(-2)


def _largest_operands(inputs: AttentionInputs) -> torch.Tensor:
    """The largest magnitudes of q, k and v, [heads, 3], without padding tokens."""
    query, key, value = inputs.query, inputs.key, inputs.value
    queries, keys = real_tokens(query.shape[-2], key.shape[-2], inputs.valid)
    parts = [_per_head(query, queries), _per_head(key, keys), _per_head(value, keys)]
    return torch.stack([part.repeat_interleave(query.shape[1] // len(part)) for part in parts], -1)


def _per_head(x: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    seen = x.detach().abs().float().amax(-1)
    return (seen if real is None else seen.masked_fill(~real, 0)).amax((0, 2))


def collect(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    n: int | None = None,
    scale: Any = None,
) -> HeadStatistics:
    """Per-head statistics of the model's attention logits over `batches`, ready for `hccs.calibrate`.

    A batch is a mapping of model inputs (labels are left out) or a tuple of them. The logit scale of each
    head is the largest magnitude in the first batches / 127, unless `scale` [layers, heads] is given; with
    "rows" it is finer, and reaches only what matters to a softmax: decoders and long rows want it. `n` is the
    longest row, by default the longest seen there. Padding counts neither as key nor as query. In a model
    with HCCS attached the logits come after the HCCS of earlier layers. The ranges of q, k and v, which
    integer attention needs, come from the first batches too. Under `torch.distributed` each process passes
    its own batches, and all return the statistics of all of them. The model is left as it was.

    >>> from transformers import BertConfig, BertModel
    >>> shape = dict(vocab_size=50, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    >>> model = BertModel(BertConfig(num_hidden_layers=1, **shape))
    >>> sentence = {"input_ids": torch.tensor([[3, 14, 15, 9, 2]])}
    >>> collect(model, [sentence], n=64).rows.tolist()  # of one layer's two heads
    [[5, 5]]
    """
    model = unwrapped(model)
    require_batches(batches)
    stream = iter(batches)
    first = list(itertools.islice(stream, RANGE_BATCHES))
    require_some(first)
    if isinstance(scale, str) and scale != ROWS:
        raise ParameterError(f"scale to be numbers, or {ROWS!r}", repr(scale), "Leave it out for the usual.")
    seen = ranges(model, first)
    given = seen.row_scale if isinstance(scale, str) else scale
    stats = HeadStatistics(
        shape=(len(seen.layers), seen.logit_scale.shape[1]),
        n=seen.columns if n is None else n,
        scale=seen.logit_scale if given is None else given,
        layers=seen.layers,
        qkv_scale=seen.qkv_scale,
    )
    observer = partial(StatisticsObserver, stats=stats)
    with observing(model, {name: partial(observer, layer=i) for i, name in enumerate(seen.layers)}):
        run(model, itertools.chain(first, stream), "collecting")
    if distributed():
        stats.all_reduce()
    return stats


def calibrate_operands(model: nn.Module, table: ParamTable, batches: Sequence[Any]) -> ParamTable:
    """The table with scales of q, k and v from `batches`, for integer attention.

    They are those of the weights as they are now: call it again after training. The model may have HCCS
    attached or not.
    """
    model = unwrapped(model)
    seen = ranges(model, listed(batches))
    order = table.layers or seen.layers
    if sorted(order) != sorted(seen.layers) or table.shape != seen.logit_scale.shape:
        raise ModelError(
            f"a table of the layers {', '.join(seen.layers)}, {seen.logit_scale.shape[1]} heads each",
            f"one of {', '.join(order)}, {table.shape[1]} heads each",
            "This table belongs to another model: collect and calibrate on this one.",
        )
    return replace(table, qkv_scale=seen.qkv_scale[[seen.layers.index(name) for name in order]])


def ranges(model: nn.Module, batches: Sequence[Any]) -> Ranges:
    """The ranges of the model's attention layers over all batches, of all processes."""
    observers: dict[str, RangeObserver] = {}

    def make(name: str) -> Callable[[AttentionSlot], AttentionSlot]:
        return lambda inner: observers.setdefault(name, RangeObserver(inner))

    with observing(model, {name: make(name) for name in attention_layers(model)}):
        run(model, batches, "measuring the range")
    ran = {name: observer.seen for name, observer in observers.items() if observer.seen}
    heads = {name: int(seen["logits"].numel()) for name, seen in ran.items()}
    if len(set(heads.values())) != 1:
        raise ModelError(
            "attention layers that all have the same number of heads",
            ", ".join(f"{name}: {count}" for name, count in heads.items()) or "no layer that ran",
            "Calibrate a model with one number of heads.",
        )
    found = {name: torch.stack([seen[name] for seen in ran.values()]) for name in next(iter(ran.values()))}
    columns = torch.tensor(max(o.columns for o in observers.values()), device=found["logits"].device)
    if distributed():
        import torch.distributed as dist

        for part in (*found.values(), columns):
            dist.all_reduce(part, dist.ReduceOp.MAX)
    # 127 steps reach no more than the largest magnitude, and no less than any row's maximum.
    reach = torch.maximum(found["highest"], MARGIN + found["negated lowest"]).minimum(found["logits"])
    limits = (part.double().cpu().numpy() for part in (found["logits"], reach, found["qkv"]))
    return Ranges(list(ran), int(columns), *(np.maximum(limit, 1e-6) / 127 for limit in limits))


def distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@contextmanager
def observing(
    model: nn.Module, wrap: Mapping[str, Callable[[AttentionSlot], AttentionSlot]]
) -> Iterator[None]:
    """Inside, the slots of the named layers are `wrap[name](slot)`; other layers keep theirs.

    A layer without a slot has one of float softmax. The model is left as it was.
    """
    with unchanged(model):
        slots = {
            name: getattr(layer, SLOT, None) or FloatSoftmax()
            for name, layer in attention_layers(model).items()
        }
        fill({name: wrap[name](slot) if name in wrap else slot for name, slot in slots.items()}, model)
        yield


def run(model: nn.Module, batches: Iterable[Any], description: str) -> None:
    """The model over all batches, in evaluation mode and without gradients."""
    total = len(batches) if isinstance(batches, Sequence) else None
    with unchanged(model), torch.no_grad():
        model.eval()
        for batch in track(batches, total=total, description=description):
            call(model, batch)
