// Operations in random order, of random kinds, sizes and dtypes, in random groups, several on their way at a time,
// against sums made in plain tensors: in rank order, in fp32 (bits), and in double (size).
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "unit/comm/bodies.h"

namespace tessera::comm::testing {
namespace {

using Comm = std::shared_ptr<Communicator>;
using Random = std::mt19937_64;

constexpr c10::ScalarType kFloats[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
constexpr c10::ScalarType kIntegers[] = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};

bool is_float(c10::ScalarType type) {
  return std::find(std::begin(kFloats), std::end(kFloats), type) != std::end(kFloats);
}

/// The same number everywhere; std's distributions are each library's own.
std::int64_t below(Random& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

c10::ScalarType some_type(Random& random) {
  const auto i = below(random, 9);
  return i < 4 ? kFloats[i] : kIntegers[i - 4];
}

/// Mostly short, often beside a border of blocks, slices, stages or pieces.
std::int64_t some_size(Random& random) {
  constexpr std::int64_t kBorders[] = {0, 64, 1024, 4096, 8192, 16 * 1024, 64 * 1024, 128 * 1024, 256 * 1024};
  const auto kind = below(random, 12);
  if (kind < 5) return below(random, 40);
  if (kind < 8) return below(random, 3000);
  if (kind == 8) return below(random, 300'000);
  return std::max<std::int64_t>(0, kBorders[below(random, 9)] + below(random, 5) - 2);
}

/// What a rank contributes.
at::Tensor values(std::uint64_t seed, int rank, std::int64_t n, c10::ScalarType type, bool odd) {
  Random random(seed * 1009 + static_cast<std::uint64_t>(rank));
  if (!is_float(type)) {
    at::Tensor whole = at::empty({n}, at::kLong);
    for (std::int64_t i = 0; i < n; ++i) whole.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random());
    return whole.to(type);
  }
  constexpr double kOdd[] = {INFINITY, -INFINITY, -0.0, 1e-41, 65504.0, 3e38};
  at::Tensor numbers = at::empty({n}, at::kDouble);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = random();
    double x = (static_cast<double>(bits >> 40) / (1 << 21) - 4.0) * ((bits & 7) == 0 ? 1e-3 : 1.0);
    if (odd && (bits & 0xF0) == 0) x = (bits & 0xF00) == 0 ? std::nan("") : kOdd[(bits >> 12) % 6];
    numbers.data_ptr<double>()[i] = x;
  }
  return numbers.to(type);
}

void require_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  bool equal = found.scalar_type() == expected.scalar_type() && found.numel() == expected.numel();
  if (equal && found.numel() > 0 && std::memcmp(found.data_ptr(), expected.data_ptr(), found.nbytes()) != 0) {
    const at::Tensor a = found.to(at::kDouble), b = expected.to(at::kDouble);  // no NaN is better than another
    const at::Tensor same =
        is_float(found.scalar_type()) ? a.eq(b).logical_or(a.isnan().logical_and(b.isnan())) : found.eq(expected);
    equal = same.all().item<bool>();
    if (!equal) {
      const auto at = same.logical_not().nonzero()[0].item<std::int64_t>();
      throw std::runtime_error(what + ": element " + std::to_string(at) + " is " +
                               std::to_string(a[at].item<double>()) + ", expected " +
                               std::to_string(b[at].item<double>()));
    }
  }
  if (!equal) throw std::runtime_error(what + ": other sizes or dtypes");
}

struct Sum {
  c10::ScalarType in, out;
  double scale = 1.0;
  bool accumulate = false;
};

/// As documented: in rank order, in fp32 or fp64, scaled and added once, and rounded once.
at::Tensor ordered(const std::vector<at::Tensor>& inputs, const Sum& how, const at::Tensor& before) {
  if (!is_float(how.in)) {
    at::Tensor sum = inputs[0].to(at::kLong);
    for (std::size_t r = 1; r < inputs.size(); ++r) sum = sum + inputs[r].to(at::kLong);
    return sum.to(how.in);
  }
  const auto type = how.in == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = inputs[0].to(type);
  for (std::size_t r = 1; r < inputs.size(); ++r) sum = sum + inputs[r].to(type);
  if (how.out == at::kDouble) sum = sum.to(at::kDouble);
  sum = sum * how.scale;
  if (how.out != at::kDouble) sum = sum.to(at::kFloat);
  if (how.accumulate) sum = before.to(sum.scalar_type()) + sum;
  return sum.to(how.out);
}

/// Not far from the sum in double, however it was made.
void require_near(const at::Tensor& found, const std::vector<at::Tensor>& inputs, const Sum& how,
                  const at::Tensor& before, const std::string& what) {
  if (!is_float(how.in) || found.numel() == 0) return;
  at::Tensor sum = at::zeros({found.numel()}, at::kDouble), most = at::zeros({found.numel()}, at::kDouble);
  for (const at::Tensor& input : inputs) {
    sum += input.to(at::kDouble);
    most += input.to(at::kDouble).abs();
  }
  sum = sum * how.scale + (how.accumulate ? before.to(at::kDouble) : at::zeros_like(sum));
  most = most * std::abs(how.scale) + sum.abs();
  const double coarse = how.out == at::kBFloat16 ? 0.005 : how.out == at::kHalf ? 0.001 : 1e-6;
  if ((found.to(at::kDouble) - sum).abs().gt(most * coarse + 1e-6).any().item<bool>())
    throw std::runtime_error(what + ": far from the sum in double");
}

/// An operation that has been started, and what it must have done.
struct InFlight {
  std::unique_ptr<Work> work;
  std::function<void()> check;
};

class RandomOperations {
 public:
  RandomOperations(Comm world, std::uint64_t seed)
      : random_(seed), own_(seed + 77 + static_cast<std::uint64_t>(world->rank())), groups_{std::move(world)} {}

