# SPDX-License-Identifier: Apache-2.0
"""A process with tensorlease and none of the libraries. Each line of input is a JSON list: a command, arguments."""

import json
import sys

import tensorlease

import raw

client = tensorlease.connect(autostart=False)
held = {}
produced = {}


def read(name):
    with client.get(name) as tensor:
        return client.stat(name).dtype, tensor.shape, raw.plain(tensor).hex()


def hold(name):
    held[name] = client.get(name)


def look(name):
    """Returns the bytes of what hold() got, as they are now."""
    return raw.plain(held[name]).hex()


def drop(name):
    held.pop(name).release()


def produce(name, shape, dtype, payload):
    """Publishes a tensor and keeps its address for scribble()."""
    draft = client.create(name, shape, dtype)
    produced[name] = raw.Memory(draft)
    produced[name].fill(bytes.fromhex(payload))
    draft.commit()


def scribble(name, payload):
    """Writes to a published tensor. Nobody may do that, but a reader that sees it has taken no copy."""
    produced.pop(name).fill(bytes.fromhex(payload))


COMMANDS = {f.__name__: f for f in (read, hold, look, drop, produce, scribble)}

for line in sys.stdin:
    what, *arguments = json.loads(line)
    try:
        answer = ["ok", COMMANDS[what](*arguments)]
    except Exception as error:
        answer = ["error", repr(error)]
    print(json.dumps(answer), flush=True)
