/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon says of GPU tensors by itself or too late. The receive mutex is held. */
#pragma once

#include <stdbool.h>

struct conn_message;
struct session;

/* FREED and UNMAP, which nobody asked for. */
void cuda_take_freed(struct session *s, const struct conn_message *m);
void cuda_take_unmap(struct session *s, const struct conn_message *m);
/* The answer to a PLACE or GROUP whose publisher has stopped waiting. */
void cuda_late_answer(struct session *s, const struct conn_message *m);

/* Another daemon serves the session. False: it has exported, which that daemon cannot know. */
bool cuda_session_adopted(struct session *s);
