"""HCCS as an ONNX function of standard operators, one per mode, with integers inside.

Input: float logits z [batch, heads, q, k], theta int32 [heads, 3], of the wide form [heads, 6], scale float32
[heads] and valid, booleans that broadcast to z. Output: probabilities p_hat / T in float32. Every runtime of
the standard operators can run it; the integers before the last division are the reference's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hccs.executors.onnx.graph import OPSET, onnx
from hccs.numbers.modes import DIVISOR_BITS, LINEAR_TOP, RECIPROCAL_SHIFT, Mode

DOMAIN = "hccs"
DOMAIN_VERSION = 1

_LEADING_BITS = range(15)
"""Z <= 32767, so its leading bit is one of these."""

_WIDE_LEADING_BITS = range(24)
"""Those of wide sums."""

_FIELDS = {"base": "B", "slope": "S", "bound": "D", "slope2": "S2", "bound2": "D2", "shift": "f"}
"""What theta's columns hold, by the letters of docs/spec.md; one line has the first three."""

_NOTHING = "nothing = Constant <value = int32 {0}> ()"


def function_name(mode: Mode, wide: bool = False) -> str:
    """`SoftmaxI16Div`, `WideSoftmaxI16Div` and so on: an operator of the domain "hccs"."""
    name = "Softmax" + "".join(part.capitalize() for part in mode.value.split("_"))
    return f"Wide{name}" if wide else name


def function(mode: Mode, wide: bool = False) -> Any:
    """The FunctionProto of a mode, for one line or for the wide form."""
    made = onnx().parser.parse_function(wide_function_text(mode) if wide else function_text(mode))
    made.doc_string = f"HCCS, mode {mode.value}: clipped-linear softmax of quantised logits, in integers."
    return made


def function_text(mode: Mode) -> str:
    """The function in ONNX's textual form.

    All modes are p_hat = min((s * factor) >> shift, T), where factor depends on the row alone: its
    reciprocal, times 2^e for the short rows of u8 modes.
    """
    score = f"""distance = Sub (m, x)
    delta = Min (distance, D)
    lost = Mul (S, delta)
    score = Sub (B, lost)
    {_NOTHING}"""
    fields = dict(itertools.islice(_FIELDS.items(), 3))
    return _row_function(function_name(mode), mode, fields, score, f"{_factor(mode)}\n    {_scaled(mode)}")


def wide_function_text(mode: Mode) -> str:
    """The function of two lines and wide sums: p_hat = min((s * rho) >> (k + t), T), Z below 2^24."""
    score = f"""signed_distance = Sub (m, x)
    {_NOTHING}
    distance = Max (signed_distance, nothing)
    delta = Min (distance, D)
    lost = Mul (S, delta)
    delta2 = Min (distance, D2)
    lost2 = Mul (S2, delta2)
    lower = Sub (B, lost)
    line = Sub (lower, lost2)
    unshifted = Cast <to = {_type("UINT32")}> (line)
    shift_bits = Cast <to = {_type("UINT32")}> (f)
    narrowed = BitShift <direction = "RIGHT"> (unshifted, shift_bits)
    score = Cast <to = {_type("INT32")}> (narrowed)"""
    return _row_function(function_name(mode, wide=True), mode, _FIELDS, score, _wide_scaled(mode))


