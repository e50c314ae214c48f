# SPDX-License-Identifier: Apache-2.0
"""tensorlease.torch.DataLoader: the same batches as PyTorch's, and nothing left behind."""

import gc
import os
import pathlib
import re
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from conftest import daemon_at, eventually, replace_daemon

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorlease
import tensorlease.torch as shared
from test_dataset import SHAPES, collated, is_same
from torch.utils.data import Dataset, IterableDataset, get_worker_info


@pytest.fixture
def nothing_left(client):
    """No stream, no lease and no file of PyTorch's is left at the end."""
    before = {path for path in os.listdir("/dev/shm") if path.startswith("torch_")}
    yield
    gc.collect()  # exceptions have the iterators from which they came
    eventually(lambda: not client.streams())
    assert {path for path in os.listdir("/dev/shm") if path.startswith("torch_")} <= before


class Samples(Dataset):
    def __init__(self, shape):
        self.shape = shape

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return SHAPES[self.shape](index)


@pytest.mark.parametrize(
    "shape", ["tensor", "large", "bfloat16", "0-dimensional", "empty", "mixed", "deep", "named", "array", "text", "int"]
)
def test_batches_are_those_of_pytorch(client, nothing_left, shape):
    loaders = [
        kind(Samples(shape), 6, num_workers=2, **more)
        for kind, more in ((torch.utils.data.DataLoader, {}), (shared.DataLoader, {"client": client}))
    ]
    expected, got = (collated(loader, list) for loader in loaders)
    assert len(got) == 4 and is_same(got, expected)
    for batch in got:
        if isinstance(batch, torch.Tensor) and batch.numel():
            batch.zero_()  # it may be written to


class Numbers(Dataset):
    def __init__(self, count=40, size=100_000):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((self.size,), index), os.getpid(), get_worker_info().id


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_each_kind(client, nothing_left, method):
    context = torch.multiprocessing.get_context(method)
    for given in (method, context):
        loader = shared.DataLoader(Numbers(), 4, num_workers=2, multiprocessing_context=given, client=client)
        pids, ids, seen = set(), set(), []
        for values, pid, worker in loader:
            assert (values == values[:, :1]).all() and not values.is_shared()
            pids |= set(pid.tolist())
            ids |= set(worker.tolist())
            seen += values[:, 0].tolist()
        assert seen == list(range(40)) and ids == {0, 1} and os.getpid() not in pids and len(pids) == 2


def test_workers_that_stay(client, nothing_left):
    loader = shared.DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True, client=client, shuffle=True)
    pids = set()
    for _ in range(4):
        seen = []
        for values, pid, _ in loader:
            pids |= set(pid.tolist())
            seen += values[:, 0].tolist()
        assert sorted(seen) == list(range(40))
    assert len(pids) == 2
    iterator = iter(loader)
    next(iterator)  # what is under way is given up
    del iterator
    assert len(list(loader)) == 10


def test_without_workers_it_is_pytorchs(client):
    loader = shared.DataLoader([torch.ones(3)] * 4, 2)
    assert [batch.tolist() for batch in loader] == [[[1.0] * 3] * 2] * 2


