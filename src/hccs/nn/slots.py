"""`AttentionSlot`: what runs inside an attention layer in place of its own attention.

A layer hands its slot one `AttentionInputs` and gets the output of its heads back. Three kinds of slot fill
all needs: a `SoftmaxSlot` turns logits into probabilities, an `Observer` looks on and passes what it sees to
the slot it wraps, and any other slot computes attention as it likes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from hccs.nn.functional import hccs_softmax
from hccs.numbers.heads import ONE_LINE
from hccs.numbers.modes import INT16_MAX, MAX_DISTANCE, MAX_SLOPE, UINT8_MAX, Mode
from hccs.numbers.region import Region
from hccs.numbers.table import ParamTable


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """What an attention layer hands to its slot.

    >>> q = torch.tensor([[[[2.0, 0.0]]]])
    >>> k = torch.tensor([[[[1.0, 0.0], [3.0, 0.0]]]])
    >>> AttentionInputs(query=q, key=k, value=k, valid=None, scaling=0.5).logits.tolist()
    [[[[1.0, 3.0]]]]
    """

    query: torch.Tensor
    """[batch, heads, q, d]."""
    key: torch.Tensor
    """[batch, key heads, k, d]; a number of query heads share each key head."""
    value: torch.Tensor
    """Like key."""
    valid: torch.Tensor | None
    """Booleans that broadcast to [batch, heads, q, k], True = attend; None where every query may see all."""
    scaling: float
    """What query times key is multiplied by."""
    softcap: float | None = None
    """Where given, logits are bent to softcap * tanh(logits / softcap)."""
    dropout: float = 0.0
    """The share of probabilities to drop; 0 outside training."""
    causal: bool = False
    """Whether `valid` is known to hide what comes after each query and nothing else."""
    _computed: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def logits(self) -> torch.Tensor:
        """[batch, heads, q, k], unmasked; computed once for an observer and the slot it wraps."""
        # By hand: torch.compile cannot trace the lock in functools.cached_property.
        if "logits" not in self._computed:
            key = self.for_every_head(self.key)
            z = torch.matmul(self.query, key.transpose(-1, -2)) * self.scaling
            self._computed["logits"] = (
                z if self.softcap is None else torch.tanh(z / self.softcap) * self.softcap
            )
        return self._computed["logits"]

    def for_every_head(self, shared: torch.Tensor) -> torch.Tensor:
        """Key or value repeated for the query heads that share it: [batch, heads, k, d]."""
        groups = self.query.shape[1] // shared.shape[1]
        return shared if groups == 1 else shared.repeat_interleave(groups, 1)


class AttentionSlot(nn.Module, ABC):
    """The attention of one layer, from q, k and v to the output of its heads."""

    reads_int8 = False
    """Whether keys and values may be int8, as the cache of integer attention keeps them."""

    @abstractmethod
    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output [batch, heads, q, d] and the probabilities [batch, heads, q, k], or None without any."""


class SoftmaxSlot(AttentionSlot):
    """Attention by probabilities: `forward(z, valid)` makes them from logits, the rest is done here."""

    @abstractmethod
    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """Probabilities of logits [batch, heads, q, k]; masked positions get 0."""

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        p = self(inputs.logits, inputs.valid)
        kept = nn.functional.dropout(p, inputs.dropout, training=inputs.dropout > 0)
        return torch.matmul(kept, inputs.for_every_head(inputs.value)), p


