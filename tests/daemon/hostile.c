/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that break the protocol. Whatever they do, the daemon lives, keeps no descriptor, object
 * or byte of theirs, and serves the others.
 */
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "tests/daemon/device_common.h"
#include "tests/harness/harness.h"
#include "tests/harness/messages.h"
#include "tests/harness/number.h"

enum { MALFORMED = 20000 }; /* TL_FUZZ_ROUNDS sets another number */

static struct samples all;

/* Does one round of honest work on another connection. */
static void honest_work(struct raw *rc)
{
	struct wire_draft draft;

	must_be(rc_put(rc, "honest", 1000, 1, &draft), 0);
	must(rc_hold(rc, draft.ref));
	rc_drop(rc, draft.ref);
}

/* Changes a sample until it is not valid any more. */
static void spoil(struct sample *s, uint64_t *seed)
{
	do {
		size_t at = (samples_random(seed) >> 8) % (s->length < 64 ? s->length : 64);

		switch (samples_random(seed) % 8) {
		case 0: /* its length is not what it says */
			s->length = 1 + samples_random(seed) % (WIRE_MAX - 1);
			break;
		case 1: /* its length is another one, and it says so */
			s->length = sizeof(struct wire_header) + samples_random(seed) % 2000;
			s->header.length = (uint32_t)s->length;
			break;
		case 2:
		case 3:
			s->nfds = (unsigned)(samples_random(seed) % 8);
			break;
		default:
			s->bytes[at] ^= (unsigned char)(1 << samples_random(seed) % 8);
		}
	} while (wire_check(s->bytes, s->length, s->nfds, WIRE_TO_DAEMON, NULL) == 0);
}

/* Opens a connection up to @stage: 0 connected, 1 said hello, 2 ready. */
static struct raw connection_at(const struct test_daemon *d, unsigned stage)
{
	struct raw rc = rc_connect(d);

	if (stage >= 1)
		rc_hello(&rc);
	if (stage >= 2)
		rc_ledger(&rc);
	return rc;
}

TEST(who_connects_again_and_again_does_not_fill_the_log)
{
	enum { ROUNDS = 1000 };
	cleanup_td struct test_daemon d = td_start();
	int64_t began = now_ns();
	unsigned lines = 0;
	char *log;

	for (int i = 0; i < ROUNDS; i++) {
		struct raw rc = rc_connect(&d);

		must_be(rc_send_bytes(&rc, "wrong", 5, -1, 0), 0);
		rc_must_end(&rc);
		rc_close(&rc);
	}
	log = td_log(&d);
	for (const char *p = log; (p = strstr(p, "bad message")); p++)
		lines++;
	free(log);
	must(lines >= 1);
	must(lines <= 11 + (now_ns() - began) / SECOND);
}

TEST(malformed_messages_of_all_kinds_change_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d);
	uint64_t seed = 0x9e3779b97f4a7c15;
	unsigned rounds = test_number("TL_FUZZ_ROUNDS", MALFORMED);
	struct device_before before;

	test_timeout(280);
	samples_make(&all);
	honest_work(&honest);
	before = device_look(&d);
	for (unsigned i = 0; i < rounds; i++) {
		struct sample s = all.list[samples_random(&seed) % all.n];
		struct raw rc = connection_at(&d, i % 10 < 8 ? 0 : i % 10 - 7);

		spoil(&s, &seed);
		must_be(rc_send_bytes(&rc, s.bytes, s.length, honest.catalog_fd, s.nfds), 0);
		if (i % 8 == 0)
			rc_must_end(&rc); /* the others have left before they hear of it */
		rc_close(&rc);
		if (i % 500 == 0)
			honest_work(&honest);
	}
	must_be_as_before(&d, &before);
	rc_goodbye(&honest);
}

