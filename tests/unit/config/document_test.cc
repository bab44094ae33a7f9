// Files of settings: YAML as PyYAML reads it, with limits.
#include "config/document.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::config {
namespace {

std::string yaml_as_json(const std::string& yaml) {
  return json_of(parse_yaml(yaml, "c.yaml"));
}

std::string yaml_error(const std::string& yaml) {
  try {
    return "read: " + yaml_as_json(yaml);
  } catch (const ConfigError& e) {
    return e.what();
  }
}

TEST(Yaml, ScalarsAreNullsTextsAndNumbers) {
  EXPECT_EQ(yaml_as_json("a: ~\nb:\nc: 'null'\nd: \"1\"\ne: 1\nf: !!str 1\ng: !!int \"1\"\ni: ! 2\nh: |\n  x\n  y\n"),
            R"({"a":null,"b":null,"c":"null","d":"1","e":1,"f":"1","g":1,"i":2,"h":"x\ny\n"})");
}

TEST(Yaml, ListsMappingsAndRepetitions) {
  EXPECT_EQ(yaml_as_json("a: &x [1, {b: 2}]\nc: *x\nd:\n- e\n-\n  f: g\n"),
            R"({"a":[1,{"b":2}],"c":[1,{"b":2}],"d":["e",{"f":"g"}]})");
  EXPECT_EQ(yaml_error("a: *x\n"), "c.yaml:1: '*x' repeats what '&x' marks, which is not there");
  EXPECT_EQ(yaml_error("a: &x\n  b: *x\n"), "c.yaml:2: '*x' repeats what '&x' marks, which is not there");
}

TEST(Yaml, AnEmptyDocumentSetsNothing) {
  for (const char* empty : {"", "# nothing\n", "---\n", "--- \n...\n", "\xEF\xBB\xBF"})
    EXPECT_EQ(yaml_as_json(empty), "{}");
  EXPECT_EQ(yaml_as_json("\xEF\xBB\xBF"
                         "a: 1\n"),
            R"({"a":1})");
}

TEST(Yaml, WhatIsNotWellFormedIsNamedWithItsLine) {
  EXPECT_EQ(yaml_error("a: 1\nnum_processes 2\n"),
            "c.yaml:2: not valid YAML: while scanning a simple key: could not find expected ':'");
  EXPECT_EQ(yaml_error("a: 1\nb: \"no end\n"),
            "c.yaml:2: not valid YAML: while scanning a quoted scalar: found unexpected end of stream");
  EXPECT_EQ(yaml_error("a: \"\\d\"\n"),
            "c.yaml:1: not valid YAML: while parsing a quoted scalar: found unknown escape character");
  EXPECT_EQ(yaml_error("a: 1\nb: \x01\n"), "c.yaml:2: not valid YAML: control characters are not allowed");
  EXPECT_EQ(yaml_error("a: !own 1\n"), "c.yaml:1: the tag '!own' has no meaning here; leave it out");
  EXPECT_EQ(yaml_error("- a\n"), "c.yaml:1: expected lines of the form 'key: value'");
}

TEST(Yaml, KeysArePlainNamesGivenOnce) {
  for (const char* odd : {"? [a]\n: b\n", "? {a: b}\n: c\n", "~: a\n", "&k [1]: a\n"})
    EXPECT_EQ(yaml_error(odd), "c.yaml:1: a key must be a plain name") << odd;
  EXPECT_EQ(yaml_error("a: 1\n'a': 2\n"), "c.yaml:2: the key 'a' is given twice (first in line 1); keep one of them");
  EXPECT_EQ(yaml_as_json("'<<': 1\n"), R"({"<<":1})");
}

TEST(Yaml, DepthAndNumberOfValuesHaveLimitsThroughRepetitions) {
  EXPECT_EQ(yaml_error("a: " + std::string(40, '[') + std::string(40, ']')), "c.yaml:1: nested deeper than 32 levels");
  std::string laughs = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (char c = 'b'; c < 'h'; ++c) {
    laughs += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) laughs += std::string(i > 0 ? ", *" : "*") + static_cast<char>(c - 1);
    laughs += "]\n";
  }
  EXPECT_EQ(yaml_error(laughs), "c.yaml:5: more than 100000 values");
}

}  // namespace
}  // namespace tessera::config
