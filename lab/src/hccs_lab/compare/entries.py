"""What is compared: methods of the registry, their parameters calibrated or fixed (`entmax:alpha=1.3`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hccs.errors import ParameterError
from hccs.numbers.modes import Mode
from hccs_lab import surrogates
from hccs_lab.surrogates.costs import Costs

FLOAT = "float"
"""The model as it is, its logits not even quantised: what every accuracy is compared with."""


@dataclass(frozen=True)
class Entry:
    """A line of the comparison: a method, and the parameters that calibration does not choose for it."""

    label: str
    method: str
    fixed: tuple[tuple[str, Any], ...] = ()

    @property
    def file_name(self) -> str:
        return re.sub(r"[^A-Za-z0-9._=-]+", "_", self.label)


def default_labels() -> list[str]:
    """Every method of the registry, and HCCS in its other modes."""
    modes = [f"hccs:mode={mode.value}" for mode in Mode if mode is not Mode.I16_DIV]
    return [label for name in surrogates.names() for label in ([name, *modes] if name == "hccs" else [name])]


def parse(labels: Sequence[str]) -> list[Entry]:
    """Entries of `NAME` or `NAME:parameter=value,...` labels, the float model first.

    >>> parse(["hccs:mode=u8_clb"])[1]
    Entry(label='hccs:mode=u8_clb', method='hccs', fixed=(('mode', 'u8_clb'),))
    """
    chosen = list(dict.fromkeys(label for label in labels if label != FLOAT))
    return [Entry(FLOAT, FLOAT), *(_entry(label) for label in chosen)]


def _entry(label: str) -> Entry:
    name, _, text = label.partition(":")
    method = surrogates.get(name)
    fixed = []
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals or key not in method.parameters:
            raise ParameterError(
                f"NAME or NAME:parameter=value with a parameter of {name}: "
                f"{', '.join(method.parameters) or 'none'}",
                repr(label),
                "Leave the parameters out to have them calibrated.",
            )
        fixed.append((key, _value(value)))
    return Entry(label, name, tuple(fixed))


def declared_costs(entry: Entry) -> Costs:
    """The costs in the method's file, of the parameters that the entry fixes."""
    return surrogates.get(entry.method).costs_with(**dict(entry.fixed))


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
