/* SPDX-License-Identifier: Apache-2.0 */
/* Items: tensors and their description in the bytes of one row. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/error.h"
#include "client/publish/draft_request.h"
#include "client/read/get.h"
#include "client/stream/stream.h"
#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"

/* ---- writing --------------------------------------------------------------------------------- */

enum { DEVICE_ALIGNMENT = 256 };

static uint64_t aligned(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Returns the part's tensor for checks. One that is written in place counts as contiguous. */
static DLTensor part_tensor(const tl_part *p, bool blank)
{
	static uint64_t nothing;
	DLTensor t = *p->tensor;

	if (blank) {
		t.data = &nothing;
		t.strides = NULL;
		t.byte_offset = 0;
	}
	return t;
}

uint64_t item_device_space(uint64_t nbytes)
{
	return aligned(nbytes ? nbytes : 1, DEVICE_ALIGNMENT);
}

static int part_bytes(const tl_part *p, size_t i, bool blank, uint64_t *nbytes)
{
	const uint64_t known = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	char why[TENSOR_WHY_TEXT] = "it has more than 2^63 bytes";
	DLTensor t;
	int r;

	if (!p->tensor)
		return tl_fail(-EINVAL, "parts[%zu].tensor is NULL", i);
	if (p->dlpack_flags & ~known)
		return tl_fail(-EINVAL, "parts[%zu].dlpack_flags is %#llx, of which %#llx is known",
			       i, (unsigned long long)p->dlpack_flags, (unsigned long long)known);
	t = part_tensor(p, blank);
	r = source_check(&t, p->dlpack_flags, why, sizeof(why));
	if (!r)
		r = tensor_nbytes(t.dtype, t.ndim, t.shape, tensor_is_padded(p->dlpack_flags),
				  nbytes);
	return r ? tl_fail(-EINVAL, "parts[%zu]: %s", i, why) : 0;
}

/* Checks a part on a GPU: all such parts of an item must be on the same GPU. */
static int part_device(struct item_plan *plan, size_t i, uint64_t nbytes)
{
	const DLTensor *t = plan->parts[i].tensor;

	if (!item_is_on_gpu(t))
		return 0;
	if (plan->device_bytes && plan->device.device_id != t->device.device_id)
		return tl_fail(-ENOTSUP,
			       "parts[%zu] is on GPU %d, and another part on GPU %d: the "
			       "parts of an item are on one",
			       i, t->device.device_id, plan->device.device_id);
	if (!plan->blank && !tensor_is_contiguous(t))
		return tl_fail(-ENOTSUP,
			       "parts[%zu] is on a GPU, and not C-contiguous: make it so "
			       "first",
			       i);
	plan->device = t->device;
	plan->device_bytes += item_device_space(nbytes);
	return 0;
}

int item_measure(struct item_plan *plan)
{
	uint64_t nbytes = 0, names = 0, size;

	plan->tensors = 0;
	plan->device_bytes = 0;
	plan->description = sizeof(struct stream_description);
	for (size_t i = 0; i < plan->n; i++) {
		const tl_part *p = &plan->parts[i];
		size_t len = p->name ? strlen(p->name) : 0;
		int r = part_bytes(p, i, plan->blank, &nbytes);

		if (r)
			return r;
		if (p->name && (!len || len > TL_NAME_MAX))
			return tl_fail(-EINVAL, "parts[%zu].name has %zu bytes; it has 1 to %d", i,
				       len, TL_NAME_MAX);
		if (nbytes > INT64_MAX - 64 - plan->tensors)
			return tl_fail(-EINVAL, "the parts have more than 2^63 bytes together");
		r = part_device(plan, i, nbytes);
		if (r)
			return r;
		if (!item_is_on_gpu(p->tensor))
			plan->tensors = aligned(plan->tensors + nbytes, 64);
		names += len;
		plan->description += sizeof(struct stream_part) +
				     (size_t)p->tensor->ndim * sizeof(int64_t);
	}
	plan->description += names + plan->metadata_size;
	size = plan->tensors + plan->description;
	return size <= (uint64_t)UINT32_MAX * 8
		       ? 0
		       : tl_fail(-EINVAL, "an item of %llu bytes; the limit is 32 GiB",
				 (unsigned long long)size);
}

int item_write(char *row, const struct item_plan *plan)
{
	struct stream_description d = { .parts = (uint32_t)plan->n,
					.meta_len = (uint32_t)plan->metadata_size };
	char *at = row + plan->tensors + sizeof(d);
	uint64_t offset = 0, device_offset = 0, nbytes = 0;

	for (size_t i = 0; i < plan->n; i++) {
		const tl_part *part = &plan->parts[i];
		const DLTensor *t = part->tensor;
		bool on_cpu = !item_is_on_gpu(t);
		size_t len = part->name ? strlen(part->name) : 0;
		struct stream_part p = { .offset = on_cpu ? offset : device_offset,
					 .dtype_code = t->dtype.code,
					 .dtype_bits = t->dtype.bits,
					 .dtype_lanes = t->dtype.lanes,
					 .ndim = (uint8_t)t->ndim,
					 .flags = (uint8_t)part->dlpack_flags,
					 .name_len = (uint16_t)len };
		int r = tensor_nbytes(t->dtype, t->ndim, t->shape,
				      tensor_is_padded(part->dlpack_flags), &nbytes);

		if (!r && nbytes && on_cpu && !plan->blank)
			r = copy_gather(row + offset, t, part->dlpack_flags, 0);
		if (r)
			return tl_fail(-EINVAL, "parts[%zu] has changed while it was put", i);
		p.nbytes = nbytes;
		if (on_cpu) {
			offset = aligned(offset + nbytes, 64);
		} else {
			p.flags |= STREAM_PART_ON_DEVICE;
			device_offset += item_device_space(nbytes);
		}
		memcpy(at, &p, sizeof(p));
		if (t->ndim)
			memcpy(at + sizeof(p), t->shape, (size_t)t->ndim * sizeof(int64_t));
		at += sizeof(p) + (size_t)t->ndim * sizeof(int64_t);
		d.names_len += (uint32_t)len;
	}
	for (size_t i = 0; i < plan->n; i++) {
		size_t len = plan->parts[i].name ? strlen(plan->parts[i].name) : 0;

		if (len)
			memcpy(at, plan->parts[i].name, len);
		at += len;
	}
	if (plan->metadata)
		memcpy(at, plan->metadata, plan->metadata_size);
	memcpy(row + plan->tensors, &d, sizeof(d));
	return 0;
}

void item_write_metadata(char *row, struct item_plan *plan, const void *metadata, size_t size)
{
	struct stream_description d;

	memcpy(&d, row + plan->tensors, sizeof(d));
	plan->description -= plan->metadata_size;
	if (size)
		memcpy(row + plan->tensors + plan->description, metadata, size);
	plan->description += size;
	plan->metadata_size = size;
	d.meta_len = (uint32_t)size;
	memcpy(row + plan->tensors, &d, sizeof(d));
}

uint64_t item_part_at(char *base, uint64_t offset, const tl_part *part, int64_t *dims,
		      DLTensor *out)
{
	const DLTensor *t = part->tensor;
	uint64_t nbytes = 0;

	tensor_nbytes(t->dtype, t->ndim, t->shape, tensor_is_padded(part->dlpack_flags), &nbytes);
	if (t->ndim)
		memcpy(dims, t->shape, (size_t)t->ndim * sizeof(*dims));
	tensor_contiguous_strides(t->ndim, dims, dims + t->ndim);
	*out = (DLTensor){ .data = base + offset,
			   .device = item_is_on_gpu(t) ? t->device : (DLDevice){ kDLCPU, 0 },
			   .ndim = t->ndim,
			   .dtype = t->dtype,
			   .shape = t->ndim ? dims : NULL,
			   .strides = t->ndim ? dims + t->ndim : NULL };
	return item_is_on_gpu(t) ? offset + item_device_space(nbytes)
				 : aligned(offset + nbytes, 64);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads a description. Its producer may change it at any time: copy all once, then check. */
struct reader {
	const unsigned char *bytes, *end;
	uint64_t row_bytes;
};

static bool read_bytes(struct reader *r, void *to, size_t n)
{
	if ((size_t)(r->end - r->bytes) < n)
		return false;
	memcpy(to, r->bytes, n);
	r->bytes += n;
	return true;
}

static bool part_is_good(const struct stream_part *p, const int64_t *shape, uint64_t row_bytes)
{
	const unsigned known = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED | STREAM_PART_ON_DEVICE;
	DLDataType dtype = { p->dtype_code, p->dtype_bits, p->dtype_lanes };
	const char *why;
	uint64_t nbytes;

	return !(p->flags & ~known) && !tensor_dtype_check(dtype, &why) &&
	       !tensor_nbytes(dtype, p->ndim, shape, tensor_is_padded(p->flags), &nbytes) &&
	       nbytes == p->nbytes && p->offset % 64 == 0 && p->offset <= row_bytes &&
	       p->nbytes <= row_bytes - p->offset;
}

struct filling {
	struct tl_item *item;
	char *row;
	const DLTensor *device; /* with the parts on a GPU, or NULL */
	int64_t *dims;
	char *names, *names_end;
	uint16_t *lengths;
};

static bool read_part(struct reader *r, struct filling *f, size_t i)
{
	struct item_part *part = &f->item->parts[i];
	struct stream_part p;
	int64_t *shape = f->dims;

	bool on_device;

	if (!read_bytes(r, &p, sizeof(p)) || p.ndim > TL_NDIM_MAX ||
	    !read_bytes(r, shape, p.ndim * sizeof(*shape)))
		return false;
	on_device = p.flags & STREAM_PART_ON_DEVICE;
	if ((on_device && !f->device) ||
	    !part_is_good(&p, shape, on_device ? (uint64_t)f->device->shape[0] : r->row_bytes))
		return false;
	f->dims += 2 * (size_t)p.ndim;
	f->lengths[i] = p.name_len;
	tensor_contiguous_strides(p.ndim, shape, shape + p.ndim);
	part->tensor = (DLTensor){
		.data = (on_device ? (char *)f->device->data : f->row) + p.offset,
		.device = on_device ? f->device->device : (DLDevice){ kDLCPU, 0 },
		.ndim = p.ndim,
		.dtype = { p.dtype_code, p.dtype_bits, p.dtype_lanes },
		.shape = p.ndim ? shape : NULL,
		.strides = p.ndim ? shape + p.ndim : NULL
	};
	return true;
}

static bool read_parts(struct reader *r, struct filling *f)
{
	for (size_t i = 0; i < f->item->count; i++)
		if (!read_part(r, f, i))
			return false;
	return true;
}

static bool read_names(struct reader *r, struct filling *f)
{
	for (size_t i = 0; i < f->item->count; i++) {
		size_t len = f->lengths[i];

		if (!len)
			continue;
		if (len > TL_NAME_MAX || (size_t)(f->names_end - f->names) < len + 1 ||
		    !read_bytes(r, f->names, len))
			return false;
		f->item->parts[i].name = f->names;
		f->names[len] = '\0';
		f->names += len + 1;
	}
	return true;
}

/* An item, its parts, their shapes and strides, their names and the metadata lie in one block. */
static struct tl_item *item_alloc(const struct stream_description *d, uint32_t description_len,
				  struct filling *f)
{
	size_t dims = 2 * (size_t)description_len; /* bytes: 8 for each size, 8 for each stride */
	size_t parts = d->parts * sizeof(struct item_part);
	size_t lengths = aligned(d->parts * sizeof(uint16_t), 8);
	size_t names = (size_t)d->names_len + d->parts;
	struct tl_item *item = malloc(sizeof(*item) + parts + dims + lengths + names + d->meta_len);

	if (!item)
		return NULL;
	memset(item, 0, sizeof(*item) + parts);
	item->parts = (void *)(item + 1);
	f->dims = (void *)((char *)item->parts + parts);
	f->lengths = (void *)((char *)f->dims + dims);
	f->names = (char *)f->lengths + lengths;
	f->names_end = f->names + names;
	item->metadata = f->names_end;
	item->count = d->parts;
	item->metadata_size = d->meta_len;
	f->item = item;
	return item;
}

static int bad_item(const struct stream_view *view, uint64_t number)
{
	if (!view)
		return tl_fail(-EPROTO,
			       "the item of the tensor that was handed on has a "
			       "description that it cannot have: a producer has damaged it");
	return tl_fail(-EPROTO,
		       "item %llu of the stream '%s' has a description that it cannot have: a "
		       "producer has damaged it",
		       (unsigned long long)number, view->name);
}

int item_make(struct stream_view *view, DLManagedTensorVersioned *row,
	      DLManagedTensorVersioned *device, const struct stream_entry *entry,
	      struct tl_item **out)
{
	const DLTensor *t = &row->dl_tensor;
	uint64_t nbytes = (uint64_t)t->shape[0] * 8, begin = (uint64_t)entry->description * 8;
	struct reader r = { .bytes = (unsigned char *)t->data + begin, .row_bytes = nbytes };
	struct filling f = { .row = t->data, .device = device ? &device->dl_tensor : NULL };
	struct stream_description d;
	struct tl_item *item;

	r.end = r.bytes + entry->description_len;
	if (begin > nbytes || entry->description_len > nbytes - begin ||
	    !read_bytes(&r, &d, sizeof(d)) || !d.parts || d.parts > STREAM_PARTS_MAX ||
	    d.meta_len > STREAM_META_MAX || d.names_len > entry->description_len ||
	    d.parts * sizeof(struct stream_part) > entry->description_len)
		return bad_item(view, entry->number);
	item = item_alloc(&d, entry->description_len, &f);
	if (!item)
		return tl_fail(-ENOMEM, "no memory for an item of a stream");
	if (!read_parts(&r, &f) || !read_names(&r, &f) ||
	    !read_bytes(&r, (void *)(uintptr_t)item->metadata, d.meta_len)) {
		free(item);
		return bad_item(view, entry->number);
	}
	item->refs = 1;
	item->view = view ? stream_view_ref(view) : NULL;
	item->description = entry->description;
	item->row = row;
	item->device = device;
	item->number = entry->number;
	item->time_ns = entry->time_ns;
	item->producer = entry->producer;
	if (view)
		item->uid = load_once(&view->session->catalog.rows[ref_slot(entry->ref)].uid);
	*out = item;
	return 0;
}

/* ---- holding --------------------------------------------------------------------------------- */

void item_unref(struct tl_item *item)
{
	struct stream_view *view = item->view;

	if (atomic_fetch_sub(&item->refs, 1) != 1)
		return;
	if (item->device)
		item->device->deleter(item->device);
	item->row->deleter(item->row); /* R1, R2 */
	if (view && stream_is_ours(view))
		stream_tell_room(view); /* R3 */
	free(item);
	if (view)
		stream_view_unref(view);
}

void item_managed(DLManagedTensorVersioned *managed, const DLTensor *like, int64_t *dims,
		  void (*deleter)(DLManagedTensorVersioned *))
{
	size_t size = (size_t)like->ndim * sizeof(*dims);

	*managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = managed,
		.deleter = deleter,
		.dl_tensor = *like,
	};
	if (!size)
		return;
	managed->dl_tensor.shape = memcpy(dims, like->shape, size);
	managed->dl_tensor.strides = memcpy(dims + like->ndim, like->strides, size);
}

/* A tensor of an item. It keeps the item, and may have a copy-on-write mapping of its own. */
struct item_tensor {
	DLManagedTensorVersioned managed;
	tl_item *item;
	DLManagedTensorVersioned *row; /* the mapping, or NULL */
	size_t part;		       /* of the item */
	int64_t dims[];
};

static void tensor_delete(DLManagedTensorVersioned *managed)
{
	struct item_tensor *t = (struct item_tensor *)managed;
	int saved = errno;

	if (t->row)
		t->row->deleter(t->row);
	item_unref(t->item);
	free(t);
	errno = saved;
}

/* Takes over @row on success. */
static int tensor_make(tl_item *item, size_t part, const DLTensor *like,
		       DLManagedTensorVersioned *row, DLManagedTensorVersioned **out)
{
	size_t dims = (size_t)like->ndim * sizeof(int64_t);
	struct item_tensor *t = malloc(sizeof(*t) + 2 * dims);

	if (!t)
		return tl_fail(-ENOMEM, "no memory for a tensor");
	atomic_fetch_add(&item->refs, 1);
	t->item = item;
	t->row = row;
	t->part = part;
	item_managed(&t->managed, like, t->dims, tensor_delete);
	t->managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
	*out = &t->managed;
	return 0;
}

int item_tensor_new(tl_item *item, size_t i, DLManagedTensorVersioned **out)
{
	return tensor_make(item, i, &item->parts[i].tensor, NULL, out);
}

bool is_item_tensor(const DLManagedTensorVersioned *managed)
{
	return managed->deleter == tensor_delete;
}

/* Returns the item's lease that keeps the tensor's bytes. */
static DLManagedTensorVersioned *held_of(const struct item_tensor *t)
{
	return item_is_on_gpu(&t->managed.dl_tensor) ? t->item->device : t->item->row;
}

const struct tensor_lease *item_tensor_lease(const DLManagedTensorVersioned *managed)
{
	const struct item_tensor *t = (const struct item_tensor *)managed;

	return tensor_lease_of(t->row ? t->row : held_of(t));
}

int item_tensor_remap(const DLManagedTensorVersioned *managed, bool stream, tl_get_options *options,
		      DLManagedTensorVersioned **out)
{
	const struct item_tensor *t = (const struct item_tensor *)managed;
	const DLManagedTensorVersioned *at = t->row ? t->row : held_of(t);
	const struct tensor_lease *l = tensor_lease_of(held_of(t));
	DLTensor like = managed->dl_tensor;
	DLManagedTensorVersioned *row;
	int r;

	if (options->mode == TL_MODE_READ && !t->row && !item_is_on_gpu(&like))
		return tensor_make(t->item, t->part, &like, NULL, out);
	if (tensor_lease_kind(l)->lease_again)
		tensor_lease_kind(l)->lease_again(l, stream, options);
	r = lease_again(l, options, &row);
	if (r)
		return r;
	if (like.data)
		like.data = (char *)row->dl_tensor.data +
			    ((char *)like.data - (char *)at->dl_tensor.data);
	r = tensor_make(t->item, t->part, &like, row, out);
	if (r)
		row->deleter(row);
	else
		(*out)->flags = row->flags;
	return r;
}

/* ---- handing on ------------------------------------------------------------------------------ */

int item_tensor_part(const DLManagedTensorVersioned *managed, struct handed_part *part)
{
	const struct item_tensor *t = (const struct item_tensor *)managed;

	if (item_is_on_gpu(&managed->dl_tensor))
		return tl_fail(-ENOTSUP,
			       "tl_handover: the tensor is a part of a stream's item on a "
			       "GPU: put it into a stream");
	part->index = (uint16_t)(t->part + 1);
	part->description = t->item->description;
	return 0;
}

/* Returns the bytes of the description at @begin, or 0 if it does not fit into the row. */
static uint32_t description_length(const DLTensor *row, uint64_t begin)
{
	const unsigned char *bytes = row->data;
	uint64_t at = begin + sizeof(struct stream_description), end = (uint64_t)row->shape[0] * 8;
	struct stream_description d;
	struct stream_part p;

	if (at > end)
		return 0;
	memcpy(&d, bytes + begin, sizeof(d));
	for (uint32_t i = 0; i < d.parts && d.parts <= STREAM_PARTS_MAX; i++) {
		if (sizeof(p) > end - at)
			return 0;
		memcpy(&p, bytes + at, sizeof(p));
		at += sizeof(p) + (size_t)p.ndim * sizeof(int64_t);
		if (at > end)
			return 0;
	}
	at += (uint64_t)d.names_len + d.meta_len;
	return at > end ? 0 : (uint32_t)(at - begin);
}

int item_tensor_received(DLManagedTensorVersioned *row, struct handed_part part,
			 DLManagedTensorVersioned **out)
{
	const DLTensor *t = &row->dl_tensor;
	struct stream_entry entry = { .description = part.description };
	struct tl_item *item;
	int r = -EPROTO;

	if (t->ndim == 1 && t->dtype.bits == 64 && t->data)
		entry.description_len = description_length(t, (uint64_t)part.description * 8);
	if (entry.description_len)
		r = item_make(NULL, row, NULL, &entry, &item);
	if (r) {
		row->deleter(row);
		return entry.description_len ? r : bad_item(NULL, 0);
	}
	r = part.index > item->count ? bad_item(NULL, 0)
				     : item_tensor_new(item, part.index - 1U, out);
	if (!r)
		(*out)->flags = row->flags;
	item_unref(item);
	return r;
}
