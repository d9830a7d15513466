import json

import pytest

pytest.importorskip("torch")

from hccs.conversion.data import tasks
from hccs.errors import DataError, FileError


def write(path, rows, header="sentence\tlabel"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def task(folder, **changes):
    values = {"train": "train.tsv", "dev": None, "text": ["sentence"], "label": "label", "n": 64}
    return tasks.load(tasks.custom_task(**{**values, **changes}), folder)


def test_embedded_task_is_balanced_and_disjoint():
    data = tasks.load(tasks.TASKS["movies"])
    assert len(data.train) == 9042 and len(data.dev) == 1001
    assert 0.4 < sum(data.dev.labels) / len(data.dev) < 0.6
    assert data.labels == ("negative", "positive")


def test_csv_tsv_and_jsonl_read_alike(tmp_path):
    rows = [("a good, long film", "yes"), ("bad", "no"), ('so "so"', "no")]
    write(tmp_path / "train.tsv", [f"{text}\t{label}" for text, label in rows])
    quoted = [f'"{text.replace(chr(34), chr(34) * 2)}",{label}' for text, label in rows]
    (tmp_path / "train.csv").write_text("\n".join(["sentence,label", *quoted]))
    lines = [json.dumps({"sentence": text, "label": label}) for text, label in rows]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    found = [task(tmp_path, train=f"train.{kind}", dev=f"train.{kind}") for kind in ("tsv", "csv", "jsonl")]
    assert found[0].labels == ("no", "yes")
    assert found[0].train.texts == found[1].train.texts == found[2].train.texts
    assert found[0].train.labels == [1, 0, 0]


def test_a_tenth_is_held_out_without_a_dev_file(tmp_path):
    write(tmp_path / "train.tsv", [f"text {i}\t{i % 2}" for i in range(50)])
    data = task(tmp_path)
    assert len(data.dev) == 5 and len(data.train) == 45
    assert not set(data.dev.texts) & set(data.train.texts)
    assert task(tmp_path).dev.texts == data.dev.texts


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["x\t1"], "text\tlabel", "no sentence among text, label"),
        ([], "sentence\tlabel", "an empty file"),
        (["x\t1", "y\t1"], "sentence\tlabel", "at least two labels"),
    ],
)
def test_files_that_cannot_serve(tmp_path, rows, header, message):
    write(tmp_path / "train.tsv", rows, header)
    with pytest.raises(DataError, match=message):
        task(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    (tmp_path / "train.csv").write_text("sentence,label\ngood,yes\nbad,no\n", encoding="utf-8-sig")
    assert task(tmp_path, train="train.csv", dev="train.csv").labels == ("no", "yes")
    (tmp_path / "train.jsonl").write_text('{"sentence": "x", "label": "a"}\n' * 2, encoding="utf-8-sig")
    with pytest.raises(DataError, match="at least two labels"):
        task(tmp_path, train="train.jsonl")


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("utf-16", "UTF-16, which spreadsheets"),
        ("latin-1", "byte 0xe9 in line 3, as in files saved as Latin-1"),
    ],
)
def test_other_encodings_are_refused_in_words(tmp_path, encoding, message):
    (tmp_path / "train.csv").write_text("sentence,label\ngood,yes\né,no\n", encoding=encoding)
    with pytest.raises(FileError, match=message):
        task(tmp_path, train="train.csv")


def test_empty_labels_are_refused_with_their_rows(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        "\n".join(json.dumps({"sentence": "x", "label": label}) for label in ("a", None, "b", " "))
    )
    with pytest.raises(DataError, match="an empty label in rows 2, 4"):
        task(tmp_path, train="train.jsonl")
    (tmp_path / "train.csv").write_text("sentence,label\ngood,yes\nbad\nworse,no\n")  # a row cut short
    with pytest.raises(DataError, match="an empty label in row 3"):
        task(tmp_path, train="train.csv")


def test_numbers_are_positions_in_the_names_that_were_listed(tmp_path):
    write(tmp_path / "train.tsv", ["good\t1", "bad\t0", "fine\tPositive"])
    found = task(tmp_path, dev="train.tsv", names=["negative", "positive"])
    assert found.labels == ("negative", "positive") and found.train.labels == [1, 0, 1]
    assert found.numbered_as(("POSITIVE", "NEGATIVE")).dev.labels == [0, 1, 0]


def test_a_file_named_like_a_task_is_read_where_it_is(tmp_path, monkeypatch):
    (tmp_path / "movies.csv").write_text("sentence,label\ngood,yes\nbad,no\n")
    monkeypatch.chdir(tmp_path)
    assert task(None, train="movies.csv", dev="movies.csv").labels == ("no", "yes")


def test_an_unknown_label_is_named_with_its_row(tmp_path):
    write(tmp_path / "train.tsv", ["good\t1", "odd\t7"])
    write(tmp_path / "dev.tsv", ["good\t1"])
    with pytest.raises(DataError, match="'7' in row 3"):
        tasks.load(tasks.TASKS["sst2"], tmp_path)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FileError, match="--data"):
        tasks.load(tasks.TASKS["sst2"], tmp_path)
    with pytest.raises(FileError, match=r"Check --train\."):
        task(tmp_path)
    with pytest.raises(FileError, match=r"Check --file\."):
        tasks.load_file(tmp_path / "none.tsv", tasks.TASKS["sst2"])
    other = write(tmp_path / "other.tsv", ["x\t1"], "text\tlabel")
    with pytest.raises(DataError, match="the run was converted on"):
        tasks.load_file(other, tasks.TASKS["sst2"])
    (tmp_path / "train.jsonl").write_text('{"sentence": ')
    with pytest.raises(FileError, match="JSON lines"):
        task(tmp_path, train="train.jsonl")
