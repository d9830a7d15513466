"""`AttentionSlot`: what runs inside an attention layer in place of its own attention.

A layer hands its slot one `AttentionInputs` and gets the output of its heads back. Three kinds of slot fill
all needs: a `SoftmaxSlot` turns logits into probabilities, an `Observer` looks on and passes what it sees to
the slot it wraps, and any other slot computes attention as it likes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import nn


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
