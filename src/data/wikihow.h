#pragma once
// WikiHow (Koupaee & Wang 2018) as the `wikihow` data set of Hugging Face reads its two CSV files, and the cleaning of
// PyTorch's FSDP tutorial.
#include <cstdint>
#include <string>
#include <vector>

#include "data/text_pair.h"

namespace tessera::data {

enum class WikiHowPart {
  kAll,  // wikihowAll.csv: headline,title,text; a row is an article
  kSep,  // wikihowSep.csv: overview,headline,text,sectionLabel,title; a row is a paragraph
};

struct WikiHowOptions {
  std::string data_dir = "data/";  // the folder of the CSV file, or the file
  WikiHowPart part = WikiHowPart::kAll;
  std::int64_t train_rows = 1500, validation_rows = 300;  // kept, from the start of each split; 0: all
};

struct WikiHow {
  std::vector<TextPair> train, validation;                          // text -> headline, not yet through clean_wikihow()
  std::int64_t columns = 0;                                         // of the file
  std::int64_t train_size = 0, validation_size = 0, test_size = 0;  // rows of the whole splits
  std::vector<std::string> notes;
};

/// One pass over the mapped file, which may be larger than memory. A row is kept when its summary is shorter than 0.75
/// of its text (in characters); ".," becomes "." in summaries and dots, line ends and a comma ".\n" in texts. Rows with
/// too few or too many fields are left out and counted in the notes.
/// Splits are lists of titles beside the file, as upstream publishes them: all_train.txt, all_val.txt, all_test.txt
/// (sep_...). Without lists the first rows train and the next ones validate.
/// DataError names the file when it is missing (and what lies there), lacks a column, holds bytes that are not UTF-8
/// (with the line), or gives no row to train on.
WikiHow read_wikihow(const WikiHowOptions& options);

/// Keeps or drops (both become empty) a pair, and tidies its commas.
void tidy_wikihow(std::string& headline, std::string& text);

/// Without "Example of text:", "Example of Summary:", line ends, double back quotes and double quotes.
std::string clean_wikihow(std::string text);

}  // namespace tessera::data
