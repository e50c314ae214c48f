# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of objects, and what makes the first minutes easy: names by Tab, numbers, texts as metadata."""

import base64
import gc
import html
import json
import os
import pickle
import re
import struct
import sys
import types
import zlib
from html.parser import HTMLParser

import pytest
from conftest import daemon_at, leases_of, run_python

import tensorlease
from tensorlease import _html

np = pytest.importorskip("numpy")

LIMIT = 200_000
EVIL = "notebook/<script>alert('&\"x\")</script>"


class Checked(HTMLParser):
    """Notes the tags, and that each is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag != "img":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def shown(thing):
    """What a notebook shows: small, well-formed, and without scripts."""
    text = thing._repr_html_()
    assert type(text) is str and len(text.encode()) <= LIMIT
    parser = Checked(text)
    assert not parser.open
    assert set(parser.tags) <= {"b", "div", "i", "img", "rect", "svg", "table", "tbody", "td", "th", "thead", "tr"}
    return text


def pixels_of(text):
    """Decodes the PNG, of lines without a filter. Returns an array of height, width and channels."""
    png = base64.b64decode(re.search(r"data:image/png;base64,([^\"]+)", text)[1])
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", png, at + 8 + size)[0]
        chunks[kind] = body
        at += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, bits, kind = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert bits == 8 and not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[kind])


def test_a_tensor_shows_what_it_is(client):
    client.put("notebook/a", np.arange(6, dtype="float32").reshape(2, 3), metadata="frame 7")
    text = shown(client.get("notebook/a"))
    for word in ("&#x27;notebook/a&#x27;", "<td>1</td>", "float32", "(2, 3)", "24 B", "cpu", " ago", "frame 7", "<svg"):
        assert word in text
    assert "min 0, mean 2.5, max 5<" in text


@pytest.mark.parametrize("shape", [(40, 30), (40, 30, 1), (40, 30, 3), (40, 30, 4), (700, 300), (300, 1000, 3), (9, 3000, 4)])
def test_a_picture_is_shown(client, shape):
    picture = (np.arange(np.prod(shape)) // 7 % 256).astype("uint8").reshape(shape)
    client.put("notebook/picture", picture)
    text = shown(client.get("notebook/picture"))
    pixels = pixels_of(text)
    step = -(-max(shape[:2]) // 256)
    assert max(pixels.shape[:2]) <= 256 and "<svg" not in text
    assert (pixels == picture.reshape(*shape[:2], -1)[::step, ::step]).all()


def test_a_picture_of_noise_is_small_too(client):
    picture = np.random.default_rng(1).integers(0, 256, (2048, 2048, 4)).astype("uint8")
    client.put("notebook/noise", picture)
    assert 100 < max(pixels_of(shown(client.get("notebook/noise"))).shape) < 256


@pytest.mark.parametrize("shape", [(7, 100), (100,), (20, 20, 2), (20, 20, 3, 1)])
def test_other_bytes_are_no_picture(client, shape):
    client.put("notebook/bytes", np.ones(shape, "uint8"))
    text = shown(client.get("notebook/bytes"))
    assert "<img" not in text and "min 1, mean 1, max 1" in text


@pytest.mark.parametrize(
    "dtype",
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split(),
)
def test_the_extremes_of_each_type(client, dtype):
    values = np.array([0, 1, 1, 0], dtype)
    if dtype.startswith("float"):
        values = np.array([-np.finfo(dtype).max, 0, 0, np.finfo(dtype).max], dtype)
    elif dtype != "bool":
        values = np.array([np.iinfo(dtype).min, 0, 0, np.iinfo(dtype).max], dtype)
    client.put("notebook/extremes", values)
    text = shown(client.get("notebook/extremes"))
    assert f"min {float(values.min()):.6g}, " in text and f"max {float(values.max()):.6g}<" in text
    assert text.count("<rect") in (2, 3)


def test_the_extremes_of_bfloat16(client):
    with client.create("notebook/bfloat16", 3, "bfloat16") as draft:
        draft.bytes().cast("H")[:] = memoryview(struct.pack("3H", 0x3F80, 0xC000, 0x7F80)).cast("H")  # 1, -2, inf
    assert "min -2, mean -0.5, max 1, inf 1<" in shown(client.get("notebook/bfloat16"))


@pytest.mark.parametrize("values", [[0.0, 5e-324], [-1.7e308, 1.7e308], [3.0], [-0.0, 0.0]])
def test_odd_numbers_have_a_histogram(client, values):
    client.put("notebook/odd", np.array(values))
    assert "<rect" in shown(client.get("notebook/odd"))


def test_what_is_not_finite_is_counted(client):
    client.put("notebook/nan", np.array([1, np.nan, np.inf, -np.inf, np.nan, 3], "float32"))
    assert "min 1, mean 2, max 3, NaN 2, inf 2<" in shown(client.get("notebook/nan"))
    client.put("notebook/nan", np.full(5, np.nan))
    text = shown(client.get("notebook/nan"))
    assert "NaN 5<" in text and "min" not in text


def test_of_a_large_tensor_a_sample_is_read(client, monkeypatch):
    values = np.zeros((1 << 12, 1 << 10), "float32")
    values[:, 5] = 1  # one column, which a step of the row's length would see always or never
    client.put("notebook/large", values)
    told = []
    monkeypatch.setattr(_html, "_histogram", lambda values, size: told.append((len(values), size, sum(values))) or "")
    shown(client.get("notebook/large"))
    ((count, size, ones),) = told
    assert size == 1 << 22 and 900 < count <= 1024 and 0 < ones < 20
    monkeypatch.undo()
    assert f"(of {count:,} of {size:,} elements)" in shown(client.get("notebook/large"))


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "float4_e2m1fn", "float32x4"])
def test_of_other_types_only_the_properties_are_shown(client, dtype):
    client.create("notebook/other", (4, 4), dtype).commit()
    text = shown(client.get("notebook/other"))
    assert dtype in text and "<svg" not in text and "<img" not in text


def test_an_empty_tensor_and_a_number_are_shown(client):
    client.put("notebook/empty", np.zeros((0, 3)))
    assert "(0, 3)" in shown(client.get("notebook/empty"))
    client.put("notebook/number", 3.5)
    assert "min 3.5, mean 3.5, max 3.5" in shown(client.get("notebook/number"))


def test_a_copy_on_write_tensor_shows_what_was_written_to_it(client):
    client.put("notebook/c", np.zeros(4))
    tensor = client.get("notebook/c", mode="c")
    tensor.numpy()[:] = 7
    assert "min 7, mean 7, max 7" in shown(tensor)


def test_a_tensor_that_was_released_says_so(client):
    client.put("notebook/released", np.zeros(4))
    tensor = client.get("notebook/released")
    tensor.release()
    assert shown(tensor) == "&lt;tensorlease.Tensor, released&gt;"


def test_showing_a_tensor_keeps_no_lease(client, observer):
    client.put("notebook/lease", np.zeros((64, 64), "uint8"))
    with client.get("notebook/lease") as tensor:
        shown(tensor)
    assert leases_of(observer, os.getpid()) == 0


def test_names_metadata_and_labels_are_escaped(address):
    with tensorlease.connect(label="<script>") as client:
        client.put(EVIL, np.zeros(3), metadata=EVIL)
        with client.stream(EVIL + "s", "queue") as stream, stream.subscribe() as subscription:
            things = (
                client.get(EVIL),
                client,
                client.list(),
                client.status(),
                client.clients(),
                client.streams(),
                stream,
                subscription,
            )
            for thing in things:
                text = shown(thing)  # which knows the tags
                assert "<script" not in text
            for thing in (client.get(EVIL), client.list("notebook")):
                assert shown(thing).count(html.escape(EVIL)) >= 1
        client.delete(EVIL)


def test_metadata_that_is_no_text_is_shown_as_bytes(client):
    client.put("notebook/bytes", [1], metadata=b"\xff\0<b>" * 100)
    assert "500 bytes: ff 00 3c 62 3e" in shown(client.get("notebook/bytes"))
    client.put("notebook/bytes", [1], metadata="<b>" * 341)
    assert shown(client.get("notebook/bytes")).count("&lt;b&gt;") == 100


def test_a_list_is_a_table(client):
    client.put("notebook/list/a", np.zeros((2, 3), "int16"), metadata={"step": 7})
    client.put("notebook/list/b", np.zeros(2048))
    listed = client.list("notebook/list")
    text = shown(listed)
    for word in ("notebook/list/a", "notebook/list/b", "int16", "(2, 3)", "12 B", "16.0 KiB", "step"):
        assert word in text
    assert isinstance(listed, list) and listed == [client.stat("notebook/list/a"), client.stat("notebook/list/b")]
    assert pickle.loads(pickle.dumps(listed)) == listed and repr(listed) == repr(list(listed))
    assert "none" in shown(client.list("notebook/nothing"))


@pytest.mark.parametrize("name", ["n", '"' * 255])
def test_a_long_list_is_cut(name):
    info = tensorlease.Info(name, 1, (1,) * 64, "int8", 1, 1, "cpu", 0, b"'" * 1024, None, False, False, False, None, 0)
    rows = type(tensorlease._client.Rows())([info] * 100_000)
    text = shown(rows)
    left = int(re.search("… and ([0-9,]+) more", text)[1].replace(",", ""))
    assert text.count("<tr>") == 1 + 100_000 - left and 10 < 100_000 - left <= 100


def test_a_client_and_the_status_are_shown(client):
    text = shown(client)
    assert client.status().address in text and "1.0 GiB" in text and "of " in text
    text = shown(client.status())
    for field in client.status()._fields:
        assert f"<th>{field.removesuffix('_ns')}</th>" in text
    assert client.status() == tuple(client.status())


def test_streams_are_shown(client):
    with client.stream("notebook/jobs", "queue", depth=5) as stream:
        with stream.subscribe() as subscription:
            stream.put(np.zeros(3))
            text = shown(stream)
            for word in ("Stream", "notebook/jobs", "queue", "<td>5</td>", "producer", "subscriber"):
                assert word in text
            assert "Subscription to &#x27;notebook/jobs&#x27;" in shown(subscription)
            assert "notebook/jobs" in shown(client.streams())
    client.delete("notebook/jobs")
    assert "NotFoundError" in shown(stream)


def test_what_is_closed_or_without_a_daemon_is_shown(tmp_path):
    where = str(tmp_path / "s")
    with daemon_at(where) as process:
        client = tensorlease.connect(where, autostart=False, timeout=0.2)
        stream = client.stream("s", "queue")
        other = tensorlease.connect(where)
        gone = other.stream("s", "queue")
        other.close()
        assert "closed" in shown(other) and "ValueError" in shown(gone)
        process.kill()
        process.wait()
        for thing in (client, stream):
            assert "DisconnectedError" in shown(thing) or "NoDaemonError" in shown(thing)
        client.close()


def test_numpy_is_not_needed_and_nothing_is_loaded_before_it_is_shown(address):
    code = """
