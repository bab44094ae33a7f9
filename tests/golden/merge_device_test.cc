// Folders whose weights are merged, unpacked and packed on a device that is not the CPU: they have the CPU's bits, and
// the CPU has no part in it.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "base/file.h"
#include "support/fake_device.h"
#include "support/goldens.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tasks/merge.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks::merge_device {
namespace {

namespace fs = std::filesystem;

const std::string kData = TESSERA_TEST_DATA, kPacked = kData + "/goldens/C_quant/";

/// Operators that compute with floats while it lives, on all threads; not what stands in for the device's.
class Computed {
 public:
  Computed() : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&begin).needsInputs(true))) {
    const std::lock_guard lock(mutex);
    host.clear();
    device.clear();
  }
  ~Computed() { at::removeCallback(handle_); }
  Computed(const Computed&) = delete;
  Computed& operator=(const Computed&) = delete;
  std::set<std::string> on_host() const { return copy_of(host); }
  std::set<std::string> on_device() const { return copy_of(device); }

 private:
  /// Of an operator, until it ends.
  struct Running : at::ObserverContext {
    explicit Running(bool device) : on_device(device) { depth += on_device ? 1 : 0; }
    ~Running() override { depth -= on_device ? 1 : 0; }
    bool on_device;
  };
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    bool has_floats = false, on_device = false;
    for (const auto& input : call.inputs()) {
      if (!input.isTensor() || !input.toTensor().defined()) continue;
      on_device |= !input.toTensor().is_cpu();
      has_floats |= input.toTensor().is_floating_point();
    }
    if (has_floats && depth == 0 && !kMoves.contains(call.name())) {
      const std::lock_guard lock(mutex);
      (on_device ? device : host).insert(call.name());
    }
    return std::make_unique<Running>(on_device);
  }
  static std::set<std::string> copy_of(const std::set<std::string>& names) {
    const std::lock_guard lock(mutex);
    return names;
  }

  // What only brings values somewhere, or shows them otherwise.
  inline static const std::set<std::string> kMoves = {"aten::_has_compatible_shallow_copy_type",
                                                      "aten::_pin_memory",
                                                      "aten::_to_copy",
                                                      "aten::as_strided",
                                                      "aten::clone",
                                                      "aten::contiguous",
                                                      "aten::copy_",
                                                      "aten::detach",
                                                      "aten::fill_",
                                                      "aten::is_pinned",
                                                      "aten::narrow",
                                                      "aten::pin_memory",
                                                      "aten::set_",
                                                      "aten::slice",
                                                      "aten::t",
                                                      "aten::to",
                                                      "aten::transpose",
                                                      "aten::view",
                                                      "detach"};
  inline static std::mutex mutex;
  inline static std::set<std::string> host, device;
  inline static thread_local int depth = 0;
  at::CallbackHandle handle_;
};

/// Writes it on ranks that compute there, or on the CPU.
void write(const WriteModelOptions& options, int ranks, bool on_device) {
  comm::run_threads(ranks, [&](const std::shared_ptr<comm::Communicator>& group) {
    auto own = options;
    if (on_device) own.device = test::fake_device(group->rank());
    write_model(own, group);
  });
  EXPECT_EQ(test::fake_device_bytes(), 0);
}

/// What a device does otherwise than the CPU, and what is the CPU's wherever the rest is computed.
struct Differs {
  double rounding = 0;  // of a tensor's largest value
  bool computes_on_host = false;
};

void expect_equal_tensors(const std::string& file, const std::string& expected, double rounding) {
  const auto found = io::open_safetensors(file), reference = io::open_safetensors(expected);
  ASSERT_EQ(found->tensors().size(), reference->tensors().size());
  for (const auto& info : reference->tensors()) {
    const auto value = io::read_tensor(*reference, info.name);
    const auto bound = rounding > 0 ? rounding * value.abs().max().item<double>() : 0.0;
    EXPECT_TRUE(at::allclose(io::read_tensor(*found, info.name), value, 0, bound)) << info.name;
  }
}

/// On the CPU, and on one and two ranks with a device each.
void expect_equal_folders(WriteModelOptions options, const Differs& differs = {}) {
  const test::TempFolder folder("merge_device");
  const auto expected = options.output = folder.path() + "/cpu";
  write(options, 1, false);
  for (int ranks = 1; ranks <= 2; ++ranks) {
    SCOPED_TRACE(ranks);
    options.output = folder.path() + "/device" + std::to_string(ranks);
    const Computed computed;
    write(options, ranks, true);
    if (!differs.computes_on_host) {
      EXPECT_EQ(computed.on_host(), std::set<std::string>());
    }
    EXPECT_NE(computed.on_device(), std::set<std::string>());
    for (const auto& entry : fs::directory_iterator(expected)) {
      const auto file = entry.path().filename().string();
      if (file == "model.safetensors")
        expect_equal_tensors(options.output + "/" + file, expected + "/" + file, differs.rounding);
      else
        EXPECT_EQ(read_file(options.output + "/" + file), read_file(expected + "/" + file)) << file;
    }
  }
}

