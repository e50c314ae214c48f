/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the handlers: reading the end of a message, and answers that several of them give. */
#pragma once

#include "daemon/serve/peer.h"
#include "daemon/state/publish.h"

/* The message, read as the struct of its type. */
#define AS(type, m) ((const struct type *)(const void *)(m)->bytes)

void send_done(struct peer *peer, uint32_t serial);
/* Says why a tensor could not be published under @name, or the name not deleted. */
void send_name_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r,
		     const char *why);
/* Says why there is no space for @nbytes; @r as from tensor_create() or tensor_backed(). */
void send_space_error(struct peer *peer, uint32_t serial, uint64_t nbytes, int r);

/* Sends DRAFT, with a descriptor of its segment unless the client has one. */
void send_draft(struct peer *peer, uint32_t serial, uint32_t slot, int fd_take);
