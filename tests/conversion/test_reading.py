"""Files as people have them: other endings, other forms, and what is refused with its row."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hccs.conversion.data import tasks
from hccs.conversion.data.reading import named, read_table, read_texts
from hccs.conversion.data.sources import given_as
from hccs.errors import DataError, FileError, ParameterError

ROWS = [{"sentence": "a good film", "label": "yes"}, {"sentence": "bad", "label": "no"}]


def load(path, problem="classification", text=("sentence",), **changes):
    return tasks.load(tasks.custom_task(str(path), str(path), text, "label", 64, problem=problem, **changes))


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.TSV", "sentence\tlabel\na good film\tyes\nbad\tno\n"),
        ("a.tab", "sentence\tlabel\na good film\tyes\nbad\tno\n"),
        ("a.CSV", "sentence,label\na good film,yes\nbad,no\n"),
        ("a.JSONL", "\n".join(map(json.dumps, ROWS))),
        ("a.ndjson", "\r\n".join(map(json.dumps, ROWS))),
        ("a.json", json.dumps(ROWS, indent=2)),
        ("a.jsonl", json.dumps(ROWS)),
    ],
)
def test_endings_in_any_case_and_arrays_of_json(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert load(tmp_path / name).train.texts == [("a good film",), ("bad",)]


def test_rows_are_numbered_as_their_files_number_them(tmp_path):
    bad = {"sentence": "x", "label": None}
    assert read_table(
        lines(tmp_path / "a.jsonl", ROWS[0], "", ROWS[1]), ["label"], if_missing="", if_other_columns=""
    ).numbers == [1, 3]
    with pytest.raises(DataError, match="an empty label in row 4"):
        load(lines(tmp_path / "a.jsonl", ROWS[0], "", ROWS[1], bad))
    (tmp_path / "a.json").write_text(json.dumps([*ROWS, bad]))
    with pytest.raises(DataError, match="an empty label in row 3"):
        load(tmp_path / "a.json")
    (tmp_path / "a.csv").write_text("sentence,label\ngood,yes\n\nbad,\n")
    with pytest.raises(DataError, match="an empty label in row 4"):
        load(tmp_path / "a.csv")


def test_a_cell_may_be_a_long_document(tmp_path):
    document = "word " * 60_000
    (tmp_path / "a.csv").write_text(f'sentence,label\n"{document}",yes\nbad,no\n')
    assert load(tmp_path / "a.csv").train.texts[0] == (document,)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "sentence,label,label\nx,a,b\n", "two columns label"),
        ("a.csv", "sentence,label\na good, long film,yes\n", "3 cells in row 2 under a header of 2"),
        ("a.csv", 'sentence,label\n"never closed,yes\nbad,no\n', "unexpected end of data in line"),
        ("a.jsonl", '{"sentence": "x", "label": 1, "label": 2}\n', "two values of one name in line 1"),
        ("a.jsonl", '{"sentence": "x", "label": 1}\n[1]\n', "a JSON list instead of an object in row 2"),
        ("a.jsonl", '{"sentence": "x", "label": 1}\n{"sentence"\n', "in line 2"),
        ("a.json", "[" * 100_000, "too deep"),
        ("a.json", "[]", "an empty file"),
        ("a.csv", "", "an empty file"),
        ("a.csv", "sentence,label\n", "an empty file"),
        ("a.csv", "sentence,label\n,yes\n  ,no\n", "2 empty cells"),
        ("a.csv", "sentence,label\ngood,\nbad,\n", "an empty label in rows 2, 3"),
    ],
)
def test_damaged_and_empty_tables(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises((DataError, FileError), match=message):
        load(tmp_path / name)


def test_columns_that_nobody_asked_for_may_have_one_name(tmp_path):
    (tmp_path / "a.csv").write_text("sentence,,,label,\ngood,1,2,yes,\nbad,1,2,no,\n")
    assert len(load(tmp_path / "a.csv").train) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"sentence": "\\ud83d", "label": "a"}', "half of a surrogate pair.* in row 2"),
        ({"sentence": "x", "label": ["a"]}, "a list in row 2"),
        ({"sentence": "x", "label": {"a": 1}}, "a mapping in row 2"),
        ({"sentence": {"a": 1}, "label": "a"}, "a mapping in row 2"),
        ({"sentence": ["x", ["y"]], "label": "a"}, "a list in row 2"),
        ({"sentence": ["x", None], "label": "a"}, "a list with an empty part in row 2"),
        ({"sentence": "x", "label": 7}, "a number after a text in row 2"),
        ({"sentence": "x", "label": True}, "a truth value after a text in row 2"),
        ('{"sentence": "x", "label": NaN}', "an empty label in row 2"),
    ],
)
def test_values_that_are_no_text_or_label(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        load(lines(tmp_path / "a.jsonl", ROWS[0], row, ROWS[1]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("NaN", "an empty label in row 2"),
        ("Infinity", "'inf' in row 2"),
        ('"nan"', "a text after a number in row 2"),
        ("1" * 400, "1' in row 2"),
        ("[1]", "a list in row 2"),
    ],
)
def test_values_of_a_regression_that_are_no_numbers(tmp_path, value, message):
    path = lines(
        tmp_path / "a.jsonl", '{"sentence": "x", "label": 1}', f'{{"sentence": "x", "label": {value}}}'
    )
    with pytest.raises(DataError, match=message):
        load(path, "regression")


def test_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def written(sentence, label, names=("sentence", "label")):
        pq.write_table(pa.Table.from_arrays([sentence, label], names), tmp_path / "a.PARQUET")
        return tmp_path / "a.PARQUET"

    texts, words = pa.array([b"good", "schön".encode(), b"bad"]), [b"yes", b"yes", b"no"]
    found = load(written(texts, pa.array(words)))
    assert found.labels == ("no", "yes") and found.train.texts[1] == ("schön",)
    with pytest.raises(DataError, match="bytes that are not UTF-8 in row 2"):
        load(written(pa.array([b"good", b"\xff", b"bad"]), pa.array(words)))
    with pytest.raises(DataError, match="an empty label in row 3"):
        load(written(texts, pa.array([0.0, 1.0, float("nan")])))
    with pytest.raises(DataError, match="an empty file"):
        load(written(pa.array([], pa.string()), pa.array([], pa.int64())))
    with pytest.raises(DataError, match="3 empty cells"):
        load(written(pa.nulls(3), pa.array(words)))
    with pytest.raises(DataError, match="two columns label"):
        written(texts, pa.array(words))
        table = pa.Table.from_arrays(
            [texts, pa.array(words), pa.array(words)], ["sentence", "label", "label"]
        )
        pq.write_table(table, tmp_path / "a.PARQUET")
        load(tmp_path / "a.PARQUET")
    (tmp_path / "a.PARQUET").write_bytes(b"no parquet")
    with pytest.raises(FileError, match="to be CSV, TSV, JSON lines or Parquet"):
        load(tmp_path / "a.PARQUET")


def test_labels_of_saved_data_sets_have_names_within_lists_too(tmp_path):
    datasets = pytest.importorskip("datasets")
    tags = datasets.ClassLabel(names=["NAME", "O"])
    features = datasets.Features(
        {"words": datasets.List(datasets.Value("string")), "label": datasets.List(tags)}
    )
    rows = {"words": [["a", "b"], ["c"]], "label": [[0, 1], [1]]}
    table = datasets.Dataset.from_dict(rows, features=features)
    table.save_to_disk(tmp_path / "saved")
    found = load(tmp_path / "saved", "tokens", ("words",))
    assert found.labels == ("NAME", "O") and found.train.labels == [[0, 1], [1]]
    assert named(None, tags) is None and named(-1, tags) is None and named(5, tags) is None
    plain = datasets.Features({"text": datasets.Value("binary"), "label": tags})
    source = datasets.Dataset.from_dict({"text": [b"good", b"bad"], "label": [0, None]}, features=plain)
    given = given_as(source, ("sentence",), "label", "train")
    assert json.loads(given.content.splitlines()[1]) == {"text": "bad", "label": None}
    with pytest.raises(FileError, match="has not saved"):
        (tmp_path / "folder").mkdir()
        load(tmp_path / "folder")


def test_objects_that_are_no_json(tmp_path):
    import numpy as np

    pairs = [("good", np.int64(1)), ("bad", np.int64(0))]
    path = given_as(pairs, (), "label", "train").write(tmp_path / "a.jsonl")
    assert load(path, text=("text",)).train.labels == [1, 0]
    with pytest.raises(DataError, match="UTF-8"):
        given_as([(b"\xff", 1)], (), "label", "train").write(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="2 at 1 after 1"):
        given_as([("good", 1), (("good", "bad"), 0)], (), "label", "train")


def test_columns_of_a_task(tmp_path):
    with pytest.raises(ParameterError, match="one or two columns of text; got a, b, c"):
        load("a.csv", text=("a", "b", "c"))
    with pytest.raises(ParameterError, match="one column of text; got a, b"):
        load("a.csv", "tokens", text=("a", "b"))
    with pytest.raises(ParameterError, match="label as both"):
        load("a.csv", text=("label",))
    (tmp_path / "a.csv").write_text("sentence\n\n  \n")
    with pytest.raises(DataError, match="1 empty cells"):
        read_texts(Path(tmp_path / "a.csv"), ["sentence"])


def test_large_integer_labels_stay_apart(tmp_path):
    near = [2**53, 2**53 + 1]
    found = load(lines(tmp_path / "a.jsonl", *({"sentence": "x", "label": label} for label in near * 2)))
    assert found.labels == tuple(map(str, near)) and found.train.labels == [0, 1, 0, 1]
