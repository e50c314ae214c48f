# SPDX-License-Identifier: Apache-2.0
"""CachedDataset: batches of what is stored, many samples, several processes, and what goes."""

import collections
import json
import os
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import at_each_line, daemon_at, eventually, in_child, replace_daemon, run_python
from limits import limit

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorlease
import tensorlease.torch as shared
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

Pair = collections.namedtuple("Pair", "image label")
T, N = torch.arange, np.arange


def test_samples_of_another_dataset_are_refused(client):
    with pytest.raises(TypeError, match="prefix must be a str that only this dataset has"):
        shared.CachedDataset([1], client)
    first = shared.CachedDataset(Numbers(4), client, "dataset/of one")
    assert [first[n] for n in range(4)] == [0, 1, 2, 3]
    first.flush()
    for other in ([5, 6, 7, 8], Numbers(5)):
        wrong = shared.CachedDataset(other, client, "dataset/of one")
        for _ in range(2):
            with pytest.raises(tensorlease.InvalidError, match=f"has 4 samples of Numbers, and .* of {len(other)} samples"):
                wrong[0]
            with pytest.raises(tensorlease.InvalidError, match=r"call clear\(\)"):
                next(iter(DataLoader(wrong, 2)))
    assert shared.CachedDataset(Numbers(4), client, "dataset/of one")[3] == 3
    wrong.clear()
    assert [wrong[n] for n in range(5)] == [0, 1, 2, 3, 4] and len(first) == 4


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_all_workers_got_is_counted(client, method):
    tool = os.environ.get("TL_TEST_CLI")
    if not tool:
        pytest.skip("TL_TEST_CLI does not say where the command line tool is")
    prefix = f"dataset/counted {method}"
    cached, other = (shared.CachedDataset(Numbers(100), None, path) for path in (prefix, prefix + "/below"))
    client.put(".datasets/x", np.zeros(3, "int64"))  # what looks like a report, and is none
    client.put(f".datasets/{prefix}/y", np.zeros(2, "int64"))
    client.put(f".datasets/{prefix}/z", np.zeros(3))
    other[0]
    for _ in range(3):
        for batch in DataLoader(cached, 10, num_workers=2, multiprocessing_context=method):
            assert len(batch) == 10
    stats = cached.stats()
    assert stats == {"hits": 200, "made": 100, "unkept": 0}
    assert other.stats() == {"hits": 0, "made": 1, "unkept": 0}

    def status(*options):
        return subprocess.run([tool, "status", *options], stdout=subprocess.PIPE, text=True, check=True).stdout

    told = {row.pop("prefix"): row for row in json.loads(status("--json"))["datasets"]}
    assert told[prefix] == stats and told[prefix + "/below"] == other.stats() and "x" not in told
    assert f"dataset\t{prefix}\t200\t100\t0\n" in status()


class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


def grown(n):
    return {"tokens": list(range(n)), "mask": [True] * n}


