#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tensorlease.torch.CachedDataset and DataLoader on a made dataset of JPEG pictures, and on small samples.

`make bench-dataset` installs what it needs and runs it. It takes about 1.5 GB on the disk and 2.5 GB of memory; with
BENCH_ARGS=--quick a tenth of these and a minute.

Each row is a way to hold the decoded pictures, each number how many pictures per second a DataLoader delivers in random
order: the median of the epochs after the first. "first epoch" is the one in which CachedDataset decodes. Rows with
"ours" have tensorlease.torch.DataLoader, and the others PyTorch's. Small samples have 1 KiB. "stacked" batches have 64
tensors of 192 KiB, made by workers that do nothing else. "HF" are datasets of Hugging Face, bare and with a CachedDataset
over them, in its first epoch and in later ones. Compare numbers of one run only. A row that cannot be measured, or in
which not every sample arrives, ends the run with an error.
"""

import argparse
import io
import os
import statistics
import tempfile
import time
import warnings

import datasets
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


class Small(Dataset):
    """Samples of 1 KiB, which take no time to make."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((1024,), index % 251, dtype=torch.uint8), index


class Stacked(Dataset):
    """Batches of 12 MiB, by workers that do nothing but that."""

    def __init__(self, batches):
        self.batches, self.each = batches, torch.ones(8, 3, 256, 256, dtype=torch.uint8)

    def __len__(self):
        return 64 * self.batches

    def __getitem__(self, index):
        return self.each[index % 8], index


class Lmdb(Dataset):
    """The samples in an LMDB file, which each worker opens."""

    def __init__(self, source, folder, name):
        self.path, self.count, self.env = os.path.join(folder, name), len(source), None
        self.shape = source[0][0].shape
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
            return torch.from_numpy(picture.reshape(self.shape).copy()), index


