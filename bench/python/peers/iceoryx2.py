# SPDX-License-Identifier: Apache-2.0
"""iceoryx2: publish and subscribe of slices of bytes, whose length is fixed here.

A sample can be received once. A subscriber that comes late, or asks again, gets nothing.

put: loan, copy, send. get: receive() a sample that waits in the subscriber's buffer, and make a memory view and an
array over it; the end of the array gives it back. transfer: send a loan and a notification to a consumer that sleeps in
the listener of an event. stream: loan, copy, send and notify, to a subscriber whose buffer may be full; then send()
tries again until it is not.
"""

import ctypes
import importlib.metadata
import os

import iceoryx2
import numpy

from . import BaseConsumer, BaseProducer

READY = 10  # samples that wait for the consumer
WAITING = 16  # of the stream
PUT, GET, TRANSFER, STREAM = "put", "get", "transfer", "stream"


def node(folder):
    config = iceoryx2.config.default()
    config.global_cfg.root_path = iceoryx2.Path.new(folder)
    # run.py finds the files that iceoryx2 leaves in /dev/shm by this prefix.
    config.global_cfg.prefix = iceoryx2.FileName.new(f"iox2_{os.path.basename(os.path.dirname(folder))}_")
    return iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)


def open_samples(node, name, buffered):
    builder = node.service_builder(iceoryx2.ServiceName.new(name)).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
    return builder.subscriber_max_buffer_size(buffered).open_or_create()


def open_event(node):
    return node.service_builder(iceoryx2.ServiceName.new("wake")).event().open_or_create()


def services(node, size):
    found = {n: open_samples(node, f"{n}/{size}", READY if n == GET else 2) for n in (PUT, GET, TRANSFER)}
    builder = node.service_builder(iceoryx2.ServiceName.new(f"{STREAM}/{size}"))
    builder = builder.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8]).subscriber_max_buffer_size(WAITING)
    return {**found, STREAM: builder.enable_safe_overflow(False).open_or_create()}


def array(sample):
    return numpy.frombuffer(sample.payload().as_memory_view(), "uint8")


class Producer(BaseProducer):
    version = f"iceoryx2 {importlib.metadata.version('iceoryx2')}"

    def __init__(self, folder):
        self.address = folder
        self.node = node(self.address)
        self.event = open_event(self.node)
        self.notifier = self.event.notifier_builder().create()
        self.publishers = {}

    def resize(self, source):
        self.source = source
        self.publishers = {}
        self.services = services(self.node, source.nbytes)
        for name, service in self.services.items():
            builder = service.publisher_builder().initial_max_slice_len(source.nbytes)
            if name == STREAM:
                builder = builder.backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
            self.publishers[name] = builder.create()

    def puts(self):
        loan, source, size = self.publishers[PUT].loan_slice_uninit, self.source, self.source.nbytes

        def put():
            sample = loan(size)
            numpy.frombuffer(sample.payload().as_memory_view(), "uint8")[:] = source
            sample.assume_init().send()

        return {"iceoryx2": (put, None)}

    def offers(self):
        loan, source, notify = self.publishers[STREAM].loan_slice_uninit, self.source, self.notifier.notify

        def offer():
            sample = loan(source.nbytes)
            numpy.frombuffer(sample.payload().as_memory_view(), "uint8")[:] = source
            sample.assume_init().send()
            notify()

        return {"iceoryx2": offer}

    def refill(self, n):
        for _ in range(n):
            self.publishers[GET].loan_slice_uninit(self.source.nbytes).assume_init().send()
        return n

    def before_send(self):
        self.loan = self.publishers[TRANSFER].loan_slice_uninit(self.source.nbytes)

    def send(self):
        self.loan.assume_init().send()
        self.notifier.notify()

    def close(self):
        del self.publishers, self.services, self.notifier, self.event, self.node


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.node = node(address)
        self.event = open_event(self.node)
        self.listener = self.event.listener_builder().create()
        self.subscribers = {}

    def resize(self, size, token):
        self.subscribers = {}
        self.services = services(self.node, size)
        for name, service in self.services.items():
            self.subscribers[name] = service.subscriber_builder().create()

    def gets(self):
        receive = self.subscribers[GET].receive

        def get():
            sample = receive()
            array(sample)

        return {"iceoryx2": get}

    def look(self, token):
        """Return the newest sample that waits. It is kept until there is a newer one."""
        sample = self.subscribers[PUT].receive()
        while sample:
            self.newest = array(sample).copy()
            sample = self.subscribers[PUT].receive()
        return self.newest

    def next(self, name):
        while not (sample := self.subscribers[name].receive()):
            self.listener.blocking_wait()
        return array(sample)

    def takes(self):
        return {"iceoryx2": lambda: self.next(STREAM)}

    def receive(self):
        self.next(TRANSFER)

    def close(self):
        del self.subscribers, self.services, self.listener, self.event, self.node
