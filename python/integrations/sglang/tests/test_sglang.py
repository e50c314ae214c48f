# SPDX-License-Identifier: Apache-2.0
"""Updates and loads of a model through what SGLang's installed sources say and do."""

import ast
import base64
import importlib
import importlib.util
import inspect
import io
import json
import pickle
import sys
import threading
import tomllib
import types
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.reduction import ForkingPickler

import pytest
from conftest import PACKAGE

import tensorlease

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorlease_sglang

UPDATER = "model_executor/model_runner_components/weight_updater.py"


class Model(torch.nn.Module):
    def __init__(self, value=0.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, dtype=torch.bfloat16) for _ in range(2))
        for parameter in self.parameters():
            parameter.requires_grad_(False).fill_(value)

    def load_weights(self, weights):
        own = dict(self.named_parameters())
        for name, tensor in weights:
            own[name].copy_(tensor)

    def values(self):
        return {float(value) for one in self.parameters() for value in one.unique()}


class Engine:
    """SGLang's, as far as an update goes: one rank, whose calls run what is in the installed sources."""

    def __init__(self, source, loaders=(tensorlease_sglang.LOADER,)):
        common = source("utils/common.py")
        shared = {"pickle": pickle, "io": io, "torch": torch, "importlib": importlib, "pybase64": base64}
        shared["ForkingPickler"] = ForkingPickler
        self.serializer = common.take("_safe_load_torch_storage", "SafeUnpickler", "MultiprocessingSerializer", **shared)
        updater = source(UPDATER)
        self._update = updater.take(
            "_unwrap_tensor",
            "WeightUpdater.update_weights_from_tensor",
            torch=torch,
            LocalSerializedTensor=type("LocalSerializedTensor", (), {}),
            _unsupported_derived_weight_cache_error=lambda model: None,
            monkey_patch_torch_reductions=lambda: None,
            get_parallel=lambda: types.SimpleNamespace(tp_rank=0),
            dynamic_import=common.take("dynamic_import", importlib=importlib),
        )
        self.model, self.calls, self.before_load = Model(), [], lambda: None
        self._runner = types.SimpleNamespace(
            device="cpu",
            custom_weight_loaders=loaders,
            get_model=lambda: self.model,
            _assert_weight_cache_inactive=lambda call: None,
        )

    def begin_weight_update(self):
        self.calls.append("begin")
        return True, "Success"

    def load_serialized(self, pickled, load_format):
        self.calls.append("load")
        self.before_load()
        return self._update(self._runner, self.serializer.deserialize(pickled), load_format)

    def update_weights_from_tensor(self, named_tensors, load_format=None, flush_cache=True):
        return self.load_serialized(self.serializer.serialize(named_tensors), load_format)

    def end_weight_update(self):
        self.calls.append("end")
        return True, "Success"


@pytest.fixture
def engine(source):
    yield Engine(source)
    for client in tensorlease_sglang._clients.values():
        client.close()
    tensorlease_sglang._clients.clear()


def weights_of(value):
    return Model(value).named_parameters()


# ---- What SGLang's sources say ----


def test_the_sources_call_a_custom_loader_as_ours_is(source):
    updater = source(UPDATER)
    calls = [
        ast.unparse(node)
        for node in ast.walk(updater.node("WeightUpdater.update_weights_from_tensor"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "custom_loader"
    ]
    assert calls == ["custom_loader(self.get_model(), named_tensors)"]
    assert list(inspect.signature(tensorlease_sglang.load).parameters) == ["model", "named_tensors"]
    (field,) = (
        node
        for node in ast.walk(source("arg_groups/fields/model.py").tree)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "custom_weight_loader"
    )
    assert "Optional[List[str]]" in ast.unparse(field.annotation)


def test_engine_and_routes_take_what_we_send(source):
    engine = source("entrypoints/engine.py")
    for call in ("begin_weight_update", "update_weights_from_tensor", "end_weight_update"):
        ours = list(inspect.signature(getattr(tensorlease_sglang.HTTPServer, call)).parameters)
        assert engine.parameters(f"Engine.{call}")[: len(ours)] == ours
        assert f'@app.post("/{call}")' in source("entrypoints/http_server.py").text
    request = source("managers/io_struct.py").node("UpdateWeightsFromTensorReqInput")
    fields = {ast.unparse(one.target) for one in request.body if isinstance(one, ast.AnnAssign)}
    assert {"serialized_named_tensors", "load_format", "flush_cache"} <= fields


def test_the_loader_has_the_methods_that_the_sources_call(source):
    loader = source("model_loader/loader.py")
    assert loader.parameters("DefaultModelLoader.__init__") == ["self", "load_config"]
    assert loader.parameters("DefaultModelLoader._get_all_weights") == ["self", "model_config", "model"]
    assert "self._get_all_weights(model_config, model)" in ast.unparse(loader.node("DefaultModelLoader.load_model"))
    assert loader.parameters("get_model_loader") == ["load_config", "model_config"]
    # There are no other formats than SGLang's own, so ours is chosen by an option.
    assert "self.load_format = LoadFormat(load_format)" in source("configs/load_config.py").text


def test_sglang_finds_the_plugin_by_its_entry_point(source):
    (group,) = (
        ast.literal_eval(node.value)
        for node in source("plugins/__init__.py").tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GENERAL_PLUGINS_GROUP"
    )
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {group: {"tensorlease": "tensorlease_sglang:register"}}
    assert project["version"] == tensorlease.__version__


# ---- Updates ----


def test_each_update_gives_the_weights_of_the_trainer(engine, store, address):
    for value in (1.0, 2.0):
        tensorlease_sglang.send_weights(engine, "policy", weights_of(value))
        assert engine.model.values() == {value}
    assert engine.calls == ["begin", "load", "end"] * 2
    assert len(store.keys("policy")) == 4 and not any(one.leases for one in store.clients())


def test_over_http_too(engine, store, address):
    class Routes(BaseHTTPRequestHandler):
        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/update_weights_from_tensor":
                (pickled,) = content["serialized_named_tensors"]
                success, message = engine.load_serialized(base64.b64decode(pickled), content["load_format"])
            else:
                success, message = getattr(engine, self.path[1:])()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"success": success, "message": message}).encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Routes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        http = tensorlease_sglang.HTTPServer(f"http://127.0.0.1:{server.server_port}/")
        tensorlease_sglang.send_weights(http, "policy", weights_of(3.0), address=address)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert engine.model.values() == {3.0} and engine.calls == ["begin", "load", "end"]


