#include "base/cpu_level.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(CpuLevel, IsTheProcessorsWithoutAWish) {
  EXPECT_EQ(choose_cpu_level(std::nullopt, CpuLevel::kAvx512), CpuLevel::kAvx512);
}

TEST(CpuLevel, CanBeLowered) {
  EXPECT_EQ(choose_cpu_level("plain", CpuLevel::kAmx), CpuLevel::kPlain);
  EXPECT_EQ(choose_cpu_level({}, CpuLevel::kAvx512Bf16, /*is_intel=*/true), CpuLevel::kAvx512);
  EXPECT_EQ(choose_cpu_level({}, CpuLevel::kAmx, /*is_intel=*/true), CpuLevel::kAmx);
  EXPECT_EQ(choose_cpu_level({}, CpuLevel::kAvx512Bf16), CpuLevel::kAvx512Bf16);
  EXPECT_EQ(choose_cpu_level("avx512_bf16", CpuLevel::kAvx512Bf16, /*is_intel=*/true), CpuLevel::kAvx512Bf16);
  EXPECT_EQ(choose_cpu_level("avx512_bf16", CpuLevel::kAmx), CpuLevel::kAvx512Bf16);
  for (const auto level : {CpuLevel::kPlain, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16, CpuLevel::kAmx})
    EXPECT_EQ(choose_cpu_level(std::string(name(level)), CpuLevel::kAmx), level);
}

TEST(CpuLevel, RefusesAnotherNameAndWhatTheProcessorLacks) {
  for (const auto* wish : {"avx512", "AVX2", "sse2"}) {
    try {
      choose_cpu_level(wish, CpuLevel::kAvx2);
      FAIL() << wish;
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.key, "TESSERA_CPU_LEVEL");
      EXPECT_NE(std::string(e.what()).find("plain, avx2)"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(wish), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tessera
