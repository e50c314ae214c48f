# SPDX-License-Identifier: Apache-2.0
"""put_many() publishes many tensors in one step, and get_many() gets them as of one moment."""

import builtins
import collections
import gc
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time

import dlpack_abi as abi
import numpy as np
import pytest
from conftest import (
    close_during,
    count_meanwhile,
    daemon_at,
    eventually,
    gives_the_gil_up,
    in_child,
    is_interrupted,
    leases_of,
    once_asleep,
    run_python,
)
from limits import limit

import tensorlease


def arrays_of(count, value=0):
    return {f"layer{i}/weight": np.full((i % 7 + 1, 5), value, "float32") for i in range(count)}


def test_what_goes_in_comes_out(client):
    given = {
        "transposed": np.arange(24).reshape(4, 6).T,
        "backwards": np.arange(10, dtype="uint8")[::-2],
        "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "scalar": np.array(2.5, "float16"),
        "empty": np.zeros((0, 3), "complex64"),
        "deep/er/name": np.array([True, False]),
        "bytes": b"no array",
    }
    assert client.put_many(given, prefix="many/kinds/") is None
    got = client.get_many(prefix="many/kinds/")
    assert got.keys() == given.keys()
    for name, array in given.items():
        expected = np.frombuffer(array, "uint8") if isinstance(array, bytes) else array
        assert got[name].name == f"many/kinds/{name}" and got[name].version == 1 and got[name].read_only
        assert got[name].dtype == expected.dtype and got[name].shape == expected.shape
        assert (got[name].numpy() == expected).all()


def test_keys_are_what_was_asked_for(client):
    client.put_many({"many/keys/a": b"1", "many/keys/b": b"2", "many/keysmith": b"3"})
    assert list(client.get_many(["many/keys/b", "many/keys/a"])) == ["many/keys/b", "many/keys/a"]
    assert list(client.get_many(["b", "a"], prefix="many/keys/")) == ["b", "a"]
    assert set(client.get_many("many/keys/")) == {"many/keys/a", "many/keys/b"}
    assert set(client.get_many("keys", prefix="many/")) == {"keys/a", "keys/b"}
    assert set(client.get_many(prefix="many/keys")) == {"a", "b"}
    assert {info.name for info in client.list()} == set(client.get_many())
    assert client.get_many([]) == {}
    assert list(client.get_many(collections.OrderedDict(a=1), prefix="many/keys/")) == ["a"]


def test_tensors_and_drafts_are_arrays_too(client):
    client.put_many(arrays_of(5, 8), prefix="many/from/", metadata=b"m")
    client.put_many(client.get_many(prefix="many/from/"), prefix="many/to/")
    assert client.get_many(prefix="many/to/").keys() == arrays_of(5).keys()
    assert all((t.numpy() == 8).all() for t in client.get_many(prefix="many/to/").values())
    draft = client.create("many/draft", 3, "int16")
    draft[...] = 5
    client.put_many({"many/copied": draft})
    draft.abort()
    assert client.get("many/copied").numpy().tolist() == [5, 5, 5]


def test_copy_on_write(client):
    client.put_many({"many/c/a": np.zeros(10), "many/c/b": np.zeros(10)})
    for got in (client.get_many("many/c/", mode="c"), client.get_many(["many/c/a", "many/c/b"], mode="c")):
        got["many/c/a"].numpy()[:] = 7
        assert not got["many/c/a"].read_only and not got["many/c/b"].numpy().any()
        assert not client.get("many/c/a").numpy().any()


