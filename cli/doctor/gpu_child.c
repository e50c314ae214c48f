/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the GPU work of its children. They are producers and consumers like any program. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "cli/doctor/child.h"
#include "cli/doctor/cuda.h"
#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/clock.h"

enum { SIZE = 32 << 20, LATER = 0x5a };

static const int64_t request_ns = 10 * NS_PER_SEC, get_ns = 20 * NS_PER_SEC;

static struct doctor_cuda cuda;

/* Returns whether @result is 0, after reporting it if not. */
static bool cuda_ok(int result, const char *call)
{
	char text[160];

	if (result)
		child_answer(false, "%s",
			     doctor_cuda_error(&cuda, call, result, text, sizeof(text)));
	return !result;
}

/* ---- gpus ---- */

static cJSON *gpu_json(int number, const tl_cuda_info *info)
{
	cJSON *object = json_object(), *peers = json_array();
	char *uuid = format_uuid(info->uuid);
	char compute[32], node[32];
	int value = 0;

	snprintf(compute, sizeof(compute), "%d.%d", info->compute_major, info->compute_minor);
	json_text(object, "library", doctor_cuda_path());
	json_i64(object, "driver", info->driver_version);
	json_text(object, "name", info->name);
	json_text(object, "uuid", uuid);
	json_u64(object, "bytes", info->total_bytes);
	json_text(object, "compute", compute);
	json_bool(object, "integrated", info->integrated);
	json_bool(object, "vmm", info->vmm);
	json_bool(object, "legacy", info->legacy_ipc);
	json_bool(object, "pools", info->memory_pools);
	cuda.attribute(&value, CUDA_COMPUTE_MODE, number);
	json_i64(object, "compute_mode", value);
	json_i64(object, "persistence", doctor_cuda_persistence(uuid));
	doctor_cuda_node(&cuda, number, node);
	json_text(object, "node", node);
	for (int i = 0; i < info->count; i++) {
		int can = 0;

		json_bool(peers, NULL,
			  i != number && !cuda.can_access_peer(&can, number, i) && can);
	}
	json_add(object, "peers", peers);
	free(uuid);
	return object;
}

int child_gpus(char *const *args)
{
	tl_cuda_info info = { .size = sizeof(info) };
	const char *why;
	cJSON *array;
	char *text;
	int r = tl_get_cuda_info(0, &info);

	(void)args;
	if (r) {
		child_answer(false, "%s", cli_reason(r));
		return CLI_FAILURE;
	}
	if (!doctor_cuda_open(&cuda, -1, &why)) {
		child_answer(false, "%s", why);
		return CLI_FAILURE;
	}
	array = json_array();
	for (int i = 0; i < info.count && !r; i++) {
		r = tl_get_cuda_info(i, &info);
		if (!r)
			json_add(array, NULL, gpu_json(i, &info));
	}
	if (r) {
		cJSON_Delete(array);
		child_answer(false, "%s", cli_reason(r));
		return CLI_FAILURE;
	}
	text = cli_need(cJSON_PrintUnformatted(array));
	child_answer(true, "%s", text);
	cJSON_free(text);
	cJSON_Delete(array);
	return CLI_OK;
}

/* ---- gpu-put ---- */

struct producer {
	tl_client *client;
	const char *name;
	int device;
	bool legacy;
	tl_draft *draft;     /* if not legacy; else: */
	cuda_pointer memory; /* from cuMemAlloc */
};

static const int64_t shape[1] = { SIZE };

static void foreign_delete(DLManagedTensorVersioned *tensor)
{
	free(tensor); /* the memory goes with the process */
}

static DLManagedTensorVersioned *foreign_tensor(const struct producer *p)
{
	DLManagedTensorVersioned *t = cli_need(calloc(1, sizeof(*t)));

	t->version = (DLPackVersion){ DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION };
	t->deleter = foreign_delete;
	t->dl_tensor = (DLTensor){ .data = (void *)(uintptr_t)p->memory,
				   .device = { kDLCUDA, p->device },
				   .ndim = 1,
				   .dtype = { kDLUInt, 8, 1 },
				   .shape = (int64_t *)(uintptr_t)shape };
	return t;
}

/* Allocates memory for one tensor. Returns 0 after reporting why it failed. */
static cuda_pointer allocate(struct producer *p)
{
	tl_spec spec = {
		.size = sizeof(spec),
		.shape = shape,
		.ndim = 1,
		.dtype = { kDLUInt, 8, 1 },
		.device = { kDLCUDA, p->device },
	};

	if (p->legacy)
		return cuda_ok(cuda.alloc(&p->memory, SIZE), "cuMemAlloc") ? p->memory : 0;
	if (tl_create(p->client, p->name, &spec, &p->draft)) {
		child_answer(false, "%s", tl_last_error());
		return 0;
	}
	return (cuda_pointer)(uintptr_t)tl_draft_tensor(p->draft)->data;
}

