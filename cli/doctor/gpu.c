/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: GPUs. This process never loads the driver; its children do (gpu_child.c). For each GPU it
 * prints the properties, and tries an exchange of each kind of memory between two processes. */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor/child.h"
#include "cli/doctor/doctor.h"
#include "cli/format.h"

struct gpu {
	struct doctor *doctor;
	int number;
	bool vmm, integrated;
	char keeper[96]; /* keeps its memory when it is not in use; "": unknown */
};

/* ---- Is there one? ---- */

/* How strongly the machine suggests that a GPU is to be used. */
enum evidence { NOTHING, HARDWARE, DRIVER };

enum { TRIES = 5 }; /* attempts to see work under way */

struct nodes {
	unsigned count, closed;
	char first_closed[128];
};

static void look_at_nodes(struct nodes *nodes)
{
	static const char *const patterns[] = { "/dev/nvidiactl",    "/dev/nvidia-uvm",
						"/dev/nvidia[0-9]*", "/dev/nvidia-caps/*",
						"/dev/dxg",	     "/dev/nvmap" };

	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
		glob_t found;

		if (glob(patterns[i], 0, NULL, &found))
			continue;
		for (size_t k = 0; k < found.gl_pathc; k++) {
			nodes->count++;
			/* Files in nvidia-caps are only for some users. */
			if (i == 3 || !access(found.gl_pathv[k], R_OK | W_OK))
				continue;
			if (!nodes->closed++)
				snprintf(nodes->first_closed, sizeof(nodes->first_closed), "%s",
					 found.gl_pathv[k]);
		}
		globfree(&found);
	}
}

static bool nvidia_on_pci(void)
{
	glob_t found;
	bool is = false;

	if (glob("/sys/bus/pci/devices/*/vendor", 0, NULL, &found))
		return false;
	for (size_t i = 0; i < found.gl_pathc && !is; i++) {
		char vendor[16], class[16], path[256];

		snprintf(path, sizeof(path), "%.*sclass", (int)strlen(found.gl_pathv[i]) - 6,
			 found.gl_pathv[i]);
		doctor_read(found.gl_pathv[i], vendor, sizeof(vendor));
		doctor_read(path, class, sizeof(class));
		is = !strcmp(vendor, "0x10de") && !strncmp(class, "0x03", 4);
	}
	globfree(&found);
	return is;
}

static const char *environment(const char *name)
{
	const char *value = getenv(name);

	return value ? value : "not set";
}

static enum evidence say_nodes(struct doctor *d)
{
	struct nodes nodes = { 0 };
	char module[200];
	bool pci = nvidia_on_pci();

	look_at_nodes(&nodes);
	doctor_read("/proc/driver/nvidia/version", module, sizeof(module));
	if (!nodes.count && !*module && !pci) {
		doctor_say(
			d, DOCTOR_SKIPPED, "device nodes", NULL,
			"there is no NVIDIA GPU here: no /dev/nvidia*, no kernel module, none on the PCI bus");
		return NOTHING;
	}
	if (!nodes.count)
		doctor_say(d, DOCTOR_WARN, "device nodes",
			   "install the driver, or start the container with --gpus all", "%s%s",
			   pci ? "an NVIDIA GPU is on the PCI bus" : "the kernel module is loaded",
			   ", but there are no /dev/nvidia*");
	else if (nodes.closed)
		doctor_say(
			d, DOCTOR_FAIL, "device nodes",
			"let this user read and write them: groups video or render, or the device options of the container",
			"%u, but this user may not use %u of them (%s)", nodes.count, nodes.closed,
			nodes.first_closed);
	else
		doctor_say(d, DOCTOR_OK, "device nodes", NULL,
			   "%u; NVIDIA_VISIBLE_DEVICES %s, CUDA_VISIBLE_DEVICES %s", nodes.count,
			   environment("NVIDIA_VISIBLE_DEVICES"),
			   environment("CUDA_VISIBLE_DEVICES"));
	return nodes.count || *module ? DRIVER : HARDWARE;
}

/*
 * Reports that CUDA cannot be used. How bad that is depends on the evidence: a machine without a
 * GPU is fine.
 */
