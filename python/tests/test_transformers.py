# SPDX-License-Identifier: Apache-2.0
"""tensorlease.transformers: the answers of the models of transformers, in one memory for all workers of a server."""

import ast
import contextlib
import copy
import gc
import http.client
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import PACKAGE, end_child, eventually, in_child, leases_of, replace_daemon, start_child
from limits import limit

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tensorlease
from tensorlease.transformers import from_pretrained, newest, publish
from transformers import AutoModel, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)  # a child of fork() has none of the threads of OpenMP, and waits for them
ASKED = torch.tensor([[1, 5, 9, 2]])
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "eos_token_id": None,
}


@pytest.fixture(autouse=True)
def nothing_left(client):
    yield
    gc.collect()
    for name in client.keys():
        client.delete(name, missing_ok=True)
    eventually(lambda: client.status().retired == 0)


def save(folder, seed=0, kind=LlamaForCausalLM, config=None):
    torch.manual_seed(seed)
    kind(config or LlamaConfig(**TINY)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def tiny(tmp_path):
    return save(tmp_path / "tiny")


def generate(model, n=12):
    with torch.inference_mode():
        return model.generate(ASKED, max_new_tokens=n, do_sample=False, pad_token_id=0).tolist()


def double(model):
    """A merge, in the sense of this module."""
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(2)


def to_bfloat16(model):
    return model.to(torch.bfloat16)  # buffers too, unlike dtype=


CASES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**TINY)),
    "tied": (LlamaForCausalLM, LlamaConfig(**TINY, tie_word_embeddings=True)),
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=300, eos_token_id=None)),
    "dynamic": (
        LlamaForCausalLM,
        LlamaConfig(**TINY, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
    ),
}


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"prepare": to_bfloat16}, {"dtype": torch.float64}])
@pytest.mark.parametrize("case", CASES)
def test_a_model_is_that_of_transformers(case, options, client, observer, tmp_path):
    path = save(tmp_path / case, 0, *CASES[case])
    given = dict(options)
    prepare = given.pop("prepare", lambda model: model)
    plain = prepare(AutoModelForCausalLM.from_pretrained(path, **given))
    for _ in range(2):  # made here, and found
        model = from_pretrained(path, client=client, **options)
        assert type(model) is type(plain) and not model.training and newest(model) is model
        for kind in ("named_parameters", "named_buffers"):
            wanted, found = (dict(getattr(one, kind)()) for one in (plain, model))
            assert wanted.keys() == found.keys()
            assert all(torch.equal(wanted[name], found[name]) for name in wanted)
            assert all(wanted[name].dtype == found[name].dtype for name in wanted)
            assert not any(tensor.requires_grad for tensor in found.values())
        assert model.config.to_dict() == plain.config.to_dict()
        assert model.generation_config.to_dict() == plain.generation_config.to_dict()
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == (
            case in ("tied", "gpt2")
        )
        assert model.state_dict().keys() == plain.state_dict().keys()
        assert generate(model) == generate(plain)
        assert torch.equal(model(ASKED).logits, plain(ASKED).logits)
    assert leases_of(observer, os.getpid()) > 0
    model.save_pretrained(tmp_path / "again")
    assert generate(AutoModelForCausalLM.from_pretrained(tmp_path / "again")) == generate(plain)
    assert generate(copy.deepcopy(model)) == generate(plain)
    del model, found
    eventually(lambda: leases_of(observer, os.getpid()) == 0)


def test_no_process_sees_what_another_writes(client, tiny):
    model, other = (from_pretrained(tiny, client=client) for _ in range(2))
    before = generate(other)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(0)
    assert generate(other) == before and generate(from_pretrained(tiny, client=client)) == before


