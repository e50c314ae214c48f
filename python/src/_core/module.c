/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module tensorlease._core. Its state belongs to the process, so that it supports one
 * interpreter.
 */
#include "client.h"
#include "cuda.h"
#include "fault.h"
#include "lock.h"

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "shapes are handed out as they are");

#ifdef Py_GIL_DISABLED
PyObject *extension_lock;
#endif

static PyMethodDef functions[] = {
	{ "check_seconds", check_seconds, METH_VARARGS, NULL },
	{ "check_uint64", check_uint64, METH_VARARGS, NULL },
	{ "check_stream", check_stream, METH_O, NULL },
	{ "lacks_tensors", lacks_tensors, METH_NOARGS, NULL },
	{ "explain_faults", explain_faults, METH_NOARGS, explain_faults_doc },
	{ "modules", package_modules, METH_NOARGS, NULL },
	{ "register", register_types, METH_VARARGS, NULL },
	{ "cuda_devices", cuda_devices, METH_NOARGS, NULL },
	{ "cuda_alloc", cuda_alloc, METH_VARARGS, NULL },
	{ "cuda_free", cuda_free, METH_VARARGS, NULL },
	{ "library_path", library_path, METH_NOARGS, NULL },
	{ 0 },
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "tensorlease._core",
	.m_size = -1,
	.m_methods = functions,
};

PyMODINIT_FUNC PyInit__core(void)
{
	PyObject *module = PyModule_Create(&definition);

#ifdef Py_GIL_DISABLED
	extension_lock = Py_XNewRef(module);
	if (module && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED))
		Py_CLEAR(module);
#endif
	if (module && !interpreter_init() && !errors_init(module) && !tensor_init(module) &&
	    !draft_init(module) && !client_init(module) && !watch_init(module) &&
	    !stream_init(module))
		return module;
	Py_XDECREF(module);
	return NULL;
}