static void say_no_driver(struct doctor *d, enum evidence evidence, const char *words)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	const char *advice =
		"if there should be a GPU: install its driver, or start the container with --gpus all";
	enum doctor_result result = evidence == DRIVER	   ? DOCTOR_FAIL
				    : evidence == HARDWARE ? DOCTOR_WARN
							   : DOCTOR_SKIPPED;

	if (strstr(words, "stub")) {
		advice =
			"take the toolkit's stubs folder out of LD_LIBRARY_PATH and the linker's configuration: it is for linking only";
		result = evidence == NOTHING ? DOCTOR_WARN : DOCTOR_FAIL;
	} else if (!strstr(words, "cannot be loaded") && evidence == NOTHING) {
		result = DOCTOR_WARN; /* there is a driver after all */
		if (visible)
			advice =
				"CUDA_VISIBLE_DEVICES hides the GPUs: unset it, or name a device (nvidia-smi -L)";
	}
	doctor_say(d, result, "driver", advice, "%s", words);
}

/* ---- An exchange ---- */

struct exchange {
	const struct gpu *gpu;
	const char *probe;	    /* such as "gpu 0 legacy" */
	const char *advice;	    /* used if it fails */
	const char *advice_opening; /* used if opening fails; NULL: the same */
	const char *kind;	    /* for the role gpu-put */
	char name[64], device[16];
	struct doctor_child producer, consumer;
};

/*
 * Returns the next answer of @child, which the caller frees. If it is a failure, reports it and
 * returns NULL.
 */
static char *answer(struct exchange *e, const char *who, struct doctor_child *child)
{
	char *words;

	if (doctor_answer(child, &words))
		return words;
	doctor_say(e->gpu->doctor, DOCTOR_FAIL, e->probe, e->advice, "%s: %s", who, words);
	free(words);
	return NULL;
}

static bool spawn(struct exchange *e, struct doctor_child *child, enum doctor_apart apart,
		  const char *role, const char *kind)
{
	struct doctor *d = e->gpu->doctor;
	int r = doctor_spawn(
		child, apart,
		(const char *const[]){ role, d->socket, e->name, e->device, kind, NULL });

	if (r)
		doctor_say(d, DOCTOR_FAIL, e->probe, "raise the limit on processes: ulimit -u",
			   "starting a process: %s", strerror(-r));
	return !r;
}

static bool spawn_consumer(struct exchange *e)
{
	return spawn(e, &e->consumer, APART_NOTHING, "gpu-get", NULL);
}

/* Exchanges a tensor that is complete when it is published. */
static bool first_exchange(struct exchange *e)
{
	char *published = NULL, *got = NULL;
	bool works;

	if (spawn(e, &e->producer, APART_NOTHING, "gpu-put", e->kind))
		published = answer(e, "publishing", &e->producer);
	if (e->advice_opening)
		e->advice = e->advice_opening;
	if (published && spawn_consumer(e))
		got = answer(e, "getting", &e->consumer);
	if (got)
		doctor_say(e->gpu->doctor, DOCTOR_OK, e->probe, NULL, "%s; %s; all bytes are right",
			   published, got);
	works = got != NULL;
	free(published);
	free(got);
	return works;
}

/* The consumer came after the work had ended, so it is not known whether it would have waited. */
static bool came_too_late(const char *got)
{
	return strstr(got, "had ended") != NULL;
}

/* Exchanges a tensor that the producer's GPU still writes when it is published. */
static bool second_exchange(struct exchange *e, const char *probe)
{
	char *published = NULL, *got = NULL;
	bool works;

	e->probe = probe;
	e->advice =
		"let producers publish sealed (TL_PUBLISH_SEALED, sealed=True): then nobody has to wait for an event";
	for (int tries = 0; tries < TRIES && (!got || came_too_late(got)); tries++) {
		free(published);
		free(got);
		got = NULL;
		doctor_go(&e->consumer); /* it then waits for the next version */
		doctor_go(&e->producer);
		published = answer(e, "publishing", &e->producer);
		if (published)
			got = answer(e, "getting", &e->consumer);
		if (!got)
			break;
	}
	if (got)
		doctor_say(e->gpu->doctor, came_too_late(got) ? DOCTOR_SKIPPED : DOCTOR_OK,
			   e->probe, NULL, "%s; %s", published, got);
	works = got != NULL;
	free(published);
	free(got);
	return works;
}

/* Kills the producer, and tests whether another process can still get the tensor. */
static void survival(struct exchange *e, const char *probe)
{
	struct doctor *d = e->gpu->doctor;
	char *got = NULL;

	e->probe = probe;
	e->advice =
		"enable persistence mode (nvidia-smi -pm 1, or nvidia-persistenced); otherwise tensors end with their producers here: keep producers running, or let them publish again";
	doctor_end(&e->consumer);
	doctor_kill(&e->producer);
	if (!spawn_consumer(e))
		return;
	got = answer(e, "getting", &e->consumer);
	if (got)
		doctor_say(
			d, DOCTOR_OK, e->probe, NULL,
			"the producer was killed, and another process still gets its tensor; all bytes are right%s%s",
			*e->gpu->keeper ? "; " : "", e->gpu->keeper);
	free(got);
}

