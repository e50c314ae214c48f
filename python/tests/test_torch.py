# SPDX-License-Identifier: Apache-2.0
"""tensorlease.torch: models that share their weights, and datasets that are decoded once."""

import ast
import contextlib
import hashlib
import inspect
import io
import os
import signal
import tempfile
import threading
import warnings

import numpy as np
import pytest
from conftest import PACKAGE, daemon_at, in_child, interrupted_as, once_asleep, run_python
from limits import limit

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorlease
import tensorlease.torch as shared
from torch.utils.data import DataLoader, Dataset, default_collate


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.norm(self.embedding(x))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def publish(client, prefix, *, without=()):
    model = Net().eval()
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in without}
    client.put_many(state, prefix=prefix + "/")
    return model


@pytest.mark.parametrize("without", [(), ("head.weight",), ("embedding.weight",)])
def test_a_model_on_meta_takes_shared_weights(client, without):
    prefix = f"torch/model/{len(without) and without[0]}"
    model = publish(client, prefix, without=without)
    with torch.device("meta"):
        other = Net()
    assert shared.load_model(client, prefix, other) is other
    batch = torch.arange(20)
    assert torch.equal(model(batch), other.eval()(batch))
    assert other.head.weight is other.embedding.weight and other.head.weight.requires_grad
    other.train()(batch)  # writes to the buffers of the norm
    with torch.no_grad():
        other.layers[0].weight += 1
    again = shared.load_model(client, prefix, Net()).eval()
    assert torch.equal(model(batch), again(batch))


def tiny_model(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; no stage has it")
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
        )
        return transformers, config, transformers.LlamaForCausalLM
    config = transformers.GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    return transformers, config, transformers.GPT2LMHeadModel


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_of_transformers(client, tmp_path, kind):
    transformers, config, build = tiny_model(kind)
    model = build(config).eval()
    model.save_pretrained(tmp_path)
    client.load(f"torch/{kind}", tmp_path / "model.safetensors")
    with shared.meta_weights():
        other = build(config).eval()
    assert all(p.is_meta for p in other.parameters())
    shared.load_model(client, f"torch/{kind}", other)
    batch = torch.arange(20).reshape(1, -1)
    with torch.no_grad():
        expected = model(batch).logits
        assert torch.equal(other(batch).logits, expected)
    tied = other.get_input_embeddings().weight is other.get_output_embeddings().weight
    assert tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    for buffer in other.buffers():
        buffer.add_(1)  # its own
    again = build(config).eval()
    assert not any(p.is_meta for p in again.parameters())
    shared.load_model(client, f"torch/{kind}", again)
    with torch.no_grad():
        assert torch.equal(again(batch).logits, expected)


def test_what_is_missing_or_of_another_shape_is_named(client):
    publish(client, "torch/part", without=("layers.1.bias",))
    with pytest.raises(tensorlease.NotFoundError, match="torch/part/layers.1.bias"):
        shared.load_model(client, "torch/part", Net())
    shared.load_model(client, "torch/part", Net(), strict=False)
    client.put("torch/part/layers.1.bias", np.zeros(3, "float32"))
    with pytest.raises(tensorlease.InvalidError, match="layers.1.bias"):
        shared.load_model(client, "torch/part", Net())
    with pytest.raises(tensorlease.NotFoundError):
        shared.load_model(client, "torch/none", Net())


def parts_of(model):
    return {name: id(part) for name, part in (*model.named_parameters(), *model.named_buffers())}


def test_a_failed_load_leaves_the_model_as_it_was(client):
    publish(client, "torch/half")
    client.put("torch/half/layers.2.bias", np.zeros(3, "float32"))  # the last but one
    model = Net()
    before = parts_of(model)
    with pytest.raises(tensorlease.InvalidError, match="torch/half/layers.2.bias has the shape"):
        shared.load_model(client, "torch/half", model)
    assert parts_of(model) == before
    client.delete("torch/half/layers.2.bias")
    with pytest.raises(tensorlease.NotFoundError, match="torch/half/layers.2.bias"):
        shared.load_model(client, "torch/half", model)
    assert parts_of(model) == before


