"""Boolean masks as bits, in the order in which the threads of attention's kernels hold keys.

A thread holds two neighbouring keys of every eight, as halves of a word. So the bits of 128 keys go to four
words, one for each pair of the eight: even keys to the lower half, odd keys to the upper half, the first key
highest. Shifting such a word left by one moves to the thread's next pair.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from hccs.backends.triton.devices import FUSED
from hccs.backends.triton.softmax import rows_in

_ROWS = 32


@triton.jit
def _pack(mask_ptr, out_ptr, rows, keys, blocks, n1, n2, s0, s1, s2, s3, ROWS: tl.constexpr):
    """The words of ROWS rows and 128 keys."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(1)
    i0, i1, i2 = row // (n1 * n2), row // n2 % n1, row % n2
    start = i0.to(tl.int64) * s0 + i1.to(tl.int64) * s1 + i2.to(tl.int64) * s2
    key = block * 128 + tl.arange(0, 128)
    place = mask_ptr + start[:, None] + (key * s3)[None, :]
    chosen = tl.load(place, mask=(row < rows)[:, None] & (key < keys)[None, :], other=0) != 0
    eighth, pair = tl.arange(0, 128) // 8, tl.arange(0, 128) % 2
    bits = chosen.to(tl.int32) << (15 - eighth + 16 * pair)[None, :]
    words = tl.sum(tl.reshape(tl.sum(tl.reshape(bits, [ROWS, 16, 8]), axis=1), [ROWS, 4, 2]), axis=2)
    target = out_ptr + (row.to(tl.int64) * blocks + block)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(target, words, mask=(row < rows)[:, None])


def packed(mask: torch.Tensor, keys: int) -> torch.Tensor:
    """int32 [..., 4 * blocks of 128 keys] of a mask [..., keys or 1]; what is broadcast stays one row."""
    mask = mask.expand(*mask.shape[:-1], keys)
    blocks = -(-keys // 128)
    words = torch.empty((*mask.shape[:-1], 4 * blocks), dtype=torch.int32, device=mask.device)
    if words.numel():
        full, places = rows_in(mask)
        rows = words.numel() // (4 * blocks)
        kernel: Any = _pack
        kernel[(triton.cdiv(rows, _ROWS), blocks)](
            full.view(torch.uint8), words, rows, keys, blocks, *places, ROWS=_ROWS, **FUSED
        )
    return words