def test_the_attention_is_each_processs_own(client, tiny):
    sdpa, eager = (from_pretrained(tiny, client=client, attn_implementation=one) for one in ("sdpa", "eager"))
    assert (sdpa.config._attn_implementation, eager.config._attn_implementation) == ("sdpa", "eager")
    assert len({name.split("/")[2] for name in client.keys()}) == 1
    assert generate(eager) == generate(AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager"))


def test_conversions_have_names_of_their_own(client, tiny):
    plain = AutoModelForCausalLM.from_pretrained(tiny)
    expected = []
    for change in (None, double):
        if change:
            change(plain)
        expected.append(generate(plain))
    assert expected[0] != expected[1]
    assert [generate(from_pretrained(tiny, client=client, prepare=one)) for one in (None, double)] == expected
    from_pretrained(tiny, client=client, prepare=double, key="another")
    from_pretrained(tiny, client=client, dtype="bfloat16")
    from_pretrained(tiny, client=client, auto=AutoModel)
    assert len({name.split("/")[2] for name in client.keys()}) == 5
    save(tiny, 1)
    assert generate(from_pretrained(tiny, client=client)) == generate(AutoModelForCausalLM.from_pretrained(tiny))
    with pytest.raises(TypeError, match="prepare= needs key="):
        from_pretrained(tiny, client=client, prepare=lambda model: None)


def test_a_model_of_the_hub_is_named_by_its_commit(client, tmp_path):
    hub = tmp_path / "models--lab--tiny"
    (hub / "refs").mkdir(parents=True)
    for seed, commit in enumerate(("a" * 40, "b" * 40)):
        path = save(hub / "snapshots" / commit, seed)
        (hub / "refs" / "main").write_text(commit)
        model = from_pretrained("lab/tiny", cache_dir=tmp_path, client=client)
        assert generate(model) == generate(AutoModelForCausalLM.from_pretrained(path))
        assert from_pretrained("lab/tiny", cache_dir=str(tmp_path), token=False, client=client, name="named")
        client.delete(prefix="named")
    assert len({name.split("/")[2] for name in client.keys("transformers/tiny")}) == 2


def test_another_conversion_under_the_name_is_refused(client, tiny):
    from_pretrained(tiny, client=client, name="chat", dtype="bfloat16")
    with pytest.raises(ValueError, match="'chat' is there, but was made with dtype bfloat16, and not None") as caught:
        from_pretrained(tiny, client=client, name="chat")
    assert isinstance(caught.value, tensorlease.InvalidError)
    with pytest.raises(ValueError, match="was made with prepare None, and not test_transformers.double"):
        from_pretrained(tiny, client=client, name="chat/", dtype="bfloat16", prepare=double)
    save(tiny, 1)
    with pytest.raises(ValueError, match="was made with files "):
        from_pretrained(tiny, client=client, name="chat", dtype="bfloat16")


class Int8(torch.nn.Module):
    """A linear layer with weights of 8 bits, as plain tensors."""

    def __init__(self, out, into):
        super().__init__()
        self.register_buffer("weight", torch.zeros(out, into, dtype=torch.int8))
        self.register_buffer("scale", torch.zeros(out, 1))

    def forward(self, x):
        return x @ (self.weight * self.scale).T


def build_int8(config):
    model = LlamaForCausalLM(config)
    model.lm_head = Int8(config.vocab_size, config.hidden_size)
    return model


def quantize(model):
    weight = model.lm_head.weight.detach()
    model.lm_head = Int8(*weight.shape)
    model.lm_head.scale = weight.abs().amax(1, keepdim=True) / 127
    model.lm_head.weight = (weight / model.lm_head.scale).round().to(torch.int8)


def test_a_quantized_model(client, tiny):
    with pytest.raises(
        ValueError, match=r"'lm_head' of LlamaForCausalLM is a .*\.Int8, and a .*\.Linear when .* build="
    ):
        from_pretrained(tiny, client=client, prepare=quantize)
    assert not client.keys()
    model = from_pretrained(tiny, client=client, prepare=quantize, build=build_int8)
    assert model.lm_head.weight.dtype == torch.int8
    plain = AutoModelForCausalLM.from_pretrained(tiny)
    quantize(plain)
    assert generate(model) == generate(plain)


def packed(model):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def build_packed(config):
    with torch.device("cpu"):
        return packed(LlamaForCausalLM(config))


def as_subclass(model):
    class Other(torch.Tensor):
        pass

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().as_subclass(Other), requires_grad=False)


