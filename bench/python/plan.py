# SPDX-License-Identifier: Apache-2.0
"""The plan of a run: peers, operations and sizes, and the choice of --only among them."""

import collections

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]

Peer = collections.namedtuple("Peer", "name environment packages gets puts streams", defaults=([],))

# Plasma wants an old NumPy. Versions are fixed where another one would be something else.
PEERS = [
    Peer("floor", "main", ["numpy"], ["floor"], ["floor"], ["floor"]),
    Peer(
        "tensorlease",
        "main",
        ["numpy"],
        ["tensorlease", "tensorlease/numpy", "tensorlease/torch"],
        ["tensorlease", "tensorlease/no-ring"],
        ["tensorlease", "tensorlease/read-only", "tensorlease/stream", "tensorlease/handed"],
    ),
    Peer(
        "shared_memory",
        "main",
        ["numpy"],
        ["shared_memory/open", "shared_memory/opened"],
        ["shared_memory/new", "shared_memory/in-place"],
    ),
    Peer("multiprocessing", "main", ["numpy"], [], [], ["multiprocessing"]),
    Peer("faster_fifo", "main", ["numpy", "faster-fifo"], [], [], ["faster_fifo"]),
    Peer("plasma", "plasma", ["numpy<2", "pyarrow==11.0.0"], ["plasma"], ["plasma"]),
    Peer("iceoryx2", "main", ["numpy", "iceoryx2"], ["iceoryx2"], ["iceoryx2"], ["iceoryx2"]),
    Peer("torch", "main", ["numpy", "torch==2.13.0"], [], ["torch"], ["torch"]),
    Peer("ray", "main", ["numpy", "ray"], ["ray"], ["ray"], ["ray"]),
]

# For each operation: its title, the statistic that ratios compare, the sizes, the rounds with the ns per round and case
# (or the number of transfers, items or bursts), and the rounds again for --quick.
OPERATIONS = {
    "get": ("get + release", "median", SIZES, (15, 20e6), (3, 5e6)),
    "put": ("put", "median", SIZES, (15, 40e6), (3, 10e6)),
    "transfer": ("transfer to a sleeping consumer", "median", [4 << 10, 1 << 20, 64 << 20], (15, 20), (3, 5)),
    "stream": ("one item to a sleeping consumer", "median", SIZES[:4], (15, 20), (3, 20)),
    "stream-burst": ("an item of a burst", "median", SIZES[:4], (15, 2), (3, 2)),
    "get-busy": ("get + release, a busy thread", "mean", [4 << 10], (10, 200e6), (3, 100e6)),
}

BASES = ("floor", "tensorlease")  # the peers with which others are compared


def cases_of(peer, operation):
    if operation == "put":
        return peer.puts
    if operation == "transfer":
        return [peer.name] if peer.puts else []
    if operation in ("stream", "stream-burst"):
        return peer.streams
    if operation == "get-busy" and peer.name == "iceoryx2":
        return []  # its buffer cannot hold enough samples for a thread's turn of the GIL
    return peer.gets


def plan(only):
    """Return {(operation, size): {name of the peer: cases}}; floor and tensorlease are in every one."""
    chosen = {}
    for operation, (_, _, sizes, *_) in OPERATIONS.items():
        for size in sizes:
            cases = {
                peer.name: [
                    case
                    for case in cases_of(peer, operation)
                    if not only or only.search(f"{operation}/{size}/{case}") or case in BASES
                ]
                for peer in PEERS
            }
            if not only or any(only.search(f"{operation}/{size}/{c}") for some in cases.values() for c in some):
                chosen[operation, size] = cases
    return chosen
