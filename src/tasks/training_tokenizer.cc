#include "tasks/training_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "chat/chat_template.h"
#include "chat/tokenizer_template.h"
#include "hub/model_folder.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

text::TokenizerChanges changes_for(const std::string& format) {
  text::TokenizerChanges changes;
  if (format == "chatml") {
    changes.special = {.bos = "<s>",
                       .eos = "<|im_end|>",
                       .pad = "<pad>",
                       .additional = {"<|im_start|>user", "<|im_start|>assistant", "<|im_start|>system"}};
  } else if (format == "zephyr") {
    changes.special = {
        .bos = "<s>", .eos = "</s>", .pad = "<pad>", .additional = {"<|user|>", "<|assistant|>", "<|system|>"}};
  }
  if (const char* source = chat::builtin_template(format)) changes.chat_template = source;
  return changes;
}

/// Of the tokenizer or brought by the format or with the template. Another would be new, and the model's row of it
/// would have learnt nothing.
void require_known(const std::string& flag, const std::string& token, const text::Tokenizer& tokenizer,
                   const text::TokenizerChanges& changes, const std::string& path) {
  const auto& brought = changes.special;
  const auto& more = brought.additional;
  const bool is_brought = token == brought.bos || token == brought.eos || token == brought.pad ||
                          std::find(more.begin(), more.end(), token) != more.end() ||
                          (changes.added_tokens_of && changes.added_tokens_of->token_to_id(token) >= 0);
  if (token.empty() || is_brought || tokenizer.token_to_id(token) >= 0) return;
  throw ConfigError("--" + flag + " '" + token + "' is no token of the tokenizer '" + path +
                        "'; name one of its tokens, or leave the flag out",
                    flag);
}

/// Jinja itself instead of the name of a file, as recipes for TRL have it.
bool is_source(const std::string& text) {
  return text.find("{%") != std::string::npos || text.find("{{") != std::string::npos;
}

/// The template itself, of a file, or of a tokenizer's folder. With a folder come the tokenizer's added tokens and its
/// end of a turn, as with TRL's clone_chat_template(): a template is of no use without them.
void take_template(const std::string& path, text::TokenizerChanges& changes) {
  if (is_source(path)) {
    changes.chat_template = path;
  } else if (!std::filesystem::is_directory(path)) {
    changes.chat_template = read_text_file(path);
  } else {
    changes.chat_template = chat::read_tokenizer_templates(path).choose("", false);
    changes.added_tokens_of = text::open_tokenizer(path);
    changes.special.eos = changes.added_tokens_of->special_tokens().eos;
  }
}

/// A table of so many rows as TRL (64) and PEFT's script (8) make for `tokens` when they add some.
std::int64_t rows_for(std::int64_t tokens, const text::TokenizerChanges& changes) {
  const std::int64_t step = changes.added_tokens_of ? 64 : 8;
  return (tokens + step - 1) / step * step;
}

/// chosen: --chat_template_path, found; empty: the tokenizer's own template.
std::string place_of_template(const std::string& format, const std::string& chosen, const std::string& tokenizer) {
  if (chat::builtin_template(format) != nullptr) return format;
  const std::string& path = chosen.empty() ? tokenizer : chosen;
  if (is_source(path)) return "--chat_template_path";
  const bool is_file = !chosen.empty() && !std::filesystem::is_directory(path);
  if (is_file) return path;
  const auto templates = chat::read_tokenizer_templates(path);
  return templates.templates.contains("default") ? templates.file_of("", false) : "";
}

}  // namespace

TrainingTokenizer open_training_tokenizer(const TokenizerFlags& options, const std::string& path) {
  TrainingTokenizer result{text::open_tokenizer(path)};
  const std::int64_t before = result.tokenizer->vocab_size();
  text::TokenizerChanges changes = changes_for(options.chat_template_format);
  const std::string& given = options.chat_template_path;
  const std::string chosen = is_source(given) ? given : hub::find_settings(given);
  if (!chosen.empty()) take_template(chosen, changes);
  require_known("eos_token", options.eos_token, *result.tokenizer, changes, path);
  require_known("pad_token", options.pad_token, *result.tokenizer, changes, path);
  if (!options.eos_token.empty()) changes.special.eos = options.eos_token;
  if (!options.pad_token.empty()) changes.special.pad = options.pad_token;
  const auto& own = result.tokenizer->special_tokens();
  if (changes.special.pad.empty() && own.pad.empty()) {
    changes.special.pad = eos_as_padding(changes.special.eos.empty() ? own.eos : changes.special.eos, path);
  }
  result.tokenizer = result.tokenizer->with(changes);
  result.template_place = place_of_template(options.chat_template_format, chosen, path);
  const std::int64_t after = result.tokenizer->vocab_size();
  if (after > before) result.min_vocab_size = rows_for(after, changes);
  return result;
}

std::string eos_as_padding(const std::string& eos, const std::string& path) {
  if (!eos.empty()) return eos;
  throw ConfigError("the tokenizer '" + path + "' has neither a padding nor an eos token; name one with --pad_token",
                    "pad_token");
}

void require_rows_for(const text::Tokenizer& tokenizer, const std::string& path, std::int64_t rows) {
  if (tokenizer.vocab_size() <= rows) return;
  throw DataError(
      fmt::format("the tokenizer '{}' has {} tokens, the model's table {} rows: they do not belong together", path,
                  tokenizer.vocab_size(), rows),
      path);
}

}  // namespace tessera::tasks
