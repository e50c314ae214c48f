/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/memory/memory_ops.h"
#include "proto/conn.h"

const struct memory_kind *memory_kinds[MEMORY_KINDS];

/* Calls an operation of every kind that has it. fork() does so without a client, too. */
#define for_all_kinds(operation, ...)                                                              \
	for (unsigned k_ = 0; k_ < MEMORY_KINDS; k_++)                                             \
		if (memory_kinds[k_] && memory_kinds[k_]->operation)                               \
	memory_kinds[k_]->operation(__VA_ARGS__)

void kinds_register(const struct memory_kind *const kinds[MEMORY_KINDS])
{
	memcpy(memory_kinds, kinds, sizeof(memory_kinds));
}

const struct memory_kind *kind_of_device(DLDeviceType device)
{
	for (unsigned k = 0; k < MEMORY_KINDS; k++)
		if (memory_kinds[k]->device == device)
			return memory_kinds[k];
	return memory_kinds[KIND_SHARED];
}

bool kinds_take(enum kind_messages which, struct session *s, const struct conn_message *m)
{
	bool taken = false;

	for (unsigned k = 0; k < MEMORY_KINDS; k++) {
		void (*take)(struct session *,
			     const struct conn_message
				     *) = memory_kinds[k]
						  ->messages[which][m->header.type - WIRE_WELCOME];

		if (!take)
			continue;
		take(s, m);
		taken = true;
	}
	return taken;
}

void kinds_drafts_left(struct list *left)
{
	for_all_kinds(drafts_left, left);
}

void kinds_wake(void)
{
	for_all_kinds(wake);
}

void kinds_session_let_go(struct session *s)
{
	for_all_kinds(session_let_go, s);
}

bool kinds_session_adopted(struct session *s)
{
	bool goes_on = true;

	for (unsigned k = 0; k < MEMORY_KINDS; k++)
		if (memory_kinds[k]->session_adopted)
			goes_on &= memory_kinds[k]->session_adopted(s);
	return goes_on;
}

int kinds_session_finish(struct session *s)
{
	int r = 0;

	for (unsigned k = 0; k < MEMORY_KINDS; k++)
		if (memory_kinds[k]->session_finish && !r)
			r = memory_kinds[k]->session_finish(s);
	return r;
}

bool kinds_session_end(struct session *s)
{
	bool later = false;

	for (unsigned k = 0; k < MEMORY_KINDS; k++)
		if (memory_kinds[k]->session_end)
			later |= memory_kinds[k]->session_end(s);
	return later;
}

void kinds_fork_before(void)
{
	for_all_kinds(fork_before);
}

void kinds_fork_parent(void)
{
	for_all_kinds(fork_parent);
}

void kinds_fork_session(struct session *s)
{
	for_all_kinds(fork_session, s);
}

void kinds_fork_child(void)
{
	for_all_kinds(fork_child);
}

void kinds_fork_child_unlocked(void)
{
	for_all_kinds(fork_child_unlocked);
}
