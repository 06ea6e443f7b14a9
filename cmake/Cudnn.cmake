# cuda/vendor/cudnn.cc, the one file that includes cuDNN's headers. They are NVIDIA's: used here, never kept in the repository.
# The cuDNN of this system if it has one, else the headers out of two PyPI packages. (As ordinary requirements those would
# drag in 400 MB of libraries.)

set(cudnn_wheel nvidia-cudnn-jit-cu13==9.19.0.56)
# Newer front ends include nvrtc.h, which a small toolkit lacks, and need large packages beside them.
set(cudnn_frontend_wheel nvidia-cudnn-frontend==1.18.0)

function(ortops_fetch_wheel_headers requirement folder destination)
  if(EXISTS ${destination})
    return()
  endif()
  message(STATUS "Fetching the headers of ${requirement}")
  set(scratch ${CMAKE_BINARY_DIR}/wheels)
  set(download -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version 3.12
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --dest ${scratch} ${requirement})
  # An isolated build hides the environment's own pip behind PYTHONPATH.
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH ${Python_EXECUTABLE} ${download}
    RESULT_VARIABLE code ERROR_VARIABLE reason)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR
      "${requirement} could not be fetched:\n${reason}\n"
      "Give ORTOPS_CUDNN_INCLUDE_DIR, ORTOPS_CUDNN_FRONTEND_INCLUDE_DIR and ORTOPS_CUTLASS_INCLUDE_DIR, or build without CUDA: ORTOPS_CUDA=off.")
  endif()
  string(REGEX REPLACE "==.*" "" name ${requirement})
  string(REPLACE "-" "_" name ${name})
  file(GLOB wheel ${scratch}/${name}-*.whl)
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${scratch}/${name} PATTERNS "${folder}/*")
  get_filename_component(parent ${destination} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(RENAME ${scratch}/${name}/${folder} ${destination})
  file(REMOVE_RECURSE ${scratch})
endfunction()

set(cudnn_include ${ORTOPS_CUDNN_INCLUDE_DIR})
if(NOT cudnn_include)
  find_path(CUDNN_SYSTEM_INCLUDE cudnn_version.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  mark_as_advanced(CUDNN_SYSTEM_INCLUDE)
  if(CUDNN_SYSTEM_INCLUDE)
    file(STRINGS ${CUDNN_SYSTEM_INCLUDE}/cudnn_version.h major REGEX "^#define CUDNN_MAJOR +[0-9]+" LIMIT_COUNT 1)
    if(major MATCHES " 9$")
      set(cudnn_include ${CUDNN_SYSTEM_INCLUDE})
    endif()
  endif()
endif()
if(NOT cudnn_include)
  string(REGEX REPLACE ".*==" "" version ${cudnn_wheel})
  set(cudnn_include ${ortops_cache}/cudnn-${version}/include)
  ortops_fetch_wheel_headers(${cudnn_wheel} nvidia/cudnn_jit/include ${cudnn_include})
endif()

set(cudnn_frontend_include ${ORTOPS_CUDNN_FRONTEND_INCLUDE_DIR})
if(NOT cudnn_frontend_include)
  string(REGEX REPLACE ".*==" "" version ${cudnn_frontend_wheel})
  set(cudnn_frontend_include ${ortops_cache}/cudnn-frontend-${version}/include)
  ortops_fetch_wheel_headers(${cudnn_frontend_wheel} include ${cudnn_frontend_include})
endif()
message(STATUS "cuDNN headers: ${cudnn_include}; front end: ${cudnn_frontend_include}")

# Size, not speed: this code builds graphs, cuDNN runs them. JSON (saved plans) doubles the compile time and is not used.
add_library(ortops_cudnn OBJECT cuda/vendor/cudnn.cc)
target_compile_options(ortops_cudnn PRIVATE -Os)
target_compile_definitions(ortops_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)
target_include_directories(ortops_cudnn SYSTEM PRIVATE ${cudnn_frontend_include} ${cudnn_include})
target_link_libraries(ortops_cudnn PRIVATE ortops_flags)
