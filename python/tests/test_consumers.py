# SPDX-License-Identifier: Apache-2.0
"""The libraries that take our tensors, where they are installed: right values, no copy, and no write that kills."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import leases_of, run_python


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


@pytest.fixture
def tensor(client):
    client.put("consumers/t", np.arange(6000, dtype="float32").reshape(2, 3, 1000))
    return client.get("consumers/t")


# ---- PyTorch ----


def test_torch_writes_reach_nobody(torch, tensor, client):
    for make in (
        lambda t: t.torch(),
        torch.from_dlpack,
        lambda t: torch.from_dlpack(t, copy=False),
        lambda t: torch.from_dlpack(t, device="cpu", copy=False),
        lambda t: torch.from_dlpack(t, device="cpu"),
        lambda t: torch.from_dlpack(t, copy=True),
        lambda t: t.torch(copy=True),
        torch.as_tensor,
    ):
        one, two = make(tensor), make(tensor)
        assert one.shape == (2, 3, 1000) and one.dtype is torch.float32 and one.is_contiguous()
        one.fill_(-1)
        assert two[1, 2, 999] == 5999 and tensor.numpy()[1, 2, 999] == 5999
        assert client.get("consumers/t").numpy()[0, 0, 1] == 1


def test_torch_over_plain_bytes_writes_to_nobody_else(torch, tensor, recwarn):
    for make in (torch.asarray, lambda t: torch.frombuffer(t, dtype=torch.float32)):
        made = make(tensor)
        tensor.copy_on_write()
        made.fill_(-1)
        assert tensor.numpy()[1, 2, 999] == 5999
        del made


def test_torch_is_zero_copy_and_holds_the_lease(torch, client, observer):
    client.put("consumers/big", np.zeros(1 << 20, "uint8"))
    before = leases_of(observer, os.getpid())
    cow = client.get("consumers/big", mode="c")
    made = cow.torch()
    assert made.data_ptr() == cow._address
    made[5] = 7
    assert cow.numpy()[5] == 7 and client.get("consumers/big").numpy()[5] == 0
    part = made[3:].view(torch.int8)[1:]
    del made, cow
    assert leases_of(observer, os.getpid()) == before + 1 and part[1] == 7
    del part
    assert leases_of(observer, os.getpid()) == before


TORCH_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_torch_dtypes_there_and_back(torch, client, name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this PyTorch has no {name}")
    source = torch.arange(4).reshape(2, 2).to(torch.float32).to(dtype)
    client.put("consumers/dtype", source.T)
    tensor = client.get("consumers/dtype")
    assert str(tensor.dtype) == name and tensor.shape == (2, 2)
    made = tensor.torch()
    assert made.dtype is dtype
    assert (made.to(torch.complex64) == source.T.to(torch.complex64)).all()
    with client.create("consumers/dtype", (2, 2), dtype) as draft:
        draft.torch().copy_(source)
    assert (client.get("consumers/dtype").torch().to(torch.complex64) == source.to(torch.complex64)).all()


def test_torch_shapes(torch, client):
    for shape in ((), (0,), (2, 0, 3), (1,) * 10):
        client.put("consumers/shape", torch.ones(shape))
        assert client.get("consumers/shape").torch().shape == shape


def test_torch_tensors_are_put_and_published(torch, client):
    source = torch.arange(24).reshape(4, 6)
    for view in (source, source.T, source[::2, 1::3], source.expand(3, 4, 6), torch.tensor(3.5)):
        client.put("consumers/view", view)
        assert (client.get("consumers/view").torch() == view).all()
    with pytest.raises((BufferError, RuntimeError), match="grad"):
        client.put("consumers/grad", torch.ones(3, requires_grad=True))
    with client.create("consumers/draft", (3, 4), torch.float32) as draft:
        made = draft.torch()
        made.fill_(2.5)
        assert client.publish("consumers/draft", made) == (1, False)
    assert client.get("consumers/draft").torch().sum() == 30


def test_torch_legacy_capsules(torch, tensor):
    with pytest.raises(BufferError, match='mode="c"'):
        torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    assert torch.utils.dlpack.from_dlpack(tensor.copy_on_write().__dlpack__())[0, 0, 7] == 7


def test_a_torch_dataloader_gets_by_name(torch, client):
    code = (
        "import tensorlease, torch\n"
        "class Frames(torch.utils.data.Dataset):\n"
        "    def __init__(self): self.client = tensorlease.connect()\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, n): return self.client.get(f'consumers/frame{n}').torch().clone()\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'spawn'):\n"
        "        loader = torch.utils.data.DataLoader(Frames(), batch_size=5, num_workers=2, multiprocessing_context=method)\n"
        "        print([int(batch.sum()) for batch in loader])\n"
    )
    for n in range(20):
        client.put(f"consumers/frame{n}", np.full(3, n))
    script = os.path.join(os.path.dirname(os.environ["TENSORLEASE_SOCKET"]), "loader.py")
    with open(script, "w") as file:
        file.write(code)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110)
    assert result.stdout == "[30, 105, 180, 255]\n" * 2, result.stderr


# ---- JAX ----


def test_jax_is_zero_copy(jax, tensor, client, observer):
    made = tensor.jax()
    assert made.shape == (2, 3, 1000) and float(made[1, 2, 999]) == 5999
    cow = tensor.copy_on_write()
    assert cow.jax().unsafe_buffer_pointer() == cow._address
    with pytest.raises(BufferError, match='mode="c"'):
        jax.dlpack.from_dlpack(tensor)
    before = leases_of(observer, os.getpid())
    del made, cow
    gc.collect()
    assert leases_of(observer, os.getpid()) < before
    assert float(tensor.jax(copy=True)[0, 0, 1]) == 1
    assert float(jax.numpy.asarray(tensor)[0, 0, 3]) == 3
    client.put("consumers/jax", jax.numpy.arange(5, dtype="bfloat16"))
    assert str(client.get("consumers/jax").dtype) == "bfloat16"
    assert client.get("consumers/jax").jax().dtype == "bfloat16"


# ---- Others ----


def test_tvm_ffi_writes_reach_nobody(tensor):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    made = tvm_ffi.from_dlpack(tensor)
    assert tuple(made.shape) == (2, 3, 1000)
    array = np.from_dlpack(made)
    assert array[1, 2, 999] == 5999 and array.__array_interface__["data"][0] != tensor._address


def test_mpi_sends_and_receives(tensor):
    """mpi4py asks as PyTorch does with copy=False, so what it receives into a read-only Tensor is seen by nobody."""
    pytest.importorskip("mpi4py")
    code = (
        "import numpy as np, tensorlease\n"
        "from mpi4py import MPI\n"
        "c = tensorlease.connect(); t = c.get('consumers/t'); out = np.empty((2, 3, 1000), 'float32')\n"
        "MPI.COMM_SELF.Sendrecv(t, 0, recvbuf=out, source=0)\n"
        "MPI.COMM_SELF.Sendrecv(out * 3, 0, recvbuf=t, source=0)\n"
        "w = t.copy_on_write(); MPI.COMM_SELF.Sendrecv(out * 2, 0, recvbuf=w, source=0)\n"
        "print(out[1, 2, 999], t.numpy()[1, 2, 999], w.numpy()[1, 2, 999])\n"
    )
    result = run_python(code, check=False)
    if "cannot load MPI" in result.stderr:
        pytest.skip("mpi4py is there, an MPI library is not")
    assert result.stdout.split() == ["5999.0", "5999.0", "11998.0"], result.stderr


def test_pickle_of_a_numpy_view_is_a_copy(tensor):
    import pickle

    assert (pickle.loads(pickle.dumps(tensor.numpy())) == tensor.numpy()).all()
