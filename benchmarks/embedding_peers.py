"""One text encoder in every runtime that is installed, as calls to time: the parts of embeddings_cpu.py.

    python benchmarks/embedding_peers.py NAME PATH MODEL THREADS TEXT

opens one in a process of its own, prints a line once it has the vector of a text, and then its peak memory.
Nothing is imported before it is needed: such a process loads one runtime only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[Any]
Rows = Sequence[Sequence[int]]
Shape = tuple[int, int]

LONGEST = 256  # tokens of a text that are read
SLOTS = 64  # texts that llama.cpp takes at a time
OURS = "hccs"
FLOAT = "torch float32"


@dataclass(frozen=True)
class Opened:
    """A model that is ready: unit vectors of one batch of token ids, or of texts in batches of some size."""

    ids: Callable[[Rows], Vectors] | None
    texts: Callable[[list[str], int], Vectors]


@dataclass(frozen=True)
class Material:
    """What the files of all runtimes are made of: a folder of sentence-transformers, and texts like those."""

    model: Path
    texts: list[str]
    folder: Path
    program: Path | None

    @cached_property
    def encoder(self) -> Any:
        from transformers import BertModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        return BertModel.from_pretrained(self.model, add_pooling_layer=False).float().eval()

    @cached_property
    def batches(self) -> list[dict[str, Any]]:
        """The texts, sorted by length, as tensors."""
        import torch

        rows = sorted(tokenised(self.model, self.texts), key=len)
        return [
            {name: torch.from_numpy(x) for name, x in padded(rows[start : start + 16]).items()}
            for start in range(0, len(rows), 16)
        ]

    @property
    def example(self) -> dict[str, Any]:
        """Two sequences of eight tokens for exporters."""
        return {name: x[:2, :8] for name, x in self.batches[-1].items()}

    @cached_property
    def table(self) -> Any:
        """Two lines per head with uint8 scores, by this package's own search."""
        import hccs.nn
        from hccs.calibration import search

        longest = min(LONGEST, self.encoder.config.max_position_embeddings)
        stats = hccs.nn.collect(self.encoder, self.batches, n=longest)
        return search(stats, longest, lines=2, scores="uint8").table

    def lowered(self, row_exponents: bool | None = None) -> Any:
        """The encoder in integers, with ranges from the texts."""
        import hccs.nn

        head = hccs.nn.VectorHead("mean")
        return hccs.nn.lower(self.encoder, self.table, self.batches, vector=head, row_exponents=row_exponents)


@dataclass(frozen=True)
class Contender:
    """A runtime: the packages it needs, the distributions it ships with, how it is made and how opened."""

    name: str
    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    make: Callable[[Material], Path]
    open: Callable[[Path, Path, int, Shape | None], Opened]
    """From its path, the folder of the model, threads, and the only shape it will see, if there is one."""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


def tokenizer(model: Path) -> Any:
    import tokenizers

    found = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    found.no_padding()
    found.enable_truncation(LONGEST)
    return found


def tokenised(model: Path, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in tokenizer(model).encode_batch_fast(texts)]


def padded(rows: Rows) -> dict[str, NDArray[np.int64]]:
    """Sequences as one batch, padded to the longest."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def pooled(hidden: Vectors, mask: NDArray[np.int64]) -> Vectors:
    """Unit vectors: the mean over tokens, divided by its length."""
    means = np.einsum("bnd,bn->bd", hidden, mask.astype(np.float32))
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def by_length(items: Sequence[Any], size: int, answer: Callable[[Any], Vectors]) -> Vectors:
    """Answers to items in batches of like lengths, in the order of the items."""
    order = sorted(range(len(items)), key=lambda i: len(items[i]))
    parts = [answer([items[i] for i in order[start : start + size]]) for start in range(0, len(order), size)]
    found = np.concatenate(parts)
    out = np.empty_like(found)
    out[order] = found
    return out


def reading(model: Path, ids: Callable[[Rows], Vectors]) -> Opened:
    """A runtime that takes token ids: the model's own tokenizer reads the texts."""
    reader = tokenizer(model)

    def texts(given: list[str], size: int) -> Vectors:
        return by_length([found.ids for found in reader.encode_batch_fast(given)], size, ids)

    return Opened(ids, texts)


def make_ours(material: Material) -> Path:
    """The program with the model's tokenizer, whether it was given or is lowered here."""
    from hccs.program import IntegerModel

    path = material.folder / "model.hccs"
    whole = IntegerModel.load(material.program) if material.program else material.lowered()
    text = {"kind": "embeddings", "max_length": min(LONGEST, whole.program.longest)}
    facts = {**whole.program.facts, "text": text}
    words = (material.model / "tokenizer.json").read_text(encoding="utf-8")
    IntegerModel(replace(whole.program, tokenizer=words, facts=facts)).save(path)
    return path


