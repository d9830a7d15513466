"""Loops in a disassembly of AI Engine code: their bundles, their names in the source, how often they run.

Two kinds of loop are known. A hardware loop names its first and last bundle in the registers ls and le and
its trips in lc; a pipeliner that moved iterations out of it takes them off there. A branch back (jnz and the
like) ends a loop five delay slots later. Addresses come from operands, from symbols or from relocations.

Debug information names the loops: every bundle lists the inlined calls it comes from, and a call whose line
lies in the braces of a source loop puts the bundle into that loop. Without it the loops' order must do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hccs_aie.cycles.program import Item, Loop

DELAY_SLOTS = 5

Chains = Mapping[int, Sequence[str]]
"""The source loops that a bundle lies in, outer before inner, by its address."""

_SECTION = re.compile(r"^Disassembly of section (?P<name>\S+):$")
_SYMBOL = re.compile(r"^(?P<address>[0-9a-f]+) <(?P<name>[^>]+)>:$")
_BUNDLE = re.compile(r"^\s*(?P<address>[0-9a-f]+):\s+(?P<text>.*)$")
_RELOCATION = re.compile(r"^\s*[0-9a-f]+:\s+R_AIE_\w+\s+(?P<symbol>[^\s+]+)(?:\+0x(?P<offset>[0-9a-f]+))?")
_BOUND = re.compile(r"\bmov\w*(?:\.\w+)?\s+(?P<which>l[se]),\s*#?(?P<at>[^\s;]+)")
_COUNT = re.compile(r"\badd\.nc\s+lc,\s*\w+,\s*#(?P<more>-?\d+)")
_BRANCH = re.compile(r"\bj(?:nzd?|z)?\s+(?:\w+,\s*)*#?(?P<to>[<0-9][^\s;]*)")
_VECTOR = re.compile(r"(?:^|[;\t ])v[a-z]\w*")
_SOURCE_LOOP = re.compile(r"\bHCCS_(?:PLAIN_|FIXED_)?LOOP\((?P<name>\w+),|\b(?:for|while) (?=\()")
_COMMENT_OR_DIRECTIVE = re.compile(r"//[^\n]*|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)

_PASSES = {
    "clamp_levels": ("clamp_blocks", "level_blocks", "maxima_chunks"),
    "row_totals": ("sum_blocks", "sums_chunks"),
    "reciprocals": ("batches", "quotient_bits"),
    "normalise": ("row_groups", "pieces"),
    "copy_masked": ("masked_rows", "masked_pieces"),
}
"""The loops of each pass over a tile."""

_UNROLLABLE = ("maxima_chunks", "quotient_bits")
"""Loops without a hint that forbids a compiler to unroll them in part."""

_COUNT_BITS = "count_bits"
"""The untraced loop that finds the number of quotient bits."""


@dataclass(frozen=True)
class CodeLoop:
    """A loop: the addresses of its body without its inner loops, and iterations that were moved out of it."""

    first: int
    last: int
    own: tuple[int, ...]
    peeled: int = 0
    vectors: int = 0
    """Vector instructions at those addresses."""

    @property
    def bundles(self) -> int:
        return len(self.own)

    def encloses(self, other: CodeLoop) -> bool:
        return self is not other and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True)
class CodeFunction:
    """A function: its bundles, and its loops in the order in which they begin, outer before inner."""

    name: str
    section: str
    addresses: tuple[int, ...]
    loops: tuple[CodeLoop, ...]

    @property
    def bundles(self) -> int:
        return len(self.addresses)


@dataclass(frozen=True)
class NamedLoop:
    """A loop of the kernel's source; `iterations` over the rows of a pass, all its entries together."""

    name: str
    iterations: int
    entered: int = 1
    operations: int = 0
    """Vector operations of one iteration, without inner loops."""


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
    bodies: list[tuple[str, str, list[str]]] = []
    symbols: dict[str, int] = {}
    section = ""
    for line in disassembly.splitlines():
        if found := _SECTION.match(line):
            section = found["name"]
        elif symbol := _SYMBOL.match(line):
            symbols[symbol["name"]] = int(symbol["address"], 16)
            if not symbol["name"].startswith("."):  # otherwise a label inside the function
                bodies.append((symbol["name"], section, []))
        elif bodies:
            bodies[-1][2].append(line)
    return [_function(name, section, lines, symbols) for name, section, lines in bodies]


