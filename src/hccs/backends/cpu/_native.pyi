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
def decode(
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

def top_k(vectors: Any, queries: Any, scores: Any, numbers: Any, threads: int) -> None: ...
def quantise(input: Any, factors: Any, output: Any) -> bool: ...
def sample(
    scores: Any,
    powers: Any,
    factor: int,
    shift: int,
    top_k: int,
    share: int,
    seeds: Any,
    positions: Any,
    chosen: Any,
) -> None: ...

class Engine:
    def __init__(self, arena_bytes: int, local_bytes: int) -> None: ...
    def value(self, tokens: bool, local: bool, may_turn: bool, row_bytes: int, offset: int) -> int: ...
    def segment(self, tokens: bool) -> None: ...
    def linear(
        self,
        x: int,
        out: int,
        weight: Any,
        bias: Any,
        multiplier: Any,
        limit: int,
        table: Any,
        row_exponents: int,
    ) -> None: ...
    def embedding(self, words: Any, positions: Any, types: Any, shift: int, limit: int) -> None: ...
    def embed(self, out: int) -> None: ...
    def norm(
        self,
        gain: Any,
        bias: Any,
        gain_bits: int,
        epsilon: int,
        root: int,
        root_shift: int,
        source: str,
        a: int,
        b: int,
        limit: int,
        clamped: int,
        out: int,
        narrowed: int,
        bits: int,
        scale: Any,
    ) -> None: ...
    def narrow(self, x: int, out: int, channels: int, bits: int) -> None: ...
    def narrow_rows(
        self, x: int, out: int, channels: int, x_bits: int, ramp: Any, bits: int, scale: Any
    ) -> None: ...
    def norm_heads(
        self,
        x: int,
        out: int,
        channels: int,
        gain: Any,
        gain_bits: Any,
        epsilon: Any,
        root: int,
        root_shift: int,
    ) -> None: ...
    def rotate(
        self,
        x: int,
        out: int,
        channels: int,
        cosine: Any,
        sine: Any,
        multiplier: Any,
        turned: int,
        first: int,
    ) -> None: ...
    def multiply(
        self,
        a: int,
        b: int,
        out: int,
        channels: int,
        ramp: Any,
        ramp_bits: int,
        bits: int,
        limit: int,
        rows: bool,
        scale: Any,
    ) -> None: ...
    def ramp(self, x: int, out: int, channels: int, ramp: Any, bits: int) -> None: ...
    def pool(self, x: int, out: int, channels: int, pooling: str, divided: bool) -> None: ...
    def unit(self, x: int, out: int, channels: int, bits: int) -> None: ...
    def sum(self, a: int, b: int, out: int, channels: int, limit: int) -> None: ...
    def table(self, x: int, out: int, channels: int, entries: Any) -> None: ...
    def one_row(self, x: int, out: int, bytes: int, last: bool) -> None: ...
    def attention(
        self,
        q: int,
        q_offset: int,
        kv: int,
        k_offset: int,
        v_offset: int,
        out: int,
        heads: int,
        kv_heads: int,
        dim: int,
        before: int,
        after: int,
        theta: Any,
        requant: Any,
    ) -> None: ...
    def pixels(self, out: int, special: int, patch: int, channels: int, height: int, width: int) -> None: ...
    def place(self, x: int, out: int, special: Any, positions: Any) -> None: ...
    def finish(
        self, scores: int, labels: int, bytes: int, longest: int, first_position: int, causal: bool
    ) -> None: ...
    def time_steps(self) -> None: ...
    def step_seconds(self) -> list[float]: ...
    def run(self, ids: Any, mask: Any, types: Any, scores: Any, threads: int) -> bool: ...
    def run_new_rows(
        self,
        ids: Any,
        counts: Any,
        texts: Any,
        past: Any,
        memory: Any,
        all: int,
        capacity: int,
        scores: Any,
        threads: int,
    ) -> bool: ...
    def run_pixels(self, images: Any, scores: Any, threads: int) -> bool: ...

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
