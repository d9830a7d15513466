"""What attention alone is given: q, k and v, factors, causality, the kind of result."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs.errors import DtypeError, MaskError, ModeError, ParameterError, ShapeError
from hccs.numbers.modes import Mode
from hccs.numbers.requant import MAX_HEAD_DIM, Requant
from hccs.ops.arguments import INT8, is_tensor, require_int8, require_unmasked

OUTPUTS = ("float32", "float16", "bfloat16", "int8", "pair")
"""What attention can return; the two half formats are for torch tensors."""


def require_operands(q: Any, k: Any, v: Any) -> None:
    """Refuse q, k and v that are not int8, of one kind, on one device and of shapes that belong together."""
    tensors = not isinstance(q, np.ndarray) and is_tensor(q)
    for name, given in (("q", q), ("k", k), ("v", v)):
        if type(given) is np.ndarray and given.dtype is INT8 and not tensors:
            continue
        if not (is_tensor(given) if tensors else isinstance(given, np.ndarray)):
            raise DtypeError(
                f"{name} to be a torch tensor like q"
                if tensors
                else f"{name} to be a NumPy array like q, or all three torch tensors",
                type(given).__name__,
                "Use torch.as_tensor." if tensors else "Convert it with numpy.asarray.",
            )
        require_unmasked(name, given, "Say in valid which keys take part, and pass its plain .data.")
        require_int8(name, given)
        if tensors and given.device != q.device:
            raise DtypeError(
                f"{name} on q's device {q.device}", f"device {given.device}", "Move it with .to()."
            )
    shape, keys, values = q.shape, k.shape, v.shape
    if len(shape) < 2:
        raise ShapeError(
            "q of shape [..., heads, nq, d]", f"shape {tuple(shape)}", "Add the missing dimensions."
        )
    if keys != values or len(keys) != len(shape) or keys[:-2] != shape[:-2] or keys[-1] != shape[-1]:
        raise ShapeError(
            f"k and v of one shape, like q's {tuple(shape)} in all but the rows",
            f"k {tuple(keys)}, v {tuple(values)}",
            "Repeat k and v for heads that share them.",
        )
    if not 1 <= shape[-1] <= MAX_HEAD_DIM:
        raise ShapeError(
            f"heads of 1 to {MAX_HEAD_DIM} columns, so that q.k stays within 2^24",
            f"d = {shape[-1]}",
            "Split the head.",
        )


def require_requant(requant: Any, out: Any, tensors: bool) -> None:
    """Refuse outputs that do not exist, and what are no factors, or none for this output."""
    if not isinstance(requant, Requant):
        raise DtypeError(
            "requant to be hccs.Requant", type(requant).__name__, "Make it with Requant.from_scales."
        )
    if not isinstance(out, str) or out not in OUTPUTS:
        array = hasattr(out, "dtype")
        raise ParameterError(
            f"out to be one of {', '.join(OUTPUTS)}",
            f"an array of dtype {out.dtype}" if array else repr(out),
            "It names the kind of result, which is always new: attention writes into no array of yours."
            if array
            else "It names the result.",
        )
    if out == "int8" and requant.output is None:
        raise ParameterError(
            "requant with an output factor for int8 output",
            "output=None",
            "Give Requant.from_scales the out_scale.",
        )
    if out in ("float16", "bfloat16") and not tensors:
        raise DtypeError("torch tensors for half precision", "NumPy arrays", "Use out='float32'.")


def require_causal(causal: Any, queries: int, keys: int) -> None:
    """Refuse what is neither True nor False, and more queries than keys."""
    if not isinstance(causal, (bool, np.bool_)):
        raise DtypeError("causal to be True or False", repr(causal), "Masks go into valid.")
    if causal and queries > keys:
        raise MaskError(
            "at most as many queries as keys with causal",
            f"{queries} queries, {keys} keys",
            "The last query is aligned with the last key.",
        )


def probabilities_first(mode: Any) -> Mode | None:
    """The mode of attention's probabilities, or None where only its output is divided."""
    if mode is None:
        return None
    found = Mode(mode)
    if found.is_u8:
        return found
    raise ModeError(
        "mode None, 'u8_div', 'u8_clb' or 'u8_lin'",
        repr(found.value),
        "Without a mode no probability is rounded at all; that is the most precise.",
    )
