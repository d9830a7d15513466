"""One encoder in every runtime, as calls to time: the parts of encoder_cpu.py."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import embedding_peers
import numpy as np
import torch
import transformers
from embedding_peers import with_pooling

import hccs
import hccs.nn
from hccs.program import IntegerModel
from hccs_lab.bench.contenders import dynamic_int8_onnx, float_onnx, quietly, static_int8_openvino
from hccs_lab.bench.runtimes import open_onnxruntime, torch_dynamic_int8
from hccs_lab.demo import MODEL as TINY

PEERS = (
    "torch float32",
    "torch bfloat16",
    "torch dynamic int8",
    "torchao dynamic int8",
    "zentorch bfloat16",
    "ONNX Runtime float32",
    "ONNX Runtime dynamic int8",
    "OpenVINO static int8",
    "LiteRT dynamic int8",
    "CTranslate2 int8",
    "llama.cpp Q8_0",
)
PARTLY = (
    "torch float32, integer attention",
    "torch dynamic int8, integer attention",
)
WHOLE = "hccs, all in integers"
TWO_LINES = f"{WHOLE}, two lines"
HELD = ("torch float32", "OpenVINO static int8", WHOLE)
"""Those that can be held to AVX2: ONNX Runtime and torch's int8 product ask the processor alone."""

NEEDS = {
    "ONNX": ("onnxruntime", "onnx", "onnxscript"),
    "OpenVINO": ("openvino", "nncf"),
    "LiteRT": ("litert_torch",),
    "torchao": ("torchao",),
    "zentorch": ("zentorch",),
    "CTranslate2": ("ctranslate2",),
    "llama.cpp": ("xllamacpp", "gguf"),
}
POOLED_ONLY = ("CTranslate2", "llama.cpp")
"""They have no heads: their pooled vectors stand for answers for every token, too."""

COMPILED = ("torchao", "zentorch")
"""At their best behind torch.compile, which takes its time: for every size."""

