/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills, in the order of their streams. Pointers are looked at when the call is made
 * (unknown ones: 1) and again when the work is done: what has gone meanwhile is a bad access, after
 * which the context gives 700 for ever. Memory that is mapped but not accessible faults as memory
 * does.
 *
 * The bytes of a device are copied unseen by ThreadSanitizer: tests race on them on purpose, to see
 * what a missing wait does.
 */
#include "tests/fakecuda/stream.h"

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread"))) static void bytes_copy(void *to, const void *from, size_t n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

__attribute__((no_sanitize("thread"))) static void bytes_set(void *to, unsigned char byte, size_t n)
{
	__asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(byte) : "memory");
}
#else
static void bytes_copy(void *to, const void *from, size_t n)
{
	memmove(to, from, n);
}

static void bytes_set(void *to, unsigned char byte, size_t n)
{
	memset(to, byte, n);
}
#endif

static CUdeviceptr device_pointer(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* Memory whose owner has died since is poison now. */
static void look_for_deaths(const struct op *op)
{
	const struct range *from = op->from_device ? range_of(device_pointer(op->from)) : NULL;

	if (!from || from->kind != FAKE_IMPORT)
		return;
	fake_lock(fake.registry);
	fake_reap(fake.registry);
	fake_unlock(fake.registry);
}

static void access_bytes(struct CUctx_st *ctx, const struct op *op)
{
	int from_device = (op->from_context ? op->from_context : ctx)->device;

	if ((op->to_device && !range_allows(device_pointer(op->to), op->size, ctx->device, 2)) ||
	    (op->from_device &&
	     !range_allows(device_pointer(op->from), op->size, from_device, 1))) {
		ctx->sticky = CUDA_E_ILLEGAL_ADDRESS;
		fake_lock(fake.registry);
		fake.registry->violations[FAKE_BAD_ACCESS]++;
		fake_unlock(fake.registry);
		return;
	}
	look_for_deaths(op);
	if (op->type == OP_SET)
		bytes_set(op->to, op->byte, op->size);
	else
		bytes_copy(op->to, op->from, op->size);
}

void op_run(struct CUctx_st *ctx, const struct op *op)
{
	switch (op->type) {
	case OP_COPY:
	case OP_SET:
		if (!ctx->sticky)
			access_bytes(ctx, op);
		break;
	case OP_RECORD:
		event_complete(op->event, op->sequence);
		event_unref(op->event);
		break;
	case OP_WAIT:
		event_unref(op->event);
		break;
	case OP_FREE:
		pool_range_free(op->range);
		break;
	case OP_NOTHING:
	case OP_CALL:
		break;
	}
}

/* ---- The functions ---- */

static _Atomic unsigned long long copied;

/* How many bytes this process has copied into memory of GPUs; for benches that count them. */
FAKE_PUBLIC unsigned long long fakecuda_copied(void);

unsigned long long fakecuda_copied(void)
{
	return copied;
}

static CUresult submit(CUstream stream, struct CUctx_st *ctx, const struct op *op, bool wait)
{
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && ((op->to_device && !range_covers(device_pointer(op->to), op->size)) ||
		   (op->from_device && !range_covers(device_pointer(op->from), op->size))))
		r = CUDA_E_INVALID_VALUE;
	if (!r && op->type == OP_COPY && op->to_device)
		copied += op->size;
	if (!r && op->size)
		r = stream_submit(stream, op);
	if (!r && wait) {
		stream_wait(stream);
		r = ctx->sticky;
	}
	return fake_leave(r);
}

static void *host(CUdeviceptr pointer)
{
	return (void *)(uintptr_t)pointer;
}

#define COPY(to_, to_device_, from_, from_device_, size_)                                          \
	(&(struct op){ .type = OP_COPY,                                                            \
		       .to = to_,                                                                  \
		       .to_device = to_device_,                                                    \
		       .from = from_,                                                              \
		       .from_device = from_device_,                                                \
		       .size = size_ })

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	ENTER_CONTEXT(ctx);
	return submit(NULL, ctx, COPY(host(to), true, from, false, size), true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	ENTER_CONTEXT(ctx);
	return submit(NULL, ctx, COPY(to, false, host(from), true, size), true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	return submit(stream, ctx, COPY(host(to), true, from, false, size), false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	return submit(stream, ctx, COPY(to, false, host(from), true, size), false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	return submit(stream, ctx, COPY(host(to), true, host(from), true, size), false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			   CUcontext from_context, size_t size, CUstream stream)
{
	struct op *op = COPY(host(to), true, host(from), true, size);

	ENTER_CONTEXT(ctx);
	if (to_context != ctx || !from_context)
		return fake_leave(CUDA_E_INVALID_VALUE);
	op->from_context = from_context;
	return submit(stream, ctx, op, false);
}

static CUresult fill(CUdeviceptr to, unsigned char byte, size_t size, CUstream stream,
		     struct CUctx_st *ctx)
{
	const struct op op = {
		.type = OP_SET, .to = host(to), .to_device = true, .byte = byte, .size = size
	};

	return submit(stream, ctx, &op, false);
}

/* Like the real one, this does not wait until memory of the device is filled. */
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t size)
{
	ENTER_CONTEXT(ctx);
	return fill(to, byte, size, NULL, ctx);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t size, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	return fill(to, byte, size, stream, ctx);
}