def _address(text: str, symbols: Mapping[str, int]) -> int | None:
    inside = re.fullmatch(r"<(?P<name>[^+>]+)(?:\+0x(?P<offset>[0-9a-f]+))?>", text)
    if inside:
        start = symbols.get(inside["name"])
        return None if start is None else start + int(inside["offset"] or "0", 16)
    try:
        return int(text, 0)
    except ValueError:
        return None


def _function(name: str, section: str, lines: Iterable[str], symbols: Mapping[str, int]) -> CodeFunction:
    addresses: dict[int, int] = {}
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
            text, waiting = bundle["text"], ""
            addresses[address] = len(_VECTOR.findall(text))
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
    order = list(addresses)
    for at, to in branches:
        if order and order[0] <= to <= at:
            spans.append((to, order[min(order.index(at) + DELAY_SLOTS, len(order) - 1)]))
    spans = sorted(set(spans), key=lambda span: (span[0], -span[1]))
    loops = []
    for span in spans:
        inner = [s for s in spans if s != span and span[0] <= s[0] and s[1] <= span[1]]
        own = [a for a in order if span[0] <= a <= span[1] and not any(s[0] <= a <= s[1] for s in inner)]
        vectors = sum(addresses[address] for address in own)
        loops.append(CodeLoop(*span, tuple(own), peeled.get(span, 0), vectors))
    return CodeFunction(name, section, tuple(order), tuple(loops))


def source_loops(items: Sequence[Item], entered: int = 1) -> list[NamedLoop]:
    """The loops of a traced kernel in program order, outer before inner."""
    found: list[NamedLoop] = []
    for item in items:
        if isinstance(item, Loop):
            body = item.iterations[-1] if item.iterations else []
            vectors = sum(not isinstance(part, Loop) and part.lanes > 1 for part in body)
            found.append(NamedLoop(item.label, entered * item.trips, entered, vectors))
            found.extend(source_loops(body, entered * item.trips))
    return found


def loop_chains(symbolized: str, sources: Mapping[str, str]) -> dict[int, list[str]]:
    """Source loops by address, from `llvm-symbolizer --inlines --output-style=JSON` and the kernel."""
    places = {name: _source_places(name, text) for name, text in sources.items()}
    chains: dict[int, list[str]] = {}
    for line in symbolized.splitlines():
        found = json.loads(line)
        for entry in found if isinstance(found, list) else [found]:
            chains[int(entry["Address"], 16)] = [
                name
                for frame in reversed(entry.get("Symbol", []))
                for first, last, name in places.get(frame["FileName"].rsplit("/")[-1], [])
                if first <= frame["Line"] <= last
            ]
    return chains


def _source_places(file: str, text: str) -> list[tuple[int, int, str]]:
    """First line, last line and name of every loop in a kernel header; an unnamed loop goes by its place."""
    text = _COMMENT_OR_DIRECTIVE.sub(lambda found: "\n" * found[0].count("\n"), text)
    places = []
    for loop in _SOURCE_LOOP.finditer(text):
        start = text.index("(", loop.start())
        body = _closing(text, start, "()") + 1
        blank = len(text[body:]) - len(text[body:].lstrip())
        end = _closing(text, body + blank, "{}") if text[body + blank] == "{" else text.index(";", body)
        first, last = (text.count("\n", 0, at) + 1 for at in (loop.start(), end))
        unnamed = _COUNT_BITS if "--bits" in text[body : end + 1] else f"{file}:{first}"
        places.append((first, last, loop["name"] or unnamed))
    return places


def _closing(text: str, start: int, pair: str) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if depth == 0:
            return at
    return len(text) - 1


def _names_by_lines(function: CodeFunction, chains: Chains) -> list[str | None]:
    """For each loop the deepest source loop that holds half of its bundles and is around its inner loops."""
    names: list[str | None] = [None] * len(function.loops)
    above: dict[str, set[str]] = {}
    depth: dict[str, int] = {}
    for address in function.addresses:
        chain = chains.get(address, ())
        for place, name in enumerate(chain):
            above.setdefault(name, set()).update(chain[:place])
            depth[name] = max(depth.get(name, 0), place)
    for index in reversed(range(len(names))):
        loop = function.loops[index]
        known = [chain for chain in (set(chains.get(address, ())) for address in loop.own) if chain]
        votes = Counter(name for chain in known for name in chain)
        likely = {name for name, count in votes.items() if 2 * count >= len(known)}
        inner = [name for other, name in zip(function.loops, names, strict=True) if loop.encloses(other)]
        for nested in inner:
            likely &= above.get(nested or "", likely)
        # Code that jumps back around a loop without being one runs as often as what surrounds it.
        names[index] = max(likely, key=lambda name: depth[name], default="outer" if any(inner) else None)
    return names


