"""Arguments read and checked in one place, for every operator, backend and device.

NumPy arrays and torch tensors alike; torch is never imported, as nobody holds a tensor before it is loaded.
What only a pass over the data tells, such as a length beyond its row, the kernel that reads it finds. The
native kernels find shapes that do not belong together, too, quicker than Python could: a call on one short
row is dominated by its checks. The words of every refusal are here.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, DtypeError, MaskError, ParameterError, ShapeError
from hccs.numbers.arrays import array_of, numbers, require_integer
from hccs.numbers.heads import HeadParams
from hccs.numbers.requant import Requant
from hccs.ops import copies

NO_MASK, LENGTHS, MASK = range(3)
"""What `valid` says of a row: every column takes part, the first ones, or those that a mask names."""

LOGITS = "[..., heads, nq, nk]"
"""The shape of attention's logits, which no caller sees, in refusals."""

MOST_THREADS = 4096
"""More than any machine has cores; a larger number is a slip."""

INT8 = np.dtype(np.int8)
_NOTHING = np.empty(0)
_KINDS = {"b": MASK, "i": LENGTHS, "u": LENGTHS}  # of a dtype
_QUANTISE = "Quantise it first: hccs.ops.quantise.quantise(value, scale)."


# --- arrays and tensors -------------------------------------------------------------------------------------


def is_tensor(x: Any) -> bool:
    """True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def device_of(x: Any) -> str:
    return "cpu" if isinstance(x, np.ndarray) else str(x.device.type)


def unmasked(name: str, x: Any, valid: Any) -> tuple[Any, Any]:
    """`x` as a plain array or a tensor, and `valid` without the positions that a masked array masks."""
    if isinstance(x, np.ma.MaskedArray):
        plain, masked = np.asarray(x.data), np.ma.getmask(x)
        if masked is np.ma.nomask:
            return plain, valid
        if valid is None:
            return plain, ~masked
        given = as_mask(valid, plain.shape, f"{name}.shape")
        return plain, ~masked & (given.cpu().numpy() if is_tensor(given) else given)
    if isinstance(x, np.ndarray):
        return np.asarray(x), valid  # a subclass: its plain view
    if is_tensor(x):
        return x, valid
    raise DtypeError(
        f"{name} to be a NumPy array or a torch tensor", type(x).__name__, "Convert it with numpy.asarray."
    )


def require_unmasked(name: str, x: Any, hint: str) -> None:
    """Refuse a masked array where there is no saying what its mask would mean."""
    if isinstance(x, np.ma.MaskedArray):
        raise DtypeError(f"{name} without a mask of its own", "a masked array", hint)


def require_int8(name: str, x: Any, hint: str = _QUANTISE) -> None:
    if x.dtype is not INT8 and str(x.dtype) not in ("int8", "torch.int8"):
        raise DtypeError(f"{name} of dtype int8", f"dtype {x.dtype}", hint)


def scalar(name: str) -> ShapeError:
    return ShapeError(
        f"{name} with at least one dimension [..., q, k]", "a scalar", "Pass whole rows of logits."
    )


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of this shape can be seen as one of the target's."""
    missing = len(target) - len(shape)
    return missing >= 0 and all(
        own in (1, wanted) for own, wanted in zip(shape, target[missing:], strict=True)
    )


# --- which columns take part --------------------------------------------------------------------------------


def read_valid(valid: Any, x: Any, columns: int) -> tuple[int, Any]:
    """The kind of `valid`, for rows of `columns`, and it as an array or tensor where `x` is."""
    if type(valid) is not np.ndarray and not is_tensor(valid):
        require_unmasked("valid", valid, "Say what its masked entries mean: valid.filled(False).")
        valid = array_of("valid", valid)
    masking = kind_of(valid)
    if type(valid) is np.ndarray:
        if not valid.dtype.isnative:
            valid = valid.astype(valid.dtype.newbyteorder("="))
        if type(x) is np.ndarray or device_of(x) == "cpu":
            return masking, valid
    elif device_of(x) == "cpu":
        return masking, valid.detach().cpu().numpy()
    elif valid.device == x.device:
        return masking, valid
    found = copies.kept(valid, x.device, columns)
    if found is None:
        if masking == LENGTHS:
            require_lengths(valid, columns)
        found = copies.copied(valid, x.device, columns)
    return masking, found


