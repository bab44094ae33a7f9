#!/usr/bin/env python3
"""Writes src/io/gguf_grids.cc: the points that codes of GGUF's types IQ1, IQ2 and IQ3 stand for.

    python tools/make_gguf_grids.py src/io/gguf_grids.cc      # needs: pip install gguf==0.19.0

The points are part of the format (ggml chose them; the MIT licence of its project). The package holds them as numbers.
"""
import sys

import gguf.quants
import numpy

# name, class of the package, bits of a coordinate in our words
GRIDS = [("kGgufIq1", "IQ1_S", 2), ("kGgufIq2Xxs", "IQ2_XXS", 2), ("kGgufIq2Xs", "IQ2_XS", 2), ("kGgufIq2S", "IQ2_S", 2),
         ("kGgufIq3Xxs", "IQ3_XXS", 3), ("kGgufIq3S", "IQ3_S", 3)]
PER_LINE = 14


def lines(name, kind, bits):
    quant = getattr(gguf.quants, kind)
    quant.init_grid()
    points = quant.grid.reshape(-1, quant.grid_shape[1]).astype(int)
    levels = sorted(set(points.flatten().tolist()))
    places = numpy.searchsorted(levels, points)
    words = [sum(int(place) << bits * i for i, place in enumerate(point)) for point in places]
    size, width = points.shape
    yield f"constinit const GgufGrid<{size}, {width}> {name} = points<{size}, {width}>("
    yield f"    {{{', '.join(map(str, levels))}}}, {bits},"
    yield "    {"
    for begin in range(0, size, PER_LINE):
        yield "        " + " ".join(f"{word}," for word in words[begin:begin + PER_LINE])
    yield "    });"
    yield ""


def main(path):
    out = ["// Written by tools/make_gguf_grids.py from the Python package gguf 0.19.0 (ggml, MIT licence,",
           "// copyright (c) 2023-2026 The ggml authors).",
           '#include "io/gguf_grids.h"', "", "namespace tessera::io {", "namespace {", "",
           "/// Each word names, for each coordinate from the lowest bits on, one of the levels.",
           "template <std::size_t kPoints, std::size_t kWidth, std::size_t kLevels>",
           "constexpr GgufGrid<kPoints, kWidth> points(const std::int8_t (&levels)[kLevels], int bits,",
           "                                           const std::uint16_t (&words)[kPoints]) {",
           "  GgufGrid<kPoints, kWidth> out{};",
           "  for (std::size_t i = 0; i < kPoints; ++i)",
           "    for (std::size_t j = 0; j < kWidth; ++j)",
           "      out[i][j] = levels[words[i] >> (static_cast<std::size_t>(bits) * j) & ((1U << bits) - 1)];",
           "  return out;", "}", "", "}  // namespace", "", "// clang-format off"]
    for grid in GRIDS:
        out += lines(*grid)
    out += ["// clang-format on", "", "}  // namespace tessera::io", ""]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


main(sys.argv[1])
