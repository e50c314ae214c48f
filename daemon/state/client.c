/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients. A client owns its drafts, the list of segments it writes, and the ledger that we map
 * read-only. Death order: its ledger, its drafts, its segments, its account. Loop thread only.
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
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	struct statfs fs;
	struct stat st;
	int have;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "the ledger is not a memfd";
	if (fstatfs(fd, &fs) || (uint32_t)fs.f_type != TMPFS_MAGIC_NUMBER)
		return "the ledger is not a memfd of ordinary pages";
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0 || (have & seals) != seals)
		return "the ledger is not sealed against shrinking, growing and sealing";
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
	st->served[c->index] = c;
	atomic_store(&st->catalog.client_words[c->index], live_word(c->generation));
	return 0;
}

static void list_taint(struct list *segments)
{
	struct segment *seg;

	list_for_each_entry(seg, segments, writer_link)
		seg->tainted = true;
}

/* Segments for small tensors end with their writer; those for large ones go on serving its user if
 * it left well. */
static void list_leave(struct list *segments, struct state *st)
{
	struct segment *seg, *next;

	list_for_each_entry_safe(seg, next, segments, writer_link) {
		list_del(&seg->writer_link);
		seg->writer = 0;
		if (seg->places == 0 && (seg->tainted || seg->small))
			tensor_end_segment(st, seg);
	}
}

void client_deinit(struct client *c, struct state *st, bool clean)
{
	if (c->index == CATALOG_NONE)
		return;
	if (!clean) { /* it may go on writing */
		list_taint(&c->small);
		list_taint(&c->large);
	}
	lease_end_client(st, c, clean);
	while (c->draft_head != CATALOG_NONE) {
		uint32_t slot = c->draft_head;

		tensor_abort(st, c, ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot));
	}
	list_leave(&c->small, st);
	list_leave(&c->large, st);
	device_end_client(st, c);
	catalog_give(&st->catalog.clients, c->index);
	c->index = CATALOG_NONE;
	c->user = quota_user_unref(c->user);
	atomic_fetch_sub(&st->catalog.header->clients, 1);
}

uint32_t client_next_held(const struct client *c, const struct state *st, uint32_t slot,
			  uint32_t *leases)
{
	enum row_state row;

	for (; slot < st->catalog.rows.high; slot++) {
		row = row_word_state(catalog_row(&st->catalog, slot)->word);
		*leases = lease_held_by(c, slot);
		if (*leases && (row == ROW_LIVE || row == ROW_RETIRED))
			return slot;
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
