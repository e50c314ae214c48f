#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stream of a camera: one process publishes frames under one name, others get the newest whenever they are ready.

A slow consumer skips frames and never delays the camera. Its frame does not change until it releases it.

    python camera.py [--frames 200] [--rate 500]
"""

import argparse
import asyncio
import multiprocessing
import struct
import time

import numpy as np

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

NAME, SHAPE = "camera/rgb", (480, 640, 3)
META = struct.Struct("<qq")  # frame number, time.monotonic_ns() of its exposure


def camera(frames, rate):
    with tensorlease.connect() as client:
        for number in range(frames):
            draft = client.create(NAME, SHAPE, "uint8", timeout=10)
            draft.numpy().fill(number % 256)  # the driver would write here
            draft.commit(metadata=META.pack(number, time.monotonic_ns()), wait=False)
            time.sleep(1 / rate)
        client.put(NAME, np.zeros(0, "uint8"))  # an empty frame marks the end


def viewer(name, pause, results):
    """A consumer that blocks while it waits."""
    seen, late = 0, 0
    with tensorlease.connect() as client:
        for frame in client.watch(NAME, timeout=60):
            with frame:
                if not frame.size:
                    break
                number, exposed = META.unpack(frame.metadata)
                assert (frame.numpy()[::97] == number % 256).all()
                late += time.monotonic_ns() - exposed
            seen += 1
            time.sleep(pause)
    results.put((name, seen, late / max(seen, 1) / 1000))


async def watch():
    """A consumer that uses asyncio."""
    seen = 0
    with tensorlease.connect() as client:
        async for frame in client.watch(NAME, timeout=60):
            with frame:
                if not frame.size:
                    return seen
            seen += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--rate", type=float, default=500)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tensorlease.connect() as client:
        if NAME in client:
            client.delete(NAME)
        viewers = [context.Process(target=viewer, args=v) for v in (("fast", 0, results), ("slow", 0.02, results))]
        for process in viewers:
            process.start()
        producer = context.Process(target=camera, args=(options.frames, options.rate))
        producer.start()
        print(f"asyncio: {asyncio.run(watch())} frames")
        for process in [producer, *viewers]:
            process.join()
            assert process.exitcode == 0
        for _ in viewers:
            name, seen, late = results.get()
            print(f"{name}: {seen} frames, {late:.0f} us after their commit")
        client.delete(NAME)


if __name__ == "__main__":
    main()