def kind_of(valid: Any) -> int:
    """LENGTHS or MASK, by the dtype of an array or tensor."""
    dtype = valid.dtype
    if type(valid) is np.ndarray:
        masking = _KINDS.get(dtype.kind, NO_MASK)
    elif str(dtype) == "torch.bool":
        masking = MASK
    else:
        masking = NO_MASK if dtype.is_floating_point or dtype.is_complex else LENGTHS
    if masking == NO_MASK:
        raise DtypeError(
            "valid to be booleans or integer lengths",
            f"dtype {dtype}",
            "An additive float mask becomes booleans by comparing it with 0.",
        )
    return masking


def selection(valid: Any, shape: tuple[int, ...], what: str = "x.shape") -> tuple[int, Any]:
    """`valid` for logits of this shape, with its kind, checked in full; an array, or a tensor where it is."""
    if valid is None:
        return NO_MASK, None
    if is_tensor(valid):
        masking = kind_of(valid)
    else:
        masking, valid = read_valid(valid, _NOTHING, shape[-1])
    require_selection(masking, valid, shape, what)
    if masking == LENGTHS:
        require_lengths(valid, shape[-1])
    return masking, valid


def require_selection(masking: int, valid: Any, shape: tuple[int, ...], what: str = "x.shape") -> None:
    """Refuse a mask that does not broadcast to the logits' shape, or lengths that do not to its rows."""
    if masking == MASK and not broadcasts(valid.shape, shape):
        expected = f"a mask that broadcasts to {what} = {tuple(shape)}"
    elif masking == LENGTHS and not broadcasts(valid.shape, shape[:-1]):
        expected = f"row lengths that broadcast to {what}[:-1] = {tuple(shape[:-1])}"
    else:
        return
    raise MaskError(
        expected,
        f"shape {tuple(valid.shape)}",
        "For [batch, heads, q, k] a padding mask has shape [batch, 1, 1, k], its lengths [batch, 1, 1].",
    )


def require_lengths(lengths: Any, columns: int) -> None:
    """Refuse lengths that do not lie inside rows of `columns`; on a GPU this waits for the device."""
    if lengths.size if isinstance(lengths, np.ndarray) else lengths.numel():
        least, most = int(lengths.min()), int(lengths.max())
        if least < 0 or most > columns:
            raise lengths_outside(f"from {least} to {most}", columns)


def lengths_outside(found: str, columns: int | None = None) -> MaskError:
    return MaskError(
        "row lengths between 0 and " + ("the row's" if columns is None else str(columns)) + " columns",
        f"lengths {found}",
        "A length counts the valid columns from the row's start.",
    )


def as_mask(valid: Any, shape: tuple[int, ...], what: str = "x.shape") -> Any:
    """The boolean mask of this shape that any `valid` stands for, checked in full; maybe a read-only view."""
    masking, valid = selection(valid, shape, what)
    if masking == NO_MASK:
        return np.ones(shape, bool)
    if is_tensor(valid):
        if masking == LENGTHS:
            valid = sys.modules["torch"].arange(shape[-1], device=valid.device) < valid[..., None]
        return valid.expand(shape)
    if masking == LENGTHS:
        valid = np.arange(shape[-1]) < valid[..., None]
    return np.broadcast_to(valid, shape)


# --- parameters ---------------------------------------------------------------------------------------------


def no_theta(theta: Any) -> DtypeError:
    return DtypeError(
        "theta to be hccs.HeadParams", type(theta).__name__, "Use HeadParams(B=..., S=..., D=...)."
    )


def require_per_head(name: str, own: tuple[int, ...], lead: tuple[int, ...], what: str) -> None:
    """Refuse parameters whose shape does not broadcast against the leading dimensions of `what`."""
    if not broadcasts(own, lead):
        raise ShapeError(
            f"{name}'s shape to broadcast against {what}[:-2] = {tuple(lead)}",
            f"{name} of shape {tuple(own)}",
            "For [batch, heads, ...] give one value per head: shape [heads].",
        )


def require_shapes(
    what: str,
    shape: tuple[int, ...],
    theta: HeadParams,
    masking: int,
    valid: Any,
    requant: Requant | None = None,
) -> None:
    """Refuse parameters and a selection that do not broadcast against logits of this shape, named `what`."""
    require_per_head("theta", theta.shape, shape[:-2], what)
    if requant is not None:
        require_per_head("requant", requant.shape, shape[:-2], what)
    require_selection(masking, valid, shape, what)


