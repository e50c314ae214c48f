/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what comes from outside: the arguments of callers, and received descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <tensorlease/tensorlease.h>

#include "client/checks.h"
#include "client/error.h"
#include "proto/catalog_layout.h"
#include "tensor/name.h"

int client_options(void *to, size_t to_size, const void *from, size_t first_size, const char *what)
{
	size_t size = *(const size_t *)from;

	if (__builtin_expect(size == to_size, 1)) {
		memcpy(to, from, to_size);
		return 0;
	}
	if (size < first_size)
		return tl_fail(-EINVAL, "%s.size is %zu; it is sizeof(%s), at least %zu", what,
			       size, what, first_size);
	for (size_t i = to_size; i < size; i++)
		if (((const unsigned char *)from)[i])
			return tl_fail(
				-EINVAL,
				"%s.size is %zu, and beyond the %zu bytes known here not all is 0",
				what, size, to_size);
	memset(to, 0, to_size);
	memcpy(to, from, size < to_size ? size : to_size);
	*(size_t *)to = to_size;
	return 0;
}

int client_wait_options(tl_wait_options *to, const tl_wait_options *from)
{
	int r;

	*to = (tl_wait_options){ .size = sizeof(*to) };
	r = from ? client_options(to, sizeof(*to), from, sizeof(*to), "tl_wait_options") : 0;
	if (!r && to->reserved)
		r = tl_fail(-EINVAL, "tl_wait_options.reserved is %u, not 0", to->reserved);
	return r;
}

int client_result_check(const void *result, size_t least, const char *what)
{
	size_t size = *(const size_t *)result;

	return size >= least ? 0
			     : tl_fail(-EINVAL, "%s.size is %zu; it is sizeof(%s), at least %zu",
				       what, size, what, least);
}

void client_result(void *result, void *from, size_t known)
{
	size_t size = *(const size_t *)result;

	*(size_t *)from = size;
	memcpy(result, from, size < known ? size : known);
	if (size > known)
		memset((char *)result + known, 0, size - known);
}

int client_check_name(const char *name, size_t len)
{
	const char *why;

	if (!tensor_name_check(name, len, &why))
		return 0;
	if (len > TL_NAME_MAX)
		return tl_fail(-EINVAL,
			       "'%.*s...' is not a name: it has %zu bytes; the limit is %d",
			       TL_NAME_MAX, name, len, TL_NAME_MAX);
	return tl_fail(-EINVAL, "'%.*s' is not a name: %s", (int)len, name, why);
}

int client_prefix(char start[TL_NAME_MAX + 1], const char *prefix)
{
	const size_t len = strlen(prefix);
	const char *why;

	if (!tensor_prefix(start, prefix, len, &why))
		return 0;
	if (len >= TL_NAME_MAX)
		return tl_fail(-EINVAL,
			       "no name can be below '%.*s%s': it has %zu bytes; the limit of a "
			       "name is %d",
			       TL_NAME_MAX, prefix, len > TL_NAME_MAX ? "..." : "", len,
			       TL_NAME_MAX);
	return tl_fail(-EINVAL, "no name can be below '%s': %s", prefix, why);
}

int client_check_mode(enum tl_mode mode, const char *what)
{
	if (mode == TL_MODE_READ || mode == TL_MODE_COPY_ON_WRITE)
		return 0;
	return tl_fail(-EINVAL,
		       "%s: the mode is %d; it may be TL_MODE_READ (%d) or TL_MODE_COPY_ON_WRITE "
		       "(%d)",
		       what, (int)mode, TL_MODE_READ, TL_MODE_COPY_ON_WRITE);
}

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int descriptor_check(int fd, uint64_t size, const char *what)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return tl_fail(-errno, "looking at the descriptor of %s: %m", what);
	if (!S_ISREG(st.st_mode))
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is not of a regular file",
			       what);
	/* The kernel rounds such a mapping up, with MAP_FIXED over the mapping behind it. */
	if (fs.f_type == HUGETLBFS_MAGIC)
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is of hugetlbfs", what);
	if (st.st_size < 0 || (uint64_t)st.st_size < size)
		return tl_fail(-EPROTO, "%s has %lld bytes; the daemon says %llu", what,
			       (long long)st.st_size, (unsigned long long)size);
	return 0;
}

int descriptor_seal_segment(int fd)
{
	if (!fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) ||
	    fcntl(fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE)
		return 0;
	return tl_fail(-errno, "sealing a segment: %m");
}

static bool has_fixed_size(int fd)
{
	const int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & fixed) == fixed;
}

int descriptor_check_page(int fd, uint64_t size)
{
	int r = descriptor_check(fd, size, "the page of a ring");

	if (!r && !has_fixed_size(fd))
		r = tl_fail(-EPROTO, "the daemon sent a page of a ring whose size can be changed");
	return r;
}

int descriptor_check_segment(int fd, uint64_t size, uint32_t flags, bool published)
{
	int r = descriptor_check(fd, size, "a segment");

	if (r || !(flags & SEGMENT_SEALED))
		return r;
	if (!has_fixed_size(fd))
		return tl_fail(-EPROTO,
			       "the daemon calls a segment sealed whose size can be changed");
	if (published && !(fcntl(fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)))
		return tl_fail(-EPROTO, "the daemon calls a segment sealed that can be written");
	return 0;
}
