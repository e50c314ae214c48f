/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffer protocol joined the stable ABI in 3.11, with the struct, functions and slots that 3.10
 * already had, though 3.10's headers hide them. Declaring them here makes one extension work with
 * both.
 */
#pragma once

#ifndef Py_LIMITED_API
#error "include core.h"
#endif
#include <Python.h>

typedef struct {
	void *buf;
	PyObject *obj;
	Py_ssize_t len;
	Py_ssize_t itemsize;
	int readonly;
	int ndim;
	char *format;
	Py_ssize_t *shape;
	Py_ssize_t *strides;
	Py_ssize_t *suboffsets;
	void *internal;
} Py_buffer;

PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject *obj);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *obj, Py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);

#define Py_bf_getbuffer 1
#define Py_bf_releasebuffer 2

#define PyBUF_WRITABLE 0x0001
#define PyBUF_FORMAT 0x0004
#define PyBUF_ND 0x0008
#define PyBUF_STRIDES (0x0010 | PyBUF_ND)
#define PyBUF_C_CONTIGUOUS (0x0020 | PyBUF_STRIDES)
#define PyBUF_F_CONTIGUOUS (0x0040 | PyBUF_STRIDES)
#define PyBUF_ANY_CONTIGUOUS (0x0080 | PyBUF_STRIDES)
#define PyBUF_INDIRECT (0x0100 | PyBUF_STRIDES)
#define PyBUF_FULL_RO (PyBUF_INDIRECT | PyBUF_FORMAT)
