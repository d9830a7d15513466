"""Random programs of every form that operators can be put together in, and batches for them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hccs.executors.numpy import run
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import (
    INT8_LIMIT,
    INT16_LIMIT,
    INT32_LIMIT,
    LONG_ROW_LIMIT,
    LONG_STREAM_LIMIT,
    EmbeddingParams,
    LinearParams,
    NormParams,
    PatchParams,
    RampParams,
)
from hccs.numbers.requant import FixedPoint, Requant
from hccs.numbers.rms_norm import RmsParams
from hccs.numbers.rotary import RotateParams
from hccs.numbers.score_tables import DISTANCES, ScoreTable
from hccs.program import Program
from hccs.program import operators as op

WORDS, LONGEST = 50, 40

BY_DISTANCE = 3
"""In the place of a number of lines: scores are looked up."""


class Builder:
    """Operators one after the other; each method returns the name of what it wrote."""

    def __init__(self, seed: int, lines: int = 1) -> None:
        self.lines, self.longest = lines, LONGEST
        self.rng = np.random.default_rng(seed)
        self.operators: list[op.Operator] = []
        self.widths: dict[str, int] = {}

    def add(self, kind, inputs, width, *constants, **named) -> str:
        name = f"v{len(self.operators)}"
        self.operators.append(
            kind(inputs, name, *constants, **named) if inputs else kind(name, *constants, **named)
        )
        self.widths[name] = width
        return name

    def integers(self, low, high, shape, dtype=np.int32):
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def layer(self, outputs: int, inputs: int, limit: int = INT8_LIMIT) -> LinearParams:
        """Weights that fill their range, and outputs that mostly fit theirs."""
        weight = self.integers(-127, 127, (outputs, inputs), np.int8)
        spread = 73 * 60 * inputs**0.5
        middle = 2**16 * limit / (2.5 * spread)
        multiplier = np.clip(np.rint(middle * self.rng.uniform(0.3, 2, outputs)), 1, 2**24 - 1).astype(
            np.int32
        )
        return LinearParams(weight, self.integers(-spread, spread, outputs), multiplier, limit, 128)

    def exponents(self) -> set[str]:
        """The values whose rows have exponents."""
        return {step.output for step in self.operators if isinstance(step, op.NarrowRows)}

    def embed(self, h: int, limit: int | None, bare: bool = False) -> str:
        """With `bare` there may be no positions, and no types."""
        first = int(self.rng.integers(3))
        words = self.integers(-127, 127, (WORDS, h), np.int8)
        positions = self.integers(-20000, 20000, (self.longest + first, h), np.int16)
        types = self.integers(-9000, 9000, (2, h), np.int16)
        shift = int(self.rng.integers(8))
        if bare and self.rng.random() < 0.7:
            positions, first = None, 0
        if bare and self.rng.random() < 0.7:
            types = None
        params = EmbeddingParams(words, positions, types, shift)
        return self.add(op.Embed, (), h, params, first, limit)

    def patches(self, h: int) -> str:
        patch, channels = int(self.rng.integers(1, 5)), int(self.rng.integers(1, 4))
        image = (channels, patch * int(self.rng.integers(1, 4)), patch * int(self.rng.integers(1, 5)))
        special = int(self.rng.integers(1, 3))
        count = special + image[1] * image[2] // patch**2
        params = PatchParams(
            self.layer(h, channels * patch**2, INT16_LIMIT),
            self.integers(-32767, 32767, (special, h), np.int16),
            self.integers(-9000, 9000, (count, h), np.int16),
            patch,
            image,
        )
        return self.add(op.EmbedPatches, (), h, params)

    def norm(self, x: str, reach: float = 12000) -> str:
        h, bits = self.widths[x], int(self.rng.integers(3, 9))
        gain = np.rint(self.rng.normal(0, reach / 3 * 2**bits, h)).clip(-(2**23) + 1, 2**23 - 1)
        params = NormParams(
            gain.astype(np.int32),
            self.integers(-3000 * 2**bits, 3000 * 2**bits, h),
            bits,
            int(self.rng.integers(1, 2 ** int(self.rng.integers(1, 40)))),
        )
        return self.add(op.LayerNorm, (x,), h, params)

    def rms(self, x: str) -> str:
        h, bits = self.widths[x], int(self.rng.integers(7, 10))
        gain = np.rint(self.rng.normal(0, 4000 * 2**bits, h)).clip(-(2**23) + 1, 2**23 - 1)
        epsilon = int(self.rng.integers(1, 2 ** int(self.rng.integers(1, 40))))
        return self.add(op.RmsNorm, (x,), h, RmsParams(gain.astype(np.int32), bits, epsilon))

    def narrow(self, x: str, bits: int | None = None) -> str:
        return self.add(
            op.Narrow, (x,), self.widths[x], int(self.rng.integers(5, 9)) if bits is None else bits
        )

    def linear(self, x: str, outputs: int, limit: int = INT8_LIMIT, rows: bool = False) -> str:
        """With `rows` those of x have exponents."""
        layer = self.layer(outputs, self.widths[x], min(limit, 4 * INT16_LIMIT))
        if rows:
            multiplier = np.clip(layer.multiplier.astype(np.int64) * 2, 128, 2**24 - 1).astype(np.int32)
            layer = replace(layer, bias=layer.bias * 16, multiplier=multiplier)
        return self.add(op.Linear, (x,), outputs, replace(layer, limit=limit))

    def table(self, x: str) -> str:
        return self.add(op.Table, (x,), self.widths[x], self.integers(-127, 127, 256, np.int8))

    def sum(self, a: str, b: str, limit: int | None = None) -> str:
        return self.add(op.Add, (a, b), self.widths[a], limit=limit)

    def attend(
        self, qkv: str, heads: int, causal: bool, kv_heads: int | None = None, window: int | None = None
    ) -> str:
        S, D = self.integers(0, 5, heads), self.integers(1, 127, heads)
        theta = HeadParams(np.maximum(S * D, 1) + self.integers(0, 60, heads), S, D)
        if self.lines == 2:
            theta = self.two_lines(S, D)
        elif self.lines == BY_DISTANCE:
            theta = self.by_distance(heads)
        dim = self.widths[qkv] // (heads + 2 * (kv_heads or heads))
        factor = 2**24 / (60 * 60 * dim**0.5 / 30)
        logits = np.rint(factor * self.rng.uniform(0.3, 1, heads)).clip(1, 2**24 - 1)
        out = self.integers(2**22, 2**24 - 1, heads)
        requant = Requant(FixedPoint(logits.astype(np.int32), 24), 1.0, FixedPoint(out, 22))
        return self.add(op.Attention, (qkv,), heads * dim, theta, requant, causal, kv_heads, window)

    def two_lines(self, S, D) -> HeadParams:
        """Scores of 16 bits, of one byte and of one line with wide sums, at random."""
        D2, S2 = self.rng.integers(1, D + 1), self.integers(0, 40, len(S))
        f, least = np.zeros_like(S), S * D + S2 * D2
        B = np.minimum(least + self.integers(1, 2000, len(S)), 32767)
        if self.rng.random() < 0.5:
            while (B >> f > 255).any():
                f += B >> f > 255
        elif self.rng.random() < 0.3:
            return HeadParams(B, S, D, wide=True)
        return HeadParams(B, S, D, S2, D2, f)

    def by_distance(self, heads: int) -> ScoreTable:
        """Scores of one byte or of two that fall in steps of random size, down to 0 or not."""
        largest = int(self.rng.choice([255, 1023, 32767]))
        falls = np.sort(self.rng.integers(0, largest, (heads, DISTANCES)), axis=1)[:, ::-1]
        return ScoreTable(np.ascontiguousarray(falls + 1).astype(np.int16))

    def program(self, labels: int) -> Program:
        return Program(tuple(self.operators), tuple(f"label {i}" for i in range(labels)), self.longest, 0.01)


def scores(built: Builder, x: str, labels: int) -> Program:
    """The program that ends with the scores of an int8 value."""
    weight = built.integers(-127, 127, (labels, built.widths[x]), np.int8)
    params = LinearParams(weight, built.integers(-(2**20), 2**20, labels), None, INT8_LIMIT, 128)
    built.add(op.Linear, (x,), labels, params)
    return built.program(labels)


def random_program(seed: int, lines: int = 1) -> Program:
    """A program of random width, depth and form: the seed's digits choose among the forms."""
    built = Builder(seed, lines)
    choose = np.random.default_rng([seed, 1])
    heads = int(choose.integers(1, 5))
    h = heads * int(choose.choice([1, 3, 5, 8, 16, 32]))
    h = max(h, 2)
    pre_norm, causal, images = bool(seed & 1), bool(seed & 2), seed % 7 == 3
    per_token, tables_alone = seed % 5 in (1, 2), seed % 3 == 1
    wide, labels = int(choose.integers(1, 150)), int(choose.integers(1, 6))
    limit = int(choose.choice([20000, INT16_LIMIT])) if pre_norm else None
    x = built.patches(h) if images else built.embed(h, limit)
    if not pre_norm:
        x = built.norm(x)
    x8 = "" if pre_norm else built.narrow(x)

    def block(x: str, x8: str, inner) -> tuple[str, str]:
        part = built.linear(inner(built.narrow(built.norm(x)) if pre_norm else x8), h, INT16_LIMIT)
        if pre_norm:
            return built.sum(x, part, limit), ""
        x = built.norm(built.sum(x, part))
        return x, built.narrow(x)

    def attended(y: str) -> str:
        return built.attend(built.linear(y, 3 * h), heads, causal)

    def widened(y: str) -> str:
        y = built.linear(y, wide)
        if tables_alone:
            y = built.table(built.table(y))
        return built.table(y)

    for _ in range(int(choose.integers(1, 3))):
        x, x8 = block(x, x8, attended)
        x, x8 = block(x, x8, widened)
    y = built.narrow(built.norm(x)) if pre_norm else x8
    if tables_alone:
        y = built.table(built.narrow(x, 7))
    if not per_token:
        y = built.add(op.First, (y,), h)
        y = built.table(built.linear(y, h))
    return scores(built, y, labels)


