#pragma once
// The files and rows of the splits that DatasetOptions describe.
#include <memory>
#include <string>
#include <vector>

#include "data/dataset_options.h"
#include "data/row_source.h"
#include "data/split_files.h"

namespace tessera::data {

class Fingerprint;

/// Which rows and columns of a split's files count, file by file.
struct RowSelection {
  std::vector<std::vector<std::string>> columns;  // empty: all
  std::vector<std::vector<bool>> rows;            // empty: all
};

/// A split of one data set, or of a mixture.
struct Split : SplitFiles {
  std::shared_ptr<const RowSelection> selection = nullptr;  // null: all
};

/// One or two, the first to train on. Of a mixture the parts' rows follow each other. With fractions the first rows of
/// each part are taken, as many as TRL takes: the largest mixture in which no part has more rows than it holds. Rows
/// that test_split_size holds out are drawn by the seed (TRL draws others in each run). Of a mixture of the handbook
/// the rows are those that it draws. DataError, ConfigError as find_split_files(); for fractions of some parts only,
/// and for a size that leaves nothing.
std::vector<Split> find_splits(const DatasetOptions& options);

/// The rows of file number `file` that count.
std::unique_ptr<RowSource> open_rows(const Split& split, std::size_t file, const std::string& text_column);

/// All that says which rows these are.
void add_split(Fingerprint& key, const Split& split);

}  // namespace tessera::data
