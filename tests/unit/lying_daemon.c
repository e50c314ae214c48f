/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library and a daemon that lies (tests/harness/liar.h) in its messages and descriptors, and
 * about what of its memory is gone: nothing is read or written where nothing is, or where something
 * else is by now.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <tensorlease/watch.h>

#include "tests/unit/liar_fixture.h"
#include "util/clock.h"

/* ---- Descriptors ---- */

static int put(tl_client *client)
{
	unsigned char bytes[600] = { 1 };
	int64_t n = sizeof(bytes);
	DLTensor t = bytes_tensor(bytes, &n);

	return tl_put(client, "c", &t, NULL, NULL);
}

static void must_refuse_segments(void)
{
	tl_client *client = liar_connect(&liar);
	struct outcomes o = try_all(client);

	must_be(o.get, -EPROTO);
	must_be(o.copy, -EPROTO);
	must_be(o.many, -EPROTO);
	must_be(put(client), -EPROTO);
	tl_close(client);
}

LIE_TEST(a_segment_shorter_than_it_is_said_to_be_is_not_mapped)
{
	must_be(ftruncate(liar.segment_fds[0], 256), 0);
	must_refuse_segments();
	must_be(ftruncate(liar.segment_fds[0], LIAR_SEGMENT_BYTES), 0);
}

/* The tensor was replaced before MAP came, and the next one before the descriptor is looked at. */
static bool another_that_has_ended(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_segment segment = { .size = LIAR_SEGMENT_BYTES,
					.segment = LIAR_SLOTS - 1,
					.segment_generation = 1 };
	int fd;

	if (request->header.type != WIRE_MAP)
		return false;
	fd = memfd_create("liar", MFD_CLOEXEC);
	must(fd >= 0);
	liar_send(socket, request, WIRE_SEGMENT, &segment, sizeof(segment), fd);
	close(fd);
	l->answer = NULL; /* the thread has the lock */
	return true;
}

LIE_TEST(another_segment_that_has_ended_meanwhile_is_no_failure)
{
	tl_client *client = liar_connect(&liar);

	liar_set_answer(&liar, another_that_has_ended);
	must_be(get_as(client, TL_MODE_READ), 0);
	liar_set_answer(&liar, another_that_has_ended);
	must_be(get_as(client, TL_MODE_COPY_ON_WRITE), 0);
	tl_close(client);
}

LIE_TEST(a_segment_that_is_no_regular_file_is_not_mapped)
{
	int pipes[2], other;

	must_be(pipe(pipes), 0);
	atomic_store(&liar.descriptor, pipes[0]);
	must_refuse_segments();
	other = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	atomic_store(&liar.descriptor, other);
	must_refuse_segments();
	close(other);
	other = open("/dev/zero", O_RDWR | O_CLOEXEC);
	atomic_store(&liar.descriptor, other);
	must_refuse_segments();
	close(other);
	close(pipes[0]);
	close(pipes[1]);
}

LIE_TEST(a_segment_of_huge_pages_is_not_mapped_over_what_lies_behind_it)
{
	int fd = memfd_create("liar", MFD_CLOEXEC | MFD_HUGETLB);

	SKIP_UNLESS(fd >= 0 && !ftruncate(fd, 4 << 20), "there are no huge pages for a memfd");
	atomic_store(&liar.descriptor, fd);
	atomic_store(&liar.segment_size, (2 << 20) + 4096);
	must_refuse_segments();
	close(fd);
}

LIE_TEST(a_tensor_beyond_the_segment_that_was_mapped_is_refused)
{
	tl_client *client;

	atomic_store(&liar.segment_size, 256); /* and it is larger */
	client = liar_connect(&liar);
	must_be(get_as(client, TL_MODE_READ), -EPROTO);
	must_be(get_as(client, TL_MODE_READ), -EPROTO);
	tl_close(client);
}

/* ---- Drafts ---- */

