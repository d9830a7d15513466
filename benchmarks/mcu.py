"""What a whole integer model costs on cores without floating point: flash, RAM, instructions.

Exports a model to C, runs it on a Cortex-M3, a Cortex-M4 and a RISC-V in QEMU, which counts instructions, and
measures rows of HCCS beside int8 softmax in fixed point as runtimes for microcontrollers compute it.

    python benchmarks/mcu.py RUN                      # a finished run, or an integer model
    python benchmarks/mcu.py RUN --sentences FILE     # and with the words of these sentences alone
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
from provenance import write_json
from rich.console import Console
from rich.table import Table

from hccs.cli.sentences import read_sentences
from hccs.errors import HccsError
from hccs.executors.c.table import TARGET
from hccs.export import export_c_model, model_or_table
from hccs.program import IntegerModel
from hccs.program.operators import Attention
from hccs.program.plan import plan

CORES = {
    "Cortex-M3": ("m3", "arm-none-eabi-", "qemu-system-arm"),
    "Cortex-M4": ("m4", "arm-none-eabi-", "qemu-system-arm"),
    "RISC-V rv32imac": ("riscv", "riscv64-unknown-elf-", "qemu-system-riscv32"),
}
SOURCES = Path(__file__).parent / "mcu"
IN_MODEL = {False: "HCCS, normalisation deferred", True: "HCCS, two lines, normalisation deferred"}
"""What attention inside the model does: with one line, with two."""
PEER = "int8 softmax in fixed point"


def installed() -> dict[str, tuple[str, str, str]]:
    found = {
        name: core for name, core in CORES.items() if shutil.which(f"{core[1]}gcc") and shutil.which(core[2])
    }
    if not found:
        raise SystemExit(
            "No compiler and emulator of a core here. On Debian: apt install gcc-arm-none-eabi "
            "qemu-system-arm gcc-riscv64-unknown-elf qemu-system-misc"
        )
    return found


def make(folder: Path, *words: str) -> str:
    command = ["make", "-s", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def model_costs(folder: Path, core: str) -> dict:
    """Sections, RAM and the instructions of every operator for the longest example."""
    said = make(folder, f"cost-{core}")
    sections = {name: int(size) for name, size in re.findall(r"^\.(\w+)\s+(\d+)", said, re.MULTILINE)}
    facts = {name: int(size) for name, size in re.findall(r"^(rows|stack|arena) (\d+)", said, re.MULTILINE)}
    steps = [
        (int(n), kind, value) for n, kind, value in re.findall(r"^(\d+) (\w+) (\S+)", said, re.MULTILINE)
    ]
    kinds: dict[str, int] = {}
    for count, kind, _ in steps:
        kinds[kind] = kinds.get(kind, 0) + count
    total = sum(count for count, _, _ in steps)
    return {
        "flash": {"weights": sections["weights"], "code": sections["text"] + sections["vectors"]},
        "ram": {"arena": facts["arena"], "stack": facts["stack"]},
        "tokens": facts["rows"],
        "instructions": total,
        "instructions per token": total / facts["rows"],
        "by kind": kinds,
        "by operator": {f"{kind} {value}": count for count, kind, value in steps},
    }


def row_costs(folder: Path, core: str, columns: int) -> dict[str, float]:
    """Instructions per element of rows of softmax."""
    rules = (folder / "Makefile").read_text(encoding="utf-8")
    compiler, board = (
        re.search(rf"^{name}_{core} := (.*)$", rules, re.MULTILINE)[1] for name in ("COMPILE", "BOARD")
    )
    row_sources = resources.files("hccs.export") / "c_sources"
    built = folder / "build" / f"rows-{core}.elf"
    built.parent.mkdir(exist_ok=True)
    command = [*compiler.split(), "-std=c99", "-O2", "-ffreestanding", "-nostdlib"]
    command += [f"-DCOLUMNS={columns}", "-Iboards", "-I.", f"-I{row_sources}", "-T", f"boards/{board}.ld"]
    command += ["-o", str(built), str(SOURCES / "rows.c"), str(row_sources / "hccs_softmax.c")]
    command += [f"boards/{board}.c", "boards/bare.c", "-lgcc"]
    subprocess.run(command, cwd=folder, check=True)
    runner = make(folder, "-n", core, "-o", f"build/check-{core}.elf").strip().splitlines()[-1]
    words = [*runner.split()[:-1], str(built)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    elements = int(said.split()[0])
    return {name: int(n) / elements for n, name in re.findall(r"^(\d+) \d+ (.*)$", said, re.MULTILINE)}


def softmax_elements(model: IntegerModel) -> int:
    """Logits of all attentions for the longest sequence; of the last one with one answer, one query."""
    program, longest = model.program, model.program.longest
    return sum(
        step.main.heads * (longest * (longest + 1) // 2 if step.main.causal else longest * longest)
        if step.all_rows
        else step.main.heads * (1 if step.main.causal else longest)
        for group in plan(program, TARGET).groups
        for step in group
        if isinstance(step.main, Attention)
    )


def longest_first(model: IntegerModel, sentences: list[list[int]] | None) -> list[list[int]]:
    """The sentences, behind one that is as long as the model takes: its cost is what is told."""
    words = np.random.default_rng(0).choice(
        np.unique(np.concatenate(sentences)) if sentences else len(model.program.embed.params.words),
        model.program.longest,
    )
    return [words.tolist(), *(sentences or [])]


def show(console: Console, found: dict) -> None:
    for core, part in found["cores"].items():
        table = Table(title=f"{core}: {part['tokens']} tokens, instructions", title_justify="left")
        for column in ("operator", "all", "per token", "%"):
            table.add_column(column, justify="left" if column == "operator" else "right")
        for kind, count in sorted(part["by kind"].items(), key=lambda item: -item[1]):
            share = f"{100 * count / part['instructions']:.1f}"
            table.add_row(kind, f"{count:,}", f"{count / part['tokens']:,.0f}", share)
        table.add_row("all", f"{part['instructions']:,}", f"{part['instructions per token']:,.0f}", "")
        console.print(table)
        console.print(
            f"flash {part['flash']['weights']:,} + {part['flash']['code']:,} of code; "
            f"RAM {part['ram']['arena']:,} + {part['ram']['stack']:,} of stack"
        )
        rows = part["rows"]
        for name, count in rows.items():
            against = "" if name == PEER else f", {count / rows[PEER]:.2f} of int8 softmax"
            console.print(f"  {name}: {count:.1f} instructions per element{against}", soft_wrap=True)
        own, peer = (found["softmax elements"] * rows[name] for name in (IN_MODEL[found["two lines"]], PEER))
        rest = part["instructions"] - own
        console.print(
            f"  HCCS is {100 * own / (rest + own):.1f} % of the model's instructions; "
            f"int8 softmax in its place would be {100 * peer / (rest + peer):.1f} %"
        )
    if "flash with used words" in found:
        console.print(f"constants with the words of the sentences alone: {found['flash with used words']:,}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a finished run, or a file that IntegerModel.save wrote")
    parser.add_argument("--sentences", type=Path, help="a sentence per line, token ids or text")
    parser.add_argument("--columns", type=int, default=64, help="length of a row of softmax")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    cores = installed()
    model = model_or_table(given.model)
    if not isinstance(model, IntegerModel):
        raise SystemExit(f"{given.model} holds no integer model")
    try:
        sentences = read_sentences(given.sentences, model.program) if given.sentences else None
    except HccsError as error:
        raise SystemExit(str(error)) from error
    attentions = [step for step in model.program.operators if isinstance(step, Attention)]
    found: dict = {
        "cores": {},
        "columns": given.columns,
        "softmax elements": softmax_elements(model),
        "two lines": any(np.any(step.theta.S2) or np.any(step.theta.f) for step in attentions),
    }
    with tempfile.TemporaryDirectory() as place:
        written = export_c_model(model, Path(place) / "c", sequences=longest_first(model, None))
        for name, (core, *_) in cores.items():
            found["cores"][name] = model_costs(written.folder, core)
            found["cores"][name]["rows"] = row_costs(written.folder, core, given.columns)
        if sentences:
            used = export_c_model(model, Path(place) / "used", sequences=sentences, only_used_words=True)
            found["flash with used words"] = used.constant_bytes
    show(Console(), found)
    if given.json:
        write_json(given.json, found)


if __name__ == "__main__":
    main()
