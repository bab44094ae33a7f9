#pragma once
// What may stand in a file that is not what it should be, and what an error may say of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/exit_code.h"

namespace tessera::test {

/// Of JSON that a person or a broken download left: key is one that belongs there, with values of every kind.
inline std::vector<std::string> odd_contents(const std::string& key) {
  std::vector<std::string> out{"",
                               " ",
                               "\n",
                               "{",
                               "{\"a\": ",
                               "{\"a\": \"b",
                               "{\"a\": 1,}",
                               "[]",
                               "[1, 2",
                               "3",
                               "-",
                               "\"text\"",
                               "null",
                               "true",
                               "nonsense",
                               "1e999",
                               std::string("\0\0\0\0", 4),
                               "\xff\xfe\x00garbage",
                               "{\"a\": \"\xff\xfe\"}",
                               "{\"a\": \"\\ud800\"}",
                               std::string(100000, '['),
                               std::string(100000, '{'),
                               "PK\x03\x04",
                               std::string(8, '\xff')};
  for (const char* value : {"null", "3", "-1", "1e400", "\"x\"", "[]", "{}", "true", "[[]]", "{\"a\": {\"b\": []}}",
                            "[3]", "{\"x\": \"y\"}", "[{\"id\": \"x\"}]", "99999999999999999999999"})
    out.push_back("{\"" + key + "\": " + value + "}");
  return out;
}

/// Whether the content is JSON whose shape may be right.
inline bool is_well_formed(const std::string& content, const std::string& key) {
  return content.starts_with("{\"" + key);
}

/// A plain error: an exit code of bad input, one line that names the place, and no library's words.
inline void expect_plain_error(int code, const std::string& text, const std::string& place) {
  EXPECT_LT(code, cli::kInternalError) << text;
  EXPECT_NE(text.find(place), std::string::npos) << text;
  for (const char* foreign :
       {"json.exception", "simdjson", "libyaml", "PCRE2", "c10", "std::", "basic_string", "stoi", "stol", "bad_alloc",
        "_ERROR", "INCORRECT_", "Exception", "parse error", "syntax error", "vector::", "terminate"})
    EXPECT_EQ(text.find(foreign), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

}  // namespace tessera::test
