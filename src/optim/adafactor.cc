#include "optim/adafactor.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tensor/offload_store.h"
#include "tensor/split_floats.h"
#include "tessera/base/error.h"

namespace tessera::optim {

/// Where a slice lies in its matrix: [batch * rows, cols], the last two dimensions of the parameter.
struct MatrixSlice {
  std::int64_t batch = 1, rows = 1, cols = 1;
  std::int64_t begin = 0, end = 0;  // elements of the flattened parameter
  std::int64_t first_row() const { return begin / cols; }
  std::int64_t last_row() const { return end > begin ? (end - 1) / cols + 1 : begin / cols; }
  /// Columns [from, to) of row r that the slice holds.
  std::pair<std::int64_t, std::int64_t> columns(std::int64_t r) const {
    return {std::max(begin, r * cols) - r * cols, std::min(end, (r + 1) * cols) - r * cols};
  }
};

namespace {

constexpr std::int64_t kChunk = 1 << 16;  // sums run over fixed chunks, so threads do not change them

/// Gradients times a factor, rounded as a product of tensors is.
template <class T>
struct Gradient {
  const T* values;
  double factor;
  T operator[](std::int64_t i) const {
    using Wide = at::opmath_type<T>;
    return static_cast<T>(static_cast<Wide>(values[i]) * static_cast<Wide>(factor));
  }
};

/// rows[r] += sum of g^2 over a row's columns, columns[b, c] += over the rows of batch b.
template <class T>
void add_squares(const MatrixSlice& at, const Gradient<T>& g, double* rows, double* columns) {
  const auto square = [&](std::int64_t r, std::int64_t c) {
    const auto x = static_cast<double>(g[r * at.cols + c - at.begin]);
    return x * x;
  };
  at::parallel_for(at.first_row(), at.last_row(), 16, [&](std::int64_t from, std::int64_t to) {
    for (auto r = from; r < to; ++r) {
      const auto [c0, c1] = at.columns(r);
      double sum = 0;
      for (auto c = c0; c < c1; ++c) sum += square(r, c);
      rows[r] += sum;
    }
  });
  at::parallel_for(0, at.cols, 64, [&](std::int64_t from, std::int64_t to) {
    for (auto r = at.first_row(); r < at.last_row(); ++r) {
      const auto [c0, c1] = at.columns(r);
      auto* sums = columns + r / at.rows * at.cols;
      for (auto c = std::max(from, c0); c < std::min(to, c1); ++c) sums[c] += square(r, c);
    }
  });
}

/// part(from, to): the sum over some elements.
template <class F>
double sum_chunks(std::int64_t n, const F& part) {
  std::vector<double> partial(static_cast<std::size_t>((n + kChunk - 1) / kChunk));
  at::parallel_for(0, static_cast<std::int64_t>(partial.size()), 1, [&](std::int64_t from, std::int64_t to) {
    for (auto k = from; k < to; ++k)
      partial[static_cast<std::size_t>(k)] = part(k * kChunk, std::min(n, (k + 1) * kChunk));
  });
  double total = 0;
  for (double x : partial) total += x;
  return total;
}

}  // namespace

struct Adafactor::Factored {
  MatrixSlice place;
  bool matrix = false;
  std::int64_t numel = 0;         // of the whole parameter
  at::Tensor row, col;            // matrix: 1-D, whole
  at::Tensor variance, exp_avg;   // 1-D, of the slice; variance: vectors only
  std::vector<double> row_scale;  // of this step: the second moment is row_scale[r] * col[c]
  at::Tensor g;                   // of this step: a 1-D view of the slice; undefined where that is empty
  bool present = false;           // some rank has a gradient
  double lr = 0, decay = 1;       // of this step
  std::int64_t sums_at = 0;       // in sums_: ranks with a gradient, sum of p^2, then row and column sums
  double floor = 0;               // kTorch: the least second moment
};

/// A slice's parameters, a block at a time.
template <class T>
struct Adafactor::Values {
  T* at;                              // of the first
  const tensor::SplitFloats* halves;  // where there are, instead: elements from `offset` on
  std::int64_t offset;