static void exchange_end(struct exchange *e)
{
	doctor_end(&e->consumer);
	doctor_end(&e->producer);
	tl_delete(e->gpu->doctor->client, e->name);
}

/* ---- Kinds of memory ---- */

/* Prepares an exchange. The name of the tensor begins with @probe, which names the GPU. */
static struct exchange exchange_of(const struct gpu *g, const char *probe, const char *kind)
{
	struct exchange e = { .gpu = g, .probe = probe, .kind = kind };

	snprintf(e.name, sizeof(e.name), "doctor/%s/%s", probe, kind);
	snprintf(e.device, sizeof(e.device), "%d", g->number);
	return e;
}

static void try_vmm(const struct gpu *g)
{
	char probe[32], order[32], outlives[32];
	struct exchange e;

	snprintf(probe, sizeof(probe), "gpu %d vmm", g->number);
	snprintf(order, sizeof(order), "gpu %d order", g->number);
	snprintf(outlives, sizeof(outlives), "gpu %d survival", g->number);
	e = exchange_of(g, probe, "vmm");
	e.advice =
		"publish ordinary allocations (cudaMalloc, or a framework's) with tl_publish(): they need no virtual memory management, but end with their producer; drivers from 470 on have it";
	if (first_exchange(&e) && second_exchange(&e, order))
		survival(&e, outlives);
	exchange_end(&e);
}

/* Returns why this cannot work here at all, or NULL. */
static const char *no_legacy(const struct gpu *g)
{
	if (g->integrated || g->doctor->tegra)
		return "GPUs that share the CPU's memory (Tegra) have no legacy handles";
	if (g->doctor->wsl)
		return "WSL refuses legacy handles, whatever its capability flags say";
	return NULL;
}

static bool try_legacy(const struct gpu *g)
{
	const char *known = no_legacy(g);
	struct exchange e;
	char probe[32];
	bool works;

	snprintf(probe, sizeof(probe), "gpu %d legacy", g->number);
	e = exchange_of(g, probe, "legacy");
	e.advice =
		"ordinary allocations (cudaMalloc) cannot be exported on this system: make tensors with tl_create() on the GPU, or publish with TL_PUBLISH_STAGING";
	e.advice_opening =
		"handles of ordinary allocations do not open between processes with the same PID, nor in some containers: let programs in containers that share tensors have different PIDs (docker run --pid=host), make tensors with tl_create() on the GPU, or publish with TL_PUBLISH_STAGING";
	if (known && g->vmm) { /* nobody could repair anything */
		doctor_say(g->doctor, DOCTOR_WARN, probe, e.advice, "%s", known);
		return false;
	}
	works = first_exchange(&e);
	exchange_end(&e);
	return works;
}

/* Lets both sides do the next step. *words is the last answer. */
static bool once_more(struct exchange *e, char **words)
{
	bool works;

	free(*words);
	doctor_go(&e->consumer);
	doctor_go(&e->producer);
	works = doctor_answer(&e->producer, words);
	if (!works)
		return false;
	free(*words);
	return doctor_answer(&e->consumer, words);
}

/* How producer and consumer are apart, as if in two containers. */
struct apart {
	enum doctor_apart producer, consumer;
	const char *suffix; /* of the tensor's name, since the bytes depend on the version */
};

/* Both the first processes of their namespaces: the driver takes equal PIDs for one process. */
static const struct apart other_pids = { APART_NOTHING, APART_PIDS, "" },
			  equal_pids = { APART_PIDS, APART_PIDS, ", equal" },
			  other_shm = { APART_NOTHING, APART_SHM, ", shm" };

/* Writes the finding to @out. */
static bool try_apart(const struct gpu *g, const char *probe, const char *kind,
		      const struct apart *apart, char *out, size_t size)
{
	struct exchange e = exchange_of(g, probe, kind);
	bool opens = false, works;
	char *words = NULL;

	snprintf(e.name, sizeof(e.name), "doctor/%s/%s%s", probe, kind, apart->suffix);
	if (spawn(&e, &e.producer, apart->producer, "gpu-put", kind) &&
	    doctor_answer(&e.producer, &words)) {
		free(words);
		words = NULL;
		if (spawn(&e, &e.consumer, apart->consumer, "gpu-get", NULL))
			opens = doctor_answer(&e.consumer, &words);
	}
	works = opens && once_more(&e, &words);
	if (works)
		snprintf(out, size, "%s: works", kind);
	else
		snprintf(out, size, "%s: %s (%s)", kind,
			 opens ? "works only if the producer's work has ended" : "does not work",
			 words ? words : "no answer");
	free(words);
	exchange_end(&e);
	return works;
}

