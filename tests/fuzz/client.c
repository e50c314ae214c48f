/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library with a daemon that says and writes what the input tells it to: bytes of its catalog,
 * answers, descriptors, and words that change to and fro while the library looks. Tensors that the
 * library hands out must be readable and be what they are said to be. The sanitizers watch the
 * rest.
 *
 * An input is a sequence of steps: a byte that selects the step, and then its arguments.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <tensorlease/admin.h>

#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/name.h"
#include "tests/fuzz/target.h"
#include "tests/harness/liar.h"

enum { STEPS_MAX = 64, ANSWERS_MAX = 16, HELD_MAX = 20 };

#define TIMEOUT_NS 3000000

static struct liar liar;
static int others[4]; /* descriptors of the wrong kind */
static tl_client *client;
static DLManagedTensorVersioned *held[HELD_MAX];
static unsigned nheld;

/* ---- Answers from the input ---- */

static struct answers {
	pthread_mutex_t mutex;
	unsigned n, next;
	struct {
		unsigned type, flags;
		size_t length;
		unsigned char bytes[WIRE_MAX];
	} list[ANSWERS_MAX];
} answers = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static bool answer_from_input(struct liar *l, int socket, struct conn_message *m)
{
	static unsigned char bytes[WIRE_MAX];
	unsigned type = 0, flags = 0;
	size_t length = 0;
	int fd;

	if (m->header.serial == 0)
		return false;
	pthread_mutex_lock(&answers.mutex);
	if (answers.next < answers.n) {
		type = answers.list[answers.next].type;
		flags = answers.list[answers.next].flags;
		length = answers.list[answers.next].length;
		memcpy(bytes, answers.list[answers.next].bytes, length);
		answers.next++;
	}
	pthread_mutex_unlock(&answers.mutex);
	if (!length)
		return false;
	fd = flags & 2 ? others[(flags >> 2) % 4] : l->segment_fds[(flags >> 2) % LIAR_SEGMENTS];
	liar_send(socket, m, type, bytes, length, flags & 1 ? fd : -1);
	return true;
}

static void step_answer(struct input_bytes *in)
{
	unsigned type = take_u8(in), flags = take_u8(in);
	size_t n = take_u16(in) % (WIRE_MAX - sizeof(struct wire_header) + 1);
	const uint8_t *p;

	if (n > in->left)
		n = in->left;
	p = take_bytes(in, n);
	type = WIRE_WELCOME + type % (WIRE_REPLY_END - WIRE_WELCOME);
	pthread_mutex_lock(&answers.mutex);
	if (answers.n < ANSWERS_MAX) {
		answers.list[answers.n].type = type;
		answers.list[answers.n].flags = flags;
		answers.list[answers.n].length = sizeof(struct wire_header) + n;
		if (n)
			memcpy(answers.list[answers.n].bytes + sizeof(struct wire_header), p, n);
		answers.n++;
	}
	pthread_mutex_unlock(&answers.mutex);
}

/* ---- The catalog ---- */

static void step_write(struct input_bytes *in)
{
	size_t at = take_u16(in) % sizeof(struct liar_catalog), n = take_u8(in) % 64;
	const uint8_t *p;

	if (n > in->left)
		n = in->left;
	if (n > sizeof(struct liar_catalog) - at)
		n = sizeof(struct liar_catalog) - at;
	p = take_bytes(in, n);
	if (n)
		memcpy((char *)liar.catalog + at, p, n);
}

/* A word that a thread changes to and fro between two values. */
static struct flipper {
	_Atomic(_Atomic uint32_t *) word;
	_Atomic uint32_t value;
	_Atomic bool running;
	pthread_t thread;
} flipper;

static void *flip(void *arg)
{
	(void)arg;
	for (;;) {
		_Atomic uint32_t *word = atomic_load(&flipper.word);
		uint32_t was;

		if (!word) {
			atomic_store(&flipper.running, false);
			sched_yield();
			continue;
		}
		atomic_store(&flipper.running, true);
		was = atomic_exchange(word, atomic_load(&flipper.value));
		for (volatile int i = 0; i < 20; i++)
			;
		atomic_store(word, was);
	}
	return NULL;
}

static void flip_stop(void)
{
	atomic_store(&flipper.word, NULL);
	while (atomic_load(&flipper.running))
		sched_yield();
}

/* ---- What is handed out ---- */

