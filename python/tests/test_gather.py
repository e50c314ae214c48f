# SPDX-License-Identifier: Apache-2.0
"""gather() copies many tensors into one array."""

import os
import threading

import numpy as np
import pytest
from conftest import daemon_at, eventually, gives_the_gil_up, leases_of, replace_daemon

import tensorlease

MISSING = tensorlease.NotFoundError


@pytest.fixture
def samples(client):
    arrays = {f"sample/{i}": np.full((4, 5), i, "int16") for i in range(20)}
    client.put_many(arrays)
    return arrays


def test_rows_come_in_the_order_of_their_names(client, samples):
    names = [f"sample/{i * 7 % 20}" for i in range(64)]
    got = client.gather(names)
    assert got.dtype == np.int16 and got.shape == (64, 4, 5)
    assert (got == np.stack([samples[name] for name in names])).all()
    assert (client.gather(["3", "1"], prefix="sample/")[:, 0, 0] == [3, 1]).all()
    assert leases_of(client, os.getpid()) == 0


@pytest.mark.parametrize("kind", ["numpy", "rows", "draft", "bytearray", "torch"])
def test_it_fills_what_is_given(client, samples, kind):
    names, draft, whole = ["sample/5", "sample/2"], None, None
    if kind == "torch":
        torch = pytest.importorskip("torch")
        out = torch.zeros((2, 4, 5), dtype=torch.int16)
    elif kind == "draft":
        out = draft = client.create("batch", (2, 4, 5), "int16")
    elif kind == "bytearray":
        client.put_many({"sample/5": b"five", "sample/2": b"two!"})
        out = memoryview(bytearray(8)).cast("B", (2, 4))
    else:
        whole = np.zeros((3, 2, 4, 5), "int16")
        out = whole[1] if kind == "rows" else np.zeros((2, 4, 5), "int16")
    assert client.gather(names, out) is out
    if draft is not None:
        draft.commit()
        out = client.get("batch").numpy()
    if kind == "bytearray":
        assert bytes(out) == b"fivetwo!"
    else:
        assert (np.asarray(out)[:, 3, 4] == [5, 2]).all()
    assert whole is None or not whole[0].any() and not whole[2].any()


def test_bfloat16_needs_no_numpy_type(client):
    torch = pytest.importorskip("torch")
    rows = [torch.full((3,), float(i), dtype=torch.bfloat16) for i in range(4)]
    client.put_many({f"b/{i}": row for i, row in enumerate(rows)})
    out = torch.empty((4, 3), dtype=torch.bfloat16)
    client.gather([f"b/{i}" for i in range(4)], out)
    assert torch.equal(out, torch.stack(rows))


def test_what_cannot_be_filled_is_refused(client, samples):
    names, zeros = ["sample/1", "sample/2"], np.zeros((2, 4, 5), "int16")
    fixed = zeros.copy()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        client.gather(names, fixed)
    with pytest.raises(ValueError, match="read-only"):
        client.gather(["sample/1"], client.get("sample/1"))
    with pytest.raises(ValueError, match="with 2 rows"):
        client.gather(names, np.zeros((3, 4, 5), "int16"))
    with pytest.raises(ValueError, match="C order"):
        client.gather(names, np.zeros((4, 5, 2), "int16").transpose(2, 0, 1))
    with pytest.raises(ValueError, match="'sample/1' is of int16 and 2 dimensions.* of float32 and 2 dimensions"):
        client.gather(names, np.zeros((2, 4, 5), "float32"))
    with pytest.raises(MISSING, match="sample/none"):
        client.gather([*names, "sample/none"], np.zeros((3, 4, 5), "int16"))
    with pytest.raises(tensorlease.TimeoutError, match="sample/none"):
        client.gather(["sample/none"], timeout=0.01)
    with pytest.raises(ValueError, match="out="):
        client.gather([])
    with pytest.raises(TypeError):
        client.gather([1])
    client.put("sample/2", np.ones((4, 5), "int32"))
    with pytest.raises(ValueError, match="'sample/2'"):
        client.gather(names, zeros)
    assert not zeros.any() and leases_of(client, os.getpid()) == 0


def test_other_threads_run_during_large_copies(client):
    client.put("large", np.ones(16 << 20, "uint8"))
    out = np.empty((8, 16 << 20), "uint8")
    assert gives_the_gil_up(lambda: client.gather(["large"] * 8, out))
    assert out.all()


@pytest.mark.parametrize("storage", ["shm", "memfd"])
def test_it_goes_on_while_the_daemon_is_replaced(tmp_path, storage):
    address, keeps = f"{tmp_path}/socket", ["--keeper", "yes", "--storage", storage]
    names = [f"sample/{n}" for n in range(50)]
    with daemon_at(address, "64M", keeps), tensorlease.connect(address) as client:
        client.put_many({name: np.full(300, n, "int32") for n, name in enumerate(names)})
        rounds, wrong, over = [0, 0], [], threading.Event()

        def gather(thread):
            with tensorlease.connect(address) as own:
                while not over.is_set():
                    got = (own if thread else client).gather(names)
                    if not (got == np.arange(50)[:, None]).all():
                        wrong.append(got)
                    rounds[thread] += 1

        threads = [threading.Thread(target=gather, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                before = list(rounds)
                replace_daemon(client)
                eventually(lambda: wrong or not all(t.is_alive() for t in threads) or min(map(int.__sub__, rounds, before)) > 0)
                client.put("sample/3", np.full(300, 3, "int32"))  # which is another tensor of the same bytes
            alive = [thread.is_alive() for thread in threads]
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not wrong and all(alive)