def _names_by_order(function: CodeFunction, expected: Sequence[NamedLoop]) -> list[str | None]:
    """The expected names if there are as many loops, apart from those around them all."""
    found = list(function.loops)
    while len(found) > len(expected) and any(found[0].encloses(other) for other in found[1:]):
        found.pop(0)
    outer: list[str | None] = ["outer"] * (len(function.loops) - len(found))
    if len(found) == len(expected):
        return [*outer, *(loop.name for loop in expected)]
    return [*outer, *(None for _ in found)]


def _runs(copies: Sequence[CodeLoop], expected: Sequence[NamedLoop]) -> list[int]:
    """How often each compiled copy of a source loop runs.

    A loop unrolled in part runs its factor's share and leaves the rest to the next smaller copy. Of equal
    copies, made for cases that exclude each other, the first runs.
    """
    if len(copies) == len(expected) > 1:
        return [_runs([copy], [loop])[0] for copy, loop in zip(copies, expected, strict=True)]
    loop = expected[0]
    left = sum(one.iterations for one in expected) // max(loop.entered, 1)
    factors = [1] * len(copies)
    if loop.name in _UNROLLABLE and loop.operations:
        factors = [max(1, int(copy.vectors / loop.operations + 0.4)) for copy in copies]
    runs = [0] * len(copies)
    for index in sorted(range(len(copies)), key=lambda index: -factors[index]):
        trips = left // factors[index]
        left -= trips * factors[index]
        runs[index] = loop.entered * max(trips - copies[index].peeled, 0)
    return runs


def count(
    code: Sequence[CodeFunction], loops: Sequence[NamedLoop], rows: int, chains: Chains | None = None
) -> PassBundles:
    """Match compiled loops to the source's by debug information, else by a function's pass and their order.

    Loops around all others, over tiles and heads, run once a pass. A source loop without a compiled one is
    taken as unrolled where bundles come from it, and is missing otherwise.
    """
    chains = chains or {}
    apart = {loop for name, own in _PASSES.items() for f in code if name in f.name for loop in own}
    inlined = [loop for loop in loops if loop.name not in apart]
    expected = {name: [loop for loop in loops if loop.name == name] for name in (loop.name for loop in loops)}
    if bits := expected.get("quotient_bits"):
        expected[_COUNT_BITS] = [NamedLoop(_COUNT_BITS, max(14 - bits[0].iterations // bits[0].entered, 0))]
    outside = 0
    counted: list[LoopBundles] = []
    seen: set[str] = set()
    for function in code:
        own = next((own for name, own in _PASSES.items() if name in function.name), None)
        # Sections of their own all begin at address 0: debug information is asked for the first alone.
        if function.section == ".text" and any(chains.get(address) for address in function.addresses):
            names = _names_by_lines(function, chains)
            seen.update(name for address in function.addresses for name in chains.get(address, ()))
        else:
            names = _names_by_order(function, inlined if own is None else [x for x in loops if x.name in own])
        outside += function.bundles
        runs: dict[int, int] = {}
        for source in expected.keys() & set(names):
            places = [place for place, name in enumerate(names) if name == source]
            copies = _runs([function.loops[place] for place in places], expected[source])
            runs.update(zip(places, copies, strict=True))
        for place, (loop, name) in enumerate(zip(function.loops, names, strict=True)):
            if place in runs:
                counted.append(LoopBundles(function.name, loop.bundles, name, runs[place]))
            elif name is None or not any(loop.encloses(other) for other in function.loops):
                counted.append(LoopBundles(function.name, loop.bundles))
            else:
                continue
            outside -= loop.bundles
    seen.update(loop.name for loop in counted if loop.name)
    missing = tuple(dict.fromkeys(loop.name for loop in loops if loop.name not in seen))
    return PassBundles(rows, outside, tuple(counted), missing)
