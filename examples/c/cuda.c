/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor on a GPU: one process writes it, another reads the same memory. Neither waits for the
 * GPU, nor for the other. Each names the stream on which it works, and the work is put in order
 * there.
 *
 *	cuda publish [NAME]
 *	cuda get [NAME]
 */
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "cuda_driver.h" /* or <cuda.h> */

static const int64_t shape[] = { 1 << 20 };

static void must(CUresult result, const char *what)
{
	if (result)
		errx(1, "%s: CUDA error %d", what, (int)result);
}

static int publish(tl_client *client, const char *name, CUstream stream)
{
	const tl_spec spec = TL_INIT(tl_spec, .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 },
				     .device = { kDLCUDA, 0 });
	uint64_t version;
	tl_draft *draft;
	int r;

	r = tl_create(client, name, &spec, &draft);
	if (r)
		return r;
	/* Here a kernel would write the tensor. */
	must(cuMemsetD8Async((CUdeviceptr)tl_draft_tensor(draft)->data, 42, (size_t)shape[0],
			     stream),
	     "writing");
	r = tl_draft_set_stream(draft, (intptr_t)stream);
	if (r) {
		tl_abort(draft);
		return r;
	}
	return tl_commit(draft, &version);
}

static int get(tl_client *client, const char *name, CUstream stream)
{
	const tl_get_options options = TL_INIT(tl_get_options, .timeout_ns = -1,
					       .stream = (intptr_t)stream);
	DLManagedTensorVersioned *tensor;
	unsigned char first;
	int r = tl_get(client, name, &options, &tensor);

	if (r)
		return r;
	if (tensor->dl_tensor.device.device_type != kDLCUDA)
		errx(1, "'%s' is not on a GPU", name);
	must(cuMemcpyDtoHAsync(&first, (CUdeviceptr)tensor->dl_tensor.data, 1, stream), "reading");
	tensor->deleter(tensor); /* the lease lasts until the stream has read it */
	must(cuStreamSynchronize(stream), "waiting");
	printf("%s begins with %d\n", name, first);
	return 0;
}

int main(int argc, char **argv)
{
	const char *name = argc > 2 ? argv[2] : "example/gpu";
	tl_client *client;
	CUcontext context;
	CUstream stream;
	int r;

	if (argc < 2)
		errx(2, "usage: cuda publish [NAME], or cuda get [NAME]");
	must(cuInit(0), "starting CUDA");
	must(cuDevicePrimaryCtxRetain(&context, 0), "using GPU 0");
	must(cuCtxSetCurrent(context), "using GPU 0");
	must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
	if (tl_connect(NULL, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	r = strcmp(argv[1], "get") ? publish(client, name, stream) : get(client, name, stream);
	if (r)
		errx(1, "%s", tl_last_error());
	/* This waits until the GPU has written the published tensor, so that it outlives us. */
	if (tl_close(client))
		errx(1, "%s", tl_last_error());
	return 0;
}
