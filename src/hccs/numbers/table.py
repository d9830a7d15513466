"""`ParamTable`: the calibrated parameters of a whole model, and the file they travel in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hccs._files.checked import Format
from hccs._html import first_rows, framed, sparkline, table
from hccs.errors import DataError, DtypeError, FileError, HccsError, ParameterError, ShapeError
from hccs.numbers.arrays import integers, numbers, require_integer
from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.modes import MAX_DISTANCE, Mode
from hccs.numbers.region import NARROW, WIDE, Region

FORMAT = Format("hccs.ParamTable", version=3)
_GRIDS = ("B", "S", "D", "scale")
_SECOND_LINE = ("S2", "D2", "f")
_OPERANDS = "qkv_scale"


CONVERTED = "model.hccs.safetensors"
"""The table's file in the folder of a run, beside the converted model."""


@dataclass(frozen=True, eq=False, init=False)
class ParamTable:
    """B, S, D and the logit scale of every head: arrays [layers, heads], all admissible for rows of `n`.

    `layers`, where they are known, are the names of the model's attention layers in the table's order.
    `qkv_scale` [layers, heads, 3], where it is known, is the value of one int8 step of q, k and v: what
    integer attention needs besides. `provenance` is for people: whatever JSON can hold about where the table
    came from, such as model, data, versions.

    Tables of two lines hold S2, D2 and f besides; those of one line have None there. `sum_bits` is the width
    of row sums, 15 for one line and 24 for two unless told: with 24 one line may serve long rows, too.

    >>> table = ParamTable(B=[[444, 300]], S=[[11, 4]], D=[[40, 60]], scale=[[0.1, 0.05]], n=64)
    >>> table.head(layer=0, head=1)
    HeadParams(B=300, S=4, D=60)
    """

    B: NDArray[np.int32]
    S: NDArray[np.int32]
    D: NDArray[np.int32]
    scale: NDArray[np.float64]
    n: int
    mode: Mode
    provenance: Mapping[str, object]
    qkv_scale: NDArray[np.float64] | None
    layers: tuple[str, ...] | None
    S2: NDArray[np.int32] | None
    D2: NDArray[np.int32] | None
    f: NDArray[np.int32] | None
    sum_bits: int

    def __init__(
        self,
        B: ArrayLike,
        S: ArrayLike,
        D: ArrayLike,
        scale: ArrayLike,
        n: int,
        mode: Mode | str = Mode.I16_DIV,
        provenance: Mapping[str, object] | None = None,
        qkv_scale: ArrayLike | None = None,
        layers: Sequence[str] | None = None,
        S2: ArrayLike | None = None,
        D2: ArrayLike | None = None,
        f: ArrayLike | None = None,
        sum_bits: int | None = None,
    ) -> None:
        triples = {name: integers(name, value) for name, value in (("B", B), ("S", S), ("D", D))}
        second = _second_line(S2, D2, f, triples["B"].shape)
        arrays: dict[str, NDArray[Any]] = {**triples, **second, "scale": _reals("scale", scale)}
        grids = {name: _frozen(_grid(name, array)) for name, array in arrays.items()}
        shapes = {name: grid.shape for name, grid in grids.items()}
        if len(set(shapes.values())) != 1:
            raise ShapeError(
                f"{', '.join(list(grids)[:-1])} and scale of one shape [layers, heads]",
                ", ".join(f"{name} {shape}" for name, shape in shapes.items()),
                f"Give every head all {'seven' if second else 'four'} values.",
            )
        if sum_bits is None:
            sum_bits = WIDE if second else NARROW
        region = Region(n, sum_bits)
        values: dict[str, object] = {
            **dict.fromkeys(_SECOND_LINE),
            **grids,
            "n": region.n,
            "sum_bits": region.sum_bits,
            "mode": Mode(mode),
            "provenance": _for_people({} if provenance is None else provenance),
            _OPERANDS: None if qkv_scale is None else _frozen(operand_scales(qkv_scale, shapes["B"])),
            "layers": None if layers is None else layer_names(layers, shapes["B"][0]),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for layer, head in np.ndindex(self.shape):
            where = f"layer {layer} head {head}: "
            region.require(*self._parameters(layer, head), where=where)
            if not self.scale[layer, head] > 0:
                step = str(self.scale[layer, head])
                raise ParameterError(f"{where}scale > 0", step, "A scale maps int8 steps to logits.")

    def _parameters(self, *index: int) -> tuple[Any, ...]:
        """(B, S, D), or all six, of one head as integers or of a layer as arrays."""
        second = [] if self.S2 is None else [self.S2, self.D2, self.f]
        found = [grid[index] for grid in (self.B, self.S, self.D, *second) if grid is not None]
        return tuple(int(value) for value in found) if len(index) > 1 else tuple(found)

    @property
    def lines(self) -> int:
        """Of how many lines a score is made: 1, the paper's, or 2."""
        return 1 if self.S2 is None else 2

    @property
    def wide(self) -> bool:
        """Whether theta has a form of its own: two lines, or sums of 24 bits."""
        return self.lines > 1 or self.sum_bits > NARROW

    @property
    def shape(self) -> tuple[int, int]:
        layers, heads = self.B.shape
        return layers, heads

    def layer(self, index: int) -> HeadParams:
        """theta of one layer: arrays [heads], ready for logits [batch, heads, q, k]."""
        return HeadParams(*self._parameters(self._index("layer", index, 0)), wide=self.wide)

    def head(self, layer: int, head: int) -> HeadParams:
        place = self._index("layer", layer, 0), self._index("head", head, 1)
        return HeadParams(*self._parameters(*place), wide=self.wide)

    def _index(self, name: str, value: Any, axis: int) -> int:
        count = self.shape[axis]
        return require_integer(name, value, -count, count - 1, f"The table has {count}, counted from 0.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParamTable):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            (self.n, self.mode, self.layers, self.sum_bits)
            == (other.n, other.mode, other.layers, other.sum_bits)
            and dict(self.provenance) == dict(other.provenance)
            and mine.keys() == theirs.keys()
            and all(np.array_equal(array, theirs[name]) for name, array in mine.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = _GRIDS if self.S2 is None else (*_GRIDS, *_SECOND_LINE)
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in names}
        return arrays if self.qkv_scale is None else {**arrays, _OPERANDS: self.qkv_scale}

    def as_dict(self) -> dict[str, Any]:
        """The table as plain values, the one form in which JSON holds it; `from_dict` takes it back."""
        return {
            "n": self.n,
            "mode": self.mode.value,
            **({"sum_bits": self.sum_bits} if self.wide else {}),
            **({} if self.layers is None else {"layers": list(self.layers)}),
            **{name: array.tolist() for name, array in self._arrays().items()},
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParamTable:
        """The table of `as_dict`; values that are missing, unknown or inadmissible are refused."""
        known, needed = [field.name for field in fields(cls)], (*_GRIDS, "n")
        missing = [name for name in needed if name not in values]
        if missing or not {*values} <= {*known}:
            raise DataError(
                f"a table's values {', '.join(known)}",
                ", ".join(map(str, values)) + (f" without {', '.join(missing)}" if missing else ""),
                "Take what as_dict returned.",
            )
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; it replaces an old one only once it is complete."""
        metadata = {
            "n": str(self.n),
            "mode": self.mode.value,
            "provenance": json.dumps(self.provenance),
            **({} if self.layers is None else {"layers": json.dumps(self.layers)}),
            **({"sum_bits": str(self.sum_bits)} if self.wide else {}),
        }
        FORMAT.save(path, self._arrays(), metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ParamTable:
        """Read what `save` wrote. Damaged, foreign or inadmissible files are refused."""
        arrays, metadata = FORMAT.load(path)
        try:
            values = {
                **arrays,
                "n": int(metadata["n"]),
                "mode": metadata["mode"],
                "provenance": json.loads(metadata["provenance"]),
                **({"layers": json.loads(metadata["layers"])} if "layers" in metadata else {}),
                **({"sum_bits": int(metadata["sum_bits"])} if "sum_bits" in metadata else {}),
            }
            return cls.from_dict(values)
        except HccsError as error:
            raise FileError(f"admissible parameters in {path}", str(error), "Recalibrate.") from error
        except (KeyError, ValueError) as error:
            raise FileError(f"complete metadata in {path}", repr(error), "Save the table again.") from error

    def _repr_html_(self) -> str:
        names = NAMES[: self.head(0, 0).packed.shape[-1]]
        rows, more = first_rows(list(np.ndindex(self.shape)))
        cells = [
            [
                f"layer {layer}, head {head}",
                *self.head(layer, head).packed.tolist(),
                f"{self.scale[layer, head]:.5f}",
                sparkline(_weights(self.head(layer, head)), described="weight by distance"),
            ]
            for layer, head in rows
        ]
        layers, heads = self.shape
        size = f"{layers} layer{'s' * (layers > 1)} of {heads} heads"
        return framed(
            f"ParamTable: {size}, rows of up to {self.n}, {self.mode.value}",
            table(["head", *names, "scale", "weight by distance"], cells),
            more,
        )

    def to_json(self) -> str:
        """`as_dict` for people: one line per layer."""
        lines = []
        for name, value in self.as_dict().items():
            rows = isinstance(value, list) and isinstance(value[0], list)
            inner = ",\n    ".join(map(json.dumps, value)) if rows else ""
            lines.append(f'  "{name}": ' + (f"[\n    {inner}\n  ]" if rows else json.dumps(value)))
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _weights(theta: HeadParams) -> list[float]:
    d = np.arange(0, MAX_DISTANCE + 1, 2)
    scores = (theta.B - theta.S * np.minimum(d, theta.D) - theta.S2 * np.minimum(d, theta.D2)) >> theta.f
    relative: list[float] = (scores / max(int(scores[0]), 1)).tolist()
    return relative


def _second_line(
    S2: ArrayLike | None, D2: ArrayLike | None, f: ArrayLike | None, shape: tuple[int, ...]
) -> dict[str, NDArray[np.int32]]:
    """S2, D2 and f where the table has two lines; no shift unless told."""
    if S2 is None and D2 is None and f is None:
        return {}
    if S2 is None or D2 is None:
        missing = " and ".join(name for name, value in (("S2", S2), ("D2", D2)) if value is None)
        raise ParameterError(
            "S2 and D2 of the second line", f"no {missing}", "Give both, or none of S2, D2, f."
        )
    shift = np.zeros(shape, np.int32) if f is None else integers("f", f)
    return {"S2": integers("S2", S2), "D2": integers("D2", D2), "f": shift}


def _for_people(provenance: Mapping[str, object]) -> dict[str, object]:
    try:
        json.dumps(provenance)
        return dict(provenance)
    except (TypeError, ValueError, RecursionError) as error:
        raise DtypeError(
            "provenance that JSON can hold, as a dictionary", str(error), "Use text, numbers, lists."
        ) from error


def layer_names(layers: Sequence[str], count: int) -> tuple[str, ...]:
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise DtypeError("layers as a list of names", repr(layers), "Name every attention layer.")
    if not all(isinstance(name, str) for name in layers):
        raise DtypeError("names of layers as text", repr(list(layers)), "Name every attention layer.")
    if len(layers) != count or len(set(layers)) != count:
        raise ShapeError(
            f"{count} different names of layers, in the table's order",
            ", ".join(layers) or "none",
            "Name every attention layer once.",
        )
    return tuple(layers)


def operand_scales(value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Steps of q, k and v for every head of (layers, heads)."""
    array = _reals("qkv_scale", value)
    if array.shape != (*shape, 3):
        raise ShapeError(
            f"qkv_scale of shape {(*shape, 3)}: q, k and v of every head",
            f"shape {array.shape}",
            "Collect it from the model that the table belongs to.",
        )
    if not (array > 0).all():
        raise ParameterError("qkv_scale > 0", str(array.min()), "A scale maps int8 steps to real values.")
    return array


def _reals(name: str, value: ArrayLike) -> NDArray[np.float64]:
    reals: NDArray[np.float64] = numbers(name, value).astype(np.float64)
    if not np.isfinite(reals).all():
        bad = reals[~np.isfinite(reals)][0]
        raise ParameterError(f"{name} > 0 and finite", str(bad), "A scale maps int8 steps to real values.")
    return reals


def _grid(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 2 or array.size == 0:
        raise ShapeError(
            f"{name} as a non-empty array [layers, heads]",
            f"shape {array.shape}",
            "For one head write [[value]].",
        )
    return array


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def run_table(run: str | os.PathLike[str]) -> ParamTable:
    """The table of a finished run's converted model, or of a table file."""
    path = Path(run)
    try:
        file = path if path.is_file() else path / CONVERTED
        missing = None if file.exists() else "no such file or folder"
        if missing and path.is_dir():
            missing = f"no {CONVERTED} in it"
    except OSError as error:
        missing = str(error)
    if missing:
        raise FileError(
            f"{path} to be a finished run or a parameter table",
            missing,
            "Finish the run with hccs convert, or name a file that ParamTable.save wrote.",
        )
    return ParamTable.load(file)
