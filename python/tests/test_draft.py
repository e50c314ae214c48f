# SPDX-License-Identifier: Apache-2.0
"""Drafts are created, written, and committed or aborted."""

import gc
import multiprocessing
import os
import signal
import threading
import weakref

import numpy as np
import pytest
from conftest import (
    at_each_line,
    daemon_at,
    end_child,
    eventually,
    from_dlpack,
    in_child,
    interrupted_as,
    once_asleep,
    run_python,
    start_child,
    until_asleep,
)
from limits import limit

import tensorlease


def test_a_block_that_ends_commits(client):
    with client.create("draft/a", (2, 3), "float32", metadata=b"m") as draft:
        assert draft.state == "open" and draft.version is None and draft.name == "draft/a"
        assert (draft.shape, draft.dtype, draft.nbytes, draft.device) == ((2, 3), "float32", 24, "cpu")
        assert "not committed" in repr(draft) and "draft/a" not in client
        draft[...] = 7
        draft[0, 1] = 8
        assert draft[0, 1] == 8 and len(draft) == 2
    assert draft.state == "committed" and draft.version == 1 and "committed" in repr(draft)
    tensor = client.get("draft/a")
    assert tensor.numpy().tolist() == [[7, 8, 7], [7, 7, 7]] and tensor.metadata == b"m"


def test_a_block_that_raises_aborts(client):
    with pytest.raises(KeyError), client.create("draft/b", 5, "int8") as draft:
        raise KeyError
    assert draft.state == "aborted" and "draft/b" not in client
    draft.abort()
    with pytest.raises(ValueError, match="draft 'draft/b' was aborted"):
        draft.commit()


def test_a_block_may_commit_or_abort_itself(client):
    with client.create("draft/c", 5, "int8") as draft:
        assert draft.commit(metadata=b"own") == 1
    with client.create("draft/c", 5, "int8") as draft:
        draft.abort()
    assert client.get("draft/c").version == 1 and client.get("draft/c").metadata == b"own"


READ_AND_COMMITTED = """
import numpy as np, tensorlease

class Commits:
    def __dlpack_device__(self):
        draft.commit()
        return (1, 0)

    def __dlpack__(self, **arguments):
        return np.arange(3).__dlpack__(**arguments)

    def __index__(self):
        draft.commit()
        return 1

shape = (0,) * 40
client = tensorlease.connect(autostart=False)
draft = client.create("draft/none", shape, "float32")
client.put_many({"y": draft, "z": Commits()}, prefix="draft/read/")
assert client.get("draft/read/y").shape == shape and client.get("draft/read/z").tolist() == [0, 1, 2]
assert draft.state == "committed" and client.get("draft/none").shape == shape
draft = client.create("draft/none", shape, "float32")
try:
    draft.__dlpack__(max_version=(Commits(), 0), dl_device=(1, 0))
except BufferError as error:
    assert "was committed as version 2" in str(error), error
else:
    raise AssertionError("it was exported")
"""


def test_a_draft_without_bytes_is_committed_while_it_is_read(address):
    """In another interpreter, where what was freed is overwritten."""
    run_python(READ_AND_COMMITTED, MALLOC_PERTURB_="165")


def test_a_commit_consumes(client):
    draft = client.create("draft/d", (3,), "int8")
    assert draft.commit() == 1
    for use in (draft.commit, lambda: draft.shape, lambda: draft.numpy(), lambda: draft[0]):
        with pytest.raises(ValueError, match=r"draft 'draft/d' was committed as version 1: use get\(\)"):
            use()
    for use in (lambda: memoryview(draft), lambda: draft.__dlpack__()):
        with pytest.raises(BufferError, match="committed as version 1"):
            use()
    draft = client.create("draft/d", (3,), "int8")
    assert draft.commit(wait=False) is None and client.get("draft/d", newer_than=1, timeout=limit(60)).version == 2
    with pytest.raises(ValueError, match=r"draft 'draft/d' was committed: use get\(\)"):
        draft.commit()


def test_all_views_write_into_the_tensor(client):
    draft = client.create("draft/views", (4,), "int32")
    draft.numpy()[0] = 1
    np.asarray(draft)[1] = 2
    memoryview(draft)[2] = 3
    from_dlpack(draft)[3] = 4
    assert from_dlpack(draft).__array_interface__["data"][0] == draft._address
    draft.commit()
    assert client.get("draft/views").numpy().tolist() == [1, 2, 3, 4]


