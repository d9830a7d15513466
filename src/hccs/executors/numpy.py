"""Running a program in NumPy: by the reference, or with faster forms of the same integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.score_tables import ScoreTable
from hccs.ops.attention import attention
from hccs.program import operators as op
from hccs.program.program import Program
from hccs.reference.embedding import embed_patches
from hccs.reference.linear import finish, finish_rows

if TYPE_CHECKING:
    from hccs.numbers.layers import LinearParams


def _linear(x: NDArray[np.int8], layer: LinearParams) -> NDArray[Any]:
    """The product by float64, exact below 2^53; rows may have an exponent in one more column."""
    inputs = layer.weight.shape[1]
    products = (x[..., :inputs].astype(np.float64) @ layer.weight.T.astype(np.float64)).astype(np.int64)
    if x.shape[-1] > inputs:
        return finish_rows(products, x[..., inputs:].astype(np.int64), layer)
    return finish(products, layer)


def _attention(step: op.Attention, given: list[NDArray[Any]], batch: op.Batch) -> NDArray[Any]:
    """By the fastest backend, which takes lines alone; the reference looks scores up as fast as NumPy can."""
    if isinstance(step.theta, ScoreTable):
        return step.run(given, batch)
    return step.attend(attention, given[0], batch)


FASTER: dict[type[op.Operator], Callable[[Any, Any, op.Batch], NDArray[Any]]] = {
    op.Linear: lambda step, given, batch: _linear(given[0], step.params),
    op.Attention: _attention,
    op.EmbedPatches: lambda step, given, batch: embed_patches(batch.tokens, step.params, _linear),
}
"""Faster forms of operators; all others run by their own reference."""


def run(
    program: Program,
    batch: op.Batch,
    *,
    reference: bool = False,
    watch: Callable[[str, NDArray[Any]], None] | None = None,
) -> NDArray[np.int32]:
    """int32 scores [batch, labels] of a checked input; `watch` sees every value as it is made.

    Scores per token are [batch, n, labels], zeros after a sequence's length; of tokens that a cache precedes
    the last one's alone, [batch, labels]. With `reference` every operator is that of `hccs.reference`;
    without, the same integers come sooner.
    """
    values: dict[str, NDArray[Any]] = {}
    mixing = [i for i, step in enumerate(program.operators) if step.mixes_rows]
    cut = max(mixing, default=0) + 1 if batch.cache is not None else None
    for number, step in enumerate(program.operators):
        if number == cut:
            rows = np.arange(len(batch.lengths)), batch.lengths - 1
            values = {name: value[rows][:, None] for name, value in values.items()}
            batch = batch.last_rows()
        given = [values[name] for name in step.inputs]
        faster = None if reference else FASTER.get(type(step))
        values[step.output] = made = faster(step, given, batch) if faster else step.run(given, batch)
        if watch is not None:
            watch(step.output, made)
    if cut is not None:
        return made[:, 0]
    if program.per_token:
        made[np.arange(made.shape[1]) >= batch.lengths[:, None]] = 0
    return made
