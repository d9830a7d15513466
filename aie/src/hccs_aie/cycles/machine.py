"""The machine tables: each instruction's slot, its latency, and where that is known from."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources

from hccs_aie.arguments import Choice

SLOTS = ("lda", "ldb", "alu", "mv", "st", "vec")


class Generation(Choice):
    """The two device generations, by the names of their instruction sets."""

    AIE2 = "aie2"
    AIE2PS = "aie2ps"

    @property
    def device(self) -> str:
        """The generation and the board of the paper that has it."""
        return "AIE-ML (VEK280)" if self is Generation.AIE2 else "AIE-MLv2 (VEK385)"


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: alternative slot sets, latency, and the shorter one of a forwarding path."""

    name: str
    slots: tuple[frozenset[str], ...]
    latency: int
    forwarded_latency: int | None
    forwarded_to: str
    source: str


@dataclass(frozen=True)
class Lowering:
    """The instructions one AIE API operation stands for: `per_issue` lanes, bytes or bits at a time."""

    operation: str
    bits: int | None
    per_issue: int | None
    unit: str
    recipe: str
    source: str


@dataclass(frozen=True)
class Machine:
    """An instruction set with its register files."""

    generation: Generation
    instructions: dict[str, Instruction]
    lowerings: dict[tuple[str, int | None], Lowering]
    vector_registers: int = 24
    accumulators: int = 9

    def lowering(self, operation: str, bits: int) -> Lowering:
        found = self.lowerings.get((operation, bits)) or self.lowerings.get((operation, None))
        if found is None:
            raise KeyError(f"{self.generation.value} has no lowering for {operation} on {bits} bits")
        return found

    def latency(self, producer: str, consumer: str, operand: str) -> int:
        """Bundles from `producer` to `consumer`, which reads it as `operand` ("acc" or "data")."""
        made = self.instructions[producer]
        if made.forwarded_latency is not None:
            if made.forwarded_to == "acc" and operand == "acc":
                return made.forwarded_latency
            if made.forwarded_to == "mv" and self.instructions[consumer].slots == (frozenset({"mv"}),):
                return made.forwarded_latency
        return made.latency


def table_rows(name: str) -> list[dict[str, str]]:
    """One of the CSV files in `tables`."""
    text = (resources.files("hccs_aie.cycles") / "tables" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _instruction(row: dict[str, str]) -> Instruction:
    return Instruction(
        name=row["instruction"],
        slots=tuple(frozenset(group.split("+")) for group in row["slots"].split("|")),
        latency=int(row["latency"]),
        forwarded_latency=int(row["forwarded_latency"]) if row["forwarded_latency"] else None,
        forwarded_to=row["forwarded_to"],
        source=row["source"],
    )


def _lowering(row: dict[str, str]) -> Lowering:
    amount, _, unit = row["per_issue"].partition(" ")
    return Lowering(
        operation=row["operation"],
        bits=int(row["bits"]) if row["bits"] else None,
        per_issue=int(amount) if amount else None,
        unit=unit or "lanes",
        recipe=row["instructions"],
        source=row["source"],
    )


@functools.cache
def machine(generation: Generation | str) -> Machine:
    """The machine tables of one device generation.

    >>> machine("aie2").instructions["VMAC"].latency
    5
    """
    generation = Generation(generation)
    lowerings = [_lowering(row) for row in table_rows(f"{generation.value}_lowering.csv")]
    return Machine(
        generation=generation,
        instructions={
            i.name: i for i in map(_instruction, table_rows(f"{generation.value}_instructions.csv"))
        },
        lowerings={(low.operation, low.bits): low for low in lowerings},
    )
