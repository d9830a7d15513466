"""A program for people: its operators, shapes, scales, bytes and operations."""

from __future__ import annotations

from typing import Any

from hccs._html import first_rows, framed, table, tag
from hccs.program.program import Program

HEADER = ("", "operator", "reads", "writes", "shape", "step", "bytes", "products per token")


def describe(program: Program) -> str:
    """One line an operator, then the sums."""
    rows = [HEADER, *_rows(program)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([_title(program), *lines, _sums(program), *_texts(program)])


def as_html(program: Program) -> str:
    """The same for notebooks; of many operators the first."""
    rows, more = first_rows(_rows(program))
    return framed(
        _title(program),
        table(HEADER, rows),
        more,
        *(tag("p", line) for line in (_sums(program), *_texts(program))),
    )


def as_dict(program: Program) -> dict[str, Any]:
    """The same for machines: operators, labels and sums."""
    return {
        "labels": list(program.labels),
        "text": None if program.text is None else program.text.as_json(),
        "tokenizer_bytes": len(program.tokenizer.encode()),
        "longest": program.longest,
        "operators": [
            {
                "operator": type(step).__name__,
                "reads": list(step.inputs),
                "writes": step.output,
                "shape": step.shape,
                "step": program.scales.get(step.output),
                "bytes": step.constant_bytes,
                "products_per_token": step.products,
            }
            for step in program.operators
        ],
        "bytes": sum(step.constant_bytes for step in program.operators),
        "products_per_token": sum(step.products for step in program.operators),
    }


def _rows(program: Program) -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            row["operator"],
            ", ".join(row["reads"]) or "ids",
            row["writes"],
            row["shape"],
            "" if row["step"] is None else f"{row['step']:.3g}",
            f"{row['bytes']:,}",
            f"{row['products_per_token']:,}" if row["products_per_token"] else "",
        )
        for number, row in enumerate(as_dict(program)["operators"])
    ]


def _title(program: Program) -> str:
    return (
        f"integer model: {len(program.operators)} operators, up to {program.longest} tokens, "
        f"{_answers(program)}"
    )


def _answers(program: Program) -> str:
    """All labels, or the first and the last of a vocabulary; of an encoder how long its vectors are."""
    labels = program.labels
    if not labels:
        return f"vectors of {program.values[program.operators[-1].output].width} channels"
    if len(labels) <= 10:
        return f"labels {', '.join(labels)}"
    return f"labels {', '.join(labels[:3])} ... {labels[-1]}, {len(labels)} in all"


def _sums(program: Program) -> str:
    sums = as_dict(program)
    mebibytes, millions = sums["bytes"] / 2**20, sums["products_per_token"] / 1e6
    return f"{mebibytes:.2f} MiB of constants, {millions:.2f} M products per token beside attention"


def _texts(program: Program) -> list[str]:
    """What the file says about texts."""
    if program.text is None:
        return []
    return [f"texts: {program.text}{'' if program.tokenizer else ', without a tokenizer'}"]
