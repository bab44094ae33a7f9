#include "tensor/storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

c10::StorageImpl* impl(const at::Tensor& t) {
  return t.storage().unsafeGetStorageImpl();
}

/// Names a private member: an explicit instantiation may.
template <auto Member>
struct ThrowingFlag {
  friend bool& throws_when_read(c10::StorageImpl& storage) { return storage.*Member; }
};
bool& throws_when_read(c10::StorageImpl& storage);
template struct ThrowingFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

/// What release_data_and_set_meta_custom_data_ptr_error_msg_() forbade. A pointer must be set next.
template <class Storage>
void allow_reading(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.clear_data_ptr_access_error_msg_();
  else  // libtorch 2.11 has no way to take it back
    throws_when_read(storage) = false;
}

void set_pointer(const at::Tensor& t, at::DataPtr pointer) {
  auto* storage = impl(t);
  TESSERA_CHECK(t.storage_offset() == 0 && static_cast<std::size_t>(t.nbytes()) == storage->nbytes(),
                "a tensor must own the whole of its storage to be attached");
  allow_reading(*storage);
  storage->set_data_ptr_noswap(std::move(pointer));
}

}  // namespace

at::Tensor make_detached(at::IntArrayRef sizes, at::ScalarType dtype, const std::string& message, at::Device device) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (auto s : sizes) bytes *= s;
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       at::DataPtr(nullptr, device), nullptr, false);
  at::Tensor t = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(storage));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return t;
}

bool is_detached(const at::Tensor& t) {
  return impl(t)->_mutable_data_ptr_no_checks().get() == nullptr && impl(t)->nbytes() > 0;
}

void attach(const at::Tensor& t, void* data, at::Tensor keep_alive) {
  if (!keep_alive.defined()) return set_pointer(t, at::DataPtr(data, t.device()));
  auto* held = new at::Tensor(std::move(keep_alive));
  set_pointer(t, at::DataPtr(data, held, [](void* p) { delete static_cast<at::Tensor*>(p); }, t.device()));
}

void attach(const at::Tensor& t, void* data, std::shared_ptr<const void> keep_alive) {
  auto* held = new std::shared_ptr<const void>(std::move(keep_alive));
  set_pointer(
      t, at::DataPtr(data, held, [](void* p) { delete static_cast<std::shared_ptr<const void>*>(p); }, t.device()));
}

void detach(const at::Tensor& t, const std::string& message) {
  auto* storage = impl(t);
  allow_reading(*storage);
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, t.device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void set_dtype(at::Tensor& t, at::ScalarType dtype, const std::string& message) {
  if (t.scalar_type() == dtype) return;
  t.set_data(make_detached(t.sizes(), dtype, message));
}

}  // namespace tessera::tensor
