# SPDX-License-Identifier: Apache-2.0
"""tensorlease.torch.SharedLoader: every trainer gets every batch once, in one order, whoever is killed."""

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from conftest import daemon_at, eventually

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorlease
import tensorlease.torch as shared
from test_dataset import SHAPES, is_same
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

COUNT = 203


class Numbers(Dataset):
    """Samples that say which ones they are: large, so that a batch is shared memory, or small."""

    def __init__(self, count=COUNT, size=40_000):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((self.size,), index, dtype=torch.int32), index, f"number {index}"


class Lines(IterableDataset):
    def __iter__(self):
        yield from (torch.full((40_000,), n) for n in range(COUNT))


class Broken(Numbers):
    """Raises for one sample, and its worker is killed for another one."""

    def __getitem__(self, index):
        if index == 61:
            raise KeyError("the 61st")
        if index == 150:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def order(epoch, seed=0, count=COUNT):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


def numbers_of(batch):
    values, labels, texts = batch
    assert (values == labels.reshape(-1, 1)).all() and [f"number {n}" for n in labels.tolist()] == list(texts)
    return labels.tolist()


def epoch_of(loader):
    return [number for batch in loader for number in numbers_of(batch)]


@pytest.fixture
def make(client):
    """Makes SharedLoaders. At the end they are closed, and nothing of them is left."""
    made = []

    def make(dataset=None, batch_size=8, *, name="shared", num_workers=1, **options):
        made.append(shared.SharedLoader(dataset or Numbers(), batch_size, name=name, num_workers=num_workers, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    made.clear()
    gc.collect()
    assert not client.streams()
    assert not torch.multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 2, None])
def test_trainers_get_all_samples_in_one_order(make, workers):
    loaders = [make(shuffle=True, num_workers=workers) for _ in range(3)]
    for epoch in range(3):
        seen = [[], [], []]
        for batches in zip(*loaders, strict=True):
            assert len(batches[0][0]) == (8 if len(seen[0]) < 200 else 3)
            for numbers, batch in zip(seen, batches, strict=True):
                numbers += numbers_of(batch)
                batch[0].zero_()  # nobody else sees that
        assert seen == [order(epoch)] * 3 and all(loader.epoch == epoch for loader in loaders)
    assert len(loaders[0]) == 26


@pytest.mark.parametrize("shape", SHAPES)
def test_batches_are_those_of_default_collate(make, shape):
    samples = [SHAPES[shape](n) for n in range(11)]
    loader = make(samples, 4, num_workers=0)
    try:
        expected = list(DataLoader(samples, 4))
    except Exception as error:  # they cannot be collated
        with pytest.raises(RuntimeError, match=f"could not be loaded from sample . of epoch 0 on: {type(error).__name__}"):
            list(loader)
    else:
        assert is_same(list(loader), expected)


