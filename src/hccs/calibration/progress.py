"""How far a collection from files has come: what travels with its checkpoint, so that it can go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class SeenFile:
    """A file whose rows are in the statistics: told apart by content and layer, named for people."""

    name: str = field(compare=False)
    sha256: str
    layer: int | None = None


@dataclass(frozen=True)
class CollectionProgress:
    """The files that were read, and the `scale` that was asked for.

    While `candidates` is not 0 the statistics hold that many candidate scales of every head side by side.
    """

    scale: float | str
    candidates: int = 0
    seen: tuple[SeenFile, ...] = ()

    def to_json(self) -> str:
        """As the metadata of a statistics file hold it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CollectionProgress:
        """Read what `to_json` wrote; anything else is a ValueError, KeyError or TypeError."""
        values: dict[str, Any] = json.loads(text)
        return cls(
            values["scale"], values["candidates"], tuple(SeenFile(**entry) for entry in values["seen"])
        )
