"""`reconstruct`: weights corrected by closed-form ridge regression from the float model.

The residual stream carries on what HCCS, or int8, changes in a layer. Two matrices of every layer write to
it: the attention's output projection and the second of the feed-forward part. Layer by layer both are solved
for, so that the stream after them is the float model's. No labels, no gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hccs._progress import track
from hccs.errors import DataError, ModelError, ParameterError
from hccs.nn.attaching import detach, unchanged
from hccs.nn.batches import call, listed, unwrapped
from hccs.nn.collecting import distributed
from hccs.nn.interface import NAME
from hccs.nn.lowering.families import KnownLayer, known_layers
from hccs.nn.lowering.parts import Dense, Layer, bias_of, weight_of
from hccs.nn.lowering.quantised import computes_integers
from hccs.nn.ridge import Chosen, RidgeFit, RidgeSums, choose
from hccs.nn.rounding import round_weights

HELD_BACK = 8
"""One sentence in this many chooses the ridge."""

KEPT = 2**29
"""Bytes of activations that are kept from solving a matrix to running it; beyond, they are computed twice."""


@dataclass(frozen=True)
class ReconstructedMatrix:
    """How `reconstruct` has changed one matrix."""

    layer: int
    matrix: str
    """"attention_output" or "narrow", the second of the feed-forward part."""
    ridge: float | None
    """Of the mean diagonal of its input's second moments; None where the matrix is as it was."""
    before: float
    """The mean squared error of the stream, per token, of held-back sentences."""
    after: float
    """The same with the matrix solved from the others."""


def reconstruct(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    teacher: nn.Module | None = None,
    held_back: int = HELD_BACK,
    compensate: bool = False,
) -> tuple[ReconstructedMatrix, ...]:
    """Correct the weights of a converted model in place, so that its residual stream is the float model's.

    `model` has HCCS attached, of one line or two, or runs inside `hccs.nn.quantised`; `teacher` is the float
    model, by default the model itself with its own softmax. `batches` need no labels; padding does not count.
    In every layer the output projection of the attention, then the second matrix of the feed-forward part,
    are those of

        min over W, b:  |(W_t c_t + b_t + x_t) - (W c + b + x)|^2 + ridge * |W - W_t|^2

    where t marks what the float model computes, and c and x are what the model computes after the corrected
    layers. One sentence in `held_back` chooses the ridge of every matrix, or that it stays. Only sums of
    products are kept of the activations; four states of the stream per token and at most 512 MiB of
    activations stay in memory, on the model's device. Under `torch.distributed` each process passes its own
    batches, and all get the same weights. The same batches give the same weights. Models whose layers are not
    known are refused.

    With `compensate`, inside `hccs.nn.quantised`, every matrix of a post-norm layer is rounded to its
    integers besides, column after column, each of which makes up for the rounding of those before it.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> import hccs.nn
    >>> _ = torch.manual_seed(0)
    >>> shape = dict(vocab_size=50, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    >>> model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, **shape)).eval()
    >>> batches = [{"input_ids": torch.randint(50, (64, 16))}]
    >>> table = hccs.calibrate(hccs.nn.collect(model, batches), n=16)
    >>> found = hccs.nn.reconstruct(hccs.nn.attach(model, table), batches)
    >>> [(m.layer, m.matrix, m.after <= m.before) for m in found]
    [(0, 'attention_output', True), (0, 'narrow', True)]
    """
    model = unwrapped(model)
    layers = known_layers(model)
    given = listed(batches)
    if held_back < 2:
        raise ParameterError("held_back of at least 2", str(held_back), f"{HELD_BACK} is the default.")
    teacher = _float_copy(model) if teacher is None else unwrapped(teacher)
    theirs = known_layers(teacher)
    if [_shape(layer) for layer in layers] != [_shape(layer) for layer in theirs]:
        raise ModelError("a teacher with the model's own layers", "other layers", "Pass the float model.")
    with ExitStack() as stack:
        for each in (model, teacher):
            stack.enter_context(unchanged(each))
            stack.enter_context(_without_cache(each))
            each.eval()
        stack.enter_context(torch.no_grad())
        states = _first_states(model, teacher, layers, theirs, given, held_back)
        return _solve_layers(layers, theirs, states, compensate)


def _float_copy(model: nn.Module) -> nn.Module:
    if computes_integers(model):
        raise ModelError(
            "the float model as teacher of a model in integers",
            "none",
            "Copy it before hccs.nn.quantised is entered: teacher=copy.deepcopy(model).",
        )
    if getattr(model.config, "_attn_implementation", None) != NAME:
        raise ModelError(
            "a model with HCCS attached, or its float model as teacher",
            "a model with its own softmax",
            "Call hccs.nn.attach(model, table) first.",
        )
    return detach(copy.deepcopy(model))


def _shape(layer: KnownLayer) -> tuple[torch.Size, torch.Size]:
    return weight_of(layer.parts.attention_output).shape, weight_of(layer.parts.narrow).shape


