"""`Last`: the last token of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hccs.program.operators.operator import Array, Batch, OneRow


@dataclass(frozen=True, eq=False)
class Last(OneRow):
    """Rows of all tokens to the row of each sequence's last token."""

    inputs: tuple[str]
    output: str

    mixes_rows = True

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return given[0][np.arange(len(given[0])), batch.lengths - 1]
