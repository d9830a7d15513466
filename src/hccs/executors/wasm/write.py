"""`export_wasm`: a model of texts as WebAssembly, weights, and an ES module around them: an npm package."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hccs
from hccs._files import folder as _folder
from hccs.errors import ModelError
from hccs.executors.c import model_source, text_source
from hccs.executors.c.table import TARGET, Writing
from hccs.executors.c.tokenizer import tables_of
from hccs.executors.c.write import weights_header, weights_source
from hccs.executors.wasm.build import STACK, modules
from hccs.executors.wasm.demo import pages
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from hccs.program.fingerprints import LENGTHS, LONGEST, SEQUENCES
from hccs.program.plan import plan
from hccs.program.program import GENERATE, TAG
from hccs.text.text_model import Reader

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILES = ("index.js", "index.d.ts", "README.md", "test.mjs")
TILE = 64
"""Rows that go through a group together: each tile reads all weights once."""

PANEL = 8
FIRST_ADDRESS = STACK
"""Of the weights: below them may lie the stack."""

PAGE = 65536
LONGEST_WORD = 32768
TEXTS = (
    "A quiet film, well played.",
    "naïve FAÇADES, 42 % off!",
    "各国 한국어 😀 don't [MASK]",
    "a\0b\x07",
    "",
)
"""What the package's own test compares."""


@dataclass(frozen=True)
class ExportedWasm:
    """The folder, and the bytes of its modules and of its weights."""

    folder: Path
    module_bytes: int
    plain_bytes: int
    weight_bytes: int


@dataclass(eq=False)
class Weights:
    """Constants one after the other, as they lie in the module's memory from `FIRST_ADDRESS` on."""

    content: bytearray = field(default_factory=bytearray)

    def define(self, name: str, values: NDArray[Any]) -> str:
        """Append an array; its address, as C. Vectors may read 32 bytes beyond its end."""
        self.content += bytes(-len(self.content) % 16)
        address = FIRST_ADDRESS + len(self.content)
        self.content += values.astype(values.dtype.newbyteorder("<")).tobytes() + bytes(32)
        return f"#define {name} ((const {values.dtype.name}_t*){address}u)\n"

    def complete(self) -> bytes:
        return bytes(self.content) + bytes(-len(self.content) % 16)


