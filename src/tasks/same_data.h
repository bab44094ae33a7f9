#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/row_mark.h"
#include "tessera/comm/communicator.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

/// The rows of a split, as they will be trained or evaluated on.
struct PreparedRows {
  std::string use;  // "train", "evaluate", "predict"
  std::int64_t count = 0;
  std::function<data::RowMark(std::int64_t row)> mark;
};

/// Of a SftDataset and its like, which outlives this; none where it is null.
template <class Rows>
std::vector<PreparedRows> prepared_rows(const Rows* train, const Rows* eval, const Rows* predict = nullptr) {
  std::vector<PreparedRows> out;
  const auto add = [&](const char* use, const Rows* rows) {
    out.push_back({use, rows ? rows->size() : 0, [rows](std::int64_t i) { return rows->mark(i); }});
  };
  add("train", train);
  add("evaluate", eval);
  if (predict) add("predict", predict);
  return out;
}

/// Collective, before there is a model: all ranks have prepared the same rows, in the same order, and draw them by the
/// same seeds. DataError on all ranks else, which names the ranks that differ from most, what they have, what the
/// others have, and the first row that differs. Rows of ranks with files of their own would be mixed up silently, or
/// the ranks part some steps later. Reads every row once.
void require_same_data(const std::vector<PreparedRows>& splits, const std::vector<std::int64_t>& seeds,
                       const text::Tokenizer& tokenizer, comm::Communicator& group);

}  // namespace tessera::tasks