def test_batches_of_other_sizes(make):
    sizes = [8, 3, 16, 8, 1, 200, 300]
    drops = [False, False, True, True, False, True, False]
    loaders = [make(shuffle=True, batch_size=n, drop_last=drop, depth=64) for n, drop in zip(sizes, drops, strict=True)]
    iterators = [iter(loader) for loader in loaders]
    for size, drop, loader, iterator in zip(sizes, drops, loaders, iterators, strict=True):
        batches = [numbers_of(batch) for batch in iterator]
        assert [n for batch in batches for n in batch] == order(0)[: COUNT // size * size if drop else COUNT]
        assert all(len(batch) == size for batch in batches[:-1]) and len(batches) == len(loader)
    for loader, iterator in zip(loaders, [iter(loader) for loader in loaders], strict=True):
        assert len(numbers_of(next(iterator))) == min(loader.batch_size, COUNT)


class Pairs(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"x": np.full((2,), index), "part": [(f"{index}", index / 2)], "y": b"z" * index}


def test_batches_are_cut_and_joined_whatever_they_are_made_of(make):
    loaders = [make(Pairs(), size, depth=16, num_workers=0) for size in (4, 7)]
    iterators = [iter(loader) for loader in loaders]
    for loader, iterator in zip(loaders, iterators, strict=True):
        assert is_same(list(iterator), list(DataLoader(Pairs(), loader.batch_size)))


def images(samples):
    return [torch.full((3, 4, 4), number) for _, number, _ in samples]


def test_batches_that_cannot_be_divided_are_told(make):
    """Nobody knows whether a part of it has a row for each sample."""
    first = make(batch_size=4, collate_fn=images, num_workers=0)
    iterator = iter(first)
    assert [int(image[0, 0, 0]) for image in next(iterator)] == [0, 1, 2, 3]
    for size in (2, 3, 8):
        with pytest.raises(ValueError, match=f"have up to 4 samples, and here up to {size} are wanted: what a collate_fn"):
            next(iter(make(batch_size=size, collate_fn=images, num_workers=0)))
    rest = list(iterator)  # nobody of those is waited for
    assert len(rest) == 50 and len(rest[-1]) == 3


def test_a_trainer_that_comes_late(make, client):
    """It gets what is kept, and the rest of the epoch; or the next one."""
    first = make(shuffle=True, depth=4)
    iterator = iter(first)
    got = [n for _ in range(8) for n in numbers_of(next(iterator))]
    rest, following = make(shuffle=True, depth=4), make(shuffle=True, depth=4, join="next")
    late = iter(rest), iter(following)
    seen = numbers_of(next(late[0]))
    assert seen == order(0)[order(0).index(seen[0]) :][:8] and 32 <= order(0).index(seen[0]) <= 64
    begin = order(0).index(seen[0])
    threads = [threading.Thread(target=lambda: got.extend(n for batch in iterator for n in numbers_of(batch)))]
    threads.append(threading.Thread(target=lambda: seen.extend(n for batch in late[0] for n in numbers_of(batch))))
    for thread in threads:
        thread.start()
    assert numbers_of(next(late[1])) == order(1)[:8] and following.epoch == 1
    for thread in threads:
        thread.join()
    assert got == order(0) and seen == order(0)[begin:] and rest.epoch == 0
    iterators = [iter(first), iter(rest), late[1]]
    assert numbers_of(next(iterators[2])) == order(1)[8:16]
    assert [numbers_of(next(iterator)) for iterator in iterators[:2]] == [order(1)[:8]] * 2


def test_epochs_are_counted_for_all(make):
    first, second = make(shuffle=True, num_workers=0, depth=64), make(shuffle=True, num_workers=0, depth=64)
    first.set_epoch(3)
    iterators = iter(first), iter(second)
    for loader, iterator in zip((first, second), iterators, strict=True):  # for the second it is the first one
        assert [n for batch in iterator for n in numbers_of(batch)] == order(3) and loader.epoch == 3
    second.set_epoch(1)  # which has been
    assert epoch_of(second) == order(4) and second.epoch == 4
    assert epoch_of(first) == order(4)
    first.set_epoch(6)
    second.set_epoch(6)
    for batches in zip(first, second, strict=True):
        assert [numbers_of(batch) for batch in batches] == [numbers_of(batches[0])] * 2
    assert first.epoch == second.epoch == 6


def test_an_iteration_that_is_left_is_followed_by_the_next_epoch(make):
    loader = make(shuffle=True)
    for epoch in range(3):
        for batch in loader:
            assert numbers_of(batch) == order(epoch)[:8]
            break


@pytest.mark.parametrize(("size", "kind"), [(8, Numbers), (5, Numbers), (8, Lines)])
def test_a_trainer_goes_on_where_it_was(make, size, kind):
    options = {"shuffle": True} if kind is Numbers else {}
    loader = make(kind(), **options)
    iterator = iter(loader)
    for _ in range(9):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state == {"epoch": 0, "samples": 72}
    loader.close()
    again = make(kind(), size, **options)
    again.load_state_dict(state)
    expected = order(0) if kind is Numbers else list(range(COUNT))
    got = [n for batch in again for n in (numbers_of(batch) if kind is Numbers else batch[:, 0].tolist())]
    assert got == expected[72:]
    assert again.state_dict() == {"epoch": 1, "samples": 0}
    assert len(list(again)) == math_ceil(COUNT, size)


def test_a_state_of_the_last_batch_and_one_that_is_over(make):
    loader = make(shuffle=True)
    states = [loader.state_dict() for _ in loader]
    loader.close()
    again = make(shuffle=True)
    again.load_state_dict(states[-1])
    assert epoch_of(again) == order(1)
    for state in (states[3], {"epoch": 0, "samples": 0}):  # back, which the only trainer may go
        again.load_state_dict(state)
        assert epoch_of(again) == order(0)[state["samples"] :] and again.epoch == 0


def test_an_older_iteration_is_over(make):
    loader = make(shuffle=True)
    older = iter(loader)
    next(older)
    assert epoch_of(loader) == order(1)
    with pytest.raises(RuntimeError, match="another iteration of 'shared' has begun"):
        next(older)


def test_batches_that_are_kept(tmp_path):
    with daemon_at(f"{tmp_path}/socket", "64M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        with shared.SharedLoader(Numbers(700, 40_000), 1, name="kept", num_workers=0, client=client) as loader:
            kept = list(loader)
        assert [number for batch in kept for number in numbers_of(batch)] == list(range(700))


def math_ceil(count, size):
    return -(-count // size)


def test_what_cannot_be_loaded_is_told_to_all(make):
    loaders = [make(Broken(), sampler=range(40, 80), num_workers=workers) for workers in (1, 1)]
    iterators = [iter(loader) for loader in loaders]
    for loader, iterator in zip(loaders, iterators, strict=True):
        assert [numbers_of(next(iterator)) for _ in range(2)] == [list(range(40, 48)), list(range(48, 56))]
        with pytest.raises(RuntimeError, match="(?s)'shared' could not be loaded from sample 16 of epoch 0 on: KeyError.*61st"):
            next(iterator)
        assert numbers_of(next(iter(loader))) == list(range(40, 48)) and loader.epoch == 1


def test_a_worker_that_is_killed_is_told(make):
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(make(Broken(), sampler=range(140, 180)))


@pytest.mark.parametrize("trainers", [1, 2])
def test_only_the_process_that_loads_is_killed(make, client, trainers):
    loaders = [make(shuffle=True, depth=2) for _ in range(trainers)]
    iterators = [iter(loader) for loader in loaders]
    seen = [[] for _ in loaders]
    warned = 0
    for n in range(26):
        if n in (3, 11):
            (loads,) = (member.pid for member in client.stream("shared", existing=True).members() if member.role == "producer")
            (process,) = (one for one in torch.multiprocessing.active_children() if one.pid == loads)
            process.kill()
            process.join()
            for stream in client.streams():  # that of its workers' batches would stay for a minute
                if stream.name.startswith(f"queue/{loads}-"):
                    client.delete(stream.name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for numbers, iterator in zip(seen, iterators, strict=True):
                numbers += numbers_of(next(iterator))
        warned += sum("has ended with exit code -9: another one begins" in str(one.message) for one in caught)
    assert seen == [order(0)] * trainers
    assert all(next(iterator, None) is None for iterator in iterators)
    if trainers == 1:
        assert warned == 2


def test_an_iterable_dataset(make):
    loaders = [make(Lines(), 10), make(Lines(), 4)]
    for _ in range(2):
        got = [[], []]
        threads = [
            threading.Thread(target=lambda n=n: got[n].extend(batch[:, 0].tolist() for batch in loaders[n])) for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(batches) for batches in got] == [21, 51]
        assert [[n for batch in batches for n in batch] for batches in got] == [list(range(COUNT))] * 2
    with pytest.raises(TypeError):
        len(loaders[0])


class Pictures(IterableDataset):
    """Two workers have shares of other sizes, so that each has a last batch with fewer samples."""

    def __iter__(self):
        yield from (torch.full((3, 4, 4), number) for number in range(get_worker_info().id, 23, 2))


@pytest.mark.parametrize("drop", [False, True])
def test_lists_of_an_iterable_dataset_stay_as_they_are(make, drop):
    """The first tensor of such a batch has 3 rows, which are its colours."""
    expected = list(DataLoader(Pictures(), 5, num_workers=2, collate_fn=list))
    loaders = [make(Pictures(), 5, num_workers=2, collate_fn=list, drop_last=drop) for _ in range(2)]
    for iterator in [iter(loader) for loader in loaders]:
        assert is_same(list(iterator), [batch for batch in expected if len(batch) == 5 or not drop])


def test_an_epoch_without_samples_is_told(make):
    with pytest.raises(RuntimeError, match="epoch 0 has no samples"):
        list(make([1], sampler=[]))

    class Nothing(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(RuntimeError, match="epoch 0 has no samples"):
        list(make(Nothing(), name="nothing"))


@pytest.mark.parametrize("kind", ["list", "random", "weighted", "batches"])
def test_samplers(make, kind):
    def options():
        weights = [1.0] * COUNT
        return {
            "list": {"sampler": list(range(50, 0, -1))},
            "random": {"sampler": RandomSampler(range(COUNT))},
            "weighted": {"sampler": WeightedRandomSampler(weights, 100)},
            "batches": {"batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 9, False), "batch_size": 1},
        }[kind]

    first, second = make(**options(), depth=64), make(**options(), depth=64)
    iterators = [iter(first), iter(second)]
    got = [[numbers_of(next(iterator)) for _ in range(4)] for iterator in iterators]
    first.close()  # the second one goes on
    got[1] += [numbers_of(batch) for batch in iterators[1]]
    numbers = [n for batch in got[1] for n in batch]
    assert got[1][:4] == got[0] and len(got[1]) == len(second)
    assert len(numbers) == {"list": 50, "weighted": 100}.get(kind, COUNT)
    if kind != "weighted":
        assert len(set(numbers)) == len(numbers)


class Whatever:
    """A sampler with another order in each process, or call."""

    def __len__(self):
        return COUNT

    def __iter__(self):
        return iter(random.sample(range(COUNT), COUNT))


def test_another_order_elsewhere_is_told(make):
    with pytest.raises(ValueError, match="is loaded in another order than this process has: give all trainers the same"):
        next(iter(make(sampler=Whatever(), depth=2, name="whatever")))
    iterator = iter(make(shuffle=True))
    next(iterator)
    for options in ({}, {"sampler": range(COUNT)}, {"sampler": DistributedSampler(range(2 * COUNT), 2, 0)}):
        with pytest.raises(ValueError, match="another order"):
            next(iter(make(**options)))
    assert len(list(iterator)) == 25


class Shards(IterableDataset):
    """Each worker has a share, and says by chance how it augments it."""

    def __iter__(self):
        worker = get_worker_info()
        yield from ((number, int(torch.randint(1 << 30, ()))) for number in range(worker.id, 60, worker.num_workers))


@pytest.mark.parametrize("begin", [1, 2])
def test_who_goes_on_has_as_many_workers(make, begin):
    loaders = [make(Shards(), 4, num_workers=begin), make(Shards(), 4, num_workers=3 - begin)]
    iterators = [iter(loader) for loader in loaders]
    seen = [[], []]
    for numbers, iterator in zip(seen, iterators, strict=True):
        for _ in range(5):
            numbers += next(iterator)[0].tolist()
    loaders[0].close()
    seen[1] += [number for batch in iterators[1] for number in batch[0].tolist()]
    assert seen[1][:20] == seen[0] and sorted(seen[1]) == list(range(60))


def test_chance_is_another_one_in_each_epoch(make):
    loader = make(Shards(), 60)
    chances = [next(iter(loader))[1].tolist() for _ in range(3)]
    assert chances[0] != chances[1] != chances[2] != chances[0]


def test_bad_arguments(make, client):
    for error, text, options in (
        (TypeError, "name must be a str", {"name": None}),
        (ValueError, "depth is 1; it is 2 to 512", {"depth": 1}),
        (ValueError, "join is 'then'", {"join": "then"}),
        (ValueError, "batch_size is 0", {"batch_size": 0}),
        (ValueError, "both say the order", {"sampler": [1], "shuffle": True}),
        (ValueError, "batch_sampler says", {"batch_sampler": [[1]], "batch_size": 4}),
        (ValueError, "order of its own", {"dataset": Lines(), "shuffle": True}),
        (TypeError, "no option 'wrong'", {"wrong": 1}),
        (TypeError, "client must be", {"client": 1}),
    ):
        with pytest.raises(error, match=text):
            make(**options)
    for error, text, options in (
        (TypeError, "seed must be an int", {"seed": None}),
        (ValueError, "num_workers is -1", {"num_workers": -1}),
    ):
        with pytest.raises(error, match=text):
            make(**options)
    first, second = make(), make(Numbers(100))
    next(iter(first))
    with pytest.raises(ValueError, match=f"takes {COUNT} samples in an epoch, and this one would take 100"):
        next(iter(second))
    with client.stream("other", "broadcast", depth=8, keep=8, ttl=60.0) as stream:
        iterator = iter(make(name="other", num_workers=0))
        stream.put(np.zeros(3))
        with pytest.raises(TypeError, match="was not put by a SharedLoader"):
            next(iterator)
        client.delete("other", missing_ok=True)


def test_a_batch_that_does_not_come_in_time_is_told(make):
    first, second = make(depth=2), make(depth=2, timeout=1.5)
    waiting, iterator = iter(first), iter(second)
    with pytest.raises(tensorlease.TimeoutError, match="no batch of 'shared' came within 1.5 s; `tensorlease stream info"):
        list(iterator)
    assert numbers_of(next(waiting)) == list(range(8))
    assert numbers_of(next(iter(second))) == list(range(16, 24))  # it goes on where it was


def test_all_wait_for_as_many_as_there_are_to_be(make):
    loaders = [make(trainers=3, depth=2) for _ in range(3)]
    iterators = [iter(loader) for loader in loaders[:2]]
    info = tensorlease.connect().stream("shared", existing=True).info
    assert info().next == info().first
    iterators.append(iter(loaders[2]))
    for batches in zip(*iterators, strict=True):
        assert [numbers_of(batch) for batch in batches] == [numbers_of(batches[0])] * 3


def test_batches_without_space_are_told(tmp_path):
    with daemon_at(f"{tmp_path}/socket", "4M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        loader = shared.SharedLoader(Numbers(), 64, name="large", num_workers=0, client=client)
        with pytest.raises(tensorlease.NoSpaceError, match="capacity"):
            list(loader)
        with shared.SharedLoader(Numbers(), 2, name="small", depth=4, num_workers=0, client=client) as loader:
            assert epoch_of(loader) == list(range(COUNT))


@pytest.mark.parametrize("workers", [1, 4, 12])
def test_memory_for_eight_batches(tmp_path, workers):
    with daemon_at(f"{tmp_path}/socket", "32M"), tensorlease.connect(f"{tmp_path}/socket") as client:
        with shared.SharedLoader(Numbers(), 24, name="tight", num_workers=workers, client=client) as loader:
            for _ in range(3):
                assert epoch_of(loader) == list(range(COUNT))


def test_a_cached_dataset(make, client):
    cached = shared.CachedDataset(Numbers(), client, "shared/cached")
    loader = make(cached, shuffle=True, num_workers=2)
    for epoch in range(2):
        assert epoch_of(loader) == order(epoch)
    loader.close()  # its workers may have samples that are not stored yet
    cached.clear()


# ---- Programs ----

TRAINER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import test_shared_loader as test, tensorlease.torch as shared
from torch.utils.data import WeightedRandomSampler
if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    dataset = getattr(test, options.pop("dataset", "Numbers"))()
    if options.pop("weighted", False):
        options["sampler"] = WeightedRandomSampler([1.0] * test.COUNT, test.COUNT)
    loader = shared.SharedLoader(dataset, **options)
    print("there", flush=True)
    for line in sys.stdin:
        if line == "epoch\\n":
            iterator = iter(loader)
            print("begun", flush=True)
            continue
        batch = next(iterator, None)
        if batch is None:
            print(json.dumps(None), flush=True)
        else:
            numbers = batch[:, 0].tolist() if options.get("name") == "lines" else test.numbers_of(batch)
            print(json.dumps([loader.epoch, numbers]), flush=True)
    loader.close()
"""


class Trainer:
    """A program with a SharedLoader that takes a batch when it is told."""

    def __init__(self, address, **options):
        options = {"batch_size": 8, "name": "programs", "num_workers": 1, "shuffle": True} | options
        command = [sys.executable, "-c", TRAINER, os.path.dirname(__file__), json.dumps(options)]
        environment = os.environ | {"TENSORLEASE_SOCKET": address}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seen, self.epoch = [], None
        assert self.answer() == "there\n"

    def answer(self):
        return self.process.stdout.readline()

    def tell(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def begin(self):
        self.tell("epoch")
        assert self.answer() == "begun\n"

    def ask(self):
        self.tell("next")

    def got(self):
        """Return whether there was another batch."""
        answer = json.loads(self.answer())
        if answer is not None:
            self.epoch, numbers = answer
            self.seen += numbers
        return answer is not None

    def next(self):
        self.ask()
        return self.got()

    def rest(self):
        while self.next():
            pass

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() in (0, -signal.SIGKILL)


@pytest.fixture
def trainers(address, client):
    """Makes Trainers, which are killed at the end, after which nothing of them is left but what stays for a minute."""
    made = []

    def make(**options):
        made.append(Trainer(address, **options))
        return made[-1]

    yield make
    for trainer in made:
        trainer.process.kill()
        if not trainer.process.stdin.closed:
            trainer.end()
    gc.collect()  # tests before this one have left exceptions, with what their frames hold

    def nothing_is_left():
        client.delete(prefix=".datasets", missing_ok=True)  # which stay for some minutes
        for stream in client.streams():  # a worker may have made one after its trainer was killed
            client.delete(stream.name)
        return client.status().bytes_used == client.status().bytes_warm

    eventually(nothing_is_left)


def of_pids(client, name):
    return {member.pid: member.role for member in client.stream(name, existing=True).members()}


@pytest.mark.parametrize(
    "options",
    [{}, {"weighted": True, "shuffle": False}, {"dataset": "Lines", "shuffle": False, "name": "lines"}, {"batch_size": 3}],
)
def test_another_one_goes_on_when_who_loads_is_killed(trainers, options):
    first = trainers(**options)
    others = [trainers(**options), trainers(**options, depth=8)]
    for trainer in (first, *others):
        trainer.begin()
    for _ in range(5):
        for trainer in (first, *others):
            assert trainer.next()
    assert others[0].next()
    first.kill()
    for trainer in others:  # one after the other: up to 8 batches ahead
        while trainer.next():
            for other in others:
                if other is not trainer and len(other.seen) < len(trainer.seen):
                    other.next()
    for trainer in others:
        trainer.rest()
    size = options.get("batch_size", 8)
    assert others[0].seen == others[1].seen and others[0].seen[: 5 * size] == first.seen
    if options.get("weighted"):
        assert len(others[0].seen) == COUNT
    else:
        assert others[0].seen == (list(range(COUNT)) if options.get("name") else order(0))
    others[0].end()
    others[1].begin()
    assert others[1].next() and others[1].epoch == 1


def test_all_but_one_are_killed_while_they_load(trainers):
    """Whoever loads is killed, at any batch of an epoch, until one is left."""
    loads = [trainers(num_workers=0) for _ in range(6)]
    for trainer in loads:
        trainer.begin()
    step = random.Random(7)
    while len(loads) > 1:
        for _ in range(step.randrange(5)):
            for trainer in loads:
                assert trainer.next()
        loads.pop(step.randrange(len(loads)) if len(loads) % 2 else 0).kill()
    loads[0].rest()
    assert loads[0].seen == order(0)


def test_a_trainer_that_is_killed_or_stopped(trainers, client):
    first, second, third = (trainers(depth=2) for _ in range(3))
    for trainer in (first, second, third):
        trainer.begin()
    for trainer in (first, second, third):
        assert trainer.next()
    second.process.send_signal(signal.SIGSTOP)
    third.kill()
    for _ in range(2):
        assert first.next()
    first.ask()  # which has to wait
    eventually(lambda: client.stream("programs", existing=True).info().length == 2)
    second.process.send_signal(signal.SIGCONT)
    assert second.next() and first.got()
    while second.next():
        first.next()
    first.rest()
    assert first.seen == second.seen == order(0)


def test_a_trainer_ends_in_the_middle_and_others_go_on(trainers):
    first, second = trainers(), trainers()
    for trainer in (first, second):
        trainer.begin()
    for trainer in (first, second):
        assert trainer.next()
    first.end()
    second.rest()
    assert second.seen == order(0)
    second.end()


def test_the_last_one_leaves_nothing(trainers, client):
    first, second = trainers(), trainers()
    for trainer in (first, second):
        trainer.begin()
        assert trainer.next()
    for trainer in (first, second):
        trainer.end()
    assert not client.streams()
    eventually(lambda: client.status().bytes_used == client.status().bytes_warm)


def test_a_new_run_begins_anew_after_all_were_killed(trainers):
    for _ in range(2):
        both = trainers(), trainers()
        for trainer in both:
            trainer.begin()
        for _ in range(6):
            assert all(trainer.next() for trainer in both)
        assert both[0].seen == both[1].seen == order(0)[:48]
        for trainer in both:
            trainer.kill()


def train(loader, results):
    torch.set_num_threads(1)  # OpenMP's threads are not there after fork()
    results.put([loader.epoch, epoch_of(loader)])
    loader.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_were_given_the_loader(client, method):
    context = torch.multiprocessing.get_context(method)
    results = context.Queue()
    loader = shared.SharedLoader(Numbers(), 8, shuffle=True, name="children", num_workers=1, trainers=3, client=client)
    children = [context.Process(target=train, args=(loader, results)) for _ in range(2)]
    for child in children:
        child.start()
    train(loader, results)
    assert [results.get() for _ in range(3)] == [[None, order(0)]] * 3
    for child in children:
        child.join()
    assert not client.streams()


def test_a_daemon_that_is_replaced(tmp_path, monkeypatch):
    """Batches go on when the daemon is killed, whose keeper starts another one."""
    monkeypatch.delenv("TENSORLEASE_SOCKET", raising=False)
    with tensorlease.connect(f"{tmp_path}/socket", autostart=True) as client:
        options = {"name": "replaced", "shuffle": True, "num_workers": 1, "client": client}
        loaders = [shared.SharedLoader(Numbers(), 8, **options) for _ in range(2)]
        seen = [[], []]
        for n, batches in enumerate(zip(*loaders, strict=True)):
            for numbers, batch in zip(seen, batches, strict=True):
                numbers += numbers_of(batch)
            if n in (4, 12):
                pid = client.status().daemon_pid
                os.kill(pid, signal.SIGKILL)
                eventually(lambda pid=pid: client.status().daemon_pid != pid)
        assert seen == [order(0)] * 2
        loaders[0].close()  # the second one goes on
        assert epoch_of(loaders[1]) == order(1)
        loaders[1].close()
        assert not client.streams()
