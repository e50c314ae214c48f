# SPDX-License-Identifier: Apache-2.0
"""The peers, a module each, with two classes; worker.py calls them.

Producer(folder): starts what the peer needs, with its files in folder.
    version: of the package. address: what the consumer needs to get in touch.
    resize(source): from now on source is what is put; publishes it for gets(); returns what the consumer must know of it.
    puts(): {case: (op, after)}: op() puts source once and is timed, after() tidies up and is not; it may be None.
    latest(): what the consumer must know to look at what was put last.
    before_send(), send(), after_send(): one transfer to a consumer that waits; only send() is timed.
    refill(n), where a thing can be received but once: makes n of them ready.
    start_consumer(class), where the consumer is not to be a child process.
    close()
Consumer(address)
    resize(size, token)
    gets(): {case: op}: op() gets what resize() published and gives it back.
    look(token): bytes-like, what was put last.
    receive(): waits for one transfer, has it as an array, gives it back.
    close()
"""


class BaseProducer:
    version = ""
    address = None

    def puts(self):
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

    def close(self):
        pass
