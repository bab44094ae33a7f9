#include "checkpoint/checkpoint_saver.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using RecordJson = nlohmann::json;

std::string to_bytes(const std::vector<FileRecord>& records) {
  RecordJson out = RecordJson::array();
  for (const auto& r : records) out.push_back({r.name, r.bytes, r.crc32c});
  return out.dump();
}

void append_records(const std::string& bytes, std::vector<FileRecord>& out) {
  for (const auto& r : RecordJson::parse(bytes))
    out.push_back({r[0].get<std::string>(), r[1].get<std::int64_t>(), r[2].get<std::uint32_t>()});
}

/// Runs `step` on rank 0; a failure is thrown on every rank. Collective.
template <class Step>
void on_rank_zero(comm::Communicator& group, const std::string& path, const Step& step) {
  std::string failure;
  if (group.rank() == 0) {
    try {
      step();
    } catch (const std::exception& e) {
      failure = e.what();
    }
  }
  failure = group.broadcast_object(failure, 0);
  if (!failure.empty()) throw CheckpointError(failure, path);
}

}  // namespace

CheckpointSaver::CheckpointSaver(comm::Communicator& group, std::string output_dir, std::int64_t limit,
                                 SaveQueue::Mode mode)
    : group_(group), output_dir_(std::move(output_dir)), limit_(limit), queue_(mode) {
  on_rank_zero(group_, output_dir_, [&] { lock_ = std::make_unique<RunLock>(output_dir_); });
}

std::string CheckpointSaver::begin(std::int64_t step, std::string keep) {
  finish();
  const std::string folder = partial_folder(output_dir_, step);
  on_rank_zero(group_, folder, [&] {
    remove_partial_folders(output_dir_);
    ensure_writable_folder(folder);
  });
  step_ = step;
  keep_ = std::move(keep);
  pending_ = true;
  return folder;
}

void CheckpointSaver::end() {
  if (!queue_.in_background()) finish();
}

void CheckpointSaver::poll() {
  if (!pending_) return;
  at::Tensor idle = at::full({1}, queue_.idle() ? 1 : 0, at::kInt);
  group_.all_reduce(idle, comm::ReduceOp::kMin)->wait();
  if (idle.item<int>() == 1) finish();
}

void CheckpointSaver::finish() {
  if (!pending_) return;
  pending_ = false;
  queue_.wait_idle();
  commit();
}

void CheckpointSaver::commit() {
  const auto all = group_.all_gather_objects(to_bytes(queue_.take_records()));
  std::string failure = queue_.take_failure();
  const auto discard = [&] {
    std::error_code code;
    if (group_.rank() == 0) std::filesystem::remove_all(partial_folder(output_dir_, step_), code);
  };
  try {
    throw_failure_of_any(group_, failure, output_dir_);
    on_rank_zero(group_, output_dir_, [&] {
      std::vector<FileRecord> known;
      for (const auto& bytes : all) append_records(bytes, known);
      commit_checkpoint(output_dir_, step_, group_.size(), known);
      if (limit_ > 0) rotate_checkpoints(output_dir_, limit_, keep_);
    });
  } catch (const CheckpointError& e) {
    discard();
    throw CheckpointError(
        fmt::format("checkpoint-{} was not written; older checkpoints are as they were. {}", step_, e.what()),
        output_dir_);
  }
}

}  // namespace tessera::checkpoint
