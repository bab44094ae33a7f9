#include "fsdp/plan/same_source.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/crc32c.h"
#include "fsdp/params/load_shards.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::fsdp {
namespace {

constexpr std::size_t kMostParameters = 256;
constexpr std::int64_t kSampleBytes = 256;

/// "" where the source does not have it as it is.
std::string sample(const FsdpOptions& options, const PlannedParameter& parameter) {
  const std::string name = parameter.codec.empty() ? name_in_source(options, parameter.name) : std::string();
  if (name.empty()) return {};
  const auto& info = *options.source->find(name);
  if (info.packed_bytes > 0) return {};
  const auto item = static_cast<std::int64_t>(c10::elementSize(info.dtype));
  const std::int64_t bytes = std::min(info.nbytes(), kSampleBytes);
  const auto out = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  options.source->read_bytes(name, (info.nbytes() - bytes) / 2 / item * item, out);
  return crc32c_text(crc32c(out.const_data_ptr(), static_cast<std::size_t>(bytes)));
}

}  // namespace

void check_same_source(const UnitPlan& plan, const FsdpOptions& options, comm::Communicator& world) {
  if (world.size() == 1) return;
  const std::size_t count = plan.parameters.size(), checked = std::min(count, kMostParameters);
  const auto parameter = [&](std::size_t i) -> const auto& { return plan.parameters[i * count / checked]; };
  constexpr std::size_t kWidth = 9;  // of a sample and a blank
  std::string mine;
  for (std::size_t i = 0; options.source && i < checked; ++i)
    mine += fmt::format("{:<{}}", sample(options, parameter(i)), kWidth);
  const auto all = world.all_gather_objects(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const auto& s) { return !s.empty(); });
  const auto other = std::find_if(first, all.end(), [&](const auto& s) { return !s.empty() && s != *first; });
  if (other == all.end()) return;
  const auto differs =
      static_cast<std::size_t>(std::mismatch(first->begin(), first->end(), other->begin()).first - first->begin());
  throw DataError(
      fmt::format("ranks {} and {} read different weights: '{}' is not the same. Give all ranks the same "
                  "model folder; over several machines compare the files' checksums",
                  first - all.begin(), other - all.begin(), parameter(differs / kWidth).name));
}

}  // namespace tessera::fsdp
