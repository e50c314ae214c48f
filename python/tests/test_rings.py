# SPDX-License-Identifier: Apache-2.0
"""What works for a name works for one with a ring, which its producer publishes without asking the daemon."""

import asyncio

import numpy as np
import pytest
from conftest import eventually, in_child, once_asleep, until_the_waiter_sleeps
from limits import limit

import tensorlease

SIZE = 1024

rings = pytest.mark.parametrize("ring", [False, "auto", 8], ids=["none", "auto", "8"])


def put(client, name, value, ring, **options):
    return client.put(name, np.full(SIZE, value, "int32"), ring=ring, **options)


def begin(client, name, ring):
    """Publishes until the name has the ring that it is going to have. The version is returned."""
    for value in range(1, 6):
        version = put(client, name, value, ring)
    assert client.stat(name).ring == {False: 0, "auto": 64, 8: 8}[ring]
    return version


@rings
def test_versions_values_and_stat(client, observer, ring):
    name = f"ring/stat/{ring}"
    version = begin(client, name, ring)
    for value in range(200):
        assert put(client, name, value, ring) == version + 1 + value
        got = observer.get(name)
        assert got.version == version + 1 + value
        assert got.numpy().min() == got.numpy().max() == value
    info = observer.stat(name)
    assert (info.version, info.shape, info.dtype) == (version + 200, (SIZE,), "int32")
    assert [i.version for i in observer.list() if i.name == name] == [version + 200]


@rings
def test_a_slot_of_a_ring_has_the_rings_name(client, ring):
    name = f"ring/name/{ring}"
    begin(client, name, ring)
    draft = client.create(name, SIZE, "int32", ring=ring)
    draft.numpy()[:] = 7
    if ring:
        with pytest.raises(tensorlease.UnsupportedError, match=f"slot of the ring of '{name}'"):
            client.publish("ring/other", draft, no_copy=True)
    assert client.publish("ring/other", draft).copied == bool(ring)
    assert (client.get("ring/other").numpy() == 7).all()


@rings
def test_what_is_held_stays(client, observer, ring):
    name = f"ring/held/{ring}"
    begin(client, name, ring)
    held = []
    for value in range(100):
        put(client, name, value, ring)
        held.append(observer.get(name))
    assert all((tensor.numpy() == value).all() for value, tensor in enumerate(held))


@rings
def test_waits(client, observer, ring):
    name = f"ring/wait/{ring}"
    version = begin(client, name, ring)
    with pytest.raises(TimeoutError):
        observer.get(name, newer_than=version, timeout=0.01)
    thread = once_asleep(lambda: put(client, name, 7, ring))
    got = observer.get(name, newer_than=version, timeout=limit(60))
    thread.join()
    assert got.version == version + 1
    assert got.numpy()[0] == 7


@rings
def test_asyncio(client, observer, ring):
    name = f"ring/async/{ring}"
    version = begin(client, name, ring)

    async def main():
        wait = asyncio.create_task(observer.aget(name, newer_than=version, timeout=limit(60)))
        other = asyncio.create_task(observer.aget(f"{name}/other", timeout=limit(60)))
        await asyncio.sleep(0)
        until_the_waiter_sleeps()
        put(client, name, 8, ring)
        got = await wait
        client.put(f"{name}/other", np.zeros(1))
        await other
        return got.version, int(got.numpy()[0])

    assert asyncio.run(main()) == (version + 1, 8)


@rings
def test_many_at_once(client, observer, ring):
    name = f"ring/many/{ring}"
    begin(client, f"{name}/a", ring)
    begin(client, f"{name}/b", ring)
    got = observer.get_many([f"{name}/a", f"{name}/b"])
    assert [int(tensor.numpy()[0]) for tensor in got.values()] == [5, 5]
    client.put_many({f"{name}/a": np.zeros(3), f"{name}/b": np.ones(3)})  # ends the rings
    assert observer.stat(f"{name}/a").ring == 0
    assert observer.get(f"{name}/b").shape == (3,)
    assert observer.stat(f"{name}/b").version == 6


@rings
def test_metadata(client, observer, ring):
    name = f"ring/meta/{ring}"
    version = begin(client, name, ring)
    assert put(client, name, 1, ring, metadata=b"t=1") == version + 1
    assert observer.stat(name).metadata == observer.get(name).metadata == b"t=1"
    assert put(client, name, 2, ring, metadata=bytes(1024)) == version + 2  # no slot has space for it
    assert observer.get(name).metadata == bytes(1024)
    assert put(client, name, 3, ring) == version + 3
    assert observer.get(name).metadata == b""


