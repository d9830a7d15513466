"""The engine returns the reference's integers: any program, batch, instruction set and number of threads."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hccs.backends.cpu import instruction_sets
from hccs.errors import HccsError, ParameterError
from hccs.executors import cpu
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import INT16_LIMIT, LinearParams, NormParams
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from tests.conftest import with_amx_model
from tests.program.programs import (
    LONGEST,
    WORDS,
    Builder,
    random_batch,
    random_embedder,
    random_program,
    scores,
)

THREADS = (1, 2, 3)


def require_equal(model, batch, threads=THREADS, expected=None):
    """The engine's scores are the reference's, on each number of threads."""
    assert model._engine is not None
    if expected is None:
        expected = model(*batch, reference=True).scores
    for count in threads:
        np.testing.assert_array_equal(model(*batch, threads=count).scores, expected)


@functools.cache
def random_case(seed, lines=1):
    """A program, and batches with what the reference answers: once for all instruction sets."""
    program = random_program(seed, lines)
    model = IntegerModel(program)
    sizes = [(None, None), (1, 1), (1, LONGEST), (2, LONGEST), (40, 3)][: 5 if seed < 14 else 1]
    batches = [random_batch(program, seed, *size) for size in sizes]
    return program, [(batch, model(*batch, reference=True).scores) for batch in batches]


@with_amx_model
@pytest.mark.parametrize("seed", range(56))
def test_random_programs(seed, instruction_set):
    program, cases = random_case(seed)
    model = IntegerModel(program)
    for batch, expected in cases:
        require_equal(model, batch, expected=expected)


@with_amx_model
@pytest.mark.parametrize("seed", range(10, 24))
def test_random_programs_of_two_lines(seed, instruction_set):
    program, cases = random_case(seed, lines=2)
    model = IntegerModel(program)
    for batch, expected in cases:
        require_equal(model, batch, threads=(1, 2), expected=expected)


@functools.cache
def random_embedding_case(seed):
    program = random_embedder(seed)
    batches = [random_batch(program, seed, *size) for size in [(None, None), (1, 1), (40, 3)]]
    model = IntegerModel(program)
    return program, [(batch, model(*batch, reference=True).scores) for batch in batches]


@with_amx_model
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_that_embed(seed, instruction_set):
    program, cases = random_embedding_case(seed)
    model = IntegerModel(program)
    for batch, expected in cases:
        assert expected.dtype == np.int16
        require_equal(model, batch, expected=expected)
        np.testing.assert_array_equal(model(*[part.tolist() for part in batch]).scores, expected)


def stream_of_two_norms(built):
    """A clamped stream that two LayerNorms and a sum read, and a LayerNorm of a LayerNorm."""
    x = built.embed(24, INT16_LIMIT)
    a, b = built.norm(x), built.norm(x)
    y = built.sum(built.norm(a), b, 30000)
    return built.narrow(built.sum(x, built.norm(y), INT16_LIMIT))


def sums_of_two_readers(built):
    """int32 embeddings and sums that stand alone, since two LayerNorms read them."""
    x = built.embed(20, None)
    a, b = built.norm(x), built.norm(x)
    total = built.sum(a, b)
    return built.narrow(built.sum(built.norm(total), built.norm(total), INT16_LIMIT), 8)


def two_widths_of_one_norm(built):
    """Two narrowings of one LayerNorm, each with a layer of its own, and a look-up of the stream."""
    x = built.norm(built.embed(33, None))
    a, b = (
        built.linear(built.narrow(x, 7), 18, INT16_LIMIT),
        built.linear(built.narrow(x, 8), 18, INT16_LIMIT),
    )
    return built.table(built.narrow(built.sum(a, b, 9000), 3))


def attention_of_the_stream(built):
    """Bytes that attention and layers both read; q, k and v that two attentions read."""
    x8 = built.narrow(built.norm(built.embed(24, None)))
    a, b = built.attend(x8, 2, False), built.attend(x8, 4, True)
    total = built.sum(built.linear(a, 30, INT16_LIMIT), built.linear(b, 30, INT16_LIMIT), 20000)
    other = built.linear(x8, 30, INT16_LIMIT)
    return built.narrow(built.sum(total, other, INT16_LIMIT), 8)


def values_that_nobody_reads(built):
    """Operators whose outputs go nowhere are not run."""
    x = built.norm(built.embed(16, None))
    built.attend(built.linear(built.narrow(x), 48), 4, False)
    built.narrow(x, 3)
    return built.narrow(x, 7)


@with_amx_model
@pytest.mark.parametrize("first", [False, True], ids=["per token", "first token"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        stream_of_two_norms,
        sums_of_two_readers,
        two_widths_of_one_norm,
        attention_of_the_stream,
        values_that_nobody_reads,
    ],
)
def test_operators_in_any_order(form, first, causal, instruction_set):
    built = Builder(1)
    y = form(built)
    if causal:  # another attention behind: its queries are the first tokens', or all
        y = built.attend(built.linear(y, 3 * built.widths[y]), 1, causal)
    if first:
        y = built.add(op.First, (y,), built.widths[y])
    program = scores(built, y, 4)
    require_equal(IntegerModel(program), random_batch(program, 2, 6, 23))


def shown(built, y):
    """A program whose scores are up to 64 channels of an int8 value itself, of every token."""
    h = built.widths[y]
    chosen = np.unique(np.linspace(0, h - 1, min(h, 64)).astype(int))
    weight, none = np.eye(h, dtype=np.int8)[chosen], np.zeros(len(chosen), np.int32)
    built.add(op.Linear, (y,), len(chosen), LinearParams(weight, none, None))
    return built.program(len(chosen))


@functools.cache
def shown_case(h, seed, reach, bits):
    built = Builder(h + seed)
    program = shown(built, built.narrow(built.norm(built.embed(h, None), reach), bits))
    batch = random_batch(program, seed, 3 if h > 500 else 60, LONGEST)
    return program, batch, IntegerModel(program)(*batch, reference=True).scores


@pytest.mark.parametrize("h", [2, 7, 16, 48, 129, 512, 1024])
def test_many_rows_of_every_operator(h, instruction_set):
    """Some 100,000 operators: rows of embedding, LayerNorm, narrowing and a layer, seen in their last bit."""
    for seed, (reach, bits) in enumerate([(40, 0), (30000, 8), (12000, 7)]):
        program, batch, expected = shown_case(h, seed, reach, bits)
        require_equal(IntegerModel(program), batch, threads=(2,), expected=expected)


@pytest.mark.parametrize("h", [2, 16, 100, 1024])
def test_extreme_rows_of_layer_norm(h, instruction_set):
    """Constant rows, one outlier, all saturated; gains, biases and epsilons at the ends of their ranges."""
    rng = np.random.default_rng(h)
    words = np.zeros((WORDS, h), np.int8)
    words[1], words[2, 0], words[3] = 127, 127, rng.choice([-127, 127], h)
    words[4:] = rng.integers(-127, 128, (WORDS - 4, h))
    for gain, bias, bits, epsilon in [
        (2**23 - 1, 2**31 - 1, 0, 1),
        (-(2**23) + 1, -(2**31), 0, 1),
        (2**23 - 1, 0, 16, 1),
        (1, 1, 16, 2**62 - 1),
        (40 << 10, 0, 10, 12345),
    ]:
        built = Builder(h)
        x = built.embed(h, None)
        tables = built.operators[0].params
        built.operators[0] = op.Embed(x, type(tables)(words, tables.positions * 0, tables.types * 0, 7))
        gains = np.full(h, gain, np.int32)
        gains[::3] //= -3
        norm = op.LayerNorm((x,), "norm", NormParams(gains, np.full(h, bias, np.int32), bits, epsilon))
        built.operators.append(norm)
        built.widths["norm"] = h
        for narrowed in (0, 8, 15):
            again = Builder(h)
            again.operators, again.widths = [*built.operators], {**built.widths}
            model = IntegerModel(shown(again, again.narrow("norm", narrowed)))
            require_equal(model, (np.arange(WORDS)[:, None],), threads=(1,))


def test_padding_is_neither_seen_nor_run():
    """Ids behind a sequence's end change nothing, and scores there are zero."""
    for seed in (0, 1):
        model = IntegerModel(random_program(seed))
        ids, mask, types = random_batch(model.program, seed, 7, 20)
        expected = model(ids, mask, types).scores
        other = np.where(mask, ids, (ids + 1) % WORDS)
        np.testing.assert_array_equal(model(other, mask, types).scores, expected)
        if model.program.per_token:
            assert not expected[mask == 0].any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_any_width_and_layout(dtype):
    model = IntegerModel(random_program(0))
    ids, mask, types = random_batch(model.program, 3, 6, 20)
    expected = model(ids, mask, types).scores
    given = [array.astype(dtype) for array in (ids, mask, types)]
    for layout in (
        np.asarray,
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        np.ndarray.tolist,
    ):
        np.testing.assert_array_equal(model(*map(layout, given)).scores, expected)
    np.testing.assert_array_equal(model(given[0], mask.astype(bool), given[2]).scores, expected)
    big = np.dtype(dtype).newbyteorder(">")
    np.testing.assert_array_equal(model(*(array.astype(big) for array in given)).scores, expected)