/* Well-formed messages about things that do not exist or belong to others. */
TEST(valid_messages_with_random_contents_change_nothing)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = extra);
	struct raw honest = rc_open(&d), rc = rc_open(&d);
	uint64_t seed = 0x2545f4914f6cdd1d;
	unsigned rounds = test_number("TL_FUZZ_ROUNDS", MALFORMED);
	struct device_before before;
	struct conn_message m;

	test_timeout(280);
	samples_make(&all);
	honest_work(&honest);
	rc_close(&rc);
	before = device_look(&d);
	rc = rc_open(&d);
	for (unsigned i = 0; i < rounds; i++) {
		struct sample s = all.list[samples_random(&seed) % all.n];
		struct wire_header *h = &s.header;

		for (unsigned k = samples_random(&seed) % 8; k > 0; k--) {
			size_t at = 16 + samples_random(&seed) % 48;

			if (at < s.length)
				s.bytes[at] = (unsigned char)(samples_random(&seed) % 4
								      ? 0
								      : samples_random(&seed));
		}
		if (wire_check(s.bytes, s.length, s.nfds, WIRE_TO_DAEMON, NULL) ||
		    h->type == WIRE_HELLO || h->type == WIRE_LEDGER || h->type == WIRE_HOLD)
			continue;
		if (h->type == WIRE_CREATE) /* it must not wait */
			s.create.timeout_ns = 0;
		if (h->type == WIRE_OPEN) /* a stream would stay */
			((struct wire_open *)(void *)s.bytes)->flags &= ~(uint32_t)WIRE_OPEN_MAKE;
		h->serial = ++rc.serial;
		must_be(rc_send_bytes(&rc, s.bytes, s.length, honest.ledger_fd, s.nfds), 0);
		if (i % 16 == 0) {
			struct wire_plain sync = { 0 };

			must_be(rc_call(&rc, WIRE_SYNC, &sync, sizeof(sync), &m), 0);
			honest_work(&honest);
		}
		while (conn_receive(rc.fd, WIRE_TO_CLIENT, &m, MSG_DONTWAIT) == 0)
			if (m.fd >= 0)
				close(m.fd);
	}
	rc_close(&rc);
	rc_delete(&honest, "n");
	must_be_as_before(&d, &before);
	rc_goodbye(&honest);
}

TEST(half_a_hello_and_silence_harm_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	struct wire_hello hello = {
		.header = { .type = WIRE_HELLO, .length = sizeof(hello), .serial = 1 },
		.version_min = 1,
		.version_max = 1
	};
	struct raw honest = rc_open(&d), silent[32];
	struct device_before before;

	honest_work(&honest);
	before = device_look(&d);
	for (int i = 0; i < 32; i++)
		silent[i] = connection_at(&d, (unsigned)i % 2);
	for (size_t length = 1; length < sizeof(hello); length++) {
		struct raw rc = rc_connect(&d);

		must_be(rc_send_bytes(&rc, &hello, length, -1, 0), 0);
		rc_must_end(&rc);
		rc_close(&rc);
	}
	honest_work(&honest);
	for (int i = 0; i < 32; i++)
		rc_close(&silent[i]);
	must_be_as_before(&d, &before);
	rc_goodbye(&honest);
}

TEST(a_message_out_of_order_ends_the_connection)
{
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	int ledger;

	samples_make(&all);
	for (unsigned stage = 0; stage < 3; stage++) {
		for (size_t i = 0; i < all.n && all.list[i].side == WIRE_TO_DAEMON; i++) {
			struct sample *s = &all.list[i];
			unsigned type = s->header.type;
			struct raw rc;

			if (stage == 0	 ? type == WIRE_HELLO
			    : stage == 1 ? type == WIRE_LEDGER || type == WIRE_HOLD
					 : type > WIRE_LEDGER && type != WIRE_HOLD)
				continue;
			rc = connection_at(&d, stage);
			ledger = ledger_new(16, LEDGER_MAGIC);
			must_be(rc_send_bytes(&rc, s->bytes, s->length, ledger, s->nfds), 0);
			close(ledger);
			rc_must_end(&rc);
			rc_close(&rc);
		}
	}
	must_be_as_before(&d, &before);
}

/* Limits the wait of a client that should be disconnected but is not. */
/* Sends until the daemon reads no further, though it does what others ask. Returns how many. */
static unsigned send_until_unread(struct raw *bad, struct raw *honest, enum wire_type type,
				  void *message, size_t length)
{
	unsigned sent = 0;
	int r = 0;

	must_be(fcntl(bad->fd, F_SETFL, O_NONBLOCK), 0);
	for (bool again = false; r == 0 || (r == -EAGAIN && !again); sent += r == 0) {
		again = r == -EAGAIN;
		if (again || sent % 64 == 0)
			honest_work(honest);
		((struct wire_header *)message)->serial = 0;
		r = rc_send(bad, type, message, length, -1);
	}
	must_be(r, -EAGAIN);
	must(sent < 100000);
	return sent;
}