static bool publish(struct producer *p, cuda_stream stream)
{
	tl_put_options o = { .size = sizeof(o), .stream = (intptr_t)stream };
	uint64_t version;
	int r;

	if (p->legacy) {
		DLManagedTensorVersioned *tensor = foreign_tensor(p);

		r = tl_publish(p->client, p->name, tensor, &o, NULL, &version);
		if (r)
			free(tensor);
	} else {
		r = tl_draft_set_stream(p->draft, (intptr_t)stream);
		r = r ? r : tl_commit(p->draft, &version);
	}
	if (r)
		child_answer(false, "%s", cli_reason(r));
	return !r;
}

static bool put_at_rest(struct producer *p, cuda_stream stream)
{
	unsigned char *bytes = cli_need(malloc(SIZE));
	cuda_pointer at = allocate(p);
	int64_t begin;
	bool ok;

	doctor_fill(bytes, SIZE, 1);
	ok = at && cuda_ok(cuda.write(at, bytes, SIZE), "cuMemcpyHtoD");
	free(bytes);
	begin = now_mono_ns();
	if (!ok || !publish(p, stream))
		return false;
	child_answer(true, "32 MiB published in %.0f us", (double)(now_mono_ns() - begin) / 1e3);
	return true;
}

enum { QUEUE_MAX = 900 };

static const size_t scratch_max = (size_t)2 << 30;

/* Scratch memory that is filled to keep the GPU busy. A queue holds about 1,000 fills, and a fast
 * GPU does those of 32 MiB in 8 ms. */
static struct {
	cuda_pointer at;
	size_t size;
} scratch;

/* The time that one fill of the scratch memory takes; -1: it failed. The first fill loads the
 * kernel. */
static int64_t fill_ns(cuda_stream stream)
{
	int64_t begin = 0;

	for (int i = 0; i < 2; i++) {
		begin = now_mono_ns();
		if (!cuda_ok(cuda.fill(scratch.at, 0, scratch.size, stream), "cuMemsetD8Async") ||
		    !cuda_ok(cuda.stream_synchronize(stream), "cuStreamSynchronize"))
			return -1;
	}
	return now_mono_ns() - begin + 1;
}

/* Enlarges the scratch memory so that a queue of fills lasts @work_ns, if there is space for that.
 * Returns the result of fill_ns(). */
static int64_t scratch_grow(int64_t work_ns, cuda_stream stream)
{
	int64_t each;

	if (!scratch.at) {
		scratch.size = SIZE;
		if (!cuda_ok(cuda.alloc(&scratch.at, SIZE), "cuMemAlloc"))
			return -1;
	}
	for (;;) {
		cuda_pointer larger;

		each = fill_ns(stream);
		if (each < 0 || each * QUEUE_MAX >= work_ns || 2 * scratch.size > scratch_max ||
		    cuda.alloc(&larger, 2 * scratch.size))
			return each;
		if (!cuda_ok(cuda.free(scratch.at), "cuMemFree"))
			return -1;
		scratch.at = larger;
		scratch.size *= 2;
	}
}

/* Queues about 100 ms of work, whose last step writes the bytes for the consumer. Each call queues
 * twice as much as the one before, for a consumer that came too late to see the work under way. */
static bool queue_work(cuda_pointer at, cuda_stream stream)
{
	static int64_t work_ns = 100 * NS_PER_MS;
	int64_t each = scratch_grow(work_ns, stream);
	int n;

	if (each <= 0 || !cuda_ok(cuda.fill(at, 0, SIZE, stream), "cuMemsetD8Async") ||
	    !cuda_ok(cuda.stream_synchronize(stream), "cuStreamSynchronize"))
		return false;
	n = (int)(work_ns / each);
	work_ns *= 2;
	for (int i = 0; i < n && i < QUEUE_MAX; i++)
		if (!cuda_ok(cuda.fill(scratch.at, (unsigned char)i, scratch.size, stream),
			     "cuMemsetD8Async"))
			return false;
	return cuda_ok(cuda.fill(at, LATER, SIZE, stream), "cuMemsetD8Async");
}

static bool put_unfinished(struct producer *p, cuda_stream stream)
{
	cuda_pointer at = allocate(p);

	if (!at || !queue_work(at, stream) || !publish(p, stream))
		return false;
	child_answer(true, "published while its producer's stream %s",
		     cuda.stream_query(stream) == CUDA_NOT_READY ? "was at work" : "was idle");
	return true;
}

