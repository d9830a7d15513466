"""Trainings: batches of similar length, the best weights kept, the same steps as `Trainer`'s."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hccs.conversion import training
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.models import score
from hccs.conversion.training import (
    SORTED_TOGETHER,
    Best,
    Recipe,
    batches_of_similar_length,
    train,
    train_in_memory,
    without_dropout,
)
from hccs.errors import FileError


def a_model(**options):
    torch.manual_seed(0)
    shape = dict(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.BertConfig(**shape, intermediate_size=16, num_labels=2, **options)
    return transformers.BertForSequenceClassification(config).eval()


def a_set(count, seed=0):
    """The label is whether tokens are high ones."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 13, (count,), generator=generator)
    mask = (torch.arange(12) < lengths[:, None]).int()
    labels = torch.randint(2, (count,), generator=generator)
    ids = (torch.randint(4, 22, (count, 12), generator=generator) + 16 * labels[:, None]).int() * mask
    return TokenisedSet({"input_ids": ids, "attention_mask": mask}, lengths, labels, 0)


def batches(lengths, size, seed):
    return list(batches_of_similar_length(lengths, size, torch.Generator().manual_seed(seed)))


def test_every_example_comes_once_among_its_like_and_in_another_order_every_epoch():
    lengths = torch.randint(4, 129, (40_003,), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    first, second = (list(batches_of_similar_length(lengths, 128, generator)) for _ in range(2))
    for found in (first, second):
        assert torch.equal(torch.cat(found).sort().values, torch.arange(len(lengths)))
        assert sum(len(batch) < 128 for batch in found) == 1
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert all(torch.equal(a, b) for a, b in zip(first, batches(lengths, 128, 0), strict=True))
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in first) / int(lengths.sum())
    assert padded < 1.05  # of random batches 1.9
    # Widths do not rise or fall from batch to batch, nor is a batch always of the same examples.
    widths = torch.tensor([float(lengths[batch].max()) for batch in first])
    assert abs(torch.corrcoef(torch.stack([widths, torch.arange(len(widths)).float()]))[0, 1]) < 0.3
    assert len(lengths) > SORTED_TOGETHER * 128 and set(first[0].tolist()) != set(second[0].tolist())


def test_the_best_weights_are_put_back_not_the_last():
    model, best = a_model(), Best()
    weight = model.classifier.weight
    for value, reached in ((1.0, 0.5), (2.0, 0.8), (3.0, 0.8), (4.0, 0.6)):
        weight.data.fill_(value)
        best.see(model, reached)
    model.load_state_dict(best.weights)
    assert best.score == 0.8 and best.since == 2 and best.history == [0.5, 0.8, 0.8, 0.6]
    assert model.classifier.weight.unique().tolist() == [2.0]


def test_the_steps_are_those_of_trainer(tmp_path):
    """Of one batch an epoch, whatever its order: optimiser, decay, warm-up, clipping."""
    data = a_set(64)
    recipe = Recipe(epochs=8, learning_rate=1e-2, batch_size=64, patience=100, warmup=0.4)
    ours, theirs = a_model(hidden_dropout_prob=0.0), a_model(hidden_dropout_prob=0.0)
    for model in (ours, theirs):
        model.config.attention_probs_dropout_prob = 0.0
    with without_dropout(ours), without_dropout(theirs):
        train_in_memory(
            ours, data, recipe, loss=lambda model, batch: model(**batch).loss, score=lambda: score(ours, data)
        )
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=8, per_device_train_batch_size=64, learning_rate=1e-2,
            weight_decay=recipe.weight_decay, warmup_steps=3, report_to=[], disable_tqdm=True, use_cpu=True,
            save_strategy="no", logging_strategy="no", remove_unused_columns=False, seed=recipe.seed,
        )  # fmt: skip
        transformers.Trainer(theirs, arguments, train_dataset=data, data_collator=lambda batch: batch).train()
    weights = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (ours, theirs)]
    assert torch.allclose(*weights, atol=2e-5)


def test_the_weights_that_are_kept_have_the_best_score():
    data, held = a_set(64), a_set(64, seed=1)
    model, recipe = a_model(), Recipe(epochs=8, learning_rate=1e-2, batch_size=64, patience=100)
    outcome = train(model, data, held, recipe)
    assert outcome.score == score(model, held) == max(outcome.history) and len({*outcome.history}) > 2


def test_a_killed_training_goes_on_from_its_checkpoint_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_LINES", 0.0)
    data, held, recipe = a_set(64), a_set(32), Recipe(epochs=3, learning_rate=1e-3, batch_size=8, patience=99)
    checkpoint, found, said = tmp_path / "state.pt", [], []

    def run(killed_at=None):
        torch.manual_seed(5)
        model = a_model()
        calls = []

        def killing(module, args, kwargs):
            calls.append(module.training)
            if killed_at is not None and sum(calls) > killed_at:
                raise KeyboardInterrupt

        model.register_forward_pre_hook(killing, with_kwargs=True)
        outcome = train(model, data, held, recipe, checkpoint, say=said.append)
        found.append((outcome, [p.detach().clone() for p in model.parameters()]))

    run()
    assert not checkpoint.exists() and any("left" in line for line in said)
    for step in (5, 13):  # within the first epoch; in the middle of the second
        with pytest.raises(KeyboardInterrupt):
            run(step)
        assert checkpoint.exists()
        said.clear()
    run()
    assert any("goes on from step" in line for line in said)
    (wanted, weights), (outcome, others) = found
    assert outcome == wanted
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    checkpoint.write_bytes(b"PK not a checkpoint")
    with pytest.raises(FileError, match=r"state.pt to be a checkpoint.*Delete it"):
        run()


def test_rates_decay_and_patience_are_those_of_the_recipe():
    model, seen = a_model(), []
    best = train_in_memory(
        model,
        a_set(64),
        Recipe(epochs=4, learning_rate=1e-3, batch_size=8, evaluations_per_epoch=2, patience=2),
        loss=lambda model, batch: seen.append(model.training) or model(**batch).loss,
        score=lambda: 0.5,
    )
    assert len(best.history) == 3 and len(seen) == 12 and all(seen)  # the first, and two that are no better


def test_without_dropout_a_model_in_training_answers_as_it_does_in_use():
    model, batch = a_model(), next(a_set(8).batches(8))
    wanted = model(**batch).logits
    model.train()
    with without_dropout(model):
        assert torch.allclose(model(**batch).logits, wanted, atol=1e-6)
    assert not torch.allclose(model(**batch).logits, wanted, atol=1e-6)