/* Tries both kinds of memory, and adds the findings to @out. */
static bool try_kinds_apart(const struct gpu *g, const char *probe, bool legacy_works,
			    const struct apart *apart, char *out, size_t size)
{
	bool legacy = true, vmm = true;
	char a[300] = "", b[300] = "";

	if (legacy_works)
		legacy = try_apart(g, probe, "legacy", apart, a, sizeof(a));
	if (g->vmm)
		vmm = try_apart(g, probe, "vmm", apart, b, sizeof(b));
	snprintf(out, size, "%s%s%s", a, *a && *b ? "; " : "", b);
	return legacy && vmm;
}

/* Returns whether CUDA starts in a process that is apart, after reporting why it does not. */
static bool can_try_apart(const struct gpu *g, const char *probe, enum doctor_apart apart,
			  const char *may_not)
{
	struct doctor_child c = { 0 };
	char *words = NULL;
	bool works;

	if (!doctor_can_go_apart(apart)) {
		doctor_say(g->doctor, DOCTOR_SKIPPED, probe, NULL, "%s", may_not);
		return false;
	}
	works = !doctor_spawn(&c, apart, (const char *const[]){ "gpus", NULL }) &&
		doctor_answer(&c, &words);
	if (!works)
		doctor_say(g->doctor, DOCTOR_SKIPPED, probe, NULL,
			   "CUDA does not start in such a process: %s",
			   words ? words : "it cannot be made");
	free(words);
	doctor_end(&c);
	return works;
}

static void try_namespaces(const struct gpu *g, bool legacy_works)
{
	char one[700], equal[700], probe[32];
	bool works;

	snprintf(probe, sizeof(probe), "gpu %d pid ns", g->number);
	if (!can_try_apart(g, probe, APART_PIDS,
			   "this user may not make a PID namespace with a /proc of its own"))
		return;
	works = try_kinds_apart(g, probe, legacy_works, &other_pids, one, sizeof(one));
	if (!try_kinds_apart(g, probe, legacy_works, &equal_pids, equal, sizeof(equal)))
		works = false;
	doctor_say(
		g->doctor, works ? DOCTOR_OK : DOCTOR_WARN, probe,
		"see that programs in containers that share tensors have different PIDs, so not 1 each: docker run --pid=host, or --pid=container:NAME, or start something before them; or publish the kind of memory that works",
		"a consumer in another PID namespace: %s. Both with PID 1: %s", one, equal);
}

/* Containers usually have a /dev/shm of their own, and the driver keeps there the data that events
 * of other processes need. */
static void try_shm(const struct gpu *g, bool legacy_works)
{
	char found[700], probe[32];
	bool works;

	snprintf(probe, sizeof(probe), "gpu %d shm", g->number);
	if (!can_try_apart(g, probe, APART_SHM, "this user may not mount a /dev/shm of its own"))
		return;
	works = try_kinds_apart(g, probe, legacy_works, &other_shm, found, sizeof(found));
	doctor_say(
		g->doctor, works ? DOCTOR_OK : DOCTOR_WARN, probe,
		"let containers that share tensors share /dev/shm (docker run --ipc=host, or --ipc=container:NAME), or publish the kind of memory that works",
		"a consumer with a /dev/shm of its own: %s", found);
}

/* ---- All of them ---- */

static uint64_t number_of(const cJSON *object, const char *key)
{
	const cJSON *item = cJSON_GetObjectItem(object, key);

	return cJSON_IsNumber(item) ? (uint64_t)item->valuedouble : 0;
}

static bool truth_of(const cJSON *object, const char *key)
{
	return cJSON_IsTrue(cJSON_GetObjectItem(object, key));
}

static const char *text_of(const cJSON *object, const char *key)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));

	return text ? text : "";
}