def test_metadata(client):
    client.put_many({"a": b"1", "b": b"2"}, prefix="many/meta/", metadata=b"step 7")
    assert [t.metadata for t in client.get_many(prefix="many/meta/").values()] == [b"step 7"] * 2
    client.put_many({"a": b"1", "b": b"2"}, prefix="many/meta/", metadata={"b": b"only b"})
    assert [client.get(f"many/meta/{n}").metadata for n in "ab"] == [b"", b"only b"]
    with pytest.raises(ValueError, match="'c'"):
        client.put_many({"a": b"1"}, prefix="many/meta/", metadata={"c": b""})
    with pytest.raises(TypeError, match="^'many/meta/a': metadata must be bytes"):
        client.put_many({"a": b"1"}, prefix="many/meta/", metadata=7)
    with pytest.raises(ValueError, match="'many/meta/b'.*1025"):
        client.put_many({"a": b"1", "b": b"2"}, prefix="many/meta/", metadata={"b": bytes(1025)})
    assert client.stat("many/meta/a").version == 2


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ({"two": object()}, TypeError, "'many/none/two': .*object"),
        ({"two": np.zeros(3, "M8[s]")}, BufferError, "'many/none/two': "),
        ({"a//b": b"2"}, ValueError, "a//b"),
        ({"x" * 250: b"2"}, ValueError, "255"),
        ({7: b"2"}, TypeError, "str"),
        ({"two": abi.Producer(device=(2, 0))}, tensorlease.NoDeviceError, "CUDA cannot be used"),
        ({"two": abi.Producer(device=(10, 0))}, tensorlease.UnsupportedError, "'many/none/two': .*device"),
    ],
)
def test_all_or_none(client, bad, error, text):
    with pytest.raises(error, match=text):
        client.put_many({"one": b"1", **bad}, prefix="many/none/")
    assert "many/none/one" not in client
    assert eventually(lambda: client.status().drafts == 0)


def test_arrays_are_published_in_one_step(client):
    given = {"a": np.arange(12).reshape(3, 4).T, "b": bytearray(b"bytes"), "c": np.zeros((0, 2))}
    assert client.publish_many(given, prefix="many/publish/", metadata=b"step", ttl=1000) == 3
    got = client.get_many(prefix="many/publish/")
    assert (got["a"].numpy() == given["a"]).all() and bytes(got["b"]) == b"bytes" and got["c"].shape == (0, 2)
    assert {t.metadata for t in got.values()} == {b"step"}
    assert all(0 < client.stat(f"many/publish/{name}").ttl <= 1000 for name in given)
    given["b"][0] = 0  # nobody holds its buffer
    given["b"].clear()
    assert client.publish_many(got, prefix="many/again/") == 3
    for bad, error in (({"b": object()}, TypeError), ({"b//c": b""}, ValueError), ({3: b""}, TypeError)):
        with pytest.raises(error):
            client.publish_many({"a": b"1", **bad}, prefix="many/bad/")
    with pytest.raises(ValueError):
        client.publish_many({})
    with pytest.raises(TypeError, match="mapping"):
        client.publish_many([("a", b"1")])
    assert client.list("many/bad/") == []


def test_what_is_no_group_is_refused(client):
    with pytest.raises(ValueError, match="65536"):
        client.put_many({})
    with pytest.raises(ValueError, match=r"65537.*65536"):
        client.put_many({str(i): b"" for i in range(65537)})
    with pytest.raises(TypeError, match="mapping"):
        client.put_many([("a", b"1")])
    with pytest.raises(ValueError, match="65537"):
        client.get_many(["a"] * 65537)


def test_no_space(client):
    big = np.broadcast_to(np.uint8(0), 1 << 29)
    with pytest.raises(tensorlease.NoSpaceError):
        client.put_many({"many/big/a": big, "many/big/b": big, "many/big/c": big})
    with pytest.raises(tensorlease.NoSpaceError):
        client.put_many({"many/big/a": big, "many/big/b": big, "many/big/c": big}, timeout=0.05)
    assert client.list("many/big") == [] and eventually(lambda: client.status().drafts == 0)


def test_missing_names(client):
    client.put_many({"many/some/a": b"1"})
    with pytest.raises(FileNotFoundError, match="many/some/b"):
        client.get_many(["many/some/a", "many/some/b"])
    with pytest.raises(FileNotFoundError, match="many/nothing/"):
        client.get_many("many/nothing/")
    with pytest.raises(builtins.TimeoutError, match="'many/some/b'.*0.05 s"):
        client.get_many(["many/some/a", "many/some/b"], timeout=0.05)
    with pytest.raises(builtins.TimeoutError, match="'many/nothing/'.*0.05 s"):
        client.get_many("many/nothing/", timeout=0.05)
    for names in ("a\0b", ["a\0b"], ["a//b"]):
        with pytest.raises(ValueError):
            client.get_many(names)
    with pytest.raises(TypeError):
        client.get_many([7])
    with pytest.raises(ValueError, match="mode"):
        client.get_many("many/some/", mode="w")


