// Folders that are merged, unpacked and packed on a device that is not the CPU have the CPU's bits, and the CPU has no
// part in it.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "support/fake_device.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tasks/merge.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::tasks::merge_device {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/";

/// Operators that compute with floats of the CPU, while it lives, on all threads; not what stands in for the device's.
class ComputedOnHost {
 public:
  ComputedOnHost() : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end).needsInputs(true))) {
    const std::lock_guard lock(mutex);
    names.clear();
  }
  ~ComputedOnHost() { at::removeCallback(handle_); }
  ComputedOnHost(const ComputedOnHost&) = delete;
  ComputedOnHost& operator=(const ComputedOnHost&) = delete;
  std::set<std::string> found() const {
    const std::lock_guard lock(mutex);
    return names;
  }

 private:
  struct Call : at::ObserverContext {
    explicit Call(bool device) : on_device(device) { depth += on_device ? 1 : 0; }
    ~Call() override { depth -= on_device ? 1 : 0; }
    bool on_device;
  };
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    bool has_floats = false, on_device = false;
    for (const auto& input : call.inputs()) {
      if (!input.isTensor() || !input.toTensor().defined()) continue;
      on_device |= !input.toTensor().is_cpu();
      has_floats |= input.toTensor().is_floating_point();
    }
    if (has_floats && !on_device && depth == 0 && !kMoves.contains(call.name())) {
      const std::lock_guard lock(mutex);
      names.insert(call.name());
    }
    return std::make_unique<Call>(on_device);
  }
  static void end(const at::RecordFunction&, at::ObserverContext*) {}

  inline static const std::set<std::string> kMoves = {};
  inline static std::mutex mutex;
  inline static std::set<std::string> names;
  inline static thread_local int depth = 0;
  at::CallbackHandle handle_;
};

/// Writes it on ranks that compute there, or on the CPU.
void write(WriteModelOptions options, int ranks, bool on_device) {
  comm::run_threads(ranks, [&](const std::shared_ptr<comm::Communicator>& group) {
    auto own = options;
    if (on_device) own.device = test::fake_device(group->rank());
    write_model(own, group);
  });
  EXPECT_EQ(test::fake_device_bytes(), 0);
}

/// On the CPU, and on one and two ranks with a device each.
void expect_equal_folders(WriteModelOptions options) {
  const test::TempFolder folder("merge_device");
  const auto expected = options.output = folder.path() + "/cpu";
  write(options, 1, false);
  for (int ranks = 1; ranks <= 2; ++ranks) {
    options.output = folder.path() + "/device" + std::to_string(ranks);
    const ComputedOnHost host;
    write(options, ranks, true);
    EXPECT_EQ(host.found(), std::set<std::string>()) << ranks << " ranks";
    for (const auto& entry : fs::directory_iterator(expected)) {
      const auto file = entry.path().filename().string();
      EXPECT_TRUE(read_file(options.output + "/" + file) == read_file(expected + "/" + file))
          << file << " of " << ranks << " ranks";
    }
  }
}

struct Adapter {
  std::string base, folder;
};

/// Of every method: the reference's trained adapters.
std::vector<Adapter> adapters() {
  std::vector<Adapter> out;
  for (const char* family : {"B_train", "J_peft"})
    for (const auto& entry : fs::directory_iterator(kGoldens + family)) {
      const auto folder = entry.path().string();
      if (!fs::exists(folder + "/merged") || !fs::exists(folder + "/adapter_final")) continue;
      const auto expect = nlohmann::json::parse(read_file(folder + "/expect.json"));
      out.push_back({kGoldens + "B_train/" + expect.at("base").get<std::string>(), folder + "/adapter_final"});
    }
  return out;
}

TEST(MergeOnADevice, EveryMethodsWeightsHaveTheCpusBits) {
  int merged = 0;
  for (const auto& [base, folder] : adapters()) {
    if (folder.find("fourierft") != std::string::npos) continue;  // a made-up device has no views of complex numbers
    SCOPED_TRACE(folder);
    expect_equal_folders({.model_folder = base, .adapter_folder = folder, .output = {}});
    ++merged;
  }
  EXPECT_GT(merged, 30);
}

}  // namespace
}  // namespace tessera::tasks::merge_device
