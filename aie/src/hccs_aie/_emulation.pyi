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
def long_bodies(chosen: bool) -> None: ...
def attention_rows(n: int, dim: int) -> int: ...
def tile_kernel(
    name: str, arrays: list[Any], numbers: list[int], record: bool
) -> list[tuple[str, str, int, int, int, list[int], int, int]] | None: ...
