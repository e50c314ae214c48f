/* SPDX-License-Identifier: Apache-2.0 */
/* What fork() does to clients, and the list of all clients of this process. */
#pragma once

struct session;
struct tl_client;

/* Enters @client into the list; it is removed when it is freed. 0 or -ENOMEM. */
int fork_add_client(struct tl_client *client);
void fork_remove_client(struct tl_client *client);

/* Returns when no fork() is at work any more. */
void fork_wait(void);

/*
 * Gives up what was held for children that need it no more. When session->pinned says that there is
 * something; and what is left at the session's end, which takes its holds along.
 */
void fork_unpin(struct session *s);
void fork_forget_pins(struct session *s);

/* Has this process begun to end? No session is made any more. */
int fork_exiting(void);
