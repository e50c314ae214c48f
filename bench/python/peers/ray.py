# SPDX-License-Identifier: Apache-2.0
"""Ray's object store: objects of any type with references, not names. The consumer is an actor.

put: ray.put() of an array. Ray chooses when it frees the values before. get: ray.get() of a reference that the actor
has, which gives an array over the store's memory; the end of the array releases it. transfer: call the actor with the
reference as an argument; the actor gets the array. stream: put() and get() of ray.util.queue.Queue, which is an actor
too.
"""

import os
import time

import ray
import ray.util.queue

from . import BaseConsumer, BaseProducer

CAPACITY = 3 << 30


PAUSE_S = 0.005  # until the actor waits


class Handle:
    """The actor, with the interface that worker.py expects of a consumer."""

    def __init__(self, consuming, queue):
        self.actor = ray.remote(num_cpus=0)(consuming).remote("ray", queue)

    def call(self, method, *arguments):
        return ray.get(getattr(self.actor, method).remote(*arguments))

    def transfer(self, producer, n):
        return [producer.transfer(self.actor) for _ in range(n)]

    def stream(self, offer, case, n):
        samples = []
        for _ in range(n):
            end = self.actor.take.remote(case)
            time.sleep(PAUSE_S)
            start = time.perf_counter_ns()
            offer()
            samples.append(ray.get(end) - start)
        return samples

    def stream_burst(self, offer, case, n):
        end = self.actor.take_many.remote(case, n)
        time.sleep(PAUSE_S)
        start = time.perf_counter_ns()
        for _ in range(n):
            offer()
        return (ray.get(end) - start) / n

    def close(self):
        self.call("close")
        ray.kill(self.actor)


class Producer(BaseProducer):
    version = f"Ray {ray.__version__}"

    def __init__(self, folder):
        ray.init(
            num_cpus=2,
            object_store_memory=CAPACITY,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=os.path.join(folder, "ray"),
        )

        self.queue = ray.util.queue.Queue(16, actor_options={"num_cpus": 0})

    def start_consumer(self, consuming):
        return Handle(consuming, self.queue)

    def resize(self, source):
        self.source = source
        self.kept = self.last = None
        self.kept = ray.put(source)
        return [self.kept]  # in a list, because Ray replaces an argument that is itself a reference by its value

    def puts(self):
        put, source = ray.put, self.source

        def put_it():
            self.last = put(source)

        return {"ray": (put_it, None)}

    def offers(self):
        return {"ray": lambda: self.queue.put(self.source)}

    def latest(self):
        return [self.last]

    def transfer(self, actor):
        start = time.perf_counter_ns()
        return ray.get(actor.receive.remote([self.kept])) - start

    def close(self):
        ray.shutdown()


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.ref, self.queue = None, address

    def resize(self, size, token):
        [self.ref] = token

    def gets(self):
        get, ref = ray.get, self.ref

        def get_it():
            get(ref)

        return {"ray": get_it}

    def takes(self):
        return {"ray": self.queue.get}

    def look(self, token):
        return ray.get(token[0])

    def receive(self, refs):
        ray.get(refs[0])
        return time.perf_counter_ns()
