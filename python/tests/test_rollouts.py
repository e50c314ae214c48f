# SPDX-License-Identifier: Apache-2.0
"""A trainer and its rollout workers, while the daemon and all of them are killed at random moments.

TL_ROLLOUT_KILLS says how often each is killed, TL_TEST_SEED what the random numbers start from.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from conftest import PACKAGE, eventually
from limits import limit

import tensorlease

KILLS = int(os.environ.get("TL_ROLLOUT_KILLS") or 3)
SEED = int(os.environ.get("TL_TEST_SEED") or os.getpid())
WORKERS = ("get", "aget")

TRAINER = """
import sys, time
import numpy
import tensorlease

address, autostart, step = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])
with tensorlease.connect(address, autostart=autostart, timeout=60) as client:
    while True:
        step += 1
        try:
            client.put_many({str(n): numpy.full(256, step) for n in range(8)}, prefix="p/")
        except tensorlease.DisconnectedError:  # the daemon died under it
            continue
        print(step, flush=True)
        time.sleep(0.005)
"""

WORKER = """
import asyncio, sys
import tensorlease

address, autostart, how = sys.argv[1], sys.argv[2] == "1", sys.argv[3]

def newest(client, version):
    if how == "get":
        return client.get("p/7", newer_than=version, timeout=120)
    return asyncio.run(client.aget("p/7", newer_than=version, timeout=120))

with tensorlease.connect(address, autostart=autostart, timeout=60) as client:
    version = last = 0
    while True:
        with newest(client, version) as tensor:
            assert tensor.version > version, (tensor.version, version)
            version = tensor.version
        arrays = client.get_many(prefix="p/", timeout=120)
        steps = {value for array in arrays.values() for value in array.numpy().tolist()}
        assert len(steps) == 1 and len(arrays) == 8, (steps, list(arrays))
        step = steps.pop()
        assert step >= last, (step, last)
        last = step
        print(step, flush=True)
"""


class Process:
    """A program whose last line of output is a number."""

    def __init__(self, code, *arguments):
        self.number, self.command = 0, [sys.executable, "-c", code, *map(str, arguments)]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.number = int(line)

    def has(self, number):
        assert self.process.poll() is None, self.process.stderr.read()
        return self.number >= number

    def kill(self):
        assert self.process.poll() is None, self.process.stderr.read()
        self.process.kill()
        self.thread.join()
        self.process.communicate()


class Daemon:
    """Daemons that clients start, or one after the other that this one starts."""

    def __init__(self, address, autostart):
        self.address, self.autostart, self.process = address, autostart, None
        self.start()

    def start(self):
        if not self.autostart:
            command = [PACKAGE / "bin" / "tensorleased", "--foreground", "--keeper", "no", "--socket", self.address]
            self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def pids(self):
        """The daemon's, after its keeper's."""
        with contextlib.suppress(tensorlease.Error), tensorlease.connect(self.address, autostart=False) as client:
            pid = client.status().daemon_pid
            if client.status().keeper == 1:
                return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), pid
            return (pid,)
        return ()

    def kill(self, number=signal.SIGKILL):
        eventually(self.pids)
        for pid in self.pids() if number == signal.SIGKILL else self.pids()[-1:]:
            os.kill(pid, number)
        if self.process:
            assert self.process.wait(limit(60)) == (0 if number == signal.SIGTERM else -number)


@pytest.mark.parametrize("autostart", [True, False], ids=["autostart", "address"])
def test_workers_starve_for_nothing(autostart):
    print(f"seed {SEED} (TL_TEST_SEED sets it)")
    chance, slowest = random.Random(SEED), 0.0
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder:
        address = f"{folder}/socket"
        daemon = Daemon(address, autostart)
        eventually(lambda: autostart or daemon.pids())
        trainer = Process(TRAINER, address, int(autostart), 0)
        workers = [Process(WORKER, address, int(autostart), how) for how in WORKERS]
        try:
            for victim in [None, *chance.sample(["daemon", "trainer", "worker"] * KILLS, 3 * KILLS)]:
                if victim == "daemon":
                    daemon.kill()
                    daemon.start()
                elif victim == "trainer":
                    trainer.kill()
                    trainer = Process(TRAINER, address, int(autostart), trainer.number + 1000)
                elif victim == "worker":
                    n = chance.randrange(len(workers))
                    workers[n].kill()
                    workers[n] = Process(WORKER, address, int(autostart), WORKERS[n])
                before = trainer.number
                eventually(lambda before=before: trainer.has(before + 1))
                step, began = trainer.number, time.monotonic()
                for worker in workers:
                    eventually(lambda worker=worker, step=step: worker.has(step))
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(chance.random() * 0.02)
        finally:
            for process in (*workers, trainer):
                process.process.kill()
                process.thread.join()
                process.process.communicate()
            if daemon.pids():
                pids = daemon.pids()
                daemon.kill(signal.SIGTERM)
                eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    print(f"{KILLS} of each killed; the slowest set was everywhere after {slowest:.3f} s")
