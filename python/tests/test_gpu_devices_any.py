# SPDX-License-Identifier: Apache-2.0
"""Tensors wanted on another device than they lie on, and files from and to GPUs."""

import ctypes
import pickle
import struct

import dlpack_abi as abi
import gpu_help
import pytest
from cuda_driver import Array, Driver, Taken, run
from gpu_help import connect

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def gets():
    client, driver = connect(), Driver()
    client.put("cpu", struct.pack("4f", 1, 2, 3, 4))
    array = Array(driver, (64,)).fill(7)
    client.put("gpu", array)
    driver.free(array.memory)
    there = client.get("cpu", device="cuda:0")
    assert (there.device, there.copied, there.read_only, there.version) == ("cuda:0", True, False, 1)
    assert Taken(driver, there).read() == struct.pack("4f", 1, 2, 3, 4)
    assert client.get("gpu", device="cuda:0").copied is False
    assert client.get("gpu", device=1).copied is True
    here = client.get("gpu", device="cpu")
    assert (here.device, here.copied, here.name) == ("cpu", True, "gpu")
    assert bytes(memoryview(here)) == bytes([7]) * 64
    memoryview(here)[0] = 1
    client.pickle_tensors()
    with pytest.raises(ValueError, match="it is a copy"):  # the receiver would get another one, or none
        pickle.dumps(here)
    tensor, back = ctypes.POINTER(abi.Versioned)(), ctypes.py_object()
    exchange = abi.exchange_of(here)
    assert exchange.from_py(here, ctypes.byref(tensor)) == 0
    assert exchange.to_py(tensor, ctypes.byref(back)) == 0
    for view in (here.view("int8"), here.view("int8").view("uint8"), back.value):
        assert view.copied
        with pytest.raises(ValueError, match="it is a copy"):
            pickle.dumps(view)
    tensorlease._sending.pickle_for(None)
    for copy in (here, there, here.view("int8"), back.value):
        for again in (copy.read_only_view, copy.copy_on_write):
            with pytest.raises(tensorlease.UnsupportedError, match="a copy that get"):
                again()
    for asked in ({"max_version": (1, 0)}, {"max_version": (1, 0), "copy": None, "dl_device": None}):
        assert abi.versioned_of(here.__dlpack__(**asked)).flags == 0  # the Tensor has that memory too
    assert abi.versioned_of(here.__dlpack__(max_version=(1, 0), copy=True)).flags == abi.IS_COPIED
    del back, view, copy, again
    assert client.get("cpu").copied is False
    both = client.get_many(["cpu", "gpu"], device="cpu")
    assert [tensor.copied for tensor in both.values()] == [False, True]
    assert [tensor.copied for tensor in client.get_many("", device=0).values()] == [True, False]
    with pytest.raises(tensorlease.NoDeviceError):
        client.get("gpu", device="cuda:9")
    with pytest.raises(ValueError, match="device"):
        client.get("gpu", device="tpu")
    client.delete("cpu")
    client.delete("gpu")


def test_tensors_are_had_on_any_device(gpus):
    run(gets)


def files(path):
    client, driver = connect(), Driver()
    client.put("m/a", bytes(range(100)))
    array = Array(driver, (64,)).fill(9)
    client.put("m/b", array)
    driver.free(array.memory)
    assert client.save("m", path) == ["m/a", "m/b"]
    client.load("n", path, device="cuda:0")
    assert [info.device for info in client.list("n/")] == ["cuda:0", "cuda:0"]
    assert Taken(driver, client.get("n/a")).read() == bytes(range(100))
    assert Taken(driver, client.get("n/b")).read() == bytes([9]) * 64
    for name in client.keys():
        client.delete(name)


def test_files_are_saved_from_and_loaded_to_a_gpu(gpus, tmp_path):
    run(files, tmp_path / "m.safetensors")