class Noting(torch.nn.Linear):
    """Keeps its weight in a list, too, as recurrent modules do before PyTorch 2.1."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "weight":
            super().__setattr__("noted", [value])


def test_a_module_is_told_of_its_new_weights(client):
    client.put_many(torch.nn.Linear(4, 4).state_dict(), prefix="torch/noted/")
    model = shared.load_model(client, "torch/noted", Noting(4, 4))
    assert model.noted[0] is model.weight


@pytest.mark.parametrize("strict", [True, False])
def test_a_lazy_parameter_is_named_and_nothing_is_loaded(client, strict):
    state = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict()
    client.put_many(state, prefix="torch/lazy/")
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d())
    before = parts_of(model)
    with pytest.raises(tensorlease.InvalidError, match="1.weight of the model is lazy.*call the model once"):
        shared.load_model(client, "torch/lazy", model, strict=strict)
    assert parts_of(model) == before
    model(torch.ones(5, 2))
    shared.load_model(client, "torch/lazy", model, strict=strict)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


def test_a_model_is_waited_for(client):
    with pytest.raises(tensorlease.TimeoutError, match="torch/later"):
        shared.load_model(client, "torch/later", Net(), timeout=0.01)
    weights = Net().state_dict()
    thread = once_asleep(lambda: client.put_many(weights, prefix="torch/later/"))
    model = shared.load_model(client, "torch/later/", Net(), timeout=limit(60))
    thread.join()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())


def test_tensors_are_collated(client):
    client.put("torch/a", np.arange(3))
    tensors = [client.get("torch/a") for _ in range(2)]
    assert default_collate(tensors).tolist() == [[0, 1, 2]] * 2
    assert default_collate([{"x": t} for t in tensors])["x"].shape == (2, 3)


class Pictures(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 12

    def __getitem__(self, index):
        with open(self.log, "a") as log:
            log.write(f"{index}\n")
        picture = torch.full((3, 8, 8), index, dtype=torch.uint8)
        return {"picture": picture, "box": np.arange(4.0) + index, "label": index, "name": f"p{index}"}


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn"), (1, "forkserver")])
def test_samples_are_made_once(client, tmp_path, workers, method):
    log = tmp_path / "log"
    dataset = shared.CachedDataset(Pictures(log), prefix=f"torch/{workers}/{method}")
    for _ in range(2):
        loader = DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context=method)
        batches = list(loader)
        assert torch.cat([b["label"] for b in batches]).tolist() == list(range(12))
        for batch in batches:
            assert (batch["picture"] == batch["label"].reshape(-1, 1, 1, 1)).all()
            assert (batch["box"] == torch.arange(4.0) + batch["label"].reshape(-1, 1)).all()
        assert batches[1]["name"] == ["p4", "p5", "p6", "p7"]
    assert sorted(map(int, log.read_text().split())) == list(range(12))


def test_samples_come_back_as_they_were(client):
    samples = [
        (torch.randn(3, 4).T, [np.arange(5, dtype=">i2"), np.zeros((0, 3)), np.float32(2)], None, True, 1.5, "ä", b"\0x"),
        torch.tensor(7, dtype=torch.bfloat16),
        {"a": (), "b": torch.empty(0, 2), "c": b""},
    ]
    cached = shared.CachedDataset(samples, client, "torch/kinds")
    for _ in range(2):
        first, second, third = (cached[n] for n in (0, 1, -1))
        assert torch.equal(first[0], samples[0][0]) and (first[1][0] == samples[0][1][0]).all()
        assert first[1][0].dtype == ">i2" and first[1][1].shape == (0, 3) and first[1][2] == 2
        assert first[2:] == samples[0][2:] and type(first[3]) is bool and torch.equal(second, samples[1])
        assert third["a"] == () and third["b"].shape == (0, 2) and third["c"] == b""
        first[0].fill_(5)  # nobody else sees it
    with pytest.raises(IndexError):
        cached[3]
    with pytest.raises(TypeError, match="cannot be shared"):
        shared.CachedDataset([object()], client, "torch/odd")[0]


@pytest.mark.parametrize("size", [8, 700])  # copied, and mapped
def test_samples_keep_their_order_in_memory(client, size):
    base = torch.arange(2 * 3 * size * 5, dtype=torch.float32).reshape(2, 3, size, 5)
    samples = [
        base.to(memory_format=torch.channels_last),
        base.to(torch.bfloat16).permute(3, 1, 0, 2),
        base[:, :, ::2, 1:4],
        base[:, :, ::2].to(memory_format=torch.channels_last)[:, :2],
        base[:, 1:2].expand(2, 4, size, 5),
        base[:, :1].to(memory_format=torch.channels_last),
        base.mul(1j).permute(1, 0, 3, 2).conj(),
        base.numpy().transpose(2, 0, 3, 1),
        np.asfortranarray(base.numpy()),
        base.numpy()[::-1, :, ::2].T,
        np.broadcast_to(base.numpy()[:, :1], (2, 4, size, 5)),
        np.asfortranarray(np.arange(4 * size).reshape(4, -1).astype(">i2")),
    ]
    cached = shared.CachedDataset(samples, client, f"torch/order/{size}")
    for n, sample in enumerate(samples):
        for again in (cached[n], cached[n]):
            assert again.dtype == sample.dtype and again.shape == sample.shape and bool((again == sample).all())
            dense = sample.clone().stride() if n < 7 else np.copy(sample, order="K").strides
            assert (again.stride() if n < 7 else again.strides) == dense
            again[0, 0] = 5
    first = cached[0]
    assert first.is_contiguous(memory_format=torch.channels_last) and first.stride() == samples[0].stride()
    assert torch.equal(first.to(memory_format=torch.channels_last), samples[0])


def test_samples_of_any_numbers_come_back_as_they_were(client):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    client.put("torch/inner", np.arange(3))
    samples = [
        np.arange(4).astype(ml_dtypes.bfloat16),
        np.arange(4).astype(ml_dtypes.int4),
        np.int64(3),
        np.array(["a", "bc"]),
        {1: torch.ones(2), "b": bytearray(b"x"), None: 2},
        torch.ones(2, dtype=torch.complex64).mul(1j).conj(),
        torch.ones(2, requires_grad=True).detach(),
        torch.ones(4).to(torch.float8_e4m3fn),
        client.get("torch/inner"),
        np.str_(""),
        np.bytes_(b""),
    ]
    cached = shared.CachedDataset(samples, client, "torch/numbers")
    for n in range(4):
        assert cached[n].dtype == samples[n].dtype and type(cached[n]) is type(samples[n]) and (cached[n] == samples[n]).all()
    assert cached[4].keys() == samples[4].keys() and cached[4]["b"] == b"x" and type(cached[4]["b"]) is bytearray
    assert torch.equal(cached[5], torch.ones(2) * -1j) and torch.equal(cached[6], torch.ones(2))
    assert torch.equal(cached[7].float(), torch.ones(4)) and cached[8].tolist() == [0, 1, 2]
    for n in (9, 10):
        assert type(cached[n]) is type(samples[n]) and cached[n] == samples[n]


class Odd(torch.Tensor):
    pass


class Named(np.ndarray):
    pass


class Seconds(np.float64):
    pass


class Lent:
    """Not an array, but like one."""

    dtype, shape = np.dtype("int64"), (3,)
    __array_interface__ = np.arange(3).__array_interface__


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (np.ma.array([1, 2], mask=[0, 1]), "its elements are masked"),
        (np.array([None]), "object"),
        (np.zeros(2, [("a", "i4")]), "one by one"),
        (torch.eye(2).to_sparse(), "to_dense"),
        (torch.ones(2).as_subclass(Odd), "as_subclass"),
        (torch.nn.Parameter(torch.ones(2)), "as_subclass"),
        (torch.ones(2, requires_grad=True), r"detach\(\)"),
        (torch.ones(2, requires_grad=True) * 2, r"detach\(\)"),
        (np.ones((2, 2)).view(np.matrix), "numpy.asarray"),
        (np.ones(2).view(Named), "numpy.asarray"),
        (np.ones(2).view(np.recarray), "numpy.asarray"),
        (Seconds(2), "Seconds"),
        (Lent(), "Lent"),
        ({(1, 2): 3}, "keys of a dict"),
        ({1, 2}, "builtins.set"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(client, sample, text):
    with pytest.raises(TypeError, match=f"cannot be shared.*{text}|{text} cannot be shared"):
        shared.CachedDataset([sample], client, "torch/refused")[0]


def test_what_is_no_dataset_is_refused_at_once(client):
    with pytest.raises(TypeError, match="client must be"):
        shared.CachedDataset([1], "a prefix")
    with pytest.raises(TypeError, match="have no indexes"):
        shared.CachedDataset(iter([1]), client)
    cached = shared.CachedDataset([1, 2], client, "torch/index/")
    assert cached[torch.tensor(1)] == cached[np.int8(1)] == 2
    cached.flush()
    assert len(client.keys("torch/index/.samples")) == 1
    with pytest.raises(TypeError, match="must be an int"):
        cached[0:1]


def test_samples_can_be_cleared_and_expire(client):
    made = []

    class Counted(list):
        def __getitem__(self, index):
            made.append(index)
            return super().__getitem__(index)

    client.put("torch/clear/x", b"no sample")
    cached = shared.CachedDataset(Counted([5, 6]), client, "torch/clear", ttl=1000)
    assert [cached[0], cached[1], cached[0]] == [5, 6, 5] and made == [0, 1]
    cached.flush()
    (name,) = client.keys("torch/clear/.samples")
    assert 0 < client.stat(name).ttl <= 1000
    assert cached.stats() == {"hits": 1, "made": 2, "unkept": 0}
    cached.clear()
    assert client.keys("torch/clear/") == ["torch/clear/x"] and cached[0] == 5 and made == [0, 1, 0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_use_the_client_that_was_given(client, tmp_path, method):
    log = tmp_path / "log"
    dataset = shared.CachedDataset(Pictures(log), client, f"torch/given/{method}")
    for _ in range(2):
        loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method)
        assert torch.cat([b["label"] for b in loader]).tolist() == list(range(12))
    assert sorted(map(int, log.read_text().split())) == list(range(12))


def test_samples_lie_in_shared_memory(client):
    cached = shared.CachedDataset([torch.arange(1 << 20)], client, "torch/large")
    first, second = cached[0], cached[0]
    assert torch.equal(first, second) and first.data_ptr() != second.data_ptr()
    assert first.data_ptr() % 64 == second.data_ptr() % 64 == 0
    cached.flush()
    third = cached[0]  # from the shared memory
    assert torch.equal(first, third) and third.data_ptr() % 64 == 0


def test_weights_on_meta_are_not_filled():
    """PyTorch would load a compiler to find out that there is nothing to fill."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Asked(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            asked.add(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    asked = set()
    with Asked(), shared.meta_weights():
        model = torch.nn.Sequential(torch.nn.Embedding(10, 10), torch.nn.Linear(10, 10), torch.nn.LayerNorm(10))
        model[0].weight.data.normal_()
        filled = torch.nn.init.ones_(torch.empty(3)).uniform_(2, 3)
    assert all(p.is_meta for p in model.parameters()) and (filled >= 2).all()
    assert "normal_" not in asked and "fill_" in asked


