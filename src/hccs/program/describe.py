"""A program for people: its operators, shapes, scales, bytes and operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs._html.elements import table, tag
from hccs._html.notebook import TABLE, first_rows, framed
from hccs.numbers.heads import HeadParams
from hccs.numbers.multipliers import LinearParams
from hccs.program import operators as op

HEADER = ("", "operator", "reads", "writes", "shape", "step", "bytes", "products per token")


def describe(program: op.Program) -> str:
    """One line an operator, then the sums."""
    rows = [HEADER, *_rows(program)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([_title(program), *lines, _sums(program)])


def as_html(program: op.Program) -> str:
    """The same for notebooks; of many operators the first."""
    rows, more = first_rows(_rows(program))
    return framed(_title(program), table(HEADER, rows, style=TABLE), more, tag("p", _sums(program)))


def as_dict(program: op.Program) -> dict[str, Any]:
    """The same for machines: operators, labels and sums."""
    return {
        "labels": list(program.labels),
        "longest": program.longest,
        "operators": [
            {
                "operator": type(step).__name__,
                "reads": list(step.inputs),
                "writes": step.output,
                "shape": shape_of(step),
                "step": program.scales.get(step.output),
                "bytes": bytes_of(step),
                "products_per_token": products_of(step),
            }
            for step in program.operators
        ],
        "bytes": sum(map(bytes_of, program.operators)),
        "products_per_token": sum(map(products_of, program.operators)),
    }


def _title(program: op.Program) -> str:
    return (
        f"integer model: {len(program.operators)} operators, up to {program.longest} tokens, "
        f"labels {_few(program.labels)}"
    )


def _rows(program: op.Program) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, step in enumerate(program.operators):
        scale = program.scales.get(step.output)
        rows.append(
            (
                str(number),
                type(step).__name__,
                ", ".join(step.inputs) or "ids",
                step.output,
                shape_of(step),
                "" if scale is None else f"{scale:.3g}",
                f"{bytes_of(step):,}",
                f"{products_of(step):,}" if products_of(step) else "",
            )
        )
    return rows


def _sums(program: op.Program) -> str:
    total, products = (sum(map(count, program.operators)) for count in (bytes_of, products_of))
    return f"{total / 2**20:.2f} MiB of constants, {products / 1e6:.2f} M products per token beside attention"


def _few(labels: tuple[str, ...]) -> str:
    """All of them, or the first and the last of a vocabulary."""
    if len(labels) <= 10:
        return ", ".join(labels)
    return f"{', '.join(labels[:3])} ... {labels[-1]}, {len(labels)} in all"


def shape_of(step: op.Operator) -> str:
    """What an operator's constants say about its shape."""
    match step:
        case op.Embed(params=p):
            counts = f"{len(p.words)} words, {len(p.positions)} positions, {len(p.types)} types"
            return f"{counts} x {p.words.shape[1]}"
        case op.EmbedPatches(params=e):
            return f"{e.tokens} rows x {e.positions.shape[1]}, patches of {e.patch} x {e.patch}"
        case op.Linear(params=l):
            width = {127: "int8", 32767: "int16"}[l.limit] if l.multiplier is not None else "int32"
            return f"{l.weight.shape[1]} -> {l.weight.shape[0]} {width}"
        case op.LayerNorm(params=n):
            return f"{n.channels} int16"
        case op.Attention():
            return f"{step.heads} heads{_form(step.theta)}" + (", causal" if step.causal else "")
        case op.Narrow(bits=bits):
            return f">> {bits}"
    return ""


def _form(theta: HeadParams) -> str:
    """What is not the paper's about scores."""
    if not theta.wide:
        return ""
    lines = "two lines" if np.any(theta.S2) else "wide sums"
    return f", {lines}, {'uint8' if np.all(theta.f) else 'int16'} scores"


def bytes_of(step: op.Operator) -> int:
    """Of an operator's constants."""
    match step:
        case op.Embed(params=p):
            return p.words.nbytes + p.positions.nbytes + p.types.nbytes
        case op.EmbedPatches(params=e):
            return _bytes_of_linear(e.projection) + e.special.nbytes + e.positions.nbytes
        case op.Linear(params=l):
            return _bytes_of_linear(l)
        case op.LayerNorm(params=n):
            return n.gain.nbytes + n.bias.nbytes
        case op.Attention(theta=theta, requant=requant):
            return theta.packed.nbytes + requant.packed.nbytes
        case op.Table(entries=entries):
            return entries.nbytes
    return 0


def _bytes_of_linear(params: LinearParams) -> int:
    return (
        params.weight.nbytes
        + params.bias.nbytes
        + (0 if params.multiplier is None else params.multiplier.nbytes)
    )


def products_of(step: op.Operator) -> int:
    """Multiplications per token of the linear layers."""
    match step:
        case op.Linear(params=l):
            return int(np.prod(l.weight.shape))
        case op.EmbedPatches(params=e):
            return int(np.prod(e.projection.weight.shape))
    return 0
