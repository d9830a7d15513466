"""The search: for every head, layer or all heads together, the triple of least mean KL (eq. 10)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._progress import track
from hccs.calibration import _native
from hccs.calibration.statistics import GroupSummary, HeadStatistics
from hccs.errors import ParameterError
from hccs.kernels.isa import cores
from hccs.spec import HeadParams, Mode, Region
from hccs.table import ParamTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRANULARITIES = ("head", "layer", "global")


class CalibrationWarning(UserWarning):
    """Calibration succeeded, but the data or n leave little to fit."""


@dataclass(frozen=True)
class HeadRecord:
    """How well one head is served. KL in nats, natural logarithm, mean over rows, in int16 space."""

    layer: int
    head: int
    params: HeadParams
    scale: float
    rows: int
    kl: float
    """Against p_hat / 32767 as it is: missing mass costs."""
    kl_renormalised: float
    """Against p_hat divided by its sum."""
    mass_deficit: float
    """1 - mean sum of p_hat / 32767."""
    entropy: float
    """Of the head's softmax, mean over rows."""
    runner_up: HeadParams
    runner_up_kl: float
    """The second best triple of the head (of its group), and the group's KL with it."""


@dataclass(frozen=True)
class Calibration:
    """The calibrated table and a record of every head."""

    table: ParamTable
    heads: tuple[HeadRecord, ...]

    @property
    def kl(self) -> float:
        """Mean of the heads' KL."""
        return float(np.mean([record.kl for record in self.heads]))


@dataclass(frozen=True)
class _Found:
    heads: list[int]
    best: tuple[int, int, int]
    runner_up: tuple[int, int, int]
    runner_up_kl: float


def calibrate(
    stats: HeadStatistics, n: int | None = None, granularity: str = "head", **options: Any
) -> ParamTable:
    """The exact optimum of every head's (B, S, D) for rows of up to `n` (default: the statistics' own n).

    `granularity` is "head", "layer" or "global": how many heads share a triple. The options are those of
    `hccs.calibration.search`, which returns the record of every head beside the table.

    >>> from hccs.calibration import HeadStatistics
    >>> stats = HeadStatistics(shape=(1, 1), n=64, scale=0.1)
    >>> stats.update(np.arange(-64, 64, 2, dtype=np.int8).reshape(1, 1, 1, 64))
    >>> calibrate(stats).head(0, 0)
    HeadParams(B=439, S=15, D=29)
    """
    return search(stats, n, granularity, **options).table


def search(
    stats: HeadStatistics,
    n: int | None = None,
    granularity: str = "head",
    mode: Mode | str = "i16_div",
    *,
    provenance: dict[str, Any] | None = None,
    threads: int | None = None,
) -> Calibration:
    """The global minimum of the mean KL over every admissible triple, per head, layer or globally."""
    n = stats.n if n is None else Region(n).n
    if n < stats.n:
        raise ParameterError(
            f"n >= {stats.n}, the longest row of the statistics", str(n), "Collect statistics with this n."
        )
    _warn_of_slope(n)
    groups = _groups(stats, granularity)
    found = list(_search_all(stats, groups, n, threads or cores()))
    records = sorted((r for f in found for r in _records(stats, f)), key=lambda r: (r.layer, r.head))
    packed = np.array([r.params.packed for r in records]).reshape(*stats.shape, 3)
    table = ParamTable(
        B=packed[..., 0],
        S=packed[..., 1],
        D=packed[..., 2],
        scale=stats.scale,
        n=n,
        mode=Mode(mode),
        provenance={**_layer_names(stats), **(provenance or {})},
    )
    _warn_of_constant_heads(stats, records)
    return Calibration(table, tuple(records))


def _layer_names(stats: HeadStatistics) -> dict[str, Any]:
    """What a collection noted about where its rows came from: the table keeps it, so that attaching can check it."""
    return {"layers": stats.progress["layers"]} if "layers" in stats.progress else {}


