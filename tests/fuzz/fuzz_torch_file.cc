// Any bytes as a file of torch.save: an error or tensors that can be read, nothing else. The mutator changes entries of
// the archive, and of its pickle the operations, and writes an archive with checksums that fit.
#include <ATen/core/Tensor.h>

#include "base/crc32.h"
#include "fuzz/pickle_program.h"
#include "fuzz/temporary_file.h"
#include "io/stored_tensor.h"
#include "io/torch_file.h"
#include "io/zip_archive.h"
#include "io/zip_layout.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  constexpr std::int64_t kMaxElements = 1 << 16;  // an expanded tensor may claim any size
  const std::string& file = fuzz::as_file(data, size);
  const auto attempt = [&](const auto& list) {
    try {
      const auto source = io::make_stored_source(list());
      for (const auto& info : source->tensors())
        if (info.numel() <= kMaxElements) io::read_tensor(*source, info.name);
    } catch (const DataError&) {
    }
  };
  attempt([&] { return io::list_torch_file(file); });
  attempt([&] { return io::list_nested_torch_file(file); });
  attempt([&] {  // as a part of a checkpoint's file
    return std::vector{io::list_torch_tensor(std::make_shared<io::InputFile>(file), {0, size})};
  });
  return 0;
}

namespace {

using namespace tessera;
using Entries = std::vector<std::pair<std::string, std::string>>;  // names and bytes

std::optional<Entries> entries_of(std::string_view archive) {
  try {
    const io::InputFile file(fuzz::as_file(reinterpret_cast<const std::uint8_t*>(archive.data()), archive.size()));
    Entries out;
    for (const auto& entry : io::list_zip(file))
      out.emplace_back(entry.name, file.read_string(entry.offset, entry.bytes));
    return out;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

std::string archive_of(const Entries& entries) {
  io::ZipLayout zip;
  for (const auto& [name, bytes] : entries) zip.set_crc(zip.add(name, bytes.size()), crc32(bytes.data(), bytes.size()));
  std::string out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    out += zip.header(i);
    out += entries[i].second;
  }
  return out + zip.directory();
}

std::optional<std::string> changed_archive(std::string_view archive, fuzz::Random& random) {
  auto entries = entries_of(archive);
  if (!entries || entries->empty()) return std::nullopt;
  auto* entry = fuzz::change_list(*entries, random);
  if (random.one_in(2)) {
    for (auto& one : *entries)
      if (one.first.ends_with("data.pkl")) entry = &one;
  }
  if (entry == nullptr) return archive_of(*entries);
  if (const auto pickle = fuzz::changed_pickle(entry->second, random); pickle && entry->first.ends_with("data.pkl"))
    entry->second = *pickle;
  else if (random.one_in(4))
    entry->first = fuzz::changed_bytes(std::move(entry->first));
  else
    entry->second = fuzz::changed_bytes(std::move(entry->second));
  return archive_of(*entries);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return fuzz::mutate(data, size, max_size, seed, changed_archive);
}
