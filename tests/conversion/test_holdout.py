"""What is held back of the training examples, and the errors of scores."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hccs.conversion import scores
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.tasks import Examples
from hccs.conversion.metrics import ACCURACY, Metric, f1
from hccs.errors import DataError


def phrases(sentences):
    """Sentences of unique words with three of their phrases each, shuffled, as SST-2 has them."""
    rows = []
    for i in range(sentences):
        words = [f"w{i}x{j}" for j in range(8)]
        rows += [(" ".join(part), i % 2) for part in (words, words[:5], words[3:], words[1:3])]
    rows += [("and", 0)] * 20
    order = np.random.default_rng(0).permutation(len(rows))
    return Examples([(rows[i][0],) for i in order], [rows[i][1] for i in order])


def test_phrases_are_held_back_with_their_sentence():
    examples = phrases(200)
    rest, held = hold_out(examples)
    assert len(rest) + len(held) == len(examples) and 70 <= len(held) <= len(examples) // 10
    assert sorted(rest.texts + held.texts) == sorted(examples.texts)
    trained = {word for (text,) in rest.texts for word in text.split()} - {"and"}
    assert not any(word in trained for (text,) in held.texts for word in text.split())
    again = hold_out(examples)[1]
    assert again.texts == held.texts and again.labels == held.labels
    assert hold_out(examples, seed=1)[1].texts != held.texts


def test_pairs_are_held_back_with_their_premise():
    pairs = [(f"a long premise number {i}", f"claim {j}") for i in range(100) for j in range(3)]
    rest, held = hold_out(Examples(pairs, [0, 1, 2] * 100), most=12)
    assert len(held) == 12
    assert not {premise for premise, _ in held.texts} & {premise for premise, _ in rest.texts}


def test_few_and_equal_texts():
    rest, held = hold_out(Examples([("same",)] * 30, [0, 1] * 15))
    assert len(held) == 3 and len(rest) == 27
    rest, held = hold_out(Examples([("one",), ("two",)], [0, 1]))
    assert len(held) == len(rest) == 1
    with pytest.raises(DataError, match="at least two training examples"):
        hold_out(Examples([("one",)], [0]))


def answers(right, labels, seed):
    """Logits that are right in this share of the examples."""
    rng = np.random.default_rng(seed)
    chosen = np.where(rng.random(len(labels)) < right, labels, 1 - labels)
    return torch.tensor(np.eye(2)[chosen])


def test_errors_are_what_other_examples_would_change():
    """Against the deviation over many draws: of one model, and of the difference of two that agree mostly."""
    rng = np.random.default_rng(0)
    values, errors, differences, paired = [], [], [], []
    for seed in range(300):
        labels = rng.integers(0, 2, 400)
        one = answers(0.85, labels, seed)
        other = one.clone()
        flipped = torch.tensor(rng.random(400) < 0.05)
        other[flipped] = 1 - other[flipped]
        given = torch.tensor(labels)
        own, gain = scores.measured(ACCURACY, one, given), scores.difference(ACCURACY, other, one, given)
        values.append(own.value)
        errors.append(own.error)
        differences.append(gain.value)
        paired.append(gain.error)
    assert np.std(values) == pytest.approx(np.mean(errors), rel=0.12)
    assert np.std(differences) == pytest.approx(np.mean(paired), rel=0.12)
    assert np.mean(paired) < 0.75 * np.mean(errors)


def test_other_metrics_have_errors_too():
    rng = np.random.default_rng(1)
    labels = torch.tensor(rng.integers(0, 2, 2000))
    logits = answers(0.8, labels.numpy(), 2)
    same = Metric("accuracy by another name", lambda out, wanted: float((out.argmax(-1) == wanted).mean()))
    assert scores.measured(same, logits, labels).error == pytest.approx(
        scores.measured(ACCURACY, logits, labels).error, rel=0.35
    )
    gain = scores.difference(Metric("f1", f1), logits, logits, labels)
    assert gain.value == gain.error == 0.0 and gain.interval[0] < 0 < gain.interval[1]


def test_a_step_loses_only_beyond_noise():
    assert not scores.Measured(-0.01, 0.01).loses and scores.Measured(-0.03, 0.01).loses
    wanted = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    near, far = wanted + 0.1 * noise, wanted + 0.5 * noise
    assert scores.closer(near, far, wanted).value > 0 and not scores.closer(near, far, wanted).loses
    assert scores.closer(far, near, wanted).loses
    tokens = wanted.view(50, 4, 3)
    counted = torch.zeros(50, 4, dtype=torch.bool)
    counted[:, 0] = True
    moved = tokens.clone()
    moved[:, 1:] += 1.0 * noise.view(50, 4, 3)[:, 1:]
    assert scores.closer(moved, tokens, tokens, counted).value == 0.0
    assert scores.closer(moved, tokens, tokens).loses
