# SPDX-License-Identifier: Apache-2.0
"""Uses of the libraries: computing on shared memory, and into shared memory."""

import gc
import os
import signal
import struct
import subprocess
import sys

import pytest

import raw
from conftest import leases_of
from libraries import Torch
from limits import limit

FLOATS = struct.pack("64f", *range(64))
DOUBLED = struct.pack("64f", *range(0, 128, 2))
SUM = sum(range(64))


@pytest.fixture
def tensor(client):
    raw.publish(client, "uses/x", (8, 8), "float32", FLOATS)
    return client.get("uses/x")


def unharmed(client):
    return raw.plain(client.get("uses/x")) == FLOATS


def only(name):
    return pytest.mark.library(name)


# ---- NumPy ----


@only("numpy")
def test_numpy_computes_into_a_draft(client, tensor, peer):
    import numpy as np

    with client.create("uses/y", (8, 8), "float32") as draft:
        np.multiply(tensor, 2, out=draft.numpy())
    assert peer.read("uses/y") == ("float32", (8, 8), DOUBLED)
    assert np.sum(tensor) == SUM and (np.matmul(tensor, tensor.numpy()) == tensor.numpy() @ tensor.numpy()).all()


@only("numpy")
@pytest.mark.parametrize("make", ["Fortran", "strided", "reversed", "read-only", "scalar", "subclass"])
def test_numpy_arrays_of_all_kinds_are_put(client, peer, make):
    import numpy as np

    base = np.frombuffer(FLOATS, "f4").reshape(8, 8)
    array = {
        "Fortran": np.asfortranarray(base),
        "strided": base[1::2, ::3],
        "reversed": base[::-1, ::-1],
        "read-only": base,
        "scalar": np.float32(3.5),
        "subclass": base.view(np.matrix),
    }[make]
    client.put("uses/kind", array)
    assert peer.read("uses/kind") == ("float32", np.shape(array), array.tobytes())


@only("numpy")
def test_a_masked_array_is_refused(client, peer):
    import numpy as np

    masked = np.ma.masked_array(np.frombuffer(FLOATS, "f4"), [True] * 64)
    with pytest.raises(BufferError, match="masked array"):
        client.put("uses/masked", masked)
    client.put("uses/masked", masked.data)
    assert peer.read("uses/masked") == ("float32", (64,), FLOATS)


# ---- PyTorch ----


@only("torch")
def test_torch_trains_on_weights_that_many_share(client, tensor):
    """Weights are loaded without a copy, and training writes only to this process's own pages."""
    import torch

    layer = torch.nn.Linear(8, 8, bias=False)
    weights = tensor.torch()
    layer.load_state_dict({"weight": weights}, assign=True)
    assert layer.weight.data_ptr() == weights.data_ptr()
    layer.requires_grad_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(8)).sum().backward()
    optimizer.step()
    assert layer.weight.data_ptr() == weights.data_ptr()
    assert torch.allclose(layer.weight[0], torch.arange(8) - 0.1)
    assert unharmed(client)


@only("torch1")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_torch_recurrent_models_compute_with_shared_weights(client, kind):
    """Before PyTorch 2.1 such a model has its weights in a list, too."""
    import torch

    import tensorlease.torch

    model, other = (getattr(torch.nn, kind)(4, 4) for _ in range(2))
    client.put_many(model.state_dict(), prefix=f"uses/{kind}/")
    tensorlease.torch.load_model(client, f"uses/{kind}", other)
    batch = torch.ones(3, 1, 4)
    assert torch.equal(other(batch)[0], model(batch)[0])


@only("torch")
def test_torch_computes_into_a_draft(client, tensor, peer):
    import torch

    with client.create("uses/y", (8, 8), torch.float32) as draft:
        torch.mul(tensor.torch(), 2, out=draft.torch())
    assert peer.read("uses/y") == ("float32", (8, 8), DOUBLED)