def test_leases_are_given_back(client, observer):
    client.put_many(arrays_of(100), prefix="many/leases/")
    before = leases_of(observer, os.getpid())
    got = client.get_many(prefix="many/leases/")
    assert leases_of(observer, os.getpid()) == before + 100
    array = got["layer3/weight"].numpy()
    del got
    assert leases_of(observer, os.getpid()) == before + 1
    del array
    same = client.get_many(["many/leases/layer1/weight"] * 3)
    assert len(same) == 1 and leases_of(observer, os.getpid()) == before + 1
    with pytest.raises(FileNotFoundError):
        client.get_many(["many/leases/layer2/weight", "many/leases/none"])
    del same
    assert leases_of(observer, os.getpid()) == before


def test_sources_are_let_go(client):
    arrays = arrays_of(20)
    counts = [sys.getrefcount(a) for a in arrays.values()]
    client.put_many(arrays, prefix="many/refs/")
    with pytest.raises(TypeError):
        client.put_many({**arrays, "bad": object()}, prefix="many/refs/")
    gc.collect()
    assert [sys.getrefcount(a) for a in arrays.values()] == counts


def test_a_wait_for_names_ends_when_the_last_is_there(client, observer):
    def publish():
        observer.put("many/wait/b", b"b")
        observer.put_many({"many/wait/c": b"c", "many/wait/d": b"d"})

    client.put("many/wait/a", b"a")
    thread = once_asleep(publish)
    got = client.get_many(["a", "b", "c", "d"], prefix="many/wait/", timeout=limit(60))
    assert b"".join(bytes(t) for t in got.values()) == b"abcd"
    thread.join()


def test_a_wait_for_a_prefix_ends_when_there_is_one(client, observer):
    thread = once_asleep(lambda: observer.put_many(arrays_of(50), prefix="many/later/"))
    assert len(client.get_many(prefix="many/later/", timeout=limit(60))) == 50
    thread.join()


@pytest.mark.parametrize("names", ["['many/none']", "'many/none'"])
def test_a_signal_ends_a_wait(address, names):
    assert is_interrupted(f"client.get_many({names}, timeout={limit(50)})")


@pytest.mark.parametrize("names", [["many/none"], "many/none"])
def test_close_ends_a_wait(address, names):
    client = tensorlease.connect()
    (said,) = close_during(client, lambda: client.get_many(names, timeout=limit(60)))
    assert "closed" in said
    for call in (lambda: client.put_many({"a": b""}), lambda: client.get_many(names)):
        with pytest.raises(ValueError, match="closed"):
            call()


PUBLISH = """
import sys, numpy as np, tensorlease
client = tensorlease.connect(autostart=False)
names, half = [f"n{i}" for i in range(40)], int(sys.argv[1]) // 2
for version in range(1, 2 * half + 1):
    if version == half:
        client.get("many/seen", timeout=float("inf"))  # a reader has got one of the first half
    client.put_many({n: np.full(64, version) for n in names}, prefix="many/step/")
    client.put_many({n: np.full(64, version) for n in names}, prefix=f"many/first/{version}/")
    for n in names:
        client.delete(f"many/first/{version}/{n}")
"""


def test_a_get_never_sees_half_of_a_put(client):
    """Another process puts the same names again and again, and new names that it then deletes one by one."""
    rounds = 150
    publisher = subprocess.Popen([sys.executable, "-c", PUBLISH, str(rounds)])
    try:
        names, last, seen = [f"n{i}" for i in range(40)], 0, set()
        while last < rounds:
            assert publisher.poll() in (None, 0)
            for got in (
                client.get_many(names, prefix="many/step/", timeout=limit(60)),
                client.get_many(prefix="many/step/", timeout=limit(60)),
            ):
                values = {int(v) for t in got.values() for v in (t.numpy()[0], t.numpy()[-1])}
                assert len(got) == 40 and len(values) == 1 and min(values) >= last
                last = min(values)
                seen.add(last)
                client.put("many/seen", b"")
        assert publisher.wait(limit(60)) == 0 and len(seen) > 1
    finally:
        publisher.kill()
        publisher.wait()