  /// body(first, count, values) over elements [from, to); what it leaves in values is kept.
  template <class Body>
  void for_blocks(std::int64_t from, std::int64_t to, const Body& body, bool keeps) const {
    if (!halves) return body(from, to - from, at + from);
    std::array<float, 1024> buffer;
    for (auto first = from; first < to; first += std::ssize(buffer)) {
      const auto count = std::min<std::int64_t>(std::ssize(buffer), to - first);
      halves->read(offset + first, count, buffer.data());
      if constexpr (std::is_same_v<T, float>) body(first, count, buffer.data());
      if (keeps) halves->write(offset + first, count, buffer.data());
    }
  }
};

template <class T>
Adafactor::Values<T> Adafactor::values_of(const ParameterSlice& slice) const {
  const auto& flat = parameters_[static_cast<std::size_t>(slice.parameter)];
  if (const auto* halves = offload_ ? offload_->halves_of(flat) : nullptr)
    return {nullptr, halves, slice.parameter_offset};
  return {flat.mutable_data_ptr<T>() + slice.parameter_offset, nullptr, 0};
}

Adafactor::~Adafactor() = default;

void Adafactor::keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) {
  offload_ = std::move(offload);
  if (offload_) offload_->accept_halves();
}

Adafactor::Adafactor(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                     const AdafactorOptions& options, std::shared_ptr<comm::Communicator> group)
    : Optimizer(std::move(parameters), std::move(slices), options.lr), options_(options), group_(std::move(group)) {
  const bool wide = !parameters_.empty() && std::all_of(parameters_.begin(), parameters_.end(),
                                                        [](const auto& p) { return p.scalar_type() == at::kDouble; });
  const auto dtype = wide ? at::kDouble : at::kFloat;
  std::int64_t sums = 0;
  for (const auto& slice : slices_) {
    auto& f = parts_.emplace_back();
    const auto& shape = slice.shape;
    f.matrix = shape.size() >= 2;
    f.numel = c10::multiply_integers(shape);
    f.place.begin = slice.offset;
    f.place.end = slice.offset + slice.numel;
    f.sums_at = sums;
    sums += 2;
    if (f.matrix) {
      f.place.cols = std::max<std::int64_t>(shape[shape.size() - 1], 1);
      f.place.rows = std::max<std::int64_t>(shape[shape.size() - 2], 1);
      f.place.batch = f.numel / (f.place.rows * f.place.cols);
      f.row = at::zeros({f.place.batch * f.place.rows}, dtype);
      f.col = at::zeros({f.place.batch * f.place.cols}, dtype);
      sums += f.row.numel() + f.col.numel();
    } else {
      f.variance = at::zeros({slice.numel}, dtype);
    }
    if (options_.beta1 >= 0) f.exp_avg = at::zeros({slice.numel}, dtype);
  }
  sums_ = at::zeros({sums}, at::kDouble);
}

void Adafactor::step() {
  at::NoGradGuard no_grad;
  ++steps_;
  sum_rows_and_columns();
  update_moments();
  sum_updates();
  apply();
  gradient_factor_ = 1;
}

void Adafactor::sum_rows_and_columns() {
  sums_.zero_();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    auto& f = parts_[i];
    const auto& slice = slices_[i];
    f.g = at::Tensor();
    if (slice.numel == 0) continue;
    const auto& flat = parameters_[static_cast<std::size_t>(slice.parameter)];
    if (!flat.grad().defined()) continue;
    f.g = flat.grad().reshape(-1).narrow(0, slice.parameter_offset, slice.numel).to(flat.scalar_type());
    auto* sums = sums_.mutable_data_ptr<double>() + f.sums_at;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, f.g.scalar_type(), "adafactor", [&] {
      const Gradient<scalar_t> g{f.g.const_data_ptr<scalar_t>(), gradient_factor_};
      sums[0] = 1;
      const auto values = values_of<scalar_t>(slice);
      sums[1] = sum_chunks(slice.numel, [&](std::int64_t from, std::int64_t to) {
        double sum = 0;
        const auto add = [&](std::int64_t, std::int64_t count, const scalar_t* p) {
          for (std::int64_t k = 0; k < count; ++k) sum += static_cast<double>(p[k]) * static_cast<double>(p[k]);
        };
        values.for_blocks(from, to, add, /*keeps=*/false);
        return sum;
      });
      if (f.matrix) add_squares(f.place, g, sums + 2, sums + 2 + f.row.numel());
    });
  }
  if (group_ && group_->size() > 1) group_->all_reduce(sums_, comm::ReduceOp::kSum)->wait();
}