def long_program(lines: int, causal: bool, window: int | None) -> Program:
    """One attention of two heads over up to 300 tokens, and scores of every token."""
    built = Builder(lines, lines)
    built.longest = 300
    x = built.narrow(built.norm(built.embed(32, None)))
    return scores(built, built.attend(built.linear(x, 96), 2, causal, window=window), 3)


def random_batch(program: Program, seed: int, count: int | None = None, n: int | None = None):
    """What the program takes: ids, masks of random lengths and types; or images alone."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 9)) if count is None else count
    embed = program.embed
    if isinstance(embed, op.EmbedPatches):
        return (rng.integers(0, 256, (count, *embed.params.image)).astype(np.uint8),)
    n = int(rng.integers(1, LONGEST + 1)) if n is None else n
    mask = (np.arange(n) < rng.integers(1, n + 1, (count, 1))).astype(np.int64)
    return rng.integers(0, WORDS, (count, n)), mask, rng.integers(0, embed.type_count, (count, n))


def random_embedder(seed: int) -> Program:
    """A program that ends in unit vectors: row exponents, ramps and pooling in all their forms."""
    built = Builder(seed, lines=1 + seed % 3)
    rng = built.rng
    heads = int(rng.integers(1, 4))
    h = max(heads * int(rng.choice([1, 3, 8, 16, 32])), 2)
    wide = int(rng.integers(1, 150))

    def rows(x: str) -> str:
        width = built.widths[x]
        scale = built.integers(1, 32767, width, np.int16) if rng.random() < 0.6 else None
        return built.add(op.NarrowRows, (x,), width, scale)

    def linear(x: str, outputs: int, limit: int = INT8_LIMIT) -> str:
        return built.linear(x, outputs, limit, rows=True)

    def ramp(x: str) -> str:
        function = [gelu, silu][seed // 2 % 2]
        params = RampParams.from_function(function, float(rng.uniform(2, 40)) / 32767)
        return built.add(op.Ramp, (x,), built.widths[x], params)

    x = built.norm(built.embed(h, None))
    for _ in range(int(rng.integers(1, 3))):
        qkv = linear(rows(x), 3 * h)
        x = built.norm(built.sum(x, built.linear(built.attend(qkv, heads, False), h, INT16_LIMIT)))
        active = ramp(linear(rows(x), wide, INT16_LIMIT))
        if seed % 5 == 4:  # read by two: the ramp stands alone
            active = built.sum(active, active, INT16_LIMIT)
        x = built.norm(built.sum(x, linear(rows(active), h, INT16_LIMIT)))
    pooling = ["mean", "first", "last", "max", "tokens"][seed % 5]
    dense = seed % 3 == 1
    if pooling == "first":
        x = built.add(op.First, (x,), h)
    elif pooling != "tokens":
        x = built.add(op.Pool, (x,), h, pooling, dense)
    if dense:
        x = linear(rows(x), wide, INT16_LIMIT)
        if seed % 2:
            x = built.table(built.narrow(x))
    dims = int(rng.integers(1, built.widths[x] + 1))
    built.add(op.Unit, (x,), dims, dims)
    return built.program(0)


def random_decoder(seed: int, writes: bool = False) -> Program:
    """RMSNorm, rotary positions, gated layers, shared keys, windows, a vocabulary's scores: random forms.

    One that `writes` is causal, with scores of its own words for every token.
    """
    built = Builder(seed, lines=1 + seed % 3)
    rng = built.rng
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    heads, dim = kv_heads * group, int(rng.choice([2, 3, 8, 12, 16, 32]))
    h, wide = max(int(rng.choice([3, 16, 24, 64, 70])), 2), int(rng.integers(1, 150))
    causal, window = writes or bool(seed & 1), int(rng.integers(1, 30)) if seed % 3 == 1 else None
    limit = int(rng.choice([20000, INT16_LIMIT, LONG_STREAM_LIMIT]))
    added = max(limit, INT16_LIMIT)

    def rows(x: str) -> str:
        return built.add(op.NarrowRows, (x,), built.widths[x])

    def linear(x: str, outputs: int, limit: int = INT16_LIMIT) -> str:
        return built.linear(x, outputs, limit, rows=x in built.exponents())

    def rotated(x: str) -> str:
        all_heads, pairs = heads + 2 * kv_heads, int(rng.integers(1, dim // 2 + 1))
        cosine, sine = (built.integers(-32767, 32767, (LONGEST, pairs), np.int16) for _ in range(2))
        multiplier = built.integers(2**13, 2**17, all_heads)
        return built.add(
            op.Rotate, (x,), built.widths[x], RotateParams(cosine, sine, multiplier, heads=heads)
        )

    def normed_heads(x: str) -> str:
        """Of half of all seeds, from another generator: the programs of the others stay as they were."""
        if seed // 2 % 2:
            return x
        own = np.random.default_rng(seed)
        count = heads + kv_heads + (kv_heads if seed % 8 == 0 else 0)  # no channels behind the heads
        gain = own.integers(-(2**20), 2**20, (count, dim)).astype(np.int32)
        bits, epsilon = own.integers(7, 17, count), own.integers(1, 2**40, count)
        return built.add(op.NormHeads, (x,), built.widths[x], gain, bits, epsilon)

    def gated(x: str) -> str:
        active = RampParams.from_function([gelu, silu][seed // 2 % 2], float(rng.uniform(2, 40)) / 32767)
        gate = built.add(op.Ramp, (linear(x, wide),), wide, active)
        largest, bits = [(INT16_LIMIT, 14), (LONG_ROW_LIMIT, 6), (2**18, 9)][int(rng.integers(3))]
        return built.add(op.Multiply, (gate, linear(x, wide)), wide, bits, largest)

    x = built.embed(h, None if limit > INT16_LIMIT else limit, bare=True)
    for _ in range(int(rng.integers(1, 3))):
        normed = built.rms(x)
        y = rows(normed) if rng.random() < 0.7 else built.narrow(normed)
        qkv = linear(y, (heads + 2 * kv_heads) * dim)
        attended = built.attend(
            rotated(normed_heads(qkv)), heads, causal, kv_heads if group > 1 else None, window
        )
        x = built.sum(x, linear(attended, h, added), limit)
        x = built.sum(x, linear(rows(gated(rows(built.rms(x)))), h, added), limit)
    per_token = writes or seed % 4 == 3
    y = rows(built.rms(x))
    if not per_token:
        y = built.add([op.First, op.Last][seed // 3 % 2], (y,), h)
    labels = WORDS if writes else int(rng.integers(1, 200))
    linear(y, labels, INT32_LIMIT)
    return built.program(0)


def language_model(seed: int) -> Program:
    """A small causal program with scores of its own words, close enough to each other that draws differ.

    Odd seeds have the operators of Llama, even ones those of GPT-2.
    """
    if seed % 2:
        program = random_decoder(seed, writes=True)
        batch = program.embed.read(np.arange(LONGEST)[None] % WORDS, None, None, LONGEST)
        return replace(program, score_scale=1 / float(run(program, batch).std()))
    built = Builder(seed, lines=1 + seed % 3)
    heads, dim = int(built.rng.integers(1, 5)), int(built.rng.choice([3, 8, 16, 32]))
    h = heads * dim
    x = built.embed(h, INT16_LIMIT)
    for _ in range(1 + seed % 2):
        qkv = built.linear(built.narrow(built.norm(x)), 3 * h)
        x = built.sum(x, built.linear(built.attend(qkv, heads, True), h, INT16_LIMIT), INT16_LIMIT)
        y = built.table(built.linear(built.narrow(built.norm(x)), 2 * h))
        x = built.sum(x, built.linear(y, h, INT16_LIMIT), INT16_LIMIT)
    program = scores(built, built.narrow(built.norm(x)), WORDS)
    return replace(program, score_scale=1 / (60 * 60 * h**0.5))


def gelu(x):
    return np.array([v * 0.5 * (1 + math.erf(v / 2**0.5)) for v in np.asarray(x).ravel()]).reshape(
        np.shape(x)
    )


def silu(x):
    return x / (1 + np.exp(-x))
