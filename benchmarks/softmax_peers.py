"""Softmax of other libraries on one thread, each as a function of no arguments over arrays it has at hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SCALE = 0.1  # of the quantised logits


@dataclass(frozen=True)
class Peer:
    """`make(rows, n)` returns the call to time; `kind` says what goes in and comes out."""

    name: str
    kind: str  # "float32" or "int8"
    make: Callable[[int, int], Callable[[], object]]
    package: str

    @property
    def bytes_per_element(self) -> int:
        return 8 if self.kind == "float32" else 2


def logits(rows: int, n: int) -> np.ndarray:
    """Normal logits; drawn for a million elements and repeated from there on."""
    drawn = min(rows, (1 << 20) // n)
    block = np.clip(np.rint(np.random.default_rng(n).normal(0, 25, (drawn, n))), -128, 127).astype(np.int8)
    return np.resize(block, (rows, n))


def _floats(rows: int, n: int) -> np.ndarray:
    return (logits(rows, n) * SCALE).astype(np.float32)


def _onnx(node, dtype: int, rows: int, n: int, initializers=()):
    import onnxruntime as ort
    from onnx import helper

    value = [helper.make_tensor_value_info(name, dtype, [rows, n]) for name in ("x", "y")]
    graph = helper.make_graph([node], "softmax", value[:1], value[1:], initializer=list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = _floats(rows, n) if dtype == 1 else logits(rows, n).view(np.uint8)
    y = np.empty_like(x)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, y.dtype.type, y.shape, y.ctypes.data)
    return lambda: (session.run_with_iobinding(binding), x, y)


def onnxruntime_float32(rows: int, n: int):
    from onnx import TensorProto, helper

    return _onnx(helper.make_node("Softmax", ["x"], ["y"], axis=-1), TensorProto.FLOAT, rows, n)


def onnxruntime_qlinear(rows: int, n: int):
    from onnx import TensorProto, helper

    node = helper.make_node(
        "QLinearSoftmax", ["x", "xs", "xz", "ys", "yz"], ["y"], domain="com.microsoft", axis=-1, opset=13
    )
    constants = [
        helper.make_tensor("xs", TensorProto.FLOAT, [], [SCALE]),
        helper.make_tensor("xz", TensorProto.UINT8, [], [128]),
        helper.make_tensor("ys", TensorProto.FLOAT, [], [1 / 256]),
        helper.make_tensor("yz", TensorProto.UINT8, [], [0]),
    ]
    return _onnx(node, TensorProto.UINT8, rows, n, constants)


def torch_float32(rows: int, n: int):
    import torch

    torch.set_num_threads(1)
    x = torch.from_numpy(_floats(rows, n))
    y = torch.empty_like(x)
    return lambda: torch.softmax(x, -1, out=y)


def torch_quantized(rows: int, n: int):
    import torch

    torch.set_num_threads(1)
    torch.backends.quantized.engine = "qnnpack"
    x = torch.quantize_per_tensor(torch.from_numpy(_floats(rows, n)), SCALE, 128, torch.quint8)
    return lambda: torch.ops.quantized.softmax(x, -1, 1 / 256, 0)


def openvino_float32(rows: int, n: int):
    import openvino as ov
    from openvino import opset8

    parameter = opset8.parameter([rows, n], np.float32)
    model = ov.Model([opset8.softmax(parameter, 1)], [parameter])
    compiled = ov.Core().compile_model(
        model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    )
    request = compiled.create_infer_request()
    x = _floats(rows, n)
    request.set_input_tensor(ov.Tensor(x, shared_memory=True))
    return lambda: (request.infer(), x)


def litert_int8(rows: int, n: int):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=_litert_model(rows, n), num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], logits(rows, n))
    return interpreter.invoke


def _litert_model(rows: int, n: int) -> bytes:
    """A model file of one int8 Softmax, from the format's own schema."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    def tensor(name: str, scale: float, zero: int):
        made = schema.TensorT()
        made.shape, made.type, made.buffer, made.name = [rows, n], schema.TensorType.INT8, 0, name
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale, made.quantization.zeroPoint = [scale], [zero]
        return made

    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.SOFTMAX
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0], [1]
    operator.builtinOptionsType = schema.BuiltinOptions.SoftmaxOptions
    operator.builtinOptions = schema.SoftmaxOptionsT()
    operator.builtinOptions.beta = 1.0
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs = [tensor("x", SCALE, 0), tensor("y", 1 / 256, -128)], [0], [1]
    graph.operators = [operator]
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs, model.buffers = (
        3,
        [code],
        [graph],
        [schema.BufferT()],
    )
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


ALL = [
    Peer("ONNX Runtime float32", "float32", onnxruntime_float32, "onnxruntime"),
    Peer("torch float32", "float32", torch_float32, "torch"),
    Peer("OpenVINO float32", "float32", openvino_float32, "openvino"),
    Peer("ONNX Runtime QLinearSoftmax", "int8", onnxruntime_qlinear, "onnxruntime"),
    Peer("torch quantized", "int8", torch_quantized, "torch"),
    Peer("LiteRT int8", "int8", litert_int8, "ai_edge_litert"),
]
PEERS = [peer for peer in ALL if importlib.util.find_spec(peer.package)]
LEFT_OUT = [peer for peer in ALL if peer not in PEERS]
