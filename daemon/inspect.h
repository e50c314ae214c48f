/* SPDX-License-Identifier: Apache-2.0 */
/* tensorleased --check: checks that a daemon's shared memory is as a daemon leaves it. The daemon
 * may be serving meanwhile, or may have died. */
#pragma once

enum { INSPECT_E_WRONG = 1 };

/*
 * Checks all namespaces of the last daemon on that socket, and prints the faults. Returns
 * INSPECT_E_WRONG if there are any; or a negative errno, which was printed, if it could not look.
 */
int inspect(const char *socket);
