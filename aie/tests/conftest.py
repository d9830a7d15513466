"""The settings of hypothesis and the fixtures that all three distributions share."""

from tests.conftest import _device_at_rest, instruction_set  # noqa: F401
