# libtessera_cuda.so: kernels for NVIDIA's GPUs (src/cuda), loaded when there is a GPU (base/device_kernels.h). Made where
# nvcc is found. It has CUDA's runtime in it, and links neither libtorch nor anything of tessera.
set(TESSERA_CUDA AUTO CACHE STRING "build libtessera_cuda.so: ON, OFF, or AUTO: where there is nvcc")
set_property(CACHE TESSERA_CUDA PROPERTY STRINGS AUTO ON OFF)
if(TESSERA_CUDA STREQUAL "OFF")
  return()
endif()
find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT TESSERA_NVCC)
  if(TESSERA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TESSERA_CUDA=ON needs nvcc, which is not in PATH nor in CUDA_HOME: set TESSERA_NVCC to it, or TESSERA_CUDA=OFF.")
  endif()
  return()
endif()

# Machine code for those that nvcc knows, and text from which the driver makes it for later ones.
execute_process(COMMAND ${TESSERA_NVCC} --list-gpu-code OUTPUT_VARIABLE known RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${TESSERA_NVCC} --list-gpu-code failed (${failed}): set TESSERA_NVCC to a working nvcc, or TESSERA_CUDA=OFF.")
endif()
set(nvcc_flags -O3 -std=c++20 --expt-relaxed-constexpr -cudart static -Xcompiler -fPIC,-fvisibility=hidden
    "-I${PROJECT_SOURCE_DIR}/src")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND nvcc_flags -ccbin ${CMAKE_CXX_COMPILER})
endif()
set(nvcc_targets "")
set(codes 80 86 90 120)
if(NOT EXISTS "${_torch}/lib/libtorch_cuda.so" AND NOT TESSERA_CUDA STREQUAL "ON")
  set(codes 90)  # only to see that they compile
endif()
foreach(code ${codes})
  if(known MATCHES "sm_${code}[\r\n]")
    list(APPEND nvcc_targets -gencode arch=compute_${code},code=sm_${code})
  endif()
endforeach()
list(APPEND nvcc_targets -gencode arch=compute_90,code=compute_90)

file(GLOB kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/*.cu")
file(GLOB kernel_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/*.h" "${PROJECT_SOURCE_DIR}/src/cuda/*.cuh")
list(APPEND kernel_headers "${PROJECT_SOURCE_DIR}/src/base/device_kernels.h" "${PROJECT_SOURCE_DIR}/src/tensor/random_bits.h")
set(kernel_folder "${PROJECT_BINARY_DIR}/cuda")
file(MAKE_DIRECTORY "${kernel_folder}")
set(kernel_objects "")
foreach(source ${kernel_sources})
  get_filename_component(name "${source}" NAME_WE)
  set(object "${kernel_folder}/${name}.o")
  add_custom_command(OUTPUT "${object}"
    COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${object}" "-DLOG=${kernel_folder}/${name}.ptxas" -P "${PROJECT_SOURCE_DIR}/cmake/CompileKernels.cmake"
            -- ${TESSERA_NVCC} ${nvcc_flags} ${nvcc_targets} -Xptxas -v -c "${source}" -o "${object}"
    DEPENDS "${source}" ${kernel_headers} "${PROJECT_SOURCE_DIR}/cmake/CompileKernels.cmake"
    COMMENT "Kernels of ${name}.cu" VERBATIM)
  list(APPEND kernel_objects "${object}")
endforeach()

set(kernel_library "${PROJECT_BINARY_DIR}/libtessera_cuda.so")
set(old_glibc "")
if(TESSERA_OLD_GLIBC)
  set(old_glibc -Xcompiler "-B${TESSERA_OLD_GLIBC}" -Xlinker --allow-shlib-undefined)
endif()
add_custom_command(OUTPUT "${kernel_library}"
  COMMAND ${TESSERA_NVCC} ${nvcc_flags} ${nvcc_targets} -shared -Xlinker --exclude-libs,ALL ${old_glibc} ${kernel_objects} -o "${kernel_library}"
  DEPENDS ${kernel_objects} COMMENT "Linking libtessera_cuda.so" VERBATIM)
# Part of every build that can use it; beside a libtorch without CUDA `ninja gpu_kernels` shows that it compiles.
if(EXISTS "${_torch}/lib/libtorch_cuda.so" OR TESSERA_CUDA STREQUAL "ON")
  add_custom_target(gpu_kernels ALL DEPENDS "${kernel_library}")
  install(FILES "${kernel_library}" DESTINATION bin)
else()
  add_custom_target(gpu_kernels DEPENDS "${kernel_library}")
endif()

# For a machine with a GPU: build/cuda/kernel_check build/libtessera_cuda.so
set(check_sources "${PROJECT_SOURCE_DIR}/tests/gpu/kernel_check.cu" "${PROJECT_SOURCE_DIR}/tests/support/host_kernels.cc")
add_custom_command(OUTPUT "${kernel_folder}/kernel_check"
  COMMAND ${TESSERA_NVCC} ${nvcc_flags} ${nvcc_targets} -Xcompiler -ffp-contract=off "-I${PROJECT_SOURCE_DIR}/tests"
          ${check_sources} -o "${kernel_folder}/kernel_check" -ldl -lpthread
  DEPENDS ${check_sources} "${PROJECT_SOURCE_DIR}/tests/support/host_kernels.h" ${kernel_headers}
  COMMENT "Linking kernel_check" VERBATIM)
add_custom_target(kernel_check DEPENDS "${kernel_folder}/kernel_check" gpu_kernels)
