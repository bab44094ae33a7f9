#include "e2e/operator_times.h"

#include <ATen/record_function.h>
#include <time.h>

#include <mutex>
#include <vector>

namespace tessera::bench {
namespace {

double thread_ms() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

struct Call : at::ObserverContext {
  double begin = thread_ms();
  Call* caller = nullptr;
  double inside_ms = 0;
};

thread_local Call* current = nullptr;
std::mutex mutex;
std::map<std::string, double> total_ms;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction&) {
  auto call = std::make_unique<Call>();
  call->caller = current;
  current = call.get();
  return call;
}

void leave(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* call = static_cast<Call*>(context);
  const double ms = thread_ms() - call->begin;
  current = call->caller;
  if (current) current->inside_ms += ms;
  const std::lock_guard lock(mutex);
  total_ms[function.name()] += ms - call->inside_ms;
}

}  // namespace

OperatorTimes::OperatorTimes() {
  total_ms.clear();
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OperatorTimes::~OperatorTimes() {
  at::removeCallback(handle_);
}

std::map<std::string, double> OperatorTimes::milliseconds() const {
  const std::lock_guard lock(mutex);
  std::map<std::string, double> result;
  for (const auto& [name, ms] : total_ms)
    if (ms > 0.05) result[name] = ms;
  return result;
}

}  // namespace tessera::bench
