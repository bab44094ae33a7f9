// Documents as PyYAML writes and reads them, and what older config files become.
#include "config/yaml_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "config/accelerate_convert.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

using nlohmann::json;

// What yaml.safe_dump (PyYAML 6) writes for these.
TEST(YamlWriter, QuotesWhatAPlainTextWouldNotSay) {
  const std::vector<std::pair<json, std::string>> cases = {{"no", "'no'"},
                                                           {"bf16", "bf16"},
                                                           {"NO", "'NO'"},
                                                           {"", "''"},
                                                           {"12", "'12'"},
                                                           {"1.5", "'1.5'"},
                                                           {"1e8", "1e8"},
                                                           {"null", "'null'"},
                                                           {"~", "'~'"},
                                                           {"it's", "it's"},
                                                           {"'quoted'", "'''quoted'''"},
                                                           {"a: b", "'a: b'"},
                                                           {"a #b", "'a #b'"},
                                                           {"a#b", "a#b"},
                                                           {"- a", "'- a'"},
                                                           {"-a", "-a"},
                                                           {"*.x", "'*.x'"},
                                                           {"[a]", "'[a]'"},
                                                           {"a,b", "a,b"},
                                                           {"10:30", "'10:30'"},
                                                           {"10.0.0.1", "10.0.0.1"},
                                                           {"C:", "'C:'"},
                                                           {true, "true"},
                                                           {2, "2"},
                                                           {json::array(), "[]"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(to_yaml_text({{"k", value}}), "k: " + text + "\n") << value;
}

TEST(YamlWriter, NestsAndSortsAsPyYaml) {
  const json document = {
      {"b", {{"z", 1}, {"a", {{"deep", "x"}}}}}, {"a", {"one", {{"two", 2}, {"x", 3}}}}, {"none", nullptr}};
  EXPECT_EQ(to_yaml_text(document), "a:\n- one\n- two: 2\n  x: 3\nb:\n  a:\n    deep: x\n  z: 1\n");
}

TEST(YamlWriter, ReadsBackWhatItWrote) {
  const json document = {{"texts", {"no", "12", "a: b", "", "é\n\"x\"", "- q", " padded "}},
                         {"map", {{"on", true}, {"n", -3}, {"f", 0.5}}}};
  EXPECT_EQ(typed(parse_yaml(to_yaml_text(document), "f.yaml")), document);
  EXPECT_EQ(typed(parse_json(document.dump(), "f.json")), document);
}

TEST(JsonDocument, AZeroByteIsNotTheEnd) {
  using namespace std::string_view_literals;
  for (const auto text : {"{}\0"sv, "{}\0, \"a\": 1}"sv})
    EXPECT_THROW(parse_json(text, "f.json"), ConfigError) << text.size();
}

TEST(YamlWriter, PlainScalarsHaveYaml11sTypes) {
  const json expected = {{"a", true}, {"b", false}, {"c", nullptr}, {"d", nullptr},
                         {"e", 10},   {"f", 0.5},   {"g", "1e8"},   {"h", "yes"}};
  EXPECT_EQ(typed(parse_yaml("a: on\nb: No\nc: ~\nd:\ne: 10\nf: 0.5\ng: 1e8\nh: 'yes'\n", "f.yaml")), expected);
}

TEST(YamlWriter, ScalarsOfAnySizeAreRead) {
  const std::string digits(300'000, '7');
  for (const std::string& text : {digits, "1." + digits + "e+999", std::string("1.0e+999"), "1" + digits + ":07",
                                  "2026-11-28 " + digits, std::string(".e+5"), std::string("._")}) {
    EXPECT_EQ(typed_scalar(text), json(text)) << text.substr(0, 20);
    const json document = {{"k", text}};
    EXPECT_EQ(typed(parse_yaml(to_yaml_text(document), "f.yaml")), document) << text.substr(0, 20);
  }
}

TEST(YamlWriter, NumbersHaveYaml11sForms) {
  const std::vector<std::pair<const char*, json>> cases = {{"+1_000", 1000},
                                                           {"-0", 0},
                                                           {"007", "007"},
                                                           {"1.", 1.0},
                                                           {".5", 0.5},
                                                           {"+1_0.5", 10.5},
                                                           {"1.5e+3", 1500.0},
                                                           {"1.5e3", "1.5e3"},
                                                           {"1.5e+", "1.5e+"},
                                                           {"_1", "_1"},
                                                           {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, value] : cases) EXPECT_EQ(typed_scalar(text), value) << text;
}

TEST(YamlWriter, SexagesimalsAndDatesAreQuoted) {
  for (const char* text : {"1:30", "-1_0:59:07.5", "2026-1-2", "2026-11-28T10:00"})
    EXPECT_EQ(to_yaml_text({{"k", text}}), "k: '" + std::string(text) + "'\n");
  for (const char* text : {"1:60", "1:2x", "226-1-2", "2026-1", "2026-x-2"})
    EXPECT_EQ(to_yaml_text({{"k", text}}), "k: " + std::string(text) + "\n");
}

TEST(AccelerateConvert, UpdatingMendsWhatOlderFilesSay) {
  const auto updated = [](const std::string& text) { return updated_document(parse_yaml(text, "f.yaml"), "f.yaml"); };
  const json file = updated(
      "distributed_type: FSDP\nmixed_precision: no\nmain_process_ip: null\ndynamo_backend: INDUCTOR\n"
      "num_processes: 2\nfsdp_offload_params: true\nfsdp_config:\n  auto_wrap_policy: NO_WRAP\n");
  EXPECT_EQ(file["mixed_precision"], "no") << "YAML's unquoted no is false, which accelerate would write back";
  EXPECT_FALSE(file.contains("main_process_ip"));
  EXPECT_EQ(file["dynamo_config"], json({{"dynamo_backend", "INDUCTOR"}}));
  EXPECT_EQ(file["fsdp_config"], json({{"fsdp_auto_wrap_policy", "NO_WRAP"}, {"fsdp_offload_params", true}}));
  EXPECT_FALSE(file.contains("fsdp_offload_params"));
  EXPECT_THROW(updated("num_processes: 2\n"), ConfigError);
}

TEST(AccelerateConvert, Version2SaysStrategiesWithReshardAndNamesWhatThatLoses) {
  const std::vector<std::pair<std::string, bool>> strategies = {{"FULL_SHARD", true},
                                                                {"SHARD_GRAD_OP", false},
                                                                {"NO_SHARD", false},
                                                                {"HYBRID_SHARD", true},
                                                                {"HYBRID_SHARD_ZERO2", false},
                                                                {"1", true},
                                                                {"2", false}};
  for (const auto& [strategy, reshards] : strategies) {
    for (const char* key : {"fsdp_sharding_strategy", "fsdp_reshard_after_forward"}) {
      std::vector<std::string> notes;
      const auto text =
          "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n  " + std::string(key) + ": " + strategy + "\n";
      const json file = to_fsdp2(parse_yaml(text, "f.yaml"), "f.yaml", notes);
      EXPECT_EQ(file["fsdp_config"], json({{"fsdp_version", 2}, {"fsdp_reshard_after_forward", reshards}})) << text;
      const bool loses = strategy == "NO_SHARD" || strategy.starts_with("HYBRID");
      EXPECT_EQ(notes.size(), loses ? 1u : 0u) << text;
    }
  }
}

}  // namespace
}  // namespace tessera::config
