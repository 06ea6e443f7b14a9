# The C++ that follows from the declarations in ortops/ops: headers, instantiations and the table of rows, in build/gen. Written
# while configuring, again whenever a declaration changes; a file whose text stays the same is left alone.

file(GLOB declarations CONFIGURE_DEPENDS ortops/ops/*.py)
file(GLOB frame CONFIGURE_DEPENDS ortops/_*.py cuda/device/math.h cuda/ops/*/device.cuh)  # headers: some are embedded
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${declarations} ${frame})

execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parent.parent)"
  OUTPUT_VARIABLE numpy_home OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "The build needs numpy in ${Python_EXECUTABLE}:\n  ${Python_EXECUTABLE} -m pip install numpy")
endif()
# -S: an editable install of another checkout in that Python must not come before this one.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${CMAKE_SOURCE_DIR}:${numpy_home}" PYTHONDONTWRITEBYTECODE=1
    ${Python_EXECUTABLE} -S -m ortops._codegen --out ${CMAKE_BINARY_DIR}/gen
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
  RESULT_VARIABLE code ERROR_VARIABLE reason)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "The declarations could not be turned into C++:\n${reason}")
endif()
include(${CMAKE_BINARY_DIR}/gen/sources.cmake)
list(LENGTH declarations count)
message(STATUS "Declarations: ${count} files, C++ in ${CMAKE_BINARY_DIR}/gen")
