"""What the tests share: one instruction set after the other, and strategies for valid inputs."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import hccs
from hccs.backends.cpu import instruction_sets as isa

settings.register_profile(
    "hccs", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
settings.load_profile("hccs")

# A shell starts what runs in the background with Ctrl-C ignored; processes that tests interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=isa.available())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on every instruction set that this machine has."""
    isa.select(request.param)
    yield request.param
    isa.select("")


with_amx_model = pytest.mark.parametrize("instruction_set", [*isa.available(), isa.MODEL], indirect=True)
"""For tests of products that take that fixture: AMX too, on a model of its tiles."""


@pytest.fixture(autouse=True)
def _device_at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a GPU: what goes wrong after its call has returned is told of the test that made the call."""
    yield
    if request.node.get_closest_marker("gpu") is not None:
        import torch

        torch.cuda.synchronize()


@st.composite
def triples(draw: st.DrawFn, n: int) -> tuple[int, int, int]:
    """An admissible (B, S, D) for rows of n columns, at the edges of the region as often as inside."""
    region = hccs.Region(n)
    D = draw(st.sampled_from([1, 63, 64, 127]) | st.integers(1, 127))
    S = draw(st.sampled_from([0, region.max_slope(D)]) | st.integers(0, region.max_slope(D)))
    low, high = region.min_base(S, D), region.max_base
    B = draw(st.sampled_from([low, high]) | st.integers(low, high))
    return B, S, D


def logits(seed: int, shape: tuple[int, ...], spread: float = 40.0) -> np.ndarray:
    """Int8 logits with all of the range in reach; saturated where they leave it."""
    rng = np.random.default_rng(seed)
    return np.clip(np.rint(rng.normal(0, spread, shape)), -128, 127).astype(np.int8)


def recalled(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference that answers the same question once: every instruction set asks it what the others did."""
    kept: dict[bytes, Any] = {}

    def answer(*arguments: Any, **options: Any) -> Any:
        question = sha256(pickle.dumps((arguments, options))).digest()
        if question not in kept:
            found = reference(*arguments, **options)
            for array in found if isinstance(found, tuple) else (found,):
                array.setflags(write=False)
            kept[question] = found
        return kept[question]

    return answer


def from_four_threads(call: Callable[[], np.ndarray]) -> list[np.ndarray]:
    """What the call returns in each of four Python threads at once."""
    with ThreadPoolExecutor(4) as pool:
        start = Barrier(4)
        waiting = [pool.submit(lambda: (start.wait(), call())[1]) for _ in range(4)]
        return [work.result() for work in waiting]
