# SPDX-License-Identifier: Apache-2.0
"""Tensors on a real GPU, with the usual libraries. Skipped on machines without a GPU."""

import gc
import os

import gpu_help
import pytest
from conftest import eventually, leases_of
from cuda_driver import Array, Child, Driver, Interface, Taken, run
from gpu_help import connect
from limits import limit

import tensorlease

daemon = gpu_help.daemon


def why_not_torch():
    try:
        import torch
    except ImportError as error:
        return f"PyTorch cannot be imported: {error}"
    return None if torch.cuda.is_available() else f"PyTorch {torch.__version__} finds no GPU"


def why_not_cupy():
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "CuPy finds no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy cannot use CUDA: {error}"


def why_not_cuda():
    if os.environ.get("FAKECUDA_DIR"):
        return "FAKECUDA_DIR is set"
    try:
        return None if run(tensorlease.cuda_devices) else "there is no GPU"
    except AssertionError as error:
        return f"{error}"


@pytest.fixture(scope="module")
def torch_gpu():
    why = run(why_not_torch)
    if why:
        pytest.skip(why)


@pytest.fixture(scope="module")
def cupy_gpu():
    why = run(why_not_cupy)
    if why:
        pytest.skip(why)


@pytest.fixture(scope="module")
def cuda_gpu():
    why = why_not_cuda()
    if why:
        pytest.skip(why)


# ---- PyTorch ----

LONG = 4_000_000_000  # cycles, which take some seconds


def load_kernels():
    """CUDA loads a kernel when it is first used, and may wait for the GPU then. Later uses are only queued."""
    import torch

    total = torch.zeros((), device="cuda")
    total += torch.empty(1 << 20, device="cuda").copy_(torch.arange(1 << 20, device="cuda")).sum()
    torch.cuda.synchronize()


def torch_producer(link, how):
    """Publishes what a slow stream is still writing. On request it deletes it and sees its memory come back."""
    import torch

    client = connect()
    side = torch.cuda.Stream()
    load_kernels()
    space = torch.zeros(1 << 22, device="cuda")  # a part of a larger block of PyTorch's allocator
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(side):
        tensor = torch.empty(1 << 20, device="cuda")
        torch.cuda._sleep(LONG)
        tensor.copy_(torch.arange(1 << 20, device="cuda"))
        published = client.publish("t", tensor, **how)
        pending = not side.query()
    del tensor
    gc.collect()
    link.send((published, pending, torch.cuda.memory_allocated() > before))
    link.recv()
    client.delete("t")
    torch.cuda.synchronize()
    eventually(lambda: torch.cuda.memory_allocated() <= before)
    del space


def torch_consumer(times):
    import torch

    client = connect()
    side = torch.cuda.Stream()
    for _ in range(times):
        with torch.cuda.stream(side):
            tensor = client.get("t", timeout=limit(10))
            assert tensor.device == "cuda:0"
            taken = tensor.torch()
            assert taken.is_cuda and taken.data_ptr() == tensor._address
            assert torch.equal(taken, torch.arange(1 << 20, device="cuda", dtype=torch.float32))
        del taken, tensor
    torch.cuda.synchronize()
    eventually(lambda: leases_of(client, os.getpid()) == 0)


@pytest.mark.parametrize("how", [{}, {"sealed": True}], ids=["event", "sealed"])
def test_pytorch_to_pytorch(torch_gpu, address, how):
    producer = Child(torch_producer, how)
    published, pending, held = producer.hear()
    assert published.copied is False and held
    assert pending != bool(how)
    run(torch_consumer, 3)
    producer.end()


def torch_expandable(link):
    import torch

    client = connect()
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    try:
        how = "shared", client.publish("t", tensor)
    except tensorlease.UnsupportedError as error:
        how = str(error), client.publish("t", tensor, staging=True)
    link.send(how)
    link.recv()
    client.delete("t")


def test_pytorchs_expandable_segments(torch_gpu, address, monkeypatch, record_property):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    producer = Child(torch_expandable)
    how, published = producer.hear()
    record_property("expandable_segments", how)
    assert published.copied == (how != "shared")
    run(torch_consumer, 1)
    producer.end()


def torch_draft(link):
    import torch

    client = connect()
    side = torch.cuda.Stream()
    load_kernels()
    with torch.cuda.stream(side), client.empty("t", 1 << 20, torch.float32, device=torch.device("cuda", 0)) as draft:
        torch.cuda._sleep(LONG)
        draft.torch().copy_(torch.arange(1 << 20, device="cuda"))
        assert draft.stream == side.cuda_stream
    link.send((draft.version, side.query()))
    link.recv()
    torch.cuda.synchronize()
    link.send("done")
    link.recv()


def test_a_draft_that_pytorch_fills(torch_gpu, address, observer):
    producer = Child(torch_draft)
    assert producer.hear() == (1, False)
    run(torch_consumer, 2)
    producer.tell()
    producer.hear()
    pid = producer.pid
    producer.kill()
    eventually(lambda: pid not in [c.pid for c in observer.clients()])
    assert not observer.stat("t").lost
    run(torch_consumer, 2)  # it outlives its producer
    observer.delete("t")


