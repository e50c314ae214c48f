/* SPDX-License-Identifier: Apache-2.0 */
/* The floor of get and release; see sketch.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sketch;

struct sketch *sketch_new(uint32_t names);
struct sketch *sketch_free(struct sketch *s);
void sketch_add(struct sketch *s, const char *name, void *data);

/*
 * Takes a lease on @name. Returns its data, and the slot to release, or NULL if there is no such
 * name. Any thread may call it.
 */
void *sketch_get(struct sketch *s, const char *name, uint32_t *slot);
void sketch_release(struct sketch *s, uint32_t slot);
