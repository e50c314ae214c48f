/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients. A client owns its drafts, the list of segments it writes, and the ledger that we map
 * read-only. Death order: its ledger, its drafts, its segments, its account. Loop thread only.
 *
 * Whose connection ended may still use what it held: its process may have closed the socket, or we
 * dropped it. What tells is its ledger: whoever takes leases has that mapped writable, and the
 * kernel knows whether anybody does, since F_SEAL_WRITE can only be added if not. The mapping goes
 * with the process, whether it exits, is killed or calls exec, and before its descriptors do. A
 * client that lies about this harms itself: others are protected by what is looked at when memory
 * changes hands (segment_take_warm()).
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/state/device.h"
#include "daemon/state/lease.h"
#include "daemon/state/tensor.h"
#include "util/cleanup.h"
#include "util/fd.h"

#define TMPFS_MAGIC_NUMBER                                                                         \
	0x01021994 /* of memfds; those on huge pages could fault for want of one */

int client_init(struct client *c, struct state *st, const struct client_identity *who)
{
	uint32_t index;
	int r;

	*c = (struct client){
		.uid = who->uid, .gid = who->gid, .pid = who->pid, .index = CATALOG_NONE
	};
	c->draft_head = CATALOG_NONE;
	c->ledger_fd = -1;
	c->small_next = SEGMENT_SMALL_FIRST;
	list_init(&c->small);
	list_init(&c->large);
	device_init_client(c);
	memcpy(c->label, who->label, sizeof(c->label));
	c->label[sizeof(c->label) - 1] = '\0';
	c->user = quota_user_ref(&st->store.quota, c->uid);
	if (!c->user)
		return -ENOMEM;
	r = catalog_take(&st->catalog, &st->catalog.clients, &index);
	if (r) {
		c->user = quota_user_unref(c->user);
		return r < 0 ? r : STATE_E_CLIENTS;
	}
	c->index = index;
	c->generation = (uint32_t)(st->catalog.client_words[index] >> 1) + 1;
	c->id = ++st->next_client_id;
	atomic_fetch_add(&st->catalog.header->clients, 1);
	return 0;
}

/* What we read of a client's is memory that it cannot take away: a sealed memfd of small pages. */
static const char *ledger_check(int fd, uint64_t size)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct statfs fs;
	struct stat st;
	int have;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "the ledger is not a memfd";
	if (fstatfs(fd, &fs) || (uint32_t)fs.f_type != TMPFS_MAGIC_NUMBER)
		return "the ledger is not a memfd of ordinary pages";
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0 || (have & seals) != seals)
		return "the ledger is not sealed against shrinking and growing";
	if (have & F_SEAL_SEAL || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		return "the ledger is sealed against sealing, or its descriptor is not for writing";
	if ((uint64_t)st.st_size != size)
		return "the ledger's size is not what it says";
	return NULL;
}

int client_serve(struct client *c, struct state *st, int fd_take, uint64_t size, const char **why)
{
	cleanup_(fd_closep) int fd = fd_take;
	uint32_t slots = st->catalog.header->max_tensors;
	const struct ledger *ledger;

	*why = size == ledger_size(slots)
		       ? ledger_check(fd, size)
		       : "the ledger does not have ledger_size(max_tensors) bytes";
	if (*why)
		return STATE_E_INVALID;
	ledger = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (ledger == MAP_FAILED)
		return -errno;
	if (ledger->magic != LEDGER_MAGIC || ledger->layout != LEDGER_LAYOUT ||
	    ledger->slots != slots) {
		munmap((void *)ledger, size);
		*why = "the ledger's magic, layout or number of slots is wrong";
		return STATE_E_INVALID;
	}
	c->ledger = ledger;
	c->ledger_size = size;
	c->ledger_slots = slots;
	c->ledger_fd = take_fd(&fd);
	st->served[c->index] = c;
	atomic_store(&st->catalog.client_words[c->index], live_word(c->generation));
	return 0;
}

/*
 * Has anybody the ledger mapped writable? Our own mapping counts, since it was made with a
 * descriptor for writing. An error other than EBUSY means that the client sealed it against that:
 * it is taken at its word.
 */
static bool ledger_is_mapped(struct client *c)
{
	void *map;
	bool mapped;

	if (c->ledger)
		munmap((void *)c->ledger, c->ledger_size);
	c->ledger = NULL;
	mapped = fcntl(c->ledger_fd, F_ADD_SEALS, F_SEAL_WRITE) && errno == EBUSY;
	if (!mapped)
		return false;
	map = mmap(NULL, c->ledger_size, PROT_READ, MAP_SHARED, c->ledger_fd, 0);
	c->ledger = map == MAP_FAILED ? NULL : map; /* without it, it holds all: lease_held_by() */
	return true;
}

/* Segments for small tensors end with their writer; those for large ones go on serving its user. */
static void list_leave(struct list *segments, struct state *st, bool reuse)
{
	struct segment *seg, *next;

	list_for_each_entry_safe(seg, next, segments, writer_link) {
		list_del(&seg->writer_link);
		seg->writer = 0;
		if (reuse && seg->places == 0 && seg->small)
			tensor_end_segment(st, seg);
	}
}

bool client_end(struct client *c, struct state *st)
{
	if (c->index == CATALOG_NONE)
		return true;
	lease_end_client(st, c);
	tensor_messages_read(st, c); /* what there was has been, or is lost */
	device_end_client(st, c);
	return client_look(c, st);
}

bool client_look(struct client *c, struct state *st)
{
	uint32_t leases;

	if (c->ledger_fd >= 0 && ledger_is_mapped(c) &&
	    (c->draft_head != CATALOG_NONE ||
	     client_next_held(c, st, 0, &leases) != CATALOG_NONE)) {
		lease_rescan(st); /* it cannot say what it releases */
		return false;
	}
	client_deinit(c, st, true);
	return true;
}

void client_deinit(struct client *c, struct state *st, bool reuse)
{
	if (c->index == CATALOG_NONE)
		return;
	lease_end_client(st, c);
	device_end_client(st, c);
	lease_drop_client(st, c);
	while (reuse && c->draft_head != CATALOG_NONE) {
		uint32_t slot = c->draft_head;

		tensor_abort(st, c, ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot));
	}
	list_leave(&c->small, st, reuse);
	list_leave(&c->large, st, reuse);
	if (reuse)
		lease_rescan(st);
	guard_sweep(&st->store.guard, c->id);
	if (c->generation < ENTRY_GENERATION_MAX)
		catalog_give(&st->catalog.clients, c->index);
	c->index = CATALOG_NONE;
	c->user = quota_user_unref(c->user);
	atomic_fetch_sub(&st->catalog.header->clients, 1);
}

uint32_t client_next_held(const struct client *c, const struct state *st, uint32_t slot,
			  uint32_t *leases)
{
	enum row_state row;

	while ((slot = lease_next_of(c, st, slot, leases)) != CATALOG_NONE) {
		row = row_word_state(catalog_row(&st->catalog, slot)->word);
		if (row == ROW_LIVE || row == ROW_RETIRED)
			return slot;
		slot++;
	}
	return CATALOG_NONE;
}

struct client_sums client_sum(const struct client *c, const struct state *st)
{
	struct client_sums sums = { 0 };
	uint32_t slot = 0, leases;

	while ((slot = client_next_held(c, st, slot, &leases)) != CATALOG_NONE) {
		sums.leases += leases;
		sums.tensors++;
		sums.bytes += catalog_row(&st->catalog, slot)->nbytes;
		slot++;
	}
	return sums;
}
