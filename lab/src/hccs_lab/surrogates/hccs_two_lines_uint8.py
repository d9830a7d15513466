"""HCCS of two lines, with uint8 scores: ours, nearly an exponential and calibrated without training.

    s_i = (B - S * min(m - x_i, D) - S2 * min(m - x_i, D2)) >> 2,    p_hat_i = s_i * rho,    rho ~ T / sum s

in the modes of docs/spec.md (parameter `mode`), the wide form. (B, S, D, S2, D2, f) are integers per head
from the calibration of two lines.
Widths: int8 in, uint8 scores, sums of 24 bits, int16 or uint8 out. Needs: what `hccs` does, and for
each element a clip, a multiplication, a subtraction and two shifts more.
Differentiable straight through, as `hccs.nn.hccs_softmax`.
"""

from __future__ import annotations

from hccs_lab.surrogates.hccs_two_lines import with_scores

SURROGATE = with_scores("hccs_two_lines_uint8", "uint8")