@only("torch")
@pytest.mark.parametrize("word", Torch.takes)
def test_torch_element_types_are_taken_for_names(client, peer, word):
    """They come back as they were, even from a non-contiguous view."""
    import torch

    dtype = getattr(torch, word.replace("fnx2", "fn_x2"))
    draft = client.create("uses/type", (2, 2), dtype)
    array = draft.torch()
    assert array.dtype is dtype and array.shape == (2, 2)
    size = array.element_size()
    payload = bytes(n % 2 if word == "bool" else n for n in range(4 * size))
    raw.Memory(draft).fill(payload)
    client.put("uses/turned", array.T)
    draft.commit()
    assert str(client.get("uses/type").dtype) == word
    assert peer.read("uses/type") == (word, (2, 2), payload)
    turned = b"".join(payload[size * n : size * (n + 1)] for n in (0, 2, 1, 3))
    assert peer.read("uses/turned") == (word, (2, 2), turned)


@only("torch")
def test_a_part_of_a_torch_tensor_holds_the_lease(client, tensor, observer):
    import torch

    before = leases_of(observer, os.getpid())
    array = client.get("uses/x", mode="c").torch()
    array[0, 3] = 7
    part = array[0, 2:].view(torch.int32)[1:]
    del array
    assert leases_of(observer, os.getpid()) == before + 1
    assert part.view(torch.float32)[0] == 7 and unharmed(client)
    del part
    assert leases_of(observer, os.getpid()) == before


@only("torch")
@pytest.mark.parametrize(
    "make",
    [
        "t.torch()",
        "t.torch(copy=True)",
        "torch.from_dlpack(t)",
        "torch.from_dlpack(t, copy=False)",
        "torch.from_dlpack(t, copy=True)",
        "torch.from_dlpack(t, device='cpu')",
        "torch.from_dlpack(t, device='cpu', copy=False)",
        "torch.as_tensor(t)",
    ],
)
def test_writes_to_a_torch_tensor_reach_nobody(client, tensor, make):
    import torch

    one, two = (eval(make, {"t": tensor, "torch": torch}) for _ in range(2))
    assert one.shape == (8, 8) and one.dtype is torch.float32 and one.is_contiguous()
    one.fill_(-1)
    assert two[7, 7] == 63 and raw.plain(tensor) == FLOATS and unharmed(client)


@only("torch")
def test_torch_over_plain_bytes_writes_to_nobody_else(client, tensor, recwarn):
    import torch

    made = torch.frombuffer(tensor, dtype=torch.float32)
    tensor.copy_on_write()
    made.fill_(-1)
    assert raw.plain(tensor) == FLOATS and unharmed(client)


@only("torch")
def test_torch_asarray_is_refused(client, tensor):
    import torch

    with pytest.warns(RuntimeWarning, match="torch"), pytest.raises(RuntimeError):
        torch.asarray(tensor)


@only("torch")
def test_torch_views_are_put_and_an_array_over_a_draft_is_published(client):
    import torch

    source = torch.arange(24).reshape(4, 6)
    for view in (source, source.T, source[::2, 1::3], source.expand(3, 4, 6), torch.tensor(3.5)):
        client.put("uses/view", view)
        assert torch.equal(client.get("uses/view").torch(), view)
    with pytest.raises((BufferError, RuntimeError), match="grad"):
        client.put("uses/grad", torch.ones(3, requires_grad=True))
    with client.create("uses/draft", (3, 4), torch.float32) as draft:
        made = draft.torch()
        made.fill_(2.5)
        assert client.publish("uses/draft", made) == (1, False)
    assert client.get("uses/draft").torch().sum() == 30


LOADER = """
import tensorlease, torch

class Frames(torch.utils.data.Dataset):
    def __init__(self):
        self.client = tensorlease.connect(autostart=False)

    def __len__(self):
        return 20

    def __getitem__(self, n):
        return self.client.get(f"uses/frame{n}").torch().clone()

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Frames(), batch_size=5, num_workers=2, multiprocessing_context=method)
        print([int(batch.sum()) for batch in loader])
"""


@only("torch")
def test_a_torch_data_loader_gets_by_name(client, tmp_path):
    for n in range(20):
        raw.publish(client, f"uses/frame{n}", (3,), "float32", struct.pack("3f", n, n, n))
    (tmp_path / "loader.py").write_text(LOADER)  # the workers that are spawned import it
    command = [sys.executable, tmp_path / "loader.py"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=limit(200), check=False)
    assert result.stdout == "[30, 105, 180, 255]\n" * 2, result.stderr


