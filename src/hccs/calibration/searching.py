"""The search: for every head, layer or all heads together, the parameters of least mean KL (eq. 10)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._progress import track
from hccs.backends.cpu.instruction_sets import cores
from hccs.calibration import _native, two_lines
from hccs.calibration.grid import coarse_grid, deployed_objective
from hccs.calibration.statistics import GroupSummary, HeadStatistics
from hccs.errors import DtypeError, ParameterError
from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.modes import MAX_DISTANCE, MAX_SLOPE, Mode
from hccs.numbers.region import NARROW, Region
from hccs.numbers.table import ParamTable
from hccs.ops.arguments import require_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRANULARITIES = ("head", "layer", "global")
SEARCHES = ("exact", "grid")
OBJECTIVES = ("kl_i16", "kl_mode", "output")

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
        """Mean of the heads' KL."""
        return float(np.mean([record.kl for record in self.heads]))


@dataclass(frozen=True)
class _Job:
    stats: HeadStatistics
    region: Region
    mode: Mode
    exact: bool
    in_mode: bool
    output: bool
    form: two_lines.Form | None
    interruption: _native.Interruption


@dataclass(frozen=True)
class _Found:
    heads: list[int]
    best: HeadParams
    runner_up: HeadParams
    runner_up_kl: float


