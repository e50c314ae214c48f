# SPDX-License-Identifier: Apache-2.0
"""A tensor that one holds can be handed on, in all the ways in which Python sends objects to other processes."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import multiprocessing
import pickle
import queue
import signal
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from limits import limit

import tensorlease

METHODS = ["fork", "spawn", "forkserver"]
WAIT = limit(60)


@pytest.fixture(autouse=True)
def nothing_stays(client):
    yield
    gc.collect()
    with contextlib.suppress(tensorlease.NotFoundError):
        client.delete(prefix="", everything=True)
    eventually(lambda: (client.status().retired, client.status().tensors) == (0, 0))


@pytest.fixture
def sending(client):
    client.pickle_tensors()
    yield client
    tensorlease._sending.pickle_for(None)


def look(tensor):
    """Whether all of a frame is of one version, and which one."""
    array = tensor.numpy()
    return tensor.name, tensor.version, int(array[0]), bool((array == array[0]).all())


def work(frames, results):
    while (frame := frames.get(timeout=WAIT)) is not None:
        results.put(look(frame))


def reader(client, name, count):
    """Gets each frame while the camera goes on."""
    version = 0
    for _ in range(count):
        frame = client.get(name, newer_than=version, timeout=WAIT)
        version = frame.version
        yield frame


@pytest.mark.parametrize("method", METHODS)
def test_a_camera_s_frames_all_reach_the_worker(sending, method):
    """Though the worker is slower than the camera, and nobody keeps them."""
    context = multiprocessing.get_context(method)
    frames, results = context.Queue(), context.Queue()
    worker = context.Process(target=work, args=(frames, results))
    worker.start()
    stop = threading.Event()

    def film():
        number = 0
        while not stop.wait(0.001):
            sending.put("camera", np.full(100_000, number % 100, "uint8"))
            number += 1

    camera = threading.Thread(target=film)
    camera.start()
    sent = []
    try:
        for frame in reader(sending, "camera", 150):
            sent.append(look(frame))
            with frame:
                frames.put(frame)
    finally:
        stop.set()
        camera.join()
        frames.put(None)
    assert [results.get(timeout=WAIT) for _ in sent] == sent
    worker.join()
    assert worker.exitcode == 0


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue", "Pipe", "Manager"])
def test_it_goes_through(sending, kind):
    version = sending.put("a", np.arange(1000))
    with multiprocessing.Manager() if kind == "Manager" else sending_nothing() as manager:
        if kind == "Pipe":
            get, put = multiprocessing.Pipe(duplex=False)
            put, get = put.send, get.recv
        else:
            through = manager.Queue() if manager else getattr(multiprocessing, kind)()
            put, get = through.put, through.get
        with sending.get("a") as tensor:
            put({"a": [tensor, tensor.numpy()[5:9]], "b": np.arange(3)})
        sending.put("a", np.zeros(3))
        got = get()
        assert got["a"][0].tolist() == list(range(1000)) and got["a"][0].version == version
        assert got["a"][1].tolist() == [5, 6, 7, 8] and got["b"].tolist() == [0, 1, 2]
        del got


class sending_nothing:
    def __enter__(self):
        return None

    def __exit__(self, *args):
        pass


@pytest.mark.parametrize("method", METHODS)
def test_pools_and_executors_take_and_return_it(sending, method):
    context = multiprocessing.get_context(method)
    version = sending.put("a", np.arange(1000))
    tensor = sending.get("a")
    sending.put("a", np.zeros(3))
    with context.Pool(1) as pool, concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        for run in (pool.apply, lambda function, args: executor.submit(function, *args).result(timeout=WAIT)):
            again = run(same, (tensor,))
            assert again.version == version and again.tolist() == list(range(1000))
            assert run(total, (tensor.numpy()[100:200],)) == sum(range(100, 200))
            del again


def same(tensor):
    return tensor


def total(array):
    return int(array.sum())


def test_a_ref_lasts_until_it_is_got(client):
    version = client.put("a", np.arange(3))
    with client.get("a") as tensor:
        ref = pickle.loads(pickle.dumps(client.ref(tensor)))
    client.put("a", np.zeros(4))
    client.delete("a")
    gc.collect()
    assert client.status().retired == 1
    with ref.get() as got:
        assert (got.name, got.version, got.tolist()) == ("a", version, [0, 1, 2])
    eventually(lambda: client.status().retired == 0)
    with pytest.raises(tensorlease.NotFoundError, match="received before or handed on too long ago"):
        ref.get()


def test_a_ref_that_nobody_gets_ends_in_time(client):
    client.put("a", np.arange(3))
    with client.get("a") as tensor:
        refs = [client.ref(tensor, ttl=0.001), client.ref(tensor, ttl=None), client.ref(tensor, ttl=float("inf"))]
    client.put("a", np.zeros(4))
    for ref in refs[1:]:
        assert client.status().retired == 1
        ref.get().release()
    eventually(lambda: client.status().retired == 0)
    with pytest.raises(tensorlease.NotFoundError, match=r"'a' is version \d+ now"):
        refs[0].get()
    for ttl in (-1, 0, 1e10, float("nan"), "x"):
        with pytest.raises((TypeError, ValueError), match="ttl"):
            client.ref(client.get("a"), ttl=ttl)


def test_a_ref_may_be_for_many(client, address):
    client.put("a", np.arange(3))
    with tensorlease.connect(address) as sender:
        with sender.get("a") as tensor:
            ref = sender.ref(tensor, once=False, ttl=None)
        client.put("a", np.zeros(4))
        for _ in range(3):
            assert ref.get(client).tolist() == [0, 1, 2]
        with client.receive(ref.token, mode="c") as mine:
            mine.numpy()[0] = 7
            assert client.receive(ref.token).tolist() == [0, 1, 2]
        with pytest.raises(tensorlease.InvalidError, match="a token has 32 bytes, and this one 31"):
            client.receive(ref.token[:31])
        with pytest.raises(ValueError, match="mode"):
            client.receive(ref.token, mode="w")
        assert client.status().retired == 1
    eventually(lambda: client.status().retired == 0)


def test_what_is_refused_raises_in_put(sending):
    frames = multiprocessing.Queue()
    draft = sending.create("draft", 3, "int8")
    draft.numpy()[:] = 1
    with pytest.raises(TypeError, match="belongs to the process"):
        pickle.dumps(draft)
    sending.put("a", np.arange(3))
    tensor = sending.get("a")
    tensor.release()
    with pytest.raises(ValueError, match="released"):
        frames.put(tensor)
    with pytest.raises(ValueError, match="released"):
        frames.put({"a": (1, [tensor])})
    draft.abort()
    frames.close()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_a_full_queue_keeps_nothing(sending, kind):
    """A producer that tries again and again has handed nothing on."""
    frames = getattr(multiprocessing, kind)(1)
    sending.put("a", np.arange(3))
    with sending.get("a") as tensor:
        frames.put(tensor)
        for _ in range(1100):  # more than may be handed on
            with pytest.raises(queue.Full):
                frames.put_nowait({"a": [tensor]})
    sending.put("a", np.zeros(3))
    assert frames.get(timeout=WAIT).tolist() == [0, 1, 2]


@dataclasses.dataclass
class Message:
    step: int
    frame: object


@pytest.mark.parametrize(
    "holds", [list, tuple, set, collections.deque, lambda x: Message(1, *x), lambda x: types.SimpleNamespace(x=x)]
)
def test_what_holds_it_is_pickled_in_put(sending, holds):
    sending.put("a", np.arange(3))
    frames = multiprocessing.Queue()
    with sending.get("a") as tensor:
        frames.put(obj=holds([tensor]))
    sending.put("a", np.zeros(3))
    got = frames.get(timeout=WAIT)
    tensor = got.frame if isinstance(got, Message) else [*getattr(got, "x", got)][0]
    assert tensor.tolist() == [0, 1, 2]
    del got, tensor
    with pytest.raises(AttributeError, match="local object"):
        frames.put(holds([lambda: None]))


class Root:
    def __init__(self):
        self.base = self


class Counted:
    pickled = 0

    def __reduce__(self):
        Counted.pickled += 1
        return Counted, ()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_what_a_full_queue_refuses_is_not_pickled(sending, kind):
    frames = getattr(multiprocessing, kind)(1)
    frames.put(1)
    for options in ((False,), (True, 0.001)):
        with pytest.raises(queue.Full):
            frames.put(Counted(), *options)
    assert Counted.pickled == 0
    assert frames.get(timeout=WAIT) == 1
    frames.put(Counted(), timeout=WAIT)
    assert type(frames.get(timeout=WAIT)) is Counted and Counted.pickled == 1
    frames.close()
    with pytest.raises(ValueError, match="is closed"):
        frames.put(Counted())
    Counted.pickled = 0


def test_queues_of_other_objects_are_as_before(sending):
    frames = multiprocessing.Queue()
    frames.put(Root())
    root = frames.get(timeout=WAIT)
    assert root.base is root
    itself = [1]
    itself.append(itself)
    frames.put(itself)
    assert (got := frames.get(timeout=WAIT))[1] is got
    frames.put(bytes(10_000_000))
    assert frames.get(timeout=WAIT) == bytes(10_000_000)


class Stale:
    """Is pickled as a Tensor, or an array over one, that has gone before it is received."""

    def __init__(self, client, thing):
        self.sent = tensorlease._sending._reduce_view(thing) if isinstance(thing, np.ndarray) else thing.__reduce__()
        ref = self.sent[1][1][0] if isinstance(thing, np.ndarray) else self.sent[1][0]
        ref.get(client).release()

    def __reduce__(self):
        return self.sent


def make_stale(name, as_array):
    client = tensorlease.connect()
    client.pickle_tensors()
    with client.get(name) as tensor:
        stale = Stale(client, tensor.numpy() if as_array else tensor)
    client.put(name, np.zeros(3))
    return stale


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_tells_that_a_tensor_has_gone(sending, method, as_array):
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool, concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        for run in (
            lambda function, *args: pool.apply_async(function, args).get(timeout=WAIT),
            lambda function, *args: executor.submit(function, *args).result(timeout=WAIT),
        ):
            sending.put("a", np.arange(3))
            with pytest.raises(tensorlease.NotFoundError, match="not there any more"):
                run(total, make_stale("a", as_array))
            sending.put("a", np.arange(3))
            gone = run(make_stale, "a", as_array)
            for use in (len, list, bool, np.asarray, lambda x: x.numpy(), lambda x: np.ones(3) + x, lambda x: x[0]):
                with pytest.raises(tensorlease.NotFoundError, match="not there any more"):
                    use(gone)
            with pytest.raises(tensorlease.NotFoundError), gone:
                pass
            assert run(total, np.arange(3)) == 3


def test_a_pickle_that_fails_hands_nothing_on(sending):
    get, put = multiprocessing.Pipe(duplex=False)
    sending.put("a", np.arange(3))
    with sending.get("a") as tensor:
        for _ in range(1100):  # more than may be handed on
            with pytest.raises(AttributeError, match="local object"):
                put.send([tensor, lambda: 1])
        put.send(tensor)
    sending.put("a", np.zeros(3))
    assert get.recv().tolist() == [0, 1, 2]
    assert sending.status().retired == 0


def test_only_a_tensor_can_be_handed_on(client):
    with client.create("a", (3,), "int64") as draft:
        for other in (draft, np.arange(3), "a"):
            with pytest.raises(TypeError, match="a Tensor that get.. returned can be handed on, not"):
                client.ref(other)
        draft.abort()


def test_too_many_are_refused_and_none_is_lost(client):
    client.put("a", np.arange(3))
    tensor = client.get("a")
    refs = [client.ref(tensor) for _ in range(1024)]
    with pytest.raises(tensorlease.NoSpaceError, match="1024 that were not received"):
        client.ref(tensor)
    tensor.release()
    client.put("a", np.zeros(3))
    for ref in refs:
        assert ref.get().tolist() == [0, 1, 2]


def hold_on(frames, ready):
    frame = frames.get(timeout=WAIT)
    ready.set()
    threading.Event().wait(frame.nbytes * WAIT)


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_receiver_leaves_nothing(sending, method):
    context = multiprocessing.get_context(method)
    frames, ready = context.Queue(), context.Event()
    sending.put("a", np.arange(100_000))
    worker = context.Process(target=hold_on, args=(frames, ready))
    worker.start()
    with sending.get("a") as tensor:
        frames.put(tensor)
    sending.put("a", np.zeros(3))
    assert ready.wait(WAIT)
    assert sending.status().retired == 1
    worker.kill()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    eventually(lambda: sending.status().retired == 0)


def send_and_wait(address, pipe):
    client = tensorlease.connect(address, autostart=False)
    with client.get("a") as tensor:
        pipe.send(client.ref(tensor))
    threading.Event().wait(WAIT)


def test_a_killed_sender_leaves_nothing(client, address):
    context = multiprocessing.get_context("spawn")
    get, put = context.Pipe(duplex=False)
    client.put("a", np.arange(100_000))
    sender = context.Process(target=send_and_wait, args=(address, put))
    sender.start()
    ref = get.recv()
    client.put("a", np.zeros(3))
    assert client.status().retired == 1
    sender.kill()
    sender.join()
    eventually(lambda: client.status().retired == 0)
    with pytest.raises(tensorlease.NotFoundError, match="has ended"):
        ref.get()


def pass_on(first, last):
    while (frame := first.get(timeout=WAIT)) is not None:
        last.put(frame)
        frame.release()
    last.put(None)
    first.get(timeout=WAIT)  # what was handed on has been got


@pytest.mark.parametrize("method", METHODS)
def test_it_is_handed_on_and_on(sending, method):
    context = multiprocessing.get_context(method)
    queues = [context.Queue() for _ in range(4)]
    stages = [context.Process(target=pass_on, args=pair) for pair in zip(queues, queues[1:])]
    for stage in stages:
        stage.start()
    first = sending.put("a", np.zeros(1000)) + 1
    for i in range(20):
        sending.put("a", np.full(1000, i))
        with sending.get("a") as tensor:
            queues[0].put(tensor)
    queues[0].put(None)
    for i in range(20):
        frame = queues[-1].get(timeout=WAIT)
        assert frame.version == first + i and frame.tolist() == [i] * 1000
    assert queues[-1].get(timeout=WAIT) is None
    del frame
    for one, stage in zip(queues, stages):
        one.put(None)
        stage.join()
        assert stage.exitcode == 0


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_parts_of_a_stream_s_items_are_handed_on(sending, mode):
    frames, results = multiprocessing.Queue(), multiprocessing.Queue()
    worker = multiprocessing.Process(target=add_up, args=(frames, results))
    worker.start()
    stream = sending.stream("frames", mode=mode, depth=4)
    with stream.subscribe() as subscription:
        for i in range(50):
            stream.put({"image": np.full((30, 40), i, "uint8"), "number": np.array([i])})
            item = subscription.get(timeout=WAIT)
            if i % 10 == 0:
                frames.put((item["image"], item["number"].numpy()[:1], item["image"].numpy()[3:5]))
            item.done()
            del item
        frames.put(None)
        assert [results.get(timeout=WAIT) for _ in range(5)] == [(i * 1200, i, i * 80) for i in range(0, 50, 10)]
    worker.join()
    stream.close()
    sending.delete("frames")


def add_up(frames, results):
    while (frame := frames.get(timeout=WAIT)) is not None:
        results.put((int(frame[0].numpy().sum()), int(frame[1][0]), int(frame[2].sum())))


# ---- libraries that pickle in their own ways ------------------------------------------------------------------------


def where(array):
    """The sum of an array, and whether its memory is that of a tensor."""
    base = array
    while getattr(base, "base", None) is not None:
        base = base.base
    return int(array.sum()), isinstance(base, memoryview) and isinstance(base.obj, tensorlease.Tensor)


def files_of_joblib():
    return [path for path in Path("/dev/shm").glob("joblib*") for path in path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_joblib_gets_views_and_writes_no_files(client, backend):
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    client.put("a", np.arange(1_000_000).reshape(1000, 1000))
    client.pickle_tensors()
    try:
        with client.get("a") as tensor:
            array = tensor.numpy()
            client.put("a", np.zeros(3))
            tasks = [joblib.delayed(where)(array[i : i + 500]) for i in range(0, 400, 50)]
            with joblib.Parallel(2, backend=backend, batch_size=1) as parallel:
                assert parallel(tasks) == [(int(array[i : i + 500].sum()), True) for i in range(0, 400, 50)]
                assert files_of_joblib() == []
                assert parallel([joblib.delayed(same)(tensor)])[0].version == tensor.version
                large = np.arange(300_000)  # not ours: joblib does as it always does
                assert parallel([joblib.delayed(where)(large)]) == [(int(large.sum()), False)]
            del array
    finally:
        tensorlease._sending.pickle_for(None)
        if backend == "loky":
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True)


def test_cloudpickle_hands_on(sending):
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    sending.put("a", np.arange(3))
    tensor = sending.get("a")
    task = cloudpickle.dumps(lambda: tensor.numpy().sum())
    del tensor
    sending.put("a", np.zeros(3))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(run_task, (task,)) == 3


def run_task(task):
    return int(pickle.loads(task)())


def look_up(ref):
    return look(ref.get())


def test_dask_takes_and_returns_it(client, address):
    """Each of its pickles of a Tensor hands on, also those that it throws away: what is left ends with the sender."""
    distributed = pytest.importorskip("distributed", reason="dask's distributed is not installed")
    version = client.put("a", np.arange(1000))
    with (
        distributed.LocalCluster(1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as dask,
        tensorlease.connect(address) as sender,
    ):
        sender.pickle_tensors()
        try:
            with sender.get("a") as tensor:
                ref = sender.ref(tensor, once=False)
                client.put("a", np.zeros(3))
                assert dask.submit(look, tensor).result(timeout=WAIT)[1:] == (version, 0, False)
                again = dask.submit(same, tensor).result(timeout=WAIT)
            assert (again.version, again.tolist()) == (version, list(range(1000)))
            again.release()
            for task in [dask.submit(look_up, ref, pure=False) for _ in range(3)]:
                assert task.result(timeout=WAIT)[1:] == (version, 0, False)
        finally:
            tensorlease._sending.pickle_for(None)


def put_torch(frames, results):
    frame = frames.get(timeout=WAIT)
    results.put((look(frame["frame"]), frame["label"].tolist()))


def test_queues_of_torch_hand_on(sending):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    context = torch.multiprocessing.get_context("spawn")
    frames, results = context.Queue(), context.Queue()
    there = context.Process(target=put_torch, args=(frames, results))
    there.start()
    version = sending.put("a", np.ones(1000))
    with sending.get("a") as tensor:
        frames.put({"frame": tensor, "label": torch.arange(3)})
    sending.put("a", np.zeros(3))
    assert results.get(timeout=WAIT) == (("a", version, 1, True), [0, 1, 2])
    there.join()


def test_objects_of_ray_are_read_by_many(client, address):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    version = client.put("a", np.ones(1000))
    paths = {"PYTHONPATH": str(Path(__file__).parent)}  # where workers find this module
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
    try:
        with tensorlease.connect(address) as sender:  # which ends what it has handed on
            sender.pickle_tensors()
            with sender.get("a") as tensor:
                frame = ray.put({"frame": tensor})
            client.put("a", np.zeros(3))
            task = ray.remote(look_in)
            for _ in range(3):
                assert ray.get(task.remote(frame), timeout=WAIT) == ("a", version, 1, True)
            assert ray.get(frame)["frame"].version == version
            again = ray.get(ray.remote(same).remote(ray.get(frame)["frame"]), timeout=WAIT)
            assert again.version == version
            del again, frame
    finally:
        ray.shutdown()
        tensorlease._sending.pickle_for(None)
        for received in tensorlease._ref._clients.values():  # which has handed on what it got from Ray
            received.close()


def look_in(frames):
    return look(frames["frame"])