# ---- JAX ----


@only("jax")
def test_jax_compiles_and_differentiates(client, tensor, peer):
    import jax

    array = tensor.jax()
    assert float(jax.jit(jax.numpy.sum)(array)) == SUM
    gradient = jax.grad(lambda x: (x * x).sum())(array)
    client.put("uses/y", gradient)
    assert peer.read("uses/y") == ("float32", (8, 8), DOUBLED)
    updated = jax.jit(lambda x: x.at[0, 0].set(7), donate_argnums=0)(tensor.jax())
    assert float(updated[0, 0]) == 7 and unharmed(client)


@only("jax")
def test_jax_may_copy(client, tensor, observer):
    import jax

    copy = tensor.jax(copy=True)
    assert float(jax.numpy.asarray(tensor)[7, 7]) == 63
    gc.collect()
    before = leases_of(observer, os.getpid())
    tensor.release()
    assert leases_of(observer, os.getpid()) == before - 1
    assert float(copy[7, 7]) == 63 and unharmed(client)


@only("jax")
@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_jax_is_not_asked_to_halve_what_it_cannot_take_whole(client, dtype):
    import jax

    raw.publish(client, "uses/wide", (2,), dtype, bytes(range(32 if dtype == "complex128" else 16)))
    with jax.enable_x64(False), pytest.raises(TypeError, match=f"{dtype}.*jax_enable_x64"):
        client.get("uses/wide").jax()
    assert client.get("uses/wide").jax().dtype == dtype


# ---- TensorFlow ----


@only("tensorflow")
def test_tensorflow_compiles_and_feeds_a_data_set(client, tensor, peer):
    import tensorflow as tf

    array = tf.experimental.dlpack.from_dlpack(tensor.copy_on_write().__dlpack__())
    doubled = tf.function(lambda x: x * 2)(array)
    client.put("uses/y", doubled)
    assert peer.read("uses/y") == ("float32", (8, 8), DOUBLED)
    rows = tf.data.Dataset.from_tensor_slices(array).batch(4)
    assert sum(float(tf.reduce_sum(row)) for row in rows) == SUM
    variable = tf.Variable(array)
    variable.assign_add(tf.ones((8, 8)))
    assert unharmed(client)


# ---- TVM ----


@only("tvm-ffi")
def test_tvm_functions_take_tensors_as_they_are(client, tensor):
    import tvm_ffi

    echo = tvm_ffi.get_global_func("testing.echo")
    back = echo(tensor)
    assert tuple(back.shape) == (8, 8) and str(back.dtype) == "float32"
    ours = tensor.copy_on_write()
    assert raw.plain(echo(ours)) == FLOATS
    assert unharmed(client)


# ---- MXNet ----


@only("mxnet")
def test_mxnet_computes_into_a_draft(client, tensor, peer):
    import mxnet as mx

    array = mx.nd.from_dlpack(tensor.copy_on_write().__dlpack__())
    assert float(array.sum().asscalar()) == SUM
    with client.create("uses/y", (8, 8), "float32") as draft:
        out = mx.nd.from_dlpack(draft.__dlpack__())
        mx.nd.elemwise_add(array, array, out=out)
        out.wait_to_read()
    assert peer.read("uses/y") == ("float32", (8, 8), DOUBLED)
    assert unharmed(client)


# ---- ONNX Runtime ----


def onnx_model():
    """y = x + x for float32[8, 8], encoded as protobuf."""

    def field(number, value):
        if isinstance(value, int):
            return bytes([number << 3, value])
        value = value if isinstance(value, bytes) else value.encode()
        assert len(value) < 128
        return bytes([number << 3 | 2, len(value)]) + value

    dim = field(1, field(1, 8))
    kind = field(1, field(1, 1) + field(2, dim + dim))
    node = field(1, "x") + field(1, "x") + field(2, "y") + field(4, "Add")
    ends = field(11, field(1, "x") + field(2, kind)) + field(12, field(1, "y") + field(2, kind))
    return field(1, 8) + field(7, field(1, node) + field(2, "g") + ends) + field(8, field(2, 13))