def test_threads_that_make_models_on_meta_at_once():
    register, entered, over = torch.nn.Module.register_parameter, threading.Event(), threading.Event()

    def work():
        with shared.meta_weights():
            entered.set()
            over.wait(limit(60))

    thread = threading.Thread(target=work)
    with shared.meta_weights():
        thread.start()
        entered.wait(limit(60))
    try:
        assert torch.nn.Linear(2, 2).weight.is_meta  # the other thread is still there
    finally:
        over.set()
        thread.join()
    assert torch.nn.Module.register_parameter is register and not torch.nn.Linear(2, 2).weight.is_meta


@contextlib.contextmanager
def in_a_thread():
    """Another thread is within meta_weights(), and comes out at the end."""
    entered, over = threading.Event(), threading.Event()

    def work():
        with shared.meta_weights():
            entered.set()
            over.wait(limit(60))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        entered.wait(limit(60))
        yield
    finally:
        over.set()
        thread.join()


def test_a_model_is_loaded_while_threads_are_within_meta_weights(client):
    publish(client, "torch/within")
    with shared.meta_weights():
        models = [shared.load_model(client, "torch/within", Net())]
    with in_a_thread():
        models.append(shared.load_model(client, "torch/within", Net()))
        assert torch.nn.Linear(2, 2).weight.is_meta
    assert not any(p.is_meta for model in models for p in model.parameters())