TEST(who_never_takes_its_descriptors_is_read_no_further)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), bad;
	struct wire_map map = { .name = CATALOG_NONE };
	struct wire_draft draft;
	struct device_before before;
	struct conn_message m;
	unsigned sent;
	int fd = -1;

	must_be(rc_put(&honest, "mapped", MIB, 3, &draft), 0);
	must(rc_hold(&honest, draft.ref));
	must_be(rc_map(&honest, draft.ref, &fd), 0); /* the daemon may keep one descriptor open for
							this */
	close(fd);
	honest_work(&honest);
	before = device_look(&d);
	for (int reads = 0; reads < 2; reads++) {
		bad = rc_open(&d);
		must(rc_hold(&bad, draft.ref));
		map.ref = draft.ref;
		sent = send_until_unread(&bad, &honest, WIRE_MAP, &map, sizeof(map));
		must(count_fds(d.pid) <= before.fds + 16);
		for (; reads && sent; sent--) {
			must_be(rc_receive(&bad, &m), 0);
			must_be(m.header.type, WIRE_SEGMENT);
			must(m.fd >= 0);
			close(m.fd);
		}
		if (reads)
			rc_sync(&bad);
		rc_close(&bad);
		must_be_as_before(&d, &before);
	}
	rc_goodbye(&honest);
}

/* A daemon in which a tensor can be evicted, and @bad has a draft that it does not use. */
struct crowded {
	struct test_daemon d;
	struct raw bad;
	tl_client *client;
	unsigned char *bytes;
};

static int put_three(const struct crowded *c, const char *name, const tl_put_options *o)
{
	int64_t shape[1] = { 3 * MIB };
	const DLTensor source = { .data = c->bytes,
				  .device = { kDLCPU, 0 },
				  .ndim = 1,
				  .dtype = { kDLUInt, 8, 1 },
				  .shape = shape };

	return tl_put(c->client, name, &source, o, &(uint64_t){ 0 });
}

static void crowded_begin(struct crowded *c)
{
	struct wire_create create = { .nbytes = 4 * MIB, .flags = WIRE_CREATE_PREFETCH };
	const tl_put_options evictable = { .size = sizeof(evictable),
					   .lifetime = TL_LIFETIME_EVICTABLE };
	struct conn_message m;

	c->d = td_start(.capacity = 8 * MIB);
	c->bad = rc_open(&c->d);
	c->client = td_connect(&c->d);
	c->bytes = calloc(1, 3 * MIB);
	must_be(put_three(c, "old", &evictable), 0);
	must_be(rc_call(&c->bad, WIRE_CREATE, &create, sizeof(create), &m), 0);
	must_be(rc_judge(&m, WIRE_DRAFT), 0);
	close(m.fd);
}

static void crowded_end(struct crowded *c)
{
	must_be(tl_close(c->client), 0);
	rc_close(&c->bad);
	free(c->bytes);
	td_stop(&c->d);
}

/* What it may have committed meanwhile cannot be taken from it; others have room nevertheless. */
TEST(who_never_reads_its_answers_keeps_nobody_from_making_space)
{
	struct wire_devices ask = { 0 };
	struct crowded c;
	struct raw honest;

	crowded_begin(&c);
	honest = rc_open(&c.d);
	send_until_unread(&c.bad, &honest, WIRE_DEVICES, &ask, sizeof(ask));
	must_be(put_three(&c, "new", NULL), 0);
	rc_close(&honest);
	crowded_end(&c);
}

static void send_requests(struct raw *rc, unsigned n)
{
	struct wire_devices ask = { 0 };

	for (; n; n--) {
		ask.header.serial = 0;
		must_be(rc_send(rc, WIRE_DEVICES, &ask, sizeof(ask), -1), 0);
	}
}

