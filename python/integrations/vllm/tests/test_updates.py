# SPDX-License-Identifier: Apache-2.0
"""Updates of workers by a trainer: what a worker loads, and what is left when somebody fails or dies."""

import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from conftest import eventually, once_asleep
from limits import limit

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from control import Client, Process, source_of

ONLY_0_25 = pytest.mark.parametrize("version", ["0.25.1"], indirect=True)
ONLY_0_33 = pytest.mark.parametrize("version", ["0.33.0"], indirect=True)
ALL = [("0.25.1", True), ("0.33.0", True), ("0.33.0", False)]  # vLLM 0.25 has no place for keep=False
EACH_WAY = pytest.mark.parametrize(("version", "keep"), ALL, indirect=["version"])
NAMES = ["embedding.weight", "layers.0.weight", "layers.1.weight", "head.weight", "head.bias"]
CALLS = {
    "0.25.1": ["initialize", "finalize"],
    "0.33.0": ["initialize", "unchecked", "checked", "finalize"],
}


def all_are(value):
    return dict.fromkeys(NAMES, float(value))


@pytest.fixture
def trainer_of(version):
    """trainer_of(client, model) returns send(), which makes one update, as a trainer does it with that version."""
    engines = []

    def trainer_of(client, model, **options):
        options = {"prefix": "policy/", **options}
        if version == "0.33.0":
            engines.append(init_trainer(client, source_of(model), **options))
            return engines[-1].send_weights

        from dataclasses import asdict

        from tensorlease_vllm.engine import TensorleaseEngine

        assert options.pop("keep", True), "that interface has copies only"
        client.init_weight_transfer_engine({})

        def send():
            client.start_weight_update()
            arguments = {**options, "send_mode": lambda info: client.update_weights(asdict(info))}
            TensorleaseEngine.trainer_send_weights(model.named_parameters(), arguments)
            client.finish_weight_update()

        return send

    yield trainer_of
    for engine in engines:
        engine.shutdown()


def init_trainer(client, source, rank=0, **options):
    from tensorlease_vllm.trainer import TensorleaseTrainerInitInfo
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    info = TensorleaseTrainerInitInfo(rank=rank, **options)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


@pytest.fixture
def model(version):
    """The trainer's."""
    from worker import Model

    return Model(1.0)


def fill(model, value):
    for parameter in model.parameters():
        parameter.fill_(value)


# ---- Updates ----


@EACH_WAY
def test_all_workers_load_each_update(keep, version, store, start, trainer_of, model):
    workers = [start(), start()]
    send = trainer_of(Client(*workers), model, keep=keep)
    for value in (1, 2, 3):
        fill(model, value)
        send()
        for worker in workers:
            assert worker("values") == all_are(value)
            assert worker("calls") == CALLS[version]
    assert store.keys() == (sorted(f"policy/{name}" for name in NAMES) if keep else [])
    assert not any(one.leases for one in store.clients())


def test_parameters_with_gradients_and_of_any_strides_are_sent(store, start, trainer_of, model):
    model.head.weight.requires_grad_(True)
    model.layers[0].weight = torch.nn.Parameter(torch.full((4, 8), 1.0, dtype=torch.bfloat16)[:, ::2].t())
    worker = start()
    trainer_of(Client(worker), model)()
    assert worker("values") == all_are(1)


def test_a_restarted_worker_loads_the_newest_weights(store, start, trainer_of, model):
    send = trainer_of(Client(start()), model)
    for value in (1, 2):
        fill(model, value)
        send()
    late = start()
    late("load", {"prefix": "policy/"})
    assert late("values") == all_are(2)


def test_kept_weights_take_the_place_of_all_below_the_prefix(store, start, trainer_of, model):
    store.put_many({"policy/former": torch.zeros(4), "policy2/other": torch.zeros(4)})
    trainer_of(Client(start()), model)()
    assert "policy/former" not in store and "policy2/other" in store


