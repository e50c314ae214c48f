# SPDX-License-Identifier: Apache-2.0
"""Tensors over topics, with a real daemon and real processes, and doubles of ROS's classes."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
from conftest import PACKAGE, eventually
from distributions import check_wheel
from limits import limit
from node import Node
from std_msgs.msg import UInt8MultiArray
from tensorlease_ros import TensorPublisher, TensorSubscription

import tensorlease

FRAME = (480, 640, 3)


@pytest.fixture
def store(client):
    """At the end nothing may be held or left."""
    yield client
    client.delete(prefix="", everything=True, missing_ok=True)
    eventually(lambda: (client.status().tensors, client.status().retired) == (0, 0))


def test_each_message_brings_its_own_tensor(store, address):
    node, got = Node(), []
    sent = []
    late = Node(lambda topic, message: sent.append((topic, message)))
    sender = tensorlease.connect(address)
    publisher = TensorPublisher(late, "/camera", client=sender, keep=limit(60))
    for n in range(3):
        publisher.publish(np.full(FRAME, n, "uint8"), metadata=b"%d" % n)
    assert [len(message.data) for _, message in sent] == [32] * 3
    assert publisher.name == "ros/camera" and store.get("ros/camera").numpy()[0, 0, 0] == 2
    both = [TensorSubscription(node, "/camera", got.append, client=store) for _ in range(2)]
    for topic, message in sent:  # long after the name means the last one
        node.deliver(topic, message)
    assert [int(t.metadata) for t in got] == [0, 0, 1, 1, 2, 2]
    assert all((t.numpy() == int(t.metadata)).all() and t.shape == FRAME for t in got)
    assert [one.missed for one in both] == [0, 0]
    for one in both:
        one.destroy()
    node.deliver(*sent[0])
    sender.close()
    assert len(got) == 6
    got.clear()


def test_what_has_gone_is_counted_and_said(address):
    node, got = Node(), []
    with tensorlease.connect(address) as receiver:
        subscription = TensorSubscription(node, "/camera", got.append, client=receiver)
        with tensorlease.connect(address) as sender:
            messages = []
            TensorPublisher(Node(lambda *both: messages.append(both)), "/camera", client=sender).publish(np.ones(3))
        receiver.delete("ros/camera")
        eventually(lambda: receiver.status().retired == 0)  # the sender's end ends what it has handed on
        node.deliver(*messages[0])
        assert subscription.missed == 1 and not got and "/camera: 1 tensors missed" in node.log[0]
        node.deliver("/camera", UInt8MultiArray(data=b"text"))
        assert "a message of 4 bytes; a TensorPublisher sends 32" in node.log[1]
        assert subscription.missed == 1


def _subscriber(address, pipe):
    client = tensorlease.connect(address)
    node = Node()
    TensorSubscription(node, "/camera", lambda t: pipe.send((int(t.metadata), int(t.numpy().sum()))), client=client)
    while True:
        node.deliver("/camera", UInt8MultiArray(data=pipe.recv()))


def test_subscribers_are_processes_and_one_is_killed(store, address):
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=_subscriber, args=(address, theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)

    def send(_, message):
        for process, pipe in zip(processes, pipes, strict=True):
            if process.is_alive():
                pipe.send(bytes(message.data))

    frame = np.zeros(FRAME, "uint8")
    with tensorlease.connect(address) as sender:
        publisher = TensorPublisher(Node(send), "/camera", client=sender, keep=limit(60))
        for n in range(20):
            frame[0, 0, 0] = n
            publisher.publish(frame, metadata=b"%d" % n)
            if n == 10:
                os.kill(processes[0].pid, signal.SIGKILL)
                processes[0].join()
        assert [pipes[1].recv() for _ in range(20)] == [(n, n) for n in range(20)]
    processes[1].terminate()
    processes[1].join()


def test_another_publisher_of_the_name_is_noticed(store):
    publisher = TensorPublisher(Node(), "/camera", client=store, name="cam")
    put = store.put
    publisher._client = type("", (), {"put": lambda _, *a, **k: put(*a, **k) - 1, "get": store.get})()
    with pytest.raises(RuntimeError, match="somebody else publishes 'cam'"):
        publisher.publish(np.ones(3))


def test_errors_of_put_are_raised(store):
    publisher = TensorPublisher(Node(), "/camera", client=store)
    with pytest.raises(tensorlease.InvalidError, match="metadata"):
        publisher.publish(np.ones(3), metadata=bytes(2000))
    with pytest.raises(ValueError, match="keep is 0"):
        TensorPublisher(Node(), "/camera", client=store, keep=0)


def test_it_connects_by_itself(address, monkeypatch):
    monkeypatch.setenv("TENSORLEASE_SOCKET", address)
    node, got = Node(), []
    publisher, subscription = TensorPublisher(node, "/a"), TensorSubscription(node, "/a", got.append, mode="c")
    publisher.publish(np.arange(4))
    (tensor,) = got
    tensor.numpy()[:] += 1
    assert tensor.numpy().tolist() == [1, 2, 3, 4]
    tensor.release()
    publisher._client.delete("ros/a")
    subscription.destroy()
    publisher.destroy()


def test_the_wheel(tmp_path):
    assert check_wheel(PACKAGE, tmp_path, "tensorlease-ros") == []