@only("onnxruntime")
def test_onnxruntime_runs_from_shared_memory_into_a_draft(client, tensor, peer):
    import onnxruntime as ort

    session = ort.InferenceSession(onnx_model(), providers=["CPUExecutionProvider"])
    value = ort.OrtValue.from_dlpack(tensor.copy_on_write())
    [result] = session.run_with_ort_values(["y"], {"x": value})
    client.put("uses/y", result)
    assert peer.read("uses/y") == ("float32", (8, 8), DOUBLED)
    draft = client.create("uses/z", (8, 8), "float32")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", ort.OrtValue.from_dlpack(draft))
    session.run_with_iobinding(binding)
    draft.commit()
    assert peer.read("uses/z") == ("float32", (8, 8), DOUBLED)
    assert unharmed(client)


@only("onnxruntime")
def test_onnxruntime_writes_to_read_only_arrays_of_numpy(client, tensor):
    """docs/INTEROP.md warns of this way: NumPy's flag is ignored, so the process dies. Nobody else is harmed."""
    code = (
        "import numpy as np, onnxruntime as ort, tensorlease\n"
        "t = tensorlease.connect(autostart=False).get('uses/x')\n"
        "value = ort.OrtValue.ortvalue_from_numpy(t.numpy())\n"
        "assert value.data_ptr() == t.numpy().__array_interface__['data'][0]\n"
        "print('writes', flush=True)\n"
        "value.update_inplace(np.zeros((8, 8), 'float32'))\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(100), check=False)
    assert (child.stdout, child.returncode) == ("writes\n", -signal.SIGSEGV), child.stderr
    assert unharmed(client)


# ---- PaddlePaddle ----


@only("paddle")
def test_paddle_trains_on_weights_that_many_share(client, tensor):
    import paddle

    weights = paddle.from_dlpack(tensor)
    weights.stop_gradient = False
    (weights * weights).sum().backward()
    assert float((weights.grad - 2 * weights).abs().sum()) == 0
    with paddle.no_grad():
        weights.subtract_(weights.grad * 0.5)
    assert float(weights.sum()) == 0 and unharmed(client)


# ---- Arrow ----


@only("pyarrow")
@pytest.mark.parametrize("mode", "rc")
def test_arrow_buffers_are_the_memory(client, tensor, mode):
    import pyarrow as pa
    import pyarrow.compute

    t = client.get("uses/x", mode=mode)
    buffer = pa.py_buffer(t)
    assert buffer.address == t._address and buffer.size == 256 and buffer.is_mutable == (mode == "c")
    array = pa.Array.from_buffers(pa.float32(), 64, [None, buffer])
    assert pa.compute.sum(array).as_py() == SUM
    made = pa.Tensor.from_numpy(t.numpy())
    assert made.to_numpy().__array_interface__["data"][0] == t._address and made.is_mutable == (mode == "c")
    column = pa.array(t.numpy().reshape(-1))
    assert column.buffers()[1].address == t._address
    assert pa.table({"x": column}).slice(8, 2).to_pydict() == {"x": [8.0, 9.0]}
    t.release()
    client.put("uses/x", b"other")
    del tensor
    assert pa.compute.sum(array).as_py() == SUM and buffer.to_pybytes() == FLOATS


@only("pyarrow")
def test_arrow_arrays_are_put(client, peer):
    import pyarrow as pa

    column = pa.array([1.0, 2.0, 3.0, 4.0], pa.float32())
    client.put("uses/column", column)
    assert peer.read("uses/column") == ("float32", (4,), struct.pack("4f", 1, 2, 3, 4))
    client.put("uses/column", column.slice(1, 2))
    assert peer.read("uses/column") == ("float32", (2,), struct.pack("2f", 2, 3))
    client.put("uses/column", pa.py_buffer(b"bytes"))
    assert peer.read("uses/column") == ("int8", (5,), b"bytes")  # how Arrow describes it
    version = client.stat("uses/column").version
    for other in (pa.array([1, None]), pa.array(["text"]), pa.array([True]), pa.chunked_array([[1]])):
        with pytest.raises((BufferError, TypeError, ValueError)):
            client.put("uses/column", other)
    assert client.stat("uses/column").version == version
