/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that always asks for more space than there is, so that the daemon takes back whatever it
 * can take back for others.
 */
#pragma once

#include <sys/mman.h>
#include <time.h>

#include "tests/harness/harness.h"

struct press {
	_Atomic bool stop;
	uint64_t nbytes; /* what each request asks for */
	_Atomic uint64_t refused, granted;
};

static inline struct press *press_new(uint64_t nbytes)
{
	struct press *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);

	must(p != MAP_FAILED);
	p->nbytes = nbytes;
	return p;
}

static inline int press_for_space(const struct test_daemon *d, void *arg)
{
	struct press *p = arg;
	tl_client *client = td_connect(d);
	int64_t shape = (int64_t)p->nbytes;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &shape,
			 .ndim = 1,
			 .dtype = { .code = 1, .bits = 8, .lanes = 1 } };

	parent_tell(1);
	while (!atomic_load(&p->stop)) {
		tl_draft *draft = NULL;
		int r = tl_create(client, "press", &spec, &draft);

		if (r)
			must_be(r, -ENOSPC);
		else
			tl_abort(draft);
		atomic_fetch_add(r ? &p->refused : &p->granted, 1);
		/* others need the CPU too */
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	}
	tl_close(client);
	return 0;
}

static inline struct test_child press_start(const struct test_daemon *d, struct press *p)
{
	return child_start_ready(d, press_for_space, p);
}

/*
 * It must have asked at least @least times. It can only have been granted space when nobody else
 * had any; then each time costs the allocation of all space there is, so @least must be small where
 * that can happen often.
 */
static inline void press_stop(struct press *p, struct test_child *c, uint64_t least)
{
	eventually(atomic_load(&p->refused) + atomic_load(&p->granted) >= least);
	atomic_store(&p->stop, true);
	child_must_succeed(c);
	print_message("pressed for space: refused %llu times, granted %llu times\n",
		      (unsigned long long)p->refused, (unsigned long long)p->granted);
	munmap(p, sizeof(*p));
}