def test_a_draft_of_a_daemon_that_has_ended_keeps_what_it_was_given(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        draft = client.create("draft/former", (5000,), "int8", metadata=b"m", owner_bound=True, ttl=3600)
        draft[...] = 7
        first.kill()
        first.wait()
        with daemon_at(address):
            assert draft.commit() == 1
            info = client.stat("draft/former")
            assert (info.metadata, info.owner_bound, info.ttl is None) == (b"m", True, False)
            assert (client.get("draft/former").numpy() == 7).all()
            client.close()


@pytest.mark.parametrize("by", ["commit", "publish", "array"])
def test_nobody_may_write_after_a_commit_that_was_not_answered(tmp_path, by):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        draft = client.create("draft/unknown", (4,), "uint8")
        array = draft.numpy()
        array[...] = 7
        publish = {
            "commit": draft.commit,
            "publish": lambda: client.publish("draft/unknown", draft),
            "array": lambda: client.publish("draft/unknown", array),
        }[by]
        first.send_signal(signal.SIGSTOP)
        thread = once_asleep(first.kill)
        with pytest.raises(tensorlease.DisconnectedError, match="not known"):
            publish()
        thread.join()
        first.wait()
        assert draft.state == "unknown" and repr(draft) == "<tensorlease.Draft 'draft/unknown', unknown>"
        assert not array.flags.writeable and (array == 7).all()
        for use in (draft.numpy, lambda: memoryview(draft), lambda: np.from_dlpack(draft), lambda: draft.shape):
            with pytest.raises((ValueError, BufferError), match="may have been committed.*call commit"):
                use()
        with daemon_at(address):
            assert draft.commit() == 1 and draft.state == "committed"
            assert client.get("draft/unknown").tolist() == [7] * 4
            client.close()


def test_a_draft_that_may_have_been_committed_can_be_aborted(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        draft = client.create("draft/unknown", (4,), "uint8")
        first.send_signal(signal.SIGSTOP)
        thread = once_asleep(first.kill)
        with pytest.raises(tensorlease.DisconnectedError, match="not known"), draft:
            pass
        thread.join()
        first.wait()
        draft.abort()
        assert draft.state == "aborted"
        with pytest.raises(ValueError, match="aborted"):
            draft.commit()


def test_close_aborts_drafts(client):
    other = tensorlease.connect(client.status().address, autostart=False)
    draft, viewed = other.create("draft/a", (1 << 20,), "uint8"), other.create("draft/b", (1 << 20,), "uint8")
    array = viewed.numpy()
    assert client.status().drafts == 2
    other.close()
    eventually(lambda: client.status().drafts == 1)
    array[...] = 7  # until the last view is gone
    del array
    eventually(lambda: client.status().drafts == 0)
    assert draft.state == viewed.state == "aborted"
    for use in (draft.commit, draft.numpy, viewed.commit):
        with pytest.raises(ValueError, match="aborted when its client was closed"):
            use()


def test_the_block_of_a_draft_whose_client_was_closed_raises(client):
    other = tensorlease.connect(client.status().address, autostart=False)
    with pytest.raises(ValueError, match="when its client was closed"), other.create("draft/closed", (4,), "uint8"):
        other.close()
    assert "draft/closed" not in client


def test_views_stay_readable_after_the_commit(client):
    draft = client.create("draft/after", (1000,), "float64")
    array, view = draft.numpy(), memoryview(draft)
    array[:] = 5
    draft.commit()
    del draft
    for _ in range(20):
        client.put("draft/after", np.zeros(1000))
    gc.collect()
    assert array.sum() == 5000 and view[999] == 5
    with pytest.raises(ValueError):
        array[0] = 1  # sealed by the commit


def test_publishing_a_draft_under_another_name(client):
    draft = client.create("draft/e", (3,), "int8")
    draft[...] = 3
    assert client.publish("draft/other", draft) == (1, False)
    assert draft.state == "committed" and "draft/e" not in client
    assert (draft.name, draft.version) == ("draft/other", 1) and "draft/other" in repr(draft)
    assert client.get("draft/other").numpy().tolist() == [3, 3, 3]


def test_publishing_an_array_over_a_draft_commits_it(client):
    with client.create("draft/f", (3, 2), "int16") as draft:
        array = from_dlpack(draft)
        array[:] = 6
        assert client.publish("draft/renamed", array).copied is False
        assert (draft.state, draft.name, draft.version) == ("committed", "draft/renamed", 1)
    assert client.get("draft/renamed").version == 1 and "draft/f" not in client


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 7, (2, 3), [4, 5], np.int64(3), (np.int32(2), 1), (1,) * 32])
def test_shapes(client, shape):
    with client.create("draft/shape", shape, "int16") as draft:
        assert draft.numpy().shape == draft.shape
    assert client.get("draft/shape").shape == np.zeros(shape, "int8").shape


