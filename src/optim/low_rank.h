#pragma once
// GaLore and APOLLO over sharded matrices. The states of a matrix are those of a small one, its gradient through a low
// rank (optim/projection.h), which every rank has whole: ranks add what their rows give, one all-reduce of a small
// matrix each. An optimizer of its own walks in the small ones; GaLore takes its steps back into the whole, APOLLO only
// how long they are beside the gradient's rows or columns, which are then scaled so.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "optim/projection.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct LowRankOptions {
  ProjectionSettings projection;
  double lr = 1e-3, weight_decay = 0, scale = 1;
  bool decays_first = false;  // before the step: Adafactor
  /// APOLLO's; AdamW's betas, for its bias correction.
  enum class Form { kGaLore, kApolloChannel, kApolloTensor } form = Form::kGaLore;
  double beta1 = 0.9, beta2 = 0.999;
  bool same_seed = false;  // every matrix begins with seed 1, as those with an optimizer of their own do ("layerwise")
};

/// Makes an optimizer for parameters and slices.
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(
    std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, std::shared_ptr<comm::Communicator> group)>;

/// step() is collective. States of a matrix: those of the optimizer of the small one, projection_left and
/// projection_right unless they are random, scaled_grad (APOLLO: the last step's norm).
class LowRankOptimizer final : public Optimizer {
 public:
  /// `rest` is for all that is no matrix with `low_rank` set, `low` for the small matrices: at a rate of 1, without
  /// decay. ConfigError for float64 parameters.
  LowRankOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                   const LowRankOptions& options, std::shared_ptr<comm::Communicator> group, const MakeOptimizer& rest,
                   const MakeOptimizer& low);
  ~LowRankOptimizer() override;
  void step() override;
  bool collective() const override { return group_ && group_->size() > 1; }
  std::vector<StateSlice> state() override;
  void keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) override;

 private:
  struct Matrix;
  struct Rows;
  void add_matrices(std::vector<ParameterSlice>& others);
  Rows rows_of(const ParameterSlice& slice) const;
  void refresh_projections();
  void project();
  void scale_by_steps();
  void apply(Matrix& matrix);
  void add_to(const ParameterSlice& slice, const at::Tensor& change, double before, double after);
  void all_reduce(const at::Tensor& t) const;

  LowRankOptions options_;
  std::shared_ptr<comm::Communicator> group_;
  std::shared_ptr<tensor::OffloadStore> offload_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<Optimizer> rest_, low_;
};

}  // namespace tessera::optim