void Adafactor::update_moments() {
  const auto t = static_cast<double>(steps_);
  const bool torch = options_.form == AdafactorOptions::Form::kTorch;
  const double keep = 1 - std::pow(t, options_.decay_rate), eps1 = options_.eps1;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    auto& f = parts_[i];
    const auto* sums = sums_.const_data_ptr<double>() + f.sums_at;
    f.present = sums[0] > 0;
    if (!f.present) continue;
    const double rms = std::sqrt(sums[1] / static_cast<double>(f.numel)), base = lr_ * slices_[i].lr_scale;
    const double decay = slices_[i].weight_decay.value_or(options_.weight_decay);
    if (torch) {
      f.lr = std::max(options_.eps2, rms) * std::min(base, 1 / std::sqrt(t));
      f.decay = 1 - base * decay;
    } else {
      f.lr = options_.relative_step ? std::min(options_.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t)) : base;
      if (options_.scale_parameter) f.lr *= std::max(options_.eps2, rms);
      f.decay = 1 - f.lr * decay;
    }
    const auto eps_of_dtype = parameters_.front().scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                              : parameters_.front().scalar_type() == at::kHalf ? std::ldexp(1.0, -10)
                              : parameters_.front().scalar_type() == at::kBFloat16
                                  ? std::ldexp(1.0, -7)
                                  : static_cast<double>(std::numeric_limits<float>::epsilon());
    const double least = eps1 < 0 ? eps_of_dtype : eps1;
    f.floor = torch ? least * least : 0;
    if (!f.matrix) continue;
    const auto blend = [&](at::Tensor& moment, const double* sum, std::int64_t count) {
      AT_DISPATCH_FLOATING_TYPES(moment.scalar_type(), "adafactor", [&] {
        auto* m = moment.mutable_data_ptr<scalar_t>();
        for (std::int64_t k = 0; k < moment.numel(); ++k) {
          const auto mean = sum[k] / static_cast<double>(count) + (torch ? 0 : eps1);
          m[k] = static_cast<scalar_t>(keep * static_cast<double>(m[k]) + (1 - keep) * mean);
        }
      });
    };
    blend(f.row, sums + 2, f.place.cols);
    blend(f.col, sums + 2 + f.row.numel(), f.place.rows);
    const auto row = f.row.to(at::kDouble);
    const auto* values = row.const_data_ptr<double>();
    f.row_scale.assign(values, values + row.numel());
    for (std::int64_t b = 0; b < f.place.batch; ++b) {
      auto* begin = f.row_scale.data() + b * f.place.rows;
      double mean = 0;
      for (std::int64_t r = 0; r < f.place.rows; ++r) mean += begin[r] / static_cast<double>(f.place.rows);
      if (torch) mean = std::max(mean, least);
      for (std::int64_t r = 0; r < f.place.rows; ++r) begin[r] /= mean;
    }
  }
}

namespace {

/// The second moment of a slice: of rows and columns, or where `variance` is not null of each element.
template <class A>
struct SecondMoment {
  const MatrixSlice& at;
  const double* row_scale;
  const A *col, *variance;
  double floor;  // 0 of transformers' form
};

/// Calls f(k, u) for elements [from, to) of the slice, u: the gradient over the root of its second moment.
template <class T, class A, class F>
void for_each_update(const SecondMoment<A>& moment, std::int64_t from, std::int64_t to, const Gradient<T>& g,
                     const F& f) {
  const auto& [at, row_scale, col, variance, floor] = moment;
  const auto low = static_cast<A>(floor);
  for (auto k = from; k < to;) {
    if (variance) {
      f(k, static_cast<A>(g[k]) / std::sqrt(std::max(variance[k], low)));
      ++k;
      continue;
    }
    const auto r = (at.begin + k) / at.cols, c = (at.begin + k) % at.cols;
    const auto* cols = col + r / at.rows * at.cols + c - k;
    const auto end = std::min(to, k + at.cols - c);
    if (floor > 0) {
      for (const auto scale = static_cast<A>(row_scale[r]); k < end; ++k)
        f(k, static_cast<A>(g[k]) / std::sqrt(std::max(scale * cols[k], low)));
    } else {  // roots before they are multiplied: of a row and a column without gradients the product is no float32
      for (const auto root = static_cast<A>(std::sqrt(row_scale[r])); k < end; ++k)
        f(k, static_cast<A>(g[k]) / (root * std::sqrt(cols[k])));
    }
  }
}

}  // namespace

