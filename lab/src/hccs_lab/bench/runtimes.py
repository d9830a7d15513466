"""Models opened in the runtimes that are compared, each as one function from a batch to its scores.

    python -m hccs_lab.bench.runtimes KIND PATH SENTENCES.npz THREADS

opens one in a process of its own, answers, and prints its peak memory as one JSON object; the parent measures
the time, from before the interpreter starts. Nothing is imported before it is needed: such a process loads
one runtime only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import HccsError

Batch = Mapping[str, NDArray[np.int64]]
Answer = Callable[[Batch], NDArray[Any]]


def open_torch_float(run: Path, threads: int) -> Answer:
    """The model before the conversion, in float32 with torch's own attention."""
    from hccs.conversion.models import load_classifier, saved_labels

    folder = run / "float"
    return in_torch(load_classifier(str(folder), saved_labels(folder)).model.eval(), threads)


def open_torch_int8(run: Path, threads: int) -> Answer:
    """The converted model with integer attention, the layers around it in torch's dynamic int8."""
    import hccs.nn
    from hccs.conversion.converted import Converted

    finished = Converted(run)
    attached = hccs.nn.attach(finished.loaded.model, finished.table, backend="integer").eval()
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
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = {given.name for given in session.get_inputs()}
    return lambda batch: session.run(None, {k: v for k, v in batch.items() if k in names})[0]


def open_openvino(file: Path, threads: int) -> Answer:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(str(file), "CPU", settings).create_infer_request()
    return lambda batch: request.infer(dict(batch), share_inputs=True)[0]


def open_ours(file: Path, threads: int) -> Answer:
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


class FreshProcessError(HccsError):
    """A runtime that did not answer in a process of its own."""


def in_fresh_process(kind: str, path: Path, sentences: Path, threads: int) -> dict[str, float]:
    """Peak resident `memory` in bytes, and `first_answer` in seconds, of a process that opens and answers."""
    command = [sys.executable, "-m", "hccs_lab.bench.runtimes", kind, str(path), str(sentences), str(threads)]
    began = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise FreshProcessError(
            f"{kind} to answer in a process of its own", lines[-1] if lines else "nothing", "See its error."
        )
    return {"memory": json.loads(ended.stdout.splitlines()[-1])["memory"], "first_answer": seconds}


def peak_memory() -> int:
    try:
        # getrusage would count the parent's, which the process was for a moment.
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except OSError:  # not Linux
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else 1024 * used


def main(arguments: list[str]) -> dict[str, Any]:
    kind, path, sentences, threads = arguments
    with np.load(sentences) as file:
        batch = {name: file[name] for name in file.files}
    answer = OPENERS[kind](Path(path), int(threads))(batch)
    return {"memory": peak_memory(), "answers": len(answer)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
