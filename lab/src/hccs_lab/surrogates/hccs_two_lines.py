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

from hccs.numbers.heads import NAMES
from hccs_lab.surrogates import hccs
from hccs_lab.surrogates.surrogate import REQUIRED, Surrogate


def with_scores(name: str, scores: str) -> Surrogate:
    """Two lines with int16 scores, or with uint8 ones, which cost a shift more."""
    costs_by = partial(hccs.costs_by, two_lines=True, shifted_scores=scores == "uint8")
    return Surrogate(
        name=name,
        summary=f"the larger of two clipped lines, {scores} scores",
        costs=costs_by(),
        costs_by=costs_by,
        rows=hccs.rows,
        tensor=hccs.tensor,
        constants=hccs.constants,
        quantises=False,
        parameters={**dict.fromkeys(NAMES, REQUIRED), "mode": "i16_div"},
        fit=partial(hccs.fit, lines=2, scores=scores),
    )


SURROGATE = with_scores("hccs_two_lines", "int16")
