# cpack -G DEB in the build folder: a package of the two programs with libtorch beside them, manual pages and completions. The
# parts are of a component of their own, which cmake --install leaves out.
set(part COMPONENT package EXCLUDE_FROM_ALL)
get_target_property(torch_folders tessera_libtorch INTERFACE_LINK_DIRECTORIES)
list(GET torch_folders 0 torch_folder)
set(libtorch_files)
foreach(name libtorch.so libtorch_cpu.so libc10.so libgomp.so.1)
  if(EXISTS "${torch_folder}/${name}")
    list(APPEND libtorch_files "${torch_folder}/${name}")
  endif()
endforeach()
install(PROGRAMS $<TARGET_FILE:tessera> $<TARGET_FILE:tessera-worker> DESTINATION bin ${part})
install(FILES ${libtorch_files} DESTINATION lib/tessera ${part})
install(FILES LICENSE DESTINATION share/doc/tessera RENAME copyright ${part})
install(FILES README.md CHANGELOG.md DESTINATION share/doc/tessera ${part})
install(CODE "
  set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  file(MAKE_DIRECTORY \"\${root}/share/man/man1\" \"\${root}/share/bash-completion/completions\"
       \"\${root}/share/zsh/vendor-completions\" \"\${root}/share/fish/vendor_completions.d\")
  execute_process(COMMAND \"$<TARGET_FILE:tessera>\" man \"\${root}/share/man/man1\" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  foreach(pair bash:bash-completion/completions/tessera zsh:zsh/vendor-completions/_tessera fish:fish/vendor_completions.d/tessera.fish)
    string(REPLACE \":\" \";\" pair \"\${pair}\")
    list(GET pair 0 shell)
    list(GET pair 1 place)
    execute_process(COMMAND \"$<TARGET_FILE:tessera>\" completion \"\${shell}\" OUTPUT_FILE \"\${root}/share/\${place}\"
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(RPATH_SET FILE \"\${root}/bin/tessera-worker\" NEW_RPATH \"\\\$ORIGIN/../lib/tessera\")
" ${part})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_CONTACT "the authors of tessera")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fully sharded fine-tuning of Transformers on CPUs")
set(CPACK_PACKAGE_DESCRIPTION "Fine-tunes Transformers over several processes that share one copy of the weights.
 Takes the model folders, data, flags and config files of the Hugging Face stack.
 libtorch ${TESSERA_TORCH_VERSION} lies in /usr/lib/tessera.")
set(CPACK_COMPONENTS_ALL package)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${torch_folder}")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcurl4 | libcurl4t64")  # downloads load it
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
include(CPack)
