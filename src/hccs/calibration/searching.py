"""The search: for every head, layer or all heads together, the parameters of least mean KL (eq. 10)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._progress import track
from hccs.calibration import _native, two_lines
from hccs.calibration.statistics import GroupSummary, HeadStatistics, with_means
from hccs.errors import DtypeError, ParameterError, require_one_of
from hccs.numbers.heads import NAMES, ONE_LINE, HeadParams
from hccs.numbers.modes import MAX_DISTANCE, MAX_SLOPE, Mode
from hccs.numbers.region import Region
from hccs.numbers.table import ParamTable
from hccs.ops.arguments import cores, require_threads

GRANULARITIES = ("head", "layer", "global")

TIE = _native.TIE
"""Objectives closer than this are equal, and the smallest D, then S, then B is preferred."""


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
    """The second best parameters of the head (of its group), and the group's KL with them."""


@dataclass(frozen=True)
class Calibration:
    """The calibrated table and a record of every head."""

    table: ParamTable
    heads: tuple[HeadRecord, ...]

    @property
    def kl(self) -> float:
        return float(np.mean([record.kl for record in self.heads]))


Found = tuple[HeadParams, HeadParams, float]
"""The best parameters of a group of heads, the second best, and the KL of those."""

Finder = Callable[[list[int], GroupSummary, _native.Interruption], Found]
"""Searches one group of heads, given the means of its rows."""


def calibrate(
    stats: HeadStatistics,
    n: int | None = None,
    granularity: str = "head",
    mode: Mode | str = "i16_div",
    *,
    lines: int = 1,
    scores: str = "int16",
    sum_bits: int | None = None,
    objective: str = "kl_i16",
    provenance: Mapping[str, object] | None = None,
    threads: int | None = None,
) -> ParamTable:
    """The exact optimum of every head's (B, S, D) for rows of up to `n` (default: the statistics' own n).

    `granularity` is "head", "layer" or "global": how many heads share a triple. All options are those of
    `hccs.calibration.search`, which returns the record of every head beside the table: `lines=2` finds two
    lines, which come far closer to softmax.

    >>> from hccs.calibration import HeadStatistics
    >>> stats = HeadStatistics(shape=(1, 1), n=64, scale=0.1)
    >>> stats.update(np.arange(-64, 64, 2, dtype=np.int8).reshape(1, 1, 1, 64))
    >>> calibrate(stats).head(0, 0)
    HeadParams(B=439, S=15, D=29)
    """
    return search(
        stats,
        n,
        granularity,
        mode,
        lines=lines,
        scores=scores,
        sum_bits=sum_bits,
        objective=objective,
        provenance=provenance,
        threads=threads,
    ).table


def search(
    stats: HeadStatistics,
    n: int | None = None,
    granularity: str = "head",
    mode: Mode | str = "i16_div",
    *,
    lines: int = 1,
    scores: str = "int16",
    sum_bits: int | None = None,
    objective: str = "kl_i16",
    provenance: Mapping[str, object] | None = None,
    threads: int | None = None,
) -> Calibration:
    """The admissible parameters of least mean KL for every head, and how well each head is served.

    `n` is the longest row to serve (default: the statistics' own). `granularity`: a triple per "head",
    "layer" or "global". `mode` is the deployed mode that the table records; the objective is computed in
    int16 space whatever the mode, as the paper advises. One line is the global minimum over the region.

    `lines=2` finds a second line, with int16 `scores` or with "uint8" ones (f = 2), and sums of 24 bits;
    `sum_bits` is for one line with wide sums, or two lines that keep the paper's 15 bits. Both are fitted to
    a sample of the rows (docs/calibration.md). With `objective="output"` they minimise the mean squared error
    of outputs instead of KL: better where rows are long, and every far key shares the lowest score.
    """
    form = two_lines.form_of(lines, scores, sum_bits, objective)
    region = _serving(stats, n, form.sum_bits)

    def one_line(heads: list[int], means: GroupSummary, interruption: _native.Interruption) -> Found:
        best, second, _, _ = with_means(_native.search, stats, heads, means, region.n, interruption)
        return HeadParams(*best[:3]), HeadParams(*second[:3]), second[3]

    def sampled(heads: list[int], means: GroupSummary, interruption: _native.Interruption) -> Found:
        return two_lines.search(stats, heads, means, form, region, interruption)

    mode = Mode(mode)
    if threads is not None:
        require_threads(threads)
    groups = _groups(stats, granularity)
    found = _search_all(stats, groups, sampled if form.is_sampled else one_line, threads or cores())
    records = [_record(stats, head, found[at]) for at, group in enumerate(groups) for head in group]
    parameters = NAMES if form.lines > 1 else NAMES[:ONE_LINE]
    theta = {
        name: np.array([getattr(r.params, name) for r in records]).reshape(stats.shape) for name in parameters
    }
    table = ParamTable(
        **theta,
        scale=stats.scale,
        n=region.n,
        sum_bits=region.sum_bits,
        mode=mode,
        provenance=provenance,
        qkv_scale=stats.qkv_scale,
        layers=stats.layers,
    )
    _warn_of_constant_heads(stats, records)
    return Calibration(table, tuple(records))