void Adafactor::sum_updates() {
  const double keep = 1 - std::pow(static_cast<double>(steps_), options_.decay_rate);
  const bool torch = options_.form == AdafactorOptions::Form::kTorch;
  auto norms = at::zeros({static_cast<std::int64_t>(parts_.size())}, at::kDouble);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    auto& f = parts_[i];
    if (!f.g.defined()) continue;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, f.g.scalar_type(), "adafactor", [&] {
      using A = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      const Gradient<scalar_t> g{f.g.const_data_ptr<scalar_t>(), gradient_factor_};
      auto* variance = f.matrix ? nullptr : f.variance.mutable_data_ptr<A>();
      for (std::int64_t k = 0; variance && k < f.g.numel(); ++k) {
        const auto x = static_cast<double>(g[k]);
        const auto square = x * x + (torch ? 0 : options_.eps1);
        variance[k] = static_cast<A>(keep * static_cast<double>(variance[k]) + (1 - keep) * square);
      }
      const auto* col = f.matrix ? f.col.const_data_ptr<A>() : nullptr;
      const auto n = f.g.numel();
      std::vector<double> partial(static_cast<std::size_t>((n + kChunk - 1) / kChunk));
      at::parallel_for(0, static_cast<std::int64_t>(partial.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto c = begin; c < end; ++c)
          for_each_update<scalar_t, A>(
              {f.place, f.row_scale.data(), col, variance, f.floor}, c * kChunk, std::min(n, (c + 1) * kChunk), g,
              [&](std::int64_t, A u) { partial[static_cast<std::size_t>(c)] += static_cast<double>(u) * u; });
      });
      for (double x : partial) norms.mutable_data_ptr<double>()[i] += x;
    });
  }
  if (group_ && group_->size() > 1) group_->all_reduce(norms, comm::ReduceOp::kSum)->wait();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto rms = std::sqrt(norms.const_data_ptr<double>()[i] / static_cast<double>(parts_[i].numel));
    parts_[i].lr /= std::max(1.0, rms / options_.clip_threshold);
  }
}

void Adafactor::apply() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    auto& f = parts_[i];
    if (!f.g.defined()) continue;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, f.g.scalar_type(), "adafactor", [&] {
      using A = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      const auto values = values_of<scalar_t>(slices_[i]);
      const Gradient<scalar_t> g{f.g.const_data_ptr<scalar_t>(), gradient_factor_};
      const auto* variance = f.matrix ? nullptr : f.variance.const_data_ptr<A>();
      const auto* col = f.matrix ? f.col.const_data_ptr<A>() : nullptr;
      auto* average = f.exp_avg.defined() ? f.exp_avg.mutable_data_ptr<A>() : nullptr;
      const auto lr = static_cast<A>(f.lr), decay = static_cast<A>(f.decay), beta1 = static_cast<A>(options_.beta1);
      at::parallel_for(0, f.g.numel(), 1 << 15, [&](std::int64_t from, std::int64_t to) {
        const auto update = [&](std::int64_t first, std::int64_t count, scalar_t* p) {
          for_each_update<scalar_t, A>(
              {f.place, f.row_scale.data(), col, variance, f.floor}, first, first + count, g, [&](std::int64_t k, A u) {
                auto change = u * lr;
                if (average) change = average[k] = average[k] * beta1 + change * (1 - beta1);
                p[k - first] = static_cast<scalar_t>(static_cast<A>(p[k - first]) * decay - change);
              });
        };
        values.for_blocks(from, to, update, /*keeps=*/true);
      });
    });
    f.g = at::Tensor();
  }
  for (auto& p : parameters_)
    if (p.grad().defined()) p.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
}

std::vector<StateSlice> Adafactor::state() {
  const bool torch = options_.form == AdafactorOptions::Form::kTorch;
  std::vector<StateSlice> result;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& f = parts_[i];
    const auto& slice = slices_[i];
    const auto add = [&](const char* name, std::vector<std::int64_t> shape, const at::Tensor& local, bool replicated) {
      result.push_back({slice.name, name, std::move(shape), replicated ? 0 : slice.offset, local, replicated});
    };
    if (f.exp_avg.defined()) add("exp_avg", slice.shape, f.exp_avg, false);
    if (!f.matrix) {
      add(torch ? "variance" : "exp_avg_sq", slice.shape, f.variance, false);
      continue;
    }
    auto rows = slice.shape, cols = slice.shape;
    if (torch) {
      rows[rows.size() - 1] = 1;
      cols[cols.size() - 2] = 1;
    } else {
      rows.pop_back();
      cols.erase(cols.end() - 2);
    }
    add(torch ? "row_var" : "exp_avg_sq_row", std::move(rows), f.row, true);
    add(torch ? "col_var" : "exp_avg_sq_col", std::move(cols), f.col, true);
  }
  return result;
}

}  // namespace tessera::optim