# Of each shape a function that makes sample n.
SHAPES = {
    "tensor": lambda n: torch.full((3, 4), n),
    "uint8": lambda n: torch.full((5,), n, dtype=torch.uint8),
    "float": lambda n: torch.full((2, 2), n / 3),
    "double": lambda n: torch.full((2,), n / 3, dtype=torch.float64),
    "half": lambda n: torch.full((7,), n / 3, dtype=torch.float16),
    "bfloat16": lambda n: torch.full((3,), n / 3, dtype=torch.bfloat16),
    "complex": lambda n: torch.full((3,), n + 1j),
    "bool": lambda n: torch.tensor([n % 2 == 0, True]),
    "0-dimensional": lambda n: torch.tensor(n),
    "empty": lambda n: torch.empty(0, 3),
    "empty with a row": lambda n: torch.empty(2, 0, dtype=torch.int32),
    "large": lambda n: torch.full((300, 1000), n / 7),
    "channels last": lambda n: torch.full((1, 3, 4, 5), n).to(memory_format=torch.channels_last),
    "transposed": lambda n: (T(12) + n).view(3, 4).T,
    "expanded": lambda n: torch.tensor([n]).expand(4),
    "int": lambda n: n,
    "negative": lambda n: -n - (1 << 40),
    "float number": lambda n: n / 3,
    "not a number": lambda n: float("inf") if n % 2 else -0.0,
    "bool number": lambda n: n % 2 == 0,
    "text": lambda n: f"t{n}",
    "long texts": lambda n: "ä" * n,
    "surrogate": lambda n: "\ud800" * n,
    "bytes": lambda n: b"x" * n,
    "array": lambda n: N(6.0).reshape(2, 3) + n,
    "array float32": lambda n: np.full((3,), n, "float32"),
    "array int16": lambda n: np.full((2, 1), n, "int16"),
    "array bool": lambda n: np.array([n % 2 == 0]),
    "array of no dimensions": lambda n: np.array(n),
    "empty array": lambda n: np.zeros((0, 2)),
    "fortran": lambda n: np.asfortranarray(N(6.0).reshape(2, 3) + n),
    "numpy number": lambda n: np.float32(n),
    "numpy int": lambda n: np.int8(n),
    "numpy bool": lambda n: np.bool_(n % 2),
    "tuple": lambda n: (torch.full((2,), n), n),
    "tuple of one": lambda n: (n,),
    "list": lambda n: [torch.full((2,), n), f"{n}"],
    "no part": lambda n: (),
    "empty list": lambda n: [],
    "empty dict": lambda n: {},
    "dict": lambda n: {"image": torch.full((2, 2), n), "label": n, "name": f"p{n}"},
    "dict in dict": lambda n: {"a": {"b": {"c": n}}, 1: torch.tensor([n])},
    "deep": lambda n: [({"x": [n, (torch.tensor(n), {"y": f"{n}"})]}, b"z")],
    "named": lambda n: Pair(torch.full((2,), n), n),
    "named in dict": lambda n: {"pair": Pair(n, (f"{n}", np.float64(n))), "list": [n]},
    "mixed": lambda n: (torch.full((3,), n), np.full(2, n), n, n / 2, n == 1, f"{n}", b"%d" % n, np.int64(n)),
    "of equal length": lambda n: grown(3),
    "many leaves": lambda n: {f"f{i}": torch.full((i,), n) for i in range(40)},
    "two layouts": lambda n: {"x": torch.full((2,), n)} if n % 2 else {"x": torch.full((2,), n), "y": 1},
    "int or float": lambda n: n if n % 2 else n / 2,
    # these cannot be collated
    "different shapes": lambda n: torch.full((n + 1,), n),
    "lists that grow": grown,
    "none": lambda n: {"x": None},
    "big int": lambda n: n + (1 << 64),
    "array of text": lambda n: np.array([f"{n}"]),
    "big-endian": lambda n: N(3).astype(">i2") + n,
}


def is_same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and a.equal(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    return a == b


def collated(samples, collate=default_collate):
    try:
        return collate(samples)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("shape", SHAPES)
def test_batches_are_those_of_default_collate(client, shape):
    samples = [SHAPES[shape](n) for n in range(20)]
    cached = shared.CachedDataset(samples, client, f"dataset/{shape}")
    order = random.Random(1).sample(range(20), 20)
    for round in range(3):
        for sampler in ([order[:7], order[7:]], [[3, 3, 5]], [[4]], [range(0, 20, 2)]):
            loader = DataLoader(cached, batch_sampler=sampler)
            got = collated(loader, list)
            expected = collated(DataLoader(samples, batch_sampler=sampler), list)
            assert is_same(got, expected), (round, got, expected)
        cached.flush()
    assert all(is_same(collated([cached[n]]), collated([samples[n]])) for n in range(20))
    assert cached.stats()["made"] == 20


class Whole(Dataset):
    """Makes several samples in one call, as Hugging Face's do, and notes for how many it was asked."""

    classes = ("cat", "dog")

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indexes):
        self.asked.append(len(indexes))
        return [{"x": torch.full((3,), index), "label": index} for index in indexes]


