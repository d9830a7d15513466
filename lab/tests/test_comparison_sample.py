import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hccs.calibration import HeadStatistics
from hccs.calibration.files import collect_files
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import load_classifier
from hccs.errors import DataError, FileError, MaskError, ParameterError
from hccs.nn.collecting import observing
from hccs.nn.functional import quantise
from hccs.nn.slots import Observer
from hccs_lab import surrogates
from hccs_lab.compare import speed
from hccs_lab.compare.sample import LogitSample, sample_files, sample_model
from hccs_lab.compare.speed import time_forms
from hccs_lab.demo import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_turn(monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(speed, "LEAST", 1)


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
    calibration, measured = sample_files([path], rows=20)
    assert calibration.rows == measured.rows == 20
    np.testing.assert_array_equal(measured.scale, sample.scale)
    (tmp_path / "other.safetensors").write_bytes(path.read_bytes().replace(b'"logits"', b'"scores"'))
    with pytest.raises(FileError):
        LogitSample.load(tmp_path / "other.safetensors")


def test_rows_of_files_in_every_form_agree(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (2, 3, 50, 16)).astype(np.float32)
    lengths = rng.integers(1, 17, 50)
    valid = np.arange(16) < lengths[:, None]
    scale = np.full((2, 3), 0.05)
    np.savez(tmp_path / "whole.npz", logits=np.where(valid, z, np.nan), lengths=lengths, scale=scale)
    np.savez(tmp_path / "masked.npz", logits=z, valid=valid[None, None], scale=scale)
    for layer in range(2):
        np.savez(tmp_path / f"{layer}.npz", logits=z[layer], lengths=lengths, scale=scale[layer])
    for part, rows in enumerate((slice(0, 20), slice(20, 50))):
        np.savez(tmp_path / f"part{part}.npz", logits=z[:, :, rows], lengths=lengths[rows], scale=scale)
    forms = [["whole.npz"], ["masked.npz"], ["0.npz", "1.npz"], ["part0.npz", "part1.npz"]]
    found = [sample_files([tmp_path / name for name in form], rows=12, seed=3) for form in forms]
    for halves in found:
        for mine, first in zip(halves, found[0], strict=True):
            np.testing.assert_array_equal(mine.valid, first.valid)
            np.testing.assert_array_equal(mine.logits * mine.valid, first.logits * first.valid)
    calibration, measured = (set(map(bytes, half.logits[0, 0])) for half in found[0])
    assert len(calibration) == len(measured) == 12 and not calibration & measured
    np.savez(tmp_path / "unscaled.npz", logits=z)
    assert (
        sample_files([tmp_path / "unscaled.npz"], rows=4)[0].scale[0, 0] == float(np.abs(z[0, 0]).max()) / 127
    )


def forms_of_files():
    """Files that `hccs calibrate` takes, as (scale, arrays of each file)."""
    rng = np.random.default_rng(5)
    x = rng.integers(-90, 90, (2, 3, 12, 8), dtype=np.int8)
    z = rng.normal(0, 3, (2, 3, 12, 8))
    lengths = rng.integers(1, 9, (2, 3, 12))
    by_head = np.arange(8) < lengths[..., None]
    own = rng.uniform(0.02, 0.2, (2, 3))
    return {
        "int8 without a scale": (0.05, [{"logits": x}]),
        "int8 of layers without a scale": (0.05, [{"logits": part} for part in x]),
        "int8 with one scale": (None, [{"logits": x, "scale": 0.1}]),
        "int8 with a scale per head": (None, [{"logits": x, "scale": own}]),
        "another scale than the file's": (0.07, [{"logits": x, "scale": own}]),
        "float": (None, [{"logits": z}]),
        "float16 by a number": (0.05, [{"logits": z.astype(np.float16)}]),
        "lengths per head": (0.05, [{"logits": x, "lengths": lengths}]),
        "lengths of heads": (0.05, [{"logits": x, "lengths": lengths[0, :, :1]}]),
        "one length": (0.05, [{"logits": x, "lengths": np.int64(5)}]),
        "empty rows": (0.05, [{"logits": x, "lengths": np.arange(12) % 3}]),
        "a mask per head": (0.05, [{"logits": x, "valid": by_head}]),
        "a mask for all rows": (0.05, [{"logits": x, "valid": by_head[0, 0, 0]}]),
        "a mask per head and layer": (None, [{"logits": z[i], "valid": by_head[i]} for i in range(2)]),
        "layers of other lengths": (0.05, [{"logits": x[0]}, {"logits": x[1][:, :9]}]),
        "files of other widths": (0.05, [{"logits": x}, {"logits": x[..., :5]}]),
    }


@pytest.mark.parametrize("form", forms_of_files())
def test_files_that_calibrate_takes_are_taken(form, tmp_path):
    scale, files = forms_of_files()[form]
    paths = [tmp_path / f"{number}.npz" for number in range(len(files))]
    for path, arrays in zip(paths, files, strict=True):
        np.savez(path, **arrays)
    expected = collect_files(paths, scale="max-abs" if scale is None else scale)
    halves = sample_files(paths, rows=100, scale=scale)
    np.testing.assert_allclose(halves[0].scale, expected.scale, rtol=1e-12)
    found = HeadStatistics(expected.shape, expected.n, halves[0].scale)
    for half in halves:
        found.update(half.logits, np.broadcast_to(half.valid, half.logits.shape))
    if form == "layers of other lengths":  # as many rows of each as the shorter one has
        assert found.rows.tolist() == [[9] * 3] * 2
    else:
        np.testing.assert_array_equal(found.rows, expected.rows)
    for method in ("softmax", "hccs", "ibert", "sparsemax"):
        kind = surrogates.get(method)
        fitted = kind.calibrate(halves[0].logits, halves[0].scale, halves[0].valid)
        result = kind(halves[1].logits, halves[1].scale, halves[1].valid, **fitted)
        assert np.isfinite(result.probabilities).all()
    assert set(time_forms(surrogates.get("softmax"), halves[1], {})) >= {"numpy", "torch"}


def test_refusals(loaded, batches, tmp_path):
    def saved(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return [tmp_path / "x.npz"]

    x = np.zeros((1, 2, 5, 8), np.int8)
    with pytest.raises(ParameterError, match="at least two rows"):
        sample_model(loaded.model, batches, n=64, rows=1)
    with pytest.raises(DataError, match="at least one batch"):
        sample_model(loaded.model, [], n=64, rows=8)
    with pytest.raises(ParameterError, match="a scale for int8 logits"):
        sample_files(saved(logits=x), rows=8)
    with pytest.raises(MaskError, match="broadcast to the logits"):
        sample_files(saved(logits=x, scale=1.0, lengths=np.ones(3, int)), rows=8)
    with pytest.raises(DataError, match="at least two rows of logits"):
        sample_files(saved(logits=x[:, :, :1], scale=1.0), rows=8)
    np.savez(tmp_path / "2.npz", logits=x, scale=2.0)
    with pytest.raises(DataError, match="one scale per head"):
        sample_files([*saved(logits=x, scale=1.0), tmp_path / "2.npz"], rows=8)
