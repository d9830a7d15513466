"""Texts of every kind of file, and what is refused with the place where it is."""

from __future__ import annotations

import json

import pytest

from hccs.corpus.reading import Columns, groups, rows, sources
from hccs.errors import HccsError


def read(path, columns=None, kind=None):
    return [row[:2] for source in sources([str(path)], kind) for row in rows(source, columns or Columns())]


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.txt", b"\xef\xbb\xbfone\r\n\n two \nthree", None, [("1", "one"), ("3", "two"), ("4", "three")]),
        ("a.csv", b'text,n\n"a, ""b""\nc",1\r\nd,2\n', None, [("3", 'a, "b"\nc'), ("4", "d")]),
        ("a.csv", b"id,body\nx,a\ny,\n", Columns("body", "id"), [("x", "a"), ("y", "")]),
        ("a.csv", b"only\na\n", None, [("2", "a")]),
        ("a.tsv", b'n\ttext\n1\t"a\n', None, [("2", '"a')]),
        ("a.jsonl", b'{"text": "a"}\n\n"b"\n', None, [("1", "a"), ("3", "b")]),
        ("a.ndjson", b'{"id": 7, "q": "a"}\n', Columns("q", "id"), [("7", "a")]),
    ],
)
def test_kinds_of_files(tmp_path, name, content, columns, expected):
    file = tmp_path / name
    file.write_bytes(content)
    plain = [(found.removeprefix(f"{file}:"), text) for found, text in read(file, columns)]
    assert plain == expected


def test_parquet_folders_and_uris(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'hccs[corpus]'")
    import pyarrow.parquet as pq

    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    texts = [f"text {i}" for i in range(3000)]
    pq.write_table(pa.table({"key": list(range(3000)), "text": texts}), inside / "b.parquet")
    (tmp_path / "a.txt").write_text("first\n")
    (tmp_path / "picture.png").write_bytes(b"\0")
    found = read(tmp_path)
    assert found[0] == (f"{tmp_path}/a.txt:1", "first") and [text for _, text in found[1:]] == texts
    assert read(inside / "b.parquet", Columns(None, "key"))[-1] == ("2999", "text 2999")
    uri = f"file://{tmp_path}"
    assert [text for _, text in read(uri)] == ["first", *texts]
    assert read(f"{uri}/a.txt") == [(f"{uri}/a.txt:1", "first")]
    with pytest.raises(HccsError, match=r"column 'body'.*'key', 'text'"):
        read(inside / "b.parquet", Columns("body"))
    content = (inside / "b.parquet").read_bytes()
    for damaged in (content[:-100], b"PAR1", content[: len(content) // 2]):
        (tmp_path / "broken.parquet").write_bytes(damaged)
        with pytest.raises(HccsError, match=r"whole Parquet file .*broken"):
            read(tmp_path / "broken.parquet")
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "null.parquet")
    with pytest.raises(HccsError, match=r"a text in .*null.parquet:2; got nothing"):
        read(tmp_path / "null.parquet")
    for place in (f"{uri}/none.txt", "nowhere://a/b.txt", f"{uri}/picture.png"):
        with pytest.raises(HccsError):
            read(place)


@pytest.mark.parametrize(
    ("name", "content", "columns", "what"),
    [
        ("a.txt", b"good\nb\xe4d\n", None, r"byte 0xe4 in line 2"),
        ("a.csv", b"text\nb\xff\n", None, r"byte 0xff in line 2"),
        ("a.csv", b"a,b\n1,2\n", None, r"column 'text' in .*; got columns 'a', 'b'"),
        ("a.csv", b"a,b\n1,2\n", Columns("a", "c"), r"column 'c'"),
        ("a.csv", b"", None, "a header"),
        ("a.csv", b"text,b\n1\n", None, r"2 columns in .*:2; got 1"),
        ("a.csv", b'text\n"a\n', None, r"a table in"),
        ("a.jsonl", b'{"text": "a"\n', None, r"JSON in .*:1"),
        ("a.jsonl", b"[1]\n", None, "an object or a text"),
        ("a.jsonl", b'{"text": 3}\n', None, "a text in .*:1; got int"),
        ("a.jsonl", b'{"text": "a", "k": 1.5}\n', Columns(None, "k"), "an id in"),
        ("a.jsonl", b'{"body": "a"}\n{"title": "b"}\n', None, r"column 'body' in .*:2; got columns 'title'"),
        ("a.jsonl", b'{"text": "a", "k": 1}\n{"k": 2}\n', None, r"column 'text' in .*:2; got columns 'k'"),
        ("a.jsonl", b"{}\n", None, "columns none"),
        ("a.txt", b"a\n", Columns(None, "k"), "--id k"),
        ("a.bin", b"a\n", None, "to end in one of"),
    ],
)
def test_refusals_say_where(tmp_path, name, content, columns, what):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(HccsError, match=what):
        read(file, columns)


def test_other_refusals(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "twice.txt").write_text("a\n")
    for given, kind, what in (
        ([str(tmp_path / "none.txt")], None, "No such file"),
        ([str(tmp_path / "folder")], None, "none in"),
        (["-", "-"], None, "- 2 times"),
        ([str(tmp_path), str(tmp_path / "twice.txt")], "text", r"twice\.txt 2 times"),
        ([str(tmp_path)], "pdf", "a kind among"),
    ):
        with pytest.raises(HccsError, match=what):
            sources(given, kind)
    monkeypatch.setattr("hccs.corpus.reading.MOST_BYTES", 8)
    (tmp_path / "a.txt").write_text("0123456789\n")
    with pytest.raises(HccsError, match="lines of at most"):
        read(tmp_path / "a.txt")


def test_small_files_are_read_in_groups(tmp_path, monkeypatch):
    for name in "abcde":
        (tmp_path / f"{name}.txt").write_text("12345\n")
    monkeypatch.setattr("hccs.corpus.reading.GROUP_BYTES", 13)
    listed = sources([str(tmp_path)], None)
    assert [len(group) for group in groups(listed)] == [2, 2, 1]
    assert json.dumps([row[2] for row in rows(listed[0], Columns())]) == "[6]"