/* How many requests the daemon answers on a connection of which nobody reads the answers. */
static unsigned answers_until_owed(const struct test_daemon *d, struct raw *honest)
{
	struct raw rc = rc_open(d);
	unsigned answered = 0;
	int unread;

	for (;; answered++) {
		send_requests(&rc, 1);
		rc_sync(honest);
		must_be(ioctl(rc.fd, SIOCOUTQ, &unread), 0);
		if (unread)
			break;
	}
	rc_close(&rc);
	return answered;
}

/* The draft may be in an unread message when others ask for space, and a moment later nothing
 * says when the rest is read. */
TEST(who_stops_reading_its_answers_meanwhile_keeps_nobody_from_making_space)
{
	enum { ROOM = 6, MORE = 40 };
	struct wire_create create = { .nbytes = 4 * MIB };
	struct crowded c;
	struct conn_message m;
	struct raw honest;

	crowded_begin(&c);
	must_be(tl_close(c.client), 0); /* sealed memory stays while it is mapped */
	c.client = NULL;
	honest = rc_open(&c.d);
	send_requests(&c.bad, answers_until_owed(&c.d, &honest) - ROOM);
	rc_sync(&honest);
	td_freeze(&c.d);
	must_be(rc_send(&honest, WIRE_CREATE, &create, sizeof(create), -1), 0);
	send_requests(&c.bad, MORE);
	td_thaw(&c.d);
	must_be(rc_receive(&honest, &m), 0);
	must_be(rc_judge(&m, WIRE_DRAFT), 0);
	close(m.fd);
	rc_close(&honest);
	crowded_end(&c);
}

struct flood {
	struct raw *rc;
	atomic_uint sent;
	atomic_bool over;
};

/* With so many messages underway its socket is not even empty while others run. Who may not have
 * them may seem honest sometimes. */
static void *flood_run(void *arg)
{
	enum { AT_ONCE = 64 };
	const int room = 32 << 20;
	struct wire_ref released = {
		.header = { .type = WIRE_RELEASED, .length = sizeof(released), .serial = 1000 },
		.ref = ref_make(1000, 0)
	};
	struct iovec bytes = { .iov_base = &released, .iov_len = sizeof(released) };
	struct mmsghdr list[AT_ONCE];
	struct flood *f = arg;

	(void)!setsockopt(f->rc->fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	for (unsigned i = 0; i < AT_ONCE; i++)
		list[i] = (struct mmsghdr){ .msg_hdr = { .msg_iov = &bytes, .msg_iovlen = 1 } };
	while (!atomic_load(&f->over)) {
		int n = sendmmsg(f->rc->fd, list, AT_ONCE, MSG_NOSIGNAL);

		must(n > 0);
		atomic_fetch_add(&f->sent, (unsigned)n);
	}
	return NULL;
}

/* It is owed nothing, and whatever was read, there is more. */
TEST(who_never_stops_sending_keeps_nobody_from_making_space)
{
	struct crowded c;
	struct flood f = { .rc = &c.bad };
	pthread_t thread;

	crowded_begin(&c);
	must_be(pthread_create(&thread, NULL, flood_run, &f), 0);
	eventually(atomic_load(&f.sent) > 20000);
	must_be(put_three(&c, "new", NULL), 0);
	atomic_store(&f.over, true);
	must_be(pthread_join(thread, NULL), 0);
	crowded_end(&c);
}

TEST(who_never_reads_its_answers_is_told_that_it_was_kicked)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), bad = rc_open(&d);
	struct wire_kick kick = { .uid = UINT32_MAX, .until = UINT64_MAX };
	struct wire_devices ask = { 0 };
	struct conn_message m;

	send_until_unread(&bad, &honest, WIRE_DEVICES, &ask, sizeof(ask));
	must_be(rc_call(&honest, WIRE_KICK, &kick, sizeof(kick), &m), 0);
	must_be(rc_judge(&m, WIRE_KICKED), 0);
	do {
		must_be(conn_receive(bad.fd, WIRE_TO_CLIENT, &m, 0), 0);
	} while (m.header.type == WIRE_DONE);
	rc_must_fail(&m, WIRE_E_KICKED);
	rc_close(&bad);
	rc_close(&honest);
}

