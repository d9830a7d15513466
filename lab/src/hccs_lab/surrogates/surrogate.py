"""`Surrogate`: one published replacement of softmax, as its file declares it, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._extras import how_to_install
from hccs.errors import MissingExtraError, ParameterError
from hccs_lab.surrogates.costs import Costs
from hccs_lab.surrogates.rows import checked_heads, checked_logits

REQUIRED = object()
"""In `Surrogate.parameters`: a parameter that has no default and comes from `calibrate`."""


@dataclass(frozen=True)
class Output:
    """What a method's arithmetic returns: values, and the integer that stands for one (None for floats)."""

    values: Any
    one: int | None = None


@dataclass(frozen=True)
class Result:
    """Probabilities of rows of logits, in the method's own output format."""

    probabilities: NDArray[np.float64]
    """A float64 view of the output; masked positions are 0. It need not sum to one."""
    integers: NDArray[Any] | None
    """The integers the method puts out; None when its output is not an integer."""
    unit: float | None
    """The probability that one step of `integers` stands for."""


def scale_alone(scale: NDArray[np.float64], **parameters: Any) -> dict[str, Any]:
    return {"scale": scale}


@dataclass(frozen=True)
class Surrogate:
    """A method: call it on int8 logits, calibrate its parameters, make its PyTorch module.

    The functions a file supplies work on two or more dimensions, one entry of every constant per head:

    - `constants(scale, **parameters)`: what is computed ahead of time, in float64, per head: arrays of
      scale's shape, tables with one more axis. `rows` and `tensor` receive them shaped to broadcast. By
      default the scale itself.
    - `rows(x, valid, **constants)`: the NumPy reference, on int8 x [..., q, k] and a full boolean mask.
      Masked positions of its result are zeroed by the caller of `rows`.
    - `tensor(x, valid, **constants)`: the same on torch tensors; x is int8 when `quantises`, else the float
      logits themselves.
    - `smooth(z, valid, **parameters)`: the differentiable function whose gradient stands in for that of
      `tensor` (straight-through); None when `tensor` is differentiable itself.
    - `candidates`: a parameter and its values, or a function of the scale that gives them, of which
      calibration takes the one of least divergence from softmax for every head.
    - `fit(x, scale, valid)`: the parameters of every head for these logits, where no such search finds them.
    - `costs_by(**parameters)`: the declared costs where parameters change them; None when none does.
    """

    name: str
    costs: Costs
    rows: Callable[..., Output]
    tensor: Callable[..., Output]
    constants: Callable[..., dict[str, Any]] = scale_alone
    smooth: Callable[..., Any] | None = None
    quantises: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)
    learnable: Mapping[str, float] = field(default_factory=dict)
    """Parameters that training changes together with the model, and the least value each may take."""
    candidates: tuple[str, Any] | None = None
    fit: Callable[..., dict[str, Any]] | None = None
    costs_by: Callable[..., Costs] | None = None
    attends: Callable[..., Any] | None = None
    """For a method that changes the attention output: builds its module from (scale, parameters)."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: the functions of a method are its file's, and a saved model need not carry them.
        from hccs_lab.surrogates.registry import get

        return get, (self.name,)

    def __call__(self, x: Any, scale: Any, valid: Any = None, **params: Any) -> Result:
        """Probabilities of int8 logits `x` [..., k] whose int8 step is worth `scale`.

        `scale` and every parameter are numbers or arrays that broadcast against x.shape[:-2], so that
        [heads] serves [batch, heads, q, k]. `valid` is a boolean mask that broadcasts to x.shape or integer
        row lengths that broadcast to x.shape[:-1]; other columns take no part and get 0.
        """
        logits, mask = checked_logits(x, valid)
        matrix = logits if logits.ndim > 1 else logits[None]
        mask = mask.reshape(matrix.shape)
        heads, words = self.checked_heads(scale, params, matrix.shape[:-2])
        constants = self.constants(**heads, **words)
        output = self.rows(matrix, mask, **per_row(constants, heads["scale"].ndim))
        values = np.where(mask, output.values, output.values.dtype.type(0)).reshape(logits.shape)
        if output.one is None:
            return Result(values.astype(np.float64), None, None)
        return Result(values / output.one, values, 1 / output.one)

    def checked_heads(
        self, scale: Any, params: Mapping[str, Any], lead: tuple[int, ...] | None = None
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, str]]:
        """Scale and numeric parameters as arrays of one shape, one entry per head; and the words."""
        given = self.checked_parameters(params)
        words = {name: value for name, value in given.items() if isinstance(value, str)}
        numbers = {name: value for name, value in given.items() if name not in words}
        return checked_heads({"scale": scale, **numbers}, lead), words

    def checked_parameters(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults completed by `params`; foreign and missing names are refused."""
        names = ", ".join(self.parameters) or "none"
        foreign = [name for name in params if name not in self.parameters]
        if foreign:
            raise ParameterError(
                f"parameters of {self.name}: {names}", ", ".join(foreign), "Leave the others out."
            )
        given = {**self.parameters, **params}
        missing = [name for name, value in given.items() if value is REQUIRED]
        if missing:
            raise ParameterError(
                f"parameters of {self.name}: {names}",
                f"no {', '.join(missing)}",
                f"hccs_lab.surrogates.get({self.name!r}).calibrate(x, scale, valid) finds them.",
            )
        return given

    def costs_with(self, **params: Any) -> Costs:
        """What the method declares when these parameters are given: `costs` unless they change it."""
        return self.costs if self.costs_by is None else self.costs_by(**params)

    def calibrate(self, x: Any, scale: Any, valid: Any = None) -> dict[str, Any]:
        """Parameters of every head fitted to int8 logits `x` [..., heads, q, k] and their `scale` [heads].

        Each head's minimise the mean of KL(softmax(x * scale) || method) over its rows (the method's file
        tells where another measure stands in). A method without parameters returns {}. What comes back goes
        into the call and into `module` as it is; x [layers, heads, rows, k] with scale [layers, heads]
        works alike.
        """
        if self.fit is None and self.candidates is None:
            return {}
        logits, mask = checked_logits(x, valid)
        if logits.ndim < 2:
            logits, mask = logits[None], mask[None]
        scales = checked_heads({"scale": scale}, logits.shape[:-2])["scale"]
        if self.fit is not None:
            return self.fit(logits, scales, mask)
        from hccs_lab.surrogates.fitting import best_candidate

        assert self.candidates is not None
        name, values = self.candidates

        def evaluate(value: NDArray[np.float64]) -> Result:
            return self(logits, scales, mask, **{name: value})

        listed = values(scales) if callable(values) else values
        return {name: best_candidate(evaluate, listed, logits, scales, mask)}

    def module(self, scale: Any, params: Mapping[str, Any] | None = None) -> Any:
        """A torch.nn.Module (z, valid) -> p on float logits [batch, heads, q, k], for `hccs.nn.fill`.

        `scale` [heads] is the int8 step of each head, `params` what `calibrate` returned for it.
        """
        try:
            from hccs_lab.surrogates.modules import SurrogateModule
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "PyTorch for the module of a surrogate",
                f"no module {error.name}",
                how_to_install("torch"),
            ) from error
        if self.attends is not None:
            return self.attends(scale, self.checked_parameters(params or {}))
        return SurrogateModule(self, scale, params or {})


def per_row(constants: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Constants of `heads` dimensions, or one more for tables, shaped to meet [..., q, k]; words stay."""
    return {
        name: value if isinstance(value, str) else value[..., None, :] if value.ndim > heads
        else value[..., None, None]
        for name, value in constants.items()
    }  # fmt: skip


def softmax_gradient(z: Any, valid: Any, **parameters: Any) -> Any:
    """Float softmax in torch: the `smooth` of every method that is meant to compute softmax."""
    from hccs.nn.slots import float_softmax

    return float_softmax(z, valid)
