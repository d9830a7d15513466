"""`export_c`: a table's parameters, the row functions in C99, and vectors that a program checks itself on."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from hccs._files import folder as _folder
from hccs._progress import track
from hccs.errors import ParameterError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable
from hccs.reference.softmax import softmax as reference_softmax

SOURCES = ("hccs_softmax.h", "hccs_softmax.c", "hccs_check.c", "Makefile", "README.md")
PRODUCTS = ("hccs_check",)
"""What `make` leaves in the folder."""


@dataclass(frozen=True)
class Vector:
    """One row of a head and the reference's output for it."""

    layer: int
    head: int
    mode: Mode
    length: int
    x: NDArray[np.int8]
    valid: NDArray[np.bool_] | None
    p: NDArray[Any]


def export_c(table: ParamTable, out: str | os.PathLike[str], *, seed: int = 0) -> Path:
    """Write the C project folder `out`; an earlier export there is replaced."""
    _folder.require_free(out, products=PRODUCTS)
    folder = resources.files("hccs.export") / "c_sources"
    contents: dict[str, str | bytes] = {
        name: folder.joinpath(name).read_text(encoding="utf-8") for name in SOURCES
    }
    contents["hccs_parameters.h"] = parameter_header(table)
    found = list(vectors(table, seed))
    contents["vectors.txt"] = vector_text(found)
    contents["vectors.npz"] = vector_archive(found, table.n)
    return _folder.replace(out, contents, products=PRODUCTS)


def parameter_header(table: ParamTable) -> str:
    """`hccs_parameters.h`: the table as constants."""
    layers, heads = table.shape
    theta = [
        [f"{{{', '.join(map(str, head))}}}" for head in table.layer(i).packed.tolist()] for i in range(layers)
    ]
    kind, fields = ("hccs_lines", "B, S, D, S2, D2, f") if table.wide else ("hccs_head", "B, S, D")
    scale = [[_c_float(value) for value in row] for row in float32_scales(table)]
    order = "".join(f" *   {index} {_comment(name)}\n" for index, name in enumerate(table.layers or ()))
    return f"""/* Parameters of every head, written by `hccs export c`.{" Layers:" if order else ""}
{order} */
#ifndef HCCS_PARAMETERS_H
#define HCCS_PARAMETERS_H

#include "hccs_softmax.h"

#define HCCS_LAYERS {layers}
#define HCCS_HEADS {heads}
#define HCCS_COLUMNS {table.n} /* the longest row that these parameters serve */
#define HCCS_MODE HCCS_{table.mode.value.upper()}
{"#define HCCS_WIDE" + chr(10) if table.wide else ""}
/* {fields} */
static const {kind} hccs_theta[HCCS_LAYERS][HCCS_HEADS] = {_c_grid(theta)};

/* The logit value of one int8 step. */
static const float hccs_scale[HCCS_LAYERS][HCCS_HEADS] = {_c_grid(scale)};

#endif
"""


def float32_scales(table: ParamTable) -> NDArray[np.float32]:
    """The scales [layers, heads] as float32; one that float32 cannot hold to full precision is refused."""
    limits = np.finfo(np.float32)
    outside = (table.scale < limits.tiny) | (table.scale > limits.max)
    if outside.any():
        layer, head = np.argwhere(outside)[0].tolist()
        raise ParameterError(
            f"layer {layer} head {head}: a scale that float32 holds, {limits.tiny:.3g} to {limits.max:.3g}",
            str(table.scale[layer, head]),
            "Recalibrate on logits of a usual size.",
        )
    return np.asarray(table.scale, np.float32)


def _comment(text: str) -> str:
    """Text for a C comment: what could end it, or splice lines, is written as %XX.

    >>> _comment("encoder.layers[0]"), _comment("x */ #include <y>")
    ('encoder.layers[0]', 'x %2A/ %23include %3Cy%3E')
    """
    return quote(text, safe="/:[] ", errors="backslashreplace")


def _c_float(value: np.float32) -> str:
    # Nine digits name a float32 exactly; C wants a point or an exponent before the suffix.
    digits = f"{value:.9g}"
    return digits + ("f" if "." in digits or "e" in digits else ".0f")


def _c_grid(rows: list[list[str]]) -> str:
    lines = ",\n".join(f"    {{{', '.join(row)}}}" for row in rows)
    return f"{{\n{lines}}}"


def vectors(table: ParamTable, seed: int = 0) -> Iterator[Vector]:
    """Rows of every kind for every head and mode, with the reference's outputs."""
    rng = np.random.default_rng(seed)
    layers, heads = table.shape
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    for layer, head in track(places, total=len(places), description="test vectors"):
        theta = table.head(layer, head)
        for mode in Mode:
            for x, length, valid in _rows(rng, table.n):
                yield Vector(layer, head, mode, length, x, valid, _expected(x, theta, mode, length, valid))


def _rows(
    rng: np.random.Generator, n: int
) -> Iterator[tuple[NDArray[np.int8], int, NDArray[np.bool_] | None]]:
    """Logits, length and mask: each kind of values, then each way to leave columns out."""
    wide = rng.integers(-128, 128, n).astype(np.int8)
    narrow = np.clip(np.round(rng.normal(0, 12, n)), -128, 127).astype(np.int8)
    yield wide, n, None
    yield narrow, n, None
    yield np.full(n, wide[0], np.int8), n, None
    yield np.where(rng.random(n) < 0.5, -128, 127).astype(np.int8), n, None
    yield narrow[: n // 2 + 1], n // 2 + 1, None
    yield narrow[:1], 1, None
    yield wide, int(rng.integers(0, n + 1)), None
    yield wide, 0, None
    yield narrow, n, rng.random(n) < 0.5
    yield narrow, n // 2, rng.random(n) < 0.5
    yield wide, n, np.zeros(n, bool)


def _expected(
    x: NDArray[np.int8], theta: HeadParams, mode: Mode, length: int, valid: NDArray[np.bool_] | None
) -> NDArray[Any]:
    taken = np.arange(len(x)) < length
    return reference_softmax(x, theta, mode, taken if valid is None else taken & valid)


def vector_text(found: list[Vector]) -> str:
    """`vectors.txt`, in the form that `hccs_check.c` describes."""
    lines = [str(len(found))]
    for v in found:
        masked = v.valid is not None
        lines.append(f"{v.layer} {v.head} {v.mode.value} {len(v.x)} {v.length} {int(masked)}")
        values = [v.x, v.p] if v.valid is None else [v.x, v.valid.astype(int), v.p]
        lines.extend(" ".join(map(str, row.tolist())) for row in values)
    return "\n".join(lines) + "\n"


def vector_archive(found: list[Vector], n: int) -> bytes:
    """`vectors.npz`: the same rows as arrays, padded to n columns; `valid` already holds the lengths."""
    x = np.zeros((len(found), n), np.int8)
    valid = np.zeros((len(found), n), bool)
    p = np.zeros((len(found), n), np.int16)
    for row, v in enumerate(found):
        columns = len(v.x)
        x[row, :columns], p[row, :columns] = v.x, v.p
        valid[row, : v.length] = True if v.valid is None else v.valid[: v.length]
    arrays: dict[str, Any] = {name: [getattr(v, name) for v in found] for name in ("layer", "head", "length")}
    arrays |= {"mode": [v.mode.value for v in found], "columns": [len(v.x) for v in found]}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=x, valid=valid, p=p, **arrays)
    return buffer.getvalue()