def fidelity(stats: HeadStatistics, table: ParamTable) -> NDArray[np.float64]:
    """KL, renormalised KL and mass deficit of every head of `table` on other data: [layers, heads, 3]."""
    if table.shape != stats.shape or table.n < stats.n:
        raise ParameterError(
            f"a table of shape {stats.shape} for n >= {stats.n}",
            f"shape {table.shape}, n = {table.n}",
            "Evaluate a table on statistics of the model it was made for.",
        )
    values = [_evaluate(stats, [h], table.head(*divmod(h, stats.shape[1]))) for h in range(stats.scale.size)]
    return np.array(values).reshape(*stats.shape, 3)


def objective(stats: HeadStatistics, heads: Sequence[int], triples: Any) -> NDArray[np.float64]:
    """The objective of each (B, S, D) in `triples` [count, 3] for a group of heads, from the statistics."""
    array = np.ascontiguousarray(triples, np.int32)
    region = Region(stats.n)
    for B, S, D in array.tolist():
        region.require(B, S, D)
    summary = stats.summary(heads)
    return _native.objectives(stats._native, list(heads), summary.mass, summary.negative_entropy, array)


def _groups(stats: HeadStatistics, granularity: str) -> list[list[int]]:
    layers, heads = stats.shape
    everything = np.arange(layers * heads)
    if granularity not in GRANULARITIES:
        raise ParameterError(
            f"granularity to be one of {', '.join(GRANULARITIES)}",
            repr(granularity),
            "The paper uses 'head'.",
        )
    parts = {"head": layers * heads, "layer": layers, "global": 1}[granularity]
    return [part.tolist() for part in np.split(everything, parts)]


def _search_all(stats: HeadStatistics, groups: list[list[int]], n: int, threads: int) -> Iterator[_Found]:
    summaries = [stats.summary(group) for group in groups]

    def one(group: list[int], summary: GroupSummary) -> _Found:
        best, runner_up, _, _ = _native.search(
            stats._native, group, summary.mass, summary.negative_entropy, n
        )
        return _Found(group, best[:3], runner_up[:3], runner_up[3])

    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(one, group, summary) for group, summary in zip(groups, summaries, strict=True)]
        for job in track(as_completed(jobs), total=len(jobs), description="searching"):
            yield job.result()


def _records(stats: HeadStatistics, found: _Found) -> Iterator[HeadRecord]:
    params = HeadParams(*found.best)
    for h in found.heads:
        kl, renormalised, deficit = _evaluate(stats, [h], params)
        layer, head = divmod(h, stats.shape[1])
        yield HeadRecord(
            layer=layer,
            head=head,
            params=params,
            scale=float(stats.scale[layer, head]),
            rows=int(stats.rows[layer, head]),
            kl=kl,
            kl_renormalised=renormalised,
            mass_deficit=deficit,
            entropy=-stats.summary([h]).negative_entropy,
            runner_up=HeadParams(*found.runner_up),
            runner_up_kl=found.runner_up_kl,
        )


def _evaluate(stats: HeadStatistics, heads: list[int], params: HeadParams) -> tuple[float, float, float]:
    summary = stats.summary(heads)
    B, S, D = params.packed.tolist()
    return _native.evaluate(stats._native, heads, summary.mass, summary.negative_entropy, B, S, D)


def _warn_of_slope(n: int) -> None:
    region = Region(n)
    if region.max_base < region.floor:
        region.require(1, 0, 1)
    if region.max_slope(1) < 1:
        warnings.warn(
            f"n = {n} leaves no admissible slope (B <= {region.max_base}): every score is equal, attention "
            "uniform. Split the rows, or keep softmax for this model.",
            CalibrationWarning,
            stacklevel=3,
        )


def _warn_of_constant_heads(stats: HeadStatistics, records: Sequence[HeadRecord]) -> None:
    constant = [r for r in records if stats.summary([r.layer * stats.shape[1] + r.head]).mass[0] == 1.0]
    if constant:
        names = ", ".join(f"layer {r.layer} head {r.head}" for r in constant[:8])
        warnings.warn(
            f"the logits of {names} never vary within a row: any slope serves. Check that the right tensor "
            "was collected and that its scale is not too coarse.",
            CalibrationWarning,
            stacklevel=3,
        )