def fidelity(stats: HeadStatistics, table: ParamTable) -> NDArray[np.float64]:
    """KL, renormalised KL and mass deficit of every head of `table` on other data: [layers, heads, 3]."""
    _require_match(stats, table)
    values = [_evaluate(stats, h, table.head(*divmod(h, stats.shape[1]))) for h in range(stats.scale.size)]
    return np.array(values).reshape(*stats.shape, 3)


def objectives(stats: HeadStatistics, heads: Sequence[int], triples: Any) -> NDArray[np.float64]:
    """The objective of each (B, S, D) in `triples` [count, 3] for a group of heads, from the statistics."""
    array = np.ascontiguousarray(triples, np.int32)
    region = Region(stats.n)
    B, S, D = array.astype(np.int64).T
    bounded = (D >= 1) & (D <= MAX_DISTANCE) & (S >= 0) & (S <= MAX_SLOPE)
    admissible = bounded & (S * D + region.floor <= B) & (region.max_base >= B)
    for triple in array[~admissible].tolist():
        region.require(*triple)
    kl: NDArray[np.float64] = with_means(_native.objectives, stats, heads, stats.summary(heads), array)
    return kl


def _serving(stats: Any, n: int | None, sum_bits: int) -> Region:
    """The region to calibrate in: for at least the n of the statistics, and with some slope left."""
    if not isinstance(stats, HeadStatistics):
        raise DtypeError(
            "a HeadStatistics of logits",
            type(stats).__name__,
            "Gather them with hccs.calibration.HeadStatistics(shape, n, scale).update(logits), "
            "or calibrate files with hccs calibrate.",
        )
    n = stats.n if n is None else Region(n).n
    if n < stats.n:
        raise ParameterError(
            f"n >= {stats.n}, the longest row of the statistics", str(n), "Collect statistics with this n."
        )
    region = Region(n, sum_bits)
    if region.max_base < region.floor:
        region.require(1, 0, 1)
    if region.max_slope(1) < 1:
        warnings.warn(
            f"n = {n} leaves no admissible slope (B <= {region.max_base}): every score is equal, attention "
            "uniform. Split the rows, or keep softmax for this model.",
            CalibrationWarning,
            stacklevel=3,
        )
    return region


def _require_match(stats: HeadStatistics, table: ParamTable) -> None:
    if table.shape != stats.shape or table.n < stats.n:
        raise ParameterError(
            f"a table of shape {stats.shape} for n >= {stats.n}",
            f"shape {table.shape}, n = {table.n}",
            "Evaluate a table on statistics of the model it was made for.",
        )


def _groups(stats: HeadStatistics, granularity: str) -> list[list[int]]:
    require_one_of("granularity", granularity, GRANULARITIES, "Take one of them.")
    layers, heads = stats.shape
    parts = {"head": layers * heads, "layer": layers, "global": 1}[granularity]
    return [part.tolist() for part in np.split(np.arange(layers * heads), parts)]


def _search_all(stats: HeadStatistics, groups: list[list[int]], find: Finder, threads: int) -> list[Found]:
    stats._native.count_pending()  # once, instead of once for every group and D
    means = [stats.summary(group) for group in groups]
    interruption = _native.Interruption()
    with ThreadPoolExecutor(min(threads, len(groups))) as pool:
        jobs: list[Future[Found]] = []
        try:
            for group, of_group in zip(groups, means, strict=True):
                jobs.append(_submit(pool, find, group, of_group, interruption))
            for done in track(as_completed(jobs), total=len(jobs), description="searching"):
                done.result()
        except BaseException:  # Ctrl-C among them: leaving the pool waits for what runs
            interruption.request()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [job.result() for job in jobs]


def _submit(pool: ThreadPoolExecutor, find: Finder, *arguments: Any) -> Future[Found]:
    """The result to come; where no thread can be had, it is found here and now."""
    try:
        return pool.submit(find, *arguments)
    except RuntimeError:
        done: Future[Found] = Future()
        done.set_result(find(*arguments))
        return done


def _record(stats: HeadStatistics, h: int, found: Found) -> HeadRecord:
    best, runner_up, runner_up_kl = found
    kl, renormalised, deficit = _evaluate(stats, h, best)
    layer, head = divmod(h, stats.shape[1])
    return HeadRecord(
        layer=layer,
        head=head,
        params=best,
        scale=float(stats.scale[layer, head]),
        rows=int(stats.rows[layer, head]),
        kl=kl,
        kl_renormalised=renormalised,
        mass_deficit=deficit,
        entropy=-stats.summary([h]).negative_entropy,
        runner_up=runner_up,
        runner_up_kl=runner_up_kl,
    )


def _evaluate(stats: HeadStatistics, head: int, params: HeadParams) -> tuple[float, float, float]:
    if params.wide:
        return two_lines.deployed(stats, [head], params, Mode.I16_DIV)
    means, triple = stats.summary([head]), params.packed.tolist()
    found: tuple[float, float, float] = with_means(_native.evaluate, stats, [head], means, *triple)
    return found


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
