#pragma once
// Settings with which every method of PEFT's registry fits the small models.
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::tasks {

/// Settings that fit the small models; a method that is not listed has its own defaults, and takes part all the same.
inline const std::map<std::string, nlohmann::json> kRegistrySettings = {
    {"LORA", {{"r", 4}}},
    {"LOHA", {{"r", 2}}},
    {"LOKR", {{"r", 2}}},
    {"VERA", {{"r", 6}}},
    {"VBLORA", {{"r", 2}, {"num_vectors", 12}, {"vector_length", 4}, {"init_vector_bank_bound", 0.3}}},
    {"RANDLORA", {{"r", 6}, {"randlora_alpha", 12}}},  // of 640, a run multiplies the noise of rounding
    {"FOURIERFT", {{"n_frequency", 20}}},
    {"MISS", {{"r", 4}}},
    {"HRA", {{"r", 4}}},
    {"OFT", {{"oft_block_size", 4}}},
    {"BOFT", {{"boft_block_size", 2}, {"boft_n_butterfly_factor", 2}}},
    {"DELORA", {{"r", 3}}},
    {"GRALORA", {{"r", 4}, {"hybrid_r", 1}}},
    {"C3A", {{"block_size", 4}}},
    {"HIRA", {{"r", 4}}},
    {"PVERA", {{"r", 6}}},
    {"PSOFT", {{"r", 4}}},
    {"UNILORA", {{"r", 3}, {"theta_d_length", 40}, {"init_theta_d_bound", 0.3}, {"save_indices", true}}},
    {"ROAD", {{"group_size", 4}}},
    {"SHIRA", {{"r", 2}}},
    {"WAVEFT", {{"n_frequency", 20}}},
    {"PROMPT_TUNING", {{"num_virtual_tokens", 3}}},
    {"P_TUNING", {{"num_virtual_tokens", 3}, {"encoder_hidden_size", 8}}},
    {"PREFIX_TUNING", {{"num_virtual_tokens", 3}}},
    {"TRAINABLE_TOKENS", {{"token_indices", {5, 7, 20}}}},
    {"ADALORA", {{"init_r", 4}, {"target_r", 2}, {"tinit", 0}, {"tfinal", 1}, {"deltaT", 1}, {"total_step", 4}}}};

inline nlohmann::json settings_of(const std::string& peft_type) {
  const auto it = kRegistrySettings.find(peft_type);
  return it == kRegistrySettings.end() ? nlohmann::json::object() : it->second;
}

}  // namespace tessera::tasks
