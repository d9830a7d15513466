"""A program's fingerprint: the SHA-256 of its answers to fixed inputs. docs/spec.md says it exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import HccsError

if TYPE_CHECKING:
    from hccs.program.model import IntegerModel
    from hccs.program.program import Program

SEQUENCES = 24
IMAGES = 2
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
LONGEST = 128
FACT = "fingerprint"
"""Its name among a program's facts."""

_MULTIPLIER, _INCREMENT, _BITS = 1103515245, 12345, 31


def generated(count: int) -> NDArray[np.int64]:
    """The first numbers of the generator: x_1, x_2, ... from x_0 = 1, with x_i below 2^31.

    >>> generated(3).tolist()
    [1103527590, 377401575, 662824084]
    """
    mask = 2**_BITS - 1
    factor, increment = _MULTIPLIER, _INCREMENT
    numbers = np.array([_MULTIPLIER + _INCREMENT], np.int64)
    while len(numbers) < count:  # as many steps at once as there are numbers
        numbers = np.concatenate([numbers, (factor * numbers + increment) & mask])
        factor, increment = factor * factor & mask, (factor * increment + increment) & mask
    return numbers[:count]


def fixed_inputs(program: Program) -> Iterator[tuple[NDArray[Any], NDArray[np.int64] | None]]:
    """Token ids [1, n] with their types, or images [1, c, height, width] with None."""
    embed = program.embed
    if embed.image is not None:
        size = int(np.prod(embed.image))
        pixels = (generated(IMAGES * size) * 256 >> _BITS).astype(np.uint8)
        for number in range(IMAGES):
            yield pixels[number * size : (number + 1) * size].reshape(1, *embed.image), None
        return
    longest = min(program.longest, LONGEST)
    lengths = [n for n in LENGTHS if n < longest] + [longest]
    numbers, start = generated(SEQUENCES * longest), 0
    for number in range(SEQUENCES):
        n = lengths[number % len(lengths)]
        ids = numbers[start : start + n] * embed.vocabulary >> _BITS
        types = (np.arange(n) >= (n + 1) // 2) & (embed.type_count > 1)
        yield ids[None], types[None].astype(np.int64)
        start += n


def fingerprint(model: IntegerModel, *, reference: bool = False) -> str:
    """The fingerprint of a model: 64 hexadecimal digits, the same on every machine and by every executor."""
    digest = hashlib.sha256()
    for tokens, types in fixed_inputs(model.program):
        answer = model(tokens, None, types, reference=reference).scores[0]
        rows = np.atleast_2d(answer).astype("<i4")
        digest.update(np.array(rows.shape, "<i4").tobytes() + rows.tobytes())
    return digest.hexdigest()


def verify(model: IntegerModel) -> str:
    """The fingerprint, if engine, reference and file agree on it; otherwise a refusal says which does not.

    A program that stores none is checked by engine and reference alone.
    """
    by_reference, by_engine = fingerprint(model, reference=True), fingerprint(model)
    if by_engine != by_reference:
        raise HccsError(
            f"the engine to answer as the reference, fingerprint {by_reference}",
            by_engine,
            "This is a bug of the engine on this machine: please report it with the output of hccs info.",
        )
    stored = model.program.facts.get(FACT, by_reference)
    if stored != by_reference:
        raise HccsError(
            f"the file's fingerprint, {stored}", by_reference, "Its constants are not those it was made with."
        )
    return by_reference
