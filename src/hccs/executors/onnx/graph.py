"""`Graph`: ONNX nodes written as calls, with constants that are stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hccs._extras import require
from hccs.program.program import Program

if TYPE_CHECKING:
    Operand = str | NDArray[Any] | np.generic

OPSET = 18

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

ZERO_POINT = np.uint8(128)
"""int8 values travel as uint8 with this offset: what ONNX Runtime's products are fast at."""

TYPES = {
    np.dtype(np.bool_): "BOOL",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.int8): "INT8",
    np.dtype(np.int16): "INT16",
    np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64",
    np.dtype(np.uint64): "UINT64",
    np.dtype(np.float32): "FLOAT",
    np.dtype(np.float64): "DOUBLE",
}


def onnx() -> Any:
    """The onnx package, or what to install."""
    require("onnx.parser", "onnx", "to write ONNX models")
    return require("onnx", "onnx")


class Graph:
    """A growing list of nodes; `graph("Add", x, y)` appends one and returns the name of its output.

    Operands are names, or arrays, which become constants. Names begin with `place`, the program's value
    that is being made.
    """

    def __init__(self) -> None:
        self.onnx = onnx()
        self.nodes: list[Any] = []
        self.place = ""
        self._constants: dict[tuple[str, tuple[int, ...], bytes, str], Any] = {}
        self._names: dict[str, int] = {}

    def __call__(self, kind: str, *operands: Operand, domain: str = "", **attributes: Any) -> str:
        """Append a node with one output."""
        return self.several(kind, 1, *operands, domain=domain, **attributes)[0]

    def several(
        self, kind: str, outputs: int, *operands: Operand, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs."""
        name = self._fresh(kind)
        made = [name] if outputs == 1 else [f"{name}:{index}" for index in range(outputs)]
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        self.nodes.append(
            self.onnx.helper.make_node(kind, inputs, made, name=name, domain=domain, **attributes)
        )
        return made

    def cast(self, x: str, dtype: Any) -> str:
        """`x` as another type."""
        return self("Cast", x, to=self.type(dtype))

    def named(self, x: str, name: str) -> None:
        """Give a value the name that a user will ask for."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [x], [name], name=f"output/{name}"))

    def constant(self, value: NDArray[Any] | np.generic, shared: bool = True) -> str:
        """The name of a constant; equal ones share one, unless a runtime's optimiser would trip over that."""
        array = np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes(), "" if shared else str(len(self._constants)))
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self.onnx.numpy_helper.from_array(array, name)
        made: str = self._constants[key].name
        return made

    @property
    def constants(self) -> list[Any]:
        """The TensorProto of every constant."""
        return list(self._constants.values())

    def type(self, dtype: Any) -> int:
        """ONNX's number of a type."""
        number: int = self.onnx.TensorProto.DataType.Value(TYPES[np.dtype(dtype)])
        return number

    def _fresh(self, kind: str) -> str:
        name = f"{self.place}/{kind}"
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"


@dataclass(frozen=True)
class Tokens:
    """`sizes` (batch, n), and the columns that a row attends to.

    `mask` is uint8 [batch, 1, 1, n], or with rows of their own [batch, 1, n, n].
    """

    sizes: str
    mask: str


class Building:
    """A graph that grows operator by operator, and the name there of every value that is made."""

    def __init__(self, program: Program) -> None:
        self.graph = Graph()
        self.program = program
        self.made: dict[str, str] = {}
        self.unclamped: set[str] = set()
        """8-bit values in which -128 stands for -127."""
        self.exponents: dict[str, str] = {}
        """The exponents of values whose rows have them: int64, one per row."""
        self.tokens = Tokens("", "")
        self.tokens_within: dict[tuple[int, int], Tokens] = {}
        """The tokens of attention that sees so far before and after itself."""
        self.inputs: list[Any] = []
        self.defaults: list[Any] = []

    def add_input(self, name: str, dtype: Any, sizes: list[Any]) -> None:
        """An input of the model, with names or numbers as sizes."""
        describe = self.graph.onnx.helper.make_tensor_value_info
        self.inputs.append(describe(name, self.graph.type(dtype), sizes))

    def width(self, name: str) -> int:
        return self.program.values[name].width


def shape(*sizes: int) -> NDArray[np.int64]:
    """Sizes, axes or indices, as operators take them."""
    return np.array(sizes, np.int64)
