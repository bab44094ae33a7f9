#include "checkpoint/restore.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_text.h"
#include "base/plain_reason.h"
#include "checkpoint/manifest.h"
#include "checkpoint/read_shares.h"
#include "checkpoint/save_queue.h"
#include "checkpoint/training_state.h"
#include "checkpoint/training_state_reader.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

/// The first rank's that has one.
std::string word_of_any(comm::Communicator& group, const std::string& mine) {
  for (auto& word : group.all_gather_objects(mine))
    if (!word.empty()) return word;
  return {};
}

/// The place in the manifest of a file of the folder.
std::size_t number_of(const Manifest& manifest, const std::string& folder, const std::string& path) {
  const auto found = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const FileRecord& record) { return folder + "/" + record.name == path; });
  if (found == manifest.files.end())
    throw CheckpointError("'" + path + "' is not in the manifest of '" + folder + "'; choose another checkpoint",
                          folder);
  return static_cast<std::size_t>(found - manifest.files.begin());
}

/// What one rank reads of a checkpoint: its values, and its share of the rest.
class ComparedReads {
 public:
  /// Collective. wanted: by file and offset.
  ComparedReads(comm::Communicator& group, const std::string& checkpoint, Manifest manifest,
                const std::vector<io::FileRead>& wanted)
      : group_(group), folder_(checkpoint), manifest_(std::move(manifest)), files_(manifest_.files.size()) {
    for (const auto& read : wanted) {
      const std::size_t number = number_of(manifest_, folder_, read.from.file->path());
      files_[number] = read.from.file;
      wanted_[number].push_back(read);
    }
    std::vector<std::uint64_t> sizes;
    for (const auto& file : manifest_.files) sizes.push_back(static_cast<std::uint64_t>(file.bytes));
    shares_ = share_reading(sizes, needed_by_all(), group.rank());
  }

  /// Collective. Reads; what differs from the manifest, in words.
  std::string find_damage() {
    nlohmann::json mine = {{"failure", ""}, {"parts", nlohmann::json::array()}};
    try {
      for (const auto& share : shares_) add(share);
      const auto sums = io::read_files(reads_, summed_.size());
      for (std::size_t i = 0; i < sums.size(); ++i)
        mine["parts"].push_back({summed_[i].file, summed_[i].begin, summed_[i].end, sums[i]});
    } catch (const std::exception& e) {
      mine["failure"] = plain_reason(e);
    }
    std::vector<FileRecord> parts;
    std::string failure;
    const auto text = json_text(mine);
    for (const auto& of_rank : group_.all_gather_objects(text)) {
      const auto one = nlohmann::json::parse(of_rank);
      if (failure.empty()) failure = one["failure"].get<std::string>();
      for (const auto& part : one["parts"]) {
        const auto begin = part[1].get<std::int64_t>(), end = part[2].get<std::int64_t>();
        parts.push_back(
            {manifest_.files.at(part[0].get<std::size_t>()).name, end - begin, part[3].get<std::uint32_t>(), begin});
      }
    }
    return failure.empty() ? checkpoint::find_damage(manifest_, parts) : failure;
  }

 private:
  std::vector<std::vector<ByteRange>> needed_by_all() {
    std::vector<ByteRange> mine;
    for (const auto& [file, reads] : wanted_)
      for (const auto& read : reads) append_range(mine, {file, read.from.offset, read.from.offset + read.from.bytes});
    nlohmann::json text = nlohmann::json::array();
    for (const auto& range : mine) text.push_back({range.file, range.begin, range.end});
    std::vector<std::vector<ByteRange>> all;
    for (const auto& of_rank : group_.all_gather_objects(json_text(text))) {
      auto& ranges = all.emplace_back();
      for (const auto& range : nlohmann::json::parse(of_rank))
        ranges.push_back({range[0].get<std::size_t>(), range[1].get<std::uint64_t>(), range[2].get<std::uint64_t>()});
    }
    return all;
  }

  /// Cuts it where values begin and end.
  void add(const ReadShare& share) {
    auto& file = files_[share.range.file];
    if (!file) file = std::make_shared<io::InputFile>(folder_ + "/" + manifest_.files[share.range.file].name);
    int sum = io::FileRead::kNotSummed;
    if (share.sums) {
      append_range(summed_, share.range);
      sum = static_cast<int>(summed_.size()) - 1;
    }
    const auto& values = wanted_[share.range.file];
    auto value = std::partition_point(values.begin(), values.end(), [&](const io::FileRead& read) {
      return read.from.offset + read.from.bytes <= share.range.begin;
    });
    for (std::uint64_t at = share.range.begin; at < share.range.end;) {
      const bool inside = value != values.end() && value->from.offset <= at;
      const std::uint64_t next = value == values.end() ? share.range.end
                                 : inside              ? value->from.offset + value->from.bytes
                                                       : value->from.offset;
      const std::uint64_t end = std::min(share.range.end, next);
      io::FileRead read{.from = {file, at, end - at, share.alone ? io::Readers::kOne : io::Readers::kSeveral}};
      read.sum = sum;
      if (inside) {
        const auto element_bytes = c10::elementSize(value->stored);
        read.stored = value->stored;
        read.out = value->out.narrow(0, static_cast<std::int64_t>((at - value->from.offset) / element_bytes),
                                     static_cast<std::int64_t>((end - at) / element_bytes));
        if (end == next) ++value;
      }
      reads_.push_back(std::move(read));
      at = end;
    }
  }

  comm::Communicator& group_;
  std::string folder_;
  Manifest manifest_;
  std::vector<std::shared_ptr<const io::InputFile>> files_;  // of the manifest; null: not opened
  std::map<std::size_t, std::vector<io::FileRead>> wanted_;  // by file
  std::vector<ReadShare> shares_;
  std::vector<ByteRange> summed_;
  std::vector<io::FileRead> reads_;
};

}  // namespace

std::string restore_checkpoint(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer,
                               const std::string& checkpoint) {
  comm::Communicator& group = model.group();
  if (auto damage = word_of_any(group, find_damage(checkpoint, Depth::kSizes)); !damage.empty()) return damage;
  const std::string folder = training_state_folder(checkpoint);
  const Manifest manifest = read_manifest(checkpoint);
  std::unique_ptr<TrainingStateReader> values;
  std::vector<io::FileRead> wanted;
  std::string refusal;
  try {
    values = std::make_unique<TrainingStateReader>(model, optimizer, folder);
    for (const auto& read : values->reads()) number_of(manifest, checkpoint, read.from.file->path());
    wanted = values->reads();
  } catch (const std::exception& e) {  // of another model, or damaged: the checksums will tell
    refusal = plain_reason(e);
  }
  if (auto damage = ComparedReads(group, checkpoint, manifest, wanted).find_damage(); !damage.empty()) return damage;
  const bool no_state = group.rank() == 0 && !refusal.empty() && !has_training_state(folder);
  const std::string obstacle =
      word_of_any(group, no_state ? "it holds no training state (written with --save_only_model)" : "");
  if (!obstacle.empty()) return obstacle;
  throw_failure_of_any(group, refusal, checkpoint);
  values->finish();
  return {};
}

}  // namespace tessera::checkpoint
