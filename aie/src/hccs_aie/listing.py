"""Loops in a disassembly of AI Engine code: how many bundles each has, and how often it runs.

Two kinds of loop are known. A hardware loop names its first and last bundle in the registers ls and le and
its trips in lc; a pipeliner that moved iterations out of it takes them off there. A branch back (jnz and the
like) ends a loop five delay slots later. Addresses come from operands, from symbols or from relocations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hccs_aie.cycles.program import Item, Loop

DELAY_SLOTS = 5

_SYMBOL = re.compile(r"^(?P<address>[0-9a-f]+) <(?P<name>[^>]+)>:$")
_BUNDLE = re.compile(r"^\s*(?P<address>[0-9a-f]+):\s+(?P<text>.*)$")
_RELOCATION = re.compile(r"^\s*[0-9a-f]+:\s+R_AIE_\w+\s+(?P<symbol>[^\s+]+)(?:\+0x(?P<offset>[0-9a-f]+))?")
_BOUND = re.compile(r"\bmov\w*(?:\.\w+)?\s+(?P<which>l[se]),\s*#?(?P<at>[^\s;]+)")
_COUNT = re.compile(r"\badd\.nc\s+lc,\s*\w+,\s*#(?P<more>-?\d+)")
_BRANCH = re.compile(r"\bj(?:nzd?|z)?\s+(?:\w+,\s*)*#?(?P<to>[<0-9][^\s;]*)")
_PASSES = ("clamp_levels", "row_totals", "reciprocals", "normalise", "copy_masked")


@dataclass(frozen=True)
class CodeLoop:
    """A loop: the bundles of its body without its inner loops, and iterations that were moved out of it."""

    first: int
    last: int
    bundles: int
    peeled: int = 0

    def encloses(self, other: CodeLoop) -> bool:
        """Whether `other` lies inside."""
        return self is not other and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True)
class CodeFunction:
    """A function: its bundles, and its loops in the order in which they begin, outer before inner."""

    name: str
    bundles: int
    loops: tuple[CodeLoop, ...]


@dataclass(frozen=True)
class NamedLoop:
    """A loop of the kernel's source; `iterations` over the rows of a pass, all its entries together."""

    name: str
    iterations: int


@dataclass(frozen=True)
class LoopBundles:
    """A compiled loop, and the source loop that it is known to be."""

    function: str
    bundles: int
    name: str | None = None
    iterations: int | None = None


@dataclass(frozen=True)
class PassBundles:
    """Bundles that one pass over `rows` rows issues. `outside` are those of no loop."""

    rows: int
    outside: int
    loops: tuple[LoopBundles, ...]
    missing: tuple[str, ...] = ()
    """Loops of the source that were not found."""

    @property
    def per_row(self) -> float | None:
        """Loops times trips and the rest once, by row; None when a loop is missing or its trips unknown."""
        if self.missing or any(loop.iterations is None for loop in self.loops):
            return None
        issued = sum(loop.bundles * (loop.iterations or 0) for loop in self.loops)
        return (self.outside + issued) / self.rows


def functions(disassembly: str) -> list[CodeFunction]:
    """Every function of `llvm-objdump -d -r` output, or of a Vitis listing in that form."""
    bodies: list[tuple[str, list[str]]] = []
    symbols: dict[str, int] = {}
    for line in disassembly.splitlines():
        if symbol := _SYMBOL.match(line):
            symbols[symbol["name"]] = int(symbol["address"], 16)
            if not symbol["name"].startswith("."):  # otherwise a label inside the function
                bodies.append((symbol["name"], []))
        elif bodies:
            bodies[-1][1].append(line)
    return [_function(name, lines, symbols) for name, lines in bodies]


def _address(text: str, symbols: Mapping[str, int]) -> int | None:
    inside = re.fullmatch(r"<(?P<name>[^+>]+)(?:\+0x(?P<offset>[0-9a-f]+))?>", text)
    if inside:
        start = symbols.get(inside["name"])
        return None if start is None else start + int(inside["offset"] or "0", 16)
    try:
        return int(text, 0)
    except ValueError:
        return None


