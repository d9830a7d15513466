"""The ONNX export: the reference's bits in ONNX Runtime, at any batch size, length and padding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import hccs
import hccs.nn
from hccs.errors import FileError, MissingExtraError, ModelError
from hccs.export.onnx_function import function, function_name
from hccs.export.onnx_model import _write, export_onnx
from hccs.nn.functional import quantise
from hccs.reference.softmax import softmax as reference_softmax
from tests.nn.conftest import ALL, batch_for, sentences


def softmax_model(mode: hccs.Mode, wide: bool = False) -> Any:
    """A graph that only calls the mode's function, which it does not hold yet."""
    fields = 6 if wide else 3
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "hccs" : 1]>
        graph (float[b, h, q, k] z, int32[h, {fields}] theta, float[h] scale, bool[b, 1, q, k] valid)
            => (float[b, h, q, k] p)
        {{ p = hccs.{function_name(mode, wide)} (z, theta, scale, valid) }}"""
    )


def softmax_session(mode: hccs.Mode, wide: bool = False) -> Any:
    """ONNX Runtime on that graph."""
    model = softmax_model(mode, wide)
    model.functions.append(function(mode, wide))
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString())


def converted(name: str, mode: str = "i16_div") -> Any:
    torch.manual_seed(0)
    model = ALL[name]().eval()
    table = hccs.calibrate(hccs.nn.collect(model, [batch_for(name)], n=64), n=64)
    return hccs.nn.attach(model, table, mode)


def run(path: Path, batch: dict[str, Any], outputs: list[str] | None = None) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path))
    return session.run(outputs, {name: value.numpy() for name, value in batch.items()})


@pytest.mark.parametrize("mode", list(hccs.Mode))
def test_the_function_returns_the_reference_integers(mode: hccs.Mode) -> None:
    session, rng = softmax_session(mode), np.random.default_rng(0)
    # The edges of the region, and short rows of small sums.
    theta = hccs.HeadParams([444, 511, 4, 260, 1], [11, 0, 0, 2, 0], [40, 1, 127, 127, 1])
    scale = rng.uniform(0.01, 0.2, 5).astype(np.float32)
    for q, k, spread in ((7, 64, 30.0), (3, 1, 30.0), (5, 33, 200.0)):
        z = rng.normal(0, spread, (3, 5, q, k)).astype(np.float32) * scale[:, None, None]
        valid = rng.random((3, 1, q, k)) < 0.6
        valid[0] = True
        valid[1, :, 0] = False
        valid[1, :, -1] = np.arange(k) == 0
        p = session.run(None, {"z": z, "theta": theta.packed, "scale": scale, "valid": valid})[0]
        x = np.clip(np.rint(z / scale[:, None, None]), -128, 127).astype(np.int8)
        assert np.array_equal(p * np.float32(mode.T), reference_softmax(x, theta, mode, valid))


@pytest.mark.parametrize("mode", list(hccs.Mode))
def test_two_lines_return_the_reference_integers(mode: hccs.Mode) -> None:
    session, rng = softmax_session(mode, wide=True), np.random.default_rng(0)
    theta = hccs.HeadParams(
        [1023, 2047, 32767, 255, 1], [4, 5, 0, 0, 0], [50, 54, 127, 127, 1], [40, 77, 127, 2, 0],
        [20, 22, 127, 100, 1], [2, 0, 0, 0, 0],
    )  # fmt: skip
    scale = rng.uniform(0.01, 0.2, 5).astype(np.float32)
    for q, k, spread in ((7, 64, 30.0), (3, 1, 30.0), (2, 500, 100.0)):
        z = rng.normal(0, spread, (3, 5, q, k)).astype(np.float32) * scale[:, None, None]
        valid = rng.random((3, 1, q, k)) < 0.6
        valid[0] = True
        valid[1, :, 0] = False
        p = session.run(None, {"z": z, "theta": theta.packed, "scale": scale, "valid": valid})[0]
        x = np.clip(np.rint(z / scale[:, None, None]), -128, 127).astype(np.int8)
        assert np.array_equal(p * np.float32(mode.T), reference_softmax(x, theta, mode, valid))


def test_a_model_of_two_lines_has_the_same_answers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ALL["bert"]().eval()
    table = hccs.calibrate(hccs.nn.collect(model, [batch_for("bert")], n=64), n=64, lines=2)
    hccs.nn.attach(model, table, "i16_div")
    batch = batch_for("bert")
    path = export_onnx(model, batch, tmp_path / "m.onnx")
    with torch.no_grad():
        expected = model(**batch).logits.numpy()
    np.testing.assert_allclose(run(path, batch)[0], expected, rtol=1e-4, atol=1e-5)


def test_every_row_sum_gets_the_reference_reciprocal() -> None:
    """All Z from 1 to 32767, by rows of one column with B = Z."""
    sums = np.arange(1, 32768)
    theta = hccs.HeadParams(sums, np.zeros_like(sums), np.ones_like(sums))
    z = np.zeros((1, len(sums), 1, 1), np.float32)
    scale, valid = np.ones(len(sums), np.float32), np.ones((1, 1, 1, 1), bool)
    for mode in hccs.Mode:
        p = softmax_session(mode).run(None, {"z": z, "theta": theta.packed, "scale": scale, "valid": valid})[
            0
        ]
        expected = hccs.softmax(np.zeros(z.shape, np.int8), theta, mode)
        assert np.array_equal(p * np.float32(mode.T), expected)


def test_rounding_is_half_to_even_and_saturates() -> None:
    session, scale = softmax_session(hccs.Mode.I16_DIV), np.array([0.1], np.float32)
    steps = np.arange(-140, 140, 0.25)
    exact = (steps * np.float64(scale[0])).astype(np.float32)
    z = np.concatenate([np.nextafter(exact, -np.inf), exact, np.nextafter(exact, np.inf)])
    # Pairs of one logit with 0: the probability tells the logit apart as far as D reaches.
    pairs = np.stack([z, np.zeros_like(z)], -1)[None, None]
    theta = hccs.HeadParams([16000], [125], [127])
    valid = np.ones(pairs.shape, bool)
    p = session.run(None, {"z": pairs, "theta": theta.packed, "scale": scale, "valid": valid})[0]
    x = quantise(torch.from_numpy(pairs), torch.from_numpy(scale)).numpy()
    assert np.array_equal(p * np.float32(32767), hccs.softmax(x, theta, "i16_div"))


def test_whole_model_with_padding_at_any_size(tmp_path: Path) -> None:
    model = converted("bert", "u8_clb")
    path = export_onnx(model, sentences(), tmp_path / "folder" / "model.onnx", attentions=True)
    table = hccs.nn.current_table(model)
    for count, longest, padded_to in ((6, 20, 20), (1, 5, 5), (3, 30, 64), (2, 4, 9)):
        batch = sentences(count, longest, seed=count, padded_to=padded_to)
        logits, *attentions = run(path, batch)
        with torch.no_grad():
            expected = model(**batch, output_attentions=True)
        np.testing.assert_allclose(logits, expected.logits.numpy(), atol=2e-4)
        assert np.array_equal(logits.argmax(-1), expected.logits.numpy().argmax(-1))
        assert len(attentions) == table.shape[0]
        for layer in attentions:
            assert np.array_equal(layer * np.float32(255), (layer * np.float32(255)).round())
            assert (layer * (1 - batch["attention_mask"].numpy()[:, None, None, :]) == 0).all()


def require_self_contained(model: Any, mode: str) -> None:
    """The file says what it is, and its function is made of standard operators alone."""
    facts = {fact.key: fact.value for fact in model.metadata_props}
    assert (facts["hccs.mode"], facts["hccs.longest_row"]) == (mode, "64")
    assert len(model.functions) == 1
    assert {node.domain for node in model.functions[0].node} == {""}
    assert {opset.domain: opset.version for opset in model.opset_import}[""] >= 17


def test_the_bits_inside_a_whole_model_are_the_references(tmp_path: Path) -> None:
    """Every layer's logits are made outputs: the reference turns them into the probabilities passed on."""
    model = converted("bert", "i16_div").train()
    model_proto = onnx.load(export_onnx(model, sentences(), tmp_path / "model.onnx", mode="u8_div"))
    assert model.training  # the model stays as it was
    require_self_contained(model_proto, "u8_div")
    nodes = [node for node in model_proto.graph.node if node.domain == "hccs"]
    table = hccs.nn.current_table(model)
    assert [node.op_type for node in nodes] == ["SoftmaxU8Div"] * 2
    kinds = {0: onnx.TensorProto.FLOAT, 3: onnx.TensorProto.BOOL}
    names = [node.input[i] for node in nodes for i in kinds] + [node.output[0] for node in nodes]
    types = [kind for _ in nodes for kind in kinds.values()] + [onnx.TensorProto.FLOAT] * len(nodes)
    known = {value.name for value in model_proto.graph.output}
    for name, kind in zip(names, types, strict=True):
        if name not in known:
            known.add(name)
            model_proto.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
    onnx.save(model_proto, tmp_path / "open.onnx")
    found = dict(zip(names, run(tmp_path / "open.onnx", sentences(padded_to=27), names), strict=True))
    for layer, node in enumerate(nodes):
        z, valid, p = found[node.input[0]], found[node.input[3]], found[node.output[0]]
        x = quantise(torch.from_numpy(z), torch.tensor(table.scale[layer], dtype=torch.float32)).numpy()
        assert np.array_equal(p * np.float32(255), reference_softmax(x, table.layer(layer), "u8_div", valid))


