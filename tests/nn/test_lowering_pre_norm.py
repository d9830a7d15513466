"""ViT, DeiT and GPT-2 in integers: the float model's answers, the training model's bits, clamped streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import hccs
import hccs.nn
from hccs.errors import DtypeError, ModelError, ParameterError, ShapeError
from hccs.executors.numpy import run
from hccs.nn.lowering import scales_for, take_apart
from hccs.nn.lowering.assembling import assemble
from hccs.nn.lowering.parts import PixelScaling
from hccs.nn.lowering.quantised import quantised
from hccs.numbers.table import ParamTable
from hccs.program import IntegerModel
from hccs.program.operators import Batch
from tests.nn.conftest import VOCABULARY, sentences, vit

PIXELS = PixelScaling((0.5, 0.4, 0.6), (0.5, 0.3, 0.25))
SHAPE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37)


def deit():
    config = transformers.DeiTConfig(**SHAPE, image_size=24, patch_size=6, initializer_range=0.15)
    return transformers.DeiTForImageClassification(config)


def gpt2(**options):
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15,
        bos_token_id=0, eos_token_id=0, **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


MODELS = {"vit": vit, "deit": deit, "gpt2": gpt2}


def images(count=8, seed=0):
    return torch.randint(0, 256, (count, 3, 24, 24), generator=torch.Generator().manual_seed(seed))


def normalised(pixels):
    mean, std = (torch.tensor(part)[:, None, None] for part in (PIXELS.mean, PIXELS.std))
    return {"pixel_values": ((pixels / 255 - mean) / std).float()}


def batch_of(name, seed):
    return sentences(seed=seed, count=12) if name == "gpt2" else normalised(images(seed=seed))


def whole_inputs(name, seed):
    if name == "gpt2":
        batch = batch_of(name, seed)
        return batch["input_ids"].numpy(), batch["attention_mask"].numpy()
    return (images(seed=seed).numpy().astype(np.uint8),)


def made(name, **options):
    torch.manual_seed(0)
    model = MODELS[name](**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and gains of a trained model are not 0 and 1
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    batches = [batch_of(name, seed) for seed in range(3)]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32)
    return model, table, batches


def real_only(logits, name, seed):
    return logits[batch_of(name, seed)["attention_mask"].bool()] if name == "gpt2" else logits


@pytest.mark.parametrize("name", MODELS)
def test_every_family_answers_like_hccs(name):
    model, table, batches = made(name)
    whole = hccs.nn.lower(model, table, batches, pixels=PIXELS)
    with torch.no_grad():
        expected = hccs.nn.attach(model, table, backend="integer")(**batch_of(name, 9)).logits
    got = whole(*whole_inputs(name, 9))
    expected, found = (real_only(torch.as_tensor(t), name, 9) for t in (expected, got.logits))
    assert (found - expected).abs().mean() < 0.15 * expected.std()  # random weights; real ones come closer
    assert np.array_equal(whole(*whole_inputs(name, 9), reference=True).scores, got.scores)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["max-abs", "least-error"])
def test_the_training_model_computes_the_programs_integers(name, method):
    model, table, batches = made(name)
    parts = take_apart(model, PIXELS)
    scales = scales_for(model, parts, table, batches, method)
    whole = IntegerModel(assemble(parts, table, scales))
    with torch.no_grad(), quantised(model, parts, table, scales):
        trained = model(**batch_of(name, 5)).logits
    exact = torch.tensor(whole(*whole_inputs(name, 5)).logits)
    torch.testing.assert_close(*(real_only(t, name, 5) for t in (trained, exact)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_that_is_clamped_is_clamped_in_both(name):
    """Scales from tame batches, then weights that drive the stream out of int16."""
    model, table, batches = made(name)
    parts = take_apart(model, PIXELS)
    scales = scales_for(model, parts, table, batches)
    with torch.no_grad():
        parts.layers[0].attention_output.bias[3] += 40 * float(scales.steps["stream"]) * 32767
        parts.layers[1].narrow.bias[3] -= 1.5 * float(scales.steps["stream"]) * 32767
    program = assemble(parts, table, scales)
    seen = {}
    whole = IntegerModel(program)
    given = whole_inputs(name, 5)
    lengths = given[1].sum(1) if name == "gpt2" else np.full(len(given[0]), program.longest)
    run(program, Batch(given[0], lengths, np.zeros_like(given[0])), watch=seen.__setitem__)
    assert seen["y0"].max() == 32767 and (seen["x2"][..., 3] < 0).any()
    with torch.no_grad(), quantised(model, parts, table, scales):
        trained = model(**batch_of(name, 5)).logits
    exact = torch.tensor(whole(*given).logits)
    torch.testing.assert_close(*(real_only(t, name, 5) for t in (trained, exact)), rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_was():
    model, table, batches = made("gpt2")
    parts = take_apart(model)
    scales = scales_for(model, parts, table, batches)
    with torch.no_grad():
        before = model(**batches[0]).logits
        with quantised(model, parts, table, scales):
            assert not torch.equal(model(**batches[0]).logits, before)
        assert torch.equal(model(**batches[0]).logits, before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_decoder_sees_no_later_token_and_no_padding():
    model, table, batches = made("gpt2")
    whole = hccs.nn.lower(model, table, batches)
    ids = batches[0]["input_ids"].numpy()[:1, :12]
    short, long = whole(ids[:, :7]).scores, whole(ids).scores
    assert whole.program.per_token and np.array_equal(short, long[:, :7])
    padded = whole(np.pad(ids[:, :7], ((0, 0), (0, 5))), [[1] * 7 + [0] * 5]).scores
    assert np.array_equal(padded[:, :7], short) and not padded[:, 7:].any()


def test_gradients_train_it():
    model, table, batches = made("vit")
    parts = take_apart(model, PIXELS)
    scales = scales_for(model, parts, table, batches)
    labels = torch.arange(8) % 2
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    with quantised(model, parts, table, scales):
        for _ in range(12):
            loss = torch.nn.functional.cross_entropy(model(**batches[0]).logits, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert parts.source.projection.weight.grad.abs().sum() > 0


def test_massive_activations_cost_an_int16_stream_its_small_values_unless_it_may_clip():
    """One channel of the first token, a thousand times the others: what trained GPT-2s grow."""
    model, table, batches = made("gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[0, 5] = 3e4
    parts = take_apart(model)
    with torch.no_grad():
        real, errors = model(**batches[0]).logits, {}
        for method in ("max-abs", "least-error"):
            with quantised(model, parts, table, scales_for(model, parts, table, batches, method)):
                errors[method] = float((model(**batches[0]).logits - real)[:, 1:].square().mean())
    assert errors["least-error"] < 0.5 * errors["max-abs"]  # steps of almost 1 where values are 1


def test_a_processor_tells_how_pixels_become_input():
    model, table, batches = made("vit")
    processor = transformers.ViTImageProcessor(image_mean=PIXELS.mean, image_std=PIXELS.std)
    by_processor = hccs.nn.lower(model, table, batches, pixels=processor)
    by_mapping = hccs.nn.lower(
        model, table, batches, pixels={"image_mean": list(PIXELS.mean), "image_std": list(PIXELS.std)}
    )
    given = whole_inputs("vit", 2)
    assert np.array_equal(by_processor(*given).scores, by_mapping(*given).scores)
    raw = hccs.nn.lower(model, table, batches, pixels={"do_normalize": False})
    assert not np.array_equal(raw(*given).scores, by_mapping(*given).scores)


def test_what_images_and_decoders_refuse():
    model, table, batches = made("vit")
    with pytest.raises(ParameterError, match="the model's image processor"):
        hccs.nn.lower(model, table, batches)
    with pytest.raises(ParameterError, match="image_mean and image_std"):
        hccs.nn.lower(model, table, batches, pixels={"size": 3})
    with pytest.raises(ParameterError, match="each of 3 channels"):
        hccs.nn.lower(model, table, batches, pixels={"image_mean": [0.5, 0.5], "image_std": [0.5, 0.5]})
    same = [[1] * 4] * 2
    short = ParamTable(B=np.multiply(same, 444), S=same, D=np.multiply(same, 40), scale=same, n=16)
    with pytest.raises(ModelError, match="17 tokens of an image"):
        hccs.nn.lower(model, short, batches, pixels=PIXELS)
    whole = hccs.nn.lower(model, table, batches, pixels=PIXELS)
    with pytest.raises(DtypeError, match="uint8"):
        whole(batches[0]["pixel_values"].numpy())
    with pytest.raises(ShapeError, match="Resize"):
        whole(np.zeros((1, 3, 12, 12), np.uint8))
    with pytest.raises(ModelError, match="a language model, or a classifier of sequences"):
        take_apart(transformers.GPT2ForTokenClassification(gpt2().config))
    with pytest.raises(ModelError, match="an image classifier"):
        take_apart(transformers.ViTModel(model.config), PIXELS)
