"""`hccs predict`: a finished run answers texts without torch, as the model that transformers loads."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

import hccs
import hccs.nn
from hccs.cli.models import answers
from hccs.conversion.run import convert
from hccs.errors import FileError
from hccs.program.files import find
from hccs_lab.demo import MODEL
from tests.conversion.test_convert import settings, silent, write_data

pytestmark = pytest.mark.filterwarnings("ignore")


def predict(path, texts):
    return answers(hccs.IntegerModel.load(find(path)), texts)


TEXTS = ["a gripping, beautifully acted film", "dull and far too long"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = write_data(tmp_path_factory.mktemp("data"))
    out = tmp_path_factory.mktemp("predict") / "run"
    convert(settings(data, retraining=None, reconstruct=False), out, silent)
    return out


def test_answers_are_those_of_the_integer_model_on_transformers_ids(run):
    model = hccs.IntegerModel.load(run / "model.hccs")
    ids = transformers.AutoTokenizer.from_pretrained(run / "model")(TEXTS)["input_ids"]
    for (found,), text, row in zip(predict(run, TEXTS), TEXTS, ids, strict=True):
        logits = torch.from_numpy(model(row).logits[0]).double()
        assert found["label"] == model(row).labels[0] and found["text"] == text
        assert found["score"] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-6)
    assert predict(run / "model.hccs", TEXTS) == predict(run, TEXTS)


def test_the_command_needs_no_torch(run):
    """Arguments and lines of stdin, in a process where torch and transformers cannot be imported."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import hccs.cli; hccs.cli.main()"
    )
    command = [sys.executable, "-c", program, "predict", str(run), TEXTS[0], "-", "--json"]
    done = subprocess.run(command, input=f"{TEXTS[1]}\n\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == predict(run, TEXTS)
    shown = subprocess.run(command[:-1], input="", capture_output=True, text=True, check=False)
    assert TEXTS[0] in shown.stdout and f"{found[0][0]['score']:.4f}" in shown.stdout, shown.stderr
    nothing = subprocess.run([*command[:5], "-"], input="\n", capture_output=True, text=True, check=False)
    assert nothing.returncode == 1 and nothing.stderr.startswith("hccs: expected at least one text")


def test_long_texts_are_cut_as_in_training(run):
    longest = hccs.IntegerModel.load(run / "model.hccs").program.longest
    (long,), (cut,) = predict(run, ["word " * 500, "word " * (longest - 2)])
    assert long["score"] == cut["score"]


def test_what_cannot_answer_is_refused(run, tmp_path):
    with pytest.raises(FileError):
        predict(tmp_path, TEXTS)
    (tmp_path / "model.hccs").write_bytes((run / "model.hccs").read_bytes())
    assert predict(tmp_path, TEXTS) == predict(run, TEXTS)  # the file is enough
    program = hccs.IntegerModel.load(run / "model.hccs").program
    hccs.IntegerModel(replace(program, tokenizer="")).save(tmp_path / "model.hccs")
    with pytest.raises(FileError, match="tokenizer"):
        predict(tmp_path, TEXTS)


def test_pairs_and_words(tmp_path):
    """A tab separates a pair; a model of tokens answers with spans, the first token of a word for it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, initializer_range=0.3, num_labels=3,
        id2label={0: "PER", 1: "LOC", 2: "O"}, label2id={"PER": 0, "LOC": 1, "O": 2},
    )  # fmt: skip
    words = ["unwatchable film", "a gripping tale", "Kubrick filmed it", "dull"] * 6
    given = {"tokenizer": tokenizer, "sentences": 8, "refine": False, "retraining": None, "say": silent}
    torch.manual_seed(0)
    of_words = transformers.BertForTokenClassification(config)
    tags = [(text.split(), ["O"] * (len(text.split()) - 1) + ["PER"]) for text in words]
    found = hccs.convert(of_words, tags, tags, out=tmp_path / "words", problem="tokens", **given)
    (tags,) = predict(found.folder, ["unwatchable Kubrick"])
    ids = tokenizer([["unwatchable", "Kubrick"]], is_split_into_words=True)
    logits = found.integer_model(ids["input_ids"][0]).logits[0]
    places = [ids.word_ids(0).index(word) for word in (0, 1)]
    labels = [("PER", "LOC", "O")[logits[i].argmax()] for i in places]
    wanted = zip(("unwatchable", "Kubrick"), labels, (0, 12), strict=True)
    assert [(tag["text"], tag["label"], tag["start"]) for tag in tags] == [w for w in wanted if w[1] != "O"]
    of_pairs = transformers.BertForSequenceClassification(config)
    pairs = [((text, text[:6]), ("PER", "LOC", "O")[i % 3]) for i, text in enumerate(words)]
    found = hccs.convert(of_pairs, pairs, pairs, out=tmp_path / "pairs", **given)
    ((answer,),) = predict(found.folder, ["dull\tfilm"])
    ids = tokenizer("dull", "film")
    wanted = found.integer_model([ids["input_ids"]], None, [ids["token_type_ids"]])
    assert answer["label"] == wanted.labels[0]
