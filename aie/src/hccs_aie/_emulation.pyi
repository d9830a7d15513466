from typing import Any

def integer_kernel(
    by_row: bool,
    mode: int,
    x: Any,
    lengths: Any,
    out: Any,
    n: int,
    B: int,
    S: int,
    D: int,
    S2: int,
    D2: int,
    record: bool,
) -> list[tuple[str, str, int, int, int, list[int], int, int]] | None: ...
def bf16_kernel(
    native_exp: bool, x: Any, out: Any, n: int, record: bool
) -> list[tuple[str, str, int, int, int, list[int], int, int]] | None: ...
def attention_rows(n: int, dim: int) -> int: ...
def attention_kernel(
    q: Any,
    k: Any,
    v: Any,
    N: Any,
    Z: Any,
    rows: int,
    n: int,
    dim: int,
    shift: int,
    B: int,
    S: int,
    D: int,
    record: bool,
) -> list[tuple[str, str, int, int, int, list[int], int, int]] | None: ...
def logits_kernel(
    q: Any, k: Any, x: Any, rows: int, n: int, dim: int, shift: int, record: bool
) -> list[tuple[str, str, int, int, int, list[int], int, int]] | None: ...
def values_kernel(
    p: Any, v: Any, N: Any, rows: int, n: int, dim: int, record: bool
) -> list[tuple[str, str, int, int, int, list[int], int, int]] | None: ...
