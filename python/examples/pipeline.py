#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pipeline of three stages. A worker of the middle one is killed in the midst of its work, and nothing is lost.

python pipeline.py [--images 40]

The reader puts images, two workers scale them, and the writer collects the results. The queue before the workers is made
with redeliver=True: an image is done when its worker says task_done(), after it has put the result. If the worker dies
before that, the other one gets the image. So a result may come twice, and the writer goes by its number.
"""

import argparse
import multiprocessing
import os

import numpy as np

import tensorlease

SHAPE = (480, 640)


def read(images, count):
    for number in range(count):
        images.put((number, np.full(SHAPE, number % 256, "uint8")))


def work(images, results, stuck):
    """Scale images until there is None. With a link it gets stuck in the third one, and says so."""
    done = 0
    while (image := images.get(timeout=60)) is not None:
        number, pixels = image
        if stuck and done == 2:
            stuck.send(number)
            stuck.recv()  # for ever
        results.put((number, os.getpid(), pixels[::2, ::2]))
        images.task_done()
        done += 1
    images.task_done()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=40, help="at least 4")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    images = tensorlease.Queue(4, redeliver=True)
    results = tensorlease.Queue(4)
    ours, theirs = context.Pipe()
    first = context.Process(target=work, args=(images, results, theirs), daemon=True)
    second = context.Process(target=work, args=(images, results, None), daemon=True)
    reader = context.Process(target=read, args=(images, options.images), daemon=True)
    first.start()
    reader.start()
    scaled = {}

    def write():
        number, worker, pixels = results.get(timeout=60)
        assert pixels.shape == (240, 320) and (pixels == number % 256).all()
        scaled[number] = worker

    for _ in range(2):
        write()
    assert ours.poll(60), "the first worker does not answer"
    lost = ours.recv()
    first.kill()
    first.join()
    second.start()
    while len(scaled) < options.images:
        write()
    images.put(None)
    for process in (reader, second):
        process.join(60)
        assert process.exitcode == 0
    assert scaled[lost] == second.pid
    print(f"a worker was killed at image {lost}, which the other one scaled")
    print(f"{len(scaled)} images scaled, none lost")


if __name__ == "__main__":
    main()
