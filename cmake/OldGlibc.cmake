# TESSERA_OLD_GLIBC: a folder that tools/old_glibc.py has made. Programs then run on systems with glibc 2.28 and g++ 8's libstdc++
# (manylinux_2_28), whatever this system has: scripts/wheel.sh. They are linked with that glibc's symbols. What the old libstdc++ lacks
# is linked in and hidden, as Red Hat's gcc-toolset does, and so are those of Debian's libraries that need more: libcrypto, libzstd, liblzma.
set(TESSERA_OLD_GLIBC "" CACHE PATH "folder of tools/old_glibc.py, for programs that run on older systems")
set(tessera_fmt fmt::fmt)
set(tessera_zstd PkgConfig::ZSTD)
set(tessera_spdlog spdlog::spdlog)
if(NOT TESSERA_OLD_GLIBC)
  return()
endif()
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_library(LIBLZMA_LIBRARY liblzma.a REQUIRED)
find_library(tessera_static_zstd libzstd.a REQUIRED)
set(tessera_zstd "${tessera_static_zstd}")
set(tessera_fmt fmt::fmt-header-only)
set(tessera_spdlog)  # header-only as well, without its target, which links libfmt
add_compile_definitions(SPDLOG_FMT_EXTERNAL)
add_link_options("-B${TESSERA_OLD_GLIBC}" "LINKER:--allow-shlib-undefined"
                 "LINKER:--exclude-libs,libnew.a:libcrypto.a:libzstd.a:liblzma.a")
string(APPEND CMAKE_CXX_STANDARD_LIBRARIES " ${TESSERA_OLD_GLIBC}/libnew.a")
