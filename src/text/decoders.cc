#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "tessera/base/error.h"
#include "text/decoder.h"
#include "text/growth.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

class MetaspaceDecoder final : public Decoder {
 public:
  MetaspaceDecoder(char32_t replacement, bool drop_first) : drop_first_(drop_first) { append_utf8(replacement, sign_); }
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto old = std::move(tokens[i]);
      std::string now;
      for (std::size_t at = 0; at < old.size();) {
        if (old.compare(at, sign_.size(), sign_) != 0) {
          now += old[at++];
          continue;
        }
        if (i > 0 || !drop_first_) now += ' ';
        at += sign_.size();
      }
      tokens[i] = std::move(now);
    }
  }

 private:
  std::string sign_;
  bool drop_first_;
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(const std::string& pattern, const std::string& content, const std::string& where)
      : regex_(pattern, where), content_(content) {}
  void decode(std::vector<std::string>& tokens) const override {
    const std::size_t before = bytes_of(tokens);
    std::size_t bytes = 0;
    for (auto& token : tokens) {
      std::string now;
      std::size_t at = 0;
      for (const auto& [begin, end] : regex_.find_all(token)) {
        check_decoded(before, bytes + now.size());
        now.append(token, at, begin - at).append(content_);
        at = end;
      }
      token = now.append(token, at, std::string::npos);
      bytes += token.size();
    }
  }

 private:
  Regex regex_;
  std::string content_;
};

class Fuse final : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const auto& token : tokens) all += token;
    tokens = {std::move(all)};
  }
};

class StripDecoder final : public Decoder {
 public:
  StripDecoder(char32_t sign, std::size_t start, std::size_t stop) : start_(start), stop_(stop) {
    append_utf8(sign, sign_);
  }
  void decode(std::vector<std::string>& tokens) const override {
    for (auto& token : tokens) {
      for (std::size_t i = 0; i < start_ && token.starts_with(sign_); ++i) token.erase(0, sign_.size());
      for (std::size_t i = 0; i < stop_ && token.ends_with(sign_); ++i) token.resize(token.size() - sign_.size());
    }
  }

 private:
  std::string sign_;
  std::size_t start_, stop_;
};

class ByteFallback final : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (is_well_formed(run))
        out.push_back(run);
      else
        for (std::size_t i = 0; i < run.size(); ++i) out.push_back("\xEF\xBF\xBD");
      run.clear();
    };
    for (auto& token : tokens) {
      unsigned byte = 0;
      const char* digits = token.data() + (token.starts_with("<0x+") ? 4 : 3);  // Rust's numbers may have a sign
      const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.back() == '>' &&
                           std::from_chars(digits, token.data() + 5, byte, 16).ptr == token.data() + 5;
      if (is_byte) {
        run += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static bool is_well_formed(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto before = bytes;
      if (next_code_point(bytes) == 0xFFFD && !before.starts_with("\xEF\xBF\xBD")) return false;
    }
    return true;
  }
};

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(std::vector<DecoderPtr> parts) : parts_(std::move(parts)) {}
  void decode(std::vector<std::string>& tokens) const override {
    const std::size_t before = bytes_of(tokens);
    for (const auto& part : parts_) {
      part->decode(tokens);
      check_decoded(before, bytes_of(tokens));
    }
  }

 private:
  std::vector<DecoderPtr> parts_;
};

}  // namespace

std::size_t bytes_of(const std::vector<std::string>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), std::size_t{0},
                         [](std::size_t sum, const std::string& token) { return sum + token.size(); });
}

void check_decoded(std::size_t from, std::size_t to) {
  if (is_too_much(from, to))
    throw DataError(
        fmt::format("the tokenizer's decoder makes {} bytes of tokens of {} bytes; repair its file", to, from));
}

DecoderPtr make_metaspace_decoder(char32_t replacement, bool drop_first) {
  return std::make_unique<MetaspaceDecoder>(replacement, drop_first);
}
DecoderPtr make_replace_decoder(const std::string& pattern, const std::string& content, const std::string& where) {
  return std::make_unique<ReplaceDecoder>(pattern, content, where);
}
DecoderPtr make_fuse_decoder() {
  return std::make_unique<Fuse>();
}
DecoderPtr make_strip_decoder(char32_t sign, std::size_t start, std::size_t stop) {
  return std::make_unique<StripDecoder>(sign, start, stop);
}
DecoderPtr make_byte_fallback_decoder() {
  return std::make_unique<ByteFallback>();
}
DecoderPtr make_sequence(std::vector<DecoderPtr> parts) {
  return std::make_unique<DecoderSequence>(std::move(parts));
}

}  // namespace tessera::text
