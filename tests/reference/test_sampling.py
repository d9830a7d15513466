"""The choice of a token: its tables, its generator, and the same tokens by NumPy and by C."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import numpy as np
import pytest

from hccs.errors import ParameterError
from hccs.numbers.sampling import ONE, Sampling, powers, require_seed, score_factor
from hccs.ops.sampling import sample
from hccs.reference.sampling import philox, random_bits


def test_powers_of_two_are_the_nearest_integers():
    decimal.getcontext().prec = 60
    two = decimal.Decimal(2)
    exact = [two ** (28 - decimal.Decimal(j) / 1024) for j in range(1024)]
    nearest = [int(value.to_integral_value(decimal.ROUND_HALF_UP)) for value in exact]
    assert powers().tolist() == nearest
    # No entry is so near to a tie that another way of computing it could round it the other way.
    assert min(abs(value % 1 - decimal.Decimal("0.5")) for value in exact) > decimal.Decimal("0.0002")


def test_philox_has_the_words_of_its_authors():
    """The known answers of Random123."""
    cases = [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for counter, key, words in cases:
        assert " ".join(f"{word:08x}" for word in philox(counter, key)) == words
    assert random_bits(0, 0) == 0xE169C58D6627E8D5


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 0.001, 1 / 3, 1.0, 77.7, 1e20])
def test_a_factor_has_31_bits_and_is_the_nearest(scale):
    A, a = score_factor(scale)
    assert 2**30 <= A < 2**31
    exact = Fraction(scale) * 1024 / Fraction(math.log(2))
    assert abs(Fraction(A) / Fraction(2) ** a / exact - 1) < Fraction(1, 2**30)


def test_draws_follow_the_probabilities():
    logits = np.array([0.0, 1.0, 2.0, 3.0, -1.5])
    scores = np.tile(np.rint(logits / 1e-4).astype(np.int32), (40_000, 1))
    for temperature in (0.5, 1.0, 2.0):
        found = sample(scores, Sampling(temperature), 1e-4, [3] * len(scores), range(len(scores)))
        share = np.bincount(found, minlength=5) / len(scores)
        exact = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
        np.testing.assert_allclose(share, exact, atol=5 * np.sqrt(0.25 / len(scores)))


def test_ties_go_to_the_lowest_id():
    scores = np.array([[5, 9, 9, 9, 2]], np.int32)
    assert sample(scores, Sampling(), 0.1, [1], [1]) == [1]
    kept = {sample(scores, Sampling(1.0, top_k=2), 0.1, [seed], [0])[0] for seed in range(60)}
    assert kept == {1, 2}
    # Three tokens of one weight: two of them have more than half of all.
    kept = {sample(scores, Sampling(1e-3, top_p=0.5), 0.1, [seed], [0])[0] for seed in range(60)}
    assert kept == {1, 2}


def test_a_share_is_the_shortest_beginning_that_has_it():
    scores = np.rint(np.log([[0.5, 0.25, 0.15, 0.1]]) / 1e-5).astype(np.int32)
    for top_p, kept in ((0.4, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.95, 4), (1.0, 4)):
        drawn = {sample(scores, Sampling(1.0, None, top_p), 1e-5, [seed], [7])[0] for seed in range(300)}
        assert drawn == set(range(kept))


@pytest.mark.parametrize("part", range(4))
def test_native_code_draws_as_the_reference(part):
    """Extreme scores, scales and temperatures, many ties, top-k and top-p of all sizes."""
    rng = np.random.default_rng(part)
    for i in range(1500):
        n, spread = int(rng.integers(1, 90)), float(10 ** rng.uniform(-1, 9.6))
        scores = np.clip(rng.normal(0, spread, n), -(2**31), 2**31 - 1).astype(np.int32)
        if i % 3 == 0:
            scores = np.rint(scores / (spread / 2)).astype(np.int32)
        if i % 50 == 0:
            scores[0], scores[-1] = -(2**31), 2**31 - 1
        scale = float(10 ** rng.uniform(-12, 2)) if i % 5 else 3 / spread
        sampling = Sampling(
            float(2 ** rng.uniform(-16, 15.9)) if i % 3 else 1.0,
            None if i % 2 else int(rng.integers(1, 100)),
            None if i % 4 < 2 else float(rng.uniform(1e-6, 1)),
        )
        seed, position = int(rng.integers(0, 2**64, dtype=np.uint64)), int(rng.integers(0, 2**40))
        given = (scores[None], sampling, scale, [seed], [position])
        assert sample(*given) == sample(*given, reference=True)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")},
        {"temperature": 1e-9}, {"temperature": 65536.0}, {"temperature": True}, {"temperature": "1"},
        {"top_k": 0}, {"top_k": -3}, {"top_k": 1.5}, {"top_k": True},
        {"top_p": 0.0}, {"top_p": 1.01}, {"top_p": -0.1}, {"top_p": float("nan")},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options):
    with pytest.raises(ParameterError, match=next(iter(options))):
        Sampling(**options)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "7", None, True])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises(ParameterError, match="a seed from 0"):
        require_seed(seed)


def test_options_at_their_limits():
    assert Sampling(1 / 65536).temperature_steps == 1
    assert Sampling(65535).temperature_steps == 65535 * ONE
    assert Sampling(1.0, None, 1e-12).share == 1
    assert Sampling(1.0, None, 1.0).share == ONE