class Lines(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        yield from (torch.tensor([n]) for n in range(worker.id, 10, worker.num_workers))


def begin(worker):
    np.random.seed(worker)
    Samples.began = worker


class Began(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return Samples.began, {"x": torch.full((3,), index)}


def double(samples):
    return 2 * torch.stack([sample["x"] for _, sample in samples]), [worker for worker, _ in samples]


def test_what_else_a_loader_takes(client, nothing_left):
    got = [int(n) for batch in shared.DataLoader(Lines(), 2, num_workers=2, client=client) for n in batch]
    assert sorted(got) == list(range(10))
    loader = shared.DataLoader(
        Began(), 2, num_workers=2, worker_init_fn=begin, collate_fn=double, prefetch_factor=5, drop_last=True, client=client
    )
    for n, (values, workers) in enumerate(loader):
        assert values[:, 0].tolist() == [4 * n, 4 * n + 2] and workers == [n % 2] * 2


class Broken(Numbers):
    def __getitem__(self, index):
        if index == 13:
            raise KeyError("the 13th")
        if index == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((self.size,), index)


def test_what_a_worker_raises_and_a_worker_that_is_killed(client, nothing_left):
    loader = shared.DataLoader(Broken(), 4, num_workers=1, client=client)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    with pytest.raises(KeyError, match="the 13th"):
        next(iterator)
    del iterator
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(shared.DataLoader(Broken(), sampler=range(20, 40), num_workers=1, client=client))


def test_batches_that_do_not_fit_are_told(tmp_path):
    with daemon_at(f"{tmp_path}/socket", "4M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        loader = shared.DataLoader(Numbers(size=1 << 20), 1, num_workers=2, client=client)
        with pytest.raises(Exception, match="(?s)NoSpaceError.*capacity"):
            list(loader)
        assert len(list(shared.DataLoader(Numbers(size=1000), 1, num_workers=2, client=client))) == 40


class Large(Dataset):
    def __len__(self):
        return 36

    def __getitem__(self, index):
        return torch.full((12 << 20,), index, dtype=torch.uint8)


def is_whole(loader):
    seen = [(int(batch.min()), int(batch.max())) for batch in loader]
    return seen == [(n, n) for n in range(36)]


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_more_batches_are_under_way_than_the_memory_has_room_for(tmp_path, workers):
    with daemon_at(f"{tmp_path}/socket", "32M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        loader = shared.DataLoader(Large(), 1, num_workers=workers, client=client, persistent_workers=True)
        assert is_whole(loader) and is_whole(loader)
        batches = iter(loader)
        next(batches)
        processes = batches._workers
        del batches, loader
        gc.collect()
        assert [process.exitcode for process in processes] == [0] * workers  # none is terminated after 5 s of waiting
        eventually(lambda: not client.streams() and client.status().bytes_used == 0)


def in_a_container(code, *arguments):
    """Runs Python code where /dev/shm has 64 MiB, as in a container."""
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c"]
    mount = "mount -t tmpfs -o size=64M,mode=1777 tmpfs /dev/shm"
    try:
        can = subprocess.run([*unshare, mount], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare (util-linux)")
    if can.returncode:
        pytest.skip(f"no mount namespace: {can.stderr.strip()}")
    program = [sys.executable, "-W", "ignore:This DataLoader will create", "-c", code, os.path.dirname(__file__), *arguments]
    done = subprocess.run([*unshare, f'{mount} && exec "$@"', "sh", *program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


IN_A_CONTAINER = """
import contextlib, os, sys
sys.path.insert(0, sys.argv[1])
import tensorlease, tensorlease.torch as shared
from conftest import daemon_at
from test_loader import Large, is_whole
shm = os.statvfs("/dev/shm")
assert shm.f_blocks * shm.f_frsize == 64 << 20
address, is_inside = sys.argv[2], sys.argv[3] == "inside"
with daemon_at(address, "50%") if is_inside else contextlib.nullcontext():
    with tensorlease.connect(address) as client:
        assert (client.status().capacity <= 32 << 20) == is_inside
        assert is_whole(shared.DataLoader(Large(), 1, num_workers=16, client=client))
"""


def test_16_workers_in_a_container_whose_dev_shm_has_64_mib(tmp_path):
    in_a_container(IN_A_CONTAINER, f"{tmp_path}/inside", "inside")
    with daemon_at(f"{tmp_path}/socket"):
        in_a_container(IN_A_CONTAINER, f"{tmp_path}/socket", "outside")


def test_a_worker_that_waits_for_space_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorlease._loader._LOOK", 0.05)  # of the workers, which are forked
    said = tmp_path / "said"

    def init(_):
        def show(message, *_):
            with said.open("a") as file:
                file.write(f"{message}\n")

        warnings.showwarning = show

    with daemon_at(f"{tmp_path}/socket", "32M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        loader = shared.DataLoader(
            Large(), 1, num_workers=1, client=client, worker_init_fn=init, multiprocessing_context="fork", prefetch_factor=4
        )
        batches = iter(loader)
        eventually(said.exists)  # while nobody takes what is there
        assert [int(batch[0, 0]) for batch in batches] == list(range(36))
        assert re.search(r"^a worker has waited for 0.05 s to hand a batch over: .*", said.read_text())


def test_batches_whose_space_others_keep_are_told(tmp_path, monkeypatch):
    with daemon_at(f"{tmp_path}/socket", "32M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        client.put("other", np.zeros(24 << 20, "uint8"))
        loader = shared.DataLoader(Large(), 1, num_workers=2, client=client, multiprocessing_context="fork")
        with monkeypatch.context() as quick:
            quick.setattr("tensorlease._loader._LOOK", 0.05)
            with pytest.raises(tensorlease.NoSpaceError, match="(?s)batch has 125829.* bytes: .*shm-size.*of the daemon's"):
                list(loader)
        gc.collect()  # the workers end with their iterator, which the exception had
        client.delete("other")
        assert is_whole(loader)


def test_batches_that_are_kept_wait_for_nobody(client):
    """A program that keeps all batches has all of them, more than a stream has items."""
    kept = list(shared.DataLoader(Numbers(1500, 20_000), 1, num_workers=2, client=client))
    assert [int(values[0, 0]) for values, _, _ in kept] == list(range(1500))
    assert all((values == values[:, :1]).all() for values, _, _ in kept)


def test_batches_that_are_kept_leave_memory_for_more(tmp_path):
    with daemon_at(f"{tmp_path}/socket", "48M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        kept = list(shared.DataLoader(Numbers(200, 1 << 17), 1, num_workers=2, client=client))  # 1 MiB each
        assert [int(values[0, 0]) for values, _, _ in kept] == list(range(200))
        assert all((values == values[:, :1]).all() for values, _, _ in kept)


def test_a_cached_dataset_in_workers(client, nothing_left):
    source = [(torch.full((300, 300), n), n) for n in range(100)]
    cached = shared.CachedDataset(source, client, "loader/cached")
    for _ in range(3):
        loader = shared.DataLoader(cached, 8, shuffle=True, num_workers=2, client=client)
        for values, labels in loader:
            assert (values == labels.reshape(-1, 1, 1)).all()
            values.zero_()


ENDLESS = """
import sys, torch, tensorlease, tensorlease.torch as shared
sys.path.insert(0, sys.argv[1])
from test_loader import Numbers
if __name__ == "__main__":
    for values, pid, worker in shared.DataLoader(Numbers(100000), 4, num_workers=2, prefetch_factor=50):
        print(int(pid[0]), flush=True)
"""


def test_workers_end_with_a_program_that_is_killed(tmp_path):
    with daemon_at(f"{tmp_path}/socket", "64M"):
        environment = os.environ | {"TENSORLEASE_SOCKET": f"{tmp_path}/socket"}
        program = [sys.executable, "-c", ENDLESS, os.path.dirname(__file__)]
        with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE) as process:
            pids = {int(process.stdout.readline()) for _ in range(2)}
            process.kill()
        assert len(pids) == 2

        def is_there(pid):
            try:
                return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return False

        eventually(lambda: not any(is_there(pid) for pid in pids))


@pytest.mark.parametrize("storage", ["shm", "memfd"])
def test_batches_go_on_while_the_daemon_is_replaced(tmp_path, storage):
    address, keeps = f"{tmp_path}/socket", ["--keeper", "yes", "--storage", storage]
    with daemon_at(address, "256M", keeps), tensorlease.connect(address) as client:
        loader = shared.DataLoader(Numbers(400), 4, num_workers=2, client=client)
        for n, (values, _, _) in enumerate(loader):
            assert (values == torch.arange(4 * n, 4 * n + 4)[:, None]).all()
            if n % 30 == 10:
                replace_daemon(client)
        assert n == 99
        del loader, values
        gc.collect()
        eventually(lambda: not client.streams())