@dataclass
class _State:
    student: torch.Tensor
    teacher: torch.Tensor
    call: _Call
    teacher_call: _Call
    fitted: torch.Tensor
    """The places of its tokens in [batch * tokens] that are solved from."""
    held_back: torch.Tensor
    """Those that choose."""
    summed: torch.Tensor | None = None
    """The teacher's stream after the feed-forward part, before any LayerNorm."""
    context: torch.Tensor | None = None
    """What the student's output projection reads."""
    attended: torch.Tensor | None = None
    """The student's stream that the feed-forward part reads."""
    active: torch.Tensor | None = None
    """What the student's second matrix reads, where there is memory for it."""


@dataclass(frozen=True)
class _Call:
    """How a model calls its layers: all but the stream."""

    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, layer: nn.Module, stream: torch.Tensor) -> torch.Tensor:
        output = layer(stream, *self.arguments, **self.options)
        found: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return found


class _Reached(Exception):
    """The part of the model that was to run has run."""


def _first_states(
    model: nn.Module,
    teacher: nn.Module,
    layers: list[KnownLayer],
    theirs: list[KnownLayer],
    batches: list[Any],
    held_back: int,
) -> list[_State]:
    states, sentences = [], 0
    for batch in batches:
        student, how = _before(model, layers[0].module, batch)
        wanted, teacher_how = _before(teacher, theirs[0].module, batch)
        rows, tokens = student.shape[:2]
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        real = torch.ones(rows, tokens, dtype=torch.bool) if mask is None else mask.bool().cpu()
        chooses = ((sentences + torch.arange(rows)) % held_back == held_back - 1)[:, None]
        fitted, chosen = (
            (real & part).flatten().nonzero()[:, 0].to(student.device) for part in (~chooses, chooses)
        )
        states.append(_State(student, wanted, how, teacher_how, fitted, chosen))
        sentences += rows
    return states


