# SPDX-License-Identifier: Apache-2.0
"""Samples of a dataset as bytes, and batches of them.

A sample is a tree of dicts, lists and tuples. Its layout is that tree as JSON, with the dtypes and shapes of the leaves
but not their values. Leaves whose values have as many bytes in all samples of the layout are fixed: tensors, arrays and
numbers. Texts and bytes vary. Samples of one layout can lie beside each other, each leaf in a column of its own, and
then a batch of them is made without making one of them.
"""

import functools
import importlib
import json
import math
import struct
import sys

import numpy
import torch
from torch.utils.data import default_collate, get_worker_info

from ._tensor import Tensor

ALIGN = 64
_INT, _FLOAT = struct.Struct("<q"), struct.Struct("<d")
_COLUMNS = {"i": (8, torch.int64), "f": (8, torch.float64), "b": (1, torch.bool)}  # kind: bytes, dtype of a batch
_VARYING = "IuyY"
# Bytes of a pixel, by the modes of PIL in which an image is its pixels and nothing else.
_IMAGE_BYTES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4, "YCbCr": 3, "LAB": 3, "HSV": 3, "I": 4, "F": 4}
_INNER = {"d": 1, "l": 1, "p": 1, "P": 3}  # kind: where its parts are


def _refuse(sample, instead):
    kind = type(sample)
    raise TypeError(f"a sample of {kind.__module__}.{kind.__qualname__} cannot be shared: {instead}")


# ---- From samples ----
#
# All functions take a list of samples that are to have one layout, and raise Unlike if theirs differ. A column is what a
# leaf is in all samples: a list of bytes, or an array with a row of bytes for each sample.


class Unlike(Exception):
    """The samples have more than one layout."""


def _only(values):
    """Return the value that all have."""
    first, *others = set(values)
    if others:
        raise Unlike
    return first


def _plain_tensor(sample):
    """Return the same elements on the CPU, dense and in their order in memory, without what bytes do not say."""
    if type(sample) is not torch.Tensor:
        _refuse(sample, "it would come back as a torch.Tensor; give sample.as_subclass(torch.Tensor), and wrap it again")
    if sample.requires_grad:
        _refuse(sample, "it has a gradient, and would come back without one; give sample.detach()")
    if sample.layout != torch.strided or sample.is_quantized:
        _refuse(sample, "it is sparse or quantized; to_dense() and dequantize() make tensors that can be")
    plain = sample.detach().resolve_conj().resolve_neg().cpu()
    return plain if plain.is_contiguous() else plain.clone()


def _flat_tensor(plain):
    """Return its elements in their order in memory."""
    return plain.view(-1) if plain.is_contiguous() else plain.as_strided((plain.numel(),), (1,))


def _describe_tensors(samples, fixed):
    plain = _plain_tensor(samples[0])
    if len(samples) > 1:
        _only((t.dtype, t.shape, t.layout, t.requires_grad, t.is_quantized, t.is_conj(), t.is_neg()) for t in samples)
        _only((t.stride(), t.device) for t in samples)
    described = ["t", str(plain.dtype).removeprefix("torch."), list(plain.shape)]
    if plain.numel() and plain.stride() != torch.empty(plain.shape, device="meta").stride():  # as channels_last
        described.append(list(plain.stride()))
    if not plain.numel():
        column = [b""] * len(samples)
    elif len(samples) == 1:
        column = [_flat_tensor(plain).view(torch.uint8).numpy()]
    else:
        if plain.data_ptr() != samples[0].data_ptr():  # else they are plain as they are
            samples = [_flat_tensor(_plain_tensor(one)) for one in samples]
        column = torch.stack(samples).view(len(samples), -1).view(torch.uint8).numpy()
    fixed.append(column)
    return described


def _dense_array(sample):
    return numpy.ascontiguousarray(sample) if sample.flags.c_contiguous else numpy.array(sample, order="K")


def _flat_array(dense):
    return dense.reshape(-1) if dense.flags.c_contiguous else dense.ravel("K")


