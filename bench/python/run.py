#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the Python package with other ways to pass tensors between processes, in one run.

Rows are OPERATION/SIZE/CASE. The operations are:

    get       Get a tensor that the consumer knows and has mapped before as an array, and give it back. This does not
              include the cost of the first get, nor reading the bytes.
    put       Publish a copy of an array of bytes in private memory, again and again, each time replacing the one
              before. In each round as many are made first that are not counted. This does not include what the daemon
              or store does afterwards.
    transfer  The producer hands over a value that is already in shared memory. The time ends when a consumer that slept
              has got it as an array and given it back. The kernel chooses the CPUs of both processes.
    stream    The producer puts a copy of an array of bytes in private memory into a queue. The time ends when a consumer
              that slept has got it as an array and given it back. This does not include reading the bytes.
    stream-burst  The same as fast as it goes: 64 MiB, or 1,000 items, one after the other. The time is that for one of
              them, until the consumer has got the last.
    get-busy  A get while another thread of the consumer computes in Python, which shows the effect of the GIL. One call
              is timed at a time. The mean is what a program notices, because a call may have to wait for the other
              thread's turn (5 ms), and either few calls or all of them do.

The heads of peers/*.py describe the peers and the work that each of them leaves out. In short, compared with a get of
tensorlease: shared_memory/open has no shape, type or holder; shared_memory/opened and torch have no names and no get;
iceoryx2 gives out each sample once; Plasma and Ray have references instead of names.

Each peer is two processes (worker.py): a producer, and a consumer that it starts. Before anything is timed, the
consumer has checked the result of each way of putting by its checksum. Operations and sizes come one after the other;
within each, the peers take turns in rounds. Numbers are the median and the 99th percentile of all samples. A sample is
one call, or the mean of 10 if a call takes less than 10 us. "x floor" and "x ours" compare the median of a round (for
get-busy, the mean) with that of the floor, and with that of tensorlease (the case without a suffix), in the same round;
they are the medians over all rounds. The floor of a get is an attribute look-up. That of a put is numpy.copyto() into
warm private memory. That of a transfer is a byte through a pipe.

A peer that cannot be installed, or fails, is reported in a line with the reason, and at the end each row without a
number. The exit code is 1 if there is one; --only chooses what can be had.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from plan import OPERATIONS, PEERS, SIZES, plan
from report import Row, print_head, print_markdown, print_rows, write_json

HERE = Path(__file__).resolve().parent
ANSWER_S = 300  # a peer that takes longer for an answer has failed
END_S = 60


class Failed(Exception):
    """A peer cannot be measured; the text says why."""


class CaseFailed(Failed):
    """One case of a peer cannot be measured."""


# ---- Environments ------------------------------------------------------------------------------


def last_line(text):
    """Return the last line that a program printed, or pip's last ERROR."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no reason given"])[-1][:200]


class Environments:
    """Virtual environments with the peers' packages, which are installed only once."""

    def __init__(self, folder, python, wheel):
        self.folder, self.python, self.wheel = folder, python, wheel
        self.renewed = set()

    def pip(self, name, *arguments):
        """Install packages. It never builds another project from source, which would take longer than the bench."""
        command = [self.folder / name / "bin" / "python", "-m", "pip", "install", "--only-binary=:all:", "--quiet"]
        command += ["--disable-pip-version-check", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Failed(f"not installed: {last_line(done.stdout)}")

    def ready(self, peer):
        """Return the Python that has the peer's packages."""
        home = self.folder / peer.environment
        python = home / "bin" / "python"
        if not python.exists():
            subprocess.run([self.python, "-m", "venv", home], check=True)
        mark = home / "installed.json"
        installed = json.loads(mark.read_text()) if mark.exists() else []
        for package in peer.packages:
            if package not in installed:
                print(f"installing {package}", file=sys.stderr)
                self.pip(peer.environment, package)
                installed.append(package)
                mark.write_text(json.dumps(installed))
        if peer.name == "tensorlease" and self.wheel:
            self.pip(peer.environment, "--force-reinstall", "--no-deps", self.wheel)
        return python


# ---- Workers -----------------------------------------------------------------------------------


class Worker:
    """A peer's producer, as run.py sees it."""

    def __init__(self, peer, python, folder):
        self.peer = peer
        self.failed = None
        self.folder = folder / peer.name
        self.folder.mkdir()
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_S)
        self.channel = ours.makefile("rw", encoding="utf-8")
        environment = {
            **os.environ,
            "HOME": str(self.folder),  # files that they write there are removed with the folder
            "TMPDIR": str(self.folder),
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with theirs, open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [python, HERE / "worker.py", peer.name, self.folder, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.close()  # the channel holds the socket
        try:
            self.version = self.answer()["version"]
        except Failed:
            self.end()
            raise

    def call(self, method, *arguments):
        try:
            self.channel.write(json.dumps([method, *arguments]) + "\n")
            self.channel.flush()
        except OSError:
            pass  # answer() says why
        return self.answer()

    def answer(self):
        try:
            line = self.channel.readline()
        except OSError:
            raise Failed(f"failed: no answer within {ANSWER_S} s") from None
        answer = json.loads(line) if line else {"error": last_line((self.folder / "log").read_text(errors="replace"))}
        if "error" in answer:
            raise (CaseFailed if answer.get("of") == "case" else Failed)(f"failed: {answer['error']}")
        return answer["ok"]

    def end(self):
        """End its processes, in order if that is still possible."""
        try:
            self.channel.close()
        except OSError:
            pass
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


# ---- Measuring ---------------------------------------------------------------------------------


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.plan = plan(options.only)
        self.workers, self.failures, self.rows = [], {}, []

    def start(self):
        environments = Environments(self.options.environments, self.options.python, self.options.wheel)
        for peer in PEERS:
            if not any(cases[peer.name] for cases in self.plan.values()):
                continue
            try:
                python = environments.ready(peer)
                self.workers.append(Worker(peer, python, self.folder))
            except Failed as e:
                self.failures[peer.name] = str(e)

    def resize(self, size, streams):
        """Change all peers to the new size, and check that the consumer sees the new values."""
        for worker in self.alive():
            try:
                worker.call("resize", size)
                worker.call("check", streams)
            except Failed as e:
                self.fail(worker, str(e))

    def alive(self):
        return [w for w in self.workers if not w.failed]

    def fail(self, worker, reason):
        worker.failed = reason
        self.failures[worker.peer.name] = reason

    def run(self):
        for size in SIZES:
            operations = {o: cases for (o, s), cases in self.plan.items() if s == size}
            if not operations:
                continue
            self.resize(size, any(operation.startswith("stream") for operation in operations))
            for operation, cases in operations.items():
                rows = [Row(operation, size, case, w) for w in self.alive() for case in cases[w.peer.name]]
                self.measure(operation, rows)

    def measure(self, operation, rows):
        *_, full, quick = OPERATIONS[operation]
        rounds, budget = quick if self.options.quick else full
        for n in range(rounds + 1):  # the first round warms up and is not counted
            for row in rows:
                if row.reason or row.worker.failed:
                    continue
                try:
                    row.measure(budget)
                except CaseFailed as e:
                    row.reason = self.failures[f"{operation} {row.case}"] = str(e)
                except Failed as e:
                    row.reason = str(e)
                    self.fail(row.worker, f"{row.id} {e}")
                if n == 0:
                    row.rounds.clear()
        rows = [row for row in rows if row.rounds and not row.reason]
        self.rows += rows
        if rows and not self.options.markdown:
            print_rows(operation, rows)

    def missing(self):
        """Return the ids of the rows of the plan that have no number."""
        planned = [
            f"{operation}/{size}/{case}"
            for (operation, size), cases in self.plan.items()
            for some in cases.values()
            for case in some
        ]
        return sorted(set(planned) - {row.id for row in self.rows if row.samples()})

    def end(self):
        for worker in self.workers:
            if not worker.failed:
                try:
                    worker.call("close")
                except Failed as e:
                    self.fail(worker, f"at its end {e}")
            worker.end()
        for left in Path("/dev/shm").glob(f"iox2_{self.folder.name}_*"):
            left.unlink()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="folder for the virtual environments")
    parser.add_argument("--wheel", help="tensorlease's; without it, what is installed there")
    parser.add_argument("--python", default=sys.executable, help="for the environments; Plasma needs 3.11 or older")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="only the rows whose id matches")
    parser.add_argument("--json", metavar="FILE", help="all numbers")
    parser.add_argument(
        "--markdown", action="store_true", help="print tables of medians and 99th percentiles at the end"
    )
    return parser.parse_args()


def stop(number, frame):
    raise SystemExit(128 + number)


def main():
    options = parse()
    options.environments = options.environments.absolute()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    folder = Path(tempfile.mkdtemp(prefix="tlb-", dir="/tmp"))  # short, since sockets' paths are limited
    bench = Bench(options, folder)
    try:
        if not bench.plan:
            print("--only matches no row", file=sys.stderr)
            return 2
        bench.start()
        print_head(options.quick, [worker.version for worker in bench.workers])
        bench.run()
    finally:
        bench.end()
        shutil.rmtree(folder, ignore_errors=True)
    if options.markdown:
        print_markdown(bench.rows)
    for name, reason in bench.failures.items():
        print(f"{name}: {reason}")
    if options.json:
        write_json(bench, options.json)
    for row in bench.missing():
        print(f"no number: {row}")
    return 1 if bench.failures or bench.missing() else 0


if __name__ == "__main__":
    sys.exit(main())
