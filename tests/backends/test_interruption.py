"""A signal ends a long native call where it stands, and raises what its handler raised.

Whether a call ended early shows in its output, of which the last rows are as they were.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hccs
from hccs.backends.cpu import _native, instruction_sets
from hccs.calibration import HeadStatistics
from hccs.calibration import _native as calibration

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")

THETA = hccs.HeadParams(50, 3, 12)
REQUANT = hccs.Requant(hccs.FixedPoint(multiplier=1, shift=4), v_scale=0.5)


class Alarm(Exception):
    """What the handler of these tests raises."""


@pytest.fixture(autouse=True)
def slowest():
    """The portable kernels: the longest calls for the least memory."""
    before = instruction_sets.info().isa
    instruction_sets.select("scalar")
    yield
    instruction_sets.select(before)


@pytest.fixture
def alarm():
    """Calls with an alarm that goes off soon after it is set."""

    def handler(number, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)

    def interrupted(call):
        with pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            call()

    yield interrupted
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def softmax_call():
    """A call of softmax that takes long, and its output."""
    x = np.zeros((2048, 64, 512), np.int8)
    out = np.full(x.shape, 77, np.uint8)
    return lambda threads: hccs.softmax(
        x, THETA, "u8_div", valid=np.ones((1, 1, 512), bool), out=out, threads=threads
    ), out


def attention_call():
    q, k = np.ones((4, 2000, 256), np.int8), np.ones((4, 600, 256), np.int8)
    out = np.full(q.shape, 77, np.float32)

    def call(threads):
        _native.attention(
            q, k, k, THETA.packed, REQUANT.packed, _native.NO_MASK, None, False, _native.DEFERRED,
            _native.OUTPUTS.index("float32"), out, None, threads,
        )  # fmt: skip

    return call, out


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("operator", [softmax_call, attention_call])
def test_a_handler_that_raises_ends_the_call(alarm, operator, threads):
    call, out = operator()
    alarm(lambda: call(threads))
    assert (out[-1, -1] == 77).all()
    assert (out[0, 0] != 77).all()


def test_a_handler_that_returns_lets_the_call_go_on():
    called = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: called.append(number))
    try:
        call, out = softmax_call()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        call(2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert called == [signal.SIGALRM]
    assert (out[-1, -1] != 77).all()


def test_calls_on_other_threads_than_the_main_one_go_on(alarm):
    call, out = softmax_call()
    done = threading.Event()
    thread = threading.Thread(target=lambda: (call(2), done.set()))
    thread.start()
    alarm(done.wait)
    done.wait()
    thread.join()
    assert (out[-1, -1] != 77).all()


def test_a_search_told_to_end_ends():
    stats = HeadStatistics((1, 1), 64)
    stats.update(np.zeros((1, 1, 4, 64), np.int8))
    means = stats.summary([0])
    interruption = calibration.Interruption()
    interruption.request()
    with pytest.raises(calibration.Interrupted):
        calibration.search(
            stats._native, [0], means.mass, means.negative_entropy, means.version, 64, interruption
        )


ATTENTION = """
import numpy as np, hccs
q = np.ones((4, 32767, 64), np.int8)
requant = hccs.Requant(hccs.FixedPoint(multiplier=1, shift=4), v_scale=0.5)
print("begins", flush=True)
hccs.attention(q, q, q, hccs.HeadParams(1, 0, 1), requant)
"""
SEARCH = """
import numpy as np, hccs, hccs.calibration
stats = hccs.calibration.HeadStatistics((200, 100), 16)
stats.update(np.random.default_rng(0).integers(-90, 90, (200, 100, 3, 16), dtype=np.int8))
print("begins", flush=True)
hccs.calibrate(stats)
"""


@pytest.mark.parametrize("program", [ATTENTION, SEARCH], ids=["attention", "search"])
def test_control_c_ends_what_would_take_many_minutes(program):
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HCCS_ISA": "scalar"},
    ) as process:
        try:
            assert process.stdout.readline() == "begins\n", process.stderr.read()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert said.rstrip().endswith("KeyboardInterrupt"), said
