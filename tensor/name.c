/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensor/limits.h"
#include "tensor/name.h"
#include "util/text.h"

/* Returns the error in a component as a text, or NULL. */
static const char *component_fault(const char *text, size_t len)
{
	if (len == 0)
		return "a component of the name is empty";
	if (len == 1 && text[0] == '.')
		return "a component of the name is \".\"";
	if (len == 2 && text[0] == '.' && text[1] == '.')
		return "a component of the name is \"..\"";
	return NULL;
}

/*
 * Returns the error in the characters, or in any component except the last, as a text, or NULL. The
 * last component starts at *@last and is not checked, because a prefix may end in the middle of it.
 */
static const char *name_fault(const char *name, size_t len, size_t *last)
{
	const char *fault;
	uint32_t code;
	size_t start = 0, n;

	static_assert(TENSOR_NAME_MAX == 255, "the text says so");
	if (len > TENSOR_NAME_MAX)
		return "the name is longer than 255 bytes";
	for (size_t i = 0; i < len; i += n) {
		n = text_character(name + i, len - i, &code);
		if (n == 0)
			return "the name is not valid UTF-8";
		if (code < 0x20 || (code >= 0x7f && code < 0xa0))
			return "the name has a control character in it";
		if (code != '/')
			continue;
		fault = component_fault(name + start, i - start);
		if (fault)
			return fault;
		start = i + 1;
	}
	*last = start;
	return NULL;
}

int tensor_name_check(const char *name, size_t len, const char **why)
{
	const char *fault;
	size_t last = 0;

	if (len == 0)
		fault = "the name is empty";
	else
		fault = name_fault(name, len, &last);
	if (!fault)
		fault = component_fault(name + last, len - last);
	if (!fault)
		return 0;
	*why = fault;
	return -EINVAL;
}

int tensor_prefix_check(const char *prefix, size_t len, const char **why)
{
	size_t last = 0;
	const char *fault = name_fault(prefix, len, &last);

	if (!fault)
		return 0;
	*why = fault;
	return -EINVAL;
}

static bool is_alphanumeric(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

int tensor_namespace_check(const char *name, size_t len, const char **why)
{
	static_assert(TENSOR_NAMESPACE_MAX == 63, "the text says so");
	*why = NULL;
	if (len == 0)
		*why = "the namespace has no name";
	else if (len > TENSOR_NAMESPACE_MAX)
		*why = "the namespace's name is longer than 63 bytes";
	else if (!is_alphanumeric(name[0]))
		*why = "the namespace's name does not start with a letter or a digit";
	for (size_t i = 0; i < len && !*why; i++)
		if (!is_alphanumeric(name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-')
			*why = "the namespace's name has characters other than letters, digits, "
			       "'.', '_' and '-'";
	return *why ? -EINVAL : 0;
}