static int put_after_draft(const struct wire_draft *draft)
{
	tl_client *client = liar_connect(&liar);
	int r;

	liar.draft = *draft;
	r = put(client);
	tl_close(client);
	return r;
}

static bool segment_for_prefetch(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_segment segment = { .size = LIAR_SEGMENT_BYTES, .segment_generation = 1 };
	struct conn_message to = *request;

	to.header.serial = ((const struct wire_commit *)(const void *)request->bytes)
				   ->prefetch_serial;
	if (request->header.type == WIRE_COMMIT && to.header.serial)
		liar_send(socket, &to, WIRE_SEGMENT, &segment, sizeof(segment), l->segment_fds[0]);
	return false;
}

/* Nobody expects a descriptor there. */
LIE_TEST(descriptors_of_answers_to_prefetches_are_closed)
{
	tl_client *client = liar_connect(&liar);
	unsigned fds = 0;

	liar_set_answer(&liar, segment_for_prefetch);
	for (int i = 0; i < 30; i++) {
		put(client);
		fds = i < 5 ? count_fds(0) : fds;
	}
	must(count_fds(0) <= fds + 1);
	tl_close(client);
}

LIE_TEST(a_draft_that_cannot_be_is_refused)
{
	struct wire_draft good = liar.draft, bad;

	must_be(put_after_draft(&good), 0);
	bad = good;
	bad.ref = ref_make(1, LIAR_SLOTS); /* our ledger ends before it */
	must_be(put_after_draft(&bad), -EPROTO);
	bad.ref = ref_make(1, 0xffffff);
	must_be(put_after_draft(&bad), -EPROTO);
	bad = good;
	bad.segment = LIAR_SLOTS;
	must_be(put_after_draft(&bad), -EPROTO);
	bad = good;
	bad.offset = LIAR_SEGMENT_BYTES - 512;
	must_be(put_after_draft(&bad), -EPROTO);
	bad = good;
	bad.offset = 3;
	must_be(put_after_draft(&bad), -EPROTO);
	bad = good;
	bad.segment_size = 1ULL << 40;
	bad.offset = 1ULL << 39;
	must_be(put_after_draft(&bad), -EPROTO);
	bad = good;
	bad.flags = 0; /* where is it? */
	must_be(put_after_draft(&bad), -EPROTO);
}