static tl_client *child_client(const char *address)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = address,
				 .namespace_name = "",
				 .timeout_ns = request_ns };
	tl_client *client;

	if (!tl_connect(&o, &client))
		return client;
	child_answer(false, "%s", tl_last_error());
	return NULL;
}

static bool open_device(const char *number, int *device, cuda_stream *stream)
{
	const unsigned non_blocking = 1;
	const char *why;

	*device = atoi(number);
	if (doctor_cuda_open(&cuda, *device, &why))
		return cuda_ok(cuda.stream_create(stream, non_blocking), "cuStreamCreate");
	child_answer(false, "%s", why);
	return false;
}

/*
 * Arguments: SOCKET NAME DEVICE KIND. Publishes at once, and again each time it is told to. Keeps
 * everything until it ends.
 */
int child_gpu_put(char *const *args)
{
	struct producer p = { .name = args[1], .legacy = !strcmp(args[3], "legacy") };
	cuda_stream stream;
	bool ok;

	if (!open_device(args[2], &p.device, &stream))
		return CLI_FAILURE;
	p.client = child_client(args[0]);
	ok = p.client && put_at_rest(&p, stream);
	while (ok && child_await())
		ok = put_unfinished(&p, stream);
	tl_close(p.client);
	return ok ? CLI_OK : CLI_FAILURE;
}

/* ---- gpu-get ---- */

/* Compares the bytes that a kernel on @stream would see now. */
static bool bytes_right(const DLManagedTensorVersioned *t, cuda_stream stream, uint64_t version)
{
	unsigned char *bytes = cli_need(malloc(SIZE));
	cuda_pointer at = (cuda_pointer)(uintptr_t)t->dl_tensor.data;
	ssize_t wrong = -1;
	bool ok = cuda_ok(cuda.read(bytes, at, SIZE, stream), "cuMemcpyDtoHAsync") &&
		  cuda_ok(cuda.stream_synchronize(stream), "cuStreamSynchronize");

	if (ok && version == 1)
		wrong = doctor_compare(bytes, SIZE, 1);
	for (ssize_t i = 0; ok && version > 1 && wrong < 0 && i < SIZE; i++)
		wrong = bytes[i] == LATER ? -1 : i;
	free(bytes);
	if (wrong >= 0)
		child_answer(false, "byte %zd is not what the producer wrote", wrong);
	return ok && wrong < 0;
}

/* Gets a version newer than *version, which is 0 at first, and stores the version it got there. */
static bool get_and_compare(tl_client *client, const char *name, uint64_t *version,
			    cuda_stream stream)
{
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = get_ns,
			     .newer_than = *version,
			     .stream = TL_STREAM_NONE };
	DLManagedTensorVersioned *t;
	int64_t begin = now_mono_ns(), ns;
	tl_info info = { .size = sizeof(info) };
	bool waits = false, ok;
	int r;

	r = tl_get(client, name, &o, &t); /* when it is published */
	o.stream = (intptr_t)stream;
	o.timeout_ns = 1;
	if (!r) {
		t->deleter(t);
		r = tl_get(client, name, &o, &t);
		waits = r == -ETIMEDOUT; /* it is not written yet */
	}
	o.timeout_ns = get_ns;
	if (waits)
		r = tl_get(client, name, &o, &t);
	if (r) {
		child_answer(false, "%s", cli_reason(r));
		return false;
	}
	ns = now_mono_ns() - begin;
	r = tl_tensor_info(t, &info);
	ok = !r && t->dl_tensor.shape[0] == SIZE && bytes_right(t, stream, info.version);
	t->deleter(t);
	if (!ok)
		return false;
	*version = info.version;
	if (!o.newer_than)
		child_answer(true, "first got in %.0f us", (double)ns / 1e3);
	else
		child_answer(
			true, "%s",
			waits ? "the get waited for it, and the bytes are right"
			      : "the bytes are right, but the work had ended before the get: the order could not be tried");
	return true;
}

/* Arguments: SOCKET NAME DEVICE. Gets the present version at once, and the next one each time it is
 * told to. */
int child_gpu_get(char *const *args)
{
	uint64_t version = 0;
	cuda_stream stream;
	tl_client *client;
	int device;
	bool ok;

	if (!open_device(args[2], &device, &stream))
		return CLI_FAILURE;
	client = child_client(args[0]);
	ok = client && get_and_compare(client, args[1], &version, stream);
	while (ok && child_await())
		ok = get_and_compare(client, args[1], &version, stream);
	tl_close(client);
	return ok ? CLI_OK : CLI_FAILURE;
}