@pytest.mark.parametrize("dtype", ["f4", "<f8", float, np.float32, np.dtype("int8"), bool, "bool", ">u1", "?", "half"])
def test_dtypes(client, dtype):
    with client.create("draft/dtype", 3, dtype) as draft:
        assert draft.dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("draft/x", -1, "int8"), ValueError),
        (("draft/x", (1,) * 65, "int8"), ValueError),
        (("draft/x", "3", "int8"), TypeError),
        (("draft/x", 1.5, "int8"), TypeError),
        (("draft/x", 3, "int7x"), ValueError),
        (("draft/x", 3, "int3"), ValueError),
        (("draft/x", 3, None), TypeError),
        (("draft/x", 3, ">f4"), ValueError),
        (("draft/x", 1 << 70, "int8"), ValueError),
        (("", 3, "int8"), ValueError),
        ((7, 3, "int8"), TypeError),
    ],
)
def test_wrong_arguments(client, arguments, error):
    with pytest.raises(error):
        client.create(*arguments)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, -3), "shape: dimension 1 is -3"),
        (1 << 63, "shape: dimension 0 is 9223372036854775808"),
        ((1 << 60, 8), r"shape: \(\d+, 8\) of 32 bits each"),
        ((1,) * 65, "shape: 65 dimensions"),
        (2.5, "shape must be .* not 2.5"),
        ((2, None), r"shape must be .* not \(2, None\)"),
    ],
)
def test_a_wrong_shape_is_named(client, shape, text):
    with pytest.raises((ValueError, TypeError), match=text):
        client.create("draft/x", shape, "float32")


def test_words_of_c_are_not_shown(client):
    with pytest.raises(ValueError, match="dtype 'int3': an int has 1, 2") as caught:
        client.create("draft/x", 3, "int3")
    assert "tl_" not in str(caught.value)


def test_a_draft_that_is_forgotten_is_aborted(client):
    before = client.status().drafts
    draft = client.create("draft/g", 1 << 20, "int8")
    view = memoryview(draft)
    del draft
    gc.collect()
    view[0] = 1  # the view keeps it
    del view
    gc.collect()
    assert "draft/g" not in client
    eventually(lambda: client.status().drafts <= before + 1)  # one may be prefetched


def test_a_client_is_closed_while_a_draft_goes(daemon):
    """By the callback of a weak reference, when nothing else refers to the draft."""
    for _ in range(20):
        client = tensorlease.connect(daemon)
        drafts = [client.create(f"draft/weak{n}", 4, "uint8") for n in range(3)]
        weak = [weakref.ref(draft, lambda _, client=client: client.close()) for draft in drafts]
        del drafts[1]
        assert client.closed and weak[1]() is None
        with pytest.raises(ValueError):
            drafts[0].commit()
        del drafts, client
        gc.collect()


def test_space_comes_back(client):
    for _ in range(30):  # 30 times a quarter of the capacity
        with pytest.raises(KeyError), client.create("draft/h", 1 << 28, "int8", timeout=limit(60)):
            raise KeyError
    for _ in range(10):
        client.create("draft/h", 1 << 28, "int8", timeout=limit(60)).commit()
    client.delete("draft/h")


def refuses(use):
    try:
        use()
    except (BufferError, OSError) as error:
        return "after fork()" in str(error)
    return False


def test_a_child_may_not_commit_its_parents_draft(client):
    draft = client.create("draft/fork", 3, "int8")

    def work():
        refused = [refuses(use) for use in (draft.commit, lambda: client.publish("draft/fork", draft))]
        draft.abort()
        return all(refused)

    in_child(work)
    assert draft.commit() == 1


def test_forked_workers_fill_their_parents_draft(client):
    """With views from before the fork, and with new ones."""
    draft = client.create("draft/fork", (8, 5000), "int32")
    array = draft.numpy()
    for n in range(8):
        in_child(lambda n=n: (array if n % 2 else draft.numpy())[n].fill(n))
    draft.commit()
    assert (client.get("draft/fork").numpy() == np.arange(8)[:, None]).all()


