#include "base/pattern.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Pattern, MatchesTheWholeNameAsPythonDoes) {
  const Pattern q(R"(.*\.(q|v)_proj)", "target_modules");
  EXPECT_TRUE(q.matches("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(q.matches("model.layers.0.self_attn.q_proj.bias"));
  EXPECT_FALSE(q.matches("q_proj"));
  EXPECT_TRUE(Pattern(R"((?!.*vision).*(?<=self_attn\.)q_proj)", "").matches("text.self_attn.q_proj"));
  EXPECT_FALSE(Pattern(R"((?!.*vision).*q_proj)", "").matches("vision.self_attn.q_proj"));
  EXPECT_TRUE(Pattern(R"((?P<name>a)(?P=name)|b)", "").matches("aa"));
  EXPECT_TRUE(Pattern("a|ab", "").matches("ab"));  // fullmatch, not the first that fits
}

TEST(Pattern, GivesWhatAGroupTook) {
  const Pattern layer(R"((?:x\.)?block\.(?<layer>\d+)\..*)", "");
  EXPECT_EQ(layer.group("x.block.12.q", "layer"), "12");
  EXPECT_EQ(layer.group("x.block.q", "layer"), std::nullopt);
  EXPECT_EQ(Pattern("(?<a>x)?y", "").group("y", "a"), "");
}

TEST(Pattern, WrongOnesAndEndlessOnesAreNamed) {
  const auto error = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const ConfigError& e) {
      return e.what();
    }
    return {};
  };
  const auto wrong = error([] { Pattern("a(b", "target_modules"); });
  EXPECT_NE(wrong.find("target_modules: the regular expression 'a(b' is wrong near character 3"), std::string::npos)
      << wrong;
  const auto endless = error([] { Pattern("(a+)+", "target_modules").matches(std::string(60, 'a') + "b"); });
  EXPECT_NE(endless.find("gives up"), std::string::npos) << endless;
}

}  // namespace
}  // namespace tessera
