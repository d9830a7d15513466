from typing import Any

import numpy as np
from numpy.typing import NDArray

class Statistics:
    def __init__(self, n: int, scale: list[float], from_float: bool) -> None: ...
    def update(
        self, x: Any, head_of_group: Any, lengths: Any, mask: Any, weights: Any, threads: int
    ) -> None: ...
    def update_float(
        self, z: Any, head_of_group: Any, lengths: Any, mask: Any, weights: Any, threads: int
    ) -> None: ...
    def merge(self, other: Statistics) -> None: ...
    def count_pending(self) -> None: ...
    def exp_table(self, head: int) -> NDArray[np.int64]: ...
    def sums(
        self, heads: list[int], quantised: bool = False
    ) -> tuple[int, list[tuple[int, NDArray[np.int64]]]]: ...
    def state(
        self, heads: list[int]
    ) -> list[
        tuple[
            NDArray[np.int64],
            list[tuple[int, int, int, Any, Any, Any]],
            tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]] | None,
        ]
    ]: ...
    def restore_sample(self, head: int, lengths: Any, weights: Any, rows: Any, quantised: Any) -> None: ...
    def sampled(self, head: int) -> int: ...
    def restore_sums(self, head: int, halves: Any) -> None: ...
    def totals(self, head: int) -> list[tuple[int, int, int]]: ...
    def restore_bucket(
        self, head: int, length: int, count: int, weight: int, rows: Any, weights: Any, cells: Any
    ) -> None: ...
    def bytes(self, head: int) -> int: ...

class Changed(Exception): ...
class Interrupted(Exception): ...

class Interruption:
    def __init__(self) -> None: ...
    def request(self) -> None: ...

def search(
    statistics: Statistics,
    heads: list[int],
    mass: Any,
    negative_entropy: float,
    version: int,
    n: int,
    interruption: Interruption,
) -> tuple[tuple[int, int, int, float], tuple[int, int, int, float], int, int]: ...
def evaluate(
    statistics: Statistics,
    heads: list[int],
    mass: Any,
    negative_entropy: float,
    version: int,
    B: int,
    S: int,
    D: int,
) -> tuple[float, float, float]: ...
def objectives(
    statistics: Statistics, heads: list[int], mass: Any, negative_entropy: float, version: int, triples: Any
) -> NDArray[np.float64]: ...
def search_lines(
    statistics: Statistics,
    heads: list[int],
    extra_mass: Any,
    extra_entropy: float,
    version: int,
    max_base: int,
    floor: int,
    f: int,
    lines: int,
    output: bool,
    interruption: Interruption,
) -> tuple[tuple[int, int, int, int, int, int, float], tuple[int, int, int, int, int, int, float], int]: ...
def lines_objectives(
    statistics: Statistics,
    heads: list[int],
    extra_mass: Any,
    extra_entropy: float,
    version: int,
    thetas: Any,
    output: bool = False,
) -> NDArray[np.float64]: ...
def evaluate_lines(
    statistics: Statistics,
    heads: list[int],
    extra_mass: Any,
    extra_entropy: float,
    version: int,
    theta: Any,
    u8: bool,
    reciprocal: int,
) -> tuple[float, float, float]: ...

DISTANCES: int
EXP_BITS: int
MASS_BITS: int
TIE: float