static tl_draft *create(tl_client *client)
{
	int64_t shape = 600;
	tl_spec spec = { .size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	if (!tl_create(client, "d", &spec, &draft))
		return draft;
	return NULL;
}

LIE_TEST(a_draft_in_a_segment_that_grew_without_a_descriptor_is_refused)
{
	tl_client *client = liar_connect(&liar);
	tl_draft *first = create(client);

	must(first);
	liar.draft.flags = 0;
	liar.draft.segment_size = 1ULL << 40;
	liar.draft.offset = 1ULL << 39;
	must(!create(client));
	tl_abort(first);
	tl_close(client);
}

LIE_TEST(a_draft_keeps_its_memory_when_its_segment_is_given_to_another)
{
	tl_client *client = liar_connect(&liar);
	tl_draft *first = create(client), *second;
	unsigned char *bytes, *others;

	must(first);
	bytes = tl_draft_tensor(first)->data;
	memset(bytes, 1, 600);
	/* The segment has ended, says the catalog; then it has another life. */
	atomic_store(&liar.catalog->segments[0].word, live_word(1) - 1);
	liar.draft.segment = 1;
	second = create(client); /* looks at what may go */
	must(second);
	tl_abort(second);
	liar.draft.segment = 0;
	liar.draft.segment_generation = 2;
	atomic_store(&liar.catalog->segments[0].word, live_word(2));
	second = create(client);
	must(second);
	others = tl_draft_tensor(second)->data;
	must(others + 600 <= bytes || bytes + 600 <= others);
	memset(others, 2, 600);
	for (int i = 0; i < 600; i++)
		must_be(bytes[i], 2); /* the same object, mapped twice */
	tl_abort(first);
	memset(others, 3, 600);
	tl_abort(second);
	tl_close(client);
}

/* ---- Memory that is in use ---- */

/* Makes the client map three segments, in the life of that number, and so look at what may go. */
static void map_more(tl_client *client, uint32_t generation)
{
	static const char *const names[] = { "more0", "more1", "more2" };
	const int64_t shape = 10;

	for (unsigned i = 0; i < 3; i++) {
		struct catalog_row *row = &liar.catalog->rows[10 + i];

		if (generation == 1)
			liar_publish(&liar, 10 + i, names[i], 1, &shape, 1 + i, 0);
		row->segment_generation = generation;
		atomic_store(&liar.catalog->segments[1 + i].word, live_word(generation));
		drop(get(client, names[i]));
	}
}

enum { HELD = 100 }; /* more than a thread keeps objects for */

LIE_TEST(a_leased_tensor_stays_mapped_when_its_segment_is_said_to_be_gone)
{
	tl_client *client = liar_connect(&liar);
	DLManagedTensorVersioned *t[HELD];

	for (int i = 0; i < HELD; i++)
		t[i] = get(client, "a");
	atomic_store(&liar.catalog->segments[0].word, live_word(2));
	for (int i = 0; i < HELD; i++) { /* until only counted ones are left */
		if (i % 10 == 0)
			map_more(client, 1 + (unsigned)i / 10);
		must(all_bytes(t[i], 1, 600));
		drop(t[i]);
	}
	tl_close(client);
}

LIE_TEST(what_is_called_sealed_is_not_mapped_unless_it_is)
{
	tl_client *client = liar_connect(&liar);
	DLManagedTensorVersioned *t;
	tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };

	liar.catalog->segments[0].flags = SEGMENT_SEALED;
	must_be(tl_get(client, "a", NULL, &t), -EPROTO);
	must(strstr(tl_last_error(), "sealed"));
	must_be(tl_get(client, "a", &cow, &t), -EPROTO);
	liar.catalog->segments[0].flags = 0;
	t = get(client, "a");
	must(all_bytes(t, 1, 600));
	drop(t);
	tl_close(client);
}

LIE_TEST(a_segment_of_which_something_is_leased_is_not_exchanged)
{
	tl_client *client = liar_connect(&liar);
	DLManagedTensorVersioned *t = get(client, "a");

	liar.catalog->rows[1].segment_generation = 2;
	liar.catalog->segments[0].word = live_word(2);
	atomic_store(&liar.descriptor, liar.segment_fds[2]);
	must_be(tl_get(client, "b", NULL, &t), -EPROTO);
	must(all_bytes(t, 1, 600));
	drop(t);
	t = get(client, "b"); /* now it may */
	must(all_bytes(t, 3, 600));
	drop(t);
	tl_close(client);
}

static unsigned mappings_of(const char *what)
{
	char line[512];
	unsigned n = 0;
	FILE *f = fopen("/proc/self/maps", "re");

	must(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, what) != NULL;
	fclose(f);
	return n;
}

LIE_TEST(a_segment_that_is_gone_is_unmapped_once_nothing_in_it_is_leased)
{
	tl_client *client = liar_connect(&liar);
	DLManagedTensorVersioned *t = get(client, "a");
	unsigned before;

	atomic_store(&liar.catalog->segments[0].word, live_word(2));
	map_more(client, 1);
	before = mappings_of("memfd:liar");
	drop(t);
	liar.catalog->rows[12].segment_generation = 2; /* another life: one goes, one comes */
	atomic_store(&liar.catalog->segments[3].word, live_word(2));
	must_be(tl_get(client, "more2", NULL, &t), 0);
	must_be(mappings_of("memfd:liar"), before - 1);
	drop(t);
	tl_close(client);
}

/* ---- Messages ---- */

