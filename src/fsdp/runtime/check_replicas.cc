#include "fsdp/runtime/check_replicas.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {

std::int64_t check_replicas(FullyShardedDataParallel& model) {
  std::vector<std::string> names;
  std::vector<std::uint32_t> checksums;
  model.visit_full([&](const std::string& name, const at::Tensor& tensor) {
    const auto whole = tensor.detach().cpu().contiguous();
    names.push_back(name);
    checksums.push_back(crc32c(whole.const_data_ptr(), whole.nbytes()));
  });
  const comm::Bytes mine(reinterpret_cast<const char*>(checksums.data()), checksums.size() * sizeof(std::uint32_t));
  const auto all = model.group().all_gather_objects(mine);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto at_rank = [&](std::size_t r) { return std::string_view(all[r]).substr(i * sizeof(std::uint32_t), 4); };
    std::string ranks;
    for (std::size_t r = 1; r < all.size(); ++r)
      if (at_rank(r) != at_rank(0)) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    if (ranks.empty()) continue;
    throw Error(
        fmt::format("the ranks no longer hold the same weights: '{}' differs from rank 0's on rank {}; go on "
                    "from the last checkpoint, and have the memory of that host tested",
                    names[i], ranks));
  }
  return static_cast<std::int64_t>(names.size());
}

}  // namespace tessera::fsdp
