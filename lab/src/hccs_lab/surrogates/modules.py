"""Methods as slots that stand in for softmax inside an attention layer, and ReLA's, which attends itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs.nn.functional import quantise
from hccs.nn.slots import AttentionInputs, AttentionSlot, SoftmaxSlot
from hccs.nn.training import straight
from hccs.ops.arguments import not_finite
from hccs.ops.quantise import INT8_MAX, INT8_MIN, divided
from hccs_lab.surrogates.rows import FAR_BELOW
from hccs_lab.surrogates.surrogate import Surrogate, per_row


class SurrogateModule(SoftmaxSlot):
    """Float logits [batch, heads, q, k] in, the method's probabilities out, in the logits' dtype.

    The forward pass is the method's exact arithmetic. Gradients are those of the method itself where it is
    differentiable and those of its `smooth` function where it is not; the quantiser passes them straight
    through inside its range. Parameters that the method learns are trained in the smooth function, as their
    sources do, and take effect in the exact arithmetic as soon as the module is put in evaluation mode.
    """

    def __init__(self, surrogate: Surrogate, scale: Any, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.surrogate = surrogate
        heads, self.words = surrogate.checked_heads(scale, params)
        self.numbers = {name: torch.tensor(value) for name, value in heads.items()}
        self.learnt = nn.ParameterDict(
            {name: nn.Parameter(self.numbers[name].float()) for name in surrogate.learnable}
        )
        self.constants: dict[str, Any] = {}
        self.made_for: Any = None

    def extra_repr(self) -> str:
        return self.surrogate.name

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        require_numbers(z)
        method = self.surrogate
        mask = torch.ones_like(z, dtype=torch.bool) if valid is None else valid.expand(z.shape)
        smooth = self._smooth(z, mask) if method.smooth is not None and torch.is_grad_enabled() else None
        if smooth is not None and self.training and method.learnable:
            return smooth * mask
        given = quantise(z.detach(), self._number("scale", z)) if method.quantises else z
        output = method.tensor(given, mask, **self._constants(z))
        p = output.values if output.one is None else output.values.to(z.dtype) / output.one
        p = p.to(z.dtype) * mask
        return p if smooth is None else straight(smooth, p)

    def _smooth(self, z: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        method = self.surrogate
        assert method.smooth is not None
        scale = self._number("scale", z)
        logits = quantised(z, scale) if method.quantises else z
        values = {
            name: self._learnt(name) if name in self.learnt else value.to(z.device)
            for name, value in self.numbers.items()
            if name != "scale"
        }
        smooth: torch.Tensor = method.smooth(logits, mask, **per_row(values, scale.ndim), **self.words)
        return smooth.to(z.dtype)

    def _number(self, name: str, like: torch.Tensor) -> torch.Tensor:
        return self.numbers[name].to(like.device)

    def _learnt(self, name: str) -> torch.Tensor:
        """A learnt parameter within its bound; the gradient passes, so that it can come back."""
        value: torch.Tensor = self.learnt[name]
        bounded = value.detach().clamp(min=self.surrogate.learnable[name])
        return straight(value, bounded)

    def parameters_now(self) -> dict[str, Any]:
        """The parameters of every head as they are now, after any learning: what `calibrate` returns."""
        now = {name: value.numpy() for name, value in self.numbers.items() if name != "scale"}
        learnt = {name: self._learnt(name).detach().double().cpu().numpy() for name in self.learnt}
        return {**now, **learnt, **self.words}

    def _constants(self, like: torch.Tensor) -> dict[str, Any]:
        """The constants on the logits' device, recomputed only after the parameters have changed."""
        version = (like.device, *(parameter._version for parameter in self.learnt.values()))
        if self.made_for != version:
            scale = self.numbers["scale"].numpy()
            made = self.surrogate.constants(scale, **self.parameters_now())
            shaped = per_row(made, scale.ndim)
            self.constants = {
                name: value if isinstance(value, str) else torch.tensor(np.asarray(value), device=like.device)
                for name, value in shaped.items()
            }
            self.made_for = version
        return self.constants


class RectifiedAttention(AttentionSlot):
    """Gated, RMS-normalised ReLU attention of one layer's heads."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(heads, 1, width))
        self.gate = nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """The scores ReLU(z) of logits [batch, heads, q, k]; masked positions get 0."""
        require_numbers(z)
        return z.relu() if valid is None else z.relu() * valid

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self(inputs.logits, inputs.valid)
        o = torch.matmul(scores, inputs.for_every_head(inputs.value))
        # A token's heads lie side by side when the root mean square is taken: over heads and channels.
        mean_square = o.float().square().mean((1, 3), keepdim=True)
        normalised = o * torch.rsqrt(mean_square + 1e-8).to(o.dtype)
        gain, gate = self.gain.to(o.dtype), self.gate.to(o.dtype)
        return gain * normalised * torch.sigmoid(gate * o), scores


def far_below(z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Logits in float32 or wider, masked columns far below; `entmax` subtracts the maximum itself."""
    return z.to(torch.promote_types(z.dtype, torch.float32)).masked_fill(~valid, FAR_BELOW)


def require_numbers(z: torch.Tensor) -> None:
    """Refuse NaN, which would become an integer silently."""
    if bool(z.isnan().any()):
        raise not_finite()


def quantised(z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The logits as int8 steps of `scale` tell them, in z's dtype: gradient 1 inside the range, 0 outside."""
    inside = divided(z, scale).clamp(INT8_MIN, INT8_MAX)
    steps = scale[..., None, None].to(inside.dtype)
    return ((inside + (inside.round() - inside).detach()) * steps).to(z.dtype)