@pytest.mark.parametrize("function", ["list.append", "get_ident", "dict.clear"])
def test_an_interrupted_meta_weights_ends(function):
    register = torch.nn.Module.register_parameter
    with contextlib.suppress(KeyboardInterrupt), interrupted_as(function), shared.meta_weights():
        pass
    assert torch.nn.Module.register_parameter is register and not torch.nn.Linear(2, 2).weight.is_meta


def test_a_forked_child_has_only_its_own_thread_within_meta_weights():
    register = torch.nn.Module.register_parameter

    def child(within):
        assert (torch.nn.Module.register_parameter is register) is not within
        if within:
            forked.close()  # the block that was copied
        assert torch.nn.Module.register_parameter is register and not torch.nn.Linear(2, 2).weight.is_meta
        with shared.meta_weights():
            assert torch.nn.Linear(2, 2).weight.is_meta
        assert torch.nn.Module.register_parameter is register

    with contextlib.ExitStack() as forked, in_a_thread():
        in_child(lambda: child(False))
        forked.enter_context(shared.meta_weights())
        in_child(lambda: child(True))
        shared._on_meta.lock.acquire()  # as another thread does
        try:
            in_child(lambda: child(True))
        finally:
            shared._on_meta.lock.release()
    assert torch.nn.Module.register_parameter is register