static void check_dtype(DLDataType t)
{
	const char *why;

	fuzz_check(!tensor_dtype_check(t, &why));
}

static void check_tensor(const DLManagedTensorVersioned *t)
{
	const DLTensor *d = &t->dl_tensor;
	uint64_t nbytes;
	volatile unsigned char sum = 0;

	check_dtype(d->dtype);
	fuzz_check(!tensor_nbytes(d->dtype, d->ndim, d->shape,
				  t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, &nbytes));
	if (d->device.device_type != kDLCPU)
		return;
	fuzz_check(nbytes <= LIAR_SEGMENT_BYTES && (!nbytes || d->data));
	for (uint64_t i = 0; i < nbytes; i++)
		sum = (unsigned char)(sum + ((const unsigned char *)d->data)[i]);
	if (nbytes && !(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY))
		memset(d->data, sum, nbytes);
}

static int check_info(const tl_info *info, void *context)
{
	uint64_t nbytes;
	const char *why;

	(void)context;
	check_dtype(info->dtype);
	fuzz_check(!tensor_name_check(info->name, strnlen(info->name, sizeof(info->name)), &why));
	fuzz_check(info->metadata_size <= TL_METADATA_MAX);
	fuzz_check(!tensor_nbytes(info->dtype, info->ndim, info->shape,
				  info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
				  &nbytes));
	fuzz_check(nbytes == info->nbytes);
	return 0;
}

static int check_client(const tl_client_info *info, void *context)
{
	fuzz_check(strnlen(info->label, sizeof(info->label)) < sizeof(info->label));
	return ++*(unsigned *)context > 4;
}

static int check_holding(const tl_holding *holding, void *context)
{
	fuzz_check(strnlen(holding->name, sizeof(holding->name)) < sizeof(holding->name));
	return ++*(unsigned *)context > 4;
}

static void keep(DLManagedTensorVersioned *t)
{
	check_tensor(t);
	if (nheld == HELD_MAX)
		t->deleter(t);
	else
		held[nheld++] = t;
}

static void drop_all(void)
{
	while (nheld) {
		check_tensor(held[--nheld]);
		held[nheld]->deleter(held[nheld]);
	}
}

/* ---- Calls ---- */

static const char *const names[] = { "a", "b", "c" };

static void step_get(unsigned how)
{
	tl_get_options o = { .size = sizeof(o),
			     .mode = how & 4 ? TL_MODE_COPY_ON_WRITE : TL_MODE_READ,
			     .newer_than = how & 8 ? 1 : 0,
			     .timeout_ns = how & 16 ? TIMEOUT_NS : 0 };
	DLManagedTensorVersioned *t, *many[3];
	tl_info info = { .size = sizeof(info) };

	if (how & 32) {
		o.newer_than = 0;
		if (!tl_get_many(client, names, 2, &o, many)) {
			keep(many[0]);
			keep(many[1]);
		}
		return;
	}
	if (tl_get(client, names[how % 3], &o, &t))
		return;
	if (!tl_tensor_info(t, &info))
		check_info(&info, NULL);
	if (how & 64 && !tl_remap(t, TL_MODE_READ, &many[0]))
		keep(many[0]);
	keep(t);
}

static void step_look(unsigned how)
{
	tl_status status = { .size = sizeof(status) };
	tl_info info = { .size = sizeof(info) };

	switch (how % 4) {
	case 0:
		if (!tl_stat(client, names[how / 4 % 3], &info))
			check_info(&info, NULL);
		break;
	case 1:
		tl_list(client, NULL, check_info, NULL);
		break;
	case 2:
		tl_get_status(client, &status);
		break;
	default:
		drop_all();
	}
}

static void step_put(unsigned how)
{
	int64_t shape[] = { 4, 1 + (how & 15) * 20 };
	tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 2, .dtype = { kDLUInt, 8, 1 }
	};
	tl_draft *draft[2] = { NULL };
	uint64_t version;

	for (unsigned i = 0; i <= (how >> 4 & 1); i++)
		if (tl_create(client, "d", &spec, &draft[i]))
			draft[i] = NULL;
	for (unsigned i = 0; i < 2; i++) {
		if (!draft[i])
			continue;
		memset(tl_draft_tensor(draft[i])->data, 9, (size_t)(shape[0] * shape[1]));
		if (how & 32)
			tl_abort(draft[i]);
		else
			tl_commit(draft[i], how & 64 ? &version : NULL);
	}
}

