/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One daemon for one socket: the socket's lock file, which also remembers the last instance, so
 * that what a killed daemon left in shared memory is found and removed by the next one.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { INSTANCE_E_SERVED = 1 };

struct instance {
	char socket[108];
	int lock_fd;
	int listen_fd; /* hand it to the server */
	uint64_t id;
	int activated; /* the socket is the service manager's: it stays when we go */
};

/*
 * Locks and binds @socket (NULL: the activated one in @activated_fd). INSTANCE_E_SERVED: another
 * daemon, or another program, serves it; @why says who. A negative errno with @why otherwise.
 */
int instance_init(struct instance *in, const char *socket, int activated_fd, char *why,
		  size_t why_size);
/* Removes the socket, unless it is the service manager's, and the lock file. */
void instance_deinit(struct instance *in);