def test_what_is_missing_in_a_batch_is_made_by_one_call(client):
    source = Whole()
    cached = shared.CachedDataset(source, client, "dataset/whole")
    assert cached[5]["label"] == 5
    for _ in range(2):
        for n, batch in enumerate(DataLoader(cached, 100)):
            assert batch["label"].tolist() == list(range(100 * n, 100 * n + 100))
            assert (batch["x"] == batch["label"].view(-1, 1)).all()
    assert source.asked == [1, 64, 35, 64, 36]
    assert cached.stats() == {"hits": 201, "made": 200, "unkept": 0}
    assert cached.classes == ("cat", "dog")
    with pytest.raises(AttributeError, match="nothing"):
        cached.nothing  # noqa: B018
    assert pickle.loads(pickle.dumps(cached)).classes == cached.classes


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_samples_is_refused(client, change):
    class Wrong(Whole):
        def __getitems__(self, indexes):
            return super().__getitems__([*indexes, 7][: len(indexes) + change])

    cached = shared.CachedDataset(Wrong(), client, f"dataset/wrong{change}")
    for collate in (None, list):
        with pytest.raises(ValueError, match=f"returned {5 + change} samples for 5 indexes"):
            next(iter(DataLoader(cached, 5, collate_fn=collate)))
    assert cached.stats()["made"] == 0 and client.keys("dataset/wrong") == []


def images(mode, count):
    rng = np.random.default_rng(1)
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    whole = [image.fromarray(rng.integers(0, 256, (4, 5, 3), "uint8")) for _ in range(count)]
    return [{"image": one.convert(mode), "label": n} for n, one in enumerate(whole)]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "F", "I", "LA", "CMYK", "HSV"])
def test_images_of_pil_come_back(client, mode):
    samples = images("RGB", 20) if mode == "HSV" else images("L" if mode in ("F", "I", "LA") else "RGB", 20)
    samples = [{**sample, "image": sample["image"].convert(mode)} for sample in samples]
    cached = shared.CachedDataset(samples, client, f"dataset/images{mode}")
    for _ in range(2):
        for n in range(20):
            image = cached[n]["image"]
            assert (image.mode, image.size) == (mode, (5, 4)) and image == samples[n]["image"]
        (batch,) = DataLoader(cached, 20, collate_fn=list)
        assert [one["image"] for one in batch] == [one["image"] for one in samples]
        with pytest.raises(TypeError, match="PIL"):
            next(iter(DataLoader(cached, 20)))
        cached.flush()


def test_an_image_that_was_just_made_is_a_copy(client):
    samples = [
        {"both": [a["image"], (b["image"], n)]} for n, (a, b) in enumerate(zip(images("RGB", 9), images("L", 9), strict=True))
    ]
    samples[0]["both"][0].info["dpi"] = (72, 72)
    cached = shared.CachedDataset(samples, client, "dataset/images of ones own")
    expected = [[one["both"][0].tobytes(), one["both"][1][0].tobytes()] for one in samples]
    (batch,) = DataLoader(Subset(cached, [*range(9), 0]), 10, collate_fn=list)
    for _ in range(2):
        assert [[one["both"][0].tobytes(), one["both"][1][0].tobytes()] for one in batch[:9]] == expected
        assert [one["both"][1][1] for one in batch] == [*range(9), 0]
        assert not batch[0]["both"][0].info and batch[0]["both"][0] == batch[9]["both"][0]
        for one in batch:
            one["both"][0].paste((1, 2, 3), (0, 0, 5, 4))
            one["both"][1][0].putpixel((0, 0), 255)
        assert [[one["both"][0].tobytes(), one["both"][1][0].tobytes()] for one in samples] == expected
        cached.flush()
        (batch,) = DataLoader(Subset(cached, [*range(9), 0]), 10, collate_fn=list)
    assert cached.stats()["made"] == 9


def test_an_image_with_a_palette_is_refused(client):
    samples = [{"image": sample["image"].convert("P")} for sample in images("RGB", 2)]
    with pytest.raises(TypeError, match="its mode is 'P'; give sample.convert"):
        shared.CachedDataset(samples, client, "dataset/palette")[0]


def test_a_dataset_of_hugging_face(client):
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    rows = {"text": [f"t{n}" for n in range(100)], "label": list(range(100)), "x": [[n, n / 2] for n in range(100)]}
    rows["image"] = [sample["image"] for sample in images("RGB", 100)]
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.Value("int64"),
            "x": datasets.Sequence(datasets.Value("float32")),
            "image": datasets.Image(),
        }
    )
    source = datasets.Dataset.from_dict(rows, features=features)
    cached = shared.CachedDataset(source, client, "dataset/hugging face")
    assert cached.features == source.features and cached.column_names == source.column_names
    for _ in range(2):
        for n, batch in enumerate(DataLoader(cached, 32, collate_fn=list)):
            for one, expected in zip(batch, source.select(range(32 * n, min(32 * n + 32, 100))), strict=True):
                assert one.pop("image").tobytes() == expected.pop("image").tobytes() and one == expected
    assert cached.stats()["made"] == 100


