"""Who is compared: the same trained model in every runtime that is installed, and ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.models import load_classifier
from hccs.conversion.runs.converted import ConvertedRun
from hccs.program.files import IN_RUN
from hccs_lab.bench import files
from hccs_lab.bench.opening import OPENERS, Answer, Batch
from hccs_lab.bench.sentences import calibration_batches

OURS = "hccs, all in integers"
CALIBRATION = 64
"""Sentences that OpenVINO's ranges are taken from."""


@dataclass(frozen=True)
class Material:
    """What contenders are made of: a finished run, its sentences, and a folder to write in."""

    run: ConvertedRun
    data: TokenisedSet
    folder: Path

    @cached_property
    def float_model(self) -> Any:
        """The model before the conversion, on the CPU."""
        return load_classifier(str(self.run.folder / "float"), self.run.labels).model.eval()

    @property
    def calibration(self) -> list[Batch]:
        """Real sentences, one by one."""
        return calibration_batches(self.data, CALIBRATION)


@dataclass(frozen=True)
class Contender:
    """A runtime: which packages it needs, how its file is made, and as what it is opened."""

    name: str
    packages: tuple[str, ...]
    kind: str
    make: Callable[[Material], tuple[Path, int]]
    """The path to open, and the bytes that have to be shipped for it."""

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]

    def open(self, path: Path, threads: int) -> Answer:
        """The model, ready to answer."""
        return OPENERS[self.kind](path, threads)


def _float(material: Material) -> tuple[Path, int]:
    return material.run.folder, _bytes_of(material.run.folder / "float")


def _torch_int8(material: Material) -> tuple[Path, int]:
    """Opened from the run: torch quantises as it loads; the bytes are those of its quantised weights."""
    from hccs_lab.bench.opening import torch_dynamic_int8

    saved = material.folder / "torch_int8.pt"
    torch.save(torch_dynamic_int8(material.float_model).state_dict(), saved)
    return material.run.folder, saved.stat().st_size


def _onnx(material: Material) -> tuple[Path, int]:
    example = {name: column[:2, :8].long().cpu() for name, column in material.data.columns.items()}
    exported = files.float_onnx(material.float_model, example, material.folder / "float.onnx")
    quantised = files.dynamic_int8_onnx(exported)
    return quantised, quantised.stat().st_size


def _openvino(material: Material) -> tuple[Path, int]:
    import openvino

    path = material.folder / "openvino.xml"
    openvino.save_model(files.static_int8_openvino(material.float_model, material.calibration), path)
    return path, path.stat().st_size + path.with_suffix(".bin").stat().st_size


def _ours(material: Material) -> tuple[Path, int]:
    path = material.run.folder / IN_RUN
    return path, path.stat().st_size


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


CONTENDERS = (
    Contender("torch float32", ("torch",), "torch-float", _float),
    Contender("torch dynamic int8, integer attention", ("torch",), "torch-int8", _torch_int8),
    Contender("ONNX Runtime dynamic int8", ("onnxruntime", "onnx", "onnxscript"), "onnxruntime", _onnx),
    Contender("OpenVINO static int8", ("openvino", "nncf"), "openvino", _openvino),
    Contender(OURS, (), "ours", _ours),
)
