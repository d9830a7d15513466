"""Every benchmark runs, at its smallest: what it writes is complete. No time is judged here. Tools start."""

from __future__ import annotations

import ctypes
import json
import logging
import math
import runpy
import shutil
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hccs.program import IntegerModel
from tests.program.programs import language_model
from tests.program.test_program import small_program

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
EMBEDDED = ROOT / "lab" / "src" / "hccs_lab" / "demo"
PARTS = {
    "softmax_peers",
    "encoder_variants",
    "embedding_peers",
    "provenance",
    "step_times",
    "turns",
}  # imported by others

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a benchmark in this process and returns the JSON it wrote, if it writes any."""
    threads, engine = torch.get_num_threads(), torch.backends.quantized.engine
    for name, value in (("RAYON_NUM_THREADS", "1"), ("TOKENIZERS_PARALLELISM", "false")):
        monkeypatch.setenv(name, value)  # benchmarks set both; the end of the test restores them

    def run(name: str, *arguments: str, into: str | None = "--json"):
        out = tmp_path / "found" / f"{name}.json"
        out.parent.mkdir(exist_ok=True)
        monkeypatch.setattr(sys, "argv", [name, *arguments, *([into, str(out)] if into else [])])
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        with warnings.catch_warnings():
            runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
        if into is None:
            return None
        found = json.loads(out.read_text())
        origin = found.pop("provenance")
        assert {"commit", "recorded", "command", "cpu", "versions"} <= set(
            origin
        ) and "" not in origin.values()
        return found

    yield run
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
    torch.backends.quantized.engine = engine


def numbers(tree) -> list[float]:
    """All numbers of a JSON file; those that were not measured are NaN."""
    if isinstance(tree, dict):
        return [x for value in tree.values() for x in numbers(value)]
    if isinstance(tree, list):
        return [x for value in tree for x in numbers(value)]
    return [tree] if isinstance(tree, int | float) and not isinstance(tree, bool) else []


def test_generation(run, tmp_path):
    """A random model, without a peer."""
    IntegerModel(language_model(0)).save(tmp_path / "tiny.hccs")
    sizes = ["--prompt", "20", "--new", "8", "--turns", "1", "--megabytes", "1", "--threads", "1,2"]
    found = run("generate_cpu", "--program", str(tmp_path / "tiny.hccs"), *sizes)
    assert [row["threads"] for row in found["rows"]] == [1, 2] and found["weights"] == "tiny.hccs"
    assert all(number > 0 and math.isfinite(number) for number in numbers(found["rows"]))


def test_modernbert(run):
    pytest.importorskip("openvino")
    found = run("modernbert_cpu", "--layers", "2", "--sizes", "1x16", "--turns", "1")
    assert all(row["ratio"] > 0 for row in found["rows"])


def test_every_benchmark_is_run_here():
    source = Path(__file__).read_text(encoding="utf-8")
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} - PARTS
    assert [name for name in sorted(scripts) if f'run("{name}"' not in source] == []


def test_wasm_embeddings_tells_its_options(run, capsys):
    """Its peers are packages of npm, which no test installs."""
    with pytest.raises(SystemExit) as left:
        run("wasm_embeddings", "--help", into=None)
    assert left.value.code == 0 and "--npm" in capsys.readouterr().out


@pytest.mark.parametrize("tool", ["tools/check_installed", "lab/tools/make_demo_data"])
def test_tools_start(tool, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", [tool, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / f"{tool}.py"), run_name="__main__")
    assert left.value.code == 0 and f"{tool}.py" in capsys.readouterr().out


def test_softmax_cpu(run):
    pytest.importorskip("rich")
    found = run("softmax_cpu", "--turns", "1", "--lengths", "32", "--beyond", "1")
    rates = found["cached"]["32"]
    assert {"hccs u8_div", "hccs i16_clb", "memcpy", "torch float32", "torch quantized"} <= set(rates)
    assert all(
        math.isfinite(x) and x > 0 for x in numbers([found["cached"], found["memory"], found["masks"]])
    )
    assert {bar[0] for bar in found["bars"]} >= {"u8_div over the fastest float32", "two threads over one"}
    assert "two lines over one, u8_div, uint8 scores" in {bar[0] for bar in found["bars"]}


def test_decode_cpu(run):
    pytest.importorskip("rich")
    found = run("decode_cpu", "--turns", "1", "--keys", "64", "--threads", "1")["microseconds"]
    assert len(found) == 3 and all(x > 0 for x in numbers(found))


def test_attention_cpu(run):
    pytest.importorskip("rich")
    found = run("attention_cpu", "--turns", "1", "--lengths", "16")
    assert {"hccs float32", "hccs mask", "torch SDPA float32", "torch int8 q.k, then bfloat16"} <= set(
        found["microseconds"]["16"]
    )
    assert all(x > 0 for x in numbers(found["microseconds"]))


@pytest.mark.slow
def test_encoder_cpu(run):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    small = ["--model", str(EMBEDDED / "bert_tiny"), "--lengths", "16", "--batches", "1", "--count", "9"]
    found = run("encoder_cpu", *small, "--parts", "sizes,sentences,threads,first")
    (row,) = found["rows"]
    assert {"torch float32", "ONNX Runtime dynamic int8", "torch dynamic int8, integer attention"} <= set(
        row["seconds"]
    )
    assert "hccs, all in integers" in row["seconds"] and row["fastest_peer"] in row["seconds"]
    assert [found["sentences"][i]["sentences"] for i in (0, 1)] == [9, 9]
    assert all(x > 0 for x in numbers(found))


def test_where_the_time_of_an_encoder_goes(run):
    pytest.importorskip("transformers")
    found = run("encoder_cpu", "--model", str(EMBEDDED / "bert_tiny"), "--parts", "where", "--sizes", "2x8")
    assert [entry["size"] for entry in found["where"]] == ["1x1", "2x8"]
    for entry in found["where"]:
        assert {"linear", "attention", "LayerNorm", "embedding", "call"} <= set(entry["seconds"])
        assert sum(entry["seconds"].values()) == pytest.approx(entry["all"])
        assert sum(entry["floor"].values()) < entry["all"]
    # Another piece of the measurement joins what the file has.
    found = run("encoder_cpu", "--model", str(EMBEDDED / "bert_tiny"), "--parts", "where", "--sizes", "3x4")
    assert [entry["size"] for entry in found["where"]] == ["1x1", "2x8", "3x4"]


def test_encoder_cpu_with_openvino(run):
    for package in ("onnxruntime", "onnxscript", "openvino", "nncf"):
        pytest.importorskip(package)
    small = ["--model", str(EMBEDDED / "bert_tiny"), "--lengths", "16", "--batches", "2", "--quick"]
    found = run("encoder_cpu", *small, "--parts", "sizes")
    assert found["rows"][0]["seconds"]["OpenVINO static int8"] > 0


def test_embeddings_cpu(run):
    for package in ("rich", "tokenizers", "transformers"):
        pytest.importorskip(package)
    small = ["--model", str(EMBEDDED / "bert_tiny"), "--count", "6", "--turns", "1", "--sizes", "2x8"]
    found = run("embeddings_cpu", *small, "--peers", "none")
    both = {"hccs", "torch float32"}
    assert [cell["name"] for cell in found["cells"]][::2] == ["6 texts", "2 x 8 tokens"]
    assert all(both <= set(cell["seconds"]) and cell["fastest_peer"] != "hccs" for cell in found["cells"])
    assert set(found["cells"][0]["batch_sizes"].values()) <= {1, 8, 32, 64}
    assert both <= set(found["first"]) and found["rows"][0]["shape"] == [2, 8]
    sizes = found["installed"]["hccs"]
    assert sizes["all"] == sum(sizes[part] for part in ("hccs", "numpy", "tokenizers", "model"))
    assert found["cosines"]["torch float32"]["least"] > 0.9999 and found["cosines"]["hccs"]["least"] > 0.95
    assert all(x > 0 for x in numbers(found))


@pytest.mark.slow
def test_embeddings_cpu_in_every_runtime_that_is_installed(run, tmp_path):
    """Each answers the float model's vectors; a runtime whose converter fails would be left out."""
    for package in ("rich", "tokenizers", "transformers", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    model = shutil.copytree(EMBEDDED / "bert_tiny", tmp_path / "model")
    for name, more in (
        ("config.json", {"position_embedding_type": "absolute"}),  # CTranslate2 asks for it
        ("tokenizer_config.json", {"model_max_length": 64}),  # and fastembed for this
    ):
        file = model / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    small = ["--model", str(model), "--count", "6", "--turns", "1", "--sizes", "2x8"]
    small += ["--folder", str(tmp_path)]
    made = run("embeddings_cpu", *small, "--parts", "installed")
    found = run("embeddings_cpu", *small, "--parts", "texts")
    assert found["cosines"] == made["cosines"]  # the second run takes the files of the first
    assert all(why.startswith("not installed") for why in found["left_out"].values()), found["left_out"]
    assert {"ONNX Runtime float32", "ONNX Runtime dynamic int8"} <= set(found["cells"][0]["seconds"])


def test_mcu(run, tmp_path):
    pytest.importorskip("rich")
    if shutil.which("arm-none-eabi-gcc") is None or shutil.which("qemu-system-arm") is None:
        pytest.skip("not installed: gcc-arm-none-eabi or qemu-system-arm")
    IntegerModel(small_program()).save(tmp_path / "model.hccs")
    (tmp_path / "ids.txt").write_text("3 4 5\n7 3\n")
    sentences = ["--sentences", str(tmp_path / "ids.txt")]
    found = run("mcu", str(tmp_path / "model.hccs"), *sentences, "--columns", "32")
    core = found["cores"]["Cortex-M3"]
    assert core["tokens"] == 12 and sum(core["by kind"].values()) == core["instructions"] > 12 * 16 * 48
    assert 0 < core["ram"]["stack"] < 2048 and found["flash with used words"] < core["flash"]["weights"]
    rows = core["rows"]
    assert all(rows[name] < 0.4 * rows["int8 softmax in fixed point"] for name in rows if "HCCS" in name)


def test_the_fixed_point_softmax_that_mcu_measures_is_one(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    wrapper = tmp_path / "wrapper.c"
    wrapper.write_text(
        '#include "softmax_s8.h"\nvoid row(const int8_t* x, int n, int8_t* y);\n'
        "void row(const int8_t* x, int n, int8_t* y) { softmax_s8(x, n, 1717986918, 22, -255, y); }\n"
    )
    library = tmp_path / "softmax.so"
    include = f"-I{BENCHMARKS / 'mcu'}"
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run(["cc", *strict, "-O2", "-shared", "-fPIC", include, "-o", library, wrapper], check=True)
    row = ctypes.CDLL(str(library)).row
    rng = np.random.default_rng(0)
    for n in (1, 2, 64, 500):
        x = np.clip(np.rint(rng.normal(0, 40, n)), -128, 127).astype(np.int8)
        y = np.zeros(n, np.int8)
        row(x.ctypes.data_as(ctypes.c_void_p), n, y.ctypes.data_as(ctypes.c_void_p))
        e = np.exp(0.05 * (x.astype(np.float64) - x.max()))
        expected = np.minimum(256 * e / e.sum(), 255)
        assert abs((y.astype(np.float64) + 128) - expected).max() < 0.51


@pytest.mark.slow
def test_onnx_program_cpu(run):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = str(EMBEDDED / "bert_tiny")
    found = run("onnx_program_cpu", "--model", model, "--lengths", "16", "--batches", "2")
    (row,) = found["rows"]
    assert {"static int8", "dynamic int8, fused attention", "integer program"} <= set(row["seconds"])
    assert row["equal"] and all(x > 0 for x in numbers(row["seconds"]))


def test_search_cpu(run):
    found = run("search_cpu", "--rows", "2000", "--dims", "64", "--turns", "1")
    assert {"scalar"} <= set(found["search"]) and all(x > 0 for x in numbers(found))


def small_encoder(tmp_path):
    from tests.text.models import wide_embedder

    wide_embedder().save(tmp_path / "small.hccs")
    return str(tmp_path / "small.hccs")


def test_embed_corpus(run, tmp_path):
    pytest.importorskip("pyarrow")
    found = run("embed_corpus", "--model", small_encoder(tmp_path), "--count", "50")
    assert found["texts"] == 50 and all(x > 0 for x in numbers(found))


def test_serve_cpu(run, tmp_path):
    pytest.importorskip("uvicorn")
    small = ["--program", small_encoder(tmp_path), "--seconds", "0.4", "--turns", "1", "--clients", "3"]
    found = run("serve_cpu", *small, "--peers", "none", "--threads", "2")
    assert found["rates"]["hccs"] > 0 and found["overhead"]["seconds"]["float"] > 0
    assert all(half["ratio"] >= 1 and half["control"] >= 1 for half in found["half"].values())


def test_serve_soak(run, tmp_path):
    pytest.importorskip("uvicorn")
    small = ["--program", small_encoder(tmp_path), "--seconds", "3", "--clients", "2", "--kills", "2"]
    found = run("serve_soak", *small)
    assert found["wrong"] == {} and found["right"] > 0 and found["kills"] == 2 and found["memory"] > 0


def test_calibration(run):
    pytest.importorskip("rich")
    found = run("calibration", "--rows", "60", "--quick")["measured"]
    assert found["objective against the direct formula, largest difference"] < 1e-10
    assert found["heads where the exact search is worse"] == 0


def test_calibration_model(run, capsys):
    pytest.importorskip("transformers")
    data = ["--data", str(EMBEDDED / "movies"), "--task", "movies", "--sentences", "8"]
    run("calibration_model", str(EMBEDDED / "bert_tiny"), *data, into=None)
    assert "4 heads, 8 sentences, n = 64" in capsys.readouterr().out


@pytest.mark.slow
def test_training_step(run):
    found = run("training_step", "--device", "cpu", "--shapes", "2,2,16,8", into="--out")
    assert [row["masked"] for row in found["rows"]] == [False, True]
    assert all(x > 0 for row in found["rows"] for x in (row["time_ratio"], row["memory_ratio"]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_softmax_gpu(run):
    found = run("softmax_gpu", into="--out")
    assert found["rows"] and all(row["ms"] > 0 for row in found["rows"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ("encoder_gpu", "generate_gpu"))
def test_without_a_gpu(name, run):
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        run(name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_generate_gpu(run):
    sizes = ["--batches", "2", "--prompt", "8", "--new", "4", "--turns", "1", "--layers", "1"]
    (row,) = run("generate_gpu", *sizes)["rows"]
    assert row["bits_equal"] and all(x > 0 for x in numbers(row))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_decode_gpu(run):
    found = run("decode_gpu", "--batch", "2", "--prompt", "8", "--new", "4", "--turns", "1")
    assert [row["padded"] for row in found["generation"]] == [False, True]
    assert all(x > 0 for row in found["generation"] for x in (*row["ms"].values(), row["ratio"]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_encoder_gpu(run):
    found = run("encoder_gpu", "--models", "MiniLM-L6", "--sizes", "2x16", "--sentences", "300")
    assert found["sentences"]["bits_equal"] and found["sentences"]["ratio"] > 0
    assert all(row["bits_equal"] and row["ratio"] > 0 for row in found["cells"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_attention_gpu(run):
    found = run("attention_gpu", "--n", "64", "--kinds", "plain", "two lines, causal")
    assert [row["kind"] for row in found["rows"]] == ["plain", "two lines, causal"]
    for row in [*found["rows"], found["decode"]]:
        assert all(row[way] > 0 and row["ratio"][way] > 0 for way in ("call_ms", "graph_ms"))


def test_linear_cpu(run):
    found = run("linear_cpu", "--turns", "1", "--shapes", "12x64x64", "128x512x512")
    rates = found["rates"]["12x64x64"]
    assert {"int32", "int8", "int8_table", "int16", "sum_int32", "sum_int16"} <= set(rates)
    assert all(math.isfinite(x) and x > 0 for x in numbers(found["rates"]))


def test_fidelity_of_embeddings(run, tmp_path):
    pytest.importorskip("transformers")
    from tests.conversion.test_embeddings import sentence_folder, some_texts

    folder, texts = sentence_folder(tmp_path / "model"), some_texts(60)
    (tmp_path / "stsb").mkdir()
    (tmp_path / "cranfield").mkdir()
    rows = [f"{first}\t{second}\t{i % 6}" for i, (first, second) in enumerate(pairwise(texts))]
    (tmp_path / "stsb" / "test.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    rows = [f"{i}\t\t{text}" for i, text in enumerate(texts)]
    (tmp_path / "cranfield" / "documents.tsv").write_text("\n".join(["id\ttitle\ttext", *rows]))
    (tmp_path / "cranfield" / "queries.tsv").write_text(f"id\ttext\n7\t{texts[7]}\n")
    (tmp_path / "cranfield" / "relevance.txt").write_text("7 0 7 1\n")
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    given = ("--model", str(folder), "--data", str(tmp_path), "--texts", str(tmp_path / "texts.txt"))
    found = run("embeddings_fidelity", *given)
    assert found["cosine"]["texts"] == 118 and found["cosine"]["mean"] > 0.95
    assert found["cranfield"]["float_model"] == 100 and found["stsb"]["pairs"] == 59
    assert found["conversion"]["processor_seconds"] > 0
    assert len(found["fingerprint"]) == 64 and all(map(math.isfinite, numbers(found)))
    compared = ("--compare", str(tmp_path / "texts.txt"))
    other = run("embeddings_fidelity", *given[:2], *given[4:], *compared)
    assert other["cosine"]["texts"] == 60 and "stsb" not in other
    assert other["fingerprint"] == found["fingerprint"]


def test_the_name_of_a_processor_has_its_numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from provenance import cpu_named

    one = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"
    assert cpu_named(f"{one}\n{one.replace('26', '25')}") == "AMD EPYC (cpu family 26, model 2)"
    assert cpu_named("processor\t: 0\nCPU part\t: 0xd4f\n") == "(CPU part 0xd4f)"
    assert cpu_named("") == ""
