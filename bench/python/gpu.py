#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how tensors on a GPU go from process to process: tensorlease beside other ways, in one run.

    hand-over   One tensor, from the producer's call until a consumer that slept has read its last bytes on its stream.
                gpu_handover.py says what the ways are. "known" memory was handed over before; "new" memory was not.
    weights     A state_dict of 320 tensors, from the trainer's call until the last worker can compute with all of it;
                the GPU's memory at the peak; CPU of all processes and the daemon. gpu_weights.py has the ways.
    updates     What a consumer that computes loses while it gets 64 MB 100 times a second. gpu_updates.py
    kills       A trainer and its workers are killed 200 times. gpu_kills.py

The ways of hand-over and updates take turns, in rounds, and the floor is in every round. Their ratios are medians of
those within a round. The ways of weights come one after the other. After its rows each section says whether the aims
are met; the exit status is 1 if one is not, or if a row failed. A way that cannot be had is "not run", with the reason.
Without a GPU it all runs on the fake driver with small sizes,
which shows that the programs work: times of that are not judged, and say nothing about a GPU.

Not measured: the GPU memory service of ai-dynamo, which no package index that this project uses has.

TL_BENCH_TORCH_DEVICE=cpu tries the rows of PyTorch on the CPU, which says nothing about them either.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpu_driver
import gpu_handover
import gpu_kills
import gpu_updates
import gpu_weights
from cuda_driver import Child, FakeMachine, kill_all, run
from gpu_driver import PART, wait_until

import tensorlease

SECTIONS = ("hand-over", "weights", "updates", "kills")
SHARES = dict(zip(SECTIONS, (0.3, 0.62, 0.75, 0.97), strict=True))  # of the time, by the end of each section

# sizes of the hand-over, rounds, samples of a round; bytes of the model, workers, rounds; bytes of an update, of a copy
# that stands for a kernel, rounds, seconds; kills, workers
FULL = (([4 << 10, 1 << 20, 1 << 30], 5, 40), (16_000_000_000, [1, 4, 8], 5), (64_000_000, 256 << 20, 5, 1.0), (200, 4))
QUICK = (([4 << 10, 1 << 20, 4 << 20], 2, 10), (64 << 20, [1, 2], 2), (1 << 20, 4 << 20, 2, 0.3), (10, 2))

BARE_TIMES, TORCH_TIMES, WORKER_MS, PEAK, LOSS, HANG_S = 1.2, 3, 2, 1.05, 0.02, 1
HANG_FAKE_S = 10  # where the kernel has other work for both CPUs


class Row:
    """A line of the table. Its rounds are lists of samples."""

    def __init__(self, section, name, case=""):
        self.section, self.name, self.case = section, name, case
        self.rounds, self.more, self.reason, self.failed = [], {}, None, False

    def samples(self):
        return sorted(sample for samples in self.rounds for sample in samples)

    def median(self):
        return statistics.median(self.samples())

    def p99(self):
        samples = self.samples()
        return samples[int(0.99 * (len(samples) - 1) + 0.5)]

    def ratio(self, other):
        """Return the median of the ratios of the rounds, or None if one of them was not measured."""
        if not (other and self.rounds and other.rounds):
            return None
        pairs = zip(self.rounds, other.rounds)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)

    def fail(self, error):
        self.reason, self.failed = " ".join(str(error).split())[:300], True


def microseconds(ns):
    us = ns / 1000
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def times(ratio):
    return f"{ratio:.2f} x" if ratio else "-"


def bytes_text(n):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.{0 if n % size == 0 else 1}f} {unit}"
    return f"{n} bytes"