def _describe_arrays(samples, fixed):
    sample, dtype = samples[0], samples[0].dtype
    named = dtype.type.__module__ == "ml_dtypes"  # the others say by dtype.str what they are
    if isinstance(sample, numpy.ma.MaskedArray) or dtype.hasobject or (dtype.kind == "V" and not named):
        _refuse(sample, f"its elements are masked, or not numbers and texts, but {dtype}; give the fields one by one")
    if type(sample) not in (numpy.ndarray, numpy.memmap, dtype.type):
        _refuse(sample, "it would come back as one of NumPy's own types; give numpy.asarray(sample), and wrap it again")
    if len(samples) > 1:
        _only((one.dtype, one.shape, one.strides) for one in samples)
    dense = _dense_array(sample)
    flat = _flat_array(dense)
    if not flat.nbytes:
        column = [b""] * len(samples)
    elif len(samples) == 1:
        column = [flat.view("uint8")]
    else:
        column = numpy.stack([_flat_array(_dense_array(one)) for one in samples]).view("uint8")
    fixed.append(column)
    word = dtype.name if named else flat.dtype.str  # flat.dtype: an empty text, "<U0", becomes one of a character
    if isinstance(sample, numpy.generic):
        return ["s", word, []]
    described = ["n", word, list(sample.shape)]
    return described if dense.flags.c_contiguous else [*described, list(dense.strides)]


def _describe_numbers(samples, fixed, varying):
    kind, dtype = {bool: ("b", "?"), float: ("f", "<f8"), int: ("i", "<i8")}[type(samples[0])]
    try:
        column = numpy.array(samples, dtype)
    except OverflowError:
        if len(samples) > 1:
            raise Unlike from None
        varying.append([b"%d" % samples[0]])
        return ["I"]
    fixed.append(column.view("uint8").reshape(len(samples), -1))
    return [kind]


def _is_image(sample):
    image = sys.modules.get("PIL.Image")  # there is none without it
    return image is not None and isinstance(sample, image.Image)


def _image_bytes(image, size):
    """Return image.tobytes(), without a copy that this makes of more than 64 KiB."""
    module = sys.modules["PIL.Image"]
    image.load()
    if not size or not hasattr(module, "_getencoder"):
        return image.tobytes()
    encoder = module._getencoder(image.mode, "raw", (image.mode,))
    encoder.setimage(image.im, (0, 0, *image.size))
    _, status, data = encoder.encode(size)
    return data if status > 0 and len(data) == size else image.tobytes()


def _describe_images(samples, fixed):
    mode, size = _only((one.mode, one.size) for one in samples)
    if mode not in _IMAGE_BYTES:
        _refuse(samples[0], f"its mode is {mode!r}; give sample.convert('RGB')")
    described = ["g", mode, list(size)]
    fixed.append([_image_bytes(one, _row_of(described)) for one in samples])
    return described


def _describe_keys(samples):
    keys = list(samples[0])
    for key in keys:
        if key is not None and type(key) not in (bool, int, float, str):
            _refuse(key, "keys of a dict are texts and numbers")
    if len(samples) > 1:  # 1 and True are one key
        texts = all(type(key) is str for key in keys)
        _only(tuple(one) if texts else tuple((type(key), key) for key in one) for one in samples)
    return keys


