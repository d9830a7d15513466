from typing import Any

def softmax(x: Any, heads: Any, mode: int, masking: int, valid: Any, out: Any, threads: int) -> int: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    heads: Any,
    requant: Any,
    masking: int,
    valid: Any,
    causal: bool,
    mode: int,
    output: int,
    out: Any,
    sums: Any,
    threads: int,
) -> int: ...
def logits(
    forward: bool,
    input: Any,
    heads: Any,
    scales: Any,
    head_of_group: Any,
    rows_per_group: int,
    mode: int,
    valid: Any,
    rounded: Any,
    output: Any,
    parameters: Any,
    threads: int,
) -> bool: ...

class PackedLinear:
    def __init__(self, weight: Any, bias: Any, multiplier: Any) -> None: ...
    def run(self, x: Any, output: int, table: Any, stream: Any, out: Any, threads: int) -> None: ...

def quantise(input: Any, factors: Any, output: Any) -> bool: ...
def select(name: str) -> str: ...
def in_use() -> str: ...
def known_isas() -> list[tuple[str, bool]]: ...
def empty() -> None: ...

DONE: int
THETA_SHAPE: int
SELECTION_SHAPE: int
LENGTH_RANGE: int
MASK_LAYOUT: int
OVERLAP: int
REQUANT_SHAPE: int
NO_MASK: int
LENGTHS: int
MASK: int
MODES: tuple[str, ...]
DEFERRED: int
OUTPUTS: tuple[str, ...]
LINEAR_OUTPUTS: tuple[str, ...]
