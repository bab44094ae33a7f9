#!/usr/bin/env python3
"""The table of what bench/e2e/checkpoint.sh measured: checkpoint_table.py FOLDER (of its .jsonl files)."""

import json
import statistics
import sys
from pathlib import Path

FULL = {"tessera-full": "tessera, one safetensors file", "torch-torch_full": "torch.save of the gathered weights", "torch-dcp_full": "torch DCP, weights"}
STATE = {"tessera-state": "tessera, weights and optimizer", "torch-state": "torch DCP, weights and optimizer"}
BACKGROUND = {"tessera-background": "tessera, in the background", "torch-background": "torch dcp.async_save"}


def rows_of(folder: Path, name: str, what: str) -> list[dict]:
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["what"] == what]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def seconds(folder: Path, name: str, what: str) -> list[float]:
    return [row["seconds"] for row in rows_of(folder, name, what)]


def main() -> None:
    folder = Path(sys.argv[1])
    print("| | save s, median (min-max) | load s, nothing cached | load s, all cached | MiB on disk | save: rise of memory, rank 0 / 1, MiB | load |\n|---|---|---|---|---|---|---|")
    for name, title in (FULL | STATE).items():
        save, cold, load = (rows_of(folder, name, what) for what in ("save", "load_cold", "load"))
        rises = [" / ".join(f"{max(r):.0f}" for r in zip(*(row["peak_rise_mib"] for row in rows))) for rows in (save, load)]
        print(f"| {title} | {spread([r['seconds'] for r in save])} | {spread([r['seconds'] for r in cold])} | {spread([r['seconds'] for r in load])} | {save[0]['bytes'] / 2**20:.0f} | {rises[0]} | {rises[1]} |")
    for mine, others in (("tessera-full", ("torch-torch_full", "torch-dcp_full")), ("tessera-state", ("torch-state",))):
        for other in others:
            ratios = [statistics.median(seconds(folder, other, what)) / statistics.median(seconds(folder, mine, what)) for what in ("save", "load_cold", "load")]
            print(f"\n{mine} beside {other}: saves {ratios[0]:.1f}, loads {ratios[1]:.1f} (nothing cached) and {ratios[2]:.1f} (all cached) times as fast", end="")
    if (folder / "disk").exists():
        rates = [float(line) for line in (folder / "disk").read_text().split()]
        print(f"\n\nThe disk itself (dd, 4 MiB past the page cache): {statistics.median(rates):.0f} MiB/s ({min(rates):.0f}-{max(rates):.0f})", end="")
    print("\n\n| | written after s | training thread held s | part of it |\n|---|---|---|---|")
    for name, title in BACKGROUND.items():
        rows = rows_of(folder, name, "save")
        parts = [row["held_seconds"] / row["seconds"] for row in rows]
        print(f"| {title} | {spread([r['seconds'] for r in rows])} | {spread([r['held_seconds'] for r in rows])} | {statistics.median(parts):.1%} (to {max(parts):.1%}) |")
    steps = rows_of(folder, "tessera-background", "save")
    alone, beside = (statistics.median(v) for v in ([r["step_seconds_alone"] for r in steps], [s for r in steps for s in r["step_seconds_beside"]]))
    print(f"\ntessera's steps: {alone:.3f} s alone, {beside:.3f} s while a save is being written")


if __name__ == "__main__":
    main()