class Counted(Dataset):
    """Writes down which samples it has made."""

    def __init__(self, log, count, size=100):
        self.log, self.count, self.size = log, count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with open(self.log, "a") as log:
            log.write(f"{index}\n")
        return torch.full((self.size,), index, dtype=torch.int32), index

    def made(self):
        return [int(line) for line in self.log.read_text().split()]


def check_batches(loader, count):
    seen = []
    for values, labels in loader:
        assert (values == labels.reshape(-1, 1)).all()
        seen += labels.tolist()
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_batches_in_workers(client, tmp_path, workers, method):
    source = Counted(tmp_path / "log", 1000)
    cached = shared.CachedDataset(source, client, f"dataset/workers{workers}{method}")
    loader = DataLoader(  # of 60: so that no number of them has as many samples as a process may claim
        cached, 60, shuffle=True, num_workers=workers, multiprocessing_context=method, persistent_workers=workers > 0
    )
    for _ in range(3):
        check_batches(loader, 1000)
    assert sorted(source.made()) == list(range(1000))


def test_a_pack_that_cannot_be_stored_is_told_of_and_made_anew(client, tmp_path, monkeypatch):
    source = Counted(tmp_path / "log", 1000, 8192)
    cached = shared.CachedDataset(source, client, "dataset/refused")
    cached.__getitems__(list(range(10)))
    cached.flush()
    store = cached._store()

    def refuse(parts):
        raise PermissionError("not here")

    monkeypatch.setattr(store, "publish", refuse)
    cached.__getitems__(list(range(10, 310)))
    store.thread.join()
    monkeypatch.undo()
    with pytest.raises(PermissionError, match="not here"):
        cached[0]
    for _ in range(2):
        assert [int(label) for _, label in cached.__getitems__(list(range(400)))] == list(range(400))
        cached.flush()
    assert set(source.made()) == set(range(400)) and len(source.made()) <= 700


class Augmented(Dataset):
    """As most programs have it: something of their own for each sample."""

    def __init__(self, cached):
        self.cached = cached

    def __len__(self):
        return len(self.cached)

    def __getitem__(self, index):
        values, label = self.cached[index]
        return values.mul_(-1), label


def test_samples_one_by_one_share_packs(client, tmp_path):
    source = Counted(tmp_path / "log", 2000)
    cached = shared.CachedDataset(source, client, "dataset/single")
    for _ in range(2):
        for values, labels in DataLoader(Augmented(cached), 50, shuffle=True):
            assert (values == -labels.reshape(-1, 1)).all()
    cached.flush()
    assert len(source.made()) == 2000 and len(client.keys("dataset/single")) < 500


def test_a_collate_fn_of_ones_own_gets_samples(client):
    cached = shared.CachedDataset([(torch.tensor([n]), n) for n in range(8)], client, "dataset/own")
    for _ in range(2):
        (batch,) = DataLoader(cached, 8, collate_fn=list)
        assert [(int(value), label) for value, label in batch] == [(n, n) for n in range(8)]
        cached.flush()
    ((values, _),) = DataLoader(Subset(cached, [5, 2]), 2)
    assert values.tolist() == [[5], [2]]
    assert [label for _, label in cached.__getitems__([1, 7])] == [1, 7]


def test_what_is_written_to_a_batch_is_nobody_elses(client):
    cached = shared.CachedDataset([torch.zeros(3) for _ in range(4)], client, "dataset/written")
    list(DataLoader(cached, 4))
    cached.flush()
    for _ in range(2):
        (batch,) = DataLoader(cached, 4)
        assert not batch.any()
        batch.fill_(1)