def calibrate(
    stats: HeadStatistics, n: int | None = None, granularity: str = "head", **options: Any
) -> ParamTable:
    """The exact optimum of every head's (B, S, D) for rows of up to `n` (default: the statistics' own n).

    `granularity` is "head", "layer" or "global": how many heads share a triple. The options are those of
    `hccs.calibration.search`, which returns the record of every head beside the table: `lines=2` finds two
    lines, which come far closer to softmax.

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
    lines: int = 1,
    scores: str = "int16",
    sum_bits: int | None = None,
    search: str = "exact",
    objective: str = "kl_i16",
    provenance: Mapping[str, object] | None = None,
    threads: int | None = None,
) -> Calibration:
    """The admissible parameters of least mean KL for every head, and how well each head is served.

    `n` is the longest row to serve (default: the statistics' own). `granularity`: a triple per "head",
    "layer" or "global". `mode` is the deployed mode that the table records. `search="exact"` finds the global
    minimum over the whole region; `"grid"` is the paper's coarse scan. The objective is computed in int16
    space whatever the mode, as the paper advises; `"kl_mode"` takes the deployed mode (coarse scan only).

    `lines=2` finds a second line, with int16 `scores` or with "uint8" ones (f = 2), and sums of 24 bits;
    `sum_bits` is for one line with wide sums, or two lines that keep the paper's 15 bits. Both are fitted to
    a sample of the rows (docs/calibration.md). With `objective="output"` they minimise the mean squared error
    of outputs instead of KL: better where rows are long, and every far key shares the lowest score.
    """
    if not isinstance(stats, HeadStatistics):
        raise DtypeError(
            "a HeadStatistics of logits",
            type(stats).__name__,
            "Gather them with hccs.calibration.HeadStatistics(shape, n, scale).update(logits), "
            "or calibrate files with hccs calibrate.",
        )
    if threads is not None:
        require_threads(threads)
    mode = Mode(mode)
    form = two_lines.form_of(lines, scores, sum_bits)
    job = _Job(
        stats,
        _serving(stats, n, NARROW if form is None else form.sum_bits),
        mode,
        _one_of("search", search, SEARCHES) == "exact",
        _one_of("objective", objective, OBJECTIVES) == "kl_mode",
        objective == "output",
        form,
        _native.Interruption(),
    )
    if form is not None and not (job.exact and not job.in_mode):
        raise ParameterError(
            "the default search and objective for two lines and wide sums",
            f"search={search!r}, objective={objective!r}",
            "The coarse scan and KL in the deployed mode are the paper's, of one line.",
        )
    if form is None and job.output:
        raise ParameterError(
            "lines=2 or sum_bits=24 with objective='output'",
            f"lines={lines}, sum_bits={sum_bits}",
            "Errors of outputs are computed from the sampled rows, as wide forms are.",
        )
    if job.exact and job.in_mode:
        raise ParameterError(
            "search='grid' with objective='kl_mode'",
            "search='exact'",
            "Only the int16 objective has sufficient statistics.",
        )
    groups = _groups(stats, granularity)
    found = list(_search_all(job, groups, threads or cores()))
    records = sorted((r for f in found for r in _records(stats, f)), key=lambda r: (r.layer, r.head))
    named = NAMES if form is not None and form.lines > 1 else NAMES[:3]
    theta = {
        name: np.array([getattr(r.params, name) for r in records]).reshape(stats.shape) for name in named
    }
    table = ParamTable(
        **theta,
        scale=stats.scale,
        n=job.region.n,
        sum_bits=job.region.sum_bits,
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
    values = [_evaluate(stats, [h], table.head(*divmod(h, stats.shape[1]))) for h in range(stats.scale.size)]
    return np.array(values).reshape(*stats.shape, 3)


def deployed_kl(stats: HeadStatistics, table: ParamTable) -> NDArray[np.float64]:
    """Renormalised KL of every head in the table's own mode, [layers, heads], from rows still kept."""
    _require_match(stats, table)
    thetas = [table.head(*divmod(h, stats.shape[1])) for h in range(stats.scale.size)]
    values = [
        two_lines.deployed(stats, [h], theta, table.mode)[1]
        if theta.wide
        else deployed_objective(stats, [h], theta.packed[None], table.mode)[0]
        for h, theta in enumerate(thetas)
    ]
    return np.array(values).reshape(stats.shape)


def objectives(stats: HeadStatistics, heads: Sequence[int], triples: Any) -> NDArray[np.float64]:
    """The objective of each (B, S, D) in `triples` [count, 3] for a group of heads, from the statistics."""
    array = np.ascontiguousarray(triples, np.int32)
    region = Region(stats.n)
    for B, S, D in array[~_admissible(array, region)].tolist():
        region.require(B, S, D)
    kl: NDArray[np.float64] = _with_means(_native.objectives, stats, list(heads), stats.summary(heads), array)
    return kl


def _admissible(triples: NDArray[np.int32], region: Region) -> NDArray[np.bool_]:
    """Which (B, S, D) of many lie in the region: `region.violation` of all at once."""
    B, S, D = triples.astype(np.int64).T
    bounded = (D >= 1) & (D <= MAX_DISTANCE) & (S >= 0) & (S <= MAX_SLOPE)
    fits: NDArray[np.bool_] = bounded & (S * D + region.floor <= B) & (region.max_base >= B)
    return fits


def _require_match(stats: HeadStatistics, table: ParamTable) -> None:
    if table.shape != stats.shape or table.n < stats.n:
        raise ParameterError(
            f"a table of shape {stats.shape} for n >= {stats.n}",
            f"shape {table.shape}, n = {table.n}",
            "Evaluate a table on statistics of the model it was made for.",
        )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ParameterError(
            f"{name} to be one of {', '.join(choices)}", repr(value), "See hccs.calibration.search."
        )
    return value


def _serving(stats: HeadStatistics, n: int | None, sum_bits: int) -> Region:
    """The region to calibrate in: for at least the n of the statistics, and with some slope left."""
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


def _groups(stats: HeadStatistics, granularity: str) -> list[list[int]]:
    layers, heads = stats.shape
    _one_of("granularity", granularity, GRANULARITIES)
    parts = {"head": layers * heads, "layer": layers, "global": 1}[granularity]
    return [part.tolist() for part in np.split(np.arange(layers * heads), parts)]


def _search_all(job: _Job, groups: list[list[int]], threads: int) -> Iterator[_Found]:
    job.stats._native.count_pending()  # once, and not again for every group and D
    summaries = [job.stats.summary(group) for group in groups]
    one = _sampled if job.form is not None else _exact if job.exact else _coarse
    with ThreadPoolExecutor(min(threads, len(groups))) as pool:
        jobs: list[Future[_Found]] = []
        try:
            for group, means in zip(groups, summaries, strict=True):
                jobs.append(_submit(pool, one, job, group, means))
            for done in track(as_completed(jobs), total=len(jobs), description="searching"):
                yield done.result()
        except BaseException:  # Ctrl-C among them: leaving the pool waits for what runs
            job.interruption.request()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _submit(
    pool: ThreadPoolExecutor,
    search_one: Callable[[_Job, list[int], GroupSummary], _Found],
    job: _Job,
    group: list[int],
    means: GroupSummary,
) -> Future[_Found]:
    """The result to come; where no thread can be had, it is found here and now."""
    try:
        return pool.submit(search_one, job, group, means)
    except RuntimeError:
        done: Future[_Found] = Future()
        done.set_result(search_one(job, group, means))
        return done


def _exact(job: _Job, group: list[int], means: GroupSummary) -> _Found:
    best, runner_up, _, _ = _with_means(
        _native.search, job.stats, group, means, job.region.n, job.interruption
    )
    return _Found(group, HeadParams(*best[:3]), HeadParams(*runner_up[:3]), runner_up[3])


def _sampled(job: _Job, group: list[int], means: GroupSummary) -> _Found:
    assert job.form is not None
    best, runner_up, kl = two_lines.search(
        job.stats, group, means, job.form, job.region, job.output, job.interruption
    )
    return _Found(group, best, runner_up, kl)


def _coarse(job: _Job, group: list[int], means: GroupSummary) -> _Found:
    triples = coarse_grid(job.region.n)
    if job.in_mode:
        kl = deployed_objective(job.stats, group, triples, job.mode)
    else:
        kl = _with_means(_native.objectives, job.stats, group, means, triples)
    best = int(np.argmax(kl <= kl.min() + TIE))  # the first: the grid is in the order of preference
    rest = np.where(np.arange(len(kl)) == best, np.inf, kl)
    second = int(np.argmax(rest <= rest.min() + TIE))
    first, other = (HeadParams.from_packed(triples[index]) for index in (best, second))
    return _Found(group, first, other, float(kl[second]))


def _records(stats: HeadStatistics, found: _Found) -> Iterator[HeadRecord]:
    for h in found.heads:
        kl, renormalised, deficit = _evaluate(stats, [h], found.best)
        layer, head = divmod(h, stats.shape[1])
        yield HeadRecord(
            layer=layer,
            head=head,
            params=found.best,
            scale=float(stats.scale[layer, head]),
            rows=int(stats.rows[layer, head]),
            kl=kl,
            kl_renormalised=renormalised,
            mass_deficit=deficit,
            entropy=-stats.summary([h]).negative_entropy,
            runner_up=found.runner_up,
            runner_up_kl=found.runner_up_kl,
        )


def _evaluate(stats: HeadStatistics, heads: list[int], params: HeadParams) -> tuple[float, float, float]:
    if params.wide:
        return two_lines.deployed(stats, heads, params, Mode.I16_DIV)
    found: tuple[float, float, float] = _with_means(
        _native.evaluate, stats, heads, stats.summary(heads), *params.packed.tolist()
    )
    return found


def _with_means(
    call: Callable[..., Any], stats: HeadStatistics, heads: list[int], means: GroupSummary, *arguments: Any
) -> Any:
    """What the native code finds for a group of heads; it reads rows, which must be those of the means."""
    with two_lines.unchanged_rows():
        return call(stats._native, heads, means.mass, means.negative_entropy, means.version, *arguments)


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