@pytest.mark.parametrize(("how", "text"), [("delete", "are gone"), ("replace", "are not of this update")])
def test_other_weights_leave_the_model_as_it_was(how, text, engine, store, address):
    tensorlease_sglang.send_weights(engine, "policy", weights_of(1.0))

    def before_load():
        name = store.keys("policy")[-1]
        if how == "delete":
            store.delete(name)
        else:
            store.put(name, torch.zeros(4, dtype=torch.bfloat16))

    engine.before_load, engine.calls = before_load, []
    with pytest.raises(RuntimeError, match=text):
        tensorlease_sglang.send_weights(engine, "policy", weights_of(2.0))
    assert engine.model.values() == {1.0} and engine.calls == ["begin", "load", "end"]
    assert not any(one.leases for one in store.clients())


def test_tensors_of_somebody_else_are_refused(engine, store):
    with pytest.raises(ValueError, match="tensorlease_sglang.load got 2 tensors, such as 'a, b'.*send_weights"):
        tensorlease_sglang.load(engine.model, [("a", torch.zeros(1)), ("b", torch.zeros(1))])


def test_a_server_without_the_loader_is_an_error(source, store, address):
    with pytest.raises(NotImplementedError, match="Unknown load_format"):
        tensorlease_sglang.send_weights(Engine(source, loaders=()), "policy", weights_of(1.0))


def test_an_answer_that_says_no_is_an_error(engine, store, address):
    engine.begin_weight_update = lambda: (False, "a weight-update session is already open")
    with pytest.raises(RuntimeError, match=r"begin_weight_update\(\) failed: a weight-update session"):
        tensorlease_sglang.send_weights(engine, "policy", weights_of(1.0))


# ---- Loads ----


@pytest.fixture
def hooks(source, monkeypatch):
    """SGLang's own registry of hooks, and stand-ins for the loaders that these hooks and ours need."""
    path = source("plugins/hook_registry.py").path
    spec = importlib.util.spec_from_file_location("sglang.srt.plugins.hook_registry", path)
    registry = importlib.util.module_from_spec(spec)
    loader = types.ModuleType("sglang.srt.model_loader.loader")
    base = source("model_loader/loader.py").take(
        "BaseModelLoader", ABC=object, abstractmethod=lambda method: method
    )
    loader.BaseModelLoader = base
    loader.DefaultModelLoader = type("DefaultModelLoader", (base,), {})
    loader.get_model_loader = lambda load_config, model_config=None: loader.DefaultModelLoader(load_config)
    packages = {name: types.ModuleType(name) for name in ("sglang", "sglang.srt", "sglang.srt.plugins")}
    packages |= {"sglang.srt.model_loader": types.ModuleType("sglang.srt.model_loader")}
    packages |= {spec.name: registry, loader.__name__: loader}
    for name, module in packages.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(packages[parent], child, module)
    spec.loader.exec_module(registry)
    monkeypatch.delitem(sys.modules, "tensorlease_sglang.loader", raising=False)
    yield registry.HookRegistry
    sys.modules.pop("tensorlease_sglang.loader", None)


def loader_of(options):
    config = types.SimpleNamespace(model_loader_extra_config=options)
    return sys.modules["sglang.srt.model_loader.loader"].get_model_loader(config, model_config=None)


def test_a_server_starts_with_published_weights(hooks, store, address):
    tensorlease_sglang.register()
    hooks.apply_hooks()
    assert type(loader_of({})).__name__ == "DefaultModelLoader"
    store.put_many(dict(weights_of(5.0)), prefix="llama")
    loader, model = loader_of({"tensorlease": {"prefix": "llama/"}}), Model()
    assert isinstance(loader, sys.modules["sglang.srt.model_loader.loader"].DefaultModelLoader)
    model.load_weights(loader._get_all_weights(None, model))
    assert model.values() == {5.0}
    assert not any(one.leases for one in store.clients())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "must have a prefix"),
        ({"prefix": "/"}, "must have a prefix"),
        ({"prefix": "a", "wait": 3}, "'wait' is unknown"),
        ({"prefix": "a", "timeout": -1}, "timeout is -1; it must be a number"),
    ],
)
def test_wrong_options_are_named(options, text, hooks):
    tensorlease_sglang.register()
    hooks.apply_hooks()
    with pytest.raises(ValueError, match=text):
        loader_of({"tensorlease": options})
