/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that need a GPU, or the fake of one (tests/fakecuda/). A test program's main() calls
 * gpu_init() first. Each GPU_TEST has a fake machine of its own, whose counters it can ask for.
 *
 * The test itself must not use CUDA, only its children (child_start): after fork() CUDA does not
 * work in the child of a process that used it. setenv() before child_start() sets up what the child
 * sees: tests/fakecuda/device.c lists the variables. What was set with gpu_setenv() is taken back
 * after the test.
 *
 * With TL_TEST_GPU=real the same tests use the machine's own driver. Nobody counts then:
 * gpu_live_all() and gpu_violations() are 0, delays are none, and what only the fake can do skips
 * the test.
 */
#pragma once

#include "client/cuda/driver.h"
#include "tests/fakecuda/reap.h"
#include "tests/harness/harness.h"

#define GPU_TEST(name) TEST_WITH(name, gpu_setup, gpu_teardown)

/* Starts the program again with the fake driver in its library path. */
void gpu_init(char **argv);
int gpu_setup(void **state);
int gpu_teardown(void **state);
void gpu_setenv(const char *name, const char *value);
bool gpu_is_real(void);
/* For SKIP_UNLESS(gpu_devices() >= 2, ...). */
int gpu_devices(void);

/* ---- What the machine counts: over all processes that live ---- */

long long gpu_live(enum fake_kind kind);
long long gpu_live_all(void);
unsigned long long gpu_violations(enum fake_violation violation);

/* Copies and fills of that process start only when it is no longer held: 0 lets it go on. Any
 * process may call it. */
void gpu_hold(pid_t pid);
/*
 * Real work does not look whether it is held; what this puts before it does. gpu_fill() and
 * gpu_read() begin with it. A copy to memory of malloc() would not come back while it is held.
 */
void gpu_held_from_here(CUstream stream);

/* ---- In a child ---- */

/* The driver, with the primary context of that device current; must() fails if there is none. */
const struct cuda_driver *gpu_use(int device);
/* What a kernel on that stream would see: the first byte of @size equal ones, or -1. */
int gpu_read(CUdeviceptr pointer, size_t size, CUstream stream);
/* Sets bytes as a kernel on that stream would; does not wait. */
void gpu_fill(CUdeviceptr pointer, int byte, size_t size, CUstream stream);
#define gpu_must(call) must_be(call, CUDA_OK)
