/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims on names that are to be published. The daemon keeps them, not this process.
 */
#pragma once

#include <stdint.h>

struct tl_client;

/* Does the work of tl_claim(). The name is checked. */
int claim_take(struct tl_client *client, const char *name, int64_t timeout_ns);
/* Does the work of tl_unclaim(). */
int claim_give_up(struct tl_client *client, const char *name);
