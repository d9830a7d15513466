"""Ranges that merge, scales chosen by the output, and the account of where accuracy goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hccs
import hccs.nn
from hccs.calibration import ValueRanges
from hccs.errors import DataError
from hccs.nn.lowering import scales_for, take_apart
from hccs.nn.lowering.accounting import value_in_words
from hccs.nn.lowering.choosing import answers, distance
from hccs.nn.lowering.points import points
from hccs.nn.lowering.quantised import KINDS, quantised
from hccs.nn.lowering.scales import scales_of
from tests.nn.test_lowering import ids_of, made
from tests.nn.test_lowering_pre_norm import PIXELS
from tests.nn.test_lowering_pre_norm import made as made_pre_norm


def arrays(ranges):
    values = [part for v in ranges.values.values() for part in (v.largest, v.counts)]
    if ranges.stream is None:
        return values
    return [*values, ranges.stream.clipped, [ranges.stream.tokens, ranges.stream.inverse_variance]]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_parts_measured_apart_merge_to_what_one_pass_measures(name, tmp_path):
    model, table, batches = made(name) if name == "bert" else made_pre_norm(name)
    whole = hccs.nn.measure_ranges(model, iter(batches))
    parts = [hccs.nn.measure_ranges(model, [batch]) for batch in reversed(batches)]
    for number, part in enumerate(parts):
        part.save(tmp_path / str(number))
    merged = ValueRanges.load(tmp_path / "0")
    for number in range(1, len(parts)):
        merged.merge(ValueRanges.load(tmp_path / str(number)))
    assert all(np.array_equal(a, b) for a, b in zip(arrays(whole), arrays(merged), strict=True))
    fresh = ids_of(batches[0])
    for method in ("max-abs", "least-error"):
        from_ranges = hccs.nn.lower(model, table, [], scales=method, ranges=merged)
        from_batches = hccs.nn.lower(model, table, batches, scales=method)
        assert np.array_equal(from_ranges(*fresh).scores, from_batches(*fresh).scores)


def test_padding_and_ranges_of_another_model():
    model, _, batches = made("bert")
    padded = [
        {key: torch.nn.functional.pad(value, (0, 7)) for key, value in batch.items()} for batch in batches
    ]
    close, far = (hccs.nn.measure_ranges(model, given) for given in (batches, padded))
    for name, value in close.values.items():
        np.testing.assert_allclose(value.largest, far.values[name].largest, rtol=1e-4, atol=1e-5)
        assert value.counts.sum() == far.values[name].counts.sum()
    other, other_table, _ = made_pre_norm("gpt2")
    with pytest.raises(DataError, match="ranges of this model's values"):
        hccs.nn.lower(other, other_table, [], ranges=close)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7] = 1e38
    with pytest.raises(DataError, match="NaN or infinity at x0"):
        hccs.nn.measure_ranges(model, [{"input_ids": torch.full((1, 4), 7)}])


def test_scales_by_output_are_no_worse_than_either_method():
    model, table, batches = made("distilbert")
    parts, expected = take_apart(model), answers(model, batches)
    costs = {}
    for method in ("max-abs", "least-error", "by-output"):
        with quantised(model, parts, table, scales_for(model, parts, table, batches, method)):
            costs[method] = distance(answers(model, batches), expected, batches)
    assert costs["by-output"] <= min(costs.values())


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_a_program_knows_its_scales(name, tmp_path):
    model, table, batches = made(name) if name == "bert" else made_pre_norm(name)
    parts = take_apart(model, PIXELS)
    whole = hccs.nn.lower(model, table, batches, pixels=PIXELS)
    whole.save(tmp_path / "model.hccs")
    found = scales_of(hccs.IntegerModel.load(tmp_path / "model.hccs").program)
    chosen = scales_for(model, parts, table, batches)
    assert (found.bits, found.word_shift) == (chosen.bits, chosen.word_shift)
    assert found.word_step == pytest.approx(chosen.word_step)
    for point in points(parts):
        np.testing.assert_allclose(found.steps[point.name], chosen.steps[point.name], err_msg=point.name)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_account_of_every_value_and_operator(name):
    model, table, batches = made(name) if name == "bert" else made_pre_norm(name)
    whole = hccs.nn.lower(model, table, batches)
    found = hccs.nn.where_accuracy_goes(model, table, whole, batches[:1])
    assert [noise.name for noise in found.noise] == [point.name for point in points(take_apart(model))]
    assert [cost.operator for cost in found.kinds] == list(KINDS) and found.accuracy is None
    assert len(found.operators) == 2 * (len(KINDS) - 1) + 2
    single = {(c.operator, c.layer): c for c in found.operators}
    assert single["attention", 0].decibels != single["attention", 1].decibels
    # Each kind in all layers costs more than in one, and everything the most: noise adds up.
    for kind in ("linear layers", "attention"):
        both = next(c for c in found.kinds if c.operator == kind)
        assert found.whole.decibels < both.decibels < max(single[kind, i].decibels for i in (0, 1))
    assert 0 < found.whole.kl < 1 and 0.5 < found.whole.agreement <= 1
    assert found.worst_operators[0].decibels == min(c.decibels for c in found.operators)


def test_labels_give_accuracy_and_values_have_words():
    model, table, batches = made("bert")
    whole = hccs.nn.lower(model, table, batches)
    labelled = [{**batch, "labels": model(**batch).logits.argmax(-1)} for batch in batches[:2]]
    found = hccs.nn.where_accuracy_goes(model, table, whole, labelled)
    assert found.accuracy == 1.0 and found.whole.accuracy == found.whole.agreement
    for name in ("bert", "gpt2"):
        model = made(name)[0] if name == "bert" else made_pre_norm(name)[0]
        for point in points(take_apart(model)):
            assert value_in_words(point.name)[0] != point.name, point.name
