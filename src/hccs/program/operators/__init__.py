"""The operators of integer programs, one module each. `OPERATORS` names those that files may hold."""

from hccs.program.operators.add import Add
from hccs.program.operators.attention import UNLIMITED, Attention
from hccs.program.operators.embed import Embed
from hccs.program.operators.embed_patches import CutPixels, EmbedPatches, PlacePatches
from hccs.program.operators.first import First
from hccs.program.operators.last import Last
from hccs.program.operators.layer_norm import LayerNorm
from hccs.program.operators.linear import Linear
from hccs.program.operators.multiply import Multiply
from hccs.program.operators.narrow import Narrow
from hccs.program.operators.narrow_rows import NarrowRows
from hccs.program.operators.norm_heads import NormHeads
from hccs.program.operators.operator import Batch, Embedding, Operator, Value
from hccs.program.operators.pool import Pool
from hccs.program.operators.ramp import Ramp
from hccs.program.operators.rms_norm import RmsNorm
from hccs.program.operators.rotate import Rotate
from hccs.program.operators.table import Table
from hccs.program.operators.unit import Unit

OPERATORS: dict[str, type[Operator]] = {
    kind.__name__: kind
    for kind in (
        Embed,
        EmbedPatches,
        LayerNorm,
        RmsNorm,
        Narrow,
        NarrowRows,
        Linear,
        NormHeads,
        Rotate,
        Attention,
        Table,
        Ramp,
        Add,
        Multiply,
        First,
        Last,
        Pool,
        Unit,
    )
}

__all__ = [
    "OPERATORS",
    "UNLIMITED",
    "Add",
    "Attention",
    "Batch",
    "CutPixels",
    "Embed",
    "EmbedPatches",
    "Embedding",
    "First",
    "Last",
    "LayerNorm",
    "Linear",
    "Multiply",
    "Narrow",
    "NarrowRows",
    "NormHeads",
    "Operator",
    "PlacePatches",
    "Pool",
    "Ramp",
    "RmsNorm",
    "Rotate",
    "Table",
    "Unit",
    "Value",
]