static void try_gpu(struct doctor *d, const cJSON *about, int number)
{
	struct gpu g = { .doctor = d,
			 .number = number,
			 .vmm = truth_of(about, "vmm"),
			 .integrated = truth_of(about, "integrated") };
	const cJSON *persistence = cJSON_GetObjectItem(about, "persistence");
	uint64_t mode = number_of(about, "compute_mode");
	char *memory = format_size(number_of(about, "bytes"), true), probe[32];
	bool mig = strstr(text_of(about, "name"), "MIG") != NULL, legacy;

	snprintf(probe, sizeof(probe), "gpu %d", number);
	doctor_say(
		d, mode ? DOCTOR_FAIL : DOCTOR_OK, probe,
		"it allows one process at a time: run nvidia-smi -c DEFAULT as root, or start MPS (nvidia-cuda-mps-control -d)",
		"%s, %s-%s, %s, compute capability %s%s%s; says: virtual memory management %s, legacy "
		"handles %s, memory pools %s",
		text_of(about, "name"), mig ? "MIG" : "GPU",
		text_of(about, "uuid") + strlen("GPU-"), memory, text_of(about, "compute"),
		g.integrated ? ", integrated" : "",
		mode == 3   ? ", exclusive to one process"
		: mode == 2 ? ", prohibited"
			    : "",
		g.vmm ? "yes" : "no", truth_of(about, "legacy") ? "yes" : "no",
		truth_of(about, "pools") ? "yes" : "no");
	free(memory);
	if (cJSON_IsNumber(persistence) && persistence->valueint == 1)
		snprintf(g.keeper, sizeof(g.keeper), "persistence mode keeps it");
	else if (*text_of(about, "node"))
		snprintf(g.keeper, sizeof(g.keeper), "the daemon keeps it, by %s",
			 text_of(about, "node"));
	if (!*d->socket) {
		doctor_say(d, DOCTOR_SKIPPED, probe, NULL,
			   "there is no daemon to exchange through");
		return;
	}
	try_vmm(&g);
	legacy = try_legacy(&g);
	try_namespaces(&g, legacy);
	try_shm(&g, legacy);
}

static void say_peers(struct doctor *d, const cJSON *gpus)
{
	int count = cJSON_GetArraySize(gpus), without = 0;
	char first[64] = "";

	if (count < 2) {
		doctor_say(d, DOCTOR_SKIPPED, "peer access", NULL, "there is one GPU");
		return;
	}
	for (int i = 0; i < count; i++) {
		const cJSON *peers = cJSON_GetObjectItem(cJSON_GetArrayItem(gpus, i), "peers");

		for (int k = 0; k < count; k++) {
			if (k == i || cJSON_IsTrue(cJSON_GetArrayItem(peers, k)))
				continue;
			if (!without++)
				snprintf(first, sizeof(first), " (%d cannot read %d)", i, k);
		}
	}
	doctor_say(
		d, without ? DOCTOR_WARN : DOCTOR_OK, "peer access",
		"sharing a tensor on its own GPU works; kernels on another GPU need a copy. See nvidia-smi topo -p2p r, and virtualisation settings (ACS, IOMMU)",
		"%d of %d pairs%s", count * (count - 1) - without, count * (count - 1), first);
}

static void say_mps(struct doctor *d)
{
	const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[300];

	snprintf(path, sizeof(path), "%.250s/control", pipe && *pipe ? pipe : "/tmp/nvidia-mps");
	if (!access(path, F_OK))
		doctor_say(d, DOCTOR_OK, "mps", NULL, "MPS is used, at %s", path);
}

void doctor_gpus(struct doctor *d)
{
	enum evidence evidence = say_nodes(d);
	struct doctor_child child = { 0 };
	cJSON *gpus = NULL;
	int version;
	char *words;

	if (doctor_spawn(&child, APART_NOTHING, (const char *const[]){ "gpus", NULL }))
		return;
	if (doctor_answer(&child, &words))
		gpus = cJSON_Parse(words);
	if (gpus) {
		const cJSON *first = cJSON_GetArrayItem(gpus, 0);

		version = (int)number_of(first, "driver");
		doctor_say(d, DOCTOR_OK, "driver", NULL, "CUDA %d.%d, %d GPUs, %s", version / 1000,
			   version % 1000 / 10, cJSON_GetArraySize(gpus),
			   text_of(first, "library"));
	} else {
		say_no_driver(d, evidence, words);
	}
	free(words);
	doctor_end(&child);
	if (!gpus)
		return;
	say_mps(d);
	for (int i = 0; i < cJSON_GetArraySize(gpus); i++)
		try_gpu(d, cJSON_GetArrayItem(gpus, i), i);
	say_peers(d, gpus);
	cJSON_Delete(gpus);
}