static bool same_again(struct liar *l, int socket, struct conn_message *m)
{
	struct wire_client c = { .id = 1, .label = "x" };
	struct {
		struct wire_holding h;
		char name[1];
	} h = { .h = { .version = 1, .slot = 3, .name_len = 1 }, .name = "n" };

	(void)l;
	if (m->header.type == WIRE_CLIENTS)
		liar_send(socket, m, WIRE_CLIENT, &c, sizeof(c), -1);
	else if (m->header.type == WIRE_HOLDINGS)
		liar_send(socket, m, WIRE_HOLDING, &h, sizeof(h.h) + 1, -1);
	else
		return false;
	return true;
}

static int visit_client(const tl_client_info *info, void *context)
{
	(void)info;
	++*(int *)context;
	return 0;
}

static int visit_holding(const tl_holding *holding, void *context)
{
	(void)holding;
	++*(int *)context;
	return 0;
}

LIE_TEST(lists_that_never_end_are_not_believed)
{
	tl_client *client = liar_connect(&liar);
	int visits = 0;

	liar.answer = same_again;
	must_be(tl_list_clients(client, visit_client, &visits), -EPROTO);
	must_be(tl_list_holdings(client, 1, visit_holding, &visits), -EPROTO);
	must_be(visits, 2);
	tl_close(client);
}

static _Atomic unsigned handshakes;

static bool count_handshakes(struct liar *l, int socket, struct conn_message *m)
{
	(void)l;
	(void)socket;
	atomic_fetch_add(&handshakes, m->header.type == WIRE_HELLO);
	return false;
}

/* It answers, but its catalog says that it reads nobody's ledger: each connection is worth nothing.
 */
LIE_TEST(a_daemon_that_serves_nobody_is_given_up)
{
	tl_client *client = liar_connect(&liar);
	DLManagedTensorVersioned *t;

	for (int i = 0; i < LIAR_CLIENTS; i++)
		atomic_store(&liar.catalog->clients[i], 0);
	liar.answer = count_handshakes;
	must_be(tl_delete(client, "a"), -ENOTCONN);
	must(strstr(tl_last_error(), "ends every connection"));
	must(atomic_load(&handshakes) > 1 && atomic_load(&handshakes) < 20);
	must_be(tl_get(client, "a", NULL, &t), -ENOTCONN);
	must_be(put(client), -ENOTCONN);
	must(atomic_load(&handshakes) < 60);
	tl_close(client);
}

static _Atomic unsigned creates;

/* Grants the first draft, and reads nothing that comes after it: not its commit. */
static bool deaf_after_a_draft(struct liar *l, int socket, struct conn_message *m)
{
	struct wire_draft draft = l->draft;
	bool has_fd = draft.flags & WIRE_DRAFT_FD;

	if (m->header.type != WIRE_CREATE || atomic_fetch_add(&creates, 1))
		return false;
	shutdown(socket, SHUT_RD);
	liar_send(socket, m, WIRE_DRAFT, &draft, sizeof(draft),
		  has_fd ? l->segment_fds[draft.segment % LIAR_SEGMENTS] : -1);
	return true;
}

static int publish_copy(tl_client *client)
{
	static unsigned char bytes[600];
	static int64_t n = sizeof(bytes);
	static DLManagedTensorVersioned t;
	uint64_t version;
	bool copied = false;
	int r;

	t = (DLManagedTensorVersioned){ .version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
					.dl_tensor = bytes_tensor(bytes, &n) };
	r = tl_publish(client, "c", &t, NULL, &copied, &version);
	must_be(copied, !r);
	return r;
}

static int put_group(tl_client *client)
{
	unsigned char byte = 1;
	int64_t n = 1;
	DLTensor t = bytes_tensor(&byte, &n);
	const char *names[1] = { "g" };
	const DLTensor *sources[1] = { &t };

	return tl_put_many(client, names, sources, 1, NULL);
}

static int publish_group(tl_client *client)
{
	static unsigned char byte;
	static int64_t n = 1;
	static DLManagedTensorVersioned t;
	DLManagedTensorVersioned *tensors[1] = { &t };
	const char *names[1] = { "g" };

	t = (DLManagedTensorVersioned){ .version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
					.dl_tensor = bytes_tensor(&byte, &n) };
	return tl_publish_many(client, names, tensors, 1, NULL, NULL);
}

