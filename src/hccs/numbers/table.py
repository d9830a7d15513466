"""`ParamTable`: the calibrated parameters of a whole model, and the file they travel in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files import safetensors as _safetensors
from hccs.errors import DtypeError, FileError, HccsError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT_VERSION = "1"
_ARRAYS = {"B": np.int32, "S": np.int32, "D": np.int32, "scale": np.float64}
_OPERANDS = "qkv_scale"


CONVERTED = "model.hccs.safetensors"
"""The table's file in the folder of a run, beside the converted model."""


@dataclass(frozen=True, eq=False)
class ParamTable:
    """B, S, D and the logit scale of every head: arrays [layers, heads], all admissible for rows of `n`.

    `provenance` is whatever JSON can hold about where the table came from: model, data, versions.
    `qkv_scale` [layers, heads, 3], where it is known, is the value of one int8 step of q, k and v: what
    integer attention needs besides.

    >>> table = ParamTable(B=[[444, 300]], S=[[11, 4]], D=[[40, 60]], scale=[[0.1, 0.05]], n=64)
    >>> table.head(layer=0, head=1)
    HeadParams(B=300, S=4, D=60)
    """

    B: Any
    S: Any
    D: Any
    scale: Any
    n: int
    mode: Mode = Mode.I16_DIV
    provenance: Mapping[str, Any] = field(default_factory=dict)
    qkv_scale: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", Mode(self.mode))
        for name, dtype in _ARRAYS.items():
            object.__setattr__(self, name, _frozen_grid(name, getattr(self, name), dtype))
        shapes = {name: getattr(self, name).shape for name in _ARRAYS}
        if len(set(shapes.values())) != 1:
            raise ShapeError(
                "B, S, D and scale of one shape [layers, heads]",
                ", ".join(f"{name} {shape}" for name, shape in shapes.items()),
                "Give every head all four values.",
            )
        region = Region(self.n)
        for layer, head in np.ndindex(self.shape):
            where = f"layer {layer} head {head}: "
            region.require(*self._triple(layer, head), where=where)
            scale = float(self.scale[layer, head])
            if not (np.isfinite(scale) and scale > 0):
                raise ParameterError(f"{where}scale > 0", str(scale), "A scale maps int8 steps to logits.")
        if self.qkv_scale is not None:
            object.__setattr__(self, _OPERANDS, _frozen_operands(self.qkv_scale, self.shape))
        try:
            json.dumps(self.provenance)
        except TypeError as error:
            raise DtypeError(
                "provenance that JSON can hold", str(error), "Use text, numbers, lists."
            ) from error

    def _triple(self, layer: int, head: int) -> tuple[int, int, int]:
        return int(self.B[layer, head]), int(self.S[layer, head]), int(self.D[layer, head])

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads)."""
        layers, heads = self.B.shape
        return layers, heads

    def layer(self, index: int) -> HeadParams:
        """theta of one layer: arrays [heads], ready for logits [batch, heads, q, k]."""
        return HeadParams(self.B[index], self.S[index], self.D[index])

    def head(self, layer: int, head: int) -> HeadParams:
        """theta of one head."""
        return HeadParams(*self._triple(layer, head))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParamTable):
            return NotImplemented
        return (
            self.n == other.n
            and self.mode is other.mode
            and dict(self.provenance) == dict(other.provenance)
            and (self.qkv_scale is None) == (other.qkv_scale is None)
            and all(np.array_equal(mine, other._arrays()[name]) for name, mine in self._arrays().items())
        )

    __hash__ = None  # type: ignore[assignment]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = [*_ARRAYS] if self.qkv_scale is None else [*_ARRAYS, _OPERANDS]
        return {name: getattr(self, name) for name in names}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it replaces an old one only once it is complete."""
        metadata = {
            "format": "hccs.ParamTable",
            "version": FORMAT_VERSION,
            "n": str(self.n),
            "mode": self.mode.value,
            "provenance": json.dumps(self.provenance),
        }
        _safetensors.write(path, self._arrays(), metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ParamTable:
        """Read what `save` wrote. Damaged, foreign, newer or inadmissible files are refused."""
        arrays, metadata = _safetensors.read(path)
        found = f"{metadata.get('format', 'no format')} version {metadata.get('version', 'none')}"
        if found != f"hccs.ParamTable version {FORMAT_VERSION}" or {*arrays} - {_OPERANDS} != {*_ARRAYS}:
            raise FileError(
                f"{path} to be an hccs.ParamTable file of version {FORMAT_VERSION}",
                f"{found} with arrays {sorted(arrays)}",
                "Save the table anew with this version of hccs, or install the version that wrote it.",
            )
        try:
            return cls(
                **arrays,
                n=int(metadata["n"]),
                mode=Mode(metadata["mode"]),
                provenance=json.loads(metadata["provenance"]),
            )
        except HccsError as error:
            raise FileError(f"admissible parameters in {path}", str(error), "Recalibrate.") from error
        except (KeyError, ValueError) as error:
            raise FileError(f"complete metadata in {path}", repr(error), "Save the table anew.") from error

    def to_json(self) -> str:
        """The table for people: one line per head."""
        heads = [
            json.dumps(
                dict(
                    layer=layer,
                    head=head,
                    **{name: array[layer, head].tolist() for name, array in self._arrays().items()},
                )
            )
            for layer, head in np.ndindex(self.shape)
        ]
        lines = ",\n    ".join(heads)
        return (
            f'{{\n  "n": {self.n},\n  "mode": "{self.mode.value}",\n'
            f'  "provenance": {json.dumps(self.provenance)},\n  "heads": [\n    {lines}\n  ]\n}}\n'
        )


def _frozen_operands(value: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    array = np.array(value, np.float64)
    if array.shape != (*shape, 3):
        raise ShapeError(
            f"qkv_scale of shape {(*shape, 3)}: q, k and v of every head",
            f"shape {array.shape}",
            "Collect it from the model that the table belongs to.",
        )
    if not (np.isfinite(array) & (array > 0)).all():
        raise ParameterError("qkv_scale > 0", str(array.min()), "A scale maps int8 steps to real values.")
    array.flags.writeable = False
    return array


def _frozen_grid(name: str, value: Any, dtype: type) -> NDArray[Any]:
    array = np.asarray(value)
    if array.ndim != 2 or array.size == 0:
        raise ShapeError(
            f"{name} as a non-empty array [layers, heads]",
            f"shape {array.shape}",
            "For one head write [[value]].",
        )
    if array.dtype.kind not in ("iu" if dtype is np.int32 else "iuf"):
        raise DtypeError(f"{name} of dtype {np.dtype(dtype)}", str(array.dtype), "Convert it before.")
    if dtype is np.int32 and (abs(array.astype(np.int64)) > np.iinfo(np.int32).max).any():
        raise ParameterError(f"{name} to fit int16 arithmetic", str(array.max()), "See hccs.Region.")
    array = array.astype(dtype)
    array.flags.writeable = False
    return array
