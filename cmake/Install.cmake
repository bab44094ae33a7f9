# cmake --install: the two programs, and the library for find_package(tessera): public headers and the rooms below them.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(library_rooms base formats tensor config families comm io optim nn quant models peft fsdp checkpoint)
list(TRANSFORM library_rooms PREPEND "tessera_" OUTPUT_VARIABLE library_targets)

install(TARGETS tessera tessera-worker RUNTIME)
install(TARGETS ${library_targets} EXPORT tesseraTargets ARCHIVE)
install(DIRECTORY include/tessera TYPE INCLUDE)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package})
configure_package_config_file(cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
              cmake/Libtorch.cmake DESTINATION ${package})