def open_ours(path: Path, model: Path, threads: int, shape: Shape | None) -> Opened:
    import hccs

    encoder = hccs.Encoder.load(path)

    def ids(rows: Rows) -> Vectors:
        batch = padded(rows)
        return encoder.model(batch["input_ids"], batch["attention_mask"], threads=threads).scores

    return Opened(ids, lambda texts, size: encoder.encode(texts, batch_size=size, threads=threads))


def make_torch(material: Material) -> Path:
    return material.model


def open_torch(path: Path, model: Path, threads: int, dtype: str) -> Opened:
    import torch
    from transformers import BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    encoder = BertModel.from_pretrained(path, add_pooling_layer=False, dtype=getattr(torch, dtype)).eval()

    def ids(rows: Rows) -> Vectors:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        batch = {name: torch.from_numpy(value) for name, value in padded(rows).items()}
        with torch.inference_mode():
            return unit_vectors(encoder(**batch)[0].float(), batch["attention_mask"]).numpy()

    return reading(model, ids)


def unit_vectors(hidden: Any, mask: Any) -> Any:
    """`pooled` in torch."""
    import torch

    return torch.nn.functional.normalize((hidden * mask[..., None].to(hidden.dtype)).sum(1))


def with_pooling(encoder: Any) -> Any:
    """A module from token ids to unit vectors, for converters: pooling becomes part of their graph."""
    import torch

    class UnitVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.config = encoder, encoder.config
            self.set_attn_implementation = encoder.set_attn_implementation

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            hidden = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            )[0]
            return unit_vectors(hidden, attention_mask)

    return UnitVectors().eval()


def make_onnx(material: Material) -> Path:
    from hccs_lab.bench.contenders import float_onnx

    path = material.folder / "float.onnx"
    return path if path.exists() else float_onnx(with_pooling(material.encoder), material.example, path)


def make_onnx_int8(material: Material, per_channel: bool) -> Path:
    """A scale per matrix is ONNX Runtime's default; a scale per channel keeps vectors closer to float32."""
    from hccs_lab.bench.contenders import dynamic_int8_onnx

    made = dynamic_int8_onnx(make_onnx(material), per_channel=per_channel)
    return made.rename(material.folder / f"int8_{per_channel}.onnx")


def open_onnx(path: Path, model: Path, threads: int, shape: Shape | None) -> Opened:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = {given.name for given in session.get_inputs()}

    def ids(rows: Rows) -> Vectors:
        return session.run(None, {name: x for name, x in padded(rows).items() if name in names})[0]

    return reading(model, ids)


def make_openvino(material: Material, kind: str) -> Path:
    """Static int8 by NNCF's ranges, weights in int8 with activations quantised as they come, or floats."""
    import openvino

    from hccs_lab.bench.contenders import quietly, static_int8_openvino

    path = material.folder / f"openvino_{kind}.xml"
    encoder = with_pooling(material.encoder)
    if kind == "static":
        arrays = [{name: x.numpy() for name, x in batch.items()} for batch in material.batches]
        converted = static_int8_openvino(encoder, arrays)
    else:
        with quietly():
            import nncf

            converted = openvino.convert_model(encoder, example_input=material.example)
            if kind == "dynamic":
                converted = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(converted, path, compress_to_fp16=False)
    return path


