/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of errors, and the functions by their names. */
#include "tests/fakecuda/fake.h"

static const struct error {
	CUresult code;
	const char *name;
	const char *text;
} errors[] = {
	{ CUDA_OK, "CUDA_SUCCESS", "no error" },
	{ CUDA_E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ CUDA_E_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CUDA_E_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ CUDA_E_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "the library is a stub" },
	{ CUDA_E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ CUDA_E_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ CUDA_E_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ CUDA_E_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ CUDA_E_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
	{ CUDA_E_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access" },
	{ CUDA_E_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
	{ CUDA_E_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized" },
	{ CUDA_E_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	  "driver and library versions differ" },
	{ CUDA_E_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	  "operation not permitted when stream is capturing" },
	{ CUDA_E_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

static const struct error *error_find(CUresult code)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == code)
			return &errors[i];
	return NULL;
}

CUresult cuGetErrorName(CUresult result, const char **text)
{
	const struct error *e = error_find(result);

	*text = e ? e->name : NULL;
	return e ? CUDA_OK : CUDA_E_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
	const struct error *e = error_find(result);

	*text = e ? e->text : NULL;
	return e ? CUDA_OK : CUDA_E_INVALID_VALUE;
}

static const struct symbol {
	const char *name;
	void *function;
	int version;
} symbols[] = {
#define SYMBOL(group, member, name, suffix, version) { #name, (void *)name##suffix, version },
	CUDA_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

static bool hidden(const char *name)
{
	const char *p = getenv("FAKECUDA_HIDE");
	size_t n = strlen(name);

	for (; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (strncmp(p, name, n) == 0 && (!p[n] || p[n] == ','))
			return true;
	return false;
}

FAKE_PUBLIC CUresult cuGetProcAddress(const char *name, void **function, int version,
				      unsigned long long flags);
FAKE_PUBLIC CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
					 unsigned long long flags, int *status);

CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
			     unsigned long long flags, int *status)
{
	int mine = 0, answer = 1;

	(void)flags;
	cuDriverGetVersion(&mine);
	*function = NULL;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		if (strcmp(symbols[i].name, name) != 0 || symbols[i].version > mine || hidden(name))
			continue;
		answer = version < symbols[i].version ? 2 : 0;
		if (!answer)
			*function = symbols[i].function;
	}
	if (status)
		*status = answer;
	return *function || status ? CUDA_OK : CUDA_E_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags)
{
	return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
