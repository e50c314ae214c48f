# SPDX-License-Identifier: Apache-2.0
"""The samples of a row, and three formats: text, Markdown, JSON. Samples are in ns; text and Markdown are in us."""

import datetime
import json
import os
import platform
import statistics
from pathlib import Path

from plan import OPERATIONS


METHODS = {"get-busy": "busy", "stream-burst": "stream_burst"}  # of worker.py


class Row:
    """One case of an operation at a size: its samples, round by round."""

    def __init__(self, operation, size, case, worker):
        self.operation, self.size, self.case, self.worker = operation, size, case, worker
        self.rounds = []
        self.reason = None

    @property
    def id(self):
        return f"{self.operation}/{self.size}/{self.case}"

    def measure(self, budget):
        self.rounds.append(self.worker.call(METHODS.get(self.operation, self.operation), self.case, int(budget)))

    def samples(self):
        return sorted(sample for samples in self.rounds for sample in samples)

    def quantile(self, part):
        samples = self.samples()
        if part == 0.5:
            return statistics.median(samples)
        return samples[int(part * (len(samples) - 1) + 0.5)] if len(samples) >= 10 else None

    def mean(self):
        return statistics.fmean(self.samples())

    def ratio(self, other):
        """Return the median of the ratios of the rounds, which a slowdown of both for a while does not move."""
        middle = statistics.median if OPERATIONS[self.operation][1] == "median" else statistics.fmean
        return statistics.median(middle(a) / middle(b) for a, b in zip(self.rounds, other.rounds))


def bytes_text(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"


def number(ns):
    """Format ns as us."""
    if ns is None:
        return ""
    value = ns / 1000
    return f"{value:.{0 if value >= 1000 else 1 if value >= 100 else 2}f}"


def base_of(row, rows, case):
    """Return the row with which row is compared, or None if there is none or it is row itself."""
    key = (row.operation, row.size, case)
    return next((r for r in rows if (r.operation, r.size, r.case) == key and r is not row), None)


def ratio_text(row, rows, case):
    base = base_of(row, rows, case)
    if not base:
        return "-"
    ratio = row.ratio(base)
    return f"{ratio:.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f} x"


def print_rows(operation, rows):
    what, *_ = OPERATIONS[operation]
    title = f"{what}, {bytes_text(rows[0].size)}, us"
    print(f"{title:<45} {'median':>9} {'p99':>9} {'mean':>9} {'x floor':>9} {'x ours':>9}")
    for row in rows:
        cells = [number(v) for v in (row.quantile(0.5), row.quantile(0.99), row.mean())]
        cells += [ratio_text(row, rows, "floor"), ratio_text(row, rows, "tensorlease")]
        print(f"  {row.case:<43} " + " ".join(f"{cell:>9}" for cell in cells))
    print(flush=True)


def cell(row, middle):
    value = number(row.mean() if middle == "mean" else row.quantile(0.5))
    p99 = number(row.quantile(0.99))
    return f"{value} ({p99})" if p99 else value


def print_markdown(rows):
    """Print a table for each operation, with a line for each case and a column for each size."""
    for operation, (what, middle, *_) in OPERATIONS.items():
        some = [row for row in rows if row.operation == operation]
        sizes = sorted({row.size for row in some})
        if not some:
            continue
        print(f"| {what}, us: {middle} (p99) | " + " | ".join(map(bytes_text, sizes)) + " |")
        print("|---" * (len(sizes) + 1) + "|")
        for case in dict.fromkeys(row.case for row in some):
            cells = []
            for size in sizes:
                row = next((r for r in some if r.case == case and r.size == size), None)
                cells.append(cell(row, middle) if row else "")
            print(f"| {case} | " + " | ".join(cells) + " |")
        print()


def machine():
    cpu = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(": ", 1)[1]
            break
    shm = os.statvfs("/dev/shm")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / 2**30, 1),
        # a file system without a limit, as of size=0, has no blocks
        "shm_gib": round(shm.f_blocks * shm.f_frsize / 2**30, 1) if shm.f_blocks else None,
    }


def print_head(quick, versions):
    m = machine()
    shm = "without a limit" if m["shm_gib"] is None else f"{m['shm_gib']} GiB"
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    print(f"tensorlease for Python, {date}{', quick' if quick else ''}")
    print(
        f"{m['cpu']}, {m['cores']} cores, {m['kernel']}, {m['memory_gib']} GiB of memory, /dev/shm {shm}"
    )
    print("; ".join(versions) + "\n", flush=True)


def json_row(row, rows):
    def ratio(case):
        base = base_of(row, rows, case)
        return row.ratio(base) if base else None

    samples = row.samples()
    return {
        "id": row.id,
        "unit": "ns",
        "samples": len(samples),
        "min": samples[0],
        "median": row.quantile(0.5),
        "p99": row.quantile(0.99),
        "max": samples[-1],
        "mean": row.mean(),
        "ratio_to_floor": ratio("floor"),
        "ratio_to_tensorlease": ratio("tensorlease"),
    }


def write_json(bench, path):
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "quick": bench.options.quick,
        "machine": machine(),
        "versions": {worker.peer.name: worker.version for worker in bench.workers},
        "failures": bench.failures,
        "rows": [json_row(row, bench.rows) for row in bench.rows],
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n")
