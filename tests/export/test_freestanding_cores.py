"""BERT-tiny on cores without floating point, in QEMU, and the proof that they run no float."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hccs.export import export_c_model
from hccs.program import IntegerModel, TextSettings
from hccs.program.files import load
from tests.export.c_tokenizer import MINILM
from tests.export.compilers import make, require_pass

pytest.importorskip("transformers")

from tests.export.programs import bert_tiny, dev_sentences

CORES = {
    "m3": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "m4": ("arm-none-eabi-gcc", "qemu-system-arm"),
    "riscv": ("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
}
PACKAGES = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf",
    "qemu-system-riscv32": "qemu-system-misc",
}
SENTENCES = 5
"""Of the dev set in every run of the tests; `make mcu` takes 50, with all words."""

FLOATS = """
float half(float x) { return 0.5f * x; }
double both(double x, int y) { return x / y; }
int less(float x, float y) { return x < y; }
int big(const int* x, int n) {
  int s = 0, i;
  for (i = 0; i < n; ++i) s += x[i] / 7 + x[i] / 11 + x[i] / 13 + x[i] / 17 + x[i] / 19 + (x[i] ^ s) / 23;
  for (i = 0; i < n; ++i) s -= x[i] % 29 + x[i] % 31 + x[i] % 37 + x[i] % 41 + x[i] % 43 + (x[i] ^ s) / 47;
  return s;
}
"""


def require_tools(*tools: str) -> None:
    missing = [PACKAGES.get(tool, tool) for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with the words of a few sentences of its dev set."""
    require_tools("make", "cc")
    folder = tmp_path_factory.mktemp("tiny") / "c"
    sequences = dev_sentences(SENTENCES)
    return export_c_model(bert_tiny(), folder, sequences=sequences, only_used_words=True).folder


def test_bert_tiny_here(tiny: Path) -> None:
    require_pass(make(tiny, "check"), SENTENCES)


@pytest.mark.parametrize("core", CORES)
def test_bert_tiny_answers_on_a_core_without_floats(tiny: Path, core: str) -> None:
    require_tools(*CORES[core])
    require_pass(make(tiny, core), SENTENCES)


@pytest.mark.parametrize("scores", ["int16", "uint8"])
def test_two_lines_on_every_core(scores: str, tmp_path: Path) -> None:
    require_tools("make", "cc")
    sequences = dev_sentences(2)
    model = bert_tiny(2, scores)
    folder = export_c_model(model, tmp_path / "c", sequences=sequences, only_used_words=True).folder
    require_pass(make(folder, "check"), 2)
    for core, tools in CORES.items():
        if all(map(shutil.which, tools)):
            require_pass(make(folder, core), 2)
            assert make(folder, f"nofloat-{core}").returncode == 0


def test_a_core_with_dsp_instructions_uses_them(tiny: Path) -> None:
    require_tools(*CORES["m4"])
    assert make(tiny, "build/check-m4.elf", "build/check-m3.elf").returncode == 0
    for core, used in (("m4", True), ("m3", False)):
        elf = tiny / "build" / f"check-{core}.elf"
        code = subprocess.run(
            ["arm-none-eabi-objdump", "-d", elf], capture_output=True, text=True, check=True
        )
        assert ("smlad" in code.stdout) == used


@pytest.mark.parametrize("core", CORES)
def test_costs_are_counted(tiny: Path, core: str) -> None:
    require_tools(*CORES[core])
    done = make(tiny, f"cost-{core}")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(reversed(line.split(" ", 1)) for line in done.stdout.splitlines() if line[:1].isdigit())
    assert len(lines) == 30
    products = 128 * 384 * max(map(len, dev_sentences(SENTENCES)))
    assert products < int(lines["Linear qkv0"]) < 6 * products
    assert int(lines["LayerNorm x0"]) < int(lines["Linear qkv0"]) / 5


def test_what_bert_tiny_needs(tmp_path: Path) -> None:
    written = export_c_model(bert_tiny(), tmp_path / "c", sequences=dev_sentences(1))
    assert written.arena_bytes <= 96 * 1024
    assert written.word_bytes == 30522 * 128
    assert written.constant_bytes <= 4_600_000


