#pragma once
// Element-wise reductions over several inputs. Always in the order of the inputs; float, bfloat16 and float16
// accumulate in fp32, double in fp64, integers in themselves (they wrap). The same inputs give the same bits on every
// rank of a host.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"

namespace tessera::comm {

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double scale = 1.0;
  bool accumulate = false;
  /// What the inputs are added to: the unscaled sum of earlier inputs, in accumulation_type(); null: nothing.
  const void* before = nullptr;
};

/// True when reduce_into() can read `in` and write `out`: floating to floating, or an integer type to itself.
bool can_reduce(c10::ScalarType in, c10::ScalarType out);

/// What sums of this dtype are kept in.
c10::ScalarType accumulation_type(c10::ScalarType t);

/// out[i] = scale * (inputs[0][i] op inputs[1][i] op ...), added to out[i] when accumulating; scale and accumulate need
/// floating types, unless they are 1 and false. `out` may be one of the inputs, not overlap them otherwise. NaN wins
/// over kMax and kMin.
void reduce_into(void* out, c10::ScalarType out_type, std::span<const void* const> inputs, c10::ScalarType in_type,
                 std::int64_t n, const Reduction& reduction);

}  // namespace tessera::comm
