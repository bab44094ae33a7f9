#include "io/torch_file_writer.h"

#include <filesystem>

#include "base/crc32.h"
#include "io/output_file.h"
#include "io/pickle_writer.h"
#include "io/stored_tensor.h"
#include "io/zip_layout.h"
#include "tessera/base/error.h"

namespace tessera::io {

/// The entries of an archive, in torch's order: the pickle, the storages, the version of the format.
struct TorchArchive {
  ZipLayout zip;
  std::vector<std::pair<std::size_t, std::string>> texts;  // entries whose content is known
  std::size_t first_storage = 0, storages = 0;

  TorchArchive(const std::string& folder, std::string pickle, const std::vector<std::uint64_t>& storage_bytes) {
    add_text(folder + "/data.pkl", std::move(pickle));
    add_text(folder + "/byteorder", "little");
    first_storage = zip.size();
    storages = storage_bytes.size();
    for (std::size_t i = 0; i < storages; ++i) zip.add(folder + "/data/" + std::to_string(i), storage_bytes[i]);
    add_text(folder + "/version", "3\n");
  }

 private:
  void add_text(const std::string& name, std::string text) {
    const auto entry = zip.add(name, text.size());
    zip.set_crc(entry, crc32(text.data(), text.size()));
    texts.emplace_back(entry, std::move(text));
  }
};

struct TorchFileWriter::Impl {
  Impl(const std::string& path, std::string pickle, const std::vector<std::uint64_t>& storage_bytes)
      : archive(std::filesystem::path(path).stem().string(), std::move(pickle), storage_bytes),
        bytes(storage_bytes),
        came(storage_bytes.size(), false),
        file(path) {}
  TorchArchive archive;
  std::vector<std::uint64_t> bytes;
  std::vector<bool> came;
  OutputFile file;
};

TorchFileWriter::TorchFileWriter(const std::string& file, std::string pickle,
                                 const std::vector<std::uint64_t>& storage_bytes)
    : impl_(std::make_unique<Impl>(file, std::move(pickle), storage_bytes)) {
  for (const auto& [entry, text] : impl_->archive.texts)
    impl_->file.write(impl_->archive.zip.data_offset(entry), text.data(), text.size());
}

TorchFileWriter::~TorchFileWriter() = default;

void TorchFileWriter::write(std::size_t storage, const at::Tensor& tensor) {
  TESSERA_CHECK(storage < impl_->came.size() && !impl_->came[storage],
                "storage " + std::to_string(storage) + " was not announced, or came twice");
  TESSERA_CHECK(tensor.is_contiguous() && tensor.is_cpu() && tensor.nbytes() == impl_->bytes[storage],
                "storage " + std::to_string(storage) + " must be contiguous, on the CPU and of the announced size");
  const auto entry = impl_->archive.first_storage + storage;
  impl_->archive.zip.set_crc(entry, crc32(tensor.const_data_ptr(), tensor.nbytes()));
  impl_->file.write(impl_->archive.zip.data_offset(entry), tensor.const_data_ptr(), tensor.nbytes());
  impl_->came[storage] = true;
}

WrittenFile TorchFileWriter::commit() {
  const auto& zip = impl_->archive.zip;
  for (std::size_t i = 0; i < impl_->came.size(); ++i)
    TESSERA_CHECK(impl_->came[i], "storage " + std::to_string(i) + " of " + impl_->file.path() + " did not come");
  for (std::size_t i = 0; i < zip.size(); ++i) {
    const std::string header = zip.header(i);
    impl_->file.write(zip.header_offset(i), header.data(), header.size());
  }
  const std::string directory = zip.directory();
  impl_->file.write(zip.directory_offset(), directory.data(), directory.size());
  return impl_->file.commit();
}

std::string state_dict_pickle(const std::vector<TensorInfo>& infos, const std::vector<std::size_t>& storages) {
  PickleWriter pickle;
  pickle.global("collections", "OrderedDict");
  pickle.begin_tuple();
  pickle.end_tuple();
  pickle.reduce();
  pickle.begin_items();
  for (std::size_t i = 0; i < infos.size(); ++i) {
    pickle.text(infos[i].name);
    pickle.tensor(std::to_string(storages.empty() ? i : storages[i]), infos[i].dtype, infos[i].shape);
  }
  pickle.end_dict();
  return pickle.take();
}

WrittenFile write_torch_file(const std::string& file, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<TensorInfo> infos;
  std::vector<std::uint64_t> bytes;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), file});
    bytes.push_back(tensor.nbytes());
  }
  TorchFileWriter writer(file, state_dict_pickle(infos), bytes);
  for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(i, tensors[i].second.detach().cpu().contiguous());
  return writer.commit();
}

std::uint64_t torch_archive_bytes(std::size_t pickle_bytes, std::optional<std::uint64_t> storage_bytes) {
  std::vector<std::uint64_t> bytes;
  if (storage_bytes) bytes.push_back(*storage_bytes);
  const TorchArchive archive("archive", std::string(pickle_bytes, ' '), bytes);
  return archive.zip.directory_offset() + archive.zip.directory().size();
}

std::string torch_archive(std::string pickle, const at::Tensor& storage) {
  std::vector<std::uint64_t> bytes;
  if (storage.defined()) bytes.push_back(storage.nbytes());
  TorchArchive archive("archive", std::move(pickle), bytes);
  if (storage.defined()) archive.zip.set_crc(archive.first_storage, crc32(storage.const_data_ptr(), storage.nbytes()));
  const std::string directory = archive.zip.directory();
  std::string out(archive.zip.directory_offset() + directory.size(), '\0');
  const auto place = [&](std::uint64_t at, const void* data, std::size_t count) {
    if (count > 0) out.replace(at, count, static_cast<const char*>(data), count);
  };
  if (storage.defined())
    place(archive.zip.data_offset(archive.first_storage), storage.const_data_ptr(), storage.nbytes());
  for (const auto& [entry, text] : archive.texts) place(archive.zip.data_offset(entry), text.data(), text.size());
  for (std::size_t i = 0; i < archive.zip.size(); ++i) {
    const std::string header = archive.zip.header(i);
    place(archive.zip.header_offset(i), header.data(), header.size());
  }
  place(archive.zip.directory_offset(), directory.data(), directory.size());
  return out;
}

}  // namespace tessera::io
