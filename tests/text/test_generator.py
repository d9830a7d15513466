"""Texts in, continuations out: whole characters, named by a seed, from Python and from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

import hccs
from hccs.errors import DataError, FileError, ModelError
from hccs.text.generator import _Pieces
from tests.program.programs import LONGEST, language_model
from tests.text.models import scorer, tokenizer, with_texts

PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def generator() -> hccs.Generator:
    return hccs.Generator(with_texts(language_model(1), "generate", read=tokenizer(special=False)))


def test_a_seed_names_a_text(generator):
    found = generator.generate(PROMPT, temperature=1.0, seed=5, max_new_tokens=20)
    assert found.seed == 5 and found.end == "max_new_tokens" and len(found.tokens) == 20
    assert found == generator.generate(PROMPT, temperature=1.0, seed=5, max_new_tokens=20)
    assert found != generator.generate(PROMPT, temperature=1.0, seed=6, max_new_tokens=20)
    several = generator.generate(["the", PROMPT], temperature=1.0, seed=4, max_new_tokens=20)
    assert several[1] == found
    ids = generator._reader.read([PROMPT])[0].ids
    same = generator.model.generate([ids], temperature=1.0, seed=5, max_new_tokens=20)
    assert same.tokens[0] == found.tokens
    assert PROMPT + found.text == generator._reader.decode([*ids, *found.tokens])


def test_pieces_make_the_text(generator):
    pieces = []
    found = generator.generate(
        PROMPT, temperature=1.0, seed=9, on_text=lambda number, piece: pieces.append((number, piece))
    )
    assert {number for number, _ in pieces} == {0} and len(pieces) > 3
    assert "".join(piece for _, piece in pieces) == found.text
    assert "".join(generator.stream(PROMPT, temperature=1.0, seed=9)) == found.text


def byte_tokenizer():
    """Every byte is a token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def test_pieces_are_whole_characters():
    made = byte_tokenizer()
    text = "naïve 各国 😀👩‍🚀 done\n"
    pieces = _Pieces(made.decode, made.encode("ï").ids[:1])  # a prompt may end anywhere
    found = [pieces.next(token) for token in made.encode(text).ids]
    assert "".join(found) == text == pieces.text and pieces.rest() == ""
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in found)
    cut = _Pieces(made.decode, [])
    for token in made.encode("a😀").ids[:-1]:
        cut.next(token)
    assert cut.text == "a" and cut.rest() == "\N{REPLACEMENT CHARACTER}"


def test_texts_end_at_the_tokens_that_the_file_names(generator):
    free = generator.generate(PROMPT, temperature=1.0, seed=2, max_new_tokens=25)
    stop = next(token for token in free.tokens[3:] if token < 40)
    name = generator._reader._tokenizer.id_to_token(stop)
    made = with_texts(language_model(1), "generate", read=tokenizer(special=False), stop=[name])
    cut = hccs.Generator(made).generate(PROMPT, temperature=1.0, seed=2, max_new_tokens=25)
    assert cut.end == "stop" and cut.tokens == free.tokens[: free.tokens.index(stop)]
    assert generator.generate(PROMPT, temperature=1.0, seed=2, max_new_tokens=25, stop=stop) == cut
    unknown = with_texts(language_model(1), "generate", read=tokenizer(special=False), stop=["<end>"])
    with pytest.raises(FileError, match="<end>"):
        hccs.Generator(unknown).generate(PROMPT)


def test_refusals(generator):
    with pytest.raises(DataError, match="at least one token"):
        generator.generate("")
    with pytest.raises(DataError, match=f"at most {LONGEST} tokens"):
        generator.generate("the " * (LONGEST + 1))
    assert generator.generate("the " * LONGEST).end == "longest"
    with pytest.raises(ModelError, match=r"hccs\.Classifier"):
        hccs.Generator(with_texts(scorer(("a", "b")), "classify"))
    with pytest.raises(ModelError, match=r"hccs\.Generator"):
        hccs.Classifier(generator.model)
    with pytest.raises(TypeError, match="temprature"):
        generator.generate(PROMPT, temprature=1.0)


@pytest.fixture(scope="module")
def file(generator, tmp_path_factory):
    path = tmp_path_factory.mktemp("generator") / "model.hccs"
    generator.model.save(path)
    return str(path)


def hccs_generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hccs.cli", "generate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line(generator, file):
    loaded = hccs.Generator.load(file)
    expected = loaded.generate(PROMPT, temperature=0.9, top_k=20, top_p=0.95, seed=11, max_new_tokens=15)
    options = ["--temperature", "0.9", "--top-k", "20", "--top-p", "0.95", "--max-tokens", "15"]
    done = hccs_generate(file, PROMPT, *options, "--seed", "11")
    assert (done.returncode, done.stdout) == (0, expected.text + "\n")
    assert "--seed 11 names this text" in done.stderr
    drawn = json.loads(hccs_generate(file, PROMPT, *options, "--json").stdout)
    again = hccs_generate(file, PROMPT, *options, "--seed", str(drawn["seed"]))
    assert again.stdout == drawn["text"] + "\n"
    greedy = hccs_generate(file, PROMPT, "--max-tokens", "5")
    assert greedy.stdout == generator.generate(PROMPT, max_new_tokens=5).text + "\n" and not greedy.stderr
    full = hccs_generate(file, PROMPT, "--max-tokens", "500")
    assert "no more positions" in full.stderr
    for wrong, said in (
        (["--temperature", "-1"], "temperature"),
        (["--top-k", "0"], "top_k"),
        (["--seed", str(2**64)], "a seed from 0"),
    ):
        refused = hccs_generate(file, PROMPT, *wrong)
        assert refused.returncode == 1 and said in refused.stderr and "Traceback" not in refused.stderr


SLOW = """
import sys, time
import hccs.program.model as model
extended = model.IntegerModel.extended
def slowly(self, *given):
    time.sleep(0.2)
    return extended(self, *given)
model.IntegerModel.extended = slowly
from hccs.cli import main
sys.argv = ["hccs", "generate", *sys.argv[1:]]
main()
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX signals")
def test_ctrl_c_leaves_what_was_generated(generator, file):
    command = [
        sys.executable,
        "-c",
        SLOW,
        file,
        PROMPT,
        "--max-tokens",
        "30",
        "--temperature",
        "1",
        "--seed",
        "3",
    ]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = os.read(started.stdout.fileno(), 1000)  # waits for the first piece
    started.send_signal(signal.SIGINT)
    rest, said = started.communicate()
    text = generator.generate(PROMPT, temperature=1.0, seed=3, max_new_tokens=30).text
    shown = (first + rest).decode().rstrip("\n")
    assert started.returncode == 130 and shown and text.startswith(shown) and len(shown) < len(text)
    assert "--seed 3 names this text" in said.decode() and "hccs: stopped" in said.decode()


def test_models_without_settings_generate(generator):
    bare = replace(generator.model.program, facts={})
    found = hccs.Generator(hccs.IntegerModel(bare)).generate(PROMPT, max_new_tokens=7)
    assert found == generator.generate(PROMPT, max_new_tokens=7)
    assert np.all(np.array(found.tokens) >= 0)
