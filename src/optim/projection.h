#pragma once
// How GaLore (Zhao et al. 2024) and APOLLO (Zhu et al. 2024) see a matrix of gradients [rows, columns] through a low
// rank: left^T g, g right^T, or both. As galore-torch 1.0 and apollo-torch 1.0 do it.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera::optim {

struct ProjectionSettings {
  std::int64_t rank = 128, update_proj_gap = 200;  // the projection is made anew every so many steps
  /// "std": the shorter side is projected; "reverse_std": the longer; "left", "right"; "full": both.
  std::string proj_type = "std";
  bool random = false;  // of random numbers, else the gradient's singular vectors
};

class Projection {
 public:
  /// seed: of the first random projection, as apollo-torch numbers parameters.
  Projection(const ProjectionSettings& settings, std::int64_t rows, std::int64_t columns, std::int64_t seed);

  bool projects_left() const { return left_.defined(); }
  bool projects_right() const { return right_.defined(); }
  std::vector<std::int64_t> low_shape() const;
  /// float32 [rows, rank] and [rank, columns]; undefined where that side stays. Written by whoever loads or shares
  /// them.
  const at::Tensor& left() const { return left_; }
  const at::Tensor& right() const { return right_; }

  /// Whether the step after `steps` others begins with a new projection that needs the gradient.
  bool needs_gradient(std::int64_t steps) const;
  /// The singular vectors of a gradient [rows, columns], float32.
  void follow(const at::Tensor& gradient);
  /// Random numbers: makes those of this step, unless they are there.
  void draw(std::int64_t steps);

  /// What these rows of a gradient, [count, columns] from row `first` on, add to the low-rank gradient `low`.
  void add_projected(const at::Tensor& rows, std::int64_t first, at::Tensor& low) const;
  /// Rows [first, first + count) of what `low` is in the whole, [count, columns].
  at::Tensor expanded(const at::Tensor& low, std::int64_t first, std::int64_t count) const;

 private:
  ProjectionSettings settings_;
  std::int64_t rows_, columns_, seed_;
  std::int64_t drawn_ = -1;  // which of the random projections is there
  at::Tensor left_, right_;
};

}  // namespace tessera::optim