def open_openvino(path: Path, model: Path, threads: int, shape: Shape | None) -> Opened:
    """One stream; where there is only one shape, the model is compiled for that."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    found = core.read_model(path)
    if shape is not None:
        found.reshape({given.any_name: list(shape) for given in found.inputs})
    request = core.compile_model(found, "CPU", settings).create_infer_request()
    names = {given.any_name for given in found.inputs}

    def ids(rows: Rows) -> Vectors:
        given = {name: x for name, x in padded(rows).items() if name in names}
        return request.infer(given, share_inputs=True)[0]

    return reading(model, ids)


def make_ctranslate2(material: Material) -> Path:
    from ctranslate2.converters import TransformersConverter

    from hccs_lab.bench.contenders import quietly

    path = material.folder / "ctranslate2"
    with quietly():
        TransformersConverter(str(material.model)).convert(str(path), quantization="int8")
    return path


def open_ctranslate2(path: Path, model: Path, threads: int, shape: Shape | None) -> Opened:
    import ctranslate2

    encoder = ctranslate2.Encoder(str(path), compute_type="int8", inter_threads=1, intra_threads=threads)

    def ids(rows: Rows) -> Vectors:
        hidden = np.asarray(encoder.forward_batch([list(row) for row in rows]).last_hidden_state)
        return pooled(hidden, padded(rows)["attention_mask"])

    return reading(model, ids)


def make_llama(material: Material) -> Path:
    """A GGUF file as llama.cpp's converter writes it: matrices in Q8_0, vectors and positions in float32."""
    import gguf
    from safetensors.numpy import load_file

    config, path = material.encoder.config, material.folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    words, special = tokenizer(material.model), {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    listed = [words.id_to_token(i) or f"[unused{i}]" for i in range(config.vocab_size)]
    marked = [  # llama.cpp marks the starts of words, BERT their continuations
        word if word[0] + word[-1] == "[]" else word[2:] if word.startswith("##") else f"\u2581{word}"
        for word in listed
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_token_list(marked)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if w in special else gguf.TokenType.NORMAL for w in listed]
    )
    for name, word in (("pad", "PAD"), ("unk", "UNK"), ("bos", "CLS"), ("eos", "SEP"), ("sep", "SEP")):
        getattr(writer, f"add_{name}_token_id")(listed.index(f"[{word}]"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config.num_hidden_layers)
    for given, array in load_file(material.model / "model.safetensors").items():
        name = names.get_name(given.removeprefix("bert."), try_suffixes=(".weight", ".bias"))
        if name is None or not name.startswith(("blk.", "token_", "position_")):
            continue
        value, kind = array.astype(np.float32), None
        if value.ndim == 2 and not name.startswith(("position_", "token_types")):
            kind = gguf.GGMLQuantizationType.Q8_0
            value = gguf.quants.quantize(value, kind)
        writer.add_tensor(name, value, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def open_llama(path: Path, model: Path, threads: int, shape: Shape | None) -> Opened:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path, options.embedding, options.verbosity = str(path), True, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.n_parallel, options.n_ctx = SLOTS, SLOTS * LONGEST
    options.n_batch = options.n_ubatch = 4096
    server = xllamacpp.Server(options)

    def answer(given: Any) -> Vectors:
        found = server.handle_embeddings({"input": given})["data"]
        return np.array([entry["embedding"] for entry in found], np.float32)

    return Opened(answer, lambda texts, size: by_length(texts, size, answer))


def llama_kernels() -> str:
    """The instruction sets that llama.cpp was built for."""
    import xllamacpp

    return str(xllamacpp.get_system_info()).strip()


def make_fastembed(material: Material) -> Path:
    """A folder as fastembed downloads it: its model answers hidden states, which fastembed pools."""
    from hccs_lab.bench.contenders import float_onnx

    path = material.folder / "fastembed"
    path.mkdir()
    float_onnx(material.encoder, material.example, path / "model.onnx")
    for file in material.model.glob("*.json"):
        shutil.copy(file, path)
    return path


def open_fastembed(path: Path, model: Path, threads: int, shape: Shape | None) -> Opened:
    from fastembed import TextEmbedding

    name = "sentence-transformers/all-MiniLM-L6-v2"  # says how to pool; nothing is downloaded
    encoder = TextEmbedding(name, specific_model_path=str(path), threads=threads)

    def texts(given: list[str], size: int) -> Vectors:
        return by_length(given, size, lambda batch: np.stack([*encoder.embed(batch, batch_size=size)]))

    return Opened(None, texts)


ONNX = ("onnxruntime", "onnx", "onnxscript")
CONTENDERS = (
    Contender(OURS, ("tokenizers",), ("hccs",), make_ours, open_ours),
    Contender(
        FLOAT,
        ("torch", "transformers"),
        ("torch", "transformers"),
        make_torch,
        lambda path, model, threads, shape: open_torch(path, model, threads, "float32"),
    ),
    Contender(
        "torch bfloat16",
        ("torch", "transformers"),
        ("torch", "transformers"),
        make_torch,
        lambda path, model, threads, shape: open_torch(path, model, threads, "bfloat16"),
    ),
    Contender("ONNX Runtime float32", ONNX, ("onnxruntime",), make_onnx, open_onnx),
    *(
        Contender(
            f"ONNX Runtime dynamic int8{', per channel' if each else ''}",
            ONNX,
            ("onnxruntime",),
            lambda material, each=each: make_onnx_int8(material, each),
            open_onnx,
        )
        for each in (False, True)
    ),
    *(
        Contender(
            f"OpenVINO {'float' if kind == 'float' else f'{kind} int8'}",
            ("openvino", "nncf"),
            ("openvino",),
            lambda material, kind=kind: make_openvino(material, kind),
            open_openvino,
        )
        for kind in ("static", "dynamic", "float")
    ),
    Contender("CTranslate2 int8", ("ctranslate2",), ("ctranslate2",), make_ctranslate2, open_ctranslate2),
    Contender("llama.cpp Q8_0", ("xllamacpp", "gguf"), ("xllamacpp",), make_llama, open_llama),
    Contender(
        "fastembed float32",
        ("fastembed", *ONNX),
        ("fastembed", "onnxruntime"),
        make_fastembed,
        open_fastembed,
    ),
)


def hold_tokenizers(threads: int) -> None:
    """Hold `tokenizers` to so many threads; it asks the environment when it is first used."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"


def peak_memory() -> int:
    try:
        # getrusage would count the parent's, which the process was for a moment.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except OSError:  # not Linux
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else 1024 * used


def main(name: str, path: str, model: str, threads: str, text: str) -> None:
    hold_tokenizers(int(threads))
    contender = next(found for found in CONTENDERS if found.name == name)
    vectors = contender.open(Path(path), Path(model), int(threads), None).texts([text], 1)
    print(json.dumps({"dims": vectors.shape[1]}), flush=True)
    print(json.dumps({"memory": peak_memory()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
