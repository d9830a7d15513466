"""Models with RMSNorm, rotary positions, gated layers, windows and projected embeddings in integers."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import transformers as hf

import hccs
import hccs.nn
from hccs.errors import FileError, ModelError, ParameterError
from hccs.executors.c.write import export_c_model
from hccs.executors.numpy import run
from hccs.nn.lowering import IntegerPlan, take_apart
from hccs.nn.lowering.mixing import can_be_mixed, mixed, mixing_matrix
from hccs.program import IntegerModel
from hccs.program import operators as op
from tests.nn.conftest import VOCABULARY, sentences

SHAPE = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
    initializer_range=0.15, max_position_embeddings=70,
)  # fmt: skip
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
MODERN = dict(SHAPE, **SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=8, num_hidden_layers=4)
GPT2 = dict(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15)

MODELS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE, num_key_value_heads=2)),
    "llama, tied": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **SHAPE, num_key_value_heads=1, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
        )
    ),
    "llama, last token": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**SHAPE, **SPECIAL)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHAPE, num_key_value_heads=2)),
    "qwen2, windows": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(
            **SHAPE, num_key_value_heads=2, use_sliding_window=True, sliding_window=5, max_window_layers=1
        )
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=12)),
    "qwen3, last token": lambda: hf.Qwen3ForSequenceClassification(
        hf.Qwen3Config(**SHAPE, num_key_value_heads=1, head_dim=8, pad_token_id=0)
    ),
    "mistral": lambda: hf.MistralForCausalLM(
        hf.MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=6)
    ),
    "modernbert": lambda: hf.ModernBertForSequenceClassification(hf.ModernBertConfig(**MODERN)),
    "modernbert, mean": lambda: hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**MODERN, classifier_pooling="mean", norm_bias=True, mlp_bias=True)
    ),
    "modernbert, tokens": lambda: hf.ModernBertForTokenClassification(hf.ModernBertConfig(**MODERN)),
    "albert": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**SHAPE, embedding_size=16)),
    "albert, groups": lambda: hf.AlbertForTokenClassification(
        hf.AlbertConfig(**dict(SHAPE, num_hidden_layers=4), embedding_size=16, num_hidden_groups=2)
    ),
    "electra": lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**SHAPE, embedding_size=16)),
    "gpt2, last token": lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(**GPT2, pad_token_id=0)),
}
"""Tiny random models."""


def made(name, **options):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    batches = [padded_with_zeros(sentences(seed=seed, count=12)) for seed in range(2)]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an executor may not have every operator
        return model, table, batches, hccs.nn.lower(model, table, batches, **options)


def padded_with_zeros(batch):
    """The last token is what is not padding, for transformers by its id."""
    ids, mask = batch["input_ids"].clamp(min=1), batch["attention_mask"]
    return {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}


def answers(model, batch):
    with torch.no_grad():
        return model(**batch).logits.double().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_close_to_the_float_model_and_equal_everywhere(name):
    model, _, _, whole = made(name)
    batch = padded_with_zeros(sentences(seed=7, count=9))
    given = batch["input_ids"].numpy(), batch["attention_mask"].numpy()
    found, wanted = whole(*given), answers(model, batch)
    assert np.array_equal(found.scores, whole(*given, reference=True).scores)
    read = whole.program.embed.read(*given, None, whole.program.longest)
    assert np.array_equal(found.scores, run(whole.program, read))
    scores = found.scores * found.scale
    if wanted.ndim == 3:
        on = given[1].astype(bool)
        scores, wanted = scores[on], wanted[on]
    assert abs(scores - wanted).mean() < 0.12 * wanted.std()
    assert np.corrcoef(scores.ravel(), wanted.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("name", ["modernbert", "llama, last token", "qwen3"])
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_vectors(name, pooling):
    model, table, batches, _ = made(name)
    base = model.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        whole = hccs.nn.lower(base, table, batches, vector=hccs.nn.VectorHead(pooling))
    batch = batches[0]
    with torch.no_grad():
        hidden = base(**batch).last_hidden_state.double().numpy()
    lengths = batch["attention_mask"].sum(1).tolist()
    pick = {"mean": lambda h: h.mean(0), "first": lambda h: h[0], "last": lambda h: h[-1]}[pooling]
    wanted = np.stack([pick(h[:n]) for h, n in zip(hidden, lengths, strict=True)])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    found = whole(batch["input_ids"], batch["attention_mask"]).scores / 32767
    assert (found * wanted).sum(1).min() > 0.99


def test_windows_hide_far_keys():
    """A token beyond every layer's window changes nothing."""
    _, _, _, whole = made("mistral")
    ids = np.arange(5, 29)[None]
    other = ids.copy()
    other[0, 0] = 40
    far = 2 * 5 + 1  # two layers, each of which sees five tokens before its own
    same = whole(ids).scores[0] == whole(other).scores[0]
    assert same[far:].all() and not same[:far].all()


