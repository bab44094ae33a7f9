#pragma once
#include <string>

namespace tessera {

/// True for tensors that published weight files carry without effect: copies of a tied table; a bias table that early
/// T5 files carried by mistake; rotary frequencies and causal masks, which were buffers once. `has_head`: the model has
/// an output head of its own, not tied to its token table.
bool is_ignorable_weight(const std::string& name, bool has_head);

}  // namespace tessera
