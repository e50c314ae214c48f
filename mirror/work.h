/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that make names here mean what was announced. */
#pragma once

/* Works on queued replicas until the import stops. @context: a struct import. */
void *work_all(void *context);
/* Works only on LIGHT replicas. */
void *work_light(void *context);
