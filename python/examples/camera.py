#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A camera and two readers. Each gets the newest frame when it is ready: a slow one skips some and delays nobody."""

import multiprocessing
import struct
import sys
import time

import numpy as np

import tensorlease

NAME, SHAPE, FRAMES = "camera/rgb", (480, 640, 3), int(sys.argv[1]) if len(sys.argv) > 1 else 200
META = struct.Struct("<qq")  # frame number, time.monotonic_ns() of its exposure


def camera():
    with tensorlease.connect() as client:
        for number in range(FRAMES):
            draft = client.create(NAME, SHAPE, "uint8", timeout=10)
            draft.numpy().fill(number % 256)  # the driver would write here
            draft.commit(metadata=META.pack(number, time.monotonic_ns()), wait=False)
            time.sleep(1 / 500)
        client.put(NAME, np.zeros(0, "uint8"))  # an empty frame marks the end


def reader(name, pause):
    seen, late = 0, 0
    with tensorlease.connect() as client:
        for frame in client.watch(NAME, timeout=60):  # in asyncio: async for
            with frame:
                if not frame.size:
                    break
                number, exposed = META.unpack(frame.metadata)
                late += time.monotonic_ns() - exposed
                time.sleep(pause)  # stands for work on the frame, while the camera goes on
                assert (frame.numpy()[::97] == number % 256).all()
            seen += 1
    print(f"{name}: {seen} of {FRAMES} frames, {late / max(seen, 1) / 1000:.0f} us after their commit", flush=True)


def main():
    with tensorlease.connect() as client:
        client.delete(NAME, missing_ok=True)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=reader, args=arguments) for arguments in (("fast", 0), ("slow", 0.02))]
        processes.append(context.Process(target=camera))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        client.delete(NAME)


if __name__ == "__main__":
    main()
