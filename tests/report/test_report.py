"""The report of a real run: well formed, escaped, complete; and looked at in a browser."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
typer_testing = pytest.importorskip("typer.testing")

from hccs.cli.app import app
from hccs.conversion import run
from hccs.conversion.report.conversion import conversion_page
from hccs.conversion.report.write import templates, write_report
from hccs.conversion.results import AnswersByLabel, ChangedAnswer
from hccs.conversion.settings import convert_command
from hccs.errors import FileError
from tests.report.browser import Browser, executable
from tests.report.conftest import LABELS
from tests.report.wellformed import checked

runner = typer_testing.CliRunner()

SECTIONS = ["accuracy", "answers", "modes", "heads", "cost", "time", "again"]


@pytest.fixture(scope="module")
def page(finished):
    return finished[0].report.read_text(encoding="utf-8")


def test_a_report_is_well_formed_and_says_everything(finished, page):
    found, _ = finished
    elements, results = checked(page), found.results
    words = " ".join("".join(elements.text).split())
    assert all(section in elements.ids for section in SECTIONS)
    assert elements.names.count("svg") > 20 and "script" in elements.names
    assert found.summary in words
    for stage, score in found.scores.items():
        assert f"{100 * score:.2f} %" in words, stage
    for mode in results.retrain.modes:
        assert mode in words
    for head in results.save.heads:
        assert f"head-{head.layer}-{head.head}" in elements.ids and f"{head.kl:.4f}" in words
    assert f"hccs convert {found.folder / 'given' / 'model'} --out {found.folder}" in words


def test_labels_of_the_data_stay_text(finished, page):
    assert json.loads((finished[0].model / "config.json").read_text())["id2label"]["0"] == LABELS[0]
    elements = checked(page)
    assert LABELS[0] in "".join(elements.text) and "b" not in elements.names


def test_worst_heads_come_first(finished, page):
    order = re.findall(r'data-kl="([\d.]+)"', page)
    assert len(order) == 4 and order == sorted(order, key=float, reverse=True)


def test_intervals_stand_beside_scores(finished, page):
    results = finished[0].results
    against = results.integer.reached.against_float
    words = " ".join("".join(checked(page).text).split()).replace("\N{MINUS SIGN}", "-")
    low, high = against.interval
    assert low < against.value < high and f"{100 * low:+.2f} to {100 * high:+.2f}" in words
    assert results.float_model.examples == 64 and "64 dev examples" in words
    assert "Only 64 dev examples: the intervals are wide." in words


def test_answers_are_counted_and_those_that_changed_are_listed(finished, material, page):
    """The matrix is counted here from the integer model's own answers; texts stay text."""
    found = finished[0]
    answers, model = found.results.integer.reached.answers, found.integer_model
    counts = [[0, 0], [0, 0]]
    for text, label in material.rows(64, 1):
        counts[label][int(model(material.tokenizer(text)["input_ids"]).scores[0].argmax())] += 1
    assert answers.confusion == tuple(map(tuple, counts))
    words = " ".join("".join(checked(page).text).split())
    assert f"Answers that differ from the float model's: {answers.changed}" in words
    assert len(answers.examples) == min(answers.changed, 50)
    for one in answers.examples[:20]:
        assert one.text in words and one.before != one.after
        assert one.text == material.rows(64, 1)[one.example][0]


def test_changed_answers_are_listed_and_escaped(finished):
    examples = tuple(ChangedAnswer(i, f"<b>text {i}</b>", 0, 0, 1) for i in range(30))
    page = conversion_page(finished[0].folder) | {"given": AnswersByLabel(((1, 2), (3, 4)), 31, examples)}
    elements = checked(templates().get_template("page.html").render(page))
    assert "<b>text 19</b>" in elements.text and "<b>text 20</b>" not in elements.text
    assert "and 11 more." in elements.text and "b" not in elements.names