def test_names_that_come_together_are_got_together(client):
    """A list may contain only some of the names that are just being published. The result may not."""
    code = (
        "import itertools, tensorlease\n"
        "client = tensorlease.connect(autostart=False)\n"
        "for i in itertools.count():\n"
        f"    client.get('many/go', newer_than=i, timeout={limit(60)})\n"
        "    client.put_many({str(n): b'x' for n in range(200)}, prefix=f'many/new/{i}/')\n"
    )
    publisher = subprocess.Popen([sys.executable, "-c", code])
    try:
        end = time.monotonic() + limit(60)  # for a busy machine; 200 rounds take some seconds
        for i in range(200):
            client.put("many/go", b"")
            got = {}
            while not got:
                try:
                    got = client.get_many(prefix=f"many/new/{i}/")
                except FileNotFoundError:
                    assert publisher.poll() is None
            assert len(got) == 200
            if time.monotonic() > end:
                break
    finally:
        publisher.kill()
        publisher.wait()


def test_a_put_gives_the_gil_up(client):
    arrays = {"many/gil/a": bytes(1 << 26), "many/gil/b": bytes(1 << 26)}
    assert gives_the_gil_up(lambda: client.put_many(arrays, timeout=limit(60)))
    for name in "ab":
        client.delete(f"many/gil/{name}")


def test_a_get_of_what_is_mapped_keeps_the_gil(client):
    client.put("many/local", b"x")
    client.get("many/local").release()

    def gets():
        for _ in range(1000):
            client.get("many/local", newer_than=0).release()

    assert count_meanwhile(gets) == 0


def test_fork(client):
    client.put_many(arrays_of(10, 3), prefix="many/fork/")
    got = client.get_many(prefix="many/fork/")

    def child():
        assert all((t.numpy() == 3).all() for t in got.values())
        assert len(client.get_many(prefix="many/fork/")) == 10
        client.put_many(arrays_of(10, 4), prefix="many/fork/")

    in_child(child)
    assert all((t.numpy() == 4).all() for t in client.get_many(prefix="many/fork/").values())
    assert all((t.numpy() == 3).all() for t in got.values())


def test_a_killed_putter_leaves_nothing(client):
    code = (
        "import os, signal, tensorlease\n"
        "client = tensorlease.connect(autostart=False)\n"
        "class Late:\n"
        "    def __dlpack__(self, **_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "client.put_many({'many/dead/a': b'1', 'many/dead/b': Late()})\n"
    )
    assert run_python(code, check=False).returncode == -signal.SIGKILL
    assert client.list("many/dead/") == []


def test_a_state_dict_of_pytorch(client):
    torch = pytest.importorskip("torch")
    wide = torch.randn(64, 96)
    tied = torch.randn(32, 8).to(torch.bfloat16)
    state = {f"blocks.{i}.attention.weight": torch.randn(16, 8).to(torch.bfloat16) for i in range(300)}
    state |= {f"blocks.{i}.norm.weight": torch.randn(8) for i in range(40)}
    state |= {"embedding.weight": tied, "head.weight": tied}
    state |= {"transposed": wide.T, "strided": wide[::3, 5::2], "view": wide[7], "expanded": wide[:1].expand(9, 96)}
    state |= {"step": torch.tensor(7), "mask": torch.tensor([True, False]), "none": torch.zeros(0, 4)}
    state |= {"f8": torch.arange(8.0).to(torch.float8_e4m3fn), "c": torch.randn(3, dtype=torch.complex64)}
    client.put_many(state, prefix="many/model/")
    got = {name: tensor.torch() for name, tensor in client.get_many(prefix="many/model/").items()}
    assert got.keys() == state.keys() and len(got) > 340
    for name, tensor in state.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape and got[name].is_contiguous()
        assert got[name].flatten().view(torch.uint8).equal(tensor.flatten().contiguous().view(torch.uint8)), name
    assert got["head.weight"].data_ptr() != got["embedding.weight"].data_ptr()


