"""Whole integer programs as freestanding C99: `plan` places values, `constants` and `calls` write them."""
