# SPDX-License-Identifier: Apache-2.0
"""tensorlease.gymnasium: the observations that SubprocVecEnv and AsyncVectorEnv give, by name, and nothing left behind."""

import ast
import contextlib
import gc
import inspect
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE, daemon_at, eventually, replace_daemon
from limits import limit

gym = pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

import tensorlease
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor
from tensorlease.gymnasium import SharedVecEnv, SharedVectorEnv


@pytest.fixture(autouse=True)
def nothing_left(client):
    yield
    gc.collect()  # exceptions have what raised them
    eventually(lambda: not client.list())


SPACES = {
    "picture": spaces.Box(0, 255, (48, 64, 3), np.uint8),
    "numbers": spaces.Box(-1, 1, (5,), np.float32),
    "float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "large": spaces.Box(0, 255, (100, 1000, 3), np.uint8),
    "empty": spaces.Box(-1, 1, (0, 3), np.float32),
    "discrete": spaces.Discrete(7),
    "from 3": spaces.Discrete(7, start=3),
    "discretes": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(6),
    "dict": spaces.Dict({"achieved": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Box(0, 9, (9, 8), np.uint8)}),
    "tuple": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (30,), np.float32))),
}
NESTED = {
    "nested": spaces.Dict({"a": spaces.Dict({"b": SPACES["picture"]}), "c": SPACES["tuple"]}),
    "text": spaces.Text(9),
    "sequence": spaces.Sequence(SPACES["numbers"]),
    "odd name": spaces.Dict({"": spaces.Discrete(3), "a//b": SPACES["numbers"]}),
}


class Sampled(gym.Env):
    """Gives samples of a space. It writes all pictures into the same array, as emulators do."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, space, length=7, key=0):
        self.observation_space, self.action_space = space, spaces.Discrete(3)
        self.length, self.key, self.kept = length, key, None

    def observe(self):
        self.count += 1
        value = self.observation_space.sample()
        if isinstance(value, np.ndarray):
            if self.kept is None:
                self.kept = value.copy()
            self.kept[...] = value
            return self.kept
        return value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observe(), {"options": options, "seed": seed}

    def step(self, action):
        observation = self.observe()
        done = self.count > self.length + self.key
        truncated = done and bool(self.key % 2)
        reward = float(self.np_random.random() + action)
        return observation, reward, done and not truncated, truncated, {"key": self.key}

    def render(self):
        return np.full((4, 6, 3), self.key, np.uint8)

    def pid(self, more=0):
        return os.getpid() + more

    def break_down(self):
        raise ValueError("the arm is off")


class Make:
    """Makes an environment, and can be pickled."""

    def __init__(self, space, key=0, kind=Sampled):
        self.space, self.key, self.kind = space, key, kind

    def __call__(self):
        return self.kind(self.space, key=self.key)


def makers(space, count=3):
    return [Make(space, key) for key in range(count)]


def same(a, b):
    """Whether two results are equal, with the types of their arrays."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if a.dtype == object:
            return a.shape == b.shape and all(same(x, y) for x, y in zip(a.flat, b.flat, strict=True))
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def copied(observation):
    if isinstance(observation, dict):
        return {key: value.copy() for key, value in observation.items()}
    return tuple(value.copy() for value in observation) if isinstance(observation, tuple) else observation.copy()


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", SPACES)
def test_it_gives_what_subprocvecenv_gives(client, kind, copy):
    expected = SubprocVecEnv(makers(SPACES[kind]), "fork")
    got = SharedVecEnv(makers(SPACES[kind]), "fork", copy=copy, client=client)
    assert got.observation_space == expected.observation_space and got.num_envs == 3
    actions = np.random.default_rng(3)
    for vector in (expected, got):
        vector.seed(5)
        vector.set_options({"level": 1})
    seen = [(expected.reset(), got.reset())]
    assert same(*seen[0]) and same(expected.reset_infos, got.reset_infos)
    ends = 0
    for step in range(40):
        action = actions.integers(0, 3, 3)
        one, other = expected.step(action), got.step(action)
        assert same(one, other) and same(expected.reset_infos, got.reset_infos)
        ends += sum("terminal_observation" in info for info in other[3])
        if copy:
            assert all(same(*pair) for pair in seen)  # what was returned before stays as it was
            seen = [*seen[-5:], (copied(one[0]), other[0])]
        elif step > 1:
            assert same(*seen[-1])  # and with copy=False the last one
            seen = [(copied(one[0]), other[0])]
        else:
            seen = [(copied(one[0]), other[0])]
    assert ends > 6
    expected.close()
    got.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", [*SPACES, *NESTED])