@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_other_architectures(name: str, tmp_path: Path) -> None:
    model = converted(name)
    path = export_onnx(model, batch_for(name), tmp_path / "model.onnx")
    batch = batch_for(name, seed=3) if name == "vit" else sentences(2, 11, seed=3)
    with torch.no_grad():
        expected = model(**batch).logits.numpy()
    if name == "gpt2":  # rows of padding queries differ between implementations of the mask
        real = batch["attention_mask"].bool().numpy()
        np.testing.assert_allclose(run(path, batch)[0][real], expected[real], atol=1e-3)
    else:
        np.testing.assert_allclose(run(path, batch)[0], expected, atol=1e-3)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="saved with HCCS"):
        export_onnx(ALL["bert"](), sentences(), tmp_path / "model.onnx")
    model = converted("bert")
    with pytest.raises(ModelError, match="a float32 model"):
        export_onnx(model.half(), sentences(), tmp_path / "model.onnx")
    monkeypatch.setattr("hccs.export.onnx_model.LARGEST_FILE", 1000)
    with pytest.raises(ModelError, match="less than 2 GiB"):
        export_onnx(model.float(), sentences(), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="less than 2 GiB"):  # of the file itself
        table = hccs.nn.current_table(model)
        _write(softmax_model(table.mode), table, table.mode, tmp_path / "model.onnx")
    with monkeypatch.context() as patched, pytest.raises(MissingExtraError, match=r"torch 2\.8 or later"):
        patched.delattr("torch.onnx.ops")
        export_onnx(model, sentences(), tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"hccs\[onnx\]"):
        export_onnx(model, sentences(), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_run_of_the_embedded_model(tmp_path: Path) -> None:
    """The embedded model, converted without retraining: the same predictions on its whole dev set."""
    from hccs.conversion.data.tasks import TASKS, load
    from hccs.conversion.data.tokens import tokenise
    from hccs.conversion.export_onnx import compare
    from hccs.conversion.models import load_classifier
    from hccs_lab.demo import MODEL

    loaded, data = load_classifier(str(MODEL), ("negative", "positive")), load(TASKS["movies"])
    table = hccs.calibrate(
        hccs.nn.collect(loaded.model, list(_tokens(data.train.subset(64), loaded).batches(32)), n=64), n=64
    )
    model = hccs.nn.attach(loaded.model.eval(), table)
    with pytest.warns(UserWarning, match="were cut"):
        dev = tokenise(data.dev, loaded.tokenizer, 64)
    sample = {name: column[:2, :8].long() for name, column in dev.columns.items()}
    found = compare(model, export_onnx(model, sample, tmp_path / "model.onnx"), dev)
    assert found.examples == found.same_predictions == 1001
    assert found.largest_difference < 1e-2
    assert found.accuracy > 0.7


def _tokens(examples: Any, loaded: Any) -> Any:
    from hccs.conversion.data.tokens import tokenise

    return tokenise(examples, loaded.tokenizer, 64)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    from hccs.conversion.export_onnx import export_run

    with pytest.raises(FileError, match="hccs convert first"):
        export_run(tmp_path, tmp_path / "model.onnx")