def torch_late_reader(link):
    import torch

    client = connect()
    taken = client.get("t", timeout=limit(10)).torch()
    total = torch.zeros((), device="cuda")
    load_kernels()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    total += taken.sum()
    del taken  # its reading is still queued
    link.send(not torch.cuda.current_stream().query())
    link.recv()
    link.send(torch.cuda.current_stream().query())
    torch.cuda.synchronize()
    link.send(float(total))
    link.recv()


def test_the_lease_lasts_as_long_as_queued_work(torch_gpu, address, observer):
    producer = Child(torch_producer, {"sealed": True})
    producer.hear()
    reader = Child(torch_late_reader)
    queued = reader.hear()
    leases = leases_of(observer, reader.pid)
    reader.tell()
    is_done = reader.hear()
    assert leases == 1 or is_done or not queued
    assert reader.hear() == pytest.approx((1 << 20) * ((1 << 20) - 1) / 2, rel=1e-3)
    eventually(lambda: leases_of(observer, reader.pid) == 0)
    reader.end()
    producer.end()


def torch_types():
    import torch

    client = connect()
    for dtype in (torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn):
        source = torch.randint(0, 2, (3, 5, 7), device="cuda").to(dtype)
        assert client.put("types", source) >= 1
        tensor = client.get("types")
        taken = tensor.torch()
        assert taken.dtype == dtype and taken.shape == source.shape
        assert torch.equal(taken.view(torch.uint8), source.view(torch.uint8))
        assert client.publish("types", source).copied is False
        assert client.get("types").torch().data_ptr() == source.data_ptr()  # our own tensor is the memory itself
    with pytest.raises(tensorlease.UnsupportedError, match="contiguous"):
        client.put("types", torch.zeros(4, 4, device="cuda").t())
    with pytest.raises(BufferError):
        torch.from_dlpack(client.get("types"), copy=True)
    with pytest.raises(TypeError, match="torch"):
        client.get("types").numpy()
    client.delete("types")


def test_element_types(torch_gpu, address):
    run(torch_types)


def test_a_killed_producers_memory_is_lost(torch_gpu, address, observer):
    producer = Child(torch_producer, {"sealed": True})
    producer.hear()
    producer.kill()
    eventually(lambda: observer.stat("t").lost)
    observer.delete("t")


def torch_device_of_t():
    client = connect()
    tensor = client.get("t", timeout=limit(10))
    return tensor.device, float(tensor.torch().float().mean())


def torch_on_one(link):
    import torch

    client = connect()
    client.put("t", torch.full((1000,), 5.0, device="cuda:1"))
    link.send(client.stat("t").device)
    link.recv()


def count_devices():
    return len(tensorlease.cuda_devices())


def test_other_numbers_for_the_same_gpus(torch_gpu, address, observer, monkeypatch):
    if run(count_devices) < 2:
        pytest.skip("there is only one GPU")
    producer = Child(torch_on_one)
    assert producer.hear() == "cuda:1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert run(torch_device_of_t) == ("cuda:0", 5.0)
    observer.delete("t")
    producer.end()


# ---- CuPy ----


def cupy_producer(link):
    import cupy

    client = connect()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.arange(1 << 20, dtype="float32")
        link.send(client.publish("t", array, stream=stream))
    link.recv()
    client.delete("t")


def cupy_consumer():
    import cupy

    client = connect()
    tensor = client.get("t", timeout=limit(10))
    expected = cupy.arange(1 << 20, dtype="float32")
    with cupy.cuda.Stream(non_blocking=True):
        assert bool((cupy.from_dlpack(tensor) == expected).all())
    assert bool((cupy.asarray(tensor) == expected).all())
    assert cupy.asarray(tensor).data.ptr == tensor._address
    with client.empty("u", (16,), "float32", device=0) as draft:
        cupy.asarray(draft)[:] = 3
    assert float(cupy.from_dlpack(client.get("u")).sum()) == 48
    client.delete("u")


def test_cupy_to_cupy(cupy_gpu, address):
    producer = Child(cupy_producer)
    assert producer.hear().copied is False
    run(cupy_consumer)
    producer.end()


def test_cupy_to_pytorch(cupy_gpu, torch_gpu, address):
    producer = Child(cupy_producer)
    producer.hear()
    run(torch_consumer, 2)
    producer.end()


# ---- No library ----


def plain_producer(link):
    client, driver = connect(), Driver()
    array = Array(driver, (1 << 20,)).fill(7)
    how = [client.publish("t", array), client.publish("v", Interface(array)), client.put("w", array)]
    link.send(how)
    link.recv()
    for name in "tvw":
        client.delete(name)
    eventually(lambda: array.deleted == 2)
    driver.free(array.memory)


def plain_consumer():
    client, driver = connect(), Driver()
    for name in "tvw":
        tensor = client.get(name, timeout=limit(10))
        assert Taken(driver, tensor).read() == bytes([7]) * (1 << 20)
        assert tensor.__cuda_array_interface__["data"] == (tensor._address, True)
    del tensor
    gc.collect()
    eventually(lambda: leases_of(client, os.getpid()) == 0)


def test_plain_memory(cuda_gpu, address):
    producer = Child(plain_producer)
    assert [p.copied for p in producer.hear()[:2]] == [False, False]
    run(plain_consumer)
    producer.end()
