/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorleased --check: looks whether what a daemon has in shared memory is as a daemon leaves it.
 * The daemon may be serving meanwhile, or may have died.
 */
#pragma once

enum { INSPECT_E_WRONG = 1 };

/*
 * Checks all namespaces of the last daemon on that socket, and prints what is wrong.
 * INSPECT_E_WRONG: something is; a negative errno, which was printed: it could not look.
 */
int inspect(const char *socket);
