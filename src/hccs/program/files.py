"""A program's file: safetensors with every constant, the list of operators as JSON, and a checksum."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files.checked import Format
from hccs.errors import FileError, HccsError
from hccs.numbers.embeddings import EmbeddingParams
from hccs.numbers.heads import HeadParams
from hccs.numbers.layer_norm import NormParams
from hccs.numbers.multipliers import INT16_LIMIT, LinearParams
from hccs.numbers.patches import PatchParams
from hccs.numbers.requant import FixedPoint, Requant
from hccs.program import operators as op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Parts = tuple[dict[str, NDArray[Any]], dict[str, Any]]

FORMAT = Format("hccs.Program", version=1)

IN_RUN = "model.hccs"
"""The file's name in the folder of a run."""


def save(program: op.Program, path: str | os.PathLike[str]) -> None:
    """Write the program; the file replaces an old one only once it is complete."""
    arrays: dict[str, NDArray[Any]] = {}
    listed = []
    for number, step in enumerate(program.operators):
        constants, numbers = _parts(step)
        arrays.update({f"{number}.{name}": array for name, array in constants.items()})
        listed.append({"kind": type(step).__name__, "inputs": step.inputs, "output": step.output, **numbers})
    described = json.dumps(
        {
            "operators": listed,
            "labels": program.labels,
            "longest": program.longest,
            "score_scale": program.score_scale,
            "scales": dict(program.scales),
            "tokenizer": program.tokenizer,
            "facts": dict(program.facts),
        }
    )
    FORMAT.save(path, arrays, {"program": described})


def load(path: str | os.PathLike[str]) -> op.Program:
    """Read what `save` wrote; damaged, foreign and newer files are refused."""
    arrays, metadata = FORMAT.load(path)
    try:
        content = json.loads(metadata["program"])
        steps = tuple(
            _operator(
                entry, {name.partition(".")[2]: a for name, a in arrays.items() if _number(name) == number}
            )
            for number, entry in enumerate(content.pop("operators"))
        )
        return op.Program(steps, tuple(content.pop("labels")), **content)
    except (HccsError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"a consistent program in {path}", str(error), "Lower the model anew.") from error


def _given(array: NDArray[Any] | None) -> NDArray[Any]:
    assert array is not None
    return array


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _parts(step: op.Operator) -> Parts:
    """The arrays and the plain numbers of an operator."""
    match step:
        case op.Embed(params=p):
            return (
                {"words": p.words, "positions": p.positions, "types": p.types},
                {"shift": p.shift, "first_position": step.first_position, "limit": step.limit},
            )
        case op.EmbedPatches(params=e):
            projection = e.projection
            return (
                {
                    "weight": projection.weight,
                    "bias": projection.bias,
                    "multiplier": _given(projection.multiplier),
                    "special": e.special,
                    "positions": e.positions,
                },
                {"patch": e.patch, "image": e.image},
            )
        case op.LayerNorm(params=n):
            return {"gain": n.gain, "bias": n.bias}, {"gain_bits": n.gain_bits, "epsilon": n.epsilon}
        case op.Linear(params=l):
            arrays: dict[str, NDArray[Any]] = {"weight": l.weight, "bias": l.bias}
            if l.multiplier is not None:
                arrays["multiplier"] = l.multiplier
            return arrays, {"limit": l.limit, "input_limit": l.input_limit}
        case op.Attention(theta=theta, requant=requant):
            return {"theta": theta.packed, "requant": requant.packed}, {"causal": step.causal}
        case op.Table(entries=entries):
            return {"entries": entries}, {}
        case op.Narrow(bits=bits):
            return {}, {"bits": bits}
        case op.Add(limit=limit):
            return {}, {"limit": limit}
    return {}, {}


def _operator(entry: Mapping[str, Any], arrays: dict[str, Any]) -> op.Operator:
    rest = {name: value for name, value in entry.items() if name not in ("kind", "inputs", "output")}
    place: dict[str, Any] = {"inputs": tuple(entry["inputs"]), "output": entry["output"]}
    match entry["kind"]:
        case "Embed":
            first, limit = rest.pop("first_position"), rest.pop("limit", None)
            params = EmbeddingParams(**arrays, **rest)
            return op.Embed(**place, params=params, first_position=first, limit=limit)
        case "EmbedPatches":
            weight, bias, multiplier = (arrays.pop(name) for name in ("weight", "bias", "multiplier"))
            projection = LinearParams(weight, bias, multiplier, INT16_LIMIT, input_limit=128)
            image = tuple(rest.pop("image"))
            return op.EmbedPatches(**place, params=PatchParams(projection, **arrays, **rest, image=image))
        case "LayerNorm":
            return op.LayerNorm(**place, params=NormParams(**arrays, **rest))
        case "Linear":
            return op.Linear(**place, params=LinearParams(**{"multiplier": None, **arrays}, **rest))
        case "Attention":
            logits, shift, out, out_shift, v_scale = np.moveaxis(arrays["requant"], -1, 0)
            requant = Requant(
                FixedPoint(logits, shift),
                np.ascontiguousarray(v_scale).view(np.float32),
                FixedPoint(out, out_shift),
            )
            return op.Attention(
                **place, theta=HeadParams.from_packed(arrays["theta"]), requant=requant, **rest
            )
        case "Table":
            return op.Table(**place, **arrays)
        case "Narrow":
            return op.Narrow(**place, **rest)
        case "Add":
            return op.Add(**place, **rest)
        case "First":
            return op.First(**place)
    raise ValueError(f"unknown operator {entry['kind']!r}")