import sys
sys.modules["numpy"] = None  # an import of it fails
import tensorlease
client = tensorlease.connect(autostart=False)
client.put("notebook/plain", b"abc", metadata="m")
assert "tensorlease._html" not in sys.modules and "html" not in sys.modules
for thing in (client, client.list(), client.status(), client["notebook/plain"]):
    assert thing._repr_html_()
try:
    client.put("notebook/plain", [1, 2])
except TypeError as error:
    print(error)
"""
    assert run_python(code).stdout == "'notebook/plain': 'list' is not an array, and NumPy, which makes one of it, is missing\n"


# ---- IPython --------------------------------------------------------------------------------------------------------


def test_ipython_shows_the_html(client):
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    formatter = formatters.HTMLFormatter()
    client.put("notebook/ipython", np.zeros((64, 64, 3), "uint8"))
    stream = client.stream("notebook/stream", "broadcast")
    for thing in (client, client["notebook/ipython"], client.list(), client.status(), stream, stream.subscribe()):
        assert formatter(thing)[:40] == thing._repr_html_()[:40]  # later the age differs
    client.delete("notebook/stream")


def test_ipython_completes_names(client, tmp_path, monkeypatch):
    completer = pytest.importorskip("IPython.core.completer", reason="IPython is not installed")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    client.put("notebook/tab/first", [1])
    client.put("notebook/tab/second", [1])
    line = 'client["notebook/tab/'
    with completer.provisionalcompleter():
        offered = list(completer.IPCompleter(namespace={"client": client}).completions(line, len(line)))
    assert sorted(line[: one.start] + one.text for one in offered) == [f"{line}first", f"{line}second"]


def test_at_most_1000_names_are_offered(client):
    client.put_many({f"{i:04}": b"x" for i in range(1001)}, prefix="notebook/keys")
    offered = client._ipython_key_completions_()
    assert len(offered) == 1000 and offered == client.keys()[:1000]
    client.delete(prefix="notebook/keys")


# ---- repr() ---------------------------------------------------------------------------------------------------------


def test_a_watch_says_what_it_watches(client, address):
    with client.watch("notebook/w") as watch:
        assert repr(watch) == f"<tensorlease.Watch of 'notebook/w' at {address}>"
    assert repr(watch) == f"<tensorlease.Watch of 'notebook/w' at {address}, closed>"
    assert repr(client.watch(prefix="p")) == f"<tensorlease.Watch of names below 'p/' at {address}>"
    assert repr(client.events("p")) == f"<tensorlease.Events of names below 'p/' at {address}>"
    events = client.events()
    assert repr(events) == f"<tensorlease.Events of all names at {address}>"
    client.close()
    assert repr(events) == f"<tensorlease.Events of all names at {address}, closed>"


def test_a_stream_says_its_name(client):
    with client.stream("notebook/named", "queue") as stream, stream.subscribe() as subscription:
        assert repr(stream) == "<tensorlease.Stream 'notebook/named'>"
        assert repr(subscription) == "<tensorlease.Subscription to 'notebook/named'>"
        stream.end()
        assert subscription.get() is None
        assert repr(subscription) == "<tensorlease.Subscription to 'notebook/named', ended>"


# ---- As a mapping ---------------------------------------------------------------------------------------------------


def test_a_client_has_a_length(client):
    client.delete(prefix="", everything=True, missing_ok=True)
    assert len(client) == 0 and client  # it is a client nevertheless
    client.put_many({"a": b"1", "b": b"2"})
    assert len(client) == 2 == len(list(client)) and len(dict(client)) == 2
    client.delete(prefix="", everything=True)


def test_items_hold_a_lease_while_they_are_used(client, observer):
    client.put_many({"a": b"1", "b": b"2", "c": b"3"}, prefix="notebook/items")
    client.put("notebook/other", b"4")
    items = client.items("notebook/items")
    assert isinstance(items, types.GeneratorType)
    name, tensor = next(items)
    assert (name, tensor.tolist()) == ("notebook/items/a", [49]) and leases_of(observer, os.getpid()) == 1
    del tensor
    gc.collect()
    assert leases_of(observer, os.getpid()) == 0  # the iterator keeps none
    client.delete("notebook/items/b")
    assert [(name, tensor.tolist()) for name, tensor in items] == [("notebook/items/c", [51])]
    assert {"notebook/items/a", "notebook/other"} <= {name for name, _ in client.items()}


# ---- Metadata -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("frame 7", b"frame 7"),
        ("größe", "größe".encode()),
        ("", b""),
        ({"step": 7, "who": "Ä", "at": [1.5, None, True]}, '{"step":7,"who":"Ä","at":[1.5,null,true]}'.encode()),
        ({}, b"{}"),
        (bytearray(b"x"), b"x"),
    ],
)
def test_metadata_may_be_text_or_a_dict(client, given, wanted):
    client.put("notebook/meta", [1], metadata=given)
    assert client["notebook/meta"].metadata == wanted == client.stat("notebook/meta").metadata
    client.publish("notebook/meta", [1], metadata=given)
    assert client["notebook/meta"].metadata == wanted
    client.create("notebook/meta", 1, "int8", metadata=given).commit()
    assert client["notebook/meta"].metadata == wanted
    client.create("notebook/meta", 1, "int8").commit(metadata=given)
    assert client["notebook/meta"].metadata == wanted
    with client.stream("notebook/metas", "queue") as stream, stream.subscribe() as subscription:
        stream.put([np.zeros(1)], metadata=given)
        assert subscription.get(1).metadata == wanted
        with stream.draft(1, "int8", metadata_size=100) as draft:
            draft.commit(metadata=given)
        assert subscription.get(1).metadata == wanted
    client.delete("notebook/metas")
    if isinstance(given, dict):
        assert json.loads(wanted) == given


def test_metadata_may_be_of_a_subclass(client):
    class Text(str):
        def encode(self, *_):
            return self

    client.put("notebook/meta", [1], metadata=Text("x"))
    assert client["notebook/meta"].metadata == b"x"


def test_metadata_of_many(client):
    client.put_many({"a": [1], "b": [2], "c": [3]}, prefix="notebook/many", metadata={"a": "text", "b": {"x": 1}})
    assert [t.metadata for t in client.get_many(prefix="notebook/many").values()] == [b"text", b'{"x":1}', b""]
    client.put_many({"a": [1], "b": [2]}, prefix="notebook/many", metadata="all")
    assert [client[f"notebook/many/{name}"].metadata for name in "ab"] == [b"all", b"all"]
    client.publish_many({"a": [1]}, prefix="notebook/many", metadata="text")
    assert client["notebook/many/a"].metadata == b"text"
    with pytest.raises(TypeError, match="metadata of publish_many"):
        client.publish_many({"a": [1]}, prefix="notebook/many", metadata={"a": "text"})


def test_metadata_has_the_limits_of_bytes(client):
    client.put("notebook/limit", [1], metadata="ä" * 512)
    client.put("notebook/limit", [1], metadata={"k": "x" * (1024 - len('{"k":""}'))})
    assert len(client["notebook/limit"].metadata) == 1024
    for given, size in (("ä" * 513, 1026), ({"k": "x" * 1024}, 1032)):
        with pytest.raises(tensorlease.InvalidError, match=rf"\] metadata: {size} bytes; the limit is 1024$"):
            client.put("notebook/limit", [1], metadata=given)
    with client.stream("notebook/limits", "broadcast") as stream, stream.subscribe() as subscription:
        for given in ("x" * 65536, b"y" * 65536):
            stream.put(np.zeros(1), metadata=given)
            assert len(subscription.get(1).metadata) == 65536
        with pytest.raises(tensorlease.InvalidError, match="metadata: 65537 bytes; the limit is 65536$"):
            stream.put(np.zeros(1), metadata="x" * 65537)
    client.delete("notebook/limits")


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"a": b"x"}, TypeError, "metadata is a dict that JSON has no text for: .*bytes"),
        ({"a": float("nan")}, ValueError, "metadata is a dict that JSON has no text for"),
        ({(1, 2): 3}, TypeError, "metadata is a dict that JSON has no text for: keys"),
        ("\ud800", ValueError, "metadata is not text: .*surrogates"),
        ({"a": "\ud800"}, ValueError, "metadata is not text: .*surrogates"),
        (7, TypeError, "metadata must be bytes, a str, a dict or None, not <class 'int'>"),
        ([1], TypeError, "metadata must be bytes, a str, a dict or None"),
    ],
)
def test_what_cannot_be_metadata_is_told(client, given, error, text):
    with pytest.raises(error, match=text):
        client.put("notebook/meta", [1], metadata=given)
    circle = {}
    circle["me"] = circle
    with pytest.raises(ValueError, match="metadata is a dict .*Circular"):
        client.put("notebook/meta", [1], metadata=circle)


# ---- Numbers and lists ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [3, 3.5, True, 2j, [1, 2, 3], [], (1.5, 2), [[1, 2], [3, 4]], range(5), [True, False], 2**63, [np.float32(1), np.float32(2)]],
)
def test_put_takes_numbers_as_numpy_does(client, value):
    wanted = np.asarray(value)
    client.put("notebook/values", value)
    client["notebook/values2"] = value
    assert client.publish("notebook/values3", value).copied
    client.put_many({"values4": value}, prefix="notebook")
    client.delete("notebook/made", missing_ok=True)
    client.get_or_put("notebook/made", lambda: value)
    for name in ("values", "values2", "values3", "values4", "made"):
        array = client[f"notebook/{name}"].numpy()
        assert array.dtype == wanted.dtype and array.shape == wanted.shape and (array == wanted).all()


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (["a", "b"], TypeError, "'list' does not become an array of numbers .* dtype <U1$"),
        ([1, "b"], TypeError, "'list' does not become an array of numbers"),
        ([b"a"], TypeError, "'list' does not become an array of numbers .* \\|S1$"),
        ([1, None], TypeError, "'list' does not become an array of numbers .* dtype object$"),
        ([{}], TypeError, "'list' does not become an array of numbers .* dtype object$"),
        (2**70, TypeError, "'int' does not become an array of numbers of at most 64 bits"),
        ([[1, 2], [3]], ValueError, "inhomogeneous"),
        ("text", TypeError, "a str is not an array"),
        ({1, 2}, TypeError, "'set' is not an array"),
        ({"a": 1}, TypeError, "'dict' is not an array: put_many"),
        (None, TypeError, "None is not an array"),
    ],
)
def test_what_holds_no_numbers_is_refused(client, value, error, text):
    for publish in (client.put, client.publish, lambda name, value: client.put_many({name: value})):
        with pytest.raises(error, match=f"'notebook/no': .*{text}"):
            publish("notebook/no", value)
    assert "notebook/no" not in client


def test_streams_take_numbers_where_they_are_one_array(client):
    with client.stream("notebook/numbers", "queue") as stream, stream.subscribe() as subscription:
        stream.put({"reward": 1.5, "actions": [1, 2]})
        with subscription.get(1) as item:
            assert float(item["reward"]) == 1.5 and item["actions"].tolist() == [1, 2]
        stream.put(7)
        with subscription.get(1) as item:
            assert int(item.tensor) == 7
        for several in ([1, 2], (np.zeros(1), 2.5), [[1, 2], [3]]):
            with pytest.raises(TypeError, match="a list is several arrays here"):
                stream.put(several)
        with pytest.raises(tensorlease.InvalidError):
            stream.put([])
    client.delete("notebook/numbers")


def test_nothing_is_gathered_into_a_list(client):
    client.put("notebook/row", [1, 2])
    with pytest.raises(TypeError, match="'list' is not an array"):
        client.gather(["notebook/row"], out=[[0, 0]])


# ---- Progress -------------------------------------------------------------------------------------------------------


def test_a_bar_shows_how_far_a_file_is(client, tmp_path, monkeypatch):
    bars = []

    class Bar:
        n, total = 0, None

        def __init__(self, **options):
            assert options["disable"] is None  # tqdm looks itself whether stderr is a terminal
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.closed = True

        def update(self, n):
            self.n += n

    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    auto = types.ModuleType("tqdm.auto")
    auto.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    client.put("notebook/file", np.zeros(1 << 20))
    client.save("notebook/file", tmp_path / "a.npy", progress=True)
    client.load("notebook/loaded", tmp_path / "a.npy", progress=True)
    assert [(bar.n, bar.total, bar.closed) for bar in bars] == [(8 << 20, 8 << 20, True)] * 2
    client.load("notebook/loaded", tmp_path / "a.npy")
    assert len(bars) == 2
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    client.load("notebook/loaded", tmp_path / "a.npy", progress=True)  # no bar without tqdm


def test_nothing_is_shown_when_stderr_is_a_pipe(address, tmp_path):
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    code = f"""
import tensorlease
client = tensorlease.connect(autostart=False)
client.put("notebook/piped", bytes(1 << 20))
client.save("notebook/piped", {str(tmp_path / "a.npy")!r}, progress=True)
client.load("notebook/piped", {str(tmp_path / "a.npy")!r}, progress=True)
"""
    assert run_python(code).stderr == ""
