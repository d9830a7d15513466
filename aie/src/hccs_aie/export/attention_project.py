"""Attention of a layer on an array of tiles: a tile for every head and block of query rows, in int8."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hccs.errors import ParameterError
from hccs.program import operators as op
from hccs.reference.attention import attention as reference_attention
from hccs_aie.attention import logit_factors, require_sizes, require_theta, tiled_keys, tiled_values
from hccs_aie.layer import tiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.program import Program

HEADER = 64
"""Bytes before q, k and v; the first four are the sequence's length."""

MOST_MEMORY = 62 * 1024
_SOURCES = ("hints.hpp", "hccs_softmax.hpp", "hccs_wide.hpp", "hccs_attention.hpp", "hccs_attention_tile.hpp")


@dataclass(frozen=True, eq=False)
class AttentionProject:
    """One layer's attention over n keys; refuses what no tile could run."""

    step_: op.Attention
    layer: int
    columns: int
    dim: int

    kernel: ClassVar[str] = "attention"
    sources: ClassVar[tuple[str, ...]] = _SOURCES
    output_type: ClassVar[str] = "int8"
    vector_names: ClassVar[tuple[str, str]] = ("inputs", "outputs")
    step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_sizes(self.columns, self.dim)
        require_theta(self.step_.theta, self.columns)
        if self.memory(32) > MOST_MEMORY:
            raise ParameterError(
                f"a tile of at most {MOST_MEMORY} bytes",
                f"{self.memory(32)} for {self.columns} keys and heads of {self.dim}",
                "Name fewer --columns.",
            )

    @classmethod
    def of(cls, program: Program, layer: int, columns: int | None) -> AttentionProject:
        """Layer `layer` of a program; its longest sequence, in 32s, if no columns are named."""
        steps = [step for step in program.operators if isinstance(step, op.Attention)]
        if not 0 <= layer < len(steps):
            raise ParameterError(f"a layer from 0 to {len(steps) - 1}", str(layer), "Layers count from 0.")
        width = program.values[steps[layer].output].width
        keys = -(-program.longest // 32) * 32 if columns is None else columns
        return cls(steps[layer], layer, keys, width // steps[layer].heads)

    def memory(self, rows: int) -> int:
        """Bytes of a tile: what comes and goes twice, and the scratch."""
        n, d = self.columns, self.dim
        moved = HEADER + 2 * (rows + n) * d
        return 2 * moved + rows * ((1 + self.planes) * n + 4 * d + 44) + 16 * d

    @property
    def planes(self) -> int:
        return -(-self.step_.theta.max_score // 255)

    @property
    def heads(self) -> int:
        return self.step_.heads

    @property
    def rows_per_tile(self) -> int:
        return 64 if self.columns % 64 == 0 and self.memory(64) <= MOST_MEMORY else 32

    @property
    def rows(self) -> int:
        return self.columns

    @property
    def tiles(self) -> int:
        return self.heads * self.columns // self.rows_per_tile

    @property
    def in_elements(self) -> int:
        return HEADER + (self.rows_per_tile + 2 * self.columns) * self.dim

    @property
    def out_elements(self) -> int:
        return self.rows_per_tile * self.dim

    @property
    def description(self) -> str:
        return f"{self.step_.shape}, int8 outputs"

    @property
    def vector_text(self) -> str:
        return (
            f"`vectors/inputs.bin` is int8 [{self.tiles}, {self.in_elements}]: 64 bytes that begin with the "
            "length, q, k\nand v as `src/hccs_attention.hpp` tiles them. `vectors/outputs.bin` is int8 "
            f"[{self.tiles}, {self.out_elements}], tiled too: what\n`hccs.reference` returns, bit for bit."
        )

    def text(self, target: str) -> str:
        """`project.json`."""
        numbers = {"layer": self.layer, "columns": self.columns, "dim": self.dim, "tiles": self.tiles}
        content = {"format": "hccs.aie.attention", "version": 1, "target": target, **numbers}
        content |= {"causal": self.step_.causal, "theta": self.step_.theta.packed.tolist()}
        return json.dumps(content | {"factors": self.factors.tolist()}, indent=1) + "\n"

    @property
    def factors(self) -> NDArray[np.int64]:
        """Multiplier and shift of the logits and of the output, of each head."""
        requant = self.step_.requant
        logits = np.stack(logit_factors(requant), -1)
        if logits[..., 0].any():  # one kernel for all heads: powers of two are multiplied too
            logits = requant.logits.packed.astype(np.int64)
        output = requant.output.packed  # type: ignore[union-attr]
        return np.concatenate([np.broadcast_to(f, (self.heads, 2)) for f in (logits, output)], 1).astype(
            np.int64
        )

    def parameter_header(self) -> str:
        """`hccs_parameters.hpp`: the layer as compile-time constants."""
        theta, factors = self.step_.theta, self.factors.tolist()
        causal, product = (str(bool(flag)).lower() for flag in (self.step_.causal, factors[0][0]))
        thetas = ", ".join("{" + ", ".join(map(str, head)) + "}" for head in theta.packed.tolist())
        logits, outputs = (", ".join(f"{{{f[i]}, {f[i + 1]}}}" for f in factors) for i in (0, 2))
        numbers = {"keys": self.columns, "dim": self.dim, "rows": self.rows_per_tile, "heads": self.heads}
        numbers |= {"blocks": self.columns // self.rows_per_tile, "tiles": self.tiles, "planes": self.planes}
        numbers |= {"step": 1, "in_elements": self.in_elements, "out_elements": self.out_elements}
        constants = "\n".join(
            f"    static constexpr unsigned {name} = {value};" for name, value in numbers.items()
        )
        return f"""// Attention of layer {self.layer}, written by `hccs aie export`.
#pragma once

#include "hccs_attention_tile.hpp"

namespace hccs {{

struct layer {{
    using theta = {"two_lines" if theta.wide else "head"};
    using result = int8;
{constants}
    static constexpr bool causal = {causal}, product = {product};
    // {"B, S, D, S2, D2, f" if theta.wide else "B, S, D"} of each head.
    static constexpr theta thetas[heads] = {{{thetas}}};
    static constexpr factor logits[heads] = {{{logits}}}, outputs[heads] = {{{outputs}}};
}};

using tile_scratch = attention_tile_scratch<layer>;
inline void run_tile(const int8 *in, int8 *out, unsigned first, tile_scratch &s) {{
    attention_tile<layer>(in, out, first, s);
}}

}}  // namespace hccs
"""

    def vectors(self, seed: int = 0) -> tuple[NDArray[np.int8], NDArray[Any]]:
        """Inputs [tiles, bytes] and the reference's outputs; every head has a length of its own, one 0."""
        rng = np.random.default_rng(seed)
        n, d, rows = self.columns, self.dim, self.rows_per_tile
        q, k, v = rng.integers(-127, 128, (3, self.heads, n, d)).astype(np.int8)
        lengths = rng.integers(1, n + 1, self.heads)
        lengths[-1] = n if self.heads == 1 else 0
        valid = np.broadcast_to(lengths[:, None], (self.heads, n))
        step = self.step_
        y = reference_attention(
            q, k, v, step.theta, step.requant, valid=valid, causal=step.causal, out="int8"
        )
        inputs, outputs = [], []
        for head in range(self.heads):
            header = np.zeros(HEADER, np.int8)
            header[:4] = np.array([lengths[head]], "<i4").view(np.int8)
            for start in range(0, n, rows):
                block = slice(start, start + rows)
                parts = (header, tiled(q[head, block]), tiled_keys(k[head]), tiled_values(v[head]))
                inputs.append(np.concatenate(parts))
                outputs.append(tiled(y[head, block]))
        return np.stack(inputs), np.stack(outputs)
