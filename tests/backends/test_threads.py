"""Any number of threads may be asked for, and none may be to be had."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import hccs
from hccs.backends.cpu import _native
from tests.conftest import logits

THETA = hccs.HeadParams(400, 5, 40)
REQUANT = hccs.Requant(hccs.FixedPoint(multiplier=1, shift=4), v_scale=0.5)


@pytest.mark.parametrize("threads", [2**31 - 1, 2**31, 2**63, 2**70, np.int64(7)])
def test_the_native_code_takes_any_number_of_threads(threads):
    x = logits(0, (40, 64))
    out = np.empty(x.shape, np.int16)
    _native.softmax(x, THETA.packed, 0, _native.NO_MASK, None, out, threads)
    np.testing.assert_array_equal(out, hccs.softmax(x, THETA))


@pytest.mark.parametrize("threads", [0, -1, -(2**70)])
def test_the_native_code_refuses_no_threads(threads):
    x = logits(0, (40, 64))
    q = x[None]
    with pytest.raises(ValueError, match="threads"):
        _native.softmax(x, THETA.packed, 0, _native.NO_MASK, None, np.empty(x.shape, np.int16), threads)
    with pytest.raises(ValueError, match="threads"):
        _native.attention(
            q, q, q, THETA.packed, REQUANT.packed, _native.NO_MASK, None, False, _native.DEFERRED,
            _native.OUTPUTS.index("float32"), np.empty(q.shape, np.float32), None, threads,
        )  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [("mode", 5), ("mode", -1), ("masking", 3), ("masking", -1)])
def test_the_native_code_refuses_numbers_that_it_did_not_export(name, value):
    x = logits(0, (40, 64))
    numbers = {"mode": 0, "masking": _native.NO_MASK, name: value}
    with pytest.raises(ValueError, match=f"no such {name}"):
        _native.softmax(x, THETA.packed, **numbers, valid=None, out=np.empty(x.shape, np.int16), threads=1)


STARVED = """
import resource, threading
import numpy as np, hccs, hccs.calibration
from hccs.backends.cpu import _native
x = np.random.default_rng(0).integers(-90, 90, (8, 600, 64), dtype=np.int8)
theta = hccs.HeadParams(50, 3, 12)
requant = hccs.Requant(hccs.FixedPoint(multiplier=1, shift=4), v_scale=0.5)
stats = [hccs.calibration.HeadStatistics((1, 8), 64) for _ in range(2)]
heads = np.arange(8, dtype=np.int32)

def results(threads, stats):
    stats._native.update(x, heads, None, None, None, threads)
    table = hccs.calibrate(stats, n=500, threads=threads)
    attended = hccs.attention(x, x, x, theta, requant, threads=threads)
    return hccs.softmax(x, theta, threads=threads), attended, table.B

expected = results(1, stats[0])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
thread = threading.Thread(target=print, args=("a thread could be had",))
threading.stack_size(512 << 20)  # of Python's threads; native ones take the limit below
resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
try:
    thread.start()
except RuntimeError:
    pass
for a, b in zip(expected, results(300, stats[1])):
    assert np.array_equal(a, b)
assert stats[0] == stats[1]
print("equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_threads_that_cannot_start_are_not_missed():
    result = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True)
    assert result.stdout == "equal\n", result.stdout + result.stderr
