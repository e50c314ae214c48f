# SPDX-License-Identifier: Apache-2.0
"""Greenlets of gevent, after monkey.patch_all(), which only a new interpreter can call first of all."""

import pytest
from conftest import run_python

pytest.importorskip("gevent", reason="gevent is not installed")

BEGIN = """
from gevent import monkey; monkey.patch_all()
import threading, time
import gevent
import numpy as np, tensorlease
client = tensorlease.connect(autostart=False)
"""


def said_by(code):
    result = run_python(BEGIN + code, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_greenlets_wait_for_the_one_that_makes_it(client):
    code = """
calls = []
def make():
    calls.append(1)
    gevent.sleep(0.05)
    return np.arange(3)
greenlets = [gevent.spawn(client.get_or_put, "gevent/made", make) for i in range(5)]
gevent.joinall(greenlets, raise_error=True)
print(calls, {greenlet.value._address for greenlet in greenlets} == {client.get("gevent/made")._address})
"""
    assert said_by(code) == "[1] True\n"


def test_another_greenlet_takes_over_if_the_maker_fails_or_is_killed(client):
    code = """
begun = threading.Event()
def fails():
    begun.set()
    gevent.sleep(0.05)
    raise KeyError
def hangs():
    begun.set()
    gevent.sleep(1000)
for make in (fails, hangs):
    begun.clear()
    name = f"gevent/{make.__name__}"
    maker = gevent.spawn(client.get_or_put, name, make)
    begun.wait()
    waits = gevent.spawn(client.get_or_put, name, lambda: np.arange(3))
    killed = gevent.spawn(client.get_or_put, name, lambda: np.arange(4))
    gevent.sleep(0.02)
    killed.kill()
    if make is hangs:
        try:
            client.get_or_put(name, hangs, timeout=0.05)
        except tensorlease.TimeoutError:
            print("late")
        maker.kill()
    print(waits.get().tolist())
"""
    assert said_by(code) == "[0, 1, 2]\nlate\n[0, 1, 2]\n"


def test_other_greenlets_run_during_the_step_of_a_watch(client):
    code = """
def consume(iterator, n):
    return [next(iterator) for i in range(n)]
def newest():
    for frame in client.watch("gevent/frames", timeout=60):
        if frame.item() == 2:
            return frame
frames = gevent.spawn(newest)
sets = gevent.spawn(consume, client.watch("gevent/set/", timeout=60), 1)
events = gevent.spawn(consume, client.events("gevent/set/", timeout=60), 2)
late = gevent.spawn(consume, client.watch("gevent/nothing", timeout=0.05), 1)
for n in range(3):
    gevent.sleep(0.02)
    client.put("gevent/frames", np.array([n]))
client.put_many({"a": np.zeros(1), "b": np.ones(1)}, prefix="gevent/set/")
print(frames.get().item(), sorted(sets.get()[0]), sorted(event.name for event in events.get()))
try:
    late.get()
except tensorlease.TimeoutError:
    print("late")
"""
    assert said_by(code) == "2 ['a', 'b'] ['gevent/set/a', 'gevent/set/b']\nlate\n"


def test_a_get_waits_in_the_pool_of_threads(client):
    code = """
pool = gevent.get_hub().threadpool
waits = gevent.spawn(pool.apply, client.get, ("gevent/pool",), {"timeout": 60})
gevent.sleep(0.02)
client.put("gevent/pool", np.arange(3))
print(waits.get().tolist())
"""
    assert said_by(code) == "[0, 1, 2]\n"


def test_a_watch_that_another_greenlet_closes(client):
    code = """
watch = client.watch("gevent/closed")
waits = gevent.spawn(next, watch)
gevent.sleep(0.02)
watch.close()
try:
    waits.get()
except ValueError as error:
    print("closed" in str(error))
"""
    assert said_by(code) == "True\n"
