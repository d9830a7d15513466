"""HCCS of two lines, with int16 scores: ours, nearly an exponential and calibrated without training.

    s_i = B - S * min(m - x_i, D) - S2 * min(m - x_i, D2),    p_hat_i = s_i * rho,    rho ~ T / sum s

in the modes of docs/spec.md (parameter `mode`), the wide form. (B, S, D, S2, D2, f) are integers per head
from the calibration of two lines.
Widths: int8 in, int16 scores, sums of 24 bits, int16 or uint8 out. Needs: what `hccs` does, and for
each element a clip, a multiplication, a subtraction and a shift more.
Differentiable straight through, as `hccs.nn.hccs_softmax`.
"""

from __future__ import annotations

from functools import partial

from hccs.surrogates import hccs
from hccs.surrogates.surrogate import REQUIRED, Surrogate

costs_by = partial(hccs.costs_by, two_lines=True)

SURROGATE = Surrogate(
    name="hccs_two_lines",
    summary="the larger of two clipped lines, int16 scores",
    costs=costs_by(),
    costs_by=costs_by,
    rows=hccs.rows,
    tensor=hccs.tensor,
    constants=hccs.constants,
    quantises=False,
    parameters={**dict.fromkeys(("B", "S", "D", "S2", "D2", "f"), REQUIRED), "mode": "i16_div"},
    fit=partial(hccs.fit, lines=2, scores="int16"),
)
