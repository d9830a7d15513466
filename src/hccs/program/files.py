"""A program's file: safetensors with every constant, the list of operators as JSON, and a checksum."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._files.checked import Format
from hccs.errors import DtypeError, FileError, HccsError
from hccs.program.operators import OPERATORS
from hccs.program.program import Program

FORMAT = Format("hccs.Program", version=1)

IN_RUN = "model.hccs"
"""The file's name in the folder of a run."""

SUFFIX = ".hccs"

_TOKENIZER = "tokenizer.json"
"""The array that holds the tokenizer's text in UTF-8: headers are small, tokenizers are not."""


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write the program; the file replaces an old one only once it is complete.

    An array that several operators share, as layers do rotary tables, is stored once.
    """
    arrays: dict[str, NDArray[Any]] = {}
    names: dict[int, str] = {}
    shared: dict[str, str] = {}
    listed = []
    for number, step in enumerate(program.operators):
        constants, numbers = step.constants()
        for name, array in constants.items():
            first = names.setdefault(id(array), f"{number}.{name}")
            if first in arrays:
                shared[f"{number}.{name}"] = first
            else:
                arrays[first] = array
        listed.append({"kind": type(step).__name__, "inputs": step.inputs, "output": step.output, **numbers})
    if program.tokenizer:
        arrays[_TOKENIZER] = np.frombuffer(program.tokenizer.encode(), np.uint8)
    described = json.dumps(
        {
            "operators": listed,
            "labels": program.labels,
            "longest": program.longest,
            "score_scale": program.score_scale,
            "scales": dict(program.scales),
            "facts": dict(program.facts),
            **({"shared": shared} if shared else {}),
        }
    )
    FORMAT.save(path, arrays, {"program": described})


def load(path: str | os.PathLike[str]) -> Program:
    """Read what `save` wrote into memory; damaged, foreign and newer files are refused.

    The arrays do not map the file, which anyone may overwrite in place while the model runs.
    """
    arrays, metadata = FORMAT.load(path, mapped=False)
    try:
        content = json.loads(metadata["program"])
        listed = content.pop("operators")
        tokenizer = arrays.pop(_TOKENIZER, np.empty(0, np.uint8)).tobytes().decode()
        arrays |= {name: arrays[first] for name, first in content.pop("shared", {}).items()}
        constants: list[dict[str, NDArray[Any]]] = [{} for _ in listed]
        for full_name, array in arrays.items():
            number, _, name = full_name.partition(".")
            constants[int(number)][name] = array
        operators = []
        for entry, own in zip(listed, constants, strict=True):
            kind = OPERATORS.get(entry.pop("kind"))
            if kind is None:
                raise ValueError(f"an operator that is none of {', '.join(OPERATORS)}")
            place = {"inputs": tuple(entry.pop("inputs")), "output": entry.pop("output")}
            operators.append(kind.from_constants(place, own, entry))
        return Program(tuple(operators), tuple(content.pop("labels")), tokenizer=tokenizer, **content)
    except (HccsError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FileError(f"a consistent program in {path}", str(error), "Lower the model again.") from error


def find(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, the model of a folder, or an installed model by its name.

    A folder has a `model.hccs`, or one `.hccs` alone. Distributions name the models that they bring by entry
    points `hccs.models`.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise DtypeError("the path of a model, or a model's name", repr(path), "Pass a str or a Path.")
    given = Path(path)
    if not given.exists():
        from importlib.metadata import entry_points  # its own imports take as long as a file's load

        installed = {entry.name: entry for entry in entry_points(group="hccs.models")}
        if str(path) in installed:
            return Path(installed[str(path)].load())
        if not given.suffix and given.name == str(path):
            names = ", ".join(sorted(installed)) or "none. pip install hccs-minilm-l6 brings one"
            raise FileError(
                "a file, a folder or the name of an installed model", str(path), f"Installed: {names}."
            )
    if not given.is_dir():
        return given
    if (given / IN_RUN).exists():
        return given / IN_RUN
    found = sorted(file.name for file in given.glob(f"*{SUFFIX}"))
    if len(found) != 1:
        raise FileError(
            f"{given} to hold one integer model",
            f"no {IN_RUN} in it" if not found else f"{len(found)}: {', '.join(found[:3])}",
            "Name a file, or a run that hccs convert has finished.",
        )
    return given / found[0]