def _row_function(name: str, mode: Mode, fields: Mapping[str, str], score: str, scaled: str) -> str:
    """What both forms share: `score` goes from m, x and theta to scores, `scaled` from Z to p_hat."""
    by_head = "\n    ".join(f"{letter} = Reshape ({field}, heads_only)" for field, letter in fields.items())
    # QuantizeLinear rounds half to even and saturates: the quantiser of docs/spec.md. Masks are minima with a
    # cap, and sums are taken in float32, which holds those of one line exactly, and of the wide form those
    # below 2^24: runtimes are several times as fast at these as at Where and at sums of int32. A row without
    # a valid column has s = 0 everywhere: `some` may be anything for the zeros it must return.
    return f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
{name} (z, theta, scale, valid) => (p)
{{
    heads = Shape (scale)
    zero = Constant <value = int8[1] {{0}}> ()
    zeros = Expand (zero, heads)
    logits = QuantizeLinear <axis = 1> (z, scale, zeros)
    x = Cast <to = {_type("INT32")}> (logits)
    heads_only = Constant <value = int64[3] {{-1, 1, 1}}> ()
    {", ".join(fields)} = Split <axis = 1, num_outputs = {len(fields)}> (theta)
    {by_head}
    columns = Constant <value = int64[1] {{-1}}> ()
    lowest = Constant <value = int32 {{-128}}> ()
    highest = Constant <value = int32 {{127}}> ()
    logit_cap = Where (valid, highest, lowest)
    attended = Min (x, logit_cap)
    m = ReduceMax (attended, columns)
    {score}
    largest = Constant <value = int32 {{32767}}> ()
    score_cap = Where (valid, largest, nothing)
    s = Min (score, score_cap)
    exact = Cast <to = {_type("FLOAT")}> (s)
    total = ReduceSum (exact, columns)
    Z = Cast <to = {_type("INT32")}> (total)
    unit = Constant <value = int32 {{1}}> ()
    some = Max (Z, unit)
    {scaled}
    real = Cast <to = {_type("FLOAT")}> (p_hat)
    T = Constant <value = float {{{mode.T}.0}}> ()
    p = Div (real, T)
}}
"""


def _leading_bit(leading_bits: range) -> str:
    """k, the leading bit of `some`."""
    lines = [
        _int32("powers", [1 << k for k in leading_bits[1:]]),
        "reached = GreaterOrEqual (some, powers)",
        f"counted = Cast <to = {_type('INT32')}> (reached)",
        "k = ReduceSum (counted, columns)",
    ]
    return "\n    ".join(lines)


def _wide_scaled(mode: Mode) -> str:
    """From a wide Z to p_hat."""
    numerator = mode.T << (DIVISOR_BITS + mode.spare_bits)
    reciprocal = f"""one_wide = Constant <value = int64 {{1}}> ()
    unit_bits = Constant <value = int64 {{{1 << DIVISOR_BITS}}}> ()
    some_wide = Cast <to = {_type("INT64")}> (some)
    scaled = Mul (some_wide, unit_bits)
    {_numbers("int64", "wide_powers", [1 << k for k in _WIDE_LEADING_BITS])}
    leading = Gather (wide_powers, k)
    below = Sub (leading, one_wide)
    raised = Add (scaled, below)
    M_wide = Div (raised, leading)
    M = Cast <to = {_type("INT32")}> (M_wide)
    numerator = Constant <value = int32 {{{numerator}}}> ()
    rho = Div (numerator, M)"""
    if mode.is_clb:
        reciprocal = f"rho = Constant <value = int32 {{{mode.T << mode.spare_bits}}}> ()"
    elif mode.is_linear:
        reciprocal = f"""{_linear_reciprocal(mode, _WIDE_LEADING_BITS)}
    spare_power = Constant <value = int32 {{{1 << mode.spare_bits}}}> ()
    rho = Mul (L, spare_power)"""
    return f"""{_leading_bit(_WIDE_LEADING_BITS)}
    {reciprocal}
    product = Mul (s, rho)
    unsigned = Cast <to = {_type("UINT32")}> (product)
    spare = Constant <value = int32 {{{mode.spare_bits}}}> ()
    fraction = Add (k, spare)
    fraction_bits = Cast <to = {_type("UINT32")}> (fraction)
    shifted = BitShift <direction = "RIGHT"> (unsigned, fraction_bits)
    top = Constant <value = uint32 {{{mode.T}}}> ()
    p_hat = Min (shifted, top)"""


def _factor(mode: Mode) -> str:
    """From `some`, which is Z, to factor (eq. 6, 8, 9)."""
    numerator = mode.T << RECIPROCAL_SHIFT if mode.is_u8 else mode.T
    # e of docs/spec.md by leading bit: how far the scores of a short row are scaled up.
    e = [max(8 - k, 0) if mode.is_u8 else 0 for k in _LEADING_BITS]
    lines = [_leading_bit(_LEADING_BITS)] if mode.is_clb or mode.is_u8 else []
    if mode.is_clb:
        lines += [
            _int32("factors", [(numerator >> (k + e[k])) << e[k] for k in _LEADING_BITS]),
            "factor = Gather (factors, k)",
        ]
    elif mode.is_linear:
        # (L * s) >> k, with the shift of the other modes: up is 2^(15 - k).
        lines += [_linear_reciprocal(mode, _LEADING_BITS), "factor = Mul (L, up)"]
    elif mode.is_u8:
        lines += [
            f"numerator = Constant <value = int32 {{{numerator}}}> ()",
            _int32("ups", [1 << e_k for e_k in e]),
            "up = Gather (ups, k)",
            "raised = Mul (some, up)",
            "rho = Div (numerator, raised)",
            "factor = Mul (rho, up)",
        ]
    else:
        lines += [
            f"numerator = Constant <value = int32 {{{numerator}}}> ()",
            "factor = Div (numerator, some)",
        ]
    return "\n    ".join(lines)


def _linear_reciprocal(mode: Mode, leading_bits: range) -> str:
    """L, which is T * 2^k / Z by a line, in eight bits, from `some` and its leading bit k."""
    lines = [
        _int32("ups", [1 << max(DIVISOR_BITS - k, 0) for k in leading_bits]),
        "up = Gather (ups, k)",
        "shifted_up = Mul (some, up)",
        _int32("downs", [2 << max(k - DIVISOR_BITS, 0) for k in leading_bits]),  # and M >> 1
        "down = Gather (downs, k)",
        "half_M = Div (shifted_up, down)",
        f"line_top = Constant <value = int32 {{{LINEAR_TOP}}}> ()",
        "falling = Sub (line_top, half_M)",
        f"whole = Constant <value = int32 {{{mode.T}}}> ()",
        "times_T = Mul (falling, whole)",
        f"fraction_power = Constant <value = int32 {{{1 << DIVISOR_BITS}}}> ()",
        "L = Div (times_T, fraction_power)",
    ]
    return "\n    ".join(lines)


def _scaled(mode: Mode) -> str:
    """p_hat = min((s * factor) >> shift, T) (eq. 7). A division never overestimates and needs no minimum."""
    kind = "uint32" if mode.is_u8 else "int32"
    over = mode.is_clb or mode.is_linear
    shifted = "shifted" if over else "p_hat"
    lines = [f"{'product' if mode.is_u8 else shifted} = Mul (s, factor)"]
    if mode.is_u8:
        # Only unsigned integers can be shifted.
        lines += [
            f"unsigned = Cast <to = {_type('UINT32')}> (product)",
            f"fraction_bits = Constant <value = uint32 {{{RECIPROCAL_SHIFT}}}> ()",
            f'{shifted} = BitShift <direction = "RIGHT"> (unsigned, fraction_bits)',
        ]
    if over:
        lines += [f"top = Constant <value = {kind} {{{mode.T}}}> ()", f"p_hat = Min ({shifted}, top)"]
    return "\n    ".join(lines)


def _int32(name: str, values: list[int]) -> str:
    return _numbers("int32", name, values)


def _numbers(kind: str, name: str, values: list[int]) -> str:
    listed = ", ".join(map(str, values))
    return f"{name} = Constant <value = {kind}[{len(values)}] {{{listed}}}> ()"


def _type(name: str) -> int:
    number: int = onnx().TensorProto.DataType.Value(name)
    return number
