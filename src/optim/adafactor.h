#pragma once
// Adafactor (Shazeer & Stern 2018): the second moment of a matrix is kept as row and column means.
#include <memory>

#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

/// Two upstream rules. kTransformers: transformers.optimization.Adafactor; states exp_avg_sq_row [..., rows],
/// exp_avg_sq_col [..., cols], or exp_avg_sq for vectors, and exp_avg with beta1. kTorch: torch.optim.Adafactor; states
/// row_var [..., rows, 1], col_var [..., 1, cols], or variance.
struct AdafactorOptions {
  enum class Form { kTransformers, kTorch } form = Form::kTransformers;
  double lr = 0;
  double eps1 = 1e-30;  // kTorch: unset upstream, which means the parameter dtype's epsilon; here negative
  double eps2 = 1e-3;
  double clip_threshold = 1.0;  // kTorch: d
  double decay_rate = -0.8;     // kTorch: beta2_decay
  double beta1 = -1;            // kTransformers; negative: none
  double weight_decay = 0;
  bool scale_parameter = false, relative_step = false, warmup_init = false;  // kTransformers
};

/// step() is collective: the sums over rows, columns and elements of a parameter that several ranks hold are added over
/// the group in fp64, two reductions for all parameters together. Row and column states are whole on every rank (they
/// are small), all others lie as the slices do. Statistics are fp32 for 16-bit parameters. Masters may be in halves;
/// states stay in memory.
class Adafactor final : public Optimizer {
 public:
  Adafactor(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdafactorOptions& options,
            std::shared_ptr<comm::Communicator> group);
  ~Adafactor() override;
  void step() override;
  bool collective() const override { return true; }
  std::vector<StateSlice> state() override;
  void keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) override;

 private:
  struct Factored;
  template <class T>
  struct Values;
  template <class T>
  Values<T> values_of(const ParameterSlice& slice) const;
  void sum_rows_and_columns();
  void update_moments();
  void sum_updates();
  void apply();

  AdafactorOptions options_;
  std::shared_ptr<comm::Communicator> group_;
  std::shared_ptr<tensor::OffloadStore> offload_;
  std::vector<Factored> parts_;  // by slice
  at::Tensor sums_;              // 1-D, fp64: what is added over the ranks
};

}  // namespace tessera::optim