def test_a_mixed_model_is_the_same_model_with_a_quiet_stream():
    torch.manual_seed(0)
    model = MODELS["llama, tied"]().eval()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[3] *= 300  # a massive channel
    assert can_be_mixed(take_apart(model)) and not can_be_mixed(take_apart(MODELS["modernbert"]()))
    before = copy.deepcopy(model.state_dict())
    other = mixed(model, take_apart)
    batch = sentences(seed=3, count=5)
    assert np.allclose(answers(model, batch), answers(other, batch), atol=1e-3)
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert other.lm_head.weight is not other.model.embed_tokens.weight

    def loudest(of):
        seen = []
        handle = of.model.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].abs().max()))
        answers(of, batch)
        handle.remove()
        return float(seen[0])

    assert loudest(other) < 0.5 * loudest(model)


@pytest.mark.parametrize("width", [1, 2, 7, 32, 576])
def test_mixing_matrices_are_orthogonal(width):
    Q = mixing_matrix(width)
    assert np.allclose(Q @ Q.T, np.eye(width)) and abs(Q).max() <= max((2 / width) ** 0.5, 1) + 1e-12


def test_massive_activations_keep_quiet_tokens_exact():
    """A channel that one layer makes a thousand times as loud does not cost the others their bits."""
    torch.manual_seed(0)
    model = MODELS["llama"]().eval()
    first = model.model.layers[0]
    with torch.no_grad():
        model.model.embed_tokens.weight[5, 3] = 4.0
        first.mlp.up_proj.weight[:, 3] *= 30
        first.mlp.down_proj.weight[3] *= 30
    batches = [padded_with_zeros(sentences(seed=seed, count=12)) for seed in range(2)]
    batches[0]["input_ids"][:, 0] = 5
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        whole = hccs.nn.lower(model, table, batches)
    sums = [step.output for step in whole.program.operators if isinstance(step, op.Add)]
    assert {whole.program.values[name].bits for name in sums} == {32}
    batch = batches[0]
    scores = whole(batch["input_ids"].numpy(), batch["attention_mask"].numpy())
    on = batch["attention_mask"].numpy().astype(bool)
    found, wanted = (scores.scores * scores.scale)[on], answers(model, batch)[on]
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("loud", [1.0, 1e4])
def test_words_count_in_the_steps_of_the_stream(loud):
    """Also where massive values make these steps coarser than int8 words would need."""
    torch.manual_seed(0)
    model = MODELS["llama"]().eval()
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.weight[3] *= loud
    batches = [padded_with_zeros(sentences(seed=seed, count=12)) for seed in range(2)]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32)
    plan = IntegerPlan.measured(model, table, batches)
    program, words = plan.lower().program, plan.parts.source.words.weight.detach().double().numpy()
    ids, seen = np.arange(3, 19)[None], {}
    run(program, program.embed.read(ids, None, None, program.longest), watch=seen.__setitem__)
    step, enough = program.scales["x0"], abs(words).max() / 127
    assert (step > enough) == (loud > 1)
    assert abs(seen["x0"][0] * step - words[ids[0]]).max() <= max(step, enough) / 2 * 1.001


@pytest.mark.parametrize(("ends", "names"), [(2, ["[CLS]"]), ([2, 3, 90], ["[CLS]", "[SEP]"]), (None, None)])
def test_files_name_the_tokens_at_which_a_language_model_ends(ends, names):
    pytest.importorskip("tokenizers")
    from tests.text.models import tokenizer

    torch.manual_seed(0)
    model = MODELS["llama"]().eval()
    model.generation_config.eos_token_id = ends
    batches = [padded_with_zeros(sentences(seed=0, count=12))]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32)
    text = hccs.nn.lower(model, table, batches, tokenizer=tokenizer()).program.text
    assert (text and text.stop) == names
    if ends:
        with pytest.raises(FileError, match=r"tokenizer\.json"):
            hccs.nn.lower(model, table, batches, tokenizer="{}")


def test_refusals_name_what_has_no_operator():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(ModelError, match="'dynamic', by the length of the text"):
        take_apart(hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE, rope_parameters=rope)))
    with pytest.raises(ModelError, match="ModernBertForMaskedLM"):
        take_apart(hf.ModernBertForMaskedLM(hf.ModernBertConfig(**MODERN)))


@pytest.mark.parametrize("name", ["llama", "qwen3", "modernbert", "albert", "electra"])
def test_training_what_is_deployed_is_refused_by_name(name):
    model, table, batches, _ = made(name)
    with (
        pytest.raises(ModelError, match="whose integers can be trained"),
        hccs.nn.quantised(model, table, batches),
    ):
        pass


def test_rotary_positions_need_row_exponents():
    model, table, batches, _ = made("llama")
    with pytest.raises(ParameterError, match="row exponents for rotary"):
        IntegerPlan.measured(model, table, batches, row_exponents=False)


def test_layers_share_rotary_tables_in_memory_in_files_and_in_c(tmp_path):
    _, _, _, whole = made("qwen3")
    whole.save(tmp_path / "model.hccs")
    loaded = IntegerModel.load(tmp_path / "model.hccs")
    assert loaded.fingerprint() == whole.fingerprint()
    for model in (whole, loaded):
        turns = [step.params for step in model.program.operators if isinstance(step, op.Rotate)]
        assert len(turns) > 1 and all(turn.cosine is turns[0].cosine for turn in turns)
    export_c_model(whole, tmp_path / "c")
    assert (tmp_path / "c" / "hccs_weights.c").read_text().count("_cosine[") == 1
