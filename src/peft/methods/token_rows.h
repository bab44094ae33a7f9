#pragma once
// Chosen rows of a table that train while the table is frozen: what trainable tokens are, alone and inside LoRA.
#include <cstdint>
#include <string>
#include <vector>

#include "peft/slots.h"
#include "tessera/nn/adapter.h"

namespace tessera::peft {

/// Where the rows stand in the module tree: PEFT wraps them once more inside LoRA.
enum class TokenRowsPlace { kAlone, kInsideLora };

/// Looked-up rows of these ids, and those of a tied head, are the adapter's [ids, dim].
class TokenRows : public nn::EmbeddingAdapter {
 public:
  TokenRows(const nn::Embedding& layer, const std::vector<std::int64_t>& ids, TokenRowsPlace place);
  std::string class_name() const override { return "trainable_tokens.TrainableTokensLayer"; }
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;
  at::Tensor head_weight(const nn::Embedding& layer) override;

  /// The parameter's name below the table.
  static std::string name(TokenRowsPlace place);

 private:
  at::Tensor ids_;     // [n] int64
  at::Tensor row_of_;  // [num] int64, -1: none
  at::Tensor rows_;    // [n, dim]
};

/// Puts them on a table. ConfigError names `key`: no ids, ids outside the table or twice, a layer that is no table.
void attach_token_rows(const Slot& slot, const std::vector<std::int64_t>& ids, TokenRowsPlace place,
                       const std::string& key);

/// The table with the rows in it.
at::Tensor with_rows(const at::Tensor& table, const std::vector<std::int64_t>& ids, const at::Tensor& rows);

/// Rows of the table, as first values.
at::Tensor rows_of(const at::Tensor& table, const std::vector<std::int64_t>& ids);

}  // namespace tessera::peft
