"""Exact search: every instruction set finds the reference's rows, ties and odd sizes included."""

from __future__ import annotations

import numpy as np
import pytest

from hccs.errors import HccsError
from hccs.ops import by_reference
from hccs.ops.top_k import top_k
from hccs.reference.top_k import top_k as reference


def some(seed: int, rows: int, dims: int, least: int = -128, dtype=np.int8) -> np.ndarray:
    return np.random.default_rng(seed).integers(least, -least, (rows, dims)).astype(dtype)


@pytest.mark.parametrize(
    ("rows", "dims", "queries", "k"),
    [(1, 1, 1, 1), (63, 7, 2, 5), (64, 64, 1, 64), (200, 128, 3, 10), (1000, 384, 2, 17), (300, 449, 1, 300)],
)
def test_the_rows_are_those_of_the_reference(rows, dims, queries, k, instruction_set):
    vectors, asked = some(rows, rows, dims), some(1, queries, dims)
    for threads in (1, 3):
        for found, expected in zip(
            top_k(vectors, asked, k, threads=threads), reference(vectors, asked, k), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == np.int64


def test_extreme_bytes_and_ties(instruction_set):
    vectors = np.full((500, 384), -128, np.int8)
    vectors[7] = vectors[400] = 127
    scores, numbers = top_k(vectors, np.full((1, 384), 127, np.int8), 4, threads=2)
    assert numbers.tolist() == [[7, 400, 0, 1]]
    assert scores.tolist() == [[127 * 127 * 384] * 2 + [-128 * 127 * 384] * 2]
    lowest = np.full((1, 384), -128, np.int8)
    assert top_k(vectors, lowest, 1)[0].tolist() == [[128 * 128 * 384]]


def test_more_than_there_are_gives_all_of_them():
    scores, numbers = top_k(some(0, 3, 8), some(1, 2, 8), 10)
    assert scores.shape == numbers.shape == (2, 3)
    assert top_k(some(0, 0, 8), some(1, 2, 8), 10)[0].shape == (2, 0)


def test_without_native_code_and_in_int16_numpy_finds_the_same():
    vectors, asked = some(0, 100, 48), some(1, 3, 48)
    for found in (
        by_reference.top_k(vectors, asked, 9, None),
        top_k(vectors.astype(np.int16), asked.astype(np.int16), 9),
        top_k(vectors[:, ::-1], asked[:, ::-1], 9),
    ):
        np.testing.assert_array_equal(found[1], top_k(vectors, asked, 9)[1])


@pytest.mark.parametrize(
    ("vectors", "queries", "k", "what"),
    [
        (np.zeros((2, 4)), np.zeros((1, 4)), 1, "int8"),
        (np.zeros((2, 4), np.int8), np.zeros((1, 4), np.int16), 1, "int16"),
        (np.zeros((2, 4), np.int8), np.zeros((1, 5), np.int8), 1, "one dims"),
        (np.zeros((2, 4), np.int8), np.zeros(4, np.int8), 1, "dims"),
        (np.zeros((2, 0), np.int8), np.zeros((1, 0), np.int8), 1, "dims"),
        (np.zeros((2, 4), np.int8), np.zeros((1, 4), np.int8), 0, "k"),
        (np.zeros((2, 4), np.int8), np.zeros((1, 4), np.int8), True, "k"),
    ],
)
def test_refusals(vectors, queries, k, what):
    with pytest.raises(HccsError, match=what):
        top_k(vectors, queries, k)