def test_a_pool_of_forked_workers_fills_a_draft(client):
    draft = client.create("draft/fork", (16, 100), "int64")
    with multiprocessing.get_context("fork").Pool(2, initializer=begin, initargs=(draft,)) as pool:
        pool.map(fill, range(16))
    draft.commit()
    assert (client.get("draft/fork").numpy() == np.arange(16)[:, None]).all()


def begin(draft):
    global filled
    filled = draft


def fill(n):
    filled[n] = n


def test_what_a_child_publishes_is_not_its_parents_draft(client):
    """The child's own segments must not lie where its views of the parent's drafts point."""
    open_, done = (client.create(f"draft/fork/{n}", 1 << 20, "int8") for n in range(2))
    views = open_.numpy(), done.numpy()
    views[1].fill(5)
    done.commit()

    def work():
        drafts = [client.create(f"draft/child/{n}", 1 << 20, "int8") for n in range(4)]
        for n, draft in enumerate(drafts):
            draft.numpy().fill(n + 10)
            draft.commit()
        views[0].fill(7)
        same = all((client.get(f"draft/child/{n}").numpy() == n + 10).all() for n in range(4))
        client.put("draft/copy", open_)
        return same and (views[1] == 5).all() and (client.get("draft/copy").numpy() == 7).all()

    in_child(work)
    assert (views[0] == 7).all()


def test_memory_that_a_child_sees_is_not_used_again_before_the_child_ends(client):
    draft = client.create("draft/fork", 1 << 20, "int8")
    seen, told = draft.numpy(), os.pipe()
    seen.fill(1)
    child = start_child(lambda: bool(os.read(told[0], 1) and (seen == 1).all()))
    draft.commit()
    del seen, draft
    client.delete("draft/fork")
    for n in range(40):
        client.put("draft/other", np.full(1 << 20, 2, "int8"))
    os.write(told[1], b"x")
    end_child(child)
    client.put("draft/other", b"")
    client.delete("draft/other")
    eventually(lambda: client.status().retired == 0)
    for end in told:
        os.close(end)


def test_a_grandchild_is_told_that_the_draft_is_not_its(client):
    draft = client.create("draft/fork", 3, "int8")
    brain = client.create("draft/fork-brain", 3, "bfloat16")  # which the buffer protocol does not know
    uses = (
        lambda: memoryview(draft),
        lambda: draft.__dlpack__(),
        lambda: draft.numpy(),
        lambda: draft.bytes(),
        lambda: brain.bytes(),
        lambda: client.put("draft/fork-copy", brain),
    )
    in_child(lambda: in_child(lambda: all(map(refuses, uses))))
    draft.abort()
    brain.abort()


def test_another_users_thread_may_commit(client):
    import threading

    draft = client.create("draft/thread", 3, "int8")
    draft[...] = 1
    thread = threading.Thread(target=draft.commit)
    thread.start()
    thread.join()
    assert client.get("draft/thread").numpy().tolist() == [1, 1, 1]


def test_drafts_work_without_numpy(address):
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import tensorlease; c = tensorlease.connect()\n"
        "with c.create('draft/bare', (2, 2), 'int16') as d:\n"
        "    assert d.dtype == 'int16'; memoryview(d)[1, 1] = 7\n"
        "t = c.get('draft/bare')\n"
        "assert memoryview(t).tolist() == [[0, 0], [0, 7]] or memoryview(t)[1, 1] == 7\n"
        "assert t.dtype == 'int16' and c.put('draft/bare', t) == 2\n"
        "print(repr(t), t.shape)\n"
    )
    assert "int16 (2, 2)" in run_python(code).stdout


def test_drafts_do_not_travel(client):
    import pickle

    with pytest.raises(TypeError, match="process"):
        pickle.dumps(client.create("draft/pickle", 3, "int8"))


def test_an_array_that_was_published_is_read_only(client):
    draft = client.create("draft/array", 3, "int8")
    array = draft.numpy()
    assert client.publish("draft/array", array) == (1, False) and not array.flags.writeable
    assert draft.state == "committed"
    draft = client.create("draft/array", 3, "int8")
    whole = draft.numpy()
    view = whole[:]
    assert not client.publish("draft/array", view).copied
    assert not view.flags.writeable and not whole.flags.writeable
    copied = np.zeros(3)
    assert client.publish("draft/array", copied).copied and copied.flags.writeable