def hook(model):
    model.lm_head.register_forward_hook(lambda module, given, result: result * 2)


def resize(model):
    model.model.norm.weight = torch.nn.Parameter(torch.ones(1))


def keep_a_list(model):
    model.lm_head.scales = [torch.ones(3)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("prepare", "build", "says"),
    [
        (
            packed,
            None,
            r"the module 'model.layers.0.self_attn.q_proj' of .* is a torch.ao.nn.*dynamic.*Linear, and a torch",
        ),
        (packed, build_packed, "the module '.*_packed_params', a LinearPackedParams, keeps its weights packed"),
        (as_subclass, None, "lm_head.weight is a .*Other, and only plain tensors"),
        (hook, None, "'lm_head' of .*build="),
        (resize, None, r"model.norm.weight of shape \[1\], and its configuration makes a model with \[64\]"),
        (keep_a_list, None, "'lm_head' keeps tensors in 'scales'"),
        (lambda model: model.model.layers, None, "a ModuleList is no model of transformers"),
    ],
)
def test_what_cannot_be_shared_is_refused(prepare, build, says, client, tiny):
    with pytest.raises(ValueError, match=says):
        from_pretrained(tiny, client=client, prepare=prepare, build=build, key="bad")
    assert not client.keys()
    assert from_pretrained(tiny, client=client)  # the claim was given back


def test_a_model_that_changes_its_configuration(client, tiny):
    def grow(model):
        model.resize_token_embeddings(320)

    model = from_pretrained(tiny, client=client, prepare=grow, key="320")
    assert model.lm_head.weight.shape == (320, 64) == model.model.embed_tokens.weight.shape
    assert model.config.vocab_size == 320


def load_and_hold(path, **options):
    with tensorlease.connect(autostart=False) as client:
        assert generate(from_pretrained(path, client=client, **options))


def test_one_process_converts(client, tiny, tmp_path):
    log = tmp_path / "log"
    go = tmp_path / "go"

    def prepare(model):
        with open(log, "a") as file:
            file.write("converted\n")
        eventually(go.exists)

    children = [start_child(lambda: load_and_hold(tiny, prepare=prepare, key="slow")) for _ in range(4)]
    eventually(log.exists)
    go.touch()
    for child in children:
        end_child(child)
    assert log.read_text() == "converted\n"
    assert client.keys()  # which outlive the one that converted


def test_another_takes_over_from_a_killed_converter(client, tiny, tmp_path):
    def hang(model):
        (tmp_path / "hangs").touch()
        signal.pause()

    expected = generate(AutoModelForCausalLM.from_pretrained(tiny))
    child = start_child(lambda: load_and_hold(tiny, prepare=hang, key="one"))
    eventually((tmp_path / "hangs").exists)
    with pytest.raises(tensorlease.TimeoutError, match="has not done so within 0 s"):
        from_pretrained(tiny, client=client, prepare=double, key="one", timeout=None)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(from_pretrained(tiny, client=client, prepare=to_bfloat16, key="one"))
    )
    thread.start()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    thread.join()
    assert got[0].dtype == torch.bfloat16 and expected
    del got[:]


def test_a_converter_that_raises_gives_the_claim_back(client, tiny):
    def fail(model):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        from_pretrained(tiny, client=client, prepare=fail, key="one")
    in_child(lambda: load_and_hold(tiny, prepare=to_bfloat16, key="one", timeout=None))


def test_fork_after_load(client, tiny, tmp_path):
    model = from_pretrained(tiny, client=client, name="chat")
    old = generate(model)
    other = AutoModelForCausalLM.from_pretrained(save(tmp_path / "other", 1))
    new = generate(other)
    ready = tmp_path / "ready"

    def serve():
        assert generate(newest(model)) == old
        ready.touch()
        eventually(lambda: newest(model) is not model)
        return generate(newest(model)) == new and generate(model) == old

    child = start_child(serve)
    eventually(ready.exists)
    publish(other, "chat", client=client)
    end_child(child)
    assert generate(newest(model)) == new


