"""Random integer programs of odd shapes, and the embedded BERT-tiny without any training."""

from __future__ import annotations

import functools

import numpy as np

from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import EmbeddingParams, NormParams, quantise_linear, quantise_scores
from hccs.numbers.requant import FixedPoint, Requant
from hccs.program import IntegerModel, Program
from hccs.program import operators as op

STREAM = 0.0005


def random_program(seed: int, lines: int = 1) -> Program:
    """Layers, widths, lengths, norms before or behind, and one answer or one per token, by the seed.

    With two lines scores are int16, or uint8 by shifts from 1 to 7, layer by layer; row sums reach 18 bits.
    """
    rng = np.random.default_rng(seed)
    heads, d = int(rng.integers(1, 4)), int(rng.integers(1, 10))
    h, wide, longest = heads * d + (heads * d == 1), int(rng.integers(1, 40)), int(rng.integers(1, 14))
    d = h // heads
    first, per_token, pre_norm = int(rng.integers(0, 3)), bool(rng.integers(2)), bool(rng.integers(2))

    def linear(outputs, inputs, out_scale, **limits):
        weight, bias = rng.normal(0, 0.5, (outputs, inputs)), rng.normal(0, 0.1, outputs)
        return quantise_linear(weight, bias, in_scale=STREAM * 2**7, out_scale=out_scale, **limits)

    def norm():
        return NormParams.from_float(
            rng.normal(1, 0.5, h), rng.normal(0, 0.3, h), 1e-5, in_scale=STREAM, out_scale=STREAM
        )

    def attention(source, output):
        B, D = rng.integers(100, 32767 // longest, heads), rng.integers(1, 128, heads)
        theta = HeadParams(B, rng.integers(0, np.minimum(B // D, 127) + 1), D)
        if lines == 2:
            theta = two_lines(rng, heads, f=int(rng.integers(0, 8)) * int(output[1:]) % 8)
        factors = [
            FixedPoint.nearest(np.exp2(rng.uniform(low, high, heads))) for low, high in ((-9, 3), (-2, 2))
        ]
        requant = Requant(factors[0], np.ones(heads), factors[1])
        return op.Attention((source,), output, theta, requant, causal=bool(rng.integers(2)))

    types = int(rng.integers(1, 3))
    tables = [
        rng.normal(0, 1, (30, h)),
        rng.normal(0, 0.5, (longest + first, h)),
        rng.normal(0, 0.1, (types, h)),
    ]
    embedded = EmbeddingParams.from_float(*tables, STREAM * 2**4, 4)
    steps: list[op.Operator] = [
        op.Embed("e", embedded, first_position=first, limit=32767 if pre_norm else None)
    ]
    stream = "e"
    if not pre_norm:
        steps.append(op.LayerNorm(("e",), "s", norm()))
        stream = "s"

    def narrowed(source, output):
        if pre_norm:
            steps.append(op.LayerNorm((source,), f"{output}_norm", norm()))
            source = f"{output}_norm"
        steps.append(op.Narrow((source,), output, int(rng.integers(0, 8))))
        return output

    def residual(part, stream, output):
        steps.append(op.Add((stream, part), f"{output}_sum", limit=20000 if pre_norm else None))
        if pre_norm:
            return f"{output}_sum"
        steps.append(op.LayerNorm((f"{output}_sum",), output, norm()))
        return output

    for i in range(int(rng.integers(1, 4))):
        x = narrowed(stream, f"x{i}")
        steps.append(op.Linear((x,), f"qkv{i}", linear(3 * h, h, 0.02)))
        steps.append(attention(f"qkv{i}", f"c{i}"))
        steps.append(op.Linear((f"c{i}",), f"p{i}", linear(h, h, STREAM, limit=32767, input_limit=128)))
        stream = residual(f"p{i}", stream, f"a{i}")
        x = narrowed(stream, f"y{i}")
        steps.append(op.Linear((x,), f"w{i}", linear(wide, h, 0.03)))
        steps.append(op.Table((f"w{i}",), f"t{i}", rng.integers(-127, 128, 256).astype(np.int8)))
        steps.append(op.Linear((f"t{i}",), f"q{i}", linear(h, wide, STREAM, limit=32767)))
        stream = residual(f"q{i}", stream, f"b{i}")
    last = narrowed(stream, "last")
    if not per_token:
        steps.append(op.First((last,), "first"))
        steps.append(op.Linear(("first",), "pooled", linear(h, h, 0.02)))
        last = "pooled"
    labels = int(rng.integers(1, 4))
    scores, scale = quantise_scores(rng.normal(0, 1, (labels, h)), rng.normal(0, 1, labels), in_scale=0.01)
    steps.append(op.Linear((last,), "scores", scores))
    return Program(tuple(steps), tuple("abc"[:labels]), longest, scale)


def two_lines(rng: np.random.Generator, heads: int, f: int) -> HeadParams:
    """Heads of two lines from all over the region, with scores of 1 to 32767, or to 255 where f shifts."""
    B = rng.integers(1000, 32768, heads) if f == 0 else rng.integers(100 << f, min(256 << f, 32768), heads)
    D = rng.integers(1, 128, heads)
    D2 = rng.integers(1, D + 1)
    S = rng.integers(0, np.minimum((B - (1 << f)) // (2 * D), 127) + 1)
    S2 = rng.integers(0, np.minimum((B - (1 << f) - S * D) // D2, 127) + 1)
    return HeadParams(B, S, D, S2, D2, f, wide=True)


@functools.cache
def bert_tiny(lines: int = 1, scores: str = "int16") -> IntegerModel:
    """The embedded model lowered after a calibration on a few sentences: real weights, no training."""
    import transformers

    import hccs
    import hccs.nn

    model = transformers.AutoModelForSequenceClassification.from_pretrained(_embedded()).eval()
    batches = [dict(_tokenizer()(_sentences("train", 12), padding=True, return_tensors="pt"))]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=64), n=64, lines=lines, scores=scores)
    return hccs.nn.lower(model, table, batches)


def dev_sentences(count: int) -> list[list[int]]:
    """Token ids of the first sentences of the embedded task's dev set."""
    found: list[list[int]] = _tokenizer()(_sentences("dev", count), truncation=True, max_length=64)[
        "input_ids"
    ]
    return found


def _embedded() -> str:
    from hccs_lab.demo import MODEL

    return str(MODEL)


@functools.cache
def _tokenizer():
    import transformers

    return transformers.AutoTokenizer.from_pretrained(_embedded())


def _sentences(part: str, count: int) -> list[str]:
    from hccs.conversion.data import tasks

    return [text[0] for text in getattr(tasks.load(tasks.TASKS["movies"]), part).texts[:count]]