LIE_TEST(a_copy_whose_memory_goes_with_its_daemon_is_made_anew)
{
	int (*const calls[])(tl_client * client) = { put, publish_copy, put_group, publish_group };

	for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		tl_client *client = liar_connect(&liar);
		int r;

		atomic_store(&creates, 0);
		liar_set_answer(&liar, deaf_after_a_draft);
		r = calls[i](client);
		if (i < 2) /* it makes no members of groups */
			must_be(r, 0);
		must_be(atomic_load(&creates), 2);
		tl_close(client);
	}
}

static int count_name(const tl_info *info, void *context)
{
	(void)info;
	++*(unsigned *)context;
	return 0;
}

static unsigned names_below(tl_client *client, const char *prefix)
{
	unsigned n = 0;

	must_be(tl_list(client, prefix, count_name, &n), 0);
	return n;
}

/*
 * The moment between a name that can be found and a note of it in the watch. Here it lasts, so that
 * a list by the watch alone would miss the name.
 */
LIE_TEST(a_name_that_is_not_noted_yet_is_listed)
{
	tl_client *client = liar_connect(&liar);
	const int64_t shape[1] = { 8 };

	liar_publish(&liar, 1, "a/1", 1, shape, 1, 0);
	for (int i = 0; i < 4; i++)
		must_be(names_below(client, "a/"), 1);
	liar_publish(&liar, 2, "a/2", 1, shape, 1, 64);
	must_be(names_below(client, "a/"), 1); /* it has said that there is nothing new */
	atomic_store(&liar.catalog->header.coming, 1);
	must_be(names_below(client, "a/"), 2);
	tl_close(client);
}

static int watch_news(tl_watch *watch, char name[TL_NAME_MAX + 1])
{
	tl_watch_event event = { .size = sizeof(event) };
	int r = tl_watch_next(watch, NULL, &event);

	if (!r)
		memccpy(name, event.name, '\0', TL_NAME_MAX + 1);
	return r;
}

