/* SPDX-License-Identifier: Apache-2.0 */
/* The export in which memory of others is published: the one that there is, or a new one. */
#pragma once

#include "client/gpu/publication.h"

/* Memory that may have to be exported first. */
struct cuda_opening {
	int (*open)(struct cuda_opening *o); /* fills in the rest; NULL: it is there */
	struct cuda_memory *memory;
	struct cuda_parts *parts; /* NULL: the handle alone opens it */
};

/*
 * Makes a publication, for cuda_place(), in the session's export of @o->memory; if there is none it
 * is made. 0, SESSION_E_*, or a negative errno.
 */
int cuda_publication_for(struct session *s, struct cuda_opening *o, struct cuda_publication **out);
