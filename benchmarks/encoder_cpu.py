"""How long does a whole encoder take on a CPU? In float32, in the int8 of every runtime that is installed,
with our attention inside torch, and all in integers.

    python benchmarks/encoder_cpu.py [--model FOLDER] [--lengths 64,128,512] [--batches 1,8]
        [--parts sizes,tiny,sentences,threads,first,avx2,grid,where] [--sentences FILE.tsv] [--json FILE]
        [--models MiniLM-L6 ...] [--tasks classifier tokens vectors] [--sizes 1x32 1x128 ...]
        [--peers OpenVINO ...] [--files FOLDER] [--prepare]

Without a folder the weights are random, of BERT-small's shape: they change no time. All variants of one size
take turns, so that a busy moment of the machine hits all of them; the tables show the fastest turn of each. A
peer that is not installed or fails is left out, and named.

- sizes: a classifier, one thread, no padding.
- tiny: the embedded BERT-tiny, 1 x 32, one thread.
- sentences: 64 real sentences with the lengths they have, one thread: as one padded batch, as a tokenizer
  makes it, and sorted by length, eight at a time, as a careful user of a runtime that computes padding would.
- threads: all in integers, 8 x 128, on all cores over one.
- first: import, load and the first answer of the embedded BERT-tiny in a process of its own.
- avx2: one thread in a process that is held to AVX2, with the peers that can be held.
- grid: classifiers, models with an answer for every token and pooled vectors, of three shapes, one thread. A
  classifier of ours computes only the first token after the last attention; the others compute all.
  CTranslate2 and llama.cpp have no heads: their pooled vectors stand for every token, too.
- where: where the time of ours goes, one thread: products at the peak of VNNI that this run measures, and
  what every kind of step takes beyond; at one token, bytes of weights per second over those of a copy.

The grid can be run in pieces: what the JSON file already has of it is kept, or replaced where it is measured
again; a file of another processor is refused. --files keeps the models of all runtimes in a folder, and
--prepare only makes them. --peers takes the peers whose names begin so; torchao and zentorch, which are
compiled for every size and take a minute for that, take part in the grid only if named.

LiteRT has a file for every size, which its converter takes a while for: it is no peer of the sorted
sentences, and is installed by itself (pip install litert-torch).
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from encoder_variants import (
    COMPILED,
    HELD,
    PARTLY,
    PEERS,
    SHAPES,
    TASKS,
    TWO_LINES,
    WHOLE,
    Batch,
    Variants,
    encoder,
    missing,
    padded,
    tokens,
)
from provenance import provenance, write_json
from step_times import time_steps
from turns import Call, Cell, cell, in_turns

import hccs
from hccs.backends.cpu import instruction_sets
from hccs.conversion.data import tasks
from hccs.conversion.models import load_tokenizer
from hccs_lab.demo import MODEL as TINY

PARTS = ("sizes", "tiny", "sentences", "threads", "first", "avx2", "grid", "where")
COUNT, GROUP = 64, 8  # sentences, and how many of similar length peers take at a time
SIZES = ("1x32", "1x64", "1x128", "8x128", "32x32", "1x512", "8x512")
TURNS = 7
SECONDS_PER_TURN = 0.08
AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
FIRST_ANSWER = """
import sys, numpy as np
from hccs.program import IntegerModel
IntegerModel.load(sys.argv[1])(np.arange(5, 37)[None])
assert "torch" not in sys.modules
"""


def fastest(calls: dict[str, Call]) -> dict[str, float]:
    return in_turns(calls, TURNS, SECONDS_PER_TURN, min)


def row(name: str, seconds: dict[str, float], **more: Any) -> Cell:
    return cell(name, WHOLE, list(PEERS), seconds, **more)


def show(title: str, rows: list[Cell]) -> None:
    print(f"\n{title}: milliseconds (speed against torch float32)")
    print(" " * 42 + "".join(f"{found['name']:>17}" for found in rows))
    for name in rows[0]["seconds"]:
        cells = []
        for found in rows:
            seconds = found["seconds"]
            if name not in seconds:
                cells.append("")
                continue
            mark = "*" if name == min(seconds, key=seconds.__getitem__) else " "
            cells.append(f"{1e3 * seconds[name]:8.3f} ({seconds['torch float32'] / seconds[name]:.2f}){mark}")
        print(f"{name:42}" + "".join(f"{cell:>17}" for cell in cells))
    label = "all in integers over the fastest peer"
    print(f"{label:42}" + "".join(f"{found['over']:.2f}x ".rjust(17) for found in rows), flush=True)


def real_sentences(file: Path | None, count: int) -> list[list[int]]:
    """Token ids of the first sentences of a TSV file with a column of them, or of the embedded task."""
    if file is None:
        texts = [text[0] for text in tasks.load(tasks.TASKS["movies"]).dev.texts[:count]]
    else:
        with file.open(encoding="utf-8") as lines:
            rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            texts = [found["sentence"] for _, found in zip(range(count), rows, strict=False)]
    return load_tokenizer(str(TINY))(texts)["input_ids"]


def time_sentences(variants: Variants, chosen: list[list[int]]) -> list[Cell]:
    """All of them as one padded batch; and sorted, so many at a time."""
    by_length = sorted(chosen, key=len)
    groups = [padded(by_length[start : start + GROUP]) for start in range(0, len(by_length), GROUP)]
    facts = {"sentences": len(chosen), "tokens": sum(map(len, chosen))}
    names = (*PEERS, WHOLE)
    any_size = [name for name in names if not name.startswith("LiteRT")]
    at_once = fastest(variants.calls([padded(chosen)], names=names))
    sorted_by_length = fastest(variants.calls(groups, names=any_size))
    return [
        row(f"{len(chosen)} at once", at_once, **facts),
        row(f"sorted, by {GROUP}", sorted_by_length, **facts),
    ]


def time_threads(variants: Variants) -> dict[str, Any]:
    batch: list[Batch] = [tokens(variants.model, 8, min(128, variants.longest))]
    cores = instruction_sets.info().cores
    calls = {str(n): variants.calls(batch, n, (WHOLE,))[WHOLE] for n in sorted({1, cores})}
    seconds = fastest(calls)
    return {"cores": cores, "seconds": seconds, "over_one": seconds["1"] / seconds[str(cores)]}


def time_first_answer(folder: Path) -> float:
    """Seconds of a whole process, the best of a few: what a command that answers one question takes."""
    tiny = Variants(encoder(str(TINY)), 64, folder, (WHOLE,))
    file = folder / "tiny.hccs"
    tiny.whole[WHOLE].save(file)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", FIRST_ANSWER, str(file)], check=True)
        best = min(best, time.perf_counter() - began)
    return best


def time_sizes(variants: Variants, lengths: list[int], batches: list[int]) -> list[Cell]:
    return [
        row(f"{batch} x {n}", fastest(variants.calls([tokens(variants.model, batch, n)])), n=n, batch=batch)
        for n in lengths
        for batch in batches
    ]


def time_grid(options: argparse.Namespace, folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """Every task of every shape, all sizes; each has a folder with the files of all runtimes."""
    found = []
    longest = max(size_of(size)[1] for size in options.sizes)
    for shape in options.models:
        for task in options.tasks:
            here = folder / f"{shape}_{task}"
            here.mkdir(parents=True, exist_ok=True)
            variants = Variants(encoder(None, shape, task), longest, here, names)
            print(f"\n{shape}, {task}, one thread", flush=True)
            if options.prepare:
                variants.calls([tokens(variants.base, 1, 32)])
            for batch, n in map(size_of, options.sizes):
                given = [tokens(variants.base, batch, n)]
                if options.prepare:  # LiteRT's files are of one size, the others' of any
                    variants.calls(given, names=[name for name in names if name.startswith("LiteRT")])
                    continue
                calls = variants.calls(given)
                facts = {"shape": shape, "task": task, "n": n, "batch": batch, "left_out": variants.left_out}
                found.append(row(f"{batch} x {n}", fastest(calls), **facts))
                show_cell(found[-1])
                if options.json:  # a piece that is cut short has not been in vain
                    write_json(options.json, with_earlier({"grid": found}, options.json))
            for name, why in variants.left_out.items():
                print(f"{name} is left out: {why}", flush=True)
    return found


def show_cell(found: Cell) -> None:
    seconds = found["seconds"]
    print(f"{found['name']:>8}: {found['over']:.2f} times as fast as {found['fastest_peer']}", end="; ms: ")
    print(", ".join(f"{name} {1e3 * seconds[name]:.3f}" for name in sorted(seconds, key=seconds.__getitem__)))
    sys.stdout.flush()


def with_earlier(found: dict[str, Any], file: Path) -> dict[str, Any]:
    """What an earlier piece of the same measurement wrote, with what this one found."""
    if not file.exists():
        return found
    earlier = json.loads(file.read_text())
    if (cpu := earlier["provenance"]["cpu"]) != provenance()["cpu"]:
        raise SystemExit(f"{file} was measured on another processor: {cpu}. Give another name.")
    merged = {name: value for name, value in earlier.items() if name != "provenance"} | found
    for part, keys in (("grid", ("shape", "task", "name")), ("where", ("shape", "size"))):
        cells = [*earlier.get(part, []), *found.get(part, [])]
        if cells:
            merged[part] = list({tuple(cell[key] for key in keys): cell for cell in cells}.values())
    return merged


def size_of(given: str) -> tuple[int, int]:
    batch, n = map(int, given.split("x"))
    return batch, n


def held_to_avx2(arguments: list[str]) -> dict[str, Any]:
    """The sizes again in a process that is held to AVX2 from its start."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "avx2.json"
        command = [sys.executable, __file__, *arguments, "--parts", "sizes", "--held", "--json", str(out)]
        subprocess.run(command, check=True, env={**os.environ, **AVX2})
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a folder with a BERT; random weights of BERT-small's shape without")
    parser.add_argument("--lengths", default="64,128,512")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--sentences", type=Path, help="a TSV file with a column `sentence`, such as SST-2's")
    parser.add_argument("--count", type=int, default=COUNT, help="how many of them")
    parser.add_argument("--quick", action="store_true", help="leave our attention in other runtimes out")
    parser.add_argument("--held", action="store_true", help="use AVX2: the environment must hold the peers")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="BATCHxLENGTH")
    parser.add_argument("--peers", nargs="+", help="of the grid: how their names begin")
    parser.add_argument("--files", type=Path, help="a folder that keeps the grid's models of all runtimes")
    parser.add_argument("--prepare", action="store_true", help="only make the files of the grid")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lengths, batches = ([int(x) for x in given.split(",")] for given in (options.lengths, options.batches))
    parts = options.parts.split(",")
    names = HELD if options.held else (*PEERS, *(() if options.quick else PARTLY), WHOLE, TWO_LINES)
    for name in [name for name in names if missing(name)]:
        print(f"{name} is left out: pip install {' '.join(missing(name)).replace('_', '-')}")
    if options.held:
        instruction_sets.select("avx2")
    found: dict[str, Any] = {"isa": hccs.backends.cpu.info().isa}
    with tempfile.TemporaryDirectory() as folder:
        if {"sizes", "sentences", "threads"} & set(parts):
            sentences = real_sentences(options.sentences, options.count)
            longest = max(*lengths, *map(len, sentences))
            needed = names if {"sizes", "sentences"} & set(parts) else (WHOLE,)
            variants = Variants(encoder(options.model), longest, Path(folder), needed)
        if "sizes" in parts:
            found["rows"] = time_sizes(variants, lengths, batches)
            show("held to AVX2" if options.held else "one thread", found["rows"])
        if "sentences" in parts:
            found["sentences"] = time_sentences(variants, sentences)
            show(f"{options.count} sentences, one thread", found["sentences"])
        if "threads" in parts:
            found["threads"] = time_threads(variants)
            cores, over = found["threads"]["cores"], found["threads"]["over_one"]
            print(f"\n{cores} threads over one, 8 x 128: {over:.2f}x")
        if "tiny" in parts:
            tiny = Variants(encoder(str(TINY)), 32, Path(folder), (*PEERS, WHOLE))
            found["tiny"] = row("1 x 32", fastest(tiny.calls([tokens(tiny.model, 1, 32)])))
            show("BERT-tiny, one thread", [found["tiny"]])
        if "first" in parts:
            found["first_answer"] = time_first_answer(Path(folder))
            print(f"\nimport and first answer, BERT-tiny: {found['first_answer']:.3f} s")
        if "avx2" in parts and "avx2" in instruction_sets.available():
            given = ["--lengths", options.lengths, "--batches", options.batches]
            found["avx2"] = held_to_avx2([*given, *(["--model", options.model] if options.model else [])])
        if "grid" in parts:
            chosen = [
                name
                for name in PEERS
                if (name.startswith(tuple(options.peers)) if options.peers else not name.startswith(COMPILED))
            ]
            found["grid"] = time_grid(options, options.files or Path(folder), [*chosen, WHOLE])
        if "where" in parts:
            shapes = [None] if options.model else options.models
            models = {shape or "the model": encoder(options.model, shape, "tokens") for shape in shapes}
            found["where"] = [
                entry for name, model in models.items() for entry in time_steps(model, name, options.sizes)
            ]
    if options.json and not options.prepare:
        write_json(options.json, with_earlier(found, options.json))


if __name__ == "__main__":
    main()