def test_a_model_of_pytorch_takes_them_over(client):
    torch = pytest.importorskip("torch")
    model, other = (torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)) for _ in range(2))
    client.put_many(model.state_dict(), prefix="many/nn/")
    state = {name: tensor.torch() for name, tensor in client.get_many(prefix="many/nn/").items()}
    other.load_state_dict(state, assign=True)  # the shared pages themselves
    batch = torch.randn(4, 8)
    assert torch.equal(model(batch), other(batch))
    assert other[0].weight.data_ptr() == state["0.weight"].data_ptr()
    with pytest.raises((BufferError, RuntimeError), match="'many/nn/0.weight': "):  # it must be detached first
        client.put_many(dict(model.named_parameters()), prefix="many/nn/")


# ---- no room for a step ----


@pytest.fixture
def few():
    """A daemon that has room for 100 tensors, and 60 below "few/"."""
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder:
        path = f"{folder}/socket"
        with daemon_at(path, more=["--max-tensors", "100"]), tensorlease.connect(path) as client:
            client.put_many({f"few/{n}": b"" for n in range(60)})
            yield client


def test_names_are_deleted_without_room_for_a_step(few):
    few.put("other", b"")
    few.delete(prefix="few/")
    assert few.keys() == ["other"]
    with pytest.raises(tensorlease.NotFoundError):
        few.delete(prefix="few/")


def test_a_replace_without_room_says_what_would_do(few):
    with pytest.raises(tensorlease.NoSpaceError, match="100 tensors are in use.*delete\\(prefix='few/'\\) before it"):
        few.put_many({"new": b""}, prefix="few/", replace=True)
    assert len(few.keys("few/")) == 60
    few.delete(prefix="few/")
    few.put_many({"new": b""}, prefix="few/", replace=True)
    assert few.keys() == ["few/new"]


def test_what_has_space_but_no_tensors_is_not_copied_again(few):
    """A copy of so much takes longer than what a refusal without a wait takes."""
    arrays = {str(n): np.zeros(2 << 20, "uint8") for n in range(150)}
    with pytest.raises(tensorlease.NoSpaceError, match="tensors are in use"):
        few.put_many(arrays, prefix="much/", timeout=math.inf)


def test_a_replace_that_never_fits_does_not_advise_to_delete(few):
    with pytest.raises(tensorlease.NoSpaceError, match="never fit") as raised:
        few.put_many({"new": mmap.mmap(-1, 2 << 30)}, prefix="few/", replace=True)
    assert "delete(" not in str(raised.value)


# ---- more than one step takes ----


@pytest.fixture(scope="module")
def crowd():
    """A daemon, in which 65,536 names and one more start with "crowd/"."""
    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder:
        path = f"{folder}/socket"
        with daemon_at(path, more=["--max-tensors", "131072"]), tensorlease.connect(path) as client:
            client.put_many({f"crowd/{n}": b"" for n in range(65536)})
            client.put("crowd/last", b"")
            yield client


@pytest.mark.parametrize(
    "call",
    [
        lambda client, _: client.delete(prefix="crowd/"),
        lambda client, _: client.put_many({"crowd/x": b""}, prefix="crowd/", replace=True),
        lambda client, _: client.get_many(prefix="crowd/"),
        lambda client, _: client.get_many(prefix="crowd/", timeout=limit(60)),
        lambda client, _: next(client.watch(prefix="crowd/", timeout=limit(60))),
        lambda client, path: client.save("crowd", path / "all.npz"),
    ],
)
def test_more_names_than_a_step_takes(crowd, tmp_path, call):
    with pytest.raises(ValueError, match="65537 .*'crowd/'.* at most 65536.*longer prefix") as caught:
        call(crowd, tmp_path)
    assert "tl_" not in str(caught.value)


def test_a_list_of_more_names_than_a_step_takes(crowd):
    with pytest.raises(ValueError, match="70000 tensors; the limit is 65536") as caught:
        crowd.get_many(["a"] * 70000)
    assert "tl_" not in str(caught.value)