def _named_tuple(module, name):
    """Return the class of named tuples that is called so."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise TypeError(f"{module}.{name} is no class of named tuples")
    return found


def _describe_named(sample, parts):
    kind = type(sample)
    try:
        found = _named_tuple(kind.__module__, kind.__qualname__)
    except (ImportError, AttributeError, TypeError):
        found = None
    if found is not kind:
        _refuse(sample, "its class is not found by its module and name; define it at the top of a module")
    return ["P", kind.__module__, kind.__qualname__, parts]


def describe(samples, fixed, varying):
    """Return the layout of the samples, and append the columns of its leaves."""
    sample, kind = samples[0], _only(map(type, samples))
    if isinstance(sample, Tensor):
        samples = [one.torch() for one in samples]
        return _describe_tensors(samples, fixed)
    if isinstance(sample, torch.Tensor):
        return _describe_tensors(samples, fixed)
    if sample is None:
        return ["z"]
    if kind in (bool, int, float):
        return _describe_numbers(samples, fixed, varying)
    if kind is str:
        varying.append([one.encode("utf-8", "surrogatepass") for one in samples])
        return ["u"]
    if _is_image(sample):
        return _describe_images(samples, fixed)
    if hasattr(sample, "__array_interface__") and hasattr(sample, "dtype"):
        return _describe_arrays(samples, fixed)
    if kind in (bytes, bytearray):
        varying.append([bytes(one) for one in samples])
        return ["y" if kind is bytes else "Y"]
    if kind is dict:
        keys = _describe_keys(samples)
        return ["d", [[key, describe([one[key] for one in samples], fixed, varying)] for key in keys]]
    named = isinstance(sample, tuple) and hasattr(sample, "_fields")
    if kind in (list, tuple) or named:
        count = _only(map(len, samples))
        parts = [describe([one[n] for one in samples], fixed, varying) for n in range(count)]
        return _describe_named(sample, parts) if named else ["l" if kind is list else "p", parts]
    _refuse(sample, "make it of tensors, arrays, numbers, texts, bytes, images of PIL, lists, tuples and dicts, in the dataset")


class Encoded:
    """Some samples of one layout: its text, and the columns of its fixed and of its varying leaves."""

    __slots__ = ("count", "fixed", "text", "varying")

    def __init__(self, samples):
        self.count, self.fixed, self.varying = len(samples), [], []
        self.text = json.dumps(describe(samples, self.fixed, self.varying), separators=(",", ":"))
        if self.count == 1:  # else they are copies
            self.fixed = [[bytes(one)] for (one,) in self.fixed]

    def size(self):
        columns = [*self.fixed, *self.varying]
        return sum(c.nbytes if isinstance(c, numpy.ndarray) else sum(map(len, c)) for c in columns)

    def sample(self, row, made=None):
        """Make one of the samples. made: None, or that sample as it was encoded, whose images are copied."""
        layout = layout_of(self.text)
        fixed, varying = [column[row] for column in self.fixed], [column[row] for column in self.varying]
        if made is not None and "g" in layout.kinds:
            fixed = layout.with_images(fixed, made)
        return layout.sample(fixed, varying, copied=True)


def encode(samples):
    """Return all samples in order, in one Encoded if they have one layout, or one for each sample."""
    try:
        return [Encoded(samples)]
    except Unlike:
        return [Encoded([one]) for one in samples]


# ---- To samples and batches ----


def own(data):
    """Return a copy of the bytes that may be written to. Larger ones are aligned as PyTorch aligns its own."""
    if len(data) < 4096:
        return bytearray(data)
    copy = torch.empty(len(data), dtype=torch.uint8).numpy()
    copy[:] = numpy.frombuffer(data, "uint8")
    return memoryview(copy)


@functools.cache
def _numpy_dtype(word):
    if word[0] in "<>|=":
        return numpy.dtype(word)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, word))


@functools.cache
def _torch_dtype(word):
    """Return the dtype of a batch of such arrays, or None where PyTorch has none or makes something else of them."""
    try:
        return torch.from_numpy(numpy.empty(0, _numpy_dtype(word))).dtype
    except TypeError:
        return None


def _row_of(node):
    if node[0] in _COLUMNS:
        return _COLUMNS[node[0]][0]
    if node[0] == "g":
        return math.prod(node[2]) * _IMAGE_BYTES[node[1]]
    dtype = getattr(torch, node[1]) if node[0] == "t" else _numpy_dtype(node[1])
    return math.prod(node[2]) * dtype.itemsize


def _parts(node):
    """Return the nodes within it, in the order in which their leaves were appended."""
    parts = node[_INNER[node[0]]] if node[0] in _INNER else ()
    return [part for _, part in parts] if node[0] == "d" else parts


def _tensor(node, data):
    dtype, shape = getattr(torch, node[1]), node[2]
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    if isinstance(data, torch.Tensor):  # on a GPU
        flat = data.view(dtype)
    else:
        flat = torch.frombuffer(data, dtype=dtype, count=math.prod(shape))
    return flat.as_strided(shape, node[3]) if node[3:] else flat.view(shape)


def _array(node, data):
    dtype = _numpy_dtype(node[1])
    flat = numpy.frombuffer(data, "uint8", math.prod(node[2]) * dtype.itemsize)
    if node[3:]:
        return numpy.ndarray(node[2], dtype, flat, 0, node[3])
    array = flat.view(dtype).reshape(node[2])
    return array if node[0] == "n" else array[()]


def _images(node, sample):
    """Yield the images in a sample, in the order of the leaves."""
    if node[0] == "g":
        yield sample
    elif node[0] in _INNER:
        inner = [sample[key] for key, _ in node[1]] if node[0] == "d" else sample
        for part, one in zip(_parts(node), inner, strict=True):
            yield from _images(part, one)


def _image(node, data):
    """Return an image of these bytes, or a copy of this image, which is faster. Only the pixels are kept."""
    from PIL import Image

    if not isinstance(data, Image.Image):
        return Image.frombytes(node[1], tuple(node[2]), data)
    image = data.copy()
    image.info = {}
    return image


def _varying(kind, data):
    if kind == "u":
        return str(data, "utf-8", "surrogatepass")
    if kind == "I":
        return int(data)
    return data if kind == "y" else bytearray(data)


def _build(node, fixed, varying):
    kind = node[0]
    if kind == "t":
        return _tensor(node, next(fixed))
    if kind in "ns":
        return _array(node, next(fixed))
    if kind == "i":
        return _INT.unpack(next(fixed))[0]
    if kind == "f":
        return _FLOAT.unpack(next(fixed))[0]
    if kind == "b":
        return next(fixed) != b"\0"
    if kind == "z":
        return None
    if kind == "g":
        return _image(node, next(fixed))
    if kind in _VARYING:
        return _varying(kind, next(varying))
    if kind == "d":
        return {key: _build(part, fixed, varying) for key, part in node[1]}
    parts = [_build(part, fixed, varying) for part in _parts(node)]
    if kind == "P":
        return _named_tuple(node[1], node[2])._make(parts)
    return parts if kind == "l" else tuple(parts)


def _collate_column(node, flat, count):
    """Return what default_collate() makes of the leaves whose bytes lie one behind the other in flat."""
    kind = node[0]
    if kind in _COLUMNS:
        return flat.view(_COLUMNS[kind][1])
    if kind == "g":  # which refuses them
        return default_collate([_image(node, row) for row in flat.view(count, -1).numpy()])
    dtype = getattr(torch, node[1]) if kind == "t" else _torch_dtype(node[1])
    if node[3:] or dtype is None:
        make = _tensor if kind == "t" else _array
        return default_collate([make(node, row) for row in flat.view(count, -1).numpy()])
    if not flat.numel():
        return torch.empty((count, *node[2]), dtype=dtype)
    return flat.view(dtype).view(count, *node[2])


def _collate(node, columns, varying, count, kind_of_batch=list):
    kind = node[0]
    if kind == "z":
        return default_collate([None] * count)
    if kind in _VARYING:
        return default_collate(kind_of_batch(_varying(kind, value) for value in next(varying)))
    if kind == "d":
        return {key: _collate(part, columns, varying, count) for key, part in node[1]}
    if kind in _INNER:  # the parts of a sequence come to default_collate() from zip()
        parts = [_collate(part, columns, varying, count, tuple) for part in _parts(node)]
        return _named_tuple(node[1], node[2])._make(parts) if kind == "P" else parts
    return _collate_column(node, next(columns), count)


_copied = False


def batches_are_copied():
    """Say that in this worker no batch is handed over as it is."""
    global _copied
    _copied = True


class Layout:
    """What samples are made of.

    rows, kinds: the bytes of each fixed leaf, and its letter. varying: how many others there are.
    """

    __slots__ = ("_tree", "kinds", "rows", "text", "varying")

    def __init__(self, text):
        self.text, self._tree = text, json.loads(text)
        self.rows, self.kinds, self.varying = [], [], 0
        self._walk(self._tree)

    def _walk(self, node):
        if node[0] in _VARYING:
            self.varying += 1
        elif node[0] not in _INNER and node[0] != "z":
            self.rows.append(_row_of(node))
            self.kinds.append(node[0])
        for part in _parts(node):
            self._walk(part)

    def sample(self, fixed, varying, copied=False):
        """Make a sample of the bytes of its leaves, which it keeps unless they are copied."""
        if copied:  # an image copies them anyway
            fixed = [data if kind == "g" else own(data) for data, kind in zip(fixed, self.kinds, strict=True)]
        return _build(self._tree, iter(fixed), iter(varying))

    def with_images(self, fixed, sample):
        """Return the fixed leaves, and the images of the sample in place of their bytes."""
        images = _images(self._tree, sample)
        return [next(images) if kind == "g" else data for data, kind in zip(fixed, self.kinds, strict=True)]

    def columns(self, count):
        """Return tensors of bytes for a batch of so many samples, one for each fixed leaf.

        In a worker of PyTorch's DataLoader they are where default_collate() puts a batch: in memory that is handed over
        as it is.
        """
        shared = not _copied and get_worker_info() is not None
        return [_bytes(count * row, shared and kind in "tn") for row, kind in zip(self.rows, self.kinds, strict=True)]

    def batch(self, columns, varying, count):
        """Return what default_collate() makes of the samples. varying: for each varying leaf the bytes of all samples."""
        return _collate(self._tree, iter(columns), iter(varying), count)


def _bytes(size, shared):
    if not shared or not size:
        return torch.empty(size, dtype=torch.uint8)
    empty = torch.empty(0, dtype=torch.uint8)
    return empty.new(empty._typed_storage()._new_shared(size, device="cpu")).resize_(size)


layout_of = functools.lru_cache(maxsize=1024)(Layout)


# ---- Packs ----
#
# A pack is a tensor of bytes with some samples: the size of its head as 8 bytes, the head, the samples' indexes as 8
# bytes each, and a section for each layout. A section has a column for each fixed leaf; then, of the varying leaves of
# one sample after the other, where each ends as 8 bytes, and their bytes.


def _aligned(at):
    return at + -at % ALIGN


class Section:
    """The samples of one layout in a pack, from row `first` on: where each column, the ends and the varying bytes begin."""

    __slots__ = ("columns", "count", "end", "ends", "first", "layout", "varying")

    def __init__(self, text, count, size, first, at):
        self.layout, self.count, self.first, self.columns = layout_of(text), count, first, []
        for row in self.layout.rows:
            at = _aligned(at)
            self.columns.append(at)
            at += count * row
        self.ends = _aligned(at)
        self.varying = self.ends + 8 * count * self.layout.varying
        self.end = self.varying + size


class Head:
    """Where things lie in a pack: `indexes` of `count` samples, and `sections`."""

    __slots__ = ("count", "indexes", "sections", "size")

    def __init__(self, text):
        self.indexes = at = _aligned(8 + len(text))
        listed, self.count, self.sections = json.loads(text), 0, []
        at += 8 * sum(count for _, count, _ in listed)
        for layout, count, size in listed:
            section = Section(layout, count, size, self.count, at)
            self.sections.append(section)
            self.count, at = self.count + count, section.end
        self.size = at

    def section_of(self, row):
        return next(s for s in self.sections if row < s.first + s.count)


head_of = functools.lru_cache(maxsize=4096)(Head)


class Pack:
    """A pack that is to be written. parts: pairs of the indexes of some samples, and these in an Encoded."""

    def __init__(self, parts):
        alike = {}
        for indexes, encoded in parts:
            alike.setdefault(encoded.text, []).append((indexes, encoded))
        listed = [
            [text, sum(e.count for _, e in some), sum(len(one) for _, e in some for column in e.varying for one in column)]
            for text, some in alike.items()
        ]
        self._text, self._alike = json.dumps(listed, separators=(",", ":")).encode(), alike.values()
        self.head = Head(self._text)
        self.indexes = numpy.array([index for some in self._alike for indexes, _ in some for index in indexes], "<i8")

    def write(self, data):
        """Write it to an array of head.size bytes."""
        data[:8].view("<u8")[0] = len(self._text)
        data[8 : 8 + len(self._text)] = numpy.frombuffer(self._text, "uint8")
        data[self.head.indexes :][: self.indexes.nbytes] = self.indexes.view("uint8")
        for section, some in zip(self.head.sections, self._alike, strict=True):
            _fill(section, data, [encoded for _, encoded in some])


def _put(data, at, parts):
    """Put the parts one behind the other, and return where they end."""
    if isinstance(parts, numpy.ndarray):
        parts = [parts.reshape(-1)]
    elif parts and len(parts[0]) < 4096:
        parts = [b"".join(parts)]
    for part in parts:
        data[at : at + len(part)] = numpy.frombuffer(part, "uint8")
        at += len(part)
    return at


def _fill(section, data, some):
    for n, at in enumerate(section.columns):
        for encoded in some:
            at = _put(data, at, encoded.fixed[n])
    varying = [one for encoded in some for row in zip(*encoded.varying, strict=True) for one in row]
    if varying:
        data[section.ends : section.varying].view("<u8")[:] = numpy.cumsum([len(one) for one in varying])
        _put(data, section.varying, varying)


def read_head(data):
    """Return the Head of the pack with these bytes, a memoryview, and the indexes of its samples."""
    (size,) = _INT.unpack_from(data)
    head = head_of(bytes(data[8 : 8 + size]))
    if head.size > len(data):
        raise ValueError("a pack of samples is shorter than its head says")
    return head, numpy.frombuffer(data, "<i8", head.count, head.indexes).copy()


def varying_of(section, data, row):
    """Return the bytes of the varying leaves of a sample."""
    n = section.layout.varying
    if not n:
        return []
    first = (row - section.first) * n
    ends = numpy.frombuffer(data, "<u8", section.count * n, section.ends)
    starts = [int(ends[i - 1]) if i else 0 for i in range(first, first + n)]
    at = section.varying
    return [bytes(data[at + start : at + int(ends[first + i])]) for i, start in enumerate(starts)]


def fixed_of(section, data, row):
    """Return the bytes of the fixed leaves of a sample, as parts of data."""
    row -= section.first
    return [
        data[at + row * size : at + (row + 1) * size]
        for at, size in zip(section.columns, section.layout.rows, strict=True)
    ]
