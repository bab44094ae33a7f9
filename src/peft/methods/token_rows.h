#pragma once
// Chosen rows of a table or of a head that train while the rest of it is frozen: what trainable tokens are, alone and
// inside LoRA.
#include <cstdint>
#include <string>
#include <vector>

#include "peft/slots.h"

namespace tessera::peft {

/// Where the rows stand in the module tree: PEFT wraps them once more inside LoRA.
enum class TokenRowsPlace { kAlone, kInsideLora };

/// The parameter's name below the layer.
std::string token_rows_name(TokenRowsPlace place);

/// Puts them on a table, or on the model's untied head, whose module is called `head`. Looked-up rows of these ids,
/// those of a tied head, and an untied head's scores of them come from the adapter's [ids, dim]. ConfigError names
/// `key`: no ids, ids outside the table or twice, another layer, one that has another adapter, a packed or transposed
/// head.
void attach_token_rows(const Slot& slot, const std::string& head, const std::vector<std::int64_t>& ids,
                       TokenRowsPlace place, const std::string& key);

/// The table with the rows in it.
at::Tensor with_rows(const at::Tensor& table, const std::vector<std::int64_t>& ids, const at::Tensor& rows);

/// Rows of the table, as first values.
at::Tensor rows_of(const at::Tensor& table, const std::vector<std::int64_t>& ids);

}  // namespace tessera::peft
