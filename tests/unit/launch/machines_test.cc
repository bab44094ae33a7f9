// Launchers that meet: threads of one process here, machines in tests/process/machines_test.cc.
#include "launch/machines.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Numbers = std::vector<int>;

class Launchers : public testing::Test {
 protected:
  using Owner = std::unique_ptr<Machines>;

  Launchers() : port_(listen_at({"127.0.0.1", 0}).port) {}

  Owner open(int machine, int count = 3, const std::string& secret = "") const {
    return std::make_unique<Machines>(Machines::Place{{"127.0.0.1", port_}, count, machine, secret}, times_);
  }
  std::future<Owner> opens(int machine, int count = 3, const std::string& secret = "") const {
    return std::async(std::launch::async, [=, this] { return open(machine, count, secret); });
  }
  /// Machines 0, 1, ... that have met.
  std::vector<Owner> all(int count = 3) const {
    std::vector<std::future<Owner>> coming;
    std::vector<Owner> machines;
    for (int m = 0; m < count; ++m) coming.push_back(opens(m, count));
    for (auto& machine : coming) machines.push_back(machine.get());
    return machines;
  }
  /// Whom this one finds; none: it was left alone.
  static std::future<Numbers> meets(const Owner& machine, int restart = 1) {
    return std::async(std::launch::async, [machine = machine.get(), restart]() -> Numbers {
      try {
        machine->meet(restart);
        return machine->left();
      } catch (const Error&) {
        return {};
      }
    });
  }
  template <class Act>
  static std::string error_of(const Act& act) {
    try {
      act();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  static bool is_called_soon(const Owner& machine, int restart) {
    for (const auto end = Clock::now() + 20s; Clock::now() < end;) {
      if (machine->is_called(restart)) return true;
      std::vector<pollfd> waiting;
      for (const int other : machine->waiting()) waiting.push_back({other, POLLIN, 0});
      if (waiting.empty()) return false;
      ::poll(waiting.data(), waiting.size(), 20'000);
    }
    return false;
  }
  Descriptor stranger() const { return connect_before({"127.0.0.1", port_}, Clock::now() + 20s); }

  int port_;
  Machines::Times times_{.start = 20s, .lost = 500ms, .answer = 20s};
};

TEST_F(Launchers, GoOnTogether) {
  const auto machines = all();
  for (const int restart : {1, 2}) {
    std::vector<std::future<Numbers>> found;
    for (const Owner& machine : machines) found.push_back(meets(machine, restart));
    for (auto& numbers : found) EXPECT_EQ(numbers.get(), (Numbers{0, 1, 2}));
  }
}

TEST_F(Launchers, CallEachOtherWhenOneStartsAgain) {
  const auto machines = all();
  EXPECT_FALSE(machines[2]->is_called(1));
  auto one = meets(machines[1]);
  EXPECT_TRUE(is_called_soon(machines[0], 1));
  auto zero = meets(machines[0]);
  EXPECT_TRUE(is_called_soon(machines[2], 1));
  auto two = meets(machines[2]);
  for (auto* found : {&zero, &one, &two}) EXPECT_EQ(found->get(), (Numbers{0, 1, 2}));
  for (const Owner& machine : machines) EXPECT_FALSE(machine->is_called(2));
}

TEST_F(Launchers, WaitForOneThatIsThereHoweverLongItsRanksTake) {
  const auto machines = all();
  auto zero = meets(machines[0]), one = meets(machines[1]);
  std::this_thread::sleep_for(4 * times_.lost);
  auto two = meets(machines[2]);
  for (auto* found : {&zero, &one, &two}) EXPECT_EQ(found->get(), (Numbers{0, 1, 2}));
}

TEST_F(Launchers, WaitForMachineZeroHoweverLongItsRanksTake) {
  const auto machines = all(2);
  auto one = meets(machines[1]);
  std::this_thread::sleep_for(4 * times_.lost);
  auto zero = meets(machines[0]);
  for (auto* found : {&zero, &one}) EXPECT_EQ(found->get(), (Numbers{0, 1}));
}

TEST_F(Launchers, LeaveOutOneThatHasEndedAtOnce) {
  times_.lost = 20s;
  auto machines = all();
  machines[1].reset();
  const auto begin = Clock::now();
  auto zero = meets(machines[0]), two = meets(machines[2]);
  for (auto* found : {&zero, &two}) EXPECT_EQ(found->get(), (Numbers{0, 2}));
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST_F(Launchers, TellOneThatDoesNotAnswerThatItWasLeftOut) {
  times_.answer = 1s;
  const auto machines = all();
  auto zero = meets(machines[0]), two = meets(machines[2]);
  for (auto* found : {&zero, &two}) EXPECT_EQ(found->get(), (Numbers{0, 2}));
  const std::string error = error_of([&] { machines[1]->meet(1); });
  EXPECT_NE(error.find("machine 0 has gone on without this one, with 0, 2"), std::string::npos) << error;
}

TEST_F(Launchers, SayThatMachineZeroHasEnded) {
  auto machines = all(2);
  machines[0].reset();
  const std::string error = error_of([&] { machines[1]->meet(1); });
  EXPECT_NE(error.find("the launcher of machine 0 has ended"), std::string::npos) << error;
}

TEST_F(Launchers, CannotBeWithoutMachineZeroWhichIsSaid) {
  times_.start = 300ms;
  const std::string error = error_of([&] { open(1); });
  EXPECT_NE(error.find("machine 0 does not answer at 127.0.0.1 port " + std::to_string(port_)), std::string::npos)
      << error;
}

TEST_F(Launchers, NameThoseThatDoNotCome) {
  times_.start = 1s;
  auto two = opens(2, 4);
  const std::string error = error_of([&] { open(0, 4); });
  EXPECT_NE(error.find("machines 1, 3 have not come"), std::string::npos) << error;
  const std::string other = error_of([&] { two.get(); });
  EXPECT_NE(other.find("the launcher of machine 0 has ended"), std::string::npos) << other;
}

TEST_F(Launchers, CountNoStrangersNorOneThatIsAtAnotherRestart) {
  const auto machines = all();
  auto zero = meets(machines[0]), two = meets(machines[2]);
  const std::string text(5000, 'x');
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 400; ++i) {  // more than are heard at a time
    strangers.push_back(stranger());
    if (i % 2 == 0) ::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  const Descriptor other_restart = stranger(), nobody = stranger();
  for (const auto* socket : {&other_restart, &nobody}) {
    constexpr std::uint64_t kLaunchers = 0x6c61756e63680000;
    const bool is_nobody = socket == &nobody;
    introduce(*socket, {kLaunchers + (is_nobody ? 1 : 2), is_nobody ? 7 : 1, 0}, "", Clock::now() + 20s);
  }
  auto one = meets(machines[1]);
  for (auto* found : {&zero, &one, &two}) EXPECT_EQ(found->get(), (Numbers{0, 1, 2}));
}

TEST_F(Launchers, TakeNobodyWithoutTheSecret) {
  times_.start = 40s;
  auto zero = opens(0, 2, "the secret of this test");
  const std::string error = error_of([&] { open(1, 2, "another secret, as long"); });
  EXPECT_NE(error.find("does not accept this one's proof"), std::string::npos) << error;
  EXPECT_NE(error.find("TESSERA_SECRET"), std::string::npos) << error;
  auto one = opens(1, 2, "the secret of this test");
  EXPECT_EQ(zero.get()->left(), (Numbers{0, 1}));
  EXPECT_EQ(one.get()->left(), (Numbers{0, 1}));
}

}  // namespace
}  // namespace tessera::launch
