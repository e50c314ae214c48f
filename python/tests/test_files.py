# SPDX-License-Identifier: Apache-2.0
"""load() and save(): files of NumPy, safetensors and TensorFlow become tensors, and tensors become files."""

import ctypes
import json
import math
import os
import signal
import struct
import subprocess
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import HEED_SIGINT, close_during, daemon_at, eventually, is_interrupted, run_python, until_asleep
from limits import limit

import tensorlease

# The element types of safetensors: name in the file, name here, bits.
TYPES = [
    ("BOOL", "bool", 8),
    ("F4", "float4_e2m1fn", 4),
    ("F6_E2M3", "float6_e2m3fn", 6),
    ("F6_E3M2", "float6_e3m2fn", 6),
    ("U8", "uint8", 8),
    ("I8", "int8", 8),
    ("F8_E5M2", "float8_e5m2", 8),
    ("F8_E4M3", "float8_e4m3fn", 8),
    ("F8_E8M0", "float8_e8m0fnu", 8),
    ("F8_E4M3FNUZ", "float8_e4m3fnuz", 8),
    ("F8_E5M2FNUZ", "float8_e5m2fnuz", 8),
    ("I16", "int16", 16),
    ("U16", "uint16", 16),
    ("F16", "float16", 16),
    ("BF16", "bfloat16", 16),
    ("I32", "int32", 32),
    ("U32", "uint32", 32),
    ("F32", "float32", 32),
    ("C64", "complex64", 64),
    ("F64", "float64", 64),
    ("I64", "int64", 64),
    ("U64", "uint64", 64),
]


def bytes_of(tensor):
    return ctypes.string_at(tensor._address, tensor.nbytes) if tensor.nbytes else b""


