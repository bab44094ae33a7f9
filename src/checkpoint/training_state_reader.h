#pragma once
// What a rank takes out of a training state, and where it goes. Reading at another number of ranks is interval
// arithmetic over (name, offset, length).
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/file_reads.h"
#include "tensor/staging.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

class TrainingStateReader {
 public:
  /// Collective. Reads headers only. optimizer: null takes the parameters only. CheckpointError or DataError names the
  /// file, or the parameter of which a part is missing.
  TrainingStateReader(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer, const std::string& folder);

  /// By file and offset. What they fill, finish() makes count.
  const std::vector<io::FileRead>& reads() const { return reads_; }
  /// When all reads are done: the model's other copies and buffers, the optimizer's number of steps, this rank's random
  /// numbers.
  void finish();

 private:
  /// As many as wrote it: then each goes on with its random numbers.
  bool same_ranks() const;

  fsdp::FullyShardedDataParallel& model_;
  optim::Optimizer* optimizer_;
  nlohmann::json state_;
  /// What was read of a buffer; it keeps its dtype and strides.
  struct ReadBuffer {
    at::Tensor buffer, values;
  };
  std::vector<ReadBuffer> buffers_;
  std::map<std::string, at::Tensor> generators_;  // of this rank, by device; for reads_ to fill
  tensor::Staging staging_;
  std::vector<io::FileRead> reads_;
};

}  // namespace tessera::checkpoint
