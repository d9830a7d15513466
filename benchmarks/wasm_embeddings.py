"""How fast does one sentence become a vector in WebAssembly? In node and in Chromium, one thread.

    python benchmarks/wasm_embeddings.py --program FILE.hccs --npm FOLDER [--model FOLDER] [--turns 20]
        [--engines node,chromium] [--json FILE]

`--npm` is a folder in which `npm install onnxruntime-web @huggingface/transformers` was run. Its peers are
made from `--model`, a folder of sentence-transformers with the same weights, by PyTorch's ONNX exporter and
ONNX Runtime's quantisation; or they are found in the folder `--peers`: float.onnx, int8_True.onnx and
int8_False.onnx. All take turns in one process, and the median counts. transformers.js runs in Chromium alone:
in node it is native code. Besides: the bytes that a page loads beside the weights, and the time from the
start of a navigation to the page's first result.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "wasm"))
from browser import chromium, served
from provenance import write_json

from hccs.export import export_wasm
from hccs.program import IntegerModel
from hccs.text.text_model import Reader

HERE = Path(__file__).parent / "wasm"
LENGTHS = (16, 64)
PEERS = {
    "onnxruntime-web float": "float.onnx",
    "onnxruntime-web int8": "int8_False.onnx",
    "onnxruntime-web int8 per channel": "int8_True.onnx",
}
TRANSFORMERS = {
    "library": "transformers.min.js",
    "paths": {kind: f"ort-wasm-simd-threaded.asyncify.{kind}" for kind in ("mjs", "wasm")},
    "model": "minilm",
    "kinds": {"transformers.js float": "fp32", "transformers.js int8": "int8"},
}
CODE = ("index.js", "model.wasm")


def make_peers(model: Path, folder: Path) -> None:
    import embedding_peers

    texts = ["a quiet film", "well played, and far too long for what it says"] * 8
    material = embedding_peers.Material(model, texts, folder, None)
    embedding_peers.make_onnx(material)
    for per_channel in (False, True):
        embedding_peers.make_onnx_int8(material, per_channel)


def sentences(model: IntegerModel) -> list[dict[str, Any]]:
    read = Reader(model.program, max(LENGTHS))
    texts = [" ".join(["word"] * (length - 2)) for length in LENGTHS]
    found = [{"text": text, "ids": one.ids} for text, one in zip(texts, read.read(texts), strict=True)]
    assert [len(one["ids"]) for one in found] == list(LENGTHS)
    return found


def collected(
    folder: Path, exported: Path, npm: Path | None, peers: Path | None, model: Path | None
) -> dict[str, Any]:
    """Everything in one folder, which node reads and Chromium is served; the contenders' settings."""
    shutil.copytree(exported, folder / "ours")
    for file in HERE.glob("*.*"):
        shutil.copy(file, folder)
    settings: dict[str, Any] = {"ours": "ours/index.js", "files": {}}
    if npm is not None and peers is not None:
        dist = npm / "node_modules" / "onnxruntime-web" / "dist"
        for file in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
            shutil.copy(dist / file, folder)
        settings |= {"ort": "ort.wasm.min.mjs", "wasm": "ort-wasm-simd-threaded.wasm"}
        for name, file in PEERS.items():
            if (peers / file).exists():
                shutil.copy(peers / file, folder)
                settings["files"][name] = file
        library = (
            npm / "node_modules" / "@huggingface" / "transformers" / "dist" / str(TRANSFORMERS["library"])
        )
        if model is not None and library.exists():
            for file in (library, *(dist / path for path in TRANSFORMERS["paths"].values())):
                shutil.copy(file, folder)
            (folder / "minilm" / "onnx").mkdir(parents=True)
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
                shutil.copy(model / name, folder / "minilm")
            for file, name in (("float.onnx", "model.onnx"), ("int8_True.onnx", "model_int8.onnx")):
                shutil.copy(peers / file, folder / "minilm" / "onnx" / name)
            settings["transformers"] = TRANSFORMERS
    return settings


def versions(npm: Path | None) -> dict[str, str]:
    """Of the engines, and of the peers' packages."""
    found = {"node": ["node", "--version"], "chromium": ["chromium", "--version"]}
    said = {
        name: subprocess.run(command, capture_output=True, text=True).stdout.strip()
        for name, command in found.items()
    }
    for name in ("onnxruntime-web", "@huggingface/transformers") if npm else ():
        file = npm / "node_modules" / name / "package.json"  # type: ignore[operator]
        said[name] = json.loads(file.read_text())["version"] if file.exists() else "none"
    return said


def in_node(folder: Path, settings: dict[str, Any]) -> Any:
    (folder / "settings.json").write_text(json.dumps(settings))
    done = subprocess.run(["node", "node.mjs", "settings.json"], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def in_chromium(folder: Path, settings: dict[str, Any]) -> Any:
    script = """
    const { measure } = await import("/contenders.mjs");
    const read = async (path) => new Uint8Array(await (await fetch("/" + path)).arrayBuffer());
    return measure({ ...given[0], read, importer: (path) => import("/" + path) });"""
    with served(folder) as (url, _), chromium() as browser:
        browser.open(url + "page.html")
        return browser.run(script, settings)


def first_results(exported: Path, times: int = 5) -> list[float]:
    """Milliseconds from the start of the navigation to the page's first result, each in a new Chromium."""
    found = []
    for _ in range(times):
        with served(exported) as (url, _), chromium() as browser:
            browser.open(url)
            found.append(round(float(browser.wait_for("globalThis.firstResult")), 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--npm", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--engines", default="node,chromium")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = IntegerModel.load(given.program)
    with tempfile.TemporaryDirectory() as place:
        folder, peers = Path(place), given.peers
        if peers is None and given.model is not None:
            peers = folder / "peers"
            peers.mkdir()
            make_peers(given.model, peers)
        exported = export_wasm(model, folder / "export", demo=True).folder
        (folder / "served").mkdir()
        settings = collected(folder / "served", exported, given.npm, peers, given.model)
        settings |= {"turns": given.turns, "sentences": sentences(model)}
        found: dict[str, Any] = {"versions": versions(given.npm), "engines": {}}
        for engine in given.engines.split(","):
            measured = (in_node if engine == "node" else in_chromium)(folder / "served", settings)
            found["engines"][engine] = measured
            for length, times in measured.items():
                ours = times["hccs"]["milliseconds"]
                line = ", ".join(f"{name} {one['milliseconds']:.2f} ms" for name, one in times.items())
                others = [one["milliseconds"] for name, one in times.items() if name != "hccs"]
                times["over"] = min(others) / ours if others else None
                ratio = f"; {times['over']:.2f} times as fast as the best" if others else ""
                print(f"{engine}, {length} tokens: {line}{ratio}")
        sizes = {file: len(gzip.compress((exported / file).read_bytes(), 9)) for file in CODE}
        found["compressed_bytes"] = {**sizes, "all": sum(sizes.values())}
        print(f"JavaScript and WebAssembly, compressed: {found['compressed_bytes']['all']:,} bytes")
        if "chromium" in given.engines:
            found["first_result_ms"] = first_results(exported)
            print(f"first result of the page: {sorted(found['first_result_ms'])} ms")
    if given.json:
        write_json(given.json, found)


if __name__ == "__main__":
    main()