@rings
def test_others_delete_and_publish(client, observer, ring):
    name = f"ring/others/{ring}"
    version = begin(client, name, ring)
    observer.delete(name)
    assert name not in observer
    assert put(client, name, 1, ring) == version + 1
    assert observer.put(name, np.zeros(SIZE, "int32"), ring=False) == version + 2
    assert put(client, name, 3, ring) == version + 3
    assert observer.get(name).numpy()[0] == 3


@rings
def test_copy_on_write(client, observer, ring):
    name = f"ring/cow/{ring}"
    begin(client, name, ring)
    mine = observer.get(name, mode="c").numpy()
    mine[:] = 100
    for value in range(20):
        put(client, name, value, ring)
    assert (mine == 100).all()
    assert observer.get(name).numpy()[0] == 19


@rings
def test_drafts(client, observer, ring):
    name = f"ring/draft/{ring}"
    begin(client, name, ring)
    version = observer.stat(name).version
    for value in range(20):
        with client.create(name, SIZE, "int32", ring=ring) as draft:
            draft[:] = value
        assert draft.version == version + 1 + value
        assert (np.asarray(observer.get(name)) == value).all()
    draft = client.create(name, SIZE, "int32", ring=ring)
    draft.abort()
    assert observer.stat(name).version == version + 20
    draft = client.create(name, SIZE, "int32", ring=ring)
    draft[:] = 50
    published = client.publish(name, draft)
    assert published == (version + 21, False)
    assert (observer.get(name).numpy() == 50).all()


@rings
def test_another_shape_ends_it(client, observer, ring):
    name = f"ring/shape/{ring}"
    version = begin(client, name, ring)
    assert client.put(name, np.zeros(3), ring=False) == version + 1
    assert observer.stat(name).ring == 0
    assert observer.get(name).shape == (3,)


@rings
def test_fork(client, observer, ring):
    name = f"ring/fork/{ring}"
    version = begin(client, name, ring)
    held = client.get(name)

    def child():
        assert put(client, name, 70, ring) == version + 1  # by a connection of its own
        assert held.numpy()[0] == 5

    in_child(child)
    assert observer.get(name).numpy()[0] == 70
    assert put(client, name, 71, ring) == version + 2
    assert observer.get(name).numpy()[0] == 71
    assert held.numpy()[0] == 5


def test_a_client_that_closes_leaves_its_last_tensor(address, observer):
    with tensorlease.connect(autostart=False) as producer:
        version = begin(producer, "ring/closed", 8)
        assert observer.status().rings >= 1
        assert observer.status().ring_slots >= 8
    eventually(lambda: observer.stat("ring/closed").ring == 0)
    assert observer.get("ring/closed").version == version
    assert observer.get("ring/closed").numpy()[0] == 5


def test_a_lifetime_has_no_ring(client, observer):
    for _ in range(5):
        put(client, "ring/ttl", 1, 8, ttl=1000)
    assert observer.stat("ring/ttl").ring == 0
    assert observer.stat("ring/ttl").ttl > 0


def test_metadata_for_which_a_slot_has_no_room_has_no_ring(client, observer):
    put(client, "ring/meta", 1, 8, metadata=bytes(25))
    assert observer.stat("ring/meta").ring == 0
    put(client, "ring/meta", 2, 8, metadata=bytes(24))
    assert observer.stat("ring/meta").ring == 8
    client.put("ring/least", np.zeros(3), ring=1)
    assert observer.stat("ring/least").ring == 3
    client.put("ring/true", np.zeros(3), ring=True)
    assert observer.stat("ring/true").ring == 0  # as the library decides: not yet


@pytest.mark.parametrize("ring", [0, -1, 65, 10**30, 1.5, "8", b"auto"])
def test_what_is_no_ring(client, ring):
    with pytest.raises((ValueError, TypeError), match="ring must be a number of slots"):
        client.put("ring/no", np.zeros(3), ring=ring)
    with pytest.raises((ValueError, TypeError), match="ring must be a number of slots"):
        client.create("ring/no", 3, "int8", ring=ring)
