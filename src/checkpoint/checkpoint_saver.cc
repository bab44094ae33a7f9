#include "checkpoint/checkpoint_saver.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/folder_names.h"
#include "base/plain_reason.h"
#include "checkpoint/checkpoint_folder.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using RecordJson = nlohmann::json;

/// Into pages that the system has to clear first, beside ranks that compute (2 ranks on 2 cores).
constexpr double kCopiedBytesPerSecond = 1e9;

std::string to_bytes(const std::vector<FileRecord>& records) {
  RecordJson out = RecordJson::array();
  for (const auto& r : records) out.push_back({r.name, r.bytes, r.crc32c, r.offset});
  const auto bytes = RecordJson::to_msgpack(out);  // unlike JSON's text it keeps names that are not UTF-8
  return {bytes.begin(), bytes.end()};
}

void append_records(const std::string& bytes, std::vector<FileRecord>& out) {
  for (const auto& r : RecordJson::from_msgpack(bytes))
    out.push_back(
        {r[0].get<std::string>(), r[1].get<std::int64_t>(), r[2].get<std::uint32_t>(), r[3].get<std::int64_t>()});
}

/// Runs `step` on rank 0; a failure is thrown on every rank. Collective.
template <class Step>
void on_rank_zero(comm::Communicator& group, const std::string& path, const Step& step) {
  std::string failure;
  if (group.rank() == 0) {
    try {
      step();
    } catch (const std::exception& e) {
      failure = plain_reason(e);
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

std::string CheckpointSaver::begin(std::int64_t step, std::string keep, std::int64_t room) {
  finish();
  const std::string folder = partial_folder(output_dir_, step);
  on_rank_zero(group_, folder, [&] {
    lock_->check();  // a folder made anew would be another one
    remove_partial_folders(output_dir_);
    if (std::filesystem::exists(folder))  // its files would be taken for those of this save
      throw CheckpointError("'" + folder + "' of an earlier save cannot be removed; remove it yourself", folder);
    ensure_writable_folder(folder);
  });
  step_ = step;
  keep_ = std::move(keep);
  stage_ = Stage::kWriting;
  queue_.allow_copies(/*snapshots=*/copies_pay_ ? room : 0, /*moments=*/room);
  update_due_.reset();
  queue_.hold();
  return folder;
}

void CheckpointSaver::end() {
  queue_.release();
  if (!queue_.in_background()) finish();
}

void CheckpointSaver::before_update() {
  if (stage_ == Stage::kWriting && !update_due_) update_due_ = std::chrono::steady_clock::now();
  queue_.wait_copied();
}

void CheckpointSaver::poll() {
  if (stage_ == Stage::kNothing) return;
  at::Tensor idle = at::full({1}, queue_.idle() ? 1 : 0, at::kInt);
  group_.all_reduce(idle, comm::ReduceOp::kMin)->wait();
  if (idle.item<int>() == 1) advance();
}

void CheckpointSaver::finish() {
  queue_.release();
  while (stage_ != Stage::kNothing) {
    queue_.wait_idle();
    advance();
  }
}

bool CheckpointSaver::has_lost_files() const {
  return (lock_ && lock_->is_lost()) ||
         std::any_of(watched_.begin(), watched_.end(), [](const HeldName& file) { return !file.loss().empty(); });
}

void CheckpointSaver::check_files() {
  on_rank_zero(group_, output_dir_, [this] {
    lock_->check();
    for (const HeldName& file : watched_) file.check();
  });
}

void CheckpointSaver::advance() {
  if (stage_ == Stage::kWriting)
    or_discard([this] { start_commit(); });
  else
    or_discard([this] { finish_commit(); });
}

void CheckpointSaver::start_commit() {
  const std::chrono::duration<double> longer = queue_.last_job_end() - update_due_.value_or(queue_.last_job_end());
  copies_pay_ = longer.count() * kCopiedBytesPerSecond > static_cast<double>(queue_.given_bytes());
  const auto all = group_.all_gather_objects(to_bytes(queue_.take_records()));
  throw_failure_of_any(group_, queue_.take_failure(), output_dir_);
  stage_ = Stage::kCommitting;
  if (group_.rank() != 0) return;
  queue_.push([this, all] {
    std::vector<FileRecord> known;
    for (const auto& bytes : all) append_records(bytes, known);
    lock_->check();
    const std::string path = commit_checkpoint(output_dir_, step_, group_.size(), known);
    if (limit_ > 0) rotate_checkpoints(output_dir_, limit_, {path, keep_});
  });
}

void CheckpointSaver::finish_commit() {
  throw_failure_of_any(group_, queue_.take_failure(), output_dir_);
  stage_ = Stage::kNothing;
  if (group_.rank() == 0 && saved_) saved_(fmt::format("{}/{}{}", output_dir_, kCheckpointPrefix, step_));
}

template <class Step>
void CheckpointSaver::or_discard(const Step& step) {
  try {
    step();
  } catch (const CheckpointError& e) {
    stage_ = Stage::kNothing;
    std::error_code code;
    if (group_.rank() == 0) std::filesystem::remove_all(partial_folder(output_dir_, step_), code);
    throw CheckpointError(
        fmt::format("checkpoint-{} was not written; older checkpoints are as they were. {}", step_, e.what()),
        output_dir_);
  }
}

}  // namespace tessera::checkpoint
