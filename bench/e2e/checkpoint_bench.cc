// Saves and loads a sharded model, and saves it beside training steps: the same job as bench/peers/checkpoint.py.
//
//   tessera launch --num_processes 2 --use_cpu build/release/bench/checkpoint_bench --model FOLDER --folder FOLDER
//       --kind full|state|background --out metrics.jsonl
//
// full: the weights as one safetensors file. state: weights and optimizer, a file for each rank, with manifest;
// loading compares every checksum, as resuming does. background: a whole checkpoint (state, and the weights once
// more as model.safetensors) while steps go on. Everything that is saved is flushed to the disk (fsync) before the
// clock stops. Rank 0 appends one JSON line for each repetition; seconds are those of the slowest rank, peak_rise_mib
// what each rank's resident memory rose above its level before.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/autograd.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/pretrained.h"
#include "checkpoint/restore.h"
#include "checkpoint/training_state.h"
#include "config/options.h"
#include "report/memory.h"
#include "report/metrics.h"
#include "tasks/assemble.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/allocator.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct Options {
  std::string model, folder, kind = "state", out;
  std::int64_t repeat = 3, batch = 2, length = 256;
};

bool parse(Options& o, const std::vector<std::string>& args) {
  config::OptionTable table("checkpoint_bench", "times saving and loading");
  table.add(&o.model, {"--model"}, "model folder").required();
  table.add(&o.folder, {"--folder"}, "where to write").required();
  table.add(&o.kind, {"--kind"}, "what to save").choices({"full", "state", "background"});
  table.add(&o.repeat, {"--repeat"}, "repetitions");
  table.add(&o.batch, {"--batch"}, "rows of a rank in one step, for `background`");
  table.add(&o.length, {"--length"}, "tokens of a row");
  table.add(&o.out, {"--out"}, "JSON Lines file to append to").required();
  if (table.parse(args) == config::ParseResult::kRun) return true;
  std::cout << table.help();
  return false;
}

double seconds_from(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The peak counts from here on.
double resident_mib() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return static_cast<double>(report::process_memory().resident_bytes) / (1 << 20);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Loading starts as after a restart of the machine: the page cache holds nothing of the files.
void forget_cached(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

/// Reading past the page cache leaves nothing in it. By plain reads, as the peer's loads leave its files there: what
/// the kernel reads ahead by itself it keeps in larger pieces than what it is told of (POSIX_FADV_WILLNEED).
void fill_cache(const std::string& folder) {
  std::vector<char> buffer(std::size_t{1} << 18);
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()))) continue;
  }
}

std::int64_t bytes_below(const std::string& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
  return bytes;
}

class Run {
 public:
  Run(const Options& options, std::shared_ptr<comm::Communicator> group)
      : o_(options), group_(std::move(group)), file_(group_->rank() == 0 ? o_.out : "") {
    tasks::AssembleOptions a;
    a.model_folder = o_.model;
    a.fsdp.wrap = nullptr;
    model_ = tasks::assemble(a, group_);
    optimizer_ = std::make_unique<optim::AdamW>(model_.sharded->parameters(), fsdp::parameter_slices(*model_.sharded),
                                                optim::AdamWOptions{});
    for (auto p : model_.sharded->parameters()) p.mutable_grad() = at::full_like(p, 1e-3);
    optimizer_->step();  // so that there is a state
    optimizer_->zero_grad();
    model_.sharded->mark_updated();
  }

  void run() {
    for (std::int64_t i = 0; i < o_.repeat; ++i) {
      if (group_->rank() == 0) fs::remove_all(o_.folder);
      group_->barrier();
      if (o_.kind == "full") full();
      if (o_.kind == "state") state();
    }
    if (o_.kind == "background") background();
    group_->barrier();
    if (group_->rank() == 0) fs::remove_all(o_.folder);
  }

 private:
  template <class Work>
  void measure(const char* what, const Work& work) {
    const double before = resident_mib();
    group_->barrier();
    const auto begin = Clock::now();
    work();
    const double mine = seconds_from(begin);
    const double peak = static_cast<double>(report::process_memory().peak_resident_bytes) / (1 << 20);
    double slowest = 0;
    Json rises = Json::array();
    for (const auto& text : group_->all_gather_objects(Json{{"s", mine}, {"rise", peak - before}}.dump())) {
      const Json one = Json::parse(text);
      slowest = std::max(slowest, one["s"].get<double>());
      rises.push_back(std::max(0.0, one["rise"].get<double>()));
    }
    file_.write({{"kind", o_.kind},
                 {"what", what},
                 {"seconds", slowest},
                 {"bytes", bytes_below(o_.folder)},
                 {"peak_rise_mib", rises}});
  }

