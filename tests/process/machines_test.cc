// One job on two machines: network namespaces where they may be made (root), else two launches on this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "support/namespaces.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Finished;
using test::Subprocess;

using test::Namespaces;

std::vector<std::string> in_namespace(int machine, std::vector<std::string> command) {
  command.insert(command.begin(),
                 {"/bin/sh", "-c",
                  "PATH=$PATH:/usr/sbin:/sbin; exec ip netns exec " + Namespaces::name(machine) + " \"$@\"", "sh"});
  return command;
}

class Machines : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "machines_" + std::to_string(::getpid());
    fs::create_directories(folder_);
    const Finished r = test::run({TESSERA_BINARY, "init-model", kDemo + "model", folder_ + "/model"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> launch(const std::vector<std::string>& flags, const std::string& output,
                                  const std::string& steps, int ranks = 4) const {
    std::vector<std::string> command = {TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"seq2seq", "--model_name_or_path", folder_ + "/model", "--dataset_path",
                                   kDemo + "data/Sentences_demo.txt", "--output_dir", folder_ + output, "--max_steps",
                                   steps, "--logging_steps", "1", "--do_eval", "false", "--print_model", "false",
                                   "--disable_tqdm", "--per_device_train_batch_size", "2"});
    return command;
  }
  /// LoRA on the chat model in folder_/chat; `output` also names the cache of the data.
  std::vector<std::string> launch_sft(const std::vector<std::string>& flags, const std::string& gather,
                                      const std::string& output) const {
    std::vector<std::string> command = {TESSERA_BINARY, "launch", "--cpu", "--num_processes", "4", "--use_fsdp"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"sft",
                                   "--gather",
                                   gather,
                                   "--model_name_or_path",
                                   folder_ + "/chat",
                                   "--dataset_name",
                                   kChat,
                                   "--dataset_cache_dir",
                                   folder_ + output + "_cache",
                                   "--output_dir",
                                   folder_ + output,
                                   "--use_peft_lora",
                                   "true",
                                   "--lora_r",
                                   "4",
                                   "--lora_target_modules",
                                   "all-linear",
                                   "--lora_dropout",
                                   "0.1",
                                   "--packing",
                                   "true",
                                   "--max_seq_length",
                                   "64",
                                   "--per_device_train_batch_size",
                                   "2",
                                   "--learning_rate",
                                   "1e-2",
                                   "--max_steps",
                                   "4",
                                   "--logging_steps",
                                   "1",
                                   "--print_model",
                                   "false",
                                   "--disable_tqdm"});
    return command;
  }
  static std::vector<std::string> machine(int rank, const std::string& address, int port, int machines = 2) {
    return {"--num_machines", std::to_string(machines), "--machine_rank",    std::to_string(rank), "--main_process_ip",
            address,          "--main_process_port",    std::to_string(port)};
  }
  /// Below those that the system gives to connections of other tests.
  static int port(int test) { return 20000 + ::getpid() % 900 + test * 900; }

  std::vector<double> losses(const std::string& output, const std::string& key = "loss") const {
    std::vector<double> found;
    std::ifstream in(folder_ + output + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("step") && row.contains(key)) found.push_back(row[key]);
    }
    return found;
  }

  /// Step and loss of what has been logged so far, of runs that still write, too.
  std::vector<std::pair<int, double>> logged(const std::string& output) const {
    std::vector<std::pair<int, double>> found;
    std::ifstream in(folder_ + output + "/metrics.jsonl");
    for (std::string line; std::getline(in, line) && !in.eof();) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("step") && row.contains("train_loss_exact"))
        found.emplace_back(row["step"], row["train_loss_exact"]);
    }
    return found;
  }
  /// Until `holds` does; false after a minute.
  template <class Condition>
  static bool wait_until(const Condition& holds) {
    for (int looks = 0; looks < 1200; ++looks) {
      if (holds()) return true;
      std::this_thread::sleep_for(50ms);
    }
    return false;
  }

  /// A hash: a megabyte that differs would be printed.
  std::size_t weights(const std::string& output, const std::string& file = "model.safetensors") const {
    std::ifstream in(folder_ + output + "/" + file, std::ios::binary);
    EXPECT_TRUE(in.is_open()) << output;
    return std::hash<std::string>()({std::istreambuf_iterator<char>(in), {}});
  }

  void expect_the_losses_of_one_host(const std::string& output) {
    const Finished r = test::run(launch({}, "/one", "3"));
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto expected = losses("/one");
    ASSERT_EQ(expected.size(), 3u);
    EXPECT_EQ(losses(output), expected);  // to the bit: sums are in rank order on any number of hosts
  }

  static inline const std::string kChat = std::string(TESSERA_TEST_DATA) + "/tiny_chat";
  static inline const std::string kDemo = std::string(TESSERA_TEST_DATA) + "/../../examples/demo/";
  std::string folder_;
};

