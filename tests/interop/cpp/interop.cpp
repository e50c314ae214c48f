// SPDX-License-Identifier: Apache-2.0
/*
 * A C++ program that uses the C library. Its destructors give everything back, even when an exception passes. cpp_test.py
 * runs it beside a Python process, as `interop ADDRESS`.
 */
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

#define REQUIRE(condition)                                                                         \
	((condition) ? void() : throw std::logic_error(#condition ": " + std::to_string(__LINE__)))

namespace
{

/* ---- Wrappers that a C++ program would write ---- */

struct Error : std::runtime_error {
	int code;

	explicit Error(int r) : std::runtime_error(tl_last_error()), code(-r)
	{
	}
};

void check(int r)
{
	if (r)
		throw Error(r);
}

struct Ends {
	void operator()(tl_client *client) const
	{
		tl_close(client);
	}
	void operator()(tl_draft *draft) const
	{
		tl_abort(draft);
	}
	void operator()(DLManagedTensorVersioned *tensor) const
	{
		if (tensor->deleter)
			tensor->deleter(tensor);
	}
};

using Client = std::unique_ptr<tl_client, Ends>;
using Draft = std::unique_ptr<tl_draft, Ends>;
using Tensor = std::unique_ptr<DLManagedTensorVersioned, Ends>;

Client connect(const char *address)
{
	tl_connect_options options{};
	tl_client *client = nullptr;

	options.size = sizeof(options);
	options.address = address;
	check(tl_connect(&options, &client));
	return Client(client);
}

Tensor get(const Client &client, const std::string &name, tl_mode mode = TL_MODE_READ)
{
	tl_get_options options{};
	DLManagedTensorVersioned *tensor = nullptr;

	options.size = sizeof(options);
	options.mode = mode;
	check(tl_get(client.get(), name.c_str(), &options, &tensor));
	return Tensor(tensor);
}

Draft create(const Client &client, const std::string &name, const std::vector<int64_t> &shape,
	     DLDataType dtype)
{
	tl_spec spec{};
	tl_draft *draft = nullptr;

	spec.size = sizeof(spec);
	spec.shape = shape.data();
	spec.ndim = static_cast<int32_t>(shape.size());
	spec.dtype = dtype;
	check(tl_create(client.get(), name.c_str(), &spec, &draft));
	return Draft(draft);
}

uint64_t commit(Draft draft)
{
	uint64_t version = 0;

	check(tl_commit(draft.release(), &version));
	return version;
}

bool publish(const Client &client, const std::string &name, Tensor &tensor)
{
	uint64_t version = 0;
	bool copied = false;

	check(tl_publish(client.get(), name.c_str(), tensor.get(), nullptr, &copied, &version));
	tensor.release(); /* the library has called the deleter */
	return copied;
}

template <typename T> T *data(const Tensor &tensor)
{
	return static_cast<T *>(tensor->dl_tensor.data);
}

/* ---- The checks ---- */

uint64_t leases(const Client &client)
{
	uint64_t n = 0;

	check(tl_list_clients(
		client.get(),
		[](const tl_client_info *info, void *context) {
			if (info->pid == static_cast<uint32_t>(getpid()))
				*static_cast<uint64_t *>(context) += info->leases;
			return 0;
		},
		&n));
	return n;
}

template <typename Call> int code_of(Call call, const std::string &text)
{
	try {
		call();
	} catch (const Error &error) {
		REQUIRE(std::string(error.what()).find(text) != std::string::npos);
		return error.code;
	}
	throw std::logic_error("no error: " + text);
}

constexpr DLDataType float32{ kDLFloat, 32, 1 };
constexpr DLDataType uint8{ kDLUInt, 8, 1 };

void the_abi_is_dlpacks()
{
	static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, byte_offset) == 40);
	static_assert(sizeof(DLManagedTensorVersioned) == 80);
	static_assert(sizeof(DLPackExchangeAPI) == 56);
	static_assert(std::is_trivially_copyable_v<DLManagedTensorVersioned>);
	static_assert(std::is_standard_layout_v<tl_info>);
	static_assert(sizeof(DLDeviceType) == 4 &&
		      std::is_signed_v<std::underlying_type_t<DLDeviceType>>);
}

void drafts_are_committed_or_aborted(const Client &client)
{
	Draft draft = create(client, "cpp/draft", { 100, 1000 }, float32);
	DLTensor *t = tl_draft_tensor(draft.get());
	float *values = static_cast<float *>(t->data);

	std::iota(values, values + 100000, 0.0F);
	check(tl_draft_set_metadata(draft.get(), "from C++", 8));
	REQUIRE(commit(std::move(draft)) >= 1);
	create(client, "cpp/dropped", { 10 }, uint8);
	try {
		Draft lost = create(client, "cpp/dropped", { 10 }, uint8);

		throw std::runtime_error("on purpose");
	} catch (const std::runtime_error &) {
	}
	REQUIRE(code_of([&] { get(client, "cpp/dropped"); }, "cpp/dropped") == ENOENT);
}

void tensors_are_what_was_put(const Client &client)
{
	Tensor tensor = get(client, "cpp/draft");
	const DLTensor &t = tensor->dl_tensor;

	REQUIRE(t.ndim == 2 && t.shape[0] == 100 && t.shape[1] == 1000 && t.strides[0] == 1000);
	REQUIRE(t.dtype.code == kDLFloat && t.device.device_type == kDLCPU && t.byte_offset == 0);
	REQUIRE(tensor->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
	REQUIRE(data<float>(tensor)[99999] == 99999.0F);

	std::array<int64_t, 2> shape{ 3, 4 }, strides{ 1, 3 };
	std::array<unsigned char, 12> bytes{};
	DLTensor source{};
	uint64_t version = 0;

	std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
	source.data = bytes.data();
	source.device = { kDLCPU, 0 };
	source.ndim = 2;
	source.dtype = uint8;
	source.shape = shape.data();
	source.strides = strides.data();
	check(tl_put(client.get(), "cpp/transposed", &source, nullptr, &version));
	tensor = get(client, "cpp/transposed"); /* this releases the tensor that was held before */
	REQUIRE(leases(client) == 1);
	for (int i = 0; i < 12; i++)
		REQUIRE(data<unsigned char>(tensor)[i] == i / 4 + i % 4 * 3);
	source.device = { kDLROCM, 1 };
	REQUIRE(code_of(
			[&] {
				check(tl_put(client.get(), "cpp/rocm", &source, nullptr, &version));
			},
			"device_type") == ENOTSUP);
}

/* A tensor over a std::vector, which lives as long as the tensor. */
struct Owned {
	static std::atomic<int> deleted;
	DLManagedTensorVersioned managed{};
	std::vector<unsigned char> bytes;
	int64_t shape;

	explicit Owned(size_t n) : bytes(n, 42), shape(static_cast<int64_t>(n))
	{
		managed.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION };
		managed.manager_ctx = this;
		managed.deleter = [](DLManagedTensorVersioned *self) {
			delete static_cast<Owned *>(self->manager_ctx);
		};
		managed.dl_tensor.data = bytes.data();
		managed.dl_tensor.device = { kDLCPU, 0 };
		managed.dl_tensor.ndim = 1;
		managed.dl_tensor.dtype = uint8;
		managed.dl_tensor.shape = &shape;
	}
	Owned(const Owned &) = delete;
	Owned &operator=(const Owned &) = delete;
	~Owned()
	{
		deleted++;
	}
};

std::atomic<int> Owned::deleted{ 0 };

void deleters_are_called_once(const Client &client)
{
	Tensor tensor(&(new Owned(5000))->managed);

	REQUIRE(code_of([&] { publish(client, "cpp//wrong", tensor); }, "cpp//wrong") == EINVAL);
	REQUIRE(Owned::deleted == 0);
	REQUIRE(publish(client, "cpp/published", tensor));
	REQUIRE(Owned::deleted == 1 && !tensor);
	tensor = get(client, "cpp/published");
	REQUIRE(data<unsigned char>(tensor)[4999] == 42);
	REQUIRE(!publish(client, "cpp/linked", tensor)); /* no copy */
	REQUIRE(leases(client) == 0);
}

void writes_stay_private(const Client &client)
{
	Tensor own = get(client, "cpp/published", TL_MODE_COPY_ON_WRITE), shared;
	DLManagedTensorVersioned *again = nullptr;

	std::memset(own->dl_tensor.data, 1, 5000);
	check(tl_remap(own.get(), TL_MODE_READ, &again));
	shared.reset(again);
	own.reset();
	REQUIRE(data<unsigned char>(shared)[7] == 42 && leases(client) == 1);
}

void threads_share_and_drop(const Client &client)
{
	std::vector<std::thread> threads;
	std::atomic<int> wrong{ 0 };

	for (int i = 0; i < 4; i++)
		threads.emplace_back([&] {
			for (int n = 0; n < 500; n++) {
				std::shared_ptr<DLManagedTensorVersioned> shared = get(
					client, "cpp/linked");
				std::thread other([kept = shared, &wrong] {
					auto *bytes = static_cast<unsigned char *>(
						kept->dl_tensor.data);

					if (bytes[kept->dl_tensor.shape[0] - 1] != 42)
						wrong++;
				});

				shared.reset();
				other.join();
			}
		});
	for (auto &thread : threads)
		thread.join();
	REQUIRE(wrong == 0 && leases(client) == 0);
}

void tensors_outlive_their_client(const char *address, const Client &observer)
{
	Client client = connect(address);
	Tensor tensor = get(client, "cpp/published");

	client.reset();
	REQUIRE(data<unsigned char>(tensor)[0] == 42 && leases(observer) == 1);
	tensor.reset();
	/* its connection ends with it, and the daemon sees that a little later */
	for (int n = 0; n < 60000 && leases(observer); n++)
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	REQUIRE(leases(observer) == 0);
}

void others_tensors_are_read(const Client &client)
{
	Tensor tensor = get(client, "cpp/from-python");

	REQUIRE(tensor->dl_tensor.ndim == 2 && tensor->dl_tensor.shape[1] == 5);
	for (int i = 0; i < 15; i++)
		REQUIRE(data<int16_t>(tensor)[i] == i * 1000);
}

} /* namespace */

int main(int, char **argv)
{
	try {
		Client client = connect(argv[1]);

		the_abi_is_dlpacks();
		drafts_are_committed_or_aborted(client);
		tensors_are_what_was_put(client);
		deleters_are_called_once(client);
		writes_stay_private(client);
		threads_share_and_drop(client);
		tensors_outlive_their_client(argv[1], client);
		others_tensors_are_read(client);
		REQUIRE(leases(client) == 0);
		std::puts(tl_version());
		return 0;
	} catch (const std::exception &error) {
		std::fprintf(stderr, "%s (%s)\n", error.what(), tl_last_error());
		return 1;
	}
}