@ONLY_0_33
def test_weights_in_place_are_beside_the_prefix_during_the_update(store, start, trainer_of, model):
    store.put_many({"head.bias": torch.zeros(6)}, prefix="policy/")
    client, seen = Client(start()), []
    client.before_update = lambda info: seen.append((info["prefix"], store.keys()))
    trainer_of(client, model, keep=False)()
    ((prefix, names),) = seen
    assert prefix.startswith("policy.") and set(names) == {*(prefix + name for name in NAMES), "policy/head.bias"}
    assert store.keys() == ["policy/head.bias"] and store.get("policy/head.bias").torch().max() == 0


def test_a_worker_can_be_initialised_again(store, start, trainer_of, model):
    worker = start()
    client = Client(worker)
    send = trainer_of(client, model)
    send()
    client.init_weight_transfer_engine({"address": store.status().address, "namespace": ""})
    fill(model, 2)
    send()
    assert worker("values") == all_are(2)
    worker("shutdown_weight_transfer_engine")
    with pytest.raises(RuntimeError, match="init_weight_transfer_engine comes first"):
        send()


# ---- What a worker refuses ----


def republish(store):
    return lambda info: store.put(info["prefix"] + "layers.1.weight", torch.zeros(4, 4, dtype=torch.bfloat16))


def take_one_away(store):
    return lambda info: store.delete(info["prefix"] + "layers.1.weight")


@pytest.mark.parametrize(
    ("happens", "text"),
    [
        (republish, "1 of 5 weights below 'policy/' are not of this update, such as 'layers.1.weight'"),
        (take_one_away, r"the weights of this update, below 'policy/', are gone \(.*layers.1.weight.*\): send"),
    ],
)
def test_a_worker_loads_what_the_trainer_published_or_nothing(happens, text, store, start, trainer_of, model):
    worker = start()
    client = Client(worker)
    send = trainer_of(client, model)
    client.before_update = happens(store)
    with pytest.raises(RuntimeError, match=text):
        send()
    assert worker("request") == all_are(0)
    client.before_update = lambda info: None
    send()
    assert worker("values") == all_are(1)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"dtype": torch.float32}, "embedding.weight is torch.float32"), ({"bias": 7}, r"head.bias is .*\(7,\)")],
)
@EACH_WAY
def test_errors_of_the_model_arrive(keep, change, text, store, start, trainer_of, model):
    if "dtype" in change:
        model.to(change["dtype"])
    else:
        model.head.bias = torch.nn.Parameter(torch.ones(change["bias"], dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match=text):
        trainer_of(Client(start()), model, keep=keep)()
    assert bool(store.keys()) is keep
    eventually(lambda: not any(one.leases for one in store.clients()))


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({"prefix": "p/", "names": [], "update": "1"}, r"names is \[\]; it must be a list of names"),
        ({"prefix": "p/", "names": "ab", "update": "1"}, "names is 'ab'"),
        ({"prefix": "p/", "names": [1], "update": "1"}, r"names is \[1\]"),
        ({"prefix": "p/", "names": ["a"], "update": 1}, "update is 1; it must be the text that the trainer attached"),
        ({"prefix": "p/", "names": ["a"]}, "update"),
    ],
)
def test_a_wrong_update_is_refused(info, text, store, start):
    worker = start()
    worker("init_weight_transfer_engine", {})
    worker("start_weight_update")
    with pytest.raises(RuntimeError, match=f"ValueError.*{text}"):
        worker("update_weights", info)
    assert worker("request") == all_are(0)


def test_wrong_init_infos_are_refused(store, start):
    worker = start()
    with pytest.raises(RuntimeError, match="ValueError: init_info: address is 7; it must be the path of a socket"):
        worker("init_weight_transfer_engine", {"address": 7})
    with pytest.raises(RuntimeError, match="ValueError.*other"):
        worker("init_weight_transfer_engine", {"other": 7})


# ---- Failures and deaths ----