/* The watch was not looked at for so many changes that their counter has come halfway around. */
LIE_TEST(a_name_is_found_by_a_watch_that_rested_long)
{
	static const uint32_t many[] = { 1U << 30, 1U << 31, (1U << 31) + 1, UINT32_MAX };
	struct catalog_watch *entry = &liar.catalog->watches[0];
	tl_client *client = liar_connect(&liar);
	tl_watch_options o = { .size = sizeof(o), .flags = TL_WATCH_PREFIX };
	const int64_t shape[1] = { 8 };
	char name[TL_NAME_MAX + 1], expected[16];
	tl_watch *watch;

	must_be(tl_watch_open(client, "a/", &o, &watch), 0);
	must_be(watch_news(watch, name), -EAGAIN);
	for (uint32_t i = 0; i < sizeof(many) / sizeof(*many); i++) {
		snprintf(expected, sizeof(expected), "a/%u", i);
		liar_publish(&liar, i + 1, expected, 1, shape, 1, 64 * i);
		atomic_fetch_add(&entry->seq, many[i]);
		atomic_store(&entry->came, atomic_load(&entry->seq));
		must_be(watch_news(watch, name), 0);
		must(!strcmp(name, expected));
		must_be(watch_news(watch, name), -EAGAIN);
	}
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

static unsigned deletes;

/* A daemon that has no page of the name's ring. It deletes, and is followed by another one before
 * it has said so. */
static bool delete_and_die(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_plain adopted = {
		.header = { .type = WIRE_ADOPTED, .length = sizeof(adopted), .life = 1 }
	};
	struct wire_error_reply e = { .code = WIRE_E_NOT_FOUND };

	if (request->header.type == WIRE_PAGE) {
		liar_send(socket, request, WIRE_ERROR, &e, sizeof(e), -1);
		return true;
	}
	if (request->header.type != WIRE_DELETE || deletes++)
		return false;
	atomic_store(&l->catalog->names[0].current, 0);
	must_be(conn_send(socket, &adopted, -1, MSG_DONTWAIT), 0);
	return true;
}

LIE_TEST(a_delete_that_was_done_is_not_asked_for_again)
{
	tl_client *client = liar_connect(&liar);
	const int64_t shape[1] = { 8 };

	liar_publish(&liar, 0, "a", 1, shape, 1, 0);
	atomic_store(&liar.catalog->names[0].current, REF_RING | ref_make(1, 0));
	client_set_timeout(client, 3 * SECOND); /* it asks for the page until then */
	liar_set_answer(&liar, delete_and_die);
	must_be(tl_delete(client, "a"), 0);
	must_be(deletes, 1);
	tl_close(client);
}

static int64_t waits[3]; /* what each CREATE of a call says; its last one is refused */
static unsigned asked;

/* While a client waits for space, another daemon comes, and then the connection ends. */
static bool come_and_go(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_plain adopted = {
		.header = { .type = WIRE_ADOPTED, .length = sizeof(adopted), .life = 1 }
	};
	struct wire_error_reply e = { .code = WIRE_E_NO_SPACE };

	(void)l;
	if (request->header.type != WIRE_CREATE)
		return request->header.type == WIRE_RESUMED; /* it has no answer */
	must(asked < 3);
	waits[asked++] = ((const struct wire_create *)(const void *)request->bytes)->timeout_ns;
	if (asked == 1)
		must_be(conn_send(socket, &adopted, -1, MSG_DONTWAIT), 0);
	else if (asked == 2)
		must_be(shutdown(socket, SHUT_RDWR), 0);
	else
		liar_send(socket, request, WIRE_ERROR, &e, sizeof(e), -1);
	return true;
}

static void must_wait_for_what_is_left(int r)
{
	must_be(r, -ENOSPC);
	must_be(asked, 3);
	must(waits[0] > waits[1] && waits[1] > waits[2] && waits[2] > 0);
	asked = 0;
}

LIE_TEST(a_wait_for_space_ends_in_its_time_whatever_daemons_do)
{
	tl_client *client = liar_connect(&liar);
	int64_t n = 600, timeout = WAIT_S * SECOND;
	unsigned char bytes[600] = { 1 };
	DLTensor t = bytes_tensor(bytes, &n);
	tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .timeout_ns = timeout
	};
	tl_put_options put_options = { .size = sizeof(put_options), .timeout_ns = timeout };
	tl_group_options group_options = { .size = sizeof(group_options), .timeout_ns = timeout };
	tl_group_item item = { .name = "g", .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;
	tl_group *group;

	liar_set_answer(&liar, come_and_go);
	must_wait_for_what_is_left(tl_create(client, "d", &spec, &draft));
	must_wait_for_what_is_left(tl_put(client, "p", &t, &put_options, NULL));
	must_wait_for_what_is_left(tl_group_create(client, &item, 1, &group_options, &group));
	liar_set_answer(&liar, NULL);
	tl_close(client);
}

static void pause_for(int64_t ns)
{
	int64_t over = deadline_after(ns);
	unsigned rounds = 0;

	while (!deadline_passed(over))
		test_pause(&rounds);
}

/* As come_and_go(), but the first answer takes longer than the client's timeout, of which the next
 * connection has a new one. */
static tl_client *patient;

static bool come_late_and_go(struct liar *l, int socket, struct conn_message *request)
{
	if (request->header.type == WIRE_CREATE && asked == 0) {
		pause_for(20 * MS); /* the call began before */
		client_set_timeout(patient, WAIT_S * SECOND);
	}
	return come_and_go(l, socket, request);
}

LIE_TEST(a_wait_for_space_goes_on_though_the_clients_timeout_has_passed)
{
	int64_t n = 600;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &n,
			 .ndim = 1,
			 .dtype = U8,
			 .timeout_ns = WAIT_S * SECOND };
	tl_draft *draft;

	patient = liar_connect(&liar);
	client_set_timeout(patient, 20 * MS);
	liar_set_answer(&liar, come_late_and_go);
	must_wait_for_what_is_left(tl_create(patient, "d", &spec, &draft));
	liar_set_answer(&liar, NULL);
	tl_close(patient);
}

