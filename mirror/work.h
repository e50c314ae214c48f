/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that make names here mean what was told of them. */
#pragma once

/* Does what is queued, until the import stops. @context: a struct import. */
void *work_all(void *context);
/* Does only what needs no transfer of its own. */
void *work_light(void *context);
