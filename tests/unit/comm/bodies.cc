#include "unit/comm/bodies.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::comm::testing {
namespace {

using Comm = std::shared_ptr<Communicator>;

const c10::ScalarType kReducible[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kByte,
                                      at::kChar,  at::kShort,    at::kInt,  at::kLong};
// Around the borders of SIMD blocks and of staging buffers.
const std::int64_t kSizes[] = {0, 1, 7, 63, 1025, 65536, 150'001};

// Small integers: sums are exact in every dtype (and wrap alike). They repeat after ten, also summed, so ten are
// computed.
constexpr std::int64_t kPeriod = 10;
at::Tensor ten_of(int rank) {
  return (at::arange(kPeriod, at::kLong) * 7 + rank * 3) % 10 + 1;
}

at::Tensor repeated(const at::Tensor& ten, std::int64_t n) {
  at::Tensor out = at::empty({n}, ten.options());
  auto* bytes = static_cast<char*>(out.data_ptr());
  std::size_t done = std::min(out.nbytes(), ten.nbytes());
  if (done > 0) std::memcpy(bytes, ten.data_ptr(), done);
  for (std::size_t more; done < out.nbytes(); done += more) {
    more = std::min(done, out.nbytes() - done);
    std::memcpy(bytes + done, bytes, more);
  }
  return out;
}

at::Tensor contribution(int rank, std::int64_t n, c10::ScalarType type) {
  return repeated(ten_of(rank).to(type), n);
}

at::Tensor sum_of_contributions(int size, std::int64_t n, c10::ScalarType type) {
  at::Tensor sum = at::zeros({kPeriod}, at::kLong);
  for (int r = 0; r < size; ++r) sum += ten_of(r);
  return repeated(sum.to(type), n);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         (a.numel() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

void all_gather(Comm c) {
  for (auto type : {at::kFloat, at::kBFloat16, at::kBool, at::kByte, at::kLong}) {
    for (std::int64_t n : kSizes) {
      const auto options = at::TensorOptions().dtype(type);
      std::vector<at::Tensor> parts;
      for (int r = 0; r < c->size(); ++r) parts.push_back(repeated(ten_of(r).remainder(r + 2).to(type), n));
      at::Tensor out = at::zeros({c->size() * n}, options);
      c->all_gather(out, parts[c->rank()])->wait();
      REQUIRE(same_bits(out, at::cat(parts)));
      at::Tensor in_place = at::zeros({c->size() * n}, options);
      at::Tensor slice = in_place.narrow(0, c->rank() * n, n).copy_(parts[c->rank()]);
      c->all_gather(in_place, slice)->wait_input_free();
      REQUIRE(same_bits(in_place, out));
    }
  }
}

void reduce_scatter(Comm c) {
  for (auto type : kReducible) {
    for (std::int64_t n : kSizes) {
      at::Tensor in = contribution(c->rank(), c->size() * n, type);
      at::Tensor out = at::full({n}, 1, type);
      c->reduce_scatter(out, in)->wait();
      const auto expected = sum_of_contributions(c->size(), c->size() * n, type).narrow(0, c->rank() * n, n);
      REQUIRE(same_bits(out, expected.contiguous()));
    }
  }
}

void reduce_scatter_scales_accumulates_and_casts(Comm c) {
  const std::int64_t n = 5001;
  for (auto in_type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (auto out_type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      at::Tensor in = contribution(c->rank(), c->size() * n, in_type);
      at::Tensor out = at::full({n}, 3, out_type);
      c->reduce_scatter(out, in, {.scale = 0.5, .accumulate = true})->wait();
      const auto sum = sum_of_contributions(c->size(), c->size() * n, at::kDouble).narrow(0, c->rank() * n, n);
      REQUIRE(same_bits(out, (sum * 0.5 + 3).to(out_type)));
    }
  }
}

// Spread evenly over -8 to 8, so that sums in another order round otherwise; cheaper to make than normal numbers.
at::Tensor noise(int rank, std::int64_t n, c10::ScalarType type) {
  const int step = static_cast<int>(2654435769u), start = 715827883 * (rank % 3) + 7919 * rank;
  return (at::arange(n, at::kInt) * step + start).to(at::kFloat).mul_(0x1p-28).to(type);
}

// The reference: in rank order, in fp32, rounded once by libtorch.
at::Tensor ordered_sum(int size, std::int64_t n, c10::ScalarType type) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = noise(0, n, type).to(wide);
  for (int r = 1; r < size; ++r) sum += noise(r, n, type).to(wide);
  return sum.to(type);
}

void sums_are_in_rank_order_and_in_fp32(Comm c) {
  for (auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (std::int64_t per_rank : {5LL, 4099LL, 200'003LL}) {
      const std::int64_t n = per_rank * c->size();
      const at::Tensor expected = ordered_sum(c->size(), n, type);
      at::Tensor out = at::empty({per_rank}, type);
      c->reduce_scatter(out, noise(c->rank(), n, type))->wait();
      REQUIRE(same_bits(out, expected.narrow(0, c->rank() * per_rank, per_rank).contiguous()));
      at::Tensor all = noise(c->rank(), n, type);
      c->all_reduce(all, ReduceOp::kSum)->wait();
      REQUIRE(same_bits(all, expected));
    }
  }
}

/// Longer than all that is on its way at a time.
void long_sums_are_in_rank_order(Comm c) {
  for (auto type : {at::kFloat, at::kBFloat16}) {
    const std::int64_t per_rank = 6'000'001 / c->size(), n = per_rank * c->size();
    const at::Tensor expected = ordered_sum(c->size(), n, type);
    at::Tensor out = at::empty({per_rank}, type), all = noise(c->rank(), n, type);
    c->reduce_scatter(out, all)->wait();
    REQUIRE(same_bits(out, expected.narrow(0, c->rank() * per_rank, per_rank).contiguous()));
    c->all_reduce(all, ReduceOp::kSum)->wait();
    REQUIRE(same_bits(all, expected));
  }
}

void all_reduce(Comm c) {
  for (auto type : kReducible) {
    for (std::int64_t n : kSizes) {
      at::Tensor sum = contribution(c->rank(), n, type);
      c->all_reduce(sum, ReduceOp::kSum)->wait();
      REQUIRE(same_bits(sum, sum_of_contributions(c->size(), n, type)));
      at::Tensor most = contribution(c->rank(), n, type), least = contribution(c->rank(), n, type);
      at::Tensor expected_most = contribution(0, n, type), expected_least = contribution(0, n, type);
      for (int r = 1; r < c->size(); ++r) {
        expected_most = at::maximum(expected_most, contribution(r, n, type));
        expected_least = at::minimum(expected_least, contribution(r, n, type));
      }
      c->all_reduce(most, ReduceOp::kMax)->wait();
      c->all_reduce(least, ReduceOp::kMin)->wait();
      REQUIRE(same_bits(most, expected_most));
      REQUIRE(same_bits(least, expected_least));
    }
  }
}

void all_reduce_keeps_nan_and_infinity(Comm c) {
  const bool last = c->rank() == c->size() - 1;
  for (auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      at::Tensor nan = at::full({100}, last ? std::nan("") : 1.0, type);
      c->all_reduce(nan, op)->wait();
      REQUIRE(nan.isnan().all().item<bool>());
    }
    at::Tensor infinite = at::full({100}, last ? INFINITY : 1.0, type);
    c->all_reduce(infinite, ReduceOp::kSum)->wait();
    REQUIRE(infinite.isinf().all().item<bool>());
  }
}

void broadcast(Comm c) {
  for (int src = 0; src < c->size(); ++src) {
    for (std::int64_t n : kSizes) {
      at::Tensor t = contribution(c->rank(), n, at::kHalf);
      c->broadcast(t, src)->wait();
      REQUIRE(same_bits(t, contribution(src, n, at::kHalf)));
    }
  }
  at::Tensor large = contribution(c->rank(), 5'000'003, at::kHalf);  // more than goes at a time
  c->broadcast(large, c->size() - 1)->wait();
  REQUIRE(same_bits(large, contribution(c->size() - 1, 5'000'003, at::kHalf)));
}

Bytes object_of(int rank) {
  return Bytes(rank == 1 ? 0 : 300'000 * rank + 17, static_cast<char>('a' + rank));
}

void objects(Comm c) {
  const auto all = c->all_gather_objects(object_of(c->rank()));
  for (int r = 0; r < c->size(); ++r) REQUIRE(all[r] == object_of(r));
  for (int root = 0; root < c->size(); ++root) {
    const auto gathered = c->gather(object_of(c->rank()), root);
    REQUIRE(gathered == (c->rank() == root ? all : std::vector<Bytes>()));
    REQUIRE(c->scatter(gathered, root) == object_of(c->rank()));
    REQUIRE(c->broadcast_object(c->rank() == root ? object_of(root) : "ignored", root) == object_of(root));
  }
}

void works_may_be_waited_for_in_any_order(Comm c) {
  const std::int64_t n = 100'003;
  const int size = c->size();
  for (int repeat = 0; repeat < 5; ++repeat) {
    at::Tensor gathered = at::empty({size * n}, at::kFloat), reduced = at::empty({n}, at::kFloat);
    at::Tensor everywhere = contribution(c->rank(), n, at::kInt), from_last = contribution(c->rank(), n, at::kLong);
    std::vector<std::unique_ptr<Work>> works;
    works.push_back(c->all_gather(gathered, contribution(c->rank(), n, at::kFloat)));
    works.push_back(c->reduce_scatter(reduced, contribution(c->rank(), size * n, at::kFloat)));
    works.push_back(c->all_reduce(everywhere, ReduceOp::kSum));
    works.push_back(c->broadcast(from_last, size - 1));
    for (int i = 0; i < 4; ++i) works[(i * 3 + c->rank()) % 4]->wait();
    REQUIRE(same_bits(gathered.narrow(0, (size - 1) * n, n).contiguous(), contribution(size - 1, n, at::kFloat)));
    REQUIRE(
        same_bits(reduced, sum_of_contributions(size, size * n, at::kFloat).narrow(0, c->rank() * n, n).contiguous()));
    REQUIRE(same_bits(everywhere, sum_of_contributions(size, n, at::kInt)));
    REQUIRE(same_bits(from_last, contribution(size - 1, n, at::kLong)));
  }
}

// Rank 0 never waits for what it has started before the others have its data.
void started_operations_progress_without_their_caller(Comm c) {
  auto others = c->split(0);
  const std::int64_t n = 300'007;
  const int size = c->size();
  for (int repeat = 0; repeat < 2; ++repeat) {
    at::Tensor gathered = at::empty({size * n}, at::kFloat), reduced = at::empty({n}, at::kFloat);
    at::Tensor everywhere = contribution(c->rank(), n, at::kInt);
    std::vector<std::unique_ptr<Work>> works;
    works.push_back(c->all_gather(gathered, contribution(c->rank(), n, at::kFloat)));
    works.push_back(c->reduce_scatter(reduced, contribution(c->rank(), size * n, at::kFloat)));
    works.push_back(c->all_reduce(everywhere, ReduceOp::kSum));
    if (c->rank() != 0) works.back()->wait();
    others->barrier();
    for (auto& work : works) work->wait();
    REQUIRE(same_bits(gathered.narrow(0, 0, n).contiguous(), contribution(0, n, at::kFloat)));
    REQUIRE(
        same_bits(reduced, sum_of_contributions(size, size * n, at::kFloat).narrow(0, c->rank() * n, n).contiguous()));
    REQUIRE(same_bits(everywhere, sum_of_contributions(size, n, at::kInt)));
  }
}

void a_finished_operation_holds_no_tensors(Comm c) {
  const std::int64_t n = 100'003;
  for (int repeat = 0; repeat < 20; ++repeat) {
    at::Tensor in = contribution(c->rank(), c->size() * n, at::kFloat), out = at::empty({n}, at::kFloat);
    auto work = c->reduce_scatter(out, in);
    if (repeat % 2 == 1) c->barrier();  // behind it
    work->wait();
    REQUIRE(in.use_count() == 1 && out.use_count() == 1);
  }
}

// Large and small ones, of all kinds, waited for at different moments on different ranks.
void background_and_waiting_take_turns(Comm c) {
  const int size = c->size();
  for (int repeat = 0; repeat < 40; ++repeat) {
    const std::int64_t n = repeat % 4 == 0 ? 90'001 : 5;
    at::Tensor gathered = at::empty({size * n}, at::kLong), sum = contribution(c->rank() + repeat, 3, at::kLong);
    auto gather = c->all_gather(gathered, contribution(c->rank() + repeat, n, at::kLong));
    if ((repeat + c->rank()) % 3 == 0) gather->wait();
    c->barrier();
    auto reduce = c->all_reduce(sum, ReduceOp::kSum);
    const auto objects = c->all_gather_objects(object_of(c->rank() % 2));
    if ((repeat + c->rank()) % 2 == 0) reduce->wait();
    gather->wait_input_free();
    reduce->wait();
    for (int r = 0; r < size; ++r) {
      REQUIRE(objects[static_cast<std::size_t>(r)] == object_of(r % 2));
      REQUIRE(same_bits(gathered.narrow(0, r * n, n).contiguous(), contribution(r + repeat, n, at::kLong)));
    }
    at::Tensor expected = at::zeros({3}, at::kLong);
    for (int r = 0; r < size; ++r) expected += contribution(r + repeat, 3, at::kLong);
    REQUIRE(same_bits(sum, expected));
  }
}

void more_operations_than_the_ring_holds(Comm c) {
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < 100; ++i) {
    tensors.push_back(at::full({3}, i + c->rank(), at::kInt));
    works.push_back(c->all_reduce(tensors.back(), ReduceOp::kMax));
  }
  works.clear();  // waits
  for (int i = 0; i < 100; ++i) works.push_back(c->all_gather(at::empty({c->size()}), at::ones({1})));
  works.clear();
  for (int i = 0; i < 100; ++i) REQUIRE(tensors[i][2].item<int>() == i + c->size() - 1);
  for (int i = 0; i < 300; ++i) c->barrier();
}

at::Tensor view(SharedRegion& region, std::int64_t offset, std::int64_t n, c10::ScalarType type) {
  return at::from_blob(region.data() + offset, {n}, at::TensorOptions().dtype(type));
}

void shared_memory_is_zero_and_seen_by_all(Comm c) {
  for (std::int64_t bytes : {0LL, 10LL, 5'000'000LL}) {
    auto region = c->map_shared(bytes);
    if (c->backend() == "hosts") {  // hosts share no memory
      REQUIRE(region == nullptr);
      continue;
    }
    REQUIRE(region->size_bytes() == bytes);
    REQUIRE(reinterpret_cast<std::uintptr_t>(region->data()) % 4096 == 0);
    at::Tensor all = view(*region, 0, bytes, at::kByte);
    REQUIRE(all.count_nonzero().item<std::int64_t>() == 0);
    c->barrier();
    const std::int64_t part = bytes / c->size();
    all.narrow(0, c->rank() * part, part).fill_(c->rank() + 1);
    c->barrier();
    for (int r = 0; r < c->size(); ++r) REQUIRE((all.narrow(0, r * part, part) == r + 1).all().item<bool>());
    c->barrier();
  }
}

// Slot (from, to) of a region holds what rank `from` contributes to rank `to`.
void reduce_shared(Comm c) {
  const int size = c->size(), rank = c->rank();
  const std::int64_t n = 10'001;
  if (c->backend() == "hosts") return;  // no shared memory: bad_arguments_... shows the error
  for (auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::int64_t slot = n * static_cast<std::int64_t>(c10::elementSize(type));
    auto region = c->map_shared(Communicator::kMaxReductionsInFlight * slot * size * size);
    const auto input = [&](int k, int from, int to) {
      return view(*region, ((k * size + from) * size + to) * slot, n, type);
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<std::unique_ptr<Work>> works;
      std::vector<at::Tensor> outs;
      for (int k = 0; k < Communicator::kMaxReductionsInFlight; ++k) {
        for (int to = 0; to < size; ++to) input(k, rank, to).copy_(noise(rank * 100 + to * 10 + k + repeat, n, type));
        std::vector<at::Tensor> inputs;
        for (int from = 0; from < size; ++from) inputs.push_back(input(k, from, rank));
        outs.push_back(at::full({n}, 2.0, at::kFloat));
        works.push_back(c->reduce_shared(outs.back(), inputs, {.scale = 0.25, .accumulate = k % 2 == 1}));
      }
      for (int k = Communicator::kMaxReductionsInFlight - 1; k >= 0; --k) works[k]->wait();
      for (int k = 0; k < Communicator::kMaxReductionsInFlight; ++k) {
        at::Tensor sum = noise(rank * 10 + k + repeat, n, type).to(at::kFloat);
        for (int from = 1; from < size; ++from)
          sum += noise(from * 100 + rank * 10 + k + repeat, n, type).to(at::kFloat);
        REQUIRE(same_bits(outs[k], k % 2 == 1 ? 2.0 + sum * 0.25 : sum * 0.25));
      }
      for (auto& work : works) work->wait_input_free();
    }
  }
}

void subgroups(Comm c) {
  auto group = c->split(c->rank() % 2);
  REQUIRE(group->size() == (c->size() + 1 - c->rank() % 2) / 2);
  REQUIRE(group->rank() == c->rank() / 2);
  at::Tensor t = at::full({1000}, c->rank(), at::kLong);
  for (int i = 0; i <= c->rank() % 2; ++i) group->barrier();  // sequences are the group's own
  group->all_reduce(t, ReduceOp::kSum)->wait();
  std::int64_t sum = 0;
  for (int r = c->rank() % 2; r < c->size(); r += 2) sum += r;
  REQUIRE((t == sum).all().item<bool>());
  auto region = group->map_shared(group->size());
  if (!region) REQUIRE(group->backend() == "hosts");
  if (!region) return c->barrier();
  region->data()[group->rank()] = static_cast<std::byte>(c->rank() + 1);
  group->barrier();
  for (int r = 0; r < group->size(); ++r) REQUIRE(static_cast<int>(region->data()[r]) == 2 * r + c->rank() % 2 + 1);
  auto alone = group->split(group->rank());
  REQUIRE(alone->size() == 1);
  REQUIRE(alone->all_gather_objects("x") == std::vector<Bytes>{"x"});
  c->barrier();
}

// Some on one host, some over several: not the same ones on all ranks.
void neighbours_then_all(Comm c) {
  auto neighbours = c->split(c->rank() / 2);
  neighbours->barrier();
  auto all = c->split(0);
  REQUIRE(all->size() == c->size());
  REQUIRE(all->all_gather_objects("x").size() == static_cast<std::size_t>(c->size()));
}

template <class Call>
void rejects(Call call, const std::string& part) {
  try {
    call();
  } catch (const CommError& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return;
    unexpected(__FILE__, __LINE__, std::string("an error about '") + part + "', not: " + error.what());
  }
  unexpected(__FILE__, __LINE__, "expected an error about " + part);
}

void bad_arguments_are_rejected_and_do_no_harm(Comm c) {
  const int size = c->size();
  const auto f = [](std::int64_t n) { return at::zeros({n}); };
  rejects([&] { (void)c->all_gather(f(size * 4 + 1), f(4)); }, "out must be");
  rejects([&] { (void)c->all_gather(f(size * 4), at::zeros({2, 2})); }, "1-D");
  rejects([&] { (void)c->all_reduce(at::zeros({10}).slice(0, 0, 10, 2), ReduceOp::kSum); }, "not contiguous");
  rejects([&] { (void)c->all_reduce(at::zeros({10}, at::kBool), ReduceOp::kSum); }, "Bool");
  rejects([&] { (void)c->all_reduce(at::Tensor(), ReduceOp::kSum); }, "undefined");
  rejects([&] { (void)c->reduce_scatter(f(4), f(size * 5)); }, "elements");
  rejects([&] { (void)c->reduce_scatter(at::zeros({4}, at::kInt), f(size * 4)); }, "no sum of Float into Int");
  rejects([&] { (void)c->broadcast(f(4), size); }, "not in a group");
  rejects([&] { (void)c->reduce_shared(f(4), {}); }, "one input for each");
  if (size > 1) rejects([&] { (void)c->reduce_shared(f(4), std::vector<at::Tensor>(size, f(4))); }, "map_shared");
  c->barrier();
}

}  // namespace

const std::map<std::string, Body>& bodies() {
  static const std::map<std::string, Body> all = {
      {"AllGather", all_gather},
      {"ReduceScatter", reduce_scatter},
      {"ReduceScatterScalesAccumulatesAndCasts", reduce_scatter_scales_accumulates_and_casts},
      {"SumsAreInRankOrderAndInFp32", sums_are_in_rank_order_and_in_fp32},
      {"LongSumsAreInRankOrder", long_sums_are_in_rank_order},
      {"AllReduce", all_reduce},
      {"AllReduceKeepsNanAndInfinity", all_reduce_keeps_nan_and_infinity},
      {"Broadcast", broadcast},
      {"Objects", objects},
      {"WorksMayBeWaitedForInAnyOrder", works_may_be_waited_for_in_any_order},
      {"StartedOperationsProgressWithoutTheirCaller", started_operations_progress_without_their_caller},
      {"AFinishedOperationHoldsNoTensors", a_finished_operation_holds_no_tensors},
      {"BackgroundAndWaitingTakeTurns", background_and_waiting_take_turns},
      {"MoreOperationsThanTheRingHolds", more_operations_than_the_ring_holds},
      {"SharedMemoryIsZeroAndSeenByAll", shared_memory_is_zero_and_seen_by_all},
      {"ReduceShared", reduce_shared},
      {"Subgroups", subgroups},
      {"NeighboursThenAll", neighbours_then_all},
      {"RandomOperations", random_operations},
      {"BadArgumentsAreRejectedAndDoNoHarm", bad_arguments_are_rejected_and_do_no_harm},
  };
  return all;
}

}  // namespace tessera::comm::testing
