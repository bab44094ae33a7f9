#pragma once
// Under which names files keep the parameters of a model: files of different ages, of base models alone and of tools
// that drop copies name one tensor differently.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/nn/block.h"

namespace tessera::io {
class TensorSource;
}

namespace tessera::models {

class NamesInFiles {
 public:
  explicit NamesInFiles(const nn::HookedModule& model);
  explicit NamesInFiles(std::vector<std::string> parameters);

  /// The parameter's name in the source: its own, with PEFT's ".base_layer", that of a tensor tied to it, or without
  /// the first part ("transformer."). Empty: the source has none of them.
  std::string in(const io::TensorSource& source, const std::string& parameter) const;
  /// The parameter that a name stands for: itself, or the one that it is tied to ("encoder.embed_tokens.weight" of T5,
  /// "lm_head.weight" where the head is the token table). Empty: none.
  std::string parameter_of(const std::string& name) const;
  /// The names under which a file that is written has the parameter: its own; the bias of a masked model's head whose
  /// matrix is its own also as the matrix's, since transformers 4 reads it from the head and 5 from the matrix.
  std::vector<std::string> to_write(const std::string& parameter) const;
  /// What the names of the model's body begin with, that of its token table: "model.", "bert."; empty: nothing (T5).
  std::string body() const;
  /// Whether the parameter belongs to the model's head: not to what its token table belongs to ("model.", "bert.").
  bool is_of_head(const std::string& parameter) const;
  /// True for the token table and an output head.
  static bool is_table(const std::string& parameter);

 private:
  void add_alias(const std::string& name, const std::string& parameter);
  /// Of a masked model's head whose matrix is its own, not the word table: since transformers 5 that matrix has a bias
  /// of its own, too, and the head's is not added. Empty for other parameters.
  std::string bias_of_matrix(const std::string& parameter) const;

  std::set<std::string> parameters_;
  std::map<std::string, std::string> aliases_;                   // other name -> parameter
  std::map<std::string, std::vector<std::string>> other_names_;  // parameter -> other names
};

}  // namespace tessera::models
