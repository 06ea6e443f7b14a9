# ONNX Runtime's official headers, from the first place that has them. Only headers: the library takes every function from the
# OrtApi that it is handed, and links no libonnxruntime.

set(ort_least 21)        # the ORT_API_VERSION that cuda/core is written for; newer headers do as well
set(ort_archive_url https://github.com/microsoft/onnxruntime/releases/download/v1.21.0/onnxruntime-linux-x64-1.21.0.tgz)
set(ort_archive_sha256 7485c7e7aac6501b27e353dcbe068e45c61ab51fbaf598d13970dfae669d20bf)

# Sets `out` to the folder under `root` that holds headers new enough, else to "".
function(ortops_find_ort_headers root out)
  set(${out} "" PARENT_SCOPE)
  foreach(folder . onnxruntime onnxruntime/core/session include include/onnxruntime include/onnxruntime/core/session)
    set(header ${root}/${folder}/onnxruntime_c_api.h)
    if(root AND EXISTS ${header})
      file(STRINGS ${header} line REGEX "^#define ORT_API_VERSION [0-9]+" LIMIT_COUNT 1)
      string(REGEX MATCH "[0-9]+$" version "${line}")
      if(version GREATER_EQUAL ort_least)
        cmake_path(SET found NORMALIZE ${root}/${folder})
        set(${out} ${found} PARENT_SCOPE)
        set(${out}_version ${version} PARENT_SCOPE)
        return()
      endif()
      message(STATUS "${header} is of API ${version}, ${ort_least} is needed: not used")
    endif()
  endforeach()
endfunction()

# The same headers serve every processor, so one archive does.
function(ortops_fetch_ort_archive destination)
  message(STATUS "Fetching ONNX Runtime's release archive")
  set(file ${CMAKE_BINARY_DIR}/onnxruntime.tgz)
  file(DOWNLOAD ${ort_archive_url} ${file} TIMEOUT 20 STATUS status)
  list(GET status 0 code)
  if(code EQUAL 0)
    file(SHA256 ${file} sum)
    if(sum STREQUAL ort_archive_sha256)
      file(ARCHIVE_EXTRACT INPUT ${file} DESTINATION ${destination}.part PATTERNS "*/include/*")
      file(GLOB include ${destination}.part/*/include)
      file(REMOVE_RECURSE ${destination})
      file(RENAME ${include} ${destination})
      file(REMOVE_RECURSE ${destination}.part)
    else()
      message(STATUS "  its checksum is ${sum}, not the pinned one: not used")
    endif()
  else()
    list(GET status 1 reason)
    message(STATUS "  not reachable (${reason})")
  endif()
  file(REMOVE ${file})
endfunction()

function(ortops_fetch_ort_debian destination)
  message(STATUS "Fetching Debian's package libonnxruntime-dev through this machine's apt mirror")
  execute_process(
    COMMAND sh ${CMAKE_SOURCE_DIR}/cmake/fetch_debian_headers.sh ${CMAKE_BINARY_DIR}/apt ${destination}
    RESULT_VARIABLE code ERROR_VARIABLE reason OUTPUT_QUIET)
  if(NOT code EQUAL 0)
    string(STRIP "${reason}" reason)
    string(REGEX REPLACE "^.*\n" "" reason "${reason}")
    message(STATUS "  failed (${reason})")
  endif()
endfunction()

# Takes the headers under `root`, unless an earlier place had them.
macro(ortops_try_ort_headers root origin)
  if(NOT ort_include)
    ortops_find_ort_headers("${root}" ort_include)
    set(ort_origin "${origin}")
  endif()
endmacro()

set(ort_include "")
if(ORTOPS_ORT_INCLUDE_DIR)
  ortops_try_ort_headers("${ORTOPS_ORT_INCLUDE_DIR}" "ORTOPS_ORT_INCLUDE_DIR")
  if(NOT ort_include)
    message(FATAL_ERROR
      "ORTOPS_ORT_INCLUDE_DIR=${ORTOPS_ORT_INCLUDE_DIR} holds no onnxruntime_c_api.h of API ${ort_least} or newer.")
  endif()
endif()
ortops_try_ort_headers(/usr/include "this system")
ortops_try_ort_headers(/usr/local/include "this system")
set(ort_archive_text "the release archive")
set(ort_debian_text "Debian's libonnxruntime-dev")
foreach(way archive debian)
  ortops_try_ort_headers(${ortops_cache}/onnxruntime-${way} "${ort_${way}_text}, fetched before")
endforeach()
foreach(way archive debian)
  if(NOT ort_include)
    cmake_language(CALL ortops_fetch_ort_${way} ${ortops_cache}/onnxruntime-${way})
    ortops_try_ort_headers(${ortops_cache}/onnxruntime-${way} "${ort_${way}_text}")
  endif()
endforeach()
if(NOT ort_include)
  message(FATAL_ERROR
    "ONNX Runtime's C headers (API ${ort_least} or newer) were not found and could not be fetched. Either\n"
    "  install Debian's libonnxruntime-dev (trixie or newer), or\n"
    "  unpack an onnxruntime release (1.${ort_least} or newer) and give its include folder: "
    "-DORTOPS_ORT_INCLUDE_DIR=... or the environment variable of that name.")
endif()
message(STATUS "ONNX Runtime headers: API ${ort_include_version}, from ${ort_origin} (${ort_include})")

add_library(ortops_ort_headers INTERFACE)
target_include_directories(ortops_ort_headers SYSTEM INTERFACE ${ort_include})
