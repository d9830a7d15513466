"""Images through `hccs convert`: a folder by class, saved `datasets`, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pillow = pytest.importorskip("PIL.Image")

from typer.testing import CliRunner

from hccs.cli.app import app
from hccs.conversion.data import tasks
from hccs.conversion.data.images import prepared, read_images
from hccs.errors import DataError, FileError
from hccs.program import IntegerModel

COLOURS = {"blue": 2, "red": 0}
SIDE, PATCH = 24, 8


def coloured(rng, channel):
    """Noise with a block of one colour somewhere; another size than the model's."""
    image = rng.integers(0, 120, (30, 40, 3), dtype=np.uint8)
    top, left = rng.integers(0, 12, 2)
    image[top : top + 16, left : left + 20, channel] = 255
    return pillow.fromarray(image)


def write_folder(folder, count, seed):
    rng = np.random.default_rng(seed)
    for name, channel in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            coloured(rng, channel).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_folder(folder / "train", 48, 0)
    write_folder(folder / "dev", 20, 1)
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=SIDE,
        patch_size=PATCH,
        initializer_range=0.1,
    )
    config.id2label = {0: "red", 1: "blue"}  # in another order than the folders
    model = transformers.ViTForImageClassification(config)
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    rows = read_images(folder / "train", "image", "label", "--train")
    labels = [int(row["label"] == "blue") for row in rows]
    data = prepared(tasks.Examples([(row["image"],) for row in rows], labels), processor)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        model(**data.__getitems__(range(len(data)))).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder / "vit")
    processor.save_pretrained(folder / "vit")
    return folder


@pytest.fixture(scope="module")
def run(prepared_folder):
    """Calibrated, trained in integers for an epoch, lowered."""
    command = ["convert", str(prepared_folder / "vit"), "--problem", "images"]
    command += ["--train", str(prepared_folder / "train"), "--dev", str(prepared_folder / "dev")]
    command += ["--out", str(prepared_folder / "run"), "--epochs", "1", "--no-refine"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return prepared_folder / "run"


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_images_is_converted_all_in_integers(run, prepared_folder):
    stages = json.loads((run / "results.json").read_text())["stages"]
    base = stages["float_model"]["score"]["value"]
    assert stages["float_model"]["labels"] == ["red", "blue"]
    assert base > 0.9  # colours are easy; what follows must not lose them
    for stage in ("calibrated", "retrain", "attention", "integer"):
        assert stages[stage]["reached"]["score"]["value"] > base - 0.1, stage
    assert stages["integer"]["equal"] == 1
    # The program takes the pixels themselves.
    processor = transformers.AutoImageProcessor.from_pretrained(run / "model")
    known = tasks.custom_task(
        str(prepared_folder / "dev"), None, ["image"], "label", 64, ["red", "blue"], "images"
    )
    dev = prepared(tasks.load_file(prepared_folder / "dev", known), processor)
    whole = IntegerModel.load(run / "model.hccs")
    (pixels,) = dev.integers(range(len(dev)))
    assert pixels.dtype == np.uint8 and pixels.shape[1:] == (3, SIDE, SIDE)
    right = (whole(pixels).scores.argmax(-1) == dev.labels.numpy()).mean()
    assert right == stages["integer"]["reached"]["score"]["value"]


@pytest.mark.filterwarnings("ignore")
def test_a_finished_run_is_scored_on_another_folder(run, prepared_folder):
    command = ["evaluate", str(run), "--backend", "whole", "--file", str(prepared_folder / "train")]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "accuracy on 96 examples" in result.output


def test_a_batch_is_what_the_processor_makes(prepared_folder):
    processor = transformers.AutoImageProcessor.from_pretrained(prepared_folder / "vit")
    rows = read_images(prepared_folder / "dev", "image", "label", "--dev")[:5]
    made = prepared(tasks.Examples([(row["image"],) for row in rows], [0] * 5), processor)
    whole = processor([pillow.open(row["image"]) for row in rows], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(made.__getitems__(range(5))["pixel_values"], whole, rtol=0, atol=2 / 255)


def test_saved_data_sets_are_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["blue", "red"])}
    )
    rows = {"image": [coloured(rng, c) for c in (0, 2, 0)], "label": [1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    saved = str(tmp_path / "saved")
    known = tasks.custom_task(saved, saved, ["image"], "label", problem="images")
    found = tasks.load(known)
    assert found.labels == ("blue", "red") and found.train.labels == [1, 0, 1]
    with pytest.raises(DataError, match="no picture among image, label"):
        tasks.load(replace(known, text=("picture",)))


def test_what_is_no_folder_of_images_is_refused(tmp_path):
    with pytest.raises(FileError, match="a folder of images by class"):
        read_images(tmp_path / "missing", "image", "label", "--train")
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"cat/1\.png"):
        read_images(tmp_path, "image", "label", "--train")
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    (tmp_path / "cat" / "notes.txt").write_text("no image either")
    with pytest.warns(UserWarning, match="1 files"):
        (row,) = read_images(tmp_path, "image", "label", "--train")
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    with pytest.raises(DataError, match="Pillow"):
        prepared(tasks.Examples([(row["image"],)], [0]), processor)
