# cuda/ops/*/cuda_sm90.cu: kernels for Hopper alone, made with NVIDIA's CUTLASS (BSD-3; headers, out of its PyPI package). They
# need instructions of sm_90a, so they are compiled apart, and only where 90 is among the architectures.

set(cutlass_wheel nvidia-cutlass==4.2.0.0)
ortops_setting(ORTOPS_CUTLASS_INCLUDE_DIR "" "Folder with cutlass/ and cute/ (empty: fetched; off: no kernels for Hopper alone)")

if(NOT ortops_architectures MATCHES "(^|,)90a?(-real|-virtual)?(,|$)")
  return()
endif()
set(cutlass_include ${ORTOPS_CUTLASS_INCLUDE_DIR})
if("${cutlass_include}" STREQUAL "")
  string(REGEX REPLACE ".*==" "" version ${cutlass_wheel})
  set(cutlass_include ${ortops_cache}/cutlass-${version}/include)
  ortops_fetch_wheel_headers(${cutlass_wheel} cutlass_library/source/include ${cutlass_include})
elseif(NOT cutlass_include)
  message(STATUS "CUTLASS: off, as asked")
  return()
endif()
message(STATUS "CUTLASS headers: ${cutlass_include}")

file(GLOB sm90_sources CONFIGURE_DEPENDS cuda/ops/*/cuda_sm90.cu)
add_library(ortops_sm90 OBJECT ${sm90_sources})
set_target_properties(ortops_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
target_include_directories(ortops_sm90 SYSTEM PRIVATE ${cutlass_include})
target_link_libraries(ortops_sm90 PRIVATE ortops_flags)
target_link_libraries(ortops PRIVATE ortops_sm90)
target_compile_definitions(ortops PRIVATE ORTOPS_SM90=1)
