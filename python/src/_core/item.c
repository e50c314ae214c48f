/* SPDX-License-Identifier: Apache-2.0 */
/* Items that were taken from a stream. */
#include <tensorlease/stream.h>

#include "array.h"
#include "item.h"
#include "lock.h"

struct item {
	PyObject_HEAD tl_item *item; /* NULL: released */
};

static PyTypeObject *item_type;

PyObject *item_new(void)
{
	return ((allocfunc)PyType_GetSlot(item_type, Py_tp_alloc))(item_type, 0);
}

void item_set(PyObject *self, tl_item *item)
{
	((struct item *)self)->item = item;
}

static tl_item *item_of(PyObject *self)
{
	tl_item *item = ((struct item *)self)->item;

	if (!item)
		PyErr_SetString(PyExc_ValueError, "the item was released");
	return item;
}

/* info() -> (number, put_ns, skipped, tries, producer, uid, metadata) */
static PyObject *item_info(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item = item_of(self);

	(void)unused;
	if (!item)
		return NULL;
	tl_item_get_info(item, &info);
	return Py_BuildValue("(KKKIIIy#)", (unsigned long long)info.number,
			     (unsigned long long)info.put_ns, (unsigned long long)info.skipped,
			     (unsigned)info.tries, (unsigned)info.producer, (unsigned)info.uid,
			     info.metadata ? (const char *)info.metadata : "",
			     (Py_ssize_t)info.metadata_size);
}

/* tensors() -> list of (name or None, Tensor); each Tensor keeps the item */
static PyObject *item_tensors(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	tl_item *item = item_of(self);
	size_t n = tl_item_count(item);
	PyObject *list = item ? PyList_New((Py_ssize_t)n) : NULL;

	(void)unused;
	for (size_t i = 0; list && i < n; i++) {
		DLManagedTensorVersioned *managed = NULL;
		PyObject *tensor, *pair = NULL;
		const char *name = NULL;
		int r = tl_item_to_dlpack(item, i, &managed);

		tl_item_tensor(item, i, &name);
		tensor = r ? raise_error(r) : tensor_from(managed);
		if (tensor)
			pair = Py_BuildValue("(zN)", name, tensor);
		if (!pair)
			Py_CLEAR(list);
		else
			PyList_SetItem(list, (Py_ssize_t)i, pair);
	}
	return list;
}

static PyObject *item_done(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	tl_item *item = item_of(self);
	int r;

	(void)unused;
	if (!item)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_item_done(item);
	Py_END_ALLOW_THREADS;
	if (r)
		return raise_error(r);
	Py_RETURN_NONE;
}

static PyObject *item_release(PyObject *self, PyObject *unused)
{
	WITH_LOCK;
	struct item *i = (struct item *)self;
	tl_item *item = i->item;
	int r = 0;

	(void)unused;
	i->item = NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = tl_item_release(item);
	Py_END_ALLOW_THREADS;
	if (r)
		return raise_error(r);
	Py_RETURN_NONE;
}

static void item_dealloc(PyObject *self)
{
	WITH_LOCK;
	struct item *i = (struct item *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc end = (freefunc)PyType_GetSlot(type, Py_tp_free);
	tl_item *item = i->item;

	if (item) {
		Py_BEGIN_ALLOW_THREADS;
		tl_item_release(item);
		Py_END_ALLOW_THREADS;
	}
	end(self);
	Py_DECREF(type);
}

static PyMethodDef item_methods[] = {
	{ "info", item_info, METH_NOARGS, NULL },
	{ "tensors", item_tensors, METH_NOARGS, NULL },
	{ "done", item_done, METH_NOARGS, NULL },
	{ "release", item_release, METH_NOARGS, NULL },
	{ 0 },
};

static PyType_Slot item_slots[] = {
	{ Py_tp_dealloc, item_dealloc },
	{ Py_tp_methods, item_methods },
	{ 0, NULL },
};

static PyType_Spec item_spec = {
	.name = "tensorlease._core.Item",
	.basicsize = sizeof(struct item),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = item_slots,
};

int item_init(void)
{
	item_type = (PyTypeObject *)PyType_FromSpec(&item_spec);
	return item_type ? 0 : -1;
}