def test_parameters_are_registered_on_meta_as_ever():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter(name="a", param=torch.nn.Parameter(torch.ones(2)))
            self.register_parameter("b", None)

    with shared.meta_weights():
        model, lazy = Named(), torch.nn.LazyLinear(3)
    assert model.a.is_meta and model.b is None
    assert torch.nn.parameter.is_lazy(lazy.weight) and lazy(torch.ones(5, 2)).shape == (5, 3)


class Tied(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        weight = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        self.a = weight
        self.b = weight
        self.c = torch.nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)


def test_weights_tied_by_one_parameter_stay_tied_on_meta(client):
    with shared.meta_weights():
        model, other = Tied(), Tied()
    assert model.a is model.b and model.a is not model.c and model.a is not other.a
    client.put_many(Tied().state_dict(), prefix="torch/tied/")
    shared.load_model(client, "torch/tied", model)
    assert model.a is model.b and model.a.tolist() == [1, 1, 1]


def test_complex_weights_keep_whether_they_are_trained(client):
    client.put_many(Tied(torch.complex64).state_dict(), prefix="torch/complex/")
    with shared.meta_weights():
        model = Tied(torch.complex64)
    shared.load_model(client, "torch/complex", model)
    assert model.a.requires_grad and not model.c.requires_grad


# Our user has another number there than the daemon knows it by, and that number is a stranger's.
IN_A_USER_NAMESPACE = """
import ctypes, os, sys
from pathlib import Path
maps = {"setgroups": "deny", "uid_map": f"{os.geteuid() + 1000} {os.geteuid()} 1", "gid_map": f"0 {os.getegid()} 1"}
try:
    if ctypes.CDLL(None).unshare(0x10000000): sys.exit(77)  # CLONE_NEWUSER
    for name, text in maps.items(): Path("/proc/self", name).write_text(text)
except OSError:
    sys.exit(77)
import tensorlease, tensorlease.torch as shared
client = tensorlease.connect(autostart=False)
mine = shared.CachedDataset([5], client, "mine")
assert mine[0] == 5
mine.flush()
(pack,) = client.keys("mine/.samples")
assert mine[0] == 5 and client.stat(pack).uid != os.geteuid()
again = shared.CachedDataset([6], client, "mine")
assert again[0] == 5 and again.stats()["made"] == 1
for pack in client.keys("theirs"):
    assert client.stat(pack).uid == os.geteuid()
    if shared.CachedDataset([7], client, "theirs")[0] != 7: sys.exit("the sample of a stranger is taken")
"""


