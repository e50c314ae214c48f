/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thousand clients are killed, each at a random moment of a busy life, or fewer where that would
 * take too long. TL_KILLS sets another number. TL_TEST_SEED sets the seed, but the scheduler
 * decides what a moment hits.
 */
#include <time.h>

#include "tests/crash/press.h"
#include "tests/harness/messages.h"
#include "tests/harness/number.h"
#include "tests/harness/seed.h"

enum {
	KILLS = 1000,
	KILLS_MIN = 100,
	AT_ONCE = 8,
	NAMES = 12,
	HELD_MAX = 6,
	MAIL = 16,
	LONGEST_US = 30000
};

struct life {
	tl_client *client;
	uint64_t x;
	DLManagedTensorVersioned *held[HELD_MAX];
};

static uint64_t random_below(uint64_t *x, uint64_t below)
{
	return samples_random(x) % below;
}

static const char *some_name(struct life *l, char name[16])
{
	snprintf(name, 16, "k/%u", (unsigned)random_below(&l->x, NAMES));
	return name;
}

/* These errors may happen, since others do the same to the same names. */
static void must_be_expected(int r)
{
	switch (r) {
	case 0:
	case -ENOENT:
	case -ENOSPC:
	case -EDQUOT:
		return;
	default:
		must_be(r, 0);
	}
}

static tl_draft *life_draft(struct life *l, int64_t *nbytes)
{
	static const int64_t sizes[] = { 0, 100, 4096, 60000, 70000, 300000, 1 << 20 };
	tl_spec spec = { .size = sizeof(spec),
			 .shape = nbytes,
			 .ndim = 1,
			 .dtype = { .code = 1, .bits = 8, .lanes = 1 } };
	tl_draft *draft = NULL;
	char name[16];

	*nbytes = sizes[random_below(&l->x, 7)];
	spec.ring = (uint32_t)random_below(&l->x, 8); /* rings begin and end all the time */
	must_be_expected(tl_create(l->client, some_name(l, name), &spec, &draft));
	return draft;
}

static void life_produce(struct life *l)
{
	uint64_t version;
	int64_t nbytes;
	tl_draft *draft = life_draft(l, &nbytes);

	if (!draft)
		return;
	if (nbytes)
		memset(tl_draft_tensor(draft)->data, (int)random_below(&l->x, 256), (size_t)nbytes);
	if (random_below(&l->x, 4) == 0)
		tl_abort(draft);
	else
		must_be_expected(tl_commit(draft, random_below(&l->x, 2) ? &version : NULL));
}

static void life_put(struct life *l)
{
	static unsigned char bytes[5000];
	int64_t shape[5] = { 5, 10, 10, 5, 2 };
	tl_put_options o = { .size = sizeof(o),
			     .metadata = bytes,
			     .metadata_size = random_below(&l->x, 1024) };
	DLTensor source = { .data = bytes,
			    .device = { kDLCPU, 0 },
			    .ndim = 5,
			    .shape = shape,
			    .dtype = { .code = 1, .bits = 8, .lanes = 1 } };
	int64_t strides[5] = { 1000, 100, 10, 2, 1 };
	char name[16];

	source.strides = strides;
	if (random_below(&l->x, 2)) {
		o.ring = 5;
		o.metadata_size %= 24;
	}
	must_be_expected(tl_put(l->client, some_name(l, name), &source, &o, NULL));
}

static void life_get(struct life *l)
{
	DLManagedTensorVersioned **held = &l->held[random_below(&l->x, HELD_MAX)], *tensor = NULL;
	tl_get_options o = { .size = sizeof(o) };
	bool cow = random_below(&l->x, 4) == 0;
	volatile unsigned char *data;
	DLTensor *t;
	char name[16];
	int r;

	o.mode = cow ? TL_MODE_COPY_ON_WRITE : TL_MODE_READ;
	r = tl_get(l->client, some_name(l, name), &o, &tensor);
	must_be_expected(r);
	if (r)
		return;
	t = &tensor->dl_tensor;
	data = t->data;
	if (data && t->ndim == 1) {
		must_be(data[0], data[t->shape[0] - 1]); /* all bytes are of one writer */
		if (cow)				 /* this copy may be published later */
			data[0] = data[t->shape[0] - 1] = (unsigned char)(data[0] + 1);
	}
	if (*held)
		(*held)->deleter(*held);
	*held = tensor;
}

static void life_link(struct life *l)
{
	DLManagedTensorVersioned **held = &l->held[random_below(&l->x, HELD_MAX)];
	char name[16];

	if (*held && !tl_publish(l->client, some_name(l, name), *held, NULL, NULL, NULL))
		*held = NULL; /* consumed */
}

/* Tokens for others. One that is changed while it is read, or before it was ever written, is no
 * token, or one of a tensor that is gone. */
static unsigned char (*mail)[TL_TOKEN_SIZE];

static void life_hand_on(struct life *l)
{
	DLManagedTensorVersioned *t = l->held[random_below(&l->x, HELD_MAX)];
	unsigned char token[TL_TOKEN_SIZE];
	int r = t ? tl_handover(l->client, t, random_below(&l->x, 2) ? 0 : SECOND / 100,
				random_below(&l->x, 8) == 0, token)
		  : 0;

	if (r == -EINVAL || r == -ENOTSUP)
		return; /* it is of a former client's connection, or was written to */
	must_be_expected(r);
	if (t && !r)
		memcpy(mail[random_below(&l->x, MAIL)], token, sizeof(token));
}