  void full() {
    const std::string file = o_.folder + "/model.safetensors";
    measure("save", [&] { checkpoint::save_weights(*model_.sharded, file); });
    loaded([&] { checkpoint::load_weights(*model_.sharded, file); });
  }

  void state() {
    measure("save", [&] {
      checkpoint::CheckpointSaver saver(*group_, o_.folder, 0, checkpoint::SaveQueue::Mode::kNow);
      push(saver);
      saver.end();
    });
    const std::string folder = o_.folder + "/checkpoint-1";
    loaded([&] {
      const std::string obstacle = checkpoint::restore_checkpoint(*model_.sharded, optimizer_.get(), folder);
      if (!obstacle.empty()) throw CheckpointError(obstacle, folder);
    });
  }

  void push(checkpoint::CheckpointSaver& saver) {
    const std::string folder = saver.begin(1, "");
    checkpoint::push_training_state(*model_.sharded, *optimizer_, checkpoint::training_state_folder(folder),
                                    saver.queue());
  }

  /// Loads over zeros, and compares: with nothing in the page cache, then with all.
  template <class Load>
  void loaded(const Load& load) {
    std::vector<at::Tensor> expected;
    for (const auto& p : model_.sharded->parameters()) expected.push_back(p.detach().clone());
    for (const char* what : {"load_cold", "load"}) {
      for (const auto& p : model_.sharded->parameters()) p.detach().zero_();
      if (group_->rank() == 0) (what == std::string("load_cold") ? forget_cached : fill_cache)(o_.folder);
      measure(what, load);
      std::size_t i = 0;
      for (const auto& p : model_.sharded->parameters())
        if (!p.equal(expected[i++])) throw Error("what was loaded differs from what was saved");
    }
  }

  double step(checkpoint::CheckpointSaver* saver, double& held) {
    const auto begin = Clock::now();
    models::ModelInput in;
    in.input_ids = in.labels = at::randint(3, 1000, {o_.batch, o_.length}, at::kLong);
    in.want_logits = false;
    torch::autograd::backward({(*model_.model)(in).loss}, {});
    model_.sharded->clip_grad_norm(1.0);  // ranks in step, as in a Trainer
    const auto here = Clock::now();
    if (saver) saver->before_update();
    held += seconds_from(here);
    optimizer_->step();
    optimizer_->zero_grad();
    const auto there = Clock::now();
    if (saver) saver->poll();
    held += seconds_from(there);
    return seconds_from(begin);
  }

  /// What a save holds back the training thread, and what it lengthens the steps that run beside it.
  void background() {
    model_.model->train();
    double ignored = 0;
    for (int i = 0; i < 3; ++i) step(nullptr, ignored);
    for (std::int64_t i = 0; i < o_.repeat; ++i) {
      if (group_->rank() == 0) fs::remove_all(o_.folder);
      group_->barrier();
      checkpoint::CheckpointSaver saver(*group_, o_.folder, 0, checkpoint::SaveQueue::Mode::kBackground);
      std::vector<double> alone, beside;
      for (int n = 0; n < 5; ++n) alone.push_back(step(nullptr, ignored));
      const auto begin = Clock::now();
      push(saver);
      checkpoint::save_pretrained(*model_.sharded, {.files = {.model = o_.model, .tokenizer = o_.model}},
                                  checkpoint::partial_folder(o_.folder, 1), &saver.queue());
      saver.end();
      double held = seconds_from(begin);
      const auto written = [&] {  // as rank 0 sees it
        return !group_->broadcast_object(fs::exists(o_.folder + "/checkpoint-1") ? "yes" : "", 0).empty();
      };
      while (!written()) beside.push_back(step(&saver, held));
      const double writing = seconds_from(begin);
      double worst = 0;
      for (const auto& text : group_->all_gather_objects(Json(held).dump())) worst = std::max(worst, std::stod(text));
      file_.write({{"kind", o_.kind},
                   {"what", "save"},
                   {"seconds", writing},
                   {"bytes", bytes_below(o_.folder)},
                   {"held_seconds", worst},
                   {"step_seconds_alone", median(alone)},
                   {"step_seconds_beside", beside}});
    }
  }

  const Options& o_;
  std::shared_ptr<comm::Communicator> group_;
  report::MetricsFile file_;
  tasks::Assembled model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

int run(const std::vector<std::string>& args) {
  Options options;
  if (!parse(options, args)) return 0;
  tensor::use_step_allocator();
  auto group = comm::connect();
  Run(options, group).run();
  group->barrier();
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  try {
    return tessera::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::cerr << "checkpoint_bench: " << e.what() << "\n";
    return 1;
  }
}
