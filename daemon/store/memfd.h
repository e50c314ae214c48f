/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed memfds. Nobody can change the size of one, not even a process of the daemon's own user,
 * and once it holds a published tensor nobody can map it for writing any more. They have no names:
 * a killed daemon's memfds go when the last process that uses them does. They lie in no mounted
 * file system, so that only memory and cgroups limit them.
 */
#pragma once

#include "daemon/store/object.h"

extern const struct storage storage_memfd;
