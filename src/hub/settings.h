#pragma once
// Where the Hub is and how it is asked: huggingface_hub's environment variables.
#include <chrono>
#include <string>

namespace tessera::hub {

struct Settings {
  std::string cache;     // the folder of models--org--name
  std::string endpoint;  // "https://huggingface.co", without a slash at the end
  std::string token;     // empty: none
  bool offline = false;
  int downloads = 8;                                // at a time
  int tries = 5;                                    // of what may pass: no connection, 429, 5xx
  std::chrono::milliseconds first_wait{1000};       // before the second; each wait is twice the last
  std::chrono::milliseconds longest_wait{300'000};  // for a server that asks for a pause
  std::chrono::seconds stall{60};                   // without a byte: the connection counts as cut
};

/// HF_HUB_CACHE or its older name (else hub in HF_HOME), HF_ENDPOINT, HF_TOKEN (else the file HF_TOKEN_PATH, else token
/// in HF_HOME), HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE. ConfigError for an endpoint that is no address and for a token
/// that cannot stand in a header (which is not shown).
Settings settings_from_environment();

}  // namespace tessera::hub
