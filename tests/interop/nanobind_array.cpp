/* SPDX-License-Identifier: Apache-2.0 */
/* Python objects that hold the array, writable or not, that nanobind's casters give to a C++ function. */
#include <cstring>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;

template <typename... Of> struct Held {
	using Array = nb::ndarray<nb::device::cpu, nb::c_contig, Of...>;
	Array array;

	explicit Held(Array array) : array(array)
	{
	}
	uintptr_t address() const
	{
		return reinterpret_cast<uintptr_t>(array.data());
	}
	nb::tuple shape() const
	{
		nb::list list;
		for (size_t i = 0; i < array.ndim(); i++)
			list.append(array.shape(i));
		return nb::tuple(list);
	}
};

/* Returns another array over the same memory, which keeps the object that it comes from. */
template <typename H> static nb::object exported(nb::handle self)
{
	const auto &array = nb::cast<const H &>(self).array;
	std::vector<size_t> shape(array.shape_ptr(), array.shape_ptr() + array.ndim());

	return nb::cast(nb::ndarray<nb::array_api>(
		const_cast<void *>(static_cast<const void *>(array.data())), shape.size(),
		shape.data(), self, nullptr, array.dtype()));
}

template <typename H> static nb::class_<H> declare(nb::module_ &m, const char *name)
{
	return nb::class_<H>(m, name)
		.def(nb::init<typename H::Array>())
		.def_prop_ro("address", &H::address)
		.def_prop_ro("shape", &H::shape)
		.def("export", exported<H>);
}

NB_MODULE(nanobind_array, m)
{
	declare<Held<>>(m, "Array").def("zero", [](Held<> &held) {
		memset(held.array.data(), 0, held.array.nbytes());
	});
	declare<Held<nb::ro>>(m, "ReadOnlyArray");
}