class Observer(AttentionSlot):
    """Looks at what a layer hands to the slot `inner`, which then attends as if alone."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__()
        self.inner, self.reads_int8 = inner, inner.reads_int8

    @abstractmethod
    def observe(self, inputs: AttentionInputs) -> None:
        """Take note of the inputs."""

    @torch.compiler.disable  # what is observed goes into Python objects
    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.observe(inputs)
        return self.inner.attend(inputs)


class FloatSoftmax(SoftmaxSlot):
    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        return float_softmax(z, valid)


def float_softmax(z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """torch.softmax in float32 with a boolean mask, in z's dtype.

    >>> float_softmax(torch.zeros(1, 4), torch.tensor([True, True, False, False])).tolist()
    [[0.5, 0.5, 0.0, 0.0]]
    """
    if valid is None:
        return torch.softmax(z, -1, dtype=torch.float32).to(z.dtype)
    p = torch.softmax(z.masked_fill(~valid, torch.finfo(z.dtype).min), -1, dtype=torch.float32)
    return (p * valid).to(z.dtype)


class HeadSoftmax(SoftmaxSlot):
    """HCCS with the frozen parameters of one layer's heads.

    The parameters are buffers, so that they follow the model between devices, and not persistent: the table
    travels in the model's configuration.

    >>> table = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)
    >>> slot = HeadSoftmax(table, layer=0, mode=Mode.U8_DIV)
    >>> (slot(torch.tensor([[[[1.0, 0.3, -9.0]]]]), valid=None) * 255).round().int().tolist()
    [[[[138, 114, 1]]]]
    """

    theta: torch.Tensor
    scale_bits: torch.Tensor

    def __init__(self, table: ParamTable, layer: int, mode: Mode) -> None:
        super().__init__()
        self.mode = mode
        self.register_buffer("theta", torch.tensor(table.layer(layer).packed), persistent=False)
        # As bits: model.half() and model.to(bfloat16) would round a float buffer and move the quantiser's
        # steps.
        scale = torch.tensor(table.scale[layer], dtype=torch.float32)
        self.register_buffer("scale_bits", scale.view(torch.int32), persistent=False)

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        return hccs_softmax(z, self.theta, self.scale_bits.view(torch.float32), self.mode, valid)

    def theta_and_scale(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        scale = self.scale_bits.view(torch.float32).double()
        return torch.cat([self.theta.double(), scale[:, None]], -1).cpu().numpy()  # type: ignore[no-any-return]


class LearnableHeadSoftmax(SoftmaxSlot):
    """HCCS whose theta and scale are trained with the model, always inside the admissible region.

    What is learnt is the logarithm of each value's ratio to where it started, so that one learning rate suits
    all. A shift f stays as it is. The forward pass rounds and projects; gradients pass straight through both.
    """

    start: torch.Tensor

    def __init__(self, table: ParamTable, layer: int, mode: Mode) -> None:
        super().__init__()
        self.mode, self.region = mode, Region(table.n, table.sum_bits)
        values = np.concatenate([table.layer(layer).packed, table.scale[layer][:, None]], axis=-1)
        # A slope of 0 could never grow by a ratio: start it just below the rounding threshold.
        slopes = [1] if values.shape[-1] == ONE_LINE + 1 else [1, 3]
        values[:, slopes] = np.maximum(values[:, slopes], 0.49)
        self.register_buffer("start", torch.tensor(values, dtype=torch.float32), persistent=False)
        self.log_ratio = nn.Parameter(torch.zeros(values.shape))

    def rounded_parameters(self) -> tuple[torch.Tensor, torch.Tensor]:
        """theta [heads, 3] or [heads, 6], integers carried in float32, and scale [heads]."""
        real = self.start * self.log_ratio.clamp(-2, 2).exp()
        projected = self._projected(real.detach()[:, :-1].round())
        return real[:, :-1] + (projected - real[:, :-1]).detach(), real[:, -1]

    def _projected(self, theta: torch.Tensor) -> torch.Tensor:
        B, S, D, *second = theta.unbind(-1)
        none = torch.zeros_like(B)
        S2, D2, f = (second[0], second[1], self.start[:, 5]) if second else (none, none, none)
        unit = 2**f
        floor = self.region.floor * unit
        most = torch.where(f > 0, min(self.region.max_base, UINT8_MAX), self.region.max_base)
        top = ((most + 1) * unit - 1).clamp(max=INT16_MAX)
        D = D.clamp(1, MAX_DISTANCE)
        D2 = torch.minimum(D2.clamp(min=1), D)
        S = torch.minimum(S.clamp(0, MAX_SLOPE), ((top - floor) / D).floor())
        S2 = torch.minimum(S2.clamp(0, MAX_SLOPE), ((top - floor - S * D) / D2).floor())
        B = torch.minimum(torch.maximum(B, S * D + S2 * D2 + floor), top)
        return torch.stack([B, S, D, S2, D2, f][: theta.shape[-1]], -1)

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        theta, scale = self.rounded_parameters()
        return hccs_softmax(z, theta, scale, self.mode, valid)

    def theta_and_scale(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        with torch.no_grad():
            theta, scale = self.rounded_parameters()
        return torch.cat([theta, scale[:, None]], -1).double().cpu().numpy()  # type: ignore[no-any-return]
