"""The public operators are typed: arrays give arrays, tensors tensors. `make lint` checks it with mypy."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import hccs
from hccs.ops.quantise import quantise

x, t = np.zeros((2, 4), np.int8), torch.zeros(2, 4, dtype=torch.int8)
theta = hccs.HeadParams(1, 0, 1)
assert_type(hccs.softmax(x, theta), NDArray[Any])
assert_type(hccs.softmax(t, theta), torch.Tensor)
assert_type(quantise(x, 1.0), NDArray[np.int8])
assert_type(quantise(t, 1.0), torch.Tensor)
hccs.softmax(x, theta, out=t)  # type: ignore[type-var]