def test_a_second_program_finds_all(client, tmp_path):
    source = Counted(tmp_path / "log", 3000, 2)
    check_batches(DataLoader(shared.CachedDataset(source, client, "dataset/second"), 100), 3000)
    other = shared.CachedDataset(source, client, "dataset/second")
    other.flush()
    eventually(lambda: len(client.keys("dataset/second")) >= 3000 // 256)

    def again():
        cached = shared.CachedDataset(source, None, "dataset/second")
        before = cached.stats()
        check_batches(DataLoader(cached, 100, shuffle=True), 3000)
        assert cached.stats() == {**before, "hits": before["hits"] + 3000}

    in_child(again)
    other.clear()
    assert client.keys("dataset/second") == []
    check_batches(DataLoader(other, 100), 3000)
    assert len(source.made()) == 6000


CLEARED = """
import tensorlease.torch as shared
cached = shared.CachedDataset(range(10), None, "dataset/cleared")
assert cached[7] == 7
cached.flush()
assert cached.stats() == {"hits": 0, "made": 1, "unkept": 0} and cached[7] == 7
cached.clear()
assert cached.stats() == {"hits": 0, "made": 0, "unkept": 0}
"""


def test_a_process_that_has_cleared_it_leaves_nothing(client):
    run_python(CLEARED)
    assert client.keys("dataset/cleared") + client.keys(".datasets/dataset/cleared") == []


FILLS = """
import os, sys, torch, tensorlease.torch as shared
from torch.utils.data import DataLoader
sys.path.insert(0, sys.argv[1])
from test_dataset import Counted, check_batches
from pathlib import Path
cached = shared.CachedDataset(Counted(Path(sys.argv[2]), 4000), None, "dataset/killed")
print("begins", flush=True)
check_batches(DataLoader(cached, 32, shuffle=True), 4000)
"""


def test_processes_that_fill_it_at_once_and_one_that_is_killed(tmp_path):
    with daemon_at(f"{tmp_path}/socket"):
        run = [sys.executable, "-c", FILLS, os.path.dirname(__file__), tmp_path / "log"]
        environment = os.environ | {"TENSORLEASE_SOCKET": f"{tmp_path}/socket"}
        processes = [subprocess.Popen(run, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
        try:
            for process in processes:
                assert process.stdout.readline() == b"begins\n"
            source = Counted(tmp_path / "log", 4000)
            eventually(lambda: source.log.exists() and len(source.made()) > 500)
            processes[0].kill()
            for process in processes[1:]:
                assert process.wait(limit(120)) == 0
        finally:
            for process in processes:
                process.kill()
                process.wait()
                process.stdout.close()
        made = collections.Counter(source.made())
        assert len(made) == 4000
        assert sum(made.values()) <= 4000 + 2 * 256  # what the one that was killed had made and not stored


def test_what_has_gone_is_made_anew(client, tmp_path):
    source = Counted(tmp_path / "log", 600)
    cached = shared.CachedDataset(source, client, "dataset/gone")
    check_batches(DataLoader(cached, 60), 600)
    cached.flush()
    packs = client.keys("dataset/gone")
    client.delete(packs[0])
    check_batches(DataLoader(cached, 60), 600)
    again = len(source.made()) - 600
    assert 0 < again < 600
    stop = threading.Event()

    def delete():
        while not stop.is_set():
            for name in client.keys("dataset/gone")[:1]:
                client.delete(name, missing_ok=True)

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        for _ in range(3):
            check_batches(DataLoader(cached, 60, shuffle=True), 600)
    finally:
        stop.set()
        thread.join()


def test_a_pack_that_goes_while_another_thread_reads(client, tmp_path):
    cached = shared.CachedDataset(Counted(tmp_path / "log", 10), client, "dataset/threads")
    check_batches(DataLoader(cached, 5), 10)
    cached.flush()
    store = cached._store()
    store.refresh()
    place = int(store.places[3])  # what the other thread has just read
    assert store.read(place)[0][1] == 3
    client.delete("dataset/threads/.samples/" + store.packs[place >> 32][0].rpartition("/")[2])
    store.refresh()
    assert store.read(place) is None
    check_batches(DataLoader(cached, 5), 10)


def test_threads_that_read_while_samples_wait_and_the_program_forks(client, tmp_path):
    source = Counted(tmp_path / "log", 2000)
    source.log.touch()
    cached = shared.CachedDataset(source, client, "dataset/forks")
    failed, stop = [], threading.Event()

    def read(seed):
        order = random.Random(seed)
        while not stop.is_set():
            index = order.randrange(2000)
            some = [index, order.randrange(2000)]
            for number, (values, label) in zip([*some, index], [*cached.__getitems__(some), cached[index]], strict=True):
                if label != number or not (values == number).all():
                    failed.append(number)

    def read_all():
        check_batches(DataLoader(cached, 50, shuffle=True), 2000)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            eventually(lambda: cached._store().waiting.samples or len(source.made()) >= 2000)
            in_child(read_all)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    cached.flush()
    read_all()


def test_a_fork_while_another_thread_learns_of_packs(client, tmp_path):
    """The child goes on with what that thread has noted of them until then."""
    source = Counted(tmp_path / "log", 60)
    writer = shared.CachedDataset(source, client, "dataset/learns")
    for start in range(0, 60, 20):
        writer.__getitems__(range(start, start + 20))
        writer.flush()
    reader, forks = None, 0

    def learn():
        nonlocal reader
        reader = None
        reader = shared.CachedDataset(source, client, "dataset/learns")
        reader._store().refresh()

    def fork_and_read():
        nonlocal forks
        if reader is not None and reader._known is not None:
            forks += 1
            in_child(lambda: check_batches(DataLoader(reader, 20), 60))

    assert at_each_line("_dataset.py", learn, fork_and_read) > forks > 20
    assert len(source.made()) == 60


def test_it_goes_on_with_another_daemon(tmp_path):
    source, address = Counted(tmp_path / "log", 300), f"{tmp_path}/socket"
    with daemon_at(address) as first, tensorlease.connect(address) as client:
        cached = shared.CachedDataset(source, client, "dataset")
        check_batches(DataLoader(cached, 60), 300)
        cached.flush()
        first.kill()
        first.wait()
        with daemon_at(address):
            for _ in range(2):
                check_batches(DataLoader(cached, 60), 300)
    assert sorted(source.made()) == sorted(list(range(300)) * 2)


@pytest.mark.parametrize("storage", ["shm", "memfd"])
def test_it_goes_on_while_the_daemon_is_replaced(tmp_path, storage):
    """Its keeper starts another, which has what was stored."""
    source, address, keeps = Counted(tmp_path / "log", 600), f"{tmp_path}/socket", ["--keeper", "yes", "--storage", storage]
    with daemon_at(address, "64M", keeps), tensorlease.connect(address) as client:
        cached = shared.CachedDataset(source, client, "dataset")
        for _ in range(3):
            seen = []
            for n, (values, labels) in enumerate(DataLoader(cached, 60, shuffle=True)):
                assert (values == labels.reshape(-1, 1)).all()
                values.zero_()  # nobody else sees it
                seen += labels.tolist()
                if n == 5:
                    replace_daemon(client)
            assert sorted(seen) == list(range(600))
        cached.flush()
        made = len(source.made())
        for kind in (DataLoader, shared.DataLoader):
            options = {"client": client} if kind is shared.DataLoader else {}
            check_batches(kind(cached, 60, shuffle=True, num_workers=2, **options), 600)
        assert len(source.made()) == made <= 600 + 256  # a claim may go with a daemon, and a pack that it was just given


@pytest.mark.parametrize("shuffle", [False, True])
def test_of_what_is_too_much_a_part_stays(tmp_path, shuffle):
    """16 KiB each, and half of them fit: each later epoch finds those, in whatever order it goes."""
    with daemon_at(f"{tmp_path}/socket", "16M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        source = Counted(tmp_path / "log", 2000, size=4096)
        cached = shared.CachedDataset(source, client, "dataset")
        check_batches(DataLoader(cached, 50), 2000)
        for _ in range(3):
            before = len(source.made())
            check_batches(DataLoader(cached, 50, shuffle=shuffle), 2000)
            cached.flush()
            assert 600 < len(source.made()) - before < 1400
        stats = cached.stats()
        assert stats["made"] == len(source.made()) and stats["hits"] + stats["made"] == 8000 and stats["unkept"] > 0


def test_an_error_of_the_dataset_leaves_no_claim(client):
    class Broken(Dataset):
        broken = True

        def __len__(self):
            return 3

        def __getitem__(self, index):
            if self.broken and index == 1:
                raise OSError("no such picture")
            return index

    source = Broken()
    cached = shared.CachedDataset(source, client, "dataset/broken")
    with pytest.raises(OSError, match="no such picture"):
        list(DataLoader(cached, 3))
    source.broken = False
    assert [batch.tolist() for batch in DataLoader(cached, 3)] == [[0, 1, 2]]
