"""Methods whose row is a weight per distance from the maximum, then one normalisation.

On int8 logits the distance m - x takes 256 values, so the weights of a head are a table of 256 entries. The
NumPy reference computes every weight by the method's equations; the PyTorch form reads the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs_lab.surrogates.rows import distance, look_up
from hccs_lab.surrogates.surrogate import Output, Surrogate, per_row, scale_alone, softmax_gradient

DISTANCES = np.arange(256)


def by_distance(
    *,
    weights: Callable[..., NDArray[Any]],
    normalise: Callable[..., Any] = lambda w, total: w / total,
    one: int | Callable[..., int] | None = None,
    constants: Callable[..., dict[str, Any]] = scale_alone,
    summand: Callable[[Any], Any] = lambda w: w,
    **declared: Any,
) -> Surrogate:
    """A surrogate from `weights(d, **constants)`, NumPy, and `normalise(w, total, **words)`: the quotient.

    `normalise` and `summand`, what of a weight goes into the sum, are written with operators alone, so that
    they serve arrays and tensors. `total` is at least one unit of weight, even for an empty row; `words` are
    the constants that are words, of which `one` may be a function.
    """

    def with_table(scale: NDArray[np.float64], **parameters: Any) -> dict[str, Any]:
        made = constants(scale, **parameters)
        table = weights(DISTANCES, **per_row(made, scale.ndim))
        table = np.broadcast_to(table, (*scale.shape, 1, DISTANCES.size))
        return {**made, "table": table[..., 0, :]}

    def rows(x: NDArray[np.int8], valid: NDArray[np.bool_], table: Any, **made: Any) -> Output:
        w = np.where(valid, weights(distance(x, valid), **made), 0)
        return finished(w, summand(w).sum(-1, keepdims=True), made)

    def tensor(x: Any, valid: Any, table: Any, **made: Any) -> Output:
        w = look_up(table, distance(x, valid)) * valid
        return finished(w, summand(w).sum(-1, keepdim=True), made)

    def finished(w: Any, total: Any, made: dict[str, Any]) -> Output:
        words = {name: value for name, value in made.items() if isinstance(value, str)}
        # Rows without any valid column, whose weights are all 0, get a sum of 1.
        values = normalise(w, total + (total == 0), **words)
        return Output(values, one(**words) if callable(one) else one)

    return Surrogate(rows=rows, tensor=tensor, constants=with_table, smooth=softmax_gradient, **declared)
