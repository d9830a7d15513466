"""The door to every method: `names()` and `get(name)`.

    import hccs_lab.surrogates as surrogates

    method = surrogates.get("ibert")
    result = method(x, scale, valid=None, **params)   # int8 x [..., q, k]; scale, params per head
    result.probabilities                              # float64, masked positions 0
    result.integers, result.unit                      # the method's integers and what one is worth, or None
    params = method.calibrate(x, scale, valid)        # {} where there is nothing to fit
    slot = method.module(scale, params)               # torch.nn.Module (z, valid) -> p; `scale` [heads]
    hccs.nn.fill({name: slot, ...}, model)            # by the names in hccs.nn.attention_layers(model)
    method.costs                                      # declared: widths, tables, operations(k), ...
    method.costs.operations(64), method.costs.needs
    method.costs_with(mode="u8_clb")                  # the same where a parameter changes it

- `x` is int8; `scale` and every parameter are numbers or arrays that broadcast against x.shape[:-2], like
  theta in `hccs.softmax`. `valid`: a boolean mask or integer row lengths, as there.
- `calibrate(x, scale, valid)` takes the logits of one layer, [batch, heads, q, k] with scale [heads], or of a
  model, [layers, heads, rows, k] with scale [layers, heads]; the arrays it returns have scale's shape.
- `method.parameters` names the parameters with their defaults, `method.learnable` those that training changes
  in the module; `module.parameters_now()` reads them back.
- `method.module` is an `hccs.nn.AttentionSlot`. One with `method.attends` changes the attention output, not
  the probabilities alone.

Each method is a file of this folder that defines `SURROGATE`; `METHODS` names them in the order of a table.
The file of a family defines its other methods as `OTHERS`; `FAMILIES` says which file that is.
"""

from __future__ import annotations

import importlib

from hccs.errors import require_one_of
from hccs_lab.surrogates.surrogate import Surrogate

METHODS = (
    "softmax",
    "hccs",
    "hccs_two_lines",
    "hccs_two_lines_uint8",
    "ibert",
    "shiftmax",
    "log_int_softmax",
    "softmax_s8",
    "index_softmax",
    "exaq",
    "ita",
    "softermax",
    "e2softmax",
    "consmax",
    "sparsemax",
    "entmax15",
    "entmax",
    "rela",
    "sas",
    "hls4ml",
    "vitis_bf16",
    "iron_bf16",
    "aie4ml_exp",
)
FAMILIES = {
    "hccs_two_lines": "hccs",
    "hccs_two_lines_uint8": "hccs",
    "sparsemax": "entmax",
    "entmax15": "entmax",
}


def names() -> list[str]:
    """Every method, in the order of a table."""
    return list(METHODS)


def get(name: str) -> Surrogate:
    """The method of this name.

    >>> import numpy as np
    >>> get("ibert")(np.array([10, 3, -2, -20], np.int8), scale=0.1).integers
    array([138,  69,  41,   7])
    """
    require_one_of("method", name, METHODS, "hccs_lab.surrogates.names() lists them.")
    module = importlib.import_module(f"hccs_lab.surrogates.{FAMILIES.get(name, name)}")
    found: Surrogate
    (found,) = (made for made in (module.SURROGATE, *getattr(module, "OTHERS", ())) if made.name == name)
    return found
