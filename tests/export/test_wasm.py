"""Models as WebAssembly: in node, and behind the marker `wasm` in Chromium, with Python's bits."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from hccs.errors import FileError, HccsError, MissingExtraError, ModelError
from hccs.executors.wasm import build, write
from hccs.export import export_wasm
from hccs.program import IntegerModel
from hccs.reference.layer_norm import root_of, root_shift
from hccs.text import Classifier, Encoder, Reranker
from tests.export.c_tokenizer import MINILM, random_inputs
from tests.text.models import embedder, random_texts, scorer, wide_embedder, with_texts

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "wasm"))
from browser import chromium, missing, served

PASSAGES = (resources.files("hccs.executors.wasm") / "sources" / "passages.txt").read_text().splitlines()


def require_compiler() -> None:
    try:
        build.compiler()
    except MissingExtraError as error:
        pytest.skip(str(error))
    if shutil.which("node") is None:
        pytest.skip("no node: install it (Debian: apt install nodejs)")


def node(script: str, *arguments: object) -> str:
    """What a module prints; `given` are its arguments, by JSON."""
    text = f"const given = {json.dumps(arguments, default=str)};\n{script}"
    done = subprocess.run(["node", "--input-type=module"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOAD = 'const { load } = await import(given[0] + "/index.js"); const model = await load(undefined, given[1]);'


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[IntegerModel, Path]:
    require_compiler()
    model = wide_embedder()
    return model, export_wasm(model, tmp_path_factory.mktemp("wasm") / "out", name="Small Model").folder


@pytest.mark.parametrize("simd", [True, False])
def test_vectors_of_texts_in_node_are_pythons(small, simd):
    model, folder = small
    texts = [*random_texts(3, 40), "the\0cat", "ünï 各 😀"]
    script = (
        LOAD
        + """
    const found = await model.encode(given[2], { out: "int16" });
    const floats = await model.encode(given[2][0]);
    const plain = await model.encode(given[2][0], { prompt: "" });
    const fingerprint = await model.fingerprint();
    console.log(JSON.stringify([found.map((v) => [...v]), [...floats], [...plain], fingerprint]));"""
    )
    found, floats, plain, fingerprint = json.loads(node(script, folder, {"simd": simd}, texts))
    encoder = Encoder(model)
    assert np.array_equal(np.array(found), encoder.encode(texts, out="int16"))
    assert np.array_equal(np.array(floats, np.float32), encoder.encode(texts[0]))
    assert np.array_equal(np.array(plain, np.float32), encoder.encode(texts[0], prompt=""))
    assert fingerprint == model.fingerprint()


def test_scores_and_ranks_of_pairs_are_pythons(tmp_path):
    require_compiler()
    model = with_texts(scorer(("no", "yes")), "classify")
    folder = export_wasm(model, tmp_path / "out").folder
    passages = [text or "a" for text in random_texts(5, 12)]
    script = (
        LOAD
        + """
    const ranks = await model.rank("the cat", given[2]);
    console.log(JSON.stringify([ranks.map((r) => r.index), await model.classify(given[2]), model.labels]));"""
    )
    ranks, labels, names = json.loads(node(script, folder, {}, passages))
    done = subprocess.run(["node", "--test", "test.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert ranks == [one.index for one in Reranker(model).rank("the cat", passages)]
    assert [one["label"] for one in labels] == [one.label for one in Classifier(model).predict(passages)]
    assert names == ["no", "yes"]


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.wasm) for seed in (3, 5, 6, 7, 8, 10, 11, 12))]


@pytest.mark.parametrize("seed", SEEDS)
def test_embedders_of_all_kinds_in_node(seed, tmp_path):
    """Widths that no vector divides, all poolings, layers with and without row exponents."""
    require_compiler()
    folder = export_wasm(embedder(seed), tmp_path / "out").folder
    done = subprocess.run(["node", "--test", "test.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_package_can_be_published(small):
    _, folder = small
    package = json.loads((folder / "package.json").read_text())
    assert package["name"] == "small-model" and not package.get("dependencies")
    assert all((folder / file).is_file() for file in package["files"])
    assert "{name}" not in (folder / "README.md").read_text()


def changed(folder: Path, to: Path, file: str, content: bytes) -> Path:
    shutil.copytree(folder, to)
    (to / file).write_bytes(content)
    return to


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cut off", "a download that was cut off"),
        ("damaged", "those of another model, or damaged"),
        ("other weights", "weights"),
        ("other module", "weights of this module|module of these weights"),
        ("cut module", "a whole module"),
        ("gone", "a file at"),
        ("other facts", "the model.json of this module"),
        ("no facts", "JSON at"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(small, tmp_path, change, said):
    _, folder = small
    weights, module = (folder / "weights.bin").read_bytes(), (folder / "model.wasm").read_bytes()
    if change in ("other facts", "no facts"):
        facts = (folder / "model.json").read_text()
        checksum = json.loads(facts)["weights"]["checksum"]
        other = facts.replace(checksum, checksum[::-1]) if change == "other facts" else "<!doctype html>"
        broken = changed(folder, tmp_path / "broken", "model.json", other.encode())
    elif change in ("other weights", "other module"):
        other = export_wasm(embedder(7), tmp_path / "other").folder
        file = "weights.bin" if change == "other weights" else "model.wasm"
        broken = changed(folder, tmp_path / "broken", file, (other / file).read_bytes())
    elif change == "cut module":
        broken = changed(folder, tmp_path / "broken", "model.wasm", module[:-100])
    else:
        content = weights[:-16] if change == "cut off" else weights[:40] + b"\1" + weights[41:]
        broken = changed(folder, tmp_path / "broken", "weights.bin", content)
        if change == "gone":
            (broken / "weights.bin").unlink()
    script = 'const { load } = await import(given[0] + "/index.js");\n'
    script += (
        "await load().then(() => console.log('loaded'), (error) => console.log(error.name, error.message));"
    )
    found = node(script, broken)
    assert found.startswith("HccsError expected") and any(part in found for part in said.split("|")), found


def test_long_texts_are_cut_and_the_console_says_so(small):
    model, folder = small
    text = "the cat sat " * 40
    script = (
        LOAD
        + """
    console.warn = (line) => console.log("warned: " + line);
    const out = { out: "int16" };
    const [one, two] = await Promise.all([model.encode([given[2]], out), model.encode(given[2], out)]);
    console.log(JSON.stringify([[...one[0]], [...two]]));"""
    )
    warned, *others = node(script, folder, {}, text).splitlines()
    assert "1 of 1 texts have more than" in warned
    with pytest.warns(UserWarning, match="more than"):
        expected = Encoder(model).encode(text, out="int16").tolist()
    assert json.loads(others[-1]) == [expected, expected]


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="tokenizer"):
        export_wasm(IntegerModel(scorer(("no", "yes"))), tmp_path / "out")
    with pytest.raises(ModelError, match="tagger"):
        export_wasm(with_texts(scorer(("O", "B-X"), per_token=True), "tag"), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(FileError, match="thesis"):
        export_wasm(embedder(), tmp_path / "mine")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install ziglang"):
        export_wasm(embedder(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.wasm
def test_the_package_passes_in_deno(small):
    if shutil.which("deno") is None:
        pytest.skip("not installed: deno (npm install deno)")
    _, folder = small
    done = subprocess.run(
        ["deno", "test", "--allow-read", "test.mjs"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.wasm
def test_the_stack_of_zig_does_not_write_over_weights(tmp_path, monkeypatch):
    """Newer linkers put the stack at address 0: weights that lie there change while the model runs."""
    pytest.importorskip("ziglang")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    model = wide_embedder()
    folder = export_wasm(model, tmp_path / "out").folder
    done = subprocess.run(["node", "--test", "test.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert build.STACK <= write.FIRST_ADDRESS


@pytest.mark.parametrize("channels", [4, 384, 1024])
def test_vectors_compute_what_plain_c_computes(channels, tmp_path):
    """Float64 and sums in place of wide integers and products, on extreme values, halves among them."""
    require_compiler()
    flags = [flag for flag in build.SHARED if flag != "-Wl,--strip-all"]
    sources = resources.files("hccs.executors.c") / "sources"
    command = [*build.compiler()[0], *flags, f"-I{sources}", "-o", tmp_path / "check.wasm"]
    subprocess.run([*command, Path(__file__).with_name("simd_check.c")], check=True)
    script = """
    const { readFile } = await import("node:fs/promises");
    const { instance } = await WebAssembly.instantiate(await readFile(given[0]), {});
    const { norms, narrowed, layers, attended, ramps } = instance.exports;
    const wrong = norms(20000, given[1], given[2], BigInt(given[3]));
    console.log(wrong, narrowed(20000, Math.max(given[1], 8)), layers(9000), attended(2000), ramps(60));"""
    found = node(script, tmp_path / "check.wasm", channels, root_shift(channels), str(root_of(channels)))
    assert found.split() == ["0"] * 5


RELAXED = re.compile(r"relaxed|:\s+fd (8[0-9a-f]|9[0-3]) 02")


@pytest.mark.parametrize("file", ["model.wasm", "model-plain.wasm"])
def test_only_instructions_with_fixed_results(small, file):
    """Relaxed SIMD has the opcodes 0x100 to 0x113 behind 0xfd: fd 80 02 to fd 93 02."""
    _, folder = small
    if shutil.which("llvm-objdump") is None:
        pytest.skip("not installed: llvm")
    said = subprocess.run(
        ["llvm-objdump", "-d", "--mattr=+simd128,+relaxed-simd", file],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0 and "i32.add" in said.stdout and not RELAXED.search(said.stdout)
    assert ("i32x4.dot_i16x8_s" in said.stdout) == (file == "model.wasm")


def test_a_compiler_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compiler", lambda: [["false"], ["false"]])
    with pytest.raises(HccsError, match="compile the model"):
        export_wasm(embedder(), tmp_path / "out")


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> tuple[Encoder, Path]:
    require_compiler()
    if missing():
        pytest.skip(f"not installed: {', '.join(missing())} (Debian: apt install chromium chromium-driver)")
    model = Encoder.load(MINILM)
    return model, export_wasm(model.model, tmp_path_factory.mktemp("minilm") / "out", demo=True).folder


@pytest.mark.wasm
def test_1_000_texts_have_the_same_bits_in_python_node_and_chromium(minilm):
    model, folder = minilm
    texts = [*PASSAGES, *(text for text in random_inputs(9, 1000) if isinstance(text, str))][:1000]
    assert len(texts) == 1000
    expected = model.encode(texts, out="int16").tolist()
    script = 'return (await model.encode(texts, { out: "int16" })).map((v) => [...v]);'
    run = f"const texts = given[2]; const found = await (async () => {{{script}}})();"
    there = node(f"{LOAD} {run} console.log(JSON.stringify(found));", folder, {}, texts)
    assert json.loads(there) == expected
    with served(folder) as (url, _), chromium() as browser:
        browser.open(url)
        loaded = (
            'const { load } = await import("/index.js"); const model = await load(); const [texts] = given;'
        )
        for start in range(0, len(texts), 200):
            found = browser.run(loaded + script, texts[start : start + 200])
            assert found == expected[start : start + 200]


# Windows are no narrower than 500 points: a frame is.
PHONE = """
    const frame = document.createElement("iframe");
    Object.assign(frame, { width: 360, height: 700, src: location.href });
    document.body.append(frame);
    await new Promise((loaded) => { frame.onload = loaded; });
    while (!frame.contentWindow.finished) await new Promise((later) => setTimeout(later, 50));
    const wide = frame.contentDocument.documentElement.scrollWidth;
    frame.remove();
    return wide <= 360;"""


@pytest.mark.wasm
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_finds_what_python_finds(minilm, scheme):
    model, folder = minilm
    flag = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    with served(folder) as (url, asked), chromium(flag) as browser:
        browser.open(url)
        browser.wait_for("globalThis.finished")
        assert browser.run("return matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
        ink, paper = (
            sum(map(int, re.findall(r"\d+", browser.run(f"return getComputedStyle(document.body).{name}"))))
            for name in ("color", "backgroundColor")
        )
        assert (ink > paper) == (scheme == "dark")
        for query in ("a slow film with beautiful pictures", "ghosts \U0001f47b & naïve children", ""):
            browser.run("document.getElementById('results').replaceChildren();")
            typed = "const box = document.getElementById('query'); box.value = given[0];"
            browser.run(typed + "box.dispatchEvent(new Event('input'))", query)
            browser.wait_for("document.getElementById('results').children.length")
            rows = browser.run("return [...document.querySelectorAll('li')].map((item) => +item.dataset.row)")
            vector = model.encode(query, out="int16").astype(np.int64)
            scores = model.encode(PASSAGES, out="int16").astype(np.int64) @ vector
            assert rows == np.argsort(-scores, kind="stable")[: len(rows)].tolist()
        here, python = (
            browser.run(f"return document.getElementById('{name}').textContent")
            for name in ("here", "python")
        )
        assert here == python == model.fingerprint
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.run(PHONE)
        assert browser.log() == []
        loaded = browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert len(loaded) >= 5 and all(name.startswith((url, "data:")) for name in loaded)
        once = len(asked)
        browser.open(url)
        browser.wait_for("globalThis.finished")
        assert "/weights.bin" not in asked[once:]
        assert {path.split("?")[0] for path in asked} <= {
            "/",
            *(f"/{file.name}" for file in folder.iterdir()),
        }


@pytest.mark.wasm
def test_a_worker_loads_the_model(minilm):
    model, folder = minilm
    (folder / "worker.js").write_text(
        'import { load } from "./index.js"; const model = await load(); '
        'onmessage = async ({ data }) => postMessage([...(await model.encode(data, { out: "int16" }))]); '
        'postMessage("ready");'
    )
    with served(folder) as (url, _), chromium() as browser:
        browser.open(url)
        found = browser.run(
            'const worker = new Worker("/worker.js", { type: "module" });'
            "return new Promise((done) => { worker.onmessage = ({ data }) =>"
            ' data === "ready" ? worker.postMessage(given[0]) : done(data); });', PASSAGES[0])  # fmt: skip
    assert found == model.encode(PASSAGES[0], out="int16").tolist()
