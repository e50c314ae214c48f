/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that need a GPU, or the fake of one (tests/fakecuda/). The main() of such a program calls
 * gpu_init() first. Each GPU_TEST has a fake machine of its own, whose counters it can read.
 *
 * Only the children of a test (child_start) may use CUDA, not the test itself, because CUDA does
 * not work after fork() in the child of a process that has used it. setenv() before child_start()
 * sets what the child finds; tests/fakecuda/device.c lists the variables. gpu_setenv() does the
 * same until the end of the test.
 *
 * With TL_TEST_GPU=real the same tests use the machine's own driver. Nobody counts there, so
 * gpu_live_all() and gpu_violations() return 0 and there are no delays. A test that needs what only
 * the fake driver can do is skipped.
 */
#pragma once

#include "client/gpu/driver.h"
#include "tests/fakecuda/reap.h"
#include "tests/harness/harness.h"

#define GPU_TEST(name) TEST_WITH(name, gpu_setup, gpu_teardown)

/* Executes the program again with the fake driver in its library path. */
void gpu_init(char **argv);
int gpu_setup(void **state);
int gpu_teardown(void **state);
void gpu_setenv(const char *name, const char *value);
bool gpu_is_real(void);
/* How many devices there are, as for SKIP_UNLESS(gpu_devices() >= 2, ...). */
int gpu_devices(void);

/* ---- What the machine counts, over all living processes ---- */

long long gpu_live(enum fake_kind kind);
long long gpu_live_all(void);
unsigned long long gpu_violations(enum fake_violation violation);

/*
 * Copies and fills of that process start only when it is no longer held. 0 lets it continue. Any
 * process may call this.
 */
void gpu_hold(pid_t pid);
/*
 * A real GPU does not know that work is held, so this puts something on the stream that waits.
 * gpu_fill() and gpu_read() begin with it. A copy to memory of malloc() would not return while the
 * process is held.
 */
void gpu_held_from_here(CUstream stream);

/* ---- In a child ---- */

/* The driver, with the primary context of that device current. If there is none, must() fails. */
const struct cuda_driver *gpu_use(int device);
/* Reads as a kernel on that stream would: returns the value of all @size bytes, or -1 if they
 * differ. */
int gpu_read(CUdeviceptr pointer, size_t size, CUstream stream);
/* Sets bytes as a kernel on that stream would, and does not wait. */
void gpu_fill(CUdeviceptr pointer, int byte, size_t size, CUstream stream);
#define gpu_must(call) must_be(call, CUDA_OK)
