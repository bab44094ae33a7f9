#include "fsdp/runtime/check_replicas.h"

#include <gtest/gtest.h>

#include <mutex>

#include "support/program.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using testing::SmallNet;

/// What each of four ranks says after one element of `spoilt` was changed on rank 3: the smallest change there is.
std::vector<std::string> said(FsdpOptions options, const std::string& spoilt) {
  std::vector<std::string> said(4);
  options.wrap = wrap_classes({"MlpBlock"});
  comm::run_threads(4, [&](auto group) {
    SmallNet net;
    const auto model = fully_shard(net, group, options);
    for (const auto& shard : model->shards()) {
      if (group->rank() != 3 || shard.name != spoilt || shard.local.numel() == 0) continue;
      const auto element = shard.local.detach().narrow(0, 0, 1);
      element.copy_(at::nextafter(element, element + 1));
    }
    model->mark_updated();
    auto& mine = said[static_cast<std::size_t>(group->rank())];
    try {
      mine = std::to_string(check_replicas(*model)) + " parameters";
    } catch (const Error& e) {
      mine = e.what();
    }
  });
  return said;
}

TEST(CheckReplicas, NamesTheParameterAndTheRanksThatPart) {
  const FsdpOptions copies{.strategy = ShardingStrategy::kNoShard},
      hybrid{.strategy = ShardingStrategy::kHybridShard, .shard_group_size = 2};
  for (const auto& text : said(copies, "block1.up.bias"))
    EXPECT_SAYS(text, "'block1.up.bias' differs from rank 0's on rank 3;");
  // Rank 3 holds the second half for ranks 2 and 3.
  for (const auto& text : said(hybrid, "block1.down.weight"))
    EXPECT_SAYS(text, "'block1.down.weight' differs from rank 0's on rank 2, 3;");
  const auto count = std::to_string(SmallNet().named_parameters().size()) + " parameters";
  for (const auto& options : {copies, hybrid})
    for (const auto& text : said(options, "")) EXPECT_EQ(text, count);
}

}  // namespace
}  // namespace tessera::fsdp
