#pragma once
// Rows of the sequence-to-sequence job: a text and what should be written for it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/split_files.h"

namespace tessera::data {

struct TextPair {
  std::string source, target;              // UTF-8
  std::string file;                        // where the row came from, for messages
  std::int64_t line = 0;                   // 1-based; in a .json file the number of the row
  std::optional<std::string> second = {};  // a text that is read together with source
};

enum class FileEncoding {
  kAuto,  // .txt: UTF-8 when the whole file is valid UTF-8, else ISO-8859-1; everything else: UTF-8
  kUtf8,
  kLatin1,
};

struct ReadOptions {
  /// Empty: the first of sentence, text, source, input, document / text_label, label, target, output, summary that the
  /// first row of a file has.
  std::string text_column, label_column;
  /// Columns whose texts follow that of text_column, each behind the delimiter.
  std::vector<std::string> more_text_columns = {};
  std::string text_delimiter = " ";
  /// Column of TextPair::second; empty: none, or, where takes_pairs and no text_column is named, sentence2 beside
  /// sentence1.
  std::string pair_column = {};
  bool takes_pairs = false;
  /// A column of objects, whose keys the two columns are; empty: they are columns of the file.
  std::string inside = {};
  /// Integer label i becomes label_names[i]; empty: integers stay as they are ("2").
  std::vector<std::string> label_names;
  FileEncoding encoding = FileEncoding::kAuto;
  /// A label may be a list: its texts, each with a line feed behind it. Otherwise DataError.
  bool takes_lists = false;
  /// Texts alone: there need be no column of labels, and TextPair::target stays empty.
  bool without_labels = false;
};

/// All rows of one file: FinancialPhraseBank's .txt ("sentence@label", the last @ splits), or any other of open_rows().
/// DataError names file and line: no @, undecodable bytes, bad JSON or CSV, a missing column (lists the columns there
/// are), a column without a value, a label outside label_names, no rows at all.
std::vector<TextPair> read_pairs(const std::string& file, const ReadOptions& options);

/// For the log: which columns of the file are read and which are not. Empty where nothing was to choose: both are
/// named, or the file has no others.
std::string columns_note(const std::string& file, const ReadOptions& options);

/// Leaves only so many rows; 0: all.
void keep_first(std::vector<TextPair>& rows, std::int64_t count);

struct PairSplits {
  std::vector<TextPair> train, validation;
  std::vector<std::string> notes;  // which files were used and how; for the log
};

struct SplitOptions {
  double validation_fraction = 0.1;
  std::uint64_t seed = 42;
  std::string validation_file = {};  // instead of the data set's own; empty: that, or rows that are held out
  std::string validation_splits = "validation,eval";  // what the data set's own are called: the first that is there
};

/// Of a folder or a name on the Hub the files of the splits train and validation_splits, see find_split_files();
/// but of FinancialPhraseBank's Sentences_AllAgree.txt, else 75Agree, 66Agree, 50Agree alone. Beside a file that is
/// named *_train its *_validation (also _valid, _val, _dev, _eval) is looked for. Without validation files the rows are
/// split (see split()).
PairSplits read_splits(const DatasetName& dataset, const ReadOptions& read, const SplitOptions& split);

/// The rows of one split of a data set (of "test_matched,test" the first that is there); of a file, which is its first
/// split: train. DataError where there is no such split.
std::vector<TextPair> read_split(const DatasetName& dataset, const std::string& split, const ReadOptions& read);

/// Moves round(fraction * rows) rows, chosen by the seed, into validation (at least one of each when the fraction is >
/// 0 and there are two rows); the order of rows is kept in both. ConfigError when the fraction is not in [0, 1).
PairSplits split(std::vector<TextPair> rows, const SplitOptions& options);

}  // namespace tessera::data
