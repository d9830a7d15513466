"""One real conversion of a small BERT, called from Python on a dictionary of splits with hostile names."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

WORDS = [a + b for a in ("ka", "lo", "mi", "ne") for b in ("da", "re", "po")]
NAMES = {*WORDS[:4]}
LABELS = ("<b>none</b>", 'so"me & more')


@dataclass(frozen=True)
class Material:
    """A model, its tokenizer and examples."""

    model: Any
    tokenizer: Any
    folder: Any

    def rows(self, count: int, seed: int) -> list[tuple[str, int]]:
        """Sentences, and whether a name is among their words."""
        rng = random.Random(seed)
        texts = [[rng.choice(WORDS) for _ in range(rng.randint(3, 8))] for _ in range(count)]
        return [(" ".join(words), int(bool(NAMES & {*words}))) for words in texts]

    def dataset(self, count: int, seed: int) -> Any:
        """The same as `datasets` has it, its labels named."""
        import datasets

        texts, labels = zip(*self.rows(count, seed), strict=True)
        kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(LABELS))}
        columns = {"text": list(texts), "label": list(labels)}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.fixture(scope="session")
def material(tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoder")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(WORDS)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=48, initializer_range=0.2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Material(model, tokenizer, folder)


@pytest.fixture(scope="session")
def finished(material, tmp_path_factory):
    """A trained run: (what `hccs.convert` returned, what it said)."""
    import datasets

    import hccs
    from hccs.conversion.training import Recipe

    said: list[str] = []
    splits = datasets.DatasetDict(train=material.dataset(96, 0), validation=material.dataset(64, 1))
    recipe = Recipe(epochs=2, learning_rate=1e-3, batch_size=16, evaluations_per_epoch=1, distil=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hccs.convert(
            material.model, splits, tokenizer=material.tokenizer, out=tmp_path_factory.mktemp("runs") / "run",
            sentences=32, refine=False, n=32, retraining=recipe, new_head=True, fine_tuning=recipe,
            say=said.append,
        )  # fmt: skip
    return found, said