def test_images_of_any_layout():
    model = IntegerModel(random_program(3))
    (images,) = random_batch(model.program, 0, 3)
    expected = model(images).scores
    np.testing.assert_array_equal(model(np.asfortranarray(images)).scores, expected)
    np.testing.assert_array_equal(model(images[1]).scores, expected[1:2])
    for wrong in (images.astype(np.int8), images[:, :, ::-1, :-1], images[0, 0]):
        with pytest.raises(HccsError):
            model(wrong)
    with pytest.raises(HccsError):
        model(images, np.ones((3, 1)))


def test_first_rows_of_images_are_their_own():
    """Without attention nothing but the first row is needed, whose position is that of the special token."""
    built = Builder(3)
    y = built.narrow(built.norm(built.patches(12)))
    y = built.add(op.First, (y,), 12)
    program = scores(built, y, 3)
    require_equal(IntegerModel(program), random_batch(program, 0, 5))


def test_no_sequences_have_no_scores():
    model = IntegerModel(random_program(0))
    assert model(np.zeros((0, 5), int)).scores.shape == (0, len(model.labels))


@pytest.mark.parametrize("threads", [0, -1, 2.0, True])
def test_no_threads_are_refused(threads):
    model = IntegerModel(random_program(0))
    with pytest.raises(ParameterError, match="threads"):
        model([[1, 2]], threads=threads)