TEST_F(Machines, TwoLaunchesTrainAsOne) {
  Subprocess zero(launch(machine(0, "127.0.0.1", port(0)), "/two", "3"));
  Subprocess one(launch(machine(1, "127.0.0.1", port(0)), "/two", "3"));
  const Finished first = zero.finish(120s), second = one.finish(120s);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(first.out.find("Ranks = 4 (hosts)"), std::string::npos) << first.out;
  expect_the_losses_of_one_host("/two");
  EXPECT_TRUE(fs::exists(folder_ + "/two/adapter_model.safetensors"));
}

TEST_F(Machines, NamespacesTrainAsOneHost) {
  const Namespaces namespaces;
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  Subprocess zero(in_namespace(0, launch(machine(0, "10.77.0.1", port(1)), "/two", "3")));
  Subprocess one(in_namespace(1, launch(machine(1, "10.77.0.1", port(1)), "/two", "3")));
  const Finished first = zero.finish(120s), second = one.finish(120s);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  expect_the_losses_of_one_host("/two");
}

/// Kubernetes' PyTorchJob starts one rank a pod and says no more than this.
TEST_F(Machines, PodsThatKnowTheirRankAndTheMasterTrainAsOneHost) {
  const Namespaces namespaces;
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  const auto flags = launch({}, "/pods", "3", 2);
  const auto pod = [&](int rank) {
    std::vector<std::string> command = {TESSERA_BINARY};
    command.insert(command.end(), std::find(flags.begin(), flags.end(), "seq2seq"), flags.end());
    return in_namespace(rank, command);
  };
  const auto variables = [](int rank) {
    return test::Variables{{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_ADDR", Namespaces::address(0)},
                           {"MASTER_PORT", std::to_string(port(10))},
                           {"OMP_NUM_THREADS", "1"}};
  };
  Subprocess zero(pod(0), variables(0)), one(pod(1), variables(1));
  const Finished first = zero.finish(120s), second = one.finish(120s);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(first.out.find("Ranks = 2 (hosts)"), std::string::npos) << first.out;
  const Finished r = test::run(launch({"--num_cpu_threads_per_process", "1"}, "/one", "3", 2));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  ASSERT_EQ(losses("/one").size(), 3u);
  EXPECT_EQ(losses("/pods"), losses("/one"));
}

/// Copies inside hosts, gradients across them: what one host gives for the same groups of ranks, to the bit.
TEST_F(Machines, HybridStrategiesShareInsideEachHostAndTrainAsOneHost) {
  const Namespaces namespaces;
  for (const std::string strategy : {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}) {
    const bool apart = namespaces.made() && strategy == "HYBRID_SHARD";  // else two launches on this machine
    const auto command = [&](std::vector<std::string> flags, const std::string& output) {
      flags.insert(flags.end(), {"--use_fsdp", "--fsdp_sharding_strategy", strategy});
      auto all = launch(flags, output + strategy, "3");
      all.insert(all.end(),
                 {"--use_peft_lora", "false", "--gather", "shared"});  // an error where ranks share no memory
      return all;
    };
    const auto on_machine = [&](int k) {
      const auto flags = machine(k, apart ? "10.77.0.1" : "127.0.0.1", port(apart ? 4 : 5));
      return apart ? in_namespace(k, command(flags, "/two")) : command(flags, "/two");
    };
    Subprocess zero(on_machine(0)), one(on_machine(1));
    const Finished first = zero.finish(120s), second = one.finish(120s);
    ASSERT_EQ(first.exit_code, 0) << strategy << first.err;
    ASSERT_EQ(second.exit_code, 0) << strategy << second.err;
    const Finished r = test::run(command({"--fsdp_shard_group_size", "2"}, "/one"));
    ASSERT_EQ(r.exit_code, 0) << strategy << r.err;
    ASSERT_EQ(losses("/one" + strategy).size(), 3u);
    EXPECT_EQ(losses("/two" + strategy), losses("/one" + strategy)) << strategy;
    EXPECT_EQ(weights("/two" + strategy), weights("/one" + strategy)) << strategy;
  }
}

/// The frozen base is shared inside each host and the adapter's gradients cross the cable: what one host gives for the
/// same groups of ranks, to the bit, and for one group of all of them, in another order of sums.
TEST_F(Machines, FineTuningUnderAHybridStrategyTrainsAsOneHost) {
  const Namespaces namespaces;
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  const Finished made = test::run({TESSERA_BINARY, "init-model", kChat, folder_ + "/chat"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto on_machine = [&](int k) {
    auto flags = machine(k, "10.77.0.1", port(7));
    flags.insert(flags.end(), {"--fsdp_sharding_strategy", "HYBRID_SHARD"});
    return in_namespace(k, launch_sft(flags, "shared", "/two"));
  };
  Subprocess zero(on_machine(0)), one(on_machine(1));
  const Finished first = zero.finish(120s), second = one.finish(120s);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(first.out.find("Ranks = 4 (hosts)"), std::string::npos) << first.out;
  const Finished same = test::run(launch_sft(
      {"--fsdp_sharding_strategy", "HYBRID_SHARD", "--fsdp_shard_group_size", "2"}, "shared", "/same_groups"));
  ASSERT_EQ(same.exit_code, 0) << same.err;
  const Finished whole = test::run(launch_sft({"--fsdp_sharding_strategy", "FULL_SHARD"}, "copy", "/one_group"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::string exact = "train_loss_exact";
  const auto found = losses("/two", exact), one_group = losses("/one_group", exact);
  ASSERT_EQ(found.size(), 4u);
  ASSERT_EQ(one_group.size(), 4u);
  EXPECT_LT(found.back(), found.front());
  EXPECT_EQ(found, losses("/same_groups", exact));
  EXPECT_EQ(weights("/two", "adapter_model.safetensors"), weights("/same_groups", "adapter_model.safetensors"));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], one_group[i], 1e-5) << i;
}

/// The codes of a 4-bit base cross the cable as bytes (FULL_SHARD), or stay inside each host (HYBRID_SHARD).
TEST_F(Machines, FourBitBasesTrainOnTwoHostsAsOnOne) {
  const Namespaces namespaces;
  const Finished made = test::run({TESSERA_BINARY, "init-model", kChat, folder_ + "/chat"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  int next_port = 8;
  for (const std::string strategy : {"FULL_SHARD", "HYBRID_SHARD"}) {
    const bool hybrid = strategy == "HYBRID_SHARD", apart = namespaces.made();
    const auto command = [&](std::vector<std::string> flags, const std::string& output) {
      flags.insert(flags.end(), {"--fsdp_sharding_strategy", strategy});
      auto all = launch_sft(flags, hybrid ? "shared" : "copy", output + strategy);
      all.insert(all.end(), {"--use_4bit_quantization", "true", "--use_nested_quant", "true"});
      return all;
    };
    const int shared_port = port(next_port--);
    const auto on_machine = [&](int k) {
      const auto all = command(machine(k, apart ? "10.77.0.1" : "127.0.0.1", shared_port), "/two");
      return apart ? in_namespace(k, all) : all;
    };
    Subprocess zero(on_machine(0)), one(on_machine(1));
    const Finished first = zero.finish(180s), second = one.finish(180s);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    ASSERT_EQ(second.exit_code, 0) << second.err;
    const auto groups = hybrid ? std::vector<std::string>{"--fsdp_shard_group_size", "2"} : std::vector<std::string>{};
    const Finished same = test::run(command(groups, "/same"));
    ASSERT_EQ(same.exit_code, 0) << same.err;
    const std::string exact = "train_loss_exact";
    ASSERT_EQ(losses("/two" + strategy, exact).size(), 4u);
    EXPECT_EQ(losses("/two" + strategy, exact), losses("/same" + strategy, exact)) << strategy;
    EXPECT_EQ(weights("/two" + strategy, "adapter_model.safetensors"),
              weights("/same" + strategy, "adapter_model.safetensors"))
        << strategy;
  }
}

TEST_F(Machines, AShardGroupOverSeveralHostsSharesNoMemory) {
  auto zero_flags = launch(machine(0, "127.0.0.1", port(6)), "/two", "3");
  auto one_flags = launch(machine(1, "127.0.0.1", port(6)), "/two", "3");
  for (auto* flags : {&zero_flags, &one_flags}) flags->insert(flags->end(), {"--gather", "shared"});
  Subprocess zero(zero_flags), one(one_flags);
  const Finished first = zero.finish(60s), second = one.finish(60s);
  EXPECT_NE(first.exit_code, 0);
  EXPECT_NE(second.exit_code, 0);
  EXPECT_NE(first.err.find("share no memory"), std::string::npos) << first.err;
}

TEST_F(Machines, AHostThatIsGoneIsNoticedWithinSecondsAndNamed) {
  const Namespaces namespaces;
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  Subprocess zero(in_namespace(0, launch(machine(0, "10.77.0.1", port(2)), "/two", "100000")));
  Subprocess one(in_namespace(1, launch(machine(1, "10.77.0.1", port(2)), "/two", "100000")));
  ASSERT_TRUE(zero.wait_for_output("Running training", 60s));
  std::this_thread::sleep_for(1s);
  namespaces.pull_the_cable();
  const auto begin = std::chrono::steady_clock::now();
  const Finished first = zero.finish(60s), second = one.finish(60s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_NE(first.exit_code, 0);
  EXPECT_NE(second.exit_code, 0);
  EXPECT_NE(first.err.find("the connection with the host of rank"), std::string::npos) << first.err;
  EXPECT_NE(second.err.find("the connection with the host of rank"), std::string::npos) << second.err;
}

/// Before all are there: the third of these machines never comes.
TEST_F(Machines, AHostThatIsGoneWhileRanksMeetIsNoticed) {
  const Namespaces namespaces;
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  const int meeting_port = port(12);
  const test::Variables lost_soon = {{"TESSERA_KEEPALIVE_S", "2"}};
  const auto on_machine = [&](int k) {
    return in_namespace(k, launch(machine(k, Namespaces::address(0), meeting_port, 3), "/three", "3", 3));
  };
  Subprocess zero(on_machine(0), lost_soon), one(on_machine(1), lost_soon);
  char connected[64];  // as /proc/net/tcp shows it: the other end's port, and 01
  std::snprintf(connected, sizeof(connected), ":%04X 01 ", static_cast<unsigned>(meeting_port));
  const std::string look =
      "ip netns exec " + Namespaces::name(1) + " grep -q '" + connected + "' /proc/net/tcp /proc/net/tcp6";
  ASSERT_TRUE(wait_until([&] { return Namespaces::shell(look); }));
  std::this_thread::sleep_for(500ms);
  namespaces.pull_the_cable(1);
  const Finished second = one.finish(40s);
  EXPECT_NE(second.err.find("the rendezvous at"), std::string::npos) << second.err;
}

/// Of three machines the second is lost: the others go on as a run of two ranks that somebody starts by hand from the
/// newest checkpoint.
TEST_F(Machines, ALostHostIsLeftOutAndTheRestGoesOnFromTheNewestCheckpoint) {
  const Namespaces namespaces(3);
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  const std::vector<std::string> task = {"--save_steps", "20", "--resume_from_checkpoint"};
  const auto command = [&](std::vector<std::string> flags, const std::string& output, int ranks,
                           const std::string& from) {
    auto all = launch(flags, output, "100000", ranks);
    all.insert(all.end(), task.begin(), task.end());
    all.push_back(from);
    return all;
  };
  const auto on_machine = [&](int k) {
    auto flags = machine(k, Namespaces::address(0), port(9), 3);
    flags.insert(flags.end(), {"--max_restarts", "1"});
    return in_namespace(k, command(flags, "/three", 3, "auto"));
  };
  const test::Variables lost_soon = {{"TESSERA_KEEPALIVE_S", "2"}};
  Subprocess zero(on_machine(0), lost_soon), one(on_machine(1), lost_soon), two(on_machine(2), lost_soon);
  ASSERT_TRUE(wait_until([&] { return fs::exists(folder_ + "/three/checkpoint-20"); }));
  namespaces.pull_the_cable(1);
  one.signal(SIGKILL);
  const std::string found = "Continuing training from checkpoint '", step_is = "Continuing from global step ";
  ASSERT_TRUE(zero.wait_for_output(step_is, 60s)) << zero.finish(1s).err;
  const std::size_t rows = logged("/three").size();
  ASSERT_TRUE(wait_until([&] { return logged("/three").size() >= rows + 2; }));
  zero.signal(SIGINT);
  two.signal(SIGINT);
  const Finished first = zero.finish(60s);
  EXPECT_EQ(two.finish(60s).exit_code, 130);
  EXPECT_EQ(first.exit_code, 130) << first.err;
  EXPECT_NE(first.err.find("starting all ranks again (1 of 1): 2 on machines 0, 2"), std::string::npos) << first.err;
  EXPECT_NE(first.out.find("beginning anew"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("Ranks = 2 (hosts)"), std::string::npos) << first.out;

  const std::size_t name = first.out.find(found) + found.size();
  const int step = std::atoi(first.out.c_str() + first.out.find(step_is) + step_is.size());
  const std::string checkpoint = first.out.substr(name, first.out.find('\'', name) - name);
  Subprocess by_hand(command({}, "/hand", 2, checkpoint));
  ASSERT_TRUE(wait_until([&] { return logged("/hand").size() >= 2; }));
  by_hand.signal(SIGINT);
  const Finished hand = by_hand.finish(60s);
  const auto expected = logged("/hand");
  std::map<int, double> went_on;  // of a step that both runs took the later
  for (const auto& [s, loss] : logged("/three")) went_on[s] = loss;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(expected[i].first, step + 1 + static_cast<int>(i)) << hand.err;
    EXPECT_EQ(went_on.at(expected[i].first), expected[i].second) << expected[i].first;
  }
}

/// Eight machines with four ranks each, many more than there are cores; one machine is lost.
TEST_F(Machines, ThirtyTwoRanksOnEightHostsLoseAHostAndTheRestGoesOn) {
  constexpr int kHosts = 8, kLost = 3;
  const Namespaces namespaces(kHosts);
  if (!namespaces.made()) GTEST_SKIP() << Namespaces::kSkipped;
  std::vector<std::unique_ptr<Subprocess>> machines;
  for (int k = 0; k < kHosts; ++k) {
    auto flags = machine(k, Namespaces::address(0), port(11), kHosts);
    flags.insert(flags.end(), {"--max_restarts", "1"});
    auto command = launch(flags, "/many", "100000", 4 * kHosts);
    command.insert(command.end(), {"--save_steps", "2", "--resume_from_checkpoint", "auto"});
    machines.push_back(
        std::make_unique<Subprocess>(in_namespace(k, command), test::Variables{{"OMP_NUM_THREADS", "1"}}));
  }
  auto& zero = *machines[0];
  ASSERT_TRUE(zero.wait_for_output("Ranks = 32 (hosts)", 60s));
  ASSERT_TRUE(wait_until([&] { return fs::exists(folder_ + "/many/checkpoint-2"); }));
  namespaces.pull_the_cable(kLost);
  machines[kLost]->signal(SIGKILL);
  ASSERT_TRUE(zero.wait_for_output("Continuing from global step ", 60s));
  ASSERT_TRUE(zero.wait_for_output("Ranks = 28 (hosts)", 1s));
  const std::size_t rows = logged("/many").size();
  ASSERT_TRUE(wait_until([&] { return logged("/many").size() >= rows + 2; }));
  for (int k = 0; k < kHosts; ++k)
    if (k != kLost) machines[static_cast<std::size_t>(k)]->signal(SIGINT);
  for (int k = 0; k < kHosts; ++k) {
    if (k == kLost) continue;
    const Finished ended = machines[static_cast<std::size_t>(k)]->finish(60s);
    EXPECT_EQ(ended.exit_code, 130) << k << ended.err;
    if (k > 0) continue;
    const std::string goes_on = "starting all ranks again (1 of 1): 28 on machines 0, 1, 2, 4, 5, 6, 7";
    EXPECT_NE(ended.err.find(goes_on), std::string::npos) << ended.err;
  }
  const auto all = logged("/many");
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i].first, all[i - 1].first + 1) << "no step is left out";
}

TEST_F(Machines, TheEndOfOneLaunchEndsTheOther) {
  Subprocess zero(launch(machine(0, "127.0.0.1", port(3)), "/two", "100000"));
  Subprocess one(launch(machine(1, "127.0.0.1", port(3)), "/two", "100000"));
  ASSERT_TRUE(zero.wait_for_output("Running training", 60s));
  one.signal(SIGKILL);
  const Finished first = zero.finish(30s), second = one.finish(30s);
  EXPECT_EQ(second.exit_code, 137);
  EXPECT_NE(first.exit_code, 0);
  EXPECT_NE(first.exit_code, 137) << "it did not notice";
  EXPECT_NE(first.err.find("has ended (it was killed or it crashed)"), std::string::npos) << first.err;
}

}  // namespace
}  // namespace tessera