def packed_weight(weight: NDArray[np.int8]) -> NDArray[np.int8]:
    """Weights [outputs, inputs] in panels of 8 outputs.

    A panel has for each output the sum of the products wa * wc of Winograd's inner product, as int32, and for
    each pair of inputs two bytes of each output; pairs are filled up to an even number.
    """
    outputs, inputs = weight.shape
    padded = np.zeros((-(-outputs // PANEL) * PANEL, -(-inputs // 4) * 4), np.int8)
    padded[:outputs, :inputs] = weight
    quads = padded.reshape(len(padded), -1, 2, 2).astype("<i4")
    own = (quads[:, :, 0] * quads[:, :, 1]).sum(axis=(1, 2), dtype="<i4").reshape(-1, PANEL).view(np.int8)
    panels = padded.reshape(-1, PANEL, padded.shape[1] // 2, 2).transpose(0, 2, 1, 3)
    return np.concatenate([own, panels.reshape(len(panels), -1)], axis=1).reshape(1, -1)


def checksum(content: bytes) -> int:
    """The sum that hccs_wasm.c computes: words of 64 bits, each times an odd number of its place."""
    words = np.frombuffer(content, "<u8")
    total = (words * (2 * np.arange(len(words), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64)
    return (int(total) + len(content)) % 2**64


def export_wasm(
    model: IntegerModel, out: str | os.PathLike[str], *, name: str = "model", demo: bool = False
) -> ExportedWasm:
    """Write a model of texts as an npm package that runs in browsers, workers, node and Deno.

    The folder `out` gets a module with SIMD128 and one without, the weights, and an ES module with types;
    with `demo` a page that searches passages, too. An earlier export there is replaced.
    """
    _folder.require_free(out)
    writing, weights = _writing(model.program)
    sources = resources.files("hccs.executors.wasm") / "sources"
    contents: dict[str, str | bytes] = {
        file: sources.joinpath(file).read_text(encoding="utf-8") for file in FILES
    }
    simd, plain, blob, numbers = _compiled(writing, weights)
    contents |= {"model.wasm": simd, "model-plain.wasm": plain, "weights.bin": blob}
    contents["model.json"] = json.dumps(_facts(model, blob, numbers), indent=1, ensure_ascii=False) + "\n"
    contents["package.json"] = json.dumps(_package(name, contents), indent=2) + "\n"
    contents["README.md"] = str(contents["README.md"]).replace("{name}", _npm_name(name))
    contents["examples.json"] = json.dumps(_examples(model), ensure_ascii=False) + "\n"
    if demo:
        contents |= pages(model, sources)
    folder = _folder.replace(out, contents)
    return ExportedWasm(folder, len(simd), len(plain), len(blob))


def _writing(program: Program) -> tuple[Writing, Weights]:
    """The program over packed weights; one that reads no texts is refused."""
    if program.text is None or not program.tokenizer or program.text.kind in (TAG, GENERATE):
        got = "one without a tokenizer"
        if program.text is not None and program.text.kind in (TAG, GENERATE):
            got = {TAG: "a tagger", GENERATE: "a language model"}[program.text.kind]
        raise ModelError(
            "a model that embeds, ranks or classifies texts, with its tokenizer",
            got,
            "hccs export c takes it.",
        )
    for step in program.operators:
        step.require_rows(program.rows)
    weights, tables = Weights(), tables_of(program.tokenizer, program.text)
    target = plan(program, replace(TARGET, name="WebAssembly", tile=TILE))
    return Writing(program, target, None, tables, weights.define, packed_weight, "hccs_simd.h"), weights


def _compiled(writing: Writing, weights: Weights) -> tuple[bytes, bytes, bytes, dict[str, int]]:
    """Both modules, the weights, and what the compiler was told about them."""
    assert writing.text is not None
    files = {
        "hccs_model.h": model_source.header(writing),
        "hccs_model.c": model_source.source(writing),
        "hccs_weights.h": weights_header(writing),
        "hccs_weights.c": weights_source(writing),
        "hccs_text.h": text_source.header(writing.text),
        "hccs_text.c": text_source.source(writing.text) + model_source.text_function(writing),
        "hccs_vocabulary.c": text_source.vocabulary(writing.text, weights.define),
    }
    blob = weights.complete()
    numbers = {
        "HCCS_WEIGHTS_AT": FIRST_ADDRESS,
        "HCCS_WEIGHTS_BYTES": len(blob),
        "HCCS_CHECKSUM": checksum(blob),
        "HCCS_LONGEST_WORD": LONGEST_WORD,
        **_rooms(writing.program),
    }
    shared = resources.files("hccs.executors.c") / "sources"
    own = resources.files("hccs.executors.wasm") / "sources"
    with tempfile.TemporaryDirectory(prefix="hccs-wasm-") as place:
        folder = Path(place)
        for file in ("hccs_operators.h", "hccs_simd.h", "hccs_tokenizer.h"):
            files[file] = shared.joinpath(file).read_text(encoding="utf-8")
        files["hccs_wasm.c"] = own.joinpath("hccs_wasm.c").read_text(encoding="utf-8")
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        first = -(-(FIRST_ADDRESS + len(blob)) // PAGE) * PAGE
        simd, plain = modules(folder, sorted(file for file in files if file.endswith(".c")), numbers, first)
    return simd, plain, blob, numbers


ROOM: dict[type[op.Operator], Callable[[Any, int], tuple[int, int]]] = {
    op.Linear: lambda step, width: (step.params.weight.shape[1] + 3, 1),
    op.Attention: lambda step, width: (1, width // step.heads + PANEL),
}
"""What the vector code of an operator keeps beside the arena: of a row of inputs, and of a row of a head."""


def _rooms(program: Program) -> dict[str, int]:
    """How much the vector code keeps beside the arena: the widest rows, keys and their panels."""
    inputs, heads = 1, 1
    for step in program.operators:
        if room := ROOM.get(type(step)):
            row, head = room(step, program.values[step.output].width)
            inputs, heads = max(inputs, row), max(heads, head)
    rows = program.rows + PANEL
    return {
        "HCCS_INPUTS": inputs,
        "HCCS_TILE": TILE,
        "HCCS_WIDE": max((min(TILE, program.rows) + 4) * inputs, rows * heads),
        "HCCS_KEYS": rows,
        "HCCS_PACKED": rows * heads,
    }


def _facts(model: IntegerModel, blob: bytes, numbers: dict[str, int]) -> dict[str, Any]:
    """`model.json`: what JavaScript needs to know."""
    program, settings = model.program, model.program.text
    assert settings is not None
    longest = min(program.longest, LONGEST)
    return {
        "format": "hccs.wasm",
        "version": 1,
        "kind": settings.kind,
        "dims": 0 if program.labels else program.values[program.operators[-1].output].width,
        "labels": list(program.labels),
        "scoreScale": program.score_scale,
        "maxLength": settings.max_length,
        "prompts": dict(settings.prompts),
        "defaultPrompt": settings.default_prompt,
        "weights": {"bytes": len(blob), "checksum": f"{numbers['HCCS_CHECKSUM']:016x}"},
        "fingerprint": model.fingerprint(),
        "fingerprintInputs": {
            "sequences": SEQUENCES,
            "lengths": [*(n for n in LENGTHS if n < longest), longest],
            "longest": longest,
            "vocabulary": program.embed.vocabulary,
            "types": program.embed.type_count,
        },
    }


def _examples(model: IntegerModel) -> list[dict[str, Any]]:
    """Texts with their tokens and answers, which the package's test compares."""
    settings = model.program.text
    assert settings is not None
    texts = [text for text in TEXTS if text or model.program.embed.type_count > 1]
    found = []
    for text, encoding in zip(texts, Reader(model.program, settings.max_length).read(texts), strict=True):
        ids, types = np.array([encoding.ids]), np.array([encoding.type_ids])
        types = types if model.program.embed.type_count > 1 else np.zeros_like(types)
        answer = model(ids, None, types).scores[0]
        found.append({"text": text, "tokens": encoding.ids, "answer": answer.tolist()})
    return found


def _npm_name(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"


def _package(name: str, contents: dict[str, Any]) -> dict[str, Any]:
    """`package.json`: ready to publish, without dependencies."""
    return {
        "name": _npm_name(name),
        "version": hccs.__version__,
        "description": "A transformer in integers, from text: the same bits in browsers, node and Python",
        "type": "module",
        "main": "index.js",
        "types": "index.d.ts",
        "exports": {
            ".": {"types": "./index.d.ts", "default": "./index.js"},
            **{
                f"./{file}": f"./{file}"
                for file in ("model.json", "model.wasm", "model-plain.wasm", "weights.bin")
            },
        },
        "files": sorted({*contents, "package.json", "examples.json"} - {"package.json"}),
        "scripts": {"test": "node --test test.mjs"},
        "engines": {"node": ">=18"},
        "sideEffects": False,
        "license": "Apache-2.0",
    }