def test_it_gives_what_asyncvectorenv_gives(client, kind, copy, mode):
    space = {**SPACES, **NESTED}[kind]
    expected = AsyncVectorEnv(makers(space), shared_memory=False, autoreset_mode=mode)
    with warnings.catch_warnings():
        if kind == "odd name":
            warnings.simplefilter("ignore")
        got = SharedVectorEnv(makers(space), copy=copy, client=client, autoreset_mode=mode)
        assert got.observation_space == expected.observation_space
        one, other = expected.reset(seed=5, options={"level": 1}), got.reset(seed=5, options={"level": 1})
        assert same(one, other)
        before = []
        for step in range(30):
            action = np.full(3, step % 3)
            if step == 20 and mode == "SameStep":
                mask = np.array([True, False, True])
                assert same(*(one.reset(seed=9, options={"reset_mask": mask}) for one in (expected, got)))
            one, other = expected.step(action), got.step(action)
            assert same(one, other)
            if copy and before:
                assert same(*before[-1])
            before.append((one[0], other[0]))
    assert same(expected.call("pid") != (), True) and len(set(got.call("pid"))) == 3
    expected.close()
    got.close()


def test_what_is_no_array_goes_over_the_pipe(client):
    class Words(Sampled):
        def observe(self):
            self.count += 1
            return np.array(["one", "two"])

    vector = SharedVecEnv([Make(SPACES["numbers"], kind=Words)] * 2, "fork", client=client)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vector.reset().tolist() == [["one", "two"]] * 2
    assert client.list() == []
    vector.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_its_methods_are_those_of_subprocvecenv(client, method):
    vector = SharedVecEnv(makers(SPACES["numbers"]), method, client=client)
    pids = vector.env_method("pid")
    assert pids == [process.pid for process in vector.processes]
    assert vector.env_method("pid", 1, indices=[2]) == [pids[2] + 1]
    assert vector.env_method("pid", more=2)[0] == pids[0] + 2
    vector.set_attr("length", 3, indices=1)
    assert vector.get_attr("length") == [7, 3, 7] and vector.get_attr("key", [1]) == [1]
    assert vector.has_attr("length") and not vector.has_attr("width")
    assert vector.env_is_wrapped(gym.Wrapper) == [False] * 3
    assert vector.render("rgb_array").shape == (8, 12, 3) and len(vector.get_images()) == 3
    assert vector.reset().shape == (3, 5)
    vector.step_async(np.zeros(3, int))
    vector.close()
    vector.close()
    assert not any(process.is_alive() for process in vector.processes)


def test_ppo_learns_the_same(client):
    from stable_baselines3 import PPO

    def rewards(kind, **more):
        vector = VecMonitor(kind([lambda: gym.make("CartPole-v1")] * 2, "fork", **more))
        model = PPO("MlpPolicy", vector, n_steps=32, batch_size=16, n_epochs=2, seed=3, device="cpu")
        model.learn(256)
        found = [episode["r"] for episode in model.ep_info_buffer]
        weights = [weight.detach().numpy().copy() for weight in model.policy.parameters()]
        vector.close()
        return found, weights

    expected = rewards(SubprocVecEnv)
    assert len(expected[0]) > 5
    assert same(rewards(SharedVecEnv, client=client), expected)
    assert same(rewards(SharedVecEnv, client=client, copy=False), expected)


@pytest.mark.parametrize("kind", ["picture", "dict"])
def test_a_viewer_sees_the_observations(client, observer, kind):
    vector = SharedVecEnv(makers(SPACES[kind]), "fork", name="robots/a", client=client)
    given = vector.reset()
    rings = None
    for _ in range(12):
        for i in range(3):
            if kind == "picture":
                with observer.get(f"robots/a/{i}") as tensor:
                    assert np.array_equal(tensor.numpy(), given[i])
                continue
            parts = observer.get_many(prefix=f"robots/a/{i}")
            assert parts.keys() == {"achieved", "b"}
            assert all(np.array_equal(tensor.numpy(), given[key][i]) for key, tensor in parts.items())
            assert len({tensor.metadata for tensor in parts.values()}) == 1
        given = vector.step(np.zeros(3, int))[0]
        if rings is None:
            rings = {info.name: info.ring for info in observer.list()}
    assert len(rings) == (3 if kind == "picture" else 6) and min(rings.values()) >= 3
    if kind == "picture":
        numbers = [int.from_bytes(observer.get(f"robots/a/{i}").metadata[8:], "little") for i in range(3)]
        assert numbers == [13, 13, 13]
        with observer.watch("robots/a/1", timeout=limit(60)) as watch:
            first = next(watch)
            given = vector.step(np.zeros(3, int))[0]
            second = next(watch)
        assert second.version == first.version + 1 and np.array_equal(second.numpy(), given[1])
        del first, second
    vector.close()


