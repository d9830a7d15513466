"""Operators of integer programs in Triton, over the packed rows of many sequences.

A value is a tensor [rows, step] with steps of whole cache lines; an exponent lies behind the channels of its
row. There is room for a class of rows, and the number of rows that there are lies in device memory: what a
launch says depends on the class alone, so that a CUDA graph serves all of it.
"""

from hccs.backends.triton.devices import INTERPRETED
from hccs.backends.triton.program.attention import attention, heads_on
from hccs.backends.triton.program.cached_attention import ALIGNMENT, Cached, attention_over_cache
from hccs.backends.triton.program.linear import LINE, layer_on, linear
from hccs.backends.triton.program.rows import (
    COPY,
    EMBEDDING,
    MULTIPLY,
    NARROW,
    NARROW_ROWS,
    PATCHES,
    ROTATE,
    SUM,
    TABLE,
    Epilogue,
    Source,
    gain_and_bias_on,
    norm,
    norm_heads,
    pieces_on,
    rows,
    scale_on,
)
from hccs.backends.triton.program.sequences import cut_pixels, measure, pack, pool, unit

__all__ = [
    "ALIGNMENT",
    "COPY",
    "EMBEDDING",
    "INTERPRETED",
    "LINE",
    "MULTIPLY",
    "NARROW",
    "NARROW_ROWS",
    "PATCHES",
    "ROTATE",
    "SUM",
    "TABLE",
    "Cached",
    "Epilogue",
    "Source",
    "attention",
    "attention_over_cache",
    "cut_pixels",
    "gain_and_bias_on",
    "heads_on",
    "layer_on",
    "linear",
    "measure",
    "norm",
    "norm_heads",
    "pack",
    "pieces_on",
    "pool",
    "rows",
    "scale_on",
    "unit",
]
