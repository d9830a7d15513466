"""Running a program in NumPy: by the reference, or with faster forms of the same integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.ops.attention import attention as native_attention
from hccs.program import operators as op
from hccs.reference.attention import attention as reference_attention
from hccs.reference.embedding import embed_patches, embedding
from hccs.reference.layer_norm import layer_norm
from hccs.reference.linear import finish, linear
from hccs.reference.requantise import add, narrow
from hccs.reference.table import look_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.numbers.multipliers import LinearParams


def run(
    program: op.Program,
    tokens: NDArray[Any],
    lengths: NDArray[np.int64],
    types: NDArray[np.int64],
    *,
    reference: bool = False,
    watch: Callable[[str, NDArray[Any]], None] | None = None,
) -> NDArray[np.int32]:
    """int32 scores [batch, labels] of checked ids [batch, n]; `watch` sees every value as it is made.

    Of a program with scores per token they are [batch, n, labels], zeros behind a sequence's length. In place
    of ids a program of images takes them, uint8 [batch, channels, height, width].

    With `reference` every operator is that of `hccs.reference`. Without, products are summed by a float64
    matrix product, exact below 2^53, and attention is `hccs.attention`: the same integers, sooner.
    """
    product: Callable[[Any, LinearParams], NDArray[Any]] = linear if reference else _linear_by_float64
    attention = reference_attention if reference else native_attention
    values: dict[str, NDArray[Any]] = {}
    made: NDArray[Any] = np.zeros(0, np.int32)
    for step in program.operators:
        given = [values[name] for name in step.inputs]
        match step:
            case op.Embed(params=params):
                positions = np.arange(tokens.shape[1]) + step.first_position
                made = embedding(tokens, positions[None], types, params, step.limit)
            case op.EmbedPatches(params=patches):
                made = embed_patches(tokens, patches, product)
            case op.LayerNorm(params=params):
                made = layer_norm(given[0], params)
            case op.Narrow(bits=bits):
                made = narrow(given[0], bits)
            case op.Linear(params=params):
                made = product(given[0], params)
            case op.Attention():
                made = _attend(attention, given[0], step, lengths)
            case op.Table(entries=entries):
                made = look_up(given[0], entries)
            case op.Add():
                made = add(given[0], given[1], step.limit)
            case op.First():
                made = given[0][:, 0]
        values[step.output] = made
        if watch is not None:
            watch(step.output, made)
    if program.per_token:
        made[np.arange(made.shape[1]) >= lengths[:, None]] = 0
    return made


def _linear_by_float64(x: NDArray[np.int8], layer: LinearParams) -> NDArray[Any]:
    products = x.astype(np.float64) @ layer.weight.T.astype(np.float64)
    return finish(products.astype(np.int64), layer)


def _attend(
    attention: Callable[..., Any], rows: NDArray[np.int8], step: op.Attention, lengths: NDArray[np.int64]
) -> NDArray[np.int8]:
    batch, n, width = rows.shape
    split = rows.reshape(batch, n, 3, step.heads, width // (3 * step.heads)).transpose(2, 0, 3, 1, 4)
    valid = np.broadcast_to(lengths[:, None, None], (batch, step.heads, n))
    out = attention(*split, step.theta, step.requant, valid=valid, causal=step.causal, out="int8")
    return np.ascontiguousarray(out.transpose(0, 2, 1, 3)).reshape(batch, n, width // 3)
