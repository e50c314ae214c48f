# SPDX-License-Identifier: Apache-2.0
"""holder.py LIBRARY WAY MODE NAME COUNT: holds COUNT arrays of a library until its input ends, and exits with them."""

import sys

import tensorlease

from libraries import LIBRARIES

library, way, mode, name, count = sys.argv[1:]
adapter = next(one for one in LIBRARIES if one.name == library)()
client = tensorlease.connect(autostart=False)
take = adapter.ways[int(way)].take
arrays = [take(adapter, client.get(name, mode=mode)) for _ in range(int(count))]
ring = [take(adapter, client.get(name, mode=mode))]
ring.append(ring)
print("ready", flush=True)
sys.stdin.read()
