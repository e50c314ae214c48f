# SPDX-License-Identifier: Apache-2.0
"""Open3D takes legacy capsules only, and so Tensors of mode "c" and Drafts. It shares their memory, and hands out
legacy capsules of its own."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import dlpack_abi as abi
import pytest
from conftest import leases_of
from limits import limit

o3d = pytest.importorskip("open3d", reason="Open3D is not installed")
import numpy as np

pytestmark = pytest.mark.usefixtures("quick_collections")

Tensor = o3d.core.Tensor
TAKES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
REFUSES = (
    "bool",
    "float16",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float4_e2m1fn",
    "float32x4",
    "int4",
)


def take(array):
    return Tensor.from_dlpack(array.__dlpack__())


class Capsule:
    """Gives a capsule of Open3D's to_dlpack() to put(), since Open3D's Tensor has no __dlpack__()."""

    def __init__(self, tensor):
        self.capsule = tensor.to_dlpack()

    def __dlpack__(self):
        return self.capsule


@pytest.fixture
def mine(observer):
    before = leases_of(observer, os.getpid())
    return lambda: leases_of(observer, os.getpid()) - before


@pytest.mark.parametrize("dtype", TAKES)
def test_it_takes(client, mine, dtype):
    source = (np.arange(24) * 5 % 97).reshape(2, 3, 4).astype(dtype)
    client.put("o3d/t", source)
    tensor = client.get("o3d/t", mode="c")
    address = tensor._address
    made = take(tensor)
    tensor.release()
    assert made.shape == (2, 3, 4) and str(made.dtype).lower() == dtype and made.is_contiguous() and not made.is_cuda
    view = made.numpy()
    assert view.__array_interface__["data"][0] == address and (view == source).all()
    assert mine() == 1
    part = made[1:, 1]
    del made, view
    assert mine() == 1 and (part.numpy() == source[1:, 1]).all()
    del part
    assert mine() == 0


@pytest.mark.parametrize("dtype", REFUSES)
def test_it_refuses(client, mine, dtype):
    client.create("o3d/t", (2, 8), dtype).commit()
    tensor = client.get("o3d/t", mode="c")
    capsule = tensor.__dlpack__()
    tensor.release()
    with pytest.raises(RuntimeError, match="(?i)support"):
        Tensor.from_dlpack(capsule)
    del capsule
    assert mine() == 0


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 5, 1), (1,) * 20])
def test_shapes(client, mine, shape):
    source = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)
    client.put("o3d/t", source)
    made = take(client.get("o3d/t", mode="c"))
    assert tuple(made.shape) == shape and made.numpy().size == source.size
    assert not source.size or (made.numpy() == source).all()
    del made
    assert mine() == 0


def test_read_only_tensors_are_refused_and_the_way_out_is_named(client, mine):
    client.put("o3d/t", np.ones(5))
    with pytest.raises(BufferError, match='mode="c"'):
        take(client.get("o3d/t"))
    with pytest.raises(TypeError):
        Tensor.from_dlpack(client.get("o3d/t", mode="c"))  # it takes capsules only
    gc.collect()
    assert mine() == 0
    assert (take(client.get("o3d/t").copy_on_write()).numpy() == 1).all()


def test_writes_reach_nobody(client, mine):
    client.put("o3d/cloud", np.arange(3000, dtype="float32").reshape(1000, 3))
    positions = take(client.get("o3d/cloud", mode="c"))
    cloud = o3d.t.geometry.PointCloud(positions)
    cloud.translate(o3d.core.Tensor([1, 2, 3], o3d.core.float32))
    positions[0] = 7
    positions += 1
    assert positions[0, 0].item() == 8 and len(cloud.get_max_bound()) == 3
    assert client.get("o3d/cloud").numpy()[0].tolist() == [0, 1, 2]
    del cloud, positions
    assert mine() == 0


def test_a_point_cloud_lies_in_the_leased_memory(client, mine):
    points = np.random.default_rng(1).random((1000, 3), dtype="float32")
    client.put("o3d/cloud", points)
    tensor = client.get("o3d/cloud", mode="c")
    cloud = o3d.t.geometry.PointCloud(take(tensor))
    assert cloud.point.positions.numpy().__array_interface__["data"][0] == tensor._address
    tensor.release()
    client.delete("o3d/cloud")
    assert np.allclose(cloud.get_max_bound().numpy(), points.max(axis=0)) and mine() == 1
    del cloud
    assert mine() == 0


@pytest.mark.parametrize("dtype", TAKES)
def test_drafts_are_written_in_place(client, dtype):
    source = np.arange(24).reshape(4, 6).astype(dtype)
    with client.create("o3d/draft", (4, 6), dtype) as draft:
        made = take(draft)
        made[:] = Tensor(source)
        assert made.numpy().__array_interface__["data"][0] == draft._address
        del made
    assert (client.get("o3d/draft").numpy() == source).all()


@pytest.mark.parametrize("dtype", TAKES)
@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t[1:, ::2], lambda t: t.T(), lambda t: t[2, 3], lambda t: t[:0]], ids=range(5)
)
def test_its_tensors_are_put_by_capsule(client, mine, dtype, view):
    source = view(Tensor(np.arange(24).reshape(4, 6).astype(dtype)))
    for call in (client.put, client.publish):
        capsule = Capsule(source)
        call("o3d/put", capsule)
        assert abi.name_of(capsule.capsule) == "used_dltensor"
        got = client.get("o3d/put")
        assert got.dtype == dtype and got.shape == tuple(source.shape) and (got.numpy() == source.numpy()).all()
        with pytest.raises(BufferError, match="unused"):
            call("o3d/put", capsule)
        del got
    assert mine() == 0


def test_its_tensors_are_put_as_numpy_arrays(client):
    source = Tensor(np.arange(24, dtype="float64").reshape(4, 6))
    client.put("o3d/put", source.T().numpy())
    assert (client.get("o3d/put").numpy() == source.T().numpy()).all()
    with pytest.raises(TypeError, match=r"give what its numpy\(\) returns"):
        client.put("o3d/put", source)
    with pytest.raises(TypeError, match="numpy.asarray"):
        client.put("o3d/put", source.to_dlpack())  # a capsule is no array and can be consumed only once


def test_a_draft_that_it_filled_is_published_without_a_copy(client):
    draft = client.create("o3d/draft", (100, 3), "float32")
    made = take(draft)
    made[:] = Tensor.ones((100, 3), o3d.core.float32)
    assert client.publish("o3d/draft", Capsule(made)).copied is False
    assert draft.state == "committed" and (client.get("o3d/draft").numpy() == 1).all()


def test_deleters_run_on_its_threads(client, mine):
    client.put("o3d/t", np.arange(1000.0))
    made = [take(client.get("o3d/t", mode="c")) for _ in range(40)]

    def use(part):
        while part:
            assert part.pop()[7].item() == 7

    threads = [threading.Thread(target=use, args=(made[n::4],)) for n in range(4)]
    made.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads
    assert mine() == 0


def test_a_versioned_capsule_kills_it(client):
    """It does not look at the capsule's name, so we cannot refuse. If this fails, Open3D has learnt to look."""
    client.put("o3d/t", np.ones(5))
    code = (
        "import open3d, tensorlease\n"
        "client = tensorlease.connect(autostart=False)\n"
        "capsule = client.get('o3d/t', mode='c').__dlpack__(max_version=(1, 0))\n"
        "print('asked', flush=True)\n"
        "open3d.core.Tensor.from_dlpack(capsule)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(100))
    assert result.stdout == "asked\n" and result.returncode != 0


def test_its_bool_is_not_put(client):
    """DLPack has a bool, but Open3D does not use it."""
    with pytest.raises(RuntimeError, match="(?i)support"):
        client.put("o3d/bool", Capsule(Tensor.ones((3,), o3d.core.bool)))
    assert "o3d/bool" not in client


def test_it_takes_tensors_in_cpp():
    if not list(Path(o3d.__file__).parent.rglob("Tensor.h")):
        pytest.skip("Open3D's wheel has no C++ headers, so Tensor::FromDLPack() cannot be called from C++")
    pytest.fail("this Open3D has headers: write the test")
