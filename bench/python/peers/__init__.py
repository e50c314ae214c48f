# SPDX-License-Identifier: Apache-2.0
"""The peers: a module each, with two classes that worker.py calls.

Producer(folder): starts what the peer needs, with its files in folder.
    version: the version of the package. address: an address for the consumer.
    resize(source): makes source the value that is put, publishes it for gets(), and returns a token for the
        consumer's resize().
    puts(): {case: (op, after)}. op() puts source once and is timed; after(), which may be None, cleans up untimed.
    latest(): returns a token with which the consumer's look() finds the last value.
    before_send(), send(), after_send(): one transfer to a consumer that waits; only send() is timed.
    refill(n): makes n values ready, for peers whose values can be received only once.
    offers(): {case: op}. op() puts a copy of source into a queue, and waits if that is full.
    start_consumer(class): for peers whose consumer is not a child process.
    close()
Consumer(address)
    resize(size, token)
    gets(): {case: op}. op() gets the value that resize() published and gives it back.
    look(token): returns the value that was put last, as an object with the buffer protocol.
    takes(): {case: op}. op() waits for the next item of that queue, and returns it as an array.
    receive(): waits for one transfer, has it as an array, and gives it back.
    close()
"""

import contextlib
import socket
import subprocess
import time


def start_server(command, address, kind=socket.SOCK_STREAM):
    """Starts a peer's server, and returns it once it listens at the socket address, with sockets of that kind."""
    server, end = subprocess.Popen(command), time.monotonic() + 10
    while server.poll() is None and time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, kind) as link, contextlib.suppress(OSError):
            link.connect(address)
            return server
        time.sleep(0.005)
    server.kill()
    raise RuntimeError(f"{command[0]} did not start")


class BaseProducer:
    version = ""
    address = None

    def puts(self):
        return {}

    def offers(self):
        return {}

    def latest(self):
        return None

    def before_send(self):
        pass

    def after_send(self):
        pass

    def close(self):
        pass


class BaseConsumer:
    def resize(self, size, token):
        pass

    def gets(self):
        return {}

    def takes(self):
        return {}

    def close(self):
        pass
