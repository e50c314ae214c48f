# SPDX-License-Identifier: Apache-2.0
"""Numbers and UUIDs of GPUs, and machines on which CUDA does not work."""

import dlpack_abi as abi
import gpu_help
import pytest
from cuda_driver import Child, Driver, Taken, run
from gpu_help import N, connect, fill_draft_and_stay
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def devices_here():
    return [(d.number, d.uuid) for d in tensorlease.cuda_devices()]


def number_of_t():
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=limit(10))
    assert Taken(driver, tensor).read() == bytes(N)
    assert client.stat("t").device == tensor.device
    return tensor.device


def why_not():
    with pytest.raises(tensorlease.NoDeviceError) as caught:
        connect().get("t")
    return str(caught.value)


def why_none():
    with pytest.raises(tensorlease.NoDeviceError) as caught:
        tensorlease.cuda_devices()
    return str(caught.value)


def test_an_instance_of_mig_has_the_uuid_that_cuda_visible_devices_takes(gpus, monkeypatch):
    monkeypatch.setenv("FAKECUDA_MIG", "1")
    here = run(devices_here)
    assert len(here) > 1 and all(uuid.startswith("MIG-") for _, uuid in here)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here[1][1])
    assert run(devices_here) == [(0, here[1][1])]


def test_two_devices_under_other_numbers(gpus, observer, monkeypatch):
    assert [n for n, _ in run(devices_here)] == [0, 1]
    uuids = [uuid for _, uuid in run(devices_here)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert run(devices_here) == [(0, uuids[1]), (1, uuids[0])]
    producer = Child(fill_draft_and_stay, 0, 1)  # on its device 1, which is the first one here
    producer.hear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert observer.stat("t").device_uuid == uuids[0]
    assert run(number_of_t) == "cuda:0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids[1])
    assert uuids[0] in run(why_not)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in run(why_none)
    producer.end()


def nothing_works():
    client = connect()
    info = client.stat("t")
    assert info.device == "cuda" and not info.lost
    assert client.devices()[0].uuid == info.device_uuid
    for call in (
        lambda: client.get("t"),
        lambda: client.get("t", timeout=limit(5)),
        lambda: client.create("u", 4, "int8", device=0),
        lambda: client.put("u", abi.Producer(device=(2, 0))),
        lambda: client.publish("u", abi.Producer(device=(2, 0))),
        tensorlease.cuda_devices,
    ):
        with pytest.raises(tensorlease.NoDeviceError, match="CUDA cannot be used") as caught:
            call()
    client.put("c", b"1")
    client.delete("c")
    return str(caught.value)


def test_without_any_driver(gpus, monkeypatch):
    producer = Child(fill_draft_and_stay, 0, 1)
    producer.hear()
    monkeypatch.setenv("FAKECUDA_INIT", "100")
    assert "CUDA" in run(nothing_works)
    monkeypatch.setenv("FAKECUDA_INIT", "0")
    producer.end()


def test_a_driver_that_cannot_be_loaded(gpus, tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    producer = Child(fill_draft_and_stay, 0, 1)
    producer.hear()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "libcuda.so.1 cannot be loaded" in run(nothing_works)
    producer.end()