def _before(model: nn.Module, first: nn.Module, batch: Any) -> tuple[torch.Tensor, _Call]:
    """What the first layer of a model is called with."""
    found: list[tuple[torch.Tensor, _Call]] = []

    def stop(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        rest = dict(options)
        stream = arguments[0] if arguments else rest.pop("hidden_states")
        found.append((stream, _Call(arguments[1:], rest)))
        raise _Reached

    handle = first.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with suppress(_Reached):
            call(model, batch)
    finally:
        handle.remove()
    if not found:
        raise ModelError("a model whose first layer runs", "one that passes it by", "Its weights stay.")
    return found[0]


def _round(modules: Sequence[Dense], states: list[_State], stream: str) -> None:
    """Round layers that read the stream `stream` of all states, each with regard to the others' inputs."""
    inputs = weight_of(modules[0]).shape[1]
    fit = RidgeFit(inputs, 0, weight_of(modules[0]).device)
    for state in states:
        c = getattr(state, stream).flatten(0, -2).float()
        fit.add(c, c[:, :0], state.fitted, state.held_back)
    sums = _sums(fit)
    for module in modules:
        round_weights(module, sums)


def _sums(fit: RidgeFit) -> RidgeSums:
    fitted, held_back = fit.finished()
    both = fitted + held_back
    if distributed():
        both.all_reduce()
    return both


def _solve_layers(
    layers: list[KnownLayer], theirs: list[KnownLayer], states: list[_State], compensate: bool
) -> tuple[ReconstructedMatrix, ...]:
    found: list[ReconstructedMatrix] = []
    for i, (layer, their) in enumerate(zip(layers, theirs, strict=True)):
        parts = layer.parts
        attention, narrow = _fit(parts.attention_output), _fit(parts.narrow)
        tokens = sum(state.student.shape[:2].numel() for state in states)
        keeps = 4 * tokens * weight_of(parts.narrow).shape[1] <= KEPT
        rounds = parts if compensate and not parts.norm_first else None
        if rounds is not None:
            _round(rounds.qkv, states, "student")
        for state in track(states, total=len(states), description=f"layer {i}: attention"):
            attended = _run_teacher(their, state)
            state.context = _context(layer, state)
            _add(attention, state, parts.attention_output, state.context, attended - state.student)
        found.append(_solve(parts.attention_output, attention, i, "attention_output"))
        if rounds is not None:
            round_weights(rounds.attention_output, _sums(attention))
            for state in states:
                assert state.context is not None
                state.attended = _after_attention(parts, state.student, state.context)
            _round((rounds.wide,), states, "attended")
        for state in track(states, total=len(states), description=f"layer {i}: feed-forward"):
            assert state.context is not None and state.summed is not None
            if state.attended is None:
                state.attended = _after_attention(parts, state.student, state.context)
            active = _active(parts, state.attended)
            _add(narrow, state, parts.narrow, active, state.summed - state.attended)
            state.context = state.summed = None
            # In integers a pre-norm layer adds to the stream that its LayerNorm has read last.
            state.active = active if keeps and not parts.norm_first else None
        found.append(_solve(parts.narrow, narrow, i, "narrow"))
        if rounds is not None:
            round_weights(rounds.narrow, _sums(narrow))
        if i + 1 < len(layers):
            _require_parts(layer, states[0])
            for state in states:
                assert state.attended is not None
                state.student = _after_layer(parts, state.attended, state.active)
                state.attended = state.active = None
    return tuple(found)


def _after_attention(parts: Layer, stream: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """The stream that the feed-forward part reads, from the stream before and the heads' output."""
    if not parts.norm_first:
        return parts.attention_norm(parts.attention_output(context) + stream)  # type: ignore[no-any-return]
    parts.attention_norm(stream)  # in integers the output layer adds to what this LayerNorm has read last
    return parts.attention_output(context) + stream  # type: ignore[no-any-return]


def _active(parts: Layer, stream: torch.Tensor) -> torch.Tensor:
    """What the second matrix of the feed-forward part reads."""
    read = parts.wide_norm(stream) if parts.norm_first else stream
    return parts.activation(parts.wide(read))  # type: ignore[no-any-return]


def _after_layer(parts: Layer, stream: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
    total = parts.narrow(_active(parts, stream) if active is None else active) + stream
    return total if parts.norm_first else parts.wide_norm(total)  # type: ignore[no-any-return]


def _require_parts(layer: KnownLayer, state: _State) -> None:
    """Refuse a layer that computes something else than its parts in their usual order."""
    assert state.attended is not None
    expected, found = state.call(layer.module, state.student), _after_layer(layer.parts, state.attended)
    places = torch.cat([state.fitted, state.held_back])
    expected, found = (part.flatten(0, -2)[places].float() for part in (expected, found))
    if not torch.allclose(expected, found, rtol=1e-2, atol=1e-2 * float(expected.abs().mean())):
        raise ModelError(
            "layers of attention and a feed-forward part alone",
            f"{type(layer.module).__name__}, which computes more",
            "Its weights stay as they are: calibrate, refine or retrain it.",
        )


def _run_teacher(layer: KnownLayer, state: _State) -> torch.Tensor:
    """The teacher's stream after attention; its stream after the layer goes into the state."""
    parts = layer.parts
    kept: dict[str, torch.Tensor] = {}
    if not parts.norm_first:
        readers = {"attended": parts.attention_norm, "summed": parts.wide_norm}
    else:
        readers = {"attended": parts.wide_norm}
    with ExitStack() as stack:
        for name, reader in readers.items():
            stack.enter_context(_hooked(reader, lambda x, name=name: kept.__setitem__(name, x)))
        state.teacher = state.teacher_call(layer.module, state.teacher)
    state.summed = kept.get("summed", state.teacher)  # a pre-norm layer returns the stream itself
    return kept["attended"]


def _context(layer: KnownLayer, state: _State) -> torch.Tensor:
    """What the output projection of the student's attention reads; the layer does not run further."""
    kept: list[torch.Tensor] = []

    def stop(x: torch.Tensor) -> None:
        kept.append(x)
        raise _Reached

    with _hooked(layer.parts.attention_output, stop), suppress(_Reached):
        state.call(layer.module, state.student)
    return kept[0]


@contextmanager
def _hooked(module: nn.Module, see: Any) -> Iterator[None]:
    handle = module.register_forward_pre_hook(lambda _, inputs: see(inputs[0]))
    try:
        yield
    finally:
        handle.remove()


def _fit(matrix: Dense) -> RidgeFit:
    outputs, inputs = weight_of(matrix).shape
    return RidgeFit(inputs, outputs, weight_of(matrix).device)


def _add(fit: RidgeFit, state: _State, matrix: Dense, c: torch.Tensor, wanted: torch.Tensor) -> None:
    """Count what the matrix, as it is, lacks of what it should write."""
    c, wanted = (part.flatten(0, -2).float() for part in (c, wanted))
    lacking = wanted - torch.addmm(bias_of(matrix).float(), c, weight_of(matrix).float().T)
    fit.add(c, lacking, state.fitted, state.held_back)


def _solve(matrix: Dense, fit: RidgeFit, layer: int, name: str) -> ReconstructedMatrix:
    fitted, held_back = fit.finished()
    if distributed():
        fitted.all_reduce()
        held_back.all_reduce()
    if not (fitted.is_finite() and held_back.is_finite()):
        raise DataError(
            "finite activations", f"NaN or infinity in layer {layer}", "Look for an overflow in the model."
        )
    if float(held_back.tokens) == 0:
        raise DataError(
            "enough sentences to hold some back", "none held back", "Pass more, or a smaller held_back."
        )
    has_bias = getattr(matrix, "bias", None) is not None
    chosen: Chosen = choose(fitted, held_back, bias=has_bias)
    if chosen.ridge is not None:
        weight = weight_of(matrix)  # the transposed view of a Conv1D's weight is written in place, too
        weight.copy_(weight.double() + chosen.weight)
        if has_bias:
            matrix.bias.copy_(matrix.bias.double() + chosen.bias)
    count = float(held_back.tokens)
    return ReconstructedMatrix(layer, name, chosen.ridge, chosen.before / count, chosen.after / count)


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """A decoder's layers run more than once over the same tokens: nothing may be remembered."""
    config: Any = model.config
    before = getattr(config, "use_cache", None)
    if before is not None:
        config.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            config.use_cache = before