@pytest.mark.parametrize("how", ["commit", "publish", "array"])
def test_an_interrupted_commit_makes_the_array_read_only(client, how):
    draft = client.create("draft/cut", 3, "int8")
    array = draft.numpy()
    view = array[:]
    with pytest.raises(KeyboardInterrupt):
        if how == "commit":
            with interrupted_as("Draft.commit"):
                draft.commit()
        else:
            with interrupted_as("Client._publish"):
                client.publish("draft/cut", draft if how == "publish" else view)
    assert draft.state == "committed" and not array.flags.writeable
    assert view.flags.writeable == (how != "array")


def test_a_close_during_the_publish_of_an_array_does_not_abort_its_draft(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as daemon, tensorlease.connect(address, autostart=False) as client:
        draft = client.create("draft/close", 3, "int8")
        array = draft.numpy()
        thread = threading.Thread(target=lambda: client.publish("draft/close", array[:]))
        daemon.send_signal(signal.SIGSTOP)
        try:
            thread.start()
            until_asleep(thread.native_id)
            client.close()  # which the publish does at its end
        finally:
            daemon.send_signal(signal.SIGCONT)
        thread.join()
        assert (draft.state, draft.version) == ("committed", 1) and not array.flags.writeable


def test_a_draft_that_is_committed_as_its_array_is_made_has_none(client, monkeypatch):
    as_numpy, arrays = tensorlease._tensor._as_numpy, []

    def committed(draft):
        arrays.append(as_numpy(draft))
        draft.commit()
        return arrays[0]

    monkeypatch.setattr(tensorlease._tensor, "_as_numpy", committed)
    with pytest.raises(ValueError, match="was committed as version 1"):
        client.create("draft/made", 3, "int8").numpy()
    assert len(arrays) == 1


def test_arrays_that_a_signal_handler_made_become_read_only(client):
    arrays, drafts = [], []

    def work():
        drafts.append(client.create("draft/handler", 3, "int8"))
        arrays.append(drafts[-1].numpy())
        drafts[-1].commit()

    assert at_each_line("_tensor.py", work, lambda: arrays.append(drafts[-1].numpy())) > 3
    assert len(arrays) > len(drafts) > 3 and not any(array.flags.writeable for array in arrays)


def test_a_draft_may_have_pages_of_its_own(client):
    for i in range(1, 6):
        with client.create("draft/own", 100, "uint8", own_pages=True) as draft:
            assert not draft.numpy().any()
            draft.numpy().fill(i)
    assert client.stat("draft/own").ring == 0
    with pytest.raises(ValueError, match="ring"):
        client.create("draft/own", 100, "uint8", own_pages=True, ring=8)


def test_arrays_of_all_threads_become_read_only(client, monkeypatch):
    barrier, arrays = threading.Barrier(2), []
    as_numpy = tensorlease._tensor._as_numpy

    def together(draft):
        barrier.wait(limit(60))
        return as_numpy(draft)

    monkeypatch.setattr(tensorlease._tensor, "_as_numpy", together)
    draft = client.create("draft/two", (3,), "uint8")
    threads = [threading.Thread(target=lambda: arrays.append(draft.numpy())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    draft.commit()
    assert len(arrays) == 2 and not any(array.flags.writeable for array in arrays)


def test_a_get_of_an_open_draft_says_so(client, observer):
    draft = client.create("draft/öpen", 3, "uint8")
    for error, options in ((tensorlease.NotFoundError, {}), (tensorlease.TimeoutError, {"timeout": 0.001})):
        with pytest.raises(error, match=r"draft/öpen.*this client has an open draft of that name, which its commit\(\)"):
            client.get("draft/öpen", **options)
        for other, name in ((observer, "draft/öpen"), (client, "draft/öpe")):
            with pytest.raises(error) as raised:
                other.get(name, **options)
            assert "open draft" not in str(raised.value)
    draft.abort()
    with pytest.raises(tensorlease.NotFoundError) as raised:
        client.get("draft/öpen")
    assert "open draft" not in str(raised.value)
    with client.create("draft/stat", 3, "uint8"):
        assert "draft/stat" not in client
        with pytest.raises(tensorlease.NotFoundError, match="this client has an open draft"):
            client.stat("draft/stat")
