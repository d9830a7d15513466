from typing import Any

def softmax(
    x: Any,
    heads: Any,
    head_of_group: Any,
    rows_per_group: int,
    mode: int,
    masking: int,
    valid: Any,
    out: Any,
    threads: int,
) -> None: ...
def select(name: str) -> str: ...
def in_use() -> str: ...
def known_isas() -> list[tuple[str, bool]]: ...
def empty() -> None: ...
