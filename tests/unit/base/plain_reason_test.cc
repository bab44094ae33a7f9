#include "base/plain_reason.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(PlainReason, OfJson) {
  EXPECT_EQ(plain_reason("[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing "
                         "value - unexpected end of input; expected '}'"),
            "not valid JSON at line 1, column 2: unexpected end of input; expected '}'");
  EXPECT_EQ(plain_reason("[json.exception.type_error.302] type must be number, but is string"),
            "expected number, found string");
  EXPECT_EQ(plain_reason("[json.exception.out_of_range.403] key 'a b' not found"), "the key \"a b\" is missing");
  EXPECT_EQ(plain_reason("[json.exception.type_error.304] cannot use at() with null"),
            "found null where another kind of value belongs");
  EXPECT_EQ(plain_reason("TAPE_ERROR: The JSON document has an improper structure: missing commas."),
            "The JSON document has an improper structure: missing commas.");
}

TEST(PlainReason, OfOtherLibraries) {
  EXPECT_EQ(
      plain_reason("Expected a to be true, but got false.  (Could this error message be improved?  If so, please "
                   "report an enhancement request to PyTorch.)\nException raised from f at ../x.cpp:1 (most recent "
                   "call first):\nframe #0"),
      "Expected a to be true, but got false. ");
  EXPECT_EQ(
      plain_reason("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                   "tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)"),
      "not enough memory: 64 bytes more were needed");
}

template <typename F>
std::string reason_of(const F& body) {
  try {
    body();
  } catch (const std::exception& e) {
    return plain_reason(e);
  }
  return "";
}

TEST(PlainReason, OfTheStandardLibrary) {
  EXPECT_EQ(reason_of([] { throw std::bad_alloc(); }), "not enough memory");
  EXPECT_EQ(reason_of([] { (void)std::stoi("x"); }), "a number is not written as one");
  EXPECT_EQ(reason_of([] { (void)std::stod(""); }), "a number is not written as one");
  const std::string form = "its content has another form than expected";
  EXPECT_EQ(reason_of([] { (void)std::vector<int>().at(3); }), form);
  EXPECT_EQ(reason_of([] { (void)std::map<int, int>().at(3); }), form);
  EXPECT_EQ(reason_of([] { (void)std::string().substr(3); }), form);
  EXPECT_EQ(reason_of([] { (void)std::optional<int>().value(); }), form);
  EXPECT_EQ(reason_of([] { (void)std::filesystem::file_size("/nowhere/at all"); }),
            "'/nowhere/at all': No such file or directory");
}

TEST(PlainReason, OwnErrorsStay) {
  const std::string text = "file.json: line one\nand two: [json.exception.x] kept";
  EXPECT_EQ(reason_of([&] { throw DataError(text); }), text);
}

}  // namespace
}  // namespace tessera