@ONLY_0_33
@pytest.mark.parametrize("call", ["start_weight_update", "update_weights", "finish_weight_update"])
@pytest.mark.parametrize("keep", [True, False])
def test_an_error_of_the_control_plane_arrives(keep, call, store, start, trainer_of, model, monkeypatch):
    client = Client(start())
    send = trainer_of(client, model, keep=keep)

    def fail(*_):
        raise OSError("no route")

    monkeypatch.setattr(client, call, fail)
    with pytest.raises(OSError, match="no route"):
        send()
    assert bool(store.keys()) is keep


@ONLY_0_33
def test_an_error_of_the_first_call_disconnects(store, trainer_of, model):
    class Refusing(Client):
        def init_weight_transfer_engine(self, init_info):
            raise OSError("no route")

    before = len(store.clients())
    with pytest.raises(OSError, match="no route") as raised:
        trainer_of(Refusing(), model)
    eventually(lambda: len(store.clients()) == before)
    assert raised.tb, "it must not take its end to disconnect"


@EACH_WAY
def test_a_killed_worker_holds_nothing(keep, store, start, trainer_of, model):
    killed, other = start(), start()
    send = trainer_of(Client(killed, other), model, keep=keep)
    killed("hang")  # and is killed as soon as it does
    with pytest.raises(ConnectionError, match="the worker has ended"):
        send()
    assert other("values") == all_are(1)
    eventually(lambda: not any(one.leases for one in store.clients()))
    assert bool(store.keys()) is keep


@ONLY_0_33
@pytest.mark.parametrize("keep", [True, False])
def test_a_killed_trainer_leaves_whole_sets_only(keep, store, start, trainer_of, model):
    trainer = Process("stuck_trainer", keep)
    prefix = trainer.link.recv()
    assert store.keys() == sorted(prefix + name for name in NAMES)
    trainer.kill()
    if keep:
        late = start()
        late("load", {"prefix": "policy/"})
        assert late("values") == all_are(7)
    else:
        eventually(lambda: store.keys() == [])
    worker = start()
    trainer_of(Client(worker), model, keep=keep)()  # the next trainer goes on
    assert worker("values") == all_are(1)


@ONLY_0_33
def test_a_worker_that_a_dead_trainer_left_in_an_update_goes_on(store, start, trainer_of, model):
    worker = start()
    worker("start_weight_update")
    assert worker("request") == all_are(0)
    client = Client(worker)
    send = trainer_of(client, model)
    with pytest.raises(RuntimeError, match="an update is active"):
        send()
    client.finish_weight_update()
    assert worker("request") == all_are(0) and worker("calls") == []
    send()
    assert worker("request") == all_are(1)


def test_weights_may_come_in_parts(version, store, start, trainer_of, model):
    """The reload begins with the first part, and ends with the update."""
    worker = start()
    client = Client(worker)
    client.init_weight_transfer_engine({})
    client.start_weight_update()
    parts = [NAMES[:2], NAMES[2:]]
    for number, names in enumerate(parts):
        start_of = f"parts/{number}/"
        weights = {name: model.state_dict()[name] for name in names}
        store.put_many(weights, prefix=start_of, metadata=b"u")
        client.update_weights({"prefix": start_of, "names": names, "update": "u"})
    client.finish_weight_update()
    calls = worker("calls")
    assert (calls.count("initialize"), calls.count("finalize")) == (1, 1) and calls[0] == "initialize"
    assert worker("request") == all_are(1)


# ---- Ranks ----


@ONLY_0_33
def test_other_ranks_only_iterate(store, model):
    source = source_of(model)
    engine = init_trainer(None, source, rank=1, prefix="policy/")
    engine.send_weights()
    engine.shutdown()
    assert source.rounds == 1 and store.keys() == []


@ONLY_0_33
def test_rank_0_must_own_all(store, model):
    with pytest.raises(ValueError, match="rank 0 owns 0 of 5 parameters"):
        init_trainer(None, source_of(model, owners=(1,)), prefix="policy/")
    init_trainer(None, source_of(model, owners=(0,)), rank=1, prefix="policy/")