def test_the_command_writes_it_anywhere_and_other_commands_show_in_it(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished[0].folder, folder)
    (folder / "bench.json").write_text(
        json.dumps(
            {
                "machine": {"system": "<i>Linux</i>", "cores": 2, "isa": "avx2", "packages": {"torch": "2"}},
                "contenders": {"torch float32": {"bytes": 1, "memory": 1, "first_answer": 1, "agreement": 1}},
                "rows": [
                    {
                        "threads": 1,
                        "workload": "one sentence",
                        "name": name,
                        "ms": ms,
                        "times_ours": ms,
                        "sentences_per_second": 1000 / ms,
                    }
                    for name, ms in (("torch float32", 3.5), ("hccs, all in integers", 1.0))
                ],
                "missing": {"OpenVINO": ["openvino"]},
                "failed": {"x<y": "<u>"},
            }
        )
    )
    done = runner.invoke(app, ["report", str(folder), "-o", str(tmp_path / "r.html")], env={"COLUMNS": "300"})
    assert done.exit_code == 0 and str(tmp_path / "r.html") in done.output
    elements = checked((tmp_path / "r.html").read_text())
    words = "".join(elements.text)
    assert "3.5 times as fast as float PyTorch" in words and "hccs bench left out x<y: <u>" in words
    assert "u" not in elements.names
    refused = runner.invoke(app, ["report", str(tmp_path)])
    assert isinstance(refused.exception, FileError)
    with pytest.raises(FileError, match="a finished run"):
        (tmp_path / "half").mkdir()
        (tmp_path / "half" / "model").mkdir()
        (tmp_path / "half" / "model" / "config.json").write_text("{}")
        half = '{"version": 1, "stages": {"float_model": {}}, "seconds": {}}'
        (tmp_path / "half" / "results.json").write_text(half)
        write_report(tmp_path / "half")


@pytest.mark.skipif(executable() is None, reason="no Chromium: install it (Debian: apt install chromium)")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_browser_shows_it(finished, tmp_path, width, scheme):
    with Browser(tmp_path / "profile") as browser:
        browser.open(finished[0].report, width, scheme=scheme)
        assert browser.complaints == [] and browser.requests == []
        assert browser.ask("document.documentElement.scrollWidth - window.innerWidth") <= 0
        shown = browser.ask("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
        assert len(shown) > 20 and sum(w > 0 for w in shown) > 15 and max(shown) <= width
        assert browser.ask("getComputedStyle(document.body).backgroundColor") == (
            "rgb(21, 23, 27)" if scheme == "dark" else "rgb(251, 250, 247)"
        )
        # No table of scores hides a column: on a narrow page its rows are cards.
        cut = "t => t.scrollWidth > t.parentElement.clientWidth"
        assert browser.ask(f"[...document.querySelectorAll('.cards')].filter({cut}).length") == 0
        charts = "[...document.querySelectorAll('td.chart svg')].map(s => s.getBoundingClientRect().right)"
        assert max(browser.ask(charts)) <= width
        # A link opens its head, and the list sorts.
        assert browser.ask("document.querySelectorAll('#heads-list details[open]').length") == 1
        browser.ask("document.querySelectorAll('.map a')[0].dispatchEvent(new MouseEvent('click'))")
        browser.ask("location.hash = '#head-0-1'")
        places = "[...document.querySelectorAll('#heads-list details')].map(d => Number(d.dataset.place))"
        browser.ask(
            "{ const s = document.querySelector('select[data-sorts]'); s.value = 'place up';"
            " s.dispatchEvent(new Event('change')); }"
        )
        assert browser.ask(places) == [0, 1, 1000, 1001]
        assert browser.ask("document.getElementById('head-0-1').open")
        browser.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 20_000
        assert browser.complaints == []


def test_the_command_of_a_report_is_the_run_itself(finished, monkeypatch):
    """The command line makes of it the very settings that the run was begun with."""
    kept = []

    class Stop(Exception):
        pass

    def keep(settings, out, say):
        kept.append((settings, out))
        raise Stop

    monkeypatch.setattr(run, "convert", keep)
    settings = finished[0].settings
    short = replace(settings.fine_tuning, epochs=0.5)
    cases = [
        settings,
        replace(settings, mode="u8_div", granularity="layer", refine=True, integer="attention"),
        replace(settings, retraining=None, metric="f1", new_head=False, labels=("a b", "c")),
        replace(settings, retraining=None, fine_tuning=short, seed=7),
    ]
    for case in cases:
        words = shlex.split(convert_command(case, Path("somewhere")))
        with pytest.raises(Stop):
            runner.invoke(app, words[1:], catch_exceptions=False)
        made, out = kept.pop()
        assert out == Path("somewhere")
        # Not on the command line: how many sentences, and the recipes' finer parts.
        apart = {"sentences", "fine_tuning", "retraining", "task", "held_back"}
        for name in {field.name for field in fields(made)} - apart:
            assert getattr(made, name) == getattr(case, name), name
        for name in ("train", "dev", "text", "label", "n", "problem"):
            assert getattr(made.task, name) == getattr(case.task, name)
        assert made.fine_tuning.epochs == case.fine_tuning.epochs
        if case.retraining is None:
            assert made.retraining is None
        else:
            for name in ("epochs", "learning_rate", "batch_size"):
                assert getattr(made.retraining, name) == getattr(case.retraining, name)
