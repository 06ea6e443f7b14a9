# The C++ that follows from the declarations in ortops/ops: headers, instantiations and the table of rows, in build/gen. Written
# while configuring, again whenever a declaration changes; a file whose text stays the same is left alone.

file(GLOB declarations CONFIGURE_DEPENDS ortops/ops/*.py)
file(GLOB frame CONFIGURE_DEPENDS ortops/_*.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${declarations} ${frame})

# PYTHONPATH is added to, not replaced: an isolated build has its numpy there.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${CMAKE_SOURCE_DIR}:$ENV{PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
    ${Python_EXECUTABLE} -m ortops._codegen --out ${CMAKE_BINARY_DIR}/gen
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
  RESULT_VARIABLE code ERROR_VARIABLE reason)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "The declarations could not be turned into C++ (by ${Python_EXECUTABLE}, which needs numpy):\n${reason}")
endif()
include(${CMAKE_BINARY_DIR}/gen/sources.cmake)
list(LENGTH declarations count)
message(STATUS "Declarations: ${count} files, C++ in ${CMAKE_BINARY_DIR}/gen")
