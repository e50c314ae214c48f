/* SPDX-License-Identifier: Apache-2.0 */
/* Notices to clients; see notice.h. Loop thread only. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/state/notice.h"
#include "daemon/state/outcome.h"
#include "util/fault.h"

int notice_new(struct notice **np, struct client *c)
{
	struct notice *n;

	if (c->notice_count >= CLIENT_NOTICES_MAX ||
	    account_top(c->account)->notices >= CLIENT_NOTICES_MAX)
		return STATE_E_NOTICES;
	n = fault("notice_new") ? NULL : calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	list_init(&n->link);
	n->client = c;
	c->notice_count++;
	*np = n;
	return 0;
}

/* A user's clients together hold as much of our memory as one may. */
static void count_due(struct notice *n, bool due)
{
	account_top(n->client->account)->notices += (unsigned)due - (unsigned)n->due;
	n->due = due;
}

void notice_withdraw(struct notice *n)
{
	count_due(n, false);
	list_del(&n->link);
}

struct notice *notice_free(struct notice *n)
{
	if (!n)
		return NULL;
	notice_withdraw(n);
	n->client->notice_count--;
	free(n);
	return NULL;
}

void notice_due(struct shared *shared, struct notice *n)
{
	count_due(n, true);
	list_del(&n->link);
	list_add_tail(&n->client->notices, &n->link);
	if (list_empty(&n->client->notified))
		list_add_tail(&shared->notified, &n->client->notified);
}

struct notice *notice_next(struct client *c)
{
	return list_empty(&c->notices) ? NULL : list_first_entry(&c->notices, struct notice, link);
}

void notice_sent(struct notice *n)
{
	if (n->message.header.type != WIRE_UNMAP) {
		notice_free(n);
		return;
	}
	notice_withdraw(n); /* it is part of the import */
}
