#!/usr/bin/env python3
# /// script
# requires-python = ">=3.9"
# dependencies = ["matplotlib>=3.7"]
# ///
"""Draws docs/figures/placement.svg, and prints the table of docs/performance.md.

    python3 docs/figures/placement.py [CSV [SVG]]

The values come from tests/lab/placement. A documentation tool: nothing else needs Python, and
`uv run` or `pipx run` fetch what it needs by themselves.
"""

import csv
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent

# The round trip that one mile costs, as the draft of the extension has it (RTR section 2).
ROUND_TRIP_US_PER_MILE = 16

PLACEMENTS = {
    "send": ("placed by the Send", "#0072b2", "o"),
    "rdma": ("RDMA Read or Write", "#d55e00", "s"),
    "inline": ("in the message, copied", "#666666", "^"),
}
STYLES = ["-", "--", ":"]
FABRICS = {
    "shm": "shared memory, delayed by the fabric",
    "rxe": "soft-RoCE between two guests, delayed by the link",
}


def miles(delay_us):
    return delay_us * 2 / ROUND_TRIP_US_PER_MILE


def delay_us(distance):
    return distance * ROUND_TRIP_US_PER_MILE / 2


def read(path):
    with open(path, newline="", encoding="utf-8") as lines:
        return [
            {**row, "delay_us": int(row["delay_us"]), "p50_us": float(row["p50_us"])}
            for row in csv.DictReader(lines)
        ]


def values(rows, key):
    """The values of a column, in the order in which they first come."""
    return list(dict.fromkeys(row[key] for row in rows))


def pick(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def draw(rows, path):
    plt.rcParams.update({"svg.hashsalt": "placement", "svg.fonttype": "none", "font.size": 9})
    fabrics, ops = values(rows, "fabric"), values(rows, "op")
    size = (4.6 * len(ops), 3.5 * len(fabrics) + 0.5)
    figure, axes = plt.subplots(len(fabrics), len(ops), squeeze=False, figsize=size, layout="constrained")
    for fabric, line in zip(fabrics, axes):
        for op, axis in zip(ops, line):
            here = pick(rows, fabric=fabric, op=op)
            for size, style in zip(values(here, "size"), STYLES):
                for placement in values(here, "placement"):
                    name, colour, marker = PLACEMENTS[placement]
                    points = pick(here, size=size, placement=placement)
                    points.sort(key=lambda row: row["delay_us"])
                    axis.plot(
                        [row["delay_us"] for row in points],
                        [row["p50_us"] / 1000 for row in points],
                        style, color=colour, marker=marker, markersize=4, label=f"{size}, {name}",
                    )
            axis.set_title(f"{op}, {FABRICS.get(fabric, fabric)}", fontsize=9)
            axis.set_xlabel("one-way delay of the link, us")
            axis.set_ylabel("round-trip time of a call (p50), ms")
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
            distance = axis.secondary_xaxis("top", functions=(miles, delay_us))
            distance.set_xlabel(f"miles, at {ROUND_TRIP_US_PER_MILE} us of round trip each", fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def time(us):
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} us"


def table(rows):
    others = [placement for placement in values(rows, "placement") if placement != "rdma"]
    for other in others:
        print(f"| Fabric | One-way delay | Call | {PLACEMENTS[other][0]} | by RDMA | ratio |")
        print("|---|---|---|---|---|---|")
        for first in pick(rows, placement=other):
            same = {key: first[key] for key in ("fabric", "delay_us", "op", "size")}
            for rdma in pick(rows, placement="rdma", **same):
                print(line(first, rdma))


def line(first, rdma):
    def cell(row):
        return f"{time(row['p50_us'])}, {float(row['round_trips']):.0f} round trips"

    delay = first["delay_us"]
    distance = f"{time(delay)} ({miles(delay):.0f} miles)" if delay else "none"
    call = f"{first['op']} {first['size']}"
    ratio = rdma["p50_us"] / first["p50_us"]
    return f"| {first['fabric']} | {distance} | {call} | {cell(first)} | {cell(rdma)} | {ratio:.2f} |"


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else HERE / "placement.csv"
    target = sys.argv[2] if len(sys.argv) > 2 else HERE / "placement.svg"
    rows = read(source)
    draw(rows, target)
    table(rows)


if __name__ == "__main__":
    main()
