"""Attention in integers from q, k and v to its output, for inference: `hccs.attention` in a model's layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import hccs
from hccs.errors import ModelError
from hccs.nn.slots import AttentionInputs, AttentionSlot
from hccs.numbers.modes import Mode
from hccs.numbers.requant import Requant
from hccs.numbers.table import ParamTable
from hccs.ops.cached import append_and_attend, last_rows
from hccs.ops.quantise import by_factors

NORMALISATION = {Mode.I16_DIV: None, **{mode: mode for mode in Mode if mode.is_u8}}
"""How `hccs.attention` normalises for a model of each mode. For i16_div it defers the division to the output,
where i16_div rounds the reciprocal down. i16_clb has no integer form."""

APPENDED = "hccs_appended"
"""The attribute of a cache's keys: the k and v still to be quantised into its last rows, or nothing."""

END = "hccs_end"
"""The attribute of keys that have room for more: where they end, int32 [1] on the GPU."""

HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""Outputs that `hccs.attention` rounds itself, without a float32 tensor in between."""


class IntegerAttention(AttentionSlot):
    """The attention of one layer on int8 q, k and v with static scales. Refuses to train."""

    factor_bits: torch.Tensor
    reads_int8 = True

    def __init__(self, table: ParamTable, layer: int, mode: Mode) -> None:
        super().__init__()
        if table.qkv_scale is None:
            raise ModelError(
                "a table with the scales of q, k and v",
                "one without",
                "Add them with hccs.nn.calibrate_operands; in a run, by calling hccs convert on it again.",
            )
        if mode not in NORMALISATION:
            raise ModelError(
                f"integer attention in mode {', '.join(m.value for m in NORMALISATION)}",
                mode.value,
                "Its outputs need 16 bits; i16_div has the exact quotient without them.",
            )
        self.mode = NORMALISATION[mode]
        self.theta, self.logit_scale = table.layer(layer), table.scale[layer]
        self.qkv_scale = table.qkv_scale[layer]
        # As bits: model.half() and model.to(bfloat16) would round a float buffer.
        factors = torch.tensor(1 / self.qkv_scale.T, dtype=torch.float32)
        self.register_buffer("factor_bits", factors.view(torch.int32), persistent=False)
        self._requant_by_scaling: dict[float, Requant] = {}
        self._factors_by_sharing: dict[int, tuple[Any, tuple[torch.Tensor, ...]]] = {}
        self.reads_cache = False
        """Whether attention has read a cache's own tensor before: it will again."""

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        # To disable what is not being compiled takes longer than this question.
        return self._untraced(inputs) if torch.compiler.is_compiling() else self._attend(inputs)

    @torch.compiler.disable  # the kernels take arrays, which a traced graph does not have
    def _untraced(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._attend(inputs)

    def _attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.training:
            raise ModelError(
                "a model in evaluation mode",
                "one in training mode",
                "Integer attention has no gradient: model.eval(), or train with backend='float'.",
            )
        if inputs.softcap is not None:
            raise ModelError(
                "logits that are q times k", f"softcap = {inputs.softcap}", "Attach with backend='float'."
            )
        given = inputs.query, inputs.key, inputs.value, inputs.valid, inputs.causal, inputs.scaling
        if not torch.is_grad_enabled():
            return self.output(*given), None
        output: torch.Tensor = _WithoutGradient.apply(self, *given)
        return output, None

    def output(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        valid: torch.Tensor | None,
        causal: bool,
        scaling: float,
    ) -> torch.Tensor:
        factors, requant = self._factors(key.shape[1]), self.requant(scaling)
        rows = None if causal else valid if valid is None or valid.is_cuda else as_lengths(valid)
        asked: Any = {"valid": rows, "causal": causal, "mode": self.mode}
        asked["out"] = HALVES.get(query.dtype, "float32")
        new = self._appended(key)
        out: torch.Tensor
        if new:
            asked["end"] = getattr(key, END, None)
            out = append_and_attend((query, *new), factors, key, value, self.theta, requant, **asked)
        else:
            q, k, v = self.integers(query, key, value)
            threads = None if q.is_cuda else _threads()
            out = hccs.attention(q, k, v, self.theta, requant, **asked, threads=threads)
        return out if out.dtype is query.dtype else out.to(query.dtype)

    def integers(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """int8 q, k and v; keys and values that a cache keeps are int8 already."""
        given = (query,) if key.dtype == torch.int8 else (query, key, value)
        made = [torch.empty(x.shape, dtype=torch.int8, device=x.device) for x in given]
        by_factors([*zip(given, self._factors(key.shape[1]), made, strict=False)])
        k, v = made[1:] or (key, value)
        return made[0], k, v

    def _appended(self, key: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The k and v that a cache waits to see quantised into it, before its keys are read here."""
        appended: tuple[torch.Tensor, ...] | None = getattr(key, APPENDED, None)
        if appended is None:
            return ()
        if not self.reads_cache:  # modules take their time to set anything
            self.reads_cache = True
        setattr(key, APPENDED, ())
        return appended

    def append(self, new: tuple[torch.Tensor, ...], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Quantise k and v into the last rows of a cache, which all its keys and values end with.

        Where attention has read a cache's own tensor before, it will again, and does this together with q.
        """
        waits = self.reads_cache and keys.is_cuda and not torch.compiler.is_compiling()
        setattr(keys, APPENDED, new if waits else ())
        if not waits:
            self.write(new, keys, values)

    def write(self, new: tuple[torch.Tensor, ...], keys: torch.Tensor, values: torch.Tensor) -> None:
        """`append` at once."""
        factors, kept = self._factors(keys.shape[1])[1:], (keys, values)
        by_factors([(x, factor, last_rows(k, x)) for x, factor, k in zip(new, factors, kept, strict=True)])

    def _factors(self, key_heads: int) -> tuple[torch.Tensor, ...]:
        """Of q, k and v. Query heads that share k and v share their scales."""
        bits: Any = self._buffers["factor_bits"]  # quicker than by its name
        known = self._factors_by_sharing.get(key_heads)
        if known is None or known[0] is not bits:  # which model.to() replaces
            shared = bits.shape[1] // key_heads
            self._require_one_scale(shared)
            every = bits.view(torch.float32)
            known = self._factors_by_sharing[key_heads] = bits, (every[0], *every[1:, ::shared])
        return known[1]

    def _require_one_scale(self, shared: int) -> None:
        groups = self.qkv_scale[:, 1:].reshape(-1, shared, 2)
        if (groups != groups[:, :1]).any():
            raise ModelError(
                f"one scale of k and one of v for every {shared} query heads, which share them in this model",
                "a table whose scales differ among them",
                "Measure them on this model: hccs.nn.calibrate_operands.",
            )

    def requant(self, scaling: float) -> Requant:
        """The fixed-point factors of the layer's heads, where attention multiplies q.k by `scaling`."""
        if scaling not in self._requant_by_scaling:
            q_scale, k_scale, v_scale = self.qkv_scale.T
            self._requant_by_scaling[scaling] = Requant.from_scales(
                q_scale=q_scale,
                k_scale=k_scale,
                v_scale=v_scale,
                logit_scale=self.logit_scale,
                scaling=scaling,
            )
        return self._requant_by_scaling[scaling]

    def theta_and_scale(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.concatenate([self.theta.packed.astype(np.float64), self.logit_scale[:, None]], axis=-1)


def as_lengths(valid: torch.Tensor) -> Any:
    """Row lengths in place of a mask [..., q, k] whose rows all begin with what they attend to, or the mask.

    Padding at the end and causal rows are such, and kernels skip what lies beyond a length.
    """
    # NumPy takes booleans at the speed of bytes.
    mask = valid.numpy()
    if (mask[..., 1:] & ~mask[..., :-1]).any():
        return valid
    return np.where(mask[..., -1], mask.shape[-1], mask.argmin(-1))


def _threads() -> int | None:
    """One where torch may use only one; else the kernels decide."""
    return 1 if torch.get_num_threads() == 1 else None


class _WithoutGradient(torch.autograd.Function):
    """Passes integers forward; a gradient that comes back is refused instead of being lost in silence."""

    @staticmethod
    def forward(ctx: Any, layer: IntegerAttention, *given: Any) -> torch.Tensor:
        return layer.output(*given)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ModelError(
            "inference only", "a backward pass", "Attach with backend='float' to train, then 'integer' again."
        )
