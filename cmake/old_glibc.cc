// What the headers of a newer glibc and libstdc++ call and the old ones lack: linked into programs that have to run
// there (cmake/OldGlibc.cmake). tools/old_glibc.py compiles it.
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <array>
#include <cstdlib>
#include <exception>

namespace {

/// The same moment on the clock that pthread_cond_timedwait reads, as libstdc++ did it before g++ 10.
timespec on_realtime(clockid_t clock, const timespec& moment) {
  constexpr long kSecond = 1'000'000'000;
  timespec now{}, real{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  timespec out{moment.tv_sec - now.tv_sec + real.tv_sec, moment.tv_nsec - now.tv_nsec + real.tv_nsec};
  for (; out.tv_nsec < 0; out.tv_nsec += kSecond) --out.tv_sec;
  for (; out.tv_nsec >= kSecond; out.tv_nsec -= kSecond) ++out.tv_sec;
  return out;
}

}  // namespace

extern "C" {

/// glibc 2.32: reference counts need no atomic operations while it is not 0.
char __libc_single_threaded = 0;

/// glibc 2.30
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  const timespec moment = on_realtime(clock, *until);
  return pthread_cond_timedwait(condition, mutex, &moment);
}
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* until) noexcept {
  const timespec moment = on_realtime(clock, *until);
  return pthread_mutex_timedlock(mutex, &moment);
}

/// glibc 2.32
const char* sigabbrev_np(int signal) noexcept {
  static const auto names = [] {
    std::array<const char*, 32> all{};
    all[SIGHUP] = "HUP", all[SIGINT] = "INT", all[SIGQUIT] = "QUIT", all[SIGILL] = "ILL", all[SIGTRAP] = "TRAP";
    all[SIGABRT] = "ABRT", all[SIGBUS] = "BUS", all[SIGFPE] = "FPE", all[SIGKILL] = "KILL", all[SIGUSR1] = "USR1";
    all[SIGSEGV] = "SEGV", all[SIGUSR2] = "USR2", all[SIGPIPE] = "PIPE", all[SIGALRM] = "ALRM", all[SIGTERM] = "TERM";
    all[SIGSTKFLT] = "STKFLT", all[SIGCHLD] = "CHLD", all[SIGCONT] = "CONT", all[SIGSTOP] = "STOP";
    all[SIGTSTP] = "TSTP", all[SIGTTIN] = "TTIN", all[SIGTTOU] = "TTOU", all[SIGURG] = "URG", all[SIGXCPU] = "XCPU";
    all[SIGXFSZ] = "XFSZ", all[SIGVTALRM] = "VTALRM", all[SIGPROF] = "PROF", all[SIGWINCH] = "WINCH";
    all[SIGPOLL] = "POLL", all[SIGPWR] = "PWR", all[SIGSYS] = "SYS";
    return all;
  }();
  return signal > 0 && signal < 32 ? names[static_cast<unsigned>(signal)] : nullptr;
}

}  // extern "C"

/// What eh_ptr.o calls of libstdc++'s own functions.
namespace __cxxabiv1 {
void __terminate(std::terminate_handler handler) noexcept {
  handler();
  std::abort();
}
}  // namespace __cxxabiv1