def safetensors_of(path):
    """Returns {name: (type, shape, bytes)}, without using the code that is tested."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    header.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}


def write_safetensors(path, tensors, metadata=None):
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_npy(client, tmp_path):
    for name, array in {
        "c": np.random.default_rng(1).standard_normal((30, 40, 5)),
        "fortran": np.asfortranarray(np.arange(12, dtype="int16").reshape(3, 4)),
        "scalar": np.array(7, "uint64"),
        "empty": np.zeros((3, 0), "float32"),
        "bool": np.array([True, False]),
        "complex": np.ones(3, "complex128") * 1j,
    }.items():
        np.save(tmp_path / "in.npy", array)
        assert client.load(f"files/npy/{name}", tmp_path / "in.npy") == ([f"files/npy/{name}"], {})
        tensor = client.get(f"files/npy/{name}")
        assert tensor.dtype == array.dtype and tensor.shape == array.shape and (tensor.numpy() == array).all()
        assert client.save(f"files/npy/{name}", str(tmp_path / "out.npy")) == [f"files/npy/{name}"]
        back = np.load(tmp_path / "out.npy")
        assert back.dtype == array.dtype and back.tobytes() == array.tobytes()


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_npz(client, tmp_path, write):
    arrays = {"a": np.arange(5000), "deep/b": np.zeros((2, 3), "float16"), "f": np.asfortranarray(np.eye(3, 4))}
    write(tmp_path / "in.npz", **arrays)
    loaded = client.load("files/npz", tmp_path / "in.npz")
    assert isinstance(loaded, tensorlease.Loaded) and loaded.names == [f"files/npz/{name}" for name in arrays]
    got = client.get_many(prefix="files/npz/")
    assert got.keys() == arrays.keys() and all((got[n].numpy() == a).all() for n, a in arrays.items())
    assert client.save("files/npz", tmp_path / "out.npz") == [f"files/npz/{name}" for name in sorted(arrays)]
    with np.load(tmp_path / "out.npz") as back:
        assert set(back) == set(arrays)
        for name, array in arrays.items():
            assert back[name].dtype == array.dtype and back[name].tobytes() == array.tobytes()


def test_big_endian_numbers_are_converted(client, tmp_path):
    arrays = {
        kind: (np.arange(24) * 1001 + (0.5j if kind[0] == "c" else 0)).astype(">" + kind).reshape(4, 6)
        for kind in ("i2", "i4", "u8", "f2", "f4", "f8", "c8", "c16")
    }
    arrays["columns"] = np.asfortranarray(arrays["f4"])
    arrays["nothing"] = np.zeros((0, 3), ">i4")
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "big.npz", **arrays)
        client.load("file/big", tmp_path / "big.npz")
        for name, array in arrays.items():
            got = client.get(f"file/big/{name}").numpy()
            assert got.dtype == array.dtype.newbyteorder("<") and np.array_equal(got, array)
    np.save(tmp_path / "big.npy", arrays["c16"])
    client.load("file/one", tmp_path / "big.npy")
    assert np.array_equal(client.get("file/one").numpy(), arrays["c16"])


def test_pairs_of_float4_are_saved_as_they_are(client, tmp_path):
    with client.create("file/pairs/a", (3, 4), "float4_e2m1fnx2") as draft:
        draft.bytes()[:] = bytes(range(12))
    client.save("file/pairs", tmp_path / "pairs.safetensors")
    client.load("file/again", tmp_path / "pairs.safetensors")
    again = client.get("file/again/a")
    assert again.shape == (3, 8) and again.dtype == "float4_e2m1fn" and bytes(again.bytes()) == bytes(range(12))


def test_every_type_of_safetensors_comes_back_bit_by_bit(client, tmp_path):
    random = np.random.default_rng(2)
    tensors = {}
    for name, _, bits in TYPES:
        shape = [3, 8]  # elements of every type that fill whole bytes
        payload = random.integers(0, 256, 24 * bits // 8, "uint8")
        tensors[f"t/{name}"] = (name, shape, (payload % 2 if name == "BOOL" else payload).tobytes())
        tensors[f"empty/{name}"] = (name, [0, 8], b"")
    write_safetensors(tmp_path / "in.safetensors", tensors, {"format": "pt", "who": "näme"})
    loaded = client.load("files/st", tmp_path / "in.safetensors")
    assert loaded.metadata == {"format": "pt", "who": "näme"}
    assert loaded.names == [f"files/st/{name}" for name in tensors]
    got = client.get_many(prefix="files/st/")
    for name, dtype, _ in TYPES:
        assert client.stat(f"files/st/t/{name}").dtype == dtype and got[f"t/{name}"].shape == (3, 8)
        assert bytes_of(got[f"t/{name}"]) == tensors[f"t/{name}"][2]
    client.save("files/st", tmp_path / "out.safetensors")
    assert safetensors_of(tmp_path / "out.safetensors") == tensors


def test_the_safetensors_package_agrees(client, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    state = {f"layers.{i}.weight": torch.randn(16, 4).to(torch.bfloat16) for i in range(320)}
    state |= {"f8": torch.randn(64).to(torch.float8_e4m3fn), "f": torch.randn(2, 3, 4), "i": torch.arange(9)}
    state |= {"step": torch.tensor(3.5), "mask": torch.tensor([True, False]), "none": torch.zeros(0, 2)}
    safetensors.save_file(state, tmp_path / "in.safetensors", {"format": "pt"})
    assert client.load("files/pt", tmp_path / "in.safetensors").metadata == {"format": "pt"}
    got = {name: tensor.torch() for name, tensor in client.get_many(prefix="files/pt/").items()}
    client.put_many(state, prefix="files/put/")
    client.save("files/put", tmp_path / "out.safetensors")
    back = safetensors.load_file(tmp_path / "out.safetensors")
    assert got.keys() == back.keys() == state.keys()
    for name, tensor in state.items():
        for other in (got[name], back[name]):
            assert other.dtype == tensor.dtype and other.shape == tensor.shape
            assert other.flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8)), name
    assert safetensors_of(tmp_path / "out.safetensors") == safetensors_of(tmp_path / "in.safetensors")


def test_tensorproto(client, tmp_path):
    content = np.arange(6, dtype="float32")
    shape = b"".join(b"\x12\x02\x08" + bytes([n]) for n in (2, 3))
    message = b"\x08\x01" + b"\x12" + bytes([len(shape)]) + shape + b"\x22\x18" + content.tobytes()
    (tmp_path / "in.pb").write_bytes(message)
    assert client.load("files/pb", tmp_path / "in.pb").names == ["files/pb"]
    assert (client.get("files/pb").numpy() == content.reshape(2, 3)).all()
    client.save("files/pb", tmp_path / "out.pb")
    client.load("files/pb/again", tmp_path / "out.pb")
    assert (client.get("files/pb/again").numpy() == content.reshape(2, 3)).all()


def test_format_says_what_the_name_does_not(client, tmp_path, monkeypatch):
    np.save(tmp_path / "in.npy", np.arange(3))
    os.rename(tmp_path / "in.npy", tmp_path / "in.data")
    with pytest.raises(ValueError, match=r"in\.data.*format="):
        client.load("files/format", tmp_path / "in.data")
    with pytest.raises(ValueError, match="'npz'.*not 'numpy'"):
        client.load("files/format", tmp_path / "in.data", format="numpy")
    client.load("files/format", tmp_path / "in.data", format="npy")
    monkeypatch.chdir(tmp_path)
    client.save("files/format", "-", format="npy")  # a file called "-"
    assert (np.load(tmp_path / "-") == np.arange(3)).all()
    assert client.load("files/format", "-", format="npy").names == ["files/format"]


def test_an_empty_prefix(client, tmp_path):
    np.savez(tmp_path / "in.npz", **{"files.a": np.arange(3), "files.b/c": np.arange(4)})
    assert client.load("", tmp_path / "in.npz").names == ["files.a", "files.b/c"]
    assert (client.get("files.a").numpy() == np.arange(3)).all()
    for name in ("files.a", "files.b/c"):
        client.delete(name)


def malformed(tmp_path):
    """Returns pairs of a file and the text of its error."""
    good = {"a": ("F32", [2], bytes(8)), "b": ("U8", [4], bytes(4))}
    for name, tensors, text in (
        ("size", {**good, "c": ("F32", [3], bytes(8))}, "c"),
        ("slash", {**good, "c//d": ("U8", [1], bytes(1))}, "c//d"),
        ("dots", {**good, "../up": ("U8", [1], bytes(1))}, r"\.\."),
        ("long", {**good, "x" * 250: ("U8", [1], bytes(1))}, "255"),
    ):
        path = tmp_path / f"{name}.safetensors"
        write_safetensors(path, tensors)
        yield path, text
    path = tmp_path / "cut.safetensors"
    write_safetensors(path, good)
    path.write_bytes(path.read_bytes()[:-1])
    yield path, "cut"
    path = tmp_path / "none.safetensors"
    write_safetensors(path, {})
    yield path, "no tensor"
    path = tmp_path / "text.npz"
    path.write_bytes(b"not an archive at all")
    yield path, "text.npz"
    path = tmp_path / "checksum.npz"
    np.savez(path, a=np.arange(1000), b=np.arange(1000))
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        last = archive.getinfo("b.npy")
    raw[last.header_offset + 5000] ^= 1  # inside the last one's data, when everything else was read
    path.write_bytes(raw)
    yield path, "b"
    path = tmp_path / "cut.npy"
    np.save(path, np.arange(100))
    path.write_bytes(path.read_bytes()[:-8])
    yield path, "cut.npy"


def test_malformed_files_are_value_errors_and_publish_nothing(client, tmp_path):
    tried = 0
    for path, text in malformed(tmp_path):
        with pytest.raises(ValueError, match=text) as caught:
            client.load("files/bad", path)
        assert isinstance(caught.value, tensorlease.InvalidError), path
        tried += 1
    assert tried == 9
    assert "files/bad" not in client and client.list("files/bad") == [] and eventually(lambda: client.status().drafts == 0)


def test_what_tensors_have_not(client, tmp_path):
    np.save(tmp_path / "dates.npy", np.zeros(3, "M8[s]"))
    np.savez(tmp_path / "text.npz", a=np.zeros(3), b=np.array(["x", "y"]))
    write_safetensors(tmp_path / "type.safetensors", {"a": ("F32", [2], bytes(8)), "b": ("F99", [2], bytes(8))})
    for name in ("dates.npy", "text.npz", "type.safetensors"):
        with pytest.raises(tensorlease.UnsupportedError, match=name):
            client.load("files/odd", tmp_path / name)
    assert "files/odd" not in client and client.list("files/odd") == []


def test_what_a_format_has_not(client, tmp_path):
    with client.create("files/odd/bf16", 4, "bfloat16"):
        pass
    with client.create("files/padded/i4", 4, "int4", padded=True):
        pass
    (tmp_path / "there.npy").write_bytes(b"as it was")
    for prefix, name in (
        ("files/odd/bf16", "there.npy"),
        ("files/odd", "new.npz"),
        ("files/padded", "new.safetensors"),
    ):
        with pytest.raises(tensorlease.UnsupportedError):
            client.save(prefix, tmp_path / name)
    assert os.listdir(tmp_path) == ["there.npy"] and (tmp_path / "there.npy").read_bytes() == b"as it was"


def test_files_that_are_not_there(client, tmp_path):
    with pytest.raises(FileNotFoundError, match="none.npz") as caught:
        client.load("files/x", tmp_path / "none.npz")
    assert not isinstance(caught.value, tensorlease.Error)  # which is about tensors
    with pytest.raises(OSError, match="folder.npz"):
        (tmp_path / "folder.npz").mkdir()
        client.load("files/x", tmp_path / "folder.npz")
    client.put("files/there/x", b"x")
    with pytest.raises(FileNotFoundError, match="nowhere") as caught:
        client.save("files/there", tmp_path / "nowhere" / "out.npz")
    assert not isinstance(caught.value, tensorlease.Error)
    for name in ("out.npz", "out.npy"):
        with pytest.raises(tensorlease.NotFoundError, match="files/not"):
            client.save("files/not", tmp_path / name)
    assert "files/x" not in client and client.list("files/x") == []


def test_wrong_arguments(client, tmp_path):
    for call in (
        lambda: client.load(7, "a.npy"),
        lambda: client.load("a", 7),
        lambda: client.load("a", "a.npy", progress=7),
        lambda: client.save("a", None),
        lambda: client.load("a", "a.npy", format=7),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: client.load("a", "a\0.npy"),
        lambda: client.load("a\0", "a.npy"),
        lambda: client.load("a", "a.npy", timeout=-1),
    ):
        with pytest.raises(ValueError):
            call()


def test_no_space(client, tmp_path):
    with open(tmp_path / "huge.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (1 << 31,)})
        file.truncate(file.tell() + (1 << 31))
    with pytest.raises(tensorlease.NoSpaceError):
        client.load("files/huge", tmp_path / "huge.npy", timeout=0.05)
    assert "files/huge" not in client and client.list("files/huge") == []


def test_what_is_refused_after_reading_is_not_read_again(tmp_path):
    np.savez(tmp_path / "many.npz", **{f"x{n}": np.zeros(10) for n in range(400)})
    steps = []

    def tell(done, total):
        steps.append((done, total))
        if len(steps) == 1:
            begun = time.monotonic()
            eventually(lambda: time.monotonic() - begun > 0.3)

    with (
        tempfile.TemporaryDirectory(prefix="tl-py-") as folder,
        daemon_at(f"{folder}/socket", more=("--max-tensors", "160")),
        tensorlease.connect(f"{folder}/socket", autostart=False) as client,
    ):
        with pytest.raises(tensorlease.NoSpaceError, match="tensors"):
            client.load("files/many", tmp_path / "many.npz", timeout=math.inf, progress=tell)
    assert steps == sorted(steps) and all(done <= total for done, total in steps)


def test_a_list_that_is_not_whole_is_not_believed():
    class Half:
        lists = [["m/a"], ["m/a", "m/b"], ["m/a", "m/b"]]

        def __contains__(self, name):
            return False

        def keys(self, prefix):
            return self.lists.pop(0)

    assert tensorlease._cache._names_of(Half(), "m") == ["m/a", "m/b"]


def test_progress(client, tmp_path):
    np.savez(tmp_path / "in.npz", a=np.zeros(3 << 20), b=np.zeros(1 << 20))
    for call in (
        lambda tell: client.load("files/progress", tmp_path / "in.npz", progress=tell),
        lambda tell: client.save("files/progress", tmp_path / "out.safetensors", progress=tell),
    ):
        steps = []
        call(lambda done, total, steps=steps: steps.append((done, total)))
        assert len(steps) > 3 and steps == sorted(steps) and steps[-1] == (4 << 23, 4 << 23)
        assert {total for _, total in steps} == {4 << 23}


def test_progress_can_stop_it(client, tmp_path):
    class EnoughError(Exception):
        pass

    def stop(done, total):
        if done > total / 2:
            raise EnoughError

    client.put("files/stop/a", np.zeros(4 << 20))
    client.save("files/stop", tmp_path / "in.npz")
    client.delete("files/stop/a")
    (tmp_path / "out.npz").write_bytes(b"as it was")
    with pytest.raises(EnoughError):
        client.load("files/stopped", tmp_path / "in.npz", progress=stop)
    client.load("files/stop", tmp_path / "in.npz")
    with pytest.raises(EnoughError):
        client.save("files/stop", tmp_path / "out.npz", progress=stop)
    assert "files/stopped" not in client and client.list("files/stopped") == [] and eventually(lambda: client.status().drafts == 0)
    assert (tmp_path / "out.npz").read_bytes() == b"as it was" and len(os.listdir(tmp_path)) == 2


def test_closing_ends_a_load(address, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(4 << 20))
    client = tensorlease.connect()
    with pytest.raises(ValueError, match="closed"):
        client.load("files/closed", tmp_path / "in.npy", progress=lambda *_: client.close())
    assert client.closed
    with tensorlease.connect() as other:
        assert "files/closed" not in other


def test_ctrl_c_ends_a_load(address, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros(4 << 20))
    code = (
        f"{HEED_SIGINT}import tensorlease\n"
        "client = tensorlease.connect(autostart=False)\n"
        "def tell(done, total): signal.raise_signal(signal.SIGINT)\n"
        f"try: client.load('files/ctrl', {str(tmp_path / 'in.npy')!r}, progress=tell)\n"
        "except KeyboardInterrupt: print('interrupted', 'files/ctrl' in client)\n"
    )
    assert run_python(code).stdout == "interrupted False\n"


def test_a_killed_loader_publishes_nothing(client, tmp_path):
    np.savez(tmp_path / "in.npz", a=np.zeros(4 << 20), b=np.zeros(4 << 20))
    code = (
        "import os, signal, tensorlease\n"
        "client = tensorlease.connect(autostart=False)\n"
        "def tell(done, total): done > total / 2 and os.kill(os.getpid(), signal.SIGKILL)\n"
        f"client.load('files/killed', {str(tmp_path / 'in.npz')!r}, progress=tell)\n"
    )
    assert run_python(code, check=False).returncode == -signal.SIGKILL
    assert "files/killed" not in client and client.list("files/killed") == []


def test_others_run_during_a_load(client, tmp_path):
    """The GIL is free while a file is read, so that a call of another thread returns before the load does."""
    client.put("files/gil/a", np.zeros(8 << 20))
    client.save("files/gil", tmp_path / "in.npz")
    path, reached, done = tmp_path / "pipe", [], threading.Event()
    os.mkfifo(path)

    def load():
        reached.append(client.load("files/piped", path, format="npz").names)
        done.set()

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    with open(path, "wb") as pipe:  # each end blocks while the other keeps the GIL
        pipe.write((tmp_path / "in.npz").read_bytes())
    assert done.wait(limit(60)) and reached == [["files/piped/a"]]
    thread.join()
    for name in ("files/gil/a", "files/piped/a"):
        client.delete(name)


@pytest.mark.parametrize("format", ["npy", "npz"])
@pytest.mark.parametrize("begun", [False, True])
def test_control_c_ends_the_opening_of_a_pipe(client, address, tmp_path, format, begun):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR) if begun else None  # else open() waits for somebody who writes
    try:
        assert is_interrupted(f"client.load('files/none', {str(path)!r}, format={format!r})")
    finally:
        if writer is not None:
            os.close(writer)


def test_a_signal_that_is_handled_does_not_end_the_opening_of_a_pipe(client, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    client.put("files/handled/a", np.arange(5))
    client.save("files/handled", tmp_path / "in.npz")
    handled, me = [], threading.get_native_id()
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))

    def write():
        until_asleep(me)
        os.kill(os.getpid(), signal.SIGUSR1)
        eventually(lambda: handled)
        path.write_bytes((tmp_path / "in.npz").read_bytes())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert client.load("files/again", path, format="npz").names == ["files/again/a"]
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
        client.delete(prefix="files/")


@pytest.mark.parametrize("format", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("begun", [False, True])
def test_control_c_ends_the_writing_of_a_pipe(client, tmp_path, format, begun):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    client.put("files/stuck/a", np.zeros(1 << 20))
    reader = os.open(path, os.O_RDWR) if begun else None  # else open() waits for somebody who reads
    prefix = "files/stuck/a" if format == "npy" else "files/stuck"
    try:
        assert is_interrupted(f"client.save({prefix!r}, {str(path)!r}, format={format!r})")
    finally:
        if reader is not None:
            os.close(reader)
        client.delete("files/stuck/a")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("call", ["load", "save"])
def test_close_ends_a_wait_for_a_pipe(client, tmp_path, call, begun):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    client.put("files/stuck/a", np.zeros(1 << 20))
    other_end = os.open(path, os.O_RDWR) if begun else None  # else nobody has the other end
    try:
        with tensorlease.connect(autostart=False) as waiting:
            said = close_during(waiting, lambda: getattr(waiting, call)("files/stuck", path, format="npz"))
        assert said == ["the client was closed meanwhile"]
    finally:
        if begun:
            os.close(other_end)
        client.delete("files/stuck/a")


@pytest.mark.parametrize("call", ["load", "save"])
def test_close_ends_a_call_whose_pipe_is_always_ready_soon(client, tmp_path, call):
    path, pages, stop = tmp_path / "pipe", [], threading.Event()
    os.mkfifo(path)
    client.put("files/slow/a", np.zeros(1 << 20))
    other_end = os.open(path, os.O_RDWR)
    os.write(other_end, b"PK\x03\x04" * 16 if call == "load" else b"")

    def trickle():
        while len(pages) < 2000 and not stop.wait(0.005):
            pages.append(os.read(other_end, 4096) if call == "save" else os.write(other_end, b"\0"))
        os.close(other_end)  # the call ends at the latest now

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with tensorlease.connect(autostart=False) as waiting:
            said = close_during(waiting, lambda: getattr(waiting, call)("files/slow", path, format="npz"))
        assert said == ["the client was closed meanwhile"]
        assert len(pages) < 1900
    finally:
        stop.set()
        thread.join()
        client.delete("files/slow/a")


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_that_is_handled_does_not_end_the_writing_of_a_pipe(client, tmp_path, begun):
    path, there = tmp_path / "pipe", tmp_path / "there.npz"
    os.mkfifo(path)
    client.put("files/handled/a", np.arange(1 << 17))
    client.save("files/handled", there)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if begun else None
    handled, said, me = [], [], threading.get_native_id()
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))

    def read():
        until_asleep(me)
        os.kill(os.getpid(), signal.SIGUSR1)
        eventually(lambda: handled)
        said.append(path.read_bytes())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert client.save("files/handled", path, format="npz") == ["files/handled/a"]
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
        if reader is not None:
            os.close(reader)
        client.delete("files/handled/a")
    assert said == [there.read_bytes()]


def test_save_is_of_one_moment(client, tmp_path):
    over, seen, wrong = threading.Event(), set(), []
    with tensorlease.connect() as other:

        def put():
            version = 0
            while not over.is_set():
                version += 1
                other.put_many({str(n): np.full(10, version) for n in range(50)}, prefix="files/moment/")

        client.put_many({str(n): np.full(10, 0) for n in range(50)}, prefix="files/moment/")
        def work():
            try:
                put()
            except BaseException as error:
                wrong.append(error)

        def save():
            client.save("files/moment", tmp_path / "out.npz")
            with np.load(tmp_path / "out.npz") as saved:
                values = {int(a[i]) for a in saved.values() for i in (0, -1)}
            assert len(saved.files) == 50 and len(values) == 1, "a mixed save"
            seen.update(values)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(30):
                save()
            while len(seen) < 3 and thread.is_alive():  # on a busy machine the others may not have put much
                save()
        finally:
            over.set()
            thread.join()
        if wrong:
            raise wrong[0]
        assert len(seen) > 1


def test_the_command_line_agrees(client, address, tmp_path):
    """Python saves tensors that the command line loads, and the other way round, to the same bytes."""
    tool = os.environ.get("TL_TEST_CLI")
    if not tool:
        pytest.skip("TL_TEST_CLI does not say where the command line tool is")
    np.savez(tmp_path / "in.npz", a=np.arange(10), b=np.eye(3))
    client.load("files/cli", tmp_path / "in.npz")
    client.save("files/cli", tmp_path / "python.safetensors")
    command = [tool, "--socket", address]
    subprocess.run([*command, "save", "files/cli", tmp_path / "cli.safetensors"], check=True)
    subprocess.run(
        [*command, "load", "files/cli2", tmp_path / "python.safetensors"], check=True, stdout=subprocess.DEVNULL
    )
    client.save("files/cli2", tmp_path / "again.safetensors")
    files = {(tmp_path / f"{name}.safetensors").read_bytes() for name in ("python", "cli", "again")}
    assert len(files) == 1


def test_save_writes_texts_about_the_file(client, tmp_path):
    texts = {"format": "pt", "ä": 'a "quoted" \\ line\n'}
    client.put_many({"noted/a": np.arange(3), "noted/b": np.ones(2)})
    client.save("noted", tmp_path / "n.safetensors", metadata=texts)
    assert client.load("again", tmp_path / "n.safetensors") == (["again/a", "again/b"], texts)
    assert (client.get("again/a").numpy() == np.arange(3)).all()
    client.save("noted", tmp_path / "n.safetensors", metadata={})
    assert client.load("again", tmp_path / "n.safetensors").metadata == {}
    with pytest.raises(tensorlease.UnsupportedError, match="safetensors"):
        client.save("noted", tmp_path / "n.npz", metadata=texts)
    for wrong in ("text", {"a": 1}, {1: "a"}):
        with pytest.raises(TypeError, match="metadata"):
            client.save("noted", tmp_path / "n.safetensors", metadata=wrong)


def shards_of(folder, client):
    """Writes two shards and their index. Returns what is in them."""
    arrays = {f"layer.{n}": np.full((3, n + 1), n, "float32") for n in range(4)}
    for shard in range(2):
        part = {name: array for name, array in arrays.items() if int(name[-1]) % 2 == shard}
        client.put_many(part, prefix=f"files/shard{shard}/")
        client.save(f"files/shard{shard}", folder / f"model-{shard}.safetensors", metadata={f"shard{shard}": "yes"})
    weights = {name: f"model-{int(name[-1]) % 2}.safetensors" for name in arrays}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return arrays


def test_a_model_in_several_files(client, tmp_path):
    arrays = shards_of(tmp_path, client)
    told = []
    for path in (
        tmp_path / "model.safetensors.index.json",
        str(tmp_path / "model.safetensors.index.json"),
        [tmp_path / "model-0.safetensors", tmp_path / "model-1.safetensors"],
    ):
        names, metadata = client.load("files/model", path, progress=lambda done, total: told.append((done, total)))
        assert sorted(names) == [f"files/model/layer.{n}" for n in range(4)]
        assert metadata == {"shard0": "yes", "shard1": "yes"}
        got = client.get_many(prefix="files/model/")
        assert all((got[name].numpy() == array).all() for name, array in arrays.items()) and len(got) == 4
    total = sum(array.nbytes for array in arrays.values())
    assert told[-1] == (total, total) and {t for _, t in told} == {total}


def test_of_several_files_all_or_none_are_published(client, tmp_path):
    shards_of(tmp_path, client)
    (tmp_path / "model-1.safetensors").write_bytes(b"no")
    with pytest.raises(tensorlease.InvalidError, match="model-1"):
        client.load("files/none", tmp_path / "model.safetensors.index.json")
    with pytest.raises(tensorlease.InvalidError, match="twice|layer"):
        client.load("files/none", [tmp_path / "model-0.safetensors"] * 2)
    with pytest.raises(ValueError, match="empty"):
        client.load("files/none", [])
    shards_of(tmp_path, client)
    index = tmp_path / "model.safetensors.index.json"
    weights = json.loads(index.read_text())["weight_map"]
    for more in ({"one.more": "model-0.safetensors"}, {"layer.1": "model-0.safetensors"}):
        index.write_text(json.dumps({"weight_map": {**weights, **more}}))
        with pytest.raises(tensorlease.InvalidError, match=f"model-0.safetensors: .*{next(iter(more))}"):
            client.load("files/none", index)
    for text in ("[", "[]", "{}", '{"weight_map": {"a": "../b"}}', '{"weight_map": {}}', '{"weight_map": 5}'):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(tensorlease.InvalidError, match=r"no index of a model: [^(]*(\(char [0-9]+\))?$"):
            client.load("files/none", tmp_path / "model.safetensors.index.json")
    assert "files/none" not in client and client.list("files/none") == []


def test_once_is_read_by_one_and_seen_by_all(client, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.ones(2))
    said, reading, found = [], [], []
    begun = threading.Event()

    def stop(done, total):
        reading.append(1)
        begun.wait(limit(60))
        raise OverflowError("the first one fails")

    def load(progress):
        try:
            found.append(client.load("files/once/", tmp_path / "a.npz", once=True, progress=progress))
        except OverflowError as error:
            said.append(str(error))

    threads = [threading.Thread(target=load, args=(stop,))]
    threads[0].start()
    eventually(lambda: reading)
    threads += [threading.Thread(target=load, args=(lambda done, total: reading.append((done, total)),)) for _ in range(4)]
    for thread in threads[1:]:
        thread.start()
        until_asleep(thread.native_id)
    begun.set()
    for thread in threads:
        thread.join()
    names = ["files/once/x", "files/once/y"]
    assert said == ["the first one fails"] and [sorted(f.names) for f in found] == [names] * 4
    assert sum(told == (40, 40) for told in reading) == 1
    np.save(tmp_path / "b.npy", np.arange(3))
    for _ in range(2):
        assert client.load("files/one", tmp_path / "b.npy", once=True).names == ["files/one"]
    assert client.stat("files/one").version == 1
    with pytest.raises(tensorlease.InvalidError, match="empty"):
        client.load("", tmp_path / "a.npz", once=True)


def test_a_slash_after_the_prefix_makes_no_difference(client, tmp_path):
    client.put_many({"x": np.arange(3), "y": np.ones(2)}, prefix="files/slash/")
    assert sorted(client.save("files/slash/", tmp_path / "a.npz")) == ["files/slash/x", "files/slash/y"]
    assert sorted(client.load("files/slashed/", tmp_path / "a.npz").names) == ["files/slashed/x", "files/slashed/y"]


@pytest.mark.parametrize("kind", [str, Path, os.fsencode, lambda path: ["x.safetensors", path]])
@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt"])
def test_a_file_of_torch_save_has_to_be_converted(client, kind, suffix):
    lines = r"(?s)torch\.load\('some/m\.\w+'.*weights_only=True.*'some/m.safetensors'"
    with pytest.raises(tensorlease.InvalidError, match=lines):
        client.load("files/pickled", kind(f"some/m.{suffix}"))
    with pytest.raises(FileNotFoundError):
        client.load("files/pickled", f"some/m.{suffix}", format="npy")


def test_the_lines_that_convert_it_do_so(client, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    torch.save({"a": torch.arange(3)}, tmp_path / "m.pt")
    with pytest.raises(tensorlease.InvalidError) as raised:
        client.load("files/pickled", tmp_path / "m.pt")
    exec("\n".join(line.strip() for line in raised.value.strerror.splitlines()[1:3]), {})
    client.load("files/pickled", tmp_path / "m.safetensors")
    assert client.get("files/pickled/a").tolist() == [0, 1, 2]
