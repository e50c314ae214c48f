# SPDX-License-Identifier: Apache-2.0
"""How programs use the package, for type checkers: `make check-types` reads it, and nothing runs it.

What must be an error has an ignore comment, and it is an error if such a comment is not needed.
"""

import array
import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import tensorlease
from tensorlease import Client, Draft, Info, Loaded, Published, Ref, Tensor


class Frame:
    """An array of a library that has DLPack."""

    def __dlpack__(self) -> object: ...


def connects() -> Client:
    with tensorlease.connect(timeout=2) as client:
        assert_type(client, Client)
        assert_type(client.closed, bool)
    return tensorlease.connect(Path("/run/tensorlease/socket"), namespace="lab", autostart=False)


def publishes(client: Client) -> None:
    values = array.array("f", [1.0, 2.0])
    assert_type(client.put("a", values), int)
    assert_type(client.put("a", Frame(), metadata=b"t", ttl=math.inf), int)
    assert_type(client.put("a", b"bytes", wait=False), int | None)
    assert_type(client.put("a", values, ring="auto"), int)
    assert_type(client.put("a", values, ring=8, wait=False), int | None)
    assert_type(client.create("a", 3, "float32", ring=False), Draft)
    assert_type(client.publish("a", Frame(), sealed=True), Published)
    client.put_many({"a": values, "b": values}, prefix="model/", metadata={"a": b"x", "b": None})
    assert_type(client.put("a", [[1, 2], [3, 4]], metadata={"step": 7}), int)
    client.put_many({"a": 3.5, "b": range(4)}, prefix="model/", metadata={"a": {"step": 7}, "b": "text"})
    client["a"] = values
    with client.create("a", (2, 3), "float32", device="cuda:0") as draft:
        assert_type(draft, Draft)
        draft[:] = 0
        draft.stream = 1
    assert_type(draft.commit(metadata=memoryview(b"x")), int)
    assert_type(draft.commit(wait=False), int | None)
    assert_type(draft.version, int | None)
    if draft.state == "open":
        draft.abort()


def items(client: Client) -> None:
    stream = client.stream("s", "queue")
    draft = stream.draft((2, 3), "float32", device="cuda:0", metadata_size=8)
    assert_type(draft, tensorlease.ItemDraft)
    assert_type(draft.commit(metadata=b"x", stream=1), int)
    stream.draft({"a": (3, "uint8"), "b": ((2, 3), "float32", "cuda:0")}, device=None).abort()


def queues(client: Client) -> None:
    q: tensorlease.Queue[int] = tensorlease.Queue(8, name="q", client=client, mode="r", redeliver=True)
    q.put(3, timeout=1.5)
    try:
        q.put_nowait("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except tensorlease.Full:
        assert_type(q.get(False), int)
    q.task_done()
    assert_type((q.qsize(), q.empty()), tuple[int, bool])


def gets(client: Client) -> None:
    tensor = client.get("a", timeout=1, newer_than=3, mode="c")
    assert_type(tensor, Tensor)
    assert_type(client.get("a", default=None), Tensor | None)
    assert_type(client["a"], Tensor)
    assert_type(tensor.shape, tuple[int, ...])
    assert_type(tensor.version, int | None)
    assert_type(tensor.view("uint8"), Tensor)
    assert_type(float(tensor), float)
    with memoryview(tensor) as view:
        assert_type(view.nbytes, int)
    with tensor.copy_on_write() as own:
        assert_type(own, Tensor)
    layers = client.get_many(["a", "b"], timeout=None)
    assert_type(layers, dict[str, Tensor])
    for name in client:
        assert_type(name, str)
    assert_type(iter(client.watch("a")), tensorlease.Watch[Tensor])
    assert_type([t for t in client.watch("a", timeout=1)], list[Tensor])
    with client.watch(prefix="policy/", until_gone=True) as watch:
        assert_type([weights for weights in watch], list[dict[str, Tensor]])
        assert_type(watch.skipped, int)
    with client.events("policy/", new=True) as events:
        assert_type(events.poll(), tensorlease.Event | None)
        assert_type([event.version for event in events], list[int])
    ref = client.ref(tensor)
    assert_type(ref, Ref)
    assert_type(ref.get(), Tensor)


async def awaits(client: Client) -> None:
    assert_type(await client.aget("a", newer_than=1), Tensor)
    async for tensor in client.watch("a"):
        assert_type(tensor, Tensor)
    await asyncio.wait_for(client.aget("a"), 1)


def remembers(client: Client) -> None:
    assert_type(client.get_or_put("a", lambda: b"x", ttl=60, trust=[1000]), Tensor)
    client.get_or_put("a", lambda: b"x", trust="all")
    client.get_or_put("a", lambda: b"x", trust="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tensorlease.explain_faults()

    @tensorlease.cached("squares/")
    def squares(n: int, *, scale: float = 1.0) -> bytes:
        return bytes(n)

    assert_type(squares(3, scale=2), Tensor)
    squares.cache_clear()
    squares("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def looks(client: Client) -> Iterator[str]:
    info = client.stat("a")
    assert_type(info, Info)
    assert_type(client.list("a/"), list[Info])
    assert_type(client.status().capacity, int)
    assert_type([c.pid for c in client.clients()], list[int])
    loaded = client.load("model", ["a.safetensors", Path("b.safetensors")], progress=lambda done, total: None)
    assert_type(loaded, Loaded)
    assert_type(client.save("model", "model.npz", metadata={"by": "me"}), list[str])
    client.delete("a", missing_ok=True)
    del client["a"]
    for name, tensor in client.items("a"):
        assert_type((name, tensor), tuple[str, Tensor])
    assert_type(len(client), int)
    client.load("model", "a.npz", progress=True)
    yield from client.keys()


def fails(client: Client) -> Any:
    try:
        client.get("a")
    except tensorlease.NotFoundError as error:
        assert_type(error.errno, int | None)
    except (tensorlease.TimeoutError, tensorlease.DisconnectedError):
        raise
    tensor = client["a"]
    tensor.shape = (1,)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    tensor.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    client.closed = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    client.get("a", mode="w")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.put("a", {"b": 3})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.put("a", "text")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.publish_many({"a": 1}, metadata={"a": "x"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return tensor.numpy()
