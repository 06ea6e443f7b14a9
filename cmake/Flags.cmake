# What every file of the library is compiled with.

add_library(ortops_flags INTERFACE)
target_compile_features(ortops_flags INTERFACE cxx_std_20)
target_include_directories(ortops_flags INTERFACE ${CMAKE_SOURCE_DIR}/cuda ${CMAKE_BINARY_DIR})
target_compile_definitions(ortops_flags INTERFACE
  ORTOPS_VERSION="${PROJECT_VERSION}"
  ORTOPS_ARCHITECTURES="${ortops_architectures}"
  $<$<BOOL:${ortops_with_cuda}>:ORTOPS_CUDA=1>)

# No fast-math: results are IEEE's. But nobody reads errno or the floating-point exception flags, which keep loops from being vectorised.
# GCC 12 warns of overlapping copies in std::string's operator+ where there are none (its bug 105651): -Wno-restrict.
target_compile_options(ortops_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-restrict -fno-math-errno -fno-trapping-math -ffunction-sections -fdata-sections>)
# g++ 12 sees overlapping copies in "text" + std::string (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(ortops_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()

if(ortops_with_cuda)
  # The language version as a flag: CMake 3.25 knows no C++20 of nvcc 13.
  target_compile_options(ortops_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-Wno-restrict --extended-lambda --expt-relaxed-constexpr>)
  target_link_libraries(ortops_flags INTERFACE ortops_cuda_headers)
endif()