def test_samples_are_those_of_the_user_that_the_daemon_knows():
    def stranger():
        os.setuid(os.geteuid() + 1000)
        with tensorlease.connect(address, autostart=False) as client:
            theirs = shared.CachedDataset([6], client, "theirs")
            assert theirs[0] == 6
            theirs.flush()
            assert client.keys("theirs")

    with tempfile.TemporaryDirectory(prefix="tl-py-") as folder, daemon_at(f"{folder}/socket"):
        address = f"{folder}/socket"
        if os.geteuid() == 0:
            os.chmod(folder, 0o755)
            in_child(stranger)
        done = run_python(IN_A_USER_NAMESPACE, check=False, TENSORLEASE_SOCKET=address)
        if done.returncode == 77:
            pytest.skip("this user may not make a user namespace")
        assert done.returncode == 0, done.stderr


def test_the_stub_has_the_parameters_of_the_module():
    tree = ast.parse((PACKAGE / "torch.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    (init,) = [node for node in classes["CachedDataset"].body if getattr(node, "name", "") == "__init__"]
    assert set(shared.__all__) <= set(classes) | set(functions)
    for node, there in ((functions["load_model"], shared.load_model), (init, shared.CachedDataset.__init__)):
        stub = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
        assert stub == list(inspect.signature(there).parameters)


class Writing(Dataset):
    """Writes to what is read-only, in a worker, which has a handler of PyTorch's."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        with tensorlease.connect(autostart=False) as client:
            torch.from_numpy(client.get("torch/guess").numpy())[0] = 3


def explains(_):
    tensorlease.explain_faults()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_write_in_a_worker_of_a_dataloader_is_explained(client, capfd, method):
    client.put("torch/guess", np.arange(12, dtype="uint8"))
    loader = DataLoader(Writing(), num_workers=1, multiprocessing_context=method, worker_init_fn=explains)
    with pytest.raises(RuntimeError, match="exited unexpectedly|Segmentation fault"):
        list(loader)
    said = capfd.readouterr().err
    assert said.count("a write to tensor 'torch/guess'") == 1 and "segmentation fault" in said
    assert client.get("torch/guess").tolist() == list(range(12))


def test_asarray_is_refused_in_words(client):
    """It would take the bytes for float32. PyTorch drops the text of the error, and so there is a warning."""
    client.put("torch/guess", np.arange(12, dtype="uint8").reshape(3, 4))
    tensor = client.get("torch/guess")
    with pytest.warns(RuntimeWarning, match=r"tensor\.torch\(\)"), pytest.raises(RuntimeError):
        torch.asarray(tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises((RuntimeError, RuntimeWarning)):
            torch.asarray(tensor, dtype=torch.uint8)
    for make in (torch.as_tensor, torch.tensor, torch.from_dlpack):
        assert make(tensor).dtype is torch.uint8 and make(tensor).shape == (3, 4)


def test_frombuffer_is_told_the_type(client):
    client.put("torch/guess", np.arange(12, dtype="int16"))
    assert torch.frombuffer(client.get("torch/guess"), dtype=torch.int16).tolist() == list(range(12))


def test_others_are_not_taken_for_asarray(client):
    """Though this function names it, and an exception is being handled."""
    client.put("torch/guess", np.arange(12, dtype="int16"))
    tensor = client.get("torch/guess")
    with pytest.raises(TypeError):
        io.BytesIO(b"12").readinto(tensor)
    try:
        raise KeyError
    except KeyError:
        assert hashlib.sha256(tensor).digest() == hashlib.sha256(np.asarray(tensor)).digest()


def test_a_write_by_from_numpy_is_explained(client):
    client.put("torch/guess", np.arange(12, dtype="uint8"))
    code = """
import torch, tensorlease
tensorlease.explain_faults()
torch.from_numpy(tensorlease.connect(autostart=False).get("torch/guess").numpy())[0] = 3
"""
    result = run_python(code, check=False)
    assert result.returncode == -signal.SIGSEGV and "a write to tensor 'torch/guess'" in result.stderr
