"""Backends, found by operator and device when they are first needed.

A backend is a module `hccs.backends.<where>.<operator>`; those of one operator hold functions of the same
names and signatures. They are imported here by name alone, so that NumPy users never load torch or Triton.
Where the package was installed without its compiled modules, the reference runs the operators of CPUs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

from hccs._extras import how_to_install, triton_range
from hccs.errors import DtypeError, MissingExtraError

BACKENDS = {"cpu": "hccs.backends.cpu", "cuda": "hccs.backends.triton"}
"""Where the kernels for a kind of device live; torch calls AMD's GPUs "cuda" as well."""

BY_REFERENCE = ("softmax", "attention", "quantise", "top_k")
"""The operators of `hccs.ops.by_reference`."""


@functools.cache
def backend(operator: str, device: str) -> Any:
    if device not in BACKENDS:
        raise DtypeError("tensors on the CPU or on CUDA", f"device {device}", "Move them with .cpu().")
    if device == "cpu" and not is_compiled():
        if operator in BY_REFERENCE:
            return importlib.import_module("hccs.ops.by_reference")
        raise MissingExtraError(
            f"the compiled kernels of hccs for {operator}",
            "an installation without them",
            "Install a wheel, or build them with pip install . in a checkout.",
        )
    try:
        return importlib.import_module(f"{BACKENDS[device]}.{operator}")
    except (ImportError, AttributeError) as error:  # no Triton, or one without what the kernels name
        if device == "cpu":
            raise
        known = getattr(sys.modules.get("triton"), "__version__", None)
        raise MissingExtraError(
            f"{triton_range()} for tensors on CUDA",
            str(error) if known is None else f"Triton {known}: {error}",
            f"Move the tensors to the CPU, or {how_to_install('cuda')}",
        ) from error


def is_compiled() -> bool:
    """Whether the native kernels for CPUs are installed; a damaged module counts, and fails when imported."""
    return importlib.util.find_spec(f"{BACKENDS['cpu']}._native") is not None


def synchronise() -> None:
    """Wait for the kernels on every GPU, and raise what they refused.

    Kernels on a GPU tell of values they cannot take (NaN logits, lengths beyond the row, parameters outside
    the region) after the call that started them has returned: the next call on that GPU raises it, or this.
    """
    faults = sys.modules.get(f"{BACKENDS['cuda']}.faults")  # not loaded: nothing was started
    if faults is not None:
        faults.synchronise()
