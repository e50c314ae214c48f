/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: one process publishes a tensor, and another one gets it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/doctor.h"

struct exchange {
	struct doctor *doctor;
	int device;
	const char *kind; /* of memory: cpu, vmm or legacy */
	char name[64];
	struct doctor_child producer, consumer;
};

static void spawn(const struct exchange *e, struct doctor_child *c, const char *role)
{
	doctor_spawn(c, role, doctor_socket(), e->name, e->device, e->kind);
}

/* Reports a failure, or that another version was published and got. Returns whether it was. */
static bool try_version(struct exchange *e, const char *probe, const char *advice)
{
	bool first = !e->producer.pid;
	enum doctor_result r;

	if (first) {
		spawn(e, &e->producer, "put");
	} else {
		doctor_go(&e->consumer); /* it then waits for the next version */
		doctor_go(&e->producer);
	}
	r = doctor_answer(&e->producer);
	if (r != DOCTOR_OK) {
		doctor_say(e->doctor, r, probe, advice, "publishing: %s", e->producer.words);
		return false;
	}
	if (first)
		spawn(e, &e->consumer, "get");
	r = doctor_answer(&e->consumer);
	doctor_say(e->doctor, r, probe, advice, "%s%s%s",
		   r == DOCTOR_FAIL ? "getting" : e->producer.words, r == DOCTOR_FAIL ? ": " : "; ",
		   e->consumer.words);
	return r != DOCTOR_FAIL;
}

/* Kills the producer, and tests whether another process can still get the tensor. */
static void try_survival(struct exchange *e, const char *probe)
{
	enum doctor_result r;

	doctor_end(&e->consumer);
	if (e->producer.pid)
		kill(e->producer.pid, SIGKILL);
	doctor_end(&e->producer);
	spawn(e, &e->consumer, "get");
	r = doctor_answer(&e->consumer);
	doctor_say(
		e->doctor, r, probe,
		"enable persistence mode (nvidia-smi -pm 1, or nvidia-persistenced); otherwise tensors end with their producers here: keep producers running, or let them publish again",
		"%s%s",
		r == DOCTOR_OK
			? "the producer was killed, and another process still gets its tensor; "
			: "",
		e->consumer.words);
}

static void exchange_end(struct exchange *e)
{
	doctor_end(&e->consumer);
	doctor_end(&e->producer);
}

void doctor_exchange(struct doctor *d)
{
	struct exchange e = { .doctor = d, .kind = "cpu", .name = "doctor/cpu" };

	if (!doctor_socket()) {
		doctor_say(d, DOCTOR_SKIPPED, "exchange", NULL,
			   "there is no daemon to exchange through");
		return;
	}
	if (try_version(&e, "exchange", "mend what it says, or run the tests: make test"))
		try_version(
			&e, "waiting get",
			"if this is so each time, nothing wakes gets here: use an ordinary Linux kernel (some sandboxes emulate futexes incompletely)");
	exchange_end(&e);
}

void doctor_exchange_gpu(struct doctor *d, int number)
{
	struct exchange vmm = { .doctor = d, .kind = "vmm", .device = number };
	struct exchange legacy = { .doctor = d, .kind = "legacy", .device = number };
	char order[32], survival[32];

	snprintf(vmm.name, sizeof(vmm.name), "gpu %d vmm", number);
	snprintf(order, sizeof(order), "gpu %d order", number);
	snprintf(survival, sizeof(survival), "gpu %d survival", number);
	snprintf(legacy.name, sizeof(legacy.name), "gpu %d legacy", number);
	if (try_version(
		    &vmm, vmm.name,
		    "publish ordinary allocations (cudaMalloc, or a framework's) with tl_publish(): they need no virtual memory management, but end with their producer; drivers from 470 on have it") &&
	    try_version(
		    &vmm, order,
		    "let producers publish sealed (TL_PUBLISH_SEALED, sealed=True): then nobody has to wait for an event"))
		try_survival(&vmm, survival);
	exchange_end(&vmm);
	try_version(
		&legacy, legacy.name,
		"ordinary allocations (cudaMalloc) cannot be shared here: make tensors with tl_create() on the GPU, or publish with TL_PUBLISH_STAGING; in containers, first let the programs have different PIDs (docker run --pid=host)");
	exchange_end(&legacy);
}
