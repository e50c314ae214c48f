/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/hear.h"
#include "client/gpu/import.h"
#include "client/gpu/publication.h"
#include "client/gpu/session.h"
#include "client/connection/request.h"

void cuda_take_freed(struct session *s, const struct conn_message *m)
{
	const struct wire_freed *freed = (const void *)m->bytes;

	pthread_mutex_lock(&cuda_lock);
	cuda_publication_freed(s, freed->cookie);
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_take_unmap(struct session *s, const struct conn_message *m)
{
	const struct wire_segment_ref *unmap = (const void *)m->bytes;
	struct wire_segment_ref not_open;
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	if (cs && cuda_session_is_ending(cs)) {
		/* It is being closed. The end of the connection will say that it is not open. */
	} else if (!cs || !cuda_import_unmap(cs, unmap->segment, unmap->segment_generation)) {
		/* The answer to an IMPORT came when nobody waited for it: nothing is open. */
		not_open = *unmap;
		not_open.header.type = WIRE_UNMAPPED;
		session_note_locked(s, &not_open);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* The daemon had no space for the file of a device: it is given it again with the next export. */
static void keep_refused(struct cuda_session *cs, uint32_t serial)
{
	for (unsigned i = 0; i < CUDA_DEVICES_MAX; i++)
		if (cs->kept[i] == serial)
			cs->kept[i] = 0;
}

void cuda_late_answer(struct session *s, const struct conn_message *m)
{
	const struct wire_placed *placed = (const void *)m->bytes;
	uint64_t ref = m->header.type == WIRE_PLACED ? placed->ref : 0;
	bool published = m->header.type != WIRE_ERROR;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s)) {
		if (!published)
			keep_refused(cuda_of(s), m->header.serial);
		cuda_publication_answered(cuda_of(s), m->header.serial, published, ref);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* The dead daemon may not have got round to saying UNMAP. */
bool cuda_session_adopted(struct session *s)
{
	struct cuda_session *cs;
	bool goes_on;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	goes_on = !cs || !cs->produces;
	if (cs && goes_on)
		cuda_imports_unmap_dead(cs);
	pthread_mutex_unlock(&cuda_lock);
	return goes_on;
}
