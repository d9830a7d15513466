"""Models opened in the runtimes that are compared, each as one function from a batch to its scores.

Nothing is imported before it is needed: a fresh process that opens one of them holds no other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Batch = Mapping[str, NDArray[np.int64]]
    Answer = Callable[[Batch], NDArray[Any]]
else:
    Batch = Mapping
    Answer = Callable


def open_torch_float(run: Path, threads: int) -> Answer:
    """The model before the conversion, in float32 with torch's own attention."""
    from hccs.conversion.models import load_classifier, saved_labels

    folder = run / "float"
    return in_torch(load_classifier(str(folder), saved_labels(folder)).model.eval(), threads)


def open_torch_int8(run: Path, threads: int) -> Answer:
    """The converted model with integer attention, the layers around it in torch's dynamic int8."""
    import hccs.nn
    from hccs.conversion.runs.converted import ConvertedRun

    finished = ConvertedRun(run)
    attached = hccs.nn.attach(finished.converted.model, finished.table, backend="integer").eval()
    return in_torch(torch_dynamic_int8(attached), threads)


def torch_dynamic_int8(model: Any) -> Any:
    """torch's own quantisation of a copy: int8 weights, activations quantised as they come."""
    import copy

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own plans for it
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)


def in_torch(model: Any, threads: int) -> Answer:
    """A torch classifier; the number of threads is torch's for the whole process, so each call sees to it."""
    import torch

    def answer(batch: Batch) -> NDArray[Any]:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            found: NDArray[Any] = model(**{k: torch.from_numpy(v) for k, v in batch.items()}).logits.numpy()
        return found

    return answer


def open_onnxruntime(file: Path, threads: int) -> Answer:
    """An ONNX file in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = {given.name for given in session.get_inputs()}
    return lambda batch: session.run(None, {k: v for k, v in batch.items() if k in names})[0]


def open_openvino(file: Path, threads: int) -> Answer:
    """A model of OpenVINO, one stream, for every length."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(str(file), "CPU", settings).create_infer_request()
    return lambda batch: request.infer(dict(batch), share_inputs=True)[0]


def open_ours(file: Path, threads: int) -> Answer:
    """The integer model; needs NumPy alone."""
    from hccs.program import IntegerModel

    model = IntegerModel.load(file)

    def answer(batch: Batch) -> NDArray[Any]:
        types = batch.get("token_type_ids")
        return model(batch["input_ids"], batch["attention_mask"], types, threads=threads).scores

    return answer


OPENERS: dict[str, Callable[[Path, int], Answer]] = {
    "torch-float": open_torch_float,
    "torch-int8": open_torch_int8,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "ours": open_ours,
}
"""By the names under which `hccs_lab.bench.fresh` knows them."""