  void run(int steps) {
    for (step_ = 0; step_ < steps; ++step_) {
      const auto kind = below(random_, 20);
      // Which rank chooses what for another group than its own must not move the common random numbers.
      if (kind == 0) split();
      const Comm group = groups_[static_cast<std::size_t>(below(random_, static_cast<std::int64_t>(groups_.size())))];
      Random here(random_());
      if (kind < 5) {
        objects(group, here);
      } else {
        tensors(group, here, kind == 5 ? 40 : 1 + below(here, 5));
      }
    }
  }

 private:
  /// A rank's group takes the place that other ranks' groups have there. At most three besides the world.
  void split() {
    const auto colors = 1 + below(random_, 3);
    const Comm parent = groups_[static_cast<std::size_t>(below(random_, static_cast<std::int64_t>(groups_.size())))];
    const auto salt = random_();
    const int color = static_cast<int>((salt >> (3 * (parent->rank() % 16))) % static_cast<std::uint64_t>(colors));
    Comm group = parent->split(color);
    if (groups_.size() == 4) groups_.erase(groups_.begin() + 1);
    groups_.push_back(std::move(group));
  }

  std::string what(const char* operation, c10::ScalarType type, std::int64_t n) const {
    return "step " + std::to_string(step_) + ", " + operation + " of " + std::to_string(n) + " x " +
           c10::toString(type);
  }