def test_a_viewer_that_keeps_all_does_not_hold_it_up(client, observer):
    vector = SharedVecEnv(makers(SPACES["large"], 1), "fork", name="slow", client=client)
    vector.reset()
    kept = []
    for _ in range(12):
        kept.append((observer.get("slow/0"), vector.step([0])[0]))
    tensors = [tensor.numpy() for tensor, _ in kept[1:]]
    assert all(np.array_equal(tensor, given[0]) for tensor, (_, given) in zip(tensors, kept, strict=False))
    vector.close()


# ---- Ends ----


@pytest.mark.parametrize(("method", "where"), [("fork", "before"), ("fork", "during"), ("spawn", "before")])
def test_a_killed_worker_is_named(client, method, where):
    vector = SharedVecEnv(makers(SPACES["picture"]), method, client=client)
    vector.reset()
    pid = vector.processes[1].pid
    if where == "before":
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=rf"environment 1 \(process {pid}\) was killed by SIGKILL"):
            vector.step(np.zeros(3, int))
    else:
        os.kill(pid, signal.SIGSTOP)
        vector.step_async(np.zeros(3, int))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=rf"environment 1 \(process {pid}\) was killed by SIGKILL"):
            vector.step_wait()
    vector.close()
    assert not any(process.is_alive() for process in vector.processes)


def test_a_killed_worker_of_the_other_interface_is_named(client):
    vector = SharedVectorEnv(makers(SPACES["picture"]), client=client)
    vector.reset()
    pid = vector.processes[2].pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"environment 2 \(process {pid}\) was killed by SIGKILL"):
        vector.step(np.zeros(3, int))
    vector.close()
    assert not any(process.is_alive() for process in vector.processes)


def test_what_an_environment_raises_is_told(client):
    vector = SharedVecEnv(makers(SPACES["numbers"]), "fork", client=client)
    vector.reset()
    with pytest.raises(RuntimeError, match=r"(?s)environment 1 .* raised ValueError: the arm is off.*in break_down"):
        vector.env_method("break_down", indices=1)
    with pytest.raises(RuntimeError, match=r"environment 1 .* has ended with exit status 1"):
        vector.step(np.zeros(3, int))
    vector.close()
    with pytest.raises(RuntimeError, match=r"(?s)environment 0 .* raised TypeError: "):
        SharedVecEnv([Make(SPACES["numbers"], kind=lambda space: None)], "fork", client=client)


def test_a_step_that_nobody_waited_for_is_left_out(client):
    vector = SharedVecEnv(makers(SPACES["numbers"]), "fork", client=client)
    vector.reset()
    vector.step_async(np.zeros(3, int))
    assert vector.get_attr("key") == [0, 1, 2]
    vector.close()


TRAINER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
sys.path.insert(0, sys.argv[1])
from test_gymnasium import SPACES, SharedVecEnv, SharedVectorEnv, makers

if __name__ == "__main__":
    method, how = sys.argv[2:]
    if method == "vector":
        vector = SharedVectorEnv(makers(SPACES["large"]), name="trainer")
    else:
        vector = SharedVecEnv(makers(SPACES["large"]), method, name="trainer")
    vector.reset()
    vector.step([0, 1, 2])
    print(*(process.pid for process in vector.processes), flush=True)
    if how == "ends":
        sys.exit()
    while True:
        vector.step([0, 1, 2])
