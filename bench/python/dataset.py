#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tensorlease.torch.CachedDataset on a made dataset of JPEG pictures.

It needs tensorlease, torch, numpy, Pillow and lmdb, about 1.5 GB on the disk and 2.5 GB of memory:

    bench/python/dataset.py --pictures 20000 --workers 1 4

Each row is a way to hold the decoded pictures, each number how many pictures per second a DataLoader delivers in random
order, in an epoch after the first. "first epoch" is the one in which CachedDataset decodes. Compare numbers of one run
only.
"""

import argparse
import io
import os
import tempfile
import time

import lmdb
import numpy
import PIL.Image
import tensorlease
import tensorlease.torch
import torch
from torch.utils.data import DataLoader, Dataset, Subset

SOURCE = 256  # pixels of a JPEG in each direction
SIDE = 128  # pixels of a decoded picture


def make_jpegs(folder, count):
    """Write count pictures that differ, as large as photographs of that size are, and return all in one file."""
    random = numpy.random.default_rng(1)
    offsets, path = [0], os.path.join(folder, "pictures")
    smooth = random.integers(0, 256, (64, 16, 16, 3), dtype=numpy.uint8)
    backs = [numpy.asarray(PIL.Image.fromarray(s).resize((SOURCE, SOURCE)), dtype=numpy.int16) for s in smooth]
    noise = random.integers(-24, 24, (SOURCE, SOURCE, 3), dtype=numpy.int16)
    parts = []
    for back in backs:
        buffer = io.BytesIO()
        picture = numpy.clip(back + numpy.roll(noise, random.integers(SOURCE), 0), 0, 255).astype(numpy.uint8)
        PIL.Image.fromarray(picture).save(buffer, "JPEG", quality=85)
        parts.append(buffer.getvalue())
    with open(path, "wb") as file:
        for n in range(count):
            file.write(parts[n % len(parts)])
            offsets.append(file.tell())
    return path, offsets


class Jpegs(Dataset):
    """Decodes each picture whenever it is asked for: no cache."""

    def __init__(self, path, offsets):
        self.path, self.offsets, self.file = path, offsets, None

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if self.file is None or self.file[0] != os.getpid():
            self.file = os.getpid(), os.open(self.path, os.O_RDONLY)
        start, end = self.offsets[index], self.offsets[index + 1]
        data = os.pread(self.file[1], end - start, start)
        picture = PIL.Image.open(io.BytesIO(data)).resize((SIDE, SIDE))
        return torch.from_numpy(numpy.array(picture)), index


class Shared(Dataset):
    """One tensor of all pictures that share_memory_() has put into shared memory."""

    def __init__(self, source):
        self.all = torch.empty(len(source), SIDE, SIDE, 3, dtype=torch.uint8).share_memory_()
        for n in range(len(source)):
            self.all[n] = source[n][0]

    def __len__(self):
        return len(self.all)

    def __getitem__(self, index):
        return self.all[index], index


class Lmdb(Dataset):
    """The decoded pictures in an LMDB file, which each worker opens."""

    def __init__(self, source, folder):
        self.path, self.count, self.env = os.path.join(folder, "lmdb"), len(source), None
        with lmdb.open(self.path, map_size=4 << 30, sync=False) as env:
            for start in range(0, self.count, 1000):
                with env.begin(write=True) as transaction:
                    for n in range(start, min(start + 1000, self.count)):
                        transaction.put(b"%08d" % n, source[n][0].numpy().tobytes())

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.env is None:
            self.env = lmdb.open(self.path, readonly=True, lock=False, readahead=False)
        with self.env.begin(buffers=True) as transaction:  # the picture is copied before the transaction ends
            picture = numpy.frombuffer(transaction.get(b"%08d" % index), dtype=numpy.uint8)
            return torch.from_numpy(picture.reshape(SIDE, SIDE, 3).copy()), index


def rate(dataset, workers, epochs=3):
    """Pictures per second in the best epoch after the first, in which the workers start."""
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=True)
    best = 0
    for epoch in range(epochs):
        begin, seen = time.perf_counter(), 0
        for batch in loader:
            seen += len(batch[0])
        if epoch:
            best = max(best, seen / (time.perf_counter() - begin))
    return best


def first_epoch(dataset, workers):
    begin = time.perf_counter()
    for _ in DataLoader(dataset, batch_size=64, num_workers=workers):
        pass
    return len(dataset) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=20000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        capacity = arguments.pictures * (SIDE * SIDE * 3 + 8192) + (64 << 20)
        os.environ["TENSORLEASE_SOCKET"] = os.path.join(folder, "socket")
        client = tensorlease.connect(autostart=True)
        if client.status().capacity < capacity:
            parser.exit(1, f"{capacity} bytes are needed; the daemon's capacity is {client.status().capacity}\n")
        jpegs = Jpegs(*make_jpegs(folder, arguments.pictures))
        size = jpegs.offsets[-1] / len(jpegs)
        print(f"{len(jpegs)} pictures of {size:.0f} bytes, decoded to {SIDE * SIDE * 3}", flush=True)
        cached = tensorlease.torch.CachedDataset(jpegs, prefix="pictures", evictable=False)
        rows = {
            "no cache, of a tenth": lambda: Subset(jpegs, range(len(jpegs) // 10)),
            "CachedDataset": lambda: cached,
            "share_memory_()": lambda: Shared(cached),
            "LMDB": lambda: Lmdb(cached, folder),
        }
        print(f"{'':22}" + "".join(f"{w:>5} worker{'s' * (w > 1)}" for w in arguments.workers))
        for name, make in rows.items():
            dataset = make()
            if dataset is cached:
                print(f"{'  its first epoch':22}{first_epoch(cached, max(arguments.workers)):12.0f}", flush=True)
            print(f"{name:22}" + "".join(f"{rate(dataset, w):12.0f}" for w in arguments.workers), flush=True)
        cached.clear()  # the daemon that was started ends once there are no names


if __name__ == "__main__":
    main()
