#pragma once
// What a step keeps between forward and backward, from the shapes of a model's matrices: docs/guides/large_models.md,
// "Activations".
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "estimate/adapter_formulas.h"
#include "estimate/model_tensors.h"

namespace tessera::estimate {

/// Of a stack of blocks: elements for each token.
struct ActivationShape {
  std::int64_t hidden = 0;  // of the residual stream
  std::int64_t blocks = 0;
  std::int64_t kept = 0;      // by all blocks, their inputs among it
  std::int64_t largest = 0;   // by one block
  std::int64_t working = 0;   // while one block's backward runs
  std::int64_t widest = 0;    // side of a block's matrix
  std::int64_t attended = 0;  // by all blocks: what attention gives
  std::int64_t classes = 0;   // of the output head
  bool head_trains = false;
  bool packed_head = false;
  bool whole_logits = false;  // of a head with an adapter: the loss does not make them in parts
  // Where attention keeps its probabilities: for each token a number a key and head.
  std::int64_t heads = 0;          // by all blocks
  std::int64_t heads_largest = 0;  // by one block
  std::int64_t heads_working = 0;  // of one attention, which makes the scores of a part of them at a time
  // The same on GPUs, where more of them are kept.
  std::int64_t device_heads = 0, device_heads_largest = 0;
  // For each token that an encoder gave to the stack, by all blocks and by one.
  std::int64_t of_encoder = 0, of_encoder_largest = 0;
  std::int64_t blocks_before = 0;  // the encoder's
  // Tables of positions for scores of distances: their rows, and how many one attention makes.
  std::int64_t positions = 0, position_tables = 0;
};

/// Of the decoder of an encoder-decoder model, of other models' only stack; all zero where there are no blocks.
ActivationShape activation_shape(const std::vector<ModelTensor>& tensors);
/// Of the encoder of an encoder-decoder model; all zero for other models.
ActivationShape encoder_shape(const std::vector<ModelTensor>& tensors);

/// The projections that end a branch and add to the residual stream, by their path.
bool closes_branch(const std::string& path);
bool is_in_attention(const std::string& path);

/// The name of a parameter of a mixture's expert, without the expert's number: equal for all of them. Empty: it is of
/// none.
std::string of_any_expert(const std::string& parameter);

/// Of the experts of a mixture the first so many stand for those that a token is sent to.
bool sees_tokens(const std::string& parameter, std::int64_t experts_per_token);

/// Bytes that a step holds for adapters, beside the layers' own.
struct AdapterActivations {
  std::int64_t kept = 0;     // by all blocks, from forward to backward
  std::int64_t largest = 0;  // by one block
  std::int64_t working = 0;  // more, in the backward of a layer
  // Of what activation_shape() counts nobody keeps these, since no layer reads them in backward: for each token
  // elements of what attention gives and of experts' copies of their tokens.
  std::int64_t unread = 0;            // by all blocks
  std::int64_t largest_unread = 0;    // by one block
  std::int64_t unread_positions = 0;  // blocks where no layer reads them
};
/// Of the adapter of a matrix; all zero: it has none.
using OfAdapter = std::function<AdapterBytes(const ModelTensor&)>;
/// Of the same stacks as activation_shape() and encoder_shape().
AdapterActivations adapter_activations(const std::vector<ModelTensor>& tensors, const OfAdapter& of_adapter);
AdapterActivations encoder_adapter_activations(const std::vector<ModelTensor>& tensors, const OfAdapter& of_adapter);

/// Gradients of a step's earlier batches: each rank keeps whole ones, or they are summed over ranks into its slices.
enum class Accumulation { kNone, kUnsharded, kSharded };
Accumulation accumulation_of(std::int64_t batches_of_a_step, bool sync_each_batch, std::int64_t ranks);

struct BatchShape {
  std::int64_t rows = 1, length = 0;  // of a rank in one forward; 0: activations are not counted
  std::int64_t checkpointing = 0;     // the first of every so many blocks keeps its input alone; 0: none does
  Accumulation accumulation = Accumulation::kNone;
  std::int64_t encoder_length = 0;  // of an encoder's rows, `length` is the decoder's then; 0: the same
  std::int64_t tokens() const { return rows * length; }
  /// Of every row, and of an encoder-decoder model of the encoder's: a prompt's virtual tokens.
  void put_in_front(std::int64_t tokens);
  /// What the encoder is given.
  BatchShape of_encoder() const;
  /// Tokens that a matrix is given.
  std::int64_t tokens_of(const ModelTensor& tensor) const;
};

/// Blocks that are computed again in backward, and whether the last is one of them.
std::int64_t recomputed_blocks(const ActivationShape& shape, const BatchShape& batch);
bool recomputes_last(const ActivationShape& shape, const BatchShape& batch);

struct ActivationBytes {
  std::int64_t kept = 0;     // at the end of forward
  std::int64_t first = 0;    // of them by the first block
  std::int64_t working = 0;  // beside them, in the backward of a block
  std::int64_t loss = 0;     // beside them, while the loss and its gradient are made
};
/// Where the loss needs all logits: their logarithms and two gradients, in float32.
std::int64_t whole_logits_bytes(const ActivationShape& shape, std::int64_t tokens);

/// By a library, which needs little; in tiles (base/gemm_tiles.h): those of packed weights, all in float32, or all of
/// 16 bits, which are widened.
enum class Products { kLibrary, kTilesOfPacked, kTiles, kWidened };
/// compute_bytes: of an element, 4 or 2. adapters: of this batch. products: of blocks; the head's are not packed.
ActivationBytes activation_bytes(const ActivationShape& shape, const AdapterActivations& adapters,
                                 const BatchShape& batch, std::int64_t compute_bytes,
                                 Products products = Products::kLibrary);

}  // namespace tessera::estimate