static void life_receive(struct life *l)
{
	DLManagedTensorVersioned **held = &l->held[random_below(&l->x, HELD_MAX)], *tensor = NULL;
	int r = tl_receive(l->client, mail[random_below(&l->x, MAIL)], NULL, &tensor);
	const unsigned char *data;

	if (r != -EINVAL)
		must_be_expected(r);
	if (r)
		return;
	data = tensor->dl_tensor.data;
	if (data && tensor->dl_tensor.ndim == 1)
		must_be(data[0], data[tensor->dl_tensor.shape[0] - 1]);
	if (*held)
		(*held)->deleter(*held);
	*held = tensor;
}

__attribute__((noreturn)) static int live(const struct test_daemon *d, void *arg)
{
	struct life l = { .x = *(uint64_t *)arg };
	char name[16];

	l.client = td_connect(d);
	life_put(&l);
	parent_tell(1);
	tl_close(l.client);
	for (;;) {
		l.client = td_connect(d);
		for (unsigned n = 20 + (unsigned)random_below(&l.x, 500); n; n--) {
			switch (random_below(&l.x, 11)) {
			case 0:
			case 1:
				life_produce(&l);
				break;
			case 2:
				life_put(&l);
				break;
			case 3:
				life_link(&l);
				break;
			case 4:
				if (random_below(&l.x, 4) == 0)
					must_be_expected(tl_delete(l.client, some_name(&l, name)));
				break;
			case 8:
				life_hand_on(&l);
				break;
			case 9:
			case 10:
				life_receive(&l);
				break;
			default:
				life_get(&l);
			}
		}
		tl_close(l.client); /* its leases stay */
		for (unsigned i = 0; i < HELD_MAX; i++) {
			if (l.held[i])
				l.held[i]->deleter(l.held[i]);
			l.held[i] = NULL;
		}
	}
}

/* Returns how many there were. */
static unsigned kill_at_random(const struct test_daemon *d, unsigned kills)
{
	static uint64_t seeds[AT_ONCE];
	struct test_child children[AT_ONCE] = { { 0 } };
	unsigned others = 0;
	int64_t end = now_ns() + test_limit(120) * SECOND;
	uint64_t x = test_seed(20261121);
	struct timespec ts;
	int status;

	for (unsigned n = 0; n < kills + AT_ONCE; n++) {
		struct test_child *c = &children[n % AT_ONCE];

		if (n < kills && n >= KILLS_MIN && now_ns() > end)
			kills = n; /* the last ones that were started are still killed */
		if (c->pid) {
			/*
			 * However slow the machine is, half of them get beyond their first tensor.
			 */
			if (n % 2)
				child_await(c);
			ts = (struct timespec){
				.tv_nsec = (long)random_below(&x, LONGEST_US / AT_ONCE * 2) * 1000
			};
			nanosleep(&ts, NULL); /* The test is that any moment will do. */
			must_be(kill(c->pid, SIGKILL), 0);
			status = child_wait(c);
			others += !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		}
		if (n < kills) {
			seeds[n % AT_ONCE] = random_below(&x, UINT64_MAX) | 1;
			*c = child_start(d, live, &seeds[n % AT_ONCE]);
		}
	}
	must_be(others, 0); /* no child ended in any other way */
	return kills;
}

static int one_more(const tl_client_info *info, void *context)
{
	unsigned *count = context;

	++*count;
	must_be(info->leases, 0);
	must_be(info->drafts, 0);
	return 0;
}

static void delete_all(tl_client *client)
{
	char name[16];
	int r;

	for (unsigned i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "k/%u", i);
		r = tl_delete(client, name);
		must(r == 0 || r == -ENOENT);
	}
}

TEST(a_thousand_killed_clients_leave_nothing)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB, .extra = extra);
	unsigned fds, objects, clients = 0, kills = test_number("TL_KILLS", KILLS);
	struct tl_status s = td_status(&d);
	struct press *press = press_new(256 * MIB);
	struct test_child presser;
	tl_client *client;

	test_timeout(360);
	must_be(s.clients, 0);
	fds = count_fds(d.pid);
	objects = td_objects(&d);
	mail = mmap(NULL, MAIL * sizeof(*mail), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
	must(mail != MAP_FAILED);

	presser = press_start(&d, press);
	kills = kill_at_random(&d, kills);
	press_stop(press, &presser, 20);
	munmap(mail, MAIL * sizeof(*mail));

	s = td_status(&d);
	print_message("%u kills, %llu commits; left: %u tensors in %u segments, %llu bytes\n",
		      kills, (unsigned long long)s.commits, s.tensors, s.segments,
		      (unsigned long long)s.bytes_used);
	must(s.commits > kills / 4); /* for want of space some first ones fail */
	must_be(s.drafts, 0);
	must_be(s.retired, 0);
	client = td_connect(&d);
	must_be(tl_list_clients(client, one_more, &clients), 0);
	must_be(clients, 1);
	delete_all(client);
	tl_close(client);

	td_must_be_empty(&d);
	eventually(td_objects(&d) == objects);
	must_be(count_fds(d.pid), fds);
}

int main(void)
{
	return suite_run();
}