class Report:
    """Prints rows and aims, and keeps them for the file."""

    def __init__(self, options, fake):
        self.options, self.fake = options, fake
        self.rows, self.aims, self.section = [], [], ""
        self.failed = False

    def line(self, result, name, detail):
        self.failed |= result == "fail"
        if self.options.rows:
            print(f"ROW\t{result}\t{self.section}: {name}\t{detail}", flush=True)
        else:
            mark = "" if result == "info" else f"{result}: "
            print(f"  {name:<58} {mark}{detail}", flush=True)

    def title(self, text):
        if not self.options.rows:
            print(f"\n{text}", flush=True)

    def row(self, row, columns):
        """Print a row. columns: {heading: value}, for a row that has numbers."""
        self.rows.append(row)
        name = f"{row.name}, {row.case}" if row.case else row.name
        if row.reason:
            self.line("fail" if row.failed else "skip", name, ("" if row.failed else "not run: ") + row.reason)
        elif self.options.rows:
            self.line("info", name, ", ".join(f"{heading} {value}" for heading, value in columns.items()))
        else:
            self.line("info", name, " ".join(f"{value:>10}" for value in columns.values()))

    def aim(self, name, met, detail, timed=True):
        """Say whether an aim is met; None: what it needs was not measured. Times of the fake driver are not judged."""
        result = "skip" if met is None else "ok" if met else "fail"
        if timed and self.fake and met is not None:
            result, detail = "info", f"{detail} (on the fake driver times are not judged)"
        self.aims.append({"aim": name, "result": result, "detail": detail})
        self.line(result, f"aim: {name}", "not run: a row that it needs has no number" if met is None else detail)

    def write(self, path, about):
        rows = [
            {"section": r.section, "name": r.name, "case": r.case, "reason": r.reason, "failed": r.failed}
            | {"rounds": r.rounds, **r.more}
            for r in self.rows
        ]
        Path(path).write_text(json.dumps({**about, "rows": rows, "aims": self.aims}, indent=1) + "\n")


# ---- The sections ----


def try_to(row, what):
    """Do a part of a row. What goes wrong there is the row's end, not that of the run."""
    try:
        return what()
    except (AssertionError, OSError, ValueError) as error:
        row.fail(error)
        return None


def hand_over(report, plan, until, _):
    sizes, rounds, count = plan
    pairs, reasons, broken = [(kind, gpu_handover.Pair(kind)) for kind in gpu_handover.PEERS], {}, {}
    for kind, pair in pairs:
        try:
            reasons[kind] = pair.reason()
        except AssertionError as error:
            broken[kind] = str(error)
    for size in sizes:
        rows = {kind: Row("hand-over", kind.name, bytes_text(size)) for kind in gpu_handover.PEERS}
        for kind, reason in broken.items():
            rows[kind].fail(reason)
        for kind, pair in pairs:
            rows[kind].reason = rows[kind].reason or reasons[kind]
            if not rows[kind].reason:
                try_to(rows[kind], lambda pair=pair: pair.resize(size))
        for _ in range(rounds):
            for kind, pair in pairs:
                row = rows[kind]
                if row.reason or time.monotonic() > until:
                    continue
                samples = try_to(row, lambda pair=pair: pair.samples(count))
                if samples:
                    row.rounds.append(samples)
        for kind, row in rows.items():
            if not row.rounds and not row.reason:
                row.fail("there was no time left")
            if row.failed:
                broken.setdefault(kind, row.reason)
        print_hand_over(report, size, rows)
    for kind, pair in pairs:
        if kind not in broken:
            pair.end()
        else:
            for child in pair.children:
                child.kill()


def print_hand_over(report, size, rows):
    report.title(f"hand-over of {bytes_text(size)} to a process that sleeps: median, p99, x an event, x cuMem export")
    floor, bare = rows[gpu_handover.Event], rows[gpu_handover.Export]
    for row in rows.values():
        columns = {}
        if not row.reason:
            columns = {"median": microseconds(row.median()), "p99": microseconds(row.p99())}
            columns |= {"of an event": times(row.ratio(floor)), "of cuMem export": times(row.ratio(bare))}
        report.row(row, columns)
    ratio = rows[gpu_handover.PublishNew].ratio(bare)
    detail = ratio and f"{ratio:.2f} x, for memory that the consumer does not know"
    name = f"{bytes_text(size)}: <= {BARE_TIMES} x cuMem export"
    report.aim(name, ratio and ratio <= BARE_TIMES, detail)
    ratio = rows[gpu_handover.Torch].ratio(rows[gpu_handover.PublishPool])
    detail = ratio and f"{ratio:.2f} x, in PyTorch's pool of tensorlease's memory"
    name = f"{bytes_text(size)}: >= {TORCH_TIMES} x faster than torch's queue"
    report.aim(name, ratio and ratio >= TORCH_TIMES, detail)


