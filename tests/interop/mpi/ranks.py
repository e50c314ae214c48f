# SPDX-License-Identifier: Apache-2.0
"""The two processes of mpi_test.py, run as `mpirun -n 2 python -m mpi4py ranks.py SCENARIO`."""

import gc
import os
import sys

import mpi4py
import tensorlease
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK = COMM.rank
VERSION = int(mpi4py.__version__.split(".")[0])
TYPES = ("bool", "int8", "uint8", "int16", "uint32", "int64", "float32", "float64", "complex64", "complex128")
COUNTS = (0, 1, 1000, 1 << 18)
WITHOUT_TYPE = ("bfloat16", "float8_e4m3fn")  # MPI has no such type, so mpi4py sends bytes
PACKED = ("float4_e2m1fn",)  # mpi4py takes each element for a byte, and goes beyond the end if it is not told the number
REFUSALS = (BufferError, ValueError, TypeError, KeyError, MPI.Exception)


class OnlyDLPack:
    """A Tensor or Draft without its buffer protocol, which mpi4py would prefer."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


WAYS = {
    "buffer": lambda array: array,
    "dlpack": OnlyDLPack,
    "counted": lambda array: [array, int(array.nbytes), MPI.BYTE],
}


def leases():
    gc.collect()
    return sum(c.leases for c in observer.clients() if c.pid == os.getpid())


def refused(call, error=REFUSALS, text=""):
    try:
        call()
    except error as e:
        assert text in str(e), e
    else:
        raise AssertionError("it was not refused")


def exchange(way, mode):
    """Rank 0 sends what it holds, rank 1 receives into a draft and publishes it."""
    give = WAYS[way]
    types = TYPES
    if VERSION >= 4 or mode == "c":  # otherwise it asks by the buffer protocol, which has no such type either
        types += WITHOUT_TYPE + (PACKED if way == "counted" else ())
    for dtype in types:
        for count in COUNTS:
            name = f"mpi/{dtype}/{count}"
            if RANK == 0:
                with client.get(name, mode=mode) as tensor:
                    COMM.Send(give(tensor), 1)
                    assert leases() >= 1
                del tensor  # a message with a type asks as numpy.ndarray(buffer=) does, which keeps the object
                assert leases() == 0, name
            else:
                with client.create(f"{name}/got", count, dtype) as draft:
                    status = MPI.Status()
                    COMM.Recv(give(draft), 0, status=status)
                    assert status.Get_count(MPI.BYTE) == draft.nbytes, name


def later():
    """A send continues when only its request holds the tensor and the name means another one."""
    if RANK == 0:
        for way in ("buffer", "dlpack"):
            request = COMM.Isend(WAYS[way](client.get("mpi/later", mode="c")), 1)
            for _ in range(3):
                client.put("mpi/later", bytes(1 << 23))
            assert leases() == 1
            COMM.Barrier()  # now rank 1 receives
            request.Wait()
            del request
            assert leases() == 0
            client.put("mpi/later", b"\1" * (1 << 23))
            COMM.Barrier()
    else:
        for way in ("buffer", "dlpack"):
            COMM.Barrier()
            with client.create(f"mpi/later/{way}", 1 << 23, "uint8") as draft:
                COMM.Recv(draft, 0)
            COMM.Barrier()


def bcast(way, mode):
    give = WAYS[way]
    if RANK == 0:
        with client.get("mpi/bcast", mode=mode) as tensor:
            COMM.Bcast(give(tensor), 0)
        del tensor
        assert leases() == 0
    else:
        with client.create("mpi/bcast/got", 100000, "float32") as draft:
            COMM.Bcast(give(draft), 0)


def allreduce(way, mode):
    give = WAYS[way]
    with client.get(f"mpi/part/{RANK}", mode=mode) as tensor:
        with client.create(f"mpi/sum/{RANK}", tensor.shape, "float64") as draft:
            COMM.Allreduce(give(tensor), give(draft), MPI.SUM)
    assert leases() == 0
    with client.create(f"mpi/in-place/{RANK}", (50,), "int64") as draft:
        memoryview(draft).cast("B")[:] = bytes(400)
        memoryview(draft)[7] = RANK + 1
        COMM.Allreduce(MPI.IN_PLACE, give(draft), MPI.SUM)


def private():
    """A message that is received into a tensor from get() reaches nobody else."""
    if VERSION < 4:
        with client.get("mpi/private") as for_me:
            refused(lambda: COMM.Recv(for_me, 1 - RANK), BufferError, 'mode="c"')
    elif RANK == 0:
        COMM.Send(b"\xff" * 1000, 1)
        COMM.Send(b"\xff" * 1000, 1)
    else:
        for way in ("buffer", "dlpack"):
            with client.get("mpi/private") as for_me:
                COMM.Recv(WAYS[way](for_me), 0)
                assert bytes(for_me) == bytes(client.get("mpi/private")) == b"\1" * 1000
            assert leases() == 0
    if RANK == 1:
        with client.get("mpi/private", mode="c") as for_me:
            COMM.Recv(for_me, 0)
            assert bytes(for_me) == b"\xfe" * 1000
            assert bytes(client.get("mpi/private")) == b"\1" * 1000
        assert leases() == 0
    else:
        COMM.Send(b"\xfe" * 1000, 1)


def errors():
    if RANK == 0:
        for mode in ("r", "c"):
            for give in (WAYS["buffer"], WAYS["dlpack"]):
                with client.get("mpi/float16", mode=mode) as tensor:  # this Open MPI has no such type
                    refused(lambda: COMM.Send(give(tensor), 1))
                assert leases() == 0
        if VERSION < 4:  # its request cannot say that it would honour read-only memory
            with client.get("mpi/private") as tensor:
                refused(lambda: COMM.Send(OnlyDLPack(tensor), 1), BufferError, 'mode="c"')
            assert leases() == 0
        tensor = client.get("mpi/private")
        tensor.release()
        for way in ("buffer", "dlpack"):
            refused(lambda: COMM.Send(WAYS[way](tensor), 1))
        draft = client.create("mpi/aborted", 10, "uint8")
        draft.abort()
        for way in ("buffer", "dlpack"):
            refused(lambda: COMM.Recv(WAYS[way](draft), 1))
        assert leases() == 0
        COMM.Send(bytes(100), 1)
    else:
        try:
            with client.create("mpi/too-small", 10, "uint8") as draft:
                COMM.Recv(draft, 0)
        except MPI.Exception as e:
            assert e.Get_error_class() == MPI.ERR_TRUNCATE
        else:
            raise AssertionError("100 bytes fitted into 10")
        assert "mpi/too-small" not in client and draft.state == "aborted"


scenario, *arguments = sys.argv[1:]
client = tensorlease.connect(autostart=False)
observer = tensorlease.connect(autostart=False)
globals()[scenario](*arguments)
assert leases() == 0
COMM.Barrier()
