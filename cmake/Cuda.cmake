# Decides about CUDA, finds nvcc and turns the language on. find_package(CUDAToolkit) is not used: it insists on libraries that
# the PyPI toolkit lacks and this library does not link.

set(gpu_capabilities "")
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
  OUTPUT_VARIABLE gpu_capabilities ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE smi_failed)
if(smi_failed)
  set(gpu_capabilities "")
endif()
string(REGEX MATCHALL "[0-9]+\\.[0-9]+" gpu_capabilities "${gpu_capabilities}")
list(REMOVE_DUPLICATES gpu_capabilities)
list(TRANSFORM gpu_capabilities REPLACE "\\." "")

string(TOLOWER "${ORTOPS_CUDA}" ortops_cuda)
if(ortops_cuda STREQUAL "auto")
  find_library(CUDA_DRIVER libcuda.so.1)
  mark_as_advanced(CUDA_DRIVER)
  if(gpu_capabilities OR CUDA_DRIVER OR EXISTS /proc/driver/nvidia)
    set(ortops_with_cuda ON)
    message(STATUS "CUDA: on, there is an NVIDIA driver")
  else()
    set(ortops_with_cuda OFF)
    message(STATUS "CUDA: off, there is no NVIDIA driver (ORTOPS_CUDA=on compiles the kernels all the same)")
  endif()
elseif(ortops_cuda MATCHES "^(on|off|true|false|yes|no|1|0)$")
  set(ortops_with_cuda OFF)
  if(ortops_cuda)
    set(ortops_with_cuda ON)
  endif()
  message(STATUS "CUDA: ${ORTOPS_CUDA}, as asked")
else()
  message(FATAL_ERROR "ORTOPS_CUDA is \"${ORTOPS_CUDA}\"; it may be auto, on or off.")
endif()
set(ortops_architectures "")
if(NOT ortops_with_cuda)
  return()
endif()

# A number alone is code for that chip. The newest number is kept as PTX as well, for chips to come; "-real", "-virtual" and
# letters (90a) mean what they mean to CMake.
string(REGEX REPLACE "[ ,;]+" ";" wanted "${ORTOPS_CUDA_ARCHITECTURES}")
if(NOT wanted)
  set(wanted ${gpu_capabilities})
endif()
if(NOT wanted)
  set(wanted 90)
endif()
set(plain ${wanted})
list(FILTER plain INCLUDE REGEX "^[0-9]+$")
list(SORT plain COMPARE NATURAL)
set(newest "")
if(plain)
  list(GET plain -1 newest)
endif()
set(CMAKE_CUDA_ARCHITECTURES "")
foreach(architecture IN LISTS wanted)
  if(NOT architecture MATCHES "^[0-9]+[a-z]?(-real|-virtual)?$")
    message(FATAL_ERROR "ORTOPS_CUDA_ARCHITECTURES: \"${architecture}\" is no architecture; one is written like 90, 90a or 90-real.")
  endif()
  if(architecture MATCHES "-" OR architecture STREQUAL newest)
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture})
  else()
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture}-real)
  endif()
endforeach()
list(JOIN wanted "," ortops_architectures)

if(NOT CMAKE_CUDA_COMPILER)
  find_program(NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(NVCC)
  set(CMAKE_CUDA_COMPILER ${NVCC})
endif()
if(NOT CMAKE_CUDA_COMPILER)
  # The PyPI toolkit, as installed in the Python that runs this build.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(next(iter(u.find_spec('nvidia.cu13').submodule_search_locations)))"
    OUTPUT_VARIABLE pypi_toolkit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT EXISTS "${pypi_toolkit}/bin/nvcc")
    message(FATAL_ERROR
      "CUDA is on, but there is no nvcc. Install NVIDIA's toolkit (13.0 or newer), or its PyPI packages:\n"
      "  ${Python_EXECUTABLE} -m pip install 'cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]==13.0.2'\n"
      "or build the CPU kernels alone: ORTOPS_CUDA=off.")
  endif()
  set(CMAKE_CUDA_COMPILER ${pypi_toolkit}/bin/nvcc)
  # That nvcc looks for the runtime in lib64; the packages have lib.
  set(CMAKE_CUDA_FLAGS_INIT -L${pypi_toolkit}/lib)
endif()

set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
list(JOIN CMAKE_CUDA_ARCHITECTURES " " text)
message(STATUS "CUDA compiler: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, for ${text}")
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: 12.8 or newer is needed.")
endif()

# For the C++ files that call CUDA (nvcc finds its own headers).
add_library(ortops_cuda_headers INTERFACE)
target_include_directories(ortops_cuda_headers SYSTEM INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}>)
