#include <ATen/ATen.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/link_bytes.h"
#include "tessera/base/error.h"
#include "unit/comm/bodies.h"

namespace tessera::comm::testing {
namespace {

using Comm = std::shared_ptr<Communicator>;
using std::chrono::milliseconds;

bool contains(const CommError& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

template <class Call>
CommError error_of(Call call) {
  try {
    call();
  } catch (const CommError& error) {
    return error;
  }
  unexpected(__FILE__, __LINE__, "expected a CommError");
}

void expect_disagreement(Comm c, const std::function<void()>& call, const std::string& zero, const std::string& one) {
  c->barrier();
  const CommError error = error_of(call);
  if (!contains(error, "rank 0 called " + zero) && !contains(error, "rank 1 called " + one)) {
    unexpected(__FILE__, __LINE__, error.what());
  }
  REQUIRE(contains(error, "operation 1") && error.sequence == 1);
  error_of([&] { c->barrier(); });  // the group stays unusable
}

void different_operations(Comm c) {
  expect_disagreement(
      c,
      [&] {
        at::Tensor t = at::zeros({4});
        if (c->rank() == 1) {
          c->barrier();
        } else {
          c->all_reduce(t, ReduceOp::kSum)->wait();
        }
      },
      "all_reduce(sum) of 4 x Float", "barrier");
}

void different_sizes(Comm c) {
  expect_disagreement(
      c, [&] { c->all_reduce(at::zeros({c->rank() == 1 ? 5 : 4}), ReduceOp::kSum)->wait(); },
      "all_reduce(sum) of 4 x Float", "all_reduce(sum) of 5 x Float");
}

void different_dtypes(Comm c) {
  expect_disagreement(
      c, [&] { c->broadcast(at::zeros({4}, c->rank() == 1 ? at::kInt : at::kFloat), 0)->wait(); },
      "broadcast from 0 of 4 x Float", "broadcast from 0 of 4 x Int");
}

void mismatch_in_the_background(Comm c) {
  c->barrier();
  const std::int64_t n = c->rank() == 1 ? 200'000 : 100'000;
  auto work = c->all_gather(at::empty({c->size() * n}), at::zeros({n}));
  std::this_thread::sleep_for(milliseconds(300));  // it has failed meanwhile
  const CommError error = error_of([&] { work->wait(); });
  if (!contains(error, "called all_gather of 100000 x Float") ||
      !contains(error, "called all_gather of 200000 x Float"))
    unexpected(__FILE__, __LINE__, error.what());
  error_of([&] { c->barrier(); });
}

void killed_rank(Comm c) {
  auto others = c->split(c->rank() == 1 ? 1 : 0);
  c->barrier();
  if (c->rank() == 1) raise(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  const CommError error = error_of([&] { c->barrier(); });
  REQUIRE(std::chrono::steady_clock::now() - start < milliseconds(1000));
  REQUIRE(error.rank == 1 && error.operation == "barrier");
  REQUIRE(contains(error, "rank 1 has ended"));
}

/// Longer than an operation may take. The rank that is waited for goes on last.
void suspended_job(Comm c) {
  std::vector<pid_t> ranks;
  for (const Bytes& process : c->all_gather_objects(std::to_string(::getpid()))) ranks.push_back(std::stoi(process));
  const pid_t other = c->rank() == 0 ? ::fork() : -1;
  if (other == 0) {
    ::usleep(300'000);
    for (const pid_t rank : ranks) ::kill(rank, SIGSTOP);
    ::usleep(3'000'000);
    for (const pid_t rank : ranks) {
      ::kill(rank, SIGCONT);
      ::usleep(100'000);
    }
    ::_exit(0);
  }
  if (c->rank() == 1) std::this_thread::sleep_for(milliseconds(600));
  c->barrier();
  if (other > 0) ::waitpid(other, nullptr, 0);
}

void killed_in_the_middle_of_a_message(Comm c) {
  const std::int64_t n = 20'000'000;
  at::Tensor in = at::zeros({n}), out = at::empty({c->size() * n});
  c->barrier();
  auto work = c->all_gather(out, in);
  std::this_thread::sleep_for(milliseconds(20));
  if (c->rank() == 1) raise(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  const CommError error = error_of([&] {
    work->wait();
    c->barrier();
  });
  REQUIRE(std::chrono::steady_clock::now() - start < milliseconds(5000));
  if (error.rank != 1 || !contains(error, "rank 1 has ended")) unexpected(__FILE__, __LINE__, error.what());
}

/// Those for data have no keep-alive.
void cut_connections_for_data() {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer), flag_size = sizeof(int);
    int keeps_alive = 1;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.ss_family == AF_UNIX) continue;
    ::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keeps_alive, &flag_size);
    if (keeps_alive == 0) ::shutdown(fd, SHUT_RDWR);
  }
}

void connection_for_data_is_cut(Comm c) {
  c->barrier();
  if (c->rank() == 1) cut_connections_for_data();
  const CommError error = error_of([&] {
    c->all_gather(at::empty({c->size() * 1000}), at::zeros({1000}))->wait();
    c->barrier();
  });
  REQUIRE(contains(error, "the connection for data with rank") && contains(error, "firewall"));
}

/// Of this host's interface.
std::int64_t bytes_counted(const std::string& direction) {
  std::int64_t bytes = -1;
  std::ifstream("/sys/class/net/wire/statistics/" + direction + "_bytes") >> bytes;
  return bytes;
}

/// Runs an operation. What this host's link carried, if that is not about the least.
std::string bytes_beyond(const LinkBytes& least, Communicator& c, const std::function<void()>& run) {
  c.barrier();
  const std::int64_t out = bytes_counted("tx"), in = bytes_counted("rx");
  REQUIRE(out >= 0);
  c.barrier();
  run();
  c.barrier();
  std::string beyond;
  using Found = std::pair<std::int64_t, double>;
  for (const auto& [found, bound] :
       {Found{bytes_counted("tx") - out, least.out}, Found{bytes_counted("rx") - in, least.in}}) {
    const auto bytes = static_cast<double>(found);
    if (bytes > 1.05 * bound + 100'000 || bytes < bound)
      beyond += std::to_string(found) + " bytes, at least " + std::to_string(bound) + "; ";
  }
  c.barrier();
  return beyond;
}

void no_link_carries_more_than_it_must(Comm c) {
  const int hosts = std::stoi(std::getenv("HOSTS")), ranks = c->size() / hosts, host = c->rank() / ranks;
  const std::int64_t n = 6 << 20;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    at::Tensor full = at::ones({n}, type), part = at::ones({n / c->size()}, type);
    const std::map<HostOperation, std::function<void()>> operations = {
        {HostOperation::kAllGather, [&] { c->all_gather(full, part)->wait(); }},
        {HostOperation::kReduceScatter, [&] { c->reduce_scatter(part, full)->wait(); }},
        {HostOperation::kAllReduce, [&] { c->all_reduce(full, ReduceOp::kMax)->wait(); }},
        {HostOperation::kBroadcast, [&] { c->broadcast(full, 0)->wait(); }},
    };
    for (const auto& [operation, run] : operations) {
      const auto least = least_link_bytes(operation, {host, hosts, ranks}, static_cast<double>(n),
                                          static_cast<double>(c10::elementSize(type)));
      // A busy machine acknowledges and sends again more than a quiet one: the best of a few.
      std::string found;
      for (int attempt = 0; attempt < 4; ++attempt) {
        found = bytes_beyond(least, *c, run);
        at::Tensor again = at::full({1}, found.empty() ? 0 : 1, at::kInt);
        c->all_reduce(again, ReduceOp::kMax)->wait();
        if (again.item<int>() == 0) break;
      }
      if (!found.empty())
        unexpected(__FILE__, __LINE__,
                   "operation " + std::to_string(static_cast<int>(operation)) + " on host " + std::to_string(host) +
                       ": " + found);
    }
  }
}

void operations_for_nine_seconds(Comm c) {
  const auto start = std::chrono::steady_clock::now();
  for (bool goes_on = true; goes_on;) {
    at::Tensor t =
        at::full({100'000}, std::chrono::steady_clock::now() - start < std::chrono::seconds(9) ? 1 : 0, at::kInt);
    c->all_reduce(t, ReduceOp::kMin)->wait();
    goes_on = t[7].item<int>() == 1;
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void missing_rank(Comm c) {  // with an operation timeout of 0.5 s
  c->barrier();
  if (c->rank() == 1) std::this_thread::sleep_for(milliseconds(1500));
  const CommError error = error_of([&] {
    c->all_reduce(at::zeros({4}), ReduceOp::kSum)->wait();
    c->barrier();
  });
  REQUIRE(error.rank == 1);
  REQUIRE(contains(error, "rank 1 has not arrived, its last operation was number 0 (barrier)"));
}

// Rank 0 starts a reduction while its thread waits for the others in a gather, and then waits for them elsewhere.
void started_behind_a_gather(Comm c) {  // with an operation timeout of 5 s
  auto others = c->split(0);
  const std::int64_t n = 100'000, bytes = n * static_cast<std::int64_t>(sizeof(float));
  const auto region = c->map_shared(c->size() * bytes);
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < c->size(); ++r) inputs.push_back(at::from_blob(region->data() + r * bytes, {n}));
  inputs[static_cast<std::size_t>(c->rank())].fill_(c->rank() + 1);
  at::Tensor sum = at::empty({n});
  std::unique_ptr<Work> gather, reduction;
  const auto start = [&] {
    gather = c->all_gather(at::empty({c->size() * n}), at::zeros({n}));
    std::this_thread::sleep_for(milliseconds(50));
    reduction = c->reduce_shared(sum, inputs);
  };
  if (c->rank() == 0) start();
  others->barrier();
  if (c->rank() != 0) {
    start();
    reduction->wait();
  }
  others->barrier();
  gather->wait();
  reduction->wait_input_free();
  REQUIRE(sum[0].item<float>() == static_cast<float>(c->size() * (c->size() + 1) / 2));
}

void rank_leaves_early(Comm c) {
  c->barrier();
  if (c->rank() == 1) return;
  const CommError error = error_of([&] { c->barrier(); });
  REQUIRE(error.rank == 1 && contains(error, "rank 1 has left the group after 1 operations"));
}

void slow_rank_outlives_the_others(Comm c) {
  at::Tensor t = at::full({1000}, c->rank());
  auto work = c->broadcast(t, 1);
  if (c->rank() != 1) std::this_thread::sleep_for(milliseconds(400));
  work->wait();
  REQUIRE((t == 1).all().item<bool>());
}

void throwing_rank(Comm c) {
  at::Tensor t = at::zeros({1'000'000});
  auto work = c->all_reduce(t, ReduceOp::kSum);  // dropped while the exception unwinds
  if (c->rank() == 1) throw std::runtime_error("out of luck");
  error_of([&] {
    work->wait();
    c->barrier();
  });
}

void rank_leaves_with_work_started(Comm c) {  // its thread waits for ranks that have not come
  if (c->rank() == 1) {
    auto work = c->all_gather(at::empty({c->size() * 100'000}), at::zeros({100'000}));
    std::this_thread::sleep_for(milliseconds(100));
    throw std::runtime_error("out of luck");
  }
  std::this_thread::sleep_for(milliseconds(600));
  error_of([&] { c->all_gather(at::empty({c->size() * 100'000}), at::zeros({100'000}))->wait(); });
}

void meet(Comm c) {
  c->barrier();
}

}  // namespace

const std::map<std::string, Body>& faults() {
  static const std::map<std::string, Body> all = {
      {"Meet", meet},
      {"DifferentOperations", different_operations},
      {"DifferentSizes", different_sizes},
      {"DifferentDtypes", different_dtypes},
      {"SuspendedJob", suspended_job},
      {"KilledRank", killed_rank},
      {"KilledInTheMiddleOfAMessage", killed_in_the_middle_of_a_message},
      {"ConnectionForDataIsCut", connection_for_data_is_cut},
      {"NoLinkCarriesMoreThanItMust", no_link_carries_more_than_it_must},
      {"OperationsForNineSeconds", operations_for_nine_seconds},
      {"MissingRank", missing_rank},
      {"StartedBehindAGather", started_behind_a_gather},
      {"RankLeavesEarly", rank_leaves_early},
      {"SlowRankOutlivesTheOthers", slow_rank_outlives_the_others},
      {"ThrowingRank", throwing_rank},
      {"RankLeavesWithWorkStarted", rank_leaves_with_work_started},
      {"MismatchInTheBackground", mismatch_in_the_background},
  };
  return all;
}

}  // namespace tessera::comm::testing