  void tensors(const Comm& c, Random& random, std::int64_t count) {
    std::vector<InFlight> started;
    for (std::int64_t i = 0; i < count; ++i) started.push_back(start(c, random, count > 5));
    while (!started.empty()) {  // in an order of this rank's own
      const auto at = static_cast<std::size_t>(below(own_, static_cast<std::int64_t>(started.size())));
      if (below(own_, 2) == 0)
        started[at].work->wait();
      else
        started[at].work->wait_input_free();
      started[at].check();
      started.erase(started.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  InFlight start(const Comm& c, Random& random, bool shortly) {
    const auto type = some_type(random);
    const auto n = shortly ? below(random, 50) : some_size(random);
    const auto seed = random();
    const bool odd = below(random, 4) == 0;
    Sum how{type, type};
    if (is_float(type)) {
      how.out = kFloats[below(random, 4)];
      how.scale = below(random, 2) == 0 ? 1.0 : 1.0 / static_cast<double>(1 + below(random, 7));
      how.accumulate = below(random, 2) == 0;
    }
    switch (below(random, 6)) {
      case 0:
        return gather(c, type, n, seed, below(random, 2) == 0);
      case 1:
        return broadcast(c, type, n, seed, static_cast<int>(below(random, c->size())));
      case 2:
        return all_reduce(c, type, n, seed, odd, static_cast<ReduceOp>(below(random, 3)));
      case 3:
        if (c->backend() != "hosts" && !shortly) return reduce_shared(c, how, n / c->size(), seed);
        [[fallthrough]];
      default:
        return reduce_scatter(c, how, n / c->size(), seed, odd, below(random, 2) == 0);
    }
  }

  InFlight gather(const Comm& c, c10::ScalarType type, std::int64_t n, std::uint64_t seed, bool in_place) const {
    at::Tensor out = at::zeros({n * c->size()}, type), in = values(seed, c->rank(), n, type, false);
    if (in_place) in = out.narrow(0, n * c->rank(), n).copy_(in);
    return {c->all_gather(out, in), [=, this] {
              for (int r = 0; r < c->size(); ++r)
                require_equal(out.narrow(0, n * r, n).contiguous(), values(seed, r, n, type, false),
                              what("all_gather", type, n));
            }};
  }

  InFlight broadcast(const Comm& c, c10::ScalarType type, std::int64_t n, std::uint64_t seed, int src) const {
    at::Tensor t = values(seed, c->rank(), n, type, false);
    return {c->broadcast(t, src),
            [=, this] { require_equal(t, values(seed, src, n, type, false), what("broadcast", type, n)); }};
  }

  InFlight all_reduce(const Comm& c, c10::ScalarType type, std::int64_t n, std::uint64_t seed, bool odd,
                      ReduceOp op) const {
    at::Tensor t = values(seed, c->rank(), n, type, odd);
    return {c->all_reduce(t, op), [=, this] {
              std::vector<at::Tensor> inputs;
              for (int r = 0; r < c->size(); ++r) inputs.push_back(values(seed, r, n, type, odd));
              const auto name = what("all_reduce", type, n);
              if (op == ReduceOp::kSum) {
                require_equal(t, ordered(inputs, {type, type}, t), name);
                if (!odd) require_near(t, inputs, {type, type}, t, name);
                return;
              }
              at::Tensor expected = inputs[0];
              for (std::size_t r = 1; r < inputs.size(); ++r)
                expected = op == ReduceOp::kMax ? at::maximum(expected, inputs[r]) : at::minimum(expected, inputs[r]);
              require_equal(t, expected, name);
            }};
  }

  InFlight reduce_scatter(const Comm& c, const Sum& how, std::int64_t n, std::uint64_t seed, bool odd,
                          bool in_place) const {
    const int size = c->size(), rank = c->rank();
    at::Tensor in = values(seed, rank, n * size, how.in, odd);
    const at::Tensor own = in.narrow(0, n * rank, n),
                     before = in_place && how.in == how.out ? own.clone() : values(seed + 5, rank, n, how.out, false);
    const at::Tensor out = in_place && how.in == how.out ? own : before.clone();
    return {c->reduce_scatter(out, in, {.scale = how.scale, .accumulate = how.accumulate}), [=, this] {
              std::vector<at::Tensor> inputs;
              for (int r = 0; r < size; ++r)
                inputs.push_back(values(seed, r, n * size, how.in, odd).narrow(0, n * rank, n));
              const auto name = what("reduce_scatter", how.in, n);
              require_equal(out.contiguous(), ordered(inputs, how, before), name);
              if (!odd) require_near(out, inputs, how, before, name);
            }};
  }

  /// Slot (from, to) of the region holds what rank `from` contributes to rank `to`.
  InFlight reduce_shared(const Comm& c, const Sum& how, std::int64_t n, std::uint64_t seed) const {
    const int size = c->size(), rank = c->rank();
    const auto bytes = n * static_cast<std::int64_t>(c10::elementSize(how.in));
    const auto region = c->map_shared(bytes * size * size);
    const auto slot = [=](int from, int to) {
      return at::from_blob(
          region->data() + (from * size + to) * bytes, {n}, [region](void*) {}, at::TensorOptions().dtype(how.in));
    };
    const auto given = [=](int from, int to) {
      return values(seed + 13 * static_cast<std::uint64_t>(to), from, n, how.in, false);
    };
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < size; ++r) {
      slot(rank, r).copy_(given(rank, r));
      inputs.push_back(slot(r, rank));
    }
    const at::Tensor before = values(seed + 5, rank, n, how.out, false), out = before.clone();
    return {c->reduce_shared(out, inputs, {.scale = how.scale, .accumulate = how.accumulate}), [=, this] {
              std::vector<at::Tensor> contributions;
              for (int r = 0; r < size; ++r) contributions.push_back(given(r, rank));
              const auto name = what("reduce_shared", how.in, n);
              require_equal(out, ordered(contributions, how, before), name);
              require_near(out, contributions, how, before, name);
            }};
  }

  void objects(const Comm& c, Random& random) const {
    const int size = c->size(), rank = c->rank(), root = static_cast<int>(below(random, size));
    std::vector<Bytes> all;
    for (int r = 0; r < size; ++r)
      all.emplace_back(static_cast<std::size_t>(some_size(random)), static_cast<char>('a' + below(random, 26)));
    const Bytes& mine = all[static_cast<std::size_t>(rank)];
    switch (below(random, 5)) {
      case 0:
        REQUIRE(c->all_gather_objects(mine) == all);
        break;
      case 1:
        REQUIRE(c->gather(mine, root) == (rank == root ? all : std::vector<Bytes>()));
        break;
      case 2:
        REQUIRE(c->scatter(rank == root ? all : std::vector<Bytes>(), root) == mine);
        break;
      case 3:
        REQUIRE(c->broadcast_object(mine, root) == all[static_cast<std::size_t>(root)]);
        break;
      default:
        c->barrier();
    }
  }

  Random random_, own_;  // the same on all ranks, and this rank's
  std::vector<Comm> groups_;
  int step_ = 0;
};

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

void random_operations(Comm c) {
  RandomOperations(std::move(c), static_cast<std::uint64_t>(number_of("TESSERA_TEST_SEED", 1)))
      .run(number_of("TESSERA_TEST_STEPS", 40));
}

}  // namespace tessera::comm::testing
