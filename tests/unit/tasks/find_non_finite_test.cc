#include "tasks/find_non_finite.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <limits>

namespace tessera::tasks {
namespace {

/// x times a number, by two layers within it one after the other where it has them.
class Times final : public nn::Layer {
 public:
  explicit Times(std::shared_ptr<Times> first = nullptr, std::shared_ptr<Times> second = nullptr)
      : first(std::move(first)), second(std::move(second)) {
    if (this->first) register_module("first", this->first), register_module("second", this->second);
  }
  std::string class_name() const override { return "Times"; }
  std::shared_ptr<Times> first, second;
  double number = 1;

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return (first ? (*second)((*first)(x)) : x) * number; }
};

TEST(FindNonFinite, NamesTheFirstModuleInTheOrderOfExecution) {
  const auto inner = std::make_shared<Times>(std::make_shared<Times>(), std::make_shared<Times>());
  Times net(std::make_shared<Times>(), inner);
  const auto run = [&] { (void)net(at::ones({2, 3})); };
  EXPECT_EQ(find_non_finite(net, run), "");
  inner->second->number = std::numeric_limits<double>::infinity();
  EXPECT_EQ(find_non_finite(net, run), "'second.second' (Float)");
  inner->first->number = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(find_non_finite(net, run), "'second.first' (Float)");
}

}  // namespace
}  // namespace tessera::tasks
