"""A drawing of a layer's tiles and streams, as SVG."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

from hccs._files.atomic import replace
from hccs_aie.layer import LayerCycles, MappedTile

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _TOP = 116, 46, 62, 12, 70
_COLOURS = {"attention": "#f2cf9b", "norm 1": "#c7dcc0", "norm 2": "#c7dcc0"}
_COLUMNS = (
    ("q", "k", "v"),
    ("attention",),
    ("projection",),
    ("norm 1",),
    ("wide",),
    ("summed",),
    ("norm 2",),
)
_TITLES = {"q": "x W_q", "k": "x W_k", "v": "x W_v", "attention": "head", "projection": "W_o"}
_TITLES |= {"wide": "W_1, table", "summed": "W_2", "norm 1": "+ LayerNorm", "norm 2": "+ LayerNorm"}


def _box(x: float, y: float, tile: MappedTile, number: int, slowest: int) -> str:
    share = tile.cycles / slowest
    fill = _COLOURS.get(tile.stage, "#bcd0ea")
    edge = ' stroke-width="2.5"' if tile.cycles == slowest else ""
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="{fill}" '
        f'stroke="#333"{edge}/>'
        f'<text x="{x + 8}" y="{y + 18}" font-weight="bold">{_TITLES[tile.stage]} {number}</text>'
        f'<text x="{x + 8}" y="{y + 34}">{tile.cycles} cycles, {tile.bound}</text>'
        f'<rect x="{x}" y="{y + _HEIGHT - 4}" width="{_WIDTH * share:.1f}" height="4" fill="#333"/>'
    )


def _stream(x: float, middle: float, label: str) -> str:
    end = x + _GAP_X - 8
    return (
        f'<path d="M{x + 4} {middle} H{end}" stroke="#333" fill="none" marker-end="url(#head)"/>'
        f'<text x="{x + _GAP_X / 2 - 2}" y="{middle - 6}" text-anchor="middle" font-size="10">{label}</text>'
    )


def svg_picture(found: LayerCycles, path: str | os.PathLike[str], title: str) -> Path:
    """Draw the tiles column by column, with what flows between them for one sequence."""
    by_stage = {name: list(tiles) for name, tiles in groupby(found.tiles, key=lambda tile: tile.stage)}
    columns = [[(tile, i) for name in names for i, tile in enumerate(by_stage[name])] for names in _COLUMNS]
    tallest = max(map(len, columns))
    height = _TOP + tallest * (_HEIGHT + _GAP_Y) + 70
    middle = _TOP + tallest * (_HEIGHT + _GAP_Y) / 2
    parts: list[str] = []
    for at, tiles in enumerate(columns):
        x = 66 + at * (_WIDTH + _GAP_X)
        y = middle - len(tiles) * (_HEIGHT + _GAP_Y) / 2
        for tile, number in tiles:
            parts.append(_box(x, y, tile, number, found.slowest.cycles))
            y += _HEIGHT + _GAP_Y
        sent = sum(out[0] for out in (tile.bytes_out for tile, _ in tiles))
        parts.append(_stream(x + _WIDTH, middle, f"{sent / 1024:.0f} KiB"))
    width = 66 + len(columns) * (_WIDTH + _GAP_X) + 20
    stream = found.n * by_stage["norm 1"][0].bytes_in[0] // 32 / 1024
    # The int16 stream goes round the layers in between.
    for first, last in ((0, 3), (3, 6)):
        start = 40 if first == 0 else 66 + first * (_WIDTH + _GAP_X) + _WIDTH + 14
        end = 66 + last * (_WIDTH + _GAP_X) + _WIDTH / 2
        bottom = height - 62
        corner = middle + len(by_stage["norm 1"]) * (_HEIGHT + _GAP_Y) / 2 - _GAP_Y
        parts.append(
            f'<path d="M{start} {middle} V{bottom} H{end} V{corner + 6}" stroke="#777" fill="none" '
            f'stroke-dasharray="5 3" marker-end="url(#head)"/>'
            f'<text x="{(start + end) / 2}" y="{bottom - 5}" text-anchor="middle" font-size="10">'
            f"int16 stream, {stream:.0f} KiB</text>"
        )
    parts.append(_stream(4, middle, "x"))
    products = f"{found.products:,}".replace(",", " ")
    legend = (
        f"{len(found.tiles)} tiles, {found.n} rows a sequence, {products} products; a sequence every "
        f"{found.slowest.cycles} modelled cycles; {found.share_of_array:.0%} of the matrix units' peak, "
        f"{found.share_of_work:.0%} of busy cycles. Bars: busy share; bold: the slowest."
    )
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        '<path d="M0 0 L7 3 L0 6 z" fill="#333"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f'<text x="12" y="24" font-size="16" font-weight="bold">{title}</text>'
        f'<text x="12" y="44">{legend}</text>{"".join(parts)}</svg>\n'
    )
    target = Path(path)
    replace(target, text.encode())
    return target
