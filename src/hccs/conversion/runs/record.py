"""The results of named stages in one JSON file, each written once it is known; typed values from JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hccs._files import atomic
from hccs.conversion.runs import state
from hccs.errors import FileError

VERSION = 1
"""The version of the files in a run's folder."""

REDO = "Delete that file to repeat its stages."


class StageRecord:
    """Does a stage once: a result that the file holds is returned, any other is computed and written.

    A process that is killed loses at most the stage it was in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        if path.exists():
            content = read_json(path, REDO)
            require_version(content, path)
            stages, seconds = content.get("stages"), content.get("seconds")
            if not isinstance(stages, dict) or not isinstance(seconds, dict):
                raise FileError(f"{path} to hold results by stage", "something else", REDO)
            self.stages, self.seconds = stages, seconds

    def stage(self, name: str, work: Callable[[], Any]) -> Any:
        """The stage's recorded result, or that of `work`, which is recorded once it has finished."""
        if name not in self.stages:
            began = time.perf_counter()
            result: Any = work()
            if is_dataclass(result) and not isinstance(result, type):
                result = json.loads(json.dumps(asdict(result)))  # as it is read back, with lists for tuples
            self.stages[name] = result
            self.seconds[name] = round(time.perf_counter() - began, 2)
            if state().is_main_process:
                write_json(self.path, {"version": VERSION, "stages": self.stages, "seconds": self.seconds})
            # The next stage reads what the main process has written.
            state().wait_for_everyone()
        return self.stages[name]

    def done(self, name: str) -> bool:
        return name in self.stages


def require_version(content: dict[str, Any], path: Path) -> None:
    """Refuse a file that another version of the format wrote."""
    if content.get("version") != VERSION:
        raise FileError(
            f"version {VERSION} of {path}",
            f"version {content['version']!r}" if "version" in content else "a file without a version",
            "Runs started by a version that wrote another format cannot be resumed: use another --out.",
        )


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """The object in a JSON file of ours; a damaged one is refused with a hint."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} to be intact JSON", str(error) or type(error).__name__, hint) from error
    if not isinstance(content, dict):
        raise FileError(f"{path} to hold a JSON object", type(content).__name__, hint)
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file that appears complete or not at all."""
    atomic.replace(path, json.dumps(finite(content), indent=1).encode())


def finite(value: Any) -> Any:
    """JSON has neither infinity nor NaN: None stands for both."""
    if isinstance(value, Mapping):
        return {str(name): finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_typed(kind: Any, path: Path, hint: str, *, versioned: bool = False) -> Any:
    """A dataclass from the JSON file of its `asdict` form; anything else is refused."""
    content = read_json(path, hint)
    if versioned:
        require_version(content, path)
    return typed(kind, content, path, hint)


def finished(folder: Path, stages: Iterable[str], hint: str) -> StageRecord:
    """The record of a run that has these stages; a run without them is refused."""
    record = StageRecord(folder / "results.json")
    if not all(name in record.stages for name in stages):
        got = "a run that has not finished" if record.stages else "no run"
        raise FileError(f"{folder} to be a finished run", got, hint)
    return record


def problem_of(folder: Path) -> str | None:
    """The problem that the settings of a run name, where it is a kind of run of its own."""
    begun = folder / "settings.json"
    if not begun.exists():
        return None
    found = read_json(begun, "Repeat the command with another --out.").get("problem")
    return found if isinstance(found, str) else None


def typed(kind: Any, content: Any, path: Path, hint: str) -> Any:
    """A dataclass of the given type from its `asdict` form in a file; anything else is refused."""
    try:
        return from_json(kind, content)
    except (TypeError, ValueError) as error:
        raise FileError(f"{path} as hccs wrote it", str(error), hint) from error


def from_json(kind: Any, value: Any, name: str = "value") -> Any:
    """A value of a type: dataclasses from objects, tuples from lists; TypeError where it does not fit.

    A float may be null where JSON has no number for it: infinity.
    """
    inside = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in inside:
            return None
        (kind,) = [part for part in inside if part is not NoneType]
        return from_json(kind, value, name)
    if get_origin(kind) is tuple and isinstance(value, list):
        kinds = [inside[0]] * len(value) if inside[1:] == (Ellipsis,) else inside
        if len(kinds) == len(value):
            return tuple(from_json(part, item, name) for part, item in zip(kinds, value, strict=True))
    elif get_origin(kind) is dict and isinstance(value, dict):
        return {key: from_json(inside[1], item, f"{name}.{key}") for key, item in value.items()}
    elif is_dataclass(kind) and isinstance(value, dict):
        return _dataclass_from(kind, value, name)
    elif kind is float and (value is None or (isinstance(value, int) and not isinstance(value, bool))):
        return math.inf if value is None else float(value)
    elif isinstance(kind, type) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise TypeError(f"{name} is {value!r:.60}")


def _dataclass_from(kind: Any, value: dict[str, Any], name: str) -> Any:
    hints = get_type_hints(kind)
    given = {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = from_json(hints[field.name], value[field.name], f"{name}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TypeError(f"{name} has no {field.name}")
    return kind(**given)
