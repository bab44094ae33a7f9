#pragma once
// Where rows come from: one data set, or several one behind the other, as TRL's DatasetMixtureConfig has them, or the
// alignment handbook's.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

/// An entry of TRL's `datasets`, or of those of the handbook's `dataset_mixture`.
struct MixturePart {
  std::string path;                     // a file, a folder or a name on the Hub; or json, csv, parquet, text, arrow,
                                        // whose files data_files names
  std::string name;                     // one of several configurations in it
  std::string data_dir;                 // the folder in it that counts
  std::vector<std::string> data_files;  // or these files of it, by patterns: with * and ** as the library `datasets`
                                        // has them; beside a format in `path`, the shell's (there ** is *)
  std::string split = "train";          // or a slice of its rows (split_slice.h)
  std::vector<std::string> columns;     // the others are left out; empty: all
  std::optional<double> fraction;       // share of the mixture; of all parts or of none
  std::optional<double> weight;         // the handbook's: share of its own rows, drawn by the seed
};

struct Mixture {
  std::vector<MixturePart> parts;         // empty: there is none
  std::optional<double> test_split_size;  // rows that are held out to evaluate on: below 1 a share, else a number
  std::int64_t seed = 42;                 // which ones
  std::string flag = "--datasets";        // that it comes from
  bool as_numpy_draws = false;            // the handbook's: rows are drawn as the library `datasets` draws them
};

/// From a list of JSON: TRL's. ConfigError names the entry and the key.
std::vector<MixturePart> parse_mixture(const std::string& json);
/// From an object of JSON: the handbook's, whose rows are those that it takes, in the order of the files. ConfigError.
Mixture parse_handbook_mixture(const std::string& json);

struct DatasetOptions {
  std::string dataset_name;           // a file, a folder with files for each split, or org/name on the Hub
  std::string dataset_config;         // the folder of one of several configurations in it; empty: the whole
  std::string splits = "train,test";  // the first is trained on, the second evaluated on; also slices (split_slice.h)
  Mixture mixture;                    // instead of these

  /// What messages call it.
  std::string called() const { return mixture.parts.empty() ? "'" + dataset_name + "'" : mixture.flag; }
  /// How a second split comes to be, for messages.
  std::string remedy() const {
    if (!mixture.parts.empty()) return "(test_split_size holds rows out): add one";
    return "(--splits '" + splits + "'): add one, hold rows out (--datasets '[{\"path\": \"" + dataset_name +
           "\"}]' --test_split_size 0.1 in place of --dataset_name)";
  }
};

}  // namespace tessera::data