"""


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# With spawn and forkserver each worker imports PyTorch, which takes seconds.
@pytest.mark.parametrize(
    ("method", "how"),
    [*((method, how) for method in ("fork", "vector") for how in ("killed", "interrupted", "ends"))]
    + [("spawn", "killed"), ("forkserver", "killed"), ("forkserver", "interrupted")],
)
def test_workers_end_with_the_trainer(client, tmp_path, method, how):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    command = [sys.executable, script, os.path.dirname(__file__), method, how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    trainer = subprocess.Popen(command, start_new_session=True, **pipes)
    try:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 3
        if how == "killed":
            assert len(client.list()) == 3
            trainer.kill()
        elif how == "interrupted":
            os.killpg(trainer.pid, signal.SIGINT)  # as a terminal does
        error = trainer.communicate(timeout=limit(60))[1]
    finally:
        trainer.kill()
        trainer.wait()
    assert trainer.returncode == {"killed": -signal.SIGKILL, "interrupted": -signal.SIGINT, "ends": 0}[how], error
    assert error.count("Traceback") == (how == "interrupted"), error
    eventually(lambda: not any(map(is_there, pids)))
    assert client.list() == []


# ---- The daemon ----


def test_it_goes_on_when_the_daemon_is_replaced(tmp_path):
    with daemon_at(tmp_path / "socket", more=["--keeper", "yes"]):
        with tensorlease.connect(tmp_path / "socket") as client:
            check_daemon(client, lambda: replace_daemon(client))


@pytest.mark.filterwarnings("ignore:an observation of environment")
def test_it_goes_on_when_the_daemon_has_begun_anew(tmp_path):
    with daemon_at(tmp_path / "socket") as first:
        with tensorlease.connect(tmp_path / "socket") as client:
            with contextlib.ExitStack() as stack:

                def replace():
                    first.kill()
                    first.wait()
                    for _ in range(3):
                        yield
                    stack.enter_context(daemon_at(tmp_path / "socket"))

                check_daemon(client, replace)


def check_daemon(client, replace):
    expected = SubprocVecEnv(makers(SPACES["picture"]), "fork")
    got = SharedVecEnv(makers(SPACES["picture"]), "fork", client=client)
    for vector in (expected, got):
        vector.seed(5)
    assert same(expected.reset(), got.reset())

    def step(count):
        for _ in range(count):
            assert same(*(vector.step(np.zeros(3, int)) for vector in (expected, got)))

    step(5)
    for _ in replace() or ():
        step(1)
    step(5)

    def is_published():
        step(1)
        return len(client.list(got.name)) == 3

    eventually(is_published)
    for vector in (expected, got):
        vector.close()
    assert client.list() == []


def test_it_works_without_space(tmp_path):
    with daemon_at(tmp_path / "socket", capacity="8M"), tensorlease.connect(tmp_path / "socket") as client:
        space = spaces.Box(0, 255, (3_000_000,), np.uint8)
        client.put("full", np.zeros(3_900_000, "uint8"))
        vector = SharedVecEnv(makers(space, 2), "fork", client=client)
        with pytest.warns(UserWarning, match=r"environment [01] .* goes over its pipe.*NoSpaceError"):
            given = vector.reset()
        assert given.shape == (2, 3_000_000)
        vector.close()


def test_the_same_name_twice(client):
    vectors = [SharedVecEnv(makers(SPACES["numbers"]), "fork", name="twice", client=client) for _ in range(2)]
    expected = SubprocVecEnv(makers(SPACES["numbers"]), "fork")
    for number, vector in enumerate([*vectors, expected]):
        vector.seed(min(number, 1))
        vector.reset()
    for vector in vectors:
        vector.step_async(np.zeros(3, int))
    for vector in vectors:
        for end in vector.remotes:
            end.poll(None)  # so that both have published
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vectors[0].step_wait()
        assert same(vectors[1].step_wait(), expected.step(np.zeros(3, int)))
    for vector in (*vectors, expected):
        vector.close()


def test_arguments():
    with pytest.raises(TypeError, match="name must be a str"):
        SharedVecEnv(makers(SPACES["numbers"]), "fork", name=3)
    with pytest.raises(TypeError, match="shared_memory"):
        SharedVectorEnv(makers(SPACES["numbers"]), shared_memory=True)


def test_the_stub_has_the_parameters_of_the_module():
    tree = ast.parse((PACKAGE / "gymnasium.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for kind in (SharedVecEnv, SharedVectorEnv):
        (init,) = [node for node in classes[kind.__name__].body if getattr(node, "name", "") == "__init__"]
        stub = [argument.arg for argument in init.args.args + init.args.kwonlyargs]
        stub += [init.args.kwarg.arg] if init.args.kwarg else []
        assert stub == list(inspect.signature(kind.__init__).parameters)


def test_the_example(client):
    example = Path(__file__).parent.parent / "examples" / "environments.py"
    command = [sys.executable, example, "--count", "2", "--steps", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(100))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "30 steps of 2 environments" in done.stdout and "saw 0" not in done.stdout
