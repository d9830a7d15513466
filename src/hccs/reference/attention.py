"""Integer attention as docs/spec.md writes it: q.k, HCCS and p.v, with deferred normalisation or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.modes import Mode
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.score_tables import ScoreTable
from hccs.reference.softmax import leading_bit, mask_of, scores, softmax

if TYPE_CHECKING:
    from hccs.numbers.heads import HeadParams


def attention(
    q: NDArray[np.int8],
    k: NDArray[np.int8],
    v: NDArray[np.int8],
    theta: HeadParams | ScoreTable,
    requant: Requant,
    *,
    valid: NDArray[Any] | None = None,
    causal: bool = False,
    mode: Mode | str | None = None,
    out: str = "float32",
) -> Any:
    """Integer attention of q [..., nq, d] over k, v [..., nk, d]; theta and requant per q.shape[:-2].

    Where k and v have fewer heads [..., heads, nk, d], query head h of g times as many takes theirs h // g.

    `out` is "pair" for the integers (N, Z), "float32" or "int8". Without a mode normalisation is deferred;
    with "u8_div", "u8_clb" or "u8_lin" probabilities come first. Input is taken as correct, as in `softmax`.
    """
    k, v = for_every_head(k, q), for_every_head(v, q)
    x = requantise(q.astype(np.int64) @ np.swapaxes(k, -1, -2).astype(np.int64), requant.logits)
    mask = mask_of(valid, x.shape)
    if causal:
        nq, nk = x.shape[-2:]
        mask = mask & (np.arange(nk) <= np.arange(nq)[:, None] + (nk - nq))
    if mode is None:
        weights = theta.scores(x, mask) if isinstance(theta, ScoreTable) else scores(x, theta, mask)
        Z = weights.sum(-1)
    else:
        assert not isinstance(theta, ScoreTable)
        weights = softmax(x, theta, mode, mask).astype(np.int64)
        Z = np.full(x.shape[:-1], Mode(mode).T)
    N = weights @ v.astype(np.int64)
    if out == "pair":
        return N.astype(np.int32), Z.astype(np.int32)
    return as_int8(N, Z, requant) if out == "int8" else as_float32(N, Z, requant)


def for_every_head(shared: NDArray[np.int8], q: NDArray[np.int8]) -> NDArray[np.int8]:
    """k or v repeated for the heads of q that share them."""
    if shared.shape[:-2] == q.shape[:-2]:
        return shared
    return np.repeat(shared, q.shape[-3] // shared.shape[-3], axis=-3)


def requantise(acc: NDArray[np.int64], factor: FixedPoint) -> NDArray[np.int8]:
    """Accumulators [..., rows, columns] to int8 by their head's factor: round half up, saturate."""
    multiplier = np.asarray(factor.multiplier, np.int64)[..., None, None]
    shift = np.asarray(factor.shift, np.int64)[..., None, None]
    return _round_half_up(acc, multiplier, shift)


def _round_half_up(acc: NDArray[np.int64], multiplier: Any, shift: Any) -> NDArray[np.int8]:
    """clamp(floor((acc * multiplier + 2^(shift - 1)) / 2^shift), -128, 127); |acc * multiplier| <= 2^55."""
    rounded: NDArray[np.int64] = (acc * multiplier + (np.int64(1) << (shift - 1))) >> shift
    return np.clip(rounded, -128, 127).astype(np.int8)


def as_float32(N: NDArray[np.int64], Z: NDArray[np.int64], requant: Requant) -> NDArray[np.float32]:
    """N / Z * v_scale: one float32 division, one float32 multiplication; 0 where nothing was attended.

    Wide sums can take |N| beyond 2^24: it is rounded to float32 first, once.
    """
    denominator = np.maximum(Z, 1).astype(np.float32)[..., None]
    v_scale = np.asarray(requant.v_scale, np.float32)[..., None, None]
    return (N.astype(np.float32) / denominator) * v_scale


def as_int8(N: NDArray[np.int64], Z: NDArray[np.int64], requant: Requant) -> NDArray[np.int8]:
    """N / Z times the output factor in int8: one integer division per row gives its own multiplier."""
    assert requant.output is not None
    Z = np.maximum(Z, 1)
    k = np.vectorize(lambda z: leading_bit(int(z)), otypes=[np.int64])(Z)
    multiplier = (np.asarray(requant.output.multiplier, np.int64)[..., None] << k) // Z
    # Beyond 2^62 everything rounds to 0, |N * R| being at most 2^55.
    shift = np.minimum(np.asarray(requant.output.shift, np.int64)[..., None] + k, 62)
    return _round_half_up(N, multiplier[..., None], shift[..., None])