def rate(dataset, workers, epochs, kind=DataLoader):
    """Samples per second: the median of the epochs after the first, in which the workers start."""
    loader = kind(dataset, batch_size=64, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    rates = []
    for _ in range(epochs + 1):
        begin, seen = time.perf_counter(), 0
        for batch in loader:
            seen += len(batch[0])
        if seen != len(dataset):
            raise RuntimeError(f"{seen} of {len(dataset)} samples arrived")
        rates.append(seen / (time.perf_counter() - begin))
    return statistics.median(rates[1:])


def first_epoch(dataset, workers):
    begin = time.perf_counter()
    for _ in DataLoader(dataset, batch_size=64, num_workers=workers):
        pass
    return len(dataset) / (time.perf_counter() - begin)


OURS = tensorlease.torch.DataLoader


def print_rows(rows, workers, epochs):
    for name, make, kind in rows:
        dataset = make()
        print(f"{name:36}" + "".join(f"{rate(dataset, w, epochs, kind):12.0f}" for w in workers), flush=True)


def pictures(folder, client, arguments):
    jpegs = Jpegs(*make_jpegs(folder, arguments.pictures))
    size = jpegs.offsets[-1] / len(jpegs)
    print(f"{len(jpegs)} pictures of {size:.0f} bytes, decoded to {SIDE * SIDE * 3}", flush=True)
    cached = tensorlease.torch.CachedDataset(jpegs, client, "pictures")
    rows = [
        ("CachedDataset", lambda: cached, DataLoader),
        ("CachedDataset, ours", lambda: cached, OURS),
        ("share_memory_()", lambda: Shared(cached), DataLoader),
        ("LMDB", lambda: Lmdb(cached, folder, "pictures.mdb"), DataLoader),
    ]
    print_rows([("no cache, of a tenth", lambda: Subset(jpegs, range(len(jpegs) // 10)), DataLoader)], arguments.workers, 1)
    print(f"{'  its first epoch':36}{first_epoch(cached, max(arguments.workers)):12.0f}", flush=True)
    print_rows(rows, arguments.workers, arguments.epochs)
    cached.clear()


def small(folder, client, arguments):
    source = Small(arguments.small)
    cached = tensorlease.torch.CachedDataset(source, client, "small")
    print(f"{len(source)} samples of 1 KiB", flush=True)
    print(f"{'  their first epoch':36}{first_epoch(cached, max(arguments.workers)):12.0f}", flush=True)
    rows = [
        ("CachedDataset", lambda: cached, DataLoader),
        ("CachedDataset, ours", lambda: cached, OURS),
        ("LMDB", lambda: Lmdb(source, folder, "small.mdb"), DataLoader),
    ]
    print_rows(rows, arguments.workers, arguments.epochs)
    cached.clear()


def photograph(random, side):
    """Return the bytes of a JPEG whose frequencies have amplitudes of 1 / f, as those of photographs do."""
    frequency = numpy.hypot(numpy.fft.fftfreq(side)[:, None], numpy.fft.fftfreq(side))
    frequency[0, 0] = 1
    layers = numpy.fft.ifft2(numpy.fft.fft2(random.standard_normal((3, side, side))) / frequency).real
    layers[1:] += layers[0]
    pixels = numpy.clip(layers / layers.std() * 50 + 128, 0, 255).astype("uint8").transpose(1, 2, 0)
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def hugging_faces(count):
    """Return datasets of Hugging Face, by what is in them."""
    random = numpy.random.default_rng(1)
    numbers = {"x": [n / 2 for n in range(count)], "label": list(range(count))}
    ids = {"input_ids": [list(range(128)) for _ in range(count)], "label": list(range(count))}
    made = {
        "two numbers": datasets.Dataset.from_dict(numbers),
        "128 integers": datasets.Dataset.from_dict(ids).with_format("torch"),
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for side, n in ((SIDE, count // 5), (3 * SIDE, count // 20)):
        jpegs = [{"bytes": photograph(random, side), "path": None} for _ in range(n)]
        made[f"{side} x {side} JPEG"] = datasets.Dataset.from_dict({"image": jpegs, "label": list(range(n))}, features=features)
    return made


def labels_of(samples):
    """Collates images, which default_collate() refuses, and sends none from the workers."""
    return {"label": [sample["label"] for sample in samples]}


def hugging_face_epoch(dataset, workers):
    collate = labels_of if "image" in dataset.features else None
    seen, begin = 0, time.perf_counter()
    for batch in DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers, collate_fn=collate):
        seen += len(batch["label"])
    if seen != len(dataset):
        raise RuntimeError(f"{seen} of {len(dataset)} samples arrived")
    return seen / (time.perf_counter() - begin)


def hugging_face(arguments):
    for name, source in hugging_faces(arguments.small // 10).items():
        rates = {kind: [[] for _ in arguments.workers] for kind in ("bare", "cached, first epoch", "cached, later")}
        for turn in range(3):
            for n, workers in enumerate(arguments.workers):
                cached = tensorlease.torch.CachedDataset(source, None, f"hf/{name}/{turn}/{workers}")
                for kind, dataset in zip(rates, (source, cached, cached), strict=True):
                    rates[kind][n].append(hugging_face_epoch(dataset, workers))
                cached.clear()
        for kind, each in rates.items():
            print(f"{f'HF {name}, {kind}':36}" + "".join(f"{statistics.median(r):12.0f}" for r in each), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=20000)
    parser.add_argument("--small", type=int, default=200000)
    parser.add_argument("--batches", type=int, default=100, help="that are stacked")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, and two epochs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pictures, arguments.small, arguments.batches, arguments.epochs = 2000, 20000, 20, 2
    warnings.filterwarnings("ignore", message=".*suggested max number of worker")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        capacity = arguments.pictures * (SIDE * SIDE * 3 + 8192) + arguments.small * 1100 + (256 << 20)
        os.environ["TENSORLEASE_SOCKET"] = os.path.join(folder, "socket")
        client = tensorlease.connect(autostart=True)
        if client.status().capacity < capacity:
            parser.exit(1, f"{capacity} bytes are needed; the daemon's capacity is {client.status().capacity}\n")
        print(f"{'samples per second':36}" + "".join(f"{w:>5} worker{'s' * (w > 1)}" for w in arguments.workers))
        try:
            pictures(folder, client, arguments)
            small(folder, client, arguments)
            made = Stacked(arguments.batches)
            stacked = [("stacked, PyTorch's", lambda: made, DataLoader), ("stacked, ours", lambda: made, OURS)]
            print_rows(stacked, arguments.workers, arguments.epochs)
            hugging_face(arguments)
        finally:
            client.delete(prefix="", everything=True, missing_ok=True)  # the daemon that was started ends once there are no names


if __name__ == "__main__":
    main()
