"""How fast do texts become vectors on a CPU? A sentence encoder in integers against every runtime installed.

    python benchmarks/embeddings_cpu.py --model FOLDER [--program FILE.hccs] [--texts FILE] [--threads 1]
        [--parts texts,one,sizes,first,installed,rows] [--folder FOLDER] [--json FILE]

The folder is one of sentence-transformers with mean pooling and unit vectors, such as all-MiniLM-L6-v2; every
runtime gets its weights, quantised by its own tools. Without a program the encoder is lowered here, with
ranges from the texts. A runtime is timed only if all its vectors have a cosine above 0.95 with those of
torch's float32. All take turns, so that a busy moment of the machine hits all of them, and the median of the
turns counts; the last line compares ours with the fastest peer. What is not installed is left out, and named.

- texts: many texts, from text to vector, in batches of like lengths: each runtime in its best size of these.
- one: one text of about 16 tokens, from text to vector.
- sizes: token ids to vectors, no padding, each shape by itself.
- first: from the start of a process to its first vector, and that process's peak memory.
- installed: bytes of the runtime, numpy, tokenizers and the model; what pip adds to these does not count.
- rows: what row exponents cost: the encoder lowered with and without them, at the same sizes.

In the parts one and sizes OpenVINO takes part twice: with a model for any shape, as in the other parts and as
whoever embeds arbitrary texts has it, and with a model that is compiled for the only shape that is timed.
llama.cpp comes in the wheel of xllamacpp, whose kernels may stop at AVX2; the JSON file says what they use.
tokenizers is held to as many threads as the runtimes. fastembed, which runs ONNX Runtime, takes texts only.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import embedding_peers
import numpy as np
from embedding_peers import CONTENDERS, FLOAT, OURS, Contender, Material, Opened, padded, tokenised
from provenance import write_json
from rich.console import Console
from rich.progress import track
from rich.table import Table
from turns import Call, Cell, in_turns, seconds_of
from turns import cell as turns_cell

from hccs.backends.cpu import instruction_sets as isa

PARTS = ("texts", "one", "sizes", "first", "installed", "rows")
TEXTS = Path(__file__).with_name("embedding_texts.txt")
BATCH_SIZES = (1, 8, 32, 64)
ONE = 16  # tokens
SECONDS_PER_TURN = 0.1
WORST_COSINE = 0.95
ONE_SHAPE = ", this shape alone"


def read_texts(file: Path, column: str, count: int) -> list[str]:
    """Lines of a text file, or a column of a TSV file."""
    with file.open(encoding="utf-8") as lines:
        if file.suffix == ".tsv":
            found = [row[column] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
        else:
            found = [line.strip() for line in lines if line.strip()]
    return found[:count]


def medians(calls: Mapping[str, Call], turns: int) -> dict[str, float]:
    return in_turns(calls, turns, SECONDS_PER_TURN, statistics.median)


def cell(name: str, seconds: dict[str, float], **more: Any) -> Cell:
    """Ours over the fastest peer of all, and over the fastest of those that take any shape."""
    peers = [peer for peer in seconds if peer != OURS]
    any_shape = turns_cell(name, OURS, [peer for peer in peers if not peer.endswith(ONE_SHAPE)], seconds)
    more["any_shape"] = {key: any_shape[key] for key in ("fastest_peer", "over")}
    return turns_cell(name, OURS, peers, seconds, **more)


class Field:
    """All contenders that are installed, could be made and answer the right vectors."""

    def __init__(self, material: Material, threads: int, names: list[str], console: Console) -> None:
        self.material, self.threads = material, threads
        self.paths: dict[str, Path] = {}
        self.opened: dict[str, Opened] = {}
        self.cosines: dict[str, dict[str, float]] = {}
        self.left_out: dict[str, str] = {}
        self.paths[FLOAT] = material.model
        self.exact = self._vectors(self.open(FLOAT))
        for contender in track(CONTENDERS, "models of all runtimes", console=console):
            if contender.name not in (OURS, FLOAT) and not any(map(contender.name.startswith, names)):
                continue
            if contender.missing:
                self.left_out[contender.name] = f"not installed: {', '.join(contender.missing)}"
            else:
                self._take(contender)
        for name, why in self.left_out.items():
            console.print(f"{name} is left out: {why}", markup=False)
        if OURS in self.left_out:
            raise SystemExit("there is nothing to compare")

    def _take(self, contender: Contender) -> None:
        name = contender.name
        try:
            self.paths[name] = self._made(contender)
            opened = self.open(name)
            cosines = (self._vectors(opened) * self.exact).sum(1)
        except Exception as error:  # whatever other people's converters raise
            if name in (OURS, FLOAT):
                raise
            self.left_out[name] = f"{type(error).__name__}: {str(error)[:200]}"
            return
        self.cosines[name] = {"mean": float(cosines.mean()), "least": float(cosines.min())}
        if cosines.min() > WORST_COSINE:
            self.opened[name] = opened
        else:
            self.left_out[name] = f"its vectors are not {FLOAT}'s: least cosine {cosines.min():.3f}"

    def _made(self, contender: Contender) -> Path:
        """The contender's files: those of an earlier run with the same --folder, or new ones."""
        kept = self.material.folder / f"{contender.name}.path"
        if contender.name == OURS or not kept.exists():
            kept.write_text(str(contender.make(self.material)), encoding="utf-8")
        return Path(kept.read_text(encoding="utf-8"))

    def _vectors(self, opened: Opened) -> np.ndarray:
        vectors = opened.texts(self.material.texts, BATCH_SIZES[-1]).astype(np.float64)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def open(self, name: str, shape: tuple[int, int] | None = None) -> Opened:
        contender = next(found for found in CONTENDERS if found.name == name)
        return contender.open(self.paths[name], self.material.model, self.threads, shape)

    def time_texts(self, texts: list[str], turns: int) -> Cell:
        """Each in the best of the batch sizes, which is found before the turns."""
        sizes, calls = {}, {}
        for name, opened in self.opened.items():
            tried = {size: lambda s=size, o=opened: o.texts(texts, s) for size in BATCH_SIZES}
            sizes[name] = min(tried, key=lambda size: (tried[size](), seconds_of(tried[size]))[1])
            calls[name] = tried[sizes[name]]
        tokens = sum(map(len, tokenised(self.material.model, texts)))
        found = medians(calls, turns)
        return cell(f"{len(texts)} texts", found, batch_sizes=sizes, texts=len(texts), tokens=tokens)

    def time_one(self, texts: list[str], turns: int) -> Cell:
        """The text whose number of tokens is nearest to 16."""
        lengths = [len(row) for row in tokenised(self.material.model, texts)]
        chosen = min(range(len(texts)), key=lambda i: abs(lengths[i] - ONE))
        text = [texts[chosen]]
        taking_part = self._taking_part((1, lengths[chosen])).items()
        calls = {name: partial(opened.texts, text, 1) for name, opened in taking_part}
        return cell(f"1 text, {lengths[chosen]} tokens", medians(calls, turns), tokens=lengths[chosen])

    def time_size(self, shape: tuple[int, int], turns: int) -> Cell:
        rows = self.random_rows(shape)
        calls = {
            name: partial(opened.ids, rows)
            for name, opened in self._taking_part(shape).items()
            if opened.ids is not None
        }
        return cell(f"{shape[0]} x {shape[1]} tokens", medians(calls, turns), shape=shape)

    def _taking_part(self, shape: tuple[int, int]) -> dict[str, Opened]:
        """All contenders, and OpenVINO once more with models that are compiled for this shape."""
        compiled = [name for name in self.opened if name.startswith("OpenVINO")]
        return {**self.opened, **{f"{name}{ONE_SHAPE}": self.open(name, shape) for name in compiled}}

    def random_rows(self, shape: tuple[int, int]) -> list[list[int]]:
        words = self.material.encoder.config.vocab_size
        return np.random.default_rng(shape[1]).integers(words // 2, words, shape).tolist()

    def time_rows(self, shapes: list[tuple[int, int]], turns: int) -> list[Cell]:
        """Seconds with and without row exponents, and their ratio."""
        models = {name: self.material.lowered(given) for name, given in (("with", True), ("without", False))}
        found = []
        for shape in shapes:
            ids = padded(self.random_rows(shape))["input_ids"]
            calls = {name: partial(model, ids, threads=self.threads) for name, model in models.items()}
            seconds = medians(calls, turns)
            cost = seconds["with"] / seconds["without"]
            found.append({"shape": shape, "seconds": seconds, "cost": cost})
        return found

    def time_first(self, text: str, turns: int) -> dict[str, dict[str, float]]:
        """Seconds from the start of a process to its first vector, and its peak memory in bytes: medians."""
        runs: dict[str, list[tuple[float, int]]] = {name: [] for name in self.opened}
        for _ in range(turns):
            for name in runs:
                runs[name].append(self._first(name, text))
        names = ("seconds", "memory")
        return {
            name: {
                what: statistics.median(x) for what, x in zip(names, zip(*all_of, strict=True), strict=True)
            }
            for name, all_of in runs.items()
        }

    def _first(self, name: str, text: str) -> tuple[float, int]:
        given = (name, self.paths[name], self.material.model, self.threads, text)
        command = [sys.executable, embedding_peers.__file__, *map(str, given)]
        # Without this variable the first turn keeps what Python compiles, as an installation does.
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        began = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=kept
        ) as child:
            assert child.stdout is not None
            vector = next((line for line in child.stdout if line.startswith('{"dims"')), None)
            seconds = time.perf_counter() - began
            rest = [line for line in child.stdout if line.startswith('{"memory"')]
        if vector is None or not rest:
            raise SystemExit(f"{name} did not answer in a process of its own")
        return seconds, json.loads(rest[0])["memory"]

    def installed(self) -> dict[str, dict[str, int]]:
        """Bytes of files: the runtime with numpy and tokenizers, and the model."""
        found = {}
        for contender in CONTENDERS:
            if contender.name in self.opened:
                parts = {
                    name: installed_bytes(name) for name in (*contender.distributions, "numpy", "tokenizers")
                }
                model = self.paths[contender.name]
                files = [model, *([model.with_suffix(".bin")] if model.suffix == ".xml" else [])]
                parts["model"] = sum(map(bytes_of, files))
                found[contender.name] = {"all": sum(parts.values()), **parts}
        return found


