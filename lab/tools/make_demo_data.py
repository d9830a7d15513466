"""Builds what ships in lab/src/hccs_lab/demo: the movie-snippet task and a BERT-tiny fine-tuned on it.

    python lab/tools/make_demo_data.py --snippets snippets.tsv --licence LICENSE.txt \\
        --encoder ENCODER_FOLDER --vocabulary vocab.txt

snippets.tsv: id, mean human rating in -4..4, sentence (Hutto & Gilbert, ICWSM 2014). Ratings within 0.5 of
neutral are left out; the label is rating > 0; every tenth id is dev.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import load_classifier, score
from hccs.conversion.training import Recipe, train

NEUTRAL = 0.5
OUT = Path(__file__).parents[1] / "src" / "hccs_lab" / "demo"


def write_task(snippets: Path, licence: Path) -> None:
    folder = OUT / "movies"
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for line in snippets.read_text(encoding="utf-8").splitlines():
        number, rating, sentence = line.split("\t")
        if abs(float(rating)) > NEUTRAL:
            parts["dev" if int(number) % 10 == 0 else "train"].append(f"{sentence}\t{int(float(rating) > 0)}")
    for name, lines in parts.items():
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    shutil.copyfile(licence, folder / "LICENSE.txt")


def write_model(encoder: Path, vocabulary: Path) -> None:
    torch.manual_seed(0)
    data = tasks.load(tasks.TASKS["movies"])
    loaded = load_classifier(str(encoder), ("negative", "positive"), vocabulary)
    sets = [tokenise(examples, loaded.tokenizer, data.task.n) for examples in (data.train, data.dev)]
    recipe = Recipe(epochs=5, learning_rate=2e-4, batch_size=32, evaluations_per_epoch=1)
    train(loaded.model, *sets, recipe)
    loaded.model.half().save_pretrained(OUT / "bert_tiny")
    loaded.tokenizer.save_pretrained(OUT / "bert_tiny")
    print("dev accuracy", score(loaded.model.float(), sets[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("snippets", "licence", "encoder", "vocabulary"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    write_task(options.snippets, options.licence)
    write_model(options.encoder, options.vocabulary)


if __name__ == "__main__":
    main()