def test_without_native_code_numpy_runs_it(monkeypatch):
    def missing(operator, device):
        raise ImportError("no native code")

    model = IntegerModel(random_program(0))
    batch = random_batch(model.program, 5)
    monkeypatch.setattr(cpu, "backend", missing)
    plain = IntegerModel(model.program)
    assert plain._engine is None
    np.testing.assert_array_equal(plain(*batch).scores, model(*batch).scores)


def test_many_python_threads_share_a_model():
    model = IntegerModel(random_program(4))
    batches = [random_batch(model.program, seed) for seed in range(60)]
    expected = [model(*batch, threads=1).scores for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = pool.map(lambda i: model(*batches[i], threads=1 + i % 3).scores, range(60))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


STARVED = """
import resource
import numpy as np
from hccs.program import IntegerModel
from tests.program.programs import random_program, random_batch
model = IntegerModel(random_program(4))
batch = random_batch(model.program, 1, 8, 40)
expected = model(*batch, threads=1).scores
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
assert all(np.array_equal(model(*batch, threads=threads).scores, expected) for threads in (2, 3, 300))
print("equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer maps more memory")
def test_threads_that_cannot_start_are_not_missed():
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stdout + done.stderr


def test_a_model_can_be_copied_and_sent():
    model = IntegerModel(random_program(0))
    batch = random_batch(model.program, 1)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again(*batch).scores, model(*batch).scores)


FORKED = """
import os, threading
import numpy as np
from hccs.program import IntegerModel
from tests.program.programs import random_program, random_batch
model = IntegerModel(random_program(4))
batch = random_batch(model.program, 1, 8, 40)
expected = model(*batch, threads=3).scores
busy = threading.Event()
def work():
    while not busy.is_set():
        model(*batch, threads=2)
thread = threading.Thread(target=work)
thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        equal = [np.array_equal(model(*batch, threads=t).scores, expected) for t in (1, 2, 3, 2)]
        os._exit(0 if all(equal) else 1)
    assert os.waitpid(child, 0)[1] == 0
busy.set()
thread.join()
assert np.array_equal(model(*batch, threads=3).scores, expected)
print("equal")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "equal\n", done.stdout + done.stderr


class Alarm(Exception):
    """What the handler below raises."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_ends_a_long_call(threads):
    before = instruction_sets.info().isa
    instruction_sets.select("scalar")
    built = Builder(0)
    y = built.narrow(built.norm(built.embed(600, None)))
    for _ in range(3):
        y = built.linear(built.linear(y, 1200), 600)
    model = IntegerModel(scores(built, y, 3))
    instruction_sets.select(before)
    ids = np.zeros((3000, LONGEST), np.int64)

    def handler(number, frame):
        raise Alarm

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            model(ids, threads=threads)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    require_equal(model, (ids[:1, :3],), threads=(threads,))


def test_rows_too_long_for_attention_are_explained():
    """As by the reference: columns times B must fit int16."""
    program = random_program(0)
    changed = []
    for step in program.operators:
        if isinstance(step, op.Attention):
            theta = HeadParams(np.full(step.heads, 8000), np.ones(step.heads, int), 40)
            step = op.Attention(step.inputs, step.output, theta, step.requant, step.causal)
        changed.append(step)
    model = IntegerModel(Program(tuple(changed), program.labels, LONGEST, 1.0))
    require_equal(model, (np.ones((2, 4), int),))
    with pytest.raises(ParameterError, match="row sum fits int16"):
        model(np.ones((2, 5), int))


@with_amx_model
def test_wide_sums_of_the_longest_rows(instruction_set):
    """Scores of 15 bits: sums far beyond those of one line, and int8 outputs whose products leave float32."""
    built = Builder(3)
    x = built.linear(built.narrow(built.norm(built.embed(24, None))), 48)
    y = built.attend(x, 2, False)
    step = built.operators[-1]
    theta = HeadParams([32767, 32000], [2, 9], [100, 60], [120, 127], [90, 30])
    built.operators[-1] = op.Attention(step.inputs, step.output, theta, step.requant)
    program = shown(built, y)
    require_equal(IntegerModel(program), random_batch(program, 3, 6, LONGEST))