def test_replaced(client, observer, tiny, tmp_path):
    others = [AutoModelForCausalLM.from_pretrained(save(tmp_path / f"{seed}", seed)) for seed in (1, 2)]
    first = model = from_pretrained(tiny, client=client, name="chat", dtype="bfloat16")
    for other in others:
        publish(other, "chat", client=client)
        last, model = model, newest(model)
        assert model is not last and newest(model) is model and newest(last) is model and newest(first) is model
        assert generate(model) == generate(other) and model.dtype == torch.float32
        assert generate(from_pretrained(tiny, client=client, name="chat")) == generate(
            other
        )  # a worker that starts later
    assert generate(first) == generate(from_pretrained(tiny, client=client, dtype="bfloat16"))
    del last, model
    gc.collect()
    assert generate(newest(first)) == generate(others[1])  # which nobody has held
    tied = GPT2LMHeadModel.from_pretrained(save(tmp_path / "gpt2", 0, *CASES["gpt2"]))
    publish(tied, "chat", client=client)
    assert generate(newest(first)) == generate(tied)
    assert not [name for name in client.keys("chat") if "q_proj" in name]
    model = newest(first)
    client.delete(prefix="chat")
    assert newest(model) is model is newest(first)
    with pytest.raises(TypeError, match="newest.. takes a model that"):
        newest(others[0])


def test_a_set_with_a_hole_is_made_anew(client, tiny):
    model = from_pretrained(tiny, client=client, name="chat")
    expected = generate(model)
    client.delete("chat/model.norm.weight")
    assert generate(from_pretrained(tiny, client=client, name="chat")) == expected
    client.delete("chat/model.norm.weight")
    client.delete("chat/.model")
    assert generate(from_pretrained(tiny, client=client, name="chat")) == expected
    assert generate(newest(model)) == expected


def test_a_restarted_daemon(client, tiny, tmp_path):
    address = str(tmp_path / "s")
    with tensorlease.connect(address, autostart=True) as own:
        model = from_pretrained(tiny, client=own, name="chat")
        expected = generate(model)
        replace_daemon(own)
        assert newest(model) is model and generate(model) == expected
        other = AutoModelForCausalLM.from_pretrained(save(tmp_path / "other", 1))
        publish(other, "chat", client=own)
        assert generate(newest(model)) == generate(other)
        own.delete(prefix="chat")


