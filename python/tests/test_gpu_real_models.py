# SPDX-License-Identifier: Apache-2.0
"""Whole models, other libraries and any device on a real GPU. Skipped on machines without a GPU."""

import gc
import os

import gpu_help
import pytest
import test_gpu_real
from conftest import eventually, leases_of
from cuda_driver import Child, run
from gpu_help import connect
from limits import limit

import tensorlease

daemon = gpu_help.daemon
torch_gpu, cupy_gpu = test_gpu_real.torch_gpu, test_gpu_real.cupy_gpu


def why_not(name, works):
    try:
        __import__(name)
    except ImportError as error:
        return f"{name} cannot be imported: {error}"
    try:
        return None if works() else f"{name} finds no GPU"
    except Exception as error:  # noqa: BLE001 -- each library has its own
        return f"{name} cannot use a GPU: {error}"


def why_not_jax():
    def works():
        import jax

        return jax.devices("gpu")

    return why_not("jax", works)


def why_not_numba():
    def works():
        import numba.cuda

        return numba.cuda.is_available()

    return why_not("numba", works)


@pytest.fixture
def jax_gpu(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    why = run(why_not_jax)
    if why:
        pytest.skip(why)


# ---- Models ----


def make_model():
    import torch

    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()


def question():
    import torch

    torch.manual_seed(2)
    return torch.randn(2, 16, 512)


def model_producer(link, how):
    """Publishes a model on the GPU, and says what it answers."""
    import torch

    import tensorlease.torch

    client = connect()
    if how == "pool":
        pool = torch.cuda.MemPool(tensorlease.torch.allocator())
        with torch.cuda.use_mem_pool(pool):
            model = make_model().cuda()
    else:
        model = make_model().cuda()
    with torch.no_grad():
        answer = model(question().cuda()).cpu()
    if how == "put":
        client.put_many(model.state_dict(), prefix="m/")
        copied = len(model.state_dict())
    else:
        copied = client.publish_many(model.state_dict(), prefix="m/", sealed=True)
    link.send((copied, answer.numpy()))
    link.recv()
    if how == "plain":  # its memory is not to be used again before it comes back
        client.delete(prefix="m/")


def model_consumer(expected):
    """Loads it with load_model(), and by way of get_many()."""
    import torch

    import tensorlease.torch

    client = connect()
    expected = torch.from_numpy(expected)
    with tensorlease.torch.meta_weights():
        model = make_model()
    tensorlease.torch.load_model(client, "m", model)
    assert all(parameter.is_cuda for parameter in model.parameters())
    with torch.no_grad():
        assert torch.allclose(model(question().cuda()).cpu(), expected, atol=1e-4)
    got = client.get_many(prefix="m/")
    assert not any(tensor.copied for tensor in got.values())
    other = make_model().cuda()
    other.load_state_dict({name.removeprefix("m/"): tensor.torch() for name, tensor in got.items()})
    with torch.no_grad():
        assert torch.allclose(other(question().cuda()).cpu(), expected, atol=1e-4)
    del model, got
    torch.cuda.synchronize()
    eventually(lambda: leases_of(client, os.getpid()) == 0)


@pytest.mark.parametrize("how", ["plain", "put", "pool"])
def test_a_model(torch_gpu, address, observer, record_property, how):
    producer = Child(model_producer, how)
    copied, answer = producer.hear()
    record_property("copied", copied)
    assert (copied == 0) == (how != "put")
    run(model_consumer, answer)
    if how == "plain":
        producer.end()
        assert not observer.list("m/")
        return
    producer.kill()
    eventually(lambda: producer.pid not in [c.pid for c in observer.clients()])
    assert not any(info.lost for info in observer.list("m/"))
    run(model_consumer, answer)  # it outlives its producer
    observer.delete(prefix="m/")


def round_trip_by_file(path):
    import torch

    client = connect()
    source = {"a": torch.randn(1000, 100, device="cuda"), "b": torch.arange(7, device="cuda").to(torch.bfloat16)}
    client.put_many(source, prefix="f/")
    assert sorted(client.save("f", path)) == ["f/a", "f/b"]
    client.delete(prefix="f/")
    client.load("g", path, device="cuda:0")
    for name, tensor in source.items():
        taken = client.get(f"g/{name}")
        assert taken.device == "cuda:0" and not taken.copied
        assert torch.equal(taken.torch(), tensor)
        del taken
    client.delete(prefix="g/")


def test_files(torch_gpu, address, tmp_path):
    run(round_trip_by_file, tmp_path / "x.safetensors")


# ---- Any device ----


def get_elsewhere():
    import numpy
    import torch

    client = connect()
    source = numpy.random.default_rng(1).random((512, 1024), "float32")
    client.put("on cpu", source)
    there = client.get("on cpu", device="cuda:0")
    assert there.device == "cuda:0" and there.copied
    assert torch.equal(there.torch().cpu(), torch.from_numpy(source))
    client.put("on gpu", torch.from_numpy(source).cuda())
    here = client.get("on gpu", device="cpu")
    assert here.device == "cpu" and here.copied
    assert (here.numpy() == source).all()
    side = torch.cuda.Stream()
    again = client.get("on cpu", device="cuda:0", stream=side)
    side.synchronize()
    assert torch.equal(again.torch().cpu(), torch.from_numpy(source))
    del there, here, again
    client.delete("on cpu")
    client.delete("on gpu")


def test_get_on_another_device(torch_gpu, address):
    run(get_elsewhere)


def strided():
    import torch

    client = connect()
    cache = torch.arange(2 * 16 * 8 * 64, device="cuda", dtype=torch.float32).reshape(2, 16, 8, 64)
    views = {"slice": cache[1, 3:9], "weight": cache.reshape(-1, 64).t(), "heads": cache[:, :, 5]}
    for name, view in views.items():
        assert client.publish(name, view, stream=torch.cuda.current_stream()).copied is False
        got = client.get(name)
        assert got.shape == view.shape and got.torch().stride() == view.stride()
        assert torch.equal(got.torch(), view)
    return sorted(views)


def test_strided_tensors(torch_gpu, address):
    assert run(strided) == ["heads", "slice", "weight"]


def capture():
    import torch

    client = connect()
    client.put("t", torch.ones(1000, device="cuda"))
    got = client.get("t", stream=torch.cuda.current_stream())
    graph, into = torch.cuda.CUDAGraph(), torch.zeros(1000, device="cuda")
    with torch.cuda.graph(graph):
        with pytest.raises(tensorlease.Error, match="captur"):
            client.publish("u", into, stream=torch.cuda.current_stream())
        with pytest.raises(tensorlease.Error, match="captur"):
            client.get("t", stream=torch.cuda.current_stream())
        got.release()  # given up after the capture
        doubled = into * 2
    for value in (3.0, 4.0):
        client.put("t", torch.full((1000,), value, device="cuda"))
        into.copy_(client.get("t").torch())
        graph.replay()
        assert float(doubled.sum()) == 2000 * value
    client.delete("t")


def test_graphs(torch_gpu, address):
    run(capture)


# ---- Other libraries ----


def torch_fills(link):
    import torch

    client = connect()
    client.put("t", torch.arange(1 << 20, device="cuda", dtype=torch.float32))
    link.send("put")
    link.recv()
    taken = client.get("from it", timeout=limit(10))
    assert not taken.copied and float(taken.torch().sum()) == 3 * 1000
    link.send("seen")
    link.recv()


def jax_both_ways(link):
    import jax
    import jax.numpy as jnp

    client = connect()
    tensor = client.get("t", timeout=limit(10))
    assert tensor.device == "cuda:0"
    array = tensor.jax()
    assert array.devices() == {jax.devices("gpu")[0]}
    assert array.unsafe_buffer_pointer() == tensor._address
    assert bool((array == jnp.arange(1 << 20, dtype="float32")).all())
    with pytest.raises(BufferError, match="unflagged"):  # JAX asks in a way that cannot say "read-only"
        jax.dlpack.from_dlpack(client.get("t"))
    same = jax.dlpack.from_dlpack(client.get("t").unflagged())
    assert same.unsafe_buffer_pointer() == tensor._address
    del array, tensor, same
    mine = jnp.full((1000,), 3, "float32").block_until_ready()
    try:
        how = f"copied: {client.publish('from it', mine).copied}"
    except tensorlease.UnsupportedError as error:
        how = str(error)
        client.publish("from it", mine, staging=True)
    link.send(how)
    link.recv()
    client.delete("from it")


def test_jax_and_pytorch(jax_gpu, torch_gpu, address, observer, record_property):
    writer, other = Child(torch_fills), Child(jax_both_ways)
    assert writer.hear() == "put"
    record_property("publish of an array of JAX", other.hear())
    writer.tell()
    assert writer.hear() == "seen"
    writer.end()
    other.end()
    observer.delete("t")


def numba_reads():
    import numba.cuda
    import torch

    client = connect()
    client.put("t", torch.arange(1000, device="cuda", dtype=torch.float32))
    tensor = client.get("t")
    array = numba.cuda.as_cuda_array(tensor)
    assert (array.copy_to_host() == range(1000)).all()
    del array, tensor
    client.delete("t")


def test_numba(torch_gpu, address):
    why = run(why_not_numba)
    if why:
        pytest.skip(why)
    run(numba_reads)


def cupy_pool_producer(link):
    import cupy

    client = connect()
    pool = cupy.cuda.MemoryPool(
        cupy.cuda.PythonFunctionAllocator(tensorlease.cuda_alloc, tensorlease.cuda_free).malloc
    )
    cupy.cuda.set_allocator(pool.malloc)
    array = cupy.arange(1 << 20, dtype="float32")
    link.send(client.publish("t", array, sealed=True).copied)
    link.recv()
    client.delete("t")
    del array
    gc.collect()
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    link.send("freed")
    link.recv()


def test_the_pool_of_cupy(cupy_gpu, torch_gpu, address):
    producer = Child(cupy_pool_producer)
    assert producer.hear() is False
    run(test_gpu_real.torch_consumer, 2)
    producer.tell()
    assert producer.hear() == "freed"
    producer.end()


def why_not_rmm():
    return why_not("rmm", lambda: True)


def rmm_pool_producer(link):
    import cupy
    import rmm
    import rmm.allocators.cupy

    client = connect()
    functions = rmm.mr.CallbackMemoryResource(
        lambda size, stream: tensorlease.cuda_alloc(size),
        lambda address, size, stream: tensorlease.cuda_free(address, stream=stream),
    )
    rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(functions, initial_pool_size="64MiB"))
    cupy.cuda.set_allocator(rmm.allocators.cupy.rmm_cupy_allocator)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.arange(1 << 20, dtype="float32")
    buffer = rmm.DeviceBuffer.to_device(bytes(range(256)))
    copied = client.publish("t", array, sealed=True, stream=stream).copied
    link.send((copied, client.publish("b", buffer, sealed=True, stream=1).copied))
    link.recv()


def rmm_consumer():
    assert (connect().get("b", device="cpu").numpy() == range(256)).all()
    test_gpu_real.torch_consumer(2)


def test_the_pool_of_rmm(cupy_gpu, torch_gpu, address, observer):
    why = run(why_not_rmm)
    if why:
        pytest.skip(why)
    producer = Child(rmm_pool_producer)
    assert producer.hear() == (False, False)
    run(rmm_consumer)
    producer.kill()
    run(rmm_consumer)  # it outlives its producer
    observer.delete("t")
    observer.delete("b")
