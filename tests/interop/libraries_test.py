# SPDX-License-Identifier: Apache-2.0
"""Every library in every way it takes a Tensor: it gets the same memory and bytes, harms nobody and ends the lease.

`taken` is a way and a mode that the library takes, `exported` such a pair with a capsule, and `refused` a pair that it
must refuse. `word` is an element type that it takes, `foreign` one that it does not take, and `made` one that it makes.
See libraries.py.
"""

import gc
import os
import threading

import pytest

import raw
from conftest import eventually, leases_of, mapping_of
from libraries import OWN, PRIVATE, SHARED
from limits import limit

MATRIX = (32, 64)


BITS = {"bool": 8, "bfloat16": 16, "float4_e2m1fn": 4, "float4_e2m1fnx2": 8, "float6_e2m3fn": 6, "float6_e3m2fn": 6}


def payload_of(word, count):
    """Bytes for that many elements, with every pattern that the type has."""
    if word == "bool":
        return bytes(n % 3 == 0 for n in range(count))
    bits = BITS.get(word) or (8 if word.startswith("float8_") else int(word.lstrip("abcdefghijklmnopqrstuvwxyz")))
    nbytes = (count * bits + 7) // 8
    return bytes((n * 37 + n // 256) % 256 for n in range(nbytes))


def count_of(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def shape_for(way, count=64):
    return (count,) if way.max_ndim == 1 else (count // 8, 8)


@pytest.fixture
def mine(observer):
    """Leases that this process has taken since the test began. They must end without gc, with the last reference."""

    def count():
        return sum(one.leases for one in observer.clients() if one.pid == os.getpid())

    gc.collect()
    start = count()
    return lambda: count() - start


def fails(call):
    """Returns the exception's class, and keeps nothing of the exception."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def put(client, name, word, shape):
    payload = payload_of(word, count_of(shape))
    raw.publish(client, name, shape, word, payload)
    return payload


# ---- (a) the same memory ----


def test_it_is_the_same_memory(library, taken, client, found):
    way, mode = taken
    word = "float32"
    put(client, "lib/memory", word, shape_for(way, 1 << 18))
    tensor = client.get("lib/memory", mode=mode)
    array = way.take(library, tensor)
    here, there = library.address(array), raw.Memory(client.get("lib/memory", mode="c"))
    gives = getattr(way, mode)
    assert (here == tensor._address) == (gives in (SHARED, OWN))
    (shared, offset, _), (mapped, at, dirty) = mapping_of(there.address), mapping_of(here)
    assert (mapped, at, dirty) == (shared, offset, 0), "not the segment's pages"
    found(way, mode, gives=gives)


def test_another_process_writes_are_seen(library, taken, client, peer):
    """Nobody may write to a published tensor, but here the write shows that nothing was copied."""
    way, mode = taken
    shape = shape_for(way)
    before, after = payload_of("int32", 64), payload_of("int32", 64)[::-1]
    peer("produce", "lib/seen", shape, "int32", before.hex())
    array = way.take(library, client.get("lib/seen", mode=mode))
    peer("scribble", "lib/seen", after.hex())
    assert library.bytes(array, len(after)) == after


def test_an_array_over_a_draft_is_published(library, way, client, peer):
    """Zero copy in the other direction: the library's array is the draft's memory."""
    shape = shape_for(way)
    payload = payload_of("float32", 64)
    draft = client.create("lib/draft", shape, "float32")
    raw.Memory(draft).fill(payload)
    array = way.take(library, draft)
    assert library.address(array) == raw.Memory(draft).address
    assert library.bytes(array, len(payload)) == payload
    published = client.publish("lib/draft", library.produces(array))
    assert not published.copied
    assert draft.state == "committed"
    assert peer.read("lib/draft") == ("float32", shape, payload)


# ---- (b) the same bytes ----


def test_bytes_there_and_back(library, taken, word, client, peer, found):
    way, mode = taken
    shape = shape_for(way, 512)
    payload = put(client, "lib/there", word, shape)
    array = way.take(library, client.get("lib/there", mode=mode))
    assert library.shape(array) == shape
    assert library.bytes(array, len(payload)) == payload
    client.put("lib/back", library.produces(array))
    assert peer.read("lib/back") == (library.says(word), shape, payload)
    found(way, mode, takes=word)


def test_what_it_makes_is_published(library, made, client, peer):
    shape = (8, 8)
    payload = payload_of(made, 64)
    array = library.produces(library.make(made, shape, payload))
    said = library.says(made)
    version = client.put("lib/made", array)
    assert peer.read("lib/made") == (said, shape, payload)
    published = client.publish("lib/made", array)
    assert published == (version + 1, True)
    assert peer.read("lib/made") == (said, shape, payload)


def test_views_that_are_not_contiguous_are_published(library, client, peer):
    if not library.strided:
        pytest.skip(f"{library.name} has no such views")
    payload = payload_of("int32", 6)
    array = library.transposed(library.make("int32", (2, 3), payload))
    client.put("lib/view", library.produces(array))
    columns = b"".join(payload[4 * n : 4 * n + 4] for n in (0, 3, 1, 4, 2, 5))
    assert peer.read("lib/view") == ("int32", (3, 2), columns)


SHAPES = (
    (),
    (0,),
    (2, 0, 3),
    (1,),
    (7,),
    (2, 3, 5),
    (2, 1, 3, 1, 2),
    (1,) * 8,
    (2,) * 9,
    (1,) * 16,
    (1,) * 31 + (2,),
    (1,) * 63 + (2,),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)) if 0 < len(s) < 9 else f"ndim{len(s)}")
def test_shapes(library, taken, shape, client, peer, mine):
    way, mode = taken
    payload = put(client, "lib/shape", "float32", shape)
    base = mine()
    if not library.takes_shape(way, shape):
        assert fails(lambda: way.take(library, client.get("lib/shape", mode=mode)))
        assert mine() == base
        return
    array = way.take(library, client.get("lib/shape", mode=mode))
    assert library.shape(array) == shape
    assert library.bytes(array, len(payload)) == payload
    client.put("lib/shape_back", library.produces(array))
    assert peer.read("lib/shape_back") == ("float32", shape, payload)


# ---- (c) what it cannot take ----


def test_foreign_types_are_refused_and_nothing_is_lost(library, taken, foreign, client, mine):
    way, mode = taken
    payload = put(client, "lib/foreign", foreign, shape_for(way))
    tensor = client.get("lib/foreign", mode=mode)
    base = mine()
    in_pairs = way.name == "t.torch()" and foreign == "float4_e2m1fn" and hasattr(library.lib, "float4_e2m1fn_x2")
    if in_pairs:  # as PyTorch of today has it
        assert str(way.take(library, tensor).dtype) == "torch.float4_e2m1fn_x2"
    else:
        assert fails(lambda: way.take(library, tensor))
        assert mine() == base
    assert raw.plain(tensor) == payload and not tensor.released


def test_modes_are_refused_before_anything_is_taken(library, refused, client, mine, found):
    way, mode = refused
    payload = put(client, "lib/mode", "float32", shape_for(way))
    tensor = client.get("lib/mode", mode=mode)
    base = mine()
    error = fails(lambda: way.take(library, tensor))
    assert error is not None
    assert mine() == base
    found(way, mode, gives=error.__name__)
    assert raw.plain(tensor) == payload
    if way.c == OWN:  # The mode was wrong. The error says so, and what it suggests works.
        with pytest.raises(BufferError, match='mode="c"'):
            way.take(library, tensor)
        assert library.bytes(way.take(library, tensor.copy_on_write()), len(payload)) == payload


# ---- (d) writes ----


def test_writes_reach_nobody_else(library, taken, client, peer, found):
    way, mode = taken
    payload = put(client, "lib/write", "float32", shape_for(way))
    peer("hold", "lib/write")
    tensor, other = client.get("lib/write", mode=mode), client.get("lib/write", mode="c")
    array = way.take(library, tensor)
    error = fails(lambda: library.write(array, len(payload)))
    zeros = bytes(len(payload))
    if getattr(way, mode) == SHARED or not way.writable:
        assert error is not None, "a write was let through"
    else:
        assert error is None
        if library.shows_writes:
            assert library.bytes(array, len(payload)) == zeros
            assert raw.plain(tensor) == (zeros if mode == "c" else payload)
    found(way, mode, write=error and error.__name__)
    assert bytes.fromhex(peer("look", "lib/write")) == payload
    assert raw.plain(other) == payload and raw.plain(client.get("lib/write")) == payload
    peer("drop", "lib/write")


# ---- (e) and (f) leases ----


def test_the_memory_stays_as_long_as_the_array(library, taken, client):
    way, mode = taken
    shape = shape_for(way)
    payload = put(client, "lib/stays", "int32", shape)
    tensor = client.get("lib/stays", mode=mode)
    array = way.take(library, tensor)
    tensor.release()
    for n in range(20):
        client.put("lib/stays", bytes([n]) * len(payload))
    client.delete("lib/stays")
    for n in range(20):
        client.put("lib/others", bytes([n]) * len(payload))
    assert library.bytes(array, len(payload)) == payload


def leases_of_one(library, way, mode):
    return 2 if library.keeps_tensor and getattr(way, mode) == PRIVATE else 1


def test_each_lease_comes_back_once(library, taken, client, mine):
    """A release too few leaves a lease, and a release too many ends that of `base`."""
    way, mode = taken
    one = leases_of_one(library, way, mode)
    put(client, "lib/lease", "float32", shape_for(way))
    base = client.get("lib/lease")
    assert mine() == 1
    array = way.take(library, client.get("lib/lease", mode=mode))
    assert mine() == 1 + one
    del array
    assert mine() == 1
    for _ in range(100):
        way.take(library, client.get("lib/lease", mode=mode))
    assert mine() == 1
    arrays = [way.take(library, base if mode == "r" else client.get("lib/lease", mode=mode)) for _ in range(50)]
    assert 1 <= mine() <= 51  # arrays of one Tensor may share its lease
    arrays.append(arrays)
    del arrays
    gc.collect()
    assert mine() == 1
    assert not base.released
    base.release()
    assert mine() == 0


def test_capsules_give_back_once(library, exported, client, mine):
    way, mode = exported
    put(client, "lib/capsule", "float32", shape_for(way))
    base = client.get("lib/capsule")
    for _ in range(50):
        way.export(client.get("lib/capsule", mode=mode))  # nobody consumes it
    assert mine() == 1
    capsule = way.export(client.get("lib/capsule", mode=mode))
    array = way.consume(library, capsule)
    del array
    assert mine() == 1  # the capsule is still there, but its tensor is not
    del capsule
    assert mine() == 1
    capsule = way.export(client.get("lib/capsule", mode=mode))
    array = way.consume(library, capsule)
    del capsule
    assert mine() == 2
    del array
    assert mine() == 1
    del base


def test_threads(library, taken, client, mine):
    """Arrays are taken on a thread that ends, and given back on another one."""
    way, mode = taken
    put(client, "lib/thread", "float32", shape_for(way))
    local, passed = threading.local(), []

    def work():
        local.array = way.take(library, client.get("lib/thread", mode=mode))
        passed.append(way.take(library, client.get("lib/thread", mode=mode)))

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    eventually(lambda: mine() == 3 * leases_of_one(library, way, mode))
    passed.clear()
    eventually(lambda: mine() == 0)


def test_size_zero_comes_back(library, taken, client, mine):
    way, mode = taken
    put(client, "lib/zero", "float32", (0,))
    for _ in range(3):
        way.take(library, client.get("lib/zero", mode=mode))
    assert mine() == 0


@pytest.fixture
def held(library_class, client, observer, holder):
    """A process that holds arrays of the library."""
    put(client, "lib/held", "float32", (8, 8))
    way = next(n for n, way in enumerate(library_class.ways) if way.c == OWN)
    child = holder(library_class.name, way, "c", "lib/held", 20)
    assert leases_of(observer, child.pid) == 21
    return child


def test_a_killed_process_holds_nothing(held, client, observer):
    held.kill()
    held.wait(limit(60))
    end_of(held, client, observer)


def test_a_process_may_end_with_arrays(held, client, observer):
    _, errors = held.communicate(timeout=limit(60))
    assert held.returncode == 0, errors
    end_of(held, client, observer)


def end_of(child, client, observer):
    """The child's leases have ended, and nothing keeps memory that has no name any more."""
    eventually(lambda: not any(one.pid == child.pid for one in observer.clients()))
    others = {holding.name for one in observer.clients() for holding in observer.holdings(one.id)}
    assert "lib/held" not in others
    retired = observer.status().retired
    client.delete("lib/held")
    eventually(lambda: observer.status().retired <= retired)
    assert "lib/held" not in client
