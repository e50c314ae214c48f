#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A camera with a recorder that must have each frame, beside a viewer that shows what it can.

python recorder.py [--frames 200] [--rate 500]

Both subscribe to one stream. The camera waits for the recorder when that is 16 frames behind, and for the viewer never:
it is lossy, and learns how many frames it has skipped. camera.py is for cameras that wait for nobody.
"""

import argparse
import multiprocessing
import tempfile
import time

import numpy as np

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

NAME, SHAPE = "recorder_example", (240, 320, 3)


def camera(frames, rate):
    with tensorlease.connect() as client, client.stream(NAME, existing=True) as stream:
        for number in range(frames):
            stream.put(np.full(SHAPE, number % 256, "uint8"), metadata=str(number).encode(), timeout=60)
            time.sleep(1 / rate)
        stream.end()


def recorder(link):
    """Append each frame to a file, straight from the shared memory."""
    with tensorlease.connect() as client, client.stream(NAME, existing=True).subscribe() as frames:
        link.send("ready")
        with tempfile.TemporaryFile() as file:
            for item in frames:
                with item:
                    file.write(item.tensor)
            file.seek(0)
            recorded = np.frombuffer(file.read(), "uint8").reshape(-1, *SHAPE)
            link.send([int(frame.min()) for frame in recorded if frame.min() == frame.max()])


def viewer(link, pause):
    with tensorlease.connect() as client, client.stream(NAME, existing=True).subscribe(lossy=True) as frames:
        link.send("ready")
        shown, skipped = [], 0
        for item in frames:
            with item:
                number = int(item.metadata)
                assert (item.tensor.numpy()[::7] == number % 256).all()
                shown.append(number)
                skipped += item.skipped
            time.sleep(pause)
        link.send((shown, skipped))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--rate", type=float, default=500)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    links, processes = [], []
    with tensorlease.connect() as client:
        client.stream(NAME, "broadcast", depth=16).close()
        for function, more in ((recorder, ()), (viewer, (20 / options.rate,))):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=function, args=(theirs, *more), daemon=True))
            processes[-1].start()
            links.append(ours)
        for link in links:  # who subscribes later misses what came before
            assert link.poll(60) and link.recv() == "ready"
        processes.append(context.Process(target=camera, args=(options.frames, options.rate), daemon=True))
        processes[-1].start()
        recorded = links[0].recv()
        shown, skipped = links[1].recv()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        client.delete(NAME)
    assert recorded == [number % 256 for number in range(options.frames)]
    assert shown == sorted(set(shown)) and len(shown) + skipped <= options.frames
    print(f"recorder: {len(recorded)} frames, each of them")
    print(f"viewer: {len(shown)} frames, {skipped} skipped")


if __name__ == "__main__":
    main()
