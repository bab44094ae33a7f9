// What --profile writes: the runtime's spans and libtorch's operators of some steps, one process for each rank.
#include "train/profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "support/small_net.h"
#include "support/temp_folder.h"
#include "tensor/span.h"
#include "tessera/base/error.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::train {
namespace {

using nlohmann::json;
using ::tessera::testing::SmallNet;

struct Stretch {
  double start = 0, end = 0;
  bool holds(const Stretch& other) const { return start <= other.start && other.end <= end; }
};

/// Steps of one rank under a Profile of `total` steps.
json profile_of(const std::string& file, std::int64_t total) {
  comm::run_threads(1, [&](auto group) {
    SmallNet model;
    auto sharded =
        fsdp::fully_shard(model, group, {.wrap = fsdp::wrap_classes({"MlpBlock"}), .gather = fsdp::GatherForm::kCopy});
    Profile profile(file, *group, 0, total);
    for (std::int64_t step = 0; step < total; ++step) {
      profile.before_step(step);
      {
        const tensor::Span span("step", std::to_string(step + 1));
        model(::tessera::testing::batch(0, static_cast<int>(step))).pow(2).mean().backward();
      }
      profile.after_step(step + 1);
    }
    EXPECT_NE(profile.finish().find(file), std::string::npos);
  });
  return json::parse(read_file(file)).at("traceEvents");
}

std::map<std::string, std::vector<Stretch>> by_name(const json& events) {
  std::map<std::string, std::vector<Stretch>> result;
  for (const auto& e : events) {
    if (e.at("ph") != "X") continue;
    const double start = e.at("ts");
    result[e.at("name")].push_back({start, start + e.at("dur").get<double>()});
  }
  return result;
}

TEST(Profile, HoldsTheSecondToTheFourthStep) {
  const test::TempFolder folder("profile");
  const auto spans = by_name(profile_of(folder.path() + "/trace.json", 6));
  std::set<std::string> steps;
  for (const auto& [name, times] : spans)
    if (name.starts_with("step ")) steps.insert(name);
  EXPECT_EQ(steps, (std::set<std::string>{"step 2", "step 3", "step 4"}));
}

TEST(Profile, OfAnOnlyStepIsThatStep) {
  const test::TempFolder folder("profile");
  EXPECT_EQ(by_name(profile_of(folder.path() + "/trace.json", 1)).count("step 1"), 1U);
}

TEST(Profile, ShowsGathersForwardsBackwardsAndReductionsOfEveryUnit) {
  const test::TempFolder folder("profile");
  const auto events = profile_of(folder.path() + "/trace.json", 2);
  const auto spans = by_name(events);
  const auto step = spans.at("step 2").front();
  int units = 0;
  for (const auto& [name, times] : spans) {
    if (!name.starts_with("fsdp::forward ")) continue;
    ++units;
    const std::string unit = name.substr(std::string("fsdp::forward ").size());
    for (const char* what : {"fsdp::gather ", "fsdp::backward ", "fsdp::start_reduce ", "fsdp::reduce "}) {
      const auto found = spans.find(what + unit);
      ASSERT_NE(found, spans.end()) << what << unit;
      for (const auto& time : found->second) EXPECT_TRUE(step.holds(time)) << what << unit;
    }
    EXPECT_LE(times.back().end, spans.at("fsdp::backward " + unit).front().end);
  }
  EXPECT_GT(units, 1);
  EXPECT_GT(spans.count("aten::mm") + spans.count("aten::addmm") + spans.count("aten::linear"), 0U);
}

TEST(Profile, NamesAFolderThatIsNotThere) {
  comm::run_threads(1,
                    [](auto group) { EXPECT_THROW(Profile("/nowhere/at/all/trace.json", *group, 0, 3), ConfigError); });
}

}  // namespace
}  // namespace tessera::train