TEST(who_never_reads_its_answers_is_read_no_further)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), bad;
	struct device_before before;
	struct wire_devices ask = { 0 };
	struct conn_message m;
	unsigned sent;

	honest_work(&honest);
	before = device_look(&d);
	for (int reads = 0; reads < 2; reads++) {
		bad = rc_open(&d);
		sent = send_until_unread(&bad, &honest, WIRE_DEVICES, &ask, sizeof(ask));
		for (; reads && sent; sent--) {
			must_be(rc_receive(&bad, &m), 0);
			must_be(m.header.type, WIRE_DONE);
		}
		if (reads)
			rc_sync(&bad);
		rc_close(&bad);
		must_be_as_before(&d, &before);
	}
	rc_goodbye(&honest);
}

static void ask_to_map(struct raw *rc, const struct wire_draft *draft)
{
	struct wire_map map = { .ref = draft->ref, .name = CATALOG_NONE };

	must_be(rc_send(rc, WIRE_MAP, &map, sizeof(map), -1), 0);
}

static void take_mapped(struct raw *rc)
{
	struct conn_message m;

	must_be(rc_receive(rc, &m), 0);
	must_be(m.header.type, WIRE_SEGMENT);
	close(m.fd);
}

TEST(who_has_16_descriptors_to_take_keeps_its_connection)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_draft draft;

	must_be(rc_put(&rc, "mapped", MIB, 3, &draft), 0);
	must(rc_hold(&rc, draft.ref));
	for (int round = 0; round < 200; round++) {
		for (int i = 0; i < WIRE_FDS_UNREAD_MAX; i++)
			ask_to_map(&rc, &draft);
		for (int i = 0; i < WIRE_FDS_UNREAD_MAX; i++)
			take_mapped(&rc);
	}
	rc_goodbye(&rc);
}

/* This client is like one with several threads: its socket is never quite empty, but it reads what
 * it is sent. */
TEST(who_always_has_a_few_to_take_keeps_its_connection)
{
	enum { PIPELINED = 4 };
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft;

	must_be(rc_put(&rc, "mapped", MIB, 3, &draft), 0);
	must(rc_hold(&rc, draft.ref));
	for (int i = 0; i < PIPELINED; i++)
		ask_to_map(&rc, &draft);
	for (int i = 0; i < 500; i++) {
		ask_to_map(&rc, &draft);
		if (i % 10 == 0)
			rc_sync(&other); /* then all that was asked has been answered */
		take_mapped(&rc);
	}
	for (int i = 0; i < PIPELINED; i++)
		take_mapped(&rc);
	rc_goodbye(&rc);
	rc_goodbye(&other);
}

/* It keeps its descriptor, says that it has unmapped the segment, and goes on writing there. */
TEST(who_only_says_that_a_segment_is_unmapped_is_watched_and_gets_no_other_in_its_place)
{
	cleanup_td struct test_daemon d = td_start(.storage = "shm");
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_draft a, b;
	struct wire_segment_ref seg;

	must_be(rc_create(&rc, "a", MIB, 0, &a), 0);
	seg = (struct wire_segment_ref){ .segment = a.segment,
					 .segment_generation = a.segment_generation };
	rc_unmapped(&other, &seg); /* which is not his */
	rc_unmapped(&rc, &seg);	   /* with a draft in it */
	rc_unmapped(&rc, &seg);
	must_be(rc_commit(&rc, a.ref, "a", MIB), 0);
	must_be(rc_delete(&rc, "a"), 0);
	must_be(rc_create(&rc, "b", MIB, 0, &b), 0);
	must(b.flags & WIRE_DRAFT_FD);
	must(b.segment != a.segment || b.segment_generation != a.segment_generation);
	seg = (struct wire_segment_ref){ .segment = b.segment,
					 .segment_generation = b.segment_generation };
	rc_unmapped(&rc, &seg);
	must_be(rc_commit(&rc, b.ref, "b", MIB), 0);
	honest_work(&other);
	must_be(td_status(&d).clients, 2);
	must_be(ftruncate(rc_writable(&rc, &b), 2 * MIB), 0);
	eventually(td_status(&d).clients == 1); /* as without that word */
	honest_work(&other);
	rc_close(&rc);
	rc_goodbye(&other);
}

int main(void)
{
	return suite_run();
}