def _function(name: str, lines: Iterable[str], symbols: Mapping[str, int]) -> CodeFunction:
    addresses: list[int] = []
    bounds: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    branches: list[tuple[int, int]] = []
    counts: list[tuple[int, int]] = []
    waiting = ""
    for line in lines:
        if relocation := _RELOCATION.match(line):
            target = symbols.get(relocation["symbol"], 0) + int(relocation["offset"] or "0", 16)
            if waiting in ("ls", "le"):
                bounds[waiting] = target
            elif waiting == "branch":
                branches[-1] = (branches[-1][0], target)
            waiting = ""
        elif bundle := _BUNDLE.match(line):
            address = int(bundle["address"], 16)
            addresses.append(address)
            text, waiting = bundle["text"], ""
            for bound in _BOUND.finditer(text):
                waiting = bound["which"]
                bounds[waiting] = _address(bound["at"], symbols) or 0
            if counter := _COUNT.search(text):
                counts.append((address, max(0, -int(counter["more"]))))
            if branch := _BRANCH.search(text):
                waiting = "branch"
                branches.append((address, _address(branch["to"], symbols) or 0))
        if len(bounds) == 2 and all(bounds.values()):
            spans.append((bounds["ls"], bounds["le"]))
            bounds = {}
    # A trip count belongs to the hardware loop that begins next.
    peeled = {min((s for s in spans if s[0] > at), default=(0, 0)): moved for at, moved in counts}
    for at, to in branches:
        if addresses and addresses[0] <= to <= at:
            place = addresses.index(at)
            spans.append((to, addresses[min(place + DELAY_SLOTS, len(addresses) - 1)]))
    spans = sorted(set(spans), key=lambda span: (span[0], -span[1]))
    loops = []
    for span in spans:
        inner = [s for s in spans if s != span and span[0] <= s[0] and s[1] <= span[1]]
        own = [a for a in addresses if span[0] <= a <= span[1] and not any(s[0] <= a <= s[1] for s in inner)]
        loops.append(CodeLoop(*span, len(own), peeled.get(span, 0)))
    return CodeFunction(name, len(addresses), tuple(loops))


def source_loops(items: Sequence[Item], entered: int = 1) -> list[NamedLoop]:
    """The loops of a traced kernel in program order, outer before inner."""
    found: list[NamedLoop] = []
    for item in items:
        if isinstance(item, Loop):
            found.append(NamedLoop(item.label, entered * item.trips))
            if item.iterations:
                found.extend(source_loops(item.iterations[-1], entered * item.trips))
    return found


def _of_pass(name: str, loops: Sequence[NamedLoop]) -> list[NamedLoop]:
    first = {"clamp_levels": ("clamp_blocks", "maxima_chunks"), "row_totals": ("sum_blocks", "sums_chunks")}
    first |= {"reciprocals": ("batches", "quotient_bits"), "normalise": ("row_groups", "pieces")}
    return [loop for loop in loops if loop.name in first.get(name, ())]


def count(code: Sequence[CodeFunction], loops: Sequence[NamedLoop], rows: int) -> PassBundles:
    """Match compiled loops to the source's: by the pass a function is, else by their order.

    Loops around all of a function's expected ones, over tiles and heads, run once a pass.
    """
    apart = {name for name in _PASSES for function in code if name in function.name}
    inlined = [loop for loop in loops if not any(loop in _of_pass(name, loops) for name in apart)]
    outside = 0
    counted: list[LoopBundles] = []
    for function in code:
        part = next((name for name in _PASSES if name in function.name), None)
        expected = inlined if part is None else _of_pass(part, loops)
        found = list(function.loops)
        while len(found) > len(expected) and any(found[0].encloses(other) for other in found[1:]):
            found.pop(0)
        known = len(found) == len(expected)
        outside += function.bundles - sum(loop.bundles for loop in found)
        for place, loop in enumerate(found):
            if known:
                runs = max(expected[place].iterations - loop.peeled, 0)
                counted.append(LoopBundles(function.name, loop.bundles, expected[place].name, runs))
            else:
                counted.append(LoopBundles(function.name, loop.bundles))
    named = {loop.name for loop in counted}
    missing = tuple(dict.fromkeys(loop.name for loop in loops if loop.name not in named))
    return PassBundles(rows, outside, tuple(counted), missing)
