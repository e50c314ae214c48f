/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server for metrics, if the daemon was built with libmicrohttpd. */
#pragma once

#include <stdbool.h>

#include "daemon/serve/server.h"

enum { HTTP_DESCRIPTORS = 8 }; /* that it opens at most */

bool http_is_there(void);
/* True if @text is unix:/PATH, 127.0.0.1:PORT or [::1]:PORT. */
bool http_address_is_good(const char *text);
/* Returns a listening socket, or a negative errno. A socket that nobody listens at is replaced. */
int http_listen(const char *text);
/* Serves at @fd_take, with a loop that was made. 0 or -ENOMEM. */
int http_start(struct server *server, int fd_take);
/* Ends all connections. @http may be NULL. */
void http_stop(struct http *http);
/* To be called when the loop has closed what it had. */
void http_free(struct http *http);
