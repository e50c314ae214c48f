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

	if (c->notice_count >= CLIENT_NOTICES_MAX)
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

struct notice *notice_free(struct notice *n)
{
	if (!n)
		return NULL;
	list_del(&n->link);
	n->client->notice_count--;
	free(n);
	return NULL;
}

void notice_due(struct shared *shared, struct notice *n)
{
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
	if (n->message.header.type == WIRE_UNMAP)
		list_del(&n->link); /* it is part of the import */
	else
		notice_free(n);
}
