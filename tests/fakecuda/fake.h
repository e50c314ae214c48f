/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the fake driver, which its files share. "Device memory" is files and memfds, mapped
 * at the address that the device pointer has. One lock guards all state of the process; the
 * registry's lock is taken under it.
 */
#pragma once

#include "client/gpu/driver.h"
#include "client/gpu/driver_functions.h"
#include "tests/fakecuda/reap.h"

/* Declares every exported function with the type that the library calls it by. */
#define FAKE_DECLARE(group, member, name, suffix, version)                                         \
	__attribute__((visibility("default"))) extern __typeof__(*((struct cuda_driver *)NULL)     \
									  ->member) name##suffix;
CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

#define FAKE_PUBLIC __attribute__((visibility("default")))
#define FAKE_GRANULARITY ((size_t)2 << 20)

struct CUctx_st {
	struct CUctx_st *next;
	int device; /* ordinal */
	unsigned refs;
	bool primary;
	bool destroyed;
	uint64_t id;	 /* another one when a primary context begins anew with the same handle */
	CUresult sticky; /* the error of a fault: every call of this context returns it */
	CUstream legacy;
};

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;
	uint64_t id;
	int fd;
	int device; /* ordinal */
	int handle_types;
	size_t size;
	char *base;
	bool imported;
	bool destroyed; /* it ends with the last of its allocations */
};

struct block {
	struct block *next;
	uint64_t id;
	char *base;
	size_t size;
	unsigned users;
	struct CUctx_st *ctx;
	int device;
	bool imported;
};

/* Physical memory of cuMemCreate. */
struct vmm {
	struct vmm *next;
	uint64_t id;
	int fd;
	size_t size;
	unsigned handles;
	unsigned mappings;
	int device;
	bool imported;
	struct cuda_allocation_prop prop;
};

struct reservation {
	struct reservation *next;
	char *base;
	size_t size;
	unsigned mappings;
	uint64_t buffer_id; /* that of all that is ever mapped in it */
};

/* A range of addresses that belong to one object. */
struct range {
	struct range *next;
	enum fake_kind kind;
	char *base;
	size_t size;
	uint64_t buffer_id;
	uint64_t shared_id; /* in the registry; 0: not there */
	unsigned opens;
	struct CUctx_st *ctx;
	int device;
	struct block *block;
	struct vmm *vmm;
	size_t offset; /* in vmm */
	struct reservation *reservation;
	CUmemoryPool pool;
	unsigned char access[FAKE_DEVICES]; /* by ordinal */
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fake_registry *registry;
	int self;	    /* in the registry */
	_Atomic int pid;    /* the process that initialised the driver; 0: none */
	_Atomic bool ended; /* exit() has taken the driver down */
	int devices;
	int physical[FAKE_DEVICES]; /* by ordinal */
	size_t memory;
	long events;
	long delay_us;
	struct CUctx_st *primary[FAKE_DEVICES];
	struct CUctx_st *contexts;
	unsigned barred[FAKE_DEVICES]; /* by ordinal: calls that let nobody queue work meanwhile */
	struct CUstream_st *streams;
	struct range *ranges;
};
extern struct fake fake;

/* ---- device.c ---- */

extern _Thread_local bool fake_in_host_function;
CUresult fake_enter(const char *function);
void fake_violation(enum fake_violation violation);
bool fake_flag(const char *name);
uint64_t fake_id(void);
void fake_live(enum fake_kind kind, int change);
int fake_ordinal(int physical); /* -1: not visible */
int fake_seen_pid(void);
struct CUctx_st *fake_context(void);
CUresult fake_charge(int device, size_t size);
void fake_uncharge(int device, size_t size);

/* Every exported function starts with one of these; what locks is undone by fake_leave(). */
#define ENTER()                                                                                    \
	do {                                                                                       \
		CUresult entered_ = fake_enter(__func__);                                          \
		if (entered_)                                                                      \
			return entered_;                                                           \
	} while (0)
#define ENTER_LOCKED()                                                                             \
	ENTER();                                                                                   \
	pthread_mutex_lock(&fake.lock)
#define ENTER_CONTEXT(ctx)                                                                         \
	ENTER_LOCKED();                                                                            \
	struct CUctx_st *ctx = fake_context();                                                     \
	do {                                                                                       \
		CUresult state_ = fake_context_state(ctx);                                         \
		if (state_)                                                                        \
			return fake_leave(state_);                                                 \
	} while (0)
static inline CUresult fake_leave(CUresult r)
{
	pthread_mutex_unlock(&fake.lock);
	return r;
}
static inline CUresult fake_context_state(const struct CUctx_st *ctx)
{
	if (!ctx)
		return CUDA_E_INVALID_CONTEXT;
	return ctx->destroyed ? CUDA_E_CONTEXT_IS_DESTROYED : ctx->sticky;
}

/* ---- memory.c ---- (all under the lock) */

char *va_take(size_t size);
void va_give(char *base, size_t size);
void va_hide(char *base, size_t size);
struct range *range_add(enum fake_kind kind, char *base, size_t size, int device);
struct range *range_of(CUdeviceptr pointer);
bool range_covers(CUdeviceptr pointer, size_t size);
bool range_allows(CUdeviceptr pointer, size_t size, int device, int access);
void range_remove(struct range *range);
bool shared_add(struct range *range, uint64_t block, uint64_t offset);
void shared_end(struct range *range);
bool open_add(uint64_t id);
void open_remove(uint64_t id);
bool shared_exists(uint64_t id);
void memory_context_end(struct CUctx_st *ctx);

/* ---- stream.c ---- (all under the lock) */

CUresult stream_resolve(CUstream *stream, struct CUctx_st *ctx);
void stream_context_wait(struct CUctx_st *ctx);

/* What closes memory waits for all work of its device. Seen on real GPUs: cuMemFree() and
 * cuIpcCloseMemHandle() hold a lock meanwhile, which calls that queue work or make an event take.
 */
enum fake_closing { FAKE_CLOSING_BARS_WORK, FAKE_CLOSING_BESIDE_WORK };
void stream_device_wait(int device, enum fake_closing how);
void stream_wait_for_closing(int device);
void stream_context_end(struct CUctx_st *ctx);
CUresult capture_check(void); /* for functions that may not be called while a stream is captured */

/* ---- vmm.c ---- */
/* Makes a memfd that stays @size bytes long, as the daemon requires. -1: it cannot be made. */
int fake_memfd(const char *name, size_t size);

/* ---- pool.c ---- */
void pool_range_free(struct range *range);