def heads_of(theta: NDArray[Any], columns: int) -> HeadParams:
    """Parameters from numbers [..., 3 or 6], floats rounded, if they can run rows of `columns`."""
    heads = _heads_of(theta.tobytes(), theta.dtype.str, theta.shape)
    heads.require_columns(columns)
    return heads


@functools.lru_cache(maxsize=256)
def _heads_of(content: bytes, dtype: str, shape: tuple[int, ...]) -> HeadParams:
    """Kept: a layer's parameters are the same in every call but while they are being learnt."""
    values: NDArray[Any] = np.frombuffer(content, dtype).reshape(shape)
    if values.dtype.kind == "f":
        if not (np.abs(values) < 2**31).all():
            raise ParameterError("finite B, S and D", str(values[~(np.abs(values) < 2**31)][0]), "Clip them.")
        values = np.rint(values).astype(np.int64)
    return HeadParams.from_packed(values)


def require_scale(scale: Any) -> None:
    """Refuse logit scales that are no positive numbers in float32."""
    values = numbers("scale", scale)
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
    if not ((narrow > 0) & (narrow < np.inf)).all():
        wrong = values[~((narrow > 0) & (narrow < np.inf))]
        raise bad_scale(str(wrong.flat[0]))


def bad_scale(found: str) -> ParameterError:
    return ParameterError(
        "scale > 0 and finite in float32", found, "A scale is the logit value of one int8 step."
    )


def not_finite(what: str = "logits") -> DataError:
    return DataError(f"finite {what}", "NaN", "Look for an overflow in the layers before this one.")


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def require_threads(threads: Any) -> None:
    require_integer("threads", threads, 1, MOST_THREADS, "Leave it out for the default.")


# --- results ------------------------------------------------------------------------------------------------


def require_out(out: Any, x: Any, dtype: np.dtype[Any]) -> None:
    """Refuse what cannot receive integers of this dtype for the logits `x`."""
    if type(out) is np.ndarray and type(x) is np.ndarray:
        flags = out.flags
        fits, contiguous, writeable = out.dtype == dtype, flags.c_contiguous, flags.writeable
    elif is_tensor(out) and is_tensor(x):
        fits = out.device == x.device and str(out.dtype) == f"torch.{dtype.name}"
        contiguous, writeable = out.is_contiguous(), True
    else:
        fits = False
    if not fits:
        kind = f"a torch tensor on {x.device}" if is_tensor(x) else "a NumPy array"
        found = f"{type(out).__name__} of {out.dtype}" if hasattr(out, "dtype") else type(out).__name__
        raise DtypeError(f"out to be {kind} of dtype {dtype.name}", found, "See hccs.Mode(mode).dtype.")
    if out.shape != x.shape or not contiguous or not writeable:
        layout = "contiguous" if contiguous else "not contiguous"
        access = "writeable" if writeable else "read-only"
        raise ShapeError(
            f"out contiguous, writeable and of x's shape {tuple(x.shape)}",
            f"shape {tuple(out.shape)}, {layout}, {access}",
            "Leave it out to get a new one.",
        )
    if type(out) is not np.ndarray and _overlap(out, x):
        raise shared_memory()


def _overlap(out: Any, x: Any) -> bool:
    """Whether tensors share memory; of arrays the native code tells."""
    mine, yours = (
        (t.untyped_storage().data_ptr() + t.storage_offset() * t.itemsize, t.numel() * t.itemsize)
        for t in (out, x)
    )
    return x.is_contiguous() and mine[0] < yours[0] + yours[1] and yours[0] < mine[0] + mine[1]


def empty(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array or tensor where `x` is."""
    if isinstance(x, np.ndarray):
        return np.empty(shape, dtype)
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, dtype), device=x.device)


def shared_memory() -> ShapeError:
    return ShapeError("out to be memory of its own", "memory shared with x", "Pass another array.")


def as_tensors(found: Any, out: str) -> Any:
    """Attention's arrays as tensors on the same memory; half precision is the float32 result rounded once."""
    torch = sys.modules["torch"]
    if out == "pair":
        return tuple(map(torch.from_numpy, found))
    tensor = torch.from_numpy(found)
    return tensor.to(getattr(torch, out)) if out in ("float16", "bfloat16") else tensor