def test_threads_never_see_a_mixture(client, tiny, tmp_path):
    others = [AutoModelForCausalLM.from_pretrained(save(tmp_path / f"{seed}", seed)) for seed in (1, 2)]
    model = from_pretrained(tiny, client=client, name="chat")
    expected = [generate(one, 2) for one in (model, *others)]
    over, seen, wrong = threading.Event(), set(), []

    def serve():
        mine = model
        while not over.is_set():
            mine = newest(mine)
            found = generate(mine, 2)
            seen.add(str(found))
            if found not in expected:
                wrong.append(found)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(6):
        publish(others[i % 2], "chat", client=client)
        eventually(lambda i=i: str(expected[1 + i % 2]) in seen)
        seen.clear()
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_stub_has_the_parameters_of_the_module():
    tree = ast.parse((PACKAGE / "transformers.pyi").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert {node.name for node in functions} == set(tensorlease.transformers.__all__)
    for node in functions:
        stub = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
        stub += [node.args.kwarg.arg] if node.args.kwarg else []
        assert stub == list(inspect.signature(getattr(tensorlease.transformers, node.name)).parameters)


# ---- Real servers ----

APP = """
import gc, json, os, pathlib, sys, threading, time
import torch
import transformers
import tensorlease.transformers

FOLDER = pathlib.Path(os.environ["APP_FOLDER"])

def generate(model):
    with torch.inference_mode():
        return model.generate(torch.tensor([[1, 5, 9, 2]]), max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()

def memory():
    # Bytes of tensors here, each shared page divided among those that map it, and bytes that this process has alone.
    tensors, alone, inside = 0, 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            inside = len(words) > 5 and words[5].startswith("/dev/shm/tensorlease-")
        elif words[0] == "Pss:" and inside:
            tensors += int(words[1]) << 10
        elif words[0] == "Anonymous:" and not inside:
            alone += int(words[1]) << 10
    return tensors, alone

def load(path, plain):
    if plain:
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16")
    return tensorlease.transformers.from_pretrained(path, name=f"app/{pathlib.Path(path).name}", dtype="bfloat16")

torch.set_num_threads(1)
plain = "APP_PLAIN" in os.environ
generate(load(FOLDER / "tiny", plain))  # what a first request needs besides a model
gc.collect()
_, alone = memory()
began = time.perf_counter()
model = load(FOLDER / os.environ["APP_MODEL"], plain)
seconds = time.perf_counter() - began
gc.collect()
grown = memory()[1] - alone
parent = os.getpid()

def answer():
    global model
    if not plain:
        model = tensorlease.transformers.newest(model)
    mine = model
    said = {"tokens": generate(mine), "pid": os.getpid(), "preloaded": parent != os.getpid(), "seconds": seconds}
    return json.dumps({**said, "memory": memory()[0] + max(0, grown)}).encode()

def wsgi(environ, start_response):
    said = answer()
    start_response("200 OK", [("Content-Length", str(len(said)))])
    return [said]

async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            await send({"type": (await receive())["type"] + ".complete"})
    import asyncio
    said = await asyncio.to_thread(answer)
    headers = [(b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})
"""


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=limit(60))
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(limit(60))
        self.sock.connect(str(self.path))


def ask(path):
    with contextlib.closing(Connection(path)) as connection:
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())


SERVERS = {
    "gunicorn": ["gunicorn", "--workers={workers}", "--bind=unix:{path}", "--timeout=300", "app:wsgi"],
    "gthread": ["gunicorn", "--workers={workers}", "--threads=3", "--bind=unix:{path}", "--timeout=300", "app:wsgi"],
    "preload": ["gunicorn", "--workers={workers}", "--preload", "--bind=unix:{path}", "--timeout=300", "app:wsgi"],
    # By default it replaces a worker that does not answer for 5 seconds, as one that begins on a busy machine. One that is
    # killed while it is asked counts as one that does not answer. Each accepts all connections that wait, so that some
    # workers get none.
    "uvicorn": [
        "uvicorn", "--workers={workers}", "--uds={path}", "--timeout-worker-healthcheck=30", "--backlog=2", "app:asgi"
    ],
}


