"""Any rows of the wide form: two lines, and sums of 24 bits. `wide_words.py` has whole rows of newer GPUs."""

from __future__ import annotations

import triton
import triton.language as tl

from hccs.backends.triton.codes import NO_MASK
from hccs.backends.triton.formulas import group_of, valid_columns, wide_reciprocal


@triton.jit
def six_parameters(theta_ptr, head):
    """B, S, D, S2, D2, f."""
    upper = (tl.load(theta_ptr + head), tl.load(theta_ptr + head + 1), tl.load(theta_ptr + head + 2))
    lower = (tl.load(theta_ptr + head + 3), tl.load(theta_ptr + head + 4), tl.load(theta_ptr + head + 5))
    return upper + lower


@triton.jit
def wide_rows(
    x_ptr, theta_ptr, valid_ptr, fault_ptr, out_ptr, rows, columns, rows_per_group, heads,
    n1, n2, v0, v1, v2, v3,
    MASKING: tl.constexpr, FULL: tl.constexpr, ONE_GROUP: tl.constexpr, IS_U8: tl.constexpr,
    RECIPROCAL: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Any rows, in int32."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=-128).to(tl.int32)
    ALL: tl.constexpr = FULL and MASKING == NO_MASK
    valid = inside
    if not ALL:
        valid = valid_columns(
            valid_ptr, fault_ptr, row, column, inside, columns, n1, n2, v0, v1, v2, v3, MASKING
        )
    B, S, D, S2, D2, f = six_parameters(theta_ptr, (group_of(row, rows_per_group, ONE_GROUP) % heads) * 6)
    if not ONE_GROUP:
        B, S, D, S2, D2, f = B[:, None], S[:, None], D[:, None], S2[:, None], D2[:, None], f[:, None]
    distance = tl.max(tl.where(valid, x, -128), axis=1)[:, None] - x
    s = (B - S * tl.minimum(distance, D) - S2 * tl.minimum(distance, D2)) >> f
    s = tl.where(valid, s, 0)
    rho, k = wide_reciprocal(tl.maximum(tl.sum(s, axis=1), 1)[:, None], IS_U8, RECIPROCAL)
    p = tl.minimum((s * rho) >> (k + (7 if IS_U8 else 0)), 255 if IS_U8 else 32767)
    tl.store(out_ptr + place, p.to(out_ptr.dtype.element_ty), mask=inside)
