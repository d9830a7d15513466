import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hccs.calibration.files import collect_files
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import load_classifier
from hccs.errors import DataError, FileError, ParameterError
from hccs.nn.collecting import observing
from hccs.nn.functional import quantise
from hccs.nn.slots import Observer
from hccs_lab import surrogates
from hccs_lab.compare import steps
from hccs_lab.compare.source import LogitSample, sample_model
from hccs_lab.compare.steps import time_forms
from hccs_lab.demo import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_turn(monkeypatch):
    monkeypatch.setattr(steps, "SECONDS", 0.0)
    monkeypatch.setattr(steps, "LEAST", 1)


@pytest.fixture(scope="module")
def loaded():
    return load_classifier(str(MODEL), ("negative", "positive"))


@pytest.fixture(scope="module")
def batches(loaded):
    few = tasks.load(tasks.TASKS["movies"]).dev.subset(24)
    return list(tokenise(few, loaded.tokenizer, 64).batches(8))


class Everything(Observer):
    """Keeps all that an attention layer hands to its softmax."""

    def __init__(self, inner, kept):
        super().__init__(inner)
        self.kept = kept

    def observe(self, inputs):
        self.kept.append((inputs.logits.clone(), inputs.valid))


def every_row(model, batches, layers):
    """All rows of real queries as (float logits [heads, k], length), layer by layer."""
    kept = {name: [] for name in layers}
    with observing(model, {n: (lambda inner, n=n: Everything(inner, kept[n])) for n in layers}):
        for batch in batches:
            with torch.no_grad():
                model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    rows = []
    for name in layers:
        found = []
        for (z, _), batch in zip(kept[name], batches, strict=True):
            lengths = batch["attention_mask"].sum(-1).tolist()
            found += [(z[i, :, q], n) for i, n in enumerate(lengths) for q in range(n)]
        rows.append(found)
    return rows


def test_sampled_rows_are_rows_of_the_model(loaded, batches):
    sample = sample_model(loaded.model, batches, n=64, rows=10_000)
    rows = every_row(loaded.model, batches, sample.layers)
    assert sample.logits.shape == (2, 2, len(rows[0]), 64)
    for layer, expected in enumerate(rows):
        scale = torch.tensor(sample.scale[layer], dtype=torch.float32)
        for row, (z, length) in enumerate(expected):
            want = quantise(z[:, None], scale)[:, 0, :length].numpy()
            np.testing.assert_array_equal(sample.logits[layer, :, row, :length], want)
            assert sample.valid[layer, 0, row].sum() == length and sample.valid[layer, 0, row, :length].all()


def test_a_draw_is_bounded_repeatable_and_the_same_in_all_layers(loaded, batches):
    everything = sample_model(loaded.model, batches, n=64, rows=10_000)
    some, again, other = (sample_model(loaded.model, batches, n=64, rows=40, seed=seed) for seed in (7, 7, 8))
    assert some.rows == 40
    np.testing.assert_array_equal(some.logits, again.logits)
    assert not np.array_equal(some.logits, other.logits)
    of_all = {row.tobytes(): i for i, row in enumerate(everything.logits.transpose(2, 0, 1, 3))}
    places = [of_all[row.tobytes()] for row in some.logits.transpose(2, 0, 1, 3)]
    assert len(set(places)) == 40  # rows of all layers together, none twice


def test_a_saved_sample_is_a_file_of_logits(loaded, batches, tmp_path):
    sample = sample_model(loaded.model, batches, n=64, rows=60)
    path = tmp_path / "logits.safetensors"
    sample.save(path)
    back = LogitSample.load(path)
    assert back.layers == sample.layers
    np.testing.assert_array_equal(back.logits, sample.logits)
    stats = collect_files([path])
    assert stats.rows.tolist() == [[60, 60], [60, 60]]
    (tmp_path / "other.safetensors").write_bytes(path.read_bytes().replace(b'"logits"', b'"scores"'))
    with pytest.raises(FileError):
        LogitSample.load(tmp_path / "other.safetensors")


def test_forms_are_timed_on_a_sample(loaded, batches):
    sample = sample_model(loaded.model, batches, n=64, rows=60)
    assert set(time_forms(surrogates.get("softmax"), sample, {})) >= {"numpy", "torch"}


def test_refusals(loaded, batches):
    with pytest.raises(ParameterError, match="rows to be an integer from 2"):
        sample_model(loaded.model, batches, n=64, rows=1)
    with pytest.raises(DataError, match="at least one batch"):
        sample_model(loaded.model, [], n=64, rows=8)