# What malloc() keeps for the next request is none of the model's.
RETURN_AT_ONCE = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@contextlib.contextmanager
def server(kind, folder, model, workers=4, **environment):
    pytest.importorskip(SERVERS[kind][0], reason=f"{SERVERS[kind][0]} is not installed")
    (folder / "app.py").write_text(APP)
    path = folder / f"{kind}.socket"
    command = [sys.executable, "-m", *(word.format(workers=workers, path=path) for word in SERVERS[kind])]
    environment = {
        **RETURN_AT_ONCE,
        "HOME": str(folder),
        "APP_FOLDER": str(folder),
        "APP_MODEL": model,
        "PYTHONPATH": str(folder),
        **environment,
    }
    with open(folder / f"{kind}.log", "w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            yield path
            process.terminate()
            process.wait(limit(60))
        except BaseException:
            print((folder / f"{kind}.log").read_text()[-4000:])
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            path.unlink(missing_ok=True)


def all_workers(path, workers=4):
    """Asks, several at once, until so many processes have answered, and returns the last answer of each."""
    found = {}

    def one():
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = ask(path)
            found[answer["pid"]] = answer

    def look():
        threads = [threading.Thread(target=one) for _ in range(2 * workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for pid in [pid for pid in found if not Path(f"/proc/{pid}").exists()]:
            del found[pid]  # of one that was killed
        return len(found) >= workers

    end = time.monotonic() + limit(240)  # each imports PyTorch first
    while not look():
        assert time.monotonic() < end, f"of {workers} workers only {len(found)} have answered in time"
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models of some 270 MB in bfloat16, and tiny ones."""
    folder = tmp_path_factory.mktemp("models")
    large = LlamaConfig(
        **{**TINY, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "vocab_size": 16000}
    )
    save(folder / "large", 0, LlamaForCausalLM, large)
    for seed, name in enumerate(("tiny", "a", "b", "c")):
        save(folder / name, seed)
    return folder


def expected_of(path):
    return generate(AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16"), 4)


@pytest.mark.parametrize("kind", ["gthread", "preload", "uvicorn"])
def test_the_memory_of_four_workers_is_that_of_one(kind, folder, client, capsys):
    nbytes = 2 * sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder / "large").parameters())
    expected = expected_of(folder / "large")
    used = {}
    for workers in (1, 4):
        with server(kind, folder, "large", workers) as path:
            all_workers(path, workers)
            answers = all_workers(path, workers).values()  # now that all share it
            assert all(answer["tokens"] == expected for answer in answers)
            used[workers] = sum(answer["memory"] for answer in answers)
            seconds = sorted(answer["seconds"] for answer in answers)
        if workers == 1:
            client.delete(prefix="app")
    with capsys.disabled():
        print(
            f"\n{kind}: a model of {nbytes >> 20} MiB; PSS for it of 1 worker {used[1] >> 20} MiB, of 4 workers "
            f"together {used[4] >> 20} MiB; seconds to load {', '.join(f'{s:.2f}' for s in seconds)}"
        )
    if kind != "preload":  # there it lies in the parent too, which does not answer
        assert used[1] > 0.95 * nbytes
    assert used[4] <= 1.1 * max(used[1], nbytes)
    eventually(lambda: not [one for one in client.clients() if one.pid != os.getpid()])


@pytest.mark.parametrize("kind", ["gunicorn", "gthread", "preload", "uvicorn"])
def test_a_server_whose_model_is_replaced(kind, folder, client):
    expected = {name: expected_of(folder / name) for name in "abc"}
    models = {name: AutoModelForCausalLM.from_pretrained(folder / name, dtype="bfloat16") for name in "abc"}
    over, seen, wrong = threading.Event(), set(), []

    def hammer():
        while not over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):  # of a worker that is killed
                found = ask(path)["tokens"]
                seen.add(str(found))
                if found not in expected.values():
                    wrong.append(found)

    with server(kind, folder, "a") as path:
        before = all_workers(path)
        assert all(
            one["tokens"] == expected["a"] and one["preloaded"] == (kind == "preload") for one in before.values()
        )
        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for name in "bcb":
                seen.clear()
                publish(models[name], "app/a", client=client)
                eventually(lambda name=name: str(expected[name]) in seen)
            os.kill(next(iter(before)), signal.SIGKILL)
            eventually(lambda: set(all_workers(path)) - set(before))  # another one has begun
            after = all_workers(path)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not wrong
        assert all(one["tokens"] == expected["b"] for one in after.values())
        if kind != "preload":  # whose parent keeps the first one
            eventually(lambda: all_workers(path) and client.status().retired == 0)
    eventually(lambda: not [one for one in client.clients() if one.pid != os.getpid()])
    eventually(lambda: client.status().retired == 0)
    client.delete(prefix="app")
    eventually(
        lambda: (
            (status := client.status()).tensors == 0 and status.retired == 0 and status.bytes_used == status.bytes_warm
        )
    )


def test_the_example(client, tmp_path):
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    example = Path(__file__).parent.parent / "examples" / "model_server.py"
    result = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, timeout=limit(280), cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stderr
    before, after, last = result.stdout.splitlines()
    assert before.split(maxsplit=1)[1] != after.split(maxsplit=1)[1]
    assert last == "2 workers have served a model that was replaced"
    assert not client.list()