SHAPES = {
    name: {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    for name, width, layers, heads in (
        ("MiniLM-L6", 384, 6, 12),
        ("BERT-small", 512, 4, 8),
        ("BERT-base", 768, 12, 12),
    )
}
TASKS = {
    "classifier": "BertForSequenceClassification",
    "tokens": "BertForTokenClassification",
    "vectors": "BertModel",
}

Batch = dict[str, torch.Tensor]
Call = Callable[[], Any]


def missing(name: str) -> list[str]:
    """The packages that a peer would need."""
    return [p for p in NEEDS.get(name.split()[0], ()) if importlib.util.find_spec(p) is None]


def encoder(folder: str | None, shape: str | None = None, task: str = "classifier") -> Any:
    """A classifier from a folder, or a model of this shape with random weights: they change no time."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if folder is not None:
        return transformers.AutoModelForSequenceClassification.from_pretrained(folder).float().eval()
    torch.manual_seed(0)
    return getattr(transformers, TASKS[task])(transformers.BertConfig(**SHAPES[shape or "BERT-small"])).eval()


def in_torch(model: Any, threads: int) -> Callable[[dict[str, Any]], Any]:
    """Scores or vectors; the number of threads is torch's for the whole process, so each call sees to it."""

    def answer(batch: dict[str, Any]) -> Any:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            found = model(**{name: torch.from_numpy(value) for name, value in batch.items()})
            return getattr(found, "logits", found).float().numpy()

    return answer


def tokens(model: Any, batch: int, n: int) -> Batch:
    """Random ids, no padding."""
    generator = torch.Generator().manual_seed(n)
    ids = torch.randint(5, model.config.vocab_size, (batch, n), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def padded(rows: Sequence[list[int]]) -> Batch:
    """Sentences as one batch, padded to the longest."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def table_for(model: Any, n: int, lines: int = 1) -> hccs.ParamTable:
    """Admissible parameters for rows of n (theta changes no time) and the model's scales of q, k and v."""
    region = hccs.Region(n)
    values = {"B": region.max_base, "S": region.max_slope(60), "D": 60, "scale": 0.05}
    if lines == 2:
        values |= {"B": 1023, "S": 3, "D": 53, "S2": 39, "D2": 21, "f": 2}
    shape = (model.config.num_hidden_layers, model.config.num_attention_heads)
    table = hccs.ParamTable(n=n, **{name: np.full(shape, value) for name, value in values.items()})
    return hccs.nn.calibrate_operands(model, table, [tokens(model, 2, n)])


class Variants:
    """All variants of one model; files of other runtimes are made once in a folder and serve every size."""

    def __init__(self, model: Any, longest: int, folder: Path, names: Sequence[str]) -> None:
        self.longest, self.folder = longest, folder
        self.left_out = {
            name: f"not installed: {', '.join(missing(name))}" for name in names if missing(name)
        }
        self.names = [name for name in names if not missing(name)]
        base = type(model) is transformers.BertModel
        if isinstance(model, transformers.BertForSequenceClassification):
            self.names = [name for name in self.names if not name.startswith(POOLED_ONLY)]
        self.vector = hccs.nn.VectorHead("mean") if base else None
        self.given, self.base = model, model.base_model
        self.model = with_pooling(model) if base else model
        self.sizes = [tokens(model, 2, n) for n in (max(longest // 2, 1), longest)]
        self.whole = {
            name: self._lowered(lines) for name, lines in ((WHOLE, 1), (TWO_LINES, 2)) if name in self.names
        }
        self.files: dict[str, Path] = {}
        if any(name.startswith("ONNX Runtime") for name in self.names):
            few = {name: value[:, :8] for name, value in tokens(model, 2, 16).items()}
            exact = folder / "float.onnx"
            self.files["float"] = exact if exact.exists() else float_onnx(self.model, few, exact)
            small = exact.with_suffix(".int8.onnx")
            self.files["int8"] = small if small.exists() else dynamic_int8_onnx(exact)

    @functools.cached_property
    def table(self) -> hccs.ParamTable:
        return table_for(self.given, self.longest)

    def _lowered(self, lines: int) -> IntegerModel:
        file = self.folder / f"{lines}_{self.longest}.hccs"
        if not file.exists():
            table = self.table if lines == 1 else table_for(self.given, self.longest, lines)
            hccs.nn.lower(self.given, table, self.sizes, vector=self.vector).save(file)
        return IntegerModel.load(file)

    @functools.cached_property
    def openvino(self) -> Any:
        import openvino

        file = self.folder / "openvino.xml"
        if not file.exists():
            arrays = [{name: value.numpy() for name, value in batch.items()} for batch in self.sizes]
            openvino.save_model(static_int8_openvino(self.model, arrays), file, compress_to_fp16=False)
        return openvino.Core().read_model(file)

    def calls(
        self, batches: Sequence[Batch], threads: int = 1, names: Sequence[str] | None = None
    ) -> dict[str, Call]:
        """One call answers all batches, one after the other; of the variants that are named, or all."""
        found = {}
        for name in [name for name in self.names if names is None or name in names]:
            try:
                call = self._call(name, batches, threads)
                call()
                found[name] = call
            except Exception as error:  # whatever other people's converters raise
                if name in self.whole:
                    raise
                self.left_out[name] = f"{type(error).__name__}: {str(error)[:200]}"
        return found

    def _call(self, name: str, batches: Sequence[Batch], threads: int) -> Call:
        arrays = [{name: value.numpy() for name, value in batch.items()} for batch in batches]
        if name in self.whole:
            given, whole = (
                [(a["input_ids"], a["attention_mask"], a["token_type_ids"]) for a in arrays],
                self.whole[name],
            )
            return lambda: [whole(*batch, threads=threads) for batch in given]
        if name.startswith("OpenVINO"):
            return self._in_openvino(arrays, threads)
        if name.startswith("LiteRT"):
            return self._in_litert(batches, threads)
        if name.startswith(POOLED_ONLY):
            rows = [batch["input_ids"].tolist() for batch in arrays]
            pooled = self._opened(name, threads)
            return lambda: [pooled(batch) for batch in rows]
        if name.startswith("ONNX"):
            answer = open_onnxruntime(self.files["int8" if "int8" in name else "float"], threads)
        else:
            answer = in_torch(self._torch_model(name), threads)
        return lambda: [answer(batch) for batch in arrays]

    def _torch_model(self, name: str) -> Any:
        model = copy.deepcopy(self.model)
        if "bfloat16" in name:
            model = model.bfloat16()
        if name.startswith("zentorch"):
            importlib.import_module("zentorch")  # registers itself
            return torch.compile(model, backend="zentorch")
        if "integer attention" in name:
            model = hccs.nn.attach(model, self.table, backend="integer")
        if name.startswith("torch dynamic int8"):
            return torch_dynamic_int8(model)
        if name.startswith("torchao"):
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

            quantize_(model, Int8DynamicActivationInt8WeightConfig())
            return torch.compile(model)
        return model

    def _opened(self, name: str, threads: int) -> Callable[[Any], Any]:
        """A runtime that reads a folder with a tokenizer, which has no part in the time of token ids."""
        folder = self.folder / "bert"
        material = embedding_peers.Material(folder, [], self.folder, None)
        if not folder.exists():
            self.base.config.position_embedding_type = "absolute"  # CTranslate2 asks for it
            self.base.save_pretrained(folder)
            for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
                if (Path(TINY) / file).exists():
                    shutil.copy(Path(TINY) / file, folder)
        contender = next(found for found in embedding_peers.CONTENDERS if found.name == name)
        if name not in self.files:
            made = self.folder / f"{name.split()[0]}.made"  # holds where the file is
            if not made.exists():
                made.write_text(str(contender.make(material)))
            self.files[name] = Path(made.read_text())
        ids = contender.open(self.files[name], folder, threads, None).ids
        assert ids is not None
        return ids

    def _in_openvino(self, arrays: list[dict[str, Any]], threads: int) -> Call:
        """One stream; a single batch gets a model compiled for its very size, several share one for any."""
        import openvino

        model = self.openvino.clone()
        if len(arrays) == 1:
            model.reshape({name: list(value.shape) for name, value in arrays[0].items()})
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if self.names == [*HELD]:  # it asks the processor whether there is bfloat16, and AVX2 has none
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
        return lambda: [request.infer(batch, share_inputs=True)[0] for batch in arrays]

    def _in_litert(self, batches: Sequence[Batch], threads: int) -> Call:
        """A file for every size: its converter fixes them."""
        from ai_edge_litert.interpreter import Interpreter

        ready = []
        for batch in batches:
            interpreter = Interpreter(str(self._litert_file(batch)), num_threads=threads)
            interpreter.allocate_tensors()
            places = zip(interpreter.get_input_details(), batch.values(), strict=True)
            given = [(place["index"], value.numpy().astype(place["dtype"])) for place, value in places]
            ready.append((interpreter, given, interpreter.get_output_details()[0]["index"]))

        def answer(interpreter: Any, given: list[tuple[int, Any]], output: int) -> Any:
            for index, array in given:
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            return interpreter.get_tensor(output)

        return lambda: [answer(*each) for each in ready]

    def _litert_file(self, batch: Batch) -> Path:
        """Dynamic int8 by its own quantiser, which is faster than its static one here."""
        import litert_torch
        from ai_edge_quantizer import quantizer, recipe

        size = "x".join(map(str, batch["input_ids"].shape))
        path = self.folder / f"{self.model.config.hidden_size}_{size}.tflite"
        if not path.exists():
            model = copy.deepcopy(self.model)
            model.set_attn_implementation("eager")
            exact = path.with_suffix(".float.tflite")
            with quietly():
                ordered = Positional(model, tuple(batch)).eval()
                litert_torch.convert(ordered, tuple(batch.values())).export(str(exact))
                work = quantizer.Quantizer(str(exact))
                work.load_quantization_recipe(recipe.dynamic_wi8_afp32())
                work.quantize().export_model(str(path))
        return path


class Positional(torch.nn.Module):
    """A model that takes its inputs in order and returns logits or vectors alone."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        found = self.model(**dict(zip(self.names, values, strict=True)))
        return getattr(found, "logits", found)
