/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the first call needs that makes a client, or a thread of the library. 0, or a negative errno
 * with a text. */
int library_prepare(void);
