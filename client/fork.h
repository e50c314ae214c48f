/* SPDX-License-Identifier: Apache-2.0 */
/* What fork() does to clients, and the list of all clients of this process. */
#pragma once

struct tl_client;

/* Enters @client into the list; it is removed when it is freed. 0 or -ENOMEM. */
int fork_add_client(struct tl_client *client);
void fork_remove_client(struct tl_client *client);

/* Returns when no fork() is at work any more. */
void fork_wait(void);

/* Has this process begun to end? No session is made any more. */
int fork_exiting(void);