def cpu_of(pid):
    """Return the CPU ns of all threads of a process that live."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def weights(report, plan, until, daemon):
    total, counts, rounds = plan
    floors, reasons = [], run(gpu_weights.reasons)
    for torch in (False, True):
        group = None
        for kind in gpu_weights.WITH_TORCH if torch else gpu_weights.PLAIN:
            rows = {n: Row("weights", kind.name, f"{n} workers" if n > 1 else "1 worker") for n in counts}
            if hasattr(kind, "alone"):
                rows = {1: Row("weights", kind.name)}
            try:
                why = reasons[kind.name]
                if not why:
                    group = group or gpu_weights.Group(torch, total, max(counts))
                    group.choose(kind)
                    for n, row in rows.items():
                        measure_weights(group, kind, row, n, rounds, until, daemon)
                    group.drop_way()
            except (AssertionError, OSError, ValueError) as error:
                for row in rows.values():
                    if "peak" not in row.more and not row.reason:
                        row.fail(error)
                for child in [*group.children, group.looker] if group else ():
                    child.kill()
                group = None
            for row in rows.values():
                row.reason = why or row.reason
            print_weights(report, kind, rows, total, floors)
        if group:
            group.end()


def measure_weights(group, kind, row, n, rounds, until, daemon):
    needed, alone = kind.models(n) * group.total, hasattr(kind, "alone")
    if needed * 1.02 > group.free:
        row.reason = f"it needs {bytes_text(needed)} on the GPU, which has {bytes_text(group.free)}"
        return

    def once(byte):
        before = cpu_of(daemon.pid)
        ns, cpu, by_trainer, by_workers = group.give(n, byte, alone)
        row.more.setdefault("cpu_ns", []).append(cpu + cpu_of(daemon.pid) - before)
        row.more.setdefault("copied", []).append((by_trainer, by_workers))
        group.take_back(n, alone)
        return ns

    if time.monotonic() > until:
        row.fail("there was no time left")
        return
    samples = []
    for number in range(0 if kind.slow else 1 + rounds):
        if time.monotonic() < until or number < 2:
            samples.append(once(1 + number))
    if not kind.slow:
        row.rounds.append(samples[1:])  # the first is to warm up
    with contextlib.nullcontext() if kind.name.startswith("tensorlease") else contextlib.suppress(TimeoutError):
        group.settle(kind.kept)
    row.more["peak"] = group.peak(lambda: samples.append(once(100)))
    if kind.slow:
        row.rounds.append(samples)


def print_weights(report, kind, rows, total, floors):
    """Print the rows of a way. floors: is empty at first, and has the row of a copy then."""
    if not floors:
        what = f"a state_dict of {len(gpu_weights.layout(total))} tensors, {bytes_text(total)}"
        report.title(f"{what}, until the last worker has it: median, longest, x a copy, CPU, models in memory at most")
        floors.append(rows[1])
    for row in rows.values():
        columns = {}
        if not row.reason:
            row.more["models_at_peak"] = row.more["peak"] / total
            columns = {"median": microseconds(row.median()), "longest": microseconds(row.samples()[-1])}
            columns |= {"of a copy": times(floors[0].rounds and row.median() / floors[0].median())}
            columns |= {"CPU": microseconds(statistics.median(row.more["cpu_ns"]))}
            columns |= {"models at the peak": f"{row.more['models_at_peak']:.2f}"}
        report.row(row, columns)
    if kind not in gpu_weights.IN_PLACE and kind is not gpu_weights.Put:
        return
    done = {n: row for n, row in rows.items() if not row.reason}
    most = max(done, default=1)
    on_cpu = gpu_driver.TORCH_DEVICE == "cpu" and kind in gpu_weights.WITH_TORCH  # where nothing of this is true
    if kind is not gpu_weights.Put:
        each = (done[most].median() - done[1].median()) / (most - 1) / 1e6 if 1 in done and most > 1 else None
        met = None if each is None else each <= WORKER_MS
        report.aim(f"{kind.name}: <= {WORKER_MS} ms for each worker after the first", met, f"{each or 0:.2f} ms")
        peak = max((row.more["models_at_peak"] for row in done.values()), default=None)
        met = None if peak is None or on_cpu else peak <= PEAK
        report.aim(f"{kind.name}: <= {PEAK} models at the peak", met, f"{peak or 0:.3f}", timed=False)
    copied = [pair for row in done.values() for pair in row.more["copied"]]
    if not copied or on_cpu:
        met, detail = None, ""
    elif copied[0][0] is None:
        met, detail = True, "none, as publish_many() and the tensors say"  # else the row has failed
    else:
        wanted = kind.copies * sum(gpu_weights.layout(total).values())
        met = all(pair == (wanted, 0) for pair in copied)
        worst = max(copied, key=sum)
        detail = f"{worst[0]} bytes by the trainer and {worst[1]} by workers, by the fake driver's count"
    report.aim(f"{kind.name}: no copy but those asked for", met, detail, timed=False)


def updates(report, plan, until, _):
    size, copied, rounds, seconds = plan
    kinds = gpu_updates.SOURCES
    rows = {kind: Row("updates", kind.name) for kind in kinds}
    pair = gpu_updates.Pair(size, copied, 100)
    report.title(f"{bytes_text(size)} 100 times a second; the consumer computes {pair.what}: rate, loss, most, updates")
    for kind, reason in pair.reasons.items():
        rows[kind].reason = reason
    try:
        for _ in range(rounds):
            for kind in kinds:
                if rows[kind].reason or time.monotonic() > until:
                    continue
                rate, taken = pair.measure(kind, seconds)
                rows[kind].rounds.append([rate])
                rows[kind].more.setdefault("taken", []).append(taken)
        pair.end()
    except (AssertionError, OSError) as error:
        rows[kind].fail(error)
        for child in pair.children:
            child.kill()
    print_updates(report, rows, seconds)


def print_updates(report, rows, seconds):
    none = rows[gpu_updates.Nothing]
    for kind, row in rows.items():
        if not row.rounds and not row.reason:
            row.fail("it was not measured: there was no time left, or an error came first")
        columns = {}
        if row.rounds:
            losses = [1 - a[0] / b[0] for a, b in zip(row.rounds, none.rounds)]
            row.more["loss"] = statistics.median(losses)
            taken = statistics.median(row.more["taken"]) / seconds
            columns = {"batches": f"{row.median():.1f}/s", "loss": f"{row.more['loss']:.2%}"}
            columns |= {"most": f"{max(losses):.2%}", "updates": f"{taken:.0f}/s"}
        report.row(row, columns)
    floor = rows[gpu_updates.Write].more.get("loss", 0)
    for kind in (gpu_updates.Publish, gpu_updates.Draft, gpu_updates.Stream):
        loss = rows[kind].more.get("loss")
        met = None if loss is None else loss <= LOSS
        report.aim(f"{kind.name}: kernels lose <= {LOSS:.0%}", met, f"{loss or 0:.2%}, of which the floor {floor:.2%}")


def kills(report, plan, until, _):
    count, workers = plan
    report.title(f"a trainer and {workers} workers, killed: kills, of trainers, seconds, sets made and got, sets lost")
    row = Row("kills", f"{count} kills")
    seen = try_to(row, lambda: gpu_kills.run(count, workers, until))
    hang = HANG_FAKE_S if report.fake else HANG_S
    if not seen:
        report.row(row, {})
        return
    row.more.update(seen)
    longest = seen["longest_ns"] / 1e9
    columns = {"killed": seen["kills"], "of them trainers": seen["trainers"], "seconds": round(seen["seconds"])}
    columns |= {"sets": seen["sets"], "lost before they were written": seen["lost"]}
    report.row(row, columns)
    report.aim(f"{count} kills", seen["kills"] >= count, f"{seen['kills']} in the time that there was", timed=False)
    report.aim("no worker with a mixed set", not seen["mixed"], f"{seen['mixed']} mixed sets", timed=False)
    detail = f"{seen['partial']} sets with fewer tensors, all of one step"
    report.aim("no worker with a part of a set", not seen["partial"], detail, timed=False)
    report.aim("nothing left in GPU memory", seen["left"] < PART, f"{seen['left']} bytes more than before", timed=False)
    report.aim(f"nobody hangs over {hang} s", longest <= hang, f"{longest:.3f} s at most", timed=False)


FUNCTIONS = {"hand-over": hand_over, "weights": weights, "updates": updates, "kills": kills}

# ---- The run ----


def found_gpu():
    """Return (name, driver's CUDA, whether it is the fake driver), or why there is none."""
    try:
        gpu = gpu_driver.Gpu()
        device = tensorlease.cuda_devices()[0]
    except Exception as error:  # noqa: BLE001 -- whatever it is, there is no GPU to be used
        return f"{error}"
    version = device.driver_version
    return device.name, f"{version // 1000}.{version % 1000 // 10}", gpu.copied_bytes() is not None


def versions():
    found = [f"tensorlease {tensorlease.__version__}", f"Python {platform.python_version()}"]
    for name in ("torch", "cupy"):  # without importing them here
        for package in set(importlib.metadata.packages_distributions().get(name, ())):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


@contextlib.contextmanager
def daemon(folder):
    path = os.environ.get("TENSORLEASE_DAEMON") or Path(tensorlease.__file__).parent / "bin" / "tensorleased"
    socket = os.environ["TENSORLEASE_SOCKET"] = f"{folder}/socket"
    log = open(f"{folder}/log", "wb")
    command = [path, "--foreground", "--keeper", "no", "--socket", socket]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: os.path.exists(socket) or process.poll() is not None, "the daemon does not listen")
        yield process
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and few samples, as without a GPU")
    parser.add_argument("--fake-driver", metavar="FOLDER", help="has the fake libcuda.so.1, for where there is no GPU")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="only this section")
    parser.add_argument("--limit", type=float, default=540, metavar="SECONDS", help="end in about that time (540)")
    parser.add_argument("--json", metavar="FILE", help="all samples")
    parser.add_argument("--rows", action="store_true", help="print for tests/gpu_check/run")
    parser.add_argument("--model-bytes", type=int, metavar="N", help="of the state_dict, in place of 16 GB")
    parser.add_argument("--kills", type=int, metavar="N", help="in place of 200")
    return parser.parse_args()