static void step_ask(unsigned how)
{
	unsigned visits = 0;
	tl_wait_item item = { .name = names[how / 4 % 3], .newer_than = how & 64 ? 1 : 0 };
	size_t which;

	switch (how % 4) {
	case 0:
		tl_list_clients(client, check_client, &visits);
		break;
	case 1:
		tl_list_holdings(client, 1, check_holding, &visits);
		break;
	case 2:
		tl_delete(client, "b");
		break;
	default:
		tl_wait_many(client, &item, 1, &TL_INIT(tl_wait_options, .timeout_ns = TIMEOUT_NS),
			     &which);
	}
}

static void step_publish(void)
{
	bool copied;

	/*
	 * Publishes a held tensor under another name, or a copy of it, and hands it over if
	 * possible.
	 */
	if (nheld && !tl_publish(client, "c", held[nheld - 1], NULL, &copied, NULL))
		nheld--;
}

/* ---- Inputs ---- */

static void honest(void)
{
	const int64_t shape[] = { 2, 3, 100 };

	liar_repent(&liar);
	liar_publish(&liar, 0, "a", 3, shape, 0, 256);
	liar_publish(&liar, 1, "b", 3, shape, 1, 0);
	answers.n = answers.next = 0;
	liar.answer = answer_from_input;
}

static void begin(void)
{
	static bool begun;

	if (begun)
		return;
	begun = true;
	liar_start(&liar);
	others[0] = memfd_create("short", MFD_CLOEXEC);
	others[1] = open("/dev/zero", O_RDWR | O_CLOEXEC);
	others[2] = open("/", O_RDONLY | O_CLOEXEC);
	others[3] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	fuzz_check(!pthread_create(&flipper.thread, NULL, flip, NULL));
}

static void step_lie(struct input_bytes *in)
{
	unsigned what = take_u8(in);
	uint64_t value = take_u16(in);

	switch (what % 6) {
	case 0:
		atomic_store(&liar.segment_size, value << what / 6);
		break;
	case 1:
		atomic_store(&liar.descriptor, value & 4 ? -1 : others[value % 4]);
		break;
	case 2:
		liar.draft.offset = value * 256;
		liar.draft.segment = (uint32_t)what / 6 % LIAR_SEGMENTS;
		break;
	case 3:
		liar.draft.flags = value & 1 ? WIRE_DRAFT_FD : 0;
		liar.draft.segment_generation = (uint32_t)value >> 1 & 3;
		liar.draft.ref = ref_make(1, (uint32_t)value >> 3);
		break;
	case 4:
		liar.catalog->segments[value % LIAR_SLOTS].word = live_word(what / 6);
		break;
	default:
		atomic_store(&flipper.value, (uint32_t)(value << what / 6 % 17));
		atomic_store(&flipper.word,
			     (_Atomic uint32_t *)(void *)((char *)liar.catalog +
							  offsetof(struct liar_catalog, buckets)) +
				     value % 1024);
	}
}

static void step(struct input_bytes *in)
{
	unsigned what = take_u8(in), how = what / 8;

	switch (what % 8) {
	case 0:
		step_write(in);
		break;
	case 1:
		step_answer(in);
		break;
	case 2:
		step_lie(in);
		break;
	case 3:
		step_get(take_u8(in));
		break;
	case 4:
		step_look(how);
		break;
	case 5:
		step_put(take_u8(in));
		break;
	case 6:
		step_ask(take_u8(in));
		break;
	default:
		step_publish();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input_bytes in = { data, size };
	unsigned before = take_u8(&in) % 4; /* the number of lies before the connection */

	begin();
	honest();
	while (before-- && in.left)
		step_write(&in);
	if (liar_try_connect(&liar, TIMEOUT_NS, &client))
		return 0;
	for (unsigned n = 0; in.left && n < STEPS_MAX; n++)
		step(&in);
	flip_stop();
	drop_all();
	tl_close(client);
	return 0;
}

#ifndef TL_LIBFUZZER
PLAIN_TEST(lies_of_the_corpus_are_survived)
{
	if (THREAD_SANITIZER) {
		print_message("SKIP: the thread sanitizer would see the races that this is\n");
		skip();
	}
	assert_true(replay("client") > 0);
	liar_stop(&liar);
}

int main(void)
{
	return suite_run();
}
#endif