// Some add up in loops of their own on CPUs. Some make what is not in the file before there is a merge: they factorise
// the base, or draw what a seed decides.
const std::map<std::string, Differs> kOthers = {{"llama_randlora", {.rounding = 1e-6}},
                                                {"llama_hra", {.rounding = 1e-6}},
                                                {"llama_lora_pissa", {.computes_on_host = true}},
                                                {"llama_lora_olora", {.computes_on_host = true}},
                                                {"llama_psoft", {.rounding = 1e-6, .computes_on_host = true}},
                                                {"bert_psoft_cls", {.rounding = 1e-6, .computes_on_host = true}},
                                                {"gpt2_pvera", {.computes_on_host = true}},
                                                {"llama_unilora", {.computes_on_host = true}},
                                                {"bert_unilora_cls", {.computes_on_host = true}}};

// A made-up device has no views of complex numbers. What LN tuning trains is part of the weights already.
const std::set<std::string> kLeftOut = {"llama_fourierft", "llama_ln"};

TEST(MergeOnADevice, EveryMethodsWeightsHaveTheCpusBits) {
  int merged = 0;
  for (const auto* family : {"B_train", "J_peft"}) {
    for (const auto& name : test::names_in(test::goldens(family), "")) {
      const auto folder = (test::goldens(family) / name).string();
      if (!fs::exists(folder + "/merged") || !fs::exists(folder + "/adapter_final")) continue;
      if (kLeftOut.contains(name)) continue;
      SCOPED_TRACE(folder);
      const auto base = test::read_golden(folder + "/expect.json").at("base").get<std::string>();
      const auto other = kOthers.find(name);
      expect_equal_folders({.model_folder = (test::goldens("B_train") / base).string(),
                            .adapter_folder = folder + "/adapter_final",
                            .output = {}},
                           other == kOthers.end() ? Differs() : other->second);
      ++merged;
    }
  }
  if (merged == 0) GTEST_SKIP() << "the set has no adapters";
}

using checkpoint::WeightDtype;

TEST(MergeOnADevice, PackedBasesAreUnpackedAndPackedAgainAsOnTheCpu) {
  for (const char* base : {"model_nf4", "model_fp4", "model_nf4_double_bf16", "model_int8", "base_llama"})
    for (const char* adapter : {"", "qlora_fp32/adapter_final", "qdora_fp32/adapter_final"})
      for (const char* type : {"", "nf4", "fp4", "int8"}) {
        SCOPED_TRACE(std::string(base) + ", " + adapter + ", " + type);
        const std::string folder = adapter, from = base;
        if (folder.empty() && from == "base_llama" && *type == 0) continue;  // a copy
        expect_equal_folders({.model_folder = kPacked + from,
                              .adapter_folder = folder.empty() ? "" : kPacked + folder,
                              .output = {},
                              .dtype = WeightDtype::kBFloat16,
                              .packed = {.type = type, .settings = {}}});
      }
}

TEST(MergeOnADevice, OnlyScalesThatArePackedThemselvesArePackedOnTheHost) {
  expect_equal_folders({.model_folder = kPacked + "model_nf4_double_bf16",
                        .adapter_folder = kPacked + "qlora_fp32/adapter_final",
                        .output = {},
                        .packed = {.type = "nf4", .settings = {.double_quant = true}}},
                       {.computes_on_host = true});
}

TEST(MergeOnADevice, GroupsOfGptqAndAwqAreUnpackedAndPackedWithoutAnAdapter) {
  for (const char* base : {"gptq_llama", "awq_llama"})
    for (const char* type : {"", "nf4"}) {
      SCOPED_TRACE(std::string(base) + ", " + type);
      expect_equal_folders({.model_folder = kData + "/grouped/" + base,
                            .adapter_folder = {},
                            .output = {},
                            .dtype = WeightDtype::kFloat32,
                            .packed = {.type = type, .settings = {}}});
    }
}

TEST(MergeOnADevice, WithoutMemoryThereSaysWhatHelps) {
  for (const char* type : {"", "nf4"}) {
    const test::TempFolder folder("merge_device");
    test::limit_fake_devices(1 << 12);
    try {
      write({.model_folder = kPacked + "base_llama",
             .adapter_folder = kPacked + "qlora_fp32/adapter_final",
             .output = folder.path() + "/merged",
             .packed = {.type = type, .settings = {}}},
            1, true);
      ADD_FAILURE() << "there was memory";
    } catch (const std::exception& e) {
      EXPECT_SAYS(std::string(e.what()), "fake out of memory");
      EXPECT_SAYS(std::string(e.what()), "What helps: --device cpu");
    }
    test::limit_fake_devices(0);
    EXPECT_FALSE(fs::exists(folder.path() + "/merged/model.safetensors"));
  }
}

}  // namespace
}  // namespace tessera::tasks::merge_device
