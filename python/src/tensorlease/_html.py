# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of objects: HTML of at most 200 KB without scripts. Imported when the first is shown.

No function here raises for an object that was released or closed, or whose daemon is gone. Nothing is copied from a GPU.
"""

import base64
import html
import math
import struct
import time
import zlib

from ._tensor import size_text
from ._tuples import Identity, Info, StreamInfo, StreamMember

_ROWS = 100
_BYTES = 150_000  # of the rows of a table, or of a PNG in base64
_CELL = 300  # characters
_SIDE = 256  # pixels of a picture
_SAMPLE = 1024  # elements, each of which may be on a page of its own
_BINS = 32
_INFO = ("name", "version", "dtype", "shape", "nbytes", "committed_ns", "device", "uid", "publisher", "metadata")
# What a memoryview can be cast to; or the format of unsigned integers, as which they are read.
_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "H",
    "bfloat16": "H",
    "float32": "f",
    "float64": "d",
}


def _span(ns):
    seconds = ns / 1e9
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.1f} ms"


def _age(ns):
    return f"{_span(max(0, time.time_ns() - ns))} ago" if ns else ""


def _bytes_text(data):
    try:
        text = data.decode()
        if text.isprintable():
            return text
    except UnicodeDecodeError:
        pass
    return f"{len(data)} bytes: {data[:32].hex(' ')}{' …' if len(data) > 32 else ''}"


def _cell(field, value):
    """Return the HTML of a value, by the name of its field."""
    if value is None:
        text = ""
    elif isinstance(value, (bytes, bytearray)):
        text = _bytes_text(value)
    elif isinstance(value, Identity):
        text = f"{value.label} (pid {value.pid}{', gone' if value.gone else ''})"
    elif field in ("committed_ns", "created_ns", "started_ns", "since_ns"):
        text = _age(value)
    elif field.endswith("_ns"):
        text = _span(value)
    elif "bytes" in field or "capacity" in field:
        text = size_text(value)
    else:
        text = str(value)
    return html.escape(text if len(text) <= _CELL else f"{text[:_CELL]}…")


def title_html(text):
    """Return a line in bold."""
    return f"<div><b>{html.escape(text)}</b></div>"


def _properties(pairs):
    """Return a table with a row for each (name, value)."""
    rows = (
        f"<tr><th>{html.escape(name.removesuffix('_ns'))}</th><td>{_cell(name, value)}</td></tr>"
        for name, value in pairs
        if value not in (None, b"")
    )
    return f"<table>{''.join(rows)}</table>"


def rows_html(rows):
    """Return a table of named tuples of one kind: of the first of them, and how many more there are."""
    if not rows:
        return "<i>none</i>"
    fields = _INFO if isinstance(rows[0], Info) else rows[0]._fields
    head = "".join(f"<th>{html.escape(field.removesuffix('_ns'))}</th>" for field in fields)
    lines, left = [], _BYTES
    for row in rows[:_ROWS]:
        line = "".join(f"<td>{_cell(field, getattr(row, field))}</td>" for field in fields)
        left -= len(line.encode("utf-8", "replace"))
        if left < 0:
            break
        lines.append(f"<tr>{line}</tr>")
    more = len(rows) - len(lines)
    tail = f"<div>… and {more:,} more</div>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{tail}"


def status_html(status):
    return title_html("tensorlease.Status") + _properties(status._asdict().items())


def _failed(title, error):
    return title_html(title) + html.escape(f"{type(error).__name__}: {error}")


def client_html(client):
    title = "tensorlease.Client"
    if client.closed:
        return title_html(f"{title}, closed")
    try:
        status = client.status()
    except (OSError, ValueError) as error:
        return _failed(title, error)
    pairs = (
        ("address", status.address),
        ("namespace", client._place()[1] or None),
        ("label", client._label),
        ("tensors", f"{status.tensors:,}, and at most {status.max_tensors:,}"),
        ("memory", f"{size_text(status.bytes_used)} of {size_text(status.capacity)}"),
        ("clients", f"{status.clients:,}, and at most {status.max_clients:,}"),
        ("daemon_pid", status.daemon_pid),
        ("started_ns", status.started_ns),
    )
    return title_html(title) + _properties(pairs)


def stream_html(title, client, name):
    """Return the state of a stream, and who takes part in it."""
    try:
        info = StreamInfo._make(client._stream_info(name))
        members = [StreamMember._make(member) for member in client._members(name)]
    except (OSError, ValueError) as error:
        return _failed(title, error)
    return title_html(title) + _properties(info._asdict().items()) + rows_html(members)


# ---- Tensors --------------------------------------------------------------------------------------------------------


def tensor_html(tensor):
    """Return the properties of a Tensor, and a picture of its elements, if they are on the CPU and of a common type."""
    try:
        pairs = (
            ("version", tensor.version),
            ("dtype", tensor._dtype_word),
            ("shape", str(tensor.shape)),
            ("nbytes", tensor.nbytes),
            ("device", tensor.device),
            ("committed_ns", tensor.committed_ns),
            ("metadata", tensor.metadata),
        )
        title = "tensorlease.Tensor" if tensor.name is None else f"tensorlease.Tensor {tensor.name!r}"
        return title_html(title) + _properties(pairs) + _look(tensor)
    except (BufferError, ValueError):  # it was released, perhaps meanwhile
        return html.escape(repr(tensor))


def _look(tensor):
    if not tensor.device.startswith("cpu") or not tensor.size or tensor._dtype_word not in _FORMATS:
        return ""
    try:
        data = tensor.bytes()
    except ValueError:
        if tensor.released:
            raise
        return ""  # it is another library's, and not contiguous
    with data:
        if _is_picture(tensor):
            return _picture(data, tensor.shape)
        return _histogram(_sample(data, tensor._dtype_word), tensor.size)


def _is_picture(tensor):
    shape = tensor.shape
    if tensor._dtype_word != "uint8" or len(shape) not in (2, 3) or min(shape[:2]) < 8:
        return False
    return len(shape) == 2 or shape[2] in (1, 3, 4)


def _png(data, height, width, channels, step):
    """Return a PNG of each step-th pixel of each step-th row."""
    wide, lines = -(-width // step), []
    for y in range(0, height, step):
        row = data[y * width * channels : (y + 1) * width * channels]
        line = bytearray(1 + wide * channels)  # the first is the filter: none
        for channel in range(channels):
            line[1 + channel :: channels] = row[channel :: step * channels]
        lines.append(line)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    kind = {1: 0, 3: 2, 4: 6}[channels]  # gray, RGB, RGB with alpha
    head = struct.pack(">IIBBBBB", wide, len(lines), 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(lines))) + chunk(b"IEND", b"")


def _picture(data, shape):
    height, width, channels = shape if len(shape) == 3 else (*shape, 1)
    step = -(-max(height, width) // _SIDE)
    while len(text := base64.b64encode(_png(data, height, width, channels, step))) > _BYTES:  # noise
        step += 1
    shown = min(width, _SIDE) if max(height, width) > 64 else width * (128 // max(height, width))
    return f'<img alt="" style="width: {shown}px; image-rendering: pixelated" src="data:image/png;base64,{text.decode()}">'


def _sample(data, word):
    """Return at most _SAMPLE elements, of places that are evenly far from each other."""
    values = data.cast(_FORMATS[word])
    step = -(-len(values) // _SAMPLE)
    values = values[:: step if step % 2 else step + 1].tolist()  # an odd step meets all columns of an even row
    if word == "float16":
        return struct.unpack(f"{len(values)}e", struct.pack(f"{len(values)}H", *values))
    if word == "bfloat16":
        return struct.unpack(f"{len(values)}f", struct.pack(f"{len(values)}I", *(value << 16 for value in values)))
    return values


def _histogram(values, size):
    """Return a drawing of how often which values come, and their extremes."""
    finite = [value for value in values if math.isfinite(value)]
    nan = sum(map(math.isnan, values))
    texts = []
    svg = ""
    if finite:
        low, high = min(finite), max(finite)
        mean = math.fsum(value / len(finite) for value in finite)
        texts += [f"min {low:.6g}", f"mean {mean:.6g}", f"max {high:.6g}"]
        svg = _bars(finite, low, high)
    if nan:
        texts.append(f"NaN {nan:,}")
    if len(values) > len(finite) + nan:
        texts.append(f"inf {len(values) - len(finite) - nan:,}")
    of = "" if len(values) == size else f" (of {len(values):,} of {size:,} elements)"
    return f"{svg}<div>{', '.join(texts)}{of}</div>"


def _bars(values, low, high):
    half = 0.5 if math.isinf(float(high) - float(low)) else 1
    span = high * half - low * half
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int((value * half - low * half) / span * _BINS)) if span else _BINS // 2] += 1
    most = max(counts)
    bars = "".join(
        f'<rect x="{8 * i}" y="{60 - 60 * count / most:.1f}" width="7" height="{60 * count / most:.1f}"/>'
        for i, count in enumerate(counts)
        if count
    )
    return f'<svg width="{8 * _BINS}" height="60" fill="currentColor" opacity="0.6">{bars}</svg>'
