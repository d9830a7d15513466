"""`NarrowRows`: int16 or int32 rows to int8 rows with an exponent each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.layers import INT8_LIMIT, LONG_ROW_EXPONENTS, LONG_ROW_LIMIT, ROW_EXPONENTS
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.linear import narrow_rows

MOST_CHANNELS = 8192


@dataclass(frozen=True, eq=False)
class NarrowRows(Operator):
    """clamp(rhe(x / 2^e), -127, 127) and e, the bits of the row's largest magnitude beyond seven.

    With `scale` every channel of int16 rows is multiplied by its own first, in Q15: loud channels leave the
    others room.
    """

    inputs: tuple[str]
    output: str
    scale: NDArray[np.int16] | None = None

    def written(self, given: Sequence[Value]) -> Value:
        long = given[0].bits == 32
        self.require_rows_of(given[0], (16, 32), given[0].width)
        largest = given[0].largest
        self.require(largest <= LONG_ROW_LIMIT, f"to read magnitudes up to {LONG_ROW_LIMIT}", largest)
        self.require(given[0].width <= MOST_CHANNELS, f"at most {MOST_CHANNELS} channels", given[0].width)
        if self.scale is not None:
            fits = isinstance(self.scale, np.ndarray) and self.scale.dtype == np.int16
            fits = fits and self.scale.shape == (given[0].width,) and bool((self.scale > 0).all())
            self.require(fits, f"with {given[0].width} positive int16 scales", "others")
            self.require(not long, "int16 rows where channels have scales", given[0])
        exponents = LONG_ROW_EXPONENTS if long else ROW_EXPONENTS
        return Value(8, given[0].width, INT8_LIMIT, given[0].per_token, exponents)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return narrow_rows(given[0], self.scale)