/* It grants a draft and ends the connection, and has no space for the next one. */
static bool grant_and_go(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_draft granted = l->draft;
	struct wire_error_reply e = { .code = WIRE_E_NO_SPACE };

	if (request->header.type != WIRE_CREATE)
		return false;
	if (asked++) {
		pause_for(20 * MS); /* the client has to wait for it */
		liar_send(socket, request, WIRE_ERROR, &e, sizeof(e), -1);
		return true;
	}
	liar_send(socket, request, WIRE_DRAFT, &granted, sizeof(granted), l->segment_fds[0]);
	must_be(shutdown(socket, SHUT_RDWR), 0);
	return true;
}

static void *slow_memory;

/* Memory that takes longer to read than the client's timeout at first. */
static void read_slowly(int signal)
{
	(void)signal;
	pause_for(200 * MS);
	client_set_timeout(patient, WAIT_S * SECOND);
	must_be(mprotect(slow_memory, (size_t)sysconf(_SC_PAGESIZE), PROT_READ), 0);
}

LIE_TEST(a_put_goes_on_though_its_copy_took_longer_than_the_clients_timeout)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int64_t n = 600;
	struct sigaction slow = { .sa_handler = read_slowly }, former;
	DLTensor t;

	slow_memory = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(slow_memory != MAP_FAILED);
	t = bytes_tensor(slow_memory, &n);
	must_be(sigaction(SIGSEGV, &slow, &former), 0);
	patient = liar_connect(&liar);
	client_set_timeout(patient, 200 * MS);
	asked = 0;
	liar_set_answer(&liar, grant_and_go);
	must_be(tl_put(patient, "p", &t, NULL, NULL), -ENOSPC);
	must_be(asked, 2);
	asked = 0;
	liar_set_answer(&liar, NULL);
	must_be(sigaction(SIGSEGV, &former, NULL), 0);
	must_be(munmap(slow_memory, page), 0);
	tl_close(patient);
}

static struct samples all;
static _Atomic uint64_t random_state;

/* One of all messages, with a descriptor if it may have one, as answer to whatever comes after the
 * handshake. */
static bool any_answer(struct liar *l, int socket, struct conn_message *m)
{
	uint64_t seed = atomic_fetch_add(&random_state, 1) * 0x9e3779b97f4a7c15 + 1;
	struct sample s;

	if (m->header.type == WIRE_HELLO || m->header.type == WIRE_LEDGER)
		return false;
	do {
		s = all.list[samples_random(&seed) % all.n];
	} while (s.side != WIRE_TO_CLIENT);
	for (unsigned i = 0; i < samples_random(&seed) % 3; i++)
		s.bytes[16 + samples_random(&seed) % (s.length - 15)] = (unsigned char)
			samples_random(&seed);
	s.header.serial = m->header.serial;
	conn_send(socket, s.bytes, s.nfds ? l->segment_fds[1] : -1, MSG_DONTWAIT);
	return true;
}

LIE_TEST(any_message_in_place_of_an_answer_is_an_error)
{
	tl_client *client;
	int visits = 0;

	samples_make(&all);
	client = liar_connect(&liar);
	client_set_timeout(client, 50 * MS);
	liar.answer = any_answer;
	for (int i = 0; i < 300; i++) {
		tl_draft *draft;

		try_all(client);
		must(put(client) <= 0);
		must(tl_delete(client, "a") <= 0);
		must(tl_list_clients(client, visit_client, &visits) <= 0);
		must(tl_list_holdings(client, 1, visit_holding, &visits) <= 0);
		draft = create(client);
		if (draft)
			memset(tl_draft_tensor(draft)->data, 1, 600);
		tl_abort(draft);
	}
	liar_set_answer(&liar, NULL);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