def measure(options, about, plans, fake, folder):
    report = Report(options, fake)
    begin = time.monotonic()
    with daemon(folder) as process:
        before = Child(gpu_kills.used).end()
        for section, plan in zip(SECTIONS, plans, strict=True):
            if options.only and section not in options.only:
                continue
            report.section = section
            function = FUNCTIONS[section]
            try:
                function(report, plan, begin + options.limit * SHARES[section], process)
            except Exception as error:  # noqa: BLE001 -- the other sections can still be measured
                report.line("fail", "an error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
                kill_all()
            if options.json:
                report.write(options.json, about)
        with gpu_driver.connect() as client:
            left = gpu_kills.left_after(before, client)
        report.section = "end"
        report.title("after all of it")
        report.aim("nothing left in GPU memory by this run", left < PART, f"{left} bytes more than before", timed=False)
    if options.json:
        report.write(options.json, about)
    return report


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine, found = None, run(found_gpu)
    if isinstance(found, str):
        if not options.fake_driver:
            print(f"no GPU can be used ({found}), and --fake-driver names no other", file=sys.stderr)
            return 2
        machine = FakeMachine()
        path = [os.path.abspath(options.fake_driver), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ.update(LD_LIBRARY_PATH=os.pathsep.join(path), FAKECUDA_DIR=str(machine.path))
        os.environ["TENSORLEASE_FAKE_GPU"] = "1"
        found = run(found_gpu)
    name, cuda, fake = found
    name = "the fake driver, small sizes: nothing here tells about a GPU" if fake else f"{name}, CUDA {cuda}"
    name += "; PyTorch's rows on the CPU, to try them" if gpu_driver.TORCH_DEVICE == "cpu" else ""
    about = {"date": datetime.date.today().isoformat(), "gpu": name, "versions": versions()}
    about["kernel"] = platform.release()
    print(f"GPUs beside their peers, on {name}; {about['versions']}; Linux {about['kernel']}", flush=True)
    plans = [list(plan) for plan in (QUICK if fake or options.quick else FULL)]
    plans[1][0] = options.model_bytes or plans[1][0]
    plans[3][0] = options.kills or plans[3][0]
    try:
        with tempfile.TemporaryDirectory(prefix="tl-gpu-") as folder:
            report = measure(options, about, plans, fake, folder)
    finally:
        kill_all()
        broken = machine.close() if machine else None
    if broken:
        report.line("fail", "the fake driver's rules", broken)
    report.line("skip", "the GPU memory service of ai-dynamo", "not run: it cannot be had offline")
    return report.failed


if __name__ == "__main__":
    sys.exit(main())
