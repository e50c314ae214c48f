# SPDX-License-Identifier: Apache-2.0
"""The load format "tensorlease"."""

import gc
import re
from types import SimpleNamespace

import pytest
from conftest import once_asleep

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tensorlease

VALUES = {"embedding.weight", "head.bias", "head.weight", "layers.0.weight", "layers.1.weight"}


@pytest.fixture
def load(version, address):
    """load(extra config) returns a model that the loader has filled."""
    import tensorlease_vllm
    from vllm.model_executor.model_loader import get_model_loader
    from worker import Model

    tensorlease_vllm.register()

    def load(config, model=None, quantization=None):
        loader = get_model_loader(SimpleNamespace(load_format="tensorlease", model_loader_extra_config=config))
        model = model or Model()
        loader.download_model(SimpleNamespace(quantization=quantization))
        loader.load_weights(model, SimpleNamespace(quantization=quantization))
        return model

    return load


@pytest.fixture
def state(version):
    """state(value) returns the weights of a model that has that value everywhere."""
    from worker import Model

    return lambda value: Model(value).state_dict()


@pytest.mark.parametrize("prefix", ["llama", "llama/"])
def test_weights_are_loaded(load, state, store, prefix):
    store.put_many(state(3), prefix="llama/")
    store.put_many(state(4), prefix="llama2/")
    assert load({"prefix": prefix}).values() == dict.fromkeys(VALUES, 3.0)
    assert not any(one.leases for one in store.clients())


def test_a_checkpoint_is_loaded(load, state, store, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    safetensors.save_file(state(5), tmp_path / "model.safetensors")
    store.load("llama", tmp_path / "model.safetensors")
    assert load({"prefix": "llama/", "namespace": "", "address": store.status().address}).values()["head.bias"] == 5


def test_weights_are_waited_for(load, state, store):
    thread = once_asleep(lambda: store.put_many(state(2), prefix="llama/"))
    assert load({"prefix": "llama/", "timeout": 60}).values()["head.bias"] == 2
    thread.join()


def test_no_weights_are_an_error(load, store):
    with pytest.raises(tensorlease.NotFoundError, match="llama/"):
        load({"prefix": "llama/"})


def test_no_daemon_is_an_error(load, tmp_path):
    with pytest.raises(tensorlease.NoDaemonError):
        load({"prefix": "llama/", "address": str(tmp_path / "none")})


def test_missing_weights_are_named(load, state, store):
    weights = state(1)
    del weights["layers.1.weight"], weights["head.bias"]
    store.put_many(weights, prefix="llama/")
    with pytest.raises(ValueError, match=r"^2 parameters .* below 'llama/', such as head.bias, layers.1.weight$"):
        load({"prefix": "llama/"})
    assert load({"prefix": "llama/"}, quantization="fp8").values()["head.weight"] == 1


def test_parameters_that_vllm_computes_may_be_missing(load, state, store):
    from worker import Model

    weights = state(1)
    del weights["head.bias"], weights["layers.0.weight"]
    store.put_many(weights, prefix="llama/")
    model = Model()
    model.head.quant_method = SimpleNamespace(process_weights_after_loading=None)
    model.layers[0].quant_method = SimpleNamespace(uses_meta_device=True)
    assert load({"prefix": "llama/"}, model).values()["layers.1.weight"] == 1


def test_a_model_that_does_not_tell_is_not_checked(load, state, store):
    from worker import Model

    class Silent(Model):
        def load_weights(self, weights):
            super().load_weights(weights)

    weights = state(1)
    del weights["head.bias"]
    store.put_many(weights, prefix="llama/")
    assert load({"prefix": "llama/"}, Silent()).values()["head.bias"] == 0


@pytest.mark.parametrize(
    ("name", "tensor", "error"),
    [
        ("head.bias", torch.zeros(7, dtype=torch.bfloat16), "head.bias is torch.bfloat16 (7,)"),
        ("head.bias", torch.zeros(6), "head.bias is torch.float32 (6,)"),
        ("other", torch.zeros(6), "other"),
    ],
)
def test_an_error_of_the_model_gives_the_leases_back(load, state, store, name, tensor, error):
    store.put_many({**state(1), name: tensor}, prefix="llama/")
    with pytest.raises((ValueError, KeyError), match=re.escape(error)) as raised:
        load({"prefix": "llama/"})
    held = sum(one.leases for one in store.clients())
    assert held <= 1 and raised.tb, "besides the one that the error's traceback may hold"
    del raised
    gc.collect()
    assert not any(one.leases for one in store.clients())


def test_a_model_may_keep_weights_for_later(load, state, store):
    from worker import Model

    class Keeping(Model):
        def load_weights(self, weights):
            self.kept = dict(weights)
            return set(self.kept)

    store.put_many(state(6), prefix="llama/")
    model = load({"prefix": "llama/"}, Keeping())
    store.delete(prefix="llama/")
    store.put_many(state(7), prefix="other/")
    assert {float(one.unique()) for one in model.kept.values()} == {6.0}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "is {}; it must have a prefix"),
        (None, "is None; it must have a prefix"),
        ({"prefix": ""}, "prefix is ''; it must be a text such as 'llama/'"),
        ({"prefix": "/"}, "prefix is '/'"),
        ({"prefix": 7}, "prefix is 7"),
        ({"prefix": "x", "timeout": "1"}, "timeout is '1'; it must be a number of seconds, 0 or more"),
        ({"prefix": "x", "timeout": -1}, "timeout is -1"),
        ({"prefix": "x", "timeout": True}, "timeout is True"),
        ({"prefix": "x", "timeout": float("nan")}, "timeout is nan"),
        ({"prefix": "x", "address": 7}, "address is 7; it must be the path of a socket"),
        ({"prefix": "x", "namespace": []}, "namespace is []; it must be the name of a namespace or null"),
        ({"prefix": "x", "prefx": 1}, "'prefx', which is 1, is unknown; there are prefix, address"),
    ],
)
def test_a_wrong_option_is_named(load, config, text):
    with pytest.raises(ValueError, match="load format 'tensorlease'") as raised:
        load(config)
    assert text in str(raised.value)