def bytes_of(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files if "__pycache__" not in file.parts)


def installed_bytes(distribution: str) -> int:
    """Files that an installer wrote; of a package that is run from its sources, those of its folder."""
    spec = find_spec(distribution)
    if distribution == "hccs" and spec is not None and spec.origin is not None:
        return bytes_of(Path(spec.origin).parent)
    files = [Path(str(file.locate())) for file in metadata.files(distribution) or []]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())


def show_cells(console: Console, title: str, cells: list[Cell]) -> None:
    table = Table(title=title)
    table.add_column("milliseconds")
    for found in cells:
        table.add_column(found["name"], justify="right")
    for name in dict.fromkeys(name for found in cells for name in found["seconds"]):
        times = [found["seconds"].get(name) for found in cells]
        table.add_row(name, *("" if x is None else f"{1e3 * x:.3f}" for x in times))
    table.add_section()
    table.add_row("over the fastest peer", *(f"{found['over']:.2f}x" for found in cells))
    table.add_row("the fastest peer", *(found["fastest_peer"] for found in cells))
    table.add_row(
        "over the fastest for any shape", *(f"{found['any_shape']['over']:.2f}x" for found in cells)
    )
    console.print(table)


def show_others(console: Console, found: dict[str, Any]) -> None:
    first, installed = found.get("first", {}), found.get("installed", {})
    if first or installed:
        table = Table("", "first vector, s", "peak memory, MB", "installed, MB", "of it model, MB")
        for name in first or installed:
            cells = (
                [f"{first[name]['seconds']:.2f}", f"{first[name]['memory'] / 1e6:.0f}"] if first else ["", ""]
            )
            if installed:
                cells += [f"{installed[name][part] / 1e6:.1f}" for part in ("all", "model")]
            table.add_row(name, *cells)
        console.print(table)
    for row in found.get("rows", []):
        console.print(f"time with row exponents over time without, {row['shape']}: {row['cost']:.3f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a folder of sentence-transformers, a BERT")
    parser.add_argument("--program", type=Path, help="the same model in integers; lowered here without")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="a TSV file, or one text per line")
    parser.add_argument("--column", default="sentence1", help="of the TSV file")
    parser.add_argument("--count", type=int, default=256, help="texts to read")
    parser.add_argument("--sizes", nargs="+", default=["1x128", "32x32"], help="sequences x tokens")
    parser.add_argument("--peers", nargs="+", default=[""], help="how the names of wanted peers begin")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path, help="keeps the peers' models here, and takes those it finds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options, console = arguments(), Console()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    embedding_peers.hold_tokenizers(options.threads)
    parts, turns = options.parts.split(","), options.turns
    shapes = [tuple(map(int, given.split("x"))) for given in options.sizes]
    texts = read_texts(options.texts, options.column, options.count)
    with tempfile.TemporaryDirectory() as temporary:
        material = Material(options.model, texts, options.folder or Path(temporary), options.program)
        field = Field(material, options.threads, options.peers, console)
        found: dict[str, Any] = {"isa": isa.info().isa, "threads": options.threads}
        if "llama.cpp Q8_0" in field.opened:
            found["llama.cpp"] = embedding_peers.llama_kernels()
        found |= {"model": options.model.name, "cosines": field.cosines, "left_out": field.left_out}
        cells = [field.time_texts(texts, turns)] if "texts" in parts else []
        cells += [field.time_one(texts, turns)] if "one" in parts else []
        cells += [field.time_size(shape, turns) for shape in shapes] if "sizes" in parts else []
        if cells:
            found["cells"] = cells
            show_cells(console, f"texts to vectors, threads: {options.threads}", cells)
        if "first" in parts:
            found["first"] = field.time_first(texts[0], min(turns, 5))
        if "installed" in parts:
            found["installed"] = field.installed()
        if "rows" in parts:
            found["rows"] = field.time_rows(shapes, turns)
        show_others(console, found)
    if options.json:
        write_json(options.json, found)
        console.print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