def test_no_float_is_left(tiny: Path) -> None:
    if "x86_64" not in subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("not an x86-64")
    require_tools("objdump", "nm")
    for compiler in ("gcc", "clang"):
        if shutil.which(compiler):
            done = make(tiny, "-B", "nofloat", f"CC={compiler}")
            assert done.returncode == 0 and "none of floating point" in done.stdout, done.stderr


@pytest.mark.parametrize("core", CORES)
def test_no_float_is_left_on_a_core(tiny: Path, core: str) -> None:
    require_tools(CORES[core][0])
    done = make(tiny, f"nofloat-{core}")
    assert done.returncode == 0 and "none of floating point" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("prefix", "architecture", "flags", "seen"),
    [
        ("", "x86-64", [], "mulss"),
        ("arm-none-eabi-", "cortex_m", ["-mcpu=cortex-m3"], "__aeabi_fmul"),
        (
            "arm-none-eabi-",
            "cortex_m",
            ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"],
            "vmul.f32",
        ),
        ("riscv64-unknown-elf-", "riscv", ["-march=rv32imac", "-mabi=ilp32"], "__mulsf3"),
        ("riscv64-unknown-elf-", "riscv", ["-march=rv32imafc", "-mabi=ilp32f"], "fmul.s"),
    ],
    ids=["x86-64", "cortex-m3", "cortex-m4 with VFP", "rv32imac", "rv32imafc"],
)
def test_floats_would_be_seen(
    tiny: Path, tmp_path: Path, prefix: str, architecture: str, flags: list[str], seen: str
) -> None:
    require_tools(f"{prefix}gcc", f"{prefix}objdump", f"{prefix}nm")
    (tmp_path / "floats.c").write_text(FLOATS)
    compiled = tmp_path / "floats.o"
    subprocess.run([f"{prefix}gcc", *flags, "-O1", "-c", "-o", compiled, tmp_path / "floats.c"], check=True)
    done = subprocess.run(
        ["sh", tiny / "hccs_nofloat.sh", prefix, architecture, compiled],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and seen in done.stderr
    integers = [f"{prefix}gcc", *flags, "-O1", "-c", "-o", compiled, "-x", "c", "-"]
    subprocess.run(integers, input=FLOATS[FLOATS.index("int big") :], text=True, check=True)
    done = subprocess.run(
        ["sh", tiny / "hccs_nofloat.sh", prefix, architecture, compiled], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.mcu
@pytest.mark.parametrize("core", CORES)
def test_50_sentences_with_all_words(core: str, tmp_path: Path) -> None:
    require_tools(*CORES[core])
    written = export_c_model(bert_tiny(), tmp_path / "c", sequences=dev_sentences(50))
    require_pass(make(written.folder, core), 50)
    assert make(written.folder, f"nofloat-{core}").returncode == 0


@pytest.mark.mcu
@pytest.mark.parametrize("core", CORES)
def test_bert_tiny_from_text_on_a_core(core: str, tmp_path: Path) -> None:
    """UTF-8 in, scores out: BERT's whole vocabulary, texts and pairs."""
    require_tools(*CORES[core])
    text = TextSettings("classify", 64).as_json()
    program = bert_tiny().program
    program = replace(program, facts={**program.facts, "text": text}, tokenizer=load(MINILM).tokenizer)
    written = export_c_model(IntegerModel(program), tmp_path / "c", sequences=dev_sentences(1))
    assert written.without_text == "" and written.examples == 6
    require_pass(make(written.folder, core), 6)
    assert make(written.folder, f"nofloat-{core}").returncode == 0


@pytest.mark.mcu
def test_the_whole_dev_set_here(tmp_path: Path) -> None:
    """The expected scores are the reference's, which those of the fast form of the program are, too."""
    model, sequences = bert_tiny(), dev_sentences(10_000)
    assert len(sequences) == 1001
    written = export_c_model(model, tmp_path / "c", sequences=sequences)
    require_pass(make(written.folder, "check"), 1001)
