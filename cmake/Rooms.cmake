# tessera_room(NAME [DEPENDS rooms...] [LINK targets...]): the static library tessera_NAME from src/NAME/*.cc
# (main.cc excluded), with public headers include/tessera/NAME and private headers src/NAME, both included by full path:
#   #include "tessera/NAME/x.h"   #include "NAME/y.h"
# fmt is used header-only: torch's include folder carries another version of it, which must not meet the system's library.
# Every room but base, config, text, chat, launch and cli links libtorch (and, through it, needs no more than ATen's slim headers).
# Most of such a source's compile time is libtorch's headers: eight sources share one reading of them. Highway's sources read
# themselves again for each instruction set, and stay alone.
function(tessera_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  foreach(source ${ARGN})
    file(STRINGS ${source} highway REGEX "hwy/foreach_target.h" LIMIT_COUNT 1)
    if(highway)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

function(tessera_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cc")
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  if(sources)
    add_library(tessera_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(tessera_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(tessera_${name} ${scope} "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  list(TRANSFORM ROOM_DEPENDS PREPEND "tessera_")
  target_link_libraries(tessera_${name} ${scope} ${ROOM_DEPENDS} ${ROOM_LINK} fmt::fmt-header-only spdlog::spdlog
                        nlohmann_json::nlohmann_json Threads::Threads)
  if(NOT name MATCHES "^(base|config|text|chat|launch|cli)$")
    target_link_libraries(tessera_${name} ${scope} tessera::libtorch)
    tessera_unity(tessera_${name} ${sources})
  endif()
endfunction()
