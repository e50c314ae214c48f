/* SPDX-License-Identifier: Apache-2.0 */
/* explain_faults(): which tensor a fatal write to read-only memory was for. */
#pragma once

#include "core.h"

extern const char explain_faults_doc[];

PyObject *explain_faults(PyObject *module, PyObject *unused);
/*
 * Note the bytes of a tensor that was got, and forget them, which must be done before they are
 * unmapped. Noting returns a number for forgetting, or -1: it is off, they are not read-only memory
 * of the library, or there are too many. Neither needs the GIL.
 */
int fault_note_now(DLManagedTensorVersioned *managed, uint64_t nbytes);
void fault_forget(int number);

extern atomic_bool faults_explained;

static inline int fault_note(DLManagedTensorVersioned *managed, uint64_t nbytes)
{
	return atomic_load_explicit(&faults_explained, memory_order_relaxed)
		       ? fault_note_now(managed, nbytes)
		       : -1;
}