@ONLY_0_25
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_torch_distributed(rank, version, store, start, trainer_of, model, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    worker = start()
    trainer_of(Client(worker), model)()
    assert worker("values") == all_are(0 if rank else 1)


# ---- How a trainer with vLLM 0.25 reaches workers ----


def trainer_send_weights(model, **arguments):
    from tensorlease_vllm.engine import TensorleaseEngine

    TensorleaseEngine.trainer_send_weights(model.named_parameters(), {"prefix": "policy/", **arguments})


@ONLY_0_25
@pytest.mark.parametrize("status", [200, 500])
def test_by_http(status, version, store, start, model):
    worker, asked = start(), []
    worker("init_weight_transfer_engine", {})
    worker("start_weight_update")

    class Routes(BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(self.path)
            worker("update_weights", body["update_info"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Routes) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        if status == 200:
            trainer_send_weights(model, send_mode="http", url=url)
        else:
            with pytest.raises(OSError, match="500"):
                trainer_send_weights(model, send_mode="http", url=url)
        thread.join(limit(60))
    assert asked == ["/update_weights"] and worker("values") == all_are(1)


@ONLY_0_25
@pytest.mark.parametrize("many", [False, True])
def test_by_ray(many, version, store, start, model, monkeypatch):
    worker = start()
    worker("init_weight_transfer_engine", {})
    worker("start_weight_update")
    actor = SimpleNamespace(
        update_weights=SimpleNamespace(remote=lambda request: worker("update_weights", request["update_info"]))
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=list))
    trainer_send_weights(model, send_mode="ray", llm_handle=[actor] if many else actor)
    assert worker("values") == all_are(1)


@ONLY_0_25
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"send_mode": "http"}, "send_mode is 'http'; it must be 'http' with a url"),
        ({"send_mode": "ray"}, "send_mode is 'ray'"),
        ({"send_mode": "mail"}, "send_mode is 'mail'"),
        ({"send_mode": print, "prefix": ""}, "prefix is ''"),
    ],
)
def test_wrong_arguments_are_named(arguments, text, version, address, model):
    with pytest.raises(ValueError, match=f"trainer_args: {text}"):
        trainer_send_weights(model, **arguments)


# ---- Weights that are published in place ----


class InPlace:
    """A client that keeps what it is given until its last holder lets go, as tensorlease's does on a GPU."""

    def __init__(self):
        self.held = None

    def publish_many(self, arrays, **_):
        self.held = [array.__dlpack__(max_version=(1, 0)) for array in arrays.values()]

    def delete(self, **_):
        pass

    def let_go(self):
        self.held.clear()


@pytest.mark.parametrize("timeout", [60, math.inf])
def test_weights_in_place_are_waited_for(timeout, version, model):
    from tensorlease._weights import published

    client = InPlace()
    with published(client, "policy", model.named_parameters(), keep=False, timeout=timeout):
        thread = once_asleep(client.let_go)
    assert client.held == []
    thread.join()


def test_weights_in_place_that_stay_held_are_an_error(version, model):
    from tensorlease._weights import published

    client = InPlace()
    text = r"4 of 5 weights, published in place below 'policy\.\w{16}/', are still held after 0 s"
    with pytest.raises(TimeoutError, match=text):
        with published(client, "policy/", model.named_parameters(), keep=False, timeout=0):
            client.held.pop()


# ---- Devices ----


@pytest.mark.parametrize(("device", "waits"), [("cuda:1", ["cuda:1"]), ("cpu", [])])
def test_leases_end_when_the_device_has_read_the_weights(device, waits, version, monkeypatch):
    from tensorlease._weights import leased

    seen = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: seen.append(str(device)))
    tensor = SimpleNamespace(torch=lambda: None, release=lambda: seen.append("release"))
    with pytest.raises(ZeroDivisionError), leased({"a": tensor, "b": tensor}, torch.device(device)) as weights:
        assert next(weights) == ("a", None) and not seen
        1 / 0  # noqa: B018
    assert seen == [*waits, "release", "release"]
